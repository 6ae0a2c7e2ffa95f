/* open.c: device, model, memory plan, stepper, engine: see open.h. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/filemap.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/kv.h"
#include "engine/open.h"

#define PATH_CAP 4096
#define POOL_MIN_TOKENS 512 /* below this a pool is of no use */

static void fill_info(const struct model_spec *s, struct engine_loaded *info)
{
    info->n_context = s->n_context;
    info->n_vocab = s->n_vocab;
    info->d_model = s->d_model;
    info->embeds = strcmp(s->arch_name, "qwen3") == 0;
    info->n_eos = s->n_eos;
    memcpy(info->eos_ids, s->eos_ids, sizeof info->eos_ids);
    info->kv_format = s->n_kinds ? s->kinds[0].format : 0;
    for (int i = 0; i < s->n_layer; i++) {
        if (s->layers[i].window > 0) info->n_layer_window++;
        else info->n_layer_full++;
    }
}

/* Bytes that weights, scratch and pages may take when nobody has said how many. */
static size_t usable_now(void)
{
    return engine_memory_available() / 10 * 9;
}

/* usable -> pool: one pool for all rows, fixed now (design.md section 3). info is complete also when the model does not fit. */
static mb_status plan_memory(const struct engine_load *opt, const struct kv_kind *kinds, int32_t n_kinds,
                             struct engine_loaded *info, mb_error *err)
{
    size_t fixed = info->weight_bytes + info->scratch_bytes;
    info->usable_bytes = opt->memory_budget_bytes ? opt->memory_budget_bytes : usable_now();
    for (int i = 0; i < n_kinds; i++)
        if (kinds[i].type == KIND_FULL) info->kv_bytes_per_token += kinds[i].page_bytes / KV_PAGE_TOKENS;
    if (info->usable_bytes <= fixed + kv_pages_bytes(kinds, n_kinds, POOL_MIN_TOKENS))
        return mb_fail(err, MB_NO_MEMORY, "%s needs %zu MB for weights and %zu MB for scratch, and room for a few pages of KV; "
                       "%zu MB may be used: free memory, raise --memory-budget, or lower --batch or the context", opt->dir,
                       info->weight_bytes >> 20, info->scratch_bytes >> 20, info->usable_bytes >> 20);
    info->pool_bytes = info->usable_bytes - fixed;
    if (opt->kv_budget_bytes && opt->kv_budget_bytes < info->pool_bytes) info->pool_bytes = opt->kv_budget_bytes;
    info->max_context_in_pool = kv_pool_tokens_for(kinds, n_kinds, info->pool_bytes, info->n_context);
    info->fits = info->max_context_in_pool > 0;
    return MB_OK;
}

/* --- the packed cache: one file a model directory, keyed by what its files are --- */

static uint64_t identity_of(const char *dir, const char *name, uint64_t seed)
{
    struct stat s;
    char path[PATH_CAP];
    if (path_join(path, sizeof path, dir, name, NULL) != MB_OK || stat(path, &s) != 0) return seed;
    uint64_t v[7] = { (uint64_t)s.st_dev, (uint64_t)s.st_ino, (uint64_t)s.st_size, (uint64_t)s.st_mtim.tv_sec,
                      (uint64_t)s.st_mtim.tv_nsec, (uint64_t)s.st_ctim.tv_sec, (uint64_t)s.st_ctim.tv_nsec };
    return XXH3_64bits(v, sizeof v) ^ XXH3_64bits(name, strlen(name));
}

/* Of all weight files and config.json; the order of the folder does not count. */
uint64_t engine_model_identity(const char *dir)
{
    uint64_t sum = identity_of(dir, "config.json", 0);
    DIR *d = opendir(dir);
    if (!d) return sum;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0) sum += identity_of(dir, e->d_name, 0);
    }
    closedir(d);
    return sum;
}

/* *path empty: no cache. A folder that cannot be made is a warning. */
static void packed_place(const struct engine_load *opt, char path[PATH_CAP], uint64_t *key)
{
    char folder[PATH_CAP], name[32];
    mb_error why;
    char *real = opt->packed_dir ? realpath(opt->dir, NULL) : NULL;
    path[0] = '\0';
    if (!real) return;
    snprintf(name, sizeof name, "%016llx.bin", (unsigned long long)XXH3_64bits(real, strlen(real)));
    *key = engine_model_identity(real);
    free(real);
    mb_status st = path_join(folder, sizeof folder, opt->packed_dir, "packed", &why);
    if (st == MB_OK) st = dir_make(folder, &why);
    if (st == MB_OK) st = path_join(path, PATH_CAP, folder, name, &why);
    if (st == MB_OK) return;
    LOGW("engine", "--packed-cache: %s", why.text);
    path[0] = '\0';
}

/* Device options and model options out of an engine_load. */
static mb_status open_device(const struct engine_load *opt, const struct ops **ops, struct device **dev, mb_error *err)
{
    *dev = NULL;
    *ops = ops_find(opt->device ? opt->device : "cpu");
    if (!*ops)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "device %.32s is not in this build; use cpu", opt->device);
    struct device_options d = { .n_threads = opt->n_threads, .cpu_level = opt->cpu_level, .n_ranks = 1 };
    char packed[PATH_CAP];
    packed_place(opt, packed, &d.packed_key);
    d.packed_path = packed[0] ? packed : NULL;
    return (*ops)->device_open(dev, &d, err);
}

