/* scan.c: model.vocab and model.merges straight from the text of tokenizer.json.
 *
 * These two tables are nearly all of the file (262,144 pieces and 514,906 merges in the largest families), so they are
 * not built as JSON trees: scan_split finds them and hands the rest, with null in their places, to the ordinary JSON
 * reader, which checks it. scan_vocab and scan_merges then read the tables themselves, as strictly as RFC 8259 asks.
 * No recursion: brackets are counted. The whole file is known to be UTF-8 when this runs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

struct scan {
    const char *at, *end, *start;
    struct buf text;  /* the last string that needed unescaping */
    struct buf text2;
};

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r')) s->at++;
}

static mb_status scan_bad(const struct scan *s, const char *what, const char *wanted, mb_error *err)
{
    return mb_fail(err, MB_BAD_FORMAT, "tokenizer.json: %s: byte %zu: expected %s", what, (size_t)(s->at - s->start),
                   wanted);
}

/* At the opening quote; leaves s behind the closing one. false: no end. */
static bool skip_string(struct scan *s)
{
    for (s->at++; s->at < s->end; s->at++) {
        if (*s->at == '"') {
            s->at++;
            return true;
        }
        if (*s->at == '\\') s->at++;
    }
    s->at = s->end;
    return false;
}

/* Any value, its inside unchecked but for strings and depth. */
static bool skip_value(struct scan *s)
{
    size_t depth = 0;
    skip_space(s);
    const char *first = s->at;
    while (s->at < s->end) {
        char c = *s->at;
        if (c == '"') {
            if (!skip_string(s)) return false;
        } else if (c == '{' || c == '[') {
            depth++;
            s->at++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return s->at > first;
            depth--;
            s->at++;
        } else if ((c == ',' || c == ':') && depth == 0) {
            return s->at > first;
        } else {
            s->at++;
            continue;
        }
        if (depth == 0) return true;
    }
    return depth == 0 && s->at > first;
}

/* Called with s at a member's value, which it must pass; key: its quoted text. false ends the walk. */
typedef bool (*member_fn)(struct scan *s, struct str key, struct scan_parts *parts);

/* Walks an object; true when its closing brace was passed. Stops quietly at malformed text: the JSON reader will say
 * what is wrong with it. */
static bool walk_object(struct scan *s, member_fn member, struct scan_parts *parts)
{
    skip_space(s);
    if (s->at >= s->end || *s->at != '{') return false;
    s->at++;
    for (;;) {
        skip_space(s);
        if (s->at >= s->end || *s->at != '"') return false;
        const char *key = s->at;
        if (!skip_string(s)) return false;
        size_t n_key = (size_t)(s->at - key);
        skip_space(s);
        if (s->at >= s->end || *s->at != ':') return false;
        s->at++;
        skip_space(s);
        if (!member(s, (struct str){ key, n_key }, parts)) return false;
        skip_space(s);
        if (s->at < s->end && *s->at == '}') {
            s->at++;
            return true;
        }
        if (s->at >= s->end || *s->at != ',') return false;
        s->at++;
    }
}

static bool model_member(struct scan *s, struct str key, struct scan_parts *parts)
{
    const char *first = s->at;
    struct str *part = str_eq(key, STR_LIT("\"vocab\""))    ? &parts->vocab
                       : str_eq(key, STR_LIT("\"merges\"")) ? &parts->merges
                                                            : NULL;
    if (!skip_value(s)) return false;
    if (part && !part->ptr) *part = (struct str){ first, (size_t)(s->at - first) };
    return true;
}

static bool top_member(struct scan *s, struct str key, struct scan_parts *parts)
{
    if (str_eq(key, STR_LIT("\"model\""))) {
        struct scan inner = *s;
        if (walk_object(&inner, model_member, parts)) {
            *s = inner;
            return true;
        }
    }
    return skip_value(s);
}

static void copy_without(struct buf *rest, const char **at, struct str part)
{
    if (!part.ptr) return;
    buf_append(rest, *at, (size_t)(part.ptr - *at));
    buf_append_str(rest, "null");
    *at = part.ptr + part.len;
}

