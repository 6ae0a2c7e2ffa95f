/* test_server_load.c: many clients at once, a full queue, clients that leave or read slowly, shutdown, limits. */
#include "server_rig.h"

#include <pthread.h>

/* --- many at once --- */
struct client_job { struct server_rig *r; int i; bool ok; };

static void *client_main(void *ctx)
{
    struct client_job *j = ctx;
    struct answer a;
    j->ok = true;
    for (int k = 0; k < 5 && j->ok; k++) {
        http_post(j->r, CHAT, (j->i + k) % 2 ? "{" HI ",\"stream\":true}" : "{" HI "}", &a);
        j->ok = a.status == 200 && strstr(a.body, (j->i + k) % 2 ? "[DONE]" : "hello world") != NULL;
        answer_free(&a);
    }
    return NULL;
}

static void test_parallel(void **state)
{
    (void)state;
    struct server_rig r;
    struct client_job jobs[24];
    pthread_t t[24];
    srig_open(&r, (const char *[]){ "hello", " world", NULL });
    for (int i = 0; i < 24; i++) {
        jobs[i] = (struct client_job){ .r = &r, .i = i };
        pthread_create(&t[i], NULL, client_main, &jobs[i]);
    }
    for (int i = 0; i < 24; i++) {
        pthread_join(t[i], NULL);
        assert_true(jobs[i].ok);
    }
    srig_check_alive(&r);
    srig_close(&r);
}

/* B-103: 4 run, 4 wait, the rest 429 with Retry-After. */
static void *flood_main(void *ctx)
{
    struct client_job *j = ctx;
    struct answer a;
    char h[512];
    http_post(j->r, CHAT, "{" HI "}", &a);
    j->i = a.status;
    j->ok = a.status == 200 || (a.status == 429 && answer_header(&a, "Retry-After", h));
    answer_free(&a);
    return NULL;
}

static void test_b103_queue_full(void **state)
{
    (void)state;
    struct server_rig r;
    struct client_job jobs[40];
    pthread_t t[40];
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", " world", NULL });
    r.gen.eo.batch = 2;
    r.gen.eo.queue_max = 4;
    r.gen.so.step_delay_ms = 300; /* long against the start of 40 threads on a busy machine */
    srig_start(&r);
    int n_ok = 0, n_busy = 0;
    for (int i = 0; i < 40; i++) {
        jobs[i] = (struct client_job){ .r = &r };
        pthread_create(&t[i], NULL, flood_main, &jobs[i]);
    }
    for (int i = 0; i < 40; i++) {
        pthread_join(t[i], NULL);
        assert_true(jobs[i].ok);
        if (jobs[i].i == 200) n_ok++;
        else n_busy++;
    }
    assert_true(n_ok >= 6);
    assert_true(n_busy > 0);
    srig_check_alive(&r);
    srig_close(&r);
}

/* --- clients that leave --- */
static void open_slow(struct server_rig *r, int64_t step_ms, int64_t prefill_ms)
{
    memset(r, 0, sizeof *r);
    rig_init(&r->gen, NULL);
    for (r->gen.n_script = 0; r->gen.n_script < 4000; r->gen.n_script++) rig_encode("a", &r->gen.script[r->gen.n_script], 1);
    r->gen.so.step_delay_ms = step_ms;
    r->gen.so.prefill_delay_ms_per_1k = prefill_ms;
    r->so.keepalive_ms = 300;
    r->so.shutdown_timeout_ms = 3000;
    srig_start(r);
}

static int send_post(struct server_rig *r, const char *body)
{
    char head[256];
    int fd = srig_connect(r);
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    srig_puts(fd, head);
    srig_puts(fd, body);
    return fd;
}

static void wait_active(struct server_rig *r, int n)
{
    struct engine_stats st;
    for (int i = 0; i < 20000; i++) {
        engine_stats_now(r, &st);
        if (st.active_rows + st.pending_rows >= n) return;
        clock_sleep_ms(5);
    }
    fail_msg("the engine never got %d rows", n);
}

