/* step_rows.c: the steps that work row by row: embed, norm, draws, and a glu that stands alone. For a decoded token the first
 * three are shorter than a barrier, so the thread that opens the pass does small batches alone.
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"

/* Columns that one work item of a glu covers: a multiple of every quantisation group. */
#define GLU_CHUNK 256
#define ROWS_TILE_MAX 16

static void embed_row(struct compiled *c, const struct plan_step *s, int64_t i)
{
    const struct cpu_batch *b = &c->batch;
    const struct row *r = &b->rows[b->row_of[i]];
    int32_t j = (int32_t)(i - b->row_first[b->row_of[i]]);
    int64_t d = c->plan->bufs[s->out].width;
    float *out = cpu_row_f32(c, s->out, i);
    const float *given = NULL;
    for (int32_t e = 0; e < r->n_embeds && !s->u.embed.ids_only; e++)
        if (j >= r->embeds[e].first && j < r->embeds[e].first + r->embeds[e].n)
            given = r->embeds[e].data + (int64_t)(j - r->embeds[e].first) * d;
    if (given) {
        memcpy(out, given, (size_t)d * sizeof *out);
        return;
    }
    cpu_weight_row(c->dev, s->u.embed.table, b->id[i], out);
    if (s->u.embed.scale != 1.0f) c->dev->kernels.scale(out, d, s->u.embed.scale);
}

/* The mean in 16 lanes of float64, element j in lane j % 16, which fold by halves; the rest is the RMS norm of what it leaves. */
static void layer_norm(const struct cpu_kernels *k, const float *x, const float *w, const float *bias, int64_t n, float eps, float *y)
{
    double lane[16] = { 0 };
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) lane[j] += (double)x[i + j];
    for (int j = 0; i + j < n; j++) lane[j] += (double)x[i + j];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    float mean = (float)(lane[0] / (double)n);
    for (i = 0; i < n; i++) y[i] = x[i] - mean;
    k->rmsnorm(y, w, n, eps, y);
    k->add(y, bias, n);
}

void cpu_norm(const struct cpu_kernels *k, const struct plan_step *s, const float *x, int64_t n, float *y)
{
    if (s->u.norm.bias) layer_norm(k, x, s->u.norm.weight, s->u.norm.bias, n, s->u.norm.eps, y);
    else k->rmsnorm(x, s->u.norm.weight, n, s->u.norm.eps, y);
}

static void norm_row(struct compiled *c, const struct plan_step *s, int64_t i, float *y)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    const float *x = cpu_row_f32(c, s->in, i);
    int64_t width = c->plan->bufs[s->in].width, piece = width / (s->u.norm.n_pieces > 1 ? s->u.norm.n_pieces : 1);
    if (s->u.norm.identity) memcpy(y, x, (size_t)width * sizeof *y);
    for (int64_t at = 0; at < width && !s->u.norm.identity; at += piece)
        cpu_norm(k, s, x + at, piece, y + at);
    if (s->post_add) k->add(cpu_row_f32(c, s->add_to, i), y, width);
    if (s->post_add && s->u.norm.sum_scale != 0) k->scale(cpu_row_f32(c, s->add_to, i), width, s->u.norm.sum_scale);
    if (s->out >= 0) memcpy(cpu_row_f32(c, s->out, i), y, (size_t)width * sizeof *y);
    cpu_write_inputs(c, s->outs, i, y, 0, width);
}

static void draws_row(struct compiled *c, const struct plan_step *s, int64_t i)
{
    const struct cpu_batch *b = &c->batch;
    memcpy(cpu_row_f32(c, s->out, i), cpu_row_f32(c, s->in, b->draws[b->draw0 + i].i_token),
           (size_t)c->plan->bufs[s->in].width * sizeof(float));
}

/* Output of attention, or of a delta net, to linear inputs, where the tiles could not do it. */
static void attend_row(struct compiled *c, const struct plan_step *s, int64_t i)
{
    int64_t width = s->op == STEP_ATTEND ? (int64_t)s->u.attend.n_head * s->u.attend.value_dim
                                         : (int64_t)s->u.delta.n_head_v * s->u.delta.dim_v;
    cpu_write_inputs(c, s->outs, i, cpu_row_f32(c, s->out, i), 0, width);
}

