/* matmul_vnni.c (avx2): quantised weights times quantised inputs where the CPU has AVX-VNNI: vpdpbusd on 256 bits, u8 codes
 * times int8 inputs, four products to one int32 lane, exact. The same bits as matmul.c, which serves all other AVX2 machines.
 *
 * Many rows: sixes (two limbs: threes) by a block, 4-bit codes unpacked in registers, float accumulators in L1 between groups; four sixes
 * against a block before the next. One row: runs of blocks side by side (row_runs.h).
 */
#include "ops/cpu/avx2/matmul_int.h"
#include "ops/cpu/row_runs.h"

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

/* Codes of half h of vector 2j (even) or 2j + 1 (odd) of a group. Odd codes of 4 bits stay where they lie: 16 times too large, still
 * bytes. */
FORCED VNNI __m256i codes_even(enum cpu_wtype type, const uint8_t *p, int j, int h)
{
    if (type == CPU_W_Q4) return _mm256_and_si256(load_i(p + 64 * j + 32 * h), _mm256_set1_epi8(15));
    return load_i(p + 128 * j + 32 * h);
}

FORCED VNNI __m256i codes_odd(enum cpu_wtype type, const uint8_t *p, int j, int h)
{
    if (type == CPU_W_Q4) return _mm256_and_si256(load_i(p + 64 * j + 32 * h), _mm256_set1_epi8((char)0xf0));
    return load_i(p + 128 * j + 64 + 32 * h);
}

/* isum[half] of one group; sums of odd codes apart, brought back in proportion (exact) at the end. An input's broadcast meets both halves,
 * and a line is read once: a second read would be in the queue of those that wait for memory. */
FORCED VNNI void group_row(enum cpu_wtype type, bool two, int g, const uint8_t *p, const uint8_t *x, __m256i isum[2])
{
    __m256i hi[2][2], lo[2][2]; /* [odd][half] */
    UNROLL(2)
    for (int i = 0; i < 2; i++) hi[i][0] = hi[i][1] = lo[i][0] = lo[i][1] = _mm256_setzero_si256();
    UNROLL(8)
    for (int j = 0; j < g / 8; j++)
        UNROLL(2)
        for (int odd = 0; odd < 2; odd++)
            UNROLL(2)
            for (int h = 0; h < 2; h++) {
                const uint8_t *q = x + 8 * j + 4 * odd;
                __m256i codes = odd ? codes_odd(type, p, j, h) : codes_even(type, p, j, h);
                hi[odd][h] = dp(hi[odd][h], codes, bcast_dword(q));
                if (two) lo[odd][h] = dp(lo[odd][h], codes, bcast_dword(q + g));
            }
    const int shift = type == CPU_W_Q4 ? 4 : 0;
    UNROLL(2)
    for (int h = 0; h < 2; h++) {
        isum[h] = _mm256_add_epi32(hi[0][h], _mm256_srai_epi32(hi[1][h], shift));
        if (two) isum[h] = limbs_join(isum[h], _mm256_add_epi32(lo[0][h], _mm256_srai_epi32(lo[1][h], shift)));
    }
}

