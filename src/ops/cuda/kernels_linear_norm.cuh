/* kernels_linear_norm.cuh: a linear input that is a norm not yet taken (struct ck_x: norm_in): the rows' values to shared memory, [m][ld], by
 * the eight warps that multiply in kernels_linear.cu. The same operations as norm_kernel's (steps_rows.cu), whose 512 or 128 threads are played
 * by 256: the same bits.
 */
#ifndef OPS_CUDA_KERNELS_LINEAR_NORM_CUH
#define OPS_CUDA_KERNELS_LINEAR_NORM_CUH

#include "ops/cuda/kernels_norm.cuh"

#define CK_NORM_KEEP 16                  /* values of a row that a thread keeps */
#define CK_NORM_LD(k_pad) ((k_pad) + 32) /* halves of a row: rows lie in different banks */

static __device__ __forceinline__ void linear_norm_meet(void) { asm volatile("bar.sync 1, 256;" ::: "memory"); }
static __device__ __forceinline__ void linear_norm_pairs(const struct ck_x &x, int m, __half *to, int ld, float *warps)
{
    const int tid = (int)threadIdx.x, n = (int)x.k;
    const float inv_mul = 1.0f / x.mul;
    struct ck_norm_row weight, row;
    if (x.norm_weight) weight.load(x.norm_weight, n, tid, 1.0f);
    for (int i = 0; i < m; i++)
        for (int k = n + tid; k < x.k_pad; k += 256) to[i * ld + k] = __float2half_rn(0.0f);
    ck_pdl_wait();
    for (int i = 0; i < m; i++) {
        row.load(x.norm_in + (int64_t)i * x.ld_norm, n, tid, 0.0f);
        const float r = row.factor(n, x.norm_eps, tid, warps, linear_norm_meet);
        row.out(n, tid, r, x.norm_identity != 0, weight, x.norm_weight != NULL, inv_mul, [&](int k, __half2 v) { *(__half2 *)(to + i * ld + k) = v; });
        linear_norm_meet();
    }
}

static __device__ __forceinline__ void linear_norm_rows(const struct ck_x &x, int m, __half *to, int ld, float *warps)
{
    if (ck_norm_pairs(x.norm_in, x.ld_norm, x.norm_weight, (int)x.k)) {
        linear_norm_pairs(x, m, to, ld, warps);
        return;
    }
    const int tid = (int)threadIdx.x, n = (int)x.k, wide = n >= 1024, step = wide ? 256 : 128, n_warp = wide ? 16 : 4;
    const bool mine = wide || tid < 128;
    float weight[CK_NORM_KEEP], v[CK_NORM_KEEP];
#pragma unroll
    for (int j = 0; j < CK_NORM_KEEP; j++) weight[j] = mine && x.norm_weight && j * step + tid < n ? x.norm_weight[j * step + tid] : 1.0f;
    ck_pdl_wait();
    for (int i = 0; i < m; i++) {
        const float *in = x.norm_in + (int64_t)i * x.ld_norm;
        float s0 = 0.0f, s1 = 0.0f, r = 1.0f, sum = 0.0f; /* of threads tid and, of 512, tid + 256 */
#pragma unroll
        for (int j = 0; j < CK_NORM_KEEP; j++) v[j] = mine && j * step + tid < n ? in[j * step + tid] : 0.0f;
#pragma unroll
        for (int j = 0; j < CK_NORM_KEEP; j++) {
            if (wide && (j & 1)) s1 = __fmaf_rn(v[j], v[j], s1);
            else s0 = __fmaf_rn(v[j], v[j], s0);
        }
        for (int k = CK_NORM_KEEP * 256 + tid; wide && k < n; k += 512) {
            s0 = __fmaf_rn(in[k], in[k], s0);
            if (k + 256 < n) s1 = __fmaf_rn(in[k + 256], in[k + 256], s1);
        }
        for (int s = 16; s > 0; s /= 2) {
            s0 = s0 + __shfl_xor_sync(0xffffffffu, s0, s);
            s1 = s1 + __shfl_xor_sync(0xffffffffu, s1, s);
        }
        if ((tid & 31) == 0) {
            warps[tid >> 5] = s0;
            warps[8 + (tid >> 5)] = s1;
        }
        linear_norm_meet();
        for (int w = 0; w < n_warp; w++) sum = sum + warps[w];
        if (!x.norm_identity) r = 1.0f / sqrtf(sum * (1.0f / (float)n) + x.norm_eps);
        auto put = [&](int k, float y, float g) {
            if (!x.norm_identity) {
                y = y * r;
                if (x.norm_weight) y = y * g;
            }
            to[i * ld + k] = __float2half_rn(y * (1.0f / x.mul));
        };
#pragma unroll
        for (int j = 0; j < CK_NORM_KEEP; j++)
            if (mine && j * step + tid < n) put(j * step + tid, v[j], weight[j]);
        for (int k = CK_NORM_KEEP * 256 + tid; wide && k < n; k += 256) put(k, in[k], x.norm_weight ? x.norm_weight[k] : 1.0f);
        for (int k = n + tid; k < x.k_pad; k += 256) to[i * ld + k] = __float2half_rn(0.0f);
        linear_norm_meet();
    }
}

#endif
