/* test_lora.c: the two products of an adapter: every level against the plain portable build, bit for bit, and portable
 * against float64. Widths and ranks reach whole vectors, tails, single rows. */
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

static void fill(struct kt_buf *b, int64_t n, bool specials)
{
    static const float odd[] = { 0.0f, -0.0f, INFINITY, NAN, 1e-40f, -1e30f };
    for (int64_t i = 0; i < n; i++)
        ((float *)b->p)[i] = specials && kt_below(32) == 0 ? odd[kt_below(6)] : kt_value();
}

static void check_close(double want, double magnitude, float got)
{
    if (!(fabs(want - (double)got) <= 1e-6 * magnitude + 1e-12)) fail_msg("portable: wanted %g, got %g", want, (double)got);
}

static void test_lora_project(void **state)
{
    (void)state;
    for (int c = 0; c < 200; c++) {
        int64_t k = 1 + kt_below(c % 5 == 0 ? 700 : 90), ld = k + kt_below(3);
        int32_t n = 1 + kt_below(9);
        bool specials = c % 10 == 9;
        struct kt_buf a = kt_alloc((size_t)(n * ld) * 4), x = kt_alloc((size_t)k * 4), want = kt_alloc((size_t)n * 4);
        fill(&a, n * ld, specials);
        fill(&x, k, specials);
        plain.lora_project((float *)a.p, ld, n, (float *)x.p, k, (float *)want.p);
        for (int32_t r = 0; r < n && !specials; r++) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < k; j++) {
                double p = (double)((float *)a.p)[r * ld + j] * (double)((float *)x.p)[j];
                sum += p;
                size += fabs(p);
            }
            check_close(sum, size, ((float *)want.p)[r]);
        }
        for (int l = 0; l < n_level; l++) {
            struct kt_buf u = kt_alloc((size_t)n * 4);
            level[l].lora_project((float *)a.p, ld, n, (float *)x.p, k, (float *)u.p);
            kt_expect_same((float *)want.p, (float *)u.p, (size_t)n, level[l].level);
            kt_free(&u);
        }
        kt_free(&a);
        kt_free(&x);
        kt_free(&want);
    }
}

static void test_lora_add(void **state)
{
    (void)state;
    for (int c = 0; c < 200; c++) {
        int64_t n = 1 + kt_below(c % 5 == 0 ? 300 : 70), ld = n + kt_below(3);
        int32_t rank = 1 + kt_below(70);
        bool specials = c % 10 == 9;
        struct kt_buf b = kt_alloc((size_t)(rank * ld) * 4), u = kt_alloc((size_t)rank * 4), y = kt_alloc((size_t)n * 4),
                      want = kt_alloc((size_t)n * 4);
        fill(&b, rank * ld, specials);
        fill(&u, rank, specials);
        fill(&y, n, specials);
        memcpy(want.p, y.p, (size_t)n * 4);
        plain.lora_add((float *)b.p, ld, rank, (float *)u.p, n, (float *)want.p);
        for (int64_t o = 0; o < n && !specials; o++) {
            double sum = ((float *)y.p)[o], size = fabs(sum);
            for (int32_t r = 0; r < rank; r++) {
                double p = (double)((float *)b.p)[r * ld + o] * (double)((float *)u.p)[r];
                sum += p;
                size += fabs(p);
            }
            check_close(sum, size, ((float *)want.p)[o]);
        }
        for (int l = 0; l < n_level; l++) {
            struct kt_buf z = kt_alloc((size_t)n * 4);
            memcpy(z.p, y.p, (size_t)n * 4);
            level[l].lora_add((float *)b.p, ld, rank, (float *)u.p, n, (float *)z.p);
            kt_expect_same((float *)want.p, (float *)z.p, (size_t)n, level[l].level);
            kt_free(&z);
        }
        kt_free(&b);
        kt_free(&u);
        kt_free(&y);
        kt_free(&want);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    kt_seed();
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_lora_project), cmocka_unit_test(test_lora_add) };
    return cmocka_run_group_tests_name("lora", tests, setup, NULL);
}
