/* json_read.c: text to tree.
 *
 * jansson parses; this file adds what it lacks. Before: UTF-8 of the whole text, a scan that bounds the nesting (so that
 * jansson's recursion is bounded too) and looks for integers beyond 64 bits. If there is one (rare), jansson gets a
 * rewritten text in which every such number is a string "b<digits>" and every other string begins with "s"; a walk over
 * the tree takes the marks off. A kept number is a string value beginning with BIGINT_TAG, whose first byte is never
 * part of UTF-8: no text that was read can look like one. After: jansson's message loses its quote of the input, and
 * the place is given as line, column and byte of the original text. */
#include "base/json.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/filemap.h"
#include "base/mem.h"
#include "base/utf8.h"

#define BIGINT_TAG "\xFFint:"
#define BIGINT_TAG_LEN (sizeof BIGINT_TAG - 1)

#ifdef MB_FAULTS
/* In a fault build jansson allocates through us. Inside its parser a failed allocation of a token's text goes unseen
 * (jansson 2.14 then reads on without it), so there the fault is remembered, the memory given all the same, and parse
 * reports it when jansson returns. */
static _Thread_local bool parsing, parse_failed;

static void *jansson_alloc(size_t size_bytes)
{
    void *p = mb_alloc(size_bytes);
    if (p || !parsing) return p;
    parse_failed = true;
    return malloc(size_bytes);
}

__attribute__((constructor)) static void jansson_use_our_memory(void)
{
    json_set_alloc_funcs(jansson_alloc, mb_free);
}
#endif

static json_t *jansson_parse(const char *text, size_t len, size_t flags, json_error_t *je)
{
#ifdef MB_FAULTS
    parsing = true;
    parse_failed = false;
    json_t *v = json_loadb(text, len, flags, je);
    parsing = false;
    if (!parse_failed) return v;
    json_decref(v);
    je->text[0] = 0;
    return NULL;
#else
    return json_loadb(text, len, flags, je);
#endif
}

/* jansson names a lack of memory seldom: it says nothing, or calls a well-formed string an invalid token. */
static bool ran_out_of_memory(const json_error_t *je, const char *parsed)
{
    if (je->text[0] == 0 || json_error_code(je) == json_error_out_of_memory) return true;
    return strncmp(je->text, "invalid token", 13) == 0 && je->position > 0 && parsed[je->position - 1] == '"';
}

/* --- errors --- */

/* MB_BAD_FORMAT "<what> at line L, column C (byte N)"; off counts from 0. */
static mb_status fail_at(mb_error *err, const char *text, size_t off, const char *what)
{
    size_t line = 1, start = 0;
    for (size_t i = 0; i < off; i++) {
        if (text[i] != '\n') continue;
        line++;
        start = i + 1;
    }
    return mb_fail(err, MB_BAD_FORMAT, "JSON: %s at line %zu, column %zu (byte %zu)", what, line, off - start + 1, off);
}

/* jansson's text without its quotes of the input. */
static const char *plain_message(const json_error_t *je, char *out, size_t cap)
{
    switch (json_error_code(je)) {
    case json_error_duplicate_key: return "an object has this key twice (it ends here)";
    case json_error_null_byte_in_key: return "an object key holds a NUL character";
    case json_error_numeric_overflow: return "a number is too large for a 64-bit float";
    case json_error_end_of_input_expected: return "text after the end of the value";
    case json_error_premature_end_of_input: return "the text ends in the middle of a value";
    default: break;
    }
    size_t len = strlen(je->text);
    const char *near = strstr(je->text, " near ");
    if (near) len = (size_t)(near - je->text);
    if (strncmp(je->text, "invalid Unicode", 15) == 0) return "invalid \\u escape";
    for (size_t i = 0; i < len; i++) /* only plain ASCII of jansson's own */
        if ((unsigned char)je->text[i] < 0x20 || (unsigned char)je->text[i] > 0x7E) len = i;
    if (len >= cap) len = cap - 1;
    memcpy(out, je->text, len);
    out[len] = 0;
    return out;
}

/* --- the scan before jansson --- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* End of the string that begins with the quote at text[i]; len when it does not end. */
static size_t string_end(const char *text, size_t len, size_t i)
{
    for (i++; i < len; i++) {
        if (text[i] == '\\') i++;
        else if (text[i] == '"') return i + 1;
    }
    return len;
}

/* Characters of the number at text[i], which begins with '-' or a digit; *integer when it has no fraction or exponent. */
static size_t number_end(const char *text, size_t len, size_t i, bool *integer)
{
    *integer = true;
    for (; i < len; i++) {
        char c = text[i];
        if (c == '.' || c == 'e' || c == 'E') *integer = false;
        else if (!(c >= '0' && c <= '9') && c != '-' && c != '+') break;
    }
    return i;
}

