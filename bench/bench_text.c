/* bench_text.c: what is not arithmetic: the tokenizer and the server path. One JSON line each.
 *
 *   bench_text tokenizer DIR CACHE_DIR FILE...   {"parse_ms", "load_ms", "mb_s": [one a file]}; FILEs are UTF-8 text
 *   bench_text server DIR [STREAMS]              {"cpu_us_per_token", "at_8_streams", "at_64_streams", "completions", "responses",
 *                                                "messages", "bare_send_us", "step_us", "n"}: streams of chat completions (then
 *                                                one of each other dialect) over the scripted engine, a step a millisecond: CPU of
 *                                                the process, in which no client runs, less that of the scripted steps (step_us);
 *                                                bare_send_us: what sending as many bytes takes a program that does nothing else.
 *                                                With STREAMS: "cpu_us_per_token", "bare_send_us" and "step_us" of so many, one round
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/filemap.h"
#include "base/log.h"
#include "engine/engine.h"
#include "server/server.h"
#include "tokenizer/tokenizer.h"

static int fail(const mb_error *err)
{
    fprintf(stderr, "bench_text: %s\n", err->text);
    return 1;
}

static double cpu_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of this thread: neighbours cost the clock, not this. */
static double cpu_s(void)
{
    return cpu_of(CLOCK_THREAD_CPUTIME_ID);
}

/* --- tokenizer --- */

/* Best rate of a few runs over one text. */
static mb_status text_rate(const struct tokenizer *t, const char *path, double *mb_s, mb_error *err)
{
    struct buf text;
    buf_init(&text, 0);
    MB_TRY(file_read(&text, path, (size_t)256 << 20, err));
    *mb_s = 0;
    for (int i = 0; i < 5; i++) {
        struct arena a;
        struct token_list list;
        arena_init(&a, 0);
        double t0 = cpu_s();
        mb_status st = tokenizer_encode(t, &a, text.data, text.len, NULL, &list, err);
        double rate = (double)text.len * 1e-6 / (cpu_s() - t0);
        arena_free(&a);
        if (st != MB_OK) return st;
        if (rate > *mb_s) *mb_s = rate;
    }
    buf_free(&text);
    return MB_OK;
}

static int run_tokenizer(int argc, char **argv)
{
    struct tokenizer *t;
    mb_error err = { 0 };
    double best_load = 1e9;
    if (argc < 5) return 2;
    double t0 = cpu_s();
    if (tokenizer_open(&t, argv[2], &err) != MB_OK) return fail(&err);
    double parse = cpu_s() - t0;
    tokenizer_close(t);
    for (int i = 0; i < 6; i++) { /* the first one may write the image */
        t0 = cpu_s();
        if (tokenizer_open_cached(&t, argv[2], argv[3], &err) != MB_OK) return fail(&err);
        double load = cpu_s() - t0;
        if (i && load < best_load) best_load = load;
        if (i < 5) tokenizer_close(t);
    }
    printf("{\"parse_ms\": %.2f, \"load_ms\": %.2f, \"mb_s\": [", parse * 1e3, best_load * 1e3);
    for (int i = 4; i < argc; i++) {
        double rate;
        if (text_rate(t, argv[i], &rate, &err) != MB_OK) return fail(&err);
        printf("%s%.1f", i > 4 ? ", " : "", rate);
    }
    printf("]}\n");
    tokenizer_close(t);
    return 0;
}

/* --- server --- */

#define N_STREAMED 1000
#define STREAMS_MAX 64
static const char words[] = " the quick brown fox jumps over the lazy dog and says \"hello\\n\" to everybody, then runs on";

