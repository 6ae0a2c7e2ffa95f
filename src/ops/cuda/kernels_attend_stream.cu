/* kernels_attend_stream.cu: a decode step's rotation, writing of keys and values, and attention in one launch, for batches of single
 * tokens with many keys: several splits for every warp of the card. A block a multiprocessor, of up to four warps that work each for itself: the splits of
 * all rows and KV heads lie in one line, each warp takes an even stretch of it. It brings keys and values into a ring of its own, half
 * a tile at a time, as far ahead as the ring reaches: the first before the kernel waits for the products of q, k and v, the next
 * whenever it is done with one. Bits as in every form: tiles as in the large form, splits merged left to right. What begins with a
 * head's first split is merged on the way; other splits of a head that several warps share go through the work area, and the warp that
 * ends last merges them.
 */
#include "ops/cuda/kernels_attend_heads.cuh"

#define WORKERS 4  /* warps of a block */
#define ROWS_MAX 32 /* tokens of a launch */
#define HEADS_MAX 8 /* query heads of a KV head */
#define TASKS 5     /* heads that are on their way together */

struct stream_args {
    struct attend_args g;
    struct cs_rope r;
    int tok0, n_tok, depth; /* depth: slots of a warp's ring */
};

template <int DP, bool BF> struct stream_room {
    enum {
        tile = 64 * DP * 2,
        slots = DP <= 64 ? (BF ? 20 : 24) : BF ? 8 : 12 /* of all warps */
    };
    struct place { /* of a warp, behind the rings */
        uint4 qs[(BF ? 2 : 1) * DP * 2]; /* the rotary row lies here while heads are made */
        float rows[HEADS_MAX][DP];       /* heads while they are made, then sums over splits */
        uint16_t fresh[2][DP];           /* the token's key and value */
    };
    static int bytes(int workers) { return slots * tile + workers * (int)sizeof(struct place); }
};

