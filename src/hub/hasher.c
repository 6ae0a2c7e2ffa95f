/* hasher.c: see hasher.h. The ring is a byte ring with two counters that only grow: `put` by the caller, `got` by the thread; both
 * change under the lock, the bytes between them are copied, written and hashed outside of it. */
#include "hub/hasher.h"

#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/threads.h"

#define RING_BYTES ((size_t)4 << 20)
#define PIECE_BYTES ((size_t)256 << 10)
#define CHUNK_BYTES ((size_t)1 << 20)
#define THREAD_FROM_BYTES ((int64_t)8 << 20)

struct hasher {
    EVP_MD_CTX *ctx;
    bool is_sha256, threaded, failed, quit;
    int64_t size;
    unsigned char *ring;         /* threaded: RING_BYTES */
    size_t put, got;
    bool is_waiting;             /* somebody sleeps on cond */
    hasher_sink_fn sink;         /* changes while the ring is empty */
    void *sink_ctx;
    mb_status sunk;              /* what the sink said last; text in sink_err; under the lock */
    mb_error sink_err;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    pthread_t thread;
};

static bool begin(struct hasher *h)
{
    char head[64];
    if (EVP_DigestInit_ex(h->ctx, h->is_sha256 ? EVP_sha256() : EVP_sha1(), NULL) != 1) return false;
    if (h->is_sha256) return true;
    int n = snprintf(head, sizeof head, "blob %lld", (long long)h->size);
    return EVP_DigestUpdate(h->ctx, head, (size_t)n + 1) == 1;
}

/* --- the ring; the lock is held --- */

static void wait(struct hasher *h)
{
    h->is_waiting = true;
    pthread_cond_wait(&h->cond, &h->lock);
}

static void wake(struct hasher *h)
{
    if (h->is_waiting) pthread_cond_broadcast(&h->cond);
    h->is_waiting = false;
}

/* By whoever hashes. */
static bool take_piece(struct hasher *h, const void *data, size_t len, bool wanted, mb_status *sunk)
{
    if (!wanted) return true;
    *sunk = h->sink ? h->sink(h->sink_ctx, data, len, &h->sink_err) : MB_OK;
    return *sunk != MB_OK || EVP_DigestUpdate(h->ctx, data, len) == 1;
}

static void *run(void *arg)
{
    struct hasher *h = arg;
    threads_set_name("hub-hash");
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (h->put == h->got && !h->quit) wait(h);
        if (h->put == h->got) break;
        size_t at = h->got % RING_BYTES, n = h->put - h->got;
        if (n > RING_BYTES - at) n = RING_BYTES - at;
        if (n > PIECE_BYTES) n = PIECE_BYTES;
        mb_status sunk = h->sunk;
        pthread_mutex_unlock(&h->lock);
        bool ok = take_piece(h, h->ring + at, n, sunk == MB_OK, &sunk);
        pthread_mutex_lock(&h->lock);
        h->failed |= !ok;
        h->sunk = sunk;
        h->got += n;
        wake(h);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* Until the thread has hashed everything. */
static void drain(struct hasher *h)
{
    if (!h->threaded) return;
    pthread_mutex_lock(&h->lock);
    while (h->put != h->got) wait(h);
    pthread_mutex_unlock(&h->lock);
}

static void ring_put(struct hasher *h, const unsigned char *p, size_t len)
{
    pthread_mutex_lock(&h->lock);
    while (len > 0 && h->sunk == MB_OK) {
        while (h->put - h->got == RING_BYTES) wait(h);
        size_t at = h->put % RING_BYTES, n = RING_BYTES - (h->put - h->got);
        if (n > RING_BYTES - at) n = RING_BYTES - at;
        if (n > len) n = len;
        pthread_mutex_unlock(&h->lock);
        memcpy(h->ring + at, p, n); /* the thread does not come here before put says so */
        pthread_mutex_lock(&h->lock);
        h->put += n;
        p += n;
        len -= n;
        wake(h);
    }
    pthread_mutex_unlock(&h->lock);
}

/* --- life --- */

/* Without memory or a thread the hash is computed at once: slower, not wrong. */
static void start_thread(struct hasher *h)
{
    if (h->size < THREAD_FROM_BYTES) return;
    h->ring = mb_alloc(RING_BYTES);
    if (!h->ring) return;
    h->threaded = pthread_create(&h->thread, NULL, run, h) == 0;
}

mb_status hasher_open(struct hasher **out, bool is_sha256, int64_t size, mb_error *err)
{
    struct hasher *h = mb_calloc(1, sizeof *h);
    *out = NULL;
    if (!h) return mb_fail(err, MB_NO_MEMORY, "no memory for a hash");
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->cond, NULL);
    h->is_sha256 = is_sha256;
    h->size = size;
    h->ctx = EVP_MD_CTX_new();
    if (!h->ctx || !begin(h)) {
        hasher_close(h);
        return mb_fail(err, MB_NO_MEMORY, "no memory for a hash");
    }
    start_thread(h);
    *out = h;
    return MB_OK;
}

