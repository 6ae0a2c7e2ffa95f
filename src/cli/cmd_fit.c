/* cmd_fit.c: `mlx-bun fit`: does a model fit here, with how long a context, and how fast would it be? Nothing of its weights is
 * read. Exit status 1: it does not fit. */
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "cli/fit.h"

static const char *date_text(int64_t ms, char out[16])
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;
    if (!localtime_r(&t, &tm) || strftime(out, 16, "%Y-%m-%d", &tm) == 0) strcpy(out, "?");
    return out;
}

static void print_machine(const struct fit_here *h)
{
    char ram[32], when[16];
    printf("  machine   %s, %s; %s\n", h->chip, model_size_text(h->ram_bytes, ram), h->device);
    if (h->rates.read_bytes_s > 0)
        printf("            reads %.1f GB/s (measured %s)\n", h->rates.read_bytes_s * 1e-9, date_text(h->measured_at_ms, when));
}

static void print_memory(const struct fit_report *r)
{
    char a[32], b[32], c[32], d[32], e[32];
    printf("  memory    weights %s + scratch %s + KV of %d tokens %s = %s; %s may be used: %s\n", model_size_text(r->weights_bytes, a),
           model_size_text(r->transient_bytes, b), (int)r->n_context, model_size_text(r->kv_bytes, c),
           model_size_text(r->total_bytes, d), model_size_text(r->usable_bytes, e), r->fits ? "fits" : "does not fit");
    if (r->kept_bytes)
        printf("            + %s that the prompt cache keeps of it while there is room = %s\n", model_size_text(r->kept_bytes, a),
               model_size_text(r->total_bytes + r->kept_bytes, b));
    if (r->scratch_bytes > r->transient_bytes)
        printf("            scratch is up to %s when requests fill a step; so much is set aside\n", model_size_text(r->scratch_bytes, a));
}

static void print_experts(const struct fit_view *v)
{
    char a[32], b[32];
    const struct engine_loaded *l = &v->model.info;
    if (!l->expert_bytes) return;
    printf("  experts   %s in a file; of the weights in memory %s are for those in use%s\n", model_size_text(l->expert_bytes, a),
           model_size_text(l->expert_cache_bytes, b), fit_is_resident(&v->model) ? "" : ": the others are read, no speed is predicted");
}

static void print_speed(const struct fit_view *v)
{
    char when[16];
    if (v->report.decode_tps > 0)
        printf("  speed     about %.3g tokens/s behind %d tokens, a prompt of %d at %.3g tokens/s (%s, KV %s)\n", v->report.decode_tps,
               (int)v->report.n_context, (int)v->report.n_context, v->report.prefill_tps, mb_tier_name(v->model.tier),
               v->model.info.kv_mode);
    if (v->typical_tps > 0 && v->typical_context > 0 && v->typical_context != v->report.n_context)
        printf("            about %.3g tokens/s behind %d\n", v->typical_tps, (int)v->typical_context);
    if (v->measured.tokens_per_s > 0)
        printf("  measured  %.3g tokens/s here, about %d tokens behind the first, %s\n", v->measured.tokens_per_s,
               (int)v->measured.n_context, date_text(v->measured.at_ms, when));
}

static void print_skus(const struct fit_view *v)
{
    size_t n;
    const struct fit_sku *skus = fit_skus(&n);
    printf("\n  other machines, %d tokens (or the model's context, when that is less)\n\n  %-36s %6s %7s  %-4s %11s %9s\n",
           FIT_SKU_CONTEXT, "", "RAM GB", "GB/s", "fits", "max context", "tokens/s");
    for (size_t i = 0; i < n; i++) {
        struct fit_report r;
        char tps[16] = "-";
        fit_report_sku(&r, &v->model, &skus[i], FIT_SKU_CONTEXT);
        if (r.fits) snprintf(tps, sizeof tps, "%.3g", r.decode_tps);
        printf("  %-36s %6d %7.0f  %-4s %11d %9s\n", skus[i].name, (int)skus[i].ram_gb, skus[i].gbs, r.fits ? "yes" : "no",
               (int)r.max_safe_context, tps);
    }
}

static void print_text(const struct flags *f, const struct fit_view *v)
{
    const struct fit_report *r = &v->report;
    printf("%s\n", v->path);
    print_machine(&v->here);
    print_memory(r);
    print_experts(v);
    if (r->max_safe_context > 0)
        printf("  context   %d tokens are safe; the model's own is %d\n", (int)r->max_safe_context, (int)v->model.info.n_context);
    else printf("  context   none: weights and scratch alone are too much\n");
    print_speed(v);
    if (f->skus.b) print_skus(v);
}

/* The object of GET /fit, and what only the command line tells. */
static mb_status print_json(const struct flags *f, const struct fit_view *v, mb_error *err)
{
    struct buf more, out;
    buf_init(&more, 0);
    buf_init(&out, 0);
    buf_append_str(&more, "\"model\": ");
    json_write_string(&more, v->path, strlen(v->path));
    buf_printf(&more, ", \"model_context\": %d, \"report_context\": %d, \"device\": ", (int)v->model.info.n_context,
               (int)v->report.n_context);
    json_write_string(&more, v->here.device, strlen(v->here.device));
    if (v->model.info.expert_bytes)
        buf_printf(&more, ", \"expert_bytes\": %zu, \"expert_cache_bytes\": %zu", v->model.info.expert_bytes, v->model.info.expert_cache_bytes);
    buf_printf(&more, ", \"scratch_bytes\": %zu, \"kept_bytes\": %zu, \"expected_bytes\": %zu", v->report.scratch_bytes, v->report.kept_bytes,
               v->report.total_bytes + v->report.kept_bytes);
    buf_printf(&more, ", \"tier\": \"%s\", \"kv\": \"%s\", \"predicted_prefill_tps\": ", mb_tier_name(v->model.tier),
               v->model.info.kv_mode);
    json_write_double(&more, v->report.prefill_tps);
    buf_append_str(&more, ", ");
    mb_status st = buf_status(&more, "the report", err);
    if (st == MB_OK) fit_view_json(v, f->skus.b, more.data, &out);
    buf_append_char(&out, '\n');
    if (st == MB_OK) st = buf_status(&out, "the report", err);
    if (st == MB_OK) fwrite(out.data, 1, out.len, stdout);
    buf_free(&more);
    buf_free(&out);
    return st;
}

mb_status cmd_fit(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    static struct store s; /* large */
    static struct fit_view v;
    char path[MODEL_PATH_MAX];
    mb_options opt;
    struct mb_open_extra x;
    struct engine_load load;
    MB_TRY(model_find(f, n_pos > 0 ? pos[0] : NULL, true, path, err));
    MB_TRY(model_options(f, &opt, &x, err));
    MB_TRY(mb_extra_to_load(path, &opt, &x, &load, err));
    MB_TRY(store_init(&s, f, err));
    MB_TRY(fit_view_make(&s, &load, path, (int32_t)f->ctx.i, f->measure.b ? FIT_ANEW : FIT_WANTED, &v, err));
    if (f->ctx.i > v.model.info.n_context && !f->quiet.b)
        cli_warn("--ctx %lld is more than the model's context of %d tokens", (long long)f->ctx.i, (int)v.model.info.n_context);
    if (!v.report.fits) *exit_status = 1;
    if (f->json.b) return print_json(f, &v, err);
    print_text(f, &v);
    return MB_OK;
}
