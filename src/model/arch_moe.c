/* arch_moe.c: readers of mixtures of experts over llama-like layers: qwen3_moe, mixtral.
 * Oracle: mlx_lm.models.{qwen3_moe,mixtral}.
 */
#include "model/arch_int.h"

/* Experts of layer i: their number, how many a token takes, their width. Expert matrices lie one below the other in blocks
 * of 16 rows. */
mb_status arch_set_experts(struct model_spec *s, int i, int32_t n_expert, int32_t top_k, int32_t width, mb_error *err)
{
    struct layer_spec *l = &s->layers[i];
    if (top_k > n_expert)
        return mb_fail_at(err, MB_BAD_FORMAT, "num_experts_per_tok", "config.json: %d experts a token of %d", top_k, n_expert);
    if (width % 16 != 0 || s->d_model % 16 != 0)
        return mb_fail(err, MB_UNSUPPORTED, "config.json: experts of %d by %d; both must be multiples of 16", width, s->d_model);
    l->mlp = MLP_MOE;
    l->n_expert = n_expert;
    l->top_k = top_k;
    l->d_ff = width;
    return MB_OK;
}

/* A list of layer numbers with an ordinary MLP. */
static bool listed(const json_t *list, int i)
{
    for (size_t j = 0; j < json_array_size(list); j++)
        if (json_integer_value(json_array_get(list, j)) == i && json_is_integer(json_array_get(list, j))) return true;
    return false;
}

mb_status arch_read_qwen_experts(struct model_spec *s, const json_t *c, const struct moe_names *names, bool normalise, mb_error *err)
{
    int32_t n_expert = 0, top_k = 0, width = 0, step = 1;
    const json_t *dense = json_object_get(c, "mlp_only_layers");
    MB_TRY(config_int(c, "num_experts", 0, 4096, &n_expert, err));
    if (n_expert == 0) return MB_OK;
    MB_TRY(config_int(c, "num_experts_per_tok", 1, 256, &top_k, err));
    MB_TRY(config_int(c, "moe_intermediate_size", 1, 1 << 20, &width, err));
    MB_TRY(config_int_or(c, "decoder_sparse_step", 1, 1, 1024, &step, err));
    MB_TRY(config_bool_or(c, "norm_topk_prob", normalise, &s->route_normalise, err));
    if (dense && !json_is_null(dense) && !json_is_array(dense))
        return mb_fail_at(err, MB_BAD_FORMAT, "mlp_only_layers", "config.json: mlp_only_layers must list layer numbers");
    s->moe = names;
    s->route = ROUTE_SOFTMAX_ALL;
    for (int i = 0; i < s->n_layer; i++)
        if (!listed(dense, i) && (i + 1) % step == 0) MB_TRY(arch_set_experts(s, i, n_expert, top_k, width, err));
    return MB_OK;
}

mb_status arch_read_qwen3_moe(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct moe_names names = { "mlp.gate", "mlp.switch_mlp", "mlp.experts.%d", "gate_proj", "up_proj", "down_proj", NULL, NULL, NULL };
    MB_TRY(arch_read_qwen3(s, c, err));
    return arch_read_qwen_experts(s, c, &names, false, err);
}

mb_status arch_read_mixtral(struct model_spec *s, const json_t *c, mb_error *err)
{
    static const struct moe_names names = { "block_sparse_moe.gate", "block_sparse_moe.switch_mlp", "block_sparse_moe.experts.%d",
                                            "w1", "w3", "w2", NULL, NULL, NULL };
    int32_t n_expert = 8, top_k = 2;
    MB_TRY(arch_read_llama(s, c, err));
    MB_TRY(config_bool_or(c, "tie_word_embeddings", false, &s->tied_head, err));
    MB_TRY(config_int_or(c, "num_local_experts", 8, 1, 4096, &n_expert, err));
    MB_TRY(config_int_or(c, "num_experts_per_tok", 2, 1, 256, &top_k, err));
    s->moe = &names;
    s->route = ROUTE_SOFTMAX_CHOSEN;
    for (int i = 0; i < s->n_layer; i++) MB_TRY(arch_set_experts(s, i, n_expert, top_k, s->layers[i].d_ff, err));
    return MB_OK;
}
