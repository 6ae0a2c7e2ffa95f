/* mtext.c: a growing text that remembers where each byte came from. Failures are kept and asked for once. */
#include <string.h>

#include "tokenizer/tokenizer_int.h"

void mbuf_free(struct mbuf *b)
{
    mb_free(b->s);
    mb_free(b->ends);
    memset(b, 0, sizeof *b);
}

void mbuf_reset(struct mbuf *b, size_t limit, bool want_ends)
{
    if (want_ends && !b->ends && b->cap) { /* the memory came from a run without ends */
        mb_free(b->s);
        b->s = NULL;
        b->cap = 0;
    }
    b->n = 0;
    b->limit = limit;
    b->want_ends = want_ends;
    b->failed = MB_OK;
}

static bool mbuf_room(struct mbuf *b, size_t n)
{
    if (b->failed != MB_OK) return false;
    if (n <= b->cap - b->n) return true;
    if (n > b->limit || b->n + n > b->limit) {
        b->failed = MB_TOO_LARGE;
        return false;
    }
    size_t cap = b->cap ? b->cap : 256;
    while (cap < b->n + n) cap *= 2;
    char *s = mb_realloc(b->s, cap);
    if (s) b->s = s;
    uint32_t *ends = s && b->want_ends ? mb_realloc(b->ends, cap * sizeof *ends) : NULL;
    if (ends) b->ends = ends;
    if (!s || (b->want_ends && !ends)) {
        b->failed = MB_NO_MEMORY;
        return false;
    }
    b->cap = cap;
    return true;
}

void mbuf_put(struct mbuf *b, const char *s, size_t n, size_t first, size_t end)
{
    if (!n || !mbuf_room(b, n)) return;
    if (!b->n) b->base = first;
    memcpy(b->s + b->n, s, n);
    if (b->want_ends)
        for (size_t i = 0; i < n; i++) b->ends[b->n + i] = (uint32_t)end;
    b->n += n;
}

void mbuf_copy(struct mbuf *b, const struct mtext *src, size_t first, size_t end)
{
    size_t n = end - first;
    if (!n || !mbuf_room(b, n)) return;
    if (!b->n) b->base = mtext_first(src, first);
    memcpy(b->s + b->n, src->s + first, n);
    if (b->want_ends)
        for (size_t i = 0; i < n; i++) b->ends[b->n + i] = (uint32_t)mtext_end(src, first + i);
    b->n += n;
}

struct mtext mbuf_view(const struct mbuf *b)
{
    return (struct mtext){ b->s ? b->s : "", b->n, b->want_ends ? b->ends : NULL, b->base };
}

mb_status mbuf_status(const struct mbuf *b, mb_error *err)
{
    if (b->failed == MB_OK) return MB_OK;
    if (b->failed == MB_NO_MEMORY) return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the normalised text");
    return mb_fail(err, MB_TOO_LARGE, "tokenizer: the normalised text would pass %zu bytes", b->limit);
}
