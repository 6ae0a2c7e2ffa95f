/* The chat template engine: what the goldens cannot show: limits, errors with their places, origin runs, generation
 * spans, the files of a model directory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/filemap.h"
#include "base/json.h"
#include "chat/template.h"

static struct arena mem;
static struct template_output out;
static mb_error err;

static json_t *parse(const char *text)
{
    json_t *j = NULL;
    if (text && json_read(&j, text, strlen(text), JSON_READ_ANY, &err) != MB_OK) fail_msg("%s: %s", text, err.text);
    return j;
}

static mb_status compile_status(const char *source)
{
    struct chat_template *t;
    mb_status st = chat_template_compile(&t, source, strlen(source), &err);
    chat_template_free(t);
    return st;
}

static mb_status render_limits(const char *source, const char *messages, const char *tools, const char *kwargs,
                               const struct template_limits *limits)
{
    struct chat_template *t;
    json_t *m = parse(messages ? messages : "[]"), *tl = parse(tools), *k = parse(kwargs);
    arena_free(&mem);
    arena_init(&mem, 0);
    mb_status st = chat_template_compile(&t, source, strlen(source), &err);
    struct template_input in = { .messages = m, .tools = tl, .kwargs = k, .bos_token = "<s>", .eos_token = "</s>" };
    if (st == MB_OK) st = chat_template_render(t, &mem, &in, limits, &out, &err);
    chat_template_free(t);
    json_decref(m);
    json_decref(tl);
    json_decref(k);
    return st;
}

static void expect(const char *source, const char *messages, const char *tools, const char *kwargs, const char *want)
{
    mb_status st = render_limits(source, messages, tools, kwargs, NULL);
    if (st != MB_OK) fail_msg("%s: %s", source, err.text);
    assert_string_equal(out.text, want);
    assert_int_equal(out.len, strlen(want));
}

static void expect_fail(mb_status want, const char *source)
{
    mb_status st = render_limits(source, NULL, NULL, NULL, NULL);
    if (st != want) fail_msg("%s: status %d, wanted %d (%s)", source, st, want, st ? err.text : out.text);
}

/* B-011: loop controls work, an unknown tag is a load error with its place. */
static void test_b011_loop_controls_and_unknown_tag(void **state)
{
    (void)state;
    expect("{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}:{{ m.content }}\n"
           "{% if m.role == 'assistant' %}{% break %}{% endif %}{% endfor %}",
           "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"},"
           "{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"v\"}]",
           NULL, NULL, "user:u\nassistant:a\n");
    assert_int_equal(compile_status("a\n b {% frobnicate x %}"), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "line 2, column 7: unknown tag 'frobnicate'"));
    assert_int_equal(compile_status("{% include 'x' %}"), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "include"));
    assert_int_equal(compile_status("{% import 'x' as y %}"), MB_BAD_FORMAT);
    assert_int_equal(compile_status("x {{ a|frob }}"), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "line 1, column 8: No filter named 'frob'."));
    assert_int_equal(compile_status("\xff"), MB_BAD_FORMAT);
}

/* B-013: raise_exception is the template's own text, and nothing else. */
static void test_b013_raise_exception(void **state)
{
    (void)state;
    assert_int_equal(render_limits("{% for m in messages %}{% if loop.index0 % 2 == 1 and m.role == 'user' %}"
                                   "{{ raise_exception('roles must alternate — ü') }}{% endif %}x{% endfor %}",
                                   "[{\"role\":\"user\"},{\"role\":\"user\"}]", NULL, NULL, NULL), MB_TEMPLATE);
    assert_string_equal(err.text, "roles must alternate — ü");
    assert_null(out.text);
    assert_int_equal(out.n_runs, 0);
    expect_fail(MB_INVALID, "a\nb\n{{ 1 + 'x' }}");
    assert_non_null(strstr(err.text, "line 3"));
}

/* B-014: insertion order, raw UTF-8, no HTML escapes, 1.0 stays 1.0, big integers exact. */
static void test_b014_tojson(void **state)
{
    (void)state;
    const char *tool = "[{\"zeta\": 1.0, \"alpha\": 12345678901234567890123, \"d\": \"if a<b & c>'d' — ü 🙂\"}]";
    expect("{{ tools[0]|tojson }}", NULL, tool, NULL,
           "{\"zeta\": 1.0, \"alpha\": 12345678901234567890123, \"d\": \"if a<b & c>'d' — ü 🙂\"}");
    expect("{{ tools[0]|tojson(indent=4) }}", NULL, tool, NULL,
           "{\n    \"zeta\": 1.0,\n    \"alpha\": 12345678901234567890123,\n    \"d\": \"if a<b & c>'d' — ü 🙂\"\n}");
}

