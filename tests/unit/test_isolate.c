/* test_isolate.c: the parts of --isolate that need no process: an engine's answer read in pieces, the store at the other end of a
 * socket, when a dead engine is started again, a body's member without a tree, the last event of a broken stream.
 * tests/http/test_isolate.py has the processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/api.h"
#include "host/engine_process.h"
#include "host/response_wire.h"
#include "server/upstream.h"

/* --- upstream --- */
static enum upstream_state feed(const char *text, size_t piece, int *status, struct buf *body, char type[64])
{
    struct upstream u;
    upstream_init(&u);
    for (size_t at = 0, n = strlen(text); at < n; at += piece) upstream_feed(&u, text + at, n - at < piece ? n - at : piece, body);
    *status = u.status;
    upstream_header(&u, "content-type", type, 64);
    enum upstream_state state = u.state;
    upstream_free(&u);
    return state;
}

/* API-364 */
static void test_answers_in_pieces(void **state)
{
    static const struct { const char *text; enum upstream_state end; int status; const char *body, *type; } rows[] = {
        { "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type:  a/b \r\n\r\nhello", UP_DONE, 200, "hello", "a/b " },
        { "HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\nmore", UP_DONE, 204, "", "" },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\nmore", UP_DONE, 200, "hello!", "" },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\nA: b\r\n\r\n", UP_DONE, 200, "0123456789", "" },
        { "HTTP/1.1 503 X\r\nContent-Length: 9\r\n\r\nhell", UP_LENGTH, 503, "hell", "" }, /* died: not whole */
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe", UP_CHUNK, 200, "he", "" },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", UP_TRAILER, 200, "hello", "" },
        { "HTTP/1.1 200 OK\r\n\r\nbody until the end", UP_BROKEN, 200, "", "" }, /* could not be told from a death */
        { "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", UP_BROKEN, 0, "", "" },
        { "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx", UP_BROKEN, 200, "", "" },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", UP_BROKEN, 200, "", "" },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab", UP_BROKEN, 200, "a", "" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t piece = 1; piece < 90; piece++) {
            struct buf body;
            char type[64];
            int status;
            buf_init(&body, 0);
            enum upstream_state end = feed(rows[i].text, piece, &status, &body, type);
            bool cut = rows[i].end == UP_BROKEN && end == UP_CHUNK_END; /* the line that breaks it is not whole */
            if ((end != rows[i].end && !cut) || status != rows[i].status) fail_msg("row %zu, pieces of %zu: state %d, status %d", i, piece, end, status);
            assert_string_equal(body.data ? body.data : "", rows[i].body);
            assert_string_equal(type, rows[i].type);
            buf_free(&body);
        }
    }
}

static void test_endless_head(void **state)
{
    struct upstream u;
    struct buf body;
    char line[] = "A: bcdefghijklmnopqrstuvwxyz\r\n";
    (void)state;
    buf_init(&body, 0);
    upstream_init(&u);
    upstream_feed(&u, "HTTP/1.1 200 OK\r\n", 17, &body);
    for (int i = 0; i < 10000; i++) upstream_feed(&u, line, sizeof line - 1, &body);
    assert_int_equal(u.state, UP_BROKEN);
    assert_true(u.head.len <= UPSTREAM_HEAD_MAX);
    upstream_free(&u);
    buf_free(&body);
}

/* --- the store at the other end --- */
struct host { int fd; struct response_store *store; char id[64], entry[64]; bool ok; };

static void on_ready(void *ctx, struct str id, struct str entry)
{
    struct host *h = ctx;
    memcpy(h->id, id.ptr, id.len);
    memcpy(h->entry, entry.ptr, entry.len);
}

static void *host_main(void *ctx)
{
    struct host *h = ctx;
    struct wire_host w;
    wire_host_open(&w, h->fd);
    do {
        struct pollfd p = { .fd = h->fd, .events = (short)(POLLIN | (wire_host_is_full(&w) ? POLLOUT : 0)) };
        poll(&p, 1, -1);
    } while ((h->ok = wire_host_step(&w, h->store, on_ready, h)));
    wire_host_close(&w);
    return NULL;
}

