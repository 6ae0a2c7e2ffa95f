/* schema_valid.c: is a value that the schema itself wrote down (a member of an enum, a name) valid against a schema?
 * A plain validator; patterns run as automata, because that is what generation will follow. */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/schema_int.h"

enum { VALID_MAX_DEPTH = 200, VALID_VISIT = 16, VALID_MAX_WORK = 20000000 };

json_t *object_get(const json_t *o, const char *key, size_t len)
{
    return json_is_object(o) ? json_object_getn(o, key, len) : NULL;
}

static bool is_number(const json_t *v)
{
    return json_is_number(v) || json_bigint_text(v);
}

static bool same_objects(const json_t *x, const json_t *y)
{
    if (json_object_size(x) != json_object_size(y)) return false;
    for (void *it = json_object_iter((json_t *)x); it; it = json_object_iter_next((json_t *)x, it)) {
        const json_t *other = object_get(y, json_object_iter_key(it), json_object_iter_key_len(it));
        if (!other || !json_same(json_object_iter_value(it), other)) return false;
    }
    return true;
}

bool json_same(const json_t *x, const json_t *y)
{
    if (is_number(x) && is_number(y)) {
        const char *a = json_bigint_text(x), *b = json_bigint_text(y);
        if (a || b) return a && b && !strcmp(a, b);
        if (json_is_integer(x) && json_is_integer(y)) return json_integer_value(x) == json_integer_value(y);
        return json_number_value(x) == json_number_value(y);
    }
    if (is_number(x) || is_number(y) || json_typeof(x) != json_typeof(y)) return false;
    if (json_is_object(x)) return same_objects(x, y);
    if (!json_is_array(x)) return json_equal(x, y);
    if (json_array_size(x) != json_array_size(y)) return false;
    for (size_t i = 0; i < json_array_size(x); i++)
        if (!json_same(json_array_get(x, i), json_array_get(y, i))) return false;
    return true;
}

static int type_of(const json_t *v)
{
    if (json_bigint_text(v) || json_is_integer(v)) return T_INT;
    switch (json_typeof(v)) {
    case JSON_NULL: return T_NULL;
    case JSON_TRUE: case JSON_FALSE: return T_BOOL;
    case JSON_OBJECT: return T_OBJECT;
    case JSON_ARRAY: return T_ARRAY;
    case JSON_STRING: return T_STRING;
    case JSON_REAL: return json_real_value(v) == floor(json_real_value(v)) ? T_INT : T_FRACTION;
    case JSON_INTEGER: return T_INT;
    }
    return 0;
}

static double number_of(const json_t *v)
{
    const char *big = json_bigint_text(v);
    if (!big) return json_number_value(v);
    double d = 0;
    for (const char *p = big + (big[0] == '-'); *p; p++) d = d * 10 + (*p - '0');
    return big[0] == '-' ? -d : d;
}

/* Schemas that refer to others more than once, and long lists against each other, would ask for ever. */
static bool may_go_on(struct sctx *c, size_t work)
{
    c->valid_work += work;
    if (c->valid_work > VALID_MAX_WORK && c->b->status == MB_OK)
        build_fail(c->b, MB_TOO_LARGE, "it takes too long to see which values of enum, const and not the rest of the schema allows");
    return c->b->status == MB_OK;
}

/* Usually v is itself the member of a long enum, behind the one that was asked about before. */
static bool in_list(struct sctx *c, const json_t *list, const json_t *v)
{
    size_t n = json_array_size(list);
    if (c->next_member < n && json_array_get(list, c->next_member) == v) {
        c->next_member++;
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        if (json_array_get(list, i) != v) continue;
        c->next_member = i + 1;
        return true;
    }
    if (!may_go_on(c, n)) return false;
    for (size_t i = 0; i < n; i++)
        if (json_same(json_array_get(list, i), v)) return true;
    return false;
}

static bool valid_number(const json_t *s, const json_t *v)
{
    double x = number_of(v);
    const json_t *k;
    if ((k = json_object_get(s, "minimum")) && x < number_of(k)) return false;
    if ((k = json_object_get(s, "maximum")) && x > number_of(k)) return false;
    if ((k = json_object_get(s, "exclusiveMinimum")) && x <= number_of(k)) return false;
    if ((k = json_object_get(s, "exclusiveMaximum")) && x >= number_of(k)) return false;
    if (!(k = json_object_get(s, "multipleOf"))) return true;
    if (json_is_integer(k) && json_is_integer(v)) return json_integer_value(v) % json_integer_value(k) == 0;
    double q = x / number_of(k);
    return fabs(q - round(q)) < 1e-9 * fmax(1, fabs(q));
}

