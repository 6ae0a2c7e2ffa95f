/* parse_xml.c: calls written with tags: Qwen3.5's <function=NAME><parameter=KEY>VALUE</parameter></function>, MiniCPM5's
 * <function name="NAME"><param name="KEY">VALUE</param></function> with CDATA, the same as <invoke>/<parameter>, GLM's
 * NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>; and <tool_call>, whose body is one of these or JSON.
 * A value ends at its closing tag when another parameter or the end of the call stands behind it, so that a value may hold
 * any tag. One line break at either side of a value belongs to the markup. */
#include <string.h>

#include "chat/tools/tools_int.h"

struct xml_style {
    const char *function, *parameter;       /* opening words, up to the name */
    const char *end_parameter, *end_function;
    bool attribute;                          /* name="..." */
};
static const struct xml_style QWEN = { "<function=", "<parameter=", "</parameter>", "</function>", false };
static const struct xml_style MINICPM = { "<function", "<param", "</param>", "</function>", true };
static const struct xml_style INVOKE = { "<invoke", "<parameter", "</parameter>", "</invoke>", true };

/* What a reader has found of a call. */
struct xml_call {
    struct str name;
    json_t *arguments;      /* owned */
    struct str open_key, open_value; /* a parameter that has begun and has not ended */
    bool cdata;
};

/* --- tags --- */

/* <word name="N"> or <word=N> at *i. */
static enum tool_parse open_tag(const struct xml_style *x, const char *word, struct str s, size_t *i, struct str *name)
{
    enum tool_parse p = word_at(s, *i, word);
    if (p != PARSE_OK) return p;
    size_t k = *i + strlen(word), from;
    char quote = 0;
    if (x->attribute) {
        size_t at = skip_space(s, k);
        if (at < s.len && at == k) return PARSE_BAD;
        p = word_at(s, at, "name=");
        if (p != PARSE_OK) return p;
        k = at + strlen("name=");
        if (k >= s.len) return PARSE_MORE;
        quote = s.ptr[k++];
        if (quote != '"' && quote != '\'') return PARSE_BAD;
    }
    for (from = k; k < s.len && s.ptr[k] != (quote ? quote : '>'); k++)
        if (s.ptr[k] == '\n' || s.ptr[k] == '<' || k - from > 256) return PARSE_BAD;
    *name = str_trim(str_sub(s, from, k));
    if (quote) k = skip_space(s, k + 1);
    if (k >= s.len) return PARSE_MORE;
    if (s.ptr[k] != '>' || name->len == 0) return PARSE_BAD;
    *i = k + 1;
    return PARSE_OK;
}

/* --- values --- */
static struct str without_breaks(struct str v)
{
    if (v.len && v.ptr[0] == '\n') v.ptr++, v.len--;
    if (v.len && v.ptr[v.len - 1] == '\n') v.len--;
    return v;
}

/* Does what may follow a parameter stand at i? */
static enum tool_parse after_value(struct str s, size_t i, const char *next, const char *end)
{
    i = skip_space(s, i);
    if (i == s.len) return PARSE_MORE;
    enum tool_parse a = word_at(s, i, next), b = end ? word_at(s, i, end) : PARSE_BAD;
    return a < b ? a : b;
}

/* A value at *i up to `close`. end NULL: the end of s is the end of the call (when closed). */
static enum tool_parse take_value(struct str s, size_t *i, const char *close, const char *next, const char *end, bool closed,
                                  struct str *v)
{
    for (size_t at = find_word(s, *i, close); at < s.len; at = find_word(s, at + 1, close)) {
        size_t behind = at + strlen(close);
        enum tool_parse p = after_value(s, behind, next, end);
        if (p == PARSE_MORE && closed && !end && skip_space(s, behind) == s.len) p = PARSE_OK;
        if (p == PARSE_MORE) return p;
        if (p == PARSE_BAD) continue;
        *v = str_sub(s, *i, at);
        *i = behind;
        return PARSE_OK;
    }
    return PARSE_MORE;
}

static enum tool_parse take_cdata(struct str s, size_t *i, const char *close, struct str *v)
{
    size_t from = skip_space(s, *i) + strlen("<![CDATA[");
    for (size_t at = find_word(s, from, "]]>"); at < s.len; at = find_word(s, at + 1, "]]>")) {
        size_t k = skip_space(s, at + 3);
        enum tool_parse p = k == s.len ? PARSE_MORE : word_at(s, k, close);
        if (p == PARSE_MORE) return p;
        if (p == PARSE_BAD) continue;
        *v = str_sub(s, from, at);
        *i = k + strlen(close);
        return PARSE_OK;
    }
    return PARSE_MORE;
}

