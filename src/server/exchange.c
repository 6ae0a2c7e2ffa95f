/* exchange.c: one request on its way: references, and the answer as data. */
#include <string.h>

#include "server/server_int.h"

struct http_exchange *exchange_new(struct server *s)
{
    struct http_exchange *x = mb_calloc(1, sizeof *x);
    if (!x) return NULL;
    x->s = s;
    atomic_init(&x->refs, 1);
    pthread_mutex_init(&x->lock, NULL);
    buf_init(&x->body, 0);
    buf_init(&x->reply, 0);
    buf_init(&x->out, 0);
    pthread_mutex_lock(&s->lock);
    x->all_next = s->all;
    if (s->all) s->all->all_prev = x;
    s->all = x;
    s->n_active++;
    s->n_requests++;
    pthread_mutex_unlock(&s->lock);
    return x;
}

void exchange_ref(struct http_exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
}

void exchange_unref(struct http_exchange *x)
{
    struct server *s = x->s;
    if (atomic_fetch_sub(&x->refs, 1) != 1) return;
    gen_close(x->gen);
    api_render_close(x->render);
    api_request_close(x->req);
    proxy_forget(x);
    memory_release(x);
    buf_free(&x->body);
    buf_free(&x->reply);
    buf_free(&x->out);
    mb_free(x->rest);
    for (int i = 0; i < QUERY_N; i++) mb_free(x->query[i]);
    mb_free(x->cors_origin);
    mb_free(x->preflight_headers);
    pthread_mutex_lock(&s->lock);
    if (x->all_prev) x->all_prev->all_next = x->all_next;
    else s->all = x->all_next;
    if (x->all_next) x->all_next->all_prev = x->all_prev;
    s->n_active--;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_destroy(&x->lock);
    mb_free(x);
}

void exchange_count(struct server *s, int status)
{
    pthread_mutex_lock(&s->lock);
    if (status >= 100 && status < 600) s->n_status[status / 100]++;
    pthread_mutex_unlock(&s->lock);
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body)
{
    if (body->len > BODY_SMALL_BYTES && !reply_book(x, body->len)) {
        buf_free(body);
        http_reply_status(x, 503, "body_memory", NULL, "answers and bodies in work fill the memory set by --body-memory; try again later");
        return;
    }
    pthread_mutex_lock(&x->lock);
    if (!x->reply_ready && !x->stream_open) {
        x->status = status;
        x->content_type = content_type;
        buf_free(&x->reply);
        x->reply = *body;
        buf_init(body, 0);
        if (x->reply.failed) {
            buf_free(&x->reply);
            buf_init(&x->reply, 0);
            x->status = 503;
        }
        if (x->status == 429 && !x->extra_name[0]) {
            strcpy(x->extra_name, "Retry-After");
            strcpy(x->extra_value, "1");
        }
        x->reply_ready = true;
        http_resume_locked(x);
    }
    pthread_mutex_unlock(&x->lock);
    buf_free(body);
}

void http_reply_error(struct http_exchange *x, const mb_error *e)
{
    struct buf b;
    if (e->code == MB_ENGINE_DEAD && x->s->opt.host_fd) return; /* this process ends; its host answers (API-365) */
    buf_init(&b, 0);
    int status = api_error_body_of(&b, x->dialect, e);
    http_reply(x, status, "application/json", &b);
}

void http_reply_json(struct http_exchange *x, mb_status st, struct buf *body, const mb_error *e)
{
    if (st == MB_OK) {
        http_reply(x, 200, "application/json", body);
        return;
    }
    buf_free(body);
    http_reply_error(x, e);
}

void http_reply_status(struct http_exchange *x, int status, const char *code, const char *param, const char *message)
{
    struct buf b;
    buf_init(&b, 0);
    api_error_body(&b, x->dialect, status, NULL, code, param, message);
    http_reply(x, status, "application/json", &b);
}
