/* kernels_batch.cuh: what a block of kernels_batch.cu does again and again: its stages, the rings that bring weights and input, and the
 * sum of a leaf out of them. sm_90a.
 */
#ifndef OPS_CUDA_KERNELS_BATCH_CUH
#define OPS_CUDA_KERNELS_BATCH_CUH

#include "ops/cuda/kernels_wgmma.cuh"

#define KS 4 /* k tiles of a stage */

struct batch_args {
    struct ck_out part[CK_MAX_PARTS]; /* unit0: in row tiles */
    int n_parts, n_tile, n_unit, n_ktile, m;
    int per, groups, depth, depth_x;  /* row tiles of a unit, a warp each; warpgroups that multiply; stages of a warp's weights, of the input */
    struct ck_x x, out;
    int glu;
};

template <int FMT, int NS, int NT> struct batch {
    enum { tile = ck_tile_size<FMT, NS>(), stage = KS * tile, x_tile = NT * 8 * 128, x_bytes = KS * x_tile };
};

#if __CUDA_ARCH_FEAT_SM90_ALL
/* Row tile t of the line of all: its part, and its first row there. Behind the last: row -1. Gated: gate and up in turn. */
template <bool GLU> static __device__ __forceinline__ int tile_row(const struct batch_args &a, int t, int *part)
{
    int p = GLU ? t & 1 : 0;
    if (!GLU)
        while (p + 1 < a.n_parts && t >= a.part[p + 1].unit0) p++;
    *part = p;
    t = GLU ? t >> 1 : t - a.part[p].unit0;
    return t * 16 < a.part[p].n ? t * 16 : -1;
}
/* One lane of a whole warp; of code that one thread runs, the compiler knows it by this. */
static __device__ __forceinline__ bool elect_one(void)
{
    uint32_t r;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(r));
    return r != 0;
}

/* A stage: up to KS k tiles from t on, of a leaf of a unit. There is one while unit < n_unit. */
struct stage_at { int unit, leaf, t, end; };
struct slice { int leaf0, leaf1, unit_step; }; /* of every unit_step-th unit leaves [leaf0, leaf1) */
static __device__ __forceinline__ void stage_settle(const struct batch_args &a, const struct slice &sl, struct stage_at &s)
{
    while (s.t >= s.end && s.unit < a.n_unit) {
        if (++s.leaf == sl.leaf1) {
            s.leaf = sl.leaf0;
            s.unit += sl.unit_step;
        }
        s.t = ck_leaf_first(a.n_ktile, s.leaf);
        s.end = ck_leaf_first(a.n_ktile, s.leaf + 1);
    }
}
static __device__ __forceinline__ struct stage_at stage_first(const struct batch_args &a, const struct slice &sl, int unit)
{
    struct stage_at s = { unit, sl.leaf0, ck_leaf_first(a.n_ktile, sl.leaf0), ck_leaf_first(a.n_ktile, sl.leaf0 + 1) };
    stage_settle(a, sl, s);
    return s;
}

/* A warp's weights: it brings them itself, a ring's length ahead. */
template <int FMT, int NS, bool GLU> struct weights {
    enum { tile = ck_tile_size<FMT, NS>(), stage = KS * tile };
    struct stage_at next;
    const uint8_t *src;
    uint32_t ring, full, phase;
    uint64_t policy;
    int slot;
    bool leads, has; /* has: a warp behind the unit's tiles only keeps step */
    __device__ __forceinline__ void find(const struct batch_args &a, int warp)
    {
        int p = 0, t = next.unit * a.per + warp, row = t < a.n_tile ? tile_row<GLU>(a, t, &p) : -1;
        src = a.part[p].tiles + (int64_t)(row < 0 ? 0 : row >> 4) * a.n_ktile * tile; /* behind the last: any rows will do */
    }
    /* The next stage, into the slot at hand. */
    __device__ __forceinline__ void bring(const struct batch_args &a, const struct slice &sl, int to, int warp)
    {
        if (next.unit >= a.n_unit || !has) return;
        const int n = min(KS, next.end - next.t);
        if (leads) {
            const uint32_t bar = full + 8u * (uint32_t)to;
            ck_mbar_expect(bar, (uint32_t)(n * tile));
            ck_bulk(ring + (uint32_t)(to * stage), src + next.t * tile, (uint32_t)(n * tile), bar, policy);
        }
        __syncwarp();
        const int unit = next.unit;
        next.t += KS;
        stage_settle(a, sl, next);
        if (next.unit != unit && next.unit < a.n_unit) find(a, warp);
    }
};

