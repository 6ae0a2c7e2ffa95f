/* kernels_gemm.cu: products of many tokens on sm_90a with wgmma.
 *
 * A block makes 128 rows x 128 tokens at a time, as kernels_gemm.cuh says. Leaves and k steps as in kernels_linear.cu: same bits.
 * Gated form: a warp has 8 rows of gate and the same 8 of up, so that a thread holds both sums of an output. Row tiles of all parts lie
 * in one line, and a block has eight of them whatever part they are of.
 */
#include "ops/cuda/kernels_gemm.cuh"
#include "ops/cuda/kernels_int.h"

#define NTOK 128

struct gemm_args {
    struct ck_out part[CK_MAX_PARTS]; /* unit0: in row tiles */
    int n_parts, n_blocks, n_tok_blocks, n_ktile, m;
    struct ck_x x, out;
    int glu;
};

template <int FMT, int NS, bool GLU> struct gemm : ck_gemm_ring<FMT, NS, GLU, NTOK, 6> {};

#if __CUDA_ARCH_FEAT_SM90_ALL
static __device__ __forceinline__ int gemm_part(const struct gemm_args &a, int row_tile)
{
    int p = 0;
    while (p + 1 < a.n_parts && row_tile >= a.part[p + 1].unit0) p++;
    return p;
}

/* A warp brings all stages of all tiles of the block: lane i row tile i (gated: of gate and up in turn), the lane behind them the input. */
template <int FMT, int NS, bool GLU> static __device__ __forceinline__ void gemm_bring(const struct gemm_args &a, uint32_t ring, uint32_t full, uint32_t empty, int lane)
{
    using G = gemm<FMT, NS, GLU>;
    constexpr int tile = G::tile;
    const int n_stage = (a.n_ktile + 1) / 2;
    int slot = 0;
    uint32_t phase = 1;
    bool waited = false;
    for (int t = (int)blockIdx.x; t < a.n_blocks * a.n_tok_blocks; t += (int)gridDim.x) {
        const int block = t / a.n_tok_blocks;
        int rt = GLU ? block * (CK_GEMM_TILES / 2) + (lane >> 1) : block * CK_GEMM_TILES + lane, p = GLU ? lane & 1 : gemm_part(a, rt);
        const struct ck_out &o = a.part[p];
        if (!GLU) rt -= o.unit0;
        const uint8_t *w = o.tiles + (int64_t)(rt * 16 < o.n ? rt : 0) * a.n_ktile * tile; /* behind the last: any rows will do */
        const uint8_t *x = (const uint8_t *)a.x.v + (int64_t)(t % a.n_tok_blocks) * a.n_ktile * 16384;
        for (int s = 0; s < n_stage; s++) {
            const int n = 2 * s + 1 < a.n_ktile ? 2 : 1;
            const uint32_t bar = full + 8u * (uint32_t)slot, to = ring + (uint32_t)(slot * G::slot);
            ck_mbar_wait(empty + 8u * (uint32_t)slot, phase);
            if (lane == 0) ck_mbar_expect(bar, (uint32_t)(n * (CK_GEMM_TILES * tile + 64 * NTOK * 2)));
            __syncwarp();
            if (lane < CK_GEMM_TILES) ck_bulk_plain(to + (uint32_t)(lane * 2 * tile), w + (int64_t)s * 2 * tile, (uint32_t)(n * tile), bar);
            if (!waited) {
                ck_pdl_wait();
                waited = true;
            }
            if (lane == CK_GEMM_TILES) ck_bulk_plain(to + G::w_bytes, x + (int64_t)s * 32768, (uint32_t)(n * 16384), bar);
            ck_gemm_next(G::depth, slot, phase);
        }
    }
}

/* A thread's sums of rows row and row + 8, tokens tok0 + 8 i + {0, 1}, to their places. */
static __device__ __forceinline__ void gemm_store(const struct gemm_args &a, const struct ck_out &o, int row, int tok0, float total[NTOK / 2])
{
    const struct ck_row rows[2] = { ck_row_load(o, a.x.mul, row), ck_row_load(o, a.x.mul, row + 8) };
    const bool in[2] = { row < o.n, row + 8 < o.n };
    const int n_left = a.m - tok0;
#pragma unroll
    for (int k = 0; k < NTOK / 2; k++) total[k] = __fmul_rn(total[k], rows[(k >> 1) & 1].factor);
    if (o.bias)
#pragma unroll
        for (int k = 0; k < NTOK / 2; k++) total[k] = __fadd_rn(total[k], rows[(k >> 1) & 1].bias);
    if (o.scale != 0.0f)
#pragma unroll
        for (int k = 0; k < NTOK / 2; k++) total[k] = __fmul_rn(total[k], o.scale);
    if (o.softcap != 0.0f) /* by itself: few models fetch this code */
#pragma unroll
        for (int k = 0; k < NTOK / 2; k++) total[k] = ck_out_cap(o, total[k]);
#pragma unroll
    for (int k0 = 0; k0 < NTOK / 2; k0 += 16) {
        float old[16], *at = o.y + row + (int64_t)(tok0 + k0 * 2) * o.ld_y;
        if (o.add)
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int h = (i >> 1) & 1, n = (i >> 2) * 8 + (i & 1);
                old[i] = in[h] && k0 * 2 + n < n_left ? at[(int64_t)n * o.ld_y + h * 8] : 0.0f;
            }
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int h = (i >> 1) & 1, n = (i >> 2) * 8 + (i & 1);
            if (in[h] && k0 * 2 + n < n_left) at[(int64_t)n * o.ld_y + h * 8] = o.add ? __fadd_rn(old[i], total[k0 + i]) : total[k0 + i];
        }
    }
}

