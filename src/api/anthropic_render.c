/* anthropic_render.c: gen_events -> an Anthropic message, as JSON or as its event grammar (API-230..236, B-076):
 *
 *   message_start                        with the prompt's usage; a ping follows (Q35)
 *   content_block_start, _delta.., _stop index 0, 1, ..; one kind at a time: thinking, text, tool_use
 *   message_delta                        stop_reason, stop_sequence, usage
 *   message_stop
 *
 * One writer for both modes: a block is opened, gets pieces, is closed; a stream tells each step, an answer keeps the
 * closed blocks. A thought's signature comes before its block stops: a digest of its text, so that the protocol's field
 * is there; a replayed thought is accepted whatever its signature says, for its text is all that it is worth here.
 *
 * input_tokens counts what was computed; with cache_read_input_tokens it is what count_tokens says (API-334). */
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "api/anthropic_int.h"

enum block { BLOCK_NONE = 0, BLOCK_TEXT, BLOCK_THINKING };

struct anthropic_render {
    const struct engine_client *client;
    bool stream, warm_up, started, ended;
    char id[48];
    enum block open;
    int32_t n_blocks;             /* opened so far */
    struct buf lead;              /* of the open block's deltas, up to their text; empty: not written yet */
    struct buf text;              /* of the open block */
    struct buf blocks;            /* closed blocks, JSON; answers only */
    struct buf stop;              /* the matched stop string */
    bool stopped;                 /* by it */
    enum gen_finish finish;
    int32_t n_prompt, n_cached, n_completion;
    struct gen_fill_counts fill;
};

static void render_close(void *ctx)
{
    struct anthropic_render *w = ctx;
    if (!w) return;
    buf_free(&w->lead);
    buf_free(&w->text);
    buf_free(&w->blocks);
    buf_free(&w->stop);
    mb_free(w);
}

static mb_status render_open(void **out, const struct api_request *r, const struct engine_client *client, mb_error *err)
{
    const struct anthropic_extra *x = r->priv;
    struct anthropic_render *w = mb_calloc(1, sizeof *w);
    *out = w;
    if (!w) return mb_fail(err, MB_NO_MEMORY, "no memory for an answer");
    w->client = client;
    w->stream = r->stream;
    w->warm_up = x->warm_up;
    api_make_id(w->id, sizeof w->id, r->dialect->id_prefix);
    buf_init(&w->lead, 0);
    buf_init(&w->text, 0);
    buf_init(&w->blocks, 0);
    buf_init(&w->stop, 0);
    return MB_OK;
}

/* --- pieces of JSON --- */
static void put_str(struct buf *out, const struct buf *b)
{
    json_write_string(out, b->data ? b->data : "", b->len);
}

static void put_usage(const struct anthropic_render *w, struct buf *out)
{
    buf_printf(out, "{\"input_tokens\": %d, \"cache_creation_input_tokens\": 0, \"cache_read_input_tokens\": %d, "
                    "\"output_tokens\": %d, \"lane\": \"%s\"",
               (int)(w->n_prompt - w->n_cached), (int)w->n_cached, (int)w->n_completion, api_lane(w->client));
    api_put_fill(out, &w->fill);
    buf_append_char(out, '}');
}

static void put_stop(const struct anthropic_render *w, struct buf *out)
{
    const char *reason = w->stopped ? "stop_sequence" : w->finish == GEN_FINISH_LENGTH ? "max_tokens"
                       : w->finish == GEN_FINISH_TOOL_CALLS ? "tool_use" : "end_turn";
    if (!w->ended) {
        buf_append_str(out, "\"stop_reason\": null, \"stop_sequence\": null");
        return;
    }
    buf_printf(out, "\"stop_reason\": \"%s\", \"stop_sequence\": ", reason);
    if (w->stopped) put_str(out, &w->stop);
    else buf_append_str(out, "null");
}

/* The message: whole in an answer, still empty in message_start. */
static void put_message(const struct anthropic_render *w, struct buf *out)
{
    const char *model = w->client->info(w->client->ctx)->id;
    buf_printf(out, "{\"id\": \"%s\", \"type\": \"message\", \"role\": \"assistant\", \"model\": ", w->id);
    json_write_string(out, model, strlen(model));
    buf_append_str(out, ", \"content\": [");
    buf_append(out, w->blocks.data ? w->blocks.data : "", w->blocks.len);
    buf_append_str(out, "], ");
    put_stop(w, out);
    buf_append_str(out, ", \"usage\": ");
    put_usage(w, out);
    buf_append_char(out, '}');
}

