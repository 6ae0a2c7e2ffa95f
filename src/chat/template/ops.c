/* ops.c: arithmetic and repetition, with Python's results: floor division and modulo follow the divisor's sign, "/"
 * makes floats, bool counts as int. Sums and products beyond 64 bits become TV_BIG (text, exact); calculating on with
 * one of those is refused. Numbers in text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template/tmpl_rt.h"

static struct tv bad_operands(struct render *r, int op, struct tv a, struct tv b)
{
    static const char *const names[] = { "+", "-", "*", "/", "//", "%", "**" };
    struct tv undef = a.type == TV_UNDEF ? a : b;
    if (undef.type == TV_UNDEF)
        return render_fail(r, MB_INVALID, "%s", undef.u.hint ? undef.u.hint : "a value is undefined");
    if (a.type == TV_BIG || b.type == TV_BIG)
        return render_type_error(r, "arithmetic on an integer beyond 64 bits is not supported");
    return render_type_error(r, "unsupported operand type(s) for %s: '%s' and '%s'", names[op - T_ADD],
                             tv_type_name(a), tv_type_name(b));
}

static struct tv wide_int(struct render *r, __int128 v)
{
    char text[48];
    size_t at = sizeof text;
    if (v >= INT64_MIN && v <= INT64_MAX) return tv_int((int64_t)v);
    bool neg = v < 0;
    unsigned __int128 u = neg ? -(unsigned __int128)v : (unsigned __int128)v;
    for (; u; u /= 10) text[--at] = (char)('0' + (int)(u % 10));
    if (neg) text[--at] = '-';
    char *copy = arena_strndup(r->a, text + at, sizeof text - at);
    if (!copy) return render_fail(r, MB_NO_MEMORY, "no memory");
    return (struct tv){ .type = TV_BIG, .u.big = copy };
}

static struct tv int_pow(struct render *r, int64_t base, int64_t exp)
{
    if (exp < 0) {
        if (base == 0) return render_type_error(r, "0.0 cannot be raised to a negative power");
        return tv_float(pow((double)base, (double)exp));
    }
    int64_t res = 1;
    while (exp) {
        if ((exp & 1) && __builtin_mul_overflow(res, base, &res)) break;
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base)) break;
    }
    if (exp) return render_type_error(r, "the power is an integer beyond 64 bits");
    return tv_int(res);
}

static struct tv int_op(struct render *r, int op, int64_t a, int64_t b)
{
    if (op == T_ADD) return wide_int(r, (__int128)a + b);
    if (op == T_SUB) return wide_int(r, (__int128)a - b);
    if (op == T_MUL) return wide_int(r, (__int128)a * b);
    if (op == T_POW) return int_pow(r, a, b);
    if (b == 0) return render_type_error(r, op == T_DIV ? "division by zero" : "integer division or modulo by zero");
    if (op == T_DIV) return tv_float((double)((long double)a / (long double)b));
    if (b == -1) return op == T_MOD ? tv_int(0) : wide_int(r, -(__int128)a);
    int64_t q = a / b, m = a % b;
    if (m && ((m < 0) != (b < 0))) { q--; m += b; }
    return tv_int(op == T_MOD ? m : q);
}

static struct tv float_op(struct render *r, int op, double a, double b)
{
    if (op == T_ADD) return tv_float(a + b);
    if (op == T_SUB) return tv_float(a - b);
    if (op == T_MUL) return tv_float(a * b);
    if (op == T_POW) {
        if (a == 0 && b < 0) return render_type_error(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
            return render_type_error(r, "the power is a complex number");
        double p = pow(a, b);
        if (isinf(p) && isfinite(a) && isfinite(b)) return render_type_error(r, "numerical result out of range");
        return tv_float(p);
    }
    if (b == 0) return render_type_error(r, "float division by zero");
    if (op == T_DIV) return tv_float(a / b);
    double m = fmod(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) { m += b; q -= 1; }
    else if (m == 0) m = copysign(0.0, b);
    if (op == T_MOD) return tv_float(m);
    if (q == 0) return tv_float(copysign(0.0, a / b));
    double f = floor(q);
    return tv_float(q - f > 0.5 ? f + 1 : f);
}

static struct tv seq_concat(struct render *r, struct tv a, struct tv b)
{
    struct tlist *x = tv_items(r, a), *y = tv_items(r, b);
    struct tv out = render_step(r, x->n + y->n) ? tv_list_new(r, (enum tv_type)a.type, x->n + y->n, a.org)
                                                : tv_undef(NULL);
    if (!tv_is_seq(out)) return out;
    if (x->n) memcpy(out.u.list->items, x->items, x->n * sizeof *x->items);
    if (y->n) memcpy(out.u.list->items + x->n, y->items, y->n * sizeof *y->items);
    return out;
}

static struct tv seq_repeat(struct render *r, struct tv a, int64_t times)
{
    struct tlist *x = tv_items(r, a);
    uint64_t n = times > 0 ? (uint64_t)times : 0, total;
    if (__builtin_mul_overflow(n, (uint64_t)x->n, &total) || total > r->max_bytes / sizeof(struct tv))
        return render_fail(r, MB_TOO_LARGE, "a repeated list would be too long");
    struct tv out = render_step(r, total) ? tv_list_new(r, (enum tv_type)a.type, total, a.org) : tv_undef(NULL);
    if (!tv_is_seq(out)) return out;
    for (uint64_t i = 0; i < total; i++) out.u.list->items[i] = x->items[i % x->n];
    return out;
}

static struct tv escape_operand(struct render *r, struct tv v, bool needed)
{
    if (!needed || v.u.s->safe) return v;
    struct func_call none = { 0 };
    const struct filter_row *f = filter_find(STR_LIT("escape"));
    return func_call_row(r, &f->f, v, &none);
}

static struct tv str_concat(struct render *r, struct tv a, struct tv b)
{
    struct tsb out;
    bool safe = a.u.s->safe || b.u.s->safe; /* Markup escapes what is added to it */
    tsb_init(&out, r);
    tsb_add_str(&out, escape_operand(r, a, safe));
    tsb_add_str(&out, escape_operand(r, b, safe));
    struct tv v = tsb_take(&out);
    if (tv_is_str(v)) v.u.s->safe = safe;
    return v;
}

