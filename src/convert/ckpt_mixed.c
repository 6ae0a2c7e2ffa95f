/* ckpt_mixed.c: bits and group of each module under a bound on the whole, from measured sensitivity (engine/sensitivity.h).
 *
 * For every module and candidate the squared error of the weights is computed; the loss of a candidate is the module's measured
 * figure, scaled by its error over the probe's. Then a greedy knapsack with guards (ckpt_choose.h) over the lower convex hull of each
 * module's (bytes, loss): losses of modules are taken to add up, as they do while they are small.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "convert/ckpt_choose.h"
#include "convert/ckpt_int.h"
#include "format/quantise.h"

#define ROWS_AT_ONCE 256

struct mixed {
    struct conv *c;
    const struct mixed_opts *opts;
    struct pool *pool;
    struct mixed_module *modules; /* [n_modules], arena */
    size_t n_modules;
    uint64_t plain_bytes;   /* of everything that is not chosen */
    double sum_figures;
    /* one piece of work */
    struct mixed_module *at;
    int64_t first, n;
    double *row_error;      /* [ROWS_AT_ONCE][MIXED_MAX_CANDIDATES + 1] */
    bool bad;
    mb_error *err;
};

/* --- errors of the weights --- */

struct scratch {
    float *row;
    uint8_t *codes, *scales, *biases;
};

static bool spec_equal(struct quant_spec a, struct quant_spec b)
{
    return a.mode == b.mode && a.bits == b.bits && a.group_size == b.group_size;
}

/* Squared error of one row under a spec; what is stored so already has none. */
static double row_error(struct mixed *x, const struct conv_item *it, struct scratch *s, struct quant_spec spec)
{
    double sum = 0;
    if (spec_equal(spec, it->from)) return 0;
    if (!quantise_row(&spec, s->row, it->n_in, it->dtype, s->codes, s->scales, s->biases)) {
        __atomic_store_n(&x->bad, true, __ATOMIC_RELAXED);
        return 0;
    }
    for (int64_t i = 0, g = 0; i < it->n_in; g++) {
        double scale = dtype_float_at(s->scales, it->dtype, g), bias = dtype_float_at(s->biases, it->dtype, g);
        for (int64_t end = i + spec.group_size; i < end; i++) {
            double off = scale * quant_code_get((const void *)s->codes, spec.bits, i) + bias - (double)s->row[i];
            sum += off * off;
        }
    }
    return sum;
}

static bool scratch_open(struct scratch *s, int64_t n_in)
{
    size_t n = (size_t)n_in;
    s->row = mb_alloc(n * 4);
    s->codes = mb_alloc(n + 4);
    s->scales = mb_alloc(n / 8 + 4); /* a group is 32 weights and a scale at most 4 bytes */
    s->biases = mb_alloc(n / 8 + 4);
    return s->row && s->codes && s->scales && s->biases;
}

static void scratch_free(struct scratch *s)
{
    mb_free(s->row);
    mb_free(s->codes);
    mb_free(s->scales);
    mb_free(s->biases);
}

static void errors_share(void *ctx, int i_thread, int n_threads)
{
    struct mixed *x = ctx;
    const struct conv_item *it = x->at->it;
    struct scratch s = { 0 };
    int64_t first, end;
    threads_share(x->n, 1, i_thread, n_threads, &first, &end);
    if (!scratch_open(&s, it->n_in)) __atomic_store_n(&x->bad, true, __ATOMIC_RELAXED);
    else
        for (int64_t k = first; k < end; k++) {
            double *out = x->row_error + k * (MIXED_MAX_CANDIDATES + 1);
            conv_row_read(it, x->first + k, s.row);
            floats_round(s.row, it->n_in, it->dtype);
            for (int i = 0; i < x->at->n_choices; i++) out[i] = row_error(x, it, &s, x->at->choice[i].spec);
            out[MIXED_MAX_CANDIDATES] = row_error(x, it, &s, x->opts->probe);
        }
    scratch_free(&s);
}

/* All rows, summed in their order. */
static mb_status module_errors(struct mixed *x, struct mixed_module *m)
{
    x->at = m;
    for (x->first = 0; x->first < m->it->n_rows; x->first += x->n) {
        x->n = m->it->n_rows - x->first < ROWS_AT_ONCE ? m->it->n_rows - x->first : ROWS_AT_ONCE;
        pool_run(x->pool, errors_share, x);
        if (x->bad)
            return mb_fail(x->err, MB_INVALID, "%s: tensor %s holds NaN or infinity, or there was no memory to quantise a row of it",
                           x->c->src_dir, m->it->name);
        for (int64_t k = 0; k < x->n; k++) {
            const double *e = x->row_error + k * (MIXED_MAX_CANDIDATES + 1);
            for (int i = 0; i < m->n_choices; i++) m->choice[i].error += e[i];
            m->probe_error += e[MIXED_MAX_CANDIDATES];
        }
    }
    for (size_t i = 0; i < m->it->n_src; i++) checkpoint_drop(x->c->ckpt, m->it->src[i]);
    return MB_OK;
}

