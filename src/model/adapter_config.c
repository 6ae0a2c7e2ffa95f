/* adapter_config.c: what an adapter folder says of itself, in three dialects: mlx-lm's adapter_config.json
 * (fine_tune_type, num_layers, lora_parameters), PEFT's (peft_type, r, lora_alpha ...), and the trainer's
 * optiq_lora_config.json, which goes first for what it states. Settings that would make the result something else than
 * y + scale * B A x are refused by name.
 * Sources: mlx_lm.tuner.utils.load_adapters, peft.LoraConfig and peft.tuners.lora.
 */
#include <math.h>
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
#include "model/adapter_int.h"

#define CONFIG_MAX_BYTES ((size_t)4 << 20)
#define AT "adapter_config.json"

static mb_status read_json(json_t **out, const char *dir, const char *name, mb_error *err)
{
    char path[4096];
    *out = NULL;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (!path_exists(path)) return MB_OK;
    MB_TRY(json_read_file(out, path, CONFIG_MAX_BYTES, err));
    if (json_is_object(*out)) return MB_OK;
    return mb_fail_at(err, MB_BAD_FORMAT, "path", "%s: expected an object", path);
}

static bool has_file(const char *dir, const char *name)
{
    char path[4096];
    mb_error err;
    return path_join(path, sizeof path, dir, name, &err) == MB_OK && path_exists(path);
}

static mb_status find_file(struct adapter_config *c, const char *dir, mb_error *err)
{
    if (!dir_exists(dir)) return mb_fail_at(err, MB_NOT_FOUND, "path", "%.300s is not a folder", dir);
    c->form = ADAPTER_MLX;
    c->file = "adapters.safetensors";
    if (has_file(dir, c->file)) return MB_OK;
    c->form = ADAPTER_PEFT;
    c->file = "adapter_model.safetensors";
    if (has_file(dir, c->file)) return MB_OK;
    if (has_file(dir, "adapter_model.bin"))
        return mb_fail_at(err, MB_UNSUPPORTED, "path", "%.300s holds adapter_model.bin, a pickle: save it again as safetensors",
                          dir);
    return mb_fail_at(err, MB_NOT_FOUND, "path", "%.300s holds no adapter: neither adapters.safetensors (MLX) nor "
                      "adapter_model.safetensors (PEFT)", dir);
}

/* --- refusals --- */

static bool says(const json_t *v) /* anything but absent, null, false, "" and empty lists */
{
    if (!v || json_is_null(v) || json_is_false(v)) return false;
    if (json_is_string(v)) return json_string_length(v) > 0;
    if (json_is_array(v)) return json_array_size(v) > 0;
    return !json_is_object(v) || json_object_size(v) > 0;
}

static mb_status refuse(const char *what, const char *why, mb_error *err)
{
    return mb_fail_at(err, MB_UNSUPPORTED, AT, "the adapter has %s: %s", what, why);
}

static mb_status refuse_settings(const json_t *o, mb_error *err)
{
    static const struct { const char *key, *what, *why; } rows[] = {
        { "use_dora", "use_dora (DoRA)", "only plain LoRA is served; train without it, or fuse it into the model" },
        { "modules_to_save", "modules_to_save", "whole weights beside the adapter are not served; fuse it into the model" },
        { "lora_bias", "lora_bias", "adapters add no bias" },
        { "target_parameters", "target_parameters", "only linear layers can be adapted" },
        { "trainable_token_indices", "trainable_token_indices", "embeddings cannot be adapted" },
        { "layer_replication", "layer_replication", "it changes the number of layers; fuse it into a model" },
        { "use_qalora", "use_qalora (QA-LoRA)", "only plain LoRA is served" },
        { "alora_invocation_tokens", "alora_invocation_tokens (aLoRA)", "it is active for a part of the tokens only" },
        { "arrow_config", "arrow_config", "routing between adapters is not served" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (says(json_object_get(o, rows[i].key))) return refuse(rows[i].what, rows[i].why, err);
    const char *bias = json_string_value(json_object_get(o, "bias"));
    if (bias && strcmp(bias, "none") != 0) return refuse("bias other than \"none\"", "adapters add no bias", err);
    /* These starts subtract from the base weights, which a served model does not have. */
    static const char *const starts[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };
    const char *start = json_string_value(json_object_get(o, "init_lora_weights"));
    for (size_t i = 0; start && i < sizeof starts / sizeof starts[0]; i++)
        if (strncmp(start, starts[i], strlen(starts[i])) == 0)
            return mb_fail_at(err, MB_UNSUPPORTED, AT, "the adapter has init_lora_weights \"%.40s\", which changes the base "
                              "weights: convert it (save_pretrained with path_initial_model_for_weight_conversion)", start);
    return MB_OK;
}

static mb_status refuse_kind(const struct adapter_config *c, mb_error *err)
{
    const char *peft = json_string_value(json_object_get(c->config, "peft_type"));
    const char *kind = json_string_value(json_object_get(c->config, "fine_tune_type"));
    if (peft && strcmp(peft, "LORA") != 0)
        return mb_fail_at(err, MB_UNSUPPORTED, AT, "the adapter is of peft_type %.40s; LORA is served", peft);
    if (kind && strcmp(kind, "lora") != 0)
        return mb_fail_at(err, MB_UNSUPPORTED, AT, "the adapter is of fine_tune_type %.40s; lora is served%s", kind,
                          strcmp(kind, "full") == 0 ? " (whole weights: fuse them into a model)" : "");
    MB_TRY(refuse_settings(c->config, err));
    return refuse_settings(c->optiq, err);
}

/* --- values --- */

static mb_status get_rank(const json_t *o, const char *key, int32_t *rank, mb_error *err)
{
    int64_t v = 0;
    MB_TRY(json_get_int(o, key, 0, &v, err));
    if (v < 0 || v > 1 << 20) return mb_fail_at(err, MB_BAD_FORMAT, AT, "the adapter's %s is %lld", key, (long long)v);
    if (v > 0) *rank = (int32_t)v;
    return MB_OK;
}

static mb_status get_number(const json_t *o, const char *key, double *out, bool *has, mb_error *err)
{
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v)) return MB_OK;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return mb_fail_at(err, MB_BAD_FORMAT, AT, "the adapter's %s must be a number", key);
    *out = json_number_value(v);
    *has = true;
    return MB_OK;
}

