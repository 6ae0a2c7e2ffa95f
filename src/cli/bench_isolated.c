/* bench_isolated.c: see bench_isolated.h. The host runs in this process, on a thread; its engine is a child of it as of any other. */
#include "cli/bench_isolated.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/serve_isolated.h"

#define ASK_EVERY_MS 5
#define ASKS_MAX 4096
#define READY_MS 900000

struct isolated_bench {
    struct isolation iso;
    struct server *server;
    pthread_t thread;
    bool running;
    atomic_bool ready;
};

static void *server_main(void *ctx)
{
    server_run(((struct isolated_bench *)ctx)->server);
    return NULL;
}

static void on_ready(void *ctx, const struct server *s, const char *id, int pid, bool first)
{
    (void)s, (void)id, (void)pid, (void)first;
    atomic_store(&((struct isolated_bench *)ctx)->ready, true);
}

static mb_status wait_ready(struct isolated_bench *b, mb_error *err)
{
    bool failed;
    for (int64_t end = clock_now_ns() + (int64_t)READY_MS * 1000000; clock_now_ns() < end; clock_sleep_ms(5)) {
        if (atomic_load(&b->ready)) return MB_OK;
        if (server_engine_status(b->server, &failed) != 0 || failed) break;
    }
    return mb_fail(err, MB_ENGINE_DEAD, "the engine of --isolate could not be started; its reason is above");
}

mb_status isolated_bench_open(struct isolated_bench **out, const struct flags *f, const char *path, mb_error *err)
{
    struct isolated_bench *b = mb_calloc(1, sizeof *b);
    struct server_options opt = { .owner = "benchmark", .shutdown_timeout_ms = 1000 };
    enum log_level level = log_get_level();
    *out = NULL;
    if (!b) return mb_fail(err, MB_NO_MEMORY, "no memory for a server");
    if (level > LOG_ERROR) log_set_level(LOG_ERROR);
    mb_status st = isolation_open(&b->iso, f, path, &opt, err);
    if (!f->log_level.given) b->iso.args[b->iso.engines.n_args++] = "--log-level=error"; /* there is room: isolation_open keeps some */
    b->iso.engines.ready = on_ready;
    b->iso.engines.ready_ctx = b;
    if (st == MB_OK) st = server_open(&b->server, NULL, &opt, err);
    if (st == MB_OK && pthread_create(&b->thread, NULL, server_main, b) != 0) st = mb_fail(err, MB_NO_MEMORY, "cannot start a thread");
    else if (st == MB_OK) b->running = true;
    if (st == MB_OK) st = wait_ready(b, err);
    if (st == MB_OK) *out = b;
    else isolated_bench_close(b);
    log_set_level(level);
    return st;
}

void isolated_bench_close(struct isolated_bench *b)
{
    if (!b) return;
    if (b->running) {
        server_request_stop(b->server);
        pthread_join(b->thread, NULL);
    }
    server_close(b->server);
    isolation_close(&b->iso);
    mb_free(b);
}

/* --- a client --- */
static int connect_to(const struct isolated_bench *b)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)server_port(b->server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    return -1;
}

static bool send_all(int fd, const struct buf *b)
{
    for (size_t sent = 0; sent < b->len;) {
        ssize_t n = send(fd, b->data + sent, b->len - sent, MSG_NOSIGNAL);
        if (n <= 0) return false;
        sent += (size_t)n;
    }
    return !b->failed;
}

/* --- the host meanwhile --- */
struct asker {
    const struct isolated_bench *b;
    atomic_bool stop;
    double ms[ASKS_MAX];
    int32_t n;
};

/* Milliseconds until the host has answered; < 0: it has not. */
static double ask_host(const struct isolated_bench *b)
{
    static const char ask[] = "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n";
    struct buf text;
    char answer[1024];
    size_t len = 0;
    ssize_t n;
    buf_init(&text, 0);
    buf_append_str(&text, ask);
    int64_t t0 = clock_now_ns();
    int fd = connect_to(b);
    bool ok = fd >= 0 && send_all(fd, &text);
    while (ok && len < sizeof answer && (n = recv(fd, answer + len, sizeof answer - len, 0)) > 0) len += (size_t)n;
    int64_t t1 = clock_now_ns();
    if (fd >= 0) close(fd);
    buf_free(&text);
    return ok && len > 12 && memcmp(answer + 9, "200", 3) == 0 ? (double)(t1 - t0) / 1e6 : -1;
}

