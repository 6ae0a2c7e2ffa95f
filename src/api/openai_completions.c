/* openai_completions.c: POST /v1/completions: raw text in, raw text out (spec/api.md section 14). No template, the
 * tokenizer's own BOS rule, control tokens in the prompt are control tokens, no reasoning split. */
#include "api/api_int.h"

static mb_status compile(struct api_request *r, json_t *body, mb_error *err)
{
    const json_t *prompt = json_object_get(body, "prompt");
    if (!prompt) return mb_fail_at(err, MB_INVALID, "prompt", "prompt is required");
    if (!json_is_text(prompt)) return field_type_error("prompt", "str", err);
    const json_t *suffix = field_get(body, "suffix");
    if (suffix && !(json_is_text(suffix) && json_string_length(suffix) == 0))
        return mb_fail_at(err, MB_UNSUPPORTED, "suffix",
                          "suffix is not supported; write the marks that this model was trained to fill between into prompt");
    r->gen.input = GEN_TEXT;
    r->gen.text = (struct str){ json_string_value(prompt), json_string_length(prompt) };
    r->gen.raw_split = true;
    return common_compile(r, body, err);
}

const struct api_dialect api_openai_completions = {
    .name = "completions", .id_prefix = "cmpl-", .object = "text_completion", .chunk_object = "text_completion",
    .is_chat = false, .compile = compile, .renderer = &openai_renderer,
};
