/* proxy_transfer.c: one request on its way through an engine:
 *
 *   NEW -> WAITING (for its engine) -> RUNNING (a connection of its own) -> DONE
 *                                         | the connection ended too early
 *                                         v
 *                                       LOST: until it is known whether the engine has died: 502, or once more (GET, HEAD)
 *
 * Streams are passed on by whole events, so that one that is cut short by a death can be ended by an error event. When the client
 * does not read, nothing is read from the engine either, which then parks the row: what is under way is bounded by the two sockets.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/proxy_int.h"

#define READ_BYTES (16 << 10)
#define READS_A_TURN 4
#define EVENT_HELD_MAX ((size_t)4 << 20) /* of an event that is not whole yet; a larger one is passed on in pieces */
#define BOOK_STEP BODY_SMALL_BYTES
#define LOST_NS 1000000000LL

static const char DIED[] = "the engine ended while it worked on this request; it is started again";

/* --- ends --- */
static void disconnect(struct proxy *p, struct transfer *t)
{
    if (t->fd < 0) return;
    epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, t->fd, NULL);
    close(t->fd);
    t->fd = -1;
    t->engine->n_running--;
    t->engine->t_used_ns = clock_now_ns();
}

static void finish(struct proxy *p, struct transfer *t)
{
    disconnect(p, t);
    if (t->state == TRANSFER_WAITING) t->engine->n_waiting--, p->n_waiting--;
    if (t->is_pinned) t->engine->n_pinned--;
    t->is_pinned = false;
    if (t->prev) t->prev->next = t->next;
    else p->first = t->next;
    if (t->next) t->next->prev = t->prev;
    else p->last = t->prev;
    t->state = TRANSFER_DONE;
    buf_free(&t->body);
    buf_free(&t->in);
    t->done_next = p->done;
    p->done = t;
    p->hurry = true;
}

static bool stream_is_open(struct transfer *t)
{
    pthread_mutex_lock(&t->x->lock);
    bool open = t->x->stream_open;
    pthread_mutex_unlock(&t->x->lock);
    return open;
}

/* A plain answer, or the last event of a stream. */
static void fail(struct proxy *p, struct transfer *t, int status, const char *type, const char *code, const char *why)
{
    struct http_exchange *x = t->x;
    struct buf b;
    buf_init(&b, 0);
    if (!stream_is_open(t)) {
        api_error_body(&b, x->dialect, status, type, code, NULL, why);
        http_reply(x, status, "application/json", &b);
    } else if (t->torn) { /* in the middle of an event: the transfer is broken off */
        pthread_mutex_lock(&x->lock);
        x->out.failed = MB_IO;
        x->stream_end = true;
        http_resume_locked(x);
        pthread_mutex_unlock(&x->lock);
    } else {
        api_stream_broken(&b, x->dialect, t->n_events, status, code, why);
        generate_send(x, &b, true);
    }
    buf_free(&b);
    finish(p, t);
}

void transfer_refuse(struct proxy *p, struct transfer *t, const char *why)
{
    fail(p, t, 502, "engine_unavailable", "engine_unavailable", why);
}

void transfer_stop(struct proxy *p, struct transfer *t)
{
    fail(p, t, 503, NULL, "shutting_down", "the server is shutting down");
}

/* API-366: nobody reads it, but it is counted. */
static void leave(struct proxy *p, struct transfer *t)
{
    mb_error err = { 0 };
    mb_fail(&err, MB_CANCELLED, "the client closed the connection");
    if (stream_is_open(t)) {
        struct buf b;
        buf_init(&b, 0);
        generate_send(t->x, &b, true);
        buf_free(&b);
    } else {
        http_reply_error(t->x, &err);
    }
    finish(p, t);
}

/* --- waiting --- */
static void wait_for_engine(struct proxy *p, struct transfer *t)
{
    int status;
    const char *code, *why;
    t->state = TRANSFER_WAITING;
    t->engine->n_waiting++;
    p->n_waiting++;
    if (p->n_waiting > PROXY_WAITING_MAX) {
        fail(p, t, 429, NULL, "queue_full", "too many requests wait for an engine already; try again later");
    } else if (!engine_want(p, t->engine, &status, &code, &why)) {
        fail(p, t, status, status == 502 ? code : NULL, code, why);
    } else {
        p->hurry = true; /* engines_balance hands it out */
    }
}

static bool engine_is_evicted(const struct engine *e)
{
    return (e->state == ENGINE_ABSENT && e->has_served) || e->state == ENGINE_DRAINING || e->state == ENGINE_STOPPING;
}

static void begin(struct proxy *p, struct transfer *t)
{
    exchange_ref(t->x);
    t->prev = p->last;
    if (p->last) p->last->next = t;
    else p->first = t;
    p->last = t;
    t->t_limit_ns = clock_now_ns() + PROXY_READY_NS;
    t->engine = engine_find(p, t->id, t->path);
    if (!t->engine) {
        t->engine = p->engines[0];
        fail(p, t, 503, NULL, "too_many_models", "this server has been asked for too many different models; the default one is still served");
    } else if (p->ending) {
        transfer_stop(p, t);
    } else if (t->x->route->looks_only && engine_is_evicted(t->engine)) {
        fail(p, t, 503, NULL, "engine_not_resident", "the default model's engine does not run now; a request for it starts it, looking does not");
    } else {
        wait_for_engine(p, t);
    }
}

