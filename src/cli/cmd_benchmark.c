/* cmd_benchmark.c: how fast is this model on this machine? Prompt and generation rates through the whole engine (scheduler,
 * sampling, delivery), one request alone and several together; what `make bench` measures beside llama.cpp.
 *
 * A cell is a way to run (tier, KV format, requests together). `--run speed` measures the one that the flags say, alone
 * and with --batch requests; `--run features` all cells in one go (CFG-206); `--run recipes` the ways to run that the reference
 * recommends, and mlx_lm.server's own (ENG-265..269, CFG-122); what of them this version or this machine cannot run is named, not
 * left out. Prompts are made-up ids, another one each time, so that nothing comes from the prompt cache; end tokens are ignored.
 * Each figure is the median of --repeat rounds.
 */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/token_rate.h"
#include "cli/bench_isolated.h"
#include "cli/fit.h"

#define ROUNDS_MAX 100

#define TOKENS 128 /* generated, when nobody says a number */

struct cell {
    const char *tier, *kv;
    int32_t batch;
    const char *recipe; /* its name, NULL: none */
    bool tight;         /* in no more memory than the requests need */
};
struct figures {
    double first_s, prefill_tok_s; /* first_s: until all requests have their first token */
    double decode_tok_s;           /* of all together (token_rate.h) */
};
struct bench {
    const struct flags *f;
    const char *path;
    int32_t n_prompt, n_tokens, n_rounds;
    uint32_t salt;      /* of the next prompt */
    struct buf rows, not_run; /* JSON */
    int32_t n_rows, n_not_run;
    char device[96];
    int32_t n_vocab;    /* of the model, once a cell has opened it */
    bool kv_config;     /* the last engine has what kv_config.json says */
};

/* One running request. */
struct lane {
    struct gen_stream *stream;
    int64_t *t_ns;      /* [n_cap] when each token came */
    int32_t n_drawn, n_cap;
    bool done;
};

/* --- one round --- */

static mb_status lane_event(struct lane *l, const struct gen_event *ev, mb_error *err)
{
    if (ev->type == GEN_EV_ERROR)
        return mb_fail_at(err, ev->u.error.status, ev->u.error.at, "%s", ev->u.error.text ? ev->u.error.text : "failed");
    if (ev->type == GEN_EV_TOKEN && l->n_drawn < l->n_cap) l->t_ns[l->n_drawn++] = clock_now_ns();
    if (ev->type == GEN_EV_DONE) l->done = true;
    return MB_OK;
}

static mb_status drain(struct lane *lanes, int32_t n, mb_error *err)
{
    for (int32_t n_done = 0; n_done < n;) {
        bool waited = false;
        n_done = 0;
        for (int32_t i = 0; i < n; i++) {
            struct gen_event ev;
            while (!lanes[i].done && gen_next(lanes[i].stream, waited ? 0 : 5, &ev)) {
                waited = true;
                MB_TRY(lane_event(&lanes[i], &ev, err));
            }
            waited = waited || !lanes[i].done;
            n_done += lanes[i].done;
        }
    }
    return MB_OK;
}

/* The prompt's ids, none of them the same as in another round. */
static void fill_prompt(struct bench *b, int32_t *ids, int32_t n_vocab)
{
    uint32_t x = 12345u + 977u * b->salt++;
    for (int32_t i = 0; i < b->n_prompt; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((uint64_t)x * (uint32_t)n_vocab >> 32);
    }
}

static mb_status start_lane(struct bench *b, mb_engine *e, struct lane *l, mb_error *err)
{
    struct engine_client c = mb_engine_client(e);
    int32_t *ids = mb_alloc((size_t)b->n_prompt * sizeof *ids);
    if (!ids) return mb_fail(err, MB_NO_MEMORY, "out of memory for a prompt of %d tokens", (int)b->n_prompt);
    fill_prompt(b, ids, mb_engine_loaded(e)->n_vocab);
    struct gen_request r = { .input = GEN_IDS, .ids = ids, .n_ids = b->n_prompt, .max_tokens = b->n_tokens, .n_choices = 1,
                             .ignore_eos = true, .raw_split = true, .tokens = true };
    r.sampling.temperature = (struct sampler_value){ .v = 0, .given = true };
    mb_status st = c.start(c.ctx, &r, NULL, NULL, &l->stream, err);
    mb_free(ids);
    return st;
}

