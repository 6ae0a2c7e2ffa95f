/* Tool calls in text: every markup, typed by the schema, cut at every place, broken, cut off. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/tools/tools.h"

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},\"zip\":{\"type\":\"string\"},\"wind\":{\"type\":\"boolean\"},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"area\":{\"type\":\"object\"},\"temp\":{\"type\":\"number\"},"
    "\"note\":{\"type\":[\"string\",\"null\"]},\"mode\":{\"anyOf\":[{\"enum\":[\"a\",\"b\"]},{\"enum\":[\"c\"]}]},"
    "\"ref\":{\"$ref\":\"#/$defs/n\"},\"any\":{}},\"required\":[\"city\"],\"$defs\":{\"n\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"write\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"path\":{\"type\":\"string\"},\"content\":{\"type\":\"string\"}}}}}]";

static struct tool_set set;

static int open_set(void **state)
{
    (void)state;
    mb_error err = { 0 };
    return tool_set_open(&set, TOOLS, &err) == MB_OK ? 0 : -1;
}

static int close_set(void **state)
{
    (void)state;
    tool_set_close(&set);
    return 0;
}

/* Text and calls in one line: text, then "|name arguments" at each call's place; "!" before the name: cut off. */
struct seen { struct buf b; int n_text; };

static void on_text(void *ctx, const char *text, size_t len)
{
    struct seen *s = ctx;
    assert_true(len > 0);
    s->n_text++;
    buf_append(&s->b, text, len);
}

static void on_call(void *ctx, const struct tool_call *c)
{
    struct seen *s = ctx;
    if (!c->partial) { /* a whole call is always an object */
        json_t *v = NULL;
        assert_int_equal(json_read(&v, c->arguments.ptr, c->arguments.len, 0, NULL), MB_OK);
        assert_true(json_is_object(v));
        json_decref(v);
    }
    buf_append_str(&s->b, c->partial ? "|!" : "|");
    buf_append(&s->b, c->name.ptr, c->name.len);
    buf_append_char(&s->b, ' ');
    buf_append(&s->b, c->arguments.ptr, c->arguments.len);
}

struct cuts { size_t first, second; unsigned long bits; }; /* bits: a piece ends behind each byte whose bit is set */

static void run(const char *family, const char *text, size_t n, struct cuts k, bool cut, struct seen *s)
{
    struct tool_scan scan;
    size_t from = 0;
    memset(s, 0, sizeof *s);
    buf_init(&s->b, 0);
    tool_scan_init(&scan, tool_family_named(family), &set, (struct tool_sink){ s, on_text, on_call });
    for (size_t i = 1; i <= n; i++) {
        if (i < n && i != k.first && i != k.second && !(k.bits >> (i % 61) & 1)) continue;
        tool_scan_text(&scan, text + from, i - from);
        from = i;
    }
    tool_scan_finish(&scan, cut);
    assert_int_equal(tool_scan_status(&scan), MB_OK);
    buf_append(&s->b, "", 0);
    tool_scan_free(&scan);
}

static void expect(const char *family, const char *text, struct cuts k, bool cut, const char *want)
{
    struct seen s;
    run(family, text, strlen(text), k, cut, &s);
    const char *got = s.b.data ? s.b.data : "";
    if (strcmp(got, want) != 0)
        fail_msg("%s, cut at %zu and %zu (%lx):\n  text %s\n  got  %s\n  want %s", family, k.first, k.second, k.bits, text, got, want);
    buf_free(&s.b);
}

/* Whole, byte by byte, every place, every pair of places of short texts, random places. */
static void check_end(const char *family, const char *text, bool cut, const char *want)
{
    size_t n = strlen(text);
    expect(family, text, (struct cuts){ 0 }, cut, want);
    expect(family, text, (struct cuts){ .bits = ~0ul }, cut, want);
    for (size_t i = 1; i < n; i++) {
        expect(family, text, (struct cuts){ .first = i }, cut, want);
        for (size_t j = i + 1; j < n && n < 90; j++) expect(family, text, (struct cuts){ i, j, 0 }, cut, want);
    }
    for (int r = 0; r < 100; r++) expect(family, text, (struct cuts){ .bits = (unsigned long)rand() << 31 ^ (unsigned long)rand() }, cut, want);
}

