/* attention.c (avx512): the vectors of attention (attention_unit.h has the rest).
 *
 * One micro-kernel does both products: R = 1..6 rows by 4 zmm, with B rows of 64 values converted on the fly (bf16: one
 * load gives values 0..15 in the low and 16..31 in the high halves of its dwords). The 16 lanes of l are one register.
 */
#include "ops/cpu/avx512/mathv.h"

#define ATTN_AHEAD 1
#include "ops/cpu/attention_many.h"

/* --- the micro-kernel --- */

/* Codes of 16 bytes to dwords; of 4 bits: only the low four bits of a dword count. */
FORCED __m512i bytes_load(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

FORCED __m512 nibble_float(__m512i v)
{
    return _mm512_permutexvar_ps(v, _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

/* Keys of 4 bits: rows k and k + 1. */
FORCED void pair64_load(const uint8_t *row, __m512 v[2][4])
{
    for (int i = 0; i < 4; i++) {
        __m512i x = bytes_load(row + 16 * i);
        v[0][i] = nibble_float(x);
        v[1][i] = nibble_float(_mm512_srli_epi32(x, 4));
    }
}

/* n: 2 or 4 vectors of 16; all of codes. */
FORCED void row64_load(enum kv_format f, int n, const uint8_t *row, __m512 v[4])
{
    if (f == KV_Q8) {
        for (int i = 0; i < 4; i++) v[i] = _mm512_cvtepi32_ps(bytes_load(row + 16 * i));
        return;
    }
    if (f == KV_Q4) { /* of values */
        for (int i = 0; i < 2; i++) {
            __m512i x = bytes_load(row + 16 * i);
            v[i] = nibble_float(x);
            v[2 + i] = nibble_float(_mm512_srli_epi32(x, 4));
        }
        return;
    }
    for (int i = 0; i < n; i += 2) {
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

/* One row of B: a and a2 stand at its element of the first row of A. */
FORCED void mk_row(int R, int n, bool halves, const float *a, const float *a2, int64_t rs, const __m512 v[4], __m512 acc[R_MAX][4])
{
    UNROLL(6)
    for (int r = 0; r < R; r++) {
        __m512 q = V16(a[r * rs]), q2 = halves ? V16(a2[r * rs]) : q;
        UNROLL(4)
        for (int i = 0; i < n; i++) acc[r][i] = _mm512_fmadd_ps(i < 2 ? q : q2, v[i], acc[r][i]);
    }
}

/* n of the four vectors of 16 columns. */
FORCED void mk_cols(enum kv_format f, bool pv, int R, int n, const struct mk_args *m)
{
    __m512 acc[R_MAX][4];
    size_t rb = row64_bytes(f);
    const bool pairs = f == KV_Q4 && !pv, halves = kv_is_codes(f) && pv;
    const int step = pairs ? 2 : 1;
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(4)
        for (int i = 0; i < n; i++)
            acc[r][i] = m->al ? _mm512_mul_ps(_mm512_loadu_ps(m->c + r * m->ld_c + 16 * i), V16(m->al[r]))
                              : _mm512_setzero_ps();
    const float *a = m->a + m->k0 * m->ks;
    const float *a2 = halves ? m->a2 + m->k0 * m->ks : a;
    const uint8_t *b = m->b + (size_t)m->k0 * rb, *ask = m->ask.at, *ahead = m->ahead.at;
    const uint8_t *ahead_end = ahead + (size_t)((m->ahead.n + AHEAD_PER - 1) / AHEAD_PER * AHEAD_PER) * m->ahead.step;
    for (int64_t k = m->k0; k < m->k1; k += step, a += step * m->ks, a2 += step * m->ks, b += (size_t)step * rb) {
        __m512 v[2][4];
        if (ask < m->ask.end && !((k - m->k0) & (m->ask.every - 1))) {
            ask_turn(&m->ask, ask);
            ask += m->ask.step;
        }
        if (ahead != ahead_end) {
            UNROLL(4)
            for (int i = 0; i < AHEAD_PER; i++) __builtin_prefetch(ahead + i * m->ahead.step, 0, 2);
            ahead += AHEAD_PER * m->ahead.step;
        }
        if (pairs) pair64_load(b, v);
        else row64_load(f, n, b, v[0]);
        mk_row(R, n, halves, a, a2, m->rs, v[0], acc);
        if (pairs) mk_row(R, n, false, a + m->ks, NULL, m->rs, v[1], acc);
    }
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(4)
        for (int i = 0; i < n; i++) _mm512_storeu_ps(m->c + r * m->ld_c + 16 * i, acc[r][i]);
}

/* Keys of 16 bits lie in two lines a dim: of a page that is not half full the second line is not read. */
FORCED void mk_rows(enum kv_format f, bool pv, int R, const struct mk_args *m)
{
    if (!pv && (f == KV_F16 || f == KV_BF16) && m->low_half) mk_cols(f, pv, R, 2, m);
    else mk_cols(f, pv, R, 4, m);
}

/* Bit j: key j of the tile is visible. */
FORCED uint64_t visible_bits(struct range v)
{
    uint64_t below_hi = v.hi >= 64 ? ~0ull : (1ull << v.hi) - 1;
    return below_hi & ~((1ull << v.lo) - 1);
}

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

static void rows_al(struct work *w)
{
    for (int r = 0; r < w->u->n_rows; r += 16) _mm512_storeu_ps(w->al + r, exp2_neg_v(_mm512_loadu_ps(w->dm + r)));
}

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

/* 16 bf16 values. */
FORCED __m512 bf16_load(const uint8_t *p)
{
    return bf16_low(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)));
}

static void row_scale(float *s, const float *a, const uint8_t *scales, float q_sum, bool first)
{
    for (int j = 0; j < ATTN_TILE; j += 16) {
        __m512 x = first ? _mm512_setzero_ps() : _mm512_loadu_ps(s + j);
        x = _mm512_fmadd_ps(bf16_load(scales + 2 * j), _mm512_loadu_ps(a + j), x);
        _mm512_storeu_ps(s + j, _mm512_fmadd_ps(bf16_load(scales + 128 + 2 * j), V16(q_sum), x));
    }
}

static void row_offsets(const float *p, const uint8_t *scales, struct range v, float al, float *z)
{
    __m512 l = _mm512_loadu_ps(z);
    uint64_t bits = visible_bits(v);
    for (int j = 0; j < ATTN_TILE; j += 16) {
        __m512 t = _mm512_maskz_mul_ps((__mmask16)(bits >> j), _mm512_loadu_ps(p + j), bf16_load(scales + 128 + 2 * j));
        l = j == 0 ? _mm512_fmadd_ps(l, V16(al), t) : _mm512_add_ps(l, t);
    }
    _mm512_storeu_ps(z, l);
}

static void row_weights(const float *p, const uint8_t *scales, float *w)
{
    for (int j = 0; j < ATTN_TILE; j += 16) _mm512_storeu_ps(w + j, _mm512_mul_ps(_mm512_loadu_ps(p + j), bf16_load(scales + 2 * j)));
}

FORCED float row_sum(const float *lane)
{
    return lanes_sum(_mm512_loadu_ps(lane));
}

/* --- many rows --- */

FORCED void mk_wide(int R, int V, const struct mk_args *m)
{
    __m512 acc[R_MAX][4];
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(4)
        for (int i = 0; i < V; i++)
            acc[r][i] = m->al ? _mm512_mul_ps(_mm512_loadu_ps(m->c + r * m->ld_c + 16 * i), V16(m->al[r])) : _mm512_setzero_ps();
    const float *a = m->a + m->k0 * m->ks, *b = (const float *)(const void *)m->b + 64 * m->k0;
    for (int64_t k = m->k0; k < m->k1; k++, a += m->ks, b += 64) {
        __m512 v[4];
        UNROLL(4)
        for (int i = 0; i < V; i++) v[i] = _mm512_loadu_ps(b + 16 * i);
        UNROLL(6)
        for (int r = 0; r < R; r++) {
            __m512 q = V16(a[r * m->rs]);
            UNROLL(4)
            for (int i = 0; i < V; i++) acc[r][i] = _mm512_fmadd_ps(q, v[i], acc[r][i]);
        }
    }
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(4)
        for (int i = 0; i < V; i++) _mm512_storeu_ps(m->c + r * m->ld_c + 16 * i, acc[r][i]);
}

static void rows_widen(enum kv_format f, int64_t n, const uint8_t *in, float *out)
{
    for (int64_t i = 0; i < n; i++, in += 128, out += 64) {
        __m512 v[4];
        if (f == KV_BF16) row64_load(KV_BF16, 4, in, v);
        else row64_load(KV_F16, 4, in, v);
        for (int j = 0; j < 4; j++) _mm512_storeu_ps(out + 16 * j, v[j]);
    }
}

static bool all_finite(const float *x, int64_t n)
{
    const __m512i all = _mm512_set1_epi32(0x7f800000);
    __mmask16 bad = 0;
    for (int64_t i = 0; i < n; i += 16) bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(load_i(x + i), all), all);
    return bad == 0;
}

static void row_finish(int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i += 16) store16(y + i, n - i, _mm512_add_ps(load16(x + i, n - i), _mm512_setzero_ps()));
}

/* Maxima of four vectors. */
FORCED __m128 max4(__m512 a, __m512 b, __m512 c, __m512 d)
{
    __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
    __m512 t = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    __m256 u = _mm256_max_ps(_mm512_castps512_ps256(t), _mm512_extractf32x8_ps(t, 1));
    return _mm_max_ps(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1));
}