/* B-016: arguments arrive as objects and keep their order. */
static void test_b016_arguments_items(void **state)
{
    (void)state;
    expect("{% for c in messages[0].tool_calls %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};"
           "{% endfor %}{% endfor %}",
           "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
           "{\"city\":\"Oslo\",\"n\":2}}}]}]", NULL, NULL, "city=Oslo;n=2;");
}

/* B-017 is in tests/golden/test_template.c; here what a template may not do to the caller's data. */
static void test_b017_sandbox_keeps_lists_as_they_are(void **state)
{
    (void)state;
    expect_fail(MB_INVALID, "{% set _ = messages.append(1) %}");
    expect_fail(MB_INVALID, "{% set x = {'a': 1} %}{% set _ = x.update({'b': 2}) %}");
    expect("{{ messages.append is defined }}", NULL, NULL, NULL, "False");
}

/* B-019: tools [], null and absent give the same bytes; undefined behaves as in jinja2. */
static void test_b019_tools_empty_null_absent(void **state)
{
    static const char t[] = "{{ tools is none }}|{% if tools %}T{% endif %}|{{ tools is defined }}";
    (void)state;
    expect(t, NULL, "[]", NULL, "True||True");
    expect(t, NULL, "null", NULL, "True||True");
    expect(t, NULL, NULL, NULL, "True||True");
    expect("{{ x|length }}[{{ x|trim }}][{{ x }}]", NULL, NULL, NULL, "0[][]");
    expect_fail(MB_INVALID, "{{ x.y }}");
    assert_non_null(strstr(err.text, "'x' is undefined"));
}

/* B-020: null, absent and empty content are for the template to tell apart. */
static void test_b020_null_content(void **state)
{
    static const char t[] = "{% for m in messages %}[{{ m.content or '' }}]{% endfor %}";
    (void)state;
    expect(t, "[{\"content\":null},{},{\"content\":\"\"},{\"content\":\"x\"}]", NULL, NULL, "[][][][x]");
}

/* B-025: non-ASCII stays raw. */
static void test_b025_raw_characters(void **state)
{
    (void)state;
    expect("{{ messages[0].content | tojson }}{{ messages[0].content }}",
           "[{\"role\":\"tool\",\"content\":{\"ort\":\"K\\u00f6ln\",\"x\":\"\\u6a4b\"}}]", NULL, NULL,
           "{\"ort\": \"Köln\", \"x\": \"橋\"}{'ort': 'Köln', 'x': '橋'}");
}

/* Under 1 s on a plain build; sanitizers are slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUICK_S 20.0
#else
#define QUICK_S 1.0
#endif

static void expect_quick_limit(const char *source)
{
    clock_t start = clock(); /* processor time: other programs of a busy machine do not count */
    mb_status st = render_limits(source, NULL, NULL, NULL, NULL);
    if (st != MB_TOO_LARGE) fail_msg("%s: status %d %s", source, st, st ? err.text : "");
    double s = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (s > QUICK_S) fail_msg("%s: took %.2f s, at most %.1f s are allowed", source, s, QUICK_S);
}

/* B-023: nothing that a template does takes long, much memory, or leads out of the sandbox. */
static void test_b023_limits(void **state)
{
    (void)state;
    expect_fail(MB_INVALID, "{% for i in range(9000000) %}{% for j in range(9000000) %}{% endfor %}{% endfor %}");
    expect_quick_limit("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}");
    expect_quick_limit("{{ 'a' * 10**9 }}");
    expect_quick_limit("{{ 10**9 * 'a' }}");
    expect_quick_limit("{{ [1] * 10**9 }}");
    expect_quick_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    expect_quick_limit("{% macro m() %}{{ caller() }}{% call m() %}x{% endcall %}{% endmacro %}{% call m() %}y{% endcall %}");
    expect_quick_limit("{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}");
    expect_quick_limit("{% set ns = namespace(s='a' * 1000) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}");
    expect_quick_limit("{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}");
    expect_quick_limit("{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}");
    expect_quick_limit("{{ 'abc'.center(10**10) }}");
    expect_quick_limit("{{ 'abc'.ljust(10**15) }}");
    expect_quick_limit("{{ '%999999999d' % 1 }}");
    expect_quick_limit("{{ 'aaaa'.replace('a', 'b' * 10**7).replace('b', 'c' * 10**7) }}");
    expect_quick_limit("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}");
    expect_quick_limit("{{ [1]|tojson(indent=10**9) }}");
    expect_quick_limit("{% set s = 'ab' * 10**6 %}{% for i in range(100000) %}{% if s.find('x') > 0 %}{% endif %}{% endfor %}");
    expect_quick_limit("{% set s = ' ' * 10**6 %}{% for i in range(100000) %}{% if s.strip() %}{% endif %}{% endfor %}");
    expect_quick_limit("{% set s = 'a' * 10**6 %}{% for i in range(100000) %}{% if s == s[0:] ~ '' %}{% endif %}{% endfor %}");
    expect_quick_limit("{{ range(100000)|batch(1, 0)|map('string')|join * 100 }}");
    expect("{{ ''.__class__ }}{{ [].__class__ }}{{ namespace.__globals__ }}", NULL, NULL, NULL, "");
    expect_fail(MB_INVALID, "{{ ''.__class__.__mro__ }}");
    expect_fail(MB_INVALID, "{{ ''['__class__']['__mro__'] }}");
    expect("{{ '{0.__class__}'.format(1) }}", NULL, NULL, NULL, "");
}

