/* mlxbun.c: the public C API over the waist (gen/gen.h). Thin: each call checks its arguments, fills a plain struct of the
 * inside, and hands results over. An mb_engine is a gen_engine and what was decided at load. mlxbun_generate.c has requests and
 * events, mlxbun_tools.c what the command line needs besides.
 */
#include <stdio.h>
#include <string.h>

#include "base/errors.h"
#include "base/filemap.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "convert/convert.h"
#include "mlxbun_int.h"
#include "tokenizer/tokenizer.h"

#define DEFAULT_BATCH 8
#define DEFAULT_PROMPT_CACHE ((uint64_t)8 << 30)

const char *mb_version(void) { return MB_VERSION; }
const char *mb_status_name(mb_status s) { return error_row_get(s)->name; }
/* mb_free is base/mem.h's: both names are one function. */

static void (*user_sink)(void *ctx, int level, const char *area, const char *text);

static void forward_log(void *ctx, enum log_level level, const char *area, const char *text)
{
    user_sink(ctx, (int)level, area, text);
}

void mb_set_log(int level, void (*sink)(void *ctx, int level, const char *area, const char *text), void *ctx)
{
    log_set_level(level < 0 ? LOG_ERROR : level > 3 ? LOG_DEBUG : (enum log_level)level);
    user_sink = sink;
    log_set_sink(sink ? forward_log : NULL, ctx);
}

static const char *const TIERS[] = { [TIER_L1] = "l1", [TIER_L2] = "l2", [TIER_F32] = "f32" };

const char *mb_tier_name(enum fidelity_tier tier)
{
    return TIERS[tier];
}

mb_status mb_tier_parse(const char *text, enum fidelity_tier *out, mb_error *err)
{
    *out = TIER_L1;
    for (int i = 0; text && i < 3; i++)
        if (strcmp(text, TIERS[i]) == 0) {
            *out = (enum fidelity_tier)i;
            return MB_OK;
        }
    return text ? mb_fail_at(err, MB_INVALID, "tier", "tier %.32s is unknown; use l1, l2 or f32", text) : MB_OK;
}

mb_status mb_kv_parse(const char *text, int *out, mb_error *err)
{
    static const struct { const char *name; int format; } names[] = {
        { "off", KV_OF_FAMILY }, { "f16", KV_F16 }, { "bf16", KV_BF16 }, { "f32", KV_F32 }, { "8", KV_Q8 }, { "4", KV_Q4 },
        { "config", KV_OF_CONFIG },
    };
    *out = KV_OF_TIER;
    for (size_t i = 0; text && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i].name) == 0) {
            *out = names[i].format;
            return MB_OK;
        }
    return text ? mb_fail_at(err, MB_UNSUPPORTED, "kv-quant", "KV format %.32s is not in this version; use off, 8, 4, config, "
                             "f16, bf16 or f32", text) : MB_OK;
}

mb_status mb_options_to_load(const char *path, const mb_options *opt, struct engine_load *out, mb_error *err)
{
    static const mb_options defaults = { .size = sizeof defaults };
    memset(out, 0, sizeof *out);
    if (!path) return mb_fail_at(err, MB_INVALID, "path", "the model directory is NULL");
    if (!opt) opt = &defaults;
    if (opt->size != sizeof *opt)
        return mb_fail_at(err, MB_INVALID, "size", "mb_options.size is %zu, this library has %zu: set it to sizeof(mb_options)",
                          opt->size, sizeof *opt);
    MB_TRY(mb_tier_parse(opt->tier, &out->tier, err));
    MB_TRY(mb_kv_parse(opt->kv, &out->kv_format, err));
    if (opt->n_threads < 0 || opt->n_threads > 1024 || opt->batch < 0 || opt->batch > 1024 || opt->prefill_chunk < 0 ||
        opt->n_context < 0)
        return mb_fail(err, MB_INVALID, "threads and batch must be from 0 to 1024, prefill_chunk and n_context not negative");
    out->dir = path;
    out->device = opt->device;
    out->cpu_level = opt->cpu_level;
    out->n_threads = opt->n_threads;
    out->n_context = opt->n_context;
    out->memory_budget_bytes = opt->memory_budget_bytes;
    out->engine.batch = opt->batch ? opt->batch : DEFAULT_BATCH;
    out->engine.queue_max = 64;
    out->engine.prefill_chunk = opt->prefill_chunk ? opt->prefill_chunk : 2048;
    out->engine.prefill_share = 3;
    out->engine.client_timeout_ms = 60000;
    out->engine.prompt_cache_bytes = opt->prompt_cache_bytes == UINT64_MAX ? 0
                                     : opt->prompt_cache_bytes ? opt->prompt_cache_bytes : DEFAULT_PROMPT_CACHE;
    out->progress = opt->progress;
    out->progress_ctx = opt->progress_ctx;
    return MB_OK;
}

