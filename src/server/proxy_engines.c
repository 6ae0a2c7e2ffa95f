/* proxy_engines.c: the engines of the host: who is started when, what happens when one dies, who makes room for whom.
 *
 * Engines are started one after the other, in the order in which they were asked for. With a pool of n, the next one may load beside n
 * others, which serve meanwhile; once it is ready, the one that was used longest ago gets no more requests (an idle one first), ends
 * when it has answered what it has, and only then the next may be started: n + 1 processes at most. One that was started for a request
 * stays until that request has its answer, whoever else is asked for.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "server/proxy_int.h"

#define HUNG_NS 5000000000LL   /* from the end of its socket to the end of its process */
#define RETRY_NS 5000000000LL  /* before a model that could not be loaded is tried again */

static const char CANNOT_START[] = "the engine of this model could not be started; the server's log says why";

static void set_state(struct proxy *p, struct engine *e, enum engine_state state)
{
    pthread_mutex_lock(&p->lock);
    e->state = state;
    pthread_mutex_unlock(&p->lock);
}

static const char *name_of(const struct engine *e)
{
    return e->id ? e->id : e->path;
}

/* --- the table --- */
static bool is_forgettable(const struct proxy *p, const struct engine *e)
{
    for (const struct transfer *t = p->first; t; t = t->next)
        if (t->engine == e) return false;
    return e->i > 0 && e->state == ENGINE_ABSENT && e->n_waiting == 0 && e->n_running == 0 && e->n_pinned == 0;
}

static void engine_free(struct engine *e)
{
    if (!e) return;
    if (e->wire_is_open) wire_host_close(&e->wire);
    mb_free(e->id);
    mb_free(e->path);
    mb_free(e);
}

static struct engine *engine_new(int i, const char *id, const char *path)
{
    struct engine *e = mb_calloc(1, sizeof *e);
    if (!e) return NULL;
    *e = (struct engine){ .kind = LOOP_ENGINE, .i = i, .path = mb_strdup(path), .id = id ? mb_strdup(id) : NULL, .process = { .host_fd = -1 } };
    if (e->path && (e->id || !id)) return e;
    engine_free(e);
    return NULL;
}

/* A newer revision may be on disk by now: the next process of e opens that. */
static struct engine *with_path(struct proxy *p, struct engine *e, const char *path)
{
    char *now = e->i > 0 && !e->process.pid && strcmp(e->path, path) != 0 ? mb_strdup(path) : NULL;
    if (!now) return e;
    pthread_mutex_lock(&p->lock);
    mb_free(e->path);
    e->path = now;
    pthread_mutex_unlock(&p->lock);
    return e;
}

struct engine *engine_find(struct proxy *p, const char *id, const char *path)
{
    int i;
    if (!id) return p->engines[0];
    for (i = 0; i < p->n_engines; i++)
        if (p->engines[i]->id && strcmp(p->engines[i]->id, id) == 0) return with_path(p, p->engines[i], path);
    if (i == PROXY_ENGINES_MAX) {
        for (i = 1; i < PROXY_ENGINES_MAX; i++)
            if (is_forgettable(p, p->engines[i])) break;
    }
    if (i == PROXY_ENGINES_MAX) return NULL;
    struct engine *e = engine_new(i, id, path);
    if (!e) return NULL;
    pthread_mutex_lock(&p->lock);
    engine_free(i < p->n_engines ? p->engines[i] : NULL);
    p->engines[i] = e;
    if (i == p->n_engines) p->n_engines++;
    pthread_mutex_unlock(&p->lock);
    return e;
}

void engines_free(struct proxy *p)
{
    for (int i = 0; i < p->n_engines; i++) engine_free(p->engines[i]);
}

/* --- starting --- */
static int32_t count(const struct proxy *p, enum engine_state state)
{
    int32_t n = 0;
    for (int i = 0; i < p->n_engines; i++) n += p->engines[i]->state == state;
    return n;
}

static int32_t n_processes(const struct proxy *p)
{
    int32_t n = 0;
    for (int i = 0; i < p->n_engines; i++) n += p->engines[i]->process.pid != 0;
    return n;
}

static void enqueue(struct proxy *p, struct engine *e, int64_t t_start_at_ns)
{
    e->t_start_at_ns = t_start_at_ns;
    e->turn = ++p->n_turns;
    set_state(p, e, ENGINE_QUEUED);
    p->hurry = true;
}

