/* safetensors.h: a checkpoint directory as typed, bounds-checked views.
 *
 * Opens model.safetensors, or model.safetensors.index.json with its shards, or (when neither stands there) every
 * *.safetensors file. Each header is checked before any data is mapped: length, JSON, dtype, shape x dtype == span,
 * order, overlap, holes, duplicates, file size (B-109, B-110). Tensor data are read-only views into maps that live as
 * long as the checkpoint. Threads: opening and closing by one thread, look-ups by any.
 * Source: the safetensors format description; MLX and plain Hugging Face checkpoints use the same container.
 */
#ifndef FORMAT_SAFETENSORS_H
#define FORMAT_SAFETENSORS_H

#include "base/filemap.h"
#include "format/quant.h"

#define TENSOR_MAX_DIM 8

struct tensor_view {
    const char *name;              /* NUL-terminated, owned by the checkpoint */
    enum dtype dtype;
    int n_dim;                     /* 0 = scalar */
    int64_t shape[TENSOR_MAX_DIM]; /* outermost first */
    const uint8_t *data;           /* mapped, not necessarily aligned to more than 1 byte */
    size_t size_bytes;
    int i_shard;                   /* which file */
};

struct checkpoint; /* opaque */

/* MB_NOT_FOUND (no weights; names the directory), MB_BAD_FORMAT (file, tensor, byte; "incomplete: have X of Y bytes"
 * for a short file; a missing shard by name), MB_UNSUPPORTED (unknown dtype by name), MB_IO, MB_NO_MEMORY. */
mb_status checkpoint_open(struct checkpoint **out, const char *dir, mb_error *err);
/* One file of a folder alone (a plain name, "adapters.safetensors"), whatever else stands there. */
mb_status checkpoint_open_file(struct checkpoint **out, const char *dir, const char *name, mb_error *err);
void checkpoint_close(struct checkpoint *c);
size_t checkpoint_n_tensors(const struct checkpoint *c);
const struct tensor_view *checkpoint_at(const struct checkpoint *c, size_t i);          /* in file order */
const struct tensor_view *checkpoint_find(const struct checkpoint *c, const char *name); /* NULL when absent */
/* The same with a printf name. */
const struct tensor_view *checkpoint_findf(const struct checkpoint *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
size_t checkpoint_total_bytes(const struct checkpoint *c); /* of tensor data */
/* The tensor's pages will not be read again: drop them from memory. */
void checkpoint_drop(const struct checkpoint *c, const struct tensor_view *t);

/* Parse one header (the JSON part, without the 8 length bytes) against data_bytes of tensor data: what the fuzzer
 * drives. Rows are appended to *out (arena memory). */
struct arena;
mb_status safetensors_parse_header(struct arena *a, const char *file_name, const char *json, size_t len,
                                   uint64_t data_bytes, struct tensor_view **out, size_t *n_out, mb_error *err);

/* Write one safetensors file atomically: tensors in the given order, header padded to 8 bytes with spaces.
 * metadata may be NULL (a JSON object of strings). */
mb_status safetensors_write(const char *path, const struct tensor_view *tensors, size_t n, const json_t *metadata,
                            mb_error *err);

#endif
