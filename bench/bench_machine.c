/* bench_machine.c: what the machine itself does this minute, which others share: how fast a plain program reads memory, and what
 * a barrier of compute threads takes. One JSON line.
 *
 *   bench_machine THREADS   {"read_gb_s", "barrier_us"}
 *
 * read_gb_s is the best of several ways to read (plain_read.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/threads.h"
#include "plain_read.h"

#define READ_BYTES ((size_t)1 << 30) /* more than caches hold */
#define HUGE_PAGE ((size_t)2 << 20)
#define N_ROUNDS 3
#define N_BARRIERS 20000
#define N_MEETINGS 7
#define MOST_THREADS 64

struct machine {
    const char *data;
    const struct read_way *way;
    struct pool *pool;
    uint64_t sums[MOST_THREADS]; /* [thread] what was read, so that it is */
    int32_t n_left;
};

static double seconds_since(int64_t t0_ns)
{
    return (double)(clock_now_ns() - t0_ns) * 1e-9;
}

/* --- reading --- */

static void read_share(void *ctx, int i_thread, int n_threads)
{
    struct machine *m = ctx;
    int64_t first, end;
    threads_share((int64_t)READ_BYTES, (int64_t)(m->way->n_streams * READ_STRETCH), i_thread, n_threads, &first, &end);
    m->sums[i_thread % MOST_THREADS] = plain_read(m->data + first, (size_t)(end - first), m->way);
}

static double read_gb_s(struct machine *m)
{
    double best = 0;
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N_READ_WAYS; i++) {
            m->way = &read_ways[i];
            int64_t t0 = clock_now_ns();
            pool_run(m->pool, read_share, m);
            double rate = (double)READ_BYTES * 1e-9 / seconds_since(t0);
            if (rate > best) best = rate;
        }
    }
    return best;
}

/* --- barriers --- */

/* Regions of one empty tile a thread: what is left is the barrier at their ends. */
static int64_t open_empty(void *ctx, int i_thread, const int32_t **bounds)
{
    struct machine *m = ctx;
    (void)i_thread;
    (void)bounds;
    return m->n_left-- > 0 ? pool_n_threads(m->pool) : 0;
}

static void empty_tile(void *ctx, int64_t i_tile, int i_thread)
{
    (void)ctx;
    (void)i_tile;
    (void)i_thread;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle of several: the least is of a time when the others were away and one thread did all. */
static double barrier_us(struct machine *m)
{
    static const struct pool_work empty = { open_empty, empty_tile };
    double us[N_MEETINGS];
    for (int i = 0; i < N_MEETINGS; i++) {
        int64_t t0 = clock_now_ns();
        m->n_left = N_BARRIERS;
        pool_run_regions(m->pool, &empty, m);
        us[i] = seconds_since(t0) * 1e6 / N_BARRIERS;
    }
    qsort(us, N_MEETINGS, sizeof *us, by_size);
    return us[N_MEETINGS / 2];
}

int main(int argc, char **argv)
{
    struct machine m = { 0 };
    mb_error err = { 0 };
    int n_threads = argc == 2 ? atoi(argv[1]) : 0;
    if (n_threads < 1) {
        fprintf(stderr, "usage: bench_machine THREADS\n");
        return 2;
    }
    char *data = aligned_alloc(HUGE_PAGE, READ_BYTES + HUGE_PAGE); /* the last hints look behind the end */
    if (!data || pool_open(&m.pool, n_threads, &err) != MB_OK) {
        fprintf(stderr, "bench_machine: %s\n", data ? err.text : "no memory");
        return 1;
    }
    madvise(data, READ_BYTES, MADV_HUGEPAGE);
    memset(data, 1, READ_BYTES + HUGE_PAGE);
    m.data = data;
    double read = read_gb_s(&m), barrier = barrier_us(&m);
    printf("{\"read_gb_s\": %.2f, \"barrier_us\": %.2f}\n", read, barrier);
    free(data);
    pool_close(m.pool);
    return m.sums[0] == 1; /* never; keeps the sums */
}
