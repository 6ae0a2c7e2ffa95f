/* lora.c (avx512): one register holds the 16 lanes of a row of A; four rows share each load of x. Tails are masked: a lane
 * that has no element keeps its sum. */
#include "ops/cpu/avx512/avx512_int.h"

FORCED void project(int R, const float *a, int64_t ld_a, const float *x, int64_t k, float *u)
{
    __m512 l[4];
    int64_t j = 0;
    for (int r = 0; r < R; r++) l[r] = _mm512_setzero_ps();
    for (; j + 16 <= k; j += 16) {
        __m512 v = _mm512_loadu_ps(x + j);
        UNROLL(4)
        for (int r = 0; r < R; r++) l[r] = _mm512_fmadd_ps(_mm512_loadu_ps(a + r * ld_a + j), v, l[r]);
    }
    if (j < k) {
        __mmask16 tail = (__mmask16)((1u << (k - j)) - 1);
        __m512 v = _mm512_maskz_loadu_ps(tail, x + j);
        for (int r = 0; r < R; r++)
            l[r] = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(tail, a + r * ld_a + j), v, l[r], tail);
    }
    for (int r = 0; r < R; r++) u[r] = lanes_sum(l[r]);
}

static void lora_project_avx512(const float *a, int64_t ld_a, int32_t n_rows, const float *x, int64_t k, float *u)
{
    for (; n_rows >= 4; n_rows -= 4, a += 4 * ld_a, u += 4) project(4, a, ld_a, x, k, u);
    for (; n_rows > 0; n_rows--, a += ld_a, u++) project(1, a, ld_a, x, k, u);
}

FORCED void add_block(__mmask16 m, const float *b, int64_t ld_b, int32_t rank, const float *u, float *y)
{
    __m512 s = _mm512_setzero_ps();
    for (int32_t r = 0; r < rank; r++) s = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, b + r * ld_b), _mm512_set1_ps(u[r]), s);
    _mm512_mask_storeu_ps(y, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), s));
}

static void lora_add_avx512(const float *b, int64_t ld_b, int32_t rank, const float *u, int64_t n, float *y)
{
    int64_t o = 0;
    for (; o + 32 <= n; o += 32) {
        __m512 s0 = _mm512_setzero_ps(), s1 = s0;
        for (int32_t r = 0; r < rank; r++) {
            __m512 v = _mm512_set1_ps(u[r]);
            s0 = _mm512_fmadd_ps(_mm512_loadu_ps(b + r * ld_b + o), v, s0);
            s1 = _mm512_fmadd_ps(_mm512_loadu_ps(b + r * ld_b + o + 16), v, s1);
        }
        _mm512_storeu_ps(y + o, _mm512_add_ps(_mm512_loadu_ps(y + o), s0));
        _mm512_storeu_ps(y + o + 16, _mm512_add_ps(_mm512_loadu_ps(y + o + 16), s1));
    }
    for (; o < n; o += 16) {
        int64_t left = n - o < 16 ? n - o : 16;
        add_block((__mmask16)(left == 16 ? 0xffffu : (1u << left) - 1), b + o, ld_b, rank, u, y + o);
    }
}

void avx512_fill_lora(struct cpu_kernels *t)
{
    t->lora_project = lora_project_avx512;
    t->lora_add = lora_add_avx512;
}
