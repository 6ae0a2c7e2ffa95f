/* step_delta.c: the gated delta net: short convolution, norms of q and k, the delta rule over the sequence's state, gated norm.
 *
 * A tile is one key head, with its value heads, of one row of the batch: it owns that part of the state and of the
 * convolution's tail, so that no tile waits for another and nothing is computed twice. Its tokens go in order, DELTA_TOKENS at
 * a time; how many there are to a row leaves no trace (docs/numerics.md, section 4a). A row that begins at index 0 begins
 * with zeros, whatever its page holds.
 * Whoever has a token's columns writes them as linear inputs too, where they are whole groups; else a pass of rows does.
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"
#include "ops/mathfn.h"

#define DELTA_TOKENS 16
#define L2_EPS 1e-6 /* of the norms of q and k, added to the sum of squares */

/* Scratch of a thread: what the convolution gives for a stretch of tokens, and the gates of one value head. */
struct delta_scratch {
    float *qkv;    /* [DELTA_TOKENS][2 * dim_k + group * dim_v] */
    int64_t ld;
    float g[DELTA_TOKENS], beta[DELTA_TOKENS];
};

/* One tile at work. */
struct delta_tile {
    const struct compiled *c;
    const struct plan_step *s;
    const struct row *row;
    int32_t token0;             /* of the row, in the batch */
    int h, group;               /* key head; value heads that belong to it */
    float *state, *tail;        /* of the layer */
    int64_t n_channels;
};

static int64_t channels_of(const struct plan_step *s)
{
    return 2 * (int64_t)s->u.delta.n_head_k * s->u.delta.dim_k + (int64_t)s->u.delta.n_head_v * s->u.delta.dim_v;
}

static const float *part_of(const struct delta_tile *t, const struct delta_part *p, int32_t token)
{
    return cpu_row_f32(t->c, p->buf, token) + p->first + (int64_t)t->h * p->step;
}

/* The three runs of channels of this tile: where they begin in the convolution and how many they are. */
struct run {
    const struct delta_part *part;
    int64_t channel, n;
};

static void runs_of(const struct delta_tile *t, struct run out[3])
{
    const struct plan_step *s = t->s;
    int64_t dk = s->u.delta.dim_k, nk = s->u.delta.n_head_k, nv = (int64_t)t->group * s->u.delta.dim_v;
    out[0] = (struct run){ &s->u.delta.q, t->h * dk, dk };
    out[1] = (struct run){ &s->u.delta.k, (nk + t->h) * dk, dk };
    out[2] = (struct run){ &s->u.delta.v, 2 * nk * dk + t->h * nv, nv };
}

/* One run of channels of the row's token j. */
static void convolve(const struct delta_tile *t, const struct run *r, int32_t j, float *y)
{
    const float *taps[PLAN_DELTA_TAPS];
    int32_t n_tap = t->s->u.delta.n_conv;
    for (int32_t i = 0; i < n_tap; i++) {
        int32_t back = n_tap - 1 - i, index = t->row->i_first + j - back;
        if (index < 0) taps[i] = NULL;
        else if (back <= j) taps[i] = part_of(t, r->part, t->token0 + j - back);
        else taps[i] = t->tail + (int64_t)(index % (n_tap - 1)) * t->n_channels + r->channel;
    }
    t->c->dev->kernels.delta_conv(taps, n_tap, t->s->u.delta.conv + r->channel, t->n_channels, r->n, y);
}

/* Queries and keys of length 1; queries also times 1 / sqrt(dim_k). */
static void unit_qk(const struct delta_tile *t, float *q, float *k)
{
    const struct cpu_kernels *f = &t->c->dev->kernels;
    int64_t d = t->s->u.delta.dim_k;
    float eps = (float)(L2_EPS / (double)d), c = 1.0f / __builtin_sqrtf((float)d);
    f->rmsnorm(q, NULL, d, eps, q);
    f->scale(q, d, 1.0f / (float)d);
    f->rmsnorm(k, NULL, d, eps, k);
    f->scale(k, d, c);
}

/* ln(1 + e^x), with the small sums kept: ln(1 + u) = u * ln(w) / (w - 1), w = 1 + u rounded. */
static float softplus(float x)
{
    float u = mb_exp(x > 0 ? -x : x), w = 1.0f + u;
    float l = w == 1.0f ? u : u * (mb_log(w) / (w - 1.0f));
    return x > 0 ? x + l : l;
}

static void gates(const struct delta_tile *t, int i_v, int32_t j0, int32_t n, struct delta_scratch *w)
{
    const struct plan_step *s = t->s;
    int head = t->h * t->group + i_v;
    for (int32_t j = 0; j < n; j++) {
        float a = part_of(t, &s->u.delta.a, t->token0 + j0 + j)[i_v], b = part_of(t, &s->u.delta.b, t->token0 + j0 + j)[i_v];
        w->g[j] = mb_exp(-(s->u.delta.decay[head] * softplus(a + s->u.delta.dt_bias[head])));
        w->beta[j] = 1.0f / (1.0f + mb_exp(-b));
    }
}

