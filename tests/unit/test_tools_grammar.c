/* The grammar of every family's markup: what it lets through, the family's own scanner reads as a call of a listed tool, with
 * arguments of the right types. Random walks over a vocabulary of single bytes and the family's signs (B-055). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/tools/tools.h"
#include "grammar/grammar.h"

static const char TOOLS[] =
    "[{\"name\":\"look\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\","
    "\"minimum\":0,\"maximum\":99},\"mode\":{\"enum\":[\"a b\",\"c\\\"d\"]},\"on\":{\"type\":\"boolean\"},\"r\":{\"$ref\":\"#/$defs/x\"},"
    "\"m2\":{\"$ref\":\"#/$defs/m\"},\"s0\":{\"type\":[\"string\",\"null\"]},\"i0\":{\"type\":[\"integer\",\"null\"]},"
    "\"o/n\":{\"type\":\"boolean\"},\"at\":{\"$ref\":\"#/properties/o~1n\"},"
    "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"maxItems\":2}},\"required\":[\"city\",\"mode\"],\"additionalProperties\":false,"
    "\"$defs\":{\"x\":{\"type\":\"null\"},\"m\":{\"enum\":[\"e\",\"f g\"]}}}},"
    "{\"name\":\"stop_it\",\"parameters\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}}]";

static const char *const SIGNS[] = {
    "<tool_call>", "</tool_call>", "<|tool_call>", "<tool_call|>", "<|\"|>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call_start|>",
    "<|tool_call_end|>", "<|python_start|>", "<|python_end|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
};
static const char *const PIECES[] = { "\n</parameter>\n", "</param>", "</arg_value>" };
enum { N_SIGNS = sizeof SIGNS / sizeof SIGNS[0], N_PIECES = sizeof PIECES / sizeof PIECES[0], N_BYTES = 96, N_MAX = N_BYTES + N_PIECES + N_SIGNS + 1 };

static struct tool_set set;
static bool signs_are_tokens;

static bool has_token(void *ctx, const char *text)
{
    (void)ctx;
    for (size_t i = 0; signs_are_tokens && i < N_SIGNS; i++)
        if (strcmp(SIGNS[i], text) == 0) return true;
    return false;
}

/* Printable ASCII and the line break, some pieces, the signs as added tokens; the last is the end. */
static int32_t make_vocab(struct grammar_vocab **v, struct grammar_token *t)
{
    static char bytes[N_BYTES];
    int32_t n = 0;
    for (int c = 0x20; c < 0x7F; c++) bytes[n] = (char)c, t[n] = (struct grammar_token){ &bytes[n], 1, false }, n++;
    bytes[n] = '\n', t[n] = (struct grammar_token){ &bytes[n], 1, false }, n++;
    for (size_t i = 0; i < N_PIECES; i++) t[n++] = (struct grammar_token){ PIECES[i], strlen(PIECES[i]), false };
    for (size_t i = 0; signs_are_tokens && i < N_SIGNS; i++) t[n++] = (struct grammar_token){ SIGNS[i], strlen(SIGNS[i]), true };
    t[n++] = (struct grammar_token){ "", 0, true };
    int32_t end = n - 1;
    mb_error err = { 0 };
    if (grammar_vocab_from_tokens(v, t, n, &end, 1, &err) != MB_OK) fail_msg("%s", err.text);
    return n;
}

/* --- what came out --- */
struct seen { int n_calls, n_text; const char *only; };

static void on_text(void *ctx, const char *text, size_t len)
{
    (void)text;
    ((struct seen *)ctx)->n_text += (int)len;
}

static void check_argument(const char *key, const json_t *v)
{
    if (strcmp(key, "city") == 0) assert_true(json_is_string(v));
    else if (strcmp(key, "n") == 0) assert_true(json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= 99);
    else if (strcmp(key, "mode") == 0)
        assert_true(strcmp(json_string_value(v), "a b") == 0 || strcmp(json_string_value(v), "c\"d") == 0);
    else if (strcmp(key, "on") == 0 || strcmp(key, "o/n") == 0 || strcmp(key, "at") == 0) assert_true(json_is_boolean(v));
    else if (strcmp(key, "r") == 0) assert_true(json_is_null(v));
    else if (strcmp(key, "m2") == 0) assert_true(strcmp(json_string_value(v), "e") == 0 || strcmp(json_string_value(v), "f g") == 0);
    else if (strcmp(key, "s0") == 0) assert_true(json_is_string(v) || json_is_null(v));
    else if (strcmp(key, "i0") == 0) assert_true(json_is_integer(v) || json_bigint_text(v) || json_is_null(v));
    else if (strcmp(key, "l") == 0) assert_true(json_is_array(v));
    else fail_msg("argument %s", key);
}

static void on_call(void *ctx, const struct tool_call *c)
{
    struct seen *s = ctx;
    json_t *args = NULL, *v;
    const char *key;
    assert_false(c->partial);
    const struct tool *t = tool_set_find(&set, c->name.ptr, c->name.len);
    assert_non_null(t);
    if (s->only) assert_string_equal(t->name, s->only);
    assert_int_equal(json_read(&args, c->arguments.ptr, c->arguments.len, 0, NULL), MB_OK);
    if (strcmp(t->name, "look") == 0) assert_true(json_object_get(args, "city") && json_object_get(args, "mode"));
    json_object_foreach(args, key, v) check_argument(key, v);
    json_decref(args);
    s->n_calls++;
}

