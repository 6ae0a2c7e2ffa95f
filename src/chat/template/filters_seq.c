/* filters_seq.c: filters over sequences and mappings. What is a generator in jinja2 is a TV_ITER here: computed at
 * once, consumed once, always true, without length. */
#include <string.h>

#include "chat/template/tmpl_rt.h"

#define F(f) static struct tv f(struct render *r, struct tv self, struct tv *arg)

/* ---- attribute paths: "a.b.0" ---- */

static bool all_digits(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] < '0' || p[i] > '9') return false;
    return n > 0;
}

/* dflt ABSENT or NONE: none. */
static struct tv attr_path(struct render *r, struct tv item, struct tv path, struct tv dflt)
{
    if (path.type == TV_NONE || path.type == TV_ABSENT) return item;
    if (!tv_is_str(path)) {
        item = tv_getitem(r, item, path);
        return item.type == TV_UNDEF && dflt.type != TV_ABSENT && dflt.type != TV_NONE ? dflt : item;
    }
    for (size_t at = 0; at <= path.u.s->len && !r->status;) {
        const char *p = path.u.s->ptr + at, *dot = memchr(p, '.', path.u.s->len - at);
        size_t n = dot ? (size_t)(dot - p) : path.u.s->len - at;
        bool ok = false;
        struct tv part = all_digits(p, n) ? tv_int_parse(r, p, n, 10, &ok) : tv_none();
        item = tv_getitem(r, item, ok ? part : tv_str(r, p, n, ORG_TEMPLATE));
        if (item.type == TV_UNDEF && dflt.type != TV_ABSENT && dflt.type != TV_NONE) item = dflt;
        at += n + 1;
    }
    return item;
}

static struct tv fold_case(struct render *r, struct tv v, bool case_sensitive)
{
    return tv_is_str(v) && !case_sensitive ? tv_str_lower(r, v) : v;
}

/* A copy that may be reordered. */
static struct tv list_copy(struct render *r, struct tv v, enum tv_type type)
{
    struct tlist *l = tv_iter(r, v);
    struct tv out = tv_list_new(r, type, l->n, v.org);
    if (!r->status && l->n) memcpy(out.u.list->items, l->items, l->n * sizeof *l->items);
    return out;
}

static struct tv iter_of(struct render *r, struct tv list)
{
    return r->status ? tv_undef(NULL) : tv_iter_of(r, list.u.list, list.org);
}

/* ---- ends, lengths ---- */

F(f_length)
{
    size_t n;
    (void)arg;
    if (!tv_len(r, self, &n)) return render_type_error(r, "object of type '%s' has no len()", tv_type_name(self));
    return tv_int((int64_t)n);
}

F(f_first)
{
    (void)arg;
    if (self.type == TV_ITER) {
        struct titer *it = self.u.iter;
        return it->pos < it->list->n ? it->list->items[it->pos++] : tv_undef("No first item, sequence was empty.");
    }
    struct tlist *l = tv_iter(r, self);
    return l->n ? l->items[0] : tv_undef("No first item, sequence was empty.");
}

static bool reversible(struct tv v) { return tv_is_iterable(v) && v.type != TV_ITER && v.type != TV_LOOP; }

F(f_last)
{
    (void)arg;
    if (!reversible(self)) return render_type_error(r, "'%s' object is not reversible", tv_type_name(self));
    struct tlist *l = tv_iter(r, self);
    return l->n ? l->items[l->n - 1] : tv_undef("No last item, sequence was empty.");
}

F(f_reverse)
{
    (void)arg;
    if (tv_is_str(self)) return tv_slice(r, self, tv_none(), tv_none(), tv_int(-1));
    if (!tv_is_iterable(self)) return render_type_error(r, "argument must be iterable");
    struct tv out = list_copy(r, self, TV_LIST);
    for (size_t i = 0; !r->status && i < out.u.list->n / 2; i++) {
        struct tv t = out.u.list->items[i];
        out.u.list->items[i] = out.u.list->items[out.u.list->n - 1 - i];
        out.u.list->items[out.u.list->n - 1 - i] = t;
    }
    return self.type == TV_ITER ? out : iter_of(r, out);
}