/* --- choices --- */

/* What is kept keeps its scales, which may be wider. */
static uint64_t spec_bytes(const struct conv *c, const struct conv_item *it, struct quant_spec s)
{
    enum dtype dtype = spec_equal(s, it->from) && !c->opts->dtype ? it->scales->dtype : it->dtype;
    uint64_t groups = (uint64_t)(it->n_in / s.group_size), size = (uint64_t)dtype_get(dtype)->size_bytes;
    return (uint64_t)it->n_rows * ((uint64_t)quant_row_words(&s, it->n_in) * 4 + groups * 2 * size);
}

/* The figure of a module, under either's prefix. */
static double figure_of(const struct mixed *x, const struct conv_item *it)
{
    const char *key, *path = quant_path_strip(it->module);
    json_t *value;
    const json_t *exact = json_object_get(x->opts->figures, it->module);
    if (exact) return json_number_value(exact);
    json_object_foreach((json_t *)x->opts->figures, key, value)
        if (strcmp(quant_path_strip(key), path) == 0) return json_number_value(value);
    return -1;
}

static void choices_begin(const struct mixed *x, struct mixed_module *m, const struct conv_item *it)
{
    m->it = it;
    m->n_weights = it->n_rows * it->n_in;
    m->block = choose_block_of(it->module);
    for (int i = 0; i < x->opts->n_candidates; i++) {
        struct quant_spec s = x->opts->candidates[i];
        if (it->n_in % s.group_size == 0) m->choice[m->n_choices++] = (struct choice){ .spec = s, .bytes = spec_bytes(x->c, it, s) };
    }
}

static int by_bytes(const void *a, const void *b)
{
    const struct choice *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    if (x->loss != y->loss) return x->loss < y->loss ? -1 : 1;
    return x->spec.bits - y->spec.bits;
}

/* Loss saved a byte from a to b. */
static double slope(const struct choice *a, const struct choice *b)
{
    return (a->loss - b->loss) / (double)(b->bytes - a->bytes);
}

/* What stays: each step saves loss, and no later step saves more a byte than an earlier one. */
static void hull_make(struct mixed_module *m)
{
    int n = 0;
    qsort(m->choice, (size_t)m->n_choices, sizeof m->choice[0], by_bytes);
    for (int i = 0; i < m->n_choices; i++) {
        struct choice c = m->choice[i];
        if (n > 0 && (c.bytes == m->choice[n - 1].bytes || c.loss >= m->choice[n - 1].loss)) continue;
        while (n > 1 && slope(&m->choice[n - 2], &m->choice[n - 1]) <= slope(&m->choice[n - 1], &c)) n--;
        m->choice[n++] = c;
    }
    m->n_choices = n;
}

static mb_status module_make(struct mixed *x, struct mixed_module *m, const struct conv_item *it)
{
    double figure = figure_of(x, it);
    choices_begin(x, m, it);
    if (figure < 0) return mb_fail(x->err, MB_INVALID, "there is no sensitivity figure for %s", it->module);
    MB_TRY(module_errors(x, m));
    for (int i = 0; i < m->n_choices; i++)
        if (m->choice[i].error > 0 && !(m->probe_error > 0))
            return mb_fail(x->err, MB_INVALID, "%s has the probe's bits already, so that its figure says nothing; take other "
                           "--candidate-bits or another --q-group-size", it->module);
    for (int i = 0; i < m->n_choices; i++)
        m->choice[i].loss = m->probe_error > 0 ? figure * m->choice[i].error / m->probe_error : 0;
    hull_make(m);
    return MB_OK;
}

static mb_status modules_make(struct mixed *x)
{
    struct conv *c = x->c;
    x->modules = arena_alloc_array(&c->arena, c->n_items + 1, sizeof *x->modules);
    x->row_error = arena_alloc_array(&c->arena, ROWS_AT_ONCE * (MIXED_MAX_CANDIDATES + 1), sizeof *x->row_error);
    if (!x->modules || !x->row_error) return mb_fail(x->err, MB_NO_MEMORY, "%s: no memory for the plan", c->src_dir);
    for (size_t i = 0; i < c->n_items; i++) {
        const struct conv_item *it = &c->items[i];
        if (it->to.mode == QUANT_NONE) {
            x->plain_bytes += (uint64_t)(it->n_rows * it->n_in) * (uint64_t)dtype_get(it->dtype)->size_bytes;
            continue;
        }
        MB_TRY(module_make(x, &x->modules[x->n_modules++], it));
        x->sum_figures += figure_of(x, it);
        if (x->opts->progress && !x->opts->progress(x->opts->progress_ctx, i + 1, c->n_items))
            return mb_fail(x->err, MB_CANCELLED, "%s: the conversion was cancelled", c->src_dir);
    }
    return MB_OK;
}

