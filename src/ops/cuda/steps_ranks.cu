/* steps_ranks.cu: what several ranks have computed, each its own columns, put side by side: copies, and one addition where a
 * residual takes the sum. Nothing is summed across ranks, so the bits are those of one.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/steps.h"

#define COLUMNS 256

static __global__ void join_kernel(const __grid_constant__ struct cs_join a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int row = (int)blockIdx.y, i = (int)(blockIdx.x * COLUMNS + threadIdx.x);
    for (int r = 0; r < a.n_parts; r++) {
        int at = i - a.first[r];
        if (at < 0 || at >= a.n[r]) continue;
        float v = a.part[r][(int64_t)row * a.ld[r] + at], *to = a.out + (int64_t)row * a.ld_out + i;
        *to = a.add ? __fadd_rn(*to, v) : v;
        return;
    }
}

extern "C" int cs_join(const struct ck_ctx *c, const struct cs_join *a, cudaStream_t st)
{
    int end = 0;
    for (int r = 0; r < a->n_parts; r++)
        if (a->n[r] > 0 && a->first[r] + a->n[r] > end) end = a->first[r] + a->n[r];
    if (a->m <= 0 || end == 0) return 0;
    return ck_launch(c, join_kernel, dim3((unsigned)((end + COLUMNS - 1) / COLUMNS), (unsigned)a->m), COLUMNS, 0, st, *a);
}

/* The pair of values at column kk of a token; zeros where no part has it. */
static __device__ __forceinline__ uint32_t pair_at(const struct cs_join_input &a, int token, int kk)
{
    for (int r = 0; r < a.n_parts; r++) {
        int at = kk - a.first[r];
        if (at < 0 || at >= a.part[r].k) continue;
        return *(const uint32_t *)((const __half *)a.part[r].v + ck_x_off(a.part[r].layout, a.part[r].k_pad, token, at));
    }
    return 0;
}

/* A thread writes 16 bytes: four pairs, side by side in rows, every eighth column in tiles. */
static __global__ void join_input_kernel(const __grid_constant__ struct cs_join_input a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int token, kk, step;
    if (a.out.layout == CK_X_ROWS) {
        token = (int)blockIdx.y;
        kk = (int)(blockIdx.x * COLUMNS + threadIdx.x) * 8;
        step = 2;
    } else { /* blocks: of tokens, of 64 columns, halves of a step; threads: tokens */
        int jh = (int)blockIdx.x & 7, j = jh >> 1, tile = (int)blockIdx.x >> 3, n_tile = (int)(a.out.k_pad >> 6);
        token = tile / n_tile * 128 + (int)threadIdx.x;
        kk = tile % n_tile * 64 + 32 * (j >> 1) + 4 * (j & 1) + 2 * (jh & 1);
        step = 8;
    }
    if (token >= a.m || kk >= a.out.k_pad) return;
    uint4 v = make_uint4(pair_at(a, token, kk), pair_at(a, token, kk + step), pair_at(a, token, kk + 2 * step), pair_at(a, token, kk + 3 * step));
    *(uint4 *)((__half *)a.out.v + ck_x_off(a.out.layout, a.out.k_pad, token, kk)) = v;
}

extern "C" int cs_join_input(const struct ck_ctx *c, const struct cs_join_input *a, cudaStream_t st)
{
    if (a->m <= 0) return 0;
    if (a->out.layout == CK_X_TILES)
        return ck_launch(c, join_input_kernel, dim3((unsigned)((a->m + 127) / 128 * (int)(a->out.k_pad / 64) * 8)), 128, 0, st, *a);
    return ck_launch(c, join_input_kernel, dim3((unsigned)((a->out.k_pad / 8 + COLUMNS - 1) / COLUMNS), (unsigned)a->m), COLUMNS, 0, st, *a);
}
