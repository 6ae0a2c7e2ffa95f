/* methods_obj.c: methods of everything but str, and the search by type. Methods that would change a list or dict are
 * refused earlier (access.c). */
#include <math.h>
#include <string.h>

#include "chat/template/tmpl_rt.h"

#define M(f) static struct tv f(struct render *r, struct tv self, struct tv *arg)

static struct tv view_of(struct render *r, struct tv dict, enum view_kind kind)
{
    struct tview *v = render_alloc(r, 1, sizeof *v);
    if (!v) return tv_undef(NULL);
    *v = (struct tview){ dict, kind };
    return (struct tv){ .type = TV_VIEW, .org = dict.org, .u.view = v };
}

M(m_keys) { (void)arg; return view_of(r, self, VIEW_KEYS); }
M(m_values) { (void)arg; return view_of(r, self, VIEW_VALUES); }
M(m_items) { (void)arg; return view_of(r, self, VIEW_ITEMS); }

M(m_get)
{
    struct tv out;
    if (!tv_hashable(arg[0])) return render_type_error(r, "unhashable type: '%s'", tv_type_name(arg[0]));
    if (tv_dict_get(r, self, arg[0], &out)) return out;
    return arg[1].type == TV_ABSENT ? tv_none() : arg[1];
}

M(m_copy_dict)
{
    struct tdict *d = tv_dict(r, self);
    struct tv out = tv_dict_new(r, self.org);
    (void)arg;
    for (size_t i = 0; i < d->n && render_step(r, 1); i++) tv_dict_set(r, out, d->ents[i].key, d->ents[i].val);
    return out;
}

M(m_count)
{
    struct tlist *l = tv_iter(r, self);
    int64_t n = 0;
    for (size_t i = 0; i < l->n && !r->status; i++) n += tv_eq(r, l->items[i], arg[0]);
    return tv_int(n);
}

M(m_index)
{
    struct tlist *l = tv_iter(r, self);
    size_t n = l->n;
    int64_t first = arg_int(r, arg[1], 0), end = arg_int(r, arg[2], (int64_t)n);
    if (first < 0) first = first + (int64_t)n < 0 ? 0 : first + (int64_t)n;
    if (end < 0) end += (int64_t)n;
    for (int64_t i = first; i < end && i < (int64_t)n && !r->status; i++)
        if (tv_eq(r, l->items[i], arg[0])) return tv_int(i);
    return render_type_error(r, "the value is not in the list");
}

M(m_copy_list)
{
    (void)arg;
    return tv_slice(r, self, tv_none(), tv_none(), tv_none());
}

M(m_is_integer)
{
    (void)r;
    (void)arg;
    return tv_bool(isfinite(self.u.f) && self.u.f == floor(self.u.f));
}

M(m_bit_length)
{
    int64_t v = tv_as_int(self), n = 0;
    (void)r;
    (void)arg;
    for (uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v; u; u >>= 1) n++;
    return tv_int(n);
}

M(m_cycler_next)
{
    struct tcycler *c = self.u.cycler;
    struct tv v = c->items->items[c->pos];
    (void)r;
    (void)arg;
    c->pos = (c->pos + 1) % c->items->n;
    return v;
}

M(m_cycler_reset)
{
    (void)r;
    (void)arg;
    self.u.cycler->pos = 0;
    return tv_none();
}

static struct tv m_loop_cycle(struct render *r, struct tv self, const struct func_call *c)
{
    if (!c->n_args || c->n_kw) return render_type_error(r, "no items for cycling given");
    return c->args[self.u.loop->index0 % c->n_args];
}

static struct tv m_loop_changed(struct render *r, struct tv self, const struct func_call *c)
{
    struct tloop *l = self.u.loop;
    struct tv now = tv_list_new(r, TV_TUPLE, c->n_args, ORG_TEMPLATE);
    if (r->status || c->n_kw) return render_type_error(r, "changed() takes no keyword arguments");
    if (c->n_args) memcpy(now.u.list->items, c->args, c->n_args * sizeof *c->args);
    if (l->changed.type != TV_ABSENT && tv_eq(r, l->changed, now)) return tv_bool(false);
    l->changed = now;
    return tv_bool(true);
}

static const struct func_row dict_methods[] = {
    { "items", "", m_items, NULL }, { "keys", "", m_keys, NULL }, { "values", "", m_values, NULL },
    { "get", "/ *key default", m_get, NULL }, { "copy", "", m_copy_dict, NULL }, { NULL, NULL, NULL, NULL } };
static const struct func_row list_methods[] = {
    { "count", "/ *value", m_count, NULL }, { "index", "/ *value start stop", m_index, NULL },
    { "copy", "", m_copy_list, NULL }, { NULL, NULL, NULL, NULL } };
static const struct func_row float_methods[] = { { "is_integer", "", m_is_integer, NULL }, { NULL, NULL, NULL, NULL } };
static const struct func_row int_methods[] = { { "bit_length", "", m_bit_length, NULL }, { NULL, NULL, NULL, NULL } };
static const struct func_row cycler_methods[] = {
    { "next", "", m_cycler_next, NULL }, { "reset", "", m_cycler_reset, NULL }, { NULL, NULL, NULL, NULL } };
static const struct func_row loop_methods[] = {
    { "cycle", NULL, NULL, m_loop_cycle }, { "changed", NULL, NULL, m_loop_changed }, { NULL, NULL, NULL, NULL } };

const struct func_row *method_find(struct tv obj, struct str name)
{
    const struct func_row *table;
    switch (obj.type) {
    case TV_STR: table = str_methods; break;
    case TV_DICT: table = dict_methods; break;
    case TV_LIST: table = list_methods; break;
    case TV_TUPLE: case TV_RANGE: table = list_methods; break;
    case TV_FLOAT: table = float_methods; break;
    case TV_INT: case TV_BOOL: table = int_methods; break;
    case TV_CYCLER: table = cycler_methods; break;
    case TV_LOOP: table = loop_methods; break;
    default: return NULL;
    }
    for (; table->name; table++)
        if (str_eq(name, str_of(table->name)))
            return obj.type != TV_LIST && table->fn == m_copy_list ? NULL : table;
    return NULL;
}
