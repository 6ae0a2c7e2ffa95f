/* format.c: "%s %d" % args (also the filter format) and "{} {name}".format(...), with Python's specifications for
 * strings, integers and floats. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "chat/template/tmpl_rt.h"

#define MAX_WIDTH 10000 /* of a number; strings are bounded by the ceiling of every string */

/* A parsed specification, of either kind. */
struct spec {
    char fill[5];
    char align;      /* '<' '>' '=' '^', 0 */
    char sign;       /* '+' ' ' '-', 0 */
    bool alt, zero;
    char group;      /* ',' '_', 0 */
    int64_t width;   /* -1: none */
    int64_t prec;    /* -1: none */
    char type;       /* 0: none */
};

static struct tv repeat_fill(struct render *r, const struct spec *s, int64_t n)
{
    const char *fill = s->fill[0] ? s->fill : " ";
    return tv_str_repeat(r, tv_str(r, fill, strlen(fill), ORG_TEMPLATE), n);
}

/* Pad body (its first n_head characters are sign and prefix) to the width. */
static struct tv pad(struct render *r, const struct spec *s, struct tv body, size_t n_head, char dflt_align)
{
    size_t n;
    struct tsb b;
    if (!tv_is_str(body)) return body;
    tv_len(r, body, &n);
    int64_t space = s->width - (int64_t)n;
    if (space <= 0) return body;
    char align = s->align ? s->align : dflt_align;
    int64_t left = align == '<' ? 0 : align == '^' ? space / 2 : space;
    tsb_init(&b, r);
    if (align == '=') tsb_add_range(&b, body, 0, n_head);
    tsb_add_str(&b, repeat_fill(r, s, left));
    tsb_add_range(&b, body, align == '=' ? n_head : 0, body.u.s->len);
    tsb_add_str(&b, repeat_fill(r, s, space - left));
    return tsb_take(&b);
}

static size_t group_digits(char *out, const char *digits, size_t n, char sep, size_t every)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && (n - i) % every == 0) out[k++] = sep;
        out[k++] = digits[i];
    }
    return k;
}

static size_t digits_of(uint64_t u, int base, bool upper, char out[68])
{
    static const char low[] = "0123456789abcdef", up[] = "0123456789ABCDEF";
    char tmp[68];
    size_t n = 0;
    do { tmp[n++] = (upper ? up : low)[u % (unsigned)base]; u /= (unsigned)base; } while (u);
    for (size_t i = 0; i < n; i++) out[i] = tmp[n - 1 - i];
    return n;
}

static struct tv format_int(struct render *r, struct spec *s, struct tv v, bool percent)
{
    char digits[100], out[256], big_sign = 0;
    size_t n, k = 0;
    int base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    int64_t i = v.type == TV_BIG ? 0 : tv_as_int(v);
    if (v.type == TV_BIG) {
        if (base != 10 || strlen(v.u.big) > 60) return render_type_error(r, "this integer is too big to format");
        big_sign = v.u.big[0] == '-' ? '-' : 0;
        n = strlen(v.u.big + (big_sign ? 1 : 0));
        memcpy(digits, v.u.big + (big_sign ? 1 : 0), n);
    } else {
        n = digits_of(i < 0 ? 0 - (uint64_t)i : (uint64_t)i, base, s->type == 'X', digits);
    }
    if (i < 0 || big_sign) out[k++] = '-';
    else if (s->sign == '+' || s->sign == ' ') out[k++] = s->sign;
    if (s->alt && base != 10) { out[k++] = '0'; out[k++] = s->type; }
    size_t head = k;
    if (percent && s->prec > (int64_t)n) {
        int64_t zeros = s->prec - (int64_t)n;
        if (zeros > 60) return render_type_error(r, "the precision of an integer is too large");
        for (; zeros; zeros--) out[k++] = '0';
    }
    if (s->group) k += group_digits(out + k, digits, n, s->group, base == 10 ? 3 : 4);
    else { memcpy(out + k, digits, n); k += n; }
    return pad(r, s, tv_str_copy(r, out, k, v.org), head, '>');
}

