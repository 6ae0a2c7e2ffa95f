/* bind_vectors.c: norms, biases and sinks of a checkpoint as float32, with what the family folds into them. */
#include <stdio.h>
#include <string.h>

#include "format/quantise.h"
#include "model/model_int.h"

static mb_status check_vector(const struct tensor_view *t, int64_t n, mb_error *err)
{
    if (t->n_dim != 1 || t->shape[0] != n || !dtype_get(t->dtype)->is_float)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found %d dims of %lld elements (%s), wanted [%lld] floats", t->name,
                       t->n_dim, (long long)(t->n_dim ? t->shape[0] : 1), dtype_get(t->dtype)->name, (long long)n);
    return MB_OK;
}

/* n floats from element `first` on, `step` apart, as float32. */
static mb_status read_floats(const struct tensor_view *t, int64_t first, int64_t step, int64_t n, float *v, mb_error *err)
{
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s, wanted F32, F16 or BF16", t->name, dtype_get(t->dtype)->name);
    for (int64_t i = 0; i < n; i++) v[i] = dtype_float_at(t->data, t->dtype, first + i * step);
    return MB_OK;
}

/* A vector as float32, 64-byte aligned by the arena's rounding; plus_one folds Gemma's weight + 1. A hybrid checkpoint as published
 * has norms of weight - 1 too, whose sums its MLX layout holds in the type of the file: rounded here, both give the same bits. */
static mb_status load_vector_of(struct model *m, const struct checkpoint *c, const char *prefix, const char *path, int64_t n,
                                bool plus_one, const float **out, mb_error *err)
{
    *out = NULL;
    const struct tensor_view *t = checkpoint_findf(c, "%s%s", prefix, path);
    if (!t) return mb_fail(err, MB_NOT_FOUND, "tensor %s%s is missing from the checkpoint", prefix, path);
    MB_TRY(check_vector(t, n, err));
    float *v = arena_alloc_array(&m->arena, (size_t)n, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    MB_TRY(read_floats(t, 0, 1, n, v, err));
    for (int64_t i = 0; plus_one && i < n; i++) v[i] += 1.0f;
    if (plus_one && m->spec.delta.n_conv > 0) floats_round(v, n, t->dtype);
    *out = v;
    return MB_OK;
}

static mb_status load_vector(struct model *m, const struct checkpoint *c, const char *path, int64_t n, bool plus_one,
                             const float **out, mb_error *err)
{
    return load_vector_of(m, c, m->spec.prefix, path, n, plus_one, out, err);
}

mb_status bind_vector(struct model *m, const struct checkpoint *c, const char *path, int64_t n, const float **out, mb_error *err)
{
    return load_vector(m, c, path, n, false, out, err);
}

/* Biases of all experts, [n_expert][n], of one matrix: MLX's own tensor, or every n_turns-th of the published one. */
static mb_status load_expert_bias(struct model *m, const struct checkpoint *c, int i, const char *name, const char *published,
                                  int i_turn, int n_turns, int64_t n, const float **out, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    int64_t n_expert = s->layers[i].n_expert;
    const struct tensor_view *t = checkpoint_findf(c, "%slayers.%d.%s.%s.bias", s->prefix, i, s->moe->stacked, name);
    if (t) i_turn = 0, n_turns = 1;
    else if (s->moe_blocks) t = checkpoint_findf(c, "%slayers.%d.%s.%s_bias", s->prefix, i, s->moe->stacked, published);
    if (!t)
        return mb_fail(err, MB_NOT_FOUND, "tensor %slayers.%d.%s.%s.bias is missing from the checkpoint", s->prefix, i,
                       s->moe->stacked, name);
    if (t->n_dim != 2 || t->shape[0] != n_expert || t->shape[1] != n * n_turns)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found %d dims, the last %lld; wanted [%lld, %lld]", t->name, t->n_dim,
                       (long long)(t->n_dim > 0 ? t->shape[t->n_dim - 1] : 0), (long long)n_expert, (long long)(n * n_turns));
    float *v = arena_alloc_array(&m->arena, (size_t)(n_expert * n), sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    *out = v;
    return read_floats(t, i_turn, n_turns, n_expert * n, v, err);
}

/* What counts for the choice of experts alone; and what gpt-oss adds: biases of router and experts, sinks (times log2(e), as the scores of attention are). */
static mb_status load_moe_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    struct layer_weights *w = &m->layers[i];
    char path[128];
    if (l->mlp == MLP_MOE && s->route == ROUTE_SIGMOID) {
        snprintf(path, sizeof path, "layers.%d.%s.e_score_correction_bias", i, s->moe->router);
        MB_TRY(load_vector(m, c, path, l->n_expert, false, &w->route_bias, err));
    }
    if (l->mlp != MLP_MOE || !s->moe_bias) return MB_OK;
    snprintf(path, sizeof path, "layers.%d.%s.bias", i, s->moe->router);
    MB_TRY(load_vector(m, c, path, l->n_expert, false, &w->router_bias, err));
    MB_TRY(load_expert_bias(m, c, i, "gate_proj", "gate_up_proj", 0, 2, l->d_ff, &w->gate_bias, err));
    MB_TRY(load_expert_bias(m, c, i, "up_proj", "gate_up_proj", 1, 2, l->d_ff, &w->up_bias, err));
    return load_expert_bias(m, c, i, "down_proj", "down_proj", 0, 1, s->d_model, &w->down_bias, err);
}

