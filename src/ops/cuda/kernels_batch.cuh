/* kernels_batch.cuh: what a block of kernels_batch.cu does again and again: its stages, the ring that brings weights and input, and the
 * sum of a leaf out of it. sm_90a.
 */
#ifndef OPS_CUDA_KERNELS_BATCH_CUH
#define OPS_CUDA_KERNELS_BATCH_CUH

#include "ops/cuda/kernels_wgmma.cuh"

#define KS 4 /* k tiles of a stage */

struct batch_args {
    struct ck_out part[CK_MAX_PARTS]; /* unit0: in row tiles */
    int n_parts, n_tile, n_unit, n_ktile, m;
    int per, groups, depth;           /* row tiles of a unit; warpgroups that multiply; stages of the ring */
    int begun;                        /* stages whose weights are asked for before the input is */
    struct ck_x x, out;
    int glu;
};

/* Row tiles of a warp: two, which share waits and descriptors, where the block has all leaves; else sooner done by more warps. */
static constexpr __host__ __device__ int batch_own(int split) { return split == 1 ? 2 : 1; }
/* Warpgroups for so many row tiles, `own` a warp. */
static constexpr __host__ __device__ int batch_groups(int tiles, int own) { return (tiles + 4 * own - 1) / (4 * own); }

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
/* Of every unit_step-th unit leaves [leaf0, leaf1), leaf_step of them in one line of stages. */
struct slice { int leaf0, leaf1, unit_step, leaf_step; };
static __device__ __forceinline__ void stage_settle(const struct batch_args &a, const struct slice &sl, struct stage_at &s)
{
    while (s.t >= s.end && s.unit < a.n_unit) {
        s.leaf += sl.leaf_step;
        if (s.leaf == sl.leaf1) {
            s.leaf = sl.leaf0;
            s.unit += sl.unit_step;
        }
        s.t = ck_leaf_first(a.n_ktile, s.leaf);
        s.end = ck_leaf_first(a.n_ktile, s.leaf + sl.leaf_step);
    }
}
static __device__ __forceinline__ struct stage_at stage_first(const struct batch_args &a, const struct slice &sl, int unit)
{
    struct stage_at s = { unit, sl.leaf0, ck_leaf_first(a.n_ktile, sl.leaf0), ck_leaf_first(a.n_ktile, sl.leaf0 + sl.leaf_step) };
    stage_settle(a, sl, s);
    return s;
}

/* Where a block's stages lie, in shared memory. */
struct ring { uint32_t w, x, full, empty; }; /* weights: a stage of each row tile; the input; barriers */

/* Where row tile i of a unit lies; behind the last: any rows will do. */
template <int FMT, int NS, bool GLU> static __device__ __forceinline__ const uint8_t *tile_at(const struct batch_args &a, int unit, int i)
{
    int p = 0, t = unit * a.per + i, row = i < a.per && t < a.n_tile ? tile_row<GLU>(a, t, &p) : -1;
    return a.part[p].tiles + (int64_t)(row < 0 ? 0 : row >> 4) * a.n_ktile * ck_tile_size<FMT, NS>();
}

/* The weights of the first stages: by the warps that multiply, which have nothing else to do, each its own row tiles. How many bytes that makes,
 * the warps that bring tell the barriers, before or after: a phase ends when both agree and those warps have arrived. */
template <int FMT, int NS, int RT, bool GLU>
static __device__ __forceinline__ void batch_begin(const struct batch_args &a, const struct slice &sl, int unit0, const struct ring &r, int warp, bool leads)
{
    constexpr int tile = ck_tile_size<FMT, NS>(), stage = KS * tile;
    struct stage_at s = stage_first(a, sl, unit0);
    const uint64_t policy = ck_policy_first();
    const uint8_t *src[RT];
    int unit = -1;
    for (int slot = 0; slot < a.begun && s.unit < a.n_unit; slot++) {
        if (s.unit != unit)
#pragma unroll
            for (int i = 0; i < RT; i++) src[i] = tile_at<FMT, NS, GLU>(a, s.unit, warp * RT + i);
        unit = s.unit;
        if (leads)
#pragma unroll
            for (int i = 0; i < RT; i++)
                if (warp * RT + i < a.per)
                    ck_bulk(r.w + (uint32_t)((slot * a.per + warp * RT + i) * stage), src[i] + s.t * tile, (uint32_t)(min(KS, s.end - s.t) * tile),
                            r.full + 8u * (uint32_t)slot, policy);
        __syncwarp();
        s.t += KS;
        stage_settle(a, sl, s);
    }
}

