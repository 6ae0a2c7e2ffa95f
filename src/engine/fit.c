/* fit.c: see fit.h. */
#include "engine/fit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv.h"

/* Regions of a decoded token that end at a barrier (docs/cpu-step.md): in a layer, and around the layers. */
enum { REGIONS_A_LAYER = 5, REGIONS_BESIDE = 4 };
/* Norms of a layer whose result becomes a linear input on one thread, in units of d_model values; the inputs of o and down are
 * made by all threads, beside products that take far longer. */
enum { VALUES_A_LAYER = 2 };

/* Machines that people have; bandwidth from data sheets: channels x width x rate. */
static const struct fit_sku skus[] = {
    { "laptop, LPDDR5-6400", 16, 102, false },
    { "desktop, 2 channels DDR4-3200", 32, 51, false },
    { "desktop, 2 channels DDR5-5600", 32, 90, false },
    { "desktop, 2 channels DDR5-6000", 64, 96, false },
    { "mini PC, 256 bit LPDDR5X-8000", 128, 256, false },
    { "workstation, 8 channels DDR5-4800", 256, 307, false },
    { "server, 12 channels DDR5-4800", 384, 460, false },
    { "two sockets, 24 channels DDR5-4800", 768, 921, false },
    { "RTX 4090", 24, 1008, true },
    { "RTX 5090", 32, 1792, true },
    { "L40S", 48, 864, true },
    { "A100", 80, 2039, true },
    { "H200", 141, 4800, true },
};

/* What a decoded token reaches of such a figure, what a layer costs besides reading, and the share of the memory that is left to
 * a model; by kind of machine. */
static const struct { double share, layer_us, usable; } kinds_of_sku[2] = { { 0.75, 8, 0.85 }, { 0.55, 10, 0.92 } };

const struct fit_sku *fit_skus(size_t *n)
{
    *n = sizeof skus / sizeof skus[0];
    return skus;
}

mb_status fit_model_read(struct fit_model *out, const struct engine_load *opt, mb_error *err)
{
    memset(out, 0, sizeof *out);
    out->tier = opt->tier;
    out->prefill_chunk = opt->engine.prefill_chunk > 0 ? opt->engine.prefill_chunk : INT32_MAX;
    out->prompt_cache_bytes = opt->engine.prompt_cache_bytes;
    mb_status st = engine_load_estimate(opt, &out->info, &out->size, err);
    return st == MB_NO_MEMORY && out->info.usable_bytes > 0 ? MB_OK : st;
}

/* --- visible keys --- */

static double seen(const struct kv_kind *k, double n_context)
{
    if (k->type == KIND_STATE) return 1;
    return k->type == KIND_WINDOW && n_context > k->window ? k->window : n_context;
}

/* Of all queries of a prompt together. */
static double seen_by_prompt(const struct kv_kind *k, double n)
{
    double w = k->window;
    if (k->type == KIND_STATE) return n;
    return k->type == KIND_WINDOW && n > w ? w * w / 2 + (n - w) * w : n * n / 2;
}

static double kv_bytes_read(const struct fit_model *m, int32_t n_context)
{
    double bytes = 0;
    for (int32_t k = 0; k < m->size.n_kinds; k++) bytes += m->size.attend[k].bytes * seen(&m->size.kinds[k], n_context);
    return bytes;
}

/* --- speed --- */

static double over(double work, double rate)
{
    return rate > 0 ? work / rate : 0;
}

/* Of formats without a measurement of their own: those of 16 bit. */
static double kv_rate(const double rates[KV_FORMAT_COUNT], int format)
{
    return rates[format] > 0 ? rates[format] : rates[KV_F16];
}

/* Of a model whose weights take n_bytes, whether a token reads all of them or some experts, which others follow: up to
 * OPS_NEAR_BYTES as fast as those were, from far_bytes on as memory gives them, and between them, where a machine shares its
 * caches with others, along the logarithm. */
static double weight_rate(const struct ops_rates *r, int class, int tier, double n_bytes)
{
    double near = r->near_bytes_s[class][tier], far = r->weight_bytes_s[class][tier];
    if (near <= far || r->far_bytes <= (double)OPS_NEAR_BYTES) return far;
    double share = log(n_bytes / (double)OPS_NEAR_BYTES) / log(r->far_bytes / (double)OPS_NEAR_BYTES);
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    return near * pow(far / near, share);
}

/* Of the rates that threads reach in their best rounds, what is left of a token of many short regions: at each end the others wait for
 * whoever the system or a neighbour held up. Alone nobody waits. docs/models.md has the measurement. */
static const double together_share = 0.82;

double fit_decode_s(const struct fit_model *m, const struct ops_rates *rates, int32_t n_context)
{
    const struct model_size *z = &m->size;
    int n_threads = rates->n_threads > 0 ? rates->n_threads : 1;
    double s = (REGIONS_A_LAYER * z->n_layer + REGIONS_BESIDE) * rates->region_s;
    s += (double)VALUES_A_LAYER * z->n_layer * z->d_model * rates->value_s[m->tier];
    s += z->n_vocab * rates->vocab_s / n_threads;
    for (int c = 0; c < OPS_CLASSES; c++) s += over(z->read[c].bytes, weight_rate(rates, c, m->tier, (double)z->weight_bytes));
    for (int32_t k = 0; k < z->n_kinds; k++)
        s += over(z->attend[k].bytes * seen(&z->kinds[k], n_context), kv_rate(rates->kv_bytes_s, z->kinds[k].format));
    return n_threads > 1 ? s / together_share : s;
}