static mb_status load_sinks(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct layer_spec *l = &m->spec.layers[i];
    const float *raw;
    char path[128];
    if (!m->spec.attn_sinks) return MB_OK;
    snprintf(path, sizeof path, "layers.%d.self_attn.sinks", i);
    MB_TRY(load_vector(m, c, path, l->n_head, false, &raw, err));
    float *v = arena_alloc_array(&m->arena, (size_t)l->n_head, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int h = 0; h < l->n_head; h++) v[h] = raw[h] * LOG2_E;
    m->layers[i].sinks = v;
    return MB_OK;
}

static mb_status load_scalar(struct model *m, const struct checkpoint *c, const char *prefix, const char *path, const float **out,
                             mb_error *err)
{
    MB_TRY(load_vector_of(m, c, prefix, path, 1, false, out, err));
    if (**out == 0 || !__builtin_isfinite(**out))
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s%s is %g: a layer that gives nothing", prefix, path, (double)**out);
    return MB_OK;
}

/* What Gemma 4 adds without ".weight": the layer's scalar, each expert's own weight, and the router's norm, which holds
 * scale / sqrt(d), one product each. */
static mb_status load_bare_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    struct layer_weights *w = &m->layers[i];
    float root = (float)(1.0 / __builtin_sqrt((double)s->d_model));
    const float *scale;
    char path[128];
    snprintf(path, sizeof path, "layers.%d.layer_scalar", i);
    if (s->layer_scalar) MB_TRY(load_scalar(m, c, s->canvas.n > 0 ? s->encoder : s->prefix, path, &w->scalar, err));
    if (s->canvas.n > 0) MB_TRY(load_scalar(m, c, s->prefix, path, &w->canvas_scalar, err));
    if (l->mlp != MLP_GATED_MOE) return MB_OK;
    snprintf(path, sizeof path, "layers.%d.%s", i, s->moe_side->expert_scale);
    MB_TRY(load_vector(m, c, path, l->n_expert, false, &w->expert_scale, err));
    snprintf(path, sizeof path, "layers.%d.%s", i, s->moe_side->router_norm);
    MB_TRY(load_vector(m, c, path, s->d_model, false, &scale, err));
    float *v = arena_alloc_array(&m->arena, (size_t)s->d_model, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int32_t j = 0; j < s->d_model; j++) v[j] = scale[j] * root;
    w->router_norm = v;
    return MB_OK;
}

