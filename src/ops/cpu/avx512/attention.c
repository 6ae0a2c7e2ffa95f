/* attention.c (avx512): attention of the rows of one unit against one split.
 *
 * One micro-kernel does both products: C[R][64] = C * al + sum over k of A[k][r] * B[k][64], R = 1..6 rows by 4 zmm, with
 * B rows of 64 values converted on the fly (bf16: one load gives values 0..15 in the low and 16..31 in the high halves
 * of its dwords). Per tile: scores of all row blocks; then the maximum, al, p and the lane sums of all rows (16 lanes: one
 * register); then the outputs. Rows of a block share the keys that all of them see; ragged keys before and after go row
 * by row, so the chain of each output stays in key order and a masked key is never multiplied.
 * Scratch, rows padded to 16: q packed by block, o, scores, lanes, m, dm, al.
 */
#include <math.h>

#include "ops/cpu/avx512/avx512_int.h"

#define R_MAX 6
#define V16(c) _mm512_set1_ps(c)

/* --- the functions of ops/mathfn.h that a tile needs, on 16 lanes --- */

FORCED __m512 rint_v(__m512 v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* E: the product with 2^n never leaves the normal numbers, so vscalefps gives the same bits. */
FORCED __m512 exp2_neg_v(__m512 t)
{
    __m512 n = rint_v(t), r = _mm512_sub_ps(t, n), p = V16(0x1.41fbbcp-13f);
    p = _mm512_fmadd_ps(p, r, V16(0x1.5f3e52p-10f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.3b2d4cp-7f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.c6aee8p-5f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.ebfbdcp-3f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.62e430p-1f));
    p = _mm512_fmadd_ps(p, r, V16(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t, V16(-126.0f), _CMP_NLT_UQ), p, n);
}

FORCED __m512 pow2i_v(__m512i n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

FORCED __m512 exp_v(__m512 x)
{
    __m512 n = rint_v(_mm512_mul_ps(x, V16(0x1.715476p+0f)));
    __m512 r = _mm512_fmadd_ps(n, V16(-0x1.62e400p-1f), x), p = V16(0x1.6db41ap-10f);
    r = _mm512_fmadd_ps(n, V16(-0x1.7f7d1cp-20f), r);
    p = _mm512_fmadd_ps(p, r, V16(0x1.123b52p-7f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.55545ep-5f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.55548ep-3f));
    p = _mm512_fmadd_ps(p, r, V16(0.5f));
    p = _mm512_fmadd_ps(p, r, V16(1.0f));
    p = _mm512_fmadd_ps(p, r, V16(1.0f));
    __m512i k = _mm512_cvtps_epi32(n), half = _mm512_srai_epi32(k, 1);
    p = _mm512_mul_ps(_mm512_mul_ps(p, pow2i_v(half)), pow2i_v(_mm512_sub_epi32(k, half)));
    p = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, V16(-0x1.5d589ep+6f), _CMP_NLT_UQ), p);
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, V16(0x1.62e42ep+6f), _CMP_GT_OQ), p, V16(INFINITY));
}

FORCED __m512 tanh_v(__m512 x)
{
    const __m512 sign = V16(-0.0f);
    __m512 a = _mm512_andnot_ps(sign, x), z = _mm512_mul_ps(x, x), p = V16(-0x1.7685aap-8f);
    p = _mm512_fmadd_ps(p, z, V16(0x1.524ea0p-6f));
    p = _mm512_fmadd_ps(p, z, V16(-0x1.b84316p-5f));
    p = _mm512_fmadd_ps(p, z, V16(0x1.110760p-3f));
    p = _mm512_fmadd_ps(p, z, V16(-0x1.555534p-2f));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(x, z), p, x);
    __m512 e = _mm512_add_ps(exp_v(_mm512_add_ps(a, a)), V16(1.0f));
    __m512 big = _mm512_sub_ps(V16(1.0f), _mm512_div_ps(V16(2.0f), e));
    big = _mm512_or_ps(_mm512_andnot_ps(sign, big), _mm512_and_ps(sign, x));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, V16(0.625f), _CMP_LT_OQ), big, small);
}

/* --- the micro-kernel --- */

