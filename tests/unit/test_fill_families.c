/* test_fill_families.c: strict fill for every markup of a call: the frame it begins with, the name, the frame of a sole value and
 * the end; with the model that says what the template would write nothing changes but the steps. */
#include "fill_rig.h"

#include "chat/tools/tools.h"

#define CHAT_OF(call) \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% set f = c.function %}" call \
    "{% endfor %}<|im_end|>\n{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define ONE_ONLY "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
#define ARGS "{{ f.arguments | tojson }}"
#define EACH(item) "{% for k, v in f.arguments.items() %}" item "{% endfor %}"
#define CHANNELS \
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}<|start|>assistant to=functions.{{ c.function.name }}" \
    "<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% else %}<|start|>{{ m.role }}<|message|>" \
    "{{ m.content }}<|end|>{% endif %}{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"

#define N "get_weather_report"
#define K "city_name"
#define CALL "|" N " {\"" K "\":\"Oslo\"}"

struct family {
    const char *name, *tokens[8], *chat_template, *says;
    const char *told; /* NULL: CALL */
    int spans;        /* at least: behind the beginning, in the name, behind the value */
    int left;         /* tokens that the model draws itself, at most, beyond those of the value */
};
#define SIGNS { "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", NULL }

static const struct family FAMILIES[] = {
    { "hermes", { "</tool_call>", NULL }, CHAT_OF("<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": " ARGS "}\n</tool_call>"),
      "<tool_call>\n{\"name\": \"" N "\", \"arguments\": {\"" K "\": \"Oslo\"}}\n</tool_call>", NULL, 3, 4 },
    { "qwen-xml", { "</tool_call>", NULL },
      CHAT_OF("<tool_call>\n<function={{ f.name }}>\n" EACH("<parameter={{ k }}>\n{{ v }}\n</parameter>\n") "</function>\n</tool_call>"),
      "<tool_call>\n<function=" N ">\n<parameter=" K ">\nOslo\n</parameter>\n</function>\n</tool_call>", NULL, 3, 40 },
    { "minicpm", { "</param>", NULL },
      CHAT_OF("<function name=\"{{ f.name }}\">" EACH("<param name=\"{{ k }}\">{{ v }}</param>") "</function>"),
      "<function name=\"" N "\"><param name=\"" K "\">Oslo</param></function>", NULL, 3, 20 },
    { "invoke", { NULL }, CHAT_OF("<invoke name=\"{{ f.name }}\">\n" EACH("<parameter name=\"{{ k }}\">{{ v }}</parameter>\n") "</invoke>"),
      "<invoke name=\"" N "\">\n<parameter name=\"" K "\">Oslo</parameter>\n</invoke>", NULL, 2, 60 },
    { "glm", { "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", NULL },
      CHAT_OF("<tool_call>{{ f.name }}\n" EACH("<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n") "</tool_call>"),
      "<tool_call>" N "\n<arg_key>" K "</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>", NULL, 2, 4 },
    { "gemma", { "<|tool_call>", "<tool_call|>", "<|\"|>", NULL },
      CHAT_OF("<|tool_call>call:{{ f.name }}{{ '{' }}" EACH("{{ k }}:<|\"|>{{ v }}<|\"|>") "}<tool_call|>"),
      "<|tool_call>call:" N "{" K ":<|\"|>Oslo<|\"|>}<tool_call|>", NULL, 3, 4 },
    { "mistral", { "[TOOL_CALLS]", NULL },
      CHAT_OF("{% if loop.first %}[TOOL_CALLS] [{% endif %}{\"name\": \"{{ f.name }}\", \"arguments\": " ARGS ", \"id\": \"{{ c.id }}\"}"
              "{{ ']' if loop.last else ', ' }}"),
      "[TOOL_CALLS] [{\"name\": \"" N "\", \"arguments\": {\"" K "\": \"Oslo\"}}]", NULL, 2, 8 },
    { "mistral-args", { "[TOOL_CALLS]", "[ARGS]", NULL }, CHAT_OF("[TOOL_CALLS]{{ f.name }}[ARGS]" ARGS),
      "[TOOL_CALLS]" N "[ARGS]{\"" K "\": \"Oslo\"}", NULL, 2, 6 },
    { "lfm2", { "<|tool_call_start|>", "<|tool_call_end|>", NULL },
      CHAT_OF("<|tool_call_start|>[{{ f.name }}(" EACH("{{ k }}=\"{{ v }}\"") ")]<|tool_call_end|>"),
      "<|tool_call_start|>[" N "(" K "=\"Oslo\")]<|tool_call_end|>", NULL, 3, 4 },
    { "llama", { NULL }, CHAT_OF(ONE_ONLY "{\"name\": \"{{ f.name }}\", \"parameters\": " ARGS "}") "{# <|python_tag|> #}",
      "{\"name\": \"" N "\", \"parameters\": {\"" K "\": \"Oslo\"}}", NULL, 2, 14 },
    { "channels", SIGNS, CHANNELS, " to=functions." N "<|channel|>commentary json<|message|>{\"" K "\": \"Oslo\"}<|call|>", NULL, 3, 10 },
    { "channels", SIGNS, CHANNELS, "<|channel|>commentary to=functions." N " <|constrain|>json<|message|>{\"" K "\": \"Oslo\"}<|call|>", NULL, 3, 10 },
    { "channels", SIGNS, CHANNELS,
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions." N "<|message|>{\"" K "\": \"Oslo\"}<|call|>",
      "{hm}" CALL, 3, 22 },
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof FAMILIES[0] };

#define TWO "[" TOOL(N, CITY) "," TOOL("tell_time", ANY) "]"

static void setup(struct setup *u, const struct family *f, const char *says, bool strict)
{
    setup_of(u, f->tokens, f->chat_template, says, (struct gen_fill_options){ .strict = strict });
}

/* API-168, API-173: the same answer in as many fewer steps as tokens were put in. */
static void test_every_family(void **state)
{
    (void)state;
    for (int i = 0; i < N_FAMILIES; i++) {
        const struct family *f = &FAMILIES[i];
        static struct setup u;
        struct said off, on;
        struct gen_request q = asking(TWO);
        setup(&u, f, f->says, false);
        say(&u, &q, &off);
        teardown(&u);
        setup(&u, f, f->says, true);
        say(&u, &q, &on);
        teardown(&u);
        print_message("%s: %d of %d tokens in %d spans\n", f->name, (int)on.fill.tokens, (int)on.n_tokens, (int)on.fill.spans);
        assert_string_equal(off.text, f->told ? f->told : CALL);
        assert_string_equal(on.text, off.text);
        assert_int_equal(on.n_tokens, off.n_tokens);
        assert_int_equal(off.n_steps - on.n_steps, on.fill.tokens);
        assert_true(on.fill.spans >= f->spans);
        assert_true(on.n_tokens - on.fill.tokens <= 6 + f->left);
    }
}

static const struct family *family(const char *name)
{
    int i = 0;
    while (strcmp(FAMILIES[i].name, name) != 0) i++;
    return &FAMILIES[i];
}

/* The answer as without fill; how many tokens were put in. */
static int32_t same_answer(const struct family *f, const char *tools, const char *says, const char *told)
{
    static struct setup u;
    struct said off, on;
    struct gen_request q = asking(tools);
    setup(&u, f, says, false);
    say(&u, &q, &off);
    teardown(&u);
    setup(&u, f, says, true);
    say(&u, &q, &on);
    teardown(&u);
    if (told) assert_string_equal(off.text, told);
    assert_string_equal(on.text, off.text);
    assert_int_equal(on.n_tokens, off.n_tokens);
    return on.fill.tokens;
}

/* API-175: a bare object may be the answer itself: only the beginning of a listed name makes it a call; and only where nothing
 * else has been said. */
static void test_bare_objects(void **state)
{
    static const char *const ALONE[] = { "{\"name\": \"Anna\", \"age\": 3}", "{\"name\": ", "{\"names\": []}", "{}", "[1, 2]", "{",
                                         "Here: {\"name\": \"" N "\", \"parameters\": {}}",
                                         "`{\"name\": \"" N "\", \"parameters\": {}}`", "{ \"name\": \"" N "\", \"parameters\": {\"" K "\": \"a\"}}" };
    const struct family *f = family("llama");
    (void)state;
    for (size_t i = 0; i < sizeof ALONE / sizeof ALONE[0]; i++)
        if (same_answer(f, TWO, ALONE[i], NULL) != 0) fail_msg("something was put into %s", ALONE[i]);
    assert_true(same_answer(f, TWO, "\n{\"name\": \"tell_time\", \"parameters\": {\"a\": {\"b\": 1}}}", "|tell_time {\"a\":{\"b\":1}}") > 0);
}

/* API-175: a header that addresses nobody, text before a call, thoughts about one. */
static void test_headers(void **state)
{
    static const char *const ALONE[] = {
        "<|channel|>final<|message|>hello", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>hello",
        "<|channel|>analysis<|message|> to=functions." N "<|end|><|start|>assistant<|channel|>final<|message|> to=functions." N,
        "<|channel|>analysis to=browser.search code<|message|>{}<|call|>", "<|channel|>",
    };
    const struct family *f = family("channels");
    static struct setup u;
    struct said got;
    (void)state;
    for (size_t i = 0; i < sizeof ALONE / sizeof ALONE[0]; i++)
        if (same_answer(f, TWO, ALONE[i], NULL) != 0) fail_msg("something was put into %s", ALONE[i]);
    int32_t said = same_answer(f, TWO, "<|channel|>commentary<|message|>I call it.", NULL); /* of the channel's name at most */
    assert_int_equal(said, same_answer(f, TWO, "<|channel|>commentary<|message|>I call it.<|end|><|start|>assistant<|channel|>commentary to=functions." N
                                       " json<|message|>{}<|call|>", NULL));
    struct gen_request q = asking(TWO);
    q.max_tokens = 100;
    setup(&u, f, "<|channel|>commentary to=functions.tzzzzzzzzzzzz", true); /* the one with t */
    say(&u, &q, &got);
    teardown(&u);
    assert_true(got.fill.tokens >= 16); /* of "<|channel|>commentary to=functions.tell_time<|channel|>commentary" */
}

#define INTEGER "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"],\"additionalProperties\":false}"
#define LIST "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"array\"}},\"required\":[\"n\"],\"additionalProperties\":false}"
#define OPEN "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}"

/* API-173: the end behind a sole value of any type, once it is certain that the value has ended; only of a closed schema. */
static void test_ends(void **state)
{
    static const char json[] = "<tool_call>\n{\"name\": \"set\", \"arguments\": {\"n\": [1, [\"]}\"]]}}\n</tool_call>";
    static const char number[] = "<tool_call>\n{\"name\": \"set\", \"arguments\": {\"n\": 12}}\n</tool_call>";
    static const char xml[] = "<tool_call>\n<function=set>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>";
    static const char text[] = "<tool_call>\n<function=" N ">\n<parameter=" K ">\na\n</parameter>\nb\n</parameter>\n</function>\n</tool_call>";
    (void)state;
    int32_t closed = same_answer(family("hermes"), "[" TOOL("set", LIST) "]", json, "|set {\"n\":[1,[\"]}\"]]}");
    assert_true(closed > same_answer(family("hermes"), "[" TOOL("set", OPEN) "]", json, NULL) + 4);
    closed = same_answer(family("hermes"), "[" TOOL("set", INTEGER) "]", number, "|set {\"n\":12}");
    assert_true(closed > same_answer(family("hermes"), "[" TOOL("set", OPEN) "]", number, NULL));
    closed = same_answer(family("qwen-xml"), "[" TOOL("set", INTEGER) "]", xml, "|set {\"n\":12}");
    assert_true(closed > same_answer(family("qwen-xml"), "[" TOOL("set", OPEN) "]", xml, NULL) + 4);
    /* a tag inside a text is that text's */
    same_answer(family("qwen-xml"), "[" TOOL(N, CITY) "]", text, "|" N " {\"" K "\":\"a\\n</parameter>\\nb\"}");
    same_answer(family("minicpm"), "[" TOOL(N, CITY) "]",
                "<function name=\"" N "\"><param name=\"" K "\"><![CDATA[a</param></function>b]]></param></function>",
                "|" N " {\"" K "\":\"a</param></function>b\"}");
}

/* The id of a call is the model's own: none of the template's trial is put in. */
static void test_ids_of_calls(void **state)
{
    static const struct family with_id = { "mistral-args", { "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", NULL },
                                           CHAT_OF("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]" ARGS), NULL, NULL, 0, 0 };
    (void)state;
    assert_true(same_answer(&with_id, TWO, "[TOOL_CALLS]" N "[CALL_ID]zY7w2kLm0[ARGS]{\"" K "\": \"Oslo\"}", CALL) > 10);
    assert_true(same_answer(family("mistral"), TWO, "[TOOL_CALLS] [{\"name\": \"" N "\", \"arguments\": {\"" K "\": \"Oslo\"}, \"id\": \"zY7w2kLm0\"}]", CALL) > 10);
}

/* Several calls in one answer, each filled. */
static void test_two_calls(void **state)
{
    const struct family *f = family("hermes");
    char both[512];
    (void)state;
    snprintf(both, sizeof both, "%s\n%s", f->says, f->says);
    int32_t one = same_answer(f, TWO, f->says, CALL);
    assert_int_equal(same_answer(f, TWO, both, CALL CALL), 2 * one);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family), cmocka_unit_test(test_bare_objects), cmocka_unit_test(test_headers),
        cmocka_unit_test(test_ends), cmocka_unit_test(test_ids_of_calls), cmocka_unit_test(test_two_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
