/* link.c: the rules of a build become one program.
 *
 * Only what the start rule reaches is kept, and of that only what can be finished: a rule that matches no finite text
 * takes its calls with it, so a running parser never walks into a dead end. A rule that begins with itself (left
 * recursion, also through rules that may match nothing) would push stacks without reading a byte: refused by name.
 */
#include <string.h>
#include <xxhash.h>

#include "grammar/grammar_int.h"

enum { WIDE_BYTES = 20 }; /* a state that lets through so many bytes is worth a table of tokens of its own */

struct link {
    struct build *b;
    bool *reached, *ok, *nullable;
    int32_t *order;   /* reached rules, the root first */
    size_t n_order;
    uint32_t *number; /* rule -> program rule */
};

static const char *rule_name(const struct build *b, int32_t i)
{
    return b->rules[i].name ? b->rules[i].name : "(unnamed)";
}

static void reach(struct link *l, int32_t rule)
{
    if (rule < 0 || l->reached[rule]) return;
    l->reached[rule] = true;
    l->order[l->n_order++] = rule;
}

/* Every reached rule made deterministic. */
static void make_automata(struct link *l, int32_t root)
{
    struct build *b = l->b;
    reach(l, root);
    for (size_t i = 0; i < l->n_order && b->status == MB_OK; i++) {
        struct build_rule *r = &b->rules[l->order[i]];
        if (r->is_repeat) {
            reach(l, r->body_rule);
            continue;
        }
        if (!r->body) {
            build_fail(b, MB_INTERNAL, "%s has no body", rule_name(b, l->order[i]));
            return;
        }
        if (!r->dfa) r->dfa = dfa_of_expr(b, r->body, false, FORM_RAW, rule_name(b, l->order[i]));
        for (uint32_t k = 0; r->dfa && k < r->dfa->n_syms; k++)
            if (!r->dfa->syms[k].is_token) reach(l, r->dfa->syms[k].id);
    }
}

/* Can the automaton go from its start to acceptance over edges, tokens and finished rules? */
static bool can_finish(struct link *l, const struct dfa *d, bool *seen, uint32_t *stack)
{
    uint32_t n = 0;
    memset(seen, 0, d->n_states * sizeof *seen);
    seen[0] = true;
    stack[n++] = 0;
    while (n) {
        const struct dfa_state *s = &d->states[stack[--n]];
        if (s->accept) return true;
        for (uint32_t k = 0; k < s->n_edges + s->n_syms; k++) {
            const struct dfa_sym *y = k < s->n_edges ? NULL : &d->syms[s->sym0 + k - s->n_edges];
            uint32_t to = y ? y->to : d->edges[s->edge0 + k].to;
            if (seen[to] || (y && !y->is_token && !l->ok[y->id])) continue;
            seen[to] = true;
            stack[n++] = to;
        }
    }
    return false;
}

static void find_finishing(struct link *l)
{
    struct build *b = l->b;
    uint32_t most = 1;
    for (size_t i = 0; i < l->n_order; i++)
        if (b->rules[l->order[i]].dfa && b->rules[l->order[i]].dfa->n_states > most) most = b->rules[l->order[i]].dfa->n_states;
    bool *seen = build_alloc(b, most, sizeof *seen);
    uint32_t *stack = build_alloc(b, most, sizeof *stack);
    for (bool changed = seen && stack; changed;) {
        changed = false;
        for (size_t i = l->n_order; i-- > 0;) {
            struct build_rule *r = &b->rules[l->order[i]];
            bool *ok = &l->ok[l->order[i]];
            if (*ok) continue;
            *ok = r->is_repeat ? r->lo == 0 || l->ok[r->body_rule] : can_finish(l, r->dfa, seen, stack);
            changed |= *ok;
        }
    }
}

static void trim_all(struct link *l)
{
    struct build *b = l->b;
    memset(l->reached, 0, b->n_rules * sizeof *l->reached);
    size_t n_before = l->n_order;
    int32_t root = l->order[0];
    l->n_order = 0;
    reach(l, root);
    for (size_t i = 0; i < l->n_order && i < n_before && b->status == MB_OK; i++) {
        struct build_rule *r = &b->rules[l->order[i]];
        if (r->is_repeat) {
            if (!l->ok[r->body_rule]) r->hi = 0;
            else reach(l, r->body_rule);
            continue;
        }
        r->dfa = dfa_trim(b, r->dfa, l->ok);
        for (uint32_t k = 0; r->dfa && k < r->dfa->n_syms; k++)
            if (!r->dfa->syms[k].is_token) reach(l, r->dfa->syms[k].id);
    }
}

/* --- left recursion --- */

