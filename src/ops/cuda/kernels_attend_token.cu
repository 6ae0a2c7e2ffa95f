/* kernels_attend_token.cu: a decode step's rotation, writing of keys and values, and attention in one launch, for batches of single
 * tokens. A block takes one split (256 keys) of a KV head's query heads, as the small form does, with the same bits. What makes
 * it fast: keys and values of older tokens come by bulk copies that start before the kernel waits for the products of q, k and v;
 * the token's own key and value are patched into the copy by the warps that read them and written to the page beside; splits meet in
 * the shared memory of a cluster of up to eight blocks, from there on through the work area.
 */
#include "ops/cuda/kernels_attend_heads.cuh"

#define THREADS 128
#define CLUSTER_MAX 8 /* splits that a cluster merges */

struct token_args {
    struct attend_args g;
    struct cs_rope r;
    int tok0;
    int n_slot; /* tiles in shared memory: 8, or 6, and the last two halves of values follow where keys were */
};

template <int DP, bool BF> struct token_room {
    enum {
        tile = 64 * DP * 2,
        q = (BF ? 2 : 1) * DP * 32,
        rows = DP + 4 /* floats of a query row while it is made: they lie where P will be */
    };
    static size_t bytes(int n_slot) { return (size_t)n_slot * tile + q + sizeof(struct split_area<BF>); }
};

/* Fragments of query rows that lie in shared memory, as q_frags makes them. */
template <int DP, bool BF> static __device__ __forceinline__ void frags_of_rows(uint4 *qs, const float *y, int ld, float scale, int lane, int warp)
{
    for (int s = warp; s < DP / 16; s += 4) {
        uint32_t h[4], l[4];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            int i = (lane >> 2) + (p & 1) * 8, dim = s / 4 * 64 + 32 * ((s & 3) >> 1) + 8 * (lane & 3) + 4 * (s & 1) + 2 * (p >> 1);
            float2 v = *(const float2 *)(y + i * ld + dim);
            pair<BF>(v.x * scale, v.y * scale, h[p], l[p]);
        }
        qs[s * 32 + lane] = make_uint4(h[0], h[1], h[2], h[3]);
        if (BF) qs[DP * 2 + s * 32 + lane] = make_uint4(l[0], l[1], l[2], l[3]);
    }
}

