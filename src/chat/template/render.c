/* render.c: the public face of the engine: compile, render, and the limits of a render.
 *
 * All that a render makes lives in one scratch arena with a ceiling; at the end the text and its runs are copied into
 * the caller's arena. Variables of the caller become the root scope, by name id: only names the template mentions are
 * looked up. The origin of a value is decided where a JSON tree enters: messages[i].field, tools, anything else.
 */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "chat/template/tmpl_rt.h"

#define DEFAULT_STEPS 20000000u
#define DEFAULT_DEPTH 100
#define DEFAULT_BYTES ((size_t)64 << 20)

/* ---- compile ---- */

mb_status chat_template_compile(struct chat_template **out, const char *source, size_t len, mb_error *err)
{
    *out = NULL;
    if (len > TMPL_MAX_SOURCE_BYTES)
        return mb_fail(err, MB_TOO_LARGE, "chat template: %zu bytes, the ceiling is %u", len, TMPL_MAX_SOURCE_BYTES);
    if (!utf8_valid(source, len)) return mb_fail(err, MB_BAD_FORMAT, "chat template: the file is not valid UTF-8");
    struct chat_template *t = mb_calloc(1, sizeof *t);
    if (!t) return mb_fail(err, MB_NO_MEMORY, "chat template: no memory to compile it");
    arena_init(&t->mem, 0);
    struct token *tok = NULL;
    size_t n_tok = 0;
    mb_status st = tmpl_lex(&t->mem, source, len, &tok, &n_tok, err);
    if (st == MB_OK) st = tmpl_parse(t, tok, n_tok, err);
    if (st == MB_OK) st = tmpl_resolve(t, err);
    if (st != MB_OK) { chat_template_free(t); return st; }
    *out = t;
    return MB_OK;
}

void chat_template_free(struct chat_template *t)
{
    if (!t) return;
    arena_free(&t->mem);
    mb_free(t);
}

/* ---- limits, errors, memory ---- */

struct tv render_fail(struct render *r, mb_status code, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    if (r->status) return tv_undef(NULL);
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->status = code;
    if (code == MB_TEMPLATE) mb_fail(r->err, code, "%s", text); /* the template's own words */
    else if (r->line > 0) mb_fail(r->err, code, "chat template, line %d: %s", r->line, text);
    else mb_fail(r->err, code, "%s", text); /* before the template ran: about what it was given */
    return tv_undef(NULL);
}

bool render_step(struct render *r, uint64_t n)
{
    if (r->status) return false;
    if (n > r->max_steps - r->steps) {
        render_fail(r, MB_TOO_LARGE, "more than %llu steps", (unsigned long long)r->max_steps);
        return false;
    }
    r->steps += n;
    return true;
}

bool render_enter(struct render *r)
{
    if (r->status) return false;
    if (r->nest >= RENDER_MAX_NEST) {
        render_fail(r, MB_TOO_LARGE, "evaluation nested more than %d deep", RENDER_MAX_NEST);
        return false;
    }
    r->nest++;
    return true;
}

void *render_alloc(struct render *r, size_t n, size_t size)
{
    if (r->status) return NULL;
    size_t total;
    bool over = __builtin_mul_overflow(n, size, &total) ||
                (r->a->limit_bytes && total > r->a->limit_bytes - r->a->used_bytes);
    void *p = over ? NULL : arena_alloc(r->a, total ? total : 1);
    if (!p && (over || r->a->used_bytes + total + 64 > r->a->limit_bytes))
        render_fail(r, MB_TOO_LARGE, "rendering needs more than %zu bytes of working memory", r->a->limit_bytes);
    else if (!p)
        render_fail(r, MB_NO_MEMORY, "no memory to render");
    return p;
}

uint32_t render_origin(struct render *r, int32_t i_message, const char *field)
{
    for (uint32_t i = r->n_origins; i-- > 3;) { /* the newest first: fields of one message come together */
        if (r->origins[i].i_message != i_message) break;
        if (strcmp(r->origins[i].field, field) == 0) return i;
    }
    if (r->n_origins == r->cap_origins) {
        uint32_t cap = r->cap_origins ? r->cap_origins * 2 : 32;
        struct origin *grown = render_alloc(r, cap, sizeof *grown);
        if (!grown) return ORG_OTHER;
        if (r->n_origins) memcpy(grown, r->origins, r->n_origins * sizeof *grown);
        r->origins = grown;
        r->cap_origins = cap;
    }
    r->origins[r->n_origins] = (struct origin){ i_message, field };
    return r->n_origins++;
}

/* ---- variables of the caller ---- */

static int name_id(const struct chat_template *t, const char *name)
{
    for (int i = 0; i < t->n_names; i++)
        if (str_eq(t->names[i], str_of(name))) return i;
    return -1;
}

static void root_set(struct render *r, const char *name, struct tv v)
{
    int id = name_id(r->t, name);
    if (id >= 0) r->root.by_name[id] = v;
}

/* chat_template_kwargs. The conversation itself has its own fields; a second one by this way would lose its origins. */
static void root_set_kwargs(struct render *r, const json_t *obj)
{
    const char *key;
    json_t *val;
    if (!json_is_object(obj)) return;
    json_object_foreach((json_t *)obj, key, val) {
        if (strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0 || strcmp(key, "documents") == 0) {
            render_fail(r, MB_INVALID, "chat_template_kwargs must not contain \"%s\": it is a field of its own", key);
            return;
        }
        root_set(r, key, tv_of_json(r, val, ORG_OTHER));
    }
}

