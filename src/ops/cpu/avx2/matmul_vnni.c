/* matmul_vnni.c (avx2): quantised weights times quantised inputs where the CPU has AVX-VNNI: vpdpbusd on 256 bits, u8 codes
 * times int8 inputs, four products to one int32 lane, exact. The same bits as matmul.c, which serves all other AVX2 machines.
 *
 * Many rows: tiles of TILE_ROWS; 4-bit codes are spread once per (block, group) into L1, then rows go in sixes (threes with
 * two limbs). Float accumulators of a tile live in a small array between groups. One row: one stream, a prefetch ahead.
 */
#include "ops/cpu/avx2/matmul_int.h"

#define TILE_ROWS 24
#define VNNI __attribute__((target("avx2,fma,f16c,avxvnni")))

FORCED VNNI __m256i dp(__m256i sum, __m256i codes, __m256i x)
{
    return _mm256_dpbusd_avx_epi32(sum, codes, x);
}

FORCED VNNI __m256i limbs_join(__m256i hi, __m256i lo)
{
    return _mm256_add_epi32(_mm256_slli_epi32(hi, 8), lo);
}

/* --- one row --- */

/* isum[half] of one group. */
FORCED VNNI void group_row(enum cpu_wtype type, bool two, int g, const uint8_t *p, const uint8_t *hi, __m256i isum[2])
{
    const __m256i m0f = _mm256_set1_epi8(15);
    const uint8_t *lo = hi + g;
    for (int h = 0; h < 2; h++) {
        __m256i h0 = _mm256_setzero_si256(), h1 = h0, l0 = h0, l1 = h0;
        UNROLL(4)
        for (int j = 0; j < g / 8; j++) {
            __m256i even, odd;
            if (type == CPU_W_Q4) {
                __m256i v = load_i(p + 64 * j + 32 * h);
                even = _mm256_and_si256(v, m0f);
                odd = _mm256_and_si256(_mm256_srli_epi32(v, 4), m0f);
            } else {
                even = load_i(p + 128 * j + 32 * h);
                odd = load_i(p + 128 * j + 64 + 32 * h);
            }
            h0 = dp(h0, even, bcast_dword(hi + 8 * j));
            h1 = dp(h1, odd, bcast_dword(hi + 8 * j + 4));
            if (two) {
                l0 = dp(l0, even, bcast_dword(lo + 8 * j));
                l1 = dp(l1, odd, bcast_dword(lo + 8 * j + 4));
            }
        }
        isum[h] = _mm256_add_epi32(h0, h1);
        if (two) isum[h] = limbs_join(isum[h], _mm256_add_epi32(l0, l1));
    }
}

FORCED VNNI void row_blocks(enum cpu_wtype type, bool two, int g, enum dtype dt, const struct cpu_weight *w, int64_t blk0,
                            int64_t blk1, const struct cpu_act *x, int64_t row, float *y)
{
    const uint8_t *xr = x->data + (size_t)row * x->row_bytes;
    size_t cb = code_bytes(type, g), gb = cb + scales_bytes(dt), xb = (size_t)g * (two ? 2 : 1);
    for (int64_t blk = blk0; blk < blk1; blk++) {
        const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *xp = xr;
        const float *pair = act_pairs(x, xr);
        __m256 acc[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
        for (int64_t i = 0; i < w->k / g; i++, p += gb, xp += xb, pair += 2) {
            __m256i isum[2];
            __m256 s[2], b[2];
            for (size_t j = 0; j < gb; j += 64) _mm_prefetch((const char *)p + PREFETCH_AHEAD + j, _MM_HINT_T0);
            group_row(type, two, g, p, xp, isum);
            scales_load(dt, p + cb, s, b);
            for (int h = 0; h < 2; h++) acc[h] = group_add(acc[h], s[h], b[h], pair, isum[h]);
        }
        store16(y + 16 * (blk - blk0), w->n - 16 * blk, acc[0], acc[1]);
    }
}

FORCED VNNI void row_one(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                         const struct cpu_act *x, int64_t row, float *y)
{
    if (w->dt == DT_BF16 && w->g == 32)
        row_blocks(type, two, 32, DT_BF16, w, blk0, blk1, x, row, y);
    else if (w->dt == DT_BF16 && w->g == 64)
        row_blocks(type, two, 64, DT_BF16, w, blk0, blk1, x, row, y);
    else
        row_blocks(type, two, w->g, w->dt, w, blk0, blk1, x, row, y);
}

/* --- many rows --- */

/* One group for R rows: codes [g/4][16][4]. acc: [R][16] floats. */
FORCED VNNI void rows_group(bool two, int R, const uint8_t *codes, int g, const uint8_t *x, size_t ld_x,
                            const float *pair, size_t ld_pair, const __m256 s[2], const __m256 b[2], float *acc)
{
    __m256i hi[6][2], lo[6][2];
    UNROLL(6)
    for (int r = 0; r < R; r++) hi[r][0] = hi[r][1] = lo[r][0] = lo[r][1] = _mm256_setzero_si256();
    for (int j = 0; j < g / 4; j++) {
        __m256i c0 = load_i(codes + 64 * j), c1 = load_i(codes + 64 * j + 32);
        UNROLL(6)
        for (int r = 0; r < R; r++) {
            const uint8_t *q = x + (size_t)r * ld_x + 4 * j;
            hi[r][0] = dp(hi[r][0], c0, bcast_dword(q));
            hi[r][1] = dp(hi[r][1], c1, bcast_dword(q));
            if (!two) continue;
            lo[r][0] = dp(lo[r][0], c0, bcast_dword(q + g));
            lo[r][1] = dp(lo[r][1], c1, bcast_dword(q + g));
        }
    }
    UNROLL(6)
    for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) {
            float *a = acc + 16 * r + 8 * h;
            __m256i isum = two ? limbs_join(hi[r][h], lo[r][h]) : hi[r][h];
            _mm256_store_ps(a, group_add(_mm256_load_ps(a), s[h], b[h], pair + (size_t)r * ld_pair, isum));
        }
}

