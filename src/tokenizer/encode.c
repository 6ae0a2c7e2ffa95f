/* encode.c: text to ids: walks the stages that tokenizer_int.h describes.
 *
 * All scratch of one call is in struct encoder and freed at its end; the result is copied to the caller's arena.
 * Origins of bytes are carried through normalisation only when somebody asks for them.
 */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/words.h"

struct encoder {
    const struct tokenizer *t;
    const struct encode_opts *opts;
    struct mbuf norm[2];
    struct pretok_scratch pretok;
    struct model_scratch model;
    struct token_out out;
};

static struct mtext mtext_sub(const struct mtext *x, size_t first, size_t end)
{
    return (struct mtext){ x->s + first, end - first, x->ends ? x->ends + first : NULL, mtext_first(x, first) };
}

static mb_status too_many(const struct encoder *e, mb_error *err)
{
    return mb_fail(err, MB_TOO_LARGE, "tokenizer: the text has more than %zu tokens", e->opts->max_tokens);
}

static bool is_over(const struct encoder *e)
{
    return e->opts->max_tokens && e->out.n > e->opts->max_tokens;
}

/* Text without added tokens. */
static mb_status encode_plain(struct encoder *e, const struct mtext *x, mb_error *err)
{
    struct mtext text;
    const struct piece_list *pieces;
    struct pretok_stream stream;
    struct piece p;
    if (pretok_stream_init(&stream, &e->t->pretok, x)) {
        while (pretok_stream_next(&stream, &p)) {
            int32_t id = e->t->bpe.cuts ? -1 : word_known(&e->t->bpe.words, x, p); /* the short way for most */
            if (id < 0 || !token_out_push(&e->out, id, p.len, mtext_end(x, p.off + p.len - 1)))
                MB_TRY(model_encode(e->t, &e->model, x, p, e->opts->max_tokens, &e->out, err));
            if (is_over(e)) return too_many(e, err);
        }
        return MB_OK;
    }
    MB_TRY(pretok_run(&e->t->pretok, &e->pretok, x, &text, &pieces, err));
    for (size_t i = 0; i < pieces->n; i++) {
        MB_TRY(model_encode(e->t, &e->model, &text, pieces->at[i], e->opts->max_tokens, &e->out, err));
        if (is_over(e)) return too_many(e, err);
    }
    return MB_OK;
}

typedef mb_status (*rest_fn)(struct encoder *e, const struct mtext *x, mb_error *err);

/* Cut x at the tokens of a trie; rest gets what lies between. */
static mb_status encode_cut(struct encoder *e, const struct trie *trie, const struct mtext *x, rest_fn rest,
                            mb_error *err)
{
    size_t pos = 0, done = 0;
    struct added_match m;
    struct mtext sub;
    while (added_next(&e->t->added, trie, x, e->opts, &pos, done, &m)) {
        if (m.first > done) {
            sub = mtext_sub(x, done, m.first);
            MB_TRY(rest(e, &sub, err));
        }
        if (!token_out_push(&e->out, m.token->id, 0, mtext_end(x, m.end - 1)))
            return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the tokens of a text");
        if (is_over(e)) return too_many(e, err);
        done = m.end;
    }
    if (done >= x->n) return MB_OK;
    sub = mtext_sub(x, done, x->n);
    return rest(e, &sub, err);
}

static mb_status encode_normalised(struct encoder *e, const struct mtext *x, mb_error *err)
{
    struct mtext text;
    MB_TRY(norm_run(&e->t->norm, &e->pretok.regex, x, e->norm, &text, err));
    return encode_cut(e, &e->t->added.normalized, &text, encode_plain, err);
}

static mb_status arena_status(const struct arena *a, size_t n_tokens, mb_error *err)
{
    size_t need = n_tokens * (sizeof(int32_t) + sizeof(size_t)) + 64;
    if (a->limit_bytes && need > a->limit_bytes - a->used_bytes)
        return mb_fail(err, MB_TOO_LARGE, "tokenizer: %zu tokens do not fit the request's memory of %zu bytes", n_tokens,
                       a->limit_bytes);
    return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the tokens of a text");
}

