/* parse_literal.c: calls whose arguments are literals of another language: Gemma 4's call:NAME{key:<|"|>text<|"|>,n:1} and
 * Python's [name(key='text', n=1), ...]. Both are read by one small descent with a depth limit into JSON values. */
#include <string.h>

#include "chat/tools/tools_int.h"

#define GEMMA_QUOTE "<|\"|>"

struct reader {
    struct str s;
    size_t i;
    bool gemma;
    int depth;
};

static enum tool_parse value(struct reader *r, json_t **out);

static void space(struct reader *r)
{
    r->i = skip_space(r->s, r->i);
}

/* --- strings --- */
static enum tool_parse gemma_string(struct reader *r, json_t **out)
{
    size_t from = r->i + strlen(GEMMA_QUOTE), end = find_word(r->s, from, GEMMA_QUOTE);
    if (end == r->s.len) return PARSE_MORE;
    *out = json_stringn(r->s.ptr + from, end - from);
    r->i = end + strlen(GEMMA_QUOTE);
    return *out ? PARSE_OK : PARSE_BAD;
}

static void put_code_point(struct buf *b, unsigned long cp)
{
    if (cp < 0x80) buf_append_char(b, (char)cp);
    else if (cp < 0x800) buf_printf(b, "%c%c", (int)(0xC0 | cp >> 6), (int)(0x80 | (cp & 63)));
    else if (cp < 0x10000) buf_printf(b, "%c%c%c", (int)(0xE0 | cp >> 12), (int)(0x80 | (cp >> 6 & 63)), (int)(0x80 | (cp & 63)));
    else buf_printf(b, "%c%c%c%c", (int)(0xF0 | (cp >> 18 & 7)), (int)(0x80 | (cp >> 12 & 63)), (int)(0x80 | (cp >> 6 & 63)),
                    (int)(0x80 | (cp & 63)));
}

/* One escape at p (behind the backslash); returns the bytes it takes. */
static size_t escape(const char *p, size_t left, struct buf *b)
{
    static const char from[] = "nrtbf0", to[] = "\n\r\t\b\f";
    const char *k = strchr(from, *p);
    size_t n = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    if (*p == '\n') return 1;
    if (n && left > n) {
        char hex[9] = { 0 }, *end;
        memcpy(hex, p + 1, n);
        unsigned long cp = strtoul(hex, &end, 16);
        if (end == hex + n && cp && cp < 0x110000 && (cp < 0xD800 || cp > 0xDFFF)) {
            put_code_point(b, cp);
            return n + 1;
        }
    }
    if (k && *p && *p != '0') buf_append_char(b, to[k - from]);
    else if (strchr("\\'\"/", *p)) buf_append_char(b, *p);
    else buf_append_char(b, '\\'), buf_append_char(b, *p);
    return 1;
}

static enum tool_parse quoted(struct reader *r, json_t **out)
{
    char quote = r->s.ptr[r->i];
    struct buf b;
    size_t i = r->i + 1;
    buf_init(&b, 0);
    buf_append(&b, "", 0);
    while (i < r->s.len && r->s.ptr[i] != quote) {
        if (r->s.ptr[i] == '\\' && i + 1 < r->s.len) i += 1 + escape(r->s.ptr + i + 1, r->s.len - i - 1, &b);
        else buf_append_char(&b, r->s.ptr[i++]);
    }
    bool whole = i < r->s.len;
    r->i = i + 1;
    *out = whole && !b.failed ? json_stringn(b.data, b.len) : NULL;
    buf_free(&b);
    return !whole ? PARSE_MORE : *out ? PARSE_OK : PARSE_BAD;
}

