/* moe.c: mixtures of experts. The router's choice comes back to the host, which lists the tokens of every expert; then the
 * chosen experts go one after the other, each with all its tokens as one batch: gate, up and activation, down, and the sum
 * by weight. An expert is rows of the stacked matrices, whole tiles. A token's experts are added in rising id, so that its
 * neighbours change nothing.
 */
#include <string.h>

#include "ops/cuda/cuda_int.h"

int cuda_run_route(struct compiled *c, const struct plan_step *s)
{
    struct cs_route a = { .in = c->bufs[s->in], .out = c->bufs[s->out], .ld_in = c->ld[s->in], .ld_out = c->ld[s->out], .m = c->batch.m,
                          .n_expert = s->u.route.n_expert, .top_k = s->u.route.top_k,
                          .softmax_chosen = s->u.route.kind == ROUTE_SOFTMAX_CHOSEN, .normalise = s->u.route.normalise,
                          .expert_scale = cuda_constant(c, s, CONST_SCALES) };
    return c->dev->lib->route(&c->ctx, &a, c->dev->stream);
}

/* --- lists --- */

static int32_t expert_of(const struct compiled *c, const struct plan_step *s, int32_t slot)
{
    int32_t top_k = s->u.experts.top_k;
    return (int32_t)c->moe.route[slot / top_k * c->ld[s->u.experts.route] + slot % top_k];
}

/* slot and first from what the router chose, by expert, then by token. */
static void sort_slots(struct compiled *c, const struct plan_step *s)
{
    struct cuda_moe *moe = &c->moe;
    int32_t n = c->batch.m * s->u.experts.top_k, n_expert = s->u.experts.n_expert;
    memset(moe->first, 0, ((size_t)n_expert + 2) * sizeof *moe->first);
    for (int32_t i = 0; i < n; i++) moe->first[expert_of(c, s, i) + 2]++;
    for (int32_t e = 0; e < n_expert; e++) moe->first[e + 2] += moe->first[e + 1];
    for (int32_t i = 0; i < n; i++) moe->slot[moe->first[expert_of(c, s, i) + 1]++] = i;
}

static int list_slots(struct compiled *c, const struct plan_step *s)
{
    const struct cuda_library *lib = c->dev->lib;
    buf_id r = s->u.experts.route;
    size_t bytes = (size_t)c->batch.m * (size_t)c->ld[r] * sizeof(float);
    int code = lib->copy(c->moe.route, c->bufs[r], bytes, c->dev->stream);
    if (code == 0) code = lib->stream_wait(c->dev->stream);
    if (code != 0) return code;
    sort_slots(c, s);
    return lib->copy(c->moe.slot_dev, c->moe.slot, (size_t)c->batch.m * (size_t)s->u.experts.top_k * sizeof(int32_t), c->dev->stream);
}

/* --- one expert --- */

/* Rows [e * n, (e + 1) * n) of a stack: whole tile rows. */
static struct ck_weight expert_weight(const struct compiled *c, const struct weight *stack, int32_t e, int64_t n)
{
    struct ck_weight w = ((const struct cuda_weight *)stack->impl)->w;
    w.tiles = (uint8_t *)w.tiles + (size_t)(e * n / 16) * (size_t)((w.k + 63) / 64) * (size_t)c->dev->lib->tile_bytes(&w);
    w.row_scale += e * n;
    w.n = n;
    return w;
}

static struct ck_x rows_input(const struct compiled *c, void *v, int64_t k, int32_t n, float mul)
{
    return (struct ck_x){ .v = v, .layout = c->dev->lib->x_layout_for(&c->ctx, n), .k = k, .k_pad = (k + 63) / 64 * 64, .mul = mul };
}

static const float *bias_at(const struct compiled *c, const struct plan_step *s, int which, int64_t at)
{
    const float *b = cuda_constant(c, s, which);
    return b ? b + at : NULL;
}

static int run_expert(struct compiled *c, const struct plan_step *s, const struct ck_x *in, int32_t e)
{
    const struct cuda_library *lib = c->dev->lib;
    int64_t width = s->u.experts.width, d = s->u.experts.gate->k;
    int32_t n = c->moe.first[e + 1] - c->moe.first[e], top_k = s->u.experts.top_k;
    const int32_t *slots = c->moe.slot_dev + c->moe.first[e];
    struct ck_weight gate = expert_weight(c, s->u.experts.gate, e, width), up = expert_weight(c, s->u.experts.up, e, width);
    struct ck_weight down = expert_weight(c, s->u.experts.down, e, d);
    struct ck_x x = rows_input(c, c->moe.x, d, n, in->mul), hidden = rows_input(c, c->moe.hidden, width, n, CUDA_GLU_MUL);
    struct ck_part part = { .w = &down, .y = c->moe.y, .ld_y = d, .bias = bias_at(c, s, CONST_DOWN_BIAS, e * d) };
    int code = lib->gather_input(&c->ctx, in, slots, top_k, n, &x, c->dev->stream);
    if (code == 0)
        code = lib->linear_glu(&c->ctx, &x, n, &gate, &up, bias_at(c, s, CONST_GATE_BIAS, e * width), bias_at(c, s, CONST_UP_BIAS, e * width),
                               (int)s->u.experts.kind, &hidden, c->dev->stream);
    if (code == 0) code = lib->linear(&c->ctx, &hidden, n, &part, 1, c->dev->stream);
    if (code != 0) return code;
    return lib->expert_add(&c->ctx, c->moe.y, d, slots, n, c->bufs[s->u.experts.route], c->ld[s->u.experts.route], top_k, (int32_t)d, c->moe.acc, d,
                           c->dev->stream);
}

int cuda_run_experts(struct compiled *c, const struct plan_step *s)
{
    const struct ck_x *in = cuda_input_of(c, s->in);
    int64_t d = s->u.experts.gate->k;
    buf_id out = s->add_to >= 0 ? s->add_to : s->out, shared = s->u.experts.shared, gate = s->u.experts.shared_gate;
    int code = list_slots(c, s);
    if (code == 0) code = c->dev->lib->fill(c->moe.acc, 0, (size_t)(c->batch.m * d) * sizeof(float), c->dev->stream);
    for (int32_t e = 0; code == 0 && e < s->u.experts.n_expert; e++)
        if (c->moe.first[e + 1] > c->moe.first[e]) code = run_expert(c, s, in, e);
    if (code != 0) return code;
    return c->dev->lib->experts_finish(&c->ctx, c->moe.acc, d, c->batch.m, (int32_t)d, shared >= 0 ? c->bufs[shared] : NULL,
                                       shared >= 0 ? c->ld[shared] : 0, shared >= 0 ? c->bufs[gate] : NULL, shared >= 0 ? c->ld[gate] : 0,
                                       c->bufs[out], c->ld[out], s->add_to >= 0, c->dev->stream);
}
