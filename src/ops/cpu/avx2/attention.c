/* attention.c (avx2): the vectors of attention (attention_unit.h has the rest).
 *
 * One micro-kernel does both products, with B rows of 64 values converted on the fly. Columns go in "units" of two
 * registers: for bf16 one 32-byte load gives eight values in the low and eight in the high halves of its dwords. Few rows
 * take several units a pass to have enough independent chains.
 */
#include "ops/cpu/avx2/mathv.h"

#define ATTN_AHEAD 0
#include "ops/cpu/attention_many.h"

/* --- units of columns --- */

FORCED int unit_col(enum kv_format f, bool pv, int u, int part)
{
    if (f == KV_Q4 && pv) return 8 * u + 32 * part;
    return f == KV_BF16 ? 32 * (u / 2) + 8 * (u & 1) + 16 * part : 16 * u + 8 * part;
}

FORCED __m256i bytes_load(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

FORCED __m256 nibble_float(__m256i v)
{
    return _mm256_cvtepi32_ps(_mm256_and_si256(v, _mm256_set1_epi32(15)));
}

/* odd: keys of 4 bits, the second dim of a pair. */
FORCED void unit_load(enum kv_format f, bool pv, bool odd, const uint8_t *row, int u, __m256 *v0, __m256 *v1)
{
    if (f == KV_Q8) {
        *v0 = _mm256_cvtepi32_ps(bytes_load(row + 16 * u));
        *v1 = _mm256_cvtepi32_ps(bytes_load(row + 16 * u + 8));
    } else if (f == KV_Q4 && pv) {
        __m256i v = bytes_load(row + 8 * u);
        *v0 = nibble_float(v);
        *v1 = nibble_float(_mm256_srli_epi32(v, 4));
    } else if (f == KV_Q4) {
        __m256i a = bytes_load(row + 16 * u), b = bytes_load(row + 16 * u + 8);
        *v0 = nibble_float(odd ? _mm256_srli_epi32(a, 4) : a);
        *v1 = nibble_float(odd ? _mm256_srli_epi32(b, 4) : b);
    } else if (f == KV_BF16) {
        __m256i v = load_i(row + 32 * u);
        *v0 = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        *v1 = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
    } else if (f == KV_F16) {
        *v0 = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(row + 32 * u)));
        *v1 = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(row + 32 * u + 16)));
    } else {
        *v0 = _mm256_loadu_ps((const float *)(row + 64 * u));
        *v1 = _mm256_loadu_ps((const float *)(row + 64 * u + 32));
    }
}

/* --- the micro-kernel: U units starting at unit u0 --- */

/* One row of B. */
FORCED void mk_row(enum kv_format f, bool pv, bool odd, int R, int U, int u0, const float *a, const float *a2, int64_t rs, const uint8_t *b,
                   __m256 acc[R_MAX][8])
{
    const bool halves = kv_is_codes(f) && pv;
    UNROLL(4)
    for (int u = 0; u < U; u++) {
        __m256 v0, v1;
        unit_load(f, pv, odd, b, u0 + u, &v0, &v1);
        UNROLL(6)
        for (int r = 0; r < R; r++) {
            const float *a0 = halves && unit_col(f, pv, u0 + u, 0) >= 32 ? a2 : a, *a1 = halves && unit_col(f, pv, u0 + u, 1) >= 32 ? a2 : a;
            __m256 q = _mm256_broadcast_ss(a0 + r * rs), q1 = a1 == a0 ? q : _mm256_broadcast_ss(a1 + r * rs);
            acc[r][2 * u] = _mm256_fmadd_ps(q, v0, acc[r][2 * u]);
            acc[r][2 * u + 1] = _mm256_fmadd_ps(q1, v1, acc[r][2 * u + 1]);
        }
    }
}