FORCED void row64_load(enum kv_format f, const uint8_t *row, __m512 v[4])
{
    for (int i = 0; i < 4; i += 2) {
        if (f == KV_BF16) {
            __m512i x = load_i(row + 32 * i);
            v[i] = bf16_low(x);
            v[i + 1] = bf16_high(x);
        } else if (f == KV_F16) {
            v[i] = half_load(row + 32 * i);
            v[i + 1] = half_load(row + 32 * i + 32);
        } else {
            v[i] = _mm512_loadu_ps((const float *)(row + 64 * i));
            v[i + 1] = _mm512_loadu_ps((const float *)(row + 64 * i + 64));
        }
    }
}

FORCED size_t row64_bytes(enum kv_format f)
{
    return f == KV_F32 ? 256 : 128;
}

struct mk_args {
    const float *a;     /* element (k, r) at a[k * ks + r * rs] */
    int64_t ks, rs;
    const uint8_t *b;   /* row k at b + k * row64_bytes */
    int64_t k0, k1;
    float *c;           /* row r at c + r * ld_c */
    int64_t ld_c;
    const float *al;    /* NULL: start from zero */
    const uint8_t *pf;  /* prefetched alongside row k, or NULL */
};

FORCED void mk_rows(enum kv_format f, int R, const struct mk_args *m)
{
    __m512 acc[R_MAX][4];
    size_t rb = row64_bytes(f);
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(4)
        for (int i = 0; i < 4; i++)
            acc[r][i] = m->al ? _mm512_mul_ps(_mm512_loadu_ps(m->c + r * m->ld_c + 16 * i), V16(m->al[r]))
                              : _mm512_setzero_ps();
    const float *a = m->a + m->k0 * m->ks;
    const uint8_t *b = m->b + (size_t)m->k0 * rb;
    for (int64_t k = m->k0; k < m->k1; k++, a += m->ks, b += rb) {
        __m512 v[4];
        if (m->pf)
            for (size_t i = 0; i < rb; i += 64) _mm_prefetch((const char *)m->pf + (size_t)k * rb + i, _MM_HINT_T0);
        row64_load(f, b, v);
        UNROLL(6)
        for (int r = 0; r < R; r++) {
            __m512 q = V16(a[r * m->rs]);
            UNROLL(4)
            for (int i = 0; i < 4; i++) acc[r][i] = _mm512_fmadd_ps(q, v[i], acc[r][i]);
        }
    }
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(4)
        for (int i = 0; i < 4; i++) _mm512_storeu_ps(m->c + r * m->ld_c + 16 * i, acc[r][i]);
}

/* QK: A is q packed [d][R]. */
static void mk_qk(enum kv_format f, int R, struct mk_args m)
{
    switch (R * 4 + (int)f) {
#define CASE(r, fm) case (r) * 4 + (fm): m.ks = (r); m.rs = 1; mk_rows((fm), (r), &m); break;
#define CASES(r) CASE(r, KV_BF16) CASE(r, KV_F16) CASE(r, KV_F32)
        CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6)
    default: break;
    }
}

/* PV: A is p [R][64]. */
static void mk_pv(enum kv_format f, int R, struct mk_args m)
{
    switch (R * 4 + (int)f) {
#undef CASE
#define CASE(r, fm) case (r) * 4 + (fm): m.ks = 1; m.rs = ATTN_TILE; mk_rows((fm), (r), &m); break;
        CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6)
    default: break;
    }
}

/* --- one unit --- */

struct work {
    const struct attn_unit *u;
    int64_t dp;                     /* d rounded up to 64 */
    float *q, *o, *s, *lane, *m, *dm, *al;
    int n_block;
};

static void work_init(struct work *w, const struct attn_unit *u)
{
    size_t rows = ((size_t)u->n_rows + 15) / 16 * 16;
    w->u = u;
    w->dp = (u->d + 63) / 64 * 64;
    w->q = u->scratch;
    w->o = w->q + rows * (size_t)w->dp;
    w->s = w->o + rows * (size_t)w->dp;
    w->lane = w->s + rows * ATTN_TILE;
    w->m = w->lane + rows * ATTN_LANES;
    w->dm = w->m + rows;
    w->al = w->dm + rows;
    w->n_block = (u->n_rows + R_MAX - 1) / R_MAX;
    memset(w->o, 0, (size_t)u->n_rows * (size_t)w->dp * 4);
    memset(w->lane, 0, rows * ATTN_LANES * 4);
    for (size_t r = 0; r < rows; r++) {
        w->m[r] = -INFINITY;
        w->dm[r] = 0.0f;
    }
}

