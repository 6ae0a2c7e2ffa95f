/* plan_int.h: what the writers of a plan share. plan.c owns the list; plan_latent.c writes attention over latents, plan_moe.c
 * mixtures of experts. A writer that has failed goes on writing over its last step, so that only the end must be asked.
 */
#ifndef MODEL_PLAN_INT_H
#define MODEL_PLAN_INT_H

#include "model/model_int.h"

/* Buffers of the plan; linear inputs by (group) as their readers ask. */
struct plan_bufs {
    buf_id residual, q, k, v, q_rot, attn, branch, gate, up, router, route, draw_residual, logits;
    buf_id branch_experts, layer_in, layer_proj, input_gate; /* gemma4 */
    buf_id delta_in, delta_z, delta_b, delta_a, delta_out, shared, shared_gate;
    buf_id q_a, kv_a, heads_latent, index_q, index_k, index_w, chosen; /* attention over latents */
    buf_id lora_in, draw_lora_in; /* float copies of what a norm gives to linears; -1 without adapters */
};

struct writer {
    struct model *m;
    struct plan *p;
    struct plan_bufs b;
    mb_error *err;
    bool failed;
    bool canvas;
    int32_t cap;
};

/* A weight of a linear step. */
struct plan_part {
    const struct weight *w;
    const float *bias;
    buf_id out;
    bool add;
    float scale; /* 0 = none */
};

/* The buffer of this name and shape, made unless it is there; -1 and failed when there are too many. */
buf_id plan_add_buf(struct writer *w, const char *name, enum buf_type type, int64_t width, int32_t group, bool per_draw);
struct plan_step *plan_add_step(struct writer *w, enum step_op op, int i_layer, buf_id in, buf_id out);
/* Group of activations that a weight wants: its own, or 0 for floats. */
int32_t plan_weight_group(const struct writer *w, const struct weight *x);
/* Linear inputs named `name` for up to n weights of width k: one buffer per distinct group, listed in step->outs; in_of: of each
 * weight. copy: the float buffer that adapters read instead, as wide as k. */
void plan_add_inputs(struct writer *w, struct plan_step *step, const char *name, const struct weight *const *x, int n, bool per_draw,
                     buf_id copy, buf_id *in_of);
/* One STEP_LINEAR per distinct input, with all parts that read it. */
void plan_add_linears(struct writer *w, int i_layer, const struct plan_part *parts, const buf_id *in_of, int n, float softcap);
struct plan_step *plan_add_norm(struct writer *w, int i_layer, buf_id in, const float *weight);
/* What attention or the MLP of a layer reads: the residual, normalised where the family does that first. */
struct plan_step *plan_add_pre_norm(struct writer *w, int i_layer, const float *weight, const float *bias);

/* plan_latent.c: its buffers; attention of a layer of kind ATTN_MLA, its sum into the residual included. */
void plan_add_latent_bufs(struct writer *w);
void plan_add_latent(struct writer *w, int i_layer);
/* plan_moe.c: the mixture of a layer of kind MLP_MOE, to `branch` with post-norms, else added to the residual. */
void plan_add_moe(struct writer *w, int i_layer);
/* plan_moe.c: MLP_GATED_MOE: branch = norm(branch) + norm(experts); the MLP's output is in branch. */
void plan_add_side_experts(struct writer *w, int i_layer);

#endif
