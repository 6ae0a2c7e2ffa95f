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

/* Two halves of an inbox take turns: whoever writes one again has had an answer to the other, sent after this one was read.
 * inbox: [0] exchanges so far, [1] blocks that have ended. */
static __global__ void trade_kernel(const __grid_constant__ struct cs_trade a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    volatile uint32_t *head = (volatile uint32_t *)a.inbox[a.rank];
    uint32_t round = head[0] + 1;
    int row = (int)blockIdx.y, i = (int)(blockIdx.x * COLUMNS + threadIdx.x);
    if (round == 0) round = 2; /* as empty memory has it; as even */
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
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd((uint32_t *)&head[1], 1u) == gridDim.x * gridDim.y - 1) {
        head[1] = 0;
        head[0] = round;
    }
}

extern "C" int cs_trade(const struct ck_ctx *c, const struct cs_trade *a, cudaStream_t st)
{
    int most = a->n_pad;
    for (int r = 0; r < a->n; r++)
        if (a->units[r] > most) most = a->units[r];
    if (a->m <= 0 || most == 0) return 0;
    return ck_launch(c, trade_kernel, dim3((unsigned)((most + COLUMNS - 1) / COLUMNS), (unsigned)a->m), COLUMNS, 0, st, *a);
}
