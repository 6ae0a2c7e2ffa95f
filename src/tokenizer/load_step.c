/* load_step.c: the small readers that normalisers, pre-tokenisers, post-processors and decoders share.
 *
 * Each section of tokenizer.json is null, one step {"type": ..., ...}, or a Sequence of steps (nested sequences mean
 * the same as flat ones). Errors name the section and the key.
 */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

mb_status step_bad(mb_error *err, const char *section, const char *fmt, ...)
{
    char text[384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return mb_fail(err, MB_BAD_FORMAT, "tokenizer.json: %s: %s", section, text);
}

mb_status step_type(const json_t *j, const char *section, const char **type, mb_error *err)
{
    if (!json_is_object(j)) return step_bad(err, section, "expected an object or null");
    *type = json_string_value(json_object_get(j, "type"));
    if (!*type) return step_bad(err, section, "the key type is missing or not a string");
    return MB_OK;
}

mb_status step_bool(const json_t *j, const char *section, const char *key, bool dflt, bool *out, mb_error *err)
{
    const json_t *v = json_object_get(j, key);
    *out = dflt;
    if (!v || json_is_null(v)) return MB_OK;
    if (!json_is_boolean(v)) return step_bad(err, section, "%s must be true or false", key);
    *out = json_is_true(v);
    return MB_OK;
}

mb_status step_str(const json_t *j, const char *section, const char *key, struct arena *mem, struct str *out,
                   mb_error *err)
{
    const json_t *v = json_object_get(j, key);
    *out = (struct str){ 0 };
    if (!v || json_is_null(v)) return MB_OK;
    if (!json_is_string(v)) return step_bad(err, section, "%s must be a string", key);
    size_t n = json_string_length(v);
    char *copy = arena_alloc(mem, n + 1);
    if (!copy) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: %s: no memory", section);
    memcpy(copy, json_string_value(v), n);
    *out = (struct str){ copy, n };
    return MB_OK;
}

mb_status step_size(const json_t *j, const char *section, const char *key, size_t dflt, size_t *out, mb_error *err)
{
    const json_t *v = json_object_get(j, key);
    *out = dflt;
    if (!v || json_is_null(v)) return MB_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return step_bad(err, section, "%s must be an integer of at least 0", key);
    *out = (size_t)json_integer_value(v);
    return MB_OK;
}

mb_status step_pattern(const json_t *j, const char *section, struct arena *mem, struct pattern *out, mb_error *err)
{
    const json_t *p = json_object_get(j, "pattern");
    struct str text;
    *out = (struct pattern){ 0 };
    if (json_is_string(json_object_get(p, "Regex"))) {
        MB_TRY(step_str(p, section, "Regex", mem, &text, err));
        mb_status st = regex_open(&out->regex, text.ptr, text.len, err);
        if (st != MB_OK && err) mb_error_prefix(err, "tokenizer.json: %s: pattern", section);
        return st;
    }
    if (json_is_string(p)) MB_TRY(step_str(j, section, "pattern", mem, &text, err));
    else if (json_is_string(json_object_get(p, "String"))) MB_TRY(step_str(p, section, "String", mem, &text, err));
    else return step_bad(err, section, "pattern must hold String or Regex");
    if (text.len == 0) return regex_open(&out->regex, "", 0, err);
    out->literal = text;
    return MB_OK;
}

mb_status step_scheme(const json_t *j, const char *section, enum prepend_scheme *out, mb_error *err)
{
    const char *s = json_string_value(json_object_get(j, "prepend_scheme"));
    bool add;
    MB_TRY(step_bool(j, section, "add_prefix_space", true, &add, err));
    *out = add ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (!s || !add) return MB_OK;
    if (strcmp(s, "always") == 0) *out = PREPEND_ALWAYS;
    else if (strcmp(s, "first") == 0) *out = PREPEND_FIRST;
    else if (strcmp(s, "never") == 0) *out = PREPEND_NEVER;
    else return step_bad(err, section, "prepend_scheme must be always, first or never");
    return MB_OK;
}

/* Nesting is bounded by the JSON reader's depth limit; the step count by TOKENIZER_MAX_STEPS. */
static mb_status walk(const json_t *j, const char *section, const char *key, step_fn one, void *ctx, size_t *n,
                      mb_error *err)
{
    const char *type;
    MB_TRY(step_type(j, section, &type, err));
    if (strcmp(type, "Sequence") != 0) {
        if (++*n > TOKENIZER_MAX_STEPS)
            return mb_fail(err, MB_TOO_LARGE, "tokenizer.json: %s: more than %d steps", section, TOKENIZER_MAX_STEPS);
        return one(ctx, j, type, err);
    }
    const json_t *list = json_object_get(j, key), *step;
    size_t i;
    if (!json_is_array(list)) return step_bad(err, section, "Sequence: the list %s is missing", key);
    json_array_foreach(list, i, step) MB_TRY(walk(step, section, key, one, ctx, n, err));
    return MB_OK;
}

mb_status step_walk(const json_t *j, const char *section, const char *key, step_fn one, void *ctx, mb_error *err)
{
    size_t n = 0;
    if (!j || json_is_null(j)) return MB_OK;
    return walk(j, section, key, one, ctx, &n, err);
}
