/* steps_sample.cu: logits to draws on the device, for drawing positions without penalties, masks and filters (greedy and
 * plain temperature, with or without log-probabilities, end ids hidden): the same draw, bit for bit, as ops/cpu/sample.c
 * makes of the same logits. Everything else is drawn on the host from a copy of the logits (sample.c beside this).
 *
 *   block_stats   a block of 1,024 ids: maximum of all, best among the live, best among the live that are not hidden, its best of
 *                 x / T + Gumbel noise. A block for two warps, of few rows for eight, so that all of the card has work
 *   block_sums    its sum of exp(x - max): 16 lanes, lane = id mod 16. A block half a warp, so that a lane is a thread
 *   finish        blocks in order: sum, log-probabilities, the id. A row a warp
 * Maxima and bests are the same in any order; sums are made in theirs.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/mathfn.cuh"
#include "ops/cuda/steps.h"

#define BLOCK_IDS 1024
#define WARPS 8      /* of a launch's block, for the statistics */
#define SUM_WARPS 4  /* the same for sums */
#define FEW_ROWS 8   /* up to so many, a block of ids is for all warps of a launch's block; of more, for two */

struct best {
    float v;
    int32_t id; /* -1: none, v is -inf */
};

static __device__ __forceinline__ best none() { return { -CUDART_INF_F, -1 }; }

static __device__ __forceinline__ best better(best a, best b) /* value descending, id ascending, none behind all */
{
    bool take_b = b.v > a.v || (b.v == a.v && (uint32_t)b.id < (uint32_t)a.id);
    return take_b ? b : a;
}

static __device__ __forceinline__ best best_of_warp(best x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = better(x, { __shfl_xor_sync(~0u, x.v, step), __shfl_xor_sync(~0u, x.id, step) });
    return x;
}

