/* forward.h: a model driven by hand for tests: one sequence, pages dealt in order (or shuffled), any chunking, all logits.
 * What the engine does, without the engine. Include after cmocka.
 */
#ifndef TESTS_FORWARD_H
#define TESTS_FORWARD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/model.h"

struct forward {
    struct device *dev;
    struct model *model;
    const struct plan *plan;
    struct seq_state seq;
    int32_t next_unit; /* bump allocation of pages, in KV_PAGE_UNIT */
    struct sample_params params;
    int32_t *history;
    int32_t n_history;
};

static inline mb_status forward_open(struct forward *f, const char *dir, enum fidelity_tier tier, int kv_format,
                                     const char *level, int n_threads, mb_error *err)
{
    struct device_options dopt = { .n_threads = n_threads, .cpu_level = level, .n_ranks = 1 };
    memset(f, 0, sizeof *f);
    MB_TRY(ops_cpu.device_open(&f->dev, &dopt, err));
    struct model_options mopt = { .ops = &ops_cpu, .device = f->dev, .tier = tier, .kv_format = kv_format, .n_rows_max = 8 };
    mb_status st = model_open(&f->model, dir, &mopt, err);
    if (st != MB_OK) return st;
    f->plan = model_plan_get(f->model);
    MB_TRY(ops_cpu.pool_reserve(f->dev, (size_t)1 << 32, err));
    for (int k = 0; k < f->plan->n_kinds; k++) {
        f->seq.kind[k].cap = f->plan->n_context / 64 + 2;
        f->seq.kind[k].page = calloc((size_t)f->seq.kind[k].cap, sizeof(int32_t));
    }
    f->history = calloc((size_t)f->plan->n_context + 1, sizeof(int32_t));
    f->params.n_vocab_live = f->plan->n_vocab;
    return MB_OK;
}

static inline void forward_close(struct forward *f)
{
    for (int k = 0; f->plan && k < f->plan->n_kinds; k++) free(f->seq.kind[k].page);
    free(f->history);
    model_close(f->model);
    ops_cpu.device_close(f->dev);
    memset(f, 0, sizeof *f);
}

static inline void forward_reset(struct forward *f)
{
    for (int k = 0; k < f->plan->n_kinds; k++) f->seq.kind[k].n_page = 0;
    f->seq.n_committed = 0;
    f->next_unit = 0;
    f->n_history = 0;
}

/* Append n ids; logits (may be NULL) receives [n][n_vocab]; draws [n]. */
static inline mb_status forward_run(struct forward *f, const int32_t *ids, int32_t n, float *logits, struct draw *draws,
                                    mb_error *err)
{
    int32_t first = f->seq.n_committed, end = first + n;
    MB_TRY(model_reserve_positions(f->model, end, err));
    memcpy(f->history + first, ids, (size_t)n * sizeof *ids);
    for (int k = 0; k < f->plan->n_kinds; k++)
        while (f->seq.kind[k].n_page * 64 < end) {
            f->seq.kind[k].page[f->seq.kind[k].n_page++] = f->next_unit;
            f->next_unit += (int32_t)(f->plan->kinds[k].page_bytes / KV_PAGE_UNIT);
        }
    struct sample_pos *pos = calloc((size_t)n, sizeof *pos);
    for (int32_t j = 0; j < n; j++)
        pos[j] = (struct sample_pos){ .params = &f->params, .history = f->history, .n_history = first + j + 1,
                                      .index = first + j + 1, .target = -1 };
    struct row row = { .seq = &f->seq, .i_first = first, .n = n, .ids = ids, .draw = DRAW_ALL, .draws = pos,
                       .logits_out = logits };
    struct row_result result = { .draws = draws };
    mb_status st = ops_cpu.submit(model_compiled(f->model), &row, 1, &result, err);
    if (st == MB_OK) st = ops_cpu.collect(model_compiled(f->model), err);
    if (st == MB_OK) st = result.status;
    f->seq.n_committed = end;
    free(pos);
    return st;
}

#endif
