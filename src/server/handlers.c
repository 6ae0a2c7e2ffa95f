/* handlers.c: the small routes: health, models, tokenize, count_tokens, stored responses, the notice at "/". */
#include <string.h>

#include "server/server_int.h"

static void reply_text(struct http_exchange *x, int status, const char *type, const char *text)
{
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, text);
    http_reply(x, status, type, &b);
}

/* API-267, B-106 */
void handle_health(struct http_exchange *x)
{
    const struct engine_client *c = &x->s->client;
    if (c->alive(c->ctx)) reply_text(x, 200, "application/json", "{\"status\": \"ok\"}");
    else http_reply_status(x, 503, "engine_dead", NULL, "the engine has stopped; the server must be restarted");
}

static void models(struct http_exchange *x, const char *id)
{
    struct buf b;
    buf_init(&b, 0);
    api_models_body(&b, &x->s->client, id);
    library_append_models(x, id, &b);
    http_reply(x, 200, "application/json", &b);
}

void handle_models(struct http_exchange *x)
{
    models(x, NULL);
}

void handle_model(struct http_exchange *x)
{
    models(x, x->rest);
}

typedef mb_status (*convert_fn)(struct buf *out, const struct engine_client *client, const char *body, size_t len,
                                mb_error *err);

static void convert(struct http_exchange *x, convert_fn fn)
{
    struct buf b;
    mb_error err = { 0 };
    buf_init(&b, 0);
    http_reply_json(x, fn(&b, &x->s->client, x->body.data ? x->body.data : "", x->body.len, &err), &b, &err);
}

void handle_tokenize(struct http_exchange *x)
{
    convert(x, api_tokenize);
}

void handle_detokenize(struct http_exchange *x)
{
    convert(x, api_detokenize);
}

/* --- dialects beside generation --- */
void handle_count_tokens(struct http_exchange *x)
{
    struct buf b;
    mb_error err = { 0 };
    buf_init(&b, 0);
    http_reply_json(x, api_anthropic_count(&b, &x->s->api, x->body.data ? x->body.data : "", x->body.len, &err), &b, &err);
}

void handle_response(struct http_exchange *x)
{
    const struct api_page page = { x->query[QUERY_ORDER], x->query[QUERY_AFTER], x->query[QUERY_LIMIT] };
    struct buf b;
    mb_error err = { 0 };
    buf_init(&b, 0);
    http_reply_json(x, api_responses_get(&b, &x->s->api, x->rest, &page, &err), &b, &err);
}

void handle_response_delete(struct http_exchange *x)
{
    struct buf b;
    mb_error err = { 0 };
    buf_init(&b, 0);
    http_reply_json(x, api_responses_delete(&b, &x->s->api, x->rest, &err), &b, &err);
}

void handle_root(struct http_exchange *x)
{
    reply_text(x, 200, "text/plain; charset=utf-8",
               "mlx-bun is running. The API is at /v1 (try GET /v1/models); /health, /stats and /metrics tell how it is.\n");
}
