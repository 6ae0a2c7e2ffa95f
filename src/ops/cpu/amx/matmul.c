/* matmul.c (amx): the tile kernels of matmul_tiles.h as rows of the table. Few rows stay with vpdpbusd (avx512), which has
 * no set-up and is bound by memory there. Everything else of the level is the avx512 table.
 */
#include "ops/cpu/amx/tiles.h"

#include "ops/cpu/amx/matmul_tiles.h"

/* Measured on a 16-core machine: from here on tiles are faster. */
#ifndef AMX_MIN_ROWS
#define AMX_MIN_ROWS 8
#endif

static void matmul_q4_q8_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                             int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < AMX_MIN_ROWS)
        matmul_q4_q8_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q4, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q4_q16_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < AMX_MIN_ROWS)
        matmul_q4_q16_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q4, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q8_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                             int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < AMX_MIN_ROWS)
        matmul_q8_q8_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q8, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q16_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < AMX_MIN_ROWS)
        matmul_q8_q16_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q8, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

void cpu_fill_amx(struct cpu_kernels *t)
{
    t->level = "amx";
    t->matmul_q4_q8 = matmul_q4_q8_amx;
    t->matmul_q4_q16 = matmul_q4_q16_amx;
    t->matmul_q8_q8 = matmul_q8_q8_amx;
    t->matmul_q8_q16 = matmul_q8_q16_amx;
}
