/* test_prefix_tree.c: the radix tree over KV pages against a plain list of everything that was published. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/prefix_tree.h"

enum { CONTEXT = 2048, MAX_PAGES = CONTEXT / KV_PAGE_TOKENS + 1 };

static const struct kv_kind full[] = { { .type = KIND_FULL, .page_bytes = 4096 } };
static const struct kv_kind mixed[] = { { .type = KIND_FULL, .page_bytes = 4096 },
                                        { .type = KIND_WINDOW, .window = 100, .page_bytes = 4096 } };
static const struct kv_kind states[] = { { .type = KIND_FULL, .page_bytes = 4096 },
                                         { .type = KIND_STATE, .page_bytes = 8192 } };

struct fx {
    struct kv_pool kv;
    struct prefix_tree tree;
};

static mb_status fake_reserve(void *ctx, size_t bytes, mb_error *err) { return MB_OK; }
static void fake_release(void *ctx, size_t off, size_t bytes) { }
static void fake_copy(void *ctx, int32_t i_kind, int32_t dst, int32_t src) { }
static struct stepper fake = { .pool_reserve = fake_reserve, .page_copy = fake_copy, .pool_release = fake_release };

static void fx_open(struct fx *f, const struct kv_kind *kinds, int32_t n_kinds, size_t cap)
{
    mb_error err;
    assert_int_equal(kv_pool_init(&f->kv, &fake, kinds, n_kinds, 8 << 20, &err), MB_OK);
    assert_int_equal(prefix_tree_init(&f->tree, &f->kv, cap, CONTEXT, &err), MB_OK);
}

static void assert_sound(struct fx *f)
{
    char text[200];
    if (!kv_pool_check(&f->kv, text, sizeof text) || !prefix_tree_check(&f->tree, text, sizeof text)) fail_msg("%s", text);
}

static void fx_close(struct fx *f)
{
    struct kv_usage u;
    prefix_tree_clear(&f->tree);
    assert_sound(f);
    kv_pool_usage(&f->kv, &u);
    assert_int_equal(u.n_held + u.n_cached, 0);
    assert_int_equal(f->tree.bytes, 0);
    assert_null(f->tree.top);
    prefix_tree_free(&f->tree);
    kv_pool_free(&f->kv);
}

/* Publish ids as a fresh sequence with its own pages; keys of a window kind that left the window may be missing. */
static void publish(struct fx *f, uint64_t key, const int32_t *ids, int32_t n, int32_t drop_before)
{
    struct seq_state st = { .n_committed = n };
    static int32_t table[KV_MAX_KINDS][MAX_PAGES];
    struct symbol_view v = { NULL, 0, ids };
    for (int32_t k = 0; k < f->kv.n_kinds; k++) {
        st.kind[k] = (struct kv_table){ table[k], f->kv.kinds[k].type == KIND_STATE ? 0 : (n + 63) / 64, MAX_PAGES };
        for (int32_t j = 0; j < st.kind[k].n_page; j++) {
            bool gone = f->kv.kinds[k].type == KIND_WINDOW && (j + 1) * 64 <= drop_before;
            table[k][j] = gone ? -1 : kv_page_alloc(&f->kv, k);
            assert_true(gone || table[k][j] >= 0);
        }
    }
    assert_true(prefix_tree_reserve(&f->tree, n));
    prefix_tree_publish(&f->tree, key, &v, n, &st);
    prefix_tree_unreserve(&f->tree, n);
    for (int32_t k = 0; k < f->kv.n_kinds; k++)
        for (int32_t j = 0; j < st.kind[k].n_page; j++)
            if (table[k][j] >= 0) kv_page_unref(&f->kv, k, table[k][j]);
}

static int32_t find(struct fx *f, uint64_t key, const int32_t *ids, int32_t n)
{
    struct symbol_view v = { NULL, 0, ids };
    struct tree_hit hit;
    prefix_tree_find(&f->tree, key, &v, n, NULL, 0, &hit);
    prefix_tree_touch(&f->tree, &hit);
    return hit.n;
}

static void counting(int32_t *ids, int32_t n, int32_t from)
{
    for (int32_t i = 0; i < n; i++) ids[i] = from + i;
}

