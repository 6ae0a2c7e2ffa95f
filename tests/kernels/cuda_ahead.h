/* cuda_ahead.h: a text decoded by a few rows through a backend that may begin a step before the draws of the one ahead are read
 * (ops/cuda/ahead.c), with all that can happen to its guess. What it draws must not depend on that. Header-only.
 */
#ifndef TESTS_KERNELS_CUDA_AHEAD_H
#define TESTS_KERNELS_CUDA_AHEAD_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "ops/ops.h"

enum { AHEAD_WIDTH = 3, AHEAD_STEPS = 90, AHEAD_PAGES = 4, AHEAD_PROMPT = 70 };

struct ahead_run {
    struct draw draws[AHEAD_STEPS][AHEAD_WIDTH];
    int32_t n_ahead; /* steps that did */
    int32_t n_pages; /* of them, those in which a row begins a page */
};

/* What happens to the guess at a step: a row gets another id than it drew, one rests, all draw otherwise, pages are written, a row had
 * said that it would end. */
enum { OTHER_ID = 23, REST = 31, WARMER = 40, PAGES_WRITTEN = 50, BEHIND_AN_END = 61 };

static inline void ahead_rows(int32_t n_vocab, struct seq_state *seq, int32_t step, int32_t (*ids)[AHEAD_PROMPT], int32_t *next, const struct sample_params *params,
                       struct sample_pos *pos, struct row *rows)
{
    for (int32_t s = 0; s < AHEAD_WIDTH; s++) {
        int32_t n = step > 0 ? 1 : AHEAD_PROMPT - 9 * s;
        if (step == OTHER_ID && s == 1) next[s] = (next[s] + 1) % n_vocab;
        pos[s] = (struct sample_pos){ .params = params, .history = ids[s], .n_history = n, .index = seq[s].n_committed + n, .n_drawn = step, .target = -1 };
        rows[s] = (struct row){ .seq = &seq[s], .i_first = seq[s].n_committed, .n = n, .ids = step > 0 ? &next[s] : ids[s], .draw = DRAW_LAST, .draws = &pos[s] };
    }
}

static inline void decode_ahead(const struct ops *ops, struct device *dev, struct model *model, struct ahead_run *out)
{
    const struct plan *p = model_plan_get(model);
    static struct seq_state seq[AHEAD_WIDTH];
    static int32_t pages[AHEAD_WIDTH][KV_MAX_KINDS][AHEAD_PAGES], ids[AHEAD_WIDTH][AHEAD_PROMPT], next[AHEAD_WIDTH];
    struct sample_params params = { .n_vocab_live = p->n_vocab, .noise = { .seed = 77 } };
    struct sample_pos pos[AHEAD_WIDTH];
    struct row rows[AHEAD_WIDTH];
    struct row_result results[AHEAD_WIDTH];
    struct ops_step_stats stats;
    mb_error err = { 0 };
    int32_t unit = 0;
    for (int32_t s = 0; s < AHEAD_WIDTH; s++) {
        seq[s] = (struct seq_state){ .n_committed = 0 };
        for (int k = 0; k < p->n_kinds; k++) {
            int32_t n_page = p->kinds[k].type == KIND_STATE ? 1 : AHEAD_PAGES;
            seq[s].kind[k] = (struct kv_table){ .page = pages[s][k], .n_page = n_page, .cap = AHEAD_PAGES };
            for (int j = 0; j < n_page; j++, unit += (int32_t)(p->kinds[k].page_bytes / KV_PAGE_UNIT)) pages[s][k][j] = unit;
        }
        for (int32_t i = 0; i < AHEAD_PROMPT; i++) ids[s][i] = (i * 29 + s * 17 + 3) % p->n_vocab;
    }
    uint8_t *spare = calloc(1, p->kinds[0].page_bytes);
    if (ops->pool_reserve(dev, (size_t)unit * KV_PAGE_UNIT + p->kinds[0].page_bytes, &err) != MB_OK) fail_msg("%s", err.text);
    if (model_reserve_positions(model, AHEAD_PROMPT + AHEAD_STEPS, &err) != MB_OK) fail_msg("%s", err.text);
    out->n_ahead = out->n_pages = 0;
    for (int32_t step = 0; step < AHEAD_STEPS; step++) {
        int32_t width = step == REST ? AHEAD_WIDTH - 1 : AHEAD_WIDTH;
        if (step == WARMER) params.temperature = 0.9f;
        if (step == PAGES_WRITTEN) ops->page_write(dev, &p->kinds[0], unit, spare);
        ahead_rows(p->n_vocab, seq, step, ids, next, &params, pos, rows);
        rows[1].is_last = step + 1 == BEHIND_AN_END;
        for (int32_t s = 0; s < width; s++) results[s] = (struct row_result){ .draws = &out->draws[step][s] };
        if (ops->submit(model_compiled(model), rows, width, results, &err) != MB_OK) fail_msg("%s", err.text);
        if (ops->collect(model_compiled(model), &err) != MB_OK) fail_msg("%s", err.text);
        ops->stats(model_compiled(model), &stats);
        out->n_ahead += stats.ahead;
        bool begins = false;
        for (int32_t s = 0; s < width; s++) begins = begins || rows[s].i_first % KV_PAGE_TOKENS == 0;
        out->n_pages += stats.ahead && begins;
        if (step == OTHER_ID || step == REST || step == WARMER || step == PAGES_WRITTEN || step == BEHIND_AN_END) assert_false(stats.ahead);
        for (int32_t s = 0; s < width; s++) {
            seq[s].n_committed += rows[s].n;
            seq[s].i_state = seq[s].n_committed;
            next[s] = out->draws[step][s].id;
        }
    }
    free(spare);
}

/* Are the draws the same? Says where not. */
static inline void ahead_compare(const char *what, const struct ahead_run *got, const struct ahead_run *want)
{
    for (int32_t step = 0; step < AHEAD_STEPS; step++)
        for (int32_t s = 0; s < AHEAD_WIDTH; s++)
            if (memcmp(&got->draws[step][s], &want->draws[step][s], sizeof(struct draw)) != 0)
                fail_msg("%s: step %d, row %d draws %d (%.9g), launch by launch %d (%.9g)", what, (int)step, (int)s, (int)got->draws[step][s].id,
                         (double)got->draws[step][s].logprob, (int)want->draws[step][s].id, (double)want->draws[step][s].logprob);
}

#endif
