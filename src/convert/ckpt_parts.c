/* ckpt_parts.c: tensors of the source that are more or fewer in MLX's layout: experts one by one, all of them in one tensor, in
 * blocks as gpt-oss is published; kv_b_proj. Each becomes items of the plan, whose rows are found in the source as it is.
 */
#include <string.h>

#include "convert/ckpt_int.h"

static mb_status no_memory(const struct conv *c, mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tensor list", c->src_dir);
}

static bool is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* Experts one by one become one tensor of three dims, when the first of them comes by. */
mb_status conv_experts_add(struct conv *c, const struct conv_expert *e, mb_error *err)
{
    size_t n = (size_t)c->spec.layers[e->layer].n_expert;
    if ((size_t)e->i_expert >= n)
        return mb_fail(err, MB_BAD_FORMAT, "%s: layer %d has an expert %d, config.json says %zu", c->src_dir, e->layer, e->i_expert, n);
    if (e->i_expert > 0) { /* they come with the first, which must be there then */
        char first[256];
        if (checkpoint_find(c->ckpt, conv_expert_source(c, e, 0, first, sizeof first))) return MB_OK;
        return mb_fail(err, MB_NOT_FOUND, "tensor %s is missing from the checkpoint", first);
    }
    const struct tensor_view **src = arena_alloc_array(&c->arena, n, sizeof *src);
    const char *name = conv_expert_target(c, e);
    if (!src || !name) return no_memory(c, err);
    for (size_t i = 0; i < n; i++) {
        char path[256];
        src[i] = checkpoint_find(c->ckpt, conv_expert_source(c, e, (int)i, path, sizeof path));
        if (!src[i]) return mb_fail(err, MB_NOT_FOUND, "tensor %s is missing from the checkpoint", path);
        if (src[i]->n_dim != 2 || src[i]->dtype != src[0]->dtype || memcmp(src[i]->shape, src[0]->shape, 2 * sizeof(int64_t)) != 0)
            return mb_fail(err, MB_BAD_FORMAT, "tensor %s differs in type or shape from that of expert 0", path);
    }
    return conv_item_add(c, name, src, n, NULL, err);
}

/* The same tensor under a weight's name, as mlx-vlm has it (diffusion_gemma). */
static mb_status fused_add(struct conv *c, const struct tensor_view *t, mb_error *err)
{
    const struct tensor_view **src = arena_alloc(&c->arena, sizeof *src);
    const char *name = arena_printf(&c->arena, "%s.weight", t->name);
    if (!src || !name) return no_memory(c, err);
    src[0] = t;
    return conv_item_add(c, name, src, 1, NULL, err);
}

/* All experts in one tensor: as if they came one by one, gate and up each by itself. */
mb_status conv_published_add(struct conv *c, const struct conv_expert *e, const struct tensor_view *t, mb_error *err)
{
    size_t n = (size_t)c->spec.layers[e->layer].n_expert;
    int n_parts = e->i_part == 0 ? 2 : 1;
    if (n == 0 || t->n_dim != 3 || !is_float(t->dtype) || (size_t)t->shape[0] != n || t->shape[1] % n_parts != 0)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: wanted floats of three dims for %zu experts", t->name, n);
    if (c->spec.canvas.n > 0) return fused_add(c, t, err);
    for (int p = 0; p < n_parts; p++) {
        struct conv_expert part = { e->layer, 0, e->i_part + p };
        struct tensor_view *views = arena_alloc_array(&c->arena, n, sizeof *views);
        const struct tensor_view **src = arena_alloc_array(&c->arena, n, sizeof *src);
        const char *name = conv_expert_target(c, &part);
        if (!views || !src || !name) return no_memory(c, err);
        size_t each = t->size_bytes / n, bytes = each / (size_t)n_parts;
        for (size_t i = 0; i < n; i++) {
            views[i] = (struct tensor_view){ .name = t->name, .dtype = t->dtype, .n_dim = 2, .size_bytes = bytes,
                                             .shape = { t->shape[1] / n_parts, t->shape[2] }, .i_shard = t->i_shard,
                                             .data = t->data + i * each + (size_t)p * bytes };
            src[i] = &views[i];
        }
        MB_TRY(conv_item_add(c, name, src, n, NULL, err));
    }
    return MB_OK;
}

/* --- gpt-oss as published: experts in blocks of 32 codes, MLX's mxfp4 byte for byte; rows of gate and up in turn --- */

/* The i_turn-th of every n_turns rows of a tensor of experts, as a tensor: its shape and share of the bytes, from the first byte of the
 * whole on. NULL without memory. */
static const struct tensor_view **turn_of(struct conv *c, const struct tensor_view *t, int n_turns, enum dtype dtype, int64_t width)
{
    struct tensor_view *v = arena_alloc(&c->arena, sizeof *v);
    const struct tensor_view **src = arena_alloc(&c->arena, sizeof *src);
    if (!v || !src) return NULL;
    *v = *t;
    v->dtype = dtype;
    v->shape[1] /= n_turns;
    v->size_bytes /= (size_t)n_turns;
    v->n_dim = width > 0 ? 3 : 2;
    if (width > 0) v->shape[2] = width;
    src[0] = v;
    return src;
}