static void test_longest_prefix(void **state)
{
    struct fx f;
    int32_t a[300], b[300];
    fx_open(&f, full, 1, 4 << 20);
    counting(a, 300, 0);
    publish(&f, 1, a, 300, 0);
    assert_int_equal(find(&f, 1, a, 300), 300);
    assert_int_equal(find(&f, 1, a, 17), 17);
    assert_int_equal(find(&f, 2, a, 300), 0); /* another key */
    memcpy(b, a, sizeof b);
    b[200] = 9999; /* parts in mid page */
    assert_int_equal(find(&f, 1, b, 300), 200);
    publish(&f, 1, b, 300, 0);
    assert_int_equal(f.tree.n_leaves, 2);
    assert_int_equal(f.tree.n_nodes, 5 + 2);
    assert_int_equal(find(&f, 1, b, 300), 300);
    assert_int_equal(find(&f, 1, a, 300), 300);
    b[200] = 9998;
    assert_int_equal(find(&f, 1, b, 300), 200);
    assert_sound(&f);
    fx_close(&f);
}

/* A leaf that ends inside a page grows with the sequence; publishing twice changes nothing. */
static void test_short_leaf_grows(void **state)
{
    struct fx f;
    int32_t a[300];
    fx_open(&f, mixed, 2, 4 << 20);
    counting(a, 300, 0);
    for (int32_t n = 1; n < 300; n += 13) {
        publish(&f, 0, a, n, 0);
        assert_int_equal(find(&f, 0, a, 300), n);
        assert_int_equal(f.tree.n_nodes, (n + 63) / 64);
        assert_int_equal(f.tree.n_leaves, 1);
    }
    publish(&f, 0, a, 5, 0);
    assert_int_equal(find(&f, 0, a, 300), 287);
    assert_sound(&f);
    fx_close(&f);
}

/* Window kinds: a hit needs the pages of the window before it; what left every window goes first. */
static void test_window_pages(void **state)
{
    struct fx f;
    int32_t a[700];
    int64_t all[KV_MAX_KINDS] = { 0 };
    fx_open(&f, mixed, 2, 6 << 20);
    counting(a, 700, 0);
    publish(&f, 0, a, 700, 448); /* pages 0..6 of the window kind are gone */
    assert_int_equal(find(&f, 0, a, 700), 700);
    assert_int_equal(find(&f, 0, a, 600), 600); /* sees 501..: pages 7, 8, 9 are there */
    assert_int_equal(find(&f, 0, a, 500), 0);   /* sees 401..: page 6 is missing, and so for every index below */
    publish(&f, 0, a, 300, 0); /* somebody else had them for the first 300 */
    assert_int_equal(find(&f, 0, a, 500), 256); /* page 4 was only begun: its node, full already, did not take it */
    assert_int_equal(find(&f, 0, a, 250), 250);
    assert_sound(&f);
    /* Ask for room so often that only left pages go. */
    struct kv_usage before, after;
    kv_pool_usage(&f.kv, &before);
    int32_t n_taken = 0, taken[4096];
    while ((taken[n_taken] = kv_page_alloc(&f.kv, 1)) >= 0) n_taken++;
    all[1] = 1;
    assert_true(prefix_tree_reclaim(&f.tree, all, false));
    kv_pool_usage(&f.kv, &after);
    assert_true(after.n_cached < before.n_cached);
    assert_int_equal(find(&f, 0, a, 700), 700); /* the last window is still there */
    while (prefix_tree_reclaim(&f.tree, all, false) && (taken[n_taken] = kv_page_alloc(&f.kv, 1)) >= 0) n_taken++;
    assert_int_equal(find(&f, 0, a, 700), 700);
    assert_false(prefix_tree_reclaim(&f.tree, all, false));
    all[1] = 0;
    all[0] = 5000; /* more than there is: every leaf goes */
    assert_false(prefix_tree_reclaim(&f.tree, all, true));
    assert_int_equal(f.tree.n_nodes, 0);
    for (int32_t i = 0; i < n_taken; i++) kv_page_unref(&f.kv, 1, taken[i]);
    fx_close(&f);
}

