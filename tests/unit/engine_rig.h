/* engine_rig.h: an engine over the scripted stepper, jobs that record what they get, and a gate that holds steps.
 * Header-only, for the engine's tests. */
#ifndef TESTS_UNIT_ENGINE_RIG_H
#define TESTS_UNIT_ENGINE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

enum { RIG_MAX_CHOICES = 8, RIG_VOCAB = 1000, RIG_END = 999, RIG_POISON = 998, RIG_WAIT_S = 20 };

struct rig {
    struct engine *engine;
    struct scripted_options so;
    struct engine_options eo;
    struct scripted_counters count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed_gate;     /* steps wait in submit */
    bool in_step;         /* one waits now */
    int32_t chunk[512];   /* n of every row of more than one token, in order; and index of its end */
    int32_t chunk_end[512];
    int32_t n_chunks;
    int32_t n_steps, n_done;
};

struct rig_job {
    struct rig *rig;
    struct engine_job job;
    int32_t *ids;
    uint64_t id;
    /* recorded under rig->lock */
    int32_t *out[RIG_MAX_CHOICES];
    float *logprob[RIG_MAX_CHOICES];
    int32_t n_out[RIG_MAX_CHOICES], n_end_tokens;
    enum end_reason why[RIG_MAX_CHOICES];
    mb_status status[RIG_MAX_CHOICES];
    char text[128];
    int32_t n_ended, n_started, n_cached, n_prompt_seen, n_progress, n_scored, first_scored, last_scored, n_done_calls;
    double score_sum;
    int32_t step_at_done; /* steps begun by then */
    bool done;
    /* behaviour */
    int32_t stop_after, park_every, cancel_after, fail_after; /* tokens of choice 0; 0 = never */
    int32_t n_parks;
    const struct rig_job *oracle; /* what it will draw, for guesses */
    int32_t n_asked;
};

static inline void rig_lock(struct rig *r) { pthread_mutex_lock(&r->lock); }
static inline void rig_unlock(struct rig *r) { pthread_mutex_unlock(&r->lock); }

static inline void rig_on_batch(void *ctx, const struct row *rows, int32_t n_rows)
{
    struct rig *r = ctx;
    rig_lock(r);
    for (int32_t i = 0; i < n_rows; i++)
        if (rows[i].n > 1 && r->n_chunks < 512) {
            r->chunk[r->n_chunks] = rows[i].n;
            r->chunk_end[r->n_chunks++] = rows[i].i_first + rows[i].n;
        }
    r->n_steps++;
    r->in_step = true;
    pthread_cond_broadcast(&r->changed);
    while (r->closed_gate) pthread_cond_wait(&r->changed, &r->lock);
    r->in_step = false;
    rig_unlock(r);
}

static inline void rig_quiet(void *ctx, enum log_level l, const char *area, const char *text)
{
    (void)ctx; (void)l; (void)area; (void)text;
}

/* Defaults; change r->so and r->eo before rig_open. */
static inline void rig_init(struct rig *r)
{
    memset(r, 0, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->so = (struct scripted_options){ .n_vocab = RIG_VOCAB, .n_context = 4096, .m_max = 2048, .n_rows_max = 32,
                                       .end_id = RIG_END, .hash_draws = true, .poison = true, .poison_id = RIG_POISON,
                                       .counters = &r->count, .on_batch = rig_on_batch, .on_batch_ctx = r };
    r->eo = (struct engine_options){ .batch = 4, .queue_max = 32, .pool_bytes = 16 << 20,
                                     .prompt_cache_bytes = 8 << 20 };
    log_set_sink(rig_quiet, NULL);
}

static inline void rig_open(struct rig *r)
{
    struct stepper st;
    mb_error err = { 0 };
    assert_int_equal(stepper_scripted(&st, &r->so, &err), MB_OK);
    if (engine_open(&r->engine, &st, &r->eo, &err) != MB_OK) fail_msg("engine_open: %s", err.text);
}

static inline void rig_close(struct rig *r)
{
    engine_close(r->engine, 0);
    if (r->count.n_violations) fail_msg("%d violations, first: %s", (int)r->count.n_violations, r->count.violation);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
}

static inline void rig_wait_on(struct rig *r)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += RIG_WAIT_S;
    if (pthread_cond_timedwait(&r->changed, &r->lock, &t) != 0) {
        rig_unlock(r);
        fail_msg("nothing happened for %d s", (int)RIG_WAIT_S);
    }
}

static inline void rig_gate(struct rig *r, bool closed)
{
    rig_lock(r);
    r->closed_gate = closed;
    pthread_cond_broadcast(&r->changed);
    rig_unlock(r);
}

/* Until a step hangs in the closed gate. */
static inline void rig_wait_step(struct rig *r)
{
    rig_lock(r);
    while (!r->in_step) rig_wait_on(r);
    rig_unlock(r);
}

/* --- jobs --- */

static inline void job_on_start(void *ctx, int32_t n_prompt, int32_t n_cached)
{
    struct rig_job *j = ctx;
    rig_lock(j->rig);
    j->n_started++;
    j->n_cached = n_cached;
    j->n_prompt_seen = n_prompt;
    rig_unlock(j->rig);
}

static inline void job_on_progress(void *ctx, int32_t done, int32_t total)
{
    struct rig_job *j = ctx;
    assert_true(done <= total);
    rig_lock(j->rig);
    j->n_progress++;
    pthread_cond_broadcast(&j->rig->changed);
    rig_unlock(j->rig);
}

