/* resolve.c: the pass between parser and evaluator: scopes, break and continue, names of filters and tests.
 *
 * The evaluator looks a variable up from the inner scope outwards when it is read. jinja2 binds names when it compiles,
 * and the two differ in one case: a scope that stores a name before it reads it owns that name from its beginning, so
 * that a read in a nested scope that comes earlier finds nothing, even if an outer variable has the name. This pass
 * follows jinja2's symbol tables and lists these names per scope ("hidden"); the evaluator marks them on entry.
 * A name stored in one branch of an if only is not hidden, as in jinja2.
 *
 * Unknown filters and tests are errors here, except inside an if or a conditional expression of the same scope, where
 * jinja2 waits until they are reached.
 */
#include <string.h>

#include "chat/template/tmpl_rt.h"

enum { SYM_NONE, SYM_PARAM, SYM_OUTER, SYM_HIDDEN };

struct syms {
    const struct syms *parent;
    uint8_t *kind;   /* by name id */
    uint8_t *stored;
};

struct resolver {
    struct chat_template *t;
    mb_status status;
    mb_error *err;
    bool in_loop;
    int n_for; /* for tags around, macros or not */
};

static bool syms_open(struct resolver *w, struct syms *s, const struct syms *parent)
{
    size_t n = (size_t)w->t->n_names;
    *s = (struct syms){ .parent = parent };
    if (w->status) return false;
    s->kind = mb_calloc(2, n ? n : 1);
    if (!s->kind) { w->status = mb_fail(w->err, MB_NO_MEMORY, "chat template: no memory to compile it"); return false; }
    s->stored = s->kind + n;
    return true;
}

static bool syms_copy(struct resolver *w, struct syms *to, const struct syms *from)
{
    if (!syms_open(w, to, from->parent)) return false;
    memcpy(to->kind, from->kind, 2 * (size_t)w->t->n_names);
    return true;
}

static void syms_close(struct syms *s) { mb_free(s->kind); }

static bool is_known(const struct syms *s, int name)
{
    for (; s; s = s->parent)
        if (s->kind[name]) return true;
    return false;
}

static void sym_load(struct syms *s, int name)
{
    if (!is_known(s, name)) s->kind[name] = SYM_OUTER;
}

static void sym_store(struct syms *s, int name)
{
    s->stored[name] = 1;
    if (s->kind[name]) return;
    s->kind[name] = s->parent && is_known(s->parent, name) ? SYM_OUTER : SYM_HIDDEN;
}

/* ---- what a scope itself reads and stores, in jinja2's order; nested scopes are left out ---- */

static void scan(struct resolver *w, struct syms *s, const struct node *n);

static void scan_list(struct resolver *w, struct syms *s, struct node *const *list, int n)
{
    for (int i = 0; i < n && !w->status; i++) scan(w, s, list[i]);
}

static void scan_target(struct syms *s, const struct node *n, bool as_param)
{
    if (n->kind == N_NSREF) sym_load(s, n->name);
    else if (n->kind == N_NAME && as_param) s->kind[n->name] = SYM_PARAM, s->stored[n->name] = 1;
    else if (n->kind == N_NAME) sym_store(s, n->name);
    else for (int i = 0; i < n->n; i++) scan_target(s, n->list[i], as_param);
}

/* Take over what a branch found; what only branches store is looked up outside until it is set. */
static void merge_branch(struct resolver *w, struct syms *all, const struct syms *branch, const struct syms *before)
{
    for (int i = 0; i < w->t->n_names; i++) {
        bool fresh = branch->stored[i] && !before->stored[i];
        if (branch->kind[i]) all->kind[i] = fresh && branch->kind[i] == SYM_HIDDEN ? SYM_OUTER : branch->kind[i];
        all->stored[i] |= branch->stored[i];
    }
}

static void scan_branch(struct resolver *w, const struct syms *s, struct syms *all, const struct node *test,
                        struct node *const *list, int n)
{
    struct syms b;
    if (!syms_copy(w, &b, s)) return;
    scan(w, &b, test);
    scan_list(w, &b, list, n);
    merge_branch(w, all, &b, s);
    syms_close(&b);
}

