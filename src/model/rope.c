/* rope.c: rotary position parameters from a config, and the table of cosines and sines.
 *
 * A table is a function of position alone (docs/numerics.md, rule 9): `dynamic` uses the base for length
 * max(original, p + 1), `longrope` chooses long factors once, when the model's context is above the original.
 * Everything is computed in double with our own pow and sin/cos, then rounded once to float32: equal on every machine.
 * Oracle: transformers.modeling_rope_utils (B-112); mlx_lm.models.rope_utils.
 */
#include <math.h>
#include <string.h>

#include "model/arch_int.h"
#include "ops/mathfn.h"

static const double LN2 = 0.693147180559945309417232121458;
static const double TWO_PI = 6.283185307179586476925286766559;

/* Natural logarithm in plain operations: x = m * 2^e with m in [0.7, 1.42), ln m = 2 atanh((m-1)/(m+1)). */
static double ln_d(double x)
{
    int e = 0;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752440) { m *= 2; e--; }
    double t = (m - 1) / (m + 1), t2 = t * t, sum = 0;
    for (int k = 41; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
    return 2 * t * sum + e * LN2;
}

static mb_status read_factors(struct model_spec *s, const json_t *scaling, const char *key, int32_t n,
                              const double **out, mb_error *err)
{
    const json_t *list = json_object_get(scaling, key);
    double *v = arena_alloc_array(&s->arena, (size_t)n, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    if (!json_is_array(list) || (int32_t)json_array_size(list) != n)
        return mb_fail_at(err, MB_BAD_FORMAT, key, "config.json: rope_scaling.%s must list %d numbers", key, n);
    for (int i = 0; i < n; i++) {
        v[i] = json_number_value(json_array_get(list, (size_t)i));
        if (!(v[i] > 0)) return mb_fail_at(err, MB_BAD_FORMAT, key, "config.json: rope_scaling.%s[%d] is not above 0", key, i);
    }
    *out = v;
    return MB_OK;
}

static const struct { const char *name; enum rope_kind kind; } rope_names[] = {
    { "default", ROPE_DEFAULT }, { "linear", ROPE_LINEAR }, { "dynamic", ROPE_DYNAMIC }, { "llama3", ROPE_LLAMA3 },
    { "yarn", ROPE_YARN },       { "deepseek_yarn", ROPE_YARN }, { "longrope", ROPE_LONGROPE }, { "su", ROPE_LONGROPE },
    { "proportional", ROPE_PROPORTIONAL },
};

static mb_status read_kind(const json_t *scaling, enum rope_kind *out, mb_error *err)
{
    const json_t *v = json_object_get(scaling, "rope_type");
    if (!v || json_is_null(v)) v = json_object_get(scaling, "type");
    const char *type = !v || json_is_null(v) ? "default" : json_is_text(v) ? json_string_value(v) : NULL;
    if (!type) return mb_fail_at(err, MB_BAD_FORMAT, "rope_scaling", "config.json: the type of rope_scaling must be a string");
    for (size_t i = 0; i < sizeof rope_names / sizeof rope_names[0]; i++)
        if (strcmp(type, rope_names[i].name) == 0) {
            *out = rope_names[i].kind;
            return MB_OK;
        }
    return mb_fail_at(err, MB_UNSUPPORTED, "rope_scaling",
                      "config.json: rope scaling type %.64s is not known; this version has default, linear, dynamic, "
                      "llama3, yarn, longrope and proportional", type);
}

json_t *config_rope_of(const json_t *c, const char *layer_type, bool *nested)
{
    const json_t *own = json_object_get(json_object_get(c, "rope_parameters"), layer_type);
    if (nested) *nested = json_is_object(own);
    if (!json_is_object(own)) return json_incref((json_t *)(uintptr_t)c);
    json_t *out = json_copy((json_t *)(uintptr_t)c);
    if (!out || json_object_set(out, "rope_parameters", (json_t *)(uintptr_t)own) != 0) {
        json_decref(out);
        return NULL;
    }
    json_object_del(out, "rope_scaling");
    json_object_del(out, "rope_theta");
    return out;
}

/* The scaling object and theta may be nested (rope_parameters) or lie at the top level. */
mb_status rope_params_read(struct model_spec *s, const json_t *c, const char *theta_key, double theta_default,
                           int32_t head_dim, struct rope_params *out, mb_error *err)
{
    double partial = 1, factor = 0, original = 0, theta = 0;
    memset(out, 0, sizeof *out);
    const json_t *scaling = json_object_get(c, "rope_scaling");
    if (!scaling || json_is_null(scaling)) scaling = json_object_get(c, "rope_parameters");
    if (scaling && !json_is_null(scaling) && !json_is_object(scaling))
        return mb_fail_at(err, MB_BAD_FORMAT, "rope_scaling", "config.json: rope_scaling must be an object or null");
    if (json_is_object(json_object_get(scaling, "full_attention")) || json_is_object(json_object_get(scaling, "sliding_attention")))
        return mb_fail_at(err, MB_UNSUPPORTED, "rope_parameters", "config.json: rope_parameters differ by kind of layer; this version knows "
                          "that for gemma3, gemma4 and olmo3, not for %s", s->model_type);
    MB_TRY(config_float_or(c, theta_key, 0, &theta, err));
    if (theta == 0 && json_is_object(scaling)) MB_TRY(config_float_or(scaling, "rope_theta", 0, &theta, err));
    out->theta = theta == 0 ? theta_default : theta;
    MB_TRY(config_float_or(c, "partial_rotary_factor", 1.0, &partial, err));
    if (json_is_object(scaling)) MB_TRY(config_float_or(scaling, "partial_rotary_factor", partial, &partial, err));
    out->n_rot = (int32_t)(head_dim * partial) & ~1;
    if (!(out->theta > 1) || out->n_rot < 2 || out->n_rot > head_dim)
        return mb_fail(err, MB_BAD_FORMAT, "config.json: %s %g or partial_rotary_factor %g is out of range", theta_key,
                       out->theta, partial);
    if (!json_is_object(scaling)) return MB_OK;
    MB_TRY(read_kind(scaling, &out->kind, err));
    if (out->kind == ROPE_DEFAULT) return MB_OK;
    MB_TRY(config_float_or(scaling, "factor", out->kind == ROPE_PROPORTIONAL ? 1 : 0, &factor, err));
    MB_TRY(config_float_or(scaling, "original_max_position_embeddings", 0, &original, err));
    if (original == 0) MB_TRY(config_float_or(c, "original_max_position_embeddings", 0, &original, err));
    if (original == 0) original = s->n_context;
    if (out->kind == ROPE_LONGROPE && factor == 0) factor = s->n_context / original;
    if (!(factor > 0) || !(original >= 1))
        return mb_fail_at(err, MB_BAD_FORMAT, "rope_scaling", "config.json: rope_scaling.factor is missing or not above 0");
    out->factor = factor;
    if (out->kind == ROPE_PROPORTIONAL) {
        out->n_turning = out->n_rot;
        out->n_rot = head_dim;
        return MB_OK;
    }
    out->original_context = (int32_t)original;
    MB_TRY(config_float_or(scaling, "low_freq_factor", 1, &out->low_freq_factor, err));
    MB_TRY(config_float_or(scaling, "high_freq_factor", 4, &out->high_freq_factor, err));
    MB_TRY(config_float_or(scaling, "beta_fast", 32, &out->beta_fast, err));
    MB_TRY(config_float_or(scaling, "beta_slow", 1, &out->beta_slow, err));
    MB_TRY(config_float_or(scaling, "mscale", 0, &out->mscale, err));
    MB_TRY(config_float_or(scaling, "mscale_all_dim", 0, &out->mscale_all_dim, err));
    MB_TRY(config_float_or(scaling, "attention_factor", 0, &out->attention_factor, err));
    MB_TRY(config_bool_or(scaling, "truncate", true, &out->truncate, err));
    if (out->kind == ROPE_LONGROPE) {
        MB_TRY(read_factors(s, scaling, "short_factor", out->n_rot / 2, &out->short_factor, err));
        MB_TRY(read_factors(s, scaling, "long_factor", out->n_rot / 2, &out->long_factor, err));
    }
    return MB_OK;
}

int32_t rope_query_steps(const struct rope_params *r, int32_t n_context)
{
    return r->query_beta == 0 || n_context <= r->query_context ? 0 : (n_context - 1) / r->query_context + 1;
}

void rope_query_fill(const struct rope_params *r, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++) out[i] = (float)(1 + r->query_beta * ln_d(1.0 + i));
}

