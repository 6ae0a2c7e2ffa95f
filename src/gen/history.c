/* history.c: makes the messages of a request fit the model's template, as trees, before it runs: tool arguments become objects
 * (B-016); call ids become what a template demands; results move into the message of their calls where a template wants that
 * (Gemma 4); calls and results become text where a template knows neither; thoughts get the name that it reads; a note of ours
 * goes into the system text. */
#include <string.h>

#include "base/json.h"
#include "gen/gen_int.h"

static mb_status no_memory(mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "no memory for messages");
}

static const char *source_of(const struct gen_renderer *t)
{
    const char *s = t->templates.tool_use ? t->templates.source_of_tool_use : t->templates.source_of_default;
    return s ? s : "";
}

bool render_knows_tools(const struct gen_renderer *t)
{
    return strstr(source_of(t), "tools") != NULL;
}

bool render_knows_calls(const struct gen_renderer *t)
{
    return strstr(source_of(t), "tool_calls") != NULL;
}

/* --- arguments --- */
static mb_status decode_arguments(json_t *call, size_t i, size_t j, mb_error *err)
{
    json_t *fn = json_object_get(call, "function");
    json_t *holder = json_is_object(fn) ? fn : call;
    json_t *args = json_object_get(holder, "arguments");
    json_t *parsed = NULL;
    mb_error why = { 0 };
    if (json_is_object(args)) return MB_OK;
    if (!args || json_is_null(args) || (json_is_string(args) && json_string_length(args) == 0)) {
        parsed = json_object(); /* some clients send no arguments as "", or leave them out */
    } else if (json_is_string(args)) {
        json_read(&parsed, json_string_value(args), json_string_length(args), JSON_READ_ANY, &why);
    }
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return mb_fail_at(err, MB_INVALID, "messages",
                          "messages[%zu].tool_calls[%zu].function.arguments must be a JSON object%s%s", i, j,
                          why.text[0] ? ": " : "", why.text);
    }
    return json_object_set_new(holder, "arguments", parsed) == 0 ? MB_OK : no_memory(err);
}

static mb_status check_messages(json_t *messages, mb_error *err)
{
    size_t n = json_array_size(messages);
    if (!json_is_array(messages) || n == 0)
        return mb_fail_at(err, MB_INVALID, "messages", "messages must be a non-empty array");
    for (size_t i = 0; i < n; i++) {
        json_t *m = json_array_get(messages, i);
        if (!json_is_object(m)) return mb_fail_at(err, MB_INVALID, "messages", "messages[%zu] must be an object", i);
        json_t *calls = json_object_get(m, "tool_calls");
        for (size_t j = 0; j < json_array_size(calls); j++)
            MB_TRY(decode_arguments(json_array_get(calls, j), i, j, err));
    }
    return MB_OK;
}

/* --- ids of nine letters and digits (Mistral's templates raise for others) --- */
static bool wants_short_ids(const struct gen_renderer *t)
{
    const char *s = source_of(t);
    return strstr(s, "!= 9") && strstr(s, "tool_call");
}

static bool is_short_id(const char *id)
{
    size_t n = 0;
    for (; id[n]; n++)
        if (!((id[n] >= '0' && id[n] <= '9') || (id[n] >= 'A' && id[n] <= 'Z') || (id[n] >= 'a' && id[n] <= 'z'))) return false;
    return n == 9;
}

static mb_status shorten(json_t *holder, const char *key, mb_error *err)
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const char *id = json_string_value(json_object_get(holder, key));
    char out[10] = { 0 };
    uint64_t h = 0xCBF29CE484222325u;
    if (!id || is_short_id(id)) return MB_OK;
    for (; *id; id++) h = (h ^ (unsigned char)*id) * 0x100000001B3u;
    h ^= h >> 29;
    for (int i = 0; i < 9; i++, h /= 62) out[i] = digits[h % 62];
    return json_object_set_new(holder, key, json_string(out)) == 0 ? MB_OK : no_memory(err);
}

