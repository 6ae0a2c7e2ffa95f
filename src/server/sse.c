/* sse.c: comment lines of an event stream. Written only between events, which clients must ignore (B-044). */
#include "server/server_int.h"

void sse_comment(struct buf *out, const char *text)
{
    buf_printf(out, ": %s\n\n", text);
}
