/* test_engine_memory.c: who gives way in the engine: what was cancelled, what finds no room, consumers that are slow. Over the scripted
 * stepper, as test_engine.c. */
#include "unit/engine_manners.h"

/* --- cancel --- */

/* B-043, API-013, ENG-046 .. ENG-048: in the queue, in prefill, in decode; pages are back, the others go on. */
static void test_b043_cancel_anywhere(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job bystander, queued, prefill, decode;
        rig_manner(&r, m);
        r.eo.batch = 3;
        r.eo.prefill_chunk = 64;
        r.so.step_delay_ms = 1;
        rig_open(&r);
        job_init(&bystander, &r, 50, 0, 1);
        job_init(&decode, &r, 60, 0, 2);
        job_init(&prefill, &r, 3000, 0, 3);
        job_init(&queued, &r, 70, 0, 4);
        bystander.job.max_tokens = 80;
        decode.job.max_tokens = 2000;
        job_submit(&bystander);
        job_submit(&decode);
        job_wait_tokens(&decode, 3);
        rig_gate(&r, true);
        rig_wait_step(&r);
        job_submit(&prefill);
        job_submit(&queued);
        rig_gate(&r, false);
        rig_lock(&r);
        while (!prefill.n_progress) rig_wait_on(&r);
        rig_unlock(&r);
        rig_gate(&r, true);
        rig_wait_step(&r);
        int32_t steps = r.n_steps; /* the engine stands in the gate */
        engine_cancel(r.engine, queued.id);
        engine_cancel(r.engine, prefill.id);
        engine_cancel(r.engine, decode.id);
        rig_gate(&r, false);
        job_wait(&queued);
        job_wait(&prefill);
        job_wait(&decode);
        assert_true(queued.step_at_done <= steps + 2); /* within two steps */
        assert_true(prefill.step_at_done <= steps + 2);
        assert_true(decode.step_at_done <= steps + 2);
        assert_int_equal(queued.why[0], END_CANCELLED);
        assert_int_equal(queued.n_started, 0);
        assert_int_equal(prefill.why[0], END_CANCELLED);
        assert_int_equal(prefill.n_out[0], 0);
        assert_int_equal(decode.why[0], END_CANCELLED);
        job_wait(&bystander);
        assert_as_alone(&bystander);
        struct engine_stats s = rig_stats(&r);
        assert_int_equal(s.cancelled, 3);
        assert_int_equal(s.finished, 1);
        assert_nothing_held(&r);
        engine_cancel(r.engine, 12345); /* unknown: ignored */
        job_free(&bystander);
        job_free(&queued);
        job_free(&prefill);
        job_free(&decode);
        rig_close(&r);
    }
}

/* A filter may cancel its own job. */
static void test_cancel_from_filter(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j;
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&j, &r, 100, 0, 1);
        j.job.max_tokens = 3000;
        j.job.n_choices = 2;
        j.cancel_after = 5;
        job_run(&j);
        assert_int_equal(j.why[0], END_CANCELLED);
        assert_int_equal(j.why[1], END_CANCELLED);
        assert_true(j.n_out[0] <= 7);
        assert_nothing_held(&r);
        job_free(&j);
        rig_close(&r);
    }
}

/* --- memory --- */

/* Rows preempted for room are computed again: same bits, a pause. */
static void test_preemption_keeps_output(void **state)
{
    for (int m = 0; m < N_MANNERS - 1; m++)
        for (int cache = 0; cache < 2; cache++) {
            struct rig r;
            struct rig_job j[6];
            rig_manner(&r, m);
            r.eo.batch = 6;
            r.eo.pool_bytes = 256 << 10;
            if (!cache) r.eo.prompt_cache_bytes = 0;
            rig_open(&r);
            rig_gate(&r, true);
            for (int i = 0; i < 6; i++) {
                job_init(&j[i], &r, 300 + 50 * i, 0, (uint32_t)i);
                j[i].job.max_tokens = 500;
                j[i].job.n_choices = i == 2 ? 2 : 1;
                job_submit(&j[i]);
            }
            rig_gate(&r, false);
            for (int i = 0; i < 6; i++) job_wait(&j[i]);
            for (int i = 0; i < 6; i++) {
                assert_as_alone(&j[i]);
                assert_int_equal(j[i].n_started, 1);
                job_free(&j[i]);
            }
            struct engine_stats s = rig_stats(&r);
            assert_true(s.preempted > 0);
            assert_nothing_held(&r);
            rig_close(&r);
        }
}

