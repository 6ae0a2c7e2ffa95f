/* arch_llama.c: readers of the llama-like families: llama, mistral, ministral3, qwen2, qwen3, smollm3, phi3, glm4. They share one shape
 * (gated SiLU, rotary positions) and differ by switches.
 * Oracle: mlx_lm.models.{llama,ministral3,mistral3,qwen2,qwen3,smollm3,phi3,glm4}; windows of phi3 as transformers (mlx_lm leaves them out).
 */
#include <string.h>

#include "model/arch_int.h"

/* mlx_lm computes SiLU whatever the config says; a model trained with another function would come out as noise. */
static mb_status check_silu(const json_t *c, mb_error *err)
{
    const json_t *v = json_object_get(c, "hidden_act");
    const char *act = json_is_text(v) ? json_string_value(v) : "no string";
    if (!v || json_is_null(v) || strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0) return MB_OK;
    return mb_fail_at(err, MB_UNSUPPORTED, "hidden_act", "config.json: hidden_act is %.64s; this version knows silu", act);
}

/* What the four do alike, once the family's defaults are known. */
mb_status arch_read_llama_like(struct model_spec *s, const json_t *c, double theta_default, bool tied_default, mb_error *err)
{
    struct rope_params rope;
    bool interleaved = false;
    int32_t window = 0;
    MB_TRY(config_read_common(s, c, err));
    s->glu = GLU_SILU;
    MB_TRY(check_silu(c, err));
    MB_TRY(config_bool_or(c, "tie_word_embeddings", tied_default, &s->tied_head, err));
    const json_t *tied = json_object_get(c, "tie_word_embeddings");
    s->tied_unsaid = s->tied_head && (!tied || json_is_null(tied));
    MB_TRY(rope_params_read(s, c, "rope_theta", theta_default, s->layers[0].head_dim, &rope, err));
    MB_TRY(config_bool_or(c, "rope_traditional", false, &interleaved, err));
    rope.interleaved = interleaved;
    int32_t i_rope = model_spec_add_rope(s, &rope);
    for (int i = 0; i < s->n_layer; i++) s->layers[i].i_rope = i_rope;
    MB_TRY(config_int_or(c, "sliding_window", 0, 0, 1 << 26, &window, err));
    return config_read_layer_types(s, c, window, err);
}

mb_status arch_window_everywhere(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t window = 0;
    MB_TRY(config_int_or(c, "sliding_window", 0, 0, 1 << 26, &window, err));
    const json_t *types = json_object_get(c, "layer_types");
    if (window == 0 || (types && !json_is_null(types))) return MB_OK;
    for (int i = 0; i < s->n_layer; i++) {
        s->layers[i].attn = ATTN_SLIDING;
        s->layers[i].window = window;
    }
    return MB_OK;
}

mb_status arch_read_llama(struct model_spec *s, const json_t *c, mb_error *err)
{
    bool bias = false;
    MB_TRY(arch_read_llama_like(s, c, 10000.0, true, err));
    MB_TRY(config_bool_or(c, "attention_bias", false, &bias, err));
    s->attn_bias_qkv = s->attn_bias_o = bias;
    MB_TRY(config_bool_or(c, "mlp_bias", false, &s->mlp_bias, err));
    /* Mistral v0.1 sets a window for every layer and lists no layer_types; so may Ministral. */
    bool windows = strcmp(s->model_type, "mistral") == 0 || strcmp(s->model_type, "ministral") == 0;
    return windows ? arch_window_everywhere(s, c, err) : MB_OK;
}

/* Queries are multiplied by 1 + beta * ln(1 + whole original contexts before them). */
static mb_status read_query_scale(struct model_spec *s, const json_t *rope, mb_error *err)
{
    double beta = 0;
    MB_TRY(config_float_or(rope, "llama_4_scaling_beta", 0, &beta, err));
    if (beta == 0) return MB_OK;
    if (!(beta > 0 && beta <= 100))
        return mb_fail_at(err, MB_BAD_FORMAT, "llama_4_scaling_beta", "config.json: llama_4_scaling_beta is %g, must be from 0 to 100", beta);
    s->ropes[0].query_beta = beta;
    return config_int(rope, "original_max_position_embeddings", 1, 1 << 26, &s->ropes[0].query_context, err);
}

static mb_status read_ministral3_text(struct model_spec *s, const json_t *c, mb_error *err)
{
    const json_t *rope = json_object_get(c, "rope_parameters");
    if (!json_is_object(rope))
        return mb_fail_at(err, MB_BAD_FORMAT, "rope_parameters", "config.json: rope_parameters is missing or no object");
    MB_TRY(arch_read_llama_like(s, c, 1000000.0, true, err));
    MB_TRY(read_query_scale(s, rope, err));
    return arch_window_everywhere(s, c, err);
}

