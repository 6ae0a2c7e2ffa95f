/* test_grammar_schema.c: JSON Schema as a language: exactly the allowed texts, by enumeration where they are few; bad and
 * unenforceable schemas by keyword and path; the published tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "grammar_rig.h"

static struct grammar_vocab *vocab;

static struct grammar *compiled(const char *schema, bool strict)
{
    struct grammar *g = NULL;
    mb_status st = rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, schema, strict);
    if (st != MB_OK) print_message("%s: %s\n", schema, rig_err.text);
    assert_int_equal(st, MB_OK);
    return g;
}

/* good and bad: texts that are and are not in the language, NULL-terminated. */
static void check(const char *schema, const char *const *good, const char *const *bad)
{
    struct grammar *g = compiled(schema, true);
    for (; *good; good++) {
        int got = rig_matches(g, *good);
        if (got != 1) print_message("%s\n  does not give %s (%d)\n", schema, *good, got);
        assert_int_equal(got, 1);
    }
    for (; *bad; bad++) {
        int got = rig_matches(g, *bad);
        if (got != 0) print_message("%s\n  gives %s (%d)\n", schema, *bad, got);
        assert_int_equal(got, 0);
    }
    grammar_unref(g);
}
#define GOOD(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define BAD(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void check_language(const char *schema, const char *want)
{
    struct grammar *g = compiled(schema, true);
    char *got = rig_enumerate(g, 5000, 60);
    if (strcmp(got, want)) print_message("%s\n", schema);
    assert_string_equal(got, want);
    free(got);
    grammar_unref(g);
}

static void check_refused(const char *schema, mb_status want, const char *path, const char *keyword)
{
    struct grammar *g = NULL;
    mb_status st = rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, schema, true);
    if (st != want || !strstr(rig_err.text, path) || !strstr(rig_err.text, keyword))
        print_message("%s: %d %s\n", schema, (int)st, rig_err.text);
    assert_int_equal(st, want);
    assert_null(g);
    assert_non_null(strstr(rig_err.text, path));
    assert_non_null(strstr(rig_err.text, keyword));
}

/* B-056: an enum inside anyOf is a string, quoted once */
static void test_b056_any_of_enums(void **state)
{
    (void)state;
    check_language("{\"anyOf\":[{\"type\":\"string\",\"enum\":[\"edit\",\"view\"]},{\"enum\":[\"all\"]}]}", "\"all\"\n\"edit\"\n\"view\"");
}

/* B-061: the client's mistakes, each with keyword and path */
static void test_b061_bad_schemas(void **state)
{
    (void)state;
    check_refused("{\"properties\":{\"a\":{\"pattern\":\"([a-z\"}}}", MB_INVALID, "#/properties/a", "pattern");
    check_refused("{\"items\":[{\"type\":\"string\"}]}", MB_INVALID, "#", "prefixItems");
    check_refused("{\"properties\":{\"x/y\":{\"enum\":[]}}}", MB_INVALID, "#/properties/x~1y", "enum");
    check_refused("{\"minItems\":5,\"maxItems\":2}", MB_INVALID, "#", "minItems");
    check_refused("{\"type\":\"strng\"}", MB_INVALID, "#", "type");
    check_refused("{\"anyOf\":[true,{\"required\":\"a\"}]}", MB_INVALID, "#/anyOf/1", "required");
    check_refused("{\"minLength\":-1}", MB_INVALID, "#", "minLength");
    check_refused("{\"exclusiveMinimum\":true}", MB_INVALID, "#", "exclusiveMinimum");
    check_refused("{\"anyOf\":[]}", MB_INVALID, "#", "anyOf");
    check_refused("{\"multipleOf\":0}", MB_INVALID, "#", "multipleOf");
    check_refused("{\"properties\":[]}", MB_INVALID, "#", "properties");
    check_refused("[]", MB_INVALID, "", "object");
    check_refused("{\"type\":", MB_INVALID, "", "JSON");
    check_refused("{\"type\":\"string\",\"enum\":[1]}", MB_INVALID, "", "no finite text");
    check_refused("false", MB_INVALID, "", "no finite text");
    check_refused("{\"%notEnum\":[1]}", MB_INVALID, "#", "%");
}

