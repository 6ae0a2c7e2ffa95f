/* kernels_latent.cu: attention over latents. All heads of a token share the keys, so that rows of the tensor core's tiles are heads, and the values are
 * columns of the keys: a tile of 64 keys lies in shared memory once for both.
 *
 * A block is 16 RG heads of a token and goes through tiles of 64 keys: scores by all warps (RG row tiles, the others split the keys), softmax by four threads a
 * row, then p times values (the warps split the columns). With few tokens each split of 256 keys has a block of its own, which leaves
 * (m, l, o) in `work`, and a second launch merges them left to right (kernels_latent_merge.cu); with many a block takes all splits and merges in
 * `out` as it goes: the same operations, so the same bits. A row's numbers do not depend on the rows beside it.
 * f32 and bf16 pages, and heads that are not whole steps of 16: kernels_latent_plain.cu. 64 heads a block: kernels_latent_wide.cu.
 */
#include "ops/cuda/kernels_latent.cuh"

#define S_LD 68 /* floats of a row of scores; its p, as halves, take their place */

/* --- tensor cores --- */

static __device__ __forceinline__ void ldm4(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static __device__ __forceinline__ void ldm4_turned(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static __device__ __forceinline__ void ldm2(uint32_t r[2], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}

/* Shared memory of a block; bytes from its beginning. */
struct places { uint32_t q, k, s, factors, turns; };
template <int RG> static __host__ __device__ __forceinline__ struct places places_of(int d_pad, size_t *bytes)
{
    struct places p;
    p.q = 0;
    p.k = p.q + 16u * RG * (uint32_t)d_pad * 2;
    p.s = p.k + 2u * CL_TILE * (uint32_t)d_pad * 2;
    p.factors = p.s + 16u * RG * S_LD * 4;      /* [4][16 RG]: al, then of a split's end */
    p.turns = p.factors + 4u * 16 * RG * 4;     /* [2][CL_TILE] how a key's chunks lie: its index mod 8 */
    *bytes = p.turns + 2u * CL_TILE * 4;
    return p;
}

/* Tile `tile` to its buffer; keys that are not there as zeros. */
static __device__ __forceinline__ void bring_tile(const struct cl_attend &a, const struct seen &s, int token, int tile, int d_pad, uint32_t k_at, int *turns)
{
    const int tid = (int)threadIdx.x, chunks = d_pad / 8;
    /* Four threads a key. */
    const int row = tid >> 2, j = tile * CL_TILE + row;
    const bool there = j < s.n;
    const int index = key_index(s, there ? j : 0);
    const uint8_t *from = cl_key(a.p, token, index);
    const uint32_t to = k_at + (uint32_t)row * (uint32_t)d_pad * 2;
    if ((tid & 3) == 0) turns[row] = index & 7;
    for (int c = tid & 3; c < chunks; c += 4) cl_copy16(to + (uint32_t)c * 16, from + c * 16, there);
}

/* Queries of the block's heads as halves: chunk c of row r at c ^ (r % 8). */
template <int RG> static __device__ __forceinline__ void bring_q(const struct cl_attend &a, int token, int head0, int d_pad, __half *q)
{
    const float *from = a.q + (int64_t)token * a.ld_q;
    for (int i = (int)threadIdx.x; i < 16 * RG * d_pad; i += CL_THREADS) {
        const int row = i / d_pad, dim = i % d_pad, head = head0 + row;
        const float v = head < a.n_head && dim < a.d ? from[(int64_t)head * a.d + dim] : 0.0f;
        q[row * d_pad + (((dim >> 3) ^ (row & 7)) << 3) + (dim & 7)] = __float2half_rn(v);
    }
}

/* Scores of 16 rows against 8 RG keys, to s. */
template <int RG> static __device__ __forceinline__ void score_tile(const struct cl_attend &a, uint32_t q_at, uint32_t k_at, const int *turns, int d_pad, float *s)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, row0 = warp % RG * 16, key0 = warp / RG * 8 * RG;
    const int q_row = row0 + (lane & 15), q_turn = q_row & 7, q_half = lane >> 4;
    const uint32_t q_from = q_at + (uint32_t)(q_row * d_pad) * 2;
    float acc[RG][4];
    uint32_t k_from[RG];
    int k_turn[RG];
#pragma unroll
    for (int b = 0; b < RG; b++) {
        const int key = key0 + 8 * b + (lane & 7);
        k_from[b] = k_at + (uint32_t)(key * d_pad) * 2;
        k_turn[b] = turns[key];
#pragma unroll
        for (int e = 0; e < 4; e++) acc[b][e] = 0.0f;
    }
#pragma unroll 4
    for (int step = 0; step < a.d / 16; step++) {
        uint32_t x[4];
        ldm4(x, q_from + (uint32_t)(((2 * step + q_half) ^ q_turn) * 16));
#pragma unroll
        for (int b = 0; b < RG; b++) {
            uint32_t y[2];
            ldm2(y, k_from[b] + (uint32_t)(((2 * step + (lane >> 3 & 1)) ^ k_turn[b]) * 16));
            ck_mma_f16(acc[b], x, y[0], y[1]);
        }
    }
#pragma unroll
    for (int b = 0; b < RG; b++) {
        float *to = s + (row0 + (lane >> 2)) * S_LD + key0 + 8 * b + 2 * (lane & 3);
        to[0] = acc[b][0];
        to[1] = acc[b][1];
        to[8 * S_LD] = acc[b][2];
        to[8 * S_LD + 1] = acc[b][3];
    }
}

/* A row's softmax: four threads, 16 keys each: of every 8, keys 2 part and 2 part + 1, as an instruction's results lie. */
struct row_state { float m, l; struct merged all; };
static __device__ __forceinline__ float weigh(float *s_row, int part, int n_left, struct row_state &r)
{
    float v[16], top = -INFINITY, sum[2] = { 0.0f, 0.0f };
    const int first = 2 * part;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int key = first + i / 2 * 8 + i % 2;
        v[i] = s_row[key];
        if (key < n_left) top = fmaxf(top, v[i]);
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    top = fmaxf(r.m, top);
    const float al = ck_exp2(__fsub_rn(r.m, top));
#pragma unroll
    for (int i = 0; i < 16; i++) {
        v[i] = first + i / 2 * 8 + i % 2 < n_left ? ck_exp2(__fsub_rn(v[i], top)) : 0.0f;
        sum[i / 8] = __fadd_rn(sum[i / 8], v[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(0xffffffffu, sum[h], 1));
        sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(0xffffffffu, sum[h], 2));
    }
    r.m = top;
    r.l = __fmaf_rn(r.l, al, __fadd_rn(sum[0], sum[1]));
    __half2 *p = (__half2 *)s_row + part;
    __syncwarp(); /* the row has been read */
#pragma unroll
    for (int i = 0; i < 8; i++) p[4 * i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
    return al;
}

/* o = o * al + p * values of the tile: 16 rows, 64 RG columns a warp. */
template <int RG>
static __device__ __forceinline__ void add_values(const struct cl_attend &a, float (&o)[8 * RG][4], uint32_t p_at, uint32_t k_at, const int *turns, int d_pad, const float *al)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, row0 = warp % RG * 16, col0 = warp / RG * 64 * RG;
    const float lo = al[row0 + (lane >> 2)], hi = al[row0 + (lane >> 2) + 8];
#pragma unroll
    for (int b = 0; b < 8 * RG; b++) {
        o[b][0] = __fmul_rn(o[b][0], lo);
        o[b][1] = __fmul_rn(o[b][1], lo);
        o[b][2] = __fmul_rn(o[b][2], hi);
        o[b][3] = __fmul_rn(o[b][3], hi);
    }
#pragma unroll
    for (int step = 0; step < CL_TILE / 16; step++) {
        uint32_t p[4];
        ldm4(p, p_at + (uint32_t)((row0 + (lane & 15)) * S_LD * 4 + (2 * step + (lane >> 4)) * 16));
        const int key = 16 * step + (lane & 15), turn = turns[key];
        const uint32_t from = k_at + (uint32_t)(key * d_pad) * 2;
#pragma unroll
        for (int b = 0; b < 4 * RG; b++) {
            uint32_t v[4];
            if (col0 + 16 * b >= a.d_value) continue; /* the same for the whole warp */
            ldm4_turned(v, from + (uint32_t)((((col0 >> 3) + 2 * b + (lane >> 4)) ^ turn) * 16));
            ck_mma_f16(o[2 * b], p, v[0], v[1]);
            ck_mma_f16(o[2 * b + 1], p, v[2], v[3]);
        }
    }
}

/* The end of a split: o to its place, or into out, which holds what came before. f: [3][16 RG] factors of old and new, of the result. */
template <int RG>
static __device__ __forceinline__ void leave(const struct cl_attend &a, float (&o)[8 * RG][4], int token, int head0, int split, bool alone, bool first, const float *f)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, row0 = warp % RG * 16 + (lane >> 2), col0 = warp / RG * 64 * RG + 2 * (lane & 3);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + 8 * half, head = head0 + row;
        if (head >= a.n_head) continue;
        float *to = alone ? part_o(a) + part_at(a, token, head, split) * a.d_value : a.out + (int64_t)token * a.ld_out + (int64_t)head * a.d_value;
        const float old_by = f[row], new_by = f[16 * RG + row], by = f[2 * 16 * RG + row];
        float2 old[8 * RG]; /* on their way together */
#pragma unroll
        for (int b = 0; b < 8 * RG; b++) old[b] = alone || first || col0 + 8 * b >= a.d_value ? make_float2(0.0f, 0.0f) : __ldcg((const float2 *)(to + col0 + 8 * b));
#pragma unroll
        for (int b = 0; b < 8 * RG; b++) {
            if (col0 + 8 * b >= a.d_value) continue;
            float2 v = make_float2(o[b][2 * half], o[b][2 * half + 1]);
            if (!alone) {
                v.x = __fmul_rn(__fmaf_rn(v.x, new_by, __fmul_rn(old[b].x, old_by)), by);
                v.y = __fmul_rn(__fmaf_rn(v.y, new_by, __fmul_rn(old[b].y, old_by)), by);
            }
            *(float2 *)(to + col0 + 8 * b) = v;
        }
    }
}

