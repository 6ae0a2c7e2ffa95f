/* proxy.c: the proxy's thread and what the rest of the server may ask of it: see proxy.h. */
#include "server/proxy.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"
#include "hub/library.h"
#include "server/proxy_int.h"

#define HURRY_MS 5
#define END_NS 10000000000LL     /* for the engines to end by themselves */

/* --- waking the thread --- */
static void wake(struct proxy *p)
{
    uint64_t one = 1;
    if (write(p->wake_fd, &one, sizeof one) < 0) { /* full: it is awake already */ }
}

void proxy_poke(struct http_exchange *x)
{
    struct proxy *p = x->s->proxy;
    struct transfer *t = x->transfer;
    pthread_mutex_lock(&p->lock);
    bool add = !t->poked;
    if (add) {
        exchange_ref(x);
        t->poked = true;
        t->poke_next = NULL;
        if (p->poke_last) p->poke_last->poke_next = t;
        else p->poke_first = t;
        p->poke_last = t;
    }
    pthread_mutex_unlock(&p->lock);
    if (add) wake(p);
}

static void take_pokes(struct proxy *p)
{
    for (;;) {
        pthread_mutex_lock(&p->lock);
        struct transfer *t = p->poke_first;
        if (t) {
            p->poke_first = t->poke_next;
            if (!p->poke_first) p->poke_last = NULL;
            t->poked = false;
        }
        pthread_mutex_unlock(&p->lock);
        if (!t) return;
        transfer_poke(p, t);
        exchange_unref(t->x);
    }
}

/* --- handing over --- */
bool proxy_takes(struct http_exchange *x)
{
    struct proxy *p = x->s->proxy;
    if (!p || !x->route) return false;
    if (x->route->home == HOME_ENGINE) return true;
    if (!x->route->wants_model) return false;
    pthread_mutex_lock(&p->lock);
    bool known = p->known;
    pthread_mutex_unlock(&p->lock);
    return !known;
}

void proxy_forget(struct http_exchange *x)
{
    struct transfer *t = x->transfer;
    if (!t) return;
    mb_free(t->id);
    mb_free(t->path);
    buf_free(&t->ask);
    buf_free(&t->body);
    buf_free(&t->in);
    upstream_free(&t->up);
    mb_free(t);
    x->transfer = NULL;
}

/* API-368: an exact id of /v1/models goes to its own engine, all else to the default one. false: no memory. */
static bool choose_model(struct proxy *p, struct http_exchange *x, struct transfer *t)
{
    char id[PROXY_ID_MAX], path[4096];
    mb_error err;
    if (p->pool <= 0 || !x->route->by_model || !x->s->opt.library) return true;
    if (!api_peek_string(x->body.data ? x->body.data : "", x->body.len, "model", id, sizeof id) || !id[0]) return true;
    pthread_mutex_lock(&p->lock);
    bool is_default = p->known && strcmp(p->info.id, id) == 0;
    pthread_mutex_unlock(&p->lock);
    if (is_default || library_path(x->s->opt.library, id, path, sizeof path, &err) != MB_OK || strcmp(path, p->default_path) == 0) return true;
    t->id = mb_strdup(id);
    t->path = mb_strdup(path);
    return t->id && t->path;
}

