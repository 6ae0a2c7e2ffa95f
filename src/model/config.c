/* config.c: config.json and generation_config.json to a model_spec: what all families share.
 *
 * Each key is checked for type and range and named in errors. Readers of families (arch_*.c) fill what is their own.
 */
#include <stdio.h>
#include <string.h>

#include "base/filemap.h"
#include "model/arch_int.h"

#define CONFIG_MAX_BYTES ((size_t)16 << 20)

/* A value of the wrong type is a malformed file here, not a bad argument. */
static mb_status in_config(mb_status st, mb_error *err)
{
    if (st != MB_INVALID) return st;
    if (err) err->code = MB_BAD_FORMAT;
    mb_error_prefix(err, "config.json");
    return MB_BAD_FORMAT;
}

mb_status config_int(const json_t *c, const char *key, int64_t min, int64_t max, int32_t *out, mb_error *err)
{
    const json_t *v = json_object_get(c, key);
    if (!v || json_is_null(v)) return mb_fail_at(err, MB_BAD_FORMAT, key, "config.json: %s is missing", key);
    return config_int_or(c, key, min, min, max, out, err);
}

mb_status config_int_or(const json_t *c, const char *key, int64_t dflt, int64_t min, int64_t max, int32_t *out,
                        mb_error *err)
{
    int64_t v = 0;
    MB_TRY(in_config(json_get_int(c, key, dflt, &v, err), err));
    if (v < min || v > max)
        return mb_fail_at(err, MB_BAD_FORMAT, key, "config.json: %s is %lld, must be from %lld to %lld", key,
                          (long long)v, (long long)min, (long long)max);
    *out = (int32_t)v;
    return MB_OK;
}

mb_status config_float_or(const json_t *c, const char *key, double dflt, double *out, mb_error *err)
{
    return in_config(json_get_double(c, key, dflt, out, err), err);
}

mb_status config_bool_or(const json_t *c, const char *key, bool dflt, bool *out, mb_error *err)
{
    return in_config(json_get_bool(c, key, dflt, out, err), err);
}

mb_status config_read_common(struct model_spec *s, const json_t *c, mb_error *err)
{
    int32_t n_head = 0, n_head_kv = 0, head_dim = 0, d_ff = 0;
    double eps = 0;
    MB_TRY(config_int(c, "hidden_size", 8, 1 << 20, &s->d_model, err));
    MB_TRY(config_int(c, "num_hidden_layers", 1, 1024, &s->n_layer, err));
    MB_TRY(config_int(c, "vocab_size", 1, 1 << 24, &s->n_vocab, err));
    MB_TRY(config_int(c, "intermediate_size", 8, 1 << 22, &d_ff, err));
    MB_TRY(config_int(c, "num_attention_heads", 1, 4096, &n_head, err));
    MB_TRY(config_int_or(c, "num_key_value_heads", n_head, 1, n_head, &n_head_kv, err));
    MB_TRY(config_int_or(c, "head_dim", s->d_model / n_head, 2, 1024, &head_dim, err));
    MB_TRY(config_int_or(c, "max_position_embeddings", 4096, 1, 1 << 26, &s->n_context, err));
    MB_TRY(config_float_or(c, "rms_norm_eps", 1e-6, &eps, err));
    if (!(eps >= 0 && eps <= 1))
        return mb_fail_at(err, MB_BAD_FORMAT, "rms_norm_eps", "config.json: rms_norm_eps is %g, must be from 0 to 1", eps);
    if (n_head % n_head_kv != 0)
        return mb_fail(err, MB_BAD_FORMAT, "config.json: num_attention_heads %d is no multiple of num_key_value_heads %d",
                       n_head, n_head_kv);
    if (head_dim % 2 != 0)
        return mb_fail(err, MB_BAD_FORMAT, "config.json: head_dim %d must be even", head_dim);
    static const struct norm_names pre_norms = { .attn = "input_layernorm", .mlp = "post_attention_layernorm" };
    s->norms = &pre_norms;
    s->norm_eps = (float)eps;
    s->embed_scale = 1.0f;
    s->layers = arena_alloc_array(&s->arena, (size_t)s->n_layer, sizeof *s->layers);
    if (!s->layers) return mb_fail(err, MB_NO_MEMORY, "out of memory for %d layers", s->n_layer);
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        l->attn = ATTN_FULL;
        l->mlp = MLP_GATED;
        l->n_head = n_head;
        l->n_head_kv = n_head_kv;
        l->head_dim = head_dim;
        l->d_ff = d_ff;
        l->i_kv_donor = -1;
        l->attn_scale = 1.0f / __builtin_sqrtf((float)head_dim);
    }
    return MB_OK;
}

