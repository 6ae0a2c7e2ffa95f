/* matmul.c (avx512): quantised weights times quantised inputs by vpdpbusd: u8 codes times int8 inputs, four products to
 * one int32 lane, no saturation, so group sums are exact as they come.
 *
 * Many rows: tiles of up to 6 rows by 2 blocks (3 by 2 with two limbs), float accumulators in registers. The blocks' codes
 * stay in L1 or L2 while the row tiles pass over them, 4-bit codes unpacked on the fly, or from PANEL_ROWS rows on spread to
 * bytes beforehand. 7 and 8 rows: matmul_few.c. One row: runs of blocks side by side (row_runs.h), two integer chains each.
 * Accumulators are arrays of constant size: with the row count as a dimension the compiler would keep them in memory.
 */
#include "ops/cpu/avx512/matmul_int.h"
#include "ops/cpu/row_runs.h"

#define R_MAX 6
#define PANEL_K 768
/* Where and/shift share their ports with the products, spreading once pays from about this many rows on. */
#ifndef PANEL_ROWS
#define PANEL_ROWS 48
#endif

FORCED __m512i limbs_join(__m512i hi, __m512i lo)
{
    return _mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo);
}

/* --- one row --- */

/* Runs: with four groups of 64 came 5 to 10 % slower from memory, others as fast or a little slower (docs/cpu-matmul.md). */
#define ROW_STREAMS 2

/* B blocks side by side, `run` blocks apart. */
FORCED void row_streams(enum cpu_wtype type, bool two, int g, enum dtype dt, int B, const struct cpu_weight *w, int64_t blk, int64_t run,
                        const struct row_then *then, const struct cpu_act *x, int64_t row, float *y)
{
    size_t cb = code_bytes(type, g), gb = cb + scales_bytes(dt), xb = (size_t)g * (two ? 2 : 1), step = (size_t)run * w->block_bytes;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *xp = act_row(x, row);
    const float *pair = (const float *)(xp + act_pairs_off(x));
    __m512 acc[ROW_STREAMS];
    UNROLL(2)
    for (int b = 0; b < B; b++) acc[b] = _mm512_setzero_ps();
    for (size_t at = 0; at < w->block_bytes; at += gb, p += gb, xp += xb, pair += 2) {
        struct row_hints hint = row_hints_at(p, at, w->block_bytes, step, then);
        UNROLL(2)
        for (int b = 0; b < B; b++, hint.near += hint.near_step, hint.far += hint.far_step) {
            const uint8_t *q = p + (size_t)b * step;
            __m512i h0 = _mm512_setzero_si512(), h1 = h0, l0 = h0, l1 = h0;
            UNROLL(8)
            for (int j = 0; j < g / 8; j++) {
                __m512i even, odd;
                codes_load(type, q, j, &even, &odd);
                h0 = _mm512_dpbusd_epi32(h0, even, bcast_dword(xp + 8 * j));
                h1 = _mm512_dpbusd_epi32(h1, odd, bcast_dword(xp + 8 * j + 4));
                if (two) {
                    l0 = _mm512_dpbusd_epi32(l0, even, bcast_dword(xp + g + 8 * j));
                    l1 = _mm512_dpbusd_epi32(l1, odd, bcast_dword(xp + g + 8 * j + 4));
                }
            }
            UNROLL(16)
            for (size_t l = 0; l < gb; l += 64) {
                _mm_prefetch((const char *)hint.near + l, _MM_HINT_T0);
                if (l % 128 == 0) _mm_prefetch((const char *)hint.far + l, _MM_HINT_T1);
            }
            __m512i isum = _mm512_add_epi32(h0, h1);
            if (two) isum = limbs_join(isum, _mm512_add_epi32(l0, l1));
            __m512 s, c;
            scales_load(dt, q + cb, &s, &c);
            acc[b] = group_add(acc[b], s, c, pair, isum);
        }
    }
    UNROLL(2)
    for (int b = 0; b < B; b++) store16(y + 16 * (b * run), w->n - 16 * (blk + b * run), acc[b]);
}

