/* test_rows.c: float rows (norm, rope, activations), vocabulary reductions and the draw: every level against the plain
 * portable build, bit for bit, and portable against float64. */
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

static float special(void)
{
    static const float v[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, -1e-40f, 88.72f, -87.33f, 88.73f, -87.34f,
                               0.625f, -0.625f, 1e30f, -1e30f, 0x1p-126f };
    return v[kt_below((int)(sizeof v / sizeof *v))];
}

static void fill(float *x, int64_t n, float scale, bool specials)
{
    for (int64_t i = 0; i < n; i++) x[i] = specials && kt_below(16) == 0 ? special() : kt_value() * scale;
}

static void test_rmsnorm(void **state)
{
    (void)state;
    for (int c = 0; c < 200; c++) {
        int64_t n = 1 + kt_below(300);
        struct kt_buf x = kt_alloc((size_t)n * 4), w = kt_alloc((size_t)n * 4), want = kt_alloc((size_t)n * 4);
        fill((float *)x.p, n, c & 1 ? 100.0f : 1.0f, c % 10 == 9);
        fill((float *)w.p, n, 1.0f, false);
        const float *wp = c % 3 == 0 ? NULL : (float *)w.p;
        plain.rmsnorm((float *)x.p, wp, n, 1e-5f, (float *)want.p);
        if (c % 10 != 9) { /* against float64 */
            double ss = 0;
            for (int64_t i = 0; i < n; i++) ss += (double)((float *)x.p)[i] * (double)((float *)x.p)[i];
            double r = 1.0 / sqrt(ss / (double)n + 1e-5);
            for (int64_t i = 0; i < n; i++) {
                double v = (double)((float *)x.p)[i] * r * (wp ? (double)wp[i] : 1.0);
                if (fabs(v - (double)((float *)want.p)[i]) > 1e-6 * fabs(v) + 1e-12) fail_msg("rmsnorm portable %g", v);
            }
        }
        for (int l = 0; l < n_level; l++) {
            struct kt_buf y = kt_alloc((size_t)n * 4);
            level[l].rmsnorm((float *)x.p, wp, n, 1e-5f, (float *)y.p);
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)n, level[l].level);
            memcpy(y.p, x.p, (size_t)n * 4);
            level[l].rmsnorm((float *)y.p, wp, n, 1e-5f, (float *)y.p); /* in place */
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)n, level[l].level);
            kt_free(&y);
        }
        kt_free(&x);
        kt_free(&w);
        kt_free(&want);
    }
}

static void test_rope(void **state)
{
    (void)state;
    for (int c = 0; c < 200; c++) {
        int64_t n = 2 * (1 + kt_below(70)), d = n + kt_below(20);
        bool inter = c & 1;
        struct kt_buf x = kt_alloc((size_t)d * 4), cs = kt_alloc((size_t)n * 4), want = kt_alloc((size_t)d * 4);
        fill((float *)x.p, d, 1.0f, false);
        for (int64_t i = 0; i < n / 2; i++) {
            double s, co;
            mb_sincos_d(kt_unit() * 3000.0, &s, &co);
            ((float *)cs.p)[i] = (float)co;
            ((float *)cs.p)[n / 2 + i] = (float)s;
        }
        memcpy(want.p, x.p, (size_t)d * 4);
        plain.rope((float *)want.p, n, inter, (float *)cs.p);
        for (int l = 0; l < n_level; l++) {
            struct kt_buf y = kt_alloc((size_t)d * 4);
            memcpy(y.p, x.p, (size_t)d * 4);
            level[l].rope((float *)y.p, n, inter, (float *)cs.p);
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)d, level[l].level);
            kt_free(&y);
        }
        kt_free(&x);
        kt_free(&cs);
        kt_free(&want);
    }
}

static void one_elementwise(const struct cpu_kernels *t, int op, float *y, const float *x, const float *u, int64_t n)
{
    switch (op) {
    case 0: memcpy(y, x, (size_t)n * 4); t->scale(y, n, 1.7f); break;
    case 1: memcpy(y, x, (size_t)n * 4); t->add(y, u, n); break;
    case 2: t->silu_mul(x, u, n, y); break;
    case 3: t->gelu_tanh_mul(x, u, n, y); break;
    case 4: t->swiglu_clamped(x, u, n, y); break;
    case 5: t->swiglu_clamped(u, x, n, y); break;
    default: memcpy(y, x, (size_t)n * 4); t->softcap(y, n, 30.0f); break;
    }
}