static enum tool_parse put_argument(struct xml_call *c, const struct tool_set *set, struct str key, struct str value)
{
    char name[260];
    if (key.len >= sizeof name) return PARSE_BAD;
    memcpy(name, key.ptr, key.len);
    name[key.len] = '\0';
    json_t *v = value_from_text(tool_set_find(set, c->name.ptr, c->name.len), name, value);
    return v && json_object_setn_new(c->arguments, name, key.len, v) == 0 ? PARSE_OK : PARSE_BAD;
}

static enum tool_parse parameter(const struct xml_style *x, const struct tool_set *set, struct str s, size_t *i, struct xml_call *c)
{
    struct str key, v = { 0 };
    enum tool_parse p = open_tag(x, x->parameter, s, i, &key);
    if (p != PARSE_OK) return p;
    enum tool_parse cdata = x->attribute ? word_at(s, skip_space(s, *i), "<![CDATA[") : PARSE_BAD;
    c->open_key = key;
    c->open_value = str_sub(s, *i, s.len);
    c->cdata = cdata == PARSE_OK;
    p = cdata == PARSE_OK ? take_cdata(s, i, x->end_parameter, &v)
                          : take_value(s, i, x->end_parameter, x->parameter, x->end_function, false, &v);
    if (p != PARSE_OK) return p;
    c->open_key = (struct str){ 0 };
    return put_argument(c, set, key, cdata == PARSE_OK ? v : without_breaks(v));
}

/* A function with its parameters at *i. */
static enum tool_parse function(const struct xml_style *x, const struct tool_set *set, struct str s, size_t *i, struct xml_call *c)
{
    enum tool_parse p = open_tag(x, x->function, s, i, &c->name);
    if (p != PARSE_OK) return p;
    for (;;) {
        *i = skip_space(s, *i);
        if (*i == s.len) return PARSE_MORE;
        p = word_at(s, *i, x->end_function);
        if (p == PARSE_OK) *i += strlen(x->end_function);
        if (p != PARSE_BAD) return p;
        p = parameter(x, set, s, i, c);
        if (p != PARSE_OK) return p;
    }
}

/* One or several functions and nothing else. */
static enum tool_parse functions(const struct xml_style *x, const struct tool_set *set, struct str s, bool closed, struct tool_calls *out)
{
    size_t i = skip_space(s, 0);
    enum tool_parse p = i == s.len ? (closed ? PARSE_BAD : PARSE_MORE) : PARSE_OK;
    for (; p == PARSE_OK && i < s.len; i = skip_space(s, i)) {
        struct xml_call c = { .arguments = json_object() };
        p = c.arguments ? function(x, set, s, &i, &c) : PARSE_BAD;
        if (p == PARSE_OK) p = tool_calls_add(out, set, c.name.ptr, c.name.len, c.arguments);
        json_decref(c.arguments);
    }
    return p;
}

enum tool_parse parse_qwen_xml(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    return functions(&QWEN, set, body, closed, out);
}

enum tool_parse parse_function_attr(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    return functions(&MINICPM, set, body, closed, out);
}

enum tool_parse parse_invoke(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    return functions(&INVOKE, set, body, closed, out);
}

/* --- GLM --- */
static enum tool_parse glm_arguments(const struct tool_set *set, struct str s, size_t *i, bool closed, struct xml_call *c)
{
    for (;;) {
        *i = skip_space(s, *i);
        if (*i == s.len) return closed ? PARSE_OK : PARSE_MORE;
        enum tool_parse p = word_at(s, *i, "<arg_key>");
        if (p != PARSE_OK) return p;
        size_t from = *i + strlen("<arg_key>"), end = find_word(s, from, "</arg_key>");
        if (end == s.len) return PARSE_MORE;
        struct str key = str_trim(str_sub(s, from, end)), v = { 0 };
        *i = skip_space(s, end + strlen("</arg_key>"));
        p = *i == s.len ? PARSE_MORE : word_at(s, *i, "<arg_value>");
        if (p != PARSE_OK) return p;
        *i += strlen("<arg_value>");
        c->open_key = key;
        c->open_value = str_sub(s, *i, s.len);
        p = take_value(s, i, "</arg_value>", "<arg_key>", NULL, closed, &v);
        if (p != PARSE_OK) return p;
        c->open_key = (struct str){ 0 };
        p = put_argument(c, set, key, without_breaks(v));
        if (p != PARSE_OK) return p;
    }
}

