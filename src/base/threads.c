/* threads.c: the compute pool, and thread attributes. (How many threads: cores.c.)
 *
 * Two generation counters, each on a cache line of its own: `run` (workers wait for it to change) and `barrier` (all
 * wait for it inside a run; the end of a run is one more barrier). A waiter spins for SPIN_NS, then registers in
 * `n_asleep` and sleeps on the counter's futex; a writer changes the counter first and looks at `n_asleep` after, both
 * in sequentially consistent order, so a wake-up cannot be lost: either the writer sees the sleeper, or the futex
 * call sees the new value and does not sleep. With more threads than processors nobody spins. */
#include "base/threads.h"

#include <errno.h>
#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/mem.h"

enum { LINE_BYTES = 128, SPIN_NS = 50000, SPINS_PER_LOOK = 32 };

/* A counter that threads can wait on. */
struct gate {
    _Alignas(128) atomic_uint value;
    atomic_uint n_asleep;
};

struct pool {
    struct gate run;
    struct gate barrier;
    struct {
        _Alignas(128) atomic_int value;
    } n_arrived;
    _Alignas(128) pool_fn fn; /* written before `run` changes */
    void *ctx;
    atomic_bool stop;
    int n_threads;
    int n_started; /* worker threads that exist */
    int64_t spin_ns;
    atomic_ullong n_barriers, wait_ns; /* written by thread 0 */
    pthread_t *threads;                /* [n_threads - 1], owned */
    struct worker *workers;            /* [n_threads - 1], owned */
};

struct worker {
    struct pool *pool;
    int i_thread;
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* --- gates --- */

static void gate_wait(struct gate *g, unsigned old, int64_t spin_ns)
{
    /* The clock is first read after a round of spinning: most waits are shorter. */
    for (int64_t now = 0, until = 0; spin_ns > 0 && now <= until; now = now_ns()) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (atomic_load_explicit(&g->value, memory_order_acquire) != old) return;
            cpu_relax();
        }
        if (until == 0) until = now_ns() + spin_ns;
    }
    atomic_fetch_add(&g->n_asleep, 1);
    while (atomic_load(&g->value) == old)
        syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&g->n_asleep, 1);
}

static void gate_open(struct gate *g)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->n_asleep) > 0) syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* --- the pool --- */

static void barrier_pass(struct pool *p)
{
    /* Read before arriving: the last to arrive may open the gate at once. */
    unsigned old = atomic_load_explicit(&p->barrier.value, memory_order_acquire);
    if (atomic_fetch_add(&p->n_arrived.value, 1) == p->n_threads - 1) {
        atomic_store(&p->n_arrived.value, 0);
        gate_open(&p->barrier);
    } else {
        gate_wait(&p->barrier, old, p->spin_ns);
    }
}

void pool_barrier(struct pool *p, int i_thread)
{
    if (i_thread != 0) {
        barrier_pass(p);
        return;
    }
    atomic_fetch_add_explicit(&p->n_barriers, 1, memory_order_relaxed);
    if (p->n_threads == 1) return;
    int64_t begin = now_ns();
    barrier_pass(p);
    atomic_fetch_add_explicit(&p->wait_ns, (unsigned long long)(now_ns() - begin), memory_order_relaxed);
}

static void *worker_main(void *arg)
{
    const struct worker *w = arg;
    struct pool *p = w->pool;
    char name[16];
    snprintf(name, sizeof name, "mb-compute-%d", w->i_thread % 1000);
    threads_set_name(name);
    threads_set_fp_default();
    for (unsigned seen = 0;; seen++) {
        gate_wait(&p->run, seen, p->spin_ns);
        if (atomic_load(&p->stop)) return NULL;
        p->fn(p->ctx, w->i_thread, p->n_threads);
        barrier_pass(p);
    }
}

static int n_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static mb_status start_workers(struct pool *p, mb_error *err)
{
    for (int i = 0; i < p->n_threads - 1; i++) {
        p->workers[i] = (struct worker){ p, i + 1 };
        int number = pthread_create(&p->threads[i], NULL, worker_main, &p->workers[i]);
        if (number != 0) {
            errno = number;
            return mb_fail_errno(err, "start a compute thread:", "pthread_create");
        }
        p->n_started = i + 1;
    }
    return MB_OK;
}

mb_status pool_open(struct pool **out, int n_threads, mb_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > 4096)
        return mb_fail(err, MB_INVALID, "compute threads: %d is not between 1 and 4096", n_threads);
    struct pool *p = mb_alloc_aligned(LINE_BYTES, sizeof *p);
    if (!p) return mb_fail(err, MB_NO_MEMORY, "compute pool: no memory");
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->spin_ns = n_threads <= n_processors() ? SPIN_NS : 0;
    p->threads = mb_calloc((size_t)n_threads, sizeof *p->threads);
    p->workers = mb_calloc((size_t)n_threads, sizeof *p->workers);
    mb_status status = MB_OK;
    if (!p->threads || !p->workers) status = mb_fail(err, MB_NO_MEMORY, "compute pool: no memory");
    if (status == MB_OK) status = start_workers(p, err);
    if (status != MB_OK) {
        pool_close(p);
        return status;
    }
    *out = p;
    return MB_OK;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    gate_open(&p->run);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->threads[i], NULL);
    mb_free(p->threads);
    mb_free(p->workers);
    mb_free(p);
}

int pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}

void pool_run(struct pool *p, pool_fn fn, void *ctx)
{
    if (p->n_threads > 1) {
        p->fn = fn;
        p->ctx = ctx;
        gate_open(&p->run);
    }
    fn(ctx, 0, p->n_threads);
    pool_barrier(p, 0);
}

void pool_stats(struct pool *p, uint64_t *n_barriers, uint64_t *wait_ns)
{
    *n_barriers = atomic_exchange(&p->n_barriers, 0);
    *wait_ns = atomic_exchange(&p->wait_ns, 0);
}

/* --- shares and thread attributes --- */

void threads_share(int64_t n, int64_t unit, int i_thread, int n_threads, int64_t *first, int64_t *end)
{
    int64_t n_units = n / unit;
    int64_t each = n_units / n_threads, extra = n_units % n_threads;
    int64_t before = each * i_thread + (i_thread < extra ? i_thread : extra);
    *first = before * unit;
    *end = (before + each + (i_thread < extra)) * unit;
    if (i_thread == n_threads - 1) *end = n;
}

void threads_set_fp_default(void)
{
    fesetenv(FE_DFL_ENV);
#if defined(__x86_64__)
    _mm_setcsr(0x1F80); /* all exceptions masked, round to nearest, no FTZ, no DAZ */
#endif
}

void threads_lower_priority(void)
{
    /* On Linux a nice value belongs to a thread. */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 5);
}

void threads_set_name(const char *name)
{
    char cut[16];
    snprintf(cut, sizeof cut, "%s", name);
    pthread_setname_np(pthread_self(), cut);
}
