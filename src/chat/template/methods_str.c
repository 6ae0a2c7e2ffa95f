/* methods_str.c: methods of str. Offsets that templates see are characters, as in Python. encode, translate and
 * maketrans are missing: they lead to types that templates cannot use. */
#include <string.h>

#include "base/utf8.h"
#include "chat/template/tmpl_rt.h"

#define M(f) static struct tv f(struct render *r, struct tv self, struct tv *arg)

static bool is_none(struct tv v) { return v.type == TV_ABSENT || v.type == TV_NONE; }

M(m_upper) { (void)arg; return tv_str_map(r, self, text_upper); }
M(m_lower) { (void)arg; return tv_str_lower(r, self); }
M(m_capitalize) { (void)arg; return tv_str_capitalize(r, self); }

static int casefold_one(uint32_t cp, uint32_t out[3])
{
    if (cp == 0xdf) { out[0] = out[1] = 's'; return 2; }
    uint32_t up[3];
    int n = text_upper(cp, up), k = 0;
    for (int i = 0; i < n && i < 3; i++) {
        uint32_t low[3];
        text_lower(up[i], low);
        out[k++] = low[0];
    }
    return k;
}

M(m_casefold) { (void)arg; return tv_str_map(r, self, casefold_one); }

static int swap_one(uint32_t cp, uint32_t out[3])
{
    return text_is_upper(cp) ? text_lower(cp, out) : text_upper(cp, out);
}

M(m_swapcase) { (void)arg; return tv_str_map(r, self, swap_one); }

/* str.title: a letter behind a cased character is small, else it is in title case. */
M(m_title)
{
    struct tsb b;
    bool in_word = false;
    (void)arg;
    tsb_init(&b, r);
    for (size_t at = 0; at < self.u.s->len && render_step(r, 1);) {
        uint32_t cp = 0, out[3];
        int n = utf8_decode(self.u.s->ptr + at, self.u.s->len - at, &cp);
        int k = in_word ? text_lower(cp, out) : text_title(cp, out);
        for (int i = 0; i < k; i++) tsb_add_cp(&b, out[i], tv_str_origin_at(self, at));
        in_word = text_is_cased(cp);
        at += n > 0 ? (size_t)n : 1;
    }
    return tsb_take(&b);
}

static struct tv strip(struct render *r, struct tv s, struct tv chars, bool left, bool right)
{
    if (!is_none(chars) && !tv_is_str(chars)) return render_type_error(r, "strip arg must be None or str");
    return tv_str_strip(r, s, chars, left, right);
}

M(m_strip) { return strip(r, self, arg[0], true, true); }
M(m_lstrip) { return strip(r, self, arg[0], true, false); }
M(m_rstrip) { return strip(r, self, arg[0], false, true); }

static bool has_prefix(struct tv s, struct tv p)
{
    return p.u.s->len <= s.u.s->len && memcmp(s.u.s->ptr, p.u.s->ptr, p.u.s->len) == 0;
}

static bool has_suffix(struct tv s, struct tv p)
{
    return p.u.s->len <= s.u.s->len && memcmp(s.u.s->ptr + s.u.s->len - p.u.s->len, p.u.s->ptr, p.u.s->len) == 0;
}

M(m_removeprefix)
{
    struct tv p = arg_str(r, arg[0], "removeprefix's argument");
    if (r->status || !has_prefix(self, p)) return self;
    return tv_str_slice(r, self, p.u.s->len, self.u.s->len);
}

M(m_removesuffix)
{
    struct tv p = arg_str(r, arg[0], "removesuffix's argument");
    if (r->status || !p.u.s->len || !has_suffix(self, p)) return self;
    return tv_str_slice(r, self, 0, self.u.s->len - p.u.s->len);
}

M(m_replace)
{
    struct tv old = arg_str(r, arg[0], "replace's first argument"), by = arg_str(r, arg[1], "replace's second argument");
    int64_t count = arg_int(r, arg[2], -1);
    return r->status ? tv_undef(NULL) : tv_str_replace(r, self, old, by, count);
}

