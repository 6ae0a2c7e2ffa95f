/* steps_latent.cu: what attention over latents has of its own before it: queries rotated and scaled, the token's latent, its rotated key and the
 * indexer's key to the page. Blocks (0 .. , token) are 8 heads, a warp each; the last one of a token writes its page.
 */
#include "ops/cuda/latent_dev.cuh"
#include "ops/cuda/steps_dev.cuh"

#define HEADS 8
#define THREADS (HEADS * 32)

static __device__ void turn_head(const struct cl_latent &a, int token, int head, const float *cs, int lane)
{
    const float *q = a.q + (int64_t)token * a.ld_q + a.q_first + (int64_t)head * a.q_step;
    float *out = a.out + (int64_t)token * a.ld_out + (int64_t)head * (a.d_latent + a.d_rope);
    for (int i = lane; i < a.d_latent; i += 32) out[i] = out[i] * a.q_scale;
    for (int i = lane; i < a.d_rope / 2; i += 32)
        cs_rotate(q, cs, a.d_rope / 2, a.interleaved != 0, i, [&](int at, float v) { out[a.d_latent + at] = v * a.q_scale; });
}

/* The indexer's key: a layer norm, then its first d_rope columns rotated. */
static __device__ void write_index(const struct cl_latent &a, int token, const float *cs, uint8_t *row, int key, float *y, float *warps)
{
    const int tid = (int)threadIdx.x, n = a.d_index, first = a.d_latent + a.d_rope;
    const float *x = a.index_key + (int64_t)token * a.ld_index;
    float sum = 0.0f, ss = 0.0f;
    for (int i = tid; i < n; i += THREADS) sum = sum + x[i];
    const float mean = cs_block_sum<HEADS>(sum, warps) * (1.0f / (float)n);
    for (int i = tid; i < n; i += THREADS) ss = __fmaf_rn(x[i] - mean, x[i] - mean, ss);
    const float r = 1.0f / sqrtf(cs_block_sum<HEADS>(ss, warps) * (1.0f / (float)n) + a.index_eps);
    for (int i = tid; i < n; i += THREADS) {
        y[i] = ((x[i] - mean) * r) * a.index_norm[i] + a.index_bias[i];
        if (i >= a.d_rope) cl_put(row, a.p.format, key, first + i, y[i]);
    }
    __syncthreads();
    for (int i = tid; i < a.d_rope / 2; i += THREADS)
        cs_rotate(y, cs, a.d_rope / 2, a.index_interleaved != 0, i, [&](int at, float v) { cl_put(row, a.p.format, key, first + at, v); });
}

static __device__ void write_page(const struct cl_latent &a, int token, const float *cs, float *y, float *warps)
{
    const int tid = (int)threadIdx.x, n = a.d_latent, index = a.p.index[token], key = index & 63;
    const float *kv = a.kv + (int64_t)token * a.ld_kv;
    uint8_t *row = cl_key(a.p, token, index);
    float ss = 0.0f;
    for (int i = tid; i < n; i += THREADS) ss = __fmaf_rn(kv[i], kv[i], ss);
    const float r = 1.0f / sqrtf(cs_block_sum<HEADS>(ss, warps) * (1.0f / (float)n) + a.norm_eps);
    for (int i = tid; i < n; i += THREADS) cl_put(row, a.p.format, key, i, (kv[i] * r) * a.norm[i]);
    for (int i = tid; i < a.d_rope / 2; i += THREADS)
        cs_rotate(kv + n, cs, a.d_rope / 2, a.interleaved != 0, i, [&](int at, float v) { cl_put(row, a.p.format, key, n + at, v); });
    if (a.index_key) write_index(a, token, cs, row, key, y, warps);
}

static __global__ void __launch_bounds__(THREADS) latent_kernel(const __grid_constant__ struct cl_latent a)
{
    __shared__ float y[CL_ROWS_MAX], warps[HEADS];
    ck_pdl_launch();
    ck_pdl_wait();
    const int token = (int)blockIdx.y, head = (int)blockIdx.x * HEADS + ((int)threadIdx.x >> 5);
    const float *cs = a.table + (int64_t)token * a.d_rope;
    if (blockIdx.x + 1 == gridDim.x) write_page(a, token, cs, y, warps);
    else if (head < a.n_head) turn_head(a, token, head, cs, (int)threadIdx.x & 31);
}

extern "C" size_t cl_page_bytes(int format, int rows)
{
    return (size_t)64 * (size_t)cl_ld(rows) * (size_t)cl_elem(format);
}

extern "C" int cl_latent(const struct ck_ctx *c, const struct cl_latent *a, cudaStream_t st)
{
    if (a->d_latent + a->d_rope + a->d_index > CL_ROWS_MAX) return (int)cudaErrorInvalidValue;
    return ck_launch(c, latent_kernel, dim3((unsigned)((a->n_head + HEADS - 1) / HEADS + 1), (unsigned)a->m), THREADS, 0, st, *a);
}