/* The input of every stage: warp v of four turns k tile v into [step, k half][token][8], as the instruction wants it. */
template <int NT>
static __device__ __forceinline__ void batch_bring(const struct batch_args &a, const struct slice &sl, int unit0, uint32_t ring, uint32_t full, uint32_t empty, int token0,
                                                   int v, int lane)
{
    const int n_tok = a.m - token0 - (lane >> 2);
    const uint8_t *x = (const uint8_t *)a.x.v + (int64_t)(token0 + (lane >> 2)) * a.x.k_pad * 2 + (lane & 3) * 16 + v * 128;
    const uint32_t to = ring + (uint32_t)(v * (NT * 8 * 128) + lane * 4);
    struct stage_at s = stage_first(a, sl, unit0);
    uint4 c[NT][2];
    int slot = 0;
    uint32_t phase = 1;
    auto load = [&] {
#pragma unroll
        for (int q = 0; q < NT; q++)
#pragma unroll
            for (int jj = 0; jj < 2; jj++) {
                c[q][jj] = make_uint4(0, 0, 0, 0);
                if (s.unit < a.n_unit && s.t + v < s.end && q * 8 < n_tok) c[q][jj] = *(const uint4 *)(x + s.t * 128 + (int64_t)q * 8 * a.x.k_pad * 2 + jj * 64);
            }
    };
    ck_pdl_wait();
    load();
    while (s.unit < a.n_unit) {
        const uint32_t at = to + (uint32_t)(slot * (KS * NT * 8 * 128));
        ck_mbar_wait(empty + 8u * (uint32_t)slot, phase);
#pragma unroll
        for (int q = 0; q < NT; q++)
#pragma unroll
            for (int jj = 0; jj < 2; jj++) {
                const uint32_t w[4] = { c[q][jj].x, c[q][jj].y, c[q][jj].z, c[q][jj].w };
#pragma unroll
                for (int i = 0; i < 4; i++)
                    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + (uint32_t)(((4 * jj + i) * NT * 8 + q * 8) * 16)), "r"(w[i]) : "memory");
            }
        ck_mbar_init_done(); /* seen by the instruction */
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(full + 8u * (uint32_t)slot);
        s.t += KS;
        stage_settle(a, sl, s);
        load();
        if (++slot == a.depth_x) {
            slot = 0;
            phase ^= 1;
        }
    }
}

/* What a warp that multiplies knows of the block. */
template <int FMT, int NS, bool GLU> struct worker {
    struct slice sl;
    struct weights<FMT, NS, GLU> w;
    const uint8_t *w_ring;
    uint32_t x_ring, x_full, x_empty, x_phase;
    int x_slot, warp, lane;
};

/* The sum over k tiles [t0, t1), from +0. */
template <int FMT, int NS, int NT, bool GLU>
static __device__ __forceinline__ void leaf_sum(float (&acc)[NT * 4], const struct batch_args &a, struct worker<FMT, NS, GLU> &k, int t0, int t1)
{
    using B = batch<FMT, NS, NT>;
    if (t0 >= t1)
#pragma unroll
        for (int i = 0; i < NT * 4; i++) acc[i] = 0.0f;
    for (int t = t0; t < t1; t += KS) {
        const uint8_t *w = k.w_ring + k.w.slot * B::stage;
        /* The descriptor's low half (b_desc): steps and tiles are added to it. The same in all lanes, and known to be. */
        const uint32_t x = __shfl_sync(0xffffffffu, ((k.x_ring + (uint32_t)(k.x_slot * B::x_bytes)) & 0x3ffffu) >> 4 | (uint32_t)(NT * 8) << 16, 0);
        const int slot = k.w.slot;
        if (k.w.has) ck_mbar_wait(k.w.full + 8u * (uint32_t)slot, k.w.phase);
        ck_mbar_wait(k.x_full + 8u * (uint32_t)k.x_slot, k.x_phase);
        __syncwarp();
        uint32_t f[2][16];
        auto tile = [&](int i, uint32_t (&g)[16]) {
            ck_lane_tile<FMT, NS> c;
            c.load(w + i * B::tile, k.lane);
#pragma unroll
            for (int j = 0; j < 4; j++) c.frag(g + 4 * j, j, k.lane);
            wg_fence();
#pragma unroll
            for (int j = 0; j < 4; j++) wg_mma(acc, g + 4 * j, (uint64_t)(128 >> 4) << 32 | (x + (uint32_t)(i * B::x_tile / 16 + j * NT * 16)), t != t0 || i != 0 || j != 0);
            wg_commit();
        };
        if (t + KS <= t1) {
#pragma unroll
            for (int i = 0; i < KS; i++) {
                tile(i, f[i & 1]);
                if (i > 0) wg_wait<1>(); /* the tile before is done: its registers are free */
            }
            wg_wait<0>();
        } else {
            for (int i = 0; i < t1 - t; i++) {
                tile(i, f[0]);
                wg_wait<0>();
            }
        }
        __syncwarp();
        if (k.w.leads) ck_mbar_arrive(k.x_empty + 8u * (uint32_t)k.x_slot);
        k.w.bring(a, k.sl, slot, k.warp);
        if (++k.w.slot == a.depth) {
            k.w.slot = 0;
            k.w.phase ^= 1;
        }
        if (++k.x_slot == a.depth_x) {
            k.x_slot = 0;
            k.x_phase ^= 1;
        }
    }
}
#endif

#endif
