/* filters_text.c: filters that make a string. Each takes str(value), as jinja2's soft_str does, unless noted. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "chat/template/tmpl_rt.h"

#define F(f) static struct tv f(struct render *r, struct tv self, struct tv *arg)

F(f_upper) { (void)arg; return tv_str_map(r, tv_to_str(r, self), text_upper); }
F(f_lower) { (void)arg; return tv_str_lower(r, tv_to_str(r, self)); }
F(f_capitalize) { (void)arg; return tv_str_capitalize(r, tv_to_str(r, self)); }
F(f_string) { (void)arg; return tv_to_str(r, self); }

F(f_trim)
{
    if (tv_is_str(arg[0]) || arg[0].type == TV_ABSENT || arg[0].type == TV_NONE)
        return tv_str_strip(r, tv_to_str(r, self), arg[0], true, true);
    return render_type_error(r, "strip arg must be None or str");
}

F(f_replace)
{
    int64_t count = arg[2].type == TV_NONE ? -1 : arg_int(r, arg[2], -1);
    struct tv s = tv_to_str(r, self), old = tv_to_str(r, arg[0]), by = tv_to_str(r, arg[1]);
    return tv_str_replace(r, s, old, by, count);
}

static bool starts_word(const char *p, size_t len)
{
    return text_space_at(p, len) || strchr("-({[<", *p);
}

F(f_title)
{
    struct tv v = tv_to_str(r, self);
    struct tsb b;
    (void)arg;
    if (!tv_is_str(v)) return v;
    tsb_init(&b, r);
    for (size_t at = 0; at < v.u.s->len && !r->status;) {
        size_t end = at;
        bool sep = starts_word(v.u.s->ptr + at, v.u.s->len - at);
        while (end < v.u.s->len && starts_word(v.u.s->ptr + end, v.u.s->len - end) == sep)
            end += text_step(v.u.s->ptr + end);
        size_t first = at + text_step(v.u.s->ptr + at);
        tsb_add_str(&b, tv_str_map(r, tv_str_slice(r, v, at, first), text_upper));
        tsb_add_str(&b, tv_str_lower(r, tv_str_slice(r, v, first, end)));
        at = end;
    }
    return tsb_take(&b);
}

F(f_center)
{
    struct func_call c = { .args = &(struct tv){ 0 }, .n_args = 1 };
    c.args[0] = tv_int(arg_int(r, arg[0], 80));
    struct tv s = tv_to_str(r, self);
    if (r->status) return s;
    return func_call_row(r, method_find(s, STR_LIT("center")), s, &c);
}

/* ---- HTML ---- */

static void write_escaped(struct tsb *b, struct tv v)
{
    size_t plain = 0;
    for (size_t i = 0; i < v.u.s->len && !b->r->status; i++) {
        char c = v.u.s->ptr[i];
        const char *to = c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;"
                       : c == '"' ? "&#34;" : NULL;
        if (!to) continue;
        tsb_add_range(b, v, plain, i);
        tsb_add(b, to, strlen(to), tv_str_origin_at(v, i));
        plain = i + 1;
    }
    tsb_add_range(b, v, plain, v.u.s->len);
}

static struct tv as_safe(struct render *r, struct tv v)
{
    if (!tv_is_str(v)) return v;
    struct tstr *s = render_alloc(r, 1, sizeof *s);
    if (!s) return tv_undef(NULL);
    *s = *v.u.s;
    s->safe = true;
    v.u.s = s;
    return v;
}

F(f_forceescape)
{
    struct tv v = tv_to_str(r, self);
    struct tsb b;
    (void)arg;
    if (!tv_is_str(v)) return v;
    tsb_init(&b, r);
    write_escaped(&b, v);
    return as_safe(r, tsb_take(&b));
}

F(f_escape) { return tv_is_str(self) && self.u.s->safe ? self : f_forceescape(r, self, arg); }
F(f_safe) { (void)arg; return as_safe(r, tv_to_str(r, self)); }

