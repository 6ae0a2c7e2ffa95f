/* spec.h: a model as data. config.json is read by one small function per family into a model_spec; one binder and one
 * plan writer turn any spec into weights and steps. A llama-like family is a row in arch.c and a reader.
 * Lifetime: filled by model_config_read, immutable afterwards, plain data.
 */
#ifndef MODEL_SPEC_H
#define MODEL_SPEC_H

#include <jansson.h>

#include "base/mem.h"
#include "format/quant.h"
#include "ops/plan.h"

enum attn_kind { ATTN_FULL = 0, ATTN_SLIDING, ATTN_SHARED_KV, ATTN_MLA, ATTN_GATED_DELTA, ATTN_NONE };
enum mlp_kind { MLP_GATED = 0, MLP_MOE, MLP_NONE, MLP_GATED_MOE /* both, side by side (gemma4) */ };
enum rope_kind { ROPE_DEFAULT = 0, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_LONGROPE, ROPE_PROPORTIONAL };

/* Position encoding of a layer; layers with equal parameters share one table. */
struct rope_params {
    enum rope_kind kind;
    double theta;
    double factor;                   /* LINEAR, DYNAMIC, LLAMA3, YARN, PROPORTIONAL */
    double low_freq_factor, high_freq_factor; /* LLAMA3 */
    int32_t original_context;        /* LLAMA3, YARN, LONGROPE, DYNAMIC */
    double beta_fast, beta_slow;     /* YARN */
    double mscale, mscale_all_dim;   /* YARN; 0 = not given */
    double attention_factor;         /* YARN, LONGROPE; 0 = derived */
    bool truncate;                   /* YARN: correction range rounded to whole dims (default true) */
    const double *short_factor, *long_factor; /* LONGROPE: [n_rot/2], in the spec's arena */
    double query_beta;               /* queries times 1 + query_beta * ln(1 + position / query_context); 0 = none */
    int32_t query_context;           /* whole such contexts count */
    int32_t n_rot;                   /* rotated dims (partial_rotary_factor * head_dim) */
    int32_t n_turning;               /* PROPORTIONAL: pairs over the whole head, of which those of so many dims turn */
    bool interleaved;
};

/* The indexer of a layer with latents: none (it sees all keys), its own, or what the last layer with its own has chosen. */
enum index_kind { INDEX_NONE = 0, INDEX_OWN, INDEX_SHARED };

struct layer_spec {
    enum attn_kind attn;
    enum index_kind index;           /* ATTN_MLA */
    enum mlp_kind mlp;
    int32_t n_head, n_head_kv, head_dim;
    int32_t d_ff;                    /* intermediate size; MLP_MOE: of one expert */
    int32_t n_expert, top_k;         /* MLP_MOE, MLP_GATED_MOE */
    int32_t d_expert;                /* MLP_GATED_MOE: intermediate size of one expert; d_ff is the dense MLP's */
    int32_t window;                  /* ATTN_SLIDING: keys a query sees, itself included */
    int32_t i_rope;                  /* index in model_spec.ropes; -1 = no position encoding */
    int16_t i_kind, i_in_kind;       /* KV kind and place in it (set by model_spec_finish) */
    int8_t kv_format;                /* enum kv_format of its keys and values (set by model_kv_formats) */
    int16_t i_kv_donor;              /* ATTN_SHARED_KV: layer whose pages are read; else -1 */
    float attn_scale;                /* 1/sqrt(head_dim) or the family's own */
    float attn_softcap;              /* 0 = none */
    bool qk_norm;                    /* RMS norm of each q and k head, weights self_attn.{q,k}_norm */
    bool qk_norm_whole;              /* the same over all heads at once (olmo2) */
    bool v_norm;                     /* RMS norm of each v head, without weights (gemma4) */
    bool v_is_k;                     /* no v_proj: values are what k_proj gives, before norm and rotation (gemma4) */
    bool attn_gate;                  /* q_proj holds q and a gate of the output for each head, in turn (qwen3_next) */
    int32_t d_shared;                /* MLP_MOE: width of an expert that every token goes through; 0 = none */
};

/* The recurrent layers (ATTN_GATED_DELTA) of a model, all alike. */
struct delta_spec {
    int32_t n_head_k, n_head_v;      /* key heads; value heads, a multiple of them */
    int32_t dim_k, dim_v;            /* of a head */
    int32_t n_conv;                  /* taps of the convolution over q, k, v */
    bool fused;                      /* two projections (in_proj_qkvz, in_proj_ba), key head by key head, instead of four */
};

