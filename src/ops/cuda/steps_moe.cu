/* steps_moe.cu: mixtures of experts: the router's choice, the lists of who goes to which expert, the weighted sum. A token's experts
 * are added in rising id, whatever else is in the batch. Nothing comes back to the host: how many pieces there are is read where
 * they are used.
 */
#include "ops/cuda/kernels_experts.cuh"
#include "ops/cuda/steps.h"

#define COLUMNS 256
#define ROUTE_THREADS 128  /* warp 0 chooses; all make the lists of a small batch */
#define LIST_THREADS 1024
#define LIST_TOKENS 64     /* of a batch whose lists the last block of the router makes */
#define GATHER 32          /* pieces of 16 bytes of a row that a block brings */
#define ALL 0xffffffffu

/* --- the choice, by a warp --- */

/* Larger comes first, equal values have equal keys, a NaN is behind all numbers; 0 is for what has been taken. */
static __device__ uint32_t key_of(float x)
{
    uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f)); /* one zero */
    return isnan(x) ? 1u : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Takes the best top_k of the warp's keys, those of index lane + 32 j in each lane; the bits of a lane's are returned. Ties go to the lower
 * index. */
template <int PER> static __device__ uint32_t take_best(uint32_t (&key)[PER], int top_k, int lane)
{
    uint32_t taken = 0, best = 0, at = 0;
    auto look = [&]() {
        best = 0;
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (key[j] > best) {
                best = key[j];
                at = (uint32_t)(lane + 32 * j);
            }
    };
    look();
    for (int t = 0; t < top_k; t++) {
        const uint32_t top = __reduce_max_sync(ALL, best), id = __reduce_min_sync(ALL, best == top ? at : ALL);
        if ((int)(id & 31u) != lane) continue;
        taken |= 1u << (id >> 5);
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (j == (int)(id >> 5)) key[j] = 0;
        look();
    }
    __syncwarp();
    return taken;
}

/* In index order; x on 16 bytes. */
static __device__ float sum_of(const float *x, int n, float sum)
{
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        float4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = *(const float4 *)(x + i + 4 * k);
#pragma unroll
        for (int k = 0; k < 8; k++) sum = (((sum + v[k].x) + v[k].y) + v[k].z) + v[k].w;
    }
    for (; i < n; i++) sum = sum + x[i];
    return sum;
}

/* A warp's x (index lane + 32 j < n) becomes exp(x - max) / sum. A NaN anywhere makes all of it NaN. s: n floats, on 16 bytes. */
template <int PER> static __device__ void softmax(float (&x)[PER], int n, float *s, int lane)
{
    float max = -CUDART_INF_F;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (lane + 32 * j < n && x[j] > max) max = x[j];
    for (int k = 16; k > 0; k /= 2) {
        const float v = __shfl_xor_sync(ALL, max, k);
        if (v > max) max = v;
    }
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (lane + 32 * j < n) s[lane + 32 * j] = x[j] = d_exp(x[j] - max);
    __syncwarp();
    const float sum = sum_of(s, n, 0.0f);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < PER; j++) x[j] = x[j] / sum;
}

/* The values of a group's two best experts, summed. */
static __device__ float group_value(const float *y, int n)
{
    float best = -CUDART_INF_F, second = -CUDART_INF_F;
    for (int i = 0; i < n; i++) {
        if (y[i] > best) {
            second = best;
            best = y[i];
        } else if (y[i] > second) {
            second = y[i];
        }
    }
    return n > 1 ? best + second : best;
}

/* x becomes its sigmoid, y what is chosen by: with the bias, and -infinity where an expert's group is not among the best. s: n floats. */
template <int PER> static __device__ void sigmoid_choice(const struct cs_route &a, float (&x)[PER], float (&y)[PER], float *s, int lane)
{
    const int n = a.n_expert, each = n / a.n_group;
    uint32_t key[1] = { 0 }; /* groups: no more than lanes */
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int i = lane + 32 * j;
        if (i >= n) continue;
        x[j] = 1.0f / (1.0f + d_exp(-x[j]));
        s[i] = y[j] = a.choice_bias ? x[j] + a.choice_bias[i] : x[j];
    }
    __syncwarp();
    if (a.n_group == 1) return;
    if (lane < a.n_group) key[0] = key_of(group_value(s + lane * each, each));
    const uint32_t used = __ballot_sync(ALL, take_best<1>(key, a.n_group_used, lane) != 0);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int group = (lane + 32 * j) / each;
        if (group < a.n_group && !(used >> group & 1u)) y[j] = -CUDART_INF_F;
    }
    __syncwarp();
}