/* --adapter: PATH, whose last part is the id, or ID=PATH; id receives it. A bad one fails the start (CFG-083). */
static mb_status mount_default(struct engine *engine, const char *spec, char id[ENGINE_ADAPTER_ID_BYTES], mb_error *err)
{
    struct engine_adapter_entry entry;
    char path[sizeof entry.path];
    const char *eq = dir_exists(spec) ? NULL : strchr(spec, '=');
    if (strlen(spec) >= sizeof path) return mb_fail_at(err, MB_INVALID, "adapter", "the adapter's path is too long");
    strcpy(path, eq ? eq + 1 : spec);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
    const char *slash = strrchr(path, '/'), *name = eq ? spec : slash ? slash + 1 : path;
    snprintf(id, ENGINE_ADAPTER_ID_BYTES, "%.*s", eq ? (int)(eq - spec) : ENGINE_ADAPTER_ID_BYTES - 1, name);
    MB_TRY(gen_adapter_id_check(id, err));
    return engine_adapter_mount(engine, id, path, &entry, NULL, err);
}

static mb_status open_gen(mb_engine *e, struct engine *engine, const char *path, const struct engine_load *load,
                          const struct mb_open_extra *x, mb_error *err)
{
    struct gen_engine_options opt = { .model_dir = path, .model_id = x ? x->model_id : NULL,
                                      .max_tokens = x ? x->max_tokens : -1, .thinking = x ? x->thinking : GIVEN_NONE,
                                      .ring_events = x ? x->ring_events : 0, .cache_dir = x ? x->cache_dir : NULL };
    struct gen_model_info info = { .path = path, .n_context = e->loaded.n_context, .kv_mode = e->loaded.kv_mode ? e->loaded.kv_mode : "bf16",
                                   .n_layer_full = e->loaded.n_layer_full, .n_layer_window = e->loaded.n_layer_window,
                                   .device = e->loaded.device, .tier = mb_tier_name(load->tier),
                                   .weight_bytes = e->loaded.weight_bytes, .pool_bytes = e->loaded.pool_bytes,
                                   .expert_cache_bytes = e->loaded.expert_cache_bytes,
                                   .batch = load->engine.batch, .embeds = e->loaded.embeds,
                                   .reserved_context = e->loaded.reserved_answer > 0 ? e->loaded.n_context : 0 };
    char adapter[ENGINE_ADAPTER_ID_BYTES];
    if (x && x->adapter) {
        mb_status st = mount_default(engine, x->adapter, adapter, err);
        if (st != MB_OK) engine_close(engine, 0);
        MB_TRY(st);
        opt.default_adapter = adapter;
    }
    for (int i = 0, n = 0; i < KV_FORMAT_COUNT; i++)
        if (e->loaded.n_layer_kv[i] > 0) info.kv_layers[n++] = (struct gen_kv_layers){ kv_format_name(i), e->loaded.n_layer_kv[i] };
    if (e->loaded.reserved_answer > 0) opt.max_tokens = e->loaded.reserved_answer;
    if (x) opt.server = x->server;
    if (x) opt.hlg = x->hlg;
    if (x) opt.no_grammar = x->no_grammar;
    if (x) opt.grammar_jump = x->grammar_jump;
    if (x) opt.fill = x->fill;
    return gen_engine_open(&e->gen, engine, &opt, &info, err);
}

mb_status mb_extra_to_load(const char *path, const mb_options *opt, const struct mb_open_extra *x, struct engine_load *out,
                           mb_error *err)
{
    MB_TRY(mb_options_to_load(path, opt, out, err));
    if (!x) return MB_OK;
    out->kv_budget_bytes = x->kv_budget_bytes;
    if (x->packed_cache && x->cache_dir[0]) out->packed_dir = x->cache_dir;
    out->expert_offload = x->expert_offload;
    if (x->expert_dir[0]) out->expert_dir = x->expert_dir;
    out->expert_cache_bytes = x->expert_cache_bytes;
    out->max_lora_rank = x->max_lora_rank;
    out->reserve_context = x->reserve_context;
    out->reserve_answer = x->max_tokens < 0 ? 0 : x->max_tokens < INT32_MAX ? (int32_t)x->max_tokens : INT32_MAX;
    if (x->client_timeout_ms > 0) out->engine.client_timeout_ms = x->client_timeout_ms;
    return MB_OK;
}

