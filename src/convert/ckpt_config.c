/* ckpt_config.c: what was asked for, checked and made numbers; and the two JSON files that speak of the weights. config.json
 * is the source's with the new "quantization" (and its copy "quantization_config", which the hub reads), keys sorted, as mlx-lm
 * writes it.
 */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "convert/ckpt_int.h"
#include "format/safetensors_write.h"

static const struct float_row {
    const char *name;
    enum dtype dtype;
} float_rows[] = { { "float16", DT_F16 }, { "bfloat16", DT_BF16 }, { "float32", DT_F32 } };

static const struct float_row *float_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof float_rows / sizeof float_rows[0]; i++)
        if (strcmp(float_rows[i].name, name) == 0) return &float_rows[i];
    return NULL;
}

/* --dtype, else torch_dtype, else dtype of text_config: where mlx-lm looks. Another word there means as it is. */
static mb_status settle_dtype(struct conv *c, mb_error *err)
{
    const struct float_row *row = float_find(c->opts->dtype);
    if (c->opts->dtype && !row)
        return mb_fail(err, MB_INVALID, "dtype is %.40s, must be float16, bfloat16 or float32", c->opts->dtype);
    if (!row) row = float_find(json_string_value(json_object_get(c->config, "torch_dtype")));
    if (!row && !json_object_get(c->config, "torch_dtype"))
        row = float_find(json_string_value(json_object_get(json_object_get(c->config, "text_config"), "dtype")));
    if (c->keep_types) row = NULL;
    c->cast = row != NULL;
    c->dtype = row ? row->dtype : DT_F32;
    c->result.dtype = row ? row->name : "as in the source";
    return MB_OK;
}

static bool is_number_key(const char *key)
{
    return strcmp(key, "bits") == 0 || strcmp(key, "group_size") == 0 || strcmp(key, "mode") == 0;
}

/* A plan as config.json holds it: {"quantization": plan}. Its own global numbers are those of modules that it does not name. */
static mb_status settle_plan(struct conv *c, mb_error *err)
{
    json_t *root = json_object();
    if (!json_is_object(c->opts->plan) || !root || json_object_set(root, "quantization", (json_t *)c->opts->plan) != 0) {
        json_decref(root);
        return json_is_object(c->opts->plan) ? mb_fail(err, MB_NO_MEMORY, "no memory for the plan of the quantisation")
                                             : mb_fail(err, MB_INVALID, "the plan of the quantisation must be a JSON object");
    }
    mb_status st = quant_config_read(&c->plan, root, err);
    json_decref(root);
    if (st != MB_OK) return mb_error_prefix(err, "the plan of the quantisation");
    c->global = quant_config_get(c->plan, "");
    return MB_OK;
}

mb_status conv_settle(struct conv *c, mb_error *err)
{
    const struct checkpoint_opts *o = c->opts;
    int low_bits, high_bits;
    MB_TRY(settle_dtype(c, err));
    if (!o->quantise) return MB_OK;
    if (o->plan) return settle_plan(c, err);
    c->global = (struct quant_spec){ o->mode == QUANT_NONE ? QUANT_AFFINE : o->mode, o->bits ? o->bits : 4,
                                     o->group_size ? o->group_size : 64 };
    int b = c->global.bits, g = c->global.group_size;
    if (c->global.mode == QUANT_TRELLIS && (b < 2 || b > 4)) return mb_fail(err, MB_INVALID, "bits is %d, must be 2, 3 or 4 for trellis codes", b);
    if (c->global.mode == QUANT_TRELLIS && o->recipe) return mb_fail(err, MB_INVALID, "%.40s chooses widths of affine codes, not of trellis codes", o->recipe);
    if (c->global.mode != QUANT_TRELLIS && c->global.mode != QUANT_AFFINE)
        return mb_fail(err, MB_INVALID, "mode is %s; affine and trellis codes are written", quant_mode_name(c->global.mode));
    if (b < 2 || b > 8 || b == 7) return mb_fail(err, MB_INVALID, "bits is %d, must be 2, 3, 4, 5, 6 or 8", b);
    if (g != 32 && g != 64 && g != 128) return mb_fail(err, MB_INVALID, "the group size is %d, must be 32, 64 or 128", g);
    if (!o->recipe) return MB_OK;
    if (!conv_recipe_known(o->recipe, &low_bits, &high_bits))
        return mb_fail(err, MB_INVALID, "%.40s is no recipe: mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6 are", o->recipe);
    c->global.bits = low_bits;
    return MB_OK;
}

/* --- config.json --- */

/* New reference or NULL. */
static json_t *spec_json(struct quant_spec s)
{
    return json_pack("{s:i, s:i, s:s}", "group_size", s.group_size, "bits", s.bits, "mode", quant_mode_name(s.mode));
}

static bool spec_equal(struct quant_spec a, struct quant_spec b)
{
    return a.mode == b.mode && a.bits == b.bits && a.group_size == b.group_size;
}

