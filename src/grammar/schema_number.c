/* schema_number.c: integers and numbers under bounds and multiples, digit by digit.
 *
 * A bound is taken as the decimal that the schema wrote (doubles in their shortest form), never as a double, so 2^53 + 1
 * and 0.1 mean themselves. Everything is an automaton over unsigned decimals `digits [. digits]`: at least, at most,
 * multiple of; products combine them, and the part below zero is the mirror with a minus sign and without zero.
 * Under a bound no exponent is written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_int.h"

enum { MAX_DIGITS = 400, MAX_MODULUS = 5000 };

struct decimal {
    bool negative;
    char whole[MAX_DIGITS + 8];    /* without leading zeros; "0" */
    char fraction[MAX_DIGITS + 8]; /* without trailing zeros; "" */
};

static bool is_zero(const struct decimal *d)
{
    return !strcmp(d->whole, "0") && !d->fraction[0];
}

/* The digits of text with the point moved by exponent. */
static bool place_point(struct decimal *d, const char *digits, size_t n, long point)
{
    char all[3 * MAX_DIGITS];
    size_t len = 0;
    if (n > MAX_DIGITS || point > MAX_DIGITS || point < -MAX_DIGITS) return false;
    for (; point < 0; point++) all[len++] = '0'; /* leading zeros of a small fraction */
    memcpy(all + len, digits, n);
    len += n;
    while (len < (size_t)point) all[len++] = '0';
    size_t first = 0, whole = (size_t)point, end = len;
    while (first < whole && all[first] == '0') first++;
    while (end > whole && all[end - 1] == '0') end--;
    if (whole - first > MAX_DIGITS || end - whole > MAX_DIGITS) return false;
    if (first == whole) strcpy(d->whole, "0");
    else snprintf(d->whole, sizeof d->whole, "%.*s", (int)(whole - first), all + first);
    snprintf(d->fraction, sizeof d->fraction, "%.*s", (int)(end - whole), all + whole);
    return true;
}

/* false: more digits than are handled. */
static bool decimal_of(const json_t *v, struct decimal *d)
{
    struct buf text;
    char digits[MAX_DIGITS + 1];
    size_t n = 0;
    long point = -1, exponent = 0;
    buf_init(&text, 4096);
    if (json_bigint_text(v)) buf_append_str(&text, json_bigint_text(v));
    else if (json_is_integer(v)) json_write_int(&text, json_integer_value(v));
    else json_write_double(&text, json_real_value(v));
    const char *p = text.failed == MB_OK ? text.data : "";
    memset(d, 0, sizeof *d);
    d->negative = *p == '-';
    for (p += d->negative; *p && *p != 'e'; p++) {
        if (*p == '.') point = (long)n;
        else if (n < MAX_DIGITS) digits[n++] = *p;
        else n = MAX_DIGITS + 1;
        if (n > MAX_DIGITS) break;
    }
    if (*p == 'e') exponent = strtol(p + 1, NULL, 10);
    bool ok = n > 0 && n <= MAX_DIGITS && place_point(d, digits, n, (point < 0 ? (long)n : point) + exponent);
    buf_free(&text);
    if (ok && is_zero(d)) d->negative = false;
    return ok;
}

static int compare_unsigned(const struct decimal *x, const struct decimal *y)
{
    size_t a = strlen(x->whole), b = strlen(y->whole);
    if (a != b) return a < b ? -1 : 1;
    int c = strcmp(x->whole, y->whole);
    return c ? c : strcmp(x->fraction, y->fraction);
}

static int compare(const struct decimal *x, const struct decimal *y)
{
    if (x->negative != y->negative) return x->negative ? -1 : 1;
    return x->negative ? compare_unsigned(y, x) : compare_unsigned(x, y);
}

/* --- expressions over digits --- */

static struct expr *digit(struct build *b, int lo, int hi)
{
    struct cset s = { 0 };
    if (lo > hi) return expr_nothing(b);
    cset_add(b, &s, (uint32_t)('0' + lo), (uint32_t)('0' + hi));
    return b->status == MB_OK ? expr_class(b, &s, FORM_RAW) : NULL;
}

