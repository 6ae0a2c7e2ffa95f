/* kernels_attend.cuh: what the tensor-core forms of attention share: fragments of queries and weights, masks, a tile of 64 keys
 * against 16 query rows, the merge of splits. A row goes through the same operations in each form, so the bits are equal:
 *   S = Q K^T with the query rows as the row operand, the keys of a tile in the order in which a lane reads 8 of them with one
 *   load (as k in kernels_dev.cuh), P = 2^(S - m) to 16 bits, O += P V. Per tile m1 = max(m, max S); al = 2^(m - m1) (0 at
 *   first); p = visible ? 2^(S - m1) : 0; l = fma(l, al, sum of p: a lane's 16 in order, then lanes by xor 1, 2); o = o * al, then
 *   o += P V in steps of 16 keys. Splits of 256 keys start from a fresh maximum and are merged left to right (docs/numerics.md,
 *   section 4). bf16 pages: q and P are two bf16 terms each.
 */
#ifndef OPS_CUDA_KERNELS_ATTEND_CUH
#define OPS_CUDA_KERNELS_ATTEND_CUH

#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/kernels_int.h"

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
    const int t = lane & 3;
    const float *q[2];
    bool in[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row0 + (lane >> 2) + r * 8, tok, head;
        in[r] = i < n_rows;
        row_place(g, u, kvh, in[r] ? i : 0, &tok, &head);
        q[r] = g.a.q + tok * g.a.ld_q + head * g.a.q_step;
    }
    const bool fours = (((uintptr_t)g.a.q | (uintptr_t)(g.a.ld_q * 4) | (uintptr_t)(g.a.q_step * 4) | (uintptr_t)(g.a.head_dim * 4)) & 15) == 0;
    for (int s = step0; s < DP / 16; s += step_by) {
        const int dim = s / 4 * 64 + 32 * ((s & 3) >> 1) + 8 * t + 4 * (s & 1); /* first of four: two of each half of the step */
        float4 v[2];
        uint32_t h[4], l[4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            v[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (!in[r] || dim >= g.a.head_dim) continue;
            if (fours) {
                v[r] = *(const float4 *)(q[r] + dim);
                continue;
            }
            v[r].x = q[r][dim];
            if (dim + 1 < g.a.head_dim) v[r].y = q[r][dim + 1];
            if (dim + 2 < g.a.head_dim) v[r].z = q[r][dim + 2];
            if (dim + 3 < g.a.head_dim) v[r].w = q[r][dim + 3];
        }
#pragma unroll
        for (int r = 0; r < 2; r++) { /* register 2 half + r */
            pair<BF>(v[r].x, v[r].y, h[r], l[r]);
            pair<BF>(v[r].z, v[r].w, h[2 + r], l[2 + r]);
        }
        qs[s * 32 + lane] = make_uint4(h[0], h[1], h[2], h[3]);
        if (BF) qs[DP * 2 + s * 32 + lane] = make_uint4(l[0], l[1], l[2], l[3]);
    }
}

/* Key of (block i of 8, column c) in a tile of 64. */
static __device__ __forceinline__ int key_of(int i, int c) { return 32 * (i >> 2) + 8 * (c >> 1) + 4 * ((i >> 1) & 1) + 2 * (i & 1) + (c & 1); }

/* s[NB][4] = Q K^T of the blocks of 8 keys from block0 on, whose loads are in flight together. */
template <int DP, bool BF, int NB> static __device__ __forceinline__ void s_blocks(float (*s)[4], const uint4 *qs, const uint16_t *k, int block0, int lane)
{
    const int c = lane >> 2, t = lane & 3;
    uint4 b[NB][DP / 32];
#pragma unroll
    for (int i = 0; i < NB; i++) {
        const uint4 *row = (const uint4 *)(k + key_of(block0 + i, c) * DP);
#pragma unroll
        for (int v = 0; v < DP / 32; v++) b[i][v] = row[(v * 4 + t) ^ ((c & 1) << 2)];
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][e] = 0;
    }
#pragma unroll
    for (int st = 0; st < DP / 16; st++) {
        uint4 ah = qs[st * 32 + lane], al = BF ? qs[DP * 2 + st * 32 + lane] : ah;
#pragma unroll
        for (int i = 0; i < NB; i++) {
            uint4 v = b[i][st >> 1];
            mma<BF>(s[i], ah, al, st & 1 ? v.z : v.x, st & 1 ? v.w : v.y);
        }
    }
}