/* The engine has died. */
static void on_death(struct proxy *p, struct transfer *t)
{
    if (!t->again || stream_is_open(t)) {
        transfer_refuse(p, t, DIED);
        return;
    }
    t->again = false; /* once */
    t->n_sent = 0;
    t->is_stream = t->fin_sent = false;
    upstream_free(&t->up);
    upstream_init(&t->up);
    buf_clear(&t->in);
    t->t_limit_ns = clock_now_ns() + PROXY_READY_NS;
    wait_for_engine(p, t);
}

static void lose(struct proxy *p, struct transfer *t)
{
    disconnect(p, t);
    if (t->life != t->engine->life) {
        on_death(p, t);
        return;
    }
    t->state = TRANSFER_LOST;
    t->t_limit_ns = clock_now_ns() + LOST_NS;
    p->hurry = true;
}

/* --- running --- */
static void look_for(struct proxy *p, struct transfer *t, uint32_t events)
{
    struct epoll_event ev = { .events = events, .data.ptr = t };
    if (t->fd < 0 || t->events == events) return;
    epoll_ctl(p->epoll_fd, t->events == UINT32_MAX ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, t->fd, &ev);
    t->events = events;
}

static size_t to_send(const struct transfer *t)
{
    return t->ask.len + t->body.len - t->n_sent;
}

void transfer_send(struct proxy *p, struct transfer *t)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct engine *e = t->engine;
    if (t->local) { /* now the host knows what it needs */
        if (!work_push(t->x)) http_reply_status(t->x, 429, "queue_full", NULL, "too many requests wait already; try again later");
        finish(p, t);
        return;
    }
    strcpy(a.sun_path, e->socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0) { /* its queue is full, or it has just died: soon again */
        if (fd >= 0) close(fd);
        p->hurry = true;
        return;
    }
    e->n_waiting--;
    p->n_waiting--;
    e->n_running++;
    if (!t->x->route->looks_only) e->t_used_ns = clock_now_ns();
    t->state = TRANSFER_RUNNING;
    t->life = e->life;
    t->fd = fd;
    t->events = UINT32_MAX;
    look_for(p, t, EPOLLIN | EPOLLOUT);
}

/* false: the connection is of no more use for sending; what the engine has said may still be read. */
static void send_ask(struct proxy *p, struct transfer *t)
{
    while (to_send(t) > 0) {
        bool in_head = t->n_sent < t->ask.len;
        const char *from = in_head ? t->ask.data + t->n_sent : t->body.data + (t->n_sent - t->ask.len);
        size_t len = in_head ? t->ask.len - t->n_sent : to_send(t);
        ssize_t n = send(t->fd, from, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) {
            t->n_sent = t->ask.len + t->body.len;
            break;
        }
        t->n_sent += (size_t)n;
    }
    if (t->half_closed && !t->fin_sent) { /* API-364: what the client does reaches the engine */
        t->fin_sent = true;
        shutdown(t->fd, SHUT_WR);
    }
    if (t->body.len > 0 && !t->again) {
        buf_free(&t->body);
        t->n_sent = t->ask.len;
        body_lower(t->x, 0);
    }
    look_for(p, t, t->blocked ? 0 : EPOLLIN);
}

/* Headers that go back as they are; the rest is the host's own (docs/server.md). */
static void take_head(struct transfer *t)
{
    static const char *const passed[] = { "Retry-After", "Allow" };
    struct http_exchange *x = t->x;
    if (!upstream_header(&t->up, "Content-Type", t->content_type, sizeof t->content_type))
        strcpy(t->content_type, "application/octet-stream");
    t->is_stream = t->up.status == 200 && strncmp(t->content_type, "text/event-stream", 17) == 0;
    pthread_mutex_lock(&x->lock);
    upstream_header(&t->up, "Warning", x->warning, sizeof x->warning);
    for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++)
        if (!x->extra_name[0] && upstream_header(&t->up, passed[i], x->extra_value, sizeof x->extra_value)) strcpy(x->extra_name, passed[i]);
    pthread_mutex_unlock(&x->lock);
}

/* Bytes of whole events at the beginning of in, of which none ends in the first `before` bytes. */
static size_t whole_events(struct transfer *t, size_t before)
{
    size_t n = t->in.len, least = before ? before + 1 : 2;
    const char *d = t->in.data;
    while (n >= least && !(d[n - 1] == '\n' && d[n - 2] == '\n')) n--;
    if (n >= least) return n;
    return t->in.len > EVENT_HELD_MAX ? t->in.len : 0;
}

static void count_events(struct transfer *t, size_t len)
{
    static const char name[] = "event: ";
    const char *d = t->in.data, *end = d + len;
    for (const char *q = d; (q = memmem(q, (size_t)(end - q), name, sizeof name - 1)) != NULL; q += sizeof name - 1)
        t->n_events += q == d || q[-1] == '\n';
}