/* Rows of block i, balanced: sizes differ by at most one. */
FORCED int block_start(const struct work *w, int i)
{
    return (int)((int64_t)w->u->n_rows * i / w->n_block);
}

static void pack_q(struct work *w)
{
    const struct attn_unit *u = w->u;
    for (int i = 0; i < w->n_block; i++) {
        int r0 = block_start(w, i), R = block_start(w, i + 1) - r0;
        float *q = w->q + (int64_t)r0 * w->dp;
        for (int r = 0; r < R; r++)
            for (int64_t d = 0; d < u->d; d++) q[d * R + r] = u->q[(r0 + r) * u->ld_q + d];
    }
}

struct range {
    int lo, hi;
};

FORCED struct range tile_range(const struct attn_unit *u, int r, int t)
{
    int lo = u->vis_lo[r] - ATTN_TILE * t, hi = u->vis_hi[r] - ATTN_TILE * t;
    return (struct range){ lo < 0 ? 0 : lo, hi > ATTN_TILE ? ATTN_TILE : hi };
}

static bool block_sees(const struct attn_unit *u, int r0, int r1, int t)
{
    for (int r = r0; r < r1; r++) {
        struct range v = tile_range(u, r, t);
        if (v.lo < v.hi) return true;
    }
    return false;
}

/* Bit j: key j of the tile is visible. */
FORCED uint64_t visible_bits(struct range v)
{
    uint64_t below_hi = v.hi >= 64 ? ~0ull : (1ull << v.hi) - 1;
    return below_hi & ~((1ull << v.lo) - 1);
}

/* Maximum of a row's visible scores; writes m and m_old - m. */
static void row_max(struct work *w, int r, struct range v)
{
    float *s = w->s + r * ATTN_TILE;
    __m512 top = V16(-INFINITY);
    uint64_t bits = visible_bits(v);
    for (int j = 0; j < ATTN_TILE; j += 16) {
        __m512 x = _mm512_loadu_ps(s + j);
        if (w->u->softcap > 0.0f) {
            __m512 cap = V16(w->u->softcap);
            x = _mm512_mul_ps(_mm512_mul_ps(cap, tanh_v(_mm512_div_ps(x, cap))), V16(0x1.715476p+0f));
            _mm512_storeu_ps(s + j, x);
        }
        x = _mm512_mask_blend_ps((__mmask16)(bits >> j), V16(-INFINITY), x);
        top = _mm512_max_ps(x, top); /* a NaN score keeps the old maximum */
    }
    float e = _mm512_reduce_max_ps(top), m1 = e > w->m[r] ? e : w->m[r];
    w->dm[r] = w->m[r] - m1;
    w->m[r] = m1;
}

/* p in place of the scores, and the lanes of l. */
static void row_exp(struct work *w, int r, struct range v)
{
    float *s = w->s + r * ATTN_TILE, *lane = w->lane + r * ATTN_LANES;
    __m512 m = V16(w->m[r]), l = _mm512_loadu_ps(lane);
    uint64_t bits = visible_bits(v);
    for (int j = 0; j < ATTN_TILE; j += 16) {
        __m512 p = exp2_neg_v(_mm512_sub_ps(_mm512_loadu_ps(s + j), m));
        p = _mm512_maskz_mov_ps((__mmask16)(bits >> j), p);
        _mm512_storeu_ps(s + j, p);
        l = j == 0 ? _mm512_fmadd_ps(l, V16(w->al[r]), p) : _mm512_add_ps(l, p);
    }
    _mm512_storeu_ps(lane, l);
}

/* Outputs of one row over keys [lo, hi); al applied when given. */
static void row_pv(struct work *w, int r, const uint8_t *v, int64_t blk, int lo, int hi, const float *al)
{
    size_t bb = 64 * row64_bytes(w->u->format);
    float one = 1.0f;
    struct mk_args m = { w->s + r * ATTN_TILE, 1, ATTN_TILE, v + (size_t)blk * bb, lo, hi, w->o + r * w->dp + 64 * blk,
                         w->dp, al ? al : &one, NULL };
    mk_pv(w->u->format, 1, m);
}

