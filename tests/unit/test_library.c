/* test_library.c: libmlxbun misused: NULL where a value is due, wrong sizes, values out of range. Each is a status with a
 * text, never a crash, and the engine still works afterwards. Runs on tests/golden/tiny/llama. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "mlxbun.h"

static mb_engine *engine;

static int open_engine(void **state)
{
    mb_options o = { .size = sizeof o, .batch = 2, .memory_budget_bytes = (uint64_t)256 << 20 };
    (void)state;
    return mb_engine_open(&engine, "tests/golden/tiny/llama", &o, NULL) == MB_OK ? 0 : -1;
}

static int close_engine(void **state)
{
    (void)state;
    mb_engine_close(engine);
    return 0;
}

static mb_request fine(void)
{
    return (mb_request){ .size = sizeof(mb_request), .text = "a b", .max_tokens = 3 };
}

/* Refused before it starts, with a text that holds `word`. */
static void check_refused(const mb_request *r, const char *word)
{
    mb_error err = { 0 };
    mb_gen *g = NULL;
    assert_int_equal(mb_generate(engine, r, &g, &err), MB_INVALID);
    if (g || !strstr(err.text, word)) fail_msg("wanted %s: %s", word, err.text);
}

static void check_works(void)
{
    mb_request r = fine();
    mb_event ev;
    mb_gen *g;
    mb_status st;
    assert_int_equal(mb_generate(engine, &r, &g, NULL), MB_OK);
    do st = mb_next(g, &ev, NULL); while (st == MB_OK);
    assert_int_equal(st, MB_NOT_FOUND);
    mb_gen_close(g);
}

static void test_nulls(void **state)
{
    mb_error err;
    mb_request r = fine();
    mb_gen *g = NULL;
    mb_event ev;
    mb_stats s = { .size = sizeof s };
    int32_t *ids, n, one = 1;
    char *text;
    size_t len;
    (void)state;
    assert_int_equal(mb_generate(NULL, &r, &g, &err), MB_INVALID);
    assert_int_equal(mb_generate(engine, &r, NULL, &err), MB_INVALID);
    assert_int_equal(mb_generate(engine, NULL, &g, &err), MB_INVALID);
    assert_int_equal(mb_next(NULL, &ev, &err), MB_INVALID);
    assert_int_equal(mb_tokenize(NULL, "a", 1, false, &ids, &n, &err), MB_INVALID);
    assert_int_equal(mb_tokenize(engine, NULL, 1, false, &ids, &n, &err), MB_INVALID);
    assert_int_equal(mb_tokenize(engine, "a", 1, false, NULL, &n, &err), MB_INVALID);
    assert_int_equal(mb_tokenize(engine, "a", 1, false, &ids, NULL, &err), MB_INVALID);
    assert_int_equal(mb_detokenize(NULL, &one, 1, false, &text, &len, &err), MB_INVALID);
    assert_int_equal(mb_detokenize(engine, NULL, 1, false, &text, &len, &err), MB_INVALID);
    assert_int_equal(mb_detokenize(engine, &one, 1, false, NULL, &len, &err), MB_INVALID);
    assert_int_equal(mb_render(NULL, &r, &text, &len, &ids, &n, &err), MB_INVALID);
    assert_int_equal(mb_render(engine, &r, NULL, NULL, NULL, NULL, &err), MB_OK);
    assert_int_equal(mb_stats_get(NULL, &s, &err), MB_INVALID);
    assert_int_equal(mb_stats_get(engine, NULL, &err), MB_INVALID);
    mb_engine_close(NULL);
    mb_gen_close(NULL);
    mb_gen_cancel(NULL);
    mb_free(NULL);
    check_works();
}

static void test_values_out_of_range(void **state)
{
    static const char *const hole[] = { "a", NULL }, *const empty[] = { "" }, *const broken[] = { "\xC3(" };
    mb_request r;
    (void)state;
    r = fine(), r.size = 8, check_refused(&r, "mb_request.size");
    r = fine(), r.messages_json = "[]", check_refused(&r, "exactly one");
    r = fine(), r.has_temperature = true, r.temperature = -1, check_refused(&r, "temperature must be at least 0");
    r.temperature = NAN, check_refused(&r, "temperature");
    r.temperature = INFINITY, check_refused(&r, "temperature");
    r = fine(), r.has_top_p = true, r.top_p = 7, check_refused(&r, "top_p must be at most 1");
    r = fine(), r.has_top_k = true, r.top_k = -4, check_refused(&r, "top_k must be at least 0");
    r = fine(), r.n_stops = 2, check_refused(&r, "stops");
    r.stops = hole, check_refused(&r, "stops[1]");
    r.stops = empty, r.n_stops = 1, check_refused(&r, "stops[0]");
    r.n_stops = -1, check_refused(&r, "stops");
    r.stops = broken, r.n_stops = 1, check_refused(&r, "stops[0] is not valid UTF-8");
    r = fine(), r.max_tokens = -1, check_refused(&r, "max_tokens must not be negative"); /* B-032 */
    r = fine(), r.n_choices = -1, check_refused(&r, "n_choices must not be negative");
    r = fine(), r.n_choices = 1 << 30, check_refused(&r, "n must be");
    r = fine(), r.n_top_logprobs = -1, check_refused(&r, "top_logprobs must be from 0");
    check_works();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_nulls), cmocka_unit_test(test_values_out_of_range) };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
