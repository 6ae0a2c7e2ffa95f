/* ckpt_plan.c: for each tensor of the source, what becomes of it; then the shards. After this every name, type, size of the
 * output is known and nothing has been read but headers.
 */
#include <string.h>

#include "convert/ckpt_int.h"
#include "format/fp8.h"
#include "format/safetensors_write.h"

#define MAX_SHARD_BYTES ((uint64_t)5000000000)

static mb_status no_memory(const struct conv *c, mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tensor list", c->src_dir);
}

static bool is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

static const char *module_of(struct conv *c, const char *name)
{
    size_t n = strlen(name), k = strlen(".weight");
    return n > k && strcmp(name + n - k, ".weight") == 0 ? arena_strndup(&c->arena, name, n - k) : NULL;
}

/* Codes of the source: what they mean, and that scales and biases fit. */
static mb_status item_source_packed(struct conv *c, struct conv_item *it, const char *path, mb_error *err)
{
    const struct tensor_view *w = it->src[0];
    it->scales = checkpoint_findf(c->ckpt, "%s.scales", path);
    it->biases = checkpoint_findf(c->ckpt, "%s.biases", path);
    it->from = quant_config_get(c->spec.quant, path);
    bool fp = quant_is_fp(&it->from);
    if (it->from.mode == QUANT_NONE)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s holds packed codes, but config.json has no quantization entry for it", w->name);
    if (fp && checkpoint_findf(c->ckpt, "%s.global_scale", path))
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s.global_scale: nvfp4 with a scale of the whole tensor is not read", path);
    if (w->n_dim < 2) return mb_fail(err, MB_BAD_FORMAT, "tensor %s holds codes in %d dims, wanted 2 or 3", w->name, w->n_dim);
    bool whole = it->scales && (fp ? it->scales->dtype == DT_U8 : is_float(it->scales->dtype));
    if (quant_has_biases(&it->from)) whole = whole && it->biases && it->biases->dtype == it->scales->dtype;
    else whole = whole && !it->biases;
    if (!whole)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s holds codes, but has no %s beside it", w->name,
                       fp ? "scales of type U8, and nothing else," : quant_has_biases(&it->from) ? "scales and biases"
                                                                                                   : "float scales, and nothing else,");
    it->n_in = w->shape[w->n_dim - 1] * 32 / it->from.bits;
    uint64_t n_groups = (uint64_t)(it->n_rows * (it->n_in / it->from.group_size));
    uint64_t scale_bytes = n_groups * (uint64_t)dtype_get(it->scales->dtype)->size_bytes;
    if (it->n_in % it->from.group_size != 0 || quant_row_words(&it->from, it->n_in) != w->shape[w->n_dim - 1] ||
        it->scales->size_bytes != scale_bytes || (it->biases && it->biases->size_bytes != scale_bytes))
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: its scales do not fit %s of %d bits in groups of %d, which config.json says",
                       w->name, quant_mode_name(it->from.mode), it->from.bits, it->from.group_size);
    return MB_OK;
}

static void item_rows(struct conv_item *it)
{
    const struct tensor_view *t = it->src[0];
    it->n_rows = (int64_t)it->n_src;
    for (int i = 0; i + 1 < t->n_dim; i++) it->n_rows *= t->shape[i];
    it->n_in = t->n_dim > 0 ? t->shape[t->n_dim - 1] : 1;
}

/* Bits and group of a module; QUANT_NONE when it stays in floats. */
static struct quant_spec wanted_spec(struct conv *c, const struct conv_item *it)
{
    static const struct quant_spec none;
    if (c->global.mode == QUANT_NONE) return it->from; /* a copy keeps what is packed */
    if (c->keeps_experts && !c->plan && it->from.mode == QUANT_MXFP4 && it->src[0]->n_dim == 3) return it->from;
    if (!it->module || conv_is_taps(it->name) || it->src[0]->n_dim < 2 || (!is_float(it->src[0]->dtype) && it->from.mode == QUANT_NONE && !it->block_scales)) return none;
    struct quant_spec s = c->plan ? quant_config_get(c->plan, it->module) : conv_module_spec(c, it->module);
    bool fits = s.mode == QUANT_NONE || (it->n_in % s.group_size == 0 && (c->plan || it->n_in % c->global.group_size == 0));
    if (!fits) c->result.n_indivisible++;
    return fits ? s : none;
}

