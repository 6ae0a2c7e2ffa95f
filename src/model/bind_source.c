/* bind_source.c: where the rows of a matrix are: the tensors of a module found, their shapes and types checked against the config
 * and the quantisation entry before a byte is packed, and described as a weight_source. Fused matrices; experts in one tensor,
 * one by one, or in blocks as gpt-oss publishes them.
 */
#include <stdio.h>
#include <string.h>

#include "format/fp8.h"
#include "model/model_int.h"

static const char *const prefixes[] = { "model.", "language_model.model.", "model.language_model.", "language_model.", "model.decoder.",
                                       "" };

mb_status model_find_prefix(struct model_spec *s, const struct checkpoint *c, mb_error *err)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (checkpoint_findf(c, "%sembed_tokens.weight", prefixes[i])) {
            s->prefix = prefixes[i];
            char *head = s->tied_unsaid ? bind_path(s, &s->arena, "lm_head") : NULL;
            if (s->tied_unsaid && !head) return mb_fail(err, MB_NO_MEMORY, "out of memory");
            if (head && checkpoint_findf(c, "%s.weight", head)) s->tied_head = false;
            return MB_OK;
        }
    return mb_fail(err, MB_NOT_FOUND, "the checkpoint has no embed_tokens.weight under model. or language_model.; is it a %s "
                   "model in MLX or Hugging Face layout?", s->model_type);
}

/* lm_head lies beside the prefix: "model." -> "lm_head", "language_model.model." -> "language_model.lm_head". */
char *bind_path(const struct model_spec *s, struct arena *a, const char *path)
{
    if (strcmp(path, "lm_head") != 0) return arena_printf(a, "%s%s", s->prefix, path);
    size_t len = strlen(s->prefix);
    size_t keep = len >= 6 && strcmp(s->prefix + len - 6, "model.") == 0 ? len - 6 : 0;
    if (strcmp(s->prefix, "language_model.") == 0) keep = len;
    if (strcmp(s->prefix, "model.language_model.") == 0) keep = 0; /* as published: beside the whole model */
    return arena_printf(a, "%.*slm_head", (int)keep, s->prefix);
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
    bool floats = !quant_is_fp(q), ok = floats ? dtype_get(scales->dtype)->is_float : scales->dtype == DT_U8;
    if (w->dtype != DT_U32 || !ok)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s is %s with scales of type %s, wanted U32 codes and %s scales", w->name,
                       dtype_get(w->dtype)->name, dtype_get(scales->dtype)->name, floats ? "float" : "U8");
    if (q->mode == QUANT_TRELLIS && checkpoint_findf(c, "%s.biases", path))
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s.biases: config.json says that %s is trellis-coded, which has scales alone", path, path);
    if (quant_is_fp(q) && checkpoint_findf(c, "%s.global_scale", path))
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s.global_scale: nvfp4 with a scale of the whole tensor is not read; convert the "
                       "model again without it, or as another format", path);
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
    int last = r->n_stack > 0 ? 2 : 1; /* the dim of words */
    int64_t n_rows = r->n_stack > 0 ? n_file / r->n_stack : n_file;
    if (w->n_dim == last + 1 && w->shape[last - 1] == n_rows && w->shape[last] != words && words > 0)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s holds %lld-bit codes by its shape [%s%lld, %lld], config.json says "
                       "%d bits (%lld words a row)", w->name, (long long)(w->shape[last] * 32 / r->k), last == 2 ? "experts, " : "",
                       (long long)n_rows, (long long)w->shape[last], q->bits, (long long)words);
    MB_TRY(check_matrix(w, n_file, words, r->n_stack, "u32 words of the quantised rows", err));
    if (!scales) return mb_fail(err, MB_NOT_FOUND, "tensor %s.scales is missing", path);
    MB_TRY(check_types(c, path, q, w, scales, err));
    if (r->k % q->group_size != 0)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: %lld inputs are no multiple of group size %d", w->name,
                       (long long)r->k, q->group_size);
    MB_TRY(check_matrix(scales, n_file, r->k / q->group_size, r->n_stack, "one scale a group", err));
    if (quant_has_biases(q)) {
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

/* Published experts in plain floats: [experts][n_turns * rows][k], the wanted rows together in each expert. */
static mb_status bind_plain_stack(struct arena *a, const char *path, const struct tensor_view *w, const struct bind_request *r,
                                  struct weight_source *out, mb_error *err)
{
    if (w->dtype != DT_F32 && w->dtype != DT_F16 && w->dtype != DT_BF16)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s; this version takes published experts in F32, F16 and BF16: take an "
                       "MLX conversion of this model", w->name, dtype_get(w->dtype)->name);
    MB_TRY(check_matrix(w, r->n * r->n_turns, r->k, r->n_stack, dtype_get(w->dtype)->name, err));
    struct weight_slice *slices = arena_alloc_array(a, (size_t)r->n_stack, sizeof *slices);
    if (!slices) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    size_t each = w->size_bytes / (size_t)r->n_stack, part = each / (size_t)r->n_turns;
    memset(out, 0, sizeof *out);
    for (int32_t i = 0; i < r->n_stack; i++) slices[i].w = w->data + (size_t)i * each + (size_t)r->i_turn * part;
    out->name = path;
    out->dt = w->dtype;
    out->n = r->n;
    out->k = r->k;
    out->slices = slices;
    out->n_slices = r->n_stack;
    return MB_OK;
}

