/* openai_common.c: the fields that dialects share (spec/api.md section 3; common_quality is on every protocol, API-011):
 * sampling values through the sampler table, token limits, stop strings, logit_bias, logprobs, streaming options,
 * thinking; and the refusals: a field that asks for something this version cannot do is named in a 400, never ignored.
 * Error texts are those of section 2 and Q6. Unknown fields are ignored (API-007). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_int.h"

json_t *field_get(const json_t *obj, const char *name)
{
    json_t *v = json_object_get(obj, name);
    return v && !json_is_null(v) ? v : NULL;
}

mb_status field_type_error(const char *name, const char *type, mb_error *err)
{
    return mb_fail_at(err, MB_INVALID, name, "%s must be of type %s", name, type);
}

mb_status field_bool(const json_t *obj, const char *name, bool *out, mb_error *err)
{
    const json_t *v = field_get(obj, name);
    if (!v) return MB_OK;
    if (!json_is_boolean(v)) return field_type_error(name, "bool", err);
    *out = json_is_true(v);
    return MB_OK;
}

mb_status text_plain(const json_t *v, const char *name, const char **out, mb_error *err)
{
    if (!json_is_text(v)) return field_type_error(name, "str", err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return mb_fail_at(err, MB_INVALID, name, "%s must not hold a NUL character", name);
    *out = json_string_value(v);
    return MB_OK;
}

mb_status field_str(const json_t *obj, const char *name, const char **out, mb_error *err)
{
    const json_t *v = field_get(obj, name);
    return v ? text_plain(v, name, out, err) : MB_OK;
}

static mb_status too_small(const char *name, int64_t min, mb_error *err)
{
    return mb_fail_at(err, MB_INVALID, name, "%s must be at least %lld", name, (long long)min);
}

static mb_status too_big(const char *name, int64_t max, mb_error *err)
{
    return mb_fail_at(err, MB_INVALID, name, "%s must be at most %lld", name, (long long)max);
}

mb_status field_int(const json_t *obj, const char *name, int64_t min, int64_t max, int64_t *out, mb_error *err)
{
    const json_t *v = field_get(obj, name);
    if (!v) return MB_OK;
    const char *big = json_bigint_text(v);
    if (big) return big[0] == '-' ? too_small(name, min, err) : too_big(name, max, err);
    if (!json_is_integer(v)) return field_type_error(name, "int", err);
    int64_t i = json_integer_value(v);
    if (i < min) return too_small(name, min, err);
    if (i > max) return too_big(name, max, err);
    *out = i;
    return MB_OK;
}

mb_status field_text(struct buf *b, const json_t *v, const char **text, mb_error *err)
{
    struct json_write_opts opts = { 0 };
    buf_clear(b);
    json_write(b, v, &opts);
    MB_TRY(buf_status(b, "request", err));
    *text = b->data;
    return MB_OK;
}

/* --- sampling --- */
static mb_status sampling_value(struct sampler_value *out, const struct sampler_row *row, const json_t *v, mb_error *err)
{
    const char *big = json_bigint_text(v);
    double d = big ? strtod(big, NULL) : json_number_value(v);
    if (!big && !json_is_number(v)) return field_type_error(row->name, row->type == SAMPLER_INT ? "int" : "float", err);
    if (row->type == SAMPLER_INT && !big && !json_is_integer(v)) return field_type_error(row->name, "int", err);
    MB_TRY(sampler_row_check(row, d, big || json_is_integer(v), err));
    struct sampler_value got = { .v = d, .given = true };
    if (json_is_integer(v)) got.exact = (uint64_t)json_integer_value(v);
    if (big && row->type == SAMPLER_INT) got.exact = strtoull(big, NULL, 10); /* a seed from 2^63 up: below the row's maximum */
    *out = got;
    return MB_OK;
}

static mb_status sampling(struct api_request *r, const json_t *body, mb_error *err)
{
    size_t n;
    const struct sampler_row *rows = sampler_rows(&n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = field_get(body, rows[i].name);
        if (v) MB_TRY(sampling_value(sampler_value_at(&r->gen.sampling, &rows[i]), &rows[i], v, err));
    }
    return MB_OK;
}

