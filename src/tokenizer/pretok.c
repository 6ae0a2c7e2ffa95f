/* pretok.c: the pre-tokeniser section of tokenizer.json: text to pieces.
 *
 * pretok_load flattens the section to steps; pretok_run takes the whole text as one piece and lets each step cut every
 * piece, between two piece lists. Steps that rewrite (Metaspace, a prefix space, the byte-level alphabet) make a new
 * text with origins kept. ByteLevel is three steps: prefix space, its regular expression, byte map. Known expressions
 * are cut by hand (scanner.c).
 */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define SECTION "pre_tokenizer"

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct pretok_loader {
    struct pretok_list *list;
    struct arena *mem;
};

static struct pretok_step *step_new(struct pretok_loader *l, enum pretok_kind kind, enum split_behavior behavior)
{
    struct pretok_step *s = &l->list->steps[l->list->n++];
    *s = (struct pretok_step){ .kind = kind, .behavior = behavior };
    return s;
}

static struct pretok_step *class_new(struct pretok_loader *l, enum split_behavior behavior, bool (*in_class)(uint32_t cp))
{
    struct pretok_step *s = step_new(l, PRETOK_CLASS, behavior);
    s->in_class = in_class;
    for (uint32_t c = 0; c < 128; c++)
        if (in_class(c)) s->ascii_class[c / 64] |= (uint64_t)1 << (c % 64);
    return s;
}

