/* values.c: the tools of a request, and what the schema of an argument makes of its text (API-146, B-056): a string stays a
 * string whatever it looks like; a number, a truth value, null, an object or an array is read when the schema allows one.
 * Only the type words are looked at, through anyOf, oneOf, allOf, enum, const and local $ref. */
#include <string.h>

#include "base/mem.h"
#include "chat/tools/tools_int.h"

#define SCHEMA_DEPTH 16
#define SCHEMA_MAX_VISITS 4096 /* of one question; a schema that refers to itself would ask for ever */

/* A walk over a schema and what it refers to. */
struct schema_walk {
    const json_t *root;
    int n_visits;
};

/* --- tools --- */
static mb_status take_tool(struct tool *t, const json_t *item, size_t i, mb_error *err)
{
    const json_t *fn = json_object_get(item, "function");
    if (!json_is_object(fn)) fn = item;
    const json_t *name = json_object_get(fn, "name"), *parameters = json_object_get(fn, "parameters");
    if (!json_is_text(name) || strlen(json_string_value(name)) != json_string_length(name) || !json_string_length(name))
        return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].function.name must be of type str", i);
    if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
        return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].function.parameters must be of type dict", i);
    t->name = json_string_value(name);
    t->parameters = json_object_size(parameters) ? parameters : NULL;
    t->strict = json_is_true(json_object_get(fn, "strict"));
    return MB_OK;
}

mb_status tool_set_open(struct tool_set *out, const char *json, mb_error *err)
{
    memset(out, 0, sizeof *out);
    MB_TRY(json_read(&out->root, json, strlen(json), 0, err));
    size_t n = json_array_size(out->root);
    mb_status st = MB_OK;
    if (!json_is_array(out->root)) st = mb_fail_at(err, MB_INVALID, "tools", "tools must be of type list");
    if (st == MB_OK && !(out->tools = mb_calloc(n + 1, sizeof *out->tools))) st = mb_fail(err, MB_NO_MEMORY, "no memory for tools");
    for (; st == MB_OK && out->n < n; out->n++)
        MB_TRY_GOTO(st, take_tool(&out->tools[out->n], json_array_get(out->root, out->n), out->n, err), failed);
    if (st == MB_OK) return MB_OK;
failed:
    tool_set_close(out);
    return st;
}

void tool_set_close(struct tool_set *s)
{
    json_decref(s->root);
    mb_free(s->tools);
    memset(s, 0, sizeof *s);
}

const struct tool *tool_set_find(const struct tool_set *s, const char *name, size_t len)
{
    for (size_t i = 0; s && i < s->n; i++)
        if (strlen(s->tools[i].name) == len && memcmp(s->tools[i].name, name, len) == 0) return &s->tools[i];
    return NULL;
}

/* --- types --- */
const json_t *argument_ref(const json_t *root, const char *ref)
{
    char key[256];
    if (ref[0] != '#') return NULL;
    for (ref++; *ref == '/' && root; ) {
        size_t n = 0;
        for (ref++; *ref && *ref != '/' && n + 1 < sizeof key; ref++) {
            if (ref[0] == '~' && (ref[1] == '0' || ref[1] == '1')) key[n++] = *++ref == '0' ? '~' : '/';
            else key[n++] = *ref;
        }
        key[n] = '\0';
        if (json_is_array(root)) {
            char *end;
            unsigned long i = strtoul(key, &end, 10);
            root = *end ? NULL : json_array_get(root, i);
        } else {
            root = json_object_get(root, key);
        }
    }
    return *ref ? NULL : root;
}

static unsigned type_of_word(const char *w)
{
    static const struct { const char *word; unsigned type; } rows[] = {
        { "string", TYPE_STRING }, { "integer", TYPE_INTEGER }, { "number", TYPE_NUMBER | TYPE_INTEGER },
        { "boolean", TYPE_BOOLEAN }, { "null", TYPE_NULL }, { "object", TYPE_OBJECT }, { "array", TYPE_ARRAY },
    };
    for (size_t i = 0; w && i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].word, w) == 0) return rows[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *v)
{
    if (json_bigint_text(v)) return TYPE_INTEGER;
    switch (json_typeof(v)) {
    case JSON_STRING: return TYPE_STRING;
    case JSON_INTEGER: return TYPE_INTEGER;
    case JSON_REAL: return TYPE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return TYPE_BOOLEAN;
    case JSON_NULL: return TYPE_NULL;
    case JSON_OBJECT: return TYPE_OBJECT;
    default: return TYPE_ARRAY;
    }
}

static unsigned types_at(const json_t *schema, struct schema_walk *w, int depth);

static unsigned union_of(const json_t *list, struct schema_walk *w, int depth)
{
    unsigned t = 0;
    for (size_t i = 0; i < json_array_size(list) && t != TYPE_ANY; i++) t |= types_at(json_array_get(list, i), w, depth);
    return t;
}

