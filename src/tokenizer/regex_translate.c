/* regex_translate.c: patterns of tokenizer.json, which are written for Oniguruma (Ruby syntax), said for PCRE2.
 *
 * Everything is parsed and written anew, so that nothing passes by accident: the shorthands \s \w \d \h \b and POSIX
 * brackets mean what Oniguruma means by them (White_Space; Alphabetic, marks, digits, connectors; Nd; hex), scripts
 * are Script and not Script_Extensions, (?m) is "dot matches newline", {,n} and {n,m}+ are Ruby's, (?i) in the middle
 * spans the following alternatives. Inside brackets, what PCRE2 cannot say in one class becomes an alternative beside
 * it. Class operators (&&, --), subexpression calls, absent groups, \G and (?x) are refused by name: PCRE2 would
 * miscompile the first in silence.
 */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define MAX_NEST 64
#define NO_ATOM SIZE_MAX
#define SPACE_SET "\\t-\\r\\x{85}\\p{Z}"
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN1_NUMBERS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}" /* of \w too, but only outside brackets */
#define BARE_WORD "[" WORD_SET LATIN1_NUMBERS "]"
#define HEX_SET "0-9A-Fa-f"

struct translator {
    const char *p;
    size_t n, i;
    struct buf *out;
    size_t atom; /* offset in out where the last atom begins; NO_ATOM: nothing to repeat */
    struct { size_t first; bool implicit; } groups[MAX_NEST];
    size_t n_groups;
    mb_error *err;
};

static mb_status refuse(const struct translator *t, const char *what)
{
    return mb_fail(t->err, MB_UNSUPPORTED, "regular expression: %s (byte %zu) is not supported", what, t->i);
}

static mb_status malformed(const struct translator *t, const char *what)
{
    return mb_fail(t->err, MB_BAD_FORMAT, "regular expression: %s (byte %zu)", what, t->i);
}

static bool peek(const struct translator *t, const char *s)
{
    size_t n = strlen(s);
    return t->n - t->i >= n && memcmp(t->p + t->i, s, n) == 0;
}

static bool accept(struct translator *t, const char *s)
{
    if (!peek(t, s)) return false;
    t->i += strlen(s);
    return true;
}

