/* renderer.c: opens what rendering needs of a model directory: tokenizer, templates, special tokens for templates, reasoning
 * markers. A gen_engine has one; show-prompt opens one alone, so that no weights are touched. The rendering is render.c.
 */
#include <string.h>

#include "gen/gen_int.h"

/* Special tokens by name, for templates that use more than bos and eos. */
static mb_status read_special_tokens(struct gen_renderer *t, const json_t *tc, mb_error *err)
{
    static const char *const names[] = { "unk_token", "sep_token", "pad_token", "cls_token", "mask_token" };
    t->special_tokens = json_object();
    for (size_t i = 0; t->special_tokens && i < sizeof names / sizeof names[0]; i++) {
        json_t *v = json_object_get(tc, names[i]);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (json_is_string(v)) json_object_set(t->special_tokens, names[i], v);
    }
    return t->special_tokens ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for special tokens");
}

static bool has_token(void *ctx, const char *text)
{
    const struct gen_renderer *t = ctx;
    int32_t id = tokenizer_id(t->tok, text, strlen(text));
    return id >= 0 && tokenizer_is_added(t->tok, id);
}

/* Markers are tokens when all of them are. */
static void find_signs(struct gen_renderer *t)
{
    const char *sign;
    size_t n = 0;
    for (; (sign = reasoning_sign(t->tags, n)) != NULL; n++) {
        if (!has_token(t, sign)) return;
        t->sign_ids[n] = tokenizer_id(t->tok, sign, strlen(sign));
    }
    t->n_sign_ids = (int32_t)n;
    t->open_id = tokenizer_id(t->tok, t->tags->open, strlen(t->tags->open));
    t->close_id = tokenizer_id(t->tok, t->tags->close, strlen(t->tags->close));
}

static void find_markers(struct gen_renderer *t)
{
    const char *source = t->templates.tool_use ? t->templates.source_of_tool_use : t->templates.source_of_default;
    t->family = tool_family_pick(source, has_token, t);
    t->tags = reasoning_tags_pick(t->templates.source_of_default, has_token, t, &t->tags_named);
    t->open_id = t->close_id = -1;
    find_signs(t);
}

/* tokenizer_config.json as the tokenizer kept it; *out NULL: there is none. */
static mb_status read_config(const struct gen_renderer *t, json_t **out, mb_error *err)
{
    size_t len;
    const char *text = tokenizer_config_text(t->tok, &len);
    *out = NULL;
    return len ? json_read(out, text, len, JSON_READ_DEFAULT, err) : MB_OK;
}

mb_status gen_renderer_open(struct gen_renderer **out, const char *model_dir, const char *cache_dir, enum given_bool thinking,
                            mb_error *err)
{
    struct gen_renderer *t = mb_calloc(1, sizeof *t);
    json_t *config = NULL;
    mb_status st;
    *out = NULL;
    if (!t) return mb_fail(err, MB_NO_MEMORY, "no memory for the tokenizer and templates");
    t->thinking = thinking;
    MB_TRY_GOTO(st, tokenizer_open_cached(&t->tok, model_dir, cache_dir, err), failed);
    MB_TRY_GOTO(st, read_config(t, &config, err), failed);
    MB_TRY_GOTO(st, chat_templates_open_with(&t->templates, model_dir, config, err), failed);
    MB_TRY_GOTO(st, read_special_tokens(t, config, err), failed);
    json_decref(config);
    find_markers(t);
    *out = t;
    return MB_OK;
failed:
    json_decref(config);
    gen_renderer_close(t);
    return st;
}

void gen_renderer_close(struct gen_renderer *t)
{
    if (!t) return;
    chat_templates_close(&t->templates);
    tokenizer_close(t->tok);
    json_decref(t->special_tokens);
    mb_free(t);
}
