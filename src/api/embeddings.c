/* embeddings.c: POST /v1/embeddings (spec/api.md section 18, Q42): a text, several, token ids or lists of them become vectors,
 * as numbers or as base64 of little-endian float32. Compiling and running are apart, because running takes long and
 * belongs on a thread that may wait.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_int.h"

enum { MAX_INPUTS = 2048 };

struct api_embed {
    struct gen_embed_request gen;
    struct arena arena;
    json_t *body;               /* owned; texts are borrowed from it */
    bool base64;
};

/* --- the request --- */

static bool is_id(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX;
}

static mb_status take_ids(struct api_embed *e, const json_t *list, size_t i, struct gen_embed_input *in, mb_error *err)
{
    size_t n = json_array_size(list);
    int32_t *ids = arena_alloc_array(&e->arena, n + 1, sizeof *ids);
    if (!ids) return mb_fail(err, MB_NO_MEMORY, "no memory for the inputs");
    for (size_t k = 0; k < n; k++) {
        const json_t *v = json_array_get(list, k);
        if (!is_id(v)) return mb_fail_at(err, MB_INVALID, "input", "input[%zu] must be a string or a list of token ids", i);
        ids[k] = (int32_t)json_integer_value(v);
    }
    in->ids = ids;
    in->n_ids = (int32_t)n;
    return MB_OK;
}

static mb_status take_input(struct api_embed *e, const json_t *v, size_t i, struct gen_embed_input *in, mb_error *err)
{
    if (json_is_array(v)) return take_ids(e, v, i, in, err);
    if (!json_is_text(v)) return mb_fail_at(err, MB_INVALID, "input", "input[%zu] must be a string or a list of token ids", i);
    in->text = (struct str){ json_string_value(v), json_string_length(v) };
    return MB_OK;
}

static mb_status inputs(struct api_embed *e, const json_t *body, mb_error *err)
{
    const json_t *v = field_get(body, "input");
    if (!v) return mb_fail_at(err, MB_INVALID, "input", "input is required");
    if (!json_is_text(v) && !json_is_array(v))
        return mb_fail_at(err, MB_INVALID, "input", "input must be a string, a list of strings, token ids or a list of them");
    bool one = !json_is_array(v) || json_is_integer(json_array_get(v, 0));
    size_t n = one ? 1 : json_array_size(v);
    if (n == 0) return mb_fail_at(err, MB_INVALID, "input", "input must not be empty");
    if (n > MAX_INPUTS) return mb_fail_at(err, MB_INVALID, "input", "input has %zu entries, at most %d are taken", n, MAX_INPUTS);
    struct gen_embed_input *list = arena_alloc_array(&e->arena, n, sizeof *list);
    if (!list) return mb_fail(err, MB_NO_MEMORY, "no memory for the inputs");
    for (size_t i = 0; i < n; i++) MB_TRY(take_input(e, one ? v : json_array_get(v, i), i, &list[i], err));
    e->gen.inputs = list;
    e->gen.n_inputs = (int32_t)n;
    return MB_OK;
}

static mb_status encoding(struct api_embed *e, const json_t *body, mb_error *err)
{
    const json_t *v = field_get(body, "encoding_format");
    if (!v) return MB_OK;
    if (!json_is_text(v)) return field_type_error("encoding_format", "str", err);
    e->base64 = strcmp(json_string_value(v), "base64") == 0;
    if (e->base64 || strcmp(json_string_value(v), "float") == 0) return MB_OK;
    return mb_fail_at(err, MB_INVALID, "encoding_format", "encoding_format must be \"float\" or \"base64\"");
}

