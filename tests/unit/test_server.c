/* test_server.c: the server over the scripted engine, driven by raw sockets: answers of chat and completions in both modes, wrong
 * fields and bodies. test_server_http.c has what is HTTP's own, test_server_load.c many clients, slow ones and those that leave. */
#include "server_rig.h"


/* API-088..100 */
static void test_chat_json(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", " world", NULL });
    http_post(&r, CHAT, "{" HI ",\"model\":\"gpt-4\",\"unknown_field\":{\"a\":1}}", &a);
    assert_int_equal(a.status, 200);
    json_t *v = answer_json(&a);
    assert_int_equal(strncmp(json_str_at(v, "id"), "chatcmpl-", 9), 0);
    assert_string_equal(json_str_at(v, "object"), "chat.completion");
    assert_string_equal(json_str_at(v, "model"), "tiny-tokenizer");
    assert_string_equal(json_str_at(v, "choices.0.message.role"), "assistant");
    assert_string_equal(json_str_at(v, "choices.0.message.content"), "hello world");
    assert_string_equal(json_str_at(v, "choices.0.finish_reason"), "stop");
    assert_null(json_at(v, "choices.0.logprobs"));
    assert_null(json_at(v, "choices.0.message.reasoning_content"));
    assert_int_equal(json_int_at(v, "usage.completion_tokens"), 3);
    assert_int_equal(json_int_at(v, "usage.total_tokens"), json_int_at(v, "usage.prompt_tokens") + 3);
    assert_int_equal(json_int_at(v, "usage.prompt_tokens_details.cached_tokens"), 0);
    assert_string_equal(json_str_at(v, "usage.lane"), "batched");
    json_decref(v);
    answer_free(&a);
    http_post(&r, "/chat/completions", "{" HI "}", &a); /* Q5 */
    assert_int_equal(a.status, 200);
    answer_free(&a);
    srig_check_alive(&r);
    srig_close(&r);
}

/* API-101..110, Q11, Q13 */
static void test_chat_sse(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    char h[512];
    srig_open(&r, (const char *[]){ "<think>", "one", "</think>", "hello", " world", NULL });
    http_post(&r, CHAT, "{" HI ",\"stream\":true,\"logprobs\":true}", &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_header(&a, "Content-Type", h), "text/event-stream");
    assert_string_equal(answer_header(&a, "Cache-Control", h), "no-cache");
    assert_string_equal(answer_header(&a, "Transfer-Encoding", h), "chunked");
    assert_null(strstr(a.body, "logprobs")); /* API-109 */
    sse_parse(&a, &s);
    assert_true(s.role && s.done);
    assert_string_equal(sse_content(&s), "hello world");
    assert_string_equal(sse_reasoning(&s), "one");
    assert_string_equal(s.finish, "stop");
    assert_int_equal(s.n_usage, 1);
    assert_int_equal(s.completion_tokens, 6);
    sse_free(&s);
    answer_free(&a);
    http_post(&r, CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}", &a);
    sse_parse(&a, &s);
    assert_int_equal(s.n_usage, 2);
    assert_true(s.done);
    assert_non_null(strstr(a.body, "\"choices\": [], \"usage\""));
    sse_free(&s);
    answer_free(&a);
    srig_close(&r);
}