static void pass_on(struct transfer *t, size_t before)
{
    size_t n = whole_events(t, before);
    if (n == 0) return;
    struct buf b = { .data = t->in.data, .len = n, .cap = t->in.cap }; /* a view: it is only read, and cleared */
    t->torn = n < 2 || t->in.data[n - 1] != '\n' || t->in.data[n - 2] != '\n';
    count_events(t, n);
    generate_send(t->x, &b, false);
    memmove(t->in.data, t->in.data + n, t->in.len - n);
    t->in.len -= n;
    if (t->in.len == 0 && t->in.cap > OUT_HIGH_BYTES) buf_free(&t->in), buf_init(&t->in, 0);
}

static void complete(struct proxy *p, struct transfer *t)
{
    struct buf b;
    buf_init(&b, 0);
    if (t->is_stream) {
        generate_send(t->x, &b, true);
    } else {
        http_reply(t->x, t->up.status, t->content_type, &t->in);
        buf_init(&t->in, 0);
    }
    buf_free(&b);
    finish(p, t);
}

static bool has_room(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool room = x->out.len - x->out_off < OUT_HIGH_BYTES;
    x->out_blocked = !room;
    pthread_mutex_unlock(&x->lock);
    return room;
}

/* What has come; false: it is over. */
static bool take_bytes(struct proxy *p, struct transfer *t, const char *data, size_t len)
{
    bool had_head = upstream_has_head(&t->up);
    size_t before = t->in.len;
    upstream_feed(&t->up, data, len, &t->in);
    if (!had_head && upstream_has_head(&t->up)) take_head(t);
    bool booked = t->is_stream || t->in.len <= BODY_SMALL_BYTES || before / BOOK_STEP == t->in.len / BOOK_STEP ||
                  reply_book(t->x, t->in.len + BOOK_STEP);
    if (t->in.failed || !booked) {
        t->torn = stream_is_open(t);
        fail(p, t, 503, NULL, "body_memory", "answers and bodies in work fill the memory set by --body-memory; try again later");
        return false;
    }
    if (t->is_stream) pass_on(t, before);
    if (t->up.state == UP_DONE) complete(p, t);
    else if (t->up.state == UP_BROKEN) lose(p, t);
    else return true;
    return false;
}

static void receive(struct proxy *p, struct transfer *t)
{
    char data[READ_BYTES];
    for (int i = 0; i < READS_A_TURN; i++) {
        if (t->is_stream && !has_room(t->x)) {
            t->blocked = true;
            look_for(p, t, to_send(t) > 0 ? EPOLLOUT : 0);
            return;
        }
        ssize_t n = recv(t->fd, data, sizeof data, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            lose(p, t);
            return;
        }
        if (!take_bytes(p, t, data, (size_t)n)) return;
    }
}

void transfer_io(struct proxy *p, struct transfer *t, uint32_t events)
{
    if (t->state != TRANSFER_RUNNING) return;
    if (to_send(t) > 0 && (events & EPOLLOUT)) send_ask(p, t);
    if (t->blocked && (events & (EPOLLERR | EPOLLHUP))) { /* the engine has gone; what it had sent waits for the reader */
        if (!has_room(t->x)) { /* it would be told again and again */
            epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, t->fd, NULL);
            t->events = UINT32_MAX;
            return;
        }
        t->blocked = false;
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) receive(p, t);
}

/* --- what the client does --- */
void transfer_poke(struct proxy *p, struct transfer *t)
{
    struct http_exchange *x = t->x;
    if (t->state == TRANSFER_NEW) begin(p, t);
    if (t->state == TRANSFER_DONE) return;
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone || x->hung_up, fin = x->fin, cut = x->cut;
    pthread_mutex_unlock(&x->lock);
    bool sent_soon = t->state == TRANSFER_RUNNING || t->engine->state == ENGINE_READY;
    if (gone || (fin && !sent_soon)) {
        leave(p, t);
        return;
    }
    if (cut && t->state != TRANSFER_RUNNING) {
        transfer_stop(p, t);
        return;
    }
    if (cut) engine_cut(t->engine); /* it ends what it does in the form that it has */
    if (fin && !t->half_closed) {
        t->half_closed = true;
        if (to_send(t) == 0) send_ask(p, t);
    }
    if (t->blocked && has_room(x)) {
        t->blocked = false;
        look_for(p, t, EPOLLIN | (to_send(t) > 0 ? EPOLLOUT : 0));
    }
}

void transfer_tick(struct proxy *p, struct transfer *t, int64_t now_ns)
{
    if (t->state == TRANSFER_LOST) p->hurry = true; /* whether its engine has died is to be known soon */
    if (t->state == TRANSFER_LOST && t->life != t->engine->life) on_death(p, t);
    else if (t->state == TRANSFER_LOST && now_ns > t->t_limit_ns) transfer_refuse(p, t, "the engine closed the connection before its answer was whole");
    else if (t->state == TRANSFER_WAITING && now_ns > t->t_limit_ns) transfer_refuse(p, t, "the engine was not ready within 15 minutes");
}