/* --- walking --- */
static int32_t pick(const uint32_t *mask, int32_t n)
{
    int32_t allowed[N_MAX], m = 0;
    for (int32_t i = 0; i < n; i++)
        if (mask[i >> 5] >> (i & 31) & 1) allowed[m++] = i;
    assert_true(m > 0);
    if (allowed[m - 1] >= N_BYTES && rand() % 8 == 0) return allowed[m - 1]; /* so that free text ends */
    return allowed[rand() % m];
}

static bool walk(struct grammar *g, const struct grammar_token *t, int32_t n, struct buf *text)
{
    struct grammar_state *s;
    mb_error err = { 0 };
    bool ended = false;
    assert_int_equal(grammar_state_open(&s, g, &err), MB_OK);
    for (int i = 0; i < 3000 && !ended; i++) {
        uint32_t mask[(N_MAX + 31) / 32];
        if (grammar_state_mask(s, mask, n, &err) != MB_OK) fail_msg("%s behind %s", err.text, text->data);
        int32_t id = pick(mask, n);
        ended = id == n - 1;
        if (!ended) buf_append(text, t[id].bytes, t[id].len);
        if (grammar_state_accept(s, id, &err) != MB_OK) fail_msg("%s", err.text);
    }
    grammar_state_close(s);
    return ended;
}

static struct grammar *make_grammar(const struct tool_family *f, struct grammar_vocab *v, const char *only, bool parallel)
{
    struct buf b;
    struct grammar *g;
    mb_error err = { 0 };
    struct tool_grammar_options o = { .only = only, .parallel = parallel, .has_token = has_token };
    buf_init(&b, 0);
    buf_append_str(&b, "root ::= calls\n");
    tool_grammar_write(&b, f, &set, &o);
    struct grammar_source src = { GRAMMAR_EBNF, b.data, b.len, true, NULL, NULL };
    if (grammar_compile(&g, v, &src, &err) != MB_OK) fail_msg("%s: %s\n%s", tool_family_name(f), err.text, b.data);
    buf_free(&b);
    return g;
}

static void check_family(const char *name, const char *only, bool parallel)
{
    const struct tool_family *f = tool_family_named(name);
    struct grammar_vocab *v;
    struct grammar_token tokens[N_MAX];
    int32_t n = make_vocab(&v, tokens);
    struct grammar *g = make_grammar(f, v, only, parallel);
    int n_ended = 0, n_several = 0;
    for (int i = 0; i < 40; i++) {
        struct seen seen = { .only = only };
        struct tool_scan scan;
        struct buf text;
        buf_init(&text, 0);
        buf_append(&text, "", 0);
        if (walk(g, tokens, n, &text)) {
            n_ended++;
            tool_scan_init(&scan, f, &set, (struct tool_sink){ &seen, on_text, on_call });
            tool_scan_text(&scan, text.data, text.len);
            tool_scan_finish(&scan, false);
            tool_scan_free(&scan);
            if (seen.n_calls == 0 || seen.n_text) fail_msg("%s: no call, or more, in %s", name, text.data);
            if (!parallel) assert_int_equal(seen.n_calls, 1);
            n_several += seen.n_calls > 1;
        }
        buf_free(&text);
    }
    if (n_ended < 10) fail_msg("%s: only %d walks ended", name, n_ended);
    if (parallel && strcmp(name, "llama") != 0 && n_several == 0) fail_msg("%s: never two calls", name);
    grammar_unref(g);
    grammar_vocab_close(v);
}

static const char *const FAMILIES[] = { "hermes", "qwen-xml", "minicpm", "glm", "gemma", "mistral", "mistral-args", "llama", "llama4",
                                        "lfm2", "invoke", "any" };

/* B-055 */
static void test_b055_walks_of_every_family(void **state)
{
    (void)state;
    for (int tokens = 0; tokens < 2; tokens++) {
        signs_are_tokens = tokens;
        for (size_t i = 0; i < sizeof FAMILIES / sizeof FAMILIES[0]; i++) {
            if (!tokens && strcmp(FAMILIES[i], "gemma") == 0) continue; /* its quote must be a token: it has no escapes */
            check_family(FAMILIES[i], NULL, true);
            check_family(FAMILIES[i], "look", false);
        }
    }
}

/* --- what is left open --- */
#define IN_PROPERTY(schema) "{\"type\":\"object\",\"properties\":{\"p\":" schema "},\"required\":[\"p\"],\"additionalProperties\":false," \
    "\"$defs\":{\"color\":{\"enum\":[\"red\",\"blue\"]},\"code\":{\"type\":\"string\",\"pattern\":\"^x\"}," \
    "\"loop\":{\"anyOf\":[{\"type\":\"string\"},{\"$ref\":\"#/$defs/loop\"}]}}}"

