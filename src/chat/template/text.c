/* text.c: character classes and case, as Python 3.11's str has them, over utf8proc's tables.
 * Full case mappings (one character to several) come from the short table at the end: the unconditional ones of
 * Unicode's SpecialCasing; the final sigma is the business of the caller (strval.c).
 */
#include <utf8proc.h>

#include "base/utf8.h"
#include "chat/template/tmpl_text.h"

bool text_is_space(uint32_t cp)
{
    if (cp < 0x80) return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

size_t text_space_at(const char *s, size_t len)
{
    uint32_t cp;
    if (!len) return 0;
    if ((unsigned char)s[0] < 0x80) return text_is_space((unsigned char)s[0]) ? 1 : 0;
    int n = utf8_decode(s, len, &cp);
    return n > 0 && text_is_space(cp) ? (size_t)n : 0;
}

size_t text_lstrip_len(const char *s, size_t len)
{
    size_t at = 0, n;
    do {
        while (at < len && (s[at] == ' ' || s[at] == '\n')) at++;
        n = text_space_at(s + at, len - at);
        at += n;
    } while (n);
    return at;
}

size_t text_rstrip_len(const char *s, size_t len)
{
    while (len) {
        size_t start = len - 1;
        if (s[start] == ' ' || s[start] == '\n') { len = start; continue; }
        while (start > 0 && ((unsigned char)s[start] & 0xc0) == 0x80) start--;
        if (!text_space_at(s + start, len - start)) break;
        len = start;
    }
    return len;
}

size_t text_count_chars(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

size_t text_newline_at(const char *s, size_t len)
{
    if (!len) return 0;
    unsigned char c = (unsigned char)s[0];
    if (c == '\r') return len > 1 && s[1] == '\n' ? 2 : 1;
    if ((c >= 10 && c <= 12) || (c >= 0x1c && c <= 0x1e)) return 1;
    if (c == 0xc2 && len > 1 && (unsigned char)s[1] == 0x85) return 2;
    if (c == 0xe2 && len > 2 && (unsigned char)s[1] == 0x80 &&
        ((unsigned char)s[2] == 0xa8 || (unsigned char)s[2] == 0xa9)) return 3;
    return 0;
}

static int category(uint32_t cp) { return (int)utf8proc_category((utf8proc_int32_t)cp); }

bool text_is_alpha(uint32_t cp)
{
    int c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool text_is_decimal(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }

bool text_is_digit(uint32_t cp)
{
    if (text_is_decimal(cp)) return true;
    return cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) ||
           (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468) || (cp >= 0x2474 && cp <= 0x247c) ||
           (cp >= 0x2488 && cp <= 0x2490) || cp == 0x24ea || (cp >= 0x24f5 && cp <= 0x24fd) || cp == 0x24ff ||
           (cp >= 0x2776 && cp <= 0x277e) || (cp >= 0x2780 && cp <= 0x2788) || (cp >= 0x278a && cp <= 0x2792);
}

bool text_is_numeric(uint32_t cp)
{
    static const uint32_t han[] = { 0x3007, 0x4e00, 0x4e03, 0x4e07, 0x4e09, 0x4e24, 0x4e5d, 0x4e8c, 0x4e94, 0x4ebf,
                                    0x5104, 0x5146, 0x516b, 0x516d, 0x5341, 0x5343, 0x56db, 0x767e, 0x842c };
    int c = category(cp);
    if (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) return true;
    for (size_t i = 0; i < sizeof han / sizeof *han; i++)
        if (han[i] == cp) return true;
    return false;
}

bool text_is_word(uint32_t cp)
{
    if (cp < 0x80) return (cp >= '0' && cp <= '9') || (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || cp == '_';
    return text_is_alpha(cp) || text_is_numeric(cp);
}

bool text_is_name_start(uint32_t cp) { return cp == '_' || text_is_alpha(cp); }

bool text_is_printable(uint32_t cp)
{
    if (cp == ' ') return true;
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CS: case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP: case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

/* Other_Uppercase / Other_Lowercase beside the letters of those categories. */
bool text_is_upper(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216f) || (cp >= 0x24b6 && cp <= 0x24cf) ||
           (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
}

bool text_is_lower(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xaa || cp == 0xba || (cp >= 0x2b0 && cp <= 0x2b8) ||
           cp == 0x2c0 || cp == 0x2c1 || (cp >= 0x2e0 && cp <= 0x2e4) || cp == 0x345 || cp == 0x37a ||
           (cp >= 0x1d2c && cp <= 0x1d6a) || cp == 0x1d78 || (cp >= 0x1d9b && cp <= 0x1dbf) || cp == 0x2071 ||
           cp == 0x207f || (cp >= 0x2090 && cp <= 0x209c) || (cp >= 0x2170 && cp <= 0x217f) ||
           (cp >= 0x24d0 && cp <= 0x24e9);
}

bool text_is_title(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LT; }
bool text_is_cased(uint32_t cp) { return text_is_upper(cp) || text_is_lower(cp) || text_is_title(cp); }

bool text_is_case_ignorable(uint32_t cp)
{
    if (cp == '\'' || cp == '.' || cp == ':' || cp == '^' || cp == '`' || cp == 0xa8 || cp == 0xad || cp == 0xaf ||
        cp == 0xb4 || cp == 0xb7 || cp == 0xb8 || cp == 0x2019) return true;
    int c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK;
}

#include "chat/template/text_case.inc"

static int special(uint32_t cp, uint32_t out[3], bool title)
{
    size_t lo = 0, hi = sizeof special_case / sizeof *special_case;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (special_case[mid].cp < cp) lo = mid + 1;
        else hi = mid;
    }
    if (lo >= sizeof special_case / sizeof *special_case || special_case[lo].cp != cp) return 0;
    const uint16_t *to = title ? special_case[lo].title : special_case[lo].upper;
    int n = 0;
    while (n < 3 && to[n]) { out[n] = to[n]; n++; }
    return n;
}

int text_upper(uint32_t cp, uint32_t out[3])
{
    if (cp < 0x80) { out[0] = cp >= 'a' && cp <= 'z' ? cp - 32 : cp; return 1; }
    int n = special(cp, out, false);
    if (n) return n;
    out[0] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
    return 1;
}

int text_title(uint32_t cp, uint32_t out[3])
{
    if (cp < 0x80) return text_upper(cp, out);
    int n = special(cp, out, true);
    if (n) return n;
    out[0] = (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
    return 1;
}

int text_lower(uint32_t cp, uint32_t out[3])
{
    if (cp < 0x80) { out[0] = cp >= 'A' && cp <= 'Z' ? cp + 32 : cp; return 1; }
    if (cp == 0x130) { out[0] = 'i'; out[1] = 0x307; return 2; }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return 1;
}
