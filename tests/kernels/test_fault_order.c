/* test_fault_order.c: the fault sum_order (base/fault.h) makes a matmul of several rows differ from the same rows one by
 * one, which is what `prove` looks for; without it they are equal. faults: yes (run by `make alloc-fail`, with FAULTS=1). */
#include "kernels/kt.h"

#include "base/fault.h"

#define N 64
#define K 512

static void rows_run(float *y, bool one_by_one)
{
    static uint32_t words[N * K / 8];
    static float x[3 * K];
    static uint16_t scales[N * K / 32], biases[N * K / 32];
    kt_state = 1;
    for (size_t i = 0; i < N * K / 8; i++) words[i] = kt_u32();
    for (size_t i = 0; i < N * K / 32; i++) {
        scales[i] = f32_to_bf16(kt_unit() * 0.02f);
        biases[i] = f32_to_bf16(kt_unit() * 0.1f);
    }
    for (int i = 0; i < 3 * K; i++) x[i] = kt_unit();
    struct pack_source src = { { QUANT_AFFINE, 4, 32 }, DT_BF16, N, K, words, scales, biases, false, 0, DT_F32, 0 };
    struct cpu_weight w;
    assert_int_equal(cpu_pack_plan(&src, &w, NULL), MB_OK);
    struct kt_buf packed = kt_alloc(N / 16 * w.block_bytes);
    cpu_pack_blocks(&src, 0, N / 16, packed.p);
    w.data = packed.p;
    struct cpu_kernels t;
    cpu_kernels_fill(&t, cpu_level_detect());
    size_t rb = act_row_bytes(ACT_Q16, K, 32);
    struct kt_buf act = kt_alloc(3 * rb);
    t.quantise_rows(ACT_Q16, 32, K, 3, x, K, act.p, rb);
    struct cpu_act a = { .form = ACT_Q16, .g = 32, .k = K, .row_bytes = rb, .data = act.p };
    for (int r = 0; one_by_one && r < 3; r++) t.matmul_q4_q16(&w, 0, N / 16, &a, r, 1, y + r * N, N);
    if (!one_by_one) t.matmul_q4_q16(&w, 0, N / 16, &a, 0, 3, y, N);
    kt_free(&packed);
    kt_free(&act);
}

static void test_sum_order_is_noticed(void **state)
{
    (void)state;
#ifndef MB_FAULTS
    skip();
#else
    setenv("MLX_BUN_TEST_FAULT", "sum_order=1", 1); /* before the first question */
    assert_int_equal(fault_value("sum_order", 0), 1);
    float one[3 * N], many[3 * N];
    rows_run(one, true);
    rows_run(many, false);
    assert_true(memcmp(one, many, sizeof one) != 0);
    for (int i = 0; i < 3 * N; i++) assert_true(fabsf(one[i] - many[i]) < 1e-4f);
#endif
}

static void test_rows_equal_without_fault(void **state)
{
    (void)state;
#ifdef MB_FAULTS
    skip(); /* the environment is read once: the other test has set the fault */
#endif
    float one[3 * N], many[3 * N];
    rows_run(one, true);
    rows_run(many, false);
    kt_expect_same(one, many, 3 * N, "rows alone and together");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum_order_is_noticed),
        cmocka_unit_test(test_rows_equal_without_fault),
    };
    return cmocka_run_group_tests_name("fault_order", tests, NULL, NULL);
}