static enum tool_parse glm(const struct tool_set *set, struct str s, bool closed, struct xml_call *c)
{
    size_t i = skip_space(s, 0), end = name_end(s, i);
    c->name = str_sub(s, i, end);
    if (end == s.len) return closed && c->name.len && tool_set_find(set, c->name.ptr, c->name.len) ? PARSE_OK
                           : closed ? PARSE_BAD : PARSE_MORE;
    if (c->name.len == 0) return PARSE_BAD;
    i = skip_space(s, end);
    /* A name alone must be a listed one: else any word between tags would be a call. */
    if (i == s.len && closed && !tool_set_find(set, c->name.ptr, c->name.len)) return PARSE_BAD;
    return glm_arguments(set, s, &i, closed, c);
}

enum tool_parse parse_glm(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    struct xml_call c = { .arguments = json_object() };
    enum tool_parse p = c.arguments ? glm(set, body, closed, &c) : PARSE_BAD;
    if (p == PARSE_OK) p = tool_calls_add(out, set, c.name.ptr, c.name.len, c.arguments);
    json_decref(c.arguments);
    return p;
}

/* --- <tool_call> --- */
enum tool_parse parse_tool_call_tag(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    size_t i = skip_space(body, 0);
    if (i == body.len) return closed ? PARSE_BAD : PARSE_MORE;
    if (body.ptr[i] == '{' || body.ptr[i] == '[') return parse_json_calls(set, body, closed, out);
    if (body.ptr[i] != '<') return parse_glm(set, body, closed, out);
    enum tool_parse p = parse_qwen_xml(set, body, closed, out);
    if (p != PARSE_BAD) return p;
    tool_calls_free(out);
    return parse_function_attr(set, body, closed, out);
}

/* --- cut off: the arguments so far as the beginning of an object --- */
static bool write_partial(const struct tool_set *set, struct xml_call *c, struct buf *name, struct buf *arguments)
{
    struct json_write_opts opts = { 0 };
    const struct tool *t = tool_set_find(set, c->name.ptr, c->name.len);
    buf_append(name, c->name.ptr, c->name.len);
    json_write(arguments, c->arguments, &opts);
    if (arguments->failed || arguments->len < 2) return false;
    arguments->len--; /* its closing brace was not produced */
    arguments->data[arguments->len] = '\0';
    if (!c->open_key.len) return true;
    char key[260];
    size_t n = c->open_key.len < sizeof key ? c->open_key.len : sizeof key - 1;
    memcpy(key, c->open_key.ptr, n);
    key[n] = '\0';
    struct str v = c->open_value;
    if (c->cdata) v = str_sub(v, skip_space(v, 0) + strlen("<![CDATA["), v.len);
    else if (v.len && v.ptr[0] == '\n') v.ptr++, v.len--;
    if (json_object_size(c->arguments)) buf_append_char(arguments, ',');
    json_write_string(arguments, key, n);
    buf_append_char(arguments, ':');
    if (!value_is_string(t, key)) {
        buf_append(arguments, v.ptr, v.len);
        return true;
    }
    json_write_string(arguments, v.ptr, v.len);
    if (arguments->failed) return false;
    arguments->len--; /* nor was the string's end */
    arguments->data[arguments->len] = '\0';
    return true;
}

static bool partial_xml(const struct xml_style *x, const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    struct xml_call c = { .arguments = json_object() };
    size_t i = skip_space(body, 0);
    bool ok = c.arguments && function(x, set, body, &i, &c) == PARSE_MORE && c.name.len &&
              (c.open_key.len || json_object_size(c.arguments));
    ok = ok && write_partial(set, &c, name, arguments);
    json_decref(c.arguments);
    return ok;
}

bool partial_qwen_xml(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    return partial_xml(&QWEN, set, body, name, arguments);
}

bool partial_function_attr(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    return partial_xml(&MINICPM, set, body, name, arguments);
}

bool partial_invoke(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    return partial_xml(&INVOKE, set, body, name, arguments);
}

bool partial_glm(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    struct xml_call c = { .arguments = json_object() };
    bool ok = c.arguments && glm(set, body, false, &c) == PARSE_MORE && (c.open_key.len || json_object_size(c.arguments));
    ok = ok && write_partial(set, &c, name, arguments);
    json_decref(c.arguments);
    return ok;
}

bool partial_tool_call_tag(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments)
{
    size_t i = skip_space(body, 0);
    if (i == body.len) return false;
    if (body.ptr[i] == '{') return partial_json(set, body, name, arguments);
    if (body.ptr[i] != '<') return partial_glm(set, body, name, arguments);
    return partial_qwen_xml(set, body, name, arguments);
}
