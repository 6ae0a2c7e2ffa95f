/* kernels_linear.cu: products with mma.sync: the path for few tokens everywhere, and for any number where wgmma is missing.
 *
 * A block owns RT tiles of 16 rows at a time and takes 8 leaves of k at once, one a warp; leaf sums meet in shared memory and are added
 * in order. Tokens are columns, 8 an instruction, NT instructions a block.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/kernels_int.h"

#define WARPS CK_LEAVES

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

/* Codes of one tile against NT x 8 tokens. */
template <int FMT, int NS, int NT, int RT>
static __device__ __forceinline__ void tile_product(float acc[RT][NT][4], const ck_lane_tile<FMT, NS> w[RT], const uint4 x[NT][2], int lane)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int r = 0; r < RT; r++) {
            uint32_t f[4];
            w[r].frag(f, j, lane);
#pragma unroll
            for (int q = 0; q < NT; q++) {
                uint4 v = x[q][j >> 1];
                ck_mma_f16(acc[r][q], f, j & 1 ? v.z : v.x, j & 1 ? v.w : v.y);
            }
        }
}

/* This lane's part of x for k tile g: two steps in each 16 bytes; zeros beyond the last token. */
template <int NT> static __device__ __forceinline__ void x_load(uint4 x[NT][2], const __half *at, int64_t k_pad, int n_left, int g)
{
#pragma unroll
    for (int q = 0; q < NT; q++) {
        const uint4 *src = (const uint4 *)(at + (int64_t)q * 8 * k_pad + g * 64);
        x[q][0] = q * 8 < n_left ? src[0] : make_uint4(0, 0, 0, 0);
        x[q][1] = q * 8 < n_left ? src[4] : make_uint4(0, 0, 0, 0);
    }
}

/* Row tile r of a unit: plain units are RT neighbours of one part, gated ones RT / 2 of gate, then the same of up. */
template <int RT, bool GLU> static __device__ __forceinline__ int row_tile_of(int unit, int r) { return GLU ? unit * (RT / 2) + r % (RT / 2) : unit * RT + r; }

