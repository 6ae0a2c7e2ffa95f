/* gguf_import_plan.c: for each tensor of the source, what becomes of it: new name, rows, type, and the three tensors of a
 * quantised module. After this every size of the output is known.
 */
#include <math.h>
#include <string.h>

#include "convert/gguf_import_int.h"

static bool fits_f16(float f)
{
    return f16_to_f32(f32_to_f16(f)) == f;
}

/* Only a bias that is a multiple of the scale can leave float16; look at all of them. */
static enum dtype scale_dtype(const struct gguf_tensor *t, const struct import_scheme *s)
{
    if (!s->f16_scales) return DT_F32;
    size_t n_blocks = t->size_bytes / (size_t)t->type->block_bytes;
    for (size_t i = 0; i < n_blocks; i++) {
        struct import_group group;
        uint16_t d;
        memcpy(&d, t->data + i * (size_t)t->type->block_bytes, sizeof d);
        if ((d & 0x7fff) < 0x5c00) continue; /* |d| < 256: 128 times it is below the largest float16 */
        s->split(t->data + i * (size_t)t->type->block_bytes, &group);
        if (isfinite(group.scale) && !fits_f16(group.bias)) return DT_F32;
    }
    return DT_F16;
}

static mb_status refuse_type(struct import *im, const struct gguf_tensor *t, mb_error *err)
{
    return mb_fail(err, MB_UNSUPPORTED,
                   "%s: tensor %s is of type %s, which cannot be imported; take a Q4_K_M, Q5_K_M, Q6_K, Q8_0, Q4_0, F16 or "
                   "BF16 file of this model", im->path, t->name, t->type->name);
}

static bool is_plain(const struct gguf_tensor *t)
{
    return t->type->type == GGUF_T_F32 || t->type->type == GGUF_T_F16 || t->type->type == GGUF_T_BF16;
}

static enum dtype plain_dtype(const struct gguf_tensor *t)
{
    return t->type->type == GGUF_T_F32 ? DT_F32 : t->type->type == GGUF_T_F16 ? DT_F16 : DT_BF16;
}

static void out_add(struct import *im, const char *name, enum dtype dtype, int n_dim, int64_t n_rows, int64_t n_cols)
{
    struct tensor_view *v = &im->out[im->n_out++];
    *v = (struct tensor_view){ .name = name, .dtype = dtype, .n_dim = n_dim };
    v->shape[0] = n_rows;
    v->shape[n_dim - 1] = n_cols;
}

/* A name that ends in ".weight" or ".bias" without that. */
static const char *module_of(struct import *im, const char *name)
{
    return arena_strndup(&im->arena, name, (size_t)(strrchr(name, '.') - name));
}

static mb_status plan_quantised(struct import *im, struct import_item *it, const char *name,
                                const struct import_scheme *s, mb_error *err)
{
    const char *scales = arena_printf(&im->arena, "%s.scales", it->module);
    const char *biases = arena_printf(&im->arena, "%s.biases", it->module);
    if (!scales || !biases) return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tensor list", im->path);
    it->bits = s->bits;
    it->scale_dtype = scale_dtype(it->src, s);
    out_add(im, name, DT_U32, 2, it->n_rows, it->n_in / 32 * s->bits);
    out_add(im, scales, it->scale_dtype, 2, it->n_rows, it->n_in / IMPORT_GROUP);
    out_add(im, biases, it->scale_dtype, 2, it->n_rows, it->n_in / IMPORT_GROUP);
    return MB_OK;
}

/* Rows of q and k, weights and biases alike: back from interleaved to half-and-half order. */
static mb_status plan_rows(struct import *im, struct import_item *it, mb_error *err)
{
    bool is_q = strstr(it->src->name, ".attn_q.") != NULL, is_k = strstr(it->src->name, ".attn_k.") != NULL;
    if (!im->arch->permuted || (!is_q && !is_k)) return MB_OK;
    int64_t n_head = is_q ? im->n_head : im->n_head_kv;
    if (it->n_rows != n_head * im->head_dim)
        return mb_fail(err, MB_BAD_FORMAT, "%s: tensor %s has %lld rows, %lld heads of %lld are wanted", im->path,
                       it->src->name, (long long)it->n_rows, (long long)n_head, (long long)im->head_dim);
    it->rows = ROWS_UNPERMUTE;
    it->head_dim = im->head_dim;
    return MB_OK;
}

static mb_status plan_tensor(struct import *im, const struct gguf_tensor *t, const char *name, mb_error *err)
{
    struct import_item *it = &im->items[im->n_items++];
    const struct import_scheme *s = import_scheme_get(t->type->type);
    *it = (struct import_item){ .src = t, .i_out = im->n_out, .module = module_of(im, name) };
    if (!it->module) return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tensor list", im->path);
    bool is_vector = t->n_dim <= 1;
    if (t->n_dim > 2 || t->size_bytes == 0 || (is_vector && !is_plain(t)))
        return mb_fail(err, MB_BAD_FORMAT, "%s: tensor %s: %d dimensions of type %s are not expected here", im->path, t->name,
                       t->n_dim, t->type->name);
    it->n_rows = is_vector ? t->ne[0] : t->ne[1];
    it->n_in = is_vector ? 1 : t->ne[0];
    it->minus_one = im->arch->norm_plus_one && is_vector && strcmp(strrchr(name, '.'), ".weight") == 0;
    MB_TRY(plan_rows(im, it, err));
    if (it->minus_one && t->type->type != GGUF_T_F32) return refuse_type(im, t, err);
    if (s) return plan_quantised(im, it, name, s, err);
    if (!is_plain(t)) return refuse_type(im, t, err);
    out_add(im, name, plain_dtype(t), is_vector ? 1 : 2, it->n_rows, is_vector ? it->n_rows : it->n_in);
    return MB_OK;
}

mb_status import_plan(struct import *im, mb_error *err)
{
    size_t n = gguf_n_tensors(im->g);
    im->items = arena_alloc_array(&im->arena, n + 1, sizeof *im->items);
    im->out = arena_alloc_array(&im->arena, 3 * n + 1, sizeof *im->out);
    if (!im->items || !im->out) return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tensor list", im->path);
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(im->g, i);
        bool known;
        const char *name = import_tensor_name(im, t->name, &known);
        if (im->arena.failed) return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tensor list", im->path);
        if (!known)
            return mb_fail(err, MB_UNSUPPORTED, "%s: tensor %s has no place in the architecture %s", im->path, t->name,
                           im->arch->name);
        if (name) MB_TRY(plan_tensor(im, t, name, err));
    }
    im->report.n_tensors = im->n_items;
    return MB_OK;
}
