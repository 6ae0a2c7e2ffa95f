/* stats.c: what the engine measures of itself. Counters and means belong to the engine thread; after each step a copy
 * with the gauges filled in is published under the lock, which is all that other threads read.
 * Rates count tokens in the last ENGINE_RATE_SECONDS whole seconds. Times are taken when a token is delivered. */
#include <string.h>

#include "base/clock.h"
#include "engine/engine_int.h"

static const double MEAN_WEIGHT = 0.2; /* of the newest value in a moving mean */

static void rate_add(struct rate *r, int64_t now_ns, uint64_t n)
{
    int64_t second = now_ns / 1000000000;
    int i = (int)(second % ENGINE_RATE_SECONDS);
    if (r->second[i] != second) {
        r->second[i] = second;
        r->n[i] = 0;
    }
    r->n[i] += n;
}

static double rate_get(const struct rate *r, int64_t now_ns)
{
    int64_t second = now_ns / 1000000000;
    uint64_t n = 0;
    for (int i = 0; i < ENGINE_RATE_SECONDS; i++)
        if (r->second[i] < second && r->second[i] > second - ENGINE_RATE_SECONDS) n += r->n[i];
    return (double)n / (ENGINE_RATE_SECONDS - 1);
}

static void mean_add(double *mean, double v)
{
    *mean = *mean > 0 ? *mean + MEAN_WEIGHT * (v - *mean) : v;
}

void stats_step(struct engine *e, const struct step *st, int64_t ns)
{
    struct meter *m = &e->meter;
    int32_t n_decode = st->n_tokens - st->n_prefill - st->n_guesses - st->n_canvas; /* guesses that are kept: stats_guesses */
    m->s.steps++;
    m->s.tokens_prefilled += (uint64_t)st->n_prefill;
    m->s.tokens_decoded += (uint64_t)n_decode;
    int64_t now = clock_now_ns();
    rate_add(&m->decode_rate, now, (uint64_t)n_decode);
    rate_add(&m->prefill_rate, now, (uint64_t)st->n_prefill);
    if (st->n_canvas > 0) return; /* a round says nothing about either rate */
    if (st->n_prefill == 0) {
        mean_add(&m->decode_ns, (double)ns);
        if (st->n_rows == 1 && st->n_tokens == 1) {
            m->s.n_alone++;
            m->alone_ns_sum += (double)ns;
            m->alone_index_sum += st->rows[0].i_first;
        }
        return;
    }
    double rest = (double)ns - (n_decode > 0 ? m->decode_ns : 0);
    if (rest < 0.1 * (double)ns) rest = 0.1 * (double)ns; /* a noisy step must not make prefill look free */
    mean_add(&m->prefill_ns_per_token, rest / st->n_prefill);
}

void stats_guesses(struct engine *e, int32_t n, int32_t n_kept)
{
    struct meter *m = &e->meter;
    m->s.n_guessed += (uint64_t)n;
    m->s.n_guesses_kept += (uint64_t)n_kept;
    m->s.tokens_decoded += (uint64_t)n_kept;
    rate_add(&m->decode_rate, clock_now_ns(), (uint64_t)n_kept);
}

void stats_block(struct engine *e, int32_t n)
{
    e->meter.s.tokens_decoded += (uint64_t)n;
    rate_add(&e->meter.decode_rate, clock_now_ns(), (uint64_t)n);
}

void stats_token(struct engine *e, struct sequence *s)
{
    struct meter *m = &e->meter;
    int64_t now = clock_now_ns();
    if (s->t_last_token_ns == 0) {
        if (s->run->job->t_received_ns > 0 && s->i_choice == 0) {
            m->ttft_ns_sum += (double)(now - s->run->job->t_received_ns);
            m->n_ttft++;
        }
    } else {
        m->itl_ns_sum += (double)(now - s->t_last_token_ns);
        m->n_itl++;
    }
    s->t_last_token_ns = now;
}

static void gauges(struct engine *e, struct engine_stats *s)
{
    struct kv_usage u;
    int64_t now = clock_now_ns();
    kv_pool_usage(&e->kv, &u);
    s->batch = e->opt.batch;
    s->active_rows = e->n_active;
    s->parked_rows = e->n_parked;
    s->pool_bytes = kv_pool_total_bytes(&e->kv);
    s->pages_held_bytes = s->kv_bytes_active = u.held_bytes;
    s->pages_cached_bytes = u.cached_bytes;
    s->pages_free_bytes = u.free_bytes;
    s->n_pages_held = u.n_held;
    s->n_pages_cached = u.n_cached;
    s->cache_entries = e->tree.n_leaves;
    s->cache_bytes = e->tree.bytes;
    s->cache_max_bytes = e->tree.cap_bytes;
    s->decode_tokens_per_s = rate_get(&e->meter.decode_rate, now);
    s->prefill_tokens_per_s = rate_get(&e->meter.prefill_rate, now);
    s->ttft_ms_mean = e->meter.n_ttft ? e->meter.ttft_ns_sum / (double)e->meter.n_ttft / 1e6 : 0;
    s->itl_ms_mean = e->meter.n_itl ? e->meter.itl_ns_sum / (double)e->meter.n_itl / 1e6 : 0;
    if (s->n_alone > 0 && e->meter.alone_ns_sum > 0) {
        s->alone_tokens_per_s = (double)s->n_alone / e->meter.alone_ns_sum * 1e9;
        s->alone_context = (int32_t)(e->meter.alone_index_sum / (double)s->n_alone);
    }
    if (e->st.expert_stats) e->st.expert_stats(e->st.ctx, &s->experts);
    s->max_safe_context = kv_pool_max_tokens(&e->kv, e->info->n_context);
}

void stats_publish(struct engine *e)
{
    struct engine_stats s = e->meter.s;
    gauges(e, &s);
    pthread_mutex_lock(&e->lock);
    s.submitted = e->published.submitted; /* counted by submitters */
    s.rejected = e->published.rejected;
    e->published = s;
    pthread_mutex_unlock(&e->lock);
}

void engine_stats_get(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->published;
    out->pending_rows = e->n_waiting;
    out->alive = !e->dead;
    out->heartbeat_age_ms = e->idle ? 0 : (clock_now_ns() - e->t_heartbeat_ns) / 1000000;
    pthread_mutex_unlock(&e->lock);
}

bool engine_alive(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool alive = !e->dead;
    pthread_mutex_unlock(&e->lock);
    return alive;
}
