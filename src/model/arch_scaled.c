/* arch_scaled.c: readers of llama-like families with multipliers (granite, minicpm) or with norms in other places (olmo2,
 * olmo3).
 * Oracle: mlx_lm.models.{granite,minicpm,olmo2,olmo3}; logits of a tied MiniCPM are scaled like those of an untied one, as its
 * own code does (mlx_lm leaves that out).
 */
#include "model/arch_int.h"

/* A multiplier above 0; 1 is none. */
static mb_status read_factor(const json_t *c, const char *key, double dflt, double *out, mb_error *err)
{
    MB_TRY(config_float_or(c, key, dflt, out, err));
    if (!(*out > 0 && *out < 1e6))
        return mb_fail_at(err, MB_BAD_FORMAT, key, "config.json: %s is %g, must be above 0 and below 1000000", key, *out);
    return MB_OK;
}

static float factor_or_none(double v)
{
    return v == 1.0 ? 0.0f : (float)v;
}

mb_status arch_read_granite(struct model_spec *s, const json_t *c, mb_error *err)
{
    double embed, attention, residual, logits;
    MB_TRY(arch_read_llama_like(s, c, 10000.0, true, err));
    MB_TRY(config_bool_or(c, "attention_bias", false, &s->attn_bias_qkv, err));
    s->attn_bias_o = s->attn_bias_qkv;
    MB_TRY(config_bool_or(c, "mlp_bias", false, &s->mlp_bias, err));
    MB_TRY(read_factor(c, "embedding_multiplier", 1, &embed, err));
    MB_TRY(read_factor(c, "attention_multiplier", (double)s->layers[0].attn_scale, &attention, err));
    MB_TRY(read_factor(c, "residual_multiplier", 1, &residual, err));
    MB_TRY(read_factor(c, "logits_scaling", 1, &logits, err));
    s->embed_scale = (float)embed;
    s->residual_scale = factor_or_none(residual);
    s->logit_scale = factor_or_none(1.0 / logits);
    for (int i = 0; i < s->n_layer; i++) s->layers[i].attn_scale = (float)attention;
    return MB_OK;
}

mb_status arch_read_minicpm(struct model_spec *s, const json_t *c, mb_error *err)
{
    double embed, depth, base;
    MB_TRY(arch_read_llama_like(s, c, 1000000.0, true, err));
    MB_TRY(read_factor(c, "scale_emb", 1, &embed, err));
    MB_TRY(read_factor(c, "scale_depth", __builtin_sqrt((double)s->n_layer), &depth, err));
    MB_TRY(read_factor(c, "dim_model_base", (double)s->d_model, &base, err));
    s->embed_scale = (float)embed;
    s->residual_scale = factor_or_none(depth / __builtin_sqrt((double)s->n_layer));
    s->logit_scale = factor_or_none(base / (double)s->d_model);
    return MB_OK;
}

mb_status arch_read_olmo2(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct norm_names norms = { .post_attn = "post_attention_layernorm", .post_mlp = "post_feedforward_layernorm" };
    MB_TRY(arch_read_llama_like(s, c, 10000.0, true, err));
    MB_TRY(config_bool_or(c, "attention_bias", false, &s->attn_bias_qkv, err));
    s->attn_bias_o = s->attn_bias_qkv;
    MB_TRY(config_bool_or(c, "mlp_bias", false, &s->mlp_bias, err));
    s->norms = &norms;
    s->no_pre_norms = s->post_norms = true;
    for (int i = 0; i < s->n_layer; i++) s->layers[i].qk_norm_whole = true;
    return MB_OK;
}

/* Windows as layer_types says, or on three of four layers; rope scaling is for the layers without a window. */
static mb_status read_olmo3(struct model_spec *s, const json_t *c, const json_t *local, mb_error *err)
{
    int32_t window = 0;
    double theta = 0;
    const json_t *types = json_object_get(c, "layer_types");
    MB_TRY(arch_read_olmo2(s, c, err));
    MB_TRY(config_bool_or(c, "tie_word_embeddings", false, &s->tied_head, err));
    MB_TRY(config_int(c, "sliding_window", 1, 1 << 26, &window, err));
    for (int i = 0; (!types || json_is_null(types)) && i < s->n_layer; i++)
        if ((i + 1) % 4 != 0) {
            s->layers[i].attn = ATTN_SLIDING;
            s->layers[i].window = window;
        }
    MB_TRY(config_float_or(local, "rope_theta", s->ropes[0].theta, &theta, err));
    struct rope_params plain = { .kind = ROPE_DEFAULT, .theta = theta, .n_rot = s->ropes[0].n_rot };
    if (!(theta > 1)) return mb_fail_at(err, MB_BAD_FORMAT, "rope_theta", "config.json: rope_theta %g is out of range", theta);
    int32_t i_plain = model_spec_add_rope(s, &plain);
    for (int i = 0; i < s->n_layer; i++)
        if (s->layers[i].attn == ATTN_SLIDING) s->layers[i].i_rope = i_plain;
    return MB_OK;
}

mb_status arch_read_olmo3(struct model_spec *s, const json_t *config, mb_error *err)
{
    const json_t *local = json_object_get(json_object_get(config, "rope_parameters"), "sliding_attention");
    json_t *c = config_rope_of(config, "full_attention", NULL);
    if (!c) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    mb_status st = read_olmo3(s, c, json_is_object(local) ? local : NULL, err);
    json_decref(c);
    return st;
}
