/* steps_ranks.cu: what several ranks have computed, each its own columns, put side by side: copies, and one addition where a
 * residual takes the sum. Nothing is summed across ranks, so the bits are those of one. Parts are read past the first-level cache,
 * which does not know when another card writes. Of few tokens they are pushed instead (cs_trade): one launch, and nothing read over the link.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/steps.h"

#define COLUMNS 256

/* A thread is a rank: it raises this rank's flag there and watches that rank's flag here. The wait is for work that is enqueued
 * already; where a rank has failed the host gives up for all. */
static __global__ void meet_kernel(const __grid_constant__ struct cs_meet a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    uint32_t *mine = a.flags[a.rank], round = mine[CS_RANKS_MAX] + 1;
    int q = (int)threadIdx.x;
    __syncwarp();
    if (q >= a.n) return;
    if (q != a.rank) {
        __threadfence_system();
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(a.flags[q] + a.rank), "r"(round) : "memory");
        for (uint32_t seen = 0, turn = 1;; turn++) {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine + q) : "memory");
            if ((int32_t)(seen - round) >= 0 || (turn % 4096 == 0 && *a.given_up != 0)) break;
        }
    } else {
        mine[CS_RANKS_MAX] = round;
    }
}

extern "C" int cs_meet(const struct ck_ctx *c, const struct cs_meet *a, cudaStream_t st)
{
    return ck_launch(c, meet_kernel, dim3(1), 32, 0, st, *a);
}

static __global__ void join_kernel(const __grid_constant__ struct cs_join a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int row = (int)blockIdx.y, i = (int)(blockIdx.x * COLUMNS + threadIdx.x);
    for (int r = 0; r < a.n_parts; r++) {
        int at = i - a.first[r];
        if (at < 0 || at >= a.n[r]) continue;
        float v = __ldcg(a.part[r] + (int64_t)row * a.ld[r] + at), *to = a.out + (int64_t)row * a.ld_out + i;
        *to = a.add ? __fadd_rn(*to, v) : v;
        return;
    }
}

extern "C" int cs_join(const struct ck_ctx *c, const struct cs_join *a, cudaStream_t st)
{
    int end = 0;
    for (int r = 0; r < a->n_parts; r++)
        if (a->n[r] > 0 && a->first[r] + a->n[r] > end) end = a->first[r] + a->n[r];
    if (a->m <= 0 || end == 0) return 0;
    return ck_launch(c, join_kernel, dim3((unsigned)((end + COLUMNS - 1) / COLUMNS), (unsigned)a->m), COLUMNS, 0, st, *a);
}

/* The pair of values at column kk of a token; zeros where no part has it. */
static __device__ __forceinline__ uint32_t pair_at(const struct cs_join_input &a, int token, int kk)
{
    for (int r = 0; r < a.n_parts; r++) {
        int at = kk - a.first[r];
        if (at < 0 || at >= a.part[r].k) continue;
        return __ldcg((const uint32_t *)((const __half *)a.part[r].v + ck_x_off(a.part[r].layout, a.part[r].k_pad, token, at)));
    }
    return 0;
}

/* The part that holds all four pairs of a chunk in the same places: one load; NULL: pairs by themselves. */
static __device__ __forceinline__ const uint4 *chunk_at(const struct cs_join_input &a, int token, int kk, int step)
{
    for (int r = 0; r < a.n_parts; r++) {
        int at = kk - a.first[r];
        if (at < 0 || at + 3 * step + 1 >= a.part[r].k || a.first[r] % (a.out.layout == CK_X_ROWS ? 8 : 64) != 0) continue;
        return (const uint4 *)((const __half *)a.part[r].v + ck_x_off(a.part[r].layout, a.part[r].k_pad, token, at));
    }
    return NULL;
}

