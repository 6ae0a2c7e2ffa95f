/* openai_chat.c: POST /v1/chat/completions: messages, tools, thinking. Content arrays of text parts become one string
 * (what templates of text models read), `developer` is `system` (Q19), media parts are refused while no model has a
 * tower (API-022). Tool calls in the history go to the template. */
#include <stdio.h>
#include <string.h>

#include "api/api_int.h"

static mb_status bad(mb_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static mb_status bad(mb_error *err, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mb_fail_at(err, MB_INVALID, "messages", "%s", text);
}

/* --- content --- */
static mb_status part_text(const json_t *part, size_t i, size_t j, struct buf *out, mb_error *err)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!json_is_object(part) || !type) return bad(err, "messages[%zu].content[%zu] must be an object with a type", i, j);
    bool refusal = strcmp(type, "refusal") == 0; /* another model's, in a history that goes on here */
    const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
    if (refusal || strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0) {
        if (!json_is_text(text)) return bad(err, "messages[%zu].content[%zu].%s must be of type str", i, j, refusal ? type : "text");
        buf_append(out, json_string_value(text), json_string_length(text));
        return MB_OK;
    }
    static const char *const media[] = { "image_url", "input_image", "input_audio", "audio", "audio_url", "video_url", "video" };
    for (size_t k = 0; k < sizeof media / sizeof media[0]; k++)
        if (strcmp(type, media[k]) == 0)
            return bad(err, "messages[%zu].content[%zu]: this model takes no %s parts, only text", i, j, media[k]);
    return bad(err, "messages[%zu].content[%zu] has an unknown type; text is supported", i, j);
}

static mb_status content(json_t *m, size_t i, bool may_be_absent, mb_error *err)
{
    json_t *c = json_object_get(m, "content");
    if (json_is_text(c)) return MB_OK;
    if (!c || json_is_null(c)) {
        if (may_be_absent) return MB_OK;
        return bad(err, "messages[%zu].content must be a string or an array of parts", i);
    }
    if (!json_is_array(c)) return bad(err, "messages[%zu].content must be a string or an array of parts", i);
    struct buf b;
    mb_status st = MB_OK;
    buf_init(&b, 0);
    for (size_t j = 0; j < json_array_size(c) && st == MB_OK; j++) st = part_text(json_array_get(c, j), i, j, &b, err);
    if (st == MB_OK) st = buf_status(&b, "messages", err);
    if (st == MB_OK && json_object_set_new(m, "content", json_stringn(b.data ? b.data : "", b.len)) != 0)
        st = mb_fail(err, MB_NO_MEMORY, "no memory for messages");
    buf_free(&b);
    return st;
}

/* --- one message --- */
static mb_status tool_calls(json_t *m, size_t i, mb_error *err)
{
    json_t *calls = json_object_get(m, "tool_calls");
    if (!calls) return MB_OK;
    if (json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        json_object_del(m, "tool_calls"); /* none, however it is said */
        return MB_OK;
    }
    if (!json_is_array(calls)) return bad(err, "messages[%zu].tool_calls must be an array", i);
    for (size_t j = 0; j < json_array_size(calls); j++) {
        const json_t *call = json_array_get(calls, j), *fn = json_object_get(call, "function");
        if (!json_is_text(json_object_get(fn, "name")))
            return bad(err, "messages[%zu].tool_calls[%zu].function.name must be of type str", i, j);
        const json_t *args = json_object_get(fn, "arguments");
        mb_error why;
        if (!args || json_is_null(args) || json_is_object(args)) continue;
        if (!json_is_text(args))
            return bad(err, "messages[%zu].tool_calls[%zu].function.arguments must be of type str", i, j);
        if (!common_holds_object(args, &why))
            return bad(err, "messages[%zu].tool_calls[%zu].function.arguments must be a JSON object in a string%s%.120s", i, j,
                       why.text[0] ? ": " : "", why.text);
    }
    return MB_OK;
}

