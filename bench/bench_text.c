/* bench_text.c: what is not arithmetic: the tokenizer, the server path, and what the machine itself does this minute. One
 * JSON line each.
 *
 *   bench_text tokenizer DIR CACHE_DIR FILE...   {"parse_ms", "load_ms", "mb_s": [one a file]}; FILEs are UTF-8 text
 *   bench_text server DIR                        {"cpu_us_per_token", "n"}: one stream of chat completions over the scripted
 *                                                engine, a token a millisecond; CPU of the process less that of the client
 *   bench_text machine THREADS                   {"read_gb_s", "barrier_us"}
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/filemap.h"
#include "base/log.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "server/server.h"
#include "tokenizer/tokenizer.h"

static int fail(const mb_error *err)
{
    fprintf(stderr, "bench_text: %s\n", err->text);
    return 1;
}

static double seconds_since(int64_t t0_ns)
{
    return (double)(clock_now_ns() - t0_ns) * 1e-9;
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
static const char words[] = " the quick brown fox jumps over the lazy dog and says \"hello\\n\" to everybody, then runs on";

struct client {
    int port;
    double cpu_s;
    bool ok;
};

static void *read_stream(void *ctx)
{
    struct client *c = ctx;
    char request[512], chunk[65536];
    const char *body = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"stream\":true,\"max_tokens\":1000}";
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int n = snprintf(request, sizeof request, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n%s", strlen(body), body);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0 || send(fd, request, (size_t)n, MSG_NOSIGNAL) != n) return NULL;
    for (ssize_t got; (got = recv(fd, chunk, sizeof chunk, 0)) > 0;)
        if (memmem(chunk, (size_t)got, "[DONE]", 6)) c->ok = true;
    close(fd);
    c->cpu_s = cpu_s();
    return NULL;
}

/* An engine whose draws are the words above, over and over, a millisecond each. */
static mb_status open_engine(struct gen_engine **out, const char *dir, int32_t *ids, mb_error *err)
{
    struct tokenizer *t;
    struct token_list list;
    struct arena a;
    struct stepper stepper;
    struct engine *engine;
    arena_init(&a, 0);
    MB_TRY(tokenizer_open(&t, dir, err));
    MB_TRY(tokenizer_encode(t, &a, words, sizeof words - 1, NULL, &list, err));
    for (size_t i = 0; i < N_STREAMED; i++) ids[i] = list.ids[i % list.n];
    struct scripted_options so = { .n_vocab = tokenizer_n_vocab(t), .n_context = 8192, .m_max = 2048, .n_rows_max = 8, .script = ids,
                                   .n_script = N_STREAMED, .end_id = tokenizer_eos_id(t), .step_delay_ms = 1 };
    struct engine_options eo = { .batch = 8, .queue_max = 64, .prefill_chunk = 2048, .prefill_share = 3, .client_timeout_ms = 60000 };
    struct gen_engine_options go = { .model_dir = dir, .max_tokens = -1 };
    struct gen_model_info info = { .kv_mode = "bf16", .device = "scripted", .tier = "l1", .batch = 8 };
    tokenizer_close(t);
    arena_free(&a);
    MB_TRY(stepper_scripted(&stepper, &so, err));
    MB_TRY(engine_open(&engine, &stepper, &eo, err));
    return gen_engine_open(out, engine, &go, &info, err);
}

