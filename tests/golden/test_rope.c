/* test_rope.c: tables of cosines and sines against transformers (B-112; tests/golden/rope), for every scaling type and
 * spelling, and refusal of an unknown type. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/spec.h"

/* transformers computes frequencies and products in float32: see the README of the golden for the bound. */
static double bound(double position, double factor)
{
    return (2e-6 + 1.2e-7 * position) * (factor > 1 ? factor : 1);
}

static int compare_row(const char *name, const json_t *row, const float *table, int half, double factor)
{
    int64_t p = json_integer_value(json_object_get(row, "position"));
    const json_t *want_cos = json_object_get(row, "cos"), *want_sin = json_object_get(row, "sin");
    for (int i = 0; i < half; i++) {
        double dc = fabs(table[p * 2 * half + i] - json_number_value(json_array_get(want_cos, (size_t)i)));
        double ds = fabs(table[p * 2 * half + half + i] - json_number_value(json_array_get(want_sin, (size_t)i)));
        if (!(dc <= bound((double)p, factor)) || !(ds <= bound((double)p, factor))) {
            print_error("%s: position %lld, pair %d: cos off by %.3g, sin by %.3g\n", name, (long long)p, i, dc, ds);
            return 1;
        }
    }
    return 0;
}

static void test_b112_rope_tables(void **state)
{
    mb_error err;
    json_t *root;
    int failed = 0;
    if (json_read_file(&root, "tests/golden/rope/rope.json", 1 << 24, &err) != MB_OK) fail_msg("%s", err.text);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) >= 20);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        json_t *one = json_array_get(cases, c);
        const char *name = json_string_value(json_object_get(one, "name"));
        json_t *config = json_object_get(one, "config");
        struct model_spec spec;
        if (!json_object_get(config, "model_type")) json_object_set_new(config, "model_type", json_string("llama"));
        if (model_config_parse(&spec, config, NULL, &err) != MB_OK) fail_msg("%s: %s", name, err.text);
        const struct rope_params *r = &spec.ropes[spec.layers[0].i_rope];
        float *table = calloc((size_t)60001 * (size_t)r->n_rot, sizeof *table);
        rope_table_fill(r, spec.n_context, 0, 60001, table);
        double factor = json_number_value(json_object_get(one, "factor_on_cos_sin"));
        const json_t *rows = json_object_get(one, "rows");
        for (size_t i = 0; i < json_array_size(rows); i++)
            failed += compare_row(name, json_array_get(rows, i), table, r->n_rot / 2, factor);
        free(table);
        model_spec_free(&spec);
    }
    json_decref(root);
    assert_int_equal(failed, 0);
}

static void check_refused(const char *scaling, const char *word)
{
    char text[512];
    mb_error err;
    json_t *config;
    struct model_spec spec;
    int n = snprintf(text, sizeof text, "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,\"vocab_size\":32,"
                     "\"intermediate_size\":64,\"num_attention_heads\":2,\"rope_scaling\":%s}", scaling);
    assert_int_equal(json_read(&config, text, (size_t)n, 0, &err), MB_OK);
    assert_int_not_equal(model_config_parse(&spec, config, NULL, &err), MB_OK);
    if (!strstr(err.text, word)) fail_msg("error does not name %s: %s", word, err.text);
    json_decref(config);
}

/* B-112: a type we do not know is refused by name, a broken one by its key. */
static void test_b112_unknown_type_refused(void **state)
{
    check_refused("{\"rope_type\":\"spiral\",\"factor\":2}", "spiral");
    check_refused("{\"rope_type\":\"linear\"}", "factor");
    check_refused("{\"rope_type\":\"longrope\",\"factor\":2,\"short_factor\":[1]}", "short_factor");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b112_rope_tables),
        cmocka_unit_test(test_b112_unknown_type_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
