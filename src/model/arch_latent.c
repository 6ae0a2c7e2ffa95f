/* arch_latent.c: readers of the families with attention over latents: DeepSeek-V3 and its kin, GLM-4.7-Flash, and those with an
 * indexer beside it, DeepSeek-V3.2 and GLM-5.
 * Oracle: mlx_lm.models.{deepseek_v3,deepseek_v32,glm4_moe_lite,glm_moe_dsa}; where those differ from the published code
 * (transformers), the latter: norms of latents and of the indexer's key have an epsilon of 1e-6 whatever rms_norm_eps is, experts of
 * a group that is left out are never chosen, and a layer of GLM-5 may share the indexer of an earlier one. Layers behind
 * num_hidden_layers (multi-token prediction) are passed over.
 */
#include <string.h>

#include "model/arch_int.h"

/* What a string key must say, if it is there. */
static mb_status must_be(const json_t *c, const char *key, const char *wanted, mb_error *err)
{
    const json_t *v = json_object_get(c, key);
    if (!v || json_is_null(v) || (json_is_string(v) && strcmp(json_string_value(v), wanted) == 0)) return MB_OK;
    return mb_fail_at(err, MB_UNSUPPORTED, key, "config.json: %s is %.64s; this version has %s", key,
                      json_is_string(v) ? json_string_value(v) : "no string", wanted);
}

/* Which layers have experts: the list of the newest configs, or all from first_k_dense_replace on, every moe_layer_freq-th. */
static mb_status has_experts(const struct model_spec *s, const json_t *c, int i, bool *out, mb_error *err)
{
    const json_t *types = json_object_get(c, "mlp_layer_types");
    int32_t first = 0, step = 1;
    MB_TRY(config_int_or(c, "first_k_dense_replace", 0, 0, 1 << 16, &first, err));
    MB_TRY(config_int_or(c, "moe_layer_freq", 1, 1, 1024, &step, err));
    *out = i >= first && i % step == 0;
    if (!types || json_is_null(types)) return MB_OK;
    const char *t = json_array_size(types) == (size_t)s->n_layer ? json_string_value(json_array_get(types, (size_t)i)) : NULL;
    *out = t && strcmp(t, "sparse") == 0;
    if (*out || (t && strcmp(t, "dense") == 0)) return MB_OK;
    return mb_fail_at(err, MB_BAD_FORMAT, "mlp_layer_types", "config.json: mlp_layer_types must list \"dense\" or \"sparse\" for %d layers",
                      s->n_layer);
}

static mb_status read_groups(struct model_spec *s, const json_t *c, int32_t n_expert, int32_t top_k, mb_error *err)
{
    double scale = 1;
    MB_TRY(config_int_or(c, "n_group", 1, 1, 256, &s->route_groups, err));
    MB_TRY(config_int_or(c, "topk_group", 1, 1, 256, &s->route_groups_used, err));
    MB_TRY(config_float_or(c, "routed_scaling_factor", 1, &scale, err));
    MB_TRY(config_bool_or(c, "norm_topk_prob", true, &s->route_normalise, err));
    s->route_scale = (float)scale;
    if (top_k == 1) s->route_normalise = false;
    if (n_expert % s->route_groups != 0 || s->route_groups_used > s->route_groups ||
        n_expert / s->route_groups * s->route_groups_used < top_k)
        return mb_fail_at(err, MB_BAD_FORMAT, "n_group", "config.json: %d experts in %d groups, of which topk_group %d are used for %d "
                          "experts a token", n_expert, s->route_groups, s->route_groups_used, top_k);
    return MB_OK;
}

