/* steps_rope.cu: a warp is one head of one token: query heads to q', then keys and values into the page that holds their
 * index. A row that writes has its pages (batch.c has looked). Everything is on its way before the first of it is needed.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/steps.h"
#include "ops/cuda/steps_dev.cuh"

#define HEADS 8
#define DIM_MAX 1024
#define KEEP 8 /* values of a lane that wait in registers: 256 of a head; a longer one's others are read where they are needed */

struct head_values { float v[KEEP]; };
static __device__ __forceinline__ struct head_values load_head(const float *x, int d, int lane)
{
    struct head_values h;
#pragma unroll
    for (int j = 0; j < KEEP; j++) h.v[j] = 32 * j + lane < d ? x[32 * j + lane] : 0.0f;
    return h;
}

/* y = x, normalised where asked. The sum of squares is that of 128 threads, folded warp by warp, then four warps in order. */
static __device__ __forceinline__ void norm_head(const struct head_values &h, const float *x, const float *weight, bool norm, int d, float eps, float *y, int lane)
{
    float r = 1.0f;
    if (norm) {
        float ss[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            ss[w] = __fmaf_rn(h.v[w + 4], h.v[w + 4], __fmaf_rn(h.v[w], h.v[w], 0.0f));
            for (int i = (KEEP + w) * 32 + lane; i < d; i += 128) ss[w] = __fmaf_rn(x[i], x[i], ss[w]);
            for (int step = 16; step > 0; step /= 2) ss[w] = ss[w] + __shfl_xor_sync(0xffffffffu, ss[w], step);
        }
        r = 1.0f / sqrtf((((ss[0] + ss[1]) + ss[2]) + ss[3]) * (1.0f / (float)d) + eps);
    }
    auto put = [&](int i, float v) {
        if (norm) v = v * r;
        y[i] = norm && weight ? v * weight[i] : v;
    };
#pragma unroll
    for (int j = 0; j < KEEP; j++)
        if (32 * j + lane < d) put(32 * j + lane, h.v[j]);
    for (int i = KEEP * 32 + lane; i < d; i += 32) put(i, x[i]);
    __syncwarp();
}

/* A token's cosines and sines, as far as they wait in registers. */
struct turn {
    const float *cs; /* NULL: no rotation */
    float c[KEEP / 2], s[KEEP / 2];
};
static __device__ __forceinline__ struct turn load_turn(const float *cs, int n_rot, int lane)
{
    struct turn t = { cs, {}, {} };
    const int half = n_rot / 2;
    if (cs)
#pragma unroll
        for (int j = 0; j < KEEP / 2; j++) {
            int i = 32 * j + lane;
            if (i < half) t.c[j] = cs[i], t.s[j] = cs[half + i];
        }
    return t;
}

static __device__ __forceinline__ void rotate(float *y, const struct turn &t, int n_rot, bool interleaved, int lane)
{
    const int half = n_rot / 2;
    auto pair = [&](int i, float c, float s) {
        int i0 = interleaved ? 2 * i : i, i1 = interleaved ? i0 + 1 : i + half;
        cs_turn(i0, i1, y[i0], y[i1], c, s, [&](int at, float v) { y[at] = v; });
    };
    if (!t.cs) return;
#pragma unroll
    for (int j = 0; j < KEEP / 2; j++)
        if (32 * j + lane < half) pair(32 * j + lane, t.c[j], t.s[j]);
    for (int i = KEEP / 2 * 32 + lane; i < half; i += 32) pair(i, t.cs[i], t.cs[half + i]);
    __syncwarp();
}

/* Keys or values of one head into its area, whose half begins at `area`. Keys are written with zeros up to d_pad. */
static __device__ __forceinline__ void page_write(void *area, int format, bool values, int key, int d, const float *y, int lane)
{
    int d_pad = (d + 63) / 64 * 64, elem = format == CK_KV_F32 ? 4 : 2;
    for (int i = lane; i < (values ? d : d_pad); i += 32) {
        float v = i < d ? y[i] : 0.0f;
        int at = values ? ck_v_off(key, i, elem) : ck_k_off(key, i, d_pad, elem);
        if (format == CK_KV_F32) ((float *)area)[at] = v;
        else if (format == CK_KV_F16) ((__half *)area)[at] = __float2half_rn(v);
        else ((__nv_bfloat16 *)area)[at] = __float2bfloat16_rn(v);
    }
    __syncwarp();
}

static __device__ __forceinline__ void write_kv(const struct cs_rope &a, int token, int head, const struct turn &t, float *y, int lane)
{
    const int d = a.head_dim, index = a.index[token];
    const float *k = a.k + (int64_t)token * a.ld_k + (int64_t)head * d, *v = a.v + (int64_t)token * a.ld_v + (int64_t)head * d;
    const struct head_values hk = load_head(k, d, lane), hv = load_head(v, d, lane);
    size_t half = (size_t)64 * (size_t)((d + 63) / 64 * 64) * (a.kv_format == CK_KV_F32 ? 4 : 2);
    int32_t page = a.pages[a.table_of[token] + index / 64];
    uint8_t *area = (uint8_t *)a.pool + (size_t)page * 4096 + (size_t)a.head_off + (size_t)head * 2 * half;
    norm_head(hk, k, a.k_norm, a.k_norm != NULL, d, a.norm_eps, y, lane);
    rotate(y, t, a.n_rot, a.interleaved, lane);
    page_write(area, a.kv_format, false, index % 64, d, y, lane);
    norm_head(hv, v, NULL, a.v_norm, d, a.norm_eps, y, lane);
    page_write(area + half, a.kv_format, true, index % 64, d, y, lane);
}

static __global__ void __launch_bounds__(HEADS * 32) rope_kernel(const __grid_constant__ struct cs_rope a)
{
    extern __shared__ float rows[]; /* [HEADS][head_dim] */
    ck_pdl_launch();
    ck_pdl_wait();
    const int token = (int)blockIdx.y, warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31, head = (int)blockIdx.x * HEADS + warp, d = a.head_dim;
    float *y = rows + warp * d;
    const struct turn t = load_turn(a.table ? a.table + (int64_t)token * a.n_rot : NULL, a.n_rot, lane);
    if (head >= a.n_head) {
        if (a.k && head < a.n_head + a.n_head_kv) write_kv(a, token, head - a.n_head, t, y, lane);
        return;
    }
    const float *q = a.q + (int64_t)token * a.ld_q + (int64_t)head * a.q_step;
    norm_head(load_head(q, d, lane), q, a.q_norm, a.q_norm != NULL, d, a.norm_eps, y, lane);
    rotate(y, t, a.n_rot, a.interleaved, lane);
    float *out = a.out + (int64_t)token * a.ld_out + (int64_t)head * d;
    const float scale = a.q_more ? a.q_scale * a.q_more[token] : a.q_scale;
    for (int i = lane; i < d; i += 32) out[i] = y[i] * scale;
}

extern "C" int cs_rope(const struct ck_ctx *c, const struct cs_rope *a, cudaStream_t st)
{
    if (a->head_dim > DIM_MAX) return (int)cudaErrorInvalidValue;
    int heads = a->n_head + (a->k ? a->n_head_kv : 0);
    return ck_launch(c, rope_kernel, dim3((unsigned)((heads + HEADS - 1) / HEADS), (unsigned)a->m), HEADS * 32, (size_t)HEADS * (size_t)a->head_dim * sizeof(float), st, *a);
}
