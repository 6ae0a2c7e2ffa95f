/* lexer.c: source text to tokens, after jinja2's lexer with trim_blocks and lstrip_blocks on.
 *
 * Between tags everything is data. A tag may carry '-' (strip white space on that side) or '+' (leave it alone);
 * without a sign, a block or comment tag eats the blanks before it on its line and one line end after it.
 * Raw blocks and comments are handled here and leave only data. Inside a tag, closing marks count only while no
 * bracket is open, so {{ {'a': {}}} }} works.
 * Line and column are those of the source with its line ends normalised to \n. No recursion.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "chat/template/tmpl_ast.h"
#include "chat/template/tmpl_text.h"

struct lexer {
    struct arena *a;
    const char *s;
    size_t len, pos;
    size_t mark;       /* where line and col were last known */
    int line, col;
    bool line_starting; /* the last match ended with a line end (or nothing was matched yet) */
    struct token *tok;
    size_t n, cap;
    char open[TMPL_MAX_NESTING + 1];
    int n_open;
    mb_error *err;
};

mb_status tmpl_fail_at(mb_error *err, int line, int col, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mb_fail(err, MB_BAD_FORMAT, "line %d, column %d: %s", line, col, text);
}

/* Move the known place forward to `pos`. */
static void place_set(struct lexer *l, size_t pos)
{
    for (; l->mark < pos; l->mark++) {
        if (l->s[l->mark] == '\n') { l->line++; l->col = 1; }
        else if (((unsigned char)l->s[l->mark] & 0xc0) != 0x80) l->col++;
    }
}

static mb_status fail_here(struct lexer *l, size_t pos, const char *what)
{
    place_set(l, pos);
    return tmpl_fail_at(l->err, l->line, l->col, "%s", what);
}

static mb_status emit(struct lexer *l, enum token_type type, size_t at, struct str text)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct token *grown = arena_alloc_array(l->a, cap, sizeof *grown);
        if (!grown) return mb_fail(l->err, MB_NO_MEMORY, "chat template: no memory for its tokens");
        if (l->n) memcpy(grown, l->tok, l->n * sizeof *grown);
        l->tok = grown;
        l->cap = cap;
    }
    place_set(l, at);
    l->tok[l->n++] = (struct token){ type, l->line, l->col, text };
    return MB_OK;
}

static size_t skip_space(const struct lexer *l, size_t pos)
{
    while (pos < l->len) {
        size_t n = text_space_at(l->s + pos, l->len - pos);
        if (!n) break;
        pos += n;
    }
    return pos;
}

static bool at(const struct lexer *l, size_t pos, const char *lit)
{
    size_t n = strlen(lit);
    return pos <= l->len && l->len - pos >= n && memcmp(l->s + pos, lit, n) == 0;
}

static void advance(struct lexer *l, size_t pos)
{
    if (pos > l->pos) l->line_starting = l->s[pos - 1] == '\n';
    l->pos = pos;
}

/* Emit l->s[first, end) as data after the stripping that the tag behind it asks for. */
static mb_status emit_data(struct lexer *l, size_t first, size_t end, char sign, bool is_variable)
{
    if (sign == '-') {
        end = first + text_rstrip_len(l->s + first, end - first);
    } else if (sign != '+' && !is_variable) {
        size_t start = end;
        while (start > first && l->s[start - 1] != '\n') start--;
        bool has_newline = start > first;
        if ((has_newline || l->line_starting) && start < end && skip_space(l, start) >= end) end = start;
    }
    if (end == first) return MB_OK;
    return emit(l, T_DATA, first, (struct str){ l->s + first, end - first });
}

/* If a raw tag opens at pos: the position behind it and its sign; else 0. */
static size_t raw_begin(const struct lexer *l, size_t pos, const char *word, bool is_end, char *sign)
{
    if (!at(l, pos, "{%")) return 0;
    pos += 2;
    *sign = 0;
    if (at(l, pos, "-") || at(l, pos, "+")) *sign = l->s[pos++];
    pos = skip_space(l, pos);
    if (!at(l, pos, word)) return 0;
    pos = skip_space(l, pos + strlen(word));
    if (at(l, pos, "-%}")) return skip_space(l, pos + 3);
    if (is_end && at(l, pos, "+%}")) return pos + 3;
    if (!at(l, pos, "%}")) return 0;
    pos += 2;
    return is_end && at(l, pos, "\n") ? pos + 1 : pos;
}

