/* embeddings.c: POST /v1/embeddings. A request worker compiles the body; one thread of its own, started with the first request,
 * runs the requests one after the other, so that long ones hold up neither the workers nor a generation. Each request's
 * inputs are in the engine together. A client that goes away stops its request between two steps.
 */
#include "base/threads.h"
#include "server/server_int.h"

enum { EMBED_QUEUE = 64 };

struct embed_entry {
    struct http_exchange *x;      /* a reference */
    struct api_embed *req;        /* owned */
};

struct embed_worker {
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t thread;
    bool started, quit;
    struct embed_entry queue[EMBED_QUEUE];
    int first, n;
};

static bool is_gone(void *ctx)
{
    struct http_exchange *x = ctx;
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone || x->hung_up || x->fin || x->cut;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

static void run(struct http_exchange *x, struct api_embed *req)
{
    struct buf b;
    mb_error err = { 0 };
    buf_init(&b, 0);
    http_reply_json(x, api_embed_run(req, &x->s->client, is_gone, x, &b, &err), &b, &err);
}

static void *embed_main(void *ctx)
{
    struct embed_worker *w = ctx;
    threads_set_name("embeddings");
    threads_lower_priority();
    for (;;) {
        pthread_mutex_lock(&w->lock);
        while (w->n == 0 && !w->quit) pthread_cond_wait(&w->work, &w->lock);
        if (w->n == 0) break;
        struct embed_entry e = w->queue[w->first];
        w->first = (w->first + 1) % EMBED_QUEUE;
        w->n--;
        pthread_mutex_unlock(&w->lock);
        run(e.x, e.req);
        api_embed_close(e.req);
        body_lower(e.x, 0);
        exchange_unref(e.x);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

mb_status embed_open(struct server *s, mb_error *err)
{
    struct embed_worker *w = mb_calloc(1, sizeof *w);
    if (!w) return mb_fail(err, MB_NO_MEMORY, "no memory for the queue of embeddings");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    s->embed = w;
    return MB_OK;
}

void embed_close(struct server *s)
{
    struct embed_worker *w = s->embed;
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    if (w->started) pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
    mb_free(w);
    s->embed = NULL;
}

/* Takes req and a reference when it succeeds. */
static mb_status push(struct embed_worker *w, struct http_exchange *x, struct api_embed *req, mb_error *err)
{
    mb_status st = MB_OK;
    pthread_mutex_lock(&w->lock);
    if (w->quit) st = mb_fail(err, MB_BUSY, "the server is shutting down");
    else if (w->n == EMBED_QUEUE) st = mb_fail(err, MB_BUSY, "%d requests for embeddings wait already; try again later", w->n);
    else if (!w->started && pthread_create(&w->thread, NULL, embed_main, w) != 0)
        st = mb_fail(err, MB_NO_MEMORY, "cannot start a thread for embeddings");
    if (st == MB_OK) {
        w->started = true;
        exchange_ref(x);
        w->queue[(w->first + w->n++) % EMBED_QUEUE] = (struct embed_entry){ x, req };
        pthread_cond_signal(&w->work);
    }
    pthread_mutex_unlock(&w->lock);
    return st;
}

void handle_embeddings(struct http_exchange *x)
{
    struct api_embed *req;
    mb_error err = { 0 };
    mb_status st = api_embed_open(&req, x->body.data ? x->body.data : "", x->body.len, &err);
    if (st == MB_OK && (st = push(x->s->embed, x, req, &err)) != MB_OK) api_embed_close(req);
    if (st != MB_OK) http_reply_error(x, &err);
}
