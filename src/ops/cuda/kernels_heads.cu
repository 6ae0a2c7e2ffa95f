/* kernels_heads.cu: a matrix for each head: what leads from queries into the space of latents, and from there to values. A block is 128 outputs of
 * one head at a time for up to 64 tokens, whose columns wait in shared memory as halves; a warp is a tile of 16 outputs. The leaves and steps are
 * those of every product (kernels.h), so that the number of tokens changes nothing.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/latent.h"

#define WARPS 8
#define PAD 32 /* halves behind a row in shared memory: rows begin 64 bytes apart */

struct heads_args {
    struct cl_heads a;
    struct ck_out o;
    int k, chunks;  /* of 128 outputs that a block takes */
    bool fours;     /* columns lie so that four go at a time */
};

/* Columns of `n_tok` tokens from `first` on as halves, zeros behind the k-th and for tokens that are not there, up to n_room. */
static __device__ void bring(const struct heads_args &g, int head, int first, int n_tok, int n_room, int k_pad, __half *x)
{
    const float *from = g.a.in + (int64_t)first * g.a.ld_in + head * g.a.in_step;
    if (g.fours) {
        for (int i = (int)threadIdx.x; i < n_room * k_pad / 4; i += WARPS * 32) {
            const int tok = i / (k_pad / 4), kk = i % (k_pad / 4) * 4;
            const float4 v = tok < n_tok && kk < g.k ? *(const float4 *)(from + (int64_t)tok * g.a.ld_in + kk) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            __half2 *to = (__half2 *)(x + tok * (k_pad + PAD) + kk);
            to[0] = __floats2half2_rn(v.x, v.y);
            to[1] = __floats2half2_rn(v.z, v.w);
        }
    } else {
        for (int i = (int)threadIdx.x; i < n_room * k_pad; i += WARPS * 32) {
            const int tok = i / k_pad, kk = i % k_pad;
            x[tok * (k_pad + PAD) + kk] = __float2half_rn(tok < n_tok && kk < g.k ? from[(int64_t)tok * g.a.ld_in + kk] : 0.0f);
        }
    }
    __syncthreads();
}

template <int NB> static __device__ __forceinline__ void store(const struct heads_args &g, int head, int row0, int n, int first, int n_tok, const float (&sum)[NB][4], int lane)
{
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        const int row = row0 + (lane >> 2) + e * 4;
        const struct ck_row r = ck_row_load(g.o, 1.0f, head * n + row);
        float *to = g.a.out + (int64_t)first * g.a.ld_out + head * g.a.out_step + row;
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
                const int tok = 8 * b + 2 * (lane & 3) + f;
                if (tok < n_tok) to[(int64_t)tok * g.a.ld_out] = ck_out_linear(g.o, r, sum[b][e + f]);
            }
    }
}