static mb_status lex_raw(struct lexer *l)
{
    for (size_t pos = l->pos; pos < l->len; pos++) {
        char sign;
        size_t end = raw_begin(l, pos, "endraw", true, &sign);
        if (!end) continue;
        MB_TRY(emit_data(l, l->pos, pos, sign, false));
        advance(l, end);
        return MB_OK;
    }
    return fail_here(l, l->pos, "Missing end of raw directive");
}

static mb_status lex_comment(struct lexer *l)
{
    for (size_t pos = l->pos; pos + 1 < l->len; pos++) {
        if (!at(l, pos, "#}")) continue;
        char sign = pos > l->pos ? l->s[pos - 1] : 0;
        size_t end = pos + 2;
        if (sign == '-') end = skip_space(l, end);
        else if (sign != '+' && at(l, end, "\n")) end++;
        advance(l, end);
        return MB_OK;
    }
    return fail_here(l, l->pos, "Missing end of comment tag");
}

/* ---- inside a tag ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Length of (\d+_)*\d+ at pos. */
static size_t digits_len(const struct lexer *l, size_t pos)
{
    size_t p = pos;
    while (p < l->len && (is_digit(l->s[p]) ||
           (l->s[p] == '_' && p > pos && l->s[p - 1] != '_' && p + 1 < l->len && is_digit(l->s[p + 1])))) p++;
    return p - pos;
}

static size_t float_len(const struct lexer *l, size_t pos)
{
    if (pos > 0 && l->s[pos - 1] == '.') return 0;
    size_t p = pos + digits_len(l, pos);
    if (p == pos) return 0;
    bool is_float = false;
    if (at(l, p, ".")) {
        size_t n = digits_len(l, p + 1);
        if (n) { p += 1 + n; is_float = true; }
    }
    if (p < l->len && (l->s[p] == 'e' || l->s[p] == 'E')) {
        size_t q = p + 1;
        if (at(l, q, "+") || at(l, q, "-")) q++;
        size_t n = digits_len(l, q);
        if (n) { p = q + n; is_float = true; }
    }
    return is_float ? p - pos : 0;
}

static bool is_base_digit(char c, int base)
{
    int d = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
    return d < base;
}

static size_t int_len(const struct lexer *l, size_t pos)
{
    if (!is_digit(l->s[pos])) return 0;
    if (l->s[pos] == '0' && pos + 1 < l->len) {
        char c = (char)(l->s[pos + 1] | 32);
        int base = c == 'b' ? 2 : c == 'o' ? 8 : c == 'x' ? 16 : 0;
        size_t p = pos + 2;
        while (base && p < l->len && (is_base_digit(l->s[p], base) ||
               (l->s[p] == '_' && p + 1 < l->len && is_base_digit(l->s[p + 1], base)))) p++;
        if (base && p > pos + 2) return p - pos;
    }
    if (l->s[pos] != '0') return digits_len(l, pos);
    size_t p = pos + 1; /* 0(_?0)* */
    while (p < l->len && (l->s[p] == '0' || (l->s[p] == '_' && p + 1 < l->len && l->s[p + 1] == '0'))) p++;
    return p - pos;
}

static size_t name_len(const struct lexer *l, size_t pos)
{
    size_t p = pos;
    while (p < l->len) {
        uint32_t cp;
        int n = utf8_decode(l->s + p, l->len - p, &cp);
        if (n <= 0 || !text_is_word(cp)) break;
        p += (size_t)n;
    }
    return p - pos;
}

static mb_status emit_number(struct lexer *l, enum token_type type, size_t len)
{
    char *copy = arena_alloc(l->a, len + 1);
    if (!copy) return mb_fail(l->err, MB_NO_MEMORY, "chat template: no memory for its tokens");
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        if (l->s[l->pos + i] != '_') copy[n++] = l->s[l->pos + i];
    MB_TRY(emit(l, type, l->pos, (struct str){ copy, n }));
    advance(l, l->pos + len);
    return MB_OK;
}

static int hex_value(const char *s, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_base_digit(s[i], 16)) return 0;
        *out = *out * 16 + (uint32_t)(is_digit(s[i]) ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    return 1;
}