static double clamp01(double v)
{
    return v < 0 ? 0 : v > 1 ? 1 : v;
}

static double llama3_inv_freq(const struct rope_params *r, double inv)
{
    double wavelen = TWO_PI / inv, old = r->original_context;
    if (wavelen > old / r->low_freq_factor) return inv / r->factor;
    if (wavelen < old / r->high_freq_factor) return inv;
    double smooth = (old / wavelen - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * inv / r->factor + smooth * inv;
}

static double yarn_correction_dim(const struct rope_params *r, double n_rotations)
{
    return r->n_rot * ln_d(r->original_context / (n_rotations * TWO_PI)) / (2 * ln_d(r->theta));
}

static double yarn_inv_freq(const struct rope_params *r, double inv, int i)
{
    double low = yarn_correction_dim(r, r->beta_fast), high = yarn_correction_dim(r, r->beta_slow);
    if (r->truncate) { low = floor(low); high = ceil(high); }
    if (low < 0) low = 0;
    if (high > r->n_rot - 1) high = r->n_rot - 1;
    if (low == high) high += 0.001;
    double keep = 1 - clamp01((i - low) / (high - low));
    return inv / r->factor * (1 - keep) + inv * keep;
}

static double yarn_mscale(double scale, double mscale)
{
    return scale <= 1 ? 1 : 0.1 * mscale * ln_d(scale) + 1;
}

double rope_score_factor(const struct rope_params *r)
{
    if (r->kind == ROPE_DEFAULT || r->mscale_all_dim == 0) return 1;
    double m = yarn_mscale(r->factor, r->mscale_all_dim);
    return m * m;
}

/* Factor on cosines and sines. */
static double attention_factor(const struct rope_params *r, int32_t n_context)
{
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->kind == ROPE_YARN) {
        if (r->mscale != 0 && r->mscale_all_dim != 0)
            return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
        return yarn_mscale(r->factor, 1);
    }
    if (r->kind == ROPE_LONGROPE) {
        double f = (double)n_context / r->original_context;
        return f <= 1 ? 1 : sqrt(1 + ln_d(f) / ln_d(r->original_context));
    }
    return 1;
}