static bool spec_equal(struct quant_spec a, struct quant_spec b)
{
    return a.mode == b.mode && a.bits == b.bits && a.group_size == b.group_size;
}

/* The updates of a module lie together. */
static void item_deltas(const struct conv *c, struct conv_item *it, const char *src_module)
{
    for (size_t i = 0; src_module && i < c->n_deltas; i++) {
        if (strcmp(c->deltas[i].module, src_module) != 0) continue;
        if (it->n_deltas++ == 0) it->deltas = &c->deltas[i];
    }
}

/* What the item becomes, from its sources and the options. */
static mb_status item_settle(struct conv *c, struct conv_item *it, mb_error *err)
{
    bool fp = quant_is_fp(&it->from); /* all their values are bfloat16's, which the oracle takes for their type */
    enum dtype src_float = fp || it->block_scales ? DT_BF16 : it->from.mode != QUANT_NONE ? it->scales->dtype : it->src[0]->dtype;
    it->to = wanted_spec(c, it);
    it->dtype = c->cast && is_float(src_float) && !conv_keeps_type(it->name) ? c->dtype : src_float;
    bool keeps_codes = it->from.mode != QUANT_NONE && spec_equal(it->from, it->to);
    if (keeps_codes && !c->opts->dtype) it->dtype = src_float; /* scales are rounded only when that is asked for */
    it->as_is = spec_equal(it->from, it->to) && (fp || it->dtype == src_float) && it->n_deltas == 0 && !it->block_scales && it->n_head == 0 &&
                !it->plus_one;
    if (quant_is_fp(&it->to) && !it->as_is)
        return mb_fail(err, MB_UNSUPPORTED, "%s: it would be rounded to %s; affine and trellis codes are written", it->module,
                       quant_mode_name(it->to.mode));
    if (it->to.mode == QUANT_NONE) return MB_OK;
    c->result.n_quantised++;
    c->result.n_kept += it->as_is;
    c->result.n_requantised += !keeps_codes && it->from.mode != QUANT_NONE;
    return MB_OK;
}

/* Scales of float8 sources, one tensor each. */
static mb_status item_source_fp8(struct conv *c, struct conv_item *it, mb_error *err)
{
    const struct tensor_view **scales = arena_alloc_array(&c->arena, it->n_src, sizeof *scales);
    if (!scales) return no_memory(c, err);
    for (size_t i = 0; i < it->n_src; i++) {
        const char *module = module_of(c, it->src[i]->name);
        if (!module) return no_memory(c, err);
        MB_TRY(fp8_scales_find(c->ckpt, module, it->src[i], &scales[i], err));
    }
    it->block_scales = scales;
    return MB_OK;
}

/* What the shapes do not tell. */
static void item_take(struct conv_item *it, const struct conv_item *told)
{
    it->n_head = told->n_head;
    it->head_rows = told->head_rows;
    it->head_first = told->head_first;
    it->turned = told->turned;
    it->n_turns = told->n_turns;
    it->i_turn = told->i_turn;
    it->n_rows = told->n_rows;
    it->n_in = told->n_in;
    it->from = told->from;
    it->scales = told->scales;
}