/* Vectors [c0, c1) of a row; a NaN score keeps the old maximum. */
FORCED __m512 row_top(const float *s, bool whole, uint64_t bits, int c0, int c1)
{
    __m512 top = V16(-INFINITY);
    UNROLL(4)
    for (int i = c0; i < c1; i++) {
        __m512 x = _mm512_loadu_ps(s + 16 * i);
        top = whole ? _mm512_max_ps(x, top) : _mm512_mask_max_ps(top, (__mmask16)(bits >> (16 * i)), x, top);
    }
    return top;
}

FORCED void row_p(float *s, float *lane, bool whole, uint64_t bits, float m1, float al, int c0, int c1)
{
    __m512 m = V16(m1), l = _mm512_mul_ps(_mm512_loadu_ps(lane), V16(al));
    UNROLL(4)
    for (int i = c0; i < c1; i++) {
        __m512 p = exp2_neg_v(_mm512_sub_ps(_mm512_loadu_ps(s + 16 * i), m));
        if (!whole) p = _mm512_maskz_mov_ps((__mmask16)(bits >> (16 * i)), p);
        _mm512_storeu_ps(s + 16 * i, p);
        l = i == 0 ? _mm512_fmadd_ps(_mm512_loadu_ps(lane), V16(al), p) : _mm512_add_ps(l, p);
    }
    _mm512_storeu_ps(lane, l);
}

