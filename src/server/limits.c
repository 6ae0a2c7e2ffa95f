/* limits.c: ceilings of the server: bytes of bodies in memory, encoded bodies, connections. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

#include "base/json.h"
#include "server/server_int.h"

/* A route without a body still takes (and throws away) a small one. */
size_t body_limit(const struct http_exchange *x)
{
    size_t row = x->route && x->route->body_limit_bytes ? x->route->body_limit_bytes : BODY_UNWANTED_BYTES;
    return row < x->s->opt.body_limit_bytes ? row : x->s->opt.body_limit_bytes;
}

/* --- memory that strangers can make us take: one budget, --body-memory ---
 *
 * It holds bodies, what is made of them (trees, copies, prompts), answers that wait for their readers, and the buffers of
 * connections. An eighth of it is kept for small bodies, so that large ones never keep an ordinary question out. */
static size_t budget(const struct server *s, bool small)
{
    size_t all = s->opt.body_memory_bytes;
    return small ? all : all - all / 8;
}

/* Bytes of connections' buffers; they never take more than half. */
static size_t pools_locked(const struct server *s)
{
    size_t n = (size_t)s->n_conns * CONN_POOL_BYTES, half = s->opt.body_memory_bytes / 2;
    return n < half ? n : half;
}

static bool book(struct server *s, size_t *mine, size_t total_bytes)
{
    if (total_bytes <= *mine) return true;
    size_t more = total_bytes - *mine;
    bool ok = s->body_memory + pools_locked(s) + more <= budget(s, total_bytes <= BODY_SMALL_BYTES);
    if (!ok) return false;
    s->body_memory += more;
    *mine = total_bytes;
    return true;
}

bool body_book(struct http_exchange *x, size_t total_bytes)
{
    pthread_mutex_lock(&x->s->lock);
    bool ok = book(x->s, &x->body_counted, total_bytes);
    pthread_mutex_unlock(&x->s->lock);
    if (!ok)
        http_reply_status(x, 503, "body_memory", NULL,
                          "request bodies in work fill the memory set by --body-memory; try again later");
    return ok;
}

bool reply_book(struct http_exchange *x, size_t total_bytes)
{
    pthread_mutex_lock(&x->s->lock);
    bool ok = book(x->s, &x->reply_counted, total_bytes);
    pthread_mutex_unlock(&x->s->lock);
    return ok;
}

void body_lower(struct http_exchange *x, size_t total_bytes)
{
    pthread_mutex_lock(&x->s->lock);
    if (total_bytes < x->body_counted) {
        x->s->body_memory -= x->body_counted - total_bytes;
        x->body_counted = total_bytes;
    }
    pthread_mutex_unlock(&x->s->lock);
}

void memory_release(struct http_exchange *x)
{
    body_lower(x, 0);
    pthread_mutex_lock(&x->s->lock);
    x->s->body_memory -= x->reply_counted;
    x->reply_counted = 0;
    pthread_mutex_unlock(&x->s->lock);
}

/* The tree is there twice for a moment: the request's, and the messages' once more while the prompt is made. Copies: of the
 * messages as text, of the job, of the prompt. The job and the prompt stay until the generation ends. */
bool body_weigh(struct http_exchange *x)
{
    char text[256];
    if (x->body.len <= BODY_SMALL_BYTES) return true;
    struct json_weight w = json_weigh(x->body.data, x->body.len);
    size_t need = x->body.len + 2 * w.tree_bytes + 3 * w.text_bytes;
    x->body_kept = 2 * w.text_bytes;
    if (need <= budget(x->s, false)) return body_book(x, need);
    snprintf(text, sizeof text, "the body has %zu bytes and would take up to %zu of memory to work on, more than --body-memory leaves "
             "for one (%zu); send less or raise it", x->body.len, need, budget(x->s, false));
    http_reply_status(x, 413, "too_large", NULL, text);
    return false;
}

/* --- content-encoding: decoded on a worker, in pieces, against the same ceilings --- */
static bool too_large(struct http_exchange *x)
{
    char text[128];
    snprintf(text, sizeof text, "the body is larger than %zu bytes", body_limit(x));
    http_reply_status(x, 413, "too_large", NULL, text);
    return false;
}