/* A thread writes 16 bytes: four pairs, side by side in rows, every eighth column in tiles. */
static __global__ void join_input_kernel(const __grid_constant__ struct cs_join_input a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int token, kk, step;
    if (a.out.layout == CK_X_ROWS) {
        token = (int)blockIdx.y;
        kk = (int)(blockIdx.x * COLUMNS + threadIdx.x) * 8;
        step = 2;
    } else { /* blocks: of tokens, of 64 columns, halves of a step; threads: tokens */
        int jh = (int)blockIdx.x & 7, j = jh >> 1, tile = (int)blockIdx.x >> 3, n_tile = (int)(a.out.k_pad >> 6);
        token = tile / n_tile * 128 + (int)threadIdx.x;
        kk = tile % n_tile * 64 + 32 * (j >> 1) + 4 * (j & 1) + 2 * (jh & 1);
        step = 8;
    }
    if (token >= a.m || kk >= a.out.k_pad) return;
    const uint4 *chunk = chunk_at(a, token, kk, step);
    uint4 v = chunk ? __ldcg(chunk) : make_uint4(pair_at(a, token, kk), pair_at(a, token, kk + step), pair_at(a, token, kk + 2 * step), pair_at(a, token, kk + 3 * step));
    *(uint4 *)((__half *)a.out.v + ck_x_off(a.out.layout, a.out.k_pad, token, kk)) = v;
}

extern "C" int cs_join_input(const struct ck_ctx *c, const struct cs_join_input *a, cudaStream_t st)
{
    if (a->m <= 0) return 0;
    if (a->out.layout == CK_X_TILES)
        return ck_launch(c, join_input_kernel, dim3((unsigned)((a->m + 127) / 128 * (int)(a->out.k_pad / 64) * 8)), 128, 0, st, *a);
    return ck_launch(c, join_input_kernel, dim3((unsigned)((a->out.k_pad / 8 + COLUMNS - 1) / COLUMNS), (unsigned)a->m), COLUMNS, 0, st, *a);
}

/* --- few tokens: parts are pushed --- */

static __device__ __forceinline__ void trade_put(uint4 *to, uint2 v, uint32_t round)
{
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(round), "r"(v.y), "r"(round) : "memory");
}

/* Both halves of a packet carry the number: 8 bytes arrive at once. */
static __device__ __forceinline__ uint2 trade_take(const uint4 *from, uint32_t round, const volatile uint32_t *given_up)
{
    uint4 v;
    for (uint32_t turn = 1;; turn++) {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
        if ((v.y == round && v.w == round) || (turn % 4096 == 0 && *given_up != 0)) return make_uint2(v.x, v.z);
    }
}

static __device__ __forceinline__ void trade_store(const struct cs_trade &a, int row, int unit, uint2 v)
{
    uint2 *to = (uint2 *)a.out + (int64_t)row * a.ld_out + unit;
    if (a.add) {
        uint2 old = *to;
        v.x = __float_as_uint(__fadd_rn(__uint_as_float(old.x), __uint_as_float(v.x)));
        v.y = __float_as_uint(__fadd_rn(__uint_as_float(old.y), __uint_as_float(v.y)));
    }
    *to = v;
}

/* The number of an exchange: never 0, as empty memory has it; its lowest bit says which half of the inboxes it takes. Behind the wait for
 * the kernel before, which may have changed it. */
static __device__ __forceinline__ uint32_t trade_round(const struct cs_trade &a)
{
    return (*(const volatile uint32_t *)a.inbox[a.rank] + (uint32_t)a.index) | 0x80000000u;
}

/* Two halves of an inbox take turns: whoever writes one again has had an answer to the other, sent after this one was read.
 * inbox: [0] exchanges up to the last cs_trade_end. */
static __global__ void trade_kernel(const __grid_constant__ struct cs_trade a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const uint32_t round = trade_round(a);
    int row = (int)blockIdx.y, i = (int)(blockIdx.x * COLUMNS + threadIdx.x);
    const int64_t slot = (int64_t)(round & 1) * a.n * a.room;
    if (i < a.units[a.rank]) {
        uint2 v = __ldcg((const uint2 *)a.part + (int64_t)row * a.ld_part + i);
        for (int q = 0; q < a.n; q++)
            if (q != a.rank)
                trade_put((uint4 *)((char *)a.inbox[q] + CS_TRADE_HEAD) + slot + (int64_t)a.rank * a.room + row * a.units[a.rank] + i, v, round);
        trade_store(a, row, a.first[a.rank] + i, v);
    }
    if (i < a.n_pad) ((uint2 *)a.out)[(int64_t)row * a.ld_out + a.end + i] = make_uint2(0, 0);
    const uint4 *mine = (const uint4 *)((const char *)a.inbox[a.rank] + CS_TRADE_HEAD) + slot;
    for (int q = 0; q < a.n; q++)
        if (q != a.rank && i < a.units[q])
            trade_store(a, row, a.first[q] + i, trade_take(mine + (int64_t)q * a.room + row * a.units[q] + i, round, a.given_up));
}

