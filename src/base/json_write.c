/* json_write.c: tree to text, byte for byte as Python's json.dumps writes it with the same options.
 *
 * Doubles: the shortest digits that read back the same. %.15g is exact for what people type; then 16 and 17 digits. At
 * a power of two the interval below is half as wide, so the nearest 16-digit number may fail where its upper
 * neighbour reads back; below the normal range fewer than 15 digits can be enough: both are tried. The digits are laid
 * out in Python's form: an exponent when it is < -4 or >= 16, else always a point. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { WRITE_MAX_DEPTH = 2 * JSON_MAX_DEPTH };

/* --- numbers --- */

/* value = digits * 10^exp10, digits without trailing zeros. */
struct decimal {
    uint64_t digits;
    int exp10;
};

/* v rounded to n digits. Reads printf's digits one by one, so that the locale's decimal point does not matter. */
static struct decimal round_to(double v, int n)
{
    char text[40];
    snprintf(text, sizeof text, "%.*e", n - 1, v);
    struct decimal d = { 0, 0 };
    const char *c = text;
    for (; *c && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') d.digits = d.digits * 10 + (uint64_t)(*c - '0');
    d.exp10 = (*c == 'e' ? atoi(c + 1) : 0) - (n - 1);
    return d;
}

static bool reads_back(struct decimal d, double v)
{
    char text[40];
    snprintf(text, sizeof text, "%" PRIu64 "e%d", d.digits, d.exp10);
    return strtod(text, NULL) == v;
}

/* Shortest decimal that reads back as v; v is finite and positive. */
static struct decimal shortest(double v)
{
    struct decimal d;
    for (int n = v < 2.2250738585072014e-308 ? 1 : 15; n < 17; n++) {
        d = round_to(v, n);
        if (reads_back(d, v)) return d;
        d.digits++;
        if (reads_back(d, v)) return d;
    }
    return round_to(v, 17);
}

void json_write_double(struct buf *b, double v)
{
    if (!isfinite(v)) {
        buf_append_str(b, "null");
        return;
    }
    if (signbit(v)) buf_append_char(b, '-');
    if (v == 0) {
        buf_append_str(b, "0.0");
        return;
    }
    struct decimal d = shortest(fabs(v));
    for (; d.digits % 10 == 0; d.exp10++) d.digits /= 10;
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, d.digits);
    int point = n + d.exp10; /* digits before the decimal point */
    if (point - 1 < -4 || point - 1 >= 16) {
        buf_append_char(b, digits[0]);
        if (n > 1) buf_printf(b, ".%s", digits + 1);
        buf_printf(b, "e%c%02d", point - 1 < 0 ? '-' : '+', abs(point - 1));
    } else if (point <= 0) {
        buf_printf(b, "0.%.*s%s", -point, "0000", digits);
    } else if (point >= n) {
        buf_printf(b, "%s%.*s.0", digits, point - n, "0000000000000000");
    } else {
        buf_printf(b, "%.*s.%s", point, digits, digits + point);
    }
}

void json_write_int(struct buf *b, int64_t v)
{
    char digits[21];
    size_t at = sizeof digits;
    uint64_t left = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do digits[--at] = (char)('0' + left % 10);
    while (left /= 10);
    if (v < 0) digits[--at] = '-';
    buf_append(b, digits + at, sizeof digits - at);
}

/* --- strings --- */

static void write_unit(struct buf *b, uint32_t unit)
{
    buf_printf(b, "\\u%04x", (unsigned)unit);
}

static void write_ascii_escape(struct buf *b, uint32_t cp)
{
    if (cp >= 0x10000) {
        write_unit(b, 0xD800 + ((cp - 0x10000) >> 10));
        write_unit(b, 0xDC00 + ((cp - 0x10000) & 0x3FF));
    } else {
        write_unit(b, cp);
    }
}

/* One character that may not stand for itself; returns the bytes read. */
static size_t write_special(struct buf *b, const char *s, size_t len, bool ascii)
{
    static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *l = letters; *l; l += 2) {
        if (*l != *s) continue;
        buf_append_char(b, '\\');
        buf_append_char(b, l[1]);
        return 1;
    }
    uint32_t cp;
    int n = utf8_decode(s, len, &cp);
    if (n <= 0) {
        buf_append_str(b, ascii ? "\\ufffd" : "\xEF\xBF\xBD");
        return utf8_invalid_length(s, len);
    }
    if (cp < 0x20 || ascii) write_ascii_escape(b, cp);
    else buf_append(b, s, (size_t)n);
    return (size_t)n;
}

