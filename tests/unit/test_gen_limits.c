/* Constraints and forced tool choice: whatever the model wants to say (forced draws that ignore the request), what comes out is
 * in the language. The scripted stepper draws the next allowed id when the wanted one is masked. */
#include "told.h"

#include "base/json.h"

static struct gen_request constrained(enum gen_constraint_kind kind, const char *text)
{
    struct gen_request q = rig_chat(HI);
    q.constraint = (struct gen_constraint){ .kind = kind, .text = text, .field = "response_format", .strict = true };
    q.max_tokens = 200;
    q.thinking = GIVEN_FALSE; /* else the first draw may open a thought */
    return q;
}

static void start(struct gen_rig *r, const char *const *pieces)
{
    rig_init(r, pieces);
    rig_start(r);
}

static void expect(struct gen_rig *r, const struct gen_request *q, const char *want, enum gen_finish finish)
{
    struct told t;
    ask(r, q, &t);
    if (t.status) fail_msg("%s", t.error);
    assert_string_equal(t.all.data, want);
    assert_int_equal(t.finish, finish);
    told_free(&t);
}

static const char *const BEGS[] = { "hello world, the one two", NULL };

#define OBJECT "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\",\"y\"]},\"b\":{\"type\":\"boolean\"}},\"required\":[\"a\",\"b\"]," \
               "\"additionalProperties\":false}"

static bool is_object(const char *text)
{
    json_t *v = NULL;
    bool ok = json_read(&v, text, strlen(text), 0, NULL) == MB_OK && json_object_size(v) == 2 &&
              json_is_boolean(json_object_get(v, "b")) && json_is_string(json_object_get(v, "a"));
    json_decref(v);
    return ok;
}

/* API-154 to API-158, API-161 */
static void test_each_kind_is_enforced(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    start(&r, BEGS);
    struct gen_request q = constrained(CONSTRAINT_JSON_SCHEMA, OBJECT);
    ask(&r, &q, &t);
    if (!is_object(t.all.data)) fail_msg("%s (%s)", t.all.data, t.error);
    assert_int_equal(t.finish, GEN_FINISH_STOP);
    told_free(&t);
    q = constrained(CONSTRAINT_CHOICE, "[\"yes\",\"no way\"]");
    ask(&r, &q, &t);
    assert_true(strcmp(t.all.data, "yes") == 0 || strcmp(t.all.data, "no way") == 0);
    told_free(&t);
    q = constrained(CONSTRAINT_REGEX, "[0-9]{3}-(x|yz)");
    ask(&r, &q, &t);
    assert_int_equal(strspn(t.all.data, "0123456789"), 3);
    assert_true(t.all.data[3] == '-' && (strcmp(t.all.data + 4, "x") == 0 || strcmp(t.all.data + 4, "yz") == 0));
    told_free(&t);
    q = constrained(CONSTRAINT_GRAMMAR, "root ::= \"<\" inner \">\"\ninner ::= \"one\" | \"two\"\n");
    ask(&r, &q, &t);
    assert_true(strcmp(t.all.data, "<one>") == 0 || strcmp(t.all.data, "<two>") == 0);
    told_free(&t);
    q.input = GEN_TEXT; /* raw completions too (API-153) */
    q.text = STR_LIT("say");
    q.raw_split = true;
    ask(&r, &q, &t);
    assert_true(strcmp(t.all.data, "<one>") == 0 || strcmp(t.all.data, "<two>") == 0);
    told_free(&t);
    rig_stop(&r);
}

/* What the model says anyway goes through unchanged */
static void test_allowed_text_is_left_alone(void **state)
{
    (void)state;
    struct gen_rig r;
    start(&r, (const char *[]){ "{\"", "a\": \"y\", \"b\"", ": true}", NULL });
    struct gen_request q = constrained(CONSTRAINT_JSON_SCHEMA, OBJECT);
    expect(&r, &q, "{\"a\": \"y\", \"b\": true}", GEN_FINISH_STOP);
    q = constrained(CONSTRAINT_JSON_OBJECT, NULL);
    expect(&r, &q, "{\"a\": \"y\", \"b\": true}", GEN_FINISH_STOP);
    rig_stop(&r);
}

