/* free_avx2.c: kernels for AVX2 that are free of the order rule (free.h). */
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma,f16c")
#include "free.h"

#include <cpuid.h>

#include "ops/cpu/avx2/matmul_int.h"

#define VNNI __attribute__((target("avx2,fma,f16c,avxvnni")))

/* R rows by one block of 4-bit codes, products by maddubs, limb by limb; scale and bias in chains of their own. */
FORCED void tile_free(bool two, int R, int g, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                      const uint8_t *row, float *y, int64_t ld_y)
{
    const __m256i m0f = _mm256_set1_epi8(15);
    size_t cb = (size_t)g * 8, gb = cb + 64, rb = x->row_bytes;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *xp = row;
    const float *pair = act_pairs(x, row);
    __m256 acc[2][2], bias[2][2];
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = bias[r][0] = bias[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < w->k / g; i++, p += gb, xp += two ? 2 * g : g, pair += 2) {
        __m256i hi[2][2], lo[2][2];
        for (int r = 0; r < R; r++) hi[r][0] = hi[r][1] = lo[r][0] = lo[r][1] = _mm256_setzero_si256();
        for (int c = 0; c < g; c += 32) {
            __m256i h16[2][2], l16[2][2];
            for (int r = 0; r < R; r++) h16[r][0] = h16[r][1] = l16[r][0] = l16[r][1] = _mm256_setzero_si256();
            UNROLL(4)
            for (int j = c / 8; j < c / 8 + 4; j++) {
                if (R == 1) _mm_prefetch((const char *)p + 4096 + 64 * j, _MM_HINT_T0);
                UNROLL(2)
                for (int h = 0; h < 2; h++) {
                    __m256i v = load_i(p + 64 * j + 32 * h), e = _mm256_and_si256(v, m0f),
                            o = _mm256_and_si256(_mm256_srli_epi32(v, 4), m0f);
                    UNROLL(2)
                    for (int r = 0; r < R; r++) {
                        const uint8_t *q = xp + (size_t)r * rb + 8 * j;
                        h16[r][h] = _mm256_add_epi16(h16[r][h], _mm256_maddubs_epi16(e, bcast_dword(q)));
                        in_place(&h16[r][h]);
                        h16[r][h] = _mm256_add_epi16(h16[r][h], _mm256_maddubs_epi16(o, bcast_dword(q + 4)));
                        in_place(&h16[r][h]);
                        if (!two) continue;
                        l16[r][h] = _mm256_add_epi16(l16[r][h], _mm256_maddubs_epi16(e, bcast_dword(q + g)));
                        in_place(&l16[r][h]);
                        l16[r][h] = _mm256_add_epi16(l16[r][h], _mm256_maddubs_epi16(o, bcast_dword(q + g + 4)));
                        in_place(&l16[r][h]);
                    }
                }
            }
            for (int r = 0; r < R; r++)
                for (int h = 0; h < 2; h++) {
                    hi[r][h] = _mm256_add_epi32(hi[r][h], widen_sum(h16[r][h]));
                    if (two) lo[r][h] = _mm256_add_epi32(lo[r][h], widen_sum(l16[r][h]));
                }
        }
        __m256 s[2], b[2];
        scales_load(DT_BF16, p + cb, s, b);
        for (int r = 0; r < R; r++)
            for (int h = 0; h < 2; h++) {
                const float *q = pair + (size_t)r * (rb / 4);
                __m256i isum = two ? _mm256_add_epi32(_mm256_slli_epi32(hi[r][h], 8), lo[r][h]) : hi[r][h];
                acc[r][h] = _mm256_fmadd_ps(_mm256_mul_ps(s[h], _mm256_broadcast_ss(q)), _mm256_cvtepi32_ps(isum), acc[r][h]);
                bias[r][h] = _mm256_fmadd_ps(b[h], _mm256_broadcast_ss(q + 1), bias[r][h]);
            }
    }
    for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(y + r * ld_y + 8 * h, _mm256_add_ps(acc[r][h], bias[r][h]));
}

