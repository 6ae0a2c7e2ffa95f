/* schema_array.c: an array: its first items one by one, then the rest, counted; `contains` as a graph over how many have
 * been met; distinct items as a graph over which members of a small enum have been used. */
#include <string.h>

#include "grammar/schema_int.h"

enum { MAX_CONTAINS_COUNT = 64, MAX_UNIQUE = 8 };

struct array {
    struct sctx *c;
    const struct conj *j;
    size_t n_prefix;
    int64_t lo, hi;      /* hi -1 none */
    const json_t *contains_owner;
    json_t *contains;
    int64_t lo_contains, hi_contains;
    bool unique;
    const json_t *unique_owner;
};

static bool is_below(const struct conj *j, int node, int ancestor)
{
    for (int p = node; p >= 0; p = j->nodes[p].parent)
        if (p == ancestor) return true;
    return false;
}

/* Has anything in place below node i evaluated item `at`? */
static bool evaluated(const struct array *a, size_t i, size_t at)
{
    for (size_t k = 0; k < a->j->n; k++) {
        const json_t *s = a->j->nodes[k].schema;
        if (!is_below(a->j, (int)k, (int)i) || (a->j->nodes[k].silent && k != i)) continue;
        if (json_object_get(s, "items") || at < json_array_size(json_object_get(s, "prefixItems"))) return true;
        if (k != i && json_object_get(s, "unevaluatedItems")) return true;
    }
    return false;
}

/* An item at place `at` (n_prefix: any later one), which also satisfies `also` when that is given. */
static struct expr *item(const struct array *a, size_t at, json_t *also)
{
    struct build *b = a->c->b;
    json_t **list = build_alloc(b, 3 * a->j->n + 1, sizeof *list), *k;
    size_t n = 0;
    if (!list) return NULL;
    for (size_t i = 0; i < a->j->n; i++) {
        const json_t *s = a->j->nodes[i].schema, *prefix = json_object_get(s, "prefixItems");
        if (at < json_array_size(prefix)) list[n++] = json_array_get(prefix, at);
        else if ((k = json_object_get(s, "items"))) list[n++] = k;
        if ((k = json_object_get(s, "unevaluatedItems")) && !evaluated(a, i, at)) list[n++] = k;
    }
    if (also) list[n++] = also;
    return schema_value(a->c, list, n);
}

static void collect(struct array *a)
{
    a->hi = a->hi_contains = -1;
    for (size_t i = 0; i < a->j->n; i++) {
        const json_t *s = a->j->nodes[i].schema, *k;
        size_t n = json_array_size(json_object_get(s, "prefixItems"));
        if (n > a->n_prefix) a->n_prefix = n;
        if ((k = json_object_get(s, "minItems")) && count_of(k) > a->lo) a->lo = count_of(k);
        if ((k = json_object_get(s, "maxItems")) && (a->hi < 0 || count_of(k) < a->hi)) a->hi = count_of(k);
        if (json_is_true(json_object_get(s, "uniqueItems"))) a->unique = true, a->unique_owner = s;
        if (!json_object_get(s, "contains")) continue;
        if (a->contains) schema_unenforced(a->c, s, "contains", "only one is enforced at a place");
        a->contains_owner = s;
        a->contains = json_object_get(s, "contains");
        a->lo_contains = (k = json_object_get(s, "minContains")) ? count_of(k) : 1;
        a->hi_contains = (k = json_object_get(s, "maxContains")) ? count_of(k) : -1;
    }
}

static struct expr *bracketed(struct build *b, struct expr *inside)
{
    return expr_seq(b, 4, expr_lit(b, "["), json_ws(b), inside, expr_lit(b, "]"));
}

static struct expr *comma_before(struct build *b, bool first, struct expr *x)
{
    return first ? x : expr_seq(b, 3, expr_lit(b, ","), json_ws(b), x);
}

/* --- plain --- */

