/* kernels_batch.cu: products of some tokens (a batch that decodes) with wgmma, where kernels_linear.cu would read the input too often.
 *
 * A block has up to five warpgroups that multiply, a row tile a warp, and one that brings the input: stages of four k tiles, turned into
 * the order of the instruction's B operand, shared by all rows of the block. A warp brings its own weights, a ring ahead, and makes them
 * 16-bit floats in registers, the A operand. Leaves run one after the other. Where rows are too few for the card, the four or eight
 * blocks of a cluster share them: each has some of the leaves, and in the end each gets all leaves of a part of the outputs into its
 * memory and adds them in order. k steps and leaves as in kernels_linear.cu: same bits.
 * What counts is how many instructions a warp needs for a tile: a copy, a descriptor and a wait cost as much as the codes.
 */
#include "ops/cuda/kernels_batch.cuh"
#include "ops/cuda/kernels_int.h"

#define GROUPS_MAX 4         /* warpgroups that multiply */
#define GROUPS_8 5           /* the same where eight blocks share the leaves: a leaf each takes fewer registers */
#define ROOM (222 * 1024)    /* bytes of a block's rings */
#define DEPTH_MAX 8
#define DEPTH_X 3

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

/* All leaves of a row tile, and what becomes of them. meet: room for the gated form, where a warp has gate's tile and the next one up's. */
template <int FMT, int NS, int NT, bool GLU>
static __device__ __forceinline__ void tile_whole(const struct batch_args &a, struct worker<FMT, NS, GLU> &k, int unit, int token0, float4 *meet)
{
    const int lane = k.lane, t = unit * a.per + k.warp;
    const bool mine = k.w.has && t < a.n_tile;
    int part = 0;
    const int first = mine ? tile_row<GLU>(a, t, &part) : -1;
    rows_near(a.part[part], first, lane);
    float acc[NT * 4], total[NT * 4];
#pragma unroll
    for (int i = 0; i < NT * 4; i++) total[i] = -0.0f; /* the one value that changes no sum */
    for (int leaf = 0; leaf < CK_LEAVES; leaf++) {
        leaf_sum<FMT, NS, NT, GLU>(acc, a, k, ck_leaf_first(a.n_ktile, leaf), ck_leaf_first(a.n_ktile, leaf + 1));
#pragma unroll
        for (int i = 0; i < NT * 4; i++) total[i] = __fadd_rn(total[i], acc[i]);
    }
    if (GLU) { /* each of the two finishes half of the tokens */
        const int odd = k.warp & 1, row = (t >> 1) * 16 + (lane >> 2);
        float4 *at = meet + (k.warp >> 1) * (NT * 32) + lane;
#pragma unroll
        for (int q = 0; q < NT; q++)
            if ((q >= NT / 2) != (odd != 0)) at[q * 32] = make_float4(total[4 * q], total[4 * q + 1], total[4 * q + 2], total[4 * q + 3]);
        asm volatile("bar.sync %0, 128;" ::"r"((k.warp >> 2) + 1) : "memory");
        if (mine) {
            const struct ck_row gate[2] = { ck_row_load(a.part[0], a.x.mul, row), ck_row_load(a.part[0], a.x.mul, row + 8) };
            const struct ck_row up[2] = { ck_row_load(a.part[1], a.x.mul, row), ck_row_load(a.part[1], a.x.mul, row + 8) };
            const float inv = __fdiv_rn(1.0f, a.out.mul);
#pragma unroll
            for (int q = 0; q < NT; q++) {
                if ((q >= NT / 2) != (odd != 0)) continue;
                const float4 o = at[q * 32];
                const float other[4] = { o.x, o.y, o.z, o.w };
                const int token = token0 + q * 8 + (lane & 3) * 2;
                if (odd) batch_gate(a, gate, up, row, token, other, total + 4 * q, inv);
                else batch_gate(a, gate, up, row, token, total + 4 * q, other, inv);
            }
        }
        asm volatile("bar.sync %0, 128;" ::"r"((k.warp >> 2) + 1) : "memory");
        return;
    }
    if (first < 0) return;
    const struct ck_out &o = a.part[part];
    const int row = first + (lane >> 2);
    const struct ck_row rows[2] = { ck_row_load(o, a.x.mul, row), ck_row_load(o, a.x.mul, row + 8) };
#pragma unroll
    for (int q = 0; q < NT; q++) {
        const int token = token0 + q * 8 + (lane & 3) * 2;
        float old[4];
        batch_old(a, o, row, token, old);
        batch_store(a, o, rows, row, token, total + 4 * q, old);
    }
}

