/* step_latent.c: what attention over latents has of its own.
 *
 *   heads    a matrix for each head, over all tokens: from q's part without positions to the latents' space before attention, and
 *            from there to the head's values behind it. Decode and prefill take the same way: keys and values are never expanded,
 *            so that a token's bits do not depend on what it is computed with (docs/numerics.md).
 *   latent   q's other part rotated and the whole scaled; the token's latent, its rotated key and the indexer's key to the page
 * Attention itself is step_attend.c: one KV head, whose values are the first columns of its keys.
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"

#define HEADS_ROWS 128 /* tokens of a tile */

/* Layer norm of n values: sums in float64, in order. */
static void index_layer_norm(const float *x, const float *w, const float *b, int64_t n, float eps, float *y)
{
    double mean = 0, var = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) var += ((double)x[i] - mean) * ((double)x[i] - mean);
    double r = 1 / __builtin_sqrt(var / (double)n + (double)eps);
    for (int64_t i = 0; i < n; i++) y[i] = (float)(((double)x[i] - mean) * r) * w[i] + b[i];
}

static void write_latent(struct compiled *c, const struct plan_step *s, int64_t i, const float *cs, float *tmp)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    const struct cpu_batch *b = &c->batch;
    int32_t dl = s->u.latent.d_latent, dr = s->u.latent.d_rope, n = dl + dr;
    const float *kv = cpu_row_f32(c, s->u.latent.kv, i);
    k->rmsnorm(kv, s->u.latent.norm, dl, s->u.latent.norm_eps, tmp);
    memcpy(tmp + dl, kv + dl, (size_t)dr * sizeof *tmp);
    k->rope(tmp + dl, dr, s->u.latent.rope.interleaved, cs);
    if (s->u.latent.index_key >= 0) {
        index_layer_norm(cpu_row_f32(c, s->u.latent.index_key, i), s->u.latent.index_norm, s->u.latent.index_norm_bias,
                   s->u.latent.d_index, s->u.latent.index_eps, tmp + n);
        k->rope(tmp + n, dr, s->u.latent.index_interleaved, cs);
        n += s->u.latent.d_index;
    }
    uint8_t *area = cpu_kv_area(c, &b->rows[b->row_of[i]], s->u.latent.i_kind, s->u.latent.i_in_kind, 0, b->index[i]);
    if (area) k->latent_write((enum kv_format)c->plan->kinds[s->u.latent.i_kind].format, n, b->index[i] % KV_PAGE_TOKENS, tmp, area);
    else __atomic_store_n(&b->results[b->row_of[i]].status, MB_INTERNAL, __ATOMIC_RELAXED); /* the engine gave no page */
}

void cpu_latent_row(struct compiled *c, const struct plan_step *s, int64_t i, float *tmp)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int32_t dl = s->u.latent.d_latent, dr = s->u.latent.d_rope;
    const float *cs = s->u.latent.rope.table + (int64_t)c->batch.rope_pos[i] * dr;
    const float *q = cpu_row_f32(c, s->in, i) + s->u.latent.q_first;
    float *out = cpu_row_f32(c, s->out, i);
    for (int h = 0; h < s->u.latent.n_head; h++, out += dl + dr, q += s->u.latent.q_step) {
        memcpy(out + dl, q, (size_t)dr * sizeof *out);
        k->rope(out + dl, dr, s->u.latent.rope.interleaved, cs);
        k->scale(out, dl + dr, s->u.latent.q_scale);
    }
    write_latent(c, s, i, cs, tmp);
}

void cpu_heads_row(struct compiled *c, const struct plan_step *s, int64_t i)
{
    buf_id b = s->u.heads.hidden;
    uint8_t *to = c->bufs[b] + (size_t)i * (size_t)s->u.heads.n_head * c->row_bytes[b];
    c->dev->kernels.quantise_rows(c->form[b], c->plan->bufs[b].group, c->plan->bufs[b].width, s->u.heads.n_head,
                                  cpu_row_f32(c, s->in, i) + s->u.heads.in_first, s->u.heads.in_step, to, c->row_bytes[b]);
}

static int64_t heads_chunks(const struct compiled *c)
{
    return ((int64_t)c->batch.m + HEADS_ROWS - 1) / HEADS_ROWS;
}

int64_t cpu_heads_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    return p->s->u.heads.n_head * heads_chunks(c);
}

/* One head for a chunk of tokens: a token's row of that head lies n_head rows behind the one before. */
void cpu_heads_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    (void)i_thread;
    const struct plan_step *s = p->s;
    buf_id b = s->u.heads.hidden;
    int64_t h = i_tile / heads_chunks(c), row0 = i_tile % heads_chunks(c) * HEADS_ROWS;
    int64_t m = c->batch.m - row0 < HEADS_ROWS ? c->batch.m - row0 : HEADS_ROWS;
    struct cpu_weight w = ((const struct cpu_weight_impl *)s->u.heads.w->impl)->packed;
    w.n /= s->u.heads.n_head;
    w.data += (size_t)(h * (w.n / 16)) * w.block_bytes;
    struct cpu_act x = { .form = c->form[b], .g = c->plan->bufs[b].group, .k = w.k,
                         .row_bytes = (size_t)s->u.heads.n_head * c->row_bytes[b], .data = c->bufs[b] + (size_t)h * c->row_bytes[b] };
    cpu_matmul_choose(&c->dev->kernels, w.type, x.form)(&w, 0, w.n / 16, &x, row0, m,
                                                        cpu_row_f32(c, s->out, row0) + h * s->u.heads.out_step,
                                                        (int64_t)(c->row_bytes[s->out] / sizeof(float)));
}