static void check(const char *family, const char *text, const char *want)
{
    check_end(family, text, false, want);
}

/* API-140, B-052 */
static void test_b052_hermes_json_every_split(void **state)
{
    (void)state;
    check("hermes", "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", "|ping {}");
    check("hermes", "I look.\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>",
          "I look.|get_weather {\"city\":\"Oslo\",\"days\":2}");
    check("hermes", "<tool_call>{\"name\":\"ping\"}</tool_call>\n<tool_call>{\"name\":\"ping\",\"arguments\":null}</tool_call>\n",
          "|ping {}|ping {}");
    /* arguments with everything that breaks a naive reader */
    check("hermes", "<tool_call>{\"name\":\"write\",\"arguments\":{\"path\":\"a}\\\"\\\\\\n\\u00e9\xC3\xA9\",\"content\":\"path\"}}</tool_call>",
          "|write {\"path\":\"a}\\\"\\\\\\n\xC3\xA9\xC3\xA9\",\"content\":\"path\"}");
    check("hermes", "<tool_call>{\"name\":\"write\",\"arguments\":{\"content\":\"</tool_call>\",\"x\":[[1,[2]],{}]}}</tool_call> ok",
          "|write {\"content\":\"</tool_call>\",\"x\":[[1,[2]],{}]}ok");
    /* the order of keys, and arguments that come as text */
    check("hermes", "<tool_call>{\"arguments\":{\"city\":\"x\"},\"name\":\"get_weather\"}</tool_call>", "|get_weather {\"city\":\"x\"}");
    check("hermes", "<tool_call>{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\":\\\"x\\\"}\"}</tool_call>", "|get_weather {\"city\":\"x\"}");
    check("hermes", "<tool_call>{\"name\":\"ping\",\"arguments\":{}}", "|ping {}"); /* ended without the closing sign */
    check("hermes", "<tool_call>\n{\"name\":\"ping\",\"arguments\":{}}\n{\"name\":\"ping\",\"arguments\":{\"a\":1}}\n</tool_call>",
          "|ping {}|ping {\"a\":1}");
    check("hermes", "a\n<tool_call>{\"name\":\"ping\"}</tool_call>\nb\n<tool_call>{\"name\":\"ping\"}</tool_call>", "a|ping {}b|ping {}");
}

/* API-143, API-146, MOD-030 */
static void test_qwen_xml_types(void **state)
{
    (void)state;
    check("qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
          "|get_weather {\"city\":\"Oslo\",\"days\":2}");
    check("qwen-xml", "<function=get_weather><parameter=zip>00123</parameter><parameter=wind>true</parameter></function>",
          "|get_weather {\"zip\":\"00123\",\"wind\":true}");
    check("qwen-xml", "<tool_call><function=ping>\n</function></tool_call>", "|ping {}");
    check("qwen-xml", "<tool_call><function=get_weather><parameter=tags>[\"a\", \"b\"]</parameter><parameter=area>{\"x\":1}</parameter>"
          "<parameter=temp>1.50</parameter><parameter=note>null</parameter><parameter=ref>7</parameter><parameter=wind>False</parameter></function></tool_call>",
          "|get_weather {\"tags\":[\"a\",\"b\"],\"area\":{\"x\":1},\"temp\":1.5,\"note\":null,\"ref\":7,\"wind\":false}");
    /* a value that holds every sign of the markup, and one equal to a later key */
    check("qwen-xml", "<tool_call><function=write><parameter=path>content</parameter><parameter=content>\nx</parameter>\n</function></tool_call>y\n"
          "<parameter=z>\n</parameter></function></tool_call>",
          "|write {\"path\":\"content\",\"content\":\"x\"}y\n<parameter=z>\n</parameter></function></tool_call>");
    check("qwen-xml", "<tool_call><function=write><parameter=content>a</parameter>b</function></tool_call>c</parameter></function></tool_call>",
          "|write {\"content\":\"a</parameter>b</function></tool_call>c\"}");
    check("qwen-xml", "<tool_call><function=write><parameter=content>\n\n  a\n\n</parameter></function></tool_call>", "|write {\"content\":\"\\n  a\\n\"}");
    check("qwen-xml", "<tool_call><function=get_weather><parameter=days>many</parameter></function></tool_call>", "|get_weather {\"days\":\"many\"}");
    check("qwen-xml", "<tool_call><function=get_weather><parameter=unknown>5</parameter><parameter=any>5</parameter></function></tool_call>",
          "|get_weather {\"unknown\":\"5\",\"any\":5}");
}