/* s[8][4] = Q K^T of a page. */
template <int DP, bool BF> static __device__ __forceinline__ void s_tile(float s[8][4], const uint4 *qs, const uint16_t *k, int lane)
{
    constexpr int NB = DP <= 64 ? 8 : DP <= 128 ? 4 : DP <= 256 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < 8; i += NB) s_blocks<DP, BF, NB>(s + i, qs, k, i, lane);
}

static __device__ __forceinline__ float larger(float v, float most) { return v > most || v != v ? v : most; } /* a NaN stays */

/* Soft cap and mask; the largest visible of each of the two rows. key0: index of the tile's first key. */
static __device__ __forceinline__ void mask_tile(float s[8][4], float softcap, int key0, const int lo[2], const int hi[2], int lane, float most[2])
{
    most[0] = most[1] = -INFINITY;
    if (softcap != 0.0f) /* by itself: few models fetch this code */
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][e] = __fmul_rn(__fmul_rn(softcap, ck_tanh(__fdiv_rn(s[i][e], softcap))), 1.44269504088896341f);
    bool all = key0 >= lo[0] && key0 >= lo[1] && key0 + 64 <= hi[0] && key0 + 64 <= hi[1];
    if (__all_sync(~0u, all)) { /* nothing to hide */
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

/* The two rows' maxima m with a tile's `most`, which becomes al; o times al. */
template <int NB> static __device__ __forceinline__ void raise_maximum(float o[NB][4], float m[2], float most[2])
{
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
}

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

#define ATTEND_FACTORS 32 /* splits at a time */
/* merge, of up to 32 splits of a row in one go, by a warp: lane i has split i's m and l (none: -inf, 0) and gets its factors; M and L are all
 * lanes' and go on. Maxima are exact in any order; what is rounded goes left to right. */
static __device__ __forceinline__ float2 merge_factors(float &M, float &L, float m, float l, int n, int lane)
{
    const bool seen = l != 0.0f;
    float most = seen ? m : -INFINITY;
    for (int step = 1; step < 32; step *= 2) {
        const float o = __shfl_up_sync(~0u, most, step);
        if (lane >= step) most = fmaxf(most, o);
    }
    most = fmaxf(M, most);
    float before = __shfl_up_sync(~0u, most, 1);
    if (lane == 0) before = M;
    const float2 f = seen ? make_float2(step_down(before, most), ck_exp2(__fsub_rn(m, most))) : make_float2(1.0f, 0.0f);
    for (int i = 0; i < n; i += 8) /* lanes without a split change nothing */
#pragma unroll
        for (int s = i; s < i + 8; s++)
            L = __fmaf_rn(__shfl_sync(~0u, l, s), __shfl_sync(~0u, f.y, s), __fmul_rn(L, __shfl_sync(~0u, f.x, s)));
    M = __shfl_sync(~0u, most, 31);
    return f;
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
/* Two values side by side, dim even. inv: 1 / mul of the linear input. */
static __device__ __forceinline__ void store_two(const struct attend_args &g, int tok, int head, int dim, float v0, float v1, float inv)
{
    if (g.a.head_dim & 1) {
        store_out(g, tok, head, dim, v0);
        store_out(g, tok, head, dim + 1, v1);
        return;
    }
    if (dim >= g.a.head_dim) return;
    const int col = head * g.a.head_dim + dim;
    if (g.a.out) {
        g.a.out[tok * g.a.ld_out + col] = v0;
        g.a.out[tok * g.a.ld_out + col + 1] = v1;
    }
    if (g.write_x) *(uint32_t *)((__half *)g.x.v + ck_x_off(g.x.layout, g.x.k_pad, tok, col)) = pair_f16(__fmul_rn(v0, inv), __fmul_rn(v1, inv));
}
static __device__ __forceinline__ float store_factor(const struct attend_args &g) { return g.write_x ? __fdiv_rn(1.0f, g.x.mul) : 1.0f; }
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

/* A split of four tiles for 16 query rows by four warps: a warp takes the scores of a tile, then a quarter of the dims. k_of(w) and
 * v_of(w): halves of tile w in the order of the pages; between: called by all once nobody needs keys any more. Leaves this warp's
 * o[DP / 32][4] (zeros before), and of each of its two rows the maximum and the sum. */
template <bool BF> struct split_area {
    uint4 p[BF ? 2 : 1][4][4][32];
    float tile_max[4][16], tile_sum[4][16];
};
template <int DP, bool BF, typename K, typename V, typename BETWEEN>
static __device__ __forceinline__ void split_product(float (*o)[4], float m_last[2], float l[2], struct split_area<BF> &area, const uint4 *qs, float softcap,
                                                     int key0, const int lo[2], const int hi[2], int lo_min, int hi_max, K k_of, V v_of, BETWEEN between)
{
    constexpr int NB = DP / 32;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    auto active = [&](int w) { return key0 + w * 64 < hi_max && key0 + w * 64 + 64 > lo_min; };
    float s[8][4], most[2] = { -INFINITY, -INFINITY };
    if (active(warp)) {
        s_tile<DP, BF>(s, qs, k_of(warp), lane);
        mask_tile(s, softcap, key0 + warp * 64, lo, hi, lane, most);
    }
    if ((lane & 3) == 0)
#pragma unroll
        for (int r = 0; r < 2; r++) area.tile_max[warp][(lane >> 2) + 8 * r] = most[r];
    __syncthreads();
    between();
    float m[4][2]; /* running maximum behind each tile */
#pragma unroll
    for (int w = 0; w < 4; w++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v = area.tile_max[w][(lane >> 2) + 8 * r], before = w ? m[w ? w - 1 : 0][r] : -INFINITY;
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
            area.p[0][warp][kk][lane] = ph[kk];
            if (BF) area.p[BF ? 1 : 0][warp][kk][lane] = pl[kk];
        }
        if ((lane & 3) == 0)
#pragma unroll
            for (int r = 0; r < 2; r++) area.tile_sum[warp][(lane >> 2) + 8 * r] = sum[r];
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 4; w++) {
        if (!active(w)) continue;
        uint4 ph[4], pl[4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float al = step_down(w ? m[w ? w - 1 : 0][r] : -INFINITY, m[w][r]);
            l[r] = __fmaf_rn(l[r], al, area.tile_sum[w][(lane >> 2) + 8 * r]);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) o[n][2 * r + e] = __fmul_rn(o[n][2 * r + e], al);
        }
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            ph[kk] = area.p[0][w][kk][lane];
            pl[kk] = BF ? area.p[BF ? 1 : 0][w][kk][lane] : ph[kk];
        }
        pv_tile<NB, BF>(o, ph, pl, v_of(w), warp * (DP / 4), hi_max - (key0 + w * 64), lane);
    }
    m_last[0] = m[3][0];
    m_last[1] = m[3][1];
}

