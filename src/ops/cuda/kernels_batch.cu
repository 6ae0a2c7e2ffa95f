/* kernels_batch.cu: products of some tokens (a batch that decodes) with wgmma, where kernels_linear.cu would read the input too often.
 *
 * A block has up to five warpgroups that multiply, one or two row tiles a warp, and one that brings weights and input: stages of four k tiles of
 * all row tiles of the block, and of the input, turned into the order of the instruction's B operand. A warp that multiplies makes 16-bit floats of
 * its codes in registers, the A operand, and does little else. Leaves run one after the other. Where rows are too few for the card, the four or eight
 * blocks of a cluster share them: each has some of the leaves, and in the end each gets all leaves of a part of the outputs into its
 * memory and adds them in order. k steps and leaves as in kernels_linear.cu: same bits.
 * What counts is how many instructions a warp needs for a tile: a copy, a descriptor and a wait cost as much as the codes.
 */
#include "ops/cuda/kernels_batch.cuh"
#include "ops/cuda/kernels_int.h"

#define TILES_MAX 16         /* row tiles of a unit */
#define TILES_8 20           /* the same where eight blocks share the leaves */
#define ROOM (222 * 1024)    /* bytes of a block's rings */
#define DEPTH_MAX 8
#define BEGUN 1              /* stages of a cluster's block that are asked for before its input */

#if __CUDA_ARCH_FEAT_SM90_ALL
/* Sums of rows row and row + 8, tokens token and token + 1, to their places. */
static __device__ __forceinline__ void batch_store(const struct batch_args &a, const struct ck_out &o, const struct ck_row rows[2], int row, int token, const float v[4],
                                                   const float old[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int rr = row + (e >> 1) * 8, tk = token + (e & 1);
        if (tk >= a.m || rr >= o.n) continue;
        const float y = ck_out_value(o, rows[e >> 1], v[e]);
        o.y[(int64_t)tk * o.ld_y + rr] = o.add ? __fadd_rn(old[e], y) : y;
    }
}
static __device__ __forceinline__ void batch_old(const struct batch_args &a, const struct ck_out &o, int row, int token, float old[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int rr = row + (e >> 1) * 8, tk = token + (e & 1);
        old[e] = o.add && tk < a.m && rr < o.n ? o.y[(int64_t)tk * o.ld_y + rr] : 0.0f;
    }
}
static __device__ __forceinline__ void batch_gate(const struct batch_args &a, const struct ck_row g[2], const struct ck_row u[2], int row, int token, const float vg[4],
                                                  const float vu[4], float inv)
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int rr = row + (e >> 1) * 8, tk = token + (e & 1);
        if (tk >= a.m || rr >= a.out.k_pad) continue;
        const float y = ck_glu_value(a.part[0], a.part[1], a.glu, inv, g[e >> 1], u[e >> 1], rr, vg[e], vu[e]);
        ((__half *)a.out.v)[(int64_t)tk * a.out.k_pad + rr] = __float2half_rn(y);
    }
}

/* What a tile's rows bring to their outputs comes to the second-level cache while the products run. */
static __device__ __forceinline__ void rows_near(const struct ck_out &o, int first, int lane)
{
    if (first < 0 || lane != 0) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(o.row_scale + first));
    if (o.bias) asm volatile("prefetch.global.L2 [%0];" ::"l"(o.bias + first));
}

/* Row tile r of a warp's: of the line of all, its part and its first row there; behind the last or the unit's: -1. */
template <int RT, bool GLU> static __device__ __forceinline__ int own_row(const struct batch_args &a, int unit, int warp, int r, int *part)
{
    const int i = warp * RT + r, t = unit * a.per + i;
    *part = 0;
    return i < a.per && t < a.n_tile ? tile_row<GLU>(a, t, part) : -1;
}

