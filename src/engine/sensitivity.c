/* sensitivity.c: see sensitivity.h. The model is opened once; a module's packed weights are replaced and put back. */
#include <math.h>
#include <string.h>

#include "engine/direct.h"
#include "engine/sensitivity.h"
#include "format/quantise.h"
#include "format/safetensors.h"
#include "ops/mathfn.h"

struct probe {
    const struct sensitivity_options *opt;
    struct device *dev;
    struct model *model;
    struct direct *run;
    struct checkpoint *ckpt;
    const int32_t *ids;
    int32_t n_sequences, n_tokens, n_vocab;
    float *ref;        /* [n_sequences * n_tokens][n_vocab] log-probabilities of the model as it is */
    float *logits;     /* [n_tokens][n_vocab] */
    struct draw *draws;
};

/* A module's tensors, or what a probe made of them. */
struct matrix {
    struct quant_spec spec;
    enum dtype dtype;  /* of the elements, or of scales and biases */
    int64_t n, k;
    const uint8_t *w, *scales, *biases;
    uint8_t *owned;    /* all three; NULL: the checkpoint's */
};

/* --- distributions --- */

/* Logits to log-probabilities in place. */
static void to_log_probabilities(float *v, int32_t n)
{
    float top = v[0];
    double sum = 0;
    for (int32_t i = 1; i < n; i++) top = v[i] > top ? v[i] : top;
    for (int32_t i = 0; i < n; i++) sum += (double)mb_exp(v[i] - top);
    float shift = top + (float)log(sum);
    for (int32_t i = 0; i < n; i++) v[i] -= shift;
}

static double kl_divergence(const float *p, const float *q, int32_t n)
{
    double kl = 0;
    for (int32_t i = 0; i < n; i++) kl += (double)mb_exp(p[i]) * ((double)p[i] - (double)q[i]);
    return kl;
}

/* One sequence's log-probabilities. */
static mb_status run_sequence(struct probe *p, int32_t i, float *out, mb_error *err)
{
    direct_reset(p->run, 1);
    MB_TRY(direct_run(p->run, p->ids + (int64_t)i * p->n_tokens, p->n_tokens, NULL, out, p->draws, err));
    for (int32_t j = 0; j < p->n_tokens; j++) to_log_probabilities(out + (int64_t)j * p->n_vocab, p->n_vocab);
    return MB_OK;
}

static mb_status mean_kl(struct probe *p, double *out, mb_error *err)
{
    double sum = 0;
    for (int32_t i = 0; i < p->n_sequences; i++) {
        MB_TRY(run_sequence(p, i, p->logits, err));
        for (int32_t j = 0; j < p->n_tokens; j++)
            sum += kl_divergence(p->ref + ((int64_t)i * p->n_tokens + j) * p->n_vocab, p->logits + (int64_t)j * p->n_vocab, p->n_vocab);
    }
    *out = sum > 0 ? sum / ((double)p->n_sequences * p->n_tokens) : 0;
    return isfinite(*out) ? MB_OK : mb_fail(err, MB_INTERNAL, "the model's logits are not finite");
}

/* --- weights --- */

static mb_status matrix_find(struct probe *p, const char *module, struct matrix *m, mb_error *err)
{
    const struct tensor_view *w = checkpoint_findf(p->ckpt, "%s.weight", module);
    const struct tensor_view *scales = checkpoint_findf(p->ckpt, "%s.scales", module);
    const struct tensor_view *biases = checkpoint_findf(p->ckpt, "%s.biases", module);
    memset(m, 0, sizeof *m);
    if (!w || w->n_dim < 2) return mb_fail(err, MB_UNSUPPORTED, "tensor %s.weight is not in the checkpoint as one matrix", module);
    if (w->dtype == DT_U32) m->spec = quant_config_get(model_spec_get(p->model)->quant, module);
    if (w->dtype == DT_U32 && (m->spec.mode != QUANT_AFFINE || !scales || !biases))
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s: only floats and affine codes are measured", w->name);
    if (w->dtype != DT_U32 && w->dtype != DT_F32 && w->dtype != DT_F16 && w->dtype != DT_BF16)
        return mb_fail(err, MB_UNSUPPORTED, "tensor %s is %s: only floats and affine codes are measured; convert the model with --dtype first",
                       w->name, dtype_get(w->dtype)->name);
    m->dtype = w->dtype == DT_U32 ? scales->dtype : w->dtype;
    m->k = w->shape[w->n_dim - 1];
    if (w->dtype == DT_U32) m->k = m->k * 32 / m->spec.bits;
    m->n = 1;
    for (int i = 0; i + 1 < w->n_dim; i++) m->n *= w->shape[i];
    m->w = w->data;
    if (w->dtype == DT_U32) {
        m->scales = scales->data;
        m->biases = biases->data;
    }
    return MB_OK;
}

