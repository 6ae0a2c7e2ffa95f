/* kernels_experts.cuh: the end of a token's sum over its experts, which two kernels take: the one that adds what products have left, and
 * the products of few tokens themselves.
 */
#ifndef OPS_CUDA_KERNELS_EXPERTS_CUH
#define OPS_CUDA_KERNELS_EXPERTS_CUH

#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/mathfn.cuh"

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
