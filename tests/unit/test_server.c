/* The server over the scripted engine, driven by raw sockets: chat and completions in both modes, bad bodies, Host and
 * Origin rules, disconnects, limits, shutdown. Every test ends with a request that is served (srig_check_alive). */
#include "server_rig.h"

#include <pthread.h>
#include <signal.h>
#include <zlib.h>
#include <zstd.h>

#define CHAT "/v1/chat/completions"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

static void check_alive(struct server_rig *r)
{
    struct answer a;
    http_post(r, "/v1/completions", "{\"prompt\":\"hello\",\"max_tokens\":1}", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(r, "GET", "/health", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "{\"status\": \"ok\"}"); /* API-267 */
    answer_free(&a);
}

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
    check_alive(&r);
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

static void check_400(struct server_rig *r, const char *path, const char *body, const char *part)
{
    struct answer a;
    http_post(r, path, body, &a);
    json_t *v = answer_json(&a);
    if (a.status != 400 || !strstr(json_str_at(v, "error.message"), part))
        fail_msg("%s: status %d, %s", body, a.status, json_str_at(v, "error.message"));
    assert_true(json_is_string(json_at(v, "error.type")));
    json_decref(v);
    answer_free(&a);
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
        check_400(&r, CHAT, body, rows[i][1]);
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
    check_alive(&r);
    srig_close(&r);
}

/* API-020, API-022, B-016, B-020, Q19 */
static void test_messages(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", NULL });
    check_400(&r, CHAT, "{}", "messages");
    check_400(&r, CHAT, "{\"messages\":[]}", "messages");
    /* An integer beyond 64 bits is no text, though the reader keeps its digits. */
#define BIG "1000000000000000000000000000000"
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":" BIG "}]}", "messages[0].content must be");
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":" BIG "}]}]}",
              "messages[0].content[0].text must be of type str");
    check_400(&r, CHAT, "{" HI ",\"stop\":" BIG "}", "stop must be a string");
    check_400(&r, CHAT, "{" HI ",\"stop\":[" BIG "]}", "stop must be a string");
    check_400(&r, CHAT, "{" HI ",\"adapter\":" BIG "}", "adapter must be of type str");
    check_400(&r, "/tokenize", "{\"text\":" BIG "}", "text must be of type str");
#undef BIG
    check_400(&r, CHAT, "{\"messages\":{}}", "messages");
    check_400(&r, CHAT, "{\"messages\":[1]}", "messages[0]");
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"clown\",\"content\":\"x\"}]}", "messages[0].role");
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content");
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]}", "image_url");
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"zzz\"}]}]}", "content[0]");
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}", "two user turns");
    check_400(&r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":"
                        "{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]}", "messages[1].tool_calls[0]");
    check_400(&r, "/v1/completions", "{}", "prompt");
    check_400(&r, "/v1/completions", "{\"prompt\":[1,2]}", "prompt must be of type str");
    check_400(&r, "/v1/completions", "{\"prompt\":\"x\",\"logprobs\":3}", "logprobs must be of type bool");
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
    check_alive(&r);
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
    check_alive(&r);
    srig_close(&r);
}

