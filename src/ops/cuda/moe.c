/* moe.c: mixtures of experts. The router's choice and the lists of who goes to which expert are made and stay on the device, so that
 * such plans run as captured graphs and ahead, too: three launches behind the router's (its choice with the lists; gate, up and
 * activation; down), the last of which sums a token's experts itself in batches of few tokens, a fourth else; six for prompts, whose lists and
 * gathered inputs are launches of their own. An expert is rows of the
 * stacked matrices, whole tiles. A token's experts are added in rising id, so that its neighbours change nothing.
 */
#include "ops/cuda/cuda_int.h"

static struct ck_expert_list list_for(const struct compiled *c, int32_t top_k, int32_t n_expert)
{
    struct ck_expert_list l = c->moe.list;
    l.most = c->dev->lib->experts_most(&c->ctx, c->batch.m, top_k, n_expert);
    return l;
}

int cuda_run_route(struct compiled *c, const struct plan_step *s)
{
    struct cs_route a = { .in = c->bufs[s->in], .out = c->bufs[s->out], .ld_in = c->ld[s->in], .ld_out = c->ld[s->out], .m = c->batch.m,
                          .n_expert = s->u.route.n_expert, .top_k = s->u.route.top_k, .kind = (int32_t)s->u.route.kind,
                          .normalise = s->u.route.normalise, .expert_scale = cuda_constant(c, s, CONST_SCALES),
                          .choice_bias = cuda_constant(c, s, CONST_CHOICE_BIAS), .n_group = s->u.route.n_group > 1 ? s->u.route.n_group : 1,
                          .n_group_used = s->u.route.n_group_used, .scale = s->u.route.scale,
                          .list = list_for(c, s->u.route.top_k, s->u.route.n_expert) };
    return c->dev->lib->route(&c->ctx, &a, c->dev->stream);
}

static const struct ck_weight *stack_of(const struct weight *w)
{
    return &((const struct cuda_weight *)w->impl)->w;
}

/* The batch's linear input as the experts take it: of prompts a block of tokens for each piece. */
static int input_for(struct compiled *c, const struct plan_step *s, const struct ck_experts *e, struct ck_x *x)
{
    const struct ck_x *in = cuda_input_of(c, s->in);
    *x = *in;
    if (e->list.most != CK_PIECE_TILE) return 0;
    x->v = c->moe.x;
    x->layout = CK_X_PIECES;
    return c->dev->lib->gather_pieces(&c->ctx, e, in, x, c->dev->stream);
}

static struct ck_expert_sum sum_of(const struct compiled *c, const struct plan_step *s)
{
    buf_id out = s->add_to >= 0 ? s->add_to : s->out, route = s->u.experts.route, shared = s->u.experts.shared, gate = s->u.experts.shared_gate;
    struct ck_expert_sum a = { .route = c->bufs[route], .ld_route = c->ld[route], .out = c->bufs[out], .ld_out = c->ld[out], .add = s->add_to >= 0 };
    if (shared >= 0) {
        a.shared = c->bufs[shared];
        a.ld_shared = c->ld[shared];
    }
    if (gate >= 0) {
        a.gate = c->bufs[gate];
        a.ld_gate = c->ld[gate];
    }
    return a;
}

int cuda_run_experts(struct compiled *c, const struct plan_step *s)
{
    const struct cuda_library *lib = c->dev->lib;
    int64_t width = s->u.experts.width, d = s->u.experts.gate->k;
    struct ck_experts e = { .list = list_for(c, s->u.experts.top_k, s->u.experts.n_expert), .m = c->batch.m, .top_k = s->u.experts.top_k,
                            .n_expert = s->u.experts.n_expert };
    struct ck_x x, hidden = { .v = c->moe.hidden, .k = width, .k_pad = (width + 63) / 64 * 64, .mul = CUDA_GLU_MUL };
    struct ck_expert_sum sum = sum_of(c, s);
    const struct ck_weight *down = stack_of(s->u.experts.down);
    const float *down_bias = cuda_constant(c, s, CONST_DOWN_BIAS);
    int code = input_for(c, s, &e, &x);
    hidden.layout = x.layout;
    if (code == 0)
        code = lib->experts_glu(&c->ctx, &e, &x, stack_of(s->u.experts.gate), stack_of(s->u.experts.up), width, cuda_constant(c, s, CONST_GATE_BIAS),
                                cuda_constant(c, s, CONST_UP_BIAS), (int)s->u.experts.kind, &hidden, c->dev->stream);
    if (code != 0) return code;
    if (e.list.most == 1) return lib->experts_down_sum(&c->ctx, &e, &hidden, down, d, down_bias, &sum, c->dev->stream);
    code = lib->experts_down(&c->ctx, &e, &hidden, down, d, down_bias, c->moe.y, d, c->dev->stream);
    return code == 0 ? lib->experts_sum(&c->ctx, &sum, c->moe.y, d, e.m, e.top_k, (int32_t)d, c->dev->stream) : code;
}
