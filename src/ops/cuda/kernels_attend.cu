/* kernels_attend.cu: attention over pages with tensor cores.
 *
 * A tile of 16 query rows (tokens x query heads of one KV head) against 64 keys: S = Q K^T with the query rows as the row operand, the
 * keys of a tile in the order in which a lane reads 8 of them with one load (as k in kernels_dev.cuh), P = 2^(S - m) to 16 bits, O += P V.
 * Splits of 256 keys start from a fresh maximum and are merged left to right. Two kernels with the same operations a row:
 *   small  decode and drafts: a block takes one split of a tile, a warp a tile of keys, then a quarter of the dims; whoever finishes
 *          the last split merges all
 *   large  prefill: a warp takes 16 rows through all keys
 * bf16 pages: q and P are two bf16 terms each. f32 pages and heads of unusual width: plain_kernel, a key at a time.
 * Order: per tile m1 = max(m, max S); al = 2^(m - m1) (0 at first); p = visible ? 2^(S - m1) : 0; l = fma(l, al, sum of p: a lane's 16 in
 * order, then lanes by xor 1, 2); o = o * al, then o += P V in steps of 16 keys. Merge as docs/numerics.md section 4.
 */
#include "ops/cuda/kernels_dev.cuh"

extern "C" size_t ck_kv_head_bytes(int kv_format, int head_dim)
{
    size_t d = (size_t)(head_dim + 63) / 64 * 64;
    return 2 * 64 * d * (kv_format == CK_KV_F32 ? 4 : 2);
}
extern "C" int ck_attn_small_tokens(int n_head, int n_head_kv)
{
    int g = n_head / n_head_kv;
    return g >= 16 ? 1 : 16 / g;
}
extern "C" int ck_attn_large_tokens(int n_head, int n_head_kv)
{
    int g = n_head / n_head_kv;
    return g >= 64 ? 1 : 64 / g;
}
#define COUNTERS (1 << 16)                 /* blocks of a launch that may wait for splits of others */
#define PART_BYTES ((size_t)64 << 20)      /* more is used as well: fewer launches */
static size_t part_floats(int d_pad) { return 16 * ((size_t)d_pad + 2); } /* o [16][d_pad], m [16], l [16] */

extern "C" size_t ck_work_bytes(const struct ck_ctx *c, int m_max, int n_head, int d_max, int n_context)
{
    (void)c;
    (void)m_max;
    size_t d = (size_t)(d_max + 63) / 64 * 64, splits = (size_t)(n_context + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
    size_t unit = (size_t)n_head * splits * part_floats((int)d) * 4; /* one unit of one token, every head in a tile of its own */
    return COUNTERS * 4 + (unit > PART_BYTES ? unit : PART_BYTES);
}

static __device__ __forceinline__ float kv_at(const uint8_t *p, int fmt, int off)
{
    if (fmt == CK_KV_F32) return ((const float *)p)[off];
    if (fmt == CK_KV_F16) return __half2float(((const __half *)p)[off]);
    return __bfloat162float(((const __nv_bfloat16 *)p)[off]);
}
static __device__ __forceinline__ float warp_sum(float v)
{
    for (int i = 16; i; i >>= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, i));
    return v;
}