FORCED void row_blocks(enum cpu_wtype type, bool two, int g, enum dtype dt, const struct cpu_weight *w, int64_t blk0,
                       int64_t blk1, const struct cpu_act *x, int64_t row, float *y)
{
    int64_t run = (blk1 - blk0) / ROW_STREAMS, blk = blk0 + run * ROW_STREAMS;
    struct row_then on = row_then_on(w, run), then = row_then_next(w, x, blk0, run, ROW_STREAMS);
    for (int64_t i = 0; i < run; i++)
        row_streams(type, two, g, dt, ROW_STREAMS, w, blk0 + i, run, i < run - 1 ? &on : &then, x, row, y + 16 * i);
    on = row_then_on(w, 1);
    if (blk < blk1) row_streams(type, two, g, dt, 1, w, blk, 1, &on, x, row, y + 16 * (blk - blk0));
}

/* The common group sizes and scale types become constants of their own loops. */
FORCED void row_one(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
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

/* --- a tile of R rows by B blocks --- */

struct tile {
    const uint8_t *codes, *scales;    /* first group of the first block */
    size_t codes_step, scales_step;   /* to the next group */
    size_t codes_block, scales_block; /* to the next block */
    int g;
    enum dtype dt;
    int64_t n_groups;
    bool first;                       /* accumulators start at zero, else at y */
    const uint8_t *x;                 /* first row, first group */
    const float *pairs;
    size_t row_bytes;
    float *y;
    int64_t ld_y, n_out;
    const uint8_t *pf;                /* next blocks, spread over this tile's groups; NULL: none */
    size_t pf_bytes;                  /* per group */
};

/* type Q8: codes are bytes, whatever they were in the weight. */
FORCED void tile_run(enum cpu_wtype type, bool two, int R, int B, const struct tile *t)
{
    int g = t->g;
    enum dtype dt = t->dt;
    size_t ld_pair = t->row_bytes / 4;
    const uint8_t *p = t->codes, *scales = t->scales, *x = t->x, *pf = t->pf;
    const float *pair = t->pairs;
    __m512 acc[R_MAX][2];
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(2)
        for (int b = 0; b < B; b++) {
            acc[r][b] = _mm512_setzero_ps();
            if (!t->first) acc[r][b] = load16(t->y + r * t->ld_y + 16 * b, t->n_out - 16 * b);
        }
    for (int64_t i = 0; i < t->n_groups;
         i++, p += t->codes_step, scales += t->scales_step, x += (size_t)g * (two ? 2 : 1), pair += 2) {
        __m512i hi[R_MAX][2], lo[R_MAX][2];
        UNROLL(6)
        for (int r = 0; r < R; r++)
            UNROLL(2)
            for (int b = 0; b < B; b++) hi[r][b] = lo[r][b] = _mm512_setzero_si512();
        if (pf)
            for (size_t j = 0; j < t->pf_bytes; j += 64, pf += 64) _mm_prefetch((const char *)pf, _MM_HINT_T1);
        for (int j = 0; j < g / 8; j++) {
            __m512i even[2], odd[2];
            UNROLL(2)
            for (int b = 0; b < B; b++) codes_load(type, p + (size_t)b * t->codes_block, j, &even[b], &odd[b]);
            UNROLL(6)
            for (int r = 0; r < R; r++) {
                const uint8_t *xr = x + (size_t)r * t->row_bytes + 8 * j;
                __m512i q = bcast_dword(xr);
                UNROLL(2)
                for (int b = 0; b < B; b++) hi[r][b] = _mm512_dpbusd_epi32(hi[r][b], even[b], q);
                if (!two) continue;
                q = bcast_dword(xr + g);
                UNROLL(2)
                for (int b = 0; b < B; b++) lo[r][b] = _mm512_dpbusd_epi32(lo[r][b], even[b], q);
            }
            UNROLL(6)
            for (int r = 0; r < R; r++) {
                const uint8_t *xr = x + (size_t)r * t->row_bytes + 8 * j + 4;
                __m512i q = bcast_dword(xr);
                UNROLL(2)
                for (int b = 0; b < B; b++) hi[r][b] = _mm512_dpbusd_epi32(hi[r][b], odd[b], q);
                if (!two) continue;
                q = bcast_dword(xr + g);
                UNROLL(2)
                for (int b = 0; b < B; b++) lo[r][b] = _mm512_dpbusd_epi32(lo[r][b], odd[b], q);
            }
        }
        UNROLL(2)
        for (int b = 0; b < B; b++) {
            __m512 s, c;
            scales_load(dt, scales + (size_t)b * t->scales_block, &s, &c);
            UNROLL(6)
            for (int r = 0; r < R; r++)
                acc[r][b] = group_add(acc[r][b], s, c, pair + (size_t)r * ld_pair,
                                      two ? limbs_join(hi[r][b], lo[r][b]) : hi[r][b]);
        }
    }
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(2)
        for (int b = 0; b < B; b++) store16(t->y + r * t->ld_y + 16 * b, t->n_out - 16 * b, acc[r][b]);
}

FORCED void tile_rows(enum cpu_wtype type, bool two, int R, int B, const struct tile *t)
{
    switch (R) {
    case 1: tile_run(type, two, 1, B, t); break;
    case 2: tile_run(type, two, 2, B, t); break;
    case 3: tile_run(type, two, 3, B, t); break;
    case 4: if (!two) tile_run(type, two, 4, B, t); break;
    case 5: if (!two) tile_run(type, two, 5, B, t); break;
    case 6: if (!two) tile_run(type, two, 6, B, t); break;
    default: break;
    }
}

/* Not inlined: weights of bytes and panels share their copies. */
static void tile_nibbles(bool two, int R, int64_t B, const struct tile *t)
{
    if (two && B == 2)
        tile_rows(CPU_W_Q4, true, R, 2, t);
    else if (two)
        tile_rows(CPU_W_Q4, true, R, 1, t);
    else if (B == 2)
        tile_rows(CPU_W_Q4, false, R, 2, t);
    else
        tile_rows(CPU_W_Q4, false, R, 1, t);
}

static void tile_bytes(bool two, int R, int64_t B, const struct tile *t)
{
    if (two && B == 2)
        tile_rows(CPU_W_Q8, true, R, 2, t);
    else if (two)
        tile_rows(CPU_W_Q8, true, R, 1, t);
    else if (B == 2)
        tile_rows(CPU_W_Q8, false, R, 2, t);
    else
        tile_rows(CPU_W_Q8, false, R, 1, t);
}

/* 4-bit codes of n groups at p, to bytes. */
static void codes_spread(const uint8_t *p, size_t group_bytes, int g, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++, p += group_bytes)
        for (int j = 0; j < g / 8; j++, out += 128) {
            __m512i even, odd;
            codes_load(CPU_W_Q4, p, j, &even, &odd);
            _mm_prefetch((const char *)p + PREFETCH_AHEAD + 64 * j, _MM_HINT_T1);
            _mm512_store_si512(out, even);
            _mm512_store_si512(out + 64, odd);
        }
}