/* The same by vpdpbusd, where the CPU has it; even and odd codes in chains of their own, these 16 times too large. */
FORCED VNNI void tile_free_vnni(bool two, int R, int g, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                           const uint8_t *row, float *y, int64_t ld_y)
{
    const __m256i m0f = _mm256_set1_epi8(15), mf0 = _mm256_set1_epi8((char)0xf0);
    size_t cb = (size_t)g * 8, gb = cb + 64, rb = x->row_bytes;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *xp = row;
    const float *pair = act_pairs(x, row);
    __m256 acc[2][2], bias[2][2];
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = bias[r][0] = bias[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < w->k / g; i++, p += gb, xp += two ? 2 * g : g, pair += 2) {
        __m256i sum[2][2][2][2]; /* [limb][odd][row][half] */
        memset(sum, 0, sizeof sum);
        UNROLL(10)
        for (size_t j = 0; j < gb && R == 1; j += 64) _mm_prefetch((const char *)p + 3072 + j, _MM_HINT_T1);
        UNROLL(8)
        for (int j = 0; j < g / 8; j++)
            UNROLL(2)
            for (int odd = 0; odd < 2; odd++)
                UNROLL(2)
                for (int h = 0; h < 2; h++) {
                    __m256i codes = _mm256_and_si256(load_i(p + 64 * j + 32 * h), odd ? mf0 : m0f);
                    UNROLL(2)
                    for (int r = 0; r < R; r++) {
                        const uint8_t *q = xp + (size_t)r * rb + 8 * j + 4 * odd;
                        sum[0][odd][r][h] = _mm256_dpbusd_avx_epi32(sum[0][odd][r][h], codes, bcast_dword(q));
                        if (two) sum[1][odd][r][h] = _mm256_dpbusd_avx_epi32(sum[1][odd][r][h], codes, bcast_dword(q + g));
                    }
                }
        __m256 s[2], b[2];
        scales_load(DT_BF16, p + cb, s, b);
        UNROLL(2)
        for (int r = 0; r < R; r++)
            UNROLL(2)
            for (int h = 0; h < 2; h++) {
                const float *q = pair + (size_t)r * (rb / 4);
                __m256i one[2];
                UNROLL(2)
                for (int l = 0; l < 2; l++) one[l] = _mm256_add_epi32(sum[l][0][r][h], _mm256_srai_epi32(sum[l][1][r][h], 4));
                __m256i isum = two ? _mm256_add_epi32(_mm256_slli_epi32(one[0], 8), one[1]) : one[0];
                acc[r][h] = _mm256_fmadd_ps(_mm256_mul_ps(s[h], _mm256_broadcast_ss(q)), _mm256_cvtepi32_ps(isum), acc[r][h]);
                bias[r][h] = _mm256_fmadd_ps(b[h], _mm256_broadcast_ss(q + 1), bias[r][h]);
            }
    }
    for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(y + r * ld_y + 8 * h, _mm256_add_ps(acc[r][h], bias[r][h]));
}

FORCED void matmul_free(bool two, int g, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                        int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    const uint8_t *row = x->data + (size_t)row0 * x->row_bytes;
    for (int64_t blk = blk0; blk < blk1; blk++) {
        int64_t r = 0;
        for (; r + 2 <= m; r += 2)
            tile_free(two, 2, g, w, blk, x, row + (size_t)r * x->row_bytes, y + r * ld_y + 16 * (blk - blk0), ld_y);
        if (r < m) tile_free(two, 1, g, w, blk, x, row + (size_t)r * x->row_bytes, y + r * ld_y + 16 * (blk - blk0), ld_y);
    }
}