static int run_server(int argc, char **argv)
{
    static int32_t ids[N_STREAMED];
    struct gen_engine *g;
    struct server *s;
    struct server_options so = { .shutdown_timeout_ms = 1000 };
    mb_error err = { 0 };
    double best = 1e9;
    if (argc < 3) return 2;
    log_set_level(LOG_WARN);
    if (open_engine(&g, argv[2], ids, &err) != MB_OK) return fail(&err);
    struct engine_client client = gen_engine_client(g);
    if (server_open(&s, &client, &so, &err) != MB_OK) return fail(&err);
    for (int i = 0; i < 3; i++) {
        struct client c = { .port = server_port(s) };
        pthread_t thread;
        double cpu0 = cpu_of(CLOCK_PROCESS_CPUTIME_ID);
        if (pthread_create(&thread, NULL, read_stream, &c) != 0) return 1;
        pthread_join(thread, NULL);
        double used = (cpu_of(CLOCK_PROCESS_CPUTIME_ID) - cpu0 - c.cpu_s) / N_STREAMED * 1e6;
        if (!c.ok) {
            fprintf(stderr, "bench_text: the stream did not end as it should\n");
            return 1;
        }
        if (used < best) best = used;
    }
    printf("{\"cpu_us_per_token\": %.1f, \"n\": %d}\n", best, N_STREAMED);
    server_close(s);
    gen_engine_close(g, 0);
    return 0;
}

/* --- machine --- */

#define READ_BYTES ((size_t)256 << 20)
#define N_BARRIERS 20000

struct machine {
    const uint64_t *data;
    struct pool *pool;
    uint64_t sums[64];
    int32_t n_left;
};

static void read_share(void *ctx, int i_thread, int n_threads)
{
    struct machine *m = ctx;
    int64_t first, end;
    uint64_t s[8] = { 0 };
    threads_share((int64_t)(READ_BYTES / 8), 8, i_thread, n_threads, &first, &end);
    for (int64_t i = first; i + 8 <= end; i += 8)
        for (int k = 0; k < 8; k++) s[k] += m->data[i + k];
    m->sums[i_thread & 63] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

/* Regions of one empty tile a thread: what is left is the barrier at their ends. */
static int64_t open_empty(void *ctx, int i_thread, const int32_t **bounds)
{
    struct machine *m = ctx;
    (void)i_thread;
    (void)bounds;
    return m->n_left-- > 0 ? pool_n_threads(m->pool) : 0;
}

static void empty_tile(void *ctx, int64_t i_tile, int i_thread)
{
    (void)ctx;
    (void)i_tile;
    (void)i_thread;
}

static int run_machine(int argc, char **argv)
{
    static const struct pool_work empty = { open_empty, empty_tile };
    struct machine m = { 0 };
    mb_error err = { 0 };
    double best_read = 0, best_meet = 1e9;
    if (argc < 3) return 2;
    if (pool_open(&m.pool, atoi(argv[2]), &err) != MB_OK) return fail(&err);
    uint64_t *data = mb_alloc_aligned(64, READ_BYTES);
    if (!data) return 1;
    memset(data, 1, READ_BYTES);
    m.data = data;
    for (int i = 0; i < 5; i++) {
        int64_t t0 = clock_now_ns();
        pool_run(m.pool, read_share, &m);
        double rate = (double)READ_BYTES * 1e-9 / seconds_since(t0);
        if (rate > best_read) best_read = rate;
        t0 = clock_now_ns();
        m.n_left = N_BARRIERS;
        pool_run_regions(m.pool, &empty, &m);
        double us = seconds_since(t0) * 1e6 / N_BARRIERS;
        if (us < best_meet) best_meet = us;
    }
    printf("{\"read_gb_s\": %.2f, \"barrier_us\": %.2f}\n", best_read, best_meet);
    mb_free(data);
    pool_close(m.pool);
    return m.sums[0] == 1; /* never; keeps the sums */
}

int main(int argc, char **argv)
{
    int rc = 2;
    if (argc > 1 && strcmp(argv[1], "tokenizer") == 0) rc = run_tokenizer(argc, argv);
    if (argc > 1 && strcmp(argv[1], "server") == 0) rc = run_server(argc, argv);
    if (argc > 1 && strcmp(argv[1], "machine") == 0) rc = run_machine(argc, argv);
    if (rc == 2) fprintf(stderr, "usage: bench_text tokenizer DIR CACHE_DIR FILE... | server DIR | machine THREADS\n");
    return rc;
}
