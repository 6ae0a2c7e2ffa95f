/* quantise.c (avx512): float rows to linear inputs, 128 values a turn: four stretches of 32, whose maxima and sums fold together. Same
 * operations as portable: one product, round to nearest even, exact integers. Groups of 16, and stretches in which a group is zero or
 * not finite, go one by one. */
#include "ops/cpu/avx512/avx512_int.h"

/* Dwords of each 128 bits turned to bytes 0,2,4,6,1,3,5,7 of each eight, in index order: of four registers packed twice. */
FORCED __m512i bytes_order(__m512i v)
{
    const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, v), bytes);
}

/* Bits of |v|: as integers they are ordered as the numbers are, infinity and NaN above all. */
FORCED __m512i abs_bits(__m512 v)
{
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

/* One value a dword of the result: what the 32 of each stretch fold to. Lane by lane first, stretches a and b, c and d side by side. */
#define FOLD(name, op512, op128)                                                                                          \
    FORCED __m128i name(__m512i a, __m512i b, __m512i c, __m512i d)                                                        \
    {                                                                                                                     \
        __m512i ab = op512(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));                                      \
        __m512i cd = op512(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));                                      \
        __m512i t = op512(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));                                   \
        t = op512(t, _mm512_shuffle_i64x2(t, t, 0x4e));                                                                   \
        return op128(_mm512_castsi512_si128(t), _mm512_extracti32x4_epi32(t, 1));                                         \
    }
FOLD(fold_max, _mm512_max_epi32, _mm_max_epi32)
FOLD(fold_sum, _mm512_add_epi32, _mm_add_epi32)

/* Groups of 64 and 128: what their stretches have together, in each of them. */
FORCED __m128i share(__m128i v, int g, bool sum)
{
    if (g > 32) {
        __m128i w = _mm_shuffle_epi32(v, 0xb1);
        v = sum ? _mm_add_epi32(v, w) : _mm_max_epi32(v, w);
    }
    if (g > 64) {
        __m128i w = _mm_shuffle_epi32(v, 0x4e);
        v = sum ? _mm_add_epi32(v, w) : _mm_max_epi32(v, w);
    }
    return v;
}

FORCED void pairs_store(float *pairs, int g, __m128 a, __m128 xs)
{
    __m128 lo = _mm_unpacklo_ps(a, xs), hi = _mm_unpackhi_ps(a, xs);
    if (g == 32) {
        _mm_storeu_ps(pairs, lo);
        _mm_storeu_ps(pairs + 4, hi);
    } else if (g == 64) {
        _mm_storeu_ps(pairs, _mm_movelh_ps(lo, hi));
    } else {
        _mm_storel_pi((__m64 *)(void *)pairs, lo);
    }
}

/* Codes of 64 values, both limbs: stretches i and i + 1 of 32. */
FORCED void limbs_store(int8_t *out, int g, int i, __m512i w0, __m512i w1)
{
    __m512i l0 = _mm512_srai_epi16(_mm512_slli_epi16(w0, 8), 8), l1 = _mm512_srai_epi16(_mm512_slli_epi16(w1, 8), 8);
    __m512i h0 = _mm512_srai_epi16(_mm512_sub_epi16(w0, l0), 8), h1 = _mm512_srai_epi16(_mm512_sub_epi16(w1, l1), 8);
    __m512i hi = bytes_order(_mm512_packs_epi16(h0, h1)), lo = bytes_order(_mm512_packs_epi16(l0, l1));
    for (int j = 0; j < 2; j++) {
        int at = 32 * (i + j), to = 2 * (at / g * g) + at % g;
        _mm256_storeu_si256((__m256i *)(void *)(out + to), j ? _mm512_extracti64x4_epi64(hi, 1) : _mm512_castsi512_si256(hi));
        _mm256_storeu_si256((__m256i *)(void *)(out + to + g), j ? _mm512_extracti64x4_epi64(lo, 1) : _mm512_castsi512_si256(lo));
    }
}

/* False: one of the groups is zero or not finite, and nothing has been written. */
FORCED bool quantise_128(const float *v, int g, bool two, int8_t *out, float *pairs)
{
    __m512 x[8];
    __m512i code[8], sum[4];
    UNROLL(8)
    for (int i = 0; i < 8; i++) x[i] = _mm512_loadu_ps(v + 16 * i);
#define TOP(i) _mm512_max_epi32(abs_bits(x[2 * (i)]), abs_bits(x[2 * (i) + 1]))
    __m128i top = share(fold_max(TOP(0), TOP(1), TOP(2), TOP(3)), g, false);
#undef TOP
    __m128 amax = _mm_castsi128_ps(top);
    __m128i bad = _mm_or_si128(_mm_cmpgt_epi32(top, _mm_set1_epi32(0x7f7fffff)),
                               _mm_castps_si128(_mm_cmplt_ps(amax, _mm_set1_ps(1e-30f))));
    if (!_mm_testz_si128(bad, bad)) return false;
    float inv[4];
    _mm_storeu_ps(inv, _mm_div_ps(_mm_set1_ps(two ? 32512.0f : 127.0f), amax));
    UNROLL(8)
    for (int i = 0; i < 8; i++) code[i] = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], _mm512_set1_ps(inv[i / 2])));
    UNROLL(4)
    for (int i = 0; i < 4; i++) sum[i] = _mm512_add_epi32(code[2 * i], code[2 * i + 1]);
    UNROLL(2)
    for (int i = 0; i < 2; i++) {
        __m512i w0 = _mm512_packs_epi32(code[4 * i], code[4 * i + 1]), w1 = _mm512_packs_epi32(code[4 * i + 2], code[4 * i + 3]);
        if (two) limbs_store(out, g, 2 * i, w0, w1);
        else _mm512_storeu_si512(out + 64 * i, bytes_order(_mm512_packs_epi16(w0, w1)));
    }
    __m128 a = _mm_mul_ps(amax, _mm_set1_ps(two ? 1.0f / 32512.0f : 1.0f / 127.0f));
    __m128i total = share(fold_sum(sum[0], sum[1], sum[2], sum[3]), g, true);
    pairs_store(pairs, g, a, _mm_mul_ps(a, _mm_cvtepi32_ps(total)));
    return true;
}