/* B blocks side by side, `run` blocks apart. */
FORCED VNNI void row_streams(enum cpu_wtype type, bool two, int g, enum dtype dt, int B, const struct cpu_weight *w, int64_t blk, int64_t run,
                             const struct row_then *then, const struct cpu_act *x, const uint8_t *xp, float *y)
{
    size_t cb = code_bytes(type, g), gb = cb + scales_bytes(dt), xb = (size_t)g * (two ? 2 : 1), step = (size_t)run * w->block_bytes;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
    const float *pair = act_pairs(x, xp);
    __m256 acc[CPU_ROW_STREAMS][2];
    for (int b = 0; b < B; b++) acc[b][0] = acc[b][1] = _mm256_setzero_ps();
    for (size_t at = 0; at < w->block_bytes; at += gb, p += gb, xp += xb, pair += 2) {
        struct row_hints hint = row_hints_at(p, at, w->block_bytes, step, then);
        UNROLL(4)
        for (int b = 0; b < B; b++, hint.near += hint.near_step, hint.far += hint.far_step) {
            const uint8_t *q = p + (size_t)b * step, *xq = xp;
            __asm__ volatile("" : "+r"(xq)); /* else the inputs' broadcasts are made once for all B, and rest in memory */
            __m256i isum[2];
            __m256 s[2], c[2];
            UNROLL(10)
            for (size_t j = 0; j < gb; j += 64) {
                _mm_prefetch((const char *)hint.near + j, _MM_HINT_T0);
                if (j % 128 == 0) _mm_prefetch((const char *)hint.far + j, _MM_HINT_T1);
            }
            group_row(type, two, g, q, xq, isum);
            scales_load(dt, q + cb, s, c);
            UNROLL(2)
            for (int h = 0; h < 2; h++) acc[b][h] = group_add(acc[b][h], s[h], c[h], pair, isum[h]);
        }
    }
    for (int b = 0; b < B; b++) store16(y + 16 * (b * run), w->n - 16 * (blk + b * run), acc[b][0], acc[b][1]);
}

FORCED VNNI void row_blocks(enum cpu_wtype type, bool two, int g, enum dtype dt, const struct cpu_weight *w, int64_t blk0,
                            int64_t blk1, const struct cpu_act *x, int64_t row, float *y)
{
    const uint8_t *xr = x->data + (size_t)row * x->row_bytes;
    int64_t run = cpu_row_run(blk1 - blk0), blk = blk0 + run * CPU_ROW_STREAMS;
    struct row_then on = row_then_on(w, run), then = row_then_next(w, x, blk0, run, CPU_ROW_STREAMS);
    for (int64_t i = 0; i < run; i++)
        row_streams(type, two, g, dt, CPU_ROW_STREAMS, w, blk0 + i, run, i < run - 1 ? &on : &then, x, xr, y + 16 * i);
    on = row_then_on(w, 1);
    for (y += 16 * (blk - blk0); blk < blk1; blk++, y += 16) row_streams(type, two, g, dt, 1, w, blk, 1, &on, x, xr, y);
}

FORCED VNNI void row_one(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                         const struct cpu_act *x, int64_t row, float *y)
{
    if (w->dt == DT_BF16 && w->g == 32)
        row_blocks(type, two, 32, DT_BF16, w, blk0, blk1, x, row, y);
    else if (w->dt == DT_BF16 && w->g == 64)
        row_blocks(type, two, 64, DT_BF16, w, blk0, blk1, x, row, y);
    else if (w->dt == DT_F16 && w->g == 32)
        row_blocks(type, two, 32, DT_F16, w, blk0, blk1, x, row, y);
    else
        row_blocks(type, two, w->g, w->dt, w, blk0, blk1, x, row, y);
}

/* --- many rows --- */

/* isum[row][half] of one group for R rows. An input's broadcast meets both halves. */
FORCED VNNI void group_rows(enum cpu_wtype type, bool two, int R, int g, const uint8_t *p, const uint8_t *x, size_t ld_x,
                            __m256i isum[6][2])
{
    const __m256i m0f = _mm256_set1_epi8(15);
    __m256i hi[6][2], lo[6][2];
    UNROLL(6)
    for (int r = 0; r < R; r++) hi[r][0] = hi[r][1] = lo[r][0] = lo[r][1] = _mm256_setzero_si256();
    UNROLL(16)
    for (int j = 0; j < g / 4; j++) {
        __m256i codes[2];
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
            if (type == CPU_W_Q8) codes[h] = load_i(p + 64 * j + 32 * h);
            else if (j % 2 == 0) codes[h] = _mm256_and_si256(load_i(p + 32 * j + 32 * h), m0f);
            else codes[h] = _mm256_and_si256(_mm256_srli_epi32(load_i(p + 32 * (j - 1) + 32 * h), 4), m0f);
        }
        UNROLL(6)
        for (int r = 0; r < R; r++) {
            const uint8_t *q = x + (size_t)r * ld_x + 4 * j;
            UNROLL(2)
            for (int h = 0; h < 2; h++) hi[r][h] = dp(hi[r][h], codes[h], bcast_dword(q));
            UNROLL(2)
            for (int h = 0; h < 2 && two; h++) lo[r][h] = dp(lo[r][h], codes[h], bcast_dword(q + g));
        }
    }
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(2)
        for (int h = 0; h < 2; h++) isum[r][h] = two ? limbs_join(hi[r][h], lo[r][h]) : hi[r][h];
}