/* Calls that the rule can make before it has read a byte, into out; *nullable: it can also end there. */
static size_t left_calls(struct link *l, int32_t rule, int32_t *out, bool *seen, uint32_t *stack, bool *nullable)
{
    const struct build_rule *r = &l->b->rules[rule];
    size_t n_out = 0;
    *nullable = false;
    if (r->is_repeat) {
        *nullable = r->lo == 0 || l->nullable[r->body_rule];
        if (r->hi) out[n_out++] = r->body_rule;
        return n_out;
    }
    const struct dfa *d = r->dfa;
    uint32_t n = 0;
    memset(seen, 0, d->n_states * sizeof *seen);
    seen[0] = true;
    stack[n++] = 0;
    while (n) {
        const struct dfa_state *s = &d->states[stack[--n]];
        *nullable |= s->accept;
        for (uint32_t k = 0; k < s->n_syms; k++) {
            const struct dfa_sym *y = &d->syms[s->sym0 + k];
            if (y->is_token) continue;
            out[n_out++] = y->id;
            if (!l->nullable[y->id] || seen[y->to]) continue;
            seen[y->to] = true;
            stack[n++] = y->to;
        }
    }
    return n_out;
}

struct left {
    int32_t *calls;
    size_t n, at;
    int color; /* 0 new, 1 on the path, 2 done */
};

/* Depth first over left calls, with a stack of our own. */
static void refuse_left_recursion(struct link *l, struct left *left)
{
    struct build *b = l->b;
    int32_t *path = build_alloc(b, b->n_rules, sizeof *path);
    for (size_t i = 0; path && i < l->n_order; i++) {
        size_t n = 0;
        if (left[l->order[i]].color) continue;
        path[n++] = l->order[i];
        left[l->order[i]].color = 1;
        while (n) {
            struct left *x = &left[path[n - 1]];
            if (x->at == x->n) {
                x->color = 2;
                n--;
                continue;
            }
            int32_t to = x->calls[x->at++];
            if (left[to].color == 1) {
                build_fail(b, MB_UNSUPPORTED, "%s begins with itself (left recursion through other rules or "
                           "repetitions of nothing): write it as a repetition", rule_name(b, to));
                return;
            }
            if (left[to].color == 0) {
                left[to].color = 1;
                path[n++] = to;
            }
        }
    }
}

static void check_left_recursion(struct link *l)
{
    struct build *b = l->b;
    uint32_t most = 1;
    size_t most_syms = 1;
    for (size_t i = 0; i < l->n_order; i++) {
        const struct dfa *d = b->rules[l->order[i]].dfa;
        if (d && d->n_states > most) most = d->n_states;
        if (d && d->n_syms > most_syms) most_syms = d->n_syms;
    }
    bool *seen = build_alloc(b, most, sizeof *seen);
    uint32_t *stack = build_alloc(b, most, sizeof *stack);
    int32_t *out = build_alloc(b, most_syms + 1, sizeof *out);
    struct left *left = build_alloc(b, b->n_rules, sizeof *left);
    if (b->status != MB_OK) return;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = l->n_order; i-- > 0;) {
            int32_t rule = l->order[i];
            bool nullable;
            left_calls(l, rule, out, seen, stack, &nullable);
            if (nullable && !l->nullable[rule]) l->nullable[rule] = changed = true;
        }
    }
    for (size_t i = 0; i < l->n_order; i++) {
        bool nullable;
        struct left *x = &left[l->order[i]];
        x->n = left_calls(l, l->order[i], out, seen, stack, &nullable);
        x->calls = build_alloc(b, x->n, sizeof *x->calls);
        if (!x->calls) return;
        memcpy(x->calls, out, x->n * sizeof *out);
    }
    refuse_left_recursion(l, left);
    for (size_t i = 0; i < l->n_order; i++) {
        const struct build_rule *r = &b->rules[l->order[i]];
        if (r->is_repeat && r->hi && r->hi != REPEAT_INF && l->nullable[r->body_rule])
            build_fail(b, MB_UNSUPPORTED, "a repetition of up to %u times of something that may be empty", r->hi);
    }
}

/* --- the program --- */

static void put_state(struct program *p, const struct link *l, const struct dfa *d, uint32_t i, uint32_t base, uint32_t rule)
{
    const struct dfa_state *s = &d->states[i];
    struct pstate *o = &p->states[p->n_states++];
    *o = (struct pstate){ .edge0 = p->n_edges, .sym0 = p->n_syms, .n_edges = (uint16_t)s->n_edges, .n_syms = s->n_syms,
                          .accept = s->accept, .only_accept = s->accept && !s->n_edges && !s->n_syms, .rule = rule };
    int n_bytes = 0;
    for (uint32_t k = 0; k < s->n_edges; k++) {
        struct dfa_edge e = d->edges[s->edge0 + k];
        n_bytes += e.hi - e.lo + 1;
        e.to += base;
        p->edges[p->n_edges++] = e;
    }
    for (uint32_t k = 0; k < s->n_syms; k++) {
        struct dfa_sym y = d->syms[s->sym0 + k];
        y.to += base;
        if (y.is_token) o->has_tokens = true;
        else y.id = (int32_t)l->number[y.id];
        p->syms[p->n_syms++] = y;
    }
    o->wide = n_bytes >= WIDE_BYTES;
}