static mb_status run_round(struct bench *b, mb_engine *e, int32_t n, struct figures *out, mb_error *err)
{
    struct lane *lanes = mb_calloc((size_t)n, sizeof *lanes);
    int64_t *times = mb_calloc((size_t)n * (size_t)b->n_tokens, sizeof *times);
    struct token_times *came = mb_calloc((size_t)n, sizeof *came);
    mb_status st = lanes && times && came ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory");
    int64_t t0 = clock_now_ns();
    for (int32_t i = 0; i < n && st == MB_OK; i++) {
        lanes[i].t_ns = times + (size_t)i * (size_t)b->n_tokens;
        lanes[i].n_cap = b->n_tokens;
        st = start_lane(b, e, &lanes[i], err);
    }
    if (st == MB_OK) st = drain(lanes, n, err);
    for (int32_t i = 0; i < n && st == MB_OK; i++) came[i] = (struct token_times){ lanes[i].t_ns, lanes[i].n_drawn };
    if (st == MB_OK) {
        struct token_rates rates;
        token_rates_of(came, n, t0, &rates);
        out->first_s = rates.first_s;
        out->prefill_tok_s = rates.first_s > 0 ? (double)n * b->n_prompt / rates.first_s : 0;
        out->decode_tok_s = rates.decode_tok_s;
    }
    for (int32_t i = 0; lanes && i < n; i++)
        if (lanes[i].stream) gen_close(lanes[i].stream);
    mb_free(lanes);
    mb_free(times);
    mb_free(came);
    return st;
}

/* --- a cell --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int32_t n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static mb_status measure(struct bench *b, mb_engine *e, int32_t n, struct figures *out, mb_error *err)
{
    double v[3][ROUNDS_MAX];
    struct figures r;
    MB_TRY(run_round(b, e, n, &r, err)); /* warms up: not counted */
    for (int32_t i = 0; i < b->n_rounds; i++) {
        MB_TRY(run_round(b, e, n, &r, err));
        v[0][i] = r.first_s;
        v[1][i] = r.prefill_tok_s;
        v[2][i] = r.decode_tok_s;
    }
    *out = (struct figures){ median(v[0], b->n_rounds), median(v[1], b->n_rounds), median(v[2], b->n_rounds) };
    return MB_OK;
}

/* What --kv-quant would say; c->kv NULL: as the tier does. */
static const char *kv_label(const struct bench *b, const struct cell *c)
{
    return c->kv ? c->kv : strcmp(c->tier, "f32") == 0 ? "f32" : b->kv_config ? "config" : "off";
}

static void add_row(struct bench *b, const struct cell *c, int32_t n, const struct figures *r, const struct isolated_figures *host)
{
    buf_printf(&b->rows, "%s{", b->n_rows++ ? "," : "");
    if (c->recipe) buf_printf(&b->rows, "\"recipe\":\"%s\",", c->recipe);
    buf_printf(&b->rows, "\"tier\":\"%s\",\"kv\":\"%s\",\"requests\":%d,\"prompt_tokens\":%d,\"tokens\":%d,\"first_token_s\":",
               c->tier, kv_label(b, c), (int)n, (int)b->n_prompt, (int)b->n_tokens);
    json_write_double(&b->rows, r->first_s);
    buf_append_str(&b->rows, ",\"prefill_tok_s\":");
    json_write_double(&b->rows, r->prefill_tok_s);
    buf_append_str(&b->rows, ",\"decode_tok_s\":");
    json_write_double(&b->rows, r->decode_tok_s);
    if (host) {
        buf_append_str(&b->rows, ",\"host_ms\":");
        json_write_double(&b->rows, host->host_ms);
        buf_append_str(&b->rows, ",\"host_ms_max\":");
        json_write_double(&b->rows, host->host_ms_max);
    }
    buf_append_char(&b->rows, '}');
    if (b->f->json.b) return;
    printf("  %-4s %-5s %3d  %10.1f tok/s  %8.3f s  %10.1f tok/s%s%s", c->tier, kv_label(b, c), (int)n, r->prefill_tok_s, r->first_s,
           r->decode_tok_s, c->recipe ? "  " : "", c->recipe ? c->recipe : "");
    if (host) printf(" (over HTTP; the host answers in %.1f ms, at most %.1f)", host->host_ms, host->host_ms_max);
    printf("\n");
    fflush(stdout);
}

