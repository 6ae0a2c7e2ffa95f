/* schema_keywords.c: the keywords, and the check of a schema before anything is built from it.
 *
 * One table: what a keyword's value must be (a wrong one is the client's mistake: MB_INVALID with keyword and path),
 * whether it is enforced, and the words for docs/structured-output.md. The check walks every subschema once, compiles
 * nothing, and writes down where each lies and which base URI it has.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "grammar/schema_int.h"

/* V_NAME, V_DEFS: a place or schemas to refer to; they limit nothing by themselves. */
enum value_kind { V_ANY, V_SCHEMA, V_SCHEMAS, V_SCHEMA_MAP, V_PATTERN_MAP, V_NUMBER, V_POSITIVE, V_COUNT, V_TEXT, V_PATTERN,
                  V_BOOL, V_TEXTS, V_TYPE, V_ENUM, V_TEXTS_MAP, V_DEPENDENCIES, V_REFUSED, V_NAME, V_DEFS };

struct keyword {
    struct grammar_keyword doc;
    enum value_kind kind;
};

static const struct keyword keywords[] = {
    { { "type", "enforced", "a name or a list of names" }, V_TYPE },
    { { "enum", "enforced", "strings are written with literal UTF-8; 1.0 may also be written 1" }, V_ENUM },
    { { "const", "enforced", "as enum" }, V_ANY },
    { { "properties", "enforced", "keys come in the order of the schema, keys it does not name come last" }, V_SCHEMA_MAP },
    { { "required", "enforced", "" }, V_TEXTS },
    { { "additionalProperties", "enforced", "a key may come twice among the additional ones" }, V_SCHEMA },
    { { "patternProperties", "enforced", "at most 4 patterns at one object" }, V_PATTERN_MAP },
    { { "propertyNames", "partly", "when the names are described by pattern, lengths, format, enum, const" }, V_SCHEMA },
    { { "minProperties", "partly", "of the additional keys at most one counts, because they may repeat" }, V_COUNT },
    { { "maxProperties", "enforced", "" }, V_COUNT },
    { { "dependentRequired", "enforced", "" }, V_TEXTS_MAP },
    { { "dependentSchemas", "enforced", "" }, V_SCHEMA_MAP },
    { { "dependencies", "enforced", "the older form of the two above" }, V_DEPENDENCIES },
    { { "unevaluatedProperties", "enforced", "" }, V_SCHEMA },
    { { "prefixItems", "enforced", "" }, V_SCHEMAS },
    { { "items", "enforced", "the array form of older drafts is refused: prefixItems" }, V_SCHEMA },
    { { "minItems", "enforced", "" }, V_COUNT },
    { { "maxItems", "enforced", "" }, V_COUNT },
    { { "contains", "partly", "one at a place, without prefixItems; with counts of items up to 64" }, V_SCHEMA },
    { { "minContains", "partly", "as contains, up to 64" }, V_COUNT },
    { { "maxContains", "partly", "as contains, when the opposite of its schema can be built" }, V_COUNT },
    { { "unevaluatedItems", "partly", "without contains beside it" }, V_SCHEMA },
    { { "uniqueItems", "partly", "for at most one item, or items out of an enum of up to 8" }, V_BOOL },
    { { "minLength", "enforced", "" }, V_COUNT },
    { { "maxLength", "enforced", "" }, V_COUNT },
    { { "pattern", "enforced", "ECMA-262 without look-around, back-references and word boundaries (refused)" }, V_PATTERN },
    { { "format", "enforced", "the names below; others are annotations" }, V_TEXT },
    { { "minimum", "enforced", "numbers with bounds are written without exponent" }, V_NUMBER },
    { { "maximum", "enforced", "" }, V_NUMBER },
    { { "exclusiveMinimum", "enforced", "" }, V_NUMBER },
    { { "exclusiveMaximum", "enforced", "" }, V_NUMBER },
    { { "multipleOf", "partly", "when its digits, without the point, are at most 5000" }, V_POSITIVE },
    { { "anyOf", "enforced", "" }, V_SCHEMAS },
    { { "allOf", "enforced", "merged" }, V_SCHEMAS },
    { { "oneOf", "partly", "when the branches exclude each other or can be made to" }, V_SCHEMAS },
    { { "not", "partly", "when the opposite can be built: types, values, bounds, lengths, patterns, required, and their combinations" }, V_SCHEMA },
    { { "if", "partly", "as not" }, V_SCHEMA },
    { { "then", "partly", "with if" }, V_SCHEMA },
    { { "else", "partly", "with if" }, V_SCHEMA },
    { { "$ref", "enforced", "inside the document, also recursive; remote references are never fetched" }, V_TEXT },
    { { "$defs", "enforced", "" }, V_DEFS },
    { { "definitions", "enforced", "the older name of $defs" }, V_DEFS },
    { { "$id", "enforced", "for resolving references" }, V_NAME },
    { { "$anchor", "enforced", "" }, V_NAME },
    { { "$dynamicAnchor", "partly", "as $anchor" }, V_NAME },
    { { "$dynamicRef", "partly", "as $ref, when only one place has that anchor" }, V_TEXT },
    { { "$recursiveRef", "refused", "of an older draft" }, V_REFUSED },
    { { "additionalItems", "annotation", "of an older draft: items" }, V_ANY },
    { { "contentEncoding", "annotation", "" }, V_ANY },
    { { "contentMediaType", "annotation", "" }, V_ANY },
    { { "contentSchema", "annotation", "" }, V_ANY },
    { { "$schema", "annotation", "" }, V_ANY },
    { { "$vocabulary", "annotation", "" }, V_ANY },
    { { "$comment", "annotation", "" }, V_ANY },
    { { "title", "annotation", "" }, V_ANY },
    { { "description", "annotation", "" }, V_ANY },
    { { "default", "annotation", "" }, V_ANY },
    { { "examples", "annotation", "" }, V_ANY },
    { { "deprecated", "annotation", "" }, V_ANY },
    { { "readOnly", "annotation", "" }, V_ANY },
    { { "writeOnly", "annotation", "" }, V_ANY },
};
enum { N_KEYWORDS = sizeof keywords / sizeof *keywords };

