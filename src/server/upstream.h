/* upstream.h: the answer of an engine's own HTTP server, read byte by byte as it comes: status line, headers, a body with a length
 * or in chunks. Parsing only: no sockets, no threads. What it does not know it refuses (UP_BROKEN): the other end is this program.
 */
#ifndef SERVER_UPSTREAM_H
#define SERVER_UPSTREAM_H

#include "base/buf.h"

#define UPSTREAM_HEAD_MAX ((size_t)16 << 10)

enum upstream_state { UP_HEAD = 0, UP_LENGTH, UP_CHUNK_SIZE, UP_CHUNK, UP_CHUNK_END, UP_TRAILER, UP_DONE, UP_BROKEN };

struct upstream {
    enum upstream_state state;
    struct buf head;               /* until the empty line; then kept: upstream_header reads it */
    struct buf line;               /* of a chunk's size, or of the trailer */
    int status;
    uint64_t left;                 /* bytes of the body or of the chunk */
};

void upstream_init(struct upstream *u);
void upstream_free(struct upstream *u);
/* Take bytes; those of the body are appended to body (asked by the caller whether it failed). What follows the end is left out. */
void upstream_feed(struct upstream *u, const char *data, size_t len, struct buf *body);
/* The head is complete. */
bool upstream_has_head(const struct upstream *u);
/* Value of a header, cut to cap - 1 bytes; false: there is none, and out is empty. */
bool upstream_header(const struct upstream *u, const char *name, char *out, size_t cap);

#endif
