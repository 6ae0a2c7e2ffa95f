/* exec.c: statements. Output goes to r->out: the page itself, or a capture (macro, set block, filter block, caller).
 * break and continue are a flag (r->flow) that every list of statements looks at. */
#include <string.h>

#include "chat/template/tmpl_rt.h"

static void exec(struct render *r, const struct node *n);

void exec_body(struct render *r, struct node *const *list, int n)
{
    for (int i = 0; i < n && !r->status && r->flow == FLOW_NORMAL; i++) exec(r, list[i]);
}

/* The body in a scope of its own. */
static void exec_scoped(struct render *r, struct node *const *list, int n, const struct hidden_names *hidden)
{
    struct tscope *outer = r->scope;
    r->scope = scope_push(r, outer, hidden);
    exec_body(r, list, n);
    r->scope = outer;
}

static struct tv exec_capture(struct render *r, struct node *const *list, int n, const struct hidden_names *hidden)
{
    struct tsb b, *outer = r->out;
    tsb_init(&b, r);
    r->out = &b;
    exec_scoped(r, list, n, hidden);
    r->out = outer;
    return tsb_take(&b);
}

/* ---- assignment ---- */

static void assign(struct render *r, const struct node *target, struct tv v);

static void assign_tuple(struct render *r, const struct node *target, struct tv v)
{
    if (!tv_is_iterable(v)) {
        render_type_error(r, "cannot unpack non-iterable %s object", tv_type_name(v));
        return;
    }
    struct tlist *l = tv_iter(r, v);
    if (r->status) return;
    if (l->n != (size_t)target->n) {
        render_type_error(r, "cannot unpack: expected %d values, got %zu", target->n, l->n);
        return;
    }
    for (int i = 0; i < target->n; i++) assign(r, target->list[i], l->items[i]);
}

static void assign(struct render *r, const struct node *target, struct tv v)
{
    if (r->status) return;
    r->line = target->line;
    if (target->kind == N_NAME) {
        scope_set(r, r->scope, target->name, v);
    } else if (target->kind == N_NSREF) {
        struct tv ns = scope_get(r, target->name);
        if (ns.type != TV_NS) { render_type_error(r, "cannot assign attribute on non-namespace object"); return; }
        tv_dict_set(r, ns, tv_str(r, target->s.ptr, target->s.len, ORG_TEMPLATE), v);
    } else {
        assign_tuple(r, target, v);
    }
}

/* ---- loops ---- */

static bool passes_filter(struct render *r, const struct tloop *l, struct tv item)
{
    struct tscope *outer = r->scope;
    r->scope = scope_push(r, l->scope, NULL);
    assign(r, l->node->a, item);
    bool ok = tv_truth(r, eval(r, l->node->c));
    r->scope = outer;
    return ok && !r->status;
}

bool loop_has(struct render *r, struct tloop *l, size_t i)
{
    while (l->source && l->items->n <= i && l->n_seen < l->source->n && !r->status) {
        struct tv item = l->source->items[l->n_seen++];
        if (passes_filter(r, l, item)) l->items->items[l->items->n++] = item;
    }
    return i < l->items->n && !r->status;
}

static bool loop_open(struct render *r, struct tloop *l, const struct node *n, struct tv iterable)
{
    struct tlist *all = tv_iter(r, iterable);
    if (r->status) return false;
    l->items = all;
    if (!n->c) return true;
    struct tv accepted = tv_list_new(r, TV_LIST, all->n, ORG_TEMPLATE);
    if (r->status) return false;
    accepted.u.list->n = 0;
    l->items = accepted.u.list;
    l->source = all;
    return true;
}

/* The scope of the next round: the last one emptied, unless a macro may still look into it. */
static struct tscope *scope_renew(struct render *r, struct tscope *last, struct tscope *outer,
                                  const struct hidden_names *hidden, bool may_reuse)
{
    if (!last || !may_reuse) return scope_push(r, outer, hidden);
    last->n = 0;
    for (int i = 0; i < hidden->n; i++) scope_set(r, last, hidden->ids[i], (struct tv){ .type = TV_HIDDEN });
    return last;
}

void exec_for(struct render *r, const struct node *n, struct tv iterable, uint32_t depth0)
{
    struct tscope *outer = r->scope;
    struct tloop *l = render_alloc(r, 1, sizeof *l);
    bool completed = false;
    if (!l) return;
    l->node = n;
    l->scope = outer;
    l->depth0 = depth0;
    r->line = n->line;
    if (!loop_open(r, l, n, iterable)) return;
    struct tscope *round = NULL;
    uint64_t n_closures = r->n_closures;
    for (size_t i = 0; loop_has(r, l, i) && render_step(r, 1); i++) {
        l->index0 = i;
        round = scope_renew(r, round, outer, &n->hidden, r->n_closures == n_closures);
        r->scope = round;
        n_closures = r->n_closures;
        assign(r, n->a, l->items->items[i]);
        scope_set(r, r->scope, r->t->id_loop, (struct tv){ .type = TV_LOOP, .u.loop = l });
        exec_body(r, n->list, n->n);
        bool stop = r->flow == FLOW_BREAK;
        if (r->flow == FLOW_NORMAL) completed = true;
        r->flow = FLOW_NORMAL;
        if (stop) break;
    }
    r->scope = outer;
    /* As in jinja2: else runs when no round came to its end, be it for lack of items or by break and continue. */
    if (!completed && !r->status) exec_scoped(r, n->list2, n->n2, &n->hidden2);
}