static void put_target(struct buf *b, const struct http_exchange *x)
{
    size_t n = strlen(x->route->path);
    if (!x->rest) {
        buf_append_str(b, x->route->path);
        return;
    }
    buf_append(b, x->route->path, n - 1);
    for (const unsigned char *c = (const unsigned char *)x->rest; *c; c++) {
        bool plain = (*c >= '0' && *c <= '9') || (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || strchr("-._~/", *c);
        buf_printf(b, plain ? "%c" : "%%%02X", *c);
    }
}

/* The head is made anew: what an engine reads of a request, and no more. Names of the connection, keys and origins end here. */
static void write_ask(struct http_exchange *x, struct transfer *t)
{
    struct buf *b = &t->ask;
    buf_printf(b, "%s ", x->route->method);
    put_target(b, x);
    buf_printf(b, " HTTP/1.1\r\nHost: localhost\r\nx-request-id: %s\r\n", x->request_id);
    if (x->trace_id[0]) buf_printf(b, "x-mlx-bun-trace-id: %s\r\n", x->trace_id);
    if (strcmp(x->route->method, "GET") != 0) buf_printf(b, "Content-Type: application/json\r\nContent-Length: %zu\r\n", t->body.len);
    buf_append_str(b, "\r\n");
}

void proxy_push(struct http_exchange *x)
{
    struct proxy *p = x->s->proxy;
    struct transfer *t = x->transfer ? NULL : mb_calloc(1, sizeof *t);
    if (!t) { /* or it comes back (transfer.local), and what it waited for could not be kept */
        http_reply_status(x, 503, "no_memory", NULL, "no memory for the request");
        return;
    }
    *t = (struct transfer){ .kind = LOOP_TRANSFER, .x = x, .fd = -1, .local = x->route->home == HOME_HOST };
    buf_init(&t->ask, 0);
    buf_init(&t->in, 0);
    upstream_init(&t->up);
    bool ok = choose_model(p, x, t);
    x->encoding[0] = '\0';
    t->body = x->body;
    buf_init(&x->body, 0);
    t->again = strcmp(x->route->method, "GET") == 0;
    if (t->again) buf_clear(&t->body);
    write_ask(x, t);
    if (!ok || t->ask.failed) t->state = TRANSFER_DONE; /* it never begins, whoever pokes it */
    pthread_mutex_lock(&x->lock);
    x->transfer = t;
    pthread_mutex_unlock(&x->lock);
    if (t->state == TRANSFER_DONE) http_reply_status(x, 503, "no_memory", NULL, "no memory for the request");
    else proxy_poke(x);
}

/* --- the loop --- */
static void on_event(struct proxy *p, const struct epoll_event *ev)
{
    enum loop_kind *kind = ev->data.ptr;
    uint64_t n;
    if (*kind == LOOP_TRANSFER) transfer_io(p, (struct transfer *)(void *)kind, ev->events);
    else if (*kind == LOOP_ENGINE) engine_io(p, (struct engine *)(void *)kind);
    else if (read(p->wake_fd, &n, sizeof n) < 0) { /* somebody was faster */ }
}

static void drop_done(struct proxy *p)
{
    for (struct transfer *t = p->done, *next; t; t = next) {
        next = t->done_next;
        exchange_unref(t->x);
    }
    p->done = NULL;
}

static bool asked_to_quit(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    bool quit = p->quit;
    pthread_mutex_unlock(&p->lock);
    return quit;
}

static void refuse_waiting(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    p->ending = p->stopping || p->quit;
    pthread_mutex_unlock(&p->lock);
    for (struct transfer *t = p->first, *next; t && p->ending && p->n_waiting > 0; t = next) {
        next = t->next;
        if (t->state == TRANSFER_WAITING && t->engine->state != ENGINE_READY) transfer_stop(p, t);
    }
}

static void turn(struct proxy *p, int64_t *t_tick)
{
    int64_t now = clock_now_ns();
    take_pokes(p);
    if (p->hurry || now - *t_tick > 100000000) {
        *t_tick = now;
        p->hurry = false;
        refuse_waiting(p);
        engines_tick(p, now);
        for (struct transfer *t = p->first, *next; t; t = next) {
            next = t->next;
            transfer_tick(p, t, now);
        }
        engines_balance(p);
    }
    drop_done(p);
}

static void *proxy_main(void *ctx)
{
    struct proxy *p = ctx;
    struct epoll_event ev[64];
    int64_t t_tick = 0, t_quit = 0;
    threads_set_name("proxy"); /* its priority stays: engines inherit it */
    for (;;) {
        int64_t now = clock_now_ns();
        int n = epoll_wait(p->epoll_fd, ev, 64, p->hurry ? HURRY_MS : engines_wait_ms(p, now));
        for (int i = 0; i < n; i++) on_event(p, &ev[i]);
        turn(p, &t_tick);
        if (!asked_to_quit(p)) continue;
        if (!t_quit) t_quit = clock_now_ns();
        if (engines_end(p, clock_now_ns() - t_quit > END_NS)) break;
        p->hurry = true;
    }
    return NULL;
}

/* --- opening and closing --- */
static mb_status copy_options(struct proxy *p, const struct server_engines *o, mb_error *err)
{
    struct arena *a = &p->arena;
    const char **args = arena_alloc_array(a, (size_t)o->n_args + 1, sizeof *args);
    for (int32_t i = 0; args && i < o->n_args; i++) args[i] = arena_strdup(a, o->args[i]);
    p->args = args;
    p->n_args = o->n_args;
    p->exe = arena_strdup(a, o->exe);
    p->dir = arena_strdup(a, o->dir);
    p->default_path = arena_strdup(a, o->path);
    p->pool = o->pool;
    p->on_ready = o->ready;
    p->on_ready_ctx = o->ready_ctx;
    return a->failed ? mb_fail(err, MB_NO_MEMORY, "no memory for the engines") : MB_OK;
}

static mb_status start_thread(struct proxy *p, mb_error *err)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &p->wake_kind };
    p->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->wake_fd < 0 || p->epoll_fd < 0) return mb_fail_errno(err, "cannot make an epoll for", "the engines");
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->wake_fd, &ev) != 0) return mb_fail_errno(err, "cannot watch", "eventfd");
    struct engine *e = engine_find(p, "", p->default_path);
    if (!e) return mb_fail(err, MB_NO_MEMORY, "no memory for the engines");
    mb_free(e->id); /* it says it itself */
    e->id = NULL;
    e->state = ENGINE_QUEUED;
    p->hurry = true;
    if (pthread_create(&p->thread, NULL, proxy_main, p) != 0) return mb_fail(err, MB_NO_MEMORY, "cannot start the proxy's thread");
    p->started = true;
    return MB_OK;
}

