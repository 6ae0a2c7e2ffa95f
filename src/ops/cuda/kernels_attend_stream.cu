/* kernels_attend_stream.cu: a decode step's rotation, writing of keys and values, and attention in one launch, for batches of single
 * tokens that are more than kernels_attend_token.cu takes at once. A block a multiprocessor takes a stretch of the line of all splits
 * (kernels_attend_line.cuh), its keys and values come by bulk copies into a ring that most of the shared memory is, the first of them before the
 * kernel waits for the products of q, k and v. A ninth warp brings them, 64 KB at a time: more in flight gains nothing, and all that is small and
 * waited for would come behind it. Eight warps work on one split: two take the scores of a tile, then each 16 dims of all tiles
 * (kernels_attend_turned.cuh); the next head's queries come meanwhile. What has all splits of a head merges them on the way; others go through the
 * work area, and the block that comes last merges (kernels_attend_merge.cuh).
 */
#include "ops/cuda/kernels_attend_heads.cuh"
#include "ops/cuda/kernels_attend_line.cuh"
#include "ops/cuda/kernels_attend_merge.cuh"
#include "ops/cuda/kernels_attend_turned.cuh"

#define WARPS 8
#define THREADS (WARPS * 32 + 128) /* a group of warps for the one that brings, which leaves its registers to the others */
#define HEADS_MAX 8 /* query heads of a KV head */
/* The products of q, k and v of more than CK_BATCH_TOKENS_FEW leave some multiprocessors empty and memory idle: blocks that begin there have the
 * first keys and values of all others brought to the second-level cache meanwhile. */
#define EARLY 16      /* blocks, each for FETCH_FOR others */
#define FETCH_FOR 8
#define FETCH 8       /* half tiles of a block: a lane each */
static_assert(HEADS_MAX <= WARPS, "a merge's factors: a warp a query head");

struct stream_args {
    struct attend_args g;
    struct cs_rope r;
    int tok0, n_tok;
    int early; /* so many blocks fetch for the others */
};

template <int DP> struct stream_room {
    enum { tile = 64 * DP * 2, slots = DP <= 64 ? 24 : 12, window = 65536 / tile };
    struct area {
        float p[4][HEADS_MAX][64 + 4];   /* weights of a split: of a tile and a query head, by key; a merge's factors */
        float rows[HEADS_MAX + 2][DP + 4]; /* query heads while they are made, then the token's key and value */
        float raw[HEADS_MAX + 3][DP];    /* the next head's queries, key, value and rotary row, as the products left them */
        float table[DP];                 /* the token's rotary row */
        float part_max[2][HEADS_MAX][WARPS]; /* of this split and the one before */
        uint16_t fresh[2][2][DP];        /* the token's key and value as in the page, of this head and the one before */
        struct line_progress<WARPS> progress;
    };
    static constexpr int bytes = slots * tile + (int)sizeof(struct area);
};