/* Warp v of the four that bring: the weights of row tiles v, v + 4, .., and k tile v of the input. */
template <int FMT, int NS, bool GLU> struct bringer {
    enum { tile = ck_tile_size<FMT, NS>(), stage = KS * tile, most = 5 }; /* most: row tiles of a warp */
    const uint8_t *src[most];
    int unit, v;
    bool leads;
    /* Of stage s. begun: they are on the way, it is only told how many. */
    __device__ __forceinline__ void weights(const struct batch_args &a, const struct ring &r, const struct stage_at &s, int slot, bool begun)
    {
        if (!begun && s.unit != unit) {
            unit = s.unit;
#pragma unroll
            for (int i = 0; i < most; i++) src[i] = tile_at<FMT, NS, GLU>(a, unit, v + 4 * i);
        }
        if (leads && v < a.per) {
            const uint32_t bar = r.full + 8u * (uint32_t)slot, bytes = (uint32_t)(min(KS, s.end - s.t) * tile);
            const uint32_t to = r.w + (uint32_t)((slot * a.per + v) * stage);
            const uint64_t policy = ck_policy_first();
            asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"((uint32_t)((a.per - v + 3) / 4) * bytes) : "memory");
            if (!begun)
#pragma unroll
                for (int i = 0; i < most; i++)
                    if (v + 4 * i < a.per) ck_bulk(to + (uint32_t)(4 * i * stage), src[i] + s.t * tile, bytes, bar, policy);
        }
        __syncwarp();
    }
};

/* Every stage, as slots become free. EAGER: weights are asked for without waiting for the input of the stages before, and all but the first stages'
 * behind the first input; where a block has few stages that is sooner, where it has many it is only more to do.
 * The input is turned into [step, k half][token][8], as the instruction wants it: a lane's 16 bytes are words of four such rows. */
template <int FMT, int NS, int NT, bool GLU, bool EAGER>
static __device__ __forceinline__ void batch_bring(const struct batch_args &a, const struct slice &sl, int unit0, const struct ring &r, int token0, int v, int lane)
{
    struct bringer<FMT, NS, GLU> b;
    struct stage_at s = stage_first(a, sl, unit0), sw = s; /* of the input and, eager, of weights */
    b.leads = elect_one();
    b.v = v;
    b.unit = -1;
    const int n_tok = a.m - token0 - (lane >> 2);
    const uint8_t *x = (const uint8_t *)a.x.v + (int64_t)(token0 + (lane >> 2)) * a.x.k_pad * 2 + (lane & 3) * 16 + v * 128;
    const uint32_t to = r.x + (uint32_t)(v * (NT * 8 * 128) + (lane >> 3) * (NT * 8 * 16) + (lane & 7) * 16);
    uint4 c[NT][2];
    int slot = 0, filled = 0, w_slot = 0;
    uint32_t phase = 1, w_phase = 1;
    auto weights = [&](bool begun) {
        b.weights(a, r, sw, w_slot, begun);
        sw.t += KS;
        stage_settle(a, sl, sw);
        if (++w_slot == a.depth) {
            w_slot = 0;
            w_phase ^= 1;
        }
    };
    if (EAGER)
        for (int i = 0; i < a.begun && sw.unit < a.n_unit; i++) weights(true);
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
        ck_mbar_wait(r.empty + 8u * (uint32_t)slot, phase);
        if (EAGER) {
            while (sw.unit < a.n_unit && __any_sync(~0u, ck_mbar_test(r.empty + 8u * (uint32_t)w_slot, w_phase))) weights(false);
        } else {
            b.weights(a, r, s, slot, filled < a.begun);
            filled += filled < a.begun;
        }
#pragma unroll
        for (int q = 0; q < NT; q++)
#pragma unroll
            for (int jj = 0; jj < 2; jj++)
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at + (uint32_t)((4 * jj * NT * 8 + q * 8) * 16)), "r"(c[q][jj].x),
                             "r"(c[q][jj].y), "r"(c[q][jj].z), "r"(c[q][jj].w)
                             : "memory");
        ck_mbar_init_done(); /* seen by the instruction */
        __syncwarp();
        if (lane == 0) ck_mbar_arrive(r.full + 8u * (uint32_t)slot);
        s.t += KS;
        stage_settle(a, sl, s);
        load();
        if (++slot == a.depth) {
            slot = 0;
            phase ^= 1;
        }
    }
}