struct tv loop_call(struct render *r, struct tloop *l, const struct func_call *c)
{
    if (!l->node->flag)
        return render_type_error(r, "The loop must have the 'recursive' marker to be called recursively.");
    if (c->n_args != 1 || c->n_kw) return render_type_error(r, "a recursive loop takes exactly one argument");
    if (++r->depth > r->max_depth)
        return render_fail(r, MB_TOO_LARGE, "calls nested more than %d deep", r->max_depth);
    struct tscope *scope = r->scope;
    struct tsb b, *out = r->out;
    tsb_init(&b, r);
    r->out = &b;
    r->scope = l->scope;
    if (render_enter(r)) {
        exec_for(r, l->node, c->args[0], l->depth0 + 1);
        render_leave(r);
    }
    r->out = out;
    r->scope = scope;
    r->depth--;
    return tsb_take(&b);
}

/* ---- the rest ---- */

static void exec_if(struct render *r, const struct node *n)
{
    for (;;) {
        if (tv_truth(r, eval(r, n->a))) { exec_body(r, n->list, n->n); return; }
        if (n->n2 != 1 || n->list2[0]->kind != N_IF || !n->list2[0]->flag || r->status) break;
        n = n->list2[0]; /* elif */
    }
    exec_body(r, n->list2, n->n2);
}

static void exec_set_block(struct render *r, const struct node *n)
{
    struct tv v = exec_capture(r, n->list, n->n, &n->hidden);
    if (n->b) v = eval_filter(r, n->b, v);
    if (r->flow == FLOW_NORMAL) assign(r, n->a, v);
}

static struct tv macro_value(struct render *r, const struct node *n, const char *name)
{
    struct tmacro *m = render_alloc(r, 1, sizeof *m);
    if (!m) return tv_undef(NULL);
    m->node = n;
    m->scope = r->scope;
    r->n_closures++;
    m->name = name;
    return (struct tv){ .type = TV_MACRO, .u.macro = m };
}

static void exec_macro(struct render *r, const struct node *n)
{
    const char *name = arena_strndup(r->a, n->s.ptr, n->s.len);
    scope_set(r, r->scope, n->name, macro_value(r, n, name));
}

static void exec_call_block(struct render *r, const struct node *n)
{
    struct tv caller = macro_value(r, n, "caller");
    tv_write_str(r->out, eval_call_with(r, n->a, &caller));
}

static void exec_with(struct render *r, const struct node *n)
{
    struct tscope *outer = r->scope, *inner = scope_push(r, outer, &n->hidden2);
    for (int i = 0; i < n->n && !r->status; i++) {
        struct tv v = eval(r, n->list[i]->b); /* values are read in the outer scope */
        r->scope = inner;
        assign(r, n->list[i]->a, v);
        r->scope = outer;
    }
    r->scope = inner;
    exec_body(r, n->list2, n->n2);
    r->scope = outer;
}

static void exec_block(struct render *r, const struct node *n)
{
    struct tscope *outer = r->scope;
    r->scope = scope_push(r, n->flag ? outer : &r->root, &n->hidden);
    exec_body(r, n->list, n->n);
    r->scope = outer;
}

static void note_generation(struct render *r, size_t first)
{
    if (r->n_gen == r->cap_gen) {
        size_t cap = r->cap_gen ? r->cap_gen * 2 : 8;
        struct text_range *grown = render_alloc(r, cap, sizeof *grown);
        if (!grown) return;
        if (r->n_gen) memcpy(grown, r->gen, r->n_gen * sizeof *grown);
        r->gen = grown;
        r->cap_gen = cap;
    }
    r->gen[r->n_gen++] = (struct text_range){ first, r->main_out->len };
}

static void exec_generation(struct render *r, const struct node *n)
{
    size_t first = r->main_out->len;
    exec_scoped(r, n->list, n->n, &n->hidden);
    if (r->out == r->main_out && !r->status) note_generation(r, first); /* inside a capture its place is unknown */
}

static void exec_kind(struct render *r, const struct node *n)
{
    switch (n->kind) {
    case N_DATA: tsb_add(r->out, n->s.ptr, n->s.len, ORG_TEMPLATE); return;
    case N_PRINT: tv_write_str(r->out, eval(r, n->a)); return;
    case N_IF: exec_if(r, n); return;
    case N_FOR: exec_for(r, n, eval(r, n->b), 0); return;
    case N_SET: assign(r, n->a, eval(r, n->b)); return;
    case N_SET_BLOCK: exec_set_block(r, n); return;
    case N_MACRO: exec_macro(r, n); return;
    case N_CALL_BLOCK: exec_call_block(r, n); return;
    case N_FILTER_BLOCK:
        tv_write_str(r->out, eval_filter(r, n->a, exec_capture(r, n->list, n->n, &n->hidden)));
        return;
    case N_WITH: exec_with(r, n); return;
    case N_BLOCK: exec_block(r, n); return;
    case N_GENERATION: exec_generation(r, n); return;
    case N_BREAK: r->flow = FLOW_BREAK; return;
    case N_CONTINUE: r->flow = FLOW_CONTINUE; return;
    default: render_fail(r, MB_INTERNAL, "unknown kind of tag %d", n->kind);
    }
}

static void exec(struct render *r, const struct node *n)
{
    if (r->status || !render_step(r, 1) || !render_enter(r)) return;
    r->line = n->line;
    exec_kind(r, n);
    render_leave(r);
}
