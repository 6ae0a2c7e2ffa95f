/* test_dialects.c: what the Anthropic and Responses dialects do when things go wrong or take long, over the scripted
 * engine: a failure in the middle of a stream, a silent stream, full queues, bodies of every shape. */
#include "server_rig.h"

#include "api/api.h"

static const char ANTHROPIC[] = "{\"max_tokens\":50,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
static const char RESPONSES[] = "{\"input\":\"hi\",\"stream\":true}";

/* Says the pieces; the step after the last one computes a NaN. */
static void open_poisoned(struct server_rig *r, const char *const *pieces)
{
    memset(r, 0, sizeof *r);
    rig_init(&r->gen, pieces);
    r->gen.so.poison = true;
    r->gen.so.poison_id = r->gen.script[r->gen.n_script - 1];
    r->so.shutdown_timeout_ms = 3000;
    srig_start(r);
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = text; p && (p = strstr(p, part)) != NULL; p += strlen(part)) n++;
    return n;
}

/* The JSON of the last event. */
static json_t *last_event(const struct answer *a)
{
    const char *at = NULL;
    json_t *v = NULL;
    mb_error err = { 0 };
    for (const char *p = a->body; (p = strstr(p, "\ndata: ")) != NULL; p += 7) at = p + 7;
    assert_non_null(at);
    if (json_read(&v, at, strcspn(at, "\n"), 0, &err) != MB_OK) fail_msg("%s: %s", err.text, at);
    return v;
}

/* B-086: the stream does not just end. */
static void test_b086_response_failed(void **state)
{
    struct server_rig r;
    struct answer a;
    (void)state;
    open_poisoned(&r, (const char *const[]){ "one", " two", "!", NULL });
    http_post(&r, "/v1/responses", RESPONSES, &a);
    assert_int_equal(a.status, 200);
    json_t *v = last_event(&a);
    assert_string_equal(json_str_at(v, "type"), "response.failed");
    assert_string_equal(json_str_at(v, "response.status"), "failed");
    assert_string_equal(json_str_at(v, "response.error.code"), "server_error");
    assert_non_null(strstr(json_str_at(v, "response.error.message"), "non-finite"));
    assert_int_equal(json_int_at(v, "sequence_number") + 1, count(a.body, "event: "));
    assert_int_equal(count(a.body, "response.created"), 2); /* event line and type */
    json_decref(v);
    answer_free(&a);
    http_post(&r, "/v1/responses", "{\"input\":\"hi\"}", &a); /* without a stream: a status */
    assert_int_equal(a.status, 500);
    v = answer_json(&a);
    assert_non_null(strstr(json_str_at(v, "error.message"), "non-finite"));
    json_decref(v);
    answer_free(&a);
    srig_close(&r);
}

/* API-235, API-236 */
static void test_api235_error_frame(void **state)
{
    struct server_rig r;
    struct answer a;
    (void)state;
    open_poisoned(&r, (const char *const[]){ "one", " two", "!", NULL });
    http_post(&r, "/v1/messages", ANTHROPIC, &a);
    assert_int_equal(a.status, 200);
    json_t *v = last_event(&a);
    assert_int_equal(count(a.body, "event: error\ndata: {\"type\": \"error\", \"error\": {"), 1);
    assert_string_equal(json_str_at(v, "error.type"), "api_error");
    assert_int_equal(count(a.body, "message_stop"), 0);
    json_decref(v);
    answer_free(&a);
    srig_close(&r);
}

/* B-044, Q35: pings after message_start, none inside an event. */
static void test_b044_ping(void **state)
{
    struct server_rig r;
    struct answer a;
    (void)state;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, (const char *const[]){ "a", NULL });
    r.gen.so.step_delay_ms = 600;
    r.so.keepalive_ms = 50;
    r.so.shutdown_timeout_ms = 3000;
    srig_start(&r);
    http_post(&r, "/v1/messages", ANTHROPIC, &a);
    assert_true(count(a.body, "event: ping\ndata: {\"type\": \"ping\"}\n\n") >= 2);
    assert_true(strstr(a.body, "event: message_start") < strstr(a.body, "event: ping"));
    for (const char *p = a.body; *p; p = strstr(p, "\n\n") + 2) assert_true(*p == ':' || strncmp(p, "event: ", 7) == 0);
    answer_free(&a);
    http_post(&r, "/v1/responses", RESPONSES, &a);
    assert_true(count(a.body, ": keepalive") >= 1);
    answer_free(&a);
    srig_close(&r);
}

