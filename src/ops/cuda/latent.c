/* latent.c: attention over latents (latent.h) as launches. Queries are brought into the space of latents before
 * attention and its output out of it behind: one way for prompts and for decoding, so that a token's bits do not depend on what is computed
 * with it.
 */
#include "ops/cuda/cuda_int.h"

bool cuda_is_latent(const struct plan_step *s)
{
    return s->op == STEP_ATTEND && s->u.attend.latent;
}

/* Does it run here? NULL, or what does not, for a sentence that ends "not run on a GPU". */
const char *cuda_latent_refuses(const struct plan_step *s)
{
    if (s->op == STEP_HEADS && s->u.heads.w->k > CL_HEADS_K_MAX) return "latents of more than 512 values do";
    if (cuda_is_latent(s) && (s->u.attend.value_dim > CL_VALUE_MAX || s->u.attend.head_dim > CL_D_MAX)) return "latents of more than 512 values do";
    if (cuda_is_latent(s) && (s->u.attend.window > 0 || s->u.attend.softcap != 0 || s->u.attend.sinks || s->u.attend.gate >= 0 || s->outs[0] >= 0))
        return "windows, soft caps, sinks or gates over latents do";
    if (s->op == STEP_LATENT && s->u.latent.d_latent + s->u.latent.d_rope + s->u.latent.d_index > CL_ROWS_MAX)
        return "keys of more than 1,024 values do";
    if (s->op == STEP_INDEX && s->u.index.dim > CL_INDEX_DIM_MAX) return "indexers with heads of more than 128 values do";
    if (s->op == STEP_INDEX && ((size_t)s->u.index.n_head * (size_t)(s->u.index.dim + 1) * sizeof(float) > CL_INDEX_Q_BYTES))
        return "indexers with queries of more than 48,000 bytes do";
    return NULL;
}

size_t cuda_latent_work_bytes(const struct compiled *c)
{
    size_t most = 0;
    for (int32_t i = 0; i < c->plan->n_steps; i++) {
        const struct plan_step *s = &c->plan->steps[i];
        size_t n = cuda_is_latent(s) ? c->dev->lib->latent_work_bytes(&c->dev->ctx, s->u.attend.n_head, s->u.attend.value_dim, c->plan->n_context) : 0;
        if (s->op == STEP_INDEX) n = c->dev->lib->index_work_bytes(c->plan->n_context);
        if (n > most) most = n;
    }
    return most;
}

static const void *batch_at(const struct compiled *c, size_t off)
{
    return c->batch_dev + off;
}

static struct cl_pages pages_of(const struct compiled *c, int i_kind, int i_in_kind)
{
    const struct kv_kind *k = &c->plan->kinds[i_kind];
    return (struct cl_pages){ .pool = c->dev->kv, .pages = (const int32_t *)batch_at(c, c->batch.at.pages) + (size_t)i_kind * c->n_pages_max,
                              .table_of = batch_at(c, c->batch.at.table_of), .index = batch_at(c, c->batch.at.index),
                              .area_off = (int64_t)((size_t)i_in_kind * k->head_bytes), .format = k->format, .rows = k->head_dim };
}

int cuda_run_heads(struct compiled *c, const struct plan_step *s)
{
    const struct cuda_weight *w = s->u.heads.w->impl;
    struct cl_heads a = { .w = &w->w, .in = c->bufs[s->in] + s->u.heads.in_first, .ld_in = c->ld[s->in], .in_step = s->u.heads.in_step,
                          .out = c->bufs[s->out], .ld_out = c->ld[s->out], .out_step = s->u.heads.out_step, .m = c->batch.m,
                          .n_head = s->u.heads.n_head };
    return c->dev->lib->heads(&c->ctx, &a, c->dev->stream);
}

int cuda_run_latent(struct compiled *c, const struct plan_step *s)
{
    buf_id kv = s->u.latent.kv, key = s->u.latent.index_key;
    struct cl_latent a = { .p = pages_of(c, s->u.latent.i_kind, s->u.latent.i_in_kind), .q = c->bufs[s->in], .ld_q = c->ld[s->in],
                           .kv = c->bufs[kv], .ld_kv = c->ld[kv], .out = c->bufs[s->out], .ld_out = c->ld[s->out], .m = c->batch.m,
                           .n_head = s->u.latent.n_head, .d_latent = s->u.latent.d_latent, .d_rope = s->u.latent.d_rope,
                           .q_first = s->u.latent.q_first, .q_step = s->u.latent.q_step, .interleaved = s->u.latent.rope.interleaved,
                           .norm = cuda_constant(c, s, CONST_LATENT_NORM), .norm_eps = s->u.latent.norm_eps, .q_scale = s->u.latent.q_scale,
                           .table = batch_at(c, c->batch.at.rope[cuda_rope_of(c, &s->u.latent.rope)]) };
    if (key >= 0) {
        a.index_key = c->bufs[key];
        a.ld_index = c->ld[key];
        a.index_norm = cuda_constant(c, s, CONST_INDEX_NORM);
        a.index_bias = cuda_constant(c, s, CONST_INDEX_BIAS);
        a.index_eps = s->u.latent.index_eps;
        a.index_interleaved = s->u.latent.index_interleaved;
        a.d_index = s->u.latent.d_index;
    }
    return c->dev->lib->latent(&c->ctx, &a, c->dev->stream);
}

int cuda_run_index(struct compiled *c, const struct plan_step *s)
{
    const struct rope_spec *r = &s->u.index.rope;
    buf_id w = s->u.index.weights;
    struct cl_index a = { .p = pages_of(c, s->u.index.i_kind, s->u.index.i_in_kind), .q = c->bufs[s->in], .weights = c->bufs[w], .ld_q = c->ld[s->in],
                          .ld_weights = c->ld[w], .table = batch_at(c, c->batch.at.rope[cuda_rope_of(c, r)]), .out = c->bufs[s->out],
                          .ld_out = c->ld[s->out], .m = c->batch.m, .n_head = s->u.index.n_head, .dim = s->u.index.dim, .n_rot = r->n_rot,
                          .interleaved = r->interleaved, .top_k = s->u.index.top_k, .first_row = s->u.index.first_row,
                          .n_split = c->batch.n_split, .work = c->latent_work, .work_bytes = c->latent_work_bytes };
    return c->dev->lib->index(&c->ctx, &a, c->dev->stream);
}

int cuda_run_latent_attend(struct compiled *c, const struct plan_step *s)
{
    buf_id chosen = s->u.attend.chosen;
    struct cl_attend a = { .p = pages_of(c, s->u.attend.i_kind, s->u.attend.i_in_kind), .q = c->bufs[s->in], .ld_q = c->ld[s->in],
                           .out = c->bufs[s->out], .ld_out = c->ld[s->out], .m = c->batch.m, .n_head = s->u.attend.n_head,
                           .d = s->u.attend.head_dim, .d_value = s->u.attend.value_dim, .n_split = c->batch.n_split, .work = c->latent_work,
                           .work_bytes = c->latent_work_bytes };
    if (chosen >= 0) {
        a.chosen = c->bufs[chosen];
        a.ld_chosen = c->ld[chosen];
        a.top_k = s->u.attend.top_k;
    }
    return c->dev->lib->latent_attend(&c->ctx, &a, c->dev->stream);
}
