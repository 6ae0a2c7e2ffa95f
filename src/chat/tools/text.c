/* text.c: small readers that the body parsers share. All work on a prefix of a text that may still grow, so they tell
 * "not there" from "not there yet". No recursion on input: JSON nesting is a bit per level. */
#include <string.h>

#include "chat/tools/tools_int.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

size_t skip_space(struct str s, size_t i)
{
    while (i < s.len && is_space(s.ptr[i])) i++;
    return i;
}

struct str str_sub(struct str s, size_t from, size_t to)
{
    return (struct str){ s.ptr + from, to > from ? to - from : 0 };
}

struct str str_trim(struct str s)
{
    size_t from = skip_space(s, 0);
    while (s.len > from && is_space(s.ptr[s.len - 1])) s.len--;
    return str_sub(s, from, s.len);
}

enum tool_parse word_at(struct str s, size_t i, const char *word)
{
    size_t n = strlen(word), have = i < s.len ? s.len - i : 0;
    if (memcmp(s.ptr + (have ? i : 0), word, have < n ? have : n) != 0) return PARSE_BAD;
    return have < n ? PARSE_MORE : PARSE_OK;
}

size_t find_word(struct str s, size_t i, const char *word)
{
    size_t n = strlen(word);
    for (; i < s.len && s.len - i >= n; i++) {
        const char *p = memchr(s.ptr + i, word[0], s.len - i - n + 1);
        if (!p) break;
        i = (size_t)(p - s.ptr);
        if (memcmp(p, word, n) == 0) return i;
    }
    return s.len;
}

bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' ||
           c == ':' || c == '/';
}

size_t name_end(struct str s, size_t i)
{
    while (i < s.len && is_name_char(s.ptr[i])) i++;
    return i;
}

/* --- JSON --- */
static enum tool_parse skip_string(struct str s, size_t *i)
{
    for (size_t k = *i + 1; k < s.len; k++) {
        if (s.ptr[k] == '\\') {
            k++;
        } else if (s.ptr[k] == '"') {
            *i = k + 1;
            return PARSE_OK;
        } else if ((unsigned char)s.ptr[k] < 0x20) {
            return PARSE_BAD;
        }
    }
    return PARSE_MORE;
}

static enum tool_parse skip_scalar(struct str s, size_t *i)
{
    static const char *const words[] = { "true", "false", "null" };
    if (s.ptr[*i] == '"') return skip_string(s, i);
    for (size_t k = 0; k < 3; k++) {
        enum tool_parse p = word_at(s, *i, words[k]);
        if (p == PARSE_OK) *i += strlen(words[k]);
        if (p != PARSE_BAD) return p;
    }
    size_t k = *i;
    while (k < s.len && s.ptr[k] && strchr("+-0123456789.eE", s.ptr[k])) k++;
    if (k == *i || s.ptr[*i] == '+' || s.ptr[*i] == '.' || s.ptr[*i] == 'e' || s.ptr[*i] == 'E') return PARSE_BAD;
    *i = k;
    return k < s.len ? PARSE_OK : PARSE_MORE;
}

/* What may stand next; the grammar of JSON as a machine of four states. */
enum json_want { WANT_VALUE, WANT_VALUE_OR_END, WANT_KEY, WANT_KEY_OR_END, WANT_COLON, WANT_COMMA_OR_END };

enum tool_parse json_skip(struct str s, size_t *at)
{
    bool object[JSON_MAX_DEPTH];
    int depth = 0;
    enum json_want want = WANT_VALUE;
    size_t i = *at;
    for (;;) {
        i = skip_space(s, i);
        if (i >= s.len) return PARSE_MORE;
        char c = s.ptr[i];
        bool may_end = want == WANT_VALUE_OR_END || want == WANT_KEY_OR_END || want == WANT_COMMA_OR_END;
        if (depth > 0 && may_end && c == (object[depth - 1] ? '}' : ']')) {
            i++;
            depth--;
        } else if (want == WANT_COMMA_OR_END) {
            if (c != ',') return PARSE_BAD;
            i++;
            want = object[depth - 1] ? WANT_KEY : WANT_VALUE;
            continue;
        } else if (want == WANT_COLON) {
            if (c != ':') return PARSE_BAD;
            i++;
            want = WANT_VALUE;
            continue;
        } else if (want == WANT_KEY || want == WANT_KEY_OR_END) {
            if (c != '"') return PARSE_BAD;
            enum tool_parse p = skip_string(s, &i);
            if (p != PARSE_OK) return p;
            want = WANT_COLON;
            continue;
        } else if (c == '{' || c == '[') {
            if (depth == JSON_MAX_DEPTH) return PARSE_BAD;
            object[depth++] = c == '{';
            i++;
            want = c == '{' ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
            continue;
        } else {
            enum tool_parse p = skip_scalar(s, &i);
            if (p != PARSE_OK) return p;
        }
        if (depth == 0) { /* a value is whole */
            *at = i;
            return PARSE_OK;
        }
        want = WANT_COMMA_OR_END;
    }
}

bool tool_value_end(struct str text, size_t *at)
{
    size_t i = *at;
    if (json_skip(text, &i) != PARSE_OK) return false;
    *at = i;
    return true;
}

json_t *json_part(struct str s)
{
    json_t *v = NULL;
    return json_read(&v, s.ptr, s.len, JSON_READ_ANY, NULL) == MB_OK ? v : NULL;
}