/* Weights, scratch, and pages for all requests of the cell: what --memory-budget must be at least. */
static mb_status least_budget(const struct bench *b, const mb_options *opt, const struct mb_open_extra *x, uint64_t *out, mb_error *err)
{
    static struct fit_model m; /* large */
    struct engine_load load;
    MB_TRY(mb_extra_to_load(b->path, opt, x, &load, err));
    MB_TRY(fit_model_read(&m, &load, err));
    *out = fit_least_bytes(&m, b->n_prompt + b->n_tokens, opt->batch);
    return MB_OK;
}

static mb_status open_cell(const struct bench *b, const struct cell *c, mb_engine **out, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    MB_TRY(model_options(b->f, &opt, &x, err));
    opt.tier = c->tier;
    opt.kv = c->kv;
    opt.batch = c->batch;
    opt.prompt_cache_bytes = UINT64_MAX; /* off: every prompt is computed */
    if (c->tight && !b->f->memory_budget.given) MB_TRY(least_budget(b, &opt, &x, &opt.memory_budget_bytes, err));
    return mb_engine_open_extra(out, b->path, &opt, &x, err);
}

/* For `mlx-bun fit`: what one request alone reached. A cache that cannot be written is no failure of a measurement. */
static void keep_rate(const struct bench *b, const struct cell *c, const struct figures *r)
{
    static struct store s; /* large */
    mb_options opt;
    struct mb_open_extra x;
    struct engine_load load;
    mb_error err = { .text = "" };
    mb_status st = store_init(&s, b->f, &err);
    if (st == MB_OK) st = model_options(b->f, &opt, &x, &err);
    opt.tier = c->tier;
    opt.kv = c->kv;
    if (st == MB_OK) st = mb_extra_to_load(b->path, &opt, &x, &load, &err);
    if (st == MB_OK) st = fit_decode_keep(&s, &load, b->path, r->decode_tok_s, b->n_prompt + b->n_tokens / 2, &err);
    if (st != MB_OK) LOGW("benchmark", "the rate is not kept for `mlx-bun fit`: %s", err.text);
}

/* One request alone, then all of the batch together. */
static mb_status run_cell(struct bench *b, const struct cell *c, mb_error *err)
{
    mb_engine *e;
    struct figures r;
    MB_TRY(open_cell(b, c, &e, err));
    snprintf(b->device, sizeof b->device, "%s", mb_engine_loaded(e)->device);
    b->n_vocab = mb_engine_loaded(e)->n_vocab;
    b->kv_config = strncmp(mb_engine_loaded(e)->kv_mode, "mixed", 5) == 0;
    int32_t room = mb_engine_loaded(e)->max_context_in_pool, need = b->n_prompt + b->n_tokens;
    mb_status st = need <= room ? MB_OK
                                : mb_fail(err, MB_INVALID, "--prompt-tokens %d and --tokens %d are more than the %d tokens that "
                                          "one request can use here", (int)b->n_prompt, (int)b->n_tokens, (int)room);
    if (st == MB_OK) st = measure(b, e, 1, &r, err);
    if (st == MB_OK) add_row(b, c, 1, &r, NULL);
    bool on_gpu = strncmp(b->device, "cuda", 4) == 0; /* `fit` predicts for the CPU */
    if (st == MB_OK && r.decode_tok_s > 0 && !on_gpu) keep_rate(b, c, &r);
    if (st == MB_OK && c->batch > 1) st = measure(b, e, c->batch, &r, err);
    if (st == MB_OK && c->batch > 1) add_row(b, c, c->batch, &r, NULL);
    mb_engine_close(e);
    return st;
}