/* The grammar begins behind the thought, opened by the prompt or by the model */
static void test_constraint_after_thinking(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    start(&r, (const char *[]){ "<think>", "the one", "</think>", "\n\n", "hello world", NULL });
    struct gen_request q = constrained(CONSTRAINT_CHOICE, "[\"yes\"]");
    q.thinking = GIVEN_NONE;
    expect(&r, &q, "{the one}yes", GEN_FINISH_STOP);
    rig_stop(&r);
    start(&r, (const char *[]){ "the one", "</think>", "yes", NULL });
    q.thinking = GIVEN_TRUE;
    expect(&r, &q, "{the one}yes", GEN_FINISH_STOP);
    q.thinking_budget = 2; /* and the budget, through the same masks */
    ask(&r, &q, &t);
    assert_string_equal(t.all.data + t.all.len - 4, "}yes");
    assert_int_equal(t.n_reasoning, 3);
    told_free(&t);
    q.thinking = GIVEN_FALSE; /* no thought: none may be opened */
    q.thinking_budget = 0;
    expect(&r, &q, "yes", GEN_FINISH_STOP);
    rig_stop(&r);
}

/* A message that is continued is the answer's beginning */
static void test_continuing_under_a_constraint(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    start(&r, BEGS);
    struct gen_request q = constrained(CONSTRAINT_CHOICE, "[\"yes sir\",\"no\"]");
    q.continue_final = GIVEN_TRUE;
    q.messages_json = "[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":\"assistant\",\"content\":\"yes s\"}]";
    expect(&r, &q, "ir", GEN_FINISH_STOP);
    q.messages_json = "[{\"role\":\"user\",\"content\":\"hello\"},{\"role\":\"assistant\",\"content\":\"well\"}]";
    ask(&r, &q, &t);
    assert_int_equal(t.status, MB_INVALID);
    told_free(&t);
    rig_stop(&r);
}

/* A language with no end token to draw ends the answer itself */
static void test_end_without_end_tokens(void **state)
{
    (void)state;
    struct gen_rig r;
    start(&r, BEGS);
    struct gen_request q = constrained(CONSTRAINT_CHOICE, "[\"yes\"]");
    q.ignore_eos = true;
    expect(&r, &q, "yes", GEN_FINISH_STOP);
    q.ignore_eos = false;
    q.min_tokens = 50;
    expect(&r, &q, "yes", GEN_FINISH_STOP);
    q.max_tokens = 2;
    expect(&r, &q, "ye", GEN_FINISH_LENGTH);
    rig_stop(&r);
}

static int n_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, word)); p++) n++;
    return n;
}

