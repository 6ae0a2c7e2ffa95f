/* value.c: building values, JSON trees to values (one level at a time), dicts, truth, length, iteration, look-ups.
 *
 * Origins of JSON: everything under messages[i].<field> gets (i, field), everything under tools ORG_TOOLS, the rest
 * ORG_OTHER; the origin of a container is the one of its parts, keys included.
 */
#include <string.h>

#include "base/json.h"
#include "chat/template/tmpl_rt.h"

struct tv tv_of_json(struct render *r, const json_t *j, uint32_t org)
{
    struct tv v = { .type = TV_NONE, .org = org };
    const char *big = j ? json_bigint_text(j) : NULL;
    if (!j) return v;
    if (big) { v.type = TV_BIG; v.u.big = big; return v; }
    switch (json_typeof(j)) {
    case JSON_TRUE: case JSON_FALSE: v.type = TV_BOOL; v.u.b = json_is_true(j); break;
    case JSON_INTEGER: v.type = TV_INT; v.u.i = json_integer_value(j); break;
    case JSON_REAL: v.type = TV_FLOAT; v.u.f = json_real_value(j); break;
    case JSON_STRING: return tv_str(r, json_string_value(j), json_string_length(j), org);
    case JSON_ARRAY:
        v = tv_list_new(r, TV_LIST, 0, org);
        if (v.type == TV_LIST) v.u.list->src = j;
        break;
    case JSON_OBJECT:
        v = tv_dict_new(r, org);
        if (v.type == TV_DICT) v.u.dict->src = j;
        break;
    default: break;
    }
    return v;
}

struct tv tv_list_new(struct render *r, enum tv_type type, size_t n, uint32_t org)
{
    struct tlist *l = render_alloc(r, 1, sizeof *l);
    if (!l) return tv_undef(NULL);
    l->items = render_alloc(r, n, sizeof *l->items);
    if (!l->items) return tv_undef(NULL);
    l->n = n;
    return (struct tv){ .type = (uint8_t)type, .org = org, .u.list = l };
}

struct tv tv_pair(struct render *r, struct tv a, struct tv b)
{
    struct tv v = tv_list_new(r, TV_TUPLE, 2, ORG_TEMPLATE);
    if (v.type != TV_TUPLE) return v;
    v.u.list->items[0] = a;
    v.u.list->items[1] = b;
    return v;
}

static struct tlist *empty_list(struct render *r)
{
    static struct tlist none; /* never written: it has no items */
    struct tlist *l = r->status ? NULL : render_alloc(r, 1, sizeof *l);
    return l ? l : &none;
}

struct tlist *tv_items(struct render *r, struct tv v)
{
    if (!tv_is_seq(v)) return empty_list(r);
    struct tlist *l = v.u.list;
    if (!l->src) return l;
    size_t n = json_array_size(l->src);
    struct tv *items = render_step(r, n) ? render_alloc(r, n, sizeof *items) : NULL;
    if (!items) return empty_list(r);
    for (size_t i = 0; i < n; i++) items[i] = tv_of_json(r, json_array_get(l->src, i), v.org);
    l->items = items;
    l->n = n;
    l->src = NULL;
    return l;
}

/* ---- dicts ---- */

struct tv tv_dict_new(struct render *r, uint32_t org)
{
    struct tdict *d = render_alloc(r, 1, sizeof *d);
    if (!d) return tv_undef(NULL);
    d->i_message = -1;
    return (struct tv){ .type = TV_DICT, .org = org, .u.dict = d };
}

struct tdict *tv_dict(struct render *r, struct tv v)
{
    static struct tdict none;
    struct tdict *d = v.u.dict;
    if (v.type != TV_DICT && v.type != TV_NS) return &none;
    const json_t *src = d->src;
    if (!src) return d;
    d->src = NULL;
    if (!render_step(r, json_object_size(src))) return d;
    const char *key;
    json_t *val;
    json_object_foreach((json_t *)src, key, val) {
        uint32_t org = d->i_message >= 0 ? render_origin(r, d->i_message, key) : v.org;
        tv_dict_set(r, v, tv_str(r, key, strlen(key), org), tv_of_json(r, val, org));
    }
    return d;
}

bool tv_hashable(struct tv v)
{
    if (v.type == TV_TUPLE) {
        for (size_t i = 0; i < v.u.list->n; i++)
            if (!tv_hashable(v.u.list->items[i])) return false;
        return true;
    }
    return v.type != TV_LIST && v.type != TV_DICT && v.type != TV_SLICE;
}

