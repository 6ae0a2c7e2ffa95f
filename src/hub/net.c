/* net.c: see net.h. */
#include "hub/net.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hub/net_int.h"

#define RETRY_MAX_MS 8000
#define RETRY_AFTER_MAX_S 60

/* --- URLs --- */

const char *net_endpoint(const struct net_opts *o)
{
    return o->endpoint && *o->endpoint ? o->endpoint : NET_ENDPOINT;
}

mb_status net_check_endpoint(const char *endpoint, mb_error *err)
{
    bool http = strncmp(endpoint, "http://", 7) == 0, https = strncmp(endpoint, "https://", 8) == 0;
    if ((http || https) && strlen(endpoint) < 512 && endpoint[http ? 7 : 8] && !strpbrk(endpoint, " \t\r\n\"<>?#")) return MB_OK;
    return mb_fail(err, MB_INVALID, "HF_ENDPOINT must be a URL like https://hub.example.org, without a query");
}

/* The part of a URL that decides who gets the token: scheme, host and port, the default port written out. */
static bool origin_of(const char *url, char out[512])
{
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    bool ok = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK;
    if (ok) ok = snprintf(out, 512, "%s://%s:%s", scheme, host, port) < 512;
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return ok;
}

const char *net_token_for(const struct net_opts *o, const char *url)
{
    char a[512], b[512];
    if (!o->token || !*o->token || !origin_of(net_endpoint(o), a) || !origin_of(url, b)) return NULL;
    return strcasecmp(a, b) == 0 ? o->token : NULL;
}

mb_status net_redirect(const char *from, const char *location, char out[NET_URL_MAX], mb_error *err)
{
    CURLU *u = curl_url();
    char *full = NULL;
    out[0] = '\0';
    bool ok = u && *location && curl_url_set(u, CURLUPART_URL, from, 0) == CURLUE_OK &&
              curl_url_set(u, CURLUPART_URL, location, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_URL, &full, 0) == CURLUE_OK && strlen(full) < NET_URL_MAX;
    bool to_https = ok && strncasecmp(full, "https://", 8) == 0, to_http = ok && strncasecmp(full, "http://", 7) == 0;
    bool down = to_http && strncasecmp(from, "https://", 8) == 0;
    if (ok && (to_https || to_http) && !down) strcpy(out, full);
    curl_free(full);
    curl_url_cleanup(u);
    if (out[0]) return MB_OK;
    return mb_fail(err, MB_BAD_FORMAT, down ? "the hub redirects from https to http, which is refused"
                                            : "the hub redirects to an address that cannot be used");
}

/* s with everything percent-encoded that is not unreserved; slashes stay with keep_slash. */
static void append_encoded(struct buf *b, const char *s, bool keep_slash)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("-._~", c);
        if (plain || (keep_slash && c == '/')) buf_append_char(b, (char)c);
        else buf_printf(b, "%%%02X", c);
    }
}

static mb_status take_url(struct buf *b, char out[NET_URL_MAX], mb_error *err)
{
    mb_status st = buf_status(b, "URL", err);
    if (st == MB_OK) memcpy(out, b->data, b->len + 1);
    buf_free(b);
    return st;
}

static void begin_url(struct buf *b, const struct net_opts *o)
{
    const char *e = net_endpoint(o);
    size_t len = strlen(e);
    while (len > 0 && e[len - 1] == '/') len--;
    buf_init(b, NET_URL_MAX - 1);
    buf_append(b, e, len);
}

mb_status net_url_api(const struct net_opts *o, const char *kind, const char *repo, const char *verb, const char *revision,
                      const char *query, char out[NET_URL_MAX], mb_error *err)
{
    struct buf b;
    begin_url(&b, o);
    buf_printf(&b, "/api/%ss/", kind);
    append_encoded(&b, repo, true);
    buf_printf(&b, "/%s/", verb);
    append_encoded(&b, revision, false);
    buf_append_str(&b, query);
    return take_url(&b, out, err);
}

mb_status net_url_listing(const struct net_opts *o, const char *repo, const char *revision, char out[NET_URL_MAX], mb_error *err)
{
    return net_url_api(o, "model", repo, "revision", revision, "?blobs=true", out, err);
}

mb_status net_url_lfs(const struct net_opts *o, const char *kind, const char *repo, char out[NET_URL_MAX], mb_error *err)
{
    struct buf b;
    begin_url(&b, o);
    buf_append_char(&b, '/');
    if (strcmp(kind, "model") != 0) buf_printf(&b, "%ss/", kind);
    append_encoded(&b, repo, true);
    buf_append_str(&b, ".git/info/lfs/objects/batch");
    return take_url(&b, out, err);
}

mb_status net_url_create(const struct net_opts *o, char out[NET_URL_MAX], mb_error *err)
{
    struct buf b;
    begin_url(&b, o);
    buf_append_str(&b, "/api/repos/create");
    return take_url(&b, out, err);
}

mb_status net_url_file(const struct net_opts *o, const char *repo, const char *commit, const char *file, char out[NET_URL_MAX],
                       mb_error *err)
{
    struct buf b;
    begin_url(&b, o);
    buf_append_char(&b, '/');
    append_encoded(&b, repo, true);
    buf_append_str(&b, "/resolve/");
    append_encoded(&b, commit, false);
    buf_append_char(&b, '/');
    append_encoded(&b, file, true);
    return take_url(&b, out, err);
}