static mb_status shorten_all(json_t *messages, mb_error *err)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *calls = json_object_get(m, "tool_calls");
        MB_TRY(shorten(m, "tool_call_id", err));
        for (size_t j = 0; j < json_array_size(calls); j++) MB_TRY(shorten(json_array_get(calls, j), "id", err));
    }
    return MB_OK;
}

/* --- templates that want results in the message that made the calls: "tool_responses", [{name, response}] --- */
static bool wants_responses(const struct gen_renderer *t)
{
    const char *s = source_of(t);
    return strstr(s, "tool_responses") && !strstr(s, "== 'tool'") && !strstr(s, "== \"tool\"");
}

static bool has_role(const json_t *m, const char *role)
{
    const char *is = json_string_value(json_object_get(m, "role"));
    return is && strcmp(is, role) == 0;
}

/* The function that result i answers: by the call's id, or by its place. */
static json_t *called_name(const json_t *calls, const json_t *result, size_t i)
{
    const char *id = json_string_value(json_object_get(result, "tool_call_id"));
    const json_t *call = json_array_get(calls, i);
    for (size_t j = 0; id && j < json_array_size(calls); j++) {
        const char *is = json_string_value(json_object_get(json_array_get(calls, j), "id"));
        if (is && strcmp(is, id) == 0) call = json_array_get(calls, j);
    }
    json_t *name = json_object_get(json_object_get(call, "function"), "name");
    return name ? name : json_object_get(result, "name");
}

/* A result that is a JSON object is one for the template too; anything else stays what it is. NULL: no memory. */
static json_t *response_value(const json_t *content)
{
    json_t *parsed = NULL;
    mb_error why;
    mb_status st = MB_OK;
    if (json_is_text(content)) st = json_read(&parsed, json_string_value(content), json_string_length(content), JSON_READ_ANY, &why);
    if (json_is_object(parsed) || st == MB_NO_MEMORY) return parsed;
    json_decref(parsed);
    return content ? json_deep_copy(content) : json_string("");
}

/* Text beside the calls becomes a message of its own: a turn that results end goes on in the next one. */
static mb_status text_before_calls(json_t *messages, size_t i, mb_error *err)
{
    json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
    bool some = json_is_string(content) ? json_string_length(content) > 0 : json_array_size(content) > 0;
    json_t *before = some ? json_pack("{s:s, s:O}", "role", "assistant", "content", content) : NULL;
    if (some && !before) return no_memory(err);
    json_object_del(m, "content");
    return !some || json_array_insert_new(messages, i, before) == 0 ? MB_OK : no_memory(err);
}

static mb_status move_results(json_t *messages, size_t i, mb_error *err)
{
    json_t *m = json_array_get(messages, i), *calls = json_object_get(m, "tool_calls"), *all = json_array();
    if (!all || json_object_set_new(m, "tool_responses", all) != 0) return no_memory(err);
    for (size_t n = 0; has_role(json_array_get(messages, i + 1), "tool"); n++) {
        const json_t *result = json_array_get(messages, i + 1);
        json_t *one = json_object(), *name = called_name(calls, result, n);
        bool ok = one && json_object_set_new(one, "response", response_value(json_object_get(result, "content"))) == 0;
        if (ok && name) ok = json_object_set(one, "name", name) == 0;
        if (!ok) {
            json_decref(one);
            return no_memory(err);
        }
        if (json_array_append_new(all, one) != 0 || json_array_remove(messages, i + 1) != 0) return no_memory(err);
    }
    return text_before_calls(messages, i, err);
}

static mb_status results_to_calls(json_t *messages, mb_error *err)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        if (json_array_size(json_object_get(m, "tool_calls")) && has_role(json_array_get(messages, i + 1), "tool"))
            MB_TRY(move_results(messages, i, err));
    }
    return MB_OK;
}

/* --- templates that know no calls --- */
static mb_status set_text(json_t *m, const char *key, struct buf *b, mb_error *err)
{
    mb_status st = buf_status(b, "messages", err);
    if (st == MB_OK && json_object_set_new(m, key, json_stringn(b->data ? b->data : "", b->len)) != 0) st = no_memory(err);
    buf_free(b);
    return st;
}

