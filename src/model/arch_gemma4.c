/* arch_gemma4.c: reader of Gemma 4 (text): e2b, e4b, 12B, 31B and the mixture 26B-A4B. Over Gemma 3: norms with plain
 * weights, no scale of scores, a norm without weights on values, heads of another width (and another number of KV heads) in
 * layers with full attention, whose keys may serve as values; the last layers read the keys of the last earlier layer of
 * their kind; per-layer inputs; a scalar on each layer's output; experts beside the dense MLP.
 * Oracle: mlx_lm.models.{gemma4_text,gemma4}, whose defaults are used for keys that a config leaves out.
 * Images, audio and attention in both directions are not read here.
 */
#include <string.h>

#include "model/arch_int.h"

/* Keys that must be there for everybody else. */
struct gemma4_default { const char *key; int value; };
static const struct gemma4_default defaults[] = {
    { "hidden_size", 1536 }, { "num_hidden_layers", 35 }, { "intermediate_size", 6144 }, { "num_attention_heads", 8 },
    { "num_key_value_heads", 1 }, { "head_dim", 256 }, { "vocab_size", 262144 }, { "max_position_embeddings", 131072 },
    { NULL, 0 },
};

/* The 12B has no key for what its kind never has. */
static const struct gemma4_default unified[] = {
    { "hidden_size_per_layer_input", 0 }, { "num_kv_shared_layers", 0 }, { "max_position_embeddings", 262144 },
    { "sliding_window", 1024 }, { "sliding_window_pattern", 6 }, { NULL, 0 },
};

/* What another value would silently break. */
static mb_status check_choices(const json_t *c, mb_error *err)
{
    const json_t *act = json_object_get(c, "hidden_activation"), *two_way = json_object_get(c, "use_bidirectional_attention");
    const char *name = json_is_text(act) ? json_string_value(act) : "no string";
    if (act && !json_is_null(act) && strcmp(name, "gelu_pytorch_tanh") != 0)
        return mb_fail_at(err, MB_UNSUPPORTED, "hidden_activation", "config.json: hidden_activation is %.64s; this version knows "
                          "gelu_pytorch_tanh for Gemma 4", name);
    name = json_is_text(two_way) ? json_string_value(two_way) : "";
    if (json_is_true(two_way) || strcmp(name, "all") == 0)
        return mb_fail_at(err, MB_UNSUPPORTED, "use_bidirectional_attention",
                          "config.json: use_bidirectional_attention is set: text that sees what follows is not in this version");
    return MB_OK;
}

/* Which layers have a window. */
static mb_status read_pattern(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t window = 0, pattern = 0;
    MB_TRY(config_int_or(c, "sliding_window", 512, 1, 1 << 26, &window, err));
    MB_TRY(config_int_or(c, "sliding_window_pattern", 5, 1, 1024, &pattern, err));
    for (int i = 0; i < s->n_layer; i++)
        if ((i + 1) % pattern != 0) {
            s->layers[i].attn = ATTN_SLIDING;
            s->layers[i].window = window;
        }
    return config_read_layer_types(s, c, window, err);
}

static mb_status read_heads(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t head_dim = 0, n_head_kv = 0;
    bool v_is_k = false;
    MB_TRY(config_int_or(c, "global_head_dim", json_object_get(c, "global_head_dim") ? 0 : 512, 0, 1024, &head_dim, err));
    MB_TRY(config_int_or(c, "num_global_key_value_heads", s->layers[0].n_head_kv, 1, s->layers[0].n_head, &n_head_kv, err));
    MB_TRY(config_bool_or(c, "attention_k_eq_v", false, &v_is_k, err));
    if (head_dim % 2 != 0 || s->layers[0].n_head % n_head_kv != 0)
        return mb_fail(err, MB_BAD_FORMAT, "config.json: global_head_dim %d must be even, and %d heads a multiple of "
                       "num_global_key_value_heads %d", head_dim, s->layers[0].n_head, n_head_kv);
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        l->attn_scale = 1;
        l->qk_norm = l->v_norm = true;
        if (l->attn != ATTN_FULL) continue;
        if (head_dim > 0) l->head_dim = head_dim;
        l->v_is_k = v_is_k;
        if (v_is_k) l->n_head_kv = n_head_kv;
    }
    return MB_OK;
}

