/* avx512_int.h: what the files of the AVX-512 level (F, BW, DQ, VL, VNNI) share. Included by this folder and by amx/,
 * which is compiled for the same instructions and tiles. A block of 16 outputs is one zmm register. */
#ifndef OPS_CPU_AVX512_INT_H
#define OPS_CPU_AVX512_INT_H

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

void avx512_fill_quantise(struct cpu_kernels *t);
void avx512_fill_rows(struct cpu_kernels *t);
void avx512_fill_matmul(struct cpu_kernels *t);
void avx512_fill_matmul_f32(struct cpu_kernels *t);
void avx512_fill_lora(struct cpu_kernels *t);
void avx512_fill_delta(struct cpu_kernels *t);
void avx512_fill_attention(struct cpu_kernels *t);
void avx512_fill_pages(struct cpu_kernels *t);
void avx512_fill_vocab(struct cpu_kernels *t);

/* What the amx level keeps for few rows. */
void matmul_q4_q8_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                         int64_t m, float *y, int64_t ld_y);
void matmul_q4_q16_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                          int64_t m, float *y, int64_t ld_y);
void matmul_q8_q8_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                         int64_t m, float *y, int64_t ld_y);
void matmul_q8_q16_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                          int64_t m, float *y, int64_t ld_y);

FORCED __m512i load_i(const void *p)
{
    return _mm512_loadu_si512(p);
}

FORCED __m512i bcast_dword(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

FORCED __m512 bf16_low(__m512i v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

FORCED __m512 bf16_high(__m512i v)
{
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
}

FORCED __m512 half_load(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Scales and biases of one (block, group). */
FORCED void scales_load(enum dtype dt, const uint8_t *p, __m512 *s, __m512 *b)
{
    if (dt == DT_BF16) {
        __m512i v = load_i(p);
        *s = bf16_low(v);
        *b = bf16_high(v);
    } else if (dt == DT_F16) {
        *s = half_load(p);
        *b = half_load(p + 32);
    } else {
        *s = _mm512_loadu_ps((const float *)p);
        *b = _mm512_loadu_ps((const float *)(p + 64));
    }
}

FORCED size_t scales_bytes(enum dtype dt)
{
    return dt == DT_F32 ? 128 : 64;
}

/* Load 16 floats of which the first n_out exist. */
FORCED __m512 load16(const float *p, int64_t n_out)
{
    return _mm512_maskz_loadu_ps(n_out >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n_out) - 1), p);
}

/* Store 16 results of which the first n_out exist. */
FORCED void store16(float *y, int64_t n_out, __m512 v)
{
    if (n_out >= 16)
        _mm512_storeu_ps(y, v);
    else
        _mm512_mask_storeu_ps(y, (__mmask16)((1u << n_out) - 1), v);
}

/* 16 lanes to one sum: halves of 8, of 4, then (0 + 2) + (1 + 3). */
FORCED float lanes_sum(__m512 l)
{
    __m256 t = _mm256_add_ps(_mm512_castps512_ps256(l), _mm512_extractf32x8_ps(l, 1));
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u)); /* 0 + 2, 1 + 3 */
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

#endif
