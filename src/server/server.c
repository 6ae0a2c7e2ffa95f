/* server.c: open, run, stop. The order of stopping is the one libmicrohttpd needs: no new connections, let requests end
 * (or cut them off), wait until no exchange is left, so that nothing is suspended any more, then stop the daemon, then
 * our own threads. */
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "host/engine_process.h"
#include "host/response_wire.h"
#include "server/server_int.h"

#define CUT_WAIT_MS 5000
#define WATCH_MS 50

static mb_status copy_list(struct arena *a, const char *const **list, int32_t n, mb_error *err)
{
    const char **copy = arena_alloc_array(a, (size_t)n + 1, sizeof *copy);
    for (int32_t i = 0; copy && i < n; i++) copy[i] = arena_strdup(a, (*list)[i]);
    *list = copy;
    return a->failed ? mb_fail(err, MB_NO_MEMORY, "no memory for the server") : MB_OK;
}

static mb_status set_options(struct server *s, const struct server_options *o, mb_error *err)
{
    struct arena *a = &s->arena;
    s->opt = *o;
    s->opt.host = arena_strdup(a, o->host ? o->host : "127.0.0.1");
    s->opt.owner = arena_strdup(a, o->owner ? o->owner : "serve");
    s->opt.unix_path = o->unix_path ? arena_strdup(a, o->unix_path) : NULL;
    s->opt.api_key = o->api_key && o->api_key[0] ? arena_strdup(a, o->api_key) : NULL;
    if (!s->opt.body_limit_bytes) s->opt.body_limit_bytes = (size_t)256 << 20;
    if (!s->opt.body_memory_bytes) s->opt.body_memory_bytes = (size_t)512 << 20;
    if (s->opt.n_workers <= 0) s->opt.n_workers = 2;
    if (s->opt.n_workers > 8) s->opt.n_workers = 8;
    if (s->opt.worker_queue <= 0) s->opt.worker_queue = 64;
    if (s->opt.max_connections <= 0) s->opt.max_connections = 4096;
    if (s->opt.shutdown_timeout_ms <= 0) s->opt.shutdown_timeout_ms = 120000;
    if (s->opt.keepalive_ms <= 0) s->opt.keepalive_ms = 3000;
    if (s->opt.idle_timeout_ms <= 0) s->opt.idle_timeout_ms = 60000;
    MB_TRY(copy_list(a, &s->opt.allow_hosts, o->n_allow_hosts, err));
    return copy_list(a, &s->opt.allow_origins, o->n_allow_origins, err);
}

static void warn_if_open(const struct server *s)
{
    if (s->bound_loopback || s->bound_unix || s->opt.api_key) return;
    LOGW("server", "LISTENING ON %s WITHOUT A KEY: anyone who can reach this port can use the model; "
                   "set --api-key or bind 127.0.0.1", s->opt.host);
}

/* --- an engine of another process's server --- */
static mb_status open_store(struct server *s, mb_error *err)
{
    if (s->opt.host_fd) return response_store_open_at(&s->store, s->opt.host_fd, err);
    return response_store_open(&s->store, NULL, err);
}

static mb_status tell_host(struct server *s, mb_error *err)
{
    struct buf b;
    buf_init(&b, 0);
    api_models_body(&b, &s->client, NULL);
    mb_status st = buf_status(&b, "list of models", err);
    if (st == MB_OK) st = wire_ready(s->opt.host_fd, s->client.info(s->client.ctx)->id, (struct str){ b.data, b.len }, err);
    buf_free(&b);
    return st;
}

mb_status server_open(struct server **out, const struct engine_client *client, const struct server_options *opt,
                      mb_error *err)
{
    struct server *s = mb_calloc(1, sizeof *s);
    mb_status st;
    *out = NULL;
    if (!s) return mb_fail(err, MB_NO_MEMORY, "no memory for the server");
    if (client) s->client = *client;
    s->listen_fd = s->wake_fd = s->epoll_fd = s->stop_fd = -1;
    s->started_unix_s = clock_unix_s();
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->ready_lock, NULL);
    pthread_mutex_init(&s->pump_role, NULL);
    pthread_mutex_init(&s->work_lock, NULL);
    pthread_cond_init(&s->work_cond, NULL);
    arena_init(&s->arena, 1 << 20);
    MB_TRY_GOTO(st, set_options(s, opt, err), failed);
    MB_TRY_GOTO(st, open_store(s, err), failed);
    s->api = (struct api_env){ .client = &s->client, .store = s->store, .keep_billing_header = opt->keep_billing_header };
    s->max_conns = limits_connections(s->opt.max_connections, opt->engines ? 2 : 1);
    s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (s->stop_fd < 0) MB_TRY_GOTO(st, mb_fail_errno(err, "cannot make an eventfd for", "the server"), failed);
    MB_TRY_GOTO(st, listen_open(s, err), failed);
    if (opt->engines) {
        MB_TRY_GOTO(st, proxy_open(s, opt->engines, err), failed);
        s->client = proxy_client(s->proxy);
    }
    MB_TRY_GOTO(st, pump_start(s, err), failed);
    MB_TRY_GOTO(st, work_start(s, err), failed);
    MB_TRY_GOTO(st, embed_open(s, err), failed);
    MB_TRY_GOTO(st, http_start(s, err), failed);
    warn_if_open(s);
    if (opt->host_fd) MB_TRY_GOTO(st, tell_host(s, err), failed);
    *out = s;
    return MB_OK;
