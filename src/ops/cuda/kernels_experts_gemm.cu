/* kernels_experts_gemm.cu: products of a mixture of experts for prompts, with wgmma on sm_90a. Pieces are up to 64 slots of one expert; the
 * device says how many there are. x has a block for each piece (CK_X_PIECES, kernels_experts.cuh; steps.h: cs_gather_pieces).
 *
 * A block works as those of kernels_gemm.cu do (kernels_gemm.cuh); leaves and k steps are the same, and so are the bits. A prompt leaves an
 * expert few tokens: a piece of up to 32 slots is multiplied as 32 columns, and no more than it has are brought: what is multiplied beside
 * them is of nobody. (128 columns beside these two forms take more registers than there are.)
 * Row blocks of a piece follow one another, so that its x stays in the second-level cache, and its expert's weights for the next piece.
 */
#include "ops/cuda/kernels_experts.cuh"
#include "ops/cuda/kernels_gemm.cuh"
#include "ops/cuda/kernels_int.h"

#define NTOK CK_PIECE_TILE

struct experts_gemm_args {
    struct ck_out part[2]; /* the stacks, n: rows of an expert; gate and up, or down */
    struct ck_x x, out;
    struct ck_expert_list list;
    int n_blocks, n_ktile; /* row blocks of an expert */
    int glu;
};

template <int FMT, int NS, bool GLU> struct gemm : ck_gemm_ring<FMT, NS, GLU, NTOK, 8> {};

#if __CUDA_ARCH_FEAT_SM90_ALL
#define K_TILE (64 * NTOK * 2) /* bytes of x */

/* A warp brings all stages of all pieces of the block: lane i row tile i (gated: of gate and up in turn), the lane behind them the input. */
template <int FMT, int NS, bool GLU>
static __device__ __forceinline__ void gemm_bring(const struct experts_gemm_args &a, uint32_t ring, uint32_t full, uint32_t empty, int lane)
{
    using G = gemm<FMT, NS, GLU>;
    constexpr int tile = G::tile;
    const int n_stage = (a.n_ktile + 1) / 2;
    int slot = 0;
    uint32_t phase = 1;
    ck_pdl_wait();
    const int n_unit = *a.list.n_piece * a.n_blocks;
    for (int t = (int)blockIdx.x; t < n_unit; t += (int)gridDim.x) {
        const int i_piece = t / a.n_blocks, block = t % a.n_blocks;
        const struct ck_piece piece = ck_piece_at(a.list, i_piece);
        const struct ck_out &o = a.part[GLU ? lane & 1 : 0];
        const int rt = GLU ? block * (CK_GEMM_TILES / 2) + (lane >> 1) : block * CK_GEMM_TILES + lane, x_tile = ck_piece_stride(piece.n) * 128;
        const uint8_t *w = o.tiles + ((int64_t)piece.expert * (o.n / 16) + (rt * 16 < o.n ? rt : 0)) * a.n_ktile * tile; /* behind the last: any will do */
        const uint8_t *x = (const uint8_t *)a.x.v + (int64_t)i_piece * a.n_ktile * K_TILE;
        for (int s = 0; s < n_stage; s++) {
            const int n = 2 * s + 1 < a.n_ktile ? 2 : 1;
            const uint32_t bar = full + 8u * (uint32_t)slot, to = ring + (uint32_t)(slot * G::slot);
            ck_mbar_wait(empty + 8u * (uint32_t)slot, phase);
            if (lane == 0) ck_mbar_expect(bar, (uint32_t)(n * (CK_GEMM_TILES * tile + x_tile)));
            __syncwarp();
            if (lane < CK_GEMM_TILES) ck_bulk_plain(to + (uint32_t)(lane * 2 * tile), w + (int64_t)s * 2 * tile, (uint32_t)(n * tile), bar);
            if (lane == CK_GEMM_TILES) ck_bulk_plain(to + G::w_bytes, x + (int64_t)(2 * s) * x_tile, (uint32_t)(n * x_tile), bar);
            ck_gemm_next(G::depth, slot, phase);
        }
    }
}

