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

/* While tiles are at work products, fma and conversions have port 0 alone; shuffles, integer sums and float sums go to port 5 as well. So
 * the shift of two limbs is a byte shuffle, and one limb, at most 128 * 255 * 127 < 2^22, is converted by two sums: the bits of 3 * 2^22
 * plus an integer are those of the float 3 * 2^22 + the integer, and the difference of the two floats is exact (+0 for 0, as of cvt). */
FORCED lanes lanes_sums(bool two, const int32_t *hi, const int32_t *lo)
{
    const __m512i up = _mm512_set4_epi32(0x0e0d0cff, 0x0a0908ff, 0x060504ff, 0x020100ff); /* x << 8 */
    __m512i v = _mm512_load_si512(hi);
    if (two) return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_shuffle_epi8(v, up), _mm512_load_si512(lo)));
    const __m512i base = _mm512_set1_epi32(0x4b400000);
    return _mm512_sub_ps(_mm512_castsi512_ps(_mm512_add_epi32(v, base)), _mm512_castsi512_ps(base));
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

#endif
