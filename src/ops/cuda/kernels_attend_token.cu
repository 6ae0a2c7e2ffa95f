/* kernels_attend_token.cu: a decode step's rotation, writing of keys and values, and attention in one launch, for batches of single
 * tokens. A block takes one split (256 keys) of a KV head's query heads, as the small form does, with the same bits. It is a chain of
 * short stages, each as long as one warp's instructions: so of few blocks each has up to sixteen warps, and what can be is made ready before the
 * kernel waits for the products of q, k and v. Keys and values of older tokens come by bulk copies that start there too;
 * the token's own key and value are patched into the copy by the warps that read them and written to the page beside; splits meet in
 * the shared memory of the last one's block (a cluster of up to eight), of more blocks or splits in the work area.
 */
#include "ops/cuda/kernels_attend_heads.cuh"

#define CLUSTER_MAX 8 /* splits that a cluster merges */
#define TOKEN_BYTES_MAX ((size_t)216 << 10) /* of shared memory, beside what the kernel declares */

struct token_args {
    struct attend_args g;
    struct cs_rope r;
    int tok0;
    int n_slot; /* tiles in shared memory: 8, or 6, and the last two halves of values follow where keys were */
    int cluster; /* blocks along x are one cluster: its last split's block merges them */
};

/* What warps leave for each other. p: weights as A fragments. */
template <bool BF, int W> struct token_area {
    uint4 p[BF ? 2 : 1][4][4][32];
    float part_max[16][W], tile_sum[4][16]; /* of a row: four maxima, or two, or one of each tile */
};
template <int DP, bool BF, int W> struct token_room {
    enum {
        tile = 64 * DP * 2,
        q = (BF ? 2 : 1) * DP * 32,
        rows = DP + 4 /* floats of a query row while it is made: they lie where P will be */
    };
    static __host__ __device__ size_t bytes(int n_slot) { return (size_t)n_slot * tile + q + sizeof(struct token_area<BF, W>); }
    /* Splits of a cluster, with the first n_rows rows of each. */
    static __host__ __device__ int stride(int n_rows) { return 32 + n_rows * DP; }
};

