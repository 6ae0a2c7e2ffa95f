/* method.c: the methods: how a sequence becomes rows, and what its results mean. A table; the scheduler knows no other.
 *
 * autoregressive: every known id is computed, the last one draws; the drawn id joins the sequence. Where the job has a guess
 *   of what comes (job_ahead) the guessed ids are computed in the same row and each place draws, with the noise, history
 *   and mask that it would have had alone: ids join as far as draws and guesses agree, and the first that differs. The
 *   keys behind it are not committed, recurrent states go back to before the row.
 * score: the prompt's own ids are the targets: row positions from n_score_from on draw with a target, on_score is told
 *   the index of the predicted id. Ends with END_LENGTH.
 * embed: the row that ends the prompt asks for the final norm's output at its last token; nothing draws.
 * diffusion: method_diffusion.c.
 * Keys written by either are ordinary: committed, and published after a finite draw. */
#include <math.h>
#include <string.h>

#include "engine/engine_int.h"

/* --- rows --- */

/* Embedding spans of the prompt that overlap [first, end), relative to the row. */
static int32_t embeds_cut(const struct engine *e, struct sequence *s, int32_t first, int32_t end)
{
    const struct engine_job *job = s->run->job;
    int32_t n = 0;
    for (int32_t i = 0; i < job->n_embeds; i++) {
        const struct embed_span *m = &job->embeds[i];
        int32_t a = m->first > first ? m->first : first, b = m->first + m->n < end ? m->first + m->n : end;
        if (a >= b) continue;
        s->embeds[n++] = (struct embed_span){ a - first, b - a,
                                              m->data + (size_t)(a - m->first) * (size_t)e->info->d_model };
    }
    return n;
}

struct row *row_add(struct engine *e, struct sequence *s, struct step *st, int32_t end)
{
    const struct engine_job *job = s->run->job;
    int32_t first = s->st.n_committed;
    struct row *r = &st->rows[st->n_rows];
    memset(r, 0, sizeof *r);
    r->seq = &s->st;
    r->i_first = first;
    r->n = end - first;
    r->ids = s->ids + first;
    r->first_is_draw = s->undelivered;
    r->embeds = s->embeds;
    r->n_embeds = job->n_embeds > 0 ? embeds_cut(e, s, first, end) : 0;
    r->rope_axes = 1;
    r->two_way = job->two_way;
    r->n_two_way = job->n_two_way;
    r->adapters = (const struct adapter_handle *const *)job->adapters;
    r->n_adapters = job->n_adapters;
    r->commit = s->undelivered ? COMMIT_AFTER_ACCEPT : COMMIT_YES;
    st->seqs[st->n_rows] = s;
    st->i_draw[st->n_rows] = st->n_draws;
    st->n_guess[st->n_rows] = st->n_new[st->n_rows] = 0;
    memset(&st->results[st->n_rows], 0, sizeof st->results[0]);
    st->results[st->n_rows].draws = st->draws + st->n_draws;
    st->n_rows++;
    st->n_tokens += r->n;
    s->in_flight = true;
    return r;
}

struct sample_pos *draw_add(struct sequence *s, struct step *st, int32_t n_history)
{
    struct sample_pos *p = &st->pos[st->n_draws++];
    *p = (struct sample_pos){ .params = &s->params, .history = s->ids, .n_history = n_history, .n_drawn = s->n_drawn,
                              .index = n_history, .target = -1 };
    return p;
}

/* --- autoregressive --- */

static int32_t generate_feed_end(const struct sequence *s)
{
    return s->n_ids;
}

/* Tokens that a row may have besides its one: every other row of the batch finds its token and its draw. */
static int32_t ahead_room(const struct engine *e, const struct step *st)
{
    int32_t rows = e->opt.batch - (st->n_rows - st->n_beside), tokens = e->info->m_max - st->n_tokens - rows;
    int32_t draws = e->n_draw_max - st->n_draws - rows, room = tokens < draws ? tokens : draws;
    return room > 0 ? room : 0;
}

/* Ask the job; what it says now stands behind the known ids, where there is room for all of max_drawn. Where it is asked, and
 * for how much, depends on the sequence alone: what is put in changes what follows. So never at the prompt's end, of which the
 * cache may have all but one id, and always before a later draw (generate_stop). */
static int32_t ahead_ask(struct engine *e, struct sequence *s)
{
    const struct engine_job *job = s->run->job;
    struct job_ahead *a = &e->ahead;
    int32_t n = 0, left = s->max_drawn - s->n_drawn - 1, room = left < ENGINE_AHEAD_MAX ? left : ENGINE_AHEAD_MAX;
    if (!job->ahead || s->n_put > 0 || s->n_ids == s->n_prompt || s->st.n_committed != s->n_ids - 1 || room <= 0) return 0;
    a->n = 0;
    a->sure = false;
    job->ahead(job->filter.ctx, s->i_choice, s->ids, s->n_ids, room, a);
    for (; n < a->n && n < room && a->ids[n] >= 0 && a->ids[n] < e->info->n_vocab; n++) s->ids[s->n_ids + n] = a->ids[n];
    return n;
}

