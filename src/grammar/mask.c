/* mask.c: which tokens a configuration lets through.
 *
 * The plain way is one pass over the trie with the configuration behind each node's bytes; what the machine remembers
 * makes that a table look-up a node, but a place where almost any byte may stand (inside a string) visits almost every
 * node. So items in wide states take what is known about the state alone (local.c) and walk only the tokens that leave
 * its rule; the rest of the items allow few bytes and are walked.
 * The result is remembered with the configuration, as ids or as words, whichever is smaller.
 */
#include <string.h>

#include "grammar/grammar_int.h"

static inline void set_tokens(uint32_t *bits, const struct grammar_vocab *v, const struct trie_node *n)
{
    for (int32_t id = token_first(n); id >= 0; id = token_next(v, n, id)) bits[id >> 5] |= 1u << (id & 31);
}

void frontier_add(struct machine *m, struct frontier *f, uint32_t node)
{
    if (f->n == f->cap) {
        uint32_t want = f->cap ? f->cap * 2 : 256;
        uint32_t *p = mb_realloc(f->nodes, want * sizeof *p);
        if (!p) {
            if (m->status == MB_OK) m->status = MB_NO_MEMORY;
            return;
        }
        f->nodes = p;
        f->cap = want;
    }
    f->nodes[f->n++] = node;
}

static inline uint32_t next_config(struct machine *m, uint32_t config, uint8_t byte)
{
    const uint32_t *next = m->configs[config].next;
    if (next && next[byte] != CONFIG_UNKNOWN) return next[byte];
    return machine_next(m, config, byte);
}

enum { WORTH_ASKING = 24 }; /* nodes of a subtree from which it pays to ask whether all of it stays in one place */

/* All tokens below node i. */
static void set_subtree(const struct grammar_vocab *v, uint32_t i, uint32_t *bits)
{
    for (uint32_t k = i + 1, end = i + v->nodes[i].size; k < end; k++)
        set_tokens(bits, v, &v->nodes[k]);
}

void trie_walk(struct machine *m, uint32_t node, uint32_t config, uint32_t *bits, struct frontier *f)
{
    const struct grammar_vocab *v = m->v;
    const struct trie_node *nodes = v->nodes;
    uint32_t base = nodes[node].depth, end = node + nodes[node].size, *at = m->depth_config, visited = 0;
    if (!m->configs[config].n_items) return;
    at[0] = config;
    for (uint32_t i = node + 1; i < end && m->status == MB_OK;) {
        const struct trie_node *n = &nodes[i];
        uint32_t d = n->depth - base, to = next_config(m, at[d - 1], n->byte);
        if (++visited >= 1024) machine_spend(m, visited), visited = 0;
        if (to == CONFIG_DEAD) {
            i += n->size;
            continue;
        }
        set_tokens(bits, v, n);
        bool exits = f && (m->configs[to].flags & CF_EXITS);
        if (exits && n->size > 1) frontier_add(m, f, i);
        at[d] = to;
        if (to == at[d - 1] && n->size >= WORTH_ASKING && !exits && !(n->below & ~machine_self(m, to))) {
            set_subtree(v, i, bits);
            visited += n->size / 4;
            i += n->size;
        } else {
            i += m->configs[to].n_items ? 1 : n->size;
        }
    }
    machine_spend(m, visited);
}

static void wide_item(struct machine *m, struct item x, uint32_t *bits, size_t n_words)
{
    const struct local *l = local_get(m, x.state);
    if (!l) { /* no room for the table, or a failure */
        uint32_t config = m->status == MB_OK ? machine_item(m, x) : CONFIG_DEAD;
        if (config) trie_walk(m, 0, config, bits, NULL);
        return;
    }
    for (size_t i = 0; i < n_words; i++) bits[i] |= l->bits[i];
    if (!l->n_frontier) return;
    uint32_t behind = machine_pop(m, x.stack);
    for (uint32_t i = 0; i < l->n_frontier && m->status == MB_OK && behind; i++)
        trie_walk(m, l->frontier[i], behind, bits, NULL);
}

