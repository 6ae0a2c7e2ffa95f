/* arch_starcoder.c: reader of StarCoder2. Its own: layer norms, an MLP without a gate, biases on every linear but the head.
 * Oracle: mlx_lm.models.starcoder2, but for the activation, which there is GELU by erf whatever the config says, and the window, which it
 * leaves out: both as transformers.
 */
#include <string.h>

#include "model/arch_int.h"

/* A key that may be absent, and else has the one value that is known. */
static mb_status check_word(const json_t *c, const char *key, const char *want, mb_error *err)
{
    const json_t *v = json_object_get(c, key);
    const char *text = json_is_text(v) ? json_string_value(v) : "no string";
    if (!v || json_is_null(v) || strcmp(text, want) == 0) return MB_OK;
    return mb_fail_at(err, MB_UNSUPPORTED, key, "config.json: %s is %.64s; this version knows %s", key, text, want);
}

static mb_status read_eps(struct model_spec *s, const json_t *c, mb_error *err)
{
    double eps = 0;
    MB_TRY(config_float_or(c, "norm_epsilon", 1e-5, &eps, err));
    if (!(eps >= 0 && eps <= 1))
        return mb_fail_at(err, MB_BAD_FORMAT, "norm_epsilon", "config.json: norm_epsilon is %g, must be from 0 to 1", eps);
    s->norm_eps = (float)eps;
    return MB_OK;
}

mb_status arch_read_starcoder2(struct model_spec *s, const json_t *c, mb_error *err)
{
    struct rope_params rope;
    bool biases = true;
    MB_TRY(config_read_common(s, c, err));
    MB_TRY(read_eps(s, c, err));
    MB_TRY(check_word(c, "hidden_act", "gelu_pytorch_tanh", err));
    MB_TRY(check_word(c, "norm_type", "layer_norm", err));
    MB_TRY(check_word(c, "mlp_type", "default", err));
    MB_TRY(config_bool_or(c, "tie_word_embeddings", true, &s->tied_head, err));
    MB_TRY(config_bool_or(c, "use_bias", true, &biases, err));
    MB_TRY(rope_params_read(s, c, "rope_theta", 10000.0, s->layers[0].head_dim, &rope, err));
    s->attn_bias_qkv = s->attn_bias_o = s->mlp_bias = biases;
    s->glu = GLU_GELU_TANH;
    s->layer_norm = true;
    s->mlp_in = "mlp.c_fc";
    s->mlp_out = "mlp.c_proj";
    int32_t i_rope = model_spec_add_rope(s, &rope);
    for (int i = 0; i < s->n_layer; i++) s->layers[i].i_rope = i_rope;
    return arch_window_everywhere(s, c, err);
}