/* Leaf sums of a unit, in order; lane l has float4 l of tokens token0 + 8 q ... of each row tile. */
template <int NT, int RT, bool GLU>
static __device__ __forceinline__ void sum_leaves(const struct linear_args &a, const float4 (*red)[RT][NT][32], int p, int unit, int token0, int q, int l)
{
    const int token = token0 + q * 8 + (l & 3) * 2;
    constexpr int OUT = GLU ? RT / 2 : RT;
    const float inv = GLU ? __fdiv_rn(1.0f, a.out.mul) : 0.0f;
#pragma unroll
    for (int r = 0; r < OUT; r++) {
        float s[2][4];
#pragma unroll
        for (int h = 0; h < (GLU ? 2 : 1); h++) {
            float4 v = red[0][r + h * OUT][q][l];
            s[h][0] = v.x, s[h][1] = v.y, s[h][2] = v.z, s[h][3] = v.w;
#pragma unroll
            for (int k = 1; k < WARPS; k++) {
                v = red[k][r + h * OUT][q][l];
                s[h][0] = __fadd_rn(s[h][0], v.x);
                s[h][1] = __fadd_rn(s[h][1], v.y);
                s[h][2] = __fadd_rn(s[h][2], v.z);
                s[h][3] = __fadd_rn(s[h][3], v.w);
            }
        }
        const int row = row_tile_of<RT, GLU>(unit, r) * 16 + (l >> 2);
        const struct ck_out &o = a.part[p];
        struct ck_row rows[2] = { ck_row_load(o, a.x.mul, row), ck_row_load(o, a.x.mul, row + 8) }, ups[2] = { rows[0], rows[1] };
        if (GLU) {
            ups[0] = ck_row_load(a.part[1], a.x.mul, row);
            ups[1] = ck_row_load(a.part[1], a.x.mul, row + 8);
        }
        float old[4], v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int rr = row + (e >> 1) * 8, tk = token + (e & 1);
            old[e] = !GLU && o.add && tk < a.m && rr < o.n ? o.y[(int64_t)tk * o.ld_y + rr] : 0.0f;
            v[e] = GLU ? ck_glu_value(o, a.part[1], a.glu, inv, rows[e >> 1], ups[e >> 1], rr, s[0][e], s[1][e]) : ck_out_value(o, rows[e >> 1], s[0][e]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int rr = row + (e >> 1) * 8, tk = token + (e & 1);
            if (tk >= a.m) continue;
            if (!GLU && rr < o.n) o.y[(int64_t)tk * o.ld_y + rr] = o.add ? __fadd_rn(old[e], v[e]) : v[e];
            if (GLU && rr < a.out.k_pad) ((__half *)a.out.v)[ck_x_off(a.out.layout, a.out.k_pad, tk, rr)] = __float2half_rn(v[e]);
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
static __global__ void __launch_bounds__(WARPS * 32) linear_kernel(const __grid_constant__ struct linear_args a)
{
#if __CUDA_ARCH__ < 900
    constexpr int tile_bytes = ck_tile_size<FMT, NS>();
    __shared__ float4 red[WARPS][RT][NT][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int token0 = (int)blockIdx.y * NT * 8, n_left = a.m - token0 - (lane >> 2);
    const int first = ck_leaf_first(a.n_ktile, warp), last = ck_leaf_first(a.n_ktile, warp + 1);
    const __half *xp = (const __half *)a.x.v + (int64_t)(token0 + (lane >> 2)) * a.x.k_pad + (lane & 3) * 8;
    for (int unit = (int)blockIdx.x; unit < a.n_units; unit += (int)gridDim.x) {
        const uint8_t *tiles[RT];
        int p = GLU ? 0 : part_of(a, unit), u = unit - a.part[p].unit0;
#pragma unroll
        for (int r = 0; r < RT; r++) tiles[r] = unit_tiles<FMT, NS>(a, GLU ? r / (RT / 2) : p, row_tile_of<RT, GLU>(u, r));
        float acc[RT][NT][4] = {};
        for (int g = first; g < last; g++) {
            ck_lane_tile<FMT, NS> w[RT];
            uint4 x[NT][2];
#pragma unroll
            for (int r = 0; r < RT; r++) w[r].load(tiles[r] + (int64_t)g * tile_bytes, lane);
            x_load<NT>(x, xp, a.x.k_pad, n_left, g);
            tile_product<FMT, NS, NT, RT>(acc, w, x, lane);
        }
#pragma unroll
        for (int r = 0; r < RT; r++)
#pragma unroll
            for (int q = 0; q < NT; q++) red[warp][r][q][lane] = make_float4(acc[r][q][0], acc[r][q][1], acc[r][q][2], acc[r][q][3]);
        __syncthreads();
        if (warp < NT) sum_leaves<NT, RT, GLU>(a, red, p, u, token0, warp, lane);
        __syncthreads();
    }
#endif
}

/* sm_90: every warp has a ring of its own that bulk copies fill, STAGE tiles of each row tile at a time. The ring runs ahead over units,
 * and its first copies are under way before the kernel waits for the one before it. Leaf sums of unit i are added by warp i % 8 once
 * it has finished unit i + 1, so that nobody waits for the slowest. */
/* Up to 8 tokens two blocks share a multiprocessor: a warp alone waits too much for its own instructions. */
template <int FMT, int NS, int NT, int RT> struct ring {
    enum {
        blocks = NT == 1 ? 2 : 1,
        tile = ck_tile_size<FMT, NS>(),
        stage = 2304 / (RT * tile) > 0 ? 2304 / (RT * tile) : 1,
        slot = RT * stage * tile,
        red = WARPS * RT * NT * 512,
        room = NT == 1 ? 108 * 1024 : 160 * 1024,
        fit = (room - 2 * red) / (WARPS * slot),
        depth = fit > 5 ? 5 : fit < 2 ? 2 : fit,
        bytes = WARPS * depth * slot + 2 * red + 8 * (WARPS * depth + 4)
    };
};

template <int FMT, int NS, int NT, int RT, bool GLU>
static __global__ void __launch_bounds__(WARPS * 32) ring_kernel(const __grid_constant__ struct linear_args a)
{
#if __CUDA_ARCH__ >= 900
    using R = ring<FMT, NS, NT, RT>;
    constexpr int tile = R::tile, STAGE = R::stage, D = R::depth;
    extern __shared__ __align__(128) uint8_t smem[];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    float4(*red)[WARPS][RT][NT][32] = (float4(*)[WARPS][RT][NT][32])(smem + WARPS * D * R::slot);
    const uint32_t bars = ck_smem(smem + WARPS * D * R::slot + 2 * R::red);
    const uint32_t full = bars + 8u * (uint32_t)(warp * D), red_full = bars + 8u * WARPS * D, red_empty = red_full + 16;
    const uint8_t *my = smem + warp * D * R::slot;
    const int token0 = (int)blockIdx.y * NT * 8, n_left = a.m - token0 - (lane >> 2);
    const int first = ck_leaf_first(a.n_ktile, warp), last = ck_leaf_first(a.n_ktile, warp + 1);

    if (lane == 0)
        for (int i = 0; i < D; i++) ck_mbar_init(full + 8u * (uint32_t)i, 1);
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) {
            ck_mbar_init(red_full + 8u * (uint32_t)i, WARPS);
            ck_mbar_init(red_empty + 8u * (uint32_t)i, 1);
        }
    ck_mbar_init_done();
    __syncthreads();

    /* What the next copy brings: k tiles from at_g on of unit at_unit. */
    int at_unit = (int)blockIdx.x, at_g = first;
    const uint8_t *src[RT];
    const uint64_t policy = ck_policy_first();
    auto seek = [&]() {
        if (at_unit >= a.n_units) return;
        int p = GLU ? 0 : part_of(a, at_unit);
#pragma unroll
        for (int r = 0; r < RT; r++)
            src[r] = unit_tiles<FMT, NS>(a, GLU ? r / (RT / 2) : p, row_tile_of<RT, GLU>(at_unit - a.part[p].unit0, r)) + (int64_t)first * tile;
    };
    auto issue = [&](int slot) {
        if (at_unit >= a.n_units || first == last) return;
        int n = last - at_g < STAGE ? last - at_g : STAGE;
        if (lane == 0) {
            uint32_t bar = full + 8u * (uint32_t)slot;
            ck_mbar_expect(bar, (uint32_t)(RT * n * tile));
#pragma unroll
            for (int r = 0; r < RT; r++) ck_bulk(ck_smem(my + slot * R::slot + r * STAGE * tile), src[r], (uint32_t)(n * tile), bar, policy);
        }
#pragma unroll
        for (int r = 0; r < RT; r++) src[r] += n * tile;
        at_g += n;
        if (at_g == last) {
            at_g = first;
            at_unit += (int)gridDim.x;
            seek();
        }
    };
    seek();
    for (int i = 0; i < D; i++) issue(i);
    ck_pdl_wait();

    const __half *xp = (const __half *)a.x.v + (int64_t)(token0 + (lane >> 2)) * a.x.k_pad + (lane & 3) * 8;
    uint4 xn[NT][2];
    if (first < last) x_load<NT>(xn, xp, a.x.k_pad, n_left, first);
    int slot = 0, i_unit = 0;
    uint32_t phase = 0;
    auto sum_unit = [&](int i) {
        int unit = (int)blockIdx.x + i * (int)gridDim.x, p = GLU ? 0 : part_of(a, unit);
        ck_mbar_wait(red_full + 8u * (uint32_t)(i & 1), (uint32_t)(i >> 1) & 1);
#pragma unroll
        for (int q = 0; q < NT; q++) sum_leaves<NT, RT, GLU>(a, red[i & 1], p, unit - a.part[p].unit0, token0, q, lane);
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(red_empty + 8u * (uint32_t)(i & 1));
    };
    for (int unit = (int)blockIdx.x; unit < a.n_units; unit += (int)gridDim.x, i_unit++) {
        /* The next kernel may come when this block's last unit begins: earlier it would take room from blocks still to start. */
        if (unit + (int)gridDim.x >= a.n_units) ck_pdl_launch();
        float acc[RT][NT][4] = {};
        for (int g = first; g < last; g += STAGE) {
            const uint8_t *at = my + slot * R::slot;
            ck_mbar_wait(full + 8u * (uint32_t)slot, phase);
            auto step = [&](int i) {
                ck_lane_tile<FMT, NS> w[RT];
                uint4 x[NT][2];
#pragma unroll
                for (int r = 0; r < RT; r++) w[r].load(at + (r * STAGE + i) * tile, lane);
#pragma unroll
                for (int q = 0; q < NT; q++) {
                    x[q][0] = xn[q][0];
                    x[q][1] = xn[q][1];
                }
                x_load<NT>(xn, xp, a.x.k_pad, n_left, g + i + 1 < last ? g + i + 1 : first);
                tile_product<FMT, NS, NT, RT>(acc, w, x, lane);
            };
            if (g + STAGE <= last) {
#pragma unroll
                for (int i = 0; i < STAGE; i++) step(i);
            } else {
                for (int i = 0; g + i < last; i++) step(i);
            }
            __syncwarp();
            issue(slot);
            if (++slot == D) {
                slot = 0;
                phase ^= 1;
            }
        }
        int b = i_unit & 1;
        if (i_unit >= 2) ck_mbar_wait(red_empty + 8u * (uint32_t)b, (uint32_t)((i_unit >> 1) - 1) & 1);
#pragma unroll
        for (int r = 0; r < RT; r++)
#pragma unroll
            for (int q = 0; q < NT; q++) red[b][warp][r][q][lane] = make_float4(acc[r][q][0], acc[r][q][1], acc[r][q][2], acc[r][q][3]);
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(red_full + 8u * (uint32_t)b);
        if (i_unit >= 1 && (i_unit - 1) % WARPS == warp) sum_unit(i_unit - 1);
    }
    if (i_unit > 0 && (i_unit - 1) % WARPS == warp) sum_unit(i_unit - 1);
#endif
}

/* --- launch --- */

template <int FMT, int NS, int NT, int RT, bool GLU> static int launch(const struct ck_ctx *c, struct linear_args a, cudaStream_t st)
{
    using R = ring<FMT, NS, NT, RT>;
    a.n_units = 0;
    for (int p = 0; p < (GLU ? 1 : a.n_parts); p++) { /* RT neighbours make a unit; gated outputs have rows up to k_pad */
        int64_t rows = GLU ? a.out.k_pad : a.part[p].n, of = 16 * (GLU ? RT / 2 : RT);
        a.part[p].unit0 = a.n_units;
        a.n_units += (int)((rows + of - 1) / of);
    }
    int tokens = (a.m + NT * 8 - 1) / (NT * 8), most = c->major >= 9 ? c->n_sm * R::blocks : c->n_sm * 4;
    dim3 grid((unsigned)(a.n_units < most ? a.n_units : most), (unsigned)tokens);
    if (c->major >= 9) return ck_launch(c, ring_kernel<FMT, NS, NT, RT, GLU>, grid, WARPS * 32, R::bytes, st, a);
    return ck_launch(c, linear_kernel<FMT, NS, NT, RT, GLU>, grid, WARPS * 32, 0, st, a);
}
template <int FMT, int NS, bool GLU> static int launch_nt(const struct ck_ctx *c, const struct linear_args &a, cudaStream_t st)
{
    constexpr int RT = GLU ? 2 : 1;
    return a.m <= 8    ? launch<FMT, NS, 1, RT, GLU>(c, a, st)
           : a.m <= 16 ? launch<FMT, NS, 2, RT, GLU>(c, a, st)
                       : launch<FMT, NS, 4, RT, GLU>(c, a, st);
}
template <bool GLU> static int launch_format(const struct ck_ctx *c, int format, int ns, const struct linear_args &a, cudaStream_t st)
{
    (void)ns;
    if (format == CK_F16) return launch_nt<CK_F16, 1, GLU>(c, a, st);
#ifndef CK_FEW /* a quick build for work on these kernels has two forms only */
    if (format == CK_Q4 && ns == 2) return launch_nt<CK_Q4, 2, GLU>(c, a, st);
    if (format == CK_Q8)
        return ns == 1 ? launch_nt<CK_Q8, 1, GLU>(c, a, st) : ns == 2 ? launch_nt<CK_Q8, 2, GLU>(c, a, st) : launch_nt<CK_Q8, 4, GLU>(c, a, st);
#endif
    return launch_nt<CK_Q4, 1, GLU>(c, a, st);
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
    return launch_format<false>(c, parts[0].w->format, parts[0].w->n_scale, a, st);
}

extern "C" int ck_linear(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    if (m <= 0 || n_parts <= 0 || n_parts > CK_MAX_PARTS || x->layout != ck_x_layout_for(c, m)) return (int)cudaErrorInvalidValue;
    for (int i = 0, n; i < n_parts; i += n) { /* neighbours of one form share a launch */
        for (n = 1; i + n < n_parts; n++)
            if (parts[i + n].w->format != parts[i].w->format || parts[i + n].w->n_scale != parts[i].w->n_scale) break;
        for (int j = i; j < i + n; j++)
            if (parts[j].w->k != x->k) return (int)cudaErrorInvalidValue;
        int e = x->layout == CK_X_TILES ? ck_gemm(c, x, m, parts + i, n, st) : run_parts(c, x, m, parts + i, n, st);
        if (e) return e;
    }
    return 0;
}

extern "C" int ck_linear_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                             const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    if (m <= 0 || gate->k != x->k || up->k != x->k || gate->n != up->n || out->k != gate->n || gate->format != up->format ||
        gate->n_scale != up->n_scale || kind < 0 || kind > 2 || x->layout != ck_x_layout_for(c, m) || out->layout != x->layout)
        return (int)cudaErrorInvalidValue;
    if (x->layout == CK_X_TILES) return ck_gemm_glu(c, x, m, gate, up, gate_bias, up_bias, kind, out, st);
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
    return launch_format<true>(c, gate->format, gate->n_scale, a, st);
}
