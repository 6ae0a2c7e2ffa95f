/* steps_rows.cu: the steps that work row by row: norms, gated activations, the gate of attention, rows gathered, the end of
 * a linear whose product lies in scratch. A sum of squares goes over the threads of one block, whose number is a function of
 * the vector's length; threads fold by halves, then warps in order.
 */
#include "ops/cuda/kernels_norm.cuh"
#include "ops/cuda/steps.h"
#include "ops/cuda/steps_dev.cuh"

static __device__ __forceinline__ void x_put(const ck_x &x, float inv_mul, int token, int64_t k, float v)
{
    ((__half *)x.v)[ck_x_off(x.layout, x.k_pad, token, (int)k)] = __float2half_rn(v * inv_mul);
}

static ck_x x_or_none(const struct ck_x *x)
{
    ck_x none = {};
    return x ? *x : none;
}

#define KEEP 8 /* values of a thread that stay in registers */

/* CENTRED: a layer norm, about the mean and with a bias. */
template <bool CENTRED> static __global__ void norm_kernel(struct cs_norm a, ck_x x)
{
    __shared__ float warps[32];
    const int row = (int)blockIdx.x, n = a.width / a.n_pieces, first = (int)blockIdx.y * n, tid = (int)threadIdx.x, by = (int)blockDim.x;
    const float *in = a.in + (int64_t)row * a.ld_in + first;
    float r = 1.0f, mean = 0.0f, inv_mul = x.v ? 1.0f / x.mul : 1.0f, v[KEEP], weight[KEEP];
    ck_pdl_launch();
#pragma unroll
    for (int j = 0; j < KEEP; j++) weight[j] = a.weight && tid + j * by < n ? a.weight[tid + j * by] : 1.0f;
    ck_pdl_wait();
#pragma unroll
    for (int j = 0; j < KEEP; j++) v[j] = tid + j * by < n ? in[tid + j * by] : 0.0f;
    if (CENTRED) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KEEP; j++) sum = sum + v[j];
        for (int i = tid + KEEP * by; i < n; i += by) sum = sum + in[i];
        mean = cs_block_sum(sum, warps) * (1.0f / (float)n);
    }
    if (!a.identity) {
        float ss = 0.0f;
        auto square = [&](float y) {
            if (CENTRED) y = y - mean;
            ss = __fmaf_rn(y, y, ss);
        };
#pragma unroll
        for (int j = 0; j < KEEP; j++)
            if (!CENTRED || tid + j * by < n) square(v[j]); /* 0 beyond the row */
        for (int i = tid + KEEP * by; i < n; i += by) square(in[i]);
        ss = cs_block_sum(ss, warps);
        r = 1.0f / sqrtf(ss * (1.0f / (float)n) + a.eps);
    }
    /* A step of the threads is whole tiles of an input, so that its places are a step apart too. */
    __half *const x_at = x.v ? (__half *)x.v + ck_x_off(x.layout, x.k_pad, row, first + tid) : NULL;
    const int64_t x_by = x.layout == CK_X_TILES ? by / 64 * (64 * 128) : by;
    auto put = [&](int i, int j, float y, float g) {
        if (!a.identity) {
            if (CENTRED) y = y - mean;
            y = y * r;
            if (a.weight) y = y * g;
            if (CENTRED) y = y + a.bias[i];
        }
        if (a.add_to) {
            float *to = a.add_to + (int64_t)row * a.ld_add + first + i;
            float sum = *to + y;
            *to = a.sum_scale != 0 ? sum * a.sum_scale : sum;
        }
        if (a.out) a.out[(int64_t)row * a.ld_out + first + i] = y;
        if (a.copy) a.copy[(int64_t)row * a.ld_copy + first + i] = y;
        if (x.v) x_at[j * x_by] = __float2half_rn(y * inv_mul);
    };
#pragma unroll
    for (int j = 0; j < KEEP; j++)
        if (tid + j * by < n) put(tid + j * by, j, v[j], weight[j]);
    for (int i = tid + KEEP * by, j = KEEP; i < n; i += by, j++) put(i, j, in[i], a.weight ? a.weight[i] : 1.0f);
    if (x.v && blockIdx.y == gridDim.y - 1)
        for (int64_t k = a.width + tid; k < x.k_pad; k += by) x_put(x, inv_mul, row, k, 0.0f);
}

/* A norm that only becomes a linear input, as most do. */
static __global__ void __launch_bounds__(256) norm_input_kernel(const __grid_constant__ struct cs_norm a, const __grid_constant__ ck_x x)
{
    __shared__ float warps[16];
    const int row = (int)blockIdx.x, n = a.width, t = (int)threadIdx.x;
    const float inv_mul = 1.0f / x.mul;
    struct ck_norm_row weight, v;
    ck_pdl_launch();
    if (a.weight) weight.load(a.weight, n, t, 1.0f);
    ck_pdl_wait();
    v.load(a.in + (int64_t)row * a.ld_in, n, t, 0.0f);
    const float r = v.factor(n, a.eps, t, warps, [] { __syncthreads(); });
    v.out(n, t, r, a.identity != 0, weight, a.weight != NULL, inv_mul,
          [&](int k, __half2 y) { *(__half2 *)((__half *)x.v + ck_x_off(x.layout, x.k_pad, row, k)) = y; });
    for (int64_t k = n + t; k < x.k_pad; k += 256) x_put(x, inv_mul, row, k, 0.0f);
}

