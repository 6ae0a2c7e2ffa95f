/* gguf_import_config.c: config.json and generation_config.json of an imported model, with the keys and defaults that
 * transformers and mlx-lm use for the family. Numbers come from the metadata; what GGUF does not carry (Gemma's query
 * scale, llama 3's rope scaling rule) is worked out and checked here, or refused.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/gguf_import_int.h"

/* Remember the first failure of a jansson setter: one check at the end. */
static bool set(json_t *obj, const char *key, json_t *value)
{
    return json_object_set_new(obj, key, value) == 0;
}

static mb_status no_memory(const struct import *im, mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "%s: no memory for config.json", im->path);
}

double import_decimal(double f32_value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, f32_value);
        if (strtof(text, NULL) == (float)f32_value) return strtod(text, NULL);
    }
    return f32_value;
}

/* --- rope scaling --- */

/* llama 3's rule for pair i of the head, with the usual low 1, high 4 and original length 8,192. */
static double llama3_factor(double base, int64_t head_dim, int64_t i, double factor)
{
    double wavelength = 2.0 * 3.14159265358979323846 * pow(base, 2.0 * (double)i / (double)head_dim);
    if (wavelength < 8192.0 / 4.0) return 1.0;
    if (wavelength > 8192.0) return factor;
    double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
    return 1.0 / ((1.0 - smooth) / factor + smooth);
}

/* The file stores the divisors one by one; find the rule that made them. */
static mb_status rope_from_factors(struct import *im, const struct gguf_tensor *t, json_t **out, mb_error *err)
{
    float f;
    if (t->type->type != GGUF_T_F32 || t->n_dim != 1 || t->ne[0] != im->head_dim / 2)
        return mb_fail(err, MB_BAD_FORMAT, "%s: rope_freqs.weight must be %lld float32 numbers", im->path,
                       (long long)(im->head_dim / 2));
    memcpy(&f, t->data + 4 * (t->ne[0] - 1), sizeof f);
    double factor = f;
    for (int64_t i = 0; i < t->ne[0]; i++) {
        memcpy(&f, t->data + 4 * i, sizeof f);
        double want = llama3_factor(im->rope_base, im->head_dim, i, factor);
        if (!(fabs(f - want) <= 1e-4 * want))
            return mb_fail(err, MB_UNSUPPORTED, "%s: rope_freqs.weight does not follow the llama 3 rule (frequency %lld is "
                           "divided by %g, the rule says %g); take an MLX conversion of this model instead", im->path,
                           (long long)i, (double)f, want);
    }
    *out = json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", import_decimal(factor),
                     "low_freq_factor", 1.0, "high_freq_factor", 4.0, "original_max_position_embeddings", 8192);
    return *out ? MB_OK : no_memory(im, err);
}

static mb_status rope_from_metadata(struct import *im, struct str type, json_t **out, mb_error *err)
{
    double factor;
    int64_t original;
    MB_TRY(gguf_get_float(im->g, import_key(im, "rope.scaling.factor"), 1.0, &factor, err));
    MB_TRY(gguf_get_int(im->g, import_key(im, "rope.scaling.original_context_length"), 0, &original, err));
    factor = import_decimal(factor);
    if (str_eq(type, STR_LIT("linear"))) {
        *out = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", factor);
    } else if (str_eq(type, STR_LIT("yarn")) && original > 0) {
        *out = json_pack("{s:s, s:f, s:I}", "rope_type", "yarn", "factor", factor, "original_max_position_embeddings",
                         (json_int_t)original);
    } else {
        return mb_fail(err, MB_UNSUPPORTED, "%s: rope scaling other than linear, yarn (with its original length) and llama 3's"
                       " cannot be imported; take an MLX conversion of this model instead", im->path);
    }
    return *out ? MB_OK : no_memory(im, err);
}

/* Files of Llama 3.1 and later that were made before the factors were stored look like unscaled models. */
static void warn_missing_factors(struct import *im)
{
    if (strcmp(im->arch->name, "llama") == 0 && im->rope_base == 500000.0 && im->n_ctx > 8192)
        import_note(im, "this looks like Llama 3.1 or later, but the file holds no rope factors (it was made by an old "
                    "converter): add rope_scaling to config.json by hand, or take a newer file");
}