static mb_status load_behavior(const json_t *j, enum split_behavior dflt, bool required, enum split_behavior *out,
                               mb_error *err)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const json_t *v = json_object_get(j, "behavior");
    *out = dflt;
    if (!v && !required) return MB_OK;
    for (int i = 0; i < 5; i++)
        if (json_is_string(v) && strcmp(json_string_value(v), names[i]) == 0) {
            *out = (enum split_behavior)i;
            return MB_OK;
        }
    return step_bad(err, SECTION, "behavior must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static mb_status load_byte_level(struct pretok_loader *l, const json_t *j, mb_error *err)
{
    bool prefix, use_regex;
    MB_TRY(step_bool(j, SECTION, "add_prefix_space", true, &prefix, err));
    MB_TRY(step_bool(j, SECTION, "use_regex", true, &use_regex, err));
    if (prefix) step_new(l, PRETOK_PREFIX_SPACE, SPLIT_ISOLATED);
    if (use_regex) {
        struct pretok_step *s = step_new(l, PRETOK_PATTERN, SPLIT_ISOLATED);
        s->scanner = scanner_find(gpt2_pattern, sizeof gpt2_pattern - 1);
        if (!s->scanner) MB_TRY(regex_open(&s->pattern.regex, gpt2_pattern, sizeof gpt2_pattern - 1, err));
    }
    step_new(l, PRETOK_BYTE_MAP, SPLIT_ISOLATED);
    return MB_OK;
}

static mb_status load_split(struct pretok_loader *l, const json_t *j, mb_error *err)
{
    struct pretok_step *s = step_new(l, PRETOK_PATTERN, SPLIT_ISOLATED);
    MB_TRY(step_bool(j, SECTION, "invert", false, &s->invert, err));
    MB_TRY(load_behavior(j, SPLIT_ISOLATED, true, &s->behavior, err));
    const json_t *regex = json_object_get(json_object_get(j, "pattern"), "Regex");
    bool whole = s->behavior == SPLIT_ISOLATED || (s->behavior == SPLIT_REMOVED && s->invert); /* every stretch stays */
    if (whole && json_is_string(regex)) s->scanner = scanner_find(json_string_value(regex), json_string_length(regex));
    return s->scanner ? MB_OK : step_pattern(j, SECTION, l->mem, &s->pattern, err);
}

static mb_status one_char(struct str s, const char *key, mb_error *err)
{
    size_t pos = 0;
    if (s.len) utf8_next(s.ptr, s.len, &pos);
    if (!s.len || pos != s.len) return step_bad(err, SECTION, "%s must be one character", key);
    return MB_OK;
}

static mb_status load_metaspace(struct pretok_loader *l, const json_t *j, mb_error *err)
{
    struct pretok_step *s = step_new(l, PRETOK_METASPACE, SPLIT_MERGED_NEXT);
    MB_TRY(step_str(j, SECTION, "replacement", l->mem, &s->replacement, err));
    if (!s->replacement.ptr) s->replacement = STR_LIT("\xE2\x96\x81");
    MB_TRY(one_char(s->replacement, "Metaspace: replacement", err));
    MB_TRY(step_scheme(j, SECTION, &s->scheme, err));
    s->pattern.literal = s->replacement;
    l->list->needs_origin |= s->scheme == PREPEND_FIRST;
    return step_bool(j, SECTION, "split", true, &s->split, err);
}

static mb_status load_class(struct pretok_loader *l, const json_t *j, const char *type, bool *known, mb_error *err)
{
    struct pretok_step *s;
    *known = true;
    if (strcmp(type, "WhitespaceSplit") == 0) {
        class_new(l, SPLIT_REMOVED, uni_is_space);
    } else if (strcmp(type, "Digits") == 0) {
        bool individual;
        MB_TRY(step_bool(j, SECTION, "individual_digits", false, &individual, err));
        class_new(l, individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, uni_is_numeric);
    } else if (strcmp(type, "Punctuation") == 0) {
        s = class_new(l, SPLIT_ISOLATED, uni_is_punct);
        return load_behavior(j, SPLIT_ISOLATED, false, &s->behavior, err);
    } else if (strcmp(type, "BertPreTokenizer") == 0) {
        class_new(l, SPLIT_REMOVED, uni_is_space);
        class_new(l, SPLIT_ISOLATED, uni_is_punct);
    } else {
        *known = false;
    }
    return MB_OK;
}

static mb_status load_one(void *ctx, const json_t *j, const char *type, mb_error *err)
{
    struct pretok_loader *l = ctx;
    bool known;
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(l, j, err);
    if (strcmp(type, "Split") == 0) return load_split(l, j, err);
    if (strcmp(type, "Metaspace") == 0) return load_metaspace(l, j, err);
    if (strcmp(type, "Whitespace") == 0) {
        step_new(l, PRETOK_WORDS, SPLIT_REMOVED);
        return MB_OK;
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        struct pretok_step *s = step_new(l, PRETOK_PATTERN, SPLIT_REMOVED);
        MB_TRY(step_str(j, SECTION, "delimiter", l->mem, &s->pattern.literal, err));
        return one_char(s->pattern.literal, "CharDelimiterSplit: delimiter", err);
    }
    if (strcmp(type, "FixedLength") == 0) {
        struct pretok_step *s = step_new(l, PRETOK_LENGTH, SPLIT_ISOLATED);
        MB_TRY(step_size(j, SECTION, "length", 5, &s->n_chars, err));
        return s->n_chars ? MB_OK : step_bad(err, SECTION, "FixedLength: length must be at least 1");
    }
    MB_TRY(load_class(l, j, type, &known, err));
    if (known) return MB_OK;
    return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: %s: the type %.40s is not supported", SECTION, type);
}

mb_status pretok_load(struct pretok_list *l, struct arena *mem, const json_t *j, mb_error *err)
{
    *l = (struct pretok_list){ 0 };
    if (!j || json_is_null(j)) return MB_OK;
    l->steps = arena_alloc_array(mem, TOKENIZER_MAX_STEPS * 3, sizeof *l->steps);
    if (!l->steps) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the pre-tokeniser");
    struct pretok_loader loader = { l, mem };
    return step_walk(j, SECTION, "pretokenizers", load_one, &loader, err);
}

void pretok_free(struct pretok_list *l)
{
    for (size_t i = 0; i < l->n; i++) regex_close(l->steps[i].pattern.regex);
    l->n = 0;
}

bool pretok_take_byte_map(struct pretok_list *l)
{
    if (!l->n || l->steps[l->n - 1].kind != PRETOK_BYTE_MAP) return false;
    for (size_t i = 0; i + 1 < l->n; i++)
        if (l->steps[i].kind == PRETOK_BYTE_MAP) return false;
    l->n--;
    return true;
}

/* --- cutting --- */

static bool piece_push(struct piece_list *l, size_t off, size_t len)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct piece *at = mb_realloc(l->at, cap * sizeof *at);
        if (!at) return false;
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = (struct piece){ (uint32_t)off, (uint32_t)len };
    return true;
}

