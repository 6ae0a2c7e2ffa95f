/* response_store.h: finished responses of /v1/responses, kept so that a later request can name one (API-245..249).
 *
 * Bounded in three ways: an entry lives ttl_ms from its creation, all entries together hold at most max_bytes (texts
 * and their book-keeping), and the one used longest ago goes first. An entry that alone is larger than max_bytes is not
 * kept (Q41). Reading renews the order of use, never the age. The store knows texts only, no JSON, no HTTP; it belongs
 * to the host, not to an engine (API-250).
 * Threads: any; one lock inside, texts are copied out under it.
 */
#ifndef HOST_RESPONSE_STORE_H
#define HOST_RESPONSE_STORE_H

#include "base/buf.h"

#define RESPONSE_STORE_MAX_BYTES ((size_t)32 << 20)
#define RESPONSE_STORE_TTL_MS 3600000
#define RESPONSE_STORE_MAX_ENTRIES 65536 /* of a table of buckets that never grows */

struct response_store; /* opaque */

struct response_store_options { /* zero = default */
    size_t max_bytes;
    int64_t ttl_ms;
    int64_t (*now_ms)(void *ctx); /* NULL: the monotonic clock */
    void *now_ctx;
};

struct response_store_stats {
    int64_t entries;
    size_t bytes, max_bytes;
    int64_t ttl_ms;
};

/* The texts of one response; borrowed when put, appended to the caller's buffers when got. */
enum response_part {
    RESPONSE_OBJECT = 0,   /* the whole response, as GET returns it */
    RESPONSE_INPUT,        /* array: every input item, those of earlier responses included */
    RESPONSE_OUTPUT,       /* array: the output items */
    RESPONSE_INSTRUCTIONS, /* plain text; empty: none */
    RESPONSE_N_PARTS
};

/* opt NULL: defaults. MB_NO_MEMORY. */
mb_status response_store_open(struct response_store **out, const struct response_store_options *opt, mb_error *err);
/* A store that another process keeps, at the other end of fd (borrowed): response_wire.h. Calls wait for its answers. MB_NO_MEMORY. */
mb_status response_store_open_at(struct response_store **out, int fd, mb_error *err);
void response_store_close(struct response_store *s); /* NULL is allowed */

/* Keep a response, replacing one of the same id. MB_OK; MB_TOO_LARGE: larger than the store, not kept; MB_NO_MEMORY: not
 * kept; MB_IO: the process that keeps it has gone. */
mb_status response_store_put(struct response_store *s, const char *id, const struct str parts[RESPONSE_N_PARTS],
                             mb_error *err);
/* Append the parts whose buffer is not NULL. MB_NOT_FOUND (err->at untouched), MB_NO_MEMORY. */
mb_status response_store_get(struct response_store *s, const char *id, struct buf *const parts[RESPONSE_N_PARTS],
                             mb_error *err);
/* false: there was none. */
bool response_store_delete(struct response_store *s, const char *id);
void response_store_stats(struct response_store *s, struct response_store_stats *out);

#endif
