/* embed.c: texts or ids to embeddings: tokenise, check lengths, run as jobs beside the batch, pool, normalise.
 *
 * The vector of an input is the final norm's output at its last token, scaled to unit length (MOD-044); `dimensions` keeps
 * the first so many and scales those (B-091). A text is tokenised with what the tokenizer puts around it; models made for
 * embeddings end with <|endoftext|> even where an older tokenizer.json does not add it. Ids are taken as they come.
 * Runs on the caller's thread and waits; a handful of inputs are in the engine at a time, and order never matters: each
 * vector is a function of its input alone. Sums for the length are in double, in index order.
 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "gen/gen_int.h"

enum { WINDOW = 2 * ENGINE_EMBED_ROWS };
static const char END_PIECE[] = "<|endoftext|>";

/* One input on its way. */
struct item {
    struct engine_job job;
    struct embed_run *run;
    uint64_t id;
};

struct embed_run {
    struct gen_engine *g;
    const struct gen_embed_request *r;
    struct arena arena;
    struct item *items;            /* [n] */
    const int32_t *tail;           /* ids that the tokenizer puts behind a text */
    int32_t n_tail;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t n_running, n_started;
    int32_t i_failed;              /* -1: none */
    mb_status status;
    char text[200];
};

/* --- ids --- */

static mb_status encode(struct embed_run *u, const char *text, size_t len, bool special, struct token_list *out, mb_error *err)
{
    struct encode_opts opts = { .add_special_tokens = special };
    memset(out, 0, sizeof *out);
    return tokenizer_encode(u->g->text->tok, &u->arena, text, len, &opts, out, err);
}

/* What stands behind a text: what the tokenizer's template adds to an empty one, else the end of an embedding model. */
static mb_status find_tail(struct embed_run *u, mb_error *err)
{
    struct token_list none;
    MB_TRY(encode(u, "", 0, true, &none, err));
    u->tail = none.ids;
    u->n_tail = (int32_t)none.n;
    int32_t end = tokenizer_id(u->g->text->tok, END_PIECE, sizeof END_PIECE - 1);
    if (u->n_tail > 0 || !u->g->info.embeds_only || end < 0) return MB_OK;
    int32_t *own = arena_alloc_array(&u->arena, 1, sizeof *own);
    if (!own) return mb_fail(err, MB_NO_MEMORY, "no memory for the inputs");
    own[0] = end;
    u->tail = own;
    u->n_tail = 1;
    return MB_OK;
}

static mb_status ids_of_text(struct embed_run *u, const struct gen_embed_input *in, const int32_t **ids, int32_t *n, mb_error *err)
{
    struct token_list list;
    struct buf b;
    buf_init(&b, 0);
    if (u->r->instruction.ptr) {
        buf_append_str(&b, "Instruct: ");
        buf_append(&b, u->r->instruction.ptr, u->r->instruction.len);
        buf_append_str(&b, "\nQuery:");
    }
    buf_append(&b, in->text.ptr, in->text.len);
    mb_status st = buf_status(&b, "input", err);
    if (st == MB_OK) st = encode(u, b.data ? b.data : "", b.len, false, &list, err);
    buf_free(&b);
    MB_TRY(st);
    int32_t *all = arena_alloc_array(&u->arena, list.n + (size_t)u->n_tail + 1, sizeof *all);
    if (!all) return mb_fail(err, MB_NO_MEMORY, "no memory for the inputs");
    if (list.n) memcpy(all, list.ids, list.n * sizeof *all);
    if (u->n_tail) memcpy(all + list.n, u->tail, (size_t)u->n_tail * sizeof *all);
    *ids = all;
    *n = (int32_t)list.n + u->n_tail;
    return MB_OK;
}

/* Too long: refused by name, or cut in front of what stands behind the text. */
static mb_status fit(struct embed_run *u, int32_t i, const int32_t **ids, int32_t *n, int64_t *n_cut, mb_error *err)
{
    int32_t limit = u->g->info.n_context, n_tail = u->r->inputs[i].ids ? 0 : u->n_tail;
    if (*n <= limit) return MB_OK;
    if (!u->r->truncate)
        return mb_fail_at(err, MB_CONTEXT_LENGTH, "input", "input[%d] has %d tokens, this model takes at most %d; shorten it, or "
                          "set truncate to true", (int)i, (int)*n, (int)limit);
    int32_t *cut = arena_alloc_array(&u->arena, (size_t)limit, sizeof *cut);
    if (!cut) return mb_fail(err, MB_NO_MEMORY, "no memory for the inputs");
    memcpy(cut, *ids, (size_t)(limit - n_tail) * sizeof *cut);
    if (n_tail) memcpy(cut + limit - n_tail, u->tail, (size_t)n_tail * sizeof *cut);
    *n_cut += *n - limit;
    *ids = cut;
    *n = limit;
    return MB_OK;
}

