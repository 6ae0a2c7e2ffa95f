/* threads.h: the compute pool and the small wrappers over pthreads that the rest uses.
 *
 * The pool runs one function on n threads at once; the caller is thread 0 (the engine thread owns it). Inside, the
 * threads meet at barriers: pool_barrier spins for a bounded time, then sleeps on a futex, so that an oversubscribed
 * machine does not collapse. How work is cut over threads never changes a result (docs/numerics.md, rule 1).
 * Each compute thread sets MXCSR to the default (round to nearest, no flush to zero, no denormals-are-zero).
 */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <pthread.h>

#include "base/status.h"

struct pool; /* opaque */

typedef void (*pool_fn)(void *ctx, int i_thread, int n_threads);

/* Physical cores this process may use: affinity mask and cgroup quota, hyperthreads counted once. At least 1. */
int threads_default_count(void);

/* n_threads >= 1, the caller included. MB_NO_MEMORY, MB_IO. */
mb_status pool_open(struct pool **out, int n_threads, mb_error *err);
void pool_close(struct pool *p);
int pool_n_threads(const struct pool *p);
/* Run fn(ctx, i, n) on all threads and return when all have returned. Only one run at a time; not reentrant. */
void pool_run(struct pool *p, pool_fn fn, void *ctx);
/* Inside fn: wait until all n threads have come here. Memory written before is visible after. */
void pool_barrier(struct pool *p, int i_thread);
/* Barriers passed and nanoseconds spent in them by thread 0 since the last call (for the bench). */
void pool_stats(struct pool *p, uint64_t *n_barriers, uint64_t *wait_ns);

/* Half-open share of n items for thread i of n_threads, in whole multiples of `unit` (the tail goes to the last). */
void threads_share(int64_t n, int64_t unit, int i_thread, int n_threads, int64_t *first, int64_t *end);
/* Set the calling thread's floating point environment to the default. */
void threads_set_fp_default(void);
/* Lower the calling thread's scheduling priority (HTTP and preparation threads). Best effort. */
void threads_lower_priority(void);
void threads_set_name(const char *name); /* at most 15 bytes */

#endif
