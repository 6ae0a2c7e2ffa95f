/* step_canvas.c: what the rounds over a canvas hand on (ops/row.h, canvas_pass): the expected embedding of each position goes in
 * before the layers and comes out behind the logits, with the entropy of the distribution that it is taken over.
 *
 * With x = logits * (1 / temperature): p(v) = mb_exp(x(v) - max) / sum, where terms below e^-28 of the largest count as nothing
 * (a vocabulary of them weighs less than the last bit of a sum). Expected embedding: blocks of 16 ids from id 0 on, each block
 * p(v) * row(v) in one fma chain, added block by block; then times the embedding's scale. A block without any p(v) > 0 is left
 * out, which no bit can tell. A tile is a few positions, so that a row of the table is unpacked once for all of them.
 */
#include <math.h>
#include <string.h>

#include "ops/cpu/cpu_int.h"
#include "ops/mathfn.h"

#define TILE_POSITIONS 4
#define BLOCK_IDS 16
#define LEAST_EXPONENT -28.0f

void cpu_signal_row(const struct compiled *c, int64_t i, int64_t d, float *y)
{
    const struct cpu_batch *b = &c->batch;
    const float *from = b->rows[b->row_of[i]].canvas->signal;
    if (from) memcpy(y, from + (i - b->row_first[b->row_of[i]]) * d, (size_t)d * sizeof *y);
    else memset(y, 0, (size_t)d * sizeof *y);
}

size_t cpu_expect_scratch_bytes(const struct plan *p)
{
    return ((size_t)TILE_POSITIONS * (size_t)p->n_vocab + (size_t)BLOCK_IDS * (size_t)p->d_model) * sizeof(float);
}

/* Logits in p to probabilities; returns the entropy, NaN when they are not finite (then p is zero). */
static float distribution(const struct cpu_kernels *k, float *p, int64_t n, float temperature)
{
    float max, z;
    int64_t argmax;
    bool finite;
    double sum = 0;
    k->scale(p, n, 1.0f / temperature);
    k->vocab_max(p, n, &max, &argmax, &finite);
    if (!finite || !(max > -INFINITY)) {
        memset(p, 0, (size_t)n * sizeof *p);
        return NAN;
    }
    z = k->vocab_sumexp(p, n, max);
    for (int64_t v = 0; v < n; v++) {
        float t = p[v] - max, e = t > LEAST_EXPONENT ? mb_exp(t) : 0.0f;
        if (e > 0.0f) sum += (double)e * (double)t;
        p[v] = e / z;
    }
    return (float)((double)mb_log(z) - sum / (double)z);
}

static bool any_in(const float *p, int64_t n)
{
    for (int64_t v = 0; v < n; v++)
        if (p[v] > 0.0f) return true;
    return false;
}

/* Where position i of the block of draws puts its expectation. */
static float *expect_row(const struct compiled *c, int64_t i, float **entropy)
{
    const struct cpu_batch *b = &c->batch;
    const struct cpu_draw_pos *d = &b->draws[b->draw0 + i];
    int64_t j = d->i_token - b->row_first[d->i_row];
    *entropy = b->rows[d->i_row].canvas->entropy + j;
    return b->rows[d->i_row].canvas->expect + j * c->plan->d_model;
}

int64_t cpu_expect_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)p;
    (void)i_thread;
    (void)bounds;
    return (c->batch.n_draw_now + TILE_POSITIONS - 1) / TILE_POSITIONS;
}

void cpu_expect_tile(struct compiled *c, const struct cpu_pass *pass, int64_t i_tile, int i_thread)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t n = c->plan->n_vocab, d = c->plan->d_model, first = i_tile * TILE_POSITIONS;
    int64_t n_pos = c->batch.n_draw_now - first < TILE_POSITIONS ? c->batch.n_draw_now - first : TILE_POSITIONS;
    float *p = (float *)c->thread_scratch[i_thread], *rows = p + TILE_POSITIONS * n, *out[TILE_POSITIONS];
    for (int64_t i = 0; i < n_pos; i++) {
        const struct cpu_draw_pos *at = &c->batch.draws[c->batch.draw0 + first + i];
        float *entropy;
        out[i] = expect_row(c, first + i, &entropy);
        memcpy(p + i * n, cpu_row_f32(c, pass->s->in, first + i), (size_t)n * sizeof *p);
        *entropy = distribution(k, p + i * n, n, c->batch.rows[at->i_row].canvas->temperature);
        memset(out[i], 0, (size_t)d * sizeof(float));
    }
    for (int64_t v = 0; v < n; v += BLOCK_IDS) {
        int32_t rank = (int32_t)(n - v < BLOCK_IDS ? n - v : BLOCK_IDS);
        bool unpacked = false;
        for (int64_t i = 0; i < n_pos; i++) {
            if (!any_in(p + i * n + v, rank)) continue;
            for (int32_t r = 0; r < rank && !unpacked; r++) cpu_weight_row(c->dev, pass->s->u.expect.table, v + r, rows + r * d);
            unpacked = true;
            k->lora_add(rows, d, rank, p + i * n + v, d, out[i]);
        }
    }
    for (int64_t i = 0; i < n_pos && pass->s->u.expect.scale != 1.0f; i++) k->scale(out[i], d, pass->s->u.expect.scale);
}
