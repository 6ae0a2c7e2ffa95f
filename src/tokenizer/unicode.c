/* unicode.c: character classes and the byte-level alphabet.
 *
 * The classes are those that the oracle takes from Rust (char::is_whitespace, is_numeric, the general categories and
 * the \w of its regex crate); the categories come from utf8proc. The byte-level alphabet (GPT-2) shows each byte as a
 * printable character: printable Latin-1 stands for itself, the 68 others are U+0100 and up in order.
 * utf8proc, PCRE2 and the oracle's crates each follow their own Unicode version (13 to 16); characters that were added
 * or moved between those may fall into another class than the oracle's. All others were compared one by one.
 * No state, any thread.
 */
#include <utf8proc.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

bool uni_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool uni_is_numeric(uint32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool uni_is_punct(uint32_t cp)
{
    if (cp < 0x80) return cp > ' ' && cp < 0x7F && !((cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z'));
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool uni_is_mark(uint32_t cp)
{
    if (cp < 0x300) return false;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

bool uni_is_mark_nonspacing(uint32_t cp)
{
    return cp >= 0x300 && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_MN;
}

bool uni_is_other(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

bool uni_is_word(uint32_t cp)
{
    if (cp < 0x80) return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z');
    if (cp == 0x200C || cp == 0x200D) return true;
    if ((cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) || (cp >= 0x1F150 && cp <= 0x1F169) ||
        (cp >= 0x1F170 && cp <= 0x1F189))
        return true; /* Other_Alphabetic symbols */
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ME) || c == UTF8PROC_CATEGORY_ND ||
           c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_PC;
}

bool uni_is_cjk(uint32_t cp)
{
    return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) || (cp >= 0x20000 && cp <= 0x2A6DF) ||
           (cp >= 0x2A700 && cp <= 0x2B73F) || (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
           (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

uint32_t byte_to_char(uint8_t b)
{
    if (b <= 32) return 256u + b;
    if (b >= 127 && b <= 160) return 256u + 33u + (b - 127u);
    if (b == 173) return 256u + 67u;
    return b;
}

int char_to_byte(uint32_t cp)
{
    if (cp >= 33 && cp <= 126) return (int)cp;
    if (cp >= 161 && cp <= 255) return cp == 173 ? -1 : (int)cp;
    if (cp >= 256 && cp <= 288) return (int)cp - 256;
    if (cp >= 289 && cp <= 322) return (int)cp - 289 + 127;
    return cp == 323 ? 173 : -1;
}

bool bytes_of_alphabet(const char *s, size_t len, uint8_t *out, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        int b = char_to_byte(utf8_next(s, len, &i));
        if (b < 0) return false;
        out[n++] = (uint8_t)b;
    }
    *n_out = n;
    return true;
}

uint32_t utf8_next(const char *s, size_t len, size_t *pos)
{
    const uint8_t *u = (const uint8_t *)s + *pos;
    if (u[0] < 0x80) {
        (*pos)++;
        return u[0];
    }
    uint32_t cp = 0xFFFD;
    int n = utf8_decode(s + *pos, len - *pos, &cp);
    if (n <= 0) { /* not in valid text; step over one byte all the same */
        (*pos)++;
        return 0xFFFD;
    }
    *pos += (size_t)n;
    return cp;
}

uint32_t utf8_last(const char *s, size_t len, size_t *first)
{
    size_t i = len;
    do i--;
    while (i > 0 && ((uint8_t)s[i] & 0xC0) == 0x80);
    *first = i;
    size_t pos = i;
    return utf8_next(s, len, &pos);
}
