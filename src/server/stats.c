/* stats.c: GET /stats (API-268..282) and GET /metrics (Prometheus text), from one snapshot of the engine. */
#include <string.h>

#include "base/clock.h"
#include "server/server_int.h"

static void text(struct buf *out, const char *s)
{
    json_write_string(out, s ? s : "", s ? strlen(s) : 0);
}

static void number_or_null(struct buf *out, uint64_t v)
{
    if (v) buf_printf(out, "%llu", (unsigned long long)v);
    else buf_append_str(out, "null");
}

#define U(x) ((unsigned long long)(x))

static void put_kv(struct buf *b, const struct gen_model_info *m)
{
    buf_append_str(b, ", \"kv_quant\": {\"mode\": ");
    text(b, m->kv_mode);
    buf_append_str(b, ", \"layers\": {");
    for (int i = 0; i < 8 && m->kv_layers[i].n > 0; i++)
        buf_printf(b, "%s\"%s\": %d", i ? ", " : "", m->kv_layers[i].name, (int)m->kv_layers[i].n);
    buf_printf(b, "}, \"attention\": {\"global\": %d, \"sliding_window\": %d}}", (int)m->n_layer_full, (int)m->n_layer_window);
}

static void put_batch(struct buf *b, const struct server *s, const struct engine_stats *e, const struct gen_model_info *m)
{
    int batch = e->batch > 0 ? e->batch : m->batch;
    buf_printf(b, ", \"batch\": {\"configured\": %d, \"batched\": %s, \"active_rows\": %d, \"mode\": \"%s\", "
                  "\"pending_rows\": %d, \"parked_rows\": %d, \"submitted_rows\": %llu, \"kv_bytes\": %llu, \"kv_budget_bytes\": ",
               batch, batch > 1 ? "true" : "false", (int)e->active_rows, batch > 1 ? "batch" : "off", (int)e->pending_rows,
               (int)e->parked_rows, U(e->submitted), U(e->kv_bytes_active));
    number_or_null(b, s->opt.kv_budget_bytes);
    buf_append_str(b, "}");
}

static void put_engine(struct buf *b, const struct engine_stats *e)
{
    buf_printf(b, ", \"engine\": {\"alive\": %s, \"finished\": %llu, \"cancelled\": %llu, \"failed\": %llu, \"rejected\": %llu, "
                  "\"preempted\": %llu, \"steps\": %llu, \"tokens_decoded\": %llu, \"tokens_prefilled\": %llu, "
                  "\"tokens_cached\": %llu, \"tokens_guessed\": %llu, \"tokens_guessed_right\": %llu, \"tokens_put_in\": %llu, \"pool_bytes\": %llu, \"pages_held_bytes\": %llu, \"pages_cached_bytes\": %llu, "
                  "\"pages_free_bytes\": %llu, \"decode_tokens_per_s\": ",
               e->alive ? "true" : "false", U(e->finished), U(e->cancelled), U(e->failed), U(e->rejected), U(e->preempted),
               U(e->steps), U(e->tokens_decoded), U(e->tokens_prefilled), U(e->tokens_cached), U(e->n_guessed),
               U(e->n_guesses_kept), U(e->n_put_in), U(e->pool_bytes),
               U(e->pages_held_bytes), U(e->pages_cached_bytes), U(e->pages_free_bytes));
    json_write_double(b, e->decode_tokens_per_s);
    buf_append_str(b, ", \"prefill_tokens_per_s\": ");
    json_write_double(b, e->prefill_tokens_per_s);
    buf_append_str(b, ", \"ttft_ms_mean\": ");
    json_write_double(b, e->ttft_ms_mean);
    buf_append_str(b, ", \"itl_ms_mean\": ");
    json_write_double(b, e->itl_ms_mean);
    buf_append_str(b, "}");
}

