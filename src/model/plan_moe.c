/* plan_moe.c: the steps of a mixture of experts: router, choice, the experts, and the one that every token goes through. It owns no
 * state: buffers and steps are the writer's.
 */
#include "model/plan_int.h"

static void add_route(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    struct plan_step *s = plan_add_step(w, STEP_ROUTE, i_layer, w->b.router, w->b.route);
    s->u.route.n_expert = spec->layers[i_layer].n_expert;
    s->u.route.top_k = spec->layers[i_layer].top_k;
    s->u.route.kind = spec->route;
    s->u.route.normalise = spec->route_normalise;
    s->u.route.expert_scale = w->m->layers[i_layer].expert_scale;
    s->u.route.choice_bias = w->m->layers[i_layer].route_bias;
    s->u.route.n_group = spec->route_groups;
    s->u.route.n_group_used = spec->route_groups_used;
    s->u.route.scale = spec->route_scale;
}

/* The expert that every token goes through: its output to `shared`, for the experts' sum. */
static void add_shared_expert(struct writer *w, int i_layer, const buf_id gate_up_in[2])
{
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *down[1] = { &lw->shared_down };
    buf_id in_of[1];
    struct plan_part parts[2] = { { &lw->shared_gate, NULL, w->b.gate, false, 0 }, { &lw->shared_up, NULL, w->b.up, false, 0 } };
    plan_add_linears(w, i_layer, parts, gate_up_in, 2, 0);
    struct plan_step *s = plan_add_step(w, STEP_GLU, i_layer, w->b.gate, -1);
    s->u.glu.kind = w->m->spec.glu;
    s->u.glu.up = w->b.up;
    s->u.glu.width = w->m->spec.layers[i_layer].d_shared;
    plan_add_inputs(w, s, "down_in", down, 1, false, w->b.gate, in_of);
    struct plan_part out = { &lw->shared_down, NULL, w->b.shared, false, 0 };
    plan_add_linears(w, i_layer, &out, in_of, 1, 0);
}

/* The chosen experts of a layer, `width` wide: gate, up (which read in_of[0] and in_of[1]) and down. NULL: the plan has failed. */
static struct plan_step *add_experts(struct writer *w, int i_layer, const buf_id in_of[2], buf_id out,
                                     const struct weight *const experts[3], int32_t width)
{
    const struct layer_spec *l = &w->m->spec.layers[i_layer];
    if (in_of[0] != in_of[1]) {
        w->failed = true;
        mb_fail(w->err, MB_UNSUPPORTED, "layer %d: the experts' gate and up matrices have different groups", i_layer);
        return NULL;
    }
    struct plan_step *s = plan_add_step(w, STEP_EXPERTS, i_layer, in_of[0], out);
    s->host_point = w->m->expert_offload;
    s->u.experts.route = w->b.route;
    s->u.experts.hidden = plan_add_buf(w, "expert_in", BUF_ACT, experts[2]->k, plan_weight_group(w, experts[2]), false);
    if (s->u.experts.hidden >= 0) w->p->bufs[s->u.experts.hidden].n_slots = l->top_k;
    s->u.experts.gate = experts[0];
    s->u.experts.up = experts[1];
    s->u.experts.down = experts[2];
    s->u.experts.n_expert = l->n_expert;
    s->u.experts.top_k = l->top_k;
    s->u.experts.width = width;
    s->u.experts.kind = w->m->spec.glu;
    s->u.experts.shared = s->u.experts.shared_gate = -1;
    return s;
}

/* The norm's linear inputs serve the router and the experts alike. */
void plan_add_moe(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct layer_spec *l = &spec->layers[i_layer];
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *readers[6] = { &lw->router, &lw->gate, &lw->up, &lw->shared_gate, &lw->shared_up, &lw->shared_router };
    bool gated = l->d_shared > 0 && spec->moe->shared_gate;
    buf_id in_of[6];
    if (spec->residual_scale != 0) {
        w->failed = true;
        mb_fail(w->err, MB_UNSUPPORTED, "layer %d: experts with a scaled residual are not in this version", i_layer);
        return;
    }
    plan_add_inputs(w, plan_add_pre_norm(w, i_layer, lw->mlp_norm, lw->mlp_norm_bias), "mlp_in", readers, gated ? 6 : l->d_shared > 0 ? 5 : 3, false, w->b.lora_in, in_of);
    struct plan_part router[2] = { { &lw->router, lw->router_bias, w->b.router, false, 0 },
                              { &lw->shared_router, NULL, w->b.shared_gate, false, 0 } };
    const buf_id router_in[2] = { in_of[0], gated ? in_of[5] : -1 };
    plan_add_linears(w, i_layer, router, router_in, gated ? 2 : 1, 0);
    add_route(w, i_layer);
    if (l->d_shared > 0) add_shared_expert(w, i_layer, in_of + 3);
    const struct weight *const experts[3] = { &lw->gate, &lw->up, &lw->down };
    struct plan_step *s = add_experts(w, i_layer, in_of + 1, spec->post_norms ? w->b.branch : -1, experts, l->d_ff);
    if (!s) return;
    s->add_to = spec->post_norms ? -1 : w->b.residual;
    s->u.experts.gate_bias = lw->gate_bias;
    s->u.experts.up_bias = lw->up_bias;
    s->u.experts.down_bias = lw->down_bias;
    s->u.experts.shared = l->d_shared > 0 ? w->b.shared : -1;
    s->u.experts.shared_gate = gated ? w->b.shared_gate : -1;
}

/* The router and the experts read the residual, each through a norm of its own. */
void plan_add_side_experts(struct writer *w, int i_layer)
{
    const struct model_spec *spec = &w->m->spec;
    const struct layer_spec *l = &spec->layers[i_layer];
    const struct layer_weights *lw = &w->m->layers[i_layer];
    const struct weight *router[1] = { &lw->router }, *gate_up[2] = { &lw->expert_gate, &lw->expert_up };
    buf_id in_of[2];
    plan_add_norm(w, i_layer, w->b.branch, lw->post_dense_norm)->out = w->b.branch;
    plan_add_inputs(w, plan_add_norm(w, i_layer, w->b.residual, lw->router_norm), "mlp_in", router, 1, false, w->b.lora_in, in_of);
    struct plan_part part = { &lw->router, NULL, w->b.router, false, 0 };
    plan_add_linears(w, i_layer, &part, in_of, 1, 0);
    add_route(w, i_layer);
    plan_add_inputs(w, plan_add_norm(w, i_layer, w->b.residual, lw->pre_experts_norm), "mlp_in", gate_up, 2, false, w->b.lora_in, in_of);
    const struct weight *const experts[3] = { &lw->expert_gate, &lw->expert_up, &lw->expert_down };
    if (!add_experts(w, i_layer, in_of, w->b.branch_experts, experts, l->d_expert)) return;
    struct plan_step *s = plan_add_norm(w, i_layer, w->b.branch_experts, lw->post_experts_norm);
    s->post_add = true;
    s->add_to = w->b.branch;
}
