/* engine.c: opening, closing, and what other threads may ask: submit, cancel, unpark, clear. The work is done in
 * scheduler.c on the engine's thread; here only flags and the queue change, under the lock. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/engine_int.h"

enum { QUEUE_MAX = 64, PREFILL_CHUNK = 2048, CLIENT_TIMEOUT_MS = 60000 };

/* --- opening --- */

static mb_status options_check(struct engine *e, const struct engine_options *opt, mb_error *err)
{
    const struct stepper_info *i = e->info;
    e->opt = *opt;
    if (i->canvas) e->opt.batch = 1; /* always the serial lane (API-345) */
    if (opt->batch < 1 || opt->batch > i->n_rows_max)
        return mb_fail(err, MB_INVALID, "batch is %d, this model was loaded for 1 to %d rows", (int)opt->batch,
                       (int)i->n_rows_max);
    e->n_draw_max = i->n_draw_max > 0 ? i->n_draw_max : i->m_max;
    if (i->m_max <= opt->batch || e->n_draw_max < opt->batch)
        return mb_fail(err, MB_INVALID, "a step of %d tokens and %d draws has no room for a batch of %d and prefill",
                       (int)i->m_max, (int)e->n_draw_max, (int)opt->batch);
    if (e->opt.queue_max <= 0) e->opt.queue_max = QUEUE_MAX;
    if (e->opt.prefill_chunk <= 0) e->opt.prefill_chunk = PREFILL_CHUNK;
    if (e->opt.prefill_share <= 0) e->opt.prefill_share = 3;
    if (e->opt.client_timeout_ms <= 0) e->opt.client_timeout_ms = CLIENT_TIMEOUT_MS;
    for (int32_t k = 0; k < i->n_kinds; k++) {
        e->has_state = e->has_state || i->kinds[k].type == KIND_STATE;
        e->has_window = e->has_window || i->kinds[k].type == KIND_WINDOW;
    }
    return MB_OK;
}

static mb_status memory_open(struct engine *e, mb_error *err)
{
    size_t pool = e->opt.pool_bytes;
    if (pool == 0) pool = kv_pool_bytes_for(e->info->kinds, e->info->n_kinds, e->info->n_context);
    MB_TRY(kv_pool_init(&e->kv, &e->st, e->info->kinds, e->info->n_kinds, pool, err));
    size_t cap = e->opt.prompt_cache_bytes;
    if (e->info->n_kinds > 0 && cap > kv_pool_total_bytes(&e->kv)) cap = kv_pool_total_bytes(&e->kv);
    return prefix_tree_init(&e->tree, &e->kv, cap, e->info->n_context, err);
}

static mb_status steps_open(struct engine *e, mb_error *err)
{
    size_t rows = (size_t)e->opt.batch + ENGINE_EMBED_ROWS, draws = (size_t)e->n_draw_max;
    for (int i = 0; i < 2; i++) {
        struct step *s = &e->step[i];
        s->rows = mb_calloc(rows, sizeof *s->rows);
        s->results = mb_calloc(rows, sizeof *s->results);
        s->seqs = mb_calloc(rows, sizeof *s->seqs);
        s->i_draw = mb_calloc(rows, sizeof *s->i_draw);
        s->n_guess = mb_calloc(rows, sizeof *s->n_guess);
        s->n_new = mb_calloc(rows, sizeof *s->n_new);
        s->pos = mb_calloc(draws, sizeof *s->pos);
        s->draws = mb_calloc(draws, sizeof *s->draws);
        if (!s->rows || !s->results || !s->seqs || !s->i_draw || !s->n_guess || !s->n_new || !s->pos || !s->draws)
            return mb_fail(err, MB_NO_MEMORY, "no memory for a batch of %zu rows", rows);
    }
    return MB_OK;
}

static mb_status thread_open(struct engine *e, mb_error *err)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, &attr);
    pthread_cond_init(&e->cleared, &attr);
    pthread_condattr_destroy(&attr);
    e->queue_tail = &e->queue;
    e->next_id = 1;
    e->idle = true;
    stats_publish(e);
    if (pthread_create(&e->thread, NULL, engine_main, e) == 0) {
        e->thread_started = true;
        return MB_OK;
    }
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->cleared);
    return mb_fail(err, MB_NO_MEMORY, "the engine's thread could not be started");
}

static void engine_free(struct engine *e)
{
    for (int i = 0; i < 2; i++) {
        struct step *s = &e->step[i];
        mb_free(s->rows);
        mb_free(s->results);
        mb_free(s->seqs);
        mb_free(s->i_draw);
        mb_free(s->n_guess);
        mb_free(s->n_new);
        mb_free(s->pos);
        mb_free(s->draws);
    }
    canvas_close(e);
    prefix_tree_free(&e->tree);
    kv_pool_free(&e->kv);
    adapters_close(e);
    if (e->st.close) e->st.close(e->st.ctx);
    mb_free(e);
}