static bool broken(struct http_exchange *x)
{
    char text[96];
    snprintf(text, sizeof text, "the body is not valid %s data", x->encoding);
    http_reply_status(x, 400, NULL, NULL, text);
    return false;
}

static bool put(struct http_exchange *x, struct buf *out, const void *data, size_t len)
{
    if (out->len + len > body_limit(x)) return too_large(x);
    if (!body_book(x, x->body.len + out->len + len)) return false;
    buf_append(out, data, len);
    if (!out->failed) return true;
    http_reply_status(x, 503, "no_memory", NULL, "no memory for the body");
    return false;
}

/* One inflate call after another until the members are all read: a gzip file is one or more of them (RFC 1952). */
static bool inflate_members(struct http_exchange *x, z_stream *z, struct buf *out)
{
    unsigned char chunk[16384];
    for (;;) {
        z->next_out = chunk;
        z->avail_out = sizeof chunk;
        int rc = inflate(z, Z_NO_FLUSH);
        bool full = z->avail_out == 0;
        if (rc != Z_OK && rc != Z_STREAM_END) return broken(x); /* Z_BUF_ERROR: cut off */
        if (!put(x, out, chunk, sizeof chunk - z->avail_out)) return false;
        if (rc == Z_STREAM_END && z->avail_in == 0) return true;
        if (rc == Z_STREAM_END && inflateReset(z) != Z_OK) return broken(x);
        if (rc == Z_OK && z->avail_in == 0 && !full) return broken(x); /* cut off */
    }
}

static bool decode_gzip(struct http_exchange *x, struct buf *out)
{
    z_stream z = { 0 };
    if (inflateInit2(&z, 15 + 32) != Z_OK) return broken(x);
    z.next_in = (unsigned char *)x->body.data;
    z.avail_in = (uInt)x->body.len;
    bool ok = inflate_members(x, &z, out);
    inflateEnd(&z);
    return ok;
}

static bool decode_zstd(struct http_exchange *x, struct buf *out)
{
    char chunk[16384];
    ZSTD_DStream *d = ZSTD_createDStream();
    ZSTD_inBuffer in = { x->body.data, x->body.len, 0 };
    size_t rc = 1;
    bool ok = d != NULL && in.size > 0;
    if (d) ZSTD_DCtx_setParameter(d, ZSTD_d_windowLogMax, 27);
    while (ok && (in.pos < in.size || rc != 0)) {
        ZSTD_outBuffer o = { chunk, sizeof chunk, 0 };
        size_t before = in.pos;
        rc = ZSTD_decompressStream(d, &o, &in);
        if (ZSTD_isError(rc) || (in.pos == before && o.pos == 0)) ok = broken(x);
        else ok = put(x, out, chunk, o.pos);
    }
    if (!d || in.size == 0) broken(x);
    ZSTD_freeDStream(d);
    return ok;
}

bool body_decode(struct http_exchange *x)
{
    struct buf out;
    if (!x->encoding[0]) return true;
    buf_init(&out, 0);
    bool ok = strcmp(x->encoding, "gzip") == 0 ? decode_gzip(x, &out) : decode_zstd(x, &out);
    if (ok) {
        buf_free(&x->body);
        x->body = out;
    } else {
        buf_free(&out);
    }
    return ok;
}

/* --- connections: the limit and RLIMIT_NOFILE are raised together --- */
int32_t limits_connections(int32_t wanted, int32_t each)
{
    struct rlimit r;
    const rlim_t spare = 256; /* files of models, libraries, sockets of our own */
    if (getrlimit(RLIMIT_NOFILE, &r) != 0) return wanted < 512 ? wanted : 512;
    rlim_t need = (rlim_t)wanted * (rlim_t)each + spare;
    if (r.rlim_cur < need) {
        r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max > need ? need : r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
        getrlimit(RLIMIT_NOFILE, &r);
    }
    rlim_t n = r.rlim_cur > spare + 16 * (rlim_t)each ? (r.rlim_cur - spare) / (rlim_t)each : 16;
    return n < (rlim_t)wanted ? (int32_t)n : wanted;
}