/* All leaves of a warp's row tiles, and what becomes of them. Gated: gate's tile and up's of the same rows. */
template <int FMT, int NS, int NT, int RT, bool GLU>
static __device__ __forceinline__ void tile_whole(const struct batch_args &a, struct worker<RT> &k, int unit, int token0)
{
    const int token = token0 + (k.lane & 3) * 2;
    int part[RT], first[RT];
    float acc[RT][NT * 4], total[RT][NT * 4];
#pragma unroll
    for (int r = 0; r < RT; r++) {
        first[r] = own_row<RT, GLU>(a, unit, k.warp, r, &part[r]);
        rows_near(a.part[part[r]], first[r], k.lane);
#pragma unroll
        for (int i = 0; i < NT * 4; i++) total[r][i] = -0.0f; /* the one value that changes no sum */
    }
    for (int leaf = 0; leaf < CK_LEAVES; leaf++) {
        leaf_sum<FMT, NS, NT, RT, true, true, 4>(acc, a, k, ck_leaf_first(a.n_ktile, leaf), ck_leaf_first(a.n_ktile, leaf + 1));
#pragma unroll
        for (int r = 0; r < RT; r++)
#pragma unroll
            for (int i = 0; i < NT * 4; i++) total[r][i] = __fadd_rn(total[r][i], acc[r][i]);
    }
    if constexpr (GLU) {
        const int t = unit * a.per + k.warp * RT, row = (t >> 1) * 16 + (k.lane >> 2);
        if (k.warp * RT >= a.per || t >= a.n_tile) return;
        const struct ck_row gate[2] = { ck_row_load(a.part[0], a.x.mul, row), ck_row_load(a.part[0], a.x.mul, row + 8) };
        const struct ck_row up[2] = { ck_row_load(a.part[1], a.x.mul, row), ck_row_load(a.part[1], a.x.mul, row + 8) };
        const float inv = __fdiv_rn(1.0f, a.out.mul);
#pragma unroll
        for (int q = 0; q < NT; q++) batch_gate(a, gate, up, row, token + q * 8, total[0] + 4 * q, total[1] + 4 * q, inv);
    } else {
#pragma unroll
        for (int r = 0; r < RT; r++) {
            if (first[r] < 0) continue;
            const struct ck_out &o = a.part[part[r]];
            const int row = first[r] + (k.lane >> 2);
            const struct ck_row rows[2] = { ck_row_load(o, a.x.mul, row), ck_row_load(o, a.x.mul, row + 8) };
#pragma unroll
            for (int q = 0; q < NT; q++) {
                float old[4];
                batch_old(a, o, row, token + q * 8, old);
                batch_store(a, o, rows, row, token + q * 8, total[r] + 4 * q, old);
            }
        }
    }
}

static __device__ __forceinline__ void cluster_put(uint32_t at, const float v[4])
{
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

/* This block's leaves of a row tile. Piece i (8 tokens of a row tile) is added by block i % SPLIT of the cluster, in its place i / SPLIT: all
 * its leaves come there, to where the rings were. */
template <int FMT, int NS, int NT, int SPLIT>
static __device__ __forceinline__ void tile_part(const struct batch_args &a, struct worker<1> &k, uint8_t *smem, int unit, int rank, int token0)
{
    constexpr int LEAVES = CK_LEAVES / SPLIT;
    const int warp = k.warp, lane = k.lane;
    int of, row0 = own_row<1, false>(a, unit, warp, 0, &of);
    rows_near(a.part[of], row0, lane);
    float acc[LEAVES][1][NT * 4];
#pragma unroll
    for (int i = 0; i < LEAVES; i++) {
        const int leaf = rank * LEAVES + i;
        leaf_sum<FMT, NS, NT, 1, false, SPLIT == 8, SPLIT == 8 ? 2 : 4>(acc[i], a, k, ck_leaf_first(a.n_ktile, leaf), ck_leaf_first(a.n_ktile, leaf + 1));
    }
    __syncwarp();
    ck_cluster_begun();
    ck_cluster_wait(); /* nobody needs its rings any more */
    const uint32_t mine = ck_smem(smem);
    if (warp < a.per)
#pragma unroll
        for (int q = 0; q < NT; q++) {
            const int piece = warp * NT + q;
            uint32_t to;
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(mine + (uint32_t)((piece / SPLIT * CK_LEAVES + rank * LEAVES) * 512 + lane * 16)), "r"(piece % SPLIT));
#pragma unroll
            for (int i = 0; i < LEAVES; i++) cluster_put(to + (uint32_t)i * 512u, acc[i][0] + 4 * q);
        }
    __syncwarp();
    ck_cluster_arrive();
    const int n_place = (a.per * NT - rank + SPLIT - 1) / SPLIT;
    bool met = false;
    for (int place = warp; place < n_place; place += a.groups * 4) {
        const int piece = place * SPLIT + rank, t = unit * a.per + piece / NT;
        int part = 0, first = t < a.n_tile ? tile_row<false>(a, t, &part) : -1;
        if (first < 0) continue;
        const struct ck_out &o = a.part[part];
        const int row = first + (lane >> 2), token = token0 + piece % NT * 8 + (lane & 3) * 2;
        const struct ck_row rows[2] = { ck_row_load(o, a.x.mul, row), ck_row_load(o, a.x.mul, row + 8) };
        float old[4], s[4];
        batch_old(a, o, row, token, old);
        if (!met) ck_cluster_wait();
        met = true;
        const float4 *red = (const float4 *)(smem + place * CK_LEAVES * 512) + lane;
        float4 v = red[0];
        s[0] = v.x, s[1] = v.y, s[2] = v.z, s[3] = v.w;
#pragma unroll
        for (int i = 1; i < CK_LEAVES; i++) {
            v = red[i * 32];
            s[0] = __fadd_rn(s[0], v.x);
            s[1] = __fadd_rn(s[1], v.y);
            s[2] = __fadd_rn(s[2], v.z);
            s[3] = __fadd_rn(s[3], v.w);
        }
        batch_store(a, o, rows, row, token, s, old);
    }
    if (!met) ck_cluster_wait();
}
#endif

