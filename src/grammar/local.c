/* local.c: what one state of one rule lets through, whatever the stack below it.
 *
 * Inside a free string nearly every token stays inside the string; that part of the mask is a property of the state.
 * Walked once, it is kept as a bit set of the tokens that end inside the rule (or exactly where it may end) and the
 * list of trie nodes where the rule may end while tokens go on: only below those the stack matters.
 * Rules without calls are known by a hash of their automaton, so all grammars of a vocabulary share what was learnt
 * about "a JSON string"; the shared list is bounded and forgets the oldest.
 */
#include <string.h>

#include "grammar/grammar_int.h"

#define SHARED_MAX_BYTES ((size_t)64 << 20)

void local_free(struct local *l)
{
    mb_free(l);
}

static void unref_locked(struct local *l)
{
    if (l && --l->n_refs == 0) local_free(l);
}

void local_drop_all(struct machine *m)
{
    if (!m->locals) return;
    pthread_mutex_lock(&m->v->lock);
    for (uint32_t i = 0; i < m->p->n_states; i++) {
        unref_locked(m->locals[i]);
        m->locals[i] = NULL;
    }
    pthread_mutex_unlock(&m->v->lock);
    m->local_bytes = 0;
}

static struct local *shared_find(struct grammar_vocab *v, const struct prule *r, uint32_t state)
{
    struct local *found = NULL;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->n_locals && !found; i++) {
        struct local *l = v->locals[i];
        if (l->state == state && l->hash[0] == r->hash[0] && l->hash[1] == r->hash[1]) {
            l->n_refs++;
            found = l;
        }
    }
    pthread_mutex_unlock(&v->lock);
    return found;
}

/* Newest first; a lack of memory only means that others learn it again. */
static void shared_add(struct grammar_vocab *v, struct local *l)
{
    pthread_mutex_lock(&v->lock);
    while (v->n_locals && v->locals_bytes + l->bytes > SHARED_MAX_BYTES) {
        struct local *last = v->locals[--v->n_locals];
        v->locals_bytes -= last->bytes;
        unref_locked(last);
    }
    struct local **p = mb_realloc(v->locals, (v->n_locals + 1) * sizeof *p);
    if (p) {
        memmove(p + 1, p, v->n_locals * sizeof *p);
        p[0] = l;
        v->locals = p;
        v->n_locals++;
        v->locals_bytes += l->bytes;
        l->n_refs++;
    }
    pthread_mutex_unlock(&v->lock);
}

/* A table from m->bits and m->frontier. */
static struct local *local_new(struct machine *m, size_t n_words)
{
    size_t bytes = sizeof(struct local) + (n_words + m->frontier.n) * sizeof(uint32_t);
    struct local *l = mb_calloc(1, bytes);
    if (!l) {
        m->status = MB_NO_MEMORY;
        return NULL;
    }
    l->n_refs = 1;
    l->bytes = bytes;
    l->bits = (uint32_t *)(void *)(l + 1);
    l->frontier = l->bits + n_words;
    l->n_frontier = m->frontier.n;
    memcpy(l->bits, m->bits, n_words * sizeof *l->bits);
    if (l->n_frontier) memcpy(l->frontier, m->frontier.nodes, l->n_frontier * sizeof *l->frontier);
    return l;
}

/* --- learning by difference --- */

#define VISITED_EXITS 0x80000000u

/* Walk with two configurations at once. Where they come to stand at the same place, all tokens below behave as those of
 * the base, whose bits are already there; only the other nodes are decided anew. m->frontier receives those, ascending,
 * marked where the rule may end. */
static void walk_difference(struct machine *m, uint32_t config, uint32_t base)
{
    const struct grammar_vocab *v = m->v;
    uint32_t *at = m->depth_config, *base_at = m->depth_config + v->max_len + 2;
    at[0] = config;
    base_at[0] = base;
    for (uint32_t i = 1; i < v->n_nodes && m->status == MB_OK;) {
        const struct trie_node *n = &v->nodes[i];
        uint32_t to = machine_next(m, at[n->depth - 1], n->byte), base_to = machine_next(m, base_at[n->depth - 1], n->byte);
        if (to == base_to || !machine_spend(m, 4)) {
            i += n->size;
            continue;
        }
        for (int32_t id = token_first(n); id >= 0; id = token_next(v, n, id)) {
            m->bits[id >> 5] &= ~(1u << (id & 31));
            if (to != CONFIG_DEAD) m->bits[id >> 5] |= 1u << (id & 31);
        }
        bool exits = (m->configs[to].flags & CF_EXITS) && n->size > 1;
        frontier_add(m, &m->frontier, exits ? i | VISITED_EXITS : i);
        at[n->depth] = to;
        base_at[n->depth] = base_to;
        i++;
    }
}

