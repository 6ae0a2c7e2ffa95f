/* kernels_latent_merge.cu: what splits that have a block each leave in `work` (m, l and o of each, kernels_latent.cuh: part_at): how much room it
 * takes, and the launch that merges them left to right.
 */
#include "ops/cuda/kernels_latent.cuh"

#define AHEAD 8 /* splits on their way at a time */

/* Splits of a token's head, left to right. A thread is a few columns. */
static __global__ void __launch_bounds__(128) latent_merge_kernel(const __grid_constant__ struct cl_attend a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const int token = (int)blockIdx.x, head = (int)blockIdx.y, tid = (int)threadIdx.x, n_split = (seen_by(a, token).n + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
    const float2 *ml = (const float2 *)part_ml(a) + part_at(a, token, head, 0);
    const float *part = part_o(a) + part_at(a, token, head, 0) * a.d_value;
    float *out = a.out + (int64_t)token * a.ld_out + (int64_t)head * a.d_value, v[CL_VALUE_MAX / 128] = {};
    struct merged all = { -INFINITY, 0.0f, 0.0f, 0.0f };
    for (int first = 0; first < n_split; first += AHEAD) {
        float x[AHEAD][CL_VALUE_MAX / 128];
        float2 f[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int split = min(first + i, n_split - 1);
            f[i] = ml[split];
#pragma unroll
            for (int j = 0; j < CL_VALUE_MAX / 128; j++) x[i][j] = 128 * j + tid < a.d_value ? part[(int64_t)split * a.d_value + 128 * j + tid] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (first + i >= n_split) break;
            merge_next(all, f[i].x, f[i].y);
#pragma unroll
            for (int j = 0; j < CL_VALUE_MAX / 128; j++) v[j] = __fmaf_rn(x[i][j], all.new_by, __fmul_rn(v[j], all.old_by));
        }
    }
    const float by = all.l == 0.0f ? 0.0f : __fdiv_rn(1.0f, all.l);
#pragma unroll
    for (int j = 0; j < CL_VALUE_MAX / 128; j++)
        if (128 * j + tid < a.d_value) out[128 * j + tid] = __fmul_rn(v[j], by);
}

extern "C" int cl_attend_merge(const struct ck_ctx *c, const struct cl_attend *a, cudaStream_t st)
{
    return ck_launch(c, latent_merge_kernel, dim3((unsigned)a->m, (unsigned)a->n_head), 128, 0, st, *a);
}

extern "C" size_t cl_attend_work_bytes(const struct ck_ctx *c, int n_head, int d_value, int n_context)
{
    size_t pairs = 1;
    while (pairs * CK_ATTN_SPLIT < (size_t)n_context) pairs *= 2; /* graphs round splits up */
    if (pairs < 4 * (size_t)c->n_sm) pairs = 4 * (size_t)c->n_sm;
    return pairs * cl_pair_bytes(n_head, d_value);
}