/* Experts that layers asked for and found in memory, of all they asked for. */
static double hit_rate(const struct ops_expert_stats *x)
{
    uint64_t n = x->n_hits + x->n_misses;
    return n ? (double)x->n_hits / (double)n : 0;
}

static void put_experts(struct buf *b, const struct ops_expert_stats *x)
{
    buf_append_str(b, ", \"expert_offload\": ");
    if (x->n_slots == 0) {
        buf_append_str(b, "null");
        return;
    }
    buf_printf(b, "{\"slots\": %d, \"cache_bytes\": %llu, \"file_bytes\": %llu, \"hits\": %llu, \"misses\": %llu, \"hit_rate\": ",
               (int)x->n_slots, U(x->cache_bytes), U(x->file_bytes), U(x->n_hits), U(x->n_misses));
    json_write_double(b, hit_rate(x));
    buf_printf(b, ", \"read_bytes\": %llu, \"errors\": %llu, \"wait_ms\": %llu, \"direct\": %s}", U(x->read_bytes), U(x->n_errors),
               U(x->wait_ns / 1000000), x->direct ? "true" : "false");
}

static void put_http(struct buf *b, struct server *s)
{
    pthread_mutex_lock(&s->lock);
    buf_printf(b, ", \"http\": {\"connections\": %d, \"active\": %d, \"requests\": %llu, \"status_2xx\": %llu, "
                  "\"status_4xx\": %llu, \"status_5xx\": %llu, \"body_bytes\": %llu, \"body_memory_bytes\": %llu}",
               (int)s->n_conns, (int)s->n_active, U(s->n_requests), U(s->n_status[2]), U(s->n_status[4]), U(s->n_status[5]),
               U(s->body_memory), U(s->opt.body_memory_bytes));
    pthread_mutex_unlock(&s->lock);
}

/* API-249, API-271 */
void stats_put_store(struct buf *b, struct server *s)
{
    struct response_store_stats st;
    response_store_stats(s->store, &st);
    buf_printf(b, "{\"entries\": %lld, \"bytes\": %zu, \"max_bytes\": %zu, \"ttl_ms\": %lld}",
               (long long)st.entries, st.bytes, st.max_bytes, (long long)st.ttl_ms);
}

void handle_stats(struct http_exchange *x)
{
    struct server *s = x->s;
    struct engine_stats e = { 0 };
    const struct gen_model_info *m = s->client.info(s->client.ctx);
    struct buf b;
    buf_init(&b, 0);
    s->client.stats(s->client.ctx, &e);
    buf_append_str(&b, "{\"server\": {\"owner\": ");
    text(&b, s->opt.owner);
    buf_append_str(&b, ", \"model\": ");
    text(&b, m->id);
    buf_printf(&b, ", \"started_at\": %lld, \"device\": ", (long long)s->started_unix_s);
    text(&b, m->device);
    buf_append_str(&b, ", \"tier\": ");
    text(&b, m->tier);
    buf_printf(&b, "}, \"prompt_cache\": {\"entries\": %lld, \"bytes\": %llu, \"max_bytes\": %llu, \"hits\": %llu, \"misses\": %llu}",
               (long long)e.cache_entries, U(e.cache_bytes), U(e.cache_max_bytes), U(e.cache_hits), U(e.cache_misses));
    buf_append_str(&b, ", \"response_store\": ");
    stats_put_store(&b, s);
    put_kv(&b, m);
    buf_printf(&b, ", \"admission\": {\"max_safe_context\": %d, \"memory_budget_bytes\": ",
               (int)(e.max_safe_context > 0 && e.max_safe_context < m->n_context ? e.max_safe_context : m->n_context));
    number_or_null(&b, s->opt.memory_budget_bytes);
    buf_printf(&b, ", \"usable_bytes\": %llu, \"weights_bytes\": %llu}", U(m->pool_bytes), U(m->weight_bytes + m->expert_cache_bytes));
    put_batch(&b, s, &e, m);
    put_engine(&b, &e);
    put_experts(&b, &e.experts);
    if (m->reserved_context > 0) buf_printf(&b, ", \"glm52\": {\"context_length\": %d}", (int)m->reserved_context);
    put_http(&b, s);
    buf_append_str(&b, "}");
    http_reply(x, 200, "application/json", &b);
}

