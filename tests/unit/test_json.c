/* test_json.c: reading and writing JSON. Number forms are compared with Python's repr and json.dumps (B-014); hostile
 * texts give a status with a place, never a crash, and never their own bytes (B-049, B-050). alloc-fail: yes */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"

static mb_error err;

static void check_double(double v, const char *want)
{
    struct buf b;
    buf_init(&b, 0);
    json_write_double(&b, v);
    assert_int_equal(b.failed, MB_OK);
    assert_string_equal(b.data, want);
    buf_free(&b);
}

/* B-014: the forms of Python's repr(float) */
static void test_b014_double_forms(void **state)
{
    (void)state;
    check_double(0.0, "0.0");
    check_double(-0.0, "-0.0");
    check_double(1.0, "1.0");
    check_double(-1.5, "-1.5");
    check_double(100.0, "100.0");
    check_double(0.1, "0.1");
    check_double(0.1 + 0.2, "0.30000000000000004");
    check_double(1.0 / 3.0, "0.3333333333333333");
    check_double(1e15, "1000000000000000.0");
    check_double(9999999999999998.0, "9999999999999998.0");
    check_double(1e16, "1e+16");
    check_double(1.2345e16, "1.2345e+16");
    check_double(1e22, "1e+22");
    check_double(1e23, "1e+23");
    check_double(1e100, "1e+100");
    check_double(1e-4, "0.0001");
    check_double(0.00012345, "0.00012345");
    check_double(1e-5, "1e-05");
    check_double(1.5e-7, "1.5e-07");
    check_double(5e-324, "5e-324");
    check_double(2.2250738585072014e-308, "2.2250738585072014e-308");
    check_double(1.7976931348623157e308, "1.7976931348623157e+308");
    check_double(ldexp(1, -44), "5.684341886080802e-14"); /* the 16-digit neighbour above is the shortest */
    check_double(ldexp(1, 89), "6.189700196426902e+26");
    check_double(123456789012345680.0, "1.2345678901234568e+17");
    check_double((double)NAN, "null");
    check_double((double)INFINITY, "null");
}

/* B-014: whatever is written reads back to the same bits */
static void test_b014_double_round_trip(void **state)
{
    (void)state;
    uint64_t x = 88172645463325252u;
    struct buf b;
    buf_init(&b, 0);
    for (int i = 0; i < 100000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t bits = i % 5 ? x : x & 0xFFF0000000000000u; /* powers of two too */
        double v;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        buf_clear(&b);
        json_write_double(&b, v);
        assert_int_equal(b.failed, MB_OK);
        double back = strtod(b.data, NULL);
        assert_memory_equal(&back, &v, sizeof v);
    }
    buf_free(&b);
}

static void check_write(const char *text, struct json_write_opts opts, const char *want)
{
    json_t *v;
    assert_int_equal(json_read(&v, text, strlen(text), JSON_READ_ANY, &err), MB_OK);
    struct buf b;
    buf_init(&b, 0);
    json_write(&b, v, &opts);
    assert_int_equal(buf_status(&b, "json", &err), MB_OK);
    assert_string_equal(b.data, want);
    buf_free(&b);
    json_decref(v);
}

static const char tool[] = "{\"zeta\":1.0,\"alpha\":\"if a<b & c>'d' \\u2014 \\u00fc \\ud83d\\ude42\\u007f\","
                           "\"n\":[],\"o\":{},\"l\":[1,[2,{\"k\":null}],true]}";

/* B-014: insertion order, ", " and ": ", raw UTF-8, no HTML escapes */
static void test_b014_tojson_forms(void **state)
{
    (void)state;
    check_write(tool, (struct json_write_opts){ .python_spaces = true },
                "{\"zeta\": 1.0, \"alpha\": \"if a<b & c>'d' — ü 🙂\x7f\", \"n\": [], \"o\": {}, "
                "\"l\": [1, [2, {\"k\": null}], true]}");
    check_write(tool, (struct json_write_opts){ 0 },
                "{\"zeta\":1.0,\"alpha\":\"if a<b & c>'d' — ü 🙂\x7f\",\"n\":[],\"o\":{},\"l\":[1,[2,{\"k\":null}],true]}");
    check_write(tool, (struct json_write_opts){ .python_spaces = true, .sort_keys = true, .ensure_ascii = true },
                "{\"alpha\": \"if a<b & c>'d' \\u2014 \\u00fc \\ud83d\\ude42\\u007f\", \"l\": [1, [2, {\"k\": null}], true], "
                "\"n\": [], \"o\": {}, \"zeta\": 1.0}");
    check_write(tool, (struct json_write_opts){ .indent = 4 },
                "{\n    \"zeta\": 1.0,\n    \"alpha\": \"if a<b & c>'d' — ü 🙂\x7f\",\n    \"n\": [],\n    \"o\": {},\n"
                "    \"l\": [\n        1,\n        [\n            2,\n            {\n                \"k\": null\n"
                "            }\n        ],\n        true\n    ]\n}");
}

