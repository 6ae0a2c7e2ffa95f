/* server_rig.h: the HTTP server over gen_rig, and a raw-socket client. Header-only. */
#ifndef TESTS_UNIT_SERVER_RIG_H
#define TESTS_UNIT_SERVER_RIG_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/json.h"
#include "gen_rig.h"
#include "server/server.h"

struct server_rig {
    struct gen_rig gen;
    struct server_options so;
    struct server *server;
    int port;
};

static inline void srig_start(struct server_rig *r)
{
    mb_error err = { 0 };
    rig_start(&r->gen);
    if (server_open(&r->server, &r->gen.client, &r->so, &err) != MB_OK) fail_msg("server_open: %s", err.text);
    r->port = server_port(r->server);
}

static inline void srig_open(struct server_rig *r, const char *const *pieces)
{
    memset(r, 0, sizeof *r);
    rig_init(&r->gen, pieces);
    r->so.shutdown_timeout_ms = 3000;
    srig_start(r);
}

static inline void srig_close(struct server_rig *r)
{
    server_close(r->server);
    rig_stop(&r->gen);
}

static inline int srig_connect(const struct server_rig *r)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)r->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval tv = { .tv_sec = 300 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) fail_msg("connect: %s", strerror(errno));
    return fd;
}

static inline void srig_send(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return; /* the server may have answered and closed */
        data += n;
        len -= (size_t)n;
    }
}
static inline void srig_puts(int fd, const char *s) { srig_send(fd, s, strlen(s)); }

struct answer {
    int status;
    char head[8192]; /* header lines */
    struct buf raw;  /* as received */
    char *body;      /* NUL-terminated, dechunked; points into raw */
    size_t len;
};

static inline const char *answer_header(const struct answer *a, const char *name, char out[512])
{
    size_t n = strlen(name);
    for (const char *p = a->head; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (strncasecmp(p, name, n) == 0 && p[n] == ':') {
            p += n + 1;
            while (*p == ' ') p++;
            snprintf(out, 512, "%.*s", (int)strcspn(p, "\r\n"), p);
            return out;
        }
    return NULL;
}

static inline bool dechunk(struct answer *a)
{
    char *in = a->body, *out = a->body, *end = a->body + a->len;
    for (;;) {
        char *eol = memchr(in, '\n', (size_t)(end - in));
        if (!eol) return false;
        size_t n = strtoul(in, NULL, 16);
        in = eol + 1;
        if (n == 0) break;
        if ((size_t)(end - in) < n + 2) return false;
        memmove(out, in, n);
        out += n;
        in += n + 2;
    }
    *out = '\0';
    a->len = (size_t)(out - a->body);
    return true;
}

/* Is the answer in raw complete? Fills a then. */
static inline bool answer_parse(struct answer *a, bool at_end)
{
    char tmp[512];
    char *end = a->raw.data ? strstr(a->raw.data, "\r\n\r\n") : NULL;
    if (!end) return false;
    size_t n_head = (size_t)(end - a->raw.data) + 4;
    snprintf(a->head, sizeof a->head, "%.*s", (int)n_head, a->raw.data);
    a->status = atoi(a->raw.data + 9);
    a->body = a->raw.data + n_head;
    a->len = a->raw.len - n_head;
    if (answer_header(a, "Transfer-Encoding", tmp)) {
        if (a->len < 5 || memcmp(a->raw.data + a->raw.len - 5, "0\r\n\r\n", 5) != 0) return false;
        return dechunk(a);
    }
    const char *cl = answer_header(a, "Content-Length", tmp);
    return cl ? at_end || a->len >= strtoul(cl, NULL, 10) /* at_end: HEAD has a length and no body */ : a->status == 100 || a->status == 204 || at_end;
}

static inline void answer_free(struct answer *a) { buf_free(&a->raw); }

/* Read one answer (an interim 100 is one too). False: the connection ended without one. */
static inline bool answer_read(int fd, struct answer *a)
{
    char chunk[65536];
    memset(a, 0, sizeof *a);
    buf_init(&a->raw, 0);
    for (;;) {
        ssize_t n = recv(fd, chunk, sizeof chunk, 0);
        if (n > 0) buf_append(&a->raw, chunk, (size_t)n);
        if (a->raw.data && answer_parse(a, n <= 0)) return true;
        if (n <= 0) return false;
    }
}

static inline void http_raw(const struct server_rig *r, const char *request, size_t len, struct answer *a)
{
    int fd = srig_connect(r);
    srig_send(fd, request, len);
    if (!answer_read(fd, a)) a->status = -1;
    close(fd);
}

static inline bool has_host(const char *headers)
{
    return headers && (strncasecmp(headers, "Host:", 5) == 0 || strcasestr(headers, "\nHost:"));
}

static inline void http_get(const struct server_rig *r, const char *method, const char *path, const char *headers, struct answer *a)
{
    char req[4096];
    bool host = !has_host(headers);
    snprintf(req, sizeof req, "%s %s HTTP/1.1\r\n%s%sConnection: close\r\n\r\n", method, path, host ? "Host: 127.0.0.1\r\n" : "",
             headers ? headers : "");
    http_raw(r, req, strlen(req), a);
}

static inline void http_post_n(const struct server_rig *r, const char *path, const char *headers, const char *body, size_t len,
                               struct answer *a)
{
    char head[2048];
    struct buf b;
    bool host = !has_host(headers);
    snprintf(head, sizeof head, "POST %s HTTP/1.1\r\n%s%sContent-Length: %zu\r\nConnection: close\r\n\r\n", path,
             host ? "Host: localhost\r\n" : "", headers ? headers : "", len);
    buf_init(&b, 0);
    buf_append_str(&b, head);
    buf_append(&b, body, len);
    http_raw(r, b.data, b.len, a);
    buf_free(&b);
}

static inline void http_post(const struct server_rig *r, const char *path, const char *body, struct answer *a)
{
    http_post_n(r, path, NULL, body, strlen(body), a);
}

static inline json_t *answer_json(const struct answer *a)
{
    json_t *v = NULL;
    mb_error err = { 0 };
    if (json_read(&v, a->body ? a->body : "", a->body ? a->len : 0, JSON_READ_ANY, &err) != MB_OK)
        fail_msg("not JSON (status %d): %s: %s", a->status, err.text, a->body ? a->body : "");
    return v;
}

/* "choices.0.message.content" */
static inline json_t *json_at(json_t *v, const char *path)
{
    char part[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(part)) : json_object_get(v, part);
        path += n + (path[n] == '.');
    }
    return v;
}
static inline const char *json_str_at(json_t *v, const char *path)
{
    const char *s = json_string_value(json_at(v, path));
    return s ? s : "(none)";
}
static inline int json_int_at(json_t *v, const char *path) { return (int)json_integer_value(json_at(v, path)); }