static void put_cp(struct buf *b, uint32_t cp)
{
    if ((cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z' && cp < 0x80)) buf_append_char(b, (char)cp);
    else buf_printf(b, "\\x{%X}", (unsigned)cp);
}

/* --- properties --- */

/* Long names of general categories, loosely spelled, and what PCRE2 calls them; then Oniguruma's own sets. */
static const struct { const char *name, *set; } properties[] = {
    { "letter", "\\p{L}" }, { "mark", "\\p{M}" }, { "number", "\\p{N}" }, { "punctuation", "\\p{P}" },
    { "symbol", "\\p{S}" }, { "separator", "\\p{Z}" }, { "other", "\\p{C}" }, { "casedletter", "\\p{L&}" },
    { "lc", "\\p{L&}" }, { "uppercaseletter", "\\p{Lu}" }, { "lowercaseletter", "\\p{Ll}" },
    { "titlecaseletter", "\\p{Lt}" }, { "modifierletter", "\\p{Lm}" }, { "otherletter", "\\p{Lo}" },
    { "nonspacingmark", "\\p{Mn}" }, { "spacingmark", "\\p{Mc}" }, { "enclosingmark", "\\p{Me}" },
    { "decimalnumber", "\\p{Nd}" }, { "letternumber", "\\p{Nl}" }, { "othernumber", "\\p{No}" },
    { "connectorpunctuation", "\\p{Pc}" }, { "dashpunctuation", "\\p{Pd}" }, { "openpunctuation", "\\p{Ps}" },
    { "closepunctuation", "\\p{Pe}" }, { "initialpunctuation", "\\p{Pi}" }, { "finalpunctuation", "\\p{Pf}" },
    { "otherpunctuation", "\\p{Po}" }, { "mathsymbol", "\\p{Sm}" }, { "currencysymbol", "\\p{Sc}" },
    { "modifiersymbol", "\\p{Sk}" }, { "othersymbol", "\\p{So}" }, { "spaceseparator", "\\p{Zs}" },
    { "lineseparator", "\\p{Zl}" }, { "paragraphseparator", "\\p{Zp}" }, { "control", "\\p{Cc}" },
    { "format", "\\p{Cf}" }, { "surrogate", "\\p{Cs}" }, { "privateuse", "\\p{Co}" }, { "unassigned", "\\p{Cn}" },
    { "alpha", "\\p{Alphabetic}" }, { "alphabetic", "\\p{Alphabetic}" }, { "alnum", "\\p{Alphabetic}\\p{Nd}" },
    { "upper", "\\p{Uppercase}" }, { "uppercase", "\\p{Uppercase}" }, { "lower", "\\p{Lowercase}" },
    { "lowercase", "\\p{Lowercase}" }, { "space", SPACE_SET }, { "whitespace", SPACE_SET }, { "digit", "\\p{Nd}" },
    { "word", WORD_SET }, { "xdigit", HEX_SET }, { "asciihexdigit", HEX_SET }, { "cntrl", "\\p{Cc}" },
    { "blank", "\\t\\p{Zs}" }, { "ascii", "\\x{0}-\\x{7F}" }, { "any", "\\x{0}-\\x{10FFFF}" },
    { "punct", "\\p{P}" },
};

/* Does PCRE2 know \p{prefix name}? */
static bool pcre_knows(const char *prefix, const char *name)
{
    char pattern[96];
    int code;
    PCRE2_SIZE at;
    int n = snprintf(pattern, sizeof pattern, "\\p{%s%s}", prefix, name);
    if (n < 0 || (size_t)n >= sizeof pattern) return false;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, (size_t)n, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    pcre2_code_free(c);
    return c != NULL;
}

static bool property_set(struct buf *set, const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof properties / sizeof properties[0]; i++)
        if (strcmp(name, properties[i].name) == 0) {
            buf_append_str(set, properties[i].set);
            return true;
        }
    if (n <= 2) { /* a general category: one capital, one small letter */
        char gc[3] = { (char)(name[0] - 32), n > 1 ? name[1] : '\0', '\0' };
        if (!n || name[0] < 'a' || name[0] > 'z' || !pcre_knows("", gc)) return false;
        buf_printf(set, "\\p{%s}", gc);
        return true;
    }
    const char *prefix = pcre_knows("sc:", name) ? "sc:" : pcre_knows("", name) ? "" : NULL;
    if (prefix) buf_printf(set, "\\p{%s%s}", prefix, name);
    return prefix != NULL;
}

/* Behind "\p" or "\P": appends the set; *negated says whether its complement is meant. */
static mb_status read_property(struct translator *t, struct buf *set, bool *negated)
{
    char name[64];
    size_t n = 0;
    if (!accept(t, "{")) return refuse(t, "\\p without braces");
    if (accept(t, "^")) *negated = !*negated;
    for (; t->i < t->n && t->p[t->i] != '}'; t->i++) {
        char c = t->p[t->i];
        if (c == ' ' || c == '_' || c == '-') continue;
        if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) || n + 1 >= sizeof name)
            return malformed(t, "a bad property name");
        name[n++] = c;
    }
    name[n] = '\0';
    if (!accept(t, "}")) return malformed(t, "a property name without its closing brace");
    if (!property_set(set, name))
        return mb_fail(t->err, MB_UNSUPPORTED, "regular expression: the property %s is not supported", name);
    return MB_OK;
}

/* --- escapes --- */

static bool read_hex(struct translator *t, size_t max, uint32_t *out)
{
    uint32_t v = 0;
    size_t n = 0;
    for (; n < max && t->i < t->n; n++, t->i++) {
        char c = t->p[t->i];
        if (c >= '0' && c <= '9') v = v * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f') v = v * 16 + (uint32_t)((c | 32) - 'a' + 10);
        else break;
    }
    *out = v;
    return n > 0;
}

static mb_status check_cp(const struct translator *t, uint32_t cp)
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) return malformed(t, "a bad code point");
    return MB_OK;
}

static mb_status read_hex_escape(struct translator *t, uint32_t *cp)
{
    if (accept(t, "{")) {
        if (!read_hex(t, 8, cp) || !accept(t, "}")) return malformed(t, "a bad \\x{...}");
        return check_cp(t, *cp);
    }
    if (!read_hex(t, 2, cp)) return malformed(t, "a bad \\x");
    return *cp < 0x80 ? MB_OK : refuse(t, "\\xHH for a byte above 7F");
}

