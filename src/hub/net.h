/* net.h: HTTP to the hub over libcurl: what every request shares. The only files that include curl.h are net.c,
 * request.c and fetch.c.
 *
 * Redirects are followed here, one by one: the token goes to the endpoint's own scheme, host and port and to nowhere else
 * (REG-023), and never from https to http. Answers with 5xx, 408, 429 and broken connections are tried again, later each time.
 */
#ifndef HUB_NET_H
#define HUB_NET_H

#include "base/buf.h"
#include "base/json.h"
#include "hub/names.h"

#define NET_ENDPOINT "https://huggingface.co"
#define NET_URL_MAX 4096
#define NET_HOPS_MAX 8

struct net_opts {                /* zero = default; strings are borrowed */
    const char *endpoint;        /* "https://host[:port][/path]", HF_ENDPOINT */
    const char *token;           /* NULL = none */
    int retries;                 /* after the first try; < 0 = none, 0 = 5 */
    int64_t retry_ms;            /* before the first retry, doubled each time up to 8 s; 0 = 250 */
    int64_t connect_ms;          /* 0 = 20000 */
    int64_t stall_s;             /* without a byte for so long = broken; 0 = 60 */
};

/* A failed answer: status and what the hub said about it. */
struct net_answer {
    long status;                 /* 0: no answer at all */
    char code[64];               /* X-Error-Code: "GatedRepo", "RepoNotFound", ... */
    char type[64];               /* Content-Type */
    char location[NET_URL_MAX];  /* Location, as sent */
    char etag[128];              /* ETag, with its quotes */
    char message[256];           /* X-Error-Message: anything; show it through name_shown */
    int64_t retry_after_s;
    char curl_text[256];         /* why there was none */
};

/* The hub in use, as it was given. */
const char *net_endpoint(const struct net_opts *o);
mb_status net_check_endpoint(const char *endpoint, mb_error *err);
/* The token for url: the one of opts when url has the endpoint's scheme, host and port, else NULL. */
const char *net_token_for(const struct net_opts *o, const char *url);
/* Where a redirect leads: absolute, http or https, not from https down to http. MB_BAD_FORMAT. */
mb_status net_redirect(const char *from, const char *location, char out[NET_URL_MAX], mb_error *err);
/* <endpoint>/api/models/<repo>/revision/<revision>?blobs=true and <endpoint>/<repo>/resolve/<commit>/<file>. */
mb_status net_url_listing(const struct net_opts *o, const char *repo, const char *revision, char out[NET_URL_MAX], mb_error *err);
/* <endpoint>/api/<kind>s/<repo>/<verb>/<revision><query>; kind: "model" or "dataset". */
mb_status net_url_api(const struct net_opts *o, const char *kind, const char *repo, const char *verb, const char *revision,
                      const char *query, char out[NET_URL_MAX], mb_error *err);
/* Where the LFS batch protocol is spoken, and where a repository is made. */
mb_status net_url_lfs(const struct net_opts *o, const char *kind, const char *repo, char out[NET_URL_MAX], mb_error *err);
mb_status net_url_create(const struct net_opts *o, char out[NET_URL_MAX], mb_error *err);
mb_status net_url_file(const struct net_opts *o, const char *repo, const char *commit, const char *file, char out[NET_URL_MAX],
                       mb_error *err);

bool net_is_temporary(const struct net_answer *a);
int64_t net_delay_ms(const struct net_opts *o, const struct net_answer *a, int i_try);
/* The text of a failure with its remedy: MB_NOT_FOUND (404), MB_INVALID (401, 403: private or gated), MB_IO (else). what:
 * "owner/name at main". */
mb_status net_fail(const struct net_opts *o, const struct net_answer *a, const char *repo, const char *what, mb_error *err);
/* A header line into the answer. */
void net_take_header(struct net_answer *a, const char *line, size_t len);

/* --- request.c --- */

struct net_request {
    const char *url;
    const char *method;          /* NULL = GET; POST and PUT have a body: */
    const void *data;            /* `len` bytes of memory, or NULL: */
    int fd;                      /* `len` bytes of this file from `off` on; read as they are sent, never whole in memory */
    int64_t off, len;
    const char *type, *accept;   /* Content-Type and Accept, NULL = none */
    const json_t *headers;       /* an object with more headers, or NULL: what LFS says of an address goes there and nowhere else */
    bool only_once;              /* a second try might do it a second time */
    /* Asked during and between tries with the bytes of the body sent in this try; false: MB_CANCELLED. May be NULL. */
    bool (*going)(void *ctx, int64_t sent_bytes);
    void *ctx;
};

/* One request, its retries and redirects (with a body only 307 and 308, which mean the same request elsewhere). MB_OK with any
 * status in *a, 0 when nobody answered; body receives what was said and may be bounded (buf_init). MB_CANCELLED, MB_IO (the file
 * became shorter), MB_BAD_FORMAT (a redirect that leads nowhere), MB_TOO_LARGE (the answer), MB_NO_MEMORY. */
mb_status net_ask(const struct net_opts *o, const struct net_request *r, struct net_answer *a, struct buf *body, mb_error *err);
/* Before another try: MB_CANCELLED when `going` of the request says so. */
mb_status net_wait(int64_t ms, const struct net_request *r, mb_error *err);
/* The JSON object of an answer. MB_BAD_FORMAT: not JSON (an HTML page of a proxy, say). *out: json_decref. */
mb_status net_read_json(const struct net_answer *a, const struct buf *body, const char *what, json_t **out, mb_error *err);

/* GET a JSON object with retries and redirects. cancelled may be NULL; it is asked between and during tries. MB_BAD_FORMAT: not
 * JSON. *out: json_decref. */
mb_status net_get_json(const struct net_opts *o, const char *url, const char *repo, const char *what,
                       bool (*cancelled)(void *ctx), void *ctx, json_t **out, mb_error *err);

/* Once per process, before threads use curl. */
mb_status net_init(mb_error *err);

#endif
