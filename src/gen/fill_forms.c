/* fill_forms.c: what calls of a request's tools look like, for fill.c: ids that are certain, and what stands around a sole value.
 *
 * The model's own template is asked: each tool is rendered in calls with different ids and arguments, and what all of them share,
 * from the beginning of a call on, is certain; a token that could merge with what comes is in none or in all of them.
 * Where a call begins is one of three things (enum fill_where): an opening sign; the beginning of an answer, for families that
 * write a bare object; the header of a message, for families whose answers have headers, which may be written in several ways. */
#include <string.h>

#include "gen/gen_int.h"

enum { MAX_TOOLS = 32, MAX_VARIANTS = 8, MAX_HEADS = 8 };
#define TRIAL_BYTES ((size_t)1 << 20)

/* What is worked on: the request, scratch; for FILL_BARE the text before an answer and where in a call the name stands. */
struct trials { struct gen_stream *s; struct arena *a; struct str before; size_t name_at; };

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

#define FIRST_TEXT "Ab"
#define FIRST_VALUE "7"

/* Arguments that differ from their first byte on. NULL: no memory. */
static json_t *arguments(const char *key, bool text, size_t i)
{
    static const char *const texts[] = { FIRST_TEXT, "9x", "", " y", "\n", "_" };
    static const char *const values[] = { FIRST_VALUE, "-1", "true", "[1]", "{\"a\":1}", "\"A\"", "null" };
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

/* A history with n calls of equal arguments. Call ids are a model's own, so they differ from their first letter on. args: taken. */
static json_t *history(const char *name, json_t *args, int n, size_t i_variant)
{
    json_t *calls = json_array();
    bool ok = calls && args;
    for (int i = 0; i < n && ok; i++) {
        char id[] = "x00000000";
        id[0] = "aB3xQ9zK7mRt"[(i_variant + (size_t)i) % 12];
        ok = json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:O}}", "id", id, "type", "function", "function",
                                                    "name", name, "arguments", args)) == 0;
    }
    json_t *messages = ok ? json_pack("[{s:s, s:s}, {s:s, s:s, s:O}]", "role", "user", "content", "a", "role", "assistant",
                                      "content", "", "tool_calls", calls) : NULL;
    json_decref(args);
    json_decref(calls);
    return messages;
}

/* messages: taken. Whatever lacks memory marks the arena. */
static bool render(struct trials *t, json_t *messages, bool ask, struct str *out)
{
    mb_error why;
    mb_status st = messages ? render_trial(t->s->g->text, messages, ask, t->a, out, &why) : MB_NO_MEMORY;
    if (st == MB_NO_MEMORY) t->a->failed = true;
    json_decref(messages);
    return st == MB_OK;
}

static bool cut_before(struct str *text, const char *at)
{
    if (at) *text = (struct str){ at, text->len - (size_t)(at - text->ptr) };
    return at != NULL;
}

/* A call in the text of a history: from its sign on, the answer's beginning on, or (with headers) the arguments. */
static bool find_call(const struct trials *t, struct str *text)
{
    static const char message[] = "<|message|>";
    switch (t->s->fill.where) {
    case FILL_SIGN: return cut_before(text, strstr(text->ptr, t->s->fill.sign));
    case FILL_BARE:
        if (text->len <= t->before.len || memcmp(text->ptr, t->before.ptr, t->before.len) != 0) return false;
        return cut_before(text, text->ptr + t->before.len) && (text->ptr[0] == '{' || text->ptr[0] == '[');
    default:
        return cut_before(text, strstr(text->ptr, "to=functions.")) && cut_before(text, strstr(text->ptr, message)) &&
               cut_before(text, text->ptr + sizeof message - 1);
    }
}

static bool trial(struct trials *t, const char *name, json_t *args, int n, size_t i_variant, struct str *out)
{
    return render(t, history(name, args, n, i_variant), false, out) && find_call(t, out);
}

static bool encode(struct trials *t, struct str text, struct token_list *out)
{
    struct encode_opts opts = { .want_ends = true };
    mb_error why;
    mb_status st = tokenizer_encode(t->s->g->text->tok, t->a, text.ptr, text.len, &opts, out, &why);
    if (st == MB_NO_MEMORY) t->a->failed = true;
    return st == MB_OK;
}

/* --- what stands around a sole value --- */

static size_t common(struct str a, struct str b)
{
    size_t n = 0;
    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n]) n++;
    return n;
}

/* How far ids are the text of this call and nothing else: the same where another call follows, and no end of an answer. */
static size_t call_end(struct trials *t, const char *name, json_t *args, struct str one, size_t behind)
{
    const struct gen_engine *g = t->s->g;
    struct token_list ids[2] = { { 0 }, { 0 } };
    struct str two;
    bool alone = !trial(t, name, args, 2, 1, &two); /* some templates take one call at a time */
    size_t n = 0, end = 0;
    bool ended = false;
    if (!encode(t, one, &ids[0]) || (!alone && !encode(t, two, &ids[1]))) return 0;
    for (; n < ids[0].n && !ended && (alone || (n < ids[1].n && ids[0].ids[n] == ids[1].ids[n])); n++) {
        for (int32_t k = 0; k < g->n_end_ids; k++) ended = ended || g->end_ids[k] == ids[0].ids[n];
        if (!ended) end = ids[0].ends[n];
    }
    if (alone && !ended) return 0; /* where it ends is not said */
    while (end > behind && (one.ptr[end - 1] == '\n' || one.ptr[end - 1] == ' ')) end--;
    return end;
}