static struct expr *digits(struct build *b, uint32_t lo, uint32_t hi)
{
    bool counters = b->counters;
    b->counters = false;
    struct expr *x = expr_repeat(b, digit(b, 0, 9), lo, hi);
    b->counters = counters;
    return x;
}

static struct expr *whole_number(struct build *b)
{
    return expr_alt2(b, digit(b, 0, 0), expr_seq2(b, digit(b, 1, 9), digits(b, 0, REPEAT_INF)));
}

static struct expr *fraction_part(struct build *b)
{
    return expr_seq2(b, expr_lit(b, "."), digits(b, 1, REPEAT_INF));
}

/* At most 15 digits, so that two decimals that a bound tells apart are two doubles to whoever reads them. */
static struct expr *written_fraction(struct build *b)
{
    return expr_opt(b, expr_seq2(b, expr_lit(b, "."), digits(b, 1, 15)));
}

static struct expr *any_fraction(struct build *b)
{
    return expr_opt(b, fraction_part(b));
}

/* Whole numbers of as many digits as s that are above (up) or below it, s itself excluded. */
static struct expr *same_length(struct build *b, const char *s, bool up)
{
    struct expr_list l = { 0 };
    size_t n = strlen(s);
    for (size_t i = 0; i < n && b->status == MB_OK; i++) {
        int d = s[i] - '0', least = i == 0 && n > 1 ? 1 : 0;
        struct expr *other = up ? digit(b, d + 1, 9) : digit(b, least, d - 1);
        expr_list_add(b, &l, expr_seq(b, 3, expr_bytes(b, s, i), other, digits(b, (uint32_t)(n - i - 1), (uint32_t)(n - i - 1))));
    }
    return b->status == MB_OK ? expr_alt_list(b, &l) : NULL;
}

static struct expr *whole_above(struct build *b, const char *s)
{
    uint32_t n = (uint32_t)strlen(s);
    return expr_alt2(b, same_length(b, s, true), expr_seq2(b, digit(b, 1, 9), digits(b, n, REPEAT_INF)));
}

static struct expr *whole_below(struct build *b, const char *s)
{
    uint32_t n = (uint32_t)strlen(s);
    struct expr *shorter = n < 2 ? expr_nothing(b) : expr_alt2(b, digit(b, 0, 0), expr_seq2(b, digit(b, 1, 9), digits(b, 0, n - 2)));
    return expr_alt2(b, same_length(b, s, false), shorter);
}

/* What may follow the whole part so that the fraction is at least (or above) f. */
static struct expr *fraction_above(struct build *b, const char *f, bool exclusive)
{
    struct expr_list l = { 0 };
    struct expr *zeros = expr_repeat(b, digit(b, 0, 0), 0, REPEAT_INF), *rest = digits(b, 0, REPEAT_INF);
    struct expr *more = expr_seq(b, 3, zeros, digit(b, 1, 9), rest);
    if (!f[0]) return exclusive ? expr_seq2(b, expr_lit(b, "."), more) : any_fraction(b);
    for (size_t i = 0; f[i] && b->status == MB_OK; i++)
        expr_list_add(b, &l, expr_seq(b, 3, expr_bytes(b, f, i), digit(b, f[i] - '0' + 1, 9), rest));
    expr_list_add(b, &l, expr_seq2(b, expr_lit(b, f), exclusive ? more : rest));
    return b->status == MB_OK ? expr_seq2(b, expr_lit(b, "."), expr_alt_list(b, &l)) : NULL;
}