/* The bits that most weights have: the global numbers, which other programs show. */
static struct quant_spec common_spec(const struct conv *c)
{
    struct quant_spec best = c->global;
    int64_t most = 0;
    if (c->global.mode != QUANT_NONE && !c->plan) return best;
    for (size_t i = 0; i < c->n_items; i++) {
        int64_t sum = 0;
        if (c->items[i].to.mode == QUANT_NONE) continue;
        for (size_t k = 0; k < c->n_items; k++)
            if (spec_equal(c->items[k].to, c->items[i].to)) sum += c->items[k].n_rows * c->items[k].n_in;
        if (sum > most) best = c->items[i].to;
        most = sum > most ? sum : most;
    }
    return best;
}

static json_t *quantization_json(const struct conv *c)
{
    struct quant_spec common = common_spec(c);
    json_t *q = spec_json(common);
    for (size_t i = 0; q && i < c->n_items; i++) {
        const struct conv_item *it = &c->items[i];
        if (it->to.mode == QUANT_NONE || spec_equal(it->to, common)) continue;
        if (json_object_set_new(q, it->module, spec_json(it->to)) == 0) continue;
        json_decref(q);
        q = NULL;
    }
    return q;
}

static json_t *sorted(json_t *o)
{
    static const struct json_write_opts opts = { .sort_keys = true };
    struct buf b;
    json_t *out = NULL;
    buf_init(&b, (size_t)1 << 30);
    json_write(&b, o, &opts);
    if (b.failed == MB_OK && json_read(&out, b.data, b.len, JSON_READ_DEFAULT, NULL) != MB_OK) out = NULL;
    buf_free(&b);
    return out;
}

/* Keys that no longer hold: where it was, other tools' packing, the tower that was left out. */
static bool config_edit(const struct conv *c, json_t *o)
{
    static const char *const gone[] = { "_name_or_path", "vision_config", "quantization", "quantization_config" };
    json_t *q = NULL, *text = json_object_get(o, "text_config");
    bool ok = true;
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) json_object_del(o, gone[i]);
    if (c->result.n_quantised > 0) {
        q = quantization_json(c);
        ok = q && json_object_set(o, "quantization", q) == 0 && json_object_set(o, "quantization_config", q) == 0;
        json_decref(q);
    }
    if (!c->opts->dtype) return ok;
    ok = ok && json_object_set_new(o, "torch_dtype", json_string(c->opts->dtype)) == 0;
    if (json_object_get(o, "dtype")) ok = ok && json_object_set_new(o, "dtype", json_string(c->opts->dtype)) == 0;
    if (json_is_object(text) && json_object_get(text, "dtype"))
        ok = ok && json_object_set_new(text, "dtype", json_string(c->opts->dtype)) == 0;
    return ok;
}

mb_status conv_config_make(struct conv *c, json_t **out, mb_error *err)
{
    json_t *o = json_deep_copy(c->config);
    *out = o && config_edit(c, o) ? sorted(o) : NULL;
    json_decref(o);
    return *out ? MB_OK : mb_fail(err, MB_NO_MEMORY, "%s: no memory for config.json", c->src_dir);
}

/* Each key of a plan names a module of the model, or it is a slip of the pen. */
mb_status conv_plan_check(const struct conv *c, mb_error *err)
{
    const char *key;
    json_t *value;
    if (!c->plan) return MB_OK;
    json_object_foreach((json_t *)c->opts->plan, key, value)
    {
        bool known = is_number_key(key);
        for (size_t i = 0; i < c->n_items && !known; i++)
            known = c->items[i].module && strcmp(quant_path_strip(c->items[i].module), quant_path_strip(key)) == 0;
        if (!known)
            return mb_fail(err, MB_INVALID, "the plan of the quantisation names %.200s, which is no module of this model", key);
    }
    return MB_OK;
}

/* --- the index --- */

void conv_shard_name(const struct conv *c, size_t i_shard, char out[64])
{
    if (c->n_shards == 1) snprintf(out, 64, "model.safetensors");
    else snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", i_shard + 1, c->n_shards);
}

mb_status conv_index_make(struct conv *c, json_t **out, mb_error *err)
{
    json_t *map = json_object(), *by_name = NULL;
    bool ok = map != NULL;
    char name[64];
    for (size_t s = 0; ok && s < c->n_shards; s++) {
        conv_shard_name(c, s, name);
        for (size_t i = c->shard_first[s]; ok && i < c->shard_first[s + 1]; i++)
            ok = json_object_set_new(map, c->out[i].name, json_string(name)) == 0;
    }
    if (ok) by_name = sorted(map);
    json_decref(map);
    *out = by_name ? json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_size", (json_int_t)c->result.size_bytes,
                               "total_parameters", (json_int_t)c->result.n_parameters, "weight_map", by_name)
                   : NULL;
    return *out ? MB_OK : mb_fail(err, MB_NO_MEMORY, "%s: no memory for the index", c->src_dir);
}
