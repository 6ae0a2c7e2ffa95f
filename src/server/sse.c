/* sse.c: comment lines of an event stream. Written only between events, which clients must ignore (B-044). */
#include "server/server_int.h"

void sse_comment(struct buf *out, const char *text)
{
    buf_printf(out, ": %s\n\n", text);
}

void sse_keepalive(struct buf *out, int32_t n_done, int32_t n_total)
{
    buf_printf(out, ": keepalive %d/%d\n\n", (int)n_done, (int)n_total);
}
