/* anthropic_blocks.c: system and messages of the Anthropic dialect: content blocks -> the messages of the waist.
 *
 *   text                 text                              thinking            reasoning_content of the assistant (Q18)
 *   tool_use             a call                            redacted_thinking   nothing: nobody here can read it
 *   tool_result          a tool message; is_error marks it document            its text, when it is text
 *   image                400 on a text-only model (B-082)  anything else       400
 *
 * System text at the top, or in a `role: "system"` entry before the first answer, is the system message (agents put one
 * behind the first user turn). A later entry stays in its place, as a paragraph of the user's turn in <system-reminder>
 * tags: at the head it would change the prefix of every later request, and few templates take a second system message.
 *
 * A line `x-anthropic-billing-header: ...` at the beginning of system text differs from call to call; it is for the
 * vendor's books and would defeat the prefix cache, so it is dropped (B-079). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/anthropic_int.h"

struct place { size_t i, j; const char *field; }; /* messages[i].content[j], or system[j] */

static mb_status bad(const struct place *p, mb_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static mb_status bad(const struct place *p, mb_error *err, const char *fmt, ...)
{
    char text[256], where[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (strcmp(p->field, "system") == 0) snprintf(where, sizeof where, "system[%zu]", p->j);
    else snprintf(where, sizeof where, "messages[%zu].content[%zu]", p->i, p->j);
    return mb_fail_at(err, MB_INVALID, p->field, "%s%s", where, text);
}

static struct str text_of(const json_t *v)
{
    return (struct str){ json_string_value(v), json_string_length(v) };
}

static mb_status need_text(const json_t *block, const char *key, const struct place *p, struct str *out, mb_error *err)
{
    const json_t *v = json_object_get(block, key);
    if (!json_is_text(v)) return bad(p, err, ".%s must be of type str", key);
    *out = text_of(v);
    return MB_OK;
}

static const char *type_of(const json_t *block)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    return json_is_object(block) && type ? type : NULL;
}

static mb_status no_media(const char *type, const struct place *p, mb_error *err)
{
    return bad(p, err, ": this model takes no %s blocks, only text", type);
}

/* --- system --- */
static struct str without_billing(const struct api_request *r, struct str t)
{
    static const char name[] = "x-anthropic-billing-header:";
    if (r->env->keep_billing_header || t.len < sizeof name - 1 || memcmp(t.ptr, name, sizeof name - 1) != 0) return t;
    const char *end = memchr(t.ptr, '\n', t.len);
    if (!end) return (struct str){ "", 0 };
    return (struct str){ end + 1, t.len - (size_t)(end + 1 - t.ptr) };
}

static void reminder(struct conversation *c, struct str t)
{
    struct buf b;
    if (t.len == 0) return;
    buf_init(&b, 0);
    buf_append_str(&b, "<system-reminder>\n");
    buf_append(&b, t.ptr, t.len);
    buf_append_str(&b, "\n</system-reminder>");
    conversation_begin(c, "user");
    conversation_text(c, (struct str){ b.data ? b.data : "", b.len });
    if (b.failed) c->failed = true;
    buf_free(&b);
}

static mb_status system_text(const struct api_request *r, const json_t *v, struct place p, struct conversation *c, mb_error *err)
{
    bool head = !c->answered;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (!json_is_array(v) && !json_is_text(v))
        return mb_fail_at(err, MB_INVALID, p.field, "%s must be a string or an array of text blocks", p.field);
    for (p.j = 0; p.j < n; p.j++) {
        struct str t = text_of(v);
        if (json_is_array(v)) {
            const json_t *block = json_array_get(v, p.j);
            const char *type = type_of(block);
            if (!type || strcmp(type, "text") != 0) return bad(&p, err, " must be a block of type text");
            MB_TRY(need_text(block, "text", &p, &t, err));
        }
        t = without_billing(r, t);
        if (head) conversation_system(c, t);
        else reminder(c, t);
    }
    return MB_OK;
}

/* --- blocks --- */
/* The text of a document, or of a block inside a tool_result. */
static mb_status plain_text(const json_t *block, const struct place *p, struct buf *out, mb_error *err)
{
    const char *type = type_of(block);
    struct str t;
    if (!type) return bad(p, err, " must be an object with a type");
    if (strcmp(type, "text") == 0) {
        MB_TRY(need_text(block, "text", p, &t, err));
    } else if (strcmp(type, "document") == 0) {
        const json_t *source = json_object_get(block, "source");
        const char *kind = type_of(source);
        if (!kind || strcmp(kind, "text") != 0) return bad(p, err, ": only documents whose source is of type text can be read");
        MB_TRY(need_text(source, "data", p, &t, err));
    } else if (strcmp(type, "image") == 0) {
        return no_media(type, p, err);
    } else {
        return bad(p, err, " has a content block of an unknown type");
    }
    if (out->len) buf_append_str(out, "\n\n");
    buf_append(out, t.ptr, t.len);
    return buf_status(out, "messages", err);
}

static mb_status tool_result(const json_t *block, const struct place *p, struct conversation *c, mb_error *err)
{
    const json_t *id = json_object_get(block, "tool_use_id"), *content = field_get(block, "content");
    bool is_error = false;
    struct buf b;
    mb_status st = MB_OK;
    if (!json_is_text(id)) return bad(p, err, ".tool_use_id must be of type str");
    MB_TRY(field_bool(block, "is_error", &is_error, err));
    if (content && !json_is_text(content) && !json_is_array(content))
        return bad(p, err, ".content must be a string or an array of blocks");
    buf_init(&b, 0);
    for (size_t k = 0; k < json_array_size(content) && st == MB_OK; k++) st = plain_text(json_array_get(content, k), p, &b, err);
    if (json_is_text(content)) buf_append(&b, json_string_value(content), json_string_length(content));
    if (is_error && !(b.len >= 5 && strncasecmp(b.data, "error", 5) == 0)) { /* templates have no slot for the flag */
        struct buf marked;
        buf_init(&marked, 0);
        buf_append_str(&marked, b.len ? "Error: " : "Error");
        buf_append(&marked, b.data ? b.data : "", b.len);
        buf_free(&b);
        b = marked;
    }
    if (st == MB_OK) st = buf_status(&b, "messages", err);
    if (st == MB_OK) conversation_result(c, id, (struct str){ b.data, b.len });
    buf_free(&b);
    return st;
}

static mb_status user_block(const json_t *block, const struct place *p, struct conversation *c, mb_error *err)
{
    const char *type = type_of(block);
    struct buf b;
    if (type && strcmp(type, "tool_result") == 0) return tool_result(block, p, c, err);
    buf_init(&b, 0);
    mb_status st = plain_text(block, p, &b, err);
    if (st == MB_OK) {
        conversation_begin(c, "user");
        conversation_text(c, (struct str){ b.data ? b.data : "", b.len });
    }
    buf_free(&b);
    return st;
}

static mb_status tool_use(const json_t *block, const struct place *p, struct conversation *c, mb_error *err)
{
    const json_t *id = json_object_get(block, "id"), *input = field_get(block, "input");
    struct str name;
    if (!json_is_text(id)) return bad(p, err, ".id must be of type str");
    MB_TRY(need_text(block, "name", p, &name, err));
    if (input && !json_is_object(input)) return bad(p, err, ".input must be of type dict");
    json_t *none = input ? NULL : json_object();
    if (!input && !none) return mb_fail(err, MB_NO_MEMORY, "no memory for messages");
    conversation_call(c, id, name.ptr, input ? input : none);
    json_decref(none);
    return MB_OK;
}

static mb_status assistant_block(const json_t *block, const struct place *p, struct conversation *c, mb_error *err)
{
    const char *type = type_of(block);
    struct str t;
    if (!type) return bad(p, err, " must be an object with a type");
    if (strcmp(type, "text") == 0) {
        MB_TRY(need_text(block, "text", p, &t, err));
        conversation_text(c, t);
        return MB_OK;
    }
    if (strcmp(type, "thinking") == 0) {
        MB_TRY(need_text(block, "thinking", p, &t, err));
        conversation_reasoning(c, t);
        return MB_OK;
    }
    if (strcmp(type, "redacted_thinking") == 0) return MB_OK;
    if (strcmp(type, "tool_use") == 0) return tool_use(block, p, c, err);
    if (strcmp(type, "image") == 0) return no_media(type, p, err);
    return bad(p, err, " is a content block of an unknown type");
}

/* --- messages --- */
static mb_status message(const struct api_request *r, const json_t *m, size_t i, struct conversation *c, mb_error *err)
{
    const json_t *content = json_object_get(m, "content");
    const char *role = json_string_value(json_object_get(m, "role"));
    struct place p = { .i = i, .field = "messages" };
    if (!json_is_object(m) || !role) return mb_fail_at(err, MB_INVALID, "messages", "messages[%zu].role must be of type str", i);
    if (strcmp(role, "system") == 0) return system_text(r, content, p, c, err);
    bool user = strcmp(role, "user") == 0;
    if (!user && strcmp(role, "assistant") != 0)
        return mb_fail_at(err, MB_INVALID, "messages", "messages[%zu].role must be user, assistant or system", i);
    if (!json_is_text(content) && !json_is_array(content))
        return mb_fail_at(err, MB_INVALID, "messages", "messages[%zu].content must be a string or an array of blocks", i);
    if (json_is_text(content) || !user) conversation_begin(c, user ? "user" : "assistant");
    if (json_is_text(content)) conversation_text(c, text_of(content));
    for (p.j = 0; p.j < json_array_size(content); p.j++) {
        const json_t *block = json_array_get(content, p.j);
        MB_TRY(user ? user_block(block, &p, c, err) : assistant_block(block, &p, c, err));
    }
    return MB_OK;
}

mb_status anthropic_history(const struct api_request *r, const json_t *body, struct conversation *c, bool *prefill,
                            mb_error *err)
{
    const json_t *system = field_get(body, "system"), *list = json_object_get(body, "messages");
    if (system) MB_TRY(system_text(r, system, (struct place){ .field = "system" }, c, err));
    if (!json_is_array(list)) return mb_fail_at(err, MB_INVALID, "messages", "messages must be an array of messages");
    if (json_array_size(list) == 0) return mb_fail_at(err, MB_INVALID, "messages", "messages must not be empty");
    for (size_t i = 0; i < json_array_size(list); i++) MB_TRY(message(r, json_array_get(list, i), i, c, err));
    if (conversation_is_empty(c)) return mb_fail_at(err, MB_INVALID, "messages", "messages hold no turn of the user");
    *prefill = c->role && strcmp(c->role, "assistant") == 0 && c->content.len && !c->calls.len;
    return MB_OK;
}