/* Remove comments and tags, then fold white space. Entities: the five that escape makes, and numbers are left. */
F(f_striptags)
{
    static const struct { const char *name, *to; } entities[] = {
        { "&amp;", "&" }, { "&lt;", "<" }, { "&gt;", ">" }, { "&#39;", "'" }, { "&#34;", "\"" }, { "&quot;", "\"" } };
    struct tv v = tv_to_str(r, self);
    struct tsb b;
    (void)arg;
    if (!tv_is_str(v)) return v;
    tsb_init(&b, r);
    const char *p = v.u.s->ptr, *end = p + v.u.s->len;
    bool pending = false;
    while (p < end && !r->status) {
        size_t n = text_space_at(p, (size_t)(end - p));
        const char *close = NULL;
        if (end - p >= 4 && memcmp(p, "<!--", 4) == 0) {
            close = memmem(p, (size_t)(end - p), "-->", 3);
            if (close) close += 2;
        } else if (*p == '<') {
            close = memchr(p, '>', (size_t)(end - p));
        }
        if (close) { p = close + 1; continue; }
        if (n) { pending = b.len > 0; p += n; continue; }
        uint32_t org = tv_str_origin_at(v, (size_t)(p - v.u.s->ptr));
        if (pending) tsb_add(&b, " ", 1, org);
        pending = false;
        n = text_step(p);
        const char *to = p;
        size_t n_to = n;
        for (size_t i = 0; *p == '&' && i < sizeof entities / sizeof *entities; i++) {
            size_t k = strlen(entities[i].name);
            if ((size_t)(end - p) < k || memcmp(p, entities[i].name, k) != 0) continue;
            to = entities[i].to;
            n_to = 1;
            n = k;
            break;
        }
        tsb_add(&b, to, n_to, org);
        p += n;
    }
    return tsb_take(&b);
}

static bool bad_attr_key(struct tv k)
{
    for (size_t i = 0; i < k.u.s->len; i++)
        if (strchr(" \t\n\r\f\v/>=", k.u.s->ptr[i]) && k.u.s->ptr[i]) return true;
    return false;
}

F(f_xmlattr)
{
    struct tsb b;
    tsb_init(&b, r);
    if (self.type != TV_DICT) return render_type_error(r, "xmlattr wants a mapping, not %s", tv_type_name(self));
    struct tdict *d = tv_dict(r, self);
    for (size_t i = 0; i < d->n && !r->status; i++) {
        struct tv key = d->ents[i].key, val = d->ents[i].val;
        if (val.type == TV_NONE || val.type == TV_UNDEF) continue;
        if (!tv_is_str(key) || bad_attr_key(key)) return render_type_error(r, "Invalid character in attribute name");
        if (b.len || arg_bool(r, arg[0], true)) tsb_lit(&b, " ");
        write_escaped(&b, key);
        tsb_lit(&b, "=\"");
        tsb_add_str(&b, f_escape(r, val, arg));
        tsb_lit(&b, "\"");
    }
    return tsb_take(&b);
}

/* ---- layout ---- */

/* End of the line that begins at `at`; *next is where the following one begins. */
static size_t line_end(struct tv v, size_t at, size_t *next)
{
    for (; at < v.u.s->len; at++) {
        size_t n = text_newline_at(v.u.s->ptr + at, v.u.s->len - at);
        if (n) { *next = at + n; return at; }
    }
    *next = v.u.s->len;
    return at;
}