#if __CUDA_ARCH__ >= 900
/* A block at work: what its threads know. */
template <int DP, bool BF> struct stream_block {
    using R = stream_room<DP>;
    const struct stream_args &t;
    const struct attend_args &g;
    const struct line_rows &rows;
    const struct line_stretch &line;
    uint8_t *smem;
    typename R::area &area;
    uint32_t full; /* a barrier of each place of the ring */
    int lane, warp, c, tl;
    struct line_at at, next; /* split; head behind this one */
    int slot, parity, turn, table_row;
    unsigned done;
    uint32_t phase;
    int n, w0; /* of the split at hand: tiles, and which of the four is the first */
    /* The head at hand. */
    int row, kvh, lo, hi, index, from, upto, tile0, tile_end; /* upto: behind the last split that is here */
    bool whole, fresh, direct;
    struct stream_query<DP, BF> q;
    float O[4], M, L; /* of all splits so far; M and L of head c */

    __device__ __forceinline__ bool sums(void) const { return warp < DP / 16; } /* has it dims? */
    __device__ __forceinline__ int stride(void) const { return 32 + g.part_rows * DP; }
    __device__ __forceinline__ float *parts(void) const { return g.part + ((int64_t)row * g.a.n_head_kv + kvh) * g.n_split * stride(); }

    __device__ __forceinline__ void begin(void)
    {
        at = line.begin();
        slot = parity = turn = 0;
        done = 0;
        direct = plain_heads();
        phase = 0;
        table_row = -1;
    }
    /* The warp that brings. Of one row less is under way while its queries are waited for: its launch is so short that the one before, whose
     * merge waits in memory behind what is brought, counts for more. */
    __device__ __forceinline__ void bring(void) const
    {
        struct line_feed<DP, R::slots> feed;
        feed.run(g, line, ck_smem(smem), full, area.progress, t.n_tok == 1 ? R::window / 2 : R::window, R::window, lane);
    }
    /* Idle warps of the group that brings. */
    __device__ __forceinline__ void fetch(void) const
    {
        const int i = (warp - WARPS - 1) * (32 / FETCH) + lane / FETCH, other = t.early + (int)blockIdx.x * FETCH_FOR + i;
        if ((int)blockIdx.x >= t.early || i >= FETCH_FOR || other >= (int)gridDim.x) return;
        struct line_feed<DP, R::slots> feed;
        feed.fetch(g, line_stretch(rows, t.n_tok, g.a.n_head_kv, (unsigned)other), lane % FETCH);
    }
    /* This warp needs n half tiles no longer. */
    __device__ __forceinline__ void used(int n_half)
    {
        done += (unsigned)n_half;
        __syncwarp();
        if (lane == 0) area.progress.tell(&area.progress.done[warp], done);
    }
    /* The i-th half tile from here on, i < 8, once it has come. */
    __device__ __forceinline__ uint16_t *arrived(int i) const
    {
        int s = slot + i;
        uint32_t round = phase;
        if (s >= R::slots) s -= R::slots, round ^= 1;
        ck_mbar_wait(full + 8u * (uint32_t)s, round);
        return (uint16_t *)(smem + s * R::tile);
    }

    /* A head: which of its splits are here, and does the token's own place lie in one of them? */
    __device__ __forceinline__ void head_begin(void)
    {
        tile0 = rows.tile0[at.row];
        tile_end = rows.tile_end[at.row];
        const int head = at.start - line.first(at), split1 = (tile_end + 3) >> 2;
        auto mine = [&](int split) {
            struct line_at other = at;
            other.split = split;
            other.start = head + line.first(other);
            return split >= from && line.has(other);
        };
        row = at.row;
        kvh = at.kvh;
        lo = rows.lo[row];
        hi = rows.hi[row];
        index = rows.index[row];
        from = at.split;
        upto = from;
        for (unsigned some = ~0u; some == ~0u; upto += __popc(some)) some = __ballot_sync(~0u, upto + lane < split1 && mine(upto + lane));
        whole = from == tile0 >> 2 && upto == split1;
        fresh = from <= index >> 8 && index >> 8 < upto;
        next = at;
        next.start = head + tile_end;
        if (++next.kvh == g.a.n_head_kv) next.kvh = 0, next.row++;
        next.split = rows.tile0[next.row] >> 2;
        M = -INFINITY;
        L = 0.0f;
#pragma unroll
        for (int e = 0; e < 4; e++) O[e] = 0.0f;
    }
    /* Can heads be read in pieces of 16 bytes and queries be turned where they are needed? */
    __device__ __forceinline__ bool plain_heads(void) const
    {
        const struct cs_rope &r = t.r;
        return r.table && !r.q_norm && r.n_rot == DP && r.head_dim == DP && !r.interleaved &&
               (((uintptr_t)r.q | (uintptr_t)r.k | (uintptr_t)r.v | (uintptr_t)r.table | (uintptr_t)((r.ld_q | r.ld_k | r.ld_v | r.q_step) * 4)) & 15) == 0;
    }
    __device__ __forceinline__ void table_load(void)
    {
        if (row == table_row || direct) return;
        for (int i = (int)threadIdx.x; t.r.table && i < t.r.n_rot; i += WARPS * 32) area.table[i] = t.r.table[(int64_t)(t.tok0 + row) * t.r.n_rot + i];
        table_row = row;
        attend_meet();
    }
    /* A query head, key or value a warp, from task0 on; the token's own key and value to the page too. */
    __device__ __forceinline__ void heads_make(int task0)
    {
        const int tok = t.tok0 + row, d = t.r.head_dim, n_q = g.group;
        for (int task = task0 + warp; task < n_q + (fresh ? 2 : 0); task += WARPS) {
            const bool is_q = task < n_q, is_v = task > n_q;
            const float *x = direct ? area.raw[task]
                             : is_q ? t.r.q + tok * t.r.ld_q + (int64_t)(kvh * n_q + task) * t.r.q_step
                             : is_v ? t.r.v + tok * t.r.ld_v + (int64_t)kvh * d
                                    : t.r.k + tok * t.r.ld_k + (int64_t)kvh * d;
            float *y = area.rows[is_q ? task : HEADS_MAX + is_v];
            struct head_vector<DP> v;
            v.load(x, is_q ? t.r.q_norm : is_v ? NULL : t.r.k_norm, d, lane);
            v.make(y, is_q ? t.r.q_norm != NULL : is_v ? t.r.v_norm != 0 : t.r.k_norm != NULL, !is_v,
                   is_v || !t.r.table ? NULL : direct ? area.raw[n_q + 2] : area.table, t.r, lane);
            if (!is_q) fresh_write(y, is_v);
        }
        attend_meet();
    }
    __device__ __forceinline__ void fresh_write(const float *y, bool is_v)
    {
        const int64_t page = g.a.pages[rows.table[row] + (index >> 6)];
        uint16_t *to = (uint16_t *)((uint8_t *)(void *)g.a.pool + page * 4096 + g.a.head_off + (int64_t)(2 * kvh + is_v) * R::tile);
        for (int i = lane; i < DP; i += 32) {
            const uint16_t bits = page_bits<BF>(y[i]);
            area.fresh[turn][is_v][i] = bits;
            if (!is_v) to[ck_k_off(index & 63, i, DP, 2)] = bits;
            else if (i < t.r.head_dim) to[ck_v_off(index & 63, i, 2)] = bits;
        }
    }
    /* A head's queries, key, value and rotary row on their way to area.raw. */
    __device__ __forceinline__ void heads_ahead(const struct line_at &of)
    {
        const int tok = t.tok0 + of.row, n_q = g.group;
        if (!direct || !line.has(of)) return;
        for (int i = (int)threadIdx.x; i < (n_q + 3) * (DP / 4); i += WARPS * 32) {
            const int head = i / (DP / 4), e = i % (DP / 4) * 4;
            const float *x = head < n_q        ? t.r.q + tok * t.r.ld_q + (int64_t)(of.kvh * n_q + head) * t.r.q_step
                             : head == n_q     ? t.r.k + tok * t.r.ld_k + (int64_t)of.kvh * DP
                             : head == n_q + 1 ? t.r.v + tok * t.r.ld_v + (int64_t)of.kvh * DP
                                               : t.r.table + (int64_t)tok * DP;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(ck_smem(&area.raw[head][e])), "l"(x + e) : "memory");
        }
    }
    __device__ __forceinline__ void queries_make(void)
    {
        const int n_q = g.group;
        if (!direct) {
            heads_make(0);
            q.load(area.rows, n_q, t.r.q_scale, lane);
            return;
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
        attend_meet();
        q.load_rotated(area.raw[c < n_q ? c : 0], area.raw[n_q + 2], c < n_q, t.r.q_scale, lane);
        if (fresh) heads_make(n_q);
        else attend_meet(); /* all have read */
        heads_ahead(next);
    }

    /* Scores of this warp's half of a tile, and their maximum for all. */
    __device__ __forceinline__ void scores(float s[2][4], int fresh_w)
    {
        const int tile = warp >> 1, half = (warp & 1) * 32;
        float most[2] = { -INFINITY, -INFINITY };
        if (tile >= w0 && tile < w0 + n) {
            uint16_t *k = arrived(tile - w0);
            if (tile == fresh_w) { /* by each warp that reads it: the same values */
                for (int i = lane; i < DP; i += 32) k[ck_k_off(index & 63, i, DP, 2)] = area.fresh[turn][0][i];
                ck_mbar_init_done(); /* what was written here by stores comes before the next copy */
                __syncwarp();
            }
            stream_scores<DP, BF>(s, q, k, half, lane);
            stream_mask(s, g.a.softcap, at.split * CK_ATTN_SPLIT + tile * 64 + half, lo, hi, lane, most);
        }
        used(n);
        if (c == 0) {
            area.part_max[parity][2 * tl][warp] = most[0];
            area.part_max[parity][2 * tl + 1][warp] = most[1];
        }
        attend_meet();
    }
    /* The running maximum of head c behind tile w. */
    __device__ __forceinline__ float raised(float m, int w) const
    {
        const float *most = area.part_max[parity][c];
        return larger(larger(most[2 * w + 1], most[2 * w]), m);
    }
    __device__ __forceinline__ void weights(const float s[2][4])
    {
        const int tile = warp >> 1;
        if (tile < w0 || tile >= w0 + n) return;
        float m = -INFINITY;
        for (int w = w0; w <= tile; w++) m = raised(m, w);
        const float2 of = of_columns(m, lane);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                area.p[tile][2 * tl + (e & 1)][(warp & 1) * 32 + 16 * j + c + 8 * (e >> 1)] = s[j][e] == -INFINITY ? 0.0f : ck_exp2(__fsub_rn(s[j][e], e & 1 ? of.y : of.x));
    }
    /* Values of the i-th of the split's tiles, with this warp's dims of the token's own. */
    __device__ __forceinline__ uint16_t *values(int i, bool own)
    {
        uint16_t *v = arrived(n + i);
        if (own) {
            const int dim = warp * 16 + lane;
            if (lane < 16 && dim < t.r.head_dim) v[ck_v_off(index & 63, dim, 2)] = area.fresh[turn][1][dim];
            ck_mbar_init_done();
            __syncwarp();
        }
        return v;
    }
    static __device__ __forceinline__ void scale(float o[4], float2 by)
    {
#pragma unroll
        for (int e = 0; e < 4; e++) o[e] = __fmul_rn(o[e], e & 1 ? by.y : by.x);
    }
    /* o, and of head c the maximum and the sum. */
    __device__ __forceinline__ void products(float o[4], float &m, float &l, int fresh_w)
    {
        const int key0 = at.split * CK_ATTN_SPLIT;
        m = -INFINITY;
        l = 0.0f;
        if (n < 4) {
#pragma unroll 1
            for (int w = w0; w < w0 + n; w++) {
                const float m1 = raised(m, w), al = step_down(m, m1);
                m = m1;
                uint16_t *v = values(w - w0, w == fresh_w);
                scale(o, of_columns(al, lane));
                const float sum = stream_values<BF>(o, area.p[w], v, warp * 16, hi - (key0 + w * 64), lane);
                l = __fmaf_rn(l, al, sum);
            }
            return;
        }
        /* Whole splits: loads of a tile beside the sums of the one before. */
        float al[4], sum[4];
        float2 by[4];
        uint16_t *v[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const float m1 = raised(m, w);
            al[w] = step_down(m, m1);
            m = m1;
        }
#pragma unroll
        for (int w = 0; w < 4; w++) by[w] = of_columns(al[w], lane);
#pragma unroll
        for (int w = 0; w < 4; w++) v[w] = values(w, w == fresh_w);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            scale(o, by[w]);
            sum[w] = stream_values<BF>(o, area.p[w], v[w], warp * 16, w < 3 ? 64 : hi - (key0 + w * 64), lane);
        }
#pragma unroll
        for (int w = 0; w < 4; w++) l = __fmaf_rn(l, al[w], sum[w]);
    }
    /* What a split gives: into the totals, or to the work area. */
    __device__ __forceinline__ void keep(const float o[4], float m, float l)
    {
        if (whole) {
            float ea, eb;
            merge(M, L, m, l, ea, eb);
            const float2 a = of_columns(ea, lane), b = of_columns(eb, lane);
#pragma unroll
            for (int e = 0; e < 4; e++) O[e] = __fmaf_rn(__fadd_rn(o[e], 0.0f), e & 1 ? b.y : b.x, __fmul_rn(O[e], e & 1 ? a.y : a.x));
            return;
        }
        float *to = parts() + (int64_t)at.split * stride();
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float2 v = in_order(o, e, lane);
            if (2 * tl + e < g.group) *(float2 *)(to + 32 + (2 * tl + e) * DP + warp * 16 + 2 * c) = make_float2(__fadd_rn(v.x, 0.0f), __fadd_rn(v.y, 0.0f));
        }
        if (warp == 0 && tl == 0 && c < g.group) {
            to[c] = m;
            to[16 + c] = l;
        }
    }
    __device__ __forceinline__ void split(void)
    {
        const int fresh_w = fresh && at.split == index >> 8 ? index >> 6 & 3 : -1;
        float s[2][4], o[4] = {}, m, l;
        const int first = max(tile0, 4 * at.split);
        n = min(tile_end, 4 * at.split + 4) - first;
        w0 = first - 4 * at.split;
        scores(s, fresh_w);
        weights(s);
        attend_meet();
        if (sums()) products(o, m, l, fresh_w);
        used(n);
        parity ^= 1;
        slot += 2 * n;
        if (slot >= R::slots) slot -= R::slots, phase ^= 1;
        if (sums()) keep(o, m, l);
    }
    __device__ __forceinline__ void store_whole(void)
    {
        const int n_q = g.group, head0 = kvh * n_q;
        const float factor = store_factor(g);
        float ea = 0.0f, inv = 0.0f;
        if (c < n_q) finish(g, head0 + c, M, L, &ea, &inv);
        const float2 a = of_columns(ea, lane), i = of_columns(inv, lane);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (2 * tl + e >= n_q) continue;
            const float2 v = in_order(O, e, lane);
            store_two(g, t.tok0 + row, head0 + 2 * tl + e, warp * 16 + 2 * c, __fmul_rn(__fmul_rn(v.x, e ? a.y : a.x), e ? i.y : i.x),
                      __fmul_rn(__fmul_rn(v.y, e ? a.y : a.x), e ? i.y : i.x), factor);
            if (warp == 0 && c == 0) store_tail(g, t.tok0 + row, head0 + 2 * tl + e, 0, 1);
        }
    }
    /* The head's splits [from, to) lie in the work area; who brings the last of all merges. last: of the block, shared. */
    __device__ __forceinline__ void part_end(int to, int *last)
    {
        const int split0 = lo >> 8, n = ((hi + 255) >> 8) - split0;
        unsigned *count = g.count + (int64_t)row * g.a.n_head_kv + kvh;
        attend_meet();
        if (threadIdx.x == 0) {
            *last = (int)count_up(count, (unsigned)(to - from)) + to - from == n;
            if (*last) *count = 0;
        }
        attend_meet();
        if (!*last) return;
        float2 *factors = (float2 *)(void *)area.p;
        stream_merge<DP, WARPS>(g, t.tok0 + row, kvh * g.group, n, parts() + (int64_t)split0 * stride(), stride(), (float2(*)[ATTEND_FACTORS])factors,
                                factors + HEADS_MAX * ATTEND_FACTORS);
    }
};
#endif

