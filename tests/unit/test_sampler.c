/* test_sampler.c: the sampler table: bounds and texts (Q6), precedence (CFG-019 .. CFG-027, API-080 .. API-087). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "engine/sampler.h"

static mb_status check(const char *name, double v, bool is_int, mb_error *err)
{
    const struct sampler_row *r = sampler_row_find(name);
    assert_non_null(r);
    memset(err, 0, sizeof *err);
    return sampler_row_check(r, v, is_int, err);
}

/* API-048 .. API-061: every parameter of section 3 has a row, and each row its own field. */
static void test_table_is_complete(void **state)
{
    static const char *const names[] = { "temperature", "top_p", "top_k", "min_p", "xtc_probability", "xtc_threshold",
                                         "repetition_penalty", "repetition_context_size", "presence_penalty",
                                         "presence_context_size", "frequency_penalty", "frequency_context_size", "seed" };
    size_t n;
    const struct sampler_row *rows = sampler_rows(&n);
    assert_int_equal(n, sizeof names / sizeof names[0]);
    assert_int_equal(n * sizeof(struct sampler_value), sizeof(struct sampler_values));
    for (size_t i = 0; i < n; i++) {
        assert_non_null(sampler_row_find(names[i]));
        for (size_t j = 0; j < i; j++) assert_true(rows[i].off != rows[j].off);
        mb_error err;
        assert_int_equal(check(rows[i].name, rows[i].dflt, true, &err), MB_OK);
    }
    assert_null(sampler_row_find("temperatur"));
}

/* Q6 */
static void test_q6_bounds_and_texts(void **state)
{
    mb_error err;
    assert_int_equal(check("top_p", 1.01, false, &err), MB_INVALID);
    assert_string_equal(err.text, "top_p must be at most 1");
    assert_string_equal(err.at, "top_p");
    assert_int_equal(check("temperature", -0.5, false, &err), MB_INVALID);
    assert_string_equal(err.text, "temperature must be at least 0");
    assert_int_equal(check("temperature", 17, false, &err), MB_OK);
    assert_int_equal(check("xtc_threshold", 0.51, false, &err), MB_INVALID);
    assert_string_equal(err.text, "xtc_threshold must be at most 0.5");
    assert_int_equal(check("xtc_probability", 1.5, false, &err), MB_INVALID);
    assert_int_equal(check("min_p", -1, false, &err), MB_INVALID);
    assert_int_equal(check("top_k", 1.5, false, &err), MB_INVALID);
    assert_string_equal(err.text, "top_k must be of type int");
    assert_int_equal(check("top_k", -1, true, &err), MB_INVALID);
    assert_int_equal(check("top_k", INFINITY, true, &err), MB_INVALID);
    assert_int_equal(check("seed", -1, true, &err), MB_OK);
    assert_int_equal(check("seed", INFINITY, true, &err), MB_INVALID);
    assert_int_equal(check("temperature", NAN, false, &err), MB_INVALID);
}

static void give(struct sampler_values *v, const char *name, double x)
{
    *sampler_value_at(v, sampler_row_find(name)) = (struct sampler_value){ .v = x, .given = true };
}

/* CFG-019, CFG-020, API-080, API-083, API-084 */
static void test_cfg019_precedence(void **state)
{
    struct sampler_values request = { 0 }, server = { 0 }, model = { 0 };
    struct sample_params p = { 0 };
    sampler_resolve(&request, &server, &model, true, &p);
    assert_float_equal(p.temperature, 0.7f, 0);
    assert_float_equal(p.top_p, 0, 0);
    assert_int_equal(p.top_k, 0);
    assert_float_equal(p.repetition_penalty, 1, 0);
    assert_int_equal(p.repetition_context, 20);
    assert_int_equal(p.presence_context, 20);
    assert_int_equal(p.min_keep, 1);
    give(&model, "temperature", 1.5);
    give(&model, "top_k", 64);
    give(&model, "repetition_penalty", 1.05);
    sampler_resolve(&request, &server, &model, true, &p);
    assert_float_equal(p.temperature, 1.5f, 0);
    assert_int_equal(p.top_k, 64);
    assert_float_equal(p.repetition_penalty, 1.05f, 0); /* API-056 */
    give(&server, "temperature", 1.2);
    sampler_resolve(&request, &server, &model, true, &p);
    assert_float_equal(p.temperature, 1.2f, 0);
    give(&request, "temperature", 0); /* a value, not an omission */
    give(&request, "top_k", 0);
    sampler_resolve(&request, &server, &model, true, &p);
    assert_float_equal(p.temperature, 0, 0);
    assert_int_equal(p.top_k, 0);
}

/* CFG-027, API-085, Q61: the cap holds for the model's value and the fallback only. */
static void test_api085_unthinking_temperature(void **state)
{
    struct sampler_values request = { 0 }, server = { 0 }, model = { 0 };
    struct sample_params p = { 0 };
    give(&model, "temperature", 1.0);
    sampler_resolve(&request, &server, &model, false, &p);
    assert_float_equal(p.temperature, 0.7f, 0);
    sampler_resolve(&request, &server, &model, true, &p);
    assert_float_equal(p.temperature, 1.0f, 0);
    give(&model, "temperature", 0.3);
    sampler_resolve(&request, &server, &model, false, &p);
    assert_float_equal(p.temperature, 0.3f, 0);
    give(&server, "temperature", 0.9);
    sampler_resolve(&request, &server, &model, false, &p);
    assert_float_equal(p.temperature, 0.9f, 0);
    give(&request, "temperature", 2);
    sampler_resolve(&request, NULL, NULL, false, &p);
    assert_float_equal(p.temperature, 2.0f, 0);
}

