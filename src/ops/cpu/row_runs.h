/* row_runs.h: how kernels of one row walk through weights that come from memory, on every level.
 *
 * A call's blocks are some runs, read side by side: CPU_ROW_STREAMS, or as many as suit a level better. Each is a stream of memory: of
 * several the core has more lines under way than of one, whatever is asked for ahead, and a run goes on where it is when a short block
 * ends. A line is asked for twice: early into L2 (every second one, for the other of a pair comes with it), then into L1, which has room
 * for less at a time. Behind a run's end lies what another stream has read already: there the hints are for what the thread reads next
 * (cpu_act.w_next).
 */
#ifndef ROW_RUNS_H
#define ROW_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/cpu/kernels.h"

#define ROW_AHEAD_L1 1024 /* bytes of each stream */
#define ROW_AHEAD_L2 2048

/* From a block's end to where the hints behind it belong, and how far apart the streams are there. */
struct row_then {
    uintptr_t jump;
    size_t step;
};

/* Behind a block that is not the last of its run, or where nothing more is known. */
static inline struct row_then row_then_on(const struct cpu_weight *w, int64_t run)
{
    return (struct row_then){ 0, (size_t)run * w->block_bytes };
}

/* Behind the last blocks of n_streams runs, the first of which begins with block blk0. */
static inline struct row_then row_then_next(const struct cpu_weight *w, const struct cpu_act *x, int64_t blk0, int64_t run, int n_streams)
{
    if (!x->w_next) return row_then_on(w, run);
    return (struct row_then){ (uintptr_t)x->w_next - (uintptr_t)(w->data + (size_t)(blk0 + run) * w->block_bytes),
                              x->next_step * CPU_ROW_STREAMS / (size_t)n_streams };
}

/* What the group of the first stream at p asks for, at byte `at` of its block, and from there from stream to stream. */
struct row_hints {
    uintptr_t near, far;
    size_t near_step, far_step;
};

static inline struct row_hints row_hints_at(const uint8_t *p, size_t at, size_t block_bytes, size_t step, const struct row_then *then)
{
    bool near_past = at + ROW_AHEAD_L1 >= block_bytes, far_past = at + ROW_AHEAD_L2 >= block_bytes;
    return (struct row_hints){ (uintptr_t)p + ROW_AHEAD_L1 + (near_past ? then->jump : 0), (uintptr_t)p + ROW_AHEAD_L2 + (far_past ? then->jump : 0),
                               near_past ? then->step : step, far_past ? then->step : step };
}

#endif