static size_t row_bytes(const struct matrix *m)
{
    return m->spec.mode == QUANT_NONE ? (size_t)(m->k * dtype_get(m->dtype)->size_bytes) : (size_t)quant_row_words(&m->spec, m->k) * 4;
}

static size_t scale_row_bytes(const struct matrix *m)
{
    return m->spec.mode == QUANT_NONE ? 0 : (size_t)(m->k / m->spec.group_size * dtype_get(m->dtype)->size_bytes);
}

static void row_read(const struct matrix *m, int64_t r, float *out)
{
    const uint8_t *w = m->w + (size_t)r * row_bytes(m);
    size_t at = (size_t)r * scale_row_bytes(m);
    if (m->spec.mode == QUANT_NONE)
        for (int64_t i = 0; i < m->k; i++) out[i] = dtype_float_at(w, m->dtype, i);
    else
        quant_affine_dequantise(&m->spec, (const void *)w, m->scales + at, m->biases + at, m->dtype, 1, m->k, out);
}

/* The same numbers in the probe's bits. */
static mb_status matrix_quantise(const struct matrix *from, const struct quant_spec *spec, const char *name, struct matrix *to, mb_error *err)
{
    *to = (struct matrix){ .spec = *spec, .dtype = from->dtype, .n = from->n, .k = from->k };
    size_t wb = row_bytes(to), sb = scale_row_bytes(to), n = (size_t)to->n;
    uint8_t *w = to->owned = mb_alloc(n * (wb + 2 * sb) + 1);
    float *row = mb_alloc((size_t)to->k * sizeof *row);
    mb_status st = w && row ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for %s", name);
    for (size_t r = 0; st == MB_OK && r < n; r++) {
        row_read(from, (int64_t)r, row);
        if (!quantise_row(spec, row, to->k, to->dtype, w + r * wb, w + n * wb + r * sb, w + n * (wb + sb) + r * sb))
            st = mb_fail(err, MB_INVALID, "tensor %s.weight: row %zu holds NaN or infinity", name, r);
    }
    to->w = w;
    to->scales = w ? w + n * wb : NULL;
    to->biases = w ? w + n * (wb + sb) : NULL;
    mb_free(row);
    return st;
}

/* Rows of `from` into the model's matrices of this module: one, or the parts of a fused one. */
static mb_status module_put(struct probe *p, size_t i_first, const char *module, const struct matrix *from, mb_error *err)
{
    int64_t at = 0;
    struct weight *w;
    for (size_t i = i_first; (w = model_weight_at(p->model, i)) && strcmp(w->name, module) == 0; i++, at += w->n) {
        if (at + w->n > from->n || w->k != from->k)
            return mb_fail(err, MB_UNSUPPORTED, "%s: experts that lie one by one are not measured; convert the model with --dtype first, "
                           "which stacks them", module);
        struct weight_source s = { .spec = from->spec, .dt = from->dtype, .n = w->n, .k = w->k };
        s.w = from->w + (size_t)at * row_bytes(from);
        if (from->scales) {
            s.scales = from->scales + (size_t)at * scale_row_bytes(from);
            s.biases = from->biases + (size_t)at * scale_row_bytes(from);
        }
        MB_TRY(model_weight_replace(p->model, w, &s, err));
    }
    return at == from->n ? MB_OK : mb_fail(err, MB_UNSUPPORTED, "%s: rows of it are not in the model", module);
}