static void upper_case(char *p)
{
    for (; *p; p++)
        if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 32);
}

/* The digits of |d| in the way of `type`. false: too long. */
static bool float_digits(const struct spec *s, double d, char *out, size_t cap)
{
    int prec = s->prec < 0 ? 6 : (int)s->prec;
    char type = (char)(s->type | 32);
    if (s->prec > 120) return false;
    if (!isfinite(d)) { strcpy(out, isnan(d) ? "nan" : "inf"); return true; }
    if (s->type == 0 && s->prec < 0) {
        float_repr(d, out);
    } else if (s->type == 0) { /* like g, but with one decimal at least */
        char tmp[160];
        snprintf(tmp, sizeof tmp, "%.*g", prec ? prec : 1, d);
        snprintf(out, cap, "%s%s", tmp, strpbrk(tmp, ".e") ? "" : ".0");
        if (!strpbrk(tmp, ".e") && (int)strlen(tmp) >= (prec ? prec : 1)) { /* no room: scientific */
            snprintf(tmp, sizeof tmp, "%.*e", prec ? prec - 1 : 0, d);
            if (prec <= (int)floor(log10(d > 0 ? d : 1)) + 0) strcpy(out, tmp);
        }
    } else if (type == 'e') {
        snprintf(out, cap, s->alt ? "%#.*e" : "%.*e", prec, d);
    } else if (type == 'g' || type == 'n') {
        snprintf(out, cap, s->alt ? "%#.*g" : "%.*g", prec, d);
    } else {
        snprintf(out, cap, s->alt ? "%#.*f" : "%.*f", prec, d);
    }
    return true;
}

static struct tv format_float(struct render *r, struct spec *s, double d, uint32_t org)
{
    char digits[480], out[700];
    size_t k = 0;
    bool is_percent = s->type == '%';
    if (is_percent) d *= 100;
    if (!float_digits(s, fabs(d), digits, sizeof digits)) return render_type_error(r, "the precision is too large");
    if (signbit(d) && !isnan(d)) out[k++] = '-';
    else if (s->sign == '+' || s->sign == ' ') out[k++] = s->sign;
    size_t head = k, n_int = strspn(digits, "0123456789");
    if (s->group) k += group_digits(out + k, digits, n_int, s->group, 3);
    else { memcpy(out + k, digits, n_int); k += n_int; }
    strcpy(out + k, digits + n_int);
    k += strlen(digits + n_int);
    if (is_percent) out[k++] = '%';
    out[k] = 0;
    if (s->type == 'F' || s->type == 'E' || s->type == 'G') upper_case(out);
    return pad(r, s, tv_str_copy(r, out, k, org), head, '>');
}

static struct tv format_str(struct render *r, const struct spec *s, struct tv v, char dflt_align)
{
    if (s->prec >= 0) v = tv_slice(r, v, tv_none(), tv_int(s->prec), tv_none());
    return pad(r, s, v, 0, dflt_align);
}

static struct tv repr_value(struct render *r, struct tv v)
{
    struct tsb b;
    tsb_init(&b, r);
    tv_write_repr(&b, v);
    return tsb_take(&b);
}

static struct tv ascii_value(struct render *r, struct tv v)
{
    (void)v;
    return render_type_error(r, "the conversion 'a' is not supported");
}

/* ---- printf style ---- */

struct percent {
    struct render *r;
    const char *p, *end;
    struct tv args;  /* as given */
    bool is_tuple, is_mapping, used_mapping;
    size_t i_arg;
};

static struct tv next_arg(struct percent *f)
{
    if (f->is_tuple) {
        struct tlist *l = tv_items(f->r, f->args);
        if (f->i_arg < l->n) return l->items[f->i_arg++];
    } else if (f->i_arg++ == 0) {
        return f->args;
    }
    return render_type_error(f->r, "not enough arguments for format string");
}

