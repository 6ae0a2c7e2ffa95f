/* workers.c: request workers: they run the handlers that parse bodies, so that a large one never holds up the HTTP
 * thread. A bounded queue; a request whose client has gone is dropped when its turn comes. */
#include <malloc.h>

#include "base/threads.h"
#include "server/server_int.h"

#define TRIM_BYTES ((size_t)1 << 20) /* parse trees of bodies above this leave holes worth giving back */

bool work_push(struct http_exchange *x)
{
    struct server *s = x->s;
    pthread_mutex_lock(&s->work_lock);
    bool ok = !s->work_quit && s->n_work < s->opt.worker_queue;
    if (ok) {
        exchange_ref(x);
        x->work_next = NULL;
        if (s->work_last) s->work_last->work_next = x;
        else s->work_first = x;
        s->work_last = x;
        s->n_work++;
        pthread_cond_signal(&s->work_cond);
    }
    pthread_mutex_unlock(&s->work_lock);
    return ok;
}

static struct http_exchange *work_pop(struct server *s)
{
    pthread_mutex_lock(&s->work_lock);
    while (!s->work_first && !s->work_quit) pthread_cond_wait(&s->work_cond, &s->work_lock);
    struct http_exchange *x = s->work_first;
    if (x) {
        s->work_first = x->work_next;
        if (!s->work_first) s->work_last = NULL;
        s->n_work--;
    }
    pthread_mutex_unlock(&s->work_lock);
    return x;
}

static void work_one(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone || x->hung_up;
    pthread_mutex_unlock(&x->lock);
    if (gone) { /* its connection is suspended: only an answer, read or not, wakes it and lets it end */
        http_reply_status(x, 499, "cancelled", NULL, "the client closed the connection");
    } else if (body_decode(x)) {
        if (proxy_takes(x)) proxy_push(x);
        else if (body_weigh(x)) x->route->handle(x);
    }
    size_t counted = x->body.len;
    buf_free(&x->body);
    buf_init(&x->body, 0);
    pthread_mutex_lock(&x->lock);
    bool answered = x->reply_ready;
    pthread_mutex_unlock(&x->lock);
    if (answered) body_lower(x, 0); /* else it is worked on: generate.c and embeddings.c lower it */
    if (counted > TRIM_BYTES) malloc_trim(0);
    exchange_unref(x);
}

static void *work_main(void *ctx)
{
    struct server *s = ctx;
    threads_set_name("request");
    threads_lower_priority();
    for (struct http_exchange *x; (x = work_pop(s)) != NULL;) work_one(x);
    return NULL;
}

mb_status work_start(struct server *s, mb_error *err)
{
    int want = s->opt.n_workers;
    for (s->n_workers = 0; s->n_workers < want; s->n_workers++)
        if (pthread_create(&s->workers[s->n_workers], NULL, work_main, s) != 0) break;
    return s->n_workers > 0 ? MB_OK : mb_fail(err, MB_NO_MEMORY, "cannot start a request thread");
}

void work_stop(struct server *s)
{
    pthread_mutex_lock(&s->work_lock);
    s->work_quit = true;
    pthread_cond_broadcast(&s->work_cond);
    pthread_mutex_unlock(&s->work_lock);
    for (int i = 0; i < s->n_workers; i++) pthread_join(s->workers[i], NULL);
    s->n_workers = 0;
}