mb_status scan_split(const char *json, size_t len, struct scan_parts *parts, struct buf *rest, mb_error *err)
{
    *parts = (struct scan_parts){ 0 };
    struct scan s = { .at = json, .end = json + len, .start = json };
    walk_object(&s, top_member, parts);
    const char *at = json;
    bool vocab_first = !parts->merges.ptr || (parts->vocab.ptr && parts->vocab.ptr < parts->merges.ptr);
    copy_without(rest, &at, vocab_first ? parts->vocab : parts->merges);
    copy_without(rest, &at, vocab_first ? parts->merges : parts->vocab);
    buf_append(rest, at, (size_t)(json + len - at));
    return buf_status(rest, "tokenizer.json", err);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool hex4(struct scan *s, uint32_t *out)
{
    uint32_t v = 0;
    if (s->end - s->at < 4) return false;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(s->at[i]);
        if (d < 0) return false;
        v = v << 4 | (uint32_t)d;
    }
    s->at += 4;
    *out = v;
    return true;
}

/* At the character behind a backslash. */
static bool unescape_one(struct scan *s, struct buf *b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->at >= s->end) return false;
    char c = *s->at++;
    if (c != 'u') {
        const char *p = c ? strchr(from, c) : NULL;
        if (!p) return false;
        buf_append_char(b, to[p - from]);
        return true;
    }
    uint32_t cp, low;
    if (!hex4(s, &cp)) return false;
    if (cp >= 0xDC00 && cp <= 0xDFFF) return false;
    if (cp >= 0xD800 && cp <= 0xDBFF) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u') return false;
        s->at += 2;
        if (!hex4(s, &low) || low < 0xDC00 || low > 0xDFFF) return false;
        cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    }
    char out[4];
    buf_append(b, out, (size_t)utf8_encode(cp, out));
    return true;
}

/* A string value; *out views the file, or b when something was escaped. */
static mb_status read_string(struct scan *s, struct buf *b, struct str *out, const char *what, mb_error *err)
{
    if (s->at >= s->end || *s->at != '"') return scan_bad(s, what, "a string", err);
    const char *first = ++s->at;
    while (s->at < s->end && *s->at != '"' && *s->at != '\\' && (uint8_t)*s->at >= 0x20) s->at++;
    if (s->at < s->end && *s->at == '"') {
        *out = (struct str){ first, (size_t)(s->at++ - first) };
        return MB_OK;
    }
    buf_clear(b);
    buf_append(b, first, (size_t)(s->at - first));
    while (s->at < s->end && *s->at != '"') {
        if ((uint8_t)*s->at < 0x20) return scan_bad(s, what, "no control character in a string", err);
        if (*s->at == '\\') {
            s->at++;
            if (!unescape_one(s, b)) return scan_bad(s, what, "a valid escape sequence", err);
        } else {
            buf_append_char(b, *s->at++);
        }
    }
    if (s->at >= s->end) return scan_bad(s, what, "the end of a string", err);
    s->at++;
    MB_TRY(buf_status(b, what, err));
    *out = (struct str){ b->data ? b->data : "", b->len };
    return MB_OK;
}

static mb_status read_id(struct scan *s, int32_t *out, mb_error *err)
{
    int64_t v = 0;
    const char *first = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9' && v < TOKENIZER_MAX_ID) v = v * 10 + (*s->at++ - '0');
    if (s->at == first || v >= TOKENIZER_MAX_ID || (*first == '0' && s->at - first > 1)) {
        s->at = first;
        return scan_bad(s, "model.vocab", "a token id from 0 to 4194303", err);
    }
    *out = (int32_t)v;
    return MB_OK;
}

/* One comma, or the closing bracket (*done). */
static mb_status read_comma(struct scan *s, char close, bool *done, const char *what, mb_error *err)
{
    skip_space(s);
    if (s->at < s->end && (*s->at == ',' || *s->at == close)) {
        *done = *s->at++ == close;
        skip_space(s);
        return MB_OK;
    }
    return scan_bad(s, what, close == '}' ? "',' or '}'" : "',' or ']'", err);
}

