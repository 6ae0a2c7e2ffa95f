/* kernels_norm.cuh: the RMS norm of a row of 1,024 to 4,096 values by 256 threads that play norm_kernel's 512 (steps_rows.cu), two each: thread t
 * has values 2 t and 2 t + 1 of every 512, so that loads and stores are pairs. The same operations in the same order. A decode step has two
 * norms a layer, and everything waits for them: what counts is how many instructions a thread needs.
 */
#ifndef OPS_CUDA_KERNELS_NORM_CUH
#define OPS_CUDA_KERNELS_NORM_CUH

#include "ops/cuda/kernels_dev.cuh"

#define CK_NORM_PAIRS 8 /* of a thread */

/* May rows of n values at `in` go this way? ld: from row to row. */
static __host__ __device__ __forceinline__ bool ck_norm_pairs(const float *in, int64_t ld, const float *weight, int n)
{
    return n >= 1024 && n <= 512 * CK_NORM_PAIRS && n % 2 == 0 && ld % 2 == 0 && ((uintptr_t)in | (uintptr_t)weight) % sizeof(float2) == 0;
}

struct ck_norm_row {
    float2 v[CK_NORM_PAIRS];
    __device__ __forceinline__ void load(const float *in, int n, int t, float beyond)
    {
#pragma unroll
        for (int j = 0; j < CK_NORM_PAIRS; j++) v[j] = 512 * j + 2 * t < n ? *(const float2 *)(in + 512 * j + 2 * t) : make_float2(beyond, beyond);
    }
    /* 1 / root of the mean square. warps: 16 floats that all threads share; meet: all of them. */
    template <class Meet> __device__ __forceinline__ float factor(int n, float eps, int t, float *warps, Meet meet) const
    {
        float s0 = 0.0f, s1 = 0.0f, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < CK_NORM_PAIRS; j++) {
            s0 = __fmaf_rn(v[j].x, v[j].x, s0);
            s1 = __fmaf_rn(v[j].y, v[j].y, s1);
        }
        for (int step = 8; step > 0; step /= 2) {
            s0 = s0 + __shfl_xor_sync(0xffffffffu, s0, step);
            s1 = s1 + __shfl_xor_sync(0xffffffffu, s1, step);
        }
        if (t % 16 == 0) warps[t / 16] = s0 + s1;
        meet();
        for (int w = 0; w < 16; w++) sum = sum + warps[w];
        return 1.0f / sqrtf(sum * (1.0f / (float)n) + eps);
    }
    /* The values as halves, weighted or not: put(k, pair) for each pair in the row. */
    template <class Put> __device__ __forceinline__ void out(int n, int t, float r, bool identity, const struct ck_norm_row &weight, bool weighted, float inv_mul,
                                                                     Put put) const
    {
#pragma unroll
        for (int j = 0; j < CK_NORM_PAIRS; j++) {
            float2 y = v[j];
            if (512 * j + 2 * t >= n) continue;
            if (!identity) {
                y = make_float2(y.x * r, y.y * r);
                if (weighted) y = make_float2(y.x * weight.v[j].x, y.y * weight.v[j].y);
            }
            put(512 * j + 2 * t, __floats2half2_rn(y.x * inv_mul, y.y * inv_mul));
        }
    }
};

#endif