/* The ids behind n_ids are guesses. */
static bool guess_row(struct engine *e, struct sequence *s, struct step *st, int32_t n)
{
    const struct engine_job *job = s->run->job;
    int32_t covered, room = ahead_room(e, st);
    if (n > room) n = room;
    if (n > 0 && !seq_grow(e, s, s->n_ids + n, &covered)) n = covered - s->n_ids;
    if (n <= 0 || (e->has_state && !seq_state_save(e, s))) return false;
    if (job->guessed) job->guessed(job->filter.ctx, s->i_choice, n);
    int32_t i_row = st->n_rows;
    struct row *r = row_add(e, s, st, s->n_ids + n);
    r->draw = DRAW_ALL;
    r->draws = st->pos + st->n_draws;
    st->n_guess[i_row] = n;
    st->n_guesses += n;
    for (int32_t j = 0; j <= n; j++) {
        struct sample_pos *p = draw_add(s, st, s->n_ids + j);
        p->n_drawn += j;
        if (j > 0) p->mask = e->ahead.masks[j - 1];
        else if (job->next_mask) p->mask = job->next_mask(job->filter.ctx, s->i_choice);
    }
    return true;
}

int32_t prompt_row_end(struct engine *e, struct sequence *s, int32_t stop, int32_t budget)
{
    int32_t covered, first = s->st.n_committed, end = chunk_end(e, s, stop, budget);
    if (end > first && !seq_grow(e, s, end, &covered)) end = covered > first ? chunk_end(e, s, stop, covered - first) : 0;
    return end > first ? end : first;
}

/* What is computed again (after a preemption, or a guess that failed) ends before the last id where the job is to be asked. */
static int32_t generate_stop(const struct sequence *s)
{
    bool again = s->n_ids > s->n_prompt && s->n_ids - s->st.n_committed > 1;
    return again && s->run->job->ahead && s->n_put == 0 ? s->n_ids - 1 : s->n_ids;
}

static bool generate_next_row(struct engine *e, struct sequence *s, struct step *st, int32_t budget)
{
    int32_t n_ahead = ahead_ask(e, s), room = ahead_room(e, st);
    if (n_ahead > 0 && e->ahead.sure) {
        s->n_ids += n_ahead;
        s->n_drawn += n_ahead;
        s->n_put = n_ahead;
        budget += n_ahead < room ? n_ahead : room;
    } else if (n_ahead > 0 && guess_row(e, s, st, n_ahead)) {
        return true;
    }
    int32_t end = prompt_row_end(e, s, generate_stop(s), budget);
    if (end == s->st.n_committed) return false;
    struct row *r = row_add(e, s, st, end);
    if (end < s->n_ids) return true;
    const struct engine_job *job = s->run->job;
    r->draw = DRAW_LAST;
    r->draws = draw_add(s, st, s->n_ids);
    r->is_last = s->n_drawn + 1 >= s->max_drawn;
    if (job->next_mask) st->pos[st->n_draws - 1].mask = job->next_mask(job->filter.ctx, s->i_choice);
    return true;
}

bool is_end_id(const struct engine_job *job, int32_t id)
{
    for (int32_t i = 0; i < job->n_end_ids; i++)
        if (job->end_ids[i] == id) return !job->ignore_eos;
    return false;
}

bool is_drawn(const struct engine *e, const struct draw *d)
{
    return !d->non_finite && !d->no_candidate && d->id >= 0 && d->id < e->info->n_vocab;
}

void no_draw(struct sequence *s, const struct draw *d)
{
    s->end = END_ERROR;
    s->end_status = d->non_finite ? MB_NON_FINITE : MB_INVALID;
    s->end_text = d->non_finite ? "the model produced non-finite logits; nothing was drawn from them"
                                : "the constraint and the logit bias leave no token that could be drawn";
}

/* The prompt's keys have shown to be good: siblings may start from them. */
static void forks_start(struct engine *e, struct sequence *s)
{
    for (int32_t i = 1; i < s->run->job->n_choices; i++) {
        struct sequence *o = &s->run->seqs[i];
        if (o->phase != SEQ_FORK_WAIT) continue;
        seq_fork(e, s, o);
        o->phase = SEQ_READY;
    }
}

