/* ckpt_mtp.c: heads for several tokens at once (multi-token prediction): mtp.* of Qwen3.5, the layers behind the last of DeepSeek-V3 and
 * GLM. The text model does not read them and mlx-lm leaves them out; they are kept for speculation, in OUT/mtp/model.safetensors with
 * the source's names and config.json, where neither program takes them for a part of the model. Floats and codes keep their
 * bytes; block-scaled float8 becomes bfloat16.
 */
#include <string.h>

#include "convert/ckpt_int.h"
#include "format/fp8.h"
#include "format/safetensors_write.h"

static mb_status no_memory(const struct conv *c, mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tensor list", c->src_dir);
}

/* Module of "MODULE" + end; NULL: it ends otherwise, or no memory (which the arena remembers). */
static const char *module_of(struct conv *c, const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0 ? arena_strndup(&c->arena, name, n - k) : NULL;
}

/* Scales of a float8 matrix go into it. */
static bool is_block_scale(struct conv *c, const char *name)
{
    const char *module = module_of(c, name, ".weight_scale_inv");
    const struct tensor_view *w = module ? checkpoint_findf(c->ckpt, "%s.weight", module) : NULL;
    return w && w->dtype == DT_F8_E4M3;
}

static mb_status float8_settle(struct conv *c, struct conv_item *it, mb_error *err)
{
    const char *module = module_of(c, it->name, ".weight");
    const struct tensor_view **scales = arena_alloc(&c->arena, sizeof *scales);
    if (c->arena.failed) return no_memory(c, err);
    if (!module) return mb_fail(err, MB_UNSUPPORTED, "tensor %s is F8_E4M3 and no weight", it->name);
    MB_TRY(fp8_scales_find(c->ckpt, module, it->src[0], &scales[0], err));
    it->block_scales = scales;
    it->dtype = DT_BF16;
    it->as_is = false;
    return MB_OK;
}

mb_status conv_mtp_add(struct conv *c, const struct tensor_view *t, bool *is, mb_error *err)
{
    *is = conv_is_mtp(c, t->name);
    if (!*is || is_block_scale(c, t->name)) return c->arena.failed ? no_memory(c, err) : MB_OK;
    const struct tensor_view **src = arena_alloc(&c->arena, sizeof *src);
    if (!src) return no_memory(c, err);
    src[0] = t;
    struct conv_item *it = &c->mtp[c->n_mtp];
    struct tensor_view *v = &c->mtp_out[c->n_mtp];
    *it = (struct conv_item){ .name = t->name, .src = src, .n_src = 1, .dtype = t->dtype, .as_is = true, .n_rows = 1, .n_in = 1,
                              .i_out = c->n_mtp++ };
    for (int i = 0; i + 1 < t->n_dim; i++) it->n_rows *= t->shape[i];
    if (t->n_dim > 0) it->n_in = t->shape[t->n_dim - 1];
    if (t->dtype == DT_F8_E4M3) MB_TRY(float8_settle(c, it, err));
    *v = *t;
    v->dtype = it->dtype;
    uint64_t bytes;
    MB_TRY(tensor_span(v->dtype, v->shape, v->n_dim, &bytes, err));
    c->mtp_bytes += bytes;
    c->result.n_mtp = c->n_mtp;
    return MB_OK;
}

/* Without other tools' packing, which does not hold any more; MLX's own does. */
mb_status conv_mtp_config(struct conv *c, const struct out_folder *o, mb_error *err)
{
    json_t *config = json_copy(c->config);
    if (!config) return mb_fail(err, MB_NO_MEMORY, "%s: no memory for config.json", c->src_dir);
    if (json_object_get(json_object_get(config, "quantization_config"), "quant_method")) json_object_del(config, "quantization_config");
    mb_status st = out_folder_put_json(o, OUT_FOLDER_MTP "/config.json", config, 4, err);
    json_decref(config);
    return st;
}