static void named_tokens(struct machine *m, uint32_t config, uint32_t *bits)
{
    const struct config *c = &m->configs[config];
    for (uint32_t i = 0; i < c->n_items; i++) {
        const struct pstate *s = &m->p->states[c->items[i].state];
        for (uint32_t k = 0; k < s->n_syms && s->has_tokens; k++) {
            const struct dfa_sym *y = &m->p->syms[s->sym0 + k];
            if (y->is_token) bits[y->id >> 5] |= 1u << (y->id & 31);
        }
    }
}

static void compute(struct machine *m, uint32_t config, uint32_t *bits, size_t n_words)
{
    memset(bits, 0, n_words * sizeof *bits);
    uint32_t narrow = machine_subset(m, config, false);
    if (narrow) trie_walk(m, 0, narrow, bits, NULL);
    for (uint32_t i = 0; i < m->configs[config].n_items && m->status == MB_OK; i++) {
        struct item x = m->configs[config].items[i];
        if (m->p->states[x.state].wide && !counted_mask(m, x, bits, n_words)) wide_item(m, x, bits, n_words);
    }
    if (m->configs[config].flags & CF_TOKENS) named_tokens(m, config, bits);
}

/* --- remembered masks --- */

static size_t mask_size(const struct mask *k, size_t n_words)
{
    return sizeof *k + (k->dense ? n_words : k->n_ids) * sizeof *k->data;
}

void mask_drop_all(struct machine *m)
{
    for (uint32_t i = 0; i < m->n_configs; i++) m->configs[i].mask = NULL;
    for (uint32_t i = 0; i < m->n_masks; i++) mb_free(m->masks[i]);
    m->n_masks = 0;
    m->mask_bytes = 0;
}

/* Keep a copy; a lack of room or memory only means that it is computed again. */
static void remember(struct machine *m, uint32_t config, const uint32_t *bits, size_t n_words)
{
    size_t n = 0;
    for (size_t i = 0; i < n_words; i++) n += (size_t)__builtin_popcount(bits[i]);
    bool dense = n >= n_words;
    size_t bytes = sizeof(struct mask) + (dense ? n_words : n) * sizeof *bits;
    if (m->mask_bytes + bytes > m->limits.max_machine_bytes / 2) mask_drop_all(m);
    if (m->n_masks == m->cap_masks) {
        uint32_t want = m->cap_masks ? m->cap_masks * 2 : 64;
        struct mask **p = mb_realloc(m->masks, want * sizeof *p);
        if (!p) return;
        m->masks = p;
        m->cap_masks = want;
    }
    struct mask *k = mb_alloc(bytes);
    if (!k) return;
    k->n_ids = (uint32_t)n;
    k->dense = dense;
    if (dense) memcpy(k->data, bits, n_words * sizeof *bits);
    n = 0;
    for (size_t i = 0; i < n_words && !dense; i++)
        for (uint32_t w = bits[i]; w; w &= w - 1) k->data[n++] = (uint32_t)(i * 32) + (uint32_t)__builtin_ctz(w);
    m->masks[m->n_masks++] = k;
    m->mask_bytes += mask_size(k, n_words);
    m->configs[config].mask = k;
}

void mask_get(struct machine *m, uint32_t config, uint32_t *bits, size_t n_words)
{
    config = machine_abs(m, config);
    if (m->status != MB_OK) return;
    const struct mask *k = m->configs[config].mask;
    if (k) {
        m->hits++;
        if (k->dense) {
            memcpy(bits, k->data, n_words * sizeof *bits);
        } else {
            memset(bits, 0, n_words * sizeof *bits);
            for (uint32_t i = 0; i < k->n_ids; i++) bits[k->data[i] >> 5] |= 1u << (k->data[i] & 31);
        }
        return;
    }
    m->misses++;
    compute(m, config, bits, n_words);
    if (m->status == MB_OK) remember(m, config, bits, n_words);
}
