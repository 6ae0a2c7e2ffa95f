/* fill.c: text of a call that tools and template leave no choice about is put in without being drawn (MLX_BUN_FILL=strict,
 * API-168, API-172 to API-175): the frame behind the opening sign, a tool's name once it can be no other, the frame around a
 * sole argument.
 *
 * What a call looks like is asked of the model's own template: each tool is rendered in calls with different arguments, and
 * the ids that all of them share, from the opening sign on, are certain; a token that could merge with what comes is in none
 * or in all of them. While a call is written, the tools whose certain ids begin with what was drawn are the ones that it may
 * be; as far as those agree, ids are put in. A text that is no such beginning is left alone.
 *
 * Only where the sign is a token of its own, the scanner takes it for a call (so no quotation, no fence), and nothing but
 * calls has been said: anything else may be an example. */
#include <string.h>

#include "gen/gen_int.h"

enum { FILL_MAX_TOOLS = 32, MAX_VARIANTS = 8 };
#define TRIAL_BYTES ((size_t)1 << 20)
#define CLOSED_BYTES ((size_t)1 << 16) /* of a call whose end is put in */

/* API-171. A budget of thought decides about draws, too. */
bool fill_wanted(const struct gen_stream *s)
{
    const struct gen_request *r = &s->req;
    if (!s->g->opt.fill.strict || diffusion_is(s->g) || r->score || r->sampling.seed.given || r->logprobs || r->tokens || r->n_top_logprobs > 0) return false;
    return r->constraint.kind == CONSTRAINT_NONE && !limit_wanted(s);
}

/* --- trials: what the template writes --- */

/* The sole argument of a tool: closed, one property, required (API-173). */
static const char *sole_key(const struct tool *t)
{
    const json_t *p = json_object_get(t->parameters, "properties"), *q = json_object_get(t->parameters, "required");
    const json_t *more = json_object_get(t->parameters, "additionalProperties");
    const char *key = json_string_value(json_array_get(q, 0));
    bool closed = json_is_false(more) && !json_object_get(t->parameters, "patternProperties");
    return closed && json_array_size(q) == 1 && json_object_size(p) == 1 && key && json_object_get(p, key) ? key : NULL;
}

static bool is_text(const struct tool *t, const char *key)
{
    const char *type = json_string_value(json_object_get(json_object_get(json_object_get(t->parameters, "properties"), key), "type"));
    return type && strcmp(type, "string") == 0;
}

static size_t n_variants(const char *key, bool text)
{
    return !key ? 2 : text ? 6 : 7;
}

/* Arguments that differ from their first byte on. NULL: no memory. */
static json_t *arguments(const char *key, bool text, size_t i)
{
    static const char *const texts[] = { "Ab", "9x", "", " y", "\n", "_" };
    static const char *const values[] = { "7", "-1", "true", "[1]", "{\"a\":1}", "\"A\"", "null" };
    json_t *v = NULL;
    if (!key) return i == 0 ? json_object() : json_pack("{s:s}", "zq", "Ab");
    if (text) v = json_string(texts[i]);
    else if (json_read(&v, values[i], strlen(values[i]), JSON_READ_ANY, NULL) != MB_OK) v = NULL;
    json_t *o = v ? json_object() : NULL;
    if (o && json_object_set(o, key, v) != 0) {
        json_decref(o);
        o = NULL;
    }
    json_decref(v);
    return o;
}

/* A history with n equal calls, from the first opening sign of its text on. args: taken. Whatever lacks memory marks the arena. */
static bool trial(struct gen_stream *s, struct arena *a, const char *name, json_t *args, int n, struct str *out)
{
    json_t *calls = json_array();
    mb_error why;
    bool ok = calls && args;
    for (int i = 0; i < n && ok; i++)
        ok = json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:O}}", "id", "call00000", "type", "function", "function",
                                                    "name", name, "arguments", args)) == 0;
    json_t *messages = ok ? json_pack("[{s:s, s:s}, {s:s, s:s, s:O}]", "role", "user", "content", "a", "role", "assistant",
                                      "content", "", "tool_calls", calls) : NULL;
    mb_status st = messages ? render_trial(s->g->text, messages, a, out, &why) : MB_NO_MEMORY;
    if (st == MB_NO_MEMORY) a->failed = true;
    json_decref(args);
    json_decref(calls);
    json_decref(messages);
    if (st != MB_OK) return false;
    const char *at = strstr(out->ptr, s->fill.sign);
    *out = (struct str){ at, at ? out->len - (size_t)(at - out->ptr) : 0 };
    return at != NULL;
}