static inline enum verdict job_on_token(void *ctx, int32_t i, const struct draw *d, bool is_end)
{
    struct rig_job *j = ctx;
    enum verdict v = VERDICT_GO;
    rig_lock(j->rig);
    j->n_end_tokens += is_end;
    j->out[i] = realloc(j->out[i], (size_t)(j->n_out[i] + 1) * sizeof(int32_t));
    j->logprob[i] = realloc(j->logprob[i], (size_t)(j->n_out[i] + 1) * sizeof(float));
    j->out[i][j->n_out[i]] = d->id;
    j->logprob[i][j->n_out[i]++] = d->logprob;
    int32_t n = j->n_out[i];
    pthread_cond_broadcast(&j->rig->changed);
    if (j->stop_after && n >= j->stop_after) v = VERDICT_STOP;
    if (j->fail_after && n >= j->fail_after) v = VERDICT_FAIL;
    if (v == VERDICT_GO && j->park_every && n % j->park_every == 0) {
        v = VERDICT_PARK;
        j->n_parks++;
    }
    bool cancel = j->cancel_after && n == j->cancel_after;
    rig_unlock(j->rig);
    if (cancel) engine_cancel(j->rig->engine, j->id);
    return v;
}

static inline void job_on_score(void *ctx, int32_t index, const struct draw *d)
{
    struct rig_job *j = ctx;
    rig_lock(j->rig);
    if (j->n_scored++ == 0) j->first_scored = index;
    else assert_int_equal(index, j->last_scored + 1);
    j->last_scored = index;
    j->score_sum += (double)d->target_logprob;
    rig_unlock(j->rig);
}

static inline void job_on_end(void *ctx, int32_t i, enum end_reason why, mb_status status, const char *text)
{
    struct rig_job *j = ctx;
    rig_lock(j->rig);
    assert_int_equal(j->why[i], END_NONE);
    j->why[i] = why;
    j->status[i] = status;
    snprintf(j->text, sizeof j->text, "%s", text ? text : "");
    j->n_ended++;
    rig_unlock(j->rig);
}

static inline void job_on_done(void *ctx)
{
    struct rig_job *j = ctx;
    rig_lock(j->rig);
    assert_int_equal(j->n_ended, j->job.n_choices);
    j->n_done_calls++;
    j->step_at_done = j->rig->n_steps;
    j->done = true;
    j->rig->n_done++;
    pthread_cond_broadcast(&j->rig->changed);
    rig_unlock(j->rig);
}

/* A prompt of n ids made from `seed`; the first n_common are the same for all seeds. */
static inline void job_init(struct rig_job *j, struct rig *r, int32_t n, int32_t n_common, uint32_t seed)
{
    memset(j, 0, sizeof *j);
    j->rig = r;
    j->ids = malloc((size_t)n * sizeof *j->ids);
    for (int32_t i = 0; i < n; i++) {
        uint32_t x = (uint32_t)i * 2654435761u + (i < n_common ? 0 : seed * 40503u + 12345u);
        x = (x ^ x >> 15) * 2246822519u;
        j->ids[i] = (int32_t)((x ^ x >> 13) % 900);
    }
    j->job = (struct engine_job){ .ids = j->ids, .n_ids = n, .n_choices = 1, .max_tokens = 20,
                                  .params = { .temperature = 1, .noise = { .seed = 7 } },
                                  .filter = { j, job_on_start, job_on_progress, job_on_token, job_on_score, job_on_end,
                                              job_on_done } };
}

static inline void job_free(struct rig_job *j)
{
    assert_true(j->n_done_calls <= 1);
    for (int i = 0; i < RIG_MAX_CHOICES; i++) {
        free(j->out[i]);
        free(j->logprob[i]);
    }
    free(j->ids);
}

static inline void job_submit(struct rig_job *j)
{
    mb_error err = { 0 };
    j->job.t_received_ns = clock_now_ns();
    if (engine_submit(j->rig->engine, &j->job, &j->id, &err) != MB_OK) fail_msg("engine_submit: %s", err.text);
}

static inline void job_wait(struct rig_job *j)
{
    rig_lock(j->rig);
    while (!j->done) rig_wait_on(j->rig);
    rig_unlock(j->rig);
}

static inline void job_wait_tokens(struct rig_job *j, int32_t n)
{
    rig_lock(j->rig);
    while (!j->done && j->n_out[0] < n) rig_wait_on(j->rig);
    rig_unlock(j->rig);
}

static inline void job_run(struct rig_job *j)
{
    job_submit(j);
    job_wait(j);
}

static inline void assert_same_output(const struct rig_job *a, const struct rig_job *b, int32_t i)
{
    assert_int_equal(a->n_out[i], b->n_out[i]);
    assert_memory_equal(a->out[i], b->out[i], (size_t)a->n_out[i] * sizeof(int32_t));
    assert_memory_equal(a->logprob[i], b->logprob[i], (size_t)a->n_out[i] * sizeof(float));
}

/* Stats after the engine has come to rest. */
static inline struct engine_stats rig_stats(struct rig *r)
{
    struct engine_stats s;
    for (int i = 0; i < 2000; i++) {
        engine_stats_get(r->engine, &s);
        if (s.active_rows == 0 && s.pending_rows == 0 && s.parked_rows == 0 &&
            s.finished + s.cancelled + s.failed == s.submitted)
            return s;
        clock_sleep_ms(1);
    }
    fail_msg("the engine does not come to rest");
    return s;
}

#endif