FORCED void mk_units(enum kv_format f, bool pv, int R, int U, int u0, const struct mk_args *m)
{
    __m256 acc[R_MAX][8];
    size_t rb = row64_bytes(f);
    const bool pairs = f == KV_Q4 && !pv;
    const int step = pairs ? 2 : 1;
    /* What is asked for is spread over all passes, or the first would wait for memory and the others not use it. */
    const size_t n_pass = 4 / U;
    const size_t n_turn = m->ask.step > 0 ? (size_t)(m->ask.end - m->ask.at) / m->ask.step : 0, pass = (size_t)u0 / (size_t)U;
    const uint8_t *ask = m->ask.at + n_turn * pass / n_pass * m->ask.step, *ask_end = m->ask.at + n_turn * (pass + 1) / n_pass * m->ask.step;
    const int64_t ask_mask = m->ask.every * (int64_t)n_pass - 1;
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(8)
        for (int u = 0; u < 2 * U; u++) {
            const float *c = m->c + r * m->ld_c + unit_col(f, pv, u0 + u / 2, u & 1);
            acc[r][u] = m->al ? _mm256_mul_ps(_mm256_loadu_ps(c), V8(m->al[r])) : _mm256_setzero_ps();
        }
    const float *a = m->a + m->k0 * m->ks, *a2 = kv_is_codes(f) && pv ? m->a2 + m->k0 * m->ks : a;
    const uint8_t *b = m->b + (size_t)m->k0 * rb;
    for (int64_t k = m->k0; k < m->k1; k += step, a += step * m->ks, a2 += step * m->ks, b += (size_t)step * rb) {
        if (ask < ask_end && !((k - m->k0) & ask_mask)) {
            ask_turn(&m->ask, ask);
            ask += m->ask.step;
        }
        mk_row(f, pv, false, R, U, u0, a, a2, m->rs, b, acc);
        if (pairs) mk_row(f, pv, true, R, U, u0, a + m->ks, a2 + m->ks, m->rs, b, acc);
    }
    UNROLL(6)
    for (int r = 0; r < R; r++)
        UNROLL(8)
        for (int u = 0; u < 2 * U; u++)
            _mm256_storeu_ps(m->c + r * m->ld_c + unit_col(f, pv, u0 + u / 2, u & 1), acc[r][u]);
}

/* 64 columns: one pass for a row, two for 2 and 3 rows, four above. ks and rs become constants by inlining. */
FORCED void mk_rows(enum kv_format f, bool pv, int R, const struct mk_args *m)
{
    int U = R == 1 ? 4 : R <= 2 ? 2 : 1;
    for (int u = 0; u < 4; u += U) mk_units(f, pv, R, U, u, m);
}

FORCED __m256 visible_mask(struct range v, int j)
{
    __m256i at = _mm256_add_epi32(_mm256_set1_epi32(j), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(v.lo - 1)),
                                  _mm256_cmpgt_epi32(_mm256_set1_epi32(v.hi), at));
    return _mm256_castsi256_ps(in);
}

FORCED float hmax(__m256 v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static void row_max(struct work *w, int r, struct range v)
{
    float *s = w->s + r * ATTN_TILE;
    __m256 top = V8(-INFINITY);
    bool whole = v.lo == 0 && v.hi == ATTN_TILE;
    for (int j = 0; j < ATTN_TILE; j += 8) {
        __m256 x = _mm256_loadu_ps(s + j);
        if (w->u->softcap > 0.0f) {
            __m256 cap = V8(w->u->softcap);
            x = _mm256_mul_ps(_mm256_mul_ps(cap, tanh_v(_mm256_div_ps(x, cap))), V8(0x1.715476p+0f));
            _mm256_storeu_ps(s + j, x);
        }
        if (!whole) x = _mm256_blendv_ps(V8(-INFINITY), x, visible_mask(v, j));
        top = _mm256_max_ps(x, top); /* a NaN score keeps the old maximum */
    }
    float e = hmax(top), m1 = e > w->m[r] ? e : w->m[r];
    w->dm[r] = w->m[r] - m1;
    w->m[r] = m1;
}

static void rows_al(struct work *w)
{
    for (int r = 0; r < w->u->n_rows; r += 8) _mm256_storeu_ps(w->al + r, exp2_neg_v(_mm256_loadu_ps(w->dm + r)));
}

static void row_exp(struct work *w, int r, struct range v)
{
    float *s = w->s + r * ATTN_TILE, *lane = w->lane + r * ATTN_LANES;
    __m256 m = V8(w->m[r]), al = V8(w->al[r]), l0 = _mm256_loadu_ps(lane), l1 = _mm256_loadu_ps(lane + 8);
    bool whole = v.lo == 0 && v.hi == ATTN_TILE;
    for (int j = 0; j < ATTN_TILE; j += 16) {
        __m256 p0 = exp2_neg_v(_mm256_sub_ps(_mm256_loadu_ps(s + j), m));
        __m256 p1 = exp2_neg_v(_mm256_sub_ps(_mm256_loadu_ps(s + j + 8), m));
        if (!whole) {
            p0 = _mm256_and_ps(p0, visible_mask(v, j));
            p1 = _mm256_and_ps(p1, visible_mask(v, j + 8));
        }
        _mm256_storeu_ps(s + j, p0);
        _mm256_storeu_ps(s + j + 8, p1);
        l0 = j == 0 ? _mm256_fmadd_ps(l0, al, p0) : _mm256_add_ps(l0, p0);
        l1 = j == 0 ? _mm256_fmadd_ps(l1, al, p1) : _mm256_add_ps(l1, p1);
    }
    _mm256_storeu_ps(lane, l0);
    _mm256_storeu_ps(lane + 8, l1);
}

/* 8 bf16 values. */
FORCED __m256 bf16_load(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}

static void row_scale(float *s, const float *a, const uint8_t *scales, float q_sum, bool first)
{
    for (int j = 0; j < ATTN_TILE; j += 8) {
        __m256 x = first ? _mm256_setzero_ps() : _mm256_loadu_ps(s + j);
        x = _mm256_fmadd_ps(bf16_load(scales + 2 * j), _mm256_loadu_ps(a + j), x);
        _mm256_storeu_ps(s + j, _mm256_fmadd_ps(bf16_load(scales + 128 + 2 * j), V8(q_sum), x));
    }
}

static void row_offsets(const float *p, const uint8_t *scales, struct range v, float al, float *z)
{
    __m256 l[2] = { _mm256_loadu_ps(z), _mm256_loadu_ps(z + 8) };
    for (int j = 0; j < ATTN_TILE; j += 8) {
        __m256 t = _mm256_mul_ps(_mm256_loadu_ps(p + j), bf16_load(scales + 128 + 2 * j)), *to = &l[j / 8 % 2];
        t = _mm256_and_ps(t, visible_mask(v, j));
        *to = j < ATTN_LANES ? _mm256_fmadd_ps(*to, V8(al), t) : _mm256_add_ps(*to, t);
    }
    _mm256_storeu_ps(z, l[0]);
    _mm256_storeu_ps(z + 8, l[1]);
}

static void row_weights(const float *p, const uint8_t *scales, float *w)
{
    for (int j = 0; j < ATTN_TILE; j += 8) _mm256_storeu_ps(w + j, _mm256_mul_ps(_mm256_loadu_ps(p + j), bf16_load(scales + 2 * j)));
}

FORCED float row_sum(const float *lane)
{
    return lanes_sum(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8));
}

