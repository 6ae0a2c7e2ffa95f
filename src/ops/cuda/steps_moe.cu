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

/* Takes the best top_k of n: their keys become 0. Ties go to the lower id. */
static __device__ void take_best(uint32_t *key, int n, int top_k, int lane)
{
    uint32_t best = 0, at = 0;
    auto look = [&]() {
        best = 0;
        for (int i = lane; i < n; i += 32)
            if (key[i] > best) {
                best = key[i];
                at = (uint32_t)i;
            }
    };
    look();
    for (int j = 0; j < top_k; j++) {
        const uint32_t top = __reduce_max_sync(ALL, best), id = __reduce_min_sync(ALL, best == top ? at : ALL);
        if ((int)(id & 31u) != lane || id >= (uint32_t)n) continue;
        key[id] = 0;
        look();
    }
    __syncwarp();
}

/* Ids of what was taken, rising. */
static __device__ void taken_ids(const uint32_t *key, int n, int *ids, int lane)
{
    int count = 0;
    for (int i0 = 0; i0 < n; i0 += 32) {
        const bool is = i0 + lane < n && key[i0 + lane] == 0;
        const uint32_t who = __ballot_sync(ALL, is);
        if (is) ids[count + __popc(who & ((1u << lane) - 1u))] = i0 + lane;
        count += __popc(who);
    }
    __syncwarp();
}

/* In index order. */
static __device__ float sum_of(const float *x, int n, float sum)
{
#pragma unroll 8
    for (int i = 0; i < n; i++) sum = sum + x[i];
    return sum;
}

