/* ahead.c: what a job's choices think that comes next, for the engine (job_ahead), and what became of it.
 *
 * Three sources: a grammar (jump.c), the tools and the template (fill.c), the conversation so far (echo.c). Guesses never change
 * what comes out; how many are made at once follows how the last ones went: a guess that failed cost the time of computing it.
 * Runs on the engine thread, before a row. */
#include <string.h>

#include "gen/gen_int.h"

enum { WIDTH_FIRST = 16, WIDTH_LEAST = 2 };
#define MASKS_BYTES ((size_t)16 << 20) /* of all choices of a request */

static bool jumps(const struct gen_stream *s)
{
    return s->g->opt.grammar_jump && (s->plan.grammar || s->plan.frame || s->plan.call);
}

bool ahead_wanted(const struct gen_stream *s)
{
    return !s->req.score && !diffusion_is(s->g) && (jumps(s) || fill_wanted(s));
}

mb_status ahead_init(struct gen_choice *c, mb_error *err)
{
    struct gen_stream *s = c->s;
    struct choice_ahead *h = &c->ahead;
    fill_begin(c);
    h->fill.on = s->g->opt.fill.strict;
    if (!ahead_wanted(s)) return MB_OK;
    h->width = WIDTH_FIRST;
    if (fill_wanted(s) && s->g->opt.fill.echo)
        MB_TRY(echo_init(&h->echo, &s->g->opt.fill, s->job.ids, s->job.n_ids, s->req.n_choices, err));
    if (!jumps(s)) return MB_OK;
    size_t words = limit_mask_words(s), n = MASKS_BYTES / (words * sizeof *h->masks * (size_t)s->req.n_choices);
    h->n_masks = n > WIDTH_FIRST ? WIDTH_FIRST : (int32_t)n;
    h->masks = arena_alloc_array(&s->arena, words * (size_t)h->n_masks + 1, sizeof *h->masks);
    return h->masks ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for token masks");
}

void ahead_free(struct gen_choice *c)
{
    grammar_state_close(c->ahead.scratch);
    echo_free(&c->ahead.echo);
}

/* How the last guess went. */
static void widen(struct choice_ahead *h)
{
    if (h->n == 0) return;
    h->width = h->n_right < h->n ? h->n_right + WIDTH_LEAST : h->width * 2;
    if (h->width > WIDTH_FIRST) h->width = WIDTH_FIRST;
    h->n = 0;
}

void ahead_ask(void *ctx, int32_t i_choice, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out)
{
    struct gen_stream *s = ctx;
    struct gen_choice *c = &s->choices[i_choice];
    struct choice_ahead *h = &c->ahead;
    widen(h);
    h->copied = false;
    if (!fill_put(c, ids, n_ids, n_max, out)) {
        if (n_max > h->width) n_max = h->width;
        if (h->n_masks > 0) jump_guess(c, ids, n_ids, n_max < h->n_masks ? n_max : h->n_masks, out);
        else echo_guess(&h->echo, &s->g->opt.fill, ids, n_ids, n_max, out);
        h->copied = h->echo.max > 0;
    }
    h->at = n_ids;
    h->n = out->sure ? out->n : 0; /* guesses: as many as there is room for (ahead_guessed) */
    h->n_right = 0;
    memcpy(h->ids, out->ids, (size_t)out->n * sizeof *h->ids);
}

void ahead_guessed(void *ctx, int32_t i_choice, int32_t n)
{
    struct choice_ahead *h = &((struct gen_stream *)ctx)->choices[i_choice].ahead;
    h->n = n;
    if (h->copied) h->fill.proposed += n;
}

void ahead_follow(struct gen_choice *c, int32_t id)
{
    struct choice_ahead *h = &c->ahead;
    int32_t i = c->s->job.n_ids + c->n_drawn - 1 - h->at;
    if (c->s->fill.sign) fill_follow(c);
    if (i != h->n_right || i >= h->n || h->ids[i] != id) return;
    h->n_right++;
    if (!h->fill.on) return;
    h->fill.spans += i == 0;
    h->fill.tokens++;
    h->fill.accepted += h->copied;
}