static void check_gap(const char *family, const char *parameters, const char *want)
{
    char got[400] = "";
    struct tool t = { .name = "f", .strict = true };
    struct tool_gap gap;
    json_t *v;
    assert_int_equal(json_read(&v, parameters, strlen(parameters), 0, NULL), MB_OK);
    t.parameters = v;
    if (tool_grammar_gap(tool_family_named(family), &t, grammar_keyword_limits, &gap))
        snprintf(got, sizeof got, "%s %s", gap.path, gap.keyword);
    if (strcmp(got, want) != 0) fail_msg("%s: %s\n  got  %s\n  want %s", family, parameters, got, want);
    json_decref(v);
}

/* design.md section 6: what a markup cannot hold is named; JSON holds everything */
static void test_what_a_markup_leaves_open(void **state)
{
    (void)state;
    static const struct { const char *parameters, *tags, *gemma, *python; } rows[] = {
        { IN_PROPERTY("{\"type\":\"string\",\"description\":\"d\",\"format\":\"color\",\"x-y\":1}"), "", "", "" },
        { IN_PROPERTY("{\"type\":\"string\",\"pattern\":\"^x\"}"), "#/properties/p pattern", "#/properties/p pattern", "#/properties/p pattern" },
        { IN_PROPERTY("{\"type\":\"string\",\"format\":\"date\"}"), "#/properties/p format", "#/properties/p format", "#/properties/p format" },
        { IN_PROPERTY("{\"type\":\"string\",\"maxLength\":3}"), "#/properties/p maxLength", "#/properties/p maxLength", "#/properties/p maxLength" },
        { IN_PROPERTY("{\"enum\":[\"a\",\"b\"],\"type\":\"string\"}"), "", "", "" },
        { IN_PROPERTY("{\"enum\":[\"a\"],\"const\":\"b\"}"), "#/properties/p enum", "#/properties/p enum", "#/properties/p enum" },
        { IN_PROPERTY("{\"$ref\":\"#/$defs/color\"}"), "", "", "" },
        { IN_PROPERTY("{\"$ref\":\"#/$defs/code\"}"), "#/$defs/code pattern", "#/$defs/code pattern", "#/$defs/code pattern" },
        { IN_PROPERTY("{\"$ref\":\"#/$defs/loop\"}"), "#/$defs/loop/anyOf/1 $ref", "#/$defs/loop/anyOf/1 $ref", "#/$defs/loop/anyOf/1 $ref" },
        { IN_PROPERTY("{\"type\":[\"string\",\"null\"]}"), "", "", "" },
        { IN_PROPERTY("{\"anyOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"null\"}]}"), "#/properties/p/anyOf/0 minLength",
          "#/properties/p/anyOf/0 minLength", "#/properties/p/anyOf/0 minLength" },
        { IN_PROPERTY("{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}"), "", "", "" },
        { IN_PROPERTY("{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\"}]}"), "#/properties/p oneOf", "#/properties/p oneOf", "#/properties/p oneOf" },
        { IN_PROPERTY("{\"type\":\"integer\",\"minimum\":3}"), "", "", "" },
        { IN_PROPERTY("{\"type\":[\"integer\",\"null\"],\"minimum\":3}"), "", "", "#/properties/p minimum" },
        { IN_PROPERTY("{\"const\":true}"), "", "", "#/properties/p const" },
        { IN_PROPERTY("{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"), "", "#/properties/p items", "#/properties/p items" },
        { IN_PROPERTY("false"), "#/properties/p false", "#/properties/p false", "#/properties/p false" },
        { "{\"type\":\"object\",\"properties\":{\"a/b~\":{\"pattern\":\"x\"}}}", "#/properties/a~1b~0 pattern", "#/properties/a~1b~0 pattern", "#/properties/a~1b~0 pattern" },
        { "{\"type\":\"object\",\"properties\":{},\"required\":[\"q\"]}", "# required", "# required", "# required" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{}},\"minProperties\":1}", "# minProperties", "# minProperties", "# minProperties" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static const char *const whole[] = { "hermes", "mistral", "mistral-args", "llama", "invoke", "any" };
        static const char *const tags[] = { "qwen-xml", "minicpm", "glm" };
        for (size_t k = 0; k < sizeof whole / sizeof whole[0]; k++) check_gap(whole[k], rows[i].parameters, "");
        for (size_t k = 0; k < sizeof tags / sizeof tags[0]; k++) check_gap(tags[k], rows[i].parameters, rows[i].tags);
        check_gap("gemma", rows[i].parameters, rows[i].gemma);
        check_gap("lfm2", rows[i].parameters, rows[i].python);
        check_gap("llama4", rows[i].parameters, rows[i].python);
    }
}

static int open_set(void **state)
{
    (void)state;
    return tool_set_open(&set, TOOLS, NULL) == MB_OK ? 0 : -1;
}

static int close_set(void **state)
{
    (void)state;
    tool_set_close(&set);
    return 0;
}

int main(void)
{
    srand(11);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_b055_walks_of_every_family), cmocka_unit_test(test_what_a_markup_leaves_open) };
    return cmocka_run_group_tests(tests, open_set, close_set);
}
