/* direct.h: one sequence driven straight through a model, without the scheduler: pages in order, any chunking, all logits
 * on request. What `doctor --fidelity` and the golden and invariance tests stand on: the shortest way from ids to logits.
 * Threads: one. Owns its page tables; the model and its device stay the caller's.
 */
#ifndef ENGINE_DIRECT_H
#define ENGINE_DIRECT_H

#include "model/model.h"

struct direct; /* opaque */

/* pool_bytes of the device's pool are taken whole (a device serves one direct at a time). n_tokens: longest sequence. */
mb_status direct_open(struct direct **out, struct model *m, int32_t n_tokens, mb_error *err);
void direct_close(struct direct *d);
/* Start a new sequence; pages are dealt again. page_stride > 1 deals every stride-th page first: another layout of the
 * same content, for tests. */
void direct_reset(struct direct *d, int32_t page_stride);
/* Append n ids as one row. draws [n] may be NULL (nothing is sampled, logits must be NULL too); logits may be NULL or
 * [n][n_vocab]. Greedy draws unless params is given (its history is this sequence). */
mb_status direct_run(struct direct *d, const int32_t *ids, int32_t n, const struct sample_params *params,
                     float *logits, struct draw *draws, mb_error *err);
int32_t direct_length(const struct direct *d);
/* Adapters of every later row, in stack order; borrowed until the next call or direct_close. */
void direct_set_adapters(struct direct *d, const struct adapter_handle *const *adapters, int32_t n);

#endif
