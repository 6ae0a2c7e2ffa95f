/* unzip.h: one member out of a zip file (a Python wheel), stored or deflated, with its CRC checked. No zip64. */
#ifndef HUB_UNZIP_H
#define HUB_UNZIP_H

#include "base/status.h"

/* Receives the member's bytes in order; another status than MB_OK ends the extraction and is passed on. */
typedef mb_status (*unzip_sink_fn)(void *ctx, const void *data, size_t len, mb_error *err);

/* limit_bytes: ceiling of the unpacked size. MB_NOT_FOUND (file or member, by name), MB_BAD_FORMAT, MB_UNSUPPORTED
 * (encrypted, other compression, zip64), MB_TOO_LARGE, MB_NO_MEMORY, and what the sink returns. */
mb_status unzip_member(const char *zip_path, const char *member, uint64_t limit_bytes, unzip_sink_fn sink, void *ctx,
                       mb_error *err);

#endif