static struct model_options model_options_of(const struct engine_load *opt, const struct ops *ops, struct device *dev)
{
    return (struct model_options){ .ops = ops, .device = dev, .tier = opt->tier, .kv_format = opt->kv_format,
                                   .n_rows_max = (opt->engine.batch > 0 ? opt->engine.batch : 1) + ENGINE_EMBED_ROWS,
                                   .n_context = opt->n_context, .max_lora_rank = opt->max_lora_rank,
                                   .progress = opt->progress, .progress_ctx = opt->progress_ctx };
}

static mb_status open_model(const struct engine_load *opt, const struct ops **ops, struct device **dev, struct model **m,
                            struct engine_loaded *info, mb_error *err)
{
    *m = NULL;
    MB_TRY(open_device(opt, ops, dev, err));
    struct model_options mo = model_options_of(opt, *ops, *dev);
    mb_status st = model_open(m, opt->dir, &mo, err);
    if (st != MB_OK) {
        (*ops)->device_close(*dev);
        *dev = NULL;
        return st;
    }
    info->weight_bytes = model_weight_bytes(*m);
    info->scratch_bytes = model_scratch_bytes(*m);
    snprintf(info->device, sizeof info->device, "%s", (*ops)->device_describe(*dev));
    fill_info(model_spec_get(*m), info);
    return MB_OK;
}

mb_status engine_load(struct engine **out, const struct engine_load *opt, struct engine_loaded *info, mb_error *err)
{
    const struct ops *ops;
    struct device *dev;
    struct model *m;
    struct stepper stepper;
    struct engine_load before = *opt; /* what is free is looked at while the weights do not take of it yet */
    *out = NULL;
    memset(info, 0, sizeof *info);
    if (!before.memory_budget_bytes) before.memory_budget_bytes = usable_now();
    MB_TRY(open_model(opt, &ops, &dev, &m, info, err));
    const struct plan *p = model_plan_get(m);
    mb_status st = plan_memory(&before, p->kinds, p->n_kinds, info, err);
    if (st == MB_OK) st = stepper_from_model(&stepper, m, err);
    if (st != MB_OK) {
        model_close(m);
        ops->device_close(dev);
        return st;
    }
    struct engine_options eo = opt->engine;
    eo.pool_bytes = info->pool_bytes;
    return engine_open(out, &stepper, &eo, err);
}

mb_status engine_load_estimate(const struct engine_load *opt, struct engine_loaded *info, struct model_size *size, mb_error *err)
{
    const struct ops *ops;
    struct device *dev;
    struct model_size own;
    struct model_spec spec;
    memset(info, 0, sizeof *info);
    struct engine_load bare = *opt; /* without weights no packed ones */
    bare.packed_dir = NULL;
    if (!size) size = &own;
    MB_TRY(open_device(&bare, &ops, &dev, err));
    struct model_options mo = model_options_of(opt, ops, dev);
    mb_status st = model_size_estimate(size, opt->dir, &mo, err);
    if (st == MB_OK) st = model_config_read(&spec, opt->dir, err);
    if (st == MB_OK) {
        if (opt->n_context > 0 && opt->n_context < spec.n_context) spec.n_context = opt->n_context;
        fill_info(&spec, info);
        info->weight_bytes = size->weight_bytes;
        info->scratch_bytes = size->scratch_bytes;
        info->kv_format = size->n_kinds ? size->kinds[0].format : 0;
        snprintf(info->device, sizeof info->device, "%s", ops->device_describe(dev));
        st = plan_memory(opt, size->kinds, size->n_kinds, info, err);
        model_spec_free(&spec);
    }
    ops->device_close(dev);
    return st;
}

mb_status engine_probe(const struct engine_load *opt, double seconds, struct ops_rates *out, char device[96], mb_error *err)
{
    const struct ops *ops;
    struct device *dev;
    struct engine_load bare = *opt;
    bare.packed_dir = NULL;
    memset(out, 0, sizeof *out);
    MB_TRY(open_device(&bare, &ops, &dev, err));
    snprintf(device, 96, "%s", ops->device_describe(dev));
    mb_status st = seconds > 0 ? ops->probe(dev, seconds, out, err) : MB_OK;
    ops->device_close(dev);
    return st;
}

mb_status engine_plan_describe(const struct engine_load *opt, void (*line)(void *ctx, const char *text), void *ctx,
                               mb_error *err)
{
    const struct ops *ops;
    struct device *dev;
    struct model *m;
    struct engine_loaded info = { 0 };
    char text[512];
    MB_TRY(open_model(opt, &ops, &dev, &m, &info, err));
    const struct plan *p = model_plan_get(m);
    for (int32_t i = 0; i < p->n_steps; i++) {
        int n = snprintf(text, sizeof text, p->steps[i].i_layer >= 0 ? "%4d  layer %3d  " : "%4d             ", i,
                         p->steps[i].i_layer);
        ops->describe_step(model_compiled(m), i, text + n, sizeof text - (size_t)n);
        line(ctx, text);
    }
    model_close(m);
    ops->device_close(dev);
    return MB_OK;
}
