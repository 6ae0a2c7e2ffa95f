/* eval.c: expressions. A tree walk; one step a node; depth is capped by render_enter, errors are sticky (tmpl_rt.h). */
#include <string.h>

#include "chat/template/tmpl_rt.h"

/* ---- variables ---- */

struct tscope *scope_push(struct render *r, struct tscope *parent, const struct hidden_names *hidden)
{
    struct tscope *s = render_alloc(r, 1, sizeof *s);
    if (!s) return parent;
    s->parent = parent;
    for (int i = 0; hidden && i < hidden->n; i++)
        scope_set(r, s, hidden->ids[i], (struct tv){ .type = TV_HIDDEN });
    return s;
}

void scope_set(struct render *r, struct tscope *s, int name, struct tv v)
{
    if (s->by_name) { s->by_name[name] = v; return; }
    for (int i = 0; i < s->n; i++)
        if (s->b[i].name == name) { s->b[i].v = v; return; }
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 4;
        struct tbind *grown = render_alloc(r, (size_t)cap, sizeof *grown);
        if (!grown) return;
        if (s->n) memcpy(grown, s->b, (size_t)s->n * sizeof *grown);
        s->b = grown;
        s->cap = cap;
    }
    s->b[s->n++] = (struct tbind){ name, v };
}

struct tv scope_get(struct render *r, int name)
{
    for (const struct tscope *s = r->scope; s; s = s->parent) {
        struct tv v = tv_absent();
        if (s->by_name) v = s->by_name[name];
        for (int i = 0; !s->by_name && i < s->n; i++)
            if (s->b[i].name == name) v = s->b[i].v;
        if (v.type == TV_HIDDEN) break;
        if (v.type != TV_ABSENT) return v;
    }
    return tv_undef(r->t->hints[name]);
}

/* ---- literals ---- */

static struct tv eval_seq(struct render *r, const struct node *n)
{
    struct tv out = tv_list_new(r, n->kind == N_LIST ? TV_LIST : TV_TUPLE, (size_t)n->n, ORG_TEMPLATE);
    for (int i = 0; i < n->n && !r->status; i++) out.u.list->items[i] = eval(r, n->list[i]);
    return out;
}

static struct tv eval_dict(struct render *r, const struct node *n)
{
    struct tv out = tv_dict_new(r, ORG_TEMPLATE);
    for (int i = 0; i + 1 < n->n && !r->status; i += 2) {
        struct tv key = eval(r, n->list[i]), val = eval(r, n->list[i + 1]);
        if (!r->status && !tv_hashable(key)) return render_type_error(r, "unhashable type: '%s'", tv_type_name(key));
        if (!r->status) tv_dict_set(r, out, key, val);
    }
    return out;
}

static struct tv eval_concat(struct render *r, const struct node *n)
{
    struct tsb b;
    tsb_init(&b, r);
    for (int i = 0; i < n->n && !r->status; i++) tv_write_str(&b, eval(r, n->list[i]));
    return tsb_take(&b);
}

/* ---- operators ---- */

static bool compare_one(struct render *r, int op, struct tv a, struct tv b)
{
    switch (op) {
    case T_EQ: return tv_eq(r, a, b);
    case T_NE: return !tv_eq(r, a, b);
    case OP_IN: return tv_contains(r, b, a);
    case OP_NOT_IN: return !tv_contains(r, b, a);
    default: return tv_order(r, op, a, b);
    }
}

/* a < b < c: each operand once, stop at the first that fails. */
static struct tv eval_compare(struct render *r, const struct node *n)
{
    struct tv left = eval(r, n->a);
    for (int i = 0; i < n->n && !r->status; i++) {
        struct tv right = eval(r, n->list[i]->a);
        if (!compare_one(r, n->list[i]->op, left, right)) return tv_bool(false);
        left = right;
    }
    return tv_bool(true);
}

static struct tv eval_logic(struct render *r, const struct node *n)
{
    struct tv left = eval(r, n->a);
    if (r->status || tv_truth(r, left) == (n->kind == N_OR)) return left;
    return eval(r, n->b);
}

static struct tv eval_cond(struct render *r, const struct node *n)
{
    if (tv_truth(r, eval(r, n->b))) return eval(r, n->a);
    if (n->c) return eval(r, n->c);
    return tv_undef("the inline if-expression evaluated to false and no else section was defined");
}

static struct tv eval_getitem(struct render *r, const struct node *n)
{
    struct tv obj = eval(r, n->a);
    if (n->b->kind != N_SLICE) return tv_getitem(r, obj, eval(r, n->b));
    struct tv start = n->b->a ? eval(r, n->b->a) : tv_none(), stop = n->b->b ? eval(r, n->b->b) : tv_none();
    return tv_slice(r, obj, start, stop, n->b->c ? eval(r, n->b->c) : tv_none());
}

/* ---- calls ---- */

static void add_star(struct render *r, const struct call_args *a, struct func_call *c)
{
    struct tv v = eval(r, a->star);
    struct tlist *more = r->status ? NULL : tv_iter(r, v);
    struct tv *all = more && !r->status ? render_alloc(r, c->n_args + more->n, sizeof *all) : NULL;
    if (!all) return;
    if (c->n_args) memcpy(all, c->args, c->n_args * sizeof *all);
    if (more->n) memcpy(all + c->n_args, more->items, more->n * sizeof *all);
    c->args = all;
    c->n_args += more->n;
}

