/* fill.c: text of a call that tools and template leave no choice about is put in without being drawn (MLX_BUN_FILL=strict,
 * API-168, API-172 to API-175): the frame that a call begins with, a tool's name once it can be no other, the frame around a
 * sole argument, the end of the call. What a call looks like is known from the template (fill_forms.c).
 *
 * While a call is written, the forms whose certain ids begin with what was drawn are the ones that it may be; as far as those
 * agree, ids are put in. A text that is no such beginning is left alone. Only where the scanner takes it for a call (so no
 * quotation, no fence), and nothing but calls has been said: anything else may be an example. */
#include <string.h>

#include "gen/gen_int.h"

#define CLOSED_BYTES ((size_t)1 << 16) /* of a call whose end is put in */

/* Values of choice_ahead.call_at that are no place. */
enum { CALL_NONE = -1, CALL_NEW = -2 /* its first id is to be found */, CALL_LEFT = -3 /* one that is left alone */,
       CALL_HEADER = -4 /* a header, before its role has been named */ };

/* API-171. A budget of thought decides about draws, too. */
bool fill_wanted(const struct gen_stream *s)
{
    const struct gen_request *r = &s->req;
    if (!s->g->opt.fill.strict || diffusion_is(s->g) || r->score || r->sampling.seed.given || r->logprobs || r->tokens || r->n_top_logprobs > 0) return false;
    return r->constraint.kind == CONSTRAINT_NONE && !limit_wanted(s);
}

void fill_begin(struct gen_choice *c)
{
    const struct gen_stream *s = c->s;
    bool header = s->fill.sign && s->fill.where == FILL_HEADER && s->fill.at_start && c->split.part == PART_HEADER;
    c->ahead.call_at = header ? s->job.n_ids : CALL_NONE;
}

/* --- which call is written --- */

/* The call that is being read: what has come since its sign, or since its beginning. */
static bool call_block(const struct gen_choice *c, struct str *since)
{
    const struct fill_plan *p = &c->s->fill;
    const char *sign;
    if (c->split.inside) return false;
    if (p->where == FILL_BARE) return tool_scan_bare(&c->tools, since);
    return tool_scan_block(&c->tools, &sign, since) && (p->where == FILL_HEADER || strcmp(sign, p->sign) == 0);
}

/* "<|start|>assistant" and what follows, up to the end of the message; a header that addresses nobody begins no call. */
static void follow_header(struct gen_choice *c)
{
    static const char role[] = "assistant";
    const struct reasoning *r = &c->split;
    struct choice_ahead *h = &c->ahead;
    if (r->part == PART_HEADER && (h->call_at == CALL_NONE || h->in_body)) {
        h->call_at = CALL_HEADER;
        h->in_body = false;
    }
    if (r->part == PART_CALL) h->in_body = true;
    else if (r->part != PART_HEADER) h->call_at = CALL_NONE;
    if (h->call_at == CALL_HEADER && r->header.len == sizeof role - 1 && memcmp(r->header.data, role, sizeof role - 1) == 0)
        h->call_at = c->tools.said ? CALL_LEFT : c->s->job.n_ids + c->n_drawn;
}

void fill_follow(struct gen_choice *c)
{
    struct choice_ahead *h = &c->ahead;
    struct str since;
    if (c->s->fill.where == FILL_HEADER) {
        follow_header(c);
        return;
    }
    bool in = call_block(c, &since);
    if (!in) h->call_at = CALL_NONE;
    else if (h->call_at == CALL_NONE || h->n_calls != c->tools.n_calls) h->call_at = c->tools.said ? CALL_LEFT : CALL_NEW;
    h->n_calls = c->tools.n_calls;
}

static bool encode(struct gen_choice *c, struct arena *a, const char *sign, struct str text, struct str behind, struct token_list *out)
{
    struct encode_opts opts = { 0 };
    mb_error why;
    char *all = arena_printf(a, "%s%.*s%.*s", sign, (int)text.len, text.ptr, (int)behind.len, behind.ptr);
    if (!all) return false;
    mb_status st = tokenizer_encode(c->s->g->text->tok, a, all, strlen(all), &opts, out, &why);
    if (st == MB_NO_MEMORY) a->failed = true;
    return st == MB_OK;
}

/* The ids of a call that has just begun are the last ones, or it is written in another way. */
static int32_t find_call(struct gen_choice *c, struct arena *a, const int32_t *ids, int32_t n_ids)
{
    struct str since;
    struct token_list list = { 0 };
    if (!call_block(c, &since) || since.len > CLOSED_BYTES) return CALL_LEFT;
    if (!encode(c, a, c->s->fill.sign, since, (struct str){ "", 0 }, &list)) return CALL_LEFT;
    int32_t n = (int32_t)list.n, at = n_ids - n;
    return n > 0 && at >= c->s->job.n_ids && memcmp(ids + at, list.ids, list.n * sizeof *ids) == 0 ? at : CALL_LEFT;
}

