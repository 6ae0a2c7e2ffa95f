/* tiles.h: the operations of tile_ops.h on the machine. Registers are literals. */
#ifndef OPS_CPU_AMX_TILES_H
#define OPS_CPU_AMX_TILES_H

#include "ops/cpu/amx/tile_ops.h"
#include "ops/cpu/avx512/avx512_int.h"

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
#define tile_dp_bf16(sum, x, codes) _tile_dpbf16ps(sum, x, codes)

typedef __m512 lanes;

FORCED lanes lanes_zero(void)
{
    return _mm512_setzero_ps();
}

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

/* The shift is a byte shuffle: it uses the port that tiles leave free. */
FORCED lanes lanes_sums(bool two, const int32_t *hi, const int32_t *lo)
{
    const __m512i up = _mm512_set4_epi32(0x0e0d0cff, 0x0a0908ff, 0x060504ff, 0x020100ff); /* x << 8 */
    __m512i v = _mm512_load_si512(hi);
    if (two) v = _mm512_add_epi32(_mm512_shuffle_epi8(v, up), _mm512_load_si512(lo));
    return _mm512_cvtepi32_ps(v);
}

FORCED lanes lanes_floats(const float *p)
{
    return _mm512_load_ps(p);
}

FORCED lanes lanes_group_add(lanes acc, lanes s, lanes b, const float *pair, lanes isum)
{
    acc = _mm512_fmadd_ps(_mm512_mul_ps(s, _mm512_set1_ps(pair[0])), isum, acc);
    return _mm512_fmadd_ps(b, _mm512_set1_ps(pair[1]), acc);
}

FORCED void lanes_spread(const uint8_t *p, uint8_t *out)
{
    const __m512i m0f = _mm512_set1_epi32(0x0f0f0f0f);
    __m512i v = load_i(p);
    _mm512_store_si512(out, _mm512_and_si512(v, m0f));
    _mm512_store_si512(out + 64, _mm512_and_si512(_mm512_srli_epi32(v, 4), m0f));
}

/* 0 to 15 as bf16, twice: bit 4 of an index is a bit of the next code. */
static const uint16_t code_bf16[32] = {
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
};

FORCED void pairs_store(__m512i table, __m512i at, uint8_t *out)
{
    _mm512_store_si512(out, _mm512_permutexvar_epi16(at, table));
}

FORCED void lanes_spread_bf16(const uint8_t *p, const uint8_t *q, uint8_t *out)
{
    __m512i v = load_i(p), w = load_i(q), table = load_i(code_bf16);
    __m512i low = _mm512_mask_blend_epi16(0xaaaaaaaa, v, _mm512_slli_epi32(w, 16));    /* elements 0 .. 3 of both */
    __m512i high = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(v, 16), w);   /* 4 .. 7 */
    pairs_store(table, low, out);
    pairs_store(table, _mm512_srli_epi32(low, 8), out + 64);
    pairs_store(table, high, out + 128);
    pairs_store(table, _mm512_srli_epi32(high, 8), out + 192);
    pairs_store(table, _mm512_srli_epi32(low, 4), out + 256);
    pairs_store(table, _mm512_srli_epi32(low, 12), out + 320);
    pairs_store(table, _mm512_srli_epi32(high, 4), out + 384);
    pairs_store(table, _mm512_srli_epi32(high, 12), out + 448);
}

FORCED __m512i limb_floats(bool high, const uint8_t *p)
{
    __m512i v = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm512_castps_si512(_mm512_cvtepi32_ps(high ? _mm512_slli_epi32(v, 8) : v));
}

FORCED void lanes_limb_bf16(bool high, const uint8_t *p, uint8_t *out)
{
    __m512i a = limb_floats(high, p), b = limb_floats(high, p + 16); /* their low halves are zero */
    _mm512_store_si512(out, _mm512_or_si512(_mm512_srli_epi32(a, 16), b));
}

#endif