static void add_keyword(struct render *r, struct func_call *c, struct str name, struct tv v)
{
    for (size_t i = 0; i < c->n_kw; i++)
        if (str_eq(c->kw_names[i], name)) {
            render_type_error(r, "got multiple values for keyword argument '%.*s'",
                              (int)(name.len < 60 ? name.len : 60), name.ptr);
            return;
        }
    c->kw_names[c->n_kw] = name;
    c->kw[c->n_kw++] = v;
}

/* `extra` (a caller) goes in as the keyword argument "caller". */
static bool call_prepare(struct render *r, const struct call_args *a, const struct tv *extra, struct func_call *c)
{
    struct tv more = a->dstar ? eval(r, a->dstar) : tv_absent();
    if (a->dstar && more.type != TV_DICT && !r->status)
        render_type_error(r, "argument after ** must be a mapping, not %s", tv_type_name(more));
    size_t n_more = a->dstar && !r->status ? tv_dict(r, more)->n : 0, n_kw = (size_t)a->n_kw + n_more + 1;
    *c = (struct func_call){ .n_args = (size_t)a->n_pos };
    c->args = render_alloc(r, c->n_args, sizeof *c->args);
    c->kw_names = render_alloc(r, n_kw, sizeof *c->kw_names);
    c->kw = render_alloc(r, n_kw, sizeof *c->kw);
    if (r->status) return false;
    for (int i = 0; i < a->n_pos && !r->status; i++) c->args[i] = eval(r, a->pos[i]);
    if (a->star) add_star(r, a, c);
    for (int i = 0; i < a->n_kw && !r->status; i++) add_keyword(r, c, a->kw[i].name, eval(r, a->kw[i].value));
    for (size_t i = 0; i < n_more && !r->status; i++) {
        struct tentry *e = &tv_dict(r, more)->ents[i];
        if (!tv_is_str(e->key)) { render_type_error(r, "keywords must be strings"); break; }
        add_keyword(r, c, (struct str){ e->key.u.s->ptr, e->key.u.s->len }, e->val);
    }
    if (extra && !r->status) add_keyword(r, c, STR_LIT("caller"), *extra);
    return !r->status;
}

struct tv eval_call_with(struct render *r, const struct node *n, const struct tv *caller)
{
    struct func_call c;
    struct tv callee = eval(r, n->a);
    if (r->status || !call_prepare(r, n->args, caller, &c)) return tv_undef(NULL);
    r->line = n->line;
    return tv_call(r, callee, &c);
}

struct tv eval_filter(struct render *r, const struct node *n, struct tv input)
{
    struct func_call c;
    if (!render_enter(r)) return tv_undef(NULL);
    struct tv v = !n->a ? input : n->a->kind == N_FILTER ? eval_filter(r, n->a, input) : eval(r, n->a);
    struct tv out = tv_undef(NULL);
    if (!r->status && !n->filter)
        render_type_error(r, "No filter named '%.*s' found.", (int)(n->s.len < 60 ? n->s.len : 60), n->s.ptr);
    if (!r->status && call_prepare(r, n->args, NULL, &c)) {
        r->line = n->line;
        out = func_call_row(r, &n->filter->f, v, &c);
    }
    render_leave(r);
    return out;
}

static struct tv eval_test(struct render *r, const struct node *n)
{
    struct func_call c;
    struct tv v = eval(r, n->a);
    if (!r->status && !n->test)
        render_type_error(r, "No test named '%.*s' found.", (int)(n->s.len < 60 ? n->s.len : 60), n->s.ptr);
    if (r->status || !call_prepare(r, n->args, NULL, &c)) return tv_undef(NULL);
    r->line = n->line;
    return func_call_row(r, &n->test->f, v, &c);
}

static struct tv eval_kind(struct render *r, const struct node *n)
{
    switch (n->kind) {
    case N_CONST: return n->val;
    case N_NAME: return scope_get(r, n->name);
    case N_LIST: case N_TUPLE: return eval_seq(r, n);
    case N_DICT: return eval_dict(r, n);
    case N_NEG: case N_POS: return tv_negate(r, eval(r, n->a), n->kind == N_NEG);
    case N_NOT: return tv_bool(!tv_truth(r, eval(r, n->a)));
    case N_BINARY: {
        struct tv a = eval(r, n->a), b = eval(r, n->b);
        r->line = n->line;
        return tv_binary(r, n->op, a, b);
    }
    case N_AND: case N_OR: return eval_logic(r, n);
    case N_CONCAT: return eval_concat(r, n);
    case N_COMPARE: return eval_compare(r, n);
    case N_COND: return eval_cond(r, n);
    case N_GETATTR: return tv_getattr(r, eval(r, n->a), n->s);
    case N_GETITEM: return eval_getitem(r, n);
    case N_CALL: return eval_call_with(r, n, NULL);
    case N_FILTER: return eval_filter(r, n, tv_undef(NULL));
    case N_TEST: return eval_test(r, n);
    case N_SLICE: return render_type_error(r, "a slice inside a tuple of subscripts is not supported");
    default: return render_fail(r, MB_INTERNAL, "unknown kind of expression %d", n->kind);
    }
}

struct tv eval(struct render *r, const struct node *n)
{
    if (r->status || !render_step(r, 1) || !render_enter(r)) return tv_undef(NULL);
    r->line = n->line;
    struct tv v = eval_kind(r, n);
    render_leave(r);
    return r->status ? tv_undef(NULL) : v;
}