/* Of layer_types `type`: rope_parameters[type], or the family's own. */
static mb_status read_rope(struct model_spec *s, const json_t *c, const char *type, int32_t head_dim, int32_t *i_rope, mb_error *err)
{
    bool full = strcmp(type, "full_attention") == 0, interleaved = false;
    const json_t *all = json_object_get(c, "rope_parameters"), *own = json_object_get(all, type);
    struct rope_params rope;
    if (all && !json_is_null(all) && !json_is_object(all))
        return mb_fail_at(err, MB_BAD_FORMAT, "rope_parameters", "config.json: rope_parameters must be an object");
    json_t *one = json_is_object(all)
        ? json_pack("{s:O}", "rope_parameters", json_is_object(own) ? (json_t *)own : json_null())
        : full ? json_pack("{s:{s:s,s:f,s:f}}", "rope_parameters", "rope_type", "proportional", "rope_theta", 1000000.0,
                           "partial_rotary_factor", 0.25)
               : json_pack("{s:n}", "rope_parameters");
    if (!one) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    mb_status st = rope_params_read(s, one, "rope_theta", 10000.0, head_dim, &rope, err);
    json_decref(one);
    MB_TRY(st);
    MB_TRY(config_bool_or(c, "rope_traditional", false, &interleaved, err));
    rope.interleaved = interleaved;
    if (rope.n_rot != head_dim)
        return mb_fail_at(err, MB_UNSUPPORTED, "rope_parameters", "config.json: rope_parameters.%s turns a part of the head; this "
                          "version knows that for rope_type proportional", type);
    *i_rope = model_spec_add_rope(s, &rope);
    return MB_OK;
}

static mb_status read_ropes(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t i_rope[2] = { -1, -1 };
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        int full = l->attn == ATTN_FULL;
        if (i_rope[full] < 0)
            MB_TRY(read_rope(s, c, full ? "full_attention" : "sliding_attention", l->head_dim, &i_rope[full], err));
        l->i_rope = i_rope[full];
    }
    return MB_OK;
}

/* The last n layers read the pages of the last earlier layer of their kind, and may have an MLP of twice the width. */
static mb_status read_shared(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t n = 0, last[2] = { -1, -1 };
    bool wide = true;
    MB_TRY(config_int_or(c, "num_kv_shared_layers", json_object_get(c, "num_kv_shared_layers") ? 0 : 20, 0, s->n_layer - 1, &n, err));
    MB_TRY(config_bool_or(c, "use_double_wide_mlp", true, &wide, err));
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        int full = l->attn == ATTN_FULL;
        if (i < s->n_layer - n) {
            last[full] = i;
            continue;
        }
        if (last[full] < 0)
            return mb_fail_at(err, MB_BAD_FORMAT, "num_kv_shared_layers", "config.json: num_kv_shared_layers is %d, but no layer before "
                              "layer %d has keys of its kind", n, i);
        l->attn = ATTN_SHARED_KV;
        l->i_kv_donor = (int16_t)last[full];
        if (wide) l->d_ff *= 2;
    }
    return MB_OK;
}

static mb_status read_layer_inputs(struct model_spec *s, const json_t *c, mb_error *err)
{
    const json_t *v = json_object_get(c, "hidden_size_per_layer_input");
    MB_TRY(config_int_or(c, "hidden_size_per_layer_input", v ? 0 : 256, 0, 1 << 16, &s->d_per_layer, err));
    MB_TRY(config_int_or(c, "vocab_size_per_layer_input", 262144, 1, 1 << 24, &s->n_vocab_per_layer, err));
    if ((int64_t)s->d_per_layer * s->n_layer > 1 << 24)
        return mb_fail(err, MB_BAD_FORMAT, "config.json: hidden_size_per_layer_input %d of %d layers is too much", s->d_per_layer,
                       s->n_layer);
    if (s->d_per_layer > 0 && s->n_vocab_per_layer < s->n_vocab)
        return mb_fail_at(err, MB_UNSUPPORTED, "vocab_size_per_layer_input", "config.json: vocab_size_per_layer_input %d is below "
                          "vocab_size %d; ids without a per-layer input are not in this version", s->n_vocab_per_layer, s->n_vocab);
    return MB_OK;
}

