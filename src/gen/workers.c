/* workers.c: the preparation queue and its workers. Bounded (API-325): a request that finds it full gets MB_BUSY. A
 * cancelled request leaves at once. Workers run at lower priority and hold no lock while they prepare. */
#include "gen/gen_int.h"

#include <string.h>

#include "base/threads.h"

static void unlink_stream(struct gen_engine *g, struct gen_stream *s)
{
    if (s->prev) s->prev->next = s->next;
    else g->first = s->next;
    if (s->next) s->next->prev = s->prev;
    else g->last = s->prev;
    s->prev = s->next = NULL;
    s->queued = false;
    g->n_waiting--;
}

mb_status workers_enqueue(struct gen_engine *g, struct gen_stream *s, mb_error *err)
{
    mb_status st = MB_OK;
    pthread_mutex_lock(&g->lock);
    if (g->closing) st = mb_fail(err, MB_BUSY, "the server is shutting down");
    else if (g->n_waiting >= g->opt.prepare_queue)
        st = mb_fail(err, MB_BUSY, "%d requests wait for preparation already; try again later", (int)g->n_waiting);
    if (st == MB_OK) {
        s->prev = g->last;
        if (g->last) g->last->next = s;
        else g->first = s;
        g->last = s;
        s->queued = true;
        g->n_waiting++;
        pthread_cond_signal(&g->work);
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

bool workers_dequeue(struct gen_engine *g, struct gen_stream *s)
{
    pthread_mutex_lock(&g->lock);
    bool queued = s->queued;
    if (queued) unlink_stream(g, s);
    pthread_mutex_unlock(&g->lock);
    return queued;
}

/* The engine may call back, and even finish the job, before engine_submit returns: the worker holds a reference. */
static void submit(struct gen_engine *g, struct gen_stream *s)
{
    mb_error err = { 0 };
    uint64_t id = 0;
    if (engine_submit(g->engine, &s->job, &id, &err) != MB_OK) {
        stream_error(s, err.code, err.text, err.at);
        stream_producer_done(s);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->job_id = id;
    s->submitted = true;
    bool cancel = s->cancelled && !s->producer_done;
    bool unpark = s->parked && s->ring.n <= s->ring_soft / 2;
    if (unpark) s->parked = false;
    pthread_mutex_unlock(&s->lock);
    if (cancel) engine_cancel(g->engine, id);
    if (unpark) engine_unpark(g->engine, id);
}

static void prepare_one(struct gen_engine *g, struct gen_stream *s)
{
    mb_error err = { 0 };
    pthread_mutex_lock(&s->lock);
    s->n_refs++;
    pthread_mutex_unlock(&s->lock);
    if (stream_is_cancelled(s)) {
        stream_producer_done(s);
    } else if (prepare_job(g, s, &err) != MB_OK) {
        stream_error(s, err.code, err.text, err.at);
        stream_producer_done(s);
    } else if (stream_is_cancelled(s)) {
        stream_producer_done(s);
    } else {
        submit(g, s);
    }
    stream_unref(s);
}

static void *worker_main(void *ctx)
{
    struct gen_engine *g = ctx;
    threads_set_name("prepare");
    threads_lower_priority();
    for (;;) {
        pthread_mutex_lock(&g->lock);
        while (!g->first && !g->closing) pthread_cond_wait(&g->work, &g->lock);
        struct gen_stream *s = g->first;
        if (s) unlink_stream(g, s);
        pthread_mutex_unlock(&g->lock);
        if (!s) return NULL;
        prepare_one(g, s);
    }
}

mb_status workers_open(struct gen_engine *g, mb_error *err)
{
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->work, NULL);
    int n = g->opt.n_prepare_workers;
    for (g->n_workers = 0; g->n_workers < n; g->n_workers++)
        if (pthread_create(&g->workers[g->n_workers], NULL, worker_main, g) != 0) break;
    return g->n_workers > 0 ? MB_OK : mb_fail(err, MB_NO_MEMORY, "cannot start a preparation thread");
}

/* New requests are refused; waiting ones are still prepared (the engine decides how long they may run). */
void workers_close(struct gen_engine *g)
{
    pthread_mutex_lock(&g->lock);
    g->closing = true;
    pthread_cond_broadcast(&g->work);
    pthread_mutex_unlock(&g->lock);
    for (int i = 0; i < g->n_workers; i++) pthread_join(g->workers[i], NULL);
    pthread_cond_destroy(&g->work);
    pthread_mutex_destroy(&g->lock);
}
