/* matmul.c (amx): the tile kernels of matmul_tiles.h and matmul_bf16.h as rows of the table. Few rows stay with vpdpbusd (avx512), which has
 * no set-up and is bound by memory there. Everything else of the level is the avx512 table.
 */
#include "ops/cpu/amx/tiles.h"

#include "ops/cpu/amx/matmul_tiles.h"
#include "ops/cpu/amx/matmul_bf16.h"

/* From how many rows on tiles are faster, measured on a 16-core machine. Groups of 32 fill half a tile of int8, and a strip of 16 rows that
 * is not full costs what a full one does. */
static int64_t min_rows(const struct cpu_weight *w)
{
    return w->g < 64 ? 24 : 8;
}

/* From here on spreading to bf16 pays: strips share the codes, blocks the inputs. */
#define BF16_MIN_ROWS 32
#define BF16_MIN_BLOCKS 4

static void matmul_q4_q8_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                             int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < min_rows(w))
        matmul_q4_q8_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q4, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q4_q16_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < min_rows(w))
        matmul_q4_q16_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else if (w->g == BF16_GROUP && m >= BF16_MIN_ROWS && blk1 - blk0 >= BF16_MIN_BLOCKS)
        matmul_bf16(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q4, true, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q8_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                             int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < min_rows(w))
        matmul_q8_q8_avx512(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(CPU_W_Q8, false, w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q16_amx(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m < min_rows(w))
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
