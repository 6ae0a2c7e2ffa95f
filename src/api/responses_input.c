/* responses_input.c: input items of the Responses dialect -> the messages of the waist.
 *
 *   message                user, assistant; system and developer go to the head, behind instructions (API-238)
 *   function_call          a call of the assistant        reasoning       its thought (content, sealed text or summary)
 *   function_call_output   a tool message                 item_reference  an output item of a stored response
 *
 * previous_response_id puts the stored input and output of that response in front, and its instructions when this
 * request has none (API-245, API-246). They are replayed as items, like a client's own history: the template writes them
 * again, and the prefix cache finds what it wrote the same way before. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/responses_int.h"

struct reader {
    struct api_request *r;
    struct conversation c;
    size_t i;                /* of the item, for errors */
    const char *where;       /* "input", or "previous_response_id" while that is replayed */
    bool stored;
};

static mb_status bad(const struct reader *d, mb_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static mb_status bad(const struct reader *d, mb_error *err, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mb_fail_at(err, MB_INVALID, d->where, "%s[%zu]%s", d->where, d->i, text);
}

static struct str text_of(const json_t *v)
{
    return (struct str){ json_string_value(v), json_string_length(v) };
}

/* --- content --- */
typedef void (*take_fn)(struct reader *d, struct str text);

static mb_status part(struct reader *d, const json_t *p, size_t j, take_fn take, mb_error *err)
{
    static const char *const texts[] = { "input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal" };
    const char *type = json_string_value(json_object_get(p, "type"));
    if (!json_is_object(p) || !type) return bad(d, err, ".content[%zu] must be an object with a type", j);
    for (size_t k = 0; k < sizeof texts / sizeof texts[0]; k++) {
        if (strcmp(type, texts[k]) != 0) continue;
        const char *key = strcmp(type, "refusal") == 0 ? "refusal" : "text";
        const json_t *text = json_object_get(p, key);
        if (!json_is_text(text)) return bad(d, err, ".content[%zu].%s must be of type str", j, key);
        take(d, text_of(text));
        return MB_OK;
    }
    if (strcmp(type, "input_image") == 0 || strcmp(type, "input_file") == 0 || strcmp(type, "input_audio") == 0)
        return bad(d, err, ".content[%zu]: this model takes no %s parts, only text", j, type);
    return bad(d, err, ".content[%zu] has an unknown type; text is supported", j);
}

static mb_status content(struct reader *d, const json_t *v, const char *name, take_fn take, mb_error *err)
{
    if (json_is_text(v)) {
        take(d, text_of(v));
        return MB_OK;
    }
    if (!json_is_array(v)) return bad(d, err, ".%s must be a string or an array of parts", name);
    for (size_t j = 0; j < json_array_size(v); j++) MB_TRY(part(d, json_array_get(v, j), j, take, err));
    return MB_OK;
}

static void take_system(struct reader *d, struct str t) { conversation_system(&d->c, t); }
static void take_text(struct reader *d, struct str t) { conversation_text(&d->c, t); }
static void take_thought(struct reader *d, struct str t) { conversation_reasoning(&d->c, t); }

/* --- items --- */
static mb_status message(struct reader *d, const json_t *it, mb_error *err)
{
    const char *role = json_string_value(json_object_get(it, "role"));
    const json_t *v = json_object_get(it, "content");
    if (!role) return bad(d, err, ".role must be of type str");
    if (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0) return content(d, v, "content", take_system, err);
    bool user = strcmp(role, "user") == 0;
    if (!user && strcmp(role, "assistant") != 0) return bad(d, err, ".role must be user, assistant, system or developer");
    conversation_begin(&d->c, user ? "user" : "assistant");
    return content(d, v, "content", take_text, err);
}

static mb_status check_arguments(const struct reader *d, const json_t *args, mb_error *err)
{
    mb_error why;
    if (!json_is_text(args)) return bad(d, err, ".arguments must be of type str");
    if (common_holds_object(args, &why)) return MB_OK;
    return bad(d, err, ".arguments must be a JSON object in a string%s%.120s", why.text[0] ? ": " : "", why.text);
}

static mb_status function_call(struct reader *d, const json_t *it, mb_error *err)
{
    const json_t *id = json_object_get(it, "call_id"), *name = json_object_get(it, "name"), *args = json_object_get(it, "arguments");
    if (!json_is_text(id)) return bad(d, err, ".call_id must be of type str");
    if (!json_is_text(name)) return bad(d, err, ".name must be of type str");
    MB_TRY(check_arguments(d, args, err));
    const char *shown = responses_tool_name(&d->r->arena, json_string_value(json_object_get(it, "namespace")), json_string_value(name));
    if (!shown) return mb_fail(err, MB_NO_MEMORY, "no memory for the input");
    conversation_call(&d->c, id, shown, args);
    return MB_OK;
}

static mb_status call_output(struct reader *d, const json_t *it, mb_error *err)
{
    const json_t *id = json_object_get(it, "call_id"), *v = json_object_get(it, "output");
    if (!json_is_text(id)) return bad(d, err, ".call_id must be of type str");
    if (json_is_text(v)) {
        conversation_result(&d->c, id, text_of(v));
        return MB_OK;
    }
    if (!json_is_array(v)) return bad(d, err, ".output must be a string or an array of parts");
    struct buf b;
    mb_status st = MB_OK;
    buf_init(&b, 0);
    for (size_t j = 0; j < json_array_size(v) && st == MB_OK; j++) {
        const json_t *p = json_array_get(v, j), *text = json_object_get(p, "text");
        if (!json_is_text(text)) st = bad(d, err, ".output[%zu] must be a text part: this model takes text only", j);
        else buf_append(&b, json_string_value(text), json_string_length(text));
    }
    if (st == MB_OK) st = buf_status(&b, "input", err);
    if (st == MB_OK) conversation_result(&d->c, id, (struct str){ b.data ? b.data : "", b.len });
    buf_free(&b);
    return st;
}

static mb_status reasoning(struct reader *d, const json_t *it, mb_error *err)
{
    const json_t *v = field_get(it, "content"), *sealed = field_get(it, "encrypted_content"), *summary = field_get(it, "summary");
    const size_t n_mark = sizeof RESPONSES_SEALED - 1;
    struct str s = text_of(sealed);
    if (json_is_text(v) || json_array_size(v) > 0) return content(d, v, "content", take_thought, err);
    if (json_is_text(sealed) && s.len >= n_mark && memcmp(s.ptr, RESPONSES_SEALED, n_mark) == 0) {
        take_thought(d, (struct str){ s.ptr + n_mark, s.len - n_mark });
        return MB_OK;
    }
    return json_array_size(summary) > 0 ? content(d, summary, "summary", take_thought, err) : MB_OK;
}

static mb_status item(struct reader *d, const json_t *it, mb_error *err)
{
    static const struct { const char *type; mb_status (*read)(struct reader *, const json_t *, mb_error *); } kinds[] = {
        { "message", message }, { "function_call", function_call }, { "function_call_output", call_output }, { "reasoning", reasoning },
    };
    const char *type = json_string_value(json_object_get(it, "type"));
    if (!json_is_object(it)) return bad(d, err, " must be an object");
    if (!type && json_object_get(it, "role")) type = "message";
    if (!type) return bad(d, err, ".type must be of type str");
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        if (strcmp(type, kinds[k].type) == 0) return kinds[k].read(d, it, err);
    return bad(d, err, " is an item of an unknown type %.64s", type);
}

/* --- what the store has --- */
static mb_status stored(const struct api_env *env, const char *id, struct buf *const parts[RESPONSE_N_PARTS],
                        const char *field, mb_error *err)
{
    mb_error why = { 0 };
    mb_status st = env->store ? response_store_get(env->store, id, parts, &why)
                              : mb_fail(&why, MB_NOT_FOUND, "there is no response %.80s: nothing is stored here", id);
    if (st == MB_OK) return MB_OK;
    return mb_fail_at(err, st, field, "%s: %s", field, why.text);
}

static mb_status parse(json_t **out, const struct buf *b, mb_error *err)
{
    return json_read(out, b->data ? b->data : "[]", b->data ? b->len : 2, JSON_READ_ANY, err);
}

static mb_status no_item(const char *id, mb_error *err)
{
    return mb_fail_at(err, MB_NOT_FOUND, "input", "there is no item %.80s in a stored response", id);
}

/* "msg_<digits>_<place>": the digits are those of the response's id (responses_render.c). New reference. */
static mb_status find_item(const struct api_env *env, const char *id, json_t **out, mb_error *err)
{
    const char *from = strchr(id, '_'), *end = strrchr(id, '_');
    char response[96];
    struct buf b;
    struct buf *parts[RESPONSE_N_PARTS] = { [RESPONSE_OUTPUT] = &b };
    json_t *list = NULL;
    *out = NULL;
    if (!from || from == end || end - from >= 64) return no_item(id, err);
    snprintf(response, sizeof response, "resp%.*s", (int)(end - from), from);
    buf_init(&b, 0);
    mb_status st = stored(env, response, parts, "input", err);
    if (st == MB_OK) st = parse(&list, &b, err);
    for (size_t i = 0; i < json_array_size(list) && !*out; i++) {
        json_t *it = json_array_get(list, i);
        const char *s = json_string_value(json_object_get(it, "id"));
        if (s && strcmp(s, id) == 0) *out = json_incref(it);
    }
    json_decref(list);
    buf_free(&b);
    return (st == MB_OK && !*out) || st == MB_NOT_FOUND ? no_item(id, err) : st;
}

/* References become what they name, in place. */
static mb_status resolve(const struct api_env *env, json_t *list, mb_error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *it = json_array_get(list, i), *found;
        const char *type = json_string_value(json_object_get(it, "type")), *id = json_string_value(json_object_get(it, "id"));
        if (!type || strcmp(type, "item_reference") != 0) continue;
        if (!id) return mb_fail_at(err, MB_INVALID, "input", "input[%zu].id must be of type str", i);
        MB_TRY(find_item(env, id, &found, err));
        if (json_array_set_new(list, i, found) != 0) return mb_fail(err, MB_NO_MEMORY, "no memory for the input");
    }
    return MB_OK;
}

