/* stream.c: the life of one request's stream: start, push (producer's side), next, cancel, close (consumer's side).
 *
 * Every path ends the same way: the producer calls stream_producer_done exactly once (worker on a failed preparation,
 * canceller of a waiting one, or the engine's on_done), the consumer calls gen_close once, the last of the two frees.
 */
#include "gen/gen_int.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

static void stream_free(struct gen_stream *s)
{
    deliver_free(s);
    ring_free(&s->ring);
    arena_free(&s->arena);
    pthread_cond_destroy(&s->ready);
    pthread_cond_destroy(&s->told);
    pthread_mutex_destroy(&s->lock);
    mb_free(s);
}

void stream_unref(struct gen_stream *s)
{
    pthread_mutex_lock(&s->lock);
    int n = --s->n_refs;
    pthread_mutex_unlock(&s->lock);
    if (n == 0) stream_free(s);
}

bool stream_is_cancelled(struct gen_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool c = s->cancelled;
    pthread_mutex_unlock(&s->lock);
    return c;
}

static mb_status stream_make(struct gen_engine *g, const struct gen_request *r, struct gen_stream **out, mb_error *err)
{
    struct gen_stream *s = mb_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->ready, &attr);
    pthread_condattr_destroy(&attr);
    pthread_cond_init(&s->told, NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->g = g;
    s->n_refs = 2;
    arena_init(&s->arena, prepare_arena_limit(r));
    /* Above the soft limit rows are parked; what they may still add then, and what ends them, always has room. */
    s->ring_soft = g->opt.ring_events;
    int32_t limit = s->ring_soft + (32 + 4 * ENGINE_AHEAD_MAX) * r->n_choices + 16; /* a row of guesses is told whole */
    mb_status st = request_copy(&s->req, r, &s->arena, err);
    if (st == MB_OK) st = ring_init(&s->ring, 32, r->score ? INT32_MAX / 2 : limit, err);
    if (st != MB_OK) stream_free(s);
    else *out = s;
    return st;
}

static mb_status request_check(const struct gen_request *r, mb_error *err)
{
    if (r->n_choices < 1 || r->n_choices > GEN_MAX_CHOICES)
        return mb_fail_at(err, MB_INVALID, "n", "n must be at least 1 and at most %d", GEN_MAX_CHOICES);
    if (r->n_top_logprobs < 0 || r->n_top_logprobs > SAMPLE_MAX_TOP)
        return mb_fail_at(err, MB_INVALID, "top_logprobs", "top_logprobs must be from 0 to %d", SAMPLE_MAX_TOP);
    if (r->input == GEN_MESSAGES && !r->messages_json)
        return mb_fail_at(err, MB_INVALID, "messages", "messages are missing");
    if (r->input == GEN_IDS && r->n_ids < 1) return mb_fail_at(err, MB_INVALID, "ids", "the prompt has no token ids");
    return MB_OK;
}

mb_status stream_start(void *ctx, const struct gen_request *r, gen_notify_fn notify, void *notify_ctx,
                       struct gen_stream **out, mb_error *err)
{
    struct gen_engine *g = ctx;
    *out = NULL;
    MB_TRY(request_check(r, err));
    if (g->info.embeds_only)
        return mb_fail(err, MB_INVALID, "%.100s only makes embeddings: use /v1/embeddings", g->info.id);
    if (!engine_alive(g->engine)) return mb_fail(err, MB_ENGINE_DEAD, "the engine has stopped");
    struct gen_stream *s;
    MB_TRY(stream_make(g, r, &s, err));
    s->notify = notify;
    s->notify_ctx = notify_ctx;
    mb_status st = adapters_pin(g, r->adapter, &s->pin, err);
    if (st == MB_OK) st = workers_enqueue(g, s, err);
    if (st != MB_OK) {
        engine_adapter_unpin(g->engine, &s->pin);
        stream_free(s);
        return st;
    }
    *out = s;
    return MB_OK;
}

/* --- producer's side --- */

/* s->lock held: there is something to read. True: the caller calls tell() once it has let go of the lock, or the consumer would wake
 * only to wait for it. */
static bool wake(struct gen_stream *s)
{
    pthread_cond_signal(&s->ready);
    if (!s->notify || s->closed) return false;
    if (s->holding) {
        s->due = true;
        return false;
    }
    s->n_telling++;
    return true;
}

/* gen_close waits for this, so what notify is called with is alive. */
static void tell(struct gen_stream *s)
{
    s->notify(s->notify_ctx);
    pthread_mutex_lock(&s->lock);
    if (--s->n_telling == 0 && s->closed) pthread_cond_broadcast(&s->told);
    pthread_mutex_unlock(&s->lock);
}

void stream_hold(struct gen_stream *s)
{
    s->holding = true;
}

void stream_told(struct gen_stream *s)
{
    if (!s->holding) return;
    s->holding = false;
    if (!s->due) return;
    s->due = false;
    pthread_mutex_lock(&s->lock);
    bool due = (s->ring.n > 0 || s->progress.set) && wake(s);
    pthread_mutex_unlock(&s->lock);
    if (due) tell(s);
}

