/* ebnf.c: grammar texts. The dialect is described in grammar.h.
 *
 * Rules may be used before they are given; a rule whose alternatives begin with itself is rewritten
 * (a ::= a x | y  becomes  a ::= y x*). Errors name line and column.
 */
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_int.h"

struct ebnf {
    struct build *b;
    const char *s;
    size_t len, at;
    int depth;
    int32_t first_rule; /* rules below belong to others */
};

static void *bad(struct ebnf *e, const char *text)
{
    int line = 1, column = 1;
    for (size_t i = 0; i < e->at && i < e->len; i++) {
        column = e->s[i] == '\n' ? 1 : column + 1;
        line += e->s[i] == '\n';
    }
    build_fail(e->b, MB_INVALID, "grammar line %d, column %d: %s", line, column, text);
    return NULL;
}

static void skip_space(struct ebnf *e)
{
    while (e->at < e->len) {
        char c = e->s[e->at];
        if (c == '#') {
            while (e->at < e->len && e->s[e->at] != '\n') e->at++;
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            e->at++;
        } else {
            break;
        }
    }
}

static bool skip(struct ebnf *e, const char *text)
{
    size_t n = strlen(text);
    if (e->len - e->at < n || memcmp(e->s + e->at, text, n)) return false;
    e->at += n;
    return true;
}

static int peek(const struct ebnf *e)
{
    return e->at < e->len ? (unsigned char)e->s[e->at] : -1;
}

static bool is_name_char(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9') || c == '-';
}

/* A name at the place; its length. */
static size_t name_length(const struct ebnf *e)
{
    size_t n = 0;
    int c = peek(e);
    if (c == '-' || (c >= '0' && c <= '9')) return 0;
    while (e->at + n < e->len && is_name_char((unsigned char)e->s[e->at + n])) n++;
    return n;
}

/* Does a rule begin here: name ::= ? */
static bool at_rule(struct ebnf *e)
{
    size_t n = name_length(e), at = e->at;
    if (!n) return false;
    e->at += n;
    skip_space(e);
    bool yes = e->len - e->at >= 3 && !memcmp(e->s + e->at, "::=", 3);
    e->at = at;
    return yes;
}

static int32_t rule_named(struct ebnf *e, const char *name, size_t len)
{
    for (size_t i = (size_t)e->first_rule; i < e->b->n_rules; i++) {
        const char *have = e->b->rules[i].name;
        if (have && strlen(have) == len + 5 && !memcmp(have, "rule ", 5) && !memcmp(have + 5, name, len)) return (int32_t)i;
    }
    char *full = arena_printf(&e->b->a, "rule %.*s", (int)(len < 200 ? len : 200), name);
    if (!full || len > 200) return bad(e, "a rule name of more than 200 bytes") ? 0 : -1;
    return build_rule_new(e->b, full);
}

/* --- literals and classes --- */

static bool read_hex(struct ebnf *e, size_t n_digits, uint32_t *cp)
{
    uint32_t v = 0;
    if (e->len - e->at < n_digits) return false;
    for (size_t i = 0; i < n_digits; i++) {
        const char *hex = "0123456789abcdef", *p = strchr(hex, e->s[e->at + i] | 0x20);
        if (!p) return false;
        v = v << 4 | (uint32_t)(p - hex);
    }
    e->at += n_digits;
    *cp = v;
    return true;
}

static bool read_braced(struct ebnf *e, uint32_t *cp)
{
    size_t n = 0;
    while (e->at + n < e->len && n < 7 && e->s[e->at + n] != '}') n++;
    return n && n < 7 && read_hex(e, n, cp) && skip(e, "}");
}

/* One character of a literal or class, escapes resolved. */
static bool read_char(struct ebnf *e, uint32_t *cp)
{
    static const char names[] = "nrt\\\"'/[]-^", values[] = "\n\r\t\\\"'/[]-^";
    if (!skip(e, "\\")) {
        int n = utf8_decode(e->s + e->at, e->len - e->at, cp);
        if (n <= 0) return bad(e, "the text ends inside a literal") != NULL;
        e->at += (size_t)n;
        return true;
    }
    int c = peek(e);
    const char *p = c > 0 ? strchr(names, c) : NULL;
    bool ok = p != NULL;
    if (p) {
        e->at++;
        *cp = (uint32_t)(unsigned char)values[p - names];
    } else if (skip(e, "x")) {
        ok = read_hex(e, 2, cp);
    } else if (skip(e, "u{")) {
        ok = read_braced(e, cp);
    } else if (skip(e, "u")) {
        ok = read_hex(e, 4, cp);
    } else if (skip(e, "U")) {
        ok = read_hex(e, 8, cp);
    }
    if (!ok || *cp > 0x10FFFF || (*cp >= 0xD800 && *cp < 0xE000)) return bad(e, "an unknown escape") != NULL;
    return true;
}