/* alone: block z is a split; else the block takes all of them. */
template <int RG> static __global__ void __launch_bounds__(CL_THREADS) latent_attend_kernel(const __grid_constant__ struct cl_attend a, int alone)
{
    extern __shared__ __align__(128) uint8_t smem[];
    ck_pdl_launch();
    ck_pdl_wait();
    const int tid = (int)threadIdx.x, token = (int)blockIdx.x, head0 = (int)blockIdx.y * 16 * RG, d_pad = (a.d + 63) / 64 * 64;
    const struct seen s = seen_by(a, token);
    const int tile0 = alone ? (int)blockIdx.z * CL_TILES : 0, all = (s.n + CL_TILE - 1) / CL_TILE, end = alone ? min(all, tile0 + CL_TILES) : all;
    if (tile0 >= all) return;
    size_t bytes;
    const struct places at = places_of<RG>(d_pad, &bytes);
    const uint32_t base = ck_smem(smem), tile_bytes = CL_TILE * (uint32_t)d_pad * 2;
    float *scores = (float *)(smem + at.s), *factors = (float *)(smem + at.factors);
    int *turns = (int *)(smem + at.turns);
    struct row_state row = { -INFINITY, 0.0f, { -INFINITY, 0.0f, 0.0f, 0.0f } };
    float o[8 * RG][4];
    bring_tile(a, s, token, tile0, d_pad, base + at.k, turns);
    bring_q<RG>(a, token, head0, d_pad, (__half *)(smem + at.q));
    for (int tile = tile0; tile < end; tile++) {
        const int buffer = (tile - tile0) & 1;
        const uint32_t k_at = base + at.k + (uint32_t)buffer * tile_bytes;
        const int *turn = turns + buffer * CL_TILE;
        const bool begins = tile % CL_TILES == 0, ends = tile + 1 == end || (tile + 1) % CL_TILES == 0;
        cl_copies_end();
        __syncthreads(); /* the tile is there, and nobody reads the other one any more */
        if (tile + 1 < end) bring_tile(a, s, token, tile + 1, d_pad, base + at.k + (uint32_t)(buffer ^ 1) * tile_bytes, turns + (buffer ^ 1) * CL_TILE);
        score_tile<RG>(a, base + at.q, k_at, turn, d_pad, scores);
        __syncthreads();
        if (tid < 4 * 16 * RG) {
            const int r = tid >> 2;
            if (begins) {
                row.m = -INFINITY;
                row.l = 0.0f;
            }
            const float al = weigh(scores + r * S_LD, tid & 3, s.n - tile * CL_TILE, row);
            if (ends) merge_next(row.all, row.m, row.l);
            if ((tid & 3) == 0) {
                factors[r] = al;
                factors[16 * RG + r] = row.all.old_by;
                factors[2 * 16 * RG + r] = row.all.new_by;
                factors[3 * 16 * RG + r] = tile + 1 < end ? 1.0f : row.all.l == 0.0f ? 0.0f : __fdiv_rn(1.0f, row.all.l);
                if (alone && ends && head0 + r < a.n_head) {
                    float *ml = part_ml(a) + part_at(a, token, head0 + r, (int)blockIdx.z) * 2;
                    ml[0] = row.m;
                    ml[1] = row.l;
                }
            }
        }
        __syncthreads();
        if (begins)
#pragma unroll
            for (int b = 0; b < 8 * RG; b++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[b][e] = 0.0f;
        add_values<RG>(a, o, base + at.s, k_at, turn, d_pad, factors);
        if (ends) leave<RG>(a, o, token, head0, (int)blockIdx.z, alone != 0, tile < CL_TILES, factors + 16 * RG);
    }
}

/* Tokens [t0, t0 + m) of a. */
static struct cl_attend tokens_of(const struct cl_attend *a, int t0, int m)
{
    struct cl_attend b = *a;
    b.p.table_of += t0;
    b.p.index += t0;
    b.q += (int64_t)t0 * a->ld_q;
    b.out += (int64_t)t0 * a->ld_out;
    if (a->chosen) b.chosen += (int64_t)t0 * a->ld_chosen;
    b.m = m;
    return b;
}

template <int RG> static int launch_tiles(const struct ck_ctx *c, const struct cl_attend *a, int alone, cudaStream_t st)
{
    size_t smem;
    places_of<RG>((a->d + 63) / 64 * 64, &smem);
    return ck_launch(c, latent_attend_kernel<RG>, dim3((unsigned)a->m, (unsigned)((a->n_head + 16 * RG - 1) / (16 * RG)), alone ? (unsigned)a->n_split : 1u), CL_THREADS, smem,
                     st, *a, alone);
}

/* rows: heads of a block. */
static int launch(const struct ck_ctx *c, const struct cl_attend *a, int rows, int alone, cudaStream_t st)
{
    return rows == 64 ? cl_attend_wide(c, a, alone, st) : rows == 32 ? launch_tiles<2>(c, a, alone, st) : launch_tiles<1>(c, a, alone, st);
}

static int attend_by(const struct ck_ctx *c, const struct cl_attend *a, int rows, cudaStream_t st)
{
    const int64_t blocks = (int64_t)a->m * ((a->n_head + rows - 1) / rows);
    if (a->n_split <= 1 || blocks >= 2 * c->n_sm) return launch(c, a, rows, 0, st);
    const int room = (int)(a->work_bytes / (cl_pair_bytes(a->n_head, a->d_value) * (size_t)a->n_split));
    if (room < 1) return (int)cudaErrorInvalidValue;
    for (int t0 = 0; t0 < a->m; t0 += room) {
        const struct cl_attend b = tokens_of(a, t0, a->m - t0 < room ? a->m - t0 : room);
        int code = launch(c, &b, rows, 1, st);
        if (code == 0) code = cl_attend_merge(c, &b, st);
        if (code != 0) return code;
    }
    return 0;
}

/* --- the entries --- */

/* Has a block of RG row tiles room on this card? */
template <int RG> static bool fits(const struct ck_ctx *c, int d)
{
    size_t smem;
    int most = 0;
    places_of<RG>((d + 63) / 64 * 64, &smem);
    return cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->device) == cudaSuccess && smem <= (size_t)most;
}

/* As many heads a block as leave no multiprocessor without one. */
extern "C" int cl_attend(const struct ck_ctx *c, const struct cl_attend *a, cudaStream_t st)
{
    const int64_t blocks = (int64_t)a->m * ((a->n_head + 31) / 32) * (a->n_split > 0 ? a->n_split : 1);
    if (a->d > CL_D_MAX || a->d_value > CL_VALUE_MAX || a->d_value > a->d) return (int)cudaErrorInvalidValue;
    if (a->p.format != CK_KV_F16 || a->d % 16 != 0 || a->d_value % 16 != 0 || a->ld_out % 2 != 0 || !fits<1>(c, a->d)) return cl_attend_plain(c, a, st);
    if (a->n_head > 16 && cl_is_wide(c, a)) return attend_by(c, a, 64, st);
    return attend_by(c, a, a->n_head > 16 && blocks >= c->n_sm && fits<2>(c, a->d) ? 32 : 16, st);
}