/* start and end as Python counts them: characters, from the end when negative. False: start lies behind the end. */
static bool window(struct render *r, struct tv s, struct tv start, struct tv end, size_t *first, size_t *stop)
{
    size_t n;
    tv_len(r, s, &n);
    int64_t a = is_none(start) ? 0 : arg_int(r, start, 0), b = is_none(end) ? (int64_t)n : arg_int(r, end, 0);
    if (a < 0) a = a + (int64_t)n < 0 ? 0 : a + (int64_t)n;
    if (b < 0) b = b + (int64_t)n < 0 ? 0 : b + (int64_t)n;
    if (b > (int64_t)n) b = (int64_t)n;
    if (a > b || r->status) return false;
    *first = tv_str_byte(s, (size_t)a);
    *stop = tv_str_byte(s, (size_t)b);
    return true;
}

static struct tv affix(struct render *r, struct tv self, struct tv *arg, bool (*has)(struct tv, struct tv))
{
    size_t first, stop;
    if (!tv_is_str(arg[0]) && arg[0].type != TV_TUPLE)
        return render_type_error(r, "startswith/endswith first arg must be str or a tuple of str, not %s",
                                 tv_type_name(arg[0]));
    if (!window(r, self, arg[1], arg[2], &first, &stop)) return tv_bool(false);
    struct tv part = tv_str_slice(r, self, first, stop);
    if (tv_is_str(arg[0])) return tv_bool(!r->status && has(part, arg[0]));
    struct tlist *l = tv_items(r, arg[0]);
    for (size_t i = 0; i < l->n; i++) {
        struct tv p = arg_str(r, l->items[i], "each prefix or suffix");
        if (!r->status && has(part, p)) return tv_bool(true);
    }
    return tv_bool(false);
}

M(m_startswith) { return affix(r, self, arg, has_prefix); }
M(m_endswith) { return affix(r, self, arg, has_suffix); }

static int64_t search(struct render *r, struct tv self, struct tv *arg, bool last)
{
    size_t first, stop;
    struct tv needle = arg_str(r, arg[0], "the text to look for");
    if (r->status || !window(r, self, arg[1], arg[2], &first, &stop)) return -1;
    if (!render_step(r, (stop - first) / 64)) return -1;
    size_t at = last ? tv_str_rfind(self, needle, first, stop) : tv_str_find(self, needle, first, stop);
    return at == SIZE_MAX ? -1 : (int64_t)text_count_chars(self.u.s->ptr, at);
}

static struct tv found(struct render *r, int64_t at)
{
    return at < 0 ? render_type_error(r, "substring not found") : tv_int(at);
}

M(m_find) { return tv_int(search(r, self, arg, false)); }
M(m_rfind) { return tv_int(search(r, self, arg, true)); }
M(m_index) { return found(r, search(r, self, arg, false)); }
M(m_rindex) { return found(r, search(r, self, arg, true)); }

M(m_count)
{
    size_t first, stop, at;
    int64_t n = 0;
    struct tv needle = arg_str(r, arg[0], "the text to count");
    if (r->status || !window(r, self, arg[1], arg[2], &first, &stop)) return tv_int(0);
    if (!needle.u.s->len) return tv_int((int64_t)text_count_chars(self.u.s->ptr + first, stop - first) + 1);
    while ((at = tv_str_find(self, needle, first, stop)) != SIZE_MAX && render_step(r, 1)) {
        n++;
        first = at + needle.u.s->len;
    }
    return tv_int(n);
}

/* ---- splitting ---- */

struct parts { struct tv *items; size_t n, cap; };

static void push_part(struct render *r, struct parts *p, struct tv v)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 8;
        struct tv *grown = render_step(r, 1) ? render_alloc(r, cap, sizeof *grown) : NULL;
        if (!grown) return;
        if (p->n) memcpy(grown, p->items, p->n * sizeof *grown);
        p->items = grown;
        p->cap = cap;
    }
    p->items[p->n++] = v;
}

static struct tv parts_list(struct render *r, struct parts *p, uint32_t org, bool reverse)
{
    struct tv out = tv_list_new(r, TV_LIST, p->n, org);
    for (size_t i = 0; i < p->n && !r->status; i++) out.u.list->items[i] = p->items[reverse ? p->n - 1 - i : i];
    return r->status ? tv_undef(NULL) : out;
}