mb_status config_read_layer_types(struct model_spec *s, const json_t *c, int32_t window, mb_error *err)
{
    const json_t *types = json_object_get(c, "layer_types");
    if (!types || json_is_null(types)) return MB_OK;
    if (!json_is_array(types) || (int32_t)json_array_size(types) != s->n_layer)
        return mb_fail_at(err, MB_BAD_FORMAT, "layer_types", "config.json: layer_types must list %d layers", s->n_layer);
    for (int i = 0; i < s->n_layer; i++) {
        const char *t = json_string_value(json_array_get(types, (size_t)i));
        if (t && strcmp(t, "full_attention") == 0) {
            s->layers[i].attn = ATTN_FULL;
            s->layers[i].window = 0;
        } else if (t && strcmp(t, "sliding_attention") == 0) {
            if (window <= 0)
                return mb_fail_at(err, MB_BAD_FORMAT, "sliding_window",
                                  "config.json: layer %d is sliding_attention, but sliding_window is missing", i);
            s->layers[i].attn = ATTN_SLIDING;
            s->layers[i].window = window;
        } else {
            return mb_fail_at(err, MB_UNSUPPORTED, "layer_types",
                              "config.json: layer_types[%d] is %s; this version knows full_attention and "
                              "sliding_attention", i, t ? t : "no string");
        }
    }
    return MB_OK;
}

/* The state of every value head, and what the convolution has to look back at. */
static int32_t delta_state_floats(const struct delta_spec *d)
{
    int32_t channels = 2 * d->n_head_k * d->dim_k + d->n_head_v * d->dim_v;
    return d->n_head_v * d->dim_k * d->dim_v + (d->n_conv - 1) * channels;
}

/* Two layers belong to one kind when their keys have the same life and the same shape. */
static int find_kind(struct model_spec *s, const struct layer_spec *l)
{
    enum kv_kind_type type = l->attn == ATTN_SLIDING ? KIND_WINDOW : l->attn == ATTN_GATED_DELTA ? KIND_STATE
                             : l->attn == ATTN_MLA ? KIND_LATENT : KIND_FULL;
    int32_t head_dim = l->head_dim + (l->index == INDEX_OWN ? s->latent.index_dim : 0); /* the indexer's key lies with the latent */
    for (int i = 0; i < s->n_kinds; i++) {
        if (type == KIND_STATE && s->kinds[i].type == type) return i;
        struct kv_kind *k = &s->kinds[i];
        if (k->type == type && k->window == l->window && k->n_head_kv == l->n_head_kv && k->head_dim == head_dim && k->format == l->kv_format)
            return i;
    }
    if (s->n_kinds == KV_MAX_KINDS) return -1;
    if (type == KIND_STATE)
        s->kinds[s->n_kinds] = (struct kv_kind){ .type = type, .format = l->kv_format, .state_floats = delta_state_floats(&s->delta) };
    else
        s->kinds[s->n_kinds] = (struct kv_kind){ .type = type, .window = l->window, .n_head_kv = l->n_head_kv,
                                             .head_dim = head_dim, .format = l->kv_format };
    return s->n_kinds++;
}

void model_spec_finish(struct model_spec *s)
{
    s->n_kinds = 0;
    for (int i = 0; i < s->n_layer; i++) {
        struct layer_spec *l = &s->layers[i];
        if (l->attn == ATTN_SHARED_KV) {
            l->i_kind = s->layers[l->i_kv_donor].i_kind;
            l->i_in_kind = s->layers[l->i_kv_donor].i_in_kind;
            continue;
        }
        int k = find_kind(s, l);
        l->i_kind = (int16_t)k;
        if (k >= 0) l->i_in_kind = (int16_t)s->kinds[k].n_layer++;
    }
}