static size_t behind_tag(struct str s, size_t from)
{
    const char *p = from < s.len ? memchr(s.ptr + from, '>', s.len - from) : NULL;
    return p ? (size_t)(p - s.ptr) + 1 : 0;
}

/* How much of `close` must be there before the value is known to have ended. A tag in a text may be that text's own, unless it
 * is a token of its own kind or the end of the call follows it. 0: never known. */
static size_t sure_end(const struct trials *t, struct str close, bool text)
{
    const struct tokenizer *tok = t->s->g->text->tok;
    size_t one = behind_tag(close, 0);
    const char *tag = one ? memchr(close.ptr, '<', one) : NULL;
    if (!tag) return 0;
    size_t from = (size_t)(tag - close.ptr);
    int32_t id = tokenizer_id(tok, tag, one - from);
    if (!text || (id >= 0 && tokenizer_is_added(tok, id))) return one;
    return behind_tag(close, one);
}

/* said: two calls that differ in the value alone. */
static void find_frame(struct trials *t, const struct tool *tool, const char *key, bool text, const struct str said[2], struct fill_end *out)
{
    struct str one = said[0];
    size_t at = common(one, said[1]), behind = at + (text ? strlen(FIRST_TEXT) : strlen(FIRST_VALUE));
    size_t end = call_end(t, tool->name, arguments(key, text, 0), one, behind);
    size_t from = t->s->fill.where == FILL_SIGN ? strlen(t->s->fill.sign) : 0;
    bool quoted = text && at > from && one.ptr[at - 1] == '"' && behind < end && one.ptr[behind] == '"';
    if (at < from || end <= behind) return;
    out->json = quoted || (!text && strchr("},)", one.ptr[behind]));
    if (quoted) at--, behind++; /* the value with its quotes */
    if (out->json) { /* what comes behind a comma is no end */
        const char *comma = memchr(one.ptr + behind, ',', end - behind);
        if (comma) end = (size_t)(comma - one.ptr);
    }
    struct str close = { one.ptr + behind, end - behind };
    out->n_sure = out->json ? 0 : sure_end(t, close, text);
    if (close.len <= out->n_sure || (!out->json && out->n_sure == 0)) return;
    struct buf open;
    buf_init(&open, 0);
    if (t->s->fill.where == FILL_HEADER) {
        tool_frame_told(&open, tool->name);
        out->n_head = open.len;
    }
    buf_append(&open, one.ptr + from, at - from);
    char *o = open.failed ? NULL : arena_strndup(&t->s->arena, open.data ? open.data : "", open.len);
    char *c = arena_strndup(&t->s->arena, close.ptr, close.len);
    if (!o || !c) t->s->arena.failed = true;
    else out->open = (struct str){ o, open.len }, out->close = (struct str){ c, close.len };
    buf_free(&open);
}

/* --- ids that are certain --- */

/* head: what is written before `ids`, which goes with it. n_free: see fill_form. */
static bool add_form(struct trials *t, struct token_list head, const int32_t *ids, size_t n, size_t n_free, bool call)
{
    struct fill_plan *p = &t->s->fill;
    int32_t *all = arena_alloc_array(&t->s->arena, head.n + n + 1, sizeof *all);
    if (!all) return false;
    if (head.n) memcpy(all, head.ids, head.n * sizeof *all);
    if (n) memcpy(all + head.n, ids, n * sizeof *all);
    p->forms[p->n_forms++] = (struct fill_form){ all, (int32_t)(head.n + n), (int32_t)n_free, call };
    return true;
}

/* The same call behind each way to write its header. */
static bool add_headed(struct trials *t, const char *name, const int32_t *ids, size_t n)
{
    struct buf b;
    bool ok = true;
    buf_init(&b, 0);
    for (size_t i = 0; i < MAX_HEADS && ok && tool_frame_head(&b, i, name); i++) {
        struct token_list head = { 0 };
        if (b.failed) t->a->failed = true;
        ok = !b.failed && encode(t, (struct str){ b.data, b.len }, &head) && add_form(t, head, ids, n, 0, true);
        buf_clear(&b);
    }
    buf_free(&b);
    return ok;
}

/* Bare objects: nothing is certain before the first token of a listed name, since the answer itself may be an object. */
static size_t ids_before_name(const struct trials *t, const struct token_list *ids)
{
    size_t n = 0;
    while (n < ids->n && ids->ends[n] <= t->name_at) n++;
    return n;
}

