/* admit.c: which jobs are possible at all, and which sequence may start or return now.
 *
 * A job is refused at once only for what no waiting can cure: longer than the model's context, or prompt + 1 longer
 * than the empty pool. max_tokens is clamped to the window, never to the pool. Everything else waits its turn.
 * Embedding jobs have rows and a queue of their own beside the batch: they wait for memory, never for a generation.
 * Turn: sequences that were started before (forked siblings, preempted, unparked) by age, then the queue, first in
 * first out; only a job whose prefix another row is just prefilling lets later ones pass. A sequence gets a slot when
 * its whole length, with what the rows that run still have to prefill, fits the pool after dropping cached pages; when
 * nobody holds pages it always does, and when nobody runs the others give theirs up for it. */
#include <string.h>

#include "base/log.h"
#include "engine/engine_int.h"

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

uint64_t job_cache_key(const struct engine *e, const struct engine_job *job)
{
    uint64_t h = mix(0x6D6C78u, e->info->identity);
    h = mix(h, (uint64_t)job->n_adapters);
    for (int32_t i = 0; i < job->n_adapters; i++) h = mix(h, job->adapters[i]->content_hash);
    return mix(h, job->cache_key);
}

static mb_status spans_check(const struct engine *e, const struct engine_job *job, mb_error *err)
{
    int32_t step = job->method == JOB_SCORE && e->n_draw_max < e->info->m_max ? e->n_draw_max : e->info->m_max;
    int32_t most = step - e->opt.batch, before = 0;
    for (int32_t i = 0; i < job->n_two_way; i++) {
        const struct index_span *s = &job->two_way[i];
        if (s->first < before || s->end <= s->first || s->end > job->n_ids)
            return mb_fail(err, MB_INVALID, "two-way span %d is [%d, %d), not inside the prompt of %d tokens or not behind "
                           "the one before", (int)i, (int)s->first, (int)s->end, (int)job->n_ids);
        if (s->end - s->first > most)
            return mb_fail(err, MB_TOO_LARGE, "one image takes %d tokens, at most %d fit into a step",
                           (int)(s->end - s->first), (int)most);
        before = s->end;
    }
    before = 0;
    if (job->n_embeds > 0 && e->info->d_model <= 0)
        return mb_fail(err, MB_UNSUPPORTED, "this model takes no media: the request has %d media parts", (int)job->n_embeds);
    for (int32_t i = 0; i < job->n_embeds; i++) {
        const struct embed_span *s = &job->embeds[i];
        if (s->first < before || s->n <= 0 || s->first > job->n_ids - s->n || !s->data)
            return mb_fail(err, MB_INVALID, "embedding span %d does not lie in the prompt", (int)i);
        before = s->first + s->n;
    }
    return MB_OK;
}