enum escape { ESC_CHAR, ESC_SET, ESC_OTHER };

/* At the character behind a backslash. ESC_CHAR: *cp. ESC_SET: set holds the inside of a class, *negated its sense.
 * ESC_OTHER: nothing was read, the caller knows what it means or refuses. */
static mb_status read_escape(struct translator *t, enum escape *kind, uint32_t *cp, struct buf *set, bool *negated)
{
    if (t->i >= t->n) return malformed(t, "a backslash at the end");
    static const char from[] = "nrtfvae", to[] = "\n\r\t\f\v\a\x1B";
    static const struct { char small; const char *set; } sets[] = {
        { 's', SPACE_SET }, { 'w', WORD_SET }, { 'd', "\\p{Nd}" }, { 'h', HEX_SET },
    };
    char c = t->p[t->i];
    *negated = c >= 'A' && c <= 'Z';
    for (size_t k = 0; k < sizeof sets / sizeof sets[0]; k++)
        if ((c | 32) == sets[k].small && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
            t->i++;
            *kind = ESC_SET;
            buf_append_str(set, sets[k].set);
            return MB_OK;
        }
    if (c == 'p' || c == 'P') {
        t->i++;
        *kind = ESC_SET;
        return read_property(t, set, negated);
    }
    *kind = ESC_CHAR;
    const char *f = c ? strchr(from, c) : NULL;
    if (f) {
        t->i++;
        *cp = (uint8_t)to[f - from];
        return MB_OK;
    }
    if (c == 'x') {
        t->i++;
        return read_hex_escape(t, cp);
    }
    if (c == 'u') {
        size_t first = ++t->i;
        if (!read_hex(t, 4, cp) || t->i - first != 4) return malformed(t, "a bad \\uHHHH");
        return check_cp(t, *cp);
    }
    if (c == '0') {
        *cp = 0;
        for (int k = 0; k < 3 && t->i < t->n && t->p[t->i] >= '0' && t->p[t->i] <= '7'; k++)
            *cp = *cp * 8 + (uint32_t)(t->p[t->i++] - '0');
        return *cp < 0x80 ? MB_OK : refuse(t, "an octal escape above 177");
    }
    if ((c >= '1' && c <= '9') || (c && strchr("AbBCcGgKkMNOQERXyYZz", c))) {
        *kind = ESC_OTHER;
        return MB_OK;
    }
    *cp = utf8_next(t->p, t->n, &t->i); /* any other character stands for itself */
    return MB_OK;
}

/* --- bracketed classes --- */

struct cclass {
    struct buf items;        /* inside of one positive class */
    struct buf alternatives; /* whole classes, each with '|' before it */
};

static mb_status class_body(struct translator *t, struct cclass *c, int depth);

static mb_status class_posix(struct translator *t, struct cclass *c)
{
    bool negated = accept(t, "^");
    char name[16];
    size_t n = 0;
    while (t->i < t->n && t->p[t->i] != ':' && n + 1 < sizeof name) name[n++] = t->p[t->i++];
    name[n] = '\0';
    if (!accept(t, ":]")) return malformed(t, "a bad POSIX bracket");
    static const char known[] = " alpha digit space alnum upper lower word xdigit cntrl blank ascii punct ";
    char padded[20];
    snprintf(padded, sizeof padded, " %s ", name);
    if (!strstr(known, padded)) return refuse(t, "this POSIX bracket");
    if (negated) buf_append_str(&c->alternatives, "|[^");
    property_set(negated ? &c->alternatives : &c->items, name);
    if (strcmp(name, "punct") == 0) buf_append_str(negated ? &c->alternatives : &c->items, "\\p{S}");
    if (negated) buf_append_char(&c->alternatives, ']');
    return MB_OK;
}

/* Writes a finished class to out. */
static void class_write(struct buf *out, const struct cclass *c, bool negated)
{
    const char *items = c->items.len ? c->items.data : "";
    const char *others = c->alternatives.len ? c->alternatives.data : "";
    if (!c->alternatives.len) buf_printf(out, "[%s%s]", negated ? "^" : "", items);
    else if (negated) buf_printf(out, "(?:(?!%s%s%s%s)[\\x{0}-\\x{10FFFF}])", c->items.len ? "[" : "", items,
                                 c->items.len ? "]" : "", others + (c->items.len ? 0 : 1));
    else buf_printf(out, "(?:%s%s%s%s)", c->items.len ? "[" : "", items, c->items.len ? "]" : "",
                    others + (c->items.len ? 0 : 1));
}