static unsigned types_at(const json_t *schema, struct schema_walk *w, int depth)
{
    unsigned t = TYPE_ANY, of_values = 0;
    if (!json_is_object(schema) || depth > SCHEMA_DEPTH || ++w->n_visits > SCHEMA_MAX_VISITS) return TYPE_ANY;
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum");
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    if (json_is_string(type)) t &= type_of_word(json_string_value(type));
    if (json_is_array(type)) {
        unsigned u = 0;
        for (size_t i = 0; i < json_array_size(type); i++) u |= type_of_word(json_string_value(json_array_get(type, i)));
        t &= u;
    }
    for (size_t i = 0; i < json_array_size(list); i++) of_values |= type_of_value(json_array_get(list, i));
    if (json_object_get(schema, "const")) of_values |= type_of_value(json_object_get(schema, "const"));
    if (of_values) t &= of_values;
    if (ref) t &= types_at(argument_ref(w->root, ref), w, depth + 1);
    list = json_object_get(schema, "anyOf");
    if (json_array_size(list)) t &= union_of(list, w, depth + 1);
    list = json_object_get(schema, "oneOf");
    if (json_array_size(list)) t &= union_of(list, w, depth + 1);
    list = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(list); i++) t &= types_at(json_array_get(list, i), w, depth + 1);
    return t ? t : TYPE_ANY; /* a schema that allows nothing says nothing */
}

unsigned argument_types(const json_t *schema, const json_t *root)
{
    struct schema_walk w = { .root = root };
    return types_at(schema, &w, 0);
}

const json_t *argument_target(const json_t *schema, const json_t *root)
{
    for (int i = 0; i < SCHEMA_DEPTH && json_is_object(schema); i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (!ref || json_object_get(schema, "enum") || json_object_get(schema, "const")) break;
        schema = argument_ref(root, ref);
    }
    return schema;
}

const json_t *argument_schema(const struct tool *t, const char *key)
{
    if (!t || !t->parameters) return NULL;
    const json_t *s = json_object_get(json_object_get(t->parameters, "properties"), key);
    if (s) return s;
    s = json_object_get(t->parameters, "additionalProperties");
    return json_is_object(s) ? s : NULL;
}

/* --- values --- */
static bool in_enums(const json_t *schema, struct schema_walk *w, const json_t *v, int depth)
{
    if (!json_is_object(schema) || depth > SCHEMA_DEPTH || ++w->n_visits > SCHEMA_MAX_VISITS) return false;
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    static const char *const lists[] = { "anyOf", "oneOf", "allOf" };
    const json_t *list = json_object_get(schema, "enum");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), v)) return true;
    if (json_object_get(schema, "const") && json_equal(json_object_get(schema, "const"), v)) return true;
    if (ref && in_enums(argument_ref(w->root, ref), w, v, depth + 1)) return true;
    for (size_t k = 0; k < 3; k++) {
        list = json_object_get(schema, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (in_enums(json_array_get(list, i), w, v, depth + 1)) return true;
    }
    return false;
}

/* A member of an enum that came in quotes of its own (B-056): the member. */
static json_t *unquoted(const json_t *schema, const json_t *root, struct str text)
{
    struct str s = str_trim(text);
    if (s.len < 2 || s.ptr[0] != '"' || s.ptr[s.len - 1] != '"') return NULL;
    struct schema_walk w = { .root = root };
    json_t *v = json_part(s);
    if (json_is_text(v) && in_enums(schema, &w, v, 0)) return v;
    json_decref(v);
    return NULL;
}

static json_t *string_value(const json_t *schema, const json_t *root, struct str text)
{
    json_t *v = unquoted(schema, root, text);
    if (v) return v;
    v = json_stringn(text.ptr, text.len);
    if (v) return v;
    struct buf b; /* not UTF-8 (torn by the end of the answer): replacement characters */
    buf_init(&b, 0);
    json_write_string(&b, text.ptr, text.len);
    if (!b.failed) v = json_part((struct str){ b.data, b.len });
    buf_free(&b);
    return v;
}

static json_t *python_word(struct str s)
{
    if (str_eq(s, STR_LIT("True"))) return json_true();
    if (str_eq(s, STR_LIT("False"))) return json_false();
    return str_eq(s, STR_LIT("None")) ? json_null() : NULL;
}

/* Text as a value of one of these types but string; NULL: it is none. */
static json_t *read_as(struct str text, unsigned types)
{
    struct str s = str_trim(text);
    json_t *v = s.len ? json_part(s) : NULL;
    if (!v) v = python_word(s);
    if (v && !json_is_text(v)) {
        unsigned t = type_of_value(v);
        if (t & types) return v;
    }
    json_decref(v);
    return NULL;
}

bool value_is_string(const struct tool *t, const char *key)
{
    const json_t *schema = argument_schema(t, key);
    return !schema || argument_types(schema, t->parameters) == TYPE_STRING;
}

json_t *value_from_text(const struct tool *t, const char *key, struct str text)
{
    const json_t *schema = argument_schema(t, key), *root = t ? t->parameters : NULL;
    json_t *v = schema ? read_as(text, argument_types(schema, root) & ~(unsigned)TYPE_STRING) : NULL;
    return v ? v : string_value(schema, root, text);
}

static json_t *as_string(const json_t *v)
{
    struct buf b;
    struct json_write_opts opts = { 0 };
    buf_init(&b, 0);
    json_write(&b, v, &opts);
    json_t *s = b.failed ? NULL : json_stringn(b.data, b.len);
    buf_free(&b);
    return s;
}

json_t *value_fit(const struct tool *t, const char *key, json_t *v)
{
    const json_t *schema = argument_schema(t, key), *root = t ? t->parameters : NULL;
    if (!schema) return json_incref(v);
    unsigned types = argument_types(schema, root), is = type_of_value(v);
    json_t *fit = NULL;
    if (json_is_text(v)) {
        struct str s = { json_string_value(v), json_string_length(v) };
        fit = types & TYPE_STRING ? unquoted(schema, root, s) : read_as(s, types);
    } else if (!(types & is) && types == TYPE_STRING && is != TYPE_NULL) {
        fit = as_string(v);
    }
    return fit ? fit : json_incref(v);
}
