/* hasher.h: the identity of a file, computed while it arrives: sha256 of the bytes, or git's sha1 of "blob <size>\0" and the bytes.
 * A large file is hashed by a thread of its own beside the network: bytes are copied into a ring, the thread takes them from there,
 * gives each piece to a sink (which writes it to disk) and hashes it while it is in the cache. So neither hash nor disk costs
 * time where a second core is free. Small files are written and hashed at once.
 * Threads: one caller at a time.
 */
#ifndef HUB_HASHER_H
#define HUB_HASHER_H

#include "base/status.h"

struct hasher; /* opaque */

/* size: of the whole file. MB_NO_MEMORY. */
mb_status hasher_open(struct hasher **out, bool is_sha256, int64_t size, mb_error *err);
void hasher_close(struct hasher *h); /* NULL is nothing */
/* From now on every byte goes to the sink before it is hashed, in order; out of the thread, where there is one. After a failure of the
 * sink nothing more goes there, and add, flush and end return it. */
typedef mb_status (*hasher_sink_fn)(void *ctx, const void *data, size_t len, mb_error *err);
void hasher_set_sink(struct hasher *h, hasher_sink_fn sink, void *ctx);
/* Until everything added went through the sink. */
mb_status hasher_flush(struct hasher *h, mb_error *err);
/* Forget all and begin anew, after what was added went through the sink. */
mb_status hasher_restart(struct hasher *h, mb_error *err);
/* Waits when the ring is full. MB_INTERNAL: the library failed; and what a sink gives, maybe for bytes of an earlier call. */
mb_status hasher_add(struct hasher *h, const void *data, size_t len, mb_error *err);
/* The first `size` bytes of a file, in pieces. going (may be NULL) is asked after each with what was read; false: MB_CANCELLED.
 * MB_IO: it cannot be read or became shorter. */
mb_status hasher_add_file(struct hasher *h, int fd, int64_t size, const char *path, bool (*going)(void *ctx, int64_t done_bytes),
                          void *ctx, mb_error *err);
/* Lower-case hexadecimal digits of everything added. Afterwards only restart and close. */
mb_status hasher_end(struct hasher *h, char hex[65], mb_error *err);

#endif
