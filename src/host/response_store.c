/* response_store.c: a hash table with a fixed number of buckets and one list in order of use. What is too old is taken
 * out whenever the store is asked: the list is not in order of age, but it is never long enough for that to matter
 * beyond the sweep, which stops early while nothing can have expired. */
#include "host/response_store.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "host/response_wire.h"

enum { N_BUCKETS = 1024 };

struct entry {
    char *id;                              /* owned */
    struct str parts[RESPONSE_N_PARTS];    /* point into `text` */
    char *text;                            /* owned: all parts */
    size_t bytes;                          /* booked */
    int64_t t_created_ms;
    struct entry *next_bucket;
    struct entry *newer, *older;           /* order of use */
};

struct response_store {
    struct response_store_options opt;
    pthread_mutex_t lock;
    int wire_fd;                           /* -1: it is here; else at the other end, and nothing below is used */
    struct entry *bucket[N_BUCKETS];
    struct entry *newest, *oldest;
    int64_t n;
    size_t bytes;
    int64_t t_next_expiry_ms;              /* nothing expires before; meaningless when empty */
};

static int64_t monotonic_ms(void *ctx)
{
    (void)ctx;
    return clock_now_ns() / 1000000;
}

mb_status response_store_open(struct response_store **out, const struct response_store_options *opt, mb_error *err)
{
    struct response_store *s = mb_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return mb_fail(err, MB_NO_MEMORY, "no memory for the response store");
    if (opt) s->opt = *opt;
    if (!s->opt.max_bytes) s->opt.max_bytes = RESPONSE_STORE_MAX_BYTES;
    if (s->opt.ttl_ms <= 0) s->opt.ttl_ms = RESPONSE_STORE_TTL_MS;
    if (!s->opt.now_ms) s->opt.now_ms = monotonic_ms;
    pthread_mutex_init(&s->lock, NULL);
    s->wire_fd = -1;
    *out = s;
    return MB_OK;
}

mb_status response_store_open_at(struct response_store **out, int fd, mb_error *err)
{
    MB_TRY(response_store_open(out, NULL, err));
    (*out)->wire_fd = fd;
    return MB_OK;
}