/* One escape at s[0] == '\\' with n >= 2 bytes left. Bytes consumed, 0 if it is malformed; *out_len bytes written. */
static size_t unescape_one(const char *s, size_t n, char *out, size_t *out_len)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *hit = strchr(from, s[1]);
    if (hit && s[1]) { out[0] = to[hit - from]; *out_len = 1; return 2; }
    if (s[1] == '\n') { *out_len = 0; return 2; }
    size_t n_hex = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;
    uint32_t cp = 0;
    if (n_hex) {
        if (n < 2 + n_hex || !hex_value(s + 2, n_hex, &cp) || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return 0;
        *out_len = (size_t)utf8_encode(cp, out);
        return 2 + n_hex;
    }
    if (s[1] == 'N') return 0; /* \N{NAME}: no table of character names here */
    if (s[1] >= '0' && s[1] <= '7') {
        size_t k = 1;
        while (k < 4 && k < n && s[k] >= '0' && s[k] <= '7') cp = cp * 8 + (uint32_t)(s[k++] - '0');
        *out_len = (size_t)utf8_encode(cp, out);
        return k;
    }
    /* Unknown: both characters stay. Behind a backslash a character above ASCII shows as its \x form: jinja2 decodes
     * the text by way of "backslashreplace", and the first backslash protects the second. */
    uint32_t wide;
    int n_wide = utf8_decode(s + 1, n - 1, &wide);
    if (n_wide > 1) {
        const char *fmt = wide < 0x100 ? "\\x%02x" : wide < 0x10000 ? "\\u%04x" : "\\U%08x";
        char tmp[16];
        *out_len = (size_t)snprintf(tmp, sizeof tmp, fmt, (unsigned)wide);
        memcpy(out, tmp, *out_len);
        return 1 + (size_t)n_wide;
    }
    out[0] = '\\';
    out[1] = s[1];
    *out_len = 2;
    return 2;
}

static mb_status lex_string(struct lexer *l)
{
    char quote = l->s[l->pos];
    size_t end = l->pos + 1;
    while (end < l->len && l->s[end] != quote) end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->len) return fail_here(l, l->pos, "a string is not closed");
    size_t n = end - l->pos - 1;
    char *text = arena_alloc(l->a, n * 3 + 16);
    if (!text) return mb_fail(l->err, MB_NO_MEMORY, "chat template: no memory for its tokens");
    size_t n_out = 0;
    for (size_t p = l->pos + 1; p < end;) {
        if (l->s[p] != '\\') { text[n_out++] = l->s[p++]; continue; }
        size_t wrote = 0, used = unescape_one(l->s + p, end - p, text + n_out, &wrote);
        if (!used) return fail_here(l, p, "a malformed or unsupported escape in a string");
        p += used;
        n_out += wrote;
    }
    MB_TRY(emit(l, T_STRING, l->pos, (struct str){ text, n_out }));
    advance(l, end + 1);
    return MB_OK;
}

static mb_status balance(struct lexer *l, char c)
{
    char msg[64];
    if (c == '(' || c == '[' || c == '{') {
        if (l->n_open == TMPL_MAX_NESTING) return fail_here(l, l->pos, "brackets nested too deeply");
        l->open[l->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        return MB_OK;
    }
    if (!l->n_open) {
        snprintf(msg, sizeof msg, "unexpected '%c'", c);
        return fail_here(l, l->pos, msg);
    }
    if (l->open[--l->n_open] != c) {
        snprintf(msg, sizeof msg, "unexpected '%c', expected '%c'", c, l->open[l->n_open]);
        return fail_here(l, l->pos, msg);
    }
    return MB_OK;
}

static const struct { char text[3]; uint8_t type; } operators[] = {
    { "//", T_FLOORDIV }, { "**", T_POW }, { "==", T_EQ }, { "!=", T_NE }, { ">=", T_GE }, { "<=", T_LE },
    { "+", T_ADD }, { "-", T_SUB }, { "/", T_DIV }, { "*", T_MUL }, { "%", T_MOD }, { "~", T_TILDE },
    { "[", T_LBRACKET }, { "]", T_RBRACKET }, { "(", T_LPAREN }, { ")", T_RPAREN }, { "{", T_LBRACE },
    { "}", T_RBRACE }, { ">", T_GT }, { "<", T_LT }, { "=", T_ASSIGN }, { ".", T_DOT }, { ":", T_COLON },
    { "|", T_PIPE }, { ",", T_COMMA }, { ";", T_SEMICOLON },
};

static mb_status lex_operator(struct lexer *l)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!at(l, l->pos, operators[i].text)) continue;
        size_t n = strlen(operators[i].text);
        if (n == 1 && strchr("()[]{}", operators[i].text[0])) MB_TRY(balance(l, operators[i].text[0]));
        MB_TRY(emit(l, (enum token_type)operators[i].type, l->pos, (struct str){ l->s + l->pos, n }));
        advance(l, l->pos + n);
        return MB_OK;
    }
    return fail_here(l, l->pos, "unexpected character");
}