static mb_status codes_add(struct conv *c, const struct conv_expert *e, const struct tensor_view *t, int n_turns, mb_error *err)
{
    size_t n = (size_t)c->spec.layers[e->layer].n_expert, k = strlen("_blocks");
    const struct tensor_view *s = checkpoint_findf(c->ckpt, "%.*s_scales", (int)(strlen(t->name) - k), t->name);
    if (!s) return mb_fail(err, MB_NOT_FOUND, "tensor %.*s_scales is missing", (int)(strlen(t->name) - k), t->name);
    bool fits = n > 0 && t->dtype == DT_U8 && t->n_dim == 4 && (size_t)t->shape[0] == n && t->shape[1] % n_turns == 0 && t->shape[3] == 16;
    fits = fits && s->dtype == DT_U8 && s->n_dim == 3 && memcmp(s->shape, t->shape, 3 * sizeof(int64_t)) == 0;
    if (!fits)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: wanted U8 [%zu, rows, groups, 16] and scales of its first three dims", t->name, n);
    for (int i = 0; i < n_turns; i++) {
        struct conv_expert part = { e->layer, 0, e->i_part + i };
        const struct tensor_view **src = turn_of(c, t, n_turns, DT_U32, t->shape[2] * 4);
        const struct tensor_view **scales = turn_of(c, s, n_turns, DT_U8, t->shape[2]);
        const char *name = conv_expert_target(c, &part);
        if (!src || !scales || !name) return no_memory(c, err);
        struct conv_item told = { .n_turns = n_turns, .i_turn = i, .n_rows = t->shape[0] * src[0]->shape[1], .n_in = t->shape[2] * 32,
                                  .from = { QUANT_MXFP4, 4, 32 }, .scales = scales[0] };
        MB_TRY(conv_item_add(c, name, src, 1, &told, err));
    }
    return MB_OK;
}

/* Biases of the rows, one a row. */
static mb_status biases_add(struct conv *c, const struct conv_expert *e, const struct tensor_view *t, int n_turns, mb_error *err)
{
    size_t n = (size_t)c->spec.layers[e->layer].n_expert;
    if (!is_float(t->dtype) || t->n_dim != 2 || (size_t)t->shape[0] != n || t->shape[1] % n_turns != 0)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: wanted floats of two dims for %zu experts", t->name, n);
    for (int i = 0; i < n_turns; i++) {
        struct conv_expert part = { e->layer, 0, e->i_part + i };
        const struct tensor_view **src = turn_of(c, t, n_turns, t->dtype, 0);
        const char *weight = conv_expert_target(c, &part);
        const char *name = weight ? arena_printf(&c->arena, "%.*sbias", (int)(strlen(weight) - strlen("weight")), weight) : NULL;
        if (!src || !name) return no_memory(c, err);
        struct conv_item told = { .n_turns = n_turns, .i_turn = i, .n_rows = (int64_t)n * src[0]->shape[1], .n_in = 1 };
        MB_TRY(conv_item_add(c, name, src, 1, &told, err));
    }
    return MB_OK;
}

mb_status conv_blocks_add(struct conv *c, const struct conv_expert *e, const struct tensor_view *t, const char *tail, mb_error *err)
{
    int n_turns = e->i_part == 0 ? 2 : 1;
    if (strcmp(tail, "_blocks") == 0) return codes_add(c, e, t, n_turns, err);
    if (strcmp(tail, "_bias") == 0) return biases_add(c, e, t, n_turns, err);
    if (strcmp(tail, "_scales") != 0)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s: experts in plain floats, gate and up in one, are not read; take the mxfp4 "
                       "checkpoint as published or an MLX conversion of this model", t->name);
    size_t n = strlen(t->name) - strlen("_scales"); /* it comes with the codes, which must be there then */
    if (checkpoint_findf(c->ckpt, "%.*s_blocks", (int)n, t->name)) return MB_OK;
    return mb_fail(err, MB_NOT_FOUND, "tensor %.*s_blocks is missing", (int)n, t->name);
}

/* --- attention over latents --- */

/* kv_b_proj as published: of each head what leads to keys, which MLX keeps turned as embed_q, then what leads to values: unembed_out. */
mb_status conv_kv_add(struct conv *c, const struct tensor_view *t, int layer, mb_error *err)
{
    const struct latent_spec *l = &c->spec.latent;
    int32_t n_head = c->spec.layers[layer].n_head, rows = l->d_nope + l->d_value;
    if (t->n_dim != 2 || t->shape[0] != (int64_t)n_head * rows || t->shape[1] != l->kv_rank)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found [%lld, %lld], wanted [%lld, %d]", t->name, (long long)(t->n_dim > 0 ? t->shape[0] : 0),
                       (long long)(t->n_dim > 1 ? t->shape[1] : 0), (long long)n_head * rows, l->kv_rank);
    const struct { const char *name; struct conv_item is; } part[] = {
        { "embed_q", { .n_head = n_head, .head_rows = rows, .turned = true, .n_rows = (int64_t)n_head * l->kv_rank, .n_in = l->d_nope } },
        { "unembed_out", { .n_head = n_head, .head_rows = rows, .head_first = l->d_nope, .n_rows = (int64_t)n_head * l->d_value,
                           .n_in = l->kv_rank } },
    };
    for (int p = 0; p < 2; p++) {
        const struct tensor_view **src = arena_alloc(&c->arena, sizeof *src);
        const char *name = arena_printf(&c->arena, "%slayers.%d.self_attn.%s.weight", c->spec.prefix, layer, part[p].name);
        if (!src || !name) return no_memory(c, err);
        src[0] = t;
        MB_TRY(conv_item_add(c, name, src, 1, &part[p].is, err));
    }
    return MB_OK;
}
