/* kernels_experts_gemm.cu: products of a mixture of experts for prompts, with wgmma on sm_90a. Pieces are up to 64 slots of one expert; the
 * device says how many there are. x has a block for each piece (CK_X_PIECES, kernels_experts.cuh; steps.h: cs_gather_pieces).
 *
 * As in kernels_gemm.cu a warp brings weights and x through a ring, and two warpgroups of 64 rows multiply; leaves and k steps are the same,
 * and so are the bits. A prompt leaves an expert few tokens: a piece of up to 32 slots is multiplied as 32 columns, and no more than it has are brought: what
 * is multiplied beside them is of nobody.
 * (128 columns beside these two forms take more registers than there are.) Row blocks of a piece follow one another, so that its x stays in the second-level cache, and its expert's weights for the next piece.
 */
#include "ops/cuda/kernels_experts.cuh"
#include "ops/cuda/kernels_int.h"
#include "ops/cuda/kernels_wgmma.cuh"

#define NTOK CK_PIECE_TILE
#define GROUPS 2                     /* warpgroups that multiply */
#define TILES (GROUPS * 4)           /* row tiles of a block; gated: of gate and of up together */
#define THREADS (GROUPS * 128 + 128) /* a whole warpgroup brings, so that the others can have its registers */

struct experts_gemm_args {
    struct ck_out part[2]; /* the stacks, n: rows of an expert; gate and up, or down */
    struct ck_x x, out;
    struct ck_expert_list list;
    int n_blocks, n_ktile; /* row blocks of an expert */
    int glu;
};

template <int FMT, int NS, bool GLU> struct gemm {
    enum {
        tile = ck_tile_size<FMT, NS>(),
        w_bytes = TILES * 2 * tile,
        x_bytes = 2 * 64 * NTOK * 2,
        slot = w_bytes + x_bytes,
        gated = GLU ? GROUPS * 32 * NTOK * 2 : 0, /* outputs on their way */
        fit = (226 * 1024 - gated) / slot,
        depth = fit > 8 ? 8 : fit,
        bars = depth * slot + gated,
        bytes = bars + 16 * depth
    };
};

#if __CUDA_ARCH_FEAT_SM90_ALL
#define K_TILE (64 * NTOK * 2) /* bytes of x */

/* Fewer columns than wg_mma's 128. */
static __device__ __forceinline__ void wg_mma(float (&d)[32], const uint32_t a[4], uint64_t desc, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : WG_F16(d, 0), WG_F16(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(keep));
}
static __device__ __forceinline__ void wg_mma(float (&d)[16], const uint32_t a[4], uint64_t desc, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
                 : WG_F16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(keep));
}

/* Where a warpgroup, or the warp that brings, is in the ring. */
struct place {
    int slot;
    uint32_t phase;
    __device__ __forceinline__ void next(int depth)
    {
        if (++slot < depth) return;
        slot = 0;
        phase ^= 1;
    }
};

/* A warp brings all stages of all pieces of the block: lane i row tile i (gated: of gate and up in turn), the lane behind them the input. */
template <int FMT, int NS, bool GLU>
static __device__ __forceinline__ void gemm_bring(const struct experts_gemm_args &a, uint32_t ring, uint32_t full, uint32_t empty, int lane)
{
    using G = gemm<FMT, NS, GLU>;
    constexpr int tile = G::tile;
    const int n_stage = (a.n_ktile + 1) / 2;
    struct place at = { 0, 1 };
    ck_pdl_wait();
    const int n_unit = *a.list.n_piece * a.n_blocks;
    for (int t = (int)blockIdx.x; t < n_unit; t += (int)gridDim.x) {
        const int i_piece = t / a.n_blocks, block = t % a.n_blocks;
        const struct ck_piece piece = ck_piece_at(a.list, i_piece);
        const struct ck_out &o = a.part[GLU ? lane & 1 : 0];
        const int rt = GLU ? block * (TILES / 2) + (lane >> 1) : block * TILES + lane, x_tile = ck_piece_stride(piece.n) * 128;
        const uint8_t *w = o.tiles + ((int64_t)piece.expert * (o.n / 16) + (rt * 16 < o.n ? rt : 0)) * a.n_ktile * tile; /* behind the last: any will do */
        const uint8_t *x = (const uint8_t *)a.x.v + (int64_t)i_piece * a.n_ktile * K_TILE;
        for (int s = 0; s < n_stage; s++) {
            const int n = 2 * s + 1 < a.n_ktile ? 2 : 1;
            const uint32_t bar = full + 8u * (uint32_t)at.slot, to = ring + (uint32_t)(at.slot * G::slot);
            ck_mbar_wait(empty + 8u * (uint32_t)at.slot, at.phase);
            if (lane == 0) ck_mbar_expect(bar, (uint32_t)(n * (TILES * tile + x_tile)));
            __syncwarp();
            if (lane < TILES) ck_bulk_plain(to + (uint32_t)(lane * 2 * tile), w + (int64_t)s * 2 * tile, (uint32_t)(n * tile), bar);
            if (lane == TILES) ck_bulk_plain(to + G::w_bytes, x + (int64_t)(2 * s) * x_tile, (uint32_t)(n * x_tile), bar);
            at.next(G::depth);
        }
    }
}