/* API-110: both modes agree for every feature that cuts text. B-035, B-040, B-142, B-145 */
static void test_modes_agree(void **state)
{
    (void)state;
    static const struct { const char *pieces[8]; const char *fields, *content, *reasoning, *finish; } rows[] = {
        { { "the ", "E", "ND", " O", "F it" }, ",\"stop\":[\"END OF\"]", "the ", "", "stop" },
        { { "the ", "E", "NDING" }, ",\"stop\":\"END OF\"", "the ENDING", "", "stop" },
        { { "a", "\xF0\x9F\x99\x82" }, ",\"max_tokens\":3", "a\xEF\xBF\xBD", "", "length" },
        { { "one", " two", " the" }, ",\"max_tokens\":2,\"chat_template_kwargs\":{\"enable_thinking\":true}", "", "one two", "length" },
        { { "one", "</think>", "b" }, ",\"reasoning_effort\":\"low\"", "b", "one", "stop" },
        { { "<think>", "a", "</think>", "b" }, ",\"stop\":[\"k>z\"]", "b", "a", "stop" },
        { { "a" }, ",\"max_tokens\":null,\"stop\":null,\"temperature\":null,\"n\":null", "a", "", "stop" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct server_rig r;
        struct answer a;
        struct sse s;
        char body[512];
        srig_open(&r, rows[i].pieces);
        snprintf(body, sizeof body, "{" HI "%s}", rows[i].fields);
        http_post(&r, CHAT, body, &a);
        if (a.status != 200) fail_msg("row %zu: %s", i, a.body);
        json_t *v = answer_json(&a);
        assert_string_equal(json_str_at(v, "choices.0.message.content"), rows[i].content);
        if (rows[i].reasoning[0]) assert_string_equal(json_str_at(v, "choices.0.message.reasoning_content"), rows[i].reasoning);
        assert_string_equal(json_str_at(v, "choices.0.finish_reason"), rows[i].finish);
        assert_true(json_int_at(v, "usage.completion_tokens") > 0);
        json_decref(v);
        answer_free(&a);
        snprintf(body, sizeof body, "{" HI "%s,\"stream\":true}", rows[i].fields);
        http_post(&r, CHAT, body, &a);
        sse_parse(&a, &s);
        assert_string_equal(sse_content(&s), rows[i].content);
        assert_string_equal(sse_reasoning(&s), rows[i].reasoning);
        assert_string_equal(s.finish, rows[i].finish);
        sse_free(&s);
        answer_free(&a);
        srig_close(&r);
    }
}

/* API-206..219 */
static void test_completions(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    srig_open(&r, (const char *[]){ "<think>", "one", NULL });
    http_post(&r, "/v1/completions", "{\"prompt\":\"hello\"}", &a);
    json_t *v = answer_json(&a);
    assert_int_equal(strncmp(json_str_at(v, "id"), "cmpl-", 5), 0);
    assert_string_equal(json_str_at(v, "object"), "text_completion");
    assert_string_equal(json_str_at(v, "choices.0.text"), "<think>one");
    json_decref(v);
    answer_free(&a);
    http_post(&r, "/v1/completions", "{\"prompt\":\"hello\",\"stream\":true,\"n\":2}", &a);
    sse_parse(&a, &s);
    assert_true(s.done);
    assert_string_equal(sse_content(&s), "<think>one");
    assert_int_equal(s.n_usage, 1);
    sse_free(&s);
    answer_free(&a);
    srig_close(&r);
}

/* Section 7 */
static void test_logprobs_forms(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", NULL });
    http_post(&r, CHAT, "{" HI ",\"logprobs\":true}", &a);
    json_t *v = answer_json(&a), *e = json_at(v, "choices.0.logprobs.content.0");
    assert_int_equal(json_array_size(json_at(v, "choices.0.logprobs.content")), 2);
    assert_int_equal(json_object_size(e), 2); /* API-113 */
    assert_true(json_is_integer(json_object_get(e, "id")) && json_is_real(json_object_get(e, "logprob")));
    json_decref(v);
    answer_free(&a);
    http_post(&r, CHAT, "{" HI ",\"top_logprobs\":1}", &a); /* API-123 */
    v = answer_json(&a);
    e = json_at(v, "choices.0.logprobs.content.0");
    assert_non_null(json_object_get(e, "token"));
    assert_non_null(json_object_get(e, "top_logprobs"));
    json_decref(v);
    answer_free(&a);
    http_post(&r, CHAT, "{" HI ",\"top_logprobs\":-1}", &a);
    v = answer_json(&a);
    assert_null(json_at(v, "choices.0.logprobs"));
    json_decref(v);
    answer_free(&a);
    srig_close(&r);
}

/* Section 2, Q6..Q10, B-026, B-032, B-037 */
static void test_field_errors(void **state)
{
    (void)state;
    struct server_rig r;
    srig_open(&r, (const char *[]){ "hello", NULL });
    static const char *const rows[][2] = {
        { "\"logit_bias\":{\"x1\":1}", "logit_bias must be a dict of int to float" },
        { "\"logit_bias\":{\"1\":\"a\"}", "logit_bias must be a dict of int to float" },
        { "\"logit_bias\":[]", "logit_bias must be a dict of int to float" },
        { "\"logit_bias\":{\"512\":1}", "logit_bias" },
        { "\"logprobs\":1", "logprobs must be of type bool" },
        { "\"top_logprobs\":\"1\"", "top_logprobs must be of type int" },
        { "\"top_logprobs\":1.5", "top_logprobs must be of type int" },
        { "\"top_logprobs\":true", "top_logprobs must be of type int" },
        { "\"top_logprobs\":-2", "top_logprobs must be at least 0" },
        { "\"top_logprobs\":12", "top_logprobs must be at most 11" },
        { "\"max_tokens\":0", "max_tokens must be at least 1" },
        { "\"max_tokens\":-1", "max_tokens must be at least 1" },
        { "\"max_tokens\":\"12\"", "max_tokens must be of type int" },
        { "\"max_tokens\":2.5", "max_tokens must be of type int" },
        { "\"max_completion_tokens\":true", "max_completion_tokens must be of type int" },
        { "\"stop\":3", "stop" }, { "\"stop\":[\"\"]", "stop" }, { "\"stop\":\"\"", "stop" }, { "\"stop\":[1]", "stop" },
        { "\"stream\":\"true\"", "stream must be of type bool" },
        { "\"stream_options\":1", "stream_options" },
        { "\"temperature\":-1", "temperature must be at least 0" },
        { "\"temperature\":\"hot\"", "temperature must be of type" },
        { "\"top_p\":1.5", "top_p must be at most 1" }, { "\"min_p\":2", "min_p must be at most 1" },
        { "\"top_k\":-1", "top_k must be at least 0" }, { "\"top_k\":1.5", "top_k must be of type int" },
        { "\"xtc_threshold\":0.6", "xtc_threshold must be at most 0.5" },
        { "\"seed\":\"x\"", "seed must be of type int" }, { "\"seed\":18446744073709551616", "seed must be at most" },
        { "\"top_k\":9223372036854775808", "top_k must be at most" },
        { "\"n\":0", "n must be at least 1" }, { "\"n\":1000", "n must be at most" }, { "\"best_of\":2", "best_of" },
        { "\"adapter\":\"a\"", "adapter" }, { "\"adapter\":3", "adapter" },
        { "\"response_format\":{\"type\":\"xml\"}", "response_format" }, { "\"response_format\":1", "response_format" },
        { "\"response_format\":{\"type\":\"json_schema\"}", "response_format" }, { "\"guided_regex\":\"(\"", "guided_regex" },
        { "\"guided_regex\":3", "guided_regex must be of type str" }, { "\"guided_json\":3", "guided_json" },
        { "\"guided_choice\":[]", "guided_choice" }, { "\"guided_json\":{},\"guided_regex\":\"a\"", "one constraint" },
        { "\"thinking_budget\":0", "thinking_budget must be at least 1" },
        { "\"structured_outputs\":{}", "structured_outputs" },
        { "\"structured_outputs\":{\"regex\":\"a\",\"json_object\":true}", "structured_outputs has several kinds" }, { "\"hlg\":3", "hlg must be of type dict" },
        { "\"hlg\":{\"width\":101}", "hlg.width must be at most 100" },
        { "\"hlg\":{\"enabled\":1}", "hlg.enabled must be of type bool" },
        { "\"ignore_eos\":1", "ignore_eos" }, { "\"min_tokens\":-1", "min_tokens" },
        { "\"tool_choice\":\"required\"", "tool_choice" },
        { "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "tool_choice" },
        { "\"tools\":[{\"type\":\"zzz\"}]", "tools[0]" }, { "\"tools\":{}", "tools" },
        { "\"reasoning_effort\":\"max\"", "reasoning_effort" },
        { "\"chat_template_kwargs\":[]", "chat_template_kwargs" },
        { "\"chat_template_kwargs\":{\"enable_thinking\":\"yes\"}", "enable_thinking" },
        { "\"continue_final_message\":true", "continue_final_message" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char body[512];
        snprintf(body, sizeof body, "{" HI ",%s}", rows[i][0]);
        srig_check_400(&r, CHAT, body, rows[i][1]);
    }
    static const char *const fine[] = { "\"max_tokens\":1e9", "\"max_tokens\":100000000000000000000", "\"stop\":[]", "\"adapter\":\"none\"",
        "\"response_format\":{\"type\":\"text\"}", "\"hlg\":{\"enabled\":false}", "\"hlg\":{\"enabled\":true,\"toe\":null}", "\"stop\":[\"a1\",\"b1\",\"c1\",\"d1\",\"e1\"]",
        "\"tool_choice\":\"none\"", "\"tools\":[]", "\"tools\":null", "\"top_logprobs\":0", "\"best_of\":1", "\"seed\":7",
        "\"seed\":9223372036854775808", "\"temperature\":1000000000000000000000000000000",
        "\"repetition_penalty\":1.1,\"presence_penalty\":0.5,\"frequency_penalty\":0.5,\"min_p\":0.1,\"top_k\":0,\"top_p\":1",
        "\"logit_bias\":{\"5\":1.5}", "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"auto\"",
        "\"max_tokens\":1,\"max_completion_tokens\":5" };
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        char body[512];
        struct answer a;
        snprintf(body, sizeof body, "{" HI ",%s}", fine[i]);
        http_post(&r, CHAT, body, &a);
        if (a.status != 200) fail_msg("%s: %d %s", body, a.status, a.body);
        answer_free(&a);
    }
    srig_check_alive(&r);
    srig_close(&r);
}

/* API-020, API-022, B-016, B-020, Q19 */
static void test_messages(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", NULL });
    srig_check_400(&r, CHAT, "{}", "messages");
    srig_check_400(&r, CHAT, "{\"messages\":[]}", "messages");
    /* An integer beyond 64 bits is no text, though the reader keeps its digits. */
#define BIG "1000000000000000000000000000000"
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":" BIG "}]}", "messages[0].content must be");
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":" BIG "}]}]}",
              "messages[0].content[0].text must be of type str");
    srig_check_400(&r, CHAT, "{" HI ",\"stop\":" BIG "}", "stop must be a string");
    srig_check_400(&r, CHAT, "{" HI ",\"stop\":[" BIG "]}", "stop must be a string");
    srig_check_400(&r, CHAT, "{" HI ",\"adapter\":" BIG "}", "adapter must be of type str");
    srig_check_400(&r, "/tokenize", "{\"text\":" BIG "}", "text must be of type str");
#undef BIG
    srig_check_400(&r, CHAT, "{\"messages\":{}}", "messages");
    srig_check_400(&r, CHAT, "{\"messages\":[1]}", "messages[0]");
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"clown\",\"content\":\"x\"}]}", "messages[0].role");
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content");
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]}", "image_url");
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"zzz\"}]}]}", "content[0]");
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}", "two user turns");
    srig_check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
                        "{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]}", "messages[1].tool_calls[0]");
    srig_check_400(&r, "/v1/completions", "{}", "prompt");
    srig_check_400(&r, "/v1/completions", "{\"prompt\":[1,2]}", "prompt must be of type str");
    srig_check_400(&r, "/v1/completions", "{\"prompt\":\"x\",\"logprobs\":3}", "logprobs must be of type bool");
    static const char *const fine[] = {
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"w\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"n\\\":2}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"7\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"w\"},{\"role\":\"assistant\",\"content\":\"he\"}],\"continue_final_message\":true}" };
    for (size_t i = 0; i < 3; i++) {
        http_post(&r, CHAT, fine[i], &a);
        if (a.status != 200) fail_msg("%s", a.body);
        answer_free(&a);
    }
    srig_check_alive(&r);
    srig_close(&r);
}