extern "C" int cs_trade(const struct ck_ctx *c, const struct cs_trade *a, cudaStream_t st)
{
    int most = a->n_pad;
    for (int r = 0; r < a->n; r++)
        if (a->units[r] > most) most = a->units[r];
    if (a->m <= 0 || most == 0) return 0;
    return ck_launch(c, trade_kernel, dim3((unsigned)((most + COLUMNS - 1) / COLUMNS), (unsigned)a->m), COLUMNS, 0, st, *a);
}

static __global__ void trade_end_kernel(volatile uint32_t *head, uint32_t n)
{
    ck_pdl_launch();
    ck_pdl_wait();
    *head = *head + n;
}

extern "C" int cs_trade_end(const struct ck_ctx *c, void *inbox, int32_t n, cudaStream_t st)
{
    return ck_launch(c, trade_end_kernel, dim3(1), 1, 0, st, (volatile uint32_t *)inbox, (uint32_t)n);
}

/* --- an exchange and the norm behind it --- */

template <int SPREAD> static __device__ __forceinline__ void row_meet(void)
{
#if __CUDA_ARCH__ >= 900
    if (SPREAD > 1) {
        ck_cluster_arrive();
        ck_cluster_wait();
        return;
    }
#endif
    __syncthreads();
}
/* To this place in every block of the row. */
template <int SPREAD> static __device__ __forceinline__ void row_put(float *at, float v)
{
#if __CUDA_ARCH__ >= 900
    for (int b = 0; SPREAD > 1 && b < SPREAD; b++) *ck_cluster_at(at, b) = v;
#endif
    if (SPREAD == 1) *at = v;
}

/* Packets of 4 bytes and the number: values i, i + by, ... of this rank's part of a row to the others. */
template <int KEEP> static __device__ __forceinline__ void row_push(const struct cs_trade &a, int row, int tid, int by, uint32_t round, const float *v)
{
    const int first = a.first[a.rank] * 2, end = first + a.units[a.rank] * 2;
    const int64_t at = ((int64_t)(round & 1) * a.n + a.rank) * a.room * 2 + (int64_t)row * (end - first) - first;
    for (int q = 0; q < a.n; q++) {
        uint2 *to = (uint2 *)((char *)a.inbox[q] + CS_TRADE_HEAD) + at;
        if (q == a.rank) continue;
#pragma unroll
        for (int j = 0; j < KEEP; j++) {
            const int i = tid + j * by;
            if (i >= first && i < end) asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to + i), "r"(__float_as_uint(v[j])), "r"(round) : "memory");
        }
    }
}

/* The others' parts, as they come; all loads are under way before the first is looked at. */
template <int KEEP> static __device__ __forceinline__ void row_take(const struct cs_trade &a, int row, int tid, int by, uint32_t round, float *v)
{
    for (int q = 0; q < a.n; q++) {
        const int first = a.first[q] * 2, end = first + a.units[q] * 2;
        const uint2 *from = (const uint2 *)((const char *)a.inbox[a.rank] + CS_TRADE_HEAD) + ((int64_t)(round & 1) * a.n + q) * a.room * 2 +
                            (int64_t)row * (end - first) - first;
        if (q == a.rank) continue;
        for (uint32_t turn = 1;; turn++) {
            bool all = true;
            uint2 got[KEEP];
#pragma unroll
            for (int j = 0; j < KEEP; j++) {
                const int i = tid + j * by;
                if (i >= first && i < end) asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(got[j].x), "=r"(got[j].y) : "l"(from + i) : "memory");
            }
#pragma unroll
            for (int j = 0; j < KEEP; j++) {
                const int i = tid + j * by;
                if (i < first || i >= end) continue;
                v[j] = __uint_as_float(got[j].x);
                all = all && got[j].y == round;
            }
            if (all || (turn % 1024 == 0 && *a.given_up != 0)) break;
        }
    }
}

/* A cluster of SPREAD blocks is a row: of a block of 512 threads the registers alone would wait for a multiprocessor that has nothing else to
 * do. Thread i of them all has values i, i + by, ... as norm_kernel (steps_rows.cu), and takes each from where it comes. Operations and order
 * are those of trade_kernel and norm_kernel. */