/* SPLIT 1: block by block of units; else a cluster has one unit, its blocks the leaves in order. */
template <int FMT, int NS, int NT, bool GLU, int SPLIT>
static __global__ void __launch_bounds__(batch_groups(SPLIT == 8 ? TILES_8 : TILES_MAX, batch_own(SPLIT)) * 128 + 128, 1)
    batch_kernel(const __grid_constant__ struct batch_args a)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    using B = batch<FMT, NS, NT>;
    constexpr int RT = batch_own(SPLIT);
    extern __shared__ __align__(1024) uint8_t smem[];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, token0 = (int)blockIdx.y * NT * 8;
    const int rank = (int)blockIdx.x % SPLIT, unit0 = (int)blockIdx.x / SPLIT;
    struct ring r;
    const int x_at = (a.depth * a.per * B::stage + 127) / 128 * 128;
    r.w = ck_smem(smem);
    r.x = r.w + (uint32_t)x_at;
    r.full = r.w + (uint32_t)(x_at + a.depth * B::x_bytes);
    r.empty = r.full + 8u * (uint32_t)a.depth;
    if (threadIdx.x == 0)
        for (int i = 0; i < a.depth; i++) {
            ck_mbar_init(r.full + 8u * (uint32_t)i, 4);
            ck_mbar_init(r.empty + 8u * (uint32_t)i, a.groups * 4);
        }
    ck_mbar_init_done();
    __syncthreads();
    ck_pdl_launch();
    const int run = a.n_ktile % (KS * CK_LEAVES) == 0 ? CK_LEAVES / SPLIT : 1; /* leaves of whole stages lie one behind the other */
    const struct slice sl = { rank * (CK_LEAVES / SPLIT), (rank + 1) * (CK_LEAVES / SPLIT), SPLIT > 1 ? a.n_unit : (int)gridDim.x, run };
    if (warp >= a.groups * 4) {
        batch_bring<FMT, NS, NT, GLU, (SPLIT > 1)>(a, sl, unit0, r, token0, warp - a.groups * 4, lane);
        if (SPLIT > 1) { /* the cluster's meetings are of all its warps */
            __syncwarp();
            ck_cluster_begun();
            ck_cluster_wait();
            ck_cluster_begun();
            ck_cluster_wait();
        }
        return;
    }
    struct worker<RT> k;
    k.x = r.x;
    k.full = r.full;
    k.warp = warp;
    k.lane = lane;
    k.slot = 0;
    k.phase = 0;
    k.leads = elect_one();
#pragma unroll
    for (int i = 0; i < RT; i++) k.w[i] = r.w + (uint32_t)((warp * RT + i < a.per ? warp * RT + i : 0) * B::stage); /* behind the unit's: keeps step */
    batch_begin<FMT, NS, RT, GLU>(a, sl, unit0, r, warp, k.leads);
    ck_pdl_wait(); /* residuals and outputs are read and written below */
    if constexpr (SPLIT > 1) tile_part<FMT, NS, NT, SPLIT>(a, k, smem, unit0, rank, token0);
    else
        for (int unit = unit0; unit < a.n_unit; unit += (int)gridDim.x) tile_whole<FMT, NS, NT, RT, GLU>(a, k, unit, token0);
#endif
}

/* --- launch --- */

