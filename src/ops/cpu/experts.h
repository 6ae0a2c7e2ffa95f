/* experts.h: the experts that a step needs, in memory while it needs them: a cache of slots over the experts' file
 * (expert_file.h), filled by threads that do nothing but read.
 *
 * A step asks for experts in the order in which it will use them and holds what it gets until it lets go; reads go on while the
 * compute threads work on what is there. Which expert gives its slot up: among those that nobody holds, the one used least often of
 * late (counts are halved from time to time), then the one that was used longest ago. What is where never changes a result.
 *
 * Threads: ask, release and end_run are for one thread at a time (who opens a pass); wait for any. Memory: `reserve` maps all
 * slots at once, they become memory as they are first read into.
 */
#ifndef OPS_CPU_EXPERTS_H
#define OPS_CPU_EXPERTS_H

#include "ops/cpu/expert_file.h"
#include "ops/ops.h"

struct experts; /* opaque */

/* As expert_file_open; MB_IO also when no thread can be started. */
mb_status experts_open(struct experts **out, const char *path, uint64_t key, mb_error *err);
void experts_close(struct experts *x); /* NULL is allowed */
struct expert_file *experts_file(struct experts *x);
/* As many slots as `bytes` hold, at least one; between runs. What was cached is forgotten. MB_NO_MEMORY. */
mb_status experts_reserve(struct experts *x, size_t bytes, mb_error *err);
void experts_stats(struct experts *x, struct ops_expert_stats *out);

/* A layer begins: ages the counts. */
void experts_begin(struct experts *x);
/* A slot that holds expert i of a group, or soon will: held until released. -1: all slots are held. */
int32_t experts_ask(struct experts *x, int32_t i_group, int32_t i);
/* Is it there already? */
bool experts_is_ready(const struct experts *x, int32_t i_slot);
/* The record in a held slot; waits for the read. NULL: it failed. */
const uint8_t *experts_wait(struct experts *x, int32_t i_slot);
void experts_release(struct experts *x, int32_t i_slot);
/* Has a read failed since the run began? */
bool experts_failed(const struct experts *x);
/* The run is over, or given up: nothing is held or read any more. The first failure, if there was one; it is forgotten, and what
 * could not be read is tried again when it is next asked for. */
mb_status experts_end_run(struct experts *x, mb_error *err);

#endif