static void put_signature(const struct anthropic_render *w, struct buf *out)
{
    XXH128_hash_t h = XXH3_128bits(w->text.data ? w->text.data : "", w->text.len);
    buf_printf(out, "\"%016llx%016llx\"", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

/* --- blocks --- */
static void event(struct buf *out, const char *type)
{
    buf_printf(out, "event: %s\ndata: {\"type\": \"%s\"", type, type);
}

static void block_event(const struct anthropic_render *w, struct buf *out, const char *type)
{
    event(out, type);
    buf_printf(out, ", \"index\": %d", (int)w->n_blocks - 1);
}

static void delta_lead(const struct anthropic_render *w, struct buf *out, const char *type, const char *key)
{
    block_event(w, out, "content_block_delta");
    buf_printf(out, ", \"delta\": {\"type\": \"%s\", \"%s\": ", type, key);
}

static void delta_text(struct buf *out, struct str text)
{
    json_write_string(out, text.ptr, text.len);
    buf_append_str(out, "}}\n\n");
}

/* Of the open block: nothing but the text changes from one to the next. */
static void block_delta(struct anthropic_render *w, struct buf *out, const char *type, const char *key, struct str text)
{
    if (!w->lead.len) delta_lead(w, &w->lead, type, key);
    if (w->lead.failed) {
        out->failed = w->lead.failed;
        return;
    }
    buf_append(out, w->lead.data, w->lead.len);
    delta_text(out, text);
}

static void close_thinking(struct anthropic_render *w, struct buf *out)
{
    if (w->stream) {
        block_event(w, out, "content_block_delta");
        buf_append_str(out, ", \"delta\": {\"type\": \"signature_delta\", \"signature\": ");
        put_signature(w, out);
        buf_append_str(out, "}}\n\n");
        return;
    }
    buf_append_str(&w->blocks, "{\"type\": \"thinking\", \"thinking\": ");
    put_str(&w->blocks, &w->text);
    buf_append_str(&w->blocks, ", \"signature\": ");
    put_signature(w, &w->blocks);
    buf_append_char(&w->blocks, '}');
}

static void close_block(struct anthropic_render *w, struct buf *out)
{
    if (w->open == BLOCK_NONE) return;
    if (w->open == BLOCK_THINKING) {
        close_thinking(w, out);
    } else if (!w->stream) {
        buf_append_str(&w->blocks, "{\"type\": \"text\", \"text\": ");
        put_str(&w->blocks, &w->text);
        buf_append_char(&w->blocks, '}');
    }
    if (w->stream) {
        block_event(w, out, "content_block_stop");
        buf_append_str(out, "}\n\n");
    }
    w->open = BLOCK_NONE;
    buf_clear(&w->lead);
    buf_clear(&w->text);
}

static void open_block(struct anthropic_render *w, enum block kind, struct buf *out)
{
    if (w->open == kind) return;
    close_block(w, out);
    w->open = kind;
    if (w->n_blocks++ > 0 && !w->stream) buf_append_str(&w->blocks, ", ");
    if (!w->stream) return;
    block_event(w, out, "content_block_start");
    buf_append_str(out, kind == BLOCK_TEXT ? ", \"content_block\": {\"type\": \"text\", \"text\": \"\"}}\n\n"
                                           : ", \"content_block\": {\"type\": \"thinking\", \"thinking\": \"\", \"signature\": \"\"}}\n\n");
}

static void on_text(struct anthropic_render *w, const struct gen_event *ev, struct buf *out)
{
    bool thinking = ev->u.text.channel == GEN_REASONING;
    struct str t = ev->u.text.text;
    open_block(w, thinking ? BLOCK_THINKING : BLOCK_TEXT, out);
    if (!w->stream || thinking) buf_append(&w->text, t.ptr, t.len);
    if (!w->stream) return;
    if (thinking) block_delta(w, out, "thinking_delta", "thinking", t);
    else block_delta(w, out, "text_delta", "text", t);
}

/* --- tool calls --- */
static void put_tool_head(struct buf *out, const struct gen_event *ev)
{
    struct str id = ev->u.tool.id, name = ev->u.tool.name;
    buf_append_str(out, "{\"type\": \"tool_use\", \"id\": ");
    json_write_string(out, id.ptr, id.len);
    buf_append_str(out, ", \"name\": ");
    json_write_string(out, name.ptr, name.len);
    buf_append_str(out, ", \"input\": ");
}

/* The input as an object; a call that max_tokens cut off has only a beginning of one, which stays text (B-058). */
static void put_input(struct buf *out, const struct gen_event *ev)
{
    struct str a = ev->u.tool.arguments;
    if (ev->u.tool.partial) json_write_string(out, a.ptr, a.len);
    else if (a.len == 0) buf_append_str(out, "{}");
    else buf_append(out, a.ptr, a.len);
}

static void on_tool(struct anthropic_render *w, const struct gen_event *ev, struct buf *out)
{
    close_block(w, out);
    if (w->n_blocks++ > 0 && !w->stream) buf_append_str(&w->blocks, ", ");
    if (!w->stream) {
        put_tool_head(&w->blocks, ev);
        put_input(&w->blocks, ev);
        buf_append_char(&w->blocks, '}');
        return;
    }
    block_event(w, out, "content_block_start");
    buf_append_str(out, ", \"content_block\": ");
    put_tool_head(out, ev);
    buf_append_str(out, "{}}}\n\n");
    delta_lead(w, out, "input_json_delta", "partial_json");
    delta_text(out, ev->u.tool.arguments);
    block_event(w, out, "content_block_stop");
    buf_append_str(out, "}\n\n");
}

/* --- the message --- */
static void on_start(struct anthropic_render *w, const struct gen_event *ev, struct buf *out)
{
    w->n_prompt = ev->u.start.n_prompt;
    w->n_cached = ev->u.start.n_cached;
    w->started = true;
    if (!w->stream) return;
    event(out, "message_start");
    buf_append_str(out, ", \"message\": ");
    put_message(w, out);
    buf_append_str(out, "}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n");
}

static void on_end(struct anthropic_render *w, const struct gen_event *ev, struct buf *out)
{
    if (w->ended) return;
    close_block(w, out);
    w->ended = true;
    w->finish = w->warm_up ? GEN_FINISH_LENGTH : ev->u.end.finish;
    w->n_completion = w->warm_up ? 0 : ev->u.end.n_completion;
    w->fill = ev->u.end.fill;
    w->stopped = ev->u.end.stop != NULL && !w->warm_up && w->finish == GEN_FINISH_STOP;
    if (w->stopped) buf_append_str(&w->stop, ev->u.end.stop);
}

static void on_done(struct anthropic_render *w, struct buf *out)
{
    if (!w->stream) return;
    event(out, "message_delta");
    buf_append_str(out, ", \"delta\": {");
    put_stop(w, out);
    buf_append_str(out, "}, \"usage\": ");
    put_usage(w, out);
    buf_append_str(out, "}\n\n");
    event(out, "message_stop");
    buf_append_str(out, "}\n\n");
}

static mb_status render_event(void *ctx, const struct gen_event *ev, struct buf *out, mb_error *err)
{
    struct anthropic_render *w = ctx;
    bool cut = ev->type == GEN_EV_END && ev->u.end.finish == GEN_FINISH_CANCELLED;
    if (cut || (ev->type == GEN_EV_DONE && !w->ended))
        return mb_fail(err, MB_CANCELLED, "the generation was cancelled before it ended");
    switch (ev->type) {
    case GEN_EV_START: on_start(w, ev, out); break;
    case GEN_EV_TEXT: if (!w->warm_up) on_text(w, ev, out); break;
    case GEN_EV_TOOL: if (!w->warm_up) on_tool(w, ev, out); break;
    case GEN_EV_END: on_end(w, ev, out); break;
    case GEN_EV_DONE: on_done(w, out); break;
    default: break;
    }
    MB_TRY(buf_status(&w->text, "answer", err));
    MB_TRY(buf_status(&w->blocks, "answer", err));
    MB_TRY(buf_status(&w->stop, "answer", err));
    return buf_status(out, "answer", err);
}

static mb_status render_answer(void *ctx, struct buf *out, mb_error *err)
{
    put_message(ctx, out);
    return buf_status(out, "answer", err);
}

static void render_error(void *ctx, const mb_error *e, struct buf *out)
{
    (void)ctx;
    buf_append_str(out, "event: error\ndata: ");
    api_error_body_of(out, &api_anthropic, e);
    buf_append_str(out, "\n\n");
}

/* Before message_start a comment is safer: clients take message_start for the first event. */
static void render_ping(void *ctx, struct buf *out)
{
    const struct anthropic_render *w = ctx;
    if (w->started) buf_append_str(out, "event: ping\ndata: {\"type\": \"ping\"}\n\n");
}

const struct api_renderer anthropic_renderer = {
    .open = render_open, .close = render_close, .event = render_event, .answer = render_answer, .error = render_error,
    .ping = render_ping,
};