/* Inverse frequency of pair i at position p. */
static double inv_freq(const struct rope_params *r, int32_t n_context, int i, int32_t p)
{
    double base = r->theta;
    if (r->kind == ROPE_DYNAMIC) {
        double len = p + 1 > r->original_context ? p + 1 : r->original_context;
        base *= mb_pow_d(r->factor * len / r->original_context - (r->factor - 1), (double)r->n_rot / (r->n_rot - 2));
    }
    double inv = 1 / mb_pow_d(base, 2.0 * i / r->n_rot);
    switch (r->kind) {
    case ROPE_PROPORTIONAL: return 2 * i < r->n_turning ? inv / r->factor : 0;
    case ROPE_LINEAR: return inv / r->factor;
    case ROPE_LLAMA3: return llama3_inv_freq(r, inv);
    case ROPE_YARN: return yarn_inv_freq(r, inv, i);
    case ROPE_LONGROPE:
        return inv / (n_context > r->original_context ? r->long_factor[i] : r->short_factor[i]);
    default: return inv;
    }
}

void rope_table_fill(const struct rope_params *r, int32_t n_context, int32_t first, int32_t n_position, float *out)
{
    int half = r->n_rot / 2;
    double scale = attention_factor(r, n_context);
    for (int i = 0; i < half; i++) {
        double inv = inv_freq(r, n_context, i, 0);
        for (int32_t p = first; p < n_position; p++) {
            double s, c;
            if (r->kind == ROPE_DYNAMIC && p >= r->original_context) inv = inv_freq(r, n_context, i, p);
            mb_sincos_d(p * inv, &s, &c);
            out[(int64_t)p * r->n_rot + i] = (float)(c * scale);
            out[(int64_t)p * r->n_rot + half + i] = (float)(s * scale);
        }
    }
}