/* A token's row of a.out. PER: experts a lane. s: room for n_expert floats (rounded up to 4) and twice top_k. */
template <int PER> static __device__ void route_token(const struct cs_route &a, int token, float *s, int lane)
{
    const int n = a.n_expert, top_k = a.top_k;
    const bool sigmoid = a.kind == CS_ROUTE_SIGMOID;
    float x[PER], y[PER], *w = s + (n + 3) / 4 * 4, *out = a.out + (int64_t)token * a.ld_out;
    int *ids = (int *)(w + top_k), count = 0;
    uint32_t key[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) x[j] = lane + 32 * j < n ? a.in[(int64_t)token * a.ld_in + lane + 32 * j] : 0.0f;
    if (a.kind == CS_ROUTE_SOFTMAX_ALL) softmax<PER>(x, n, s, lane);
#pragma unroll
    for (int j = 0; j < PER; j++) y[j] = x[j];
    if (sigmoid) sigmoid_choice<PER>(a, x, y, s, lane);
#pragma unroll
    for (int j = 0; j < PER; j++) key[j] = lane + 32 * j < n ? key_of(y[j]) : 0;
    const uint32_t taken = take_best<PER>(key, top_k, lane);
#pragma unroll
    for (int j = 0; j < PER; j++) { /* rising */
        const uint32_t who = __ballot_sync(ALL, taken >> j & 1u);
        const int at = count + __popc(who & ((1u << lane) - 1u));
        if (taken >> j & 1u) {
            ids[at] = lane + 32 * j;
            w[at] = x[j];
        }
        count += __popc(who);
    }
    __syncwarp();
    float v[1] = { lane < top_k ? w[lane] : 0.0f };
    if (a.kind == CS_ROUTE_SOFTMAX_CHOSEN) softmax<1>(v, top_k, w, lane);
    if (a.normalise) {
        if (lane < top_k) w[lane] = v[0];
        __syncwarp();
        v[0] = v[0] / sum_of(w, top_k, sigmoid ? 1e-20f : 0.0f);
    }
    if (lane >= top_k) return;
    if (sigmoid) v[0] = v[0] * a.scale;
    if (a.expert_scale) v[0] = v[0] * a.expert_scale[ids[lane]];
    out[lane] = (float)ids[lane];
    out[top_k + lane] = v[0];
    if (a.list.most == 1) a.list.pieces[token * top_k + lane] = ck_piece{ ids[lane], token * top_k + lane, 1, 0 };
}

/* --- lists --- */

/* By a whole warp: one more of e (-1: none): how many were counted before. */
static __device__ int count_up(int *count, int e)
{
    const uint32_t same = __match_any_sync(ALL, e), before = same & ((1u << (threadIdx.x & 31)) - 1u);
    int base = 0;
    if (before == 0 && e >= 0) base = atomicAdd(&count[e], __popc(same));
    return __shfl_sync(ALL, base, __ffs((int)same) - 1) + __popc(before);
}

static __device__ int expert_of(const struct cs_route &a, int slot)
{
    return slot < a.m * a.top_k ? (int)__ldcg(a.out + (int64_t)(slot / a.top_k) * a.ld_out + slot % a.top_k) : -1;
}

/* By a warp: where each expert's slots begin takes the place of how many there are, and the pieces. */
static __device__ void list_pieces(const struct cs_route &a, int *count, int lane)
{
    int rows = 0, pieces = 0;
    for (int e0 = 0; e0 < a.n_expert; e0 += 32) {
        const int e = e0 + lane, n = e < a.n_expert ? count[e] : 0, n_piece = (n + a.list.most - 1) / a.list.most;
        int to = n, at = n_piece; /* sums up to this lane */
        for (int s = 1; s < 32; s *= 2) {
            const int v = __shfl_up_sync(ALL, to, s), p = __shfl_up_sync(ALL, at, s);
            if (lane >= s) {
                to += v;
                at += p;
            }
        }
        const int first = rows + to - n;
        for (int k = 0; k < n_piece; k++) {
            const int left = n - k * a.list.most;
            a.list.pieces[pieces + at - n_piece + k] = ck_piece{ e, first + k * a.list.most, left < a.list.most ? left : a.list.most, 0 };
        }
        if (e < a.n_expert) count[e] = first;
        rows += __shfl_sync(ALL, to, 31);
        pieces += __shfl_sync(ALL, at, 31);
    }
    if (lane == 0) *a.list.n_piece = pieces;
}

/* By a block: slots by expert. In an expert's own order no bit shows, so they come as they come. count: n_expert words of shared memory. */
static __device__ void list_slots(const struct cs_route &a, int *count)
{
    const int tid = (int)threadIdx.x, n_slot = a.m * a.top_k;
    for (int e = tid; e < a.n_expert; e += (int)blockDim.x) count[e] = 0;
    __syncthreads();
    for (int i0 = tid & ~31; i0 < n_slot; i0 += (int)blockDim.x) count_up(count, expert_of(a, i0 + (tid & 31)));
    __syncthreads();
    if (tid < 32) list_pieces(a, count, tid);
    __syncthreads();
    for (int i0 = tid & ~31; i0 < n_slot; i0 += (int)blockDim.x) {
        const int i = i0 + (tid & 31), at = count_up(count, expert_of(a, i));
        if (i < n_slot) a.list.slots[at] = i;
    }
}