static void test_b023_small_limits(void **state)
{
    (void)state;
    struct template_limits few_steps = { .max_steps = 100 }, short_out = { .max_output_bytes = 10 };
    assert_int_equal(render_limits("{% for i in range(90) %}x{% endfor %}", NULL, NULL, NULL, &few_steps), MB_TOO_LARGE);
    assert_int_equal(render_limits("0123456789", NULL, NULL, NULL, &short_out), MB_OK);
    assert_int_equal(render_limits("0123456789a", NULL, NULL, NULL, &short_out), MB_TOO_LARGE);
}

static void repeat_to(char *buf, size_t cap, const char *s, int n)
{
    buf[0] = 0;
    for (int i = 0; i < n && strlen(buf) + strlen(s) + 1 < cap; i++) strcat(buf, s);
}

/* Deeply nested source is refused when it is compiled, not by a crash. */
static void test_b023_nested_source(void **state)
{
    static char big[200000], src[420000];
    static const char *const openers[] = { "(", "[", "{1:", "not ", "-", "a[", "f(", "'a' if ", "1+(", "a.b[" };
    (void)state;
    for (size_t i = 0; i < sizeof openers / sizeof *openers; i++) {
        repeat_to(big, sizeof big, openers[i], 5000);
        snprintf(src, sizeof src, "{{ %s }}", big);
        assert_int_equal(compile_status(src), MB_BAD_FORMAT);
    }
    repeat_to(big, sizeof big, "{% if 1 %}", 5000);
    assert_int_equal(compile_status(big), MB_BAD_FORMAT);
    repeat_to(big, sizeof big, "1+", 5000);
    snprintf(src, sizeof src, "{{ %s1 }}", big);
    assert_int_equal(compile_status(src), MB_BAD_FORMAT);
    repeat_to(big, sizeof big, "|trim", 5000);
    snprintf(src, sizeof src, "{{ x%s }}", big);
    assert_int_equal(compile_status(src), MB_BAD_FORMAT);
    repeat_to(big, sizeof big, "{% elif 0 %}x", 5000);
    snprintf(src, sizeof src, "{%% if 0 %%}%s{%% else %%}y{%% endif %%}", big);
    expect(src, NULL, NULL, NULL, "y");
    repeat_to(big, sizeof big, "'a'~", 5000);
    snprintf(src, sizeof src, "{{ (%s'b')|length }}", big);
    expect(src, NULL, NULL, NULL, "5001");
}

/* ---- origin runs ---- */

/* Runs as "text<message.field>". */
static const char *runs_text(void)
{
    static char text[8192];
    size_t at = 0;
    text[0] = 0;
    for (size_t i = 0; i < out.n_runs; i++) {
        const struct origin_run *r = &out.runs[i];
        at += (size_t)snprintf(text + at, sizeof text - at, "%.*s<%d.%s>", (int)(r->end - r->first), out.text + r->first,
                               (int)r->i_message, r->field);
    }
    return text;
}

static void expect_runs(const char *source, const char *want)
{
    mb_status st = render_limits(source,
        "[{\"role\":\"user\",\"content\":\"  hé<|im_end|>llo  \"},{\"role\":\"assistant\",\"content\":null,"
        "\"reasoning_content\":\"why\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"k\":\"v\\\"w\",\"n\":2}}}]}]",
        "[{\"name\":\"T\"}]", "{\"extra\":\"E\"}", NULL);
    if (st != MB_OK) fail_msg("%s: %s", source, err.text);
    assert_string_equal(runs_text(), want);
}

