/* access.c: x.name, x[key], x[a:b:c], in the order the sandbox of jinja2 tries them.
 *
 * x.name asks for an attribute (a method of the type) first and an entry of the dict second, x['name'] the other way
 * round. Names that begin with an underscore and methods that change a list or dict are refused: the result is an
 * undefined value that prints as nothing and cannot be called. A look-up in an undefined value is an error.
 */
#include <string.h>

#include "chat/template/tmpl_rt.h"

static struct tv no_attribute(struct render *r, struct tv obj, struct str name)
{
    const char *hint = arena_printf(r->a, "'%s object' has no attribute '%.*s'", tv_type_name(obj),
                                    (int)(name.len < 80 ? name.len : 80), name.ptr);
    return tv_undef(hint);
}

static struct tv unsafe(struct render *r, struct tv obj, struct str name)
{
    const char *hint = arena_printf(r->a, "access to attribute '%.*s' of '%s' object is unsafe",
                                    (int)(name.len < 80 ? name.len : 80), name.ptr, tv_type_name(obj));
    return tv_undef(hint);
}

static bool is_one_of(struct str name, const char *const *list)
{
    for (; *list; list++)
        if (str_eq(name, str_of(*list))) return true;
    return false;
}

static bool changes_object(struct tv obj, struct str name)
{
    static const char *const list_names[] = { "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove",
                                              NULL };
    static const char *const dict_names[] = { "clear", "pop", "popitem", "setdefault", "update", NULL };
    if (obj.type == TV_LIST) return is_one_of(name, list_names);
    return obj.type == TV_DICT && is_one_of(name, dict_names);
}

static struct tv loop_neighbour(struct render *r, struct tloop *l, bool next)
{
    if (next) return loop_has(r, l, l->index0 + 1) ? l->items->items[l->index0 + 1] : tv_undef("there is no next item");
    return l->index0 ? l->items->items[l->index0 - 1] : tv_undef("there is no previous item");
}

static bool loop_attr(struct render *r, struct tloop *l, struct str name, struct tv *out)
{
    int64_t i = (int64_t)l->index0;
    if (str_eq(name, STR_LIT("index"))) *out = tv_int(i + 1);
    else if (str_eq(name, STR_LIT("index0"))) *out = tv_int(i);
    else if (str_eq(name, STR_LIT("first"))) *out = tv_bool(i == 0);
    else if (str_eq(name, STR_LIT("last"))) *out = tv_bool(!loop_has(r, l, l->index0 + 1));
    else if (str_eq(name, STR_LIT("depth"))) *out = tv_int((int64_t)l->depth0 + 1);
    else if (str_eq(name, STR_LIT("depth0"))) *out = tv_int(l->depth0);
    else if (str_eq(name, STR_LIT("previtem"))) *out = loop_neighbour(r, l, false);
    else if (str_eq(name, STR_LIT("nextitem"))) *out = loop_neighbour(r, l, true);
    else {
        bool length = str_eq(name, STR_LIT("length")), rev = str_eq(name, STR_LIT("revindex"));
        if (!length && !rev && !str_eq(name, STR_LIT("revindex0"))) return false;
        loop_has(r, l, SIZE_MAX);
        int64_t n = (int64_t)l->items->n;
        *out = tv_int(length ? n : rev ? n - i : n - i - 1);
    }
    return true;
}

static bool special_attr(struct render *r, struct tv obj, struct str name, struct tv *out)
{
    switch (obj.type) {
    case TV_NS: return tv_dict_get_str(r, obj, name.ptr, name.len, out);
    case TV_LOOP: return loop_attr(r, obj.u.loop, name, out);
    case TV_TUPLE:
        if (!obj.u.list->group) return false;
        if (str_eq(name, STR_LIT("grouper"))) *out = obj.u.list->items[0];
        else if (str_eq(name, STR_LIT("list"))) *out = obj.u.list->items[1];
        else return false;
        return true;
    case TV_INT: case TV_BOOL: case TV_FLOAT:
        if (str_eq(name, STR_LIT("real"))) *out = tv_negate(r, obj, false);
        else if (str_eq(name, STR_LIT("imag"))) *out = obj.type == TV_FLOAT ? tv_float(0) : tv_int(0);
        else return false;
        return true;
    case TV_CYCLER:
        if (!str_eq(name, STR_LIT("current"))) return false;
        *out = obj.u.cycler->items->items[obj.u.cycler->pos];
        return true;
    case TV_MACRO:
        if (!str_eq(name, STR_LIT("name")) || !obj.u.macro->name) return false;
        *out = tv_str(r, obj.u.macro->name, strlen(obj.u.macro->name), ORG_TEMPLATE);
        return true;
    default: return false;
    }
}