/* API-071: what the object leaves out is the server's. Numbers are checked whether it is enabled or not. */
static mb_status hlg(struct hlg_values *values, const json_t *body, mb_error *err)
{
    const json_t *o = field_get(body, "hlg");
    if (!o) return MB_OK;
    if (!json_is_object(o)) return field_type_error("hlg", "dict", err);
    const json_t *on = field_get(o, "enabled");
    if (on && !json_is_boolean(on)) return field_type_error(HLG_PREFIX "enabled", "bool", err);
    if (on) values->enabled = (struct sampler_value){ .v = json_is_true(on) ? 1 : 0, .given = true };
    size_t n;
    const struct sampler_row *rows = hlg_rows(&n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = field_get(o, rows[i].name + strlen(HLG_PREFIX));
        if (v) MB_TRY(sampling_value(hlg_value_at(values, &rows[i]), &rows[i], v, err));
    }
    return MB_OK;
}

/* B-032: null is absent, 0 and less are 400, a huge value is cut to the context by the engine. 1e9 is a number that is
 * whole, so it is taken. */
mb_status common_token_limit(struct api_request *r, const json_t *body, const char *name, int64_t min, mb_error *err)
{
    const json_t *v = field_get(body, name);
    if (!v) return MB_OK;
    const char *big = json_bigint_text(v);
    double d = big ? (big[0] == '-' ? -1.0 : 1e18) : json_number_value(v);
    if (!big && !json_is_number(v)) return field_type_error(name, "int", err);
    if (d != floor(d) || !isfinite(d)) return field_type_error(name, "int", err);
    if (d < (double)min) return too_small(name, min, err);
    r->gen.max_tokens = d > INT32_MAX ? INT32_MAX : (int64_t)d;
    return MB_OK;
}

static mb_status limits(struct api_request *r, const json_t *body, mb_error *err)
{
    int64_t min_tokens = 0, n = 1;
    r->gen.max_tokens = -1;
    MB_TRY(common_token_limit(r, body, "max_tokens", 1, err));
    MB_TRY(common_token_limit(r, body, "max_completion_tokens", 1, err)); /* wins (API-044) */
    MB_TRY(field_int(body, "min_tokens", 0, INT32_MAX, &min_tokens, err));
    MB_TRY(field_bool(body, "ignore_eos", &r->gen.ignore_eos, err));
    MB_TRY(field_int(body, "n", 1, API_MAX_CHOICES, &n, err));
    r->gen.min_tokens = (int32_t)min_tokens;
    r->gen.n_choices = (int32_t)n;
    const json_t *best_of = field_get(body, "best_of");
    if (best_of && !(json_is_integer(best_of) && json_integer_value(best_of) == n))
        return mb_fail_at(err, MB_UNSUPPORTED, "best_of", "best_of is not supported; n gives several choices");
    return MB_OK;
}

/* --- stop --- */
static mb_status stop_string(const json_t *v, const char *name, const char **out, mb_error *err)
{
    if (!json_is_text(v)) return mb_fail_at(err, MB_INVALID, name, "%s must be a string or an array of strings", name);
    if (json_string_length(v) == 0) return mb_fail_at(err, MB_INVALID, name, "%s must not hold an empty string", name);
    return text_plain(v, name, out, err);
}

mb_status common_stops(struct api_request *r, const json_t *body, const char *name, mb_error *err)
{
    const json_t *v = field_get(body, name);
    if (!v) return MB_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    const char **p = arena_alloc_array(&r->arena, n + 1, sizeof *p);
    if (!p) return mb_fail(err, MB_NO_MEMORY, "no memory for stop strings");
    for (size_t i = 0; i < n; i++) MB_TRY(stop_string(json_is_array(v) ? json_array_get(v, i) : v, name, &p[i], err));
    r->gen.stops = p;
    r->gen.n_stops = (int32_t)n;
    return MB_OK;
}

/* --- logit_bias (API-024, API-055) --- */
static bool bias_key(const char *key, int32_t *id)
{
    int64_t v = 0;
    size_t n = strlen(key);
    if (n == 0 || n > 10) return false;
    for (size_t i = 0; i < n; i++) {
        if (key[i] < '0' || key[i] > '9') return false;
        v = v * 10 + (key[i] - '0');
    }
    *id = (int32_t)v;
    return v <= INT32_MAX;
}