static mb_status module_measure(struct probe *p, size_t i_first, const char *module, json_t *out, mb_error *err)
{
    struct matrix was, now = { 0 };
    double kl = 0;
    MB_TRY(matrix_find(p, module, &was, err));
    if (was.k % p->opt->probe.group_size != 0) return MB_OK;
    mb_status st = matrix_quantise(&was, &p->opt->probe, module, &now, err);
    if (st == MB_OK) st = module_put(p, i_first, module, &now, err);
    if (st == MB_OK) st = mean_kl(p, &kl, err);
    if (st == MB_OK) st = module_put(p, i_first, module, &was, err);
    mb_free(now.owned);
    if (st == MB_OK && json_object_set_new(out, module, json_real(kl)) != 0) st = mb_fail(err, MB_NO_MEMORY, "out of memory for the figures");
    return st;
}

/* --- the whole --- */

static mb_status probe_open(struct probe *p, const char *dir, mb_error *err)
{
    struct device_options dopt = { .n_threads = p->opt->n_threads, .cpu_level = p->opt->cpu_level, .n_ranks = 1 };
    MB_TRY(checkpoint_open(&p->ckpt, dir, err));
    MB_TRY(ops_cpu.device_open(&p->dev, &dopt, err));
    struct model_options mopt = { .ops = &ops_cpu, .device = p->dev, .tier = TIER_F32, .kv_format = KV_F32, .n_rows_max = 1,
                                  .m_max = p->n_tokens, .max_lora_rank = -1 };
    MB_TRY(model_open(&p->model, dir, &mopt, err));
    MB_TRY(direct_open(&p->run, p->model, p->n_tokens, err));
    p->n_vocab = model_plan_get(p->model)->n_vocab;
    size_t one = (size_t)p->n_tokens * (size_t)p->n_vocab * sizeof(float);
    p->ref = mb_alloc(one * (size_t)p->n_sequences);
    p->logits = mb_alloc(one);
    p->draws = mb_calloc((size_t)p->n_tokens, sizeof *p->draws);
    return p->ref && p->logits && p->draws ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for %zu bytes of logits: take fewer "
                                                             "calibration texts", one * (size_t)p->n_sequences);
}

static void probe_close(struct probe *p)
{
    direct_close(p->run);
    model_close(p->model);
    if (p->dev) ops_cpu.device_close(p->dev);
    checkpoint_close(p->ckpt);
    mb_free(p->ref);
    mb_free(p->logits);
    mb_free(p->draws);
}

static mb_status measure_all(struct probe *p, json_t *out, mb_error *err)
{
    size_t n = 0;
    const char *before = "";
    while (model_weight_at(p->model, n)) n++;
    if (n != (size_t)model_plan_get(p->model)->n_modules)
        return mb_fail(err, MB_UNSUPPORTED, "the matrices of this model's recurrent layers are not measured; quantise it with -q or --q-config");
    for (int32_t i = 0; i < p->n_sequences; i++)
        MB_TRY(run_sequence(p, i, p->ref + (int64_t)i * p->n_tokens * p->n_vocab, err));
    for (size_t i = 0; i < n; i++) {
        const char *module = model_weight_at(p->model, i)->name;
        if (strcmp(module, before) != 0) MB_TRY(module_measure(p, i, module, out, err));
        before = module;
        if (p->opt->progress) p->opt->progress(p->opt->progress_ctx, (double)(i + 1) / (double)n);
    }
    return MB_OK;
}

mb_status sensitivity_measure(json_t **out, const char *model_dir, const int32_t *ids, int32_t n_sequences, int32_t n_tokens,
                              const struct sensitivity_options *opt, mb_error *err)
{
    struct probe p = { .opt = opt, .ids = ids, .n_sequences = n_sequences, .n_tokens = n_tokens };
    *out = NULL;
    if (n_sequences < 1 || n_tokens < 1 || (int64_t)n_sequences * n_tokens > SENSITIVITY_MAX_POSITIONS)
        return mb_fail(err, MB_INVALID, "%d texts of %d tokens to measure on; at least 1, at most %d positions", n_sequences, n_tokens,
                       SENSITIVITY_MAX_POSITIONS);
    json_t *figures = json_object();
    mb_status st = figures ? probe_open(&p, model_dir, err) : mb_fail(err, MB_NO_MEMORY, "out of memory for the figures");
    if (st == MB_OK) st = measure_all(&p, figures, err);
    probe_close(&p);
    if (st == MB_OK) *out = json_incref(figures);
    json_decref(figures);
    return st;
}