/* One group of whole sixteens. */
static void quantise_group(const float *v, int g, int8_t *hi, int8_t *lo, float *pair)
{
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m512i top = _mm512_setzero_si512(), sum = top;
    for (int i = 0; i < g; i += 16) top = _mm512_max_epi32(top, abs_bits(_mm512_loadu_ps(v + i)));
    int32_t bits = _mm512_reduce_max_epi32(top);
    float amax;
    memcpy(&amax, &bits, 4);
    bool finite = bits < 0x7f800000;
    if (!finite || amax < 1e-30f) {
        memset(hi, 0, (size_t)g);
        if (lo) memset(lo, 0, (size_t)g);
        pair[0] = pair[1] = finite ? 0.0f : __builtin_nanf("");
        return;
    }
    __m512 inv = _mm512_set1_ps((lo ? 32512.0f : 127.0f) / amax);
    for (int i = 0; i < g; i += 16) {
        __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v + i), inv));
        sum = _mm512_add_epi32(sum, x);
        __m512i l = _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24), h = lo ? _mm512_srai_epi32(_mm512_sub_epi32(x, l), 8) : x;
        _mm_storeu_si128((__m128i *)(void *)(hi + i), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(h), order));
        if (lo) _mm_storeu_si128((__m128i *)(void *)(lo + i), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(l), order));
    }
    pair[0] = amax * (lo ? 1.0f / 32512.0f : 1.0f / 127.0f);
    pair[1] = pair[0] * (float)_mm512_reduce_add_epi32(sum);
}

/* Groups [grp0, grp1); g and two are constants where groups are wide enough. A last turn takes groups that have been done once more. */
FORCED void groups_run(int g, bool two, int64_t k, int64_t grp0, int64_t grp1, const float *x, uint8_t *out_row)
{
    int limbs = two ? 2 : 1, per = g <= 32 ? 4 : g == 64 ? 2 : 1;
    float *pairs = (float *)(void *)(out_row + limbs * k);
    bool wide = g % 32 == 0 && grp1 - grp0 >= per;
    for (int64_t i = grp0; i < grp1;) {
        int64_t at = wide && i + per > grp1 ? grp1 - per : i;
        if (wide && quantise_128(x + at * g, g, two, (int8_t *)out_row + limbs * at * g, pairs + 2 * at)) {
            i = at + per;
            continue;
        }
        for (int64_t end = !wide ? grp1 : at + per; i < end; i++) {
            int8_t *hi = (int8_t *)out_row + limbs * i * g;
            quantise_group(x + i * g, g, hi, two ? hi + g : NULL, pairs + 2 * i);
        }
    }
}

static void quantise_groups_avx512(enum act_form form, int g, int64_t k, int64_t grp0, int64_t grp1, const float *x, uint8_t *out_row)
{
    if (form == ACT_F32) memcpy(out_row + (size_t)(grp0 * g) * 4, x + grp0 * g, (size_t)((grp1 - grp0) * g) * 4);
    else if (form == ACT_Q8 && g == 32) groups_run(32, false, k, grp0, grp1, x, out_row);
    else if (form == ACT_Q8 && g == 64) groups_run(64, false, k, grp0, grp1, x, out_row);
    else if (form == ACT_Q8 && g == 128) groups_run(128, false, k, grp0, grp1, x, out_row);
    else if (form == ACT_Q16 && g == 32) groups_run(32, true, k, grp0, grp1, x, out_row);
    else if (form == ACT_Q16 && g == 64) groups_run(64, true, k, grp0, grp1, x, out_row);
    else if (form == ACT_Q16 && g == 128) groups_run(128, true, k, grp0, grp1, x, out_row);
    else groups_run(16, form == ACT_Q16, k, grp0, grp1, x, out_row);
}

static void quantise_rows_avx512(enum act_form form, int g, int64_t k, int64_t n_rows, const float *x, int64_t ld_x, uint8_t *out,
                                 size_t row_bytes)
{
    for (int64_t r = 0; r < n_rows; r++) {
        uint8_t *row = out + (size_t)r * row_bytes;
        if (form == ACT_F32) memcpy(row, x + r * ld_x, (size_t)k * 4); /* g may be 0 */
        else quantise_groups_avx512(form, g, k, 0, k / g, x + r * ld_x, row);
    }
}

void avx512_fill_quantise(struct cpu_kernels *t)
{
    t->quantise_rows = quantise_rows_avx512;
    t->quantise_groups = quantise_groups_avx512;
}
