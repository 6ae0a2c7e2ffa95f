/* kernels_gemm.cu: products of many tokens on sm_90a with wgmma.
 *
 * A block makes 128 rows x 128 tokens at a time: a producer warp fills a ring with two k tiles of 8 row tiles and of the linear input a
 * stage; two consumer warpgroups of 64 rows dequantise their codes into registers (the A operand) and multiply. While one waits or
 * dequantises, the other's instructions keep the tensor cores busy. Leaves and k steps as in kernels_linear.cu: same bits.
 * Gated form: a warp has 8 rows of gate and the same 8 of up, so that a thread holds both sums of an output. Row tiles of all parts lie
 * in one line, and a block has eight of them whatever part they are of.
 */
#include "ops/cuda/kernels_int.h"
#include "ops/cuda/kernels_wgmma.cuh"

#define NTOK 128
#define GROUPS 2                       /* warpgroups that multiply */
#define TILES (GROUPS * 4)             /* row tiles of a block; gated: of gate and of up together */
#define THREADS (GROUPS * 128 + 128)   /* a whole warpgroup brings, so that the others can have its registers */

struct gemm_args {
    struct ck_out part[CK_MAX_PARTS]; /* unit0: in row tiles */
    int n_parts, n_blocks, n_tok_blocks, n_ktile, m;
    struct ck_x x, out;
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
        depth = fit > 6 ? 6 : fit,
        bars = depth * slot + gated,
        bytes = bars + 16 * depth
    };
};

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
        int rt = GLU ? block * (TILES / 2) + (lane >> 1) : block * TILES + lane, p = GLU ? lane & 1 : gemm_part(a, rt);
        const struct ck_out &o = a.part[p];
        if (!GLU) rt -= o.unit0;
        const uint8_t *w = o.tiles + (int64_t)(rt * 16 < o.n ? rt : 0) * a.n_ktile * tile; /* behind the last: any rows will do */
        const uint8_t *x = (const uint8_t *)a.x.v + (int64_t)(t % a.n_tok_blocks) * a.n_ktile * 16384;
        for (int s = 0; s < n_stage; s++) {
            const int n = 2 * s + 1 < a.n_ktile ? 2 : 1;
            const uint32_t bar = full + 8u * (uint32_t)slot, to = ring + (uint32_t)(slot * G::slot);
            ck_mbar_wait(empty + 8u * (uint32_t)slot, phase);
            if (lane == 0) ck_mbar_expect(bar, (uint32_t)(n * (TILES * tile + 64 * NTOK * 2)));
            __syncwarp();
            if (lane < TILES) ck_bulk_plain(to + (uint32_t)(lane * 2 * tile), w + (int64_t)s * 2 * tile, (uint32_t)(n * tile), bar);
            if (!waited) {
                ck_pdl_wait();
                waited = true;
            }
            if (lane == TILES) ck_bulk_plain(to + G::w_bytes, x + (int64_t)s * 32768, (uint32_t)(n * 16384), bar);
            if (++slot == G::depth) {
                slot = 0;
                phase ^= 1;
            }
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
static __device__ __forceinline__ void gemm_gate(const struct gemm_args &a, int row32, int in32, int block, int group, int lane, const float total[NTOK / 2], __half *room)
{
    const int row = row32 + in32, thread = (int)threadIdx.x & 127, token = block * NTOK + thread;
    const float inv = __fdiv_rn(1.0f, a.out.mul);
    const struct ck_row rg = ck_row_load(a.part[0], a.x.mul, row), ru = ck_row_load(a.part[1], a.x.mul, row);
    __half *to = room + (((in32 >> 2) & 1) * 2 + ((in32 >> 1) & 1)) * NTOK * 8 + (in32 >> 3) * 2 + (in32 & 1) + (lane & 3) * 16;
    auto activate = [&](int kind) { /* each kind's code by itself */
#pragma unroll
        for (int k = 0; k < NTOK / 2; k += k & 1 ? 3 : 1)
            to[((k >> 2) * 8 + (k & 1)) * 8] = __float2half_rn(ck_glu_value(a.part[0], a.part[1], kind, inv, rg, ru, row, total[k], total[k + 2]));
    };
    if (a.glu == 0) activate(0);
    else if (a.glu == 1) activate(1);
    else activate(2);
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
    uint4 *dst = (uint4 *)((uint8_t *)a.out.v + ((int64_t)block * (a.out.k_pad >> 6) + (row32 >> 6)) * 16384 + ((row32 >> 5) & 1) * 8192);
    if (token < a.m)
#pragma unroll
        for (int i = 0; i < 4; i++) dst[i * 128 + thread] = ((const uint4 *)room)[i * 128 + thread];
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
#endif

/* Tile number -> row block (slow) and token block (fast: a wave shares weights and most of x stays in the cache). */
template <int FMT, int NS, bool GLU> static __global__ void __launch_bounds__(THREADS, 1) gemm_kernel(const __grid_constant__ struct gemm_args a)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    using G = gemm<FMT, NS, GLU>;
    constexpr int tile = G::tile, D = G::depth;
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t full = ck_smem(smem + G::bars), empty = full + 8u * D;
    const int group = (int)threadIdx.x >> 7, lane = (int)threadIdx.x & 31, warp = ((int)threadIdx.x >> 5) & 3, half = warp & 1;
    const bool leads = (threadIdx.x & 127) == 0;
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
    ck_pdl_wait(); /* residuals and outputs are read and written below */
    const int first_tile = GLU ? (group * 4 + warp) & ~1 : group * 4 + warp; /* of this warp, in a slot */
    int slot = 0;
    uint32_t phase = 0;
    for (int t = (int)blockIdx.x; t < a.n_blocks * a.n_tok_blocks; t += (int)gridDim.x) {
        float acc[NTOK / 2], total[NTOK / 2];
#pragma unroll
        for (int i = 0; i < NTOK / 2; i++) total[i] = -0.0f; /* the one value that changes no sum */
        for (int leaf = 0; leaf < CK_LEAVES; leaf++) {
            const int s0 = ck_leaf_first(a.n_ktile, leaf) / 2, s1 = (ck_leaf_first(a.n_ktile, leaf + 1) + 1) / 2;
            if (s0 == s1) continue;
            for (int s = s0; s < s1; s++) {
                const uint8_t *w = smem + slot * G::slot + first_tile * 2 * tile;
                const uint32_t x = ck_smem(smem) + (uint32_t)(slot * G::slot) + G::w_bytes;
                const bool two = 2 * s + 1 < a.n_ktile;
                uint32_t f[2][16];
                wg_rows<FMT, NS, GLU> c[2]; /* of F16 they are the operand itself: read until the products have ended */
                ck_mbar_wait(full + 8u * (uint32_t)slot, phase);
                c[0].load(w, 2 * tile, half, lane);
#pragma unroll
                for (int j = 0; j < 4; j++) c[0].frag(f[0] + 4 * j, j, half, lane);
                wg_fence();
#pragma unroll
                for (int j = 0; j < 4; j++) wg_mma(acc, f[0] + 4 * j, b_desc(x + (uint32_t)(j * 2 * NTOK * 16), NTOK), s != s0 || j != 0);
                wg_commit();
                if (two && FMT != CK_F16) c[1].load(w + tile, 2 * tile, half, lane);
                if (s != s0) { /* the stage before is done with */
                    wg_wait<1>();
                    if (leads) ck_mbar_arrive(empty + 8u * (uint32_t)(slot == 0 ? D - 1 : slot - 1));
                }
                if (two) {
                    if (FMT == CK_F16) c[1].load(w + tile, 2 * tile, half, lane);
#pragma unroll
                    for (int j = 0; j < 4; j++) c[1].frag(f[1] + 4 * j, j, half, lane);
                    wg_fence();
#pragma unroll
                    for (int j = 0; j < 4; j++) wg_mma(acc, f[1] + 4 * j, b_desc(x + (uint32_t)((8 + j * 2) * NTOK * 16), NTOK), 1);
                    wg_commit();
                    wg_wait<1>(); /* the first half's registers are free again */
                }
                if (++slot == D) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            wg_wait<0>();
            if (leads) ck_mbar_arrive(empty + 8u * (uint32_t)(slot == 0 ? D - 1 : slot - 1));
#pragma unroll
            for (int i = 0; i < NTOK / 2; i++) total[i] = __fadd_rn(total[i], acc[i]);
        }
        const int block = t / a.n_tok_blocks, tok_block = t % a.n_tok_blocks;
        if (!GLU) {
            const int rt = block * TILES + group * 4 + warp;
            const struct ck_out &o = a.part[gemm_part(a, rt)];
            gemm_store(a, o, (rt - o.unit0) * 16 + (lane >> 2), tok_block * NTOK + (lane & 3) * 2, total);
        } else {
            gemm_gate(a, block * (TILES * 8) + group * 32, (warp >> 1) * 16 + half * 8 + (lane >> 2), tok_block, group, lane, total,
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
    return ck_launch(c, gemm_kernel<FMT, NS, GLU>, dim3((unsigned)n), THREADS, gemm<FMT, NS, GLU>::bytes, st, a);
}
template <bool GLU> static int launch_format(const struct ck_ctx *c, int format, int ns, const struct gemm_args &a, cudaStream_t st)
{
    if (format == CK_F16) return launch<CK_F16, 1, GLU>(c, a, st);
#ifndef CK_FEW
    if (format == CK_Q4 && ns == 2) return launch<CK_Q4, 2, GLU>(c, a, st);
    if (format == CK_Q8)
        return ns == 1 ? launch<CK_Q8, 1, GLU>(c, a, st) : ns == 2 ? launch<CK_Q8, 2, GLU>(c, a, st) : launch<CK_Q8, 4, GLU>(c, a, st);
#endif
    if (format != CK_Q4 || ns > 1) return (int)cudaErrorInvalidValue; /* not in this build */
    return launch<CK_Q4, 1, GLU>(c, a, st);
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
    a.n_blocks = (n_tile + TILES - 1) / TILES;
    return launch_format<false>(c, parts[0].w->format, parts[0].w->n_scale, a, st);
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
    a.n_blocks = (int)(out->k_pad / (TILES * 8));
    return launch_format<true>(c, gate->format, gate->n_scale, a, st);
}
