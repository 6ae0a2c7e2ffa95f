/* Chat templates against jinja2 as transformers sets it up: tests/golden/template/cases.json (README there).
 * B-011, B-013, B-014, B-017, B-019, B-020, B-025. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/filemap.h"
#include "base/json.h"
#include "chat/template.h"

#define DIR "tests/golden/template/"

static json_t *doc;

static int load(void **state)
{
    mb_error err;
    (void)state;
    if (json_read_file(&doc, DIR "cases.json", 16 << 20, &err) == MB_OK) return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(doc);
    return 0;
}

static const char *member(const json_t *row, const char *key) { return json_string_value(json_object_get(row, key)); }

/* Compile and render; compare with the row's "expect" or "error". 1 when it differs. */
static int check(const char *name, const json_t *row, const char *source, size_t len, const struct template_input *in)
{
    struct chat_template *t;
    struct template_output out = { 0 };
    struct arena a;
    mb_error err = { 0 };
    const json_t *want = json_object_get(row, "expect");
    const char *want_error = member(row, "error");
    arena_init(&a, 0);
    mb_status st = chat_template_compile(&t, source, len, &err);
    const char *got_error = st != MB_OK ? "compile" : NULL;
    if (st == MB_OK) {
        st = chat_template_render(t, &a, in, NULL, &out, &err);
        got_error = st == MB_TEMPLATE ? "raise" : st != MB_OK ? "render" : NULL;
    }
    int bad = 0;
    if (want) {
        bad = got_error || out.len != json_string_length(want) || memcmp(out.text, json_string_value(want), out.len) != 0;
    } else {
        bad = !got_error || strcmp(got_error, want_error) != 0;
        if (!bad && strcmp(want_error, "raise") == 0) bad = strcmp(err.text, member(row, "message")) != 0;
        /* What cannot compile here but fails while rendering there is refused all the same. */
        if (bad && got_error && strcmp(got_error, "raise") != 0 && strcmp(want_error, "raise") != 0 &&
            strcmp(got_error, "compile") == 0) bad = 0;
    }
    if (bad) {
        print_error("%s\n  template: %.300s\n", name, source);
        if (want) print_error("  want: <%.2000s>\n", json_string_value(want));
        else print_error("  want error: %s %s\n", want_error, member(row, "message") ? member(row, "message") : "");
        if (got_error) print_error("  got error: %s: %s\n", got_error, err.text);
        else print_error("  got: <%.2000s>\n", out.text);
    }
    /* The runs cover the output without gaps. */
    size_t at = 0;
    for (size_t i = 0; !got_error && i < out.n_runs; i++) {
        if (out.runs[i].first != at || out.runs[i].end <= at || !out.runs[i].field) bad = 1;
        at = out.runs[i].end;
    }
    if (!got_error && at != out.len) bad = 1;
    chat_template_free(t);
    arena_free(&a);
    return bad;
}

static void test_small_cases(void **state)
{
    json_t *messages = json_array(), *row;
    size_t i;
    int n_bad = 0;
    (void)state;
    struct template_input in = { .messages = messages, .kwargs = json_object_get(doc, "vars") };
    in.now_unix_s = json_integer_value(json_object_get(doc, "now"));
    json_array_foreach(json_object_get(doc, "cases"), i, row) {
        json_t *source = json_object_get(row, "template");
        n_bad += check(member(row, "name"), row, json_string_value(source), json_string_length(source), &in);
    }
    json_decref(messages);
    print_message("%zu cases, %d differ\n", json_array_size(json_object_get(doc, "cases")), n_bad);
    assert_true(json_array_size(json_object_get(doc, "cases")) > 500);
    assert_int_equal(n_bad, 0);
}

static int check_chat(const json_t *row)
{
    char path[256], name[128];
    struct buf source;
    const json_t *chat = json_object_get(json_object_get(doc, "chats"), member(row, "chat"));
    const json_t *tokens = json_object_get(doc, "tokens");
    mb_error err = { 0 };
    snprintf(path, sizeof path, DIR "templates/%s.jinja", member(row, "template"));
    snprintf(name, sizeof name, "%s with %s", member(row, "template"), member(row, "chat"));
    buf_init(&source, 0);
    if (file_read(&source, path, 1 << 20, &err) != MB_OK) { print_error("%s\n", err.text); return 1; }
    struct template_input in = { .messages = json_object_get(chat, "messages"), .tools = json_object_get(chat, "tools") };
    in.documents = json_object_get(chat, "documents");
    in.kwargs = json_object_get(chat, "kwargs");
    in.add_generation_prompt = json_is_true(json_object_get(chat, "add_generation_prompt"));
    in.bos_token = member(tokens, "bos_token");
    in.eos_token = member(tokens, "eos_token");
    in.now_unix_s = json_integer_value(json_object_get(doc, "now"));
    int bad = check(name, row, source.data, source.len, &in);
    buf_free(&source);
    return bad;
}

static void test_published_style_templates(void **state)
{
    json_t *row;
    size_t i;
    int n_bad = 0;
    (void)state;
    json_array_foreach(json_object_get(doc, "renders"), i, row) n_bad += check_chat(row);
    print_message("%zu renders, %d differ\n", json_array_size(json_object_get(doc, "renders")), n_bad);
    assert_true(json_array_size(json_object_get(doc, "renders")) > 100);
    assert_int_equal(n_bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_cases),
        cmocka_unit_test(test_published_style_templates),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
