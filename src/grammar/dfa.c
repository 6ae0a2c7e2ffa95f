/* dfa.c: work on deterministic automata: trimming, product, questions.
 *
 * A trimmed automaton has no state from which nothing can be accepted, except its start when it accepts nothing at
 * all; so "may this prefix be finished?" is "is there an edge?". Results live in the build's arena.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_int.h"

uint32_t dfa_next(const struct dfa *d, uint32_t state, uint8_t byte)
{
    const struct dfa_state *s = &d->states[state];
    uint32_t lo = 0, hi = s->n_edges;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        const struct dfa_edge *e = &d->edges[s->edge0 + mid];
        if (byte < e->lo) hi = mid;
        else if (byte > e->hi) lo = mid + 1;
        else return e->to;
    }
    return UINT32_MAX;
}

bool dfa_matches(const struct dfa *d, const char *s, size_t len)
{
    uint32_t at = 0;
    for (size_t i = 0; i < len && at != UINT32_MAX; i++) at = dfa_next(d, at, (uint8_t)s[i]);
    return at != UINT32_MAX && d->states[at].accept;
}

bool dfa_is_empty(const struct dfa *d)
{
    return d->n_states == 1 && !d->states[0].accept && !d->states[0].n_edges && !d->states[0].n_syms;
}

/* --- trimming --- */

static bool sym_counts(const struct dfa_sym *y, const bool *rule_ok)
{
    return y->is_token || !rule_ok || rule_ok[y->id];
}

static bool state_can_accept(const struct dfa *d, uint32_t i, const bool *ok, const bool *rule_ok)
{
    const struct dfa_state *s = &d->states[i];
    if (s->accept) return true;
    for (uint32_t k = 0; k < s->n_edges; k++)
        if (ok[d->edges[s->edge0 + k].to]) return true;
    for (uint32_t k = 0; k < s->n_syms; k++)
        if (ok[d->syms[s->sym0 + k].to] && sym_counts(&d->syms[s->sym0 + k], rule_ok)) return true;
    return false;
}

/* ok[i]: something can be accepted from i. Subsets are numbered breadth first, so going down settles most in one pass. */
static void find_ok(const struct dfa *d, bool *ok, const bool *rule_ok)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = d->n_states; i-- > 0;)
            if (!ok[i] && state_can_accept(d, i, ok, rule_ok)) ok[i] = changed = true;
    }
}

static bool same_state(const struct dfa *d, const uint32_t *cls, uint32_t x, uint32_t y)
{
    const struct dfa_state *a = &d->states[x], *b = &d->states[y];
    if (a->accept != b->accept || a->n_edges != b->n_edges || a->n_syms != b->n_syms) return false;
    for (uint32_t k = 0; k < a->n_edges; k++) {
        const struct dfa_edge *e = &d->edges[a->edge0 + k], *f = &d->edges[b->edge0 + k];
        if (e->lo != f->lo || e->hi != f->hi || cls[e->to] != cls[f->to]) return false;
    }
    for (uint32_t k = 0; k < a->n_syms; k++) {
        const struct dfa_sym *e = &d->syms[a->sym0 + k], *f = &d->syms[b->sym0 + k];
        if (e->is_token != f->is_token || e->id != f->id || cls[e->to] != cls[f->to]) return false;
    }
    return true;
}

static size_t state_hash(const struct dfa *d, const uint32_t *cls, uint32_t x)
{
    const struct dfa_state *s = &d->states[x];
    uint64_t h = s->accept ? 3 : 5;
    for (uint32_t k = 0; k < s->n_edges; k++) {
        const struct dfa_edge *e = &d->edges[s->edge0 + k];
        h = (h ^ ((uint64_t)cls[e->to] << 16 | (uint64_t)e->lo << 8 | e->hi)) * 0xD6E8FEB86659FD93u;
        h ^= h >> 31;
    }
    for (uint32_t k = 0; k < s->n_syms; k++) {
        h = (h ^ ((uint64_t)cls[d->syms[s->sym0 + k].to] << 32 | (uint32_t)d->syms[s->sym0 + k].id)) * 0xD6E8FEB86659FD93u;
        h ^= h >> 31;
    }
    return (size_t)h;
}

