/* arch_diffusion.c: reader of DiffusionGemma (text): the layers of Gemma 4's mixture (26B-A4B) without shared keys and per-layer
 * inputs, used twice: causally over what is written, and over a canvas whose tokens see each other. The two differ in the
 * layers' scalars and in the MLP that mixes what the round before expects into the canvas (model/plan.c).
 * Oracle: transformers' models/diffusion_gemma, whose defaults are used for the sampler's numbers that a
 * generation_config.json leaves out. Images are not read here.
 */
#include <stdlib.h>
#include <string.h>

#include "model/arch_int.h"

enum { CANVAS_MAX = 2048, ROUNDS_MAX = 4096, PATTERN = 6 };

static mb_status no_memory(mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "out of memory");
}

/* What the family has no defaults for, or other ones than Gemma 4. */
static mb_status check_keys(const json_t *c, mb_error *err)
{
    static const char *const keys[] = { "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
                                        "num_key_value_heads", "head_dim", "vocab_size", "num_experts", "top_k_experts",
                                        "moe_intermediate_size" };
    bool tied = true;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *v = json_object_get(c, keys[i]);
        if (!v || json_is_null(v))
            return mb_fail_at(err, MB_BAD_FORMAT, keys[i], "config.json: text_config.%s is missing", keys[i]);
    }
    MB_TRY(config_bool_or(c, "tie_word_embeddings", true, &tied, err));
    if (!tied)
        return mb_fail_at(err, MB_UNSUPPORTED, "tie_word_embeddings", "config.json: tie_word_embeddings is false: separate weights "
                          "for text and canvas are not in this version");
    return MB_OK;
}

/* The last layer has full attention, whatever layer_types says; without them every sixth has. */
static mb_status set_layer_types(json_t *c, mb_error *err)
{
    const json_t *given = json_object_get(c, "layer_types");
    int32_t n = 0;
    MB_TRY(config_int(c, "num_hidden_layers", 1, 1024, &n, err));
    if (given && !json_is_null(given) && (!json_is_array(given) || (int32_t)json_array_size(given) != n))
        return mb_fail_at(err, MB_BAD_FORMAT, "layer_types", "config.json: layer_types must list %d layers", n);
    json_t *types = json_array();
    bool ok = types != NULL;
    for (int32_t i = 0; ok && i < n; i++) {
        bool full = i == n - 1 || (i + 1) % PATTERN == 0;
        json_t *own = i == n - 1 ? NULL : json_array_get(given, (size_t)i);
        ok = own ? json_array_append(types, own) == 0
                 : json_array_append_new(types, json_string(full ? "full_attention" : "sliding_attention")) == 0;
    }
    if (!ok) {
        json_decref(types);
        return no_memory(err);
    }
    return json_object_set_new(c, "layer_types", types) == 0 ? MB_OK : no_memory(err);
}

/* transformers writes what full layers have of their own as per_layer_config, one object a layer; all of them alike. */
static mb_status set_global_heads(json_t *c, mb_error *err)
{
    static const struct { const char *key, *global; } names[] = { { "head_dim", "global_head_dim" },
                                                                  { "num_key_value_heads", "num_global_key_value_heads" } };
    const json_t *layers = json_object_get(c, "per_layer_config"), *first = NULL, *layer;
    const char *key;
    if (!layers || json_is_null(layers)) return MB_OK;
    if (!json_is_object(layers))
        return mb_fail_at(err, MB_BAD_FORMAT, "per_layer_config", "config.json: per_layer_config must be an object");
    json_object_foreach((json_t *)layers, key, layer) {
        char *end;
        long i = strtol(key, &end, 10);
        const char *type = *end || i < 0 ? NULL : json_string_value(json_array_get(json_object_get(c, "layer_types"), (size_t)i));
        if (!json_is_object(layer) || !type || strcmp(type, "full_attention") != 0 || (first && !json_equal(first, layer)))
            return mb_fail_at(err, MB_UNSUPPORTED, "per_layer_config", "config.json: per_layer_config.%.32s: this version knows one "
                              "head_dim and num_key_value_heads for all layers with full attention", key);
        first = layer;
    }
    size_t n_full = 0;
    for (size_t i = 0; i < json_array_size(json_object_get(c, "layer_types")); i++) {
        const char *type = json_string_value(json_array_get(json_object_get(c, "layer_types"), i));
        n_full += type && strcmp(type, "full_attention") == 0;
    }
    if (first && json_object_size(layers) != n_full)
        return mb_fail_at(err, MB_UNSUPPORTED, "per_layer_config", "config.json: per_layer_config has %zu of %zu layers with full "
                          "attention; this version knows all or none", json_object_size(layers), n_full);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *v = json_object_get(first, names[i].key);
        if (!v) v = json_object_get(c, names[i].key);
        if (json_object_set(c, names[i].global, v) != 0) return no_memory(err);
    }
    return MB_OK;
}

