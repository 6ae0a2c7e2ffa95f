/* pump.c: the pump: the one consumer of all running generations, the watch over the sockets of pending requests
 * (a suspended connection is blind in libmicrohttpd), keep-alive lines and deadlines.
 *
 * Who holds `pump_role` is the pump. That is its thread whenever it is awake. While it sleeps and few streams run, the engine's thread
 * takes the role for as long as it takes to send the text it has just made (generate_here): waking a thread for it costs more than the
 * sending. It never waits for the role nor for a lock, and leaves whatever else there is to the thread.
 *
 * References: an exchange in the ready list, in the watch, or in the pump's list is held by it. The watch's reference is
 * dropped here, after the events that were already fetched have been looked at, so an event never names freed memory. */
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"
#include "server/server_int.h"

#define TICK_MS 250
#define CONNS_EVERY_NS 1000000000
#define HERE_STREAMS 2      /* above so many one wake-up serves them all */

static void poke(struct server *s)
{
    uint64_t one = 1;
    if (write(s->wake_fd, &one, sizeof one) < 0) { /* full: it is awake already */ }
}

void pump_wake(struct http_exchange *x)
{
    struct server *s = x->s;
    pthread_mutex_lock(&s->ready_lock);
    bool asleep = s->pump_asleep;
    s->pump_asleep = false;        /* one write wakes it; it looks at the list again before it sleeps */
    if (!x->ready) {
        exchange_ref(x);
        x->ready = true;
        x->ready_next = NULL;
        if (s->ready_last) s->ready_last->ready_next = x;
        else s->ready_first = x;
        s->ready_last = x;
    }
    pthread_mutex_unlock(&s->ready_lock);
    if (asleep) poke(s);
}

/* x stays while this runs: its generation is not closed before notify is back, and being in the list holds it. */
static bool turn_here(struct http_exchange *x)
{
    struct server *s = x->s;
    if (pthread_mutex_trylock(&s->pump_role) != 0) return false;
    bool done = x->in_pump && !x->finished && s->n_pump <= HERE_STREAMS && generate_here(x);
    pthread_mutex_unlock(&s->pump_role);
    return done;
}

void pump_notify(void *x)
{
    if (!turn_here(x)) pump_wake(x);
}

/* --- watch --- */
bool pump_watch(struct http_exchange *x)
{
    struct epoll_event ev = { .events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = x };
    exchange_ref(x);
    pthread_mutex_lock(&x->lock);
    bool ok = x->watched = epoll_ctl(x->s->epoll_fd, EPOLL_CTL_ADD, x->fd, &ev) == 0;
    pthread_mutex_unlock(&x->lock);
    if (!ok) exchange_unref(x);
    return ok;
}

/* Under the exchange's lock, as re-arming is: the next request of this connection will use the same descriptor. */
bool pump_unwatch(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool was = x->watched;
    if (was) epoll_ctl(x->s->epoll_fd, EPOLL_CTL_DEL, x->fd, NULL);
    x->watched = false;
    if (was) x->unwatched = true;
    pthread_mutex_unlock(&x->lock);
    return was;
}

/* --- the pump's list --- */
static void adopt(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool take = x->gen_ready && !x->in_pump && !x->finished;
    bool probe = take && x->fin;
    pthread_mutex_unlock(&x->lock);
    if (!take) return;
    exchange_ref(x);
    x->in_pump = true;
    x->pump_next = x->s->pump_list;
    x->s->pump_list = x;
    x->s->n_pump++;
    if (probe) generate_probe(x);
}

static void let_go(struct http_exchange *x)
{
    if (!x->finished || !x->in_pump) return;
    struct http_exchange **p = &x->s->pump_list;
    while (*p != x) p = &(*p)->pump_next;
    *p = x->pump_next;
    x->s->n_pump--;
    x->in_pump = false;
    exchange_unref(x);
}

static bool is_proxied(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool yes = x->transfer != NULL;
    pthread_mutex_unlock(&x->lock);
    return yes;
}

static void step(struct http_exchange *x)
{
    if (is_proxied(x)) {
        proxy_poke(x);
        return;
    }
    exchange_ref(x);
    adopt(x);
    generate_step(x);
    let_go(x);
    exchange_unref(x);
}

