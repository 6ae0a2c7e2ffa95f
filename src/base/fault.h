/* fault.h: named places where a test makes something go wrong. Compiled to nothing unless the build says FAULTS=1.
 *
 * MLX_BUN_TEST_FAULT is a list "name=value;name=value", read once at the first question:
 *   alloc=K            the K-th allocation of the process (from 1) fails; alloc=K+ fails it and all later ones
 *   alloc_every=N:SEED each allocation fails with probability 1/N, drawn from SEED
 *   clock=MS           clock_now_ns and clock_unix_* run MS milliseconds ahead
 *   step_delay=MS      every engine step sleeps MS milliseconds
 *   prefill_delay=MS   every prefill chunk sleeps MS milliseconds
 *   rank_death=N       in step N the last of several GPU ranks reads where no memory is, which ends its context
 *   engine_death=N     the engine thread ends at step N
 *   engine_wait=MS     an engine process that died young is started again after MS milliseconds, not 5000 (--isolate)
 *   engine_crash=N     the process ends by SIGKILL at the N-th time that it has opened a model
 *   disk_full=N        the N-th file write fails with ENOSPC
 *   expert_read=N      the N-th read of the experts' file fails with EIO (--expert-offload)
 *   space=N            the N-th look at the free space finds too little
 *   sum_order=1        one reduction of the matmul runs in another order (prove must find it)
 *   nan_step=N         the logits of step N become NaN
 * Names are documented here and nowhere else. Threads: any.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include "base/status.h"

#ifdef MB_FAULTS
/* Value of a fault, or dflt when it is not set. */
int64_t fault_value(const char *name, int64_t dflt);
/* Counts calls by name; true when this call is the one (or one of those) that must fail. */
bool fault_hit(const char *name);
#else
static inline int64_t fault_value(const char *name, int64_t dflt) { (void)name; return dflt; }
static inline bool fault_hit(const char *name) { (void)name; return false; }
#endif

#endif
