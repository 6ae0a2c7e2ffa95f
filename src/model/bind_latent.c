/* bind_latent.c: matrices and vectors of attention over latents. MLX keeps what leads from q to the latents' space and from there to
 * values as two stacks with a matrix for each head (embed_q, unembed_out); published files hold both in kv_b_proj, of each head
 * the rows of its keys, which are embed_q turned, before those of its values.
 */
#include <stdio.h>

#include "model/model_int.h"

static mb_status visit_stack(struct model *m, int i, const char *name, int64_t n, int64_t k, int32_t first, bool turned,
                             struct weight *dst, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct latent_spec *l = &m->spec.latent;
    int32_t n_head = m->spec.layers[i].n_head;
    char path[128], halves[128];
    snprintf(path, sizeof path, "layers.%d.self_attn.%s", i, name);
    snprintf(halves, sizeof halves, "layers.%d.self_attn.kv_b_proj", i);
    struct bind_request r = { .path = path, .n = n_head * n, .k = k, .n_stack = n_head, .n_used = n_head, .halves = halves,
                              .halves_first = first, .halves_rows = l->d_nope + l->d_value, .halves_turned = turned };
    return visit(ctx, &r, dst, err);
}

mb_status bind_visit_latent(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct latent_spec *l = &s->latent;
    struct layer_weights *w = &m->layers[i];
    int64_t n_head = s->layers[i].n_head, nq = n_head * (l->d_nope + l->d_rope);
    bool low = l->q_rank > 0, index = s->layers[i].index == INDEX_OWN;
    const struct { const char *name; int64_t n, k; struct weight *dst; bool wanted; } part[] = {
        { "q_a_proj", l->q_rank, s->d_model, &w->q_a, low },
        { low ? "q_b_proj" : "q_proj", nq, low ? l->q_rank : s->d_model, &w->q_b, true },
        { "kv_a_proj_with_mqa", l->kv_rank + l->d_rope, s->d_model, &w->kv_a, true },
        { "indexer.wq_b", (int64_t)l->index_heads * l->index_dim, l->q_rank, &w->index_q, index },
        { "indexer.wk", l->index_dim, s->d_model, &w->index_k, index },
        { "indexer.weights_proj", l->index_heads, s->d_model, &w->index_w, index },
        { "o_proj", s->d_model, n_head * l->d_value, &w->o, true },
    };
    char path[128];
    for (size_t p = 0; p < sizeof part / sizeof part[0]; p++) {
        if (!part[p].wanted) continue;
        snprintf(path, sizeof path, "layers.%d.self_attn.%s", i, part[p].name);
        struct bind_request r = { .path = path, .n = part[p].n, .k = part[p].k };
        MB_TRY(visit(ctx, &r, part[p].dst, err));
    }
    MB_TRY(visit_stack(m, i, "embed_q", l->kv_rank, l->d_nope, 0, true, &w->embed_q, visit, ctx, err));
    return visit_stack(m, i, "unembed_out", l->d_value, l->kv_rank, l->d_nope, false, &w->unembed_out, visit, ctx, err);
}

mb_status bind_latent_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct latent_spec *l = &m->spec.latent;
    struct layer_weights *w = &m->layers[i];
    bool low = l->q_rank > 0, index = m->spec.layers[i].index == INDEX_OWN;
    const struct { const char *name; int64_t n; const float **dst; bool wanted; } part[] = {
        { "q_a_layernorm.weight", l->q_rank, &w->q_a_norm, low },
        { "kv_a_layernorm.weight", l->kv_rank, &w->kv_a_norm, true },
        { "q_a_proj.bias", l->q_rank, &w->q_a_bias, low && l->bias },
        { "kv_a_proj_with_mqa.bias", l->kv_rank + l->d_rope, &w->kv_a_bias, l->bias },
        { "indexer.k_norm.weight", l->index_dim, &w->index_norm, index },
        { "indexer.k_norm.bias", l->index_dim, &w->index_norm_bias, index },
    };
    char path[128];
    for (size_t p = 0; p < sizeof part / sizeof part[0]; p++) {
        if (!part[p].wanted) continue;
        snprintf(path, sizeof path, "layers.%d.self_attn.%s", i, part[p].name);
        MB_TRY(bind_vector(m, c, path, part[p].n, part[p].dst, err));
    }
    return MB_OK;
}