failed:
    server_close(s);
    return st;
}

int server_port(const struct server *s)
{
    return s->port;
}

void server_request_stop(struct server *s)
{
    uint64_t one = 1;
    if (write(s->stop_fd, &one, sizeof one) < 0) { /* async-signal context: nothing to do about it */ }
}

/* Wait for a stop request, at most ms (< 0: for ever). */
static bool stop_requested(struct server *s, int ms)
{
    struct pollfd p = { .fd = s->stop_fd, .events = POLLIN };
    uint64_t n;
    int rc;
    do rc = poll(&p, 1, ms);
    while (rc < 0 && ms < 0);
    return rc > 0 && read(s->stop_fd, &n, sizeof n) > 0;
}

static int32_t n_active(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    int32_t n = s->n_active;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void begin_stop(struct server *s)
{
    http_quiesce(s);
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->phase == CONN_IDLE && !c->cut) c->cut = true, shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
    if (s->proxy) proxy_stop(s->proxy);
}

static void cut_off(struct server *s)
{
    struct http_exchange *list[256];
    int n;
    pthread_mutex_lock(&s->lock);
    s->cutting = true;
    for (struct conn *c = s->conns; c; c = c->next)
        if (c->phase != CONN_BUSY) shutdown(c->fd, SHUT_RDWR);
    n = 0;
    for (struct http_exchange *x = s->all; x && n < 256; x = x->all_next) {
        /* one whose last reference is just going must not be taken up again */
        int refs = atomic_load(&x->refs);
        while (refs > 0 && !atomic_compare_exchange_weak(&x->refs, &refs, refs + 1)) { }
        if (refs > 0) list[n++] = x;
    }
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < n; i++) {
        pthread_mutex_lock(&list[i]->lock);
        list[i]->cut = true;
        pthread_mutex_unlock(&list[i]->lock);
        pump_wake(list[i]);
        exchange_unref(list[i]);
    }
}

/* Clients that read nothing keep their connection busy: in the end they are cut as well. */
static void cut_all_connections(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    for (struct conn *c = s->conns; c; c = c->next) shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}

static void shut_down(struct server *s)
{
    if (!s->daemon) return;
    begin_stop(s);
    int64_t t0 = clock_now_ns(), limit_ns = s->opt.shutdown_timeout_ms * 1000000;
    bool force = false;
    while (n_active(s) > 0 && !force && clock_now_ns() - t0 < limit_ns) force = stop_requested(s, 20);
    t0 = clock_now_ns();
    for (int i = 0; n_active(s) > 0; i++) {
        cut_off(s);
        if (clock_now_ns() - t0 > (int64_t)CUT_WAIT_MS * 1000000 / 2) cut_all_connections(s);
        clock_sleep_ms(20);
    }
    http_stop(s);
}

void server_run(struct server *s)
{
    while (!stop_requested(s, s->opt.host_fd ? WATCH_MS : -1)) {
        if (!s->opt.host_fd) continue;
        if (!s->client.alive(s->client.ctx)) return; /* the program ends; its host answers those who wait, and starts another */
        if (engine_host_gone(s->opt.host_fd)) server_request_stop(s), server_request_stop(s);
    }
    LOGI("server", "stopping: active requests may finish; a second signal cuts them off");
    shut_down(s);
}

bool server_host_gone(int host_fd)
{
    return engine_host_gone(host_fd);
}

int server_engine_status(struct server *s, bool *failed)
{
    *failed = proxy_has_failed(s->proxy);
    return proxy_start_status(s->proxy);
}

void server_close(struct server *s)
{
    if (!s) return;
    if (s->daemon) {
        server_request_stop(s);
        shut_down(s);
    }
    work_stop(s);
    embed_close(s);
    pump_stop(s);
    proxy_close(s->proxy);
    listen_close(s);
    if (s->stop_fd >= 0) close(s->stop_fd);
    response_store_close(s->store);
    arena_free(&s->arena);
    pthread_cond_destroy(&s->work_cond);
    pthread_mutex_destroy(&s->work_lock);
    pthread_mutex_destroy(&s->pump_role);
    pthread_mutex_destroy(&s->ready_lock);
    pthread_mutex_destroy(&s->lock);
    mb_free(s);
}