static mb_status read_open(struct scan *s, char open, char close, bool *done, const char *what, mb_error *err)
{
    skip_space(s);
    if (s->at >= s->end || *s->at != open) return scan_bad(s, what, open == '{' ? "an object" : "an array", err);
    s->at++;
    skip_space(s);
    *done = s->at < s->end && *s->at == close;
    if (*done) s->at++;
    return MB_OK;
}

static mb_status vocab_entries(struct scan *s, struct vocab *v, mb_error *err)
{
    bool done;
    MB_TRY(read_open(s, '{', '}', &done, "model.vocab", err));
    while (!done) {
        struct str key;
        int32_t id = -1;
        MB_TRY(read_string(s, &s->text, &key, "model.vocab", err));
        skip_space(s);
        if (s->at >= s->end || *s->at != ':') return scan_bad(s, "model.vocab", "':'", err);
        s->at++;
        skip_space(s);
        MB_TRY(read_id(s, &id, err));
        MB_TRY(vocab_put(v, key.ptr, key.len, id, err));
        MB_TRY(read_comma(s, '}', &done, "model.vocab", err));
    }
    return MB_OK;
}

static void scan_begin(struct scan *s, struct str json)
{
    *s = (struct scan){ .at = json.ptr, .end = json.ptr + json.len, .start = json.ptr };
    buf_init(&s->text, TOKENIZER_MAX_FILE);
    buf_init(&s->text2, TOKENIZER_MAX_FILE);
}

static void scan_end(struct scan *s)
{
    buf_free(&s->text);
    buf_free(&s->text2);
}

mb_status scan_vocab(struct str json, struct vocab *v, mb_error *err)
{
    struct scan s;
    scan_begin(&s, json);
    mb_status st = vocab_entries(&s, v, err);
    scan_end(&s);
    return st;
}

/* A number as the oracle reads it: its JSON reader takes the digits as one integer and scales it once, which now and then
 * is one unit in the last place beside the nearest double; ties between scores depend on it. */
static double scaled(uint64_t digits, int64_t exponent)
{
    double v = (double)digits;
    for (; exponent < -308 && v != 0.0; exponent += 308) v /= 1e308;
    if (v == 0.0) return v;
    static const double small[] = { 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    int64_t n = exponent < 0 ? -exponent : exponent;
    double power;
    if (n < 23) {
        power = small[n];
    } else {
        char text[16];
        snprintf(text, sizeof text, "1e%d", n > 309 ? 309 : (int)n);
        power = strtod(text, NULL); /* the nearest double */
    }
    return exponent < 0 ? v / power : v * power;
}

/* Digits into *v, until they no longer fit; how many were read and how many of them did not fit. */
static void read_digits(struct scan *s, uint64_t *v, bool *full, size_t *n, size_t *n_left)
{
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++, ++*n) {
        uint64_t d = (uint64_t)(*s->at - '0');
        *full |= *v > UINT64_MAX / 10 || (*v == UINT64_MAX / 10 && d > UINT64_MAX % 10);
        if (*full) ++*n_left;
        else *v = *v * 10 + d;
    }
}

static mb_status read_exponent(struct scan *s, int64_t *out, mb_error *err)
{
    bool minus = false;
    int64_t e = 0;
    s->at++;
    if (s->at < s->end && (*s->at == '+' || *s->at == '-')) minus = *s->at++ == '-';
    if (s->at >= s->end || *s->at < '0' || *s->at > '9') return scan_bad(s, "model.vocab", "the digits of an exponent", err);
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++)
        if (e < 100000000) e = e * 10 + (*s->at - '0');
    *out += minus ? -e : e;
    return MB_OK;
}

static mb_status read_score(struct scan *s, double *out, mb_error *err)
{
    bool minus = s->at < s->end && *s->at == '-', full = false;
    uint64_t digits = 0;
    size_t n = 0, n_left = 0, n_fraction = 0, n_fraction_left = 0;
    if (minus) s->at++;
    const char *first = s->at;
    read_digits(s, &digits, &full, &n, &n_left);
    if (!n || (*first == '0' && n > 1)) return scan_bad(s, "model.vocab", "a score", err);
    int64_t exponent = (int64_t)n_left;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        read_digits(s, &digits, &full, &n_fraction, &n_fraction_left);
        if (!n_fraction) return scan_bad(s, "model.vocab", "a digit behind the point", err);
        exponent -= (int64_t)(n_fraction - n_fraction_left);
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) MB_TRY(read_exponent(s, &exponent, err));
    *out = scaled(digits, exponent);
    if (minus) *out = -*out;
    return isfinite(*out) ? MB_OK : scan_bad(s, "model.vocab", "a score of the range of doubles", err);
}