/* m->frontier: visited nodes become the frontier, together with the base's nodes that were not visited. */
static void merge_frontier(struct machine *m, const struct local *base)
{
    uint32_t n = m->frontier.n, k = 0;
    for (uint32_t i = 0; i < base->n_frontier && m->status == MB_OK; i++) frontier_add(m, &m->frontier, 0);
    if (m->status != MB_OK || m->frontier.n == 0) return;
    uint32_t *all = m->frontier.nodes, *visited = all + base->n_frontier, out = 0; /* the visited ones move to the end */
    memmove(visited, all, n * sizeof *all);
    for (uint32_t i = 0; i < n || k < base->n_frontier;) {
        uint32_t node = i < n ? visited[i] & ~VISITED_EXITS : UINT32_MAX;
        if (k < base->n_frontier && base->frontier[k] < node) {
            all[out++] = base->frontier[k++];
            continue;
        }
        if (k < base->n_frontier && base->frontier[k] == node) k++;
        bool exits = visited[i++] & VISITED_EXITS;
        if (exits) all[out++] = node;
    }
    m->frontier.n = out;
}

/* Is walking the difference to `base` less than half of a walk from nothing? By the first bytes of all tokens. */
static bool is_near(struct machine *m, uint32_t config, uint32_t base)
{
    const struct trie_node *nodes = m->v->nodes;
    size_t differ = 0, alone = 0;
    for (uint32_t i = 1; i < nodes[0].size && m->status == MB_OK; i += nodes[i].size) {
        uint32_t to = machine_next(m, config, nodes[i].byte);
        if (to != CONFIG_DEAD) alone += nodes[i].size;
        if (to != machine_next(m, base, nodes[i].byte)) differ += nodes[i].size;
    }
    return 2 * differ < alone;
}

/* A state that this one goes to with ordinary characters and that has tables, or may get them: inside a text most
 * states differ from it by a few tokens only. UINT32_MAX: none. */
static uint32_t neighbour(struct machine *m, uint32_t state, uint32_t config)
{
    static const uint8_t samples[] = { 'q', 'z', '7', ' ', '#' };
    for (size_t i = 0; i < sizeof samples && m->status == MB_OK; i++) {
        const struct config *c = &m->configs[machine_next(m, config, samples[i])];
        if (c->n_items != 1 || c->flags || c->items[0].stack != CELL_LOCAL || c->items[0].state == state) continue;
        uint32_t there = c->items[0].state;
        if (m->p->states[there].wide && is_near(m, config, machine_item(m, (struct item){ there, CELL_LOCAL }))) return there;
    }
    return UINT32_MAX;
}

static const struct local *base_of(struct machine *m, uint32_t state, uint32_t config, uint32_t *base_state)
{
    if (m->learning) return NULL;
    *base_state = neighbour(m, state, config);
    if (*base_state == UINT32_MAX) return NULL;
    m->learning = true;
    const struct local *base = local_get(m, *base_state);
    m->learning = false;
    return base;
}

static struct local *learn(struct machine *m, uint32_t state)
{
    size_t n_words = ((size_t)m->v->n_vocab + 31) / 32;
    uint32_t config = machine_item(m, (struct item){ state, CELL_LOCAL }), base_state = 0;
    if (!config) return NULL;
    const struct local *base = base_of(m, state, config, &base_state);
    m->frontier.n = 0;
    if (base) {
        memcpy(m->bits, base->bits, n_words * sizeof *m->bits);
        walk_difference(m, config, machine_item(m, (struct item){ base_state, CELL_LOCAL }));
        if (m->status == MB_OK) merge_frontier(m, base);
    } else if (m->status == MB_OK) {
        memset(m->bits, 0, n_words * sizeof *m->bits);
        trie_walk(m, 0, config, m->bits, &m->frontier);
    }
    return m->status == MB_OK ? local_new(m, n_words) : NULL;
}

const struct local *local_get(struct machine *m, uint32_t state)
{
    if (!m->locals) {
        m->locals = mb_calloc(m->p->n_states, sizeof *m->locals);
        if (!m->locals) {
            m->status = MB_NO_MEMORY;
            return NULL;
        }
    }
    if (m->locals[state]) return m->locals[state];
    const struct prule *r = &m->p->rules[m->p->states[state].rule];
    struct local *l = r->pure ? shared_find(m->v, r, state - r->start) : NULL;
    if (!l) {
        if (m->local_bytes > m->limits.max_machine_bytes / 4) return NULL;
        l = learn(m, state);
        if (!l) return NULL;
        if (r->pure) {
            l->hash[0] = r->hash[0];
            l->hash[1] = r->hash[1];
            l->state = state - r->start;
            shared_add(m->v, l);
        }
        m->local_bytes += l->bytes;
    }
    return m->locals[state] = l;
}
