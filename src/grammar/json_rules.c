/* json_rules.c: free JSON: the rules that every schema shares.
 *
 * White space is bounded (B-070): behind `{ [ ,` and before `} ]` nothing, one space, or a line end with at most 40
 * spaces and tabs; behind `:` nothing or one space; nowhere else. Free strings take every legal escape, with
 * surrogates in pairs; everything that is compared (keys, enum, pattern) has one spelling, FORM_JSON.
 * Integers have no leading zeros and no "-0"; an exponent follows one digit and stays below 308, so that every number
 * fits a double.
 */
#include <stdio.h>
#include <string.h>

#include "grammar/grammar_int.h"

/* The rule's call, made by fn at the first use. A rule's number is known before its body, so bodies may recurse. */
static struct expr *once(struct build *b, int32_t *rule, const char *name, struct expr *(*fn)(struct build *))
{
    if (*rule < 0) {
        *rule = build_rule_new(b, name);
        if (*rule < 0) return NULL;
        int32_t i = *rule;
        struct expr *body = fn(b);
        if (b->status == MB_OK) b->rules[i].body = body;
    }
    return expr_rule(b, *rule);
}

static struct expr *chars(struct build *b, const char *set)
{
    struct cset s = { 0 };
    for (const char *p = set; *p; p += 2) cset_add(b, &s, (unsigned char)p[0], (unsigned char)p[1]);
    cset_normalize(&s);
    return b->status == MB_OK ? expr_class(b, &s, FORM_RAW) : NULL;
}

/* --- white space --- */

static struct expr *make_indent(struct build *b)
{
    return expr_seq2(b, expr_lit(b, "\n"), expr_repeat(b, chars(b, "  \t\t"), 0, 40));
}

struct expr *json_ws(struct build *b)
{
    struct expr *indent = once(b, &b->rule_json_indent, "white space", make_indent);
    return expr_alt2(b, expr_opt(b, expr_lit(b, " ")), indent);
}

/* --- strings --- */

static struct expr *hex(struct build *b)
{
    return chars(b, "09afAF");
}

static struct expr *unicode_escape(struct build *b)
{
    struct expr *h = hex(b), *d = chars(b, "ddDD");
    struct expr *plain = expr_alt2(b, expr_seq(b, 4, chars(b, "09acefACEF"), h, h, h), expr_seq(b, 4, d, chars(b, "07"), h, h));
    struct expr *pair = expr_seq(b, 8, d, chars(b, "89abAB"), h, h, expr_lit(b, "\\u"), d, chars(b, "cfCF"), expr_seq2(b, h, h));
    return expr_seq2(b, expr_lit(b, "u"), expr_alt2(b, plain, pair));
}

static struct expr *make_char(struct build *b)
{
    struct cset s = { 0 };
    cset_add(b, &s, 0x20, '"' - 1);
    cset_add(b, &s, '"' + 1, '\\' - 1);
    cset_add(b, &s, '\\' + 1, 0x10FFFF);
    cset_normalize(&s);
    if (b->status != MB_OK) return NULL;
    struct expr *escape = expr_alt2(b, chars(b, "\"\"\\\\//bbffnnrrtt"), unicode_escape(b));
    return expr_alt2(b, expr_class(b, &s, FORM_RAW), expr_seq2(b, expr_lit(b, "\\"), escape));
}

static struct expr *quoted(struct build *b, struct expr *inside)
{
    return expr_seq(b, 3, expr_lit(b, "\""), inside, expr_lit(b, "\""));
}

static struct expr *make_string(struct build *b)
{
    return quoted(b, expr_repeat(b, make_char(b), 0, REPEAT_INF));
}

struct expr *json_string_rule(struct build *b)
{
    return once(b, &b->rule_json_string, "string", make_string);
}

