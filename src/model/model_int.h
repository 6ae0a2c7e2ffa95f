/* model_int.h: inside of a loaded model. bind*.c fill the weights, plan.c writes the steps, model.c owns the whole. */
#ifndef MODEL_MODEL_INT_H
#define MODEL_MODEL_INT_H

#include "format/safetensors.h"
#include "model/model.h"

#define LOG2_E 1.44269504088896340736f /* scores of attention are powers of two */

/* Weights of one layer. Norm vectors are float32 with the family's + 1 folded in. */
struct layer_weights {
    struct weight q, k, v, o, gate, up, down; /* gate, up, down of MLP_MOE: all experts, one below the other; without a gate (mlp_in):
                                                 gate is the matrix in, there is no up */
    struct weight router;                     /* MLP_MOE, MLP_GATED_MOE */
    struct weight expert_gate, expert_up, expert_down; /* MLP_GATED_MOE: as gate, up, down of MLP_MOE */
    struct weight input_gate, input_out;      /* per-layer input: residual -> its width, and back */
    struct weight shared_router, shared_gate, shared_up, shared_down; /* d_shared */
    struct weight delta_qkv, delta_z, delta_b, delta_a; /* ATTN_GATED_DELTA, with o; fused: q, k, v, z and b, a in the first of each */
    const float *delta_conv, *delta_decay, *delta_bias, *delta_norm; /* as struct plan_step has them */
    struct weight q_a, q_b, kv_a, embed_q, unembed_out; /* ATTN_MLA, with o; without q_rank q_b is q_proj */
    struct weight index_q, index_k, index_w;  /* INDEX_OWN */
    const float *q_a_bias, *kv_a_bias, *q_a_norm, *kv_a_norm, *index_norm, *index_norm_bias;
    const float *route_bias;                  /* ROUTE_SIGMOID: of the choice of experts */
    const float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias; /* NULL = none */
    const float *router_bias;                 /* moe_bias; gate_bias, up_bias, down_bias then hold those of all experts */
    const float *sinks;                       /* attn_sinks: times log2(e) */
    const float *attn_norm, *mlp_norm, *post_attn_norm, *post_mlp_norm; /* NULL where the family has none */
    const float *attn_norm_bias, *mlp_norm_bias; /* layer_norm */
    const float *q_norm, *k_norm;
    const float *router_norm, *expert_scale, *pre_experts_norm, *post_dense_norm, *post_experts_norm; /* MLP_GATED_MOE */
    const float *post_input_norm;             /* per-layer input */
    const float *scalar;                      /* [1] of the layer's output, or NULL */
    const float *canvas_scalar;               /* the same for canvases */
};

struct rope_table {
    float *cs;            /* address space for n_context positions; owned (munmap) */
    size_t reserved_bytes;
    int32_t n_filled;
    float *query;         /* [rope_query_steps] factors on queries, in the arena; NULL: none */
};

struct model {
    struct model_spec spec;
    const struct ops *ops;
    struct device *device;
    enum fidelity_tier tier;
    struct checkpoint *source; /* kept open only when a gathered table stays mapped */
    struct arena arena;        /* vectors, names, steps */
    struct layer_weights *layers;
    struct weight embed, head; /* head.impl NULL: tied, the embedding is the head */
    const float *final_norm, *final_norm_bias; /* the bias: layer_norm */
    struct weight layer_table, layer_proj; /* per-layer inputs: of the id, of the embedding; [n_layer * d_per_layer] wide */
    const float *layer_proj_norm;          /* [d_per_layer] */
    struct weight signal_gate, signal_up, signal_down; /* canvases: the MLP that the signal goes through */
    const float *signal_norm;  /* [d_model] */
    struct rope_table *ropes;  /* [spec.n_ropes] */
    struct plan plan;
    struct compiled *compiled;
    struct plan canvas_plan;   /* spec.canvas: the same layers over a canvas */
    struct compiled *canvas;   /* NULL: none */
    struct compile_options compile_opt;
    size_t weight_bytes, scratch_bytes;
    bool expert_offload;       /* asked for, and the backend can */
    size_t expert_bytes, expert_slot_bytes;
    uint64_t fingerprint;
    int32_t n_modules;
};

