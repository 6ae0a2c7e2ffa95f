/* kv_form.c: in which format each layer keeps its keys and values: what --kv-quant and a model's kv_config.json come to.
 *
 * Codes (KV_Q8, KV_Q4) are for layers with keys and values of whole groups of dims. The rest says so and stays as it is: latents,
 * recurrent state, other widths. Layers that read another layer's pages have its format.
 */
#include <stdio.h>
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/model.h"

#define KV_CONFIG "kv_config.json"
#define KV_CONFIG_MAX_BYTES ((size_t)1 << 20)

static const char *const names[KV_FORMAT_COUNT] = { [KV_BF16] = "bf16", [KV_F16] = "f16", [KV_F32] = "f32", [KV_Q8] = "kv8", [KV_Q4] = "kv4" };

const char *kv_format_name(int format)
{
    return format >= 0 && format < KV_FORMAT_COUNT ? names[format] : "mixed";
}

const char *model_kv_mode(const struct model_spec *s)
{
    if (s->kv_asked == KV_OF_CONFIG) return "mixed (" KV_CONFIG ")";
    return s->kv_asked == KV_Q8 ? "uniform-kv8" : s->kv_asked == KV_Q4 ? "uniform-kv4" : kv_format_name(s->kv_asked);
}

static bool has_keys(const struct layer_spec *l)
{
    return l->attn == ATTN_FULL || l->attn == ATTN_SLIDING;
}

static bool has_codes(const struct layer_spec *l)
{
    return has_keys(l) && kv_code_group(l->head_dim) > 0;
}

static bool is_there(const char *dir)
{
    char path[4096];
    mb_error err;
    return path_join(path, sizeof path, dir, KV_CONFIG, &err) == MB_OK && path_exists(path);
}

/* {"layer_idx": 3, "bits": 8, "group_size": 64} */
static mb_status take_entry(struct model_spec *s, const json_t *entry, size_t i, bool *seen, mb_error *err)
{
    int64_t layer = -1, bits = 0, group = 64;
    if (!json_is_object(entry)) return mb_fail_at(err, MB_BAD_FORMAT, "kv-quant", KV_CONFIG "[%zu] is no object", i);
    mb_status st = json_get_int(entry, "layer_idx", -1, &layer, err);
    if (st == MB_OK) st = json_get_int(entry, "bits", 0, &bits, err);
    if (st == MB_OK) st = json_get_int(entry, "group_size", 64, &group, err);
    if (st != MB_OK) {
        mb_error_prefix(err, KV_CONFIG "[%zu]", i);
        if (err) err->code = MB_BAD_FORMAT;
        return MB_BAD_FORMAT;
    }
    if (layer < 0 || layer >= s->n_layer)
        return mb_fail_at(err, MB_BAD_FORMAT, "kv-quant", KV_CONFIG "[%zu]: layer_idx is %lld, the model has layers 0 to %d", i, (long long)layer,
                          (int)s->n_layer - 1);
    if (seen[layer]) return mb_fail_at(err, MB_BAD_FORMAT, "kv-quant", KV_CONFIG "[%zu]: layer_idx %lld was there before", i, (long long)layer);
    seen[layer] = true;
    struct layer_spec *l = &s->layers[layer];
    if (bits != 4 && bits != 8)
        return mb_fail_at(err, MB_UNSUPPORTED, "kv-quant", KV_CONFIG "[%zu]: %lld bits for layer %lld; keys and values have 4 or 8: use "
                          "--kv-quant 8, 4 or off", i, (long long)bits, (long long)layer);
    if (!has_codes(l)) return MB_OK;
    if (group != kv_code_group(l->head_dim))
        return mb_fail_at(err, MB_UNSUPPORTED, "kv-quant", KV_CONFIG "[%zu]: group_size %lld for layer %lld; heads of %d dims have groups of %d: "
                          "use --kv-quant 8, 4 or off", i, (long long)group, (long long)layer, (int)l->head_dim, kv_code_group(l->head_dim));
    l->kv_format = bits == 8 ? KV_Q8 : KV_Q4;
    return MB_OK;
}

