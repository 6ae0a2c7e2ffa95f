/* responses_render.c: gen_events -> a response object, as JSON or as its events (API-242..244, B-083, B-086):
 *
 *   response.created, response.in_progress
 *   for each item: response.output_item.added, what it is made of, response.output_item.done
 *   response.completed | response.incomplete (max_output_tokens) | response.failed
 *
 * Every event has a sequence_number from 0 without gaps; items have an id made of the response's and their place, so
 * that a reference to one finds its response. One writer for both modes: an item is opened, gets pieces, is closed and
 * kept; a stream tells each step besides.
 *
 * A thought is a reasoning item: its text is its content, or its summary when reasoning.summary asks for one (nobody
 * here makes a shorter text of it). A finished response is stored before its last event is sent. */
#include <stdio.h>
#include <string.h>

#include "api/responses_int.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/log.h"

enum item { ITEM_NONE = 0, ITEM_MESSAGE, ITEM_REASONING, ITEM_SUMMARY };

/* How an item of text is told. */
static const struct form {
    const char *type, *id_prefix;     /* of the item */
    const char *text, *part, *index;  /* response.TEXT.delta, response.PART.added, name of the part's index */
    const char *part_type;
} FORMS[] = {
    [ITEM_MESSAGE] = { "message", "msg", "output_text", "content_part", "content_index", "output_text" },
    [ITEM_REASONING] = { "reasoning", "rs", "reasoning_text", "content_part", "content_index", "reasoning_text" },
    [ITEM_SUMMARY] = { "reasoning", "rs", "reasoning_summary_text", "reasoning_summary_part", "summary_index", "summary_text" },
};

struct responses_render {
    const struct api_request *r;      /* borrowed; priv holds what is repeated */
    const struct responses_extra *x;
    const struct engine_client *client;
    bool started, ended;
    char id[48];
    int64_t created;
    int32_t seq;                      /* of the next event */
    enum item open;
    char item_id[64];                 /* of the open item */
    int32_t n_items;                  /* opened so far */
    struct buf lead;                  /* of the open item's deltas, up to their text; empty: not written yet */
    size_t seq_at;                    /* where in it their sequence_number goes */
    struct buf text;                  /* of the open item */
    struct buf items;                 /* closed items, JSON */
    enum gen_finish finish;
    int32_t n_prompt, n_cached, n_completion, n_reasoning;
    struct gen_fill_counts fill;
};

static void render_close(void *ctx)
{
    struct responses_render *w = ctx;
    if (!w) return;
    buf_free(&w->lead);
    buf_free(&w->text);
    buf_free(&w->items);
    mb_free(w);
}

static mb_status render_open(void **out, const struct api_request *r, const struct engine_client *client, mb_error *err)
{
    struct responses_render *w = mb_calloc(1, sizeof *w);
    *out = w;
    if (!w) return mb_fail(err, MB_NO_MEMORY, "no memory for an answer");
    w->r = r;
    w->x = r->priv;
    w->client = client;
    w->created = clock_unix_s();
    api_make_id(w->id, sizeof w->id, r->dialect->id_prefix);
    buf_init(&w->lead, 0);
    buf_init(&w->text, 0);
    buf_init(&w->items, 0);
    return MB_OK;
}

/* --- the response object --- */
static void put_usage(const struct responses_render *w, struct buf *out)
{
    buf_printf(out, "{\"input_tokens\": %d, \"input_tokens_details\": {\"cached_tokens\": %d, \"cache_write_tokens\": 0}, "
                    "\"output_tokens\": %d, \"output_tokens_details\": {\"reasoning_tokens\": %d}, \"total_tokens\": %d, \"lane\": \"%s\"",
               (int)w->n_prompt, (int)w->n_cached, (int)w->n_completion, (int)w->n_reasoning,
               (int)(w->n_prompt + w->n_completion), api_lane(w->client));
    api_put_fill(out, &w->fill);
    buf_append_char(out, '}');
}

static const char *status_of(const struct responses_render *w)
{
    return !w->ended ? "in_progress" : w->finish == GEN_FINISH_LENGTH ? "incomplete" : "completed";
}

/* The error of a failed response: a code that its clients know, and the text. */
static void put_error(const mb_error *e, struct buf *out)
{
    const struct error_row *row = error_row_get(e->code);
    const char *code = e->code == MB_CONTEXT_LENGTH ? "context_length_exceeded" : row->http_status == 429 ? "rate_limit_exceeded"
                     : row->http_status >= 500 ? "server_error" : "invalid_prompt";
    buf_printf(out, "{\"code\": \"%s\", \"message\": ", code);
    json_write_string(out, e->text, strlen(e->text));
    buf_append_char(out, '}');
}