/* What the binder wants to know of one matrix; also used to estimate sizes from headers alone. */
struct bind_request {
    const char *path;     /* module path below the prefix: "layers.0.self_attn.q_proj" */
    int64_t n, k;         /* what the config says */
    bool gather_only;
    int32_t n_used;        /* n_stack: experts that one token goes to */
    int32_t n_stack;       /* experts of n / n_stack rows each, as one tensor of three dims or one by one; 0 = a plain matrix */
    const char *listed;    /* n_stack: printf path of one expert's matrix, with its number; NULL = never one by one */
    const char *published; /* n_stack: path of the tensors that may stand instead (moe_names.published); NULL = none */
    int32_t i_turn, n_turns; /* published: the i_turn-th of n_turns matrices in one: moe_blocks: row o is row
                                o * n_turns + i_turn there; plain: in each expert one matrix after the other */
    const char *halves;    /* n_stack: path of a matrix that may stand instead: of each piece halves_rows rows, of which from
                              halves_first on are this one: its rows, or (turned) its columns; NULL = none */
    int32_t halves_first, halves_rows;
    bool halves_turned;
    int32_t split;         /* as struct weight has it; 0 with n_stack or gather_only: SPLIT_NEVER, SPLIT_WHOLE */
    int64_t first, n_file; /* rows [first, first + n) of a fused matrix of n_file rows; n_file 0: the matrix is not fused */
};
/* Look up, check shapes against the config and the quantisation entry, and describe the source. MB_BAD_FORMAT names the
 * tensor and both widths (B-113); MB_NOT_FOUND names the tensor. name: full path, arena memory. */
mb_status bind_source(const struct model_spec *s, const struct checkpoint *c, struct arena *a,
                      const struct bind_request *r, struct weight_source *out, mb_error *err);
/* Group in which a linear over this source wants its inputs; 0: floats. mxfp8 holds floats; what is turned becomes floats. */
static inline int32_t bind_group(const struct weight_source *s)
{
    return s->spec.mode == QUANT_NONE || s->spec.mode == QUANT_MXFP8 || s->turned ? 0 : s->spec.group_size;
}
/* How several ranks share it. */
static inline int32_t bind_split(const struct bind_request *r)
{
    return r->n_stack > 0 ? SPLIT_NEVER : r->gather_only ? SPLIT_WHOLE : r->split;
}
/* Full module path of a path below the prefix (lm_head lies beside it); arena memory, NULL: no memory. */
char *bind_path(const struct model_spec *s, struct arena *a, const char *path);
/* Path of expert i: `pattern` is a bind_request's `listed`. */
void bind_expert_path(char *path, size_t cap, const char *pattern, int i);
/* A layer's experts, which are visited one after the other: gate, up, down. What a request points to lives until the third
 * visit returns. */
struct bind_experts {
    struct bind_request r[3];
    struct weight *dst[3];
    struct weight_source src[3];
    int n;
};
/* True with the third; the next one begins anew. */
bool bind_experts_add(struct bind_experts *e, const struct bind_request *r, struct weight *dst, const struct weight_source *src);
/* Visit every matrix of the model in load order; stops at the first failure. */
typedef mb_status (*bind_visit_fn)(void *ctx, const struct bind_request *r, struct weight *dst, mb_error *err);
mb_status bind_visit(struct model *m, bind_visit_fn visit, void *ctx, mb_error *err);
/* Norms, biases, sinks of every layer, and the final norm. */
mb_status bind_vectors(struct model *m, const struct checkpoint *c, mb_error *err);
/* One vector of n floats below the prefix, as float32 in the model's arena. */
mb_status bind_vector(struct model *m, const struct checkpoint *c, const char *path, int64_t n, const float **out, mb_error *err);
/* bind_delta.c: the matrices of layer i; how the checkpoint is laid out (sets norm_plus_one), before any vector; its vectors. */
mb_status bind_visit_delta(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err);
mb_status bind_delta_layout(struct model *m, const struct checkpoint *c, mb_error *err);
mb_status bind_delta_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err);
/* bind_latent.c: the matrices of layer i; its vectors. */
mb_status bind_visit_latent(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err);
mb_status bind_latent_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err);
/* Load everything: pack matrices, convert vectors, drop source pages. */
mb_status bind_weights(struct model *m, const struct checkpoint *c, const struct model_options *opt, mb_error *err);

/* Write the plan over the bound weights (steps point into m), and that of canvases where there are any. */
mb_status plan_build(struct model *m, mb_error *err);
/* The plan of rows alone once more, without room for adapters: for counting. Its steps lie in the model's arena. */
mb_status plan_build_bare(struct model *m, struct plan *out, mb_error *err);

#endif