/* B-055: on a model that begs for text */
static void test_b055_required_and_named(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    struct gen_request q = with_tools();
    q.max_tokens = 400;
    q.thinking = GIVEN_FALSE;
    start(&r, (const char *[]){ "hello", NULL });
    q.tools_json = "[{\"name\":\"get\"},{\"name\":\"pick\",\"parameters\":{\"properties\":{\"m\":{\"enum\":[\"a\"]}},\"required\":[\"m\"],"
                   "\"additionalProperties\":false}}]";
    q.tool_choice = TOOLS_NAMED;
    q.tool_name = "pick";
    q.parallel_tools = GIVEN_FALSE;
    expect(&r, &q, "|pick {\"m\":\"a\"}", GEN_FINISH_TOOL_CALLS);
    q.tool_name = "nope";
    ask(&r, &q, &t);
    assert_int_equal(t.status, MB_INVALID);
    assert_non_null(strstr(t.error, "nope"));
    told_free(&t);
    q.tool_choice = TOOLS_REQUIRED;
    q.tools_json = NULL;
    ask(&r, &q, &t);
    assert_int_equal(t.status, MB_INVALID);
    told_free(&t);
    rig_stop(&r);
    start(&r, (const char *[]){ "<tool_call>", "\n{\"name\": \"get\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>", "hello", NULL });
    q = with_tools();
    q.tool_choice = TOOLS_REQUIRED;
    q.max_tokens = 400;
    expect(&r, &q, "|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
    q.parallel_tools = GIVEN_FALSE;
    expect(&r, &q, "|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
    rig_stop(&r);
}

/* A constraint and tools to choose from: either */
static void test_constraint_or_call(void **state)
{
    (void)state;
    struct gen_rig r;
    struct gen_request q = with_tools();
    q.constraint = constrained(CONSTRAINT_JSON_SCHEMA, OBJECT).constraint;
    q.max_tokens = 300;
    start(&r, (const char *[]){ "<tool_call>", "\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", NULL });
    expect(&r, &q, "|ping {}", GEN_FINISH_TOOL_CALLS);
    rig_stop(&r);
    start(&r, (const char *[]){ "{\"a\": \"y\", \"b\": true}", "hello", NULL });
    expect(&r, &q, "{\"a\": \"y\", \"b\": true}", GEN_FINISH_STOP);
    q.tool_choice = TOOLS_NONE;
    expect(&r, &q, "{\"a\": \"y\", \"b\": true}", GEN_FINISH_STOP);
    rig_stop(&r);
}

#define UNIQUE "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":2," \
               "\"items\":{\"enum\":[1,2]}}},\"required\":[\"t\"],\"additionalProperties\":false}"
#define LOOSE "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\"}}}," \
              "\"required\":[\"t\"],\"additionalProperties\":false}"

/* design.md section 6: strict is a 400 by keyword and path; else what can be enforced is, and the rest is said */
static void test_what_cannot_be_enforced(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    int32_t plain, noted;
    start(&r, (const char *[]){ "{\"t\": [1]}", "hello", NULL });
    struct gen_request q = constrained(CONSTRAINT_JSON_SCHEMA, LOOSE);
    ask(&r, &q, &t);
    assert_int_equal(t.status, MB_UNSUPPORTED);
    assert_non_null(strstr(t.error, "uniqueItems"));
    assert_non_null(strstr(t.error, "#/properties/t"));
    assert_non_null(strstr(t.error, "response_format"));
    told_free(&t);
    q.constraint.strict = false;
    ask(&r, &q, &t);
    assert_int_equal(t.status, MB_OK);
    assert_string_equal(t.all.data, "{\"t\": [1]}");
    assert_non_null(strstr(t.warning.data, "uniqueItems"));
    assert_non_null(strstr(t.warning.data, "#/properties/t"));
    told_free(&t);
    assert_int_equal(r.client.count(r.client.ctx, &q, &noted, NULL), MB_OK);
    q.constraint.kind = CONSTRAINT_NONE;
    assert_int_equal(r.client.count(r.client.ctx, &q, &plain, NULL), MB_OK);
    assert_true(noted > plain + 30); /* the schema is in the prompt */
    q = constrained(CONSTRAINT_REGEX, "(a)\\1");
    ask(&r, &q, &t);
    assert_true(t.status == MB_UNSUPPORTED || t.status == MB_INVALID);
    told_free(&t);
    rig_stop(&r);
}

/* B-061: a wrong schema is the request's fault, strict or not, and nobody else's */
static void test_b061_wrong_schemas(void **state)
{
    (void)state;
    static const char *const wrong[] = { "{\"pattern\":\"([a-z\"}", "{\"enum\":[]}", "{\"type\":\"strng\"}", "{\"type\":\"array\",\"items\":[{}]}",
                                         "{\"$ref\":\"#/$defs/x\"}", "{\"$ref\":\"#\"}" };
    struct gen_rig r;
    struct told t;
    start(&r, BEGS);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct gen_request q = constrained(CONSTRAINT_JSON_SCHEMA, wrong[i]);
        q.constraint.strict = i % 2;
        ask(&r, &q, &t);
        if (t.status != MB_INVALID && t.status != MB_UNSUPPORTED) fail_msg("%s: %d %s", wrong[i], t.status, t.all.data);
        told_free(&t);
    }
    struct gen_request q = rig_chat(HI);
    expect(&r, &q, BEGS[0], GEN_FINISH_STOP);
    rig_stop(&r);
}

/* API-159: switched off, a constraint is words and a warning */
static void test_api159_grammar_off(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    rig_init(&r, BEGS);
    r.go.no_grammar = true;
    rig_start(&r);
    struct gen_request q = constrained(CONSTRAINT_JSON_SCHEMA, OBJECT);
    ask(&r, &q, &t);
    assert_string_equal(t.all.data, BEGS[0]);
    assert_non_null(strstr(t.warning.data, "structured output not enforced"));
    told_free(&t);
    q = with_tools();
    q.tool_choice = TOOLS_REQUIRED;
    ask(&r, &q, &t);
    assert_string_equal(t.all.data, BEGS[0]);
    assert_non_null(strstr(t.warning.data, "tool_choice not enforced"));
    told_free(&t);
    rig_stop(&r);
}

/* B-071: constrained and plain requests in one batch, one of them cancelled; every choice has its own state */
static void test_b071_constrained_and_plain_together(void **state)
{
    (void)state;
    struct gen_rig r;
    struct gen_stream *s[8];
    struct gen_request plain = rig_chat(HI), bound = constrained(CONSTRAINT_JSON_SCHEMA, OBJECT);
    bound.n_choices = 2;
    rig_init(&r, BEGS);
    r.so.step_delay_ms = 1;
    rig_start(&r);
    for (int i = 0; i < 8; i++)
        assert_int_equal(r.client.start(r.client.ctx, i % 2 ? &plain : &bound, NULL, NULL, &s[i], NULL), MB_OK);
    gen_cancel(s[2]);
    for (int i = 0; i < 8; i++) {
        struct rig_answer a;
        rig_collect(s[i], &a);
        if (i != 2) {
            assert_int_equal(a.status, MB_OK);
            if (i % 2) assert_string_equal(rig_content(&a), BEGS[0]);
            else assert_true(is_object(rig_content(&a)));
        }
        rig_answer_free(&a);
    }
    rig_stop(&r);
}

/* Strict tools are checked whether they are called or not */
static void test_strict_tools(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    struct gen_request q = rig_chat(HI);
    start(&r, BEGS);
    q.tools_json = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":" LOOSE "}}]";
    ask(&r, &q, &t);
    assert_int_equal(t.status, MB_UNSUPPORTED);
    assert_non_null(strstr(t.error, "tools[0]"));
    assert_non_null(strstr(t.error, "uniqueItems"));
    told_free(&t);
    q.tools_json = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":" UNIQUE "}}]";
    ask(&r, &q, &t);
    assert_int_equal(n_of(t.all.data, "hello"), 1);
    told_free(&t);
    rig_stop(&r);
    /* text is free, a call that it begins is not: the model goes for another member and a wrong type */
    q.tools_json = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":" OBJECT "}}]";
    start(&r, (const char *[]){ "hello ", "<tool_call>", "\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\", \"b\": tru", "5, \"c\": 1}}", "</tool_call>", NULL });
    q.max_tokens = 200;
    ask(&r, &q, &t);
    if (t.status) fail_msg("%s", t.error);
    assert_memory_equal(t.all.data, "hello|f {\"a\":\"x\",\"b\":true}", 26);
    assert_int_equal(t.finish, GEN_FINISH_TOOL_CALLS);
    told_free(&t);
    q.tools_json = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" OBJECT "}}]";
    ask(&r, &q, &t); /* not strict: as the model writes it */
    assert_non_null(strstr(t.all.data, "tru5"));
    told_free(&t);
    rig_stop(&r);
}

