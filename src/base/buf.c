/* buf.c: the growing byte buffer. Capacity grows by half again, so n appends cost O(n); the ceiling bounds len (the
 * NUL behind it is not counted). */
#include "base/buf.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void buf_init(struct buf *b, size_t limit_bytes)
{
    *b = (struct buf){ .limit_bytes = limit_bytes };
}

void buf_free(struct buf *b)
{
    mb_free(b->data);
    buf_init(b, b->limit_bytes);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = MB_OK;
    if (b->data) b->data[0] = 0;
}

/* Make cap at least need (which counts the NUL). */
static bool buf_grow(struct buf *b, size_t need)
{
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need) cap = cap > SIZE_MAX - cap / 2 ? need : cap + cap / 2;
    if (b->limit_bytes && b->limit_bytes < SIZE_MAX && cap > b->limit_bytes + 1) cap = b->limit_bytes + 1;
    char *data = mb_realloc(b->data, cap);
    if (!data) {
        b->failed = MB_NO_MEMORY;
        return false;
    }
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return true;
}

bool buf_reserve(struct buf *b, size_t len)
{
    if (b->failed != MB_OK) return false;
    if (len >= SIZE_MAX - b->len || (b->limit_bytes && b->len + len > b->limit_bytes)) {
        b->failed = MB_TOO_LARGE;
        return false;
    }
    size_t need = b->len + len + 1;
    return need <= b->cap || buf_grow(b, need);
}

void buf_append(struct buf *b, const void *data, size_t len)
{
    if (!buf_reserve(b, len)) return;
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
}

void buf_append_str(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_append_char(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t room = b->failed == MB_OK && b->data ? b->cap - b->len : 0;
    int n = vsnprintf(room ? b->data + b->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n < 0) {
        if (b->failed == MB_OK) b->failed = MB_INTERNAL;
        if (room) b->data[b->len] = 0;
    } else if ((size_t)n < room) {
        b->len += (size_t)n;
    } else {
        if (room) b->data[b->len] = 0;  /* the beginning that fitted is none of its bytes */
        if (buf_reserve(b, (size_t)n)) {
            vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
            b->len += (size_t)n;
        }
    }
    va_end(again);
}

char *buf_take(struct buf *b, size_t *len)
{
    if (len) *len = 0;
    if (!buf_reserve(b, 0)) return NULL;
    char *data = b->data;
    if (len) *len = b->len;
    buf_init(b, b->limit_bytes);
    return data;
}

mb_status buf_status(const struct buf *b, const char *what, mb_error *err)
{
    if (b->failed == MB_OK) return MB_OK;
    if (b->failed == MB_TOO_LARGE)
        return mb_fail(err, MB_TOO_LARGE, "%s: more than the ceiling of %zu bytes", what, b->limit_bytes);
    if (b->failed == MB_NO_MEMORY) return mb_fail(err, MB_NO_MEMORY, "%s: no memory beyond %zu bytes", what, b->len);
    return mb_fail(err, b->failed, "%s: could not be written", what);
}

bool str_eq(struct str a, struct str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool str_starts(struct str s, struct str prefix)
{
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.ptr, prefix.ptr, prefix.len) == 0);
}