static __device__ __forceinline__ void cluster_put(uint32_t at, const float v[4])
{
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}

/* This block's leaves of a row tile. Piece i (8 tokens of a row tile) is added by block i % SPLIT of the cluster, in its place i / SPLIT: all
 * its leaves come there, to where the rings were. */
template <int FMT, int NS, int NT, int SPLIT>
static __device__ __forceinline__ void tile_part(const struct batch_args &a, struct worker<FMT, NS, false> &k, uint8_t *smem, int unit, int rank, int token0)
{
    constexpr int LEAVES = CK_LEAVES / SPLIT;
    const int warp = k.warp, lane = k.lane;
    if (k.w.has) {
        int part = 0, t = unit * a.per + warp, first = t < a.n_tile ? tile_row<false>(a, t, &part) : -1;
        rows_near(a.part[part], first, lane);
    }
    float acc[LEAVES][NT * 4];
#pragma unroll
    for (int i = 0; i < LEAVES; i++) {
        const int leaf = rank * LEAVES + i;
        leaf_sum<FMT, NS, NT, false>(acc[i], a, k, ck_leaf_first(a.n_ktile, leaf), ck_leaf_first(a.n_ktile, leaf + 1));
    }
    __syncwarp();
    ck_cluster_begun();
    ck_cluster_wait(); /* nobody needs its rings any more */
    const uint32_t mine = ck_smem(smem);
    if (k.w.has)
#pragma unroll
        for (int q = 0; q < NT; q++) {
            const int piece = warp * NT + q;
            uint32_t to;
            asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(mine + (uint32_t)((piece / SPLIT * CK_LEAVES + rank * LEAVES) * 512 + lane * 16)), "r"(piece % SPLIT));
#pragma unroll
            for (int i = 0; i < LEAVES; i++) cluster_put(to + (uint32_t)i * 512u, acc[i] + 4 * q);
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
static __global__ void __launch_bounds__((SPLIT == 8 ? GROUPS_8 : GROUPS_MAX) * 128 + 128, 1) batch_kernel(const __grid_constant__ struct batch_args a)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    using B = batch<FMT, NS, NT>;
    extern __shared__ __align__(1024) uint8_t smem[];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, token0 = (int)blockIdx.y * NT * 8;
    const int rank = (int)blockIdx.x % SPLIT, unit0 = (int)blockIdx.x / SPLIT, w_bytes = a.depth * B::stage;
    const int x_at = (a.per * w_bytes + 127) / 128 * 128, meet_at = x_at + a.depth_x * B::x_bytes;
    const uint32_t x_full = ck_smem(smem) + (uint32_t)(meet_at + (GLU ? a.groups * 2 * NT * 512 : 0)), x_empty = x_full + 8u * (uint32_t)a.depth_x;
    const uint32_t w_full = x_empty + 8u * (uint32_t)a.depth_x;
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.depth_x; i++) {
            ck_mbar_init(x_full + 8u * (uint32_t)i, 4);
            ck_mbar_init(x_empty + 8u * (uint32_t)i, a.groups * 4);
        }
        for (int i = 0; i < a.per * a.depth; i++) ck_mbar_init(w_full + 8u * (uint32_t)i, 1);
    }
    ck_mbar_init_done();
    __syncthreads();
    ck_pdl_launch();
    const struct slice sl = { rank * (CK_LEAVES / SPLIT), (rank + 1) * (CK_LEAVES / SPLIT), SPLIT > 1 ? a.n_unit : (int)gridDim.x };
    if (warp >= a.groups * 4) {
        if (SPLIT != 8) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        batch_bring<NT>(a, sl, unit0, ck_smem(smem) + (uint32_t)x_at, x_full, x_empty, token0, warp - a.groups * 4, lane);
        if (SPLIT > 1) { /* the cluster's meetings are of all its warps */
            __syncwarp();
            ck_cluster_begun();
            ck_cluster_wait();
            ck_cluster_begun();
            ck_cluster_wait();
        }
        return;
    }
    if (SPLIT != 8) asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    struct worker<FMT, NS, GLU> k;
    k.sl = sl;
    k.warp = warp;
    k.lane = lane;
    k.w_ring = smem + warp * w_bytes;
    k.x_ring = ck_smem(smem) + (uint32_t)x_at;
    k.x_full = x_full;
    k.x_empty = x_empty;
    k.x_slot = 0;
    k.x_phase = 0;
    k.w.policy = ck_policy_first();
    k.w.leads = elect_one();
    k.w.has = warp < a.per;
    if (!k.w.has) k.w_ring = smem;
    k.w.ring = ck_smem(smem) + (uint32_t)(warp * w_bytes);
    k.w.full = w_full + 8u * (uint32_t)(warp * a.depth);
    k.w.slot = 0;
    k.w.phase = 0;
    k.w.next = stage_first(a, sl, unit0);
    k.w.src = a.part[0].tiles;
    if (k.w.next.unit < a.n_unit) k.w.find(a, warp);
    for (int i = 0; i < a.depth; i++) k.w.bring(a, sl, i, warp);
    ck_pdl_wait(); /* residuals and outputs are read and written below */
    if constexpr (SPLIT > 1) tile_part<FMT, NS, NT, SPLIT>(a, k, smem, unit0, rank, token0);
    else
        for (int unit = unit0; unit < a.n_unit; unit += (int)gridDim.x) tile_whole<FMT, NS, NT, GLU>(a, k, unit, token0, (float4 *)(smem + meet_at));