F(f_indent)
{
    struct tv s = self.type == TV_UNDEF ? self : arg_str(r, self, "indent's value"), pad = arg[0];
    struct tsb b;
    if (s.type == TV_UNDEF) return render_type_error(r, "%s", s.u.hint ? s.u.hint : "a value is undefined");
    if (!tv_is_str(pad)) pad = tv_str_repeat(r, tv_str(r, " ", 1, ORG_TEMPLATE), arg_int(r, pad, 4));
    bool first = arg_bool(r, arg[1], false), blank = arg_bool(r, arg[2], false);
    if (r->status) return tv_undef(NULL);
    tsb_init(&b, r);
    if (first) tsb_add_str(&b, pad);
    size_t len = s.u.s->len, at = 0, next;
    for (bool more = true, is_first = true; more && render_step(r, 1); is_first = false) {
        size_t end = line_end(s, at, &next);
        if (!is_first) tsb_lit(&b, "\n");
        if (!is_first && (blank || end > at)) tsb_add_str(&b, pad);
        tsb_add_range(&b, s, at, end);
        /* jinja2 adds a line end before it splits: one at the end gives an empty last line. */
        more = next < len || (next == len && end < len);
        at = next;
    }
    return tsb_take(&b);
}

F(f_truncate)
{
    size_t n = 0, n_end = 3;
    if (self.type == TV_UNDEF) return self;
    int64_t length = arg_int(r, arg[0], 255), leeway = arg[3].type == TV_NONE ? 5 : arg_int(r, arg[3], 5);
    struct tv end = arg[2].type == TV_ABSENT ? tv_str(r, "...", 3, ORG_TEMPLATE) : arg_str(r, arg[2], "end");
    if (r->status) return tv_undef(NULL);
    if (!tv_len(r, self, &n)) return render_type_error(r, "object of type '%s' has no len()", tv_type_name(self));
    tv_len(r, end, &n_end);
    if (length < (int64_t)n_end || leeway < 0)
        return render_type_error(r, "truncate: length is shorter than its end mark");
    if ((int64_t)n <= length + leeway) return self; /* a short list too, as in jinja2 */
    struct tv s = arg_str(r, self, "truncate's value");
    struct tv cut = tv_slice(r, s, tv_none(), tv_int(length - (int64_t)n_end), tv_none());
    if (r->status) return tv_undef(NULL);
    if (!arg_bool(r, arg[1], false)) {
        const char *space = memrchr(cut.u.s->ptr, ' ', cut.u.s->len);
        if (space) cut = tv_str_slice(r, cut, 0, (size_t)(space - cut.u.s->ptr));
    }
    return tv_binary(r, T_ADD, cut, end);
}

F(f_wordcount)
{
    struct tv v = tv_to_str(r, self);
    int64_t n = 0;
    (void)arg;
    if (!tv_is_str(v)) return v;
    bool in_word = false;
    for (size_t at = 0; at < v.u.s->len && render_step(r, 1);) {
        uint32_t cp = 0;
        int k = utf8_decode(v.u.s->ptr + at, v.u.s->len - at, &cp);
        bool word = text_is_word(cp);
        n += word && !in_word;
        in_word = word;
        at += k > 0 ? (size_t)k : 1;
    }
    return tv_int(n);
}

F(f_filesizeformat)
{
    static const char *const dec[] = { "kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB" };
    static const char *const bin[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB" };
    bool binary = arg_bool(r, arg[0], false);
    double base = binary ? 1024 : 1000, v = 0, unit = base * base;
    char out[64];
    int i = 0;
    if (tv_is_str(self) && !tv_float_parse(self.u.s->ptr, self.u.s->len, &v))
        return render_type_error(r, "could not convert string to float");
    if (self.type == TV_FLOAT) v = self.u.f;
    else if (!tv_is_str(self)) v = (double)arg_int(r, self, 0);
    if (v == 1) return tv_str_copy(r, "1 Byte", 6, self.org);
    if (v < base) snprintf(out, sizeof out, "%lld Bytes", (long long)v);
    else {
        while (i < 7 && v >= unit) { unit *= base; i++; }
        snprintf(out, sizeof out, "%.1f %s", base * v / unit, binary ? bin[i] : dec[i]);
    }
    return tv_str_copy(r, out, strlen(out), self.org);
}

/* ---- URLs ---- */

static void write_quoted(struct tsb *b, struct tv v, bool query)
{
    v = tv_to_str(b->r, v);
    for (size_t i = 0; tv_is_str(v) && i < v.u.s->len && !b->r->status; i++) {
        unsigned char c = (unsigned char)v.u.s->ptr[i];
        uint32_t org = tv_str_origin_at(v, i);
        char hex[4];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c && strchr("_.-~", c));
        if (plain || (c == '/' && !query)) tsb_add(b, (char *)&c, 1, org);
        else if (c == ' ' && query) tsb_add(b, "+", 1, org);
        else { snprintf(hex, sizeof hex, "%%%02X", c); tsb_add(b, hex, 3, org); }
    }
}