/* API-142, MOD-008 */
static void test_minicpm_params_and_cdata(void **state)
{
    (void)state;
    check("minicpm", "Let me see. <function name=\"get_weather\"><param name=\"city\">Oslo</param><param name=\"days\">3</param></function>",
          "Let me see.|get_weather {\"city\":\"Oslo\",\"days\":3}");
    check("minicpm", "<function name='write'><param name='content'><![CDATA[a</param></function>]] >\n<b>]]></param></function>",
          "|write {\"content\":\"a</param></function>]] >\\n<b>\"}");
    check("minicpm", "<function name=\"ping\"></function>\n<function name=\"ping\">\n</function>", "|ping {}|ping {}");
    check("any", "<invoke name=\"get_weather\"><parameter name=\"city\">Oslo</parameter></invoke>", "|get_weather {\"city\":\"Oslo\"}");
}

/* API-141 */
static void test_gemma_sentinels(void **state)
{
    (void)state;
    check("gemma", "<|tool_call>call:get_weather{city:<|\"|>Os{l}o, \"x\"<|\"|>,days:2,wind:true}<tool_call|>",
          "|get_weather {\"city\":\"Os{l}o, \\\"x\\\"\",\"days\":2,\"wind\":true}");
    check("gemma", "<|tool_call>call:get_weather{tags:[<|\"|>a<|\"|>,<|\"|>b<|\"|>],area:{x:{y:-1.5}},zip:7,note:null}<tool_call|>",
          "|get_weather {\"tags\":[\"a\",\"b\"],\"area\":{\"x\":{\"y\":-1.5}},\"zip\":\"7\",\"note\":null}");
    check("gemma", "Hi<|tool_call>call:ping{}<tool_call|><|tool_call>call:ping{}<tool_call|>", "Hi|ping {}|ping {}");
    check("gemma", "<|tool_call>call:write{content:<|\"|><tool_call|><|\"|>}<tool_call|>", "|write {\"content\":\"<tool_call|>\"}");
    check("gemma", "<|tool_call>nonsense<tool_call|> x", "<|tool_call>nonsense<tool_call|> x");
}

/* API-144 */
static void test_glm_keys_and_values(void **state)
{
    (void)state;
    check("glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
          "|get_weather {\"city\":\"Oslo\",\"days\":2}");
    check("glm", "<tool_call>write<arg_key>content</arg_key><arg_value>a</arg_value>b</tool_call></arg_value></tool_call>",
          "|write {\"content\":\"a</arg_value>b</tool_call>\"}");
    check("glm", "<tool_call>ping</tool_call>", "|ping {}");
    check("glm", "<tool_call>hello</tool_call>", "<tool_call>hello</tool_call>"); /* a word is no call */
}

