/* nfc.c: the four Unicode normal forms, with the origin of each byte kept.
 *
 * Text is worked off in segments: a segment begins at a character whose decomposition starts with a starter that never
 * composes with what stands before it (not a mark, not a Hangul vowel or final). Each segment is decomposed, its marks
 * sorted by combining class in linear time (counting sort: 100,000 marks in a row are no trap), and composed again for
 * NFC and NFKC. A segment that comes out as it went in keeps its bytes' origins one by one. Tables: utf8proc.
 */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define MAX_DECOMPOSED 32 /* one character's longest decomposition is 18 */

struct nf_run {
    const struct mtext *src;
    struct mbuf *out;
    bool compose;
    int options;
    utf8proc_int32_t *cps; /* the segment, decomposed */
    utf8proc_int32_t *sorted;
    size_t n, cap;
    size_t first;          /* byte of src where the segment begins */
};

static bool is_boundary(utf8proc_int32_t cp)
{
    if (cp < 0x300) return true;
    if (cp >= 0x1160 && cp <= 0x11FF) return false;
    const utf8proc_property_t *p = utf8proc_get_property(cp);
    return p->combining_class == 0 && !(p->category >= UTF8PROC_CATEGORY_MN && p->category <= UTF8PROC_CATEGORY_ME);
}

static int class_of(utf8proc_int32_t cp)
{
    return cp < 0x300 ? 0 : utf8proc_get_property(cp)->combining_class;
}

/* Stable sort of a run of marks by combining class. */
static void sort_marks(utf8proc_int32_t *a, utf8proc_int32_t *tmp, size_t n)
{
    size_t count[257] = { 0 };
    for (size_t i = 0; i < n; i++) count[class_of(a[i]) + 1]++;
    for (int c = 1; c < 257; c++) count[c] += count[c - 1];
    for (size_t i = 0; i < n; i++) tmp[count[class_of(a[i])]++] = a[i];
    memcpy(a, tmp, n * sizeof *a);
}

static void sort_segment(struct nf_run *r)
{
    for (size_t i = 0; i < r->n;) {
        if (class_of(r->cps[i]) == 0) {
            i++;
            continue;
        }
        size_t first = i;
        bool sorted = true;
        for (i++; i < r->n && class_of(r->cps[i]) != 0; i++)
            if (class_of(r->cps[i]) < class_of(r->cps[i - 1])) sorted = false;
        if (!sorted) sort_marks(r->cps + first, r->sorted, i - first);
    }
}

/* The segment's bytes [first, end) of src are complete. */
static void flush(struct nf_run *r, size_t end)
{
    if (!r->n) return;
    sort_segment(r);
    utf8proc_ssize_t n = (utf8proc_ssize_t)r->n;
    if (r->compose && n > 1)
        n = utf8proc_normalize_utf32(r->cps, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    char utf8[4];
    size_t at = r->first;
    bool same = true;
    for (utf8proc_ssize_t i = 0; i < n && same; i++) {
        size_t len = (size_t)utf8_encode((uint32_t)r->cps[i], utf8);
        same = len <= end - at && memcmp(r->src->s + at, utf8, len) == 0;
        at += len;
    }
    if (same && at == end) {
        mbuf_copy(r->out, r->src, r->first, end);
    } else {
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            size_t len = (size_t)utf8_encode((uint32_t)r->cps[i], utf8);
            mbuf_put(r->out, utf8, len, mtext_first(r->src, r->first), mtext_end(r->src, end - 1));
        }
    }
    r->n = 0;
}

static bool segment_add(struct nf_run *r, const utf8proc_int32_t *cps, size_t n)
{
    if (r->n + n > r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 256;
        utf8proc_int32_t *a = mb_realloc(r->cps, cap * sizeof *a);
        if (a) r->cps = a;
        utf8proc_int32_t *b = a ? mb_realloc(r->sorted, cap * sizeof *b) : NULL;
        if (b) r->sorted = b;
        if (!a || !b) {
            r->out->failed = MB_NO_MEMORY;
            return false;
        }
        r->cap = cap;
    }
    memcpy(r->cps + r->n, cps, n * sizeof *cps);
    r->n += n;
    return true;
}

static void run_text(struct nf_run *r)
{
    const struct mtext *x = r->src;
    for (size_t i = 0; i < x->n;) {
        size_t first = i;
        /* Plain ASCII, but for its last character: a mark may follow that one. */
        while (i + 1 < x->n && (uint8_t)x->s[i] < 0x80 && (uint8_t)x->s[i + 1] < 0x80) i++;
        if (i > first) {
            flush(r, first);
            mbuf_copy(r->out, x, first, i);
            first = i;
        }
        utf8proc_int32_t d[MAX_DECOMPOSED];
        uint32_t cp = utf8_next(x->s, x->n, &i);
        int class = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, d, MAX_DECOMPOSED, r->options, &class);
        if (n < 1 || n > MAX_DECOMPOSED) {
            d[0] = (utf8proc_int32_t)cp;
            n = 1;
        }
        if (is_boundary(d[0])) flush(r, first);
        if (!r->n) r->first = first;
        if (!segment_add(r, d, (size_t)n)) return;
    }
    flush(r, x->n);
}

/* Quick look: is the text in its normal form for sure? */
static bool is_plain(const struct mtext *x, bool compose, bool compat)
{
    size_t i = 0;
    uint8_t limit = compose && !compat ? 0xCC : 0x80; /* U+0300 begins with CC; all below is NFC */
    while (i < x->n && (uint8_t)x->s[i] < limit) i++;
    if (i == x->n) return true;
    if (!compose || compat) return false;
    while (i > 0 && ((uint8_t)x->s[i] & 0xC0) == 0x80) i--;
    while (i < x->n) {
        uint32_t cp = utf8_next(x->s, x->n, &i);
        if (cp < 0x300 || (cp >= 0x4E00 && cp <= 0x9FFF)) continue;
        if (!is_boundary((utf8proc_int32_t)cp)) return false;
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
        if (p->decomp_seqindex != UINT16_MAX && p->decomp_type == 0) return false;
    }
    return true;
}

bool nf_run(enum norm_kind kind, const struct mtext *src, struct mbuf *out)
{
    bool compose = kind == NORM_NFC || kind == NORM_NFKC, compat = kind == NORM_NFKC || kind == NORM_NFKD;
    if (is_plain(src, compose, compat)) return false;
    struct nf_run r = { .src = src, .out = out, .compose = compose };
    r.options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compat ? UTF8PROC_COMPAT : 0);
    run_text(&r);
    mb_free(r.cps);
    mb_free(r.sorted);
    return true;
}
