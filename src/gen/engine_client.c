/* engine_client.c: the engine in this process: open and close a gen_engine, and the client that host and api see. */
#include <string.h>

#include "base/clock.h"
#include "base/filemap.h"
#include "gen/gen_int.h"

#define RING_EVENTS 1024
#define PREPARE_QUEUE 64

/* "…/models--org--name/snapshots/<revision>" is "org/name" (API-006); else the directory's base name (Q66). */
static const char *id_of_dir(struct arena *a, const char *dir)
{
    const char *hub = strstr(dir, "/models--");
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') len--;
    if (hub && strstr(hub, "/snapshots/")) {
        const char *first = hub + 9, *end = strchr(first, '/');
        char *id = arena_strndup(a, first, (size_t)(end - first));
        char *sep = id ? strstr(id, "--") : NULL;
        if (sep) {
            *sep = '/';
            memmove(sep + 1, sep + 2, strlen(sep + 2) + 1);
        }
        return id;
    }
    size_t from = len;
    while (from > 0 && dir[from - 1] != '/') from--;
    return arena_strndup(a, dir + from, len - from);
}

static const char *copy_or_empty(struct arena *a, const char *s)
{
    return arena_strdup(a, s ? s : "");
}

/* Made for embeddings alone? Said by the files of sentence-transformers, else by the name, as with Qwen3-Embedding. */
static bool is_embedding_model(const char *dir, const char *id)
{
    static const char *const files[] = { "modules.json", "config_sentence_transformers.json", "1_Pooling/config.json" };
    char path[4096];
    mb_error err;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (path_join(path, sizeof path, dir, files[i], &err) == MB_OK && file_exists(path)) return true;
    return strcasestr(id, "embedding") != NULL;
}

static mb_status set_info(struct gen_engine *g, const struct gen_engine_options *opt, const struct gen_model_info *info,
                          mb_error *err)
{
    g->info = *info;
    if (diffusion_is(g)) g->info.batch = 1;
    g->info.id = opt->model_id ? arena_strdup(&g->arena, opt->model_id) : id_of_dir(&g->arena, opt->model_dir);
    g->info.path = copy_or_empty(&g->arena, opt->model_dir);
    g->info.kv_mode = copy_or_empty(&g->arena, info->kv_mode);
    g->info.device = copy_or_empty(&g->arena, info->device);
    g->info.tier = copy_or_empty(&g->arena, info->tier);
    g->default_adapter = copy_or_empty(&g->arena, opt->default_adapter);
    /* Where training puts adapters by default (TRN-037). */
    g->adapter_root = opt->cache_dir && opt->cache_dir[0] ? arena_printf(&g->arena, "%s/mlx-bun-finetunes", opt->cache_dir) : "";
    g->info.embeds_only = info->embeds && g->info.id && is_embedding_model(opt->model_dir, g->info.id);
    if (g->info.n_context <= 0) g->info.n_context = engine_info(g->engine)->n_context;
    if (g->info.created_unix_s == 0) g->info.created_unix_s = clock_unix_s();
    return g->arena.failed ? mb_fail(err, MB_NO_MEMORY, "no memory for the model's description") : MB_OK;
}

static int64_t at_least(int64_t v, int64_t unset, int64_t floor)
{
    return v == 0 ? unset : v < floor ? floor : v;
}

static void set_options(struct gen_engine *g, const struct gen_engine_options *opt)
{
    g->opt = *opt;
    g->opt.default_adapter = NULL;
    g->opt.model_dir = g->opt.model_id = g->opt.cache_dir = NULL;
    if (g->opt.n_prepare_workers <= 0) g->opt.n_prepare_workers = 2;
    if (g->opt.n_prepare_workers > GEN_MAX_WORKERS) g->opt.n_prepare_workers = GEN_MAX_WORKERS;
    if (g->opt.prepare_queue <= 0) g->opt.prepare_queue = PREPARE_QUEUE;
    if (g->opt.ring_events <= 0) g->opt.ring_events = RING_EVENTS;
    struct gen_fill_options *f = &g->opt.fill;
    f->max_span = at_least(f->max_span, 32, 2);
    f->anchor = at_least(f->anchor, 8, 2);
    f->candidates = at_least(f->candidates, 24, 1);
    f->index_max = at_least(f->index_max, 131072, 1024);
}

