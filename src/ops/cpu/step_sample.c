/* step_sample.c: logits to draws. The two passes over the whole vocabulary, its maximum and the sum of exponentials, are
 * shared by all threads; what remains of a position is little, and one thread does it (one position: the opener).
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"

#define TILE_BLOCKS 4 /* of SAMPLE_BLOCK ids */

static int64_t tiles_each(const struct compiled *c)
{
    return (sample_blocks(c->plan->n_vocab) + TILE_BLOCKS - 1) / TILE_BLOCKS;
}

static void tile_blocks(const struct compiled *c, int64_t i_tile, int64_t *i_draw, int64_t *b0, int64_t *b1)
{
    int64_t n_blocks = sample_blocks(c->plan->n_vocab);
    *i_draw = i_tile / tiles_each(c);
    *b0 = i_tile % tiles_each(c) * TILE_BLOCKS;
    *b1 = *b0 + TILE_BLOCKS < n_blocks ? *b0 + TILE_BLOCKS : n_blocks;
}

int64_t cpu_sample_max_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)bounds;
    int64_t n = c->plan->n_vocab, n_blocks = sample_blocks(n);
    for (int32_t i = 0; i < c->batch.n_draw_now; i++) {
        const struct cpu_draw_pos *d = &c->batch.draws[c->batch.draw0 + i];
        struct sample_row *r = &c->sample_rows[i];
        *r = (struct sample_row){ .x = cpu_row_f32(c, p->s->in, i), .n = n, .pos = d->pos, .argmax = -1,
                                  .block_max = c->sample_blocks + 2 * i * n_blocks,
                                  .block_sum = c->sample_blocks + (2 * i + 1) * n_blocks };
        if (d->logits_out) memcpy(d->logits_out, r->x, (size_t)n * sizeof *r->x);
        sample_process(r, (int32_t *)c->thread_scratch[i_thread]);
    }
    return c->batch.n_draw_now * tiles_each(c);
}

void cpu_sample_max_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    (void)p;
    (void)i_thread;
    int64_t i, b0, b1;
    tile_blocks(c, i_tile, &i, &b0, &b1);
    sample_block_max(&c->dev->kernels, &c->sample_rows[i], b0, b1);
}

int64_t cpu_sample_sum_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)p;
    (void)i_thread;
    (void)bounds;
    bool any = false;
    for (int32_t i = 0; i < c->batch.n_draw_now; i++)
        if (sample_max(&c->dev->kernels, &c->sample_rows[i], c->batch.draws[c->batch.draw0 + i].out))
            any = sample_wants_sum(&c->sample_rows[i]) || any;
    return any ? c->batch.n_draw_now * tiles_each(c) : 0;
}

void cpu_sample_sum_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    (void)p;
    (void)i_thread;
    int64_t i, b0, b1;
    tile_blocks(c, i_tile, &i, &b0, &b1);
    if (c->sample_rows[i].argmax >= 0 && sample_wants_sum(&c->sample_rows[i])) sample_block_sum(&c->dev->kernels, &c->sample_rows[i], b0, b1);
}

void cpu_sample_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    (void)p;
    struct sample_row *r = &c->sample_rows[i_tile];
    if (r->argmax >= 0)
        sample_finish(&c->dev->kernels, r, c->thread_scratch[i_thread], c->batch.draws[c->batch.draw0 + i_tile].out);
}

int64_t cpu_sample_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)bounds;
    if (c->batch.n_draw_now > 1) return c->batch.n_draw_now;
    cpu_sample_tile(c, p, 0, i_thread);
    return 0;
}
