/* method_diffusion.c: the method of models that write by canvases (spec.h, canvas_spec): after the prompt a block of tokens at a
 * time. A canvas begins as noise; each round computes all of it, every position seeing every other, and draws every position.
 * The surest draws stay: in order of rising entropy, while the sum of the entropies before is within the bound; the others become
 * noise again. When the best ids have stood still for so many rounds and the mean entropy is small, or after the last round,
 * the best ids are the block: told to the filter in order, and computed once more as ordinary tokens before the next canvas.
 *
 * A canvas is a row on private tail pages that commits nothing (COMMIT_NEVER); what the rounds hand on lies in one struct canvas
 * of the engine, for a sequence is never beside another (the serial lane). A sequence that comes to it while another was there
 * begins its canvas anew: the same bits, for all noise is keyed by seed, choice, index and round.
 * Noise of a position: word 0 of philox at {0, index, choice | NOISE_CANVAS << 24, round}, times the vocabulary, >> 32; round 0
 * begins the canvas, round k renews what the k-th round did not take. Draws of round k have noise_key.round k. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_int.h"
#include "model/spec.h"
#include "ops/mathfn.h"

struct sure { float entropy; int32_t i; };

struct canvas {
    const struct canvas_spec *spec;      /* borrowed from the stepper */
    const struct sequence *owner;        /* whose canvas this is; NULL: nobody's */
    int32_t round;                       /* rounds that are done; 0: the canvas is to be made */
    int32_t *ids;                        /* [n] what the next round sees */
    int32_t *best;                       /* [stability + 1][n] best ids of the last rounds, round k in row (k - 1) % (stability + 1) */
    float *signal, *entropy;             /* [n][d_model], [n] */
    struct sure *sure;                   /* [n] */
    struct sample_params params;         /* of the draws of the round in flight */
    struct canvas_pass pass;
};

mb_status canvas_open(struct engine *e, mb_error *err)
{
    const struct canvas_spec *spec = e->info->canvas;
    if (!spec) return MB_OK;
    if (spec->n < 1 || spec->n > e->info->m_max || spec->n > e->n_draw_max || e->info->d_model <= 0 || spec->n_rounds < 1)
        return mb_fail(err, MB_INVALID, "a canvas of %d tokens and %d rounds does not go with steps of %d tokens", (int)spec->n,
                       (int)spec->n_rounds, (int)e->info->m_max);
    struct canvas *c = e->canvas = mb_calloc(1, sizeof *c);
    size_t n = (size_t)spec->n;
    if (!c) return mb_fail(err, MB_NO_MEMORY, "no memory for a canvas");
    c->spec = spec;
    c->ids = mb_calloc(n, sizeof *c->ids);
    c->best = mb_calloc(n * ((size_t)spec->stability + 1), sizeof *c->best);
    c->signal = mb_calloc(n * (size_t)e->info->d_model, sizeof *c->signal);
    c->entropy = mb_calloc(n, sizeof *c->entropy);
    c->sure = mb_calloc(n, sizeof *c->sure);
    if (c->ids && c->best && c->signal && c->entropy && c->sure) return MB_OK;
    return mb_fail(err, MB_NO_MEMORY, "no memory for a canvas of %d tokens", (int)spec->n);
}

void canvas_close(struct engine *e)
{
    struct canvas *c = e->canvas;
    if (!c) return;
    mb_free(c->ids);
    mb_free(c->best);
    mb_free(c->signal);
    mb_free(c->entropy);
    mb_free(c->sure);
    mb_free(c);
    e->canvas = NULL;
}

void canvas_forget(struct engine *e, const struct sequence *s)
{
    if (e->canvas && e->canvas->owner == s) e->canvas->owner = NULL;
}

int32_t canvas_tokens(const struct engine *e)
{
    return e->info->canvas ? e->info->canvas->n : 0;
}

/* --- rows --- */

static bool is_telling(const struct sequence *s)
{
    return s->block.n > s->block.n_told;
}

