/* threads.c: the compute pool, and thread attributes. (How many threads, and on which cores: cores.c.)
 *
 * Each thread has a slot, a cache line of its own, with one word: {sequence of the region, end, next} of its share. A
 * tile is taken by adding 1 to the word; what the addition returns says which region it belongs to, so a thread that
 * comes late takes a tile of the region that is open, or nothing. `left` counts tiles that are not done; a thread
 * reports all it did at once, when it finds no more. As long as somebody holds tiles he has not reported, the region
 * cannot end: tile functions run on stable data. The thread whose report makes `left` 0 calls work->open, writes all
 * slots, itself holding one more, and goes on.
 *
 * Waiting: a thread spins on its own word until the sequence changes, for spin_ns; then it registers in `n_asleep` and
 * sleeps on `opened`. The opener changes words and `opened` first and looks at `n_asleep` after, in sequentially
 * consistent order, so a wake-up cannot be lost: either he sees the sleeper, or the futex call sees the new value and
 * does not sleep. With more threads than processors nobody spins.
 *
 * A machine is crowded while thread 0 is made to leave its core again and again. Then each thread offers its core shortly
 * before it is taken from it (turns.h), all that it did reported and no tile in its hands. And each keeps to cores of its
 * own, thread 0, who is somebody else's, during runs only: beside other programs the system likes to put two compute
 * threads on one core and the others on the next, as many each, and one of the two then waits for what the other would do
 * if it had the core. Otherwise threads go where the system puts them. */
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

#include "base/cores.h"
#include "base/mem.h"
#include "base/turns.h"

enum { LINE_BYTES = 128, SPIN_NS = 50000, SPINS_PER_LOOK = 32, THREADS_MAX = 4096 };
enum { LOOK_NS = 20000000, CROWDED_NS = 200000000 }; /* put aside once in the first: crowded for the second */

struct slot {
    _Alignas(LINE_BYTES) atomic_ullong word;
    _Alignas(LINE_BYTES) struct turn turn; /* its thread's alone */
};

struct pool {
    _Alignas(LINE_BYTES) atomic_uint opened; /* futex: changes whenever a region opens or a run ends */
    atomic_int n_asleep;
    _Alignas(LINE_BYTES) atomic_llong left;  /* tiles of the open region that are not reported */
    _Alignas(LINE_BYTES) const struct pool_work *work; /* read by whoever holds a tile */
    void *ctx;
    atomic_bool crowded;  /* other programs want our cores; thread 0's to say */
    atomic_bool has_turns; /* the system knows of them, say workers */
    int64_t crowded_until_ns;
    int64_t looked_ns;    /* when thread 0 last looked, and */
    long n_put_aside;     /* how often it had been put aside by then */
    unsigned seq;         /* of the open region; the opener's */
    uint64_t n_barriers;  /* the opener's */
    uint64_t wait_ns;     /* thread 0's */
    atomic_bool stop;
    int n_threads;
    int n_started;        /* worker threads that exist */
    int64_t spin_ns;
    struct cores cores;      /* where workers may run */
    struct slot *slots;      /* [n_threads], owned */
    pthread_t *threads;      /* [n_threads - 1], owned */
    struct worker *workers;  /* [n_threads - 1], owned */
};