static mb_status calls_as_text(json_t *m, json_t *calls, mb_error *err)
{
    struct buf b;
    const json_t *content = json_object_get(m, "content");
    buf_init(&b, 0);
    if (json_is_text(content)) buf_append(&b, json_string_value(content), json_string_length(content));
    for (size_t j = 0; j < json_array_size(calls); j++) {
        const json_t *fn = json_object_get(json_array_get(calls, j), "function");
        const char *name = json_string_value(json_object_get(fn, "name"));
        if (b.len) buf_append_char(&b, '\n');
        tool_prompt_call(&b, name ? name : "", json_object_get(fn, "arguments"));
    }
    json_object_del(m, "tool_calls");
    return set_text(m, "content", &b, err);
}

static mb_status result_as_text(json_t *m, mb_error *err)
{
    struct buf b;
    const json_t *content = json_object_get(m, "content");
    buf_init(&b, 0);
    buf_append_str(&b, "<tool_response>\n");
    if (json_is_text(content)) buf_append(&b, json_string_value(content), json_string_length(content));
    buf_append_str(&b, "\n</tool_response>");
    if (json_object_set_new(m, "role", json_string("user")) != 0) b.failed = MB_NO_MEMORY;
    return set_text(m, "content", &b, err);
}

static mb_status calls_to_text(json_t *messages, mb_error *err)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *calls = json_object_get(m, "tool_calls");
        const char *role = json_string_value(json_object_get(m, "role"));
        if (json_array_size(calls)) MB_TRY(calls_as_text(m, calls, err));
        if (role && strcmp(role, "tool") == 0) MB_TRY(result_as_text(m, err));
    }
    return MB_OK;
}

/* --- thoughts --- */

/* Some templates read a thought under another name; beside calls they take a thought or a content, not both. */
static mb_status name_thoughts(json_t *messages, mb_error *err)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i), *thought = json_object_get(m, "reasoning_content");
        bool other = json_array_size(json_object_get(m, "tool_calls")) && json_string_length(json_object_get(m, "content"));
        if (!json_is_text(thought) || json_object_get(m, "thinking") || other) continue;
        if (json_object_set(m, "thinking", thought) != 0) return no_memory(err);
    }
    return MB_OK;
}

/* --- the note --- */
static mb_status add_note(json_t *messages, const char *note, enum note_place place, mb_error *err)
{
    const char *role = place == NOTE_SYSTEM ? "system" : "user";
    for (size_t i = 0; i < json_array_size(messages) && (place == NOTE_USER || i == 0); i++) {
        json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        const char *is = json_string_value(json_object_get(m, "role"));
        struct buf b;
        if (!is || strcmp(is, role) != 0 || !json_is_text(content)) continue;
        buf_init(&b, 0);
        if (place == NOTE_USER) buf_printf(&b, "%s\n\n", note);
        buf_append(&b, json_string_value(content), json_string_length(content));
        if (place == NOTE_SYSTEM) buf_printf(&b, "\n\n%s", note);
        return set_text(m, "content", &b, err);
    }
    json_t *m = json_pack("{s:s, s:s}", "role", role, "content", note);
    return m && json_array_insert_new(messages, 0, m) == 0 ? MB_OK : no_memory(err);
}

mb_status history_prepare(const struct gen_renderer *t, json_t *messages, const char *note, enum note_place place, mb_error *err)
{
    MB_TRY(check_messages(messages, err));
    if (wants_short_ids(t)) MB_TRY(shorten_all(messages, err));
    if (wants_responses(t)) MB_TRY(results_to_calls(messages, err));
    if (!strstr(source_of(t), "tool_calls")) MB_TRY(calls_to_text(messages, err));
    if (strstr(source_of(t), "message.thinking")) MB_TRY(name_thoughts(messages, err));
    return note ? add_note(messages, note, place, err) : MB_OK;
}
