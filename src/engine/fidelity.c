/* fidelity.c: two instances of one model, the float32 tier and the measured one, fed the same ids chunk by chunk. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/direct.h"
#include "engine/fidelity.h"

#define CHUNK 64

struct side {
    const struct ops *ops;
    struct device *dev;
    struct model *model;
    struct direct *run;
    float *logits;     /* [CHUNK][n_vocab] */
    struct draw *draws;
};

static void side_close(struct side *s)
{
    direct_close(s->run);
    model_close(s->model);
    if (s->dev) s->ops->device_close(s->dev);
    mb_free(s->logits);
    mb_free(s->draws);
}

static mb_status side_open(struct side *s, const char *device, const char *dir, enum fidelity_tier tier, int kv_format,
                           const struct fidelity_options *opt, int32_t n_tokens, mb_error *err)
{
    struct device_options dopt = { .n_threads = opt->n_threads, .cpu_level = opt->cpu_level, .n_ranks = 1 };
    MB_TRY(ops_parse(device, &s->ops, &dopt, err));
    MB_TRY(s->ops->device_open(&s->dev, &dopt, err));
    struct model_options mopt = { .ops = s->ops, .device = s->dev, .tier = tier, .kv_format = kv_format,
                                  .n_rows_max = 1, .m_max = CHUNK };
    MB_TRY(model_open(&s->model, dir, &mopt, err));
    MB_TRY(direct_open(&s->run, s->model, n_tokens, err));
    s->logits = mb_alloc((size_t)CHUNK * (size_t)model_plan_get(s->model)->n_vocab * sizeof *s->logits);
    s->draws = mb_calloc(CHUNK, sizeof *s->draws);
    return s->logits && s->draws ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for logits");
}

/* KL(p || q) of two logit vectors, in double. */
static double kl_divergence(const float *p, const float *q, int32_t n)
{
    double mp = -INFINITY, mq = -INFINITY, sp = 0, sq = 0, kl = 0;
    for (int32_t i = 0; i < n; i++) {
        if (p[i] > mp) mp = p[i];
        if (q[i] > mq) mq = q[i];
    }
    for (int32_t i = 0; i < n; i++) {
        sp += exp(p[i] - mp);
        sq += exp(q[i] - mq);
    }
    double lp = mp + log(sp), lq = mq + log(sq);
    for (int32_t i = 0; i < n; i++) kl += exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
    return kl;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct totals {
    double *kl;
    int64_t n, same_top1;
};

static mb_status run_sequence(struct side *ref, struct side *got, const int32_t *ids, int32_t n, struct totals *t,
                              mb_error *err)
{
    int32_t n_vocab = model_plan_get(ref->model)->n_vocab;
    direct_reset(ref->run, 1);
    direct_reset(got->run, 1);
    for (int32_t i = 0; i < n; i += CHUNK) {
        int32_t m = n - i < CHUNK ? n - i : CHUNK;
        MB_TRY(direct_run(ref->run, ids + i, m, NULL, ref->logits, ref->draws, err));
        MB_TRY(direct_run(got->run, ids + i, m, NULL, got->logits, got->draws, err));
        for (int32_t j = 0; j < m; j++) {
            t->kl[t->n++] = kl_divergence(ref->logits + (int64_t)j * n_vocab, got->logits + (int64_t)j * n_vocab, n_vocab);
            t->same_top1 += ref->draws[j].argmax == got->draws[j].argmax;
        }
    }
    return MB_OK;
}

static void summarise(struct totals *t, struct fidelity_report *out)
{
    double sum = 0;
    for (int64_t i = 0; i < t->n; i++) sum += t->kl[i];
    qsort(t->kl, (size_t)t->n, sizeof *t->kl, compare_doubles);
    out->n_positions = t->n;
    out->mean_kl = sum / (double)t->n;
    out->p99_kl = t->kl[(int64_t)(0.99 * (double)(t->n - 1))];
    out->max_kl = t->kl[t->n - 1];
    out->top1_percent = 100.0 * (double)t->same_top1 / (double)t->n;
}

mb_status fidelity_measure(const char *model_dir, const int32_t *ids, int32_t n_sequences, int32_t n_tokens,
                           const struct fidelity_options *opt, struct fidelity_report *out, mb_error *err)
{
    struct side ref = { 0 }, got = { 0 };
    struct totals t = { 0 };
    memset(out, 0, sizeof *out);
    if (n_sequences < 1 || n_tokens < 1) return mb_fail(err, MB_INVALID, "no token ids to measure on");
    t.kl = mb_calloc((size_t)n_sequences * (size_t)n_tokens, sizeof *t.kl);
    mb_status st = t.kl ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory");
    if (st == MB_OK) st = side_open(&ref, NULL, opt->reference_dir ? opt->reference_dir : model_dir, TIER_F32, KV_F32, opt, n_tokens, err);
    if (st == MB_OK) st = side_open(&got, opt->device, model_dir, opt->tier, opt->kv_format, opt, n_tokens, err);
    if (st == MB_OK && model_plan_get(ref.model)->n_vocab != model_plan_get(got.model)->n_vocab)
        st = mb_fail(err, MB_INVALID, "the two models have %d and %d tokens: they cannot be compared",
                     (int)model_plan_get(ref.model)->n_vocab, (int)model_plan_get(got.model)->n_vocab);
    for (int32_t i = 0; st == MB_OK && i < n_sequences; i++) {
        st = run_sequence(&ref, &got, ids + (int64_t)i * n_tokens, n_tokens, &t, err);
        if (opt->progress) opt->progress(opt->progress_ctx, (double)(i + 1) / n_sequences);
    }
    if (st == MB_OK) {
        summarise(&t, out);
        out->kv_mode = model_kv_mode(model_spec_get(got.model));
    }
    side_close(&ref);
    side_close(&got);
    mb_free(t.kl);
    return st;
}