static mb_status message(json_t *m, size_t i, mb_error *err)
{
    static const char *const roles[] = { "system", "user", "assistant", "tool" };
    if (!json_is_object(m)) return bad(err, "messages[%zu] must be an object", i);
    const json_t *role_v = json_object_get(m, "role");
    const char *role = json_string_value(role_v);
    if (!role) return bad(err, "messages[%zu].role must be of type str", i);
    if (strcmp(role, "developer") == 0) {
        if (json_object_set_new(m, "role", json_string("system")) != 0) return mb_fail(err, MB_NO_MEMORY, "no memory for the request");
        role = "system";
    }
    size_t k = 0;
    while (k < 4 && strcmp(role, roles[k]) != 0) k++;
    if (k == 4 || (role_v && strlen(role) != strlen(roles[k])))
        return bad(err, "messages[%zu].role must be system, developer, user, assistant or tool", i);
    json_t *refusal = k == 2 && !field_get(m, "content") ? json_object_get(m, "refusal") : NULL; /* another model's: its text */
    if (json_is_text(refusal) && json_object_set(m, "content", refusal) != 0) return mb_fail(err, MB_NO_MEMORY, "no memory for the request");
    if (k == 2 && field_get(m, "function_call"))
        return mb_fail_at(err, MB_UNSUPPORTED, "messages", "messages[%zu].function_call is not supported; send tool_calls", i);
    MB_TRY(content(m, i, k == 2 || k == 3, err));
    json_t *alias = json_object_get(m, "reasoning");
    if (json_is_text(alias) && !json_object_get(m, "reasoning_content") && json_object_set(m, "reasoning_content", alias) != 0)
        return mb_fail(err, MB_NO_MEMORY, "no memory for the request");
    return k == 2 ? tool_calls(m, i, err) : MB_OK;
}

static mb_status messages(struct api_request *r, json_t *body, mb_error *err)
{
    json_t *list = json_object_get(body, "messages");
    if (!json_is_array(list)) return bad(err, "messages must be an array of messages");
    if (json_array_size(list) == 0) return bad(err, "messages must not be empty");
    for (size_t i = 0; i < json_array_size(list); i++) MB_TRY(message(json_array_get(list, i), i, err));
    return field_text(&r->messages, list, &r->gen.messages_json, err);
}

/* --- tools --- */
static mb_status check_tools(const json_t *tools, mb_error *err)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(t, "type"));
        if (type && strcmp(type, "function") != 0)
            return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].type must be \"function\"", i);
        if (!json_is_text(json_object_get(json_object_get(t, "function"), "name")))
            return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].function.name must be of type str", i);
    }
    return MB_OK;
}

/* allowed_tools: the others of the list are not there for this request. */
static mb_status keep_allowed(struct api_request *r, json_t *tools, const json_t *list, mb_error *err)
{
    struct allowed_tools allowed;
    MB_TRY(common_allowed_init(&allowed, r, list, err));
    for (size_t i = json_array_size(tools); i > 0; i--) {
        const json_t *name = json_object_get(json_object_get(json_array_get(tools, i - 1), "function"), "name");
        if (!common_allowed(&allowed, json_string_value(name))) json_array_remove(tools, i - 1);
    }
    return common_allowed_check(&allowed, err);
}

/* "auto", "none", "required", a mode for some of the tools, or one function by name. That allowed ones are among the tools is checked
 * here; that the named one is, where the tools are compiled. */