static bool pattern_holds(struct sctx *c, const json_t *s, const char *pattern, size_t pattern_len, const char *text, size_t len)
{
    struct dfa *d = schema_pattern(c, s, pattern, pattern_len);
    if (!d) return true; /* a failure, or listed as not enforced */
    struct buf form;
    buf_init(&form, 0);
    json_text_form(&form, text, len);
    bool r = form.failed == MB_OK && dfa_matches(d, form.data ? form.data : "", form.len);
    if (form.failed != MB_OK) build_fail(c->b, form.failed, "no memory for a schema");
    buf_free(&form);
    return r;
}

static int64_t n_characters(const char *s, size_t len)
{
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

static bool format_holds(struct sctx *c, const char *name, const char *text, size_t len)
{
    struct expr *x = format_expr(c->b, name);
    struct dfa *d = x ? dfa_of_expr(c->b, x, false, FORM_RAW, "format") : NULL;
    return !d || dfa_matches(d, text, len);
}

static bool valid_string(struct sctx *c, const json_t *s, const json_t *v)
{
    const char *text = json_string_value(v);
    size_t len = json_string_length(v);
    const json_t *k;
    if ((k = json_object_get(s, "minLength")) && n_characters(text, len) < count_of(k)) return false;
    if ((k = json_object_get(s, "maxLength")) && n_characters(text, len) > count_of(k)) return false;
    if ((k = json_object_get(s, "format")) && !c->formats_unknown && !format_holds(c, json_string_value(k), text, len)) return false;
    if ((k = json_object_get(s, "pattern")) &&
        !pattern_holds(c, s, json_string_value(k), json_string_length(k), text, len)) return false;
    k = json_object_get(s, KEY_NOT_PATTERN);
    return !k || !pattern_holds(c, s, json_string_value(k), json_string_length(k), text, len);
}

static bool valid_array(struct sctx *c, json_t *s, const json_t *v, int depth)
{
    size_t n = json_array_size(v), n_prefix = json_array_size(json_object_get(s, "prefixItems"));
    json_t *k;
    if ((k = json_object_get(s, "minItems")) && (int64_t)n < count_of(k)) return false;
    if ((k = json_object_get(s, "maxItems")) && (int64_t)n > count_of(k)) return false;
    json_t *items = json_object_get(s, "items"), *contains = json_object_get(s, "contains");
    int64_t n_contained = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *sub = i < n_prefix ? json_array_get(json_object_get(s, "prefixItems"), i) : items;
        const json_t *item = json_array_get(v, i);
        if (sub && !schema_valid(c, sub, item, depth + 1)) return false;
        if (contains && schema_valid(c, contains, item, depth + 1)) n_contained++;
        for (size_t m = 0; json_is_true(json_object_get(s, "uniqueItems")) && m < i; m++)
            if (json_same(item, json_array_get(v, m))) return false;
    }
    if (!contains) return true;
    const json_t *lo = json_object_get(s, "minContains"), *hi = json_object_get(s, "maxContains");
    return n_contained >= (lo ? count_of(lo) : 1) && (!hi || n_contained <= count_of(hi));
}

static bool valid_property(struct sctx *c, json_t *s, const char *key, size_t len, const json_t *v, int depth)
{
    json_t *sub = object_get(json_object_get(s, "properties"), key, len), *patterns = json_object_get(s, "patternProperties");
    json_t *names = json_object_get(s, "propertyNames");
    bool known = sub != NULL;
    if (sub && !schema_valid(c, sub, v, depth + 1)) return false;
    for (void *it = patterns ? json_object_iter(patterns) : NULL; it; it = json_object_iter_next(patterns, it)) {
        if (!pattern_holds(c, s, json_object_iter_key(it), json_object_iter_key_len(it), key, len)) continue;
        known = true;
        if (!schema_valid(c, json_object_iter_value(it), v, depth + 1)) return false;
    }
    if (!known && (sub = json_object_get(s, "additionalProperties")) && !schema_valid(c, sub, v, depth + 1)) return false;
    if (!names) return true;
    json_t *name = schema_own(c, json_stringn(key, len));
    return name && schema_valid(c, names, name, depth + 1);
}

