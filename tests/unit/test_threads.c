/* test_threads.c: the compute pool. Regions must order memory and run every tile once, with few threads, with many more
 * than the machine has, after pauses long enough to put every worker to sleep, and while a thread is held up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fenv.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/threads.h"
#include "base/turns.h"

enum { N_MAX = 64, N_ROUNDS = 40 };

struct relay {
    int64_t cell[2][N_MAX]; /* plain memory: only regions order it */
    int64_t n_taken[N_MAX];
    int32_t bounds[N_MAX + 1];
    int n, round;
    bool lopsided;          /* all tiles in the first share */
    int64_t wrong;
};

/* Between regions, alone: every tile of the round has run once, and on what the round before left. */
static int64_t relay_open(void *ctx, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    struct relay *r = ctx;
    if (r->round >= 0)
        for (int j = 0; j < r->n; j++) r->wrong += r->n_taken[j] != r->round + 1 || r->cell[r->round & 1][j] != r->round + 1;
    if (++r->round == N_ROUNDS) return 0;
    if (r->lopsided) *bounds = r->bounds;
    return r->n;
}

/* Each round, every tile takes what its left neighbour held in the round before, plus one. */
static void relay_tile(void *ctx, int64_t i, int i_thread)
{
    struct relay *r = ctx;
    const int64_t *before = r->cell[(r->round & 1) ^ 1];
    r->cell[r->round & 1][i] = before[(i + r->n - 1) % r->n] + 1;
    r->n_taken[i]++;
    (void)i_thread;
}

static void check_relay(int n_threads, int n_tiles, bool lopsided, int n_runs, int pause_ms)
{
    static const struct pool_work work = { relay_open, relay_tile };
    static struct relay r;
    struct pool *p;
    mb_error err;
    assert_int_equal(pool_open(&p, n_threads, &err), MB_OK);
    assert_int_equal(pool_n_threads(p), n_threads);
    for (int run = 0; run < n_runs; run++) {
        memset(&r, 0, sizeof r);
        r.n = n_tiles;
        r.round = -1;
        r.lopsided = lopsided;
        for (int i = 1; i <= n_threads; i++) r.bounds[i] = n_tiles;
        pool_run_regions(p, &work, &r);
        assert_int_equal(r.round, N_ROUNDS);
        assert_int_equal(r.wrong, 0);
        clock_sleep_ms(pause_ms);
    }
    uint64_t n_barriers, wait_ns;
    pool_stats(p, &n_barriers, &wait_ns);
    assert_int_equal(n_barriers, (uint64_t)n_runs * N_ROUNDS);
    pool_stats(p, &n_barriers, &wait_ns);
    assert_int_equal(n_barriers, 0);
    pool_close(p);
}

static void test_pool_one(void **state) { (void)state; check_relay(1, 5, false, 10, 0); }
static void test_pool_two(void **state) { (void)state; check_relay(2, 7, false, 200, 0); }
static void test_pool_odd(void **state) { (void)state; check_relay(3, 64, false, 20, 0); }
static void test_pool_few_tiles(void **state) { (void)state; check_relay(4, 1, false, 50, 0); }
static void test_pool_lopsided(void **state) { (void)state; check_relay(3, 33, true, 50, 0); }
static void test_pool_sleepers(void **state) { (void)state; check_relay(2, 2, false, 10, 3); }
static void test_pool_oversubscribed(void **state) { (void)state; check_relay(N_MAX, N_MAX, false, 3, 0); }

/* --- a machine that others keep busy: cores are offered at ticks and kept apart, and nothing of it shows --- */

