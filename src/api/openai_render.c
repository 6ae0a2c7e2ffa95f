/* openai_render.c: gen_events -> chat.completion / text_completion, as JSON or as SSE chunks. One writer for both
 * dialects and both modes, so that a stream's pieces join to the JSON answer (API-110).
 *
 * A stream: role delta, content and reasoning deltas, one delta a tool call (API-108, Q22), one chunk per choice with finish_reason; the last of these holds
 * usage (API-105); with include_usage one more chunk without choices (Q11); "[DONE]". Stream chunks carry no logprobs
 * (API-109). */
#include <stdio.h>
#include <string.h>

#include "api/api_int.h"
#include "base/clock.h"

struct choice {
    struct buf content, reasoning, logprobs, calls;
    int32_t n_calls;
    enum gen_finish finish;
    bool ended;
};

struct openai_render {
    const struct api_dialect *d;
    const struct engine_client *client;
    bool stream, include_usage, want_logprobs;
    int32_t n_top, n_choices, n_ended;
    char id[48];
    int64_t created;
    int32_t n_prompt, n_cached, n_completion, n_reasoning;
    struct gen_fill_counts fill;
    struct buf head;          /* ..."created": N, "model": "x" : the same in every chunk */
    struct buf lead;          /* what the last chunk of text began with, up to its text; of this choice and channel */
    int32_t lead_choice;
    enum gen_channel lead_channel;
    struct choice *choices;   /* [n_choices] */
};

static void make_head(struct openai_render *w)
{
    const char *model = w->client->info(w->client->ctx)->id;
    buf_init(&w->head, 0);
    buf_init(&w->lead, 0);
    buf_printf(&w->head, "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, \"model\": ", w->id,
               w->stream ? w->d->chunk_object : w->d->object, (long long)w->created);
    json_write_string(&w->head, model, strlen(model));
}

static void render_close(void *ctx);

static mb_status render_open(void **out, const struct api_request *r, const struct engine_client *client, mb_error *err)
{
    struct openai_render *w = mb_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return mb_fail(err, MB_NO_MEMORY, "no memory for an answer");
    w->d = r->dialect;
    w->client = client;
    w->stream = r->stream;
    w->include_usage = r->include_usage;
    w->want_logprobs = r->want_logprobs && !r->stream;
    w->n_top = r->n_top;
    w->n_choices = r->gen.n_choices;
    w->created = clock_unix_s();
    api_make_id(w->id, sizeof w->id, w->d->id_prefix);
    make_head(w);
    w->choices = mb_calloc((size_t)w->n_choices, sizeof *w->choices);
    if (!w->choices || w->head.failed) {
        render_close(w);
        return mb_fail(err, MB_NO_MEMORY, "no memory for an answer");
    }
    *out = w;
    return MB_OK;
}

static void render_close(void *ctx)
{
    struct openai_render *w = ctx;
    if (!w) return;
    for (int32_t i = 0; w->choices && i < w->n_choices; i++) {
        buf_free(&w->choices[i].content);
        buf_free(&w->choices[i].reasoning);
        buf_free(&w->choices[i].logprobs);
        buf_free(&w->choices[i].calls);
    }
    mb_free(w->choices);
    buf_free(&w->head);
    buf_free(&w->lead);
    mb_free(w);
}

/* --- pieces of JSON --- */
static void put_usage(struct openai_render *w, struct buf *out)
{
    buf_printf(out,
               "{\"prompt_tokens\": %d, \"completion_tokens\": %d, \"total_tokens\": %d, "
               "\"prompt_tokens_details\": {\"cached_tokens\": %d}, "
               "\"completion_tokens_details\": {\"reasoning_tokens\": %d}, \"lane\": \"%s\"",
               (int)w->n_prompt, (int)w->n_completion, (int)(w->n_prompt + w->n_completion), (int)w->n_cached,
               (int)w->n_reasoning, api_lane(w->client));
    api_put_fill(out, &w->fill);
    buf_append_char(out, '}');
}

static const char *finish_name(enum gen_finish f)
{
    return f == GEN_FINISH_LENGTH ? "length" : f == GEN_FINISH_TOOL_CALLS ? "tool_calls" : "stop";
}

static void put_str(struct buf *out, const struct buf *b)
{
    json_write_string(out, b->data ? b->data : "", b->len);
}

/* --- logprobs (section 7) --- */
static void put_pair(struct openai_render *w, struct buf *out, int32_t id, float logprob)
{
    size_t len = 0;
    const char *piece = w->client->piece(w->client->ctx, id, &len);
    buf_printf(out, "\"id\": %d, \"token\": ", (int)id);
    json_write_string(out, piece ? piece : "", len);
    buf_append_str(out, ", \"logprob\": ");
    json_write_double(out, (double)logprob);
}