static bool has_all(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        if (!object_get(v, json_string_value(k), json_string_length(k))) return false;
    }
    return true;
}

static bool valid_dependents(struct sctx *c, json_t *s, const char *keyword, const json_t *v, int depth)
{
    json_t *map = json_object_get(s, keyword);
    for (void *it = map ? json_object_iter(map) : NULL; it; it = json_object_iter_next(map, it)) {
        json_t *sub = json_object_iter_value(it);
        if (!object_get(v, json_object_iter_key(it), json_object_iter_key_len(it))) continue;
        if (json_is_array(sub) ? !has_all(sub, v) : !schema_valid(c, sub, v, depth + 1)) return false;
    }
    return true;
}

static bool valid_object(struct sctx *c, json_t *s, const json_t *v, int depth)
{
    const json_t *k;
    if ((k = json_object_get(s, "minProperties")) && (int64_t)json_object_size(v) < count_of(k)) return false;
    if ((k = json_object_get(s, "maxProperties")) && (int64_t)json_object_size(v) > count_of(k)) return false;
    if ((k = json_object_get(s, "required")) && !has_all(k, v)) return false;
    for (void *it = json_object_iter((json_t *)v); it; it = json_object_iter_next((json_t *)v, it))
        if (!valid_property(c, s, json_object_iter_key(it), json_object_iter_key_len(it), json_object_iter_value(it), depth)) return false;
    return valid_dependents(c, s, "dependentRequired", v, depth) && valid_dependents(c, s, "dependentSchemas", v, depth) &&
           valid_dependents(c, s, "dependencies", v, depth);
}

static size_t n_holding(struct sctx *c, json_t *list, const json_t *v, int depth)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) n += schema_valid(c, json_array_get(list, i), v, depth + 1);
    return n;
}

static bool valid_in_place(struct sctx *c, json_t *s, const json_t *v, int depth)
{
    json_t *k;
    if (json_object_get(s, "$recursiveRef")) c->undecided = true;
    if ((k = schema_ref_target(c, s)) && !schema_valid(c, k, v, depth + 1)) return false;
    if ((k = schema_dynamic_target(c, s)) && !schema_valid(c, k, v, depth + 1)) return false;
    if ((k = json_object_get(s, "allOf")) && n_holding(c, k, v, depth) != json_array_size(k)) return false;
    if ((k = json_object_get(s, "anyOf")) && n_holding(c, k, v, depth) == 0) return false;
    if ((k = json_object_get(s, "oneOf")) && n_holding(c, k, v, depth) != 1) return false;
    if ((k = json_object_get(s, "not")) && schema_valid(c, k, v, depth + 1)) return false;
    if (!(k = json_object_get(s, "if"))) return true;
    k = json_object_get(s, schema_valid(c, k, v, depth + 1) ? "then" : "else");
    return !k || schema_valid(c, k, v, depth + 1);
}

bool schema_valid(struct sctx *c, json_t *s, const json_t *v, int depth)
{
    if (json_is_boolean(s)) return json_is_true(s);
    if (depth > VALID_MAX_DEPTH) {
        build_fail(c->b, MB_INVALID, "%s: a cycle of references with no content between", schema_path(c, s));
        return false;
    }
    const json_t *k;
    if (!may_go_on(c, VALID_VISIT)) return false;
    if ((k = json_object_get(s, "type")) && !(schema_types(k) & type_of(v))) return false;
    if ((k = json_object_get(s, "const")) && !json_same(k, v)) return false;
    if ((k = json_object_get(s, "enum")) && !in_list(c, k, v)) return false;
    if ((k = json_object_get(s, KEY_NOT_ENUM)) && in_list(c, k, v)) return false;
    bool ok = true;
    if (is_number(v)) ok = valid_number(s, v);
    else if (json_is_text(v)) ok = valid_string(c, s, v);
    else if (json_is_array(v)) ok = valid_array(c, s, v, depth);
    else if (json_is_object(v)) ok = valid_object(c, s, v, depth);
    return ok && valid_in_place(c, s, v, depth);
}

bool schema_excludes(struct sctx *c, json_t *s, const json_t *v)
{
    c->undecided = false;
    return !schema_valid(c, s, v, 0) && !c->undecided;
}