/* All splits of the tile's rows, left to right, and out: values first, first + by, ... of [16][DP / 4]. part(split, row, dim, &m, &l, &o)
 * gives what a split left; AHEAD splits are under way together. */
template <int DP, int AHEAD = 4, typename PART>
static __device__ __forceinline__ void merge_splits(const struct attend_args &g, const struct ck_attn_unit &u, int kvh, int row0, int n_rows, int split0,
                                                    int split1, int first, int by, PART part)
{
    const float factor = store_factor(g);
    for (int idx = first; idx < 16 * (DP / 4); idx += by) {
        int row = idx / (DP / 4), dim = idx % (DP / 4) * 4, i = row0 + row, tok, hd;
        if (i >= n_rows) break;
        float M = -INFINITY, L = 0, ea, eb, inv, O[4] = {};
        for (int sp0 = split0; sp0 < split1; sp0 += AHEAD) {
            float m[AHEAD], l[AHEAD];
            float4 v[AHEAD];
#pragma unroll
            for (int s = 0; s < AHEAD; s++)
                if (sp0 + s < split1) part(sp0 + s, row, dim, m[s], l[s], v[s]);
#pragma unroll
            for (int s = 0; s < AHEAD; s++) {
                if (sp0 + s >= split1) break;
                merge(M, L, m[s], l[s], ea, eb);
                O[0] = __fmaf_rn(v[s].x, eb, __fmul_rn(O[0], ea));
                O[1] = __fmaf_rn(v[s].y, eb, __fmul_rn(O[1], ea));
                O[2] = __fmaf_rn(v[s].z, eb, __fmul_rn(O[2], ea));
                O[3] = __fmaf_rn(v[s].w, eb, __fmul_rn(O[3], ea));
            }
        }
        row_place(g, u, kvh, i, &tok, &hd);
        finish(g, hd, M, L, &ea, &inv);
#pragma unroll
        for (int e = 0; e < 4; e += 2) store_two(g, tok, hd, dim + e, __fmul_rn(__fmul_rn(O[e], ea), inv), __fmul_rn(__fmul_rn(O[e + 1], ea), inv), factor);
        if (dim == 0) store_tail(g, tok, hd, 0, 1);
    }
}

/* A split's part to memory: o of the first n rows behind m and l; a warp has NB blocks of 8 dims from dim0 on. */
template <int DP, int NB>
static __device__ __forceinline__ void part_write(float *mine, const float (*o)[4], const float m[2], const float l[2], int dim0, bool sums, int lane, int n_rows = 16)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = (lane >> 2) + 8 * r;
        if (row >= n_rows) continue;