/* Fragments of query rows that lie in shared memory, as q_frags makes them. */
template <int DP, bool BF, int W> static __device__ __forceinline__ void frags_of_rows(uint4 *qs, const float *y, int ld, float scale, int lane, int warp)
{
    for (int s = warp; s < DP / 16; s += W) {
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

/* Keys of blocks [block0, block0 + KB) of a tile against the query rows: s_tile and mask_tile, of a part of a tile. */
template <int DP, bool BF, int KB>
static __device__ __forceinline__ void s_part(float s[KB][4], const uint4 *qs, const uint16_t *k, int block0, float softcap, int key0, int lo, int hi, int lane,
                                              float most[2])
{
    const int t = lane & 3;
    s_blocks<DP, BF, KB>(s, qs, k, block0, lane);
    if (softcap != 0.0f) /* apart: its code would lie in everybody's way */
#pragma unroll
        for (int i = 0; i < KB; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][e] = __fmul_rn(__fmul_rn(softcap, ck_tanh(__fdiv_rn(s[i][e], softcap))), 1.44269504088896341f);
#pragma unroll
    for (int i = 0; i < KB; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int key = key0 + key_of(block0 + i, 2 * t + (e & 1));
            s[i][e] = key >= lo && key < hi ? s[i][e] : -INFINITY;
            most[e >> 1] = larger(s[i][e], most[e >> 1]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int x = 1; x <= 2; x <<= 1) most[r] = larger(__shfl_xor_sync(~0u, most[r], x), most[r]);
}

/* A split's tiles, split_product's operations by W warps: W / 4 of them take the scores of a tile, then each its dims of all. floats: 16 KB that
 * are free once nobody needs keys, for sums in their order. */
template <int DP, bool BF, int W, typename K, typename V, typename BETWEEN>
static __device__ __forceinline__ void token_product(float (*o)[4], float m_last[2], float l[2], struct token_area<BF, W> &area, const uint4 *qs, float4 *floats,
                                                     float softcap, int key0, int lo, int hi, K k_of, V v_of, BETWEEN between)
{
    constexpr int PARTS = W / 4, KB = 8 / PARTS, NB = DP / 8 / W;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, tile = warp / PARTS, part = warp % PARTS;
    auto active = [&](int w) { return key0 + w * 64 < hi && key0 + w * 64 + 64 > lo; };
    float s[KB][4], most[2] = { -INFINITY, -INFINITY };
    if (active(tile)) s_part<DP, BF, KB>(s, qs, k_of(tile), part * KB, softcap, key0 + tile * 64, lo, hi, lane, most);
    if ((lane & 3) == 0)
#pragma unroll
        for (int r = 0; r < 2; r++) area.part_max[(lane >> 2) + 8 * r][warp] = most[r];
    __syncthreads();
    between();
    float m[4][2]; /* running maximum behind each tile */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float before = -INFINITY, part_max[W];
#pragma unroll
        for (int i = 0; i < W / 4; i++) *(float4 *)&part_max[4 * i] = *(const float4 *)&area.part_max[(lane >> 2) + 8 * r][4 * i];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float most_w = part_max[w * PARTS];
#pragma unroll
            for (int i = 1; i < PARTS; i++) most_w = larger(part_max[w * PARTS + i], most_w);
            before = m[w][r] = larger(most_w, before);
        }
    }
    if (active(tile)) {
#pragma unroll
        for (int i = 0; i < KB; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = e >> 1;
                const float mine = tile == 0 ? m[0][r] : tile == 1 ? m[1][r] : tile == 2 ? m[2][r] : m[3][r];
                s[i][e] = s[i][e] == -INFINITY ? 0.0f : ck_exp2(__fsub_rn(s[i][e], mine));
            }
            floats[(tile * 8 + part * KB + i) * 32 + lane] = make_float4(s[i][0], s[i][1], s[i][2], s[i][3]);
        }
#pragma unroll
        for (int kk = 0; kk < KB / 2; kk++) {
            uint4 ph, pl;
            pair<BF>(s[2 * kk][0], s[2 * kk][1], ph.x, pl.x);
            pair<BF>(s[2 * kk][2], s[2 * kk][3], ph.y, pl.y);
            pair<BF>(s[2 * kk + 1][0], s[2 * kk + 1][1], ph.z, pl.z);
            pair<BF>(s[2 * kk + 1][2], s[2 * kk + 1][3], ph.w, pl.w);
            area.p[0][tile][part * (KB / 2) + kk][lane] = ph;
            if (BF) area.p[BF ? 1 : 0][tile][part * (KB / 2) + kk][lane] = pl;
        }
    }
    const uint16_t *v[4];
#pragma unroll
    for (int w = 0; w < 4; w++) v[w] = active(w) ? v_of(w) : NULL;
    __syncthreads();
    if (part == 0 && active(tile)) { /* a lane's 16 in order, then lanes by xor 1, 2 */
        float sum[2] = { 0, 0 };
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float4 f = floats[(tile * 8 + i) * 32 + lane];
            sum[0] = __fadd_rn(__fadd_rn(sum[0], f.x), f.y);
            sum[1] = __fadd_rn(__fadd_rn(sum[1], f.z), f.w);
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int x = 1; x <= 2; x <<= 1) sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], x));
        if ((lane & 3) == 0)
#pragma unroll
            for (int r = 0; r < 2; r++) area.tile_sum[tile][(lane >> 2) + 8 * r] = sum[r];
    }
    float al[4][2];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        if (!active(w)) continue;
        uint4 ph[4], pl[4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            al[w][r] = step_down(w ? m[w ? w - 1 : 0][r] : -INFINITY, m[w][r]);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) o[n][2 * r + e] = __fmul_rn(o[n][2 * r + e], al[w][r]);
        }
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            ph[kk] = area.p[0][w][kk][lane];
            pl[kk] = BF ? area.p[BF ? 1 : 0][w][kk][lane] : ph[kk];
        }
        pv_tile<NB, BF>(o, ph, pl, v[w], warp * (DP / W), hi - (key0 + w * 64), lane);
    }
    __syncthreads(); /* sums of tiles */
#pragma unroll
    for (int w = 0; w < 4; w++)
        if (active(w))
#pragma unroll
            for (int r = 0; r < 2; r++) l[r] = __fmaf_rn(l[r], al[w][r], area.tile_sum[w][(lane >> 2) + 8 * r]);
    m_last[0] = m[3][0];
    m_last[1] = m[3][1];
}

/* Splits [split0, split1) of the first n_rows rows, left to right: a warp a row makes the factors, then a thread has some values each. part(split)
 * is what a split left (part_write); through_memory: written by other blocks. */