/* --- what comes next --- */

/* How far all forms that the call may be of go on alike; 0 where one of them has come to what the model chooses. */
static int32_t agreed(const struct fill_plan *p, const int32_t *call, int32_t n_call, const int32_t **ids)
{
    const struct fill_form *first = NULL;
    int32_t n = 0;
    bool is_call = false;
    for (size_t i = 0; i < p->n_forms; i++) {
        const struct fill_form *f = &p->forms[i];
        int32_t m = f->n < n_call ? f->n : n_call, k = 0;
        if (memcmp(f->ids, call, (size_t)m * sizeof *call) != 0) continue;
        if (f->n <= n_call || n_call <= f->n_free) return 0;
        if (!first) first = f, n = f->n - n_call;
        while (k < n && n_call + k < f->n && f->ids[n_call + k] == first->ids[n_call + k]) k++;
        n = k;
        is_call = is_call || f->call;
    }
    if (!is_call) return 0;
    *ids = first->ids + n_call;
    return n;
}

static bool begins(struct str text, size_t from, struct str with)
{
    size_t n = text.len - from < with.len ? text.len - from : with.len;
    return memcmp(text.ptr + from, with.ptr, n) == 0;
}

/* Where the value ends that `e` has opened; false: not yet, or it cannot be told. */
static bool value_end(const struct fill_end *e, struct str since, size_t *end)
{
    static const char cdata[] = "<![CDATA[";
    *end = e->open.len;
    if (e->json) return tool_value_end(since, end);
    struct str value = { since.ptr + *end, since.len - *end };
    if (value.len >= sizeof cdata - 1 && memmem(value.ptr, value.len, cdata, sizeof cdata - 1)) return false;
    const char *at = memmem(value.ptr, value.len, e->close.ptr, e->n_sure);
    if (at) *end = (size_t)(at - since.ptr);
    return at != NULL;
}

/* Ids of the call that are text of `since` behind e->n_head: all, or those behind the header. */
static int32_t body_at(const struct gen_choice *c, const int32_t *call, int32_t n_call)
{
    static const char message[] = "<|message|>";
    int32_t i = 0, id = tokenizer_id(c->s->g->text->tok, message, sizeof message - 1);
    if (c->s->fill.where != FILL_HEADER) return 0;
    while (i < n_call && call[i] != id) i++;
    return i + 1;
}

/* The rest of a call whose only value has ended: *ids in `a`; 0: not so. */
static int32_t closing(struct gen_choice *c, struct arena *a, const int32_t *call, int32_t n_call, const int32_t **ids)
{
    const struct fill_plan *p = &c->s->fill;
    struct token_list list = { 0 };
    struct str since;
    if (!call_block(c, &since) || since.len > CLOSED_BYTES) return 0;
    for (size_t i = 0; i < p->n_ends; i++) {
        const struct fill_end *e = &p->ends[i];
        size_t end;
        if (since.len <= e->open.len || !begins(since, 0, e->open)) continue;
        if (!value_end(e, since, &end) || end > since.len || since.len - end >= e->close.len || !begins(since, end, e->close)) return 0;
        struct str body = { since.ptr + e->n_head, end - e->n_head };
        int32_t from = body_at(c, call, n_call), n = n_call - from;
        if (n <= 0 || !encode(c, a, p->sign, body, e->close, &list)) return 0;
        if ((int32_t)list.n <= n || memcmp(list.ids, call + from, (size_t)n * sizeof *call) != 0) return 0;
        *ids = list.ids + n;
        return (int32_t)list.n - n;
    }
    return 0;
}

bool fill_put(struct gen_choice *c, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out)
{
    struct choice_ahead *h = &c->ahead;
    const int32_t *next = NULL;
    struct arena a;
    if (h->call_at < 0 && h->call_at != CALL_NEW) return false;
    arena_init(&a, 0);
    if (h->call_at == CALL_NEW) h->call_at = find_call(c, &a, ids, n_ids);
    int32_t at = h->call_at, n_call = n_ids - at, n = 0;
    if (at >= 0 && n_call > 0) {
        n = agreed(&c->s->fill, ids + at, n_call, &next);
        if (n == 0) n = closing(c, &a, ids + at, n_call, &next);
    }
    if (n > c->s->g->opt.fill.max_span) n = (int32_t)c->s->g->opt.fill.max_span;
    if (n > n_max) n = n_max;
    out->n = n;
    out->sure = n > 0;
    if (a.failed) c->failed = true; /* what follows would be another answer */
    if (n > 0) memcpy(out->ids, next, (size_t)n * sizeof *out->ids);
    arena_free(&a);
    return n > 0;
}
