/* api_int.h: what the dialects share: fields, ids, error forms. null is absent everywhere (Q7). */
#ifndef API_API_INT_H
#define API_API_INT_H

#include "api/api.h"

extern const struct api_renderer openai_renderer;

/* The value of a field, NULL when absent or null. */
json_t *field_get(const json_t *obj, const char *name);
mb_status field_type_error(const char *name, const char *type, mb_error *err); /* "<name> must be of type <type>" */
mb_status field_bool(const json_t *obj, const char *name, bool *out, mb_error *err);
/* An integer in [min, max]; *out is left alone when absent. Texts of Q6. */
mb_status field_int(const json_t *obj, const char *name, int64_t min, int64_t max, int64_t *out, mb_error *err);
/* A string that goes on as a C string: without NUL, borrowed from v. The second: of a field; *out is left alone when absent. */
mb_status text_plain(const json_t *v, const char *name, const char **out, mb_error *err);
mb_status field_str(const json_t *obj, const char *name, const char **out, mb_error *err);
/* Write v into b, compact; *text points into b. */
mb_status field_text(struct buf *b, const json_t *v, const char **text, mb_error *err);

/* All the fields that chat and completions share. */
mb_status common_compile(struct api_request *r, const json_t *body, mb_error *err);
/* Parts of it that other dialects take: sampling, hlg and adapter (API-011); then one by one. */
mb_status common_quality(struct api_request *r, const json_t *body, mb_error *err);
mb_status common_adapter(const json_t *body, const char **out, mb_error *err);
mb_status common_token_limit(struct api_request *r, const json_t *body, const char *name, int64_t min, mb_error *err);
mb_status common_stops(struct api_request *r, const json_t *body, const char *name, mb_error *err);
mb_status common_logit_bias(struct api_request *r, const json_t *body, mb_error *err);
/* Structured output: guided_*, structured_outputs and response_format; a format object (value of field `name`, may be NULL):
 * {"type": "text" | "json_object" | "json_schema"}, a schema in "json_schema": {"schema", "strict"} or flat beside type. */
mb_status common_constraints(struct api_request *r, const json_t *body, mb_error *err);
mb_status common_format(struct api_request *r, const json_t *format, const char *name, mb_error *err);
/* One more function for the list of tools that begins with "[": {"type", "function": {"name", "description", "parameters",
 * "strict"}}, of a tool whose members stand in it flat, the schema under schema_key. */
void common_put_function(struct buf *list, const json_t *tool, struct str name, const char *schema_key);
/* tool_choice "allowed_tools": which of the tools are there for a request. Each is asked about by the name that the model sees; then
 * the check: a function that is allowed and that was not asked about is none of the tools, a 400 with its name. Entries of other types
 * than function allow nothing, as such tools are left out. list NULL: all are allowed. */
struct allowed_tools {
    const json_t *list;
    bool *found; /* [entries], in the request's arena */
};
mb_status common_allowed_init(struct allowed_tools *a, struct api_request *r, const json_t *list, mb_error *err);
bool common_allowed(struct allowed_tools *a, const char *shown);
mb_status common_allowed_check(const struct allowed_tools *a, mb_error *err);
/* Does this string hold a JSON object, or nothing? *why says why it does not; no text: it is JSON of another kind. */
bool common_holds_object(const json_t *text, mb_error *why);
/* Thinking: the effort (a value of field `name`, may be NULL) first, then what overrides it (API-132). */
mb_status common_effort(struct api_request *r, const json_t *effort, const char *name, mb_error *err);
mb_status common_template_kwargs(struct api_request *r, const json_t *body, mb_error *err);

/* prefix and 28 random hexadecimal digits. */
void api_make_id(char *out, size_t size, const char *prefix);
/* "serial" or "batched" (API-331). */
const char *api_lane(const struct engine_client *client);

/* usage.fill (API-180, API-333): counts of all choices, appended behind other members; nothing when it is switched off. */
void api_add_fill(struct gen_fill_counts *sum, const struct gen_fill_counts *c);
void api_put_fill(struct buf *out, const struct gen_fill_counts *c);

#endif
