/* avx2_int.h: what the files of the AVX2 level share: vector types by name, small static helpers, the files' fill
 * functions. Included by this folder alone. A block of 16 outputs is two ymm registers, "halves" 0 and 1. */
#ifndef OPS_CPU_AVX2_INT_H
#define OPS_CPU_AVX2_INT_H

#include <immintrin.h>
#include <string.h>

#include "ops/cpu/kernels.h"

/* FORCED: templates of constants (rows, formats) that must be inlined; UNROLL: the loop that follows, so that arrays of
 * accumulators become registers. A sanitizer build checks every access of every copy and would compile for minutes: it
 * keeps plain functions and loops. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FORCED static __attribute__((noinline, unused))
#define UNROLL(n)
#else
#define FORCED static inline __attribute__((always_inline))
#define UNROLL_TEXT(text) _Pragma(#text)
#define UNROLL(n) UNROLL_TEXT(GCC unroll n)
#endif

void avx2_fill_quantise(struct cpu_kernels *t);
void avx2_fill_matmul(struct cpu_kernels *t);
void avx2_fill_matmul_f32(struct cpu_kernels *t);
void avx2_fill_rows(struct cpu_kernels *t);
void avx2_fill_delta(struct cpu_kernels *t);
void avx2_fill_lora(struct cpu_kernels *t);
void avx2_fill_attention(struct cpu_kernels *t);
void avx2_fill_pages(struct cpu_kernels *t);
void avx2_fill_vocab(struct cpu_kernels *t);
/* Pages of codes, as kv_write of the table. */
void avx2_codes_write(enum kv_format f, int64_t d, int i_key, const float *k, const float *v, uint8_t *area);

FORCED __m256i load_i(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

FORCED __m256i bcast_dword(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Scales and biases of one (block, group): s[half], b[half]. */
FORCED void scales_load(enum dtype dt, const uint8_t *p, __m256 s[2], __m256 b[2])
{
    for (int h = 0; h < 2; h++) {
        if (dt == DT_BF16) {
            __m256i v = load_i(p + 32 * h);
            s[h] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
            b[h] = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
        } else if (dt == DT_F16) {
            s[h] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16 * h)));
            b[h] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 32 + 16 * h)));
        } else {
            s[h] = _mm256_loadu_ps((const float *)(p + 32 * h));
            b[h] = _mm256_loadu_ps((const float *)(p + 64 + 32 * h));
        }
    }
}

FORCED size_t scales_bytes(enum dtype dt)
{
    return dt == DT_F32 ? 128 : 64;
}

/* Store 16 results of which the first n_out exist. */
FORCED void store16(float *y, int64_t n_out, __m256 v0, __m256 v1)
{
    if (n_out >= 16) {
        _mm256_storeu_ps(y, v0);
        _mm256_storeu_ps(y + 8, v1);
        return;
    }
    float t[16];
    _mm256_storeu_ps(t, v0);
    _mm256_storeu_ps(t + 8, v1);
    for (int64_t r = 0; r < n_out; r++) y[r] = t[r];
}

/* 16 lanes in two registers to one sum: halves of 8, of 4, then (0 + 2) + (1 + 3). */
FORCED float lanes_sum(__m256 l0, __m256 l1)
{
    __m256 t = _mm256_add_ps(l0, l1);
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u)); /* 0 + 2, 1 + 3 */
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

#endif
