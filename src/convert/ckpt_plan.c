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

/* heads NULL, or what item_rows does not know: the item's share of kv_b_proj. */
static mb_status item_add(struct conv *c, const char *name, const struct tensor_view **src, size_t n_src, const struct conv_item *heads,
                          mb_error *err)
{
    struct conv_item *it = &c->items[c->n_items++];
    const char *src_module = module_of(c, src[0]->name);
    *it = (struct conv_item){ .name = name, .src = src, .n_src = n_src, .module = module_of(c, name) };
    if (c->arena.failed) return no_memory(c, err);
    item_rows(it);
    it->plus_one = src[0]->n_dim == 1 && is_float(src[0]->dtype) && conv_is_less_one(c, name);
    if (heads) {
        it->n_head = heads->n_head;
        it->head_rows = heads->head_rows;
        it->head_first = heads->head_first;
        it->turned = heads->turned;
        it->n_rows = heads->n_rows;
        it->n_in = heads->n_in;
    }
    if (it->module && src[0]->dtype == DT_F8_E4M3) MB_TRY(item_source_fp8(c, it, err));
    else if (it->module && src[0]->dtype == DT_U32) {
        if (n_src > 1)
            return mb_fail(err, MB_UNSUPPORTED, "tensor %s: quantised experts one by one are not converted", src[0]->name);
        MB_TRY(item_source_packed(c, it, src_module, err));
    } else if (it->module && !is_float(src[0]->dtype))
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s; F32, F16, BF16 and MLX's codes are converted", src[0]->name,
                       dtype_get(src[0]->dtype)->name);
    c->result.n_parameters += (uint64_t)(it->n_rows * it->n_in);
    item_deltas(c, it, src_module);
    return item_settle(c, it, err);
}

/* Experts one by one become one tensor of three dims, when the first of them comes by. */
static mb_status experts_add(struct conv *c, const struct conv_expert *e, mb_error *err)
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
    return item_add(c, name, src, n, NULL, err);
}

/* All experts in one tensor: as if they came one by one, gate and up each by itself. */
static mb_status published_add(struct conv *c, const struct conv_expert *e, const struct tensor_view *t, mb_error *err)
{
    size_t n = (size_t)c->spec.layers[e->layer].n_expert;
    int n_parts = e->i_part == 0 ? 2 : 1;
    if (n == 0 || t->n_dim != 3 || !is_float(t->dtype) || (size_t)t->shape[0] != n || t->shape[1] % n_parts != 0)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s: wanted floats of three dims for %zu experts", t->name, n);
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
        MB_TRY(item_add(c, name, src, n, NULL, err));
    }
    return MB_OK;
}

/* kv_b_proj as published: of each head what leads to keys, which MLX keeps turned as embed_q, then what leads to values: unembed_out. */
static mb_status kv_add(struct conv *c, const struct tensor_view *t, int layer, mb_error *err)
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
        MB_TRY(item_add(c, name, src, 1, &part[p].is, err));
    }
    return MB_OK;
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
    int layer;
    bool is_mtp;
    MB_TRY(conv_mtp_add(c, t, &is_mtp, err));
    if (is_mtp || is_companion(c, t)) return MB_OK;
    if (conv_expert_parse(c, t->name, &e)) return experts_add(c, &e, err);
    if (conv_published_parse(c, t->name, &e)) return published_add(c, &e, t, err);
    if (conv_kv_parse(c, t->name, &layer) && t->dtype != DT_U32) return kv_add(c, t, layer, err);
    if (c->spec.moe_blocks && strstr(t->name, ".gate_up_proj"))
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s: experts with gate and up row by row, as this model is published, are not converted; "
                       "take an MLX conversion of it", t->name);
    const char *name = conv_rename(c, t->name);
    if (c->arena.failed) return no_memory(c, err);
    if (!name) {
        c->result.n_dropped++;
        return MB_OK;
    }
    const struct tensor_view **src = arena_alloc(&c->arena, sizeof *src);
    if (!src) return no_memory(c, err);
    src[0] = t;
    return item_add(c, name, src, 1, NULL, err);
}

/* --- the output --- */

size_t conv_n_tensors(const struct quant_spec *s)
{
    return s->mode == QUANT_NONE ? 1 : quant_has_biases(s) ? 3 : 2;
}

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
    if (v->n_dim > 0) v->shape[v->n_dim - 1] = cols;
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
        out_add(c, it->name, it->dtype, it, it->n_in);
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
    for (size_t i = 0; i < n; i++) MB_TRY(tensor_add(c, checkpoint_at(c->ckpt, i), err));
    if (c->n_items == 0) return mb_fail(err, MB_NOT_FOUND, "%s: no tensor of a text model was found", c->src_dir);
    for (size_t i = 0; i < c->n_items; i++) MB_TRY(item_out(c, &c->items[i], err));
    MB_TRY(shards_make(c, err));
    c->result.n_tensors = c->n_out;
    c->result.n_shards = c->n_shards;
    c->result.bits_per_weight = c->result.n_parameters ? 8.0 * (double)c->result.size_bytes / (double)c->result.n_parameters : 0;
    return MB_OK;
}