static mb_status load_layer(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    struct layer_weights *w = &m->layers[i];
    int64_t nq = (int64_t)l->n_head * l->head_dim, nkv = (int64_t)l->n_head_kv * l->head_dim;
    bool one = s->norm_plus_one, own_kv = l->attn != ATTN_SHARED_KV, side = l->mlp == MLP_GATED_MOE;
    bool attends = l->attn != ATTN_GATED_DELTA;
    const struct moe_side_names *names = s->moe_side ? s->moe_side : &(const struct moe_side_names){ 0 };
    char in_bias[64], out_bias[64], attn_bias[64], mlp_bias[64];
    snprintf(in_bias, sizeof in_bias, "%s.bias", s->mlp_in ? s->mlp_in : "mlp.c_fc");
    snprintf(out_bias, sizeof out_bias, "%s.bias", s->mlp_out ? s->mlp_out : "mlp.c_proj");
    snprintf(attn_bias, sizeof attn_bias, "%s.bias", s->norms->attn);
    snprintf(mlp_bias, sizeof mlp_bias, "%s.bias", s->norms->mlp);
    const struct { const char *name; int64_t n; bool plus_one, wanted; const float **dst; } part[] = {
        { s->norms->attn, s->d_model, one, !s->no_pre_norms, &w->attn_norm },
        { s->norms->mlp, s->d_model, one, !s->no_pre_norms, &w->mlp_norm },
        { s->norms->post_attn, s->d_model, one, s->post_norms, &w->post_attn_norm },
        { s->norms->post_mlp, s->d_model, one, s->post_norms, &w->post_mlp_norm },
        { "self_attn.q_norm", l->qk_norm_whole ? nq : l->head_dim, one, l->qk_norm || l->qk_norm_whole, &w->q_norm },
        { "self_attn.k_norm", l->qk_norm_whole ? nkv : l->head_dim, one, own_kv && (l->qk_norm || l->qk_norm_whole), &w->k_norm },
        { names->pre_experts, s->d_model, one, side, &w->pre_experts_norm },
        { names->post_dense, s->d_model, one, side, &w->post_dense_norm },
        { names->post_experts, s->d_model, one, side, &w->post_experts_norm },
        { "post_per_layer_input_norm", s->d_model, one, s->d_per_layer > 0, &w->post_input_norm },
        { "self_attn.q_proj.bias", l->attn_gate ? 2 * nq : nq, false, attends && s->attn_bias_qkv, &w->q_bias },
        { "self_attn.k_proj.bias", nkv, false, attends && s->attn_bias_qkv, &w->k_bias },
        { "self_attn.v_proj.bias", nkv, false, attends && s->attn_bias_qkv, &w->v_bias },
        { "self_attn.o_proj.bias", s->d_model, false, attends && s->attn_bias_o, &w->o_bias },
        { "mlp.gate_proj.bias", l->d_ff, false, s->mlp_bias && !s->mlp_in, &w->gate_bias },
        { "mlp.up_proj.bias", l->d_ff, false, s->mlp_bias && !s->mlp_in, &w->up_bias },
        { "mlp.down_proj.bias", s->d_model, false, s->mlp_bias && !s->mlp_in, &w->down_bias },
        { in_bias, l->d_ff, false, s->mlp_bias && s->mlp_in, &w->gate_bias },
        { out_bias, s->d_model, false, s->mlp_bias && s->mlp_in, &w->down_bias },
        { attn_bias, s->d_model, false, s->layer_norm, &w->attn_norm_bias },
        { mlp_bias, s->d_model, false, s->layer_norm, &w->mlp_norm_bias },
    };
    char path[128];
    for (size_t p = 0; p < sizeof part / sizeof part[0]; p++) {
        bool is_bias = part[p].name && strstr(part[p].name, ".bias");
        snprintf(path, sizeof path, "layers.%d.%s%s", i, part[p].name ? part[p].name : "", is_bias ? "" : ".weight");
        if (part[p].wanted)
            MB_TRY(load_vector(m, c, path, part[p].n, part[p].plus_one, part[p].dst, err));
        else if (is_bias && checkpoint_findf(c, "%s%s", s->prefix, path))
            return mb_fail(err, MB_BAD_FORMAT, "tensor %s%s is in the checkpoint, but config.json says there is no such bias",
                           s->prefix, path);
    }
    if (!attends) MB_TRY(bind_delta_vectors(m, c, i, err));
    if (l->attn == ATTN_MLA) MB_TRY(bind_latent_vectors(m, c, i, err));
    MB_TRY(load_sinks(m, c, i, err));
    MB_TRY(load_bare_vectors(m, c, i, err));
    return load_moe_vectors(m, c, i, err);
}

mb_status bind_vectors(struct model *m, const struct checkpoint *c, mb_error *err)
{
    MB_TRY(bind_delta_layout(m, c, err));
    for (int i = 0; i < m->spec.n_layer; i++) MB_TRY(load_layer(m, c, i, err));
    if (m->spec.d_per_layer > 0)
        MB_TRY(load_vector(m, c, "per_layer_projection_norm.weight", m->spec.d_per_layer, m->spec.norm_plus_one,
                           &m->layer_proj_norm, err));
    if (m->spec.canvas.n > 0)
        MB_TRY(load_vector(m, c, "self_conditioning.pre_norm.weight", m->spec.d_model, false, &m->signal_norm, err));
    if (m->spec.layer_norm) MB_TRY(load_vector(m, c, "norm.bias", m->spec.d_model, false, &m->final_norm_bias, err));
    return load_vector(m, c, "norm.weight", m->spec.d_model, m->spec.norm_plus_one, &m->final_norm, err);
}
