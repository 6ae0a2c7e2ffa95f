/* test_kv.c: chunks and pages of the KV pool: counts, sharing, chunks changing kinds, what is given back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv.h"

static const struct kv_kind kinds[] = { { .type = KIND_FULL, .page_bytes = 10000 },
                                        { .type = KIND_WINDOW, .window = 100, .page_bytes = 5000 },
                                        { .type = KIND_STATE, .page_bytes = 30000 } };

static size_t reserved, n_released, n_copied;

static mb_status fake_reserve(void *ctx, size_t bytes, mb_error *err)
{
    reserved = bytes;
    return MB_OK;
}
static void fake_release(void *ctx, size_t off, size_t bytes)
{
    assert_true(off + bytes <= reserved);
    n_released++;
}
static void fake_copy(void *ctx, int32_t i_kind, int32_t dst, int32_t src)
{
    assert_true(dst != src);
    n_copied++;
}

static struct stepper fake = { .pool_reserve = fake_reserve, .page_copy = fake_copy, .pool_release = fake_release };

static void pool_open(struct kv_pool *p, int32_t n_kinds, size_t bytes)
{
    mb_error err;
    reserved = n_released = n_copied = 0;
    if (kv_pool_init(p, &fake, kinds, n_kinds, bytes, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(reserved, kv_pool_total_bytes(p));
    assert_true(reserved <= bytes);
}

static void assert_sound(const struct kv_pool *p)
{
    char text[200];
    if (!kv_pool_check(p, text, sizeof text)) fail_msg("%s", text);
}

static void test_pages_are_rounded_and_distinct(void **state)
{
    struct kv_pool p;
    pool_open(&p, 2, 4 << 20);
    assert_int_equal(p.use[0].page_bytes, 3 * KV_PAGE_UNIT);
    assert_int_equal(p.use[1].page_bytes, 2 * KV_PAGE_UNIT);
    static uint8_t owner[(4 << 20) / KV_PAGE_UNIT];
    memset(owner, 0, sizeof owner);
    int32_t id, n[2] = { 0 };
    for (int32_t turn = 0; (id = kv_page_alloc(&p, turn % 2)) >= 0; turn++) {
        n[turn % 2]++;
        for (int32_t u = 0; u < p.use[turn % 2].units; u++) assert_int_equal(owner[id + u]++, 0);
    }
    assert_true(n[0] > 100);
    assert_sound(&p);
    struct kv_usage u;
    kv_pool_usage(&p, &u);
    assert_int_equal(u.n_held, n[0] + n[1]);
    assert_true(u.held_bytes > (size_t)(4 << 20) * 8 / 10); /* little is lost to rounding */
    kv_pool_free(&p);
}

static void test_counts_of_shared_and_cached(void **state)
{
    struct kv_pool p;
    struct kv_usage u;
    pool_open(&p, 3, 8 << 20);
    int32_t a = kv_page_alloc(&p, 0);
    kv_page_ref(&p, 0, a);
    kv_page_unref(&p, 0, a);
    kv_pool_usage(&p, &u);
    assert_int_equal(u.n_held, 1);
    kv_page_cache(&p, 0, a);
    kv_pool_usage(&p, &u);
    assert_int_equal(u.n_held, 1);
    assert_int_equal(u.n_cached, 0);
    kv_page_unref(&p, 0, a);
    kv_pool_usage(&p, &u);
    assert_int_equal(u.n_held, 0);
    assert_int_equal(u.n_cached, 1);
    assert_sound(&p);
    kv_page_ref(&p, 0, a);
    kv_pool_usage(&p, &u);
    assert_int_equal(u.n_held, 1);
    assert_int_equal(u.n_cached, 0);
    kv_page_uncache(&p, 0, a);
    kv_page_unref(&p, 0, a);
    kv_pool_usage(&p, &u);
    assert_int_equal(u.n_held + u.n_cached, 0);
    assert_int_equal(u.free_bytes, kv_pool_total_bytes(&p));
    assert_int_equal(p.n_free_chunks, p.n_chunk);
    int32_t b = kv_page_alloc(&p, 1), c = kv_page_copy(&p, 1, b);
    assert_true(c >= 0 && c != b);
    assert_int_equal(n_copied, 1);
    assert_sound(&p);
    kv_pool_free(&p);
}

/* A chunk belongs to one kind until its last page is free; then any kind may have it. */
static void test_chunks_change_kinds(void **state)
{
    struct kv_pool p;
    pool_open(&p, 2, 2 << 20);
    enum { MAX = 1000 };
    static int32_t ids[MAX];
    for (int round = 0; round < 4; round++) {
        int k = round % 2;
        int32_t n = 0;
        while ((ids[n] = kv_page_alloc(&p, k)) >= 0) n++;
        assert_true(n > 100);
        assert_int_equal(kv_page_alloc(&p, 1 - k), -1);
        /* One page of each chunk keeps it. */
        int32_t slots = p.use[k].n_slot;
        for (int32_t i = 0; i < n; i++)
            if (i % slots) kv_page_unref(&p, k, ids[i]);
        assert_int_equal(kv_page_alloc(&p, 1 - k), -1);
        int64_t need[KV_MAX_KINDS] = { 0 };
        need[1 - k] = 1;
        assert_false(kv_pool_has_room(&p, need, true));
        for (int32_t i = 0; i < n; i += slots) kv_page_unref(&p, k, ids[i]);
        assert_true(kv_pool_has_room(&p, need, true));
        assert_sound(&p);
    }
    kv_pool_free(&p);
}

