/* free_avx512.c: kernels for AVX-512 VNNI and tiles that are free of the order rule (free.h). */
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,amx-tile,amx-int8")
#include "free.h"

#include "ops/cpu/amx/tiles.h"

/* The tile kernel with the input's scale taken to the sum before the weight's. */
#define lanes_group_add(acc, s, b, pair, isum)                                                   \
    _mm512_fmadd_ps(b, _mm512_set1_ps((pair)[1]),                                                \
                    _mm512_fmadd_ps(s, _mm512_mul_ps(isum, _mm512_set1_ps((pair)[0])), acc))
#include "ops/cpu/amx/matmul_tiles.h"

static const float *pairs_of(const struct cpu_act *x, const uint8_t *row)
{
    return (const float *)(row + (size_t)x->k * (x->form == ACT_Q16 ? 2 : 1));
}

/* One row, B runs of blocks side by side as ours reads them; scale and bias in chains of their own. */
FORCED void row_blocks_free(bool two, int g, int B, const struct cpu_weight *w, int64_t blk, int64_t run, const struct cpu_act *x,
                            const uint8_t *row, float *y)
{
    const __m512i m0f = _mm512_set1_epi32(0x0f0f0f0f);
    size_t cb = (size_t)g * 8, gb = cb + 64, step = (size_t)run * w->block_bytes;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *xp = row;
    const float *pair = pairs_of(x, row);
    __m512 acc[4][2];
    UNROLL(4)
    for (int b = 0; b < B; b++) acc[b][0] = acc[b][1] = _mm512_setzero_ps();
    for (size_t at = 0; at < w->block_bytes; at += gb, p += gb, xp += two ? 2 * g : g, pair += 2) {
        UNROLL(4)
        for (int b = 0; b < B; b++) {
            const uint8_t *q = p + (size_t)b * step;
            __m512i h0 = _mm512_setzero_si512(), h1 = h0, l0 = h0, l1 = h0;
            UNROLL(8)
            for (int j = 0; j < g / 8; j++) {
                __m512i v = load_i(q + 64 * j), even = _mm512_and_si512(v, m0f), odd = _mm512_and_si512(_mm512_srli_epi32(v, 4), m0f);
                h0 = _mm512_dpbusd_epi32(h0, even, bcast_dword(xp + 8 * j));
                h1 = _mm512_dpbusd_epi32(h1, odd, bcast_dword(xp + 8 * j + 4));
                if (two) {
                    l0 = _mm512_dpbusd_epi32(l0, even, bcast_dword(xp + g + 8 * j));
                    l1 = _mm512_dpbusd_epi32(l1, odd, bcast_dword(xp + g + 8 * j + 4));
                }
            }
            UNROLL(16)
            for (size_t l = 0; l < gb; l += 64) {
                _mm_prefetch((const char *)q + 1024 + l, _MM_HINT_T0);
                if (l % 128 == 0) _mm_prefetch((const char *)q + 2048 + l, _MM_HINT_T1);
            }
            __m512i isum = _mm512_add_epi32(h0, h1);
            if (two) isum = _mm512_add_epi32(_mm512_slli_epi32(isum, 8), _mm512_add_epi32(l0, l1));
            __m512 s, c;
            scales_load(DT_BF16, q + cb, &s, &c);
            acc[b][0] = _mm512_fmadd_ps(_mm512_mul_ps(s, _mm512_set1_ps(pair[0])), _mm512_cvtepi32_ps(isum), acc[b][0]);
            acc[b][1] = _mm512_fmadd_ps(c, _mm512_set1_ps(pair[1]), acc[b][1]);
        }
    }
    UNROLL(4)
    for (int b = 0; b < B; b++) _mm512_storeu_ps(y + 16 * (b * run), _mm512_add_ps(acc[b][0], acc[b][1]));
}

FORCED void row_free(bool two, int g, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                     const uint8_t *row, float *y)
{
    int64_t run = cpu_row_run(blk1 - blk0), blk = blk0 + 4 * run;
    for (int64_t i = 0; i < run; i++) row_blocks_free(two, g, 4, w, blk0 + i, run, x, row, y + 16 * i);
    for (; blk < blk1; blk++) row_blocks_free(two, g, 1, w, blk, 1, x, row, y + 16 * (blk - blk0));
}

