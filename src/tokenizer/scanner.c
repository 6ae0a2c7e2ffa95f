/* scanner.c: the split patterns of the common families, cut by hand.
 *
 * A pattern of the table below, recognised by its exact text, is a list of alternatives of which one always matches, so a
 * text falls into pieces without gaps and one function, scanner_next, finds each piece's end in one look at its bytes.
 * What the alternatives of one family have and another's have not is a column. Equal to the regular expression on every
 * text (tests/unit/test_tokenizer_scan.c compares them); a pattern that is not here runs in PCRE2 (regex.c).
 * Linear: a byte is looked at a fixed number of times, whatever the text (B-001).
 */
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/tokenizer_int.h"

/* Classes of characters; every character has at least one. */
enum { SPACE = 1, BREAK = 2 /* CR and LF, SPACE too */, UPPER = 4, LOWER = 8, LETTER = 16 /* neither */, MARK = 32, NUMBER = 64,
       OTHER = 128 };
#define LETTERS (UPPER | LOWER | LETTER)

enum contraction { CONTRACT_NEVER, CONTRACT_EXACT /* first alternative */, CONTRACT_ANY_CASE, CONTRACT_SUFFIX /* of a word */ };

struct scanner {
    const char *pattern;
    uint8_t word;              /* what a word is made of */
    bool cased;                /* words end where small letters turn to capitals */
    bool any_prefix;           /* one character that is no letter, number or line break may open a word; else a space */
    enum contraction contract;
    uint8_t n_digits;          /* at most so many numbers a piece; 0: any number of them, a space may stand before */
    bool breaks;               /* white space ends behind its last line break */
    const char *tail;          /* what other characters take along behind them */
};

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s+(?!\\S)|\\s+"
#define UPPERS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERS "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"

static const struct scanner scanners[] = {
    { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" SPACES, /* GPT-2: the pattern of ByteLevel */
      LETTERS, false, false, CONTRACT_EXACT, 0, false, "" },
    { CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES, /* Llama 3 */
      LETTERS, false, true, CONTRACT_ANY_CASE, 3, true, "\r\n" },
    { "'(?i:[sdmt]|ll|ve|re)|" PREFIX "+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|" SPACES, /* cl100k */
      LETTERS, false, true, CONTRACT_ANY_CASE, 3, true, "\r\n" },
    { CONTRACTIONS "|" PREFIX "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES, /* Qwen 2 */
      LETTERS, false, true, CONTRACT_ANY_CASE, 1, true, "\r\n" },
    { CONTRACTIONS "|" PREFIX "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES, /* Qwen 3.5 */
      LETTERS | MARK, false, true, CONTRACT_ANY_CASE, 1, true, "\r\n" },
    { PREFIX UPPERS "*" LOWERS "+" CONTRACTIONS "?|" PREFIX UPPERS "+" LOWERS "*" CONTRACTIONS
      "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" SPACES, /* o200k */
      LETTERS, true, true, CONTRACT_SUFFIX, 3, true, "\r\n/" },
    { PREFIX UPPERS "*" LOWERS "+|" PREFIX UPPERS "+" LOWERS "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" SPACES, /* Tekken */
      LETTERS, true, true, CONTRACT_NEVER, 1, true, "\r\n/" },
};

const struct scanner *scanner_find(const char *pattern, size_t len)
{
    for (size_t i = 0; i < sizeof scanners / sizeof scanners[0]; i++)
        if (strlen(scanners[i].pattern) == len && memcmp(scanners[i].pattern, pattern, len) == 0) return &scanners[i];
    return NULL;
}

const char *scanner_pattern(size_t i)
{
    return i < sizeof scanners / sizeof scanners[0] ? scanners[i].pattern : NULL;
}

/* --- classes --- */

#define S SPACE
#define B (SPACE | BREAK)
#define U UPPER
#define L LOWER
#define N NUMBER
#define O OTHER
static const uint8_t ascii_class[256] = { /* bytes of longer characters have none */
    O, O, O, O, O, O, O, O, O, S, B, S, S, B, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O,
    S, O, O, O, O, O, O, O, O, O, O, O, O, O, O, O, N, N, N, N, N, N, N, N, N, N, O, O, O, O, O, O,
    O, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, U, O, O, O, O, O,
    O, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, O, O, O, O, O,
};
#undef S
#undef B
#undef U
#undef L
#undef N
#undef O

static uint8_t class_of(uint32_t cp)
{
    if (uni_is_space(cp)) return SPACE;
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    if (c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LT) return UPPER;
    if (c == UTF8PROC_CATEGORY_LL) return LOWER;
    if (c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO) return LETTER;
    if (c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME) return MARK;
    if (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) return NUMBER;
    return OTHER;
}

struct text {
    const char *s;
    size_t n;
};

/* Class of the character at *i, which is passed; 0 at the end. */
static inline unsigned class_next(const struct text *x, size_t *i)
{
    if (*i >= x->n) return 0;
    uint8_t c = (uint8_t)x->s[*i];
    if (c < 0x80) {
        ++*i;
        return ascii_class[c];
    }
    return class_of(utf8_next(x->s, x->n, i));
}

static inline unsigned class_at(const struct text *x, size_t i)
{
    return class_next(x, &i);
}