template <int FMT, int NS, int NT, bool GLU, int SPLIT> static int launch(const struct ck_ctx *c, struct batch_args a, cudaStream_t st)
{
    using B = batch<FMT, NS, NT>;
    a.groups = batch_groups(a.per, batch_own(SPLIT));
    a.depth = (ROOM - 128) / (a.per * B::stage + B::x_bytes + 16);
    a.depth = a.depth < DEPTH_MAX ? a.depth : DEPTH_MAX;
    a.begun = SPLIT > 1 ? BEGUN : a.depth;
    a.n_unit = (a.n_tile + a.per - 1) / a.per;
    const int bytes = (a.per * a.depth * B::stage + 127) / 128 * 128 + a.depth * B::x_bytes;
    if (a.depth < 2 || a.per > TILES_8 || (SPLIT > 1 && (a.per * NT + SPLIT - 1) / SPLIT * CK_LEAVES * 512 > bytes)) return (int)cudaErrorInvalidValue;
    unsigned blocks = (unsigned)(SPLIT > 1 ? a.n_unit * SPLIT : a.n_unit < c->n_sm ? a.n_unit : c->n_sm), tokens = (unsigned)((a.m + NT * 8 - 1) / (NT * 8));
    return ck_launch_cluster(c, batch_kernel<FMT, NS, NT, GLU, SPLIT>, dim3(blocks, tokens), SPLIT, (a.groups + 1) * 128, (size_t)(bytes + 16 * a.depth), st, a);
}
/* How many row tiles a unit has, and the blocks that share its leaves: so that every multiprocessor has some. Fewer and larger clusters
 * than there could be are faster. Bits do not depend on it. */
static int batch_plan(const struct ck_ctx *c, struct batch_args *a)
{
    const int eights = c->n_sm / 10, fours = c->n_sm * 3 / 14, fours_most = c->n_sm * 5 / 22; /* most: that fit at once */
    if (a->glu < 0 && a->n_tile <= eights * TILES_8) {
        a->per = (a->n_tile + eights - 1) / eights;
        return 8;
    }
    if (a->glu < 0 && a->n_tile <= fours_most * TILES_MAX) {
        a->per = (a->n_tile + fours - 1) / fours;
        a->per = a->per < TILES_MAX ? a->per : TILES_MAX;
        return 4;
    }
    const int most = c->n_sm * TILES_MAX, rounds = (a->n_tile + most - 1) / most;
    a->per = (a->n_tile + rounds * c->n_sm - 1) / (rounds * c->n_sm);
    if (a->glu >= 0) a->per = (a->per + 1) / 2 * 2;
    return 1;
}
template <int FMT, int NS> static int launch_batch(const struct ck_ctx *c, struct batch_args a, cudaStream_t st)
{
    int split = batch_plan(c, &a);
    if (a.glu >= 0) return launch<FMT, NS, 4, true, 1>(c, a, st);
    return split == 8   ? launch<FMT, NS, 4, false, 8>(c, a, st)
           : split == 4 ? launch<FMT, NS, 4, false, 4>(c, a, st)
                        : launch<FMT, NS, 4, false, 1>(c, a, st);
}

/* Fewer tokens, or fewer tiles than a card's warps are sooner done with, are for kernels_linear.cu. */
#define TILES_FEW 6000
extern "C" bool ck_batch_takes(const struct ck_ctx *c, int m, const struct ck_weight *w, int64_t n_row)
{
    return c->wgmma && m > CK_BATCH_TOKENS_FEW && m <= CK_X_ROWS_MAX && w->format == CK_Q4 && w->n_scale == 1 && (n_row / 16) * ((w->k + 63) / 64) >= TILES_FEW;
}

extern "C" int ck_batch(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    struct batch_args a = {};
    int n_tile = 0;
    a.x = *x;
    a.m = m;
    a.n_parts = n_parts;
    a.n_ktile = (int)(x->k_pad / 64);
    a.glu = -1;
    for (int i = 0; i < n_parts; i++) {
        ck_fill_out(&a.part[i], parts[i].w, &parts[i]);
        a.part[i].unit0 = n_tile;
        n_tile += (int)((parts[i].w->n + 15) / 16);
    }
    a.n_tile = n_tile;
    return launch_batch<CK_Q4, 1>(c, a, st);
}

extern "C" int ck_batch_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up, const float *gate_bias,
                            const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    struct batch_args a = {};
    struct ck_part g = {}, u = {};
    g.bias = gate_bias;
    u.bias = up_bias;
    a.x = *x;
    a.out = *out;
    a.m = m;
    a.n_parts = 2;
    a.n_ktile = (int)(x->k_pad / 64);
    a.glu = kind;
    ck_fill_out(&a.part[0], gate, &g);
    ck_fill_out(&a.part[1], up, &u);
    a.n_tile = (int)(out->k_pad / 8);
    return launch_batch<CK_Q4, 1>(c, a, st);
}
