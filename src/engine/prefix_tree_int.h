/* prefix_tree_int.h: what prefix_tree.c and prefix_find.c share. */
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

#endif