/* All events of a stream: content and reasoning joined, and the last chunk with a finish_reason. */
struct sse {
    struct buf content, reasoning;
    char finish[32], error[256];
    int n_chunks, n_comments, n_usage, completion_tokens;
    bool done, role;
};

static inline void sse_parse(const struct answer *a, struct sse *s)
{
    memset(s, 0, sizeof *s);
    buf_init(&s->content, 0);
    buf_init(&s->reasoning, 0);
    for (const char *p = a->body; p && *p;) {
        const char *end = strstr(p, "\n\n");
        if (!end) fail_msg("an event without its end: %s", p);
        if (*p == ':') {
            s->n_comments++;
        } else if (strncmp(p, "data: [DONE]", 12) == 0) {
            s->done = true;
        } else {
            assert_int_equal(strncmp(p, "data: ", 6), 0);
            assert_false(s->done);
            json_t *v = NULL;
            mb_error err = { 0 };
            if (json_read(&v, p + 6, (size_t)(end - p - 6), 0, &err) != MB_OK) fail_msg("chunk: %s", err.text);
            json_t *text = json_at(v, "choices.0.delta.content"), *th = json_at(v, "choices.0.delta.reasoning_content");
            if (!text) text = json_at(v, "choices.0.text");
            s->n_chunks++;
            if (json_int_at(v, "choices.0.index") != 0) text = th = NULL; /* another choice */
            if (json_at(v, "choices.0.delta.role")) s->role = true;
            if (text) buf_append(&s->content, json_string_value(text), json_string_length(text));
            if (th) buf_append(&s->reasoning, json_string_value(th), json_string_length(th));
            if (json_is_string(json_at(v, "choices.0.finish_reason")))
                snprintf(s->finish, sizeof s->finish, "%s", json_str_at(v, "choices.0.finish_reason"));
            if (json_at(v, "usage")) s->n_usage++, s->completion_tokens = json_int_at(v, "usage.completion_tokens");
            if (json_at(v, "error")) snprintf(s->error, sizeof s->error, "%s", json_str_at(v, "error.message"));
            json_decref(v);
        }
        p = end + 2;
    }
    buf_append(&s->content, "", 0);
    buf_append(&s->reasoning, "", 0);
}
static inline const char *sse_content(const struct sse *s) { return s->content.data ? s->content.data : ""; }
static inline const char *sse_reasoning(const struct sse *s) { return s->reasoning.data ? s->reasoning.data : ""; }
static inline void sse_free(struct sse *s)
{
    buf_free(&s->content);
    buf_free(&s->reasoning);
}

static inline void engine_stats_now(const struct server_rig *r, struct engine_stats *st)
{
    memset(st, 0, sizeof *st);
    r->gen.client.stats(r->gen.client.ctx, st);
}

/* Wait until the engine holds no row any more; how long it took in ms, or -1. */
static inline int64_t wait_no_rows(const struct server_rig *r, int64_t limit_ms)
{
    struct engine_stats st;
    int64_t t0 = clock_now_ns();
    do {
        engine_stats_now(r, &st);
        if (st.active_rows == 0 && st.pending_rows == 0 && st.parked_rows == 0) return (clock_now_ns() - t0) / 1000000;
        clock_sleep_ms(2);
    } while (clock_now_ns() - t0 < limit_ms * 1000000);
    return -1;
}

#define CHAT "/v1/chat/completions"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

/* A request is served, and the server says that it is well: how every test ends. */
static inline void srig_check_alive(struct server_rig *r)
{
    struct answer a;
    http_post(r, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":1}", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(r, "GET", "/health", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "{\"status\": \"ok\"}"); /* API-267 */
    answer_free(&a);
}

/* 400, with `part` in the message. */
static inline void srig_check_400(struct server_rig *r, const char *path, const char *body, const char *part)
{
    struct answer a;
    http_post(r, path, body, &a);
    json_t *v = answer_json(&a);
    if (a.status != 400 || !strstr(json_str_at(v, "error.message"), part))
        fail_msg("%s: status %d, %s", body, a.status, json_str_at(v, "error.message"));
    assert_true(json_is_string(json_at(v, "error.type")));
    json_decref(v);
    answer_free(&a);
}

#endif