/* ... at most (or below) f. */
static struct expr *fraction_below(struct build *b, const char *f, bool exclusive)
{
    struct expr_list l = { 0 };
    struct expr *zeros = expr_repeat(b, digit(b, 0, 0), 0, REPEAT_INF), *rest = digits(b, 0, REPEAT_INF);
    if (!f[0] && exclusive) return expr_nothing(b);
    expr_list_add(b, &l, expr_empty(b));
    for (size_t i = 0; f[i] && b->status == MB_OK; i++) {
        expr_list_add(b, &l, expr_seq(b, 4, expr_lit(b, "."), expr_bytes(b, f, i), digit(b, 0, f[i] - '0' - 1), rest));
        if (i) expr_list_add(b, &l, expr_seq2(b, expr_lit(b, "."), expr_bytes(b, f, i))); /* a beginning of f is below it */
    }
    if (!f[0]) expr_list_add(b, &l, expr_seq(b, 3, expr_lit(b, "."), digit(b, 0, 0), zeros));
    else if (!exclusive) expr_list_add(b, &l, expr_seq(b, 3, expr_lit(b, "."), expr_lit(b, f), zeros));
    return b->status == MB_OK ? expr_alt_list(b, &l) : NULL;
}

static struct dfa *number_dfa(struct build *b, struct expr *x)
{
    return x ? dfa_of_expr(b, x, false, FORM_RAW, "a number's bounds") : NULL;
}

static struct dfa *at_least(struct build *b, const struct decimal *d, bool exclusive)
{
    struct expr *above = expr_seq2(b, whole_above(b, d->whole), any_fraction(b));
    return number_dfa(b, expr_alt2(b, above, expr_seq2(b, expr_lit(b, d->whole), fraction_above(b, d->fraction, exclusive))));
}

static struct dfa *at_most(struct build *b, const struct decimal *d, bool exclusive)
{
    struct expr *below = expr_seq2(b, whole_below(b, d->whole), any_fraction(b));
    return number_dfa(b, expr_alt2(b, below, expr_seq2(b, expr_lit(b, d->whole), fraction_below(b, d->fraction, exclusive))));
}

/* --- multiples --- */

struct modulus {
    uint32_t m;        /* the digits of multipleOf without its point */
    uint32_t n_places; /* digits behind its point */
    uint32_t scale;    /* 10^n_places mod m */
};

static bool modulus_of(const json_t *v, struct modulus *out)
{
    struct decimal d;
    if (!decimal_of(v, &d) || strlen(d.fraction) > 12 || strlen(d.whole) > 4) return false;
    uint64_t m = 0;
    for (const char *p = d.whole; *p; p++) m = m * 10 + (uint64_t)(*p - '0');
    for (const char *p = d.fraction; *p; p++) {
        m = m * 10 + (uint64_t)(*p - '0');
        if (m > MAX_MODULUS) return false;
    }
    if (!m || m > MAX_MODULUS) return false;
    out->m = (uint32_t)m;
    out->n_places = (uint32_t)strlen(d.fraction);
    return true;
}

static uint32_t power10(uint32_t n, uint32_t m)
{
    uint64_t r = 1 % m;
    while (n--) r = r * 10 % m;
    return (uint32_t)r;
}

/* Unsigned decimals that are multiples: the states are (places behind the point so far, remainder). Leading zeros are
 * cut by the product with the plain number. State = 0 start; 1 + r whole; then per place p: r; the last: only zeros. */
static struct dfa *multiples(struct build *b, const struct modulus *k)
{
    uint32_t m = k->m, n_states = 1 + m + (k->n_places + 1) * m + 1, zeros = n_states - 1;
    struct dfa *d = build_alloc(b, 1, sizeof *d);
    if (!d || !(d->states = build_alloc(b, n_states, sizeof *d->states))) return NULL;
    if (!(d->edges = build_alloc(b, (size_t)n_states * 11, sizeof *d->edges))) return NULL;
    d->syms = build_alloc(b, 1, sizeof *d->syms);
    d->n_states = n_states;
    for (uint32_t i = 0; i < n_states; i++) {
        struct dfa_state *s = &d->states[i];
        bool whole = i <= m;
        uint32_t r = i == 0 || i == zeros ? 0 : (i - 1) % m, p = whole || i == zeros ? 0 : (i - 1 - m) / m;
        *s = (struct dfa_state){ .edge0 = d->n_edges };
        s->accept = i && (i == zeros || (uint64_t)r * power10(k->n_places - p, m) % m == 0);
        if (!whole && p == 0) s->accept = i == zeros; /* right behind the point a digit must follow */
        if (whole && i) /* '.' is below '0' */
            d->edges[d->n_edges++] = (struct dfa_edge){ '.', '.', 1 + m + r };
        bool full = i == zeros || (!whole && p == k->n_places);
        for (uint32_t c = 0; c < 10 && !full; c++) {
            uint32_t next = (uint32_t)(((uint64_t)r * 10 + c) % m), base = whole ? 1 : 1 + m + (p + 1) * m;
            d->edges[d->n_edges++] = (struct dfa_edge){ (uint8_t)('0' + c), (uint8_t)('0' + c), base + next };
        }
        if (full && (i == zeros || (uint64_t)r * power10(0, m) % m == 0))
            d->edges[d->n_edges++] = (struct dfa_edge){ '0', '0', zeros };
        s->n_edges = d->n_edges - s->edge0;
    }
    return dfa_trim(b, d, NULL);
}