mb_status conv_item_add(struct conv *c, const char *name, const struct tensor_view **src, size_t n_src, const struct conv_item *told,
                        mb_error *err)
{
    struct conv_item *it = &c->items[c->n_items++];
    const char *src_module = module_of(c, src[0]->name);
    *it = (struct conv_item){ .name = name, .src = src, .n_src = n_src, .module = module_of(c, name) };
    if (c->arena.failed) return no_memory(c, err);
    item_rows(it);
    it->plus_one = src[0]->n_dim == 1 && is_float(src[0]->dtype) && conv_is_less_one(c, name);
    if (told) item_take(it, told);
    if (it->module && src[0]->dtype == DT_F8_E4M3) MB_TRY(item_source_fp8(c, it, err));
    else if (it->module && src[0]->dtype == DT_U32 && !it->scales) {
        if (n_src > 1)
            return mb_fail(err, MB_UNSUPPORTED, "tensor %s: quantised experts one by one are not converted", src[0]->name);
        MB_TRY(item_source_packed(c, it, src_module, err));
    } else if (it->module && !is_float(src[0]->dtype) && !it->scales)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s; F32, F16, BF16 and MLX's codes are converted", src[0]->name,
                       dtype_get(src[0]->dtype)->name);
    c->result.n_parameters += (uint64_t)(it->n_rows * it->n_in);
    item_deltas(c, it, src_module);
    return item_settle(c, it, err);
}

/* Scales and biases of a quantised module travel with its weight. */
static bool is_companion(struct conv *c, const struct tensor_view *t)
{
    static const char *const ends[] = { ".scales", ".biases" };
    size_t n = strlen(t->name);
    const size_t k = strlen(".weight_scale_inv");
    if (n > k && strcmp(t->name + n - k, ".weight_scale_inv") == 0) {
        const struct tensor_view *w = checkpoint_findf(c->ckpt, "%.*s.weight", (int)(n - k), t->name);
        return w && w->dtype == DT_F8_E4M3;
    }
    for (int i = 0; i < 2; i++) {
        if (n <= 7 || strcmp(t->name + n - 7, ends[i]) != 0) continue;
        const struct tensor_view *w = checkpoint_findf(c->ckpt, "%.*s.weight", (int)(n - 7), t->name);
        if (w && w->dtype == DT_U32) return true;
    }
    return false;
}

static mb_status tensor_add(struct conv *c, const struct tensor_view *t, mb_error *err)
{
    struct conv_expert e;
    const char *tail;
    int layer;
    bool is_mtp;
    MB_TRY(conv_mtp_add(c, t, &is_mtp, err));
    if (is_mtp || is_companion(c, t)) return MB_OK;
    if (conv_expert_parse(c, t->name, &e)) return conv_experts_add(c, &e, err);
    if (conv_published_parse(c, t->name, &e)) return conv_published_add(c, &e, t, err);
    if (conv_blocks_parse(c, t->name, &e, &tail)) return conv_blocks_add(c, &e, t, tail, err);
    if (conv_kv_parse(c, t->name, &layer) && t->dtype != DT_U32) return conv_kv_add(c, t, layer, err);
    const char *name = conv_rename(c, t->name);
    if (c->arena.failed) return no_memory(c, err);
    if (!name) {
        c->result.n_dropped++;
        return MB_OK;
    }
    const struct tensor_view **src = arena_alloc(&c->arena, sizeof *src);
    if (!src) return no_memory(c, err);
    src[0] = t;
    return conv_item_add(c, name, src, 1, NULL, err);
}

/* --- the output --- */

size_t conv_n_tensors(const struct quant_spec *s)
{
    return s->mode == QUANT_NONE ? 1 : quant_has_biases(s) ? 3 : 2;
}

/* cols 0: rows are as wide as in the source. */
static struct tensor_view *out_add(struct conv *c, const char *name, enum dtype dtype, const struct conv_item *it, int64_t cols)
{
    struct tensor_view *v = &c->out[c->n_out++];
    const struct tensor_view *t = it->src[0];
    int lead = it->n_src > 1 || t->n_dim == 0 ? 1 : 0;
    *v = (struct tensor_view){ .name = name, .dtype = dtype, .n_dim = t->n_dim + (it->n_src > 1) };
    if (it->n_src > 1) v->shape[0] = (int64_t)it->n_src;
    for (int i = 0; i < t->n_dim; i++) v->shape[i + lead] = t->shape[i];
    if (it->n_head > 0) {
        v->n_dim = 3;
        v->shape[0] = it->n_head;
        v->shape[1] = it->n_rows / it->n_head;
    }
    if (v->n_dim > 0 && cols > 0) v->shape[v->n_dim - 1] = cols;
    if (c->hybrid_published && conv_is_taps(name) && t->n_dim == 3) { /* the same bytes: one of the two is 1 */
        v->shape[1] = t->shape[2];
        v->shape[2] = t->shape[1];
    }
    return v;
}