static void value_head(const struct delta_tile *t, int i_v, int32_t j0, int32_t n, struct delta_scratch *w)
{
    const struct plan_step *s = t->s;
    const struct cpu_kernels *f = &t->c->dev->kernels;
    int64_t dk = s->u.delta.dim_k, dv = s->u.delta.dim_v, head = (int64_t)t->h * t->group + i_v;
    gates(t, i_v, j0, n, w);
    struct delta_run run = {
        .dim_k = dk, .dim_v = dv, .n_tok = n, .s = t->state + head * dk * dv,
        .q = w->qkv, .k = w->qkv + dk, .v = w->qkv + 2 * dk + i_v * dv, .ld_in = w->ld, .g = w->g, .beta = w->beta,
        .o = cpu_row_f32(t->c, s->out, t->token0 + j0) + head * dv,
        .ld_o = (int64_t)(t->c->row_bytes[s->out] / sizeof(float)),
    };
    f->delta_rule(&run);
    for (int32_t j = 0; j < n; j++) {
        float *o = run.o + j * run.ld_o;
        f->rmsnorm(o, s->u.delta.norm, dv, s->u.delta.norm_eps, o);
        f->silu_mul(part_of(t, &s->u.delta.z, t->token0 + j0 + j) + i_v * dv, o, dv, o);
    }
}

/* The last inputs of the convolution, for the rows to come. */
static void keep_tail(const struct delta_tile *t)
{
    int32_t n_keep = t->s->u.delta.n_conv - 1, n = t->row->n;
    struct run runs[3];
    runs_of(t, runs);
    for (int32_t j = n > n_keep ? n - n_keep : 0; j < n; j++)
        for (int r = 0; r < 3; r++)
            memcpy(t->tail + (int64_t)((t->row->i_first + j) % n_keep) * t->n_channels + runs[r].channel,
                   part_of(t, runs[r].part, t->token0 + j), (size_t)runs[r].n * sizeof(float));
}

static int32_t width_of(const struct delta_tile *t)
{
    return t->group * t->s->u.delta.dim_v;
}

bool cpu_delta_whole_groups(const struct compiled *c, const struct plan_step *s)
{
    int32_t width = s->u.delta.n_head_v / s->u.delta.n_head_k * s->u.delta.dim_v;
    for (int i = 0; i < PLAN_MAX_OUTS && s->outs[i] >= 0; i++)
        if (c->form[s->outs[i]] != ACT_F32 && width % c->plan->bufs[s->outs[i]].group != 0) return false;
    return true;
}

/* Tokens [j0, j0 + n) of the row. */
static void stretch(const struct delta_tile *t, int32_t j0, int32_t n, struct delta_scratch *w)
{
    struct run runs[3];
    runs_of(t, runs);
    for (int32_t j = 0; j < n; j++) {
        float *y = w->qkv + j * w->ld;
        for (int r = 0; r < 3; y += runs[r++].n) convolve(t, &runs[r], j0 + j, y);
        unit_qk(t, w->qkv + j * w->ld, w->qkv + j * w->ld + t->s->u.delta.dim_k);
    }
    for (int i = 0; i < t->group; i++) value_head(t, i, j0, n, w);
    if (!cpu_delta_whole_groups(t->c, t->s)) return;
    for (int32_t i = t->token0 + j0; i < t->token0 + j0 + n; i++)
        cpu_write_inputs(t->c, t->s->outs, i, cpu_row_f32(t->c, t->s->out, i), (int64_t)t->h * width_of(t),
                         (int64_t)(t->h + 1) * width_of(t));
}

int64_t cpu_delta_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    return (int64_t)c->batch.n_rows * p->s->u.delta.n_head_k;
}

void cpu_delta_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct plan_step *s = p->s;
    int32_t i_row = (int32_t)(i_tile / s->u.delta.n_head_k);
    struct delta_tile t = { .c = c, .s = s, .row = &c->batch.rows[i_row], .token0 = c->batch.row_first[i_row],
                            .h = (int)(i_tile % s->u.delta.n_head_k), .group = s->u.delta.n_head_v / s->u.delta.n_head_k,
                            .n_channels = channels_of(s) };
    t.state = cpu_state(c, t.row, s->u.delta.i_kind, s->u.delta.i_in_kind);
    if (!t.state) { /* the engine gave no page: the row must not go on */
        __atomic_store_n(&c->batch.results[i_row].status, MB_INTERNAL, __ATOMIC_RELAXED);
        return;
    }
    int64_t head_floats = (int64_t)s->u.delta.dim_k * s->u.delta.dim_v;
    t.tail = t.state + s->u.delta.n_head_v * head_floats;
    if (t.row->i_first == 0)
        memset(t.state + t.h * t.group * head_floats, 0, (size_t)(t.group * head_floats) * sizeof(float));
    struct delta_scratch w = { .qkv = (float *)c->thread_scratch[i_thread], .ld = 2 * s->u.delta.dim_k + width_of(&t) };
    for (int32_t j = 0; j < t.row->n; j += DELTA_TOKENS)
        stretch(&t, j, t.row->n - j < DELTA_TOKENS ? t.row->n - j : DELTA_TOKENS, &w);
    keep_tail(&t);
}

size_t cpu_delta_scratch_bytes(const struct plan_step *s)
{
    int64_t width = 2 * (int64_t)s->u.delta.dim_k + (int64_t)s->u.delta.n_head_v / s->u.delta.n_head_k * s->u.delta.dim_v;
    return DELTA_TOKENS * (size_t)width * sizeof(float);
}