static void put_response(const struct responses_render *w, const mb_error *e, struct buf *out)
{
    const char *model = w->client->info(w->client->ctx)->id, *status = e ? "failed" : status_of(w);
    buf_printf(out, "{\"id\": \"%s\", \"object\": \"response\", \"created_at\": %lld, \"status\": \"%s\", \"background\": false, "
                    "\"error\": ", w->id, (long long)w->created, status);
    if (e) put_error(e, out);
    else buf_append_str(out, "null");
    buf_printf(out, ", \"incomplete_details\": %s, \"model\": ",
               strcmp(status, "incomplete") == 0 ? "{\"reason\": \"max_output_tokens\"}" : "null");
    json_write_string(out, model, strlen(model));
    buf_append(out, w->x->echo.data, w->x->echo.len);
    buf_append_str(out, ", \"output\": [");
    buf_append(out, w->items.data ? w->items.data : "", w->items.len);
    buf_append_str(out, "], \"usage\": ");
    if (w->ended) put_usage(w, out);
    else buf_append_str(out, "null");
    buf_append_char(out, '}');
}

/* --- events --- */
static bool event(struct responses_render *w, struct buf *out, const char *type)
{
    if (!w->r->stream) return false;
    buf_printf(out, "event: response.%s\ndata: {\"type\": \"response.%s\", \"sequence_number\": %d", type, type, (int)w->seq++);
    return true;
}

static void whole_event(struct responses_render *w, struct buf *out, const char *type, const mb_error *e)
{
    if (!event(w, out, type)) return;
    buf_append_str(out, ", \"response\": ");
    put_response(w, e, out);
    buf_append_str(out, "}\n\n");
}

/* An event about the open item; the caller ends it. */
static bool item_event(struct responses_render *w, struct buf *out, const char *type, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", type, what);
    if (!event(w, out, name)) return false;
    buf_printf(out, ", \"item_id\": \"%s\", \"output_index\": %d", w->item_id, (int)w->n_items - 1);
    return true;
}

static void put_text(const struct responses_render *w, struct buf *out, struct str text)
{
    json_write_string(out, text.ptr ? text.ptr : "", text.len);
    buf_append_str(out, w->open == ITEM_MESSAGE ? ", \"logprobs\": []}\n\n" : "}\n\n");
}

static void text_done(struct responses_render *w, struct buf *out, struct str text)
{
    const struct form *f = &FORMS[w->open];
    if (!item_event(w, out, f->text, "done")) return;
    buf_printf(out, ", \"%s\": 0, \"text\": ", f->index);
    put_text(w, out, text);
}

static void delta_lead(struct responses_render *w)
{
    const struct form *f = &FORMS[w->open];
    buf_printf(&w->lead, "event: response.%s.delta\ndata: {\"type\": \"response.%s.delta\", \"sequence_number\": ", f->text, f->text);
    w->seq_at = w->lead.len;
    buf_printf(&w->lead, ", \"item_id\": \"%s\", \"output_index\": %d, \"%s\": 0, \"delta\": ", w->item_id, (int)w->n_items - 1, f->index);
}

/* Nothing but number and text changes from one to the next. */
static void text_delta(struct responses_render *w, struct buf *out, struct str text)
{
    if (!w->lead.len) delta_lead(w);
    if (w->lead.failed) {
        out->failed = w->lead.failed;
        return;
    }
    buf_append(out, w->lead.data, w->seq_at);
    json_write_int(out, w->seq++);
    buf_append(out, w->lead.data + w->seq_at, w->lead.len - w->seq_at);
    put_text(w, out, text);
}

static void put_part(const struct form *f, struct str text, struct buf *out)
{
    buf_printf(out, "{\"type\": \"%s\", \"text\": ", f->part_type);
    json_write_string(out, text.ptr ? text.ptr : "", text.len);
    buf_append_str(out, f == &FORMS[ITEM_MESSAGE] ? ", \"annotations\": [], \"logprobs\": []}" : "}");
}

static void part_event(struct responses_render *w, struct buf *out, const char *what, struct str text)
{
    const struct form *f = &FORMS[w->open];
    if (!item_event(w, out, f->part, what)) return;
    buf_printf(out, ", \"%s\": 0, \"part\": ", f->index);
    put_part(f, text, out);
    buf_append_str(out, "}\n\n");
}

/* {"type": "response.output_item.WHAT", ..., "item": ITEM} */
static void output_item_event(struct responses_render *w, struct buf *out, const char *what, struct str item)
{
    char name[32];
    snprintf(name, sizeof name, "output_item.%s", what);
    if (!event(w, out, name)) return;
    buf_printf(out, ", \"output_index\": %d, \"item\": ", (int)w->n_items - 1);
    buf_append(out, item.ptr, item.len);
    buf_append_str(out, "}\n\n");
}