/* B-061, design.md section 6: what cannot be enforced is named; a compile that is not strict lists it and goes on */
static void test_unenforceable(void **state)
{
    (void)state;
    static const char unique[] = "{\"properties\":{\"t\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\"}}}}";
    check_refused(unique, MB_UNSUPPORTED, "#/properties/t", "uniqueItems");
    check_refused("{\"items\":{\"pattern\":\"a(?!b)\"}}", MB_UNSUPPORTED, "#/items", "pattern");
    check_refused("{\"oneOf\":[{\"patternProperties\":{\"a\":true}},{\"required\":[\"b\"]}]}", MB_UNSUPPORTED, "#", "oneOf");
    check_refused("{\"$recursiveRef\":\"#\"}", MB_UNSUPPORTED, "#", "$recursiveRef");
    struct grammar *g = compiled(unique, false);
    assert_int_equal(grammar_n_unenforced(g), 1);
    assert_string_equal(grammar_unenforced_get(g, 0)->keyword, "uniqueItems");
    assert_string_equal(grammar_unenforced_get(g, 0)->path, "#/properties/t");
    assert_null(grammar_unenforced_get(g, 1));
    assert_int_equal(rig_matches(g, "{\"t\":[1,1]}"), 1);
    assert_int_equal(rig_matches(g, "{\"t\":[\"a\"]}"), 0);
    grammar_unref(g);
    g = compiled("{\"items\":{\"pattern\":\"a(?!b)\",\"maxLength\":2}}", false);
    assert_int_equal(grammar_n_unenforced(g), 1);
    assert_string_equal(grammar_unenforced_get(g, 0)->path, "#/items");
    assert_int_equal(rig_matches(g, "[\"xyz\"]"), 0);
    grammar_unref(g);
}

/* B-062 inside JSON: the pattern speaks of the text, the output escapes it */
static void test_b062_patterns(void **state)
{
    (void)state;
    check("{\"type\":\"string\",\"pattern\":\"^(k-)?\\\\d{6,}$\"}", GOOD("\"k-123456\"", "\"1234567\""), BAD("\"k-12345\"", "\"1234567a\""));
    check("{\"type\":\"string\",\"pattern\":\"b\"}", GOOD("\"b\"", "\"abc\"", "\"\\nb\"", "\"\\\"b\\\\\""), BAD("\"a\"", "\"\\u0062\""));
    check("{\"type\":\"string\",\"pattern\":\"^[^x]$\"}", GOOD("\"\\n\"", "\"\\u0001\"", "\"\\\"\"", "\"\xC3\xA9\"", "\"/\""), BAD("\"x\"", "\"\n\"", "\"\"\""));
    check("{\"type\":\"string\",\"pattern\":\"^a+$\",\"minLength\":2,\"maxLength\":3}", GOOD("\"aa\"", "\"aaa\""), BAD("\"a\"", "\"aaaa\""));
    check("{\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"z$\"}],\"type\":\"string\"}", GOOD("\"az\"", "\"abz\""), BAD("\"z\"", "\"a\""));
}

/* B-064: references inside the document */
static void test_b064_references(void **state)
{
    (void)state;
    check_language("{\"$ref\":\"#/properties/t/anyOf/1\",\"properties\":{\"t\":{\"anyOf\":[{\"const\":1},{\"const\":2}]}}}", "2");
    check_language("{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"const\":3}}}", "3");
    check_language("{\"$ref\":\"#/$defs/a%25b~0\",\"$defs\":{\"a%b~\":{\"const\":4}}}", "4");
    check_language("{\"$ref\":\"#/$defs/x\",\"$defs\":{\"x\":{\"$ref\":\"#/$defs/y\"},\"y\":{\"const\":5}}}", "5");
    check_language("{\"$ref\":\"#name\",\"$defs\":{\"x\":{\"$anchor\":\"name\",\"const\":6}}}", "6");
    check_language("{\"$id\":\"https://a.b/c.json\",\"$ref\":\"d.json\",\"$defs\":{\"x\":{\"$id\":\"d.json\",\"const\":7}}}", "7");
    check_language("{\"$ref\":\"#/x-mine/1\",\"x-mine\":[null,{\"const\":8}]}", "8");
    check("{\"prefixItems\":[{\"$ref\":\"#/$defs/d\"},{\"$ref\":\"#/$defs/d\"}],\"items\":false,\"type\":\"array\",\"minItems\":2,\"$defs\":{\"d\":{\"const\":9}}}",
          GOOD("[9,9]", "[9, 9]"), BAD("[9]", "[9,8]"));
    check_language("{\"$ref\":\"#/$defs/n\",\"maximum\":2,\"$defs\":{\"n\":{\"type\":\"integer\",\"minimum\":1}}}", "1\n2");
    check_refused("{\"properties\":{\"a\":{\"$ref\":\"#/$defs/none\"}}}", MB_INVALID, "#/properties/a", "$ref");
    check_refused("{\"items\":{\"$ref\":\"https://example.org/s.json\"}}", MB_UNSUPPORTED, "#/items", "not fetched");
    check_refused("{\"$ref\":\"other.json#/a\"}", MB_UNSUPPORTED, "#", "not fetched");
}