/* Numbers of a launch's tokens: keys, and where the splits of a row begin in the line of all. */
struct stream_rows {
    int lo[ROWS_MAX], hi[ROWS_MAX], index[ROWS_MAX], table[ROWS_MAX], first[ROWS_MAX + 1];
    __device__ __forceinline__ int split0(int row) const { return lo[row] / CK_ATTN_SPLIT; }
    __device__ __forceinline__ int split1(int row) const { return (hi[row] + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT; }
};

/* A warp's part of a row and a KV head: splits [from, to), of which somebody sees tiles [tile, tile_end). at: place of the head's first
 * split in the line. */
struct stream_piece { int row, kvh, from, to, at, tile, tile_end; };

#if __CUDA_ARCH__ >= 900
/* The piece that begins at `at` of the line; ends at `end` at the latest. */
static __device__ __forceinline__ struct stream_piece piece_at(const struct stream_rows &r, int at, int end, int n_row)
{
    struct stream_piece p;
    p.row = 0;
    for (int step = ROWS_MAX / 2; step > 0; step /= 2)
        if (p.row + step < n_row && r.first[p.row + step] <= at) p.row += step;
    const int s0 = r.split0(p.row), n = r.split1(p.row) - s0, in = at - r.first[p.row];
    p.kvh = in / n;
    p.at = r.first[p.row] + p.kvh * n;
    p.from = s0 + in - p.kvh * n;
    p.to = min(s0 + n, p.from + end - at);
    p.tile = max(r.lo[p.row] >> 6, 4 * p.from);
    p.tile_end = min((r.hi[p.row] + 63) >> 6, 4 * p.to);
    return p;
}

/* By one warp. */
static __device__ __forceinline__ void rows_load(struct stream_rows &r, const struct stream_args &t, int lane)
{
    static_assert(ROWS_MAX == 32, "a row a lane");
    const int tok = t.tok0 + lane;
    const bool in = lane < t.n_tok;
    r.lo[lane] = in ? t.g.a.lo[tok] : 0;
    r.hi[lane] = in ? t.g.a.hi[tok] : 0;
    r.index[lane] = in ? t.r.index[tok] : 0;
    r.table[lane] = in ? t.r.table_of[tok] : 0;
    int sum = (r.split1(lane) - r.split0(lane)) * t.g.a.n_head_kv;
    for (int step = 1; step < 32; step *= 2) {
        int before = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += before;
    }
    r.first[lane + 1] = sum;
    if (lane == 0) r.first[0] = 0;
}

/* What a warp brings: keys, then values of tile after tile, over its pieces. */
template <int DP, bool BF> struct stream_feed {
    using R = stream_room<DP, BF>;
    const struct stream_args &t;
    const struct stream_rows &rows;
    uint32_t ring, full; /* slots, and a barrier of each */
    int lane, at, end, half, slot, base, id; /* id: page of tile base + lane */
    struct stream_piece p;
    __device__ __forceinline__ void begin(void)
    {
        if (at >= end) return;
        p = piece_at(rows, at, end, t.n_tok);
        ids();
    }
    __device__ __forceinline__ void ids(void)
    {
        base = p.tile;
        id = p.tile + lane < p.tile_end ? t.g.a.pages[rows.table[p.row] + p.tile + lane] : 0;
    }
    __device__ __forceinline__ void next(void)
    {
        if (at >= end) return;
        const int page = __shfl_sync(~0u, id, p.tile - base);
        if (lane == 0) {
            const uint32_t bar = full + 8u * (uint32_t)slot;
            ck_mbar_expect(bar, R::tile);
            ck_bulk_plain(ring + (uint32_t)(slot * R::tile),
                          (const uint8_t *)t.g.a.pool + (int64_t)page * 4096 + t.g.a.head_off + (int64_t)(p.kvh * 2 + half) * R::tile, R::tile, bar);
        }
        if (++slot == t.depth) slot = 0;
        half ^= 1;
        if (half) return;
        if (++p.tile == p.tile_end) {
            at += p.to - p.from;
            begin();
        } else if (p.tile - base == 32) {
            ids();
        }
    }
};

/* Query rows of a piece as fragments, and by the warp that has the token's own place its key and value, which go to the page too. */
template <int DP, bool BF>
static __device__ __forceinline__ void stream_heads(const struct stream_args &t, const struct stream_rows &rows, const struct stream_piece &p, int lane,
                                                    typename stream_room<DP, BF>::place &place)
{
    using R = stream_room<DP, BF>;
    const struct attend_args &g = t.g;
    const int tok = t.tok0 + p.row, index = rows.index[p.row], d = t.r.head_dim, n_q = g.group;
    const bool fresh = index >= p.from * CK_ATTN_SPLIT && index < p.to * CK_ATTN_SPLIT;
    const float *q = t.r.q + tok * t.r.ld_q + (int64_t)p.kvh * g.group * t.r.q_step;
    float *cs = t.r.table ? (float *)(void *)place.qs : NULL;
    __syncwarp(); /* the piece before is done with the place */
    for (int i = lane; cs && i < t.r.n_rot; i += 32) cs[i] = t.r.table[(int64_t)tok * t.r.n_rot + i];
    __syncwarp();
    if (fresh) { /* through the rows of queries, which come after */
        struct head_vector<DP> k, v;
        k.load(t.r.k + tok * t.r.ld_k + (int64_t)p.kvh * d, t.r.k_norm, d, lane);
        v.load(t.r.v + tok * t.r.ld_v + (int64_t)p.kvh * d, NULL, d, lane);
        k.make(place.rows[0], t.r.k_norm != NULL, true, cs, t.r, lane);
        v.make(place.rows[1], t.r.v_norm != 0, false, NULL, t.r, lane);
        const int64_t page = g.a.pages[rows.table[p.row] + (index >> 6)];
        uint16_t *to = (uint16_t *)((uint8_t *)(void *)g.a.pool + page * 4096 + g.a.head_off + (int64_t)p.kvh * 2 * R::tile);
        for (int i = lane; i < DP; i += 32) {
            const uint16_t kb = page_bits<BF>(place.rows[0][i]), vb = page_bits<BF>(place.rows[1][i]);
            place.fresh[0][i] = kb;
            place.fresh[1][i] = vb;
            to[ck_k_off(index & 63, i, DP, 2)] = kb;
            if (i < d) to[64 * DP + ck_v_off(index & 63, i, 2)] = vb;
        }
        __syncwarp();
    }
    for (int i0 = 0; i0 < n_q; i0 += TASKS) {
        struct head_vector<DP> v[TASKS];
#pragma unroll
        for (int i = 0; i < TASKS; i++)
            if (i0 + i < n_q) v[i].load(q + (i0 + i) * t.r.q_step, t.r.q_norm, d, lane);
#pragma unroll
        for (int i = 0; i < TASKS; i++)
            if (i0 + i < n_q) v[i].make(place.rows[i0 + i], t.r.q_norm != NULL, true, cs, t.r, lane);
    }
    __syncwarp();
    /* As q_frags makes them; rows from 8 on are zeros. */
    for (int s = 0; s < DP / 16; s++) {
        uint32_t h[2], l[2];
#pragma unroll
        for (int p2 = 0; p2 < 2; p2++) {
            const int i = lane >> 2, dim = s / 4 * 64 + 32 * ((s & 3) >> 1) + 8 * (lane & 3) + 4 * (s & 1) + 2 * p2;
            const float2 v = i < n_q ? *(const float2 *)&place.rows[i < n_q ? i : 0][dim] : make_float2(0.0f, 0.0f);
            pair<BF>(v.x * t.r.q_scale, v.y * t.r.q_scale, h[p2], l[p2]);
        }
        place.qs[s * 32 + lane] = make_uint4(h[0], 0, h[1], 0);
        if (BF) place.qs[DP * 2 + s * 32 + lane] = make_uint4(l[0], 0, l[1], 0);
    }
    __syncwarp();
}

/* One split's tiles into o, m, l. slot, phase: where the ring stands. */
template <int DP, bool BF>
static __device__ __forceinline__ void stream_split(float (*o)[4], float m[2], float l[2], struct stream_feed<DP, BF> &feed, int tile, int tile_end, int lo_min,
                                                    int hi_max, int fresh_tile, int in_tile, int lane, typename stream_room<DP, BF>::place &place, uint8_t *ring,
                                                    int &slot, uint32_t &phase)
{
    using R = stream_room<DP, BF>;
    const struct stream_args &t = feed.t;
    const int lo[2] = { lo_min, lo_min }, hi[2] = { hi_max, hi_max };
    auto arrived = [&] {
        ck_mbar_wait(feed.full + 8u * (uint32_t)slot, phase);
        return (uint16_t *)(ring + slot * R::tile);
    };
    auto leave = [&](bool patched) {
        if (patched) ck_mbar_init_done(); /* what was written here by stores comes before the next copy */
        __syncwarp();
        feed.next();
        if (++slot == t.depth) {
            slot = 0;
            phase ^= 1;
        }
    };
    for (; tile < tile_end; tile++) {
        float s[8][4], most[2], sum[2];
        uint4 ph[4], pl[4];
        uint16_t *at = arrived();
        if (tile == fresh_tile) {
            for (int i = lane; i < DP; i += 32) at[ck_k_off(in_tile, i, DP, 2)] = place.fresh[0][i];
            __syncwarp();
        }
        s_tile<DP, BF>(s, place.qs, at, lane);
        leave(tile == fresh_tile);
        mask_tile(s, t.g.a.softcap, tile * 64, lo, hi, lane, most);
        raise_maximum<DP / 8>(o, m, most);
        p_tile<BF>(s, m, ph, pl, sum);
#pragma unroll
        for (int r = 0; r < 2; r++) l[r] = __fmaf_rn(l[r], most[r], sum[r]);
        at = arrived();
        if (tile == fresh_tile) {
            for (int i = lane; i < t.r.head_dim; i += 32) at[ck_v_off(in_tile, i, 2)] = place.fresh[1][i];
            __syncwarp();
        }
        pv_tile<DP / 8, BF>(o, ph, pl, at, 0, hi_max - tile * 64, lane);
        leave(tile == fresh_tile);
    }
}

/* The splits of a head that several warps had, by the warp that comes last: the first piece, as one, then the others' splits. */
template <int DP>
static __device__ __forceinline__ void stream_merge(const struct stream_args &t, const struct stream_rows &rows, const struct stream_piece &p, int share, int lane,
                                                    const float *parts, int stride)
{
    constexpr int PER = DP / 4, AHEAD = 16; /* float4 of a row, at most one of a lane */
    const struct attend_args &g = t.g;
    const int split0 = rows.split0(p.row), n_split = rows.split1(p.row) - split0;
    const unsigned n_piece = (unsigned)((p.at + n_split - 1) / share - p.at / share); /* but one */
    unsigned before = 0;
    __threadfence();
    __syncwarp();
    if (lane == 0) before = atomicInc(g.count + (int64_t)p.row * g.a.n_head_kv + p.kvh, n_piece);
    if (__shfl_sync(~0u, before, 0) != n_piece) return;
    __threadfence();
    const int ahead = share - p.at % share, n = n_split - ahead + 1; /* splits that the first piece has merged; what there is to merge */
    auto from = [&](int i) { return parts + (int64_t)(split0 + (i > 0 ? i + ahead - 1 : 0)) * stride; };
#pragma unroll 1
    for (int row = 0; row < g.group; row++) {
        const int tok = t.tok0 + p.row, head = p.kvh * g.group + row;
        float M = -INFINITY, L = 0.0f, ea, inv;
        float4 O = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int s0 = 0; s0 < n; s0 += FACTORS) {
            const int n_now = min(n - s0, FACTORS);
            const float m = lane < n_now ? __ldcg(from(s0 + lane) + row) : -INFINITY, l = lane < n_now ? __ldcg(from(s0 + lane) + 16 + row) : 0.0f;
            float4 v[AHEAD];
            float2 f;
            for (int s = 0; s < n_now; s += AHEAD) {
#pragma unroll
                for (int k = 0; k < AHEAD; k++)
                    if (s + k < n_now && lane < PER) v[k] = __ldcg((const float4 *)(from(s0 + s + k) + 32) + row * PER + lane);
                if (s == 0) f = merge_factors(M, L, m, l, n_now, lane);
#pragma unroll
                for (int k = 0; k < AHEAD; k++) {
                    if (s + k >= n_now) break;
                    const float fa = __shfl_sync(~0u, f.x, s + k), fb = __shfl_sync(~0u, f.y, s + k);
                    O.x = __fmaf_rn(v[k].x, fb, __fmul_rn(O.x, fa));
                    O.y = __fmaf_rn(v[k].y, fb, __fmul_rn(O.y, fa));
                    O.z = __fmaf_rn(v[k].z, fb, __fmul_rn(O.z, fa));
                    O.w = __fmaf_rn(v[k].w, fb, __fmul_rn(O.w, fa));
                }
            }
        }
        finish(g, head, M, L, &ea, &inv);
        if (lane < PER) {
            store_out(g, tok, head, 4 * lane, __fmul_rn(__fmul_rn(O.x, ea), inv));
            store_out(g, tok, head, 4 * lane + 1, __fmul_rn(__fmul_rn(O.y, ea), inv));
            store_out(g, tok, head, 4 * lane + 2, __fmul_rn(__fmul_rn(O.z, ea), inv));
            store_out(g, tok, head, 4 * lane + 3, __fmul_rn(__fmul_rn(O.w, ea), inv));
        }
        if (lane == 0) store_tail(g, tok, head, 0, 1);
    }
}
#endif