/* --- the whole --- */

struct bounds {
    bool has_lo, has_hi, lo_exclusive, hi_exclusive, has_modulus, empty;
    struct decimal lo, hi;
};

static void add_bound(struct sctx *c, struct bounds *r, const json_t *s, const char *keyword, bool lower, bool exclusive)
{
    const json_t *v = json_object_get(s, keyword);
    struct decimal d;
    if (!v) return;
    if (!decimal_of(v, &d)) {
        schema_unenforced(c, s, keyword, "a bound may have at most 400 digits");
        return;
    }
    bool *has = lower ? &r->has_lo : &r->has_hi, *excl = lower ? &r->lo_exclusive : &r->hi_exclusive;
    struct decimal *have = lower ? &r->lo : &r->hi;
    int order = *has ? compare(&d, have) : 0;
    if (*has && order == 0) *excl |= exclusive;
    else if (!*has || (lower ? order > 0 : order < 0)) *have = d, *excl = exclusive;
    *has = true;
}

static struct bounds bounds_of(struct sctx *c, const struct conj *j)
{
    struct bounds r = { 0 };
    for (size_t i = 0; i < j->n; i++) {
        const json_t *s = j->nodes[i].schema;
        add_bound(c, &r, s, "minimum", true, false);
        add_bound(c, &r, s, "exclusiveMinimum", true, true);
        add_bound(c, &r, s, "maximum", false, false);
        add_bound(c, &r, s, "exclusiveMaximum", false, true);
        r.has_modulus |= json_object_get(s, "multipleOf") != NULL;
    }
    return r;
}

static struct dfa *with(struct build *b, struct dfa *x, struct dfa *y)
{
    return x && y ? dfa_product(b, x, y, DFA_AND) : NULL;
}

/* Numbers that stand in a list of forbidden values, in every spelling: whole, or with zeros behind. */
static struct dfa *without_values(struct sctx *c, const struct conj *j, struct dfa *d, bool negative)
{
    for (size_t i = 0; i < j->n; i++) {
        const json_t *list = json_object_get(j->nodes[i].schema, KEY_NOT_ENUM);
        for (size_t k = 0; k < json_array_size(list) && d; k++) {
            const json_t *v = json_array_get(list, k);
            struct decimal x;
            if (!(json_is_number(v) || json_bigint_text(v)) || !decimal_of(v, &x)) continue;
            if (x.negative != negative) continue;
            struct dfa *up = at_least(c->b, &x, false), *same = with(c->b, up, at_most(c->b, &x, false));
            d = same ? dfa_product(c->b, d, same, DFA_MINUS) : NULL;
        }
    }
    return d;
}