static mb_status copy_out(const struct encoder *e, struct arena *a, struct token_list *out, mb_error *err)
{
    const struct post *p = &e->t->post;
    size_t n_before = e->opts->add_special_tokens ? p->n_before : 0;
    size_t n_after = e->opts->add_special_tokens ? p->n_after : 0;
    size_t n = e->out.n + n_before + n_after;
    int32_t *ids = arena_alloc_array(a, n, sizeof *ids);
    size_t *ends = ids && e->out.want_ends ? arena_alloc_array(a, n, sizeof *ends) : NULL;
    if (!ids || (e->out.want_ends && !ends)) return arena_status(a, n, err);
    if (n_before) memcpy(ids, p->before, n_before * sizeof *ids);
    if (e->out.n) memcpy(ids + n_before, e->out.ids, e->out.n * sizeof *ids);
    if (n_after) memcpy(ids + n_before + e->out.n, p->after, n_after * sizeof *ids);
    for (size_t i = 0; ends && i < n; i++) {
        size_t k = i < n_before ? 0 : i - n_before;
        if (k >= e->out.n) k = e->out.n - 1;
        ends[i] = e->out.n ? e->out.ends[k] : 0;
    }
    *out = (struct token_list){ ids, n, ends, false };
    return MB_OK;
}

static mb_status check_text(const char *text, size_t len, const struct encode_opts *o, mb_error *err)
{
    if (len > TOKENIZER_MAX_TEXT)
        return mb_fail(err, MB_TOO_LARGE, "tokenizer: a text of %zu bytes; at most %zu are read", len, TOKENIZER_MAX_TEXT);
    size_t good = utf8_valid_prefix(text, len, NULL);
    if (good != len) return mb_fail(err, MB_INVALID, "tokenizer: the text is not UTF-8 at byte %zu", good);
    for (size_t i = 0; i < o->n_content; i++)
        if (o->content[i].first > o->content[i].end || o->content[i].end > len ||
            (i && o->content[i].first < o->content[i - 1].end))
            return mb_fail(err, MB_INVALID, "tokenizer: content span %zu is out of order or out of the text", i);
    return MB_OK;
}

static void encoder_init(struct encoder *e, const struct tokenizer *t, const struct encode_opts *o, size_t len)
{
    memset(e, 0, sizeof *e);
    e->t = t;
    e->opts = o;
    e->out.want_ends = o->want_ends;
    bool origins = o->want_ends || o->n_content || (t->pretok.needs_origin && t->norm.n + t->pretok.n > 1);
    size_t limit = len * 64 + (1 << 20); /* what normalising may make of a text */
    if (limit > TOKENIZER_MAX_TEXT) limit = TOKENIZER_MAX_TEXT;
    for (int i = 0; i < 2; i++) {
        mbuf_reset(&e->norm[i], limit, origins);
        mbuf_reset(&e->pretok.texts[i], limit, origins);
    }
    model_scratch_init(&e->model, len);
}

static void encoder_free(struct encoder *e)
{
    for (int i = 0; i < 2; i++) mbuf_free(&e->norm[i]);
    pretok_scratch_free(&e->pretok);
    model_scratch_free(&e->model);
    mb_free(e->out.ids);
    mb_free(e->out.ends);
    mb_free(e->out.rel);
}

mb_status tokenizer_encode(const struct tokenizer *t, struct arena *a, const char *text, size_t len,
                           const struct encode_opts *opts, struct token_list *out, mb_error *err)
{
    static const struct encode_opts plain = { 0 };
    struct encoder e;
    *out = (struct token_list){ 0 };
    if (!opts) opts = &plain;
    if (!text) text = "";
    MB_TRY(check_text(text, len, opts, err));
    encoder_init(&e, t, opts, len);
    struct mtext x = { .s = text, .n = len };
    bool too_long = opts->max_tokens && t->max_bytes && len / t->max_bytes > opts->max_tokens; /* no need to look */
    mb_status st = too_long ? too_many(&e, err) : len ? encode_cut(&e, &t->added.raw, &x, encode_normalised, err) : MB_OK;
    out->over_limit = too_long || is_over(&e);
    if (st == MB_OK) st = copy_out(&e, a, out, err);
    encoder_free(&e);
    return st;
}
