/* plan.c: a model_spec and its weights to the flat list of steps (ops/plan.h). One writer for every family: a switch of
 * the spec is a step that is written or not, never a branch at run time.
 *
 *   embed -> residual
 *   per layer: norm -> attn_in; linear q k v; rope + KV write -> q'; attend -> attn_out; linear o (+ residual)
 *              (delta net: norm -> attn_in; linear q k v, b, z, a; delta -> out; linear o (+ residual))
 *              (experts: norm -> mlp_in; linear router; route; experts (+ residual))
 *              norm -> mlp_in;  linear gate up; glu -> down_in; linear down (+ residual)
 *   draws -> final norm -> head_in; linear head -> logits; sample
 *              (latents: plan_latent.c)
 * With post-norms (gemma) o and down write to `branch`, and a norm adds that to the residual.
 * Gemma 4: `layer_in` holds what each layer gets of the token itself, made before the first layer; a layer may have a mixture
 * beside its MLP, and read its keys from an earlier layer's pages.
 * A model with canvases has a second plan over the same weights: embed, then what the round before expects is mixed in; layers
 * whose queries see the whole row; logits to expectations, then to draws.
 */
#include <stdio.h>
#include <string.h>

#include "model/plan_int.h"

#define STEPS_PER_LAYER 32
#define STEPS_OUTSIDE 24

buf_id plan_add_buf(struct writer *w, const char *name, enum buf_type type, int64_t width, int32_t group, bool per_draw)
{
    struct plan *p = w->p;
    for (int i = 0; i < p->n_bufs; i++) {
        struct plan_buf *b = &p->bufs[i];
        if (b->type == type && b->width == width && b->group == group && b->per_draw == per_draw && strcmp(b->name, name) == 0)
            return (buf_id)i;
    }
    if (p->n_bufs == PLAN_MAX_BUFS) {
        w->failed = true;
        mb_fail(w->err, MB_UNSUPPORTED, "the plan needs more than %d buffers: too many different group sizes", PLAN_MAX_BUFS);
        return -1;
    }
    p->bufs[p->n_bufs] = (struct plan_buf){ .name = name, .type = type, .per_draw = per_draw, .width = (int32_t)width,
                                            .group = group, .device = -1, .copy = -1 };
    return (buf_id)p->n_bufs++;
}

struct plan_step *plan_add_step(struct writer *w, enum step_op op, int i_layer, buf_id in, buf_id out)
{
    struct plan *p = w->p;
    if (p->n_steps == w->cap) w->failed = true;
    struct plan_step *s = &p->steps[w->failed ? w->cap - 1 : p->n_steps++];
    memset(s, 0, sizeof *s);
    s->op = op;
    s->i_layer = (int16_t)i_layer;
    s->in = in;
    s->out = out;
    s->add_to = -1;
    for (int i = 0; i < PLAN_MAX_OUTS; i++) s->outs[i] = -1;
    return s;
}

int32_t plan_weight_group(const struct writer *w, const struct weight *x)
{
    return w->m->ops->act_group(w->m->device, x, x->group);
}

void plan_add_inputs(struct writer *w, struct plan_step *step, const char *name, const struct weight *const *x, int n,
                       bool per_draw, buf_id copy, buf_id *in_of)
{
    int n_out = 0;
    for (int i = 0; i < n; i++) in_of[i] = -1;
    for (int i = 0; i < n; i++) {
        buf_id b = plan_add_buf(w, name, BUF_ACT, x[i]->k, plan_weight_group(w, x[i]), per_draw);
        if (b >= 0 && w->p->max_lora_rank > 0) w->p->bufs[b].copy = copy;
        int j = 0;
        while (j < n_out && step->outs[j] != b) j++;
        if (j == n_out) {
            if (n_out == PLAN_MAX_OUTS) { w->failed = true; return; }
            step->outs[n_out++] = b;
        }
        in_of[i] = b;
    }
}

void plan_add_linears(struct writer *w, int i_layer, const struct plan_part *parts, const buf_id *in_of, int n, float softcap)
{
    bool done[PLAN_MAX_PARTS] = { false };
    for (int i = 0; i < n; i++) {
        if (done[i]) continue;
        struct plan_step *s = plan_add_step(w, STEP_LINEAR, i_layer, in_of[i], -1);
        for (int j = i; j < n; j++) {
            if (done[j] || in_of[j] != in_of[i]) continue;
            done[j] = true;
            int p = s->u.linear.n_parts++;
            s->u.linear.part[p].w = parts[j].w;
            s->u.linear.part[p].bias = parts[j].bias;
            s->u.linear.part[p].out = parts[j].out;
            s->u.linear.part[p].add = parts[j].add;
            s->u.linear.part[p].softcap = softcap;
            s->u.linear.part[p].scale = parts[j].scale;
        }
    }
}