/* Alone and too long for the pool: a typed error, never a cut answer (API-323). The prompt itself was admissible. */
static void test_api323_alone_and_pool_full(void **state)
{
    for (int m = 0; m < N_MANNERS - 1; m++) {
        struct rig r;
        struct rig_job j, after;
        rig_manner(&r, m);
        r.eo.pool_bytes = 400 << 10;
        r.so.n_context = 16000;
        rig_open(&r);
        job_init(&j, &r, 500, 0, 1);
        j.job.max_tokens = -1;
        job_run(&j);
        assert_int_equal(j.why[0], END_ERROR);
        assert_int_equal(j.status[0], MB_CONTEXT_OVER_BUDGET);
        assert_true(j.n_out[0] > 1000);
        job_init(&after, &r, 500, 0, 2);
        job_run(&after);
        assert_as_alone(&after);
        assert_nothing_held(&r);
        job_free(&j);
        job_free(&after);
        rig_close(&r);
    }
}

/* Refusals that no waiting cures; max_tokens is clamped to the window. */
static void test_admission_bounds(void **state)
{
    struct rig r;
    struct rig_job j;
    mb_error err;
    rig_kinds(&r, full_kind, 1);
    r.so.n_context = 200;
    r.eo.pool_bytes = 3 * 4096; /* 192 tokens */
    rig_open(&r);
    job_init(&j, &r, 200, 0, 1);
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_CONTEXT_LENGTH);
    assert_non_null(strstr(err.text, "200"));
    j.job.n_ids = 192;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_CONTEXT_OVER_BUDGET);
    assert_non_null(strstr(err.text, "192"));
    j.job.n_ids = 0;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_INVALID);
    j.job.n_ids = 100;
    j.ids[3] = RIG_VOCAB;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_INVALID);
    j.ids[3] = 0;
    struct engine_stats s;
    engine_stats_get(r.engine, &s);
    assert_int_equal(s.rejected, 4);
    assert_int_equal(s.max_safe_context, 192);
    rig_close(&r);
    job_free(&j);

    rig_kinds(&r, full_kind, 1);
    r.so.n_context = 200;
    rig_open(&r);
    job_init(&j, &r, 190, 0, 1);
    j.job.max_tokens = 1000000;
    job_run(&j);
    assert_int_equal(j.n_out[0], 10);
    assert_int_equal(j.why[0], END_CONTEXT);
    job_free(&j);
    job_init(&j, &r, 190, 0, 1);
    j.job.max_tokens = 0;
    job_run(&j);
    assert_int_equal(j.n_out[0], 0);
    assert_int_equal(j.why[0], END_LENGTH);
    assert_nothing_held(&r);
    job_free(&j);
    rig_close(&r);
}

/* --- slow consumers --- */

static void test_park_and_unpark(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j, other;
        rig_manner(&r, m);
        r.eo.batch = 1; /* a parked row gives its slot away */
        rig_open(&r);
        job_init(&j, &r, 200, 0, 1);
        job_init(&other, &r, 150, 0, 2);
        j.park_every = 7;
        j.job.max_tokens = 30;
        job_submit(&j);
        job_wait_tokens(&j, 7);
        job_submit(&other);
        job_wait(&other);
        assert_int_equal(j.n_out[0], 7);
        for (int n = 14; n <= 35; n += 7) {
            engine_unpark(r.engine, j.id);
            job_wait_tokens(&j, n);
        }
        job_wait(&j);
        assert_int_equal(j.n_parks, 4);
        assert_as_alone(&j);
        assert_as_alone(&other);
        assert_nothing_held(&r);
        job_free(&j);
        job_free(&other);
        rig_close(&r);
    }
}