static mb_status check_ids(int32_t i, const int32_t *ids, int32_t n, int32_t n_vocab, mb_error *err)
{
    if (n < 1) return mb_fail_at(err, MB_INVALID, "input", "input[%d] is empty: it has no tokens", (int)i);
    for (int32_t k = 0; k < n; k++)
        if (ids[k] < 0 || ids[k] >= n_vocab)
            return mb_fail_at(err, MB_INVALID, "input", "input[%d] holds token %d; the vocabulary has ids 0 to %d", (int)i,
                              (int)ids[k], (int)n_vocab - 1);
    return MB_OK;
}

static mb_status prepare(struct embed_run *u, struct gen_embeddings *out, mb_error *err)
{
    int32_t n_vocab = engine_info(u->g->engine)->n_vocab;
    MB_TRY(find_tail(u, err));
    for (int32_t i = 0; i < u->r->n_inputs; i++) {
        const struct gen_embed_input *in = &u->r->inputs[i];
        struct engine_job *job = &u->items[i].job;
        job->ids = in->ids;
        job->n_ids = in->n_ids;
        if (!in->ids) MB_TRY(ids_of_text(u, in, &job->ids, &job->n_ids, err));
        MB_TRY(fit(u, i, &job->ids, &job->n_ids, &out->n_cut, err));
        MB_TRY(check_ids(i, job->ids, job->n_ids, n_vocab, err));
        out->n_tokens += job->n_ids;
    }
    return MB_OK;
}

/* --- running (callbacks on the engine's thread) --- */

static void on_end(void *ctx, int32_t i_choice, enum end_reason why, mb_status status, const char *text)
{
    struct item *t = ctx;
    struct embed_run *u = t->run;
    (void)i_choice;
    if (why == END_LENGTH) return;
    pthread_mutex_lock(&u->lock);
    if (u->i_failed < 0) {
        u->i_failed = (int32_t)(t - u->items);
        u->status = why == END_CANCELLED ? MB_CANCELLED : status;
        snprintf(u->text, sizeof u->text, "%s", text ? text : "the embedding failed");
    }
    pthread_mutex_unlock(&u->lock);
}

static void on_done(void *ctx)
{
    struct embed_run *u = ((struct item *)ctx)->run;
    pthread_mutex_lock(&u->lock);
    u->n_running--;
    pthread_cond_signal(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

static void fill_job(struct embed_run *u, int32_t i, const struct adapter_pin *pin, float *hidden)
{
    struct item *t = &u->items[i];
    t->run = u;
    t->job.method = JOB_EMBED;
    t->job.n_choices = 1;
    t->job.hidden = hidden;
    t->job.no_cache = true;
    t->job.adapters = pin->handles;
    t->job.n_adapters = pin->n;
    t->job.t_received_ns = clock_now_ns();
    t->job.filter = (struct job_filter){ .ctx = t, .on_end = on_end, .on_done = on_done };
}

/* lock is held; gone is asked now and then. */
static void wait_for_room(struct embed_run *u, int32_t most)
{
    struct timespec ts;
    while (u->n_running > most) {
        clock_gettime(CLOCK_MONOTONIC, &ts);
        ts.tv_nsec += 50000000;
        if (ts.tv_nsec >= 1000000000) ts.tv_sec++, ts.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&u->changed, &u->lock, &ts);
        if (u->i_failed >= 0 || !u->r->gone || !u->r->gone(u->r->gone_ctx)) continue;
        u->i_failed = 0;
        u->status = MB_CANCELLED;
        strcpy(u->text, "the client closed the connection");
        return;
    }
}

static void cancel_all(struct embed_run *u)
{
    for (int32_t i = 0; i < u->n_started; i++) engine_cancel(u->g->engine, u->items[i].id);
}

static mb_status run_all(struct embed_run *u, const struct adapter_pin *pin, float *raw, int32_t d, mb_error *err)
{
    mb_status st = MB_OK;
    bool failed = false;
    for (int32_t i = 0; i < u->r->n_inputs && st == MB_OK && !failed; i++) {
        fill_job(u, i, pin, raw + (int64_t)i * d);
        pthread_mutex_lock(&u->lock);
        wait_for_room(u, WINDOW - 1);
        failed = u->i_failed >= 0;
        if (!failed) u->n_running++;
        pthread_mutex_unlock(&u->lock);
        if (failed) break;
        st = engine_submit(u->g->engine, &u->items[i].job, &u->items[i].id, err);
        if (st == MB_OK) {
            u->n_started++;
            continue;
        }
        on_done(&u->items[i]);
        if (err && err->at) err->at = "input"; /* the engine says "messages" of every input */
    }
    pthread_mutex_lock(&u->lock);
    if (st == MB_OK && u->i_failed < 0) wait_for_room(u, 0);
    failed = u->i_failed >= 0;
    pthread_mutex_unlock(&u->lock);
    if (st != MB_OK || failed) cancel_all(u);
    pthread_mutex_lock(&u->lock);
    while (u->n_running > 0) pthread_cond_wait(&u->changed, &u->lock);
    pthread_mutex_unlock(&u->lock);
    if (st != MB_OK) return st;
    return u->i_failed < 0 ? MB_OK : mb_fail(err, u->status, "input[%d]: %s", (int)u->i_failed, u->text);
}

/* --- vectors --- */

static void normalise(const float *x, int32_t n, float *out)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    double inv = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int32_t i = 0; i < n; i++) out[i] = (float)((double)x[i] * inv);
}

