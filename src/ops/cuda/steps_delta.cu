/* steps_delta.cu: the gated delta net. A block is one value head of one row of the batch: its state lies in shared memory while
 * the row's tokens go by in order, a thread has one column of it. The convolution and the norms of q and k are computed again
 * for every value head of a key head. A second kernel keeps the last inputs of the convolution, when all heads have read the old.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/mathfn.cuh"
#include "ops/cuda/steps.h"
#include "ops/cuda/steps_dev.cuh"

#define DIM_MAX 256

struct delta_shared {
    float q[DIM_MAX], k[DIM_MAX], x[DIM_MAX], warps[DIM_MAX / 32], g, beta;
};

static __device__ float chains(const float c[4]) { return (c[0] + c[1]) + (c[2] + c[3]); }

static __device__ int64_t channels_of(const struct cs_delta &a)
{
    return 2 * (int64_t)a.n_head_k * a.dim_k + (int64_t)a.n_head_v * a.dim_v;
}

static __device__ float *state_of(const struct cs_delta &a, const cs_row &row)
{
    return (float *)((uint8_t *)a.pool + (size_t)row.state_page * 4096 + (size_t)a.state_off);
}

/* Channel `channel` of the row's token j; from: its column of the projection, of token 0 of the batch. */
static __device__ float convolve(const struct cs_delta &a, const cs_row &row, const float *tail, int64_t channel, const float *from,
                                 int64_t ld, int j)
{
    int64_t n_channels = channels_of(a);
    float c[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int i = 0; i < a.n_conv; i++) {
        int back = a.n_conv - 1 - i, index = row.i_first + j - back;
        if (index < 0) continue;
        float x = back <= j ? from[(int64_t)(row.token0 + j - back) * ld] : tail[(int64_t)(index % (a.n_conv - 1)) * n_channels + channel];
        c[i % 4] = __fmaf_rn(a.conv[i * n_channels + channel], x, c[i % 4]);
    }
    return d_silu(chains(c));
}

/* y / its length, times c. */
static __device__ void unit(float *y, int d, float eps, float c, float *warps)
{
    int t = (int)threadIdx.x;
    float v = t < d ? y[t] : 0.0f;
    float r = 1.0f / sqrtf(cs_block_sum(v * v, warps) * (1.0f / (float)d) + eps);
    if (t < d) y[t] = (v * r) * c;
    __syncthreads();
}

static __device__ float softplus(float x)
{
    float u = d_exp(x > 0 ? -x : x), w = 1.0f + u;
    float l = w == 1.0f ? u : u * (d_log(w) / (w - 1.0f));
    return x > 0 ? x + l : l;
}

/* q, k, x and the gates of token j. */
static __device__ void load_token(const struct cs_delta &a, const cs_row &row, const float *tail, int hk, int iv, int j, delta_shared &s)
{
    int t = (int)threadIdx.x, head = hk * (a.n_head_v / a.n_head_k) + iv;
    int64_t nk = a.n_head_k, dk = a.dim_k, dv = a.dim_v, token = row.token0 + j;
    __syncthreads(); /* the token before is done */
    if (t < dk) {
        s.q[t] = convolve(a, row, tail, hk * dk + t, a.q.v + hk * a.q.step + t, a.q.ld, j);
        s.k[t] = convolve(a, row, tail, (nk + hk) * dk + t, a.k.v + hk * a.k.step + t, a.k.ld, j);
    }
    if (t < dv) s.x[t] = convolve(a, row, tail, 2 * nk * dk + head * dv + t, a.x.v + hk * a.x.step + iv * dv + t, a.x.ld, j);
    if (t == 0) {
        float ga = a.a.v[token * a.a.ld + hk * a.a.step + iv], gb = a.b.v[token * a.b.ld + hk * a.b.step + iv];
        s.g = d_exp(-(a.decay[head] * softplus(ga + a.dt_bias[head])));
        s.beta = 1.0f / (1.0f + d_exp(-gb));
    }
    __syncthreads();
    unit(s.q, a.dim_k, a.qk_eps, 1.0f / (float)a.dim_k, s.warps);
    unit(s.k, a.dim_k, a.qk_eps, 1.0f / sqrtf((float)a.dim_k), s.warps);
}

