/* calls.c: the list of calls that a body parser fills. */
#include "chat/tools/tools_int.h"

void tool_calls_free(struct tool_calls *c)
{
    for (int i = 0; i < c->n; i++) {
        buf_free(&c->call[i].name);
        buf_free(&c->call[i].arguments);
    }
    c->n = 0;
}

static void write_arguments(struct buf *out, const struct tool *t, json_t *arguments)
{
    struct json_write_opts opts = { 0 };
    json_t *fitted = json_object(), *v;
    const char *key;
    if (!fitted) out->failed = MB_NO_MEMORY;
    json_object_foreach(arguments, key, v) {
        json_t *fit = value_fit(t, key, v);
        if (!fit || json_object_set_new(fitted, key, fit) != 0) out->failed = MB_NO_MEMORY;
    }
    if (!out->failed) json_write(out, fitted, &opts);
    json_decref(fitted);
}

enum tool_parse tool_calls_add(struct tool_calls *c, const struct tool_set *set, const char *name, size_t len,
                               json_t *arguments)
{
    if (c->n == TOOL_MAX_CALLS || len == 0 || (arguments && !json_is_object(arguments))) return PARSE_BAD;
    struct buf *n = &c->call[c->n].name, *a = &c->call[c->n].arguments;
    c->n++;
    buf_init(n, 0);
    buf_init(a, 0);
    buf_append(n, name, len);
    if (arguments) write_arguments(a, tool_set_find(set, name, len), arguments);
    else buf_append_str(a, "{}");
    return PARSE_OK;
}