static bool has_elif(const struct node *n) { return n->n2 == 1 && n->list2[0]->kind == N_IF && n->list2[0]->flag; }

static void scan_if(struct resolver *w, struct syms *s, const struct node *n)
{
    struct syms all;
    scan(w, s, n->a);
    if (!syms_copy(w, &all, s)) return;
    scan_branch(w, s, &all, NULL, n->list, n->n);
    while (has_elif(n) && !w->status) {
        n = n->list2[0];
        scan_branch(w, s, &all, n->a, n->list, n->n);
    }
    if (n->n2) scan_branch(w, s, &all, NULL, n->list2, n->n2);
    memcpy(s->kind, all.kind, 2 * (size_t)w->t->n_names);
    syms_close(&all);
}

static void scan_args(struct resolver *w, struct syms *s, const struct call_args *a)
{
    if (!a) return;
    scan_list(w, s, a->pos, a->n_pos);
    for (int i = 0; i < a->n_kw; i++) scan(w, s, a->kw[i].value);
    scan(w, s, a->star);
    scan(w, s, a->dstar);
}

static void scan(struct resolver *w, struct syms *s, const struct node *n)
{
    if (!n || w->status) return;
    switch (n->kind) {
    case N_NAME: case N_NSREF: sym_load(s, n->name); return;
    case N_IF: scan_if(w, s, n); return;
    case N_FOR: scan(w, s, n->b); return;
    case N_SET: scan(w, s, n->b); scan_target(s, n->a, false); return;
    case N_SET_BLOCK: scan_target(s, n->a, false); return;
    case N_MACRO: sym_store(s, n->name); return;
    case N_CALL_BLOCK: case N_FILTER_BLOCK: scan(w, s, n->a); return;
    case N_WITH:
        for (int i = 0; i < n->n; i++) scan(w, s, n->list[i]->b);
        return;
    case N_BLOCK: case N_GENERATION: return;
    default:
        scan(w, s, n->a);
        scan(w, s, n->b);
        scan(w, s, n->c);
        scan_list(w, s, n->list, n->n);
        scan_args(w, s, n->args);
    }
}

/* ---- does a body mention a name at all? (caller, kwargs, varargs of macros) ---- */

static bool mentions(const struct node *n, int name);

static bool mentions_any(struct node *const *list, int n, int name)
{
    for (int i = 0; i < n; i++)
        if (mentions(list[i], name)) return true;
    return false;
}

static bool mentions(const struct node *n, int name)
{
    for (; n; n = n->kind == N_IF && has_elif(n) ? n->list2[0] : NULL) {
        if (n->kind == N_NAME && n->name == name) return true;
        if (mentions(n->a, name) || mentions(n->b, name) || mentions(n->c, name)) return true;
        if (mentions_any(n->list, n->n, name)) return true;
        if (!(n->kind == N_IF && has_elif(n)) && mentions_any(n->list2, n->n2, name)) return true;
        if (!n->args) continue;
        if (mentions_any(n->args->pos, n->args->n_pos, name)) return true;
        for (int i = 0; i < n->args->n_kw; i++)
            if (mentions(n->args->kw[i].value, name)) return true;
        if (mentions(n->args->star, name) || mentions(n->args->dstar, name)) return true;
    }
    return false;
}

/* ---- walking into scopes ---- */

static void walk(struct resolver *w, const struct syms *s, struct node *n, bool soft);

static void walk_list(struct resolver *w, const struct syms *s, struct node *const *list, int n, bool soft)
{
    for (int i = 0; i < n && !w->status; i++) walk(w, s, list[i], soft);
}

static void hidden_set(struct resolver *w, const struct syms *s, struct hidden_names *out)
{
    int n = 0;
    for (int i = 0; i < w->t->n_names; i++) n += s->kind[i] == SYM_HIDDEN;
    if (!n || w->status) return;
    out->ids = arena_alloc_array(&w->t->mem, (size_t)n, sizeof *out->ids);
    if (!out->ids) { w->status = mb_fail(w->err, MB_NO_MEMORY, "chat template: no memory to compile it"); return; }
    for (int i = 0; i < w->t->n_names; i++)
        if (s->kind[i] == SYM_HIDDEN) out->ids[out->n++] = i;
}

