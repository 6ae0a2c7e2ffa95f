/* fit_rates.c: the measured speed of this machine and of models, kept and found again: see fit.h. The rates of a machine are one
 * JSON object of numbers and lists of numbers; a row of the table below is a member. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/fit.h"

#define FRESH_MS (30LL * 24 * 3600 * 1000)
#define MEASURE_S 0.9
#define TEXT_LIMIT ((size_t)64 << 10)

/* --- rates as text --- */

static const struct { const char *name; size_t off; int n; } members[] = {
    { "read_bytes_s", offsetof(struct ops_rates, read_bytes_s), 1 },
    { "weight_bytes_s", offsetof(struct ops_rates, weight_bytes_s), OPS_CLASSES * OPS_TIERS },
    { "near_bytes_s", offsetof(struct ops_rates, near_bytes_s), OPS_CLASSES * OPS_TIERS },
    { "far_bytes", offsetof(struct ops_rates, far_bytes), 1 },
    { "macs_s", offsetof(struct ops_rates, macs_s), OPS_CLASSES * OPS_TIERS },
    { "kv_bytes_s", offsetof(struct ops_rates, kv_bytes_s), KV_FORMAT_COUNT },
    { "attn_macs_s", offsetof(struct ops_rates, attn_macs_s), KV_FORMAT_COUNT },
    { "region_cost_s", offsetof(struct ops_rates, region_s), 1 },
    { "value_s", offsetof(struct ops_rates, value_s), OPS_TIERS },
    { "vocab_s", offsetof(struct ops_rates, vocab_s), 1 },
};
enum { N_MEMBERS = sizeof members / sizeof members[0] };

static void write_rates(struct buf *b, const struct ops_rates *r)
{
    buf_printf(b, "{\"n_threads\":%d", (int)r->n_threads);
    for (int i = 0; i < N_MEMBERS; i++) {
        const double *v = (const double *)(const void *)((const char *)r + members[i].off);
        buf_printf(b, ",\"%s\":[", members[i].name);
        for (int j = 0; j < members[i].n; j++) {
            if (j) buf_append_char(b, ',');
            json_write_double(b, v[j]);
        }
        buf_append_char(b, ']');
    }
    buf_append_char(b, '}');
}

/* False: a version of this program wrote it that measured other things. */
static bool read_rates(const struct buf *b, struct ops_rates *out)
{
    json_t *o = NULL;
    bool ok = b->data && json_read(&o, b->data, b->len, JSON_READ_DEFAULT, NULL) == MB_OK;
    memset(out, 0, sizeof *out);
    for (int i = 0; ok && i < N_MEMBERS; i++) {
        double *v = (double *)(void *)((char *)out + members[i].off);
        const json_t *list = json_object_get(o, members[i].name);
        ok = json_array_size(list) == (size_t)members[i].n;
        for (int j = 0; ok && j < members[i].n; j++) {
            const json_t *x = json_array_get(list, (size_t)j);
            v[j] = json_number_value(x);
            ok = json_is_number(x) && v[j] >= 0 && v[j] < 1e18;
        }
    }
    out->n_threads = ok ? (int32_t)json_integer_value(json_object_get(o, "n_threads")) : 0;
    json_decref(o);
    return ok && out->n_threads > 0 && out->read_bytes_s > 0;
}

/* --- the machine --- */

static bool is_fresh(int64_t at_ms)
{
    int64_t age = clock_unix_ms() - at_ms;
    return at_ms > 0 && age >= -FRESH_MS && age < FRESH_MS;
}

static void name_machine(const struct fit_here *h, char name[256])
{
    snprintf(name, 256, "%s; %s; %s", h->chip, h->device, mb_version());
}

static bool find_kept(struct registry *r, struct fit_here *h)
{
    char name[256];
    struct buf text;
    int64_t at_ms;
    name_machine(h, name);
    buf_init(&text, TEXT_LIMIT + 1);
    bool ok = measures_machine_get(r, name, &text, &at_ms, NULL) == MB_OK && is_fresh(at_ms) && read_rates(&text, &h->rates);
    buf_free(&text);
    if (ok) h->measured_at_ms = at_ms;
    else memset(&h->rates, 0, sizeof h->rates);
    return ok;
}

static mb_status keep(struct registry *r, const struct fit_here *h, mb_error *err)
{
    char name[256];
    struct buf text;
    name_machine(h, name);
    buf_init(&text, TEXT_LIMIT);
    write_rates(&text, &h->rates);
    mb_status st = buf_status(&text, "the measurement", err);
    if (st == MB_OK) st = measures_machine_put(r, name, text.data, text.len, h->measured_at_ms, err);
    buf_free(&text);
    return st;
}