static mb_status rope_set(struct import *im, json_t *config, mb_error *err)
{
    const struct gguf_tensor *t = gguf_tensor_find(im->g, "rope_freqs.weight");
    struct str type;
    json_t *scaling = NULL;
    MB_TRY(gguf_get_string(im->g, import_key(im, "rope.scaling.type"), &type, err));
    if (t) MB_TRY(rope_from_factors(im, t, &scaling, err));
    else if (type.ptr && !str_eq(type, STR_LIT("none"))) MB_TRY(rope_from_metadata(im, type, &scaling, err));
    else warn_missing_factors(im);
    return set(config, "rope_scaling", scaling ? scaling : json_null()) ? MB_OK : no_memory(im, err);
}

/* --- quantisation --- */

static int common_bits(const struct import *im)
{
    size_t count[9] = { 0 };
    int best = 0;
    for (size_t i = 0; i < im->n_items; i++) count[im->items[i].bits]++;
    for (int bits = 1; bits <= 8; bits++)
        if (count[bits] > 0 && (best == 0 || count[bits] > count[best])) best = bits;
    return best;
}

/* Matrices that differ from the global numbers get an entry of their own. */
static mb_status quantization_set(struct import *im, json_t *config, mb_error *err)
{
    int global = common_bits(im);
    if (global == 0) return MB_OK;
    json_t *q = json_pack("{s:i, s:i, s:s}", "group_size", IMPORT_GROUP, "bits", global, "mode", "affine");
    bool ok = q != NULL;
    for (size_t i = 0; ok && i < im->n_items; i++) {
        const struct import_item *it = &im->items[i];
        if (it->src->n_dim < 2 || it->bits == global) continue;
        ok = set(q, it->module, it->bits ? json_pack("{s:i, s:i, s:s}", "group_size", IMPORT_GROUP, "bits", it->bits,
                                                     "mode", "affine") : json_false());
    }
    if (!ok) json_decref(q);
    return ok && set(config, "quantization", q) ? MB_OK : no_memory(im, err);
}

static const char *float_type(const struct import *im)
{
    for (size_t i = 0; i < im->n_items; i++)
        if (im->items[i].bits == 0 && im->items[i].src->n_dim == 2)
            return im->items[i].src->type->type == GGUF_T_BF16 ? "bfloat16"
                   : im->items[i].src->type->type == GGUF_T_F16 ? "float16" : "float32";
    return "float16";
}

/* --- families --- */

/* The base frequency of the windowed layers and the rhythm (every sixth layer sees everything) are not in the file. */
mb_status import_config_gemma3(struct import *im, json_t *config, mb_error *err)
{
    int64_t window, pattern;
    double local_base, soft_cap;
    MB_TRY(gguf_get_int(im->g, import_key(im, "attention.sliding_window"), 1024, &window, err));
    MB_TRY(gguf_get_int(im->g, import_key(im, "attention.sliding_window_pattern"), 6, &pattern, err));
    MB_TRY(gguf_get_float(im->g, import_key(im, "rope.freq_base_swa"), 10000.0, &local_base, err));
    MB_TRY(gguf_get_float(im->g, import_key(im, "final_logit_softcapping"), 0.0, &soft_cap, err));
    if (window < 1 || pattern < 1 || pattern > im->n_layer + 6)
        return mb_fail(err, MB_BAD_FORMAT, "%s: sliding window %lld, pattern %lld", im->path, (long long)window,
                       (long long)pattern);
    json_t *types = json_array();
    bool ok = types != NULL;
    for (int64_t i = 0; ok && i < im->n_layer; i++)
        ok = json_array_append_new(types, json_string((i + 1) % pattern ? "sliding_attention" : "full_attention")) == 0;
    /* The query scale is 1/sqrt(head length), but 1/sqrt(width / heads) in the 27B (62 layers). */
    int64_t scalar = im->n_layer == 62 ? im->n_embd / im->n_head : im->head_dim;
    ok = ok && set(config, "query_pre_attn_scalar", json_integer(scalar)) &&
         set(config, "sliding_window", json_integer(window)) &&
         set(config, "sliding_window_pattern", json_integer(pattern)) &&
         set(config, "rope_local_base_freq", json_real(import_decimal(local_base))) &&
         set(config, "hidden_activation", json_string("gelu_pytorch_tanh")) &&
         set(config, "final_logit_softcapping", soft_cap > 0 ? json_real(import_decimal(soft_cap)) : json_null()) &&
         set(config, "attn_logit_softcapping", json_null());
    if (ok) ok = set(config, "layer_types", types);
    else json_decref(types);
    return ok ? MB_OK : no_memory(im, err);
}