template <int DP, bool BF> static __global__ void __launch_bounds__(THREADS, 1) stream_kernel(const __grid_constant__ struct stream_args t)
{
#if __CUDA_ARCH__ >= 900
    using R = stream_room<DP>;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ __align__(8) uint64_t bars[R::slots];
    __shared__ struct line_rows rows;
    __shared__ int last;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    ck_pdl_launch();
    /* The batch's numbers came before the step: no need to wait. */
    if (warp == WARPS) rows_load(rows, t.g, t.r, t.tok0, t.n_tok, lane);
    if ((int)threadIdx.x < R::slots) {
        ck_mbar_init(ck_smem(bars + threadIdx.x), 1);
        ck_mbar_init_done();
    }
    typename R::area &area = *(typename R::area *)(smem + R::slots * R::tile);
    if ((int)threadIdx.x < WARPS) area.progress.done[threadIdx.x] = area.progress.begun = 0;
    __syncthreads();
    const struct line_stretch line(rows, t.n_tok, t.g.a.n_head_kv, blockIdx.x);
    struct stream_block<DP, BF> b = { t, t.g, rows, line, smem, area, ck_smem(bars), lane, warp, lane >> 2, lane & 3 };
    if (warp >= WARPS) {
#if __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
#endif
        if (warp == WARPS) b.bring();
        else b.fetch();
        return;
    }
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#endif
    b.begin();
    bool waited = false;
    while (line.has(b.at)) {
        b.head_begin();
        b.table_load();
        if (!waited) {
            ck_pdl_wait();
            b.heads_ahead(b.at);
        }
        b.queries_make();
        if (!waited && threadIdx.x == 0) area.progress.tell(&area.progress.begun, 1);
        waited = true;
        for (; b.at.split < b.upto; b.at.split++) b.split();
        b.at = b.next;
        if (!b.whole) b.part_end(b.upto, &last);
        else if (b.sums()) b.store_whole();
        b.turn ^= 1;
    }
    if (!waited) ck_pdl_wait();
#endif
}

