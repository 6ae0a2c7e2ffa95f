/* globals.c: functions that are there without an object: range, dict, namespace, cycler, joiner, raise_exception,
 * strftime_now. lipsum exists and refuses: no prompt should contain random filler. */
#include <string.h>

#include "chat/template/tmpl_rt.h"

#define MAX_RANGE 100000 /* the sandbox's */

#define G(f) static struct tv f(struct render *r, struct tv self, struct tv *arg)

G(g_range)
{
    struct trange *g = render_alloc(r, 1, sizeof *g);
    (void)self;
    if (!g) return tv_undef(NULL);
    bool one = arg[1].type == TV_ABSENT;
    *g = (struct trange){ one ? 0 : arg_int(r, arg[0], 0), arg_int(r, arg[one ? 0 : 1], 0), arg_int(r, arg[2], 1) };
    if (r->status) return tv_undef(NULL);
    if (g->step == 0) return render_type_error(r, "range() arg 3 must not be zero");
    uint64_t n = (uint64_t)tv_range_len(g);
    if (n > MAX_RANGE) return render_type_error(r, "Range too big. The sandbox blocks ranges larger than %d.", MAX_RANGE);
    return (struct tv){ .type = TV_RANGE, .u.range = g };
}

static void copy_entries(struct render *r, struct tv to, struct tv from)
{
    struct tdict *d = tv_dict(r, from);
    for (size_t i = 0; i < d->n && render_step(r, 1); i++) tv_dict_set(r, to, d->ents[i].key, d->ents[i].val);
}

static void copy_pairs(struct render *r, struct tv to, struct tv pairs)
{
    struct tlist *l = tv_iter(r, pairs);
    for (size_t i = 0; i < l->n && !r->status; i++) {
        struct tlist *pair = tv_iter(r, l->items[i]);
        if (r->status) return;
        if (pair->n != 2 || !tv_hashable(pair->items[0])) {
            render_type_error(r, "dictionary update sequence element %zu is no pair with a hashable key", i);
            return;
        }
        tv_dict_set(r, to, pair->items[0], pair->items[1]);
    }
}

static struct tv g_dict(struct render *r, struct tv self, const struct func_call *c)
{
    struct tv d = tv_dict_new(r, ORG_TEMPLATE);
    (void)self;
    if (c->n_args > 1) return render_type_error(r, "dict expected at most 1 argument, got %zu", c->n_args);
    if (c->n_args && c->args[0].type == TV_DICT) copy_entries(r, d, c->args[0]);
    else if (c->n_args) copy_pairs(r, d, c->args[0]);
    for (size_t i = 0; i < c->n_kw && !r->status; i++)
        tv_dict_set(r, d, tv_str(r, c->kw_names[i].ptr, c->kw_names[i].len, ORG_TEMPLATE), c->kw[i]);
    return r->status ? tv_undef(NULL) : d;
}

static struct tv g_namespace(struct render *r, struct tv self, const struct func_call *c)
{
    struct tv d = g_dict(r, self, c);
    if (d.type == TV_DICT) d.type = TV_NS;
    return d;
}

static struct tv g_cycler(struct render *r, struct tv self, const struct func_call *c)
{
    struct tcycler *cy = render_alloc(r, 1, sizeof *cy);
    struct tv items = tv_list_new(r, TV_TUPLE, c->n_args, ORG_TEMPLATE);
    (void)self;
    if (r->status || !cy) return tv_undef(NULL);
    if (!c->n_args || c->n_kw) return render_type_error(r, "at least one item has to be provided");
    memcpy(items.u.list->items, c->args, c->n_args * sizeof *c->args);
    cy->items = items.u.list;
    return (struct tv){ .type = TV_CYCLER, .u.cycler = cy };
}

G(g_joiner)
{
    struct tjoiner *j = render_alloc(r, 1, sizeof *j);
    (void)self;
    if (!j) return tv_undef(NULL);
    j->sep = arg[0].type == TV_ABSENT ? tv_str(r, ", ", 2, ORG_TEMPLATE) : arg[0];
    return (struct tv){ .type = TV_JOINER, .u.joiner = j };
}

G(g_raise)
{
    (void)self;
    struct tv msg = tv_to_str(r, arg[0]);
    if (!tv_is_str(msg)) return render_fail(r, MB_TEMPLATE, "the chat template raised an exception");
    return render_fail(r, MB_TEMPLATE, "%.*s", (int)(msg.u.s->len < 380 ? msg.u.s->len : 380), msg.u.s->ptr);
}

G(g_strftime_now)
{
    (void)self;
    struct tv fmt = arg_str(r, arg[0], "strftime_now's format");
    return r->status ? tv_undef(NULL) : strftime_value(r, fmt, r->in->now_unix_s);
}

static struct tv g_lipsum(struct render *r, struct tv self, const struct func_call *c)
{
    (void)self;
    (void)c;
    return render_type_error(r, "lipsum is not supported: a prompt must come out the same each time");
}

static const struct func_row rows[] = {
    { "range", "/ *start stop step", g_range, NULL }, { "dict", NULL, NULL, g_dict },
    { "namespace", NULL, NULL, g_namespace }, { "cycler", NULL, NULL, g_cycler },
    { "joiner", "sep", g_joiner, NULL }, { "lipsum", NULL, NULL, g_lipsum }, { "raise_exception", "*message", g_raise, NULL },
    { "strftime_now", "*format", g_strftime_now, NULL }, { NULL, NULL, NULL, NULL },
};

const struct func_row *global_find(struct str name)
{
    for (const struct func_row *f = rows; f->name; f++)
        if (str_eq(name, str_of(f->name))) return f;
    return NULL;
}
