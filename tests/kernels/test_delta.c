/* test_delta.c: the kernels of the gated delta net: every level against the plain portable build, bit for bit, portable against
 * float64, and the recurrence cut into runs of any length (MOD-026).
 */
#include "kernels/kt.h"

static struct cpu_kernels plain, level[CPU_LEVEL_COUNT];
static int n_level;

static int setup(void **state)
{
    (void)state;
    cpu_fill_portable(&plain);
    n_level = kt_levels(level);
    return 0;
}

static float *fill(struct kt_buf *b, int64_t n, float scale)
{
    *b = kt_alloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) ((float *)b->p)[i] = kt_value() * scale;
    return (float *)b->p;
}

static void test_sigmoid_mul(void **state)
{
    (void)state;
    for (int c = 0; c < 100; c++) {
        int64_t n = 1 + kt_below(70);
        struct kt_buf gate, x, want = kt_alloc((size_t)n * 4);
        float *g = fill(&gate, n, 10.0f), *v = fill(&x, n, 1.0f);
        if (c % 10 == 9) g[kt_below((int)n)] = c % 20 == 9 ? NAN : -INFINITY;
        plain.sigmoid_mul(g, v, n, (float *)want.p);
        for (int64_t i = 0; c % 10 != 9 && i < n; i++) {
            double w = (double)v[i] / (1 + exp(-(double)g[i]));
            if (fabs(w - (double)((float *)want.p)[i]) > 1e-6 * fabs(w) + 1e-30) fail_msg("sigmoid_mul(%g, %g)", g[i], v[i]);
        }
        for (int l = 0; l < n_level; l++) {
            struct kt_buf y = kt_alloc((size_t)n * 4);
            level[l].sigmoid_mul(g, v, n, (float *)y.p);
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)n, level[l].level);
            memcpy(y.p, v, (size_t)n * 4);
            level[l].sigmoid_mul(g, (float *)y.p, n, (float *)y.p); /* in place */
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)n, level[l].level);
            kt_free(&y);
        }
        kt_free(&gate);
        kt_free(&x);
        kt_free(&want);
    }
}

static void test_conv(void **state)
{
    (void)state;
    for (int c = 0; c < 200; c++) {
        int32_t n_tap = 2 + kt_below(6), n_missing = c % 3 == 0 ? kt_below(n_tap) : 0;
        int64_t n = 1 + kt_below(70), ld = n + kt_below(9);
        struct kt_buf x[8], wb, want = kt_alloc((size_t)n * 4);
        const float *taps[8];
        float *w = fill(&wb, n_tap * ld, 1.0f);
        for (int32_t j = 0; j < n_tap; j++) {
            taps[j] = fill(&x[j], n, 3.0f);
            if (j < n_missing) taps[j] = NULL;
        }
        plain.delta_conv(taps, n_tap, w, ld, n, (float *)want.p);
        for (int64_t i = 0; i < n; i++) {
            double sum = 0, size = 0;
            for (int32_t j = 0; j < n_tap; j++) {
                double term = taps[j] ? (double)w[j * ld + i] * (double)taps[j][i] : 0;
                sum += term;
                size += fabs(term);
            }
            double y = sum / (1 + exp(-sum));
            if (fabs(y - (double)((float *)want.p)[i]) > 1e-7 * (n_tap + 10) * size + 1e-30) fail_msg("delta_conv: %g, wanted %g", (double)((float *)want.p)[i], y);
        }
        for (int l = 0; l < n_level; l++) {
            struct kt_buf y = kt_alloc((size_t)n * 4);
            level[l].delta_conv(taps, n_tap, w, ld, n, (float *)y.p);
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)n, level[l].level);
            kt_free(&y);
        }
        for (int32_t j = 0; j < n_tap; j++) kt_free(&x[j]);
        kt_free(&wb);
        kt_free(&want);
    }
}

/* The recurrence in double; s and o overwritten. top[v]: the largest number that column v's state ever held, which bounds what
 * rounding may have cost it. */
static void rule64(const struct delta_run *r, double *s, double *o, double *top)
{
    for (int64_t t = 0; t < r->n_tok; t++)
        for (int64_t v = 0; v < r->dim_v; v++) {
            double m = 0, y = 0;
            for (int64_t k = 0; k < r->dim_k; k++) {
                top[v] = fmax(top[v], fabs(s[k * r->dim_v + v]));
                m += (s[k * r->dim_v + v] *= (double)r->g[t]) * (double)r->k[t * r->ld_in + k];
            }
            double d = ((double)r->v[t * r->ld_in + v] - m) * (double)r->beta[t];
            for (int64_t k = 0; k < r->dim_k; k++) {
                y += (s[k * r->dim_v + v] += (double)r->k[t * r->ld_in + k] * d) * (double)r->q[t * r->ld_in + k];
                top[v] = fmax(top[v], fabs(s[k * r->dim_v + v]));
            }
            o[t * r->dim_v + v] = y;
        }
}

struct rule_case {
    struct kt_buf in, g, beta, s0, s, o;
    struct delta_run run;
};

