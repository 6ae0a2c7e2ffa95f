/* codes.c (avx2): writing pages of 8- and 4-bit codes (docs/numerics.md section 4d; portable/codes.c is the definition). */
#include "ops/cpu/avx2/mathv.h"

#define ROUND_MAGIC 0x1.8p23f

FORCED float min_of(__m256 v)
{
    __m128 x = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_min_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_min_ss(x, _mm_movehdup_ps(x)));
}

FORCED float max_of(__m256 v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

FORCED uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

FORCED float bf16_float(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* One group of n values: its s and b to the block of scales, its codes. */
static void group_codes(const float *x, int n, float top, uint8_t *block, int i_key, uint8_t *codes)
{
    uint16_t h[2] = { 0x7fc0, 0x7fc0 };
    __m256 lo = _mm256_loadu_ps(x), hi = lo, any = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        lo = _mm256_min_ps(lo, v);
        hi = _mm256_max_ps(hi, v);
        any = _mm256_add_ps(any, _mm256_mul_ps(v, _mm256_setzero_ps()));
    }
    float step = 0.0f, from = 0.0f;
    if (_mm256_movemask_ps(_mm256_cmp_ps(any, any, _CMP_UNORD_Q)) == 0) {
        uint32_t u = bits_of(min_of(lo) + 0.0f);
        uint16_t b = (uint16_t)((u >> 16) + ((u >> 31) && (u & 0xffff)));
        from = bf16_float(b);
        u = bits_of((max_of(hi) - from) / top);
        uint16_t s = (uint16_t)((u >> 16) + ((u & 0xffff) != 0));
        step = bf16_float(s);
        if (step <= 0x1.fffffep+127f) {
            if (step < 1e-30f) {
                s = 0;
                step = 0.0f;
            }
            h[0] = s;
            h[1] = b;
        } else {
            step = 0.0f;
        }
    }
    memcpy(block + 2 * i_key, &h[0], 2);
    memcpy(block + 128 + 2 * i_key, &h[1], 2);
    if (!(step > 0.0f)) {
        memset(codes, 0, (size_t)n);
        return;
    }
    __m256 inv = V8(1.0f / step), magic = V8(ROUND_MAGIC);
    for (int i = 0; i < n; i += 16) {
        __m128i c[2];
        for (int k = 0; k < 2; k++) {
            __m256 r = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8 * k), V8(from)), inv);
            r = _mm256_min_ps(_mm256_sub_ps(_mm256_add_ps(r, magic), magic), V8(top));
            __m256i v = _mm256_cvttps_epi32(r);
            c[k] = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        }
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm_packus_epi16(c[0], c[1]));
    }
}

/* 64 dims from dim i0 on, n of them there. */
static void k_store(enum kv_format f, uint8_t *area, int64_t i0, int n, int i_key, const uint8_t *codes)
{
    if (f == KV_Q8)
        for (int i = 0; i < n; i++) area[(i0 + i) * 64 + i_key] = codes[i];
    else
        for (int i = 0; i < n; i += 2) area[(i0 + i) / 2 * 64 + i_key] = (uint8_t)(codes[i] | codes[i + 1] << 4);
}

static void v_store(enum kv_format f, uint8_t *row, const uint8_t *codes)
{
    if (f == KV_Q8) memcpy(row, codes, 64);
    else
        for (int i = 0; i < 32; i++) row[i] = (uint8_t)(codes[i] | codes[32 + i] << 4);
}

void avx2_codes_write(enum kv_format f, int64_t d, int i_key, const float *k, const float *v, uint8_t *area)
{
    struct kv_code_places p = kv_code_places(f, d);
    float top = f == KV_Q8 ? 255.0f : 15.0f;
    for (int64_t i0 = 0; i0 < d; i0 += 64) {
        uint8_t ck[64] = { 0 }, cv[64] = { 0 };
        int n = d - i0 < 64 ? (int)(d - i0) : 64;
        for (int i = 0; i < n; i += p.group) {
            size_t at = (size_t)((i0 + i) / p.group) * KV_SCALES_BYTES;
            group_codes(k + i0 + i, p.group, top, area + p.k_scales + at, i_key, ck + i);
            group_codes(v + i0 + i, p.group, top, area + p.v_scales + at, i_key, cv + i);
        }
        k_store(f, area, i0, n, i_key, ck);
        v_store(f, area + p.v_codes + (size_t)(i0 + i_key) * p.row, cv);
    }
}