bool engine_want(struct proxy *p, struct engine *e, int *http_status, const char **code, const char **why)
{
    if (e->state == ENGINE_FAILED) {
        *http_status = 502, *code = "engine_unavailable", *why = PROXY_GIVEN_UP;
        return false;
    }
    if (e->state != ENGINE_ABSENT) return true;
    if (e->t_start_at_ns > clock_now_ns()) {
        *http_status = 502, *code = "engine_unavailable", *why = CANNOT_START;
        return false;
    }
    if (count(p, ENGINE_QUEUED) >= PROXY_COLD_MAX) {
        *http_status = 429, *code = "queue_full", *why = "too many other models wait to be loaded; try again later";
        return false;
    }
    enqueue(p, e, 0);
    return true;
}

static void refuse_all(struct proxy *p, struct engine *e, const char *why)
{
    for (struct transfer *t = p->first, *next; t; t = next) {
        next = t->next;
        if (t->state == TRANSFER_WAITING && t->engine == e) transfer_refuse(p, t, why);
    }
}

/* serve ARGS --model=PATH --unix=SOCKET --host-fd=3 (CFG-068) */
static mb_status start_process(struct proxy *p, struct engine *e, mb_error *err)
{
    struct engine_process process;
    struct arena a;
    arena_init(&a, 1 << 20);
    const char **argv = arena_alloc_array(&a, (size_t)p->n_args + 8, sizeof *argv);
    int n = 0;
    int len = snprintf(e->socket, sizeof e->socket, "%s/engine-%d.sock", p->dir, e->i);
    mb_status st = MB_OK;
    if (len < 0 || (size_t)len >= sizeof e->socket) st = mb_fail(err, MB_INVALID, "%s is too long a path for the folder of a socket", p->dir);
    if (st == MB_OK && argv) {
        argv[n++] = "mlx-bun";
        argv[n++] = "serve";
        for (int i = 0; i < p->n_args; i++) argv[n++] = p->args[i];
        argv[n++] = arena_printf(&a, "--model=%s", e->path);
        argv[n++] = arena_printf(&a, "--unix=%s", e->socket);
        argv[n++] = arena_printf(&a, "--host-fd=%d", ENGINE_HOST_FD);
    }
    if (st == MB_OK && a.failed) st = mb_fail(err, MB_NO_MEMORY, "no memory to start an engine");
    if (st == MB_OK) st = engine_process_start(&process, p->exe, argv, err);
    arena_free(&a);
    if (st != MB_OK) return st;
    pthread_mutex_lock(&p->lock);
    e->process = process;
    pthread_mutex_unlock(&p->lock);
    return MB_OK;
}

static void start(struct proxy *p, struct engine *e)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = e };
    mb_error err = { 0 };
    e->hung = e->is_cut = e->wire_waits = false;
    e->t_kill_ns = 0;
    e->t_started_ns = clock_now_ns();
    if (start_process(p, e, &err) != MB_OK) {
        LOGE("engine", "%s: %s", name_of(e), err.text);
        e->t_start_at_ns = e->t_started_ns + RETRY_NS;
        set_state(p, e, ENGINE_ABSENT);
        refuse_all(p, e, CANNOT_START);
        return;
    }
    wire_host_open(&e->wire, e->process.host_fd);
    e->wire_is_open = true;
    epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, e->process.host_fd, &ev);
    set_state(p, e, ENGINE_STARTING);
    LOGI("engine", "%s: loading, pid %d", name_of(e), (int)e->process.pid);
}

static void start_next(struct proxy *p)
{
    struct engine *first = NULL;
    int32_t cap = p->pool > 0 ? p->pool : 1;
    int64_t now = clock_now_ns();
    if (count(p, ENGINE_STARTING) > 0 || n_processes(p) > cap) return;
    for (int i = 0; i < p->n_engines; i++) {
        struct engine *e = p->engines[i];
        if (e->state == ENGINE_QUEUED && e->t_start_at_ns <= now && (!first || e->turn < first->turn)) first = e;
    }
    if (first) start(p, first);
}

/* --- ready --- */
static void learn(struct proxy *p, struct str id, struct str models)
{
    json_t *v = NULL;
    mb_error err;
    if (json_read(&v, models.ptr, models.len, JSON_READ_DEFAULT, &err) != MB_OK) return;
    const json_t *m = json_array_get(json_object_get(v, "data"), 0);
    char *copy = arena_strndup(&p->arena, id.ptr, id.len);
    pthread_mutex_lock(&p->lock);
    if (copy && !p->known) {
        p->info = (struct gen_model_info){
            .id = copy, .path = p->default_path, .n_context = (int32_t)json_integer_value(json_object_get(m, "context_window")),
            .reasoning = json_is_true(json_object_get(m, "reasoning")), .vision = json_is_true(json_object_get(m, "vision")),
            .created_unix_s = json_integer_value(json_object_get(m, "created")) };
        p->known = true;
    }
    pthread_mutex_unlock(&p->lock);
    json_decref(v);
}