static void open_pair(struct host *h, int fds[2], pthread_t *thread)
{
    *h = (struct host){ .fd = -1 };
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    h->fd = fds[0];
    assert_int_equal(response_store_open(&h->store, NULL, NULL), MB_OK);
    assert_int_equal(pthread_create(thread, NULL, host_main, h), 0);
}

/* API-250: the calls of a store, through a socket: the same results, texts and ceilings; large ones too. */
static void test_store_elsewhere(void **state)
{
    struct host h;
    struct response_store *s;
    struct response_store_stats st;
    pthread_t thread;
    int fds[2];
    mb_error err = { 0 }, here = { 0 };
    size_t large = (size_t)20 << 20;
    char *text = malloc(large);
    (void)state;
    memset(text, 'x', large);
    open_pair(&h, fds, &thread);
    assert_int_equal(wire_ready(fds[1], "org/model", STR_LIT("{}"), &err), MB_OK);
    assert_int_equal(response_store_open_at(&s, fds[1], &err), MB_OK);
    const struct str parts[RESPONSE_N_PARTS] = { { text, large }, STR_LIT("[1]"), STR_LIT("[2]"), { NULL, 0 } };
    assert_int_equal(response_store_put(s, "resp_a", parts, &err), MB_OK);
    struct buf object, input;
    buf_init(&object, 0);
    buf_init(&input, 0);
    struct buf *wanted[RESPONSE_N_PARTS] = { [RESPONSE_OBJECT] = &object, [RESPONSE_INPUT] = &input };
    assert_int_equal(response_store_get(s, "resp_a", wanted, &err), MB_OK);
    assert_int_equal(object.len, large);
    assert_memory_equal(object.data, text, large);
    assert_string_equal(input.data, "[1]");
    assert_int_equal(response_store_get(s, "resp_b", wanted, &err), MB_NOT_FOUND);
    assert_int_equal(response_store_get(h.store, "resp_b", wanted, &here), MB_NOT_FOUND);
    assert_string_equal(err.text, here.text);
    response_store_stats(s, &st);
    assert_int_equal(st.entries, 1);
    assert_true(st.bytes > large && st.max_bytes == RESPONSE_STORE_MAX_BYTES);
    const struct str huge[RESPONSE_N_PARTS] = { { text, large }, { text, large }, { NULL, 0 }, { NULL, 0 } };
    assert_int_equal(response_store_put(s, "resp_c", huge, &err), MB_TOO_LARGE);
    assert_true(response_store_delete(s, "resp_a"));
    assert_false(response_store_delete(s, "resp_a"));
    close(fds[1]);
    pthread_join(thread, NULL);
    assert_string_equal(h.id, "org/model");
    assert_string_equal(h.entry, "{}");
    close(fds[0]);
    response_store_close(s);
    response_store_close(h.store);
    buf_free(&object);
    buf_free(&input);
    free(text);
}

/* The other end breaks the rules, or is gone: an error, no wait, no crash. */
static void test_wire_is_not_trusted(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct host h;
        pthread_t thread;
        int fds[2];
        struct wire_head head = { .op = i == 0 ? 99 : WIRE_PUT };
        if (i == 1) head.len[2] = (uint64_t)1 << 60;
        if (i == 2)
            for (int k = 0; k < WIRE_N_TEXTS; k++) head.len[k] = WIRE_MAX_BYTES / 2;
        open_pair(&h, fds, &thread);
        assert_int_equal(write(fds[1], &head, sizeof head), sizeof head);
        pthread_join(thread, NULL);
        assert_false(h.ok);
        close(fds[0]);
        struct response_store *s;
        mb_error err = { 0 };
        const struct str parts[RESPONSE_N_PARTS] = { STR_LIT("{}"), STR_LIT("[]"), STR_LIT("[]"), { NULL, 0 } };
        assert_int_equal(response_store_open_at(&s, fds[1], &err), MB_OK);
        assert_int_equal(response_store_put(s, "resp_a", parts, &err), MB_IO);
        assert_false(response_store_delete(s, "resp_a"));
        response_store_close(s);
        close(fds[1]);
        response_store_close(h.store);
    }
}

