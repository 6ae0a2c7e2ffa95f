/* nfa.c: an expression to a deterministic automaton (Thompson's construction, then subsets).
 *
 * Rule calls and named tokens are symbols beside the 256 bytes. No edge ever goes back into the state that a part
 * begins at: loops have a state of their own, so parts may share their first state.
 * `^` may be passed only by the closure of the first subset, `$` only by the closure that asks "may the text end
 * here": so both mean the ends of the text wherever they stand in the pattern.
 * Scratch is on the heap and freed at the end; the result lives in the build's arena.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_int.h"

enum edge_kind { E_EPS, E_BYTES, E_RULE, E_TOKEN, E_BOL, E_EOL };
struct nfa_edge {
    uint8_t kind, lo, hi;
    int32_t id;
    uint32_t to;
    int32_t next; /* of the same state, -1 last */
};
struct u32s {
    uint32_t *v;
    size_t n, cap;
};
struct nfa {
    struct build *b;
    const char *what;
    int32_t *first; /* [n_states] */
    size_t n_states, cap_states;
    struct nfa_edge *edges;
    size_t n_edges, cap_edges;
    uint32_t *mark;  /* [n_states] stamp of the last closure that met it */
    uint32_t stamp;
    size_t work;
    struct u32s stack, set;
    /* subsets */
    struct u32s members, off; /* set i: members[off[i] .. off[i + 1]) */
    uint32_t *hash;           /* buckets of set index + 1 */
    size_t n_hash;
    /* the automaton so far */
    struct dfa_state *states;
    size_t n_dfa, cap_dfa;
    struct dfa_edge *out;
    size_t n_out, cap_out;
    struct dfa_sym *syms;
    size_t n_syms, cap_syms;
};

static bool too_large(struct nfa *n)
{
    build_fail(n->b, MB_TOO_LARGE, "%s takes more states than this program allows (%d)", n->what, BUILD_MAX_DFA);
    return false;
}

static bool grow(struct nfa *n, void **v, size_t used, size_t *cap, size_t size)
{
    if (n->b->status != MB_OK) return false;
    if (used < *cap) return true;
    size_t want = *cap ? *cap * 2 : 64;
    void *p = mb_realloc(*v, want * size);
    if (!p) {
        build_fail(n->b, MB_NO_MEMORY, "no memory for compiling a grammar");
        return false;
    }
    *v = p;
    *cap = want;
    return true;
}
#define GROW(n, v, used, cap) grow(n, (void **)&(v), used, &(cap), sizeof *(v))

static bool push(struct nfa *n, struct u32s *l, uint32_t x)
{
    if (!GROW(n, l->v, l->n, l->cap)) return false;
    l->v[l->n++] = x;
    return true;
}

/* --- expression to NFA --- */

static uint32_t state_new(struct nfa *n)
{
    if (n->n_states >= BUILD_MAX_NFA) too_large(n);
    if (!GROW(n, n->first, n->n_states, n->cap_states)) return 0;
    n->first[n->n_states] = -1;
    return (uint32_t)n->n_states++;
}

static void edge_add(struct nfa *n, uint32_t from, uint32_t to, struct nfa_edge e)
{
    if (!GROW(n, n->edges, n->n_edges, n->cap_edges)) return;
    e.to = to;
    e.next = n->first[from];
    n->edges[n->n_edges] = e;
    n->first[from] = (int32_t)n->n_edges++;
}

static void eps(struct nfa *n, uint32_t from, uint32_t to)
{
    edge_add(n, from, to, (struct nfa_edge){ .kind = E_EPS });
}

static void bytes_edge(struct nfa *n, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi)
{
    edge_add(n, from, to, (struct nfa_edge){ .kind = E_BYTES, .lo = lo, .hi = hi });
}

static uint32_t add_bytes(struct nfa *n, uint32_t from, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        uint32_t to = state_new(n);
        bytes_edge(n, from, to, (uint8_t)s[i], (uint8_t)s[i]);
        from = to;
    }
    return from;
}

struct class_ends {
    struct nfa *n;
    uint32_t from, to;
};

static void add_sequence(void *ctx, const struct utf8_seq *seq)
{
    struct class_ends *c = ctx;
    uint32_t at = c->from;
    for (int i = 0; i < seq->n; i++) {
        uint32_t to = i == seq->n - 1 ? c->to : state_new(c->n);
        bytes_edge(c->n, at, to, seq->lo[i], seq->hi[i]);
        at = to;
    }
}

