/* arch_gemma.c: readers of Gemma 1, 2 and 3 (text). Their own: norms with weight + 1, the embedding scaled by sqrt(d); from
 * Gemma 2 on norms after each block too and windows on some layers; Gemma 2 caps scores and logits, Gemma 3 has norms on q
 * and k and a rope base for its windows.
 * Oracle: mlx_lm.models.{gemma,gemma2,gemma3,gemma3_text}; the windows of Gemma 2 and the tanh form of GELU in Gemma 1 as
 * transformers (mlx_lm leaves the windows out and takes the erf form).
 * The embedding scale is rounded to bfloat16, the type of these checkpoints (docs/numerics.md); the residual stays in
 * float32, which its values need (B-029).
 */
#include <string.h>

#include "model/arch_int.h"

/* What all three share. */
static mb_status read_gemma_like(struct model_spec *s, const json_t *c, mb_error *err)
{
    MB_TRY(config_read_common(s, c, err));
    s->glu = GLU_GELU_TANH;
    s->norm_plus_one = true;
    s->embed_scale = bf16_to_f32(f32_to_bf16(__builtin_sqrtf((float)s->d_model)));
    return config_bool_or(c, "tie_word_embeddings", true, &s->tied_head, err);
}

static void use_post_norms(struct model_spec *s)
{
    static const struct norm_names norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                             "post_feedforward_layernorm" };
    s->post_norms = true;
    s->norms = &norms;
}

/* One rope for every layer. */
static mb_status read_one_rope(struct model_spec *s, const json_t *c, mb_error *err)
{
    struct rope_params rope;
    MB_TRY(rope_params_read(s, c, "rope_theta", 10000.0, s->layers[0].head_dim, &rope, err));
    int32_t i_rope = model_spec_add_rope(s, &rope);
    for (int i = 0; i < s->n_layer; i++) s->layers[i].i_rope = i_rope;
    return MB_OK;
}

mb_status arch_read_gemma(struct model_spec *s, const json_t *c, mb_error *err)
{
    MB_TRY(read_gemma_like(s, c, err));
    return read_one_rope(s, c, err);
}

/* A cap of null or 0 is none. */
static mb_status read_cap(const json_t *c, const char *key, double dflt, float *out, mb_error *err)
{
    const json_t *v = json_object_get(c, key);
    double cap = dflt;
    if (v && json_is_null(v)) cap = 0;
    else MB_TRY(config_float_or(c, key, dflt, &cap, err));
    if (!(cap >= 0)) return mb_fail_at(err, MB_BAD_FORMAT, key, "config.json: %s must be at least 0", key);
    *out = (float)cap;
    return MB_OK;
}

mb_status arch_read_gemma2(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t window = 0;
    double scalar = 0;
    float cap = 0;
    MB_TRY(read_gemma_like(s, c, err));
    use_post_norms(s);
    MB_TRY(read_one_rope(s, c, err));
    MB_TRY(config_int_or(c, "sliding_window", 4096, 1, 1 << 26, &window, err));
    MB_TRY(config_float_or(c, "query_pre_attn_scalar", 144, &scalar, err));
    MB_TRY(read_cap(c, "attn_logit_softcapping", 50, &cap, err));
    MB_TRY(read_cap(c, "final_logit_softcapping", 30, &s->logit_softcap, err));
    if (!(scalar > 0)) return mb_fail(err, MB_BAD_FORMAT, "config.json: query_pre_attn_scalar must be above 0");
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        l->attn = i % 2 == 0 ? ATTN_SLIDING : ATTN_FULL;
        l->window = i % 2 == 0 ? window : 0;
        l->attn_scale = (float)(1.0 / __builtin_sqrt(scalar));
        l->attn_softcap = cap;
    }
    return config_read_layer_types(s, c, window, err);
}

/* Ropes of full layers and of those with windows; newer configs give both by name. */
static mb_status read_ropes(struct model_spec *s, const json_t *c, struct rope_params *global, struct rope_params *local, mb_error *err)
{
    double local_theta = 0;
    bool by_name = false;
    json_t *full = config_rope_of(c, "full_attention", NULL), *sliding = config_rope_of(c, "sliding_attention", &by_name);
    mb_status st = full && sliding ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory");
    if (st == MB_OK) st = rope_params_read(s, full, "rope_theta", 1000000.0, s->layers[0].head_dim, global, err);
    if (st == MB_OK && by_name) st = rope_params_read(s, sliding, "rope_theta", 10000.0, s->layers[0].head_dim, local, err);
    json_decref(full);
    json_decref(sliding);
    if (st != MB_OK || by_name) return st;
    MB_TRY(config_float_or(c, "rope_local_base_freq", 10000.0, &local_theta, err));
    memset(local, 0, sizeof *local);
    local->kind = ROPE_DEFAULT;
    local->theta = local_theta;
    local->n_rot = global->n_rot;
    return MB_OK;
}

static mb_status read_text_config(struct model_spec *s, const json_t *c, const json_t *root, mb_error *err)
{
    struct rope_params global, local;
    bool two_way = false;
    int32_t pattern = 0, window = 0;
    double scalar = 0;
    MB_TRY(read_gemma_like(s, c, err));
    use_post_norms(s);
    MB_TRY(config_bool_or(c, "use_bidirectional_attention", false, &two_way, err));
    if (two_way)
        return mb_fail_at(err, MB_UNSUPPORTED, "use_bidirectional_attention",
                          "config.json: use_bidirectional_attention is set (EmbeddingGemma): text that sees what follows is not in this version");
    if (root != c) MB_TRY(config_bool_or(root, "tie_word_embeddings", s->tied_head, &s->tied_head, err));
    MB_TRY(config_int_or(c, "sliding_window", 512, 1, 1 << 26, &window, err));
    MB_TRY(config_int_or(c, "sliding_window_pattern", 6, 1, 1024, &pattern, err));
    MB_TRY(config_float_or(c, "query_pre_attn_scalar", 256, &scalar, err));
    MB_TRY(read_ropes(s, c, &global, &local, err));
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
