/* schema_disjoint.c: can two schemas hold for one value? Only a proof counts: false means "perhaps".
 *
 * Proofs: no type in common; a list of values of which none satisfies the other; one property that both require, with
 * disjoint schemas (the usual discriminator); a property that one requires and the other, closed, does not know. */
#include <string.h>

#include "grammar/schema_int.h"

enum { DISJOINT_MAX_DEPTH = 6 };

static int types_of_values(const json_t *list)
{
    int bits = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (json_is_number(v) || json_bigint_text(v)) bits |= T_INT | T_FRACTION;
        else if (json_is_string(v)) bits |= T_STRING;
        else if (json_is_boolean(v)) bits |= T_BOOL;
        else bits |= json_is_null(v) ? T_NULL : json_is_object(v) ? T_OBJECT : T_ARRAY;
    }
    return bits;
}

int schema_possible_types(struct sctx *c, json_t *s, int depth)
{
    if (json_is_boolean(s)) return json_is_true(s) ? T_ALL : 0;
    int types = T_ALL;
    json_t *k;
    if (depth > DISJOINT_MAX_DEPTH || c->b->status != MB_OK) return T_ALL;
    if ((k = json_object_get(s, "type"))) types &= schema_types(k);
    if ((k = json_object_get(s, "enum"))) types &= types_of_values(k);
    if ((k = json_object_get(s, "const"))) types &= types_of_values(schema_own(c, json_pack("[O]", k)));
    if ((k = schema_ref_target(c, s))) types &= schema_possible_types(c, k, depth + 1);
    k = json_object_get(s, "allOf");
    for (size_t i = 0; i < json_array_size(k); i++) types &= schema_possible_types(c, json_array_get(k, i), depth + 1);
    static const char *const unions[] = { "anyOf", "oneOf" };
    for (int u = 0; u < 2; u++) {
        if (!(k = json_object_get(s, unions[u]))) continue;
        int any = 0;
        for (size_t i = 0; i < json_array_size(k); i++) any |= schema_possible_types(c, json_array_get(k, i), depth + 1);
        types &= any;
    }
    return types;
}

/* A list of all values that satisfy s at most; NULL: not known. */
static json_t *values_of(struct sctx *c, json_t *s, int depth)
{
    json_t *k;
    if (depth > DISJOINT_MAX_DEPTH || !json_is_object(s)) return NULL;
    if ((k = json_object_get(s, "const"))) return schema_own(c, json_pack("[O]", k));
    if ((k = json_object_get(s, "enum"))) return k;
    if ((k = schema_ref_target(c, s))) return values_of(c, k, depth + 1);
    return NULL;
}

static bool none_valid(struct sctx *c, const json_t *list, json_t *s)
{
    bool none = true, before = c->formats_unknown;
    c->formats_unknown = true;
    for (size_t i = 0; i < json_array_size(list) && none; i++) none = schema_excludes(c, s, json_array_get(list, i));
    c->formats_unknown = before;
    return none && c->b->status == MB_OK;
}

/* The schema that speaks of an object's properties, through plain references. */
static json_t *object_part(struct sctx *c, json_t *s)
{
    for (int i = 0; i < DISJOINT_MAX_DEPTH && json_is_object(s) && !json_object_get(s, "properties"); i++) {
        json_t *target = schema_ref_target(c, s);
        if (!target) break;
        s = target;
    }
    return s;
}

static bool requires(const json_t *s, const char *key, size_t len)
{
    const json_t *list = json_object_get(s, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *k = json_array_get(list, i);
        if (json_string_length(k) == len && !memcmp(json_string_value(k), key, len)) return true;
    }
    return false;
}

static bool forbids(const json_t *s, const char *key, size_t len)
{
    const json_t *known = object_get(json_object_get(s, "properties"), key, len);
    if (known) return json_is_false(known);
    return json_is_false(json_object_get(s, "additionalProperties")) && !json_object_get(s, "patternProperties");
}

static bool objects_disjoint(struct sctx *c, json_t *x, json_t *y, int depth)
{
    x = object_part(c, x);
    y = object_part(c, y);
    const json_t *list = json_object_get(x, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *key = json_string_value(json_array_get(list, i));
        size_t len = json_string_length(json_array_get(list, i));
        if (forbids(y, key, len)) return true;
        json_t *a = object_get(json_object_get(x, "properties"), key, len);
        json_t *b = object_get(json_object_get(y, "properties"), key, len);
        if (a && b && requires(y, key, len) && schema_disjoint(c, a, b, T_ALL, depth + 1)) return true;
    }
    list = json_object_get(y, "required");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (forbids(x, json_string_value(json_array_get(list, i)), json_string_length(json_array_get(list, i)))) return true;
    return false;
}

bool schema_disjoint(struct sctx *c, json_t *x, json_t *y, int types, int depth)
{
    if (c->b->status != MB_OK || depth > DISJOINT_MAX_DEPTH || x == y) return false;
    int common = types & schema_possible_types(c, x, 0) & schema_possible_types(c, y, 0);
    if (!common) return true;
    json_t *values = values_of(c, x, 0);
    if (values && none_valid(c, values, y)) return true;
    values = values_of(c, y, 0);
    if (values && none_valid(c, values, x)) return true;
    return common == T_OBJECT && objects_disjoint(c, x, y, depth);
}
