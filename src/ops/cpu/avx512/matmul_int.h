/* matmul_int.h: what the two files of quantised products of this level share: codes, limbs, the two fma behind a group. */
#ifndef OPS_CPU_AVX512_MATMUL_INT_H
#define OPS_CPU_AVX512_MATMUL_INT_H

#include "ops/cpu/avx512/avx512_int.h"

/* Into L2: into L1 4 KB ahead halves the bandwidth of one row on a Xeon, whose L1 has few buffers for lines under way. */
#define PREFETCH_AHEAD 8192

/* matmul_few.c: m is 7 or 8. */
void avx512_matmul_few(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0, int64_t m,
                       float *y, int64_t ld_y);

FORCED size_t code_bytes(enum cpu_wtype type, int g)
{
    return (size_t)g * (type == CPU_W_Q4 ? 8 : 16);
}

FORCED const uint8_t *act_row(const struct cpu_act *x, int64_t row)
{
    return x->data + (size_t)row * x->row_bytes;
}

FORCED size_t act_pairs_off(const struct cpu_act *x)
{
    return (size_t)x->k * (x->form == ACT_Q16 ? 2 : 1);
}

FORCED __m512 group_add(__m512 acc, __m512 s, __m512 b, const float *pair, __m512i isum)
{
    acc = _mm512_fmadd_ps(_mm512_mul_ps(s, _mm512_set1_ps(pair[0])), _mm512_cvtepi32_ps(isum), acc);
    return _mm512_fmadd_ps(b, _mm512_set1_ps(pair[1]), acc);
}

/* Vectors 2i and 2i+1 of u8 codes of one group. */
FORCED void codes_load(enum cpu_wtype type, const uint8_t *p, int i, __m512i *even, __m512i *odd)
{
    if (type == CPU_W_Q4) {
        const __m512i m0f = _mm512_set1_epi32(0x0f0f0f0f);
        __m512i v = load_i(p + 64 * i);
        *even = _mm512_and_si512(v, m0f);
        *odd = _mm512_and_si512(_mm512_srli_epi32(v, 4), m0f);
    } else {
        *even = load_i(p + 128 * i);
        *odd = load_i(p + 128 * i + 64);
    }
}

#endif
