/* kernels_attend_heads.cuh: what the forms of attention that rotate for themselves (token, stream) share: a head of q, k or v from the
 * products to what is multiplied, as cs_rope (steps_rope.cu) makes it, and a page's bits of a value.
 */
#ifndef OPS_CUDA_KERNELS_ATTEND_HEADS_CUH
#define OPS_CUDA_KERNELS_ATTEND_HEADS_CUH

#include "ops/cuda/kernels_attend.cuh"
#include "ops/cuda/steps.h"

/* A head of q, k or v: norm, rotation. By a warp, element 32 w + lane in v[w]; operations and order as rope_kernel's (steps_rope.cu). */
template <int DP> struct head_vector {
    float v[DP / 32], weight[DP / 32];
    __device__ __forceinline__ void load(const float *x, const float *w, int d, int lane)
    {
#pragma unroll
        for (int i = 0; i < DP / 32; i++) {
            int at = 32 * i + lane;
            v[i] = at < d ? x[at] : 0.0f;
            weight[i] = w && at < d ? w[at] : 1.0f;
        }
    }
    /* y: [DP], zeros from d on. cs: cosines, then sines, or NULL. */
    __device__ __forceinline__ void make(float *y, bool norm, bool weighted, const float *cs, const struct cs_rope &r, int lane) const
    {
        const int d = r.head_dim, half = r.n_rot / 2;
        float scale = 1.0f;
        if (norm) {
            float ss[4] = {};
#pragma unroll
            for (int i = 0; i < DP / 32; i++) {
                ss[i] = __fmaf_rn(v[i], v[i], 0.0f);
                for (int step = 16; step > 0; step /= 2) ss[i] = ss[i] + __shfl_xor_sync(0xffffffffu, ss[i], step);
            }
            scale = 1.0f / sqrtf((((ss[0] + ss[1]) + ss[2]) + ss[3]) * (1.0f / (float)d) + r.norm_eps);
        }
        if (cs && r.n_rot == DP && !r.interleaved) { /* a lane has both of each pair */
#pragma unroll
            for (int i = 0; i < DP / 64; i++) {
                float x0 = norm ? v[i] * scale : v[i], x1 = norm ? v[i + DP / 64] * scale : v[i + DP / 64], c = cs[32 * i + lane], s = cs[half + 32 * i + lane];
                if (norm && weighted) {
                    x0 = x0 * weight[i];
                    x1 = x1 * weight[i + DP / 64];
                }
                y[32 * i + lane] = __fmaf_rn(x0, c, -(x1 * s));
                y[half + 32 * i + lane] = __fmaf_rn(x1, c, x0 * s);
            }
            __syncwarp();
            return;
        }
#pragma unroll
        for (int i = 0; i < DP / 32; i++) {
            float x = norm ? v[i] * scale : v[i];
            y[32 * i + lane] = norm && weighted ? x * weight[i] : x;
        }
        __syncwarp();
        if (!cs) return;
        for (int i = lane; i < half; i += 32) {
            int i0 = r.interleaved ? 2 * i : i, i1 = r.interleaved ? i0 + 1 : i + half;
            float x0 = y[i0], x1 = y[i1], c = cs[i], s = cs[half + i];
            y[i0] = __fmaf_rn(x0, c, -(x1 * s));
            y[i1] = __fmaf_rn(x1, c, x0 * s);
        }
        __syncwarp();
    }
};

template <bool BF> static __device__ __forceinline__ uint16_t page_bits(float v)
{
    return BF ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : __half_as_ushort(__float2half_rn(v));
}

#endif