/* A quoted text, unescaped. */
static bool read_literal(struct ebnf *e, struct buf *out)
{
    char quote = e->s[e->at++];
    while (e->b->status == MB_OK) {
        uint32_t cp;
        char text[4];
        if (peek(e) == quote) {
            e->at++;
            if (out->failed != MB_OK) build_fail(e->b, out->failed, "no memory for a literal");
            return e->b->status == MB_OK;
        }
        if (peek(e) < 0 || peek(e) == '\n') return bad(e, "a literal that is not closed on its line") != NULL;
        if (!read_char(e, &cp)) return false;
        buf_append(out, text, (size_t)utf8_encode(cp, text));
    }
    return false;
}

static struct expr *parse_class(struct ebnf *e)
{
    struct cset set = { 0 };
    bool negate = skip(e, "^");
    while (e->b->status == MB_OK && !skip(e, "]")) {
        uint32_t lo, hi;
        int c = e->at + 1 < e->len && e->s[e->at] == '\\' ? e->s[e->at + 1] : 0;
        if (peek(e) < 0) return bad(e, "a class that is not closed");
        if (c && strchr("dDwWsS", c)) {
            e->at += 2;
            cset_add_escape(e->b, &set, (char)c);
            continue;
        }
        if (!read_char(e, &lo)) return NULL;
        hi = lo;
        if (peek(e) == '-' && e->at + 1 < e->len && e->s[e->at + 1] != ']') {
            e->at++;
            if (!read_char(e, &hi)) return NULL;
            if (hi < lo) return bad(e, "a class range out of order");
        }
        cset_add(e->b, &set, lo, hi);
    }
    cset_normalize(&set);
    if (negate) cset_negate(e->b, &set);
    return e->b->status == MB_OK ? expr_class(e->b, &set, FORM_RAW) : NULL;
}

/* --- items that begin with % --- */

static struct expr *token_item(struct ebnf *e, const struct buf *text)
{
    int32_t id = vocab_find_added(e->b->vocab, text->data, text->len);
    return id >= 0 ? expr_token(e->b, id) : expr_bytes(e->b, text->data, text->len);
}

static struct expr *quoted_item(struct ebnf *e, bool token)
{
    skip_space(e);
    if (peek(e) != '"' && peek(e) != '\'') return bad(e, "a quoted text must follow");
    struct buf text;
    struct expr *x = NULL;
    buf_init(&text, GRAMMAR_MAX_TEXT);
    if (read_literal(e, &text)) {
        if (!text.len) bad(e, "the text must not be empty");
        else x = token ? token_item(e, &text) : until_expr(e->b, text.data, text.len);
    }
    buf_free(&text);
    return x;
}

static struct expr *regex_item(struct ebnf *e)
{
    skip_space(e);
    if (!skip(e, "/")) return bad(e, "/.../ must follow %regex");
    size_t first = e->at;
    while (e->at < e->len && e->s[e->at] != '/') e->at += e->s[e->at] == '\\' ? 2 : 1;
    if (e->at >= e->len) return bad(e, "a regular expression that is not closed");
    struct expr *x = regex_rule(e->b, e->s + first, e->at - first, false, FORM_RAW, "%regex");
    e->at++;
    return x;
}

/* The end of the JSON value that begins at the place: brackets are counted outside of strings. */
static size_t json_extent(const struct ebnf *e)
{
    size_t i = e->at, depth = 0;
    bool in_string = false;
    for (; i < e->len; i++) {
        char c = e->s[i];
        if (in_string) {
            if (c == '\\') i++;
            else in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth <= 1) return i + 1;
            depth--;
        } else if (!depth && !(c >= 'a' && c <= 'z')) {
            return i;
        }
    }
    return i < e->len ? i : e->len;
}