/* Outputs of one block of rows over one tile. */
static void block_pv(struct work *w, int r0, int R, int t, const uint8_t *v, const uint8_t *next)
{
    struct range each[R_MAX], all = { 0, ATTN_TILE };
    float al[R_MAX];
    for (int r = 0; r < R; r++) {
        each[r] = tile_range(w->u, r0 + r, t);
        al[r] = w->al[r0 + r];
        all.lo = each[r].lo > all.lo ? each[r].lo : all.lo;
        all.hi = each[r].hi < all.hi ? each[r].hi : all.hi;
    }
    bool shared = all.lo < all.hi;
    for (int64_t blk = 0; blk < w->dp / 64; blk++) {
        float scale[R_MAX];
        memcpy(scale, al, sizeof scale);
        for (int r = 0; r < R; r++) {
            if (each[r].lo >= each[r].hi) continue;
            int end = shared ? all.lo : each[r].hi;
            if (each[r].lo >= end) continue;
            row_pv(w, r0 + r, v, blk, each[r].lo, end, &al[r]);
            scale[r] = 1.0f;
        }
        if (!shared) continue;
        size_t bb = 64 * row64_bytes(w->u->format);
        struct mk_args m = { w->s + r0 * ATTN_TILE, 1, ATTN_TILE, v + (size_t)blk * bb, all.lo, all.hi,
                             w->o + r0 * w->dp + 64 * blk, w->dp, scale, next ? next + (size_t)blk * bb : NULL };
        mk_pv(w->u->format, R, m);
        for (int r = 0; r < R; r++)
            if (each[r].hi > all.hi) row_pv(w, r0 + r, v, blk, all.hi, each[r].hi, NULL);
    }
}

static void tile_run(struct work *w, int t)
{
    const struct attn_unit *u = w->u;
    const uint8_t *k = u->page[t], *v = k + (size_t)u->d * row64_bytes(u->format);
    const uint8_t *next = t + 1 < ATTN_SPLIT / ATTN_TILE ? u->page[t + 1] : NULL;
    bool few = w->n_block == 1; /* decode: the memory is what counts */
    for (int i = 0; i < w->n_block; i++) {
        int r0 = block_start(w, i), r1 = block_start(w, i + 1);
        if (!block_sees(u, r0, r1, t)) continue;
        struct mk_args m = { w->q + (int64_t)r0 * w->dp, 0, 0, k, 0, u->d, w->s + r0 * ATTN_TILE, ATTN_TILE, NULL,
                             few ? v : NULL };
        mk_qk(u->format, r1 - r0, m);
    }
    for (int r = 0; r < u->n_rows; r++) {
        struct range vis = tile_range(u, r, t);
        if (vis.lo < vis.hi)
            row_max(w, r, vis);
        else
            w->dm[r] = 0.0f;
    }
    for (int r = 0; r < u->n_rows; r += 16) _mm512_storeu_ps(w->al + r, exp2_neg_v(_mm512_loadu_ps(w->dm + r)));
    for (int r = 0; r < u->n_rows; r++) {
        struct range vis = tile_range(u, r, t);
        if (vis.lo < vis.hi) row_exp(w, r, vis);
    }
    for (int i = 0; i < w->n_block; i++) {
        int r0 = block_start(w, i), r1 = block_start(w, i + 1);
        if (block_sees(u, r0, r1, t)) block_pv(w, r0, r1 - r0, t, v, few ? next : NULL);
    }
}

/* 16 lanes to one sum: halves of 8, of 4, then (0 + 2) + (1 + 3). */
FORCED float lanes_sum(const float *lane)
{
    __m256 t = _mm256_add_ps(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8));
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

static void attend_unit_avx512(const struct attn_unit *u)
{
    struct work w;
    work_init(&w, u);
    pack_q(&w);
    for (int t = 0; t < ATTN_SPLIT / ATTN_TILE; t++)
        if (u->page[t] && block_sees(u, 0, u->n_rows, t)) tile_run(&w, t);
    for (int r = 0; r < u->n_rows; r++) {
        const float *o = w.o + r * w.dp;
        u->m[r] = w.m[r];
        u->ls[r] = lanes_sum(w.lane + r * ATTN_LANES);
        for (int64_t d = 0; d < u->d; d++) u->o[r * u->ld_o + d] = o[d] + 0.0f;
    }
}

void avx512_fill_attention(struct cpu_kernels *t)
{
    t->attend_unit = attend_unit_avx512;
}
