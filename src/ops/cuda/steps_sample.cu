/* steps_sample.cu: logits to draws on the device, for drawing positions without penalties, masks and filters (greedy and
 * plain temperature, with or without log-probabilities, end ids hidden): the same draw, bit for bit, as ops/cpu/sample.c
 * makes of the same logits. Everything else is drawn on the host from a copy of the logits (sample.c beside this).
 *
 *   block_stats   a block of 1,024 ids: maximum of all, best among the live, best among the live that are not hidden
 *   block_draw    its sum of exp(x - max): 16 lanes, lane = id mod 16; its best of x / T + Gumbel noise
 *   finish        blocks in order: sum, log-probabilities, the id
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/mathfn.cuh"
#include "ops/cuda/steps.h"

#define BLOCK_IDS 1024
#define THREADS 256

struct best {
    float v;
    int32_t id; /* -1: none */
};

static __device__ __forceinline__ best better(best a, best b) /* value descending, id ascending */
{
    bool take_b = b.id >= 0 && (a.id < 0 || b.v > a.v || (b.v == a.v && b.id < a.id));
    return take_b ? b : a;
}

static __device__ best best_of_block(best x, best *shared)
{
    shared[threadIdx.x] = x;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if ((int)threadIdx.x < step) shared[threadIdx.x] = better(shared[threadIdx.x], shared[threadIdx.x + step]);
        __syncthreads();
    }
    best out = shared[0];
    __syncthreads();
    return out;
}

static __device__ __forceinline__ bool is_hidden(const cuda_draw_job &j, int32_t id)
{
    bool hit = false;
    for (int i = 0; i < j.n_hidden; i++) hit = hit || j.hidden[i] == id;
    return hit;
}

/* Of one block; [n_draw][n_blocks]. */
struct block_stat {
    float max; /* +inf: a NaN or +inf is in the block */
    best live, open;
    float sum;
    best drawn;
};

static __global__ void block_stats(const float *x, int32_t n, size_t ld, const cuda_draw_job *jobs, block_stat *stats)
{
    ck_pdl_launch();
    ck_pdl_wait();
    __shared__ best red[THREADS];
    const cuda_draw_job &j = jobs[blockIdx.y];
    if (j.on_host) return;
    const float *row = x + (size_t)blockIdx.y * ld;
    best all = { 0, -1 }, live = { 0, -1 }, open = { 0, -1 };
    int first = (int)blockIdx.x * BLOCK_IDS + 4 * (int)threadIdx.x;
    for (int i = first; i < first + 4 && i < n; i++) {
        float v = row[i];
        if (!(v < CUDART_INF_F)) v = CUDART_INF_F; /* NaN too */
        best b = { v, i };
        if (!(v > -CUDART_INF_F)) continue;
        all = better(all, b);
        if (i >= j.n_live) continue;
        live = better(live, b);
        if (!is_hidden(j, i)) open = better(open, b);
    }
    all = best_of_block(all, red);
    live = best_of_block(live, red);
    open = best_of_block(open, red);
    if (threadIdx.x == 0) {
        block_stat *s = stats + (size_t)blockIdx.y * gridDim.x + blockIdx.x;
        s->max = all.id < 0 ? -CUDART_INF_F : all.v;
        s->live = live;
        s->open = open;
    }
}

static __device__ float row_max(const block_stat *stats, int n_blocks, float *shared)
{
    float m = -CUDART_INF_F;
    for (int i = (int)threadIdx.x; i < n_blocks; i += THREADS) m = fmaxf(m, stats[i].max);
    shared[threadIdx.x] = m;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if ((int)threadIdx.x < step) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + step]);
        __syncthreads();
    }
    m = shared[0];
    __syncthreads();
    return m;
}

