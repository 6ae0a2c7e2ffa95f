/* anthropic.c: POST /v1/messages (spec/api.md section 15) and count_tokens: the fields. Blocks are read by
 * anthropic_blocks.c, answers written by anthropic_render.c.
 *
 * Unknown fields are ignored, and named in the debug log (B-082). max_tokens may be missing (Q31); 0 fills the prefix
 * cache and answers nothing (B-032); above the context it is clamped. logit_bias is not of this protocol (API-229). */
#include <string.h>

#include "api/anthropic_int.h"
#include "base/log.h"

/* --- tools --- */
/* "custom" or no type: a function. Any other type is a tool that the vendor's servers run: dropped (API-226). */
static bool is_function(const json_t *tool)
{
    const char *type = json_string_value(field_get(tool, "type"));
    return !type || strcmp(type, "custom") == 0;
}

static mb_status tool_list(struct api_request *r, const json_t *list, size_t *n, mb_error *err)
{
    *n = 0;
    buf_append_char(&r->tools, '[');
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *tool = json_array_get(list, i), *schema = field_get(tool, "input_schema"), *name = json_object_get(tool, "name");
        if (!json_is_object(tool)) return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu] must be an object", i);
        if (!is_function(tool)) continue;
        if (!json_is_text(name)) return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].name must be of type str", i);
        if (schema && !json_is_object(schema))
            return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].input_schema must be of type dict", i);
        common_put_function(&r->tools, tool, (struct str){ json_string_value(name), json_string_length(name) }, "input_schema");
        ++*n;
    }
    buf_append_char(&r->tools, ']');
    return buf_status(&r->tools, "tools", err);
}

static bool has_tool(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *tool = json_array_get(list, i);
        const char *s = json_string_value(json_object_get(tool, "name"));
        if (s && is_function(tool) && strcmp(s, name) == 0) return true;
    }
    return false;
}

static mb_status tool_choice(struct api_request *r, const json_t *choice, const json_t *list, size_t n_tools, mb_error *err)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    bool single = false;
    if (!choice) return MB_OK;
    if (!type) return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice must be an object with a type");
    MB_TRY(field_bool(choice, "disable_parallel_tool_use", &single, err));
    if (single) r->gen.parallel_tools = GIVEN_FALSE;
    if (strcmp(type, "auto") == 0) return MB_OK;
    if (strcmp(type, "none") == 0) {
        r->gen.tool_choice = TOOLS_NONE;
        return MB_OK;
    }
    bool any = strcmp(type, "any") == 0;
    if (!any && strcmp(type, "tool") != 0)
        return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice.type must be auto, any, tool or none");
    if (n_tools == 0) return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice %s needs tools, and there are none", type);
    if (!any) {
        MB_TRY(field_str(choice, "name", &r->gen.tool_name, err));
        if (!r->gen.tool_name || !has_tool(list, r->gen.tool_name))
            return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice.name must be the name of one of the tools");
    }
    r->gen.tool_choice = any ? TOOLS_REQUIRED : TOOLS_NAMED;
    return MB_OK;
}

static mb_status tools(struct api_request *r, const json_t *body, mb_error *err)
{
    const json_t *list = field_get(body, "tools");
    size_t n = 0;
    if (list && !json_is_array(list)) return field_type_error("tools", "list", err);
    MB_TRY(tool_list(r, list, &n, err));
    MB_TRY(tool_choice(r, field_get(body, "tool_choice"), list, n, err));
    if (n > 0 && r->gen.tool_choice != TOOLS_NONE) r->gen.tools_json = r->tools.data;
    return MB_OK;
}

/* --- thinking, effort, structured output --- */
/* enabled and disabled are the switch of API-132; adaptive leaves the choice to the server's flag and the model. */
static mb_status thinking(struct api_request *r, const json_t *body, mb_error *err)
{
    const json_t *v = field_get(body, "thinking");
    const char *type = json_string_value(json_object_get(v, "type"));
    int64_t budget = 0;
    if (!v) return MB_OK;
    if (!type) return mb_fail_at(err, MB_INVALID, "thinking", "thinking must be an object with a type");
    if (strcmp(type, "disabled") == 0) {
        r->gen.thinking = GIVEN_FALSE;
        return MB_OK;
    }
    bool enabled = strcmp(type, "enabled") == 0;
    if (!enabled && strcmp(type, "adaptive") != 0)
        return mb_fail_at(err, MB_INVALID, "thinking", "thinking.type must be enabled, adaptive or disabled");
    if (enabled) r->gen.thinking = GIVEN_TRUE;
    mb_status st = field_int(v, "budget_tokens", 1, INT32_MAX, &budget, err);
    if (st != MB_OK) return mb_fail_at(err, st, "thinking", "thinking.budget_tokens must be of type int and at least 1");
    r->gen.thinking_budget = (int32_t)budget;
    return MB_OK;
}