/* --- answers --- */

static bool header_is(const char *line, size_t len, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    if (len <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') return false;
    line += n + 1;
    len -= n + 1;
    while (len > 0 && (*line == ' ' || *line == '\t')) line++, len--;
    while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == '\n' || line[len - 1] == ' ')) len--;
    if (len >= cap) len = 0; /* too long to be meant for us */
    memcpy(out, line, len);
    out[len] = '\0';
    return true;
}

void net_take_header(struct net_answer *a, const char *line, size_t len)
{
    char text[32];
    if (len > 5 && strncasecmp(line, "HTTP/", 5) == 0) { /* a new answer begins (100 Continue, a proxy's) */
        char why[sizeof a->curl_text];
        memcpy(why, a->curl_text, sizeof why);
        *a = (struct net_answer){ 0 };
        memcpy(a->curl_text, why, sizeof why);
    }
    header_is(line, len, "x-error-code", a->code, sizeof a->code);
    header_is(line, len, "content-type", a->type, sizeof a->type);
    header_is(line, len, "location", a->location, sizeof a->location);
    header_is(line, len, "etag", a->etag, sizeof a->etag);
    header_is(line, len, "x-error-message", a->message, sizeof a->message);
    if (header_is(line, len, "retry-after", text, sizeof text)) a->retry_after_s = strtol(text, NULL, 10);
}

size_t net_on_header(char *data, size_t size, size_t n, void *answer)
{
    net_take_header(answer, data, size * n);
    return size * n;
}

bool net_is_temporary(const struct net_answer *a)
{
    return a->status == 0 || a->status == 408 || a->status == 429 || a->status >= 500;
}

int64_t net_delay_ms(const struct net_opts *o, const struct net_answer *a, int i_try)
{
    int64_t ms = o->retry_ms > 0 ? o->retry_ms : 250;
    for (int i = 0; i < i_try && ms < RETRY_MAX_MS; i++) ms *= 2;
    if (ms > RETRY_MAX_MS) ms = RETRY_MAX_MS;
    if (a->retry_after_s > 0 && a->retry_after_s <= RETRY_AFTER_MAX_S) ms = a->retry_after_s * 1000;
    return ms;
}

static mb_status fail_access(const struct net_opts *o, const struct net_answer *a, const char *repo, const char *what,
                             mb_error *err)
{
    const char *token = o->token && *o->token ? "the token in use may not read it" : "no token is set";
    if (strcmp(a->code, "GatedRepo") == 0)
        return mb_fail(err, MB_INVALID, "%s is gated (%ld): accept its terms at %s/%s in a browser, then set HF_TOKEN (or run hf "
                       "auth login); %s", what, a->status, net_endpoint(o), repo, token);
    return mb_fail(err, MB_INVALID, "%s: the hub refuses access (%ld): the repository does not exist, is private, or is gated (its "
                   "terms are at %s/%s); %s: set HF_TOKEN, or run hf auth login", what, a->status, net_endpoint(o), repo, token);
}

mb_status net_fail(const struct net_opts *o, const struct net_answer *a, const char *repo, const char *what, mb_error *err)
{
    if (a->status == 0)
        return mb_fail(err, MB_IO, "%s: cannot reach the hub at %s: %s", what, net_endpoint(o),
                       a->curl_text[0] ? a->curl_text : "no answer");
    if (a->status == 401 || a->status == 403) return fail_access(o, a, repo, what, err);
    if (a->status == 404 && strcmp(a->code, "RevisionNotFound") == 0)
        return mb_fail(err, MB_NOT_FOUND, "%s: the hub has no such revision", what);
    if (a->status == 404)
        return mb_fail(err, MB_NOT_FOUND, "%s: the hub at %s has no such model (404): check the spelling", what, net_endpoint(o));
    if (a->status == 429)
        return mb_fail(err, MB_IO, "%s: the hub asks for fewer requests (429): try again later, with HF_TOKEN set for more", what);
    if (a->status >= 500) return mb_fail(err, MB_IO, "%s: the hub at %s fails (%ld): try again later", what, net_endpoint(o), a->status);
    return mb_fail(err, MB_IO, "%s: the hub answered with status %ld", what, a->status);
}

/* --- requests --- */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_ready;

static void curl_begin(void)
{
    curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

mb_status net_init(mb_error *err)
{
    pthread_once(&curl_once, curl_begin);
    return curl_ready == CURLE_OK ? MB_OK : mb_fail(err, MB_INTERNAL, "libcurl does not start: %s", curl_easy_strerror(curl_ready));
}

mb_status net_prepare(CURL *c, const struct net_opts *o, const char *url, struct curl_slist **headers, mb_error *err)
{
    const char *token = net_token_for(o, url);
    char line[2048];
    *headers = NULL;
    if (token) {
        if (strlen(token) > 2000 || strpbrk(token, "\r\n")) return mb_fail(err, MB_INVALID, "the hub token cannot be one");
        snprintf(line, sizeof line, "Authorization: Bearer %s", token);
        *headers = curl_slist_append(NULL, line);
        if (!*headers) return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    }
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "mlx-bun/" MB_VERSION);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1); /* a file, a connection */
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)(o->connect_ms > 0 ? o->connect_ms : 20000));
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)(o->stall_s > 0 ? o->stall_s : 60));
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, net_on_header);
    return MB_OK;
}