/* ENG-267: one request through a host and its engine. What the cell says of tier and KV format the engine has from the flags. */
static mb_status isolated_rounds(struct bench *b, const struct cell *c, struct isolated_bench *ib, int32_t *ids, mb_error *err)
{
    double v[3][ROUNDS_MAX];
    struct isolated_figures r, host = { .host_ms_max = 0 };
    for (int32_t i = -1; i < b->n_rounds; i++) { /* the first warms up: not counted */
        fill_prompt(b, ids, b->n_vocab);
        MB_TRY(isolated_bench_run(ib, ids, b->n_prompt, b->n_tokens, &r, err));
        if (i < 0) continue;
        v[0][i] = r.first_s;
        v[1][i] = r.decode_tok_s;
        v[2][i] = r.host_ms;
        if (r.host_ms_max > host.host_ms_max) host.host_ms_max = r.host_ms_max;
    }
    host.host_ms = median(v[2], b->n_rounds);
    struct figures f = { .first_s = median(v[0], b->n_rounds), .decode_tok_s = median(v[1], b->n_rounds) };
    f.prefill_tok_s = f.first_s > 0 ? r.n_prompt / f.first_s : 0;
    int32_t asked = b->n_prompt;
    b->n_prompt = r.n_prompt;
    add_row(b, c, 1, &f, &host);
    b->n_prompt = asked;
    return MB_OK;
}

static mb_status run_isolated(struct bench *b, const struct cell *c, mb_error *err)
{
    struct isolated_bench *ib = NULL;
    int32_t *ids = mb_alloc((size_t)b->n_prompt * sizeof *ids + 1);
    mb_status st = ids ? isolated_bench_open(&ib, b->f, b->path, err) : mb_fail(err, MB_NO_MEMORY, "out of memory for a prompt");
    if (st == MB_OK) st = isolated_rounds(b, c, ib, ids, err);
    isolated_bench_close(ib);
    mb_free(ids);
    return st;
}

/* --- the verb --- */

static void add_not_run(struct bench *b, const char *recipe, const char *kv, const char *why)
{
    buf_printf(&b->not_run, "%s{\"recipe\":\"%s\",", b->n_not_run++ ? "," : "", recipe);
    if (kv) buf_printf(&b->not_run, "\"kv\":\"%s\",", kv);
    buf_append_str(&b->not_run, "\"why\":");
    json_write_string(&b->not_run, why, strlen(why));
    buf_append_char(&b->not_run, '}');
    if (!b->f->json.b) printf("  not run: %s%s%s: %s\n", recipe, kv ? ", KV " : "", kv ? kv : "", why);
}

static mb_status run_features(struct bench *b, int32_t batch, mb_error *err)
{
    static const char *const tiers[] = { "l1", "l2", "f32" }, *const kvs[] = { "off", "f16", "f32", "8", "4" };
    for (size_t t = 0; t < 3; t++)
        for (size_t k = 0; k < sizeof kvs / sizeof kvs[0]; k++) {
            struct cell c = { tiers[t], kvs[k], batch, NULL, false };
            mb_status st = run_cell(b, &c, err);
            if (st == MB_UNSUPPORTED && k > 2) add_not_run(b, "features", kvs[k], err->text); /* no codes on this device */
            else if (st != MB_OK) return st;
        }
    return MB_OK;
}

/* What the reference's recipes come to here. NULL, 0: as the flags say. Prompts are all new, so that --ssd-cache has no part in any. */
static const struct recipe {
    const char *name, *tier, *kv;
    int32_t batch, n_tokens;
    bool tight;
    bool isolated; /* through serve --isolate, over HTTP */
} recipes[] = {
    { "single user", NULL, NULL, 1, 0, false, false },             /* ENG-265 */
    { "several clients", NULL, NULL, 4, 0, false, false },         /* ENG-266 */
    { "never-lagging interface", NULL, NULL, 1, 0, false, true },  /* ENG-267 */
    { "mlx-lm's arithmetic", "l1", NULL, 1, 0, false, false },     /* ENG-268 */
    { "optiq's arithmetic", "l2", NULL, 1, 0, false, false },
    { "tight memory", NULL, NULL, 1, 0, true, false },             /* ENG-269: as the flags say, then packed */
    { "tight memory", NULL, "8", 1, 0, true, false },
    { "tight memory", NULL, "4", 1, 0, true, false },
    { "tight memory", NULL, "config", 1, 0, true, false },
    { "tight memory", NULL, "turbo", 1, 0, true, false },
    { "mlx_lm.server's policy", "l1", NULL, 1, 512, false, false } /* CFG-122: greedy, one at a time, 512 tokens where nobody says a number */
};