/* B-064, design.md section 6: what a keyword leads out of the document for is refused under strict; else it is listed, all the
 * rest holds, and no value is excluded by what is not known. */
static void test_b064_references_that_are_not_followed(void **state)
{
    static const char out[] = "https://example.org/s.json#/a";
    static const struct { const char *schema, *keyword, *path; const char *good[3], *bad[3]; } CASES[] = {
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"%s\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"a\",\"n\"],"
          "\"additionalProperties\":false}", "$ref", "#/properties/a", { "{\"a\":[1,{}],\"n\":2}", "{\"a\":null, \"n\":2}" },
          { "{\"a\":1,\"n\":\"x\"}", "{\"n\":2}" } },
        { "{\"$ref\":\"%s\",\"type\":\"integer\"}", "$ref", "#", { "1" }, { "\"a\"" } },
        { "{\"items\":{\"$ref\":\"%s\",\"enum\":[1,2]}}", "$ref", "#/items", { "[1,2]" }, { "[3]" } },
        { "{\"enum\":[1,2],\"not\":{\"$ref\":\"%s\"}}", "$ref", "#/not", { "1", "2" }, { "3" } },
        { "{\"oneOf\":[{\"$ref\":\"%s\"},{\"type\":\"string\"}]}", "$ref", "#/oneOf/0", { "\"x\"", "7" }, { "x" } },
        { "{\"if\":{\"$ref\":\"%s\"},\"then\":{\"const\":1},\"else\":{\"const\":2},\"type\":\"integer\"}", "$ref", "#/if", { "1", "2" }, { "\"a\"" } },
        { "{\"enum\":[\"%s\",1],\"if\":{\"$ref\":\"b.json\"},\"then\":false}", "$ref", "#/if", { "1" }, { "2" } },
        { "{\"propertyNames\":{\"not\":{\"$ref\":\"%s\"}},\"properties\":{\"a\":{}},\"required\":[\"a\"]}", "$ref", "#/propertyNames/not",
          { "{\"a\":1}" }, { "{\"b\":1}" } },
        { "{\"$dynamicRef\":\"%s\",\"maximum\":2}", "$dynamicRef", "#", { "2" }, { "3" } },
        { "{\"properties\":{\"x\":{\"$dynamicRef\":\"#n\",\"maximum\":2}},\"$defs\":{\"a\":{\"$dynamicAnchor\":\"n\",\"type\":\"string\"},"
          "\"b\":{\"$id\":\"b\",\"title\":\"%s\",\"$dynamicAnchor\":\"n\"}}}", "$dynamicRef", "#/properties/x", { "{\"x\":2}" }, { "{\"x\":3}" } },
        { "{\"type\":\"object\",\"properties\":{\"%s\":{\"$recursiveRef\":\"#\",\"type\":\"null\"}}}", "$recursiveRef", "#/properties/", { "{}" }, { "[]" } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char schema[600];
        bool listed = false;
        snprintf(schema, sizeof schema, CASES[i].schema, out);
        check_refused(schema, MB_UNSUPPORTED, CASES[i].path, CASES[i].keyword);
        struct grammar *g = compiled(schema, false);
        for (size_t k = 0; k < grammar_n_unenforced(g); k++) {
            const struct grammar_unenforced *u = grammar_unenforced_get(g, k);
            listed = listed || (!strcmp(u->keyword, CASES[i].keyword) && !strncmp(u->path, CASES[i].path, strlen(CASES[i].path)));
        }
        if (!listed) fail_msg("%s: %s is not listed", schema, CASES[i].keyword);
        for (int k = 0; CASES[i].good[k]; k++)
            if (rig_matches(g, CASES[i].good[k]) != 1) fail_msg("%s does not give %s", schema, CASES[i].good[k]);
        for (int k = 0; CASES[i].bad[k]; k++)
            if (rig_matches(g, CASES[i].bad[k]) != 0) fail_msg("%s gives %s", schema, CASES[i].bad[k]);
        grammar_unref(g);
    }
    struct grammar *g = NULL;
    assert_int_equal(rig_compile(&g, vocab, GRAMMAR_JSON_SCHEMA, "{\"items\":{\"$ref\":\"#/$defs/none\"}}", false), MB_INVALID);
}