struct plan_step *plan_add_norm(struct writer *w, int i_layer, buf_id in, const float *weight)
{
    struct plan_step *s = plan_add_step(w, STEP_NORM, i_layer, in, -1);
    s->u.norm.weight = weight;
    s->u.norm.eps = w->m->spec.norm_eps;
    return s;
}

struct plan_step *plan_add_pre_norm(struct writer *w, int i_layer, const float *weight, const float *bias)
{
    struct plan_step *s = plan_add_norm(w, i_layer, w->b.residual, weight);
    s->u.norm.bias = bias;
    s->u.norm.identity = w->m->spec.no_pre_norms;
    return s;
}

/* A norm over all heads of q or k, in place; layers of different widths would share a buffer that is too wide. */
static void add_whole_norm(struct writer *w, int i_layer, buf_id b, int64_t width, const float *weight)
{
    if (w->p->bufs[b].width != width) {
        w->failed = true;
        mb_fail(w->err, MB_UNSUPPORTED, "layer %d: a norm over %lld values, other layers have %d", i_layer, (long long)width,
                (int)w->p->bufs[b].width);
    }
    plan_add_norm(w, i_layer, b, weight)->out = b;
}

/* residual += norm(branch) */
static struct plan_step *add_post_norm(struct writer *w, int i_layer, const float *weight)
{
    struct plan_step *s = plan_add_norm(w, i_layer, w->b.branch, weight);
    s->post_add = true;
    s->add_to = w->b.residual;
    return s;
}

/* The norm that ends a layer: (residual + norm(branch)) * the layer's scalar. */
static void add_last_norm(struct writer *w, int i_layer, const float *weight)
{
    const float *scalar = w->canvas ? w->m->layers[i_layer].canvas_scalar : w->m->layers[i_layer].scalar;
    struct plan_step *s = add_post_norm(w, i_layer, weight);
    if (scalar && *scalar != 1.0f) s->u.norm.sum_scale = *scalar;
}

static void add_post_mlp_norm(struct writer *w, int i_layer)
{
    const float *weight = w->m->layers[i_layer].post_mlp_norm;
    if (w->m->spec.d_per_layer > 0) add_post_norm(w, i_layer, weight);
    else add_last_norm(w, i_layer, weight);
}

static void add_rope_kv(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct layer_spec *l = &spec->layers[i_layer];
    const struct layer_weights *lw = &w->m->layers[i_layer];
    struct plan_step *s = plan_add_step(w, STEP_ROPE_KV, i_layer, w->b.q, w->b.q_rot);
    s->u.rope_kv.k = l->attn == ATTN_SHARED_KV ? -1 : w->b.k;
    s->u.rope_kv.v = l->v_is_k ? w->b.k : w->b.v;
    s->u.rope_kv.v_norm = l->v_norm;
    s->u.rope_kv.q_norm = l->qk_norm_whole ? NULL : lw->q_norm;
    s->u.rope_kv.k_norm = l->qk_norm_whole ? NULL : lw->k_norm;
    s->u.rope_kv.norm_eps = spec->norm_eps;
    s->u.rope_kv.n_head = l->n_head;
    s->u.rope_kv.n_head_kv = l->n_head_kv;
    s->u.rope_kv.head_dim = l->head_dim;
    s->u.rope_kv.q_step = l->attn_gate ? 2 * l->head_dim : l->head_dim;
    s->u.rope_kv.i_kind = l->i_kind;
    s->u.rope_kv.i_in_kind = l->i_in_kind;
    s->u.rope_kv.q_scale = l->attn_softcap > 0 ? l->attn_scale : LOG2_E * l->attn_scale;
    if (l->i_rope >= 0) {
        const struct rope_params *r = &spec->ropes[l->i_rope];
        s->u.rope_kv.rope = (struct rope_spec){ .n_rot = r->n_rot, .interleaved = r->interleaved,
                                                .table = w->m->ropes[l->i_rope].cs, .n_position = spec->n_context };
        s->u.rope_kv.q_steps = w->m->ropes[l->i_rope].query;
        s->u.rope_kv.q_step_tokens = r->query_context;
    }
}