/* A warp per (token, head), a key at a time: splits from a fresh maximum, merged left to right. d <= 512. */
static __global__ void plain_kernel(const __grid_constant__ struct ck_attend a, struct ck_x x, int write_x, const struct ck_attn_unit *units)
{
    ck_pdl_launch();
    ck_pdl_wait();
    struct ck_attn_unit u = units[blockIdx.x];
    int lane = (int)threadIdx.x, h = (int)blockIdx.y, d = a.head_dim, d_pad = (d + 63) / 64 * 64, elem = a.kv_format == CK_KV_F32 ? 4 : 2;
    int64_t half = (int64_t)64 * d_pad * elem, head = a.head_off + (int64_t)(h / (a.n_head / a.n_head_kv)) * 2 * half;
    for (int tok = u.tok0; tok < u.tok0 + u.n_tok; tok++) {
        float q[16], o[16], O[16], M = -INFINITY, L = 0, m = -INFINITY, l = 0;
        for (int i = 0; i < 16; i++) {
            q[i] = lane + 32 * i < d ? a.q[tok * a.ld_q + h * a.q_step + lane + 32 * i] : 0.0f;
            o[i] = O[i] = 0;
        }
        for (int key = a.lo[tok]; key <= a.hi[tok]; key++) {
            bool end = key == a.hi[tok];
            if ((end || key % CK_ATTN_SPLIT == 0) && l != 0.0f) {
                float N = fmaxf(M, m), ea = ck_exp2(__fsub_rn(M, N)), eb = ck_exp2(__fsub_rn(m, N));
                L = __fmaf_rn(l, eb, __fmul_rn(L, ea));
                for (int i = 0; i < 16; i++) { O[i] = __fmaf_rn(o[i], eb, __fmul_rn(O[i], ea)); o[i] = 0; }
                M = N; m = -INFINITY; l = 0;
            }
            if (end) break;
            const uint8_t *k = (const uint8_t *)a.pool + (int64_t)a.pages[u.i_table * a.ld_pages + key / 64] * 4096 + head;
            float s = 0;
            for (int i = 0; i < 16; i++) if (lane + 32 * i < d) s = __fmaf_rn(q[i], kv_at(k, a.kv_format, ck_k_off(key & 63, lane + 32 * i, d_pad, elem)), s);
            s = warp_sum(s);
            if (a.softcap != 0.0f) s = __fmul_rn(__fmul_rn(a.softcap, ck_tanh(__fdiv_rn(s, a.softcap))), 1.44269504088896341f);
            float m1 = fmaxf(m, s), al = ck_exp2(__fsub_rn(m, m1)), p = ck_exp2(__fsub_rn(s, m1));
            m = m1;
            l = __fmaf_rn(l, al, p);
            for (int i = 0; i < 16; i++) if (lane + 32 * i < d)
                o[i] = __fmaf_rn(p, kv_at(k + half, a.kv_format, ck_v_off(key & 63, lane + 32 * i, elem)), __fmul_rn(o[i], al));
        }
        if (a.sinks) {
            float N = fmaxf(M, a.sinks[h]), ea = ck_exp2(__fsub_rn(M, N)), eb = ck_exp2(__fsub_rn(a.sinks[h], N));
            L = __fmaf_rn(1.0f, eb, __fmul_rn(L, ea));
            for (int i = 0; i < 16; i++) O[i] = __fmul_rn(O[i], ea);
        }
        float inv = L == 0.0f ? 0.0f : __fdiv_rn(1.0f, L);
        for (int i = 0; i < 16; i++) {
            int c = lane + 32 * i;
            if (c >= d) break;
            float v = __fmul_rn(O[i], inv);
            if (a.out) a.out[tok * a.ld_out + h * d + c] = v;
            if (write_x) ((__half *)x.v)[ck_x_off(x.layout, x.k_pad, tok, h * d + c)] = __float2half_rn(__fmul_rn(v, 1.0f / x.mul));
        }
        if (write_x && h == a.n_head - 1)
            for (int64_t c = x.k + lane; c < x.k_pad; c += 32) ((__half *)x.v)[ck_x_off(x.layout, x.k_pad, tok, (int)c)] = __float2half_rn(0.0f);
    }
}

/* --- tensor-core kernels --- */

struct attend_args {
    struct ck_attend a;
    struct ck_x x;
    int write_x, group, row_tiles, n_split;
    const struct ck_attn_unit *units;
    float *part;
    unsigned *count;
};

static __device__ __forceinline__ uint32_t pair_f16(float a, float b) { return ck_h2u(__floats2half2_rn(a, b)); }
static __device__ __forceinline__ uint32_t pair_bf16(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&v);
}
/* Two values as the A operand: f16, or bf16 and what is left in a second register. */
template <bool BF> static __device__ __forceinline__ void pair(float a, float b, uint32_t &hi, uint32_t &lo)
{
    if (!BF) {
        hi = pair_f16(a, b);
        lo = 0;
        return;
    }
    hi = pair_bf16(a, b);
    lo = pair_bf16(__fsub_rn(a, __uint_as_float(hi << 16)), __fsub_rn(b, __uint_as_float(hi & 0xffff0000u)));
}
template <bool BF> static __device__ __forceinline__ void mma(float d[4], const uint4 &ah, const uint4 &al, uint32_t b0, uint32_t b1)
{
    uint32_t h[4] = { ah.x, ah.y, ah.z, ah.w };
    if (!BF) {
        ck_mma_f16(d, h, b0, b1);
        return;
    }
    uint32_t l[4] = { al.x, al.y, al.z, al.w };
    ck_mma_bf16(d, h, b0, b1);
    ck_mma_bf16(d, l, b0, b1);
}