static int connect_to(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"
static const struct dialect { const char *name, *path, *body, *end; } dialects[] = {
    { "chat", "/v1/chat/completions", "{" MESSAGES ",\"stream\":true,\"max_tokens\":1000}", "[DONE]" },
    { "completions", "/v1/completions", "{\"prompt\":\"Hello\",\"stream\":true,\"max_tokens\":1000}", "[DONE]" },
    { "responses", "/v1/responses", "{\"input\":\"Hello\",\"stream\":true,\"store\":false,\"max_output_tokens\":1000}", "event: response.incomplete" },
    { "messages", "/v1/messages", "{" MESSAGES ",\"stream\":true,\"max_tokens\":1000}", "event: message_stop" },
};

/* The clients are a process of their own, forked before there are threads: each order is one round. */
struct order { int port, n_streams, i_dialect; };

/* One client: a stream read to its end; NULL when it did not end as it should. */
static void *read_stream(void *ctx)
{
    const struct order *o = ctx;
    const struct dialect *d = &dialects[o->i_dialect];
    char request[512], chunk[65536];
    int n = snprintf(request, sizeof request, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n%s", d->path, strlen(d->body), d->body);
    int fd = connect_to(o->port);
    bool ok = false;
    if (fd < 0 || send(fd, request, (size_t)n, MSG_NOSIGNAL) != n) return NULL;
    for (ssize_t got; (got = recv(fd, chunk, sizeof chunk, 0)) > 0;)
        if (memmem(chunk, (size_t)got, d->end, strlen(d->end))) ok = true;
    close(fd);
    return ok ? ctx : NULL;
}

static _Noreturn void clients(int from, int to)
{
    for (struct order o; read(from, &o, sizeof o) == sizeof o;) {
        pthread_t threads[STREAMS_MAX];
        int n_made = 0, n_ok = 0;
        void *ok;
        while (n_made < o.n_streams && pthread_create(&threads[n_made], NULL, read_stream, &o) == 0) n_made++;
        for (int i = 0; i < n_made; i++)
            if (pthread_join(threads[i], &ok) == 0 && ok) n_ok++;
        if (write(to, &n_ok, sizeof n_ok) != sizeof n_ok) break;
    }
    _exit(0);
}

/* Scripted steps run inside this: what a step itself takes of the processor, its sleep and its books, is not the server's. Asking the
 * system costs a microsecond, so only every so many are measured. */
#define MEASURED_EVERY 16
static struct stepper scripted;
static struct { double sum_s; int64_t n, n_measured; } steps; /* the engine's thread writes, read between rounds */

static mb_status timed_submit(void *ctx, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err)
{
    bool measured = steps.n++ % MEASURED_EVERY == 0;
    double t0 = measured ? cpu_s() : 0;
    mb_status st = scripted.submit(ctx, rows, n_rows, results, err);
    if (measured) steps.n_measured++, steps.sum_s += cpu_s() - t0;
    return st;
}

/* An engine whose draws are the words above, over and over, a millisecond each. */
static mb_status open_engine(struct gen_engine **out, const char *dir, int32_t *ids, mb_error *err)
{
    struct tokenizer *t;
    struct token_list list;
    struct arena a;
    struct engine *engine;
    arena_init(&a, 0);
    MB_TRY(tokenizer_open(&t, dir, err));
    MB_TRY(tokenizer_encode(t, &a, words, sizeof words - 1, NULL, &list, err));
    for (size_t i = 0; i < N_STREAMED; i++) ids[i] = list.ids[i % list.n];
    struct scripted_options so = { .n_vocab = tokenizer_n_vocab(t), .n_context = 8192, .m_max = 2048, .n_rows_max = STREAMS_MAX, .script = ids,
                                   .n_script = N_STREAMED, .end_id = tokenizer_eos_id(t), .step_delay_ms = 1 };
    struct engine_options eo = { .batch = STREAMS_MAX, .queue_max = 64, .prefill_chunk = 2048, .prefill_share = 3, .client_timeout_ms = 60000 };
    struct gen_engine_options go = { .model_dir = dir, .max_tokens = -1 };
    struct gen_model_info info = { .kv_mode = "bf16", .device = "scripted", .tier = "l1", .batch = STREAMS_MAX };
    tokenizer_close(t);
    arena_free(&a);
    MB_TRY(stepper_scripted(&scripted, &so, err));
    struct stepper timed = scripted;
    timed.submit = timed_submit;
    MB_TRY(engine_open(&engine, &timed, &eo, err));
    return gen_engine_open(out, engine, &go, &info, err);
}

/* What the system alone takes to send as many bytes as a token's chunk to a reader on this machine: microseconds a send. */
static double bare_send_us(void)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    char bytes[256] = { 0 }, sink[4096];
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    double used = 0;
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, len) != 0 || listen(listener, 1) != 0) return -1;
    getsockname(listener, (struct sockaddr *)&a, &len);
    pid_t reader = fork();
    if (reader == 0) {
        int in = connect_to(ntohs(a.sin_port));
        while (in >= 0 && recv(in, sink, sizeof sink, 0) > 0) {}
        _exit(0);
    }
    int fd = reader > 0 ? accept(listener, NULL, NULL) : -1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (int i = 0; i < N_STREAMED && fd >= 0; i++) {
        clock_sleep_ms(1);
        double t0 = cpu_s();
        if (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) < 0) used = -1e9;
        used += cpu_s() - t0;
    }
    if (fd >= 0) close(fd);
    close(listener);
    if (reader > 0) waitpid(reader, NULL, 0);
    return fd >= 0 ? used / N_STREAMED * 1e6 : -1;
}