static const json_t *map_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_object(v) && json_object_size(v) > 0 ? v : NULL;
}

static mb_status read_mlx(struct adapter_config *c, mb_error *err)
{
    const json_t *p = json_object_get(c->config, "lora_parameters");
    int64_t n_layers = 0;
    MB_TRY(json_get_int(c->config, "num_layers", 0, &n_layers, err));
    c->n_layers = n_layers > 0 && n_layers < INT32_MAX ? (int32_t)n_layers : 0;
    if (!json_is_object(p)) return MB_OK;
    MB_TRY(get_rank(p, "rank", &c->rank, err));
    MB_TRY(get_number(p, "scale", &c->scale, &c->has_scale, err));
    const json_t *keys = json_object_get(p, "keys");
    if (keys && !json_is_null(keys) && !json_is_array(keys))
        return mb_fail_at(err, MB_BAD_FORMAT, AT, "the adapter's lora_parameters.keys must be a list");
    c->keys = json_is_array(keys) ? keys : NULL;
    return MB_OK;
}

static mb_status read_peft(struct adapter_config *c, mb_error *err)
{
    MB_TRY(get_rank(c->config, "r", &c->rank, err));
    MB_TRY(get_number(c->config, "lora_alpha", &c->alpha, &c->has_alpha, err));
    MB_TRY(json_get_bool(c->config, "use_rslora", false, &c->rslora, err));
    c->rank_pattern = map_of(c->config, "rank_pattern");
    c->alpha_pattern = map_of(c->config, "alpha_pattern");
    const json_t *targets = json_object_get(c->config, "target_modules");
    if (json_is_array(targets) || json_is_string(targets)) c->targets = targets;
    return MB_OK;
}

/* What the trainer's own file states goes before the rest: its ranks differ by module, its scale is that of mlx-lm. */
static mb_status read_optiq(struct adapter_config *c, mb_error *err)
{
    if (!c->optiq || c->form != ADAPTER_MLX) return MB_OK;
    MB_TRY(get_rank(c->optiq, "rank", &c->rank, err));
    MB_TRY(get_number(c->optiq, "scale", &c->scale, &c->has_scale, err));
    MB_TRY(json_get_bool(c->optiq, "use_rslora", c->rslora, &c->rslora, err));
    c->ranks = map_of(c->optiq, "applied_ranks");
    if (!c->ranks) c->ranks = map_of(c->optiq, "ranks");
    return MB_OK;
}

static void read_base(struct adapter_config *c)
{
    const json_t *at[] = { json_object_get(c->optiq, "source_repo"), json_object_get(c->config, "source_repo"),
                           json_object_get(c->config, "base_model_name_or_path"), json_object_get(c->optiq, "source_model"),
                           json_object_get(c->config, "model") };
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        if (json_is_text(at[i]) && json_string_length(at[i]) > 0 && json_string_length(at[i]) < sizeof c->base) {
            strcpy(c->base, json_string_value(at[i]));
            return;
        }
}