static void test_pool_crowded(void **state)
{
    (void)state;
    cpu_set_t before, after;
    pid_t busy[4];
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (int i = 0; i < 4; i++)
        if ((busy[i] = fork()) == 0) {
            alarm(60); /* where the test fails before it ends them */
            for (volatile unsigned x = 0;; x++) { }
        }
    for (int64_t until = clock_now_ns() + 500000000; clock_now_ns() < until;) check_relay(2, N_MAX, false, 200, 0);
    for (int i = 0; i < 4; i++)
        if (busy[i] > 0) kill(busy[i], SIGKILL), waitpid(busy[i], NULL, 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

/* A turn ends once a tick at most, however often one asks. */
static void test_turns(void **state)
{
    (void)state;
    struct timespec tick;
    struct turn turn = { 0 };
    int64_t begin = clock_now_ns(), now = begin, n_over = 0;
    assert_int_equal(clock_getres(CLOCK_MONOTONIC_COARSE, &tick), 0);
    for (; now < begin + 50000000; now = clock_now_ns())
        if (turn_is_over(&turn)) n_over++, turn_offer(&turn);
    assert_in_range(n_over, 0, (now - begin) / tick.tv_nsec + 2);
}

/* --- a thread that is held up in a tile holds back nobody's other tiles --- */

struct held {
    atomic_int n_done;
    bool opened;
};

static int64_t held_open(void *ctx, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    struct held *h = ctx;
    if (h->opened) return 0;
    h->opened = true;
    return 20;
}

/* Tile 0 ends when all others are done: some thread must come for the rest of the share of the one that waits here. */
static void held_tile(void *ctx, int64_t i, int i_thread)
{
    (void)i_thread;
    struct held *h = ctx;
    while (i == 0 && atomic_load(&h->n_done) < 19) sched_yield();
    atomic_fetch_add(&h->n_done, 1);
}

static void test_pool_held_up(void **state)
{
    (void)state;
    static const struct pool_work work = { held_open, held_tile };
    struct pool *p;
    mb_error err;
    assert_int_equal(pool_open(&p, 2, &err), MB_OK);
    for (int run = 0; run < 50; run++) {
        struct held h = { 0, false };
        pool_run_regions(p, &work, &h);
        assert_int_equal(atomic_load(&h.n_done), 20);
    }
    pool_close(p);
}

static int n_runs_of[8];

static void count_share(void *ctx, int i, int n)
{
    (void)ctx;
    if (n == 4) n_runs_of[i]++;
}

static void test_pool_run_shares(void **state)
{
    (void)state;
    struct pool *p;
    mb_error err;
    assert_int_equal(pool_open(&p, 4, &err), MB_OK);
    for (int run = 0; run < 100; run++) pool_run(p, count_share, NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(n_runs_of[i], 100);
    pool_close(p);
}

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

static atomic_int n_wrong_round;
static pthread_t opener;

static void read_fp(void *ctx, int i, int n)
{
    (void)ctx;
    (void)i;
    (void)n;
    clock_sleep_ms(1); /* time for the workers to come */
    if (!pthread_equal(pthread_self(), opener) && fegetround() != FE_TONEAREST) atomic_fetch_add(&n_wrong_round, 1);
}

/* A worker does not inherit the opener's rounding mode. */
static void test_pool_fp_default(void **state)
{
    (void)state;
    mb_error err;
    struct pool *p;
    opener = pthread_self();
    fesetround(FE_UPWARD);
    assert_int_equal(pool_open(&p, 4, &err), MB_OK);
    pool_run(p, read_fp, NULL);
    assert_int_equal(atomic_load(&n_wrong_round), 0);
    threads_set_fp_default();
    assert_int_equal(fegetround(), FE_TONEAREST);
    pool_close(p);
}

/* The thread's turns are short where the system knows of turns; its share of time, and what others have, stay. Skipped in a sandbox that
 * refuses to be asked, by the first call, which is the test's own thread's. */
static uint64_t turn_ns(void)
{
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; } a = { .size = sizeof a };
    long st = syscall(SYS_sched_getattr, 0, &a, sizeof a, 0);
    if (st != 0 && (errno == ENOSYS || errno == EPERM)) skip();
    assert_int_equal(st, 0);
    return a.runtime;
}

static void *short_turns(void *before)
{
    uint64_t others = *(uint64_t *)before;
    int nice = getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
    turns_take_short();
    assert_int_equal(getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid)), nice);
    assert_int_equal(turn_ns(), others ? 500000 : 0);
    return NULL;
}

static void test_short_turns(void **state)
{
    uint64_t before = turn_ns(); /* 0: Linux before 6.12 */
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, short_turns, &before), 0);
    pthread_join(t, NULL);
    assert_int_equal(turn_ns(), before);
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

/* --- topologies, from trees of our own --- */

static void put_file(const char *root, const char *path, const char *text)
{
    char name[600];
    size_t n = (size_t)snprintf(name, sizeof name, "%s/", root);
    for (const char *p = path; *p; p++) {
        if (*p == '/') {
            name[n] = 0;
            mkdir(name, 0700);
        }
        name[n++] = *p;
    }
    name[n] = 0;
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
}

static void put_siblings(const char *root, int cpu, const char *list)
{
    char path[128];
    snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put_file(root, path, list);
}