/* What is known must be computed; then there is always another row: a round, or the rest of a block to be told. */
int32_t diffusion_feed_end(const struct sequence *s)
{
    return s->st.n_committed < s->n_ids && !is_telling(s) ? s->n_ids : s->st.n_committed + 1;
}

int32_t diffusion_whole(const struct engine *e, const struct sequence *s)
{
    return s->st.n_committed == s->n_ids && !is_telling(s) ? canvas_tokens(e) : 0;
}

static int32_t noise_id(const struct engine *e, const struct sequence *s, int32_t index, int32_t round)
{
    const struct noise_key *k = &s->params.noise;
    uint32_t key[2] = { (uint32_t)k->seed, (uint32_t)(k->seed >> 32) }, w[4];
    uint32_t ctr[4] = { 0, (uint32_t)index, k->i_choice | (uint32_t)NOISE_CANVAS << 24, (uint32_t)round };
    mb_philox4x32(ctr, key, w);
    return (int32_t)((uint64_t)w[0] * (uint64_t)e->info->n_vocab >> 32);
}

static void canvas_begin(struct engine *e, struct sequence *s)
{
    struct canvas *c = e->canvas;
    if (c->owner == s && c->round > 0) return;
    c->owner = s;
    c->round = 0;
    for (int32_t i = 0; i < c->spec->n; i++) c->ids[i] = noise_id(e, s, s->n_ids + i, 0);
}

static double round_temperature(const struct canvas_spec *c, int32_t round)
{
    return c->t_min + (c->t_max - c->t_min) * (double)(c->n_rounds - round + 1) / (double)c->n_rounds;
}

static void add_round(struct engine *e, struct sequence *s, struct step *st)
{
    struct canvas *c = e->canvas;
    int32_t n = c->spec->n, round = c->round + 1, first = s->n_ids;
    double t = round_temperature(c->spec, round);
    c->pass = (struct canvas_pass){ (float)t, c->round > 0 ? c->signal : NULL, c->signal, c->entropy };
    c->params = s->params;
    c->params.temperature = (float)(t * (double)s->params.temperature);
    c->params.noise.round = (uint32_t)round;
    struct row *r = row_add(e, s, st, first + n);
    r->ids = c->ids;
    r->first_is_draw = false;
    r->commit = COMMIT_NEVER;
    r->canvas = &c->pass;
    r->draw = DRAW_ALL;
    r->draws = st->pos + st->n_draws;
    st->n_canvas += n;
    for (int32_t i = 0; i < n; i++) {
        struct sample_pos *p = draw_add(s, st, first);
        p->params = &c->params;
        p->index = first + i;
    }
}

static void tell(struct engine *e, struct sequence *s);

bool diffusion_next_row(struct engine *e, struct sequence *s, struct step *st, int32_t budget)
{
    int32_t covered;
    if (is_telling(s)) tell(e, s); /* it was parked, and is back */
    if (s->phase != SEQ_ACTIVE || is_telling(s) || st->n_rows > 0) return false;
    if (s->st.n_committed < s->n_ids) {
        int32_t end = prompt_row_end(e, s, s->n_ids, budget);
        if (end > s->st.n_committed) row_add(e, s, st, end);
        return end > s->st.n_committed;
    }
    if (!seq_grow(e, s, s->n_ids + canvas_tokens(e), &covered)) return false;
    canvas_begin(e, s);
    add_round(e, s, st);
    return true;
}

/* --- what a round comes to --- */

static int by_entropy(const void *x, const void *y)
{
    const struct sure *a = x, *b = y;
    if (a->entropy != b->entropy) return a->entropy < b->entropy ? -1 : 1;
    return a->i < b->i ? -1 : a->i > b->i;
}

/* The surest draws stay, all else is noise again; returns the mean entropy. */
static double renew(struct engine *e, struct sequence *s, const struct draw *d)
{
    struct canvas *c = e->canvas;
    int32_t n = c->spec->n;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) c->sure[i] = (struct sure){ c->entropy[i], i };
    qsort(c->sure, (size_t)n, sizeof *c->sure, by_entropy);
    for (int32_t j = 0; j < n; j++) {
        int32_t i = c->sure[j].i;
        c->ids[i] = sum <= c->spec->entropy_bound ? d[i].id : noise_id(e, s, s->n_ids + i, c->round);
        sum += (double)c->sure[j].entropy;
    }
    return sum / n;
}