mb_status mb_engine_open_extra(mb_engine **out, const char *path, const mb_options *opt, const struct mb_open_extra *x,
                               mb_error *err)
{
    struct engine_load load;
    struct engine *engine = NULL;
    if (!out) return mb_fail(err, MB_INVALID, "out is NULL");
    *out = NULL;
    MB_TRY(mb_extra_to_load(path, opt, x, &load, err));
    mb_engine *e = mb_calloc(1, sizeof *e);
    if (!e) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    mb_status st = engine_load(&engine, &load, &e->loaded, err);
    if (st == MB_OK) st = open_gen(e, engine, path, &load, x, err);
    if (st != MB_OK) {
        mb_free(e);
        return st;
    }
    *out = e;
    return MB_OK;
}

mb_status mb_engine_open(mb_engine **out, const char *path, const mb_options *opt, mb_error *err)
{
    return mb_engine_open_extra(out, path, opt, NULL, err);
}

void mb_engine_close(mb_engine *e)
{
    if (!e) return;
    gen_engine_close(e->gen, 0);
    mb_free(e->script);
    mb_free(e);
}

#ifdef MB_FAULTS
static mb_status open_script(mb_engine *e, struct engine **engine, const char *model_dir, const struct mb_script *script,
                             mb_error *err)
{
    struct tokenizer *tok;
    struct stepper stepper;
    struct engine_loaded *l = &e->loaded;
    MB_TRY(tokenizer_open(&tok, model_dir, err));
    l->n_vocab = tokenizer_n_vocab(tok);
    int32_t end_id = tokenizer_eos_id(tok);
    tokenizer_close(tok);
    l->n_context = l->max_context_in_pool = script->n_context ? script->n_context : 8192;
    l->n_layer_full = 1;
    snprintf(l->device, sizeof l->device, "scripted");
    struct scripted_options so = { .n_vocab = l->n_vocab, .n_context = l->n_context, .m_max = 2048,
                                   .n_rows_max = script->batch ? script->batch : DEFAULT_BATCH, .script = e->script,
                                   .n_script = script->n, .end_id = end_id >= 0 ? end_id : l->n_vocab - 1,
                                   .step_delay_ms = script->step_delay_ms,
                                   .prefill_delay_ms_per_1k = script->prefill_delay_ms_per_1k };
    struct engine_options eo = { .batch = so.n_rows_max, .queue_max = 64, .prefill_chunk = 2048, .prefill_share = 3,
                                 .client_timeout_ms = 60000 };
    MB_TRY(stepper_scripted(&stepper, &so, err));
    return engine_open(engine, &stepper, &eo, err);
}

mb_status mb_engine_open_scripted(mb_engine **out, const char *model_dir, const struct mb_script *script,
                                  const struct mb_open_extra *x, mb_error *err)
{
    struct engine_load load = { .dir = model_dir };
    struct engine *engine = NULL;
    *out = NULL;
    mb_engine *e = mb_calloc(1, sizeof *e);
    if (e) e->script = mb_alloc((size_t)script->n * sizeof *e->script + 1);
    mb_status st = e && e->script ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory");
    if (st == MB_OK && script->n) memcpy(e->script, script->ids, (size_t)script->n * sizeof *e->script);
    if (st == MB_OK) st = open_script(e, &engine, model_dir, script, err);
    load.engine.batch = script->batch ? script->batch : DEFAULT_BATCH;
    if (st == MB_OK) st = open_gen(e, engine, model_dir, &load, x, err);
    if (st != MB_OK) {
        if (e) mb_free(e->script);
        mb_free(e);
        return st;
    }
    *out = e;
    return MB_OK;
}
#endif

struct engine_client mb_engine_client(mb_engine *e) { return gen_engine_client(e->gen); }
const struct engine_loaded *mb_engine_loaded(const mb_engine *e) { return &e->loaded; }

static mb_status copy_ids(const int32_t *ids, size_t n, int32_t **out, int32_t *n_out, mb_error *err)
{
    *out = mb_alloc(n * sizeof **out);
    if (!*out) return mb_fail(err, MB_NO_MEMORY, "out of memory for %zu ids", n);
    if (n) memcpy(*out, ids, n * sizeof **out);
    *n_out = (int32_t)n;
    return MB_OK;
}