/* Query row i of a unit: token of the batch and head. */
static __device__ __forceinline__ void row_place(const struct attend_args &g, const struct ck_attn_unit &u, int kvh, int i, int *tok, int *head)
{
    *tok = u.tok0 + i / g.group;
    *head = kvh * g.group + i % g.group;
}

/* Fragments of 16 query rows from row0 on, k step by k step: [DP / 16][32] 16 bytes (bf16: then as many again). n_rows: of the unit. */
template <int DP, bool BF>
static __device__ __forceinline__ void q_frags(uint4 *qs, const struct attend_args &g, const struct ck_attn_unit &u, int kvh, int row0, int n_rows,
                                               int lane, int step0, int step_by)
{
    int t = lane & 3;
    for (int s = step0; s < DP / 16; s += step_by) {
        uint32_t h[4], l[4];
#pragma unroll
        for (int p = 0; p < 4; p++) { /* p = 2 h + row half */
            int i = row0 + (lane >> 2) + (p & 1) * 8, dim = s / 4 * 64 + 32 * ((s & 3) >> 1) + 8 * t + 4 * (s & 1) + 2 * (p >> 1), tok, head;
            float a = 0, b = 0;
            if (i < n_rows) {
                row_place(g, u, kvh, i, &tok, &head);
                const float *q = g.a.q + tok * g.a.ld_q + head * g.a.q_step + dim;
                if (dim < g.a.head_dim) a = q[0];
                if (dim + 1 < g.a.head_dim) b = q[1];
            }
            pair<BF>(a, b, h[p], l[p]);
        }
        qs[s * 32 + lane] = make_uint4(h[0], h[1], h[2], h[3]);
        if (BF) qs[DP * 2 + s * 32 + lane] = make_uint4(l[0], l[1], l[2], l[3]);
    }
}

/* Key of (block i of 8, column c) in a tile of 64. */
static __device__ __forceinline__ int key_of(int i, int c) { return 32 * (i >> 2) + 8 * (c >> 1) + 4 * ((i >> 1) & 1) + 2 * (i & 1) + (c & 1); }

/* s[8][4] = Q K^T of a page. */
template <int DP, bool BF> static __device__ __forceinline__ void s_tile(float s[8][4], const uint4 *qs, const uint16_t *k, int lane)
{
    constexpr int NB = DP <= 64 ? 8 : DP <= 128 ? 4 : DP <= 256 ? 2 : 1; /* blocks of keys whose loads are in flight together */
    int c = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i0 = 0; i0 < 8; i0 += NB) {
        uint4 b[NB][DP / 32];
#pragma unroll
        for (int i = 0; i < NB; i++) {
            const uint4 *row = (const uint4 *)(k + key_of(i0 + i, c) * DP);
#pragma unroll
            for (int v = 0; v < DP / 32; v++) b[i][v] = row[(v * 4 + t) ^ ((c & 1) << 2)];
        }
#pragma unroll
        for (int i = 0; i < NB; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i0 + i][e] = 0;
#pragma unroll
        for (int st = 0; st < DP / 16; st++) {
            uint4 ah = qs[st * 32 + lane], al = BF ? qs[DP * 2 + st * 32 + lane] : ah;
#pragma unroll
            for (int i = 0; i < NB; i++) {
                uint4 v = b[i][st >> 1];
                mma<BF>(s[i0 + i], ah, al, st & 1 ? v.z : v.x, st & 1 ? v.w : v.y);
            }
        }
    }
}

/* Soft cap and mask; the largest visible of each of the two rows. key0: index of the tile's first key. */
static __device__ __forceinline__ void mask_tile(float s[8][4], float softcap, int key0, const int lo[2], const int hi[2], int lane, float most[2])
{
    most[0] = most[1] = -INFINITY;
    bool all = key0 >= lo[0] && key0 >= lo[1] && key0 + 64 <= hi[0] && key0 + 64 <= hi[1];
    if (__all_sync(~0u, all) && softcap == 0.0f) { /* nothing to hide */
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) most[e >> 1] = s[i][e] > most[e >> 1] || s[i][e] != s[i][e] ? s[i][e] : most[e >> 1];
    } else {
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = key0 + key_of(i, 2 * (lane & 3) + (e & 1)), r = e >> 1;
            float v = s[i][e];
            if (softcap != 0.0f) v = __fmul_rn(__fmul_rn(softcap, ck_tanh(__fdiv_rn(v, softcap))), 1.44269504088896341f);
            v = key >= lo[r] && key < hi[r] ? v : -INFINITY;
            s[i][e] = v;
            most[r] = v > most[r] || v != v ? v : most[r]; /* a NaN stays */
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int x = 1; x <= 2; x <<= 1) {
            float o = __shfl_xor_sync(~0u, most[r], x);
            most[r] = o > most[r] || o != o ? o : most[r];
        }
}