static uint64_t hash_bytes(const char *p, size_t len)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)p[i]) * 1099511628211u;
    return h ^ (h >> 29);
}

/* Equal values hash alike: True, 1 and 1.0 too. */
static uint64_t hash_of(struct tv v)
{
    uint64_t h = 7;
    switch (v.type) {
    case TV_STR: return hash_bytes(v.u.s->ptr, v.u.s->len);
    case TV_BOOL: case TV_INT: { int64_t i = tv_as_int(v); return hash_bytes((const char *)&i, sizeof i); }
    case TV_FLOAT:
        if (v.u.f >= -9e15 && v.u.f <= 9e15 && v.u.f == (double)(int64_t)v.u.f)
            return hash_of(tv_int((int64_t)v.u.f));
        return 11;
    case TV_TUPLE:
        for (size_t i = 0; i < v.u.list->n; i++) h = h * 31 + hash_of(v.u.list->items[i]);
        return h;
    default: return 13 + v.type;
    }
}

static void index_put(struct tdict *d, size_t i)
{
    size_t slot = hash_of(d->ents[i].key) & (d->n_index - 1);
    while (d->index[slot]) slot = (slot + 1) & (d->n_index - 1);
    d->index[slot] = (uint32_t)i + 1;
}

static bool grow(struct render *r, struct tdict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct tentry *ents = render_alloc(r, cap, sizeof *ents);
    if (!ents) return false;
    if (d->n) memcpy(ents, d->ents, d->n * sizeof *ents);
    d->ents = ents;
    d->cap = cap;
    if (cap <= 8) return true;
    d->n_index = cap * 2;
    d->index = render_alloc(r, d->n_index, sizeof *d->index);
    if (!d->index) return false;
    for (size_t i = 0; i < d->n; i++) index_put(d, i);
    return true;
}

static struct tentry *dict_find(struct render *r, struct tdict *d, struct tv key)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (tv_eq(r, d->ents[i].key, key)) return &d->ents[i];
        return NULL;
    }
    for (size_t slot = hash_of(key) & (d->n_index - 1); d->index[slot]; slot = (slot + 1) & (d->n_index - 1)) {
        if (!render_step(r, 1)) return NULL;
        struct tentry *e = &d->ents[d->index[slot] - 1];
        if (tv_eq(r, e->key, key)) return e;
    }
    return NULL;
}

void tv_dict_set(struct render *r, struct tv v, struct tv key, struct tv val)
{
    if (v.type != TV_DICT && v.type != TV_NS) return;
    struct tdict *d = v.u.dict;
    struct tentry *e = dict_find(r, d, key);
    if (e) { e->val = val; return; }
    if (d->n == d->cap && !grow(r, d)) return;
    d->ents[d->n++] = (struct tentry){ key, val };
    if (d->index) index_put(d, d->n - 1);
}

bool tv_dict_get(struct render *r, struct tv v, struct tv key, struct tv *out)
{
    struct tentry *e = dict_find(r, tv_dict(r, v), key);
    if (e) *out = e->val;
    return e != NULL;
}

bool tv_dict_get_str(struct render *r, struct tv v, const char *key, size_t len, struct tv *out)
{
    struct tstr s = { .ptr = key, .len = len, .n_chars = SIZE_MAX };
    return tv_dict_get(r, v, (struct tv){ .type = TV_STR, .u.s = &s }, out);
}

/* ---- looks ---- */

int64_t tv_range_len(const struct trange *g)
{
    if (g->step > 0 && g->start < g->stop)
        return (int64_t)(((uint64_t)g->stop - (uint64_t)g->start - 1) / (uint64_t)g->step + 1);
    if (g->step < 0 && g->start > g->stop)
        return (int64_t)(((uint64_t)g->start - (uint64_t)g->stop - 1) / (0 - (uint64_t)g->step) + 1);
    return 0;
}

bool tv_len(struct render *r, struct tv v, size_t *out)
{
    *out = 0;
    switch (v.type) {
    case TV_UNDEF: return true;
    case TV_STR:
        if (v.u.s->n_chars == SIZE_MAX) v.u.s->n_chars = text_count_chars(v.u.s->ptr, v.u.s->len);
        *out = v.u.s->n_chars;
        return true;
    case TV_LIST: case TV_TUPLE: *out = tv_items(r, v)->n; return true;
    case TV_DICT: *out = tv_dict(r, v)->n; return true;
    case TV_VIEW: *out = tv_dict(r, v.u.view->dict)->n; return true;
    case TV_RANGE: *out = (size_t)tv_range_len(v.u.range); return true;
    case TV_LOOP: *out = v.u.loop->items->n; return true;
    default: return false;
    }
}

