/* errors.c: error bodies: the OpenAI form (spec/api.md section 2), or what the dialect's row says. */
#include "api/api_int.h"
#include "base/errors.h"

static void member(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, ", \"%s\": ", name);
    if (value) json_write_string(out, value, str_of(value).len);
    else buf_append_str(out, "null");
}

static void openai_body(struct buf *out, int http_status, const char *type, const char *code, const char *param,
                        const char *message)
{
    if (!type) {
        type = http_status == 401 ? "authentication_error" : http_status == 403 ? "permission_error"
             : http_status == 404 ? "not_found_error" : http_status == 429 ? "rate_limit_error"
             : http_status >= 500 ? "server_error" : "invalid_request_error";
    }
    buf_append_str(out, "{\"error\": {\"message\": ");
    json_write_string(out, message, str_of(message).len);
    member(out, "type", type);
    member(out, "param", param);
    member(out, "code", code);
    buf_append_str(out, "}}");
}

void api_error_body(struct buf *out, const struct api_dialect *d, int http_status, const char *type, const char *code,
                    const char *param, const char *message)
{
    if (d && d->error_body) d->error_body(out, http_status, type, code, param, message);
    else openai_body(out, http_status, type, code, param, message);
}

int api_error_body_of(struct buf *out, const struct api_dialect *d, const mb_error *e)
{
    const struct error_row *row = error_row_get(e->code);
    api_error_body(out, d, row->http_status, row->http_type, row->http_code, e->at, e->text);
    return row->http_status;
}