/* --- the form in which items are stored: with type, id, and content as parts --- */
static bool normalise(json_t *it)
{
    const char *type = json_string_value(json_object_get(it, "type")), *role = json_string_value(json_object_get(it, "role"));
    json_t *v = json_object_get(it, "content");
    char id[48];
    bool ok = true;
    if (!type) ok = json_object_set_new(it, "type", json_string("message")) == 0;
    bool call = type && strncmp(type, "function_call", 13) == 0;
    api_make_id(id, sizeof id, call ? "fc_" : type && strcmp(type, "reasoning") == 0 ? "rs_" : "msg_");
    if (!field_get(it, "id")) ok = ok && json_object_set_new(it, "id", json_string(id)) == 0;
    if (!json_is_text(v)) return ok;
    json_t *p = json_object(), *list = json_array();
    const char *kind = role && strcmp(role, "assistant") == 0 ? "output_text" : "input_text";
    ok = ok && json_object_set_new(p, "type", json_string(kind)) == 0 && json_object_set(p, "text", v) == 0 &&
         (kind[0] == 'i' || json_object_set_new(p, "annotations", json_array()) == 0);
    ok = json_array_append_new(list, p) == 0 && ok;
    return json_object_set_new(it, "content", list) == 0 && ok;
}

static void put_items(struct buf *b, const json_t *list)
{
    const struct json_write_opts opts = { .python_spaces = true };
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (b->len > 1) buf_append_str(b, ", ");
        json_write(b, json_array_get(list, i), &opts);
    }
}

