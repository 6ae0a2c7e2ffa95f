/* calls.c: tool calls of one choice: what the scanner finds becomes an event, what is no call goes on to the stop strings.
 * The id of a call is a function of the prompt, the choice, its place and what it says, so that the same request gives the
 * same answer and two turns of a conversation give different ids. */
#include <stdio.h>
#include <string.h>

#include "gen/gen_int.h"

bool calls_wanted(const struct gen_request *r)
{
    return r->input == GEN_MESSAGES && r->tools_json && r->tool_choice != TOOLS_NONE && !r->raw_split;
}

static uint64_t mix(uint64_t h, const void *data, size_t len)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i++) h = (h ^ p[i]) * 0x100000001B3u;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    return h ^ h >> 31;
}

static void make_id(const struct gen_choice *c, const struct tool_call *call, char *id, size_t size)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    const struct engine_job *job = &c->s->job;
    int32_t place[2] = { c->index, c->n_calls };
    uint64_t h = mix(0xCBF29CE484222325u, job->ids, (size_t)job->n_ids * sizeof *job->ids);
    h = mix(mix(h, place, sizeof place), call->name.ptr, call->name.len);
    h = mix(h, call->arguments.ptr, call->arguments.len);
    size_t n = (size_t)snprintf(id, size, "call_");
    for (uint64_t v = h, i = 0; n + 1 < size; i++, v /= 36) {
        if (i == 12) v = mix(h, "id", 2); /* 64 bits hold twelve digits */
        id[n++] = digits[v % 36];
    }
    id[n] = '\0';
}

static void on_call(void *ctx, const struct tool_call *call)
{
    struct gen_choice *c = ctx;
    char id[5 + 24 + 1];
    if (c->i_stop >= 0 || c->calls_done) return;
    deliver_stop_flush(c);
    make_id(c, call, id, sizeof id);
    struct gen_event ev = { .type = GEN_EV_TOOL, .i_choice = c->index };
    ev.u.tool.id.len = strlen(id);
    ev.u.tool.name.len = call->name.len;
    ev.u.tool.arguments.len = call->arguments.len;
    ev.u.tool.partial = call->partial;
    buf_clear(&c->piece);
    buf_append_str(&c->piece, id);
    buf_append(&c->piece, call->name.ptr, call->name.len);
    buf_append(&c->piece, call->arguments.ptr, call->arguments.len);
    if (c->piece.failed) c->failed = true;
    else stream_push(c->s, &ev, c->piece.data, c->piece.len, &c->failed);
    c->n_calls++;
    c->calls_done = c->s->req.parallel_tools == GIVEN_FALSE;
}

static void on_text(void *ctx, const char *text, size_t len)
{
    deliver_content(ctx, text, len);
}

struct tool_sink calls_sink(struct gen_choice *c)
{
    return (struct tool_sink){ .ctx = c, .text = on_text, .call = on_call };
}