void stream_push(struct gen_stream *s, const struct gen_event *ev, const char *text, size_t len, bool *failed)
{
    bool due = false;
    pthread_mutex_lock(&s->lock);
    if (!s->closed && !s->terminal) {
        bool was_empty = s->ring.n == 0;
        if (ring_push(&s->ring, ev, text, len) != MB_OK) *failed = true;
        else if (was_empty) due = wake(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (due) tell(s);
}

void stream_progress(struct gen_stream *s, int32_t n_done, int32_t n_total)
{
    pthread_mutex_lock(&s->lock);
    bool was_empty = s->ring.n == 0 && !s->progress.set;
    s->progress.set = true;
    s->progress.n_done = n_done;
    s->progress.n_total = n_total;
    bool due = was_empty && wake(s);
    pthread_mutex_unlock(&s->lock);
    if (due) tell(s);
}

/* s->lock held; true: tell() is due. */
static bool push_terminal(struct gen_stream *s, const struct gen_event *ev, const char *text, size_t len)
{
    if (s->terminal) return false;
    /* A terminal event must never be lost: with no memory for its text it goes without, with no slot the queue goes. */
    if (ring_push(&s->ring, ev, text, len) != MB_OK) {
        ring_clear(&s->ring);
        s->ring.slots[0].ev = *ev;
        s->ring.n = 1;
    }
    s->terminal = true;
    return wake(s);
}

/* The engine knows no fields and says "messages" of every input. */
static const char *input_field(const struct gen_request *r)
{
    return r->field ? r->field : r->input == GEN_MESSAGES ? "messages" : "prompt";
}

void stream_error(struct gen_stream *s, mb_status status, const char *text, const char *at)
{
    struct gen_event ev = { .type = GEN_EV_ERROR };
    ev.u.error.status = status;
    ev.u.error.at = at && strcmp(at, "messages") == 0 ? input_field(&s->req) : at;
    bool due = false;
    pthread_mutex_lock(&s->lock);
    if (!s->cancelled) {
        s->failed = true;
        due = push_terminal(s, &ev, text, strlen(text));
    }
    pthread_mutex_unlock(&s->lock);
    if (due) tell(s);
}

void stream_producer_done(struct gen_stream *s)
{
    struct gen_event ev = { .type = GEN_EV_DONE };
    engine_adapter_unpin(s->g->engine, &s->pin);
    pthread_mutex_lock(&s->lock);
    s->producer_done = true;
    s->parked = false;
    bool due = push_terminal(s, &ev, NULL, 0);
    pthread_mutex_unlock(&s->lock);
    if (due) tell(s);
    stream_unref(s);
}

/* --- consumer's side --- */
static bool take(struct gen_stream *s, struct gen_event *out)
{
    if (s->progress.set && (s->ring.n == 0 || s->ring.slots[s->ring.head].ev.type == GEN_EV_START)) {
        /* a start that is queued goes first; afterwards the progress is old and is dropped with the next event */
        if (s->ring.n == 0) {
            *out = (struct gen_event){ .type = GEN_EV_PROGRESS };
            out->u.progress.n_done = s->progress.n_done;
            out->u.progress.n_total = s->progress.n_total;
            s->progress.set = false;
            return true;
        }
    } else {
        s->progress.set = false;
    }
    return ring_pop(&s->ring, out);
}

static bool wait_ready(struct gen_stream *s, int64_t wait_ms)
{
    if (wait_ms < 0) return pthread_cond_wait(&s->ready, &s->lock) == 0;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += wait_ms / 1000;
    ts.tv_nsec += (wait_ms % 1000) * 1000000;
    if (ts.tv_nsec >= 1000000000) ts.tv_sec++, ts.tv_nsec -= 1000000000;
    while (s->ring.n == 0 && !s->progress.set)
        if (pthread_cond_timedwait(&s->ready, &s->lock, &ts) == ETIMEDOUT) return false;
    return true;
}

bool gen_next(struct gen_stream *s, int64_t wait_ms, struct gen_event *out)
{
    pthread_mutex_lock(&s->lock);
    bool got = take(s, out);
    while (!got && wait_ms != 0) {
        if (!wait_ready(s, wait_ms)) break;
        got = take(s, out);
    }
    bool unpark = got && s->parked && s->submitted && !s->producer_done && s->ring.n <= s->ring_soft / 2;
    struct engine *e = unpark ? s->g->engine : NULL;
    uint64_t id = s->job_id;
    if (unpark) s->parked = false, s->n_refs++;
    pthread_mutex_unlock(&s->lock);
    if (unpark) {
        engine_unpark(e, id);
        stream_unref(s);
    }
    return got;
}

bool gen_next_text(struct gen_stream *s, struct gen_event *out, bool *more)
{
    pthread_mutex_lock(&s->lock);
    enum gen_event_type type = s->ring.n ? s->ring.slots[s->ring.head].ev.type : GEN_EV_DONE;
    bool got = (type == GEN_EV_TEXT || type == GEN_EV_TOKEN) && !s->parked && take(s, out);
    *more = s->ring.n > 0 || s->progress.set;
    pthread_mutex_unlock(&s->lock);
    return got;
}

void gen_cancel(struct gen_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool first = !s->cancelled;
    s->cancelled = true;
    if (first && !s->terminal) {
        ring_clear(&s->ring);
        s->progress.set = false;
    }
    bool running = first && !s->producer_done;
    bool submitted = s->submitted;
    uint64_t id = s->job_id;
    if (running) s->n_refs++;
    pthread_mutex_unlock(&s->lock);
    if (!running) return;
    if (workers_dequeue(s->g, s)) stream_producer_done(s);
    else if (submitted) engine_cancel(s->g->engine, id); /* else the worker sees `cancelled` */
    stream_unref(s);
}

void gen_close(struct gen_stream *s)
{
    if (!s) return;
    gen_cancel(s);
    pthread_mutex_lock(&s->lock);
    s->closed = true;
    while (s->n_telling > 0) pthread_cond_wait(&s->told, &s->lock);
    pthread_mutex_unlock(&s->lock);
    stream_unref(s);
}
