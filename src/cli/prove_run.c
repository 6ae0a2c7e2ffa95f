/* prove_run.c: one proof run: an engine set up in a certain way, strangers keeping it busy, the request, its tokens. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "cli/prove.h"

#define PROVE_SEED 20240229
#define TEXT_REPEATS 40

static const char text[] =
    "The lighthouse keeper wrote down the wind every hour: north-west 7, then 6, then nothing at all for 3 days.\n"
    "\"If it stays like this,\" she said, \"we shall have guests.\" def wind(hour): return LOG[hour % 24]\n"
    "Am n\xc3\xa4""chsten Morgen lag ein Schiff in der Bucht. \xe9\xa2\xa8\xe3\x81\xaf\xe6\xad\xa2\xe3\x82\x93\xe3\x81\xa0\xe3\x80\x82 "
    "{\"temperature\": 0.8, \"seed\": 17}\n";

/* --- the prompt --- */
mb_status prove_init(struct prove *p, const struct flags *f, const char *path, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    struct engine_load load;
    struct engine_loaded info;
    struct buf b;
    *p = (struct prove){ .flags = f, .path = path };
    MB_TRY(model_device_name(f, p->device, err));
    p->on_gpu = strncmp(p->device, "cuda", 4) == 0;
    p->max_strangers = p->on_gpu ? PROVE_STRANGERS_GPU : PROVE_STRANGERS;
    MB_TRY(model_options(f, &opt, &x, err));
    MB_TRY(mb_options_to_load(path, &opt, &load, err));
    MB_TRY(engine_load_estimate(&load, &info, NULL, err));
    p->n_context = info.n_context;
    buf_init(&b, 0);
    for (int i = 0; i < TEXT_REPEATS; i++) buf_append(&b, text, sizeof text - 1);
    mb_status st = buf_status(&b, "the prompt", err);
    if (st == MB_OK) st = mb_tokenize_dir(path, b.data, b.len, true, &p->ids, &p->n_ids, err);
    buf_free(&b);
    MB_TRY(st);
    for (int32_t i = 0; i < p->n_ids; i++) /* a tokenizer larger than the model's vocabulary */
        if (p->ids[i] >= info.n_vocab) p->ids[i] %= info.n_vocab;
    p->n_prompt = p->n_ids < PROVE_PROMPT ? p->n_ids : PROVE_PROMPT;
    if (p->n_prompt > p->n_context / 2) p->n_prompt = p->n_context / 2;
    return p->n_prompt > 0 ? MB_OK : mb_fail(err, MB_INVALID, "the model's context of %d tokens is too short", (int)p->n_context);
}

void prove_free(struct prove *p)
{
    mb_free(p->ids);
    p->ids = NULL;
}

/* --- the engine --- */
mb_status prove_open(const struct prove *p, const struct prove_setup *s, mb_engine **out, mb_error *err)
{
    mb_options opt;
    struct mb_open_extra x;
    *out = NULL;
    MB_TRY(model_options(p->flags, &opt, &x, err));
    opt.batch = p->max_strangers + 1;
    opt.prefill_chunk = s->prefill_chunk ? s->prefill_chunk : opt.prefill_chunk;
    if (s->n_threads) opt.n_threads = s->n_threads;
    if (s->cpu_level) opt.cpu_level = s->cpu_level;
    if (s->device) opt.device = s->device;
    opt.prompt_cache_bytes = s->prompt_cache ? (uint64_t)1 << 30 : UINT64_MAX;
    x.kv_budget_bytes = s->kv_budget_bytes;
    return mb_engine_open_extra(out, p->path, &opt, &x, err);
}

uint64_t prove_budget_for(const struct prove *p, int32_t n_tokens)
{
    mb_options opt;
    struct mb_open_extra x;
    struct engine_load load;
    struct engine_loaded info;
    mb_error err;
    uint64_t lo = 0, hi = (uint64_t)8 << 30;
    if (model_options(p->flags, &opt, &x, &err) != MB_OK || mb_options_to_load(p->path, &opt, &load, &err) != MB_OK) return 0;
    while (lo + 4096 < hi) {
        load.kv_budget_bytes = lo + (hi - lo) / 2;
        if (engine_load_estimate(&load, &info, NULL, &err) != MB_OK) return 0;
        if (info.max_context_in_pool >= n_tokens) hi = load.kv_budget_bytes;
        else lo = load.kv_budget_bytes;
    }
    return hi;
}

/* --- strangers --- */
struct strangers {
    struct gen_stream *stream[PROVE_STRANGERS_GPU];
    int32_t n;
};

static mb_status start_stranger(const struct prove *p, mb_engine *e, int32_t i, int32_t n_tokens, struct gen_stream **out,
                                mb_error *err)
{
    struct engine_client c = mb_engine_client(e);
    int32_t n = n_tokens ? p->n_prompt : 5 + 37 * (i % 16);
    if (n > p->n_ids / 2) n = p->n_ids / 2;
    if (n > p->n_context / 2) n = p->n_context / 2;
    if (n < 1) n = 1;
    int32_t room = p->n_context - n - 1;
    struct gen_request r = { .input = GEN_IDS, .ids = p->ids + (p->n_ids - n) * (i + 1) / (p->max_strangers + 1), .n_ids = n,
                             .n_choices = 1, .ignore_eos = true, .raw_split = true, .max_tokens = n_tokens ? n_tokens : room };
    if (r.max_tokens > room) r.max_tokens = room > 0 ? room : 1;
    r.sampling.temperature = (struct sampler_value){ .v = 0.25 * (i % PROVE_STRANGERS), .given = true };
    r.sampling.seed = (struct sampler_value){ .v = 1000 + i, .given = true };
    return c.start(c.ctx, &r, NULL, NULL, out, err);
}