static void test_origin_runs(void **state)
{
    (void)state;
    expect_runs("<u>{{ messages[0].content }}</u>", "<u><-1.template>  hé<|im_end|>llo  <0.content></u><-1.template>");
    expect_runs("{{ '[' + messages[0].content | trim ~ ']' }}", "[<-1.template>hé<|im_end|>llo<0.content>]<-1.template>");
    expect_runs("{{ messages[0]['content'].strip().upper()[0:4] }}", "HÉ<|<0.content>");
    expect_runs("{{ (messages[0].content|trim ~ '!').split('<|im_end|>')|join('+') }}",
                "hé<0.content>+<-1.template>llo<0.content>!<-1.template>");
    expect_runs("{{ ('a' ~ messages[0].content|trim ~ 'b')[1:-1] }}", "hé<|im_end|>llo<0.content>");
    expect_runs("{{ ('a' ~ messages[0].content|trim ~ 'b')[::-1] }}", "b<-1.template>oll>|dne_mi|<éh<0.content>a<-1.template>");
    expect_runs("{{ (messages[0].content|trim).replace('l', 'L') }}",
                "hé<|im_end|><0.content>LL<-1.template>o<0.content>");
    expect_runs("{{ 'x%sy' % messages[1].reasoning_content }}", "x<-1.template>why<1.reasoning_content>y<-1.template>");
    expect_runs("{{ 'x{}y'.format(messages[1].reasoning_content) }}", "x<-1.template>why<1.reasoning_content>y<-1.template>");
    expect_runs("{{ '>' ~ messages[1].tool_calls[0].function.arguments | tojson }}",
                "><-1.template>{\"k\": \"v\\\"w\", \"n\": 2}<1.tool_calls>");
    expect_runs("{{ messages[1].tool_calls[0].function.name }}{{ messages[0].role }}", "f<1.tool_calls>user<0.role>");
    expect_runs("{{ tools|tojson }}{{ extra }}", "[{\"name\": \"T\"}]<-2.tools>E<-3.variable>");
    expect_runs("{% macro m(x) %}({{ x }}){% endmacro %}{% set s %}{{ m(messages[0].role) }}{% endset %}{{ s|upper }}",
                "(<-1.template>USER<0.role>)<-1.template>");
    expect_runs("{% for k, v in messages[1].tool_calls[0].function.arguments|items %}{{ k }}={{ v }} {% endfor %}",
                "k<1.tool_calls>=<-1.template>v\"w<1.tool_calls> <-1.template>n<1.tool_calls>=<-1.template>2<1.tool_calls> <-1.template>");
    expect_runs("{% filter indent %}{{ messages[1].reasoning_content }}\n{{ messages[0].role }}{% endfilter %}",
                "why<1.reasoning_content>\n    <-1.template>user<0.role>");
    expect_runs("{{ messages[1].reasoning_content|e|title|center(7) }}", "  <-1.template>Why<1.reasoning_content>  <-1.template>");
    expect_runs("{{ [messages[0].role, 'x']|string }}", "[<-1.template>'user'<0.role>, 'x']<-1.template>");
}

/* {% generation %} blocks give their spans. */
static void test_generation_spans(void **state)
{
    (void)state;
    expect("{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %};{% endfor %}",
           "[{\"role\":\"a\",\"content\":\"xy\"},{\"role\":\"b\",\"content\":\"z\"}]", NULL, NULL, "a:xy</s>;b:z</s>;");
    assert_int_equal(out.n_generation, 2);
    assert_int_equal(out.generation[0].first, 2);
    assert_int_equal(out.generation[0].end, 8);
    assert_int_equal(out.generation[1].first, 11);
    assert_int_equal(out.generation[1].end, 16);
}

/* The same input gives the same bytes; a compiled template is not changed by a render. */
static void test_render_twice(void **state)
{
    static const char src[] = "{% for m in messages %}{{ m.content|upper }}{{ 'é'|length }}{% endfor %}";
    struct chat_template *t;
    json_t *m = parse("[{\"content\":\"aé\"}]");
    struct template_input in = { .messages = m };
    struct template_output a, b;
    (void)state;
    assert_int_equal(chat_template_compile(&t, src, sizeof src - 1, &err), MB_OK);
    arena_free(&mem);
    arena_init(&mem, 0);
    assert_int_equal(chat_template_render(t, &mem, &in, NULL, &a, &err), MB_OK);
    assert_int_equal(chat_template_render(t, &mem, &in, NULL, &b, &err), MB_OK);
    assert_string_equal(a.text, "AÉ1");
    assert_string_equal(a.text, b.text);
    chat_template_free(t);
    json_decref(m);
}