static void test_b043_disconnects(void **state)
{
    (void)state;
    struct server_rig r;
    struct engine_stats before, after;
    open_slow(&r, 10, 0);
    for (int stream = 0; stream < 2; stream++) {
        engine_stats_now(&r, &before);
        int fd = send_post(&r, stream ? "{" HI ",\"stream\":true}" : "{" HI "}");
        wait_active(&r, 1);
        clock_sleep_ms(50);
        close(fd);
        if (wait_no_rows(&r, 100000) < 0) fail_msg("stream %d: rows stay", stream);
        engine_stats_now(&r, &after);
        assert_int_equal(after.cancelled, before.cancelled + 1);
    }
    /* queued: eight run, others wait; the waiting ones leave first */
    int fds[12];
    for (int i = 0; i < 12; i++) fds[i] = send_post(&r, i % 2 ? "{" HI ",\"stream\":true}" : "{" HI "}");
    wait_active(&r, 12);
    for (int i = 11; i >= 0; i--) close(fds[i]);
    assert_true(wait_no_rows(&r, 100000) >= 0);
    srig_close(&r);
}

static void test_b043_half_closed_stream(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", " world", " the", NULL });
    r.gen.so.step_delay_ms = 100;
    srig_start(&r);
    int fd = send_post(&r, "{" HI ",\"stream\":true}");
    shutdown(fd, SHUT_WR);
    assert_true(answer_read(fd, &a));
    sse_parse(&a, &s);
    assert_string_equal(sse_content(&s), "hello world the");
    assert_true(s.done);
    sse_free(&s);
    answer_free(&a);
    close(fd);
    srig_check_alive(&r);
    srig_close(&r);
}

/* B-044 */
static void test_b044_keepalive_comments(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.gen.so.prefill_delay_ms_per_1k = 200000; /* nine tokens: 1.8 s */
    r.so.keepalive_ms = 300;
    srig_start(&r);
    int64_t t0 = clock_now_ns();
    http_post(&r, CHAT, "{" HI ",\"stream\":true}", &a);
    assert_int_equal(a.status, 200);
    sse_parse(&a, &s);
    if (s.n_comments < 2) fail_msg("%d comments in %lld ms: %s", s.n_comments, (long long)(clock_now_ns() - t0) / 1000000, a.raw.data);
    assert_non_null(strstr(a.body, ": keepalive 0/9\n\n"));
    assert_string_equal(sse_content(&s), "hello");
    sse_free(&s);
    answer_free(&a);
    srig_close(&r);
}

static void wait_parked(struct server_rig *r, int n)
{
    struct engine_stats st;
    for (int i = 0; i < 20000; i++) {
        engine_stats_now(r, &st);
        if (st.parked_rows >= n) return;
        clock_sleep_ms(5);
    }
    fail_msg("the engine never parked %d rows", n);
}

static int connect_unix(const char *path)
{
    struct sockaddr_un u = { .sun_family = AF_UNIX };
    strcpy(u.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&u, sizeof u), 0);
    return fd;
}

/* A client that does not read: its row is parked, others are served, and what it gets in the end is whole. Over a unix
 * socket, whose buffers hold less than the answer. */
