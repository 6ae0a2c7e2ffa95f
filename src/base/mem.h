/* mem.h: allocation. Everything that allocates in this program goes through mb_alloc / mb_calloc / mb_realloc, so that
 * a test build can make the k-th allocation fail (base/fault.h), and through arenas for request-long data.
 *
 * An arena is a list of blocks freed whole: no destructor, no single free. It has a ceiling given at init; an
 * allocation above it fails and the arena remembers (`failed`), so that builders ask once at the end.
 * Threads: an arena belongs to one thread at a time.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include "base/status.h"

/* malloc / calloc / realloc / free with the fault point "alloc". NULL on failure. size 0 returns a unique pointer. */
void *mb_alloc(size_t size_bytes);
void *mb_calloc(size_t n, size_t size_bytes);
void *mb_realloc(void *p, size_t size_bytes);
void mb_free(void *p);
char *mb_strdup(const char *s);
char *mb_strndup(const char *s, size_t len);
/* Aligned to `align` (a power of two), released with mb_free. */
void *mb_alloc_aligned(size_t align, size_t size_bytes);

struct arena {
    struct arena_block *head; /* owned */
    size_t used_bytes;        /* handed out, all blocks */
    size_t limit_bytes;       /* 0 = none */
    bool failed;              /* an allocation failed or passed the limit */
    bool over_limit;          /* it was the limit */
};

void arena_init(struct arena *a, size_t limit_bytes);
void arena_free(struct arena *a);
/* 16-byte aligned, zeroed. NULL on failure; a->failed is then set. */
void *arena_alloc(struct arena *a, size_t size_bytes);
/* n * size with overflow check. */
void *arena_alloc_array(struct arena *a, size_t n, size_t size_bytes);
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t len);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
