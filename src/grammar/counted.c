/* counted.c: masks inside counted repetitions (maxLength, [a-z]{1,64}).
 *
 * Each count would be a place of its own with a full walk of the vocabulary. But for a rule whose texts never begin one
 * another, a token inside the repetition begins a fixed number of iterations, so one walk serves all counts: tokens
 * sorted by that number, and the trie nodes at iteration ends where a token may leave. With n iterations left the mask
 * is the tokens that begin at most n, and below those nodes what the stack allows. That needs the text behind the
 * repetition to begin with other bytes than an iteration does; where it may not, the plain way is taken.
 */
#include <string.h>

#include "grammar/grammar_int.h"

void counted_free(struct counted *t)
{
    if (!t) return;
    mb_free(t->bits);
    mb_free(t->ids);
    mb_free(t->from);
    mb_free(t->nodes);
    mb_free(t->at);
    mb_free(t->leave);
    mb_free(t);
}

void counted_drop_all(struct machine *m)
{
    for (uint32_t i = 0; i < m->n_own_counted; i++) counted_free(m->own_counted[i]);
    mb_free(m->own_counted);
    mb_free(m->counted);
}

/* --- the walk --- */

struct walk {
    struct machine *m;
    struct counted *t;
    uint32_t start;          /* configuration at the beginning of an iteration */
    uint32_t *iterations;    /* [n_vocab] begun by each token, 0: leaves the repetition */
    uint32_t cap_nodes, cap_at;
};

static bool push(struct walk *w, uint32_t **v, uint32_t n, uint32_t *cap, uint32_t x)
{
    if (n == *cap) {
        uint32_t want = *cap ? *cap * 2 : 256, *p = mb_realloc(*v, want * sizeof *p);
        if (!p) {
            w->m->status = MB_NO_MEMORY;
            return false;
        }
        *v = p;
        *cap = want;
    }
    (*v)[n] = x;
    return true;
}

static bool begins(const struct counted *t, uint8_t byte)
{
    return t->first[byte >> 3] >> (byte & 7) & 1;
}

static uint64_t byte_bit(uint8_t byte)
{
    return (uint64_t)1 << (byte & 63);
}

/* The bytes with which tokens go on behind this node without beginning an iteration; 0: none do. */
static uint64_t leaving(const struct walk *w, uint32_t node)
{
    const struct trie_node *nodes = w->m->v->nodes;
    uint64_t set = 0;
    for (uint32_t i = node + 1; i < node + nodes[node].size; i += nodes[i].size)
        if (!begins(w->t, nodes[i].byte)) set |= byte_bit(nodes[i].byte);
    return set;
}

static void walk_all(struct walk *w)
{
    struct machine *m = w->m;
    const struct grammar_vocab *v = m->v;
    uint32_t *at = m->depth_config, *begun = m->depth_config + v->max_len + 2;
    at[0] = w->start;
    begun[0] = 0;
    for (uint32_t i = 1; i < v->n_nodes && m->status == MB_OK && w->t->usable;) {
        const struct trie_node *n = &v->nodes[i];
        uint32_t from = at[n->depth - 1], to = machine_next(m, from, n->byte);
        if (to == CONFIG_DEAD || !machine_spend(m, 2)) {
            i += n->size;
            continue;
        }
        uint32_t k = begun[n->depth - 1] + (from == w->start);
        for (int32_t id = n->token; id >= 0; id = v->same[id]) w->iterations[id] = k;
        if (k > w->t->max) w->t->max = k;
        const struct config *c = &m->configs[to];
        bool ended = c->flags & CF_EXITS;
        /* an iteration that may end here or go on, or that comes back to its beginning, is not of our kind */
        if ((ended && c->n_items) || (!ended && to == w->start)) w->t->usable = false;
        if (ended && n->size > 1 && leaving(w, i)) {
            uint32_t count = w->t->n_nodes;
            if (!push(w, &w->t->nodes, count, &w->cap_nodes, i) || !push(w, &w->t->at, count, &w->cap_at, k)) return;
            w->t->n_nodes++;
        }
        at[n->depth] = ended ? w->start : to;
        begun[n->depth] = k;
        i++;
    }
}

