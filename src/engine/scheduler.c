/* scheduler.c: the step loop.
 *
 * control -> admit -> plan -> submit -> (deliver the step before) -> collect -> take -> (deliver) -> sweep.
 * A synchronous stepper delivers its own step at once. With an asynchronous one the step before is delivered while
 * this one is computed; the rows of it whose last draw nobody has seen yet go as COMMIT_AFTER_ACCEPT, and are accepted
 * with nothing when their sequence turns out to have ended or parked.
 * The thread sleeps on a condition when nothing can be done; whoever changes something sets `dirty` and wakes it.
 * It ends when asked to, when the device has failed, or by the fault point engine_death; then every job is told. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/threads.h"
#include "base/turns.h"
#include "engine/engine_int.h"

static const char *const DEAD_TEXT = "the engine has stopped; the server must be restarted";
enum { STALLED_WAIT_MS = 20 };

/* --- control --- */

static bool has_work(const struct engine *e)
{
    if (e->n_active > 0 || e->n_embed_active > 0 || e->n_embed_waiting > 0 || e->step[0].undelivered || e->step[1].undelivered) return true;
    for (const struct sequence *s = e->first; s; s = s->next)
        if (s->phase == SEQ_READY || s->phase == SEQ_ENDED) return true;
    return e->queue && e->n_parked < e->opt.queue_max;
}

static int64_t earliest_timeout_ns(const struct engine *e)
{
    int64_t at = INT64_MAX;
    for (const struct sequence *s = e->first; s; s = s->next)
        if (s->phase == SEQ_PARKED && s->t_parked_ns < at) at = s->t_parked_ns;
    if (at != INT64_MAX) at += e->opt.client_timeout_ms * 1000000;
    if (e->stopping && e->t_stop_ns < at) at = e->t_stop_ns;
    return at;
}

