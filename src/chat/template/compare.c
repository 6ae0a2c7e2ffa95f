/* compare.c: equality, order, membership and sorting, with Python's rules: True == 1 == 1.0, strings by code point,
 * lists with lists and tuples with tuples element by element; there is no order between different kinds. */
#include <stdlib.h>
#include <string.h>

#include "chat/template/tmpl_rt.h"

/* Exact for 64-bit integers where long double has a 64-bit mantissa; digits of a big one are far away from both. */
static long double number_of(struct tv v)
{
    if (v.type == TV_FLOAT) return v.u.f;
    if (v.type == TV_BIG) return strtold(v.u.big, NULL);
    return (long double)tv_as_int(v);
}

static bool seq_eq(struct render *r, struct tv a, struct tv b)
{
    struct tlist *x = tv_items(r, a), *y = tv_items(r, b);
    if (x->n != y->n) return false;
    for (size_t i = 0; i < x->n; i++)
        if (r->status || !tv_eq(r, x->items[i], y->items[i])) return false;
    return true;
}

static bool dict_eq(struct render *r, struct tv a, struct tv b)
{
    struct tdict *x = tv_dict(r, a);
    if (x->n != tv_dict(r, b)->n) return false;
    for (size_t i = 0; i < x->n; i++) {
        struct tv other;
        if (!tv_dict_get(r, b, x->ents[i].key, &other) || !tv_eq(r, x->ents[i].val, other)) return false;
    }
    return true;
}

static bool range_eq(const struct trange *a, const struct trange *b)
{
    int64_t n = tv_range_len(a);
    if (n != tv_range_len(b)) return false;
    return n == 0 || (a->start == b->start && (n == 1 || a->step == b->step));
}

static bool container_eq(struct render *r, struct tv a, struct tv b)
{
    if (!render_enter(r)) return false;
    bool eq = a.type == TV_DICT ? dict_eq(r, a, b) : seq_eq(r, a, b);
    render_leave(r);
    return eq;
}

bool tv_eq(struct render *r, struct tv a, struct tv b)
{
    if (r->status || !render_step(r, 1)) return false;
    if (tv_is_number(a) && tv_is_number(b)) {
        if (a.type == TV_BIG && b.type == TV_BIG) return strcmp(a.u.big, b.u.big) == 0;
        return number_of(a) == number_of(b);
    }
    if (a.type != b.type) return false;
    switch (a.type) {
    case TV_UNDEF: case TV_NONE: return true;
    case TV_STR: return a.u.s->len == b.u.s->len && render_step(r, a.u.s->len / 64) && memcmp(a.u.s->ptr, b.u.s->ptr, a.u.s->len) == 0;
    case TV_LIST: case TV_TUPLE: case TV_DICT:
        return a.u.list == b.u.list || container_eq(r, a, b);
    case TV_RANGE: return range_eq(a.u.range, b.u.range);
    default: return a.u.list == b.u.list; /* any pointer of the union: identity */
    }
}

bool tv_same(struct tv a, struct tv b)
{
    if (a.type != b.type) return false;
    switch (a.type) {
    case TV_NONE: return true;
    case TV_BOOL: return a.u.b == b.u.b;
    case TV_INT: return a.u.i == b.u.i && a.u.i >= -5 && a.u.i <= 256;
    case TV_FLOAT: return false;
    case TV_STR: return a.u.s == b.u.s || (a.u.s->len <= 1 && b.u.s->len == a.u.s->len &&
                                           memcmp(a.u.s->ptr, b.u.s->ptr, a.u.s->len) == 0);
    default: return a.u.list == b.u.list;
    }
}

/* -1, 0, 1; 2: unordered (NaN). */
static int three_way(long double a, long double b) { return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2; }

static int str_order(const struct tstr *a, const struct tstr *b)
{
    int c = memcmp(a->ptr, b->ptr, a->len < b->len ? a->len : b->len);
    if (c) return c < 0 ? -1 : 1;
    return a->len < b->len ? -1 : a->len > b->len;
}

static bool order_holds(int op, int c)
{
    if (c == 2) return false;
    return op == T_LT ? c < 0 : op == T_LE ? c <= 0 : op == T_GT ? c > 0 : c >= 0;
}