static mb_status read_all(struct adapter_config *c, const char *dir, mb_error *err)
{
    MB_TRY(find_file(c, dir, err));
    MB_TRY(read_json(&c->config, dir, AT, err));
    MB_TRY(read_json(&c->optiq, dir, "optiq_lora_config.json", err));
    if (!c->config && !c->optiq)
        return mb_fail_at(err, MB_NOT_FOUND, "path", "%.300s has no %s: rank and scale are not known", dir, AT);
    MB_TRY(refuse_kind(c, err));
    bool peft_like = c->form == ADAPTER_PEFT || json_object_get(c->config, "lora_alpha");
    MB_TRY(read_mlx(c, err));
    if (peft_like) MB_TRY(read_peft(c, err));
    MB_TRY(read_optiq(c, err));
    read_base(c);
    if (c->form == ADAPTER_PEFT && (!c->has_alpha || c->rank == 0))
        return mb_fail_at(err, MB_BAD_FORMAT, AT, "%.300s: %s lacks r or lora_alpha", dir, AT);
    if (!c->has_scale && (!c->has_alpha || c->rank == 0))
        return mb_fail_at(err, MB_BAD_FORMAT, AT, "%.300s: %s gives no scale: neither lora_parameters.scale nor lora_alpha and r",
                          dir, AT);
    return MB_OK;
}

mb_status adapter_config_read(struct adapter_config *c, const char *dir, mb_error *err)
{
    memset(c, 0, sizeof *c);
    mb_status st = read_all(c, dir, err);
    if (st != MB_OK) adapter_config_free(c);
    return st;
}

void adapter_config_free(struct adapter_config *c)
{
    json_decref(c->config);
    json_decref(c->optiq);
    memset(c, 0, sizeof *c);
}

/* --- one module --- */

static bool ends_with_part(const char *name, const char *part)
{
    size_t n = strlen(name), m = strlen(part);
    return m <= n && strcmp(name + n - m, part) == 0 && (m == n || name[n - m - 1] == '.');
}

/* "model.layers.3.self_attn.q_proj" -> "self_attn.q_proj"; the name itself outside layers. */
static const char *inside_layer(const char *module)
{
    const char *at = strstr(module, "layers.");
    const char *dot = at ? strchr(at + 7, '.') : NULL;
    return dot ? dot + 1 : module;
}

static bool keys_cover(const struct adapter_config *c, const char *module, int32_t i_layer, int32_t n_layer)
{
    bool in_range = i_layer >= 0 && (c->n_layers == 0 || i_layer >= n_layer - c->n_layers);
    if (!c->keys) return in_range;
    for (size_t i = 0; i < json_array_size(c->keys); i++) {
        const char *key = json_string_value(json_array_get(c->keys, i));
        if (key && (strcmp(key, module) == 0 || (in_range && strcmp(key, inside_layer(module)) == 0))) return true;
    }
    return false;
}

mb_status adapter_config_covers(const struct adapter_config *c, const char *module, int32_t i_layer, int32_t n_layer,
                                bool *covers, mb_error *err)
{
    *covers = true;
    if (c->form == ADAPTER_MLX) {
        *covers = keys_cover(c, module, i_layer, n_layer);
        return MB_OK;
    }
    const char *word = json_string_value(c->targets);
    if (!c->targets || (word && strcmp(word, "all-linear") == 0)) return MB_OK;
    if (word) return adapter_pattern_matches(word, module, covers, err);
    *covers = false;
    for (size_t i = 0; i < json_array_size(c->targets) && !*covers; i++) {
        const char *t = json_string_value(json_array_get(c->targets, i));
        *covers = t && ends_with_part(module, t);
    }
    return MB_OK;
}

/* A map by module: its whole name, or without what stands before "layers." */
static const json_t *map_find(const json_t *map, const char *module)
{
    const char *at = strstr(module, "layers.");
    const json_t *v = json_object_get(map, module);
    return v || !at ? v : json_object_get(map, at);
}

mb_status adapter_config_rank(const struct adapter_config *c, const char *module, int32_t *rank, mb_error *err)
{
    const json_t *v = NULL;
    if (c->form == ADAPTER_PEFT || c->rank_pattern) MB_TRY(adapter_pattern_find(c->rank_pattern, module, &v, err));
    if (!v && c->ranks) {
        v = map_find(c->ranks, module);
        *rank = 0; /* a list of its own: what it leaves out is not known */
        if (!v) return MB_OK;
    }
    *rank = c->rank;
    if (!v) return MB_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 20)
        return mb_fail_at(err, MB_BAD_FORMAT, AT, "the adapter's rank of %.120s is no rank", module);
    *rank = (int32_t)json_integer_value(v);
    return MB_OK;
}

mb_status adapter_config_scale(const struct adapter_config *c, const char *module, int32_t rank, double *scale, mb_error *err)
{
    const json_t *v = NULL;
    double root = sqrt((double)rank), alpha = c->alpha;
    if (c->has_scale) {
        *scale = c->rslora ? c->scale / root : c->scale;
        return MB_OK;
    }
    MB_TRY(adapter_pattern_find(c->alpha_pattern, module, &v, err));
    if (v && !json_is_number(v)) return mb_fail_at(err, MB_BAD_FORMAT, AT, "alpha_pattern must map to numbers");
    if (v) alpha = json_number_value(v);
    *scale = c->rslora ? alpha / root : alpha / (double)rank;
    return MB_OK;
}