static void declare(struct syms *s, int name)
{
    s->kind[name] = SYM_PARAM;
    s->stored[name] = 1;
}

/* Finish a scope whose parameters are declared in s: scan its body, note the hidden names, walk into it. */
static void scope_finish(struct resolver *w, struct syms *s, struct node *const *list, int n, struct hidden_names *out)
{
    scan_list(w, s, list, n);
    hidden_set(w, s, out);
    walk_list(w, s, list, n, false);
    syms_close(s);
}

static void walk_plain_scope(struct resolver *w, const struct syms *s, struct node *n)
{
    struct syms inner;
    if (syms_open(w, &inner, s)) scope_finish(w, &inner, n->list, n->n, &n->hidden);
}

/* The name loop belongs to the for tag. */
static void check_loop_name(struct resolver *w, const struct node *target)
{
    if (w->status) return;
    if (target->kind == N_NAME && target->name == w->t->id_loop && w->n_for)
        w->status = tmpl_fail_at(w->err, target->line, target->col, "cannot assign to 'loop' inside a for loop");
    for (int i = 0; target->kind == N_TUPLE && i < target->n; i++) check_loop_name(w, target->list[i]);
}

static void walk_for(struct resolver *w, const struct syms *s, struct node *n)
{
    struct syms body;
    bool outer_loop = w->in_loop;
    w->n_for++;
    check_loop_name(w, n->a);
    walk(w, s, n->b, false);
    if (!syms_open(w, &body, s)) return;
    scan_target(&body, n->a, true);
    if (n->c) walk(w, &body, n->c, false);
    declare(&body, w->t->id_loop);
    w->in_loop = true;
    scope_finish(w, &body, n->list, n->n, &n->hidden);
    w->in_loop = outer_loop;
    if (n->n2 && syms_open(w, &body, s)) scope_finish(w, &body, n->list2, n->n2, &n->hidden2);
    w->n_for--;
}

static void walk_macro(struct resolver *w, const struct syms *s, struct node *n)
{
    struct signature *sig = n->sig;
    struct syms body;
    bool outer_loop = w->in_loop, has_caller = false, has_kwargs = false, has_varargs = false;
    if (!syms_open(w, &body, s)) return;
    for (int i = 0; i < sig->n_params; i++) {
        declare(&body, sig->params[i]);
        has_caller |= sig->params[i] == sig->id_caller;
        has_kwargs |= sig->params[i] == sig->id_kwargs;
        has_varargs |= sig->params[i] == sig->id_varargs;
    }
    for (int i = 0; i < sig->n_params; i++)
        if (sig->params[i] == sig->id_caller && !sig->defaults[i] && mentions_any(n->list, n->n, sig->id_caller))
            w->status = tmpl_fail_at(w->err, n->line, n->col, "the parameter 'caller' must have a default");
    sig->uses_caller = !has_caller && mentions_any(n->list, n->n, sig->id_caller);
    sig->uses_kwargs = !has_kwargs && mentions_any(n->list, n->n, sig->id_kwargs);
    sig->uses_varargs = !has_varargs && mentions_any(n->list, n->n, sig->id_varargs);
    if (sig->uses_caller) declare(&body, sig->id_caller);
    if (sig->uses_kwargs) declare(&body, sig->id_kwargs);
    if (sig->uses_varargs) declare(&body, sig->id_varargs);
    for (int i = 0; i < sig->n_params; i++) {
        scan(w, &body, sig->defaults[i]);
        if (sig->defaults[i]) walk(w, &body, sig->defaults[i], false);
    }
    w->in_loop = false;
    scope_finish(w, &body, n->list, n->n, &n->hidden);
    w->in_loop = outer_loop;
}

static void walk_with(struct resolver *w, const struct syms *s, struct node *n)
{
    struct syms body;
    for (int i = 0; i < n->n; i++) walk(w, s, n->list[i]->b, false);
    if (!syms_open(w, &body, s)) return;
    for (int i = 0; i < n->n; i++) scan_target(&body, n->list[i]->a, true);
    scope_finish(w, &body, n->list2, n->n2, &n->hidden2);
}