F(f_list) { (void)arg; return list_copy(r, self, TV_LIST); }

F(f_items)
{
    (void)arg;
    struct tview view = { self, VIEW_ITEMS };
    if (self.type != TV_UNDEF && self.type != TV_DICT)
        return render_type_error(r, "Can only get item pairs from a mapping.");
    if (self.type == TV_UNDEF) return iter_of(r, tv_list_new(r, TV_LIST, 0, 0));
    return iter_of(r, list_copy(r, (struct tv){ .type = TV_VIEW, .org = self.org, .u.view = &view }, TV_LIST));
}

F(f_join)
{
    struct tsb b;
    struct tv sep = arg[0].type == TV_ABSENT ? tv_str(r, "", 0, ORG_TEMPLATE) : tv_to_str(r, arg[0]);
    struct tlist *l = tv_iter(r, self);
    tsb_init(&b, r);
    for (size_t i = 0; i < l->n && render_step(r, 1); i++) {
        if (i) tsb_add_str(&b, sep);
        tv_write_str(&b, attr_path(r, l->items[i], arg[1], tv_absent()));
    }
    return tsb_take(&b);
}

/* ---- order ---- */

/* Sort keys: one attribute, or several as a list ("a,b"). */
static struct tv sort_key(struct render *r, struct tv item, struct tv path, bool case_sensitive)
{
    if (!tv_is_str(path)) return fold_case(r, attr_path(r, item, path, tv_absent()), case_sensitive);
    size_t n = 1, i = 0, at = 0;
    for (size_t k = 0; k < path.u.s->len; k++) n += path.u.s->ptr[k] == ',';
    struct tv out = tv_list_new(r, TV_LIST, n, ORG_TEMPLATE);
    for (; i < n && !r->status; i++) {
        const char *p = path.u.s->ptr + at, *comma = memchr(p, ',', path.u.s->len - at);
        size_t len = comma ? (size_t)(comma - p) : path.u.s->len - at;
        struct tv part = tv_str(r, p, len, ORG_TEMPLATE);
        out.u.list->items[i] = fold_case(r, attr_path(r, item, part, tv_absent()), case_sensitive);
        at += len + 1;
    }
    return out;
}

static struct tv sorted(struct render *r, struct tv v, struct tv path, bool case_sensitive, bool reverse, bool multi)
{
    struct tv out = list_copy(r, v, TV_LIST);
    size_t n = r->status ? 0 : out.u.list->n;
    struct tv *keys = render_alloc(r, n, sizeof *keys);
    for (size_t i = 0; i < n && !r->status; i++)
        keys[i] = multi ? sort_key(r, out.u.list->items[i], path, case_sensitive)
                        : fold_case(r, attr_path(r, out.u.list->items[i], path, tv_absent()), case_sensitive);
    if (!r->status) tv_sort(r, keys, out.u.list->items, n, reverse);
    return out;
}

F(f_sort) { return sorted(r, self, arg[2], arg_bool(r, arg[1], false), arg_bool(r, arg[0], false), true); }

F(f_dictsort)
{
    struct tview view = { self, VIEW_ITEMS };
    bool by_value = tv_str_is(arg[1], "value");
    if (!by_value && arg[1].type != TV_ABSENT && !tv_str_is(arg[1], "key"))
        return render_type_error(r, "You can only sort by either \"key\" or \"value\"");
    if (self.type == TV_UNDEF) return tv_getattr(r, self, STR_LIT("items"));
    if (self.type != TV_DICT) return render_type_error(r, "'%s' object has no attribute 'items'", tv_type_name(self));
    struct tv items = { .type = TV_VIEW, .org = self.org, .u.view = &view };
    return sorted(r, items, tv_int(by_value), arg_bool(r, arg[0], false), arg_bool(r, arg[2], false), false);
}