static void metric(struct buf *b, const char *name, const char *type, const char *help, double v)
{
    buf_printf(b, "# HELP mlx_bun_%s %s\n# TYPE mlx_bun_%s %s\nmlx_bun_%s %.17g\n", name, help, name, type, name, v);
}

void handle_metrics(struct http_exchange *x)
{
    struct server *s = x->s;
    struct engine_stats e = { 0 };
    struct buf b;
    buf_init(&b, 0);
    s->client.stats(s->client.ctx, &e);
    metric(&b, "up", "gauge", "1 while the engine runs", e.alive);
    metric(&b, "requests_finished_total", "counter", "generations that ended", (double)e.finished);
    metric(&b, "requests_cancelled_total", "counter", "generations that were cancelled", (double)e.cancelled);
    metric(&b, "requests_failed_total", "counter", "generations that failed", (double)e.failed);
    metric(&b, "requests_rejected_total", "counter", "generations refused at the queue", (double)e.rejected);
    metric(&b, "tokens_decoded_total", "counter", "tokens drawn", (double)e.tokens_decoded);
    metric(&b, "tokens_prefilled_total", "counter", "prompt tokens computed", (double)e.tokens_prefilled);
    metric(&b, "tokens_cached_total", "counter", "prompt tokens taken from the prefix cache", (double)e.tokens_cached);
    metric(&b, "rows_active", "gauge", "sequences in the batch", e.active_rows);
    metric(&b, "rows_pending", "gauge", "sequences that wait", e.pending_rows);
    metric(&b, "rows_parked", "gauge", "sequences that wait for their client", e.parked_rows);
    metric(&b, "kv_pool_bytes", "gauge", "size of the KV pool", (double)e.pool_bytes);
    metric(&b, "kv_held_bytes", "gauge", "pages held by running sequences", (double)e.pages_held_bytes);
    metric(&b, "kv_cached_bytes", "gauge", "pages held by the prefix cache", (double)e.pages_cached_bytes);
    metric(&b, "cache_hits_total", "counter", "requests that reused a prefix", (double)e.cache_hits);
    metric(&b, "cache_misses_total", "counter", "requests that reused none", (double)e.cache_misses);
    metric(&b, "decode_tokens_per_second", "gauge", "of the last seconds", e.decode_tokens_per_s);
    metric(&b, "ttft_ms_mean", "gauge", "time to first token, of the last seconds", e.ttft_ms_mean);
    metric(&b, "itl_ms_mean", "gauge", "time between tokens, of the last seconds", e.itl_ms_mean);
    if (e.experts.n_slots > 0) {
        metric(&b, "expert_hits_total", "counter", "experts asked for by layers and found in memory", (double)e.experts.n_hits);
        metric(&b, "expert_misses_total", "counter", "experts asked for by layers and read", (double)e.experts.n_misses);
        metric(&b, "expert_hit_rate", "gauge", "hits of all experts asked for, since the start", hit_rate(&e.experts));
        metric(&b, "expert_read_bytes_total", "counter", "bytes of experts read", (double)e.experts.read_bytes);
        metric(&b, "expert_read_errors_total", "counter", "reads of experts that failed", (double)e.experts.n_errors);
        metric(&b, "expert_cache_bytes", "gauge", "memory for experts that were read", (double)e.experts.cache_bytes);
    }
    pthread_mutex_lock(&s->lock);
    metric(&b, "http_requests_total", "counter", "HTTP requests", (double)s->n_requests);
    metric(&b, "http_connections", "gauge", "open connections", s->n_conns);
    pthread_mutex_unlock(&s->lock);
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}
