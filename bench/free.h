/* free.h: kernels free of the order rule, for bench_order.c: the formats and the register blocking of src/ops/cpu, but
 * sums in several chains, so that rounding depends on the kernel. They exist to be timed, not to be used. */
#ifndef BENCH_FREE_H
#define BENCH_FREE_H

#include "ops/cpu/kernels.h"

struct free_kernels {
    const char *level;
    /* Weights: 4 bit, groups of 32 or 64, bf16 scales; or bf16 elements. Blocks [blk0, blk1) of full rows. */
    cpu_matmul_fn q4_q8, q4_q16, f_f32;
    /* Integer operations a second (two for each product) that registers alone allow. */
    double (*int_peak)(void);
    double (*float_peak)(void);
};

void free_fill_avx2(struct free_kernels *t);
void free_fill_avx512(struct free_kernels *t);
void free_fill_amx(struct free_kernels *t); /* over avx512 */

double free_now(void); /* seconds */

#endif