static struct expr *json_item(struct ebnf *e)
{
    skip_space(e);
    size_t end = json_extent(e);
    json_t *schema;
    mb_error why;
    if (json_read(&schema, e->s + e->at, end - e->at, JSON_READ_ANY | JSON_READ_REJECT_DUPLICATES, &why) != MB_OK) {
        if (why.code == MB_NO_MEMORY) build_fail(e->b, MB_NO_MEMORY, "no memory for a schema");
        return bad(e, "%json must be followed by a JSON Schema");
    }
    e->at = end;
    int32_t rule = schema_compile(e->b, schema);
    json_decref(schema);
    return rule >= 0 ? expr_rule(e->b, rule) : NULL;
}

static struct expr *choice_item(struct ebnf *e)
{
    skip_space(e);
    size_t end = json_extent(e);
    int32_t rule = choice_compile(e->b, e->s + e->at, end - e->at, "%choice");
    e->at = end;
    return rule >= 0 ? expr_rule(e->b, rule) : NULL;
}

static struct expr *percent_item(struct ebnf *e)
{
    if (skip(e, "json")) return json_item(e);
    if (skip(e, "regex")) return regex_item(e);
    if (skip(e, "token")) return quoted_item(e, true);
    if (skip(e, "until")) return quoted_item(e, false);
    if (skip(e, "choice")) return choice_item(e);
    return bad(e, "% must be followed by json, regex, token, until or choice");
}

/* --- expressions --- */

static struct expr *parse_alt(struct ebnf *e);

static struct expr *any_char(struct ebnf *e)
{
    struct cset set = { 0 };
    cset_add(e->b, &set, 0, 0x10FFFF);
    cset_normalize(&set);
    return e->b->status == MB_OK ? expr_class(e->b, &set, FORM_RAW) : NULL;
}

static struct expr *parse_literal(struct ebnf *e)
{
    struct buf text;
    buf_init(&text, GRAMMAR_MAX_TEXT);
    struct expr *x = read_literal(e, &text) ? expr_bytes(e->b, text.data, text.len) : NULL;
    buf_free(&text);
    return x;
}

static struct expr *parse_atom(struct ebnf *e)
{
    int c = peek(e);
    if (c == '"' || c == '\'') return parse_literal(e);
    if (skip(e, "[")) return parse_class(e);
    if (skip(e, ".")) return any_char(e);
    if (skip(e, "%")) return percent_item(e);
    if (skip(e, "(")) {
        if (++e->depth > BUILD_MAX_DEPTH) return bad(e, "groups nested too deeply");
        struct expr *x = parse_alt(e);
        e->depth--;
        skip_space(e);
        return skip(e, ")") ? x : bad(e, "a group that is not closed");
    }
    size_t n = name_length(e);
    if (!n) return bad(e, "an unexpected character");
    int32_t rule = rule_named(e, e->s + e->at, n);
    e->at += n;
    return rule >= 0 ? expr_rule(e->b, rule) : NULL;
}

static bool read_count(struct ebnf *e, uint32_t *out)
{
    size_t first = e->at;
    uint64_t v = 0;
    while (peek(e) >= '0' && peek(e) <= '9') {
        v = v * 10 + (uint64_t)(e->s[e->at++] - '0');
        if (v > REPEAT_MAX) v = REPEAT_MAX + 1;
    }
    *out = (uint32_t)v;
    return e->at > first;
}

static bool read_braces(struct ebnf *e, uint32_t *lo, uint32_t *hi)
{
    *lo = 0;
    skip_space(e);
    bool has_lo = read_count(e, lo);
    skip_space(e);
    *hi = *lo;
    if (skip(e, ",")) {
        skip_space(e);
        if (!read_count(e, hi)) *hi = REPEAT_INF;
        skip_space(e);
    } else if (!has_lo) {
        return bad(e, "a repetition without a count") != NULL;
    }
    if (!skip(e, "}")) return bad(e, "a repetition that is not closed") != NULL;
    if (*lo > REPEAT_MAX || (*hi > REPEAT_MAX && *hi != REPEAT_INF)) return bad(e, "a repetition count above 1000000") != NULL;
    return *hi >= *lo || bad(e, "a repetition whose end is below its beginning") != NULL;
}

static struct expr *parse_repeated(struct ebnf *e)
{
    struct expr *x = parse_atom(e);
    while (x && e->b->status == MB_OK) {
        uint32_t lo, hi;
        if (skip(e, "?")) lo = 0, hi = 1;
        else if (skip(e, "*")) lo = 0, hi = REPEAT_INF;
        else if (skip(e, "+")) lo = 1, hi = REPEAT_INF;
        else if (!skip(e, "{")) return x;
        else if (!read_braces(e, &lo, &hi)) return NULL;
        x = expr_repeat(e->b, x, lo, hi);
    }
    return NULL;
}

