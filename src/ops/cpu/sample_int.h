/* sample_int.h: the parts of the sample step. sample.c is the chain over one row of logits, cut into stages so that threads
 * can share the two that pass over the whole vocabulary (step_sample.c); sample_filter.c finds the survivors.
 */
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
    const float *block_max; /* [sample_blocks(n)] nothing in a block is above this; NULL: not known */
};
void walk_init(struct walk *w, const float *x, int64_t n, float max, const float *block_max, int32_t *order, int32_t *heap);
/* Produce one more id; false: no logit above -inf is left. */
bool walk_next(struct walk *w);

/* Filters of p on x[n] with maximum `max` and sum of exp(x - max) = z: what top-p, min-p, XTC and top-k leave. xtc: whether
 * this position's XTC draw hit. sample_survivors returns their number, listed in keep[] in no order, or -1 when XTC alone
 * is on: it has set what it strikes to -inf. sample_keep_only sets all others to -inf; sample_filter does both. */
int64_t sample_survivors(float *x, int64_t n, float max, float z, const float *block_max, const struct sample_params *p, bool xtc,
                         int32_t *order, int32_t *heap, int32_t *keep);
void sample_keep_only(float *x, int64_t n, const int32_t *keep, int64_t n_keep, float *aside);
void sample_filter(float *x, int64_t n, float max, float z, const struct sample_params *p, bool xtc, int32_t *order,
                   int32_t *heap, int32_t *keep);

/* --- stages; blocks of SAMPLE_BLOCK ids --- */

#define SAMPLE_BLOCK 1024
static inline int64_t sample_blocks(int64_t n)
{
    return (n + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK;
}

/* One drawing position between stages. */
struct sample_row {
    float *x;              /* [n] logits, overwritten */
    int64_t n;
    const struct sample_pos *pos;
    float *block_max;      /* [sample_blocks(n)] +inf: a NaN or +inf is in the block */
    float *block_sum;      /* [sample_blocks(n)] */
    float max;             /* of all, once sample_max has run; argmax -1: nothing can be drawn */
    int64_t argmax;
};

/* 1: bias and penalties. seen: n int32. */
void sample_process(struct sample_row *r, int32_t *seen);
/* 2: block_max of blocks [b0, b1). Any thread. */
void sample_block_max(const struct cpu_kernels *t, struct sample_row *r, int64_t b0, int64_t b1);
/* 3: the maximum of all; false when nothing can be drawn, then *out is final. */
bool sample_max(const struct cpu_kernels *t, struct sample_row *r, struct draw *out);
/* Does stage 5 need block_sum? */
bool sample_wants_sum(const struct sample_row *r);
/* 4: block_sum of blocks [b0, b1): exp(x - max). Any thread. */
void sample_block_sum(const struct cpu_kernels *t, struct sample_row *r, int64_t b0, int64_t b1);
/* 5: the rest. scratch: 16 n bytes. */
void sample_finish(const struct cpu_kernels *t, struct sample_row *r, void *scratch, struct draw *out);

#endif