static mb_status options(struct api_embed *e, const json_t *body, mb_error *err)
{
    int64_t dimensions = 0;
    const json_t *v = field_get(body, "instruction");
    if (v && !json_is_text(v)) return field_type_error("instruction", "str", err);
    if (v && json_string_length(v) > 0) e->gen.instruction = (struct str){ json_string_value(v), json_string_length(v) };
    MB_TRY(common_adapter(body, &e->gen.adapter, err));
    MB_TRY(field_int(body, "dimensions", 1, 1 << 24, &dimensions, err));
    e->gen.dimensions = (int32_t)dimensions;
    MB_TRY(field_bool(body, "truncate", &e->gen.truncate, err));
    return encoding(e, body, err);
}

mb_status api_embed_open(struct api_embed **out, const char *body, size_t len, mb_error *err)
{
    struct api_embed *e = mb_calloc(1, sizeof *e);
    *out = NULL;
    if (!e) return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    arena_init(&e->arena, ((size_t)1 << 20) + 16 * len);
    mb_status st = api_body_read(&e->body, body, len, err);
    if (st == MB_OK) st = inputs(e, e->body, err);
    if (st == MB_OK) st = options(e, e->body, err);
    if (st != MB_OK) api_embed_close(e);
    else *out = e;
    return st;
}

void api_embed_close(struct api_embed *e)
{
    if (!e) return;
    json_decref(e->body);
    arena_free(&e->arena);
    mb_free(e);
}

/* --- the answer --- */

static void put_base64(struct buf *out, const float *v, int32_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = (const uint8_t *)v; /* this machine is little-endian, as the format */
    size_t len = (size_t)n * sizeof *v;
    buf_append_char(out, '"');
    for (size_t i = 0; i < len; i += 3) {
        size_t left = len - i;
        uint32_t w = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (left > 2 ? p[i + 2] : 0);
        char four[4] = { digits[w >> 18], digits[w >> 12 & 63], left > 1 ? digits[w >> 6 & 63] : '=',
                         left > 2 ? digits[w & 63] : '=' };
        buf_append(out, four, 4);
    }
    buf_append_char(out, '"');
}

/* Eight digits where they read back as the same float, else nine, which always do. */
static void put_numbers(struct buf *out, const float *v, int32_t n)
{
    char text[32];
    buf_append_char(out, '[');
    for (int32_t i = 0; i < n; i++) {
        int len = snprintf(text, sizeof text, "%.8g", (double)v[i]);
        if (strtof(text, NULL) != v[i]) len = snprintf(text, sizeof text, "%.9g", (double)v[i]);
        if (i) buf_append_str(out, ", ");
        buf_append(out, text, (size_t)len);
    }
    buf_append_char(out, ']');
}

static void put_answer(const struct api_embed *e, const struct gen_embeddings *v, const char *model, struct buf *out)
{
    buf_append_str(out, "{\"object\": \"list\", \"data\": [");
    for (int32_t i = 0; i < v->n; i++) {
        buf_printf(out, "%s{\"object\": \"embedding\", \"index\": %d, \"embedding\": ", i ? ", " : "", (int)i);
        if (e->base64) put_base64(out, v->values + (int64_t)i * v->d, v->d);
        else put_numbers(out, v->values + (int64_t)i * v->d, v->d);
        buf_append_char(out, '}');
    }
    buf_append_str(out, "], \"model\": ");
    json_write_string(out, model, strlen(model));
    buf_printf(out, ", \"usage\": {\"prompt_tokens\": %lld, \"total_tokens\": %lld", (long long)v->n_tokens, (long long)v->n_tokens);
    if (v->n_cut > 0) buf_printf(out, ", \"truncated_tokens\": %lld", (long long)v->n_cut);
    buf_append_str(out, "}}");
}

mb_status api_embed_run(struct api_embed *e, const struct engine_client *client, bool (*gone)(void *ctx), void *gone_ctx,
                        struct buf *out, mb_error *err)
{
    struct gen_embeddings v;
    e->gen.gone = gone;
    e->gen.gone_ctx = gone_ctx;
    MB_TRY(client->embed(client->ctx, &e->gen, &v, err));
    put_answer(e, &v, client->info(client->ctx)->id, out);
    gen_embeddings_free(&v);
    return buf_status(out, "answer", err);
}
