/* delta.c (avx2): the gated delta net's own operations, lanes along the columns of the state. A block of 16 columns goes through
 * all tokens of the run before the next one, so that it stays in the first cache: eight accumulators keep both multiply units
 * busy. Columns that are left over go eight at a time, then one by one. */
#include "ops/cpu/avx2/mathv.h"

FORCED __m256 chains_sum(const __m256 c[4])
{
    return _mm256_add_ps(_mm256_add_ps(c[0], c[1]), _mm256_add_ps(c[2], c[3]));
}

FORCED __m256 sigmoid_mul_v(__m256 gate, __m256 x)
{
    return _mm256_div_ps(x, _mm256_add_ps(V8(1.0f), exp_v(_mm256_xor_ps(gate, V8(-0.0f)))));
}

static void sigmoid_mul_avx2(const float *gate, const float *x, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, sigmoid_mul_v(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(x + i)));
    if (i == n) return;
    float g[8] = { 0 }, v[8] = { 0 };
    memcpy(g, gate + i, (size_t)(n - i) * 4);
    memcpy(v, x + i, (size_t)(n - i) * 4);
    _mm256_storeu_ps(v, sigmoid_mul_v(_mm256_loadu_ps(g), _mm256_loadu_ps(v)));
    memcpy(y + i, v, (size_t)(n - i) * 4);
}

/* The convolution of eight channels; at: the first; n < 8: what there is, padded. */
FORCED __m256 conv_v(const float *const *x, int32_t n_tap, const float *w, int64_t ld_w, int64_t at, int64_t n)
{
    __m256 c[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (int32_t j = 0; j < n_tap; j++) {
        float a[8] = { 0 }, b[8] = { 0 };
        if (!x[j]) continue;
        memcpy(a, w + j * ld_w + at, (size_t)n * 4);
        memcpy(b, x[j] + at, (size_t)n * 4);
        c[j & 3] = _mm256_fmadd_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b), c[j & 3]);
    }
    return silu_v(chains_sum(c));
}

static void delta_conv_avx2(const float *const *x, int32_t n_tap, const float *w, int64_t ld_w, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, conv_v(x, n_tap, w, ld_w, i, 8));
    if (i == n) return;
    float t[8];
    _mm256_storeu_ps(t, conv_v(x, n_tap, w, ld_w, i, n - i));
    memcpy(y + i, t, (size_t)(n - i) * 4);
}

/* A block of columns at work: up to 16 from `at` on. Its state lies in `work`, already times the g of the token to come: beside
 * the run's own, whose rows are a power of two apart and would share a few sets of the first cache, or there, when dim_k is
 * above WORK_K. One pass over it ends a token and begins the next. */
#define WORK_K 256
struct columns {
    struct delta_run r; /* a copy: no store of floats can change it */
    int64_t at, ld;
    float *work;
};

FORCED const float *key_of(const struct delta_run *r, int64_t t)
{
    return r->k + t * r->ld_in;
}

/* Row k of n_v vectors to work, and into m. The lines of the columns to come are asked for. */
FORCED void enter_row(const struct columns *c, int64_t k, int j, __m256 g, const int n_v, __m256 m[2][4])
{
    __m256 key = _mm256_broadcast_ss(c->r.k + k);
    const float *p = c->r.s + k * c->r.dim_v + c->at;
    _mm_prefetch((const char *)(p + 16), _MM_HINT_T0);
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        __m256 s = _mm256_mul_ps(_mm256_loadu_ps(p + 8 * h), g);
        _mm256_storeu_ps(c->work + k * c->ld + 8 * h, s);
        m[h][j] = _mm256_fmadd_ps(s, key, m[h][j]);
    }
}

/* The first token's m. */
FORCED void enter(const struct columns *c, const int n_v, __m256 m[2])
{
    __m256 acc[2][4], g = V8(c->r.g[0]);
    int64_t k = 0;
    UNROLL(2) for (int h = 0; h < n_v; h++) UNROLL(4) for (int j = 0; j < 4; j++) acc[h][j] = _mm256_setzero_ps();
    for (; k + 4 <= c->r.dim_k; k += 4) UNROLL(4) for (int j = 0; j < 4; j++) enter_row(c, k + j, j, g, n_v, acc);
    UNROLL(3) for (int j = 0; j < 3; j++) if (k + j < c->r.dim_k) enter_row(c, k + j, j, g, n_v, acc);
    UNROLL(2) for (int h = 0; h < n_v; h++) m[h] = chains_sum(acc[h]);
}

FORCED __m256 change(const struct columns *c, int64_t t, int h, __m256 m)
{
    __m256 x = _mm256_loadu_ps(c->r.v + t * c->r.ld_in + c->at + 8 * h);
    return _mm256_mul_ps(_mm256_sub_ps(x, m), V8(c->r.beta[t]));
}

FORCED void next_row(const struct columns *c, int64_t t, int h, int64_t k, __m256 d, __m256 g1, __m256 *o, __m256 *m)
{
    const float *key = key_of(&c->r, t) + k;
    __m256 key1 = _mm256_broadcast_ss(key + c->r.ld_in), q = _mm256_broadcast_ss(c->r.q + t * c->r.ld_in + k);
    float *w = c->work + k * c->ld + 8 * h;
    __m256 s = _mm256_fmadd_ps(_mm256_broadcast_ss(key), d, _mm256_loadu_ps(w));
    *o = _mm256_fmadd_ps(s, q, *o);
    s = _mm256_mul_ps(s, g1);
    _mm256_storeu_ps(w, s);
    *m = _mm256_fmadd_ps(s, key1, *m);
}

