/* open.c: device, model, memory plan, stepper, engine: see open.h. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/filemap.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/open.h"

#define PATH_CAP 4096
#define POOL_MIN_TOKENS 512 /* below this a pool is of no use */

/* A number from a small text file such as memory.max; false for "max" or no file. */
static bool read_number(const char *path, const char *key, uint64_t *out)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    bool ok = false;
    mb_error err;
    if (file_read(&b, path, 1 << 16, &err) == MB_OK && b.data) {
        const char *at = key ? strstr(b.data, key) : b.data;
        if (at) at += key ? strlen(key) : 0;
        char *end;
        unsigned long long v = at ? strtoull(at, &end, 10) : 0;
        ok = at && end != at;
        *out = v;
    }
    buf_free(&b);
    return ok;
}

size_t engine_memory_available(void)
{
    uint64_t best = UINT64_MAX, v, used;
    struct rlimit as;
    if (read_number("/proc/meminfo", "MemAvailable:", &v)) best = v * 1024;
    if (read_number("/sys/fs/cgroup/memory.max", NULL, &v) && read_number("/sys/fs/cgroup/memory.current", NULL, &used)) {
        uint64_t rest = v > used ? v - used : 0;
        if (rest < best) best = rest;
    }
    if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY && read_number("/proc/self/statm", NULL, &used)) {
        uint64_t have = used * (uint64_t)sysconf(_SC_PAGESIZE);
        uint64_t rest = as.rlim_cur > have ? as.rlim_cur - have : 0;
        if (rest < best) best = rest;
    }
    return best == UINT64_MAX ? (size_t)4 << 30 : (size_t)best;
}

/* Bytes of pages that a sequence of n tokens holds. */
static size_t pages_bytes(const struct kv_kind *kinds, int32_t n_kinds, int64_t n)
{
    size_t bytes = 0;
    for (int i = 0; i < n_kinds; i++) {
        int64_t held = n;
        if (kinds[i].type == KIND_WINDOW && held > kinds[i].window + KV_PAGE_TOKENS) held = kinds[i].window + KV_PAGE_TOKENS;
        bytes += (size_t)((held + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS) * kinds[i].page_bytes;
    }
    return bytes;
}

static int32_t context_in_pool(const struct kv_kind *kinds, int32_t n_kinds, size_t pool, int32_t n_context)
{
    int32_t lo = 0, hi = n_context;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (pages_bytes(kinds, n_kinds, mid) <= pool) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}

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
        if (s->layers[i].attn == ATTN_SLIDING) info->n_layer_window++;
        else info->n_layer_full++;
    }
}

/* usable -> pool: one pool for all rows, fixed now (design.md section 3). */
static mb_status plan_memory(const struct engine_load *opt, const struct kv_kind *kinds, int32_t n_kinds,
                             struct engine_loaded *info, mb_error *err)
{
    size_t fixed = info->weight_bytes + info->scratch_bytes;
    info->usable_bytes = opt->memory_budget_bytes ? opt->memory_budget_bytes : engine_memory_available() / 10 * 9;
    if (info->usable_bytes <= fixed + pages_bytes(kinds, n_kinds, POOL_MIN_TOKENS))
        return mb_fail(err, MB_NO_MEMORY, "%s needs %zu MB for weights and %zu MB for scratch, and room for a few pages of KV; "
                       "%zu MB may be used: free memory, raise --memory-budget, or lower --batch or the context", opt->dir,
                       info->weight_bytes >> 20, info->scratch_bytes >> 20, info->usable_bytes >> 20);
    info->pool_bytes = info->usable_bytes - fixed;
    if (opt->kv_budget_bytes && opt->kv_budget_bytes < info->pool_bytes) info->pool_bytes = opt->kv_budget_bytes;
    for (int i = 0; i < n_kinds; i++)
        if (kinds[i].type == KIND_FULL) info->kv_bytes_per_token += kinds[i].page_bytes / KV_PAGE_TOKENS;
    info->max_context_in_pool = context_in_pool(kinds, n_kinds, info->pool_bytes, info->n_context);
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
static uint64_t identity_of_model(const char *dir)
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
    *key = identity_of_model(real);
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
    *out = NULL;
    memset(info, 0, sizeof *info);
    MB_TRY(open_model(opt, &ops, &dev, &m, info, err));
    const struct plan *p = model_plan_get(m);
    mb_status st = plan_memory(opt, p->kinds, p->n_kinds, info, err);
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

mb_status engine_load_estimate(const struct engine_load *opt, struct engine_loaded *info, mb_error *err)
{
    const struct ops *ops;
    struct device *dev;
    struct model_size size;
    struct model_spec spec;
    memset(info, 0, sizeof *info);
    MB_TRY(open_device(opt, &ops, &dev, err));
    struct model_options mo = model_options_of(opt, ops, dev);
    mb_status st = model_size_estimate(&size, opt->dir, &mo, err);
    if (st == MB_OK) st = model_config_read(&spec, opt->dir, err);
    if (st == MB_OK) {
        if (opt->n_context > 0 && opt->n_context < spec.n_context) spec.n_context = opt->n_context;
        fill_info(&spec, info);
        info->weight_bytes = size.weight_bytes;
        info->scratch_bytes = size.scratch_bytes;
        info->kv_format = size.n_kinds ? size.kinds[0].format : 0;
        snprintf(info->device, sizeof info->device, "%s", ops->device_describe(dev));
        st = plan_memory(opt, size.kinds, size.n_kinds, info, err);
        model_spec_free(&spec);
    }
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