/* API-236, Q15: the form of errors by status. */
static void test_api236_forms(void **state)
{
    static const struct { mb_status code; int status; const char *type; } rows[] = {
        { MB_INVALID, 400, "invalid_request_error" }, { MB_NOT_FOUND, 404, "invalid_request_error" },
        { MB_TOO_LARGE, 413, "invalid_request_error" }, { MB_BUSY, 429, "api_error" }, { MB_ENGINE_DEAD, 503, "api_error" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf b;
        json_t *v;
        mb_error e = { .code = rows[i].code, .text = "why \"it\" failed" };
        buf_init(&b, 0);
        assert_int_equal(api_error_body_of(&b, &api_anthropic, &e), rows[i].status);
        assert_int_equal(json_read(&v, b.data, b.len, 0, NULL), MB_OK);
        assert_string_equal(json_str_at(v, "type"), "error");
        assert_string_equal(json_str_at(v, "error.type"), rows[i].type);
        assert_string_equal(json_str_at(v, "error.message"), "why \"it\" failed");
        json_decref(v);
        buf_free(&b);
    }
}

/* Fields and blocks of every wrong type: a 400 in the form of the path, never a crash. */
static void test_wrong_types(void **state)
{
    static const char *const values[] = { "null", "true", "1", "-1.5", "\"x\"", "[]", "{}", "[1]", "[null]", "[[]]", "[{}]",
        "{\"type\":1}", "{\"type\":\"x\"}", "[{\"type\":\"text\"}]", "[{\"type\":\"message\"}]", "[{\"role\":\"user\"}]" };
    static const char *const fields[] = { "messages", "system", "tools", "tool_choice", "thinking", "stop_sequences", "max_tokens",
        "output_config", "output_format", "stream", "input", "instructions", "text", "reasoning", "include", "metadata",
        "max_output_tokens", "previous_response_id", "store", "adapter", "hlg", "chat_template_kwargs" };
    static const char *const paths[] = { "/v1/messages", "/v1/messages/count_tokens", "/v1/responses" };
    struct server_rig r;
    struct answer a;
    char body[256];
    (void)state;
    srig_open(&r, (const char *const[]){ "ok", NULL });
    for (size_t p = 0; p < 3; p++)
        for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
            for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                snprintf(body, sizeof body, "{\"max_tokens\":2,\"max_output_tokens\":2,\"%s\":%s%s}", fields[f], values[v],
                         strcmp(fields[f], "messages") == 0 || strcmp(fields[f], "input") == 0 ? ""
                         : p == 2 ? ",\"input\":\"a\"" : ",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]");
                if (strncmp(fields[f], "max_", 4) == 0) /* no key twice */
                    snprintf(body, sizeof body, "{\"%s\":%s,\"input\":\"a\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", fields[f], values[v]);
                http_post(&r, paths[p], body, &a);
                if (a.status != 200 && a.status != 400 && a.status != 404) fail_msg("%s %s: %d", paths[p], body, a.status);
                json_t *j = a.status == 200 && strstr(body, "\"stream\":true") ? NULL : answer_json(&a);
                if (a.status != 200) {
                    assert_true(json_is_string(json_at(j, "error.message")));
                    assert_string_equal(json_str_at(j, "type"), p == 2 ? "(none)" : "error");
                }
                json_decref(j);
                answer_free(&a);
            }
    srig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b086_response_failed), cmocka_unit_test(test_api235_error_frame), cmocka_unit_test(test_b044_ping),
        cmocka_unit_test(test_api236_forms), cmocka_unit_test(test_wrong_types),
    };
    log_set_sink(rig_quiet, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