FORCED VNNI void tile_group(bool two, int64_t m, const uint8_t *codes, int g, const uint8_t *x, size_t ld_x,
                            const float *pair, size_t ld_pair, const __m256 s[2], const __m256 b[2], float *acc)
{
    for (; m >= 6 && !two; m -= 6, x += 6 * ld_x, pair += 6 * ld_pair, acc += 96)
        rows_group(two, 6, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    for (; m >= 3; m -= 3, x += 3 * ld_x, pair += 3 * ld_pair, acc += 48)
        rows_group(two, 3, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 2) rows_group(two, 2, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 1) rows_group(two, 1, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
}

FORCED VNNI void codes_spread(const uint8_t *p, int g, uint8_t *out)
{
    const __m256i m0f = _mm256_set1_epi8(15);
    for (int j = 0; j < g / 8; j++)
        for (int h = 0; h < 2; h++) {
            __m256i v = load_i(p + 64 * j + 32 * h), *o = (__m256i *)(out + 128 * j + 32 * h);
            _mm256_store_si256(o, _mm256_and_si256(v, m0f));
            _mm256_store_si256(o + 2, _mm256_and_si256(_mm256_srli_epi32(v, 4), m0f));
        }
}

FORCED VNNI void rows_many(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                           const struct cpu_act *x, int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    int g = w->g;
    size_t cb = code_bytes(type, g), gb = cb + scales_bytes(w->dt), xb = (size_t)g * (two ? 2 : 1);
    for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
        int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS;
        const uint8_t *xr = x->data + (size_t)(row0 + r0) * x->row_bytes;
        for (int64_t blk = blk0; blk < blk1; blk++) {
            _Alignas(64) float acc[TILE_ROWS * 16] = { 0 };
            _Alignas(64) uint8_t spread[GROUP_MAX * 16];
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *xg = xr;
            const float *pair = act_pairs(x, xr);
            for (int64_t i = 0; i < w->k / g; i++, p += gb, xg += xb, pair += 2) {
                __m256 s[2], b[2];
                for (size_t j = 0; r0 == 0 && j < gb; j += 64) _mm_prefetch((const char *)p + PREFETCH_AHEAD + j, _MM_HINT_T0);
                if (type == CPU_W_Q4) codes_spread(p, g, spread);
                scales_load(w->dt, p + cb, s, b);
                tile_group(two, mt, type == CPU_W_Q4 ? spread : p, g, xg, x->row_bytes, pair, x->row_bytes / 4, s, b, acc);
            }
            for (int64_t i = 0; i < mt; i++)
                store16(y + (r0 + i) * ld_y + 16 * (blk - blk0), w->n - 16 * blk, _mm256_load_ps(acc + 16 * i),
                        _mm256_load_ps(acc + 16 * i + 8));
        }
    }
}

FORCED VNNI void matmul(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                        const struct cpu_act *x, int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m == 1)
        row_one(type, two, w, blk0, blk1, x, row0, y);
    else
        rows_many(type, two, w, blk0, blk1, x, row0, m, y, ld_y);
}

static VNNI void matmul_q4_q8_avx_vnni(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                       int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q4, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static VNNI void matmul_q4_q16_avx_vnni(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                        int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q4, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

static VNNI void matmul_q8_q8_avx_vnni(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                       int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q8, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static VNNI void matmul_q8_q16_avx_vnni(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                        int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q8, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

void cpu_fill_avx_vnni(struct cpu_kernels *t)
{
    t->matmul_q4_q8 = matmul_q4_q8_avx_vnni;
    t->matmul_q4_q16 = matmul_q4_q16_avx_vnni;
    t->matmul_q8_q8 = matmul_q8_q8_avx_vnni;
    t->matmul_q8_q16 = matmul_q8_q16_avx_vnni;
}