FORCED void softmax_rows(struct many *w, struct group *g, bool whole, const uint64_t *bits, int c0, int c1)
{
    __m512 e = V16(-INFINITY);
    __m128 top[3];
    UNROLL(3)
    for (int i = 0; i < 3; i++) {
        __m512 t[4];
        UNROLL(4)
        for (int j = 0; j < 4; j++) {
            int r = 4 * i + j < g->n ? 4 * i + j : g->n - 1;
            t[j] = row_top(w->s + r * ATTN_TILE, whole, whole ? 0 : bits[r], c0, c1);
        }
        top[i] = max4(t[0], t[1], t[2], t[3]);
    }
    e = _mm512_insertf32x4(e, top[0], 0);
    e = _mm512_insertf32x4(e, top[1], 1);
    e = _mm512_insertf32x4(e, top[2], 2);
    __mmask16 rows = (__mmask16)((1u << g->n) - 1), sees = rows;
    for (int r = 0; r < g->n && !whole; r++)
        if (bits[r] == 0) sees &= (__mmask16)~(1u << r);
    float *mp = w->m + g->r0;
    __m512 old = _mm512_maskz_loadu_ps(rows, mp), m = _mm512_max_ps(e, old);
    _mm512_mask_storeu_ps(mp, sees, m);
    _mm512_storeu_ps(g->al, exp2_neg_v(_mm512_maskz_sub_ps(sees, old, m)));
    float m1[16];
    _mm512_storeu_ps(m1, m);
    for (int r = 0; r < g->n; r++) row_p(w->s + r * ATTN_TILE, w->lane + (g->r0 + r) * ATTN_LANES, whole, whole ? 0 : bits[r], m1[r],
                                         g->al[r], c0, c1);
}

static void group_cap(struct many *w, const struct group *g)
{
    __m512 cap = V16(w->u->softcap);
    for (int i = 0; i < g->n * ATTN_TILE; i += 16) {
        __m512 x = _mm512_mul_ps(cap, tanh_v(_mm512_div_ps(_mm512_loadu_ps(w->s + i), cap)));
        _mm512_storeu_ps(w->s + i, _mm512_mul_ps(x, V16(0x1.715476p+0f)));
    }
}

static void group_softmax(struct many *w, struct group *g)
{
    uint64_t bits[GROUP_ROWS];
    if (w->u->softcap > 0.0f) group_cap(w, g);
    for (int r = 0; r < g->n && !g->whole; r++) bits[r] = g->v[r].lo < g->v[r].hi ? visible_bits(g->v[r]) : 0;
    if (g->whole) softmax_rows(w, g, true, bits, 0, 4);
    else softmax_rows(w, g, false, bits, g->lo / 16, (g->hi + 15) / 16);
}

static void attend_unit_avx512(const struct attn_unit *u)
{
    if (many_fits(u)) many_run(u);
    else unit_run(u);
}

static void index_scores_avx512(const struct index_unit *u)
{
    index_run(u);
}

FORCED float exp2_neg_one(float t)
{
    return _mm512_cvtss_f32(exp2_neg_v(V16(t)));
}

static void attend_merge_avx512(int64_t d, float m, float ls, const float *o, float *M, float *Lt, float *O)
{
    if (ls == 0.0f) return;
    float N = m > *M ? m : *M, a = exp2_neg_one(*M - N), b = exp2_neg_one(m - N);
    *M = N;
    *Lt = __builtin_fmaf(ls, b, *Lt * a);
    for (int64_t i = 0; i < d; i += 16)
        store16(O + i, d - i, _mm512_fmadd_ps(load16(o + i, d - i), V16(b), _mm512_mul_ps(load16(O + i, d - i), V16(a))));
}

static void attend_finish_avx512(int64_t d, float Lt, const float *O, float *out)
{
    __m512 inv = V16(Lt == 0.0f ? 0.0f : 1.0f / Lt);
    for (int64_t i = 0; i < d; i += 16) store16(out + i, d - i, _mm512_mul_ps(load16(O + i, d - i), inv));
}

void avx512_fill_attention(struct cpu_kernels *t)
{
    t->attend_merge = attend_merge_avx512;
    t->attend_finish = attend_finish_avx512;
    t->attend_unit = attend_unit_avx512;
    t->index_scores = index_scores_avx512;
}
