/* test_threads.c: the compute pool. Barriers must order memory with few threads, with many more than the machine has,
 * and after pauses long enough to put every worker to sleep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fenv.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/threads.h"

enum { N_MAX = 64, N_ROUNDS = 40 };

struct relay {
    struct pool *pool;
    int64_t cell[N_MAX]; /* plain memory: only barriers order it */
    int64_t wrong;       /* written by thread 0 only */
};

/* Each round, every thread adds what its left neighbour held in the round before. */
static void relay_run(void *ctx, int i, int n)
{
    struct relay *r = ctx;
    for (int round = 0; round < N_ROUNDS; round++) {
        int64_t left = r->cell[(i + n - 1) % n];
        pool_barrier(r->pool, i);
        r->cell[i] = left + 1;
        pool_barrier(r->pool, i);
        if (i == 0)
            for (int j = 0; j < n; j++) r->wrong += r->cell[j] != round + 1;
        pool_barrier(r->pool, i);
    }
}

static void check_relay(int n_threads, int n_runs, int pause_ms)
{
    static struct relay r;
    mb_error err;
    assert_int_equal(pool_open(&r.pool, n_threads, &err), MB_OK);
    assert_int_equal(pool_n_threads(r.pool), n_threads);
    for (int run = 0; run < n_runs; run++) {
        memset(r.cell, 0, sizeof r.cell);
        r.wrong = 0;
        pool_run(r.pool, relay_run, &r);
        assert_int_equal(r.wrong, 0);
        clock_sleep_ms(pause_ms);
    }
    uint64_t n_barriers, wait_ns;
    pool_stats(r.pool, &n_barriers, &wait_ns);
    assert_int_equal(n_barriers, (uint64_t)n_runs * (3 * N_ROUNDS + 1));
    pool_stats(r.pool, &n_barriers, &wait_ns);
    assert_int_equal(n_barriers, 0);
    pool_close(r.pool);
}

static void test_pool_one(void **state) { (void)state; check_relay(1, 10, 0); }
static void test_pool_two(void **state) { (void)state; check_relay(2, 200, 0); }
static void test_pool_odd(void **state) { (void)state; check_relay(3, 20, 0); }
static void test_pool_sleepers(void **state) { (void)state; check_relay(2, 10, 3); }
static void test_pool_oversubscribed(void **state) { (void)state; check_relay(N_MAX, 3, 0); }

static void test_pool_refuses(void **state)
{
    (void)state;
    struct pool *p;
    mb_error err;
    assert_int_equal(pool_open(&p, 0, &err), MB_INVALID);
    assert_null(p);
    assert_int_equal(pool_open(&p, -3, &err), MB_INVALID);
    pool_close(NULL);
    for (int i = 0; i < 20; i++) { /* opened and closed without a run */
        assert_int_equal(pool_open(&p, 4, &err), MB_OK);
        pool_close(p);
    }
}

static int fp_round[4];

static void read_fp(void *ctx, int i, int n)
{
    (void)ctx;
    (void)n;
    fp_round[i] = fegetround();
}

/* A worker does not inherit the opener's rounding mode. */
static void test_pool_fp_default(void **state)
{
    (void)state;
    mb_error err;
    struct pool *p;
    fesetround(FE_UPWARD);
    assert_int_equal(pool_open(&p, 4, &err), MB_OK);
    pool_run(p, read_fp, NULL);
    for (int i = 1; i < 4; i++) assert_int_equal(fp_round[i], FE_TONEAREST);
    threads_set_fp_default();
    assert_int_equal(fegetround(), FE_TONEAREST);
    pool_close(p);
}

static void test_share(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 0, 1, 15, 16, 17, 100, 576, 1000003 };
    static const int64_t units[] = { 1, 16, 64 };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t u = 0; u < 3; u++)
            for (int n = 1; n < 9; n++) {
                int64_t at = 0;
                for (int i = 0; i < n; i++) {
                    int64_t first, end;
                    threads_share(sizes[s], units[u], i, n, &first, &end);
                    assert_int_equal(first, at);
                    assert_true(end >= first);
                    assert_true(first % units[u] == 0 || i == n - 1);
                    at = end;
                }
                assert_int_equal(at, sizes[s]);
            }
}

static void test_default_count(void **state)
{
    (void)state;
    int n = threads_default_count();
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(n, 1, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) { CPU_SET(i, &one); break; }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(threads_default_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_one),       cmocka_unit_test(test_pool_two),
        cmocka_unit_test(test_pool_odd),       cmocka_unit_test(test_pool_sleepers),
        cmocka_unit_test(test_pool_oversubscribed), cmocka_unit_test(test_pool_refuses),
        cmocka_unit_test(test_pool_fp_default), cmocka_unit_test(test_share),
        cmocka_unit_test(test_default_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