template <int DP, bool BF> static __global__ void __launch_bounds__(WORKERS * 32, 1) stream_kernel(const __grid_constant__ struct stream_args t)
{
#if __CUDA_ARCH__ >= 900
    using R = stream_room<DP, BF>;
    constexpr int NB = DP / 8;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ __align__(8) uint64_t bars[R::slots];
    __shared__ struct stream_rows rows;
    const struct attend_args &g = t.g;
    const int lane = (int)threadIdx.x & 31, who = (int)threadIdx.x >> 5;
    /* The batch's numbers came before the step: no need to wait. */
    if (who == 0) rows_load(rows, t, lane);
    if (threadIdx.x == 0) {
        for (int i = 0; i < R::slots; i++) ck_mbar_init(ck_smem(bars + i), 1);
        ck_mbar_init_done();
    }
    __syncthreads();
    ck_pdl_launch();
    const int all = rows.first[t.n_tok], n_worker = (int)(gridDim.x * blockDim.x) / 32, share = (all + n_worker - 1) / n_worker;
    const int from = (who * (int)gridDim.x + (int)blockIdx.x) * share, end = min(from + share, all), stride = 32 + g.part_rows * DP;
    uint8_t *ring = smem + who * t.depth * R::tile;
    typename R::place &place = ((typename R::place *)(smem + R::slots * R::tile))[who];
    struct stream_feed<DP, BF> feed = { t, rows, ck_smem(ring), ck_smem(bars + who * t.depth), lane, from, end, 0, 0, 0, 0, {} };
    feed.begin();
    for (int i = 0; i < t.depth; i++) feed.next();
    ck_pdl_wait();
    int slot = 0;
    uint32_t phase = 0;
    struct stream_piece p;
    for (int at = from; at < end; at += p.to - p.from) {
        p = piece_at(rows, at, end, t.n_tok);
        const int lo = rows.lo[p.row], hi = rows.hi[p.row], index = rows.index[p.row], n_split = rows.split1(p.row) - rows.split0(p.row);
        const bool begins = at == p.at;
        float *parts = g.part + ((int64_t)p.row * g.a.n_head_kv + p.kvh) * g.n_split * stride, M[2] = { -INFINITY, -INFINITY }, L[2] = { 0, 0 };
        float *total = &place.rows[lane >> 2][2 * (lane & 3)]; /* this lane's columns of its row, 8 apart */
        stream_heads<DP, BF>(t, rows, p, lane, place);
        for (int split = p.from; split < p.to; split++) {
            float o[NB][4] = {}, m[2] = { -INFINITY, -INFINITY }, l[2] = { 0, 0 }, ea[2], eb[2];
            stream_split<DP, BF>(o, m, l, feed, max(p.tile, 4 * split), min(p.tile_end, 4 * split + 4), lo, hi, index >> 6, index & 63, lane, place, ring,
                                 slot, phase);
            if (!begins) {
                part_write<DP, NB>(parts + (int64_t)split * stride, o, m, l, 0, true, lane, g.part_rows);
                continue;
            }
#pragma unroll
            for (int r = 0; r < 2; r++) merge(M[r], L[r], m[r], l[r], ea[r], eb[r]);
#pragma unroll
            for (int n = 0; n < NB; n++) {
                const float2 before = split == p.from ? make_float2(0.0f, 0.0f) : *(const float2 *)(total + n * 8);
                *(float2 *)(total + n * 8) = make_float2(__fmaf_rn(__fadd_rn(o[n][0], 0.0f), eb[0], __fmul_rn(before.x, ea[0])),
                                                         __fmaf_rn(__fadd_rn(o[n][1], 0.0f), eb[0], __fmul_rn(before.y, ea[0])));
            }
        }
        const struct ck_attn_unit u = { t.tok0 + p.row, 1, 0, 0 };
        if (p.to - p.from == n_split) {
            store_rows<NB>(g, u, p.kvh, 0, g.group, M, L, 0, true, lane, [&](int, int n, int e) { return total[n * 8 + e]; });
            continue;
        }
        if (begins && (lane >> 2) < g.part_rows) {
            float *mine = parts + (int64_t)p.from * stride;
            const int row = lane >> 2;
#pragma unroll
            for (int n = 0; n < NB; n++) *(float2 *)(mine + 32 + row * DP + n * 8 + 2 * (lane & 3)) = *(const float2 *)(total + n * 8);
            if ((lane & 3) == 0) {
                mine[row] = M[0];
                mine[16 + row] = L[0];
            }
        }
        stream_merge<DP>(t, rows, p, share, lane, parts, stride);
    }
#endif
}