static struct expr *parse_seq(struct ebnf *e)
{
    struct expr_list l = { 0 };
    while (e->b->status == MB_OK) {
        skip_space(e);
        int c = peek(e);
        if (c < 0 || c == '|' || c == ')' || at_rule(e)) break;
        expr_list_add(e->b, &l, parse_repeated(e));
    }
    return e->b->status == MB_OK ? expr_seq_list(e->b, &l) : NULL;
}

static struct expr *parse_alt(struct ebnf *e)
{
    struct expr_list l = { 0 };
    do {
        expr_list_add(e->b, &l, parse_seq(e));
        skip_space(e);
    } while (e->b->status == MB_OK && skip(e, "|"));
    return e->b->status == MB_OK ? expr_alt_list(e->b, &l) : NULL;
}

/* --- rules --- */

/* What stands behind the rule's own call at the beginning of x; NULL: x begins otherwise. */
static struct expr *behind_itself(struct ebnf *e, struct expr *x, int32_t rule)
{
    if (x->kind == EX_RULE && x->id == rule) return expr_empty(e->b);
    if (x->kind != EX_SEQ || x->items[0]->kind != EX_RULE || x->items[0]->id != rule) return NULL;
    struct expr_list rest = { x->items + 1, x->len - 1, 0 };
    return expr_seq_list(e->b, &rest);
}

static void parse_rule(struct ebnf *e)
{
    size_t n = name_length(e);
    int32_t rule = rule_named(e, e->s + e->at, n);
    if (rule < 0) return;
    if (e->b->rules[rule].body) {
        bad(e, "a rule that was already given");
        return;
    }
    e->at += n;
    skip_space(e);
    skip(e, "::=");
    struct expr_list heads = { 0 }, tails = { 0 };
    do {
        struct expr *x = parse_seq(e);
        if (e->b->status != MB_OK) return;
        struct expr *tail = behind_itself(e, x, rule);
        if (tail) expr_list_add(e->b, &tails, tail);
        else expr_list_add(e->b, &heads, x);
        skip_space(e);
    } while (skip(e, "|"));
    struct expr *body = expr_alt_list(e->b, &heads);
    if (tails.n) body = expr_seq2(e->b, body, expr_repeat(e->b, expr_alt_list(e->b, &tails), 0, REPEAT_INF));
    if (e->b->status == MB_OK) e->b->rules[rule].body = body;
}

int32_t ebnf_compile(struct build *b, const char *text, size_t len)
{
    struct ebnf e = { .b = b, .s = text, .len = len, .first_rule = (int32_t)b->n_rules };
    skip_space(&e);
    if (e.at >= e.len) bad(&e, "no rule: a grammar begins with root ::= ...");
    while (b->status == MB_OK && e.at < e.len) {
        if (!at_rule(&e)) bad(&e, "name ::= expression was expected");
        else parse_rule(&e);
        skip_space(&e);
    }
    if (b->status != MB_OK) return -1;
    int32_t root = rule_named(&e, "root", 4);
    for (size_t i = (size_t)e.first_rule; i < b->n_rules && b->status == MB_OK; i++) {
        const struct build_rule *r = &b->rules[i];
        if (!r->body && !r->is_repeat && r->name && !strncmp(r->name, "rule ", 5))
            build_fail(b, MB_INVALID, "the grammar has no %s", r->name);
    }
    return b->status == MB_OK ? root : -1;
}

/* Any text up to and with the first occurrence: the automaton of any* text, cut where it first accepts. */
struct expr *until_expr(struct build *b, const char *text, size_t len)
{
    struct cset all = { 0 };
    cset_add(b, &all, 0, 0x10FFFF);
    cset_normalize(&all);
    struct expr *any = expr_repeat(b, expr_class(b, &all, FORM_RAW), 0, REPEAT_INF);
    struct dfa *d = dfa_of_expr(b, expr_seq2(b, any, expr_bytes(b, text, len)), false, FORM_RAW, "%until");
    if (!d) return NULL;
    for (uint32_t i = 0; i < d->n_states; i++)
        if (d->states[i].accept) d->states[i].n_edges = 0;
    return expr_dfa(b, dfa_trim(b, d, NULL));
}