/* What a warp that multiplies knows of the block: RT row tiles are its own. */
template <int RT> struct worker {
    uint32_t w[RT], x, full; /* its row tiles in the first stage; the input there; barriers, those of empty stages behind */
    uint32_t phase;
    int slot, warp, lane;
    bool leads;
};

/* The sums over k tiles [t0, t1), from +0. LATE: a stage is given back while the next one's first tiles are multiplied. AHEAD: codes are
 * loaded a tile ahead. G: steps of k that are committed together: floats of so many are made while as many are multiplied (of fewer, where more
 * registers would make the compiler wait for each instruction). */
template <int FMT, int NS, int NT, int RT, bool LATE, bool AHEAD, int G>
static __device__ __forceinline__ void leaf_sum(float (&acc)[RT][NT * 4], const struct batch_args &a, struct worker<RT> &k, int t0, int t1)
{
    using B = batch<FMT, NS, NT>;
    if (t0 >= t1)
#pragma unroll
        for (int r = 0; r < RT; r++)
#pragma unroll
            for (int i = 0; i < NT * 4; i++) acc[r][i] = 0.0f;
    uint32_t release = 0; /* the barrier of a stage that the instructions on the way still read */
    for (int t = t0; t < t1; t += KS) {
        const uint32_t w = (uint32_t)(k.slot * a.per * B::stage), full = k.full + 8u * (uint32_t)k.slot;
        /* The descriptor's low half (b_desc): steps and tiles are added to it. The same in all lanes, and known to be. */
        const uint32_t x = __shfl_sync(0xffffffffu, ((k.x + (uint32_t)(k.slot * B::x_bytes)) & 0x3ffffu) >> 4 | (uint32_t)(NT * 8) << 16, 0);
        ck_mbar_wait(full, k.phase);
        __syncwarp();
        ck_lane_tile<FMT, NS> c[RT];
        auto load = [&](int i) {
#pragma unroll
            for (int r = 0; r < RT; r++) c[r].load_shared(k.w[r] + w + (uint32_t)(i * B::tile), k.lane);
        };
        if (AHEAD) load(0);
        uint32_t f[2][RT][4 * G];
        auto group = [&](int i, int j0, uint32_t (&g)[RT][4 * G], bool more) {
            if (!AHEAD && j0 == 0) load(i);
#pragma unroll
            for (int r = 0; r < RT; r++)
#pragma unroll
                for (int j = 0; j < G; j++) c[r].frag(g[r] + 4 * j, j0 + j, k.lane);
            if (AHEAD && more && j0 + G == 4) load(i + 1); /* on its way while this one is multiplied */
            wg_fence();
#pragma unroll
            for (int j = 0; j < G; j++)
#pragma unroll
                for (int r = 0; r < RT; r++)
                    wg_mma(acc[r], g[r] + 4 * j, (uint64_t)(128 >> 4) << 32 | (x + (uint32_t)(i * B::x_tile / 16 + (j0 + j) * NT * 16)), t != t0 || i != 0 || j0 != 0 || j != 0);
            wg_commit();
        };
        if (t + KS <= t1) {
#pragma unroll
            for (int i = 0; i < KS * 4; i += G) { /* steps */
                group(i / 4, i % 4, f[i / G & 1], i / 4 + 1 < KS);
                if (i > 0 || LATE) wg_wait<1>(); /* the group before is done: its registers are free */
                if (LATE && i == 0 && release) {
                    if (k.leads) ck_mbar_arrive(release);
                    release = 0;
                }
            }
            if (!LATE) wg_wait<0>();
        } else {
            wg_wait<0>();
            for (int i = 0; i < t1 - t; i++)
#pragma unroll
                for (int j0 = 0; j0 < 4; j0 += G) {
                    group(i, j0, f[0], i + 1 < t1 - t);
                    wg_wait<0>();
                }
            if (release && k.leads) ck_mbar_arrive(release);
            release = 0;
        }
        __syncwarp();
        if (LATE) release = full + 8u * (uint32_t)a.depth;
        else if (k.leads) ck_mbar_arrive(full + 8u * (uint32_t)a.depth);
        if (++k.slot == a.depth) {
            k.slot = 0;
            k.phase ^= 1;
        }
    }
    if (LATE) wg_wait<0>();
    if (LATE && release && k.leads) ck_mbar_arrive(release);
}
#endif

#endif
