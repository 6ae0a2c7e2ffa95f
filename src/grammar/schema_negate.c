/* schema_negate.c: the opposite of a schema, written as a schema (De Morgan over its keywords).
 *
 * A schema is the conjunction of its keywords, so the opposite is anyOf of the opposites of each. Where one keyword has
 * none that can be enforced, there is none for the whole: NULL, and the caller says which keyword it could not do.
 * Results are remembered, so equal questions give equal (pointer-equal) schemas and rules are shared.
 */
#include <string.h>

#include "grammar/schema_int.h"

enum { NEGATE_MAX_DEPTH = 24 };

struct negation {
    struct sctx *c;
    json_t *any;  /* list of alternatives, owned here */
    bool cannot;
    int depth;
};

static json_t *negate(struct sctx *c, json_t *s, int depth);

/* Takes alternative. */
static void add(struct negation *n, json_t *alternative)
{
    if (!alternative || json_array_append_new(n->any, alternative) != 0)
        build_fail(n->c->b, MB_NO_MEMORY, "no memory for a schema");
}

static json_t *pack(struct negation *n, json_t *made)
{
    if (!made) build_fail(n->c->b, MB_NO_MEMORY, "no memory for a schema");
    return made;
}

/* Takes item. */
static void append(struct negation *n, json_t *list, json_t *item)
{
    if (!list || json_array_append_new(list, item) != 0) build_fail(n->c->b, MB_NO_MEMORY, "no memory for a schema");
}

static void negate_type(struct negation *n, const json_t *v)
{
    static const struct { const char *name; int bits; } names[] = { { "null", T_NULL }, { "boolean", T_BOOL },
        { "object", T_OBJECT }, { "array", T_ARRAY }, { "string", T_STRING }, { "number", T_INT | T_FRACTION } };
    int left = T_ALL & ~schema_types(v);
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((left & names[i].bits) == names[i].bits) append(n, list, json_string(names[i].name));
    if ((left & T_FRACTION) && !(left & T_INT)) append(n, list, json_string("%fraction"));
    if ((left & T_INT) && !(left & T_FRACTION)) append(n, list, json_string("integer"));
    if (!json_array_size(list)) json_decref(list);
    else add(n, json_pack("{s:o}", "type", list));
}

static void negate_values(struct negation *n, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_object(json_array_get(list, i)) || json_is_array(json_array_get(list, i))) n->cannot = true;
    if (!n->cannot) add(n, json_pack("{s:O}", KEY_NOT_ENUM, list));
}

/* {type: t, keyword: value}, taking value */
static void add_typed(struct negation *n, const char *type, const char *keyword, json_t *value)
{
    add(n, json_pack("{s:s,s:o}", "type", type, keyword, pack(n, value)));
}

static void negate_count(struct negation *n, const char *type, const char *lower, const char *upper, const json_t *v, bool is_lower)
{
    int64_t k = count_of(v);
    if (is_lower && k > 0) add_typed(n, type, upper, json_integer(k - 1));
    if (!is_lower && k < INT64_MAX) add_typed(n, type, lower, json_integer(k + 1));
}

static void negate_required(struct negation *n, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *props = json_object();
        const json_t *k = json_array_get(list, i);
        if (!props || json_object_setn_new(props, json_string_value(k), json_string_length(k), json_false()) != 0)
            build_fail(n->c->b, MB_NO_MEMORY, "no memory for a schema");
        add_typed(n, "object", "properties", props);
    }
}