struct token_factors {
    float2 of[16][ATTEND_FACTORS], last[16]; /* of each split; behind the last one: factor, 1 / L */
};
template <int DP, int W, bool THROUGH_MEMORY, typename PART>
static __device__ __forceinline__ void token_merge(const struct attend_args &g, int tok, int head0, int n_rows, int split0, int split1, float inv_mul,
                                                   struct token_factors &f, PART part)
{
    constexpr int EACH = (16 * DP + W * 32 - 1) / (W * 32), ROWS = (16 + W - 1) / W, AHEAD = 8;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    auto get = [](const float *p) { return THROUGH_MEMORY ? __ldcg(p) : *p; };
    float O[EACH] = {}, M[ROWS], L[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        M[i] = -INFINITY;
        L[i] = 0.0f;
    }
    for (int s0 = split0; s0 < split1; s0 += ATTEND_FACTORS) {
        const int n = min(split1 - s0, ATTEND_FACTORS);
        if (s0 > split0) __syncthreads(); /* the factors before these have been used */
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int row = warp + i * W;
            if (row >= n_rows) break;
            const float m = lane < n ? get(part(s0 + lane) + row) : -INFINITY, l = lane < n ? get(part(s0 + lane) + 16 + row) : 0.0f;
            f.of[row][lane] = merge_factors(M[i], L[i], m, l, n, lane);
            if (s0 + n == split1) {
                float ea, inv;
                finish(g, head0 + row, M[i], L[i], &ea, &inv);
                if (lane == 0) f.last[row] = make_float2(ea, inv);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int idx = (int)threadIdx.x + i * W * 32, row = idx / DP;
            if (row >= n_rows) break;
            for (int s = 0; s < n; s += AHEAD) {
                float v[AHEAD];
#pragma unroll
                for (int k = 0; k < AHEAD; k++)
                    if (s + k < n) v[k] = get(part(s0 + s + k) + 32 + idx);
#pragma unroll
                for (int k = 0; k < AHEAD; k++)
                    if (s + k < n) O[i] = __fmaf_rn(v[k], f.of[row][s + k].y, __fmul_rn(O[i], f.of[row][s + k].x));
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int idx = (int)threadIdx.x + i * W * 32, row = idx / DP, dim = idx % DP, col = (head0 + row) * g.a.head_dim + dim;
        if (row >= n_rows) break;
        const float v = __fmul_rn(__fmul_rn(O[i], f.last[row].x), f.last[row].y);
        if (dim < g.a.head_dim) {
            if (g.a.out) g.a.out[tok * g.a.ld_out + col] = v;
            if (g.write_x) ((__half *)g.x.v)[ck_x_off(g.x.layout, g.x.k_pad, tok, col)] = __float2half_rn(__fmul_rn(v, inv_mul));
        }
        if (dim == 0) store_tail(g, tok, head0 + row, 0, 1);
    }
}

/* A launch's arguments lie in constant memory, cold: the first read of each 64 bytes waits for it. */
static __device__ __forceinline__ void touch_arguments(const struct token_args &t)
{
    const uint32_t *words = (const uint32_t *)(const void *)&t;
#pragma unroll
    for (unsigned i = 0; i < sizeof t / 4; i += 16) asm volatile("" ::"r"(words[i]));
}

template <int DP, bool BF, int W, int BLOCKS> static __global__ void __launch_bounds__(W * 32, BLOCKS) token_kernel(const __grid_constant__ struct token_args t)
{
#if __CUDA_ARCH__ >= 900
    using R = token_room<DP, BF, W>;
    constexpr int NB = DP / 8 / W, N_THREAD = W * 32;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ __align__(8) uint64_t bars[8];
    __shared__ float fresh[2][DP], table[DP]; /* the token's key and value; its rotary row */
    __shared__ int last;
    const struct attend_args &g = t.g;
    uint4 *qs = (uint4 *)(smem + t.n_slot * R::tile);
    struct token_area<BF, W> &area = *(struct token_area<BF, W> *)(smem + t.n_slot * R::tile + R::q);
    float *rows = (float *)(void *)area.p, *merged = (float *)(void *)(smem + R::bytes(t.n_slot));
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, split = (int)blockIdx.x;
    const int kvh = (int)blockIdx.y / g.row_tiles, row0 = (int)blockIdx.y % g.row_tiles * 16;
    /* The batch's numbers came before the step: no need to wait. */
    const int tok = t.tok0 + (int)blockIdx.z, lo = g.a.lo[tok], hi = g.a.hi[tok], index = t.r.index[tok], table0 = t.r.table_of[tok];
    const int split0 = lo / CK_ATTN_SPLIT, split1 = (hi + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT, key0 = split * CK_ATTN_SPLIT;
    if (split < split0 || split >= split1) return;
    if (t.cluster) ck_cluster_begun();
    const int64_t head = g.a.head_off + (int64_t)kvh * 2 * R::tile;
    const int fresh_tile = index >= key0 && index < key0 + CK_ATTN_SPLIT ? (index - key0) >> 6 : -1;
    auto page = [&](int w) { return (uint8_t *)(void *)g.a.pool + (int64_t)g.a.pages[table0 + (key0 >> 6) + w] * 4096 + head; };
    auto active = [&](int w) { return key0 + w * 64 < hi && key0 + w * 64 + 64 > lo; };
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
    /* Query heads, and by the block that has the token's own place its key and value. */
    const int d = t.r.head_dim, n_q = g.group - row0 < 16 ? g.group - row0 : 16, n_task = n_q + (fresh_tile >= 0 ? 2 : 0);
    const float inv_mul = g.write_x ? __fdiv_rn(1.0f, g.x.mul) : 0.0f;
    uint16_t *own = fresh_tile >= 0 && row0 == 0 ? (uint16_t *)page(fresh_tile) : NULL;
    for (int i = (int)threadIdx.x; t.r.table && i < t.r.n_rot; i += N_THREAD) table[i] = t.r.table[(int64_t)tok * t.r.n_rot + i];
    for (int i = (int)threadIdx.x; i < (16 - n_q) * R::rows; i += N_THREAD) rows[n_q * R::rows + i] = 0.0f;
    const float *cs = t.r.table ? table : NULL;
    const float *q0 = t.r.q + tok * t.r.ld_q + (int64_t)(kvh * g.group + row0) * t.r.q_step, *k0 = t.r.k + tok * t.r.ld_k + (int64_t)kvh * d,
                *v0 = t.r.v + tok * t.r.ld_v + (int64_t)kvh * d;
    touch_arguments(t); /* what comes later finds them in the cache */
    __syncthreads();
    ck_pdl_launch();
    ck_pdl_wait();

    for (int task0 = warp; task0 < n_task; task0 += 2 * W) {
        struct head_vector<DP> v[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int task = task0 + W * j;
            if (task < n_q) v[j].load(q0 + task * t.r.q_step, t.r.q_norm, d, lane);
            else if (task < n_task) v[j].load(task == n_q ? k0 : v0, task == n_q ? t.r.k_norm : NULL, d, lane);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int task = task0 + W * j;
            if (task >= n_task) break;
            const bool is_q = task < n_q, is_v = task > n_q;
            v[j].make(is_q ? rows + task * R::rows : fresh[task - n_q], is_q ? t.r.q_norm != NULL : is_v ? t.r.v_norm != 0 : t.r.k_norm != NULL, !is_v,
                      is_v ? NULL : cs, t.r, lane);
        }
    }
    __syncthreads();
    frags_of_rows<DP, BF, W>(qs, rows, R::rows, t.r.q_scale, lane, warp);
    __syncthreads();
    if (own)
        for (int i = (int)threadIdx.x; i < DP; i += N_THREAD) {
            own[ck_k_off(index & 63, i, DP, 2)] = page_bits<BF>(fresh[0][i]);
            if (i < d) own[64 * DP + ck_v_off(index & 63, i, 2)] = page_bits<BF>(fresh[1][i]);
        }

    float o[NB][4] = {}, m[2], l[2] = { 0, 0 };
    token_product<DP, BF, W>(
        o, m, l, area, qs, (float4 *)(void *)(smem + 2 * R::tile), g.a.softcap, key0, lo, hi,
        [&](int w) {
            uint16_t *k = (uint16_t *)(smem + w * R::tile);
            ck_mbar_wait(bar + 8u * (uint32_t)w, 0);
            if (w == fresh_tile) { /* by each warp that reads it: the same values */
                for (int i = lane; i < DP; i += 32) k[ck_k_off(index & 63, i, DP, 2)] = page_bits<BF>(fresh[0][i]);
                __syncwarp();
            }
            return (const uint16_t *)k;
        },
        [&](int w) {
            uint16_t *v = (uint16_t *)(smem + slot_of_v(w) * R::tile);
            ck_mbar_wait(bar + 8u * (uint32_t)(4 + w), 0);
            if (w == fresh_tile) { /* its own dims alone */
                int i = warp * (DP / W) + lane;
                if (lane < DP / W && i < d) v[ck_v_off(index & 63, i, 2)] = page_bits<BF>(fresh[1][i]);
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
        const struct ck_attn_unit u = { tok, 1, table0, 0 };
        store_single<NB>(g, u, kvh, row0, g.group, o, m, l, warp * (DP / W), warp == W - 1, lane);
        return;
    }
    struct token_factors &factors = *(struct token_factors *)(void *)smem; /* keys are done with */
    const int head0 = kvh * g.group + row0, stride = R::stride(n_q);
    if (t.cluster) { /* into the memory of the last split's block, which alone merges: few values, and no way back */
        ck_cluster_wait(); /* it has begun */
        part_write<DP, NB>(ck_cluster_at(merged + split * stride, split1 - 1), o, m, l, warp * (DP / W), warp == 0, lane, n_q);
        ck_cluster_arrive();
        if (split != split1 - 1) return;
        ck_cluster_wait();
        token_merge<DP, W, false>(g, tok, head0, n_q, split0, split1, inv_mul, factors, [&](int sp) { return merged + sp * stride; });
        return;
    }
    const int64_t place = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    float *parts = g.part + place * g.n_split * (16 * (DP + 2));
    part_write<DP, NB>(parts + (int64_t)split * stride, o, m, l, warp * (DP / W), warp == 0, lane, n_q);
    __syncthreads();
    if (threadIdx.x == 0) { /* the fence is of all that the block has written before the barrier */
        __threadfence();
        last = atomicInc(g.count + place, (unsigned)(split1 - split0 - 1)) == (unsigned)(split1 - split0 - 1);
        __threadfence();
    }
    __syncthreads();
    if (last) token_merge<DP, W, true>(g, tok, head0, n_q, split0, split1, inv_mul, factors, [&](int sp) { return parts + (int64_t)sp * stride; });
#endif
}

template <int DP, bool BF, int W, int BLOCKS> static int token_start(const struct ck_ctx *c, struct token_args t, int cluster, cudaStream_t st)
{
    using R = token_room<DP, BF, W>;
    struct attend_args *g = &t.g;
    int e = 0, n = g->a.n_small, room = ck_attend_room(c, g, DP, 1, n);
    if (room <= 0) return (int)cudaErrorInvalidValue;
    t.cluster = cluster > 1;
    const size_t merged = t.cluster ? (size_t)cluster * (size_t)R::stride(g->group < 16 ? g->group : 16) * sizeof(float) : 0;
    t.n_slot = DP <= 64 || (BLOCKS == 1 && R::bytes(8) + merged <= TOKEN_BYTES_MAX) ? 8 : 6;
    for (int i = 0; i < n && e == 0; i += room) {
        t.tok0 = i;
        int now = n - i < room ? n - i : room;
        e = ck_launch_cluster(c, token_kernel<DP, BF, W, BLOCKS>, dim3((unsigned)g->n_split, (unsigned)(g->a.n_head_kv * g->row_tiles), (unsigned)now),
                              (unsigned)cluster, W * 32, R::bytes(t.n_slot) + merged, st, t);
    }
    return e;
}

/* One block a multiprocessor where it has room for all, of as many warps as there is work for, and splits meet in a cluster's shared memory.
 * Of more blocks two should fit, and clusters would wait for room in one place: splits meet in memory. */
template <int DP, bool BF> static int token_launch(const struct ck_ctx *c, struct token_args t, cudaStream_t st)
{
    constexpr int MANY = DP <= 64 ? 8 : 16;
    struct attend_args *g = &t.g;
    int cluster = 1;
    while (cluster < g->n_split && cluster < CLUSTER_MAX) cluster *= 2;
    int64_t blocks = (int64_t)g->a.n_small * g->a.n_head_kv * ((g->group + 15) / 16);
    if (g->n_split <= CLUSTER_MAX && blocks * cluster <= c->n_sm) {
        g->n_split = cluster;
        return token_start<DP, BF, MANY, 1>(c, t, cluster, st);
    }
    return token_start<DP, BF, 8, 2>(c, t, 1, st);
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

/* Room for all blocks at once, and not too many splits for the one that merges them? */
static bool few(const struct ck_ctx *c, const struct ck_attend *a)
{
    int group = a->n_head / a->n_head_kv;
    int64_t blocks = (int64_t)a->n_small * a->n_head_kv * ((group + 15) / 16) * a->n_split;
    return blocks <= (int64_t)c->n_sm * (a->head_dim <= 64 ? 3 : 2) && (a->n_split <= CLUSTER_MAX || group > 8);
}

extern "C" int cs_rope_attend(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st)
{
    const bool single = fits(c, r, a);
    if (single && !few(c, a) && ck_attend_streams(a)) return ck_attend_stream(c, r, a, st);
    if (!single || !few(c, a)) {
        int e = cs_rope(c, r, st);
        return e != 0 ? e : ck_attend(c, a, st);
    }
    struct token_args t = { ck_attend_args(a), *r, 0, 8, 0 };
    if (a->kv_format == CK_KV_BF16) return a->head_dim <= 64 ? token_launch<64, true>(c, t, st) : token_launch<128, true>(c, t, st);
    return a->head_dim <= 64 ? token_launch<64, false>(c, t, st) : token_launch<128, false>(c, t, st);
}