/* API-051, API-342, API-347 */
/* API-051: a seed keeps all of its 64 bits. */
static void test_api051_seed_keeps_its_bits(void **state)
{
    struct sampler_values a = { 0 }, b = { 0 };
    struct sample_params p = { 0 }, q = { 0 };
    a.seed = (struct sampler_value){ .v = 9007199254740993.0, .given = true, .exact = 9007199254740993u };
    b.seed = (struct sampler_value){ .v = 9007199254740992.0, .given = true, .exact = 9007199254740992u };
    sampler_resolve(&a, NULL, NULL, false, &p);
    sampler_resolve(&b, NULL, NULL, false, &q);
    assert_true(p.noise.seed == 9007199254740993u && q.noise.seed == 9007199254740992u);
}

static void test_api051_seed(void **state)
{
    struct sampler_values request = { 0 };
    struct sample_params a = { 0 }, b = { 0 };
    sampler_resolve(&request, NULL, NULL, false, &a);
    sampler_resolve(&request, NULL, NULL, false, &b);
    assert_true(a.noise.seed != b.noise.seed);
    give(&request, "seed", 42);
    sampler_resolve(&request, NULL, NULL, false, &a);
    assert_int_equal(a.noise.seed, 42);
    give(&request, "seed", -1);
    sampler_resolve(&request, NULL, NULL, false, &a);
    assert_true(a.noise.seed == UINT64_MAX);
    give(&request, "seed", 18446744073709549568.0);
    sampler_resolve(&request, NULL, NULL, false, &a);
    assert_true(a.noise.seed == 18446744073709549568u);
    give(&request, "temperature", 1e300);
    sampler_resolve(&request, NULL, NULL, false, &a);
    assert_true(isfinite(a.temperature));
}

static void give_hlg(struct hlg_values *v, const char *name, double x)
{
    size_t n;
    const struct sampler_row *rows = hlg_rows(&n);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name + strlen(HLG_PREFIX), name) == 0) {
            *hlg_value_at(v, &rows[i]) = (struct sampler_value){ .v = x, .given = true };
            return;
        }
    fail_msg("no row %s", name);
}

static void check_hlg(const struct hlg_values *r, const struct hlg_values *s, bool on, float width, float shoulder, float toe,
                      float pivot_offset)
{
    struct sample_params p = { 0 };
    hlg_resolve(r, s, &p);
    assert_int_equal(p.hlg, on);
    assert_float_equal(p.hlg_width, width, 0);
    assert_float_equal(p.hlg_shoulder, shoulder, 0);
    assert_float_equal(p.hlg_toe, toe, 0);
    assert_float_equal(p.hlg_pivot_offset, pivot_offset, 0);
}

/* API-071 .. API-076, ENG-081, ENG-082: defaults, bounds and texts of the five keys. */
static void test_api071_hlg_table(void **state)
{
    struct hlg_values none = { .enabled = { 0 } };
    size_t n;
    const struct sampler_row *rows = hlg_rows(&n);
    mb_error err = { 0 };
    (void)state;
    check_hlg(&none, &none, false, 4, 4, 6, 6);
    assert_int_equal((n + 1) * sizeof(struct sampler_value), sizeof(struct hlg_values)); /* enabled has no bounds */
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(strncmp(rows[i].name, HLG_PREFIX, strlen(HLG_PREFIX)), 0);
        assert_int_equal(sampler_row_check(&rows[i], 0, true, &err), MB_OK);
        assert_int_equal(sampler_row_check(&rows[i], 100, false, &err), MB_OK);
        assert_int_equal(sampler_row_check(&rows[i], -0.1, false, &err), MB_INVALID);
        assert_int_equal(sampler_row_check(&rows[i], 100.5, false, &err), MB_INVALID);
        for (size_t j = 0; j < i; j++) assert_true(rows[i].off != rows[j].off);
    }
    sampler_row_check(&rows[0], 101, true, &err);
    assert_string_equal(err.text, "hlg.width must be at most 100");
    assert_string_equal(err.at, "hlg.width");
}

/* CFG-034, CFG-105: key by key; 0 and off are values. */
static void test_cfg034_hlg_merge(void **state)
{
    struct hlg_values request = { .enabled = { 0 } }, server = { .enabled = { 0 } };
    (void)state;
    give_hlg(&server, "width", 9);
    give_hlg(&server, "toe", 1);
    check_hlg(&request, &server, false, 9, 4, 1, 6);
    request.enabled = (struct sampler_value){ .v = 1, .given = true };
    check_hlg(&request, &server, true, 9, 4, 1, 6);
    give_hlg(&request, "width", 0);
    give_hlg(&request, "pivot_offset", 2.5);
    check_hlg(&request, &server, true, 0, 4, 1, 2.5f);
    server.enabled = (struct sampler_value){ .v = 1, .given = true };
    request.enabled = (struct sampler_value){ .v = 0, .given = true };
    check_hlg(&request, &server, false, 0, 4, 1, 2.5f);
    request.enabled.given = false;
    check_hlg(&request, &server, true, 0, 4, 1, 2.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_complete),
        cmocka_unit_test(test_q6_bounds_and_texts),
        cmocka_unit_test(test_cfg019_precedence),
        cmocka_unit_test(test_api085_unthinking_temperature),
        cmocka_unit_test(test_api051_seed),
        cmocka_unit_test(test_api051_seed_keeps_its_bits),
        cmocka_unit_test(test_api071_hlg_table),
        cmocka_unit_test(test_cfg034_hlg_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