/* --- the knapsack --- */

static uint64_t limit_bytes(const struct mixed *x)
{
    return (uint64_t)floor(x->opts->target_bpw * (double)x->c->result.n_parameters / 8 + 1e-6);
}

static mb_status refuse_target(const struct mixed *x, uint64_t least_bytes)
{
    return mb_fail(x->err, MB_INVALID, "%.3f bits per weight are below what the smallest candidates take: %.3f; a lower "
                   "--candidate-bits or a larger --target-bpw is needed", x->opts->target_bpw,
                   8 * (double)least_bytes / (double)x->c->result.n_parameters);
}

static mb_status choose(struct mixed *x, struct mixed_result *r)
{
    if (x->n_modules > 0 && !(x->sum_figures > 0)) /* REG-205: uniform bits must cost something against the reference */
        return mb_fail(x->err, MB_INVALID, "the calibration texts show no loss from any module at %d bits: they say nothing about this model; "
                       "name others with --calibration-mix", x->opts->probe.bits);
    double n = (double)x->c->result.n_parameters;
    uint64_t limit = limit_bytes(x), used = x->plain_bytes;
    for (size_t i = 0; i < x->n_modules; i++) used += x->modules[i].choice[0].bytes;
    if (used > limit) return refuse_target(x, used);
    used += choose_bits(x->modules, x->n_modules, limit - used, x->opts->target_bpw);
    r->bits_per_weight = 8 * (double)used / n;
    for (size_t i = 0; i < x->n_modules; i++) {
        const struct choice *now = &x->modules[i].choice[x->modules[i].i_now];
        r->predicted_kl += now->loss;
        r->n_by_bits[now->spec.bits]++;
    }
    return MB_OK;
}

static mb_status plan_json(const struct mixed *x, json_t **plan)
{
    json_t *o = json_pack("{s:i, s:i, s:s}", "group_size", x->opts->candidates[0].group_size, "bits", x->opts->candidates[0].bits,
                          "mode", "affine");
    bool ok = o != NULL;
    for (size_t i = 0; ok && i < x->n_modules; i++) {
        struct quant_spec s = x->modules[i].choice[x->modules[i].i_now].spec;
        ok = json_object_set_new(o, x->modules[i].it->module, json_pack("{s:i, s:i}", "group_size", s.group_size, "bits", s.bits)) == 0;
    }
    if (ok) *plan = o;
    else json_decref(o);
    return ok ? MB_OK : mb_fail(x->err, MB_NO_MEMORY, "no memory for the plan");
}

/* The smallest way to store each module, from shapes alone. */
static uint64_t least_bytes(const struct mixed *x)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < x->c->n_items; i++) {
        const struct conv_item *it = &x->c->items[i];
        struct mixed_module m = { 0 };
        uint64_t least = (uint64_t)(it->n_rows * it->n_in) * (uint64_t)dtype_get(it->dtype)->size_bytes;
        if (it->to.mode != QUANT_NONE) choices_begin(x, &m, it);
        for (int k = 0; k < m.n_choices; k++) least = m.choice[k].bytes < least ? m.choice[k].bytes : least;
        sum += least;
    }
    return sum;
}

mb_status convert_mixed_check(const char *src_dir, const struct mixed_opts *opts, mb_error *err)
{
    struct checkpoint_opts wide = { .dtype = opts->dtype, .quantise = true, .bits = opts->probe.bits, .group_size = opts->probe.group_size };
    struct conv c = { .src_dir = src_dir, .opts = &wide };
    struct mixed x = { .c = &c, .opts = opts, .err = err };
    mb_status st = conv_open(&c, err);
    if (st == MB_OK && least_bytes(&x) > limit_bytes(&x)) st = refuse_target(&x, least_bytes(&x));
    conv_close(&c);
    return st;
}

mb_status convert_mixed_plan(const char *src_dir, const struct mixed_opts *opts, json_t **plan, struct mixed_result *result,
                             mb_error *err)
{
    /* Which modules: those that the probe can quantise. */
    struct checkpoint_opts wide = { .dtype = opts->dtype, .quantise = true, .bits = opts->probe.bits, .group_size = opts->probe.group_size };
    struct conv c = { .src_dir = src_dir, .opts = &wide };
    struct mixed x = { .c = &c, .opts = opts, .err = err };
    *plan = NULL;
    memset(result, 0, sizeof *result);
    mb_status st = conv_open(&c, err);
    if (st == MB_OK) st = pool_open(&x.pool, opts->n_threads > 0 ? opts->n_threads : threads_default_count(), err);
    if (st == MB_OK) st = modules_make(&x);
    if (st == MB_OK) st = choose(&x, result);
    if (st == MB_OK) st = plan_json(&x, plan);
    if (x.pool) pool_close(x.pool);
    conv_close(&c);
    return st;
}
