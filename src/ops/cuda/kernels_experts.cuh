/* kernels_experts.cuh: what the files of a mixture's kernels share: pieces and the layout of a prompt's, an expert's part of a stack, and the
 * end of a token's sum over its experts, which two kernels take: the one that adds what products have left, and the products of few tokens
 * themselves.
 */
#ifndef OPS_CUDA_KERNELS_EXPERTS_CUH
#define OPS_CUDA_KERNELS_EXPERTS_CUH

#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/mathfn.cuh"

/* CK_X_PIECES: piece i begins at k tile i * k_pad / 64 of CK_PIECE_TILE columns. Its k tiles lie one behind the other as those of CK_X_TILES do,
 * but with only so many columns: one copy brings several. */
static __host__ __device__ __forceinline__ int ck_piece_stride(int n) { return (n + 7) & ~7; }

static __device__ __forceinline__ struct ck_piece ck_piece_at(const struct ck_expert_list &list, int i)
{
    const int4 v = *(const int4 *)&list.pieces[i];
    return ck_piece{ v.x, v.y, v.z, v.w };
}

/* A stack as its expert sees it; n: an expert's rows. */
static __device__ __forceinline__ struct ck_out ck_expert_part(const struct ck_out &stack, int expert)
{
    struct ck_out o = stack;
    o.row_scale += (int64_t)expert * o.n;
    if (o.bias) o.bias += (int64_t)expert * o.n;
    return o;
}

/* acc: the sum; old: what the output held, where it is added to. */
static __device__ __forceinline__ void ck_expert_sum_out(const struct ck_expert_sum &a, int64_t row, int col, float acc, float old)
{
    if (a.shared) {
        float v = a.shared[row * a.ld_shared + col];
        if (a.gate) v = v * (1.0f / (1.0f + d_exp(-a.gate[row * a.ld_gate])));
        acc = acc + v;
    }
    a.out[row * a.ld_out + col] = a.add ? old + acc : acc;
}

#endif