static void test_string_escapes(void **state)
{
    (void)state;
    check_write("\"\\u0000\\u0001\\b\\t\\n\\f\\r\\u001f\\\"\\\\\\/\"", (struct json_write_opts){ 0 },
                "\"\\u0000\\u0001\\b\\t\\n\\f\\r\\u001f\\\"\\\\/\"");
    struct buf b;
    buf_init(&b, 0);
    json_write_string(&b, "a\xE9z\xF0\x9F\x99", 6); /* invalid, and cut off: one U+FFFD each */
    assert_int_equal(b.failed, MB_OK);
    assert_string_equal(b.data, "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\"");
    buf_free(&b);
}

/* B-014: integers beyond 64 bits keep their digits */
static void test_b014_big_integers(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":9223372036854775807,\"b\":9223372036854775808,\"c\":-9223372036854775808,"
                               "\"d\":-9223372036854775809,\"e\":123456789012345678901234567890,"
                               "\"f\":[\"b18446744073709551616\",\"s\",\"\",18446744073709551616],\"g\":-0}";
    static const char want[] = "{\"a\":9223372036854775807,\"b\":9223372036854775808,\"c\":-9223372036854775808,"
                               "\"d\":-9223372036854775809,\"e\":123456789012345678901234567890,"
                               "\"f\":[\"b18446744073709551616\",\"s\",\"\",18446744073709551616],\"g\":0}";
    check_write(text, (struct json_write_opts){ 0 }, want);
    json_t *v;
    assert_int_equal(json_read(&v, text, strlen(text), 0, &err), MB_OK);
    assert_true(json_is_integer(json_object_get(v, "a")));
    assert_string_equal(json_bigint_text(json_object_get(v, "b")), "9223372036854775808");
    assert_null(json_bigint_text(json_object_get(v, "a")));
    assert_null(json_bigint_text(json_array_get(json_object_get(v, "f"), 0)));
    assert_true(json_is_text(json_array_get(json_object_get(v, "f"), 0)));
    assert_false(json_is_text(json_array_get(json_object_get(v, "f"), 3)));
    assert_false(json_is_text(json_object_get(v, "a")) || json_is_text(NULL));
    int64_t n;
    double d;
    const char *s;
    assert_int_equal(json_get_int(v, "b", 0, &n, &err), MB_INVALID);
    assert_int_equal(json_get_str(v, "b", NULL, &s, &err), MB_INVALID);
    assert_int_equal(json_get_double(v, "e", 0, &d, &err), MB_OK);
    assert_true(d == 123456789012345678901234567890.0);
    json_decref(v);
}

static void check_refused(const char *text, size_t len, int flags, const char *part)
{
    json_t *v = (json_t *)1;
    assert_int_equal(json_read(&v, text, len, flags, &err), MB_BAD_FORMAT);
    assert_null(v);
    assert_non_null(strstr(err.text, part));
    for (const char *c = err.text; *c; c++) assert_true((unsigned char)*c < 0x80);
}

#define REFUSED(text, flags, part) check_refused(text, sizeof(text) - 1, flags, part)

/* B-049: malformed texts, with their place */
static void test_b049_malformed(void **state)
{
    (void)state;
    REFUSED("{:\"a\":1}", 0, "line 1, column 2 (byte 1)");
    REFUSED("", 0, "empty");
    REFUSED(" \n ", 0, "empty");
    REFUSED("{\"a\":1", 0, "ends");
    REFUSED("{\n  \"a\": tru\n}", 0, "line 2");
    REFUSED("[1,]", 0, "byte");
    REFUSED("[01]", 0, "byte");
    REFUSED("[1.]", 0, "byte");
    REFUSED("[+1]", 0, "byte");
    REFUSED("[NaN]", 0, "byte");
    REFUSED("[-\"a\"]", 0, "byte 1"); /* a token ends where a string begins: not taken for a lack of memory */
    REFUSED("[1e\"a\"]", 0, "byte");
    REFUSED("[tru\"x\"]", 0, "byte 3");
    REFUSED("[1e400]", 0, "too large");
    REFUSED("[\"a\nb\"]", 0, "byte");
    REFUSED("[\"\\x\"]", 0, "byte");
    REFUSED("['a']", 0, "byte");
    REFUSED("[\"\\ud800\"]", 0, "byte");
    REFUSED("{\"\\u0000\":1}", 0, "NUL");
    REFUSED("[1] // no", 0, "after the end");
    REFUSED("\"text\"", 0, "object or an array");
    REFUSED("[123456789012345678901234567890, secret]", 0, "byte 38");
}