/* True for a well-formed integer that no int64_t holds. Others, malformed ones too, are jansson's. */
static bool is_bigint(const char *s, size_t len)
{
    size_t n_sign = len && s[0] == '-';
    if (len - n_sign < 19 || s[n_sign] == '0') return false;
    for (size_t i = n_sign; i < len; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    if (len - n_sign > 19) return true;
    char digits[24];
    memcpy(digits, s, len);
    digits[len] = 0;
    errno = 0;
    (void)strtoll(digits, NULL, 10);
    return errno == ERANGE;
}

/* Bounds the nesting and looks for big integers. */
static mb_status scan(const char *text, size_t len, bool *bigints, mb_error *err)
{
    int depth = 0;
    *bigints = false;
    for (size_t i = 0; i < len;) {
        char c = text[i];
        if (c == '"') {
            i = string_end(text, len, i);
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            bool integer;
            size_t end = number_end(text, len, i, &integer);
            if (integer && is_bigint(text + i, end - i)) *bigints = true;
            i = end;
        } else {
            if (c == '[' || c == '{') depth++;
            if (c == ']' || c == '}') depth--;
            if (depth > JSON_MAX_DEPTH) return fail_at(err, text, i, "nested deeper than 128 levels");
            i++;
        }
    }
    return MB_OK;
}

/* True when the string that ended at text[end] is an object key: the next sign is a colon. */
static bool is_key(const char *text, size_t len, size_t end)
{
    while (end < len && is_blank(text[end])) end++;
    return end < len && text[end] == ':';
}

/* Append the text for jansson to b: big integers and string values get their marks. Returns the place in the original
 * that byte `out_off` of the result comes from (for error messages). */
static size_t rewrite(struct buf *b, const char *text, size_t len, size_t out_off)
{
    size_t place = len;
    for (size_t i = 0, end; i < len; i = end) {
        bool integer = false;
        char c = text[i];
        end = i + 1;
        if (c == '"') end = string_end(text, len, i);
        else if (c == '-' || (c >= '0' && c <= '9')) end = number_end(text, len, i, &integer);
        size_t before = b->len, shift = 0;
        if (c == '"' && !is_key(text, len, end)) {
            buf_append(b, "\"s", 2);
            buf_append(b, text + i + 1, end - i - 1);
            shift = 1;
        } else if (integer && is_bigint(text + i, end - i)) {
            buf_append(b, "\"b", 2);
            buf_append(b, text + i, end - i);
            buf_append_char(b, '"');
            shift = 2;
        } else {
            buf_append(b, text + i, end - i);
        }
        if (place == len && out_off >= before && out_off < b->len) {
            size_t inside = out_off - before;
            place = i + (inside > shift ? inside - shift : 0);
            if (place > end) place = end;
        }
    }
    return place;
}

/* --- after jansson: take the marks off --- */

static bool unmark_string(json_t *v)
{
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    if (s[0] == 's') return json_string_setn_nocheck(v, s + 1, len - 1) == 0;
    char *tagged = mb_alloc(BIGINT_TAG_LEN + len);
    if (!tagged) return false;
    memcpy(tagged, BIGINT_TAG, BIGINT_TAG_LEN);
    memcpy(tagged + BIGINT_TAG_LEN, s + 1, len - 1);
    bool ok = json_string_setn_nocheck(v, tagged, BIGINT_TAG_LEN + len - 1) == 0;
    mb_free(tagged);
    return ok;
}

/* Recursion is bounded: scan has refused deeper texts. */
static bool unmark(json_t *v)
{
    if (json_is_string(v)) return unmark_string(v);
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++)
            if (!unmark(json_array_get(v, i))) return false;
        return true;
    }
    for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it))
        if (!unmark(json_object_iter_value(it))) return false;
    return true;
}

const char *json_bigint_text(const json_t *v)
{
    if (!json_is_string(v)) return NULL;
    const char *s = json_string_value(v);
    return strncmp(s, BIGINT_TAG, BIGINT_TAG_LEN) == 0 ? s + BIGINT_TAG_LEN : NULL;
}

bool json_is_text(const json_t *v)
{
    return json_is_string(v) && !json_bigint_text(v);
}

/* --- reading --- */

static mb_status parse(json_t **out, const char *text, size_t len, bool bigints, int flags, mb_error *err)
{
    size_t jansson_flags = JSON_DECODE_ANY | JSON_ALLOW_NUL;
    if (flags & JSON_READ_REJECT_DUPLICATES) jansson_flags |= JSON_REJECT_DUPLICATES;
    struct buf b;
    buf_init(&b, 0);
    mb_status status = MB_OK;
    if (bigints) {
        rewrite(&b, text, len, 0);
        MB_TRY_GOTO(status, buf_status(&b, "JSON", err), done);
    }
    json_error_t je;
    const char *parsed = bigints ? b.data : text;
    *out = jansson_parse(parsed, bigints ? b.len : len, jansson_flags, &je);
    if (*out && bigints && !unmark(*out)) status = mb_fail(err, MB_NO_MEMORY, "JSON: no memory for the tree");
    if (!*out && status == MB_OK && ran_out_of_memory(&je, parsed)) {
        status = mb_fail(err, MB_NO_MEMORY, "JSON: no memory for the tree");
    } else if (!*out) {
        /* jansson counts the bytes it has taken: the last of them is where the token at fault ends. */
        size_t off = je.position > 0 ? (size_t)je.position - 1 : 0;
        if (json_error_code(&je) == json_error_premature_end_of_input) off = bigints ? b.len : len;
        if (bigints) {
            buf_clear(&b);
            off = rewrite(&b, text, len, off);
        }
        char message[JSON_ERROR_TEXT_LENGTH];
        status = fail_at(err, text, off < len ? off : len, plain_message(&je, message, sizeof message));
    }
done:
    buf_free(&b);
    return status;
}

