/* bind.c: tensors of a checkpoint to the weights of a spec. Every shape is checked against the config and the
 * quantisation entry before a byte is packed; source pages are dropped as they are read, so the weights exist once.
 */
#include <stdio.h>
#include <string.h>

#include "model/model_int.h"

static const char *const prefixes[] = { "model.", "language_model.model.", "model.language_model.", "language_model.", "" };

mb_status bind_find_prefix(struct model_spec *s, const struct checkpoint *c, mb_error *err)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (checkpoint_findf(c, "%sembed_tokens.weight", prefixes[i])) {
            s->prefix = prefixes[i];
            return MB_OK;
        }
    return mb_fail(err, MB_NOT_FOUND, "the checkpoint has no embed_tokens.weight under model. or language_model.; is it a %s "
                   "model in MLX or Hugging Face layout?", s->model_type);
}

/* lm_head lies beside the prefix: "model." -> "lm_head", "language_model.model." -> "language_model.lm_head". */
static char *full_path(const struct model_spec *s, struct arena *a, const char *path)
{
    if (strcmp(path, "lm_head") != 0) return arena_printf(a, "%s%s", s->prefix, path);
    size_t len = strlen(s->prefix);
    size_t keep = len >= 6 && strcmp(s->prefix + len - 6, "model.") == 0 ? len - 6 : 0;
    if (strcmp(s->prefix, "model.language_model.") == 0 || strcmp(s->prefix, "language_model.") == 0) keep = len;
    return arena_printf(a, "%.*slm_head", (int)keep, s->prefix);
}

static mb_status check_vector(const struct tensor_view *t, int64_t n, mb_error *err)
{
    if (t->n_dim != 1 || t->shape[0] != n || !dtype_get(t->dtype)->is_float)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found %d dims of %lld elements (%s), wanted [%lld] floats", t->name,
                       t->n_dim, (long long)(t->n_dim ? t->shape[0] : 1), dtype_get(t->dtype)->name, (long long)n);
    return MB_OK;
}

/* [n][cols]; with n_stack > 0 [n_stack][n / n_stack][cols]. */
static mb_status check_matrix(const struct tensor_view *t, int64_t n, int64_t cols, int32_t n_stack, const char *what, mb_error *err)
{
    if (n_stack > 0) {
        if (t->n_dim == 3 && t->shape[0] == n_stack && t->shape[1] == n / n_stack && t->shape[2] == cols) return MB_OK;
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found %d dims, the first %lld; wanted [%d, %lld, %lld] (%s)", t->name,
                       t->n_dim, (long long)(t->n_dim > 0 ? t->shape[0] : 0), (int)n_stack, (long long)(n / n_stack),
                       (long long)cols, what);
    }
    if (t->n_dim == 2 && t->shape[0] == n && t->shape[1] == cols) return MB_OK;
    return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found [%lld, %lld], wanted [%lld, %lld] (%s)", t->name,
                   (long long)(t->n_dim > 0 ? t->shape[0] : 0), (long long)(t->n_dim > 1 ? t->shape[1] : 0), (long long)n,
                   (long long)cols, what);
}

/* Bytes before the wanted rows of a matrix. */
static size_t rows_before(const struct bind_request *r, const struct tensor_view *t)
{
    return r->n_file ? (size_t)r->first * (t->size_bytes / (size_t)r->n_file) : 0;
}

/* Types of codes and scales by scheme. nvfp4 with a tensor scale of its own is another scheme. */
static mb_status check_types(const struct checkpoint *c, const char *path, const struct quant_spec *q, const struct tensor_view *w,
                             const struct tensor_view *scales, mb_error *err)
{
    bool ok = q->mode == QUANT_AFFINE ? dtype_get(scales->dtype)->is_float : scales->dtype == DT_U8;
    if (w->dtype != DT_U32 || !ok)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s is %s with scales of type %s, wanted U32 codes and %s scales", w->name,
                       dtype_get(w->dtype)->name, dtype_get(scales->dtype)->name, q->mode == QUANT_AFFINE ? "float" : "U8");
    if (q->mode != QUANT_AFFINE && checkpoint_findf(c, "%s.global_scale", path))
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s.global_scale: nvfp4 with a scale of the whole tensor is not read; convert the "
                       "model again without it, or with `mlx-bun convert -q`", path);
    return MB_OK;
}