mb_status proxy_open(struct server *s, const struct server_engines *o, mb_error *err)
{
    struct proxy *p = mb_calloc(1, sizeof *p);
    if (!p) return mb_fail(err, MB_NO_MEMORY, "no memory for the engines");
    s->proxy = p;
    p->s = s;
    p->wake_fd = p->epoll_fd = -1;
    pthread_mutex_init(&p->lock, NULL);
    arena_init(&p->arena, 4 << 20);
    MB_TRY(copy_options(p, o, err));
    return start_thread(p, err);
}

void proxy_stop(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_mutex_unlock(&p->lock);
    wake(p);
}

void proxy_close(struct proxy *p)
{
    if (!p) return;
    if (p->started) {
        pthread_mutex_lock(&p->lock);
        p->quit = true;
        pthread_mutex_unlock(&p->lock);
        wake(p);
        pthread_join(p->thread, NULL);
    }
    engines_free(p);
    if (p->wake_fd >= 0) close(p->wake_fd);
    if (p->epoll_fd >= 0) close(p->epoll_fd);
    pthread_mutex_destroy(&p->lock);
    arena_free(&p->arena);
    mb_free(p);
}

/* --- what others ask --- */
int proxy_start_status(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    int status = p->start_status;
    pthread_mutex_unlock(&p->lock);
    return status;
}

static enum engine_state default_state(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    enum engine_state state = p->engines[0]->state;
    pthread_mutex_unlock(&p->lock);
    return state;
}

bool proxy_has_failed(struct proxy *p)
{
    return default_state(p) == ENGINE_FAILED;
}

const char *proxy_ill(struct proxy *p, const char **code)
{
    pthread_mutex_lock(&p->lock);
    enum engine_state state = p->engines[0]->state;
    bool known = p->known;
    pthread_mutex_unlock(&p->lock);
    *code = state == ENGINE_FAILED ? "engine_dead" : known ? "engine_unavailable" : "engine_loading";
    if (state == ENGINE_FAILED) return PROXY_GIVEN_UP;
    if (state == ENGINE_READY) return NULL;
    if (!known) return "the engine is loading its model";
    /* evicted: the next request for it starts it */
    if (state == ENGINE_ABSENT || state == ENGINE_DRAINING || state == ENGINE_STOPPING) return NULL;
    return "the engine has died and is started again";
}

static bool client_alive(void *ctx)
{
    return default_state(ctx) != ENGINE_FAILED;
}

static const struct gen_model_info *client_info(void *ctx)
{
    struct proxy *p = ctx;
    pthread_mutex_lock(&p->lock);
    pthread_mutex_unlock(&p->lock); /* what it was filled under: handlers run once it is known (proxy_takes) */
    return &p->info;
}

struct engine_client proxy_client(struct proxy *p)
{
    return (struct engine_client){ .ctx = p, .alive = client_alive, .info = client_info };
}

static void put_text(struct buf *b, const char *s)
{
    if (s) json_write_string(b, s, strlen(s));
    else buf_append_str(b, "null");
}

/* API-360..362 */
void proxy_describe(struct proxy *p, struct buf *engine, struct buf *pool)
{
    bool first = true;
    pthread_mutex_lock(&p->lock);
    const struct engine *e = p->engines[0];
    bool resident = e->process.pid != 0;
    buf_append_str(engine, "\"pid\": ");
    if (resident) buf_printf(engine, "%d", (int)e->process.pid);
    else buf_append_str(engine, "null");
    buf_append_str(engine, ", \"restarts\": ");
    if (resident) buf_printf(engine, "%d", (int)e->restarts.n);
    else buf_append_str(engine, "null");
    buf_append_str(engine, ", \"socket\": ");
    put_text(engine, resident ? e->socket : NULL);
    for (int i = 0; p->pool > 0 && i < p->n_engines; i++) {
        if (p->engines[i]->state != ENGINE_READY && p->engines[i]->state != ENGINE_DRAINING) continue;
        buf_append_str(pool, first ? "{\"resident\": [" : ", ");
        put_text(pool, p->engines[i]->id);
        first = false;
    }
    if (p->pool > 0) {
        buf_append_str(pool, first ? "{\"resident\": [], \"default\": " : "], \"default\": ");
        put_text(pool, p->known ? p->info.id : NULL);
        buf_append_str(pool, "}");
    }
    pthread_mutex_unlock(&p->lock);
}
