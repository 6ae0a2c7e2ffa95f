/* steps_index.cu: the indexer of sparse attention: of the keys that a token may see, which it does see. A token at an index below top_k sees all and
 * is not looked at. For the others every key gets a score (a thread a key, the heads one after the other), and a block a token keeps the best top_k, by
 * score descending, then index ascending: a function of the token and the keys up to it alone.
 */
#include "ops/cuda/latent_dev.cuh"
#include "ops/cuda/steps_dev.cuh"

#define KEYS 256 /* of a block */
static_assert(KEYS == CK_ATTN_SPLIT, "a token's row of scores is n_split times as many");

/* Rises with x; a NaN is below everything. */
static __device__ __forceinline__ uint32_t order(float x)
{
    const uint32_t u = __float_as_uint(x + 0.0f);
    return x != x ? 0u : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The token's queries, rotated, and its heads' weights. */
static __device__ void bring_q(const struct cl_index &a, int token, float *q, float *w)
{
    const float *x = a.q + (int64_t)token * a.ld_q, *cs = a.table + (int64_t)token * a.n_rot;
    const int half = a.n_rot / 2, n = a.n_head * a.dim;
    for (int i = (int)threadIdx.x; i < n; i += KEYS)
        if (i % a.dim >= a.n_rot) q[i] = x[i];
    for (int i = (int)threadIdx.x; i < a.n_head * half; i += KEYS) {
        const int first = i / half * a.dim, j = i % half, i0 = first + (a.interleaved ? 2 * j : j), i1 = a.interleaved ? i0 + 1 : i0 + half;
        cs_turn(i0, i1, x[i0], x[i1], cs[j], cs[half + j], [&](int at, float v) { q[at] = v; });
    }
    for (int i = (int)threadIdx.x; i < a.n_head; i += KEYS) w[i] = a.weights[(int64_t)token * a.ld_weights + i];
    __syncthreads();
}

static __device__ __forceinline__ void load_key(const struct cl_index &a, const uint8_t *row, int key, float (&k)[CL_INDEX_DIM_MAX])
{
    if (a.p.format == CK_KV_F16 && a.first_row % 8 == 0 && a.dim % 8 == 0) {
#pragma unroll
        for (int c = 0; c < CL_INDEX_DIM_MAX / 8; c++) {
            uint4 v = make_uint4(0u, 0u, 0u, 0u);
            if (8 * c < a.dim) v = *(const uint4 *)(row + ((a.first_row / 8 + c) ^ (key & 7)) * 16);
            const __half *h = (const __half *)&v;
#pragma unroll
            for (int e = 0; e < 8; e++) k[8 * c + e] = __half2float(h[e]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < CL_INDEX_DIM_MAX; i++) k[i] = i < a.dim ? cl_get(row, a.p.format, key, a.first_row + i) : 0.0f;
}

/* Block (x, y): keys 256 x on, token y. */
static __global__ void __launch_bounds__(KEYS) scores_kernel(const __grid_constant__ struct cl_index a, float *scores)
{
    extern __shared__ __align__(16) float shared[]; /* [n_head][dim], [n_head] */
    ck_pdl_launch();
    ck_pdl_wait();
    const int token = (int)blockIdx.y, n = a.p.index[token] + 1, j = (int)blockIdx.x * KEYS + (int)threadIdx.x;
    float *q = shared, *w = shared + a.n_head * a.dim, k[CL_INDEX_DIM_MAX], sum = 0.0f;
    if (n <= a.top_k || (int)blockIdx.x * KEYS >= n) return;
    bring_q(a, token, q, w);
    if (j >= n) return;
    load_key(a, cl_key(a.p, token, j), j & 63, k);
    for (int h = 0; h < a.n_head; h++) {
        const float *mine = q + h * a.dim;
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < CL_INDEX_DIM_MAX; i++)
            if (i < a.dim) s = __fmaf_rn(mine[i], k[i], s);
        sum = __fmaf_rn(w[h], s > 0.0f ? s : s != s ? s : 0.0f, sum);
    }
    scores[(int64_t)token * ((int64_t)a.n_split * KEYS) + j] = sum;
}

#define THREADS 1024

/* The top_k-th largest of x[n], n > top_k; *n_equal: how many of its equals belong to the best. Byte by byte, the highest first. */
static __device__ uint32_t threshold(const float *x, int n, int top_k, int *count, int *shared, int *n_equal)
{
    uint32_t value = 0, known = 0;
    int left = top_k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < 256; i += THREADS) count[i] = 0;
        __syncthreads();
        for (int j = (int)threadIdx.x; j < n; j += THREADS) {
            const uint32_t u = order(x[j]);
            if ((u & known) == value) atomicAdd(&count[u >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int b = 255, l = left;
            for (; b > 0 && count[b] < l; b--) l -= count[b];
            shared[0] = b;
            shared[1] = l;
        }
        __syncthreads();
        value |= (uint32_t)shared[0] << shift;
        known |= 255u << shift;
        left = shared[1];
    }
    *n_equal = left;
    return value;
}

/* How many of the block's threads before this one have `is`, and of all; warps: 32 numbers. */
static __device__ int count_before(bool is, int *warps, int *all)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const unsigned ballot = __ballot_sync(0xffffffffu, is);
    int before = __popc(ballot & ((1u << lane) - 1));
    __syncthreads(); /* the last use of warps is over */
    if (lane == 0) warps[warp] = __popc(ballot);
    __syncthreads();
    *all = 0;
    for (int i = 0; i < THREADS / 32; i++) {
        if (i < warp) before += warps[i];
        *all += warps[i];
    }
    return before;
}

/* A block is a token: its list, in order of the index. */
static __global__ void __launch_bounds__(THREADS) choose_kernel(const __grid_constant__ struct cl_index a, const float *scores)
{
    __shared__ int count[256], shared[2], warps[THREADS / 32];
    ck_pdl_launch();
    ck_pdl_wait();
    const int token = (int)blockIdx.x, n = a.p.index[token] + 1;
    const float *x = scores + (int64_t)token * ((int64_t)a.n_split * KEYS);
    float *out = a.out + (int64_t)token * a.ld_out;
    if (n <= a.top_k) return;
    int n_equal, n_above = 0, n_same = 0, all;
    const uint32_t limit = threshold(x, n, a.top_k, count, shared, &n_equal);
    for (int first = 0; first < n; first += THREADS) {
        const int j = first + (int)threadIdx.x;
        const uint32_t u = j < n ? order(x[j]) : 0u;
        const bool above = j < n && u > limit, same = j < n && u == limit;
        const int above_before = n_above + count_before(above, warps, &all);
        n_above += all;
        const int same_before = n_same + count_before(same, warps, &all);
        n_same += all;
        if (above || (same && same_before < n_equal)) out[above_before + (same_before < n_equal ? same_before : n_equal)] = (float)j;
    }
}

static size_t row_bytes(int n_split)
{
    return (size_t)n_split * KEYS * sizeof(float);
}

extern "C" size_t cl_index_work_bytes(int n_context)
{
    size_t keys = KEYS, least = (size_t)32 << 20;
    while (keys < (size_t)n_context) keys *= 2; /* graphs round splits up */
    return keys * sizeof(float) > least ? keys * sizeof(float) : least;
}

extern "C" int cl_index(const struct ck_ctx *c, const struct cl_index *a, cudaStream_t st)
{
    const size_t smem = (size_t)a->n_head * (size_t)(a->dim + 1) * sizeof(float);
    if (a->dim > CL_INDEX_DIM_MAX || smem > CL_INDEX_Q_BYTES) return (int)cudaErrorInvalidValue;
    if ((int64_t)a->n_split * KEYS <= a->top_k) return 0; /* everybody sees everything */
    const int room = (int)(a->work_bytes / row_bytes(a->n_split)) < 65535 ? (int)(a->work_bytes / row_bytes(a->n_split)) : 65535;
    if (room < 1) return (int)cudaErrorInvalidValue;
    for (int t0 = 0; t0 < a->m; t0 += room) {
        const int m = a->m - t0 < room ? a->m - t0 : room;
        struct cl_index b = *a;
        b.p.table_of += t0;
        b.p.index += t0;
        b.q += (int64_t)t0 * a->ld_q;
        b.weights += (int64_t)t0 * a->ld_weights;
        b.table += (int64_t)t0 * a->n_rot;
        b.out += (int64_t)t0 * a->ld_out;
        int code = ck_launch(c, scores_kernel, dim3((unsigned)a->n_split, (unsigned)m), KEYS, smem, st, b, (float *)a->work);
        if (code == 0) code = ck_launch(c, choose_kernel, dim3((unsigned)m), THREADS, 0, st, b, (const float *)a->work);
        if (code != 0) return code;
    }
    return 0;
}
