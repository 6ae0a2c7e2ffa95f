/* mem.c: the allocator wrappers with their fault point, and arenas.
 *
 * Arena blocks double from 4 KiB to 1 MiB; a larger request gets a block of its own behind the current one, so that
 * the room left in the current block stays in use. The ceiling counts bytes handed out, not block sizes. */
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

void *mb_alloc(size_t size_bytes)
{
    if (fault_hit("alloc")) return NULL;
    return malloc(size_bytes ? size_bytes : 1);
}

void *mb_calloc(size_t n, size_t size_bytes)
{
    size_t total;
    if (fault_hit("alloc") || __builtin_mul_overflow(n, size_bytes, &total)) return NULL;
    return n && size_bytes ? calloc(n, size_bytes) : calloc(1, 1);
}

void *mb_realloc(void *p, size_t size_bytes)
{
    if (fault_hit("alloc")) return NULL;
    return realloc(p, size_bytes ? size_bytes : 1);
}

void mb_free(void *p)
{
    free(p);
}

char *mb_strdup(const char *s)
{
    return mb_strndup(s, strlen(s));
}

char *mb_strndup(const char *s, size_t len)
{
    if (len == SIZE_MAX) return NULL;
    char *copy = mb_alloc(len + 1);
    if (!copy) return NULL;
    if (len) memcpy(copy, s, len);
    copy[len] = 0;
    return copy;
}

void *mb_alloc_aligned(size_t align, size_t size_bytes)
{
    if (fault_hit("alloc")) return NULL;
    void *p = NULL;
    if (align < sizeof(void *)) align = sizeof(void *);
    return posix_memalign(&p, align, size_bytes ? size_bytes : 1) == 0 ? p : NULL;
}

/* --- arenas --- */

enum { ARENA_ALIGN = 16, ARENA_BLOCK_MIN = 4096, ARENA_BLOCK_MAX = 1 << 20 };

struct arena_block {
    struct arena_block *next;
    size_t cap;  /* bytes in data */
    size_t used; /* multiple of ARENA_ALIGN */
    _Alignas(16) char data[];
};

void arena_init(struct arena *a, size_t limit_bytes)
{
    *a = (struct arena){ .limit_bytes = limit_bytes };
}

void arena_free(struct arena *a)
{
    for (struct arena_block *block = a->head, *next; block; block = next) {
        next = block->next;
        mb_free(block);
    }
    *a = (struct arena){ .limit_bytes = a->limit_bytes };
}

static struct arena_block *block_new(size_t cap)
{
    if (cap > SIZE_MAX - sizeof(struct arena_block)) return NULL;
    struct arena_block *block = mb_alloc(sizeof *block + cap);
    if (block) *block = (struct arena_block){ .cap = cap };
    return block;
}

/* A block with room for size bytes: the head, a new head, or a block of its own kept behind the head. */
static struct arena_block *block_for(struct arena *a, size_t size)
{
    struct arena_block *head = a->head;
    if (head && head->cap - head->used >= size) return head;
    size_t cap = head ? head->cap * 2 : ARENA_BLOCK_MIN;
    if (cap > ARENA_BLOCK_MAX) cap = ARENA_BLOCK_MAX;
    bool own = size > cap / 2;
    struct arena_block *block = block_new(own ? size : cap);
    if (!block) return NULL;
    if (own && head) {
        block->next = head->next;
        head->next = block;
    } else {
        block->next = head;
        a->head = block;
    }
    return block;
}

void *arena_alloc(struct arena *a, size_t size_bytes)
{
    if (a->failed) return NULL;
    size_t size = size_bytes ? size_bytes : 1;
    if (size > SIZE_MAX - ARENA_ALIGN) goto fail;
    size = (size + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
    if (a->limit_bytes && (a->used_bytes > a->limit_bytes || size > a->limit_bytes - a->used_bytes)) {
        a->over_limit = true;
        goto fail;
    }
    struct arena_block *block = block_for(a, size);
    if (!block) goto fail;
    void *p = block->data + block->used;
    block->used += size;
    a->used_bytes += size;
    return memset(p, 0, size);
fail:
    a->failed = true;
    return NULL;
}

void *arena_alloc_array(struct arena *a, size_t n, size_t size_bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n, size_bytes, &total)) {
        a->failed = true;
        return NULL;
    }
    return arena_alloc(a, total);
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_strndup(struct arena *a, const char *s, size_t len)
{
    if (len == SIZE_MAX) {
        a->failed = true;
        return NULL;
    }
    char *copy = arena_alloc(a, len + 1);
    if (copy && len) memcpy(copy, s, len);
    return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = NULL;
    if (n >= 0) text = arena_alloc(a, (size_t)n + 1);
    else a->failed = true;
    if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}