static bool tool_trials(struct trials *t, const struct tool *tool, struct fill_end *end)
{
    const char *key = sole_key(tool);
    bool text = key && is_text(tool, key);
    struct str said[MAX_VARIANTS];
    struct token_list first = { 0 }, list = { 0 };
    size_t same = 0;
    enum fill_where where = t->s->fill.where;
    for (size_t n = 0; n < n_variants(key, text); n++) {
        if (!trial(t, tool->name, arguments(key, text, n), 1, n, &said[n]) || !encode(t, said[n], n ? &list : &first)) return false;
        size_t k = 0;
        while (n && k < same && k < list.n && list.ids[k] == first.ids[k]) k++;
        same = n ? k : first.n;
    }
    if (key) find_frame(t, tool, key, text, said, end);
    if (where == FILL_HEADER) return add_headed(t, tool->name, first.ids, same);
    size_t n_free = where == FILL_BARE ? ids_before_name(t, &first) : 0;
    return same > 0 && add_form(t, (struct token_list){ 0 }, first.ids, same, n_free, true);
}

/* Headers that address nobody: as long as one of them may be meant nothing is certain. */
static bool add_other_heads(struct trials *t)
{
    const char *text;
    for (size_t i = 0; (text = tool_frame_other_head(i)) != NULL; i++) {
        struct token_list head = { 0 };
        if (!encode(t, (struct str){ text, strlen(text) }, &head) || !add_form(t, head, NULL, 0, 0, false)) return false;
    }
    return true;
}

/* --- where calls begin --- */

static bool is_at_end(const struct gen_prompt *p, const char *text)
{
    size_t n = strlen(text);
    return p->text && p->len >= n && memcmp(p->text + p->len - n, text, n) == 0;
}

/* A family whose calls are bare objects: how the prompt ends before one, and the place of its name. */
static bool find_bare(struct trials *t)
{
    json_t *ask = json_pack("[{s:s, s:s}]", "role", "user", "content", "a");
    struct str one, other;
    if (!render(t, ask, true, &t->before)) return false;
    if (!trial(t, "f", json_object(), 1, 0, &one) || !trial(t, "Zq", json_object(), 1, 0, &other)) return false;
    t->name_at = common(one, other);
    return true;
}

static bool find_where(struct trials *t, const struct gen_prompt *prompt)
{
    struct fill_plan *p = &t->s->fill;
    const struct gen_renderer *r = t->s->g->text;
    struct str out;
    if (tool_family_has_frame(r->family)) {
        p->where = FILL_HEADER;
        p->sign = "";
        p->at_start = is_at_end(prompt, "<|start|>assistant");
        return r->n_sign_ids > 0 && trial(t, "f", json_object(), 1, 0, &out);
    }
    p->where = FILL_SIGN;
    for (size_t i = 0; (p->sign = tool_family_sign(r->family, i)) != NULL; i++)
        if (trial(t, "f", json_object(), 1, 0, &out)) return true;
    p->where = FILL_BARE;
    p->sign = "";
    return tool_family_has_bare(r->family) && find_bare(t);
}

/* A limit was reached: nothing is filled, the request goes on. True lack of memory is an error. trials: may be NULL. */
static mb_status lost(struct gen_stream *s, const struct arena *trials, mb_error *err)
{
    bool none = (s->arena.failed && !s->arena.over_limit) || (trials && trials->failed && !trials->over_limit);
    if (none) return mb_fail(err, MB_NO_MEMORY, "no memory for the forms of calls");
    s->arena.failed = s->arena.over_limit = false;
    s->fill.sign = NULL;
    return MB_OK;
}

mb_status fill_prepare(struct gen_stream *s, const struct gen_prompt *prompt, mb_error *err)
{
    const struct tool_set *set = &s->tools;
    struct fill_plan *p = &s->fill;
    struct arena a;
    struct trials t = { .s = s, .a = &a };
    if (s->arena.failed) return mb_fail(err, MB_NO_MEMORY, "no memory for the request");
    if (!fill_wanted(s) || set->n == 0 || set->n > MAX_TOOLS || !render_knows_calls(s->g->text)) return MB_OK;
    p->forms = arena_alloc_array(&s->arena, set->n * MAX_HEADS + MAX_HEADS, sizeof *p->forms);
    p->ends = arena_alloc_array(&s->arena, set->n, sizeof *p->ends);
    if (!p->forms || !p->ends) return lost(s, NULL, err);
    arena_init(&a, TRIAL_BYTES * (set->n + 1));
    bool ok = find_where(&t, prompt);
    for (size_t i = 0; i < set->n && ok; i++) {
        ok = tool_trials(&t, &set->tools[i], &p->ends[p->n_ends]);
        if (ok && p->ends[p->n_ends].open.ptr) p->n_ends++;
    }
    if (ok && p->where == FILL_HEADER) ok = add_other_heads(&t);
    if (!ok) p->sign = NULL; /* a tool whose calls are not known may be meant by any beginning */
    mb_status st = a.failed || s->arena.failed ? lost(s, &a, err) : MB_OK;
    arena_free(&a);
    return st;
}