/* A character that a JSON string must escape, in the one form that FORM_JSON gives it. */
static void add_escaped(struct class_ends *c, uint32_t cp)
{
    static const char hex[] = "0123456789abcdef";
    static const char letters[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";
    char text[6] = { '\\', 'u', '0', '0', hex[cp >> 4 & 15], hex[cp & 15] };
    size_t len = 6;
    const char *short_form = cp ? memchr(letters, (int)cp, sizeof letters - 1) : NULL;
    if (short_form) {
        text[1] = names[short_form - letters];
        len = 2;
    }
    uint32_t at = add_bytes(c->n, c->from, text, len);
    eps(c->n, at, c->to);
}

static void add_json_range(struct class_ends *c, uint32_t lo, uint32_t hi)
{
    static const uint32_t cuts[] = { '"', '\\' };
    for (; lo <= hi && lo < 0x20; lo++) add_escaped(c, lo);
    for (int i = 0; i < 2 && lo <= hi; i++) {
        if (cuts[i] < lo) continue;
        uint32_t end = hi < cuts[i] ? hi : cuts[i] - 1;
        if (lo <= end) utf8_sequences(lo, end, add_sequence, c);
        if (hi < cuts[i]) return;
        add_escaped(c, cuts[i]);
        lo = cuts[i] + 1;
    }
    if (lo <= hi) utf8_sequences(lo, hi, add_sequence, c);
}

static uint32_t add_class(struct nfa *n, uint32_t from, const struct expr *x)
{
    struct class_ends c = { n, from, state_new(n) };
    for (size_t i = 0; i < x->set.n && n->b->status == MB_OK; i++) {
        if (x->form == FORM_JSON) add_json_range(&c, x->set.r[i].lo, x->set.r[i].hi);
        else utf8_sequences(x->set.r[i].lo, x->set.r[i].hi, add_sequence, &c);
    }
    return c.to;
}

static uint32_t add_dfa(struct nfa *n, uint32_t from, const struct dfa *d)
{
    uint32_t base = (uint32_t)n->n_states, end;
    for (uint32_t i = 0; i < d->n_states; i++) state_new(n);
    end = state_new(n);
    if (n->b->status != MB_OK) return from;
    eps(n, from, base);
    for (uint32_t i = 0; i < d->n_states; i++) {
        const struct dfa_state *s = &d->states[i];
        for (uint32_t k = 0; k < s->n_edges; k++) {
            const struct dfa_edge *e = &d->edges[s->edge0 + k];
            bytes_edge(n, base + i, base + e->to, e->lo, e->hi);
        }
        for (uint32_t k = 0; k < s->n_syms; k++) {
            const struct dfa_sym *y = &d->syms[s->sym0 + k];
            edge_add(n, base + i, base + y->to, (struct nfa_edge){ .kind = y->is_token ? E_TOKEN : E_RULE, .id = y->id });
        }
        if (s->accept) eps(n, base + i, end);
    }
    return end;
}

static uint32_t add_expr(struct nfa *n, uint32_t from, const struct expr *x, int depth);

static uint32_t add_repeat(struct nfa *n, uint32_t from, const struct expr *x, int depth)
{
    uint32_t at = from;
    for (uint32_t i = 0; i < x->lo && n->b->status == MB_OK; i++) at = add_expr(n, at, x->items[0], depth);
    uint32_t end = state_new(n);
    if (x->hi == REPEAT_INF) {
        uint32_t loop = state_new(n);
        eps(n, at, loop);
        eps(n, add_expr(n, loop, x->items[0], depth), loop);
        eps(n, loop, end);
        return end;
    }
    for (uint32_t i = x->lo; i < x->hi && n->b->status == MB_OK; i++) {
        eps(n, at, end);
        at = add_expr(n, at, x->items[0], depth);
    }
    eps(n, at, end);
    return end;
}

static uint32_t add_alt(struct nfa *n, uint32_t from, const struct expr *x, int depth)
{
    uint32_t end = state_new(n);
    for (size_t i = 0; i < x->len && n->b->status == MB_OK; i++) eps(n, add_expr(n, from, x->items[i], depth), end);
    return end;
}

static uint32_t add_graph(struct nfa *n, uint32_t from, const struct graph *g, int depth)
{
    uint32_t base = (uint32_t)n->n_states;
    for (uint32_t i = 0; i < g->n_nodes; i++) state_new(n);
    if (n->b->status != MB_OK) return from;
    eps(n, from, base);
    for (size_t i = 0; i < g->n_edges && n->b->status == MB_OK; i++)
        eps(n, add_expr(n, base + g->edges[i].from, g->edges[i].label, depth), base + g->edges[i].to);
    uint32_t end = state_new(n);
    eps(n, base + 1, end);
    return end;
}

static uint32_t add_symbol(struct nfa *n, uint32_t from, enum edge_kind kind, int32_t id)
{
    uint32_t to = state_new(n);
    edge_add(n, from, to, (struct nfa_edge){ .kind = (uint8_t)kind, .id = id });
    return to;
}

static uint32_t add_expr(struct nfa *n, uint32_t from, const struct expr *x, int depth)
{
    if (n->b->status != MB_OK || !x) return from;
    if (depth > 4 * BUILD_MAX_DEPTH) {
        build_fail(n->b, MB_TOO_LARGE, "%s is nested too deeply", n->what);
        return from;
    }
    uint32_t at = from;
    switch (x->kind) {
    case EX_NOTHING: return state_new(n);
    case EX_EMPTY: return from;
    case EX_BYTES: return add_bytes(n, from, x->bytes, x->len);
    case EX_CLASS: return add_class(n, from, x);
    case EX_SEQ:
        for (size_t i = 0; i < x->len; i++) at = add_expr(n, at, x->items[i], depth + 1);
        return at;
    case EX_ALT: return add_alt(n, from, x, depth + 1);
    case EX_REPEAT: return add_repeat(n, from, x, depth + 1);
    case EX_RULE: return add_symbol(n, from, E_RULE, x->id);
    case EX_TOKEN: return add_symbol(n, from, E_TOKEN, x->id);
    case EX_DFA: return add_dfa(n, from, x->dfa);
    case EX_GRAPH: return add_graph(n, from, x->graph, depth + 1);
    case EX_BOL: return add_symbol(n, from, E_BOL, 0);
    case EX_EOL: return add_symbol(n, from, E_EOL, 0);
    }
    return from;
}

/* --- subsets --- */

static bool follows(const struct nfa_edge *e, bool at_start, bool at_end)
{
    return e->kind == E_EPS || (e->kind == E_BOL && at_start) || (e->kind == E_EOL && at_end);
}

/* Close n->set under the edges that need no input; what remains has edges of its own or is the last state. */
static bool close_set(struct nfa *n, bool at_start, bool at_end)
{
    n->stamp++;
    n->stack.n = 0;
    for (size_t i = 0; i < n->set.n; i++)
        if (n->mark[n->set.v[i]] != n->stamp) {
            n->mark[n->set.v[i]] = n->stamp;
            if (!push(n, &n->stack, n->set.v[i])) return false;
        }
    n->set.n = 0;
    while (n->stack.n) {
        uint32_t s = n->stack.v[--n->stack.n];
        bool keep = s == 1;
        for (int32_t i = n->first[s]; i >= 0; i = n->edges[i].next) {
            const struct nfa_edge *e = &n->edges[i];
            if (!follows(e, at_start, at_end)) {
                keep |= e->kind != E_EPS && e->kind != E_BOL;
            } else if (n->mark[e->to] != n->stamp) {
                n->mark[e->to] = n->stamp;
                if (!push(n, &n->stack, e->to)) return false;
            }
        }
        if (keep && !push(n, &n->set, s)) return false;
    }
    return true;
}

static int by_value(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return a < b ? -1 : a > b;
}

static size_t set_hash(const uint32_t *v, size_t len)
{
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (size_t i = 0; i < len; i++) h = (h ^ v[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 32;
    return (size_t)h;
}

static bool rehash(struct nfa *n)
{
    size_t want = n->n_hash ? n->n_hash * 2 : 256;
    uint32_t *t = mb_calloc(want, sizeof *t);
    if (!t) return build_fail(n->b, MB_NO_MEMORY, "no memory for compiling a grammar") == MB_OK;
    for (uint32_t i = 1; i < n->n_dfa; i++) { /* set 0 is never looked up: `^` is passed in it alone */
        size_t h = set_hash(n->members.v + n->off.v[i], n->off.v[i + 1] - n->off.v[i]);
        while (t[h & (want - 1)]) h++;
        t[h & (want - 1)] = i + 1;
    }
    mb_free(n->hash);
    n->hash = t;
    n->n_hash = want;
    return true;
}

/* The automaton's state for n->set (closed); UINT32_MAX: none (empty) or failure. */
static uint32_t subset_state(struct nfa *n, bool first)
{
    if (!n->set.n && !first) return UINT32_MAX;
    if (n->set.n) qsort(n->set.v, n->set.n, sizeof *n->set.v, by_value);
    if (n->n_dfa * 2 >= n->n_hash && !rehash(n)) return UINT32_MAX;
    size_t h = set_hash(n->set.v, n->set.n);
    for (; !first && n->hash[h & (n->n_hash - 1)]; h++) {
        uint32_t i = n->hash[h & (n->n_hash - 1)] - 1;
        if (n->off.v[i + 1] - n->off.v[i] == n->set.n &&
            !memcmp(n->members.v + n->off.v[i], n->set.v, n->set.n * sizeof *n->set.v)) return i;
    }
    if (n->n_dfa >= BUILD_MAX_DFA || n->members.n + n->set.n > BUILD_MAX_SUBSETS) {
        too_large(n);
        return UINT32_MAX;
    }
    if (!GROW(n, n->states, n->n_dfa, n->cap_dfa)) return UINT32_MAX;
    for (size_t i = 0; i < n->set.n; i++)
        if (!push(n, &n->members, n->set.v[i])) return UINT32_MAX;
    if (!push(n, &n->off, (uint32_t)n->members.n)) return UINT32_MAX;
    n->states[n->n_dfa] = (struct dfa_state){ 0 };
    if (!first) n->hash[h & (n->n_hash - 1)] = (uint32_t)n->n_dfa + 1;
    return (uint32_t)n->n_dfa++;
}

static bool is_member(const struct u32s *set, uint32_t x)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->v[i] == x) return true;
    return false;
}

static void byte_edges(struct nfa *n, uint32_t from)
{
    uint32_t first = n->off.v[from], end = n->off.v[from + 1], edge0 = (uint32_t)n->n_out;
    bool cut[257] = { false };
    for (uint32_t i = first; i < end; i++)
        for (int32_t k = n->first[n->members.v[i]]; k >= 0; k = n->edges[k].next)
            if (n->edges[k].kind == E_BYTES) cut[n->edges[k].lo] = cut[n->edges[k].hi + 1] = true;
    for (int lo = 0; lo < 256;) {
        int hi = lo + 1;
        while (hi < 256 && !cut[hi]) hi++;
        n->set.n = 0;
        n->work += end - first;
        if (n->work > BUILD_MAX_WORK && !too_large(n)) return;
        build_spend(n->b, end - first, n->what);
        if (n->b->status != MB_OK) return;
        for (uint32_t i = first; i < end; i++)
            for (int32_t k = n->first[n->members.v[i]]; k >= 0; k = n->edges[k].next) {
                const struct nfa_edge *e = &n->edges[k];
                if (e->kind == E_BYTES && e->lo <= lo && lo <= e->hi && !push(n, &n->set, e->to)) return;
            }
        uint32_t to = n->set.n && close_set(n, false, false) ? subset_state(n, false) : UINT32_MAX;
        if (n->b->status != MB_OK) return;
        if (to != UINT32_MAX) {
            struct dfa_edge *last = n->n_out > edge0 ? &n->out[n->n_out - 1] : NULL;
            if (last && last->to == to && last->hi + 1 == lo) {
                last->hi = (uint8_t)(hi - 1);
            } else {
                if (!GROW(n, n->out, n->n_out, n->cap_out)) return;
                n->out[n->n_out++] = (struct dfa_edge){ (uint8_t)lo, (uint8_t)(hi - 1), to };
            }
        }
        lo = hi;
    }
    n->states[from].edge0 = edge0;
    n->states[from].n_edges = (uint32_t)(n->n_out - edge0);
}

/* The next symbol (kind, id) above the given one that leaves the subset; false: none. */
static bool next_symbol(const struct nfa *n, uint32_t from, int *kind, int32_t *id)
{
    bool found = false;
    int best_kind = 0;
    int32_t best = 0;
    for (uint32_t i = n->off.v[from]; i < n->off.v[from + 1]; i++)
        for (int32_t k = n->first[n->members.v[i]]; k >= 0; k = n->edges[k].next) {
            const struct nfa_edge *e = &n->edges[k];
            if (e->kind != E_RULE && e->kind != E_TOKEN) continue;
            if (e->kind < *kind || (e->kind == *kind && e->id <= *id)) continue;
            if (found && (e->kind > best_kind || (e->kind == best_kind && e->id >= best))) continue;
            found = true;
            best_kind = e->kind;
            best = e->id;
        }
    *kind = best_kind;
    *id = best;
    return found;
}

static void symbol_edges(struct nfa *n, uint32_t from)
{
    int kind = 0;
    int32_t id = -1;
    uint32_t sym0 = (uint32_t)n->n_syms;
    while (n->b->status == MB_OK && next_symbol(n, from, &kind, &id)) {
        n->set.n = 0;
        for (uint32_t i = n->off.v[from]; i < n->off.v[from + 1]; i++)
            for (int32_t k = n->first[n->members.v[i]]; k >= 0; k = n->edges[k].next)
                if (n->edges[k].kind == kind && n->edges[k].id == id && !push(n, &n->set, n->edges[k].to)) return;
        if (!close_set(n, false, false)) return;
        uint32_t to = subset_state(n, false);
        if (to == UINT32_MAX) continue;
        if (!GROW(n, n->syms, n->n_syms, n->cap_syms)) return;
        n->syms[n->n_syms++] = (struct dfa_sym){ kind == E_TOKEN, id, to };
    }
    n->states[from].sym0 = sym0;
    n->states[from].n_syms = (uint32_t)(n->n_syms - sym0);
}

/* May the text end in subset i? */
static bool accepts(struct nfa *n, uint32_t i)
{
    n->set.n = 0;
    for (uint32_t k = n->off.v[i]; k < n->off.v[i + 1]; k++)
        if (!push(n, &n->set, n->members.v[k])) return false;
    if (!close_set(n, i == 0, true)) return false;
    return is_member(&n->set, 1);
}

static void make_subsets(struct nfa *n)
{
    n->mark = mb_calloc(n->n_states, sizeof *n->mark);
    if (!n->mark) {
        build_fail(n->b, MB_NO_MEMORY, "no memory for compiling a grammar");
        return;
    }
    if (!push(n, &n->off, 0) || !push(n, &n->set, 0) || !close_set(n, true, false)) return;
    if (subset_state(n, true) == UINT32_MAX) return;
    for (uint32_t i = 0; i < n->n_dfa && n->b->status == MB_OK; i++) {
        byte_edges(n, i);
        symbol_edges(n, i);
        if (n->b->status == MB_OK) n->states[i].accept = accepts(n, i);
    }
}

static struct dfa *take_dfa(struct nfa *n)
{
    struct build *b = n->b;
    struct dfa *d = build_alloc(b, 1, sizeof *d);
    if (!d) return NULL;
    d->n_states = (uint32_t)n->n_dfa;
    d->n_edges = (uint32_t)n->n_out;
    d->n_syms = (uint32_t)n->n_syms;
    d->states = n->states;
    d->edges = n->out;
    d->syms = n->syms;
    return dfa_trim(b, d, NULL); /* copies into the arena */
}

static void nfa_free(struct nfa *n)
{
    mb_free(n->first);
    mb_free(n->edges);
    mb_free(n->mark);
    mb_free(n->stack.v);
    mb_free(n->set.v);
    mb_free(n->members.v);
    mb_free(n->off.v);
    mb_free(n->hash);
    mb_free(n->states);
    mb_free(n->out);
    mb_free(n->syms);
}

struct expr *expr_searched(struct build *b, struct expr *x, enum text_form form)
{
    struct cset all = { 0 };
    cset_add(b, &all, 0, 0x10FFFF);
    cset_normalize(&all);
    struct expr *any = expr_repeat(b, expr_class(b, &all, form), 0, REPEAT_INF);
    return expr_seq(b, 3, any, x, any);
}

struct dfa *dfa_of_expr(struct build *b, const struct expr *x, bool search, enum text_form form, const char *what)
{
    if (b->status != MB_OK || !x) return NULL;
    if (search) x = expr_searched(b, (struct expr *)x, form);
    struct nfa n = { .b = b, .what = what };
    struct dfa *d = NULL;
    state_new(&n); /* 0: first */
    state_new(&n); /* 1: last */
    if (b->status == MB_OK) eps(&n, add_expr(&n, 0, x, 0), 1);
    if (b->status == MB_OK) make_subsets(&n);
    if (b->status == MB_OK) d = take_dfa(&n);
    build_spend(b, n.n_states + 200, what);
    nfa_free(&n);
    return d;
}