template <int DP, bool BF> static __global__ void __launch_bounds__(THREADS) token_kernel(const __grid_constant__ struct token_args t)
{
#if __CUDA_ARCH__ >= 900
    using R = token_room<DP, BF>;
    constexpr int NB = DP / 32;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ __align__(8) uint64_t bars[8];
    __shared__ float fresh[2][DP], table[DP]; /* the token's key and value; its rotary row */
    __shared__ int last;
    const struct attend_args &g = t.g;
    uint4 *qs = (uint4 *)(smem + t.n_slot * R::tile);
    struct split_area<BF> &area = *(struct split_area<BF> *)(smem + t.n_slot * R::tile + R::q);
    float *rows = (float *)(void *)area.p;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, split = (int)blockIdx.x;
    const int kvh = (int)blockIdx.y / g.row_tiles, row0 = (int)blockIdx.y % g.row_tiles * 16, n_rows = g.group;
    /* The batch's numbers came before the step: no need to wait. */
    const int tok = t.tok0 + (int)blockIdx.z, lo_min = g.a.lo[tok], hi_max = g.a.hi[tok], index = t.r.index[tok], table0 = t.r.table_of[tok];
    const struct ck_attn_unit u = { tok, 1, table0, 0 };
    const int split0 = lo_min / CK_ATTN_SPLIT, split1 = (hi_max + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT, key0 = split * CK_ATTN_SPLIT;
    if (split < split0 || split >= split1) return;
    const int64_t head = g.a.head_off + (int64_t)kvh * 2 * R::tile;
    const int fresh_tile = index >= key0 && index < key0 + CK_ATTN_SPLIT ? (index - key0) >> 6 : -1;
    auto page = [&](int w) { return (uint8_t *)(void *)g.a.pool + (int64_t)g.a.pages[u.i_table + (key0 >> 6) + w] * 4096 + head; };
    auto active = [&](int w) { return key0 + w * 64 < hi_max && key0 + w * 64 + 64 > lo_min; };
    auto slot_of_v = [&](int w) { return 4 + w < t.n_slot ? 4 + w : 4 + w - t.n_slot; };
    const uint32_t bar = ck_smem(bars);
    auto bring = [&](int w, int half) {
        uint32_t full = bar + 8u * (uint32_t)(half * 4 + w);
        ck_mbar_expect(full, R::tile);
        ck_bulk_plain(ck_smem(smem + (half ? slot_of_v(w) : w) * R::tile), page(w) + half * R::tile, R::tile, full);
    };
    if (threadIdx.x == 0)
        for (int i = 0; i < 8; i++) ck_mbar_init(bar + 8u * (uint32_t)i, 1);
    ck_mbar_init_done();
    __syncthreads();
    if (warp == 0 && lane < 4 && active(lane)) { /* a lane a tile */
        bring(lane, 0);
        if (4 + lane < t.n_slot) bring(lane, 1);
    }
    for (int i = (int)threadIdx.x; t.r.table && i < t.r.n_rot; i += THREADS) table[i] = t.r.table[(int64_t)tok * t.r.n_rot + i];
    __syncthreads();
    ck_pdl_launch();
    ck_pdl_wait();

    /* Query heads, and by the block that has the token's own place its key and value. */
    const int d = t.r.head_dim, n_q = n_rows - row0 < 16 ? n_rows - row0 : 16, n_task = n_q + (fresh_tile >= 0 ? 2 : 0);
    const float *cs = t.r.table ? table : NULL;
    for (int i = (int)threadIdx.x; i < (16 - n_q) * R::rows; i += THREADS) rows[n_q * R::rows + i] = 0.0f;
    for (int task0 = warp; task0 < n_task; task0 += 8) {
        struct head_vector<DP> v[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int task = task0 + 4 * j;
            if (task < n_q) v[j].load(t.r.q + tok * t.r.ld_q + (int64_t)(kvh * g.group + row0 + task) * t.r.q_step, t.r.q_norm, d, lane);
            else if (task == n_q && task < n_task) v[j].load(t.r.k + tok * t.r.ld_k + (int64_t)kvh * d, t.r.k_norm, d, lane);
            else if (task < n_task) v[j].load(t.r.v + tok * t.r.ld_v + (int64_t)kvh * d, NULL, d, lane);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int task = task0 + 4 * j;
            if (task < n_q) v[j].make(rows + task * R::rows, t.r.q_norm != NULL, true, cs, t.r, lane);
            else if (task == n_q && task < n_task) v[j].make(fresh[0], t.r.k_norm != NULL, true, cs, t.r, lane);
            else if (task < n_task) v[j].make(fresh[1], t.r.v_norm != 0, false, NULL, t.r, lane);
        }
    }
    __syncthreads();
    frags_of_rows<DP, BF>(qs, rows, R::rows, t.r.q_scale, lane, warp);
    if (fresh_tile >= 0 && row0 == 0) {
        uint16_t *k = (uint16_t *)page(fresh_tile), *v = k + 64 * DP;
        for (int i = (int)threadIdx.x; i < DP; i += THREADS) {
            k[ck_k_off(index & 63, i, DP, 2)] = page_bits<BF>(fresh[0][i]);
            if (i < d) v[ck_v_off(index & 63, i, 2)] = page_bits<BF>(fresh[1][i]);
        }
    }
    __syncthreads();

    const int lo[2] = { lo_min, lo_min }, hi[2] = { hi_max, hi_max };
    float o[NB][4] = {}, m[2], l[2] = { 0, 0 };
    split_product<DP, BF>(
        o, m, l, area, qs, g.a.softcap, key0, lo, hi, lo_min, hi_max,
        [&](int w) {
            uint16_t *k = (uint16_t *)(smem + w * R::tile);
            ck_mbar_wait(bar + 8u * (uint32_t)w, 0);
            if (w == fresh_tile) {
                for (int i = lane; i < DP; i += 32) k[ck_k_off(index & 63, i, DP, 2)] = page_bits<BF>(fresh[0][i]);
                __syncwarp();
            }
            return (const uint16_t *)k;
        },
        [&](int w) {
            uint16_t *v = (uint16_t *)(smem + slot_of_v(w) * R::tile);
            ck_mbar_wait(bar + 8u * (uint32_t)(4 + w), 0);
            if (w == fresh_tile) { /* its own dims alone */
                int i = warp * (DP / 4) + lane;
                if (lane < DP / 4 && i < d) v[ck_v_off(index & 63, i, 2)] = page_bits<BF>(fresh[1][i]);
                __syncwarp();
            }
            return (const uint16_t *)v;
        },
        [&] {
            if (t.n_slot == 8) return;
            ck_mbar_init_done(); /* what was written to these places by stores comes before the copies */
            __syncthreads();
            if (warp == 0 && lane >= 2 && lane < 4 && active(lane)) bring(lane, 1);
        });

    if (split1 - split0 == 1) {
        store_single<NB>(g, u, kvh, row0, n_rows, o, m, l, warp * (DP / 4), warp == 3, lane);
        return;
    }
    if (gridDim.x <= CLUSTER_MAX) { /* the blocks of a cluster: each merges a share of the values */
        float *mine = (float *)(smem + 3 * R::tile);
        part_write<DP, NB>(mine, o, m, l, warp * (DP / 4), warp == 0, lane);
        ck_cluster_meet();
        merge_splits<DP>(g, u, kvh, row0, n_rows, split0, split1, (split - split0) * THREADS + (int)threadIdx.x, (split1 - split0) * THREADS,
                         [&](int sp, int row, int dim, float &mm, float &ll, float4 &v) {
                             const float *p = ck_cluster_at(mine, sp);
                             mm = p[row];
                             ll = p[16 + row];
                             v = *(const float4 *)(p + 32 + row * DP + dim);
                         });
        ck_cluster_meet(); /* nobody leaves while others read */
        return;
    }
    merge_last<DP, NB>(g, u, kvh, row0, n_rows, split, split0, split1, o, m, l, warp, lane, THREADS, &last);
#endif
}

template <int DP, bool BF> static int token_launch(const struct ck_ctx *c, struct token_args t, cudaStream_t st)
{
    struct attend_args *g = &t.g;
    int e = 0, n = g->a.n_small;
    unsigned cluster = 1;
    while ((int)cluster < g->n_split && cluster < CLUSTER_MAX) cluster *= 2;
    if (g->n_split <= CLUSTER_MAX) g->n_split = (int)cluster;
    else cluster = 1;
    int room = ck_attend_room(c, g, DP, 1, n);
    if (room <= 0) return (int)cudaErrorInvalidValue;
    /* One block a multiprocessor has room for all; of more, two should fit. */
    int64_t blocks = (int64_t)n * g->a.n_head_kv * g->row_tiles * g->n_split;
    t.n_slot = DP <= 64 || blocks <= c->n_sm ? 8 : 6;
    for (int i = 0; i < n && e == 0; i += room) {
        t.tok0 = i;
        int now = n - i < room ? n - i : room;
        e = ck_launch_cluster(c, token_kernel<DP, BF>, dim3((unsigned)g->n_split, (unsigned)(g->a.n_head_kv * g->row_tiles), (unsigned)now), cluster, THREADS,
                              token_room<DP, BF>::bytes(t.n_slot), st, t);
    }
    return e;
}

/* Is this a batch of single tokens, with pages and heads that there is a form for? */
static bool fits(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a)
{
    int d_pad = (a->head_dim + 63) / 64 * 64;
    return c->major >= 9 && ck_attend_on_tensor_cores(a->kv_format, d_pad) && d_pad <= 128 && r->k && a->n_large == 0 && a->n_small == r->m &&
           a->ld_pages == 1 && a->n_head % a->n_head_kv == 0 && r->n_head == a->n_head && r->n_head_kv == a->n_head_kv && r->head_dim == a->head_dim &&
           r->head_off == a->head_off && r->kv_format == a->kv_format && r->n_rot <= r->head_dim && r->pool == a->pool && r->pages == a->pages &&
           (!a->x || a->x->k == (int64_t)a->n_head * a->head_dim);
}

/* Room for all blocks at once? Of more, the small form's little blocks hide each other's waits better. */
static bool few(const struct ck_ctx *c, const struct ck_attend *a)
{
    int group = a->n_head / a->n_head_kv;
    int64_t blocks = (int64_t)a->n_small * a->n_head_kv * ((group + 15) / 16) * a->n_split;
    return blocks <= (int64_t)c->n_sm * (a->head_dim <= 64 ? 3 : 2);
}

extern "C" int cs_rope_attend(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st)
{
    const bool single = fits(c, r, a);
    if (single && ck_attend_streams(c, a)) return ck_attend_stream(c, r, a, st);
    if (!single || !few(c, a)) {
        int e = cs_rope(c, r, st);
        return e != 0 ? e : ck_attend(c, a, st);
    }
    struct token_args t = { ck_attend_args(a), *r, 0, 8 };
    if (a->kv_format == CK_KV_BF16) return a->head_dim <= 64 ? token_launch<64, true>(c, t, st) : token_launch<128, true>(c, t, st);
    return a->head_dim <= 64 ? token_launch<64, false>(c, t, st) : token_launch<128, false>(c, t, st);
}
