/* responses_tools.c: tools of the Responses dialect: flat functions, namespaces of functions, tool_choice in its forms.
 *
 * A namespace's functions are shown to the model under "namespace__name" and come back as calls with both parts. Tools of
 * other types run on the vendor's servers; they are left out, and a Warning header names them (B-085). */
#include <string.h>

#include "api/responses_int.h"
#include "base/log.h"

struct choice {
    struct allowed_tools allowed;
    const char *named;       /* name that the model sees, NULL */
    bool found;              /* it is among the tools */
};

const char *responses_tool_name(struct arena *a, const char *space, const char *name)
{
    size_t n = space ? strlen(space) : 0;
    if (n == 0) return arena_strdup(a, name);
    bool has_end = n >= 2 && strcmp(space + n - 2, "__") == 0;
    return arena_printf(a, "%s%s%s", space, has_end ? "" : "__", name);
}

static mb_status remember(struct responses_extra *x, const char *shown, const char *space, const char *name, mb_error *err)
{
    if (!x->names) x->names = json_object();
    json_t *pair = json_pack("[s,s]", space, name);
    if (!x->names || json_object_set_new(x->names, shown, pair) != 0) return mb_fail(err, MB_NO_MEMORY, "no memory for tools");
    return MB_OK;
}

static mb_status function(struct api_request *r, const json_t *tool, const char *space, size_t i, struct choice *c, mb_error *err)
{
    const json_t *parameters = field_get(tool, "parameters");
    const char *name = json_string_value(json_object_get(tool, "name"));
    if (!json_is_text(json_object_get(tool, "name")))
        return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu]%s.name must be of type str", i, space ? ".tools[]" : "");
    if (parameters && !json_is_object(parameters))
        return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu]%s.parameters must be of type dict", i, space ? ".tools[]" : "");
    const char *shown = responses_tool_name(&r->arena, space, name);
    if (!shown) return mb_fail(err, MB_NO_MEMORY, "no memory for tools");
    if (!common_allowed(&c->allowed, shown)) return MB_OK;
    if (c->named && strcmp(c->named, shown) == 0) c->found = true;
    if (space) MB_TRY(remember(r->priv, shown, space, name, err));
    common_put_function(&r->tools, tool, str_of(shown), "parameters");
    return MB_OK;
}

static void leave_out(struct api_request *r, const char *type)
{
    LOGD("responses", "a tool of type %.64s is left out: this server runs no tools", type);
    if (r->warning.len < 512) buf_printf(&r->warning, "%s%.64s", r->warning.len ? ", " : "tools left out: ", type);
}

static mb_status tool(struct api_request *r, const json_t *t, size_t i, struct choice *c, mb_error *err)
{
    const char *type = json_string_value(json_object_get(t, "type"));
    if (!json_is_object(t) || !type) return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu] must be an object with a type", i);
    if (strcmp(type, "function") == 0) return function(r, t, NULL, i, c, err);
    if (strcmp(type, "namespace") != 0) {
        leave_out(r, type);
        return MB_OK;
    }
    const char *space = json_string_value(json_object_get(t, "name"));
    const json_t *list = field_get(t, "tools");
    if (!space || !space[0]) return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].name must be of type str", i);
    if (list && !json_is_array(list)) return mb_fail_at(err, MB_INVALID, "tools", "tools[%zu].tools must be of type list", i);
    for (size_t k = 0; k < json_array_size(list); k++) {
        const json_t *inner = json_array_get(list, k);
        const char *kind = json_string_value(json_object_get(inner, "type"));
        if (!kind || strcmp(kind, "function") == 0) MB_TRY(function(r, inner, space, i, c, err));
        else leave_out(r, kind);
    }
    return MB_OK;
}

/* --- tool_choice --- */
static mb_status choice_word(struct api_request *r, const char *word, mb_error *err)
{
    if (strcmp(word, "none") == 0) r->gen.tool_choice = TOOLS_NONE;
    else if (strcmp(word, "required") == 0) r->gen.tool_choice = TOOLS_REQUIRED;
    else if (strcmp(word, "auto") != 0)
        return mb_fail_at(err, MB_INVALID, "tool_choice",
                          "tool_choice must be \"auto\", \"none\", \"required\", a function or allowed_tools");
    return MB_OK;
}

static mb_status read_choice(struct api_request *r, const json_t *v, struct choice *c, mb_error *err)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!v) return MB_OK;
    if (json_is_text(v)) return choice_word(r, json_string_value(v), err);
    if (!type) return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice must be a string or an object with a type");
    if (strcmp(type, "allowed_tools") == 0) {
        const char *mode = json_string_value(field_get(v, "mode"));
        const json_t *list = json_object_get(v, "tools");
        if (!json_is_array(list)) return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice.tools must be of type list");
        MB_TRY(common_allowed_init(&c->allowed, r, list, err));
        return choice_word(r, mode ? mode : "auto", err);
    }
    if (strcmp(type, "function") != 0)
        return mb_fail_at(err, MB_UNSUPPORTED, "tool_choice",
                          "tool_choice of type %.64s is not supported: this server runs no tools", type);
    if (!json_is_text(json_object_get(v, "name")))
        return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice.name must be of type str");
    r->gen.tool_choice = TOOLS_NAMED;
    c->named = responses_tool_name(&r->arena, json_string_value(json_object_get(v, "namespace")),
                                   json_string_value(json_object_get(v, "name")));
    r->gen.tool_name = c->named;
    return c->named ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for tools");
}

mb_status responses_tools(struct api_request *r, const json_t *body, mb_error *err)
{
    const json_t *list = field_get(body, "tools");
    struct choice c = { 0 };
    bool parallel = true;
    if (list && !json_is_array(list)) return field_type_error("tools", "list", err);
    MB_TRY(field_bool(body, "parallel_tool_calls", &parallel, err));
    if (!parallel) r->gen.parallel_tools = GIVEN_FALSE;
    MB_TRY(read_choice(r, field_get(body, "tool_choice"), &c, err));
    buf_append_char(&r->tools, '[');
    for (size_t i = 0; i < json_array_size(list); i++) MB_TRY(tool(r, json_array_get(list, i), i, &c, err));
    MB_TRY(common_allowed_check(&c.allowed, err));
    bool any = r->tools.len > 1;
    buf_append_char(&r->tools, ']');
    MB_TRY(buf_status(&r->tools, "tools", err));
    if (r->arena.failed) return mb_fail(err, MB_NO_MEMORY, "no memory for tools");
    if (c.named && !c.found)
        return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice names %.64s, which is none of the tools", c.named);
    if (r->gen.tool_choice == TOOLS_REQUIRED && !any)
        return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice \"required\" needs a function among the tools");
    if (any && r->gen.tool_choice != TOOLS_NONE) r->gen.tools_json = r->tools.data;
    return MB_OK;
}