/* cls[i]: the state that stands for i. Merges states with equal edges until nothing changes (a bounded number of
 * rounds: this is to save room, not to be minimal). The start keeps its number. */
static bool merge_equal(struct build *b, const struct dfa *d, uint32_t *cls)
{
    size_t n_hash = 64;
    while (n_hash < (size_t)d->n_states * 2) n_hash *= 2;
    uint32_t *t = mb_alloc(n_hash * sizeof *t);
    if (!t) return build_fail(b, MB_NO_MEMORY, "no memory for compiling a grammar") == MB_OK;
    for (int round = 0; round < 24; round++) {
        bool changed = false;
        memset(t, 0, n_hash * sizeof *t);
        for (uint32_t i = 0; i < d->n_states; i++) {
            if (cls[i] != i) continue;
            size_t h = state_hash(d, cls, i);
            for (; t[h & (n_hash - 1)]; h++)
                if (same_state(d, cls, t[h & (n_hash - 1)] - 1, i)) break;
            uint32_t *slot = &t[h & (n_hash - 1)];
            if (!*slot) *slot = i + 1;
            else if (i != 0) cls[i] = *slot - 1, changed = true;
        }
        for (uint32_t i = 0; i < d->n_states; i++) cls[i] = cls[cls[i]];
        if (!changed) break;
    }
    mb_free(t);
    return true;
}

static void copy_state(struct dfa *out, uint32_t to, const struct dfa *d, uint32_t from, const bool *ok,
                       const uint32_t *number, const bool *rule_ok)
{
    const struct dfa_state *s = &d->states[from];
    struct dfa_state *o = &out->states[to];
    *o = (struct dfa_state){ .edge0 = out->n_edges, .sym0 = out->n_syms, .accept = s->accept };
    for (uint32_t k = 0; k < s->n_edges; k++) {
        struct dfa_edge e = d->edges[s->edge0 + k];
        if (!ok[e.to]) continue;
        e.to = number[e.to];
        struct dfa_edge *last = out->n_edges > o->edge0 ? &out->edges[out->n_edges - 1] : NULL;
        if (last && last->to == e.to && last->hi + 1 == e.lo) last->hi = e.hi;
        else out->edges[out->n_edges++] = e;
    }
    for (uint32_t k = 0; k < s->n_syms; k++) {
        struct dfa_sym y = d->syms[s->sym0 + k];
        if (!ok[y.to] || !sym_counts(&y, rule_ok)) continue;
        y.to = number[y.to];
        out->syms[out->n_syms++] = y;
    }
    o->n_edges = out->n_edges - o->edge0;
    o->n_syms = out->n_syms - o->sym0;
}

/* Number the states that can be reached, breadth first from the start. Returns how many. */
static uint32_t number_reached(const struct dfa *d, const bool *ok, const uint32_t *cls, const bool *rule_ok,
                               uint32_t *number, uint32_t *order)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n_states; i++) number[i] = UINT32_MAX;
    number[0] = n;
    order[n++] = 0;
    for (uint32_t at = 0; at < n; at++) {
        const struct dfa_state *s = &d->states[order[at]];
        for (uint32_t k = 0; k < s->n_edges + s->n_syms; k++) {
            const struct dfa_sym *y = k < s->n_edges ? NULL : &d->syms[s->sym0 + k - s->n_edges];
            uint32_t to = y ? y->to : d->edges[s->edge0 + k].to;
            if (!ok[to] || (y && !sym_counts(y, rule_ok)) || number[cls[to]] != UINT32_MAX) continue;
            number[cls[to]] = n;
            order[n++] = cls[to];
        }
    }
    for (uint32_t i = 0; i < d->n_states; i++) number[i] = number[cls[i]];
    return n;
}