static void add_logprob(struct openai_render *w, struct choice *c, const struct gen_token_info *t)
{
    struct buf *out = &c->logprobs;
    int32_t n = t->n_top < w->n_top ? t->n_top : w->n_top;
    buf_append_str(out, out->len ? ", {" : "{");
    if (w->n_top == 0) {
        buf_printf(out, "\"id\": %d, \"logprob\": ", (int)t->id);
        json_write_double(out, (double)t->logprob);
    } else { /* API-116: the head is the top candidate */
        put_pair(w, out, n ? t->top_id[0] : t->id, n ? t->top_logprob[0] : t->logprob);
        buf_append_str(out, ", \"top_logprobs\": [");
        for (int32_t i = 0; i < n; i++) {
            buf_append_str(out, i ? ", {" : "{");
            put_pair(w, out, t->top_id[i], t->top_logprob[i]);
            buf_append_str(out, "}");
        }
        buf_append_str(out, "]");
    }
    buf_append_str(out, "}");
}

/* --- chunks --- */
static void chunk_begin(struct openai_render *w, int32_t i_choice, struct buf *out)
{
    buf_append_str(out, "data: ");
    buf_append(out, w->head.data, w->head.len);
    buf_printf(out, ", \"choices\": [{\"index\": %d, ", (int)i_choice);
}

static void chunk_role(struct openai_render *w, struct buf *out)
{
    for (int32_t i = 0; w->d->is_chat && i < w->n_choices; i++) {
        chunk_begin(w, i, out);
        buf_append_str(out, "\"delta\": {\"role\": \"assistant\", \"content\": \"\"}, \"finish_reason\": null}]}\n\n");
    }
}

/* Nothing but the text changes from token to token: what stands before it is written once. */
static const struct buf *text_lead(struct openai_render *w, const struct gen_event *ev)
{
    bool same = w->lead.len && w->lead_choice == ev->i_choice && w->lead_channel == ev->u.text.channel;
    if (same) return &w->lead;
    buf_clear(&w->lead);
    w->lead_choice = ev->i_choice;
    w->lead_channel = ev->u.text.channel;
    chunk_begin(w, ev->i_choice, &w->lead);
    buf_append_str(&w->lead, !w->d->is_chat ? "\"text\": " : w->lead_channel == GEN_REASONING ? "\"delta\": {\"reasoning_content\": "
                                                                                         : "\"delta\": {\"content\": ");
    return &w->lead;
}

static void chunk_text(struct openai_render *w, const struct gen_event *ev, struct buf *out)
{
    const struct buf *lead = text_lead(w, ev);
    struct str t = ev->u.text.text;
    if (lead->failed) {
        out->failed = lead->failed;
        return;
    }
    buf_append(out, lead->data, lead->len);
    json_write_string(out, t.ptr, t.len);
    if (w->d->is_chat && ev->u.text.channel == GEN_REASONING) {
        buf_append_str(out, ", \"reasoning\": ");
        json_write_string(out, t.ptr, t.len);
    }
    buf_append_str(out, w->d->is_chat ? "}, \"finish_reason\": null}]}\n\n" : ", \"finish_reason\": null}]}\n\n");
}

/* {"id", "type", "function": {"name", "arguments"}}; the arguments are a text (API-095). */
static void put_call(const struct gen_event *ev, struct buf *out)
{
    buf_append_str(out, "\"id\": ");
    json_write_string(out, ev->u.tool.id.ptr, ev->u.tool.id.len);
    buf_append_str(out, ", \"type\": \"function\", \"function\": {\"name\": ");
    json_write_string(out, ev->u.tool.name.ptr, ev->u.tool.name.len);
    buf_append_str(out, ", \"arguments\": ");
    json_write_string(out, ev->u.tool.arguments.ptr, ev->u.tool.arguments.len);
    buf_append_str(out, "}}");
}

static void on_call(struct openai_render *w, struct choice *c, const struct gen_event *ev, struct buf *out)
{
    if (w->stream) {
        chunk_begin(w, ev->i_choice, out);
        buf_printf(out, "\"delta\": {\"tool_calls\": [{\"index\": %d, ", (int)c->n_calls);
        put_call(ev, out);
        buf_append_str(out, "]}, \"finish_reason\": null}]}\n\n");
    } else {
        buf_append_str(&c->calls, c->n_calls ? ", {" : "{");
        put_call(ev, &c->calls);
    }
    c->n_calls++;
}

static void chunk_end(struct openai_render *w, const struct gen_event *ev, struct buf *out)
{
    chunk_begin(w, ev->i_choice, out);
    buf_printf(out, "%s, \"finish_reason\": \"%s\"}]", w->d->is_chat ? "\"delta\": {}" : "\"text\": \"\"",
               finish_name(ev->u.end.finish));
    if (w->n_ended == w->n_choices) {
        buf_append_str(out, ", \"usage\": ");
        put_usage(w, out);
    }
    buf_append_str(out, "}\n\n");
}