/* An attribute of the object itself, not an entry of it. */
static bool python_attr(struct render *r, struct tv obj, struct str name, struct tv *out)
{
    if (special_attr(r, obj, name, out)) return true;
    if (changes_object(obj, name)) {
        *out = unsafe(r, obj, name);
        return true;
    }
    const struct func_row *f = method_find(obj, name);
    if (!f) return false;
    struct tmethod *m = render_alloc(r, 1, sizeof *m);
    if (!m) { *out = tv_undef(NULL); return true; }
    m->self = obj;
    m->func = f;
    *out = (struct tv){ .type = TV_METHOD, .org = obj.org, .u.method = m };
    return true;
}

/* What every Python object has: refused, but no error. Other attributes of an undefined value are errors. */
static bool is_object_attr(struct str name)
{
    static const char *const names[] = { "__class__", "__doc__", "__module__", "__init__", "__new__", "__repr__",
        "__str__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__len__", "__iter__",
        "__bool__", "__getattr__", "__getattribute__", "__getitem__", "__call__", "__add__", "__dir__", "__format__",
        "__setattr__", "__delattr__", "__reduce__", "__reduce_ex__", "__sizeof__", "__subclasshook__",
        "__init_subclass__", "__slots__", NULL };
    return is_one_of(name, names);
}

struct tv tv_getattr(struct render *r, struct tv obj, struct str name)
{
    struct tv out;
    if (r->status) return tv_undef(NULL);
    if (obj.type == TV_UNDEF) {
        if (is_object_attr(name)) return unsafe(r, obj, name);
        return render_fail(r, MB_INVALID, "%s", obj.u.hint ? obj.u.hint : "a value is undefined");
    }
    if (python_attr(r, obj, name, &out)) return out;
    if (obj.type == TV_DICT && tv_dict_get_str(r, obj, name.ptr, name.len, &out)) return out;
    return no_attribute(r, obj, name);
}

/* i counted from the end when negative; false when outside. */
static bool index_fix(int64_t i, size_t n, size_t *out)
{
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return false;
    *out = (size_t)i;
    return true;
}

static bool int_item(struct render *r, struct tv obj, int64_t i, struct tv *out)
{
    size_t n, at;
    if (obj.type != TV_STR && obj.type != TV_RANGE && !tv_is_seq(obj)) return false;
    if (!tv_len(r, obj, &n) || !index_fix(i, n, &at)) return false;
    if (obj.type == TV_STR && !render_step(r, obj.u.s->n_chars == obj.u.s->len ? 0 : at / 16)) return false;
    if (obj.type == TV_RANGE) {
        *out = tv_int(obj.u.range->start + (int64_t)at * obj.u.range->step);
    } else if (obj.type == TV_STR) {
        size_t first = tv_str_byte(obj, at);
        *out = tv_str_slice(r, obj, first, first + text_step(obj.u.s->ptr + first));
    } else {
        *out = tv_items(r, obj)->items[at];
    }
    return true;
}

struct tv tv_getitem(struct render *r, struct tv obj, struct tv key)
{
    struct tv out;
    if (r->status) return tv_undef(NULL);
    if (obj.type == TV_UNDEF)
        return render_fail(r, MB_INVALID, "%s", obj.u.hint ? obj.u.hint : "a value is undefined");
    if (obj.type == TV_DICT && tv_hashable(key) && tv_dict_get(r, obj, key, &out)) return out;
    if (tv_is_int(key) && int_item(r, obj, tv_as_int(key), &out)) return out;
    if (tv_is_str(key)) {
        struct str name = { key.u.s->ptr, key.u.s->len };
        if (name.len && name.ptr[0] == '_' && obj.type != TV_NS) return unsafe(r, obj, name);
        if (python_attr(r, obj, name, &out)) return out;
        return no_attribute(r, obj, name);
    }
    return tv_undef("an element does not exist");
}

