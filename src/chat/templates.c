/* templates.c: finds and compiles the chat templates of a model directory.
 *
 * Three sources, the first that holds any template wins whole, as in transformers: the files chat_template.jinja
 * ("default") and additional_chat_templates/NAME.jinja; chat_template.json; the key "chat_template" of
 * tokenizer_config.json. In JSON it is a text, a list of {name, template}, or an object name -> text. Only the names
 * default and tool_use are kept; what is not there leaves NULL, which is no error (B-022).
 * A template that does not compile is one: the text names the file, line and column.
 */
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
#include "chat/template.h"

#define MAX_JINJA_BYTES ((size_t)4 << 20)
#define MAX_CONFIG_BYTES ((size_t)64 << 20)
#define MAX_PATH_BYTES 4096

/* Compile one text under its name; other names are ignored. `from` names the file in errors. */
static mb_status take(struct chat_templates *out, const char *name, const char *text, size_t len, const char *from,
                      mb_error *err)
{
    bool dflt = strcmp(name, "default") == 0;
    if (!dflt && strcmp(name, "tool_use") != 0) return MB_OK;
    struct chat_template **slot = dflt ? &out->dflt : &out->tool_use;
    if (*slot) return MB_OK; /* the first of a name counts */
    mb_status st = chat_template_compile(slot, text, len, err);
    if (st != MB_OK) return err ? mb_error_prefix(err, "%s", from) : st;
    char **source = dflt ? &out->source_of_default : &out->source_of_tool_use;
    *source = mb_strndup(text, len);
    return *source ? MB_OK : mb_fail(err, MB_NO_MEMORY, "%s: no memory for the chat template", from);
}

static mb_status take_file(struct chat_templates *out, const char *dir, const char *file, const char *name, mb_error *err)
{
    char path[MAX_PATH_BYTES];
    struct buf text;
    MB_TRY(path_join(path, sizeof path, dir, file, err));
    if (!path_exists(path)) return MB_OK;
    buf_init(&text, MAX_JINJA_BYTES);
    mb_status st = file_read(&text, path, MAX_JINJA_BYTES, err);
    if (st == MB_OK) st = take(out, name, text.data ? text.data : "", text.len, path, err);
    buf_free(&text);
    return st;
}

static mb_status take_json_text(struct chat_templates *out, const char *name, const json_t *text, const char *from,
                                mb_error *err)
{
    if (!json_is_string(text))
        return mb_fail(err, MB_BAD_FORMAT, "%s: chat_template \"%.60s\" must be a text", from, name);
    return take(out, name, json_string_value(text), json_string_length(text), from, err);
}

static mb_status take_json(struct chat_templates *out, const json_t *v, const char *from, mb_error *err)
{
    if (!v || json_is_null(v)) return MB_OK;
    if (json_is_object(v)) {
        const char *name;
        json_t *text;
        json_object_foreach((json_t *)v, name, text) MB_TRY(take_json_text(out, name, text, from, err));
        return MB_OK;
    }
    if (!json_is_array(v)) return take_json_text(out, "default", v, from, err);
    size_t i;
    json_t *row;
    json_array_foreach(v, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (!name) return mb_fail(err, MB_BAD_FORMAT, "%s: chat_template[%zu] has no name", from, i);
        MB_TRY(take_json_text(out, name, json_object_get(row, "template"), from, err));
    }
    return MB_OK;
}

static mb_status take_config(struct chat_templates *out, const char *dir, const char *file, mb_error *err)
{
    char path[MAX_PATH_BYTES];
    json_t *config = NULL;
    MB_TRY(path_join(path, sizeof path, dir, file, err));
    if (!path_exists(path)) return MB_OK;
    MB_TRY(json_read_file(&config, path, MAX_CONFIG_BYTES, err));
    mb_status st = take_json(out, json_object_get(config, "chat_template"), path, err);
    json_decref(config);
    return st;
}

static bool found_any(const struct chat_templates *t) { return t->dflt || t->tool_use; }

/* Those that stand before tokenizer_config.json. */
static mb_status open_files(struct chat_templates *out, const char *dir, mb_error *err)
{
    MB_TRY(take_file(out, dir, "chat_template.jinja", "default", err));
    MB_TRY(take_file(out, dir, "additional_chat_templates/default.jinja", "default", err));
    MB_TRY(take_file(out, dir, "additional_chat_templates/tool_use.jinja", "tool_use", err));
    if (!found_any(out)) MB_TRY(take_config(out, dir, "chat_template.json", err));
    return MB_OK;
}

mb_status chat_templates_open(struct chat_templates *out, const char *model_dir, mb_error *err)
{
    *out = (struct chat_templates){ 0 };
    mb_status st = open_files(out, model_dir, err);
    if (st == MB_OK && !found_any(out)) st = take_config(out, model_dir, "tokenizer_config.json", err);
    if (st != MB_OK) chat_templates_close(out);
    return st;
}

mb_status chat_templates_open_with(struct chat_templates *out, const char *model_dir, const json_t *config, mb_error *err)
{
    char from[MAX_PATH_BYTES];
    *out = (struct chat_templates){ 0 };
    mb_status st = open_files(out, model_dir, err);
    if (st == MB_OK) st = path_join(from, sizeof from, model_dir, "tokenizer_config.json", err);
    if (st == MB_OK && !found_any(out)) st = take_json(out, json_object_get(config, "chat_template"), from, err);
    if (st != MB_OK) chat_templates_close(out);
    return st;
}

void chat_templates_close(struct chat_templates *t)
{
    chat_template_free(t->dflt);
    chat_template_free(t->tool_use);
    mb_free(t->source_of_default);
    mb_free(t->source_of_tool_use);
    *t = (struct chat_templates){ 0 };
}