void hasher_close(struct hasher *h)
{
    if (!h) return;
    if (h->threaded) {
        pthread_mutex_lock(&h->lock);
        h->quit = true;
        wake(h);
        pthread_mutex_unlock(&h->lock);
        pthread_join(h->thread, NULL);
    }
    EVP_MD_CTX_free(h->ctx);
    mb_free(h->ring);
    pthread_cond_destroy(&h->cond);
    pthread_mutex_destroy(&h->lock);
    mb_free(h);
}

/* With the ring empty or the lock held. */
static mb_status sink_status(const struct hasher *h, mb_error *err)
{
    if (h->sunk == MB_OK) return MB_OK;
    if (err) *err = h->sink_err;
    return h->sunk;
}

void hasher_set_sink(struct hasher *h, hasher_sink_fn sink, void *ctx)
{
    drain(h);
    h->sink = sink;
    h->sink_ctx = ctx;
}

mb_status hasher_flush(struct hasher *h, mb_error *err)
{
    drain(h);
    return sink_status(h, err);
}

mb_status hasher_restart(struct hasher *h, mb_error *err)
{
    MB_TRY(hasher_flush(h, err));
    h->failed = false;
    return begin(h) ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for a hash");
}

mb_status hasher_add(struct hasher *h, const void *data, size_t len, mb_error *err)
{
    if (!h->threaded) {
        h->failed |= !take_piece(h, data, len, h->sunk == MB_OK, &h->sunk);
        return h->failed ? mb_fail(err, MB_INTERNAL, "a hash failed") : sink_status(h, err);
    }
    ring_put(h, data, len);
    pthread_mutex_lock(&h->lock);
    mb_status st = sink_status(h, err);
    pthread_mutex_unlock(&h->lock);
    return st;
}

mb_status hasher_add_file(struct hasher *h, int fd, int64_t size, const char *path, bool (*going)(void *ctx, int64_t done_bytes),
                          void *ctx, mb_error *err)
{
    unsigned char *chunk = mb_alloc(CHUNK_BYTES);
    mb_status st = chunk ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for a hash");
    for (int64_t at = 0; st == MB_OK && at < size;) {
        int64_t left = size - at;
        ssize_t n = pread(fd, chunk, left < (int64_t)CHUNK_BYTES ? (size_t)left : CHUNK_BYTES, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) st = n < 0 ? mb_fail_errno(err, "cannot read", path) : mb_fail(err, MB_IO, "%s became shorter", path);
        else st = hasher_add(h, chunk, (size_t)n, err);
        at += n;
        if (st == MB_OK && going && !going(ctx, at)) st = mb_fail(err, MB_CANCELLED, "cancelled");
    }
    mb_free(chunk);
    return st;
}

mb_status hasher_end(struct hasher *h, char hex[65], mb_error *err)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned int n = 0;
    hex[0] = '\0';
    MB_TRY(hasher_flush(h, err));
    if (h->failed || EVP_DigestFinal_ex(h->ctx, sum, &n) != 1 || n > 32) return mb_fail(err, MB_INTERNAL, "a hash failed");
    for (unsigned int i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return MB_OK;
}
