/* families.c: the table of markups and of the families that use them (API-140 to API-144). A new family is a row; a new
 * markup a row and, if its body is really new, a parser. Rows are tried in order; a template decides before a token does.
 */
#include <string.h>

#include "chat/tools/tools_int.h"

/* --- markups --- */
static const struct tool_markup TOOL_CALL = { .open = "<tool_call>", .close = "</tool_call>", .parse = parse_tool_call_tag,
                                              .partial = partial_tool_call_tag };
static const struct tool_markup FUNCTION_EQ = { .open = "<function=", .close = "</function>", .open_is_body = true,
                                                .parse = parse_qwen_xml, .partial = partial_qwen_xml };
static const struct tool_markup FUNCTION_ATTR = { .open = "<function name=", .close = "</function>", .open_is_body = true,
                                                  .parse = parse_function_attr, .partial = partial_function_attr };
static const struct tool_markup INVOKE = { .open = "<invoke name=", .close = "</invoke>", .open_is_body = true,
                                           .parse = parse_invoke, .partial = partial_invoke };
static const struct tool_markup GEMMA = { .open = "<|tool_call>", .close = "<tool_call|>", .parse = parse_gemma };
static const struct tool_markup MISTRAL = { .open = "[TOOL_CALLS]", .end = END_BRACKETS, .parse = parse_mistral,
                                            .partial = partial_mistral };
static const struct tool_markup LLAMA_TAG = { .open = "<|python_tag|>", .end = END_BRACKETS, .parse = parse_llama_tag,
                                              .partial = partial_json };
static const struct tool_markup LLAMA_BARE = { .open = "{", .end = END_BRACKETS, .open_is_body = true, .at_start = true,
                                               .parse = parse_llama_json, .partial = partial_json };
static const struct tool_markup PYTHON_TAG = { .open = "<|python_start|>", .close = "<|python_end|>", .parse = parse_python };
static const struct tool_markup LFM2_TAG = { .open = "<|tool_call_start|>", .close = "<|tool_call_end|>", .parse = parse_python };
static const struct tool_markup PYTHON_BARE = { .open = "[", .end = END_BRACKETS, .open_is_body = true, .at_start = true,
                                                .parse = parse_python_listed };
static const struct tool_markup CHANNELS = { .open = "<|channel|>", .close = "<|call|>", .in_code = true, .parse = parse_channels,
                                             .partial = partial_channels };

/* --- families --- */
static const struct tool_family FAMILIES[] = {
    { "channels", "<|channel|>", "<|message|>", false, { &CHANNELS }, STYLE_CHANNELS },
    { "gemma", "<|tool_call>", NULL, true, { &GEMMA }, STYLE_GEMMA },
    { "mistral-args", "[ARGS]", "[TOOL_CALLS]", true, { &MISTRAL }, STYLE_MISTRAL_ARGS },
    { "mistral", "[TOOL_CALLS]", NULL, true, { &MISTRAL }, STYLE_MISTRAL_LIST },
    { "minicpm", "<function name=", NULL, false, { &FUNCTION_ATTR, &TOOL_CALL }, STYLE_ATTR_XML },
    { "lfm2", "<|tool_call_start|>", NULL, true, { &LFM2_TAG }, STYLE_PYTHON },
    { "llama4", "<|python_start|>", NULL, true, { &PYTHON_TAG, &PYTHON_BARE, &LLAMA_BARE }, STYLE_PYTHON },
    { "llama", "<|python_tag|>", NULL, true, { &LLAMA_TAG, &LLAMA_BARE, &PYTHON_BARE }, STYLE_LLAMA },
    { "llama", "ipython", "\"parameters\"", false, { &LLAMA_TAG, &LLAMA_BARE, &PYTHON_BARE }, STYLE_LLAMA },
    { "glm", "<arg_key>", NULL, true, { &TOOL_CALL }, STYLE_GLM },
    { "qwen-xml", "<function=", NULL, false, { &TOOL_CALL, &FUNCTION_EQ }, STYLE_QWEN_XML },
    { "invoke", "<invoke name=", NULL, false, { &INVOKE, &TOOL_CALL }, STYLE_HERMES },
    { "hermes", "<tool_call>", NULL, true, { &TOOL_CALL }, STYLE_HERMES },
    { "any", NULL, NULL, false, { &TOOL_CALL, &FUNCTION_EQ, &FUNCTION_ATTR, &INVOKE, &GEMMA, &MISTRAL, &LLAMA_TAG, &PYTHON_TAG,
                                  &LFM2_TAG }, STYLE_HERMES },
};
enum { N_FAMILIES = sizeof FAMILIES / sizeof FAMILIES[0] };

static bool names(const char *source, const struct tool_family *f)
{
    return source && f->sign && strstr(source, f->sign) && (!f->sign_too || strstr(source, f->sign_too));
}

const struct tool_family *tool_family_pick(const char *template_source, bool (*has_token)(void *ctx, const char *text), void *ctx)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (names(template_source, &FAMILIES[i])) return &FAMILIES[i];
    for (size_t i = 0; has_token && i < N_FAMILIES; i++)
        if (FAMILIES[i].token && has_token(ctx, FAMILIES[i].sign)) return &FAMILIES[i];
    return &FAMILIES[N_FAMILIES - 1];
}

const struct tool_family *tool_family_named(const char *name)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strcmp(FAMILIES[i].name, name) == 0) return &FAMILIES[i];
    return NULL;
}

const char *tool_family_name(const struct tool_family *f)
{
    return f->name;
}

bool tool_family_has_bare(const struct tool_family *f)
{
    for (size_t k = 0; k < TOOL_MAX_MARKUPS && f->markups[k]; k++)
        if (f->markups[k]->at_start) return true;
    return false;
}

const char *tool_family_sign(const struct tool_family *f, size_t i)
{
    for (size_t k = 0; k < TOOL_MAX_MARKUPS && f->markups[k]; k++)
        if (!f->markups[k]->at_start && i-- == 0) return f->markups[k]->open;
    return NULL;
}
