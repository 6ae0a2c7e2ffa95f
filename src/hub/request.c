/* request.c: one request to the hub and its whole answer (net.h): the body out of memory or out of a file, redirects, retries.
 * What comes as a stream into a file is fetch.c's. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "hub/listing.h"
#include "hub/net_int.h"

#define WAIT_SLICE_MS 50
#define UNREACHABLE_RETRIES 2 /* without a network nobody wants to wait for the answer that there is none */
#define HEADERS_MAX 16
#define UPLOAD_BUFFER_BYTES (512L * 1024)

/* A try. */
struct asking {
    const struct net_request *r;
    struct buf *body;
    int64_t at;                  /* of the request's body: the next byte to send */
    bool was_short;              /* the file ended before `len`, or */
    int read_errno;              /* could not be read */
    bool moved;                  /* bytes went out: somebody is there */
    bool elsewhere;              /* after a redirect: `headers` were not meant for that address */
};

static bool is_going(const struct net_request *r, int64_t sent)
{
    return !r->going || r->going(r->ctx, sent);
}

/* --- callbacks of libcurl --- */

static int on_progress(void *asking, curl_off_t dt, curl_off_t dn, curl_off_t ut, curl_off_t un)
{
    struct asking *k = asking;
    (void)dt, (void)dn, (void)ut;
    if (un > 0) k->moved = true;
    return !is_going(k->r, (int64_t)un);
}

static size_t on_body(char *data, size_t size, size_t n, void *asking)
{
    struct buf *b = ((struct asking *)asking)->body;
    buf_append(b, data, size * n);
    return b->failed == MB_OK ? size * n : 0;
}

static size_t on_read(char *out, size_t size, size_t n, void *asking)
{
    struct asking *k = asking;
    int64_t left = k->r->len - k->at;
    size_t cap = size * n;
    if (left <= 0) return 0;
    if ((int64_t)cap > left) cap = (size_t)left;
    ssize_t got = (ssize_t)cap;
    if (k->r->data) memcpy(out, (const char *)k->r->data + k->at, cap);
    else got = pread(k->r->fd, out, cap, k->r->off + k->at);
    k->was_short = got == 0;
    k->read_errno = got < 0 ? errno : 0;
    if (got <= 0) return CURL_READFUNC_ABORT;
    k->at += got;
    return (size_t)got;
}

static int on_seek(void *asking, curl_off_t off, int origin)
{
    if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    ((struct asking *)asking)->at = off;
    return CURL_SEEKFUNC_OK;
}

/* --- a try --- */

static bool add_header(struct curl_slist **headers, const char *name, const char *value)
{
    char line[4096];
    if (!value) return true;
    if (strpbrk(name, "\r\n:") || strpbrk(value, "\r\n") || snprintf(line, sizeof line, "%s: %s", name, value) >= (int)sizeof line)
        return true; /* no header; what it was for will say so */
    struct curl_slist *more = curl_slist_append(*headers, line);
    if (more) *headers = more;
    return more != NULL;
}

/* Besides the token, which is there already; an Authorization of LFS takes its place. */
static bool add_headers(struct curl_slist **headers, const struct asking *k)
{
    const struct net_request *r = k->r;
    const json_t *more = k->elsewhere ? NULL : r->headers;
    const char *name;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)more, name, value)
        if (strcasecmp(name, "authorization") == 0) {
            curl_slist_free_all(*headers);
            *headers = NULL;
        }
    bool ok = add_header(headers, "Content-Type", r->type) && add_header(headers, "Accept", r->accept);
    json_object_foreach((json_t *)more, name, value)
        if (ok && json_is_text(value) && n++ < HEADERS_MAX) ok = add_header(headers, name, json_string_value(value));
    if (ok && r->method) { /* no "Expect: 100-continue", which some proxies leave unanswered */
        struct curl_slist *longer = curl_slist_append(*headers, "Expect:");
        ok = longer != NULL;
        if (longer) *headers = longer;
    }
    return ok;
}

static void set_body(CURL *c, struct asking *k)
{
    const struct net_request *r = k->r;
    if (!r->method) return;
    curl_easy_setopt(c, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method);
    curl_easy_setopt(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->len);
    curl_easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE, UPLOAD_BUFFER_BYTES);
    curl_easy_setopt(c, CURLOPT_READFUNCTION, on_read);
    curl_easy_setopt(c, CURLOPT_READDATA, k);
    curl_easy_setopt(c, CURLOPT_SEEKFUNCTION, on_seek);
    curl_easy_setopt(c, CURLOPT_SEEKDATA, k);
}

/* What became of the transfer; a server may refuse a body (413, 401) before it has read it and hang up. */
static mb_status take_result(CURL *c, CURLcode result, const struct asking *k, const char *why, struct net_answer *a, mb_error *err)
{
    long status = 0;
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    a->status = result == CURLE_OK || (k->r->method && status >= 400) ? status : 0;
    if (a->status) return MB_OK;
    snprintf(a->curl_text, sizeof a->curl_text, "%s", why[0] ? why : curl_easy_strerror(result));
    if (k->read_errno) return mb_fail(err, MB_IO, "a file cannot be read while it is sent: %s", strerror(k->read_errno));
    if (k->was_short) return mb_fail(err, MB_IO, "a file became shorter while it was sent");
    if (result == CURLE_ABORTED_BY_CALLBACK) return mb_fail(err, MB_CANCELLED, "cancelled");
    if (result == CURLE_WRITE_ERROR) return buf_status(k->body, "the hub's answer", err);
    return MB_OK;
}

