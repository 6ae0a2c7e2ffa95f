/* Tools, tool choice, constraints and the thinking budget through the waist, over forced draws. */
#include "told.h"

/* Forced pieces, one request, what it tells. */
static void check(const char *const *pieces, struct gen_request q, const char *want, enum gen_finish finish)
{
    struct gen_rig r;
    struct told t;
    rig_init(&r, pieces);
    rig_start(&r);
    ask(&r, &q, &t);
    if (t.status) fail_msg("%s", t.error);
    assert_string_equal(t.all.data, want);
    assert_int_equal(t.finish, finish);
    told_free(&t);
    rig_stop(&r);
}

#define CALL "<tool_call>", "{\"name\": \"get\", \"argum", "ents\": {\"city\": \"Oslo\"}}", "</tool_call>"
static const char *const TEXT_AND_CALLS[] = { "I look", ". \n\n", CALL, "\n", CALL, "\n", NULL };

/* API-095, API-145, API-148 */
static void test_calls_are_events(void **state)
{
    (void)state;
    check(TEXT_AND_CALLS, with_tools(), "I look.|get {\"city\":\"Oslo\"}|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
    check((const char *[]){ "<think>", "call it <tool_call>?", "</think>", "\n\n", CALL, NULL }, with_tools(),
          "{call it <tool_call>?}|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
}

/* B-055, API-151: none converts nothing, nor does a request without tools */
static void test_b055_none_converts_nothing(void **state)
{
    (void)state;
    struct gen_request q = with_tools();
    const char *pieces[] = { CALL, NULL };
    const char *text = "<tool_call>{\"name\": \"get\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>";
    q.tool_choice = TOOLS_NONE;
    check(pieces, q, text, GEN_FINISH_STOP);
    q.tools_json = NULL;
    check(pieces, q, text, GEN_FINISH_STOP); /* none with no tools is fine */
    check(pieces, rig_chat(HI), text, GEN_FINISH_STOP);
    q = with_tools();
    q.tools_json = "[]";
    check(pieces, q, text, GEN_FINISH_STOP);
}

/* API-151, B-019: the prompt of "none", of an empty list and of no tools is the same */
static void test_b019_no_tools_in_the_prompt(void **state)
{
    (void)state;
    struct gen_rig r;
    struct gen_request q = rig_chat(HI);
    int32_t n[4];
    rig_init(&r, NULL);
    rig_start(&r);
    assert_int_equal(r.client.count(r.client.ctx, &q, &n[0], NULL), MB_OK);
    q.tools_json = "[]";
    assert_int_equal(r.client.count(r.client.ctx, &q, &n[1], NULL), MB_OK);
    q.tools_json = TOOLS;
    q.tool_choice = TOOLS_NONE;
    assert_int_equal(r.client.count(r.client.ctx, &q, &n[2], NULL), MB_OK);
    q.tool_choice = TOOLS_AUTO;
    assert_int_equal(r.client.count(r.client.ctx, &q, &n[3], NULL), MB_OK);
    assert_int_equal(n[0], n[1]);
    assert_int_equal(n[0], n[2]);
    assert_true(n[3] > n[0] + 50);
    rig_stop(&r);
}

/* Q21 */
static void test_one_call_when_not_parallel(void **state)
{
    (void)state;
    struct gen_request q = with_tools();
    struct gen_rig r;
    struct told t;
    q.parallel_tools = GIVEN_FALSE;
    rig_init(&r, TEXT_AND_CALLS);
    rig_start(&r);
    ask(&r, &q, &t);
    assert_string_equal(t.all.data, "I look.|get {\"city\":\"Oslo\"}");
    assert_int_equal(t.finish, GEN_FINISH_TOOL_CALLS);
    assert_true(t.n_completion < r.n_script / 2 + 20); /* and it stopped there (API-012) */
    told_free(&t);
    rig_stop(&r);
}

/* B-058 */
static void test_b058_cut_off_inside_a_call(void **state)
{
    (void)state;
    struct gen_request q = with_tools();
    int32_t ids[256];
    q.max_tokens = rig_encode("<tool_call>", ids, 256) + rig_encode("{\"name\": \"get\", \"argum", ids, 256) + 12;
    struct gen_rig r;
    struct told t;
    rig_init(&r, (const char *[]){ CALL, NULL });
    rig_start(&r);
    ask(&r, &q, &t);
    assert_int_equal(t.finish, GEN_FINISH_LENGTH);
    assert_memory_equal(t.all.data, "|!get {\"", 8);
    assert_null(strstr(t.all.data, "}"));
    told_free(&t);
    q.max_tokens = 3; /* before there is a name: text */
    ask(&r, &q, &t);
    assert_int_equal(t.finish, GEN_FINISH_LENGTH);
    assert_memory_equal(t.all.data, "<tool_call>{", 12);
    told_free(&t);
    rig_stop(&r);
}

/* Stop strings see content, never a call */
static void test_stop_strings_and_calls(void **state)
{
    (void)state;
    const char *stops[] = { "city", "STOP" };
    struct gen_request q = with_tools();
    q.stops = stops;
    q.n_stops = 2;
    check(TEXT_AND_CALLS, q, "I look.|get {\"city\":\"Oslo\"}|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
    check((const char *[]){ "a ST", "OP b", CALL, NULL }, q, "a ", GEN_FINISH_STOP);
    check((const char *[]){ "a ST", CALL, "OP", NULL }, q, "a ST|get {\"city\":\"Oslo\"}OP", GEN_FINISH_TOOL_CALLS);
    check((const char *[]){ "<tool_call>", "no city", " here", NULL }, q, "<tool_call>no ", GEN_FINISH_STOP);
}

/* Ids: the same request tells the same ones, calls and choices differ */
static void test_ids_of_calls(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told a, b;
    struct gen_request q = with_tools();
    char first[40], second[40], third[40];
    q.n_choices = 2;
    rig_init(&r, TEXT_AND_CALLS);
    rig_start(&r);
    ask(&r, &q, &a);
    ask(&r, &q, &b);
    assert_int_equal(sscanf(a.ids.data, "%39s %39s %39s", first, second, third), 3);
    assert_memory_equal(first, "call_", 5);
    assert_int_equal(strlen(first), 29);
    assert_string_not_equal(first, second);
    assert_string_not_equal(first, third);
    assert_string_not_equal(second, third);
    assert_non_null(strstr(b.ids.data, first));
    assert_non_null(strstr(b.ids.data, second));
    told_free(&a);
    told_free(&b);
    q.messages_json = "[{\"role\":\"user\",\"content\":\"hello you\"}]";
    ask(&r, &q, &a);
    assert_null(strstr(a.ids.data, first));
    told_free(&a);
    rig_stop(&r);
}

/* The thought is closed when its budget is used up: by the marker token, counted as reasoning */
static void test_thinking_budget(void **state)
{
    (void)state;
    struct gen_rig r;
    struct told t;
    struct gen_request q = rig_chat(HI);
    rig_init(&r, (const char *[]){ "<think>", "the the the the the the the the", "</think>", "one", NULL });
    rig_start(&r);
    ask(&r, &q, &t);
    assert_string_equal(t.all.data + t.all.len - 3, "one");
    int32_t n = t.n_reasoning;
    told_free(&t);
    q.thinking_budget = 4;
    ask(&r, &q, &t);
    assert_true(n > 8);
    assert_int_equal(t.n_reasoning, 5); /* four and the marker */
    assert_memory_equal(t.all.data, "{the", 4);
    assert_non_null(strchr(t.all.data, '}'));
    told_free(&t);
    q.thinking_budget = 100;
    ask(&r, &q, &t);
    assert_int_equal(t.n_reasoning, n);
    told_free(&t);
    rig_stop(&r);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_are_events),
        cmocka_unit_test(test_b055_none_converts_nothing),
        cmocka_unit_test(test_b019_no_tools_in_the_prompt),
        cmocka_unit_test(test_one_call_when_not_parallel),
        cmocka_unit_test(test_b058_cut_off_inside_a_call),
        cmocka_unit_test(test_stop_strings_and_calls),
        cmocka_unit_test(test_ids_of_calls),
        cmocka_unit_test(test_thinking_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