static void add_attention(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct layer_spec *l = &spec->layers[i_layer];
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *qkv[3] = { &lw->q, &lw->k, &lw->v };
    int n_qkv = l->attn == ATTN_SHARED_KV ? 1 : l->v_is_k ? 2 : 3;
    buf_id in_of[3];
    plan_add_inputs(w, plan_add_pre_norm(w, i_layer, lw->attn_norm, lw->attn_norm_bias), "attn_in", qkv, n_qkv, false, w->b.lora_in, in_of);
    struct plan_part parts[3] = { { &lw->q, lw->q_bias, w->b.q, false, 0 }, { &lw->k, lw->k_bias, w->b.k, false, 0 },
                             { &lw->v, lw->v_bias, w->b.v, false, 0 } };
    plan_add_linears(w, i_layer, parts, in_of, n_qkv, 0);
    if (l->qk_norm_whole) {
        add_whole_norm(w, i_layer, w->b.q, lw->q.n, lw->q_norm);
        add_whole_norm(w, i_layer, w->b.k, lw->k.n, lw->k_norm);
    }
    add_rope_kv(w, i_layer);

    struct plan_step *s = plan_add_step(w, STEP_ATTEND, i_layer, w->b.q_rot, w->b.attn);
    s->u.attend.n_head = l->n_head;
    s->u.attend.n_head_kv = l->n_head_kv;
    s->u.attend.head_dim = s->u.attend.value_dim = l->head_dim;
    s->u.attend.chosen = -1;
    s->u.attend.i_kind = l->i_kind;
    s->u.attend.i_in_kind = l->i_in_kind;
    s->u.attend.softcap = l->attn_softcap;
    s->u.attend.window = l->window;
    s->u.attend.causal = !w->canvas;
    s->u.attend.sinks = lw->sinks;
    s->u.attend.gate = l->attn_gate ? w->b.q : -1;
    s->u.attend.gate_first = l->head_dim;
    s->u.attend.gate_step = 2 * l->head_dim;
    const struct weight *o[1] = { &lw->o };
    plan_add_inputs(w, s, "o_in", o, 1, false, w->b.attn, in_of);
    struct plan_part out = { &lw->o, lw->o_bias, spec->post_norms ? w->b.branch : w->b.residual, !spec->post_norms, spec->residual_scale };
    plan_add_linears(w, i_layer, &out, in_of, 1, 0);
    if (spec->post_norms) add_post_norm(w, i_layer, lw->post_attn_norm);
}

/* Where the projections of a delta net lie: four of them, or two with everything of a key head together. */
static void set_delta_parts(const struct writer *w, struct plan_step *s)
{
    const struct delta_spec *d = &w->m->spec.delta;
    int32_t group = d->n_head_v / d->n_head_k, keys = d->n_head_k * d->dim_k, dk = d->dim_k, dv = group * d->dim_v;
    buf_id in = w->b.delta_in, ba = w->b.delta_b;
    int32_t all = 2 * dk + 2 * dv;
    s->u.delta.q = d->fused ? (struct delta_part){ in, 0, all } : (struct delta_part){ in, 0, dk };
    s->u.delta.k = d->fused ? (struct delta_part){ in, dk, all } : (struct delta_part){ in, keys, dk };
    s->u.delta.v = d->fused ? (struct delta_part){ in, 2 * dk, all } : (struct delta_part){ in, 2 * keys, dv };
    s->u.delta.z = d->fused ? (struct delta_part){ in, 2 * dk + dv, all } : (struct delta_part){ w->b.delta_z, 0, dv };
    s->u.delta.b = d->fused ? (struct delta_part){ ba, 0, 2 * group } : (struct delta_part){ ba, 0, group };
    s->u.delta.a = d->fused ? (struct delta_part){ ba, group, 2 * group } : (struct delta_part){ w->b.delta_a, 0, group };
}