static void write_string(struct buf *b, const char *s, size_t len, bool ascii)
{
    buf_append_char(b, '"');
    for (size_t i = 0; i < len;) {
        size_t plain = i;
        while (plain < len) {
            unsigned char c = (unsigned char)s[plain];
            if (c < 0x20 || c == '"' || c == '\\' || c >= 0x80 || (ascii && c == 0x7F)) break;
            plain++;
        }
        buf_append(b, s + i, plain - i);
        i = plain;
        if (i < len) i += write_special(b, s + i, len - i, ascii);
    }
    buf_append_char(b, '"');
}

void json_write_string(struct buf *b, const char *s, size_t len)
{
    write_string(b, s, len, false);
}

/* --- trees --- */

static void write_value(struct buf *b, const json_t *v, const struct json_write_opts *o, int depth);

static void write_break(struct buf *b, const struct json_write_opts *o, int depth)
{
    if (o->indent <= 0) return;
    buf_append_char(b, '\n');
    for (int i = 0; i < o->indent * depth; i++) buf_append_char(b, ' ');
}

/* Between two items, and before the first (i == 0). depth is that of the items. */
static void write_between(struct buf *b, const struct json_write_opts *o, size_t i, int depth)
{
    if (i > 0) buf_append_str(b, o->python_spaces && o->indent <= 0 ? ", " : ",");
    write_break(b, o, depth);
}

static void write_array(struct buf *b, const json_t *v, const struct json_write_opts *o, int depth)
{
    size_t n = json_array_size(v);
    buf_append_char(b, '[');
    for (size_t i = 0; i < n; i++) {
        write_between(b, o, i, depth + 1);
        write_value(b, json_array_get(v, i), o, depth + 1);
    }
    if (n > 0) write_break(b, o, depth);
    buf_append_char(b, ']');
}

struct member {
    const char *key;
    size_t key_len;
    const json_t *value;
};

/* By bytes, which in UTF-8 is by code points. */
static int compare_members(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    size_t n = x->key_len < y->key_len ? x->key_len : y->key_len;
    int order = memcmp(x->key, y->key, n);
    return order ? order : (x->key_len > y->key_len) - (x->key_len < y->key_len);
}

static void write_object(struct buf *b, json_t *v, const struct json_write_opts *o, int depth)
{
    size_t n = json_object_size(v), i = 0;
    struct member *members = mb_calloc(n, sizeof *members);
    if (!members) {
        if (b->failed == MB_OK) b->failed = MB_NO_MEMORY;
        return;
    }
    for (void *it = json_object_iter(v); it && i < n; it = json_object_iter_next(v, it), i++)
        members[i] = (struct member){ json_object_iter_key(it), json_object_iter_key_len(it),
                                      json_object_iter_value(it) };
    if (o->sort_keys) qsort(members, n, sizeof *members, compare_members);
    buf_append_char(b, '{');
    for (i = 0; i < n; i++) {
        write_between(b, o, i, depth + 1);
        write_string(b, members[i].key, members[i].key_len, o->ensure_ascii);
        buf_append_str(b, o->python_spaces || o->indent > 0 ? ": " : ":");
        write_value(b, members[i].value, o, depth + 1);
    }
    if (n > 0) write_break(b, o, depth);
    buf_append_char(b, '}');
    mb_free(members);
}

static void write_value(struct buf *b, const json_t *v, const struct json_write_opts *o, int depth)
{
    if (b->failed != MB_OK) return;
    if (depth > WRITE_MAX_DEPTH) {
        b->failed = MB_TOO_LARGE;
        return;
    }
    const char *digits = json_bigint_text(v);
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: write_object(b, (json_t *)(uintptr_t)v, o, depth); break;
    case JSON_ARRAY: write_array(b, v, o, depth); break;
    case JSON_STRING:
        if (digits) buf_append_str(b, digits);
        else write_string(b, json_string_value(v), json_string_length(v), o->ensure_ascii);
        break;
    case JSON_INTEGER: json_write_int(b, json_integer_value(v)); break;
    case JSON_REAL: json_write_double(b, json_real_value(v)); break;
    case JSON_TRUE: buf_append_str(b, "true"); break;
    case JSON_FALSE: buf_append_str(b, "false"); break;
    case JSON_NULL: buf_append_str(b, "null"); break;
    }
}

void json_write(struct buf *b, const json_t *v, const struct json_write_opts *opts)
{
    static const struct json_write_opts compact = { 0 };
    write_value(b, v, opts ? opts : &compact, 0);
}