/* A thread's sums of one row of gate and of up, in turn two by two, become the next linear input, through 32 rows in `room` (those of this
 * warpgroup). in32: the row among them. */
static __device__ __forceinline__ void gemm_gate(const struct gemm_args &a, int row32, int in32, int block, int group, int lane, const float (&total)[NTOK / 2], __half *room)
{
    const int row = row32 + in32, thread = (int)threadIdx.x & 127, token = block * NTOK + thread;
    const float inv = __fdiv_rn(1.0f, a.out.mul);
    const struct ck_row rg = ck_row_load(a.part[0], a.x.mul, row), ru = ck_row_load(a.part[1], a.x.mul, row);
    ck_gemm_activate<NTOK, NTOK>(a, inv, rg, ru, row, in32, group, lane, total, room);
    uint4 *dst = (uint4 *)((uint8_t *)a.out.v + ((int64_t)block * (a.out.k_pad >> 6) + (row32 >> 6)) * 16384 + ((row32 >> 5) & 1) * 8192);
    if (token < a.m)
#pragma unroll
        for (int i = 0; i < 4; i++) dst[i * 128 + thread] = ((const uint4 *)room)[i * 128 + thread];
    ck_gemm_meet(group);
}
#endif

/* Tile number -> row block (slow) and token block (fast: a wave shares weights and most of x stays in the cache). */
template <int FMT, int NS, bool GLU> static __global__ void __launch_bounds__(CK_GEMM_THREADS, 1) gemm_kernel(const __grid_constant__ struct gemm_args a)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    using G = gemm<FMT, NS, GLU>;
    constexpr int D = G::depth;
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t full = ck_smem(smem + G::bars), empty = full + 8u * D;
    const int group = (int)threadIdx.x >> 7, lane = (int)threadIdx.x & 31, warp = ((int)threadIdx.x >> 5) & 3, half = warp & 1;
    const bool leads = (threadIdx.x & 127) == 0;
    ck_gemm_begin(full, empty, D);
    ck_pdl_launch();
    if (group == CK_GEMM_GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 0) gemm_bring<FMT, NS, GLU>(a, ck_smem(smem), full, empty, lane);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    ck_pdl_wait(); /* residuals and outputs are read and written below */
    const int first_tile = GLU ? (group * 4 + warp) & ~1 : group * 4 + warp; /* of this warp, in a slot */
    int slot = 0;
    uint32_t phase = 0;
    for (int t = (int)blockIdx.x; t < a.n_blocks * a.n_tok_blocks; t += (int)gridDim.x) {
        float total[NTOK / 2];
        ck_gemm_multiply<FMT, NS, GLU, NTOK, G>(a.n_ktile, smem, full, empty, slot, phase, first_tile, half, lane, leads, NTOK, total);
        const int block = t / a.n_tok_blocks, tok_block = t % a.n_tok_blocks;
        if (!GLU) {
            const int rt = block * CK_GEMM_TILES + group * 4 + warp;
            const struct ck_out &o = a.part[gemm_part(a, rt)];
            gemm_store(a, o, (rt - o.unit0) * 16 + (lane >> 2), tok_block * NTOK + (lane & 3) * 2, total);
        } else {
            gemm_gate(a, block * (CK_GEMM_TILES * 8) + group * 32, (warp >> 1) * 16 + half * 8 + (lane >> 2), tok_block, group, lane, total,
                      (__half *)(smem + D * G::slot) + group * 32 * NTOK);
        }
    }
#endif
}

/* --- launch --- */

template <int FMT, int NS, bool GLU> static int launch(const struct ck_ctx *c, struct gemm_args a, cudaStream_t st)
{
    a.n_tok_blocks = (a.m + NTOK - 1) / NTOK;
    int n = a.n_blocks * a.n_tok_blocks < c->n_sm ? a.n_blocks * a.n_tok_blocks : c->n_sm;
    return ck_launch(c, gemm_kernel<FMT, NS, GLU>, dim3((unsigned)n), CK_GEMM_THREADS, gemm<FMT, NS, GLU>::bytes, st, a);
}
template <bool GLU> static int launch_format(const struct ck_ctx *c, const struct ck_weight *w, const struct gemm_args &a, cudaStream_t st)
{
    return ck_launch_form(w->format, w->n_scale, [&](auto f) { return launch<decltype(f)::format, decltype(f)::n_scale, GLU>(c, a, st); });
}

static struct gemm_args args_of(const struct ck_x *x, int m)
{
    struct gemm_args a = {};
    a.x = *x;
    a.m = m;
    a.n_ktile = (int)(x->k_pad / 64);
    return a;
}

extern "C" int ck_gemm(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    struct gemm_args a = args_of(x, m);
    int n_tile = 0;
    a.n_parts = n_parts;
    for (int i = 0; i < n_parts; i++) {
        ck_fill_out(&a.part[i], parts[i].w, &parts[i]);
        a.part[i].unit0 = n_tile;
        n_tile += (int)((parts[i].w->n + 15) / 16);
    }
    a.n_blocks = (n_tile + CK_GEMM_TILES - 1) / CK_GEMM_TILES;
    return launch_format<false>(c, parts[0].w, a, st);
}

extern "C" int ck_gemm_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                           const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    struct gemm_args a = args_of(x, m);
    struct ck_part g = {}, u = {};
    g.bias = gate_bias;
    u.bias = up_bias;
    ck_fill_out(&a.part[0], gate, &g);
    ck_fill_out(&a.part[1], up, &u);
    a.n_parts = 2;
    a.out = *out;
    a.glu = kind;
    a.n_blocks = (int)(out->k_pad / (CK_GEMM_TILES * 8));
    return launch_format<true>(c, gate, a, st);
}