static void test_elementwise(void **state)
{
    (void)state;
    for (int c = 0; c < 500; c++) {
        int64_t n = 1 + kt_below(100);
        struct kt_buf x = kt_alloc((size_t)n * 4), u = kt_alloc((size_t)n * 4), want = kt_alloc((size_t)n * 4);
        fill((float *)x.p, n, c & 1 ? 10.0f : 100.0f, true);
        fill((float *)u.p, n, 1.0f, false);
        one_elementwise(&plain, c % 7, (float *)want.p, (float *)x.p, (float *)u.p, n);
        for (int l = 0; l < n_level; l++) {
            struct kt_buf y = kt_alloc((size_t)n * 4);
            char what[64];
            snprintf(what, sizeof what, "%s op %d", level[l].level, c % 7);
            one_elementwise(&level[l], c % 7, (float *)y.p, (float *)x.p, (float *)u.p, n);
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)n, what);
            kt_free(&y);
        }
        kt_free(&x);
        kt_free(&u);
        kt_free(&want);
    }
}

/* Dense sweep of the vector functions through silu, gelu, the clamped swiglu and softcap. */
static void test_elementwise_sweep(void **state)
{
    (void)state;
    int64_t n = 1 << 16;
    struct kt_buf x = kt_alloc((size_t)n * 4), u = kt_alloc((size_t)n * 4), a = kt_alloc((size_t)n * 4), b = kt_alloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)i << 16 | (kt_u32() & 0xffff); /* every exponent and sign */
        memcpy(x.p + 4 * i, &bits, 4);
        ((float *)u.p)[i] = 1.0f;
    }
    for (int op = 2; op < 7; op++) {
        one_elementwise(&plain, op, (float *)a.p, (float *)x.p, (float *)u.p, n);
        for (int l = 0; l < n_level; l++) {
            one_elementwise(&level[l], op, (float *)b.p, (float *)x.p, (float *)u.p, n);
            kt_expect_same((float *)a.p, (float *)b.p, (size_t)n, level[l].level);
        }
    }
    kt_free(&x);
    kt_free(&u);
    kt_free(&a);
    kt_free(&b);
}

static void test_vocab_reductions(void **state)
{
    (void)state;
    for (int c = 0; c < 300; c++) {
        int64_t n = c < 100 ? 1 + kt_below(70) : 1 + kt_below(5000);
        struct kt_buf x = kt_alloc((size_t)n * 4);
        float *p = (float *)x.p;
        for (int64_t i = 0; i < n; i++) p[i] = kt_below(8) == 0 ? -INFINITY : kt_value() * 20.0f;
        if (c % 4 == 1) /* ties */
            for (int64_t i = 0; i < n; i++) p[i] = (float)kt_below(5);
        if (c % 16 == 2)
            for (int64_t i = 0; i < n; i++) p[i] = -INFINITY;
        if (c % 16 == 3) p[kt_below((int)n)] = kt_below(2) ? NAN : INFINITY;
        float m0, m1;
        int64_t a0, a1;
        bool f0, f1;
        plain.vocab_max(p, n, &m0, &a0, &f0);
        assert_int_equal(f0, c % 16 != 3);
        for (int l = 0; l < n_level; l++) {
            level[l].vocab_max(p, n, &m1, &a1, &f1);
            assert_int_equal(f0, f1);
            if (!f0) continue;
            kt_expect_same(&m0, &m1, 1, level[l].level);
            assert_int_equal(a0, a1);
            float s0 = plain.vocab_sumexp(p, n, m0), s1 = level[l].vocab_sumexp(p, n, m0);
            kt_expect_same(&s0, &s1, 1, level[l].level);
        }
        if (f0 && m0 > -INFINITY) {
            double s = 0;
            for (int64_t i = 0; i < n; i++) s += exp((double)p[i] - (double)m0);
            assert_true(fabs(s - (double)plain.vocab_sumexp(p, n, m0)) < 2e-6 * s);
        }
        kt_free(&x);
    }
}