/* B-065: recursion at any depth; a cycle without content is refused at once */
static void test_b065_recursion(void **state)
{
    (void)state;
    static const char tree[] = "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"kids\":{\"type\":\"array\",\"items\":"
                               "{\"$ref\":\"#\"}}},\"required\":[\"v\",\"kids\"],\"additionalProperties\":false}";
    char text[20000];
    size_t n = 0, depth = 600;
    for (size_t i = 0; i < depth; i++) n += (size_t)sprintf(text + n, "{\"v\":%d,\"kids\":[", (int)i);
    for (size_t i = 0; i < depth; i++) n += (size_t)sprintf(text + n, "]}");
    struct grammar *g = compiled(tree, true);
    assert_int_equal(rig_matches(g, text), 1);
    text[n - 1] = 0;
    assert_int_equal(rig_matches(g, text), 0);
    grammar_unref(g);
    check_refused("{\"$ref\":\"#\"}", MB_INVALID, "#", "cycle");
    check_refused("{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}}}", MB_INVALID, "#/$defs", "cycle");
    check_refused("{\"items\":{\"allOf\":[{\"$ref\":\"#/items\"}]}}", MB_INVALID, "#/items", "cycle");
    check_refused("{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"],\"type\":\"object\"}", MB_INVALID, "", "no finite text");
}

static void long_enums(struct buf *b, int n)
{
    buf_clear(b);
    buf_append_str(b, "{\"allOf\":[");
    for (int k = 0; k < n; k++) {
        buf_append_str(b, k ? ",{\"enum\":[0" : "{\"enum\":[0");
        for (int i = 1; i < 20000; i++) buf_printf(b, ",%d", i);
        buf_append_str(b, "]}");
    }
    buf_append_str(b, "]}");
}