struct ready { struct proxy *p; struct engine *e; };

/* ENG-208 */
static void on_ready(void *ctx, struct str id, struct str models)
{
    struct proxy *p = ((struct ready *)ctx)->p;
    struct engine *e = ((struct ready *)ctx)->e;
    bool first = !e->has_served;
    if (e->state != ENGINE_STARTING) return;
    if (e->i == 0) learn(p, id, models);
    if (!e->id) {
        char *copy = mb_strndup(id.ptr, id.len);
        pthread_mutex_lock(&p->lock);
        e->id = copy;
        pthread_mutex_unlock(&p->lock);
    }
    e->has_served = true;
    e->t_used_ns = clock_now_ns();
    set_state(p, e, ENGINE_READY);
    for (struct transfer *t = p->first; t; t = t->next)
        if (t->state == TRANSFER_WAITING && t->engine == e && !t->is_pinned) t->is_pinned = true, e->n_pinned++;
    if (p->on_ready) p->on_ready(p->on_ready_ctx, p->s, name_of(e), (int)e->process.pid, e->i == 0 && first);
    p->hurry = true;
}

/* What it says on its socket to us. */
void engine_io(struct proxy *p, struct engine *e)
{
    struct ready r = { p, e };
    if (!e->wire_is_open) return;
    if (!wire_host_step(&e->wire, p->s->store, on_ready, &r)) {
        epoll_ctl(p->epoll_fd, EPOLL_CTL_DEL, e->process.host_fd, NULL);
        wire_host_close(&e->wire);
        e->wire_is_open = false;
        e->hung = true;
        if (!e->t_kill_ns) e->t_kill_ns = clock_now_ns() + HUNG_NS;
        p->hurry = true;
        return;
    }
    bool waits = wire_host_is_full(&e->wire);
    if (waits == e->wire_waits) return;
    struct epoll_event ev = { .events = EPOLLIN | (waits ? EPOLLOUT : 0u), .data.ptr = e };
    e->wire_waits = waits;
    epoll_ctl(p->epoll_fd, EPOLL_CTL_MOD, e->process.host_fd, &ev);
}

