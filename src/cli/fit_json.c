/* fit_json.c: the object of GET /fit and of `fit --json`. */
#include <string.h>

#include "base/json.h"
#include "cli/fit.h"

static void rate_or_null(struct buf *b, const char *key, double v)
{
    buf_printf(b, "\"%s\": ", key);
    if (v > 0) json_write_double(b, v);
    else buf_append_str(b, "null");
}

/* API-295 */
static void put_machine(struct buf *b, const struct fit_here *h)
{
    buf_append_str(b, "\"machine\": {\"chip\": ");
    json_write_string(b, h->chip, strlen(h->chip));
    buf_printf(b, ", \"ram_bytes\": %llu, ", (unsigned long long)h->ram_bytes);
    rate_or_null(b, "bandwidth_gbs", h->rates.read_bytes_s * 1e-9);
    buf_append_str(b, "}, ");
}

/* API-299 */
static void put_report(struct buf *b, const struct fit_report *r)
{
    buf_printf(b, "\"report\": {\"fits\": %s, \"weights_bytes\": %zu, \"kv_bytes\": %zu, \"transient_bytes\": %zu, \"total_bytes\": %zu, "
                  "\"usable_bytes\": %zu, \"max_safe_context\": %d, ", r->fits ? "true" : "false", r->weights_bytes, r->kv_bytes,
               r->transient_bytes, r->total_bytes, r->usable_bytes, (int)r->max_safe_context);
    rate_or_null(b, "predicted_decode_tps", r->decode_tps);
    buf_append_str(b, "}, ");
}

/* API-300 */
static void put_skus(struct buf *b, const struct fit_view *v)
{
    size_t n;
    const struct fit_sku *skus = fit_skus(&n);
    for (size_t i = 0; i < n; i++) {
        struct fit_report r;
        fit_report_sku(&r, &v->model, &skus[i], FIT_SKU_CONTEXT);
        buf_append_str(b, i ? ", {\"sku\": " : "{\"sku\": ");
        json_write_string(b, skus[i].name, strlen(skus[i].name));
        buf_printf(b, ", \"ram_gb\": %d, \"fits\": %s, \"max_context\": %d, ", (int)skus[i].ram_gb, r.fits ? "true" : "false",
                   (int)r.max_safe_context);
        rate_or_null(b, "decode_tps", r.fits ? r.decode_tps : 0);
        buf_append_char(b, '}');
    }
}

void fit_view_json(const struct fit_view *v, bool with_skus, const char *more, struct buf *out)
{
    buf_append_char(out, '{');
    buf_append_str(out, more);
    put_machine(out, &v->here);
    buf_printf(out, "\"context_tokens\": %d, \"typical_context_tokens\": %d, ", (int)v->context_tokens, (int)v->typical_context);
    rate_or_null(out, "typical_decode_tps", v->context_tokens > 0 ? v->typical_tps : 0);
    buf_append_str(out, ", ");
    rate_or_null(out, "measured_decode_tps", v->measured.tokens_per_s);
    if (v->measured.tokens_per_s > 0) buf_printf(out, ", \"measured_at\": %lld, ", (long long)v->measured.at_ms);
    else buf_append_str(out, ", \"measured_at\": null, ");
    put_report(out, &v->report);
    buf_printf(out, "\"sku_matrix_ctx\": %d, \"sku_matrix\": [", FIT_SKU_CONTEXT);
    if (with_skus) put_skus(out, v);
    buf_append_str(out, "]}");
}