/* Unsigned numbers of the wanted kind that satisfy the multiples. */
static struct dfa *base(struct sctx *c, const struct conj *j, int types)
{
    struct build *b = c->b;
    struct expr *whole = whole_number(b);
    struct dfa *d = number_dfa(b, types & T_FRACTION ? expr_seq2(b, whole, written_fraction(b)) : whole);
    if (!(types & T_INT)) {
        /* a number that must not be whole stays so as a double: few digits */
        struct expr *few = expr_seq2(b, expr_alt2(b, digit(b, 0, 0), expr_seq2(b, digit(b, 1, 9), digits(b, 0, 8))),
                                     expr_seq2(b, expr_lit(b, "."), digits(b, 1, 6)));
        d = with(b, d, number_dfa(b, few));
        struct expr *zeros = expr_seq2(b, expr_lit(b, "."), expr_repeat(b, digit(b, 0, 0), 1, REPEAT_INF));
        struct dfa *integers = number_dfa(b, expr_seq2(b, whole, expr_opt(b, zeros)));
        d = d && integers ? dfa_product(b, d, integers, DFA_MINUS) : NULL;
    }
    for (size_t i = 0; i < j->n && d; i++) {
        const json_t *v = json_object_get(j->nodes[i].schema, "multipleOf");
        struct modulus k;
        if (!v) continue;
        if (modulus_of(v, &k)) d = with(b, d, multiples(b, &k));
        else schema_unenforced(c, j->nodes[i].schema, "multipleOf", "its digits without the point may be at most 5000");
        if (b->status != MB_OK) return NULL;
    }
    return d;
}

static const struct decimal zero = { .whole = "0" };

/* The part at or above zero (or the mirror of the part below): lo and hi are unsigned, NULL none. */
static struct dfa *part(struct sctx *c, const struct conj *j, struct dfa *d, const struct decimal *lo, bool lo_exclusive,
                        const struct decimal *hi, bool hi_exclusive, bool negative)
{
    if (lo) d = with(c->b, d, at_least(c->b, lo, lo_exclusive));
    if (hi) d = with(c->b, d, at_most(c->b, hi, hi_exclusive));
    return without_values(c, j, d, negative);
}

static struct expr *upper_part(struct sctx *c, const struct conj *j, struct dfa *d, const struct bounds *r)
{
    if (r->has_hi && (r->hi.negative || (is_zero(&r->hi) && r->hi_exclusive))) return expr_nothing(c->b);
    bool lo = r->has_lo && !r->lo.negative;
    return expr_dfa(c->b, part(c, j, d, lo ? &r->lo : NULL, r->lo_exclusive, r->has_hi ? &r->hi : NULL, r->hi_exclusive, false));
}

static struct expr *lower_part(struct sctx *c, const struct conj *j, struct dfa *d, const struct bounds *r)
{
    if (r->has_lo && !r->lo.negative) return expr_nothing(c->b);
    bool hi = r->has_hi && r->hi.negative; /* else: below zero, zero itself excluded */
    struct dfa *m = part(c, j, d, hi ? &r->hi : &zero, hi ? r->hi_exclusive : true, r->has_lo ? &r->lo : NULL, r->lo_exclusive, true);
    return m ? expr_seq2(c->b, expr_lit(c->b, "-"), expr_dfa(c->b, m)) : NULL;
}

static bool excludes_numbers(const struct conj *j)
{
    for (size_t i = 0; i < j->n; i++) {
        const json_t *list = json_object_get(j->nodes[i].schema, KEY_NOT_ENUM);
        for (size_t k = 0; k < json_array_size(list); k++)
            if (json_is_number(json_array_get(list, k)) || json_bigint_text(json_array_get(list, k))) return true;
    }
    return false;
}

struct expr *schema_number(struct sctx *c, const struct conj *j, int types)
{
    struct bounds r = bounds_of(c, j);
    if (c->b->status != MB_OK) return NULL;
    bool free_form = !r.has_lo && !r.has_hi && !r.has_modulus && (types & T_INT) && !excludes_numbers(j);
    if (free_form) return types & T_FRACTION ? json_number_rule(c->b) : json_integer_rule(c->b);
    struct dfa *d = base(c, j, types);
    if (!d) return NULL;
    struct expr *upper = upper_part(c, j, d, &r), *lower = upper ? lower_part(c, j, d, &r) : NULL;
    return lower ? expr_alt2(c->b, upper, lower) : NULL;
}