void seq_is_clean(struct engine *e, struct sequence *s)
{
    bool first = !s->clean;
    s->clean = true;
    if (first) forks_start(e, s);
    if (first || s->st.n_committed / KV_PAGE_TOKENS > s->n_published / KV_PAGE_TOKENS) seq_publish(e, s);
}

/* One draw: it joins, and may end the sequence. True: the guess that stands in its place was right, so the next draw counts. */
static bool draw_join(struct engine *e, struct sequence *s, const struct draw *d, bool guessed)
{
    if (!is_drawn(e, d)) {
        no_draw(s, d);
        return false;
    }
    guessed = guessed && s->ids[s->n_ids] == d->id;
    s->ids[s->n_ids++] = d->id;
    s->n_drawn++;
    if (is_end_id(s->run->job, d->id)) s->end = END_EOS;
    else if (s->n_drawn >= s->max_drawn) s->end = s->context_bound ? END_CONTEXT : END_LENGTH;
    return guessed && s->end == END_NONE;
}

/* Guesses behind the last right one never were. */
static void guesses_settle(struct engine *e, struct sequence *s, const struct row *r, int32_t n, int32_t n_kept)
{
    s->st.n_committed = r->i_first + r->n - n + n_kept;
    s->st.i_state = s->st.n_committed;
    stats_guesses(e, n, n_kept);
    if (e->has_state && n_kept == n) seq_state_forget(e, s);
    if (!e->has_state || n_kept == n) return;
    seq_state_restore(e, s);
    s->st.n_committed = s->st.i_state = r->i_first;
}

static void generate_take(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    const struct row *r = &st->rows[i_row];
    if (r->draw == DRAW_NONE) return;
    const struct draw *d = &st->draws[st->i_draw[i_row]];
    int32_t n_guess = st->n_guess[i_row], n_kept = 0;
    s->undelivered = true;
    while (draw_join(e, s, &d[n_kept], n_kept < n_guess)) n_kept++;
    st->n_new[i_row] = n_kept + 1;
    if (n_guess > 0) guesses_settle(e, s, r, n_guess, n_kept);
    if (!is_drawn(e, &d[0]) || d[n_kept].non_finite) return; /* keys that gave a NaN are nobody's prefix */
    seq_is_clean(e, s);
}

/* False: the sequence is finished. */
static bool token_tell(struct engine *e, struct sequence *s, const struct draw *d, bool is_end, bool *park)
{
    const struct job_filter *f = &s->run->job->filter;
    if (!is_drawn(e, d)) {
        seq_finish(e, s, END_ERROR, s->end_status, s->end_text);
        return false;
    }
    stats_token(e, s);
    enum verdict v = f->on_token(f->ctx, s->i_choice, d, is_end);
    if (v == VERDICT_FAIL) seq_finish(e, s, END_ERROR, MB_INTERNAL, "the request's filter failed");
    else if (v == VERDICT_STOP) seq_finish(e, s, is_end ? END_EOS : END_STOP, MB_OK, NULL);
    *park = *park || v == VERDICT_PARK;
    return v == VERDICT_GO || v == VERDICT_PARK;
}

/* Ids that were put in stand before the n_new drawn ones. */
static bool put_tell(struct engine *e, struct sequence *s, int32_t n_new, bool *park)
{
    int32_t n = s->n_put, first = s->n_ids - n_new - n;
    s->n_put = 0;
    e->meter.s.n_put_in += (uint64_t)n;
    for (int32_t i = 0; i < n; i++) {
        struct draw d = { .id = s->ids[first + i], .argmax = s->ids[first + i] };
        if (!token_tell(e, s, &d, false, park)) return false;
    }
    return true;
}

void seq_park(struct engine *e, struct sequence *s)
{
    if (s->phase == SEQ_ACTIVE) e->n_active--;
    s->phase = SEQ_PARKED;
    s->t_parked_ns = s->t_last_token_ns;
    e->n_parked++;
}

void unpark_look(struct engine *e, struct sequence *s)
{
    pthread_mutex_lock(&e->lock);
    s->unpark_seen = s->run->n_unpark;
    pthread_mutex_unlock(&e->lock);
}

static void generate_deliver(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    const struct draw *d = &st->draws[st->i_draw[i_row]];
    int32_t n_new = st->n_new[i_row];
    bool park = false, lost = st->rows[i_row].draw != DRAW_NONE && !is_drawn(e, &d[n_new - 1]);
    if (st->rows[i_row].draw == DRAW_NONE) return;
    unpark_look(e, s);
    if (s->n_put > 0 && !put_tell(e, s, n_new - lost, &park)) return;
    for (int32_t i = 0; i < n_new; i++)
        if (!token_tell(e, s, &d[i], s->end == END_EOS && i == n_new - 1, &park)) return;
    if (s->end != END_NONE) seq_finish(e, s, s->end, s->end_status, s->end_text);
    else if (park) seq_park(e, s);
}

