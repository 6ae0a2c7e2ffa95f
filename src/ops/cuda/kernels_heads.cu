/* kernels_heads.cu: a matrix for each head: what leads from queries into the space of latents, and from there to values. A block is 128 outputs of
 * one head for up to 32 tokens, whose columns wait in shared memory as halves; a warp is a tile of 16 outputs. The leaves and steps are
 * those of every product (kernels.h), so that the number of tokens changes nothing.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/latent.h"

#define WARPS 8
#define TOKENS 32
#define PAD 32 /* halves behind a row in shared memory: rows begin 64 bytes apart */

/* Columns of `n_tok` tokens from `first` on as halves, zeros behind the k-th and for tokens that are not there, up to n_room. */
static __device__ void bring(const struct cl_heads &a, int head, int first, int n_tok, int n_room, int k, int k_pad, __half *x)
{
    for (int i = (int)threadIdx.x; i < n_room * k_pad; i += WARPS * 32) {
        int tok = i / k_pad, kk = i % k_pad;
        float v = tok < n_tok && kk < k ? a.in[(int64_t)(first + tok) * a.ld_in + head * a.in_step + kk] : 0.0f;
        x[tok * (k_pad + PAD) + kk] = __float2half_rn(v);
    }
    __syncthreads();
}

/* NB: blocks of 8 tokens. */
template <int FMT, int NS, int NB> static __global__ void __launch_bounds__(WARPS * 32) heads_kernel(const __grid_constant__ struct cl_heads a, ck_out o, int k)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __half *x = (__half *)smem;
    ck_pdl_launch();
    ck_pdl_wait();
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, head = (int)blockIdx.y, first = (int)blockIdx.z * TOKENS;
    const int n_tiles = (k + 63) / 64, k_pad = n_tiles * 64, n_tok = min(TOKENS, a.m - first), n = o.n / a.n_head, row0 = ((int)blockIdx.x * WARPS + warp) * 16;
    bring(a, head, first, n_tok, 8 * NB, k, k_pad, x);
    if (row0 >= n) return;
    const uint8_t *tiles = o.tiles + (size_t)((head * n + row0) / 16) * (size_t)n_tiles * (size_t)ck_tile_size<FMT, NS>();
    const __half *mine = x + (lane >> 2) * (k_pad + PAD) + 8 * (lane & 3);
    float sum[NB][4], acc[NB][4];
    for (int leaf = 0; leaf < CK_LEAVES; leaf++) {
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[b][e] = 0.0f;
        for (int g = ck_leaf_first(n_tiles, leaf); g < ck_leaf_first(n_tiles, leaf + 1); g++) {
            ck_lane_tile<FMT, NS> tile;
            tile.load(tiles + (size_t)g * ck_tile_size<FMT, NS>(), lane);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t w0[4], w1[4];
                tile.frag(w0, 2 * half, lane);
                tile.frag(w1, 2 * half + 1, lane);
#pragma unroll
                for (int b = 0; b < NB; b++) {
                    const uint4 v = *(const uint4 *)(mine + 8 * b * (k_pad + PAD) + 64 * g + 32 * half);
                    ck_mma_f16(acc[b], w0, v.x, v.y);
                    ck_mma_f16(acc[b], w1, v.z, v.w);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[b][e] = leaf == 0 ? acc[b][e] : __fadd_rn(sum[b][e], acc[b][e]);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int row = row0 + (lane >> 2) + (e & 2) * 4;
        const struct ck_row r = ck_row_load(o, 1.0f, head * n + row);
#pragma unroll
        for (int b = 0; b < NB; b++) {
            const int tok = 8 * b + 2 * (lane & 3) + (e & 1);
            if (tok < n_tok) a.out[(int64_t)(first + tok) * a.ld_out + head * a.out_step + row] = ck_out_linear(o, r, sum[b][e]);
        }
    }
}

template <int FMT, int NS> static int launch(const struct ck_ctx *c, const struct cl_heads *a, cudaStream_t st)
{
    struct ck_part part = {};
    struct ck_out o;
    part.w = a->w;
    ck_fill_out(&o, a->w, &part);
    const int k = (int)a->w->k, k_pad = (k + 63) / 64 * 64, n = (int)a->w->n / a->n_head;
    const dim3 grid((unsigned)((n / 16 + WARPS - 1) / WARPS), (unsigned)a->n_head, (unsigned)((a->m + TOKENS - 1) / TOKENS));
    const size_t smem = (size_t)TOKENS * (size_t)(k_pad + PAD) * 2;
    if (a->m <= 8) return ck_launch(c, heads_kernel<FMT, NS, 1>, grid, WARPS * 32, smem, st, *a, o, k);
    return ck_launch(c, heads_kernel<FMT, NS, TOKENS / 8>, grid, WARPS * 32, smem, st, *a, o, k);
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
