/* conversation.c: see conversation.h. */
#include "api/conversation.h"

#include <string.h>

void conversation_init(struct conversation *c)
{
    memset(c, 0, sizeof *c);
    buf_init(&c->list, 0);
    buf_init(&c->system, 0);
    buf_init(&c->content, 0);
    buf_init(&c->reasoning, 0);
    buf_init(&c->calls, 0);
    c->names = json_object();
    c->failed = c->names == NULL;
}

void conversation_free(struct conversation *c)
{
    buf_free(&c->list);
    buf_free(&c->system);
    buf_free(&c->content);
    buf_free(&c->reasoning);
    buf_free(&c->calls);
    json_decref(c->names);
}

bool conversation_is_empty(const struct conversation *c)
{
    return !c->begun;
}

static void put_text(struct buf *out, const struct buf *b)
{
    json_write_string(out, b->data ? b->data : "", b->len);
}

static void paragraph(struct buf *b, const char *sep, struct str text)
{
    if (b->len && text.len) buf_append_str(b, sep);
    buf_append(b, text.ptr, text.len);
}

/* The open message goes to the list. */
static void flush(struct conversation *c)
{
    if (!c->role) return;
    buf_printf(&c->list, "%s{\"role\":\"%s\",\"content\":", c->list.len ? "," : "", c->role);
    put_text(&c->list, &c->content);
    if (c->reasoning.len) {
        buf_append_str(&c->list, ",\"reasoning_content\":");
        put_text(&c->list, &c->reasoning);
    }
    if (c->calls.len) {
        buf_append_str(&c->list, ",\"tool_calls\":[");
        buf_append(&c->list, c->calls.data, c->calls.len);
        buf_append_char(&c->list, ']');
    }
    buf_append_char(&c->list, '}');
    if (c->content.failed || c->reasoning.failed || c->calls.failed) c->failed = true;
    buf_clear(&c->content);
    buf_clear(&c->reasoning);
    buf_clear(&c->calls);
    c->role = NULL;
}

static void open_message(struct conversation *c, const char *role)
{
    if (c->role && strcmp(c->role, role) == 0) return;
    flush(c);
    c->role = role;
    c->begun = true;
    if (strcmp(role, "assistant") == 0) c->answered = true;
}

void conversation_system(struct conversation *c, struct str text)
{
    paragraph(&c->system, "\n\n", text);
}

void conversation_begin(struct conversation *c, const char *role)
{
    open_message(c, role);
    c->sep = "\n\n";
}

void conversation_text(struct conversation *c, struct str text)
{
    paragraph(&c->content, c->sep, text);
    if (strcmp(c->role, "assistant") == 0) c->sep = "";
}

void conversation_reasoning(struct conversation *c, struct str text)
{
    open_message(c, "assistant");
    paragraph(&c->reasoning, "\n\n", text);
}

void conversation_call(struct conversation *c, const json_t *id, const char *name, const json_t *arguments)
{
    const struct json_write_opts opts = { 0 };
    open_message(c, "assistant");
    buf_append_str(&c->calls, c->calls.len ? ",{\"id\":" : "{\"id\":");
    json_write(&c->calls, id, &opts);
    buf_append_str(&c->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    json_write_string(&c->calls, name, strlen(name));
    buf_append_str(&c->calls, ",\"arguments\":");
    json_write(&c->calls, arguments, &opts);
    buf_append_str(&c->calls, "}}");
    if (json_object_set_new(c->names, json_string_value(id), json_string(name)) != 0) c->failed = true;
}

void conversation_result(struct conversation *c, const json_t *id, struct str text)
{
    const struct json_write_opts opts = { 0 };
    const char *name = json_string_value(json_object_get(c->names, json_string_value(id)));
    flush(c);
    c->begun = true;
    buf_append_str(&c->list, c->list.len ? ",{\"role\":\"tool\",\"tool_call_id\":" : "{\"role\":\"tool\",\"tool_call_id\":");
    json_write(&c->list, id, &opts);
    if (name) {
        buf_append_str(&c->list, ",\"name\":");
        json_write_string(&c->list, name, strlen(name));
    }
    buf_append_str(&c->list, ",\"content\":");
    json_write_string(&c->list, text.ptr ? text.ptr : "", text.len);
    buf_append_char(&c->list, '}');
}

mb_status conversation_finish(struct conversation *c, struct buf *out, const char **text, mb_error *err)
{
    flush(c);
    buf_clear(out);
    buf_append_char(out, '[');
    if (c->system.len) {
        buf_append_str(out, "{\"role\":\"system\",\"content\":");
        put_text(out, &c->system);
        buf_append_char(out, '}');
    }
    if (c->system.len && c->list.len) buf_append_char(out, ',');
    buf_append(out, c->list.data ? c->list.data : "", c->list.len);
    buf_append_char(out, ']');
    if (c->failed || c->system.failed || c->list.failed || out->failed)
        return mb_fail(err, MB_NO_MEMORY, "no memory for messages");
    *text = out->data;
    return MB_OK;
}