static mb_status run_pinned(struct embed_run *u, const struct adapter_pin *pin, struct gen_embeddings *out, mb_error *err)
{
    int32_t d = engine_info(u->g->engine)->d_model, n = u->r->n_inputs, keep = u->r->dimensions ? u->r->dimensions : d;
    if (keep > d) return mb_fail_at(err, MB_INVALID, "dimensions", "dimensions must be at most %d", (int)d);
    MB_TRY(prepare(u, out, err));
    out->values = mb_calloc((size_t)n, (size_t)d * sizeof *out->values);
    if (!out->values) return mb_fail(err, MB_NO_MEMORY, "no memory for %d embeddings", (int)n);
    MB_TRY(run_all(u, pin, out->values, d, err));
    for (int32_t i = 0; i < n; i++) normalise(out->values + (int64_t)i * d, keep, out->values + (int64_t)i * keep);
    out->n = n;
    out->d = keep;
    return MB_OK;
}

static mb_status run_open(struct embed_run *u, struct gen_engine *g, const struct gen_embed_request *r, mb_error *err)
{
    pthread_condattr_t attr;
    size_t bytes = r->instruction.len;
    memset(u, 0, sizeof *u);
    u->g = g;
    u->r = r;
    u->i_failed = -1;
    for (int32_t i = 0; i < r->n_inputs; i++) bytes += r->inputs[i].text.len + (size_t)r->inputs[i].n_ids * 4 + 256 + r->instruction.len;
    arena_init(&u->arena, ((size_t)16 << 20) + 64 * bytes);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, &attr);
    pthread_condattr_destroy(&attr);
    u->items = mb_calloc((size_t)r->n_inputs, sizeof *u->items);
    return u->items ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for %d inputs", (int)r->n_inputs);
}

static void run_close(struct embed_run *u)
{
    mb_free(u->items);
    arena_free(&u->arena);
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->lock);
}

mb_status client_embed(void *ctx, const struct gen_embed_request *r, struct gen_embeddings *out, mb_error *err)
{
    struct gen_engine *g = ctx;
    struct embed_run u;
    struct adapter_pin pin;
    memset(out, 0, sizeof *out);
    if (!g->info.embeds)
        return mb_fail(err, MB_INVALID, "%.100s makes no embeddings: they are served for Qwen3 and Qwen3-Embedding models",
                       g->info.id);
    if (r->n_inputs < 1) return mb_fail_at(err, MB_INVALID, "input", "input must not be empty");
    if (!engine_alive(g->engine)) return mb_fail(err, MB_ENGINE_DEAD, "the engine has stopped");
    MB_TRY(adapters_pin(g, r->adapter, &pin, err));
    mb_status st = run_open(&u, g, r, err);
    if (st == MB_OK) st = run_pinned(&u, &pin, out, err);
    run_close(&u);
    engine_adapter_unpin(g->engine, &pin);
    if (st != MB_OK) gen_embeddings_free(out);
    return st;
}

void gen_embeddings_free(struct gen_embeddings *e)
{
    mb_free(e->values);
    memset(e, 0, sizeof *e);
}