mb_status mb_tokenize(mb_engine *e, const char *text, size_t len, bool special, int32_t **ids, int32_t *n, mb_error *err)
{
    struct arena a;
    struct token_list list;
    struct encode_opts opt = { .add_special_tokens = special };
    if (!ids || !n) return mb_null_error(ids ? "n" : "ids", err);
    *ids = NULL;
    *n = 0;
    if (!e || (!text && len > 0)) return mb_null_error(e ? "text" : "e", err);
    arena_init(&a, 0);
    mb_status st = tokenizer_encode(gen_engine_tokenizer(e->gen), &a, text, len, &opt, &list, err);
    if (st == MB_OK) st = copy_ids(list.ids, list.n, ids, n, err);
    arena_free(&a);
    return st;
}

mb_status mb_detokenize(mb_engine *e, const int32_t *ids, int32_t n, bool skip_special, char **text, size_t *len,
                        mb_error *err)
{
    struct buf b;
    if (!text || !len) return mb_null_error(text ? "len" : "text", err);
    *text = NULL;
    *len = 0;
    if (!e || (!ids && n > 0)) return mb_null_error(e ? "ids" : "e", err);
    if (n < 0) return mb_fail_at(err, MB_INVALID, "n", "n is negative");
    buf_init(&b, 0);
    mb_status st = tokenizer_decode(gen_engine_tokenizer(e->gen), ids, (size_t)n, skip_special, &b, err);
    buf_append(&b, "", 0);
    if (st == MB_OK) st = buf_status(&b, "decoded text", err);
    if (st == MB_OK) *text = buf_take(&b, len);
    buf_free(&b);
    if (st == MB_OK && !*text) {
        *text = mb_strdup("");
        if (!*text) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    }
    return st;
}

mb_status mb_render(mb_engine *e, const mb_request *r, char **text, size_t *len, int32_t **ids, int32_t *n, mb_error *err)
{
    struct gen_request req;
    struct gen_prompt prompt;
    struct arena a;
    if (text) *text = NULL;
    if (len) *len = 0;
    if (ids) *ids = NULL;
    if (n) *n = 0;
    if (!e) return mb_null_error("e", err);
    MB_TRY(mb_request_to_gen(r, &req, err));
    arena_init(&a, 0);
    mb_status st = gen_render(e->gen, &req, &a, &prompt, err);
    if (st == MB_OK && text) {
        *text = mb_strndup(prompt.text ? prompt.text : "", prompt.len);
        if (!*text) st = mb_fail(err, MB_NO_MEMORY, "out of memory");
        if (len) *len = prompt.len;
    }
    if (st == MB_OK && ids && n) st = copy_ids(prompt.ids, (size_t)prompt.n_ids, ids, n, err);
    arena_free(&a);
    return st;
}

mb_status mb_stats_get(mb_engine *e, mb_stats *out, mb_error *err)
{
    struct engine_stats s;
    if (!out || out->size != sizeof *out)
        return mb_fail_at(err, MB_INVALID, "size", "mb_stats.size must be sizeof(mb_stats) = %zu", sizeof *out);
    if (!e) return mb_null_error("e", err);
    struct engine_client c = gen_engine_client(e->gen);
    c.stats(c.ctx, &s);
    *out = (mb_stats){
        .size = sizeof *out, .weight_bytes = e->loaded.weight_bytes, .pool_bytes = s.pool_bytes,
        .pages_held_bytes = s.pages_held_bytes, .pages_cached_bytes = s.pages_cached_bytes,
        .pages_free_bytes = s.pages_free_bytes, .cache_entries = (uint64_t)s.cache_entries, .cache_hits = s.cache_hits,
        .cache_misses = s.cache_misses, .requests_finished = s.finished, .requests_cancelled = s.cancelled,
        .requests_failed = s.failed, .tokens_decoded = s.tokens_decoded, .tokens_prefilled = s.tokens_prefilled,
        .tokens_cached = s.tokens_cached, .active_rows = s.active_rows, .pending_rows = s.pending_rows, .batch = s.batch,
        .n_context = e->loaded.n_context, .decode_tokens_per_s = s.decode_tokens_per_s,
    };
    return MB_OK;
}

struct fraction_sink {
    void (*progress)(void *ctx, double fraction);
    void *ctx;
};

static bool report_fraction(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    struct fraction_sink *s = ctx;
    s->progress(s->ctx, total_bytes ? (double)done_bytes / (double)total_bytes : 1);
    return true;
}

mb_status mb_convert(const char *gguf_path, const char *out_dir, void (*progress)(void *ctx, double fraction), void *ctx,
                     mb_error *err)
{
    struct fraction_sink sink = { progress, ctx };
    struct convert_opts opt = { .progress = progress ? report_fraction : NULL, .progress_ctx = &sink };
    if (!gguf_path || !out_dir) return mb_fail(err, MB_INVALID, "a path is NULL");
    return convert_gguf(gguf_path, out_dir, &opt, err);
}