/* An object that has the property, with a value against its schema. */
static void negate_properties(struct negation *n, json_t *map)
{
    for (void *it = json_object_iter(map); it; it = json_object_iter_next(map, it)) {
        const char *key = json_object_iter_key(it);
        size_t len = json_object_iter_key_len(it);
        json_t *opposite = negate(n->c, json_object_iter_value(it), n->depth + 1);
        if (!opposite) {
            n->cannot = true;
            return;
        }
        if (schema_is_false(opposite)) continue;
        json_t *props = json_object(), *key_text = json_stringn(key, len);
        if (!props || !key_text || json_object_setn(props, key, len, opposite) != 0)
            build_fail(n->c->b, MB_NO_MEMORY, "no memory for a schema");
        add(n, json_pack("{s:s,s:[o],s:o}", "type", "object", "required", key_text, "properties", props));
    }
}

static void negate_items(struct negation *n, json_t *s)
{
    json_t *items = json_object_get(s, "items"), *opposite = negate(n->c, items, n->depth + 1);
    if (!opposite || json_object_get(s, "prefixItems")) n->cannot = true;
    else if (!schema_is_false(opposite)) add(n, json_pack("{s:s,s:O}", "type", "array", "contains", opposite));
}

/* An array whose item i is there and against its schema. */
static void negate_prefix(struct negation *n, json_t *list)
{
    for (size_t i = 0; i < json_array_size(list) && !n->cannot; i++) {
        json_t *opposite = negate(n->c, json_array_get(list, i), n->depth + 1), *prefix;
        if (!opposite || !(prefix = json_array())) {
            n->cannot = true;
            return;
        }
        if (schema_is_false(opposite)) {
            json_decref(prefix);
            continue;
        }
        for (size_t k = 0; k < i; k++) append(n, prefix, json_true());
        append(n, prefix, json_incref(opposite));
        add(n, json_pack("{s:s,s:I,s:o}", "type", "array", "minItems", (json_int_t)i + 1, "prefixItems", prefix));
    }
}

static void negate_contains(struct negation *n, json_t *s)
{
    json_t *opposite = negate(n->c, json_object_get(s, "contains"), n->depth + 1);
    if (!opposite || json_object_get(s, "minContains") || json_object_get(s, "maxContains")) n->cannot = true;
    else add(n, json_pack("{s:s,s:O}", "type", "array", "items", opposite));
}

static void negate_each(struct negation *n, json_t *list) /* of allOf: any opposite */
{
    for (size_t i = 0; i < json_array_size(list) && !n->cannot; i++) {
        json_t *opposite = negate(n->c, json_array_get(list, i), n->depth + 1);
        if (!opposite) n->cannot = true;
        else if (!schema_is_false(opposite)) add(n, json_incref(opposite));
    }
}

static void negate_any(struct negation *n, json_t *list) /* of anyOf: all opposites */
{
    json_t *all = json_array();
    for (size_t i = 0; all && i < json_array_size(list) && !n->cannot; i++) {
        json_t *opposite = negate(n->c, json_array_get(list, i), n->depth + 1);
        if (!opposite || json_array_append(all, opposite) != 0) n->cannot = true;
    }
    if (n->cannot) json_decref(all);
    else add(n, json_pack("{s:o}", "allOf", pack(n, all)));
}

static void negate_ref(struct negation *n, json_t *target)
{
    json_t *opposite = target ? negate(n->c, target, n->depth + 1) : NULL;
    if (!opposite) n->cannot = true;
    else if (!schema_is_false(opposite)) add(n, json_incref(opposite));
}

/* Keywords that limit nothing, or only beside another that is handled. */
static bool says_nothing(const char *name, const json_t *v)
{
    static const char *const silent[] = { "then", "else", "minContains", "maxContains" };
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
        if (!strcmp(name, silent[i])) return true;
    return !grammar_keyword_limits(name, v);
}

static void negate_bound(struct negation *n, const char *name, json_t *v)
{
    static const char *const opposite[][2] = { { "minimum", "exclusiveMaximum" }, { "maximum", "exclusiveMinimum" },
                                               { "exclusiveMinimum", "maximum" }, { "exclusiveMaximum", "minimum" } };
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, opposite[i][0])) add_typed(n, "number", opposite[i][1], json_incref(v));
}