static mb_status item_out(struct conv *c, struct conv_item *it, mb_error *err)
{
    it->i_out = c->n_out;
    if (it->to.mode == QUANT_NONE) {
        out_add(c, it->name, it->dtype, it, it->n_head > 0 || it->from.mode != QUANT_NONE ? it->n_in : 0);
        return MB_OK;
    }
    bool biased = quant_has_biases(&it->to);
    const char *scales = arena_printf(&c->arena, "%s.scales", it->module);
    const char *biases = biased ? arena_printf(&c->arena, "%s.biases", it->module) : NULL;
    if (!scales || (biased && !biases)) return no_memory(c, err);
    out_add(c, it->name, DT_U32, it, quant_row_words(&it->to, it->n_in));
    out_add(c, scales, quant_is_fp(&it->to) ? DT_U8 : it->dtype, it, it->n_in / it->to.group_size);
    if (biased) out_add(c, biases, it->dtype, it, it->n_in / it->to.group_size);
    return MB_OK;
}

/* Items go to shards in order; a module's tensors stay together. i_out becomes the number within the shard. */
static mb_status shards_make(struct conv *c, mb_error *err)
{
    uint64_t limit = c->opts->max_shard_bytes ? c->opts->max_shard_bytes : MAX_SHARD_BYTES, used = 0;
    c->shard_first = arena_alloc_array(&c->arena, c->n_items + 2, sizeof *c->shard_first);
    if (!c->shard_first) return no_memory(c, err);
    for (size_t i = 0; i < c->n_items; i++) {
        struct conv_item *it = &c->items[i];
        uint64_t bytes = 0, span;
        for (size_t k = 0; k < conv_n_tensors(&it->to); k++) {
            const struct tensor_view *v = &c->out[it->i_out + k];
            MB_TRY(tensor_span(v->dtype, v->shape, v->n_dim, &span, err));
            bytes += span;
        }
        if (c->n_shards == 0 || (used > 0 && used + bytes > limit)) {
            c->shard_first[c->n_shards++] = it->i_out;
            used = 0;
        }
        used += bytes;
        c->result.size_bytes += bytes;
        it->i_shard = c->n_shards - 1;
        it->i_out -= c->shard_first[it->i_shard];
    }
    c->shard_first[c->n_shards] = c->n_out;
    return MB_OK;
}

mb_status conv_plan(struct conv *c, mb_error *err)
{
    size_t n = checkpoint_n_tensors(c->ckpt);
    c->items = arena_alloc_array(&c->arena, 2 * n + 1, sizeof *c->items); /* gate and up may come as one */
    c->out = arena_alloc_array(&c->arena, 6 * n + 3, sizeof *c->out);
    c->mtp = arena_alloc_array(&c->arena, n + 1, sizeof *c->mtp);
    c->mtp_out = arena_alloc_array(&c->arena, n + 1, sizeof *c->mtp_out);
    if (!c->items || !c->out || !c->mtp || !c->mtp_out) return no_memory(c, err);
    c->hybrid_published = conv_hybrid_published(c);
    c->keeps_experts = conv_keeps_experts(c);
    for (size_t i = 0; i < n; i++) MB_TRY(tensor_add(c, checkpoint_at(c->ckpt, i), err));
    if (c->n_items == 0) return mb_fail(err, MB_NOT_FOUND, "%s: no tensor of a text model was found", c->src_dir);
    for (size_t i = 0; i < c->n_items; i++) MB_TRY(item_out(c, &c->items[i], err));
    MB_TRY(shards_make(c, err));
    c->result.n_tensors = c->n_out;
    c->result.n_shards = c->n_shards;
    c->result.bits_per_weight = c->result.n_parameters ? 8.0 * (double)c->result.size_bytes / (double)c->result.n_parameters : 0;
    return MB_OK;
}
