/* adapters.c: names of adapters: which a request may use, and mounting by name. A request's spec is "a", a stack "a+b" or
 * "none"; without one the server's default counts while it is mounted (CFG-030). Names are names, never paths (B-155):
 * only mounting takes a path, on routes for the operator.
 */
#include <string.h>

#include "gen/gen_int.h"

/* Listed in an error text, at most so many bytes. */
enum { LIST_BYTES = 160 };

mb_status gen_adapter_id_check(const char *id, mb_error *err)
{
    size_t n = strlen(id);
    bool ok = n > 0 && n < ENGINE_ADAPTER_ID_BYTES - 8 && strcmp(id, "none") != 0 && strcmp(id, ".") != 0 && strcmp(id, "..") != 0;
    for (size_t i = 0; i < n && ok; i++) ok = (unsigned char)id[i] > ' ' && id[i] != 127 && !strchr("+/\\%\"", id[i]);
    if (ok) return MB_OK;
    return mb_fail_at(err, MB_INVALID, "id", "an adapter's id must be 1 to %d bytes without spaces, +, /, \\, %% and quotes, and "
                      "not \"none\"", ENGINE_ADAPTER_ID_BYTES - 9);
}

static mb_status not_mounted(struct gen_engine *g, const char *id, mb_error *err)
{
    struct engine_adapter_entry *list = mb_alloc(ENGINE_MAX_ADAPTERS * sizeof *list);
    int32_t n = list ? engine_adapter_list(g->engine, list, ENGINE_MAX_ADAPTERS) : 0;
    char names[LIST_BYTES + ENGINE_ADAPTER_ID_BYTES] = "none is";
    size_t len = 0;
    for (int32_t i = 0; i < n && len < LIST_BYTES; i++)
        len += (size_t)snprintf(names + len, sizeof names - len, "%s%s", i ? ", " : "", list[i].id);
    mb_free(list);
    return mb_fail_at(err, MB_INVALID, "adapter", "adapter \"%.100s\" is not mounted (mounted: %s); \"none\" selects the base model",
                      id, names);
}

/* "a+b" -> {"a", "b"} in buf; 0: the base model. */
static mb_status split(char *text, const char *ids[PLAN_MAX_STACK], int32_t *n, mb_error *err)
{
    *n = 0;
    for (char *at = text, *next; at; at = next) {
        next = strchr(at, '+');
        if (next) *next++ = '\0';
        if (*at == '\0')
            return mb_fail_at(err, MB_INVALID, "adapter", "adapter must be an id, ids joined by +, or \"none\"");
        if (*n == PLAN_MAX_STACK)
            return mb_fail_at(err, MB_INVALID, "adapter", "adapter stacks more than %d adapters", PLAN_MAX_STACK);
        for (int32_t i = 0; i < *n; i++)
            if (strcmp(ids[i], at) == 0) return mb_fail_at(err, MB_INVALID, "adapter", "adapter names \"%.100s\" twice", at);
        ids[(*n)++] = at;
    }
    return MB_OK;
}

mb_status adapters_pin(struct gen_engine *g, const char *spec, struct adapter_pin *out, mb_error *err)
{
    const char *ids[PLAN_MAX_STACK];
    char text[PLAN_MAX_STACK * ENGINE_ADAPTER_ID_BYTES];
    int32_t n, missing;
    memset(out, 0, sizeof *out);
    if (!spec) { /* the default, unless it was unmounted */
        ids[0] = g->default_adapter;
        if (ids[0][0]) engine_adapter_pin(g->engine, ids, 1, out, &missing);
        return MB_OK;
    }
    if (strcmp(spec, "none") == 0) return MB_OK;
    if (strlen(spec) >= sizeof text) return not_mounted(g, spec, err);
    strcpy(text, spec);
    MB_TRY(split(text, ids, &n, err));
    return engine_adapter_pin(g->engine, ids, n, out, &missing) ? MB_OK : not_mounted(g, ids[missing], err);
}

/* --- the client's --- */

mb_status client_adapter_mount(void *ctx, const char *id, const char *path, struct engine_adapter_entry *out,
                               struct buf *problems, mb_error *err)
{
    struct gen_engine *g = ctx;
    MB_TRY(gen_adapter_id_check(id, err));
    return engine_adapter_mount(g->engine, id, path, out, problems, err);
}

mb_status client_adapter_unmount(void *ctx, const char *id, mb_error *err)
{
    return engine_adapter_unmount(((struct gen_engine *)ctx)->engine, id, err);
}

int32_t client_adapter_list(void *ctx, struct engine_adapter_entry *out, int32_t cap)
{
    return engine_adapter_list(((struct gen_engine *)ctx)->engine, out, cap);
}