/* B-049: trailing text and duplicate keys */
static void test_b049_duplicates_trailing(void **state)
{
    (void)state;
    REFUSED("{\"a\":1}x", 0, "after the end");
    REFUSED("{\"a\":1}{}", 0, "after the end");
    static const char twice[] = "{\"a\":1,\n\"b\":{\"c\":1,\"c\":2}}";
    REFUSED(twice, JSON_READ_REJECT_DUPLICATES, "line 2");
    REFUSED("{\"a\":123456789012345678901234567890,\"x\":\"y\",\"a\":2}", JSON_READ_REJECT_DUPLICATES, "byte 46");
    json_t *v;
    assert_int_equal(json_read(&v, twice, sizeof twice - 1, 0, &err), MB_OK);
    json_decref(v);
}

/* B-049: 100 000 brackets are an error, 128 levels are not */
static void test_b049_depth(void **state)
{
    (void)state;
    enum { N = 100000 };
    char *text = malloc(N);
    assert_non_null(text);
    memset(text, '[', N);
    check_refused(text, N, 0, "128");
    for (int i = 0; i < N; i++) text[i] = "{\"a\":"[i % 5];
    check_refused(text, N, 0, "128");
    memset(text, '[', 128);
    memset(text + 128, ']', 128);
    json_t *v;
    assert_int_equal(json_read(&v, text, 256, 0, &err), MB_OK);
    json_decref(v);
    free(text);
    /* brackets inside strings do not count */
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, "[\"\\\"");
    for (int i = 0; i < 1000; i++) buf_append_char(&b, '[');
    buf_append_str(&b, "\"]");
    assert_int_equal(b.failed, MB_OK);
    assert_int_equal(json_read(&v, b.data, b.len, 0, &err), MB_OK);
    json_decref(v);
    buf_free(&b);
}

/* B-050: bytes that are not UTF-8 are refused and never echoed */
static void test_b050_invalid_utf8(void **state)
{
    (void)state;
    REFUSED("{\"prompt\":\"caf\xE9 \"}", 0, "UTF-8 at line 1, column 15 (byte 14)");
    REFUSED("[\"\xC0\x80\"]", 0, "UTF-8");
    REFUSED("[\"\xED\xA0\x80\xED\xB0\x80\"]", 0, "UTF-8");
    REFUSED("\xFF\xFE{\0}\0", 0, "UTF-8");
    REFUSED("[\"\xF4\x90\x80\x80\"]", 0, "UTF-8");
    REFUSED("[\"\xE2\x82", 0, "UTF-8");
    REFUSED("\xEF\xBB\xBF{}", 0, "byte order mark");
    REFUSED("{\"\xC3\xA9\" x", 0, "byte");
}

static void test_lookups(void **state)
{
    (void)state;
    static const char text[] = "{\"i\":3,\"d\":0.5,\"b\":true,\"s\":\"x\",\"z\":null,\"nul\":\"a\\u0000b\"}";
    json_t *v;
    assert_int_equal(json_read(&v, text, sizeof text - 1, 0, &err), MB_OK);
    int64_t n;
    double d;
    bool b;
    const char *s;
    assert_int_equal(json_get_int(v, "i", 9, &n, &err), MB_OK);
    assert_int_equal(n, 3);
    assert_int_equal(json_get_int(v, "z", 9, &n, &err), MB_OK);
    assert_int_equal(n, 9);
    assert_int_equal(json_get_int(v, "s", 9, &n, &err), MB_INVALID);
    assert_string_equal(err.text, "s must be of type integer");
    assert_string_equal(err.at, "s");
    assert_int_equal(n, 0);
    assert_int_equal(json_get_int(v, "d", 9, &n, &err), MB_INVALID);
    assert_int_equal(json_get_double(v, "i", 0, &d, &err), MB_OK);
    assert_true(d == 3.0);
    assert_int_equal(json_get_bool(v, "b", false, &b, &err), MB_OK);
    assert_true(b);
    assert_int_equal(json_get_bool(v, "s", false, &b, &err), MB_INVALID);
    assert_int_equal(json_get_str(v, "s", NULL, &s, &err), MB_OK);
    assert_string_equal(s, "x");
    assert_int_equal(json_get_str(v, "none", "dflt", &s, &err), MB_OK);
    assert_string_equal(s, "dflt");
    assert_int_equal(json_get_str(v, "nul", NULL, &s, &err), MB_INVALID);
    assert_int_equal(json_get_str(v, "i", NULL, &s, NULL), MB_INVALID);
    json_decref(v);
}