static mb_status shape_check(const struct engine *e, const struct engine_job *job, mb_error *err)
{
    if (job->n_ids < 1 || !job->ids) return mb_fail(err, MB_INVALID, "the prompt is empty: at least one token is needed");
    if (job->n_choices < 1 || job->n_choices > ENGINE_MAX_CHOICES)
        return mb_fail_at(err, MB_INVALID, "n", "n must be between 1 and %d", ENGINE_MAX_CHOICES);
    if (!method_get(job->method)) return mb_fail(err, MB_INVALID, "unknown method %d", (int)job->method);
    if (job->method == JOB_SCORE && (job->n_choices != 1 || job->n_score_from < 0))
        return mb_fail(err, MB_INVALID, "a scoring job has one choice and starts at a position of the prompt");
    if (job->method == JOB_EMBED && (job->n_choices != 1 || !job->hidden))
        return mb_fail(err, MB_INVALID, "an embedding job has one choice and room for its vector");
    if (job->method == JOB_EMBED && e->info->d_model <= 0) return mb_fail(err, MB_UNSUPPORTED, "this engine makes no embeddings");
    if ((e->info->canvas != NULL) != (job->method == JOB_DIFFUSE))
        return mb_fail(err, MB_UNSUPPORTED, e->info->canvas ? "this model writes blocks of tokens by diffusion: it generates, but "
                       "scores no text and makes no embeddings" : "this model draws token by token, not by diffusion");
    if (!job->filter.on_done || !job->filter.on_end)
        return mb_fail(err, MB_INVALID, "a job needs the callbacks on_end and on_done");
    if (job->method == JOB_DIFFUSE && (job->next_mask || job->ahead || job->n_two_way > 0 || job->n_embeds > 0))
        return mb_fail(err, MB_UNSUPPORTED, "a canvas takes no constraint on its draws, and its prompt no media");
    if (job->method == JOB_GENERATE || job->method == JOB_DIFFUSE ? !job->filter.on_token : job->method == JOB_SCORE && !job->filter.on_score)
        return mb_fail(err, MB_INVALID, "a job needs the callback for what it draws or scores");
    if (job->n_marks < 0 || job->n_adapters < 0 || job->n_embeds < 0 || job->n_two_way < 0 || job->n_end_ids < 0)
        return mb_fail(err, MB_INVALID, "a job has a negative count");
    for (int32_t i = 0; i < job->n_ids; i++)
        if (job->ids[i] < 0 || job->ids[i] >= e->info->n_vocab)
            return mb_fail(err, MB_INVALID, "prompt token %d is %d, the vocabulary has %d", (int)i, (int)job->ids[i],
                           (int)e->info->n_vocab);
    return MB_OK;
}

mb_status job_check(struct engine *e, const struct engine_job *job, mb_error *err)
{
    MB_TRY(shape_check(e, job, err));
    int32_t room = e->info->n_context, least = job->method == JOB_DIFFUSE ? canvas_tokens(e) : 1;
    bool draws = job->method == JOB_GENERATE || job->method == JOB_DIFFUSE;
    if (draws && least > 1 && job->n_ids > room - least)
        return mb_fail_at(err, MB_CONTEXT_LENGTH, "messages", "the prompt has %d tokens and a block of the answer %d, this model's "
                          "context is %d tokens; shorten the prompt", (int)job->n_ids, (int)least, (int)room);
    if (draws ? job->n_ids >= room : job->n_ids > room)
        return mb_fail_at(err, MB_CONTEXT_LENGTH, "messages", "the prompt has %d tokens, this model's context is %d "
                          "tokens; shorten the prompt", (int)job->n_ids, (int)room);
    MB_TRY(spans_check(e, job, err));
    int32_t fits = kv_pool_max_tokens(&e->kv, room);
    if (job->n_ids + (draws ? least : 0) > fits)
        return mb_fail_at(err, MB_CONTEXT_OVER_BUDGET, "messages", "the prompt has %d tokens, the KV memory holds %d; "
                          "shorten the prompt or raise --memory-budget / --kv-budget", (int)job->n_ids, (int)fits);
    return MB_OK;
}

void seq_preempt(struct engine *e, struct sequence *s)
{
    LOGD("engine", "preempted job %llu choice %d at %d tokens", (unsigned long long)s->run->id, (int)s->i_choice,
         (int)s->n_ids);
    seq_release_pages(e, s);
    if (s->phase == SEQ_ACTIVE) {
        s->phase = SEQ_READY;
        --*slots_of(e, s);
    }
    e->meter.s.preempted++;
    e->n_events++;
}

/* Pages that s still has to get until its known ids and a page of further ones are computed: with less, a row that
 * comes back would be preempted again before it has drawn much. */
static void add_needed(const struct engine *e, const struct sequence *s, int64_t need[KV_MAX_KINDS])
{
    int64_t own[KV_MAX_KINDS];
    int32_t more = 1 + KV_PAGE_TOKENS, canvas = s->run->job->method == JOB_DIFFUSE ? canvas_tokens(e) : 0;
    int32_t n = s->n_ids + (more > canvas ? more : canvas), most = s->n_promised;
    kv_pages_needed(e->kv.kinds, e->kv.n_kinds, n < most ? n : most, own);
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        int64_t lacks = own[k] - (s->st.kind[k].n_page - s->kept[k]);
        if (lacks > 0) need[k] += lacks;
    }
}