/* --- many rows --- */

/* 16 columns a pass. */
FORCED void mk_wide(int R, int V, const struct mk_args *m)
{
    for (int u = 0; u < V; u++) {
        __m256 acc[R_MAX][2];
        float *c = m->c + 16 * u;
        UNROLL(6)
        for (int r = 0; r < R; r++)
            UNROLL(2)
            for (int i = 0; i < 2; i++)
                acc[r][i] = m->al ? _mm256_mul_ps(_mm256_loadu_ps(c + r * m->ld_c + 8 * i), V8(m->al[r])) : _mm256_setzero_ps();
        const float *a = m->a + m->k0 * m->ks, *b = (const float *)(const void *)m->b + 64 * m->k0 + 16 * u;
        for (int64_t k = m->k0; k < m->k1; k++, a += m->ks, b += 64) {
            __m256 v0 = _mm256_loadu_ps(b), v1 = _mm256_loadu_ps(b + 8);
            UNROLL(6)
            for (int r = 0; r < R; r++) {
                __m256 q = _mm256_broadcast_ss(a + r * m->rs);
                acc[r][0] = _mm256_fmadd_ps(q, v0, acc[r][0]);
                acc[r][1] = _mm256_fmadd_ps(q, v1, acc[r][1]);
            }
        }
        UNROLL(6)
        for (int r = 0; r < R; r++)
            UNROLL(2)
            for (int i = 0; i < 2; i++) _mm256_storeu_ps(c + r * m->ld_c + 8 * i, acc[r][i]);
    }
}

static void rows_widen(enum kv_format f, int64_t n, const uint8_t *in, float *out)
{
    for (int64_t i = 0; i < n; i++, in += 128, out += 64)
        for (int u = 0; u < 4; u++) {
            __m256 v0, v1;
            if (f == KV_BF16) unit_load(KV_BF16, false, false, in, u, &v0, &v1);
            else unit_load(KV_F16, false, false, in, u, &v0, &v1);
            _mm256_storeu_ps(out + unit_col(f, false, u, 0), v0);
            _mm256_storeu_ps(out + unit_col(f, false, u, 1), v1);
        }
}

static bool all_finite(const float *x, int64_t n)
{
    const __m256i all = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 8) bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(load_i(x + i), all), all));
    return _mm256_testz_si256(bad, bad) != 0;
}

static void row_finish(int64_t n, const float *x, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_setzero_ps()));
    for (; i < n; i++) y[i] = x[i] + 0.0f;
}