mb_status common_logit_bias(struct api_request *r, const json_t *body, mb_error *err)
{
    static const char text[] = "logit_bias must be a dict of int to float";
    json_t *v = field_get(body, "logit_bias");
    const char *key;
    json_t *x;
    if (!v) return MB_OK;
    if (!json_is_object(v)) return mb_fail_at(err, MB_INVALID, "logit_bias", "%s", text);
    struct logit_bias *p = arena_alloc_array(&r->arena, json_object_size(v) + 1, sizeof *p);
    int32_t n = 0;
    if (!p) return mb_fail(err, MB_NO_MEMORY, "no memory for logit_bias");
    json_object_foreach(v, key, x) {
        if (!json_is_number(x) || !bias_key(key, &p[n].id)) return mb_fail_at(err, MB_INVALID, "logit_bias", "%s", text);
        double bias = json_number_value(x);
        if (bias > 1e6 || bias < -1e6)
            return mb_fail_at(err, MB_INVALID, "logit_bias", "logit_bias values must be at least -1000000 and at most 1000000");
        p[n++].bias = (float)bias;
    }
    r->gen.bias.p = p;
    r->gen.bias.n = n;
    return MB_OK;
}

/* --- logprobs (section 7) --- */
static mb_status logprobs(struct api_request *r, const json_t *body, mb_error *err)
{
    bool on = false;
    const json_t *v = field_get(body, "top_logprobs");
    int64_t top = -1;
    MB_TRY(field_bool(body, "logprobs", &on, err));
    if (!(v && json_is_integer(v) && json_integer_value(v) == -1))
        MB_TRY(field_int(body, "top_logprobs", 0, API_MAX_TOP_LOGPROBS, &top, err));
    r->n_top = top > 0 ? (int32_t)top : 0;
    r->want_logprobs = on || r->n_top > 0;
    r->gen.logprobs = on;
    r->gen.n_top_logprobs = r->n_top;
    return MB_OK;
}

static mb_status streaming(struct api_request *r, const json_t *body, mb_error *err)
{
    MB_TRY(field_bool(body, "stream", &r->stream, err));
    const json_t *o = field_get(body, "stream_options");
    if (!o) return MB_OK;
    if (!json_is_object(o)) return field_type_error("stream_options", "dict", err);
    return field_bool(o, "include_usage", &r->include_usage, err);
}

/* Names are looked up when the generation starts. */
mb_status common_adapter(const json_t *body, const char **out, mb_error *err)
{
    MB_TRY(field_str(body, "adapters", out, err)); /* Q52: another spelling */
    return field_str(body, "adapter", out, err);
}

/* --- tools --- */
void common_put_function(struct buf *list, const json_t *tool, struct str name, const char *schema_key)
{
    const char *const keys[][2] = { { "description", "description" }, { schema_key, "parameters" }, { "strict", "strict" } };
    const struct json_write_opts opts = { 0 };
    buf_append_str(list, list->len > 1 ? ",{\"type\":\"function\",\"function\":{\"name\":" : "{\"type\":\"function\",\"function\":{\"name\":");
    json_write_string(list, name.ptr, name.len);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        const json_t *v = field_get(tool, keys[k][0]);
        if (!v) continue;
        buf_printf(list, ",\"%s\":", keys[k][1]);
        json_write(list, v, &opts);
    }
    buf_append_str(list, "}}");
}

bool common_holds_object(const json_t *text, mb_error *why)
{
    json_t *v = NULL;
    *why = (mb_error){ 0 };
    if (json_string_length(text) == 0) return true;
    json_read(&v, json_string_value(text), json_string_length(text), JSON_READ_ANY, why);
    bool ok = json_is_object(v);
    json_decref(v);
    return ok;
}