static bool fits_now(const struct engine *e, const struct sequence *s)
{
    int64_t need[KV_MAX_KINDS] = { 0 };
    bool others = false;
    for (const struct sequence *o = e->first; o; o = o->next) {
        if (o == s || !seq_has_pages(e, o)) continue;
        others = true;
        if (o->phase == SEQ_ACTIVE) add_needed(e, o, need);
    }
    if (!others) return true;
    add_needed(e, s, need);
    return kv_pool_has_room(&e->kv, need, true);
}

/* The youngest of those in a phase that have pages, but s, loses them; false: there is none. */
static bool preempt_one(struct engine *e, enum seq_phase phase, const struct sequence *s)
{
    for (struct sequence *o = e->last; o; o = o->prev) {
        if (o == s || o->phase != phase || !seq_has_pages(e, o)) continue;
        seq_preempt(e, o);
        return true;
    }
    return false;
}

static bool runs(const struct engine *e)
{
    return e->n_active > 0 || e->n_embed_active > 0;
}

/* Parked rows lose their pages before anybody waits for room; those that wait for a slot themselves (unparked ones) when nobody runs
 * who could end and make room. */
static bool has_room(struct engine *e, struct sequence *s)
{
    while (!fits_now(e, s))
        if (!preempt_one(e, SEQ_PARKED, s) && (runs(e) || !preempt_one(e, SEQ_READY, s))) return false;
    return true;
}

static void activate(struct engine *e, struct sequence *s)
{
    if (!seq_has_pages(e, s) && s->st.n_committed == 0) seq_adopt(e, s);
    s->phase = SEQ_ACTIVE;
    ++*slots_of(e, s);
    e->n_events++;
}

int32_t *slots_of(struct engine *e, const struct sequence *s)
{
    return s->method->beside ? &e->n_embed_active : &e->n_active;
}

int32_t *waiting_of(struct engine *e, const struct run *r)
{
    return method_get(r->job->method)->beside ? &e->n_embed_waiting : &e->n_waiting;
}

static bool slot_free(const struct engine *e, bool beside)
{
    return beside ? e->n_embed_active < ENGINE_EMBED_ROWS : e->n_active < e->opt.batch;
}

/* Sequences of runs that have started; false: one waits for room, so nobody behind it may pass. */
static bool admit_ready(struct engine *e)
{
    for (struct sequence *s = e->first; s; s = s->next) {
        if (s->phase != SEQ_READY || !slot_free(e, s->method->beside)) continue;
        if (!has_room(e, s)) return false;
        activate(e, s);
    }
    return true;
}

static int32_t common_prefix(const struct engine_job *a, const struct engine_job *b)
{
    struct symbol_view va = { a->symbols, a->n_ids, a->ids }, vb = { b->symbols, b->n_ids, b->ids };
    int32_t n = a->n_ids < b->n_ids ? a->n_ids : b->n_ids, i = 0;
    while (i < n && symbol_at(&va, i) == symbol_at(&vb, i)) i++;
    return i;
}

/* The tree already serves about as much of the prompt as the other row will. */
static bool is_cached(struct engine *e, const struct run *r, int32_t common)
{
    const struct engine_job *job = r->job;
    struct symbol_view v = { job->symbols, job->n_ids, job->ids };
    struct tree_hit hit;
    prefix_tree_find(&e->tree, r->key, &v, job->n_ids - 1, job->two_way, job->n_two_way, &hit);
    return hit.n + KV_PAGE_TOKENS > common;
}

