/* schema_string.c: a string under patterns, formats and lengths.
 *
 * Lengths alone are counted at run time over free characters (every legal escape). As soon as a text is compared with
 * something, it has one spelling (FORM_JSON) and everything asked of it becomes one automaton, by products.
 * A length beside a pattern is part of the product, so it may be at most PRODUCT_MAX characters, unless the pattern's
 * own longest text is within it anyway.
 */
#include <string.h>

#include "grammar/schema_int.h"

enum { PRODUCT_MAX = 2500 };

struct lengths {
    uint32_t lo, hi; /* hi REPEAT_INF none */
};

static uint32_t limited(int64_t n)
{
    return n > REPEAT_MAX ? REPEAT_MAX : (uint32_t)n;
}

static struct lengths lengths_of(const struct conj *j)
{
    struct lengths r = { 0, REPEAT_INF };
    for (size_t i = 0; i < j->n; i++) {
        const json_t *lo = json_object_get(j->nodes[i].schema, "minLength"), *hi = json_object_get(j->nodes[i].schema, "maxLength");
        if (lo && limited(count_of(lo)) > r.lo) r.lo = limited(count_of(lo));
        if (hi && count_of(hi) <= REPEAT_MAX && limited(count_of(hi)) < r.hi) r.hi = limited(count_of(hi));
    }
    return r;
}

static struct dfa *with(struct build *b, struct dfa *have, struct dfa *more)
{
    if (!have || !more) return more ? more : have;
    return dfa_product(b, have, more, DFA_AND);
}

/* The format's texts as they stand in JSON: none needs an escape but by the characters of FORM_JSON itself. */
static struct dfa *format_dfa(struct sctx *c, const json_t *schema, const char *name)
{
    struct expr *x = format_expr(c->b, name);
    (void)schema;
    return x ? dfa_of_expr(c->b, x, false, FORM_JSON, "format") : NULL;
}

static struct dfa *excluded(struct sctx *c, const json_t *list, struct dfa *have)
{
    for (size_t i = 0; i < json_array_size(list) && c->b->status == MB_OK; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_text(v)) continue;
        if (!have) have = json_any_string_dfa(c->b);
        have = dfa_product(c->b, have, json_text_dfa(c->b, json_string_value(v), json_string_length(v)), DFA_MINUS);
    }
    return have;
}

static struct dfa *without_pattern(struct sctx *c, const json_t *schema, const json_t *pattern, struct dfa *have)
{
    struct dfa *d = schema_pattern(c, schema, json_string_value(pattern), json_string_length(pattern));
    if (!d) return have;
    return dfa_product(c->b, have ? have : json_any_string_dfa(c->b), d, DFA_MINUS);
}

/* What is asked beside lengths; NULL: nothing. */
static struct dfa *compared(struct sctx *c, const struct conj *j)
{
    struct dfa *d = NULL;
    for (size_t i = 0; i < j->n && c->b->status == MB_OK; i++) {
        const json_t *s = j->nodes[i].schema, *k;
        if ((k = json_object_get(s, "pattern")))
            d = with(c->b, d, schema_pattern(c, s, json_string_value(k), json_string_length(k)));
        if ((k = json_object_get(s, "format"))) d = with(c->b, d, format_dfa(c, s, json_string_value(k)));
        if ((k = json_object_get(s, KEY_NOT_PATTERN))) d = without_pattern(c, s, k, d);
        if ((k = json_object_get(s, KEY_NOT_ENUM))) d = excluded(c, k, d);
    }
    return d;
}

static struct dfa *length_dfa(struct build *b, struct lengths l)
{
    struct cset all = { 0 };
    cset_add(b, &all, 0, 0x10FFFF);
    cset_normalize(&all);
    bool counters = b->counters;
    b->counters = false;
    struct expr *x = expr_repeat(b, expr_class(b, &all, FORM_JSON), l.lo, l.hi);
    b->counters = counters;
    return dfa_of_expr(b, x, false, FORM_JSON, "minLength and maxLength");
}