static mb_status piece_entries(struct scan *s, scan_piece_fn piece, void *ctx, mb_error *err)
{
    static const char what[] = "model.vocab";
    bool done;
    MB_TRY(read_open(s, '[', ']', &done, what, err));
    while (!done) {
        struct str text;
        double score = 0;
        bool closed;
        MB_TRY(read_open(s, '[', ']', &closed, what, err));
        if (closed) return scan_bad(s, what, "a piece and its score", err);
        MB_TRY(read_string(s, &s->text, &text, what, err));
        MB_TRY(read_comma(s, ']', &closed, what, err));
        if (closed) return scan_bad(s, what, "the score of a piece", err);
        MB_TRY(read_score(s, &score, err));
        MB_TRY(read_comma(s, ']', &closed, what, err));
        if (!closed) return scan_bad(s, what, "only a piece and its score", err);
        MB_TRY(piece(ctx, text, score, err));
        MB_TRY(read_comma(s, ']', &done, what, err));
    }
    return MB_OK;
}

mb_status scan_pieces(struct str json, scan_piece_fn piece, void *ctx, mb_error *err)
{
    struct scan s;
    scan_begin(&s, json);
    mb_status st = piece_entries(&s, piece, ctx, err);
    scan_end(&s);
    return st;
}

/* ["a", "b"] */
static mb_status merge_pair(struct scan *s, struct str *left, struct str *right, mb_error *err)
{
    bool done;
    MB_TRY(read_open(s, '[', ']', &done, "model.merges", err));
    if (done) return scan_bad(s, "model.merges", "two pieces", err);
    MB_TRY(read_string(s, &s->text, left, "model.merges", err));
    MB_TRY(read_comma(s, ']', &done, "model.merges", err));
    if (done) return scan_bad(s, "model.merges", "a second piece", err);
    MB_TRY(read_string(s, &s->text2, right, "model.merges", err));
    MB_TRY(read_comma(s, ']', &done, "model.merges", err));
    return done ? MB_OK : scan_bad(s, "model.merges", "only two pieces", err);
}

/* "a b" */
static mb_status merge_line(struct scan *s, struct str *left, struct str *right, bool *skip, mb_error *err)
{
    struct str line;
    MB_TRY(read_string(s, &s->text, &line, "model.merges", err));
    *skip = str_starts(line, STR_LIT("#version"));
    if (*skip) return MB_OK;
    const char *space = line.len ? memchr(line.ptr, ' ', line.len) : NULL;
    size_t n_left = space ? (size_t)(space - line.ptr) : 0;
    if (!space || memchr(space + 1, ' ', line.len - n_left - 1))
        return scan_bad(s, "model.merges", "two pieces with one space between", err);
    *left = (struct str){ line.ptr, n_left };
    *right = (struct str){ space + 1, line.len - n_left - 1 };
    return MB_OK;
}

static mb_status merge_entries(struct scan *s, scan_merge_fn merge, void *ctx, mb_error *err)
{
    bool done;
    uint32_t i = 0;
    MB_TRY(read_open(s, '[', ']', &done, "model.merges", err));
    while (!done) {
        struct str left = { 0 }, right = { 0 };
        bool skip = false;
        if (s->at < s->end && *s->at == '[') MB_TRY(merge_pair(s, &left, &right, err));
        else MB_TRY(merge_line(s, &left, &right, &skip, err));
        if (!skip) MB_TRY(merge(ctx, i++, left, right, err));
        MB_TRY(read_comma(s, ']', &done, "model.merges", err));
    }
    return MB_OK;
}

mb_status scan_merges(struct str json, scan_merge_fn merge, void *ctx, mb_error *err)
{
    struct scan s;
    scan_begin(&s, json);
    mb_status st = merge_entries(&s, merge, ctx, err);
    scan_end(&s);
    return st;
}