/* R rows by two blocks, scale and bias in chains of their own. */
FORCED void tile_free(bool two, int R, int g, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                      const uint8_t *row, float *y, int64_t ld_y)
{
    const __m512i m0f = _mm512_set1_epi32(0x0f0f0f0f);
    size_t cb = (size_t)g * 8, gb = cb + 64, bb = w->block_bytes, rb = x->row_bytes;
    const uint8_t *p = w->data + (size_t)blk * bb, *xp = row;
    const float *pair = pairs_of(x, row);
    __m512 acc[4][2], bias[4][2];
    UNROLL(4)
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = bias[r][0] = bias[r][1] = _mm512_setzero_ps();
    for (int64_t i = 0; i < w->k / g; i++, p += gb, xp += two ? 2 * g : g, pair += 2) {
        __m512i hi[4][2], lo[4][2];
        UNROLL(4)
        for (int r = 0; r < R; r++) hi[r][0] = hi[r][1] = lo[r][0] = lo[r][1] = _mm512_setzero_si512();
        for (int j = 0; j < g / 8; j++) {
            __m512i c[2][2];
            UNROLL(2)
            for (int b = 0; b < 2; b++) {
                __m512i v = load_i(p + (size_t)b * bb + 64 * j);
                c[0][b] = _mm512_and_si512(v, m0f);
                c[1][b] = _mm512_and_si512(_mm512_srli_epi32(v, 4), m0f);
            }
            UNROLL(2)
            for (int o = 0; o < 2; o++)
                UNROLL(4)
                for (int r = 0; r < R; r++) {
                    const uint8_t *q = xp + (size_t)r * rb + 8 * j + 4 * o;
                    hi[r][0] = _mm512_dpbusd_epi32(hi[r][0], c[o][0], bcast_dword(q));
                    hi[r][1] = _mm512_dpbusd_epi32(hi[r][1], c[o][1], bcast_dword(q));
                    if (!two) continue;
                    lo[r][0] = _mm512_dpbusd_epi32(lo[r][0], c[o][0], bcast_dword(q + g));
                    lo[r][1] = _mm512_dpbusd_epi32(lo[r][1], c[o][1], bcast_dword(q + g));
                }
        }
        UNROLL(2)
        for (int b = 0; b < 2; b++) {
            __m512 s, c;
            scales_load(DT_BF16, p + (size_t)b * bb + cb, &s, &c);
            UNROLL(4)
            for (int r = 0; r < R; r++) {
                const float *q = pair + (size_t)r * (rb / 4);
                __m512i isum = two ? _mm512_add_epi32(_mm512_slli_epi32(hi[r][b], 8), lo[r][b]) : hi[r][b];
                acc[r][b] = _mm512_fmadd_ps(_mm512_mul_ps(s, _mm512_set1_ps(q[0])), _mm512_cvtepi32_ps(isum), acc[r][b]);
                bias[r][b] = _mm512_fmadd_ps(c, _mm512_set1_ps(q[1]), bias[r][b]);
            }
        }
    }
    UNROLL(4)
    for (int r = 0; r < R; r++)
        for (int b = 0; b < 2; b++) _mm512_storeu_ps(y + r * ld_y + 16 * b, _mm512_add_ps(acc[r][b], bias[r][b]));
}