struct expr *json_string_chars(struct build *b, uint32_t lo, uint32_t hi)
{
    if (!lo && hi == REPEAT_INF) return json_string_rule(b);
    return quoted(b, expr_counted(b, once(b, &b->rule_json_char, "character", make_char), lo, hi));
}

struct dfa *json_any_string_dfa(struct build *b)
{
    struct cset s = { 0 };
    cset_add(b, &s, 0, 0x10FFFF);
    cset_normalize(&s);
    if (b->status != MB_OK) return NULL;
    return dfa_of_expr(b, expr_repeat(b, expr_class(b, &s, FORM_JSON), 0, REPEAT_INF), false, FORM_JSON, "string");
}

void json_text_form(struct buf *out, const char *s, size_t len)
{
    static const char letters[] = "\b\f\n\r\t\"\\", names[] = "bfnrt\"\\";
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *p = c ? memchr(letters, c, sizeof letters - 1) : NULL;
        if (p) buf_printf(out, "\\%c", names[p - letters]);
        else if (c < 0x20) buf_printf(out, "\\u%04x", c);
        else buf_append_char(out, (char)c);
    }
}

/* --- numbers --- */

static struct expr *make_integer(struct build *b)
{
    struct expr *digits = expr_seq2(b, chars(b, "19"), expr_repeat(b, chars(b, "09"), 0, REPEAT_INF));
    return expr_alt2(b, expr_lit(b, "0"), expr_seq2(b, expr_opt(b, expr_lit(b, "-")), digits));
}

struct expr *json_integer_rule(struct build *b)
{
    return once(b, &b->rule_json_integer, "integer", make_integer);
}

static struct expr *exponent(struct build *b)
{
    struct expr *d = chars(b, "09"), *small = expr_seq2(b, d, expr_opt(b, d));
    struct expr *large = expr_alt2(b, expr_seq(b, 3, chars(b, "12"), d, d), expr_seq2(b, expr_lit(b, "30"), chars(b, "07")));
    struct expr *sign = expr_opt(b, chars(b, "++--"));
    return expr_seq(b, 3, chars(b, "eeEE"), sign, expr_alt2(b, small, large));
}

static struct expr *make_number(struct build *b)
{
    struct expr *d = chars(b, "09"), *fraction = expr_seq2(b, expr_lit(b, "."), expr_repeat(b, d, 1, REPEAT_INF));
    struct expr *minus = expr_opt(b, expr_lit(b, "-")), *zero = expr_lit(b, "0");
    struct expr_list l = { 0 };
    expr_list_add(b, &l, zero);
    expr_list_add(b, &l, expr_seq(b, 3, minus, zero, fraction));
    expr_list_add(b, &l, expr_seq(b, 4, minus, chars(b, "19"), expr_repeat(b, d, 0, REPEAT_INF), expr_opt(b, fraction)));
    expr_list_add(b, &l, expr_seq(b, 4, minus, chars(b, "19"), expr_opt(b, fraction), exponent(b)));
    return b->status == MB_OK ? expr_alt_list(b, &l) : NULL;
}

struct expr *json_number_rule(struct build *b)
{
    return once(b, &b->rule_json_number, "number", make_number);
}

/* --- values --- */

/* open (item (, item)*)? close */
static struct expr *bracketed(struct build *b, const char *open, struct expr *item, const char *close)
{
    struct expr *ws = json_ws(b);
    struct expr *rest = expr_repeat(b, expr_seq(b, 3, expr_lit(b, ","), ws, item), 0, REPEAT_INF);
    struct expr *filled = expr_opt(b, expr_seq(b, 3, item, rest, ws));
    return expr_seq(b, 4, expr_lit(b, open), ws, filled, expr_lit(b, close));
}

static struct expr *make_object(struct build *b)
{
    struct expr *colon = expr_seq2(b, expr_lit(b, ":"), expr_opt(b, expr_lit(b, " ")));
    return bracketed(b, "{", expr_seq(b, 3, json_string_rule(b), colon, json_value_rule(b)), "}");
}