static mb_status keep_input(struct responses_extra *x, const json_t *before, const json_t *output, json_t *list, mb_error *err)
{
    bool ok = true;
    for (size_t i = 0; i < json_array_size(list); i++) ok = normalise(json_array_get(list, i)) && ok;
    if (!ok) return mb_fail(err, MB_NO_MEMORY, "no memory for the input");
    buf_append_char(&x->input, '[');
    put_items(&x->input, before);
    put_items(&x->input, output);
    put_items(&x->input, list);
    buf_append_char(&x->input, ']');
    return buf_status(&x->input, "input", err);
}

/* --- all --- */
static mb_status previous(struct api_request *r, const json_t *body, json_t **before, json_t **output, mb_error *err)
{
    struct responses_extra *x = r->priv;
    const char *id = NULL;
    struct buf in, out;
    struct buf *parts[RESPONSE_N_PARTS] = { [RESPONSE_INPUT] = &in, [RESPONSE_OUTPUT] = &out, [RESPONSE_INSTRUCTIONS] = &x->instructions };
    MB_TRY(field_str(body, "previous_response_id", &id, err));
    if (!id) return MB_OK;
    buf_init(&in, 0);
    buf_init(&out, 0);
    mb_status st = stored(r->env, id, parts, "previous_response_id", err);
    if (st == MB_OK) st = parse(before, &in, err);
    if (st == MB_OK) st = parse(output, &out, err);
    buf_free(&in);
    buf_free(&out);
    return st;
}

