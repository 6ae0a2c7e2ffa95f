/* parse_json.c: calls written as JSON objects: {"name": ..., "arguments": {...}} of the Hermes kind, with "parameters" of
 * Llama 3, the same wrapped in {"type": "function", "function": {...}}, one or several or an array of them; and Mistral's
 * two forms, an array of such objects and NAME[ARGS]{...}; and gpt-oss's messages to functions. */
#include <string.h>

#include "chat/tools/tools_int.h"

/* --- one object that is whole --- */
static json_t *decode_text(json_t *args)
{
    struct str s = { json_string_value(args), json_string_length(args) };
    return s.len ? json_part(s) : json_object();
}

static enum tool_parse add_object(struct tool_calls *out, const struct tool_set *set, const json_t *v, bool listed)
{
    const json_t *inner = json_object_get(v, "function");
    if (json_is_object(inner)) v = inner;
    const json_t *name = json_object_get(v, "name");
    if (!name && json_is_text(inner)) name = inner; /* {"function": "f", "parameters": {}} */
    json_t *args = json_object_get(v, "arguments");
    if (!args) args = json_object_get(v, "parameters");
    if (!json_is_text(name)) return PARSE_BAD;
    const char *s = json_string_value(name);
    size_t len = json_string_length(name);
    if (strlen(s) != len || (listed && !tool_set_find(set, s, len))) return PARSE_BAD;
    if (listed && !args) return PARSE_BAD; /* a bare object that happens to have a name is an answer */
    json_t *decoded = json_is_text(args) ? decode_text(args) : NULL;
    if (json_is_text(args) && !decoded) return PARSE_BAD;
    if (json_is_null(args)) args = NULL;
    enum tool_parse p = tool_calls_add(out, set, s, len, decoded ? decoded : args);
    json_decref(decoded);
    return p;
}

static enum tool_parse add_value(struct tool_calls *out, const struct tool_set *set, struct str text, bool listed)
{
    enum tool_parse p = PARSE_BAD;
    json_t *v = json_part(text);
    if (json_is_object(v)) p = add_object(out, set, v, listed);
    if (json_is_array(v) && json_array_size(v) > 0) {
        p = PARSE_OK;
        for (size_t i = 0; i < json_array_size(v) && p == PARSE_OK; i++) p = add_object(out, set, json_array_get(v, i), listed);
    }
    json_decref(v);
    return p;
}

/* Values one behind the other, with white space, commas or semicolons between. */
static enum tool_parse values(const struct tool_set *set, struct str body, bool closed, bool listed, struct tool_calls *out)
{
    size_t i = skip_space(body, 0);
    if (i == body.len) return closed ? PARSE_BAD : PARSE_MORE;
    while (i < body.len) {
        size_t from = i;
        if (body.ptr[i] != '{' && body.ptr[i] != '[') return PARSE_BAD;
        enum tool_parse p = json_skip(body, &i);
        if (p == PARSE_OK) p = add_value(out, set, str_sub(body, from, i), listed);
        if (p != PARSE_OK) return p;
        i = skip_space(body, i);
        if (i < body.len && (body.ptr[i] == ';' || body.ptr[i] == ',')) i = skip_space(body, i + 1);
    }
    return PARSE_OK;
}

enum tool_parse parse_json_calls(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    return values(set, body, closed, false, out);
}

/* The first key of a bare object tells early whether it can be a call. */
static enum tool_parse first_key(struct str body)
{
    static const char *const keys[] = { "\"name\"", "\"type\"", "\"function\"", "\"parameters\"", "\"arguments\"" };
    size_t i = skip_space(body, 1);
    enum tool_parse best = PARSE_BAD;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        enum tool_parse p = word_at(body, i, keys[k]);
        if (p < best) best = p;
    }
    return best;
}

enum tool_parse parse_llama_json(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    enum tool_parse p = first_key(body);
    return p == PARSE_BAD ? p : values(set, body, closed, true, out);
}

enum tool_parse parse_llama_tag(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    size_t i = skip_space(body, 0);
    if (i == body.len) return closed ? PARSE_BAD : PARSE_MORE;
    return body.ptr[i] == '{' || body.ptr[i] == '[' ? values(set, body, closed, false, out)
                                                    : parse_python(set, body, closed, out);
}

/* --- Mistral --- */

/* Behind the name: "[CALL_ID]id" and "[ARGS]", both may be absent. *i comes to stand at the arguments. */
static enum tool_parse mistral_signs(struct str body, size_t *i)
{
    enum tool_parse p = word_at(body, *i, "[CALL_ID]");
    if (p == PARSE_MORE) return p;
    if (p == PARSE_OK) *i = name_end(body, *i + strlen("[CALL_ID]"));
    p = word_at(body, *i, "[ARGS]");
    if (p == PARSE_MORE) return p;
    if (p == PARSE_OK) *i += strlen("[ARGS]");
    *i = skip_space(body, *i);
    if (*i == body.len) return PARSE_MORE;
    return body.ptr[*i] == '{' ? PARSE_OK : PARSE_BAD;
}