/* The quantised case: words, scales and biases must agree with bits and group (B-113). */
static mb_status bind_quantised(const struct checkpoint *c, const char *path, const struct tensor_view *w,
                                const struct bind_request *r, struct weight_source *out, mb_error *err)
{
    int64_t n_file = r->n_file ? r->n_file : r->n;
    struct quant_spec *q = &out->spec;
    const struct tensor_view *scales = checkpoint_findf(c, "%s.scales", path);
    const struct tensor_view *biases = checkpoint_findf(c, "%s.biases", path);
    int64_t words = quant_row_words(q, r->k);
    if (w->n_dim == 2 && w->shape[0] == n_file && w->shape[1] != words && words > 0)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s holds %lld-bit codes by its shape [%lld, %lld], config.json says "
                       "%d bits (%lld words a row)", w->name, (long long)(w->shape[1] * 32 / r->k), (long long)n_file,
                       (long long)w->shape[1], q->bits, (long long)words);
    MB_TRY(check_matrix(w, n_file, words, r->n_stack, "u32 words of the quantised rows", err));
    if (!scales) return mb_fail(err, MB_NOT_FOUND, "tensor %s.scales is missing", path);
    MB_TRY(check_types(c, path, q, w, scales, err));
    if (r->k % q->group_size != 0)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: %lld inputs are no multiple of group size %d", w->name,
                       (long long)r->k, q->group_size);
    MB_TRY(check_matrix(scales, n_file, r->k / q->group_size, r->n_stack, "one scale a group", err));
    if (q->mode == QUANT_AFFINE) {
        if (!biases) return mb_fail(err, MB_NOT_FOUND, "tensor %s.biases is missing", path);
        MB_TRY(check_matrix(biases, n_file, r->k / q->group_size, r->n_stack, "one bias a group", err));
        if (biases->dtype != scales->dtype)
            return mb_fail(err, MB_BAD_FORMAT, "tensor %s.biases is %s, its scales are %s", path,
                           dtype_get(biases->dtype)->name, dtype_get(scales->dtype)->name);
    }
    out->dt = scales->dtype;
    out->w = w->data + rows_before(r, w);
    out->scales = scales->data + rows_before(r, scales);
    out->biases = biases ? biases->data + rows_before(r, biases) : NULL;
    return MB_OK;
}

/* Experts as published: blocks of 32 codes in 16 bytes, [experts][rows][k / 32][16], which is MLX's mxfp4 byte for byte; a scale
 * of one byte each. */
static mb_status bind_blocks(const char *path, const char *blocks, const struct tensor_view *w, const struct tensor_view *scales,
                             const struct bind_request *r, struct weight_source *out, mb_error *err)
{
    int64_t n_rows = r->n / r->n_stack * r->n_turns, n_group = r->k / 32;
    if (!scales) return mb_fail(err, MB_NOT_FOUND, "tensor %s_scales is missing", blocks);
    bool ok = w->dtype == DT_U8 && w->n_dim == 4 && w->shape[0] == r->n_stack && w->shape[1] == n_rows && r->k % 32 == 0 &&
              w->shape[2] == n_group && w->shape[3] == 16;
    ok = ok && scales->dtype == DT_U8 && scales->n_dim == 3 && scales->shape[0] == r->n_stack && scales->shape[1] == n_rows &&
         scales->shape[2] == n_group;
    if (!ok)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: wanted U8 [%d, %lld, %lld, 16] and scales U8 [%d, %lld, %lld]", w->name,
                       (int)r->n_stack, (long long)n_rows, (long long)n_group, (int)r->n_stack, (long long)n_rows,
                       (long long)n_group);
    memset(out, 0, sizeof *out);
    out->name = path;
    out->spec = (struct quant_spec){ QUANT_MXFP4, 4, 32 };
    out->dt = DT_U8;
    out->n = r->n;
    out->k = r->k;
    out->row_step = r->n_turns;
    out->w = w->data + r->i_turn * (r->k / 2);
    out->scales = scales->data + r->i_turn * n_group;
    return MB_OK;
}

