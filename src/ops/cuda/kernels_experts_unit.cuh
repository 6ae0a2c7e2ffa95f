/* kernels_experts_unit.cuh: what a block of kernels_experts.cu works on: its units one after the other, where their weights lie and which rows
 * of the input are their columns.
 */
#ifndef OPS_CUDA_KERNELS_EXPERTS_UNIT_CUH
#define OPS_CUDA_KERNELS_EXPERTS_UNIT_CUH

#include "ops/cuda/kernels_experts.cuh"
#include "ops/cuda/kernels_ring.cuh"

struct experts_args {
    struct ck_out part[2];      /* the stacks, n: rows of an expert; gate and up, or down */
    struct ck_x x, out;
    struct ck_expert_list list;
    struct ck_expert_sum sum;
    int n_row_unit, n_ktile;
    int n_unit;                 /* -1: as many as pieces make */
    int per, top_k;             /* slot / per is its row of x */
    int glu;
};

/* Where a block is: unit after unit, of a token its experts in turn when sums are taken here. i: the piece or token, u: its row unit. */
template <bool SUM> struct experts_walk {
    int unit, j, i, u, n_unit, per, top_k;
    __device__ __forceinline__ experts_walk(const struct experts_args &a)
    {
        per = a.n_row_unit;
        top_k = a.top_k;
        n_unit = a.n_unit >= 0 ? a.n_unit : *a.list.n_piece * per;
        unit = (int)blockIdx.x;
        begin();
    }
    __device__ __forceinline__ void begin(void)
    {
        j = 0;
        i = unit / per;
        u = unit - i * per;
    }
    __device__ __forceinline__ bool on(void) const { return unit < n_unit; }
    __device__ __forceinline__ void next(void)
    {
        if (SUM && ++j < top_k) return;
        unit += (int)gridDim.x;
        begin();
    }
    __device__ __forceinline__ int piece(void) const { return SUM ? i * top_k + j : i; }
};

/* Row tile r of unit u; rows behind an expert's last: any will do. */
template <int FMT, int NS, int RT, bool GLU>
static __device__ __forceinline__ const uint8_t *experts_tiles(const struct experts_args &a, int expert, int u, int r)
{
    const struct ck_out &o = a.part[GLU ? r / (RT / 2) : 0];
    const int rt = ck_row_tile<RT, GLU>(u, r);
    return o.tiles + ((int64_t)expert * (o.n / 16) + (rt * 16 < o.n ? rt : 0)) * a.n_ktile * ck_tile_size<FMT, NS>();
}

/* Where the columns of this lane begin in x: -1 for none. Lane l has columns 8 q + l / 4. */
template <int NT> static __device__ __forceinline__ void experts_columns(const struct experts_args &a, int i_piece, int lane, int (&at)[NT])
{
#pragma unroll
    for (int q = 0; q < NT; q++) at[q] = -1;
    if (a.list.most == 1) {
        if (lane < 4) at[0] = i_piece / a.per * (int)a.x.k_pad;
        return;
    }
    const struct ck_piece p = ck_piece_at(a.list, i_piece);
#pragma unroll
    for (int q = 0; q < NT; q++) {
        const int col = q * 8 + (lane >> 2);
        if (col < p.n) at[q] = a.list.slots[p.first + col] / a.per * (int)a.x.k_pad;
    }
}

template <int NT> static __device__ __forceinline__ void experts_x_load(uint4 (&x)[NT][2], const __half *v, const int (&at)[NT], int k, bool is)
{
#pragma unroll
    for (int q = 0; q < NT; q++)
        if (is && at[q] >= 0) {
            const uint4 *src = (const uint4 *)(v + at[q] + k);
            x[q][0] = src[0];
            x[q][1] = src[4];
        }
}

#endif
