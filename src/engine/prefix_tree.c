/* prefix_tree.c: nodes, publishing, dropping. prefix_state.c keeps recurrent states, prefix_siblings.c orders the children of a node, prefix_find.c searches
 * for a hit. See prefix_tree.h for the idea. */
#include "engine/prefix_tree.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/prefix_tree_int.h"

enum { SLAB_NODES = 32 };

struct tree_slab {
    struct tree_slab *next;
    struct tree_node node[SLAB_NODES];
};

mb_status prefix_tree_init(struct prefix_tree *t, struct kv_pool *kv, size_t cap_bytes, int32_t n_context,
                           mb_error *err)
{
    memset(t, 0, sizeof *t);
    t->kv = kv;
    t->cap_bytes = cap_bytes;
    t->n_path_max = n_context / KV_PAGE_TOKENS + 2;
    t->path = mb_calloc((size_t)t->n_path_max, sizeof *t->path);
    if (!t->path) return mb_fail(err, MB_NO_MEMORY, "no memory for the prefix tree");
    return MB_OK;
}

void prefix_tree_free(struct prefix_tree *t)
{
    while (t->slabs) {
        struct tree_slab *s = t->slabs;
        t->slabs = s->next;
        mb_free(s);
    }
    mb_free(t->path);
    memset(t, 0, sizeof *t);
}

static int64_t nodes_for(int32_t n_tokens)
{
    return n_tokens / KV_PAGE_TOKENS + 1;
}

bool prefix_tree_reserve(struct prefix_tree *t, int32_t n_tokens)
{
    if (t->cap_bytes == 0) return true;
    /* No more than the cap can hold at once, whatever was promised. */
    int64_t most = (int64_t)(t->cap_bytes / sizeof(struct tree_node)) + 1;
    int64_t want = t->n_promised + nodes_for(n_tokens);
    if (want > most) want = most;
    while (t->n_spare < want && t->n_nodes + t->n_spare < most) {
        struct tree_slab *s = mb_alloc(sizeof *s);
        if (!s) return false;
        s->next = t->slabs;
        t->slabs = s;
        for (int i = 0; i < SLAB_NODES; i++) {
            s->node[i].parent = t->spare;
            t->spare = &s->node[i];
        }
        t->n_spare += SLAB_NODES;
    }
    t->n_promised += nodes_for(n_tokens);
    return true;
}

void prefix_tree_unreserve(struct prefix_tree *t, int32_t n_tokens)
{
    if (t->cap_bytes > 0) t->n_promised -= nodes_for(n_tokens);
}

/* --- lists --- */

static void lru_push(struct prefix_tree *t, struct tree_node *n)
{
    n->lru_prev = NULL;
    n->lru_next = t->lru_head;
    if (t->lru_head) t->lru_head->lru_prev = n;
    else t->lru_tail = n;
    t->lru_head = n;
}

static void lru_remove(struct prefix_tree *t, struct tree_node *n)
{
    if (n->lru_prev) n->lru_prev->lru_next = n->lru_next;
    else t->lru_head = n->lru_next;
    if (n->lru_next) n->lru_next->lru_prev = n->lru_prev;
    else t->lru_tail = n->lru_prev;
}

static void gone_push(struct prefix_tree *t, struct tree_node *n)
{
    n->on_gone = true;
    n->gone_prev = NULL;
    n->gone_next = t->gone_head;
    if (t->gone_head) t->gone_head->gone_prev = n;
    else t->gone_tail = n;
    t->gone_head = n;
}

static void gone_remove(struct prefix_tree *t, struct tree_node *n)
{
    if (!n->on_gone) return;
    n->on_gone = false;
    if (n->gone_prev) n->gone_prev->gone_next = n->gone_next;
    else t->gone_head = n->gone_next;
    if (n->gone_next) n->gone_next->gone_prev = n->gone_prev;
    else t->gone_tail = n->gone_prev;
}

/* --- nodes --- */

size_t tree_page_bytes(const struct prefix_tree *t, int32_t i_kind)
{
    return t->kv->use[i_kind].page_bytes;
}

static void page_take(struct prefix_tree *t, struct tree_node *n, int32_t k, int32_t page)
{
    n->page[k] = page;
    kv_page_cache(t->kv, k, page);
    t->bytes += tree_page_bytes(t, k);
}

static void page_drop(struct prefix_tree *t, struct tree_node *n, int32_t k)
{
    if (n->page[k] < 0) return;
    kv_page_uncache(t->kv, k, n->page[k]);
    n->page[k] = -1;
    t->bytes -= tree_page_bytes(t, k);
}

void tree_snap_drop(struct prefix_tree *t, struct tree_node *n, int i)
{
    kv_page_uncache(t->kv, n->snap[i].i_kind, n->snap[i].page);
    t->bytes -= tree_page_bytes(t, n->snap[i].i_kind);
    n->snap[i] = n->snap[--n->n_snaps];
}

