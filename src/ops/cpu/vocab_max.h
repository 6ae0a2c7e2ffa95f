/* vocab_max.h: the maximum of a row of logits and where it stands first. Included by a level, which brings the functions declared below. */
#ifndef OPS_CPU_VOCAB_MAX_H
#define OPS_CPU_VOCAB_MAX_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define VOCAB_BLOCK 1024

/* Maximum of x[0..n); *bad is set when a NaN or +inf is among them. */
static float block_max(const float *x, int64_t n, bool *bad);
/* The first i from `at` on where x[i] == v, or n. */
static int64_t find_equal(const float *x, int64_t at, int64_t n, float v);

static void vocab_max(const float *x, int64_t n, float *max, int64_t *argmax, bool *finite)
{
    float best = -INFINITY;
    int64_t at = 0;
    bool bad = false;
    for (int64_t b = 0; b < n; b += VOCAB_BLOCK) {
        float m = block_max(x + b, n - b < VOCAB_BLOCK ? n - b : VOCAB_BLOCK, &bad);
        if (m > best) {
            best = m;
            at = b;
        }
    }
    at = find_equal(x, at, n, best); /* first of the block's maxima */
    if (at >= n) at = 0;             /* nothing but NaN */
    *max = n > 0 ? x[at] : best;
    *argmax = at;
    *finite = !bad;
}

#endif