/* s -> p as A fragments of four steps of 16 keys; sums of the two rows. */
template <bool BF> static __device__ __forceinline__ void p_tile(float s[8][4], const float m[2], uint4 ph[4], uint4 pl[4], float sum[2])
{
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v = s[i][e];
            s[i][e] = v == -INFINITY ? 0.0f : ck_exp2(__fsub_rn(v, m[e >> 1]));
            sum[e >> 1] = __fadd_rn(sum[e >> 1], s[i][e]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int x = 1; x <= 2; x <<= 1) sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], x));
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        pair<BF>(s[2 * kk][0], s[2 * kk][1], ph[kk].x, pl[kk].x);
        pair<BF>(s[2 * kk][2], s[2 * kk][3], ph[kk].y, pl[kk].y);
        pair<BF>(s[2 * kk + 1][0], s[2 * kk + 1][1], ph[kk].z, pl[kk].z);
        pair<BF>(s[2 * kk + 1][2], s[2 * kk + 1][3], ph[kk].w, pl[kk].w);
    }
}

/* Keys from `valid` on in 8 keys from k0 on become zeros: nobody has written them. */
static __device__ __forceinline__ uint4 cut_keys(uint4 v, int k0, int valid)
{
    uint32_t *w = &v.x;
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] &= (k0 + 2 * i < valid ? 0xffffu : 0u) | (k0 + 2 * i + 1 < valid ? 0xffff0000u : 0u);
    return v;
}

/* o[NB][4] += P V for dims [dim0, dim0 + 8 NB); v: the page's V; valid: written keys of the tile. */
template <int NB, bool BF>
static __device__ __forceinline__ void pv_tile(float (*o)[4], const uint4 ph[4], const uint4 pl[4], const uint16_t *v, int dim0, int valid, int lane)
{
    constexpr int STEP = NB < 4 ? NB : 4;
    int t = lane & 3;
#pragma unroll
    for (int n0 = 0; n0 < NB; n0 += STEP) {
        uint4 b[STEP][2];
#pragma unroll
        for (int n = 0; n < STEP; n++) {
            int dim = dim0 + (n0 + n) * 8 + (lane >> 2);
            const uint4 *row = (const uint4 *)(v + dim * 64);
#pragma unroll
            for (int p = 0; p < 2; p++) b[n][p] = row[(4 * p + t) ^ ((dim & 1) << 2)];
        }
        if (valid < 64)
#pragma unroll
            for (int n = 0; n < STEP; n++)
#pragma unroll
                for (int p = 0; p < 2; p++) b[n][p] = cut_keys(b[n][p], 32 * p + 8 * t, valid);
#pragma unroll
        for (int kk = 0; kk < 4; kk++)
#pragma unroll
            for (int n = 0; n < STEP; n++) {
                uint4 w = b[n][kk >> 1];
                mma<BF>(o[n0 + n], ph[kk], pl[kk], kk & 1 ? w.z : w.x, kk & 1 ? w.w : w.y);
            }
    }
}

/* 2^(m0 - m1), 0 when there was nothing before. */
static __device__ __forceinline__ float step_down(float m0, float m1) { return m0 == -INFINITY ? 0.0f : ck_exp2(__fsub_rn(m0, m1)); }

/* One more split into (M, L); factors for O and o. A split without a visible key gives (1, 0). */
static __device__ __forceinline__ void merge(float &M, float &L, float m, float l, float &ea, float &eb)
{
    ea = 1.0f;
    eb = 0.0f;
    if (l == 0.0f) return;
    float N = fmaxf(M, m);
    ea = step_down(M, N);
    eb = ck_exp2(__fsub_rn(m, N));
    M = N;
    L = __fmaf_rn(l, eb, __fmul_rn(L, ea));
}

/* Factor of O behind the last split: the sink, then 1 / L. */
static __device__ __forceinline__ void finish(const struct attend_args &g, int head, float M, float L, float *ea, float *inv)
{
    float eb;
    *ea = 1.0f;
    if (g.a.sinks) merge(M, L, g.a.sinks[head], 1.0f, *ea, eb);
    *inv = L == 0.0f ? 0.0f : __fdiv_rn(1.0f, L);
}