/* One question to the process that keeps the store. */
static mb_status ask(struct response_store *s, struct wire_head *h, const struct str texts[WIRE_N_TEXTS], struct wire_head *answer,
                     struct buf *const parts[RESPONSE_N_PARTS], mb_error *err)
{
    pthread_mutex_lock(&s->lock);
    mb_status st = wire_ask(s->wire_fd, h, texts, answer, parts, err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static mb_status put_there(struct response_store *s, const char *id, const struct str parts[RESPONSE_N_PARTS], mb_error *err)
{
    struct wire_head h = { .op = WIRE_PUT }, a;
    struct str texts[WIRE_N_TEXTS] = { str_of(id) };
    for (int i = 0; i < RESPONSE_N_PARTS; i++) texts[i + 1] = parts[i];
    return ask(s, &h, texts, &a, NULL, err);
}

static mb_status get_there(struct response_store *s, const char *id, struct buf *const parts[RESPONSE_N_PARTS], mb_error *err)
{
    struct wire_head h = { .op = WIRE_GET }, a;
    const struct str texts[WIRE_N_TEXTS] = { str_of(id) };
    for (int i = 0; i < RESPONSE_N_PARTS; i++)
        if (parts[i]) h.wanted |= 1u << i;
    return ask(s, &h, texts, &a, parts, err);
}

/* --- table and list; the lock is held --- */
static struct entry **slot_of(struct response_store *s, const char *id)
{
    uint32_t h = 2166136261u;
    for (const char *p = id; *p; p++) h = (h ^ (unsigned char)*p) * 16777619u;
    struct entry **slot = &s->bucket[h % N_BUCKETS];
    while (*slot && strcmp((*slot)->id, id) != 0) slot = &(*slot)->next_bucket;
    return slot;
}

static void list_remove(struct response_store *s, struct entry *e)
{
    if (e->newer) e->newer->older = e->older;
    else s->newest = e->older;
    if (e->older) e->older->newer = e->newer;
    else s->oldest = e->newer;
}

static void list_push(struct response_store *s, struct entry *e)
{
    e->newer = NULL;
    e->older = s->newest;
    if (s->newest) s->newest->newer = e;
    else s->oldest = e;
    s->newest = e;
}

static void entry_free(struct entry *e)
{
    if (!e) return;
    mb_free(e->id);
    mb_free(e->text);
    mb_free(e);
}

static void remove_at(struct response_store *s, struct entry **slot)
{
    struct entry *e = *slot;
    *slot = e->next_bucket;
    list_remove(s, e);
    s->n--;
    s->bytes -= e->bytes;
    entry_free(e);
}

static void sweep(struct response_store *s)
{
    int64_t now = s->opt.now_ms(s->opt.now_ctx), next = INT64_MAX;
    if (!s->n || now < s->t_next_expiry_ms) return;
    for (struct entry *e = s->oldest, *newer; e; e = newer) {
        newer = e->newer;
        int64_t t_end = e->t_created_ms + s->opt.ttl_ms;
        if (t_end <= now) remove_at(s, slot_of(s, e->id));
        else if (t_end < next) next = t_end;
    }
    s->t_next_expiry_ms = next;
}

/* --- the calls --- */
void response_store_close(struct response_store *s)
{
    if (!s) return;
    for (struct entry *e = s->oldest, *newer; e; e = newer) {
        newer = e->newer;
        entry_free(e);
    }
    pthread_mutex_destroy(&s->lock);
    mb_free(s);
}

static struct entry *entry_new(const char *id, const struct str parts[RESPONSE_N_PARTS], size_t len)
{
    struct entry *e = mb_calloc(1, sizeof *e);
    if (!e) return NULL;
    e->id = mb_strdup(id);
    e->text = mb_alloc(len);
    if (!e->id || !e->text) {
        entry_free(e);
        return NULL;
    }
    char *to = e->text;
    for (int i = 0; i < RESPONSE_N_PARTS; i++) {
        if (parts[i].len) memcpy(to, parts[i].ptr, parts[i].len);
        e->parts[i] = (struct str){ to, parts[i].len };
        to += parts[i].len;
    }
    return e;
}

mb_status response_store_put(struct response_store *s, const char *id, const struct str parts[RESPONSE_N_PARTS],
                             mb_error *err)
{
    size_t len = 0;
    if (s->wire_fd >= 0) return put_there(s, id, parts, err);
    for (int i = 0; i < RESPONSE_N_PARTS; i++) len += parts[i].len;
    size_t bytes = len + strlen(id) + 1 + sizeof(struct entry);
    if (bytes > s->opt.max_bytes)
        return mb_fail(err, MB_TOO_LARGE, "the response and its input have %zu bytes, the store holds %zu", bytes, s->opt.max_bytes);
    struct entry *e = entry_new(id, parts, len);
    if (!e) return mb_fail(err, MB_NO_MEMORY, "no memory to keep the response");
    e->bytes = bytes;
    pthread_mutex_lock(&s->lock);
    sweep(s);
    struct entry **slot = slot_of(s, id);
    if (*slot) remove_at(s, slot);
    while (s->n && (s->bytes + bytes > s->opt.max_bytes || s->n >= RESPONSE_STORE_MAX_ENTRIES))
        remove_at(s, slot_of(s, s->oldest->id));
    e->t_created_ms = s->opt.now_ms(s->opt.now_ctx);
    if (!s->n || e->t_created_ms + s->opt.ttl_ms < s->t_next_expiry_ms) s->t_next_expiry_ms = e->t_created_ms + s->opt.ttl_ms;
    slot = slot_of(s, id); /* the end of its bucket, after what went */
    *slot = e;
    list_push(s, e);
    s->n++;
    s->bytes += bytes;
    pthread_mutex_unlock(&s->lock);
    return MB_OK;
}

mb_status response_store_get(struct response_store *s, const char *id, struct buf *const parts[RESPONSE_N_PARTS],
                             mb_error *err)
{
    mb_status st = MB_OK;
    if (s->wire_fd >= 0) return get_there(s, id, parts, err);
    pthread_mutex_lock(&s->lock);
    sweep(s);
    struct entry *e = *slot_of(s, id);
    if (e) {
        list_remove(s, e);
        list_push(s, e);
        for (int i = 0; i < RESPONSE_N_PARTS; i++) {
            if (!parts[i]) continue;
            buf_append(parts[i], e->parts[i].ptr, e->parts[i].len);
            if (st == MB_OK) st = buf_status(parts[i], "stored response", err);
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (!e) return mb_fail(err, MB_NOT_FOUND, "there is no response %.80s: unknown, deleted, or older than %lld minutes", id,
                           (long long)(s->opt.ttl_ms / 60000));
    return st;
}

bool response_store_delete(struct response_store *s, const char *id)
{
    if (s->wire_fd >= 0) {
        struct wire_head h = { .op = WIRE_DELETE }, a;
        const struct str texts[WIRE_N_TEXTS] = { str_of(id) };
        mb_error err;
        return ask(s, &h, texts, &a, NULL, &err) == MB_OK && a.found;
    }
    pthread_mutex_lock(&s->lock);
    sweep(s);
    struct entry **slot = slot_of(s, id);
    bool found = *slot != NULL;
    if (found) remove_at(s, slot);
    pthread_mutex_unlock(&s->lock);
    return found;
}

void response_store_stats(struct response_store *s, struct response_store_stats *out)
{
    if (s->wire_fd >= 0) {
        struct wire_head h = { .op = WIRE_STATS }, a;
        const struct str texts[WIRE_N_TEXTS] = { { "", 0 } };
        mb_error err;
        *out = (struct response_store_stats){ .max_bytes = s->opt.max_bytes, .ttl_ms = s->opt.ttl_ms };
        if (ask(s, &h, texts, &a, NULL, &err) == MB_OK) *out = a.stats;
        return;
    }
    pthread_mutex_lock(&s->lock);
    sweep(s);
    *out = (struct response_store_stats){ .entries = s->n, .bytes = s->bytes, .max_bytes = s->opt.max_bytes, .ttl_ms = s->opt.ttl_ms };
    pthread_mutex_unlock(&s->lock);
}