/* Sometimes more keys than a kernel keeps beside the state. */
static void case_make(struct rule_case *c)
{
    int64_t dk = kt_below(12) == 0 ? 250 + kt_below(20) : 1 + kt_below(40), dv = 1 + kt_below(50), n = 1 + kt_below(20);
    c->run = (struct delta_run){ .dim_k = dk, .dim_v = dv, .n_tok = n, .ld_in = 2 * dk + dv + kt_below(5), .ld_o = dv + kt_below(5) };
    float *in = fill(&c->in, n * c->run.ld_in, 1.0f), *g = fill(&c->g, n, 1.0f), *beta = fill(&c->beta, n, 1.0f);
    for (int64_t t = 0; t < n; t++) {
        g[t] = expf(-fabsf(g[t]) * 0.3f);
        beta[t] = 1 / (1 + expf(beta[t]));
        for (int64_t k = 0; k < 2 * dk; k++) in[t * c->run.ld_in + k] /= sqrtf((float)dk);
    }
    fill(&c->s0, dk * dv, 1.0f);
    c->s = kt_alloc((size_t)(dk * dv) * 4);
    c->o = kt_alloc((size_t)(n * c->run.ld_o) * 4);
    c->run.q = in;
    c->run.k = in + dk;
    c->run.v = in + 2 * dk;
    c->run.g = g;
    c->run.beta = beta;
    c->run.s = (float *)c->s.p;
    c->run.o = (float *)c->o.p;
}

static void case_start(struct rule_case *c)
{
    memcpy(c->s.p, c->s0.p, (size_t)(c->run.dim_k * c->run.dim_v) * 4);
    memset(c->o.p, 0, (size_t)(c->run.n_tok * c->run.ld_o) * 4);
}

static void case_free(struct rule_case *c)
{
    struct kt_buf *all[] = { &c->in, &c->g, &c->beta, &c->s0, &c->s, &c->o };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) kt_free(all[i]);
}

static void check_rule64(struct rule_case *c, const float *o, const float *s)
{
    int64_t n_s = c->run.dim_k * c->run.dim_v;
    double *s64 = calloc((size_t)n_s, sizeof *s64), *o64 = calloc((size_t)(c->run.n_tok * c->run.dim_v), sizeof *o64);
    double *top = calloc((size_t)c->run.dim_v, sizeof *top);
    for (int64_t i = 0; i < n_s; i++) s64[i] = (double)((float *)c->s0.p)[i];
    rule64(&c->run, s64, o64, top);
    for (int64_t i = 0; i < n_s; i++)
        if (fabs(s64[i] - (double)s[i]) > 1e-4 * (1 + top[i % c->run.dim_v])) fail_msg("state %g, wanted %g", (double)s[i], s64[i]);
    for (int64_t t = 0; t < c->run.n_tok; t++)
        for (int64_t v = 0; v < c->run.dim_v; v++) {
            double want = o64[t * c->run.dim_v + v], got = (double)o[t * c->run.ld_o + v];
            if (fabs(want - got) > 1e-4 * (1 + top[v]) * (double)c->run.dim_k) fail_msg("output %g, wanted %g", got, want);
        }
    free(top);
    free(s64);
    free(o64);
}

/* The same tokens in pieces: one call each for [0, cut), [cut, n). */
static void run_cut(const struct cpu_kernels *k, const struct delta_run *whole, int64_t cut)
{
    struct delta_run a = *whole, b = *whole;
    a.n_tok = cut;
    b.n_tok -= cut;
    b.q += cut * b.ld_in;
    b.k += cut * b.ld_in;
    b.v += cut * b.ld_in;
    b.g += cut;
    b.beta += cut;
    b.o += cut * b.ld_o;
    k->delta_rule(&a);
    k->delta_rule(&b);
}

static void test_rule(void **state)
{
    (void)state;
    for (int i = 0; i < 150; i++) {
        struct rule_case c;
        case_make(&c);
        size_t n_s = (size_t)(c.run.dim_k * c.run.dim_v), n_o = (size_t)(c.run.n_tok * c.run.ld_o);
        struct kt_buf s = kt_alloc(n_s * 4), o = kt_alloc(n_o * 4);
        case_start(&c);
        plain.delta_rule(&c.run);
        memcpy(s.p, c.s.p, n_s * 4);
        memcpy(o.p, c.o.p, n_o * 4);
        check_rule64(&c, (float *)o.p, (float *)s.p);
        for (int l = 0; l < n_level; l++)
            for (int64_t cut = 0; cut <= c.run.n_tok; cut += 1 + kt_below(7)) {
                case_start(&c);
                run_cut(&level[l], &c.run, cut);
                kt_expect_same((float *)s.p, (float *)c.s.p, n_s, level[l].level);
                kt_expect_same((float *)o.p, (float *)c.o.p, n_o, level[l].level);
            }
        kt_free(&s);
        kt_free(&o);
        case_free(&c);
    }
}

int main(void)
{
    kt_seed();
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sigmoid_mul), cmocka_unit_test(test_conv), cmocka_unit_test(test_rule) };
    return cmocka_run_group_tests_name("delta", tests, setup, NULL);
}
