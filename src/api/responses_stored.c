/* responses_stored.c: GET and DELETE of stored responses, and their input items as a list with a cursor. */
#include <stdlib.h>
#include <string.h>

#include "api/responses_int.h"

#define PAGE_DEFAULT 20
#define PAGE_MAX 100

static mb_status look_up(const struct api_env *env, const char *id, struct buf *const parts[RESPONSE_N_PARTS], mb_error *err)
{
    mb_error why = { 0 };
    mb_status st = response_store_get(env->store, id, parts, &why);
    return st == MB_OK ? MB_OK : mb_fail_at(err, st, "response_id", "%s", why.text);
}

/* Place of the item with this id, -1. */
static int64_t place_of(const json_t *list, const char *id)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_object_get(json_array_get(list, i), "id"));
        if (s && strcmp(s, id) == 0) return (int64_t)i;
    }
    return -1;
}

static void put_id(struct buf *out, const char *name, const json_t *item)
{
    const struct json_write_opts opts = { 0 };
    buf_printf(out, ", \"%s\": ", name);
    if (item) json_write(out, json_object_get(item, "id"), &opts);
    else buf_append_str(out, "null");
}

static mb_status put_page(struct buf *out, const json_t *list, const struct api_page *page, mb_error *err)
{
    const struct json_write_opts opts = { .python_spaces = true };
    bool up = page->order && strcmp(page->order, "asc") == 0;
    int64_t n = (int64_t)json_array_size(list), step = up ? 1 : -1, i = up ? 0 : n - 1;
    char *end = NULL;
    long limit = page->limit ? strtol(page->limit, &end, 10) : PAGE_DEFAULT;
    if (page->order && !up && strcmp(page->order, "desc") != 0)
        return mb_fail_at(err, MB_INVALID, "order", "order must be asc or desc");
    if ((end && (*end || end == page->limit)) || limit < 1 || limit > PAGE_MAX)
        return mb_fail_at(err, MB_INVALID, "limit", "limit must be at least 1 and at most %d", PAGE_MAX);
    if (page->after) {
        int64_t at = place_of(list, page->after);
        if (at < 0) return mb_fail_at(err, MB_INVALID, "after", "after names no item of this response");
        i = at + step;
    }
    const json_t *first = NULL, *last = NULL;
    buf_append_str(out, "{\"object\": \"list\", \"data\": [");
    for (long k = 0; k < limit && i >= 0 && i < n; k++, i += step) {
        last = json_array_get(list, (size_t)i);
        if (first) buf_append_str(out, ", ");
        else first = last;
        json_write(out, last, &opts);
    }
    buf_append_char(out, ']');
    put_id(out, "first_id", first);
    put_id(out, "last_id", last);
    buf_printf(out, ", \"has_more\": %s}", i >= 0 && i < n ? "true" : "false");
    return buf_status(out, "answer", err);
}

static mb_status items(struct buf *out, const struct api_env *env, const char *id, const struct api_page *page, mb_error *err)
{
    struct buf input;
    struct buf *parts[RESPONSE_N_PARTS] = { [RESPONSE_INPUT] = &input };
    json_t *list = NULL;
    buf_init(&input, 0);
    mb_status st = look_up(env, id, parts, err);
    if (st == MB_OK) st = json_read(&list, input.data, input.len, JSON_READ_ANY, err);
    if (st == MB_OK) st = put_page(out, list, page, err);
    json_decref(list);
    buf_free(&input);
    return st;
}

mb_status api_responses_get(struct buf *out, const struct api_env *env, const char *path, const struct api_page *page,
                            mb_error *err)
{
    const char *slash = strchr(path, '/');
    char id[96];
    struct buf *parts[RESPONSE_N_PARTS] = { [RESPONSE_OBJECT] = out };
    if (!slash) return look_up(env, path, parts, err);
    if (strcmp(slash, "/input_items") != 0 || (size_t)(slash - path) >= sizeof id)
        return mb_fail(err, MB_NOT_FOUND, "there is no such path; docs/routes.md lists them");
    memcpy(id, path, (size_t)(slash - path));
    id[slash - path] = '\0';
    return items(out, env, id, page, err);
}

mb_status api_responses_delete(struct buf *out, const struct api_env *env, const char *id, mb_error *err)
{
    if (!response_store_delete(env->store, id))
        return mb_fail_at(err, MB_NOT_FOUND, "response_id", "there is no response %.80s: unknown, deleted, or expired", id);
    buf_append_str(out, "{\"id\": ");
    json_write_string(out, id, strlen(id));
    buf_append_str(out, ", \"object\": \"response\", \"deleted\": true}");
    return buf_status(out, "answer", err);
}