static mb_status config_base(struct import *im, json_t *c, mb_error *err)
{
    bool has_bias = gguf_tensor_find(im->g, "blk.0.attn_q.bias") != NULL;
    bool ok = set(c, "architectures", json_pack("[s]", im->arch->class_name)) &&
              set(c, "model_type", json_string(im->arch->model_type)) &&
              set(c, "hidden_size", json_integer(im->n_embd)) &&
              set(c, "intermediate_size", json_integer(im->n_ff)) &&
              set(c, "num_hidden_layers", json_integer(im->n_layer)) &&
              set(c, "num_attention_heads", json_integer(im->n_head)) &&
              set(c, "num_key_value_heads", json_integer(im->n_head_kv)) &&
              set(c, "head_dim", json_integer(im->head_dim)) &&
              set(c, "max_position_embeddings", json_integer(im->n_ctx)) &&
              set(c, "rms_norm_eps", json_real(import_decimal(im->eps))) &&
              set(c, "rope_theta", json_real(import_decimal(im->rope_base))) &&
              set(c, "hidden_act", json_string(im->arch->norm_plus_one ? "gelu_pytorch_tanh" : "silu")) &&
              set(c, "tie_word_embeddings", json_boolean(im->tied)) &&
              set(c, "vocab_size", json_integer(im->n_vocab)) && set(c, "torch_dtype", json_string(float_type(im)));
    /* Qwen 2 always has biases on q, k and v, never on o, and no key that says so. */
    if (ok && strcmp(im->arch->name, "qwen2") != 0)
        ok = set(c, "attention_bias", json_boolean(has_bias)) && set(c, "mlp_bias", json_false());
    return ok ? MB_OK : no_memory(im, err);
}

static json_t *id_list(const int64_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        if (json_array_append_new(list, json_integer(ids[i])) == 0) continue;
        json_decref(list);
        return NULL;
    }
    return list;
}

static mb_status ids_set(struct import *im, json_t *config, json_t *generation, mb_error *err)
{
    static const char *const which[] = { "bos", "padding" }, *const names[] = { "bos_token_id", "pad_token_id" };
    int64_t eos[16];
    size_t n_eos = import_eos_ids(im, eos, 16);
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        int64_t id = import_token_id(im, which[i]);
        if (id >= 0) ok = ok && set(config, names[i], json_integer(id)) && set(generation, names[i], json_integer(id));
    }
    if (n_eos > 0)
        ok = ok && set(config, "eos_token_id", json_integer(eos[0])) &&
             set(generation, "eos_token_id", n_eos == 1 ? json_integer(eos[0]) : id_list(eos, n_eos));
    else import_note(im, "the file names no end-of-text token: generation stops at its length only");
    return ok ? MB_OK : no_memory(im, err);
}

mb_status import_config_make(struct import *im, json_t **config, json_t **generation_config, mb_error *err)
{
    *config = json_object();
    *generation_config = json_object();
    mb_status st = *config && *generation_config ? MB_OK : no_memory(im, err);
    if (st == MB_OK) st = config_base(im, *config, err);
    if (st == MB_OK) st = rope_set(im, *config, err);
    if (st == MB_OK && im->arch->config) st = im->arch->config(im, *config, err);
    if (st == MB_OK) st = ids_set(im, *config, *generation_config, err);
    if (st == MB_OK) st = quantization_set(im, *config, err);
    if (st == MB_OK) return MB_OK;
    json_decref(*config);
    json_decref(*generation_config);
    *config = *generation_config = NULL;
    return st;
}