/* Blocks for so many heads: as many for each, or as many heads for each, where that leaves few multiprocessors empty. */
static int stream_blocks(int64_t heads, int n_sm)
{
    const int64_t per = (heads + n_sm - 1) / n_sm, blocks = heads <= n_sm ? n_sm / heads * heads : (heads + per - 1) / per;
    return (int)(blocks * 10 >= n_sm * 9 ? blocks : n_sm);
}

template <int DP, bool BF> static int stream_launch(const struct ck_ctx *c, struct stream_args t, cudaStream_t st)
{
    using R = stream_room<DP>;
    struct attend_args *g = &t.g;
    const int n = g->a.n_small;
    g->part_rows = g->group;
    int room = ck_attend_room(c, g, DP, 1, n), e = 0;
    if (room <= 0) return (int)cudaErrorInvalidValue;
    if (room > LINE_ROWS_MAX) room = LINE_ROWS_MAX;
    for (int i = 0; i < n && e == 0; i += room) {
        t.tok0 = i;
        t.n_tok = n - i < room ? n - i : room;
        t.early = DP > 64 && i == 0 && n > CK_BATCH_TOKENS_FEW ? EARLY : 0;
        const int64_t heads = (int64_t)t.n_tok * g->a.n_head_kv;
        int64_t blocks = stream_blocks(heads, c->n_sm);
        if (blocks > heads * g->n_split) blocks = heads * g->n_split;
        e = ck_launch(c, stream_kernel<DP, BF>, dim3((unsigned)blocks), THREADS, (size_t)R::bytes, st, t);
    }
    return e;
}

extern "C" bool ck_attend_streams(const struct ck_attend *a) { return a->n_head / a->n_head_kv <= HEADS_MAX; }

extern "C" int ck_attend_stream(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st)
{
    struct stream_args t = { ck_attend_args(a), *r, 0, 0, 0 };
    if (a->kv_format == CK_KV_BF16) return a->head_dim <= 64 ? stream_launch<64, true>(c, t, st) : stream_launch<128, true>(c, t, st);
    return a->head_dim <= 64 ? stream_launch<64, false>(c, t, st) : stream_launch<128, false>(c, t, st);
}