static void test_vocab_gumbel(void **state)
{
    (void)state;
    for (int c = 0; c < 400; c++) {
        int64_t n = c < 100 ? 1 + kt_below(70) : 1 + kt_below(3000);
        struct kt_buf x = kt_alloc((size_t)n * 4);
        float *p = (float *)x.p;
        int sparse = c % 3;
        for (int64_t i = 0; i < n; i++) p[i] = kt_below(sparse == 2 ? 200 : 8) < (sparse == 2 ? 199 : sparse) ? -INFINITY : kt_value() * 3.0f;
        if (c % 50 == 7)
            for (int64_t i = 0; i < n; i++) p[i] = -INFINITY;
        struct noise_key key = { (uint64_t)kt_u32() << 32 | kt_u32(), kt_u32() & 0xff, kt_u32() & 3 };
        uint32_t index = kt_u32();
        float inv = c % 7 == 0 ? 1e20f : c % 7 == 1 ? 3e38f : 1.0f / (0.05f + fabsf(kt_unit()) * 2.0f);
        int64_t want = plain.vocab_gumbel(p, n, inv, &key, index, NOISE_DRAW);
        if (want >= 0) assert_true(p[want] > -INFINITY);
        for (int l = 0; l < n_level; l++) {
            int64_t got = level[l].vocab_gumbel(p, n, inv, &key, index, NOISE_DRAW);
            if (got != want) fail_msg("%s: gumbel n %d want %d got %d", level[l].level, (int)n, (int)want, (int)got);
        }
        kt_free(&x);
    }
}

/* The draw has the distribution it should: frequencies of 8 ids over 40,000 draws, chi square with 7 degrees. */
static void test_gumbel_distribution(void **state)
{
    (void)state;
    float x[8];
    double prob[8], sum = 0, chi = 0;
    int count[8] = { 0 }, n = 40000;
    for (int i = 0; i < 8; i++) {
        x[i] = (float)i * 0.4f;
        sum += prob[i] = exp((double)x[i] / 0.8);
    }
    struct noise_key key = { 12345, 0, 0 };
    for (int i = 0; i < n; i++) count[level[n_level - 1].vocab_gumbel(x, 8, 1.0f / 0.8f, &key, (uint32_t)i, NOISE_DRAW)]++;
    for (int i = 0; i < 8; i++) {
        double want = prob[i] / sum * n;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(chi < 24.3); /* p = 0.001; the key is fixed, so this never flickers */
}

static void bench(void)
{
    int64_t n = 49152;
    struct kt_buf x = kt_alloc((size_t)n * 4), y = kt_alloc((size_t)n * 4);
    struct noise_key key = { 1, 0, 0 };
    for (int64_t i = 0; i < n; i++) ((float *)x.p)[i] = kt_unit() * 8.0f;
    setup(NULL);
    for (int l = 0; l < n_level; l++) {
        double t;
        float m;
        int64_t a;
        bool f;
        volatile int64_t sink;
        volatile float fsink;
        KT_TIME(t, level[l].vocab_max((float *)x.p, n, &m, &a, &f));
        printf("%-9s vocab_max    %6.2f ns per id\n", level[l].level, t * 1e9 / (double)n);
        KT_TIME(t, fsink = level[l].vocab_sumexp((float *)x.p, n, 8.0f));
        printf("%-9s vocab_sumexp %6.2f ns per id\n", level[l].level, t * 1e9 / (double)n);
        KT_TIME(t, sink = level[l].vocab_gumbel((float *)x.p, n, 1.0f, &key, 3, NOISE_DRAW));
        printf("%-9s vocab_gumbel %6.2f ns per id\n", level[l].level, t * 1e9 / (double)n);
        KT_TIME(t, level[l].silu_mul((float *)x.p, (float *)x.p, n, (float *)y.p));
        printf("%-9s silu_mul     %6.2f ns per value\n", level[l].level, t * 1e9 / (double)n);
        KT_TIME(t, level[l].rmsnorm((float *)x.p, (float *)x.p, 576, 1e-5f, (float *)y.p));
        printf("%-9s rmsnorm      %6.2f ns per value\n", level[l].level, t * 1e9 / 576);
        (void)sink;
        (void)fsink;
    }
    kt_free(&x);
    kt_free(&y);
}

int main(int argc, char **argv)
{
    kt_seed();
    if (kt_bench_asked(argc, argv)) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),           cmocka_unit_test(test_rope),
        cmocka_unit_test(test_elementwise),       cmocka_unit_test(test_elementwise_sweep),
        cmocka_unit_test(test_vocab_reductions),  cmocka_unit_test(test_vocab_gumbel),
        cmocka_unit_test(test_gumbel_distribution),
    };
    return cmocka_run_group_tests_name("rows", tests, setup, NULL);
}
