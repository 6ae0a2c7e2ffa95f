/* conns.c: the table of connections: total deadlines for headers and bodies, and the oldest idle connection goes when
 * the table is full. A connection is cut with shutdown(): libmicrohttpd then sees it end and closes it. */
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

void conns_tick(struct server *s)
{
    int64_t now = clock_now_ns();
    pthread_mutex_lock(&s->lock);
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->limit_ns > 0 && now - c->since_ns > c->limit_ns) cut(c, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}

void conns_close_idle(struct server *s)
{
    struct conn *oldest = NULL;
    pthread_mutex_lock(&s->lock);
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->phase == CONN_IDLE && !c->cut && (!oldest || c->since_ns < oldest->since_ns)) oldest = c;
    if (oldest && oldest != s->conns) cut(oldest, SHUT_RDWR); /* never the one that just came */
    pthread_mutex_unlock(&s->lock);
}
