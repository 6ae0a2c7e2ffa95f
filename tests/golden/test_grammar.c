/* test_grammar.c: texts that another validator calls valid can be generated under their schema, and what it calls invalid
 * cannot (tests/golden/grammar/README.md). API-154 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* --- what cannot be enforced: both answers (docs/structured-output.md) --- */

static bool names(const struct grammar *g, const char *keyword, const char *path)
{
    for (size_t i = 0; i < grammar_n_unenforced(g); i++)
        if (!strcmp(grammar_unenforced_get(g, i)->keyword, keyword) && !strcmp(grammar_unenforced_get(g, i)->path, path)) return true;
    return false;
}

static void check_unsupported(const json_t *row, const char *page)
{
    const char *of = json_string_value(json_object_get(row, "keyword")), *says = json_string_value(json_object_get(row, "says"));
    const char *keyword = says ? says : of, *path = json_string_value(json_object_get(row, "path"));
    char *schema = json_dumps(json_object_get(row, "schema"), 0), cell[100];
    struct grammar *g = NULL;
    assert_non_null(schema);
    assert_int_equal(rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, schema, true), MB_UNSUPPORTED);
    if (!strstr(rig_err.text, keyword) || strncmp(rig_err.text, path, strlen(path)) != 0) print_message("%s: %s\n", schema, rig_err.text);
    assert_true(strstr(rig_err.text, keyword) && strncmp(rig_err.text, path, strlen(path)) == 0);
    assert_int_equal(rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, schema, false), MB_OK);
    if (!names(g, keyword, path)) print_message("%s: %s at %s is not listed\n", schema, keyword, path);
    assert_true(names(g, keyword, path));
    grammar_unref(g);
    snprintf(cell, sizeof cell, "\n| `%s` | `{", of);
    if (page && !strstr(page, cell)) print_message("docs/structured-output.md lacks a row for %s\n", of);
    assert_true(!page || strstr(page, cell) != NULL);
    free(schema);
}

/* design.md section 6: under strict by keyword and path; else the same in the list of what is not enforced, and the rest holds. Every
 * keyword of the table that is enforced in part or not at all has its example here, or the one whose refusal speaks for it. */
static void test_both_answers(void **state)
{
    static char page[1 << 16];
    json_t *rows = NULL;
    size_t i, n;
    json_t *row;
    (void)state;
    FILE *f = fopen("docs/structured-output.md", "r"); /* tests run in the root of the repository */
    if (f) {
        page[fread(page, 1, sizeof page - 1, f)] = '\0';
        fclose(f);
    }
    rows = json_load_file("tests/golden/grammar/unsupported.json", 0, NULL);
    assert_true(json_array_size(rows) > 12);
    json_array_foreach(rows, i, row) check_unsupported(row, f ? page : NULL);
    const struct grammar_keyword *k = grammar_keywords(&n);
    for (size_t j = 0; j < n; j++) {
        bool found = strcmp(k[j].status, "partly") != 0 && strcmp(k[j].status, "refused") != 0;
        if (!strcmp(k[j].name, "then") || !strcmp(k[j].name, "else")) found = true;         /* with if */
        if (!strcmp(k[j].name, "maxContains")) found = true;                                /* as contains */
        if (!strcmp(k[j].name, "$dynamicAnchor")) found = true;                             /* $dynamicRef */
        json_array_foreach(rows, i, row) found = found || !strcmp(json_string_value(json_object_get(row, "keyword")), k[j].name);
        if (!found) print_message("no example of %s\n", k[j].name);
        assert_true(found);
    }
    json_decref(rows);
}

/* An object that asks for more pairs than can be counted is not one that nothing satisfies. */
static void test_min_properties_without_names(void **state)
{
    (void)state;
    struct grammar *g = NULL;
    assert_int_equal(rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"minProperties\":3}", false), MB_OK);
    assert_int_equal(rig_matches(g, "{\"a\": 1, \"b\": 2, \"c\": 3}"), 1);
    assert_int_equal(rig_matches(g, "{}"), 0); /* one is certain */
    grammar_unref(g);
    assert_int_equal(rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"minProperties\":1}", true), MB_OK);
    grammar_unref(g);
    assert_int_equal(rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"minProperties\":3,\"maxProperties\":2}", true), MB_INVALID);
    assert_int_equal(rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA,
                                 "{\"type\":\"object\",\"minProperties\":3,\"properties\":{\"a\":{}},\"additionalProperties\":false}", true), MB_INVALID);
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
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_api154_other_validator), cmocka_unit_test(test_both_answers),
                                        cmocka_unit_test(test_min_properties_without_names) };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