static void sort_ids(struct walk *w)
{
    struct counted *t = w->t;
    int32_t n_vocab = w->m->v->n_vocab;
    t->from = mb_calloc((size_t)t->max + 2, sizeof *t->from);
    t->ids = mb_alloc((size_t)n_vocab * sizeof *t->ids);
    t->bits = mb_calloc(t->n_words, sizeof *t->bits);
    if (!t->from || !t->ids || !t->bits) {
        w->m->status = MB_NO_MEMORY;
        return;
    }
    for (int32_t i = 0; i < n_vocab; i++)
        if (w->iterations[i]) t->from[w->iterations[i] + 1 <= t->max ? w->iterations[i] + 1 : t->max + 1]++;
    for (uint32_t k = 1; k <= t->max + 1; k++) t->from[k] += t->from[k - 1];
    /* from[k + 1] is now the end of k; fill backwards so that it becomes the beginning of k + 1 and stays the end of k */
    uint32_t *fill = mb_alloc(((size_t)t->max + 2) * sizeof *fill);
    if (!fill) {
        w->m->status = MB_NO_MEMORY;
        return;
    }
    memcpy(fill, t->from, ((size_t)t->max + 2) * sizeof *fill);
    for (int32_t i = 0; i < n_vocab; i++) {
        uint32_t k = w->iterations[i];
        if (!k) continue;
        t->ids[fill[k]++] = (uint32_t)i;
        t->bits[i >> 5] |= 1u << (i & 31);
    }
    mb_free(fill);
}

static void note_leaving(struct walk *w)
{
    struct counted *t = w->t;
    t->leave = mb_alloc(((size_t)t->n_nodes + 1) * sizeof *t->leave);
    if (!t->leave) w->m->status = MB_NO_MEMORY;
    for (uint32_t i = 0; t->leave && i < t->n_nodes; i++) t->leave[i] = leaving(w, t->nodes[i]);
}

static struct counted *learn(struct machine *m, const struct prule *r)
{
    struct counted *t = mb_calloc(1, sizeof *t);
    struct walk w = { .m = m, .t = t, .iterations = mb_calloc((size_t)m->v->n_vocab + 1, sizeof(uint32_t)) };
    if (!t || !w.iterations) m->status = MB_NO_MEMORY;
    if (m->status == MB_OK) {
        t->usable = true;
        t->hash[0] = r->hash[0];
        t->hash[1] = r->hash[1];
        t->n_words = ((uint32_t)m->v->n_vocab + 31) / 32;
        w.start = machine_item(m, (struct item){ r->start, CELL_LOCAL });
        for (int b = 0; b < 256 && m->status == MB_OK; b++)
            if (machine_next(m, w.start, (uint8_t)b)) t->first[b >> 3] |= (uint8_t)(1 << (b & 7));
    }
    if (m->status == MB_OK) walk_all(&w);
    if (m->status == MB_OK) sort_ids(&w);
    if (m->status == MB_OK) note_leaving(&w);
    mb_free(w.iterations);
    if (m->status == MB_OK) return t;
    counted_free(t);
    return NULL;
}

/* --- who has it --- */

static struct counted *shared_find(struct grammar_vocab *v, const struct prule *r)
{
    struct counted *found = NULL;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->n_counted; i++)
        if (v->counted[i]->hash[0] == r->hash[0] && v->counted[i]->hash[1] == r->hash[1]) found = v->counted[i];
    pthread_mutex_unlock(&v->lock);
    return found;
}