static __device__ __forceinline__ void store_out(const struct attend_args &g, int tok, int head, int dim, float v)
{
    if (dim >= g.a.head_dim) return;
    int col = head * g.a.head_dim + dim;
    if (g.a.out) g.a.out[tok * g.a.ld_out + col] = v;
    if (g.write_x) ((__half *)g.x.v)[ck_x_off(g.x.layout, g.x.k_pad, tok, col)] = __float2half_rn(__fmul_rn(v, __fdiv_rn(1.0f, g.x.mul)));
}
/* The linear input's tail, by whoever has the last head's dims. */
static __device__ __forceinline__ void store_tail(const struct attend_args &g, int tok, int head, int i, int by)
{
    if (!g.write_x || head != g.a.n_head - 1) return;
    for (int c = (int)g.x.k + i; c < g.x.k_pad; c += by) ((__half *)g.x.v)[ck_x_off(g.x.layout, g.x.k_pad, tok, c)] = __float2half_rn(0.0f);
}

/* Visible range of row i (nothing beyond n_rows), and of all rows of a warp's tile. */
static __device__ __forceinline__ void ranges(const struct attend_args &g, const struct ck_attn_unit &u, int row0, int n_rows, int lane, int lo[2], int hi[2],
                                              int *lo_min, int *hi_max)
{
    *lo_min = INT32_MAX;
    *hi_max = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row0 + (lane >> 2) + 8 * r, tok = u.tok0 + i / g.group;
        lo[r] = i < n_rows ? g.a.lo[tok] : 0;
        hi[r] = i < n_rows ? g.a.hi[tok] : 0;
        if (i < n_rows) {
            *lo_min = min(*lo_min, lo[r]);
            *hi_max = max(*hi_max, hi[r]);
        }
    }
    for (int x = 4; x <= 16; x <<= 1) {
        *lo_min = min(*lo_min, __shfl_xor_sync(~0u, *lo_min, x));
        *hi_max = max(*hi_max, __shfl_xor_sync(~0u, *hi_max, x));
    }
}