#endif
}

/* --- launch --- */

template <int FMT, int NS, int NT, bool GLU, int SPLIT> static int launch(const struct ck_ctx *c, struct batch_args a, cudaStream_t st)
{
    using B = batch<FMT, NS, NT>;
    a.depth_x = DEPTH_X;
    a.groups = (a.per + 3) / 4;
    const int meet = GLU ? a.groups * 2 * NT * 512 : 0;
    a.depth = (ROOM - meet - 128 - a.depth_x * (B::x_bytes + 16)) / (a.per * (B::stage + 8));
    a.depth = a.depth < DEPTH_MAX ? a.depth : DEPTH_MAX;
    a.n_unit = (a.n_tile + a.per - 1) / a.per;
    const int bytes = (a.per * a.depth * B::stage + 127) / 128 * 128 + a.depth_x * B::x_bytes;
    if (a.depth < 2 || (SPLIT > 1 && (a.per * NT + SPLIT - 1) / SPLIT * CK_LEAVES * 512 > bytes)) return (int)cudaErrorInvalidValue;
    unsigned blocks = (unsigned)(SPLIT > 1 ? a.n_unit * SPLIT : a.n_unit < c->n_sm ? a.n_unit : c->n_sm), tokens = (unsigned)((a.m + NT * 8 - 1) / (NT * 8));
    return ck_launch_cluster(c, batch_kernel<FMT, NS, NT, GLU, SPLIT>, dim3(blocks, tokens), SPLIT, (a.groups + 1) * 128, (size_t)(bytes + meet + 8 * a.per * a.depth + 16 * a.depth_x), st, a);
}
/* How many row tiles a unit has, and the blocks that share its leaves: so that every multiprocessor has some. Fewer and larger clusters
 * than there could be are faster. Bits do not depend on it. */
static int batch_plan(const struct ck_ctx *c, struct batch_args *a)
{
    const int eights = c->n_sm / 10, fours = c->n_sm * 2 / 11;
    if (a->glu < 0 && a->n_tile <= eights * GROUPS_8 * 4) {
        a->per = (a->n_tile + eights - 1) / eights;
        return 8;
    }
    if (a->glu < 0 && a->n_tile <= fours * 5 / 4 * GROUPS_MAX * 4) {
        a->per = (a->n_tile + fours - 1) / fours;
        a->per = a->per < GROUPS_MAX * 4 ? a->per : GROUPS_MAX * 4;
        return 4;
    }
    const int most = c->n_sm * GROUPS_MAX * 4, rounds = (a->n_tile + most - 1) / most;
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
#define TOKENS_FEW 16
#define TILES_FEW 6000
extern "C" bool ck_batch_takes(const struct ck_ctx *c, int m, const struct ck_weight *w, int64_t n_row)
{
    return c->wgmma && m > TOKENS_FEW && m <= CK_X_ROWS_MAX && w->format == CK_Q4 && w->n_scale == 1 && (n_row / 16) * ((w->k + 63) / 64) >= TILES_FEW;
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