/* What a thread's two sums of a column meet, loaded ahead of them: rows row and row + 8 of down, or one of gate and the same of up. */
template <bool GLU> static __device__ __forceinline__ void rows_load(const struct experts_gemm_args &a, int expert, int row, struct ck_row (&rows)[2])
{
    rows[0] = ck_row_load(ck_expert_part(a.part[0], expert), a.x.mul, row);
    rows[1] = ck_row_load(ck_expert_part(a.part[GLU ? 1 : 0], expert), a.x.mul, GLU ? row : row + 8);
}

/* A thread's sums of rows row and row + 8, columns 8 i + {0, 1} from its first on, to their slots' rows. */
template <int N>
static __device__ __forceinline__ void gemm_store(const struct experts_gemm_args &a, const struct ck_piece &p, int row, int lane, const struct ck_row (&rows)[2],
                                                  const float (&total)[N / 2])
{
    const struct ck_out &o = a.part[0];
    const int32_t *slots = a.list.slots + p.first;
    int slot[N / 4];
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int col = (i >> 1) * 8 + (lane & 3) * 2 + (i & 1);
        slot[i] = col < p.n ? slots[col] : -1;
    }
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const int k = (i >> 1) * 4 + (i & 1);
        if (slot[i] < 0) continue;
        float *y = o.y + (int64_t)slot[i] * o.ld_y + row;
        if (row < o.n) y[0] = ck_out_linear(o, rows[0], total[k]);
        if (row + 8 < o.n) y[8] = ck_out_linear(o, rows[1], total[k + 2]);
    }
}

/* A thread's sums of one row of gate and of up, in turn two by two, become the next linear input, through 32 rows in `room` (those of this
 * warpgroup). in32: the row among them. */
template <int N>
static __device__ __forceinline__ void gemm_gate(const struct experts_gemm_args &a, const struct ck_piece &p, int i_piece, int row32, int in32, int group, int lane,
                                                 const struct ck_row (&rows)[2], const float (&total)[N / 2], __half *room)
{
    const int row = row32 + in32, thread = (int)threadIdx.x & 127;
    const float inv = __fdiv_rn(1.0f, a.out.mul);
    ck_gemm_activate<N, NTOK>(a, inv, rows[0], rows[1], row, in32, group, lane, total, room);
    const int stride = ck_piece_stride(p.n), col = thread % NTOK;
    uint4 *dst = (uint4 *)((uint8_t *)a.out.v + (int64_t)i_piece * (a.out.k_pad >> 6) * K_TILE) + ((row32 >> 6) * 8 + ((row32 >> 5) & 1) * 4) * stride + col;
    if (col < p.n)
#pragma unroll
        for (int i = thread / NTOK; i < 4; i += 128 / NTOK) dst[i * stride] = ((const uint4 *)room)[i * NTOK + col];
    ck_gemm_meet(group);
}

/* Row block `block` of a piece, of up to N columns: this warp's part. */
template <int FMT, int NS, bool GLU, int N>
static __device__ __forceinline__ void gemm_unit(const struct experts_gemm_args &a, const struct ck_piece &piece, int i_piece, int block, uint8_t *smem, uint32_t full,
                                                 uint32_t empty, int &slot, uint32_t &phase, int group, int warp, int lane)
{
    const int half = warp & 1, first_tile = GLU ? (group * 4 + warp) & ~1 : group * 4 + warp; /* in a slot */
    const int row32 = block * (CK_GEMM_TILES * 8) + group * 32, in32 = (warp >> 1) * 16 + half * 8 + (lane >> 2);
    const int row = GLU ? row32 + in32 : (block * CK_GEMM_TILES + group * 4 + warp) * 16 + (lane >> 2);
    struct ck_row rows[2];
    float total[N / 2];
    rows_load<GLU>(a, piece.expert, row, rows);
    ck_gemm_multiply<FMT, NS, GLU, N, gemm<FMT, NS, GLU>>(a.n_ktile, smem, full, empty, slot, phase, first_tile, half, lane, (threadIdx.x & 127) == 0, ck_piece_stride(piece.n), total);
    if constexpr (GLU)
        gemm_gate<N>(a, piece, i_piece, row32, in32, group, lane, rows, total,
                     (__half *)(smem + gemm<FMT, NS, GLU>::depth * gemm<FMT, NS, GLU>::slot) + group * 32 * NTOK);
    else gemm_store<N>(a, piece, row, lane, rows, total);
}
#endif