static void on_socket(struct server *s, const struct epoll_event *e)
{
    struct http_exchange *x = e->data.ptr;
    struct epoll_event ev = { .events = EPOLLONESHOT, .data.ptr = x }; /* errors and hang-ups are always reported */
    bool dead = e->events & (EPOLLERR | EPOLLHUP);
    pthread_mutex_lock(&x->lock);
    bool ready = x->gen_ready || x->transfer, skip = x->gone;
    if (dead) x->hung_up = true;
    else x->fin = true;
    if (!dead && !skip && x->watched) epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, x->fd, &ev);
    pthread_mutex_unlock(&x->lock);
    if (skip || !ready) return;
    if (!dead) generate_probe(x);
    step(x);
}

static void on_ready(struct http_exchange *x)
{
    step(x);
    pthread_mutex_lock(&x->lock);
    bool drop = x->unwatched;
    x->unwatched = false;
    pthread_mutex_unlock(&x->lock);
    if (drop) exchange_unref(x);
    exchange_unref(x);
}

static void take_ready(struct server *s)
{
    struct http_exchange *list[64];
    for (int n = 1; n > 0;) {
        pthread_mutex_lock(&s->ready_lock);
        s->pump_asleep = false;
        for (n = 0; n < 64 && s->ready_first; n++) {
            list[n] = s->ready_first;
            list[n]->ready = false; /* from here on it may be queued again */
            s->ready_first = list[n]->ready_next;
        }
        if (!s->ready_first) s->ready_last = NULL;
        pthread_mutex_unlock(&s->ready_lock);
        for (int i = 0; i < n; i++) on_ready(list[i]);
        if (n < 64) break;
    }
}

/* May the pump sleep? From here on whoever makes something ready wakes it. */
static bool fall_asleep(struct server *s)
{
    pthread_mutex_lock(&s->ready_lock);
    bool nothing = s->pump_asleep = s->ready_first == NULL;
    pthread_mutex_unlock(&s->ready_lock);
    return nothing;
}

static void tick(struct server *s)
{
    int64_t now = clock_now_ns();
    bool alive = s->client.alive(s->client.ctx);
    for (struct http_exchange *x = s->pump_list, *next; x; x = next) {
        next = x->pump_next;
        if (alive) generate_keepalive(x, now);
        else if (!s->opt.host_fd) generate_dead(x); /* else this process ends, and its host answers */
        let_go(x);
    }
}

static void *pump_main(void *ctx)
{
    struct server *s = ctx;
    struct epoll_event ev[64];
    int64_t t_tick = 0, t_conns = 0;
    threads_set_name("pump");
    threads_lower_priority();
    for (;;) {
        int n = epoll_wait(s->epoll_fd, ev, 64, fall_asleep(s) ? TICK_MS : 0);
        pthread_mutex_lock(&s->pump_role);
        for (int i = 0; i < n; i++) {
            if (ev[i].data.ptr != NULL) on_socket(s, &ev[i]); /* else wake_fd: edge-triggered, its count is never read */
        }
        take_ready(s);
        int64_t now = clock_now_ns();
        if (now - t_tick >= (int64_t)TICK_MS * 1000000) tick(s), t_tick = now;
        if (now - t_conns >= CONNS_EVERY_NS) conns_tick(s), t_conns = now;
        pthread_mutex_lock(&s->lock);
        bool quit = s->pump_quit;
        pthread_mutex_unlock(&s->lock);
        bool over = quit && !s->pump_list;
        if (over) take_ready(s);
        pthread_mutex_unlock(&s->pump_role);
        if (over) return NULL;
    }
}

mb_status pump_start(struct server *s, mb_error *err)
{
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.ptr = NULL };
    buf_init(&s->pump_bytes, 0);
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->wake_fd < 0 || s->epoll_fd < 0) return mb_fail_errno(err, "cannot make an epoll for", "the server");
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->wake_fd, &ev) != 0) return mb_fail_errno(err, "cannot watch", "eventfd");
    if (pthread_create(&s->pump_thread, NULL, pump_main, s) != 0)
        return mb_fail(err, MB_NO_MEMORY, "cannot start the pump thread");
    s->pump_started = true;
    return MB_OK;
}

void pump_stop(struct server *s)
{
    if (s->pump_started) {
        pthread_mutex_lock(&s->lock);
        s->pump_quit = true;
        pthread_mutex_unlock(&s->lock);
        poke(s);
        pthread_join(s->pump_thread, NULL);
        s->pump_started = false;
    }
    buf_free(&s->pump_bytes);
    if (s->wake_fd >= 0) close(s->wake_fd);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    s->wake_fd = s->epoll_fd = -1;
}