static void test_parked_too_long_is_cancelled(void **state)
{
    struct rig r;
    struct rig_job j;
    rig_kinds(&r, full_kind, 1);
    r.eo.client_timeout_ms = 50;
    rig_open(&r);
    job_init(&j, &r, 200, 0, 1);
    j.park_every = 3;
    int64_t t = clock_now_ns();
    job_run(&j);
    assert_true(clock_now_ns() - t >= 50 * 1000000);
    assert_int_equal(j.why[0], END_CANCELLED);
    assert_int_equal(j.n_out[0], 3);
    assert_nothing_held(&r);
    job_free(&j);
    rig_close(&r);
}

/* Parked rows are the first to lose their pages, and come back with the same bits. */
static void test_parked_is_preempted_first(void **state)
{
    struct rig r;
    struct rig_job j, other;
    rig_kinds(&r, full_kind, 1);
    r.eo.pool_bytes = 24 * 4096;
    r.eo.prompt_cache_bytes = 0;
    rig_open(&r);
    job_init(&j, &r, 800, 0, 1);
    job_init(&other, &r, 900, 0, 2);
    j.park_every = 5;
    j.job.max_tokens = 9;
    job_submit(&j);
    job_wait_tokens(&j, 5);
    job_run(&other);
    engine_unpark(r.engine, j.id);
    job_wait(&j);
    assert_as_alone(&j);
    assert_as_alone(&other);
    assert_int_equal(rig_stats(&r).preempted, 1);
    job_free(&j);
    job_free(&other);
    rig_close(&r);
}

/* Two that were parked come back in the same moment: the older one without pages, the younger one with too many for both, and nobody
 * else is there to end. The younger one gives way; nobody waits for ever. */
static void test_unparked_together(void **state)
{
    struct rig r;
    struct rig_job old, young, brief;
    rig_kinds(&r, full_kind, 1);
    r.eo.pool_bytes = 24 * 4096;
    r.eo.prompt_cache_bytes = 0;
    rig_open(&r);
    job_init(&old, &r, 800, 0, 1);
    job_init(&young, &r, 900, 0, 2);
    job_init(&brief, &r, 3, 0, 3);
    old.park_every = young.park_every = 5;
    old.job.max_tokens = young.job.max_tokens = 9;
    brief.job.max_tokens = 1;
    job_submit(&old);
    job_wait_tokens(&old, 5);
    job_submit(&young);
    job_wait_tokens(&young, 5); /* in the pages of the old one */
    rig_gate(&r, true);
    job_submit(&brief);
    rig_wait_step(&r);
    engine_unpark(r.engine, old.id);
    engine_unpark(r.engine, young.id);
    rig_gate(&r, false);
    job_wait(&old);
    job_wait(&young);
    job_wait(&brief);
    assert_as_alone(&old);
    assert_as_alone(&young);
    assert_true(rig_stats(&r).preempted >= 2);
    job_free(&old);
    job_free(&young);
    job_free(&brief);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b043_cancel_anywhere),
        cmocka_unit_test(test_cancel_from_filter),
        cmocka_unit_test(test_preemption_keeps_output),
        cmocka_unit_test(test_api323_alone_and_pool_full),
        cmocka_unit_test(test_admission_bounds),
        cmocka_unit_test(test_park_and_unpark),
        cmocka_unit_test(test_parked_too_long_is_cancelled),
        cmocka_unit_test(test_parked_is_preempted_first),
        cmocka_unit_test(test_unparked_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
