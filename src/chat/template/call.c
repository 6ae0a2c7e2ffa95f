/* call.c: calling things: rows of the tables (filters, tests, methods, globals) by their signature, macros and callers
 * by their parameters, recursive loops, joiners. Each nested macro or loop call counts against max_depth. */
#include <string.h>

#include "chat/template/tmpl_rt.h"

/* ---- rows ---- */

struct sig_reader { const char *p; };

/* The next parameter of a signature; false at its end. */
static bool sig_next(struct sig_reader *s, struct str *name, bool *required)
{
    while (*s->p == ' ' || *s->p == '/') s->p++;
    if (!*s->p) return false;
    *required = *s->p == '*';
    if (*required) s->p++;
    name->ptr = s->p;
    while (*s->p && *s->p != ' ') s->p++;
    name->len = (size_t)(s->p - name->ptr);
    return true;
}

static bool keyword_find(const struct func_call *c, struct str name, size_t *out)
{
    for (size_t i = 0; i < c->n_kw; i++)
        if (str_eq(c->kw_names[i], name)) { *out = i; return true; }
    return false;
}

static bool bind(struct render *r, const struct func_row *f, const struct func_call *c, struct tv arg[CALL_MAX_ARGS])
{
    struct sig_reader s = { f->sig };
    struct str name;
    bool required, positional_only = f->sig[0] == '/';
    size_t n = 0, n_used = 0, i_kw;
    while (sig_next(&s, &name, &required)) {
        bool by_name = !positional_only && keyword_find(c, name, &i_kw);
        if (by_name && n < c->n_args) {
            render_type_error(r, "%s() got multiple values for argument '%.*s'", f->name, (int)name.len, name.ptr);
            return false;
        }
        if (by_name) n_used++;
        arg[n] = by_name ? c->kw[i_kw] : n < c->n_args ? c->args[n] : tv_absent();
        if (required && arg[n].type == TV_ABSENT) {
            render_type_error(r, "%s() missing required argument '%.*s'", f->name, (int)name.len, name.ptr);
            return false;
        }
        n++;
    }
    if (c->n_args > n) {
        render_type_error(r, "%s() takes at most %zu arguments (%zu given)", f->name, n, c->n_args);
        return false;
    }
    if (n_used != c->n_kw) {
        render_type_error(r, "%s() got an unexpected keyword argument", f->name);
        return false;
    }
    for (; n < CALL_MAX_ARGS; n++) arg[n] = tv_absent();
    return true;
}

/* What reads a string is charged for its length, so that the ceiling of steps also bounds work on long texts. */
static bool charge(struct render *r, struct tv self, const struct func_call *c)
{
    uint64_t n = tv_is_str(self) ? self.u.s->len : 0;
    for (size_t i = 0; i < c->n_args; i++) n += tv_is_str(c->args[i]) ? c->args[i].u.s->len : 0;
    return render_step(r, 1 + n / 12);
}

struct tv func_call_row(struct render *r, const struct func_row *f, struct tv self, const struct func_call *c)
{
    struct tv arg[CALL_MAX_ARGS];
    if (r->status || !charge(r, self, c)) return tv_undef(NULL);
    if (f->raw) return f->raw(r, self, c);
    if (!bind(r, f, c, arg)) return tv_undef(NULL);
    struct tv v = f->fn(r, self, arg);
    return r->status ? tv_undef(NULL) : v;
}

int64_t arg_int(struct render *r, struct tv v, int64_t dflt)
{
    if (v.type == TV_ABSENT) return dflt;
    if (tv_is_int(v)) return tv_as_int(v);
    render_type_error(r, "'%s' object cannot be interpreted as an integer", tv_type_name(v));
    return dflt;
}

bool arg_bool(struct render *r, struct tv v, bool dflt) { return v.type == TV_ABSENT ? dflt : tv_truth(r, v); }

struct tv arg_str(struct render *r, struct tv v, const char *what)
{
    if (tv_is_str(v)) return v;
    render_type_error(r, "%s must be a string, not %s", what, tv_type_name(v));
    return tv_str(r, "", 0, ORG_TEMPLATE);
}

/* ---- macros ---- */