/* One request, without redirects or retries. A hub that cannot be reached is MB_OK with status 0. */
static mb_status ask_once(const struct net_opts *o, const char *url, struct asking *k, struct net_answer *a, mb_error *err)
{
    char why[CURL_ERROR_SIZE] = "";
    struct curl_slist *headers = NULL;
    CURL *c = curl_easy_init();
    *a = (struct net_answer){ 0 };
    k->at = 0;
    if (!c) return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    mb_status st = net_prepare(c, o, url, &headers, err);
    if (st == MB_OK && !add_headers(&headers, k)) st = mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    if (st == MB_OK) {
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(c, CURLOPT_ERRORBUFFER, why);
        curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, k);
        curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "");
        curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
        curl_easy_setopt(c, CURLOPT_XFERINFODATA, k);
        curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
        set_body(c, k);
        st = take_result(c, curl_easy_perform(c), k, why, a, err);
    }
    curl_easy_cleanup(c);
    curl_slist_free_all(headers);
    return st;
}

/* 301 to 303 make a GET of what had a body: no answer to it. */
static bool is_followed(long status, bool has_body)
{
    return status == 307 || status == 308 || (!has_body && (status == 301 || status == 302 || status == 303));
}

static mb_status ask_following(const struct net_opts *o, struct asking *k, struct net_answer *a, mb_error *err)
{
    char here[NET_URL_MAX], next[NET_URL_MAX];
    snprintf(here, sizeof here, "%s", k->r->url);
    for (int i = 0; i <= NET_HOPS_MAX; i++) {
        buf_clear(k->body);
        k->elsewhere = i > 0;
        MB_TRY(ask_once(o, here, k, a, err));
        if (!is_followed(a->status, k->r->method != NULL)) return MB_OK;
        MB_TRY(net_redirect(here, a->location, next, err));
        strcpy(here, next);
    }
    return mb_fail(err, MB_BAD_FORMAT, "the hub redirects more than %d times", NET_HOPS_MAX);
}

mb_status net_wait(int64_t ms, const struct net_request *r, mb_error *err)
{
    for (; ms > 0; ms -= WAIT_SLICE_MS) {
        if (!is_going(r, 0)) return mb_fail(err, MB_CANCELLED, "cancelled");
        clock_sleep_ms(ms < WAIT_SLICE_MS ? ms : WAIT_SLICE_MS);
    }
    return MB_OK;
}

mb_status net_ask(const struct net_opts *o, const struct net_request *r, struct net_answer *a, struct buf *body, mb_error *err)
{
    struct asking k = { .r = r, .body = body };
    int retries = r->only_once ? -1 : o->retries == 0 ? 5 : o->retries;
    *a = (struct net_answer){ 0 };
    MB_TRY(net_init(err));
    for (int i = 0;; i++) {
        MB_TRY(ask_following(o, &k, a, err));
        if (!net_is_temporary(a) || i >= retries || (a->status == 0 && !k.moved && i >= UNREACHABLE_RETRIES)) return MB_OK;
        MB_TRY(net_wait(net_delay_ms(o, a, i), r, err));
    }
}

/* --- JSON --- */

mb_status net_read_json(const struct net_answer *a, const struct buf *body, const char *what, json_t **out, mb_error *err)
{
    mb_error why;
    if (json_read(out, body->data ? body->data : "", body->len, JSON_READ_DEFAULT, &why) == MB_OK) {
        if (json_is_object(*out)) return MB_OK;
        json_decref(*out);
        *out = NULL;
        return mb_fail(err, MB_BAD_FORMAT, "%s: the hub answered with a JSON list, wanted is an object", what);
    }
    if (why.code == MB_NO_MEMORY) return mb_fail(err, MB_NO_MEMORY, "%s: %s", what, why.text);
    if (strncasecmp(a->type, "text/html", 9) == 0)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the answer is an HTML page, not JSON: a proxy or a login page stands before the hub",
                       what);
    return mb_fail(err, MB_BAD_FORMAT, "%s: the hub's answer is not JSON: %s", what, why.text);
}

struct asked {
    bool (*cancelled)(void *ctx);
    void *ctx;
};

static bool not_cancelled(void *asked, int64_t sent_bytes)
{
    const struct asked *a = asked;
    (void)sent_bytes;
    return !a->cancelled || !a->cancelled(a->ctx);
}

mb_status net_get_json(const struct net_opts *o, const char *url, const char *repo, const char *what,
                       bool (*cancelled)(void *ctx), void *ctx, json_t **out, mb_error *err)
{
    struct asked asked = { cancelled, ctx };
    struct net_request r = { .url = url, .fd = -1, .going = not_cancelled, .ctx = &asked };
    struct net_answer a;
    struct buf body;
    *out = NULL;
    buf_init(&body, LISTING_JSON_MAX);
    mb_status st = net_ask(o, &r, &a, &body, err);
    if (st == MB_OK && a.status != 200) st = net_fail(o, &a, repo, what, err);
    if (st == MB_OK) st = net_read_json(&a, &body, what, out, err);
    buf_free(&body);
    return st;
}