static enum tool_parse mistral_named(const struct tool_set *set, struct str body, size_t i, struct tool_calls *out)
{
    size_t from = i, end = name_end(body, i);
    if (end == body.len) return PARSE_MORE;
    i = skip_space(body, end);
    enum tool_parse p = end == from ? PARSE_BAD : mistral_signs(body, &i);
    size_t args_at = i;
    if (p == PARSE_OK) p = json_skip(body, &i);
    if (p != PARSE_OK) return p;
    json_t *args = json_part(str_sub(body, args_at, i));
    p = args ? tool_calls_add(out, set, body.ptr + from, end - from, args) : PARSE_BAD;
    json_decref(args);
    return p == PARSE_OK && skip_space(body, i) < body.len ? PARSE_BAD : p;
}

enum tool_parse parse_mistral(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    size_t i = skip_space(body, 0);
    if (i == body.len) return closed ? PARSE_BAD : PARSE_MORE;
    return body.ptr[i] == '[' || body.ptr[i] == '{' ? values(set, body, closed, false, out)
                                                    : mistral_named(set, body, i, out);
}

/* --- messages addressed to functions (chat/channels.c gives them this form) --- */

/* "commentary to=functions.NAME<|message|>": the name, and *i at the arguments. */
static enum tool_parse channels_head(struct str body, size_t *i, struct str *name)
{
    static const char before[] = "commentary to=functions.", behind[] = "<|message|>";
    enum tool_parse p = word_at(body, 0, before);
    if (p != PARSE_OK) return p;
    size_t from = sizeof before - 1, end = from;
    while (end < body.len && body.ptr[end] != '<') end++;
    p = end == from ? PARSE_BAD : word_at(body, end, behind);
    *name = str_sub(body, from, end);
    *i = skip_space(body, end + sizeof behind - 1);
    return end == body.len ? PARSE_MORE : p;
}

enum tool_parse parse_channels(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    struct str name;
    size_t i;
    enum tool_parse p = channels_head(body, &i, &name);
    if (p == PARSE_MORE && closed) return PARSE_BAD;
    if (p != PARSE_OK) return p;
    if (i == body.len) return closed ? tool_calls_add(out, set, name.ptr, name.len, NULL) : PARSE_MORE;
    size_t from = i;
    p = body.ptr[i] == '{' ? json_skip(body, &i) : PARSE_BAD;
    if (p != PARSE_OK) return p;
    json_t *args = json_part(str_sub(body, from, i));
    p = args && skip_space(body, i) == body.len ? tool_calls_add(out, set, name.ptr, name.len, args) : PARSE_BAD;
    json_decref(args);
    return p;
}

/* --- cut off --- */

/* Walks the members of the object at i: its name, and where its arguments begin. */
static bool walk_members(struct str body, size_t i, struct buf *name, struct buf *arguments)
{
    for (i++;;) {
        i = skip_space(body, i);
        if (i < body.len && body.ptr[i] == ',') i = skip_space(body, i + 1);
        size_t key = i;
        if (i >= body.len || body.ptr[i] != '"' || json_skip(body, &i) != PARSE_OK) return false;
        struct str k = str_sub(body, key, i);
        i = skip_space(body, i);
        if (i >= body.len || body.ptr[i] != ':') return false;
        i = skip_space(body, i + 1);
        bool is_args = str_eq(k, STR_LIT("\"arguments\"")) || str_eq(k, STR_LIT("\"parameters\""));
        if (str_eq(k, STR_LIT("\"function\"")) && i < body.len && body.ptr[i] == '{') return walk_members(body, i, name, arguments);
        if (is_args && name->len) {
            if (i >= body.len || body.ptr[i] != '{') return false;
            buf_append(arguments, body.ptr + i, body.len - i);
            return true;
        }
        size_t from = i;
        if (json_skip(body, &i) != PARSE_OK) return false;
        if (!str_eq(k, STR_LIT("\"name\""))) continue;
        json_t *v = json_part(str_sub(body, from, i));
        if (json_is_text(v)) buf_append(name, json_string_value(v), json_string_length(v));
        json_decref(v);
    }
}

bool partial_json(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    size_t i = skip_space(body, 0);
    (void)set;
    return i < body.len && body.ptr[i] == '{' && walk_members(body, i, name, arguments);
}

bool partial_mistral(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    size_t i = skip_space(body, 0), end = name_end(body, i), at = skip_space(body, end);
    (void)set;
    if (end == i || at >= body.len || mistral_signs(body, &at) != PARSE_OK) return false;
    buf_append(name, body.ptr + i, end - i);
    buf_append(arguments, body.ptr + at, body.len - at);
    return true;
}

bool partial_channels(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    struct str called;
    size_t i;
    (void)set;
    if (channels_head(body, &i, &called) != PARSE_OK || i >= body.len) return false;
    buf_append(name, called.ptr, called.len);
    buf_append(arguments, body.ptr + i, body.len - i);
    return true;
}
