/* handlers.c: the small routes: health, models, tokenize, count_tokens, stored responses, the notice at "/". */
#include <string.h>
#include <unistd.h>

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
    const char *code, *ill = x->s->proxy ? proxy_ill(x->s->proxy, &code) : NULL;
    if (ill) http_reply_status(x, 503, code, NULL, ill);
    else if (c->alive(c->ctx)) reply_text(x, 200, "application/json", "{\"status\": \"ok\"}");
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

/* --- the engine's process --- */

/* API-360, ENG-211. Without --isolate the process is this one. */
void handle_engine(struct http_exchange *x)
{
    struct server *s = x->s;
    struct buf b, pool;
    buf_init(&b, 0);
    buf_init(&pool, 0);
    buf_printf(&b, "{\"isolated\": %s, ", s->proxy ? "true" : "false");
    if (s->proxy) proxy_describe(s->proxy, &b, &pool);
    else buf_printf(&b, "\"pid\": %d, \"restarts\": 0, \"socket\": null", (int)getpid());
    buf_append_str(&b, ", \"response_store\": ");
    stats_put_store(&b, s);
    if (pool.len) {
        buf_append_str(&b, ", \"pool\": ");
        buf_append(&b, pool.data, pool.len);
    }
    buf_append_str(&b, "}");
    buf_free(&pool);
    http_reply(x, 200, "application/json", &b);
}

/* API-363, API-037. There are no web pages in this version (docs/server.md). */
void handle_ws_chat(struct http_exchange *x)
{
    if (x->s->proxy) http_reply_status(x, 501, "unsupported", NULL, "/ws/chat is not served under --isolate: run mlx-bun serve without it");
    else http_reply_status(x, 404, "not_found", NULL, "/ws/chat is not in this version; chat over POST /v1/chat/completions");
}

/* ENG-219, ENG-220: this version has no prompt cache on disk, so to drain is to finish what runs, refuse what comes, and end. */
void handle_drain(struct http_exchange *x)
{
    pthread_mutex_lock(&x->s->lock);
    bool first = !x->s->draining && !x->s->stopping; /* to ask twice cuts off what runs */
    x->s->draining = true;
    pthread_mutex_unlock(&x->s->lock);
    if (first) server_request_stop(x->s);
    reply_text(x, 200, "application/json", "{\"status\": \"draining\"}");
}

void handle_root(struct http_exchange *x)
{
    reply_text(x, 200, "text/plain; charset=utf-8",
               "mlx-bun is running. The API is at /v1 (try GET /v1/models); /health, /stats and /metrics tell how it is.\n");
}