static void split_space(struct render *r, struct tv s, int64_t max, struct parts *p)
{
    const char *c = s.u.s->ptr;
    size_t len = s.u.s->len, at = text_lstrip_len(c, len);
    while (at < len && !r->status) {
        size_t end = at;
        if (max == 0) end = len;
        else while (end < len && !text_space_at(c + end, len - end)) end += text_step(c + end);
        push_part(r, p, tv_str_slice(r, s, at, end));
        if (max-- == 0) return;
        at = end + text_lstrip_len(c + end, len - end);
    }
}

/* From the right; parts come out last first. */
static void rsplit_space(struct render *r, struct tv s, int64_t max, struct parts *p)
{
    const char *c = s.u.s->ptr;
    size_t end = text_rstrip_len(c, s.u.s->len);
    while (end && !r->status) {
        size_t at = end;
        if (max == 0) at = 0;
        else for (;;) {
            size_t prev = at;
            if (!at) break;
            do prev--; while (prev && ((unsigned char)c[prev] & 0xc0) == 0x80);
            if (text_space_at(c + prev, at - prev)) break;
            at = prev;
        }
        push_part(r, p, tv_str_slice(r, s, at, end));
        if (max-- == 0) return;
        end = text_rstrip_len(c, at);
    }
}

static struct tv split(struct render *r, struct tv self, struct tv *arg, bool right)
{
    struct parts p = { 0 };
    int64_t max = arg_int(r, arg[1], -1);
    if (r->status) return tv_undef(NULL);
    if (is_none(arg[0])) {
        if (right) rsplit_space(r, self, max, &p);
        else split_space(r, self, max, &p);
        return parts_list(r, &p, self.org, right);
    }
    struct tv sep = arg_str(r, arg[0], "the separator");
    if (r->status) return tv_undef(NULL);
    if (!sep.u.s->len) return render_type_error(r, "empty separator");
    size_t first = 0, end = self.u.s->len, at;
    for (; max != 0 && render_step(r, 1); max--) {
        at = right ? tv_str_rfind(self, sep, first, end) : tv_str_find(self, sep, first, end);
        if (at == SIZE_MAX) break;
        push_part(r, &p, right ? tv_str_slice(r, self, at + sep.u.s->len, end) : tv_str_slice(r, self, first, at));
        if (right) end = at;
        else first = at + sep.u.s->len;
    }
    push_part(r, &p, tv_str_slice(r, self, first, end));
    return parts_list(r, &p, self.org, right);
}

M(m_split) { return split(r, self, arg, false); }
M(m_rsplit) { return split(r, self, arg, true); }

M(m_splitlines)
{
    struct parts p = { 0 };
    bool keep = arg_bool(r, arg[0], false);
    size_t at = 0, len = self.u.s->len;
    while (at < len && !r->status) {
        size_t end = at, n = 0;
        while (end < len && !(n = text_newline_at(self.u.s->ptr + end, len - end))) end++;
        push_part(r, &p, tv_str_slice(r, self, at, keep ? end + n : end));
        at = end + n;
    }
    return parts_list(r, &p, self.org, false);
}

static struct tv partition(struct render *r, struct tv self, struct tv *arg, bool right)
{
    struct tv sep = arg_str(r, arg[0], "the separator"), out = tv_list_new(r, TV_TUPLE, 3, self.org);
    if (r->status) return tv_undef(NULL);
    if (!sep.u.s->len) return render_type_error(r, "empty separator");
    size_t len = self.u.s->len;
    size_t at = right ? tv_str_rfind(self, sep, 0, len) : tv_str_find(self, sep, 0, len);
    struct tv *o = out.u.list->items;
    o[0] = o[1] = o[2] = tv_str_slice(r, self, 0, 0);
    if (at == SIZE_MAX) { o[right ? 2 : 0] = self; return out; }
    o[0] = tv_str_slice(r, self, 0, at);
    o[1] = tv_str_slice(r, self, at, at + sep.u.s->len);
    o[2] = tv_str_slice(r, self, at + sep.u.s->len, len);
    return out;
}

M(m_partition) { return partition(r, self, arg, false); }
M(m_rpartition) { return partition(r, self, arg, true); }

M(m_join)
{
    struct tsb b;
    struct tlist *l = tv_iter(r, arg[0]);
    tsb_init(&b, r);
    for (size_t i = 0; i < l->n && render_step(r, 1); i++) {
        if (!tv_is_str(l->items[i]))
            return render_type_error(r, "sequence item %zu: expected str instance, %s found", i, tv_type_name(l->items[i]));
        if (i) tsb_add_str(&b, self);
        tsb_add_str(&b, l->items[i]);
    }
    return tsb_take(&b);
}