/* A source that was read whole is these pieces of it, one a member of the stack. */
static void become_slices(struct weight_source *out, const struct bind_request *r, const char *path, const struct weight_slice *slices)
{
    out->name = path;
    out->n = r->n;
    out->k = r->k;
    out->w = out->scales = out->biases = NULL;
    out->slices = slices;
    out->n_slices = r->n_stack;
}

/* The same as a module with quantised rows: codes, scales and biases of gate and up in one tensor each. */
static mb_status bind_quantised_stack(const struct checkpoint *c, struct arena *a, const char *path, const char *published,
                                      const struct tensor_view *w, const struct bind_request *r, struct weight_source *out,
                                      mb_error *err)
{
    struct bind_request whole = { .n = r->n * r->n_turns, .k = r->k, .n_stack = r->n_stack };
    MB_TRY(bind_quantised(c, published, w, &whole, out, err));
    struct weight_slice *slices = arena_alloc_array(a, (size_t)r->n_stack, sizeof *slices);
    if (!slices) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    const struct tensor_view *scales = checkpoint_findf(c, "%s.scales", published);
    const uint8_t *codes = out->w, *s = out->scales, *b = out->biases;
    size_t each_w = w->size_bytes / (size_t)r->n_stack, part_w = (size_t)r->i_turn * (each_w / (size_t)r->n_turns);
    size_t each_s = scales->size_bytes / (size_t)r->n_stack, part_s = (size_t)r->i_turn * (each_s / (size_t)r->n_turns);
    for (size_t i = 0; i < (size_t)r->n_stack; i++)
        slices[i] = (struct weight_slice){ codes + i * each_w + part_w, s + i * each_s + part_s,
                                           b ? b + i * each_s + part_s : NULL, 0 };
    become_slices(out, r, path, slices);
    return MB_OK;
}

/* A module of its own (MLX): quantised, or plain as published. */
static mb_status bind_fused_module(const struct model_spec *s, const struct checkpoint *c, struct arena *a, const char *path,
                                   const char *published, const struct tensor_view *w, const struct bind_request *r,
                                   struct weight_source *out, mb_error *err)
{
    if (w->dtype != DT_U32) return bind_plain_stack(a, path, w, r, out, err);
    memset(out, 0, sizeof *out);
    out->spec = quant_config_get(s->quant, published);
    if (out->spec.mode == QUANT_NONE)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s holds packed codes, but config.json has no quantization entry for it", w->name);
    return bind_quantised_stack(c, a, path, published, w, r, out, err);
}

/* Experts as the model's own files hold them; *found: they do. */
static mb_status bind_published(const struct model_spec *s, const struct checkpoint *c, struct arena *a,
                                const struct bind_request *r, struct weight_source *out, bool *found, mb_error *err)
{
    char *path = bind_path(s, a, r->path), *published = bind_path(s, a, r->published);
    if (!path || !published) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    const struct tensor_view *blocks = s->moe_blocks ? checkpoint_findf(c, "%s_blocks", published) : NULL;
    const struct tensor_view *plain = checkpoint_findf(c, "%s", published);
    const struct tensor_view *module = blocks || plain || s->moe_blocks ? NULL : checkpoint_findf(c, "%s.weight", published);
    *found = blocks || plain || module;
    if (module) return bind_fused_module(s, c, a, path, published, module, r, out, err);
    if (blocks) return bind_blocks(path, published, blocks, checkpoint_findf(c, "%s_scales", published), r, out, err);
    if (plain && s->moe_blocks)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s: experts in plain floats, gate and up in one, are not read; take the mxfp4 "
                       "checkpoint as published or an MLX conversion of this model", published);
    return plain ? bind_plain_stack(a, path, plain, r, out, err) : MB_OK;
}

/* The path of expert i: `pattern` holds one %d. */
void bind_expert_path(char *path, size_t cap, const char *pattern, int i)
{
    const char *at = strstr(pattern, "%d");
    snprintf(path, cap, "%.*s%d%s", (int)(at - pattern), pattern, i, at + 2);
}