/* Behind i items of the prefix: end here, or the items that follow. */
static struct expr *plain(const struct array *a)
{
    struct build *b = a->c->b;
    struct graph g = { .n_nodes = (uint32_t)a->n_prefix + 3 };
    struct expr *ws = json_ws(b);
    for (size_t i = 0; i <= a->n_prefix && b->status == MB_OK; i++) {
        uint32_t at = (uint32_t)i + 2;
        if (!i) graph_edge_add(b, &g, 0, at, expr_empty(b));
        if ((int64_t)i >= a->lo) graph_edge_add(b, &g, at, 1, i ? ws : expr_empty(b));
        if (i == a->n_prefix || (a->hi >= 0 && (int64_t)i >= a->hi)) break;
        graph_edge_add(b, &g, at, at + 1, comma_before(b, i == 0, item(a, i, NULL)));
    }
    int64_t left = a->hi < 0 ? INT64_MAX : a->hi - (int64_t)a->n_prefix, need = a->lo - (int64_t)a->n_prefix;
    if (left > 0 && b->status == MB_OK) {
        struct expr *rest = item(a, a->n_prefix, NULL);
        if (need < 1) need = 1;
        if (need > REPEAT_MAX) return expr_nothing(b);
        uint32_t most = left - 1 > REPEAT_MAX ? REPEAT_INF : (uint32_t)(left - 1);
        struct expr *more = expr_counted(b, comma_before(b, false, rest), (uint32_t)need - 1, most);
        graph_edge_add(b, &g, (uint32_t)a->n_prefix + 2, 1, expr_seq(b, 3, comma_before(b, a->n_prefix == 0, rest), more, ws));
    }
    return b->status == MB_OK ? bracketed(b, expr_graph(b, &g)) : NULL;
}

/* --- contains --- */

/* Node (n, k): n items written (counted only as far as the bounds need), k of them met. */
struct grid {
    uint32_t n_counts, n_met;
};

static uint32_t grid_node(const struct grid *d, uint32_t n, uint32_t k)
{
    if (n >= d->n_counts) n = d->n_counts - 1;
    if (k >= d->n_met) k = d->n_met - 1;
    return 2 + n * d->n_met + k;
}

/* other: an item that need not (maxContains: must not) be one of those. */
static struct expr *containing(const struct array *a, struct expr *met, struct expr *other)
{
    struct build *b = a->c->b;
    bool bounded = a->hi_contains >= 0;
    uint32_t most_items = (uint32_t)(a->hi >= 0 ? a->hi : a->lo > 1 ? a->lo : 1);
    struct grid d = { most_items + 1 + (a->hi >= 0), (uint32_t)(bounded ? a->hi_contains : a->lo_contains) + 1 };
    struct graph g = { .n_nodes = 2 + d.n_counts * d.n_met };
    graph_edge_add(b, &g, 0, grid_node(&d, 0, 0), expr_empty(b));
    for (uint32_t n = 0; n < d.n_counts && b->status == MB_OK; n++)
        for (uint32_t k = 0; k < d.n_met; k++) {
            uint32_t from = grid_node(&d, n, k);
            if (a->hi >= 0 && (int64_t)n > a->hi) continue;
            if ((int64_t)n >= a->lo && (int64_t)k >= a->lo_contains) graph_edge_add(b, &g, from, 1, n ? json_ws(b) : expr_empty(b));
            if (a->hi >= 0 && (int64_t)n == a->hi) continue;
            graph_edge_add(b, &g, from, grid_node(&d, n + 1, k), comma_before(b, n == 0, other));
            if (!bounded || (int64_t)k < a->hi_contains)
                graph_edge_add(b, &g, from, grid_node(&d, n + 1, k + 1), comma_before(b, n == 0, met));
        }
    return b->status == MB_OK ? bracketed(b, expr_graph(b, &g)) : NULL;
}