/* output_config.format, and output_format as earlier clients spell it. */
static mb_status format(struct api_request *r, const json_t *body, mb_error *err)
{
    const json_t *config = field_get(body, "output_config");
    if (config && !json_is_object(config)) return field_type_error("output_config", "dict", err);
    MB_TRY(common_constraints(r, body, err));
    MB_TRY(common_format(r, field_get(body, "output_format"), "output_format", err));
    return common_format(r, field_get(config, "format"), "output_config", err);
}

/* --- all --- */
static mb_status limits(struct api_request *r, const json_t *body, mb_error *err)
{
    struct anthropic_extra *x = r->priv;
    r->gen.n_choices = 1;
    r->gen.max_tokens = -1;
    MB_TRY(common_token_limit(r, body, "max_tokens", 0, err));
    x->warm_up = r->gen.max_tokens == 0;
    if (x->warm_up) r->gen.max_tokens = 1; /* computes the whole prompt; the renderer keeps what is drawn to itself */
    return MB_OK;
}

static mb_status history(struct api_request *r, const json_t *body, mb_error *err)
{
    struct conversation c;
    bool prefill = false;
    conversation_init(&c);
    mb_status st = anthropic_history(r, body, &c, &prefill, err);
    if (st == MB_OK) st = conversation_finish(&c, &r->messages, &r->gen.messages_json, err);
    conversation_free(&c);
    r->gen.input = GEN_MESSAGES;
    if (prefill) r->gen.continue_final = GIVEN_TRUE;
    return st;
}

static void note_unknown(const json_t *body)
{
    static const char *const known[] = { "model", "messages", "system", "max_tokens", "stream", "temperature", "top_p", "top_k",
        "stop_sequences", "tools", "tool_choice", "thinking", "metadata", "output_config", "output_format", "min_p", "seed",
        "xtc_probability", "xtc_threshold", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "repetition_context_size", "presence_context_size", "frequency_context_size", "adapter", "adapters", "hlg",
        "chat_template_kwargs" };
    const char *key;
    json_t *v;
    if (log_get_level() < LOG_DEBUG) return;
    json_object_foreach((json_t *)(uintptr_t)body, key, v) {
        size_t k = 0;
        while (k < sizeof known / sizeof known[0] && strcmp(known[k], key) != 0) k++;
        if (k == sizeof known / sizeof known[0]) LOGD("anthropic", "field %.64s is ignored", key);
    }
}

static mb_status compile(struct api_request *r, json_t *body, mb_error *err)
{
    r->priv = mb_calloc(1, sizeof(struct anthropic_extra));
    if (!r->priv) return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    note_unknown(body);
    MB_TRY(history(r, body, err));
    MB_TRY(field_bool(body, "stream", &r->stream, err));
    MB_TRY(limits(r, body, err));
    MB_TRY(common_quality(r, body, err));
    MB_TRY(common_stops(r, body, "stop_sequences", err));
    MB_TRY(tools(r, body, err));
    MB_TRY(thinking(r, body, err));
    MB_TRY(common_template_kwargs(r, body, err));
    return format(r, body, err);
}

static void release(struct api_request *r)
{
    mb_free(r->priv);
}

/* API-236, Q36: two types, and the one of API-365. A prompt that is too long is said in the words that clients look for before they compact. */
static void error_body(struct buf *out, int http_status, const char *type, const char *code, const char *param,
                       const char *message)
{
    bool too_long = code && strcmp(code, "context_length_exceeded") == 0;
    (void)type;
    (void)param;
    buf_printf(out, "{\"type\": \"error\", \"error\": {\"type\": \"%s\", \"message\": ",
               http_status == 502 ? "engine_unavailable" : http_status == 429 || http_status > 499 ? "api_error" : "invalid_request_error");
    struct buf text;
    buf_init(&text, 0);
    if (too_long) buf_append_str(&text, "prompt is too long: ");
    buf_append_str(&text, message);
    json_write_string(out, text.data ? text.data : "", text.len);
    buf_free(&text);
    buf_append_str(out, "}}");
}

const struct api_dialect api_anthropic = {
    .name = "anthropic", .id_prefix = "msg_", .compile = compile, .release = release, .renderer = &anthropic_renderer,
    .error_body = error_body,
};

mb_status api_anthropic_count(struct buf *out, const struct api_env *env, const char *body, size_t len, mb_error *err)
{
    struct api_request *r;
    int32_t n = 0;
    MB_TRY(api_request_open(&r, &api_anthropic, env, body, len, err));
    mb_status st = env->client->count(env->client->ctx, &r->gen, &n, err);
    api_request_close(r);
    if (st != MB_OK) return st;
    buf_printf(out, "{\"input_tokens\": %d}", (int)n);
    return buf_status(out, "answer", err);
}
