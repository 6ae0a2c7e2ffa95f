/* prefix_tree_int.h: what the files of the tree share. */
#ifndef ENGINE_PREFIX_TREE_INT_H
#define ENGINE_PREFIX_TREE_INT_H

#include "engine/prefix_tree.h"

/* A run of symbols that would be one node. */
struct tree_run {
    uint64_t key;
    const struct symbol_view *v;
    int32_t first, n;
};

/* Put a node (its parent is set) among its siblings by its run; take it out. */
void tree_siblings_insert(struct prefix_tree *t, struct tree_node *n, const struct tree_run *r);
void tree_siblings_remove(struct prefix_tree *t, struct tree_node *n);
/* The child with the longest common prefix (the shortest such), NULL when none shares a symbol. */
struct tree_node *tree_best_child(struct prefix_tree *t, struct tree_node *parent, const struct tree_run *r,
                                  int32_t *common);

/* prefix_tree.c: bytes of a page of kind i_kind in the pool; drop copy i of a node's states; drop leaves that the publish at hand
 * has not touched until `more` bytes fit (false: they do not). */
size_t tree_page_bytes(const struct prefix_tree *t, int32_t i_kind);
void tree_snap_drop(struct prefix_tree *t, struct tree_node *n, int i);
bool tree_room_under_cap(struct prefix_tree *t, size_t more);
/* Deepest node that agrees with the first n symbols, wholly or up to its own end; all of the way becomes most recent and is safe
 * from tree_room_under_cap until the next publish. *covered: symbols that agree. */
struct tree_node *tree_claim_known(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n, int32_t *covered);

/* prefix_state.c: the largest h' <= h at which t->path (nodes that agree with v up to h) has a state of kind k, 0 = none. A node
 * of the path may become a sibling of it that has the state and agrees up to there. */
int32_t tree_state_limit(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t k, int32_t h);

#endif
