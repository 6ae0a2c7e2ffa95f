/* step_rows.c: the steps that work row by row: embed, norm, glu, draws, sample. Rows (or column chunks of rows) are dealt
 * to threads in contiguous shares.
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"

/* Columns that one work item of a glu covers: a multiple of every quantisation group. */
#define GLU_CHUNK 256

int cpu_step_embed(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    (void)phase;
    const struct cpu_batch *b = &c->batch;
    int64_t first, end, d = c->plan->d_model;
    threads_share(b->m, 1, i_thread, n_threads, &first, &end);
    for (int64_t i = first; i < end; i++) {
        const struct row *r = &b->rows[b->row_of[i]];
        int32_t j = (int32_t)(i - b->row_first[b->row_of[i]]);
        float *out = cpu_row_f32(c, s->out, i);
        const float *given = NULL;
        for (int32_t e = 0; e < r->n_embeds; e++)
            if (j >= r->embeds[e].first && j < r->embeds[e].first + r->embeds[e].n)
                given = r->embeds[e].data + (int64_t)(j - r->embeds[e].first) * d;
        if (given) {
            memcpy(out, given, (size_t)d * sizeof *out);
            continue;
        }
        cpu_weight_row(c->dev, s->u.embed.table, b->id[i], out);
        if (s->u.embed.scale != 1.0f) c->dev->kernels.scale(out, d, s->u.embed.scale);
    }
    return 1;
}

int cpu_step_norm(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    (void)phase;
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t first, end, width = c->plan->bufs[s->in].width;
    float *y = (float *)c->thread_scratch[i_thread];
    threads_share(cpu_rows_of(c, s->in), 1, i_thread, n_threads, &first, &end);
    for (int64_t i = first; i < end; i++) {
        k->rmsnorm(cpu_row_f32(c, s->in, i), s->u.norm.weight, width, s->u.norm.eps, y);
        if (s->post_add) k->add(cpu_row_f32(c, s->add_to, i), y, width);
        if (s->out >= 0) memcpy(cpu_row_f32(c, s->out, i), y, (size_t)width * sizeof *y);
        cpu_write_inputs(c, s->outs, i, y, 0, width);
    }
    return 1;
}

int cpu_step_glu(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    (void)phase;
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t width = s->u.glu.width, n_chunks = (width + GLU_CHUNK - 1) / GLU_CHUNK, first, end;
    float *y = (float *)c->thread_scratch[i_thread];
    threads_share((int64_t)c->batch.m * n_chunks, 1, i_thread, n_threads, &first, &end);
    for (int64_t item = first; item < end; item++) {
        int64_t i = item / n_chunks, col0 = item % n_chunks * GLU_CHUNK;
        int64_t col1 = col0 + GLU_CHUNK < width ? col0 + GLU_CHUNK : width;
        const float *gate = cpu_row_f32(c, s->in, i) + col0, *up = cpu_row_f32(c, s->u.glu.up, i) + col0;
        if (s->u.glu.kind == GLU_SILU) k->silu_mul(gate, up, col1 - col0, y + col0);
        else k->gelu_tanh_mul(gate, up, col1 - col0, y + col0);
        if (s->out >= 0) memcpy(cpu_row_f32(c, s->out, i) + col0, y + col0, (size_t)(col1 - col0) * sizeof *y);
        cpu_write_inputs(c, s->outs, i, y, col0, col1);
    }
    return 1;
}

int cpu_step_draws(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    (void)phase;
    const struct cpu_batch *b = &c->batch;
    int64_t first, end;
    threads_share(b->n_draw_now, 1, i_thread, n_threads, &first, &end);
    for (int64_t i = first; i < end; i++)
        memcpy(cpu_row_f32(c, s->out, i), cpu_row_f32(c, s->in, b->draws[b->draw0 + i].i_token),
               (size_t)c->plan->bufs[s->in].width * sizeof(float));
    return 1;
}

int cpu_step_sample(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    (void)phase;
    const struct cpu_batch *b = &c->batch;
    int64_t n = c->plan->n_vocab;
    for (int32_t i = i_thread; i < b->n_draw_now; i += n_threads) {
        const struct cpu_draw_pos *d = &b->draws[b->draw0 + i];
        float *logits = cpu_row_f32(c, s->in, i);
        if (d->logits_out) memcpy(d->logits_out, logits, (size_t)n * sizeof *logits);
        cpu_sample(&c->dev->kernels, logits, n, d->pos, c->thread_scratch[i_thread], d->out);
    }
    return 1;
}