static void release(struct gen_engine *g)
{
    gen_renderer_close(g->text);
    grammar_vocab_close(g->vocab);
    pthread_mutex_destroy(&g->grammar_lock);
    arena_free(&g->arena);
    mb_free(g);
}

mb_status gen_engine_open(struct gen_engine **out, struct engine *engine, const struct gen_engine_options *opt,
                          const struct gen_model_info *info, mb_error *err)
{
    struct gen_engine *g = mb_calloc(1, sizeof *g);
    mb_status st;
    *out = NULL;
    if (!g) {
        engine_close(engine, 0);
        return mb_fail(err, MB_NO_MEMORY, "no memory for the generation stage");
    }
    g->engine = engine;
    pthread_mutex_init(&g->grammar_lock, NULL);
    arena_init(&g->arena, 1 << 20);
    set_options(g, opt);
    MB_TRY_GOTO(st, set_info(g, opt, info, err), failed);
    MB_TRY_GOTO(st, gen_renderer_open(&g->text, opt->model_dir, opt->cache_dir, opt->thinking, err), failed);
    g->info.has_template = g->text->templates.dflt != NULL;
    if (g->text->tags_named) g->info.reasoning = true;
    MB_TRY_GOTO(st, defaults_read(g, opt->model_dir, err), failed);
    MB_TRY_GOTO(st, workers_open(g, err), failed);
    *out = g;
    return MB_OK;
failed:
    engine_close(engine, 0);
    release(g);
    return st;
}

void gen_engine_close(struct gen_engine *g, int64_t drain_ms)
{
    if (!g) return;
    workers_close(g);
    engine_close(g->engine, drain_ms);
    release(g);
}

const struct tokenizer *gen_engine_tokenizer(const struct gen_engine *g)
{
    return g->text->tok;
}

/* --- the client --- */
static mb_status client_count(void *ctx, const struct gen_request *r, int32_t *n, mb_error *err)
{
    struct gen_prompt p;
    struct arena a;
    *n = 0;
    arena_init(&a, prepare_arena_limit(r));
    mb_status st = gen_render(ctx, r, &a, &p, err);
    if (st == MB_OK) *n = p.n_ids;
    arena_free(&a);
    return st;
}

static void client_stats(void *ctx, struct engine_stats *out)
{
    engine_stats_get(((struct gen_engine *)ctx)->engine, out);
}

static bool client_alive(void *ctx)
{
    return engine_alive(((struct gen_engine *)ctx)->engine);
}

static const struct gen_model_info *client_info(void *ctx)
{
    return &((struct gen_engine *)ctx)->info;
}

static const char *client_piece(void *ctx, int32_t id, size_t *len)
{
    return tokenizer_piece(((struct gen_engine *)ctx)->text->tok, id, len);
}

static mb_status client_tokenize(void *ctx, struct str text, bool special, struct arena *a, int32_t **ids, int32_t *n,
                                 mb_error *err)
{
    struct gen_engine *g = ctx;
    struct token_list list = { 0 };
    struct encode_opts opts = { .add_special_tokens = special };
    *ids = NULL;
    *n = 0;
    MB_TRY(tokenizer_encode(g->text->tok, a, text.ptr, text.len, &opts, &list, err));
    *ids = list.ids;
    *n = (int32_t)list.n;
    return MB_OK;
}

static mb_status client_detokenize(void *ctx, const int32_t *ids, int32_t n, bool skip_special, struct buf *out,
                                   mb_error *err)
{
    struct gen_engine *g = ctx;
    return tokenizer_decode(g->text->tok, ids, (size_t)n, skip_special, out, err);
}

struct engine_client gen_engine_client(struct gen_engine *g)
{
    return (struct engine_client){ .ctx = g, .start = stream_start, .count = client_count, .stats = client_stats,
                                   .alive = client_alive, .info = client_info, .piece = client_piece,
                                   .tokenize = client_tokenize, .detokenize = client_detokenize, .embed = client_embed,
                                   .adapter_mount = client_adapter_mount, .adapter_unmount = client_adapter_unmount,
                                   .adapter_list = client_adapter_list, .adapter_available = client_adapter_available };
}
