/* prefix_tree.h: prefixes whose keys are still in the pool, by content.
 *
 * A radix tree over 64-bit symbols (token ids, or hashes inside media) whose edges are one KV page long: a node is the
 * run of up to KV_PAGE_TOKENS symbols that one page holds, with the page of each kind. Only leaves may be shorter.
 * The first edge also compares a 64-bit key (checkpoint, adapters, KV format ...), so that caches never mix.
 * Siblings form a treap ordered by their symbols: the longest common prefix is next to the place of insertion.
 *
 * What a node may lack: pages of window kinds (they go first when room is short) and states of recurrent kinds: copies of them
 * are kept at the prompt's end - 1, at the ends of its messages (and of the system and tools part), at 1, 2, 4, 8 .. pages of it
 * while memory is free, and at the end of the generated text. A hit ends at the deepest index where every kind has what a query needs.
 * Order of loss: window pages that left every window, oldest first; then the least recently used leaf. Bytes are capped.
 *
 * Nodes come from slabs that grow when a sequence is admitted (prefix_tree_reserve); publishing allocates nothing.
 * Threads: the engine's only.
 */
#ifndef ENGINE_PREFIX_TREE_H
#define ENGINE_PREFIX_TREE_H

#include "engine/kv.h"

#define TREE_MAX_SNAPS 6 /* states kept in one node, over all recurrent kinds */

/* The symbols of a sequence: sym (may be NULL) for [0, n_sym), ids behind or instead. */
struct symbol_view {
    const uint64_t *sym;
    int32_t n_sym;
    const int32_t *ids;
};
static inline uint64_t symbol_at(const struct symbol_view *v, int32_t i)
{
    return v->sym && i < v->n_sym ? v->sym[i] : (uint64_t)(uint32_t)v->ids[i];
}

struct tree_snap { int16_t i_kind, off; int32_t page; }; /* state after `off` symbols of the node, 1..n */

struct tree_node {
    struct tree_node *parent, *children;      /* children: root of their treap */
    struct tree_node *left, *right, *up;      /* treap of the siblings; up: treap parent, NULL = root of the treap */
    struct tree_node *lru_prev, *lru_next;    /* most recent first; a node is always more recent than its children */
    struct tree_node *gone_prev, *gone_next;  /* nodes with window pages that left the window, newest first */
    uint64_t key;                             /* nodes at the top only */
    uint64_t tick;                            /* last touch */
    uint32_t priority;
    int32_t depth;                            /* pages before this one */
    int16_t n, n_children, n_snaps;
    bool on_gone;
    int32_t page[KV_MAX_KINDS];               /* -1 = none */
    struct tree_snap snap[TREE_MAX_SNAPS];
    uint64_t sym[KV_PAGE_TOKENS];
};

struct tree_slab;
struct prefix_tree {
    struct kv_pool *kv;          /* borrowed */
    size_t cap_bytes, bytes;     /* pages known to the tree and its nodes */
    struct tree_node *top;       /* treap of first nodes, all keys */
    struct tree_node *lru_head, *lru_tail, *gone_head, *gone_tail;
    struct tree_node *spare;     /* free nodes, linked by parent */
    struct tree_slab *slabs;
    int64_t n_spare, n_promised, n_nodes, n_leaves;
    uint64_t tick;
    struct tree_node **path;     /* [n_path_max] scratch of find */
    int32_t n_path_max;
};

/* cap_bytes 0: the tree stays empty. n_context bounds the depth. */
mb_status prefix_tree_init(struct prefix_tree *t, struct kv_pool *kv, size_t cap_bytes, int32_t n_context,
                           mb_error *err);
void prefix_tree_free(struct prefix_tree *t);
/* Promise a sequence nodes for n_tokens; false: no memory. Give the promise back when the sequence ends. */
bool prefix_tree_reserve(struct prefix_tree *t, int32_t n_tokens);
void prefix_tree_unreserve(struct prefix_tree *t, int32_t n_tokens);

struct tree_hit {
    int32_t n;                   /* indices covered */
    struct tree_node **path;     /* [ceil(n / KV_PAGE_TOKENS)] nodes, valid until the tree changes */
    const struct tree_node *state; /* node with a snapshot at n of every recurrent kind */
};
/* Longest usable prefix of at most n_max symbols. spans: two-way spans, a hit never ends inside one. */
void prefix_tree_find(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n_max,
                      const struct index_span *spans, int32_t n_spans, struct tree_hit *out);
/* Mark the nodes of a hit as just used. */
void prefix_tree_touch(struct prefix_tree *t, const struct tree_hit *hit);

/* Make the first n indices known, whose pages stand in st. Pages that the tree has not are taken over from st
 * (the sequence keeps its own hold). Snapshots of recurrent kinds: see prefix_tree_add_state. */
void prefix_tree_publish(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n,
                         const struct seq_state *st);
/* Hand over a state page of kind i_kind at index n, held by the caller until now; true: the tree has it now (the
 * caller still drops its own hold). The node must be there (publish first). */
bool prefix_tree_add_state(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n,
                           int32_t i_kind, int32_t page);

/* Drop until `need` pages fit: first left window pages only, then (with leaves) leaves that no sequence holds.
 * True when they fit. */
bool prefix_tree_reclaim(struct prefix_tree *t, const int64_t need[KV_MAX_KINDS], bool leaves);
void prefix_tree_clear(struct prefix_tree *t);
/* Recount bytes, nodes and links (tests). */
bool prefix_tree_check(const struct prefix_tree *t, char *text, size_t cap);

#endif