/* Positional and keyword arguments to parameters; *used counts the keywords that found one. */
static void bind_params(struct render *r, const struct signature *sig, const struct func_call *c, size_t *used)
{
    for (int i = 0; i < sig->n_params && !r->status; i++) {
        size_t i_kw;
        struct str name = r->t->names[sig->params[i]];
        struct tv v = tv_absent();
        if ((size_t)i < c->n_args) v = c->args[i];
        else if (keyword_find(c, name, &i_kw)) { v = c->kw[i_kw]; (*used)++; }
        if (v.type != TV_ABSENT) scope_set(r, r->scope, sig->params[i], v);
    }
    for (int i = 0; i < sig->n_params && !r->status; i++) {
        size_t i_kw;
        if ((size_t)i < c->n_args || keyword_find(c, r->t->names[sig->params[i]], &i_kw)) continue;
        struct str name = r->t->names[sig->params[i]];
        scope_set(r, r->scope, sig->params[i], (struct tv){ .type = TV_HIDDEN });
        const char *hint = sig->defaults[i] ? NULL : arena_printf(r->a, "parameter '%.*s' was not provided",
                                                                  (int)(name.len < 60 ? name.len : 60), name.ptr);
        struct tv v = sig->defaults[i] ? eval(r, sig->defaults[i]) : tv_undef(hint);
        scope_set(r, r->scope, sig->params[i], v);
    }
}

static bool is_param(const struct render *r, const struct signature *sig, size_t n_args, struct str name)
{
    for (size_t i = n_args; i < (size_t)sig->n_params; i++)
        if (str_eq(r->t->names[sig->params[i]], name)) return true;
    return false;
}

static void bind_specials(struct render *r, const struct signature *sig, const struct func_call *c, size_t used)
{
    size_t i_caller = 0;
    bool caller = sig->uses_caller && keyword_find(c, STR_LIT("caller"), &i_caller);
    if (sig->uses_caller) scope_set(r, r->scope, sig->id_caller, caller ? c->kw[i_caller] : tv_undef("No caller defined"));
    if (caller) used++;
    if (sig->uses_kwargs) {
        struct tv rest = tv_dict_new(r, ORG_TEMPLATE);
        for (size_t i = 0; i < c->n_kw && !r->status; i++)
            if (!is_param(r, sig, c->n_args, c->kw_names[i]) && !(caller && i == i_caller))
                tv_dict_set(r, rest, tv_str(r, c->kw_names[i].ptr, c->kw_names[i].len, ORG_TEMPLATE), c->kw[i]);
        scope_set(r, r->scope, sig->id_kwargs, rest);
    } else if (used != c->n_kw) {
        render_type_error(r, "macro takes no such keyword argument");
    }
    size_t n = (size_t)sig->n_params;
    if (sig->uses_varargs) {
        struct tv rest = tv_list_new(r, TV_TUPLE, c->n_args > n ? c->n_args - n : 0, ORG_TEMPLATE);
        if (r->status) return;
        for (size_t i = n; i < c->n_args; i++) rest.u.list->items[i - n] = c->args[i];
        scope_set(r, r->scope, sig->id_varargs, rest);
    } else if (c->n_args > n) {
        render_type_error(r, "macro takes not more than %zu argument(s)", n);
    }
}

static void macro_run(struct render *r, struct tmacro *m, const struct func_call *c)
{
    size_t used = 0;
    r->scope = scope_push(r, m->scope, &m->node->hidden);
    bind_params(r, m->node->sig, c, &used);
    if (!r->status) bind_specials(r, m->node->sig, c, used);
    exec_body(r, m->node->list, m->node->n);
}

struct tv macro_call(struct render *r, struct tmacro *m, const struct func_call *c)
{
    if (++r->depth > r->max_depth)
        return render_fail(r, MB_TOO_LARGE, "calls nested more than %d deep", r->max_depth);
    struct tscope *scope = r->scope;
    struct tsb b, *out = r->out;
    tsb_init(&b, r);
    r->out = &b;
    if (render_enter(r)) {
        macro_run(r, m, c);
        render_leave(r);
    }
    r->out = out;
    r->scope = scope;
    r->depth--;
    return tsb_take(&b);
}

static struct tv joiner_call(struct tjoiner *j)
{
    static struct tstr empty = { .ptr = "", .n_chars = 0 };
    if (j->used) return j->sep;
    j->used = true;
    return (struct tv){ .type = TV_STR, .u.s = &empty };
}

struct tv tv_call(struct render *r, struct tv callee, const struct func_call *c)
{
    if (r->status) return tv_undef(NULL);
    switch (callee.type) {
    case TV_FUNC: return func_call_row(r, callee.u.func, tv_none(), c);
    case TV_METHOD: return func_call_row(r, callee.u.method->func, callee.u.method->self, c);
    case TV_MACRO: return macro_call(r, callee.u.macro, c);
    case TV_LOOP: return loop_call(r, callee.u.loop, c);
    case TV_JOINER:
        if (c->n_args || c->n_kw) return render_type_error(r, "a joiner takes no arguments");
        return joiner_call(callee.u.joiner);
    case TV_UNDEF: return render_fail(r, MB_INVALID, "%s", callee.u.hint ? callee.u.hint : "a value is undefined");
    default: return render_type_error(r, "'%s' object is not callable", tv_type_name(callee));
    }
}
