/* sample.c: who draws. A position whose parameters ask for nothing but temperature (or greedy), with or without the
 * log-probability of what was drawn and with hidden end ids, is drawn on the device; any other gets its logits copied back
 * and goes through the CPU backend's sampler on the host's threads. Both give the same draw of the same logits, bit for bit
 * (steps_sample.cu), so who draws is a matter of speed alone.
 */
#include <stdatomic.h>
#include <string.h>

#include "ops/cuda/cuda_int.h"

#define TEMPERATURE_MIN 1e-30f /* as in ops/cpu/sample.c */

static bool has_penalties(const struct sample_params *p)
{
    return p->n_bias > 0 || (p->repetition_penalty != 0 && p->repetition_penalty != 1) || p->presence_penalty != 0 ||
           p->frequency_penalty != 0;
}

static bool has_filters(const struct sample_params *p)
{
    return (p->top_p > 0 && p->top_p < 1) || p->min_p > 0 || p->top_k > 0 || p->xtc_probability > 0 || p->hlg;
}

static bool draws_on_device(const struct sample_pos *pos, int32_t n_hidden)
{
    const struct sample_params *p = pos->params;
    bool greedy = !(p->temperature >= TEMPERATURE_MIN);
    return !has_penalties(p) && (greedy || !has_filters(p)) && !pos->mask && p->n_top == 0 && pos->target < 0 &&
           n_hidden <= CUDA_MAX_HIDDEN;
}

void cuda_job_fill(const struct sample_pos *pos, int32_t n_vocab, struct cuda_draw_job *out)
{
    const struct sample_params *p = pos->params;
    bool hides = p->n_end_ids > 0 && (p->ignore_eos || pos->n_drawn < p->min_tokens);
    memset(out, 0, sizeof *out);
    out->on_host = !draws_on_device(pos, hides ? p->n_end_ids : 0);
    if (out->on_host) return;
    out->seed_lo = (uint32_t)p->noise.seed;
    out->seed_hi = (uint32_t)(p->noise.seed >> 32);
    out->index = (uint32_t)pos->index;
    out->choice = p->noise.i_choice | (uint32_t)NOISE_DRAW << 24;
    out->round = p->noise.round;
    out->inv_temperature = p->temperature >= TEMPERATURE_MIN ? 1.0f / p->temperature : 0.0f;
    out->n_live = p->n_vocab_live > 0 && p->n_vocab_live < n_vocab ? p->n_vocab_live : n_vocab;
    out->wants_sum = !p->no_logprobs;
    for (int32_t i = 0; hides && i < p->n_end_ids; i++) out->hidden[out->n_hidden++] = p->end_ids[i];
}

/* What the device drew; false: it left the position to the host. */
static bool take_drawn(const struct cuda_draw_out *got, struct draw *out)
{
    if (got->state == CUDA_DRAW_HOST) return false;
    memset(out, 0, sizeof *out);
    out->id = got->id;
    out->argmax = got->argmax;
    out->logprob = got->logprob;
    out->argmax_logprob = got->argmax_logprob;
    out->non_finite = got->state == CUDA_DRAW_NON_FINITE;
    out->no_candidate = got->state == CUDA_DRAW_NO_CANDIDATE;
    return true;
}

/* --- draws of the host: one position a thread, taken in turn --- */

struct host_draws {
    struct compiled *c;
    int32_t n;
    atomic_int next;
};

static void draw_share(void *ctx, int i_thread, int n_threads)
{
    struct host_draws *h = ctx;
    struct compiled *c = h->c;
    int64_t n_vocab = c->plan->n_vocab;
    (void)n_threads;
    for (int32_t i; (i = atomic_fetch_add(&h->next, 1)) < h->n;) {
        const struct cuda_draw_pos *d = &c->batch.draws[c->host_draw[i]];
        cpu_sample(&c->dev->host, c->host_logits + i * n_vocab, n_vocab, d->pos,
                   c->host_scratch + (size_t)i_thread * c->host_scratch_bytes, d->out);
    }
}

/* Logits of the listed positions (rows of the open block), at most CUDA_HOST_DRAWS at once. */
static mb_status draw_listed(struct compiled *c, const float *logits, size_t ld, mb_error *err)
{
    const struct cuda_library *lib = c->dev->lib;
    size_t bytes = (size_t)c->plan->n_vocab * sizeof(float);
    struct host_draws h = { .c = c, .n = c->n_host_draw };
    for (int32_t i = 0; i < c->n_host_draw; i++)
        MB_TRY(cuda_check(c->dev, lib->copy(c->host_logits + (int64_t)i * c->plan->n_vocab,
                                            logits + (size_t)(c->host_draw[i] - c->batch.draw0) * ld, bytes, c->dev->stream),
                          "logits to the host", err));
    MB_TRY(cuda_check(c->dev, lib->stream_wait(c->dev->stream), "logits to the host", err));
    pool_run(c->dev->pool, draw_share, &h);
    c->n_host_draw = 0;
    return MB_OK;
}

mb_status cuda_draws_finish(struct compiled *c, const float *logits, size_t ld, mb_error *err)
{
    const struct cuda_batch *b = &c->batch;
    const struct cuda_library *lib = c->dev->lib;
    const struct cuda_draw_out *outs = c->outs + (size_t)c->slot * (size_t)c->plan->n_draw_max;
    MB_TRY(cuda_ahead_wait(c, err)); /* now outs has come */
    for (int32_t i = 0; i < b->n_draw_now && c->ahead.live; i++)
        if (outs[i].state == CUDA_DRAW_HOST) MB_TRY(cuda_ahead_undo(c, err)); /* its logits are wanted after all */
    bool copies = false;
    c->n_host_draw = 0;
    for (int32_t i = 0; i < b->n_draw_now; i++) {
        const struct cuda_draw_pos *d = &b->draws[b->draw0 + i];
        copies |= d->logits_out != NULL;
        if (d->logits_out)
            MB_TRY(cuda_check(c->dev, lib->copy(d->logits_out, logits + (size_t)i * ld, (size_t)c->plan->n_vocab * sizeof(float),
                                                c->dev->stream), "logits to the host", err));
        if (!c->jobs[i].on_host && take_drawn(&outs[i], d->out)) continue;
        c->host_draw[c->n_host_draw++] = b->draw0 + i;
        if (c->n_host_draw == CUDA_HOST_DRAWS) MB_TRY(draw_listed(c, logits, ld, err));
    }
    if (c->n_host_draw > 0) return draw_listed(c, logits, ld, err);
    return copies ? cuda_check(c->dev, lib->stream_wait(c->dev->stream), "logits to the host", err) : MB_OK;
}
