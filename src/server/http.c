/* http.c: the only file that knows libmicrohttpd (0.9.75): connections, headers, bodies, sending.
 *
 * One thread of the library (epoll, internal) runs everything here but http_resume_locked. A request that waits is
 * suspended; a suspended connection is blind, so its socket is in the pump's epoll. Errors that are known from the
 * headers are sent at once when the client waits for them (Expect: 100-continue) or sends no body, else after its body
 * has been read and thrown away, because closing with unread bytes would reset the connection and lose the answer.
 * Before the daemon stops every connection must have been resumed (server.c waits for all exchanges), else it aborts. */
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/threads.h"
#include "server/server_int.h"

#define DISCARD_MAX_BYTES ((size_t)16 << 20)   /* of a body that is not wanted */
#define BODY_BYTES_PER_MS 200                  /* the slowest sender we wait for, beyond 30 s */
#define STREAM_BLOCK_BYTES (32 * 1024)
#define INACTIVITY_S 120                       /* a client that takes nothing for so long is dropped */

void http_resume_locked(struct http_exchange *x)
{
    if (!x->suspended || !x->mhd) return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
}

static void suspend_locked(struct http_exchange *x)
{
    x->suspended = true;
    MHD_suspend_connection(x->mhd);
}

static const char *header(struct http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}

static void keep_query(struct http_exchange *x)
{
    static const char *const names[QUERY_N] = { [QUERY_ORDER] = "order", [QUERY_AFTER] = "after", [QUERY_LIMIT] = "limit" };
    for (int i = 0; i < QUERY_N; i++) {
        const char *v = MHD_lookup_connection_value(x->mhd, MHD_GET_ARGUMENT_KIND, names[i]);
        if (v) x->query[i] = mb_strdup(v);
    }
}

/* --- headers --- */
static enum MHD_Result count_header(void *ctx, enum MHD_ValueKind kind, const char *key, size_t key_len, const char *value,
                                    size_t value_len)
{
    (void)kind;
    census_add(ctx, key, key_len, value, value_len);
    return MHD_YES;
}

/* Answered at once and the connection closed, so that nothing behind it is taken for a request. */
static bool check_framing(struct http_exchange *x, const struct header_census *n, const char *method, const char *version)
{
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *why = census_fault(n, size ? method + size->header_size : NULL, version);
    if (!why) return true;
    x->close = true;
    http_reply_status(x, 400, NULL, NULL, why);
    return false;
}