static bool seq_order(struct render *r, int op, struct tv a, struct tv b)
{
    struct tlist *x = tv_items(r, a), *y = tv_items(r, b);
    size_t i = 0;
    while (i < x->n && i < y->n && !r->status && tv_eq(r, x->items[i], y->items[i])) i++;
    if (r->status) return false;
    if (i < x->n && i < y->n) return tv_order(r, op, x->items[i], y->items[i]);
    return order_holds(op, x->n < y->n ? -1 : x->n > y->n);
}

bool tv_order(struct render *r, int op, struct tv a, struct tv b)
{
    static const char *const names[] = { "<", "<=", ">", ">=" };
    if (r->status || !render_step(r, 1)) return false;
    if (tv_is_number(a) && tv_is_number(b)) return order_holds(op, three_way(number_of(a), number_of(b)));
    if (tv_is_str(a) && tv_is_str(b) && !render_step(r, a.u.s->len / 64)) return false;
    if (tv_is_str(a) && tv_is_str(b)) return order_holds(op, str_order(a.u.s, b.u.s));
    if (tv_is_seq(a) && a.type == b.type) {
        if (!render_enter(r)) return false;
        bool res = seq_order(r, op, a, b);
        render_leave(r);
        return res;
    }
    struct tv undef = a.type == TV_UNDEF ? a : b;
    if (undef.type == TV_UNDEF) render_fail(r, MB_INVALID, "%s", undef.u.hint ? undef.u.hint : "a value is undefined");
    render_type_error(r, "'%s' not supported between instances of '%s' and '%s'", names[op - T_LT], tv_type_name(a),
                      tv_type_name(b));
    return false;
}

bool tv_contains(struct render *r, struct tv c, struct tv item)
{
    struct tv out;
    if (r->status) return false;
    if (c.type == TV_STR) {
        if (!tv_is_str(item)) {
            render_type_error(r, "'in <string>' requires string as left operand, not %s", tv_type_name(item));
            return false;
        }
        return render_step(r, c.u.s->len / 64) && tv_str_find(c, item, 0, c.u.s->len) != SIZE_MAX;
    }
    if (c.type == TV_DICT) {
        if (!tv_hashable(item)) { render_type_error(r, "unhashable type: '%s'", tv_type_name(item)); return false; }
        return tv_dict_get(r, c, item, &out);
    }
    if (!tv_is_iterable(c)) {
        render_type_error(r, "argument of type '%s' is not iterable", tv_type_name(c));
        return false;
    }
    struct tlist *l = tv_iter(r, c);
    for (size_t i = 0; i < l->n && !r->status; i++)
        if (tv_eq(r, l->items[i], item)) return true;
    return false;
}

/* ---- stable merge sort of vals by keys ---- */

struct pairs { struct tv *k, *v; };

static void merge(struct render *r, struct pairs from, struct pairs to, size_t lo, size_t mid, size_t hi)
{
    size_t i = lo, j = mid;
    for (size_t k = lo; k < hi; k++) {
        bool right = i >= mid || (j < hi && tv_order(r, T_LT, from.k[j], from.k[i]));
        size_t at = right ? j++ : i++;
        if (r->status) return;
        to.k[k] = from.k[at];
        to.v[k] = from.v[at];
    }
}

static void flip(struct pairs p, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        struct tv k = p.k[i], v = p.v[i];
        p.k[i] = p.k[n - 1 - i]; p.k[n - 1 - i] = k;
        p.v[i] = p.v[n - 1 - i]; p.v[n - 1 - i] = v;
    }
}

void tv_sort(struct render *r, struct tv *keys, struct tv *vals, size_t n, bool reverse)
{
    struct pairs a = { keys, vals }, b;
    b.k = render_alloc(r, n, sizeof *b.k);
    b.v = render_alloc(r, n, sizeof *b.v);
    if (!b.k || !b.v) return;
    if (reverse) flip(a, n); /* equal elements keep their order, as in Python */
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            merge(r, a, b, lo, mid, hi);
            if (r->status) return;
        }
        struct pairs t = a; a = b; b = t;
    }
    if (a.v != vals && n) memcpy(vals, a.v, n * sizeof *vals);
    if (reverse) flip((struct pairs){ b.k, vals }, n);
}