/* Column v of the state takes in the token; returns o[v]. */
static __device__ float step_column(const struct cs_delta &a, const delta_shared &s, float *column)
{
    float m[4] = { 0.0f, 0.0f, 0.0f, 0.0f }, o[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (int k = 0; k < a.dim_k; k++) m[k % 4] = __fmaf_rn(column[k * a.dim_v] * s.g, s.k[k], m[k % 4]);
    float d = (s.x[threadIdx.x] - chains(m)) * s.beta;
    for (int k = 0; k < a.dim_k; k++) {
        float v = __fmaf_rn(s.k[k], d, column[k * a.dim_v] * s.g);
        column[k * a.dim_v] = v;
        o[k % 4] = __fmaf_rn(v, s.q[k], o[k % 4]);
    }
    return chains(o);
}

static __global__ void delta_kernel(struct cs_delta a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    extern __shared__ float state[];
    __shared__ delta_shared s;
    const cs_row row = a.rows[blockIdx.y];
    int group = a.n_head_v / a.n_head_k, head = (int)blockIdx.x, hk = head / group, iv = head % group, t = (int)threadIdx.x;
    int n_state = a.dim_k * a.dim_v;
    float *kept = state_of(a, row) + (int64_t)head * n_state;
    const float *tail = state_of(a, row) + (int64_t)a.n_head_v * n_state;
    for (int i = t; i < n_state; i += (int)blockDim.x) state[i] = row.i_first == 0 ? 0.0f : kept[i];
    for (int j = 0; j < row.n; j++) {
        int64_t token = row.token0 + j;
        load_token(a, row, tail, hk, iv, j, s);
        float o = t < a.dim_v ? step_column(a, s, state + t) : 0.0f;
        float r = 1.0f / sqrtf(cs_block_sum(o * o, s.warps) * (1.0f / (float)a.dim_v) + a.norm_eps);
        if (t >= a.dim_v) continue;
        float z = a.z.v[token * a.z.ld + hk * a.z.step + (int64_t)iv * a.dim_v + t];
        a.out[token * a.ld_out + (int64_t)head * a.dim_v + t] = d_silu(z) * ((o * r) * a.norm[t]);
    }
    __syncthreads();
    for (int i = t; i < n_state; i += (int)blockDim.x) kept[i] = state[i];
}

/* The last n_conv - 1 inputs of every channel, index i at row i mod (n_conv - 1). A block: 256 channels of a row. */
static __global__ void tail_kernel(struct cs_delta a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const cs_row row = a.rows[blockIdx.y];
    int64_t c = (int64_t)blockIdx.x * 256 + threadIdx.x, n = channels_of(a), qs = (int64_t)a.n_head_k * a.dim_k;
    int keep = a.n_conv - 1, group_v = a.n_head_v / a.n_head_k * a.dim_v;
    if (c >= n) return;
    float *tail = state_of(a, row) + (int64_t)a.n_head_v * a.dim_k * a.dim_v;
    const cs_delta_part p = c < qs ? a.q : c < 2 * qs ? a.k : a.x;
    int64_t at = c < qs ? c : c < 2 * qs ? c - qs : c - 2 * qs, per = c < 2 * qs ? a.dim_k : group_v;
    const float *from = p.v + at / per * p.step + at % per;
    for (int j = row.n > keep ? row.n - keep : 0; j < row.n; j++)
        tail[(int64_t)((row.i_first + j) % keep) * n + c] = from[(int64_t)(row.token0 + j) * p.ld];
}

extern "C" int cs_delta(const struct ck_ctx *c, const struct cs_delta *a, cudaStream_t st)
{
    int most = a->dim_k > a->dim_v ? a->dim_k : a->dim_v;
    size_t bytes = (size_t)a->dim_k * (size_t)a->dim_v * sizeof(float);
    int64_t n_channels = 2 * (int64_t)a->n_head_k * a->dim_k + (int64_t)a->n_head_v * a->dim_v;
    if (most > DIM_MAX) return (int)cudaErrorInvalidValue;
    int e = ck_launch(c, delta_kernel, dim3((unsigned)a->n_head_v, (unsigned)a->n_rows), (most + 31) / 32 * 32, bytes, st, *a);
    return e != 0 || a->n_conv < 2 ? e : ck_launch(c, tail_kernel, dim3((unsigned)((n_channels + 255) / 256), (unsigned)a->n_rows), 256, 0, st, *a);
}