static void test_slow_reader(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    char path[64], head[256];
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, NULL);
    for (r.gen.n_script = 0; r.gen.n_script < 4000; r.gen.n_script++) rig_encode("a", &r.gen.script[r.gen.n_script], 1);
    r.gen.go.ring_events = 64;
    snprintf(path, sizeof path, "/tmp/mlx-bun-slow-%d.sock", (int)getpid());
    r.so.unix_path = path;
    srig_start(&r);
    int fd = connect_unix(path), other = connect_unix(path);
    const char *slow = "{" HI ",\"stream\":true}", *quick = "{" HI ",\"max_tokens\":3}";
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", strlen(slow));
    srig_puts(fd, head);
    srig_puts(fd, slow);
    wait_parked(&r, 1);
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", strlen(quick));
    srig_puts(other, head);
    srig_puts(other, quick);
    assert_true(answer_read(other, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    wait_parked(&r, 1);
    assert_true(answer_read(fd, &a));
    sse_parse(&a, &s);
    assert_int_equal(s.content.len, 4000);
    assert_true(s.done);
    sse_free(&s);
    answer_free(&a);
    close(fd);
    close(other);
    srig_close(&r);
}

/* --- shutting down (API-015) --- */
static void *run_main(void *ctx)
{
    server_run(ctx);
    return NULL;
}

static void test_api015_graceful(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    pthread_t t;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", " world", " the", " one", " two", NULL });
    r.gen.so.step_delay_ms = 60;
    srig_start(&r);
    pthread_create(&t, NULL, run_main, r.server);
    int fd = send_post(&r, "{" HI ",\"stream\":true}"), idle = srig_connect(&r);
    wait_active(&r, 1);
    server_request_stop(r.server);
    assert_true(answer_read(fd, &a));
    sse_parse(&a, &s);
    assert_string_equal(sse_content(&s), "hello world the one two");
    sse_free(&s);
    answer_free(&a);
    pthread_join(t, NULL);
    close(fd);
    close(idle);
    srig_close(&r);
}

static void test_api015_second_signal(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    pthread_t t;
    open_slow(&r, 20, 0);
    pthread_create(&t, NULL, run_main, r.server);
    int fd[3] = { send_post(&r, "{" HI ",\"stream\":true}"), send_post(&r, "{" HI "}"), srig_connect(&r) };
    wait_active(&r, 2);
    clock_sleep_ms(100);
    server_request_stop(r.server);
    clock_sleep_ms(100);
    server_request_stop(r.server);
    assert_true(answer_read(fd[0], &a));
    sse_parse(&a, &s);
    assert_non_null(strstr(s.error, "shutting down"));
    assert_true(s.done);
    sse_free(&s);
    answer_free(&a);
    assert_true(answer_read(fd[1], &a));
    assert_true(a.status >= 400);
    answer_free(&a);
    pthread_join(t, NULL);
    for (int i = 0; i < 3; i++) close(fd[i]);
    srig_close(&r);
}

/* API-003 */
static void test_api003_unix_socket(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char path[64];
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    snprintf(path, sizeof path, "/tmp/mlx-bun-test-%d.sock", (int)getpid());
    r.so.unix_path = path;
    struct sockaddr_un u = { .sun_family = AF_UNIX };
    strcpy(u.sun_path, path);
    int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(stale, (struct sockaddr *)&u, sizeof u), 0); /* a stale file */
    close(stale);
    srig_start(&r);
    int fd = connect_unix(path);
    srig_puts(fd, "GET /v1/models HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n");
    assert_true(answer_read(fd, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
    srig_close(&r);
    assert_int_equal(access(path, F_OK), -1);
}

/* A header that dribbles in is cut off; so are connections beyond the limit, idle ones first. */
static void test_idle_and_limits(void **state)
{
    (void)state;
    struct server_rig r;
    char c;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.so.idle_timeout_ms = 300;
    r.so.max_connections = 8;
    srig_start(&r);
    int fd = srig_connect(&r);
    srig_puts(fd, "GET /health HT");
    assert_true(recv(fd, &c, 1, 0) <= 0);
    close(fd);
    int many[12];
    for (int i = 0; i < 12; i++) many[i] = srig_connect(&r);
    srig_check_alive(&r);
    for (int i = 0; i < 12; i++) close(many[i]);
    srig_close(&r);
}

/* Errors of the engine: the prompt is too long (Q50) */
static void test_context_length(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.gen.so.n_context = 64;
    srig_start(&r);
    for (int stream = 0; stream < 2; stream++) {
        char body[1024];
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%0500d\"}],\"stream\":%s}", 0, stream ? "true" : "false");
        http_post(&r, CHAT, body, &a);
        json_t *v = answer_json(&a);
        assert_int_equal(a.status, 400);
        assert_string_equal(json_str_at(v, "error.code"), "context_length_exceeded");
        assert_string_equal(json_str_at(v, "error.param"), "messages");
        json_decref(v);
        answer_free(&a);
        snprintf(body, sizeof body, "{\"prompt\":\"%0500d\",\"stream\":%s}", 0, stream ? "true" : "false");
        http_post(&r, "/v1/completions", body, &a);
        v = answer_json(&a);
        assert_string_equal(json_str_at(v, "error.param"), "prompt");
        json_decref(v);
        answer_free(&a);
    }
    srig_check_alive(&r);
    srig_close(&r);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parallel), cmocka_unit_test(test_b103_queue_full),
        cmocka_unit_test(test_b043_disconnects), cmocka_unit_test(test_b043_half_closed_stream),
        cmocka_unit_test(test_b044_keepalive_comments), cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_api015_graceful), cmocka_unit_test(test_api015_second_signal),
        cmocka_unit_test(test_api003_unix_socket), cmocka_unit_test(test_idle_and_limits),
        cmocka_unit_test(test_context_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