template <int KEEP, int SPREAD>
static __global__ void __launch_bounds__(512 / SPREAD) trade_norm_kernel(const __grid_constant__ struct cs_trade a, const __grid_constant__ struct cs_norm n,
                                                                         const __grid_constant__ struct ck_x x)
{
    __shared__ float warps[16];
    const int row = (int)blockIdx.x / SPREAD, tid = (int)(blockIdx.x % SPREAD * blockDim.x + threadIdx.x), by = (int)blockDim.x * SPREAD, width = n.width;
    float weight[KEEP], old[KEEP], v[KEEP], ss = 0.0f, r = 1.0f;
    ck_pdl_launch();
    row_meet<SPREAD>(); /* all are there: their shared memory can be written */
#pragma unroll
    for (int j = 0; j < KEEP; j++) weight[j] = n.weight && tid + j * by < width ? n.weight[tid + j * by] : 1.0f;
    ck_pdl_wait();
    const uint32_t round = trade_round(a);
    const int first = a.first[a.rank] * 2, end = first + a.units[a.rank] * 2;
    const float *part = (const float *)a.part + row * a.ld_part * 2 - first, inv_mul = 1.0f / x.mul;
    float *out = (float *)a.out + row * a.ld_out * 2;
    __half *to = (__half *)x.v + ck_x_off(CK_X_ROWS, x.k_pad, row, 0);
#pragma unroll
    for (int j = 0; j < KEEP; j++) v[j] = tid + j * by >= first && tid + j * by < end ? __ldcg(part + tid + j * by) : 0.0f;
#pragma unroll
    for (int j = 0; j < KEEP; j++) old[j] = a.add && tid + j * by < width ? out[tid + j * by] : 0.0f;
    row_push<KEEP>(a, row, tid, by, round, v);
    row_take<KEEP>(a, row, tid, by, round, v);
#pragma unroll
    for (int j = 0; j < KEEP; j++) {
        if (a.add) v[j] = __fadd_rn(old[j], v[j]);
        if (tid + j * by >= width) v[j] = 0.0f;
        ss = __fmaf_rn(v[j], v[j], ss);
    }
    for (int step = 16; step > 0; step /= 2) ss = ss + __shfl_xor_sync(0xffffffffu, ss, step);
    if (tid % 32 == 0) row_put<SPREAD>(&warps[tid / 32], ss);
    row_meet<SPREAD>();
    if (!n.identity) {
        float sum = 0.0f;
        for (int w = 0; w < by / 32; w++) sum = sum + warps[w];
        r = 1.0f / sqrtf(sum * (1.0f / (float)width) + n.eps);
    }
#pragma unroll
    for (int j = 0; j < KEEP; j++) {
        if (tid + j * by >= width) continue;
        float y = v[j];
        if (!n.identity) {
            y = y * r;
            if (n.weight) y = y * weight[j];
        }
        to[tid + j * by] = __float2half_rn(y * inv_mul);
        out[tid + j * by] = v[j];
    }
    for (int i = width + tid; i < x.k_pad; i += by) to[i] = __float2half_rn(0.0f);
}

extern "C" int cs_trade_norm(const struct ck_ctx *c, const struct cs_trade *a, const struct cs_norm *n, cudaStream_t st)
{
    const int by = n->width >= 1024 ? 512 : 128, keep = (n->width + by - 1) / by;
    if (a->m <= 0 || keep > 32 || n->n_pieces > 1 || !n->x || n->x->layout != CK_X_ROWS || n->out || n->copy || n->add_to) return (int)cudaErrorInvalidValue;
    const int spread = c->major >= 9 && by == 512 ? 4 : 1;
    const dim3 grid((unsigned)(a->m * spread));
    auto launch = [&](auto kernel) { return ck_launch_cluster(c, kernel, grid, (unsigned)spread, by / spread, 0, st, *a, *n, *n->x); };
    if (spread > 1) return keep <= 8 ? launch(trade_norm_kernel<8, 4>) : keep <= 16 ? launch(trade_norm_kernel<16, 4>) : launch(trade_norm_kernel<32, 4>);
    return keep <= 8 ? launch(trade_norm_kernel<8, 1>) : keep <= 16 ? launch(trade_norm_kernel<16, 1>) : launch(trade_norm_kernel<32, 1>);
}
