/* pages.c (avx512): sixteen keys and values into their page at once: a row of a page has keys side by side, so that sixteen of them are
 * turned in registers and go out as one vector a dim. */
#include "ops/cpu/avx512/avx512_int.h"

/* 16 x 16, turned. */
FORCED void turn_16(__m512 v[16])
{
    __m512 t[16];
    UNROLL(8)
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
#define PD(x) _mm512_castps_pd(x)
#define PS(x) _mm512_castpd_ps(x)
    UNROLL(4)
    for (int i = 0; i < 16; i += 4) { /* in 128-bit lane j: columns 4 j .. 4 j + 3 of rows i .. i + 3 */
        v[i] = PS(_mm512_unpacklo_pd(PD(t[i]), PD(t[i + 2])));
        v[i + 1] = PS(_mm512_unpackhi_pd(PD(t[i]), PD(t[i + 2])));
        v[i + 2] = PS(_mm512_unpacklo_pd(PD(t[i + 1]), PD(t[i + 3])));
        v[i + 3] = PS(_mm512_unpackhi_pd(PD(t[i + 1]), PD(t[i + 3])));
    }
#undef PD
#undef PS
    UNROLL(4)
    for (int i = 0; i < 4; i++) {
        __m512 a = _mm512_shuffle_f32x4(v[i], v[4 + i], 0x88), b = _mm512_shuffle_f32x4(v[8 + i], v[12 + i], 0x88); /* lanes 0, 2 */
        __m512 c = _mm512_shuffle_f32x4(v[i], v[4 + i], 0xdd), d = _mm512_shuffle_f32x4(v[8 + i], v[12 + i], 0xdd); /* lanes 1, 3 */
        t[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[8 + i] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[4 + i] = _mm512_shuffle_f32x4(c, d, 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
    UNROLL(16)
    for (int i = 0; i < 16; i++) v[i] = t[i];
}

/* bfloat16 bits in the low halves, the high ones zero: nearest even, a NaN stays one. */
FORCED __m512i bf16_round(__m512 f)
{
    __m512i u = _mm512_castps_si512(f), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    return _mm512_srli_epi32(r, 16);
}

/* Sixteen keys of one dim, from key i_key of the row on. Their neighbours may be written at this moment: only their own bytes are. */
FORCED void keys_store(enum kv_format f, uint8_t *row, int i_key, __m512 v)
{
    if (f == KV_F32) {
        _mm512_storeu_ps((float *)(void *)row + i_key, v);
    } else if (f == KV_F16) {
        _mm256_storeu_si256((__m256i *)(void *)(row + 2 * i_key), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m512i x = bf16_round(v);
        uint8_t *to = row + 2 * (i_key & 32);
        if (i_key & 16) _mm512_mask_storeu_epi16(to, 0xaaaaaaaau, _mm512_slli_epi32(x, 16));
        else _mm512_mask_storeu_epi16(to, 0x55555555u, x);
    }
}

/* A value of n <= 64 dims; the rest of the row is zero. */
FORCED void value_store(enum kv_format f, uint8_t *row, const float *x, int64_t n)
{
    UNROLL(2)
    for (int i = 0; i < 64; i += 32) {
        __m512 v[2] = { load16(x + (n > i ? i : 0), n > i ? n - i : 0), load16(x + (n > i + 16 ? i + 16 : 0), n > i + 16 ? n - i - 16 : 0) };
        if (f == KV_BF16) _mm512_storeu_si512(row + 2 * i, _mm512_or_si512(bf16_round(v[0]), _mm512_slli_epi32(bf16_round(v[1]), 16)));
        for (int j = 0; j < 2 && f != KV_BF16; j++) {
            int at = i + 16 * j;
            if (f == KV_F32) _mm512_storeu_ps((float *)(void *)row + at, v[j]);
            else _mm256_storeu_si256((__m256i *)(void *)(row + 2 * at), _mm512_cvtps_ph(v[j], _MM_FROUND_TO_NEAREST_INT));
        }
    }
}

FORCED void write_16(enum kv_format f, int64_t d, int i_key, const float *k, int64_t ld_k, const float *v, int64_t ld_v, uint8_t *area)
{
    const size_t rb = f == KV_F32 ? 256 : 128; /* 64 values */
    for (int64_t b = 0; b < d; b += 16) {
        __m512 t[16];
        UNROLL(16)
        for (int i = 0; i < 16; i++) t[i] = load16(k + i * ld_k + b, d - b);
        turn_16(t);
        UNROLL(16)
        for (int i = 0; i < 16; i++)
            if (b + i < d) keys_store(f, area + (size_t)(b + i) * rb, i_key, t[i]);
    }
    for (int i = 0; i < 16; i++)
        for (int64_t b = 0; b < d; b += 64)
            value_store(f, area + (size_t)(d + b + i_key + i) * rb, v + i * ld_v + b, d - b < 64 ? d - b : 64);
}

static void kv_write_16_avx512(enum kv_format f, int64_t d, int i_key, const float *k, int64_t ld_k, const float *v, int64_t ld_v,
                               uint8_t *area)
{
    if (f == KV_F32) write_16(KV_F32, d, i_key, k, ld_k, v, ld_v, area);
    else if (f == KV_F16) write_16(KV_F16, d, i_key, k, ld_k, v, ld_v, area);
    else write_16(KV_BF16, d, i_key, k, ld_k, v, ld_v, area);
}

void avx512_fill_pages(struct cpu_kernels *t)
{
    t->kv_write_16 = kv_write_16_avx512;
}