static void chunk_done(struct openai_render *w, struct buf *out)
{
    if (w->include_usage) {
        buf_append_str(out, "data: ");
        buf_append(out, w->head.data, w->head.len);
        buf_append_str(out, ", \"choices\": [], \"usage\": ");
        put_usage(w, out);
        buf_append_str(out, "}\n\n");
    }
    buf_append_str(out, "data: [DONE]\n\n");
}

static void render_error(void *ctx, const mb_error *e, struct buf *out)
{
    struct openai_render *w = ctx;
    buf_append_str(out, "data: ");
    api_error_body_of(out, w->d, e);
    buf_append_str(out, "\n\ndata: [DONE]\n\n");
}

/* --- events --- */
static void on_end(struct openai_render *w, const struct gen_event *ev)
{
    struct choice *c = &w->choices[ev->i_choice];
    if (c->ended) return;
    c->ended = true;
    c->finish = ev->u.end.finish;
    w->n_ended++;
    w->n_completion += ev->u.end.n_completion;
    w->n_reasoning += ev->u.end.n_reasoning;
    api_add_fill(&w->fill, &ev->u.end.fill);
}

static mb_status render_event(void *ctx, const struct gen_event *ev, struct buf *out, mb_error *err)
{
    struct openai_render *w = ctx;
    struct choice *c = ev->i_choice >= 0 && ev->i_choice < w->n_choices ? &w->choices[ev->i_choice] : NULL;
    if (!c) return mb_fail(err, MB_INTERNAL, "an event names choice %d of %d", (int)ev->i_choice, (int)w->n_choices);
    switch (ev->type) {
    case GEN_EV_START:
        w->n_prompt = ev->u.start.n_prompt;
        w->n_cached = ev->u.start.n_cached;
        if (w->stream) chunk_role(w, out);
        break;
    case GEN_EV_TEXT:
        if (w->stream) chunk_text(w, ev, out);
        else buf_append(ev->u.text.channel == GEN_REASONING ? &c->reasoning : &c->content, ev->u.text.text.ptr,
                        ev->u.text.text.len);
        break;
    case GEN_EV_TOOL:
        on_call(w, c, ev, out);
        break;
    case GEN_EV_TOKEN:
        if (w->want_logprobs) add_logprob(w, c, &ev->u.token);
        break;
    case GEN_EV_END:
        if (ev->u.end.finish == GEN_FINISH_CANCELLED)
            return mb_fail(err, MB_CANCELLED, "the generation was cancelled before it ended");
        on_end(w, ev);
        if (w->stream) chunk_end(w, ev, out);
        break;
    case GEN_EV_DONE:
        if (w->n_ended < w->n_choices) return mb_fail(err, MB_CANCELLED, "the generation was cancelled before it ended");
        if (w->stream) chunk_done(w, out);
        break;
    default:
        break;
    }
    MB_TRY(buf_status(&c->content, "answer", err));
    MB_TRY(buf_status(&c->reasoning, "answer", err));
    MB_TRY(buf_status(&c->logprobs, "answer", err));
    MB_TRY(buf_status(&c->calls, "answer", err));
    return buf_status(out, "answer", err);
}

/* --- the JSON answer --- */
static void put_choice(struct openai_render *w, int32_t i, struct buf *out)
{
    struct choice *c = &w->choices[i];
    buf_printf(out, "%s{\"index\": %d, ", i ? ", " : "", (int)i);
    if (w->d->is_chat) {
        buf_append_str(out, "\"message\": {\"role\": \"assistant\", \"content\": ");
        put_str(out, &c->content);
        if (c->reasoning.len) {
            buf_append_str(out, ", \"reasoning_content\": ");
            put_str(out, &c->reasoning);
            buf_append_str(out, ", \"reasoning\": ");
            put_str(out, &c->reasoning);
        }
        if (c->n_calls) {
            buf_append_str(out, ", \"tool_calls\": [");
            buf_append(out, c->calls.data, c->calls.len);
            buf_append_str(out, "]");
        }
        buf_append_str(out, "}");
    } else {
        buf_append_str(out, "\"text\": ");
        put_str(out, &c->content);
    }
    if (w->want_logprobs) {
        buf_append_str(out, ", \"logprobs\": {\"content\": [");
        buf_append(out, c->logprobs.data ? c->logprobs.data : "", c->logprobs.len);
        buf_append_str(out, "]}");
    }
    buf_printf(out, ", \"finish_reason\": \"%s\"}", finish_name(c->finish));
}

static mb_status render_answer(void *ctx, struct buf *out, mb_error *err)
{
    struct openai_render *w = ctx;
    buf_append(out, w->head.data, w->head.len);
    buf_append_str(out, ", \"choices\": [");
    for (int32_t i = 0; i < w->n_choices; i++) put_choice(w, i, out);
    buf_append_str(out, "], \"usage\": ");
    put_usage(w, out);
    buf_append_str(out, "}");
    return buf_status(out, "answer", err);
}

const struct api_renderer openai_renderer = {
    .open = render_open, .close = render_close, .event = render_event, .answer = render_answer, .error = render_error,
};
