/* steps_rope.cu: a block is one head of one token: query heads to q', then keys and values into the page that holds their
 * index. A row that writes has its pages (batch.c has looked).
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/steps.h"

#define THREADS 128
#define DIM_MAX 1024

static __device__ float sum_squares(const float *x, int n, float *warps)
{
    float ss = 0.0f;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) ss = __fmaf_rn(x[i], x[i], ss);
    for (int step = 16; step > 0; step /= 2) ss = ss + __shfl_xor_sync(0xffffffffu, ss, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = ss;
    __syncthreads();
    return ((warps[0] + warps[1]) + warps[2]) + warps[3];
}

/* y = x, normalised where asked; ends with a barrier. */
static __device__ void norm_head(const float *x, const float *weight, bool norm, int d, float eps, float *y, float *warps)
{
    float r = 1.0f;
    if (norm) r = 1.0f / sqrtf(sum_squares(x, d, warps) * (1.0f / (float)d) + eps);
    for (int i = (int)threadIdx.x; i < d; i += THREADS) {
        float v = x[i];
        if (norm) v = v * r;
        y[i] = norm && weight ? v * weight[i] : v;
    }
    __syncthreads();
}

static __device__ void rotate(float *y, const float *cs, int n_rot, bool interleaved)
{
    int half = n_rot / 2;
    for (int i = (int)threadIdx.x; i < half; i += THREADS) {
        int i0 = interleaved ? 2 * i : i, i1 = interleaved ? i0 + 1 : i + half;
        float x0 = y[i0], x1 = y[i1], c = cs[i], s = cs[half + i];
        y[i0] = __fmaf_rn(x0, c, -(x1 * s));
        y[i1] = __fmaf_rn(x1, c, x0 * s);
    }
    __syncthreads();
}

/* Keys or values of one head into its area, whose half begins at `area`. Keys are written with zeros up to d_pad. */
static __device__ void page_write(void *area, int format, bool values, int key, int d, const float *y)
{
    int d_pad = (d + 63) / 64 * 64, elem = format == CK_KV_F32 ? 4 : 2;
    for (int i = (int)threadIdx.x; i < (values ? d : d_pad); i += THREADS) {
        float v = i < d ? y[i] : 0.0f;
        int at = values ? ck_v_off(key, i, elem) : ck_k_off(key, i, d_pad, elem);
        if (format == CK_KV_F32) ((float *)area)[at] = v;
        else if (format == CK_KV_F16) ((__half *)area)[at] = __float2half_rn(v);
        else ((__nv_bfloat16 *)area)[at] = __float2bfloat16_rn(v);
    }
    __syncthreads();
}

static __device__ void write_kv(const struct cs_rope &a, int token, int head, const float *cs, float *y, float *warps)
{
    int d = a.head_dim, index = a.index[token];
    size_t half = (size_t)64 * (size_t)((d + 63) / 64 * 64) * (a.kv_format == CK_KV_F32 ? 4 : 2);
    int32_t page = a.pages[a.table_of[token] + index / 64];
    uint8_t *area = (uint8_t *)a.pool + (size_t)page * 4096 + (size_t)a.head_off + (size_t)head * 2 * half;
    norm_head(a.k + (int64_t)token * a.ld_k + (int64_t)head * d, a.k_norm, a.k_norm != NULL, d, a.norm_eps, y, warps);
    if (cs) rotate(y, cs, a.n_rot, a.interleaved);
    page_write(area, a.kv_format, false, index % 64, d, y);
    norm_head(a.v + (int64_t)token * a.ld_v + (int64_t)head * d, NULL, a.v_norm, d, a.norm_eps, y, warps);
    page_write(area + half, a.kv_format, true, index % 64, d, y);
}

static __global__ void rope_kernel(struct cs_rope a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    __shared__ float y[DIM_MAX], warps[4];
    int token = (int)blockIdx.y, head = (int)blockIdx.x, d = a.head_dim;
    const float *cs = a.table ? a.table + (int64_t)token * a.n_rot : NULL;
    if (head >= a.n_head) {
        write_kv(a, token, head - a.n_head, cs, y, warps);
        return;
    }
    norm_head(a.q + (int64_t)token * a.ld_q + (int64_t)head * a.q_step, a.q_norm, a.q_norm != NULL, d, a.norm_eps, y, warps);
    if (cs) rotate(y, cs, a.n_rot, a.interleaved);
    float *out = a.out + (int64_t)token * a.ld_out + (int64_t)head * d;
    for (int i = (int)threadIdx.x; i < d; i += THREADS) out[i] = y[i] * a.q_scale;
}

extern "C" int cs_rope(const struct ck_ctx *c, const struct cs_rope *a, cudaStream_t st)
{
    if (a->head_dim > DIM_MAX) return (int)cudaErrorInvalidValue;
    return ck_launch(c, rope_kernel, dim3((unsigned)(a->n_head + (a->k ? a->n_head_kv : 0)), (unsigned)a->m), THREADS, 0, st, *a);
}
