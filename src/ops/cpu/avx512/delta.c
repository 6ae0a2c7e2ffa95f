/* delta.c (avx512): the delta rule on 32 columns of the state at once, 16 where no more are left, the last ones masked. As in
 * avx2/delta.c a block of columns goes through all tokens of the run, beside the state where it fits, and one pass over it ends a
 * token and begins the next: the g of the token to come is already in it. */
#include "ops/cpu/avx512/avx512_int.h"

#define WORK_K 256

/* A block of columns at work: n from `at` on. */
struct columns {
    struct delta_run r; /* a copy: no store of floats can change it */
    int64_t at, n, ld;
    float *work;
};

FORCED __m512 chains_sum(const __m512 c[4])
{
    return _mm512_add_ps(_mm512_add_ps(c[0], c[1]), _mm512_add_ps(c[2], c[3]));
}

FORCED void chains_zero(const int n_v, __m512 c[2][4])
{
    UNROLL(2) for (int h = 0; h < n_v; h++) UNROLL(4) for (int j = 0; j < 4; j++) c[h][j] = _mm512_setzero_ps();
}

/* Row k to work, and into m. The lines of the columns to come are asked for. */
FORCED void enter_row(const struct columns *c, int64_t k, int j, __m512 g, const float *key, const int n_v, __m512 m[2][4])
{
    const float *p = c->r.s + k * c->r.dim_v + c->at;
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        _mm_prefetch((const char *)(p + 16 * (n_v + h)), _MM_HINT_T0);
        __m512 s = _mm512_mul_ps(load16(p + 16 * h, c->n - 16 * h), g);
        store16(c->work + k * c->ld + 16 * h, c->n - 16 * h, s);
        m[h][j] = _mm512_fmadd_ps(s, _mm512_set1_ps(key[k]), m[h][j]);
    }
}

/* The first token's m. */
FORCED void enter(const struct columns *c, const int n_v, __m512 m[2])
{
    const float *key = c->r.k;
    __m512 acc[2][4], g = _mm512_set1_ps(c->r.g[0]);
    int64_t k = 0;
    chains_zero(n_v, acc);
    for (; k + 4 <= c->r.dim_k; k += 4) UNROLL(4) for (int j = 0; j < 4; j++) enter_row(c, k + j, j, g, key, n_v, acc);
    UNROLL(3) for (int j = 0; j < 3; j++) if (k + j < c->r.dim_k) enter_row(c, k + j, j, g, key, n_v, acc);
    UNROLL(2) for (int h = 0; h < n_v; h++) m[h] = chains_sum(acc[h]);
}

FORCED void change(const struct columns *c, int64_t t, const int n_v, const __m512 m[2], __m512 d[2])
{
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        __m512 x = load16(c->r.v + t * c->r.ld_in + c->at + 16 * h, c->n - 16 * h);
        d[h] = _mm512_mul_ps(_mm512_sub_ps(x, m[h]), _mm512_set1_ps(c->r.beta[t]));
    }
}

FORCED void outputs(const struct columns *c, int64_t t, const int n_v, const __m512 o[2][4])
{
    UNROLL(2) for (int h = 0; h < n_v; h++) store16(c->r.o + t * c->r.ld_o + c->at + 16 * h, c->n - 16 * h, chains_sum(o[h]));
}

/* Token t and the m of token t + 1. */
FORCED void next_row(const struct columns *c, int64_t t, int64_t k, int j, __m512 g1, const int n_v, const __m512 d[2],
                     __m512 o[2][4], __m512 m[2][4])
{
    const float *key = c->r.k + t * c->r.ld_in + k;
    __m512 key0 = _mm512_set1_ps(*key), q = _mm512_set1_ps(c->r.q[t * c->r.ld_in + k]), key1 = _mm512_set1_ps(key[c->r.ld_in]);
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        float *w = c->work + k * c->ld + 16 * h;
        __m512 s = _mm512_fmadd_ps(key0, d[h], load16(w, c->n - 16 * h));
        o[h][j] = _mm512_fmadd_ps(s, q, o[h][j]);
        s = _mm512_mul_ps(s, g1);
        store16(w, c->n - 16 * h, s);
        m[h][j] = _mm512_fmadd_ps(s, key1, m[h][j]);
    }
}