static void add_delta(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct delta_spec *d = &spec->delta;
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *readers[4] = { &lw->delta_qkv, &lw->delta_b, &lw->delta_z, &lw->delta_a };
    struct plan_part parts[4] = { { &lw->delta_qkv, NULL, w->b.delta_in, false, 0 }, { &lw->delta_b, NULL, w->b.delta_b, false, 0 },
                             { &lw->delta_z, NULL, w->b.delta_z, false, 0 },
                             { &lw->delta_a, NULL, w->b.delta_a, false, 0 } };
    int n = d->fused ? 2 : 4;
    buf_id in_of[4];
    plan_add_inputs(w, plan_add_pre_norm(w, i_layer, lw->attn_norm, lw->attn_norm_bias), "attn_in", readers, n, false, w->b.lora_in, in_of);
    plan_add_linears(w, i_layer, parts, in_of, n, 0);
    struct plan_step *s = plan_add_step(w, STEP_DELTA, i_layer, w->b.delta_in, w->b.delta_out);
    set_delta_parts(w, s);
    s->u.delta.conv = lw->delta_conv;
    s->u.delta.decay = lw->delta_decay;
    s->u.delta.dt_bias = lw->delta_bias;
    s->u.delta.norm = lw->delta_norm;
    s->u.delta.norm_eps = spec->norm_eps;
    s->u.delta.n_head_k = d->n_head_k;
    s->u.delta.n_head_v = d->n_head_v;
    s->u.delta.dim_k = d->dim_k;
    s->u.delta.dim_v = d->dim_v;
    s->u.delta.n_conv = d->n_conv;
    s->u.delta.i_kind = spec->layers[i_layer].i_kind;
    s->u.delta.i_in_kind = spec->layers[i_layer].i_in_kind;
    const struct weight *o[1] = { &lw->o };
    plan_add_inputs(w, s, "delta_o_in", o, 1, false, w->b.delta_out, in_of);
    struct plan_part out = { &lw->o, NULL, w->b.residual, true, 0 };
    plan_add_linears(w, i_layer, &out, in_of, 1, 0);
}

/* residual += norm(out(gelu(gate(residual)) * the layer's share of layer_in)) */
static void add_layer_input(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *gate[1] = { &lw->input_gate }, *out[1] = { &lw->input_out };
    buf_id in_of[1];
    struct plan_step *s = plan_add_norm(w, i_layer, w->b.residual, NULL);
    s->u.norm.identity = true;
    plan_add_inputs(w, s, "mlp_in", gate, 1, false, w->b.lora_in, in_of);
    struct plan_part to = { &lw->input_gate, NULL, w->b.input_gate, false, 0 };
    plan_add_linears(w, i_layer, &to, in_of, 1, 0);
    s = plan_add_step(w, STEP_GLU, i_layer, w->b.input_gate, -1);
    s->u.glu.kind = spec->glu;
    s->u.glu.up = w->b.layer_in;
    s->u.glu.up_first = i_layer * spec->d_per_layer;
    s->u.glu.width = spec->d_per_layer;
    plan_add_inputs(w, s, "layer_gated", out, 1, false, w->b.input_gate, in_of);
    struct plan_part back = { &lw->input_out, NULL, w->b.branch, false, 0 };
    plan_add_linears(w, i_layer, &back, in_of, 1, 0);
    add_last_norm(w, i_layer, lw->post_input_norm);
}

/* layer_in = (table row * sqrt(width) + norm of each layer's piece of proj(residual) / sqrt(d_model)) / sqrt(2) */
static void add_layer_inputs(struct writer *w)
{
    struct model *m = w->m;
    const struct weight *proj[1] = { &m->layer_proj };
    buf_id in_of[1];
    struct plan_step *s = plan_add_step(w, STEP_EMBED, -1, -1, w->b.layer_in);
    s->u.embed.table = &m->layer_table;
    s->u.embed.scale = __builtin_sqrtf((float)m->spec.d_per_layer);
    s->u.embed.ids_only = true;
    s = plan_add_norm(w, -1, w->b.residual, NULL);
    s->u.norm.identity = true;
    plan_add_inputs(w, s, "mlp_in", proj, 1, false, w->b.lora_in, in_of);
    struct plan_part part = { &m->layer_proj, NULL, w->b.layer_proj, false, (float)(1.0 / __builtin_sqrt((double)m->spec.d_model)) };
    plan_add_linears(w, -1, &part, in_of, 1, 0);
    s = plan_add_norm(w, -1, w->b.layer_proj, m->layer_proj_norm);
    s->u.norm.n_pieces = m->spec.n_layer;
    s->u.norm.sum_scale = 0.70710678118654752440f;
    s->post_add = true;
    s->add_to = w->b.layer_in;
}