/* A chain of hashes: one word pair after the other, each seeded with what came before. */
static void hash_words(struct prule *r, uint32_t x, uint32_t y)
{
    uint32_t words[2] = { x, y };
    r->hash[0] = XXH3_64bits_withSeed(words, sizeof words, r->hash[0]);
    r->hash[1] = XXH64(words, sizeof words, r->hash[1] + 1);
}

static void hash_rule(struct prule *r, const struct dfa *d)
{
    for (uint32_t i = 0; i < d->n_states; i++) {
        hash_words(r, d->states[i].accept, d->states[i].n_edges);
        for (uint32_t k = 0; k < d->states[i].n_edges; k++) {
            const struct dfa_edge *e = &d->edges[d->states[i].edge0 + k];
            hash_words(r, (uint32_t)e->lo << 8 | e->hi, e->to);
        }
    }
}

static void put_rule(struct program *p, const struct link *l, int32_t rule)
{
    const struct build_rule *r = &l->b->rules[rule];
    struct prule *o = &p->rules[p->n_rules];
    *o = (struct prule){ .start = p->n_states, .is_repeat = r->is_repeat };
    if (r->is_repeat) {
        o->body_rule = r->hi ? l->number[r->body_rule] : 0;
        o->lo = r->lo;
        o->hi = r->hi;
    } else {
        uint32_t base = p->n_states;
        o->n_states = r->dfa->n_states;
        o->pure = r->dfa->n_syms == 0;
        if (o->pure) hash_rule(o, r->dfa);
        for (uint32_t i = 0; i < r->dfa->n_states; i++) put_state(p, l, r->dfa, i, base, p->n_rules);
    }
    p->n_rules++;
}

static mb_status make_program(struct program *p, struct link *l, mb_error *err)
{
    struct build *b = l->b;
    size_t n_states = 0, n_edges = 0, n_syms = 0;
    for (size_t i = 0; i < l->n_order; i++) {
        l->number[l->order[i]] = (uint32_t)i;
        const struct dfa *d = b->rules[l->order[i]].dfa;
        if (!d) continue;
        n_states += d->n_states;
        n_edges += d->n_edges;
        n_syms += d->n_syms;
    }
    if (n_states >= CELL_COUNT || n_edges > UINT32_MAX || n_syms > UINT32_MAX)
        return mb_fail(err, MB_TOO_LARGE, "the grammar has too many states");
    p->bytes = n_states * sizeof *p->states + n_syms * sizeof *p->syms + n_edges * sizeof *p->edges +
               l->n_order * sizeof *p->rules;
    char *at = p->block = mb_alloc(p->bytes);
    if (!at) return mb_fail(err, MB_NO_MEMORY, "no memory for a grammar");
    p->rules = (struct prule *)(void *)at; /* the most aligned first */
    at += l->n_order * sizeof *p->rules;
    p->states = (struct pstate *)(void *)at;
    at += n_states * sizeof *p->states;
    p->syms = (struct dfa_sym *)(void *)at;
    at += n_syms * sizeof *p->syms;
    p->edges = (struct dfa_edge *)(void *)at;
    for (size_t i = 0; i < l->n_order; i++) put_rule(p, l, l->order[i]);
    p->root = 0;
    return MB_OK;
}

mb_status program_link(struct program *p, struct build *b, int32_t root, mb_error *err)
{
    struct link l = { .b = b };
    memset(p, 0, sizeof *p);
    if (b->status != MB_OK) return b->status;
    /* bodies may be made while linking nothing: the number of rules is final here */
    l.reached = build_alloc(b, 3 * b->n_rules, sizeof *l.reached);
    l.order = build_alloc(b, b->n_rules, sizeof *l.order);
    l.number = build_alloc(b, b->n_rules, sizeof *l.number);
    if (b->status != MB_OK) return b->status;
    l.ok = l.reached + b->n_rules;
    l.nullable = l.ok + b->n_rules;
    make_automata(&l, root);
    if (b->status == MB_OK) find_finishing(&l);
    if (b->status == MB_OK && !l.ok[root])
        build_fail(b, MB_INVALID, "no finite text satisfies the %s", b->rules[root].name ? b->rules[root].name : "grammar");
    if (b->status == MB_OK) trim_all(&l);
    if (b->status == MB_OK) check_left_recursion(&l);
    if (b->status != MB_OK) return b->status;
    return make_program(p, &l, err);
}

void program_free(struct program *p)
{
    mb_free(p->block);
    memset(p, 0, sizeof *p);
}