/* NULL: there is none; measuring goes on without it. */
static struct registry *open_kept(const struct store *s)
{
    struct registry *r = NULL;
    mb_error err;
    if (s && registry_open(&r, s->registry_path, &err) != MB_OK) LOGW("fit", "measurements are not kept: %s", err.text);
    return r;
}

mb_status fit_here_get(const struct store *s, const struct engine_load *load, enum fit_measure how, struct fit_here *out, mb_error *err)
{
    mb_error why;
    memset(out, 0, sizeof *out);
    fit_machine(out->chip, &out->ram_bytes);
    MB_TRY(engine_probe(load, 0, &out->rates, out->device, err));
    struct registry *r = open_kept(s);
    mb_status st = MB_OK;
    bool found = r && how != FIT_ANEW && find_kept(r, out);
    if (!found && how != FIT_KNOWN) {
        st = engine_probe(load, MEASURE_S, &out->rates, out->device, err);
        out->measured_at_ms = clock_unix_ms();
        if (st == MB_OK && r && keep(r, out, &why) != MB_OK) LOGW("fit", "the measurement is not kept: %s", why.text);
    }
    registry_close(r);
    return st;
}

/* --- one model --- */

/* Its folder and what its files are; how it runs. False: no such folder. */
static bool name_model(const struct engine_load *load, const struct fit_model *m, const char *path, char snapshot[PATH_MAX + 32],
                       char way[160])
{
    char *real = realpath(path, NULL);
    if (!real) return false;
    snprintf(snapshot, PATH_MAX + 32, "%s@%016llx", real, (unsigned long long)engine_model_identity(real));
    free(real);
    snprintf(way, 160, "%s %s; %s", mb_tier_name(load->tier), m->info.kv_mode, m->info.device);
    return true;
}

static void find_measured(const struct store *s, const struct engine_load *load, const char *path, struct fit_view *v)
{
    char snapshot[PATH_MAX + 32], way[160];
    struct registry *r = open_kept(s);
    if (r && name_model(load, &v->model, path, snapshot, way) &&
        (measures_decode_get(r, snapshot, way, &v->measured, NULL) != MB_OK || !is_fresh(v->measured.at_ms)))
        v->measured = (struct decode_measure){ 0 };
    registry_close(r);
}

mb_status fit_view_make(const struct store *s, const struct engine_load *load, const char *path, int32_t n_context,
                        enum fit_measure how, struct fit_view *out, mb_error *err)
{
    struct fit_here here;
    MB_TRY(fit_here_get(s, load, how, &here, err));
    return fit_view_of(s, load, path, n_context, &here, out, err);
}

mb_status fit_view_of(const struct store *s, const struct engine_load *load, const char *path, int32_t n_context,
                      const struct fit_here *here, struct fit_view *out, mb_error *err)
{
    memset(out, 0, sizeof *out);
    out->path = path;
    out->here = *here;
    MB_TRY(fit_model_read(&out->model, load, err));
    fit_report_make(&out->report, &out->model, &out->here.rates, n_context);
    out->context_tokens = out->report.max_safe_context;
    out->typical_context = out->context_tokens < FIT_TYPICAL_CONTEXT ? out->context_tokens : FIT_TYPICAL_CONTEXT;
    if (out->here.rates.read_bytes_s > 0 && fit_is_resident(&out->model)) out->typical_tps = 1 / fit_decode_s(&out->model, &out->here.rates, out->typical_context);
    find_measured(s, load, path, out);
    return MB_OK;
}

mb_status fit_decode_keep(const struct store *s, const struct engine_load *load, const char *path, double tokens_per_s,
                          int32_t n_context, mb_error *err)
{
    char snapshot[PATH_MAX + 32], way[160];
    struct fit_model m;
    struct fit_here here;
    struct registry *r;
    struct decode_measure d = { .tokens_per_s = tokens_per_s, .n_context = n_context, .at_ms = clock_unix_ms() };
    MB_TRY(fit_model_read(&m, load, err));
    MB_TRY(fit_here_get(s, load, FIT_KNOWN, &here, err));
    if (here.rates.read_bytes_s > 0) d.predicted_per_s = 1 / fit_decode_s(&m, &here.rates, n_context);
    if (!name_model(load, &m, path, snapshot, way)) return mb_fail_errno(err, "cannot find the folder", path);
    MB_TRY(registry_open(&r, s->registry_path, err));
    mb_status st = measures_decode_put(r, snapshot, way, &d, err);
    registry_close(r);
    return st;
}
