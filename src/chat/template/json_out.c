/* json_out.c: tojson: json.dumps as transformers calls it: insertion order, ", " and ": ", raw UTF-8, no HTML escapes;
 * options ensure_ascii, indent, separators, sort_keys. The marks of a container have the container's origin, every
 * string keeps its own, so what a client sent stays recognisable inside the JSON. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "chat/template/tmpl_rt.h"

struct writer {
    struct tsb b;
    struct render *r;
    bool ascii, sort;
    bool pretty;
    struct tv indent;       /* a string, repeated per level */
    struct tv comma, colon; /* strings */
};

static void put(struct writer *w, const char *s, uint32_t org) { tsb_add(&w->b, s, strlen(s), org); }

/* A separator: template text, but inside a container it belongs to it. */
static void put_sep(struct writer *w, struct tv s, uint32_t org) { tsb_add(&w->b, s.u.s->ptr, s.u.s->len, org); }

static void put_escape(struct writer *w, uint32_t cp, uint32_t org)
{
    char text[16];
    const char *s = cp == '"' ? "\\\"" : cp == '\\' ? "\\\\" : cp == '\n' ? "\\n" : cp == '\r' ? "\\r"
                  : cp == '\t' ? "\\t" : cp == '\f' ? "\\f" : cp == '\b' ? "\\b" : text;
    if (s == text && cp < 0x10000) snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
    else if (s == text)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((cp - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((cp - 0x10000) & 0x3ff)));
    put(w, s, org);
}

static void write_string(struct writer *w, struct tv v)
{
    const struct tstr *s = v.u.s;
    size_t plain = 0, at = 0;
    tsb_add(&w->b, "\"", 1, v.org);
    while (at < s->len && !w->r->status) {
        uint32_t cp = (unsigned char)s->ptr[at];
        size_t n = 1;
        if (cp >= 0x80) { utf8_decode(s->ptr + at, s->len - at, &cp); n = text_step(s->ptr + at); }
        if (cp < 0x20 || cp == '"' || cp == '\\' || (w->ascii && cp >= 0x7f + 1u)) {
            tsb_add_range(&w->b, v, plain, at);
            put_escape(w, cp, tv_str_origin_at(v, at));
            plain = at + n;
        }
        at += n;
    }
    tsb_add_range(&w->b, v, plain, s->len);
    tsb_add(&w->b, "\"", 1, v.org);
}

static void write_value(struct writer *w, struct tv v, int level);

static void new_line(struct writer *w, int level, uint32_t org)
{
    if (!w->pretty) return;
    put(w, "\n", org);
    for (int i = 0; i < level && render_step(w->r, 1); i++) put_sep(w, w->indent, org);
}

static void write_list(struct writer *w, struct tv v, int level)
{
    struct tlist *l = tv_items(w->r, v);
    if (!l->n) { put(w, "[]", v.org); return; }
    put(w, "[", v.org);
    for (size_t i = 0; i < l->n && !w->r->status; i++) {
        if (i) put_sep(w, w->comma, v.org);
        new_line(w, level + 1, v.org);
        write_value(w, l->items[i], level + 1);
    }
    new_line(w, level, v.org);
    put(w, "]", v.org);
}

static void write_scalar(struct writer *w, struct tv v, bool quoted)
{
    char text[48];
    const char *s = text;
    switch (v.type) {
    case TV_NONE: s = "null"; break;
    case TV_BOOL: s = v.u.b ? "true" : "false"; break;
    case TV_INT: snprintf(text, sizeof text, "%lld", (long long)v.u.i); break;
    case TV_BIG: s = v.u.big; break;
    case TV_FLOAT:
        float_repr(v.u.f, text);
        if (strcmp(text, "nan") == 0) s = "NaN";
        else if (strcmp(text, "inf") == 0) s = "Infinity";
        else if (strcmp(text, "-inf") == 0) s = "-Infinity";
        break;
    default:
        if (quoted)
            render_type_error(w->r, "keys must be str, int, float, bool or None, not %s", tv_type_name(v));
        else
            render_type_error(w->r, "Object of type %s is not JSON serializable", tv_type_name(v));
        return;
    }
    if (quoted) put(w, "\"", v.org);
    put(w, s, v.org);
    if (quoted) put(w, "\"", v.org);
}

static void write_entry(struct writer *w, struct tv key, struct tv val, int level, uint32_t org)
{
    if (tv_is_str(key)) write_string(w, key);
    else write_scalar(w, key, true);
    put_sep(w, w->colon, org);
    write_value(w, val, level);
}

static void write_dict(struct writer *w, struct tv v, int level)
{
    struct tdict *d = tv_dict(w->r, v);
    size_t n = d->n;
    if (!n) { put(w, "{}", v.org); return; }
    struct tv *keys = render_alloc(w->r, n, sizeof *keys), *vals = render_alloc(w->r, n, sizeof *vals);
    if (!keys || !vals) return;
    struct tv *order = vals; /* entry numbers while sorting */
    for (size_t i = 0; i < n; i++) { keys[i] = d->ents[i].key; order[i] = tv_int((int64_t)i); }
    if (w->sort) tv_sort(w->r, keys, order, n, false);
    put(w, "{", v.org);
    for (size_t i = 0; i < n && !w->r->status; i++) {
        struct tentry *e = &d->ents[order[i].u.i];
        if (i) put_sep(w, w->comma, v.org);
        new_line(w, level + 1, v.org);
        write_entry(w, e->key, e->val, level + 1, v.org);
    }
    new_line(w, level, v.org);
    put(w, "}", v.org);
}

static void write_value(struct writer *w, struct tv v, int level)
{
    if (w->r->status || !render_step(w->r, 1) || !render_enter(w->r)) return;
    if (tv_is_str(v)) write_string(w, v);
    else if (tv_is_seq(v)) write_list(w, v, level);
    else if (v.type == TV_DICT) write_dict(w, v, level);
    else write_scalar(w, v, false);
    render_leave(w->r);
}

struct tv tojson_value(struct render *r, struct tv v, bool ascii, struct tv indent, struct tv separators, bool sort)
{
    struct writer w = { .r = r, .ascii = ascii, .sort = sort };
    tsb_init(&w.b, r);
    w.pretty = indent.type != TV_ABSENT && indent.type != TV_NONE;
    if (w.pretty && tv_is_str(indent)) w.indent = indent;
    else if (w.pretty) w.indent = tv_str_repeat(r, tv_str(r, " ", 1, ORG_TEMPLATE), arg_int(r, indent, 0));
    w.comma = tv_str(r, w.pretty ? "," : ", ", w.pretty ? 1 : 2, ORG_TEMPLATE);
    w.colon = tv_str(r, ": ", 2, ORG_TEMPLATE);
    if (separators.type != TV_ABSENT && separators.type != TV_NONE) {
        struct tlist *l = tv_iter(r, separators);
        if (!r->status && l->n != 2) return render_type_error(r, "separators must be a pair");
        if (r->status) return tv_undef(NULL);
        w.comma = arg_str(r, l->items[0], "a separator");
        w.colon = arg_str(r, l->items[1], "a separator");
    }
    if (!r->status) write_value(&w, v, 0);
    return tsb_take(&w.b);
}