FORCED void matmul_free(bool two, int g, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                        int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    const uint8_t *row = x->data + (size_t)row0 * x->row_bytes;
    if (m == 1) {
        row_free(two, g, w, blk0, blk1, x, row, y);
        return;
    }
    for (int64_t blk = blk0; blk + 2 <= blk1; blk += 2) {
        int64_t r = 0, step = two ? 2 : 4;
        for (; r + step <= m; r += step)
            tile_free(two, two ? 2 : 4, g, w, blk, x, row + (size_t)r * x->row_bytes, y + r * ld_y + 16 * (blk - blk0), ld_y);
        for (; r < m; r++)
            tile_free(two, 1, g, w, blk, x, row + (size_t)r * x->row_bytes, y + r * ld_y + 16 * (blk - blk0), ld_y);
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

/* bf16 elements, one row: one block at a time as one stream, four chains along k. */
static void f_f32_free(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                       int64_t m, float *y, int64_t ld_y)
{
    for (int64_t i = 0; i < m; i++) {
        const float *row = (const float *)(x->data + (size_t)(row0 + i) * x->row_bytes);
        for (int64_t blk = blk0; blk < blk1; blk++) {
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
            __m512 a[4];
            UNROLL(4)
            for (int c = 0; c < 4; c++) a[c] = _mm512_setzero_ps();
            for (int64_t k = 0; k + 4 <= w->k; k += 4, p += 128) {
                _mm_prefetch((const char *)p + 8192, _MM_HINT_T1);
                _mm_prefetch((const char *)p + 8192 + 64, _MM_HINT_T1);
                UNROLL(4)
                for (int c = 0; c < 4; c++)
                    a[c] = _mm512_fmadd_ps(bf16_low(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p + 32 * c)))),
                                           _mm512_set1_ps(row[k + c]), a[c]);
            }
            _mm512_storeu_ps(y + i * ld_y + 16 * (blk - blk0),
                             _mm512_add_ps(_mm512_add_ps(a[0], a[1]), _mm512_add_ps(a[2], a[3])));
        }
    }
}

static double int_peak(void)
{
    double best = 1e9;
    for (int t = 0; t < 20; t++) {
        __m512i a[12], u = _mm512_set1_epi32(0x01020301), v = _mm512_set1_epi32(t);
        for (int c = 0; c < 12; c++) a[c] = _mm512_setzero_si512();
        double t0 = free_now();
        for (int i = 0; i < 20000; i++)
            UNROLL(12)
            for (int c = 0; c < 12; c++) {
                a[c] = _mm512_dpbusd_epi32(a[c], u, v);
                __asm__ volatile("" : "+v"(a[c]));
            }
        double s = free_now() - t0;
        if (s < best) best = s;
    }
    return 20000.0 * 12 * 128 / best;
}

static double float_peak(void)
{
    double best = 1e9;
    for (int t = 0; t < 20; t++) {
        __m512 a[12], u = _mm512_set1_ps(0.5f), v = _mm512_set1_ps((float)t);
        for (int c = 0; c < 12; c++) a[c] = _mm512_setzero_ps();
        double t0 = free_now();
        for (int i = 0; i < 20000; i++)
            UNROLL(12)
            for (int c = 0; c < 12; c++) {
                a[c] = _mm512_fmadd_ps(a[c], u, v);
                __asm__ volatile("" : "+v"(a[c]));
            }
        double s = free_now() - t0;
        if (s < best) best = s;
    }
    return 20000.0 * 12 * 32 / best;
}

void free_fill_avx512(struct free_kernels *t)
{
    *t = (struct free_kernels){ "avx512", q4_q8_free, q4_q16_free, f_f32_free, int_peak, float_peak };
}

/* --- tiles --- */

static void tiles_q8_free(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                          int64_t m, float *y, int64_t ld_y)
{
    if (m < 8)
        q4_q8_free(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q4, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void tiles_q16_free(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                           int64_t m, float *y, int64_t ld_y)
{
    if (m < 8)
        q4_q16_free(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q4, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

static double tile_peak(void)
{
    double best = 1e9;
    _Alignas(64) static uint8_t bytes[1024];
    shapes_set(16, 64);
    tile_load(0, bytes, 64);
    tile_load(2, bytes, 64);
    for (int t = 0; t < 20; t++) {
        double t0 = free_now();
        for (int i = 0; i < 2000; i++) {
            tile_dp(4, 0, 2);
            tile_dp(5, 0, 2);
            tile_dp(6, 0, 2);
            tile_dp(7, 0, 2);
        }
        double s = free_now() - t0;
        if (s < best) best = s;
    }
    tile_release();
    return 2000.0 * 4 * 32768 / best;
}

void free_fill_amx(struct free_kernels *t)
{
    *t = (struct free_kernels){ "amx", tiles_q8_free, tiles_q16_free, f_f32_free, tile_peak, float_peak };
}