/* Recurrent kinds: hits end at snapshots only. */
static void test_states(void **state)
{
    struct fx f;
    int32_t a[300];
    struct symbol_view v = { NULL, 0, a };
    fx_open(&f, states, 2, 4 << 20);
    counting(a, 300, 0);
    publish(&f, 0, a, 300, 0);
    assert_int_equal(find(&f, 0, a, 300), 0);
    static const int32_t at[] = { 64, 70, 299, 1 };
    for (int i = 0; i < 4; i++) {
        int32_t page = kv_page_alloc(&f.kv, 1);
        assert_true(prefix_tree_add_state(&f.tree, 0, &v, at[i], 1, page));
        assert_false(prefix_tree_add_state(&f.tree, 0, &v, at[i], 1, page)); /* once */
        kv_page_unref(&f.kv, 1, page);
    }
    assert_int_equal(find(&f, 0, a, 300), 299);
    assert_int_equal(find(&f, 0, a, 298), 70);
    assert_int_equal(find(&f, 0, a, 69), 64);
    assert_int_equal(find(&f, 0, a, 63), 1);
    a[68] = 7;
    assert_int_equal(find(&f, 0, a, 300), 64);
    int32_t page = kv_page_alloc(&f.kv, 1);
    assert_false(prefix_tree_add_state(&f.tree, 0, &v, 100, 1, page)); /* no such prefix */
    kv_page_unref(&f.kv, 1, page);
    /* More than a node keeps: the deepest stay. */
    a[68] = 68;
    for (int32_t n = 128; n < 192; n += 7) {
        page = kv_page_alloc(&f.kv, 1);
        prefix_tree_add_state(&f.tree, 0, &v, n + 1, 1, page);
        kv_page_unref(&f.kv, 1, page);
    }
    assert_int_equal(find(&f, 0, a, 192), 192);
    assert_sound(&f);
    fx_close(&f);
}

static void add_state(struct fx *f, const int32_t *ids, int32_t n)
{
    struct symbol_view v = { NULL, 0, ids };
    int32_t page = kv_page_alloc(&f->kv, 1);
    assert_true(prefix_tree_add_state(&f->tree, 0, &v, n, 1, page));
    kv_page_unref(&f->kv, 1, page);
}

/* A state lies with the run that was computed; runs that part from it later in the page are served by it too. */
static void test_states_of_siblings(void **state)
{
    struct fx f;
    int32_t a[300], b[300], c[300];
    fx_open(&f, states, 2, 4 << 20);
    counting(a, 300, 0);
    publish(&f, 0, a, 300, 0);
    add_state(&f, a, 100);
    memcpy(b, a, sizeof b);
    b[110] = 9999;
    publish(&f, 0, b, 300, 0);
    memcpy(c, a, sizeof c);
    c[99] = 9998; /* parts before the state */
    publish(&f, 0, c, 300, 0);
    assert_int_equal(find(&f, 0, a, 300), 100);
    assert_int_equal(find(&f, 0, b, 300), 100);
    assert_int_equal(find(&f, 0, b, 105), 100);
    assert_int_equal(find(&f, 0, b, 99), 0);
    assert_int_equal(find(&f, 0, c, 300), 0);
    add_state(&f, b, 120);
    assert_int_equal(find(&f, 0, b, 300), 120);
    assert_int_equal(find(&f, 0, a, 300), 100);
    assert_sound(&f);
    fx_close(&f);
}

/* B-098: under the cap the state that saves the fewest tokens goes, before anything else that is worth more. */
static void test_states_under_the_cap(void **state)
{
    static const int32_t at[] = { 60, 100, 110, 200, 290 };
    struct fx f;
    int32_t a[300];
    fx_open(&f, states, 2, 5 * (4096 + sizeof(struct tree_node)) + 3 * 8192);
    counting(a, 300, 0);
    publish(&f, 0, a, 300, 0);
    for (int i = 0; i < 5; i++) {
        add_state(&f, a, at[i]);
        assert_true(f.tree.bytes <= f.tree.cap_bytes);
        assert_sound(&f);
    }
    assert_int_equal(find(&f, 0, a, 300), 290);
    assert_int_equal(find(&f, 0, a, 289), 200);
    assert_int_equal(find(&f, 0, a, 199), 60);
    fx_close(&f);
}

/* States pages apart under a cap that they reach: they push out each other, never the run that they stand on. */
static void test_states_keep_their_run(void **state)
{
    static const int32_t at[] = { 64, 128, 192, 256, 299 };
    struct fx f;
    int32_t a[300];
    fx_open(&f, states, 2, 5 * (4096 + sizeof(struct tree_node)) + 3 * 8192);
    counting(a, 300, 0);
    publish(&f, 0, a, 300, 0);
    for (int i = 0; i < 5; i++) {
        add_state(&f, a, at[i]);
        assert_sound(&f);
    }
    assert_int_equal(find(&f, 0, a, 300), 299);
    fx_close(&f);
}