extern "C" int cs_norm(const struct ck_ctx *c, const struct cs_norm *a, cudaStream_t st)
{
    int n = a->width / a->n_pieces;
    if (a->x && a->n_pieces == 1 && !a->bias && !a->add_to && !a->out && !a->copy && ck_norm_pairs(a->in, a->ld_in, a->weight, n))
        return ck_launch(c, norm_input_kernel, dim3((unsigned)a->m), 256, 0, st, *a, *a->x);
    return ck_launch(c, a->bias ? norm_kernel<true> : norm_kernel<false>, dim3((unsigned)a->m, (unsigned)a->n_pieces), (int)(n >= 1024 ? 512 : 128), 0, st, *a,
                     x_or_none(a->x));
}

#define COLUMNS 256

static __global__ void glu_kernel(struct cs_glu a, ck_x x)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int row = (int)blockIdx.y;
    int64_t i = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    float y = 0.0f;
    if (i < a.width) {
        y = ck_glu(a.kind, a.gate[(int64_t)row * a.ld_gate + i], a.up ? a.up[(int64_t)row * a.ld_up + i] : 1.0f);
        if (a.out) a.out[(int64_t)row * a.ld_out + i] = y;
    }
    if (x.v && i < x.k_pad) x_put(x, 1.0f / x.mul, row, i, y);
}

static unsigned column_blocks(int64_t width, const struct ck_x *x)
{
    int64_t n = x && x->k_pad > width ? x->k_pad : width;
    return (unsigned)((n + COLUMNS - 1) / COLUMNS);
}

extern "C" int cs_glu(const struct ck_ctx *c, const struct cs_glu *a, cudaStream_t st)
{
    return ck_launch(c, glu_kernel, dim3(column_blocks(a->width, a->x), (unsigned)a->m), COLUMNS, 0, st, *a, x_or_none(a->x));
}

static __global__ void gate_kernel(struct cs_gate a, ck_x x)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const float log2e = 1.44269504088896341f;
    int row = (int)blockIdx.y;
    int64_t i = (int64_t)blockIdx.x * COLUMNS + threadIdx.x, width = (int64_t)a.n_head * a.head_dim;
    float y = 0.0f;
    if (i < width) {
        int64_t h = i / a.head_dim;
        float g = a.gate[(int64_t)row * a.ld_gate + a.gate_first + h * a.gate_step + i % a.head_dim];
        y = a.out[(int64_t)row * a.ld_out + i] / (1.0f + ck_exp2(g * -log2e));
        a.out[(int64_t)row * a.ld_out + i] = y;
    }
    if (x.v && i < x.k_pad) x_put(x, 1.0f / x.mul, row, i, y);
}

extern "C" int cs_gate(const struct ck_ctx *c, const struct cs_gate *a, cudaStream_t st)
{
    int64_t width = (int64_t)a->n_head * a->head_dim;
    return ck_launch(c, gate_kernel, dim3(column_blocks(width, a->x), (unsigned)a->m), COLUMNS, 0, st, *a, x_or_none(a->x));
}

static __global__ void gather_rows_kernel(const float *in, int64_t ld_in, const int32_t *rows, int32_t width, float *out, int64_t ld_out)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const float *from = in + (int64_t)rows[blockIdx.y] * ld_in;
    int64_t i = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    if (i < width) out[(int64_t)blockIdx.y * ld_out + i] = from[i];
}

extern "C" int cs_gather_rows(const struct ck_ctx *c, const float *in, int64_t ld_in, const int32_t *rows, int32_t n, int32_t width, float *out,
                              int64_t ld_out, cudaStream_t st)
{
    return ck_launch(c, gather_rows_kernel, dim3(column_blocks(width, NULL), (unsigned)n), COLUMNS, 0, st, in, ld_in, rows, width, out, ld_out);
}

static __global__ void fetch_kernel(uint4 *dst, const uint4 *src, int n)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) dst[i] = __ldcv(src + i);
}

extern "C" int cs_fetch(const struct ck_ctx *c, void *dst, const void *src, size_t bytes, cudaStream_t st)
{
    const int n = (int)((bytes + 15) / 16);
    return n == 0 ? 0 : ck_launch(c, fetch_kernel, dim3((unsigned)(n + 127) / 128), 128, 0, st, (uint4 *)dst, (const uint4 *)src, n);
}

static __global__ void finish_kernel(const float *y, int64_t ld_y, int64_t n, float scale, float softcap, float *out, int64_t ld_out, int add)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int64_t i = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    if (i >= n) return;
    float v = y[(int64_t)blockIdx.y * ld_y + i], *to = out + (int64_t)blockIdx.y * ld_out + i;
    if (scale != 0.0f) v = v * scale;
    if (softcap != 0.0f) v = softcap * ck_tanh(v / softcap);
    *to = add ? *to + v : v;
}

extern "C" int cs_linear_finish(const struct ck_ctx *c, const float *y, int64_t ld_y, int32_t m, int64_t n, float scale, float softcap, float *out,
                                int64_t ld_out, int add, cudaStream_t st)
{
    return ck_launch(c, finish_kernel, dim3(column_blocks(n, NULL), (unsigned)m), COLUMNS, 0, st, y, ld_y, n, scale, softcap, out, ld_out, add);
}