/* Take what is there, so that nobody is parked. */
static void drain(struct strangers *s)
{
    struct gen_event ev;
    for (int32_t i = 0; i < s->n; i++)
        while (gen_next(s->stream[i], 0, &ev))
            if (ev.type == GEN_EV_DONE || ev.type == GEN_EV_ERROR) break;
}

/* Started, and each has drawn: from here on they share the batch with the request. Not so in a tiny pool, where they must
 * not have grown before the request comes: there the order of arrival is enough. */
static mb_status start_strangers(const struct prove *p, mb_engine *e, const struct prove_setup *setup, struct strangers *s,
                                 mb_error *err)
{
    struct gen_event ev;
    s->n = 0;
    for (int32_t i = 0; i < setup->n_strangers; i++) {
        MB_TRY(start_stranger(p, e, i, setup->stranger_tokens, &s->stream[i], err));
        s->n++;
    }
    for (int32_t i = 0; i < s->n && !setup->stranger_tokens; i++)
        while (gen_next(s->stream[i], 10000, &ev) && ev.type != GEN_EV_TEXT) {
            if (ev.type == GEN_EV_ERROR) return mb_fail(err, ev.u.error.status, "a stranger failed: %s", ev.u.error.text);
            if (ev.type == GEN_EV_DONE) break;
        }
    return MB_OK;
}

static void stop_strangers(struct strangers *s)
{
    for (int32_t i = 0; i < s->n; i++) gen_close(s->stream[i]);
    s->n = 0;
}

/* --- the request --- */
static uint64_t preempted_so_far(mb_engine *e)
{
    struct engine_client c = mb_engine_client(e);
    struct engine_stats stats;
    c.stats(c.ctx, &stats);
    return stats.preempted;
}

/* The request is the youngest, so what is preempted between its start and its end is the request. */
static mb_status take(mb_engine *e, struct gen_stream *stream, struct strangers *others, struct prove_token *out,
                      struct prove_result *r, mb_error *err)
{
    struct gen_event ev;
    int32_t got = 0, n = r->n_each;
    uint64_t before = UINT64_MAX;
    for (;;) {
        if (!gen_next(stream, others->n ? 5 : -1, &ev)) {
            drain(others);
            continue;
        }
        if (others->n) drain(others);
        if (ev.type == GEN_EV_START) {
            r->n_cached = ev.u.start.n_cached;
            before = preempted_so_far(e);
        }
        if (ev.type == GEN_EV_ERROR) return mb_fail(err, ev.u.error.status, "%s", ev.u.error.text ? ev.u.error.text : "failed");
        if (ev.type == GEN_EV_TOKEN && got < n) {
            float logprob = ev.u.token.logprob;
            out[got].id = ev.u.token.id;
            memcpy(&out[got].logprob_bits, &logprob, sizeof logprob);
            got++;
        }
        if (ev.type == GEN_EV_DONE) break;
    }
    if (before != UINT64_MAX) r->n_preempted += preempted_so_far(e) - before;
    return got == n ? MB_OK : mb_fail(err, MB_INTERNAL, "%d tokens came, wanted %d", (int)got, (int)n);
}

static mb_status draw(const struct prove *p, mb_engine *e, struct strangers *others, double temperature, struct prove_token *out,
                      struct prove_result *result, mb_error *err)
{
    struct engine_client c = mb_engine_client(e);
    struct gen_stream *stream = NULL;
    struct gen_request r = { .input = GEN_IDS, .ids = p->ids, .n_ids = p->n_prompt, .n_choices = 1, .max_tokens = result->n_each,
                             .ignore_eos = true, .tokens = true, .raw_split = true };
    r.sampling.temperature = (struct sampler_value){ .v = temperature, .given = true };
    r.sampling.seed = (struct sampler_value){ .v = PROVE_SEED, .given = true };
    r.sampling.top_p = r.sampling.top_k = r.sampling.min_p = (struct sampler_value){ .given = true };
    MB_TRY(c.start(c.ctx, &r, NULL, NULL, &stream, err));
    mb_status st = take(e, stream, others, out, result, err);
    gen_close(stream);
    return st;
}

mb_status prove_run(const struct prove *p, mb_engine *e, const struct prove_setup *s, int32_t n_each, struct prove_result *out,
                    mb_error *err)
{
    static const double temperatures[] = { 0, 0.8 };
    mb_status st = MB_OK;
    *out = (struct prove_result){ .n_each = n_each };
    out->token = mb_calloc(2 * (size_t)n_each, sizeof *out->token);
    if (!out->token) return mb_fail(err, MB_NO_MEMORY, "out of memory for %d tokens", (int)n_each);
    for (int i = 0; st == MB_OK && i < 2; i++) {
        struct strangers others = { .n = 0 };
        st = start_strangers(p, e, s, &others, err);
        if (st == MB_OK) st = draw(p, e, &others, temperatures[i], out->token + i * n_each, out, err);
        stop_strangers(&others);
    }
    if (st != MB_OK) prove_result_free(out);
    return st;
}

void prove_result_free(struct prove_result *r)
{
    mb_free(r->token);
    r->token = NULL;
}

uint64_t prove_digest(const struct prove_result *r)
{
    return XXH3_64bits(r->token, 2 * (size_t)r->n_each * sizeof *r->token);
}

bool prove_same(const struct prove_result *ref, const struct prove_result *got)
{
    size_t bytes = (size_t)got->n_each * sizeof *got->token;
    return got->n_each <= ref->n_each && memcmp(ref->token, got->token, bytes) == 0 &&
           memcmp(ref->token + ref->n_each, got->token + got->n_each, bytes) == 0;
}