FORCED void next(const struct columns *c, int64_t t, const int n_v, __m512 m[2])
{
    __m512 d[2], o[2][4], acc[2][4], g1 = _mm512_set1_ps(c->r.g[t + 1]);
    int64_t k = 0;
    change(c, t, n_v, m, d);
    chains_zero(n_v, o);
    chains_zero(n_v, acc);
    for (; k + 4 <= c->r.dim_k; k += 4) UNROLL(4) for (int j = 0; j < 4; j++) next_row(c, t, k + j, j, g1, n_v, d, o, acc);
    UNROLL(3) for (int j = 0; j < 3; j++) if (k + j < c->r.dim_k) next_row(c, t, k + j, j, g1, n_v, d, o, acc);
    outputs(c, t, n_v, o);
    UNROLL(2) for (int h = 0; h < n_v; h++) m[h] = chains_sum(acc[h]);
}

/* The last token, and the state back to its place. */
FORCED void leave_row(const struct columns *c, int64_t t, int64_t k, int j, const int n_v, const __m512 d[2], __m512 o[2][4])
{
    __m512 key = _mm512_set1_ps(c->r.k[t * c->r.ld_in + k]), q = _mm512_set1_ps(c->r.q[t * c->r.ld_in + k]);
    UNROLL(2) for (int h = 0; h < n_v; h++) {
        __m512 s = _mm512_fmadd_ps(key, d[h], load16(c->work + k * c->ld + 16 * h, c->n - 16 * h));
        store16(c->r.s + k * c->r.dim_v + c->at + 16 * h, c->n - 16 * h, s);
        o[h][j] = _mm512_fmadd_ps(s, q, o[h][j]);
    }
}

FORCED void leave(const struct columns *c, const int n_v, const __m512 m[2])
{
    int64_t t = c->r.n_tok - 1, k = 0;
    __m512 d[2], o[2][4];
    change(c, t, n_v, m, d);
    chains_zero(n_v, o);
    for (; k + 4 <= c->r.dim_k; k += 4) UNROLL(4) for (int j = 0; j < 4; j++) leave_row(c, t, k + j, j, n_v, d, o);
    UNROLL(3) for (int j = 0; j < 3; j++) if (k + j < c->r.dim_k) leave_row(c, t, k + j, j, n_v, d, o);
    outputs(c, t, n_v, o);
}

/* All tokens on n columns, n_v vectors. */
FORCED void columns_run(const struct delta_run *r, int64_t at, int64_t n, const int n_v, float *work)
{
    struct columns c = { *r, at, n, work ? 32 : r->dim_v, work ? work : r->s + at };
    __m512 m[2];
    enter(&c, n_v, m);
    for (int64_t t = 0; t + 1 < r->n_tok; t++) next(&c, t, n_v, m);
    leave(&c, n_v, m);
}

static void delta_rule_avx512(const struct delta_run *r)
{
    _Alignas(64) float block[WORK_K * 32];
    float *work = r->dim_k <= WORK_K ? block : NULL;
    int64_t at = 0;
    if (r->n_tok == 0) return;
    for (; at + 32 <= r->dim_v; at += 32) columns_run(r, at, 32, 2, work);
    for (; at + 16 <= r->dim_v; at += 16) columns_run(r, at, 16, 1, work);
    if (at < r->dim_v) columns_run(r, at, r->dim_v - at, 1, work);
}

void avx512_fill_delta(struct cpu_kernels *t)
{
    t->delta_rule = delta_rule_avx512;
}