/* x becomes exp(x - max) / sum. A NaN anywhere makes all of it NaN. */
static __device__ void softmax(float *x, int n, int lane)
{
    float max = -CUDART_INF_F;
    for (int i = lane; i < n; i += 32)
        if (x[i] > max) max = x[i];
    for (int s = 16; s > 0; s /= 2) {
        const float v = __shfl_xor_sync(ALL, max, s);
        if (v > max) max = v;
    }
    for (int i = lane; i < n; i += 32) x[i] = d_exp(x[i] - max);
    __syncwarp();
    const float sum = sum_of(x, n, 0.0f);
    __syncwarp();
    for (int i = lane; i < n; i += 32) x[i] = x[i] / sum;
    __syncwarp();
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

/* x becomes its sigmoid, y what is chosen by: with the bias, and -infinity where an expert's group is not among the best. */
static __device__ void sigmoid_choice(const struct cs_route &a, float *x, float *y, uint32_t *key, int lane)
{
    const int n = a.n_expert, each = n / a.n_group;
    for (int i = lane; i < n; i += 32) {
        x[i] = 1.0f / (1.0f + d_exp(-x[i]));
        y[i] = a.choice_bias ? x[i] + a.choice_bias[i] : x[i];
    }
    __syncwarp();
    if (a.n_group == 1) return;
    for (int g = lane; g < a.n_group; g += 32) key[g] = key_of(group_value(y + g * each, each));
    __syncwarp();
    take_best(key, a.n_group, a.n_group_used, lane);
    for (int i = lane; i < a.n_group * each; i += 32)
        if (key[i / each] != 0) y[i] = -CUDART_INF_F;
    __syncwarp();
}

/* A token's row of a.out. s: room for 3 n_expert and 2 top_k words. */
static __device__ void route_token(const struct cs_route &a, int token, float *s, int lane)
{
    const int n = a.n_expert, top_k = a.top_k;
    const bool sigmoid = a.kind == CS_ROUTE_SIGMOID;
    float *x = s, *y = sigmoid ? s + n : s, *w = s + 3 * n, *out = a.out + (int64_t)token * a.ld_out;
    uint32_t *key = (uint32_t *)(s + 2 * n);
    int *ids = (int *)(w + top_k);
    for (int i = lane; i < n; i += 32) x[i] = a.in[(int64_t)token * a.ld_in + i];
    __syncwarp();
    if (a.kind == CS_ROUTE_SOFTMAX_ALL) softmax(x, n, lane);
    if (sigmoid) sigmoid_choice(a, x, y, key, lane);
    for (int i = lane; i < n; i += 32) key[i] = key_of(y[i]);
    __syncwarp();
    take_best(key, n, top_k, lane);
    taken_ids(key, n, ids, lane);
    for (int j = lane; j < top_k; j += 32) w[j] = x[ids[j]];
    __syncwarp();
    if (a.kind == CS_ROUTE_SOFTMAX_CHOSEN) softmax(w, top_k, lane);
    const float sum = a.normalise ? sum_of(w, top_k, sigmoid ? 1e-20f : 0.0f) : 1.0f;
    for (int j = lane; j < top_k; j += 32) {
        float v = w[j];
        if (a.normalise) v = v / sum;
        if (sigmoid) v = v * a.scale;
        if (a.expert_scale) v = v * a.expert_scale[ids[j]];
        out[j] = (float)ids[j];
        out[top_k + j] = v;
        if (a.list.most == 1) { /* every slot by itself, where it is */
            const int slot = token * top_k + j;
            a.list.pieces[slot] = ck_piece{ ids[j], slot, 1, 0 };
            a.list.slots[slot] = slot;
        }
    }
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
static __global__ void __launch_bounds__(ROUTE_THREADS) route_kernel(struct cs_route a)
{
    extern __shared__ float room[];
    __shared__ int is_last;
    ck_pdl_launch();
    ck_pdl_wait();
    if (threadIdx.x < 32) route_token(a, (int)blockIdx.x, room, (int)threadIdx.x);
    if (a.list.most == 1) {
        if (blockIdx.x == 0 && threadIdx.x == 0) *a.list.n_piece = a.m * a.top_k;
        return;
    }
    if (a.m > LIST_TOKENS) return;
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
    extern __shared__ float room[];
    ck_pdl_launch();
    ck_pdl_wait();
    list_slots(a, (int *)room);
}

extern "C" int cs_route(const struct ck_ctx *c, const struct cs_route *a, cudaStream_t st)
{
    const size_t words = (size_t)a->n_expert * 3 + (size_t)a->top_k * 2;
    int e = ck_launch(c, route_kernel, dim3((unsigned)a->m), ROUTE_THREADS, words * 4, st, *a);
    if (e || a->list.most == 1 || a->m <= LIST_TOKENS) return e;
    return ck_launch(c, list_kernel, dim3(1), LIST_THREADS, (size_t)a->n_expert * 4, st, *a);
}

/* --- rows and sums --- */

/* A thread is a column of a piece; 16 bytes of a row are 16 bytes of the block of tokens, too. */
static __global__ void gather_pieces_kernel(ck_x in, struct ck_expert_list list, int top_k, ck_x out)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const int i_piece = (int)blockIdx.x, col = (int)threadIdx.x % CK_PIECE_TILE, n = (int)(in.k_pad / 8), first = (int)blockIdx.y * GATHER;
    if (i_piece >= *list.n_piece || col >= list.pieces[i_piece].n) return;
    const int token = list.slots[list.pieces[i_piece].first + col] / top_k;
    const uint4 *from = (const uint4 *)in.v + (int64_t)(token / CK_PIECE_TILE) * n * CK_PIECE_TILE + token % CK_PIECE_TILE;
    uint4 *to = (uint4 *)out.v + (int64_t)i_piece * n * CK_PIECE_TILE + col;
    for (int i = first + (int)threadIdx.x / CK_PIECE_TILE; i < n && i < first + GATHER; i += COLUMNS / CK_PIECE_TILE)
        to[(int64_t)i * CK_PIECE_TILE] = from[(int64_t)i * CK_PIECE_TILE];
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
    for (int j = 0; j < top_k; j++) acc = acc + w[j] * y[(row * top_k + j) * ld_y + col];
    ck_expert_sum_out(a, row, col, acc, a.add ? a.out[row * a.ld_out + col] : 0.0f);
}

extern "C" int cs_experts_sum(const struct ck_ctx *c, const struct ck_expert_sum *a, const float *y, int64_t ld_y, int32_t m, int32_t top_k, int32_t width,
                              cudaStream_t st)
{
    return ck_launch(c, experts_sum_kernel, dim3((unsigned)((width + COLUMNS - 1) / COLUMNS), (unsigned)m), COLUMNS, 0, st, *a, y, ld_y, (int)top_k, (int)width);
}