/* mistral3 is a text model of one of these types below one that sees; its head is not tied unless that is said. */
static mb_status read_mistral3(struct model_spec *s, const json_t *c, const char *type, mb_error *err)
{
    if (strcmp(type, "ministral3") == 0) return read_ministral3_text(s, c, err);
    if (strcmp(type, "mistral") != 0)
        return mb_fail_at(err, MB_UNSUPPORTED, "model_type", "config.json: text_config.model_type %.64s is not supported; a mistral3 "
                          "model has mistral or ministral3 there", type);
    MB_TRY(arch_read_llama(s, c, err));
    return arch_window_everywhere(s, c, err);
}

mb_status arch_read_ministral3(struct model_spec *s, const json_t *config, mb_error *err)
{
    const json_t *text = json_object_get(config, "text_config"), *tied = json_object_get(config, "tie_word_embeddings");
    if (!json_is_object(text)) return read_ministral3_text(s, config, err);
    const json_t *type = json_object_get(text, "model_type");
    json_t *c = json_copy((json_t *)text), *head = tied ? json_incref((json_t *)tied) : json_false();
    bool ok = c && (json_object_get(c, "tie_word_embeddings") || json_object_set(c, "tie_word_embeddings", head) == 0);
    mb_status st = ok ? read_mistral3(s, c, json_is_text(type) ? json_string_value(type) : "mistral", err)
                      : mb_fail(err, MB_NO_MEMORY, "out of memory");
    json_decref(head);
    json_decref(c);
    return st;
}

/* Qwen's windows are in the config of every model and used by few: layers from max_window_layers on. */
static mb_status read_qwen_windows(struct model_spec *s, const json_t *c, mb_error *err)
{
    bool use = false;
    int32_t first = 0, window = 0;
    const json_t *types = json_object_get(c, "layer_types"), *said = json_object_get(c, "sliding_window");
    MB_TRY(config_bool_or(c, "use_sliding_window", false, &use, err));
    if (!use || (types && !json_is_null(types)) || json_is_null(said)) return MB_OK; /* null: no window, whatever the other key says */
    MB_TRY(config_int_or(c, "sliding_window", 4096, 1, 1 << 26, &window, err));
    MB_TRY(config_int_or(c, "max_window_layers", 28, 0, 1 << 20, &first, err));
    for (int i = first; i < s->n_layer; i++) {
        s->layers[i].attn = ATTN_SLIDING;
        s->layers[i].window = window;
    }
    return MB_OK;
}

mb_status arch_read_qwen2(struct model_spec *s, const json_t *c, mb_error *err)
{
    MB_TRY(arch_read_llama_like(s, c, 1000000.0, true, err));
    s->attn_bias_qkv = true;
    return read_qwen_windows(s, c, err);
}

mb_status arch_read_qwen3(struct model_spec *s, const json_t *c, mb_error *err)
{
    MB_TRY(arch_read_llama_like(s, c, 1000000.0, false, err));
    MB_TRY(config_bool_or(c, "attention_bias", false, &s->attn_bias_qkv, err));
    s->attn_bias_o = s->attn_bias_qkv;
    for (int i = 0; i < s->n_layer; i++) s->layers[i].qk_norm = true;
    return read_qwen_windows(s, c, err);
}

/* no_rope_layers: 1 where a layer has positions; by default every no_rope_layer_interval-th has none. */
mb_status arch_read_smollm3(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t interval = 4;
    const json_t *list = json_object_get(c, "no_rope_layers");
    MB_TRY(arch_read_llama(s, c, err));
    MB_TRY(config_int_or(c, "no_rope_layer_interval", 4, 1, 1024, &interval, err));
    if (list && !json_is_null(list) && json_array_size(list) != (size_t)s->n_layer)
        return mb_fail_at(err, MB_BAD_FORMAT, "no_rope_layers", "config.json: no_rope_layers must list %d layers", s->n_layer);
    for (int i = 0; i < s->n_layer; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (v && !json_is_integer(v))
            return mb_fail_at(err, MB_BAD_FORMAT, "no_rope_layers", "config.json: no_rope_layers[%d] must be 0 or 1", i);
        if (v ? json_integer_value(v) == 0 : (i + 1) % interval == 0) s->layers[i].i_rope = -1;
    }
    return MB_OK;
}

mb_status arch_read_phi3(struct model_spec *s, const json_t *c, mb_error *err)
{
    MB_TRY(arch_read_llama_like(s, c, 10000.0, false, err));
    s->fused_qkv = s->fused_gate_up = true;
    return arch_window_everywhere(s, c, err);
}

mb_status arch_read_glm4(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct norm_names norms = { "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                                             "post_mlp_layernorm" };
    bool interleaved = true;
    MB_TRY(arch_read_llama_like(s, c, 10000.0, false, err));
    MB_TRY(config_bool_or(c, "attention_bias", false, &s->attn_bias_qkv, err));
    MB_TRY(config_bool_or(c, "rope_traditional", true, &interleaved, err));
    for (int i = 0; i < s->n_ropes; i++) s->ropes[i].interleaved = interleaved;
    s->fused_gate_up = true;
    s->post_norms = true;
    s->norms = &norms;
    return MB_OK;
}
