/* matmul.c (amx): the tile kernels of matmul_tiles.h and matmul_few.h as rows of the table. One row and few more stay with vpdpbusd (avx512),
 * which has no set-up and is bound by memory there. Everything else of the level is the avx512 table.
 */
#include "ops/cpu/amx/tiles.h"

#include "ops/cpu/amx/matmul_tiles.h"
#include "ops/cpu/amx/matmul_few.h"

/* Are tiles faster? As measured: groups of 32 and 64 have those of matmul_few.h up to 8 rows. Above, between what was measured with weights in
 * L2 (from 7 to 14 rows on) and with weights in memory (from 8 to 17, 8-bit codes up to 30): a strip of 16 rows that is not full costs what a
 * full one does. */
static bool tiles_pay(const struct cpu_weight *w, bool two, int64_t m)
{
    if (w->g < 32) return m >= 24;
    if (m <= FEW_ROWS && w->g <= 64) return m >= (two ? 4 : w->g == 64 ? 5 : 7);
    return m >= (w->g < 64 ? 12 : 8) + (two ? 0 : 4);
}

FORCED void matmul_any(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                       int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m <= FEW_ROWS && (w->g == 32 || w->g == 64))
        matmul_few(type, two, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(type, two, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q4_q8_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                             int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (!tiles_pay(w, false, m))
        matmul_q4_q8_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_any(CPU_W_Q4, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q4_q16_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (!tiles_pay(w, true, m))
        matmul_q4_q16_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_any(CPU_W_Q4, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q8_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                             int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (!tiles_pay(w, false, m))
        matmul_q8_q8_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_any(CPU_W_Q8, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q16_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (!tiles_pay(w, true, m))
        matmul_q8_q16_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_any(CPU_W_Q8, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

void cpu_fill_amx(struct cpu_kernels *t)
{
    t->level = "amx";
    t->matmul_q4_q8 = matmul_q4_q8_amx;
    t->matmul_q4_q16 = matmul_q4_q16_amx;
    t->matmul_q8_q8 = matmul_q8_q8_amx;
    t->matmul_q8_q16 = matmul_q8_q16_amx;
}
