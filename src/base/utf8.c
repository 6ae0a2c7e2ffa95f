/* utf8.c: strict UTF-8 by the table of well-formed sequences (Unicode, table 3-7): the second byte's range depends on
 * the first, the others are 80..BF. The invalid length is the maximal prefix of some well-formed sequence, so
 * replacement counts equal those of Python and browsers. */
#include "base/utf8.h"

#include <string.h>

/* Length of the sequence a first byte announces (0 = never first) and the range of its second byte. */
static int lead_length(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80) return 1;
    if (c >= 0xC2 && c <= 0xDF) return 2;
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0) *lo = 0xA0; /* no overlong forms */
        if (c == 0xED) *hi = 0x9F; /* no surrogates */
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0) *lo = 0x90;
        if (c == 0xF4) *hi = 0x8F; /* at most U+10FFFF */
        return 4;
    }
    return 0;
}

/* Bytes at s that are a prefix of a well-formed sequence of *want bytes. */
static int prefix_length(const unsigned char *s, size_t len, int *want)
{
    unsigned char lo, hi;
    *want = lead_length(s[0], &lo, &hi);
    if (*want == 0) return 0;
    int n = 1;
    while (n < *want && (size_t)n < len && s[n] >= lo && s[n] <= hi) {
        lo = 0x80;
        hi = 0xBF;
        n++;
    }
    return n;
}

int utf8_decode(const char *s, size_t len, uint32_t *cp)
{
    *cp = 0;
    if (len == 0) return -1;
    const unsigned char *u = (const unsigned char *)s;
    int want, n = prefix_length(u, len, &want);
    if (n == 0) return 0;
    if (n < want) return (size_t)n == len ? -1 : 0;
    static const unsigned char mask[5] = { 0, 0x7F, 0x1F, 0x0F, 0x07 };
    uint32_t value = u[0] & mask[n];
    for (int i = 1; i < n; i++) value = value << 6 | (u[i] & 0x3F);
    *cp = value;
    return n;
}

int utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (int i = n - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(lead[n] | cp);
    return n;
}

size_t utf8_valid_prefix(const char *s, size_t len, bool *cut_off)
{
    size_t i = 0;
    if (cut_off) *cut_off = false;
    while (i < len) {
        uint64_t word;
        if (len - i >= 8) { /* eight ASCII bytes at a time */
            memcpy(&word, s + i, 8);
            if (!(word & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        uint32_t cp;
        int n = utf8_decode(s + i, len - i, &cp);
        if (n <= 0) {
            if (cut_off) *cut_off = n < 0;
            break;
        }
        i += (size_t)n;
    }
    return i;
}

bool utf8_valid(const char *s, size_t len)
{
    return utf8_valid_prefix(s, len, NULL) == len;
}

size_t utf8_invalid_length(const char *s, size_t len)
{
    if (len == 0) return 1;
    int want, n = prefix_length((const unsigned char *)s, len, &want);
    return n > 0 ? (size_t)n : 1;
}
