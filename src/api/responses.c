/* responses.c: POST /v1/responses (spec/api.md section 16): the fields, and what the response object repeats of them.
 * Items are read by responses_input.c, tools by responses_tools.c, answers written by responses_render.c, stored ones
 * returned by responses_stored.c. */
#include <string.h>

#include "api/responses_int.h"

/* --- what this server cannot do, and what it would lose in silence --- */
static mb_status refusals(const json_t *body, mb_error *err)
{
    static const char *const names[] = { "conversation", "prompt" };
    bool background = false;
    MB_TRY(field_bool(body, "background", &background, err));
    if (background) return mb_fail_at(err, MB_UNSUPPORTED, "background", "background responses are not supported; stream instead");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (field_get(body, names[i]))
            return mb_fail_at(err, MB_UNSUPPORTED, names[i], "%s is not supported: nothing of that name is kept here; send the "
                              "items in input, or name a previous_response_id", names[i]);
    return MB_OK;
}

static mb_status options(struct api_request *r, const json_t *body, mb_error *err)
{
    struct responses_extra *x = r->priv;
    const json_t *include = field_get(body, "include"), *metadata = field_get(body, "metadata");
    x->store = true;
    MB_TRY(field_bool(body, "store", &x->store, err));
    MB_TRY(field_bool(body, "stream", &r->stream, err));
    if (!r->env->store) x->store = false;
    if (metadata && !json_is_object(metadata)) return field_type_error("metadata", "dict", err);
    if (include && !json_is_array(include)) return field_type_error("include", "list", err);
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *s = json_string_value(json_array_get(include, i));
        if (s && strcmp(s, "reasoning.encrypted_content") == 0) x->want_sealed = true;
    }
    return MB_OK;
}

static mb_status reasoning(struct api_request *r, const json_t *body, mb_error *err)
{
    struct responses_extra *x = r->priv;
    const json_t *v = field_get(body, "reasoning"), *summary = field_get(v, "summary");
    if (!summary) summary = field_get(v, "generate_summary"); /* its older name */
    if (v && !json_is_object(v)) return field_type_error("reasoning", "dict", err);
    if (summary && !json_is_text(summary))
        return mb_fail_at(err, MB_INVALID, "reasoning", "reasoning.summary must be auto, concise or detailed");
    x->want_summary = summary && strcmp(json_string_value(summary), "none") != 0;
    MB_TRY(common_effort(r, field_get(v, "effort"), "reasoning.effort", err));
    return common_template_kwargs(r, body, err);
}

static mb_status format(struct api_request *r, const json_t *body, mb_error *err)
{
    const json_t *v = field_get(body, "text");
    if (v && !json_is_object(v)) return field_type_error("text", "dict", err);
    MB_TRY(common_constraints(r, body, err));
    return common_format(r, field_get(v, "format"), "text.format", err);
}

/* --- the echo --- */
static void echo(struct buf *b, const char *name, const json_t *v, const char *dflt)
{
    const struct json_write_opts opts = { .python_spaces = true };
    buf_printf(b, ", \"%s\": ", name);
    if (v) json_write(b, v, &opts);
    else buf_append_str(b, dflt);
}

static mb_status make_echo(struct api_request *r, const json_t *body, mb_error *err)
{
    static const struct { const char *name, *dflt; } fields[] = {
        { "max_output_tokens", "null" }, { "max_tool_calls", "null" }, { "metadata", "{}" }, { "parallel_tool_calls", "true" },
        { "previous_response_id", "null" }, { "prompt_cache_key", "null" }, { "safety_identifier", "null" },
        { "service_tier", "null" }, { "temperature", "null" }, { "tool_choice", "\"auto\"" }, { "tools", "[]" },
        { "top_p", "null" }, { "truncation", "\"disabled\"" }, { "user", "null" },
    };
    struct responses_extra *x = r->priv;
    const json_t *reasoning_v = field_get(body, "reasoning"), *text = field_get(body, "text");
    struct buf *b = &x->echo;
    buf_append_str(b, ", \"instructions\": ");
    if (x->instructions.len) json_write_string(b, x->instructions.data, x->instructions.len);
    else buf_append_str(b, "null");
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) echo(b, fields[i].name, field_get(body, fields[i].name), fields[i].dflt);
    buf_append_str(b, ", \"reasoning\": {\"effort\": ");
    const struct json_write_opts opts = { .python_spaces = true };
    json_t *null = json_null();
    json_write(b, field_get(reasoning_v, "effort") ? field_get(reasoning_v, "effort") : null, &opts);
    echo(b, "summary", field_get(reasoning_v, "summary"), "null");
    buf_append_str(b, "}, \"text\": {\"format\": ");
    if (field_get(text, "format")) json_write(b, field_get(text, "format"), &opts);
    else buf_append_str(b, "{\"type\": \"text\"}");
    if (field_get(text, "verbosity")) echo(b, "verbosity", field_get(text, "verbosity"), "null");
    buf_printf(b, "}, \"store\": %s", x->store ? "true" : "false");
    return buf_status(b, "request", err);
}

/* --- all --- */
static mb_status compile(struct api_request *r, json_t *body, mb_error *err)
{
    struct responses_extra *x = r->priv = mb_calloc(1, sizeof *x);
    if (!x) return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    buf_init(&x->echo, 0);
    buf_init(&x->input, 0);
    buf_init(&x->instructions, 0);
    r->gen.n_choices = 1;
    r->gen.max_tokens = -1;
    MB_TRY(refusals(body, err));
    MB_TRY(options(r, body, err));
    MB_TRY(responses_input(r, body, err));
    MB_TRY(common_token_limit(r, body, "max_output_tokens", 1, err));
    MB_TRY(common_quality(r, body, err));
    MB_TRY(common_logit_bias(r, body, err));
    MB_TRY(responses_tools(r, body, err));
    MB_TRY(reasoning(r, body, err));
    MB_TRY(format(r, body, err));
    return make_echo(r, body, err);
}

static void release(struct api_request *r)
{
    struct responses_extra *x = r->priv;
    if (!x) return;
    buf_free(&x->echo);
    buf_free(&x->input);
    buf_free(&x->instructions);
    json_decref(x->names);
    mb_free(x);
}

const struct api_dialect api_responses = {
    .name = "responses", .id_prefix = "resp_", .compile = compile, .release = release, .renderer = &responses_renderer,
};
