/* conns.c: the table of connections: total deadlines for headers and bodies, and when the table is full the oldest idle
 * connection goes, or the oldest whose body has not arrived. A connection is cut with shutdown(): libmicrohttpd then sees it
 * end and closes it. */
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/server_int.h"

struct conn *conn_add(struct server *s, int fd, bool loopback)
{
    struct conn *c = mb_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->fd = fd;
    c->loopback = loopback;
    c->since_ns = clock_now_ns();
    c->limit_ns = s->opt.idle_timeout_ms * 1000000;
    pthread_mutex_lock(&s->lock);
    c->next = s->conns;
    if (s->conns) s->conns->prev = c;
    s->conns = c;
    bool full = ++s->n_conns >= s->max_conns;
    pthread_mutex_unlock(&s->lock);
    if (full) conns_close_idle(s);
    return c;
}

void conn_remove(struct server *s, struct conn *c)
{
    pthread_mutex_lock(&s->lock);
    if (c->prev) c->prev->next = c->next;
    else s->conns = c->next;
    if (c->next) c->next->prev = c->prev;
    s->n_conns--;
    pthread_mutex_unlock(&s->lock);
    mb_free(c);
}

void conn_set(struct server *s, struct conn *c, enum conn_phase phase, int64_t limit_ms)
{
    if (!c) return;
    pthread_mutex_lock(&s->lock);
    c->phase = phase;
    c->since_ns = clock_now_ns();
    c->limit_ns = limit_ms * 1000000;
    if (phase == CONN_IDLE && s->stopping && !c->cut) {
        c->cut = true;
        shutdown(c->fd, SHUT_RD); /* what is being sent still goes out */
    }
    pthread_mutex_unlock(&s->lock);
}

static void cut(struct conn *c, int how)
{
    if (c->cut) return;
    c->cut = true;
    shutdown(c->fd, how);
}

/* A FIN that came right behind a read is not told to the library a second time (its epoll is edge-triggered): a shutdown tells
 * it. What has arrived before is still read. */
static void tell_fins(const struct pollfd *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i].revents & POLLRDHUP) shutdown(list[i].fd, SHUT_RD);
}

void conns_tick(struct server *s)
{
    int64_t now = clock_now_ns();
    struct pollfd list[64];
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (struct conn *c = s->conns; c; c = c->next) {
        if (c->limit_ns > 0 && now - c->since_ns > c->limit_ns) cut(c, SHUT_RDWR);
        if (c->phase != CONN_BUSY) list[n++] = (struct pollfd){ .fd = c->fd, .events = POLLRDHUP };
        if (n == 0 || (n < 64 && c->next)) continue;
        if (poll(list, (nfds_t)n, 0) > 0) tell_fins(list, n);
        n = 0;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Among those without a request; else among those whose body is on its way, or slow senders could keep everybody out. */
static struct conn *oldest_locked(struct server *s, enum conn_phase phase)
{
    struct conn *oldest = NULL;
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->phase == phase && !c->cut && (!oldest || c->since_ns < oldest->since_ns)) oldest = c;
    return oldest == s->conns ? NULL : oldest; /* never the one that just came */
}

void conns_close_idle(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    struct conn *c = oldest_locked(s, CONN_IDLE);
    if (!c) c = oldest_locked(s, CONN_BODY);
    if (c) cut(c, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}