/* One pair of blocks (or one block), groups from g0: all row tiles, their sizes balanced. */
static void pair_run(const struct cpu_weight *w, int64_t blk, int64_t B, int64_t g0, const uint8_t *panel,
                     struct tile t, const struct cpu_act *x, int64_t row0, int64_t m, bool next)
{
    bool two = x->form == ACT_Q16;
    int64_t r_max = two ? 3 : R_MAX, n_tile = (m + r_max - 1) / r_max;
    const uint8_t *x0 = act_row(x, row0), *pairs = x0 + act_pairs_off(x) + 8 * g0;
    float *y = t.y;
    x0 += (size_t)(g0 * t.g) * (two ? 2 : 1);
    for (int64_t i = 0; i < n_tile; i++) {
        int64_t r0 = m * i / n_tile, r1 = m * (i + 1) / n_tile;
        t.x = x0 + (size_t)r0 * x->row_bytes;
        t.pairs = (const float *)(pairs + (size_t)r0 * x->row_bytes);
        t.y = y + r0 * t.ld_y;
        if (next) { /* this tile's share of the next pair, in whole lines a group */
            size_t share = (size_t)B * w->block_bytes / (size_t)(n_tile * t.n_groups);
            t.pf_bytes = (share + 63) / 64 * 64;
            t.pf = w->data + (size_t)(blk + B) * w->block_bytes + (size_t)(i * t.n_groups) * t.pf_bytes;
        }
        if (w->type == CPU_W_Q4 && !panel)
            tile_nibbles(two, (int)(r1 - r0), B, &t);
        else
            tile_bytes(two, (int)(r1 - r0), B, &t);
    }
}