static struct tv extreme(struct render *r, struct tv self, struct tv *arg, int op)
{
    struct tlist *l = tv_iter(r, self);
    bool case_sensitive = arg_bool(r, arg[0], false);
    if (!l->n) return tv_undef("No aggregated item, sequence was empty.");
    struct tv best = l->items[0], key = fold_case(r, attr_path(r, best, arg[1], tv_absent()), case_sensitive);
    for (size_t i = 1; i < l->n && !r->status; i++) {
        struct tv k = fold_case(r, attr_path(r, l->items[i], arg[1], tv_absent()), case_sensitive);
        if (tv_order(r, op, k, key)) { best = l->items[i]; key = k; }
    }
    return best;
}

F(f_min) { return extreme(r, self, arg, T_LT); }
F(f_max) { return extreme(r, self, arg, T_GT); }

F(f_unique)
{
    struct tlist *l = tv_iter(r, self);
    struct tv out = tv_list_new(r, TV_LIST, l->n, self.org), seen = tv_dict_new(r, 0), dummy;
    size_t n = 0;
    for (size_t i = 0; i < l->n && !r->status; i++) {
        struct tv key = fold_case(r, attr_path(r, l->items[i], arg[1], tv_absent()), arg_bool(r, arg[0], false));
        if (r->status) break;
        if (!tv_hashable(key)) return render_type_error(r, "unhashable type: '%s'", tv_type_name(key));
        if (tv_dict_get(r, seen, key, &dummy)) continue;
        tv_dict_set(r, seen, key, tv_none());
        out.u.list->items[n++] = l->items[i];
    }
    if (r->status) return tv_undef(NULL);
    out.u.list->n = n;
    return iter_of(r, out);
}

F(f_sum)
{
    struct tlist *l = tv_iter(r, self);
    struct tv total = arg[1].type == TV_ABSENT ? tv_int(0) : arg[1];
    if (tv_is_str(total)) return render_type_error(r, "sum() can't sum strings");
    for (size_t i = 0; i < l->n && !r->status; i++)
        total = tv_binary(r, T_ADD, total, attr_path(r, l->items[i], arg[0], tv_absent()));
    return total;
}

/* ---- groups ---- */

static struct tv sub_list(struct render *r, struct tlist *l, size_t first, size_t end)
{
    struct tv out = tv_list_new(r, TV_LIST, end - first, ORG_TEMPLATE);
    if (!r->status && end > first) memcpy(out.u.list->items, l->items + first, (end - first) * sizeof *l->items);
    return out;
}

F(f_groupby)
{
    bool case_sensitive = arg_bool(r, arg[2], false);
    struct tv items = list_copy(r, self, TV_LIST);
    size_t n = r->status ? 0 : items.u.list->n, n_out = 0;
    struct tv *keys = render_alloc(r, n, sizeof *keys);
    for (size_t i = 0; i < n && !r->status; i++)
        keys[i] = fold_case(r, attr_path(r, items.u.list->items[i], arg[0], arg[1]), case_sensitive);
    if (!r->status) tv_sort(r, keys, items.u.list->items, n, false);
    struct tv out = tv_list_new(r, TV_LIST, n, self.org);
    for (size_t i = 0; i < n && !r->status;) {
        struct tv first = items.u.list->items[i], raw = attr_path(r, first, arg[0], arg[1]);
        struct tv key = fold_case(r, raw, case_sensitive);
        size_t j = i + 1;
        while (j < n && !r->status &&
               tv_eq(r, fold_case(r, attr_path(r, items.u.list->items[j], arg[0], arg[1]), case_sensitive), key)) j++;
        struct tv pair = tv_pair(r, raw, sub_list(r, items.u.list, i, j));
        if (r->status) break;
        pair.u.list->group = true;
        out.u.list->items[n_out++] = pair;
        i = j;
    }
    if (r->status) return tv_undef(NULL);
    out.u.list->n = n_out;
    return out;
}

