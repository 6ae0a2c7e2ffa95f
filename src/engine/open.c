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
#define RESERVED_ANSWER 128 /* tokens, GLM-5.2 (CFG-102) */

static void fill_info(const struct model_spec *s, struct engine_loaded *info)
{
    info->n_context = s->n_context;
    info->n_vocab = s->n_vocab;
    info->d_model = s->d_model;
    info->embeds = strcmp(s->arch_name, "qwen3") == 0;
    info->n_eos = s->n_eos;
    memcpy(info->eos_ids, s->eos_ids, sizeof info->eos_ids);
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

/* Memory for offloaded experts: what was asked for, or half of what is left, in whole experts; two at least where nothing was asked
 * for, so that one is read while another is used. */
static size_t expert_cache_of(const struct engine_load *opt, size_t all, size_t each, size_t rest)
{
    size_t want = opt->expert_cache_bytes ? (size_t)opt->expert_cache_bytes : rest / 2, least = opt->expert_cache_bytes ? each : 2 * each;
    if (each == 0) return 0;
    if (want < least) want = least;
    return want < all ? want / each * each : all;
}

/* opt->memory_budget_bytes, which somebody has set -> pool: one pool for all rows, fixed now. info is complete also when the
 * model does not fit. */
static mb_status plan_memory(const struct engine_load *opt, const struct kv_kind *kinds, int32_t n_kinds, size_t expert_slot_bytes,
                             struct engine_loaded *info, mb_error *err)
{
    char experts[80] = "";
    size_t fixed = info->weight_bytes + info->scratch_bytes;
    info->usable_bytes = opt->memory_budget_bytes;
    info->expert_cache_bytes = expert_cache_of(opt, info->expert_bytes, expert_slot_bytes,
                                               info->usable_bytes > fixed ? info->usable_bytes - fixed : 0);
    fixed += info->expert_cache_bytes;
    if (info->expert_bytes)
        snprintf(experts, sizeof experts, "%zu MB for experts that were read, ", info->expert_cache_bytes >> 20);
    for (int i = 0; i < n_kinds; i++)
        if (kinds[i].type == KIND_FULL || kinds[i].type == KIND_LATENT) info->kv_bytes_per_token += kinds[i].page_bytes / KV_PAGE_TOKENS;
    if (info->usable_bytes <= fixed + kv_pages_bytes(kinds, n_kinds, ENGINE_POOL_MIN_TOKENS))
        return mb_fail(err, MB_NO_MEMORY, "%s needs %zu MB for weights and %zu MB for scratch, %sand room for a few pages of KV; "
                       "%zu MB may be used: free memory, raise --memory-budget, or lower --batch or the context", opt->dir,
                       info->weight_bytes >> 20, info->scratch_bytes >> 20, experts, info->usable_bytes >> 20);
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

mb_status engine_packed_key(const char *dir, char out[17], mb_error *err)
{
    char *real = realpath(dir, NULL);
    out[0] = '\0';
    if (!real) return mb_fail_errno(err, "opening", dir);
    snprintf(out, 17, "%016llx", (unsigned long long)XXH3_64bits(real, strlen(real)));
    free(real);
    return MB_OK;
}

/* A model directory's file in a folder: named by its path, keyed by what its files are. The folder is made. */
static mb_status place_of(const char *dir, const char *folder, const char *suffix, char path[PATH_CAP], uint64_t *key, mb_error *err)
{
    char name[40], stem[17];
    path[0] = '\0';
    MB_TRY(engine_packed_key(dir, stem, err));
    snprintf(name, sizeof name, "%s%s", stem, suffix);
    *key = engine_model_identity(dir);
    MB_TRY(dir_make(folder, err));
    return path_join(path, PATH_CAP, folder, name, err);
}

/* *path empty: no cache. A folder that cannot be made is a warning. Without the experts it is another file. */
static void packed_place(const struct engine_load *opt, char path[PATH_CAP], uint64_t *key)
{
    char folder[PATH_CAP];
    mb_error why;
    path[0] = '\0';
    if (!opt->packed_dir) return;
    mb_status st = path_join(folder, sizeof folder, opt->packed_dir, "packed", &why);
    if (st == MB_OK) st = place_of(opt->dir, folder, opt->expert_offload ? "-shared.bin" : ".bin", path, key, &why);
    if (st == MB_OK) return;
    LOGW("engine", "--packed-cache: %s", why.text);
    path[0] = '\0';
}

/* The experts' file: without it nothing can be served. */
static mb_status experts_place(const struct engine_load *opt, char path[PATH_CAP], uint64_t *key, mb_error *err)
{
    path[0] = '\0';
    if (!opt->expert_offload) return MB_OK;
    if (!opt->expert_dir)
        return mb_fail_at(err, MB_INVALID, "expert-offload", "there is no folder for the experts' file: name one with --cache-dir or "
                          "MLX_BUN_EXPERT_OFFLOAD");
    return place_of(opt->dir, opt->expert_dir, ".experts", path, key, err);
}

/* Device options and model options out of an engine_load. */
static mb_status open_device(const struct engine_load *opt, const struct ops **ops, struct device **dev, mb_error *err)
{
    struct device_options d = { .n_threads = opt->n_threads, .cpu_level = opt->cpu_level, .n_ranks = 1 };
    char packed[PATH_CAP], experts[PATH_CAP];
    *dev = NULL;
    MB_TRY(ops_parse(opt->device, ops, &d, err));
    if (opt->expert_offload && !(*ops)->experts_reserve)
        return mb_fail_at(err, MB_UNSUPPORTED, "expert-offload", "--expert-offload works on the cpu, not on %s", (*ops)->name);
    packed_place(opt, packed, &d.packed_key);
    d.packed_path = packed[0] ? packed : NULL;
    MB_TRY(experts_place(opt, experts, &d.experts_key, err));
    d.experts_path = experts[0] ? experts : NULL;
    return (*ops)->device_open(dev, &d, err);
}

/* Bytes that weights, scratch and pages may take on the device when nobody has said how many. */
static size_t usable_on(const struct ops *ops, struct device *dev)
{
    return ops->memory_free ? ops->memory_free(dev) / 10 * 9 : usable_now();
}

static struct model_options model_options_of(const struct engine_load *opt, const struct ops *ops, struct device *dev)
{
    return (struct model_options){ .ops = ops, .device = dev, .tier = opt->tier, .kv_format = opt->kv_format,
                                   .n_rows_max = (opt->engine.batch > 0 ? opt->engine.batch : 1) + ENGINE_EMBED_ROWS,
                                   .n_context = opt->n_context, .max_lora_rank = opt->max_lora_rank,
                                   .expert_offload = opt->expert_offload,
                                   .progress = opt->progress, .progress_ctx = opt->progress_ctx };
}

/* A device with memory of its own that cannot hold the weights says so before it reads them. What cannot be estimated is told by the load. */
static mb_status check_room(const struct engine_load *opt, const struct ops *ops, struct device *dev, const struct model_options *mo, mb_error *err)
{
    struct model_size size;
    mb_error why;
    if (!ops->memory_free || model_size_estimate(&size, opt->dir, mo, &why) != MB_OK) return MB_OK;
    size_t free_bytes = ops->memory_free(dev), need = size.weight_bytes + size.scratch_bytes;
    if (need <= free_bytes) return MB_OK;
    struct device_options asked = { .n_ranks = 1 };
    const struct ops *same;
    if (ops_parse(opt->device, &same, &asked, &why) == MB_OK && asked.n_ranks > 1)
        return mb_fail_at(err, MB_NO_MEMORY, "device", "%s: each rank's share of this model's weights and scratch takes up to %.1f GB, %.1f GB are free: "
                          "split it over more GPUs than these %d (--devices), or use --device cpu", ops->device_describe(dev), (double)need / 1e9,
                          (double)free_bytes / 1e9, asked.n_ranks);
    return mb_fail_at(err, MB_NO_MEMORY, "device", "%s: the weights and scratch of this model take %.1f GB there, %.1f GB are free: split it over more GPUs "
                      "(--devices cuda:0,1), or use --device cpu", ops->device_describe(dev), (double)need / 1e9, (double)free_bytes / 1e9);
}

/* What was asked for and a layer cannot do is said once, now (B-115). */
static void say_formats(const struct model_spec *s)
{
    char text[320];
    bool other = model_kv_note(s, text, sizeof text);
    if (other) LOGW("engine", "--kv-quant, %s", text);
    else if (text[0]) LOGI("engine", "--kv-quant, %s", text);
}

static mb_status open_model(const struct engine_load *opt, const struct ops **ops, struct device **dev, struct model **m,
                            struct engine_loaded *info, mb_error *err)
{
    *m = NULL;
    MB_TRY(open_device(opt, ops, dev, err));
    if (*ops != &ops_cpu) LOGI("engine", "computing on %s, as --device says", (*ops)->device_describe(*dev));
    info->usable_bytes = usable_on(*ops, *dev); /* while the weights do not take of it yet */
    struct model_options mo = model_options_of(opt, *ops, *dev);
    mb_status st = check_room(opt, *ops, *dev, &mo, err);
    if (st == MB_OK) st = model_open(m, opt->dir, &mo, err);
    if (st != MB_OK) {
        (*ops)->device_close(*dev);
        *dev = NULL;
        return st;
    }
    info->weight_bytes = model_weight_bytes(*m);
    info->scratch_bytes = model_scratch_bytes(*m);
    info->expert_bytes = model_expert_bytes(*m);
    snprintf(info->device, sizeof info->device, "%s", (*ops)->device_describe(*dev));
    fill_info(model_spec_get(*m), info);
    info->kv_mode = model_kv_mode(model_spec_get(*m));
    model_kv_count(model_spec_get(*m), info->n_layer_kv);
    say_formats(model_spec_get(*m));
    return MB_OK;
}

/* --expert-offload on a model without experts: nothing is made, the model loads as ever (CFG-120). */
static void check_offload(struct engine_load *opt, const struct model_spec *spec)
{
    bool any = false;
    if (!opt->expert_offload) return;
    for (int32_t i = 0; i < spec->n_layer; i++) any = any || spec->layers[i].mlp != MLP_GATED;
    if (!any) LOGW("engine", "--expert-offload: ignored, %s has no experts", opt->dir);
    opt->expert_offload = any;
}

/* GLM-5.2 plans before anything is loaded (MOD-038, MOD-039, CFG-057, CFG-094, CFG-102): the context that is asked for, an answer in
 * it, and the memory for both. */
static mb_status reserve(struct engine_load *opt, const struct model_spec *spec, int32_t *answer, mb_error *err)
{
    struct engine_loaded plan;
    int32_t n = spec->n_context;
    *answer = 0;
    if (opt->reserve_context <= 0 || strcmp(spec->arch_name, "glm_moe_dsa") != 0) return MB_OK;
    if (opt->n_context > 0 && opt->n_context < n) n = opt->n_context;
    if (opt->reserve_context < n) n = opt->reserve_context;
    int32_t want = opt->reserve_answer > 0 ? opt->reserve_answer : RESERVED_ANSWER;
    if (want >= n)
        return mb_fail_at(err, MB_INVALID, "context-length", "an answer of %d tokens (--max-tokens) does not fit a context of %d: raise "
                          "--context-length or lower --max-tokens", (int)want, (int)n);
    opt->n_context = n;
    MB_TRY(engine_load_estimate(opt, &plan, NULL, err));
    if (plan.max_context_in_pool < n)
        return mb_fail_at(err, MB_NO_MEMORY, "context-length", "%d tokens of context were to be reserved, there is memory for %d: lower "
                          "--context-length, or raise --memory-budget or --kv-budget", (int)n, (int)plan.max_context_in_pool);
    *answer = want;
    return MB_OK;
}

/* What the family alone decides, before anything is loaded. */
static mb_status adapt(struct engine_load *opt, int32_t *answer, mb_error *err)
{
    struct model_spec spec;
    *answer = 0;
    if (!opt->expert_offload && opt->reserve_context <= 0) return MB_OK;
    MB_TRY(model_config_read(&spec, opt->dir, err));
    check_offload(opt, &spec);
    mb_status st = reserve(opt, &spec, answer, err);
    model_spec_free(&spec);
    return st;
}

mb_status engine_load(struct engine **out, const struct engine_load *opt, struct engine_loaded *info, mb_error *err)
{
    const struct ops *ops;
    struct device *dev;
    struct model *m;
    struct stepper stepper;
    struct engine_load before = *opt;
    *out = NULL;
    memset(info, 0, sizeof *info);
    int32_t answer;
    MB_TRY(adapt(&before, &answer, err));
    info->reserved_answer = answer;
    MB_TRY(open_model(&before, &ops, &dev, &m, info, err));
    if (!before.memory_budget_bytes) before.memory_budget_bytes = info->usable_bytes;
    const struct plan *p = model_plan_get(m);
    mb_status st = plan_memory(&before, p->kinds, p->n_kinds, model_expert_slot_bytes(m), info, err);
    if (st == MB_OK && info->expert_bytes) st = ops->experts_reserve(dev, info->expert_cache_bytes, err);
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
    bare.expert_offload = false;
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
        info->expert_bytes = size->expert_bytes;
        info->kv_mode = size->kv_mode;
        memcpy(info->n_layer_kv, size->n_layer_kv, sizeof info->n_layer_kv);
        snprintf(info->device, sizeof info->device, "%s", ops->device_describe(dev));
        struct engine_load now = *opt;
        if (!now.memory_budget_bytes) now.memory_budget_bytes = usable_on(ops, dev);
        st = plan_memory(&now, size->kinds, size->n_kinds, size->expert_slot_bytes, info, err);
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
    bare.expert_offload = false;
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