/* --- items --- */
static void put_item(const struct responses_render *w, const char *status, bool empty, struct buf *out)
{
    const struct form *f = &FORMS[w->open];
    struct str text = empty ? (struct str){ "", 0 } : (struct str){ w->text.data, w->text.len };
    buf_printf(out, "{\"id\": \"%s\", \"type\": \"%s\", \"status\": \"%s\"", w->item_id, f->type, status);
    if (w->open == ITEM_MESSAGE) buf_append_str(out, ", \"role\": \"assistant\"");
    if (w->open == ITEM_REASONING) buf_append_str(out, ", \"summary\": []");
    buf_append_str(out, w->open == ITEM_SUMMARY ? ", \"summary\": [" : ", \"content\": [");
    if (!empty) put_part(f, text, out);
    buf_append_char(out, ']');
    if (w->open != ITEM_MESSAGE && !empty && w->x->want_sealed) {
        struct buf sealed;
        buf_init(&sealed, 0);
        buf_append_str(&sealed, RESPONSES_SEALED);
        buf_append(&sealed, text.ptr ? text.ptr : "", text.len);
        buf_append_str(out, ", \"encrypted_content\": ");
        json_write_string(out, sealed.data ? sealed.data : "", sealed.len);
        buf_free(&sealed);
    }
    buf_append_char(out, '}');
}

/* A closed item joins the output. */
static void keep(struct responses_render *w, struct buf *out, struct buf *item)
{
    if (w->items.len) buf_append_str(&w->items, ", ");
    buf_append(&w->items, item->data ? item->data : "", item->len);
    if (item->failed) w->items.failed = item->failed;
    output_item_event(w, out, "done", (struct str){ item->data ? item->data : "", item->len });
}

static void next_item(struct responses_render *w, const char *prefix)
{
    snprintf(w->item_id, sizeof w->item_id, "%s_%s_%d", prefix, w->id + sizeof "resp_" - 1, (int)w->n_items);
    w->n_items++;
}

static void close_item(struct responses_render *w, struct buf *out, const char *status)
{
    struct str text = { w->text.data ? w->text.data : "", w->text.len };
    struct buf item;
    if (w->open == ITEM_NONE) return;
    text_done(w, out, text);
    part_event(w, out, "done", text);
    buf_init(&item, 0);
    put_item(w, status, false, &item);
    keep(w, out, &item);
    buf_free(&item);
    w->open = ITEM_NONE;
    buf_clear(&w->lead);
    buf_clear(&w->text);
}

static void open_item(struct responses_render *w, struct buf *out, enum item kind)
{
    struct buf item;
    if (w->open == kind) return;
    close_item(w, out, "completed");
    w->open = kind;
    next_item(w, FORMS[kind].id_prefix);
    buf_init(&item, 0);
    put_item(w, "in_progress", true, &item);
    output_item_event(w, out, "added", (struct str){ item.data ? item.data : "", item.len });
    buf_free(&item);
    part_event(w, out, "added", (struct str){ "", 0 });
}

static void on_text(struct responses_render *w, const struct gen_event *ev, struct buf *out)
{
    bool thought = ev->u.text.channel == GEN_REASONING;
    struct str t = ev->u.text.text;
    open_item(w, out, !thought ? ITEM_MESSAGE : w->x->want_summary ? ITEM_SUMMARY : ITEM_REASONING);
    buf_append(&w->text, t.ptr, t.len);
    if (w->r->stream) text_delta(w, out, t);
}

/* --- calls --- */
static void put_name(const struct responses_render *w, struct str shown, struct buf *out)
{
    const json_t *pair = json_object_getn(w->x->names, shown.ptr, shown.len);
    if (pair) {
        const char *space = json_string_value(json_array_get(pair, 0)), *name = json_string_value(json_array_get(pair, 1));
        buf_append_str(out, "\"namespace\": ");
        json_write_string(out, space, strlen(space));
        buf_append_str(out, ", \"name\": ");
        json_write_string(out, name, strlen(name));
    } else {
        buf_append_str(out, "\"name\": ");
        json_write_string(out, shown.ptr, shown.len);
    }
}

static void put_call(const struct responses_render *w, const struct gen_event *ev, const char *status, struct str arguments,
                     struct buf *out)
{
    buf_printf(out, "{\"id\": \"%s\", \"type\": \"function_call\", \"status\": \"%s\", \"call_id\": ", w->item_id, status);
    json_write_string(out, ev->u.tool.id.ptr, ev->u.tool.id.len);
    buf_append_str(out, ", ");
    put_name(w, ev->u.tool.name, out);
    buf_append_str(out, ", \"arguments\": ");
    json_write_string(out, arguments.ptr, arguments.len);
    buf_append_char(out, '}');
}

