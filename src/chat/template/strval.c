/* strval.c: strings with origin runs: building, slicing, searching, case.
 *
 * A tsb collects bytes and runs in the scratch arena; neighbours of one origin melt together, so a string of one
 * origin needs no list. Slices borrow the bytes. Offsets are bytes here; characters are counted only where Python
 * counts them (indexing, len, widths). No string grows above r->max_bytes.
 */
#include <string.h>

#include "base/utf8.h"
#include "chat/template/tmpl_rt.h"

void tsb_init(struct tsb *b, struct render *r) { *b = (struct tsb){ .r = r }; }

static bool reserve(struct tsb *b, size_t more)
{
    struct render *r = b->r;
    if (r->status) return false;
    if (more > r->max_bytes || b->len > r->max_bytes - more) {
        render_fail(r, MB_TOO_LARGE, "the text grows beyond the ceiling of %zu bytes", r->max_bytes);
        return false;
    }
    if (b->len + more + 1 <= b->cap) return true;
    size_t cap = b->cap ? b->cap * 2 : 32;
    while (cap < b->len + more + 1) cap *= 2;
    char *grown = render_alloc(r, cap, 1);
    if (!grown) return false;
    if (b->len) memcpy(grown, b->data, b->len);
    b->data = grown;
    b->cap = cap;
    return true;
}

static bool mark(struct tsb *b, size_t end, uint32_t org)
{
    if (b->n_runs && b->runs[b->n_runs - 1].org == org) {
        b->runs[b->n_runs - 1].end = end;
        return true;
    }
    if (b->n_runs == b->cap_runs) {
        size_t cap = b->cap_runs ? b->cap_runs * 2 : 4;
        struct trun *grown = render_alloc(b->r, cap, sizeof *grown);
        if (!grown) return false;
        if (b->n_runs) memcpy(grown, b->runs, b->n_runs * sizeof *grown);
        b->runs = grown;
        b->cap_runs = cap;
    }
    b->runs[b->n_runs++] = (struct trun){ end, org };
    return true;
}

bool tsb_add(struct tsb *b, const char *p, size_t len, uint32_t org)
{
    if (!len) return !b->r->status;
    if (!reserve(b, len)) return false;
    memcpy(b->data + b->len, p, len);
    b->len += len;
    return mark(b, b->len, org);
}

bool tsb_add_cp(struct tsb *b, uint32_t cp, uint32_t org)
{
    char out[4];
    int n = utf8_encode(cp, out);
    return tsb_add(b, out, (size_t)n, org);
}

bool tsb_lit(struct tsb *b, const char *s) { return tsb_add(b, s, strlen(s), ORG_TEMPLATE); }

bool tsb_add_range(struct tsb *b, struct tv v, size_t first, size_t end)
{
    const struct tstr *s = v.u.s;
    if (first >= end) return !b->r->status;
    if (!s->runs) return tsb_add(b, s->ptr + first, end - first, v.org);
    size_t lo = 0, hi = s->n_runs; /* first run that ends behind `first` */
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->runs[mid].end <= first) lo = mid + 1;
        else hi = mid;
    }
    for (; first < end && lo < s->n_runs; lo++) {
        size_t stop = s->runs[lo].end < end ? s->runs[lo].end : end;
        if (!tsb_add(b, s->ptr + first, stop - first, s->runs[lo].org)) return false;
        first = stop;
    }
    return true;
}

bool tsb_add_str(struct tsb *b, struct tv s)
{
    return tv_is_str(s) ? tsb_add_range(b, s, 0, s.u.s->len) : false;
}

static struct tv make(struct render *r, const char *p, size_t len, uint32_t org)
{
    struct tstr *s = render_alloc(r, 1, sizeof *s);
    if (!s) return tv_undef(NULL);
    s->ptr = p;
    s->len = len;
    s->n_chars = SIZE_MAX;
    return (struct tv){ .type = TV_STR, .org = org, .u.s = s };
}

struct tv tsb_take(struct tsb *b)
{
    if (b->r->status) return tv_undef(NULL);
    struct tv v = make(b->r, b->data ? b->data : "", b->len, b->n_runs ? b->runs[0].org : ORG_TEMPLATE);
    if (v.type == TV_STR && b->n_runs > 1) {
        v.u.s->runs = b->runs;
        v.u.s->n_runs = b->n_runs;
    }
    return v;
}

struct tv tv_str(struct render *r, const char *p, size_t len, uint32_t org) { return make(r, p, len, org); }

struct tv tv_str_copy(struct render *r, const char *p, size_t len, uint32_t org)
{
    char *copy = render_alloc(r, len + 1, 1);
    if (!copy) return tv_undef(NULL);
    memcpy(copy, p, len);
    return make(r, copy, len, org);
}