template <int DP, bool BF> static __global__ void __launch_bounds__(128) small_kernel(const __grid_constant__ struct attend_args g)
{
    constexpr int NB = DP / 32; /* blocks of 8 dims of a warp */
    __shared__ uint4 qs[(BF ? 2 : 1) * DP * 2];
    __shared__ uint4 ps[BF ? 2 : 1][4][4][32];
    __shared__ float tile_max[4][16], tile_sum[4][16];
    __shared__ int last;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, split = (int)blockIdx.x;
    const int kvh = (int)blockIdx.y / g.row_tiles, row0 = (int)blockIdx.y % g.row_tiles * 16;
    ck_pdl_launch();
    ck_pdl_wait();
    const struct ck_attn_unit u = g.units[blockIdx.z];
    const int n_rows = u.n_tok * g.group;
    if (row0 >= n_rows) return;
    int lo[2], hi[2], lo_min, hi_max;
    ranges(g, u, row0, n_rows, lane, lo, hi, &lo_min, &hi_max);
    const int split0 = lo_min / CK_ATTN_SPLIT, split1 = (hi_max + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
    if (split < split0 || split >= split1) return;

    const int key0 = split * CK_ATTN_SPLIT;
    const int64_t head = g.a.head_off + (int64_t)kvh * 2 * 64 * DP * 2;
    auto page = [&](int w) {
        return (const uint16_t *)((const uint8_t *)g.a.pool + (int64_t)g.a.pages[u.i_table * g.a.ld_pages + (key0 >> 6) + w] * 4096 + head);
    };
    auto active = [&](int w) { return key0 + w * 64 < hi_max && key0 + w * 64 + 64 > lo_min; };
    q_frags<DP, BF>(qs, g, u, kvh, row0, n_rows, lane, warp, 4);
    __syncthreads();
    float s[8][4], most[2] = { -INFINITY, -INFINITY };
    if (active(warp)) {
        s_tile<DP, BF>(s, qs, page(warp), lane);
        mask_tile(s, g.a.softcap, key0 + warp * 64, lo, hi, lane, most);
    }
    if ((lane & 3) == 0)
#pragma unroll
        for (int r = 0; r < 2; r++) tile_max[warp][(lane >> 2) + 8 * r] = most[r];
    __syncthreads();
    float m[4][2]; /* running maximum behind each tile */
#pragma unroll
    for (int w = 0; w < 4; w++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v = tile_max[w][(lane >> 2) + 8 * r], before = w ? m[w ? w - 1 : 0][r] : -INFINITY;
            m[w][r] = v > before || v != v ? v : before;
        }
    if (active(warp)) {
        float sum[2], mine[2];
        uint4 ph[4], pl[4];
#pragma unroll
        for (int r = 0; r < 2; r++) mine[r] = warp == 0 ? m[0][r] : warp == 1 ? m[1][r] : warp == 2 ? m[2][r] : m[3][r];
        p_tile<BF>(s, mine, ph, pl, sum);
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            ps[0][warp][kk][lane] = ph[kk];
            if (BF) ps[BF ? 1 : 0][warp][kk][lane] = pl[kk];
        }
        if ((lane & 3) == 0)
#pragma unroll
            for (int r = 0; r < 2; r++) tile_sum[warp][(lane >> 2) + 8 * r] = sum[r];
    }
    __syncthreads();
    float o[NB][4] = {}, l[2] = { 0, 0 };
#pragma unroll
    for (int w = 0; w < 4; w++) {
        if (!active(w)) continue;
        uint4 ph[4], pl[4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float al = step_down(w ? m[w ? w - 1 : 0][r] : -INFINITY, m[w][r]);
            l[r] = __fmaf_rn(l[r], al, tile_sum[w][(lane >> 2) + 8 * r]);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) o[n][2 * r + e] = __fmul_rn(o[n][2 * r + e], al);
        }
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            ph[kk] = ps[0][w][kk][lane];
            pl[kk] = BF ? ps[BF ? 1 : 0][w][kk][lane] : ph[kk];
        }
        pv_tile<NB, BF>(o, ph, pl, page(w) + 64 * DP, warp * (DP / 4), hi_max - (key0 + w * 64), lane);
    }
    if (split1 - split0 == 1) { /* the only split: no merge */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = row0 + (lane >> 2) + 8 * r, tok, hd;
            if (i >= n_rows) continue;
            float ea, inv;
            row_place(g, u, kvh, i, &tok, &hd);
            finish(g, hd, m[3][r], l[r], &ea, &inv);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float v = __fmul_rn(__fadd_rn(o[n][2 * r + e], 0.0f), ea);
                    store_out(g, tok, hd, warp * (DP / 4) + n * 8 + 2 * (lane & 3) + e, __fmul_rn(v, inv));
                }
            if (warp == 3) store_tail(g, tok, hd, lane & 3, 4);
        }
        return;
    }
    const int64_t place = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    float *parts = g.part + place * g.n_split * (16 * (DP + 2)), *mine = parts + (int64_t)split * (16 * (DP + 2));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = (lane >> 2) + 8 * r;
#pragma unroll
        for (int n = 0; n < NB; n++)
            *(float2 *)(mine + 32 + row * DP + warp * (DP / 4) + n * 8 + 2 * (lane & 3)) =
                make_float2(__fadd_rn(o[n][2 * r], 0.0f), __fadd_rn(o[n][2 * r + 1], 0.0f));
        if (warp == 0 && (lane & 3) == 0) {
            mine[row] = m[3][r];
            mine[16 + row] = l[r];
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(g.count + place, (unsigned)(split1 - split0 - 1)) == (unsigned)(split1 - split0 - 1);
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int idx = (int)threadIdx.x; idx < 16 * (DP / 4); idx += 128) {
        int row = idx / (DP / 4), dim = idx % (DP / 4) * 4, i = row0 + row, tok, hd;
        if (i >= n_rows) break;
        float M = -INFINITY, L = 0, ea, eb, inv, O[4] = {};
        for (int sp = split0; sp < split1; sp++) {
            const float *p = parts + (int64_t)sp * (16 * (DP + 2));
            float mm = __ldcg(p + row), ll = __ldcg(p + 16 + row);
            float4 v = __ldcg((const float4 *)(p + 32 + row * DP + dim));
            merge(M, L, mm, ll, ea, eb);
            O[0] = __fmaf_rn(v.x, eb, __fmul_rn(O[0], ea));
            O[1] = __fmaf_rn(v.y, eb, __fmul_rn(O[1], ea));
            O[2] = __fmaf_rn(v.z, eb, __fmul_rn(O[2], ea));
            O[3] = __fmaf_rn(v.w, eb, __fmul_rn(O[3], ea));
        }
        row_place(g, u, kvh, i, &tok, &hd);
        finish(g, hd, M, L, &ea, &inv);
#pragma unroll
        for (int e = 0; e < 4; e++) store_out(g, tok, hd, dim + e, __fmul_rn(__fmul_rn(O[e], ea), inv));
        if (dim == 0) store_tail(g, tok, hd, 0, 1);
    }
}