static mb_status instructions(struct responses_extra *x, const json_t *body, mb_error *err)
{
    const json_t *v = field_get(body, "instructions");
    if (!v) return MB_OK;
    if (!json_is_text(v)) return field_type_error("instructions", "str", err);
    buf_clear(&x->instructions);
    buf_append(&x->instructions, json_string_value(v), json_string_length(v));
    return buf_status(&x->instructions, "instructions", err);
}

static mb_status read_items(struct reader *d, const json_t *list, const char *where, mb_error *err)
{
    d->where = where;
    for (d->i = 0; d->i < json_array_size(list); d->i++) MB_TRY(item(d, json_array_get(list, d->i), err));
    return MB_OK;
}

/* `input` as a list: new reference. */
static mb_status input_list(json_t *body, json_t **out, mb_error *err)
{
    json_t *v = field_get(body, "input");
    *out = NULL;
    if (json_is_array(v)) {
        *out = json_incref(v);
    } else if (json_is_text(v)) {
        *out = json_pack("[{s:s,s:s,s:O}]", "type", "message", "role", "user", "content", v);
        if (!*out) return mb_fail(err, MB_NO_MEMORY, "no memory for the input");
    } else {
        return mb_fail_at(err, MB_INVALID, "input", "input must be a string or an array of items");
    }
    return MB_OK;
}

static mb_status build(struct reader *d, const json_t *before, const json_t *output, json_t *list, mb_error *err)
{
    struct responses_extra *x = d->r->priv;
    conversation_system(&d->c, (struct str){ x->instructions.data ? x->instructions.data : "", x->instructions.len });
    MB_TRY(read_items(d, before, "previous_response_id", err));
    MB_TRY(read_items(d, output, "previous_response_id", err));
    MB_TRY(resolve(d->r->env, list, err));
    MB_TRY(read_items(d, list, "input", err));
    if (conversation_is_empty(&d->c) && d->c.system.len == 0)
        return mb_fail_at(err, MB_INVALID, "input", "input must not be empty");
    MB_TRY(conversation_finish(&d->c, &d->r->messages, &d->r->gen.messages_json, err));
    return x->store ? keep_input(x, before, output, list, err) : MB_OK;
}

mb_status responses_input(struct api_request *r, json_t *body, mb_error *err)
{
    struct reader d = { .r = r };
    json_t *before = NULL, *output = NULL, *list = NULL;
    mb_status st = previous(r, body, &before, &output, err);
    if (st == MB_OK) st = instructions(r->priv, body, err);
    if (st == MB_OK) st = input_list(body, &list, err);
    conversation_init(&d.c);
    if (st == MB_OK) st = build(&d, before, output, list, err);
    conversation_free(&d.c);
    json_decref(before);
    json_decref(output);
    json_decref(list);
    r->gen.input = GEN_MESSAGES;
    r->gen.field = "input";
    return st;
}