static void *ask_main(void *ctx)
{
    struct asker *a = ctx;
    while (!atomic_load(&a->stop) && a->n < ASKS_MAX) {
        double ms = ask_host(a->b);
        if (ms >= 0) a->ms[a->n++] = ms;
        clock_sleep_ms(ASK_EVERY_MS);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* --- a round --- */
static void write_ask(struct buf *out, const char *path, const struct buf *body)
{
    buf_printf(out, "POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path, body->len);
    buf_append(out, body->data ? body->data : "", body->len);
    if (body->failed) out->failed = body->failed;
}

/* The whole answer to a body; its text behind the headers, NULL: none. t_first: when the first event of a stream came. */
static const char *exchange(struct isolated_bench *b, const char *path, const struct buf *body, struct buf *answer, int64_t *t_first)
{
    struct buf ask;
    char piece[16384];
    ssize_t n = 0;
    buf_init(&ask, 0);
    write_ask(&ask, path, body);
    int fd = connect_to(b);
    bool ok = fd >= 0 && send_all(fd, &ask);
    *t_first = 0;
    while (ok && !answer->failed && (n = recv(fd, piece, sizeof piece, 0)) > 0) {
        buf_append(answer, piece, (size_t)n);
        if (!*t_first && !answer->failed && strstr(answer->data, "\ndata: ")) *t_first = clock_now_ns();
    }
    if (fd >= 0) close(fd);
    buf_free(&ask);
    const char *text = ok && n == 0 && answer->len && !answer->failed ? strstr(answer->data, "\r\n\r\n") : NULL;
    return text ? text + 4 : NULL;
}

/* The server takes prompts as text: that of the ids. */
static mb_status text_of(struct isolated_bench *b, const int32_t *ids, int32_t n_ids, json_t **out, mb_error *err)
{
    struct buf body, answer;
    int64_t t_first;
    mb_error why = { .text = "" };
    json_t *v = NULL;
    buf_init(&body, 0);
    buf_init(&answer, (size_t)64 << 20);
    buf_append_str(&body, "{\"tokens\": [");
    for (int32_t i = 0; i < n_ids; i++) buf_printf(&body, i ? ",%d" : "%d", (int)ids[i]);
    buf_append_str(&body, "]}");
    const char *text = exchange(b, "/detokenize", &body, &answer, &t_first);
    mb_status st = text ? json_read(&v, text, strlen(text), JSON_READ_DEFAULT, &why) : MB_IO;
    *out = json_incref(json_object_get(v, "text"));
    if (st != MB_OK || !*out) st = mb_fail(err, MB_IO, "the server gave no text for a prompt: %.200s", text ? text : "no answer");
    json_decref(v);
    buf_free(&body);
    buf_free(&answer);
    return st;
}

static int32_t number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? (int32_t)strtol(at + strlen(name), NULL, 10) : 0;
}

/* The stream itself, while somebody asks the host. */
static mb_status stream(struct isolated_bench *b, const struct buf *body, int32_t n_tokens, struct isolated_figures *out, mb_error *err)
{
    struct asker *asker = mb_calloc(1, sizeof *asker);
    struct buf answer;
    pthread_t thread;
    int64_t t_first = 0;
    if (!asker) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    asker->b = b;
    buf_init(&answer, (size_t)256 << 20);
    bool asking = pthread_create(&thread, NULL, ask_main, asker) == 0;
    int64_t t0 = clock_now_ns();
    const char *text = exchange(b, "/v1/completions", body, &answer, &t_first);
    int64_t t1 = clock_now_ns();
    atomic_store(&asker->stop, true);
    if (asking) pthread_join(thread, NULL);
    bool ok = text && t_first && strstr(text, "data: [DONE]") && !strstr(text, "data: {\"error\"");
    mb_status st = ok ? MB_OK : mb_fail(err, MB_IO, "the server's answer was no whole stream: %.200s", text ? text : "none");
    qsort(asker->ms, (size_t)asker->n, sizeof *asker->ms, by_value);
    if (ok)
        *out = (struct isolated_figures){ .first_s = (double)(t_first - t0) / 1e9,
                                          .decode_tok_s = t1 > t_first ? (double)(n_tokens - 1) * 1e9 / (double)(t1 - t_first) : 0,
                                          .host_ms = asker->n ? asker->ms[asker->n / 2] : 0,
                                          .host_ms_max = asker->n ? asker->ms[asker->n - 1] : 0,
                                          .n_prompt = number_behind(text, "\"prompt_tokens\": ") };
    buf_free(&answer);
    mb_free(asker);
    return st;
}

mb_status isolated_bench_run(struct isolated_bench *b, const int32_t *ids, int32_t n_ids, int32_t n_tokens, struct isolated_figures *out,
                             mb_error *err)
{
    struct buf body;
    json_t *text;
    MB_TRY(text_of(b, ids, n_ids, &text, err));
    buf_init(&body, 0);
    buf_append_str(&body, "{\"prompt\": ");
    json_write_string(&body, json_string_value(text), json_string_length(text));
    buf_printf(&body, ", \"max_tokens\": %d, \"temperature\": 0, \"ignore_eos\": true, \"logprobs\": true, \"stream\": true}", (int)n_tokens);
    json_decref(text);
    mb_status st = stream(b, &body, n_tokens, out, err);
    buf_free(&body);
    return st;
}
