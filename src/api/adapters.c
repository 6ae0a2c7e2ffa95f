/* adapters.c: GET, POST and DELETE /v1/adapters, GET /v1/adapters/available (spec/api.md section 23, TRN-310). Mounting is
 * for the operator: it alone takes a path. What does not fit is listed line by line in `problems`.
 */
#include <string.h>

#include "api/api_int.h"

static void member_text(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "\"%s\": ", name);
    json_write_string(out, value, strlen(value));
}

static void put_entry(struct buf *out, const struct engine_adapter_entry *e)
{
    buf_append_str(out, "{");
    member_text(out, "id", e->id);
    buf_append_str(out, ", ");
    member_text(out, "path", e->path);
    buf_printf(out, ", \"rank\": %d, \"scale\": ", (int)e->info.rank);
    json_write_double(out, e->info.scale);
    buf_printf(out, ", \"size_bytes\": %zu, \"mounted_layers\": %d}", e->info.size_bytes, (int)e->info.n_modules);
}

/* Both lists have a ceiling, far above what one carries on a stack. */
static struct engine_adapter_entry *entries_alloc(struct buf *out)
{
    struct engine_adapter_entry *list = mb_calloc(ENGINE_MAX_ADAPTERS, sizeof *list);
    if (!list) out->failed = MB_NO_MEMORY;
    return list;
}

void api_adapters_list(struct buf *out, const struct engine_client *client)
{
    struct engine_adapter_entry *list = entries_alloc(out);
    int32_t n = list ? client->adapter_list(client->ctx, list, ENGINE_MAX_ADAPTERS) : 0;
    buf_append_str(out, "{\"adapters\": [");
    for (int32_t i = 0; i < n; i++) {
        if (i) buf_append_str(out, ", ");
        put_entry(out, &list[i]);
    }
    buf_append_str(out, "]}");
    mb_free(list);
}

/* "org/name" of a path into a hub cache, else the path itself: what a base model is compared by. */
static struct str repo_of(const char *text)
{
    const char *hub = strstr(text, "models--");
    const char *end = hub ? strchr(hub, '/') : NULL;
    return hub ? (struct str){ hub + 8, (end ? (size_t)(end - hub) : strlen(hub)) - 8 } : str_of(text);
}

/* Repositories are equal when names are, "org/name" and "org--name" alike; a bare folder name is compared with the last part. */
static bool same_repo(const char *base, const struct gen_model_info *m)
{
    struct str a = repo_of(base), b = str_of(m->id);
    size_t i = 0, k = 0;
    while (i < a.len && k < b.len) {
        bool sa = a.len - i >= 2 && a.ptr[i] == '-' && a.ptr[i + 1] == '-', sb = b.ptr[k] == '/';
        if (a.ptr[i] != b.ptr[k] && !(sa && sb)) break;
        i += sa && sb ? 2 : 1;
        k++;
    }
    return (i == a.len && k == b.len && a.len > 0) || strcmp(base, m->path) == 0;
}

void api_adapters_available(struct buf *out, const struct engine_client *client)
{
    const struct gen_model_info *m = client->info(client->ctx);
    struct engine_adapter_entry *list = entries_alloc(out);
    int32_t n = list ? client->adapter_available(client->ctx, list, ENGINE_MAX_ADAPTERS) : 0;
    buf_append_str(out, "{\"adapters\": [");
    for (int32_t i = 0; i < n; i++) {
        const char *base = list[i].info.base;
        buf_append_str(out, i ? ", {" : "{");
        member_text(out, "id", list[i].id);
        buf_append_str(out, ", ");
        member_text(out, "path", list[i].path);
        buf_append_str(out, ", \"source_repo\": ");
        if (base[0]) json_write_string(out, base, strlen(base));
        else buf_append_str(out, "null");
        buf_printf(out, ", \"rank\": %d, \"scale\": ", (int)list[i].info.rank);
        json_write_double(out, list[i].info.scale);
        buf_printf(out, ", \"compatible\": %s}", base[0] && same_repo(base, m) ? "true" : "false");
    }
    buf_append_str(out, "]}");
    mb_free(list);
}

/* --- mounting --- */

static mb_status text_field(const json_t *body, const char *name, const char **out, mb_error *err)
{
    *out = NULL;
    MB_TRY(field_str(body, name, out, err));
    if (!*out) return mb_fail_at(err, MB_INVALID, name, "%s is required", name);
    return **out ? MB_OK : mb_fail_at(err, MB_INVALID, name, "%s must not be empty", name);
}

mb_status api_adapter_mount(struct buf *out, struct buf *problems, const struct engine_client *client, const char *body,
                            size_t len, mb_error *err)
{
    struct engine_adapter_entry entry;
    const char *id = NULL, *path = NULL;
    json_t *v;
    mb_status st = api_body_read(&v, body, len, err);
    if (st == MB_OK) st = text_field(v, "id", &id, err);
    if (st == MB_OK) st = text_field(v, "path", &path, err);
    if (st == MB_OK) st = client->adapter_mount(client->ctx, id, path, &entry, problems, err);
    json_decref(v);
    MB_TRY(st);
    put_entry(out, &entry);
    return buf_status(out, "answer", err);
}

mb_status api_adapter_unmount(struct buf *out, const struct engine_client *client, const char *id, mb_error *err)
{
    MB_TRY(client->adapter_unmount(client->ctx, id, err));
    buf_append_str(out, "{");
    member_text(out, "id", id);
    buf_append_str(out, ", \"unmounted\": true}");
    return buf_status(out, "answer", err);
}