/* A model that writes a block of tokens at a time, by rounds over a canvas of noise (diffusion_gemma): the family's own sampler
 * and its numbers, from generation_config.json. At round k of n_rounds (from 1) the temperature is
 * t_min + (t_max - t_min) * (n_rounds - k + 1) / n_rounds. */
struct canvas_spec {
    int32_t n;                       /* tokens of a canvas; 0: the model draws token by token */
    int32_t n_rounds;                /* at most */
    double t_min, t_max;
    double entropy_bound;            /* positions are taken, surest first, while the entropy of those before is at most so much */
    int32_t stability;               /* a canvas is done when the best ids were the same so many rounds before as well ... */
    double confidence;               /* ... and the mean entropy is below this */
};

/* Attention over latents (ATTN_MLA), alike in all layers. There layer_spec's head_dim is kv_rank + d_rope, n_head_kv is 1. */
struct latent_spec {
    int32_t q_rank;                  /* q goes through so many values and a norm; 0: one q_proj */
    int32_t kv_rank;                 /* of the latent: what a key is made of, and the value */
    int32_t d_nope, d_rope, d_value; /* of a head */
    float norm_eps;                  /* of the norms of both */
    bool bias;                       /* q_a_proj and kv_a_proj_with_mqa have one */
    int32_t index_heads, index_dim, index_top_k; /* 0 = no indexer */
    bool index_interleaved;
};

/* Module names of the norms of a layer; the two behind the blocks are read with post_norms only. */
struct norm_names { const char *attn, *post_attn, *mlp, *post_mlp; };

/* Module names of a mixture: `router` and `stacked` (gate_proj, up_proj, down_proj of all experts in one tensor of three
 * dims) below the layer; or one by one: `listed` with the number of the expert, then its own three names; or `published`,
 * where gate and up are one tensor: in plain floats each expert's rows of gate before those of up, or as moe_blocks says. */
struct moe_names {
    const char *router, *stacked;
    const char *listed, *gate, *up, *down; /* listed NULL: never one by one */
    const char *published;                 /* module of the model's own files: gate_up_proj and down_proj of all experts; NULL = none */
    const char *shared, *shared_gate;      /* the expert for all (d_shared), and its gate or NULL */
};

/* Names of what a mixture beside a dense MLP has of its own: the router's norm and the weight of each expert; norms before the
 * experts, after the dense MLP, after the experts. */
struct moe_side_names { const char *router_norm, *expert_scale, *pre_experts, *post_dense, *post_experts; };

