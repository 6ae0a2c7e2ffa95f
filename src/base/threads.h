/* threads.h: the compute pool and the small wrappers over pthreads that the rest uses.
 *
 * The pool runs work as a sequence of regions, each a number of independent tiles. A thread takes the tiles of its own
 * share first, then those that others have not begun; the region is over when every tile is done, whether every thread
 * came or not: a worker that the system has put aside between two tiles holds nobody back. Whoever finishes the last
 * tile does the serial work in between and opens the next region. A thread without work spins for a bounded time, then
 * sleeps on a futex, so that an oversubscribed machine does not collapse.
 * How work is cut over threads, and who does what, never changes a result (docs/numerics.md).
 * Each compute thread sets MXCSR to the default (round to nearest, no flush to zero, no denormals-are-zero).
 */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <pthread.h>

#include "base/status.h"

struct pool; /* opaque */

typedef void (*pool_fn)(void *ctx, int i_thread, int n_threads);

/* Physical cores this process may use: affinity mask and cgroup quota, hyperthreads counted once, of a hybrid processor
 * the fast cores alone. At least 1. */
int threads_default_count(void);

/* What a run does. Called with the ctx of pool_run_regions.
 *   open   by one thread at a time, when everything of the regions before is done and visible: does what is serial and
 *          returns the number of tiles of the next region (1 .. POOL_MAX_TILES), 0 when the run is over.
 *          *bounds: left NULL for equal shares; else [n_threads + 1] rising tile numbers from 0 to the count: thread i
 *          begins with tiles [bounds[i], bounds[i + 1]); read before open is called again.
 *   tile   one tile of the open region. */
#define POOL_MAX_TILES (1 << 22)
struct pool_work {
    int64_t (*open)(void *ctx, int i_thread, const int32_t **bounds);
    void (*tile)(void *ctx, int64_t i_tile, int i_thread);
};

/* n_threads >= 1, the caller included. MB_NO_MEMORY, MB_IO. */
mb_status pool_open(struct pool **out, int n_threads, mb_error *err);
void pool_close(struct pool *p);
int pool_n_threads(const struct pool *p);
/* Run regions until open returns 0. The caller is thread 0. Only one run at a time; not reentrant. In a crowded machine the caller
 * keeps to some of the CPUs that it may use, until the run is over. */
void pool_run_regions(struct pool *p, const struct pool_work *work, void *ctx);
/* One region: fn(ctx, i, n) once for each share i of n = n_threads; a thread may do several shares. */
void pool_run(struct pool *p, pool_fn fn, void *ctx);
/* Regions run (each ends at a barrier) and nanoseconds that thread 0 waited at their ends, since the last call. */
void pool_stats(struct pool *p, uint64_t *n_barriers, uint64_t *wait_ns);

/* Half-open share of n items for thread i of n_threads, in whole multiples of `unit` (the tail goes to the last). */
void threads_share(int64_t n, int64_t unit, int i_thread, int n_threads, int64_t *first, int64_t *end);
/* Set the calling thread's floating point environment to the default. */
void threads_set_fp_default(void);
/* Lower the calling thread's scheduling priority (HTTP and preparation threads). Best effort. */
void threads_lower_priority(void);
void threads_set_name(const char *name); /* at most 15 bytes */

#endif
