/* jump.c: jump-forward (API-164, API-165): what the grammar leaves no choice about is guessed, so that one step computes
 * many tokens. Bytes that must come are cut into tokens as the tokenizer would behind the text so far; where one token alone
 * is allowed it is that one.
 *
 * Which tokens spell forced bytes is still the model's choice, so they are guesses: each place is drawn under the mask that
 * it would have had, and what is drawn counts (engine/method.c). So ids and log-probabilities are those of sampling token by
 * token, for every tokenizer; one that cuts a text otherwise only makes more guesses fail. For that the masks must be right:
 * a guess ends where more than the grammar's state would decide about the next mask. */
#include <string.h>

#include "base/utf8.h"
#include "gen/gen_int.h"

enum { JUMP_BYTES = 256, JUMP_TAIL = 4 };

/* Ids that a forced text is thought to be drawn as. */
struct draft { int32_t ids[ENGINE_AHEAD_MAX]; int32_t n, next; };

/* Does a token end where the tail ends? Then what follows is the draft. */
static void take_behind(struct draft *d, const struct token_list *list, size_t cut)
{
    size_t i = 0;
    while (i < list->n && list->ends[i] <= cut && cut > 0) i++;
    if (cut > 0 && (i == 0 || list->ends[i - 1] != cut)) return;
    for (; i < list->n && d->n < ENGINE_AHEAD_MAX; i++) d->ids[d->n++] = list->ids[i];
}

static void cut_text(const struct tokenizer *t, struct draft *d, const int32_t *tail, int32_t n_tail, struct str forced)
{
    struct encode_opts opts = { .want_ends = true };
    struct token_list list = { 0 };
    struct arena a;
    struct buf b;
    mb_error no;
    buf_init(&b, 0);
    arena_init(&a, 1 << 20);
    for (int32_t i = 0; i < n_tail; i++) tokenizer_token_bytes(t, tail[i], false, &b);
    size_t cut = b.len;
    buf_append(&b, forced.ptr, forced.len);
    bool ok = !b.failed && utf8_valid(b.data, b.len) && tokenizer_encode(t, &a, b.data, b.len, &opts, &list, &no) == MB_OK;
    if (ok && list.ends) take_behind(d, &list, cut);
    arena_free(&a);
    buf_free(&b);
}

/* Cut what must come; behind the longest tail that ends where a token does. */
static void draft_make(const struct tokenizer *t, struct draft *d, struct grammar_state *at, const int32_t *tail, int32_t n_tail)
{
    char bytes[JUMP_BYTES];
    size_t n = grammar_state_forced(at, bytes, sizeof bytes);
    d->n = d->next = 0;
    n = utf8_valid_prefix(bytes, n, NULL);
    for (; n > 0 && n_tail >= 0 && d->n == 0; n_tail--, tail++) cut_text(t, d, tail, n_tail, (struct str){ bytes, n });
}

/* The only token that is allowed, -1: there are more, or none. */
static int32_t only_token(const uint32_t *mask, size_t n_words)
{
    int32_t id = -1;
    for (size_t i = 0; i < n_words; i++) {
        if (!mask[i]) continue;
        if (id >= 0 || mask[i] & (mask[i] - 1)) return -1;
        id = (int32_t)(i * 32) + __builtin_ctz(mask[i]);
    }
    return id;
}

static bool is_in(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* Behind such a token the next mask is not the grammar's alone. */
static bool is_border(const struct gen_choice *c, bool whole, int32_t id)
{
    const struct gen_engine *g = c->s->g;
    if (is_in(g->end_ids, g->n_end_ids, id) || is_in(g->text->sign_ids, g->text->n_sign_ids, id)) return true;
    if (c->limit.fresh && is_in(g->break_ids, g->n_break_ids, id)) return true;
    return !whole && tokenizer_is_added(g->text->tok, id); /* a frame or a call may end there */
}

/* The scratch state stands where the ruling one does, which is one of grammar g. */
static bool scratch_set(struct choice_ahead *h, const struct grammar *g, const struct grammar_state *from)
{
    mb_error no;
    if (h->scratch_of == g && h->scratch) {
        grammar_state_assign(h->scratch, from);
        return true;
    }
    grammar_state_close(h->scratch);
    h->scratch = NULL;
    h->scratch_of = g;
    return grammar_state_clone(&h->scratch, from, &no) == MB_OK;
}

static bool mask_get(struct gen_choice *c, uint32_t *mask)
{
    mb_error no;
    return grammar_state_mask(c->ahead.scratch, mask, engine_info(c->s->g->engine)->n_vocab, &no) == MB_OK;
}

/* The next id of the draft, or the only one that is allowed; -1: there is a choice. */
static int32_t next_id(struct gen_choice *c, struct draft *d, const int32_t *ids, int32_t n_ids, const struct job_ahead *out)
{
    struct choice_ahead *h = &c->ahead;
    int32_t tail[JUMP_TAIL], n = 0;
    if (d->next == d->n) {
        for (int32_t i = n_ids + out->n - JUMP_TAIL; i < n_ids + out->n; i++)
            if (i >= 0) tail[n++] = i < n_ids ? ids[i] : out->ids[i - n_ids];
        draft_make(c->s->g->text->tok, d, h->scratch, tail, n);
    }
    if (d->next < d->n) return d->ids[d->next++];
    if (out->n == 0 && !mask_get(c, h->masks)) return -1; /* the place's own; the first guess's takes its room */
    return only_token(out->n ? out->masks[out->n - 1] : h->masks, limit_mask_words(c->s));
}

void jump_guess(struct gen_choice *c, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out)
{
    struct choice_ahead *h = &c->ahead;
    struct grammar_state *rules = limit_ruling(c);
    struct draft d = { .n = 0 };
    const struct constraint_plan *p = &c->s->plan;
    bool whole = rules == c->limit.state;
    mb_error no;
    if (!rules || c->limit.err.code || n_max <= 0) return;
    if (c->split.inside && c->s->req.thinking_budget > 0) return; /* the budget may close the thought at any place */
    if (!scratch_set(h, whole ? p->grammar : c->limit.frame ? p->frame : p->call, rules)) return;
    while (out->n < n_max) {
        int32_t id = next_id(c, &d, ids, n_ids, out);
        if (id < 0 || is_border(c, whole, id) || grammar_state_accept(h->scratch, id, &no) != MB_OK) return;
        if (!whole && grammar_state_is_complete(h->scratch)) return; /* the call or the frame ends */
        uint32_t *behind = h->masks + (size_t)out->n * limit_mask_words(c->s);
        if (!mask_get(c, behind)) return;
        out->masks[out->n] = behind;
        out->ids[out->n++] = id;
    }
}