/* lock is held. Sleep until dirty or the time. */
static void wait_until(struct engine *e, int64_t at_ns)
{
    if (at_ns == INT64_MAX) {
        pthread_cond_wait(&e->wake, &e->lock);
        return;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t left = at_ns - clock_now_ns();
    if (left <= 0) return;
    int64_t ns = now.tv_nsec + left % 1000000000;
    struct timespec until = { now.tv_sec + left / 1000000000 + ns / 1000000000, ns % 1000000000 };
    pthread_cond_timedwait(&e->wake, &e->lock, &until);
}

static void rest(struct engine *e)
{
    int64_t stalled_until = clock_now_ns() + STALLED_WAIT_MS * 1000000;
    while (!e->dirty && (e->stalled || !has_work(e))) {
        int64_t at = earliest_timeout_ns(e);
        bool stalled = e->stalled && at > stalled_until;
        if (stalled) at = stalled_until;
        if (at <= clock_now_ns()) break;
        e->idle = !e->stalled;
        wait_until(e, at);
        if (stalled) break;
    }
    e->idle = false;
    e->stalled = false;
    e->dirty = false;
    e->t_heartbeat_ns = clock_now_ns();
}

/* Cancelled waiters, out of the queue, linked. With all: everybody. lock is held. */
static struct run *queue_take(struct engine *e, bool all)
{
    struct run *out = NULL, **out_tail = &out;
    for (struct run **p = &e->queue; *p;) {
        struct run *r = *p;
        if (!r->cancelled && !all) {
            p = &r->next;
            continue;
        }
        *p = r->next;
        if (r->counted) --*waiting_of(e, r);
        r->next = NULL;
        *out_tail = r;
        out_tail = &r->next;
    }
    e->queue_tail = &e->queue;
    while (*e->queue_tail) e->queue_tail = &(*e->queue_tail)->next;
    return out;
}

static void refuse_all(struct engine *e, struct run *r, enum end_reason why, mb_status status, const char *text)
{
    for (struct run *next; r; r = next) {
        next = r->next;
        run_refuse(e, r, why, status, text);
    }
}

/* Cancelled flags and unpark counts of running jobs; time-outs of parked ones. */
static void look_at_sequences(struct engine *e)
{
    int64_t now = clock_now_ns(), timeout = e->opt.client_timeout_ms * 1000000;
    for (struct sequence *s = e->first, *next; s; s = next) {
        next = s->next;
        if (!s->run->started || s->phase == SEQ_ENDED) continue;
        pthread_mutex_lock(&e->lock);
        bool cancelled = s->run->cancelled;
        uint32_t n_unpark = s->run->n_unpark;
        pthread_mutex_unlock(&e->lock);
        if (cancelled) seq_finish(e, s, END_CANCELLED, MB_CANCELLED, "cancelled");
        else if (s->phase == SEQ_PARKED && n_unpark != s->unpark_seen) {
            s->phase = SEQ_READY;
            e->n_parked--;
        } else if (s->phase == SEQ_PARKED && now - s->t_parked_ns >= timeout) {
            seq_finish(e, s, END_CANCELLED, MB_CANCELLED, "the client did not read for too long");
        }
    }
}

static void clear_cache(struct engine *e, uint64_t wanted)
{
    prefix_tree_clear(&e->tree);
    stats_publish(e);
    pthread_mutex_lock(&e->lock);
    e->n_clear_done = wanted;
    pthread_cond_broadcast(&e->cleared);
    pthread_mutex_unlock(&e->lock);
}

static bool nothing_left(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool none = !e->queue && !e->running;
    pthread_mutex_unlock(&e->lock);
    return none;
}

/* False: the thread is to end. */
static bool control(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    rest(e);
    bool stopping = e->stopping, late = stopping && clock_now_ns() >= e->t_stop_ns;
    uint64_t wanted = e->n_clear_wanted;
    bool clear = wanted != e->n_clear_done;
    struct run *gone = queue_take(e, stopping);
    if (late)
        for (struct run *r = e->running; r; r = r->next) r->cancelled = true;
    pthread_mutex_unlock(&e->lock);
    refuse_all(e, gone, END_CANCELLED, MB_CANCELLED, stopping ? "the server is shutting down" : "cancelled");
    look_at_sequences(e);
    sweep(e);
    if (clear) clear_cache(e, wanted);
    return !(stopping && nothing_left(e));
}

/* --- one step --- */

/* The row's result becomes part of its sequence, or not. */
static void take_row(struct engine *e, struct step *st, int32_t i)
{
    struct sequence *s = st->seqs[i];
    const struct row *r = &st->rows[i];
    s->in_flight = false;
    if (s->phase != SEQ_ACTIVE) { /* ended or parked while it was computed: accepted with 0 */
        s->st.n_replay = 0;
        if (r->commit == COMMIT_AFTER_ACCEPT) s->st.i_state = r->i_first;
        st->seqs[i] = NULL;
        return;
    }
    if (st->results[i].status != MB_OK) {
        s->end = END_ERROR;
        s->end_status = st->results[i].status;
        s->end_text = "the step failed for this request";
        st->seqs[i] = NULL;
        if (!s->undelivered) seq_finish(e, s, s->end, s->end_status, s->end_text);
        return;
    }
    if (r->commit != COMMIT_NEVER) {
        bool after = r->commit == COMMIT_AFTER_ACCEPT;
        s->st.n_committed = r->i_first + r->n;
        s->st.n_replay = after ? r->n : 0;
        s->st.i_state = after ? r->i_first : s->st.n_committed;
        seq_snapshot(e, s);
    }
    s->method->take(e, s, st, i);
    seq_drop_left(e, s);
}

static void step_take(struct engine *e, struct step *st)
{
    bool poison = st->n_draws > 0 && fault_hit("nan_step");
    for (int32_t i = 0; poison && i < st->n_draws; i++) {
        st->draws[i].non_finite = true;
        st->draws[i].id = -1;
    }
    for (int32_t i = 0; i < st->n_rows; i++) take_row(e, st, i);
    st->undelivered = true;
}

/* Nothing was computed: rows go back as they were. */
static void step_abandon(struct step *st)
{
    for (int32_t i = 0; i < st->n_rows; i++) st->seqs[i]->in_flight = false;
}

static void step_fail(struct engine *e, struct step *st, mb_status status, const char *text)
{
    step_abandon(st);
    /* No memory fails one request, the youngest; the others are computed again. */
    struct sequence *youngest = NULL;
    for (int32_t i = 0; i < st->n_rows; i++) {
        struct sequence *s = st->seqs[i];
        if (!youngest || s->run->id > youngest->run->id) youngest = s;
        if (status != MB_NO_MEMORY) seq_finish(e, s, END_ERROR, status, text);
    }
    if (status == MB_NO_MEMORY && youngest) seq_finish(e, youngest, END_ERROR, status, text);
    st->n_rows = 0;
}

static mb_status positions_reserve(struct engine *e, const struct step *st, mb_error *err)
{
    int32_t end = 0;
    for (int32_t i = 0; i < st->n_rows; i++)
        if (st->rows[i].i_first + st->rows[i].n > end) end = st->rows[i].i_first + st->rows[i].n;
    return e->st.reserve_positions ? e->st.reserve_positions(e->st.ctx, end, err) : MB_OK;
}

static void fault_delays(const struct step *st)
{
    int64_t ms = fault_value("step_delay", 0);
    if (st->n_prefill > 0) ms += fault_value("prefill_delay", 0);
    if (ms > 0) clock_sleep_ms(ms);
}

/* False: the stepper is gone for good. */
static bool step_run(struct engine *e, struct step *st, struct step *before)
{
    mb_error err = { .code = MB_OK };
    int64_t t = clock_now_ns();
    fault_delays(st);
    mb_status rc = positions_reserve(e, st, &err);
    if (rc == MB_OK) rc = e->st.submit(e->st.ctx, st->rows, st->n_rows, st->results, &err);
    bool submitted = rc == MB_OK;
    if (e->info->async) step_deliver(e, before);
    if (submitted) rc = e->st.collect(e->st.ctx, &err);
    if (rc != MB_OK) {
        LOGE("engine", "step of %d rows failed: %s", (int)st->n_rows, err.text);
        /* After submit nobody knows what was written: no memory is then everybody's failure. */
        step_fail(e, st, submitted && rc == MB_NO_MEMORY ? MB_DEVICE : rc, err.text);
        return rc != MB_DEVICE && rc != MB_ENGINE_DEAD;
    }
    stats_step(e, st, clock_now_ns() - t);
    step_take(e, st);
    if (!e->info->async) step_deliver(e, st);
    return true;
}

static void engine_die(struct engine *e)
{
    LOGE("engine", "%s", DEAD_TEXT);
    pthread_mutex_lock(&e->lock);
    e->dead = true;
    struct run *waiting = queue_take(e, true);
    pthread_mutex_unlock(&e->lock);
    refuse_all(e, waiting, END_ERROR, MB_ENGINE_DEAD, DEAD_TEXT);
    for (struct sequence *s = e->first, *next; s; s = next) {
        next = s->next;
        seq_finish(e, s, END_ERROR, MB_ENGINE_DEAD, DEAD_TEXT);
    }
    e->step[0].undelivered = e->step[1].undelivered = false;
    sweep(e);
}

void *engine_main(void *arg)
{
    struct engine *e = arg;
    bool alive = true;
    threads_set_name("mb-engine");
    threads_set_fp_default();
    turns_take_short();
    while (alive && control(e)) {
        uint64_t n_events = e->n_events;
        admit(e);
        struct step *st = &e->step[e->i_step], *before = &e->step[1 - e->i_step];
        plan_step(e, st);
        if (st->n_rows == 0) {
            bool told = before->undelivered;
            step_deliver(e, before);
            e->stalled = !told && e->n_events == n_events;
        } else if (fault_hit("engine_death")) {
            step_abandon(st);
            alive = false;
        } else {
            alive = step_run(e, st, before);
            e->i_step = e->info->async ? 1 - e->i_step : e->i_step;
        }
        tell_told(e);
        sweep(e);
        stats_publish(e);
    }
    if (!alive) engine_die(e);
    pthread_mutex_lock(&e->lock);
    e->dead = true;
    e->n_clear_done = e->n_clear_wanted;
    pthread_cond_broadcast(&e->cleared);
    pthread_mutex_unlock(&e->lock);
    stats_publish(e);
    return NULL;
}