static int32_t *best_of(const struct canvas *c, int32_t round)
{
    return c->best + (size_t)((round - 1) % (c->spec->stability + 1)) * (size_t)c->spec->n;
}

static bool stands_still(const struct canvas *c)
{
    if (c->round <= c->spec->stability) return false;
    for (int32_t k = 1; k <= c->spec->stability; k++)
        if (memcmp(best_of(c, c->round - k), best_of(c, c->round), (size_t)c->spec->n * sizeof *c->best) != 0) return false;
    return true;
}

/* The best ids of the last round are the block. */
static void finish_block(struct engine *e, struct sequence *s)
{
    const struct canvas *c = e->canvas;
    const int32_t *best = best_of(c, c->round);
    int32_t n = c->spec->n, left = s->max_drawn - s->n_drawn;
    s->block.first = s->n_ids;
    s->block.n_told = 0;
    s->block.end = left <= n ? (s->context_bound ? END_CONTEXT : END_LENGTH) : END_NONE;
    if (left < n) n = left;
    for (int32_t i = 0; i < n; i++) {
        s->ids[s->n_ids++] = best[i];
        if (!is_end_id(s->run->job, best[i])) continue;
        s->block.end = END_EOS;
        n = i + 1;
    }
    s->block.n = n;
    s->n_drawn += n;
    stats_block(e, n);
    canvas_forget(e, s);
}

void diffusion_take(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    const struct row *r = &st->rows[i_row];
    const struct draw *d = &st->draws[st->i_draw[i_row]];
    struct canvas *c = e->canvas;
    if (!r->canvas) { /* a block as text: shared before its window's pages go */
        if (s->clean) seq_is_clean(e, s);
        return;
    }
    s->undelivered = true;
    for (int32_t i = 0; i < r->n; i++)
        if (!is_drawn(e, &d[i])) {
            no_draw(s, &d[i]);
            return;
        }
    seq_is_clean(e, s);
    int32_t *best = best_of(c, ++c->round);
    for (int32_t i = 0; i < r->n; i++) best[i] = d[i].argmax;
    double mean = renew(e, s, d);
    bool done = stands_still(c) && mean < c->spec->confidence;
    if (done || c->round == c->spec->n_rounds) finish_block(e, s);
}

/* --- telling --- */

/* One token of the block; false: the filter has had enough for now, or for good. */
static bool tell_one(struct engine *e, struct sequence *s)
{
    const struct job_filter *f = &s->run->job->filter;
    struct draw d = { .id = s->ids[s->block.first + s->block.n_told], .logprob = NAN };
    bool last = ++s->block.n_told == s->block.n, is_end = last && s->block.end == END_EOS;
    d.argmax = d.id;
    unpark_look(e, s);
    stats_token(e, s);
    enum verdict v = f->on_token(f->ctx, s->i_choice, &d, is_end);
    if (v == VERDICT_FAIL) seq_finish(e, s, END_ERROR, MB_INTERNAL, "the request's filter failed");
    else if (v == VERDICT_STOP) seq_finish(e, s, is_end ? END_EOS : END_STOP, MB_OK, NULL);
    else if (last && s->block.end != END_NONE) seq_finish(e, s, s->block.end, MB_OK, NULL);
    else if (v == VERDICT_PARK) seq_park(e, s);
    return v == VERDICT_GO;
}

static void tell(struct engine *e, struct sequence *s)
{
    while (s->phase == SEQ_ACTIVE && is_telling(s) && tell_one(e, s)) continue;
    if (!is_telling(s)) s->block.n = s->block.n_told = 0;
}

void diffusion_deliver(struct engine *e, struct sequence *s, struct step *st, int32_t i_row)
{
    if (!st->rows[i_row].canvas) return;
    if (s->end != END_NONE) seq_finish(e, s, s->end, s->end_status, s->end_text);
    else tell(e, s);
}