static void rows_do(struct compiled *c, const struct plan_step *s, int64_t first, int64_t end, int i_thread)
{
    for (int64_t i = first; i < end; i++) {
        if (s->op == STEP_EMBED) embed_row(c, s, i);
        else if (s->op == STEP_SIGNAL) cpu_signal_row(c, i, c->plan->bufs[s->out].width, cpu_row_f32(c, s->out, i));
        else if (s->op == STEP_DRAWS) draws_row(c, s, i);
        else if (s->op == STEP_ATTEND || s->op == STEP_DELTA) attend_row(c, s, i);
        else if (s->op == STEP_LATENT) cpu_latent_row(c, s, i, (float *)c->thread_scratch[i_thread]);
        else if (s->op == STEP_HEADS) cpu_heads_row(c, s, i);
        else norm_row(c, s, i, (float *)c->thread_scratch[i_thread]);
    }
}

static int64_t rows_count(const struct compiled *c, const struct plan_step *s)
{
    return cpu_rows_of(c, s->op == STEP_NORM ? s->in : s->out);
}

int64_t cpu_rows_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)bounds;
    int64_t n = rows_count(c, p->s), width = c->plan->bufs[p->s->op == STEP_NORM ? p->s->in : p->s->out].width;
    if (n == 1 || c->n_threads == 1 || n * width <= CPU_SERIAL_VALUES) {
        rows_do(c, p->s, 0, n, i_thread);
        return 0;
    }
    int64_t rows = n / (4 * c->n_threads);
    c->chunk_rows = rows < 1 ? 1 : rows > ROWS_TILE_MAX ? ROWS_TILE_MAX : rows;
    return (n + c->chunk_rows - 1) / c->chunk_rows;
}

void cpu_rows_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    int64_t n = rows_count(c, p->s), first = i_tile * c->chunk_rows;
    rows_do(c, p->s, first, first + c->chunk_rows < n ? first + c->chunk_rows : n, i_thread);
}

/* --- glu --- */

void cpu_glu(const struct cpu_kernels *k, enum glu_kind kind, const float *gate, const float *up, int64_t n, float *y)
{
    if (kind == GLU_SILU) k->silu_mul(gate, up, n, y);
    else if (kind == GLU_GELU_TANH) k->gelu_tanh_mul(gate, up, n, y);
    else k->swiglu_clamped(gate, up, n, y);
}

void cpu_glu_columns(struct compiled *c, const struct plan_step *s, int64_t i, int64_t col0, int64_t col1, const float *gate,
                     const float *up, float *y)
{
    cpu_glu(&c->dev->kernels, s->u.glu.kind, gate, up, col1 - col0, y + col0);
    if (s->out >= 0) memcpy(cpu_row_f32(c, s->out, i) + col0, y + col0, (size_t)(col1 - col0) * sizeof *y);
    cpu_write_inputs(c, s->outs, i, y, col0, col1);
}

static int64_t glu_chunks(const struct plan_step *s)
{
    return (s->u.glu.width + GLU_CHUNK - 1) / GLU_CHUNK;
}

int64_t cpu_glu_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    return (int64_t)c->batch.m * glu_chunks(p->s);
}

void cpu_glu_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    static const float ones[GLU_CHUNK] = { [0 ... GLU_CHUNK - 1] = 1.0f }; /* a product with 1 changes nothing */
    int64_t n_chunks = glu_chunks(p->s), col0 = i_tile % n_chunks * GLU_CHUNK;
    int64_t col1 = col0 + GLU_CHUNK < p->s->u.glu.width ? col0 + GLU_CHUNK : p->s->u.glu.width;
    int64_t i = i_tile / n_chunks;
    const float *up = p->s->u.glu.up < 0 ? ones : cpu_row_f32(c, p->s->u.glu.up, i) + p->s->u.glu.up_first + col0;
    cpu_glu_columns(c, p->s, i, col0, col1, cpu_row_f32(c, p->s->in, i) + col0, up, (float *)c->thread_scratch[i_thread]);
}
