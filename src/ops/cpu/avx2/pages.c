/* pages.c (avx2): writing key and value pages; codes: codes.c. */
#include "ops/cpu/avx2/avx2_int.h"

FORCED __m256i bf16_round(__m256 f)
{
    __m256i u = _mm256_castps_si256(f), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    return _mm256_srli_epi32(r, 16);
}

/* n <= 64 floats to 64 stored values in natural order, the rest zero. */
static void row64_convert(enum kv_format f, const float *x, int64_t n, uint16_t *out)
{
    float t[64] = { 0 };
    memcpy(t, x, (size_t)n * 4);
    for (int i = 0; i < 64; i += 8) {
        __m256 v = _mm256_loadu_ps(t + i);
        __m128i h;
        if (f == KV_F16) {
            h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
        } else {
            __m256i b = bf16_round(v);
            h = _mm_packus_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
        }
        _mm_storeu_si128((__m128i *)(out + i), h);
    }
}

static void kv_write_avx2(enum kv_format f, int64_t d, int i_key, const float *k, const float *v, uint8_t *area)
{
    if (kv_is_codes((int)f)) {
        avx2_codes_write(f, d, i_key, k, v, area);
        return;
    }
    size_t rb = f == KV_F32 ? 256 : 128; /* 64 values */
    int place = (i_key & ~31) + 2 * (i_key & 15) + ((i_key >> 4) & 1);
    for (int64_t b = 0; b < d; b += 64) {
        int64_t n = d - b < 64 ? d - b : 64;
        uint8_t *vrow = area + (size_t)(d + b + i_key) * rb;
        if (f == KV_F32) {
            for (int64_t i = 0; i < n; i++) memcpy(area + (size_t)(b + i) * rb + 4 * i_key, k + b + i, 4);
            memset(vrow, 0, rb);
            memcpy(vrow, v + b, (size_t)n * 4);
            continue;
        }
        uint16_t h[64];
        row64_convert(f, k + b, n, h);
        uint8_t *col = area + (size_t)b * rb + 2 * (f == KV_F16 ? i_key : place);
        for (int64_t i = 0; i < n; i++) memcpy(col + (size_t)i * rb, h + i, 2);
        row64_convert(f, v + b, n, h);
        if (f == KV_F16) {
            memcpy(vrow, h, 128);
            continue;
        }
        for (int g = 0; g < 64; g += 32) {
            __m256i lo = load_i(h + g), hi = load_i(h + g + 16);
            __m256i a = _mm256_unpacklo_epi16(lo, hi), c = _mm256_unpackhi_epi16(lo, hi);
            _mm256_storeu_si256((__m256i *)(vrow + 2 * g), _mm256_permute2x128_si256(a, c, 0x20));
            _mm256_storeu_si256((__m256i *)(vrow + 2 * g + 32), _mm256_permute2x128_si256(a, c, 0x31));
        }
    }
}

void avx2_fill_pages(struct cpu_kernels *t)
{
    t->kv_write = kv_write_avx2;
}
