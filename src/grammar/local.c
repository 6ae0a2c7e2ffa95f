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

static struct local *learn(struct machine *m, uint32_t state)
{
    size_t n_words = ((size_t)m->v->n_vocab + 31) / 32;
    uint32_t config = machine_item(m, (struct item){ state, CELL_LOCAL });
    if (!config) return NULL;
    memset(m->bits, 0, n_words * sizeof *m->bits);
    m->frontier.n = 0;
    trie_walk(m, 0, config, m->bits, &m->frontier);
    if (m->status != MB_OK) return NULL;
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
