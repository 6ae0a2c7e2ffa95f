/* kernels_attend_merge.cuh: the end of a head whose splits several blocks of kernels_attend_stream.cu have left in the work area: who comes last, and
 * the merge by that block.
 */
#ifndef OPS_CUDA_KERNELS_ATTEND_MERGE_CUH
#define OPS_CUDA_KERNELS_ATTEND_MERGE_CUH

#include "ops/cuda/kernels_attend.cuh"

#if __CUDA_ARCH__ >= 900
/* The eight warps that multiply meet; who brings goes on. */
static __device__ __forceinline__ void attend_meet(void) { asm volatile("bar.sync 1, 256;" ::: "memory"); }
/* Adds to a counter once what all threads have written before a barrier can be seen; what others wrote before theirs can be seen behind it. */
static __device__ __forceinline__ unsigned count_up(unsigned *count, unsigned n)
{
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(count), "r"(n) : "memory");
    return before;
}

/* All splits of a head from the work area, by the whole block: a warp a row makes factors while values come. */
template <int DP, int W>
static __device__ __forceinline__ void stream_merge(const struct attend_args &g, int tok, int head0, int n, const float *parts, int stride, float2 (*f)[ATTEND_FACTORS],
                                                    float2 *last)
{
    constexpr int STEP = 2 * W * 32; /* values of all threads */
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, n_q = g.group;
    const float factor = store_factor(g);
#pragma unroll 1
    for (int at = 2 * (int)threadIdx.x; at < (n_q * DP + STEP - 1) / STEP * STEP; at += STEP) {
        const int row = at / DP, dim = at % DP;
        float M = -INFINITY, L = 0.0f;
        float2 O = make_float2(0.0f, 0.0f);
#pragma unroll 1
        for (int s0 = 0; s0 < n; s0 += ATTEND_FACTORS) {
            const int now = min(n - s0, ATTEND_FACTORS);
            const float *part = parts + (int64_t)s0 * stride;
            const bool mine = warp < n_q && lane < now;
            const float m = mine ? __ldcg(part + lane * stride + warp) : -INFINITY, l = mine ? __ldcg(part + lane * stride + 16 + warp) : 0.0f;
            float2 v[ATTEND_FACTORS];
#pragma unroll
            for (int i = 0; i < ATTEND_FACTORS; i += 8) {
                if (i >= now) break;
#pragma unroll
                for (int k = 0; k < 8; k++)
                    v[i + k] = i + k < now && row < n_q ? __ldcg((const float2 *)(part + (i + k) * stride + 32 + at)) : make_float2(0.0f, 0.0f);
            }
            attend_meet(); /* the factors before these have been used */
            if (warp < n_q) {
                const float2 of = merge_factors(M, L, m, l, now, lane);
                f[warp][lane] = lane < now ? of : make_float2(1.0f, -0.0f); /* which leaves every O as it is, -0 too */
                if (s0 + now == n) {
                    float ea, inv;
                    finish(g, head0 + warp, M, L, &ea, &inv);
                    if (lane == 0) last[warp] = make_float2(ea, inv);
                }
            }
            attend_meet();
            const float2 *w = f[row < n_q ? row : 0];
#pragma unroll
            for (int i = 0; i < ATTEND_FACTORS; i += 8) {
                if (i >= now) break;
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    O.x = __fmaf_rn(v[i + k].x, w[i + k].y, __fmul_rn(O.x, w[i + k].x));
                    O.y = __fmaf_rn(v[i + k].y, w[i + k].y, __fmul_rn(O.y, w[i + k].x));
                }
            }
        }
        if (row >= n_q) break;
        const float2 w = last[row];
        store_two(g, tok, head0 + row, dim, __fmul_rn(__fmul_rn(O.x, w.x), w.y), __fmul_rn(__fmul_rn(O.y, w.x), w.y), factor);
        if (dim == 0) store_tail(g, tok, head0 + row, 0, 1);
    }
}
#endif

#endif