/* ---- padding ---- */

static struct tv pad(struct render *r, struct tv self, struct tv *arg, int where)
{
    size_t n, n_fill = 1;
    int64_t width = arg_int(r, arg[0], 0);
    struct tv fill = arg[1].type == TV_ABSENT ? tv_str(r, " ", 1, ORG_TEMPLATE) : arg_str(r, arg[1], "the fill character");
    struct tsb b;
    if (r->status) return tv_undef(NULL);
    tv_len(r, fill, &n_fill);
    if (n_fill != 1) return render_type_error(r, "The fill character must be exactly one character long");
    tv_len(r, self, &n);
    int64_t total = width - (int64_t)n;
    if (total <= 0) return self;
    int64_t left = where < 0 ? 0 : where > 0 ? total : total / 2 + (total & width & 1);
    tsb_init(&b, r);
    tsb_add_str(&b, tv_str_repeat(r, fill, left));
    tsb_add_str(&b, self);
    tsb_add_str(&b, tv_str_repeat(r, fill, total - left));
    return tsb_take(&b);
}

M(m_ljust) { return pad(r, self, arg, -1); }
M(m_rjust) { return pad(r, self, arg, 1); }
M(m_center) { return pad(r, self, arg, 0); }

M(m_zfill)
{
    size_t n;
    int64_t width = arg_int(r, arg[0], 0);
    struct tsb b;
    if (r->status) return tv_undef(NULL);
    tv_len(r, self, &n);
    if (width <= (int64_t)n) return self;
    bool sign = self.u.s->len && (self.u.s->ptr[0] == '-' || self.u.s->ptr[0] == '+');
    tsb_init(&b, r);
    tsb_add_range(&b, self, 0, sign);
    tsb_add_str(&b, tv_str_repeat(r, tv_str(r, "0", 1, ORG_TEMPLATE), width - (int64_t)n));
    tsb_add_range(&b, self, sign, self.u.s->len);
    return tsb_take(&b);
}

M(m_expandtabs)
{
    int64_t size = arg_int(r, arg[0], 8), col = 0;
    struct tsb b;
    tsb_init(&b, r);
    for (size_t at = 0; at < self.u.s->len && render_step(r, 1);) {
        size_t n = text_step(self.u.s->ptr + at);
        char c = self.u.s->ptr[at];
        if (c == '\t') {
            int64_t k = size > 0 ? size - col % size : 0;
            tsb_add_str(&b, tv_str_repeat(r, tv_str(r, " ", 1, tv_str_origin_at(self, at)), k));
            col += k;
        } else {
            tsb_add_range(&b, self, at, at + n);
            col = c == '\n' || c == '\r' ? 0 : col + 1;
        }
        at += n;
    }
    return tsb_take(&b);
}

/* ---- questions ---- */

static struct tv all_chars(struct tv s, bool (*is)(uint32_t))
{
    for (size_t at = 0; at < s.u.s->len;) {
        uint32_t cp = 0;
        int n = utf8_decode(s.u.s->ptr + at, s.u.s->len - at, &cp);
        if (n <= 0 || !is(cp)) return tv_bool(false);
        at += (size_t)n;
    }
    return tv_bool(s.u.s->len > 0);
}

static bool is_alnum(uint32_t cp) { return text_is_alpha(cp) || text_is_numeric(cp); }
static bool is_ascii(uint32_t cp) { return cp < 0x80; }

M(m_isalpha) { (void)r; (void)arg; return all_chars(self, text_is_alpha); }
M(m_isalnum) { (void)r; (void)arg; return all_chars(self, is_alnum); }
M(m_isdecimal) { (void)r; (void)arg; return all_chars(self, text_is_decimal); }
M(m_isdigit) { (void)r; (void)arg; return all_chars(self, text_is_digit); }
M(m_isnumeric) { (void)r; (void)arg; return all_chars(self, text_is_numeric); }
M(m_isspace) { (void)r; (void)arg; return all_chars(self, text_is_space); }
M(m_isascii) { (void)r; (void)arg; return self.u.s->len ? all_chars(self, is_ascii) : tv_bool(true); }
M(m_isprintable) { (void)r; (void)arg; return self.u.s->len ? all_chars(self, text_is_printable) : tv_bool(true); }

