/* prefix_find.c: how far a cached prefix serves a new sequence.
 *
 * First the walk: nodes whose symbols agree, the last perhaps in part. Then, from that index downwards, the first at
 * which every kind has what a query there needs: full kinds always do; a window kind needs the pages of the `window`
 * - 1 indices before it; a recurrent kind needs a snapshot at exactly that index. Each failed test says how far down
 * the next candidate lies, so the search takes steps of pages, not of tokens. */
#include <string.h>

#include "engine/prefix_tree_int.h"

/* Fill t->path; returns the number of agreeing symbols. */
static int32_t walk(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n_max)
{
    int32_t n = 0;
    struct tree_node *parent = NULL;
    while (n < n_max) {
        int32_t len = n_max - n < KV_PAGE_TOKENS ? n_max - n : KV_PAGE_TOKENS, common;
        struct tree_run r = { key, v, n, len };
        struct tree_node *c = tree_best_child(t, parent, &r, &common);
        if (!c) break;
        t->path[n / KV_PAGE_TOKENS] = c;
        n += common;
        parent = c;
        if (common < KV_PAGE_TOKENS) break;
    }
    return n;
}


/* Largest h' <= h at which kind k may have what it needs; h itself when it has. */
static int32_t window_limit(const struct prefix_tree *t, int32_t k, int32_t h)
{
    int32_t first = h - t->kv->kinds[k].window + 1;
    int32_t j_first = first > 0 ? first / KV_PAGE_TOKENS : 0;
    for (int32_t j = (h - 1) / KV_PAGE_TOKENS; j >= j_first; j--)
        if (t->path[j]->page[k] < 0) return j * KV_PAGE_TOKENS;
    return h;
}

static int32_t full_limit(const struct prefix_tree *t, int32_t k, int32_t h)
{
    for (int32_t j = (h - 1) / KV_PAGE_TOKENS; j >= 0; j--)
        if (t->path[j]->page[k] < 0) h = j * KV_PAGE_TOKENS;
    return h;
}

static int32_t span_limit(const struct index_span *spans, int32_t n_spans, int32_t h)
{
    for (int32_t i = 0; i < n_spans; i++)
        if (spans[i].first < h && h < spans[i].end) return spans[i].first;
    return h;
}

void prefix_tree_find(struct prefix_tree *t, uint64_t key, const struct symbol_view *v, int32_t n_max,
                      const struct index_span *spans, int32_t n_spans, struct tree_hit *out)
{
    memset(out, 0, sizeof *out);
    out->path = t->path;
    if (t->cap_bytes == 0 || n_max <= 0) return;
    int32_t h = walk(t, key, v, n_max);
    for (int32_t k = 0; k < t->kv->n_kinds && h > 0; k++)
        if (t->kv->kinds[k].type == KIND_FULL || t->kv->kinds[k].type == KIND_LATENT) h = full_limit(t, k, h);
    for (int32_t before = -1; h > 0 && h != before;) {
        before = h;
        h = span_limit(spans, n_spans, h);
        for (int32_t k = 0; k < t->kv->n_kinds && h > 0; k++) {
            enum kv_kind_type type = t->kv->kinds[k].type;
            if (type == KIND_WINDOW) h = window_limit(t, k, h);
            else if (type == KIND_STATE) h = tree_state_limit(t, key, v, k, h);
        }
    }
    out->n = h;
    for (int32_t k = 0; k < t->kv->n_kinds && h > 0; k++)
        if (t->kv->kinds[k].type == KIND_STATE) out->state = t->path[(h - 1) / KV_PAGE_TOKENS];
}