template <int FMT, int NS, bool GLU> static __global__ void __launch_bounds__(CK_GEMM_THREADS, 1) experts_gemm_kernel(const __grid_constant__ struct experts_gemm_args a)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    using G = gemm<FMT, NS, GLU>;
    constexpr int D = G::depth;
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t full = ck_smem(smem + G::bars), empty = full + 8u * D;
    const int group = (int)threadIdx.x >> 7, lane = (int)threadIdx.x & 31, warp = ((int)threadIdx.x >> 5) & 3;
    ck_gemm_begin(full, empty, D);
    ck_pdl_launch();
    if (group == CK_GEMM_GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 0) gemm_bring<FMT, NS, GLU>(a, ck_smem(smem), full, empty, lane);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    ck_pdl_wait();
    const int n_unit = *a.list.n_piece * a.n_blocks;
    int slot = 0;
    uint32_t phase = 0;
    for (int t = (int)blockIdx.x; t < n_unit; t += (int)gridDim.x) {
        const int i_piece = t / a.n_blocks, block = t % a.n_blocks;
        const struct ck_piece piece = ck_piece_at(a.list, i_piece);
        if (piece.n <= 32) gemm_unit<FMT, NS, GLU, 32>(a, piece, i_piece, block, smem, full, empty, slot, phase, group, warp, lane);
        else gemm_unit<FMT, NS, GLU, NTOK>(a, piece, i_piece, block, smem, full, empty, slot, phase, group, warp, lane);
    }
#endif
}

/* --- launch --- */

template <int FMT, int NS, bool GLU> static int launch(const struct ck_ctx *c, const struct experts_gemm_args &a, int n_unit, cudaStream_t st)
{
    const int n = n_unit < c->n_sm ? n_unit : c->n_sm;
    return ck_launch(c, experts_gemm_kernel<FMT, NS, GLU>, dim3((unsigned)n), CK_GEMM_THREADS, gemm<FMT, NS, GLU>::bytes, st, a);
}
template <bool GLU> static int launch_format(const struct ck_ctx *c, const struct ck_weight *w, const struct experts_gemm_args &a, int n_unit, cudaStream_t st)
{
    return ck_launch_form(w->format, w->n_scale, [&](auto f) { return launch<decltype(f)::format, decltype(f)::n_scale, GLU>(c, a, n_unit, st); });
}

extern "C" int ck_experts_gemm(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *w, const struct ck_out *parts,
                               int glu, const struct ck_x *out, cudaStream_t st)
{
    struct experts_gemm_args a = {};
    a.part[0] = parts[0];
    a.x = *x;
    a.list = e->list;
    a.n_ktile = (int)(x->k_pad / 64);
    a.glu = glu;
    if (out) {
        a.part[1] = parts[1];
        a.out = *out;
    }
    a.n_blocks = out ? (int)(out->k_pad / (CK_GEMM_TILES * 8)) : (parts[0].n + CK_GEMM_TILES * 16 - 1) / (CK_GEMM_TILES * 16);
    const int n_unit = (e->m * e->top_k / NTOK + e->n_expert) * a.n_blocks;
    return out ? launch_format<true>(c, w, a, n_unit, st) : launch_format<false>(c, w, a, n_unit, st);
}