/* End of the run of characters of these classes that begins at i. */
static inline size_t run_end(const struct text *x, size_t i, unsigned classes)
{
    for (;;) {
        while (i < x->n && (ascii_class[(uint8_t)x->s[i]] & classes)) i++;
        if (i >= x->n || (uint8_t)x->s[i] < 0x80) return i;
        size_t next = i;
        if (!(class_next(x, &next) & classes)) return i;
        i = next;
    }
}

/* --- alternatives: each gives the end of its match at i, or i when it has none --- */

static uint8_t lower_of(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c | 32) : c;
}

static size_t contraction_end(const struct text *x, size_t i, bool any_case)
{
    if (x->n - i < 2 || x->s[i] != '\'') return i;
    uint8_t a = (uint8_t)x->s[i + 1], b = x->n - i > 2 ? (uint8_t)x->s[i + 2] : 0;
    if (any_case) {
        if (a == 0xC5 && b == 0xBF) return i + 3; /* U+017F, the long s */
        a = lower_of(a);
        b = lower_of(b);
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l')) return i + 3;
    return i;
}

/* UPPERS*LOWERS+, or where only that matches, UPPERS+LOWERS*: */
static size_t cased_end(const struct text *x, size_t i, bool small_letters)
{
    const unsigned both = LETTER | MARK;
    size_t end = i, behind_both = i; /* behind the last character of both sets */
    for (size_t next = i;;) {
        unsigned c = class_next(x, &next);
        if (!(c & (UPPER | both))) break;
        end = next;
        if (c & both) behind_both = next;
    }
    if (!small_letters) return end;
    size_t all = run_end(x, end, LOWER | both);
    return all > end ? all : behind_both;
}

static size_t cased_word(const struct scanner *r, const struct text *x, size_t at, size_t behind_prefix)
{
    size_t end = at;
    for (int small = 1; small >= 0 && end == at; small--) {
        size_t e = behind_prefix > at ? cased_end(x, behind_prefix, small != 0) : at;
        if (e > behind_prefix) end = e;
        else if ((e = cased_end(x, at, small != 0)) > at) end = e;
    }
    return end > at && r->contract == CONTRACT_SUFFIX ? contraction_end(x, end, true) : end;
}

static size_t word_end(const struct scanner *r, const struct text *x, size_t at, unsigned first, size_t behind)
{
    bool prefix = r->any_prefix ? !(first & (BREAK | LETTERS | NUMBER)) : x->s[at] == ' ';
    if (r->cased) return cased_word(r, x, at, prefix ? behind : at);
    if (first & r->word) return run_end(x, behind, r->word);
    if (!prefix || !(class_at(x, behind) & r->word)) return at;
    return run_end(x, behind, r->word);
}

static size_t number_end(const struct scanner *r, const struct text *x, size_t at, unsigned first, size_t behind)
{
    if (r->n_digits == 0) {
        if (first & NUMBER) return run_end(x, behind, NUMBER);
        return x->s[at] == ' ' && (class_at(x, behind) & NUMBER) ? run_end(x, behind, NUMBER) : at;
    }
    if (!(first & NUMBER)) return at;
    size_t end = behind;
    for (int n = 1; n < r->n_digits; n++) {
        size_t next = end;
        if (!(class_next(x, &next) & NUMBER)) break;
        end = next;
    }
    return end;
}

static size_t other_end(const struct scanner *r, const struct text *x, size_t at, unsigned first, size_t behind)
{
    const unsigned others = (OTHER | MARK) & ~(unsigned)r->word;
    if (!(first & others) && (x->s[at] != ' ' || !(class_at(x, behind) & others))) return at;
    size_t end = run_end(x, behind, others);
    while (end < x->n && x->s[end] && strchr(r->tail, x->s[end])) end++;
    return end;
}

static size_t space_end(const struct scanner *r, const struct text *x, size_t at)
{
    size_t end = at, behind_break = at, last = at; /* last: where the run's last character begins */
    for (size_t next = at;;) {
        unsigned c = class_next(x, &next);
        if (!(c & SPACE)) break;
        last = end;
        end = next;
        if (c & BREAK) behind_break = end;
    }
    if (r->breaks && behind_break > at) return behind_break;
    return end == x->n || last == at ? end : last; /* one is left for the word behind it */
}

size_t scanner_next(const struct scanner *r, const char *s, size_t len, size_t at)
{
    struct text x = { s, len };
    size_t behind = at, end;
    if (!r->cased && len - at > 1 && s[at] == ' ' && (ascii_class[(uint8_t)s[at + 1]] & LETTERS))
        return run_end(&x, at + 2, r->word); /* the commonest case of all */
    unsigned first = class_next(&x, &behind);
    if ((first & LETTERS) && !r->cased) return run_end(&x, behind, r->word);
    if (r->contract == CONTRACT_EXACT || r->contract == CONTRACT_ANY_CASE) {
        end = contraction_end(&x, at, r->contract == CONTRACT_ANY_CASE);
        if (end > at) return end;
    }
    if ((end = word_end(r, &x, at, first, behind)) > at) return end;
    if ((end = number_end(r, &x, at, first, behind)) > at) return end;
    if ((end = other_end(r, &x, at, first, behind)) > at) return end;
    end = space_end(r, &x, at);
    return end > at ? end : behind;
}