mb_status engine_open(struct engine **out, const struct stepper *stepper, const struct engine_options *opt,
                      mb_error *err)
{
    *out = NULL;
    struct engine *e = mb_calloc(1, sizeof *e);
    if (!e) {
        if (stepper->close) stepper->close(stepper->ctx);
        return mb_fail(err, MB_NO_MEMORY, "no memory for an engine");
    }
    e->st = *stepper;
    e->info = stepper->info(stepper->ctx);
    mb_status rc = adapters_open(e, err);
    if (rc == MB_OK) rc = options_check(e, opt, err);
    if (rc == MB_OK) rc = memory_open(e, err);
    if (rc == MB_OK) rc = steps_open(e, err);
    if (rc == MB_OK) rc = canvas_open(e, err);
    if (rc == MB_OK) rc = thread_open(e, err);
    if (rc == MB_OK) *out = e;
    else engine_free(e);
    return rc;
}

void engine_close(struct engine *e, int64_t drain_ms)
{
    if (!e) return;
    pthread_mutex_lock(&e->lock);
    e->stopping = true;
    e->t_stop_ns = clock_now_ns() + (drain_ms > 0 ? drain_ms : 0) * 1000000;
    e->dirty = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->cleared);
    engine_free(e);
}

const struct stepper_info *engine_info(const struct engine *e)
{
    return e->info;
}

/* --- jobs --- */

/* lock is held. */
static mb_status enqueue(struct engine *e, struct run *r, uint64_t *id, mb_error *err)
{
    if (e->dead) return mb_fail(err, MB_ENGINE_DEAD, "the engine has stopped; the server must be restarted");
    if (e->stopping) return mb_fail(err, MB_BUSY, "the server is shutting down");
    bool beside = r->job->method == JOB_EMBED;
    if (beside && e->n_embed_waiting >= ENGINE_EMBED_QUEUE)
        return mb_fail(err, MB_BUSY, "%d embeddings are waiting already; try again later", (int)e->n_embed_waiting);
    /* What idle slots will take at once does not wait: a burst is not refused before the engine has looked. */
    int32_t n_idle = e->opt.batch - e->published.active_rows;
    if (!beside && e->n_waiting >= e->opt.queue_max + (n_idle > 0 ? n_idle : 0))
        return mb_fail(err, MB_BUSY, "%d requests are waiting already; try again later", (int)e->n_waiting);
    r->id = e->next_id++;
    r->counted = true;
    ++*waiting_of(e, r);
    *e->queue_tail = r;
    e->queue_tail = &r->next;
    e->published.submitted++;
    e->dirty = true;
    pthread_cond_signal(&e->wake);
    *id = r->id;
    return MB_OK;
}

mb_status engine_submit(struct engine *e, const struct engine_job *job, uint64_t *id, mb_error *err)
{
    *id = 0;
    mb_status rc = job_check(e, job, err);
    struct run *r = rc == MB_OK ? mb_calloc(1, sizeof *r) : NULL;
    if (rc == MB_OK && !r) rc = mb_fail(err, MB_NO_MEMORY, "no memory to queue a request");
    if (r) {
        r->job = job;
        r->key = job_cache_key(e, job);
    }
    pthread_mutex_lock(&e->lock);
    if (rc == MB_OK) rc = enqueue(e, r, id, err);
    if (rc != MB_OK) e->published.rejected++;
    pthread_mutex_unlock(&e->lock);
    if (rc != MB_OK) mb_free(r);
    return rc;
}

/* lock is held. */
static struct run *run_find(struct engine *e, uint64_t id)
{
    for (struct run *r = e->queue; r; r = r->next)
        if (r->id == id) return r;
    for (struct run *r = e->running; r; r = r->next)
        if (r->id == id) return r;
    return NULL;
}

void engine_cancel(struct engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    struct run *r = run_find(e, id);
    if (r) {
        r->cancelled = true;
        if (r->counted) --*waiting_of(e, r); /* its place in the queue is free at once (API-013) */
        r->counted = false;
        e->dirty = true;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
}

void engine_unpark(struct engine *e, uint64_t id)
{
    pthread_mutex_lock(&e->lock);
    struct run *r = run_find(e, id);
    if (r) {
        r->n_unpark++;
        e->dirty = true;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->lock);
}

void engine_cache_clear(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t mine = ++e->n_clear_wanted;
    e->dirty = true;
    pthread_cond_signal(&e->wake);
    while (!e->dead && e->n_clear_done < mine) pthread_cond_wait(&e->cleared, &e->lock);
    pthread_mutex_unlock(&e->lock);
}