static mb_status read_config(struct model_spec *s, const char *dir, mb_error *err)
{
    char path[4096];
    json_t *list = NULL;
    if (!is_there(dir))
        return mb_fail_at(err, MB_NOT_FOUND, "kv-quant", "--kv-quant config: %s has no " KV_CONFIG "; --kv-quant 8 and 4 need none", dir);
    MB_TRY(path_join(path, sizeof path, dir, KV_CONFIG, err));
    MB_TRY(json_read_file(&list, path, KV_CONFIG_MAX_BYTES, err));
    mb_status st = json_is_array(list) ? MB_OK : mb_fail_at(err, MB_BAD_FORMAT, "kv-quant", KV_CONFIG " must be a list of layers");
    bool *seen = mb_calloc((size_t)s->n_layer + 1, sizeof *seen);
    if (st == MB_OK && !seen) st = mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (size_t i = 0; st == MB_OK && i < json_array_size(list); i++) st = take_entry(s, json_array_get(list, i), i, seen, err);
    mb_free(seen);
    if (st != MB_OK) mb_error_prefix(err, "%s", dir);
    json_decref(list);
    return st;
}

mb_status model_kv_formats(struct model_spec *s, const char *dir, int asked, enum fidelity_tier tier, bool codes, mb_error *err)
{
    if (asked == KV_OF_TIER)
        asked = tier == TIER_F32 ? (int)KV_F32 : tier == TIER_L2 && codes && is_there(dir) ? KV_OF_CONFIG : KV_OF_FAMILY;
    if (asked == KV_OF_FAMILY) asked = s->kv_format;
    if (!codes && (asked == KV_OF_CONFIG || kv_is_codes(asked)))
        return mb_fail_at(err, MB_UNSUPPORTED, "kv-quant", "keys and values as codes (--kv-quant 4, 8, config) are for --device cpu; on this device "
                          "use --kv-quant off");
    s->kv_asked = asked;
    for (int32_t i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        bool plain = asked == KV_OF_CONFIG || (kv_is_codes(asked) && !has_codes(l));
        l->kv_format = (int8_t)(plain ? s->kv_format : asked);
    }
    if (asked == KV_OF_CONFIG) MB_TRY(read_config(s, dir, err));
    model_spec_finish(s);
    for (int32_t i = 0; i < s->n_layer; i++)
        if (s->layers[i].i_kind < 0)
            return mb_fail_at(err, MB_UNSUPPORTED, "kv-quant", "%s: its layers and their formats make more than %d kinds of pages; use --kv-quant "
                              "8, 4 or off", dir, KV_MAX_KINDS);
    return MB_OK;
}

void model_kv_count(const struct model_spec *s, int32_t n_layer[KV_FORMAT_COUNT])
{
    memset(n_layer, 0, KV_FORMAT_COUNT * sizeof *n_layer);
    for (int32_t i = 0; i < s->n_layer; i++) {
        const struct layer_spec *l = &s->layers[i];
        if (l->attn == ATTN_SHARED_KV) l = &s->layers[l->i_kv_donor];
        if (l->attn == ATTN_NONE) continue;
        n_layer[l->attn == ATTN_GATED_DELTA ? (int)KV_F32 : l->kv_format]++;
    }
}

bool model_kv_note(const struct model_spec *s, char *text, size_t cap)
{
    int32_t codes = 0, latent = 0, state = 0, width = 0, narrow = 0;
    size_t n = 0;
    text[0] = '\0';
    if (s->kv_asked != KV_OF_CONFIG && !kv_is_codes(s->kv_asked)) return false;
    for (int32_t i = 0; i < s->n_layer; i++) {
        const struct layer_spec *l = &s->layers[i];
        if (l->attn == ATTN_SHARED_KV) l = &s->layers[l->i_kv_donor];
        codes += kv_is_codes(l->kv_format);
        latent += l->attn == ATTN_MLA;
        state += l->attn == ATTN_GATED_DELTA;
        width += has_keys(l) && !has_codes(l);
        narrow += kv_is_codes(l->kv_format) && kv_code_group(l->head_dim) != 64;
    }
    n = (size_t)snprintf(text, cap, "%s: %d of %d layers keep keys and values as codes", model_kv_mode(s), (int)codes, (int)s->n_layer);
    if (narrow && n < cap) n += (size_t)snprintf(text + n, cap - n, ", %d in groups of 32 dims", (int)narrow);
    if (latent && n < cap) n += (size_t)snprintf(text + n, cap - n, "; %d with latents stay %s", (int)latent, kv_format_name(s->kv_format));
    if (state && n < cap) n += (size_t)snprintf(text + n, cap - n, "; %d with recurrent state keep it as float32", (int)state);
    if (width && n < cap)
        snprintf(text + n, cap - n, "; %d whose heads are not whole groups of 32 dims stay %s", (int)width, kv_format_name(s->kv_format));
    return latent + state + width > 0;
}