static mb_status set_fixed(json_t *c, mb_error *err)
{
    json_t *fixed = json_pack("{s:b, s:b, s:i, s:i}", "enable_moe_block", 1, "attention_k_eq_v", 1, "num_kv_shared_layers", 0,
                              "hidden_size_per_layer_input", 0);
    bool ok = fixed && json_object_update(c, fixed) == 0;
    json_decref(fixed);
    return ok ? MB_OK : no_memory(err);
}

static mb_status read_text(struct model_spec *s, json_t *c, mb_error *err)
{
    MB_TRY(check_keys(c, err));
    MB_TRY(set_layer_types(c, err));
    MB_TRY(set_global_heads(c, err));
    MB_TRY(set_fixed(c, err));
    return arch_read_gemma4(s, c, err);
}

mb_status arch_read_diffusion_gemma(struct model_spec *s, const json_t *config, mb_error *err)
{
    const json_t *text = json_object_get(config, "text_config"), *tied = json_object_get(config, "tie_word_embeddings");
    if (!json_is_object(text))
        return mb_fail_at(err, MB_BAD_FORMAT, "text_config", "config.json: text_config is missing or no object");
    MB_TRY(config_int_or(config, "canvas_length", 256, 1, CANVAS_MAX, &s->canvas.n, err));
    json_t *c = json_copy((json_t *)text);
    bool ok = c && (!tied || json_is_null(tied) || json_object_set(c, "tie_word_embeddings", (json_t *)tied) == 0);
    mb_status st = ok ? read_text(s, c, err) : no_memory(err);
    json_decref(c);
    s->encoder = "model.encoder.language_model.";
    return st;
}

/* --- generation_config.json --- */

struct number {
    const char *group, *key; /* group: an object that may hold it instead; NULL */
    double dflt, min, max;
    bool above_min;          /* min itself is not allowed */
};

/* A key of the file, or of the group's object in it; null is as absent. */
static mb_status number_read(const json_t *gc, const struct number *n, double *out, mb_error *err)
{
    const json_t *v = json_object_get(gc, n->key);
    if ((!v || json_is_null(v)) && n->group) v = json_object_get(json_object_get(gc, n->group), n->key);
    *out = n->dflt;
    if (!v || json_is_null(v)) return MB_OK;
    double d = json_is_number(v) ? json_number_value(v) : n->min - 1;
    if (!(d >= n->min && d <= n->max) || (n->above_min && d == n->min))
        return mb_fail_at(err, MB_BAD_FORMAT, n->key, "generation_config.json: %s must be a number from %g to %g%s", n->key, n->min,
                          n->max, n->above_min ? ", above the lower bound" : "");
    *out = d;
    return MB_OK;
}

static mb_status check_sampler(const json_t *gc, mb_error *err)
{
    const json_t *name = json_object_get(json_object_get(gc, "sampler_config"), "_cls_name");
    if (!name || json_is_null(name)) return MB_OK;
    const char *text = json_is_string(name) ? json_string_value(name) : "no string";
    if (strcmp(text, "EntropyBoundSamplerConfig") == 0) return MB_OK;
    return mb_fail_at(err, MB_UNSUPPORTED, "sampler_config", "generation_config.json: sampler_config is %.64s; this version knows "
                      "EntropyBoundSamplerConfig", text);
}

mb_status canvas_schedule_read(struct canvas_spec *c, const json_t *generation_config, mb_error *err)
{
    static const char temperatures[] = "linear_temperature_schedule_config", stopping[] = "diffusion_stopping_config";
    static const struct number rounds = { NULL, "max_denoising_steps", 48, 1, ROUNDS_MAX, false };
    static const struct number t_min = { temperatures, "t_min", 0.4, 0, 1000, false };
    static const struct number t_max = { temperatures, "t_max", 0.8, 0, 1000, true };
    static const struct number bound = { "sampler_config", "entropy_bound", 0.1, 0, 1e9, true };
    static const struct number stable = { stopping, "stability_threshold", 1, 0, 64, false };
    static const struct number confident = { stopping, "confidence_threshold", 0.005, 0, 1e9, true };
    double n_rounds = 0, stability = 0;
    MB_TRY(check_sampler(generation_config, err));
    MB_TRY(number_read(generation_config, &rounds, &n_rounds, err));
    MB_TRY(number_read(generation_config, &t_min, &c->t_min, err));
    MB_TRY(number_read(generation_config, &t_max, &c->t_max, err));
    MB_TRY(number_read(generation_config, &bound, &c->entropy_bound, err));
    MB_TRY(number_read(generation_config, &stable, &stability, err));
    MB_TRY(number_read(generation_config, &confident, &c->confidence, err));
    c->n_rounds = (int32_t)n_rounds;
    c->stability = (int32_t)stability;
    if (c->t_max <= c->t_min)
        return mb_fail_at(err, MB_BAD_FORMAT, "t_max", "generation_config.json: t_max %g must be above t_min %g", c->t_max, c->t_min);
    if (c->n_rounds != n_rounds || c->stability != stability)
        return mb_fail(err, MB_BAD_FORMAT, "generation_config.json: max_denoising_steps and stability_threshold must be whole numbers");
    return MB_OK;
}