struct tv tv_str_slice(struct render *r, struct tv v, size_t first, size_t end)
{
    if (!tv_is_str(v)) return tv_undef(NULL);
    if (first == 0 && end == v.u.s->len) return v;
    if (v.u.s->runs) {
        struct tsb b;
        tsb_init(&b, r);
        tsb_add_range(&b, v, first, end);
        return tsb_take(&b);
    }
    return make(r, v.u.s->ptr + first, end > first ? end - first : 0, v.org);
}

uint32_t tv_str_origin_at(struct tv v, size_t at)
{
    const struct tstr *s = v.u.s;
    if (!s->runs) return v.org;
    size_t lo = 0, hi = s->n_runs - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->runs[mid].end <= at) lo = mid + 1;
        else hi = mid;
    }
    return s->runs[lo].org;
}

size_t tv_str_byte(struct tv v, size_t i_char)
{
    struct tstr *s = v.u.s;
    if (s->n_chars == s->len) return i_char;
    size_t at = 0;
    while (i_char-- && at < s->len) at += text_step(s->ptr + at);
    return at;
}

bool tv_str_is(struct tv v, const char *lit)
{
    return tv_is_str(v) && v.u.s->len == strlen(lit) && memcmp(v.u.s->ptr, lit, v.u.s->len) == 0;
}

/* The bytes of s again and again, `total` in all. */
static struct tv repeat_plain(struct render *r, struct tv s, size_t total)
{
    size_t len = s.u.s->len, done = len;
    char *p = render_step(r, total / 256) ? render_alloc(r, total, 1) : NULL;
    if (!p) return tv_undef(NULL);
    memcpy(p, s.u.s->ptr, len);
    for (; done < total; done += len) {
        len = done < total - done ? done : total - done;
        memcpy(p + done, p, len);
    }
    return make(r, p, total, s.org);
}

struct tv tv_str_repeat(struct render *r, struct tv s, int64_t times)
{
    size_t len = s.u.s->len;
    struct tsb b;
    tsb_init(&b, r);
    if (times <= 0 || !len) return tsb_take(&b);
    if ((uint64_t)times > r->max_bytes / len)
        return render_fail(r, MB_TOO_LARGE, "a repeated string would pass the ceiling of %zu bytes", r->max_bytes);
    if (!s.u.s->runs) return repeat_plain(r, s, (size_t)times * len);
    if (!render_step(r, (uint64_t)times * s.u.s->n_runs)) return tv_undef(NULL);
    for (int64_t i = 0; i < times && !r->status; i++) tsb_add_str(&b, s);
    return tsb_take(&b);
}

size_t tv_str_find(struct tv v, struct tv needle, size_t first, size_t end)
{
    if (first > end || needle.u.s->len > end - first) return SIZE_MAX;
    if (!needle.u.s->len) return first;
    const char *hit = memmem(v.u.s->ptr + first, end - first, needle.u.s->ptr, needle.u.s->len);
    return hit ? (size_t)(hit - v.u.s->ptr) : SIZE_MAX;
}

size_t tv_str_rfind(struct tv v, struct tv needle, size_t first, size_t end)
{
    size_t len = needle.u.s->len;
    if (first > end || len > end - first) return SIZE_MAX;
    for (size_t at = end - len + 1; at-- > first;)
        if (memcmp(v.u.s->ptr + at, needle.u.s->ptr, len) == 0 && (len || at == 0 || at == v.u.s->len ||
            ((unsigned char)v.u.s->ptr[at] & 0xc0) != 0x80)) return at;
    return SIZE_MAX;
}

/* An empty `old` matches before every character and at the end. */
static struct tv replace_empty(struct render *r, struct tv s, struct tv by, int64_t count)
{
    struct tsb b;
    tsb_init(&b, r);
    size_t at = 0, len = s.u.s->len;
    for (; count != 0; count--) {
        if (!tsb_add_str(&b, by) && r->status) break;
        if (at >= len) break;
        size_t n = text_step(s.u.s->ptr + at);
        tsb_add_range(&b, s, at, at + n);
        at += n;
        if (!render_step(r, 1)) break;
    }
    tsb_add_range(&b, s, at, len);
    return tsb_take(&b);
}

struct tv tv_str_replace(struct render *r, struct tv s, struct tv old, struct tv by, int64_t count)
{
    if (!tv_is_str(s) || !tv_is_str(old) || !tv_is_str(by)) return tv_undef(NULL);
    if (!old.u.s->len) return replace_empty(r, s, by, count < 0 ? INT64_MAX : count);
    size_t at = 0, len = s.u.s->len, hit = count ? tv_str_find(s, old, 0, len) : SIZE_MAX;
    if (hit == SIZE_MAX) return s;
    struct tsb b;
    tsb_init(&b, r);
    while (hit != SIZE_MAX && count != 0) {
        tsb_add_range(&b, s, at, hit);
        tsb_add_str(&b, by);
        at = hit + old.u.s->len;
        if (count > 0) count--;
        if (!render_step(r, 1)) break;
        hit = tv_str_find(s, old, at, len);
    }
    tsb_add_range(&b, s, at, len);
    return tsb_take(&b);
}

