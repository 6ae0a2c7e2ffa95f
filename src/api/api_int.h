/* api_int.h: field helpers that the OpenAI dialects share. null is absent everywhere (Q7). */
#ifndef API_API_INT_H
#define API_API_INT_H

#include "api/api.h"

/* The value of a field, NULL when absent or null. */
json_t *field_get(const json_t *obj, const char *name);
mb_status field_type_error(const char *name, const char *type, mb_error *err); /* "<name> must be of type <type>" */
mb_status field_bool(const json_t *obj, const char *name, bool *out, mb_error *err);
/* An integer in [min, max]; *out is left alone when absent. Texts of Q6. */
mb_status field_int(const json_t *obj, const char *name, int64_t min, int64_t max, int64_t *out, mb_error *err);
/* Fields that both dialects take. */
mb_status common_compile(struct api_request *r, const json_t *body, mb_error *err);
/* Write v into b, compact; *text points into b. */
mb_status field_text(struct buf *b, const json_t *v, const char **text, mb_error *err);

#endif