static void node_drop(struct prefix_tree *t, struct tree_node *n)
{
    for (int32_t k = 0; k < t->kv->n_kinds; k++) page_drop(t, n, k);
    while (n->n_snaps > 0) tree_snap_drop(t, n, 0);
    lru_remove(t, n);
    gone_remove(t, n);
    tree_siblings_remove(t, n);
    t->n_leaves--;
    if (n->parent && --n->parent->n_children == 0) t->n_leaves++;
    t->bytes -= sizeof *n;
    t->n_nodes--;
    n->parent = t->spare;
    t->spare = n;
    t->n_spare++;
}

bool tree_room_under_cap(struct prefix_tree *t, size_t more)
{
    while (t->bytes + more > t->cap_bytes) {
        struct tree_node *n = t->lru_tail;
        if (!n || n->tick == t->tick) return false;
        node_drop(t, n);
    }
    return true;
}

static size_t run_bytes(const struct prefix_tree *t, const struct seq_state *st, int32_t j)
{
    size_t bytes = sizeof(struct tree_node);
    for (int32_t k = 0; k < t->kv->n_kinds; k++)
        if (t->kv->kinds[k].type != KIND_STATE && st->kind[k].page[j] >= 0) bytes += tree_page_bytes(t, k);
    return bytes;
}

static struct tree_node *node_add(struct prefix_tree *t, struct tree_node *parent, const struct tree_run *r, int32_t j,
                                  const struct seq_state *st)
{
    if (!tree_room_under_cap(t, run_bytes(t, st, j)) || !t->spare) return NULL;
    struct tree_node *n = t->spare;
    t->spare = n->parent;
    t->n_spare--;
    memset(n, 0, sizeof *n);
    n->parent = parent;
    n->key = r->key;
    n->depth = j;
    n->n = (int16_t)r->n;
    n->priority = (uint32_t)(((uint64_t)(t->n_nodes + 1) * 0x9E3779B97F4A7C15u + t->tick * 0xD1B54A32D192ED03u) >> 32);
    for (int32_t i = 0; i < r->n; i++) n->sym[i] = symbol_at(r->v, r->first + i);
    for (int32_t k = 0; k < KV_MAX_KINDS; k++) n->page[k] = -1;
    tree_siblings_insert(t, n, r);
    lru_push(t, n);
    t->n_leaves++;
    if (parent && parent->n_children++ == 0) t->n_leaves--;
    t->n_nodes++;
    t->bytes += sizeof *n;
    return n;
}

/* Give the node what st has and it lacks. A full page that is already there stays: equal bits. */
static void node_fill(struct prefix_tree *t, struct tree_node *n, int32_t j, const struct seq_state *st)
{
    for (int32_t k = 0; k < t->kv->n_kinds; k++) {
        if (t->kv->kinds[k].type == KIND_STATE || n->page[k] >= 0) continue;
        int32_t page = st->kind[k].page[j];
        if (page < 0 || kv_page_is_cached(t->kv, page)) continue;
        if (tree_room_under_cap(t, tree_page_bytes(t, k))) page_take(t, n, k, page);
    }
}

/* The run goes on where a leaf ended: the leaf becomes the longer run, with the pages of st. */
static void node_extend(struct prefix_tree *t, struct tree_node *n, const struct tree_run *r, int32_t j,
                        const struct seq_state *st)
{
    for (int32_t i = n->n; i < r->n; i++) n->sym[i] = symbol_at(r->v, r->first + i);
    n->n = (int16_t)r->n; /* keeps its place among the siblings: nobody lies between a run and its extension */
    for (int32_t k = 0; k < t->kv->n_kinds; k++) {
        if (t->kv->kinds[k].type == KIND_STATE) continue;
        if (n->page[k] != st->kind[k].page[j]) page_drop(t, n, k);
    }
    node_fill(t, n, j, st);
}

/* Window pages of this node that no query at index n or later of the publishing sequence needs. */
static void note_left_window(struct prefix_tree *t, struct tree_node *node, int32_t n)
{
    if (node->on_gone) return;
    for (int32_t k = 0; k < t->kv->n_kinds; k++) {
        const struct kv_kind *kind = &t->kv->kinds[k];
        if (kind->type != KIND_WINDOW || node->page[k] < 0) continue;
        if ((int64_t)(node->depth + 1) * KV_PAGE_TOKENS > (int64_t)n - kind->window) continue;
        gone_push(t, node);
        return;
    }
}

static void touch_path(struct prefix_tree *t, struct tree_node *deepest)
{
    for (struct tree_node *n = deepest; n; n = n->parent) {
        lru_remove(t, n);
        lru_push(t, n);
    }
}

struct tree_node *tree_claim_known(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n, int32_t *covered)
{
    struct tree_node *deepest = NULL;
    for (*covered = 0; *covered < n;) {
        int32_t common, first = *covered;
        struct tree_run r = { key, v, first, n - first < KV_PAGE_TOKENS ? n - first : KV_PAGE_TOKENS };
        struct tree_node *c = tree_best_child(t, deepest, &r, &common);
        if (!c || (common < r.n && common < c->n)) break;
        c->tick = t->tick;
        deepest = c;
        *covered += common;
        if (common < KV_PAGE_TOKENS) break;
    }
    touch_path(t, deepest);
    return deepest;
}

