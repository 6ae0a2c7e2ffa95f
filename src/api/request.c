/* request.c: the life of a request and of its renderer, for every dialect: parse, compile, hand to the dialect's row. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "api/api_int.h"
#include "base/clock.h"

mb_status api_body_read(json_t **out, const char *body, size_t len, mb_error *err)
{
    MB_TRY(json_read(out, body, len, JSON_READ_REJECT_DUPLICATES | JSON_READ_ANY, err));
    if (json_is_object(*out)) return MB_OK;
    json_decref(*out);
    *out = NULL;
    return mb_fail(err, MB_INVALID, "the body must be a JSON object");
}

mb_status api_request_open(struct api_request **out, const struct api_dialect *d, const struct api_env *env,
                           const char *body, size_t len, mb_error *err)
{
    struct api_request *r = mb_calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    r->dialect = d;
    r->env = env;
    arena_init(&r->arena, ((size_t)1 << 20) + 32 * len);
    buf_init(&r->messages, 0);
    buf_init(&r->tools, 0);
    buf_init(&r->kwargs, 0);
    buf_init(&r->constraint, 0);
    buf_init(&r->warning, 4096);
    mb_status st = api_body_read(&r->body, body, len, err);
    if (st == MB_OK) st = d->compile(r, r->body, err);
    if (st != MB_OK) api_request_close(r);
    else *out = r;
    return st;
}

static void free_texts(struct api_request *r)
{
    json_decref(r->body);
    r->body = NULL;
    buf_free(&r->messages);
    buf_free(&r->tools);
    buf_free(&r->kwargs);
    buf_free(&r->constraint);
    arena_free(&r->arena);
}

void api_request_started(struct api_request *r)
{
    free_texts(r);
    memset(&r->gen.text, 0, sizeof r->gen.text);
    r->gen.messages_json = r->gen.tools_json = r->gen.template_kwargs_json = r->gen.tool_name = NULL;
    r->gen.constraint.text = NULL;
    r->gen.stops = NULL;
    r->gen.bias.p = NULL;
}

void api_request_close(struct api_request *r)
{
    if (!r) return;
    if (r->dialect->release) r->dialect->release(r);
    free_texts(r);
    buf_free(&r->warning);
    mb_free(r);
}

/* --- renderer --- */
struct api_render {
    const struct api_renderer *fns;
    void *ctx;
};

mb_status api_render_open(struct api_render **out, const struct api_request *r, mb_error *err)
{
    struct api_render *w = mb_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return mb_fail(err, MB_NO_MEMORY, "no memory for an answer");
    w->fns = r->dialect->renderer;
    mb_status st = w->fns->open(&w->ctx, r, r->env->client, err);
    if (st != MB_OK) api_render_close(w);
    else *out = w;
    return st;
}

void api_render_close(struct api_render *w)
{
    if (!w) return;
    w->fns->close(w->ctx);
    mb_free(w);
}

mb_status api_render_event(struct api_render *w, const struct gen_event *ev, struct buf *out, mb_error *err)
{
    return w->fns->event(w->ctx, ev, out, err);
}

mb_status api_render_answer(struct api_render *w, struct buf *out, mb_error *err)
{
    return w->fns->answer(w->ctx, out, err);
}

void api_render_error(struct api_render *w, const mb_error *e, struct buf *out)
{
    w->fns->error(w->ctx, e, out);
}

void api_render_ping(struct api_render *w, int32_t n_done, int32_t n_total, struct buf *out)
{
    size_t before = out->len;
    if (w->fns->ping) w->fns->ping(w->ctx, out);
    if (out->len == before) buf_printf(out, ": keepalive %d/%d\n\n", (int)n_done, (int)n_total);
}

/* --- what renderers share --- */
void api_make_id(char *out, size_t size, const char *prefix)
{
    uint8_t raw[14] = { 0 };
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) {
        int64_t t = clock_now_ns();
        memcpy(raw, &t, sizeof t);
    }
    size_t n = (size_t)snprintf(out, size, "%s", prefix);
    for (size_t i = 0; i < sizeof raw && n + 2 < size; i++, n += 2) snprintf(out + n, 3, "%02x", raw[i]);
}

void api_add_fill(struct gen_fill_counts *sum, const struct gen_fill_counts *c)
{
    sum->on = c->on;
    sum->spans += c->spans;
    sum->tokens += c->tokens;
    sum->proposed += c->proposed;
    sum->accepted += c->accepted;
}

void api_put_fill(struct buf *out, const struct gen_fill_counts *c)
{
    if (c->on)
        buf_printf(out, ", \"fill\": {\"spans\": %d, \"tokens\": %d, \"proposed\": %d, \"accepted\": %d}", (int)c->spans,
                   (int)c->tokens, (int)c->proposed, (int)c->accepted);
}

const char *api_lane(const struct engine_client *client)
{
    return client->info(client->ctx)->batch == 1 ? "serial" : "batched";
}