static mb_status read_experts(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct moe_names names = { "mlp.gate", "mlp.switch_mlp", "mlp.experts.%d", "gate_proj", "up_proj", "down_proj",
                                            "mlp.experts", "mlp.shared_experts", NULL };
    int32_t n_expert = 0, top_k = 1, width = 0, shared = 0;
    MB_TRY(config_int_or(c, "n_routed_experts", 0, 0, 4096, &n_expert, err));
    if (n_expert == 0) return MB_OK;
    MB_TRY(must_be(c, "topk_method", "noaux_tc", err));
    MB_TRY(must_be(c, "scoring_func", "sigmoid", err));
    MB_TRY(config_int(c, "num_experts_per_tok", 1, 256, &top_k, err));
    MB_TRY(config_int(c, "moe_intermediate_size", 1, 1 << 20, &width, err));
    MB_TRY(config_int_or(c, "n_shared_experts", 0, 0, 64, &shared, err));
    MB_TRY(read_groups(s, c, n_expert, top_k, err));
    s->moe = &names;
    s->route = ROUTE_SIGMOID;
    for (int i = 0; i < s->n_layer; i++) {
        bool experts = false;
        MB_TRY(has_experts(s, c, i, &experts, err));
        if (!experts) continue;
        MB_TRY(arch_set_experts(s, i, n_expert, top_k, width, err));
        s->layers[i].d_shared = shared * width;
    }
    return MB_OK;
}

static mb_status read_latents(struct model_spec *s, const json_t *c, mb_error *err)
{
    struct latent_spec *l = &s->latent;
    bool interleaved = true;
    struct rope_params rope;
    MB_TRY(config_int_or(c, "q_lora_rank", 0, 0, 1 << 16, &l->q_rank, err));
    MB_TRY(config_int(c, "kv_lora_rank", 16, 4096, &l->kv_rank, err));
    MB_TRY(config_int(c, "qk_nope_head_dim", 8, 1024, &l->d_nope, err));
    MB_TRY(config_int(c, "qk_rope_head_dim", 2, 1024, &l->d_rope, err));
    MB_TRY(config_int(c, "v_head_dim", 16, 1024, &l->d_value, err));
    MB_TRY(config_bool_or(c, "attention_bias", false, &l->bias, err));
    MB_TRY(config_bool_or(c, "rope_interleave", true, &interleaved, err));
    if (l->kv_rank % 16 != 0 || l->d_value % 16 != 0 || l->d_nope % 8 != 0)
        return mb_fail(err, MB_UNSUPPORTED, "config.json: kv_lora_rank %d and v_head_dim %d must be multiples of 16, qk_nope_head_dim %d "
                       "of 8", l->kv_rank, l->d_value, l->d_nope);
    l->norm_eps = 1e-6f;
    s->attn_bias_o = l->bias;
    MB_TRY(rope_params_read(s, c, "rope_theta", 10000.0, l->d_rope, &rope, err));
    if (rope.n_rot != l->d_rope)
        return mb_fail_at(err, MB_UNSUPPORTED, "partial_rotary_factor", "config.json: partial_rotary_factor turns %d of the %d rotated "
                          "dims of a head; this version turns all", rope.n_rot, l->d_rope);
    rope.interleaved = interleaved;
    int32_t i_rope = model_spec_add_rope(s, &rope);
    double scale = rope_score_factor(&rope) / __builtin_sqrt((double)(l->d_nope + l->d_rope));
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *layer = &s->layers[i];
        layer->attn = ATTN_MLA;
        layer->n_head_kv = 1;
        layer->head_dim = l->kv_rank + l->d_rope;
        layer->attn_scale = (float)scale;
        layer->i_rope = i_rope;
    }
    return MB_OK;
}

/* What all read alike. */
static mb_status read_common(struct model_spec *s, const json_t *config, mb_error *err)
{
    json_t *c = json_copy((json_t *)config); /* head_dim means other things in these configs */
    if (!c || json_object_set(c, "head_dim", json_object_get(config, "qk_rope_head_dim")) != 0) {
        json_decref(c);
        return c ? mb_fail_at(err, MB_BAD_FORMAT, "qk_rope_head_dim", "config.json: qk_rope_head_dim is missing")
                 : mb_fail(err, MB_NO_MEMORY, "out of memory");
    }
    mb_status st = config_read_common(s, c, err);
    json_decref(c);
    if (st == MB_OK) st = must_be(config, "hidden_act", "silu", err);
    if (st == MB_OK) st = config_bool_or(config, "tie_word_embeddings", false, &s->tied_head, err);
    if (st == MB_OK) st = read_latents(s, config, err);
    return st == MB_OK ? read_experts(s, config, err) : st;
}