/* At the character behind '[': the whole class, written to out. */
static mb_status class_whole(struct translator *t, struct buf *out, int depth)
{
    struct cclass c;
    if (depth > 16) return refuse(t, "a class nested this deep");
    buf_init(&c.items, 1 << 20);
    buf_init(&c.alternatives, 1 << 20);
    bool negated = accept(t, "^");
    mb_status st = class_body(t, &c, depth);
    if (st == MB_OK) st = buf_status(&c.items, "regular expression", t->err);
    if (st == MB_OK) st = buf_status(&c.alternatives, "regular expression", t->err);
    if (st == MB_OK) class_write(out, &c, negated);
    buf_free(&c.items);
    buf_free(&c.alternatives);
    return st;
}

/* One member that may begin a range: *is_char with *cp, else it is already written. */
static mb_status class_member(struct translator *t, struct cclass *c, bool *is_char, uint32_t *cp)
{
    *is_char = true;
    if (!accept(t, "\\")) {
        *cp = utf8_next(t->p, t->n, &t->i);
        return MB_OK;
    }
    enum escape kind;
    bool negated;
    struct buf set;
    buf_init(&set, 4096);
    mb_status st = read_escape(t, &kind, cp, &set, &negated);
    if (st == MB_OK && kind == ESC_OTHER) {
        if (accept(t, "b")) *cp = 8;
        else st = refuse(t, "this escape inside a class");
    } else if (st == MB_OK && kind == ESC_SET) {
        *is_char = false;
        if (!set.data) st = mb_fail(t->err, MB_NO_MEMORY, "regular expression: no memory");
        else if (negated) buf_printf(&c->alternatives, "|[^%s]", set.data);
        else buf_append(&c->items, set.data, set.len);
    }
    buf_free(&set);
    return st;
}

static mb_status class_range(struct translator *t, struct cclass *c, uint32_t low)
{
    /* '-' before the closing bracket stands for itself */
    if (!peek(t, "-") || t->i + 1 >= t->n || t->p[t->i + 1] == ']') {
        put_cp(&c->items, low);
        return MB_OK;
    }
    t->i++;
    bool is_char;
    uint32_t high = 0;
    if (peek(t, "-")) return refuse(t, "the class operator --");
    if (peek(t, "[")) return refuse(t, "a nested class at the end of a range");
    put_cp(&c->items, low);
    MB_TRY(class_member(t, c, &is_char, &high));
    if (!is_char) {
        buf_append_str(&c->items, "\\-");
        return MB_OK;
    }
    if (high < low) return malformed(t, "a range with its ends the wrong way round");
    buf_append_char(&c->items, '-');
    put_cp(&c->items, high);
    return MB_OK;
}

static mb_status class_body(struct translator *t, struct cclass *c, int depth)
{
    bool first = true;
    for (;; first = false) {
        if (t->i >= t->n) return malformed(t, "a class without its closing bracket");
        if (t->p[t->i] == ']' && !first) {
            t->i++;
            return MB_OK;
        }
        if (peek(t, "&&")) return refuse(t, "the class operator &&");
        if (peek(t, "--")) return refuse(t, "the class operator --");
        if (accept(t, "[:")) {
            MB_TRY(class_posix(t, c));
            continue;
        }
        if (accept(t, "[")) {
            buf_append_char(&c->alternatives, '|');
            MB_TRY(class_whole(t, &c->alternatives, depth + 1));
            continue;
        }
        bool is_char;
        uint32_t cp = 0;
        MB_TRY(class_member(t, c, &is_char, &cp));
        if (is_char) MB_TRY(class_range(t, c, cp));
    }
}

/* --- groups --- */

static mb_status group_push(struct translator *t, bool implicit)
{
    if (t->n_groups == MAX_NEST) return refuse(t, "groups nested this deep");
    t->groups[t->n_groups].first = t->out->len;
    t->groups[t->n_groups++].implicit = implicit;
    t->atom = NO_ATOM;
    return MB_OK;
}