/* The path of expert i: `pattern` holds one %d. */
static void expert_path(char *path, size_t cap, const char *pattern, int i)
{
    const char *at = strstr(pattern, "%d");
    snprintf(path, cap, "%.*s%d%s", (int)(at - pattern), pattern, i, at + 2);
}

/* One tensor, or a triple of codes, scales and biases. */
static mb_status bind_one(const struct model_spec *s, const struct checkpoint *c, struct arena *a, const struct bind_request *r,
                          struct weight_source *out, mb_error *err)
{
    memset(out, 0, sizeof *out);
    char *path = full_path(s, a, r->path);
    if (!path) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    const struct tensor_view *w = checkpoint_findf(c, "%s.weight", path);
    if (!w) return mb_fail(err, MB_NOT_FOUND, "tensor %s.weight is missing from the checkpoint", path);
    out->name = path;
    out->n = r->n;
    out->k = r->k;
    out->gather_only = r->gather_only;
    out->spec = quant_config_get(s->quant, path);
    /* A module without scales beside it is a plain matrix, whatever the global entry says (as mlx-lm's loader does). */
    if (out->spec.mode != QUANT_NONE && w->dtype != DT_U32 && !checkpoint_findf(c, "%s.scales", path))
        out->spec = (struct quant_spec){ QUANT_NONE, 0, 0 };
    if (out->spec.mode != QUANT_NONE) return bind_quantised(c, path, w, r, out, err);
    if (w->dtype == DT_U32)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s holds packed codes, but config.json has no quantization entry for it",
                       w->name);
    if (w->dtype != DT_F32 && w->dtype != DT_F16 && w->dtype != DT_BF16)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s; this version takes F32, F16, BF16 and weights packed by MLX: "
                       "convert it with mlx-bun convert", w->name, dtype_get(w->dtype)->name);
    out->dt = w->dtype;
    MB_TRY(check_matrix(w, r->n_file ? r->n_file : r->n, r->k, r->n_stack, dtype_get(w->dtype)->name, err));
    out->w = w->data + rows_before(r, w);
    return MB_OK;
}

/* Experts one by one: their pieces in order, as one matrix. */
static mb_status bind_listed(const struct model_spec *s, const struct checkpoint *c, struct arena *a, const struct bind_request *r,
                             struct weight_source *out, mb_error *err)
{
    struct weight_slice *slices = arena_alloc_array(a, (size_t)r->n_stack, sizeof *slices);
    if (!slices) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < r->n_stack; i++) {
        char path[128];
        struct weight_source one;
        expert_path(path, sizeof path, r->listed, i);
        struct bind_request each = { .path = path, .n = r->n / r->n_stack, .k = r->k };
        MB_TRY(bind_one(s, c, a, &each, &one, err));
        if (i > 0 && (one.dt != out->dt || one.spec.bits != out->spec.bits || one.spec.group_size != out->spec.group_size ||
                      one.spec.mode != out->spec.mode))
            return mb_fail(err, MB_UNSUPPORTED, "tensor %s.weight is stored otherwise than that of expert 0: experts of a layer "
                           "must be quantised alike", one.name);
        if (i == 0) *out = one;
        slices[i] = (struct weight_slice){ one.w, one.scales, one.biases };
    }
    out->n = r->n;
    out->w = out->scales = out->biases = NULL;
    out->slices = slices;
    out->n_slices = r->n_stack;
    return MB_OK;
}