const struct grammar_keyword *grammar_keywords(size_t *n_rows)
{
    static struct grammar_keyword docs[N_KEYWORDS];
    for (size_t i = 0; i < N_KEYWORDS; i++) docs[i] = keywords[i].doc;
    *n_rows = N_KEYWORDS;
    return docs;
}

static const struct keyword *keyword_find(const char *name)
{
    for (size_t i = 0; i < N_KEYWORDS; i++)
        if (!strcmp(keywords[i].doc.name, name)) return &keywords[i];
    return NULL;
}

bool grammar_keyword_limits(const char *name, const json_t *value)
{
    const struct keyword *k = keyword_find(name);
    if (!k || k->kind == V_NAME || k->kind == V_DEFS || !strcmp(k->doc.status, "annotation")) return false;
    return strcmp(name, "format") != 0 || !json_is_string(value) || format_pattern(json_string_value(value)) != NULL;
}

/* --- places --- */

static size_t pointer_hash(const void *p)
{
    uint64_t h = (uint64_t)(uintptr_t)p * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 32);
}

static bool places_grow(struct sctx *c)
{
    size_t want = c->cap_places ? c->cap_places * 2 : 64;
    struct place *t = build_alloc(c->b, want, sizeof *t);
    if (!t) return false;
    for (size_t i = 0; i < c->cap_places; i++) {
        if (!c->places[i].schema) continue;
        size_t h = pointer_hash(c->places[i].schema);
        while (t[h & (want - 1)].schema) h++;
        t[h & (want - 1)] = c->places[i];
    }
    c->places = t;
    c->cap_places = want;
    return true;
}

static void place_add(struct sctx *c, const json_t *schema, const char *path, const char *base)
{
    if (c->n_places * 2 >= c->cap_places && !places_grow(c)) return;
    size_t h = pointer_hash(schema);
    while (c->places[h & (c->cap_places - 1)].schema) h++;
    c->places[h & (c->cap_places - 1)] = (struct place){ schema, path, base };
    c->n_places++;
}

const struct place *schema_place(const struct sctx *c, const json_t *schema)
{
    if (!c->cap_places) return NULL;
    for (size_t h = pointer_hash(schema); c->places[h & (c->cap_places - 1)].schema; h++)
        if (c->places[h & (c->cap_places - 1)].schema == schema) return &c->places[h & (c->cap_places - 1)];
    return NULL;
}

const char *schema_path(const struct sctx *c, const json_t *schema)
{
    const struct place *p = schema_place(c, schema);
    return p ? p->path : c->at;
}

/* --- values --- */

static bool is_number(const json_t *v)
{
    return json_is_number(v) || json_bigint_text(v);
}

static bool is_positive(const json_t *v)
{
    const char *big = json_bigint_text(v);
    return big ? big[0] != '-' : json_is_number(v) && json_number_value(v) > 0;
}

/* A count that is not an integer or is negative: -1. Counts beyond all ceilings are taken as such. */
int64_t count_of(const json_t *v)
{
    const char *big = json_bigint_text(v);
    if (big) return big[0] == '-' ? -1 : INT64_MAX;
    if (json_is_integer(v)) return json_integer_value(v);
    double d = json_is_real(v) ? json_real_value(v) : -1;
    return d >= 0 && d == floor(d) ? (d < 9e18 ? (int64_t)d : INT64_MAX) : -1;
}

