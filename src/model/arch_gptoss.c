/* arch_gptoss.c: reader of gpt-oss. Its own: a sink in every head's softmax, windows on every other layer, biases on every
 * linear but the head, experts with the clamped swiglu, packed as mxfp4.
 * Oracle: mlx_lm.models.gpt_oss; yarn with `truncate: false` as transformers (mlx_lm rounds the range whatever it says).
 * KV is float16, whose steps are 8 times finer; the range of keys in real weights has not been measured (docs/fidelity.md).
 */
#include "model/arch_int.h"

/* The constants of the activation are part of ops/mathfn.h. */
static mb_status check_activation(const json_t *c, mb_error *err)
{
    double limit = 7, alpha = 1.702;
    MB_TRY(config_float_or(c, "swiglu_limit", 7, &limit, err));
    MB_TRY(config_float_or(c, "swiglu_alpha", 1.702, &alpha, err));
    if (limit != 7 || alpha != 1.702)
        return mb_fail_at(err, MB_UNSUPPORTED, "swiglu_limit",
                          "config.json: swiglu_limit %g and swiglu_alpha %g; this version has 7 and 1.702, as published", limit,
                          alpha);
    return MB_OK;
}

mb_status arch_read_gpt_oss(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct moe_names names = { "mlp.router", "mlp.experts", "mlp.experts.%d", "gate_proj", "up_proj", "down_proj",
                                            "mlp.experts", NULL, NULL };
    struct rope_params rope;
    int32_t n_expert = 0, top_k = 0, window = 0;
    MB_TRY(config_read_common(s, c, err));
    MB_TRY(check_activation(c, err));
    MB_TRY(config_int_or(c, "sliding_window", 128, 1, 1 << 26, &window, err));
    MB_TRY(config_int_or(c, "num_local_experts", 128, 1, 4096, &n_expert, err));
    MB_TRY(config_int_or(c, "num_experts_per_tok", 4, 1, 256, &top_k, err));
    MB_TRY(config_bool_or(c, "tie_word_embeddings", false, &s->tied_head, err));
    MB_TRY(config_bool_or(c, "attention_bias", true, &s->attn_bias_qkv, err));
    MB_TRY(rope_params_read(s, c, "rope_theta", 150000.0, s->layers[0].head_dim, &rope, err));
    s->attn_bias_o = s->attn_bias_qkv;
    s->attn_sinks = true;
    s->glu = GLU_SWIGLU_CLAMPED;
    s->moe = &names;
    s->moe_bias = s->moe_blocks = true;
    s->route = ROUTE_SOFTMAX_CHOSEN;
    int32_t i_rope = model_spec_add_rope(s, &rope);
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        l->attn = i % 2 == 0 ? ATTN_SLIDING : ATTN_FULL;
        l->window = i % 2 == 0 ? window : 0;
        l->i_rope = i_rope;
        MB_TRY(arch_set_experts(s, i, n_expert, top_k, l->d_ff, err));
    }
    return config_read_layer_types(s, c, window, err);
}