static struct tv repeat_any(struct render *r, struct tv seq, struct tv times)
{
    if (tv_is_str(seq)) return tv_str_repeat(r, seq, tv_as_int(times));
    return seq_repeat(r, seq, tv_as_int(times));
}

struct tv tv_binary(struct render *r, int op, struct tv a, struct tv b)
{
    if (r->status) return tv_undef(NULL);
    if (tv_is_int(a) && tv_is_int(b)) return int_op(r, op, tv_as_int(a), tv_as_int(b));
    bool numbers = (tv_is_int(a) || a.type == TV_FLOAT) && (tv_is_int(b) || b.type == TV_FLOAT);
    if (numbers)
        return float_op(r, op, a.type == TV_FLOAT ? a.u.f : (double)tv_as_int(a),
                        b.type == TV_FLOAT ? b.u.f : (double)tv_as_int(b));
    if (op == T_ADD && tv_is_str(a) && tv_is_str(b)) return str_concat(r, a, b);
    if (op == T_ADD && tv_is_seq(a) && a.type == b.type) return seq_concat(r, a, b);
    if (op == T_MUL && (tv_is_str(a) || tv_is_seq(a)) && tv_is_int(b)) return repeat_any(r, a, b);
    if (op == T_MUL && (tv_is_str(b) || tv_is_seq(b)) && tv_is_int(a)) return repeat_any(r, b, a);
    if (op == T_MOD && tv_is_str(a)) return format_percent(r, a, b);
    return bad_operands(r, op, a, b);
}