/* --- API-367, ENG-213, ENG-214 --- */
static void test_restarts(void **state)
{
    const int64_t s = 1000000000;
    struct restarts r = { .n = 0 };
    (void)state;
    assert_int_equal(restarts_next(&r, 0, 20 * s), 20 * s);                /* at once: it had lived long */
    assert_int_equal(restarts_next(&r, 20 * s, 29 * s), 34 * s);           /* died within ten seconds: five later */
    assert_int_equal(restarts_next(&r, 34 * s, 44 * s), 44 * s);           /* ten seconds are long */
    assert_int_equal(restarts_next(&r, 44 * s, 79 * s), -1);               /* the fourth within a minute of the first */
    assert_int_equal(r.n, 3);
    assert_int_equal(restarts_next(&r, 44 * s, 80 * s), 80 * s);           /* the first was a minute ago */
    assert_int_equal(restarts_next(&r, 80 * s, 93 * s), -1);
    assert_int_equal(restarts_next(&r, 80 * s, 94 * s), 94 * s);
    assert_int_equal(r.n, 5);
}

/* --- API-369 --- */
static void test_peek(void **state)
{
    static const struct { const char *body, *model; } rows[] = {
        { "{\"model\":\"a/b\"}", "a/b" }, { " {\r\n\"messages\" : [{\"model\":\"no\"}, \"]}\\\"\", 1e3, null], \"model\"\t: \"yes\" , \"x\":", "yes" },
        { "{\"mod\\u0065l\":\"a\\u002fb\\n\"}", "a/b\n" }, { "{\"a\":{\"model\":\"no\"},\"b\":true}", NULL }, { "{\"model\":7}", NULL },
        { "{\"model\":null}", NULL }, { "[\"model\",\"x\"]", NULL }, { "", NULL }, { "{", NULL }, { "{\"model\":\"a", NULL }, { "{\"model\"", NULL },
        { "{\"a\":]}", NULL }, { "{\"a\":\"\\", NULL }, { "{\"model\":\"a\\u0000b\"}", NULL }, { "{\"model\":\"\"}", "" },
        { "{\"model\":\"12345678901234567890123456789012345678901234567890123456789012345\"}", NULL }, { "{\"model\":\"\\ud800\"}", NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char got[64] = "";
        size_t len = strlen(rows[i].body);
        char *body = malloc(len + 1); /* of its very size: sanitizers see a read beyond it */
        memcpy(body, rows[i].body, len);
        body = realloc(body, len ? len : 1);
        bool found = api_peek_string(body, len, "model", got, sizeof got);
        if (found != (rows[i].model != NULL) || (found && strcmp(got, rows[i].model) != 0)) fail_msg("%s: %s", rows[i].body, found ? got : "none");
        free(body);
    }
}

/* API-365: the form in which each dialect's clients take an error in a stream. */
static void test_broken_streams(void **state)
{
    static const struct { const struct api_dialect *d; const char *begin, *part, *end; } rows[] = {
        { NULL, "data: {\"error\": {", "\"type\": \"engine_unavailable\"", "}\n\ndata: [DONE]\n\n" },
        { &api_openai_chat, "data: {\"error\": {", "\"code\": \"engine_unavailable\"", "}\n\ndata: [DONE]\n\n" },
        { &api_anthropic, "event: error\ndata: {\"type\": \"error\"", "\"type\": \"engine_unavailable\"", "}}\n\n" },
        { &api_responses, "event: error\ndata: {\"type\": \"error\"", "\"sequence_number\": 7", "}\n\n" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf b;
        buf_init(&b, 0);
        api_stream_broken(&b, rows[i].d, 7, 502, "engine_unavailable", "it \"died\"");
        assert_int_equal(strncmp(b.data, rows[i].begin, strlen(rows[i].begin)), 0);
        assert_non_null(strstr(b.data, rows[i].part));
        assert_non_null(strstr(b.data, "it \\\"died\\\""));
        assert_string_equal(b.data + b.len - strlen(rows[i].end), rows[i].end);
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_in_pieces), cmocka_unit_test(test_endless_head), cmocka_unit_test(test_store_elsewhere),
        cmocka_unit_test(test_wire_is_not_trusted), cmocka_unit_test(test_restarts), cmocka_unit_test(test_peek),
        cmocka_unit_test(test_broken_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