/* B-151, B-152 */
static void test_b151_host(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", NULL });
    static const struct { const char *line; int status; } rows[] = {
        { "Host: evil.test:8080\r\n", 403 }, { "Host: :8080\r\n", 403 }, { "Host: \r\n", 403 }, { NULL, 400 },
        { "Host: localhost.evil.test\r\n", 403 }, { "Host: [::1]:8080\r\n", 200 }, { "Host: 127.0.0.1\r\n", 200 },
        { "Host: LOCALHOST\r\n", 200 }, { "Host: localhost:8080\r\n", 200 }, { "Host: 127.0.0.1.evil.test\r\n", 403 },
        { "Host: 127.0.0.1:80x\r\n", 403 }, { "Host: x.tunnel.test\r\n", 403 }, { "Host: 0.0.0.0\r\n", 403 }, { "Host: 127.1\r\n", 403 },
    };
    static const char *const targets[] = { "GET /health", "GET /v1/models", "GET /nope", "OPTIONS " CHAT, "DELETE /health", "HEAD /health" };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < sizeof targets / sizeof targets[0]; k++) {
            char req[512];
            snprintf(req, sizeof req, "%s HTTP/1.1\r\n%sConnection: close\r\n\r\n", targets[k], rows[i].line ? rows[i].line : "");
            http_raw(&r, req, strlen(req), &a);
            bool ok = rows[i].status == 200 ? a.status != 403 && a.status != 400 : rows[i].line ? a.status == 403 : a.status == 403 || a.status == 400;
            if (!ok) fail_msg("%s, %s: %d", targets[k], rows[i].line ? rows[i].line : "no Host", a.status);
            answer_free(&a);
        }
    http_get(&r, "GET", "/health", "Host: x.tunnel.test\r\n", &a);
    assert_non_null(strstr(a.body, "x.tunnel.test"));
    assert_non_null(strstr(a.body, "--allow-host"));
    answer_free(&a);
    http_get(&r, "GET", "/health", "Host: a\r\nHost: localhost\r\n", &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    /* Two lengths: which bytes are the body is in doubt, so nothing that follows is read as a request. */
    static const char two[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 40\r\n\r\n{}"
                              "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    http_raw(&r, two, sizeof two - 1, &a);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.raw.data, "Connection: close"));
    answer_free(&a);
    check_alive(&r);
    srig_close(&r);

    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    const char *hosts[] = { "x.tunnel.test", "*.b.test" };
    r.so.allow_hosts = hosts;
    r.so.n_allow_hosts = 2;
    srig_start(&r);
    http_get(&r, "GET", "/health", "Host: X.tunnel.test:443\r\n", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(&r, "GET", "/health", "Host: a.b.test\r\n", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(&r, "GET", "/health", "Host: y.tunnel.test\r\n", &a);
    assert_int_equal(a.status, 403);
    answer_free(&a);
    srig_close(&r);
}

/* B-154, Q2, Q3 */
static void test_b154_cors(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char h[512];
    const char *origins[] = { "https://app.test" };
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.so.api_key = "secret";
    r.so.allow_origins = origins;
    r.so.n_allow_origins = 1;
    srig_start(&r);
    static const char *const allowed[] = { "http://localhost:3000", "http://127.0.0.1", "http://[::1]:5173", "https://app.test" };
    for (size_t i = 0; i < 4; i++) {
        char head[512];
        snprintf(head, sizeof head, "Origin: %s\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, "
                 "x-stainless-os, anthropic-version, x-api-key\r\n", allowed[i]);
        http_get(&r, "OPTIONS", CHAT, head, &a); /* no key */
        if (a.status != 204) fail_msg("%s: %d %s", allowed[i], a.status, a.body);
        assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin", h), allowed[i]);
        assert_non_null(strstr(answer_header(&a, "Access-Control-Allow-Headers", h), "x-stainless-os"));
        answer_free(&a);
        snprintf(head, sizeof head, "Origin: %s\r\n", allowed[i]);
        http_post_n(&r, CHAT, head, "{" HI "}", strlen("{" HI "}"), &a);
        assert_int_equal(a.status, 401); /* the real call needs the key, and says so readably */
        assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin", h), allowed[i]);
        answer_free(&a);
        snprintf(head, sizeof head, "Origin: %s\r\nAuthorization: Bearer secret\r\n", allowed[i]);
        http_post_n(&r, CHAT, head, "{" HI "}", strlen("{" HI "}"), &a);
        assert_int_equal(a.status, 200);
        assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin", h), allowed[i]);
        answer_free(&a);
    }
    static const char *const foreign[] = { "https://evil.test", "null", "http://localhost.evil.test", "file://", "http://user@localhost" };
    for (size_t i = 0; i < 5; i++) {
        char head[512];
        snprintf(head, sizeof head, "Origin: %s\r\nAccess-Control-Request-Method: POST\r\n", foreign[i]);
        http_get(&r, "OPTIONS", CHAT, head, &a);
        assert_int_equal(a.status, 403);
        answer_free(&a);
        snprintf(head, sizeof head, "Origin: %s\r\nx-api-key: secret\r\n", foreign[i]);
        http_post_n(&r, CHAT, head, "{" HI "}", strlen("{" HI "}"), &a);
        assert_int_equal(a.status, 403);
        answer_free(&a);
        http_get(&r, "GET", "/v1/models", head, &a);
        assert_int_equal(a.status, 200);
        assert_null(answer_header(&a, "Access-Control-Allow-Origin", h));
        answer_free(&a);
    }
    http_get(&r, "GET", "/health", NULL, &a); /* open */
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_get(&r, "GET", "/v1/models", "x-api-key: secre\r\n", &a);
    assert_int_equal(a.status, 401);
    answer_free(&a);
    http_get(&r, "GET", "/v1/models", "Authorization: bearer secret\r\n", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    srig_close(&r);
}

/* Q1, Q43, API-261..265 */
static void test_routes(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char h[512];
    srig_open(&r, (const char *[]){ "hello", NULL });
    http_get(&r, "GET", "/nope", NULL, &a);
    assert_int_equal(a.status, 404);
    json_decref(answer_json(&a));
    answer_free(&a);
    http_get(&r, "GET", CHAT, NULL, &a);
    assert_int_equal(a.status, 405);
    assert_non_null(strstr(answer_header(&a, "Allow", h), "POST"));
    answer_free(&a);
    http_get(&r, "HEAD", "/health", NULL, &a);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.len, 0);
    answer_free(&a);
    http_get(&r, "GET", "/v1/models", "x-request-id: abc-1\r\n", &a);
    assert_string_equal(answer_header(&a, "x-request-id", h), "abc-1");
    json_t *v = answer_json(&a);
    assert_string_equal(json_str_at(v, "data.0.id"), "tiny-tokenizer");
    assert_int_equal(json_int_at(v, "data.0.context_window"), 100000);
    assert_true(json_is_true(json_at(v, "data.0.reasoning")));
    json_decref(v);
    answer_free(&a);
    static const struct { const char *id; int n; } ids[] = { { "tiny-tokenizer", 1 }, { "tiny%2Dtokenizer", 1 }, { "a/b", 0 }, { "a%2fb", 0 }, { "../../etc/passwd", 0 } };
    for (size_t i = 0; i < 5; i++) {
        char path[128];
        snprintf(path, sizeof path, "/v1/models/%s", ids[i].id);
        http_get(&r, "GET", path, NULL, &a);
        v = answer_json(&a);
        assert_int_equal(a.status, 200);
        assert_int_equal(json_array_size(json_at(v, "data")), ids[i].n);
        json_decref(v);
        answer_free(&a);
    }
    http_get(&r, "GET", "/v1/models/a%00b", NULL, &a); /* B-155 */
    assert_int_equal(a.status, 400);
    answer_free(&a);
    http_get(&r, "GET", "/stats", NULL, &a);
    v = answer_json(&a);
    static const char *const keys[] = { "server.owner", "server.model", "server.started_at", "prompt_cache.max_bytes", "response_store.ttl_ms",
        "kv_quant.mode", "kv_quant.attention.sliding_window", "admission.max_safe_context", "admission.memory_budget_bytes", "batch.configured",
        "batch.batched", "batch.active_rows", "batch.mode", "batch.pending_rows", "batch.submitted_rows", "batch.kv_bytes", "batch.kv_budget_bytes" };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!json_at(v, keys[i])) fail_msg("/stats lacks %s", keys[i]);
    json_decref(v);
    answer_free(&a);
    http_get(&r, "GET", "/metrics", NULL, &a);
    assert_non_null(strstr(a.body, "\nmlx_bun_up 1\n"));
    answer_free(&a);
    http_post(&r, "/tokenize", "{\"text\":\"hello world\"}", &a);
    assert_string_equal(a.body[0] == '{' ? strstr(a.body, "\"count\": 2") ? "ok" : a.body : a.body, "ok");
    answer_free(&a);
    int32_t id;
    rig_encode("hello", &id, 1);
    char body[64];
    snprintf(body, sizeof body, "{\"tokens\":[%d]}", (int)id);
    http_post(&r, "/detokenize", body, &a);
    assert_string_equal(a.body, "{\"text\": \"hello\"}");
    answer_free(&a);
    check_400(&r, "/detokenize", "{\"tokens\":[-1]}", "tokens[0]");
    check_400(&r, "/detokenize", "{\"tokens\":[5,2000000000]}", "tokens[1]");
    check_alive(&r);
    srig_close(&r);
}

/* B-046 */
static void test_b046_chunked(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    const char *body = "{" HI "}";
    srig_open(&r, (const char *[]){ "hello", NULL });
    int fd = srig_connect(&r);
    srig_puts(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    for (const char *p = body; *p; p++) {
        char piece[32];
        snprintf(piece, sizeof piece, "1;name=v\r\n%c\r\n", *p);
        srig_puts(fd, piece);
    }
    srig_puts(fd, "0\r\nX-Trailer: a\r\n\r\n");
    assert_true(answer_read(fd, &a));
    close(fd);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    check_alive(&r);
    srig_close(&r);
}

/* B-047, Q63 */
static void test_b047_expect(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.so.api_key = "k";
    r.so.body_limit_bytes = 4 << 20;
    r.so.body_memory_bytes = 5 << 20;
    srig_start(&r);
    size_t n = 3 << 20;
    char *big = malloc(n + 1), head[512];
    memset(big, ' ', n);
    memcpy(big, "{" HI "}", strlen("{" HI "}"));
    static const struct { const char *path, *key; size_t len; int status; } rows[] = {
        { CHAT, "k", 3 << 20, 100 }, { CHAT, "wrong", 3 << 20, 401 }, { "/nope", "k", 3 << 20, 404 }, { CHAT, "k", 5 << 20, 413 } };
    for (size_t i = 0; i < 4; i++) {
        int64_t t0 = clock_now_ns();
        int fd = srig_connect(&r);
        snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nx-api-key: %s\r\nContent-Length: %zu\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
                 rows[i].path, rows[i].key, rows[i].len);
        srig_puts(fd, head);
        assert_true(answer_read(fd, &a));
        assert_int_equal(a.status, rows[i].status);
        assert_true(clock_now_ns() - t0 < 500 * 1000000ll);
        answer_free(&a);
        if (rows[i].status == 100) {
            srig_send(fd, big, n);
            assert_true(answer_read(fd, &a));
            assert_int_equal(a.status, 200);
            answer_free(&a);
        }
        close(fd);
    }
    /* the same without Expect: the body is read, and the answer is not lost */
    http_post_n(&r, CHAT, "x-api-key: wrong\r\n", big, n, &a);
    assert_int_equal(a.status, 401);
    answer_free(&a);
    http_post_n(&r, "/nope", "x-api-key: k\r\n", big, n, &a);
    assert_int_equal(a.status, 404);
    answer_free(&a);
    /* chunked, larger than the limit */
    int fd = srig_connect(&r);
    srig_puts(fd, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nx-api-key: k\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        srig_puts(fd, "100000\r\n");
        srig_send(fd, big, 0x100000);
        srig_puts(fd, "\r\n");
    }
    srig_puts(fd, "0\r\n\r\n");
    assert_true(answer_read(fd, &a));
    assert_int_equal(a.status, 413);
    answer_free(&a);
    close(fd);
    /* two large bodies do not fit the body memory together: 503 for the second */
    fd = srig_connect(&r);
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nx-api-key: k\r\nContent-Length: %zu\r\n\r\n", n);
    srig_puts(fd, head);
    srig_send(fd, big, n / 2);
    clock_sleep_ms(50);
    http_post_n(&r, CHAT, "x-api-key: k\r\n", big, n, &a);
    assert_int_equal(a.status, 503);
    answer_free(&a);
    close(fd);
    clock_sleep_ms(100);
    http_post_n(&r, CHAT, "x-api-key: k\r\n", big, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    free(big);
    srig_close(&r);
}

/* A gzip member that holds len bytes of text. */
static size_t gzip_member(char *out, size_t cap, const char *text, size_t len)
{
    z_stream z = { 0 };
    deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY);
    z.next_in = (unsigned char *)(uintptr_t)text;
    z.avail_in = (unsigned)len;
    z.next_out = (unsigned char *)out;
    z.avail_out = (unsigned)cap;
    deflate(&z, Z_FINISH);
    deflateEnd(&z);
    return cap - z.avail_out;
}

static void test_encoded_bodies(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char out[4096];
    const char *body = "{" HI "}";
    srig_open(&r, (const char *[]){ "hello", NULL });
    size_t n = gzip_member(out, sizeof out, body, strlen(body));
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n - 5, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    n = gzip_member(out, sizeof out, body, 9); /* several members are one body */
    n += gzip_member(out + n, sizeof out - n, body + 9, strlen(body) - 9);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", out, n - 1, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: gzip\r\n", "not gzip", 8, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    n = ZSTD_compress(out, sizeof out, body, strlen(body), 3);
    http_post_n(&r, CHAT, "Content-Encoding: zstd\r\n", out, n, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: zstd\r\n", out, n - 3, &a);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    http_post_n(&r, CHAT, "Content-Encoding: br\r\n", out, n, &a);
    assert_int_equal(a.status, 415);
    answer_free(&a);
    /* a bomb: 300 MB of spaces */
    size_t big_n = 300u << 20, cap = ZSTD_compressBound(big_n);
    char *big = calloc(1, big_n), *packed = malloc(cap);
    n = ZSTD_compress(packed, cap, big, big_n, 1);
    http_post_n(&r, CHAT, "Content-Encoding: zstd\r\n", packed, n, &a);
    assert_int_equal(a.status, 413);
    answer_free(&a);
    free(big);
    free(packed);
    check_alive(&r);
    srig_close(&r);
}

static void test_keep_alive(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    srig_open(&r, (const char *[]){ "hello", NULL });
    int fd = srig_connect(&r);
    for (int i = 0; i < 20; i++) {
        char req[512], body[256];
        snprintf(body, sizeof body, "{" HI "%s}", i % 2 ? ",\"stream\":true" : "");
        snprintf(req, sizeof req, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
        srig_puts(fd, req);
        assert_true(answer_read(fd, &a));
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    close(fd);
    check_alive(&r);
    srig_close(&r);
}

/* --- many at once --- */
struct client_job { struct server_rig *r; int i; bool ok; };

static void *client_main(void *ctx)
{
    struct client_job *j = ctx;
    struct answer a;
    j->ok = true;
    for (int k = 0; k < 5 && j->ok; k++) {
        http_post(j->r, CHAT, (j->i + k) % 2 ? "{" HI ",\"stream\":true}" : "{" HI "}", &a);
        j->ok = a.status == 200 && strstr(a.body, (j->i + k) % 2 ? "[DONE]" : "hello world") != NULL;
        answer_free(&a);
    }
    return NULL;
}

static void test_parallel(void **state)
{
    (void)state;
    struct server_rig r;
    struct client_job jobs[24];
    pthread_t t[24];
    srig_open(&r, (const char *[]){ "hello", " world", NULL });
    for (int i = 0; i < 24; i++) {
        jobs[i] = (struct client_job){ .r = &r, .i = i };
        pthread_create(&t[i], NULL, client_main, &jobs[i]);
    }
    for (int i = 0; i < 24; i++) {
        pthread_join(t[i], NULL);
        assert_true(jobs[i].ok);
    }
    check_alive(&r);
    srig_close(&r);
}

/* B-103: 4 run, 4 wait, the rest 429 with Retry-After. */
static void *flood_main(void *ctx)
{
    struct client_job *j = ctx;
    struct answer a;
    char h[512];
    http_post(j->r, CHAT, "{" HI "}", &a);
    j->i = a.status;
    j->ok = a.status == 200 || (a.status == 429 && answer_header(&a, "Retry-After", h));
    answer_free(&a);
    return NULL;
}

static void test_b103_queue_full(void **state)
{
    (void)state;
    struct server_rig r;
    struct client_job jobs[40];
    pthread_t t[40];
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", " world", NULL });
    r.gen.eo.batch = 2;
    r.gen.eo.queue_max = 4;
    r.gen.so.step_delay_ms = 300; /* long against the start of 40 threads on a busy machine */
    srig_start(&r);
    int n_ok = 0, n_busy = 0;
    for (int i = 0; i < 40; i++) {
        jobs[i] = (struct client_job){ .r = &r };
        pthread_create(&t[i], NULL, flood_main, &jobs[i]);
    }
    for (int i = 0; i < 40; i++) {
        pthread_join(t[i], NULL);
        assert_true(jobs[i].ok);
        if (jobs[i].i == 200) n_ok++;
        else n_busy++;
    }
    assert_true(n_ok >= 6);
    assert_true(n_busy > 0);
    check_alive(&r);
    srig_close(&r);
}

/* --- clients that leave --- */
static void open_slow(struct server_rig *r, int64_t step_ms, int64_t prefill_ms)
{
    memset(r, 0, sizeof *r);
    rig_init(&r->gen, NULL);
    for (r->gen.n_script = 0; r->gen.n_script < 4000; r->gen.n_script++) rig_encode("a", &r->gen.script[r->gen.n_script], 1);
    r->gen.so.step_delay_ms = step_ms;
    r->gen.so.prefill_delay_ms_per_1k = prefill_ms;
    r->so.keepalive_ms = 300;
    r->so.shutdown_timeout_ms = 3000;
    srig_start(r);
}

static int send_post(struct server_rig *r, const char *body)
{
    char head[256];
    int fd = srig_connect(r);
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    srig_puts(fd, head);
    srig_puts(fd, body);
    return fd;
}

static void wait_active(struct server_rig *r, int n)
{
    struct engine_stats st;
    for (int i = 0; i < 500; i++) {
        engine_stats_now(r, &st);
        if (st.active_rows + st.pending_rows >= n) return;
        clock_sleep_ms(5);
    }
    fail_msg("the engine never got %d rows", n);
}

static void test_b043_disconnects(void **state)
{
    (void)state;
    struct server_rig r;
    struct engine_stats before, after;
    open_slow(&r, 10, 0);
    for (int stream = 0; stream < 2; stream++) {
        engine_stats_now(&r, &before);
        int fd = send_post(&r, stream ? "{" HI ",\"stream\":true}" : "{" HI "}");
        wait_active(&r, 1);
        clock_sleep_ms(50);
        close(fd);
        int64_t ms = wait_no_rows(&r, 5000);
        if (ms < 0 || ms > 500) fail_msg("stream %d: rows stayed %lld ms", stream, (long long)ms);
        engine_stats_now(&r, &after);
        assert_int_equal(after.cancelled, before.cancelled + 1);
    }
    /* queued: eight run, others wait; the waiting ones leave first */
    int fds[12];
    for (int i = 0; i < 12; i++) fds[i] = send_post(&r, i % 2 ? "{" HI ",\"stream\":true}" : "{" HI "}");
    wait_active(&r, 12);
    for (int i = 11; i >= 0; i--) close(fds[i]);
    assert_true(wait_no_rows(&r, 3000) >= 0);
    srig_close(&r);
}

static void test_b043_half_closed_stream(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", " world", " the", NULL });
    r.gen.so.step_delay_ms = 100;
    srig_start(&r);
    int fd = send_post(&r, "{" HI ",\"stream\":true}");
    shutdown(fd, SHUT_WR);
    assert_true(answer_read(fd, &a));
    sse_parse(&a, &s);
    assert_string_equal(sse_content(&s), "hello world the");
    assert_true(s.done);
    sse_free(&s);
    answer_free(&a);
    close(fd);
    check_alive(&r);
    srig_close(&r);
}

/* B-044 */
static void test_b044_keepalive_comments(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.gen.so.prefill_delay_ms_per_1k = 200000; /* nine tokens: 1.8 s */
    r.so.keepalive_ms = 300;
    srig_start(&r);
    int64_t t0 = clock_now_ns();
    http_post(&r, CHAT, "{" HI ",\"stream\":true}", &a);
    assert_int_equal(a.status, 200);
    sse_parse(&a, &s);
    if (s.n_comments < 2) fail_msg("%d comments in %lld ms: %s", s.n_comments, (long long)(clock_now_ns() - t0) / 1000000, a.raw.data);
    assert_non_null(strstr(a.body, ": keepalive 0/9\n\n"));
    assert_string_equal(sse_content(&s), "hello");
    sse_free(&s);
    answer_free(&a);
    srig_close(&r);
}

/* A client that does not read: its row is parked, others are served, and what it gets in the end is whole. */
static void test_slow_reader(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, NULL);
    for (r.gen.n_script = 0; r.gen.n_script < 4000; r.gen.n_script++) rig_encode("a", &r.gen.script[r.gen.n_script], 1);
    r.gen.go.ring_events = 64;
    srig_start(&r);
    int fd = srig_connect(&r), small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    const char *body = "{" HI ",\"stream\":true,\"n\":4}";
    char head[256];
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", strlen(body));
    srig_puts(fd, head);
    srig_puts(fd, body);
    clock_sleep_ms(300);
    http_post(&r, CHAT, "{" HI ",\"max_tokens\":3}", &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    assert_true(answer_read(fd, &a));
    sse_parse(&a, &s);
    assert_int_equal(s.content.len, 4000);
    assert_true(s.done);
    sse_free(&s);
    answer_free(&a);
    close(fd);
    srig_close(&r);
}

/* --- shutting down (API-015) --- */
static void *run_main(void *ctx)
{
    server_run(ctx);
    return NULL;
}

static void test_api015_graceful(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    pthread_t t;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", " world", " the", " one", " two", NULL });
    r.gen.so.step_delay_ms = 60;
    srig_start(&r);
    pthread_create(&t, NULL, run_main, r.server);
    int fd = send_post(&r, "{" HI ",\"stream\":true}"), idle = srig_connect(&r);
    wait_active(&r, 1);
    server_request_stop(r.server);
    assert_true(answer_read(fd, &a));
    sse_parse(&a, &s);
    assert_string_equal(sse_content(&s), "hello world the one two");
    sse_free(&s);
    answer_free(&a);
    pthread_join(t, NULL);
    close(fd);
    close(idle);
    srig_close(&r);
}

static void test_api015_second_signal(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    struct sse s;
    pthread_t t;
    open_slow(&r, 20, 0);
    pthread_create(&t, NULL, run_main, r.server);
    int fd[3] = { send_post(&r, "{" HI ",\"stream\":true}"), send_post(&r, "{" HI "}"), srig_connect(&r) };
    wait_active(&r, 2);
    clock_sleep_ms(100);
    int64_t t0 = clock_now_ns();
    server_request_stop(r.server);
    clock_sleep_ms(100);
    server_request_stop(r.server);
    assert_true(answer_read(fd[0], &a));
    sse_parse(&a, &s);
    assert_non_null(strstr(s.error, "shutting down"));
    assert_true(s.done);
    sse_free(&s);
    answer_free(&a);
    assert_true(answer_read(fd[1], &a));
    assert_true(a.status >= 400);
    answer_free(&a);
    pthread_join(t, NULL);
    assert_true(clock_now_ns() - t0 < 3000ll * 1000000);
    for (int i = 0; i < 3; i++) close(fd[i]);
    srig_close(&r);
}

/* API-003 */
static void test_api003_unix_socket(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    char path[64];
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    snprintf(path, sizeof path, "/tmp/mlx-bun-test-%d.sock", (int)getpid());
    r.so.unix_path = path;
    struct sockaddr_un u = { .sun_family = AF_UNIX };
    strcpy(u.sun_path, path);
    int stale = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(stale, (struct sockaddr *)&u, sizeof u), 0); /* a stale file */
    close(stale);
    srig_start(&r);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&u, sizeof u), 0);
    srig_puts(fd, "GET /v1/models HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n");
    assert_true(answer_read(fd, &a));
    assert_int_equal(a.status, 200);
    answer_free(&a);
    close(fd);
    srig_close(&r);
    assert_int_equal(access(path, F_OK), -1);
}

/* A header that dribbles in is cut off; so are connections beyond the limit, idle ones first. */
static void test_idle_and_limits(void **state)
{
    (void)state;
    struct server_rig r;
    char c;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.so.idle_timeout_ms = 300;
    r.so.max_connections = 8;
    srig_start(&r);
    int fd = srig_connect(&r);
    srig_puts(fd, "GET /health HT");
    int64_t t0 = clock_now_ns();
    assert_true(recv(fd, &c, 1, 0) <= 0);
    assert_true(clock_now_ns() - t0 < 4000ll * 1000000);
    close(fd);
    int many[12];
    for (int i = 0; i < 12; i++) many[i] = srig_connect(&r);
    check_alive(&r);
    for (int i = 0; i < 12; i++) close(many[i]);
    srig_close(&r);
}

/* Errors of the engine: the prompt is too long (Q50) */
static void test_context_length(void **state)
{
    (void)state;
    struct server_rig r;
    struct answer a;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *[]){ "hello", NULL });
    r.gen.so.n_context = 64;
    srig_start(&r);
    for (int stream = 0; stream < 2; stream++) {
        char body[1024];
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%0500d\"}],\"stream\":%s}", 0, stream ? "true" : "false");
        http_post(&r, CHAT, body, &a);
        json_t *v = answer_json(&a);
        assert_int_equal(a.status, 400);
        assert_string_equal(json_str_at(v, "error.code"), "context_length_exceeded");
        assert_string_equal(json_str_at(v, "error.param"), "messages");
        json_decref(v);
        answer_free(&a);
        snprintf(body, sizeof body, "{\"prompt\":\"%0500d\",\"stream\":%s}", 0, stream ? "true" : "false");
        http_post(&r, "/v1/completions", body, &a);
        v = answer_json(&a);
        assert_string_equal(json_str_at(v, "error.param"), "prompt");
        json_decref(v);
        answer_free(&a);
    }
    check_alive(&r);
    srig_close(&r);
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_json), cmocka_unit_test(test_chat_sse), cmocka_unit_test(test_modes_agree),
        cmocka_unit_test(test_completions), cmocka_unit_test(test_logprobs_forms), cmocka_unit_test(test_field_errors),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_bad_bodies), cmocka_unit_test(test_b151_host),
        cmocka_unit_test(test_b154_cors), cmocka_unit_test(test_routes), cmocka_unit_test(test_b046_chunked),
        cmocka_unit_test(test_b047_expect), cmocka_unit_test(test_encoded_bodies), cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_parallel), cmocka_unit_test(test_b103_queue_full), cmocka_unit_test(test_b043_disconnects),
        cmocka_unit_test(test_b043_half_closed_stream), cmocka_unit_test(test_b044_keepalive_comments),
        cmocka_unit_test(test_slow_reader), cmocka_unit_test(test_api015_graceful), cmocka_unit_test(test_api015_second_signal),
        cmocka_unit_test(test_api003_unix_socket), cmocka_unit_test(test_idle_and_limits), cmocka_unit_test(test_context_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