void prefix_tree_publish(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n,
                         const struct seq_state *st)
{
    if (t->cap_bytes == 0) return;
    int32_t covered;
    t->tick++; /* what is touched from here on, with the states that follow, does not push itself out */
    struct tree_node *last = tree_claim_known(t, key, v, n, &covered);
    for (struct tree_node *c = last; c; c = c->parent) {
        int32_t first = c->depth * KV_PAGE_TOKENS, len = n - first < KV_PAGE_TOKENS ? n - first : KV_PAGE_TOKENS;
        struct tree_run r = { key, v, first, len };
        if (c->n < len) node_extend(t, c, &r, c->depth, st);
        else if (c->n == len) node_fill(t, c, c->depth, st);
        note_left_window(t, c, n);
    }
    if (last) covered = (last->depth + 1) * KV_PAGE_TOKENS;
    for (int32_t first = covered, j = first / KV_PAGE_TOKENS; first < n; first += KV_PAGE_TOKENS, j++) {
        struct tree_run r = { key, v, first, n - first < KV_PAGE_TOKENS ? n - first : KV_PAGE_TOKENS };
        struct tree_node *c = node_add(t, last, &r, j, st);
        if (!c) break;
        c->tick = t->tick;
        node_fill(t, c, j, st);
        note_left_window(t, c, n);
        last = c;
    }
    touch_path(t, last);
}

void prefix_tree_touch(struct prefix_tree *t, const struct tree_hit *hit)
{
    if (hit->n == 0) return;
    touch_path(t, hit->path[(hit->n - 1) / KV_PAGE_TOKENS]);
}

/* --- dropping --- */

static void drop_left_pages(struct prefix_tree *t, struct tree_node *n)
{
    for (int32_t k = 0; k < t->kv->n_kinds; k++)
        if (t->kv->kinds[k].type == KIND_WINDOW) page_drop(t, n, k);
    gone_remove(t, n);
}

/* A sequence holds one of its pages: dropping the node would free nothing. */
static bool node_is_held(const struct prefix_tree *t, const struct tree_node *n)
{
    for (int32_t k = 0; k < t->kv->n_kinds; k++)
        if (n->page[k] >= 0 && kv_page_is_held(t->kv, n->page[k])) return true;
    return false;
}

bool prefix_tree_reclaim(struct prefix_tree *t, const int64_t need[KV_MAX_KINDS], bool leaves)
{
    while (!kv_pool_has_room(t->kv, need, false) && t->gone_tail) drop_left_pages(t, t->gone_tail);
    struct tree_node *n = leaves ? t->lru_tail : NULL;
    while (n && !kv_pool_has_room(t->kv, need, false)) {
        struct tree_node *before = n->lru_prev;
        if (n->n_children == 0 && !node_is_held(t, n)) node_drop(t, n);
        n = before;
    }
    /* Copies of states on the way of those who hold the rest: they cost time, not results. */
    for (n = leaves ? t->lru_tail : NULL; n; n = n->lru_prev)
        while (n->n_snaps > 0 && !kv_pool_has_room(t->kv, need, false)) tree_snap_drop(t, n, 0);
    return kv_pool_has_room(t->kv, need, false);
}

void prefix_tree_clear(struct prefix_tree *t)
{
    while (t->lru_tail) node_drop(t, t->lru_tail);
}

bool prefix_tree_check(const struct prefix_tree *t, char *text, size_t cap)
{
    size_t bytes = 0;
    int64_t nodes = 0, leaves = 0, pages = 0;
    for (const struct tree_node *n = t->lru_head; n; n = n->lru_next) {
        nodes++;
        if (n->n_children == 0) leaves++;
        bytes += sizeof *n;
        for (int32_t k = 0; k < t->kv->n_kinds; k++) {
            if (n->page[k] < 0) continue;
            bytes += tree_page_bytes(t, k);
            if (!kv_page_is_cached(t->kv, n->page[k])) pages++;
        }
        for (int i = 0; i < n->n_snaps; i++) bytes += tree_page_bytes(t, n->snap[i].i_kind);
        bool short_inner = n->n_children > 0 && n->n != KV_PAGE_TOKENS;
        if (short_inner || (n->lru_next && n->lru_next == n->parent)) {
            snprintf(text, cap, "node at depth %d: inner and short, or older than its child", (int)n->depth);
            return false;
        }
    }
    if (bytes == t->bytes && nodes == t->n_nodes && leaves == t->n_leaves && pages == 0 &&
        (bytes <= t->cap_bytes || nodes == 0))
        return true;
    snprintf(text, cap, "bytes %zu, counted %zu, cap %zu; nodes %lld, counted %lld; leaves %lld, counted %lld; %lld lost",
             t->bytes, bytes, t->cap_bytes, (long long)t->n_nodes, (long long)nodes, (long long)t->n_leaves,
             (long long)leaves, (long long)pages);
    return false;
}
