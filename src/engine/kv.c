/* kv.c: chunks and pages of the pool. See kv.h for the idea.
 *
 * Chunk size: about 4 MB and at least eight of the largest pages, but never so large that a small pool has fewer than
 * eight chunks a kind. Empty chunks go to a free list, the ones that were used in front: they are warm. Beyond
 * KEEP_DIRTY of them the memory goes back to the system, so that a burst leaves nothing behind and a steady load
 * never asks the system twice for the same chunk. */
#include "engine/kv.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { CHUNK_BYTES = 4 << 20, CHUNK_PAGES = 8, CHUNKS_A_KIND = 8, KEEP_DIRTY = 8 };

static size_t round_up(size_t v, size_t unit)
{
    return (v + unit - 1) / unit * unit;
}

static size_t page_bytes_of(const struct kv_kind *k)
{
    return round_up(k->page_bytes ? k->page_bytes : 1, KV_PAGE_UNIT);
}

static size_t largest_page(const struct kv_kind *kinds, int32_t n_kinds)
{
    size_t largest = KV_PAGE_UNIT;
    for (int32_t k = 0; k < n_kinds; k++)
        if (page_bytes_of(&kinds[k]) > largest) largest = page_bytes_of(&kinds[k]);
    return largest;
}

static size_t chunk_bytes_for(const struct kv_kind *kinds, int32_t n_kinds, size_t pool_bytes)
{
    size_t largest = largest_page(kinds, n_kinds);
    size_t want = largest * CHUNK_PAGES > CHUNK_BYTES ? largest * CHUNK_PAGES : round_up(CHUNK_BYTES, largest);
    size_t most = pool_bytes / ((size_t)CHUNKS_A_KIND * (size_t)(n_kinds > 0 ? n_kinds : 1)) / largest * largest;
    if (want > most) want = most;
    return want < largest ? largest : want;
}

