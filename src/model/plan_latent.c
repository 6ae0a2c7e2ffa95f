/* plan_latent.c: attention over latents (multi-head latent attention) as steps. What a page holds of a token is its latent and one
 * rotated key for all heads; q is brought into the latents' space head by head, and what attention gives is brought out of it:
 *
 *   norm -> attn_in; linear q_a, kv_a (and the indexer's key and weights); norm of q_a; linear q (and the indexer's q)
 *   heads: q's part without positions -> the latent's columns of q';  latent: the rotated part, the token's page
 *   index -> chosen (layers with an indexer of their own; layers that share read what is there)
 *   attend over latents -> heads_latent; heads -> attn; linear o (+ residual)
 */
#include "model/plan_int.h"

void plan_add_latent_bufs(struct writer *w)
{
    const struct model_spec *s = &w->m->spec;
    const struct latent_spec *l = &s->latent;
    int64_t n_head = s->layers[0].n_head, width = l->kv_rank + l->d_rope;
    bool index = l->index_top_k > 0;
    w->b.q_a = l->q_rank > 0 ? plan_add_buf(w, "q_a", BUF_F32, l->q_rank, 0, false) : -1;
    w->b.q = plan_add_buf(w, "q", BUF_F32, n_head * (l->d_nope + l->d_rope), 0, false);
    w->b.kv_a = plan_add_buf(w, "kv_a", BUF_F32, width, 0, false);
    w->b.q_rot = plan_add_buf(w, "q_rot", BUF_F32, n_head * width, 0, false);
    w->b.heads_latent = plan_add_buf(w, "heads_latent", BUF_F32, n_head * l->kv_rank, 0, false);
    w->b.attn = plan_add_buf(w, "attn", BUF_F32, n_head * l->d_value, 0, false);
    w->b.index_q = index ? plan_add_buf(w, "index_q", BUF_F32, (int64_t)l->index_heads * l->index_dim, 0, false) : -1;
    w->b.index_k = index ? plan_add_buf(w, "index_k", BUF_F32, l->index_dim, 0, false) : -1;
    w->b.index_w = index ? plan_add_buf(w, "index_w", BUF_F32, l->index_heads, 0, false) : -1;
    w->b.chosen = index ? plan_add_buf(w, "chosen", BUF_F32, l->index_top_k, 0, false) : -1;
}

/* A matrix for each head, from columns of `in` to columns of `out`. */
static void add_heads(struct writer *w, int i_layer, const struct weight *x, buf_id in, int32_t in_step, buf_id out, int32_t out_step)
{
    struct plan_step *s = plan_add_step(w, STEP_HEADS, i_layer, in, out);
    s->u.heads.w = x;
    s->u.heads.n_head = w->m->spec.layers[i_layer].n_head;
    s->u.heads.in_step = in_step;
    s->u.heads.out_step = out_step;
    s->u.heads.hidden = plan_add_buf(w, "heads_in", BUF_ACT, x->k, plan_weight_group(w, x), false);
    if (s->u.heads.hidden >= 0) w->p->bufs[s->u.heads.hidden].n_slots = s->u.heads.n_head;
}

static struct rope_spec rope_of(const struct writer *w, int i_layer)
{
    int32_t i = w->m->spec.layers[i_layer].i_rope;
    const struct rope_params *r = &w->m->spec.ropes[i];
    return (struct rope_spec){ .n_rot = r->n_rot, .interleaved = r->interleaved, .table = w->m->ropes[i].cs,
                               .n_position = w->m->spec.n_context };
}

/* q, kv_a and what the indexer reads. */
static void add_projections(struct writer *w, int i_layer)
{
    const struct layer_weights *lw = &w->m->layers[i_layer];
    bool low = w->m->spec.latent.q_rank > 0, index = w->m->spec.layers[i_layer].index == INDEX_OWN;
    const struct weight *first[4] = { low ? &lw->q_a : &lw->q_b, &lw->kv_a, &lw->index_k, &lw->index_w };
    const struct weight *second[2] = { &lw->q_b, &lw->index_q };
    struct plan_part parts[4] = { { first[0], low ? lw->q_a_bias : NULL, low ? w->b.q_a : w->b.q, false, 0 },
                                  { &lw->kv_a, lw->kv_a_bias, w->b.kv_a, false, 0 }, { &lw->index_k, NULL, w->b.index_k, false, 0 },
                                  { &lw->index_w, NULL, w->b.index_w, false, 0 } };
    struct plan_part then[2] = { { &lw->q_b, NULL, w->b.q, false, 0 }, { &lw->index_q, NULL, w->b.index_q, false, 0 } };
    buf_id in_of[4];
    int n = index ? 4 : 2;
    plan_add_inputs(w, plan_add_pre_norm(w, i_layer, lw->attn_norm, lw->attn_norm_bias), "attn_in", first, n, false, w->b.lora_in, in_of);
    plan_add_linears(w, i_layer, parts, in_of, n, 0);
    if (!low) return;
    struct plan_step *s = plan_add_norm(w, i_layer, w->b.q_a, lw->q_a_norm);
    s->u.norm.eps = w->m->spec.latent.norm_eps;
    plan_add_inputs(w, s, "q_in", second, index ? 2 : 1, false, w->b.q_a, in_of); /* the norm is the last to read q_a */
    plan_add_linears(w, i_layer, then, in_of, index ? 2 : 1, 0);
}

