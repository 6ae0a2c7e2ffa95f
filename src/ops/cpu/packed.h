/* packed.h: packed weights in a file that the next start maps (--packed-cache). Opt-in: the file is as large as the weights.
 * Trusted only so far: its key must be the one asked for, and the checksum of a weight is looked at when it is taken. Anything
 * wrong with the file means packing as ever. Threads: one.
 */
#ifndef OPS_CPU_PACKED_H
#define OPS_CPU_PACKED_H

#include "ops/cpu/kernels.h"

#define PACKED_VERSION 1 /* a change of the layout of blocks (kernels.h) is a new one */

struct packed_cache; /* opaque */

/* NULL: no memory; then there is just no cache. key says what the weights come from. */
struct packed_cache *packed_open(const char *path, uint64_t key);
void packed_close(struct packed_cache *c); /* weights that were found in it are gone; NULL is allowed */
/* The next weight of the model, of this name and form: w->data is set. false: not there, or damaged; pack and note it. */
bool packed_find(struct packed_cache *c, const char *name, struct cpu_weight *w);
/* This weight was packed: it belongs into the file. Its memory must stay until packed_finish. */
void packed_note(struct packed_cache *c, const char *name, const struct cpu_weight *w);
/* All weights are there: write the file anew when one was not found in it. A full disk is a warning. */
void packed_finish(struct packed_cache *c);

#endif