/* B-049, B-050, API-009 */
static void test_bad_bodies(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    srig_open(&r, (const char *[]){ "hello", NULL });
    const char *const bad[] = { "{:\"a\":1}", "", deep, "{" HI ",\"stream\":false,\"stream\":true}", "{" HI "} x", "[]", "3", "null",
        "{\"prompt\":\"caf\xE9\"}", "{\"prompt\":\"\xC0\x80\"}", "{\"prompt\":\"\xED\xA0\x80\xED\xB0\x80\"}", "\xFF\xFE{\0", "{\"messages\"" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        http_post(&r, CHAT, bad[i], &a);
        if (a.status != 400) fail_msg("body %zu: status %d", i, a.status);
        json_decref(answer_json(&a)); /* valid UTF-8 and JSON whatever came in */
        answer_free(&a);
    }
    free(deep);
    http_post_n(&r, CHAT, "Content-Type: text/plain\r\n", "{" HI "}", strlen("{" HI "}"), &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    srig_check_alive(&r);
    srig_close(&r);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_json), cmocka_unit_test(test_chat_sse),
        cmocka_unit_test(test_modes_agree), cmocka_unit_test(test_completions),
        cmocka_unit_test(test_logprobs_forms), cmocka_unit_test(test_field_errors),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_bad_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