static bool encode(const struct tokenizer *t, struct arena *a, struct str text, struct token_list *out)
{
    struct encode_opts opts = { .want_ends = true };
    mb_error why;
    mb_status st = tokenizer_encode(t, a, text.ptr, text.len, &opts, out, &why);
    if (st == MB_NO_MEMORY) a->failed = true;
    return st == MB_OK;
}

static size_t common(struct str a, struct str b)
{
    size_t n = 0;
    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n]) n++;
    return n;
}

/* The text around a sole string: before its first byte, and behind it as long as it is the same tokens where the answer ends
 * and where another call follows. */
static void find_frame(struct gen_stream *s, struct arena *a, const struct tool *t, const char *key, struct str one, struct str other,
                       struct fill_tool *out)
{
    size_t at = common(one, other), behind = at + 2 /* "Ab" */, sign = strlen(s->fill.sign), n = 0;
    struct token_list ids[2] = { { 0 }, { 0 } };
    struct str two;
    if (at <= sign || one.ptr[at - 1] != '"' || !trial(s, a, t->name, arguments(key, true, 0), 2, &two)) return;
    if (!encode(s->g->text->tok, a, one, &ids[0]) || !encode(s->g->text->tok, a, two, &ids[1])) return;
    while (n < ids[0].n && n < ids[1].n && ids[0].ids[n] == ids[1].ids[n]) n++;
    size_t end = n ? ids[0].ends[n - 1] : 0;
    while (end > behind && (one.ptr[end - 1] == '\n' || one.ptr[end - 1] == ' ')) end--;
    if (end < behind + 2 || end > common(one, two) || one.ptr[behind] != '"') return;
    out->open = (struct str){ arena_strndup(&s->arena, one.ptr + sign, at - sign), at - sign };
    out->close = (struct str){ arena_strndup(&s->arena, one.ptr + behind, end - behind), end - behind };
    if (!out->close.ptr) out->open.ptr = NULL;
}

static bool tool_trials(struct gen_stream *s, struct arena *a, const struct tool *t, struct fill_tool *out)
{
    const char *key = sole_key(t);
    bool text = key && is_text(t, key);
    struct str said[MAX_VARIANTS];
    struct token_list first = { 0 }, list = { 0 };
    size_t same = 0;
    for (size_t n = 0; n < n_variants(key, text); n++) {
        if (!trial(s, a, t->name, arguments(key, text, n), 1, &said[n]) || !encode(s->g->text->tok, a, said[n], n ? &list : &first)) return false;
        size_t k = 0;
        while (n && k < same && k < list.n && list.ids[k] == first.ids[k]) k++;
        same = n ? k : first.n;
    }
    if (same == 0 || first.ids[0] != s->fill.sign_id) return false;
    int32_t *ids = arena_alloc_array(&s->arena, same, sizeof *ids);
    if (!ids) return false;
    memcpy(ids, first.ids, same * sizeof *ids);
    out->ids = ids;
    out->n = (int32_t)same;
    if (text) find_frame(s, a, t, key, said[0], said[1], out);
    return true;
}

/* The sign of the family that the template writes and that is a token. */
static bool find_sign(struct gen_stream *s, struct arena *a)
{
    const struct gen_renderer *t = s->g->text;
    for (size_t i = 0; (s->fill.sign = tool_family_sign(t->family, i)) != NULL; i++) {
        struct str out;
        s->fill.sign_id = tokenizer_id(t->tok, s->fill.sign, strlen(s->fill.sign));
        bool is_token = s->fill.sign_id >= 0 && tokenizer_is_added(t->tok, s->fill.sign_id);
        if (is_token && trial(s, a, "f", json_object(), 1, &out)) return true;
    }
    return false;
}

mb_status fill_prepare(struct gen_stream *s, mb_error *err)
{
    const struct tool_set *set = &s->tools;
    struct arena a;
    if (!fill_wanted(s) || set->n == 0 || set->n > FILL_MAX_TOOLS || !render_knows_calls(s->g->text)) return MB_OK;
    if (tool_family_has_frame(s->g->text->family)) return MB_OK; /* a header comes first; where a call begins is not one sign */
    s->fill.tools = arena_alloc_array(&s->arena, set->n, sizeof *s->fill.tools);
    if (!s->fill.tools) return mb_fail(err, MB_NO_MEMORY, "no memory for the forms of calls");
    arena_init(&a, TRIAL_BYTES * (set->n + 1));
    bool ok = find_sign(s, &a);
    for (size_t i = 0; i < set->n && ok; i++) ok = tool_trials(s, &a, &set->tools[i], &s->fill.tools[i]);
    bool lost = a.failed || s->arena.failed;
    arena_free(&a);
    if (ok) s->fill.n = set->n; /* a tool whose calls are not known may be meant by any beginning */
    else s->fill.sign = NULL;
    return lost ? mb_fail(err, MB_NO_MEMORY, "no memory for the forms of calls") : MB_OK;
}