/* A burst leaves nothing behind: all but a few empty chunks go back to the system, and a steady load never asks twice. */
static void test_memory_goes_back(void **state)
{
    struct kv_pool p;
    pool_open(&p, 1, 64 << 20);
    enum { N = 3000 };
    static int32_t ids[N];
    for (int32_t i = 0; i < N; i++) assert_true((ids[i] = kv_page_alloc(&p, 0)) >= 0);
    int32_t used = p.n_chunk - p.n_free_chunks;
    for (int32_t i = 0; i < N; i++) kv_page_unref(&p, 0, ids[i]);
    assert_int_equal(p.n_free_chunks, p.n_chunk);
    assert_true(used <= 8 || n_released > 0);
    size_t before = n_released;
    for (int round = 0; round < 50; round++) {
        int32_t id = kv_page_alloc(&p, 0);
        kv_page_unref(&p, 0, id);
    }
    assert_int_equal(n_released, before);
    assert_sound(&p);
    kv_pool_free(&p);
}

static void test_needs_and_largest_context(void **state)
{
    int64_t need[KV_MAX_KINDS];
    kv_pages_needed(kinds, 3, 1, need);
    assert_int_equal(need[0], 1);
    assert_int_equal(need[1], 1);
    assert_int_equal(need[2], 1);
    kv_pages_needed(kinds, 3, 6400, need);
    assert_int_equal(need[0], 100);
    assert_int_equal(need[1], 3); /* 100 keys touch at most 3 pages */
    assert_int_equal(need[2], 1);
    for (int32_t n = 1; n < 20000; n = n * 3 + 7) {
        struct kv_pool p;
        pool_open(&p, 3, kv_pool_bytes_for(kinds, 3, n));
        assert_true(kv_pool_max_tokens(&p, 1 << 20) >= n);
        assert_true(kv_pool_total_bytes(&p) < (size_t)n * 400 + (2 << 20)); /* and not absurdly more */
        kv_pages_needed(kinds, 3, n, need);
        for (int32_t k = 0; k < 3; k++)
            for (int64_t i = 0; i < need[k]; i++) assert_true(kv_page_alloc(&p, k) >= 0);
        kv_pool_free(&p);
    }
    struct kv_pool p;
    mb_error err;
    assert_int_equal(kv_pool_init(&p, &fake, kinds, 3, 40000, &err), MB_INVALID);
    assert_int_equal(kv_pool_init(&p, &fake, kinds, 0, 0, &err), MB_OK);
    assert_int_equal(kv_pool_max_tokens(&p, 777), 777);
    kv_pool_free(&p);
}

/* Seeded random walk over everything; counts are recounted as it goes. */
static void test_random_walk(void **state)
{
    enum { N = 600 };
    static struct { int32_t id, kind, n_ref; bool cached; } page[N];
    struct kv_pool p;
    int32_t n = 0;
    srand(7);
    pool_open(&p, 3, 6 << 20);
    for (int step = 0; step < 60000; step++) {
        int32_t i = n > 0 ? rand() % n : 0;
        int what = rand() % 6;
        if (what == 0 && n < N) {
            page[n].kind = rand() % 3;
            page[n].id = kv_page_alloc(&p, page[n].kind);
            page[n].n_ref = 1;
            page[n].cached = false;
            n += page[n].id >= 0;
        } else if (n > 0 && what == 1) {
            kv_page_ref(&p, page[i].kind, page[i].id);
            page[i].n_ref++;
        } else if (n > 0 && what <= 3 && page[i].n_ref > 0) {
            kv_page_unref(&p, page[i].kind, page[i].id);
            page[i].n_ref--;
        } else if (n > 0 && what == 4 && !page[i].cached) {
            kv_page_cache(&p, page[i].kind, page[i].id);
            page[i].cached = true;
        } else if (n > 0 && what == 5 && page[i].cached) {
            kv_page_uncache(&p, page[i].kind, page[i].id);
            page[i].cached = false;
        }
        if (n > 0 && page[i].n_ref == 0 && !page[i].cached) page[i] = page[--n];
        if (step % 500 == 0) assert_sound(&p);
    }
    for (int32_t i = 0; i < n; i++) {
        while (page[i].n_ref-- > 0) kv_page_unref(&p, page[i].kind, page[i].id);
        if (page[i].cached) kv_page_uncache(&p, page[i].kind, page[i].id);
    }
    assert_sound(&p);
    assert_int_equal(p.n_free_chunks, p.n_chunk);
    kv_pool_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_are_rounded_and_distinct),
        cmocka_unit_test(test_counts_of_shared_and_cached),
        cmocka_unit_test(test_chunks_change_kinds),
        cmocka_unit_test(test_memory_goes_back),
        cmocka_unit_test(test_needs_and_largest_context),
        cmocka_unit_test(test_random_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