struct model_spec {
    const char *model_type;          /* as in config.json */
    const char *arch_name;           /* row of the arch table */
    const char *prefix;              /* "model." or "language_model.model." ...: found by looking at the checkpoint */
    int32_t d_model, n_layer, n_vocab, n_context;
    struct layer_spec *layers;       /* [n_layer] */
    struct delta_spec delta;
    struct latent_spec latent;
    struct rope_params *ropes;
    int32_t n_ropes;
    float norm_eps;
    bool norm_plus_one;              /* gemma: weight + 1 */
    bool no_pre_norms;               /* olmo2: attention and MLP read the residual as it is */
    bool layer_norm;                 /* norms take the mean off and have a bias (starcoder2) */
    const char *mlp_in, *mlp_out;    /* modules of an MLP without a gate, out(act(in(x))), instead of gate, up and down; NULL: gated; static */
    bool post_norms;                 /* norms after attention and MLP, before the residual add (gemma, glm4) */
    const struct norm_names *norms;  /* what the checkpoint calls a layer's norms; static */
    bool fused_qkv, fused_gate_up;   /* one matrix holds the rows of q, k, v (of gate, up), in this order (phi3, glm4) */
    enum glu_kind glu;
    const struct moe_names *moe;     /* static; NULL: no layer is MLP_MOE */
    enum route_kind route;
    bool route_normalise;
    int32_t route_groups, route_groups_used; /* ROUTE_SIGMOID, as struct plan_step has them; with a bias below the router */
    float route_scale;
    const struct moe_side_names *moe_side; /* MLP_GATED_MOE; static */
    int32_t d_per_layer;             /* per-layer inputs: width of a layer's share; 0 = none (gemma4) */
    int32_t n_vocab_per_layer;       /* rows of their table */
    bool layer_scalar;               /* a layer's output times layers.N.layer_scalar (gemma4) */
    struct canvas_spec canvas;
    const char *encoder;             /* canvas: where the scalars of ordinary rows are; the prefix has those of canvases; static */
    float embed_scale;               /* 1 = none */
    float logit_softcap;             /* 0 = none */
    float logit_scale;               /* 0 = none: of the logits, before the cap (granite, minicpm) */
    float residual_scale;            /* 0 = none: of what attention and MLP add (granite, minicpm) */
    bool tied_head;
    bool tied_unsaid;                /* the config says nothing: a checkpoint with a head of its own is not tied */
    bool attn_bias_qkv, attn_bias_o, mlp_bias;
    bool moe_bias;                   /* the router and every expert's three matrices have one */
    bool moe_blocks;                 /* published experts are gate_up_proj_{blocks,scales,bias}, whose rows are of gate and up
                                        in turn, and down_proj_{...}; mxfp4 */
    bool attn_sinks;                 /* one more logit of each head's softmax, without a value: self_attn.sinks */
    int32_t eos_ids[16];             /* config.json and generation_config.json, union (B-034) */
    int32_t n_eos;
    struct kv_kind kinds[KV_MAX_KINDS]; /* format and sizes filled at load */
    int32_t n_kinds;
    int kv_format;                   /* family's 16-bit type: enum kv_format */
    int kv_asked;                    /* enum kv_format, or KV_OF_CONFIG: of all layers that can (set by model_kv_formats) */
    struct quant_config *quant;      /* owned */
    struct arena arena;              /* owns arrays above */
};

/* One family. */
struct arch_row {
    const char *name;                /* "llama" */
    const char *const *model_types;  /* NULL-terminated: values of config.json "model_type" */
    mb_status (*read)(struct model_spec *s, const json_t *config, mb_error *err);
    int kv_format;                   /* KV type by measurement (docs/fidelity.md) */
    const char *note;                /* for docs/families.md */
};
const struct arch_row *arch_rows(size_t *n);
const struct arch_row *arch_find(const char *model_type); /* NULL: unknown */
char *arch_known(char text[512]); /* the model types of the table, for a message; returns text */

/* Read <dir>/config.json (+ generation_config.json for end tokens). MB_UNSUPPORTED names model_type and the nearest
 * remedy, an unknown rope type by name (B-112); MB_BAD_FORMAT names the key. */
mb_status model_config_read(struct model_spec *out, const char *dir, mb_error *err);
mb_status model_config_parse(struct model_spec *out, const json_t *config, const json_t *generation_config,
                             mb_error *err);
void model_spec_free(struct model_spec *s);
/* Sets spec.prefix: what this checkpoint's tensors begin with ("model.", "language_model.model." ...). MB_NOT_FOUND. */
struct checkpoint;
mb_status model_find_prefix(struct model_spec *s, const struct checkpoint *c, mb_error *err);

/* Helpers for readers (config.c). */
mb_status rope_params_read(struct model_spec *s, const json_t *config, const char *theta_key, double theta_default,
                           int32_t head_dim, struct rope_params *out, mb_error *err);
/* Factor on the scale of attention that goes with yarn's mscale_all_dim; 1 otherwise. */
double rope_score_factor(const struct rope_params *r);
/* Adds r unless an equal one exists; returns its index. */
int32_t model_spec_add_rope(struct model_spec *s, const struct rope_params *r);
/* Groups layers into kinds and fills i_kind, i_in_kind. Called after every reader, and again when layers have formats. */
void model_spec_finish(struct model_spec *s);

/* Number of different factors on queries (query_beta) below position n_context; 0 = none. Their values, out: as many floats. */
int32_t rope_query_steps(const struct rope_params *r, int32_t n_context);
void rope_query_fill(const struct rope_params *r, int32_t n, float *out);

/* Table of cosines and sines for positions [0, n_position): layout of rope_spec.table. out: n_position * n_rot floats.
 * n_context: the model's context (longrope chooses long factors by it; dynamic uses max(original, p + 1) for each p). */
void rope_table_fill(const struct rope_params *r, int32_t n_context, int32_t first, int32_t n_position, float *out);

#endif