static void test_read_file(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/mb_test_json.%ld", (long)getpid());
    json_t *v;
    assert_int_equal(json_read_file(&v, path, 100, &err), MB_NOT_FOUND);
    assert_int_equal(file_write_atomic(path, "[1, 2", 5, &err), MB_OK);
    assert_int_equal(json_read_file(&v, path, 100, &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(json_read_file(&v, path, 4, &err), MB_TOO_LARGE);
    assert_int_equal(file_write_atomic(path, "[1, 2]", 6, &err), MB_OK);
    assert_int_equal(json_read_file(&v, path, 6, &err), MB_OK);
    assert_int_equal(json_array_size(v), 2);
    json_decref(v);
    unlink(path);
}

/* A tree of our own making that is too deep fails with a status. */
static void test_write_depth(void **state)
{
    (void)state;
    json_t *v = json_array();
    assert_non_null(v);
    for (int i = 0; i < 300; i++) {
        json_t *outer = json_array();
        assert_non_null(outer);
        assert_int_equal(json_array_append_new(outer, v), 0);
        v = outer;
    }
    struct buf b;
    buf_init(&b, 0);
    json_write(&b, v, NULL);
    assert_int_equal(b.failed, MB_TOO_LARGE);
    buf_free(&b);
    json_decref(v);
}

/* --- what a tree takes, before it is made --- */
static size_t held, most;

/* Each block with its size in front, counted as malloc rounds it. */
static void *counted_alloc(size_t n)
{
    size_t all = (n + 8 + 15) / 16 * 16;
    size_t *p = malloc(n + 16);
    if (!p) return NULL;
    p[0] = all < 32 ? 32 : all;
    held += p[0];
    if (held > most) most = held;
    return p + 2;
}

static void counted_free(void *ptr)
{
    size_t *p = ptr;
    if (!p) return;
    held -= p[-2];
    free(p - 2);
}

/* Never less than the truth, and not so much more that ordinary bodies would be refused. */
static void test_weight_of_a_tree(void **state)
{
    (void)state;
    static const struct { const char *head, *unit, *tail; } rows[] = {
        { "[0", ",0", "]" },        { "[[]", ",[]", "]" },         { "[{}", ",{}", "]" },           { "[\"\"", ",\"\"", "]" },
        { "\"", "abcdefgh", "\"" }, { "\"", "\\u00e9", "\"" },   { "[\"abcdefghijklmnopq\"", ",\"abcdefghijklmnopq\"", "]" },
        { "[true", ",true", "]" },  { "[1.5", ",1.5", "]" },       { "[0", ",99999999999999999999", "]" },
        { "[{\"role\":\"user\",\"content\":\"hello\"}", ", {\"role\":\"user\",\"content\":\"hello\"}", "]" },
        { "[", "  \n", "1]" },      { "{\"k\":[[[[1]]]]", "", "}" },
    };
    json_malloc_t a;
    json_free_t f;
    json_get_alloc_funcs(&a, &f);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (int n = 1; n < 40000; n = n * 5 + 2) {
            struct buf b;
            json_t *v;
            buf_init(&b, 0);
            buf_append_str(&b, rows[r].head);
            for (int i = 0; i < n; i++) buf_append_str(&b, rows[r].unit);
            buf_append_str(&b, rows[r].tail);
            json_set_alloc_funcs(counted_alloc, counted_free);
            held = most = 0;
            mb_status st = json_read(&v, b.data, b.len, JSON_READ_ANY, NULL);
            size_t peak = most;
            json_decref(v);
            json_set_alloc_funcs(a, f);
            assert_int_equal(st, MB_OK);
            assert_int_equal(held, 0);
            struct json_weight w = json_weigh(b.data, b.len);
            if (w.tree_bytes + 1024 < peak || (n > 1000 && w.tree_bytes > 4 * peak + 3 * b.len))
                fail_msg("%s%s... %d times: %zu weighed, %zu taken", rows[r].head, rows[r].unit, n, w.tree_bytes, peak);
            assert_true(w.text_bytes <= b.len);
            buf_free(&b);
        }
    }
    for (size_t n = 0; n < 6; n++) assert_true(json_weigh("\"\\\"\\", n).text_bytes <= n + 2); /* cut off anywhere */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_of_a_tree),
        cmocka_unit_test(test_b014_double_forms),    cmocka_unit_test(test_b014_double_round_trip),
        cmocka_unit_test(test_b014_tojson_forms),    cmocka_unit_test(test_string_escapes),
        cmocka_unit_test(test_b014_big_integers),    cmocka_unit_test(test_b049_malformed),
        cmocka_unit_test(test_b049_duplicates_trailing), cmocka_unit_test(test_b049_depth),
        cmocka_unit_test(test_b050_invalid_utf8),    cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_read_file),            cmocka_unit_test(test_write_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