static const struct { const char *name; int bits; } types[] = {
    { "null", T_NULL }, { "boolean", T_BOOL }, { "object", T_OBJECT }, { "array", T_ARRAY }, { "string", T_STRING },
    { "integer", T_INT }, { "number", T_INT | T_FRACTION }, { "%fraction", T_FRACTION }, /* the last: made by schema_negate.c */
};

static int type_named(const json_t *v)
{
    for (size_t i = 0; json_is_text(v) && i < sizeof types / sizeof *types; i++)
        if (!strcmp(json_string_value(v), types[i].name)) return types[i].bits;
    return 0;
}

int schema_types(const json_t *type)
{
    if (!json_is_array(type)) return type_named(type);
    int bits = 0;
    for (size_t i = 0; i < json_array_size(type); i++) bits |= type_named(json_array_get(type, i));
    return bits;
}

static bool is_type(const json_t *v)
{
    if (!json_is_array(v)) return type_named(v) != 0 && json_string_value(v)[0] != '%';
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!type_named(json_array_get(v, i)) || json_string_value(json_array_get(v, i))[0] == '%') return false;
    return json_array_size(v) > 0;
}

static bool is_texts(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_text(json_array_get(v, i))) return false;
    return json_is_array(v);
}

static bool wrong(struct sctx *c, const char *path, const char *name, const char *want)
{
    build_fail(c->b, MB_INVALID, "%s: %s must be %s", path, name, want);
    return false;
}

/* v lies at `path`, under the keyword `name` of the schema at `of`. */
static bool check_schema(struct sctx *c, json_t *v, const char *of, const char *path, const char *base, const char *name)
{
    if (json_is_boolean(v)) return true;
    if (json_is_array(v) && !strcmp(name, "items"))
        return wrong(c, of, "items", "a schema (a list of schemas is prefixItems since draft 2020-12)");
    return json_is_object(v) ? schema_check(c, v, path, base) : wrong(c, of, name, "a schema: an object, true or false");
}

static const char *sub_path(struct sctx *c, const char *path, const char *name, size_t len)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    buf_append_str(&out, path);
    buf_append_char(&out, '/');
    for (size_t i = 0; i < len; i++) {
        if (name[i] == '~') buf_append_str(&out, "~0");
        else if (name[i] == '/') buf_append_str(&out, "~1");
        else if (name[i]) buf_append_char(&out, name[i]);
    }
    const char *copy = out.failed == MB_OK ? arena_strndup(&c->b->a, out.data, out.len < 300 ? out.len : 300) : NULL;
    buf_free(&out);
    if (!copy) build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
    return copy;
}

static bool check_schemas(struct sctx *c, json_t *v, const char *path, const char *base, const char *name)
{
    if (!json_is_array(v) || !json_array_size(v)) return wrong(c, path, name, "a list of at least one schema");
    const char *list = sub_path(c, path, name, strlen(name));
    for (size_t i = 0; list && i < json_array_size(v); i++) {
        char text[24];
        int len = snprintf(text, sizeof text, "%zu", i);
        const char *p = sub_path(c, list, text, (size_t)len);
        if (!p || !check_schema(c, json_array_get(v, i), path, p, base, name)) return false;
    }
    return list != NULL;
}

static bool check_pattern(struct sctx *c, const char *text, size_t len, const char *path, const char *name)
{
    char *what = arena_printf(&c->b->a, "%s: %s", path, name);
    if (!what) return build_fail(c->b, MB_NO_MEMORY, "no memory for a schema") == MB_OK;
    if (regex_parse(c->b, text, len, FORM_JSON, false, what)) return true;
    /* A right expression that no automaton can do is left to the place that uses it: there a non-strict compile may go
     * on without it. */
    if (c->b->status != MB_UNSUPPORTED) return false;
    c->b->status = MB_OK;
    return true;
}

static bool check_map(struct sctx *c, json_t *v, const char *path, const char *base, const char *name, enum value_kind kind)
{
    if (!json_is_object(v)) return wrong(c, path, name, "an object of schemas");
    const char *map = sub_path(c, path, name, strlen(name));
    for (void *it = json_object_iter(v); map && it; it = json_object_iter_next(v, it)) {
        const char *key = json_object_iter_key(it);
        size_t len = json_object_iter_key_len(it);
        json_t *sub = json_object_iter_value(it);
        const char *p = sub_path(c, map, key, len);
        if (!p) return false;
        if (kind == V_TEXTS_MAP || (kind == V_DEPENDENCIES && json_is_array(sub))) {
            if (!is_texts(sub)) return wrong(c, p, name, "an object of lists of strings");
            continue;
        }
        if (kind == V_PATTERN_MAP && !check_pattern(c, key, len, path, name)) return false;
        if (!check_schema(c, sub, path, p, base, name)) return false;
    }
    return map != NULL;
}

