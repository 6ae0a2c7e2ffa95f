/* arch_qwen3_5.c: readers of the hybrid Qwen families: Qwen3-Next, Qwen3.5 dense and with experts. Most layers are gated delta
 * nets (docs/numerics.md, section 4a); the others attend to everything, with a gate on the output of each head and rotary
 * positions on a quarter of it. Experts come with one more that every token goes through.
 * Qwen3.5 keeps its text model under "text_config". What a checkpoint has besides (a head that predicts several tokens, a
 * vision tower) is left alone.
 * Oracle: mlx_lm.models.{qwen3_next,qwen3_5,qwen3_5_moe}; the list of layer types as transformers.
 */
#include <string.h>

#include "model/arch_int.h"

#define STATE_FLOATS_MAX ((int64_t)1 << 28) /* of one layer */

static mb_status read_delta(struct model_spec *s, const json_t *c, bool fused, mb_error *err)
{
    struct delta_spec *d = &s->delta;
    d->fused = fused;
    MB_TRY(config_int(c, "linear_num_key_heads", 1, 4096, &d->n_head_k, err));
    MB_TRY(config_int(c, "linear_num_value_heads", 1, 4096, &d->n_head_v, err));
    MB_TRY(config_int(c, "linear_key_head_dim", 1, 1024, &d->dim_k, err));
    MB_TRY(config_int(c, "linear_value_head_dim", 1, 1024, &d->dim_v, err));
    MB_TRY(config_int_or(c, "linear_conv_kernel_dim", 4, 2, PLAN_DELTA_TAPS, &d->n_conv, err));
    if (d->n_head_v % d->n_head_k != 0)
        return mb_fail(err, MB_BAD_FORMAT, "config.json: linear_num_value_heads %d is no multiple of linear_num_key_heads %d",
                       d->n_head_v, d->n_head_k);
    if ((int64_t)d->n_head_v * d->dim_k * d->dim_v > STATE_FLOATS_MAX)
        return mb_fail(err, MB_UNSUPPORTED, "config.json: a recurrent state of %d x %d x %d floats a layer is too large",
                       d->n_head_v, d->dim_k, d->dim_v);
    return MB_OK;
}

/* Which layers recur: the list, or all but every full_attention_interval-th. */
static mb_status read_layers(struct model_spec *s, const json_t *c, const json_t *types, mb_error *err)
{
    int32_t interval = 4;
    MB_TRY(config_int_or(c, "full_attention_interval", 4, 1, 1024, &interval, err));
    if (json_is_null(types)) types = NULL;
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)s->n_layer))
        return mb_fail_at(err, MB_BAD_FORMAT, "layer_types", "config.json: layer_types must list %d layers", s->n_layer);
    for (int i = 0; i < s->n_layer; i++) {
        const char *t = types ? json_string_value(json_array_get(types, (size_t)i)) : NULL;
        bool full = types ? t && strcmp(t, "full_attention") == 0 : (i + 1) % interval == 0;
        if (types && !full && (!t || strcmp(t, "linear_attention") != 0))
            return mb_fail_at(err, MB_UNSUPPORTED, "layer_types", "config.json: layer_types[%d] is %s; this family has "
                              "linear_attention and full_attention", i, t ? t : "no string");
        s->layers[i].attn = full ? ATTN_FULL : ATTN_GATED_DELTA;
        s->layers[i].qk_norm = full;
    }
    return MB_OK;
}

static mb_status read_shared_expert(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t width = 0;
    MB_TRY(config_int_or(c, "shared_expert_intermediate_size", 0, 0, 1 << 20, &width, err));
    for (int i = 0; i < s->n_layer; i++)
        if (s->layers[i].mlp == MLP_MOE) s->layers[i].d_shared = width;
    return MB_OK;
}

/* What both families read alike; the rope parameters are in c by now. */
static mb_status read_hybrid(struct model_spec *s, const json_t *c, const json_t *types, bool fused, bool normalise, mb_error *err)
{
    static const struct moe_names names = { "mlp.gate", "mlp.switch_mlp", "mlp.experts.%d", "gate_proj", "up_proj", "down_proj",
                                            "mlp.experts", "mlp.shared_expert", "mlp.shared_expert_gate" };
    bool gate = true;
    int32_t n_expert = 0;
    MB_TRY(arch_read_llama_like(s, c, 100000.0, false, err));
    MB_TRY(config_bool_or(c, "attention_bias", false, &s->attn_bias_qkv, err));
    s->attn_bias_o = s->attn_bias_qkv;
    MB_TRY(read_delta(s, c, fused, err));
    MB_TRY(read_layers(s, c, types, err));
    MB_TRY(config_bool_or(c, "attn_output_gate", true, &gate, err));
    for (int i = 0; i < s->n_layer; i++) s->layers[i].attn_gate = gate && s->layers[i].attn == ATTN_FULL;
    MB_TRY(config_int_or(c, "num_experts", 0, 0, 4096, &n_expert, err));
    if (n_expert == 0) return MB_OK;
    MB_TRY(arch_read_qwen_experts(s, c, &names, normalise, err));
    return read_shared_expert(s, c, err);
}

static bool set_default(json_t *c, const char *key, json_t *value)
{
    if (!value) return false;
    if (!json_object_get(c, key)) return json_object_set_new(c, key, value) == 0;
    json_decref(value);
    return true;
}

/* A copy with the family's defaults, and without layer_types, which read_layers alone understands. NULL: no memory. */
static json_t *with_defaults(const json_t *text, const json_t *root)
{
    json_t *c = json_copy((json_t *)text), *tied = json_object_get(root, "tie_word_embeddings");
    bool ok = c && set_default(c, "partial_rotary_factor", json_real(0.25)) &&
              set_default(c, "intermediate_size", json_integer(14336)) &&
              (!tied || set_default(c, "tie_word_embeddings", json_incref(tied)));
    if (ok) json_object_del(c, "layer_types");
    if (ok) return c;
    json_decref(c);
    return NULL;
}

static mb_status read_as(struct model_spec *s, const json_t *config, bool fused, bool normalise, mb_error *err)
{
    const json_t *text = json_object_get(config, "text_config");
    if (!json_is_object(text)) text = config;
    json_t *c = with_defaults(text, config);
    if (!c) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    mb_status st = read_hybrid(s, c, json_object_get(text, "layer_types"), fused, normalise, err);
    json_decref(c);
    return st;
}

mb_status arch_read_qwen3_next(struct model_spec *s, const json_t *config, mb_error *err)
{
    return read_as(s, config, true, false, err);
}

mb_status arch_read_qwen3_5(struct model_spec *s, const json_t *config, mb_error *err)
{
    return read_as(s, config, false, true, err);
}
