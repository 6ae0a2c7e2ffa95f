/* test_response_store.c: ceiling, order of use, age (with a clock of its own), threads (API-245 to API-248). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/response_store.h"

static int64_t now_ms(void *ctx) { return *(int64_t *)ctx; }

static struct response_store *store_open(size_t max_bytes, int64_t ttl_ms, int64_t *clock)
{
    struct response_store *s;
    const struct response_store_options opt = { .max_bytes = max_bytes, .ttl_ms = ttl_ms, .now_ms = clock ? now_ms : NULL, .now_ctx = clock };
    assert_int_equal(response_store_open(&s, &opt, NULL), MB_OK);
    return s;
}

static mb_status put(struct response_store *s, const char *id, size_t n)
{
    static char text[1 << 16];
    const struct str parts[RESPONSE_N_PARTS] = { { text, n }, { "[1]", 3 }, { "[2]", 3 }, { id, strlen(id) } };
    mb_error err = { 0 };
    memset(text, 'x', sizeof text);
    return response_store_put(s, id, parts, &err);
}

static bool has(struct response_store *s, const char *id)
{
    struct buf b;
    struct buf *parts[RESPONSE_N_PARTS] = { [RESPONSE_INSTRUCTIONS] = &b };
    mb_error err = { 0 };
    buf_init(&b, 0);
    mb_status st = response_store_get(s, id, parts, &err);
    assert_true(st == MB_OK || st == MB_NOT_FOUND);
    if (st == MB_OK) assert_string_equal(b.data, id);
    else assert_non_null(strstr(err.text, id));
    buf_free(&b);
    return st == MB_OK;
}

static struct response_store_stats stats(struct response_store *s)
{
    struct response_store_stats st;
    response_store_stats(s, &st);
    return st;
}

static void test_api248_defaults(void **state)
{
    struct response_store *s;
    (void)state;
    assert_int_equal(response_store_open(&s, NULL, NULL), MB_OK);
    struct response_store_stats st = stats(s);
    assert_int_equal(st.max_bytes, 33554432); /* API-248 */
    assert_int_equal(st.ttl_ms, 3600000);
    assert_int_equal(st.entries, 0);
    assert_int_equal(st.bytes, 0);
    assert_int_equal(put(s, "resp_a", 100), MB_OK);
    assert_true(has(s, "resp_a"));
    assert_false(has(s, "resp_b"));
    response_store_close(s);
    response_store_close(NULL);
}

static void test_parts_come_back(void **state)
{
    struct response_store *s = store_open(0, 0, NULL);
    const struct str parts[RESPONSE_N_PARTS] = { STR_LIT("{}"), STR_LIT("[\"in\"]"), STR_LIT("[\"out\"]"), { NULL, 0 } };
    struct buf object, output, none;
    (void)state;
    assert_int_equal(response_store_put(s, "r", parts, NULL), MB_OK);
    buf_init(&object, 0);
    buf_init(&output, 0);
    buf_init(&none, 0);
    struct buf *want[RESPONSE_N_PARTS] = { [RESPONSE_OBJECT] = &object, [RESPONSE_OUTPUT] = &output, [RESPONSE_INSTRUCTIONS] = &none };
    assert_int_equal(response_store_get(s, "r", want, NULL), MB_OK);
    assert_string_equal(object.data, "{}");
    assert_string_equal(output.data, "[\"out\"]");
    assert_int_equal(none.len, 0);
    buf_free(&object);
    buf_free(&output);
    buf_free(&none);
    response_store_close(s);
}

/* API-247, API-248, Q41: the age counts from creation, reading does not renew it. */
static void test_api248_ttl(void **state)
{
    int64_t clock = 1000;
    struct response_store *s = store_open(1 << 20, 3600000, &clock);
    (void)state;
    put(s, "old", 10);
    clock += 1800000;
    put(s, "young", 10);
    assert_true(has(s, "old"));
    clock += 1799999;
    assert_true(has(s, "old"));
    clock += 1;
    assert_false(has(s, "old"));
    assert_true(has(s, "young"));
    assert_int_equal(stats(s).entries, 1);
    clock += 1800000;
    assert_int_equal(stats(s).entries, 0);
    assert_int_equal(stats(s).bytes, 0);
    put(s, "new", 10);
    assert_true(has(s, "new"));
    response_store_close(s);
}

/* API-248: least recently used goes first; reading is use. */
static void test_api248_lru(void **state)
{
    struct response_store *s = store_open(10000, 1000, NULL);
    (void)state;
    put(s, "a", 2800);
    put(s, "b", 2800);
    put(s, "c", 2800);
    assert_true(has(s, "a"));
    put(s, "d", 2800);
    assert_false(has(s, "b"));
    assert_true(has(s, "a") && has(s, "c") && has(s, "d"));
    put(s, "e", 9000);
    assert_true(has(s, "e"));
    assert_int_equal(stats(s).entries, 1);
    assert_true(stats(s).bytes <= 10000);
    response_store_close(s);
}

static void test_q41_larger_than_the_store(void **state)
{
    struct response_store *s = store_open(1000, 1000, NULL);
    (void)state;
    put(s, "a", 100);
    assert_int_equal(put(s, "b", 5000), MB_TOO_LARGE);
    assert_true(has(s, "a"));
    assert_false(has(s, "b"));
    response_store_close(s);
}

static void test_replace_and_delete(void **state)
{
    struct response_store *s = store_open(0, 0, NULL);
    (void)state;
    put(s, "a", 100);
    size_t bytes = stats(s).bytes;
    put(s, "a", 200);
    assert_int_equal(stats(s).entries, 1);
    assert_int_equal(stats(s).bytes, bytes + 100);
    assert_true(response_store_delete(s, "a"));
    assert_false(response_store_delete(s, "a"));
    assert_int_equal(stats(s).bytes, 0);
    response_store_close(s);
}

/* Many ids in few buckets, put and forgotten in an order of its own: books are right at the end. */
static void test_many(void **state)
{
    int64_t clock = 0;
    struct response_store *s = store_open(1 << 20, 5000, &clock);
    char id[32];
    (void)state;
    srand(5);
    for (int i = 0; i < 20000; i++, clock += rand() % 3) {
        snprintf(id, sizeof id, "resp_%d", rand() % 5000);
        if (rand() % 4 == 0) response_store_delete(s, id);
        else if (rand() % 2) put(s, id, (size_t)(rand() % 600));
        else has(s, id);
        assert_true(stats(s).bytes <= 1 << 20);
    }
    clock += 5000;
    assert_int_equal(stats(s).entries, 0);
    assert_int_equal(stats(s).bytes, 0);
    response_store_close(s);
}

static void *worker(void *ctx)
{
    char id[32];
    for (int i = 0; i < 500; i++) {
        snprintf(id, sizeof id, "resp_%d", i % 37);
        put(ctx, id, 50);
        has(ctx, id);
        if (i % 5 == 0) response_store_delete(ctx, id);
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct response_store *s = store_open(4000, 1000, NULL);
    pthread_t t[4];
    (void)state;
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, worker, s);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert_true(stats(s).bytes <= 4000);
    response_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api248_defaults), cmocka_unit_test(test_parts_come_back), cmocka_unit_test(test_api248_ttl),
        cmocka_unit_test(test_api248_lru), cmocka_unit_test(test_q41_larger_than_the_store),
        cmocka_unit_test(test_replace_and_delete), cmocka_unit_test(test_many), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