struct worker {
    struct pool *pool;
    int i_thread;
    bool crowded;     /* what it has acted on */
    bool apart;       /* it keeps to cores of its own */
    struct cores_kept kept;
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

/* --- words: 16 bits of sequence, 24 of end, 24 of next. `next` passes `end` by at most one a thread. --- */

#define RUN_OVER 0x800000 /* end and next of thread 0's word when a run is over: above any tile */
_Static_assert(POOL_MAX_TILES + THREADS_MAX < RUN_OVER, "tiles of a region are told from the end of a run");

static inline unsigned long long word_make(unsigned seq, int64_t first, int64_t end)
{
    return (unsigned long long)(seq & 0xffff) << 48 | (unsigned long long)end << 24 | (unsigned long long)first;
}
static inline unsigned word_seq(unsigned long long w) { return (unsigned)(w >> 48); }
static inline int64_t word_end(unsigned long long w) { return (int64_t)(w >> 24 & 0xffffff); }
static inline int64_t word_next(unsigned long long w) { return (int64_t)(w & 0xffffff); }

static inline unsigned slot_seq(struct slot *s)
{
    return word_seq(atomic_load_explicit(&s->word, memory_order_acquire));
}

static inline bool slot_take(struct slot *s, int64_t *i_tile)
{
    unsigned long long w = atomic_load_explicit(&s->word, memory_order_relaxed);
    if (word_next(w) >= word_end(w)) return false;
    w = atomic_fetch_add_explicit(&s->word, 1, memory_order_acquire);
    *i_tile = word_next(w);
    return word_next(w) < word_end(w);
}

/* --- regions --- */

static void wake_sleepers(struct pool *p)
{
    atomic_fetch_add(&p->opened, 1);
    if (atomic_load(&p->n_asleep) > 0) syscall(SYS_futex, &p->opened, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* The run is over: thread 0 alone waits for that, and may begin the next run as soon as it sees its word. */
static void run_end(struct pool *p, int i_thread)
{
    atomic_store_explicit(&p->slots[0].word, word_make(p->seq, RUN_OVER, RUN_OVER), memory_order_release);
    if (i_thread != 0) wake_sleepers(p);
}

static bool run_is_over(struct pool *p)
{
    return word_end(atomic_load_explicit(&p->slots[0].word, memory_order_acquire)) == RUN_OVER;
}

/* Returns what the opener holds: 1, so that the region cannot end while its slots are being written; 0 when the run is
 * over. */
static int64_t region_open(struct pool *p, int i_thread)
{
    const int32_t *bounds = NULL;
    int64_t n = p->work->open(p->ctx, i_thread, &bounds), first, end;
    p->seq++;
    if (n == 0) {
        run_end(p, i_thread);
        return 0;
    }
    p->n_barriers++;
    atomic_store_explicit(&p->left, n + 1, memory_order_relaxed);
    for (int i = 0; i < p->n_threads; i++) {
        if (bounds) first = bounds[i], end = bounds[i + 1];
        else threads_share(n, 1, i, p->n_threads, &first, &end);
        atomic_store_explicit(&p->slots[i].word, word_make(p->seq, first, end), memory_order_release);
    }
    wake_sleepers(p);
    return 1;
}

/* n_done tiles are done. Returns what the thread holds then: of a region that it has opened. */
static int64_t tiles_report(struct pool *p, int i_thread, int64_t n_done)
{
    bool last = atomic_fetch_sub_explicit(&p->left, n_done, memory_order_acq_rel) == n_done;
    return last ? region_open(p, i_thread) : 0;
}

/* Tiles until none is left to take, or the turn is over. Returns how many. */
static int64_t tiles_work(struct pool *p, int i_thread, bool *is_over)
{
    bool crowded = atomic_load_explicit(&p->crowded, memory_order_relaxed) && atomic_load_explicit(&p->has_turns, memory_order_relaxed);
    int64_t n_done = 0, i_tile;
    *is_over = false;
    for (int k = 0; k < p->n_threads && !*is_over; k++) {
        struct slot *s = &p->slots[i_thread + k < p->n_threads ? i_thread + k : i_thread + k - p->n_threads];
        while (!*is_over && slot_take(s, &i_tile)) {
            p->work->tile(p->ctx, i_tile, i_thread);
            n_done++;
            *is_over = crowded && turn_is_over(&p->slots[i_thread].turn);
        }
    }
    return n_done;
}

/* Work until no tile is left to take. held: what this thread holds already. Returns the sequence that its slot had when
 * the last search began. */
static unsigned regions_work(struct pool *p, int i_thread, int64_t held)
{
    for (;;) {
        unsigned seen = slot_seq(&p->slots[i_thread]);
        bool is_over;
        held += tiles_work(p, i_thread, &is_over);
        if (held == 0) return seen;
        held = tiles_report(p, i_thread, held);
        if (!is_over) continue;
        while (held > 0) held = tiles_report(p, i_thread, held);
        turn_offer(&p->slots[i_thread].turn);
    }
}

static void slot_wait(struct pool *p, int i_thread, unsigned seen)
{
    struct slot *s = &p->slots[i_thread];
    /* The clock is first read after a round of spinning: most waits are shorter. */
    for (int64_t now = 0, until = 0; p->spin_ns > 0 && now <= until; now = now_ns()) {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (slot_seq(s) != seen) return;
            cpu_relax();
        }
        if (until == 0) until = now_ns() + p->spin_ns;
    }
    atomic_fetch_add(&p->n_asleep, 1);
    for (;;) {
        unsigned opened = atomic_load(&p->opened);
        if (slot_seq(s) != seen) break;
        syscall(SYS_futex, &p->opened, FUTEX_WAIT_PRIVATE, opened, NULL, NULL, 0);
    }
    atomic_fetch_sub(&p->n_asleep, 1);
}

static void run_alone(struct pool *p, const struct pool_work *work, void *ctx)
{
    const int32_t *bounds;
    for (int64_t n; (n = work->open(ctx, 0, &bounds)) > 0; p->n_barriers++)
        for (int64_t i = 0; i < n; i++) work->tile(ctx, i, 0);
}

/* Is the machine crowded? Asked by thread 0 when a run begins and when it has waited; turns that it offered and others took
 * count too. When another thread than before is thread 0 the answer may be wrong for once. */
static void crowd_look(struct pool *p, int64_t now)
{
    struct rusage usage;
    if (now - p->looked_ns < LOOK_NS || getrusage(RUSAGE_THREAD, &usage) != 0) return;
    if ((usage.ru_nivcsw - p->n_put_aside) * LOOK_NS >= now - p->looked_ns) p->crowded_until_ns = now + CROWDED_NS;
    atomic_store_explicit(&p->crowded, now < p->crowded_until_ns, memory_order_relaxed);
    p->looked_ns = now;
    p->n_put_aside = usage.ru_nivcsw;
}

static void run_together(struct pool *p)
{
    for (int64_t held = region_open(p, 0);; held = 0) {
        unsigned seen = regions_work(p, 0, held);
        if (run_is_over(p)) return;
        int64_t begin = now_ns();
        slot_wait(p, 0, seen);
        int64_t now = now_ns();
        p->wait_ns += (uint64_t)(now - begin);
        crowd_look(p, now);
    }
}

void pool_run_regions(struct pool *p, const struct pool_work *work, void *ctx)
{
    if (p->n_threads == 1) {
        run_alone(p, work, ctx);
        return;
    }
    struct cores_kept kept;
    p->work = work;
    p->ctx = ctx;
    crowd_look(p, now_ns());
    bool apart = atomic_load_explicit(&p->crowded, memory_order_relaxed) && cores_keep_own(&p->cores, 0, p->n_threads, &kept);
    run_together(p);
    if (apart) cores_leave_own(&kept);
}

/* --- one function on all threads --- */

struct share_run {
    pool_fn fn;
    void *ctx;
    int n_threads;
    bool opened;
};

static int64_t share_open(void *ctx, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    struct share_run *r = ctx;
    if (r->opened) return 0;
    r->opened = true;
    return r->n_threads;
}

static void share_tile(void *ctx, int64_t i_tile, int i_thread)
{
    (void)i_thread;
    struct share_run *r = ctx;
    r->fn(r->ctx, (int)i_tile, r->n_threads);
}

void pool_run(struct pool *p, pool_fn fn, void *ctx)
{
    static const struct pool_work work = { share_open, share_tile };
    struct share_run r = { fn, ctx, p->n_threads, false };
    pool_run_regions(p, &work, &r);
}

/* --- the pool --- */

/* In a crowded machine on its own cores, where it has some, else where it was before. */
static void worker_place(struct worker *w)
{
    bool crowded = atomic_load_explicit(&w->pool->crowded, memory_order_relaxed);
    if (crowded == w->crowded) return;
    w->crowded = crowded;
    if (w->apart) cores_leave_own(&w->kept);
    w->apart = crowded && cores_keep_own(&w->pool->cores, w->i_thread, w->pool->n_threads, &w->kept);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    char name[16];
    snprintf(name, sizeof name, "mb-compute-%d", w->i_thread % 1000);
    threads_set_name(name);
    threads_set_fp_default();
    if (turns_take_short()) atomic_store_explicit(&p->has_turns, true, memory_order_relaxed);
    cores_bind(&p->cores, cores_node_of_thread(&p->cores, w->i_thread, p->n_threads));
    for (;;) {
        unsigned seen = regions_work(p, w->i_thread, 0);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return NULL; /* set before the word changed */
        worker_place(w);
        slot_wait(p, w->i_thread, seen);
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
        p->workers[i] = (struct worker){ .pool = p, .i_thread = i + 1 };
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
    if (n_threads < 1 || n_threads > THREADS_MAX)
        return mb_fail(err, MB_INVALID, "compute threads: %d is not between 1 and %d", n_threads, THREADS_MAX);
    struct pool *p = mb_alloc_aligned(LINE_BYTES, sizeof *p);
    if (!p) return mb_fail(err, MB_NO_MEMORY, "compute pool: no memory");
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->spin_ns = n_threads <= n_processors() ? SPIN_NS : 0;
    p->threads = mb_calloc((size_t)n_threads, sizeof *p->threads);
    p->workers = mb_calloc((size_t)n_threads, sizeof *p->workers);
    p->slots = mb_alloc_aligned(LINE_BYTES, (size_t)n_threads * sizeof *p->slots);
    mb_status status = cores_read_own(&p->cores, err);
    if (!p->threads || !p->workers || !p->slots) status = mb_fail(err, MB_NO_MEMORY, "compute pool: no memory");
    if (p->slots) memset(p->slots, 0, (size_t)n_threads * sizeof *p->slots);
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
    atomic_store_explicit(&p->stop, true, memory_order_release);
    for (int i = 1; i <= p->n_started; i++)
        atomic_store_explicit(&p->slots[i].word, word_make(p->seq + 1, 0, 0), memory_order_release);
    wake_sleepers(p);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->threads[i], NULL);
    cores_free(&p->cores);
    mb_free(p->slots);
    mb_free(p->threads);
    mb_free(p->workers);
    mb_free(p);
}

int pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}

void pool_stats(struct pool *p, uint64_t *n_barriers, uint64_t *wait_ns)
{
    *n_barriers = p->n_barriers;
    *wait_ns = p->wait_ns;
    p->n_barriers = p->wait_ns = 0;
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