static void add_mlp(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *gate_up[2] = { &lw->gate, &lw->up };
    const struct weight *down[1] = { &lw->down };
    int n = spec->mlp_in ? 1 : 2;
    buf_id in_of[2];
    plan_add_inputs(w, plan_add_pre_norm(w, i_layer, lw->mlp_norm, lw->mlp_norm_bias), "mlp_in", gate_up, n, false, w->b.lora_in, in_of);
    struct plan_part parts[2] = { { &lw->gate, lw->gate_bias, w->b.gate, false, 0 }, { &lw->up, lw->up_bias, w->b.up, false, 0 } };
    plan_add_linears(w, i_layer, parts, in_of, n, 0);
    struct plan_step *s = plan_add_step(w, STEP_GLU, i_layer, w->b.gate, -1);
    s->u.glu.kind = spec->glu;
    s->u.glu.up = spec->mlp_in ? -1 : w->b.up;
    s->u.glu.width = spec->layers[i_layer].d_ff;
    plan_add_inputs(w, s, "down_in", down, 1, false, w->b.gate, in_of); /* act(gate) * up takes the place of gate */
    struct plan_part out = { &lw->down, lw->down_bias, spec->post_norms ? w->b.branch : w->b.residual, !spec->post_norms, spec->residual_scale };
    plan_add_linears(w, i_layer, &out, in_of, 1, 0);
    if (spec->layers[i_layer].mlp == MLP_GATED_MOE) plan_add_side_experts(w, i_layer);
}

/* residual = norm(residual + mlp(norm(signal))) */
static void add_signal(struct writer *w)
{
    struct model *m = w->m;
    const struct weight *gate_up[2] = { &m->signal_gate, &m->signal_up }, *down[1] = { &m->signal_down };
    buf_id in_of[2];
    plan_add_step(w, STEP_SIGNAL, -1, -1, w->b.branch);
    plan_add_inputs(w, plan_add_norm(w, -1, w->b.branch, m->signal_norm), "mlp_in", gate_up, 2, false, w->b.lora_in, in_of);
    struct plan_part parts[2] = { { &m->signal_gate, NULL, w->b.gate, false, 0 }, { &m->signal_up, NULL, w->b.up, false, 0 } };
    plan_add_linears(w, -1, parts, in_of, 2, 0);
    struct plan_step *s = plan_add_step(w, STEP_GLU, -1, w->b.gate, -1);
    s->u.glu.kind = m->spec.glu;
    s->u.glu.up = w->b.up;
    s->u.glu.width = (int32_t)m->signal_gate.n;
    plan_add_inputs(w, s, "down_in", down, 1, false, w->b.gate, in_of);
    struct plan_part out = { &m->signal_down, NULL, w->b.residual, true, 0 };
    plan_add_linears(w, -1, &out, in_of, 1, 0);
    plan_add_norm(w, -1, w->b.residual, NULL)->out = w->b.residual;
}

static void add_expect(struct writer *w)
{
    struct plan_step *s = plan_add_step(w, STEP_EXPECT, -1, w->b.logits, -1);
    s->u.expect.table = &w->m->embed;
    s->u.expect.scale = w->m->spec.embed_scale;
}

static void add_head(struct writer *w)
{
    struct model *m = w->m;
    const struct weight *head[1] = { m->spec.tied_head ? &m->embed : &m->head };
    buf_id in_of[1];
    plan_add_step(w, STEP_DRAWS, -1, w->b.residual, w->b.draw_residual);
    struct plan_step *norm = plan_add_norm(w, -1, w->b.draw_residual, m->final_norm);
    norm->u.norm.bias = m->final_norm_bias;
    plan_add_inputs(w, norm, "head_in", head, 1, true, w->b.draw_lora_in, in_of);
    struct plan_part part = { head[0], NULL, w->b.logits, false, m->spec.logit_scale };
    plan_add_linears(w, -1, &part, in_of, 1, m->spec.logit_softcap);
    if (w->canvas) add_expect(w);
    plan_add_step(w, STEP_SAMPLE, -1, w->b.logits, -1);
}