static struct tv named_arg(struct percent *f)
{
    int depth = 1;
    const char *first = ++f->p;
    while (f->p < f->end && depth) {
        depth += *f->p == '(' ? 1 : *f->p == ')' ? -1 : 0;
        f->p++;
    }
    if (depth) return render_type_error(f->r, "incomplete format key");
    struct tv out, key = tv_str(f->r, first, (size_t)(f->p - 1 - first), ORG_TEMPLATE);
    f->used_mapping = true;
    if (f->args.type != TV_DICT) return render_type_error(f->r, "format requires a mapping");
    if (tv_is_str(key) && tv_dict_get(f->r, f->args, key, &out)) return out;
    return render_type_error(f->r, "the format names a key that is not there");
}

static int64_t number_or_star(struct percent *f, bool *negative)
{
    int64_t n = 0;
    *negative = false;
    if (f->p < f->end && *f->p == '*') {
        f->p++;
        struct tv v = next_arg(f);
        if (!tv_is_int(v)) { render_type_error(f->r, "* wants int"); return 0; }
        n = tv_as_int(v);
        *negative = n < 0;
        n = n < -MAX_WIDTH ? MAX_WIDTH : n < 0 ? -n : n;
    } else {
        while (f->p < f->end && *f->p >= '0' && *f->p <= '9' && n <= MAX_WIDTH) n = n * 10 + (*f->p++ - '0');
    }
    if (n > MAX_WIDTH) { render_fail(f->r, MB_TOO_LARGE, "a width or precision above %d", MAX_WIDTH); return 0; }
    return n;
}

static struct tv percent_number(struct render *r, struct spec *s, struct tv v)
{
    if (!tv_is_number(v) && v.type != TV_UNDEF)
        return render_type_error(r, "%%%c format: a real number is required, not %s", s->type, tv_type_name(v));
    if (v.type == TV_UNDEF) return render_fail(r, MB_INVALID, "%s", v.u.hint ? v.u.hint : "a value is undefined");
    if (s->zero && s->align != '<') { s->align = '='; strcpy(s->fill, "0"); }
    if (strchr("eEfFgG", s->type)) {
        double d = v.type == TV_FLOAT ? v.u.f : v.type == TV_BIG ? 0 : (double)tv_as_int(v);
        if (v.type == TV_BIG) return render_type_error(r, "this integer is too big to format");
        return format_float(r, s, d, v.org);
    }
    if (v.type == TV_FLOAT && strchr("xXo", s->type))
        return render_type_error(r, "%%%c format: an integer is required, not float", s->type);
    if (v.type == TV_FLOAT) {
        if (!isfinite(v.u.f) || fabs(v.u.f) > 9e18) return render_type_error(r, "cannot convert this float to integer");
        v = (struct tv){ .type = TV_INT, .org = v.org, .u.i = (int64_t)v.u.f };
    }
    if (s->type == 'i' || s->type == 'u') s->type = 'd';
    return format_int(r, s, v, true);
}

static struct tv percent_char(struct render *r, const struct spec *s, struct tv v)
{
    struct tsb b;
    size_t n = 0;
    if (tv_is_int(v)) {
        int64_t cp = tv_as_int(v);
        if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return render_type_error(r, "%%c arg not in range");
        tsb_init(&b, r);
        tsb_add_cp(&b, (uint32_t)cp, v.org);
        return pad(r, s, tsb_take(&b), 0, '>');
    }
    if (!tv_is_str(v) || !tv_len(r, v, &n) || n != 1) return render_type_error(r, "%%c requires int or char");
    return pad(r, s, v, 0, '>');
}

