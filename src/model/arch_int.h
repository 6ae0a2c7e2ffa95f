/* arch_int.h: what the readers of families share. Owner: config.c. */
#ifndef MODEL_ARCH_INT_H
#define MODEL_ARCH_INT_H

#include "base/json.h"
#include "model/spec.h"

mb_status arch_read_llama(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_ministral3(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_qwen2(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_qwen3(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_qwen3_moe(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_mixtral(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_gpt_oss(struct model_spec *s, const json_t *config, mb_error *err);
/* Experts of layer i: their number, how many a token takes, their width (arch_moe.c). */
mb_status arch_set_experts(struct model_spec *s, int i, int32_t n_expert, int32_t top_k, int32_t width, mb_error *err);
/* Experts of the Qwen families: num_experts of them on every decoder_sparse_step-th layer but mlp_only_layers. */
mb_status arch_read_qwen_experts(struct model_spec *s, const json_t *c, const struct moe_names *names, bool normalise, mb_error *err);
mb_status arch_read_qwen3_next(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_qwen3_5(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_minicpm(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_granite(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_olmo2(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_olmo3(struct model_spec *s, const json_t *config, mb_error *err);
/* What llama-like families read alike, once their defaults are known (arch_llama.c). */
mb_status arch_read_llama_like(struct model_spec *s, const json_t *c, double theta_default, bool tied_default, mb_error *err);
/* A window over every layer, where the config sets one and lists no layer_types. */
mb_status arch_window_everywhere(struct model_spec *s, const json_t *c, mb_error *err);
mb_status arch_read_starcoder2(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_smollm3(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_phi3(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_glm4(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_gemma(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_gemma2(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_gemma3(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_gemma4(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_diffusion_gemma(struct model_spec *s, const json_t *config, mb_error *err);
/* The sampler's numbers out of generation_config.json (NULL: the family's own), once spec.canvas.n is known. */
mb_status canvas_schedule_read(struct canvas_spec *c, const json_t *generation_config, mb_error *err);
mb_status arch_read_deepseek_v3(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_deepseek_v32(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_glm4_moe_lite(struct model_spec *s, const json_t *config, mb_error *err);
mb_status arch_read_glm_moe_dsa(struct model_spec *s, const json_t *config, mb_error *err);

/* An integer that must be there and lie in [min, max]. */
mb_status config_int(const json_t *c, const char *key, int64_t min, int64_t max, int32_t *out, mb_error *err);
/* The same with a default for an absent or null key. */
mb_status config_int_or(const json_t *c, const char *key, int64_t dflt, int64_t min, int64_t max, int32_t *out,
                        mb_error *err);
mb_status config_float_or(const json_t *c, const char *key, double dflt, double *out, mb_error *err);
mb_status config_bool_or(const json_t *c, const char *key, bool dflt, bool *out, mb_error *err);

/* Fields that every llama-like family has: sizes, heads, context, norm eps; allocates s->layers with equal layers.
 * head_dim: "head_dim" or hidden_size / heads. */
mb_status config_read_common(struct model_spec *s, const json_t *c, mb_error *err);
/* "layer_types" (full_attention / sliding_attention) over s->layers with the given window; absent: nothing. */
mb_status config_read_layer_types(struct model_spec *s, const json_t *c, int32_t window, mb_error *err);

/* Newer configs give rope_parameters by kind of layer ("full_attention" ...): config with those of one kind in the place where all
 * others have theirs; a new reference, to c itself where rope_parameters is not nested. NULL: no memory. *nested (may be NULL): it is. */
json_t *config_rope_of(const json_t *c, const char *layer_type, bool *nested);

#endif