/* Q24 */
static void test_llama_json_and_python(void **state)
{
    (void)state;
    check("llama", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\", \"days\": \"2\"}}", "|get_weather {\"city\":\"Oslo\",\"days\":2}");
    check("llama", "{\"name\": \"ping\", \"parameters\": {}}; {\"name\": \"ping\", \"parameters\": {\"a\": 1}}", "|ping {}|ping {\"a\":1}");
    check("llama", "<|python_tag|>{\"name\": \"ping\", \"parameters\": {}}", "|ping {}");
    check("llama", "<|python_tag|>brave_search.call(query=\"x y\")", "|brave_search {\"query\":\"x y\"}");
    check("llama", "{\"type\": \"function\", \"name\": \"ping\", \"parameters\": {}}", "|ping {}");
    /* an answer that is JSON is an answer */
    check("llama", "{\"name\": \"Bob\", \"parameters\": 3}", "{\"name\": \"Bob\", \"parameters\": 3}");
    check("llama", "{\"name\": \"ping\", \"age\": 3}", "{\"name\": \"ping\", \"age\": 3}");
    check("llama", "{\"a\": 1} and more text", "{\"a\": 1} and more text");
    check("llama", "Sure: {\"name\": \"ping\", \"parameters\": {}}", "Sure: {\"name\": \"ping\", \"parameters\": {}}");
    check("llama", "[get_weather(city='Os\\'lo', days=2, wind=True), ping()]", "|get_weather {\"city\":\"Os'lo\",\"days\":2,\"wind\":true}|ping {}");
    check("llama", "[1, 2, 3]", "[1, 2, 3]");
    check("llama", "[see](http://x)", "[see](http://x)");
    check("lfm2", "<|tool_call_start|>[get_weather(city=\"Oslo\", tags=[\"a\"], area={'x': None})]<|tool_call_end|>ok",
          "|get_weather {\"city\":\"Oslo\",\"tags\":[\"a\"],\"area\":{\"x\":null}}ok");
}

static void test_mistral_both_forms(void **state)
{
    (void)state;
    check("mistral", "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"[Oslo]\"}}, {\"name\": \"ping\", \"arguments\": {}, \"id\": \"abc\"}]",
          "|get_weather {\"city\":\"[Oslo]\"}|ping {}");
    check("mistral", "One moment.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]ping[CALL_ID]a1B2c3[ARGS]{}",
          "One moment.|get_weather {\"city\":\"Oslo\"}|ping {}");
    check("mistral", "[TOOL_CALLS]ping{}", "|ping {}");
    check("mistral", "[TOOL_CALLS] and so on", "[TOOL_CALLS] and so on");
}

