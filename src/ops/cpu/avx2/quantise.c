/* quantise.c (avx2): float rows to linear inputs, 32 values a turn. Same operations as portable: one product, round to
 * nearest even, exact integers. Groups of 16 are left to a two-register variant of the same code. */
#include "ops/cpu/avx2/avx2_int.h"

FORCED __m256 abs_ps(__m256 v)
{
    return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)));
}

static float max_lane(__m256 v)
{
    __m128 u = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    u = _mm_max_ps(u, _mm_movehl_ps(u, u));
    u = _mm_max_ss(u, _mm_movehdup_ps(u));
    return _mm_cvtss_f32(u);
}

static int32_t sum_lanes(__m256i v)
{
    __m128i u = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    u = _mm_add_epi32(u, _mm_shuffle_epi32(u, 0x4e));
    u = _mm_add_epi32(u, _mm_shuffle_epi32(u, 0xb1));
    return _mm_cvtsi128_si32(u);
}

/* 16 integers (two registers of 8) to 16-bit, in index order. */
FORCED __m256i pack16(__m256i a, __m256i b)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

/* Bytes of each eight to the order 0,2,4,6,1,3,5,7. */
FORCED __m128i order8(__m128i v)
{
    return _mm_shuffle_epi8(v, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
}

/* Low bytes of 16 words that fit int8. */
FORCED __m128i bytes_of(__m256i w)
{
    return _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

FORCED void quantise_group(const float *v, int g, int8_t *hi, int8_t *lo, float *pair)
{
    __m256 top = _mm256_setzero_ps(), inf = _mm256_set1_ps(__builtin_inff()), bad = top;
    for (int i = 0; i < g; i += 8) {
        __m256 a = abs_ps(_mm256_loadu_ps(v + i));
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, inf, _CMP_NLT_UQ)); /* infinity or NaN */
        top = _mm256_max_ps(top, a);
    }
    bool finite = _mm256_movemask_ps(bad) == 0;
    float amax = max_lane(top);
    if (!finite || amax < 1e-30f) {
        memset(hi, 0, (size_t)g);
        if (lo) memset(lo, 0, (size_t)g);
        pair[0] = pair[1] = finite ? 0.0f : __builtin_nanf("");
        return;
    }
    __m256 inv = _mm256_set1_ps((lo ? 32512.0f : 127.0f) / amax);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < g; i += 16) {
        __m256i x0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(v + i), inv));
        __m256i x1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(v + i + 8), inv));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(x0, x1));
        __m256i w = pack16(x0, x1);
        if (lo) {
            __m256i l = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
            __m256i h = _mm256_srai_epi16(_mm256_sub_epi16(w, l), 8);
            _mm_storeu_si128((__m128i *)(lo + i), order8(bytes_of(l)));
            _mm_storeu_si128((__m128i *)(hi + i), order8(bytes_of(h)));
        } else {
            _mm_storeu_si128((__m128i *)(hi + i), order8(bytes_of(w)));
        }
    }
    float a = amax * (lo ? 1.0f / 32512.0f : 1.0f / 127.0f);
    pair[0] = a;
    pair[1] = a * (float)sum_lanes(sum);
}

static void quantise_groups_avx2(enum act_form form, int g, int64_t k, int64_t grp0, int64_t grp1, const float *x,
                                 uint8_t *out_row)
{
    if (form == ACT_F32) {
        memcpy(out_row + (size_t)(grp0 * g) * 4, x + grp0 * g, (size_t)((grp1 - grp0) * g) * 4);
        return;
    }
    float *pairs = (float *)(out_row + (form == ACT_Q16 ? 2 * k : k));
    for (int64_t i = grp0; i < grp1; i++) {
        if (form == ACT_Q16) {
            int8_t *hi = (int8_t *)out_row + 2 * i * g;
            quantise_group(x + i * g, g, hi, hi + g, pairs + 2 * i);
        } else {
            quantise_group(x + i * g, g, (int8_t *)out_row + i * g, NULL, pairs + 2 * i);
        }
    }
}

static void quantise_rows_avx2(enum act_form form, int g, int64_t k, int64_t n_rows, const float *x, int64_t ld_x,
                               uint8_t *out, size_t row_bytes)
{
    for (int64_t r = 0; r < n_rows; r++) {
        if (form == ACT_F32)
            memcpy(out + (size_t)r * row_bytes, x + r * ld_x, (size_t)k * 4);
        else
            quantise_groups_avx2(form, g, k, 0, k / g, x + r * ld_x, out + (size_t)r * row_bytes);
    }
}

void avx2_fill_quantise(struct cpu_kernels *t)
{
    t->quantise_rows = quantise_rows_avx2;
    t->quantise_groups = quantise_groups_avx2;
}