static void remove_tree(const char *root)
{
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

/* Each usable CPU of a node that has threads is some thread's own, and of one thread alone, that belongs there; hyperthreads of a core
 * are the same one's; each thread has some core, and of a node's the same number, or one more. */
static void check_own(const struct cores *c, int n_threads)
{
    int n_of[16] = { 0 }, n_cpus[2] = { 0 }, n_here[2] = { 0 };
    for (int i = 0; i < n_threads; i++) n_here[cores_node_of_thread(c, i, n_threads)]++;
    for (int cpu = 0; cpu < c->n_cpus; cpu++) {
        int owner = -1;
        for (int i = 0; i < n_threads; i++) {
            if (!cores_is_own(c, cpu, i, n_threads)) continue;
            assert_int_equal(owner, -1);
            owner = i;
        }
        assert_int_equal(owner >= 0, c->usable[cpu] && n_here[c->node[cpu]] > 0);
        if (owner < 0) continue;
        assert_int_equal(cores_node_of_thread(c, owner, n_threads), c->node[cpu]);
        n_of[owner]++;
        n_cpus[c->node[cpu]]++;
        if (cpu >= 8 && c->usable[cpu - 8]) assert_true(cores_is_own(c, cpu - 8, owner, n_threads));
    }
    for (int i = 0; i < n_threads; i++) {
        int node = cores_node_of_thread(c, i, n_threads), n = n_here[node], cores = n_cpus[node] / 2;
        assert_true(cores >= n);
        assert_in_range(n_of[i], 2 * (cores / n), 2 * ((cores + n - 1) / n));
    }
}

/* Two sockets of four cores with two hyperthreads each: 0-3 and 8-11 on node 0, 4-7 and 12-15 on node 1. */
static void test_cores_two_sockets(void **state)
{
    (void)state;
    char root[] = "/tmp/mb-cores-XXXXXX", list[32];
    bool allowed[16];
    struct cores c;
    mb_error err;
    assert_non_null(mkdtemp(root));
    put_file(root, "devices/system/node/node0/cpulist", "0-3,8-11");
    put_file(root, "devices/system/node/node1/cpulist", "4-7,12-15");
    for (int i = 0; i < 16; i++) {
        snprintf(list, sizeof list, "%d,%d", i % 8, i % 8 + 8);
        put_siblings(root, i, list);
        allowed[i] = true;
    }
    assert_int_equal(cores_read(&c, root, allowed, 16, &err), MB_OK);
    assert_int_equal(c.n_cores, 8);
    assert_int_equal(c.n_nodes, 2);
    assert_false(c.two_speeds);
    for (int i = 0; i < 8; i++) assert_int_equal(cores_node_of_thread(&c, i, 8), i / 4);
    for (int i = 0; i < 4; i++) assert_int_equal(cores_node_of_thread(&c, i, 4), 0);
    for (int i = 0; i < 32; i++) assert_int_equal(cores_node_of_thread(&c, i, 32), i / 16);
    for (int n = 1; n <= 8; n++) check_own(&c, n);
    for (int i = 0; i < 9; i++) assert_false(cores_is_own(&c, 0, i, 9)); /* more threads than cores */
    cores_free(&c);
    for (int i = 0; i < 4; i++) allowed[i] = allowed[i + 8] = false; /* taskset onto the second socket */
    assert_int_equal(cores_read(&c, root, allowed, 16, &err), MB_OK);
    assert_int_equal(c.n_cores, 4);
    assert_int_equal(c.n_nodes, 1);
    assert_int_equal(cores_node_of_thread(&c, 0, 4), 1);
    for (int n = 1; n <= 4; n++) check_own(&c, n);
    cores_free(&c);
    remove_tree(root);
}

/* Two fast cores with hyperthreads (0-3) and four slow ones (4-7): by Intel's list, and by capacity. */
static void test_cores_two_speeds(void **state)
{
    (void)state;
    for (int by_capacity = 0; by_capacity < 2; by_capacity++) {
        char root[] = "/tmp/mb-cores-XXXXXX", path[128];
        bool allowed[8];
        struct cores c;
        mb_error err;
        assert_non_null(mkdtemp(root));
        for (int i = 0; i < 8; i++) {
            allowed[i] = true;
            put_siblings(root, i, i < 2 ? "0-1" : i < 4 ? "2-3" : "");
            snprintf(path, sizeof path, "devices/system/cpu/cpu%d/cpu_capacity", i);
            if (by_capacity) put_file(root, path, i < 4 ? "1024" : "600");
        }
        for (int i = 4; i < 8; i++) put_siblings(root, i, (const char[]){ (char)('0' + i), 0 });
        if (!by_capacity) put_file(root, "devices/cpu_atom/cpus", "4-7");
        assert_int_equal(cores_read(&c, root, allowed, 8, &err), MB_OK);
        assert_int_equal(c.n_cores, 2);
        assert_true(c.two_speeds);
        assert_true(c.usable[3]);
        assert_false(c.usable[4]);
        cores_free(&c);
        for (int i = 0; i < 4; i++) allowed[i] = false; /* nothing but slow ones: then they are what there is */
        assert_int_equal(cores_read(&c, root, allowed, 8, &err), MB_OK);
        assert_int_equal(c.n_cores, 4);
        assert_false(c.two_speeds);
        cores_free(&c);
        remove_tree(root);
    }
}

/* A thread keeps to what is its own and may use, and may go everywhere again, unless it was moved meanwhile. */
static void test_cores_own(void **state)
{
    (void)state;
    struct cores c;
    mb_error err;
    cpu_set_t at_first, now;
    struct cores_kept kept, none;
    assert_int_equal(sched_getaffinity(0, sizeof at_first, &at_first), 0);
    assert_int_equal(cores_read_own(&c, &err), MB_OK);
    assert_false(cores_keep_own(&c, 0, c.n_cores + 1, &none));
    for (int i = 0; i < c.n_cores; i++) {
        assert_true(cores_keep_own(&c, i, c.n_cores, &kept));
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) assert_int_equal(!!CPU_ISSET(cpu, &now), cores_is_own(&c, cpu, i, c.n_cores));
        if (c.n_cores > 1) assert_false(cores_keep_own(&c, (i + 1) % c.n_cores, c.n_cores, &none)); /* that is forbidden now */
        cores_leave_own(&kept);
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
        assert_true(CPU_EQUAL(&now, &at_first));
    }
    /* A thread that may run wherever its cpuset says may do so again, also where that has grown; one with a list of its own has that list. */
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    bool was_free = CPU_EQUAL(&now, &at_first);
    assert_int_equal(sched_setaffinity(0, sizeof at_first, &at_first), 0);
    assert_true(cores_keep_own(&c, 0, c.n_cores, &kept));
    assert_true(CPU_EQUAL(&kept.before, was_free ? &all : &at_first));
    cores_leave_own(&kept);
    struct cores_kept other;
    CPU_ZERO(&now);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&now) == 0; cpu++)
        if (cores_is_own(&c, cpu, 0, 1)) CPU_SET(cpu, &now);
    if (CPU_COUNT(&at_first) > 1 && sched_setaffinity(0, sizeof now, &now) == 0) {
        assert_true(cores_keep_own(&c, 0, 1, &kept));
        assert_true(CPU_EQUAL(&kept.before, &now));
        cores_leave_own(&kept);
        assert_int_equal(sched_getaffinity(0, sizeof kept.own, &kept.own), 0);
        assert_true(CPU_EQUAL(&kept.own, &now));
        assert_int_equal(sched_setaffinity(0, sizeof at_first, &at_first), 0);
    }
    if (c.n_cores > 1 && cores_keep_own(&c, 0, c.n_cores, &kept)) {
        assert_int_equal(sched_setaffinity(0, sizeof at_first, &at_first), 0);
        assert_true(cores_keep_own(&c, 1, c.n_cores, &other));
        cores_leave_own(&kept);
        assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
        assert_true(CPU_EQUAL(&now, &other.own));
        cores_leave_own(&other);
    }
    cores_free(&c);
}

