/* matmul_int.h: what the matmul files of the AVX2 level share. */
#ifndef OPS_CPU_AVX2_MATMUL_INT_H
#define OPS_CPU_AVX2_MATMUL_INT_H

#include "ops/cpu/avx2/avx2_int.h"

#define GROUP_MAX 128
#define PREFETCH_AHEAD 4096
#define FEW_ROWS 8 /* up to here expanding codes costs more than it saves */

/* m <= FEW_ROWS rows of 4-bit weights (matmul_few.c). */
void avx2_matmul_q4_few(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                        int64_t m, float *y, int64_t ld_y);

FORCED size_t code_bytes(enum cpu_wtype type, int g)
{
    return (size_t)g * (type == CPU_W_Q4 ? 8 : 16);
}

/* Two fma per group: acc = fma(s*a, isum, acc); acc = fma(b, xs, acc). */
FORCED __m256 group_add(__m256 acc, __m256 s, __m256 b, const float *pair, __m256i isum)
{
    acc = _mm256_fmadd_ps(_mm256_mul_ps(s, _mm256_broadcast_ss(pair)), _mm256_cvtepi32_ps(isum), acc);
    return _mm256_fmadd_ps(b, _mm256_broadcast_ss(pair + 1), acc);
}

FORCED __m256i widen_sum(__m256i s16)
{
    return _mm256_madd_epi16(s16, _mm256_set1_epi16(1));
}

/* The compiler would reorder the integer additions of an unrolled loop, hold every product until the end and spill them
 * all; naming the accumulator here keeps each addition in its place. */
FORCED void in_place(__m256i *acc)
{
    __asm__("" : "+x"(*acc));
}

FORCED const float *act_pairs(const struct cpu_act *x, const uint8_t *row)
{
    return (const float *)(row + (x->form == ACT_Q16 ? 2 * x->k : x->k));
}

#endif
