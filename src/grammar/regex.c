/* regex.c: regular expressions as JSON Schema and clients write them (ECMA-262, and what Python's re adds harmlessly).
 *
 * Only what a finite automaton can do: look-around, back-references, word boundaries and possessive parts are refused
 * by name (MB_UNSUPPORTED); what is no expression at all is MB_INVALID with its byte. Greedy or lazy makes no difference
 * to the set of texts. `(?i)` at the beginning folds case. `.` excludes line ends.
 */
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_int.h"

struct regex {
    struct build *b;
    const char *what;
    const char *s;
    size_t len, at;
    int depth;
    bool counted;    /* one large repetition of a class may be counted at run time: not yet used */
    bool variable;   /* what came before may take more than one length */
    bool fold;
    enum text_form form;
};

static struct expr *bad(struct regex *r, const char *text)
{
    build_fail(r->b, MB_INVALID, "%s: %s at byte %zu of the expression", r->what, text, r->at);
    return NULL;
}

static struct expr *refuse(struct regex *r, const char *name)
{
    build_fail(r->b, MB_UNSUPPORTED, "%s: %s at byte %zu of the expression cannot be enforced while generating", r->what,
               name, r->at);
    return NULL;
}

static bool looking_at(const struct regex *r, const char *text)
{
    size_t n = strlen(text);
    return r->len - r->at >= n && !memcmp(r->s + r->at, text, n);
}

static bool skip(struct regex *r, const char *text)
{
    if (!looking_at(r, text)) return false;
    r->at += strlen(text);
    return true;
}

static int peek(const struct regex *r)
{
    return r->at < r->len ? (unsigned char)r->s[r->at] : -1;
}

static struct expr *class_expr(struct regex *r, struct cset *set)
{
    cset_normalize(set);
    if (r->fold) cset_fold_case(r->b, set);
    if (r->b->status != MB_OK) return NULL;
    return expr_class(r->b, set, r->form);
}

static struct expr *char_expr(struct regex *r, uint32_t cp)
{
    struct cset set = { 0 };
    cset_add(r->b, &set, cp, cp);
    return class_expr(r, &set);
}

/* --- escapes --- */

static bool read_hex(struct regex *r, size_t n_digits, uint32_t *out)
{
    uint32_t v = 0;
    if (r->len - r->at < n_digits) return false;
    for (size_t i = 0; i < n_digits; i++) {
        const char *hex = "0123456789abcdef", *p = strchr(hex, r->s[r->at + i] | 0x20);
        if (!p || !r->s[r->at + i]) return false;
        v = v << 4 | (uint32_t)(p - hex);
    }
    r->at += n_digits;
    *out = v;
    return true;
}

/* Behind "\u": four digits (a surrogate pair makes one character) or {digits}. */
static bool read_unicode(struct regex *r, uint32_t *cp)
{
    if (skip(r, "{")) {
        size_t n = 0;
        while (r->at + n < r->len && n < 7 && r->s[r->at + n] != '}') n++;
        return n > 0 && n < 7 && read_hex(r, n, cp) && skip(r, "}") && *cp <= 0x10FFFF;
    }
    if (!read_hex(r, 4, cp)) return false;
    uint32_t low;
    size_t at = r->at;
    if (*cp >= 0xD800 && *cp < 0xDC00 && skip(r, "\\u") && read_hex(r, 4, &low) && low >= 0xDC00 && low < 0xE000)
        *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    else r->at = at;
    return true;
}

