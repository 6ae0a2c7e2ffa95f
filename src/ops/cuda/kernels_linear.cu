/* kernels_linear.cu: products with mma.sync: the path for few tokens everywhere, and for any number where no other form has them
 * (kernels_batch.cu: some tokens; kernels_gemm.cu: many). Which form a product takes is decided at the end of this file.
 * How a block works is in kernels_ring.cuh; its columns are tokens.
 */
#include "ops/cuda/kernels_int.h"
#include "ops/cuda/kernels_linear_norm.cuh"
#include "ops/cuda/kernels_ring.cuh"

#define NORM_BYTES (12 * 1024) /* of rows that were normed here: as much as leaves room for two blocks */
#define NORM_TOKENS 2          /* one after the other: of more, a launch of its own is sooner done */

struct linear_args {
    struct ck_out part[CK_MAX_PARTS];
    int n_parts, n_units, n_ktile, m;
    struct ck_x x;
    struct ck_x out;   /* gated: where act(gate) * up goes */
    int glu;           /* -1: plain; part[0] is gate, part[1] up */
};

static __device__ __forceinline__ int part_of(const struct linear_args &a, int unit)
{
    int p = 0;
    while (p + 1 < a.n_parts && unit >= a.part[p + 1].unit0) p++;
    return p;
}

/* This lane's part of a k tile of x, at `at`: two steps in each 16 bytes; what lies beyond the last token stays as it is. */
template <int NT> static __device__ __forceinline__ void x_load(uint4 (&x)[NT][2], const __half *at, int64_t ld, int n_left)
{
#pragma unroll
    for (int q = 0; q < NT; q++) {
        const uint4 *src = (const uint4 *)(at + (int64_t)q * 8 * ld);
        if (q * 8 < n_left) {
            x[q][0] = src[0];
            x[q][1] = src[4];
        }
    }
}

/* What the sums of a unit meet, loaded ahead of them: factors of its rows, the values that they are added to. Lane l has float4 l of
 * tokens token0 + 8 q ... of each row tile. */
template <int NT, int RT, bool GLU> struct unit_rows {
    enum { OUT = GLU ? RT / 2 : RT };
    struct ck_row rows[OUT][2], ups[OUT][2];
    float old[OUT][NT][4];
    /* every, part: tokens' eighths q with q % every == part. */
    __device__ __forceinline__ void load(const struct linear_args &a, int p, int unit, int token0, int every, int part, int l)
    {
        const struct ck_out &o = a.part[p];
#pragma unroll
        for (int r = 0; r < OUT; r++) {
            const int row = ck_row_tile<RT, GLU>(unit, r) * 16 + (l >> 2);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                rows[r][h] = ck_row_load(o, a.x.mul, row + 8 * h);
                if (GLU) ups[r][h] = ck_row_load(a.part[1], a.x.mul, row + 8 * h);
            }
#pragma unroll
            for (int q = 0; q < NT; q++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int rr = row + (e >> 1) * 8, tk = token0 + q * 8 + (l & 3) * 2 + (e & 1);
                    old[r][q][e] = !GLU && o.add && q % every == part && tk < a.m && rr < o.n ? o.y[(int64_t)tk * o.ld_y + rr] : 0.0f;
                }
        }
    }
};

/* Leaf sums of a unit, in order, for 8 tokens of its row tiles. */
template <int NT, int RT, bool GLU>
static __device__ __forceinline__ void sum_leaves(const struct linear_args &a, const struct unit_rows<NT, RT, GLU> &u, const float4 (*red)[RT][NT][32], int p,
                                                  int unit, int token0, int q, int l)
{
    const int token = token0 + q * 8 + (l & 3) * 2;
    constexpr int OUT = GLU ? RT / 2 : RT;
    const float inv = GLU ? __fdiv_rn(1.0f, a.out.mul) : 0.0f;
    const struct ck_out &o = a.part[p];
#pragma unroll
    for (int r = 0; r < OUT; r++) {
        float s[2][4];
#pragma unroll
        for (int h = 0; h < (GLU ? 2 : 1); h++) {
            const float4 v = ck_leaves_sum<NT, RT>(red, r + h * OUT, q, l);
            s[h][0] = v.x, s[h][1] = v.y, s[h][2] = v.z, s[h][3] = v.w;
        }
        const int row = ck_row_tile<RT, GLU>(unit, r) * 16 + (l >> 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int rr = row + (e >> 1) * 8, tk = token + (e & 1);
            if (tk >= a.m) continue;
            float v = GLU ? ck_glu_value(o, a.part[1], a.glu, inv, u.rows[r][e >> 1], u.ups[r][e >> 1], rr, s[0][e], s[1][e])
                          : ck_out_value(o, u.rows[r][e >> 1], s[0][e]);
            if (!GLU && rr < o.n) o.y[(int64_t)tk * o.ld_y + rr] = o.add ? __fadd_rn(u.old[r][q][e], v) : v;
            if (GLU && rr < a.out.k_pad) ((__half *)a.out.v)[ck_x_off(a.out.layout, a.out.k_pad, tk, rr)] = __float2half_rn(v);
        }
    }
}

