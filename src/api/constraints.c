/* constraints.c: structured output in a request (spec/api.md section 11): response_format, guided_*, structured_outputs and the
 * format object of other dialects become the one constraint of the waist. Two of them are a 400, for which one wins is not
 * for us to guess. guided_* and structured_outputs are strict by nature; a json_schema says so itself. Whether a schema or an
 * expression is right is said by the grammar engine, with its path. */
#include <string.h>

#include "api/api_int.h"

static mb_status take(struct api_request *r, enum gen_constraint_kind kind, const char *text, bool strict, const char *field,
                      mb_error *err)
{
    struct gen_constraint *c = &r->gen.constraint;
    if (c->kind != CONSTRAINT_NONE && strcmp(c->field, field) == 0)
        return mb_fail_at(err, MB_INVALID, field, "%s has several kinds; a request can have one constraint", field);
    if (c->kind != CONSTRAINT_NONE)
        return mb_fail_at(err, MB_INVALID, field, "%s and %s are both given; a request can have one constraint", c->field, field);
    *c = (struct gen_constraint){ .kind = kind, .text = text, .strict = strict, .field = field };
    return MB_OK;
}

static mb_status take_string(struct api_request *r, enum gen_constraint_kind kind, const json_t *v, const char *field, mb_error *err)
{
    const char *text;
    MB_TRY(text_plain(v, field, &text, err));
    return take(r, kind, text, true, field, err);
}

/* A schema as an object, true or false, or the text of one. */
static mb_status take_schema(struct api_request *r, const json_t *v, bool strict, const char *field, mb_error *err)
{
    const char *text;
    if (json_is_text(v)) return take_string(r, CONSTRAINT_JSON_SCHEMA, v, field, err);
    if (!json_is_object(v) && !json_is_boolean(v))
        return mb_fail_at(err, MB_INVALID, field, "the schema of %s must be of type dict", field);
    MB_TRY(take(r, CONSTRAINT_JSON_SCHEMA, NULL, strict, field, err));
    MB_TRY(field_text(&r->constraint, v, &text, err));
    r->gen.constraint.text = text;
    return MB_OK;
}

static mb_status take_choice(struct api_request *r, const json_t *v, const char *field, mb_error *err)
{
    const char *text;
    if (!json_is_array(v) || json_array_size(v) == 0)
        return mb_fail_at(err, MB_INVALID, field, "%s must be a non-empty list of strings", field);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_text(json_array_get(v, i)))
            return mb_fail_at(err, MB_INVALID, field, "%s must be a non-empty list of strings", field);
    MB_TRY(take(r, CONSTRAINT_CHOICE, NULL, true, field, err));
    MB_TRY(field_text(&r->constraint, v, &text, err));
    r->gen.constraint.text = text;
    return MB_OK;
}

static mb_status take_kind(struct api_request *r, enum gen_constraint_kind kind, const json_t *v, const char *field, mb_error *err)
{
    if (kind == CONSTRAINT_JSON_SCHEMA) return take_schema(r, v, true, field, err);
    if (kind == CONSTRAINT_CHOICE) return take_choice(r, v, field, err);
    return take_string(r, kind, v, field, err);
}

mb_status common_format(struct api_request *r, const json_t *format, const char *name, mb_error *err)
{
    if (!format || json_is_null(format)) return MB_OK;
    const char *type = json_string_value(json_object_get(format, "type"));
    bool strict = false;
    if (!type) return mb_fail_at(err, MB_INVALID, name, "%s must be an object with a type", name);
    if (strcmp(type, "text") == 0) return MB_OK;
    const json_t *holder = field_get(format, "json_schema");
    if (!json_is_object(holder)) holder = format;
    const json_t *schema = field_get(holder, "schema");
    if (strcmp(type, "json_object") == 0)
        return schema ? take_schema(r, schema, false, name, err) : take(r, CONSTRAINT_JSON_OBJECT, NULL, false, name, err);
    if (strcmp(type, "json_schema") != 0)
        return mb_fail_at(err, MB_INVALID, name, "%s.type must be text, json_object or json_schema", name);
    if (!schema) return mb_fail_at(err, MB_INVALID, name, "%s has no schema", name);
    MB_TRY(field_bool(holder, "strict", &strict, err));
    return take_schema(r, schema, strict, name, err);
}

static mb_status structured_outputs(struct api_request *r, const json_t *v, mb_error *err)
{
    static const char field[] = "structured_outputs";
    static const struct { const char *key; enum gen_constraint_kind kind; } rows[] = {
        { "json", CONSTRAINT_JSON_SCHEMA }, { "regex", CONSTRAINT_REGEX }, { "choice", CONSTRAINT_CHOICE },
        { "grammar", CONSTRAINT_GRAMMAR },
    };
    bool object = false;
    if (!v) return MB_OK;
    if (!json_is_object(v)) return field_type_error(field, "dict", err);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const json_t *x = field_get(v, rows[i].key);
        if (x) MB_TRY(take_kind(r, rows[i].kind, x, field, err));
    }
    MB_TRY(field_bool(v, "json_object", &object, err));
    if (object) MB_TRY(take(r, CONSTRAINT_JSON_OBJECT, NULL, true, field, err));
    if (r->gen.constraint.kind == CONSTRAINT_NONE)
        return mb_fail_at(err, MB_INVALID, field, "structured_outputs must have one of json, regex, choice, grammar, json_object");
    return MB_OK;
}

mb_status common_constraints(struct api_request *r, const json_t *body, mb_error *err)
{
    static const struct { const char *field; enum gen_constraint_kind kind; } rows[] = {
        { "guided_json", CONSTRAINT_JSON_SCHEMA }, { "guided_regex", CONSTRAINT_REGEX },
        { "guided_choice", CONSTRAINT_CHOICE }, { "guided_grammar", CONSTRAINT_GRAMMAR },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const json_t *v = field_get(body, rows[i].field);
        if (v) MB_TRY(take_kind(r, rows[i].kind, v, rows[i].field, err));
    }
    MB_TRY(structured_outputs(r, field_get(body, "structured_outputs"), err));
    return common_format(r, field_get(body, "response_format"), "response_format", err);
}
