/* test_server_http.c: what is HTTP's own: Host and Origin, routes and methods, chunked and encoded bodies, Expect, keep-alive. */
#include "server_rig.h"

#include <zlib.h>
#include <zstd.h>

/* B-151, B-152 */
static void test_b151_host(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", NULL });
    static const struct { const char *line; int status; } rows[] = {
        { "Host: evil.test:8080\r\n", 403 }, { "Host: :8080\r\n", 403 }, { "Host: \r\n", 403 }, { NULL, 400 },
        { "Host: localhost.evil.test\r\n", 403 }, { "Host: [::1]:8080\r\n", 200 }, { "Host: 127.0.0.1\r\n", 200 },
        { "Host: LOCALHOST\r\n", 200 }, { "Host: localhost:8080\r\n", 200 }, { "Host: 127.0.0.1.evil.test\r\n", 403 },
        { "Host: 127.0.0.1:80x\r\n", 403 }, { "Host: x.tunnel.test\r\n", 403 }, { "Host: 0.0.0.0\r\n", 403 }, { "Host: 127.1\r\n", 403 },
    };
    static const char *const targets[] = { "GET /health", "GET /v1/models", "GET /nope", "OPTIONS " CHAT, "DELETE /health", "HEAD /health" };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < sizeof targets / sizeof targets[0]; k++) {
            char req[512];
            snprintf(req, sizeof req, "%s HTTP/1.1\r\n%sConnection: close\r\n\r\n", targets[k], rows[i].line ? rows[i].line : "");
            http_raw(&r, req, strlen(req), &a);
            bool ok = rows[i].status == 200 ? a.status != 403 && a.status != 400 : rows[i].line ? a.status == 403 : a.status == 403 || a.status == 400;
            if (!ok) fail_msg("%s, %s: %d", targets[k], rows[i].line ? rows[i].line : "no Host", a.status);
            answer_free(&a);
        }
    http_get(&r, "GET", "/health", "Host: x.tunnel.test\r\n", &a);
    assert_non_null(strstr(a.body, "x.tunnel.test"));
    assert_non_null(strstr(a.body, "--allow-host"));
    answer_free(&a);
    http_get(&r, "GET", "/health", "Host: a\r\nHost: localhost\r\n", &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    /* Two lengths: which bytes are the body is in doubt, so nothing that follows is read as a request. */
    static const char two[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 40\r\n\r\n{}"
                              "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    http_raw(&r, two, sizeof two - 1, &a);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.raw.data, "Connection: close"));
    answer_free(&a);
    srig_check_alive(&r);
    srig_close(&r);

    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    const char *hosts[] = { "x.tunnel.test", "*.b.test" };
    r.so.allow_hosts = hosts;
    r.so.n_allow_hosts = 2;
    srig_start(&r);
    http_get(&r, "GET", "/health", "Host: X.tunnel.test:443\r\n", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(&r, "GET", "/health", "Host: a.b.test\r\n", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(&r, "GET", "/health", "Host: y.tunnel.test\r\n", &a);
    assert_int_equal(a.status, 403);
    answer_free(&a);
    srig_close(&r);
}

/* B-154, Q2, Q3 */
static void test_b154_cors(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char h[512];
    const char *origins[] = { "https://app.test" };
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.so.api_key = "secret";
    r.so.allow_origins = origins;
    r.so.n_allow_origins = 1;
    srig_start(&r);
    static const char *const allowed[] = { "http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173", "https://app.test" };
    for (size_t i = 0; i < 4; i++) {
        char head[512];
        snprintf(head, sizeof head, "Origin: %s\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, "
                 "x-stainless-os, anthropic-version, x-api-key\r\n", allowed[i]);
        http_get(&r, "OPTIONS", CHAT, head, &a); /* no key */
        if (a.status != 204) fail_msg("%s: %d %s", allowed[i], a.status, a.body);
        assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin", h), allowed[i]);
        assert_non_null(strstr(answer_header(&a, "Access-Control-Allow-Headers", h), "x-stainless-os"));
        answer_free(&a);
        snprintf(head, sizeof head, "Origin: %s\r\n", allowed[i]);
        http_post_n(&r, CHAT, head, "{" HI "}", strlen("{" HI "}"), &a);
        assert_int_equal(a.status, 401); /* the real call needs the key, and says so readably */
        assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin", h), allowed[i]);
        answer_free(&a);
        snprintf(head, sizeof head, "Origin: %s\r\nAuthorization: Bearer secret\r\n", allowed[i]);
        http_post_n(&r, CHAT, head, "{" HI "}", strlen("{" HI "}"), &a);
        assert_int_equal(a.status, 200);
        assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin", h), allowed[i]);
        answer_free(&a);
    }
    static const char *const foreign[] = { "https://evil.test", "null", "http://localhost.evil.test", "file://", "http://user@localhost" };
    for (size_t i = 0; i < 5; i++) {
        char head[512];
        snprintf(head, sizeof head, "Origin: %s\r\nAccess-Control-Request-Method: POST\r\n", foreign[i]);
        http_get(&r, "OPTIONS", CHAT, head, &a);
        assert_int_equal(a.status, 403);
        answer_free(&a);
        snprintf(head, sizeof head, "Origin: %s\r\nx-api-key: secret\r\n", foreign[i]);
        http_post_n(&r, CHAT, head, "{" HI "}", strlen("{" HI "}"), &a);
        assert_int_equal(a.status, 403);
        answer_free(&a);
        http_get(&r, "GET", "/v1/models", head, &a);
        assert_int_equal(a.status, 200);
        assert_null(answer_header(&a, "Access-Control-Allow-Origin", h));
        answer_free(&a);
    }
    http_get(&r, "GET", "/health", NULL, &a); /* open */
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(&r, "GET", "/v1/models", "x-api-key: secre\r\n", &a);
    assert_int_equal(a.status, 401);
    answer_free(&a);
    http_get(&r, "GET", "/v1/models", "Authorization: bearer secret\r\n", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    srig_close(&r);
}

/* Q1, Q43, API-261..265 */
static void test_routes(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char h[512];
    srig_open(&r, (const char *[]){ "hello", NULL });
    http_get(&r, "GET", "/nope", NULL, &a);
    assert_int_equal(a.status, 404);
    json_decref(answer_json(&a));
    answer_free(&a);
    http_get(&r, "GET", CHAT, NULL, &a);
    assert_int_equal(a.status, 405);
    assert_non_null(strstr(answer_header(&a, "Allow", h), "POST"));
    answer_free(&a);
    http_get(&r, "HEAD", "/health", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.len, 0);
    answer_free(&a);
    http_get(&r, "GET", "/v1/models", "x-request-id: abc-1\r\n", &a);
    assert_string_equal(answer_header(&a, "x-request-id", h), "abc-1");
    json_t *v = answer_json(&a);
    assert_string_equal(json_str_at(v, "data.0.id"), "tiny-tokenizer");
    assert_int_equal(json_int_at(v, "data.0.context_window"), 100000);
    assert_true(json_is_true(json_at(v, "data.0.reasoning")));
    json_decref(v);
    answer_free(&a);
    static const struct { const char *id; int n; } ids[] = { { "tiny-tokenizer", 1 }, { "tiny%2Dtokenizer", 1 }, { "a/b", 0 }, { "a%2fb", 0 }, { "../../etc/passwd", 0 } };
    for (size_t i = 0; i < 5; i++) {
        char path[128];
        snprintf(path, sizeof path, "/v1/models/%s", ids[i].id);
        http_get(&r, "GET", path, NULL, &a);
        v = answer_json(&a);
        assert_int_equal(a.status, 200);
        assert_int_equal(json_array_size(json_at(v, "data")), ids[i].n);
        json_decref(v);
        answer_free(&a);
    }
    http_get(&r, "GET", "/v1/models/a%00b", NULL, &a); /* B-155 */
    assert_int_equal(a.status, 400);
    answer_free(&a);
    http_get(&r, "GET", "/stats", NULL, &a);
    v = answer_json(&a);
    static const char *const keys[] = { "server.owner", "server.model", "server.started_at", "prompt_cache.max_bytes", "response_store.ttl_ms",
        "kv_quant.mode", "kv_quant.attention.sliding_window", "admission.max_safe_context", "admission.memory_budget_bytes", "batch.configured",
        "batch.batched", "batch.active_rows", "batch.mode", "batch.pending_rows", "batch.submitted_rows", "batch.kv_bytes", "batch.kv_budget_bytes" };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_at(v, keys[i])) fail_msg("/stats lacks %s", keys[i]);
    json_decref(v);
    answer_free(&a);
    http_get(&r, "GET", "/metrics", NULL, &a);
    assert_non_null(strstr(a.body, "\nmlx_bun_up 1\n"));
    answer_free(&a);
    http_post(&r, "/tokenize", "{\"text\":\"hello world\"}", &a);
    assert_string_equal(a.body[0] == '{' ? strstr(a.body, "\"count\": 2") ? "ok" : a.body : a.body, "ok");
    answer_free(&a);
    int32_t id;
    rig_encode("hello", &id, 1);
    char body[64];
    snprintf(body, sizeof body, "{\"tokens\":[%d]}", (int)id);
    http_post(&r, "/detokenize", body, &a);
    assert_string_equal(a.body, "{\"text\": \"hello\"}");
    answer_free(&a);
    srig_check_400(&r, "/detokenize", "{\"tokens\":[-1]}", "tokens[0]");
    srig_check_400(&r, "/detokenize", "{\"tokens\":[5,2000000000]}", "tokens[1]");
    srig_check_alive(&r);
    srig_close(&r);
}

/* B-046 */
static void test_b046_chunked(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    const char *body = "{" HI "}";
    srig_open(&r, (const char *[]){ "hello", NULL });
    int fd = srig_connect(&r);
    srig_puts(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    for (const char *p = body; *p; p++) {
        char piece[32];
        snprintf(piece, sizeof piece, "1;name=v\r\n%c\r\n", *p);
        srig_puts(fd, piece);
    }
    srig_puts(fd, "0\r\nX-Trailer: a\r\n\r\n");
    assert_true(answer_read(fd, &a));
    close(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    srig_check_alive(&r);
    srig_close(&r);
}

/* B-047, Q63 */
static void test_b047_expect(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.so.api_key = "k";
    r.so.body_limit_bytes = 4 << 20;
    r.so.body_memory_bytes = 5 << 20;
    srig_start(&r);
    size_t n = 3 << 20;
    char *big = malloc(n + 1), head[512];
    memset(big, ' ', n);
    memcpy(big, "{" HI "}", strlen("{" HI "}"));
    static const struct { const char *path, *key; size_t len; int status; } rows[] = {
        { CHAT, "k", 3 << 20, 100 }, { CHAT, "wrong", 3 << 20, 401 }, { "/nope", "k", 3 << 20, 404 }, { CHAT, "k", 5 << 20, 413 } };
    for (size_t i = 0; i < 4; i++) {
        int fd = srig_connect(&r);
        snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nx-api-key: %s\r\nContent-Length: %zu\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
                 rows[i].path, rows[i].key, rows[i].len);
        srig_puts(fd, head);
        assert_true(answer_read(fd, &a));
        assert_int_equal(a.status, rows[i].status);
        answer_free(&a);
        if (rows[i].status == 100) {
            srig_send(fd, big, n);
            assert_true(answer_read(fd, &a));
            assert_int_equal(a.status, 200);
            answer_free(&a);
        }
        close(fd);
    }
    /* the same without Expect: the body is read, and the answer is not lost */
    http_post_n(&r, CHAT, "x-api-key: wrong\r\n", big, n, &a);
    assert_int_equal(a.status, 401);
    answer_free(&a);
    http_post_n(&r, "/nope", "x-api-key: k\r\n", big, n, &a);
    assert_int_equal(a.status, 404);
    answer_free(&a);
    /* chunked, larger than the limit */
    int fd = srig_connect(&r);
    srig_puts(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nx-api-key: k\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        srig_puts(fd, "100000\r\n");
        srig_send(fd, big, 0x100000);
        srig_puts(fd, "\r\n");
    }
    srig_puts(fd, "0\r\n\r\n");
    assert_true(answer_read(fd, &a));
    assert_int_equal(a.status, 413);
    answer_free(&a);
    close(fd);
    /* two large bodies do not fit the body memory together: 503 for the second */
    fd = srig_connect(&r);
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nx-api-key: k\r\nContent-Length: %zu\r\n\r\n", n);
    srig_puts(fd, head);
    srig_send(fd, big, n / 2);
    clock_sleep_ms(50);
    http_post_n(&r, CHAT, "x-api-key: k\r\n", big, n, &a);
    assert_int_equal(a.status, 503);
    answer_free(&a);
    close(fd);
    clock_sleep_ms(100);
    http_post_n(&r, CHAT, "x-api-key: k\r\n", big, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    free(big);
    srig_close(&r);
}

/* A gzip member that holds len bytes of text. */
static size_t gzip_member(char *out, size_t cap, const char *text, size_t len)
{
    z_stream z = { 0 };
    deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY);
    z.next_in = (unsigned char *)(uintptr_t)text;
    z.avail_in = (unsigned)len;
    z.next_out = (unsigned char *)out;
    z.avail_out = (unsigned)cap;
    deflate(&z, Z_FINISH);
    deflateEnd(&z);
    return cap - z.avail_out;
}

static void test_encoded_bodies(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char out[4096];
    const char *body = "{" HI "}";
    srig_open(&r, (const char *[]){ "hello", NULL });
    size_t n = gzip_member(out, sizeof out, body, strlen(body));
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n - 5, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    n = gzip_member(out, sizeof out, body, 9); /* several members are one body */
    n += gzip_member(out + n, sizeof out - n, body + 9, strlen(body) - 9);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n - 1, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", "not gzip", 8, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    n = ZSTD_compress(out, sizeof out, body, strlen(body), 3);
    http_post_n(&r, CHAT, "Content-Encoding: zstd\r\n", out, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: zstd\r\n", out, n - 3, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: br\r\n", out, n, &a);
    assert_int_equal(a.status, 415);
    answer_free(&a);
    /* a bomb: 300 MB of spaces */
    size_t big_n = 300u << 20, cap = ZSTD_compressBound(big_n);
    char *big = calloc(1, big_n), *packed = malloc(cap);
    n = ZSTD_compress(packed, cap, big, big_n, 1);
    http_post_n(&r, CHAT, "Content-Encoding: zstd\r\n", packed, n, &a);
    assert_int_equal(a.status, 413);
    answer_free(&a);
    free(big);
    free(packed);
    srig_check_alive(&r);
    srig_close(&r);
}

static void test_keep_alive(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", NULL });
    int fd = srig_connect(&r);
    for (int i = 0; i < 20; i++) {
        char req[512], body[256];
        snprintf(body, sizeof body, "{" HI "%s}", i % 2 ? ",\"stream\":true" : "");
        snprintf(req, sizeof req, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
        srig_puts(fd, req);
        assert_true(answer_read(fd, &a));
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    close(fd);
    srig_check_alive(&r);
    srig_close(&r);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b151_host), cmocka_unit_test(test_b154_cors),
        cmocka_unit_test(test_routes), cmocka_unit_test(test_b046_chunked),
        cmocka_unit_test(test_b047_expect), cmocka_unit_test(test_encoded_bodies),
        cmocka_unit_test(test_keep_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