/* A pool that running sequences fill: their copies of states are given back, whose nodes they hold. */
static void test_states_are_given_back(void **state)
{
    struct fx f;
    int32_t a[300];
    int64_t need[KV_MAX_KINDS] = { 0 };
    fx_open(&f, states, 2, 4 << 20);
    counting(a, 300, 0);
    publish(&f, 0, a, 300, 0);
    for (int32_t n = 64; n <= 256; n += 64) add_state(&f, a, n);
    int32_t held[4096], n_held = 0, page;
    while ((page = kv_page_alloc(&f.kv, 1)) >= 0 && n_held < 4096) held[n_held++] = page;
    need[1] = 1;
    struct tree_hit hit;
    struct symbol_view v = { NULL, 0, a };
    prefix_tree_find(&f.tree, 0, &v, 300, NULL, 0, &hit);
    assert_int_equal(hit.n, 256);
    int32_t pages[4];
    for (int32_t j = 0; j < 4; j++) kv_page_ref(&f.kv, 0, pages[j] = hit.path[j]->page[0]);
    assert_true(prefix_tree_reclaim(&f.tree, need, true));
    assert_sound(&f);
    for (int32_t j = 0; j < 4; j++) kv_page_unref(&f.kv, 0, pages[j]);
    while (n_held > 0) kv_page_unref(&f.kv, 1, held[--n_held]);
    fx_close(&f);
}

/* Least recently used leaf first, under the cap; a leaf that a sequence holds gives nothing and stays. */
static void test_lru_and_cap(void **state)
{
    struct fx f;
    int32_t ids[8][128];
    size_t one = 2 * (4096 + sizeof(struct tree_node));
    fx_open(&f, full, 1, 4 * one);
    for (int i = 0; i < 8; i++) {
        counting(ids[i], 128, i * 1000);
        publish(&f, 0, ids[i], 128, 0);
        assert_true(f.tree.bytes <= f.tree.cap_bytes);
        assert_sound(&f);
        if (i >= 2) assert_int_equal(find(&f, 0, ids[0], 128), 128); /* used all the time: stays */
    }
    for (int i = 1; i < 5; i++) assert_int_equal(find(&f, 0, ids[i], 128), 0);
    for (int i = 5; i < 8; i++) assert_int_equal(find(&f, 0, ids[i], 128), 128);
    fx_close(&f);
}

/* Random prompts over few symbols, against brute force: with room for all, the hit is the longest common prefix with
 * anything published; without, never more. */
static void test_random_against_brute_force(void **state)
{
    enum { N = 300, LEN = 260 };
    static int32_t ids[N][LEN];
    static int32_t len[N];
    for (int small = 0; small < 2; small++) {
        struct fx f;
        fx_open(&f, full, 1, small ? 200000 : 8 << 20);
        srand(3 + small);
        for (int i = 0; i < N; i++) {
            int32_t from = i > 0 ? rand() % i : 0, keep = i > 0 ? rand() % (len[from] + 1) : 0;
            len[i] = 1 + rand() % LEN;
            for (int32_t t = 0; t < len[i]; t++) ids[i][t] = t < keep ? ids[from][t] : rand() % 3;
            int32_t best = 0;
            for (int k = 0; k < i; k++) {
                int32_t c = 0;
                while (c < len[i] && c < len[k] && ids[i][c] == ids[k][c]) c++;
                if (c > best) best = c;
            }
            int32_t hit = find(&f, 0, ids[i], len[i]);
            if (small) assert_true(hit <= best);
            else assert_int_equal(hit, best);
            publish(&f, 0, ids[i], len[i], 0);
            if (!small) assert_int_equal(find(&f, 0, ids[i], len[i]), len[i]);
            assert_sound(&f);
        }
        fx_close(&f);
    }
}

/* Media: symbols replace ids. */
static void test_symbols_instead_of_ids(void **state)
{
    struct fx f;
    int32_t ids[100];
    uint64_t sym[100];
    fx_open(&f, full, 1, 1 << 20);
    counting(ids, 100, 0);
    publish(&f, 0, ids, 100, 0);
    for (int i = 0; i < 100; i++) sym[i] = (uint64_t)i;
    sym[80] = 0xDEADBEEF00000000u;
    struct symbol_view v = { sym, 90, ids };
    struct tree_hit hit;
    prefix_tree_find(&f.tree, 0, &v, 100, NULL, 0, &hit);
    assert_int_equal(hit.n, 80);
    struct index_span span[] = { { 60, 90 } };
    prefix_tree_find(&f.tree, 0, &v, 100, span, 1, &hit);
    assert_int_equal(hit.n, 60);
    fx_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest_prefix),
        cmocka_unit_test(test_short_leaf_grows),
        cmocka_unit_test(test_window_pages),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_states_of_siblings),
        cmocka_unit_test(test_states_under_the_cap),
        cmocka_unit_test(test_states_keep_their_run),
        cmocka_unit_test(test_states_are_given_back),
        cmocka_unit_test(test_lru_and_cap),
        cmocka_unit_test(test_random_against_brute_force),
        cmocka_unit_test(test_symbols_instead_of_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