static __device__ __forceinline__ float max_of_warp(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* Of one block of ids; [n_draw][n_blocks]. */
struct block_stat {
    float max; /* +inf: a NaN or +inf is in the block */
    best live, open, drawn;
    float sum;
};

static __device__ __forceinline__ void add_stat(block_stat &a, const block_stat &b)
{
    a.max = fmaxf(a.max, b.max);
    a.live = better(a.live, b.live);
    a.open = better(a.open, b.open);
    a.drawn = better(a.drawn, b.drawn);
}

/* Four logits; behind the row's end -inf, which nobody takes. */
static __device__ __forceinline__ float4 four_logits(const float *row, int i, int n)
{
    if (i + 4 <= n && ((uintptr_t)row & 15) == 0) return *(const float4 *)(row + i);
    float4 v;
    v.x = i < n ? row[i] : -CUDART_INF_F;
    v.y = i + 1 < n ? row[i + 1] : -CUDART_INF_F;
    v.z = i + 2 < n ? row[i + 2] : -CUDART_INF_F;
    v.w = i + 3 < n ? row[i + 3] : -CUDART_INF_F;
    return v;
}

/* Which of a thread's ids are hidden: bit 4 k + i is id first + 128 k + i. */
static __device__ __forceinline__ uint32_t hidden_of(const cuda_draw_job &j, int32_t first, int n_fours)
{
    uint32_t mask = 0;
    for (int i = 0; i < j.n_hidden; i++) {
        const int32_t off = j.hidden[i] - first;
        if (off >= 0 && off < 128 * n_fours && (off & 127) < 4) mask |= 1u << ((off >> 7) * 4 + (off & 3));
    }
    return mask;
}

/* Four ids; a thread's come rising: of equal ones the first stays. */
static __device__ __forceinline__ void take_four(block_stat &s, float4 x, int32_t id, int32_t n_live, uint32_t hidden)
{
    const float four[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float v = four[k] < CUDART_INF_F ? four[k] : CUDART_INF_F; /* NaN too */
        const bool live = id + k < n_live;
        s.max = fmaxf(s.max, v);
        if (live && v > s.live.v) s.live = { v, id + k };
        if (live && v > s.open.v && !(hidden >> k & 1)) s.open = { v, id + k };
    }
}

/* Four ids with their noise. What is drawn of a row that holds a NaN or +inf is not read. */
static __device__ __forceinline__ void draw_four(block_stat &s, const cuda_draw_job &j, float4 x, int32_t id, uint32_t hidden)
{
    const uint4 w = d_philox((uint32_t)(id / 4), j.index, j.choice, j.round, j.seed_lo, j.seed_hi);
    const uint32_t word[4] = { w.x, w.y, w.z, w.w };
    const float four[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (id + k < j.n_live && !(hidden >> k & 1) && four[k] > -CUDART_INF_F)
            s.drawn = better(s.drawn, { four[k] * j.inv_temperature + d_gumbel(word[k]), id + k });
}

/* SHARE: warps of a block of ids. */
template <int SHARE> static __global__ void __launch_bounds__(WARPS * 32) block_stats(const float *x, int32_t n, size_t ld, int n_blocks, const cuda_draw_job *jobs,
                                                                                      block_stat *stats)
{
    ck_pdl_launch();
    ck_pdl_wait();
    __shared__ block_stat part[WARPS];
    constexpr int EACH = BLOCK_IDS / (SHARE * 128); /* fours of a thread */
    const cuda_draw_job &j = jobs[blockIdx.y];
    if (j.on_host) return;
    const float *row = x + (size_t)blockIdx.y * ld;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, block = ((int)blockIdx.x * WARPS + warp) / SHARE;
    const int first = block * BLOCK_IDS + warp % SHARE * EACH * 128 + 4 * lane, n_live = j.n_live;
    const uint32_t hidden = hidden_of(j, first, EACH);
    block_stat s = { -CUDART_INF_F, none(), none(), none(), 0.0f };
    float4 v[EACH];
#pragma unroll
    for (int k = 0; k < EACH; k++) v[k] = four_logits(row, first + 128 * k, n);
#pragma unroll
    for (int k = 0; k < EACH; k++) take_four(s, v[k], first + 128 * k, n_live, hidden >> 4 * k);
    if (j.inv_temperature > 0)
#pragma unroll 1
        for (int k = 0; k < EACH; k++) draw_four(s, j, four_logits(row, first + 128 * k, n), first + 128 * k, hidden >> 4 * k);
    s.max = max_of_warp(s.max);
    s.live = best_of_warp(s.live);
    s.open = best_of_warp(s.open);
    if (j.inv_temperature > 0) s.drawn = best_of_warp(s.drawn);
    if (SHARE > 1) {
        if (lane == 0) part[warp] = s;
        __syncthreads();
        for (int k = 1; k < SHARE && warp % SHARE == 0; k++) add_stat(s, part[warp + k]);
    }
    if (lane == 0 && warp % SHARE == 0 && block < n_blocks) stats[(size_t)blockIdx.y * n_blocks + block] = s;
}

/* By a warp, for all of it. */
static __device__ __forceinline__ float row_max(const block_stat *stats, int n_blocks, int lane)
{
    float m = -CUDART_INF_F;
    for (int i = lane; i < n_blocks; i += 32) m = fmaxf(m, stats[i].max);
    return max_of_warp(m);
}

/* d_exp(x) for x <= 0 that is no NaN, the same bits: without branches, so that many are on their way at once. */
static __device__ __forceinline__ float exp_below(float x)
{
    const float place = 0x1.8p+23f, at = x * 0x1.715476p+0f + place; /* rounds to a whole number, which is the last bits of the sum */
    const float n = at - place, r = __fmaf_rn(n, -0x1.7f7d1cp-20f, __fmaf_rn(n, -0x1.62e400p-1f, x));
    float p = __fmaf_rn(0x1.6db41ap-10f, r, 0x1.123b52p-7f);
    p = __fmaf_rn(p, r, 0x1.55545ep-5f);
    p = __fmaf_rn(p, r, 0x1.55548ep-3f);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    const int32_t k = __float_as_int(at) - __float_as_int(place), half = k >> 1;
    const float e = (p * d_pow2i(half)) * d_pow2i(k - half);
    return x < -0x1.5d589ep+6f ? 0.0f : e;
}

static __global__ void __launch_bounds__(SUM_WARPS * 32) block_sums(const float *x, int32_t n, size_t ld, int n_blocks, const cuda_draw_job *jobs, block_stat *stats)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const cuda_draw_job &j = jobs[blockIdx.y];
    if (j.on_host || !j.wants_sum) return;
    block_stat *mine = stats + (size_t)blockIdx.y * n_blocks;
    const int lane = (int)threadIdx.x & 31, block = 2 * ((int)blockIdx.x * SUM_WARPS + ((int)threadIdx.x >> 5)) + (lane >> 4);
    const int end = n - block * BLOCK_IDS;
    const float *at = x + (size_t)blockIdx.y * ld + (size_t)block * BLOCK_IDS + (lane & 15), max = row_max(mine, n_blocks, lane);
    if (!(max < CUDART_INF_F) || !(max > -CUDART_INF_F)) return;
    float sum = 0.0f;
    if (end >= BLOCK_IDS) {
#pragma unroll 1
        for (int i = 0; i < BLOCK_IDS; i += 256) {
            float e[16];
#pragma unroll
            for (int k = 0; k < 16; k++) e[k] = __ldcg(at + i + 16 * k);
#pragma unroll
            for (int k = 0; k < 16; k++) e[k] = exp_below(e[k] - max);
#pragma unroll
            for (int k = 0; k < 16; k++) sum = sum + e[k];
        }
    } else {
        for (int i = 0; i < end - (lane & 15); i += 16) sum = sum + exp_below(at[i] - max);
    }
    __syncwarp();
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum = sum + __shfl_xor_sync(~0u, sum, step); /* as everywhere: i with i + 8, i + 4, then (0 + 2) + (1 + 3) */
    if ((lane & 15) == 0 && block < n_blocks) mine[block].sum = sum;
}

static __global__ void __launch_bounds__(32) finish(const __grid_constant__ struct cs_draws a, size_t ld, const block_stat *stats, int n_blocks)
{
    ck_pdl_launch();
    ck_pdl_wait();
    extern __shared__ float sums[];
    const cuda_draw_job &j = a.jobs[blockIdx.x];
    if (j.on_host) return;
    const float *row = a.logits + (size_t)blockIdx.x * ld;
    const block_stat *mine = stats + (size_t)blockIdx.x * n_blocks;
    const int lane = (int)threadIdx.x;
    cuda_draw_out out = { -1, -1, 0.0f, 0.0f, CUDA_DRAW_OK };
    block_stat s = { -CUDART_INF_F, none(), none(), none(), 0.0f };
    for (int i = lane; i < n_blocks; i += 32) {
        add_stat(s, mine[i]);
        if (j.wants_sum) sums[i] = mine[i].sum;
    }
    const float max = max_of_warp(s.max);
    const best live = best_of_warp(s.live), open = best_of_warp(s.open), drawn = j.inv_temperature > 0 ? best_of_warp(s.drawn) : open;
    __syncwarp();
    if (lane != 0) return;
    if (max == CUDART_INF_F) out.state = CUDA_DRAW_NON_FINITE;
    else if (!(max > -CUDART_INF_F)) out.state = CUDA_DRAW_NO_CANDIDATE;
    else if (open.id < 0) out.state = CUDA_DRAW_HOST;
    else {
        out.argmax = live.id;
        out.id = drawn.id;
        if (j.wants_sum) {
            const float of_argmax = row[live.id], of_id = row[out.id];
            float z = 0.0f;
#pragma unroll 16
            for (int i = 0; i < n_blocks; i++) z = z + sums[i];
            const float lse = max + d_log(z);
            out.argmax_logprob = of_argmax - lse;
            out.logprob = of_id - lse;
        }
    }
    a.outs[(a.slot ? *a.slot * a.slot_step : 0) + (int)blockIdx.x] = out;
    if (a.ids) a.ids[blockIdx.x] = out.id;
}

extern "C" size_t cs_sample_scratch_bytes(int32_t n_vocab, int32_t n_draw)
{
    return (size_t)n_draw * (size_t)((n_vocab + BLOCK_IDS - 1) / BLOCK_IDS) * sizeof(block_stat);
}

template <int SHARE> static int launch_stats(const struct ck_ctx *c, const struct cs_draws *a, int n_blocks, block_stat *stats, cudaStream_t st)
{
    dim3 grid((unsigned)((n_blocks * SHARE + WARPS - 1) / WARPS), (unsigned)a->n_draw);
    return ck_launch(c, block_stats<SHARE>, grid, WARPS * 32, 0, st, a->logits, a->n_vocab, (size_t)a->ld, n_blocks, a->jobs, stats);
}

extern "C" int cs_sample(const struct ck_ctx *c, const struct cs_draws *a, cudaStream_t st)
{
    int n_blocks = (a->n_vocab + BLOCK_IDS - 1) / BLOCK_IDS;
    size_t ld = (size_t)a->ld;
    block_stat *stats = (block_stat *)a->scratch;
    dim3 sums((unsigned)((n_blocks + 2 * SUM_WARPS - 1) / (2 * SUM_WARPS)), (unsigned)a->n_draw);
    int e = a->n_draw <= FEW_ROWS ? launch_stats<WARPS>(c, a, n_blocks, stats, st) : launch_stats<2>(c, a, n_blocks, stats, st);
    if (e == 0) e = ck_launch(c, block_sums, sums, SUM_WARPS * 32, 0, st, a->logits, a->n_vocab, ld, n_blocks, a->jobs, stats);
    return e != 0 ? e : ck_launch(c, finish, dim3((unsigned)a->n_draw), 32, (size_t)n_blocks * sizeof(float), st, *a, ld, stats, n_blocks);
}