/* The sums of a warpgroup's rows for N columns, leaf by leaf. */
template <int FMT, int NS, bool GLU, int N>
static __device__ __forceinline__ void gemm_multiply(const struct experts_gemm_args &a, const uint8_t *smem, uint32_t full, uint32_t empty, struct place &at,
                                                     int first_tile, int half, int lane, bool leads, int stride, float (&total)[N / 2])
{
    using G = gemm<FMT, NS, GLU>;
    constexpr int tile = G::tile, D = G::depth;
    float acc[N / 2];
    auto before = [&]() { return empty + 8u * (uint32_t)(at.slot == 0 ? D - 1 : at.slot - 1); };
#pragma unroll
    for (int i = 0; i < N / 2; i++) total[i] = -0.0f; /* the one value that changes no sum */
    for (int leaf = 0; leaf < CK_LEAVES; leaf++) {
        const int s0 = ck_leaf_first(a.n_ktile, leaf) / 2, s1 = (ck_leaf_first(a.n_ktile, leaf + 1) + 1) / 2;
        if (s0 == s1) continue;
        for (int s = s0; s < s1; s++) {
            const uint8_t *w = smem + at.slot * G::slot + first_tile * 2 * tile;
            const uint32_t x = ck_smem(smem) + (uint32_t)(at.slot * G::slot) + G::w_bytes;
            const bool two = 2 * s + 1 < a.n_ktile;
            uint32_t f[2][16];
            wg_rows<FMT, NS, GLU> c[2]; /* of F16 they are the operand itself: read until the products have ended */
            ck_mbar_wait(full + 8u * (uint32_t)at.slot, at.phase);
            c[0].load(w, 2 * tile, half, lane);
#pragma unroll
            for (int j = 0; j < 4; j++) c[0].frag(f[0] + 4 * j, j, half, lane);
            wg_fence();
#pragma unroll
            for (int j = 0; j < 4; j++) wg_mma(acc, f[0] + 4 * j, b_desc(x + (uint32_t)(j * 2 * stride * 16), stride), s != s0 || j != 0);
            wg_commit();
            if (two && FMT != CK_F16) c[1].load(w + tile, 2 * tile, half, lane);
            if (s != s0) { /* the stage before is done with */
                wg_wait<1>();
                if (leads) ck_mbar_arrive(before());
            }
            if (two) {
                if (FMT == CK_F16) c[1].load(w + tile, 2 * tile, half, lane);
#pragma unroll
                for (int j = 0; j < 4; j++) c[1].frag(f[1] + 4 * j, j, half, lane);
                wg_fence();
#pragma unroll
                for (int j = 0; j < 4; j++) wg_mma(acc, f[1] + 4 * j, b_desc(x + (uint32_t)((8 + j * 2) * stride * 16), stride), 1);
                wg_commit();
                wg_wait<1>(); /* the first half's registers are free again */
            }
            at.next(D);
        }
        wg_wait<0>();
        if (leads) ck_mbar_arrive(before());
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i] = __fadd_rn(total[i], acc[i]);
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
    __half *to = room + (((in32 >> 2) & 1) * 2 + ((in32 >> 1) & 1)) * NTOK * 8 + (in32 >> 3) * 2 + (in32 & 1) + (lane & 3) * 16;
    auto activate = [&](int kind) { /* each kind's code by itself */
#pragma unroll
        for (int k = 0; k < N / 2; k += k & 1 ? 3 : 1)
            to[((k >> 2) * 8 + (k & 1)) * 8] = __float2half_rn(ck_glu_value(a.part[0], a.part[1], kind, inv, rows[0], rows[1], row, total[k], total[k + 2]));
    };
    if (a.glu == 0) activate(0);
    else if (a.glu == 1) activate(1);
    else activate(2);
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    const int stride = ck_piece_stride(p.n), col = thread % NTOK;
    uint4 *dst = (uint4 *)((uint8_t *)a.out.v + (int64_t)i_piece * (a.out.k_pad >> 6) * K_TILE) + ((row32 >> 6) * 8 + ((row32 >> 5) & 1) * 4) * stride + col;
    if (col < p.n)
#pragma unroll
        for (int i = thread / NTOK; i < 4; i += 128 / NTOK) dst[i * stride] = ((const uint4 *)room)[i * NTOK + col];
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

/* Row block `block` of a piece, of up to N columns: this warp's part. */
template <int FMT, int NS, bool GLU, int N>
static __device__ __forceinline__ void gemm_unit(const struct experts_gemm_args &a, const struct ck_piece &piece, int i_piece, int block, uint8_t *smem, uint32_t full,
                                                 uint32_t empty, struct place &at, int group, int warp, int lane)
{
    const int half = warp & 1, first_tile = GLU ? (group * 4 + warp) & ~1 : group * 4 + warp; /* in a slot */
    const int row32 = block * (TILES * 8) + group * 32, in32 = (warp >> 1) * 16 + half * 8 + (lane >> 2);
    const int row = GLU ? row32 + in32 : (block * TILES + group * 4 + warp) * 16 + (lane >> 2);
    struct ck_row rows[2];
    float total[N / 2];
    rows_load<GLU>(a, piece.expert, row, rows);
    gemm_multiply<FMT, NS, GLU, N>(a, smem, full, empty, at, first_tile, half, lane, (threadIdx.x & 127) == 0, ck_piece_stride(piece.n), total);
    if constexpr (GLU)
        gemm_gate<N>(a, piece, i_piece, row32, in32, group, lane, rows, total,
                     (__half *)(smem + gemm<FMT, NS, GLU>::depth * gemm<FMT, NS, GLU>::slot) + group * 32 * NTOK);
    else gemm_store<N>(a, piece, row, lane, rows, total);
}
#endif

template <int FMT, int NS, bool GLU> static __global__ void __launch_bounds__(THREADS, 1) experts_gemm_kernel(const __grid_constant__ struct experts_gemm_args a)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    using G = gemm<FMT, NS, GLU>;
    constexpr int D = G::depth;
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t full = ck_smem(smem + G::bars), empty = full + 8u * D;
    const int group = (int)threadIdx.x >> 7, lane = (int)threadIdx.x & 31, warp = ((int)threadIdx.x >> 5) & 3;
    if (threadIdx.x == 0)
        for (int i = 0; i < D; i++) {
            ck_mbar_init(full + 8u * (uint32_t)i, 1);
            ck_mbar_init(empty + 8u * (uint32_t)i, GROUPS);
        }
    ck_mbar_init_done();
    __syncthreads();
    ck_pdl_launch();
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 0) gemm_bring<FMT, NS, GLU>(a, ck_smem(smem), full, empty, lane);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    ck_pdl_wait();
    const int n_unit = *a.list.n_piece * a.n_blocks;
    struct place at = { 0, 0 };
    for (int t = (int)blockIdx.x; t < n_unit; t += (int)gridDim.x) {
        const int i_piece = t / a.n_blocks, block = t % a.n_blocks;
        const struct ck_piece piece = ck_piece_at(a.list, i_piece);
        if (piece.n <= 32) gemm_unit<FMT, NS, GLU, 32>(a, piece, i_piece, block, smem, full, empty, at, group, warp, lane);
        else gemm_unit<FMT, NS, GLU, NTOK>(a, piece, i_piece, block, smem, full, empty, at, group, warp, lane);
    }
