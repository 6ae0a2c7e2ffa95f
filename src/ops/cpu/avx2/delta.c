/* delta.c (avx2): the gated delta net's own operations, lanes along the columns of the state. A block of 16 columns goes through
 * all tokens of the run before the next one, so that it stays in the first cache: eight accumulators of four chains each
 * keep both multiply units busy. Columns that are left over go eight at a time, then one by one. */
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

/* m of n_v vectors of columns from `at` on, k of one chain a turn. */
FORCED void read_turn(const struct delta_run *r, int64_t at, int64_t k, int chain, __m256 g, const float *key, const int n_v,
                      __m256 m[2][4])
{
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        __m256 s = _mm256_mul_ps(_mm256_loadu_ps(r->s + k * r->dim_v + at + 8 * h), g);
        m[h][chain] = _mm256_fmadd_ps(s, V8(key[k]), m[h][chain]);
    }
}

FORCED void write_turn(const struct delta_run *r, int64_t at, int64_t k, int chain, __m256 g, const float *key, const float *q,
                       const int n_v, const __m256 d[2], __m256 o[2][4])
{
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        float *p = r->s + k * r->dim_v + at + 8 * h;
        __m256 s = _mm256_fmadd_ps(V8(key[k]), d[h], _mm256_mul_ps(_mm256_loadu_ps(p), g));
        _mm256_storeu_ps(p, s);
        o[h][chain] = _mm256_fmadd_ps(s, V8(q[k]), o[h][chain]);
    }
}

/* One token on 8 n_v columns. */
FORCED void token_v(const struct delta_run *r, int64_t t, int64_t at, const int n_v)
{
    const float *q = r->q + t * r->ld_in, *key = r->k + t * r->ld_in, *x = r->v + t * r->ld_in + at;
    __m256 g = V8(r->g[t]), zero = _mm256_setzero_ps(), d[2] = { zero, zero }, acc[2][4];
    int64_t k = 0;
    UNROLL(2) for (int h = 0; h < 2; h++) UNROLL(4) for (int c = 0; c < 4; c++) acc[h][c] = zero;
    for (; k + 4 <= r->dim_k; k += 4) UNROLL(4) for (int c = 0; c < 4; c++) read_turn(r, at, k + c, c, g, key, n_v, acc);
    for (int64_t j = k; j < r->dim_k; j++) read_turn(r, at, j, (int)(j & 3), g, key, n_v, acc);
    UNROLL(2) for (int h = 0; h < n_v; h++)
        d[h] = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + 8 * h), chains_sum(acc[h])), V8(r->beta[t]));
    UNROLL(2) for (int h = 0; h < 2; h++) UNROLL(4) for (int c = 0; c < 4; c++) acc[h][c] = zero;
    for (k = 0; k + 4 <= r->dim_k; k += 4)
        UNROLL(4) for (int c = 0; c < 4; c++) write_turn(r, at, k + c, c, g, key, q, n_v, d, acc);
    for (int64_t j = k; j < r->dim_k; j++) write_turn(r, at, j, (int)(j & 3), g, key, q, n_v, d, acc);
    UNROLL(2) for (int h = 0; h < n_v; h++) _mm256_storeu_ps(r->o + t * r->ld_o + at + 8 * h, chains_sum(acc[h]));
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
    int64_t at = 0;
    for (; at + 16 <= r->dim_v; at += 16)
        for (int64_t t = 0; t < r->n_tok; t++) token_v(r, t, at, 2);
    for (; at + 8 <= r->dim_v; at += 8)
        for (int64_t t = 0; t < r->n_tok; t++) token_v(r, t, at, 1);
    for (; at < r->dim_v; at++)
        for (int64_t t = 0; t < r->n_tok; t++) token_one(r, t, at);
}

void avx2_fill_delta(struct cpu_kernels *t)
{
    t->sigmoid_mul = sigmoid_mul_avx2;
    t->delta_conv = delta_conv_avx2;
    t->delta_rule = delta_rule_avx2;
}