/* A row that prefills more than half of r's prompt and has not published it yet. */
static bool must_await(struct engine *e, struct run *r)
{
    const struct engine_job *job = r->job;
    if (e->tree.cap_bytes == 0 || job->no_cache) return false;
    for (struct sequence *s = e->first; s; s = s->next) {
        if (s->phase != SEQ_ACTIVE || s->clean || s->i_choice != 0 || s->run->key != r->key) continue;
        if (s->run->job->no_cache || (s->run->job->method != JOB_GENERATE && s->run->job->method != JOB_DIFFUSE)) continue;
        if (r->awaits == s->run && r->awaits_id == s->run->id) return true;
        int32_t common = common_prefix(job, s->run->job);
        if (common <= job->n_ids / 2 || common < KV_PAGE_TOKENS || is_cached(e, r, common)) continue;
        r->awaits = s->run;
        r->awaits_id = s->run->id;
        return true;
    }
    return false;
}

/* Next run of the queue, of the batch or beside it, that does not wait for another's prefix. */
static struct run *queue_next(struct engine *e, bool beside)
{
    pthread_mutex_lock(&e->lock);
    struct run *r = e->queue;
    while (r && (r->cancelled || method_get(r->job->method)->beside != beside || must_await(e, r))) r = r->next;
    pthread_mutex_unlock(&e->lock);
    return r;
}

static void queue_remove(struct engine *e, struct run *r, bool to_running)
{
    pthread_mutex_lock(&e->lock);
    struct run **p = &e->queue;
    while (*p != r) p = &(*p)->next;
    *p = r->next;
    if (!*p) e->queue_tail = p;
    if (r->counted) --*waiting_of(e, r);
    r->counted = false;
    r->next = NULL;
    if (to_running) {
        r->next = e->running;
        e->running = r;
        /* Its slot is taken now, not when gauges are published next: who submits meanwhile counts idle slots. */
        if (!method_get(r->job->method)->beside) e->published.active_rows++;
    }
    pthread_mutex_unlock(&e->lock);
}

static void start(struct engine *e, struct run *r)
{
    struct sequence *s = &r->seqs[0];
    const struct job_filter *f = &r->job->filter;
    int32_t n_cached = seq_adopt(e, s);
    r->started = true;
    s->phase = SEQ_ACTIVE;
    ++*slots_of(e, s);
    e->n_events++;
    for (int32_t i = 1; i < r->job->n_choices; i++) r->seqs[i].phase = SEQ_FORK_WAIT;
    if (n_cached > 0) e->meter.s.cache_hits++;
    else if (e->tree.cap_bytes > 0 && !r->job->no_cache) e->meter.s.cache_misses++;
    e->meter.s.tokens_cached += (uint64_t)n_cached;
    if (f->on_start) f->on_start(f->ctx, r->job->n_ids, n_cached);
    /* Nothing to draw or to score: done before the first step. */
    bool draws = r->job->method == JOB_GENERATE || r->job->method == JOB_DIFFUSE;
    if (s->method->feed_end(s) <= s->st.n_committed || (draws && s->max_drawn == 0))
        run_finish(e, r, END_LENGTH, MB_OK, NULL);
}

/* Start the next job if it fits; false when none does now. */
static bool admit_one(struct engine *e, bool beside)
{
    struct run *r = queue_next(e, beside);
    if (!r || (!beside && e->n_parked >= e->opt.queue_max)) return false;
    mb_error err;
    if (!r->seqs) {
        if (run_make_sequences(e, r, &err) != MB_OK) {
            queue_remove(e, r, false);
            run_refuse(e, r, END_ERROR, err.code, err.text);
            return true;
        }
    }
    if (!has_room(e, &r->seqs[0])) return false;
    queue_remove(e, r, true);
    start(e, r);
    return true;
}

void admit(struct engine *e)
{
    if (!admit_ready(e)) return;
    while (slot_free(e, true) && admit_one(e, true)) {}
    while (slot_free(e, false) && admit_one(e, false)) {}
}