/* Lanes fold as everywhere: i with i + 8, i + 4, then (0 + 2) + (1 + 3). */
static __device__ float fold_lanes(float *t)
{
    for (int i = 0; i < 8; i++) t[i] = t[i] + t[i + 8];
    for (int i = 0; i < 4; i++) t[i] = t[i] + t[i + 4];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

static __global__ void block_draw(const float *x, int32_t n, size_t ld, const cuda_draw_job *jobs, block_stat *stats)
{
    ck_pdl_launch();
    ck_pdl_wait();
    __shared__ best red[THREADS];
    __shared__ float e[BLOCK_IDS], lane[16], maxima[THREADS];
    const cuda_draw_job &j = jobs[blockIdx.y];
    if (j.on_host) return;
    const float *row = x + (size_t)blockIdx.y * ld;
    block_stat *mine = stats + (size_t)blockIdx.y * gridDim.x;
    float max = row_max(mine, (int)gridDim.x, maxima);
    if (!(max < CUDART_INF_F) || !(max > -CUDART_INF_F)) return;
    int first = (int)blockIdx.x * BLOCK_IDS + 4 * (int)threadIdx.x;
    best drawn = { 0, -1 };
    if (j.inv_temperature > 0 && first < n) {
        uint4 w = d_philox((uint32_t)(first / 4), j.index, j.choice, j.round, j.seed_lo, j.seed_hi);
        const uint32_t word[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int i = first + k;
            if (i >= n || i >= j.n_live || is_hidden(j, i) || !(row[i] > -CUDART_INF_F)) continue;
            best b = { row[i] * j.inv_temperature + d_gumbel(word[k]), i };
            drawn = better(drawn, b);
        }
    }
    drawn = best_of_block(drawn, red);
    if (j.wants_sum) {
        for (int k = 0; k < 4; k++) e[4 * threadIdx.x + k] = first + k < n ? d_exp(row[first + k] - max) : 0.0f;
        __syncthreads();
        if (threadIdx.x < 16) {
            int end = n - (int)blockIdx.x * BLOCK_IDS;
            float sum = 0.0f;
            for (int i = (int)threadIdx.x; i < BLOCK_IDS && i < end; i += 16) sum = sum + e[i];
            lane[threadIdx.x] = sum;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        mine[blockIdx.x].drawn = drawn;
        mine[blockIdx.x].sum = j.wants_sum ? fold_lanes(lane) : 0.0f;
    }
}

static __global__ void finish(const __grid_constant__ struct cs_draws a, size_t ld, const block_stat *stats, int n_blocks)
{
    ck_pdl_launch();
    ck_pdl_wait();
    __shared__ best red[THREADS];
    __shared__ float maxima[THREADS];
    extern __shared__ float sums[];
    const cuda_draw_job &j = a.jobs[blockIdx.x];
    if (j.on_host) return;
    const float *row = a.logits + (size_t)blockIdx.x * ld;
    const block_stat *mine = stats + (size_t)blockIdx.x * n_blocks;
    cuda_draw_out out = { -1, -1, 0.0f, 0.0f, CUDA_DRAW_OK };
    float max = row_max(mine, n_blocks, maxima);
    best live = { 0, -1 }, open = { 0, -1 }, drawn = { 0, -1 };
    bool finite = max < CUDART_INF_F && max > -CUDART_INF_F;
    for (int i = (int)threadIdx.x; finite && i < n_blocks; i += THREADS) {
        live = better(live, mine[i].live);
        open = better(open, mine[i].open);
        if (j.inv_temperature > 0) drawn = better(drawn, mine[i].drawn);
        sums[i] = mine[i].sum;
    }
    live = best_of_block(live, red);
    open = best_of_block(open, red);
    drawn = best_of_block(drawn, red);
    if (threadIdx.x != 0) return;
    if (max == CUDART_INF_F) out.state = CUDA_DRAW_NON_FINITE;
    else if (!finite) out.state = CUDA_DRAW_NO_CANDIDATE;
    else if (open.id < 0) out.state = CUDA_DRAW_HOST;
    else {
        float z = 0.0f;
        for (int i = 0; j.wants_sum && i < n_blocks; i++) z = z + sums[i];
        float lse = j.wants_sum ? max + d_log(z) : 0.0f;
        out.argmax = live.id;
        out.id = j.inv_temperature > 0 ? drawn.id : open.id;
        if (j.wants_sum) {
            out.argmax_logprob = row[live.id] - lse;
            out.logprob = row[out.id] - lse;
        }
    }
    a.outs[(a.slot ? *a.slot * a.slot_step : 0) + (int)blockIdx.x] = out;
    if (a.ids) a.ids[blockIdx.x] = out.id;
}

extern "C" size_t cs_sample_scratch_bytes(int32_t n_vocab, int32_t n_draw)
{
    return (size_t)n_draw * (size_t)((n_vocab + BLOCK_IDS - 1) / BLOCK_IDS) * sizeof(block_stat);
}

extern "C" int cs_sample(const struct ck_ctx *c, const struct cs_draws *a, cudaStream_t st)
{
    int n_blocks = (a->n_vocab + BLOCK_IDS - 1) / BLOCK_IDS;
    size_t ld = (size_t)a->ld;
    block_stat *stats = (block_stat *)a->scratch;
    dim3 grid((unsigned)n_blocks, (unsigned)a->n_draw);
    int e = ck_launch(c, block_stats, grid, THREADS, 0, st, a->logits, a->n_vocab, ld, a->jobs, stats);
    if (e == 0) e = ck_launch(c, block_draw, grid, THREADS, 0, st, a->logits, a->n_vocab, ld, a->jobs, stats);
    return e != 0 ? e : ck_launch(c, finish, dim3((unsigned)a->n_draw), THREADS, (size_t)n_blocks * sizeof(float), st, *a, ld, stats, n_blocks);
}