/* NB: blocks of 8 tokens. */
template <int FMT, int NS, int NB> static __global__ void __launch_bounds__(WARPS * 32, 2) heads_kernel(const __grid_constant__ struct heads_args g)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __half *x = (__half *)smem;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, head = (int)blockIdx.y, first = (int)blockIdx.z * 8 * NB, k = g.k;
    const int n_tiles = (k + 63) / 64, k_pad = n_tiles * 64, n_tok = min(8 * NB, g.a.m - first), n = g.o.n / g.a.n_head;
    const int chunk0 = (int)blockIdx.x * g.chunks;
    const uint8_t *head_tiles = g.o.tiles + (size_t)(head * n / 16) * (size_t)n_tiles * (size_t)ck_tile_size<FMT, NS>();
    const __half *mine = x + (lane >> 2) * (k_pad + PAD) + 8 * (lane & 3);
    ck_lane_tile<FMT, NS> tile, next;
    if ((chunk0 * WARPS + warp) * 16 < n) next.load(head_tiles + (size_t)(chunk0 * WARPS + warp) * (size_t)n_tiles * (size_t)ck_tile_size<FMT, NS>(), lane);
    ck_pdl_launch();
    ck_pdl_wait();
    bring(g, head, first, n_tok, 8 * NB, k_pad, x);
    for (int chunk = chunk0; chunk < chunk0 + g.chunks; chunk++) {
        const int row0 = (chunk * WARPS + warp) * 16;
        if (row0 >= n) return;
        const uint8_t *tiles = head_tiles + (size_t)(row0 / 16) * (size_t)n_tiles * (size_t)ck_tile_size<FMT, NS>();
        const bool more = chunk + 1 < chunk0 + g.chunks && row0 + WARPS * 16 < n; /* the next chunk's first tile comes behind this one's last */
        float sum[NB][4], acc[NB][4];
        int leaf = 0;
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[b][e] = acc[b][e] = 0.0f;
        for (int t = 0; t < n_tiles; t++) {
            tile = next;
            if (t + 1 < n_tiles) next.load(tiles + (size_t)(t + 1) * ck_tile_size<FMT, NS>(), lane);
            else if (more) next.load(tiles + (size_t)WARPS * (size_t)n_tiles * (size_t)ck_tile_size<FMT, NS>(), lane);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t w0[4], w1[4];
                tile.frag(w0, 2 * half, lane);
                tile.frag(w1, 2 * half + 1, lane);
#pragma unroll
                for (int b = 0; b < NB; b++) {
                    const uint4 v = *(const uint4 *)(mine + 8 * b * (k_pad + PAD) + 64 * t + 32 * half);
                    ck_mma_f16(acc[b], w0, v.x, v.y);
                    ck_mma_f16(acc[b], w1, v.z, v.w);
                }
            }
            while (ck_leaf_first(n_tiles, leaf + 1) <= t) leaf++;
            if (ck_leaf_first(n_tiles, leaf + 1) > t + 1) continue;
#pragma unroll
            for (int b = 0; b < NB; b++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sum[b][e] = __fadd_rn(sum[b][e], acc[b][e]); /* a leaf is never -0, so that beginning from +0 changes nothing */
                    acc[b][e] = 0.0f;
                }
        }
        store<NB>(g, head, row0, n, first, n_tok, sum, lane);
    }
}

template <int FMT, int NS> static int launch(const struct ck_ctx *c, const struct cl_heads *a, cudaStream_t st)
{
    struct ck_part part = {};
    struct heads_args g = {};
    part.w = a->w;
    ck_fill_out(&g.o, a->w, &part);
    g.a = *a;
    g.k = (int)a->w->k;
    g.fours = g.k % 4 == 0 && a->ld_in % 4 == 0 && a->in_step % 4 == 0 && (uintptr_t)a->in % 16 == 0;
    const int k_pad = (g.k + 63) / 64 * 64, n = (int)a->w->n / a->n_head, chunks = (n / 16 + WARPS - 1) / WARPS, room = a->m <= 8 ? 8 : a->m <= 32 ? 32 : 64;
    g.chunks = a->m > 128 ? chunks : 1; /* of many tokens a block takes all outputs: their columns are brought once */
    const dim3 grid((unsigned)((chunks + g.chunks - 1) / g.chunks), (unsigned)a->n_head, (unsigned)((a->m + room - 1) / room));
    const size_t smem = (size_t)room * (size_t)(k_pad + PAD) * 2;
    if (room == 8) return ck_launch(c, heads_kernel<FMT, NS, 1>, grid, WARPS * 32, smem, st, g);
    if (room == 32) return ck_launch(c, heads_kernel<FMT, NS, 4>, grid, WARPS * 32, smem, st, g);
    return ck_launch(c, heads_kernel<FMT, NS, 8>, grid, WARPS * 32, smem, st, g);
}

extern "C" int cl_heads(const struct ck_ctx *c, const struct cl_heads *a, cudaStream_t st)
{
    if (a->w->n % (16 * a->n_head) != 0 || a->w->k > CL_HEADS_K_MAX) return (int)cudaErrorInvalidValue;
    switch (a->w->format * 8 + a->w->n_scale) {
    case CK_Q4 * 8 + 1: return launch<CK_Q4, 1>(c, a, st);
    case CK_Q4 * 8 + 2: return launch<CK_Q4, 2>(c, a, st);
    case CK_Q8 * 8 + 1: return launch<CK_Q8, 1>(c, a, st);
    case CK_Q8 * 8 + 2: return launch<CK_Q8, 2>(c, a, st);
    case CK_Q8 * 8 + 4: return launch<CK_Q8, 4>(c, a, st);
    case CK_F16 * 8: return launch<CK_F16, 1>(c, a, st);
    default: return (int)cudaErrorInvalidValue;
    }
}
