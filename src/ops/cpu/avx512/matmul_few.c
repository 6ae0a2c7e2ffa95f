/* matmul_few.c (avx512): 7 and 8 rows by one block: integer and float sums of all rows in registers, codes of a group unpacked once, and the
 * inputs, read where they lie, as operands of vpdpbusd itself.
 *
 * Two limbs are one chain: the group's high limbs, a shift by 8, then the low limbs on top: one operation a row where two sums would
 * take a shift and an add, and half the registers. With g = 32 and 8 rows that is 128 products, 40 operations behind them and 12 of
 * unpacking for two ports. A chain of 16 products is longer than the 8 rows can hide, but the next group's do not wait for it. With
 * fewer rows, where memory is what counts, two blocks at once (matmul.c) are read faster than one.
 */
#include "ops/cpu/avx512/matmul_int.h"

#define ROWS 8

FORCED void rows_dot(int R, __m512i codes, const uint8_t *x, size_t row_bytes, __m512i sum[ROWS])
{
    UNROLL(8)
    for (int r = 0; r < R; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], codes, bcast_dword(x + (size_t)r * row_bytes));
}

FORCED void rows_zero(int R, __m512i sum[ROWS])
{
    UNROLL(8)
    for (int r = 0; r < R; r++) sum[r] = _mm512_setzero_si512();
}

/* One limb of the group at p on top of sum. */
FORCED void limb_sums(enum cpu_wtype type, int R, int g, const uint8_t *p, const uint8_t *x, size_t row_bytes, __m512i sum[ROWS])
{
    UNROLL(8)
    for (int j = 0; j < g / 8; j++) {
        __m512i even, odd;
        codes_load(type, p, j, &even, &odd);
        rows_dot(R, even, x + 8 * j, row_bytes, sum);
        rows_dot(R, odd, x + 8 * j + 4, row_bytes, sum);
    }
}

/* The group at p: sums of R rows, exact. */
FORCED void group_sums(enum cpu_wtype type, bool two, int R, int g, const uint8_t *p, const uint8_t *x, size_t row_bytes, __m512i sum[ROWS])
{
    rows_zero(R, sum);
    limb_sums(type, R, g, p, x, row_bytes, sum);
    if (!two) return;
    UNROLL(8)
    for (int r = 0; r < R; r++) sum[r] = _mm512_slli_epi32(sum[r], 8);
    limb_sums(type, R, g, p, x + g, row_bytes, sum);
}

/* R rows from xr by block blk. */
FORCED void rows_block(enum cpu_wtype type, bool two, int R, int g, enum dtype dt, const struct cpu_weight *w, int64_t blk,
                       const struct cpu_act *x, const uint8_t *xr, float *y, int64_t ld_y)
{
    size_t cb = code_bytes(type, g), gb = cb + scales_bytes(dt), row_bytes = x->row_bytes;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *pair = xr + act_pairs_off(x);
    __m512 acc[ROWS];
    UNROLL(8)
    for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < w->k / g; i++, p += gb, xr += (size_t)g * (two ? 2 : 1), pair += 8) {
        __m512i sum[ROWS];
        __m512 s, b;
        UNROLL(18)
        for (size_t j = 0; j < gb; j += 64) _mm_prefetch((const char *)p + PREFETCH_AHEAD + j, _MM_HINT_T1);
        group_sums(type, two, R, g, p, xr, row_bytes, sum);
        scales_load(dt, p + cb, &s, &b);
        UNROLL(8)
        for (int r = 0; r < R; r++) acc[r] = group_add(acc[r], s, b, (const float *)(pair + (size_t)r * row_bytes), sum[r]);
    }
    UNROLL(8)
    for (int r = 0; r < R; r++) store16(y + r * ld_y, w->n - 16 * blk, acc[r]);
}

/* The most common group becomes a constant of its own loop. */
FORCED void rows_any(enum cpu_wtype type, bool two, int R, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                     const uint8_t *xr, float *y, int64_t ld_y)
{
    if (w->dt == DT_BF16 && w->g == 32)
        rows_block(type, two, R, 32, DT_BF16, w, blk, x, xr, y, ld_y);
    else
        rows_block(type, two, R, w->g, w->dt, w, blk, x, xr, y, ld_y);
}

FORCED void few(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    const uint8_t *xr = act_row(x, row0);
    for (int64_t blk = blk0; blk < blk1; blk++, y += 16) {
        if (m == 8) rows_any(type, two, 8, w, blk, x, xr, y, ld_y);
        else rows_any(type, two, 7, w, blk, x, xr, y, ld_y);
    }
}

void avx512_matmul_few(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0, int64_t m,
                       float *y, int64_t ld_y)
{
    bool two = x->form == ACT_Q16;
    if (w->type == CPU_W_Q4 && two)
        few(CPU_W_Q4, true, w, blk0, blk1, x, row0, m, y, ld_y);
    else if (w->type == CPU_W_Q4)
        few(CPU_W_Q4, false, w, blk0, blk1, x, row0, m, y, ld_y);
    else if (two)
        few(CPU_W_Q8, true, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        few(CPU_W_Q8, false, w, blk0, blk1, x, row0, m, y, ld_y);
}
