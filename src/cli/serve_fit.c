/* serve_fit.c: /fit of the running model. The plan is the one of `mlx-bun fit`, with what the engine decided at load as the memory
 * that may be used. The machine is measured when /fit is first asked for, nothing is kept and no request runs: not at the start, which
 * would take longer for it, and not beside others, which would spoil both. What requests that ran alone were decoded at is kept when the server ends, and shown before. */
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/fit.h"

#define STEPS_LEAST 64 /* fewer tell nothing */

struct serve_fit {
    struct store store;
    bool has_store;
    mb_options opt;
    struct mb_open_extra x;
    struct engine_load load;
    const char *path;
    mb_engine *engine;
    struct fit_here here;   /* what was known at the start */
    struct fit_here seen;   /* what is known, for /fit; under lock */
    pthread_mutex_t lock;   /* one measurement at a time */
};

static mb_status set_up(struct serve_fit *s, const struct flags *f, mb_error *err)
{
    MB_TRY(model_options(f, &s->opt, &s->x, err));
    MB_TRY(mb_extra_to_load(s->path, &s->opt, &s->x, &s->load, err));
    s->load.memory_budget_bytes = mb_engine_loaded(s->engine)->usable_bytes;
    s->has_store = store_init(&s->store, f, NULL) == MB_OK;
    if (s->has_store) MB_TRY(fit_here_get(&s->store, &s->load, FIT_KNOWN, &s->here, err));
    return MB_OK;
}

struct serve_fit *serve_fit_open(const struct flags *f, const char *path, mb_engine *e)
{
    mb_error err;
    struct serve_fit *s = mb_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->path = path;
    s->engine = e;
    pthread_mutex_init(&s->lock, NULL);
    if (set_up(s, f, &err) == MB_OK) return s;
    LOGW("serve", "no /fit: %s", err.text);
    pthread_mutex_destroy(&s->lock);
    mb_free(s);
    return NULL;
}

/* False: too little ran alone. */
static bool measured_now(struct serve_fit *s, struct engine_stats *e)
{
    struct engine_client c = mb_engine_client(s->engine);
    c.stats(c.ctx, e);
    return e->n_alone >= STEPS_LEAST && e->alone_tokens_per_s > 0;
}

void serve_fit_close(struct serve_fit *s)
{
    struct engine_stats e;
    mb_error err;
    if (!s) return;
    if (s->has_store && measured_now(s, &e) &&
        fit_decode_keep(&s->store, &s->load, s->path, e.alone_tokens_per_s, e.alone_context, &err) != MB_OK)
        LOGW("serve", "the decode rate is not kept: %s", err.text);
    pthread_mutex_destroy(&s->lock);
    mb_free(s);
}

/* What is known of the machine, measured when that is possible now. */
static mb_status look(struct serve_fit *s, const struct engine_stats *e, struct fit_here *out, mb_error *err)
{
    mb_status st = MB_OK;
    pthread_mutex_lock(&s->lock);
    if (s->seen.rates.read_bytes_s <= 0)
        st = fit_here_get(s->has_store ? &s->store : NULL, &s->load, e->active_rows > 0 ? FIT_KNOWN : FIT_WANTED, &s->seen, err);
    *out = s->seen;
    pthread_mutex_unlock(&s->lock);
    return st;
}

mb_status serve_fit_json(void *serve_fit, struct buf *out, mb_error *err)
{
    struct serve_fit *s = serve_fit;
    struct engine_stats e;
    struct fit_here here;
    struct fit_view *v = mb_calloc(1, sizeof *v);
    if (!v) return mb_fail(err, MB_NO_MEMORY, "no memory for the report");
    bool measured = measured_now(s, &e);
    mb_status st = look(s, &e, &here, err);
    if (st == MB_OK) st = fit_view_of(s->has_store ? &s->store : NULL, &s->load, s->path, 0, &here, v, err);
    if (st == MB_OK && measured)
        v->measured = (struct decode_measure){ .tokens_per_s = e.alone_tokens_per_s, .n_context = e.alone_context,
                                               .at_ms = clock_unix_ms() };
    if (st == MB_OK) fit_view_json(v, true, "", out);
    mb_free(v);
    return st == MB_OK ? buf_status(out, "the report", err) : st;
}

const struct ops_rates *serve_fit_rates(struct serve_fit *s)
{
    return s && s->here.rates.read_bytes_s > 0 ? &s->here.rates : NULL;
}

void serve_fit_line(struct serve_fit *s, char out[128])
{
    struct fit_view *v = serve_fit_rates(s) ? mb_calloc(1, sizeof *v) : NULL;
    out[0] = '\0';
    if (v && fit_view_make(&s->store, &s->load, s->path, 0, FIT_KNOWN, v, NULL) == MB_OK && v->typical_tps > 0) {
        int n = snprintf(out, 128, "about %.3g tokens/s behind %d tokens", v->typical_tps, (int)v->typical_context);
        if (v->measured.tokens_per_s > 0) snprintf(out + n, 128 - (size_t)n, "; measured %.3g", v->measured.tokens_per_s);
    }
    mb_free(v);
}