#pragma unroll
        for (int n = 0; n < NB; n++)
            *(float2 *)(mine + 32 + row * DP + dim0 + n * 8 + 2 * (lane & 3)) = make_float2(__fadd_rn(o[n][2 * r], 0.0f), __fadd_rn(o[n][2 * r + 1], 0.0f));
        if (sums && (lane & 3) == 0) {
            mine[row] = m[r];
            mine[16 + row] = l[r];
        }
    }
}

/* Rows of a warp's tile to their places: value(r, n, e) of row r, block n of 8 dims, column e, in the numbers of m and l. From dim0 the blocks
 * fill a tile of 64 dims, whole ones, or a part that crosses no 32. */
template <int NB, class Value>
static __device__ __forceinline__ void store_rows(const struct attend_args &g, const struct ck_attn_unit &u, int kvh, int row0, int n_rows,
                                                  const float m[2], const float l[2], int dim0, bool tail, int lane, Value value)
{
    const float factor = store_factor(g);
    /* Heads of whole tiles into the linear input alone, which is what most models want: from the first pair to the others by steps that
     * are the same for every head (kernels_dev.cuh: ck_x_off). */
    const bool steps = g.write_x && !g.a.out && g.a.head_dim % 64 == 0, tiles = g.x.layout == CK_X_TILES;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row0 + (lane >> 2) + 8 * r, tok, hd;
        if (i >= n_rows) continue;
        float ea, inv;
        row_place(g, u, kvh, i, &tok, &hd);
        finish(g, hd, m[r], l[r], &ea, &inv);
        if (steps) {
            __half *to = (__half *)g.x.v + ck_x_off(g.x.layout, g.x.k_pad, tok, hd * g.a.head_dim + dim0 + 2 * (lane & 3));
            const int by8 = tiles ? 2 : 8, by32 = tiles ? 4 * 128 * 8 : 32, by64 = tiles ? 64 * 128 : 64;
#pragma unroll
            for (int n = 0; n < NB; n++)
                *(uint32_t *)(to + (n & 3) * by8 + (n >> 2 & 1) * by32 + (n >> 3) * by64) =
                    pair_f16(__fmul_rn(__fmul_rn(__fmul_rn(value(r, n, 0), ea), inv), factor), __fmul_rn(__fmul_rn(__fmul_rn(value(r, n, 1), ea), inv), factor));
        } else
#pragma unroll
        for (int n = 0; n < NB; n++)
            store_two(g, tok, hd, dim0 + n * 8 + 2 * (lane & 3), __fmul_rn(__fmul_rn(value(r, n, 0), ea), inv), __fmul_rn(__fmul_rn(value(r, n, 1), ea), inv), factor);
        if (tail && !steps) store_tail(g, tok, hd, lane & 3, 4);
    }
}

/* The only split: values as the merge would make them. */
template <int NB>
static __device__ __forceinline__ void store_single(const struct attend_args &g, const struct ck_attn_unit &u, int kvh, int row0, int n_rows,
                                                    const float (*o)[4], const float m[2], const float l[2], int dim0, bool tail, int lane)
{
    store_rows<NB>(g, u, kvh, row0, n_rows, m, l, dim0, tail, lane, [&](int r, int n, int e) { return __fadd_rn(o[n][2 * r + e], 0.0f); });
}

/* One of several splits, through memory: the block that finishes last merges all. last: of the block, shared. */
template <int DP, int NB>
static __device__ __forceinline__ void merge_last(const struct attend_args &g, const struct ck_attn_unit &u, int kvh, int row0, int n_rows, int split,
                                                  int split0, int split1, const float (*o)[4], const float m[2], const float l[2], int warp,
                                                  int lane, int n_threads, int *last)
{
    const int64_t place = (int64_t)blockIdx.z * gridDim.y + blockIdx.y;
    float *parts = g.part + place * g.n_split * (16 * (DP + 2));
    part_write<DP, NB>(parts + (int64_t)split * (16 * (DP + 2)), o, m, l, warp * (DP / 4), warp == 0, lane);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *last = atomicInc(g.count + place, (unsigned)(split1 - split0 - 1)) == (unsigned)(split1 - split0 - 1);
    __syncthreads();
    if (!*last) return;
    __threadfence();
    merge_splits<DP>(g, u, kvh, row0, n_rows, split0, split1, (int)threadIdx.x, n_threads, [&](int sp, int row, int dim, float &mm, float &ll, float4 &v) {
        const float *p = parts + (int64_t)sp * (16 * (DP + 2));
        mm = __ldcg(p + row);
        ll = __ldcg(p + 16 + row);
        v = __ldcg((const float4 *)(p + 32 + row * DP + dim));
    });
}

#endif
