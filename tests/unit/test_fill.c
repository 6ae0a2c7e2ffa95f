/* test_fill.c: token fast-forwarding: what is put in (strict), what is guessed from the conversation (echo), when neither is,
 * and what usage says. The scripted stepper counts tokens that were put in as drawn, so a model that says what the template
 * would write says the same with it; one that says anything else shows what was put in. */
#include "fill_rig.h"

static const char *const TOKENS[] = { "</tool_call>", NULL };
#define TEMPLATE \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% if m.tool_calls %}{% for c in m.tool_calls %}\n<tool_call>\n" \
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endif %}" \
    "<|im_end|>\n{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
/* Knows tools, prints no calls. */
#define TEMPLATE_NO_CALLS \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}{% if tools %}<tool_call>{% endif %}" \
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

#define THREE "[" TOOL("get_weather_report", CITY) "," TOOL("get_time_of_day", ANY) "," TOOL("ping", ANY) "]"

static void setup_with(struct setup *u, const char *chat_template, const char *says, struct gen_fill_options fill)
{
    setup_of(u, TOKENS, chat_template, says, fill);
}

static void setup(struct setup *u, const char *says, bool strict)
{
    setup_with(u, TEMPLATE, says, (struct gen_fill_options){ .strict = strict });
}

#define WEATHER "<tool_call>\n{\"name\": \"get_weather_report\", \"arguments\": {\"city_name\": \"Oslo\"}}\n</tool_call>"
#define WEATHER_TOLD "|get_weather_report {\"city_name\":\"Oslo\"}"

/* API-167, API-168, API-180, API-333, ENG-195 to ENG-197, ENG-205, CFG-148, T2.18, T10.24 */
static void test_the_frame_the_name_and_the_end(void **state)
{
    static struct setup u;
    struct said off, on;
    (void)state;
    struct gen_request q = asking(THREE);
    setup(&u, WEATHER, false);
    say(&u, &q, &off);
    assert_string_equal(off.text, WEATHER_TOLD);
    assert_false(off.fill.on);
    assert_int_equal(off.fill.tokens, 0);
    teardown(&u);
    setup(&u, WEATHER, true);
    say(&u, &q, &on);
    assert_string_equal(on.text, WEATHER_TOLD); /* the model would have said so */
    assert_int_equal(on.n_tokens, off.n_tokens);
    assert_true(on.fill.on && on.fill.spans >= 3); /* behind the sign, in the name, behind the value */
    assert_int_equal(off.n_steps - on.n_steps, on.fill.tokens);
    assert_true(on.fill.tokens * 2 > on.n_tokens);
    teardown(&u);
}

/* API-168, API-170, ENG-202: what is certain is put in whatever the model would draw. */
static void test_sampler_is_passed_by(void **state)
{
    static struct setup u;
    (void)state;
    setup(&u, "<tool_call>hello world, the one and only hello", true);
    struct gen_request q = asking("[" TOOL("ping", CITY) "]");
    struct said got;
    say(&u, &q, &got);
    assert_non_null(strstr(got.text, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {")); /* and then nonsense: no call */
    teardown(&u);
}

/* API-168: a name that its beginning singles out; one that is the beginning of another stays open. */
static void test_names(void **state)
{
    static struct setup u;
    (void)state;
    setup(&u, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", true);
    struct gen_request q = asking(THREE);
    expect_put(&u, &q, "|ping {}", true);
    q.tools_json = "[" TOOL("ping", ANY) "," TOOL("ping_all", ANY) "]";
    expect_put(&u, &q, "|ping {}", true);
    teardown(&u);
    setup(&u, "<tool_call>\n{\"name\": \"ping_all\", \"arguments\": {}}\n</tool_call>", true);
    expect_put(&u, &q, "|ping_all {}", true);
    teardown(&u);
}

/* API-171, ENG-199 */
static void test_refused_requests_run_as_ever(void **state)
{
    static struct setup u;
    (void)state;
    setup(&u, WEATHER, true);
    struct gen_request q = asking(THREE);
    q.sampling.seed.given = true;
    expect_put(&u, &q, WEATHER_TOLD, false);
    q = asking(THREE);
    q.logprobs = true;
    expect_put(&u, &q, WEATHER_TOLD, false);
    q.logprobs = false;
    q.n_top_logprobs = 2;
    expect_put(&u, &q, WEATHER_TOLD, false);
    q = asking(THREE);
    q.tool_choice = TOOLS_REQUIRED; /* structured output */
    expect_put(&u, &q, WEATHER_TOLD, false);
    q = asking(THREE);
    q.constraint = (struct gen_constraint){ .kind = CONSTRAINT_JSON_OBJECT, .text = "", .field = "response_format" };
    expect_put(&u, &q, WEATHER_TOLD, false);
    q = asking(THREE);
    expect_put(&u, &q, WEATHER_TOLD, true);
    teardown(&u);
}

/* API-172 */
static void test_many_tools(void **state)
{
    static struct setup u;
    struct buf b;
    (void)state;
    setup(&u, "<tool_call>\n{\"name\": \"tool_17\", \"arguments\": {}}\n</tool_call>", true);
    for (int n = 32; n <= 33; n++) {
        buf_init(&b, 0);
        for (int i = 0; i < n; i++) buf_printf(&b, "%s" TOOL("tool_%d", ANY), i ? "," : "[", i);
        buf_append(&b, "]", 2);
        struct gen_request q = asking(b.data);
        expect_put(&u, &q, "|tool_17 {}", n == 32);
        buf_free(&b);
    }
    teardown(&u);
}

/* API-173, ENG-198: behind the name only where there is nothing else to say. */
static void test_keys_and_ends(void **state)
{
    static struct setup u;
    struct said closed, open;
    (void)state;
    setup(&u, WEATHER, true);
    struct gen_request q = asking("[" TOOL("get_weather_report", CITY) "]");
    say(&u, &q, &closed);
    q.tools_json = "[" TOOL("get_weather_report", OPEN_CITY) "]";
    say(&u, &q, &open);
    assert_string_equal(open.text, WEATHER_TOLD);
    assert_string_equal(closed.text, WEATHER_TOLD);
    assert_true(open.fill.tokens > 20 && closed.fill.tokens > open.fill.tokens + 10); /* the key, and the end of the call */
    teardown(&u);
}

/* API-174 */
static void test_template_without_calls(void **state)
{
    static struct setup u;
    (void)state;
    setup_with(&u, TEMPLATE_NO_CALLS, WEATHER, (struct gen_fill_options){ .strict = true });
    struct gen_request q = asking(THREE);
    expect_put(&u, &q, WEATHER_TOLD, false);
    teardown(&u);
}

/* API-175, ENG-201 */
static void test_examples_are_left_alone(void **state)
{
    static const struct { const char *says; bool some; } CASES[] = {
        { "hello " WEATHER, false },            /* behind text: may be an example */
        { "`" WEATHER "`", false },
        { "```\n" WEATHER "\n```", false },
        { "<tool_call>hello", true },           /* a sign that nothing else stands before */
        { "\n\n" WEATHER, true },
        { WEATHER "\n" WEATHER, true },         /* calls alone */
        { "<tool_call> {\"name\":\"ping\",\"arguments\":{}}</tool_call>", true },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        static struct setup u;
        setup(&u, CASES[i].says, true);
        struct gen_request q = asking(THREE);
        expect_put(&u, &q, NULL, CASES[i].some);
        teardown(&u);
    }
}

/* API-175: behind a thought that is closed. */
static void test_calls_behind_a_thought(void **state)
{
    static struct setup u;
    (void)state;
    setup(&u, "<think>hello " WEATHER "</think>\n\n" WEATHER, true);
    struct gen_request q = asking(THREE);
    struct said got, alone;
    q.thinking = GIVEN_NONE;
    say(&u, &q, &got);
    assert_non_null(strstr(got.text, WEATHER_TOLD));
    teardown(&u);
    setup(&u, WEATHER, true);
    say(&u, &q, &alone);
    assert_true(alone.fill.tokens > 0);
    assert_int_equal(got.fill.tokens, alone.fill.tokens); /* nothing in the thought */
    teardown(&u);
}

/* API-177, CFG-149, T2.19 */
static void test_longest_span(void **state)
{
    (void)state;
    for (int64_t most = 1; most <= 6; most++) {
        static struct setup u;
        setup_with(&u, TEMPLATE, WEATHER, (struct gen_fill_options){ .strict = true, .max_span = most });
        struct gen_request q = asking(THREE);
        expect_put(&u, &q, WEATHER_TOLD, true);
        assert_int_equal(u.longest, 1 + (most < 2 ? 2 : most));
        teardown(&u);
    }
}

/* API-176, ENG-200, T3.16: in a batch like alone. */
static void test_in_a_batch(void **state)
{
    static struct setup u;
    (void)state;
    setup(&u, WEATHER, true);
    struct gen_request q = asking(THREE);
    struct said one;
    say(&u, &q, &one);
    q.n_choices = 4;
    struct gen_stream *s;
    struct gen_event ev;
    mb_error err = { 0 };
    int32_t n = 0;
    assert_int_equal(u.r.client.start(u.r.client.ctx, &q, NULL, NULL, &s, &err), MB_OK);
    do {
        assert_true(gen_next(s, 20000, &ev));
        if (ev.type == GEN_EV_END) assert_int_equal(ev.u.end.fill.tokens, one.fill.tokens), n++;
        if (ev.type == GEN_EV_TOOL) assert_memory_equal(ev.u.tool.name.ptr, "get_weather_report", ev.u.tool.name.len);
    } while (ev.type != GEN_EV_DONE && ev.type != GEN_EV_ERROR);
    gen_close(s);
    assert_int_equal(n, 4);
    teardown(&u);
}

/* A limit in the middle of what is put in. */
static void test_max_tokens(void **state)
{
    static struct setup u[2];
    struct said got[2];
    (void)state;
    setup(&u[0], WEATHER, false);
    setup(&u[1], WEATHER, true);
    struct gen_request q = asking(THREE);
    for (q.max_tokens = 1; q.max_tokens < 40; q.max_tokens++) {
        for (int i = 0; i < 2; i++) say(&u[i], &q, &got[i]);
        assert_string_equal(got[1].text, got[0].text);
        assert_int_equal(got[1].n_tokens, got[0].n_tokens);
    }
    for (int i = 0; i < 2; i++) teardown(&u[i]);
}

/* --- echo --- */

#define STORY "one two three hello world, four five six hello again: seven eight nine ten, the end of it all."

static const struct gen_fill_options ECHO = { .strict = true, .echo = true, .anchor = 3 };

/* API-169, API-178, ENG-204, CFG-151, T2.21 to T2.23 */
static void test_echo_is_what_the_model_says(void **state)
{
    static const char *const SAYS[] = {
        "The text: " STORY " Hello!",
        "The text: one two three hello world, four five nothing hello again: seven ONE nine ten, the end of all.",
        "x", "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
    };
    static const char story[] = "[{\"role\":\"user\",\"content\":\"Say this again: " STORY "\"}]";
    (void)state;
    for (int i = 0; i < 4; i++) {
        static struct setup u[2];
        struct said got[2];
        setup_with(&u[0], TEMPLATE, SAYS[i], (struct gen_fill_options){ 0 });
        setup_with(&u[1], TEMPLATE, SAYS[i], ECHO);
        struct gen_request q = rig_chat(story);
        q.thinking = GIVEN_FALSE;
        for (int k = 0; k < 2; k++) say(&u[k], &q, &got[k]);
        assert_string_equal(got[1].text, got[0].text);
        assert_int_equal(got[1].n_tokens, got[0].n_tokens);
        assert_int_equal(got[0].n_steps - got[1].n_steps, got[1].fill.accepted);
        assert_true(got[1].fill.accepted <= got[1].fill.proposed);
        if (i == 0) assert_true(got[1].fill.accepted * 2 > got[1].n_tokens);
        if (i == 1) assert_true(got[1].fill.accepted > 0 && got[1].fill.accepted < got[1].fill.proposed);
        if (i == 2) assert_int_equal(got[1].fill.proposed, 0);
        if (i == 0) { /* refused like the rest (API-171) */
            q.sampling.seed.given = true;
            say(&u[1], &q, &got[1]);
            assert_true(got[1].fill.on && got[1].fill.proposed == 0);
        }
        for (int k = 0; k < 2; k++) teardown(&u[k]);
    }
}

/* API-179: places that do not agree end the guess. */
static void test_echo_needs_agreement(void **state)
{
    static const char twice[] = "[{\"role\":\"user\",\"content\":\"say: hello world again 4, hello world again 5.\"}]";
    static struct setup u;
    struct said got;
    (void)state;
    setup_with(&u, TEMPLATE, " hello world again 6", ECHO);
    struct gen_request q = rig_chat(twice);
    q.thinking = GIVEN_FALSE;
    say(&u, &q, &got);
    assert_string_equal(got.text, " hello world again 6");
    assert_int_equal(got.fill.accepted, got.fill.proposed); /* up to where 4 and 5 part */
    assert_true(got.fill.proposed > 0);
    teardown(&u);
    struct gen_fill_options nearest = ECHO;
    nearest.candidates = 1; /* of one place there is nothing to disagree with */
    setup_with(&u, TEMPLATE, " hello world again 6", nearest);
    say(&u, &q, &got);
    assert_string_equal(got.text, " hello world again 6");
    assert_true(got.fill.accepted < got.fill.proposed);
    teardown(&u);
}

/* API-178: past the ceiling the index stays as it is. */
static void test_echo_index_is_full(void **state)
{
    static struct setup u;
    struct said got;
    struct buf b;
    (void)state;
    setup_with(&u, TEMPLATE, "the last words of all of this", (struct gen_fill_options){ .strict = true, .echo = true, .anchor = 3, .index_max = 1 });
    for (int early = 0; early < 2; early++) {
        buf_init(&b, 0);
        buf_printf(&b, "[{\"role\":\"user\",\"content\":\"%s ", early ? "the last words of all of this" : "");
        for (int i = 0; i < 1200; i++) buf_printf(&b, "%d,", i);
        buf_printf(&b, "%s\"}]", early ? "" : "the last words of all of this");
        struct gen_request q = rig_chat(b.data);
        q.thinking = GIVEN_FALSE;
        say(&u, &q, &got);
        assert_string_equal(got.text, "the last words of all of this");
        assert_int_equal(got.fill.accepted > 0, early); /* 1024 ids are the least (floor) */
        buf_free(&b);
    }
    teardown(&u);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_frame_the_name_and_the_end),
        cmocka_unit_test(test_sampler_is_passed_by),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_refused_requests_run_as_ever),
        cmocka_unit_test(test_many_tools),
        cmocka_unit_test(test_keys_and_ends),
        cmocka_unit_test(test_template_without_calls),
        cmocka_unit_test(test_examples_are_left_alone),
        cmocka_unit_test(test_calls_behind_a_thought),
        cmocka_unit_test(test_longest_span),
        cmocka_unit_test(test_in_a_batch),
        cmocka_unit_test(test_max_tokens),
        cmocka_unit_test(test_echo_is_what_the_model_says),
        cmocka_unit_test(test_echo_needs_agreement),
        cmocka_unit_test(test_echo_index_is_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