mb_status bind_source(const struct model_spec *s, const struct checkpoint *c, struct arena *a,
                      const struct bind_request *r, struct weight_source *out, mb_error *err)
{
    char path[128];
    if (r->n_stack == 0) return bind_one(s, c, a, r, out, err);
    char *blocks = r->blocks ? full_path(s, a, r->blocks) : NULL, *whole = full_path(s, a, r->path);
    const struct tensor_view *packed = blocks ? checkpoint_findf(c, "%s_blocks", blocks) : NULL;
    if (packed && whole)
        return bind_blocks(whole, blocks, packed, checkpoint_findf(c, "%s_scales", blocks), r, out, err);
    if (blocks && checkpoint_findf(c, "%s", blocks))
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s: experts in plain floats, gate and up in one, are not read; take the mxfp4 "
                       "checkpoint as published or an MLX conversion of this model", blocks);
    expert_path(path, sizeof path, r->listed, 0);
    char *first = full_path(s, a, path);
    if (!first) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    return checkpoint_findf(c, "%s.weight", first) ? bind_listed(s, c, a, r, out, err) : bind_one(s, c, a, r, out, err);
}

/* One matrix of layer i, or `n` rows of a fused one. */
struct part {
    const char *name, *fused; /* fused: the matrix that holds it, or NULL */
    int64_t n, k, first, n_file;
    struct weight *dst;
};

static mb_status visit_parts(int i, const struct part *part, size_t n_parts, bind_visit_fn visit, void *ctx, mb_error *err)
{
    char path[128];
    for (size_t p = 0; p < n_parts; p++) {
        snprintf(path, sizeof path, "layers.%d.%s", i, part[p].fused ? part[p].fused : part[p].name);
        struct bind_request r = { .path = path, .n = part[p].n, .k = part[p].k };
        if (part[p].fused) {
            r.first = part[p].first;
            r.n_file = part[p].n_file;
        }
        MB_TRY(visit(ctx, &r, part[p].dst, err));
    }
    return MB_OK;
}

static mb_status visit_attention(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    struct layer_weights *w = &m->layers[i];
    int64_t nq = (int64_t)l->n_head * l->head_dim, nkv = (int64_t)l->n_head_kv * l->head_dim, all = nq + 2 * nkv;
    const char *qkv = s->fused_qkv ? "self_attn.qkv_proj" : NULL;
    const struct part part[] = {
        { "self_attn.q_proj", qkv, nq, s->d_model, 0, all, &w->q },
        { "self_attn.k_proj", qkv, nkv, s->d_model, nq, all, &w->k },
        { "self_attn.v_proj", qkv, nkv, s->d_model, nq + nkv, all, &w->v },
        { "self_attn.o_proj", NULL, s->d_model, nq, 0, 0, &w->o },
    };
    return visit_parts(i, part, sizeof part / sizeof part[0], visit, ctx, err);
}

static mb_status visit_mlp(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    struct layer_weights *w = &m->layers[i];
    int64_t d_ff = s->layers[i].d_ff;
    const char *gate_up = s->fused_gate_up ? "mlp.gate_up_proj" : NULL;
    const struct part part[] = {
        { "mlp.gate_proj", gate_up, d_ff, s->d_model, 0, 2 * d_ff, &w->gate },
        { "mlp.up_proj", gate_up, d_ff, s->d_model, d_ff, 2 * d_ff, &w->up },
        { "mlp.down_proj", NULL, s->d_model, d_ff, 0, 0, &w->down },
    };
    return visit_parts(i, part, sizeof part / sizeof part[0], visit, ctx, err);
}

static mb_status visit_experts(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    const struct moe_names *names = s->moe;
    struct layer_weights *w = &m->layers[i];
    const struct part router = { names->router, NULL, l->n_expert, s->d_model, 0, 0, &w->router };
    const struct { const char *stacked, *listed; int64_t n, k; struct weight *dst; } part[] = {
        { "gate_proj", names->gate, l->d_ff, s->d_model, &w->gate },
        { "up_proj", names->up, l->d_ff, s->d_model, &w->up },
        { "down_proj", names->down, s->d_model, l->d_ff, &w->down },
    };
    char path[128], listed[128], blocks[128];
    MB_TRY(visit_parts(i, &router, 1, visit, ctx, err));
    for (int p = 0; p < 3; p++) {
        snprintf(path, sizeof path, "layers.%d.%s.%s", i, names->stacked, part[p].stacked);
        snprintf(listed, sizeof listed, "layers.%d.%s.%s", i, names->listed, part[p].listed);
        struct bind_request r = { .path = path, .n = l->n_expert * part[p].n, .k = part[p].k, .n_stack = l->n_expert,
                                  .listed = listed };
        if (s->moe_blocks) {
            snprintf(blocks, sizeof blocks, "layers.%d.%s.%s", i, names->stacked, p < 2 ? "gate_up_proj" : "down_proj");
            r.blocks = blocks;
            r.i_turn = p == 1;
            r.n_turns = p < 2 ? 2 : 1;
        }
        MB_TRY(visit(ctx, &r, part[p].dst, err));
    }
    return MB_OK;
}

