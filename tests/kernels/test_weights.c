/* test_weights.c: packed weights share chunks of memory: what one holds does not change while others come and go. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

enum { N_WEIGHTS = 48 };

static float element(int i_weight, int64_t row, int64_t k)
{
    return (float)(i_weight * 1000003 % 977) + (float)(row * 31 + k) * 0.25f;
}

/* Small and middling ones, and some above a quarter of a chunk. */
static void pack(struct device *d, struct weight *w, int i)
{
    int64_t n = i % 12 == 5 ? 2100 : 16 * (i % 7) + 5, k = i % 12 == 5 ? 1024 : 8 * (1 + i % 9);
    float *x = malloc((size_t)(n * k) * sizeof *x);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < k; j++) x[r * k + j] = element(i, r, j);
    struct weight_source src = { .spec = { .mode = QUANT_NONE }, .dt = DT_F32, .n = n, .k = k, .w = x, .i_module = -1,
                                 .name = "w" };
    mb_error err = { 0 };
    *w = (struct weight){ .n = n, .k = k };
    if (ops_cpu.pack(d, &src, w, &err) != MB_OK) fail_msg("%s", err.text);
    free(x);
}

static void check(struct device *d, const struct weight *w, int i)
{
    float row[1024];
    for (int64_t r = 0; r < w->n; r += w->n > 100 ? 97 : 3) {
        ops_cpu.weight_row(d, w, r, row);
        for (int64_t j = 0; j < w->k; j++)
            if (row[j] != element(i, r, j)) fail_msg("weight %d row %d column %d: %g", i, (int)r, (int)j, (double)row[j]);
    }
}

static void test_weights_come_and_go(void **state)
{
    (void)state;
    struct device *d;
    struct device_options opt = { .n_threads = 2, .n_ranks = 1 };
    struct weight w[N_WEIGHTS];
    mb_error err = { 0 };
    assert_int_equal(ops_cpu.device_open(&d, &opt, &err), MB_OK);
    for (int i = 0; i < N_WEIGHTS; i++) pack(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i++) check(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i += 2) ops_cpu.weight_free(d, &w[i]);
    for (int i = 1; i < N_WEIGHTS; i += 2) check(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i += 2) pack(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i++) check(d, &w[i], i);
    for (int i = N_WEIGHTS - 1; i >= 0; i--) ops_cpu.weight_free(d, &w[i]); /* the last of a chunk takes it along */
    for (int i = 0; i < 8; i++) pack(d, &w[i], i);
    for (int i = 0; i < 8; i++) check(d, &w[i], i);
    ops_cpu.device_close(d); /* with weights alive */
    for (int i = 0; i < 8; i++) free(w[i].impl);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_weights_come_and_go) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
