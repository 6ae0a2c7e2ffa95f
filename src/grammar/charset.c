/* charset.c: sets of characters as sorted ranges of code points, and ranges as sequences of UTF-8 bytes.
 *
 * A set is built by adding ranges in any order, then normalised once; surrogates never are members, because no UTF-8
 * text holds them. Escapes follow ECMA-262: \d and \w are ASCII, \s is white space and line ends.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "grammar/grammar_int.h"

static void add_range(struct build *b, struct cset *s, uint32_t lo, uint32_t hi)
{
    if (lo > hi) return;
    struct crange *r = build_grow(b, s->r, s->n, &s->cap, sizeof *r);
    if (!r) return;
    s->r = r;
    s->r[s->n++] = (struct crange){ lo, hi };
}

void cset_add(struct build *b, struct cset *s, uint32_t lo, uint32_t hi)
{
    if (hi > 0x10FFFF) hi = 0x10FFFF;
    if (lo < 0xD800) add_range(b, s, lo, hi < 0xD7FF ? hi : 0xD7FF);
    if (hi > 0xDFFF) add_range(b, s, lo > 0xE000 ? lo : 0xE000, hi);
}

void cset_add_set(struct build *b, struct cset *s, const struct cset *other)
{
    for (size_t i = 0; i < other->n; i++) cset_add(b, s, other->r[i].lo, other->r[i].hi);
}

static int by_lo(const void *x, const void *y)
{
    const struct crange *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

void cset_normalize(struct cset *s)
{
    if (!s->n) return;
    qsort(s->r, s->n, sizeof *s->r, by_lo);
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (n && s->r[i].lo <= s->r[n - 1].hi + 1) {
            if (s->r[i].hi > s->r[n - 1].hi) s->r[n - 1].hi = s->r[i].hi;
        } else {
            s->r[n++] = s->r[i];
        }
    }
    s->n = n;
}

void cset_negate(struct build *b, struct cset *s)
{
    struct cset out = { 0 };
    uint32_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->r[i].lo > at) cset_add(b, &out, at, s->r[i].lo - 1);
        at = s->r[i].hi + 1;
    }
    if (at <= 0x10FFFF) cset_add(b, &out, at, 0x10FFFF);
    cset_normalize(&out);
    *s = out;
}

static const struct crange set_digit[] = { { '0', '9' } };
static const struct crange set_word[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
static const struct crange set_space[] = { { 9, 13 },          { 32, 32 },         { 0xA0, 0xA0 },     { 0x1680, 0x1680 },
                                           { 0x2000, 0x200A }, { 0x2028, 0x2029 }, { 0x202F, 0x202F }, { 0x205F, 0x205F },
                                           { 0x3000, 0x3000 }, { 0xFEFF, 0xFEFF } };

bool cset_add_escape(struct build *b, struct cset *s, char letter)
{
    const struct crange *r;
    size_t n;
    switch (letter) {
    case 'd': case 'D': r = set_digit, n = 1; break;
    case 'w': case 'W': r = set_word, n = 4; break;
    case 's': case 'S': r = set_space, n = sizeof set_space / sizeof *set_space; break;
    default: return false;
    }
    struct cset t = { 0 };
    for (size_t i = 0; i < n; i++) cset_add(b, &t, r[i].lo, r[i].hi);
    cset_normalize(&t);
    if (letter < 'a') cset_negate(b, &t);
    cset_add_set(b, s, &t);
    return true;
}

/* The long names that \p{...} takes besides the short ones. */
static const struct { const char *longer, *name; } category_names[] = {
    { "Letter", "L" }, { "Uppercase_Letter", "Lu" }, { "Lowercase_Letter", "Ll" }, { "Mark", "M" }, { "Number", "N" },
    { "Decimal_Number", "Nd" }, { "digit", "Nd" }, { "Punctuation", "P" }, { "Symbol", "S" }, { "Separator", "Z" },
    { "Space_Separator", "Zs" }, { "Other", "C" }, { "Control", "Cc" },
};

static bool make_category(struct build *b, struct cset *s, const char *name, size_t len)
{
    bool found = false, open = false;
    uint32_t first = 0;
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        const char *cat = cp <= 0x10FFFF ? utf8proc_category_string((utf8proc_int32_t)cp) : "";
        bool in = cat[0] == name[0] && (len == 1 || cat[1] == name[1]);
        if (in && !open) first = cp;
        if (!in && open) cset_add(b, s, first, cp - 1);
        found |= in;
        open = in;
    }
    return found;
}

/* Made once a build: it asks a million code points. */
bool cset_add_category(struct build *b, struct cset *s, const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof category_names / sizeof *category_names; i++)
        if (strlen(category_names[i].longer) == len && !memcmp(name, category_names[i].longer, len)) {
            name = category_names[i].name;
            len = strlen(name);
        }
    if (len < 1 || len > 2) return false;
    struct category *c = b->categories, *end = c + b->n_categories;
    while (c < end && (strlen(c->name) != len || memcmp(c->name, name, len))) c++;
    if (c == end) {
        if (b->n_categories == sizeof b->categories / sizeof *b->categories) return false; /* there are fewer */
        *c = (struct category){ 0 };
        memcpy(c->name, name, len);
        if (!make_category(b, &c->set, name, len)) return false;
        b->n_categories++;
    }
    cset_add_set(b, s, &c->set);
    return true;
}

void cset_fold_case(struct build *b, struct cset *s)
{
    size_t n = s->n;
    for (size_t i = 0; i < n; i++) {
        uint32_t lo = s->r[i].lo, hi = s->r[i].hi < 0x1FFFF ? s->r[i].hi : 0x1FFFF; /* letters with case end there */
        for (uint32_t cp = lo; cp <= hi; cp++) {
            uint32_t up = (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
            uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
            if (up != cp) cset_add(b, s, up, up);
            if (low != cp) cset_add(b, s, low, low);
        }
    }
    cset_normalize(s);
}

/* --- UTF-8 --- */

static const uint32_t max_of_length[5] = { 0, 0x7F, 0x7FF, 0xFFFF, 0x10FFFF };

/* The largest hi such that [lo, hi] has one length and each byte runs through its range independently of the others. */
static uint32_t independent_end(uint32_t lo, uint32_t hi)
{
    int len = 1;
    while (lo > max_of_length[len]) len++;
    if (hi > max_of_length[len]) hi = max_of_length[len];
    for (int i = 1; i < len; i++) {
        uint32_t low_bits = (1u << (6 * i)) - 1;
        if ((lo & ~low_bits) == (hi & ~low_bits)) continue;
        if (lo & low_bits) hi = lo | low_bits;
        else if ((hi & low_bits) != low_bits) hi = (hi & ~low_bits) - 1;
    }
    return hi;
}

static int utf8_put(uint32_t cp, uint8_t out[4])
{
    int len = 1;
    while (cp > max_of_length[len]) len++;
    static const uint8_t lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (int i = len - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (uint8_t)(lead[len] | cp);
    return len;
}

void utf8_sequences(uint32_t lo, uint32_t hi, void (*fn)(void *ctx, const struct utf8_seq *seq), void *ctx)
{
    while (lo <= hi) {
        uint32_t end = independent_end(lo, hi);
        struct utf8_seq seq;
        seq.n = utf8_put(lo, seq.lo);
        utf8_put(end, seq.hi);
        fn(ctx, &seq);
        lo = end + 1;
    }
}