struct expr *json_object_rule(struct build *b)
{
    return once(b, &b->rule_json_object, "object", make_object);
}

static struct expr *make_value(struct build *b)
{
    struct expr_list l = { 0 };
    expr_list_add(b, &l, json_string_rule(b));
    expr_list_add(b, &l, json_number_rule(b));
    expr_list_add(b, &l, json_object_rule(b));
    expr_list_add(b, &l, bracketed(b, "[", json_value_rule(b), "]"));
    expr_list_add(b, &l, expr_lit(b, "true"));
    expr_list_add(b, &l, expr_lit(b, "false"));
    expr_list_add(b, &l, expr_lit(b, "null"));
    return b->status == MB_OK ? expr_alt_list(b, &l) : NULL;
}

struct expr *json_value_rule(struct build *b)
{
    return once(b, &b->rule_json_value, "value", make_value);
}

/* --- values written out --- */

static struct expr *literal_text(struct build *b, const json_t *v)
{
    struct buf out;
    buf_init(&out, GRAMMAR_MAX_TEXT);
    if (json_is_text(v)) {
        buf_append_char(&out, '"');
        json_text_form(&out, json_string_value(v), json_string_length(v));
        buf_append_char(&out, '"');
    } else {
        json_write(&out, v, NULL);
    }
    struct expr *x = NULL;
    if (out.failed != MB_OK) build_fail(b, out.failed, "a constant of the schema is too large");
    else x = expr_bytes(b, out.data, out.len);
    /* 1.0 may also be written 1: the same number */
    double d = x && json_is_real(v) ? json_real_value(v) : 0.5;
    if (d > -9e15 && d < 9e15 && d == (double)(int64_t)d) {
        char text[32];
        int n = snprintf(text, sizeof text, "%lld", (long long)d);
        x = expr_alt2(b, x, expr_bytes(b, text, (size_t)n));
    }
    buf_free(&out);
    return x;
}

static struct expr *literal_pair(struct build *b, const char *key, size_t len, const json_t *v)
{
    struct buf out;
    buf_init(&out, GRAMMAR_MAX_TEXT);
    buf_append_char(&out, '"');
    json_text_form(&out, key, len);
    buf_append_str(&out, "\":");
    struct expr *x = NULL;
    if (out.failed != MB_OK) build_fail(b, out.failed, "a constant of the schema is too large");
    else x = expr_seq(b, 3, expr_bytes(b, out.data, out.len), expr_opt(b, expr_lit(b, " ")), json_literal(b, v));
    buf_free(&out);
    return x;
}

struct expr *json_literal(struct build *b, const json_t *v)
{
    if (b->status != MB_OK) return NULL;
    if (!json_is_object(v) && !json_is_array(v)) return literal_text(b, v);
    bool object = json_is_object(v);
    size_t n = object ? json_object_size(v) : json_array_size(v), i = 0;
    struct expr *ws = json_ws(b), *comma = expr_seq2(b, expr_lit(b, ","), ws);
    struct expr_list l = { 0 };
    expr_list_add(b, &l, expr_lit(b, object ? "{" : "["));
    expr_list_add(b, &l, ws);
    if (object) {
        for (void *it = json_object_iter((json_t *)v); it; it = json_object_iter_next((json_t *)v, it)) {
            if (i++) expr_list_add(b, &l, comma);
            expr_list_add(b, &l, literal_pair(b, json_object_iter_key(it), json_object_iter_key_len(it),
                                              json_object_iter_value(it)));
        }
    } else {
        for (; i < n; i++) {
            if (i) expr_list_add(b, &l, comma);
            expr_list_add(b, &l, json_literal(b, json_array_get(v, i)));
        }
    }
    if (n) expr_list_add(b, &l, ws);
    expr_list_add(b, &l, expr_lit(b, object ? "}" : "]"));
    return b->status == MB_OK ? expr_seq_list(b, &l) : NULL;
}
