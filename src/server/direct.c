/* direct.c: events of a running stream straight to the socket.
 *
 * Waking the library's thread for every token costs more than the token's bytes. While it has a stream suspended it has
 * nothing of it left to send (it asks for more only when all before is gone), so the pump may write a whole chunk itself, be it the
 * pump's thread or, where few streams run, the engine's (pump.c).
 * It does so only where little is on its way to the client; else the bytes go the ordinary way, which knows how to wait.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "server/server_int.h"

#define MOST_BYTES 4096      /* of one chunk */
#define SIZE_LINE_BYTES 6    /* MOST_BYTES in hexadecimal digits, and the line's end */
#define MOST_QUEUED 8192     /* bytes that the client has not yet acknowledged */

/* Are at most MOST_QUEUED bytes on their way? The system is asked only when what was sent since it was asked last could make more. */
static bool little_queued(struct http_exchange *x)
{
    int queued = 0;
    if (x->queued_known && x->queued_most <= MOST_QUEUED) return true;
    if (ioctl(x->fd, SIOCOUTQ, &queued) != 0) return false;
    x->queued_known = true;
    x->queued_most = (size_t)queued;
    return queued <= MOST_QUEUED;
}

/* The line before a chunk: its size in hexadecimal digits. */
static size_t size_line(char *to, size_t len)
{
    size_t n = 0, n_digits = 1;
    while (len >> 4 * n_digits) n_digits++;
    while (n_digits-- > 0) to[n++] = "0123456789abcdef"[len >> 4 * n_digits & 15];
    to[n++] = '\r';
    to[n++] = '\n';
    return n;
}

bool direct_ready_locked(struct http_exchange *x)
{
    bool free_line = x->suspended && x->mhd && x->chunked && x->out_flowed && x->out.len == x->out_off && !x->out.failed;
    return free_line && !x->stream_end && little_queued(x);
}

bool direct_send_locked(struct http_exchange *x, const struct buf *b)
{
    char chunk[SIZE_LINE_BYTES + MOST_BYTES + 2]; /* one piece of memory costs the system less than three */
    int one = 1;
    if (b->len == 0 || b->len > MOST_BYTES || !direct_ready_locked(x)) return false;
    if (!x->no_delay) setsockopt(x->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a Unix socket needs none */
    x->no_delay = true;
    size_t n = size_line(chunk, b->len), whole = n + b->len + 2;
    memcpy(chunk + n, b->data, b->len);
    memcpy(chunk + n + b->len, "\r\n", 2);
    ssize_t sent = send(x->fd, chunk, whole, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return false; /* the library will see the same, or wait */
    x->queued_most += whole;
    if ((size_t)sent < whole) { /* no memory for a few bytes: the chunk cannot be finished by anybody */
        x->out.failed = MB_IO;
        http_resume_locked(x);
    }
    return true;
}