/* R rows of one block; accumulators rest in L1 between groups. */
FORCED VNNI void block_rows(enum cpu_wtype type, bool two, int R, int g, enum dtype dt, const struct cpu_weight *w, int64_t blk,
                            const struct cpu_act *x, const uint8_t *xr, float *y, int64_t ld_y)
{
    size_t cb = code_bytes(type, g), gb = cb + scales_bytes(dt), ld_x = x->row_bytes, ld_pair = ld_x / 4;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
    const float *pair = act_pairs(x, xr);
    _Alignas(32) float acc[6][16] = { { 0 } };
    for (int64_t i = 0; i < w->k / g; i++, p += gb, xr += (two ? 2 : 1) * g, pair += 2) {
        __m256i isum[6][2];
        __m256 s[2], b[2];
        group_rows(type, two, R, g, p, xr, ld_x, isum);
        scales_load(dt, p + cb, s, b);
        UNROLL(6)
        for (int r = 0; r < R; r++)
            UNROLL(2)
            for (int h = 0; h < 2; h++) {
                float *a = acc[r] + 8 * h;
                _mm256_store_ps(a, group_add(_mm256_load_ps(a), s[h], b[h], pair + (size_t)r * ld_pair, isum[r][h]));
            }
    }
    for (int r = 0; r < R; r++)
        store16(y + r * ld_y, w->n - 16 * blk, _mm256_load_ps(acc[r]), _mm256_load_ps(acc[r] + 8));
}

FORCED VNNI void block_any(enum cpu_wtype type, bool two, int R, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                           const uint8_t *xr, float *y, int64_t ld_y)
{
    if (w->dt == DT_BF16 && w->g == 32 && type == CPU_W_Q4)
        block_rows(type, two, R, 32, DT_BF16, w, blk, x, xr, y, ld_y);
    else if (w->dt == DT_BF16 && w->g == 64)
        block_rows(type, two, R, 64, DT_BF16, w, blk, x, xr, y, ld_y);
    else if (w->dt == DT_F16 && w->g == 32 && type == CPU_W_Q4)
        block_rows(type, two, R, 32, DT_F16, w, blk, x, xr, y, ld_y);
    else
        block_rows(type, two, R, w->g, w->dt, w, blk, x, xr, y, ld_y);
}

FORCED VNNI void block_tile(enum cpu_wtype type, bool two, int64_t n_rows, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                            const uint8_t *xr, float *y, int64_t ld_y)
{
    switch (n_rows) {
    case 1: block_any(type, two, 1, w, blk, x, xr, y, ld_y); break;
    case 2: block_any(type, two, 2, w, blk, x, xr, y, ld_y); break;
    case 3: block_any(type, two, 3, w, blk, x, xr, y, ld_y); break;
    case 4: if (!two) block_any(type, two, 4, w, blk, x, xr, y, ld_y); break;
    case 5: if (!two) block_any(type, two, 5, w, blk, x, xr, y, ld_y); break;
    case 6: if (!two) block_any(type, two, 6, w, blk, x, xr, y, ld_y); break;
    default: break;
    }
}

/* A tile's rows in parts of at most six or three, about as many each. */
FORCED VNNI void rows_many(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                           const struct cpu_act *x, int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    const int64_t r_max = two ? 3 : 6;
    for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
        int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS, n_tile = (mt + r_max - 1) / r_max;
        for (int64_t blk = blk0; blk < blk1; blk++)
            for (int64_t i = 0; i < n_tile; i++) {
                int64_t r = r0 + mt * i / n_tile, n = r0 + mt * (i + 1) / n_tile - r;
                block_tile(type, two, n, w, blk, x, x->data + (size_t)(row0 + r) * x->row_bytes, y + r * ld_y + 16 * (blk - blk0), ld_y);
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
