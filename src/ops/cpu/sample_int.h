/* sample_int.h: the two halves of the sample step: sample.c runs the chain, sample_filter.c finds the survivors. */
#ifndef OPS_CPU_SAMPLE_INT_H
#define OPS_CPU_SAMPLE_INT_H

#include "ops/cpu/kernels.h"

/* Logits in descending order, produced lazily: logit descending, id ascending, -inf excluded. Candidates are gathered in
 * bands of logits below the maximum, each band a heap, so that the vocabulary is passed once per band and never sorted.
 * order[0 .. n_order) are the ids produced so far. */
struct walk {
    const float *x;
    int64_t n;
    float max;
    int32_t *order, *heap; /* n int32 each, borrowed */
    int64_t n_order, n_heap;
    float floor;           /* logits >= floor have been gathered */
    int i_band;            /* next band */
};
void walk_init(struct walk *w, const float *x, int64_t n, float max, int32_t *order, int32_t *heap);
/* Produce one more id; false: no logit above -inf is left. */
bool walk_next(struct walk *w);

/* Filters of p on x[n] with maximum `max` and sum of exp(x - max) = z: everything that top-p, min-p, XTC and top-k drop
 * becomes -inf. xtc: whether this position's XTC draw hit. */
void sample_filter(float *x, int64_t n, float max, float z, const struct sample_params *p, bool xtc, int32_t *order,
                   int32_t *heap, int32_t *keep);

#endif