#endif
}

/* --- launch --- */

template <int FMT, int NS, bool GLU> static int launch(const struct ck_ctx *c, const struct experts_gemm_args &a, int n_unit, cudaStream_t st)
{
    const int n = n_unit < c->n_sm ? n_unit : c->n_sm;
    return ck_launch(c, experts_gemm_kernel<FMT, NS, GLU>, dim3((unsigned)n), THREADS, gemm<FMT, NS, GLU>::bytes, st, a);
}
template <bool GLU> static int launch_format(const struct ck_ctx *c, const struct ck_weight *w, const struct experts_gemm_args &a, int n_unit, cudaStream_t st)
{
    const int ns = w->n_scale;
    if (w->format == CK_F16) return launch<CK_F16, 1, GLU>(c, a, n_unit, st);
#ifndef CK_FEW
    if (w->format == CK_Q4 && ns == 2) return launch<CK_Q4, 2, GLU>(c, a, n_unit, st);
    if (w->format == CK_Q8)
        return ns == 1 ? launch<CK_Q8, 1, GLU>(c, a, n_unit, st) : ns == 2 ? launch<CK_Q8, 2, GLU>(c, a, n_unit, st) : launch<CK_Q8, 4, GLU>(c, a, n_unit, st);
#endif
    if (w->format != CK_Q4 || ns > 1) return (int)cudaErrorInvalidValue; /* not in this build */
    return launch<CK_Q4, 1, GLU>(c, a, n_unit, st);
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
    a.n_blocks = out ? (int)(out->k_pad / (TILES * 8)) : (parts[0].n + TILES * 16 - 1) / (TILES * 16);
    const int n_unit = (e->m * e->top_k / NTOK + e->n_expert) * a.n_blocks;
    return out ? launch_format<true>(c, w, a, n_unit, st) : launch_format<false>(c, w, a, n_unit, st);
}