/* A block: 64 rows of a unit, a warp 16 of them. Sums over splits lie in shared memory, each read by its writer alone. */
template <int DP, bool BF> static __global__ void __launch_bounds__(128) large_kernel(const __grid_constant__ struct attend_args g)
{
    constexpr int NB = DP / 8;
    extern __shared__ __align__(16) uint8_t smem[];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, kvh = (int)blockIdx.y;
    uint4 *qs = (uint4 *)smem + warp * (BF ? 2 : 1) * DP * 2;
    float *total = (float *)(smem + 4 * (BF ? 2 : 1) * DP * 32) + threadIdx.x; /* [NB * 4][128] */
    ck_pdl_launch();
    ck_pdl_wait();
    const struct ck_attn_unit u = g.units[gridDim.x - 1 - blockIdx.x]; /* the longest come last in a prompt: they start first */
    const int n_rows = u.n_tok * g.group;
    for (int row0 = warp * 16; row0 < n_rows; row0 += 64) {
        int lo[2], hi[2], lo_min, hi_max;
        ranges(g, u, row0, n_rows, lane, lo, hi, &lo_min, &hi_max);
        __syncwarp();
        q_frags<DP, BF>(qs, g, u, kvh, row0, n_rows, lane, 0, 1);
        __syncwarp();
        const int64_t head = g.a.head_off + (int64_t)kvh * 2 * 64 * DP * 2;
        float M[2] = { -INFINITY, -INFINITY }, L[2] = { 0, 0 };
        bool first = true;
        for (int split = lo_min / CK_ATTN_SPLIT; split * CK_ATTN_SPLIT < hi_max; split++) {
            float o[NB][4] = {}, l[2] = { 0, 0 }, m[2] = { -INFINITY, -INFINITY };
            for (int w = 0; w < CK_ATTN_SPLIT / 64; w++) {
                int key0 = split * CK_ATTN_SPLIT + w * 64;
                if (key0 >= hi_max || key0 + 64 <= lo_min) continue;
                const uint16_t *page = (const uint16_t *)((const uint8_t *)g.a.pool + (int64_t)g.a.pages[u.i_table * g.a.ld_pages + (key0 >> 6)] * 4096 + head);
                float s[8][4], most[2], sum[2];
                uint4 ph[4], pl[4];
                s_tile<DP, BF>(s, qs, page, lane);
                mask_tile(s, g.a.softcap, key0, lo, hi, lane, most);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float m1 = most[r] > m[r] || most[r] != most[r] ? most[r] : m[r], al = step_down(m[r], m1);
                    m[r] = m1;
                    most[r] = al;
                }
                if (__any_sync(~0u, most[0] != 1.0f || most[1] != 1.0f)) /* times 1 changes no bit */
#pragma unroll
                    for (int n = 0; n < NB; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) o[n][e] = __fmul_rn(o[n][e], most[e >> 1]);
                p_tile<BF>(s, m, ph, pl, sum);
#pragma unroll
                for (int r = 0; r < 2; r++) l[r] = __fmaf_rn(l[r], most[r], sum[r]);
                pv_tile<NB, BF>(o, ph, pl, page + 64 * DP, 0, hi_max - key0, lane);
            }
            float ea[2], eb[2];
#pragma unroll
            for (int r = 0; r < 2; r++) merge(M[r], L[r], m[r], l[r], ea[r], eb[r]);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float v = __fadd_rn(o[n][e], 0.0f), before = first ? 0.0f : total[(n * 4 + e) * 128];
                    total[(n * 4 + e) * 128] = __fmaf_rn(v, eb[e >> 1], __fmul_rn(before, ea[e >> 1]));
                }
            first = false;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = row0 + (lane >> 2) + 8 * r, tok, hd;
            if (i >= n_rows) continue;
            float ea, inv;
            row_place(g, u, kvh, i, &tok, &hd);
            finish(g, hd, M[r], L[r], &ea, &inv);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    store_out(g, tok, hd, n * 8 + 2 * (lane & 3) + e, __fmul_rn(__fmul_rn(first ? 0.0f : total[(n * 4 + 2 * r + e) * 128], ea), inv));
            store_tail(g, tok, hd, lane & 3, 4);
        }
    }
}

/* --- launch --- */