/* Tiles of a unit; units beyond n pad a gated output: any rows will do. */
template <int FMT, int NS>
static __device__ __forceinline__ const uint8_t *unit_tiles(const struct linear_args &a, int p, int row_tile)
{
    return a.part[p].tiles + (int64_t)(row_tile * 16 < a.part[p].n ? row_tile : 0) * a.n_ktile * ck_tile_size<FMT, NS>();
}

/* Straight loads: before sm_90. */
template <int FMT, int NS, int NT, int RT, bool GLU>
static __global__ void __launch_bounds__(CK_LEAVES * 32) linear_kernel(const __grid_constant__ struct linear_args a)
{
#if __CUDA_ARCH__ < 900
    constexpr int tile_bytes = ck_tile_size<FMT, NS>();
    __shared__ float4 red[CK_LEAVES][RT][NT][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int token0 = (int)blockIdx.y * NT * 8, n_left = a.m - token0 - (lane >> 2);
    const int first = ck_leaf_first(a.n_ktile, warp), last = ck_leaf_first(a.n_ktile, warp + 1);
    const __half *xp = (const __half *)a.x.v + (int64_t)(token0 + (lane >> 2)) * a.x.k_pad + (lane & 3) * 8;
    for (int unit = (int)blockIdx.x; unit < a.n_units; unit += (int)gridDim.x) {
        const uint8_t *tiles[RT];
        int p = GLU ? 0 : part_of(a, unit), u = unit - a.part[p].unit0;
#pragma unroll
        for (int r = 0; r < RT; r++) tiles[r] = unit_tiles<FMT, NS>(a, GLU ? r / (RT / 2) : p, ck_row_tile<RT, GLU>(u, r));
        float acc[RT][NT][4] = {};
        for (int g = first; g < last; g++) {
            ck_lane_tile<FMT, NS> w[RT];
            uint4 x[NT][2] = {};
#pragma unroll
            for (int r = 0; r < RT; r++) w[r].load(tiles[r] + (int64_t)g * tile_bytes, lane);
            x_load<NT>(x, xp + g * 64, a.x.k_pad, n_left);
            ck_tile_product<FMT, NS, NT, RT>(acc, w, x, lane);
        }
        ck_leaf_put<NT, RT>(red[warp], acc, lane);
        __syncthreads();
        struct unit_rows<NT, RT, GLU> rows;
        rows.load(a, p, u, token0, 1, 0, lane);
        if (warp < NT) sum_leaves<NT, RT, GLU>(a, rows, red, p, u, token0, warp, lane);
        __syncthreads();
    }
#endif
}

/* NEAR: x is to stay in the first-level cache, which has what shared memory leaves (see launch). */
template <int FMT, int NS, int NT, int RT, bool NEAR = NT == 1 && FMT == CK_Q4>
struct linear_ring : ck_ring<FMT, NS, NT, RT, NEAR && RT == 1, NEAR && RT == 2 ? 1 : 2, NEAR ? 64 : NT <= 2 ? 100 : 200> {
    enum { near = NEAR };
};

#if __CUDA_ARCH__ >= 900
/* Brings every unit's weights, lane i those of leaf i; before the kernel waits for the one before it. */
template <int FMT, int NS, int NT, int RT, bool GLU, typename R>
static __device__ __forceinline__ void linear_bring(const struct linear_args &a, uint32_t slots, const ck_ring_bars<R> &bars, int n_stage, int lane)
{
    const int first = ck_leaf_first(a.n_ktile, lane), n_tile = ck_leaf_first(a.n_ktile, lane + 1) - first;
    const uint64_t policy = ck_policy_first();
    int slot = 0;
    uint32_t phase = 1;
    for (int unit = (int)blockIdx.x; unit < a.n_units; unit += (int)gridDim.x) {
        const int p = GLU ? 0 : part_of(a, unit);
        const uint8_t *src[RT];
#pragma unroll
        for (int r = 0; r < RT; r++)
            src[r] = unit_tiles<FMT, NS>(a, GLU ? r / (RT / 2) : p, ck_row_tile<RT, GLU>(unit - a.part[p].unit0, r)) + (int64_t)first * R::tile;
        /* The next kernel may come when this block's last unit is on its way: earlier it would take room from blocks still to start. */
        if (unit + (int)gridDim.x >= a.n_units) ck_pdl_launch();
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

/* Adds the leaf sums of every unit; of the warps that do, number `part`. */
template <int NT, int RT, bool GLU, typename R>
static __device__ __forceinline__ void linear_sum(const struct linear_args &a, const float4 (*red)[CK_LEAVES][RT][NT][32], const ck_ring_bars<R> &bars, int token0,
                                                  int part, int lane)
{
    int b = 0;
    uint32_t phase = 0;
    ck_pdl_wait();
    for (int unit = (int)blockIdx.x; unit < a.n_units; unit += (int)gridDim.x) {
        const int p = GLU ? 0 : part_of(a, unit), u = unit - a.part[p].unit0;
        struct unit_rows<NT, RT, GLU> rows;
        rows.load(a, p, u, token0, R::n_sum, part, lane);
        ck_mbar_wait(bars.red_full + 8u * (uint32_t)b, phase);
#pragma unroll
        for (int q = 0; q < NT; q++)
            if (q % R::n_sum == part) sum_leaves<NT, RT, GLU>(a, rows, red[b], p, u, token0, q, lane);
        ck_ring_pass(bars.red_empty + 8u * (uint32_t)b, lane);
        if (++b == R::n_red) {
            b = 0;
            phase ^= 1;
        }
    }
}
#endif

template <int FMT, int NS, int NT, int RT, bool GLU>
static __global__ void __launch_bounds__(linear_ring<FMT, NS, NT, RT>::threads, linear_ring<FMT, NS, NT, RT>::blocks)
    linear_ring_kernel(const __grid_constant__ struct linear_args a)
{
#if __CUDA_ARCH__ >= 900
    using R = linear_ring<FMT, NS, NT, RT>;
    constexpr int STAGE = R::stage, AHEAD = NT == 1 && !(R::near && GLU) ? STAGE : 1;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ float norm_warps[16];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, token0 = (int)blockIdx.y * NT * 8;
    float4(*red)[CK_LEAVES][RT][NT][32] = (float4(*)[CK_LEAVES][RT][NT][32])(smem + R::depth * R::slot);
    const ck_ring_bars<R> bars(smem);
    const int n_stage = ck_ring_stages<R>(a.n_ktile);
    bars.init();
    if (warp == CK_LEAVES) {
        if (lane < CK_LEAVES) linear_bring<FMT, NS, NT, RT, GLU>(a, ck_smem(smem), bars, n_stage, lane);
        return;
    }
    if (warp > CK_LEAVES) {
        linear_sum<NT, RT, GLU>(a, red, bars, token0, warp - CK_LEAVES - 1, lane);
        return;
    }

    const __half *x0 = (const __half *)a.x.v;
    int64_t ld_x = a.x.k_pad;
    if (NT == 1 && a.x.norm_in) {
        __half *made = (__half *)(smem + (R::bytes + 127) / 128 * 128);
        ld_x = CK_NORM_LD(a.x.k_pad);
        linear_norm_rows(a.x, a.m, made, (int)ld_x, norm_warps);
        x0 = made;
    } else {
        ck_pdl_wait();
    }
    const int n_left = a.m - token0 - (lane >> 2), first = ck_leaf_first(a.n_ktile, warp), n_tile = ck_leaf_first(a.n_ktile, warp + 1) - first;
    const __half *xp = x0 + (int64_t)(token0 + (lane >> 2)) * ld_x + (lane & 3) * 8 + first * 64;
    const uint32_t my = ck_smem(smem) + (uint32_t)(warp * R::leaf);
    /* x of AHEAD tiles waits in registers; what is read takes the place of what has been used. Lanes without a token keep their zeros. */
    uint4 x[AHEAD][NT][2] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++) x_load<NT>(x[i], xp + i * 64, ld_x, i < n_tile ? n_left : 0);
    int slot = 0, b = 0;
    uint32_t phase = 0, red_phase = 1;
    for (int unit = (int)blockIdx.x; unit < a.n_units; unit += (int)gridDim.x) {
        float acc[RT][NT][4] = {};
        const __half *now = xp;
        for (int left = n_tile, s = 0; s < n_stage; s++, left -= STAGE) {
            const uint32_t at = my + (uint32_t)(slot * R::slot);
            const bool ends = s + 1 == n_stage; /* from the beginning again */
            const __half *then = ends ? xp : now + STAGE * 64;
            const int left_then = ends ? n_tile : left - STAGE;
            auto next_x = [&](int i) { /* behind tile i */
                if (i + AHEAD < STAGE) x_load<NT>(x[i % AHEAD], now + (i + AHEAD) * 64, ld_x, i + AHEAD < left ? n_left : 0);
                else x_load<NT>(x[i % AHEAD], then + (i + AHEAD - STAGE) * 64, ld_x, i + AHEAD - STAGE < left_then ? n_left : 0);
            };
            ck_mbar_wait(bars.full + 8u * (uint32_t)slot, phase);
            if (left >= STAGE) { /* all codes of the stage are under way before the first is needed */
                ck_lane_tile<FMT, NS> w[STAGE][RT];
#pragma unroll
                for (int i = 0; i < STAGE; i++) ck_ring_load<R>(w[i], at, i, lane);
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
                        ck_ring_load<R>(w, at, i, lane);
                        ck_tile_product<FMT, NS, NT, RT>(acc, w, x[i % AHEAD], lane);
                    }
                    next_x(i);
                }
            }
            now = then;
            ck_ring_pass(bars.empty + 8u * (uint32_t)slot, lane);
            if (++slot == R::depth) {
                slot = 0;
                phase ^= 1;
            }
        }
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

template <int FMT, int NS, int NT, int RT, bool GLU> static int launch(const struct ck_ctx *c, struct linear_args a, cudaStream_t st)
{
    using R = linear_ring<FMT, NS, NT, RT>;
    a.n_units = 0;
    for (int p = 0; p < (GLU ? 1 : a.n_parts); p++) { /* RT neighbours make a unit; gated outputs have rows up to k_pad */
        int64_t rows = GLU ? a.out.k_pad : a.part[p].n, of = 16 * (GLU ? RT / 2 : RT);
        a.part[p].unit0 = a.n_units;
        a.n_units += (int)((rows + of - 1) / of);
    }
    int tokens = (a.m + NT * 8 - 1) / (NT * 8), most = c->major >= 9 ? c->n_sm * R::blocks : c->n_sm * 4;
    dim3 grid((unsigned)(a.n_units < most ? a.n_units : most), (unsigned)tokens);
    size_t smem = R::bytes;
    if (a.x.norm_in) smem = (size_t)(R::bytes + 127) / 128 * 128 + (size_t)a.m * (size_t)CK_NORM_LD(a.x.k_pad) * sizeof(__half);
    /* x of 8 tokens (64 KB for k of 4,096) then comes from the second level once a multiprocessor, not once a unit. A smaller one always does, and
     * attention before and behind takes what there is: a multiprocessor must be empty to be divided otherwise. */
    unsigned shared = !R::near ? 0u : a.m > 2 && a.x.k_pad >= 2048 ? ck_shared_percent(R::blocks, smem) : 100u;
    if (c->major >= 9) return ck_launch_shape(c, linear_ring_kernel<FMT, NS, NT, RT, GLU>, ck_shape{ grid, 1u, R::threads, smem, shared }, st, a);
    if constexpr (RT == (GLU ? 2 : 1)) return ck_launch(c, linear_kernel<FMT, NS, NT, RT, GLU>, grid, CK_LEAVES * 32, 0, st, a);
    else return (int)cudaErrorInvalidValue; /* launch_nt asks for no other before sm_90 */
}
/* Two row tiles share a load of x as long as every multiprocessor has some; gated units have two anyhow. Bits do not depend on it. */
static bool wide_units(const struct ck_ctx *c, const struct linear_args &a)
{
    int64_t n_tile = 0;
    for (int p = 0; p < a.n_parts; p++) n_tile += (a.part[p].n + 15) / 16;
    return c->major >= 9 && n_tile > c->n_sm;
}
template <int FMT, int NS, int NT, bool GLU> static int launch_width(const struct ck_ctx *c, const struct linear_args &a, cudaStream_t st)
{
    if constexpr (NT == 1) return launch<FMT, NS, NT, GLU ? 2 : 1, GLU>(c, a, st);
    else return GLU || wide_units(c, a) ? launch<FMT, NS, NT, 2, GLU>(c, a, st) : launch<FMT, NS, NT, GLU ? 2 : 1, GLU>(c, a, st);
}
template <int FMT, int NS, bool GLU> static int launch_nt(const struct ck_ctx *c, const struct linear_args &a, cudaStream_t st)
{
    return a.m <= 8    ? launch_width<FMT, NS, 1, GLU>(c, a, st)
           : a.m <= 16 ? launch_width<FMT, NS, 2, GLU>(c, a, st)
                       : launch_width<FMT, NS, 4, GLU>(c, a, st);
}
template <bool GLU> static int launch_format(const struct ck_ctx *c, const struct ck_weight *w, const struct linear_args &a, cudaStream_t st)
{
    return ck_launch_form(w->format, w->n_scale, [&](auto f) { return launch_nt<decltype(f)::format, decltype(f)::n_scale, GLU>(c, a, st); });
}

static int run_parts(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    struct linear_args a = {};
    a.x = *x;
    a.m = m;
    a.n_parts = n_parts;
    a.n_ktile = (int)(x->k_pad / 64);
    a.glu = -1;
    for (int i = 0; i < n_parts; i++) ck_fill_out(&a.part[i], parts[i].w, &parts[i]);
    return launch_format<false>(c, parts[0].w, a, st);
}

extern "C" int ck_norm_tokens(const struct ck_ctx *c, int64_t k)
{
    int64_t k_pad = (k + 63) / 64 * 64, n = NORM_BYTES / (CK_NORM_LD(k_pad) * (int64_t)sizeof(__half));
    return c->major < 9 ? 0 : (int)(n < NORM_TOKENS ? n : NORM_TOKENS);
}

/* Is x in the layout of m tokens, or a norm that these products take? */
static bool input_fits(const struct ck_ctx *c, const struct ck_x *x, int m)
{
    return x->norm_in ? m <= ck_norm_tokens(c, x->k) : x->layout == ck_x_layout_for(c, m);
}

extern "C" int ck_linear(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    if (m <= 0 || n_parts <= 0 || n_parts > CK_MAX_PARTS || !input_fits(c, x, m)) return (int)cudaErrorInvalidValue;
    for (int i = 0, n; i < n_parts; i += n) { /* neighbours of one form share a launch */
        for (n = 1; i + n < n_parts; n++)
            if (parts[i + n].w->format != parts[i].w->format || parts[i + n].w->n_scale != parts[i].w->n_scale) break;
        int64_t n_row = 0;
        for (int j = i; j < i + n; j++) {
            if (parts[j].w->k != x->k) return (int)cudaErrorInvalidValue;
            n_row += parts[j].w->n;
        }
        int e = ck_x_layout_for(c, m) == CK_X_TILES           ? ck_gemm(c, x, m, parts + i, n, st)
                : ck_batch_takes(c, m, parts[i].w, n_row) ? ck_batch(c, x, m, parts + i, n, st)
                                                              : run_parts(c, x, m, parts + i, n, st);
        if (e) return e;
    }
    return 0;
}

extern "C" int ck_linear_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                             const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    if (m <= 0 || gate->k != x->k || up->k != x->k || gate->n != up->n || out->k != gate->n || gate->format != up->format ||
        gate->n_scale != up->n_scale || kind < 0 || kind > 2 || !input_fits(c, x, m) || out->layout != ck_x_layout_for(c, m))
        return (int)cudaErrorInvalidValue;
    if (out->layout == CK_X_TILES) return ck_gemm_glu(c, x, m, gate, up, gate_bias, up_bias, kind, out, st);
    if (ck_batch_takes(c, m, gate, gate->n * 2)) return ck_batch_glu(c, x, m, gate, up, gate_bias, up_bias, kind, out, st);
    struct linear_args a = {};
    a.x = *x;
    a.out = *out;
    a.m = m;
    a.n_parts = 2;
    a.n_ktile = (int)(x->k_pad / 64);
    a.glu = kind;
    struct ck_part g = {}, u = {};
    g.bias = gate_bias;
    u.bias = up_bias;
    ck_fill_out(&a.part[0], gate, &g);
    ck_fill_out(&a.part[1], up, &u);
    return launch_format<true>(c, gate, a, st);
}