static void add_latent_write(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct latent_spec *l = &spec->latent;
    const struct layer_spec *layer = &spec->layers[i_layer];
    const struct layer_weights *lw = &w->m->layers[i_layer];
    struct plan_step *s = plan_add_step(w, STEP_LATENT, i_layer, w->b.q, w->b.q_rot);
    s->u.latent.kv = w->b.kv_a;
    s->u.latent.norm = lw->kv_a_norm;
    s->u.latent.norm_eps = l->norm_eps;
    s->u.latent.rope = rope_of(w, i_layer);
    s->u.latent.q_scale = LOG2_E * layer->attn_scale;
    s->u.latent.n_head = layer->n_head;
    s->u.latent.d_latent = l->kv_rank;
    s->u.latent.d_rope = l->d_rope;
    s->u.latent.q_first = l->d_nope;
    s->u.latent.q_step = l->d_nope + l->d_rope;
    s->u.latent.index_key = layer->index == INDEX_OWN ? w->b.index_k : -1;
    s->u.latent.index_norm = lw->index_norm;
    s->u.latent.index_norm_bias = lw->index_norm_bias;
    s->u.latent.index_eps = 1e-6f;
    s->u.latent.index_interleaved = l->index_interleaved;
    s->u.latent.d_index = l->index_dim;
    s->u.latent.i_kind = layer->i_kind;
    s->u.latent.i_in_kind = layer->i_in_kind;
}

static void add_index(struct writer *w, int i_layer)
{
    const struct latent_spec *l = &w->m->spec.latent;
    struct plan_step *s = plan_add_step(w, STEP_INDEX, i_layer, w->b.index_q, w->b.chosen);
    s->u.index.weights = w->b.index_w;
    s->u.index.rope = rope_of(w, i_layer);
    s->u.index.rope.interleaved = l->index_interleaved;
    s->u.index.n_head = l->index_heads;
    s->u.index.dim = l->index_dim;
    s->u.index.top_k = l->index_top_k;
    s->u.index.first_row = l->kv_rank + l->d_rope;
    s->u.index.i_kind = w->m->spec.layers[i_layer].i_kind;
    s->u.index.i_in_kind = w->m->spec.layers[i_layer].i_in_kind;
}

static void add_attend(struct writer *w, int i_layer)
{
    const struct latent_spec *l = &w->m->spec.latent;
    const struct layer_spec *layer = &w->m->spec.layers[i_layer];
    struct plan_step *s = plan_add_step(w, STEP_ATTEND, i_layer, w->b.q_rot, w->b.heads_latent);
    s->u.attend.n_head = layer->n_head;
    s->u.attend.n_head_kv = 1;
    s->u.attend.head_dim = layer->head_dim;
    s->u.attend.value_dim = l->kv_rank;
    s->u.attend.latent = true;
    s->u.attend.chosen = layer->index != INDEX_NONE ? w->b.chosen : -1;
    s->u.attend.top_k = l->index_top_k;
    s->u.attend.i_kind = layer->i_kind;
    s->u.attend.i_in_kind = layer->i_in_kind;
    s->u.attend.causal = true;
    s->u.attend.gate = -1;
}

void plan_add_latent(struct writer *w, int i_layer)
{
    const struct latent_spec *l = &w->m->spec.latent;
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *o[1] = { &lw->o };
    buf_id in_of[1];
    add_projections(w, i_layer);
    add_heads(w, i_layer, &lw->embed_q, w->b.q, l->d_nope + l->d_rope, w->b.q_rot, l->kv_rank + l->d_rope);
    add_latent_write(w, i_layer);
    if (w->m->spec.layers[i_layer].index == INDEX_OWN) add_index(w, i_layer);
    add_attend(w, i_layer);
    add_heads(w, i_layer, &lw->unembed_out, w->b.heads_latent, l->kv_rank, w->b.attn, l->d_value);
    struct plan_step *s = plan_add_norm(w, i_layer, w->b.attn, NULL);
    s->u.norm.identity = true;
    plan_add_inputs(w, s, "o_in", o, 1, false, w->b.attn, in_of);
    struct plan_part out = { &lw->o, lw->o_bias, w->b.residual, true, 0 };
    plan_add_linears(w, i_layer, &out, in_of, 1, 0);
}
