/* steps_moe.cu: mixtures of experts: the router's choice, rows for one expert, the weighted sum. A token's experts are added in
 * rising id, whatever else is in the batch.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/mathfn.cuh"
#include "ops/cuda/steps.h"

#define COLUMNS 256
#define ROUTE_THREADS 32

/* Is expert a before b, a the higher id? Ties go to the lower id; a NaN is behind all numbers. */
static __device__ bool before(const float *x, int a, int b)
{
    return x[a] > x[b] || (isnan(x[b]) && !isnan(x[a]));
}

static __device__ void pick(const float *x, int n, int top_k, float *ids)
{
    for (int i = 0; i < n; i++) {
        int t = i < top_k ? i : top_k;
        if (t == top_k && !before(x, i, (int)ids[--t])) continue;
        for (; t > 0 && before(x, i, (int)ids[t - 1]); t--) ids[t] = ids[t - 1];
        ids[t] = (float)i;
    }
    for (int j = 1; j < top_k; j++) {
        float id = ids[j];
        int t = j;
        for (; t > 0 && ids[t - 1] > id; t--) ids[t] = ids[t - 1];
        ids[t] = id;
    }
}

static __device__ void softmax(float *x, int n)
{
    float max = x[0], sum = 0.0f;
    for (int i = 1; i < n; i++)
        if (x[i] > max) max = x[i];
    for (int i = 0; i < n; i++) {
        x[i] = d_exp(x[i] - max);
        sum = sum + x[i];
    }
    for (int i = 0; i < n; i++) x[i] = x[i] / sum;
}

/* A thread is a token. */
static __global__ void route_kernel(struct cs_route a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int i = (int)(blockIdx.x * ROUTE_THREADS + threadIdx.x);
    if (i >= a.m) return;
    float *x = a.in + (int64_t)i * a.ld_in, *ids = a.out + (int64_t)i * a.ld_out, *w = ids + a.top_k, sum = 0.0f;
    if (!a.softmax_chosen) softmax(x, a.n_expert);
    pick(x, a.n_expert, a.top_k, ids);
    for (int j = 0; j < a.top_k; j++) w[j] = x[(int)ids[j]];
    if (a.softmax_chosen) softmax(w, a.top_k);
    for (int j = 0; a.normalise && j < a.top_k; j++) sum = sum + w[j];
    for (int j = 0; a.normalise && j < a.top_k; j++) w[j] = w[j] / sum;
    for (int j = 0; a.expert_scale && j < a.top_k; j++) w[j] = w[j] * a.expert_scale[(int)ids[j]];
}

extern "C" int cs_route(const struct ck_ctx *c, const struct cs_route *a, cudaStream_t st)
{
    return ck_launch(c, route_kernel, dim3((unsigned)((a->m + ROUTE_THREADS - 1) / ROUTE_THREADS)), ROUTE_THREADS, 0, st, *a);
}

static __global__ void gather_input_kernel(ck_x in, const int32_t *slots, int per, ck_x out)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int64_t k = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    int i = (int)blockIdx.y, from = slots[i] / per;
    if (k < out.k_pad)
        ((__half *)out.v)[ck_x_off(out.layout, out.k_pad, i, (int)k)] = ((const __half *)in.v)[ck_x_off(in.layout, in.k_pad, from, (int)k)];
}

extern "C" int cs_gather_input(const struct ck_ctx *c, const struct ck_x *in, const int32_t *slots, int32_t per, int32_t n, const struct ck_x *out,
                               cudaStream_t st)
{
    return ck_launch(c, gather_input_kernel, dim3((unsigned)((out->k_pad + COLUMNS - 1) / COLUMNS), (unsigned)n), COLUMNS, 0, st, *in, slots, per, *out);
}

static __global__ void expert_add_kernel(const float *y, int64_t ld_y, const int32_t *slots, const float *route, int64_t ld_route, int top_k,
                                         int width, float *acc, int64_t ld_acc)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int col = (int)(blockIdx.x * COLUMNS + threadIdx.x), slot = slots[blockIdx.y], token = slot / top_k;
    if (col >= width) return;
    float w = route[(int64_t)token * ld_route + top_k + slot % top_k], *to = acc + (int64_t)token * ld_acc + col;
    *to = *to + w * y[(int64_t)blockIdx.y * ld_y + col];
}

extern "C" int cs_expert_add(const struct ck_ctx *c, const float *y, int64_t ld_y, const int32_t *slots, int32_t n, const float *route, int64_t ld_route,
                             int32_t top_k, int32_t width, float *acc, int64_t ld_acc, cudaStream_t st)
{
    return ck_launch(c, expert_add_kernel, dim3((unsigned)((width + COLUMNS - 1) / COLUMNS), (unsigned)n), COLUMNS, 0, st, y, ld_y, slots, route, ld_route, top_k, width, acc, ld_acc);
}

static __global__ void experts_finish_kernel(const float *acc, int64_t ld_acc, int width, const float *shared, int64_t ld_shared,
                                             const float *gate, int64_t ld_gate, float *out, int64_t ld_out, int add)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int col = (int)(blockIdx.x * COLUMNS + threadIdx.x);
    int64_t row = blockIdx.y;
    if (col >= width) return;
    float v = acc[row * ld_acc + col], *to = out + row * ld_out + col;
    if (shared) v = v + shared[row * ld_shared + col] * (1.0f / (1.0f + d_exp(-gate[row * ld_gate])));
    *to = add ? *to + v : v;
}

extern "C" int cs_experts_finish(const struct ck_ctx *c, float *acc, int64_t ld_acc, int32_t m, int32_t width, const float *shared, int64_t ld_shared,
                                 const float *gate, int64_t ld_gate, float *out, int64_t ld_out, int add, cudaStream_t st)
{
    return ck_launch(c, experts_finish_kernel, dim3((unsigned)((width + COLUMNS - 1) / COLUMNS), (unsigned)m), COLUMNS, 0, st, acc, ld_acc, width, shared, ld_shared, gate, ld_gate, out, ld_out, add);
}