/* Vectors of eight [j0, j1) of a row; a NaN score keeps the old maximum. */
FORCED float row_top(const float *s, bool whole, struct range v, int j0, int j1)
{
    __m256 top = V8(-INFINITY);
    UNROLL(8)
    for (int j = j0; j < j1; j += 8) {
        __m256 x = _mm256_loadu_ps(s + j);
        top = _mm256_max_ps(whole ? x : _mm256_blendv_ps(V8(-INFINITY), x, visible_mask(v, j)), top);
    }
    return hmax(top);
}

FORCED void row_p(float *s, float *lane, bool whole, struct range v, float m1, float al, int j0, int j1)
{
    __m256 m = V8(m1), a = V8(al), old[2] = { _mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8) };
    __m256 l[2] = { _mm256_mul_ps(old[0], a), _mm256_mul_ps(old[1], a) };
    UNROLL(8)
    for (int j = j0; j < j1; j += 8) {
        __m256 p = exp2_neg_v(_mm256_sub_ps(_mm256_loadu_ps(s + j), m)), *to = &l[j / 8 % 2];
        if (!whole) p = _mm256_and_ps(p, visible_mask(v, j));
        _mm256_storeu_ps(s + j, p);
        *to = j < ATTN_LANES ? _mm256_fmadd_ps(old[j / 8 % 2], a, p) : _mm256_add_ps(*to, p);
    }
    _mm256_storeu_ps(lane, l[0]);
    _mm256_storeu_ps(lane + 8, l[1]);
}

FORCED void softmax_rows(struct many *w, struct group *g, bool whole, int j0, int j1)
{
    const struct range all = { 0, ATTN_TILE };
    float dm[16] = { 0 }, *m = w->m + g->r0;
    for (int r = 0; r < g->n; r++) {
        struct range v = whole ? all : g->v[r];
        if (v.lo >= v.hi) continue;
        float e = row_top(w->s + r * ATTN_TILE, whole, v, j0, j1), m1 = e > m[r] ? e : m[r];
        dm[r] = m[r] - m1;
        m[r] = m1;
    }
    for (int r = 0; r < 16; r += 8) _mm256_storeu_ps(g->al + r, exp2_neg_v(_mm256_loadu_ps(dm + r)));
    for (int r = 0; r < g->n; r++)
        row_p(w->s + r * ATTN_TILE, w->lane + (g->r0 + r) * ATTN_LANES, whole, whole ? all : g->v[r], m[r], g->al[r], j0, j1);
}

static void group_softmax(struct many *w, struct group *g)
{
    __m256 cap = V8(w->u->softcap);
    for (int i = 0; w->u->softcap > 0.0f && i < g->n * ATTN_TILE; i += 8) {
        __m256 x = _mm256_mul_ps(cap, tanh_v(_mm256_div_ps(_mm256_loadu_ps(w->s + i), cap)));
        _mm256_storeu_ps(w->s + i, _mm256_mul_ps(x, V8(0x1.715476p+0f)));
    }
    if (g->whole) softmax_rows(w, g, true, 0, ATTN_TILE);
    else softmax_rows(w, g, false, g->lo / 16 * 16, (g->hi + 15) / 16 * 16);
}

static void attend_unit_avx2(const struct attn_unit *u)
{
    if (many_fits(u)) many_run(u);
    else unit_run(u);
}

static void index_scores_avx2(const struct index_unit *u)
{
    index_run(u);
}

FORCED float exp2_neg_one(float t)
{
    return _mm256_cvtss_f32(exp2_neg_v(V8(t)));
}

static void attend_merge_avx2(int64_t d, float m, float ls, const float *o, float *M, float *Lt, float *O)
{
    if (ls == 0.0f) return;
    float N = m > *M ? m : *M, a = exp2_neg_one(*M - N), b = exp2_neg_one(m - N);
    *M = N;
    *Lt = __builtin_fmaf(ls, b, *Lt * a);
    int64_t i = 0;
    for (; i + 8 <= d; i += 8)
        _mm256_storeu_ps(O + i, _mm256_fmadd_ps(_mm256_loadu_ps(o + i), V8(b),
                                                _mm256_mul_ps(_mm256_loadu_ps(O + i), V8(a))));
    for (; i < d; i++) O[i] = __builtin_fmaf(o[i], b, O[i] * a);
}

static void attend_finish_avx2(int64_t d, float Lt, const float *O, float *out)
{
    float inv = Lt == 0.0f ? 0.0f : 1.0f / Lt;
    for (int64_t i = 0; i < d; i++) out[i] = O[i] * inv;
}

void avx2_fill_attention(struct cpu_kernels *t)
{
    t->attend_unit = attend_unit_avx2;
    t->index_scores = index_scores_avx2;
    t->attend_merge = attend_merge_avx2;
    t->attend_finish = attend_finish_avx2;
}