/* Of the rate of products with weights and inputs in a cache, what a prompt reaches: the rest goes into norms, activations, and
 * moving them. */
static const double prefill_share = 0.6;

double fit_prefill_s(const struct fit_model *m, const struct ops_rates *rates, int32_t n)
{
    const struct model_size *z = &m->size;
    double s = 0;
    for (int c = 0; c < OPS_CLASSES; c++) {
        double values = z->read[c].values * n - (c == (int)z->head_class ? z->head_values * (n - 1) : 0);
        s += over(values, prefill_share * rates->macs_s[c][m->tier]);
    }
    for (int32_t k = 0; k < z->n_kinds; k++)
        s += over(z->attend[k].macs * seen_by_prompt(&z->kinds[k], n), kv_rate(rates->attn_macs_s, z->kinds[k].format));
    return s;
}

bool fit_is_resident(const struct fit_model *m)
{
    return m->info.expert_cache_bytes >= m->size.expert_bytes;
}

/* --- memory --- */

static size_t kept(const struct fit_model *m, int32_t n_context, int32_t n_rows, size_t room)
{
    const struct model_size *z = &m->size;
    size_t cache = m->prompt_cache_bytes, bytes;
    if (n_rows > z->touched.rows_max) n_rows = z->touched.rows_max;
    bytes = kv_pages_kept_bytes(z->kinds, z->n_kinds, n_context, n_rows, cache > 0);
    if (cache > 0 && bytes > cache) bytes = cache;
    return bytes < room ? bytes : room;
}

static void set_memory(struct fit_report *r, const struct fit_model *m, size_t usable, int32_t n_context)
{
    const struct model_size *z = &m->size;
    int32_t n_rows = n_context < m->prefill_chunk ? n_context : m->prefill_chunk;
    r->n_context = n_context;
    r->weights_bytes = z->weight_bytes + m->info.expert_cache_bytes;
    r->scratch_bytes = z->scratch_bytes;
    r->transient_bytes = model_size_touched(z, n_rows, n_context);
    r->kv_bytes = kv_pages_bytes(z->kinds, z->n_kinds, n_context);
    r->total_bytes = r->weights_bytes + r->transient_bytes + r->kv_bytes;
    r->kept_bytes = kept(m, n_context, n_rows, usable > r->total_bytes ? usable - r->total_bytes : 0);
    r->usable_bytes = usable;
    r->fits = r->max_safe_context > 0 && n_context <= r->max_safe_context;
}

size_t fit_least_bytes(const struct fit_model *m, int32_t n_context, int32_t n_requests)
{
    const struct model_size *z = &m->size;
    if (n_context < ENGINE_POOL_MIN_TOKENS) n_context = ENGINE_POOL_MIN_TOKENS;
    size_t fixed = z->weight_bytes + z->expert_slot_bytes * (z->expert_bytes ? 2 : 0) + z->scratch_bytes;
    return fixed + kv_pool_bytes_for(z->kinds, z->n_kinds, n_context) * (size_t)(n_requests > 1 ? n_requests : 1) + KV_PAGE_UNIT;
}

static int32_t clamp_context(const struct fit_model *m, int32_t n_context)
{
    return n_context > 0 && n_context < m->info.n_context ? n_context : m->info.n_context;
}

void fit_report_make(struct fit_report *out, const struct fit_model *m, const struct ops_rates *rates, int32_t n_context)
{
    memset(out, 0, sizeof *out);
    out->max_safe_context = m->info.max_context_in_pool;
    if (n_context <= 0 && out->max_safe_context > 0) n_context = out->max_safe_context;
    set_memory(out, m, m->info.usable_bytes, clamp_context(m, n_context));
    if (!rates || rates->read_bytes_s <= 0 || !fit_is_resident(m)) return;
    out->decode_tps = 1 / fit_decode_s(m, rates, out->n_context);
    out->prefill_tps = out->n_context / fit_prefill_s(m, rates, out->n_context);
}

void fit_report_sku(struct fit_report *out, const struct fit_model *m, const struct fit_sku *sku, int32_t n_context)
{
    const struct model_size *z = &m->size;
    size_t usable = (size_t)(sku->ram_gb * 1e9 * kinds_of_sku[sku->gpu].usable), fixed = z->weight_bytes + z->expert_bytes + z->scratch_bytes;
    double bytes = 0;
    memset(out, 0, sizeof *out);
    if (usable > fixed) out->max_safe_context = kv_pool_tokens_for(z->kinds, z->n_kinds, usable - fixed, m->info.n_context);
    n_context = clamp_context(m, n_context);
    set_memory(out, m, usable, n_context);
    for (int c = 0; c < OPS_CLASSES; c++) bytes += z->read[c].bytes;
    bytes += kv_bytes_read(m, n_context);
    out->decode_tps = 1 / (bytes / (sku->gbs * 1e9 * kinds_of_sku[sku->gpu].share) +
                           z->n_layer * kinds_of_sku[sku->gpu].layer_us * 1e-6);
}

/* --- this machine --- */

/* "model name : AMD EPYC 7763" of /proc/cpuinfo. */
static void read_chip(char chip[96])
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(chip, 96, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(chip, 96, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (f) fclose(f);
}

void fit_machine(char chip[96], uint64_t *ram_bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    read_chip(chip);
    *ram_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}