/* API-140 to API-144, B-052: two calls of each family, typed by the schema, and the text around them, in every split. */
static void test_b052_every_family_every_split(void **state)
{
    static const char both[] = "|get_weather {\"city\":\"O\",\"days\":2}|ping {}";
    static const struct { const char *family, *before, *calls; } ROWS[] = {
        { "hermes", "Hm. ", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"O\", \"days\": \"2\"}}\n</tool_call>\n"
                            "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>" },
        { "qwen-xml", "Hm. ", "<tool_call><function=get_weather><parameter=city>\nO\n</parameter><parameter=days>2</parameter></function></tool_call>"
                              "<tool_call>\n<function=ping>\n</function>\n</tool_call>" },
        { "glm", "Hm. ", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>O</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
                         "<tool_call>ping</tool_call>" },
        { "minicpm", "Hm. ", "<function name=\"get_weather\"><param name=\"city\"><![CDATA[O]]></param><param name=\"days\">2</param></function>"
                             "<function name=\"ping\"></function>" },
        { "invoke", "Hm. ", "<invoke name=\"get_weather\"><parameter name=\"city\">O</parameter>\n<parameter name=\"days\">2</parameter></invoke>"
                            "<invoke name=\"ping\"></invoke>" },
        { "gemma", "Hm. ", "<|tool_call>call:get_weather{city:<|\"|>O<|\"|>,days:2}<tool_call|><|tool_call>call:ping{}<tool_call|>" },
        { "mistral", "Hm. ", "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"O\", \"days\": 2}}, {\"name\": \"ping\", \"arguments\": {}}]" },
        { "mistral-args", "Hm. ", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"O\", \"days\": 2}[TOOL_CALLS]ping[CALL_ID]a1B2c3d4e[ARGS]{}" },
        { "lfm2", "Hm. ", "<|tool_call_start|>[get_weather(city=\"O\", days=2), ping()]<|tool_call_end|>" },
        { "llama", "", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"O\", \"days\": \"2\"}}; {\"name\": \"ping\", \"parameters\": {}}" },
        { "llama4", "", "<|python_start|>[get_weather(city=\"O\", days=2), ping()]<|python_end|>" },
        { "llama4", "", "[get_weather(city='O', days=2), ping()]" },
        { "channels", "Hm. ", "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"O\", \"days\": 2}<|call|>"
                              "<|channel|>commentary to=functions.ping<|message|>{}<|call|>" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        char text[512], want[256];
        assert_string_equal(tool_family_name(tool_family_named(ROWS[i].family)), ROWS[i].family);
        check(ROWS[i].family, ROWS[i].calls, both);
        if (!ROWS[i].before[0]) continue;
        snprintf(text, sizeof text, "%s%s", ROWS[i].before, ROWS[i].calls);
        snprintf(want, sizeof want, "%.*s%s", (int)strlen(ROWS[i].before) - 1, ROWS[i].before, both); /* a space that touches a call is its */
        check(ROWS[i].family, text, want);
    }
}

/* B-053, API-147: what does not parse is the text it is */
static void test_b053_broken_markup_is_text(void **state)
{
    (void)state;
    static const char *const broken[] = {
        "<tool_call>{\"name\": \"ping\", \"arguments\": {</tool_call>", "<tool_call>{\"nome\": \"ping\"}</tool_call>",
        "<tool_call>{'name': 'ping'}</tool_call>", "<tool_call></tool_call>", "<tool_call>", "<tool_ca", "a < b <tool_calls> c",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>", "<tool_call>{\"name\": \"ping\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"ping\", \"arguments\": \"no json\"}</tool_call> tail", "<tool_call> is the tag I use.",
        "<tool_call><function=ping", "<tool_call><function=ping><parameter=a>1", "x\n\n<tool_call>{\n\n", "  ", "\n", "",
        "<function=ping> hello", "a\n\n\nb", "<tool_call>{\"name\":\"ping\"",
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        check("hermes", broken[i], broken[i]);
        check("qwen-xml", broken[i], broken[i]);
        check("any", broken[i], broken[i]);
    }
    check("any", "[TOOL_CALLS] [{\"name\": \"ping\"", "[TOOL_CALLS] [{\"name\": \"ping\"");
    check("any", "<|python_tag|>print(1)", "<|python_tag|>print(1)"); /* code, not a call with named arguments */
    char deep[2000] = "<tool_call>{\"name\":\"ping\",\"arguments\":{\"a\":";
    memset(deep + strlen(deep), '[', 600);
    check("hermes", deep, deep);
}

/* B-143's rule for code, for tools */
static void test_markup_in_code_is_text(void **state)
{
    (void)state;
    check("hermes", "Write `<tool_call>{\"name\":\"ping\"}</tool_call>` so.", "Write `<tool_call>{\"name\":\"ping\"}</tool_call>` so.");
    check("hermes", "```\n<tool_call>{\"name\":\"ping\"}</tool_call>\n```\n<tool_call>{\"name\":\"ping\"}</tool_call>",
          "```\n<tool_call>{\"name\":\"ping\"}</tool_call>\n```|ping {}");
}

/* B-056: a member of an enum in quotes of its own is that member */
static void test_b056_enums_are_not_doubly_quoted(void **state)
{
    (void)state;
    check("qwen-xml", "<tool_call><function=get_weather><parameter=mode>a</parameter></function></tool_call>", "|get_weather {\"mode\":\"a\"}");
    check("qwen-xml", "<tool_call><function=get_weather><parameter=mode>\"c\"</parameter></function></tool_call>", "|get_weather {\"mode\":\"c\"}");
    check("hermes", "<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"mode\":\"\\\"b\\\"\"}}</tool_call>", "|get_weather {\"mode\":\"b\"}");
    check("qwen-xml", "<tool_call><function=get_weather><parameter=city>\"c\"</parameter></function></tool_call>", "|get_weather {\"city\":\"\\\"c\\\"\"}");
    /* API-146: a string stays one */
    check("hermes", "<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"zip\":123,\"days\":\"4\",\"note\":\"5\",\"city\":\"6\"}}</tool_call>",
          "|get_weather {\"zip\":\"123\",\"days\":4,\"note\":\"5\",\"city\":\"6\"}");
}

/* B-059: a schema that refers to itself many times over is asked a bounded number of times */
static void test_b059_schemas_that_refer_to_themselves(void **state)
{
    struct buf b;
    mb_error err = { 0 };
    (void)state;
    tool_set_close(&set);
    buf_init(&b, 0);
    buf_append_str(&b, "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"$defs\":{\"a\":{\"allOf\":[");
    for (int i = 0; i < 60; i++) buf_append_str(&b, i ? ",{\"$ref\":\"#/$defs/a\"}" : "{\"$ref\":\"#/$defs/a\"}");
    buf_append_str(&b, "]}}}}]");
    assert_int_equal(tool_set_open(&set, b.data, &err), MB_OK);
    check("qwen-xml", "<tool_call><function=f><parameter=a>\"b\"</parameter></function></tool_call>", "|f {\"a\":\"\\\"b\\\"\"}");
    buf_free(&b);
    tool_set_close(&set);
    assert_int_equal(open_set(NULL), 0);
}

/* B-058: as produced, nothing invented */
static void test_b058_cut_off_gives_what_there_is(void **state)
{
    (void)state;
    check_end("hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os", true, "|!get_weather {\"city\": \"Os");
    check_end("hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {", true, "|!get_weather {");
    check_end("hermes", "<tool_call>\n{\"name\": \"get_wea", true, "<tool_call>\n{\"name\": \"get_wea");
    check_end("hermes", "a <tool_c", true, "a <tool_c");
    check_end("hermes", "<tool_call>{\"name\":\"ping\",\"arguments\":{}}</tool", true, "<tool_call>{\"name\":\"ping\",\"arguments\":{}}</tool");
    check_end("hermes", "<tool_call>{\"name\":\"ping\",\"arguments\":{}}", true, "|ping {}");
    check_end("qwen-xml", "<tool_call>\n<function=write>\n<parameter=path>\na.c\n</parameter>\n<parameter=content>\nint \"x", true,
              "|!write {\"path\":\"a.c\",\"content\":\"int \\\"x");
    check_end("minicpm", "<function name=\"get_weather\"><param name=\"city\">Oslo</param><param name=\"days\">1", true,
              "|!get_weather {\"city\":\"Oslo\",\"days\":1");
    check_end("glm", "<tool_call>write\n<arg_key>content</arg_key>\n<arg_value>abc", true, "|!write {\"content\":\"abc");
    check_end("mistral", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"O", true, "|!get_weather {\"city\": \"O");
    check_end("llama", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"O", true, "|!get_weather {\"city\": \"O");
    check_end("llama", "{\"name\": \"someone\", \"parameters\": {\"city\": \"O", true, "{\"name\": \"someone\", \"parameters\": {\"city\": \"O");
    check_end("hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os", false,
              "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os"); /* the model ended: text */
}

/* API-145: text goes out at once, only what may begin a markup waits */
static void test_text_before_a_call_streams(void **state)
{
    (void)state;
    struct seen s = { .n_text = 0 };
    struct tool_scan scan;
    buf_init(&s.b, 0);
    tool_scan_init(&scan, tool_family_named("qwen-xml"), &set, (struct tool_sink){ &s, on_text, on_call });
    tool_scan_text(&scan, "Hello", 5);
    assert_string_equal(s.b.data, "Hello");
    tool_scan_text(&scan, " world <tool_x", 14);
    assert_string_equal(s.b.data, "Hello world <tool_x");
    tool_scan_text(&scan, " <tool_", 7);
    assert_string_equal(s.b.data, "Hello world <tool_x");
    tool_scan_finish(&scan, false);
    assert_string_equal(s.b.data, "Hello world <tool_x <tool_");
    tool_scan_free(&scan);
    buf_free(&s.b);
}

/* A block full of closing signs stays linear: it is given up as text. */
static void test_many_closing_signs(void **state)
{
    (void)state;
    struct seen s;
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, "<tool_call>{\"name\":\"write\",\"arguments\":{\"content\":\"");
    for (int i = 0; i < 3000; i++) buf_append_str(&b, "</tool_call>");
    run("hermes", b.data, b.len, (struct cuts){ 0 }, false, &s);
    assert_int_equal(s.b.len, b.len);
    assert_memory_equal(s.b.data, b.data, b.len);
    buf_free(&b);
    buf_free(&s.b);
}

static bool no_token(void *ctx, const char *text)
{
    return ctx && strcmp(ctx, text) == 0;
}

/* API-140: the template decides, then tokens */
static void test_family_of_a_template(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "{{ '<tool_call>\\n{\"name\": ' }}", "hermes" }, { "<tool_call>\n<function=", "qwen-xml" },
        { "<|tool_call>call:", "gemma" }, { "[TOOL_CALLS]", "mistral" }, { "[TOOL_CALLS]name[ARGS]", "mistral-args" },
        { "<function name=\"x\"><param name=", "minicpm" }, { "<tool_call>x<arg_key>", "glm" },
        { "Environment: ipython {\"name\": , \"parameters\": }", "llama" }, { "{{ messages }}", "any" }, { NULL, "any" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_string_equal(tool_family_name(tool_family_pick(rows[i][0], no_token, NULL)), rows[i][1]);
    assert_string_equal(tool_family_name(tool_family_pick("", no_token, (void *)(uintptr_t)"[TOOL_CALLS]")), "mistral");
}

static void test_sets_of_tools(void **state)
{
    (void)state;
    struct tool_set s;
    mb_error err = { 0 };
    assert_int_equal(tool_set_open(&s, "[{\"type\":\"function\",\"function\":{}}]", &err), MB_INVALID);
    assert_int_equal(tool_set_open(&s, "{}", &err), MB_INVALID);
    assert_int_equal(tool_set_open(&s, "[{\"name\":\"f\",\"parameters\":5}]", &err), MB_INVALID);
    assert_int_equal(tool_set_open(&s, "[]", &err), MB_OK);
    assert_int_equal(s.n, 0);
    tool_set_close(&s);
}

int main(void)
{
    srand(7);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b052_hermes_json_every_split),
        cmocka_unit_test(test_b052_every_family_every_split),
        cmocka_unit_test(test_qwen_xml_types),
        cmocka_unit_test(test_minicpm_params_and_cdata),
        cmocka_unit_test(test_gemma_sentinels),
        cmocka_unit_test(test_glm_keys_and_values),
        cmocka_unit_test(test_llama_json_and_python),
        cmocka_unit_test(test_mistral_both_forms),
        cmocka_unit_test(test_b053_broken_markup_is_text),
        cmocka_unit_test(test_markup_in_code_is_text),
        cmocka_unit_test(test_b056_enums_are_not_doubly_quoted),
        cmocka_unit_test(test_b059_schemas_that_refer_to_themselves),
        cmocka_unit_test(test_b058_cut_off_gives_what_there_is),
        cmocka_unit_test(test_text_before_a_call_streams),
        cmocka_unit_test(test_many_closing_signs),
        cmocka_unit_test(test_family_of_a_template),
        cmocka_unit_test(test_sets_of_tools),
    };
    return cmocka_run_group_tests(tests, open_set, close_set);
}