mb_status json_read(json_t **out, const char *text, size_t len, int flags, mb_error *err)
{
    *out = NULL;
    if (len > INT_MAX) return mb_fail(err, MB_TOO_LARGE, "JSON: %zu bytes, the ceiling is %d", len, INT_MAX);
    if (!text) len = 0;
    size_t n_valid = utf8_valid_prefix(text, len, NULL);
    if (n_valid < len) return fail_at(err, text, n_valid, "the text is not UTF-8");
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        return fail_at(err, text, 0, "a byte order mark, wanted a value (save the text without it)");
    size_t n_blank = 0;
    while (n_blank < len && is_blank(text[n_blank])) n_blank++;
    if (n_blank == len) return mb_fail(err, MB_BAD_FORMAT, "JSON: the text is empty");
    bool bigints;
    MB_TRY(scan(text, len, &bigints, err));
    mb_status status = parse(out, text, len, bigints, flags, err);
    if (status == MB_OK && !(flags & JSON_READ_ANY) && !json_is_object(*out) && !json_is_array(*out))
        status = mb_fail(err, MB_BAD_FORMAT, "JSON: the text is a single value, wanted an object or an array");
    if (status != MB_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

static mb_status read_file(json_t **out, const char *path, size_t limit_bytes, bool any, mb_error *err)
{
    *out = NULL;
    struct buf b;
    buf_init(&b, 0);
    mb_status status = (any ? file_read_any : file_read)(&b, path, limit_bytes, err);
    if (status == MB_OK) {
        status = json_read(out, b.data ? b.data : "", b.len, JSON_READ_ANY, err);
        if (status != MB_OK) mb_error_prefix(err, "%s", path);
    }
    buf_free(&b);
    return status;
}

mb_status json_read_file(json_t **out, const char *path, size_t limit_bytes, mb_error *err)
{
    return read_file(out, path, limit_bytes, false, err);
}

mb_status json_read_file_any(json_t **out, const char *path, size_t limit_bytes, mb_error *err)
{
    return read_file(out, path, limit_bytes, true, err);
}

/* --- typed look-ups --- */

static mb_status wrong_type(mb_error *err, const char *key, const char *type)
{
    return mb_fail_at(err, MB_INVALID, key, "%s must be of type %s", key, type);
}

/* The value of a key; NULL when missing or null. */
static const json_t *given(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

mb_status json_get_int(const json_t *obj, const char *key, int64_t dflt, int64_t *out, mb_error *err)
{
    *out = dflt;
    const json_t *v = given(obj, key);
    if (!v) return MB_OK;
    *out = 0;
    if (json_bigint_text(v)) return mb_fail_at(err, MB_INVALID, key, "%s is beyond a 64-bit integer", key);
    if (!json_is_integer(v)) return wrong_type(err, key, "integer");
    *out = json_integer_value(v);
    return MB_OK;
}

mb_status json_get_double(const json_t *obj, const char *key, double dflt, double *out, mb_error *err)
{
    *out = dflt;
    const json_t *v = given(obj, key);
    if (!v) return MB_OK;
    *out = 0;
    const char *digits = json_bigint_text(v);
    if (!digits && !json_is_number(v)) return wrong_type(err, key, "number");
    double value = digits ? strtod(digits, NULL) : json_number_value(v);
    if (value - value != 0) return mb_fail_at(err, MB_INVALID, key, "%s is too large for a 64-bit float", key);
    *out = value;
    return MB_OK;
}

mb_status json_get_bool(const json_t *obj, const char *key, bool dflt, bool *out, mb_error *err)
{
    *out = dflt;
    const json_t *v = given(obj, key);
    if (!v) return MB_OK;
    *out = false;
    if (!json_is_boolean(v)) return wrong_type(err, key, "boolean");
    *out = json_is_true(v);
    return MB_OK;
}

mb_status json_get_str(const json_t *obj, const char *key, const char *dflt, const char **out, mb_error *err)
{
    *out = dflt;
    const json_t *v = given(obj, key);
    if (!v) return MB_OK;
    *out = NULL;
    if (!json_is_text(v)) return wrong_type(err, key, "string");
    if (strlen(json_string_value(v)) != json_string_length(v))
        return mb_fail_at(err, MB_INVALID, key, "%s holds a NUL character", key);
    *out = json_string_value(v);
    return MB_OK;
}
