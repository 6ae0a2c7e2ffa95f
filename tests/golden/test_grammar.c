/* test_grammar.c: texts that another validator calls valid can be generated under their schema, and what it calls invalid
 * cannot (tests/golden/grammar/README.md). API-154 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "unit/grammar_rig.h"

static struct grammar_vocab *vocab;

static void check_texts(struct grammar *g, const json_t *texts, const char *schema, int want)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        int got = rig_matches(g, text);
        if (got != want) print_message("%s\n under %s: %d, wanted %d\n", text, schema, got, want);
        assert_int_equal(got, want);
    }
}

static void check_line(const char *line, size_t len)
{
    json_t *q;
    struct grammar *g;
    assert_int_equal(json_read(&q, line, len, 0, &rig_err), MB_OK);
    const char *schema = json_string_value(json_object_get(q, "schema"));
    mb_status st = rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, schema, true);
    if (st != MB_OK) print_message("%s: %s\n", schema, rig_err.text);
    assert_int_equal(st, MB_OK);
    check_texts(g, json_object_get(q, "valid"), schema, 1);
    check_texts(g, json_object_get(q, "invalid"), schema, 0);
    grammar_unref(g);
    json_decref(q);
}

static void test_api154_other_validator(void **state)
{
    (void)state;
    FILE *f = fopen("tests/golden/grammar/cases.jsonl", "r");
    char *line = NULL;
    size_t cap = 0, n = 0;
    ssize_t len;
    assert_non_null(f);
    while ((len = getline(&line, &cap, f)) > 0) check_line(line, (size_t)len), n++;
    free(line);
    fclose(f);
    assert_true(n > 100);
}

static int set_up(void **state)
{
    (void)state;
    vocab = rig_vocab();
    return vocab ? 0 : 1;
}

static int tear_down(void **state)
{
    (void)state;
    grammar_vocab_close(vocab);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_api154_other_validator) };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