/* --- score --- */

static int32_t score_feed_end(const struct sequence *s)
{
    int32_t last = s->n_ids - 1; /* predicts nothing, and is left out unless a two-way span needs it */
    return span_start(s->run->job, last) == last ? last : s->n_ids;
}

/* First position whose prediction is still to be told. */
static int32_t score_from(const struct sequence *s)
{
    return s->n_scored > s->run->job->n_score_from ? s->n_scored : s->run->job->n_score_from;
}

static bool score_next_row(struct engine *e, struct sequence *s, struct step *st, int32_t budget)
{
    int32_t from = span_start(s->run->job, score_from(s)), first = s->st.n_committed;
    int32_t last = score_feed_end(s), stop = first < from && from < last ? from : last;
    bool draws = first >= from;
    int32_t room = e->n_draw_max - st->n_draws - (e->opt.batch - (st->n_rows - st->n_beside) - 1);
    if (draws && room < budget) budget = room;
    if (budget <= 0) return false;
    int32_t end = prompt_row_end(e, s, stop, budget);
    if (end == first) return false;
    struct row *r = row_add(e, s, st, end);
    if (!draws) return true;
    r->draw = DRAW_ALL;
    r->draws = st->pos + st->n_draws;
    for (int32_t i = first; i < end; i++) draw_add(s, st, i + 1)->target = i + 1 < s->n_ids ? s->ids[i + 1] : -1;
    return true;
}

static void score_take(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    const struct row *r = &st->rows[i_row];
    bool finite = true;
    for (int32_t i = 0; i < row_n_draw(r); i++) finite = finite && !st->draws[st->i_draw[i_row] + i].non_finite;
    if (!finite) {
        s->end = END_ERROR;
        s->end_status = MB_NON_FINITE;
        s->end_text = "the model produced non-finite logits while scoring";
        return;
    }
    if (r->draw != DRAW_NONE) s->clean = true;
    if (s->st.n_committed >= score_feed_end(s)) s->end = END_LENGTH;
}

static void score_deliver(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    const struct row *r = &st->rows[i_row];
    const struct job_filter *f = &s->run->job->filter;
    if (s->end == END_ERROR) {
        seq_finish(e, s, END_ERROR, s->end_status, s->end_text);
        return;
    }
    for (int32_t i = 0; i < row_n_draw(r); i++) {
        int32_t at = r->i_first + i;
        if (at < score_from(s) || at + 1 >= s->n_ids) continue;
        f->on_score(f->ctx, at + 1, &st->draws[st->i_draw[i_row] + i]);
        s->n_scored = at + 1;
    }
    if (s->end != END_NONE) seq_finish(e, s, s->end, MB_OK, NULL);
}

/* --- embed --- */

static bool embed_next_row(struct engine *e, struct sequence *s, struct step *st, int32_t budget)
{
    int32_t end = prompt_row_end(e, s, generate_stop(s), budget);
    if (end == s->st.n_committed) return false;
    struct row *r = row_add(e, s, st, end);
    st->n_beside++;
    if (end == s->n_ids) r->hidden_out = s->run->job->hidden;
    return true;
}

static void embed_take(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    (void)st;
    (void)i_row;
    if (s->st.n_committed < s->n_ids) return;
    bool finite = true;
    for (int32_t i = 0; i < e->info->d_model; i++) finite = finite && isfinite(s->run->job->hidden[i]);
    s->clean = finite;
    s->end = finite ? END_LENGTH : END_ERROR;
    if (finite) return;
    s->end_status = MB_NON_FINITE;
    s->end_text = "the model produced a NaN or an infinity in an embedding";
}

static void embed_deliver(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    (void)st;
    (void)i_row;
    if (s->end != END_NONE) seq_finish(e, s, s->end, s->end_status, s->end_text);
}

static const struct method methods[] = {
    [JOB_GENERATE] = { "autoregressive", false, false, generate_feed_end, generate_next_row, generate_take, generate_deliver, NULL },
    [JOB_SCORE] = { "score", false, false, score_feed_end, score_next_row, score_take, score_deliver, NULL },
    [JOB_EMBED] = { "embed", true, false, generate_feed_end, embed_next_row, embed_take, embed_deliver, NULL },
    [JOB_DIFFUSE] = { "diffusion", false, true, diffusion_feed_end, diffusion_next_row, diffusion_take, diffusion_deliver,
                      diffusion_whole },
};

const struct method *method_get(enum job_method m)
{
    return (size_t)m < sizeof methods / sizeof methods[0] ? &methods[m] : NULL;
}