static bool check_value(struct sctx *c, const struct keyword *k, json_t *v, const char *path, const char *base)
{
    const char *name = k->doc.name;
    switch (k->kind) {
    case V_ANY: return true;
    case V_SCHEMA: {
        const char *p = sub_path(c, path, name, strlen(name));
        return p && check_schema(c, v, path, p, base, name);
    }
    case V_SCHEMAS: return check_schemas(c, v, path, base, name);
    case V_DEFS: case V_SCHEMA_MAP: case V_PATTERN_MAP: case V_TEXTS_MAP: case V_DEPENDENCIES:
        return check_map(c, v, path, base, name, k->kind);
    case V_NUMBER: return is_number(v) || wrong(c, path, name, "a number");
    case V_POSITIVE: return is_positive(v) || wrong(c, path, name, "a number above 0");
    case V_COUNT: return count_of(v) >= 0 || wrong(c, path, name, "an integer of at least 0");
    case V_NAME: case V_TEXT: return json_is_text(v) || wrong(c, path, name, "a string");
    case V_PATTERN:
        if (!json_is_text(v)) return wrong(c, path, name, "a string");
        return check_pattern(c, json_string_value(v), json_string_length(v), path, name);
    case V_BOOL: return json_is_boolean(v) || wrong(c, path, name, "true or false");
    case V_TEXTS: return is_texts(v) || wrong(c, path, name, "a list of strings");
    case V_TYPE: return is_type(v) || wrong(c, path, name, "one of null, boolean, object, array, string, integer, number, "
                                            "or a list of them");
    case V_ENUM: return (json_is_array(v) && json_array_size(v)) || wrong(c, path, name, "a list of at least one value");
    case V_REFUSED:
        build_unenforced(c->b, name, path, k->doc.note);
        return c->b->status == MB_OK;
    }
    return true;
}

/* minItems 5 with maxItems 2 is a mistake of its own, worth its own words. */
static bool check_pairs(struct sctx *c, const json_t *s, const char *path)
{
    static const char *const pairs[][2] = { { "minItems", "maxItems" }, { "minLength", "maxLength" },
        { "minProperties", "maxProperties" }, { "minimum", "maximum" }, { "minContains", "maxContains" } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const json_t *lo = json_object_get(s, pairs[i][0]), *hi = json_object_get(s, pairs[i][1]);
        if (!lo || !hi) continue;
        bool bad = i == 3 ? json_is_number(lo) && json_is_number(hi) && json_number_value(lo) > json_number_value(hi)
                          : count_of(lo) > count_of(hi);
        if (!bad) continue;
        build_fail(c->b, MB_INVALID, "%s: %s is above %s: no value can satisfy both", path, pairs[i][0], pairs[i][1]);
        return false;
    }
    return true;
}

static void name_add(struct sctx *c, const char *uri, json_t *schema, bool dynamic)
{
    struct named_place *p = build_grow(c->b, c->names, c->n_names, &c->cap_names, sizeof *p);
    if (!p || !uri) return;
    c->names = p;
    c->names[c->n_names++] = (struct named_place){ uri, schema, dynamic };
}

static const char *add_names(struct sctx *c, json_t *s, const char *base)
{
    const char *id = json_string_value(json_object_get(s, "$id"));
    if (id) {
        base = uri_resolve(c->b, base, id);
        if (base) name_add(c, base, s, false);
    }
    static const char *const keys[] = { "$anchor", "$dynamicAnchor" };
    for (int i = 0; i < 2 && base; i++) {
        const char *anchor = json_string_value(json_object_get(s, keys[i]));
        if (anchor) name_add(c, arena_printf(&c->b->a, "%s#%s", base, anchor), s, i == 1);
    }
    if (!base) build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
    return base;
}

bool schema_check(struct sctx *c, json_t *schema, const char *path, const char *base)
{
    if (c->b->status != MB_OK) return false;
    if (schema_place(c, schema)) return true;
    if (++c->depth > 2 * JSON_MAX_DEPTH) {
        build_fail(c->b, MB_TOO_LARGE, "%s: schemas nested too deeply", path);
        return false;
    }
    base = add_names(c, schema, base);
    place_add(c, schema, path, base);
    for (void *it = json_object_iter(schema); it && c->b->status == MB_OK; it = json_object_iter_next(schema, it)) {
        const char *name = json_object_iter_key(it);
        if (name[0] == '%') {
            wrong(c, path, "a keyword", "one of JSON Schema's: none begins with %");
            return false;
        }
        const struct keyword *k = keyword_find(name);
        c->has_unevaluated |= !strncmp(name, "unevaluated", 11);
        if (k && !check_value(c, k, json_object_iter_value(it), path, base)) return false;
    }
    c->depth--;
    return c->b->status == MB_OK && check_pairs(c, schema, path);
}