static void walk_block(struct resolver *w, const struct syms *s, struct node *n)
{
    bool outer_loop = w->in_loop;
    w->in_loop = false;
    walk_plain_scope(w, s, n);
    w->in_loop = outer_loop;
}

static void walk_if(struct resolver *w, const struct syms *s, struct node *n)
{
    for (; n && !w->status; n = has_elif(n) ? n->list2[0] : NULL) {
        walk(w, s, n->a, true);
        walk_list(w, s, n->list, n->n, true);
        if (!has_elif(n)) walk_list(w, s, n->list2, n->n2, true);
    }
}

static void check_names(struct resolver *w, struct node *n, bool soft)
{
    bool is_filter = n->kind == N_FILTER;
    if (is_filter) n->filter = filter_find(n->s);
    else n->test = test_find(n->s);
    if (n->filter || n->test || soft) return;
    w->status = tmpl_fail_at(w->err, n->line, n->col, "No %s named '%.*s'.", is_filter ? "filter" : "test",
                             (int)(n->s.len < 60 ? n->s.len : 60), n->s.ptr);
}

static void walk_expr(struct resolver *w, const struct syms *s, struct node *n, bool soft)
{
    if (n->kind == N_COND) soft = true;
    if (n->kind == N_FILTER || n->kind == N_TEST) check_names(w, n, soft);
    if (n->a) walk(w, s, n->a, soft);
    if (n->b) walk(w, s, n->b, soft);
    if (n->c) walk(w, s, n->c, soft);
    walk_list(w, s, n->list, n->n, soft);
    if (!n->args) return;
    walk_list(w, s, n->args->pos, n->args->n_pos, soft);
    for (int i = 0; i < n->args->n_kw; i++) walk(w, s, n->args->kw[i].value, soft);
    if (n->args->star) walk(w, s, n->args->star, soft);
    if (n->args->dstar) walk(w, s, n->args->dstar, soft);
}

static void walk(struct resolver *w, const struct syms *s, struct node *n, bool soft)
{
    if (w->status) return;
    switch (n->kind) {
    case N_DATA: return;
    case N_IF: walk_if(w, s, n); return;
    case N_FOR: walk_for(w, s, n); return;
    case N_MACRO: walk_macro(w, s, n); return;
    case N_CALL_BLOCK: walk(w, s, n->a, soft); walk_macro(w, s, n); return;
    case N_WITH: walk_with(w, s, n); return;
    case N_FILTER_BLOCK: walk(w, s, n->a, false); walk_plain_scope(w, s, n); return;
    case N_SET: check_loop_name(w, n->a); walk(w, s, n->b, soft); return;
    case N_SET_BLOCK:
        check_loop_name(w, n->a);
        if (n->b) walk(w, s, n->b, false);
        walk_plain_scope(w, s, n);
        return;
    case N_BLOCK: case N_GENERATION: walk_block(w, s, n); return;
    case N_BREAK: case N_CONTINUE:
        if (!w->in_loop)
            w->status = tmpl_fail_at(w->err, n->line, n->col, "'%s' outside of a loop",
                                     n->kind == N_BREAK ? "break" : "continue");
        return;
    default: walk_expr(w, s, n, soft);
    }
}

static mb_status make_hints(struct chat_template *t, mb_error *err)
{
    t->hints = arena_alloc_array(&t->mem, (size_t)t->n_names + 1, sizeof *t->hints);
    for (int i = 0; t->hints && i < t->n_names; i++) {
        t->hints[i] = arena_printf(&t->mem, "'%.*s' is undefined", (int)(t->names[i].len < 80 ? t->names[i].len : 80),
                                   t->names[i].ptr);
        if (!t->hints[i]) break;
    }
    return t->mem.failed ? mb_fail(err, MB_NO_MEMORY, "chat template: no memory to compile it") : MB_OK;
}

mb_status tmpl_resolve(struct chat_template *t, mb_error *err)
{
    struct resolver w = { .t = t, .err = err };
    struct syms root;
    MB_TRY(make_hints(t, err));
    if (syms_open(&w, &root, NULL)) scope_finish(&w, &root, t->body, t->n_body, &t->hidden);
    return w.status;
}