/* Turns a run of stretches (match or not, in order, without gaps) of one piece into pieces. */
struct cutter {
    struct piece_list *out;
    enum split_behavior behavior;
    bool invert;
    bool prev_match;
    size_t n_first; /* pieces before this one */
    bool failed;
};

static void cut(struct cutter *c, size_t first, size_t end, bool is_match)
{
    struct piece *last = c->out->n > c->n_first ? &c->out->at[c->out->n - 1] : NULL;
    bool join = false;
    is_match ^= c->invert;
    switch (c->behavior) {
    case SPLIT_REMOVED:
        if (is_match) return;
        break;
    case SPLIT_ISOLATED: break;
    case SPLIT_CONTIGUOUS: join = is_match == c->prev_match; break;
    case SPLIT_MERGED_PREVIOUS: join = is_match && !c->prev_match; break;
    case SPLIT_MERGED_NEXT: join = c->prev_match && !is_match; break;
    }
    c->prev_match = is_match;
    if (join && last) last->len = (uint32_t)(end - last->off);
    else if (!piece_push(c->out, first, end - first)) c->failed = true;
}

static mb_status cut_pattern(const struct pretok_step *s, struct regex_scratch *rx, struct cutter *c,
                             const struct mtext *x, struct piece p, mb_error *err)
{
    struct match_iter it = { .p = &s->pattern, .text = x->s + p.off, .len = p.len };
    size_t at = 0, first, end;
    bool found;
    for (;;) {
        MB_TRY(match_next(&it, rx, &found, &first, &end, err));
        if (!found) break;
        if (first > at) cut(c, p.off + at, p.off + first, false);
        cut(c, p.off + first, p.off + end, true);
        at = end;
    }
    if (at < p.len) cut(c, p.off + at, p.off + p.len, false);
    return MB_OK;
}

static bool class_holds(const struct pretok_step *s, const char *text, size_t n, size_t *i)
{
    uint8_t c = (uint8_t)text[*i];
    if (c >= 0x80) return s->in_class(utf8_next(text, n, i));
    ++*i;
    return s->ascii_class[c / 64] >> (c % 64) & 1;
}

static void cut_class(const struct pretok_step *s, struct cutter *c, const struct mtext *x, struct piece p)
{
    size_t end = (size_t)p.off + p.len, at = p.off;
    for (size_t i = p.off; i < end;) {
        size_t first = i;
        if (!class_holds(s, x->s, end, &i)) continue;
        if (first > at) cut(c, at, first, false);
        cut(c, first, i, true);
        at = i;
    }
    if (at < end) cut(c, at, end, false);
}

/* \w+|[^\w\s]+ */
static void cut_words(struct cutter *c, const struct mtext *x, struct piece p)
{
    size_t end = (size_t)p.off + p.len, at = p.off;
    int kind_prev = -1;
    for (size_t i = p.off; i < end;) {
        size_t first = i;
        uint32_t cp = utf8_next(x->s, end, &i);
        int kind = uni_is_word(cp) ? 1 : uni_is_space(cp) ? 0 : 2;
        if (kind != kind_prev) {
            if (kind_prev > 0 && !piece_push(c->out, at, first - at)) c->failed = true;
            at = first;
            kind_prev = kind;
        }
    }
    if (kind_prev > 0 && !piece_push(c->out, at, end - at)) c->failed = true;
}

