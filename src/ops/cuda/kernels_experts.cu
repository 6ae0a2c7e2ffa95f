/* kernels_experts.cu: products of a mixture of experts: pieces (kernels.h: struct ck_piece) through their experts' matrices, all in one
 * launch, as many as the device finds in the list. Order of operations, tiles and leaves are kernels_linear.cu's: the same bits.
 *
 * A unit is some row tiles of a piece's expert: gate and up of the same rows, or neighbours of down. On sm_90 eight warps multiply, a leaf
 * of k each; a ninth brings weights by bulk copies, over units; others add the leaf sums. Up to 32 slots are the columns of a piece
 * (of prompts more: kernels_experts_gemm.cu).
 * Of few tokens every slot is a piece, and down's units are row tiles of a token: its experts one after the other, summed on the way.
 */
#include "ops/cuda/kernels_experts_sum.cuh"
#include "ops/cuda/kernels_int.h"

#define ALONE 2      /* tokens of a batch whose slots are pieces */
#define ALONE_MAX 32 /* of the experts of such a token */

/* Straight loads: before sm_90. */
template <int FMT, int NS, int NT, int RT, bool GLU>
static __global__ void __launch_bounds__(CK_LEAVES * 32) experts_kernel(const __grid_constant__ struct experts_args a)
{
#if __CUDA_ARCH__ < 900
    constexpr int tile_bytes = ck_tile_size<FMT, NS>();
    __shared__ float4 red[CK_LEAVES][RT][NT][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int first = ck_leaf_first(a.n_ktile, warp), last = ck_leaf_first(a.n_ktile, warp + 1);
    const __half *xv = (const __half *)a.x.v + (lane & 3) * 8;
    for (experts_walk<false> at(a); at.on(); at.next()) {
        const struct ck_piece p = ck_piece_at(a.list, at.piece());
        int cols[NT];
        experts_columns<NT>(a, at.piece(), lane, cols);
        float acc[RT][NT][4] = {};
        for (int g = first; g < last; g++) {
            ck_lane_tile<FMT, NS> w[RT];
            uint4 x[NT][2] = {};
#pragma unroll
            for (int r = 0; r < RT; r++) w[r].load(experts_tiles<FMT, NS, RT, GLU>(a, p.expert, at.u, r) + (int64_t)g * tile_bytes, lane);
            experts_x_load<NT>(x, xv, cols, g * 64, true);
            ck_tile_product<FMT, NS, NT, RT>(acc, w, x, lane);
        }
        ck_leaf_put<NT, RT>(red[warp], acc, lane);
        __syncthreads();
        if (warp < NT) {
            struct experts_ends<NT, RT, GLU> ends;
            ends.load(a, at.piece(), at.u, 1, 0, lane);
            experts_out<NT, RT, GLU>(a, ends, red, at.u, warp, lane);
        }
        __syncthreads();
    }
#endif
}

template <int FMT, int NS, int NT, int RT, bool SUM> struct experts_ring : ck_ring<FMT, NS, NT, RT, SUM, 2, NT <= 2 ? 100 : 200> {};

#if __CUDA_ARCH__ >= 900
/* Brings every unit's weights, lane i those of leaf i. */
template <int FMT, int NS, int RT, bool GLU, bool SUM, typename R>
static __device__ __forceinline__ void experts_bring(const struct experts_args &a, uint32_t slots, const ck_ring_bars<R> &bars, int n_stage, int lane)
{
    const int first = ck_leaf_first(a.n_ktile, lane), n_tile = ck_leaf_first(a.n_ktile, lane + 1) - first;
    const uint64_t policy = ck_policy_first();
    int slot = 0;
    uint32_t phase = 1;
    ck_pdl_wait(); /* who goes where is not known before */
    for (experts_walk<SUM> at(a); at.on(); at.next()) {
        const int expert = a.list.pieces[at.piece()].expert;
        const uint8_t *src[RT];
#pragma unroll
        for (int r = 0; r < RT; r++) src[r] = experts_tiles<FMT, NS, RT, GLU>(a, expert, at.u, r) + (int64_t)first * R::tile;
        if (at.unit + (int)gridDim.x >= at.n_unit) ck_pdl_launch();
        for (int s = 0; s < n_stage; s++) {
            const int left = n_tile - s * R::stage, n = left < R::stage ? left : R::stage;
            const uint32_t bar = bars.full + 8u * (uint32_t)slot, to = slots + (uint32_t)(slot * R::slot + lane * R::leaf);
            ck_mbar_wait(bars.empty + 8u * (uint32_t)slot, phase);
            ck_ring_bring<R>(src, s, n, to, bar, policy);
            if (++slot == R::depth) {
                slot = 0;
                phase ^= 1;
            }
        }
    }
}
#endif

template <int FMT, int NS, int NT, int RT, bool GLU, bool SUM>
static __global__ void __launch_bounds__(experts_ring<FMT, NS, NT, RT, SUM>::threads, experts_ring<FMT, NS, NT, RT, SUM>::blocks)
    experts_ring_kernel(const __grid_constant__ struct experts_args a)
{
#if __CUDA_ARCH__ >= 900
    using R = experts_ring<FMT, NS, NT, RT, SUM>;
    constexpr int STAGE = R::stage, AHEAD = NT == 1 ? STAGE : 1;
    extern __shared__ __align__(128) uint8_t smem[];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    float4(*red)[CK_LEAVES][RT][NT][32] = (float4(*)[CK_LEAVES][RT][NT][32])(smem + R::depth * R::slot);
    const ck_ring_bars<R> bars(smem);
    const int n_stage = ck_ring_stages<R>(a.n_ktile);
    bars.init();
    if (warp == CK_LEAVES) {
        if (lane < CK_LEAVES) experts_bring<FMT, NS, RT, GLU, SUM>(a, ck_smem(smem), bars, n_stage, lane);
        return;
    }
    if (warp > CK_LEAVES) {
        if constexpr (SUM) {
            __shared__ float factor[ALONE_MAX * 16], bias[ALONE_MAX * 16];
            experts_sum_token(a, red, bars, factor, bias, lane);
        } else {
            experts_sum<NT, RT, GLU>(a, red, bars, warp - CK_LEAVES - 1, lane);
        }
        return;
    }

    ck_pdl_wait();
    experts_walk<SUM> at(a);
    if (!at.on()) return;
    const int k0 = ck_leaf_first(a.n_ktile, warp) * 64, n_tile = ck_leaf_first(a.n_ktile, warp + 1) - k0 / 64;
    const __half *xv = (const __half *)a.x.v + (lane & 3) * 8;
    const uint32_t my = ck_smem(smem) + (uint32_t)(warp * R::leaf);
    /* x of AHEAD tiles waits in registers, over units too; what is read takes the place of what has been used. */
    uint4 x[AHEAD][NT][2] = {};
    int cols[NT], then[NT];
    experts_columns<NT>(a, at.piece(), lane, cols);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) experts_x_load<NT>(x[i], xv, cols, k0 + i * 64, i < n_tile);
    int slot = 0, b = 0;
    uint32_t phase = 0, red_phase = 1;
    while (at.on()) {
        float acc[RT][NT][4] = {};
        at.next();
#pragma unroll
        for (int q = 0; q < NT; q++) then[q] = -1;
        if (at.on()) experts_columns<NT>(a, at.piece(), lane, then);
        for (int left = n_tile, k = k0, s = 0; s < n_stage; s++, left -= STAGE, k += STAGE * 64) {
            const uint32_t from = my + (uint32_t)(slot * R::slot);
            const bool ends = s + 1 == n_stage;
            auto next_x = [&](int i) { /* behind tile i */
                const int t = i + AHEAD;
                if (t < STAGE || !ends) experts_x_load<NT>(x[i % AHEAD], xv, cols, k + t * 64, t < left);
                else experts_x_load<NT>(x[i % AHEAD], xv, then, k0 + (t - STAGE) * 64, t - STAGE < n_tile);
            };
            ck_mbar_wait(bars.full + 8u * (uint32_t)slot, phase);
            if (left >= STAGE) { /* all codes of the stage are under way before the first is needed */
                ck_lane_tile<FMT, NS> w[STAGE][RT];
#pragma unroll
                for (int i = 0; i < STAGE; i++) ck_ring_load<R>(w[i], from, i, lane);
#pragma unroll
                for (int i = 0; i < STAGE; i++) {
                    ck_tile_product<FMT, NS, NT, RT>(acc, w[i], x[i % AHEAD], lane);
                    next_x(i);
                }
            } else {
#pragma unroll
                for (int i = 0; i < STAGE; i++) {
                    ck_lane_tile<FMT, NS> w[RT];
                    if (i < left) {
                        ck_ring_load<R>(w, from, i, lane);
                        ck_tile_product<FMT, NS, NT, RT>(acc, w, x[i % AHEAD], lane);
                    }
                    next_x(i);
                }
            }
            ck_ring_pass(bars.empty + 8u * (uint32_t)slot, lane);
            if (++slot == R::depth) {
                slot = 0;
                phase ^= 1;
            }
        }
#pragma unroll
        for (int q = 0; q < NT; q++) cols[q] = then[q];
        ck_mbar_wait(bars.red_empty + 8u * (uint32_t)b, red_phase);
        ck_leaf_put<NT, RT>(red[b][warp], acc, lane);
        ck_ring_pass(bars.red_full + 8u * (uint32_t)b, lane);
        if (++b == R::n_red) {
            b = 0;
            red_phase ^= 1;
        }
    }
#endif
}