/* ---- slices ---- */

struct bounds { int64_t start, stop, step; size_t n; };

static bool bound(struct render *r, struct tv v, int64_t n, int64_t dflt, int64_t low, int64_t high, int64_t *out)
{
    if (v.type == TV_NONE || v.type == TV_ABSENT) { *out = dflt; return true; }
    if (!tv_is_int(v)) {
        render_type_error(r, "slice indices must be integers or None, not %s", tv_type_name(v));
        return false;
    }
    int64_t i = tv_as_int(v);
    if (i < 0) i = i < -n ? low : i + n < low ? low : i + n;
    *out = i > high ? high : i;
    return true;
}

static bool bounds_of(struct render *r, struct tv start, struct tv stop, struct tv step, size_t len, struct bounds *b)
{
    int64_t n = (int64_t)len;
    b->step = 1;
    if (step.type != TV_NONE && step.type != TV_ABSENT) {
        if (!tv_is_int(step)) { render_type_error(r, "slice indices must be integers or None"); return false; }
        b->step = tv_as_int(step);
    }
    if (b->step == 0) { render_type_error(r, "slice step cannot be zero"); return false; }
    if (b->step < -n - 1) b->step = -n - 1;
    if (b->step > n + 1) b->step = n + 1;
    bool back = b->step < 0;
    int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    if (!bound(r, start, n, back ? high : low, low, high, &b->start)) return false;
    if (!bound(r, stop, n, back ? low : high, low, high, &b->stop)) return false;
    struct trange g = { b->start, b->stop, b->step };
    b->n = (size_t)tv_range_len(&g);
    return render_step(r, b->n / 8);
}

static struct tv slice_str(struct render *r, struct tv s, const struct bounds *b)
{
    struct tsb out;
    if (b->step == 1) {
        size_t first = tv_str_byte(s, (size_t)b->start);
        if (!b->n) return tv_str_slice(r, s, first, first);
        if (s.u.s->n_chars == s.u.s->len) return tv_str_slice(r, s, first, first + b->n);
        size_t end = first;
        for (size_t i = 0; i < b->n; i++) end += text_step(s.u.s->ptr + end);
        return tv_str_slice(r, s, first, end);
    }
    tsb_init(&out, r);
    struct tlist *chars = tv_iter(r, s);
    for (size_t i = 0; i < b->n && !r->status; i++)
        tsb_add_str(&out, chars->items[b->start + (int64_t)i * b->step]);
    return tsb_take(&out);
}

struct tv tv_slice(struct render *r, struct tv obj, struct tv start, struct tv stop, struct tv step)
{
    size_t len;
    struct bounds b;
    if (r->status) return tv_undef(NULL);
    if (obj.type == TV_UNDEF) return render_fail(r, MB_INVALID, "%s", obj.u.hint ? obj.u.hint : "a value is undefined");
    if (obj.type != TV_STR && obj.type != TV_RANGE && !tv_is_seq(obj))
        return render_type_error(r, "'%s' object cannot be sliced", tv_type_name(obj));
    tv_len(r, obj, &len);
    if (obj.type == TV_STR && !render_step(r, obj.u.s->len / 64)) return tv_undef(NULL);
    if (!bounds_of(r, start, stop, step, len, &b)) return tv_undef(NULL);
    if (obj.type == TV_STR) return slice_str(r, obj, &b);
    if (obj.type == TV_RANGE) {
        struct trange *g = render_alloc(r, 1, sizeof *g);
        if (!g) return tv_undef(NULL);
        *g = (struct trange){ obj.u.range->start + b.start * obj.u.range->step,
                              obj.u.range->start + b.stop * obj.u.range->step, obj.u.range->step * b.step };
        return (struct tv){ .type = TV_RANGE, .u.range = g };
    }
    struct tv out = tv_list_new(r, (enum tv_type)obj.type, b.n, obj.org);
    struct tlist *l = tv_items(r, obj);
    if (r->status) return tv_undef(NULL);
    for (size_t i = 0; i < b.n; i++) out.u.list->items[i] = l->items[b.start + (int64_t)i * b.step];
    return out;
}
