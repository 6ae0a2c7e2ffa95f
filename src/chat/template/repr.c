/* repr.c: str() and repr() of values as Python prints them: floats in the shortest form that reads back, strings with
 * Python's choice of quotes and escapes, containers with ", " and ": ". The marks of a container have its origin. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "chat/template/tmpl_rt.h"

void float_repr(double v, char out[40])
{
    char e[40], digits[24] = "";
    if (isnan(v)) { strcpy(out, "nan"); return; }
    if (isinf(v)) { strcpy(out, v < 0 ? "-inf" : "inf"); return; }
    for (int prec = 0; prec < 17; prec++) {
        snprintf(e, sizeof e, "%.*e", prec, v);
        if (strtod(e, NULL) == v) break;
    }
    int n = 0;
    const char *p = e;
    char *o = out;
    if (*p == '-') *o++ = *p++;
    for (; *p != 'e'; p++)
        if (*p != '.') digits[n++] = *p;
    int exp = atoi(p + 1);
    if (exp < -4 || exp >= 16) {
        *o++ = digits[0];
        if (n > 1) *o++ = '.';
        for (int i = 1; i < n; i++) *o++ = digits[i];
        sprintf(o, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
        return;
    }
    if (exp < 0) {
        *o++ = '0';
        *o++ = '.';
        for (int i = -1; i > exp; i--) *o++ = '0';
        for (int i = 0; i < n; i++) *o++ = digits[i];
    } else {
        for (int i = 0; i < n || i <= exp; i++) {
            *o++ = i < n ? digits[i] : '0';
            if (i == exp) *o++ = '.';
        }
        if (o[-1] == '.') *o++ = '0';
    }
    *o = 0;
}

static void write_escape(struct tsb *b, uint32_t cp, uint32_t org)
{
    char text[16];
    const char *fmt = cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x";
    const char *s = cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : cp == '\t' ? "\\t" : NULL;
    if (!s) { snprintf(text, sizeof text, fmt, (unsigned)cp); s = text; }
    tsb_add(b, s, strlen(s), org);
}

static void write_str_repr(struct tsb *b, struct tv v)
{
    const struct tstr *s = v.u.s;
    char quote = s->len && memchr(s->ptr, '\'', s->len) && !memchr(s->ptr, '"', s->len) ? '"' : '\'';
    if (s->safe) tsb_add(b, "Markup(", 7, v.org);
    tsb_add(b, &quote, 1, v.org);
    size_t plain = 0, at = 0;
    while (at < s->len && !b->r->status) {
        uint32_t cp = 0;
        int n = utf8_decode(s->ptr + at, s->len - at, &cp);
        if (n <= 0) n = 1;
        bool mark = cp == '\\' || cp == (unsigned char)quote;
        if (mark || !text_is_printable(cp)) {
            tsb_add_range(b, v, plain, at);
            uint32_t org = tv_str_origin_at(v, at);
            if (mark) { tsb_add(b, "\\", 1, org); tsb_add(b, s->ptr + at, 1, org); }
            else write_escape(b, cp, org);
            plain = at + (size_t)n;
        }
        at += (size_t)n;
    }
    tsb_add_range(b, v, plain, s->len);
    tsb_add(b, &quote, 1, v.org);
    if (s->safe) tsb_add(b, ")", 1, v.org);
}

static void put(struct tsb *b, const char *s, uint32_t org) { tsb_add(b, s, strlen(s), org); }

static void write_items(struct tsb *b, struct tlist *l, uint32_t org)
{
    for (size_t i = 0; i < l->n && !b->r->status; i++) {
        if (i) put(b, ", ", org);
        tv_write_repr(b, l->items[i]);
    }
}

static void write_dict(struct tsb *b, struct tv v)
{
    struct tdict *d = tv_dict(b->r, v);
    put(b, "{", v.org);
    for (size_t i = 0; i < d->n && !b->r->status; i++) {
        if (i) put(b, ", ", v.org);
        tv_write_repr(b, d->ents[i].key);
        put(b, ": ", v.org);
        tv_write_repr(b, d->ents[i].val);
    }
    put(b, "}", v.org);
}

static void write_container(struct tsb *b, struct tv v)
{
    struct tlist *l;
    switch (v.type) {
    case TV_LIST: put(b, "[", v.org); write_items(b, tv_items(b->r, v), v.org); put(b, "]", v.org); return;
    case TV_TUPLE:
        l = tv_items(b->r, v);
        put(b, "(", v.org);
        write_items(b, l, v.org);
        put(b, l->n == 1 ? ",)" : ")", v.org);
        return;
    case TV_DICT: write_dict(b, v); return;
    case TV_NS:
        put(b, "<Namespace ", v.org);
        write_dict(b, v);
        put(b, ">", v.org);
        return;
    case TV_VIEW:
        put(b, v.u.view->kind == VIEW_KEYS ? "dict_keys([" : v.u.view->kind == VIEW_VALUES ? "dict_values(["
               : "dict_items([", v.org);
        write_items(b, tv_iter(b->r, v), v.org);
        put(b, "])", v.org);
        return;
    default: return;
    }
}

static void write_range(const struct trange *g, char *out, size_t cap)
{
    if (g->step == 1) snprintf(out, cap, "range(%lld, %lld)", (long long)g->start, (long long)g->stop);
    else snprintf(out, cap, "range(%lld, %lld, %lld)", (long long)g->start, (long long)g->stop, (long long)g->step);
}

void tv_write_repr(struct tsb *b, struct tv v)
{
    char text[100] = "";
    if (b->r->status || !render_step(b->r, 1)) return;
    switch (v.type) {
    case TV_STR: write_str_repr(b, v); return;
    case TV_BIG: put(b, v.u.big, v.org); return;
    case TV_LIST: case TV_TUPLE: case TV_DICT: case TV_NS: case TV_VIEW:
        if (!render_enter(b->r)) return;
        write_container(b, v);
        render_leave(b->r);
        return;
    case TV_NONE: strcpy(text, "None"); break;
    case TV_BOOL: strcpy(text, v.u.b ? "True" : "False"); break;
    case TV_INT: snprintf(text, sizeof text, "%lld", (long long)v.u.i); break;
    case TV_FLOAT: float_repr(v.u.f, text); break;
    case TV_RANGE: write_range(v.u.range, text, sizeof text); break;
    case TV_MACRO:
        snprintf(text, sizeof text, v.u.macro->name ? "<Macro '%.60s'>" : "<Macro anonymous>", v.u.macro->name);
        break;
    case TV_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.u.loop->index0 + 1, v.u.loop->items->n);
        break;
    case TV_UNDEF: case TV_ABSENT: case TV_HIDDEN: strcpy(text, "Undefined"); break;
    default: snprintf(text, sizeof text, "<%s object>", tv_type_name(v)); break;
    }
    put(b, text, v.org);
}

void tv_write_str(struct tsb *b, struct tv v)
{
    if (v.type == TV_STR) tsb_add_str(b, v);
    else if (v.type != TV_UNDEF && v.type != TV_ABSENT && v.type != TV_HIDDEN) tv_write_repr(b, v);
}

struct tv tv_to_str(struct render *r, struct tv v)
{
    struct tsb b;
    if (v.type == TV_STR || r->status) return v;
    tsb_init(&b, r);
    tv_write_str(&b, v);
    return tsb_take(&b);
}