/* Behind "(?": letters up to ':' or ')'. m becomes s. */
static mb_status group_flags(struct translator *t)
{
    char flags[16];
    size_t n = 0;
    for (; t->i < t->n && t->p[t->i] != ':' && t->p[t->i] != ')'; t->i++) {
        char c = t->p[t->i];
        if (c == 'x') return refuse(t, "the option x");
        if ((c != 'i' && c != 'm' && c != '-') || n + 1 >= sizeof flags) return refuse(t, "this kind of group");
        flags[n++] = c == 'm' ? 's' : c;
    }
    flags[n] = '\0';
    if (t->i >= t->n) return malformed(t, "a group without its end");
    bool implicit = t->p[t->i++] == ')';
    MB_TRY(group_push(t, implicit));
    buf_printf(t->out, "(?%s:", flags);
    return MB_OK;
}

static mb_status group_open(struct translator *t)
{
    static const char *const plain[] = { "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!" };
    if (accept(t, "(?#")) {
        while (t->i < t->n && t->p[t->i] != ')') t->i += t->p[t->i] == '\\' ? 2 : 1;
        return accept(t, ")") ? MB_OK : malformed(t, "a comment without its end");
    }
    if (peek(t, "(?~")) return refuse(t, "the absent group (?~");
    for (size_t k = 0; k < sizeof plain / sizeof plain[0]; k++)
        if (accept(t, plain[k])) {
            MB_TRY(group_push(t, false));
            buf_append_str(t->out, plain[k]);
            return MB_OK;
        }
    if (accept(t, "(?<")) {
        MB_TRY(group_push(t, false));
        buf_append_str(t->out, "(?<");
        while (t->i < t->n && t->p[t->i] != '>') {
            char c = t->p[t->i++];
            if (!(c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')))
                return refuse(t, "this group name");
            buf_append_char(t->out, c);
        }
        if (!accept(t, ">")) return malformed(t, "a group name without its end");
        buf_append_char(t->out, '>');
        return MB_OK;
    }
    if (accept(t, "(?")) return group_flags(t);
    if (peek(t, "(*")) return refuse(t, "(*");
    t->i++;
    MB_TRY(group_push(t, false));
    buf_append_char(t->out, '(');
    return MB_OK;
}

static mb_status group_close(struct translator *t, bool at_end)
{
    while (t->n_groups && t->groups[t->n_groups - 1].implicit) {
        t->n_groups--;
        buf_append_char(t->out, ')');
    }
    if (at_end) return t->n_groups ? malformed(t, "a group without its end") : MB_OK;
    if (!t->n_groups) return malformed(t, "an unmatched )");
    t->i++;
    t->atom = t->groups[--t->n_groups].first;
    buf_append_char(t->out, ')');
    return MB_OK;
}

/* --- repeats --- */

/* Put "(?:" before the last atom and ")" behind what stands now. */
static void wrap_atom(struct translator *t)
{
    if (!buf_reserve(t->out, 4)) return;
    size_t n = t->out->len - t->atom;
    buf_append_str(t->out, "(?:");
    if (t->out->failed != MB_OK) return;
    memmove(t->out->data + t->atom + 3, t->out->data + t->atom, n);
    memcpy(t->out->data + t->atom, "(?:", 3);
    buf_append_char(t->out, ')');
}

static bool read_number(struct translator *t, unsigned *out)
{
    size_t first = t->i;
    unsigned v = 0;
    while (t->i < t->n && t->p[t->i] >= '0' && t->p[t->i] <= '9' && v < 100000) v = v * 10 + (unsigned)(t->p[t->i++] - '0');
    *out = v;
    return t->i > first;
}

/* At '{': an interval, or the plain character. */
static mb_status interval(struct translator *t)
{
    size_t first = t->i++;
    unsigned low = 0, high = 0;
    bool has_low = read_number(t, &low), comma = accept(t, ","), has_high = comma && read_number(t, &high);
    if ((!has_low && !has_high) || !accept(t, "}")) {
        t->i = first + 1;
        t->atom = t->out->len;
        put_cp(t->out, '{');
        return MB_OK;
    }
    if (t->atom == NO_ATOM) return malformed(t, "an interval with nothing to repeat");
    if (low > 65535 || high > 65535 || (has_high && high < low)) return malformed(t, "a bad interval");
    if (!comma) buf_printf(t->out, "{%u}", low);
    else if (has_high) buf_printf(t->out, "{%u,%u}", low, high);
    else buf_printf(t->out, "{%u,}", low);
    if (peek(t, "+") || (!comma && peek(t, "?"))) { /* Ruby: a second repeat, not possessive and not lazy */
        wrap_atom(t);
        buf_append_char(t->out, t->p[t->i++]);
    } else if (accept(t, "?")) {
        buf_append_char(t->out, '?');
    }
    return MB_OK;
}

static mb_status repeat(struct translator *t)
{
    if (t->atom == NO_ATOM) return malformed(t, "a repeat with nothing to repeat");
    buf_append_char(t->out, t->p[t->i++]);
    if (peek(t, "?") || peek(t, "+")) buf_append_char(t->out, t->p[t->i++]);
    return MB_OK;
}

/* --- everything else --- */

static mb_status other_escape(struct translator *t)
{
    char c = t->p[t->i++];
    if (c >= '1' && c <= '9') {
        unsigned n;
        t->i--;
        read_number(t, &n);
        buf_printf(t->out, "\\g{%u}", n);
        return MB_OK;
    }
    switch (c) {
    case 'b': buf_append_str(t->out, "(?:(?<=" BARE_WORD ")(?!" BARE_WORD ")|(?<!" BARE_WORD ")(?=" BARE_WORD "))");
        return MB_OK;
    case 'B': buf_append_str(t->out, "(?:(?<=" BARE_WORD ")(?=" BARE_WORD ")|(?<!" BARE_WORD ")(?!" BARE_WORD "))");
        return MB_OK;
    case 'R': buf_append_str(t->out, "(?>\\x{D}\\x{A}|[\\x{A}-\\x{D}\\x{85}\\x{2028}\\x{2029}])");
        return MB_OK;
    case 'N': buf_append_str(t->out, "[^\\x{A}]");
        return MB_OK;
    case 'O': buf_append_str(t->out, "[\\x{0}-\\x{10FFFF}]");
        return MB_OK;
    case 'A': case 'z': case 'Z': case 'X': case 'K':
        buf_printf(t->out, "\\%c", c);
        return MB_OK;
    default:
        t->i--;
        return refuse(t, "this escape");
    }
}

static mb_status escape(struct translator *t)
{
    enum escape kind;
    uint32_t cp = 0;
    bool negated;
    struct buf set;
    t->i++;
    t->atom = t->out->len;
    buf_init(&set, 4096);
    mb_status st = read_escape(t, &kind, &cp, &set, &negated);
    if (st == MB_OK && kind == ESC_SET) {
        if (!set.data) st = mb_fail(t->err, MB_NO_MEMORY, "regular expression: no memory");
        else buf_printf(t->out, "[%s%s%s]", negated ? "^" : "", set.data,
                        strcmp(set.data, WORD_SET) == 0 ? LATIN1_NUMBERS : "");
    }
    buf_free(&set);
    if (st != MB_OK || kind == ESC_SET) return st;
    if (kind == ESC_OTHER) return other_escape(t);
    put_cp(t->out, cp);
    return MB_OK;
}

static mb_status one(struct translator *t)
{
    char c = t->p[t->i];
    switch (c) {
    case '\\': return escape(t);
    case '(': return group_open(t);
    case ')': return group_close(t, false);
    case '{': return interval(t);
    case '*': case '+': case '?': return repeat(t);
    case '[':
        t->i++;
        t->atom = t->out->len;
        return class_whole(t, t->out, 0);
    case '|': case '^': case '$': case '.':
        t->i++;
        t->atom = c == '|' ? NO_ATOM : t->out->len;
        buf_append_char(t->out, c);
        return MB_OK;
    default:
        t->atom = t->out->len;
        put_cp(t->out, utf8_next(t->p, t->n, &t->i));
        return MB_OK;
    }
}

mb_status regex_translate(struct buf *out, const char *pattern, size_t len, mb_error *err)
{
    struct translator t = { .p = pattern, .n = len, .out = out, .atom = NO_ATOM, .err = err };
    while (t.i < t.n) MB_TRY(one(&t));
    MB_TRY(group_close(&t, true));
    return buf_status(out, "regular expression", err);
}