/* --- numbers and words --- */
static json_t *word_value(struct str w)
{
    static const struct { const char *word; int what; } rows[] = {
        { "True", 1 }, { "true", 1 }, { "False", 0 }, { "false", 0 }, { "None", 2 }, { "null", 2 },
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
        if (str_eq(w, str_of(rows[k].word))) return rows[k].what == 2 ? json_null() : json_boolean(rows[k].what);
    json_t *v = json_part(w);
    if (json_is_number(v) || json_bigint_text(v)) return v;
    json_decref(v);
    return NULL;
}

/* Up to a comma or a closing bracket. Gemma's may be an unquoted string. */
static enum tool_parse bare(struct reader *r, json_t **out)
{
    size_t k = r->i;
    while (k < r->s.len && !strchr(",]})\n", r->s.ptr[k])) k++;
    if (k == r->s.len) return PARSE_MORE;
    struct str w = str_trim(str_sub(r->s, r->i, k));
    if (w.len == 0) return PARSE_BAD;
    *out = word_value(w);
    if (!*out && r->gemma) *out = json_stringn(w.ptr, w.len);
    r->i = k;
    return *out ? PARSE_OK : PARSE_BAD;
}

/* --- lists and objects --- */

/* Behind an item: ',' goes on, `close` ends (*done). */
static enum tool_parse item_end(struct reader *r, char close, bool *done)
{
    space(r);
    if (r->i == r->s.len) return PARSE_MORE;
    char c = r->s.ptr[r->i++];
    *done = c == close;
    if (*done) return PARSE_OK;
    if (c != ',') return PARSE_BAD;
    space(r);
    if (r->i == r->s.len) return PARSE_MORE;
    *done = r->s.ptr[r->i] == close;
    r->i += *done;
    return PARSE_OK;
}

static enum tool_parse begin(struct reader *r, char close, bool *empty)
{
    r->i++;
    space(r);
    if (r->i == r->s.len) return PARSE_MORE;
    *empty = r->s.ptr[r->i] == close;
    r->i += *empty;
    return PARSE_OK;
}

static enum tool_parse list(struct reader *r, char close, json_t *into)
{
    bool done = false;
    enum tool_parse p = begin(r, close, &done);
    while (p == PARSE_OK && !done) {
        json_t *v = NULL;
        p = value(r, &v);
        if (p == PARSE_OK && json_array_append_new(into, v) != 0) p = PARSE_BAD;
        if (p == PARSE_OK) p = item_end(r, close, &done);
    }
    return p;
}

/* A key up to `sep`: quoted, or bare characters. */
static enum tool_parse key(struct reader *r, char sep, struct buf *name)
{
    json_t *v = NULL;
    enum tool_parse p = PARSE_OK;
    struct str k;
    enum tool_parse q = r->gemma ? word_at(r->s, r->i, GEMMA_QUOTE) : PARSE_BAD;
    if (r->i == r->s.len || q == PARSE_MORE) return PARSE_MORE;
    if (q == PARSE_OK) p = gemma_string(r, &v);
    else if (r->s.ptr[r->i] == '"' || r->s.ptr[r->i] == '\'') p = quoted(r, &v);
    if (p != PARSE_OK) return p;
    if (v) {
        k = (struct str){ json_string_value(v), json_string_length(v) };
    } else {
        size_t from = r->i;
        while (r->i < r->s.len && r->s.ptr[r->i] != sep && !strchr("{}[](),\n", r->s.ptr[r->i])) r->i++;
        k = str_trim(str_sub(r->s, from, r->i));
    }
    bool fits = k.len > 0 && !memchr(k.ptr, '\0', k.len);
    buf_clear(name);
    buf_append(name, k.ptr, k.len);
    fits = fits && !name->failed;
    json_decref(v);
    space(r);
    if (r->i == r->s.len) return PARSE_MORE;
    return fits && r->s.ptr[r->i++] == sep ? PARSE_OK : PARSE_BAD;
}

static enum tool_parse members(struct reader *r, char sep, char close, json_t *into)
{
    bool done = false;
    struct buf name;
    buf_init(&name, 0);
    enum tool_parse p = begin(r, close, &done);
    while (p == PARSE_OK && !done) {
        json_t *v = NULL;
        p = key(r, sep, &name);
        if (p == PARSE_OK) p = value(r, &v);
        if (p == PARSE_OK && json_object_setn_new(into, name.data, name.len, v) != 0) p = PARSE_BAD;
        if (p == PARSE_OK) p = item_end(r, close, &done);
    }
    buf_free(&name);
    return p;
}

static enum tool_parse compound(struct reader *r, json_t **out)
{
    char c = r->s.ptr[r->i];
    if (r->depth == TOOL_MAX_DEPTH) return PARSE_BAD;
    *out = c == '{' ? json_object() : json_array();
    if (!*out) return PARSE_BAD;
    r->depth++;
    enum tool_parse p = c == '{' ? members(r, ':', '}', *out) : list(r, c == '[' ? ']' : ')', *out);
    r->depth--;
    if (p == PARSE_OK) return p;
    json_decref(*out);
    *out = NULL;
    return p;
}

static enum tool_parse value(struct reader *r, json_t **out)
{
    space(r);
    if (r->i == r->s.len) return PARSE_MORE;
    char c = r->s.ptr[r->i];
    enum tool_parse q = r->gemma ? word_at(r->s, r->i, GEMMA_QUOTE) : PARSE_BAD;
    if (q == PARSE_OK) return gemma_string(r, out);
    if (q == PARSE_MORE) return q;
    if (c == '"' || (c == '\'' && !r->gemma)) return quoted(r, out);
    if (c == '{' || c == '[' || (c == '(' && !r->gemma)) return compound(r, out);
    return bare(r, out);
}

/* --- calls --- */

/* NAME{...} or NAME(...) at r->i. */
static enum tool_parse call(struct reader *r, const struct tool_set *set, bool listed, struct tool_calls *out)
{
    size_t from = r->i, end = name_end(r->s, r->i);
    char open = r->gemma ? '{' : '(';
    if (end == r->s.len) return PARSE_MORE;
    struct str name = str_sub(r->s, from, end);
    if (name.len == 0 || r->s.ptr[end] != open) return PARSE_BAD;
    struct str dot_call = STR_LIT(".call"); /* Llama's built-in tools: brave_search.call(...) */
    if (!r->gemma && name.len > dot_call.len && str_eq(str_sub(name, name.len - dot_call.len, name.len), dot_call))
        name.len -= dot_call.len;
    if (listed && !tool_set_find(set, name.ptr, name.len)) return PARSE_BAD;
    json_t *args = json_object();
    r->i = end;
    enum tool_parse p = !args ? PARSE_BAD : r->gemma ? members(r, ':', '}', args) : members(r, '=', ')', args);
    if (p == PARSE_OK) p = tool_calls_add(out, set, name.ptr, name.len, args);
    json_decref(args);
    return p;
}

enum tool_parse parse_gemma(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    struct reader r = { .s = body, .gemma = true };
    space(&r);
    if (r.i == body.len && closed) return PARSE_BAD;
    enum tool_parse p = PARSE_OK;
    do {
        p = word_at(body, r.i, "call:");
        if (p != PARSE_OK) return p;
        r.i += strlen("call:");
        space(&r);
        p = call(&r, set, false, out);
        space(&r);
        if (r.i < body.len && body.ptr[r.i] == ',') r.i++, space(&r);
    } while (p == PARSE_OK && r.i < body.len);
    return p;
}

static enum tool_parse python(const struct tool_set *set, struct str body, bool listed, struct tool_calls *out)
{
    struct reader r = { .s = body };
    space(&r);
    bool in_list = r.i < body.len && body.ptr[r.i] == '[', done = false;
    enum tool_parse p = PARSE_OK;
    if (in_list) p = begin(&r, ']', &done);
    if (done) return PARSE_BAD; /* an empty list calls nothing */
    while (p == PARSE_OK && !done) {
        p = call(&r, set, listed, out);
        if (p != PARSE_OK) return p;
        if (in_list) p = item_end(&r, ']', &done);
        else space(&r), done = r.i == body.len;
    }
    return p == PARSE_OK && skip_space(body, r.i) < body.len ? PARSE_BAD : p;
}

enum tool_parse parse_python(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    (void)closed;
    return python(set, body, false, out);
}

enum tool_parse parse_python_listed(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out)
{
    (void)closed;
    return python(set, body, true, out);
}
