/* vocab.c (avx512): the two passes over a row of logits that every draw takes; the Gumbel draw stays avx2's. */
#include "ops/cpu/avx512/mathv.h"
#include "ops/cpu/vocab_max.h"

/* 16 logits, -inf behind the end. */
FORCED __m512 logits_load(const float *x, int64_t left)
{
    if (left >= 16) return _mm512_loadu_ps(x);
    return _mm512_mask_loadu_ps(V16(-INFINITY), (__mmask16)((1u << left) - 1), x);
}

static float block_max(const float *x, int64_t n, bool *bad)
{
    const __m512 inf = V16(INFINITY);
    __m512 m0 = V16(-INFINITY), m1 = m0;
    __mmask16 b = 0;
    for (int64_t i = 0; i < n; i += 32) {
        __m512 v0 = logits_load(x + i, n - i), v1 = n - i > 16 ? logits_load(x + i + 16, n - i - 16) : V16(-INFINITY);
        b |= _mm512_cmp_ps_mask(v0, inf, _CMP_NLT_UQ) | _mm512_cmp_ps_mask(v1, inf, _CMP_NLT_UQ);
        m0 = _mm512_max_ps(v0, m0); /* a NaN keeps the old maximum */
        m1 = _mm512_max_ps(v1, m1);
    }
    if (b) *bad = true;
    return _mm512_reduce_max_ps(_mm512_max_ps(m0, m1));
}

static int64_t find_equal(const float *x, int64_t at, int64_t n, float v)
{
    for (; at < n; at += 16) {
        __mmask16 same = _mm512_cmp_ps_mask(logits_load(x + at, n - at), V16(v), _CMP_EQ_OQ);
        if (same == 0) continue;
        at += __builtin_ctz(same);
        return at < n ? at : n;
    }
    return n;
}

/* The 16 lanes of a block are one register; -inf adds +0. */
static float vocab_sumexp_avx512(const float *x, int64_t n, float max)
{
    float total = 0.0f;
    __m512 mv = V16(max);
    for (int64_t b = 0; b < n; b += VOCAB_BLOCK) {
        int64_t end = n - b < VOCAB_BLOCK ? n : b + VOCAB_BLOCK;
        __m512 l = _mm512_setzero_ps();
        for (int64_t i = b; i < end; i += 16) l = _mm512_add_ps(l, exp_v(_mm512_sub_ps(logits_load(x + i, end - i), mv)));
        total = total + lanes_sum(l);
    }
    return total;
}

void avx512_fill_vocab(struct cpu_kernels *t)
{
    t->vocab_max = vocab_max;
    t->vocab_sumexp = vocab_sumexp_avx512;
}
