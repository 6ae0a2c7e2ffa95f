/* kernels_experts.cuh: what the files of a mixture's kernels share: the layout of a prompt's pieces, and the end of a token's sum over its
 * experts, which two kernels take: the one that adds what products have left, and the products of few tokens themselves.
 */
#ifndef OPS_CUDA_KERNELS_EXPERTS_CUH
#define OPS_CUDA_KERNELS_EXPERTS_CUH

#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/mathfn.cuh"

/* CK_X_PIECES: piece i begins at k tile i * k_pad / 64 of CK_PIECE_TILE columns. Its k tiles lie one behind the other as those of CK_X_TILES do,
 * but with only so many columns: one copy brings several. */
static __host__ __device__ __forceinline__ int ck_piece_stride(int n) { return (n + 7) & ~7; }

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
