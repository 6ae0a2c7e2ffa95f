/* prefix_siblings.c: the children of a node as a treap, ordered by (key at the top, symbols).
 *
 * No two siblings are prefixes of each other (prefix_tree.c extends a short leaf instead), so a leaf that grows keeps its
 * place. The sibling with the longest common prefix is next to the place where a run would be inserted, and both
 * neighbours of that place lie on the way down. */
#include "engine/prefix_tree_int.h"

/* Order of the run against a node: -1 before, 0 equal, 1 behind; *common: equal leading symbols. */
static int compare(const struct tree_node *n, const struct tree_run *r, int32_t *common)
{
    *common = 0;
    if (n->depth == 0 && n->key != r->key) return r->key < n->key ? -1 : 1;
    int32_t most = n->n < r->n ? n->n : r->n, i = 0;
    while (i < most && symbol_at(r->v, r->first + i) == n->sym[i]) i++;
    *common = i;
    if (i < most) return symbol_at(r->v, r->first + i) < n->sym[i] ? -1 : 1;
    return r->n < n->n ? -1 : r->n > n->n;
}

static struct tree_node **treap_root(struct prefix_tree *t, struct tree_node *parent)
{
    return parent ? &parent->children : &t->top;
}

static void treap_replace(struct tree_node **root, struct tree_node *old, struct tree_node *new)
{
    if (!old->up) *root = new;
    else if (old->up->left == old) old->up->left = new;
    else old->up->right = new;
    if (new) new->up = old->up;
}

/* Lift c over its treap parent. */
static void treap_rotate(struct tree_node **root, struct tree_node *c)
{
    struct tree_node *p = c->up;
    treap_replace(root, p, c);
    if (p->left == c) {
        p->left = c->right;
        if (p->left) p->left->up = p;
        c->right = p;
    } else {
        p->right = c->left;
        if (p->right) p->right->up = p;
        c->left = p;
    }
    p->up = c;
}

void tree_siblings_insert(struct prefix_tree *t, struct tree_node *n, const struct tree_run *r)
{
    struct tree_node **root = treap_root(t, n->parent), *up = NULL, **at = root;
    n->left = n->right = NULL;
    while (*at) {
        int32_t common;
        up = *at;
        at = compare(up, r, &common) < 0 ? &up->left : &up->right;
    }
    *at = n;
    n->up = up;
    while (n->up && n->up->priority < n->priority) treap_rotate(root, n);
}

void tree_siblings_remove(struct prefix_tree *t, struct tree_node *n)
{
    struct tree_node **root = treap_root(t, n->parent);
    while (n->left && n->right) treap_rotate(root, n->left->priority > n->right->priority ? n->left : n->right);
    treap_replace(root, n, n->left ? n->left : n->right);
}

struct tree_node *tree_best_child(struct prefix_tree *t, struct tree_node *parent, const struct tree_run *r,
                                  int32_t *common)
{
    struct tree_node *best = NULL;
    *common = 0;
    for (struct tree_node *n = *treap_root(t, parent); n;) {
        int32_t c;
        int cmp = compare(n, r, &c);
        /* Every neighbour of the place of insertion is met on the way down. */
        if (c > *common || (c == *common && c > 0 && best && n->n < best->n)) {
            best = n;
            *common = c;
        }
        if (cmp == 0) return n;
        n = cmp < 0 ? n->left : n->right;
    }
    return best;
}