/* B-059: an agent's tools, twice; the second time the grammar is there */
static void test_b059_many_tools(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    struct gen_request q = rig_chat(HI);
    struct buf b;
    buf_init(&b, 0);
    buf_append_char(&b, '[');
    for (int i = 0; i < 32; i++)
        buf_printf(&b, "%s{\"type\":\"function\",\"function\":{\"name\":\"tool_%d\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
                       "\"properties\":{\"path\":{\"type\":\"string\",\"minLength\":1,\"description\":\"x\"},\"mode\":{\"anyOf\":[{\"enum\":[\"a\",\"b\"]},"
                       "{\"type\":\"null\"}]},\"edits\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"old\":{\"type\":\"string\"},"
                       "\"n\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":%d}},\"required\":[\"old\"],\"additionalProperties\":false},\"maxItems\":20},"
                       "\"deep\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"object\",\"properties\":{\"y\":{\"const\":%d}}}}}},"
                       "\"required\":[\"path\"],\"additionalProperties\":false,\"$schema\":\"https://json-schema.org/draft/2020-12/schema\"}}}",
                   i ? "," : "", i, 10 + i, i);
    buf_append_char(&b, ']');
    q.tools_json = b.data;
    q.tool_choice = TOOLS_REQUIRED;
    q.max_tokens = 400;
    start(&r, (const char *[]){ "<tool_call>", "\n{\"name\": \"tool_31\", \"arguments\": {\"path\": \"p\", \"mode\": \"b\", \"deep\": {\"x\": {\"y\": 31}}}}\n</tool_call>", NULL });
    for (int k = 0; k < 2; k++)
        expect(&r, &q, "|tool_31 {\"path\":\"p\",\"mode\":\"b\",\"deep\":{\"x\":{\"y\":31}}}", GEN_FINISH_TOOL_CALLS);
    q.tool_choice = TOOLS_AUTO;
    ask(&r, &q, &t);
    assert_int_equal(t.n_calls, 1);
    told_free(&t);
    rig_stop(&r);
    buf_free(&b);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_is_enforced),
        cmocka_unit_test(test_allowed_text_is_left_alone),
        cmocka_unit_test(test_constraint_after_thinking),
        cmocka_unit_test(test_continuing_under_a_constraint),
        cmocka_unit_test(test_end_without_end_tokens),
        cmocka_unit_test(test_b055_required_and_named),
        cmocka_unit_test(test_constraint_or_call),
        cmocka_unit_test(test_what_cannot_be_enforced),
        cmocka_unit_test(test_b061_wrong_schemas),
        cmocka_unit_test(test_api159_grammar_off),
        cmocka_unit_test(test_b071_constrained_and_plain_together),
        cmocka_unit_test(test_strict_tools),
        cmocka_unit_test(test_b059_many_tools),
    };
    int failed = cmocka_run_group_tests_name("limits", tests, NULL, NULL);
    rig_jump = true; /* jump-forward changes nothing (ENG-194) */
    return failed + cmocka_run_group_tests_name("limits, jump-forward", tests, NULL, NULL);
}
