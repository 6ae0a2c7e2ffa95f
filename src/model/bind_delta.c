/* bind_delta.c: matrices and vectors of gated delta nets, and which layout a hybrid checkpoint has: as published, the taps of
 * the convolution lie in [channels, 1, taps] and norms hold weight - 1; in MLX's, in [channels, taps, 1] and norms are as they
 * are used.
 */
#include <stdio.h>

#include "model/model_int.h"
#include "ops/mathfn.h"

mb_status bind_visit_delta(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct delta_spec *d = &s->delta;
    struct layer_weights *w = &m->layers[i];
    int64_t key = (int64_t)d->n_head_k * d->dim_k, value = (int64_t)d->n_head_v * d->dim_v;
    const struct { const char *name; int64_t n, k; struct weight *dst; } four[] = {
        { "in_proj_qkv", 2 * key + value, s->d_model, &w->delta_qkv }, { "in_proj_z", value, s->d_model, &w->delta_z },
        { "in_proj_b", d->n_head_v, s->d_model, &w->delta_b },         { "in_proj_a", d->n_head_v, s->d_model, &w->delta_a },
        { "out_proj", s->d_model, value, &w->o },
    }, two[] = {
        { "in_proj_qkvz", 2 * key + 2 * value, s->d_model, &w->delta_qkv },
        { "in_proj_ba", 2 * d->n_head_v, s->d_model, &w->delta_b },
        { "out_proj", s->d_model, value, &w->o },
    }, *part = d->fused ? two : four;
    char path[128];
    for (int p = 0; p < (d->fused ? 3 : 5); p++) {
        snprintf(path, sizeof path, "layers.%d.linear_attn.%s", i, part[p].name);
        struct bind_request r = { .path = path, .n = part[p].n, .k = part[p].k, .split = SPLIT_NEVER };
        MB_TRY(visit(ctx, &r, part[p].dst, err));
    }
    return MB_OK;
}

static mb_status find_conv(const struct model *m, const struct checkpoint *c, int i, const struct tensor_view **out, mb_error *err)
{
    const struct delta_spec *d = &m->spec.delta;
    int64_t n = 2 * (int64_t)d->n_head_k * d->dim_k + (int64_t)d->n_head_v * d->dim_v;
    const struct tensor_view *t = checkpoint_findf(c, "%slayers.%d.linear_attn.conv1d.weight", m->spec.prefix, i);
    if (!t)
        return mb_fail(err, MB_NOT_FOUND, "tensor %slayers.%d.linear_attn.conv1d.weight is missing from the checkpoint",
                       m->spec.prefix, i);
    bool ok = t->n_dim == 3 && t->shape[0] == n && t->shape[1] * t->shape[2] == d->n_conv &&
              (t->shape[1] == 1 || t->shape[2] == 1) && dtype_get(t->dtype)->is_float;
    if (!ok)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found %d dims, the first %lld (%s); wanted [%lld, %d, 1] or [%lld, 1, %d] floats",
                       t->name, t->n_dim, (long long)(t->n_dim > 0 ? t->shape[0] : 0), dtype_get(t->dtype)->name, (long long)n,
                       d->n_conv, (long long)n, d->n_conv);
    *out = t;
    return MB_OK;
}

mb_status bind_delta_layout(struct model *m, const struct checkpoint *c, mb_error *err)
{
    for (int i = 0; i < m->spec.n_layer; i++) {
        const struct tensor_view *t;
        if (m->spec.layers[i].attn != ATTN_GATED_DELTA) continue;
        MB_TRY(find_conv(m, c, i, &t, err));
        m->spec.norm_plus_one = t->shape[2] != 1;
        return MB_OK;
    }
    return MB_OK;
}

/* Taps as rows over all channels: element (channel, tap) stands at the same place in both layouts. */
static mb_status load_conv(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct tensor_view *t;
    MB_TRY(find_conv(m, c, i, &t, err));
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s, wanted F32, F16 or BF16", t->name, dtype_get(t->dtype)->name);
    int64_t n = t->shape[0], n_tap = m->spec.delta.n_conv;
    float *v = arena_alloc_array(&m->arena, (size_t)(n * n_tap), sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int64_t j = 0; j < n_tap; j++)
        for (int64_t ch = 0; ch < n; ch++) v[j * n + ch] = dtype_float_at(t->data, t->dtype, ch * n_tap + j);
    m->layers[i].delta_conv = v;
    return MB_OK;
}

mb_status bind_delta_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct delta_spec *d = &m->spec.delta;
    struct layer_weights *w = &m->layers[i];
    const float *log_decay;
    char path[128];
    snprintf(path, sizeof path, "layers.%d.linear_attn.dt_bias", i);
    MB_TRY(bind_vector(m, c, path, d->n_head_v, &w->delta_bias, err));
    snprintf(path, sizeof path, "layers.%d.linear_attn.norm.weight", i);
    MB_TRY(bind_vector(m, c, path, d->dim_v, &w->delta_norm, err));
    snprintf(path, sizeof path, "layers.%d.linear_attn.A_log", i);
    MB_TRY(bind_vector(m, c, path, d->n_head_v, &log_decay, err));
    float *v = arena_alloc_array(&m->arena, (size_t)d->n_head_v, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int h = 0; h < d->n_head_v; h++) v[h] = (float)mb_pow_d(2.71828182845904523536, (double)log_decay[h]);
    w->delta_decay = v;
    return load_conv(m, c, i, err);
}