static void q4_q8_free(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                       int64_t m, float *y, int64_t ld_y)
{
    if (w->g == 32)
        matmul_free(false, 32, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_free(false, 64, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void q4_q16_free(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                        int64_t m, float *y, int64_t ld_y)
{
    if (w->g == 32)
        matmul_free(true, 32, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_free(true, 64, w, blk0, blk1, x, row0, m, y, ld_y);
}

FORCED VNNI void matmul_free_vnni(bool two, int g, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                  int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    const uint8_t *row = x->data + (size_t)row0 * x->row_bytes;
    for (int64_t blk = blk0; blk < blk1; blk++) {
        int64_t r = 0;
        for (; r + 2 <= m; r += 2)
            tile_free_vnni(two, 2, g, w, blk, x, row + (size_t)r * x->row_bytes, y + r * ld_y + 16 * (blk - blk0), ld_y);
        if (r < m) tile_free_vnni(two, 1, g, w, blk, x, row + (size_t)r * x->row_bytes, y + r * ld_y + 16 * (blk - blk0), ld_y);
    }
}

static VNNI void q4_q8_free_vnni(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                  int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (w->g == 32)
        matmul_free_vnni(false, 32, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_free_vnni(false, 64, w, blk0, blk1, x, row0, m, y, ld_y);
}

static VNNI void q4_q16_free_vnni(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                  int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (w->g == 32)
        matmul_free_vnni(true, 32, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_free_vnni(true, 64, w, blk0, blk1, x, row0, m, y, ld_y);
}

/* bf16 elements: one block at a time as one stream, four chains along k. */
static void f_f32_free(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                       int64_t m, float *y, int64_t ld_y)
{
    const __m256i zero = _mm256_setzero_si256();
    for (int64_t i = 0; i < m; i++) {
        const float *row = (const float *)(x->data + (size_t)(row0 + i) * x->row_bytes);
        for (int64_t blk = blk0; blk < blk1; blk++) {
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
            __m256 a[4][2];
            for (int c = 0; c < 4; c++) a[c][0] = a[c][1] = _mm256_setzero_ps();
            for (int64_t k = 0; k + 4 <= w->k; k += 4, p += 128) {
                _mm_prefetch((const char *)p + 4096, _MM_HINT_T0);
                _mm_prefetch((const char *)p + 4096 + 64, _MM_HINT_T0);
                UNROLL(4)
                for (int c = 0; c < 4; c++) {
                    __m256i v = load_i(p + 32 * c);
                    __m256 q = _mm256_broadcast_ss(row + k + c);
                    a[c][0] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, v)), q, a[c][0]);
                    a[c][1] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, v)), q, a[c][1]);
                }
            }
            float *o = y + i * ld_y + 16 * (blk - blk0);
            __m256 l = _mm256_add_ps(_mm256_add_ps(a[0][0], a[1][0]), _mm256_add_ps(a[2][0], a[3][0])),
                   h = _mm256_add_ps(_mm256_add_ps(a[0][1], a[1][1]), _mm256_add_ps(a[2][1], a[3][1]));
            _mm256_storeu_ps(o, _mm256_permute2f128_ps(l, h, 0x20));
            _mm256_storeu_ps(o + 8, _mm256_permute2f128_ps(l, h, 0x31));
        }
    }
}

static double int_peak(void)
{
    double best = 1e9;
    for (int t = 0; t < 20; t++) {
        __m256i a[8], u = _mm256_set1_epi32(0x01020301), v = _mm256_set1_epi32(t);
        for (int c = 0; c < 8; c++) a[c] = _mm256_setzero_si256();
        double t0 = free_now();
        for (int i = 0; i < 20000; i++)
            UNROLL(8)
            for (int c = 0; c < 8; c++) {
                __m256i p = u;
                __asm__ volatile("" : "+x"(p));
                a[c] = _mm256_add_epi16(a[c], _mm256_maddubs_epi16(p, v));
                __asm__ volatile("" : "+x"(a[c]));
            }
        double s = free_now() - t0;
        if (s < best) best = s;
    }
    return 20000.0 * 8 * 64 / best;
}

static double float_peak(void)
{
    double best = 1e9;
    for (int t = 0; t < 20; t++) {
        __m256 a[12], u = _mm256_set1_ps(0.5f), v = _mm256_set1_ps((float)t);
        for (int c = 0; c < 12; c++) a[c] = _mm256_setzero_ps();
        double t0 = free_now();
        for (int i = 0; i < 20000; i++)
            UNROLL(12)
            for (int c = 0; c < 12; c++) {
                a[c] = _mm256_fmadd_ps(a[c], u, v);
                __asm__ volatile("" : "+x"(a[c]));
            }
        double s = free_now() - t0;
        if (s < best) best = s;
    }
    return 20000.0 * 12 * 16 / best;
}

void free_fill_avx2(struct free_kernels *t)
{
    unsigned a = 0, b, c, d;
    *t = (struct free_kernels){ "avx2", q4_q8_free, q4_q16_free, f_f32_free, int_peak, float_peak };
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 4))) return; /* AVX-VNNI */
    t->q4_q8 = q4_q8_free_vnni;
    t->q4_q16 = q4_q16_free_vnni;
}
