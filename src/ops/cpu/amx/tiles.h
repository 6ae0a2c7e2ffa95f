/* tiles.h: what amx/matmul_tiles.h is written over, on the machine: six tile operations and a few on 16 lanes.
 *
 * A tile is up to 16 rows of up to 64 bytes. tile_dp(sum, x, codes): sum[i][n] += the dot products of the signed bytes of
 * row i of x with the unsigned bytes of column n of codes, where row j of codes holds bytes 4j .. 4j+3 of 16 columns side by
 * side: the layout of packed weights (kernels.h), once 4-bit codes are spread to bytes. Registers are literals.
 * tiles_c.h is the same in plain C. A change here is a change there.
 */
#ifndef OPS_CPU_AMX_TILES_H
#define OPS_CPU_AMX_TILES_H

#include "ops/cpu/avx512/avx512_int.h"

/* Registers: inputs, codes of even and odd groups, sums of even and odd groups. */
#define T_X_HI 0
#define T_X_LO 1
#define T_CODES0 2
#define T_CODES1 3
#define T_HI0 4
#define T_HI1 5
#define T_LO0 6
#define T_LO1 7

/* The 64 bytes that LDTILECFG reads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* The compiler's own macros do not say that these instructions read memory: what was written must be written first. */
#define memory_settle() __asm__ volatile("" ::: "memory")
#define tile_config(shapes)        \
    do {                           \
        memory_settle();           \
        _tile_loadconfig(shapes);  \
    } while (0)
#define tile_load(t, p, stride)    \
    do {                           \
        memory_settle();           \
        _tile_loadd(t, p, stride); \
    } while (0)
#define tile_release() _tile_release()
#define tile_zero(t) _tile_zero(t)
#define tile_store(t, p) _tile_stored(t, p, 64)
#define tile_dp(sum, x, codes) _tile_dpbsud(sum, x, codes)

typedef __m512 lanes;

FORCED lanes lanes_zero(void)
{
    return _mm512_setzero_ps();
}

/* Of the 16 floats at p the first n_out exist. */
FORCED lanes lanes_load(const float *p, int64_t n_out)
{
    return load16(p, n_out);
}

FORCED void lanes_store(float *p, int64_t n_out, lanes v)
{
    store16(p, n_out, v);
}

FORCED void lanes_scales(enum dtype dt, const uint8_t *p, lanes *s, lanes *b)
{
    scales_load(dt, p, s, b);
}

/* (float)(256 * hi + lo), or (float)hi. The shift is a byte shuffle: it uses the port that tiles leave free. */
FORCED lanes lanes_sums(bool two, const int32_t *hi, const int32_t *lo)
{
    const __m512i up = _mm512_set4_epi32(0x0e0d0cff, 0x0a0908ff, 0x060504ff, 0x020100ff); /* x << 8 */
    __m512i v = _mm512_load_si512(hi);
    if (two) v = _mm512_add_epi32(_mm512_shuffle_epi8(v, up), _mm512_load_si512(lo));
    return _mm512_cvtepi32_ps(v);
}

/* acc = fma(s * a, isum, acc); acc = fma(b, xs, acc); pair = { a, xs } */
FORCED lanes lanes_group_add(lanes acc, lanes s, lanes b, const float *pair, lanes isum)
{
    acc = _mm512_fmadd_ps(_mm512_mul_ps(s, _mm512_set1_ps(pair[0])), isum, acc);
    return _mm512_fmadd_ps(b, _mm512_set1_ps(pair[1]), acc);
}

/* 16 words of eight 4-bit codes to two vectors of bytes: even elements, then odd ones. */
FORCED void lanes_spread(const uint8_t *p, uint8_t *out)
{
    const __m512i m0f = _mm512_set1_epi32(0x0f0f0f0f);
    __m512i v = load_i(p);
    _mm512_store_si512(out, _mm512_and_si512(v, m0f));
    _mm512_store_si512(out + 64, _mm512_and_si512(_mm512_srli_epi32(v, 4), m0f));
}

#endif