/* chat_template_kwargs sets variables, but never the conversation. */
static void test_kwargs(void **state)
{
    (void)state;
    expect("{{ enable_thinking }}{{ extra.a[0] }}", NULL, NULL, "{\"enable_thinking\":false,\"extra\":{\"a\":[1]}}", "False1");
    assert_int_equal(render_limits("x", NULL, NULL, "{\"messages\":[]}", NULL), MB_INVALID);
    assert_non_null(strstr(err.text, "messages"));
}

/* The caller's arena may be too small: an error, no crash. */
static void test_small_arena(void **state)
{
    struct chat_template *t;
    json_t *m = json_array();
    struct template_input in = { .messages = m };
    struct template_output o;
    struct arena tight;
    (void)state;
    assert_int_equal(chat_template_compile(&t, "{{ 'x' * 100000 }}", 18, &err), MB_OK);
    arena_init(&tight, 1000);
    assert_int_equal(chat_template_render(t, &tight, &in, NULL, &o, &err), MB_NO_MEMORY);
    assert_null(o.text);
    arena_free(&tight);
    chat_template_free(t);
    json_decref(m);
}

/* ---- B-022: the files of a model directory ---- */

static char dir[64];

static void put_file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), &err), MB_OK);
}

static void new_dir(void)
{
    strcpy(dir, "/tmp/mbtmplXXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void drop_dir(void)
{
    static const char *const names[] = { "chat_template.jinja", "chat_template.json", "tokenizer_config.json",
                                         "additional_chat_templates/tool_use.jinja", "additional_chat_templates" };
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (i < 4) unlink(path);
        else rmdir(path);
    }
    rmdir(dir);
}

#define NAMED "{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"tool_use\",\"template\":\"U\"}," \
              "{\"name\":\"rag\",\"template\":\"{% nope %}\"}]}"

/* REG-159 */
static void test_b022_files(void **state)
{
    struct chat_templates t;
    (void)state;
    new_dir();
    assert_int_equal(chat_templates_open(&t, dir, &err), MB_OK); /* none: no error here */
    assert_null(t.dflt);
    assert_null(t.tool_use);
    chat_templates_close(&t);
    put_file("tokenizer_config.json", "{\"chat_template\":\"C\"}");
    assert_int_equal(chat_templates_open(&t, dir, &err), MB_OK);
    assert_string_equal(t.source_of_default, "C");
    chat_templates_close(&t);
    put_file("tokenizer_config.json", NAMED);
    assert_int_equal(chat_templates_open(&t, dir, &err), MB_OK);
    assert_string_equal(t.source_of_default, "D");
    assert_non_null(t.tool_use);
    chat_templates_close(&t);
    put_file("chat_template.json", "{\"chat_template\":\"J\"}");
    assert_int_equal(chat_templates_open(&t, dir, &err), MB_OK);
    assert_string_equal(t.source_of_default, "J");
    assert_null(t.tool_use);
    chat_templates_close(&t);
    put_file("chat_template.jinja", "X\n");
    assert_int_equal(chat_templates_open(&t, dir, &err), MB_OK);
    assert_string_equal(t.source_of_default, "X\n");
    assert_null(t.tool_use);
    chat_templates_close(&t);
    char sub[128];
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    assert_int_equal(dir_make(sub, &err), MB_OK);
    put_file("additional_chat_templates/tool_use.jinja", "tools");
    assert_int_equal(chat_templates_open(&t, dir, &err), MB_OK);
    assert_non_null(t.tool_use);
    chat_templates_close(&t);
    put_file("chat_template.jinja", "a\n{% nope %}");
    assert_int_equal(chat_templates_open(&t, dir, &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "chat_template.jinja: line 2, column 4"));
    assert_null(t.dflt);
    drop_dir();
}

static int teardown(void **state)
{
    (void)state;
    arena_free(&mem);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b011_loop_controls_and_unknown_tag),
        cmocka_unit_test(test_b013_raise_exception),
        cmocka_unit_test(test_b014_tojson),
        cmocka_unit_test(test_b016_arguments_items),
        cmocka_unit_test(test_b017_sandbox_keeps_lists_as_they_are),
        cmocka_unit_test(test_b019_tools_empty_null_absent),
        cmocka_unit_test(test_b020_null_content),
        cmocka_unit_test(test_b022_files),
        cmocka_unit_test(test_b023_limits),
        cmocka_unit_test(test_b023_small_limits),
        cmocka_unit_test(test_b023_nested_source),
        cmocka_unit_test(test_b025_raw_characters),
        cmocka_unit_test(test_origin_runs),
        cmocka_unit_test(test_generation_spans),
        cmocka_unit_test(test_render_twice),
        cmocka_unit_test(test_kwargs),
        cmocka_unit_test(test_small_arena),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
