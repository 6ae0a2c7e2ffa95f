/* kv.h: the pool of KV pages: one block of address space for all kinds of one stepper.
 *
 * The pool is cut into chunks of a few MB. A chunk belongs to one kind from its first page until its last page is free
 * again, so that kinds with pages of different size share the pool without fragmentation inside a chunk. A page id is
 * its byte offset / KV_PAGE_UNIT: a backend multiplies and knows no more.
 * Each page counts the sequences that hold it and remembers whether the prefix tree does: held (by a sequence), cached
 * (by the tree alone) or free. A page that two sequences hold is never written: the partial last page is copied first.
 * Sizes are fixed at open; nothing here allocates afterwards. Threads: the engine's only.
 */
#ifndef ENGINE_KV_H
#define ENGINE_KV_H

#include "engine/stepper.h"
#include "ops/ops.h"

struct kv_page {
    int32_t n_seq;     /* sequences that hold it; 0 and not in_tree = free (as the zeroed table starts) */
    int32_t next_free; /* slot of the next free page in its chunk, -1 = last */
    bool in_tree;
};

struct kv_chunk {
    int32_t i_kind;     /* -1 = free */
    int32_t n_used;
    int32_t n_touched;  /* slots ever handed out since the chunk got its kind: later ones are fresh */
    int32_t free_slot;  /* first of the list of returned slots, -1 = none */
    int32_t prev, next; /* list of the kind's chunks with room, or of the free chunks */
    bool dirty;         /* pages may be backed by memory */
};

struct kv_kind_use {
    size_t page_bytes;      /* rounded up to KV_PAGE_UNIT */
    int32_t units, n_slot;  /* units of a page, pages of a chunk */
    int32_t with_room;      /* first chunk with a free slot, -1 = none */
    int64_t n_free_slots;   /* in chunks that the kind owns */
    int64_t n_held, n_cached;
};

struct kv_pool {
    struct stepper *stepper; /* borrowed: page_copy, pool_release */
    const struct kv_kind *kinds; /* borrowed from the stepper */
    int32_t n_kinds;
    struct kv_kind_use use[KV_MAX_KINDS];
    struct kv_chunk *chunk;  /* [n_chunk] owned */
    struct kv_page *page;    /* [n_chunk][n_slot_max] owned */
    size_t chunk_bytes;
    int32_t chunk_units, n_chunk, n_slot_max;
    int32_t free_chunk;      /* list head, dirty ones first */
    int32_t n_free_chunks, n_dirty_free;
};

/* Bytes of pool in which one sequence of n_tokens fits with its chunks rounded up. */
size_t kv_pool_bytes_for(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens);
/* Bytes of the pages that one sequence of n_tokens holds. */
size_t kv_pages_bytes(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens);
/* Bytes of further pages that stay filled behind one sequence of n_tokens while the pool has room, and go when it has none: with the
 * prompt cache the pages that a window has left and copies of recurrent states; without it what one step of n_rows adds to a window. */
size_t kv_pages_kept_bytes(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens, int32_t n_rows, bool cached);
/* Largest n_tokens (up to n_max) of one sequence in a pool of so many bytes: kv_pool_max_tokens before there is a pool. */
int32_t kv_pool_tokens_for(const struct kv_kind *kinds, int32_t n_kinds, size_t pool_bytes, int32_t n_max);
/* Cut pool_bytes into chunks and reserve them with the stepper. MB_INVALID: not even one chunk a kind. */
mb_status kv_pool_init(struct kv_pool *p, struct stepper *st, const struct kv_kind *kinds, int32_t n_kinds,
                       size_t pool_bytes, mb_error *err);
void kv_pool_free(struct kv_pool *p);
size_t kv_pool_total_bytes(const struct kv_pool *p);

/* A free page held by one sequence, or -1. */
int32_t kv_page_alloc(struct kv_pool *p, int32_t i_kind);
/* One more / one fewer sequence holds it. Freed when neither a sequence nor the tree has it. */
void kv_page_ref(struct kv_pool *p, int32_t i_kind, int32_t id);
void kv_page_unref(struct kv_pool *p, int32_t i_kind, int32_t id);
/* The tree takes or drops its hold; at most one node has a page. */
void kv_page_cache(struct kv_pool *p, int32_t i_kind, int32_t id);
void kv_page_uncache(struct kv_pool *p, int32_t i_kind, int32_t id);
/* Held by a sequence / known to the tree. */
bool kv_page_is_held(const struct kv_pool *p, int32_t id);
bool kv_page_is_cached(const struct kv_pool *p, int32_t id);
/* New page with the bytes of src, held by one sequence; -1 when the pool is full. */
int32_t kv_page_copy(struct kv_pool *p, int32_t i_kind, int32_t src);

/* Pages of each kind that a sequence of n_tokens holds at least: a window kind needs its window and one page more. */
void kv_pages_needed(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens, int64_t need[KV_MAX_KINDS]);
/* Would `need` fit, taking free pages, and with_cached also those that the tree alone has? */
bool kv_pool_has_room(const struct kv_pool *p, const int64_t need[KV_MAX_KINDS], bool with_cached);
/* Largest n_tokens (up to n_max) that fits the empty pool. */
int32_t kv_pool_max_tokens(const struct kv_pool *p, int32_t n_max);

struct kv_usage {
    int64_t n_held, n_cached;
    size_t held_bytes, cached_bytes, free_bytes; /* free: not in any page, slack of chunks included */
};
void kv_pool_usage(const struct kv_pool *p, struct kv_usage *out);
/* Recount everything; false and a text when a count is wrong (tests). */
bool kv_pool_check(const struct kv_pool *p, char *text, size_t cap);

#endif
