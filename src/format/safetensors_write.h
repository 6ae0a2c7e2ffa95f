/* safetensors_write.h: writing one safetensors file piece by piece.
 *
 * All names, types and shapes are known first, so the header is written at once and every tensor has its place; the
 * data may then come in any order and in any pieces. The file grows under a temporary name beside the target, its
 * whole size reserved at the start (a full disk shows before the work), and gets its name only in _finish, after
 * fsync. Whatever fails, the target is untouched. Threads: one at a time.
 */
#ifndef FORMAT_SAFETENSORS_WRITE_H
#define FORMAT_SAFETENSORS_WRITE_H

#include "format/safetensors.h"

struct safetensors_writer; /* opaque */

/* tensors[i]: name, dtype, n_dim, shape are read and copied where needed; data and size_bytes are ignored. Names must
 * differ. metadata: NULL or a JSON object of strings. MB_INVALID, MB_IO (no space, ...), MB_NO_MEMORY. */
mb_status safetensors_writer_open(struct safetensors_writer **out, const char *path, const struct tensor_view *tensors,
                                  size_t n, const json_t *metadata, mb_error *err);
/* Bytes [off, off + len) of tensor i. MB_INVALID outside of the tensor. */
mb_status safetensors_writer_put(struct safetensors_writer *w, size_t i, size_t off, const void *data, size_t len,
                                 mb_error *err);
/* Make it durable and give it its name; frees w in every case. */
mb_status safetensors_writer_finish(struct safetensors_writer *w, mb_error *err);
/* Drop everything. NULL is allowed. */
void safetensors_writer_abort(struct safetensors_writer *w);

/* Bytes of the data of one tensor; MB_TOO_LARGE when it does not fit in 63 bits. */
mb_status tensor_span(enum dtype t, const int64_t *shape, int n_dim, uint64_t *bytes, mb_error *err);
/* A name fit for an error text: at most cap - 1 bytes, control bytes as '?'. Returns out. */
const char *tensor_safe_name(char *out, size_t cap, const char *name);

#endif
