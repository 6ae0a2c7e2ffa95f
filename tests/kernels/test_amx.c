/* test_amx.c: the tile matmuls of the amx level over the plain-C tile operations (amx/tiles_c.h), on every machine: the
 * kernel source is the one the level compiles with real tiles. Against portable, bit for bit. Where the machine has tiles
 * test_matmul.c covers the real ones besides. */
#include "kernels/kt_matmul.h"

#include "ops/cpu/amx/tiles_c.h"

#include "ops/cpu/amx/matmul_tiles.h"
#include "ops/cpu/amx/matmul_few.h"

static bool few; /* matmul_few.h, not matmul_tiles.h */

static void tiles_matmul(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                         int64_t m, float *y, int64_t ld_y)
{
    if (few)
        matmul_few(w->type, x->form == ACT_Q16, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_tiles(w->type, x->form == ACT_Q16, w, blk0, blk1, x, row0, m, y, ld_y);
}

/* Calls that share a cpu_laid: the first lays the inputs out (or each does, where they are more than a piece of k), the others find them. */
static void check_laid(const struct problem *pr, const struct cpu_act *a, int64_t row0, int64_t m, const float *want, const char *what)
{
    int64_t n = pr->w.n, blocks = (n + 15) / 16;
    struct cpu_act x = *a;
    struct kt_buf laid = kt_alloc(sizeof(struct cpu_laid)), y = kt_alloc((size_t)(m * n) * 4);
    x.laid = (struct cpu_laid *)(void *)laid.p;
    x.laid->is_laid = false;
    for (int64_t b = 0; b < blocks; b++) tiles_matmul(&pr->w, b, b + 1, &x, row0, m, (float *)y.p + 16 * b, n);
    kt_expect_same(want + row0 * n, (float *)y.p, (size_t)(m * n), what);
    assert_int_equal(x.laid->is_laid, pr->w.k <= FEW_PIECE_K);
    kt_free(&laid);
    kt_free(&y);
}

static void check_tiles(int bits, int g, enum dtype dt, enum act_form form, int64_t n, int64_t k, int64_t m, enum flavour fl)
{
    struct cpu_kernels plain;
    cpu_kernels_fill(&plain, CPU_PORTABLE);
    struct problem pr = problem_make(bits, g, dt, n, k);
    struct kt_buf x = kt_alloc((size_t)(m * k) * 4), want = kt_alloc((size_t)(m * n) * 4), ab;
    x_fill((float *)x.p, m, k, fl);
    struct cpu_act a = act_make(&plain, form, g, k, m, (float *)x.p, &ab);
    int64_t blocks = (n + 15) / 16;
    pick(&plain, pr.w.type, form)(&pr.w, 0, blocks, &a, 0, m, (float *)want.p, n);
    char what[160];
    snprintf(what, sizeof what, "tiles bits %d g %d dt %d form %d n %lld k %lld m %lld flavour %d", bits, g, dt, form,
             (long long)n, (long long)k, (long long)m, fl);
    struct kt_buf y = kt_alloc((size_t)(m * n) * 4);
    tiles_matmul(&pr.w, 0, blocks, &a, 0, m, (float *)y.p, n);
    kt_expect_same((float *)want.p, (float *)y.p, (size_t)(m * n), what);
    kt_free(&y);

    int64_t b0 = kt_below((int)blocks), b1 = b0 + 1 + kt_below((int)(blocks - b0)), r0 = kt_below((int)m),
            mm = 1 + kt_below((int)(m - r0)), width = (16 * b1 < n ? 16 * b1 : n) - 16 * b0, ld = width + kt_below(5);
    y = kt_alloc((size_t)(mm * ld) * 4);
    tiles_matmul(&pr.w, b0, b1, &a, r0, mm, (float *)y.p, ld);
    for (int64_t i = 0; i < mm; i++) {
        kt_expect_same((float *)want.p + (r0 + i) * n + 16 * b0, (float *)y.p + i * ld, (size_t)width, what);
        for (size_t j = (size_t)(i * ld + width) * 4; j < (size_t)((i + 1) * ld) * 4; j++)
            if (y.p[j] != KT_FILL) fail_msg("%s: wrote between rows", what);
    }
    kt_free(&y);
    if (few) check_laid(&pr, &a, r0, mm, (float *)want.p, what);
    kt_free(&x);
    kt_free(&want);
    kt_free(&ab);
    problem_free(&pr);
}

static void test_b109_tiles_equal_portable(void **state)
{
    (void)state;
    static const int bits[] = { 4, 8, 2, 3, 5, 6 }, groups[] = { 32, 64, 128 };
    static const enum dtype dts[] = { DT_BF16, DT_F16, DT_F32 };
    for (int b = 0; b < 6; b++)
        for (int gi = 0; gi < 3; gi++)
            for (int d = 0; d < 3; d++)
                for (int f = 1; f < 3; f++)
                    check_tiles(bits[b], groups[gi], dts[d], (enum act_form)f, 1 + kt_below(60), groups[gi] * (1 + kt_below(5)),
                                1 + kt_below(40), (enum flavour)kt_below(4));
    for (int i = 0; i < 4; i++) /* groups of 16: the fp4 path */
        check_tiles(8, 16, DT_BF16, i & 1 ? ACT_Q8 : ACT_Q16, 40, 16 * (1 + kt_below(40)), 1 + kt_below(30), PLAIN);
}

/* Every row count up to five tiles, with both kinds of tail. */
static void test_tiles_every_row_count(void **state)
{
    (void)state;
    for (int64_t m = 1; m <= 70; m++)
        check_tiles(m & 1 ? 4 : 8, m & 2 ? 32 : 64, DT_BF16, m & 4 ? ACT_Q8 : ACT_Q16, 1 + kt_below(40), 128, m, PLAIN);
}

/* More than one piece of k, more blocks and more strips than one run. */
static void test_tiles_pieces(void **state)
{
    (void)state;
    for (int f = 1; f < 3; f++) {
        check_tiles(4, 32, DT_BF16, (enum act_form)f, 16 * RUN_BLOCKS + 6, PIECE_K * 2 + 32, 20, PLAIN);
        check_tiles(8, 64, DT_F16, (enum act_form)f, 16 * RUN_BLOCKS + 6, PIECE_K + 64, 33, PLAIN);
        check_tiles(4, 128, DT_BF16, (enum act_form)f, 17, PIECE_K * 2 + 128, 17, PLAIN);
        check_tiles(8, 16, DT_BF16, (enum act_form)f, 24, PIECE_K + 16, 40, PLAIN);
        check_tiles(4, 32, DT_F16, (enum act_form)f, 33, PIECE_K + 32, 16 * RUN_STRIPS + 21, PLAIN);
    }
}

/* The largest codes and inputs, all of them v[kind], or mixed: the sums that lanes_sums must convert. */
enum { EXTREMES = 3 };
static void check_extremes(int bits, int g, enum act_form form, int kind)
{
    enum { M = 20, N = 80, K = 256 };
    struct cpu_kernels plain;
    cpu_kernels_fill(&plain, CPU_PORTABLE);
    struct problem pr = problem_make(bits, g, DT_BF16, N, K);
    memset(pr.codes.p, 0xff, pr.codes.size);
    cpu_pack_blocks(&pr.src, 0, N / 16, pr.packed.p);
    struct kt_buf x = kt_alloc(M * K * 4), want = kt_alloc(M * N * 4), y = kt_alloc(M * N * 4), ab;
    /* Limbs, high and low: 127 and 0, -127 and 0, 127 and -128, 125 and 127. */
    static const float v[EXTREMES + 1] = { 32512.0f, -32512.0f, 32512.0f - 128.0f, 32127.0f };
    for (int64_t i = 0; i < M * K; i++) ((float *)x.p)[i] = i % g == 0 && kind != 1 ? 32512.0f : v[kind < EXTREMES ? kind : kt_below(EXTREMES + 1)];
    struct cpu_act a = act_make(&plain, form, g, K, M, (float *)x.p, &ab);
    pick(&plain, pr.w.type, form)(&pr.w, 0, N / 16, &a, 0, M, (float *)want.p, N);
    tiles_matmul(&pr.w, 0, N / 16, &a, 0, M, (float *)y.p, N);
    kt_expect_same((float *)want.p, (float *)y.p, M * N, "extremes");
    kt_free(&x);
    kt_free(&y);
    kt_free(&want);
    kt_free(&ab);
    problem_free(&pr);
}

/* matmul_few.h: every number of rows, odd and even numbers of groups, pieces of k, blocks that are not full. */
static void test_few_equal_portable(void **state)
{
    (void)state;
    static const enum dtype dts[] = { DT_BF16, DT_F16, DT_F32 };
    few = true;
    for (int bits = 4; bits <= 8; bits += 4)
        for (int g = 32; g <= 64; g += 32)
            for (int f = 1; f < 3; f++) {
                for (int64_t m = 1; m <= FEW_ROWS; m++)
                    check_tiles(bits, g, dts[m % 3], (enum act_form)f, 1 + kt_below(70), g * (1 + kt_below(7)), m, (enum flavour)(m % 4));
                check_tiles(bits, g, DT_BF16, (enum act_form)f, 35, FEW_PIECE_K, 8, PLAIN);
                check_tiles(bits, g, DT_BF16, (enum act_form)f, 35, FEW_PIECE_K * 2 + 64, 7, PLAIN);
                check_tiles(bits, g, DT_F16, (enum act_form)f, 20, FEW_PIECE_K + g, 3, PLAIN);
            }
    few = false;
}

static void test_tiles_extremes(void **state)
{
    (void)state;
    for (int kind = 0; kind <= EXTREMES; kind++)
        for (int f = 1; f < 3; f++) {
            check_extremes(4, 32, (enum act_form)f, kind);
            check_extremes(8, 64, (enum act_form)f, kind);
            check_extremes(8, 128, (enum act_form)f, kind);
        }
}

int main(void)
{
    kt_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b109_tiles_equal_portable),
        cmocka_unit_test(test_tiles_every_row_count),
        cmocka_unit_test(test_tiles_pieces),
        cmocka_unit_test(test_few_equal_portable),
        cmocka_unit_test(test_tiles_extremes),
    };
    return cmocka_run_group_tests_name("amx", tests, NULL, NULL);
}