struct cost { double server_us, step_us; };  /* a token; step_us is not in server_us */

/* Best of some rounds of streams at once. */
static bool streams_cost(int to, int from, struct order o, int n_rounds, struct cost *best)
{
    int n = o.n_streams;
    best->server_us = 1e9;
    for (int i = 0; i < n_rounds; i++) {
        int n_ok = 0;
        memset(&steps, 0, sizeof steps);
        double cpu0 = cpu_of(CLOCK_PROCESS_CPUTIME_ID);
        if (write(to, &o, sizeof o) != sizeof o || read(from, &n_ok, sizeof n_ok) != sizeof n_ok || n_ok != n) return false;
        double step = steps.sum_s / (double)steps.n_measured * (double)steps.n;
        double used = cpu_of(CLOCK_PROCESS_CPUTIME_ID) - cpu0 - step, a_token = 1e6 / (N_STREAMED * (double)n);
        if (used * a_token < best->server_us) *best = (struct cost){ used * a_token, step * a_token };
    }
    return true;
}

static int cost_failed(void)
{
    fprintf(stderr, "bench_text: a stream did not end as it should\n");
    return 1;
}

static int print_costs(int to, int from, int port, double bare)
{
    static const int widths[] = { 1, 8, STREAMS_MAX };
    struct cost wide[3], other[4];
    for (int i = 0; i < 3; i++)
        if (!streams_cost(to, from, (struct order){ port, widths[i], 0 }, 3, &wide[i])) return cost_failed();
    for (int i = 1; i < 4; i++)
        if (!streams_cost(to, from, (struct order){ port, 1, i }, 3, &other[i])) return cost_failed();
    printf("{\"cpu_us_per_token\": %.1f, \"at_8_streams\": %.1f, \"at_64_streams\": %.1f", wide[0].server_us, wide[1].server_us, wide[2].server_us);
    for (int i = 1; i < 4; i++) printf(", \"%s\": %.1f", dialects[i].name, other[i].server_us);
    printf(", \"bare_send_us\": %.1f, \"step_us\": %.1f, \"n\": %d}\n", bare, wide[0].step_us, N_STREAMED);
    return 0;
}

static int print_cost(int to, int from, int port, int n_streams, double bare)
{
    struct cost c;
    if (!streams_cost(to, from, (struct order){ port, n_streams, 0 }, 1, &c)) return cost_failed();
    printf("{\"cpu_us_per_token\": %.1f, \"bare_send_us\": %.1f, \"step_us\": %.1f}\n", c.server_us, bare, c.step_us);
    return 0;
}

static int run_server(int argc, char **argv)
{
    static int32_t ids[N_STREAMED];
    struct gen_engine *g;
    struct server *s;
    struct server_options so = { .shutdown_timeout_ms = 1000 };
    mb_error err = { 0 };
    int down[2], up[2], n_streams = argc > 3 ? atoi(argv[3]) : 0;
    if (argc < 3 || n_streams < 0 || n_streams > STREAMS_MAX) return 2;
    if (pipe(down) != 0 || pipe(up) != 0) return 1;
    pid_t pid = fork();
    if (pid == 0) {
        close(down[1]); /* or its end would never be seen */
        clients(down[0], up[1]);
    }
    double bare = bare_send_us();
    log_set_level(LOG_WARN);
    if (pid < 0 || open_engine(&g, argv[2], ids, &err) != MB_OK) return fail(&err);
    struct engine_client client = gen_engine_client(g);
    if (server_open(&s, &client, &so, &err) != MB_OK) return fail(&err);
    int rc = n_streams ? print_cost(down[1], up[0], server_port(s), n_streams, bare) : print_costs(down[1], up[0], server_port(s), bare);
    server_close(s);
    gen_engine_close(g, 0);
    close(down[1]);
    waitpid(pid, NULL, 0);
    return rc;
}

int main(int argc, char **argv)
{
    int rc = 2;
    if (argc > 1 && strcmp(argv[1], "tokenizer") == 0) rc = run_tokenizer(argc, argv);
    if (argc > 1 && strcmp(argv[1], "server") == 0) rc = run_server(argc, argv);
    if (rc == 2) fprintf(stderr, "usage: bench_text tokenizer DIR CACHE_DIR FILE... | server DIR [STREAMS]\n");
    return rc;
}
