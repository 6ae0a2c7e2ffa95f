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

/* Order of the run against a node: -1 before, 0 equal, 1 behind; *common: equal leading symbols. */
int tree_node_compare(const struct tree_node *n, const struct tree_run *r, int32_t *common);
/* The child with the longest common prefix (the shortest such), NULL when none shares a symbol. */
struct tree_node *tree_best_child(struct prefix_tree *t, struct tree_node *parent, const struct tree_run *r,
                                  int32_t *common);

#endif