static bool in_chars(struct tv chars, const char *p, size_t n)
{
    for (size_t at = 0; at < chars.u.s->len;) {
        size_t k = text_step(chars.u.s->ptr + at);
        if (k == n && memcmp(chars.u.s->ptr + at, p, n) == 0) return true;
        at += k;
    }
    return false;
}

struct tv tv_str_strip(struct render *r, struct tv v, struct tv chars, bool left, bool right)
{
    if (!tv_is_str(v)) return tv_undef(NULL);
    const char *p = v.u.s->ptr;
    size_t first = 0, end = v.u.s->len;
    if (!tv_is_str(chars)) {
        if (left) first = text_lstrip_len(p, end);
        if (right) end = first + text_rstrip_len(p + first, end - first);
        return tv_str_slice(r, v, first, end);
    }
    while (left && first < end && in_chars(chars, p + first, text_step(p + first))) first += text_step(p + first);
    while (right && end > first) {
        size_t start = end - 1;
        while (start > first && ((unsigned char)p[start] & 0xc0) == 0x80) start--;
        if (!in_chars(chars, p + start, end - start)) break;
        end = start;
    }
    return tv_str_slice(r, v, first, end);
}

/* Append map(the character at `at`); returns its bytes. */
static size_t map_one(struct tsb *b, struct tv v, size_t at, int (*map)(uint32_t, uint32_t[3]))
{
    uint32_t cp = 0, out[3];
    int n = utf8_decode(v.u.s->ptr + at, v.u.s->len - at, &cp);
    if (n <= 0) n = 1;
    int k = map(cp, out);
    uint32_t org = tv_str_origin_at(v, at);
    for (int i = 0; i < k; i++) tsb_add_cp(b, out[i], org);
    return (size_t)n;
}

struct tv tv_str_map(struct render *r, struct tv v, int (*map)(uint32_t, uint32_t[3]))
{
    struct tsb b;
    tsb_init(&b, r);
    if (!tv_is_str(v) || !render_step(r, v.u.s->len / 16)) return tv_undef(NULL);
    for (size_t at = 0; at < v.u.s->len && !r->status;) at += map_one(&b, v, at, map);
    return tsb_take(&b);
}

/* Is the capital sigma at `at` the last letter of a word? Then its small form is U+03C2. */
static bool is_final_sigma(struct tv v, size_t at)
{
    const char *p = v.u.s->ptr;
    size_t len = v.u.s->len, i = at;
    uint32_t cp = 0;
    bool before = false;
    while (i > 0) {
        do i--; while (i > 0 && ((unsigned char)p[i] & 0xc0) == 0x80);
        utf8_decode(p + i, len - i, &cp);
        if (text_is_case_ignorable(cp)) continue;
        before = text_is_cased(cp);
        break;
    }
    for (i = at + 2; before && i < len; i += text_step(p + i)) {
        utf8_decode(p + i, len - i, &cp);
        if (text_is_case_ignorable(cp)) continue;
        return !text_is_cased(cp);
    }
    return before;
}

/* Lower case of bytes [first, end), appended. */
static void lower_range(struct tsb *b, struct tv v, size_t first, size_t end)
{
    for (size_t at = first; at < end && !b->r->status;) {
        if (memcmp(v.u.s->ptr + at, "\xce\xa3", end - at >= 2 ? 2 : end - at) == 0 && end - at >= 2) {
            tsb_add_cp(b, is_final_sigma(v, at) ? 0x3c2 : 0x3c3, tv_str_origin_at(v, at));
            at += 2;
        } else {
            at += map_one(b, v, at, text_lower);
        }
    }
}

struct tv tv_str_lower(struct render *r, struct tv v)
{
    struct tsb b;
    tsb_init(&b, r);
    if (!tv_is_str(v) || !render_step(r, v.u.s->len / 16)) return tv_undef(NULL);
    lower_range(&b, v, 0, v.u.s->len);
    return tsb_take(&b);
}

struct tv tv_str_capitalize(struct render *r, struct tv v)
{
    struct tsb b;
    tsb_init(&b, r);
    if (!tv_is_str(v) || !render_step(r, v.u.s->len / 16)) return tv_undef(NULL);
    size_t at = v.u.s->len ? map_one(&b, v, 0, text_title) : 0;
    lower_range(&b, v, at, v.u.s->len);
    return tsb_take(&b);
}