static mb_status read_experts(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct moe_names names = { .router = "router.proj", .stacked = "experts.switch_glu", .published = "experts" };
    static const struct moe_side_names side = { "router.scale", "router.per_expert_scale", "pre_feedforward_layernorm_2",
                                                "post_feedforward_layernorm_1", "post_feedforward_layernorm_2" };
    int32_t n_expert = 0, top_k = 0, width = 0;
    bool on = false;
    MB_TRY(config_bool_or(c, "enable_moe_block", false, &on, err));
    if (!on) return MB_OK;
    MB_TRY(config_int(c, "num_experts", 1, 4096, &n_expert, err));
    MB_TRY(config_int(c, "top_k_experts", 1, n_expert < 256 ? n_expert : 256, &top_k, err));
    MB_TRY(config_int(c, "moe_intermediate_size", 1, 1 << 20, &width, err));
    if (width % 16 != 0 || s->d_model % 16 != 0)
        return mb_fail(err, MB_UNSUPPORTED, "config.json: experts of %d by %d; both must be multiples of 16", width, s->d_model);
    s->moe = &names;
    s->moe_side = &side;
    s->route = ROUTE_SOFTMAX_CHOSEN;
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        l->mlp = MLP_GATED_MOE;
        l->n_expert = n_expert;
        l->top_k = top_k;
        l->d_expert = width;
    }
    return MB_OK;
}

static mb_status read_cap(struct model_spec *s, const json_t *c, mb_error *err)
{
    const json_t *v = json_object_get(c, "final_logit_softcapping");
    double cap = 0;
    if (v && json_is_null(v)) return MB_OK;
    MB_TRY(config_float_or(c, "final_logit_softcapping", 30, &cap, err));
    if (!(cap >= 0 && cap <= 1e6))
        return mb_fail_at(err, MB_BAD_FORMAT, "final_logit_softcapping", "config.json: final_logit_softcapping is %g, must be from 0 "
                          "to 1e6", cap);
    s->logit_softcap = (float)cap;
    return MB_OK;
}

static mb_status read_text(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct norm_names norms = { "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                             "post_feedforward_layernorm" };
    MB_TRY(config_read_common(s, c, err));
    MB_TRY(check_choices(c, err));
    s->glu = GLU_GELU_TANH;
    s->post_norms = s->layer_scalar = true;
    s->norms = &norms;
    s->embed_scale = bf16_to_f32(f32_to_bf16(__builtin_sqrtf((float)s->d_model)));
    MB_TRY(config_bool_or(c, "tie_word_embeddings", true, &s->tied_head, err));
    MB_TRY(read_cap(s, c, err));
    MB_TRY(read_pattern(s, c, err));
    MB_TRY(read_heads(s, c, err));
    MB_TRY(read_ropes(s, c, err));
    MB_TRY(read_shared(s, c, err));
    MB_TRY(read_layer_inputs(s, c, err));
    return read_experts(s, c, err);
}

static bool fill_in(json_t *c, const struct gemma4_default *d)
{
    bool ok = true;
    for (; d->key; d++) {
        const json_t *v = json_object_get(c, d->key);
        if (!v || json_is_null(v)) ok = json_object_set_new(c, d->key, json_integer(d->value)) == 0 && ok;
    }
    return ok;
}

/* A multimodal config keeps the text model under "text_config"; vocabulary and tied head may stand outside. */
mb_status arch_read_gemma4(struct model_spec *s, const json_t *config, mb_error *err)
{
    static const char *const outer[] = { "vocab_size", "tie_word_embeddings" };
    const json_t *text = json_object_get(config, "text_config");
    json_t *c = json_copy((json_t *)(json_is_object(text) ? text : config));
    bool ok = c != NULL;
    for (size_t i = 0; ok && i < sizeof outer / sizeof outer[0]; i++) {
        json_t *v = json_object_get(config, outer[i]);
        if (v && !json_is_null(v)) ok = json_object_set(c, outer[i], v) == 0;
    }
    if (ok && strncmp(s->model_type, "gemma4_unified", strlen("gemma4_unified")) == 0) ok = fill_in(c, unified);
    ok = ok && fill_in(c, defaults);
    mb_status st = ok ? read_text(s, c, err) : mb_fail(err, MB_NO_MEMORY, "out of memory");
    json_decref(c);
    return st;
}