static void test_cores_unknown(void **state)
{
    (void)state;
    bool allowed[3] = { true, false, true };
    struct cores c;
    mb_error err;
    assert_int_equal(cores_read(&c, "/nonexistent", allowed, 3, &err), MB_OK);
    assert_int_equal(c.n_cores, 2);
    assert_int_equal(c.n_nodes, 1);
    cores_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_one),       cmocka_unit_test(test_pool_two),
        cmocka_unit_test(test_pool_odd),       cmocka_unit_test(test_pool_few_tiles),
        cmocka_unit_test(test_pool_lopsided),  cmocka_unit_test(test_pool_sleepers),
        cmocka_unit_test(test_pool_crowded),   cmocka_unit_test(test_turns),
        cmocka_unit_test(test_pool_held_up),   cmocka_unit_test(test_pool_run_shares),
        cmocka_unit_test(test_pool_oversubscribed), cmocka_unit_test(test_pool_refuses),
        cmocka_unit_test(test_pool_fp_default), cmocka_unit_test(test_share), cmocka_unit_test(test_short_turns),
        cmocka_unit_test(test_default_count),  cmocka_unit_test(test_cores_two_sockets),
        cmocka_unit_test(test_cores_two_speeds), cmocka_unit_test(test_cores_unknown),
        cmocka_unit_test(test_cores_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