struct tv tv_negate(struct render *r, struct tv a, bool neg)
{
    if (r->status) return tv_undef(NULL);
    if (tv_is_int(a)) return neg ? wide_int(r, -(__int128)tv_as_int(a)) : tv_int(tv_as_int(a));
    if (a.type == TV_FLOAT) return tv_float(neg ? -a.u.f : a.u.f);
    if (a.type == TV_BIG && !neg) return a;
    if (a.type == TV_BIG) {
        const char *text = a.u.big[0] == '-' ? arena_strdup(r->a, a.u.big + 1) : arena_printf(r->a, "-%s", a.u.big);
        if (!text) return render_fail(r, MB_NO_MEMORY, "no memory");
        if (strcmp(text, "-9223372036854775808") == 0) return tv_int(INT64_MIN);
        return (struct tv){ .type = TV_BIG, .u.big = text };
    }
    if (a.type == TV_UNDEF) return render_fail(r, MB_INVALID, "%s", a.u.hint ? a.u.hint : "a value is undefined");
    return render_type_error(r, "bad operand type for unary %c: '%s'", neg ? '-' : '+', tv_type_name(a));
}

/* ---- numbers in text ---- */

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'z') return (c | 32) - 'a' + 10;
    return 99;
}

/* Python's int(text, base): blanks around, a sign, a prefix that fits the base, single underscores between digits. */
struct tv tv_int_parse(struct render *r, const char *s, size_t len, int base, bool *ok)
{
    size_t at = text_lstrip_len(s, len), end = text_rstrip_len(s, len), n_digits = 0;
    bool neg = false, big = false;
    *ok = false;
    if (at < end && (s[at] == '+' || s[at] == '-')) neg = s[at++] == '-';
    if (end - at > 2 && at < end && s[at] == '0') {
        char c = (char)(s[at + 1] | 32);
        int prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (prefix && (base == prefix || base == 0)) { base = prefix; at += 2; if (at < end && s[at] == '_') at++; }
    }
    if (base == 0) base = 10;
    int64_t v = 0;
    size_t first = at;
    for (; at < end; at++) {
        if (s[at] == '_' && n_digits && at + 1 < end && s[at - 1] != '_') continue;
        int d = digit_of(s[at]);
        if (d >= base) return tv_none();
        n_digits++;
        if (!big && (__builtin_mul_overflow(v, (int64_t)base, &v) || __builtin_add_overflow(v, (int64_t)d, &v))) big = true;
    }
    if (!n_digits || s[end - 1] == '_') return tv_none();
    *ok = true;
    if (!big) return tv_int(neg ? -v : v);
    if (base != 10 || memchr(s + first, '_', end - first))
        return render_type_error(r, "an integer beyond 64 bits is supported in plain decimal only");
    while (first + 1 < end && s[first] == '0') first++;
    char *text = arena_printf(r->a, "%s%.*s", neg ? "-" : "", (int)(end - first), s + first);
    if (!text) return render_fail(r, MB_NO_MEMORY, "no memory");
    return (struct tv){ .type = TV_BIG, .u.big = text };
}

bool tv_float_parse(const char *s, size_t len, double *out)
{
    size_t at = text_lstrip_len(s, len), end = text_rstrip_len(s, len);
    char buf[400];
    size_t n = 0;
    if (at >= end || end - at >= sizeof buf) return false;
    for (; at < end; at++) {
        char c = s[at];
        if (c == '_' && n && at + 1 < end && digit_of(s[at - 1]) < 10 && digit_of(s[at + 1]) < 10) continue;
        if (c == 'x' || c == 'X' || c == '(' || (unsigned char)c < 0x21) return false; /* strtod takes more than Python */
        buf[n++] = c;
    }
    buf[n] = 0;
    char *stop;
    *out = strtod(buf, &stop);
    return stop == buf + n;
}