static void negate_keyword(struct negation *n, json_t *s, const char *name, json_t *v)
{
    json_t *inner;
    if (!strcmp(name, "type")) negate_type(n, v);
    else if (!strcmp(name, "enum")) negate_values(n, v);
    else if (!strcmp(name, "const")) negate_values(n, schema_own(n->c, json_pack("[O]", v)));
    else if (!strcmp(name, "required")) negate_required(n, v);
    else if (!strcmp(name, "properties")) negate_properties(n, v);
    else if (!strcmp(name, "items")) negate_items(n, s);
    else if (!strcmp(name, "prefixItems")) negate_prefix(n, v);
    else if (!strcmp(name, "contains")) negate_contains(n, s);
    else if (!strcmp(name, "allOf")) negate_each(n, v);
    else if (!strcmp(name, "anyOf")) negate_any(n, v);
    else if (!strcmp(name, "not")) json_is_boolean(v) ? (json_is_true(v) ? add(n, json_true()) : (void)0) : add(n, json_incref(v));
    else if (!strcmp(name, "$ref")) negate_ref(n, schema_ref_target(n->c, s));
    else if (!strcmp(name, "minLength")) negate_count(n, "string", "minLength", "maxLength", v, true);
    else if (!strcmp(name, "maxLength")) negate_count(n, "string", "minLength", "maxLength", v, false);
    else if (!strcmp(name, "minItems")) negate_count(n, "array", "minItems", "maxItems", v, true);
    else if (!strcmp(name, "maxItems")) negate_count(n, "array", "minItems", "maxItems", v, false);
    else if (!strcmp(name, "minProperties")) negate_count(n, "object", "minProperties", "maxProperties", v, true);
    else if (!strcmp(name, "maxProperties")) negate_count(n, "object", "minProperties", "maxProperties", v, false);
    else if (!strcmp(name, "pattern")) add_typed(n, "string", KEY_NOT_PATTERN, json_incref(v));
    else if (strstr(name, "imum")) negate_bound(n, name, v);
    else if (!strcmp(name, "if") && (inner = json_object_get(s, "then")) == NULL && !json_object_get(s, "else")) return;
    else if (!says_nothing(name, v)) n->cannot = true;
}

static json_t *make(struct sctx *c, json_t *s, int depth)
{
    struct negation n = { .c = c, .any = json_array(), .depth = depth };
    if (!n.any) return schema_own(c, NULL);
    for (void *it = json_object_iter(s); it && !n.cannot && c->b->status == MB_OK; it = json_object_iter_next(s, it))
        negate_keyword(&n, s, json_object_iter_key(it), json_object_iter_value(it));
    json_t *made = NULL;
    if (!n.cannot && c->b->status == MB_OK) {
        size_t k = json_array_size(n.any);
        if (k == 0) made = schema_own(c, json_false());
        else if (k == 1) made = schema_own(c, json_incref(json_array_get(n.any, 0)));
        else made = schema_own(c, json_pack("{s:O}", "anyOf", n.any));
    }
    json_decref(n.any);
    return made;
}

static json_t *negate(struct sctx *c, json_t *s, int depth)
{
    if (c->b->status != MB_OK || depth > NEGATE_MAX_DEPTH) return NULL;
    if (json_is_boolean(s)) return schema_own(c, json_boolean(!json_is_true(s)));
    for (size_t i = 0; i < c->n_negations; i++)
        if (c->negations[i].schema == s) return c->negations[i].negated;
    json_t *made = make(c, s, depth);
    void *p = build_grow(c->b, c->negations, c->n_negations, &c->cap_negations, sizeof *c->negations);
    if (!p) return NULL;
    c->negations = p;
    c->negations[c->n_negations].schema = s;
    c->negations[c->n_negations++].negated = made;
    return made;
}

json_t *schema_negate(struct sctx *c, json_t *schema)
{
    return negate(c, schema, 0);
}