static void on_tool(struct responses_render *w, const struct gen_event *ev, struct buf *out)
{
    struct str arguments = ev->u.tool.arguments;
    struct buf item;
    close_item(w, out, "completed");
    next_item(w, "fc");
    buf_init(&item, 0);
    put_call(w, ev, "in_progress", (struct str){ "", 0 }, &item);
    output_item_event(w, out, "added", (struct str){ item.data ? item.data : "", item.len });
    if (item_event(w, out, "function_call_arguments", "delta")) {
        buf_append_str(out, ", \"delta\": ");
        json_write_string(out, arguments.ptr, arguments.len);
        buf_append_str(out, "}\n\n");
    }
    if (item_event(w, out, "function_call_arguments", "done")) {
        buf_append_str(out, ", ");
        put_name(w, ev->u.tool.name, out);
        buf_append_str(out, ", \"arguments\": ");
        json_write_string(out, arguments.ptr, arguments.len);
        buf_append_str(out, "}\n\n");
    }
    buf_clear(&item);
    put_call(w, ev, ev->u.tool.partial ? "incomplete" : "completed", arguments, &item); /* B-058 */
    keep(w, out, &item);
    buf_free(&item);
}

/* --- the response --- */
static void on_start(struct responses_render *w, struct buf *out)
{
    if (w->started) return;
    w->started = true;
    whole_event(w, out, "created", NULL);
    whole_event(w, out, "in_progress", NULL);
}

static void on_end(struct responses_render *w, const struct gen_event *ev, struct buf *out)
{
    if (w->ended) return;
    w->finish = ev->u.end.finish;
    w->n_completion = ev->u.end.n_completion;
    w->n_reasoning = ev->u.end.n_reasoning;
    w->fill = ev->u.end.fill;
    close_item(w, out, w->finish == GEN_FINISH_LENGTH ? "incomplete" : "completed");
    w->ended = true;
}

static void store(const struct responses_render *w)
{
    struct buf whole, output;
    mb_error err = { 0 };
    if (!w->x->store) return;
    buf_init(&whole, 0);
    buf_init(&output, 0);
    put_response(w, NULL, &whole);
    buf_append_char(&output, '[');
    buf_append(&output, w->items.data ? w->items.data : "", w->items.len);
    buf_append_char(&output, ']');
    const struct str parts[RESPONSE_N_PARTS] = {
        [RESPONSE_OBJECT] = { whole.data, whole.len }, [RESPONSE_INPUT] = { w->x->input.data, w->x->input.len },
        [RESPONSE_OUTPUT] = { output.data, output.len },
        [RESPONSE_INSTRUCTIONS] = { w->x->instructions.data, w->x->instructions.len } };
    mb_status st = whole.failed ? whole.failed : output.failed ? output.failed : response_store_put(w->r->env->store, w->id, parts, &err);
    if (st != MB_OK) LOGW("responses", "%s is not stored: %s", w->id, err.text[0] ? err.text : "no memory");
    buf_free(&whole);
    buf_free(&output);
}

static void on_done(struct responses_render *w, struct buf *out)
{
    store(w);
    whole_event(w, out, w->finish == GEN_FINISH_LENGTH ? "incomplete" : "completed", NULL);
}

static mb_status render_event(void *ctx, const struct gen_event *ev, struct buf *out, mb_error *err)
{
    struct responses_render *w = ctx;
    bool cut = ev->type == GEN_EV_END && ev->u.end.finish == GEN_FINISH_CANCELLED;
    if (cut || (ev->type == GEN_EV_DONE && !w->ended))
        return mb_fail(err, MB_CANCELLED, "the generation was cancelled before it ended");
    if (ev->type == GEN_EV_START) {
        w->n_prompt = ev->u.start.n_prompt;
        w->n_cached = ev->u.start.n_cached;
    }
    switch (ev->type) {
    case GEN_EV_START: on_start(w, out); break;
    case GEN_EV_TEXT: on_text(w, ev, out); break;
    case GEN_EV_TOOL: on_tool(w, ev, out); break;
    case GEN_EV_END: on_end(w, ev, out); break;
    case GEN_EV_DONE: on_done(w, out); break;
    default: break;
    }
    MB_TRY(buf_status(&w->text, "answer", err));
    MB_TRY(buf_status(&w->items, "answer", err));
    return buf_status(out, "answer", err);
}

static mb_status render_answer(void *ctx, struct buf *out, mb_error *err)
{
    put_response(ctx, NULL, out);
    return buf_status(out, "answer", err);
}

/* A stream that a comment line opened before anything was generated begins like any other. */
static void render_error(void *ctx, const mb_error *e, struct buf *out)
{
    struct responses_render *w = ctx;
    on_start(w, out);
    whole_event(w, out, "failed", e);
}

const struct api_renderer responses_renderer = {
    .open = render_open, .close = render_close, .event = render_event, .answer = render_answer, .error = render_error,
};