static struct dfa *limit_length(struct sctx *c, const struct conj *j, struct dfa *d, struct lengths l)
{
    int64_t longest = l.hi == REPEAT_INF ? -1 : dfa_max_bytes(c->b, d);
    if (longest >= 0 && longest <= (int64_t)l.hi) l.hi = REPEAT_INF;
    if (!l.lo && l.hi == REPEAT_INF) return d;
    uint32_t most = l.hi == REPEAT_INF ? l.lo : l.hi;
    if (most > PRODUCT_MAX) {
        schema_unenforced(c, j->nodes[0].schema, l.hi == REPEAT_INF ? "minLength" : "maxLength",
                          "beside pattern or format it may be at most 2500");
        return d;
    }
    return dfa_product(c->b, d, length_dfa(c->b, l), DFA_AND);
}

struct dfa *json_text_dfa(struct build *b, const char *s, size_t len)
{
    struct buf form;
    buf_init(&form, GRAMMAR_MAX_TEXT * 2);
    json_text_form(&form, s, len);
    struct dfa *d = NULL;
    if (form.failed != MB_OK) build_fail(b, form.failed, "a text of the schema is too large");
    else d = dfa_of_expr(b, expr_bytes(b, form.data, form.len), false, FORM_JSON, "text");
    buf_free(&form);
    return d;
}

struct dfa *schema_string_dfa(struct sctx *c, const struct conj *j)
{
    struct lengths l = lengths_of(j);
    struct dfa *d = compared(c, j);
    if (c->b->status != MB_OK) return NULL;
    if (l.hi < l.lo) return dfa_of_expr(c->b, expr_nothing(c->b), false, FORM_JSON, "string");
    if (!d && (l.lo || l.hi != REPEAT_INF)) d = json_any_string_dfa(c->b);
    return d ? limit_length(c, j, d, l) : NULL;
}

/* The one thing that is asked, when it is a pattern; NULL otherwise. */
static const json_t *only_pattern(const struct conj *j, const json_t **pattern)
{
    static const char *const others[] = { "format", "minLength", "maxLength", KEY_NOT_PATTERN, KEY_NOT_ENUM };
    const json_t *owner = NULL;
    for (size_t i = 0; i < j->n; i++) {
        const json_t *s = j->nodes[i].schema, *k = json_object_get(s, "pattern");
        for (size_t n = 0; n < sizeof others / sizeof *others; n++)
            if (json_object_get(s, others[n])) return NULL;
        if (k && owner) return NULL;
        if (k) owner = s, *pattern = k;
    }
    return owner;
}

/* A pattern alone may count at run time. NULL: take the way of automata (which also names what is unsupported). */
static struct expr *pattern_alone(struct sctx *c, const struct conj *j)
{
    const json_t *pattern, *owner = only_pattern(j, &pattern);
    const char *text = owner ? json_string_value(pattern) : "";
    size_t len = owner ? json_string_length(pattern) : 0;
    if (!len || text[0] != '^' || memchr(text, '(', len) || memchr(text, '|', len)) return NULL;
    char *what = arena_printf(&c->b->a, "%.300s: pattern", schema_path(c, owner));
    struct expr *x = what ? regex_rule(c->b, text, len, true, FORM_JSON, what) : NULL;
    if (!x && c->b->status == MB_UNSUPPORTED) c->b->status = MB_OK;
    return x ? expr_seq(c->b, 3, expr_lit(c->b, "\""), x, expr_lit(c->b, "\"")) : NULL;
}

struct expr *schema_string(struct sctx *c, const struct conj *j)
{
    struct lengths l = lengths_of(j);
    if (l.hi < l.lo) return expr_nothing(c->b);
    struct expr *alone = pattern_alone(c, j);
    if (alone || c->b->status != MB_OK) return alone;
    struct dfa *d = compared(c, j);
    if (c->b->status != MB_OK) return NULL;
    if (!d) return json_string_chars(c->b, l.lo, l.hi);
    d = limit_length(c, j, d, l);
    if (!d) return NULL;
    struct expr *text = expr_seq(c->b, 3, expr_lit(c->b, "\""), expr_dfa(c->b, d), expr_lit(c->b, "\""));
    if (!text || text->kind == EX_NOTHING) return text;
    return expr_rule(c->b, build_rule_of(c->b, "string", text)); /* a rule of its own: shared tables, see local.c */
}
