/* prefix_state.c: copies of recurrent states in the prefix tree. They are large, so where the cap is reached the least valuable
 * one goes first. The value of a copy is what it saves against the one before it on its path: the tokens between the two.
 * Copies of the new one's own path that save less than a page go before anybody's leaves, the others behind them. */
#include "engine/prefix_tree_int.h"

enum { SIBLINGS_MAX = 16 }; /* looked at on each side for a copy */

struct found { struct tree_node *node; int i; int32_t gap; };

/* Least valuable copy of kind k on the way from the top to index `n` in `deepest`; node NULL: there is none. */
static struct found least_valuable(struct tree_node *deepest, int32_t k, int32_t n)
{
    struct found best = { 0 }, last = { 0 };
    int32_t last_at = n; /* the new copy: what lies before it is looked at from behind */
    for (struct tree_node *c = deepest; c; c = c->parent) {
        int32_t upper = KV_PAGE_TOKENS + 1;
        for (;;) {
            int at = -1;
            for (int i = 0; i < c->n_snaps; i++)
                if (c->snap[i].i_kind == k && c->snap[i].off < upper && (at < 0 || c->snap[i].off > c->snap[at].off)) at = i;
            if (at < 0) break;
            upper = c->snap[at].off;
            int32_t index = c->depth * KV_PAGE_TOKENS + upper;
            if (index >= n) continue;
            if (last.node) last.gap = last_at - index;
            if (last.node && (!best.node || last.gap < best.gap)) best = last;
            last = (struct found){ c, at, 0 };
            last_at = index;
        }
    }
    if (last.node) last.gap = last_at;
    return last.node && (!best.node || last.gap < best.gap) ? last : best;
}

/* Room for one more state at index n below `deepest`. */
static bool make_room(struct prefix_tree *t, struct tree_node *deepest, int32_t k, int32_t n)
{
    size_t more = tree_page_bytes(t, k);
    while (t->bytes + more > t->cap_bytes) {
        struct found f = least_valuable(deepest, k, n);
        if (f.node && f.gap < KV_PAGE_TOKENS) tree_snap_drop(t, f.node, f.i);
        else if (tree_room_under_cap(t, more)) return true;
        else if (f.node) tree_snap_drop(t, f.node, f.i);
        else return false;
    }
    return true;
}

bool prefix_tree_add_state(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n,
                           int32_t i_kind, int32_t page)
{
    if (t->cap_bytes == 0 || n <= 0 || kv_page_is_cached(t->kv, page)) return false;
    int32_t covered, len = (n - 1) % KV_PAGE_TOKENS + 1;
    struct tree_node *parent = tree_claim_known(t, key, v, n, &covered);
    if (covered < n) return false;
    for (int i = 0; i < parent->n_snaps; i++)
        if (parent->snap[i].i_kind == i_kind && parent->snap[i].off == len) return false;
    if (!make_room(t, parent, i_kind, n)) return false;
    /* The shallowest state goes: the deepest serves the longest hits, and marks are few in one page. */
    if (parent->n_snaps == TREE_MAX_SNAPS) {
        int least = 0;
        for (int i = 1; i < TREE_MAX_SNAPS; i++)
            if (parent->snap[i].off < parent->snap[least].off) least = i;
        tree_snap_drop(t, parent, least);
    }
    parent->snap[parent->n_snaps++] = (struct tree_snap){ (int16_t)i_kind, (int16_t)len, page };
    kv_page_cache(t->kv, i_kind, page);
    t->bytes += tree_page_bytes(t, i_kind);
    return true;
}

/* --- looking for one --- */

/* The sibling next to n in their order, on one side; NULL: none. */
static struct tree_node *beside(struct tree_node *n, bool after)
{
    struct tree_node *c = after ? n->right : n->left;
    if (c) {
        for (struct tree_node *d = c; d; d = after ? d->left : d->right) c = d;
        return c;
    }
    while (n->up && n == (after ? n->up->right : n->up->left)) n = n->up;
    return n->up;
}

/* How many of `most` symbols from `first` on a node agrees with. */
static int32_t agrees(const struct tree_node *n, const struct symbol_view *v, int32_t first, int32_t most)
{
    int32_t i = 0;
    if (most > n->n) most = n->n;
    while (i < most && n->sym[i] == symbol_at(v, first + i)) i++;
    return i;
}

/* Largest offset of a copy of kind k within the first `most` symbols of a node; 0 = none. */
static int32_t best_copy(const struct tree_node *n, int32_t k, int32_t most)
{
    int32_t best = 0;
    for (int i = 0; i < n->n_snaps; i++)
        if (n->snap[i].i_kind == k && n->snap[i].off <= most && n->snap[i].off > best) best = n->snap[i].off;
    return best;
}

static bool has_full_pages(const struct prefix_tree *t, const struct tree_node *n)
{
    for (int32_t k = 0; k < t->kv->n_kinds; k++)
        if ((t->kv->kinds[k].type == KIND_FULL || t->kv->kinds[k].type == KIND_LATENT) && n->page[k] < 0) return false;
    return true;
}

int32_t tree_state_limit(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t k, int32_t h)
{
    for (int32_t j = (h - 1) / KV_PAGE_TOKENS; j >= 0; j--) {
        int32_t first = j * KV_PAGE_TOKENS, most = h - first < KV_PAGE_TOKENS ? h - first : KV_PAGE_TOKENS;
        struct tree_node *own = t->path[j];
        int32_t best = best_copy(own, k, most);
        /* Runs that part later in this page share its beginning, and their copies serve it as well. */
        for (int side = 0; side < 2; side++) {
            struct tree_node *n = beside(own, side);
            for (int steps = 0; n && steps < SIBLINGS_MAX; n = beside(n, side), steps++) {
                int32_t common = n->key == key || n->parent ? agrees(n, v, first, most) : 0, off = best_copy(n, k, common);
                if (common == 0) break;
                if (off <= best || !has_full_pages(t, n)) continue;
                best = off;
                t->path[j] = n;
            }
        }
        if (best > 0) return first + best;
    }
    return 0;
}
