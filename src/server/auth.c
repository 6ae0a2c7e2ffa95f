/* auth.c: who may ask: Host (B-151), Origin and CORS (B-152, B-154), keys. Rules of design.md section 6, checked before
 * anything of the body is read. Loopback needs a Host that names loopback or --allow-host; other binds are the
 * operator's choice. Origins of loopback pages and --allow-origin are echoed, others get no CORS header and may not
 * write. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/server_int.h"

/* --- host names --- */
static bool port_ok(const char *p, size_t len)
{
    if (len > 5) return false;
    for (size_t i = 0; i < len; i++)
        if (p[i] < '0' || p[i] > '9') return false;
    return len > 0;
}

/* Split "name[:port]" or "[v6][:port]"; *len becomes the length of the name without brackets. */
static bool split_host(const char **name, size_t *len)
{
    const char *h = *name;
    size_t n = *len;
    if (n == 0) return false;
    if (h[0] == '[') {
        const char *end = memchr(h, ']', n);
        if (!end) return false;
        size_t rest = n - (size_t)(end - h) - 1;
        if (rest > 0 && (end[1] != ':' || !port_ok(end + 2, rest - 1))) return false;
        *name = h + 1;
        *len = (size_t)(end - h) - 1;
        return *len > 0;
    }
    const char *colon = memchr(h, ':', n);
    if (colon && !port_ok(colon + 1, n - (size_t)(colon - h) - 1)) return false;
    if (colon) *len = (size_t)(colon - h);
    return *len > 0;
}

static bool is_word(const char *s, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

/* 127.a.b.c in plain decimal */
static bool is_loopback_v4(const char *s, size_t len)
{
    int n_dots = 0, value = -1, first = -1;
    for (size_t i = 0; i <= len; i++) {
        if (i < len && s[i] >= '0' && s[i] <= '9') {
            value = (value < 0 ? 0 : value) * 10 + (s[i] - '0');
            if (value > 255) return false;
            continue;
        }
        if (value < 0 || (i < len && s[i] != '.')) return false;
        if (first < 0) first = value;
        if (i < len) n_dots++;
        value = -1;
    }
    return n_dots == 3 && first == 127;
}

bool host_is_loopback(const char *host, size_t len)
{
    if (!split_host(&host, &len)) return false;
    return is_word(host, len, "localhost") || is_word(host, len, "::1") || is_loopback_v4(host, len);
}

static bool in_hosts(const struct server *s, const char *host, size_t len)
{
    const char *name = host;
    size_t n = len;
    if (!split_host(&name, &n)) return false;
    for (int32_t i = 0; i < s->opt.n_allow_hosts; i++) {
        const char *a = s->opt.allow_hosts[i];
        size_t an = strlen(a);
        if (is_word(host, len, a) || is_word(name, n, a)) return true;
        if (a[0] == '*' && an > 2 && n >= an - 1 && strncasecmp(name + n - (an - 1), a + 1, an - 1) == 0) return true;
    }
    return false;
}

/* Printable part of a header for an error text. */
static void printable(char *out, size_t cap, const char *s)
{
    size_t n = 0;
    for (; s[n] && n + 1 < cap; n++) out[n] = s[n] > ' ' && s[n] < 127 ? s[n] : '?';
    out[n] = '\0';
}

static bool allows_any(const char *const *list, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(list[i], "*") == 0) return true;
    return false;
}

bool host_check(struct http_exchange *x, const char *host, int n_hosts)
{
    const struct server *s = x->s;
    char shown[96], text[400];
    if (n_hosts > 1) {
        http_reply_status(x, 400, NULL, NULL, "more than one Host header");
        return false;
    }
    if (!s->bound_loopback || allows_any(s->opt.allow_hosts, s->opt.n_allow_hosts)) return true;
    if (host && (host_is_loopback(host, strlen(host)) || in_hosts(s, host, strlen(host)))) return true;
    printable(shown, sizeof shown, host ? host : "");
    snprintf(text, sizeof text,
             "Host \"%s\" is not allowed: this server listens on loopback and answers to localhost, 127.0.0.1 and [::1]; "
             "start it with --allow-host %s to accept this name", shown, shown[0] ? shown : "NAME");
    http_reply_status(x, 403, "host_not_allowed", NULL, text);
    return false;
}

/* --- origins --- */
static bool origin_host(const char *origin, const char **host, size_t *len)
{
    const char *p = strstr(origin, "://");
    if (!p || (strncasecmp(origin, "http://", 7) != 0 && strncasecmp(origin, "https://", 8) != 0)) return false;
    *host = p + 3;
    *len = strlen(*host);
    return *len > 0 && !memchr(*host, '/', *len) && !memchr(*host, '@', *len);
}

static bool origin_allowed(const struct server *s, const char *origin, const char *host_header)
{
    const char *h;
    size_t n;
    if (allows_any(s->opt.allow_origins, s->opt.n_allow_origins)) return true;
    for (int32_t i = 0; i < s->opt.n_allow_origins; i++)
        if (strcasecmp(origin, s->opt.allow_origins[i]) == 0) return true;
    if (!origin_host(origin, &h, &n)) return false;
    if (host_is_loopback(h, n)) return true;
    return host_header && is_word(h, n, host_header) && in_hosts(s, h, n); /* our own page behind a named tunnel */
}

bool origin_check(struct http_exchange *x, const char *origin, const char *host)
{
    if (!origin) return true;
    if (origin_allowed(x->s, origin, host)) {
        x->cors_origin = mb_strdup(origin);
        return true;
    }
    x->foreign_origin = true;
    return true;
}

/* --- keys --- */
static bool same_key(const char *given, const char *key)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned char diff = n != m;
    for (size_t i = 0; i < n; i++) diff |= (unsigned char)(key[i] ^ given[m ? i % m : 0]);
    return diff == 0;
}

static bool has_key(const struct server *s, const char *authorization, const char *x_api_key)
{
    const char *key = s->opt.api_key;
    if (!key) return false;
    if (x_api_key && same_key(x_api_key, key)) return true;
    if (!authorization || strncasecmp(authorization, "bearer ", 7) != 0) return false;
    authorization += 7;
    while (*authorization == ' ') authorization++;
    return same_key(authorization, key);
}

bool key_check(struct http_exchange *x, const char *authorization, const char *x_api_key)
{
    const struct server *s = x->s;
    enum route_auth auth = x->route->auth;
    if (auth == AUTH_OPEN || has_key(s, authorization, x_api_key)) return true;
    if (auth == AUTH_KEY && !s->opt.api_key) return true;
    if (auth == AUTH_MANAGE && ((x->conn && x->conn->loopback) || s->bound_unix)) return true;
    if (auth == AUTH_MANAGE && !s->opt.api_key) {
        http_reply_status(x, 403, NULL, NULL, "this route answers only requests from this machine, or a key (--api-key)");
        return false;
    }
    strcpy(x->extra_name, "WWW-Authenticate");
    strcpy(x->extra_value, "Bearer");
    http_reply_status(x, 401, "invalid_api_key", NULL,
                      "this server needs the key of --api-key: Authorization: Bearer KEY, or x-api-key: KEY");
    return false;
}
