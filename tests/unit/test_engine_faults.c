/* test_engine_faults.c: the engine's fault points (base/fault.h), each in a process of its own because faults are read
 * once. faults: yes (run by `make alloc-fail`; skipped unless the build says FAULTS=1). */
#include "unit/engine_rig.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"

static const struct kv_kind full_kind[] = { { .type = KIND_FULL, .n_layer = 1, .page_bytes = 4096 } };

static void rig_small(struct rig *r)
{
    rig_init(r);
    r->so.kinds = full_kind;
    r->so.n_kinds = 1;
    rig_open(r);
}

/* Run body with the fault set; its asserts end the child. */
static void with_fault(const char *fault, void (*body)(void))
{
#ifndef MB_FAULTS
    (void)fault; (void)body;
    skip();
#else
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("MLX_BUN_TEST_FAULT", fault, 1);
        body();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
#endif
}

#define WANT(cond) do { if (!(cond)) { fprintf(stderr, "line %d: %s\n", __LINE__, #cond); _exit(1); } } while (0)

static void body_death(void)
{
    struct rig r;
    struct rig_job j[3];
    rig_small(&r);
    rig_gate(&r, true); /* else it may be dead before the third has come */
    for (int i = 0; i < 3; i++) {
        job_init(&j[i], &r, 50, 0, (uint32_t)i);
        j[i].job.max_tokens = 1000;
        job_submit(&j[i]);
    }
    rig_gate(&r, false);
    for (int i = 0; i < 3; i++) {
        job_wait(&j[i]);
        WANT(j[i].why[0] == END_ERROR && j[i].status[0] == MB_ENGINE_DEAD);
    }
    for (int i = 0; i < 100000 && engine_alive(r.engine); i++) clock_sleep_ms(1);
    WANT(!engine_alive(r.engine));
    struct engine_stats s;
    engine_stats_get(r.engine, &s);
    WANT(!s.alive);
    for (int i = 0; i < 100000 && s.n_pages_held; i++) { /* counted when all is cleared away, a moment behind its end */
        clock_sleep_ms(1);
        engine_stats_get(r.engine, &s);
    }
    WANT(s.n_pages_held == 0);
    rig_close(&r);
}

static void test_b106_engine_death(void **state)
{
    with_fault("engine_death=20", body_death);
}

static void body_nan(void)
{
    struct rig r;
    struct rig_job bad, good;
    rig_small(&r);
    job_init(&bad, &r, 50, 0, 1);
    job_run(&bad);
    WANT(bad.why[0] == END_ERROR && bad.status[0] == MB_NON_FINITE && bad.n_out[0] == 2);
    job_init(&good, &r, 50, 0, 2);
    job_run(&good);
    WANT(good.why[0] == END_LENGTH && good.n_out[0] == 20);
    rig_close(&r);
}

static void test_b028_nan_step(void **state)
{
    with_fault("nan_step=3", body_nan);
}

static void body_delay(void)
{
    struct rig r;
    struct rig_job j;
    rig_small(&r);
    job_init(&j, &r, 50, 0, 1);
    int64_t t = clock_now_ns();
    job_run(&j); /* one prefill step, 19 decode steps */
    WANT(clock_now_ns() - t >= (20 * 5 + 50) * (int64_t)1000000);
    struct engine_stats s;
    engine_stats_get(r.engine, &s);
    WANT(s.ttft_ms_mean >= 55 && s.itl_ms_mean >= 5);
    rig_close(&r);
}

static void test_delays(void **state)
{
    with_fault("step_delay=5;prefill_delay=50", body_delay);
}

/* The k-th allocation fails, for every k of opening, submitting and running: a status, or one failed request. */
static void body_alloc(void)
{
    struct rig r;
    struct stepper st;
    mb_error err = { 0 };
    rig_init(&r);
    r.so.kinds = full_kind;
    r.so.n_kinds = 1;
    mb_status rc = stepper_scripted(&st, &r.so, &err);
    if (rc == MB_OK) rc = engine_open(&r.engine, &st, &r.eo, &err);
    if (rc != MB_OK) {
        WANT(rc == MB_NO_MEMORY && r.engine == NULL);
        return;
    }
    int n_failed = 0;
    for (uint32_t i = 0; i < 4; i++) {
        struct rig_job j;
        job_init(&j, &r, 200, 100, i);
        j.job.n_choices = 2;
        if (engine_submit(r.engine, &j.job, &j.id, &err) != MB_OK) {
            WANT(err.code == MB_NO_MEMORY);
            n_failed++;
            continue;
        }
        job_wait(&j);
        bool ok = j.why[0] == END_LENGTH && j.why[1] == END_LENGTH;
        WANT(ok || (j.why[0] == END_ERROR && j.status[0] == MB_NO_MEMORY));
        n_failed += !ok;
    }
    WANT(n_failed <= 1);
    rig_close(&r);
}

static void test_each_allocation_fails(void **state)
{
    for (int k = 1; k < 80; k++) {
        char fault[32];
        snprintf(fault, sizeof fault, "alloc=%d", k);
        with_fault(fault, body_alloc);
    }
}

/* The step loop allocates nothing: from the third token on, failing every allocation changes nothing. */
static void body_no_alloc(void)
{
    struct rig r;
    struct rig_job j[3];
    rig_small(&r);
    rig_gate(&r, true);
    for (int i = 0; i < 3; i++) {
        job_init(&j[i], &r, 100, 0, (uint32_t)i);
        j[i].job.max_tokens = 700;
        j[i].job.n_choices = i == 1 ? 2 : 1;
        job_submit(&j[i]);
    }
    rig_gate(&r, false);
    for (int i = 0; i < 3; i++) job_wait_tokens(&j[i], 3);
    /* alloc=500+ : the count up to here is far below; burn it up to the failing range */
    for (int i = 0; i < 1000; i++) mb_free(mb_alloc(1));
    WANT(mb_alloc(1) == NULL);
    for (int i = 0; i < 3; i++) {
        job_wait(&j[i]);
        WANT(j[i].why[0] == END_LENGTH && j[i].n_out[0] == 700);
    }
    struct engine_stats s;
    engine_stats_get(r.engine, &s);
    WANT(s.cache_entries >= 4); /* publishing went on too */
    rig_close(&r);
}

static void test_step_loop_allocates_nothing(void **state)
{
    with_fault("alloc=500+", body_no_alloc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b106_engine_death),
        cmocka_unit_test(test_b028_nan_step),
        cmocka_unit_test(test_delays),
        cmocka_unit_test(test_each_allocation_fails),
        cmocka_unit_test(test_step_loop_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