static mb_status run_recipe(struct bench *b, const struct recipe *r, const char *tier, const char *kv, mb_status *failed,
                            mb_error *err)
{
    struct cell c = { r->tier ? r->tier : tier, r->kv ? r->kv : kv, r->batch, r->name, r->tight };
    mb_status st = r->isolated ? run_isolated(b, &c, err) : run_cell(b, &c, err);
    bool elsewhere = r->isolated && (st == MB_IO || st == MB_ENGINE_DEAD); /* a place without sockets, say */
    if (!elsewhere && st != MB_UNSUPPORTED && st != MB_NO_MEMORY && st != MB_INVALID && st != MB_CONTEXT_OVER_BUDGET && st != MB_NOT_FOUND)
        return st;
    add_not_run(b, r->name, r->kv, err->text); /* this version has no such format, or it does not fit here: the others may */
    *failed = st;
    return MB_OK;
}

static mb_status run_recipes(struct bench *b, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    int32_t n_tokens = b->n_tokens;
    mb_status failed = MB_OK;
    MB_TRY(model_options(b->f, &opt, &x, err));
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++) {
        const struct recipe *r = &recipes[i];
        b->n_tokens = r->n_tokens && !b->f->tokens.given ? r->n_tokens : n_tokens;
        MB_TRY(run_recipe(b, r, opt.tier, opt.kv, &failed, err));
    }
    b->n_tokens = n_tokens;
    return b->rows.len == 0 ? failed : MB_OK; /* none was measured: err has the last reason */
}

static mb_status run_speed(struct bench *b, int32_t batch, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    MB_TRY(model_options(b->f, &opt, &x, err));
    struct cell c = { opt.tier, opt.kv, batch, NULL, false };
    return run_cell(b, &c, err);
}

static mb_status print_json(const struct bench *b, mb_error *err)
{
    struct buf out;
    buf_init(&out, 0);
    buf_printf(&out, "{\"version\":\"%s\",\"model\":", mb_version());
    json_write_string(&out, b->path, strlen(b->path));
    buf_append_str(&out, ",\"device\":");
    json_write_string(&out, b->device, strlen(b->device));
    buf_printf(&out, ",\"rounds\":%d,\"rows\":[", (int)b->n_rounds);
    buf_append(&out, b->rows.data, b->rows.len);
    buf_append_char(&out, ']');
    if (b->n_not_run) {
        buf_append_str(&out, ",\"not_run\":[");
        buf_append(&out, b->not_run.data, b->not_run.len);
        buf_append_char(&out, ']');
    }
    buf_append_str(&out, "}\n");
    mb_status st = buf_status(&b->rows, "the result", err);
    if (st == MB_OK) st = buf_status(&b->not_run, "the result", err);
    if (st == MB_OK) st = buf_status(&out, "the result", err);
    if (st == MB_OK) fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
    return st;
}

mb_status cmd_benchmark(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char path[MODEL_PATH_MAX];
    struct bench b = { .f = f, .path = path, .n_prompt = (int32_t)f->prompt_tokens.i, .n_tokens = f->tokens.given ? (int32_t)f->tokens.i : TOKENS,
                       .n_rounds = (int32_t)f->repeat.i };
    bool features = strcmp(f->run.s, "features") == 0, by_recipe = strcmp(f->run.s, "recipes") == 0;
    (void)exit_status;
    MB_TRY(model_find(f, n_pos > 0 ? pos[0] : NULL, true, path, err));
    buf_init(&b.rows, 1 << 20);
    buf_init(&b.not_run, 1 << 20);
    if (!f->json.b)
        printf("%s\n  prompt %d tokens, then %d; median of %d\n  tier kv  requests    prompt          first token  generation\n",
               path, (int)b.n_prompt, (int)b.n_tokens, (int)b.n_rounds);
    int32_t batch = f->batch.given ? (int32_t)f->batch.i : features ? 8 : 1;
    mb_status st = features ? run_features(&b, batch, err) : by_recipe ? run_recipes(&b, err) : run_speed(&b, batch, err);
    if (st == MB_OK && f->json.b) st = print_json(&b, err);
    buf_free(&b.rows);
    buf_free(&b.not_run);
    return st;
}