struct dfa *dfa_trim(struct build *b, const struct dfa *d, const bool *rule_ok)
{
    if (b->status != MB_OK || !d) return NULL;
    bool *ok = mb_calloc(d->n_states, sizeof *ok);
    uint32_t *cls = mb_alloc(3 * (size_t)d->n_states * sizeof *cls), *number = cls ? cls + d->n_states : NULL;
    uint32_t *order = cls ? number + d->n_states : NULL;
    struct dfa *out = NULL;
    if (!ok || !cls) {
        build_fail(b, MB_NO_MEMORY, "no memory for compiling a grammar");
        goto done;
    }
    for (uint32_t i = 0; i < d->n_states; i++) cls[i] = i;
    find_ok(d, ok, rule_ok);
    if (!merge_equal(b, d, cls)) goto done;
    uint32_t n = number_reached(d, ok, cls, rule_ok, number, order);
    struct dfa *x = build_alloc(b, 1, sizeof *x);
    if (!x || !(x->states = build_alloc(b, n, sizeof *x->states))) goto done;
    if (!(x->edges = build_alloc(b, d->n_edges, sizeof *x->edges))) goto done;
    if (!(x->syms = build_alloc(b, d->n_syms, sizeof *x->syms))) goto done;
    x->n_states = n;
    for (uint32_t i = 0; i < n; i++) copy_state(x, i, d, order[i], ok, number, rule_ok);
    out = x;
done:
    mb_free(ok);
    mb_free(cls);
    return out;
}

/* --- product --- */

#define NO_STATE UINT32_MAX

struct product {
    struct build *b;
    const struct dfa *x, *y;
    enum dfa_op op;
    struct { uint32_t x, y; } *pairs;
    size_t n, cap;
    uint32_t *hash; /* pair index + 1 */
    size_t n_hash;
    struct dfa_edge *edges;
    size_t n_edges, cap_edges;
    struct dfa_state *states;
    size_t cap_states;
};

static size_t pair_hash(uint32_t x, uint32_t y)
{
    uint64_t h = ((uint64_t)x << 32 | y) * 0xD6E8FEB86659FD93u;
    return (size_t)(h ^ h >> 29);
}

static bool product_rehash(struct product *p)
{
    size_t want = p->n_hash ? p->n_hash * 2 : 256;
    uint32_t *t = build_alloc(p->b, want, sizeof *t);
    if (!t) return false;
    for (size_t i = 0; i < p->n; i++) {
        size_t h = pair_hash(p->pairs[i].x, p->pairs[i].y);
        while (t[h & (want - 1)]) h++;
        t[h & (want - 1)] = (uint32_t)i + 1;
    }
    p->hash = t;
    p->n_hash = want;
    return true;
}

static uint32_t product_state(struct product *p, uint32_t x, uint32_t y)
{
    if (p->n * 2 >= p->n_hash && !product_rehash(p)) return NO_STATE;
    size_t h = pair_hash(x, y);
    for (; p->hash[h & (p->n_hash - 1)]; h++) {
        uint32_t i = p->hash[h & (p->n_hash - 1)] - 1;
        if (p->pairs[i].x == x && p->pairs[i].y == y) return i;
    }
    if (p->n >= BUILD_MAX_DFA) {
        build_fail(p->b, MB_TOO_LARGE, "several patterns or lengths of one string take more states together than this "
                   "program allows (%d)", BUILD_MAX_DFA);
        return NO_STATE;
    }
    void *pairs = build_grow(p->b, p->pairs, p->n, &p->cap, sizeof *p->pairs);
    void *states = build_grow(p->b, p->states, p->n, &p->cap_states, sizeof *p->states);
    if (!pairs || !states) return NO_STATE;
    p->pairs = pairs;
    p->states = states;
    p->pairs[p->n].x = x;
    p->pairs[p->n].y = y;
    p->hash[h & (p->n_hash - 1)] = (uint32_t)p->n + 1;
    return (uint32_t)p->n++;
}