/* Each message is a dict that knows its index, so that its fields get origins of their own. */
static struct tv messages_value(struct render *r, const json_t *messages)
{
    size_t n = json_array_size(messages);
    struct tv out = tv_list_new(r, TV_LIST, n, ORG_OTHER);
    for (size_t i = 0; i < n && !r->status; i++) {
        uint32_t org = render_origin(r, (int32_t)i, "message");
        struct tv m = tv_of_json(r, json_array_get(messages, i), org);
        if (m.type == TV_DICT) m.u.dict->i_message = (int32_t)i;
        out.u.list->items[i] = m;
    }
    return out;
}

static struct tv token_value(struct render *r, const char *s)
{
    return tv_str(r, s, strlen(s), ORG_TEMPLATE); /* bos, eos: as good as text of the template */
}

static void root_fill(struct render *r)
{
    const struct template_input *in = r->in;
    for (int i = 0; i < r->t->n_names; i++) {
        const struct func_row *f = global_find(r->t->names[i]);
        if (f) r->root.by_name[i] = (struct tv){ .type = TV_FUNC, .u.func = f };
    }
    const char *key;
    json_t *val;
    if (json_is_object(in->special_tokens))
        json_object_foreach((json_t *)in->special_tokens, key, val)
            root_set(r, key, tv_of_json(r, val, ORG_TEMPLATE));
    if (in->bos_token) root_set(r, "bos_token", token_value(r, in->bos_token));
    if (in->eos_token) root_set(r, "eos_token", token_value(r, in->eos_token));
    root_set(r, "messages", messages_value(r, in->messages));
    bool has_tools = in->tools && json_array_size(in->tools) > 0;
    root_set(r, "tools", has_tools ? tv_of_json(r, in->tools, ORG_TOOLS) : tv_none());
    root_set(r, "documents", tv_of_json(r, in->documents, ORG_OTHER));
    root_set(r, "add_generation_prompt", tv_bool(in->add_generation_prompt));
    root_set_kwargs(r, in->kwargs);
    for (int i = 0; i < r->t->hidden.n; i++) r->root.by_name[r->t->hidden.ids[i]] = (struct tv){ .type = TV_HIDDEN };
}

/* ---- render ---- */

static const char *field_copy(struct arena *a, const struct origin *o, const struct template_output *out, size_t n)
{
    if (o->i_message == ORIGIN_TEMPLATE) return "template";
    if (o->i_message == ORIGIN_TOOLS) return "tools";
    if (o->i_message == ORIGIN_OTHER) return "variable";
    for (size_t i = n; i-- > 0 && n - i < 8;) /* a neighbour often has the same */
        if (strcmp(out->runs[i].field, o->field) == 0) return out->runs[i].field;
    return arena_strdup(a, o->field);
}

static mb_status output_copy(struct render *r, struct arena *a, const struct tsb *b, struct template_output *out)
{
    out->text = arena_alloc(a, b->len + 1);
    out->runs = arena_alloc_array(a, b->n_runs ? b->n_runs : 1, sizeof *out->runs);
    out->generation = arena_alloc_array(a, r->n_gen ? r->n_gen : 1, sizeof *out->generation);
    if (!out->text || !out->runs || !out->generation) return mb_fail(r->err, MB_NO_MEMORY, "no memory for the prompt");
    if (b->len) memcpy(out->text, b->data, b->len);
    if (r->n_gen) memcpy(out->generation, r->gen, r->n_gen * sizeof *r->gen);
    for (size_t i = 0; i < b->n_runs; i++) {
        const struct origin *o = &r->origins[b->runs[i].org];
        const char *field = field_copy(a, o, out, i);
        if (!field) return mb_fail(r->err, MB_NO_MEMORY, "no memory for the prompt");
        out->runs[i] = (struct origin_run){ i ? b->runs[i - 1].end : 0, b->runs[i].end, o->i_message, field };
    }
    out->len = b->len;
    out->n_runs = b->n_runs;
    out->n_generation = r->n_gen;
    return MB_OK;
}

static void render_run(struct render *r, struct tsb *out)
{
    static const int32_t fixed[] = { ORIGIN_TEMPLATE, ORIGIN_TOOLS, ORIGIN_OTHER };
    for (int i = 0; i < 3; i++) render_origin(r, fixed[i], "");
    r->root.by_name = render_alloc(r, (size_t)r->t->n_names, sizeof *r->root.by_name);
    if (r->status) return;
    r->scope = &r->root;
    tsb_init(out, r);
    r->out = r->main_out = out;
    root_fill(r);
    exec_body(r, r->t->body, r->t->n_body);
}

mb_status chat_template_render(const struct chat_template *t, struct arena *a, const struct template_input *in,
                               const struct template_limits *limits, struct template_output *out, mb_error *err)
{
    static const struct template_limits defaults;
    struct arena scratch;
    struct tsb text = { 0 };
    *out = (struct template_output){ 0 };
    if (!json_is_array(in->messages)) return mb_fail(err, MB_INVALID, "messages must be an array");
    if (!limits) limits = &defaults;
    struct render r = { .t = t, .in = in, .a = &scratch, .err = err };
    r.max_steps = limits->max_steps ? limits->max_steps : DEFAULT_STEPS;
    r.max_depth = limits->max_depth ? limits->max_depth : DEFAULT_DEPTH;
    r.max_bytes = limits->max_output_bytes ? limits->max_output_bytes : DEFAULT_BYTES;
    arena_init(&scratch, r.max_bytes * 6 + ((size_t)64 << 20));
    render_run(&r, &text);
    mb_status st = r.status ? r.status : output_copy(&r, a, &text, out);
    arena_free(&scratch);
    if (st != MB_OK) *out = (struct template_output){ 0 };
    return st;
}