/* One escaped character, behind the backslash, that stands for a single code point. */
static bool read_escaped_char(struct regex *r, uint32_t *cp)
{
    static const char letters[] = "tnrfv0", values[] = "\t\n\r\f\v";
    int c = peek(r);
    const char *p = c > 0 ? strchr(letters, c) : NULL;
    if (p) {
        r->at++;
        *cp = (uint32_t)(unsigned char)values[p - letters];
        return true;
    }
    if (skip(r, "x")) return read_hex(r, 2, cp);
    if (skip(r, "u")) return read_unicode(r, cp);
    if (skip(r, "c")) {
        int l = peek(r);
        if (!((l >= 'a' && l <= 'z') || (l >= 'A' && l <= 'Z'))) return false;
        r->at++;
        *cp = (uint32_t)l & 31;
        return true;
    }
    if (c < 0 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return false;
    int n = utf8_decode(r->s + r->at, r->len - r->at, cp);
    if (n <= 0) return false;
    r->at += (size_t)n;
    return true;
}

/* \d \w \s \p{..} and their opposites, behind the backslash: added to set; false: something else. */
static bool read_escaped_class(struct regex *r, struct cset *set)
{
    int c = peek(r);
    if (c > 0 && strchr("dDwWsS", c)) {
        r->at++;
        return cset_add_escape(r->b, set, (char)c);
    }
    if (!looking_at(r, "p{") && !looking_at(r, "P{")) return false;
    size_t first = r->at + 2, end = first;
    while (end < r->len && r->s[end] != '}') end++;
    const char *name = r->s + first;
    size_t len = end - first;
    static const char prefix[] = "General_Category=";
    if (len > sizeof prefix - 1 && !memcmp(name, prefix, sizeof prefix - 1)) name += sizeof prefix - 1, len -= sizeof prefix - 1;
    struct cset t = { 0 };
    if (!cset_add_category(r->b, &t, name, len)) {
        refuse(r, "a Unicode property other than a general category");
        return true;
    }
    cset_normalize(&t);
    if (c == 'P') cset_negate(r->b, &t);
    cset_add_set(r->b, set, &t);
    r->at = end < r->len ? end + 1 : end;
    return true;
}

static struct expr *parse_escape(struct regex *r)
{
    struct cset set = { 0 };
    uint32_t cp;
    int c = peek(r);
    if (c >= '1' && c <= '9') return refuse(r, "a back-reference");
    if (c == 'k') return refuse(r, "a back-reference");
    if (c == 'b' || c == 'B') return refuse(r, "a word boundary (\\b, \\B)");
    if (skip(r, "A")) return expr_mark(r->b, EX_BOL);
    if (skip(r, "Z") || skip(r, "z")) return expr_mark(r->b, EX_EOL);
    if (read_escaped_class(r, &set)) return class_expr(r, &set);
    if (!read_escaped_char(r, &cp)) return bad(r, "an unknown escape");
    return char_expr(r, cp);
}

/* --- classes --- */

/* One member: a single character (true, *cp) or a class added to set (false). */
static bool class_member(struct regex *r, struct cset *set, uint32_t *cp)
{
    if (skip(r, "\\")) {
        if (skip(r, "b")) {
            *cp = 8;
            return true;
        }
        if (read_escaped_class(r, set)) return false;
        if (read_escaped_char(r, cp)) return true;
        bad(r, "an unknown escape in a class");
        return false;
    }
    int n = utf8_decode(r->s + r->at, r->len - r->at, cp);
    if (n <= 0) {
        bad(r, "a class that is not closed");
        return false;
    }
    r->at += (size_t)n;
    return true;
}

static struct expr *parse_class(struct regex *r)
{
    struct cset set = { 0 };
    bool negate = skip(r, "^");
    while (r->b->status == MB_OK && !skip(r, "]")) {
        uint32_t lo, hi;
        if (r->at >= r->len) return bad(r, "a class that is not closed");
        if (!class_member(r, &set, &lo)) continue;
        hi = lo;
        if (looking_at(r, "-") && r->at + 1 < r->len && r->s[r->at + 1] != ']') {
            r->at++;
            struct cset other = { 0 };
            if (!class_member(r, &other, &hi)) { /* [a-\d]: the hyphen is itself */
                cset_add(r->b, &set, '-', '-');
                cset_add_set(r->b, &set, &other);
                hi = lo;
            }
            if (hi < lo) return bad(r, "a class range out of order");
        }
        cset_add(r->b, &set, lo, hi);
    }
    cset_normalize(&set);
    if (r->fold) cset_fold_case(r->b, &set);
    if (negate) cset_negate(r->b, &set);
    return r->b->status == MB_OK ? expr_class(r->b, &set, r->form) : NULL;
}

/* --- the rest --- */

static struct expr *parse_alt(struct regex *r);

static struct expr *parse_group(struct regex *r)
{
    if (looking_at(r, "?=") || looking_at(r, "?!")) return refuse(r, "a look-ahead");
    if (looking_at(r, "?<=") || looking_at(r, "?<!")) return refuse(r, "a look-behind");
    if (looking_at(r, "?>")) return refuse(r, "an atomic group");
    if (skip(r, "?<") || skip(r, "?P<")) {
        while (r->at < r->len && r->s[r->at] != '>') r->at++;
        if (!skip(r, ">")) return bad(r, "a group name that is not closed");
    } else if (looking_at(r, "?P=")) {
        return refuse(r, "a back-reference");
    } else if (looking_at(r, "?") && !skip(r, "?:")) {
        return refuse(r, "a group with flags");
    }
    struct expr *x = parse_alt(r);
    if (!skip(r, ")")) return bad(r, "a group that is not closed");
    return x;
}

static struct expr *parse_dot(struct regex *r)
{
    static const uint32_t line_ends[] = { '\n', '\r', 0x2028, 0x2029 };
    struct cset set = { 0 };
    for (int i = 0; i < 4; i++) cset_add(r->b, &set, line_ends[i], line_ends[i]);
    cset_normalize(&set);
    cset_negate(r->b, &set);
    return r->b->status == MB_OK ? expr_class(r->b, &set, r->form) : NULL;
}

static struct expr *parse_atom(struct regex *r)
{
    uint32_t cp;
    if (skip(r, "(")) {
        if (++r->depth > BUILD_MAX_DEPTH) return bad(r, "groups nested too deeply");
        r->variable = true;
        struct expr *x = parse_group(r);
        r->depth--;
        return x;
    }
    if (skip(r, "[")) return parse_class(r);
    if (skip(r, ".")) return parse_dot(r);
    if (skip(r, "\\")) return parse_escape(r);
    if (skip(r, "^")) return expr_mark(r->b, EX_BOL);
    if (skip(r, "$")) return expr_mark(r->b, EX_EOL);
    int c = peek(r);
    if (c == '*' || c == '+' || c == '?') return bad(r, "nothing to repeat");
    int n = utf8_decode(r->s + r->at, r->len - r->at, &cp);
    if (n <= 0) return bad(r, "invalid UTF-8");
    r->at += (size_t)n;
    return char_expr(r, cp);
}

static bool read_count(struct regex *r, uint32_t *out)
{
    size_t first = r->at;
    uint64_t v = 0;
    while (r->at < r->len && r->s[r->at] >= '0' && r->s[r->at] <= '9') {
        v = v * 10 + (uint64_t)(r->s[r->at++] - '0');
        if (v > REPEAT_MAX) v = REPEAT_MAX + 1;
    }
    *out = (uint32_t)v;
    return r->at > first;
}

/* {m}, {m,}, {m,n}; anything else is a literal brace and *found is false. */
static bool parse_braces(struct regex *r, uint32_t *lo, uint32_t *hi)
{
    size_t start = r->at;
    if (skip(r, "{") && read_count(r, lo)) {
        *hi = *lo;
        if (skip(r, ",") && !read_count(r, hi)) *hi = REPEAT_INF;
        if (skip(r, "}")) {
            if (*hi < *lo) bad(r, "a repetition whose end is below its beginning");
            if (*lo > REPEAT_MAX || (*hi > REPEAT_MAX && *hi != REPEAT_INF)) bad(r, "a repetition count above 1000000");
            return true;
        }
    }
    r->at = start;
    return false;
}

enum { COUNTED_FROM = 17, COUNTED_TO = 1000 };

/* Written out, or counted: outside of groups only (so no count begins anew inside another), at most one in an expression
 * and only so far that parses of different counts beside each other stay few. */
static struct expr *repeated(struct regex *r, struct expr *x, uint32_t lo, uint32_t hi)
{
    uint32_t most = r->variable ? COUNTED_TO : REPEAT_MAX; /* behind one length there is one count at a time */
    r->variable |= lo != hi;
    if (!r->counted || r->depth || x->kind != EX_CLASS || hi < COUNTED_FROM || hi > most) return expr_repeat(r->b, x, lo, hi);
    r->counted = false;
    return expr_counted(r->b, x, lo, hi);
}

static struct expr *parse_quantified(struct regex *r)
{
    struct expr *x = parse_atom(r);
    while (r->b->status == MB_OK && x) {
        uint32_t lo, hi;
        if (skip(r, "*")) lo = 0, hi = REPEAT_INF;
        else if (skip(r, "+")) lo = 1, hi = REPEAT_INF;
        else if (skip(r, "?")) lo = 0, hi = 1;
        else if (!parse_braces(r, &lo, &hi)) break;
        if (r->b->status != MB_OK) return NULL;
        if (looking_at(r, "+")) return refuse(r, "a possessive repetition");
        skip(r, "?");
        x = repeated(r, x, lo, hi);
        int c = peek(r);
        if (c == '*' || c == '+' || c == '?') return bad(r, "nothing to repeat");
    }
    return x;
}

static struct expr *parse_seq(struct regex *r)
{
    struct expr_list l = { 0 };
    while (r->b->status == MB_OK && r->at < r->len && !looking_at(r, "|") && !looking_at(r, ")"))
        expr_list_add(r->b, &l, parse_quantified(r));
    return r->b->status == MB_OK ? expr_seq_list(r->b, &l) : NULL;
}

static struct expr *parse_alt(struct regex *r)
{
    struct expr_list l = { 0 };
    do expr_list_add(r->b, &l, parse_seq(r));
    while (r->b->status == MB_OK && skip(r, "|"));
    return r->b->status == MB_OK ? expr_alt_list(r->b, &l) : NULL;
}

struct expr *regex_parse(struct build *b, const char *text, size_t len, enum text_form form, bool counted, const char *what)
{
    struct regex r = { .b = b, .what = what, .s = text, .len = len, .form = form, .counted = counted };
    if (b->status != MB_OK) return NULL;
    bool counters = b->counters;
    b->counters = false; /* anchors and products need one automaton */
    r.fold = skip(&r, "(?i)");
    struct expr *x = parse_alt(&r);
    b->counters = counters;
    if (b->status != MB_OK) return NULL;
    if (r.at < len) return bad(&r, "a closing parenthesis without its opening");
    return x;
}

struct dfa *regex_dfa(struct build *b, const char *text, size_t len, bool search, enum text_form form, const char *what)
{
    struct expr *x = regex_parse(b, text, len, form, false, what);
    return x ? dfa_of_expr(b, x, search, form, what) : NULL;
}

/* The marks ^ and $ mean the ends of a rule, so an expression that calls others has a rule of its own. */
struct expr *regex_rule(struct build *b, const char *text, size_t len, bool search, enum text_form form, const char *what)
{
    struct expr *x = regex_parse(b, text, len, form, !search || (len && text[0] == '^'), what);
    if (x && search) x = expr_searched(b, x, form);
    return x ? expr_rule(b, build_rule_of(b, "expression", x)) : NULL;
}