mb_status bind_visit(struct model *m, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    for (int i = 0; i < s->n_layer; i++) {
        MB_TRY(visit_attention(m, i, visit, ctx, err));
        if (s->layers[i].mlp == MLP_MOE) MB_TRY(visit_experts(m, i, visit, ctx, err));
        else MB_TRY(visit_mlp(m, i, visit, ctx, err));
    }
    struct bind_request embed = { .path = "embed_tokens", .n = s->n_vocab, .k = s->d_model, .gather_only = !s->tied_head };
    MB_TRY(visit(ctx, &embed, &m->embed, err));
    struct bind_request head = { .path = "lm_head", .n = s->n_vocab, .k = s->d_model };
    return s->tied_head ? MB_OK : visit(ctx, &head, &m->head, err);
}

/* n floats from element `first` on, `step` apart, as float32. */
static mb_status read_floats(const struct tensor_view *t, int64_t first, int64_t step, int64_t n, float *v, mb_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = first + i * step;
        uint16_t h;
        if (t->dtype == DT_F32) { memcpy(&v[i], t->data + 4 * at, 4); continue; }
        if (t->dtype != DT_F16 && t->dtype != DT_BF16)
            return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s, wanted F32, F16 or BF16", t->name, dtype_get(t->dtype)->name);
        memcpy(&h, t->data + 2 * at, sizeof h);
        v[i] = t->dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
    return MB_OK;
}

/* A vector as float32, 64-byte aligned by the arena's rounding; plus_one folds Gemma's weight + 1. */
static mb_status load_vector(struct model *m, const struct checkpoint *c, const char *path, int64_t n, bool plus_one,
                             bool optional, const float **out, mb_error *err)
{
    *out = NULL;
    const struct tensor_view *t = checkpoint_findf(c, "%s%s", m->spec.prefix, path);
    if (!t && optional) return MB_OK;
    if (!t) return mb_fail(err, MB_NOT_FOUND, "tensor %s%s is missing from the checkpoint", m->spec.prefix, path);
    MB_TRY(check_vector(t, n, err));
    float *v = arena_alloc_array(&m->arena, (size_t)n, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    MB_TRY(read_floats(t, 0, 1, n, v, err));
    for (int64_t i = 0; plus_one && i < n; i++) v[i] += 1.0f;
    *out = v;
    return MB_OK;
}

/* Biases of all experts, [n_expert][n], of one matrix: MLX's own tensor, or every n_turns-th of the published one. */
static mb_status load_expert_bias(struct model *m, const struct checkpoint *c, int i, const char *name, const char *published,
                                  int i_turn, int n_turns, int64_t n, const float **out, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    int64_t n_expert = s->layers[i].n_expert;
    const struct tensor_view *t = checkpoint_findf(c, "%slayers.%d.%s.%s.bias", s->prefix, i, s->moe->stacked, name);
    if (t) i_turn = 0, n_turns = 1;
    else if (s->moe_blocks) t = checkpoint_findf(c, "%slayers.%d.%s.%s_bias", s->prefix, i, s->moe->stacked, published);
    if (!t)
        return mb_fail(err, MB_NOT_FOUND, "tensor %slayers.%d.%s.%s.bias is missing from the checkpoint", s->prefix, i,
                       s->moe->stacked, name);
    if (t->n_dim != 2 || t->shape[0] != n_expert || t->shape[1] != n * n_turns)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found %d dims, the last %lld; wanted [%lld, %lld]", t->name, t->n_dim,
                       (long long)(t->n_dim > 0 ? t->shape[t->n_dim - 1] : 0), (long long)n_expert, (long long)(n * n_turns));
    float *v = arena_alloc_array(&m->arena, (size_t)(n_expert * n), sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    *out = v;
    return read_floats(t, i_turn, n_turns, n_expert * n, v, err);
}

/* What gpt-oss adds: biases of router and experts, sinks (times log2(e), as the scores of attention are). */
static mb_status load_moe_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    struct layer_weights *w = &m->layers[i];
    char path[128];
    if (l->mlp != MLP_MOE || !s->moe_bias) return MB_OK;
    snprintf(path, sizeof path, "layers.%d.%s.bias", i, s->moe->router);
    MB_TRY(load_vector(m, c, path, l->n_expert, false, false, &w->router_bias, err));
    MB_TRY(load_expert_bias(m, c, i, "gate_proj", "gate_up_proj", 0, 2, l->d_ff, &w->gate_bias, err));
    MB_TRY(load_expert_bias(m, c, i, "up_proj", "gate_up_proj", 1, 2, l->d_ff, &w->up_bias, err));
    return load_expert_bias(m, c, i, "down_proj", "down_proj", 0, 1, s->d_model, &w->down_bias, err);
}