static struct tv percent_one(struct percent *f)
{
    struct spec s = { .width = -1, .prec = -1 };
    struct tv v = tv_absent();
    bool negative;
    f->p++;
    if (f->p < f->end && *f->p == '(') v = named_arg(f);
    for (; f->p < f->end && strchr("#0- +", *f->p) && *f->p; f->p++) {
        if (*f->p == '#') s.alt = true;
        else if (*f->p == '0') s.zero = true;
        else if (*f->p == '-') s.align = '<';
        else if (*f->p == '+' || s.sign != '+') s.sign = *f->p;
    }
    s.width = number_or_star(f, &negative);
    if (negative) s.align = '<';
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        s.prec = number_or_star(f, &negative);
        if (negative) s.prec = 0;
    }
    while (f->p < f->end && strchr("hlL", *f->p) && *f->p) f->p++;
    if (f->p >= f->end) return render_type_error(f->r, "incomplete format");
    s.type = *f->p++;
    if (s.type == '%') return tv_str(f->r, "%", 1, ORG_TEMPLATE);
    if (!strchr("sradiuoxXeEfFgGc", s.type) || !s.type) return render_type_error(f->r, "unsupported format character");
    if (v.type == TV_ABSENT) v = next_arg(f);
    if (f->r->status) return tv_undef(NULL);
    if (s.type == 's') return format_str(f->r, &s, tv_to_str(f->r, v), '>');
    if (s.type == 'r') return format_str(f->r, &s, repr_value(f->r, v), '>');
    if (s.type == 'a') return ascii_value(f->r, v);
    if (s.type == 'c') return percent_char(f->r, &s, v);
    return percent_number(f->r, &s, v);
}

struct tv format_percent(struct render *r, struct tv fmt, struct tv args)
{
    struct tsb b;
    if (!tv_is_str(fmt)) return tv_undef(NULL);
    struct percent f = { .r = r, .p = fmt.u.s->ptr, .end = fmt.u.s->ptr + fmt.u.s->len, .args = args };
    f.is_tuple = args.type == TV_TUPLE;
    f.is_mapping = args.type == TV_DICT || args.type == TV_LIST || args.type == TV_UNDEF || args.type == TV_RANGE;
    tsb_init(&b, r);
    while (f.p < f.end && render_step(r, 1)) {
        const char *pct = memchr(f.p, '%', (size_t)(f.end - f.p)), *stop = pct ? pct : f.end;
        tsb_add_range(&b, fmt, (size_t)(f.p - fmt.u.s->ptr), (size_t)(stop - fmt.u.s->ptr));
        f.p = stop;
        if (pct) tsb_add_str(&b, percent_one(&f));
    }
    if (r->status) return tv_undef(NULL);
    size_t n_given = f.is_tuple ? tv_items(r, args)->n : 1;
    if (f.i_arg < n_given && !f.is_mapping)
        return render_type_error(r, "not all arguments converted during string formatting");
    return tsb_take(&b);
}

/* ---- str.format ---- */

static bool parse_spec(struct render *r, struct str t, struct spec *s)
{
    const char *p = t.ptr, *end = p + t.len;
    *s = (struct spec){ .width = -1, .prec = -1 };
    size_t n = p < end ? text_step(p) : 0;
    if (n && p + n < end && strchr("<>=^", p[n]) && p[n]) {
        memcpy(s->fill, p, n);
        s->align = p[n];
        p += n + 1;
    } else if (p < end && strchr("<>=^", *p) && *p) {
        s->align = *p++;
    }
    if (p < end && strchr("+- ", *p) && *p) s->sign = *p++;
    if (p < end && *p == 'z') p++;
    if (p < end && *p == '#') { s->alt = true; p++; }
    if (p < end && *p == '0') {
        s->zero = true;
        if (!s->fill[0]) strcpy(s->fill, "0");
        p++;
    }
    if (p < end && *p >= '0' && *p <= '9') s->width = 0;
    while (p < end && *p >= '0' && *p <= '9' && s->width <= MAX_WIDTH) s->width = s->width * 10 + (*p++ - '0');
    if (p < end && (*p == ',' || *p == '_')) s->group = *p++;
    if (p < end && *p == '.') {
        s->prec = 0;
        if (++p >= end || *p < '0' || *p > '9') { render_type_error(r, "Format specifier missing precision"); return false; }
        while (p < end && *p >= '0' && *p <= '9' && s->prec <= MAX_WIDTH) s->prec = s->prec * 10 + (*p++ - '0');
    }
    if (p < end) s->type = *p++;
    if (s->width > MAX_WIDTH || s->prec > MAX_WIDTH) {
        render_fail(r, MB_TOO_LARGE, "a width or precision above %d", MAX_WIDTH);
        return false;
    }
    if (p == end) return true;
    render_type_error(r, "Invalid format specifier");
    return false;
}