/* Blocks in pairs. Many rows of 4-bit codes: pieces of k spread to bytes first; fewer: as they lie, all of k. */
static void rows_many(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                      int64_t m, float *y, int64_t ld_y)
{
    _Alignas(64) uint8_t panel[2 * PANEL_K * 16];
    bool spread = w->type == CPU_W_Q4 && m >= PANEL_ROWS;
    int64_t ng = w->k / w->g, n_pieces = spread ? (w->k + PANEL_K - 1) / PANEL_K : 1, step = (ng + n_pieces - 1) / n_pieces;
    size_t cb = code_bytes(w->type, w->g), gb = cb + scales_bytes(w->dt);
    for (int64_t blk = blk0, B; blk < blk1; blk += B) {
        B = blk1 - blk >= 2 ? 2 : 1;
        for (int64_t g0 = 0; g0 < ng; g0 += step) {
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes + (size_t)g0 * gb;
            struct tile t = {
                .codes = p, .codes_step = gb, .codes_block = w->block_bytes,
                .scales = p + cb, .scales_step = gb, .scales_block = w->block_bytes,
                .g = w->g, .dt = w->dt, .n_groups = g0 + step < ng ? step : ng - g0, .first = g0 == 0,
                .row_bytes = x->row_bytes, .y = y + 16 * (blk - blk0), .ld_y = ld_y, .n_out = w->n - 16 * blk,
            };
            if (spread) {
                for (int64_t b = 0; b < B; b++)
                    codes_spread(p + (size_t)b * w->block_bytes, gb, w->g, t.n_groups, panel + b * PANEL_K * 16);
                t.codes = panel;
                t.codes_step = 2 * cb;
                t.codes_block = PANEL_K * 16;
            }
            pair_run(w, blk, B, g0, spread ? panel : NULL, t, x, row0, m, !spread && blk + B < blk1);
        }
    }
}

FORCED void matmul(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                   const struct cpu_act *x, int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m == 1)
        row_one(type, two, w, blk0, blk1, x, row0, y);
    else if (m == 7 || m == 8)
        avx512_matmul_few(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        rows_many(w, blk0, blk1, x, row0, m, y, ld_y);
}

void matmul_q4_q8_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                         int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q4, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

void matmul_q4_q16_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                          int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q4, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

void matmul_q8_q8_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                         int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q8, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

void matmul_q8_q16_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                          int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul(CPU_W_Q8, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

void avx512_fill_matmul(struct cpu_kernels *t)
{
    t->matmul_q4_q8 = matmul_q4_q8_avx512;
    t->matmul_q4_q16 = matmul_q4_q16_avx512;
    t->matmul_q8_q8 = matmul_q8_q8_avx512;
    t->matmul_q8_q16 = matmul_q8_q16_avx512;
}