M(m_isidentifier)
{
    uint32_t cp = 0;
    (void)r;
    (void)arg;
    if (utf8_decode(self.u.s->ptr, self.u.s->len, &cp) <= 0 || !text_is_name_start(cp)) return tv_bool(false);
    return all_chars(self, text_is_word);
}

/* kind 0: islower, 1: isupper, 2: istitle */
static struct tv case_is(struct tv s, int kind)
{
    bool any = false, prev_cased = false;
    for (size_t at = 0; at < s.u.s->len;) {
        uint32_t cp = 0;
        int n = utf8_decode(s.u.s->ptr + at, s.u.s->len - at, &cp);
        bool up = text_is_upper(cp) || text_is_title(cp), low = text_is_lower(cp);
        if (kind == 0 ? up : kind == 1 ? low || text_is_title(cp) : (up && prev_cased) || (low && !prev_cased))
            return tv_bool(false);
        any |= up || low;
        prev_cased = up || low;
        at += n > 0 ? (size_t)n : 1;
    }
    return tv_bool(any);
}

M(m_islower) { (void)r; (void)arg; return case_is(self, 0); }
M(m_isupper) { (void)r; (void)arg; return case_is(self, 1); }
M(m_istitle) { (void)r; (void)arg; return case_is(self, 2); }

static struct tv m_format(struct render *r, struct tv self, const struct func_call *c)
{
    return format_braces(r, self, c, tv_absent());
}

M(m_format_map)
{
    struct func_call none = { 0 };
    return format_braces(r, self, &none, arg[0]);
}

const struct func_row str_methods[] = {
    { "capitalize", "", m_capitalize, NULL }, { "casefold", "", m_casefold, NULL },
    { "center", "/ *width fillchar", m_center, NULL }, { "count", "/ *sub start end", m_count, NULL },
    { "endswith", "/ *suffix start end", m_endswith, NULL }, { "expandtabs", "tabsize", m_expandtabs, NULL },
    { "find", "/ *sub start end", m_find, NULL }, { "format", NULL, NULL, m_format },
    { "format_map", "/ *mapping", m_format_map, NULL }, { "index", "/ *sub start end", m_index, NULL },
    { "isalnum", "", m_isalnum, NULL }, { "isalpha", "", m_isalpha, NULL }, { "isascii", "", m_isascii, NULL },
    { "isdecimal", "", m_isdecimal, NULL }, { "isdigit", "", m_isdigit, NULL },
    { "isidentifier", "", m_isidentifier, NULL }, { "islower", "", m_islower, NULL },
    { "isnumeric", "", m_isnumeric, NULL }, { "isprintable", "", m_isprintable, NULL },
    { "isspace", "", m_isspace, NULL }, { "istitle", "", m_istitle, NULL }, { "isupper", "", m_isupper, NULL },
    { "join", "/ *iterable", m_join, NULL }, { "ljust", "/ *width fillchar", m_ljust, NULL },
    { "lower", "", m_lower, NULL }, { "lstrip", "/ chars", m_lstrip, NULL },
    { "partition", "/ *sep", m_partition, NULL }, { "removeprefix", "/ *prefix", m_removeprefix, NULL },
    { "removesuffix", "/ *suffix", m_removesuffix, NULL }, { "replace", "/ *old *new count", m_replace, NULL },
    { "rfind", "/ *sub start end", m_rfind, NULL }, { "rindex", "/ *sub start end", m_rindex, NULL },
    { "rjust", "/ *width fillchar", m_rjust, NULL }, { "rpartition", "/ *sep", m_rpartition, NULL },
    { "rsplit", "sep maxsplit", m_rsplit, NULL }, { "rstrip", "/ chars", m_rstrip, NULL },
    { "split", "sep maxsplit", m_split, NULL }, { "splitlines", "keepends", m_splitlines, NULL },
    { "startswith", "/ *prefix start end", m_startswith, NULL }, { "strip", "/ chars", m_strip, NULL },
    { "swapcase", "", m_swapcase, NULL }, { "title", "", m_title, NULL }, { "upper", "", m_upper, NULL },
    { "zfill", "/ *width", m_zfill, NULL },
    { NULL, NULL, NULL, NULL },
};