template <int DP, bool BF> static int stream_launch(const struct ck_ctx *c, struct stream_args t, cudaStream_t st)
{
    using R = stream_room<DP, BF>;
    struct attend_args *g = &t.g;
    const int n = g->a.n_small;
    g->part_rows = g->group;
    int room = ck_attend_room(c, g, DP, 1, n), e = 0;
    if (room <= 0) return (int)cudaErrorInvalidValue;
    if (room > ROWS_MAX) room = ROWS_MAX;
    for (int i = 0; i < n && e == 0; i += room) {
        t.tok0 = i;
        t.n_tok = n - i < room ? n - i : room;
        /* Few splits: fewer warps of a block, with more of the ring each. */
        int64_t splits = (int64_t)t.n_tok * g->a.n_head_kv * g->n_split;
        int workers = splits <= c->n_sm ? 1 : splits <= 2 * c->n_sm ? 2 : WORKERS;
        t.depth = R::slots / workers;
        e = ck_launch(c, stream_kernel<DP, BF>, dim3((unsigned)(splits < c->n_sm ? splits : c->n_sm)), workers * 32, (size_t)R::bytes(workers), st, t);
    }
    return e;
}

/* Worth it from 8 splits a warp on: of fewer, the small form's blocks hide each other's waits better. */
extern "C" bool ck_attend_streams(const struct ck_ctx *c, const struct ck_attend *a)
{
    int64_t rows = a->n_small < ROWS_MAX ? a->n_small : ROWS_MAX;
    return a->n_head / a->n_head_kv <= HEADS_MAX && rows * a->n_head_kv * a->n_split >= (int64_t)8 * WORKERS * c->n_sm;
}

extern "C" int ck_attend_stream(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st)
{
    struct stream_args t = { ck_attend_args(a), *r, 0, 0, 0 };
    if (a->kv_format == CK_KV_BF16) return a->head_dim <= 64 ? stream_launch<64, true>(c, t, st) : stream_launch<128, true>(c, t, st);
    return a->head_dim <= 64 ? stream_launch<64, false>(c, t, st) : stream_launch<128, false>(c, t, st);
}
