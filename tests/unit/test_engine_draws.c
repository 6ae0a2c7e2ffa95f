/* test_engine_draws.c: what becomes of draws in the engine: those that are no numbers, biases, masks, filters that fail. Over the scripted
 * stepper, as test_engine.c. */
#include "unit/engine_manners.h"

/* B-028: a poisoned request ends with an error; its neighbour does not notice; nothing of it enters the cache. */
static void test_b028_non_finite(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job bad, good;
        rig_manner(&r, m);
        rig_open(&r);
        for (int round = 0; round < 2; round++) {
            job_init(&bad, &r, 400, 0, 1);
            job_init(&good, &r, 400, 0, 2);
            bad.ids[300] = RIG_POISON;
            bad.job.n_choices = 2;
            job_submit(&bad);
            job_submit(&good);
            job_wait(&bad);
            job_wait(&good);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(bad.why[i], END_ERROR);
                assert_int_equal(bad.status[i], MB_NON_FINITE);
                assert_int_equal(bad.n_out[i], 0);
            }
            assert_non_null(strstr(bad.text, "non-finite"));
            assert_int_equal(bad.n_cached, 0);
            assert_int_equal(good.n_cached, round == 0 || manners[m].n > 0 ? (round ? 399 : 0) : 399);
            assert_as_alone(&good);
            job_free(&bad);
            job_free(&good);
        }
        struct engine_stats s = rig_stats(&r);
        assert_int_equal(s.failed, 2);
        assert_int_equal(s.cache_entries, 1);
        assert_nothing_held(&r);
        rig_close(&r);
    }
}

/* B-026, the engine's part: bias reaches the stepper, bans and forces. */
static void test_b026_logit_bias(void **state)
{
    static const int32_t script[] = { 5, 5, 5 };
    static const struct logit_bias ban[] = { { 5, -100 } }, force[] = { { 77, 100 } };
    struct rig r;
    struct rig_job j;
    rig_kinds(&r, full_kind, 1);
    r.so.hash_draws = false;
    r.so.script = script;
    r.so.n_script = 3;
    rig_open(&r);
    for (int i = 0; i < 2; i++) {
        job_init(&j, &r, 20, 0, 1);
        j.job.max_tokens = 3;
        j.job.params.bias = i ? force : ban;
        j.job.params.n_bias = 1;
        job_run(&j);
        for (int t = 0; t < 3; t++) assert_true(i ? j.out[0][t] == 77 : j.out[0][t] != 5);
        job_free(&j);
    }
    rig_close(&r);
}

static const uint32_t *only_even(void *ctx, int32_t i_choice)
{
    static uint32_t bits[RIG_VOCAB / 32 + 1];
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) bits[i] = 0x55555555u;
    return bits;
}

static const uint32_t *nothing_allowed(void *ctx, int32_t i_choice)
{
    static const uint32_t bits[RIG_VOCAB / 32 + 1];
    return ((struct rig_job *)ctx)->n_out[0] < 3 ? NULL : bits;
}

/* B-071: a mask belongs to its sequence; a row that waits for its mask sits out alone. */
static void test_b071_masks(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job masked, plain, stuck;
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&masked, &r, 100, 0, 1);
        job_init(&plain, &r, 100, 0, 2);
        job_init(&stuck, &r, 100, 0, 3);
        masked.job.next_mask = only_even;
        stuck.job.next_mask = nothing_allowed;
        job_submit(&masked);
        job_submit(&plain);
        job_submit(&stuck);
        job_wait(&masked);
        job_wait(&plain);
        job_wait(&stuck);
        for (int i = 0; i < 20; i++) assert_int_equal(masked.out[0][i] % 2, 0);
        assert_as_alone(&masked);
        assert_as_alone(&plain);
        assert_int_equal(stuck.n_out[0], 3);
        assert_int_equal(stuck.why[0], END_ERROR);
        assert_int_equal(stuck.status[0], MB_INVALID);
        job_free(&masked);
        job_free(&plain);
        job_free(&stuck);
        rig_close(&r);
    }
}

static void test_filter_fails(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j;
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&j, &r, 100, 0, 1);
        j.fail_after = 4;
        job_run(&j);
        assert_int_equal(j.why[0], END_ERROR);
        assert_int_equal(j.n_out[0], 4);
        assert_nothing_held(&r);
        job_free(&j);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b028_non_finite),
        cmocka_unit_test(test_b026_logit_bias),
        cmocka_unit_test(test_b071_masks),
        cmocka_unit_test(test_filter_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