/* --- while a call is written --- */

void fill_follow(struct gen_choice *c, int32_t id)
{
    const struct gen_stream *s = c->s;
    const char *sign;
    struct str since;
    if (!s->fill.sign) return;
    bool in_call = !c->split.inside && tool_scan_block(&c->tools, &sign, &since);
    if (!in_call) c->ahead.call_at = -1;
    else if (id == s->fill.sign_id && since.len == 0 && !c->tools.said) c->ahead.call_at = s->job.n_ids + c->n_drawn - 1;
}

/* How far all tools that the call may be of go on alike; *at_value: one of them has come to where the model chooses. */
static int32_t agreed(const struct fill_plan *p, const int32_t *call, int32_t n_call, const int32_t **ids)
{
    const struct fill_tool *first = NULL;
    int32_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct fill_tool *t = &p->tools[i];
        int32_t m = t->n < n_call ? t->n : n_call, k = 0;
        if (memcmp(t->ids, call, (size_t)m * sizeof *call) != 0) continue;
        if (t->n <= n_call) return 0;
        if (!first) first = t, n = t->n - n_call;
        while (k < n && n_call + k < t->n && t->ids[n_call + k] == first->ids[n_call + k]) k++;
        n = k;
    }
    if (first) *ids = first->ids + n_call;
    return n;
}

/* Index of the quote that ends the string which begins at `from`; the length of the text when none does. */
static size_t string_end(struct str text, size_t from)
{
    for (size_t i = from; i < text.len; i++) {
        if (text.ptr[i] == '\\') i++;
        else if (text.ptr[i] == '"') return i;
    }
    return text.len;
}

static bool begins(struct str text, size_t from, struct str with)
{
    size_t n = text.len - from < with.len ? text.len - from : with.len;
    return memcmp(text.ptr + from, with.ptr, n) == 0;
}

/* The rest of a call whose only value has ended: *out in `a`; 0: not so. */
static int32_t closing(struct gen_choice *c, struct arena *a, const int32_t *call, int32_t n_call, const int32_t **ids)
{
    const struct fill_plan *p = &c->s->fill;
    struct token_list list = { 0 };
    const char *sign;
    struct str since;
    if (!tool_scan_block(&c->tools, &sign, &since) || since.len > CLOSED_BYTES) return 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct fill_tool *t = &p->tools[i];
        if (!t->open.ptr || since.len <= t->open.len || !begins(since, 0, t->open)) continue;
        size_t end = string_end(since, t->open.len);
        if (end >= since.len || since.len - end >= t->close.len || !begins(since, end, t->close)) return 0;
        char *text = arena_printf(a, "%s%.*s%s", sign, (int)end, since.ptr, t->close.ptr);
        if (!text || !encode(c->s->g->text->tok, a, (struct str){ text, strlen(text) }, &list)) return 0;
        if ((int32_t)list.n <= n_call || memcmp(list.ids, call, (size_t)n_call * sizeof *call) != 0) return 0;
        *ids = list.ids + n_call;
        return (int32_t)list.n - n_call;
    }
    return 0;
}

bool fill_put(struct gen_choice *c, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out)
{
    int32_t at = c->ahead.call_at, n_call = n_ids - at;
    const int32_t *next = NULL;
    struct arena a;
    if (at < 0 || n_call <= 0) return false;
    arena_init(&a, 0);
    int32_t n = agreed(&c->s->fill, ids + at, n_call, &next);
    if (n == 0) n = closing(c, &a, ids + at, n_call, &next);
    if (n > c->s->g->opt.fill.max_span) n = (int32_t)c->s->g->opt.fill.max_span;
    if (n > n_max) n = n_max;
    out->n = n;
    out->sure = n > 0;
    if (a.failed) c->failed = true; /* what follows would be another answer */
    if (n > 0) memcpy(out->ids, next, (size_t)n * sizeof *out->ids);
    arena_free(&a);
    return n > 0;
}