static mb_status load_sinks(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct layer_spec *l = &m->spec.layers[i];
    const float *raw;
    char path[128];
    if (!m->spec.attn_sinks) return MB_OK;
    snprintf(path, sizeof path, "layers.%d.self_attn.sinks", i);
    MB_TRY(load_vector(m, c, path, l->n_head, false, false, &raw, err));
    float *v = arena_alloc_array(&m->arena, (size_t)l->n_head, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int h = 0; h < l->n_head; h++) v[h] = raw[h] * LOG2_E;
    m->layers[i].sinks = v;
    return MB_OK;
}

static mb_status load_layer_vectors(struct model *m, const struct checkpoint *c, int i, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    struct layer_weights *w = &m->layers[i];
    int64_t nq = (int64_t)l->n_head * l->head_dim, nkv = (int64_t)l->n_head_kv * l->head_dim;
    bool one = s->norm_plus_one;
    const struct { const char *name; int64_t n; bool plus_one, wanted; const float **dst; } part[] = {
        { s->norms->attn, s->d_model, one, !s->no_pre_norms, &w->attn_norm },
        { s->norms->mlp, s->d_model, one, !s->no_pre_norms, &w->mlp_norm },
        { s->norms->post_attn, s->d_model, one, s->post_norms, &w->post_attn_norm },
        { s->norms->post_mlp, s->d_model, one, s->post_norms, &w->post_mlp_norm },
        { "self_attn.q_norm", l->qk_norm_whole ? nq : l->head_dim, one, l->qk_norm || l->qk_norm_whole, &w->q_norm },
        { "self_attn.k_norm", l->qk_norm_whole ? nkv : l->head_dim, one, l->qk_norm || l->qk_norm_whole, &w->k_norm },
        { "self_attn.q_proj.bias", nq, false, s->attn_bias_qkv, &w->q_bias },
        { "self_attn.k_proj.bias", nkv, false, s->attn_bias_qkv, &w->k_bias },
        { "self_attn.v_proj.bias", nkv, false, s->attn_bias_qkv, &w->v_bias },
        { "self_attn.o_proj.bias", s->d_model, false, s->attn_bias_o, &w->o_bias },
        { "mlp.gate_proj.bias", l->d_ff, false, s->mlp_bias, &w->gate_bias },
        { "mlp.up_proj.bias", l->d_ff, false, s->mlp_bias, &w->up_bias },
        { "mlp.down_proj.bias", s->d_model, false, s->mlp_bias, &w->down_bias },
    };
    char path[128];
    for (size_t p = 0; p < sizeof part / sizeof part[0]; p++) {
        bool is_bias = part[p].name && strstr(part[p].name, ".bias");
        snprintf(path, sizeof path, "layers.%d.%s%s", i, part[p].name ? part[p].name : "", is_bias ? "" : ".weight");
        if (part[p].wanted)
            MB_TRY(load_vector(m, c, path, part[p].n, part[p].plus_one, false, part[p].dst, err));
        else if (is_bias && checkpoint_findf(c, "%s%s", s->prefix, path))
            return mb_fail(err, MB_BAD_FORMAT, "tensor %s%s is in the checkpoint, but config.json says there is no such bias",
                           s->prefix, path);
    }
    MB_TRY(load_sinks(m, c, i, err));
    return load_moe_vectors(m, c, i, err);
}