template <int DP, bool BF> static int small_launch(const struct ck_ctx *c, struct attend_args g, const struct ck_attn_unit *units, int n, int max_tok, cudaStream_t st)
{
    g.row_tiles = (max_tok * g.group + 15) / 16;
    g.count = (unsigned *)c->work;
    g.part = (float *)((uint8_t *)c->work + COUNTERS * 4);
    size_t per_unit = (size_t)g.a.n_head_kv * (size_t)g.row_tiles * (size_t)g.n_split * part_floats(DP) * 4;
    int64_t room = c->work_bytes > COUNTERS * 4 ? (int64_t)((c->work_bytes - COUNTERS * 4) / per_unit) : 0;
    int64_t counters = COUNTERS / (g.a.n_head_kv * g.row_tiles);
    if (g.n_split == 1) room = n;
    if (room > counters) room = counters;
    if (room > 65535) room = 65535;
    if (room <= 0) return (int)cudaErrorInvalidValue;
    for (int i = 0; i < n; i += (int)room) {
        g.units = units + i;
        int now = n - i < room ? n - i : (int)room;
        int e = ck_launch(c, small_kernel<DP, BF>, dim3((unsigned)g.n_split, (unsigned)(g.a.n_head_kv * g.row_tiles), (unsigned)now), 128, 0, st, g);
        if (e) return e;
    }
    return 0;
}
template <int DP, bool BF> static int large_launch(const struct ck_ctx *c, struct attend_args g, cudaStream_t st)
{
    g.units = g.a.large_units;
    return ck_launch(c, large_kernel<DP, BF>, dim3((unsigned)g.a.n_large, (unsigned)g.a.n_head_kv), 128,
                     (size_t)(4 * (BF ? 2 : 1) * DP * 32 + DP * 64 * 4), st, g);
}
template <int DP, bool BF> static int both(const struct ck_ctx *c, const struct attend_args &g, cudaStream_t st)
{
    int e = 0;
    if (g.a.n_small > 0) e = small_launch<DP, BF>(c, g, g.a.small_units, g.a.n_small, ck_attn_small_tokens(g.a.n_head, g.a.n_head_kv), st);
    if (e || g.a.n_large <= 0) return e;
    if constexpr (DP <= 256) return large_launch<DP, BF>(c, g, st);
    return small_launch<DP, BF>(c, g, g.a.large_units, g.a.n_large, ck_attn_large_tokens(g.a.n_head, g.a.n_head_kv), st);
}
/* bf16 pages are for families with heads of 64 or 128. */
static bool has_tensor_kernel(int kv_format, int d_pad)
{
    return kv_format == CK_KV_BF16 ? d_pad == 64 || d_pad == 128 : kv_format == CK_KV_F16 && (d_pad & (d_pad - 1)) == 0;
}
static int by_width(const struct ck_ctx *c, const struct attend_args &g, int d_pad, cudaStream_t st)
{
    if (g.a.kv_format == CK_KV_BF16) return d_pad == 64 ? both<64, true>(c, g, st) : both<128, true>(c, g, st);
    return d_pad == 64    ? both<64, false>(c, g, st)
           : d_pad == 128 ? both<128, false>(c, g, st)
           : d_pad == 256 ? both<256, false>(c, g, st)
                          : both<512, false>(c, g, st);
}

extern "C" int ck_attend(const struct ck_ctx *c, const struct ck_attend *a, cudaStream_t st)
{
    struct ck_x none = {};
    int e = 0;
    if (a->head_dim > 512 || a->n_head % a->n_head_kv != 0 || (a->x && a->x->k != (int64_t)a->n_head * a->head_dim)) return (int)cudaErrorInvalidValue;
    int d_pad = (a->head_dim + 63) / 64 * 64;
    if (has_tensor_kernel(a->kv_format, d_pad)) {
        struct attend_args g = {};
        g.a = *a;
        if (a->x) g.x = *a->x;
        g.write_x = a->x != NULL;
        g.group = a->n_head / a->n_head_kv;
        g.n_split = a->n_split > 0 ? a->n_split : 1;
        return by_width(c, g, d_pad, st);
    }
    if (a->n_small > 0)
        e = ck_launch(c, plain_kernel, dim3((unsigned)a->n_small, (unsigned)a->n_head), 32, 0, st, *a, a->x ? *a->x : none, a->x != NULL, a->small_units);
    if (!e && a->n_large > 0)
        e = ck_launch(c, plain_kernel, dim3((unsigned)a->n_large, (unsigned)a->n_head), 32, 0, st, *a, a->x ? *a->x : none, a->x != NULL, a->large_units);
    return e;
}