/* --- the end of a process --- */
static void describe_end(int status, char out[64])
{
    if (WIFSIGNALED(status)) snprintf(out, 64, "by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else snprintf(out, 64, "with status %d", WEXITSTATUS(status));
}

static void restart(struct proxy *p, struct engine *e, int64_t now)
{
    pthread_mutex_lock(&p->lock);
    int64_t at = restarts_next(&e->restarts, e->t_started_ns, now);
    pthread_mutex_unlock(&p->lock);
    if (at >= 0) {
        LOGW("engine", "%s: started again in %.1f s (restart %d)", name_of(e), (double)(at - now) / 1e9, (int)e->restarts.n);
        enqueue(p, e, at);
        return;
    }
    LOGE("engine", "%s: %d restarts within a minute: not started again; requests for it are answered 502 until this server is restarted",
         name_of(e), RESTARTS_MAX);
    set_state(p, e, ENGINE_FAILED);
    refuse_all(p, e, PROXY_GIVEN_UP);
}

/* It said by its exit status that it cannot serve this model. */
static void cannot_start(struct proxy *p, struct engine *e, int status, int64_t now)
{
    e->t_start_at_ns = now + RETRY_NS;
    set_state(p, e, ENGINE_ABSENT);
    if (e->i == 0) { /* as without --isolate: the program ends with that status */
        pthread_mutex_lock(&p->lock);
        p->start_status = WEXITSTATUS(status);
        pthread_mutex_unlock(&p->lock);
        server_request_stop(p->s);
    }
    refuse_all(p, e, CANNOT_START);
}

static void on_end(struct proxy *p, struct engine *e, int status)
{
    char how[64];
    int64_t now = clock_now_ns();
    enum engine_state was = e->state;
    bool wanted = was == ENGINE_STOPPING || was == ENGINE_DRAINING;
    e->life++;
    e->hung = false;
    e->t_kill_ns = 0;
    if (e->wire_is_open) wire_host_close(&e->wire);
    e->wire_is_open = false;
    unlink(e->socket);
    describe_end(status, how);
    p->hurry = true;
    if (wanted || p->ending) {
        LOGI("engine", "%s: ended %s", name_of(e), how);
        pthread_mutex_lock(&p->lock);
        e->restarts = (struct restarts){ .n = 0 }; /* API-362 */
        e->state = ENGINE_ABSENT;
        pthread_mutex_unlock(&p->lock);
        e->t_start_at_ns = 0;
        if (e->n_waiting > 0 && !p->ending) enqueue(p, e, 0);
        return;
    }
    LOGE("engine", "%s: died %s", name_of(e), how);
    if (was == ENGINE_STARTING && !e->has_served && WIFEXITED(status) && WEXITSTATUS(status) != 0) cannot_start(p, e, status, now);
    else restart(p, e, now);
}

static void reap(struct proxy *p, struct engine *e)
{
    int status;
    struct engine_process process = e->process;
    if (!engine_process_reap(&process, &status)) return;
    pthread_mutex_lock(&p->lock);
    e->process = process;
    pthread_mutex_unlock(&p->lock);
    on_end(p, e, status);
}

/* --- ending --- */
static void stop(struct proxy *p, struct engine *e, int64_t within_ms)
{
    if (e->process.pid) kill(e->process.pid, SIGTERM);
    e->t_kill_ns = clock_now_ns() + within_ms * 1000000;
    set_state(p, e, ENGINE_STOPPING);
}

/* The first signal lets running requests finish, the second ends them. Two kinds, because equal ones may become one. */
void engine_cut(struct engine *e)
{
    if (e->is_cut || !e->process.pid) return;
    e->is_cut = true;
    kill(e->process.pid, SIGTERM);
    kill(e->process.pid, SIGINT);
}

static void evict(struct proxy *p)
{
    struct engine *oldest = NULL;
    int32_t n = 0;
    for (int i = 0; i < p->n_engines; i++) {
        struct engine *e = p->engines[i];
        if (e->state != ENGINE_READY) continue;
        n++;
        if (e->n_pinned > 0) continue;
        bool better = !oldest || (e->n_running == 0) > (oldest->n_running == 0) ||
                      ((e->n_running == 0) == (oldest->n_running == 0) && e->t_used_ns < oldest->t_used_ns);
        if (better) oldest = e;
    }
    if (n <= p->pool || !oldest) return;
    LOGI("engine", "%s: makes room", name_of(oldest));
    set_state(p, oldest, ENGINE_DRAINING);
    p->hurry = true;
}

void engines_balance(struct proxy *p)
{
    for (int i = 0; i < p->n_engines; i++)
        if (p->engines[i]->state == ENGINE_DRAINING && p->engines[i]->n_running == 0) stop(p, p->engines[i], p->s->opt.shutdown_timeout_ms);
    for (struct transfer *t = p->first, *next; t && p->n_waiting > 0; t = next) {
        next = t->next;
        if (t->state == TRANSFER_WAITING && t->engine->state == ENGINE_READY) transfer_send(p, t);
    }
    if (p->ending) return;
    if (p->pool > 0) evict(p);
    start_next(p);
}

void engines_tick(struct proxy *p, int64_t now_ns)
{
    for (int i = 0; i < p->n_engines; i++) {
        struct engine *e = p->engines[i];
        if (!e->process.pid) continue;
        if (e->state == ENGINE_STARTING && now_ns - e->t_started_ns > PROXY_READY_NS && !e->t_kill_ns) {
            LOGE("engine", "%s: not ready within 15 minutes", name_of(e));
            e->t_kill_ns = now_ns;
        }
        if (e->t_kill_ns && now_ns >= e->t_kill_ns) {
            kill(e->process.pid, SIGKILL);
            e->t_kill_ns = now_ns + HUNG_NS;
        }
        reap(p, e);
        if (e->hung) p->hurry = true;
    }
}

int engines_wait_ms(const struct proxy *p, int64_t now_ns)
{
    int64_t wait = 250;
    for (int i = 0; i < p->n_engines; i++) {
        const struct engine *e = p->engines[i];
        int64_t t = e->state == ENGINE_QUEUED ? e->t_start_at_ns : e->t_kill_ns;
        if (t > now_ns && (t - now_ns) / 1000000 + 1 < wait) wait = (t - now_ns) / 1000000 + 1;
    }
    return (int)wait;
}

bool engines_end(struct proxy *p, bool by_force)
{
    bool all = true;
    for (int i = 0; i < p->n_engines; i++) {
        struct engine *e = p->engines[i];
        if (!e->process.pid) continue;
        all = false;
        if (by_force) kill(e->process.pid, SIGKILL);
        else if (e->state != ENGINE_STOPPING) stop(p, e, p->s->opt.shutdown_timeout_ms);
    }
    return all;
}