static mb_status tool_choice(struct api_request *r, json_t *list, const json_t *choice, mb_error *err)
{
    static const struct { const char *word; enum gen_tool_choice choice; } rows[] = {
        { "auto", TOOLS_AUTO }, { "none", TOOLS_NONE }, { "required", TOOLS_REQUIRED },
    };
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *word = json_string_value(choice);
    if (!choice) return MB_OK;
    if (type && strcmp(type, "allowed_tools") == 0) {
        const json_t *some = json_object_get(choice, "allowed_tools"), *allowed = json_object_get(some, "tools");
        if (!json_is_array(allowed))
            return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice.allowed_tools.tools must be of type list");
        MB_TRY(keep_allowed(r, list, allowed, err));
        word = json_string_value(json_object_get(some, "mode"));
        if (!word) word = "auto";
        choice = NULL;
    }
    for (size_t i = 0; word && i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(word, rows[i].word) == 0) {
            r->gen.tool_choice = rows[i].choice;
            return MB_OK;
        }
    const json_t *fn = json_object_get(choice, "function");
    const json_t *name = json_object_get(json_is_object(fn) ? fn : choice, "name");
    if (!json_is_object(choice) || !json_is_text(name))
        return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice must be \"auto\", \"none\", \"required\", a function or allowed_tools");
    r->gen.tool_choice = TOOLS_NAMED;
    r->gen.tool_name = json_string_value(name);
    return MB_OK;
}

/* Before tools there were functions; a client of those would wait for calls in a form that no answer has. */
static mb_status older_form(const json_t *body, mb_error *err)
{
    const char *word = json_string_value(field_get(body, "function_call"));
    const json_t *functions = field_get(body, "functions");
    if (functions && !json_is_array(functions)) return field_type_error("functions", "list", err);
    if (json_array_size(functions) > 0)
        return mb_fail_at(err, MB_UNSUPPORTED, "functions", "functions is not supported; send them as tools");
    if (field_get(body, "function_call") && !(word && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0)))
        return mb_fail_at(err, MB_UNSUPPORTED, "function_call", "function_call is not supported; send tool_choice");
    return MB_OK;
}

static mb_status tools(struct api_request *r, const json_t *body, mb_error *err)
{
    json_t *list = field_get(body, "tools");
    bool parallel = true;
    MB_TRY(older_form(body, err));
    if (list && !json_is_array(list)) return field_type_error("tools", "list", err);
    MB_TRY(check_tools(list, err));
    MB_TRY(field_bool(body, "parallel_tool_calls", &parallel, err));
    MB_TRY(tool_choice(r, list, field_get(body, "tool_choice"), err));
    if (!parallel) r->gen.parallel_tools = GIVEN_FALSE;
    return json_array_size(list) ? field_text(&r->tools, list, &r->gen.tools_json, err) : MB_OK;
}

/* thinking_budget, or vLLM's name for it: reasoning tokens after which the thought is closed. */
static mb_status thinking_budget(struct api_request *r, const json_t *body, mb_error *err)
{
    int64_t n = 0;
    MB_TRY(field_int(body, "thinking_token_budget", 1, INT32_MAX, &n, err));
    MB_TRY(field_int(body, "thinking_budget", 1, INT32_MAX, &n, err));
    r->gen.thinking_budget = (int32_t)n;
    return MB_OK;
}

static mb_status continuing(struct api_request *r, const json_t *body, const json_t *list, mb_error *err)
{
    bool cont = false;
    MB_TRY(field_bool(body, "continue_final_message", &cont, err));
    if (!cont) return MB_OK;
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") != 0)
        return mb_fail_at(err, MB_INVALID, "continue_final_message",
                          "continue_final_message needs an assistant message at the end of messages");
    r->gen.continue_final = GIVEN_TRUE;
    return MB_OK;
}

static mb_status compile(struct api_request *r, json_t *body, mb_error *err)
{
    r->gen.input = GEN_MESSAGES;
    MB_TRY(messages(r, body, err));
    MB_TRY(common_compile(r, body, err));
    MB_TRY(tools(r, body, err));
    MB_TRY(common_effort(r, field_get(body, "reasoning_effort"), "reasoning_effort", err));
    MB_TRY(common_template_kwargs(r, body, err));
    MB_TRY(thinking_budget(r, body, err));
    return continuing(r, body, json_object_get(body, "messages"), err);
}

const struct api_dialect api_openai_chat = {
    .name = "chat", .id_prefix = "chatcmpl-", .object = "chat.completion", .chunk_object = "chat.completion.chunk",
    .is_chat = true, .compile = compile, .renderer = &openai_renderer,
};