/* With the vocabulary, while it has places; else with this machine. */
static bool keep(struct machine *m, struct counted *t)
{
    bool shared = false;
    pthread_mutex_lock(&m->v->lock);
    if (m->v->n_counted < sizeof m->v->counted / sizeof *m->v->counted) {
        m->v->counted[m->v->n_counted++] = t;
        shared = true;
    }
    pthread_mutex_unlock(&m->v->lock);
    if (shared) return true;
    struct counted **p = mb_realloc(m->own_counted, (m->n_own_counted + 1) * sizeof *p);
    if (!p) {
        m->status = MB_NO_MEMORY;
        return false;
    }
    m->own_counted = p;
    m->own_counted[m->n_own_counted++] = t;
    return true;
}

const struct counted *counted_get(struct machine *m, uint32_t body_rule)
{
    enum { OWN_MAX = 8 };
    const struct prule *r = &m->p->rules[body_rule];
    if (!r->pure || r->is_repeat) return NULL;
    if (!m->counted && !(m->counted = mb_calloc(m->p->n_rules, sizeof *m->counted))) {
        m->status = MB_NO_MEMORY;
        return NULL;
    }
    struct counted *t = m->counted[body_rule];
    if (!t && !(t = shared_find(m->v, r))) {
        if (m->n_own_counted >= OWN_MAX) return NULL;
        t = learn(m, r);
        if (t && !keep(m, t)) {
            counted_free(t);
            t = NULL;
        }
    }
    m->counted[body_rule] = t;
    return t && t->usable ? t : NULL;
}

/* --- masks --- */

static void add_tokens(struct machine *m, const struct counted *t, uint32_t left, uint32_t *bits)
{
    if (left >= t->max) {
        for (uint32_t i = 0; i < t->n_words; i++) bits[i] |= t->bits[i];
        return;
    }
    uint32_t n = t->from[left + 1], n_all = t->from[t->max + 1];
    if (n < n_all / 2) {
        for (uint32_t i = 0; i < n; i++) bits[t->ids[i] >> 5] |= 1u << (t->ids[i] & 31);
        return;
    }
    memcpy(m->bits, t->bits, t->n_words * sizeof *m->bits);
    for (uint32_t i = n; i < n_all; i++) m->bits[t->ids[i] >> 5] &= ~(1u << (t->ids[i] & 31));
    for (uint32_t i = 0; i < t->n_words; i++) bits[i] |= m->bits[i];
}

/* Does what stands behind the repetition begin with none of its bytes? *set: those with which it begins. */
static bool is_apart(struct machine *m, const struct counted *t, uint32_t behind, uint64_t *set)
{
    *set = 0;
    if (!m->configs[behind].n_items) return true;
    for (int b = 0; b < 256 && m->status == MB_OK; b++) {
        if (!machine_next(m, behind, (uint8_t)b)) continue;
        if (begins(t, (uint8_t)b)) return false;
        *set |= byte_bit((uint8_t)b);
    }
    return m->status == MB_OK;
}

bool counted_mask(struct machine *m, struct item x, uint32_t *bits, size_t n_words)
{
    const struct cell c = m->cells[x.stack];
    if (x.stack <= CELL_LOCAL || !(c.ret & CELL_COUNT)) return false;
    const struct prule *r = &m->p->rules[c.ret & ~CELL_COUNT];
    if (r->hi == REPEAT_INF && r->lo < 2) return false; /* counts do not matter */
    if (x.state != m->p->rules[r->body_rule].start) return false;
    const struct counted *t = counted_get(m, r->body_rule);
    if (!t || t->n_words != n_words) return false;
    uint32_t behind = machine_pop(m, c.parent);
    uint64_t set;
    if (m->status != MB_OK || !is_apart(m, t, behind, &set)) return false;
    uint32_t left = r->hi == REPEAT_INF ? UINT32_MAX : r->hi - c.count, need = r->lo > c.count ? r->lo - c.count : 0;
    add_tokens(m, t, left, bits);
    for (uint32_t i = 0; i < t->n_nodes && m->status == MB_OK && behind; i++)
        if (t->leave[i] & set && t->at[i] >= need && t->at[i] <= left) trie_walk(m, t->nodes[i], behind, bits, NULL);
    return true;
}