/* B-059: whether the rest of a schema allows the members of an enum takes bounded time, and a long enum is no trouble */
static void test_b059_long_enums_and_forking_references(void **state)
{
    struct buf b;
    (void)state;
    buf_init(&b, 0);
    buf_append_str(&b, "{\"enum\":[\"a\"],\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    for (int i = 0; i < 40; i++)
        buf_printf(&b, "\"d%d\":{\"allOf\":[{\"$ref\":\"#/$defs/d%d\"},{\"$ref\":\"#/$defs/d%d\"}]},", i, i + 1, i + 1);
    buf_append_str(&b, "\"d40\":{\"type\":\"string\"}}}");
    check_refused(b.data, MB_TOO_LARGE, "", "takes too long");
    buf_clear(&b);
    long_enums(&b, 2);
    check_refused(b.data, MB_TOO_LARGE, "", "takes too long");
    long_enums(&b, 1);
    grammar_unref(compiled(b.data, true));
    buf_free(&b);
}

/* B-067: numbers under bounds, exactly */
static void test_b067_integers(void **state)
{
    (void)state;
    char want[1000];
    size_t n = 0;
    check_language("{\"type\":\"integer\",\"minimum\":4,\"exclusiveMaximum\":7}", "4\n5\n6");
    static const int in_byte_order[] = { -1, -10, -11, -12, -2, -3, -4, -5, -6, -7, -8, -9, 0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9 };
    for (size_t i = 0; i < 24; i++) n += (size_t)sprintf(want + n, "%s%d", i ? "\n" : "", in_byte_order[i]);
    check_language("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":11}", want);
    check("{\"type\":\"integer\",\"minimum\":-87,\"maximum\":35}", GOOD("-87", "-9", "0", "35"), BAD("-88", "36", "-0", "00", "01", "-01", "1.0", "3e0", "+1"));
    check("{\"type\":\"integer\",\"minimum\":4}", GOOD("4", "10", "123456789012345678901234567890"), BAD("3", "04", "-5"));
    check("{\"type\":\"integer\",\"exclusiveMaximum\":0}", GOOD("-1", "-100"), BAD("0", "-0", "1", "-01"));
    check("{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":-10,\"maximum\":10}", GOOD("-10", "-5", "0", "5", "10"), BAD("1", "-3", "05", "15"));
    check("{\"type\":\"integer\",\"minimum\":9007199254740993,\"maximum\":9007199254740993}", GOOD("9007199254740993"), BAD("9007199254740992", "9007199254740994"));
    check("{\"const\":9007199254740993}", GOOD("9007199254740993"), BAD("9007199254740992"));
    check("{\"type\":\"integer\",\"minimum\":123456789012345678901234567890}", GOOD("123456789012345678901234567890"), BAD("123456789012345678901234567889"));
    check("{\"type\":\"integer\"}", GOOD("0", "-1", "42"), BAD("-0", "01", "1.5", "1e3"));
    check("{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":2.5}", GOOD("2"), BAD("1", "3"));
    check("{\"type\":\"integer\",\"multipleOf\":7}", GOOD("0", "7", "-14", "777"), BAD("1", "78"));
}

static void test_b067_numbers(void **state)
{
    (void)state;
    check("{\"type\":\"number\",\"minimum\":0.5,\"maximum\":0.75}", GOOD("0.5", "0.50", "0.75", "0.6123", "0.7499"), BAD("0.4", "0.751", "1", "0", "0.", "5e-1", ".5"));
    check("{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", GOOD("0.1", "0.0001", "0.999"), BAD("0", "1", "0.0", "-0.1", "1.0"));
    check("{\"type\":\"number\",\"minimum\":-1.5,\"maximum\":10}", GOOD("-1.5", "-1.25", "0", "9.99", "10", "10.0", "-0.5"), BAD("-1.51", "10.01", "-2", "11", "-0"));
    check("{\"type\":\"number\",\"multipleOf\":0.25}", GOOD("0.25", "1", "1.5", "-0.75", "2.50", "3.00"), BAD("0.3", "1.1", "0.255"));
    check("{\"type\":\"number\"}", GOOD("0", "-0.5", "1e5", "1.25E-3", "123.456"), BAD("-0", "1e999", "01", "1.", "NaN"));
    check("{\"type\":\"number\",\"maximum\":-0.001}", GOOD("-0.001", "-5", "-0.0010"), BAD("-0.0009", "0", "1"));
}

/* B-068: literal UTF-8, nothing but the members */
static void test_b068_utf8(void **state)
{
    (void)state;
    check_language("{\"enum\":[\"gr\\u00f6\\u00dfe\",\"k\xC3\xA4" "fer\",\"\xE5\xBC\x80\xE5\x85\xB3\",\"\xF0\x9F\xA6\x8A\"]}",
                   "\"gr\xC3\xB6\xC3\x9F" "e\"\n\"k\xC3\xA4" "fer\"\n\"\xE5\xBC\x80\xE5\x85\xB3\"\n\"\xF0\x9F\xA6\x8A\"");
    check_language("{\"const\":\"n\xC3\xA9\"}", "\"n\xC3\xA9\"");
    check("{\"properties\":{\"\xE5\x90\x8D\xE5\x89\x8D\":{\"type\":\"null\"}},\"required\":[\"\xE5\x90\x8D\xE5\x89\x8D\"],\"type\":\"object\",\"additionalProperties\":false}",
          GOOD("{\"\xE5\x90\x8D\xE5\x89\x8D\":null}"), BAD("{\"\\u540d\\u524d\":null}"));
    check_language("{\"enum\":[\"a\\\"b\\\\\",\"\\n\\u0001\"]}", "\"\\n\\u0001\"\n\"a\\\"b\\\\\"");
    check_language("{\"enum\":[1.0,null,true,{\"a\":[1]}],\"type\":[\"number\",\"boolean\"]}", "1\n1.0\ntrue");
}

/* B-070: white space is bounded, a key with a space matches, control characters come only as escapes */
static void test_b070_white_space(void **state)
{
    (void)state;
    static const char person[] = "{\"type\":\"object\",\"properties\":{\"first name\":{\"type\":\"string\"},\"n\":{\"type\":\"array\"}},\"required\":[\"first name\"],\"additionalProperties\":false}";
    check(person, GOOD("{\"first name\":\"a\"}", "{ \"first name\": \"\\n\\u0000\\ud83e\\udd8a\\/\", \"n\": [] }", "{\n  \"first name\": \"a\",\n  \"n\": [\n    1,\n    2\n  ]\n}"),
          BAD("{\"firstname\":\"a\"}", "{  \"first name\":\"a\"}", "{\"first name\":\"\n\"}", "{\"first name\":\"\t\"}", "{\"first name\":\"\\ud83e\"}",
              "{\"first name\":\"\\x\"}", "{\"first name\" :\"a\"}", " {\"first name\":\"a\"}", "{\"first name\":\"a\"} "));
    struct grammar *g = compiled(person, true);
    struct grammar_state *s; /* greedy for white space: it ends */
    assert_int_equal(grammar_state_open(&s, g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept(s, '{', &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept(s, '\n', &rig_err), MB_OK);
    int n = 0;
    while (grammar_state_accept(s, ' ', &rig_err) == MB_OK) assert_true(++n < 100);
    assert_true(n >= 16);
    grammar_state_close(s);
    grammar_unref(g);
}

/* B-074: item counts and formats */
static void test_b074_arrays(void **state)
{
    (void)state;
    check("{\"type\":\"array\",\"items\":{\"type\":\"object\",\"maxProperties\":0},\"minItems\":5,\"maxItems\":5}", GOOD("[{},{},{},{},{}]"), BAD("[]", "[{},{},{},{}]", "[{},{},{},{},{},{}]"));
    check("{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":0}", GOOD("[]", "[1]", "[1,1,1,1,1,1]"), BAD("[2]"));
    check("{\"type\":\"array\",\"minItems\":2,\"maxItems\":2,\"items\":{\"type\":\"array\",\"items\":{\"enum\":[0,1]},\"minItems\":3,\"maxItems\":3}}",
          GOOD("[[0,1,0],[1,1,1]]"), BAD("[[0,1,0]]", "[[0,1],[0,1,0]]", "[[0,1,0],[0,1,0],[0,1,0]]"));
    check("{\"type\":\"array\",\"prefixItems\":[{\"const\":\"a\"},{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"minItems\":1}", GOOD("[\"a\"]", "[\"a\",3]", "[\"a\",3,null,null]"), BAD("[]", "[3]", "[\"a\",null]"));
    check("{\"type\":\"array\",\"contains\":{\"const\":7},\"items\":{\"type\":\"integer\"},\"minContains\":2,\"maxContains\":3}", GOOD("[7,7]", "[1,7,2,7,7]"), BAD("[]", "[7]", "[7,7,7,7]", "[7,7,null]"));
    check("{\"type\":\"array\",\"items\":{\"enum\":[\"x\",\"y\",\"z\"]},\"uniqueItems\":true,\"minItems\":2}", GOOD("[\"x\",\"z\"]", "[\"z\",\"y\",\"x\"]"), BAD("[\"x\"]", "[\"x\",\"x\"]"));
    check("{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":2000,\"maxItems\":2000}", GOOD(NULL), BAD("[1]", "[1,1,1]"));
}

static void test_b074_formats(void **state)
{
    (void)state;
    check("{\"type\":\"string\",\"format\":\"date-time\"}", GOOD("\"2024-02-29T23:59:59.5Z\"", "\"1990-12-31T15:59:50-08:00\""), BAD("\"2023-02-29T00:00:00Z\"", "\"2024-13-01T00:00:00Z\"", "\"2024-01-01\""));
    check("{\"type\":\"string\",\"format\":\"date\"}", GOOD("\"2000-02-29\"", "\"2024-04-30\""), BAD("\"1900-02-29\"", "\"2024-04-31\"", "\"24-01-01\""));
    check("{\"type\":\"string\",\"format\":\"time\"}", GOOD("\"08:30:06Z\"", "\"08:30:06.283185+02:00\""), BAD("\"24:00:00Z\"", "\"08:30\""));
    check("{\"type\":\"string\",\"format\":\"duration\"}", GOOD("\"P4DT12H30M5S\"", "\"P1Y\"", "\"PT0S\"", "\"P2W\""), BAD("\"PT\"", "\"P\"", "\"P1YT\"", "\"4D\""));
    check("{\"type\":\"string\",\"format\":\"uuid\"}", GOOD("\"2eb8aa08-aa98-11ea-b4aa-73b441d16380\""), BAD("\"2eb8aa08aa9811eab4aa73b441d16380\"", "\"2eb8aa08-aa98-11ea-b4aa-73b441d1638\""));
    check("{\"type\":\"string\",\"format\":\"ipv4\"}", GOOD("\"192.168.0.255\""), BAD("\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""));
    check("{\"type\":\"string\",\"format\":\"ipv6\"}", GOOD("\"::\"", "\"::1\"", "\"fe80::a\"", "\"1:2:3:4:5:6:7:8\"", "\"::ffff:192.168.0.1\""), BAD("\"1:2:3:4:5:6:7\"", "\"1::2::3\"", "\"12345::\""));
    check("{\"type\":\"string\",\"format\":\"email\"}", GOOD("\"joe.bloggs@example.com\""), BAD("\"joe\"", "\".a@b\"", "\"a@\""));
    check("{\"type\":\"string\",\"format\":\"hostname\"}", GOOD("\"www.example.com\"", "\"xn--4gbwdl.xn--wgbh1c\""), BAD("\"-a.b\"", "\"a-.b\"", "\"a..b\""));
    check("{\"type\":\"string\",\"format\":\"uri\"}", GOOD("\"http://foo.bar/?baz=qux#quux\"", "\"mailto:a@b.c\"", "\"urn:oasis:x\""), BAD("\"/abc\"", "\"http:// x\"", "\"\""));
    check("{\"type\":\"string\",\"format\":\"my-own\"}", GOOD("\"anything\""), BAD(NULL));
}

static void test_objects(void **state)
{
    (void)state;
    check("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},\"required\":[\"b\"],\"additionalProperties\":false}",
          GOOD("{\"b\":2}", "{\"a\":1,\"b\":2}", "{\"b\":2,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"), BAD("{}", "{\"a\":1}", "{\"b\":2,\"a\":1}", "{\"b\":2,\"b\":2}", "{\"b\":2,\"d\":4}", "{\"b\":2,}"));
    check("{\"type\":\"object\",\"properties\":{\"ab\":{\"const\":1}},\"additionalProperties\":{\"type\":\"null\"}}",
          GOOD("{}", "{\"ab\":1}", "{\"a\":null,\"abc\":null}", "{\"ab\":1,\"\":null,\"\\n\":null}"), BAD("{\"ab\":null}", "{\"x\":1}", "{\"x\":null,\"ab\":1}"));
    check("{\"type\":\"object\",\"patternProperties\":{\"^n_\":{\"type\":\"integer\"},\"_s$\":{\"type\":\"string\"}},\"additionalProperties\":false}",
          GOOD("{\"n_a\":1}", "{\"b_s\":\"x\"}", "{\"n_1\":5,\"q_s\":\"\"}"), BAD("{\"n_a\":\"x\"}", "{\"z\":1}", "{\"n__s\":1}", "{\"n__s\":\"x\"}"));
    check("{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]{1,3}$\"},\"properties\":{\"LONG\":true,\"ok\":{\"const\":1}}}", GOOD("{\"ok\":1,\"abc\":[]}"), BAD("{\"LONG\":1}", "{\"abcd\":1}", "{\"\":1}"));
    check("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":1},\"c\":{\"const\":1}},\"minProperties\":2,\"maxProperties\":2,\"additionalProperties\":{\"const\":0}}",
          GOOD("{\"a\":1,\"c\":1}", "{\"b\":1,\"x\":0}"), BAD("{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{\"x\":0}", "{\"x\":0,\"y\":0}"));
    check("{\"type\":\"object\",\"properties\":{\"card\":{\"const\":1},\"bill\":{\"const\":2}},\"dependentRequired\":{\"card\":[\"bill\"]},\"additionalProperties\":false}",
          GOOD("{}", "{\"bill\":2}", "{\"card\":1,\"bill\":2}"), BAD("{\"card\":1}"));
    check("{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{\"const\":1}}},{\"properties\":{\"b\":{\"const\":2}}}],\"unevaluatedProperties\":false}",
          GOOD("{\"a\":1,\"b\":2}", "{}"), BAD("{\"c\":1}"));
}

static void test_combinations(void **state)
{
    (void)state;
    check("{\"type\":\"object\",\"required\":[\"k\"],\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},\"required\":[\"x\",\"k\"],\"additionalProperties\":false},"
          "{\"properties\":{\"k\":{\"const\":\"b\"},\"y\":{\"type\":\"null\"}},\"required\":[\"k\"],\"additionalProperties\":false}]}",
          GOOD("{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\",\"y\":null}", "{\"k\":\"b\"}"), BAD("{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}"));
    check_language("{\"oneOf\":[{\"enum\":[1,2,3]},{\"enum\":[3,4]}]}", "1\n2\n4");
    check_language("{\"enum\":[1,2,3,4],\"not\":{\"enum\":[2,9]}}", "1\n3\n4");
    check("{\"type\":\"string\",\"not\":{\"pattern\":\"^a\"}}", GOOD("\"b\"", "\"\""), BAD("\"a\"", "\"ab\""));
    check("{\"type\":\"integer\",\"not\":{\"const\":5},\"minimum\":4,\"maximum\":6}", GOOD("4", "6"), BAD("5"));
    check("{\"type\":[\"string\",\"null\"],\"not\":{\"type\":\"null\"}}", GOOD("\"a\""), BAD("null"));
    check("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"},\"b\":{\"type\":\"integer\"}},\"required\":[\"a\"],\"additionalProperties\":false,"
          "\"if\":{\"properties\":{\"a\":{\"const\":true}}},\"then\":{\"required\":[\"b\"]},\"else\":{\"properties\":{\"b\":false}}}",
          GOOD("{\"a\":true,\"b\":1}", "{\"a\":false}"), BAD("{\"a\":true}", "{\"a\":false,\"b\":1}"));
    check("{\"anyOf\":[{\"type\":\"string\",\"maxLength\":1},{\"type\":\"integer\",\"minimum\":9}]}", GOOD("\"a\"", "10"), BAD("\"ab\"", "8", "true"));
    check("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", GOOD("\"ab\"", "\"\xF0\x9F\xA6\x8A\\n\"", "\"\\ud83e\\udd8a\\u0041c\""), BAD("\"a\"", "\"abcd\"", "\"\\ud83e\\udd8a\""));
    check("true", GOOD("1", "{}", "[null]", "\"x\""), BAD("", "{]"));
    check("{}", GOOD("1", "[{\"a\":[[]]}]"), BAD("nul"));
}

/* A long string is counted, not written out: compile and masks stay small */
static void test_counted_lengths(void **state)
{
    (void)state;
    struct grammar *g = compiled("{\"type\":\"string\",\"maxLength\":100000,\"minLength\":50000}", true);
    struct grammar_stats st;
    struct grammar_state *s;
    uint32_t bits[RIG_N / 32 + 1];
    grammar_stats_get(g, &st);
    assert_true(st.n_states < 300);
    assert_int_equal(grammar_state_open(&s, g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept(s, '"', &rig_err), MB_OK);
    for (int i = 0; i < 100000; i++) {
        if (i == 49998) grammar_stats_get(g, &st);
        if (i == 49999) assert_int_equal(grammar_state_accept(s, '"', &rig_err), MB_INVALID);
        if (i == 50000) assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
        if (i % 1000 == 7) assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
        assert_int_equal(grammar_state_accept(s, 'a', &rig_err), MB_OK);
    }
    assert_true(st.mask_misses < 30);
    assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
    assert_false(bits['a' >> 5] >> ('a' & 31) & 1);
    assert_int_equal(grammar_state_accept(s, '"', &rig_err), MB_OK);
    assert_true(grammar_state_must_end(s));
    grammar_state_close(s);
    grammar_unref(g);
}

/* The tables that docs/structured-output.md is made from */
static void test_published_tables(void **state)
{
    (void)state;
    size_t n;
    const struct grammar_keyword *k = grammar_keywords(&n);
    assert_true(n > 40);
    for (size_t i = 0; i < n; i++)
        assert_true(!strcmp(k[i].status, "enforced") || !strcmp(k[i].status, "partly") || !strcmp(k[i].status, "annotation") || !strcmp(k[i].status, "refused"));
    FILE *page = fopen("docs/structured-output.md", "r"); /* tests run in the root of the repository */
    if (page) {
        static char text[1 << 16];
        text[fread(text, 1, sizeof text - 1, page)] = 0;
        fclose(page);
        for (size_t i = 0; i < n; i++) {
            char row[300];
            snprintf(row, sizeof row, "| `%s` | %s | %s |\n", k[i].name, k[i].status, k[i].note);
            if (!strstr(text, row)) print_message("docs/structured-output.md lacks: %s", row);
            assert_non_null(strstr(text, row));
        }
    }
    const char *const *f = grammar_formats();
    for (size_t i = 0; f[i]; i++) { /* each is what it says: enforced */
        char schema[100];
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}", f[i]);
        struct grammar *g = compiled(schema, true);
        assert_int_equal(rig_matches(g, "\"\\n\""), 0);
        grammar_unref(g);
    }
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b056_any_of_enums), cmocka_unit_test(test_b061_bad_schemas), cmocka_unit_test(test_unenforceable),
        cmocka_unit_test(test_b062_patterns), cmocka_unit_test(test_b064_references), cmocka_unit_test(test_b064_references_that_are_not_followed),
        cmocka_unit_test(test_b065_recursion),
        cmocka_unit_test(test_b059_long_enums_and_forking_references),
        cmocka_unit_test(test_b067_integers), cmocka_unit_test(test_b067_numbers), cmocka_unit_test(test_b068_utf8),
        cmocka_unit_test(test_b070_white_space), cmocka_unit_test(test_b074_arrays), cmocka_unit_test(test_b074_formats),
        cmocka_unit_test(test_objects), cmocka_unit_test(test_combinations), cmocka_unit_test(test_counted_lengths),
        cmocka_unit_test(test_published_tables),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