int32_t model_spec_add_rope(struct model_spec *s, const struct rope_params *r)
{
    for (int i = 0; i < s->n_ropes; i++)
        if (memcmp(&s->ropes[i], r, sizeof *r) == 0) return i;
    struct rope_params *grown = arena_alloc_array(&s->arena, (size_t)s->n_ropes + 1, sizeof *grown);
    if (!grown) return -1;
    if (s->n_ropes) memcpy(grown, s->ropes, (size_t)s->n_ropes * sizeof *grown);
    grown[s->n_ropes] = *r;
    s->ropes = grown;
    return s->n_ropes++;
}

static void add_eos_id(struct model_spec *s, int64_t id)
{
    if (id < 0 || id >= s->n_vocab) return;
    for (int i = 0; i < s->n_eos; i++)
        if (s->eos_ids[i] == id) return;
    if (s->n_eos < (int)(sizeof s->eos_ids / sizeof s->eos_ids[0])) s->eos_ids[s->n_eos++] = (int32_t)id;
}

/* End tokens: config.json and generation_config.json, each an id or a list (B-034; the tokenizer's own is added by the
 * waist, which knows it). Anything else would leave a model that never ends. */
static mb_status add_eos(struct model_spec *s, const json_t *c, const char *file, mb_error *err)
{
    const json_t *v = json_object_get(c, "eos_token_id");
    if (!v || json_is_null(v)) return MB_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id))
            return mb_fail_at(err, MB_BAD_FORMAT, "eos_token_id", "%s: eos_token_id must be a token id or a list of them",
                              file);
        add_eos_id(s, json_integer_value(id));
    }
    return MB_OK;
}

mb_status model_config_parse(struct model_spec *out, const json_t *config, const json_t *generation_config,
                             mb_error *err)
{
    memset(out, 0, sizeof *out);
    arena_init(&out->arena, (size_t)64 << 20);
    const char *type;
    MB_TRY(in_config(json_get_str(config, "model_type", NULL, &type, err), err));
    if (!type) return mb_fail_at(err, MB_BAD_FORMAT, "model_type", "config.json: model_type is missing");
    const struct arch_row *arch = arch_find(type);
    char known[512];
    if (!arch)
        return mb_fail_at(err, MB_UNSUPPORTED, "model_type",
                          "config.json: model_type %.64s is not supported; this version has %s", type, arch_known(known));
    out->model_type = arena_strdup(&out->arena, type);
    out->arch_name = arch->name;
    out->kv_format = arch->kv_format;
    mb_status st = quant_config_read(&out->quant, config, err);
    if (st == MB_OK) st = arch->read(out, config, err);
    if (st == MB_OK && out->canvas.n > 0) st = canvas_schedule_read(&out->canvas, generation_config, err);
    if (st == MB_OK) {
        model_spec_finish(out);
        st = add_eos(out, config, "config.json", err);
        if (st == MB_OK) st = add_eos(out, json_object_get(config, "text_config"), "config.json", err);
        if (st == MB_OK) st = add_eos(out, generation_config, "generation_config.json", err);
        if (st == MB_OK && out->arena.failed) st = mb_fail(err, MB_NO_MEMORY, "out of memory while reading config.json");
        for (int i = 0; st == MB_OK && i < out->n_layer; i++)
            if (out->layers[i].i_kind < 0)
                st = mb_fail(err, MB_UNSUPPORTED, "config.json: more than %d kinds of KV state", KV_MAX_KINDS);
    }
    if (st != MB_OK) model_spec_free(out);
    return st;
}

mb_status model_config_read(struct model_spec *out, const char *dir, mb_error *err)
{
    char path[4096];
    json_t *config = NULL, *generation = NULL;
    memset(out, 0, sizeof *out);
    MB_TRY(path_join(path, sizeof path, dir, "config.json", err));
    MB_TRY(json_read_file(&config, path, CONFIG_MAX_BYTES, err));
    mb_status st = path_join(path, sizeof path, dir, "generation_config.json", err);
    if (st == MB_OK && path_exists(path)) st = json_read_file(&generation, path, CONFIG_MAX_BYTES, err);
    if (st == MB_OK) st = model_config_parse(out, config, generation, err);
    if (st != MB_OK) mb_error_prefix(err, "%s", dir);
    json_decref(config);
    json_decref(generation);
    return st;
}

void model_spec_free(struct model_spec *s)
{
    quant_config_free(s->quant);
    arena_free(&s->arena);
    memset(s, 0, sizeof *s);
}
