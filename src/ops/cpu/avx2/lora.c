/* lora.c (avx2): two rows of A share each load of x (four accumulators); outputs of B go 16 at a time. */
#include "ops/cpu/avx2/mathv.h"

/* Lanes of one row after whole groups of 16, the tail one by one, the fold. */
FORCED float lanes_end(__m256 l0, __m256 l1, const float *a, const float *x, int64_t j, int64_t k)
{
    float lane[16];
    if (j == k) return lanes_sum(l0, l1);
    _mm256_storeu_ps(lane, l0);
    _mm256_storeu_ps(lane + 8, l1);
    for (; j < k; j++) lane[j & 15] = __builtin_fmaf(a[j], x[j], lane[j & 15]);
    return lanes_sum(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8));
}

FORCED void project(int R, const float *a, int64_t ld_a, const float *x, int64_t k, float *u)
{
    __m256 l0[2], l1[2];
    int64_t j = 0;
    for (int r = 0; r < R; r++) l0[r] = l1[r] = _mm256_setzero_ps();
    for (; j + 16 <= k; j += 16) {
        __m256 x0 = _mm256_loadu_ps(x + j), x1 = _mm256_loadu_ps(x + j + 8);
        UNROLL(2)
        for (int r = 0; r < R; r++) {
            l0[r] = _mm256_fmadd_ps(_mm256_loadu_ps(a + r * ld_a + j), x0, l0[r]);
            l1[r] = _mm256_fmadd_ps(_mm256_loadu_ps(a + r * ld_a + j + 8), x1, l1[r]);
        }
    }
    for (int r = 0; r < R; r++) u[r] = lanes_end(l0[r], l1[r], a + r * ld_a, x, j, k);
}

static void lora_project_avx2(const float *a, int64_t ld_a, int32_t n_rows, const float *x, int64_t k, float *u)
{
    for (; n_rows >= 2; n_rows -= 2, a += 2 * ld_a, u += 2) project(2, a, ld_a, x, k, u);
    if (n_rows) project(1, a, ld_a, x, k, u);
}

static void lora_add_avx2(const float *b, int64_t ld_b, int32_t rank, const float *u, int64_t n, float *y)
{
    int64_t o = 0;
    for (; o + 16 <= n; o += 16) {
        __m256 s0 = _mm256_setzero_ps(), s1 = s0;
        for (int32_t r = 0; r < rank; r++) {
            __m256 v = V8(u[r]);
            s0 = _mm256_fmadd_ps(_mm256_loadu_ps(b + r * ld_b + o), v, s0);
            s1 = _mm256_fmadd_ps(_mm256_loadu_ps(b + r * ld_b + o + 8), v, s1);
        }
        _mm256_storeu_ps(y + o, _mm256_add_ps(_mm256_loadu_ps(y + o), s0));
        _mm256_storeu_ps(y + o + 8, _mm256_add_ps(_mm256_loadu_ps(y + o + 8), s1));
    }
    for (; o < n; o++) {
        float acc = 0;
        for (int32_t r = 0; r < rank; r++) acc = __builtin_fmaf(b[r * ld_b + o], u[r], acc);
        y[o] += acc;
    }
}

void avx2_fill_lora(struct cpu_kernels *t)
{
    t->lora_project = lora_project_avx2;
    t->lora_add = lora_add_avx2;
}