/* A block is a token; the last one to end makes the lists of a small batch. */
template <int PER> static __global__ void __launch_bounds__(ROUTE_THREADS) route_kernel(struct cs_route a)
{
    extern __shared__ __align__(16) float room[];
    __shared__ int is_last;
    ck_pdl_launch();
    ck_pdl_wait();
    if (threadIdx.x < 32) route_token<PER>(a, (int)blockIdx.x, room, (int)threadIdx.x);
    if (a.list.most == 1 || a.m > LIST_TOKENS) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        is_last = atomicAdd(a.list.n_done, 1) == a.m - 1;
        if (is_last) *a.list.n_done = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    list_slots(a, (int *)room);
}

static __global__ void __launch_bounds__(LIST_THREADS) list_kernel(struct cs_route a)
{
    extern __shared__ __align__(16) float room[];
    ck_pdl_launch();
    ck_pdl_wait();
    list_slots(a, (int *)room);
}

template <int PER> static int launch_route(const struct ck_ctx *c, const struct cs_route *a, cudaStream_t st)
{
    const size_t words = (size_t)(a->n_expert + 3) / 4 * 4 + (size_t)a->top_k * 2;
    return ck_launch(c, route_kernel<PER>, dim3((unsigned)a->m), a->list.most == 1 || a->m > LIST_TOKENS ? 32 : ROUTE_THREADS, words * 4, st, *a);
}

extern "C" int cs_route(const struct ck_ctx *c, const struct cs_route *a, cudaStream_t st)
{
    const int per = (a->n_expert + 31) / 32;
    if (per > 32 || a->top_k > 32 || a->n_group > 32) return (int)cudaErrorInvalidValue;
    int e = per <= 4 ? launch_route<4>(c, a, st) : per <= 8 ? launch_route<8>(c, a, st) : per <= 16 ? launch_route<16>(c, a, st) : launch_route<32>(c, a, st);
    if (e || a->list.most == 1 || a->m <= LIST_TOKENS) return e;
    return ck_launch(c, list_kernel, dim3(1), LIST_THREADS, (size_t)a->n_expert * 4, st, *a);
}

/* --- rows and sums --- */

/* A thread is a column of a piece; 16 bytes of a row are 16 bytes of both layouts. */
static __global__ void gather_pieces_kernel(ck_x in, struct ck_expert_list list, int top_k, ck_x out)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const int i_piece = (int)blockIdx.x, col = (int)threadIdx.x % CK_PIECE_TILE, n = (int)(in.k_pad / 8), first = (int)blockIdx.y * GATHER;
    if (i_piece >= *list.n_piece || col >= list.pieces[i_piece].n) return;
    const int token = list.slots[list.pieces[i_piece].first + col] / top_k, stride = ck_piece_stride(list.pieces[i_piece].n);
    const uint4 *from = (const uint4 *)in.v + (int64_t)(token >> 7) * n * 128 + (token & 127);
    uint4 *to = (uint4 *)out.v + (int64_t)i_piece * n * CK_PIECE_TILE + col;
#pragma unroll 4
    for (int i = first + (int)threadIdx.x / CK_PIECE_TILE; i < n && i < first + GATHER; i += COLUMNS / CK_PIECE_TILE)
        to[i * stride] = from[(int64_t)i * 128];
}

extern "C" int cs_gather_pieces(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *in, const struct ck_x *out, cudaStream_t st)
{
    const int n_piece = e->m * e->top_k / CK_PIECE_TILE + e->n_expert;
    const dim3 grid((unsigned)n_piece, (unsigned)((in->k_pad / 8 + GATHER - 1) / GATHER));
    return ck_launch(c, gather_pieces_kernel, grid, COLUMNS, 0, st, *in, e->list, (int)e->top_k, *out);
}

static __global__ void experts_sum_kernel(struct ck_expert_sum a, const float *y, int64_t ld_y, int top_k, int width)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const int col = (int)(blockIdx.x * COLUMNS + threadIdx.x);
    const int64_t row = blockIdx.y;
    if (col >= width) return;
    const float *w = a.route + row * a.ld_route + top_k;
    float acc = 0.0f;
#pragma unroll 4
    for (int j = 0; j < top_k; j++) acc = acc + w[j] * y[(row * top_k + j) * ld_y + col];
    ck_expert_sum_out(a, row, col, acc, a.add ? a.out[row * a.ld_out + col] : 0.0f);
}

extern "C" int cs_experts_sum(const struct ck_ctx *c, const struct ck_expert_sum *a, const float *y, int64_t ld_y, int32_t m, int32_t top_k, int32_t width,
                              cudaStream_t st)
{
    return ck_launch(c, experts_sum_kernel, dim3((unsigned)((width + COLUMNS - 1) / COLUMNS), (unsigned)m), COLUMNS, 0, st, *a, y, ld_y, (int)top_k, (int)width);
}