/* --- thinking: an explicit enable_thinking, else the effort (API-132) --- */
mb_status common_effort(struct api_request *r, const json_t *effort, const char *name, mb_error *err)
{
    static const char *const levels[] = { "none", "minimal", "low", "medium", "high", "xhigh" };
    const size_t n = sizeof levels / sizeof levels[0];
    const char *e = json_string_value(effort);
    size_t k = 0;
    if (!effort || json_is_null(effort)) return MB_OK;
    while (k < n && !(e && strcmp(e, levels[k]) == 0)) k++;
    if (k == n) return mb_fail_at(err, MB_INVALID, name, "%s must be none, minimal, low, medium or high", name);
    r->gen.thinking = k == 0 ? GIVEN_FALSE : GIVEN_TRUE;
    return MB_OK;
}

mb_status common_template_kwargs(struct api_request *r, const json_t *body, mb_error *err)
{
    const json_t *kw = field_get(body, "chat_template_kwargs");
    if (!kw) return MB_OK;
    if (!json_is_object(kw)) return field_type_error("chat_template_kwargs", "dict", err);
    const json_t *on = field_get(kw, "enable_thinking");
    if (on && !json_is_boolean(on)) return field_type_error("chat_template_kwargs.enable_thinking", "bool", err);
    if (on) r->gen.thinking = json_is_true(on) ? GIVEN_TRUE : GIVEN_FALSE;
    return field_text(&r->kwargs, kw, &r->gen.template_kwargs_json, err);
}

/* --- allowed tools --- */

/* responses_tool_name(space, name) == shown, without making it. */
static bool is_shown_as(const char *space, const char *name, const char *shown)
{
    size_t n = space ? strlen(space) : 0;
    if (strncmp(shown, space ? space : "", n) != 0) return false;
    shown += n;
    bool has_end = n >= 2 && strcmp(space + n - 2, "__") == 0;
    if (n > 0 && !has_end) {
        if (strncmp(shown, "__", 2) != 0) return false;
        shown += 2;
    }
    return strcmp(shown, name) == 0;
}

/* The name of a function, flat or within it; NULL: an entry of another type. */
static const char *allowed_name(const json_t *entry)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const json_t *fn = json_object_get(entry, "function");
    if (type && strcmp(type, "function") != 0) return NULL;
    return json_string_value(json_object_get(json_is_object(fn) ? fn : entry, "name"));
}

mb_status common_allowed_init(struct allowed_tools *a, struct api_request *r, const json_t *list, mb_error *err)
{
    *a = (struct allowed_tools){ .list = list };
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(entry, "type"));
        if (!allowed_name(entry) && (!type || strcmp(type, "function") == 0))
            return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice: entry %zu of the allowed tools has no name", i);
    }
    a->found = arena_alloc_array(&r->arena, json_array_size(list) + 1, sizeof *a->found);
    return a->found ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for tools");
}

bool common_allowed(struct allowed_tools *a, const char *shown)
{
    bool any = !a->list;
    for (size_t i = 0; i < json_array_size(a->list); i++) {
        const json_t *entry = json_array_get(a->list, i);
        const char *name = allowed_name(entry);
        if (!name || !is_shown_as(json_string_value(json_object_get(entry, "namespace")), name, shown)) continue;
        any = a->found[i] = true;
    }
    return any;
}

mb_status common_allowed_check(const struct allowed_tools *a, mb_error *err)
{
    for (size_t i = 0; i < json_array_size(a->list); i++) {
        const char *name = allowed_name(json_array_get(a->list, i));
        if (name && !a->found[i])
            return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice allows %.64s, which is none of the tools", name);
    }
    return MB_OK;
}

/* --- all together --- */
mb_status common_quality(struct api_request *r, const json_t *body, mb_error *err)
{
    MB_TRY(sampling(r, body, err));
    MB_TRY(hlg(&r->gen.hlg, body, err));
    return common_adapter(body, &r->gen.adapter, err);
}

mb_status common_compile(struct api_request *r, const json_t *body, mb_error *err)
{
    MB_TRY(streaming(r, body, err));
    MB_TRY(limits(r, body, err));
    MB_TRY(common_quality(r, body, err));
    MB_TRY(common_stops(r, body, "stop", err));
    MB_TRY(common_logit_bias(r, body, err));
    MB_TRY(logprobs(r, body, err));
    return common_constraints(r, body, err);
}