static void add_delta_bufs(struct writer *w)
{
    const struct delta_spec *d = &w->m->spec.delta;
    int64_t value = (int64_t)d->n_head_v * d->dim_v, all = 2 * (int64_t)d->n_head_k * d->dim_k + value;
    w->b.delta_in = plan_add_buf(w, "delta_in", BUF_F32, d->fused ? all + value : all, 0, false);
    w->b.delta_z = d->fused ? -1 : plan_add_buf(w, "delta_z", BUF_F32, value, 0, false);
    w->b.delta_b = plan_add_buf(w, "delta_b", BUF_F32, d->fused ? 2 * (int64_t)d->n_head_v : d->n_head_v, 0, false);
    w->b.delta_a = d->fused ? -1 : plan_add_buf(w, "delta_a", BUF_F32, d->n_head_v, 0, false);
    w->b.delta_out = plan_add_buf(w, "delta_out", BUF_F32, value, 0, false);
}

/* n_q: columns of q with its gates. */
static void add_attention_bufs(struct writer *w, int64_t nq, int64_t nkv, int64_t n_q)
{
    w->b.q = plan_add_buf(w, "q", BUF_F32, n_q > nq ? n_q : nq, 0, false);
    w->b.k = plan_add_buf(w, "k", BUF_F32, nkv, 0, false);
    w->b.v = plan_add_buf(w, "v", BUF_F32, nkv, 0, false);
    w->b.q_rot = plan_add_buf(w, "q_rot", BUF_F32, nq, 0, false);
    w->b.attn = plan_add_buf(w, "attn", BUF_F32, nq, 0, false);
}

static void add_all_bufs(struct writer *w)
{
    const struct model_spec *s = &w->m->spec;
    int64_t nq = 0, nkv = 0, ff = 0, n_expert = 0, top_k = 0, n_in = (int64_t)s->n_layer * s->d_per_layer, n_q = 0, shared = 0;
    bool beside = false, recurs = false, latents = false;
    for (int i = 0; i < s->n_layer; i++) {
        const struct layer_spec *l = &s->layers[i];
        latents = latents || l->attn == ATTN_MLA;
        if (l->attn != ATTN_MLA && (int64_t)l->n_head * l->head_dim > nq) nq = (int64_t)l->n_head * l->head_dim;
        if (l->attn != ATTN_MLA && (int64_t)l->n_head_kv * l->head_dim > nkv) nkv = (int64_t)l->n_head_kv * l->head_dim;
        if (l->mlp != MLP_MOE && l->d_ff > ff) ff = l->d_ff;
        if (l->mlp != MLP_GATED && l->n_expert > n_expert) n_expert = l->n_expert;
        if (l->mlp != MLP_GATED && l->top_k > top_k) top_k = l->top_k;
        beside = beside || l->mlp == MLP_GATED_MOE;
        if (l->attn_gate && 2 * (int64_t)l->n_head * l->head_dim > n_q) n_q = 2 * (int64_t)l->n_head * l->head_dim;
        if (l->d_shared > shared) shared = l->d_shared;
        recurs = recurs || l->attn == ATTN_GATED_DELTA;
    }
    w->b.residual = plan_add_buf(w, "residual", BUF_F32, s->d_model, 0, false);
    if (shared > ff) ff = shared;
    if (latents) plan_add_latent_bufs(w);
    else add_attention_bufs(w, nq, nkv, n_q);
    w->b.branch = s->post_norms ? plan_add_buf(w, "branch", BUF_F32, s->d_model, 0, false) : -1;
    w->b.gate = ff > 0 ? plan_add_buf(w, "gate", BUF_F32, ff, 0, false) : -1;
    w->b.up = ff > 0 && !s->mlp_in ? plan_add_buf(w, "up", BUF_F32, ff, 0, false) : -1;
    w->b.router = n_expert > 0 ? plan_add_buf(w, "router", BUF_F32, n_expert, 0, false) : -1;
    w->b.route = top_k > 0 ? plan_add_buf(w, "route", BUF_F32, 2 * top_k, 0, false) : -1;
    w->b.branch_experts = beside ? plan_add_buf(w, "branch_experts", BUF_F32, s->d_model, 0, false) : -1;
    w->b.layer_in = n_in > 0 ? plan_add_buf(w, "layer_in", BUF_F32, n_in, 0, false) : -1;
    w->b.layer_proj = n_in > 0 ? plan_add_buf(w, "layer_proj", BUF_F32, n_in, 0, false) : -1;
    w->b.input_gate = n_in > 0 ? plan_add_buf(w, "input_gate", BUF_F32, s->d_per_layer, 0, false) : -1;
    w->b.shared = shared > 0 ? plan_add_buf(w, "shared", BUF_F32, s->d_model, 0, false) : -1;
    w->b.shared_gate = shared > 0 ? plan_add_buf(w, "shared_gate", BUF_F32, 1, 0, false) : -1;
    if (recurs) add_delta_bufs(w);
    w->b.draw_residual = plan_add_buf(w, "draw_residual", BUF_F32, s->d_model, 0, true);
    w->b.lora_in = w->p->max_lora_rank > 0 ? plan_add_buf(w, "lora_in", BUF_F32, s->d_model, 0, false) : -1;
    w->b.draw_lora_in = w->p->max_lora_rank > 0 ? plan_add_buf(w, "draw_lora_in", BUF_F32, s->d_model, 0, true) : -1;
    w->b.logits = plan_add_buf(w, "logits", BUF_F32, s->n_vocab, 0, true);
}