/* The end of the tag at the current place: position behind it, 0 if there is none. */
static size_t tag_end(const struct lexer *l, bool is_variable)
{
    if (l->n_open) return 0;
    const char *mark = is_variable ? "}}" : "%}";
    if (at(l, l->pos, "-") && at(l, l->pos + 1, mark)) return skip_space(l, l->pos + 3);
    if (!is_variable && at(l, l->pos, "+%}")) return l->pos + 3;
    if (!at(l, l->pos, mark)) return 0;
    size_t end = l->pos + 2;
    return !is_variable && at(l, end, "\n") ? end + 1 : end;
}

static mb_status lex_name(struct lexer *l, size_t n)
{
    uint32_t first;
    utf8_decode(l->s + l->pos, n, &first);
    if (!text_is_name_start(first)) return fail_here(l, l->pos, "Invalid character in identifier");
    MB_TRY(emit(l, T_NAME, l->pos, (struct str){ l->s + l->pos, n }));
    advance(l, l->pos + n);
    return MB_OK;
}

static mb_status lex_tag(struct lexer *l, bool is_variable)
{
    for (;;) {
        size_t end = tag_end(l, is_variable), n;
        if (end) {
            MB_TRY(emit(l, is_variable ? T_VAR_END : T_BLOCK_END, l->pos, STR_LIT("")));
            advance(l, end);
            return MB_OK;
        }
        if (l->pos >= l->len) return MB_OK; /* the parser reports the missing end */
        size_t after = skip_space(l, l->pos);
        if (after > l->pos) advance(l, after);
        else if ((n = float_len(l, l->pos))) MB_TRY(emit_number(l, T_FLOAT, n));
        else if ((n = int_len(l, l->pos))) MB_TRY(emit_number(l, T_INT, n));
        else if ((n = name_len(l, l->pos))) MB_TRY(lex_name(l, n));
        else if (l->s[l->pos] == '\'' || l->s[l->pos] == '"') MB_TRY(lex_string(l));
        else MB_TRY(lex_operator(l));
    }
}

static mb_status lex_root(struct lexer *l)
{
    while (l->pos < l->len) {
        size_t pos = l->pos;
        while (pos < l->len && !(l->s[pos] == '{' && pos + 1 < l->len && strchr("%{#", l->s[pos + 1]) &&
                                 l->s[pos + 1])) pos++;
        if (pos >= l->len) {
            MB_TRY(emit(l, T_DATA, l->pos, (struct str){ l->s + l->pos, l->len - l->pos }));
            l->pos = l->len;
            break;
        }
        char kind = l->s[pos + 1], sign = 0;
        size_t raw = kind == '%' ? raw_begin(l, pos, "raw", false, &sign) : 0;
        size_t end = pos + 2;
        if (!raw) {
            sign = 0;
            if (at(l, end, "-") || at(l, end, "+")) sign = l->s[end++];
        }
        MB_TRY(emit_data(l, l->pos, pos, sign, kind == '{'));
        advance(l, raw ? raw : end);
        if (raw) { MB_TRY(lex_raw(l)); continue; }
        if (kind == '#') { MB_TRY(lex_comment(l)); continue; }
        MB_TRY(emit(l, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, pos, STR_LIT("")));
        MB_TRY(lex_tag(l, kind == '{'));
    }
    return MB_OK;
}

mb_status tmpl_lex(struct arena *a, const char *source, size_t len, struct token **out, size_t *n_out, mb_error *err)
{
    char *s = arena_alloc(a, len + 1);
    if (!s) return mb_fail(err, MB_NO_MEMORY, "chat template: no memory for its source");
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] != '\r') { s[n++] = source[i]; continue; }
        s[n++] = '\n';
        if (i + 1 < len && source[i + 1] == '\n') i++;
    }
    if (n && s[n - 1] == '\n') n--; /* one line end at the end of the file belongs to the editor */
    s[n] = 0;
    struct lexer l = { .a = a, .s = s, .len = n, .line = 1, .col = 1, .line_starting = true, .err = err };
    MB_TRY(lex_root(&l));
    MB_TRY(emit(&l, T_EOF, l.len, STR_LIT("")));
    *out = l.tok;
    *n_out = l.n;
    return MB_OK;
}