struct tv format_value(struct render *r, struct tv v, struct str text)
{
    struct spec s;
    if (!text.len) return tv_to_str(r, v);
    if (r->status || !parse_spec(r, text, &s)) return tv_undef(NULL);
    if (tv_is_str(v)) {
        if ((s.type && s.type != 's') || s.sign || s.alt || s.group || s.align == '=')
            return render_type_error(r, "invalid format specification for 'str'");
        return format_str(r, &s, v, '<');
    }
    if (!tv_is_number(v)) return render_type_error(r, "unsupported format string passed to %s.__format__", tv_type_name(v));
    if (s.zero && !s.align) s.align = '=';
    bool as_float = v.type == TV_FLOAT || (s.type && strchr("eEfFgG%", s.type));
    if (as_float) {
        if ((s.type && !strchr("eEfFgGn%", s.type)) || v.type == TV_BIG)
            return render_type_error(r, "unknown format code for 'float'");
        return format_float(r, &s, v.type == TV_FLOAT ? v.u.f : (double)tv_as_int(v), v.org);
    }
    if (s.type == 'c') return percent_char(r, &s, v);
    if ((s.type && !strchr("bdnoxX", s.type)) || s.prec >= 0) return render_type_error(r, "invalid format for 'int'");
    if (s.type == 'n') s.type = 'd';
    return format_int(r, &s, v, false);
}

struct braces {
    struct render *r;
    const struct func_call *c;
    struct tv mapping; /* of format_map, or ABSENT */
    int64_t next;      /* automatic numbers; -1: the text numbers its fields itself */
    int depth;
};

static struct tv field_first(struct braces *f, struct str name)
{
    struct tv out;
    bool ok = false, digits = name.len > 0;
    for (size_t i = 0; i < name.len; i++) digits = digits && name.ptr[i] >= '0' && name.ptr[i] <= '9';
    int64_t i = 0;
    if (!name.len) {
        if (f->next < 0)
            return render_type_error(f->r, "cannot switch from manual field specification to automatic numbering");
        i = f->next++;
    } else if (digits) {
        if (f->next > 0)
            return render_type_error(f->r, "cannot switch from automatic field numbering to manual specification");
        f->next = -1;
        struct tv v = tv_int_parse(f->r, name.ptr, name.len, 10, &ok);
        i = ok && v.type == TV_INT ? v.u.i : INT64_MAX;
    } else {
        if (f->mapping.type == TV_DICT && tv_dict_get_str(f->r, f->mapping, name.ptr, name.len, &out)) return out;
        for (size_t k = 0; k < f->c->n_kw; k++)
            if (str_eq(f->c->kw_names[k], name)) return f->c->kw[k];
        return render_type_error(f->r, "the format names an argument that is not there");
    }
    if ((uint64_t)i >= f->c->n_args) return render_type_error(f->r, "Replacement index %lld out of range", (long long)i);
    return f->c->args[i];
}