F(f_urlencode)
{
    struct tsb b;
    (void)arg;
    tsb_init(&b, r);
    if (tv_is_str(self) || !tv_is_iterable(self)) {
        write_quoted(&b, self, false);
        return tsb_take(&b);
    }
    struct tlist *l = NULL;
    if (self.type == TV_DICT) {
        struct tview view = { self, VIEW_ITEMS };
        l = tv_iter(r, (struct tv){ .type = TV_VIEW, .u.view = &view });
    } else {
        l = tv_iter(r, self);
    }
    for (size_t i = 0; i < l->n && !r->status; i++) {
        struct tlist *pair = tv_iter(r, l->items[i]);
        if (pair->n != 2) return render_type_error(r, "urlencode wants pairs");
        if (i) tsb_lit(&b, "&");
        write_quoted(&b, pair->items[0], true);
        tsb_lit(&b, "=");
        write_quoted(&b, pair->items[1], true);
    }
    return tsb_take(&b);
}

static struct tv f_format(struct render *r, struct tv self, const struct func_call *c)
{
    if (c->n_args && c->n_kw)
        return render_type_error(r, "can't handle positional and keyword arguments at the same time");
    struct tv args = c->n_kw ? tv_dict_new(r, ORG_TEMPLATE) : tv_list_new(r, TV_TUPLE, c->n_args, ORG_TEMPLATE);
    for (size_t i = 0; i < c->n_kw && !r->status; i++)
        tv_dict_set(r, args, tv_str(r, c->kw_names[i].ptr, c->kw_names[i].len, ORG_TEMPLATE), c->kw[i]);
    for (size_t i = 0; i < c->n_args && !r->status; i++) args.u.list->items[i] = c->args[i];
    return r->status ? tv_undef(NULL) : format_percent(r, tv_to_str(r, self), args);
}

F(f_tojson)
{
    return tojson_value(r, self, arg_bool(r, arg[0], false), arg[1], arg[2], arg_bool(r, arg[3], false));
}

const struct filter_row filters_text[] = {
    { { "capitalize", "", f_capitalize, NULL } },
    { { "center", "width", f_center, NULL } },
    { { "e", "", f_escape, NULL } },
    { { "escape", "", f_escape, NULL } },
    { { "filesizeformat", "binary", f_filesizeformat, NULL } },
    { { "forceescape", "", f_forceescape, NULL } },
    { { "format", NULL, NULL, f_format } },
    { { "indent", "width first blank", f_indent, NULL } },
    { { "lower", "", f_lower, NULL } },
    { { "replace", "*old *new count", f_replace, NULL } },
    { { "safe", "", f_safe, NULL } },
    { { "string", "", f_string, NULL } },
    { { "striptags", "", f_striptags, NULL } },
    { { "title", "", f_title, NULL } },
    { { "tojson", "ensure_ascii indent separators sort_keys", f_tojson, NULL } },
    { { "trim", "chars", f_trim, NULL } },
    { { "truncate", "length killwords end leeway", f_truncate, NULL } },
    { { "upper", "", f_upper, NULL } },
    { { "urlencode", "", f_urlencode, NULL } },
    { { "wordcount", "", f_wordcount, NULL } },
    { { "xmlattr", "autospace", f_xmlattr, NULL } },
    { { NULL, NULL, NULL, NULL } },
};