/* Block-scaled float8, whose scales are found by the row of the whole matrix. Rows are never gathered from the file. */
static mb_status bind_float8(const struct checkpoint *c, const char *path, const struct tensor_view *w, const struct bind_request *r,
                             struct weight_source *out, mb_error *err)
{
    const struct tensor_view *scales;
    MB_TRY(fp8_scales_find(c, path, w, &scales, err));
    out->scales = scales->data;
    out->block_dt = scales->dtype;
    out->row0 = r->n_file ? r->first : 0;
    out->gather_only = false;
    return MB_OK;
}

/* One tensor, or a triple of codes, scales and biases. */
static mb_status bind_one(const struct model_spec *s, const struct checkpoint *c, struct arena *a, const struct bind_request *r,
                          struct weight_source *out, mb_error *err)
{
    memset(out, 0, sizeof *out);
    char *path = bind_path(s, a, r->path);
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
    if (w->dtype == DT_F8_E4M3) MB_TRY(bind_float8(c, path, w, r, out, err));
    else if (w->dtype != DT_F32 && w->dtype != DT_F16 && w->dtype != DT_BF16)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s; this version takes F32, F16, BF16, block-scaled F8_E4M3 and weights packed by MLX: "
                       "take an MLX conversion of this model", w->name, dtype_get(w->dtype)->name);
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
        bind_expert_path(path, sizeof path, r->listed, i);
        struct bind_request each = { .path = path, .n = r->n / r->n_stack, .k = r->k };
        MB_TRY(bind_one(s, c, a, &each, &one, err));
        if (i > 0 && (one.dt != out->dt || one.block_dt != out->block_dt || one.spec.bits != out->spec.bits || one.spec.group_size != out->spec.group_size ||
                      one.spec.mode != out->spec.mode))
            return mb_fail(err, MB_UNSUPPORTED, "tensor %s.weight is stored otherwise than that of expert 0: experts of a layer "
                           "must be quantised alike", one.name);
        if (i == 0) *out = one;
        slices[i] = (struct weight_slice){ one.w, one.scales, one.biases, one.row0 };
    }
    out->n = r->n;
    out->w = out->scales = out->biases = NULL;
    out->slices = slices;
    out->n_slices = r->n_stack;
    return MB_OK;
}

/* Pieces that lie in another matrix beside something else: kv_b_proj, which holds of each head what leads to keys (turned) and to
 * values. */
static mb_status bind_halves(const struct model_spec *s, const struct checkpoint *c, struct arena *a, const struct bind_request *r,
                             struct weight_source *out, mb_error *err)
{
    char *path = bind_path(s, a, r->path);
    struct weight_slice *slices = arena_alloc_array(a, (size_t)r->n_stack, sizeof *slices);
    if (!path || !slices) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    int64_t width = r->halves_turned ? r->n / r->n_stack : r->k; /* of a row in the file */
    struct bind_request whole = { .path = r->halves, .n = (int64_t)r->n_stack * r->halves_rows, .k = width };
    MB_TRY(bind_one(s, c, a, &whole, out, err));
    bool plain = out->spec.mode == QUANT_NONE;
    size_t elem = dtype_get(out->dt)->size_bytes, scale = plain ? 0 : elem * (size_t)(width / out->spec.group_size);
    size_t row = plain ? elem * (size_t)width : 4 * (size_t)quant_row_words(&out->spec, width);
    for (int32_t i = 0; i < r->n_stack; i++) {
        size_t first = (size_t)i * (size_t)r->halves_rows + (size_t)r->halves_first;
        slices[i].w = (const uint8_t *)out->w + first * row;
        slices[i].row0 = (int64_t)first;
        slices[i].scales = out->scales ? (const uint8_t *)out->scales + first * scale : NULL;
        slices[i].biases = out->biases ? (const uint8_t *)out->biases + first * scale : NULL;
    }
    become_slices(out, r, path, slices);
    out->turned = r->halves_turned;
    return MB_OK;
}

mb_status bind_source(const struct model_spec *s, const struct checkpoint *c, struct arena *a,
                      const struct bind_request *r, struct weight_source *out, mb_error *err)
{
    char path[128];
    if (r->n_stack == 0) return bind_one(s, c, a, r, out, err);
    if (r->halves && checkpoint_findf(c, "%s%s.weight", s->prefix, r->halves)) return bind_halves(s, c, a, r, out, err);
    if (r->published) {
        bool found = false;
        MB_TRY(bind_published(s, c, a, r, out, &found, err));
        if (found) return MB_OK;
    }
    if (!r->listed) return bind_one(s, c, a, r, out, err);
    bind_expert_path(path, sizeof path, r->listed, 0);
    char *first = bind_path(s, a, path);
    if (!first) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    return checkpoint_findf(c, "%s.weight", first) ? bind_listed(s, c, a, r, out, err) : bind_one(s, c, a, r, out, err);
}
