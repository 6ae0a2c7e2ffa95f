/* direct.c: see direct.h. Pages are numbered by a bump counter over the whole pool; nothing is shared or freed. */
#include <string.h>

#include "base/mem.h"
#include "engine/direct.h"

struct direct {
    struct model *model;
    const struct ops *ops;
    const struct plan *plan;
    struct seq_state seq;
    struct sample_params greedy;
    int32_t *history;         /* [n_max + 1] */
    struct sample_pos *pos;   /* [m_max] */
    int32_t n_max;
    int32_t stride, n_dealt;  /* page order */
    const struct adapter_handle *const *adapters;
    int32_t n_adapters;
};

/* Units of one page of every kind: pages of all kinds for the same 64 tokens lie together. */
static int32_t units_per_stretch(const struct plan *p)
{
    size_t bytes = 0;
    for (int k = 0; k < p->n_kinds; k++) bytes += p->kinds[k].page_bytes;
    return (int32_t)(bytes / KV_PAGE_UNIT);
}

static mb_status alloc_tables(struct direct *d, mb_error *err)
{
    int32_t n_page = (d->n_max + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1;
    for (int k = 0; k < d->plan->n_kinds; k++) {
        d->seq.kind[k].cap = n_page;
        d->seq.kind[k].page = mb_calloc((size_t)n_page, sizeof(int32_t));
        if (!d->seq.kind[k].page) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    }
    d->history = mb_calloc((size_t)d->n_max + 1, sizeof *d->history);
    d->pos = mb_calloc((size_t)d->plan->m_max, sizeof *d->pos);
    if (!d->history || !d->pos) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    size_t pool = (size_t)units_per_stretch(d->plan) * KV_PAGE_UNIT * (size_t)n_page;
    return d->ops->pool_reserve(model_device(d->model), pool, err);
}

mb_status direct_open(struct direct **out, struct model *m, int32_t n_tokens, mb_error *err)
{
    *out = NULL;
    struct direct *d = mb_calloc(1, sizeof *d);
    if (!d) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    d->model = m;
    d->ops = model_ops(m);
    d->plan = model_plan_get(m);
    d->n_max = n_tokens;
    d->greedy.n_vocab_live = d->plan->n_vocab;
    mb_status st = n_tokens > d->plan->n_context
                       ? mb_fail(err, MB_CONTEXT_LENGTH, "%d tokens do not fit the context of %d", n_tokens, d->plan->n_context)
                       : alloc_tables(d, err);
    if (st != MB_OK) {
        direct_close(d);
        return st;
    }
    direct_reset(d, 1);
    *out = d;
    return MB_OK;
}

void direct_close(struct direct *d)
{
    if (!d) return;
    for (int k = 0; k < d->plan->n_kinds; k++) mb_free(d->seq.kind[k].page);
    mb_free(d->history);
    mb_free(d->pos);
    mb_free(d);
}

void direct_reset(struct direct *d, int32_t page_stride)
{
    for (int k = 0; k < d->plan->n_kinds; k++) d->seq.kind[k].n_page = 0;
    d->seq.n_committed = d->seq.i_state = 0;
    d->stride = page_stride < 1 ? 1 : page_stride;
    d->n_dealt = 0;
}

/* The i-th stretch dealt: 0, s, 2s, .., 1, s+1, .. over the n stretches of the pool. */
static int32_t stretch_at(const struct direct *d, int32_t i)
{
    int32_t n = (d->n_max + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1;
    for (int32_t first = 0; first < d->stride; first++) {
        int32_t count = (n - first + d->stride - 1) / d->stride;
        if (i < count) return first + i * d->stride;
        i -= count;
    }
    return 0;
}

static void deal_pages(struct direct *d, int32_t end)
{
    for (; d->n_dealt * KV_PAGE_TOKENS < end; d->n_dealt++) {
        int32_t unit = stretch_at(d, d->n_dealt) * units_per_stretch(d->plan);
        for (int k = 0; k < d->plan->n_kinds; k++) {
            d->seq.kind[k].page[d->seq.kind[k].n_page++] = unit;
            unit += (int32_t)(d->plan->kinds[k].page_bytes / KV_PAGE_UNIT);
        }
    }
}

mb_status direct_run(struct direct *d, const int32_t *ids, int32_t n, const struct sample_params *params,
                     float *logits, struct draw *draws, mb_error *err)
{
    int32_t first = d->seq.n_committed, end = first + n;
    if (end > d->n_max || n > d->plan->m_max)
        return mb_fail(err, MB_CONTEXT_LENGTH, "%d tokens were asked for, the sequence holds %d", end, d->n_max);
    MB_TRY(model_reserve_positions(d->model, end, err));
    memcpy(d->history + first, ids, (size_t)n * sizeof *ids);
    deal_pages(d, end);
    for (int32_t j = 0; j < n; j++)
        d->pos[j] = (struct sample_pos){ .params = params ? params : &d->greedy, .history = d->history,
                                         .n_history = first + j + 1, .index = first + j + 1, .target = -1 };
    struct row row = { .seq = &d->seq, .i_first = first, .n = n, .ids = ids, .draw = draws ? DRAW_ALL : DRAW_NONE,
                       .draws = d->pos, .logits_out = logits, .adapters = d->adapters, .n_adapters = d->n_adapters };
    struct row_result result = { .draws = draws };
    MB_TRY(d->ops->submit(model_compiled(d->model), &row, 1, &result, err));
    MB_TRY(d->ops->collect(model_compiled(d->model), err));
    d->seq.n_committed = d->seq.i_state = end;
    return result.status == MB_OK ? MB_OK : mb_fail(err, result.status, "the forward pass failed");
}

void direct_set_adapters(struct direct *d, const struct adapter_handle *const *adapters, int32_t n)
{
    d->adapters = adapters;
    d->n_adapters = n;
}

int32_t direct_length(const struct direct *d) { return d->seq.n_committed; }