bool tv_truth(struct render *r, struct tv v)
{
    size_t n;
    switch (v.type) {
    case TV_ABSENT: case TV_HIDDEN: case TV_UNDEF: case TV_NONE: return false;
    case TV_BOOL: return v.u.b;
    case TV_INT: return v.u.i != 0;
    case TV_FLOAT: return v.u.f != 0;
    case TV_STR: return v.u.s->len != 0;
    default: return tv_len(r, v, &n) ? n != 0 : true;
    }
}

const char *tv_type_name(struct tv v)
{
    static const char *const names[] = { "Undefined", "Undefined", "Undefined", "NoneType", "bool", "int", "int", "float",
        "str", "list", "tuple", "dict", "range", "generator", "dict view", "Namespace", "function", "method", "Macro",
        "LoopContext", "Cycler", "Joiner", "slice" };
    return names[v.type];
}

/* ---- iteration ---- */

bool tv_is_iterable(struct tv v)
{
    switch (v.type) {
    case TV_UNDEF: case TV_STR: case TV_LIST: case TV_TUPLE: case TV_DICT: case TV_RANGE: case TV_ITER: case TV_VIEW:
    case TV_LOOP: return true;
    default: return false;
    }
}

static struct tlist *chars_of(struct render *r, struct tv v)
{
    size_t n;
    tv_len(r, v, &n);
    struct tv out = render_step(r, n) ? tv_list_new(r, TV_LIST, n, v.org) : tv_undef(NULL);
    if (out.type != TV_LIST) return empty_list(r);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = text_step(v.u.s->ptr + at);
        out.u.list->items[i] = tv_str(r, v.u.s->ptr + at, k, tv_str_origin_at(v, at));
        at += k;
    }
    return out.u.list;
}

static struct tlist *entries_of(struct render *r, struct tv dict, enum view_kind kind)
{
    struct tdict *d = tv_dict(r, dict);
    struct tv out = render_step(r, d->n) ? tv_list_new(r, TV_LIST, d->n, dict.org) : tv_undef(NULL);
    if (out.type != TV_LIST) return empty_list(r);
    for (size_t i = 0; i < d->n; i++)
        out.u.list->items[i] = kind == VIEW_KEYS ? d->ents[i].key : kind == VIEW_VALUES ? d->ents[i].val
                             : tv_pair(r, d->ents[i].key, d->ents[i].val);
    return out.u.list;
}

static struct tlist *range_items(struct render *r, const struct trange *g)
{
    int64_t n = tv_range_len(g);
    struct tv out = render_step(r, (uint64_t)n) ? tv_list_new(r, TV_LIST, (size_t)n, ORG_TEMPLATE) : tv_undef(NULL);
    if (out.type != TV_LIST) return empty_list(r);
    for (int64_t i = 0; i < n; i++) out.u.list->items[i] = tv_int(g->start + i * g->step);
    return out.u.list;
}

static struct tlist *rest_of(struct render *r, struct titer *it)
{
    struct tlist *l = empty_list(r);
    if (r->status) return l;
    if (it->pos < it->list->n) {
        l->items = it->list->items + it->pos;
        l->n = it->list->n - it->pos;
    }
    it->pos = it->list->n;
    return l;
}

struct tlist *tv_iter(struct render *r, struct tv v)
{
    switch (v.type) {
    case TV_UNDEF: return empty_list(r);
    case TV_STR: return chars_of(r, v);
    case TV_LIST: case TV_TUPLE: return tv_items(r, v);
    case TV_DICT: return entries_of(r, v, VIEW_KEYS);
    case TV_VIEW: return entries_of(r, v.u.view->dict, v.u.view->kind);
    case TV_RANGE: return range_items(r, v.u.range);
    case TV_ITER: return rest_of(r, v.u.iter);
    default:
        render_type_error(r, "'%s' object is not iterable", tv_type_name(v));
        return empty_list(r);
    }
}

struct tv tv_iter_of(struct render *r, struct tlist *l, uint32_t org)
{
    struct titer *it = render_alloc(r, 1, sizeof *it);
    if (!it) return tv_undef(NULL);
    it->list = l;
    return (struct tv){ .type = TV_ITER, .org = org, .u.iter = it };
}
