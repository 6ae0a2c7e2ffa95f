/* net.h: HTTP to the hub over libcurl: what every request shares. The only files that include curl.h are net.c and fetch.c.
 *
 * Redirects are followed here, one by one: the token goes to the endpoint's own scheme, host and port and to nowhere else
 * (REG-023), and never from https to http. Answers with 5xx, 408, 429 and broken connections are tried again, later each time.
 */
#ifndef HUB_NET_H
#define HUB_NET_H

#include "base/buf.h"
#include "base/json.h"

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
    int64_t retry_after_s;
    char curl_text[256];         /* why there was none */
};

mb_status net_check_endpoint(const char *endpoint, mb_error *err);
/* The token for url: the one of opts when url has the endpoint's scheme, host and port, else NULL. */
const char *net_token_for(const struct net_opts *o, const char *url);
/* Where a redirect leads: absolute, http or https, not from https down to http. MB_BAD_FORMAT. */
mb_status net_redirect(const char *from, const char *location, char out[NET_URL_MAX], mb_error *err);
/* <endpoint>/api/models/<repo>/revision/<revision>?blobs=true and <endpoint>/<repo>/resolve/<commit>/<file>. */
mb_status net_url_listing(const struct net_opts *o, const char *repo, const char *revision, char out[NET_URL_MAX], mb_error *err);
mb_status net_url_file(const struct net_opts *o, const char *repo, const char *commit, const char *file, char out[NET_URL_MAX],
                       mb_error *err);

bool net_is_temporary(const struct net_answer *a);
int64_t net_delay_ms(const struct net_opts *o, const struct net_answer *a, int i_try);
/* The text of a failure with its remedy: MB_NOT_FOUND (404), MB_INVALID (401, 403: private or gated), MB_IO (else). what:
 * "owner/name at main". */
mb_status net_fail(const struct net_opts *o, const struct net_answer *a, const char *repo, const char *what, mb_error *err);
/* A header line into the answer. */
void net_take_header(struct net_answer *a, const char *line, size_t len);

/* GET a JSON object with retries and redirects. cancelled may be NULL; it is asked between and during tries. MB_BAD_FORMAT: not
 * JSON (an HTML page of a proxy, say). *out: json_decref. */
mb_status net_get_json(const struct net_opts *o, const char *url, const char *repo, const char *what,
                       bool (*cancelled)(void *ctx), void *ctx, json_t **out, mb_error *err);

/* Once per process, before threads use curl. */
mb_status net_init(mb_error *err);

#endif