void kv_pages_needed(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens, int64_t need[KV_MAX_KINDS])
{
    memset(need, 0, KV_MAX_KINDS * sizeof need[0]);
    for (int32_t k = 0; k < n_kinds; k++) {
        int64_t all = ((int64_t)n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        int64_t window = ((int64_t)kinds[k].window + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1;
        if (kinds[k].type == KIND_STATE) need[k] = 1;
        else need[k] = kinds[k].type == KIND_WINDOW && window < all ? window : all;
    }
}

/* Whole chunks that `need` takes of an empty pool. */
static int64_t chunks_for(const struct kv_kind *kinds, int32_t n_kinds, size_t chunk_bytes,
                          const int64_t need[KV_MAX_KINDS])
{
    int64_t n = 0;
    for (int32_t k = 0; k < n_kinds; k++) {
        int64_t slots = (int64_t)(chunk_bytes / page_bytes_of(&kinds[k]));
        n += (need[k] + slots - 1) / slots;
    }
    return n;
}

size_t kv_pool_bytes_for(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens)
{
    if (n_kinds == 0) return 0;
    int64_t need[KV_MAX_KINDS];
    size_t bytes = largest_page(kinds, n_kinds) * (size_t)n_kinds;
    kv_pages_needed(kinds, n_kinds, n_tokens, need);
    for (int32_t k = 0; k < n_kinds; k++) bytes += (size_t)need[k] * page_bytes_of(&kinds[k]);
    /* The chunk size depends on the pool: grow until the rounding fits. */
    for (;;) {
        size_t chunk = chunk_bytes_for(kinds, n_kinds, bytes);
        size_t want = (size_t)chunks_for(kinds, n_kinds, chunk, need) * chunk;
        if (want <= bytes) return bytes;
        bytes = want;
    }
}

static void list_push(struct kv_pool *p, int32_t *head, int32_t c)
{
    p->chunk[c].prev = -1;
    p->chunk[c].next = *head;
    if (*head >= 0) p->chunk[*head].prev = c;
    *head = c;
}

static void list_remove(struct kv_pool *p, int32_t *head, int32_t c)
{
    struct kv_chunk *k = &p->chunk[c];
    if (k->prev >= 0) p->chunk[k->prev].next = k->next;
    else *head = k->next;
    if (k->next >= 0) p->chunk[k->next].prev = k->prev;
}

static void kinds_init(struct kv_pool *p)
{
    for (int32_t k = 0; k < p->n_kinds; k++) {
        struct kv_kind_use *u = &p->use[k];
        u->page_bytes = page_bytes_of(&p->kinds[k]);
        u->units = (int32_t)(u->page_bytes / KV_PAGE_UNIT);
        u->n_slot = (int32_t)(p->chunk_bytes / u->page_bytes);
        u->with_room = -1;
        if (u->n_slot > p->n_slot_max) p->n_slot_max = u->n_slot;
    }
}

mb_status kv_pool_init(struct kv_pool *p, struct stepper *st, const struct kv_kind *kinds, int32_t n_kinds,
                       size_t pool_bytes, mb_error *err)
{
    memset(p, 0, sizeof *p);
    p->stepper = st;
    p->kinds = kinds;
    p->free_chunk = -1;
    if (n_kinds == 0) return MB_OK;
    if (n_kinds < 0 || n_kinds > KV_MAX_KINDS)
        return mb_fail(err, MB_INVALID, "%d KV kinds, at most %d are possible", (int)n_kinds, KV_MAX_KINDS);
    p->n_kinds = n_kinds;
    p->chunk_bytes = chunk_bytes_for(kinds, n_kinds, pool_bytes);
    p->chunk_units = (int32_t)(p->chunk_bytes / KV_PAGE_UNIT);
    size_t n_chunk = pool_bytes / p->chunk_bytes;
    size_t most = (size_t)INT32_MAX / (size_t)p->chunk_units;
    if (n_chunk > most) n_chunk = most; /* page ids are 32 bit: 8 TB */
    if (n_chunk < (size_t)n_kinds)
        return mb_fail(err, MB_INVALID, "a KV pool of %zu bytes has no room for one page of each of %d kinds (%zu bytes "
                       "each at most); give it a larger --kv-budget or --memory-budget", pool_bytes, (int)n_kinds,
                       p->chunk_bytes);
    p->n_chunk = (int32_t)n_chunk;
    kinds_init(p);
    p->chunk = mb_calloc(n_chunk, sizeof *p->chunk);
    p->page = mb_calloc(n_chunk * (size_t)p->n_slot_max, sizeof *p->page);
    if (!p->chunk || !p->page) {
        kv_pool_free(p);
        return mb_fail(err, MB_NO_MEMORY, "no memory for the tables of a KV pool of %zu bytes", pool_bytes);
    }
    for (int32_t c = p->n_chunk - 1; c >= 0; c--) {
        p->chunk[c].i_kind = -1;
        list_push(p, &p->free_chunk, c);
    }
    p->n_free_chunks = p->n_chunk;
    mb_status rc = st->pool_reserve ? st->pool_reserve(st->ctx, kv_pool_total_bytes(p), err) : MB_OK;
    if (rc != MB_OK) kv_pool_free(p);
    return rc;
}

void kv_pool_free(struct kv_pool *p)
{
    mb_free(p->chunk);
    mb_free(p->page);
    memset(p, 0, sizeof *p);
}

size_t kv_pool_total_bytes(const struct kv_pool *p)
{
    return (size_t)p->n_chunk * p->chunk_bytes;
}

static struct kv_page *page_at(const struct kv_pool *p, int32_t id)
{
    int32_t c = id / p->chunk_units;
    int32_t slot = id % p->chunk_units / p->use[p->chunk[c].i_kind].units;
    return &p->page[(size_t)c * (size_t)p->n_slot_max + (size_t)slot];
}

/* Give a free chunk to a kind; its slots start fresh. */
static int32_t chunk_take(struct kv_pool *p, int32_t i_kind)
{
    int32_t c = p->free_chunk;
    if (c < 0) return -1;
    struct kv_chunk *k = &p->chunk[c];
    list_remove(p, &p->free_chunk, c);
    p->n_free_chunks--;
    if (k->dirty) p->n_dirty_free--;
    *k = (struct kv_chunk){ .i_kind = i_kind, .free_slot = -1, .dirty = true };
    list_push(p, &p->use[i_kind].with_room, c);
    p->use[i_kind].n_free_slots += p->use[i_kind].n_slot;
    return c;
}

/* The last page of a chunk went: the chunk is anybody's again. */
static void chunk_return(struct kv_pool *p, int32_t c)
{
    struct kv_chunk *k = &p->chunk[c];
    struct kv_kind_use *u = &p->use[k->i_kind];
    list_remove(p, &u->with_room, c);
    u->n_free_slots -= u->n_slot;
    k->i_kind = -1;
    p->n_free_chunks++;
    if (p->n_dirty_free < KEEP_DIRTY || !p->stepper->pool_release) {
        p->n_dirty_free++;
        list_push(p, &p->free_chunk, c);
        return;
    }
    p->stepper->pool_release(p->stepper->ctx, (size_t)c * p->chunk_bytes, p->chunk_bytes);
    k->dirty = false;
    /* Behind the dirty ones: after the head, which is dirty. */
    int32_t head = p->free_chunk;
    int32_t last = head;
    while (p->chunk[last].next >= 0 && p->chunk[p->chunk[last].next].dirty) last = p->chunk[last].next;
    k->prev = last;
    k->next = p->chunk[last].next;
    if (k->next >= 0) p->chunk[k->next].prev = c;
    p->chunk[last].next = c;
}

int32_t kv_page_alloc(struct kv_pool *p, int32_t i_kind)
{
    struct kv_kind_use *u = &p->use[i_kind];
    int32_t c = u->with_room >= 0 ? u->with_room : chunk_take(p, i_kind);
    if (c < 0) return -1;
    struct kv_chunk *k = &p->chunk[c];
    int32_t slot = k->free_slot;
    struct kv_page *pages = p->page + (size_t)c * (size_t)p->n_slot_max;
    if (slot >= 0) k->free_slot = pages[slot].next_free;
    else slot = k->n_touched++;
    pages[slot] = (struct kv_page){ .n_seq = 1, .next_free = -1 };
    if (++k->n_used == u->n_slot) list_remove(p, &u->with_room, c);
    u->n_free_slots--;
    u->n_held++;
    return c * p->chunk_units + slot * u->units;
}

static void page_free(struct kv_pool *p, int32_t i_kind, int32_t id)
{
    int32_t c = id / p->chunk_units;
    struct kv_chunk *k = &p->chunk[c];
    struct kv_kind_use *u = &p->use[i_kind];
    struct kv_page *pg = page_at(p, id);
    pg->next_free = k->free_slot;
    k->free_slot = (int32_t)(pg - (p->page + (size_t)c * (size_t)p->n_slot_max));
    if (k->n_used-- == u->n_slot) list_push(p, &u->with_room, c);
    u->n_free_slots++;
    if (k->n_used == 0) chunk_return(p, c);
}

void kv_page_ref(struct kv_pool *p, int32_t i_kind, int32_t id)
{
    struct kv_page *pg = page_at(p, id);
    if (pg->n_seq++ > 0) return;
    p->use[i_kind].n_held++;
    p->use[i_kind].n_cached--;
}

void kv_page_unref(struct kv_pool *p, int32_t i_kind, int32_t id)
{
    struct kv_page *pg = page_at(p, id);
    if (--pg->n_seq > 0) return;
    p->use[i_kind].n_held--;
    if (pg->in_tree) p->use[i_kind].n_cached++;
    else page_free(p, i_kind, id);
}

void kv_page_cache(struct kv_pool *p, int32_t i_kind, int32_t id)
{
    struct kv_page *pg = page_at(p, id);
    pg->in_tree = true;
    if (pg->n_seq == 0) p->use[i_kind].n_cached++;
}

void kv_page_uncache(struct kv_pool *p, int32_t i_kind, int32_t id)
{
    struct kv_page *pg = page_at(p, id);
    pg->in_tree = false;
    if (pg->n_seq > 0) return;
    p->use[i_kind].n_cached--;
    page_free(p, i_kind, id);
}

bool kv_page_is_held(const struct kv_pool *p, int32_t id)
{
    return page_at(p, id)->n_seq > 0;
}

bool kv_page_is_cached(const struct kv_pool *p, int32_t id)
{
    return page_at(p, id)->in_tree;
}

int32_t kv_page_copy(struct kv_pool *p, int32_t i_kind, int32_t src)
{
    int32_t dst = kv_page_alloc(p, i_kind);
    if (dst >= 0) p->stepper->page_copy(p->stepper->ctx, i_kind, dst, src);
    return dst;
}

bool kv_pool_has_room(const struct kv_pool *p, const int64_t need[KV_MAX_KINDS], bool with_cached)
{
    int64_t chunks = 0;
    for (int32_t k = 0; k < p->n_kinds; k++) {
        const struct kv_kind_use *u = &p->use[k];
        int64_t lack = need[k] - u->n_free_slots - (with_cached ? u->n_cached : 0);
        if (lack > 0) chunks += (lack + u->n_slot - 1) / u->n_slot;
    }
    return chunks <= p->n_free_chunks;
}

/* Largest n_tokens that n_chunk chunks hold. */
static int32_t tokens_in(const struct kv_kind *kinds, int32_t n_kinds, size_t chunk_bytes, int64_t n_chunk, int32_t n_max)
{
    if (n_kinds == 0) return n_max;
    int32_t lo = 0, hi = n_max; /* lo fits */
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        int64_t need[KV_MAX_KINDS];
        kv_pages_needed(kinds, n_kinds, mid, need);
        if (chunks_for(kinds, n_kinds, chunk_bytes, need) <= n_chunk) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}

int32_t kv_pool_max_tokens(const struct kv_pool *p, int32_t n_max)
{
    return tokens_in(p->kinds, p->n_kinds, p->chunk_bytes, p->n_chunk, n_max);
}

int32_t kv_pool_tokens_for(const struct kv_kind *kinds, int32_t n_kinds, size_t pool_bytes, int32_t n_max)
{
    size_t chunk = chunk_bytes_for(kinds, n_kinds, pool_bytes);
    return tokens_in(kinds, n_kinds, chunk, (int64_t)(pool_bytes / chunk), n_max);
}

size_t kv_pages_bytes(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens)
{
    int64_t need[KV_MAX_KINDS];
    size_t bytes = 0;
    kv_pages_needed(kinds, n_kinds, n_tokens, need);
    for (int32_t k = 0; k < n_kinds; k++) bytes += (size_t)need[k] * page_bytes_of(&kinds[k]);
    return bytes;
}

/* 1, 2, 4 .. pages of the prompt, its end, and the end of the text. */
static int64_t copies_of_state(int32_t n_tokens)
{
    int64_t n = 2;
    for (int64_t at = KV_PAGE_TOKENS; at < n_tokens; at *= 2) n++;
    return n;
}

size_t kv_pages_kept_bytes(const struct kv_kind *kinds, int32_t n_kinds, int32_t n_tokens, int32_t n_rows, bool cached)
{
    int64_t need[KV_MAX_KINDS], all = ((int64_t)n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    int64_t step = ((int64_t)n_rows + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    size_t bytes = 0;
    kv_pages_needed(kinds, n_kinds, n_tokens, need);
    for (int32_t k = 0; k < n_kinds; k++) {
        int64_t kept = kinds[k].type == KIND_WINDOW ? all - need[k] : kinds[k].type == KIND_STATE && cached ? copies_of_state(n_tokens) : 0;
        if (!cached && kept > step) kept = step;
        bytes += (size_t)kept * page_bytes_of(&kinds[k]);
    }
    return bytes;
}

void kv_pool_usage(const struct kv_pool *p, struct kv_usage *out)
{
    memset(out, 0, sizeof *out);
    for (int32_t k = 0; k < p->n_kinds; k++) {
        const struct kv_kind_use *u = &p->use[k];
        out->n_held += u->n_held;
        out->n_cached += u->n_cached;
        out->held_bytes += (size_t)u->n_held * u->page_bytes;
        out->cached_bytes += (size_t)u->n_cached * u->page_bytes;
    }
    out->free_bytes = kv_pool_total_bytes(p) - out->held_bytes - out->cached_bytes;
}

/* Pages of one chunk by state; false when its own counts are wrong. */
static bool chunk_check(const struct kv_pool *p, int32_t c, struct kv_kind_use *sum)
{
    const struct kv_chunk *k = &p->chunk[c];
    int32_t used = 0;
    for (int32_t i = 0; i < p->n_slot_max; i++) {
        const struct kv_page *pg = &p->page[(size_t)c * (size_t)p->n_slot_max + (size_t)i];
        if (pg->n_seq == 0 && !pg->in_tree) continue;
        used++;
        if (pg->n_seq < 0 || k->i_kind < 0 || i >= p->use[k->i_kind].n_slot) return false;
        if (pg->n_seq > 0) sum[k->i_kind].n_held++;
        else sum[k->i_kind].n_cached++;
    }
    if (k->i_kind >= 0) sum[k->i_kind].n_free_slots += p->use[k->i_kind].n_slot - used;
    return used == (k->i_kind < 0 ? 0 : k->n_used);
}

bool kv_pool_check(const struct kv_pool *p, char *text, size_t cap)
{
    struct kv_kind_use sum[KV_MAX_KINDS] = { { 0 } };
    int32_t n_free = 0;
    for (int32_t c = 0; c < p->n_chunk; c++) {
        if (p->chunk[c].i_kind < 0) n_free++;
        if (chunk_check(p, c, sum)) continue;
        snprintf(text, cap, "chunk %d: wrong page counts", (int)c);
        return false;
    }
    for (int32_t k = 0; k < p->n_kinds; k++) {
        const struct kv_kind_use *u = &p->use[k];
        if (u->n_held == sum[k].n_held && u->n_cached == sum[k].n_cached && u->n_free_slots == sum[k].n_free_slots)
            continue;
        snprintf(text, cap, "kind %d: held %lld, counted %lld; cached %lld, counted %lld", (int)k, (long long)u->n_held,
                 (long long)sum[k].n_held, (long long)u->n_cached, (long long)sum[k].n_cached);
        return false;
    }
    if (n_free == p->n_free_chunks) return true;
    snprintf(text, cap, "%d free chunks, counted %d", (int)p->n_free_chunks, (int)n_free);
    return false;
}
