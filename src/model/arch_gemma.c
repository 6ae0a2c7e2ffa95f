/* arch_gemma.c: reader of Gemma 3 (text). Its own: norms with weight + 1 before and after each block, norms on q and k,
 * windows on most layers with a rope base of their own, the embedding scaled by sqrt(d).
 * Oracle: mlx_lm.models.{gemma3,gemma3_text}. The embedding scale is rounded to bfloat16 as there (notes in
 * docs/numerics.md); the residual stays in float32, which its values need (B-029).
 */
#include <string.h>

#include "model/arch_int.h"

static mb_status read_text_config(struct model_spec *s, const json_t *c, const json_t *root, mb_error *err)
{
    struct rope_params global, local;
    int32_t pattern = 0, window = 0;
    double scalar = 0, local_theta = 0;
    MB_TRY(config_read_common(s, c, err));
    s->glu = GLU_GELU_TANH;
    s->norm_plus_one = true;
    s->post_norms = true;
    s->embed_scale = bf16_to_f32(f32_to_bf16(__builtin_sqrtf((float)s->d_model)));
    MB_TRY(config_bool_or(c, "tie_word_embeddings", true, &s->tied_head, err));
    if (root != c) MB_TRY(config_bool_or(root, "tie_word_embeddings", s->tied_head, &s->tied_head, err));
    MB_TRY(config_int_or(c, "sliding_window", 512, 1, 1 << 26, &window, err));
    MB_TRY(config_int_or(c, "sliding_window_pattern", 6, 1, 1024, &pattern, err));
    MB_TRY(config_float_or(c, "query_pre_attn_scalar", 256, &scalar, err));
    MB_TRY(config_float_or(c, "rope_local_base_freq", 10000.0, &local_theta, err));
    MB_TRY(rope_params_read(s, c, "rope_theta", 1000000.0, s->layers[0].head_dim, &global, err));
    memset(&local, 0, sizeof local);
    local.kind = ROPE_DEFAULT;
    local.theta = local_theta;
    local.n_rot = global.n_rot;
    if (!(scalar > 0)) return mb_fail(err, MB_BAD_FORMAT, "config.json: query_pre_attn_scalar must be above 0");
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        bool sliding = (i + 1) % pattern != 0;
        l->attn = sliding ? ATTN_SLIDING : ATTN_FULL;
        l->window = sliding ? window : 0;
        l->qk_norm = true;
        l->attn_scale = (float)(1.0 / __builtin_sqrt(scalar));
    }
    if (!json_object_get(c, "sliding_window_pattern")) MB_TRY(config_read_layer_types(s, c, window, err));
    for (int i = 0; i < s->n_layer; i++)
        s->layers[i].i_rope = model_spec_add_rope(s, s->layers[i].attn == ATTN_SLIDING ? &local : &global);
    return MB_OK;
}

/* A multimodal gemma3 keeps its text model under "text_config", with defaults left out (mlx_lm: 8 heads, 4 KV heads).
 * Only the text model is used here; image parts are refused by the server. */
mb_status arch_read_gemma3(struct model_spec *s, const json_t *config, mb_error *err)
{
    const json_t *text = json_object_get(config, "text_config");
    if (!json_is_object(text)) return read_text_config(s, config, config, err);
    json_t *c = json_copy((json_t *)text);
    if (!c) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    static const struct { const char *key; int value; } dflt[] = {
        { "hidden_size", 1152 }, { "num_hidden_layers", 26 }, { "intermediate_size", 6912 },
        { "num_attention_heads", 8 }, { "num_key_value_heads", 4 }, { "head_dim", 256 }, { "vocab_size", 262208 },
        { "max_position_embeddings", 32768 },
    };
    const json_t *vocab = json_object_get(config, "vocab_size");
    if (vocab && !json_is_null(vocab)) json_object_set(c, "vocab_size", (json_t *)vocab);
    for (size_t i = 0; i < sizeof dflt / sizeof dflt[0]; i++)
        if (!json_object_get(c, dflt[i].key)) json_object_set_new(c, dflt[i].key, json_integer(dflt[i].value));
    mb_status st = read_text_config(s, c, config, err);
    json_decref(c);
    return st;
}
