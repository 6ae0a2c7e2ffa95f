/* plan.c: which rows make the next step.
 *
 * First every active sequence, oldest first, is given pages for its smallest next row; when the pool is out of pages
 * (the tree has already been asked) the youngest holder is preempted, parked ones before all others. Then the rows:
 * all that have one token to compute (decode), then prefill in turns within a share of time: at most
 * max(share * a decode-only step, 20 ms), turned into tokens by the measured rate; without decode rows a quarter of a
 * second, so that others get their turn and a cancel is heard. A prefill chunk ends where a recurrent state must be kept and never inside a two-way span. No effect on bits. */
#include "base/log.h"
#include "engine/engine_int.h"

enum { FIRST_GUESS_TOKENS = 32, LEAST_TOKENS = 8, LEAST_TOKENS_ALONE = 256 };
static const double PREFILL_FLOOR_NS = 20e6, PREFILL_ALONE_NS = 250e6;

/* `end`, or `mark` when the row must end there before; a mark inside a two-way span cannot be kept. */
static int32_t stop_at(const struct sequence *s, int32_t mark, int32_t end)
{
    bool on_the_way = mark > s->st.n_committed && mark < end && mark < s->n_prompt;
    return on_the_way && span_start(s->run->job, mark) == mark ? mark : end;
}

/* First index behind n_committed at which a recurrent state is to be kept, at most end. */
static int32_t next_stop(const struct engine *e, const struct sequence *s, int32_t end)
{
    if (!e->has_state) return end;
    end = stop_at(s, s->n_prompt - 1, end);
    end = stop_at(s, next_page_count(s->st.n_committed), end);
    for (int32_t i = 0; i < s->run->job->n_marks; i++) end = stop_at(s, s->run->job->marks[i], end);
    return end;
}

/* Tokens of the smallest row that may come next: one, a whole two-way span, or what the method cannot cut. */
static int32_t smallest_row(const struct engine *e, const struct sequence *s)
{
    const struct engine_job *job = s->run->job;
    int32_t at = s->st.n_committed, whole = s->method->whole ? s->method->whole(e, s) : 0;
    if (whole > 0) return whole;
    for (int32_t i = 0; i < job->n_two_way; i++)
        if (job->two_way[i].first <= at && at < job->two_way[i].end) return job->two_way[i].end - at;
    return 1;
}

int32_t chunk_end(const struct engine *e, const struct sequence *s, int32_t end, int32_t n_max)
{
    const struct engine_job *job = s->run->job;
    int32_t at = s->st.n_committed;
    if (end - at > n_max) end = at + n_max;
    end = next_stop(e, s, end);
    for (int32_t i = 0; i < job->n_two_way; i++) {
        const struct index_span *w = &job->two_way[i];
        if (w->first < end && end < w->end) end = w->first > at ? w->first : at;
    }
    return end;
}

static int32_t n_pending(const struct sequence *s)
{
    return s->method->feed_end(s) - s->st.n_committed;
}

/* Nothing to plan for a sequence that has ended but was not told, or whose mask or guess waits for its filter. */
static bool plannable(const struct sequence *s)
{
    if (s->phase != SEQ_ACTIVE || s->end != END_NONE) return false;
    return !s->undelivered || !(s->run->job->next_mask || s->run->job->ahead || s->method->waits);
}

/* --- pages --- */

static struct sequence *victim(struct engine *e)
{
    for (struct sequence *s = e->last; s; s = s->prev)
        if (s->phase == SEQ_PARKED && seq_has_pages(e, s)) return s;
    for (struct sequence *s = e->last; s; s = s->prev)
        if (s->phase != SEQ_ENDED && seq_has_pages(e, s)) return s;
    return NULL;
}

static bool is_alone(struct engine *e, const struct sequence *s)
{
    for (const struct sequence *o = e->first; o; o = o->next)
        if (o != s && seq_has_pages(e, o)) return false;
    return true;
}