static void set_request_id(struct http_exchange *x)
{
    const char *given = header(x, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    bool ok = n > 0 && n < sizeof x->request_id;
    for (size_t i = 0; ok && i < n; i++) ok = given[i] > ' ' && given[i] < 127;
    if (ok) {
        memcpy(x->request_id, given, n + 1);
        return;
    }
    uint8_t raw[12] = { 0 };
    if (getrandom(raw, sizeof raw, 0) < 0) memcpy(raw, &x, sizeof x);
    strcpy(x->request_id, "req_");
    for (size_t i = 0; i < sizeof raw; i++) snprintf(x->request_id + 4 + 2 * i, 3, "%02x", raw[i]);
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Percent-decode; NULL: not decodable, or a NUL in it. */
static char *decode_path(const char *s)
{
    size_t n = 0;
    char *out = mb_alloc(strlen(s) + 1);
    for (; out && *s; s++) {
        if (*s != '%') {
            out[n++] = *s;
            continue;
        }
        int hi = hex(s[1]), lo = hi < 0 ? -1 : hex(s[2]);
        if (lo < 0 || (hi == 0 && lo == 0)) {
            mb_free(out);
            return NULL;
        }
        out[n++] = (char)(hi * 16 + lo);
        s += 2;
    }
    if (out) out[n] = '\0';
    return out;
}

static bool preflight(struct http_exchange *x, const char *method)
{
    if (strcmp(method, "OPTIONS") != 0) return false;
    const char *wanted = header(x, "Access-Control-Request-Headers");
    struct buf none;
    buf_init(&none, 0);
    if (x->foreign_origin) {
        http_reply_status(x, 403, "origin_not_allowed", NULL, "this Origin is not allowed; see --allow-origin");
        return true;
    }
    x->preflight = header(x, "Access-Control-Request-Method") != NULL;
    if (wanted) x->preflight_headers = mb_strdup(wanted);
    strcpy(x->extra_name, "Allow");
    strcpy(x->extra_value, "GET, HEAD, POST, DELETE, OPTIONS");
    http_reply(x, 204, NULL, &none);
    return true;
}

static bool find_route(struct http_exchange *x, const char *method, const char *path)
{
    const char *rest = NULL;
    char allowed[64] = "", text[192];
    x->route = route_find(method, path, &rest, allowed);
    if (x->route && x->route->socket_only && !x->s->bound_unix) x->route = NULL;
    if (!x->route && allowed[0]) {
        strcpy(x->extra_name, "Allow");
        snprintf(x->extra_value, sizeof x->extra_value, "%s, OPTIONS", allowed);
        snprintf(text, sizeof text, "this path takes %s", allowed);
        http_reply_status(x, 405, "method_not_allowed", NULL, text);
        return false;
    }
    if (!x->route) {
        http_reply_status(x, 404, "not_found", NULL, "there is no such path; docs/routes.md lists them");
        return false;
    }
    if (rest && !(x->rest = decode_path(rest))) {
        http_reply_status(x, 400, NULL, NULL, "the path is not a valid percent-encoded text");
        return false;
    }
    return true;
}

/* Does a body follow, and how long is it (0 with *known false: unknown)? */
static bool body_expected(struct http_exchange *x, size_t *len, bool *known)
{
    const char *te = header(x, "Transfer-Encoding"), *cl = header(x, "Content-Length");
    *len = 0;
    *known = !te;
    if (te) return true;
    if (!cl) return false;
    *len = (size_t)strtoull(cl, NULL, 10);
    return *len > 0;
}

static bool check_body(struct http_exchange *x, size_t len, bool known)
{
    const char *te = header(x, "Transfer-Encoding"), *ce = header(x, "Content-Encoding");
    char text[128];
    if (te && strcasecmp(te, "chunked") != 0) {
        x->close = true;
        http_reply_status(x, 501, NULL, NULL, "the only Transfer-Encoding is chunked");
        return false;
    }
    size_t limit = body_limit(x);
    if (known && len > limit) {
        snprintf(text, sizeof text, "the body has %zu bytes, the limit is %zu", len, limit);
        http_reply_status(x, 413, "too_large", NULL, text);
        return false;
    }
    if (ce && strcasecmp(ce, "identity") != 0) {
        bool ok = strcasecmp(ce, "gzip") == 0 || strcasecmp(ce, "x-gzip") == 0 || strcasecmp(ce, "zstd") == 0;
        if (!ok) {
            http_reply_status(x, 415, NULL, NULL, "Content-Encoding may be gzip or zstd");
            return false;
        }
        strcpy(x->encoding, strcasecmp(ce, "zstd") == 0 ? "zstd" : "gzip");
    }
    return !known || body_book(x, len);
}

/* Everything that can be said from the headers alone; an answer is set when something is wrong. */
static void check_headers(struct http_exchange *x, const char *method, const char *path, const char *version, size_t len,
                          bool known)
{
    struct header_census n = { .end = version + strlen(version) };
    const char *host = header(x, "Host"), *expect = header(x, "Expect");
    MHD_get_connection_values_n(x->mhd, MHD_HEADER_KIND, count_header, &n);
    const char *trace = header(x, "x-mlx-bun-trace-id");
    x->dialect = route_dialect(path);
    if (trace) snprintf(x->trace_id, sizeof x->trace_id, "%s", trace);
    set_request_id(x);
    if (!check_framing(x, &n, method, version)) return;
    if (!host_check(x, host, n.n_hosts)) return;
    if (!origin_check(x, header(x, "Origin"), host)) return;
    if (preflight(x, method)) return;
    bool writes = strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0;
    if (x->foreign_origin && writes) {
        http_reply_status(x, 403, "origin_not_allowed", NULL,
                          "pages of this Origin may not send requests here; see --allow-origin");
        return;
    }
    if (!find_route(x, method, path)) return;
    if (!key_check(x, header(x, "Authorization"), header(x, "x-api-key"))) return;
    if (expect && strcasecmp(expect, "100-continue") != 0) {
        http_reply_status(x, 417, NULL, NULL, "the only expectation is 100-continue");
        return;
    }
    if (!check_body(x, len, known)) return;
    if (x->rest) keep_query(x);
    pthread_mutex_lock(&x->s->lock);
    bool stopping = x->s->stopping;
    pthread_mutex_unlock(&x->s->lock);
    if (stopping) http_reply_status(x, 503, "shutting_down", NULL, "the server is shutting down");
}

/* --- answers --- */
static void add(struct MHD_Response *r, const char *name, const char *value)
{
    if (value) MHD_add_response_header(r, name, value);
}

static void add_headers(struct http_exchange *x, struct MHD_Response *r)
{
    bool cors = x->cors_origin && (x->preflight || !x->route || x->route->cors == CORS_API);
    add(r, "Content-Type", x->content_type);
    add(r, "x-request-id", x->request_id);
    if (x->extra_name[0]) add(r, x->extra_name, x->extra_value);
    if (x->warning[0]) add(r, "Warning", x->warning);
    if (x->stream_open) add(r, "Cache-Control", "no-cache"), add(r, "X-Accel-Buffering", "no");
    add(r, "Vary", "Origin");
    if (!cors) return;
    add(r, "Access-Control-Allow-Origin", x->cors_origin);
    add(r, "Access-Control-Expose-Headers", "x-request-id, retry-after, warning");
    if (!x->preflight) return;
    add(r, "Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE, OPTIONS");
    add(r, "Access-Control-Allow-Headers", x->preflight_headers ? x->preflight_headers : "*");
    add(r, "Access-Control-Max-Age", "600");
    if (header(x, "Access-Control-Request-Private-Network")) add(r, "Access-Control-Allow-Private-Network", "true");
}

/* The library asks for bytes of a stream. */
static ssize_t read_stream(void *ctx, uint64_t pos, char *to, size_t max)
{
    struct http_exchange *x = ctx;
    ssize_t got = 0;
    bool wake = false;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    size_t n = x->out.len - x->out_off;
    if (n > max) n = max;
    if (n > 0) {
        memcpy(to, x->out.data + x->out_off, n);
        x->out_off += n;
        got = (ssize_t)n;
        x->out_flowed = true;
        x->queued_known = false;
        if (x->out_off == x->out.len) x->out_off = x->out.len = 0;
        wake = x->out_blocked && x->out.len - x->out_off < OUT_LOW_BYTES;
        if (wake) x->out_blocked = false;
    } else if (x->out.failed) {
        got = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (x->stream_end) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        suspend_locked(x);
    }
    pthread_mutex_unlock(&x->lock);
    if (wake) pump_wake(x);
    return got;
}

static void free_stream(void *ctx)
{
    exchange_unref(ctx);
}

static struct MHD_Response *make_response(struct http_exchange *x)
{
    if (x->stream_open) {
        exchange_ref(x);
        struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, read_stream, x,
                                                                   free_stream);
        if (!r) exchange_unref(x);
        return r;
    }
    size_t len = x->reply.len;
    if (len == 0) return MHD_create_response_from_buffer(0, (void *)"", MHD_RESPMEM_PERSISTENT);
    char *data = buf_take(&x->reply, &len);
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(len, data, mb_free);
    if (!r) mb_free(data);
    return r;
}

static enum MHD_Result answer(struct http_exchange *x)
{
    struct MHD_Response *r = make_response(x);
    if (!r) return MHD_NO;
    add_headers(x, r);
    pthread_mutex_lock(&x->s->lock);
    if (x->s->stopping || x->close) MHD_add_response_header(r, "Connection", "close");
    pthread_mutex_unlock(&x->s->lock);
    x->answered = true;
    exchange_count(x->s, x->status);
    enum MHD_Result ok = MHD_queue_response(x->mhd, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return ok;
}

static bool has_answer(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool yes = x->reply_ready || x->stream_open;
    pthread_mutex_unlock(&x->lock);
    return yes;
}

/* --- one request --- */
static int64_t body_deadline_ms(const struct http_exchange *x, size_t len, bool known)
{
    int64_t most = x->route && x->route->deadline_s ? (int64_t)x->route->deadline_s * 1000 : 30000;
    int64_t fair = 30000 + (int64_t)(len / BODY_BYTES_PER_MS);
    return known && fair < most ? fair : most;
}

static enum MHD_Result begin(struct server *s, struct MHD_Connection *c, const char *path, const char *method,
                             const char *version, void **con)
{
    struct http_exchange *x = exchange_new(s);
    size_t len;
    bool known;
    if (!x) return MHD_NO;
    *con = x;
    x->mhd = c;
    x->chunked = strcmp(version, "HTTP/1.1") == 0;
    x->conn = *(void **)MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    x->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    bool body = body_expected(x, &len, &known);
    check_headers(x, method, path, version, len, known);
    conn_set(s, x->conn, CONN_BODY, body_deadline_ms(x, len, known));
    if (!has_answer(x)) return MHD_YES;
    if (!body || x->close || header(x, "Expect") || (known && len > DISCARD_MAX_BYTES)) return answer(x);
    x->discard = true;
    return MHD_YES;
}

static enum MHD_Result receive(struct http_exchange *x, const char *data, size_t len)
{
    size_t limit = body_limit(x);
    if (!x->discard && x->body.len + len > limit) {
        char text[96];
        snprintf(text, sizeof text, "the body is larger than %zu bytes", limit);
        http_reply_status(x, 413, "too_large", NULL, text);
        x->discard = true;
    }
    if (!x->discard && !body_book(x, x->body.len + len)) x->discard = true;
    if (x->discard) {
        if (x->body.data) buf_free(&x->body), buf_init(&x->body, 0), body_lower(x, 0);
        x->n_discarded += len;
        return x->n_discarded > DISCARD_MAX_BYTES ? MHD_NO : MHD_YES;
    }
    buf_append(&x->body, data, len);
    if (!x->body.failed) return MHD_YES;
    http_reply_status(x, 503, "no_memory", NULL, "no memory for the body");
    x->discard = true;
    return MHD_YES;
}

/* Not answered on this thread. */
static bool is_pending(struct http_exchange *x)
{
    return x->route->queue != QUEUE_NONE || proxy_takes(x);
}

static enum MHD_Result dispatch(struct http_exchange *x)
{
    x->dispatched = true;
    conn_set(x->s, x->conn, CONN_BUSY, 0);
    if (!is_pending(x)) {
        x->route->handle(x);
        return has_answer(x) ? answer(x) : MHD_NO;
    }
    pthread_mutex_lock(&x->lock);
    suspend_locked(x);
    pthread_mutex_unlock(&x->lock);
    pump_watch(x);
    if (!work_push(x)) http_reply_status(x, 429, "queue_full", NULL, "too many requests wait already; try again later");
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *data, size_t *len, void **con)
{
    struct http_exchange *x = *con;
    if (!x) {
        return begin(cls, c, path, method, version, con);
    }
    if (*len > 0) {
        enum MHD_Result ok = receive(x, data, *len);
        *len = 0;
        return ok;
    }
    if (x->answered) return MHD_YES;
    if (has_answer(x)) {
        if (!x->dispatched) conn_set(x->s, x->conn, CONN_BUSY, 0);
        return answer(x);
    }
    if (x->dispatched) return MHD_YES;
    /* The library calls once more at once. A connection that is suspended in the call that saw the last byte is read from when it
     * goes on, before the answer is asked for, and a FIN found then ends it: B-043 d would not hold. */
    if (!x->settled && is_pending(x)) {
        x->settled = true;
        return MHD_YES;
    }
    return dispatch(x);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con, enum MHD_RequestTerminationCode why)
{
    struct http_exchange *x = *con;
    struct server *s = cls;
    (void)c;
    (void)why;
    if (!x) return;
    *con = NULL;
    pthread_mutex_lock(&x->lock);
    x->mhd = NULL;
    x->suspended = false;
    x->gone = true;
    pthread_mutex_unlock(&x->lock);
    conn_set(s, x->conn, CONN_IDLE, s->opt.idle_timeout_ms);
    x->conn = NULL;
    if (pump_unwatch(x)) pump_wake(x); /* drops the watch's reference, and the generation if it still runs */
    exchange_unref(x);
}

/* --- connections --- */
static bool peer_is_local(struct MHD_Connection *c)
{
    const struct sockaddr *a = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    if (!a) return false;
    if (a->sa_family == AF_UNIX) return true;
    if (a->sa_family == AF_INET) return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family != AF_INET6) return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

static void on_connection(void *cls, struct MHD_Connection *c, void **ctx, enum MHD_ConnectionNotificationCode code)
{
    struct server *s = cls;
    static _Thread_local bool lowered;
    if (!lowered) { /* the library made this thread; the compute threads come first */
        lowered = true;
        threads_set_name("http");
        threads_lower_priority();
    }
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *ctx = conn_add(s, MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd, peer_is_local(c));
    } else if (*ctx) {
        conn_remove(s, *ctx);
        *ctx = NULL;
    }
}

static size_t keep_escaped(void *cls, struct MHD_Connection *c, char *s)
{
    (void)cls;
    (void)c;
    return strlen(s);
}

static void on_log(void *cls, const char *fmt, va_list ap)
{
    char text[256];
    (void)cls;
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    LOGD("http", "%s", text);
}

mb_status http_start(struct server *s, mb_error *err)
{
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s,
                                 MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
                                 MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
                                 MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
                                 MHD_OPTION_UNESCAPE_CALLBACK, keep_escaped, NULL,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->max_conns + 16,
                                 MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)INACTIVITY_S,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONN_POOL_BYTES,
                                 MHD_OPTION_END);
    return s->daemon ? MB_OK : mb_fail(err, MB_IO, "the HTTP server did not start");
}

void http_quiesce(struct server *s)
{
    /* Nobody is let in from here on. The descriptor stays until the daemon's thread is gone (listen_close), which may still take it
     * out of its epoll set. */
    MHD_socket fd = MHD_quiesce_daemon(s->daemon);
    if (fd >= 0) shutdown(fd, SHUT_RDWR);
}

void http_stop(struct server *s)
{
    if (s->daemon) MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}