/* --- launch --- */

extern "C" int ck_experts_most(const struct ck_ctx *c, int m, int top_k, int n_expert)
{
    if (c->major >= 9 && m <= ALONE && top_k <= ALONE_MAX) return 1;
    if (ck_x_layout_for(c, m) == CK_X_TILES) return CK_PIECE_TILE;
    const int mean = m * top_k / n_expert; /* slots of an expert */
    return m <= 8 || mean <= 4 ? 8 : m <= 16 || mean <= 10 ? 16 : 32;
}

extern "C" size_t ck_experts_pieces(int m_max, int top_k, int n_expert) { return (size_t)m_max * (size_t)top_k / 8 + (size_t)n_expert + (size_t)(ALONE * top_k); }

extern "C" size_t ck_experts_rows(const struct ck_ctx *c, int m_max, int top_k, int n_expert)
{
    const size_t n_slot = (size_t)m_max * (size_t)top_k;
    return ck_x_layout_for(c, m_max) == CK_X_TILES ? (n_slot / CK_PIECE_TILE + (size_t)n_expert) * CK_PIECE_TILE : n_slot;
}

/* Row units of an expert, and a grid for no more units than there may be. */
template <int RT, bool GLU> static unsigned grid_of(struct experts_args *a, const struct ck_experts *e, bool sum, int most)
{
    const int64_t n_slot = (int64_t)e->m * e->top_k, n_piece = a->list.most == 1 ? n_slot : n_slot / a->list.most + e->n_expert;
    a->n_row_unit = GLU ? (int)(a->out.k_pad / (8 * RT)) : (a->part[0].n + 16 * RT - 1) / (16 * RT);
    const int64_t n_unit = (sum ? e->m : n_piece) * a->n_row_unit;
    a->n_unit = a->list.most == 1 ? (int)n_unit : -1;
    return (unsigned)(n_unit < most ? n_unit : most);
}
template <int FMT, int NS, int NT, int RT, bool GLU, bool SUM>
static int launch(const struct ck_ctx *c, struct experts_args a, const struct ck_experts *e, cudaStream_t st)
{
    using R = experts_ring<FMT, NS, NT, RT, SUM>;
    const unsigned grid = grid_of<RT, GLU>(&a, e, SUM, c->n_sm * R::blocks);
    return ck_launch(c, experts_ring_kernel<FMT, NS, NT, RT, GLU, SUM>, dim3(grid), R::threads, R::bytes, st, a);
}
template <int FMT, int NS, int NT, bool GLU> static int launch_straight(const struct ck_ctx *c, struct experts_args a, const struct ck_experts *e, cudaStream_t st)
{
    const unsigned grid = grid_of<GLU ? 2 : 1, GLU>(&a, e, false, c->n_sm * 4);
    return ck_launch(c, experts_kernel<FMT, NS, NT, GLU ? 2 : 1, GLU>, dim3(grid), CK_LEAVES * 32, 0, st, a);
}
template <int FMT, int NS, int NT, bool GLU> static int launch_width(const struct ck_ctx *c, const struct experts_args &a, const struct ck_experts *e, cudaStream_t st)
{
    return c->major >= 9 ? launch<FMT, NS, NT, 2, GLU, false>(c, a, e, st) : launch_straight<FMT, NS, NT, GLU>(c, a, e, st);
}
template <int FMT, int NS, bool GLU> static int launch_nt(const struct ck_ctx *c, const struct experts_args &a, const struct ck_experts *e, cudaStream_t st)
{
    return a.list.most <= 8    ? launch_width<FMT, NS, 1, GLU>(c, a, e, st)
           : a.list.most <= 16 ? launch_width<FMT, NS, 2, GLU>(c, a, e, st)
                               : launch_width<FMT, NS, 4, GLU>(c, a, e, st);
}
enum form { GATED, DOWN, DOWN_SUM };
template <int FMT, int NS> static int launch_form(const struct ck_ctx *c, enum form form, const struct experts_args &a, const struct ck_experts *e, cudaStream_t st)
{
    return form == GATED  ? launch_nt<FMT, NS, true>(c, a, e, st)
           : form == DOWN ? launch_nt<FMT, NS, false>(c, a, e, st)
                          : launch<FMT, NS, 1, 1, false, true>(c, a, e, st);
}
static int launch_format(const struct ck_ctx *c, const struct ck_weight *w, enum form form, const struct experts_args &a, const struct ck_experts *e,
                         cudaStream_t st)
{
    return ck_launch_form(w->format, w->n_scale, [&](auto f) { return launch_form<decltype(f)::format, decltype(f)::n_scale>(c, form, a, e, st); });
}

