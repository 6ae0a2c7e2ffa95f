/* test_mathfn.c: the elementary functions against float64 with the error bounds of docs/numerics-math.md, their edges, the
 * published Philox vectors, and digests that every machine and compiler must reproduce. */
#include "kernels/kt.h"

static double ulps(float got, double want)
{
    float w = (float)want;
    double u = (double)nextafterf(fabsf(w), INFINITY) - (double)fabsf(w);
    return fabs((double)got - want) / u;
}

static void scan(const char *name, float (*f)(float), double (*ref)(double), double lo, double hi, double max_ulp)
{
    for (int i = 0; i < 400000; i++) {
        float x = (float)(lo + (hi - lo) * (double)i / 400000.0);
        double e = ulps(f(x), ref((double)x));
        if (e > max_ulp) fail_msg("%s(%a): %.3f ulp, bound %.2f", name, (double)x, e, max_ulp);
    }
}

static void scan_abs(const char *name, float (*f)(float), double (*ref)(double), double lo, double hi, double bound)
{
    for (int i = 0; i < 400000; i++) {
        float x = (float)(lo + (hi - lo) * (double)i / 400000.0);
        double e = fabs((double)f(x) - ref((double)x)) / (1.0 + fabs((double)x));
        if (e > bound) fail_msg("%s(%a): error %g, bound %g", name, (double)x, e, bound);
    }
}

static double silu_ref(double x) { return x / (1.0 + exp(-x)); }
static double gelu_erf_ref(double x) { return 0.5 * x * (1.0 + erf(x / sqrt(2.0))); }
static double gelu_tanh_ref(double x) { return 0.5 * x * (1.0 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))); }

static void test_accuracy(void **state)
{
    (void)state;
    scan("exp2_neg", mb_exp2_neg, exp2, -126.0, 0.0, 0.95);
    scan("exp", mb_exp, exp, -87.3, 88.7, 1.0);
    scan("log", mb_log, log, 1e-7, 0.9, 1.0);
    scan("log", mb_log, log, 0.9, 1.1, 1.0);
    scan("log", mb_log, log, 1.0, 1e6, 1.0);
    scan("tanh", mb_tanh, tanh, -10.0, 10.0, 1.5);
    scan("silu", mb_silu, silu_ref, -20.0, 20.0, 3.0);
    scan_abs("gelu_tanh", mb_gelu_tanh, gelu_tanh_ref, -10.0, 10.0, 1e-7);
    scan_abs("gelu_erf", mb_gelu_erf, gelu_erf_ref, -10.0, 10.0, 1e-7);
}

static void test_edges(void **state)
{
    (void)state;
    assert_true(mb_exp2_neg(0.0f) == 1.0f);
    assert_true(mb_exp2_neg(-0.0f) == 1.0f);
    assert_true(mb_exp2_neg(-126.0f) == 0x1p-126f);
    assert_true(mb_exp2_neg(nextafterf(-126.0f, -INFINITY)) == 0.0f);
    assert_true(mb_exp2_neg(-INFINITY) == 0.0f);
    assert_true(mb_exp(0.0f) == 1.0f && mb_exp(-INFINITY) == 0.0f && mb_exp(INFINITY) == INFINITY);
    assert_true(mb_exp(88.72f) < INFINITY && mb_exp(89.0f) == INFINITY && mb_exp(-88.0f) == 0.0f);
    assert_true(mb_log(1.0f) == 0.0f && mb_log(0.0f) == -INFINITY && mb_log(INFINITY) == INFINITY);
    assert_true(mb_log(-1.0f) != mb_log(-1.0f));
    assert_true(ulps(mb_log(0x1p-149f), log(0x1p-149)) < 1.0 && ulps(mb_log(0x1.8p-130f), log(0x1.8p-130)) < 1.0);
    assert_true(mb_tanh(100.0f) == 1.0f && mb_tanh(-100.0f) == -1.0f && mb_tanh(0.0f) == 0.0f);
    assert_true(mb_silu(-200.0f) == 0.0f && mb_silu(200.0f) == 200.0f);
    float (*const f[])(float) = { mb_exp2_neg, mb_exp, mb_log, mb_tanh, mb_silu, mb_gelu_tanh, mb_gelu_erf };
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) assert_true(f[i](NAN) != f[i](NAN));
}

static void test_double(void **state)
{
    (void)state;
    for (int i = 0; i < 100000; i++) {
        double b = exp((double)kt_unit() * 20.0), e = (double)kt_unit() * 6.0;
        long double want = powl((long double)b, (long double)e);
        double got = mb_pow_d(b, e), ulp = nextafter((double)want, INFINITY) - (double)want;
        if (fabsl((long double)got - want) > 4.0L * (long double)ulp) fail_msg("pow(%a, %a)", b, e);
        double x = (double)kt_unit() * exp2((double)kt_below(32)), s, c;
        mb_sincos_d(x, &s, &c);
        if (fabsl((long double)s - sinl((long double)x)) > 1e-15L || fabsl((long double)c - cosl((long double)x)) > 1e-15L)
            fail_msg("sincos(%a)", x);
    }
    assert_true(mb_pow_d(10000.0, 0.0) == 1.0 && mb_pow_d(1.0, 7.0) == 1.0 && mb_pow_d(2.0, -1.0) == 0.5);
}

/* Known answers of the paper's reference implementation (philox4x32-10). */
static void test_philox(void **state)
{
    (void)state;
    static const uint32_t in[3][6] = { { 0, 0, 0, 0, 0, 0 },
                                       { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u },
                                       { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0 } };
    static const uint32_t want[3][4] = { { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
                                         { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
                                         { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        mb_philox4x32(in[i], in[i] + 4, out);
        for (int j = 0; j < 4; j++) assert_int_equal(out[j], want[i][j]);
    }
}

/* FNV-1a over the results of every 4,099th bit pattern: a compiler that adds or drops a rounding changes it. */
static uint64_t digest(float (*f)(float))
{
    uint64_t h = 14695981039346656037u;
    for (uint64_t b = 0; b <= 0xffffffffu; b += 4099) {
        uint32_t bits = (uint32_t)b;
        float x, y;
        memcpy(&x, &bits, 4);
        y = f(x);
        uint32_t r = y != y ? 0x7fc00000u : kt_bits(y);
        h = (h ^ r) * 1099511628211u;
    }
    return h;
}

static float exp2_neg_any(float x)
{
    return mb_exp2_neg(x > 0.0f ? -x : x);
}

static void test_digests(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        float (*f)(float);
        uint64_t want;
    } rows[] = {
        { "exp2_neg", exp2_neg_any, 0xc50ba2ba20440624 },
        { "exp", mb_exp, 0xd60e083b335a2328 },
        { "log", mb_log, 0x25d61ed69daef3fd },
        { "tanh", mb_tanh, 0x3d2a75870539dd3c },
        { "silu", mb_silu, 0x1254c818c655f819 },
        { "gelu_tanh", mb_gelu_tanh, 0xece1331d73ec0ba4 },
        { "gelu_erf", mb_gelu_erf, 0x022987af53390bc9 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t got = digest(rows[i].f);
        if (got != rows[i].want) fail_msg("%s: digest %016llx", rows[i].name, (unsigned long long)got);
    }
}

int main(void)
{
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy), cmocka_unit_test(test_edges),   cmocka_unit_test(test_double),
        cmocka_unit_test(test_philox),   cmocka_unit_test(test_digests),
    };
    return cmocka_run_group_tests_name("mathfn", tests, NULL, NULL);
}