/* Token t of vector h, and the m of token t + 1. */
FORCED __m256 next(const struct columns *c, int64_t t, int h, __m256 m)
{
    const struct delta_run *r = &c->r;
    __m256 d = change(c, t, h, m), g1 = V8(r->g[t + 1]), o[4], acc[4];
    int64_t k = 0;
    UNROLL(4) for (int j = 0; j < 4; j++) o[j] = acc[j] = _mm256_setzero_ps();
    for (; k + 4 <= r->dim_k; k += 4) UNROLL(4) for (int j = 0; j < 4; j++) next_row(c, t, h, k + j, d, g1, &o[j], &acc[j]);
    UNROLL(3) for (int j = 0; j < 3; j++) if (k + j < r->dim_k) next_row(c, t, h, k + j, d, g1, &o[j], &acc[j]);
    _mm256_storeu_ps(r->o + t * r->ld_o + c->at + 8 * h, chains_sum(o));
    return chains_sum(acc);
}

FORCED void leave_row(const struct columns *c, int64_t t, int64_t k, int j, const int n_v, const __m256 d[2], __m256 o[2][4])
{
    __m256 key = _mm256_broadcast_ss(key_of(&c->r, t) + k), q = _mm256_broadcast_ss(c->r.q + t * c->r.ld_in + k);
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        __m256 s = _mm256_fmadd_ps(key, d[h], _mm256_loadu_ps(c->work + k * c->ld + 8 * h));
        _mm256_storeu_ps(c->r.s + k * c->r.dim_v + c->at + 8 * h, s);
        o[h][j] = _mm256_fmadd_ps(s, q, o[h][j]);
    }
}

/* The last token, and the state back to its place. */
FORCED void leave(const struct columns *c, const int n_v, const __m256 m[2])
{
    const struct delta_run *r = &c->r;
    int64_t t = r->n_tok - 1, k = 0;
    __m256 d[2], o[2][4];
    UNROLL(2) for (int h = 0; h < n_v; h++) d[h] = change(c, t, h, m[h]);
    UNROLL(2) for (int h = 0; h < n_v; h++) UNROLL(4) for (int j = 0; j < 4; j++) o[h][j] = _mm256_setzero_ps();
    for (; k + 4 <= r->dim_k; k += 4) UNROLL(4) for (int j = 0; j < 4; j++) leave_row(c, t, k + j, j, n_v, d, o);
    UNROLL(3) for (int j = 0; j < 3; j++) if (k + j < r->dim_k) leave_row(c, t, k + j, j, n_v, d, o);
    UNROLL(2) for (int h = 0; h < n_v; h++) _mm256_storeu_ps(r->o + t * r->ld_o + c->at + 8 * h, chains_sum(o[h]));
}

/* All tokens on 8 n_v columns. */
FORCED void columns_run(const struct delta_run *r, int64_t at, const int n_v, float *work)
{
    struct columns c = { *r, at, work ? 16 : r->dim_v, work ? work : r->s + at };
    __m256 m[2];
    enter(&c, n_v, m);
    UNROLL(2) for (int h = 0; h < n_v; h++) /* the last token leaves with both */
        for (int64_t t = 0; t + 1 < r->n_tok; t++) m[h] = next(&c, t, h, m[h]);
    leave(&c, n_v, m);
}

static float chains_sum_one(const float c[4])
{
    return (c[0] + c[1]) + (c[2] + c[3]);
}

static void token_one(const struct delta_run *r, int64_t t, int64_t at)
{
    const float *q = r->q + t * r->ld_in, *key = r->k + t * r->ld_in;
    float m[4] = { 0 }, o[4] = { 0 }, *s = r->s + at;
    for (int64_t k = 0; k < r->dim_k; k++) m[k & 3] = __builtin_fmaf(s[k * r->dim_v] * r->g[t], key[k], m[k & 3]);
    float d = (r->v[t * r->ld_in + at] - chains_sum_one(m)) * r->beta[t];
    for (int64_t k = 0; k < r->dim_k; k++) {
        s[k * r->dim_v] = __builtin_fmaf(key[k], d, s[k * r->dim_v] * r->g[t]);
        o[k & 3] = __builtin_fmaf(s[k * r->dim_v], q[k], o[k & 3]);
    }
    r->o[t * r->ld_o + at] = chains_sum_one(o);
}

static void delta_rule_avx2(const struct delta_run *r)
{
    _Alignas(64) float block[WORK_K * 16];
    float *work = r->dim_k <= WORK_K ? block : NULL;
    int64_t at = 0;
    if (r->n_tok == 0) return;
    for (; at + 16 <= r->dim_v; at += 16) columns_run(r, at, 2, work);
    for (; at + 8 <= r->dim_v; at += 8) columns_run(r, at, 1, work);
    for (; at < r->dim_v; at++)
        for (int64_t t = 0; t < r->n_tok; t++) token_one(r, t, at);
}

void avx2_fill_delta(struct cpu_kernels *t)
{
    t->sigmoid_mul = sigmoid_mul_avx2;
    t->delta_conv = delta_conv_avx2;
    t->delta_rule = delta_rule_avx2;
}