static void push_fill(struct render *r, struct tv *list, struct tv fill, size_t times)
{
    size_t n = list->u.list->n;
    struct tv grown = render_step(r, times) ? tv_list_new(r, TV_LIST, n + times, ORG_TEMPLATE) : tv_undef(NULL);
    if (r->status) return;
    if (n) memcpy(grown.u.list->items, list->u.list->items, n * sizeof fill);
    for (size_t i = 0; i < times; i++) grown.u.list->items[n + i] = fill;
    *list = grown;
}

F(f_batch)
{
    struct tlist *l = tv_iter(r, self);
    int64_t size = arg_int(r, arg[0], 1);
    bool fill = arg[1].type != TV_ABSENT && arg[1].type != TV_NONE;
    if (size <= 0) size = l->n ? (int64_t)l->n : 1;
    size_t k = (size_t)size, n = l->n / k + (l->n % k != 0);
    struct tv out = tv_list_new(r, TV_LIST, n, self.org);
    for (size_t i = 0; i < n && !r->status; i++) {
        size_t end = (i + 1) * k < l->n ? (i + 1) * k : l->n;
        struct tv part = sub_list(r, l, i * k, end);
        if (fill && end - i * k < k) push_fill(r, &part, arg[1], k - (end - i * k));
        if (!r->status) out.u.list->items[i] = part;
    }
    return iter_of(r, out);
}

F(f_slice)
{
    struct tlist *l = tv_iter(r, self);
    int64_t slices = arg_int(r, arg[0], 1);
    bool fill = arg[1].type != TV_ABSENT && arg[1].type != TV_NONE;
    if (slices == 0) return render_type_error(r, "integer division or modulo by zero");
    size_t n = slices > 0 ? (size_t)slices : 0, at = 0;
    struct tv out = render_step(r, n) ? tv_list_new(r, TV_LIST, n, self.org) : tv_undef(NULL);
    for (size_t i = 0; i < n && !r->status; i++) {
        bool extra = i < l->n % n;
        size_t end = at + l->n / n + extra;
        struct tv part = sub_list(r, l, at, end);
        if (fill && !extra) push_fill(r, &part, arg[1], 1);
        if (!r->status) out.u.list->items[i] = part;
        at = end;
    }
    return iter_of(r, out);
}

/* ---- map, select, reject ---- */

static struct func_call rest_args(const struct func_call *c, size_t used)
{
    struct func_call rest = *c;
    rest.args = c->args + used;
    rest.n_args = c->n_args - used;
    return rest;
}

static bool map_attribute(struct render *r, const struct func_call *c, struct tv *path, struct tv *dflt)
{
    bool found = false;
    *dflt = tv_absent();
    if (c->n_args) return false;
    for (size_t i = 0; i < c->n_kw; i++) {
        if (str_eq(c->kw_names[i], STR_LIT("attribute"))) { *path = c->kw[i]; found = true; }
        else if (str_eq(c->kw_names[i], STR_LIT("default"))) *dflt = c->kw[i];
        else if (found) render_type_error(r, "Unexpected keyword argument of map");
    }
    return found;
}

static struct tv f_map(struct render *r, struct tv self, const struct func_call *c)
{
    struct tv path = tv_none(), dflt;
    if (!tv_truth(r, self)) return iter_of(r, tv_list_new(r, TV_LIST, 0, 0));
    bool by_attr = map_attribute(r, c, &path, &dflt);
    if (!by_attr && !c->n_args) return render_type_error(r, "map requires a filter argument");
    const struct filter_row *f = NULL;
    if (!by_attr && tv_is_str(c->args[0])) f = filter_find((struct str){ c->args[0].u.s->ptr, c->args[0].u.s->len });
    struct func_call rest = by_attr ? *c : rest_args(c, 1);
    struct tlist *l = tv_iter(r, self);
    if (!by_attr && !f && l->n) return render_type_error(r, "map: no filter of this name");
    struct tv out = tv_list_new(r, TV_LIST, l->n, self.org);
    for (size_t i = 0; i < l->n && render_step(r, 1) && render_enter(r); i++) {
        struct tv v = by_attr ? attr_path(r, l->items[i], path, dflt) : func_call_row(r, &f->f, l->items[i], &rest);
        out.u.list->items[i] = v;
        render_leave(r);
    }
    return iter_of(r, out);
}