/* --- the indexer --- */

/* Whether layer i shares: a list, a pattern with a letter for each layer, or every index_topk_freq-th layer has its own. */
static mb_status shares_index(const struct model_spec *s, const json_t *c, int i, bool *out, mb_error *err)
{
    const json_t *list = json_object_get(c, "indexer_types"), *pattern = json_object_get(c, "index_topk_pattern");
    int32_t step = 1, first = 2;
    if (json_is_array(pattern) && !json_is_array(list)) list = pattern;
    if (json_is_array(list)) {
        const char *t = json_array_size(list) == (size_t)s->n_layer ? json_string_value(json_array_get(list, (size_t)i)) : NULL;
        *out = t && strcmp(t, "shared") == 0;
        if (*out || (t && strcmp(t, "full") == 0)) return MB_OK;
        return mb_fail_at(err, MB_BAD_FORMAT, "indexer_types", "config.json: indexer_types must list \"full\" or \"shared\" for %d layers",
                          s->n_layer);
    }
    if (json_is_string(pattern)) {
        char t = json_string_length(pattern) == (size_t)s->n_layer ? json_string_value(pattern)[i] : 0;
        *out = t == 'S';
        if (t == 'S' || t == 'F') return MB_OK;
        return mb_fail_at(err, MB_BAD_FORMAT, "index_topk_pattern", "config.json: index_topk_pattern must have F or S for %d layers",
                          s->n_layer);
    }
    MB_TRY(config_int_or(c, "index_topk_freq", 1, 0, 1024, &step, err));
    MB_TRY(config_int_or(c, "index_skip_topk_offset", 2, 0, 1024, &first, err));
    int32_t past = i - first + 1 > 0 ? i - first + 1 : 0;
    *out = past % (step > 1 ? step : 1) != 0;
    return MB_OK;
}

static mb_status read_index(struct model_spec *s, const json_t *c, bool interleaved, bool may_share, mb_error *err)
{
    struct latent_spec *l = &s->latent;
    MB_TRY(config_int(c, "index_topk", 1, 1 << 20, &l->index_top_k, err));
    MB_TRY(config_int(c, "index_head_dim", 2, 1024, &l->index_dim, err));
    MB_TRY(config_int(c, "index_n_heads", 1, 1024, &l->index_heads, err));
    MB_TRY(config_bool_or(c, "indexer_rope_interleave", interleaved, &l->index_interleaved, err));
    if (l->q_rank == 0 || l->index_dim < l->d_rope)
        return mb_fail(err, MB_UNSUPPORTED, "config.json: an indexer needs q_lora_rank and an index_head_dim of at least qk_rope_head_dim "
                       "(found %d and %d)", l->q_rank, l->index_dim);
    for (int i = 0; i < s->n_layer; i++) {
        bool shared = false;
        if (may_share) MB_TRY(shares_index(s, c, i, &shared, err));
        if (shared && i == 0)
            return mb_fail_at(err, MB_BAD_FORMAT, "indexer_types", "config.json: layer 0 shares an indexer, but none lies before it");
        s->layers[i].index = shared ? INDEX_SHARED : INDEX_OWN;
    }
    return MB_OK;
}

mb_status arch_read_deepseek_v3(struct model_spec *s, const json_t *c, mb_error *err)
{
    return read_common(s, c, err);
}

mb_status arch_read_glm4_moe_lite(struct model_spec *s, const json_t *c, mb_error *err)
{
    return read_common(s, c, err);
}

mb_status arch_read_deepseek_v32(struct model_spec *s, const json_t *c, mb_error *err)
{
    MB_TRY(read_common(s, c, err));
    return read_index(s, c, false, false, err);
}

mb_status arch_read_glm_moe_dsa(struct model_spec *s, const json_t *c, mb_error *err)
{
    MB_TRY(read_common(s, c, err));
    return read_index(s, c, true, true, err);
}