static mb_status build(struct model *m, struct plan *p, bool canvas, mb_error *err)
{
    struct writer w = { .m = m, .p = p, .err = err, .canvas = canvas, .b = { .chosen = -1 }, .cap = m->spec.n_layer * STEPS_PER_LAYER + STEPS_OUTSIDE };
    p->tier = m->tier;
    p->canvas = canvas;
    p->n_layer = m->spec.n_layer;
    p->d_model = m->spec.d_model;
    p->n_vocab = m->spec.n_vocab;
    p->n_context = m->spec.n_context;
    p->n_kinds = m->spec.n_kinds;
    p->n_modules = m->n_modules;
    memcpy(p->kinds, m->spec.kinds, sizeof p->kinds);
    p->steps = arena_alloc_array(&m->arena, (size_t)w.cap, sizeof *p->steps);
    p->layer_first = arena_alloc_array(&m->arena, (size_t)m->spec.n_layer + 1, sizeof *p->layer_first);
    if (!p->steps || !p->layer_first) return mb_fail(err, MB_NO_MEMORY, "out of memory for the plan");
    add_all_bufs(&w);
    struct plan_step *e = plan_add_step(&w, STEP_EMBED, -1, -1, w.b.residual);
    e->u.embed.table = &m->embed;
    e->u.embed.scale = m->spec.embed_scale;
    if (m->spec.d_per_layer > 0) add_layer_inputs(&w);
    if (canvas) add_signal(&w);
    for (int i = 0; i < m->spec.n_layer; i++) {
        p->layer_first[i] = p->n_steps;
        if (m->spec.layers[i].attn == ATTN_GATED_DELTA) add_delta(&w, i);
        else if (m->spec.layers[i].attn == ATTN_MLA) plan_add_latent(&w, i);
        else add_attention(&w, i);
        if (m->spec.layers[i].mlp == MLP_MOE) plan_add_moe(&w, i);
        else add_mlp(&w, i);
        if (m->spec.post_norms) add_post_mlp_norm(&w, i);
        if (m->spec.d_per_layer > 0) add_layer_input(&w, i);
    }
    p->layer_first[m->spec.n_layer] = p->n_steps;
    p->boundary[p->n_boundary++] = w.b.residual;
    if (m->spec.d_per_layer > 0) p->boundary[p->n_boundary++] = w.b.layer_in;
    if (w.b.chosen >= 0) p->boundary[p->n_boundary++] = w.b.chosen;
    add_head(&w);
    if (w.failed) return err && err->code != MB_OK ? err->code : mb_fail(err, MB_INTERNAL, "the plan outgrew its limits");
    return MB_OK;
}

mb_status plan_build_bare(struct model *m, struct plan *out, mb_error *err)
{
    memset(out, 0, sizeof *out);
    out->m_max = m->plan.m_max;
    out->n_draw_max = m->plan.n_draw_max;
    return build(m, out, false, err);
}

mb_status plan_build(struct model *m, mb_error *err)
{
    struct plan *c = &m->canvas_plan;
    MB_TRY(build(m, &m->plan, false, err));
    if (m->spec.canvas.n == 0) return MB_OK;
    c->m_max = m->spec.canvas.n;
    c->n_draw_max = m->plan.n_draw_max < c->m_max ? m->plan.n_draw_max : c->m_max;
    c->max_lora_rank = m->plan.max_lora_rank;
    return build(m, c, true, err);
}