static void cut_length(const struct pretok_step *s, struct cutter *c, const struct mtext *x, struct piece p)
{
    size_t end = (size_t)p.off + p.len, at = p.off, n = 0;
    for (size_t i = p.off; i < end;) {
        utf8_next(x->s, end, &i);
        if (++n < s->n_chars && i < end) continue;
        if (!piece_push(c->out, at, i - at)) c->failed = true;
        at = i;
        n = 0;
    }
}

static mb_status cut_scanner(const struct scanner *r, const struct mtext *x, const struct piece_list *in,
                             struct piece_list *out, mb_error *err)
{
    out->n = 0;
    for (size_t i = 0; i < in->n; i++) {
        struct piece p = in->at[i];
        for (size_t at = 0, end; at < p.len; at = end) {
            end = scanner_next(r, x->s + p.off, p.len, at);
            if (!piece_push(out, p.off + at, end - at))
                return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the pieces of a text");
        }
    }
    return MB_OK;
}

static mb_status cut_all(const struct pretok_step *s, struct pretok_scratch *w, const struct mtext *x,
                         const struct piece_list *in, struct piece_list *out, mb_error *err)
{
    out->n = 0;
    struct cutter c = { .out = out, .behavior = s->behavior, .invert = s->invert };
    for (size_t i = 0; i < in->n; i++) {
        c.n_first = out->n;
        c.prev_match = false;
        if (s->kind == PRETOK_CLASS) cut_class(s, &c, x, in->at[i]);
        else if (s->kind == PRETOK_WORDS) cut_words(&c, x, in->at[i]);
        else if (s->kind == PRETOK_LENGTH) cut_length(s, &c, x, in->at[i]);
        else MB_TRY(cut_pattern(s, &w->regex, &c, x, in->at[i], err));
        if (c.failed) return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the pieces of a text");
    }
    size_t n = 0; /* empty pieces are dropped */
    for (size_t i = 0; i < out->n; i++)
        if (out->at[i].len) out->at[n++] = out->at[i];
    out->n = n;
    return MB_OK;
}

/* --- rewriting --- */

static void write_metaspace(const struct pretok_step *s, const struct mtext *x, struct piece p, struct mbuf *b)
{
    size_t end = (size_t)p.off + p.len, kept = p.off;
    struct str piece = { x->s + p.off, p.len };
    bool begins = x->s[p.off] == ' ' || str_starts(piece, s->replacement);
    size_t origin = mtext_first(x, p.off);
    if (!begins && (s->scheme == PREPEND_ALWAYS || (s->scheme == PREPEND_FIRST && origin == 0)))
        mbuf_put(b, s->replacement.ptr, s->replacement.len, origin, origin);
    for (size_t i = p.off; i < end; i++) {
        if (x->s[i] != ' ') continue;
        mbuf_copy(b, x, kept, i);
        mbuf_put(b, s->replacement.ptr, s->replacement.len, mtext_first(x, i), mtext_end(x, i));
        kept = i + 1;
    }
    mbuf_copy(b, x, kept, end);
}

static void write_byte_map(const struct mtext *x, struct piece p, struct mbuf *b)
{
    for (size_t i = p.off; i < (size_t)p.off + p.len; i++) {
        char utf8[4];
        size_t len = (size_t)utf8_encode(byte_to_char((uint8_t)x->s[i]), utf8);
        mbuf_put(b, utf8, len, mtext_first(x, i), mtext_end(x, i));
    }
}

static void write_prefix_space(const struct mtext *x, struct piece p, struct mbuf *b)
{
    size_t first = mtext_first(x, p.off);
    if (x->s[p.off] != ' ') mbuf_put(b, " ", 1, first, first);
    mbuf_copy(b, x, p.off, (size_t)p.off + p.len);
}

static mb_status rewrite_all(const struct pretok_step *s, const struct mtext *x, const struct piece_list *in,
                             struct piece_list *out, struct mbuf *b, mb_error *err)
{
    out->n = 0;
    for (size_t i = 0; i < in->n; i++) {
        size_t first = b->n;
        if (s->kind == PRETOK_METASPACE) write_metaspace(s, x, in->at[i], b);
        else if (s->kind == PRETOK_BYTE_MAP) write_byte_map(x, in->at[i], b);
        else write_prefix_space(x, in->at[i], b);
        if (!piece_push(out, first, b->n - first))
            return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the pieces of a text");
    }
    return mbuf_status(b, err);
}