struct pack_ctx {
    struct model *m;
    const struct checkpoint *c;
    const struct model_options *opt;
    size_t done_bytes, total_bytes;
};

/* Its tensors have been read: counted, and their pages go. */
static void done_with(struct pack_ctx *p, const struct bind_request *r, const char *name)
{
    static const char *const suffix[] = { "weight", "scales", "biases" };
    for (int i = 0; i < 3; i++) {
        const struct tensor_view *t = checkpoint_findf(p->c, "%s.%s", name, suffix[i]);
        if (!t) continue;
        p->done_bytes += r->n_file ? t->size_bytes / (size_t)r->n_file * (size_t)r->n : t->size_bytes;
        bool last = !r->n_file || r->first + r->n == r->n_file; /* the parts of a fused matrix are read one after another */
        if (!r->gather_only && last) checkpoint_drop(p->c, t);
    }
}

/* The same for published experts; gate and up are read one after the other. */
static void done_with_blocks(struct pack_ctx *p, const struct bind_request *r)
{
    static const char *const suffix[] = { "blocks", "scales" };
    for (int i = 0; i < 2; i++) {
        const struct tensor_view *t = checkpoint_findf(p->c, "%s%s_%s", p->m->spec.prefix, r->blocks, suffix[i]);
        if (!t) continue;
        p->done_bytes += t->size_bytes / (size_t)r->n_turns;
        if (r->i_turn + 1 == r->n_turns) checkpoint_drop(p->c, t);
    }
}

static mb_status pack_one(void *ctx, const struct bind_request *r, struct weight *dst, mb_error *err)
{
    struct pack_ctx *p = ctx;
    struct weight_source src;
    size_t bytes = 0;
    MB_TRY(bind_source(&p->m->spec, p->c, &p->m->arena, r, &src, err));
    src.i_module = p->m->n_modules++;
    dst->n = r->n;
    dst->k = r->k;
    dst->group = bind_group(&src.spec);
    dst->i_module = src.i_module;
    dst->name = src.name;
    MB_TRY(p->m->ops->pack_bytes(p->m->device, &src, &bytes, err));
    MB_TRY(p->m->ops->pack(p->m->device, &src, dst, err));
    p->m->weight_bytes += bytes;
    char path[128];
    if (src.n_slices == 0) done_with(p, r, src.name);
    if (src.row_step > 0) done_with_blocks(p, r);
    for (int i = 0; i < src.n_slices; i++) {
        expert_path(path, sizeof path, r->listed, i);
        const char *name = full_path(&p->m->spec, &p->m->arena, path);
        if (name) done_with(p, r, name);
    }
    if (p->opt->progress && p->total_bytes)
        p->opt->progress(p->opt->progress_ctx, (double)p->done_bytes / (double)p->total_bytes);
    return MB_OK;
}

mb_status bind_weights(struct model *m, const struct checkpoint *c, const struct model_options *opt, mb_error *err)
{
    struct pack_ctx p = { m, c, opt, 0, checkpoint_total_bytes(c) };
    for (int i = 0; i < m->spec.n_layer; i++) MB_TRY(load_layer_vectors(m, c, i, err));
    MB_TRY(load_vector(m, c, "norm.weight", m->spec.d_model, m->spec.norm_plus_one, false, &m->final_norm, err));
    return bind_visit(m, pack_one, &p, err);
}
