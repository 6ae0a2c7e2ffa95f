/* buf.h: a growing byte buffer with a ceiling. The builder of every text we produce.
 *
 * Appends never fail loudly: the first failure (no memory, ceiling) is remembered in `failed` and every later append
 * is a no-op; ask once at the end with buf_status. The bytes are always followed by a NUL that is not counted.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/status.h"

struct buf {
    char *data;         /* owned; NULL until the first append; data[len] == 0 */
    size_t len;         /* bytes used */
    size_t cap;         /* bytes allocated */
    size_t limit_bytes; /* ceiling, 0 = none */
    mb_status failed;   /* MB_OK, MB_NO_MEMORY or MB_TOO_LARGE */
};

void buf_init(struct buf *b, size_t limit_bytes);
void buf_free(struct buf *b);
void buf_clear(struct buf *b); /* len = 0, failed = MB_OK; keeps the memory */
void buf_append(struct buf *b, const void *data, size_t len);
void buf_append_str(struct buf *b, const char *s);
void buf_append_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for len more bytes without moving; false (and failed set) if impossible. */
bool buf_reserve(struct buf *b, size_t len);
/* Hand the bytes to the caller (release with mb_free) and leave the buffer empty; NULL if it failed. */
char *buf_take(struct buf *b, size_t *len);
/* MB_OK, or the remembered failure written to err with `what`. */
mb_status buf_status(const struct buf *b, const char *what, mb_error *err);

/* A view of bytes somebody else owns. */
struct str {
    const char *ptr;
    size_t len;
};
#define STR_LIT(s) ((struct str){ (s), sizeof(s) - 1 })
static inline struct str str_of(const char *s)
{
    size_t n = 0;
    while (s && s[n]) n++;
    return (struct str){ s, n };
}
bool str_eq(struct str a, struct str b);
bool str_starts(struct str s, struct str prefix);

#endif