mb_status pretok_run(const struct pretok_list *l, struct pretok_scratch *s, const struct mtext *src,
                     struct mtext *out_text, const struct piece_list **out, mb_error *err)
{
    int i_list = 0, i_text = 0;
    *out_text = *src;
    s->lists[0].n = 0;
    if (src->n && !piece_push(&s->lists[0], 0, src->n))
        return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the pieces of a text");
    for (size_t i = 0; i < l->n; i++) {
        const struct pretok_step *step = &l->steps[i];
        struct piece_list *in = &s->lists[i_list], *to = &s->lists[i_list ^ 1];
        bool rewrites = step->kind == PRETOK_METASPACE || step->kind == PRETOK_BYTE_MAP ||
                        step->kind == PRETOK_PREFIX_SPACE;
        if (rewrites) {
            struct mbuf *b = &s->texts[i_text];
            b->n = 0;
            MB_TRY(rewrite_all(step, out_text, in, to, b, err));
            *out_text = mbuf_view(b);
            i_text ^= 1;
            i_list ^= 1;
            if (step->kind != PRETOK_METASPACE || !step->split) continue;
            in = to;
            to = &s->lists[i_list ^ 1];
        }
        if (step->scanner) MB_TRY(cut_scanner(step->scanner, out_text, in, to, err));
        else MB_TRY(cut_all(step, s, out_text, in, to, err));
        i_list ^= 1;
    }
    *out = &s->lists[i_list];
    return MB_OK;
}

/* --- one by one --- */

bool pretok_stream_init(struct pretok_stream *w, const struct pretok_list *l, const struct mtext *x)
{
    const struct pretok_step *first = l->n ? &l->steps[0] : NULL, *last = l->n ? &l->steps[l->n - 1] : NULL;
    if (l->n < 1 || l->n > 2 || !last->scanner) return false;
    if (l->n == 2 && (first->kind != PRETOK_CLASS || (first->behavior != SPLIT_ISOLATED && first->behavior != SPLIT_CONTIGUOUS)))
        return false;
    *w = (struct pretok_stream){ .digits = l->n == 2 ? first : NULL, .scanner = last->scanner, .s = x->s, .n = x->n };
    return true;
}

/* End of the stretch that the class leaves whole. */
static size_t region_end(const struct pretok_stream *w)
{
    if (!w->digits) return w->n;
    const uint64_t *ascii = w->digits->ascii_class;
    size_t i = w->at;
    bool inside = class_holds(w->digits, w->s, w->n, &i);
    if (inside && w->digits->behavior == SPLIT_ISOLATED) return i;
    for (size_t next = i; i < w->n; i = next) {
        if (!inside)
            while (i < w->n && (uint8_t)w->s[i] < 0x80 && !(ascii[(uint8_t)w->s[i] / 64] >> ((uint8_t)w->s[i] % 64) & 1)) i++;
        next = i;
        if (i == w->n || class_holds(w->digits, w->s, w->n, &next) != inside) break;
    }
    return i;
}

bool pretok_stream_next(struct pretok_stream *w, struct piece *out)
{
    if (w->at >= w->n) return false;
    if (w->at >= w->region_end) w->region_end = region_end(w);
    size_t end = scanner_next(w->scanner, w->s, w->region_end, w->at);
    *out = (struct piece){ (uint32_t)w->at, (uint32_t)(end - w->at) };
    w->at = end;
    return true;
}

void pretok_scratch_free(struct pretok_scratch *s)
{
    regex_scratch_free(&s->regex);
    for (int i = 0; i < 2; i++) {
        mb_free(s->lists[i].at);
        mbuf_free(&s->texts[i]);
    }
    memset(s, 0, sizeof *s);
}