/* Pages for the smallest next row of s; false: s itself lost its place. */
static bool secure(struct engine *e, struct sequence *s)
{
    int32_t covered;
    while (!seq_grow(e, s, s->st.n_committed + smallest_row(e, s), &covered)) {
        struct sequence *v = victim(e);
        if (v && v != s) {
            seq_preempt(e, v);
            continue;
        }
        if (!is_alone(e, s)) {
            seq_preempt(e, s);
            return false;
        }
        s->end = END_ERROR;
        s->end_status = MB_CONTEXT_OVER_BUDGET;
        s->end_text = "the KV memory is full: this sequence alone does not fit; raise --memory-budget or --kv-budget";
        return false;
    }
    return true;
}

static void secure_all(struct engine *e)
{
    for (struct sequence *s = e->first, *next; s; s = next) {
        next = s->next;
        if (!plannable(s) || n_pending(s) <= 0) continue;
        if (secure(e, s) || s->end != END_ERROR || s->undelivered) continue;
        seq_finish(e, s, s->end, s->end_status, s->end_text);
    }
}

/* --- rows --- */

static int32_t prefill_tokens(const struct engine *e, const struct step *st)
{
    int32_t room = e->info->m_max - st->n_tokens;
    bool alone = st->n_rows == 0;
    double ns = e->opt.prefill_share * e->meter.decode_ns, rate = e->meter.prefill_ns_per_token;
    if (alone) ns = PREFILL_ALONE_NS;
    else if (ns < PREFILL_FLOOR_NS) ns = PREFILL_FLOOR_NS;
    double n = rate > 0 ? ns / rate : alone ? room : FIRST_GUESS_TOKENS;
    double least = alone ? LEAST_TOKENS_ALONE : LEAST_TOKENS;
    if (n < least) n = least;
    return n < room ? (int32_t)n : room;
}

/* More than one token to compute; a row beside the batch waits here even for its last, so that m_max holds a token for
 * every row of the batch. */
static bool prefills(const struct sequence *s)
{
    return plannable(s) && n_pending(s) > (s->method->beside ? 0 : 1);
}

static bool wants_prefill(const struct sequence *s)
{
    return prefills(s) && !s->in_flight;
}

static int32_t prefill_one(struct engine *e, struct step *st, struct sequence *s, int32_t budget)
{
    int32_t before = st->n_tokens - st->n_guesses - st->n_canvas, n = budget, least = smallest_row(e, s);
    if (n > e->opt.prefill_chunk) n = e->opt.prefill_chunk;
    if (n < least) n = least;
    if (n > e->info->m_max - st->n_tokens) return 0;
    s->method->next_row(e, s, st, n);
    st->n_prefill += st->n_tokens - st->n_guesses - st->n_canvas - before;
    return st->n_tokens - st->n_guesses - before;
}

static void plan_prefill(struct engine *e, struct step *st)
{
    uint32_t n = 0, i = 0;
    for (struct sequence *s = e->first; s; s = s->next) n += wants_prefill(s);
    if (n == 0) return;
    int32_t budget = prefill_tokens(e, st);
    uint32_t start = e->turn++ % n;
    /* Two rounds over the list: from the one whose turn it is to the end, then the others. */
    for (int round = 0; round < 2; round++) {
        i = 0;
        for (struct sequence *s = e->first; s && budget > 0; s = s->next) {
            if (!prefills(s)) continue;
            if ((i++ >= start) == (round == 0) && !s->in_flight) budget -= prefill_one(e, st, s, budget);
        }
    }
}

void plan_step(struct engine *e, struct step *st)
{
    st->n_rows = st->n_draws = st->n_tokens = st->n_prefill = st->n_guesses = st->n_beside = st->n_canvas = 0;
    secure_all(e);
    for (struct sequence *s = e->first; s; s = s->next) {
        if (!plannable(s) || n_pending(s) != 1 || s->method->beside) continue;
        if (e->info->early) seq_grow_early(e, s);
        int32_t before = st->n_tokens - st->n_canvas;
        s->method->next_row(e, s, st, 1);
        if (s->method->whole) st->n_prefill += st->n_tokens - st->n_canvas - before; /* nothing draws one by one there */
    }
    plan_prefill(e, st);
}