static void product_edges(struct product *p, uint32_t i)
{
    uint32_t x = p->pairs[i].x, y = p->pairs[i].y;
    const struct dfa_state *s = &p->x->states[x];
    struct dfa_state *o = &p->states[i];
    bool y_accepts = y != NO_STATE && p->y->states[y].accept;
    *o = (struct dfa_state){ .edge0 = (uint32_t)p->n_edges, .accept = s->accept && (p->op == DFA_AND) == y_accepts };
    uint32_t edge0 = (uint32_t)p->n_edges;
    for (uint32_t k = 0; k < s->n_edges; k++) {
        const struct dfa_edge *e = &p->x->edges[s->edge0 + k];
        for (int lo = e->lo; lo <= e->hi;) {
            uint32_t to_y = y == NO_STATE ? NO_STATE : dfa_next(p->y, y, (uint8_t)lo);
            int hi = lo;
            while (hi < e->hi && (y == NO_STATE ? NO_STATE : dfa_next(p->y, y, (uint8_t)(hi + 1))) == to_y) hi++;
            if (to_y != NO_STATE || p->op == DFA_MINUS) {
                uint32_t to = product_state(p, e->to, to_y);
                void *edges = to == NO_STATE ? NULL : build_grow(p->b, p->edges, p->n_edges, &p->cap_edges, sizeof *p->edges);
                if (!edges) return;
                p->edges = edges;
                p->edges[p->n_edges++] = (struct dfa_edge){ (uint8_t)lo, (uint8_t)hi, to };
            }
            lo = hi + 1;
        }
    }
    p->states[i].n_edges = (uint32_t)p->n_edges - edge0;
}

struct dfa *dfa_product(struct build *b, const struct dfa *x, const struct dfa *y, enum dfa_op op)
{
    if (b->status != MB_OK || !x || !y) return NULL;
    struct product p = { .b = b, .x = x, .y = y, .op = op };
    product_state(&p, 0, 0);
    for (uint32_t i = 0; i < p.n && b->status == MB_OK; i++) {
        product_edges(&p, i);
        build_spend(b, 40, NULL);
    }
    if (b->status != MB_OK) return NULL;
    struct dfa d = { .states = p.states, .edges = p.edges, .n_states = (uint32_t)p.n, .n_edges = (uint32_t)p.n_edges };
    return dfa_trim(b, &d, NULL);
}

/* --- the longest word --- */

/* Longest path, by relaxing in rounds as long as it can have no cycle; a trimmed automaton with a cycle has no limit. */
int64_t dfa_max_bytes(struct build *b, const struct dfa *d)
{
    uint32_t *n_in = mb_calloc(2 * (size_t)d->n_states, sizeof *n_in), *queue = n_in ? n_in + d->n_states : NULL;
    int64_t *longest = mb_calloc(d->n_states, sizeof *longest), best = -1;
    if (!n_in || !longest) {
        build_fail(b, MB_NO_MEMORY, "no memory for compiling a grammar");
        goto done;
    }
    for (uint32_t i = 0; i < d->n_edges; i++) n_in[d->edges[i].to]++;
    uint32_t n = 0;
    if (!n_in[0]) queue[n++] = 0;
    for (uint32_t at = 0; at < n; at++) {
        const struct dfa_state *s = &d->states[queue[at]];
        if (s->accept && longest[queue[at]] > best) best = longest[queue[at]];
        for (uint32_t k = 0; k < s->n_edges; k++) {
            uint32_t to = d->edges[s->edge0 + k].to;
            if (longest[to] < longest[queue[at]] + 1) longest[to] = longest[queue[at]] + 1;
            if (--n_in[to] == 0) queue[n++] = to;
        }
    }
    if (n < d->n_states) best = -1;
done:
    mb_free(n_in);
    mb_free(longest);
    return best;
}