/* name.attr[key] */
static struct tv field_get(struct braces *f, struct str name)
{
    size_t at = 0;
    while (at < name.len && name.ptr[at] != '.' && name.ptr[at] != '[') at++;
    struct tv v = field_first(f, (struct str){ name.ptr, at });
    while (at < name.len && !f->r->status) {
        size_t first = ++at;
        if (name.ptr[first - 1] == '.') {
            while (at < name.len && name.ptr[at] != '.' && name.ptr[at] != '[') at++;
            v = tv_getattr(f->r, v, (struct str){ name.ptr + first, at - first });
            continue;
        }
        while (at < name.len && name.ptr[at] != ']') at++;
        if (at >= name.len || name.ptr[first - 1] != '[') return render_type_error(f->r, "malformed field in format string");
        bool ok = false, digits = at > first;
        for (size_t i = first; i < at; i++) digits = digits && name.ptr[i] >= '0' && name.ptr[i] <= '9';
        struct tv key = digits ? tv_int_parse(f->r, name.ptr + first, at - first, 10, &ok)
                               : tv_str(f->r, name.ptr + first, at - first, ORG_TEMPLATE);
        v = tv_getitem(f->r, v, key);
        at++;
    }
    return v;
}

static void braces_run(struct braces *f, struct tsb *b, struct tv fmt, size_t at, size_t end);

static void braces_field(struct braces *f, struct tsb *b, struct tv fmt, size_t at, size_t end)
{
    const char *p = fmt.u.s->ptr;
    size_t first = at;
    int brackets = 0;
    while (at < end && (brackets || (p[at] != '!' && p[at] != ':'))) {
        brackets += p[at] == '[' ? 1 : p[at] == ']' ? -1 : 0;
        at++;
    }
    struct tv v = field_get(f, (struct str){ p + first, at - first });
    if (at < end && p[at] == '!') {
        char conv = at + 1 < end ? p[at + 1] : 0;
        at += 2;
        if (conv == 'r') v = repr_value(f->r, v);
        else if (conv == 's') v = tv_to_str(f->r, v);
        else { render_type_error(f->r, "unknown conversion in format string"); return; }
    }
    if (at < end && p[at] != ':') { render_type_error(f->r, "expected ':' after conversion specifier"); return; }
    struct tsb spec;
    tsb_init(&spec, f->r);
    if (at < end) braces_run(f, &spec, fmt, at + 1, end);
    if (f->r->status) return;
    tsb_add_str(b, format_value(f->r, v, (struct str){ spec.data ? spec.data : "", spec.len }));
}

static void braces_run(struct braces *f, struct tsb *b, struct tv fmt, size_t at, size_t end)
{
    const char *p = fmt.u.s->ptr;
    if (++f->depth > 2) { render_type_error(f->r, "Max string recursion exceeded"); return; }
    while (at < end && render_step(f->r, 1)) {
        if (f->depth == 1 && (p[at] == '{' || p[at] == '}') && at + 1 < end && p[at + 1] == p[at]) {
            tsb_add_range(b, fmt, at, at + 1);
            at += 2;
        } else if (p[at] == '}') {
            render_type_error(f->r, "Single '}' encountered in format string");
        } else if (p[at] != '{') {
            size_t stop = at;
            while (stop < end && p[stop] != '{' && p[stop] != '}') stop++;
            tsb_add_range(b, fmt, at, stop);
            at = stop;
        } else {
            size_t stop = at + 1;
            int depth = 1;
            while (stop < end && depth) depth += p[stop] == '{' ? 1 : p[stop] == '}' ? -1 : 0, stop++;
            if (depth) { render_type_error(f->r, "expected '}' before end of string"); break; }
            braces_field(f, b, fmt, at + 1, stop - 1);
            at = stop;
        }
    }
    f->depth--;
}

struct tv format_braces(struct render *r, struct tv fmt, const struct func_call *c, struct tv mapping)
{
    struct braces f = { .r = r, .c = c, .mapping = mapping };
    struct tsb b;
    tsb_init(&b, r);
    braces_run(&f, &b, fmt, 0, fmt.u.s->len);
    return tsb_take(&b);
}