static struct tv choose(struct render *r, struct tv self, const struct func_call *c, bool by_attr, bool want)
{
    size_t off = by_attr ? 1 : 0, n = 0;
    if (!tv_truth(r, self)) return iter_of(r, tv_list_new(r, TV_LIST, 0, 0));
    if (c->n_args < off) return render_type_error(r, "Missing parameter for attribute name");
    const struct test_row *t = NULL;
    if (c->n_args > off && tv_is_str(c->args[off]))
        t = test_find((struct str){ c->args[off].u.s->ptr, c->args[off].u.s->len });
    struct func_call rest = c->n_args > off ? rest_args(c, off + 1) : *c;
    struct tlist *l = tv_iter(r, self);
    if (c->n_args > off && !t && l->n) return render_type_error(r, "select: no test of this name");
    struct tv out = tv_list_new(r, TV_LIST, l->n, self.org);
    for (size_t i = 0; i < l->n && render_step(r, 1) && render_enter(r); i++) {
        struct tv v = by_attr ? attr_path(r, l->items[i], c->args[0], tv_absent()) : l->items[i];
        bool ok = tv_truth(r, t && !r->status ? func_call_row(r, &t->f, v, &rest) : v);
        if (ok == want) out.u.list->items[n++] = l->items[i];
        render_leave(r);
    }
    if (!r->status) out.u.list->n = n;
    return iter_of(r, out);
}

static struct tv f_select(struct render *r, struct tv v, const struct func_call *c)
{
    return choose(r, v, c, false, true);
}

static struct tv f_reject(struct render *r, struct tv v, const struct func_call *c)
{
    return choose(r, v, c, false, false);
}

static struct tv f_selectattr(struct render *r, struct tv v, const struct func_call *c)
{
    return choose(r, v, c, true, true);
}

static struct tv f_rejectattr(struct render *r, struct tv v, const struct func_call *c)
{
    return choose(r, v, c, true, false);
}


const struct filter_row filters_seq[] = {
    { { "batch", "*linecount fill_with", f_batch, NULL } },
    { { "count", "", f_length, NULL } },
    { { "dictsort", "case_sensitive by reverse", f_dictsort, NULL } },
    { { "first", "", f_first, NULL } },
    { { "groupby", "*attribute default case_sensitive", f_groupby, NULL } },
    { { "items", "", f_items, NULL } },
    { { "join", "d attribute", f_join, NULL } },
    { { "last", "", f_last, NULL } },
    { { "length", "", f_length, NULL } },
    { { "list", "", f_list, NULL } },
    { { "map", NULL, NULL, f_map } },
    { { "max", "case_sensitive attribute", f_max, NULL } },
    { { "min", "case_sensitive attribute", f_min, NULL } },
    { { "reject", NULL, NULL, f_reject } },
    { { "rejectattr", NULL, NULL, f_rejectattr } },
    { { "reverse", "", f_reverse, NULL } },
    { { "select", NULL, NULL, f_select } },
    { { "selectattr", NULL, NULL, f_selectattr } },
    { { "slice", "*slices fill_with", f_slice, NULL } },
    { { "sort", "reverse case_sensitive attribute", f_sort, NULL } },
    { { "sum", "attribute start", f_sum, NULL } },
    { { "unique", "case_sensitive attribute", f_unique, NULL } },
    { { NULL, NULL, NULL, NULL } },
};