static struct expr *with_contains(const struct array *a)
{
    struct build *b = a->c->b;
    json_t *opposite = NULL;
    const char *why = NULL;
    if (a->lo_contains == 0 && a->hi_contains < 0) return plain(a);
    if (a->n_prefix) why = "it is not enforced beside prefixItems";
    else if (a->lo > MAX_CONTAINS_COUNT || a->hi > MAX_CONTAINS_COUNT || a->lo_contains > MAX_CONTAINS_COUNT ||
             a->hi_contains > MAX_CONTAINS_COUNT) why = "counts beside it may be at most 64";
    else if (a->hi_contains >= 0 && !(opposite = schema_negate(a->c, a->contains))) why = "maxContains needs the opposite of its schema, which cannot be built";
    for (size_t i = 0; i < a->j->n && !why; i++)
        if (json_object_get(a->j->nodes[i].schema, "unevaluatedItems")) why = "it is not enforced beside unevaluatedItems";
    if (b->status != MB_OK) return NULL;
    if (why) {
        schema_unenforced(a->c, a->contains_owner, "contains", why);
        return plain(a);
    }
    if (a->hi >= 0 && a->hi < a->lo) return expr_nothing(b);
    if (a->hi_contains >= 0 && a->hi_contains < a->lo_contains) return expr_nothing(b);
    struct expr *met = item(a, 0, a->contains), *other = item(a, 0, opposite);
    return met && other ? containing(a, met, other) : NULL;
}

/* --- distinct items --- */

/* The enum that all items come from, when it is small. */
static const json_t *small_enum(const struct array *a)
{
    for (size_t i = 0; i < a->j->n; i++) {
        const json_t *e = json_object_get(json_object_get(a->j->nodes[i].schema, "items"), "enum");
        if (e && json_array_size(e) <= MAX_UNIQUE) return e;
    }
    return NULL;
}

static struct expr *distinct(const struct array *a, const json_t *members)
{
    struct build *b = a->c->b;
    size_t n = json_array_size(members);
    struct graph g = { .n_nodes = 2 + (1u << n) };
    graph_edge_add(b, &g, 0, 2, expr_empty(b));
    for (uint32_t used = 0; used < 1u << n && b->status == MB_OK; used++) {
        int count = __builtin_popcount(used);
        if (count >= a->lo && (a->hi < 0 || count <= a->hi)) graph_edge_add(b, &g, 2 + used, 1, used ? json_ws(b) : expr_empty(b));
        if (a->hi >= 0 && count >= a->hi) continue;
        for (size_t k = 0; k < n; k++) {
            if (used >> k & 1) continue;
            json_t *one = schema_own(a->c, json_pack("{s:O}", "const", json_array_get(members, k)));
            struct expr *x = one ? item(a, 0, one) : NULL;
            if (x) graph_edge_add(b, &g, 2 + used, 2 + (used | 1u << k), comma_before(b, used == 0, x));
        }
    }
    return b->status == MB_OK ? bracketed(b, expr_graph(b, &g)) : NULL;
}

static bool says_something(const struct conj *j)
{
    static const char *const keys[] = { "items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems" };
    for (size_t i = 0; i < j->n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (json_object_get(j->nodes[i].schema, keys[k])) return true;
    return false;
}

struct expr *schema_array(struct sctx *c, const struct conj *j)
{
    struct array a = { .c = c, .j = j };
    if (says_something(j)) collect(&a);
    else a.hi = a.hi_contains = -1;
    if (c->b->status != MB_OK) return NULL;
    if (a.hi >= 0 && a.hi < a.lo) return expr_nothing(c->b);
    if (a.unique && (a.hi < 0 || a.hi > 1)) {
        const json_t *members = a.contains || a.n_prefix ? NULL : small_enum(&a);
        if (members) return distinct(&a, members);
        schema_unenforced(c, a.unique_owner, "uniqueItems", "it is enforced for at most one item or for items of an enum of up to 8");
        if (c->b->status != MB_OK) return NULL;
    }
    return a.contains ? with_contains(&a) : plain(&a);
}
