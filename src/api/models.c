/* models.c: what the server says about its model: /v1/models, /tokenize, /detokenize. */
#include <string.h>

#include "api/api_int.h"

static void text(struct buf *out, const char *s)
{
    json_write_string(out, s, strlen(s));
}

void api_models_body(struct buf *out, const struct engine_client *client, const char *only_id)
{
    const struct gen_model_info *m = client->info(client->ctx);
    buf_append_str(out, "{\"object\": \"list\", \"data\": [");
    if (!only_id || strcmp(only_id, m->id) == 0) {
        buf_append_str(out, "{\"id\": ");
        text(out, m->id);
        buf_printf(out, ", \"object\": \"model\", \"created\": %lld, \"owned_by\": \"mlx-bun\", \"context_window\": %d, "
                        "\"reasoning\": %s, \"vision\": %s}",
                   (long long)m->created_unix_s, (int)m->n_context, m->reasoning ? "true" : "false",
                   m->vision ? "true" : "false");
    }
    buf_append_str(out, "]}");
}

static mb_status tokenize(struct buf *out, const struct engine_client *client, const json_t *v, struct arena *a,
                          mb_error *err)
{
    bool special = true;
    int32_t *ids, n;
    const json_t *t = field_get(v, "text");
    const char *name = "text";
    if (!t) t = field_get(v, name = "prompt");
    if (!t) t = field_get(v, name = "content");
    if (!t) return mb_fail_at(err, MB_INVALID, "text", "text is required");
    if (!json_is_text(t)) return field_type_error(name, "str", err);
    MB_TRY(field_bool(v, "add_special_tokens", &special, err));
    struct str s = { json_string_value(t), json_string_length(t) };
    MB_TRY(client->tokenize(client->ctx, s, special, a, &ids, &n, err));
    buf_printf(out, "{\"count\": %d, \"tokens\": [", (int)n);
    for (int32_t i = 0; i < n; i++) buf_printf(out, i ? ", %d" : "%d", (int)ids[i]);
    buf_append_str(out, "]}");
    return buf_status(out, "answer", err);
}

mb_status api_tokenize(struct buf *out, const struct engine_client *client, const char *body, size_t len, mb_error *err)
{
    json_t *v;
    struct arena a;
    MB_TRY(api_body_read(&v, body, len, err));
    arena_init(&a, ((size_t)16 << 20) + 64 * len);
    mb_status st = tokenize(out, client, v, &a, err);
    arena_free(&a);
    json_decref(v);
    return st;
}

static mb_status read_ids(const json_t *list, const struct engine_client *client, struct arena *a, int32_t **ids, mb_error *err)
{
    size_t n = json_array_size(list);
    *ids = arena_alloc_array(a, n + 1, sizeof **ids);
    if (!*ids) return mb_fail(err, MB_NO_MEMORY, "no memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_integer(x) || json_integer_value(x) < 0 || json_integer_value(x) > INT32_MAX)
            return mb_fail_at(err, MB_INVALID, "tokens", "tokens[%zu] must be a token id", i);
        size_t piece_len;
        (*ids)[i] = (int32_t)json_integer_value(x);
        if (!client->piece(client->ctx, (*ids)[i], &piece_len))
            return mb_fail_at(err, MB_INVALID, "tokens", "tokens[%zu] is %d: the vocabulary has no such id", i, (int)(*ids)[i]);
    }
    return MB_OK;
}

static mb_status detokenize(struct buf *out, const struct engine_client *client, const json_t *v, struct arena *a,
                            mb_error *err)
{
    const json_t *list = field_get(v, "tokens");
    bool skip = false;
    int32_t *ids;
    if (!json_is_array(list)) return field_type_error("tokens", "list", err);
    MB_TRY(field_bool(v, "skip_special_tokens", &skip, err));
    MB_TRY(read_ids(list, client, a, &ids, err));
    struct buf b;
    buf_init(&b, 0);
    mb_status st = client->detokenize(client->ctx, ids, (int32_t)json_array_size(list), skip, &b, err);
    if (st == MB_OK) st = buf_status(&b, "text", err);
    if (st == MB_OK) {
        buf_append_str(out, "{\"text\": ");
        json_write_string(out, b.data ? b.data : "", b.len);
        buf_append_str(out, "}");
        st = buf_status(out, "answer", err);
    }
    buf_free(&b);
    return st;
}

mb_status api_detokenize(struct buf *out, const struct engine_client *client, const char *body, size_t len,
                         mb_error *err)
{
    json_t *v;
    struct arena a;
    MB_TRY(api_body_read(&v, body, len, err));
    arena_init(&a, ((size_t)1 << 20) + 16 * len);
    mb_status st = detokenize(out, client, v, &a, err);
    arena_free(&a);
    json_decref(v);
    return st;
}