/* Whole tiles an expert, the layout of its pieces, rows that ints can tell apart. */
static bool fits(const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *w, int64_t n, int per)
{
    const bool tiles = e->list.most == CK_PIECE_TILE;
    return e->m > 0 && n % 16 == 0 && w->n == n * e->n_expert && w->k == x->k && x->layout == (tiles ? CK_X_PIECES : CK_X_ROWS) &&
           (tiles || (int64_t)e->m * e->top_k / per * x->k_pad < INT32_MAX);
}

static struct experts_args args_of(const struct ck_experts *e, const struct ck_x *x, int per)
{
    struct experts_args a = {};
    a.x = *x;
    a.list = e->list;
    a.per = per;
    a.top_k = e->top_k;
    a.n_ktile = (int)(x->k_pad / 64);
    a.glu = -1;
    return a;
}

static void fill_stack(struct ck_out *o, const struct ck_weight *w, int64_t n, const float *bias, float *y, int64_t ld_y)
{
    struct ck_part p = {};
    p.bias = bias;
    p.y = y;
    p.ld_y = ld_y;
    ck_fill_out(o, w, &p);
    o->n = (int)n;
}

extern "C" int ck_experts_glu(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *gate, const struct ck_weight *up,
                              int64_t width, const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    if (!fits(e, x, gate, width, e->top_k) || !fits(e, x, up, width, e->top_k) || gate->format != up->format || gate->n_scale != up->n_scale ||
        kind < 0 || kind > 2 || out->layout != x->layout || out->k != width)
        return (int)cudaErrorInvalidValue;
    struct experts_args a = args_of(e, x, e->top_k);
    a.out = *out;
    a.glu = kind;
    fill_stack(&a.part[0], gate, width, gate_bias, NULL, 0);
    fill_stack(&a.part[1], up, width, up_bias, NULL, 0);
    if (x->layout == CK_X_PIECES) return ck_experts_gemm(c, e, x, gate, a.part, kind, out, st);
    return launch_format(c, gate, GATED, a, e, st);
}

extern "C" int ck_experts_down(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *down, int64_t d,
                               const float *bias, float *y, int64_t ld_y, cudaStream_t st)
{
    if (!fits(e, x, down, d, 1)) return (int)cudaErrorInvalidValue;
    struct experts_args a = args_of(e, x, 1);
    fill_stack(&a.part[0], down, d, bias, y, ld_y);
    if (x->layout == CK_X_PIECES) return ck_experts_gemm(c, e, x, down, a.part, -1, NULL, st);
    return launch_format(c, down, DOWN, a, e, st);
}

extern "C" int ck_experts_down_sum(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *down, int64_t d,
                                   const float *bias, const struct ck_expert_sum *sum, cudaStream_t st)
{
    if (!fits(e, x, down, d, 1) || e->list.most != 1) return (int)cudaErrorInvalidValue;
    struct experts_args a = args_of(e, x, 1);
    a.sum = *sum;
    fill_stack(&a.part[0], down, d, bias, NULL, 0);
    return launch_format(c, down, DOWN_SUM, a, e, st);
}
