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
    mb_free(t->exits);
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
    uint8_t whole;           /* classes each of whose bytes is an iteration by itself */
    struct begun {
        uint32_t id, n;
    } *begun;                /* tokens that do not leave the repetition, with the iterations that they begin */
    uint32_t n_begun, cap_begun, cap_exits;
};

/* Room for one more in *v. */
static bool grow(struct walk *w, void **v, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap) return true;
    uint32_t want = *cap ? *cap * 2 : 1024;
    void *p = mb_realloc(*v, want * size);
    if (!p) {
        w->m->status = MB_NO_MEMORY;
        return false;
    }
    *v = p;
    *cap = want;
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

static void note_tokens(struct walk *w, const struct trie_node *n, uint32_t k)
{
    for (int32_t id = token_first(n); id >= 0; id = token_next(w->m->v, n, id)) {
        if (!grow(w, (void **)&w->begun, w->n_begun, &w->cap_begun, sizeof *w->begun)) return;
        w->begun[w->n_begun++] = (struct begun){ (uint32_t)id, k };
    }
    if (k > w->t->max) w->t->max = k;
}

static void note_exit(struct walk *w, uint32_t node, uint32_t k)
{
    uint64_t leave = leaving(w, node);
    if (!leave || !grow(w, (void **)&w->t->exits, w->t->n_exits, &w->cap_exits, sizeof *w->t->exits)) return;
    w->t->exits[w->t->n_exits++] = (struct counted_exit){ node, k, leave };
}

/* Below a node at the end of iteration k, where each byte is one more. */
static void walk_whole(struct walk *w, uint32_t node, uint32_t k)
{
    const struct trie_node *nodes = w->m->v->nodes;
    machine_spend(w->m, nodes[node].size / 4);
    for (uint32_t i = node + 1; i < node + nodes[node].size && w->m->status == MB_OK; i++)
        note_tokens(w, &nodes[i], k + nodes[i].depth - nodes[node].depth);
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
        note_tokens(w, n, k);
        const struct config *c = &m->configs[to];
        bool ended = c->flags & CF_EXITS;
        /* an iteration that may end here or go on, or that comes back to its beginning, is not of our kind */
        if ((ended && c->n_items) || (!ended && to == w->start)) w->t->usable = false;
        if (ended && n->size > 1) {
            if (!(n->below & ~w->whole)) {
                walk_whole(w, i, k);
                i += n->size;
                continue;
            }
            note_exit(w, i, k);
        }
        at[n->depth] = ended ? w->start : to;
        begun[n->depth] = k;
        i++;
    }
}

/* Counting sort by iterations begun. */
static void sort_ids(struct walk *w)
{
    struct counted *t = w->t;
    t->from = mb_calloc((size_t)t->max + 2, sizeof *t->from);
    t->ids = mb_alloc(((size_t)w->n_begun + 1) * sizeof *t->ids);
    t->bits = mb_calloc(t->n_words, sizeof *t->bits);
    uint32_t *fill = mb_alloc(((size_t)t->max + 2) * sizeof *fill);
    if (!t->from || !t->ids || !t->bits || !fill) {
        w->m->status = MB_NO_MEMORY;
        mb_free(fill);
        return;
    }
    for (uint32_t i = 0; i < w->n_begun; i++) t->from[w->begun[i].n + 1]++;
    for (uint32_t k = 1; k <= t->max + 1; k++) t->from[k] += t->from[k - 1];
    memcpy(fill, t->from, ((size_t)t->max + 2) * sizeof *fill);
    for (uint32_t i = 0; i < w->n_begun; i++) {
        uint32_t id = w->begun[i].id;
        t->ids[fill[w->begun[i].n]++] = id;
        t->bits[id >> 5] |= 1u << (id & 31);
    }
    mb_free(fill);
}

/* What each byte does at the beginning of an iteration. */
static void try_bytes(struct walk *w)
{
    struct machine *m = w->m;
    uint8_t not_whole = 0;
    for (int b = 0; b < 256 && m->status == MB_OK; b++) {
        const struct config *c = &m->configs[machine_next(m, w->start, (uint8_t)b)];
        if (c != m->configs) w->t->first[b >> 3] |= (uint8_t)(1 << (b & 7));
        if (!(c->flags & CF_EXITS) || c->n_items) not_whole |= byte_class((uint8_t)b);
    }
    w->whole = (uint8_t)~not_whole;
}

static struct counted *learn(struct machine *m, const struct prule *r)
{
    struct counted *t = mb_calloc(1, sizeof *t);
    struct walk w = { .m = m, .t = t };
    if (!t) m->status = MB_NO_MEMORY;
    if (m->status == MB_OK) {
        t->usable = true;
        t->hash[0] = r->hash[0];
        t->hash[1] = r->hash[1];
        t->n_words = ((uint32_t)m->v->n_vocab + 31) / 32;
        w.start = machine_item(m, (struct item){ r->start, CELL_LOCAL });
    }
    if (m->status == MB_OK) try_bytes(&w);
    if (m->status == MB_OK) walk_all(&w);
    if (m->status == MB_OK) sort_ids(&w);
    mb_free(w.begun);
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
    for (uint32_t i = 0; i < t->n_exits && m->status == MB_OK && behind; i++) {
        const struct counted_exit *e = &t->exits[i];
        if (e->leave & set && e->at >= need && e->at <= left) trie_walk(m, e->node, behind, bits, NULL);
    }
    return true;
}
