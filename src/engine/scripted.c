/* scripted.c: a stepper without a model: it draws forced ids (or a hash of all earlier ids) and keeps books.
 *
 * With KV kinds given, each token leaves a record in its page: its id, its index, and a hash of all ids up to it.
 * A row is accepted only if every key it may see is there and forms the unbroken chain of this very sequence; draws of
 * hash_draws come from that chain. So a wrong page, a stale copy, a missed token or a broken fork does not stay unseen.
 * Recurrent kinds keep one such record as their state, and the inputs of an `after accept` row for replay.
 * The pool is ordinary memory; bytes given back are overwritten. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "ops/ops.h"

struct record { uint64_t hash; int32_t id, index; };

struct scripted {
    struct stepper_info info;
    struct scripted_options opt;
    struct scripted_counters *count;
    struct scripted_counters own_count;
    uint8_t *pool;
    size_t pool_bytes;
    /* an asynchronous stepper's step in flight */
    struct draw *draws;          /* [n_draw_max] */
    const struct row *rows;
    struct row_result *results;
    int32_t n_rows;
};

static const uint64_t HASH_EMPTY = 0x5343524950544544u, HASH_POISON = UINT64_MAX;
enum { MAX_KEPT = KV_PAGE_TOKENS - 2, STALE_BYTE = 0xA5 };

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ (v + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 29) * 0x94D049BB133111EBu;
    return h ^ h >> 32;
}

static uint64_t chain(const struct scripted *s, uint64_t h, int32_t id)
{
    if (h == HASH_POISON || (s->opt.poison && id == s->opt.poison_id)) return HASH_POISON;
    h = mix(h, (uint64_t)(uint32_t)id);
    return h == HASH_POISON ? 0 : h;
}

static mb_status violation(struct scripted *s, mb_error *err, const struct row *r, const char *what, int32_t kind,
                           int32_t index)
{
    struct scripted_counters *c = s->count;
    char text[sizeof c->violation];
    snprintf(text, sizeof text, "row [%d, %d), committed %d: %s (kind %d, index %d)", (int)r->i_first,
             (int)(r->i_first + r->n), (int)r->seq->n_committed, what, (int)kind, (int)index);
    if (c->n_violations++ == 0) memcpy(c->violation, text, sizeof text);
    return mb_fail(err, MB_INTERNAL, "scripted stepper: %s", text);
}

/* --- pages --- */

static struct record *page_at(const struct scripted *s, int32_t page)
{
    return (struct record *)(void *)(s->pool + (size_t)page * KV_PAGE_UNIT);
}

static bool page_ok(const struct scripted *s, int32_t kind, int32_t page)
{
    return page >= 0 && s->pool && (size_t)page * KV_PAGE_UNIT + s->info.kinds[kind].page_bytes <= s->pool_bytes;
}

static struct record *record_at(const struct scripted *s, const struct row *r, int32_t kind, int32_t index)
{
    const struct kv_table *t = &r->seq->kind[kind];
    int32_t j = index / KV_PAGE_TOKENS;
    if (j >= t->n_page || !page_ok(s, kind, t->page[j])) return NULL;
    return page_at(s, t->page[j]) + index % KV_PAGE_TOKENS;
}

/* Keys [first visible, i_first) of one kind form the chain of one sequence; *h: hash of the last. */
static mb_status keys_check(struct scripted *s, const struct row *r, int32_t k, uint64_t *h, mb_error *err)
{
    const struct kv_kind *kind = &s->info.kinds[k];
    int32_t first = 0;
    if (kind->type == KIND_WINDOW && r->i_first - kind->window + 1 > 0) first = r->i_first - kind->window + 1;
    *h = HASH_EMPTY;
    for (int32_t i = first; i < r->i_first; i++) {
        const struct record *rec = record_at(s, r, k, i);
        if (!rec) return violation(s, err, r, "no page for a visible key", k, i);
        if (rec->index != i) return violation(s, err, r, "key of another index", k, i);
        bool linked = i == first && first > 0 ? true : rec->hash == chain(s, *h, rec->id);
        if (!linked) return violation(s, err, r, "key of another sequence", k, i);
        *h = rec->hash;
    }
    for (int32_t i = r->i_first; i < r->i_first + r->n; i++)
        if (!record_at(s, r, k, i)) return violation(s, err, r, "no page for a new key", k, i);
    return MB_OK;
}

/* State at i_first after replay; *h as above. */
static mb_status state_check(struct scripted *s, const struct row *r, int32_t k, uint64_t *h, mb_error *err)
{
    const struct seq_state *q = r->seq;
    if (q->kind[k].n_page != 1 || !page_ok(s, k, q->kind[k].page[0]))
        return violation(s, err, r, "no page for the state", k, r->i_first);
    struct record *rec = page_at(s, q->kind[k].page[0]);
    if (r->i_first == 0) rec[0] = (struct record){ HASH_EMPTY, 0, 0 };
    if (rec[0].index != q->i_state || q->i_state + q->n_replay != r->i_first)
        return violation(s, err, r, "the state is at another index", k, rec[0].index);
    for (int32_t i = 0; i < q->n_replay; i++, rec[0].index++) rec[0].hash = chain(s, rec[0].hash, rec[1 + i].id);
    *h = rec[0].hash;
    return MB_OK;
}

static mb_status row_shape_check(struct scripted *s, const struct row *r, mb_error *err)
{
    if (r->n <= 0 || r->i_first != r->seq->n_committed || r->i_first + r->n > s->info.n_context)
        return violation(s, err, r, "indices are not the next ones of the sequence", -1, r->i_first);
    for (int32_t i = 0; i < r->n; i++)
        if (r->ids[i] < 0 || r->ids[i] >= s->info.n_vocab) return violation(s, err, r, "id out of range", -1, r->ids[i]);
    for (int32_t i = 0; i < r->n_embeds; i++) {
        const struct embed_span *m = &r->embeds[i];
        if (m->first < 0 || m->n <= 0 || m->first + m->n > r->n || !m->data)
            return violation(s, err, r, "embedding span outside the row", -1, m->first);
    }
    int32_t end = r->i_first + r->n;
    for (int32_t i = 0; i < r->n_two_way; i++) {
        const struct index_span *w = &r->two_way[i];
        if ((w->first < end && end < w->end) || (w->first < r->i_first && r->i_first < w->end))
            return violation(s, err, r, "a two-way span is cut", -1, w->first);
    }
    if (r->commit == COMMIT_AFTER_ACCEPT && r->n > MAX_KEPT) return violation(s, err, r, "too long to replay", -1, r->n);
    return MB_OK;
}

/* No other row of the batch writes to a page of this one. */
static bool shares_page(const struct scripted *s, const struct row *a, const struct row *b)
{
    for (int32_t k = 0; k < s->info.n_kinds; k++) {
        bool state = s->info.kinds[k].type == KIND_STATE;
        int32_t a0 = state ? 0 : a->i_first / KV_PAGE_TOKENS, a1 = state ? 0 : (a->i_first + a->n - 1) / KV_PAGE_TOKENS;
        int32_t b0 = state ? 0 : b->i_first / KV_PAGE_TOKENS, b1 = state ? 0 : (b->i_first + b->n - 1) / KV_PAGE_TOKENS;
        for (int32_t i = a0; i <= a1; i++)
            for (int32_t j = b0; j <= b1; j++)
                if (a->seq->kind[k].page[i] == b->seq->kind[k].page[j]) return true;
    }
    return false;
}

static mb_status row_check(struct scripted *s, const struct row *rows, int32_t i, uint64_t *h, mb_error *err)
{
    const struct row *r = &rows[i];
    bool known = false;
    MB_TRY(row_shape_check(s, r, err));
    for (int32_t pass = 0; pass < 2; pass++) /* whole chains first: they say what windows and states must agree with */
        for (int32_t k = 0; k < s->info.n_kinds; k++) {
            enum kv_kind_type type = s->info.kinds[k].type;
            bool whole = type == KIND_FULL || type == KIND_LATENT;
            uint64_t own = HASH_EMPTY;
            if (whole != (pass == 0)) continue;
            MB_TRY(type == KIND_STATE ? state_check(s, r, k, &own, err) : keys_check(s, r, k, &own, err));
            if (known && own != *h) return violation(s, err, r, "kinds disagree about the past", k, r->i_first);
            *h = own;
            known = true;
        }
    for (int32_t j = 0; j < i; j++)
        if (rows[j].seq == r->seq || shares_page(s, &rows[j], r))
            return violation(s, err, r, "two rows write to one sequence or page", -1, j);
    return MB_OK;
}

static void row_write(struct scripted *s, const struct row *r, uint64_t h)
{
    for (int32_t k = 0; k < s->info.n_kinds; k++) {
        uint64_t own = h;
        if (s->info.kinds[k].type == KIND_STATE) {
            struct record *rec = page_at(s, r->seq->kind[k].page[0]);
            for (int32_t i = 0; i < r->n; i++) {
                if (r->commit == COMMIT_AFTER_ACCEPT) rec[1 + i].id = r->ids[i];
                else rec[0] = (struct record){ chain(s, rec[0].hash, r->ids[i]), r->ids[i], rec[0].index + 1 };
            }
            continue;
        }
        for (int32_t i = 0; i < r->n; i++) {
            own = chain(s, own, r->ids[i]);
            *record_at(s, r, k, r->i_first + i) = (struct record){ own, r->ids[i], r->i_first + i };
        }
    }
}

/* --- drawing --- */

static bool is_in(const int32_t *list, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

static float bias_of(const struct sample_params *p, int32_t id)
{
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id == id) return p->bias[i].bias;
    return 0;
}

static bool allowed(const struct sample_pos *pos, int32_t id)
{
    const struct sample_params *p = pos->params;
    if (pos->mask && !(pos->mask[id / 32] >> (id % 32) & 1)) return false;
    if (p->n_vocab_live > 0 && id >= p->n_vocab_live) return false;
    if ((p->ignore_eos || pos->n_drawn < p->min_tokens) && is_in(p->end_ids, p->n_end_ids, id)) return false;
    return bias_of(p, id) > -100;
}

static int32_t wanted_id(const struct scripted *s, const struct sample_pos *pos, uint64_t h)
{
    const struct sample_params *p = pos->params;
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].bias >= 100 && p->bias[i].id < s->info.n_vocab && allowed(pos, p->bias[i].id)) return p->bias[i].id;
    if (!s->opt.hash_draws) return pos->n_drawn < s->opt.n_script ? s->opt.script[pos->n_drawn] : s->opt.end_id;
    uint64_t v = mix(mix(h, p->noise.seed), p->noise.i_choice);
    if (s->opt.hash_end_every > 0 && mix(v, 1) % (uint64_t)s->opt.hash_end_every == 0) return s->opt.end_id;
    int32_t id = (int32_t)(v % (uint64_t)s->info.n_vocab);
    if (id == s->opt.end_id || (s->opt.poison && id == s->opt.poison_id)) id = (id + 1) % s->info.n_vocab;
    return id == s->opt.end_id || (s->opt.poison && id == s->opt.poison_id) ? (id + 1) % s->info.n_vocab : id;
}

static void draw_one(const struct scripted *s, const struct sample_pos *pos, uint64_t h, struct draw *d)
{
    memset(d, 0, sizeof *d);
    d->id = d->argmax = -1;
    d->non_finite = h == HASH_POISON;
    if (d->non_finite) return;
    int32_t n = s->info.n_vocab, id = wanted_id(s, pos, h);
    d->logprob = d->argmax_logprob = -(float)(mix(h, 2) % 1024) / 1024;
    d->argmax = id;
    if (pos->target >= 0) d->target_logprob = -(float)(mix(h, (uint64_t)pos->target + 3) % 4096) / 1024;
    for (int32_t i = 0; i < n && d->id < 0; i++)
        if (allowed(pos, (id + i) % n)) d->id = (id + i) % n;
    d->no_candidate = d->id < 0;
    int32_t n_top = pos->params->n_top < n ? pos->params->n_top : n;
    for (d->n_top = 0; d->n_top < n_top && d->n_top < SAMPLE_MAX_TOP; d->n_top++) {
        d->top_id[d->n_top] = (id + d->n_top) % n;
        d->top_logprob[d->n_top] = d->logprob - (float)d->n_top;
    }
}

/* Without kinds the past is what the history says. */
static uint64_t history_hash(const struct scripted *s, const struct sample_pos *pos)
{
    uint64_t h = HASH_EMPTY;
    for (int32_t i = 0; i < pos->n_history; i++) h = chain(s, h, pos->history[i]);
    return h;
}

static void row_draw(const struct scripted *s, const struct row *r, uint64_t h, struct draw *out)
{
    int32_t first = r->draw == DRAW_ALL ? 0 : r->n - 1;
    for (int32_t i = 0; r->draw != DRAW_NONE && i < r->n; i++) {
        h = chain(s, h, r->ids[i]);
        if (i < first) continue;
        const struct sample_pos *pos = &r->draws[i - first];
        draw_one(s, pos, s->info.n_kinds > 0 ? h : history_hash(s, pos), &out[i - first]);
        if (!r->logits_out) continue;
        float *logits = r->logits_out + (size_t)(i - first) * (size_t)s->info.n_vocab;
        memset(logits, 0, (size_t)s->info.n_vocab * sizeof *logits);
        if (out[i - first].argmax >= 0) logits[out[i - first].argmax] = 10;
    }
}

/* --- the stepper --- */

static const struct stepper_info *scripted_info(void *ctx)
{
    return &((struct scripted *)ctx)->info;
}

static void batch_count(struct scripted *s, const struct row *rows, int32_t n_rows, int32_t *n_prefill)
{
    struct scripted_counters *c = s->count;
    int32_t n_tokens = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        n_tokens += rows[i].n;
        if (rows[i].n > 1) *n_prefill += rows[i].n;
        c->n_draws += (uint64_t)row_n_draw(&rows[i]);
    }
    c->n_submits++;
    c->n_rows += (uint64_t)n_rows;
    c->n_tokens += (uint64_t)n_tokens;
    if (n_rows > c->max_rows) c->max_rows = n_rows;
    if (n_tokens > c->max_tokens) c->max_tokens = n_tokens;
}

static mb_status scripted_submit(void *ctx, const struct row *rows, int32_t n_rows, struct row_result *results,
                                 mb_error *err)
{
    struct scripted *s = ctx;
    int32_t n_prefill = 0, n_draws = 0;
    batch_count(s, rows, n_rows, &n_prefill);
    if (s->opt.on_batch) s->opt.on_batch(s->opt.on_batch_ctx, rows, n_rows);
    int64_t ms = s->opt.step_delay_ms + s->opt.prefill_delay_ms_per_1k * n_prefill / 1000;
    if (ms > 0) clock_sleep_ms(ms);
    if (n_rows > s->info.n_rows_max) return violation(s, err, rows, "too many rows", -1, n_rows);
    for (int32_t i = 0; i < n_rows; i++) {
        uint64_t h = HASH_EMPTY;
        MB_TRY(row_check(s, rows, i, &h, err));
        struct draw *out = s->info.async ? s->draws + n_draws : results[i].draws;
        n_draws += row_n_draw(&rows[i]);
        row_draw(s, &rows[i], h, out);
        row_write(s, &rows[i], h);
    }
    s->rows = rows;
    s->results = results;
    s->n_rows = n_rows;
    return MB_OK;
}

static mb_status scripted_collect(void *ctx, mb_error *err)
{
    struct scripted *s = ctx;
    int32_t n_draws = 0;
    for (int32_t i = 0; i < s->n_rows; i++) {
        int32_t n = row_n_draw(&s->rows[i]);
        if (s->info.async && n > 0) memcpy(s->results[i].draws, s->draws + n_draws, (size_t)n * sizeof *s->draws);
        n_draws += n;
        s->results[i].status = MB_OK;
    }
    s->n_rows = 0;
    return MB_OK;
}

static mb_status scripted_pool_reserve(void *ctx, size_t bytes, mb_error *err)
{
    struct scripted *s = ctx;
    s->pool = mb_alloc_aligned(64, bytes);
    if (!s->pool) return mb_fail(err, MB_NO_MEMORY, "no memory for a pool of %zu bytes", bytes);
    memset(s->pool, STALE_BYTE, bytes);
    s->pool_bytes = bytes;
    return MB_OK;
}

static void scripted_page_copy(void *ctx, int32_t i_kind, int32_t dst, int32_t src)
{
    struct scripted *s = ctx;
    s->count->n_copies++;
    memcpy(page_at(s, dst), page_at(s, src), s->info.kinds[i_kind].page_bytes);
}

static void scripted_pool_release(void *ctx, size_t off, size_t bytes)
{
    struct scripted *s = ctx;
    memset(s->pool + off, STALE_BYTE, bytes);
}

static void scripted_page_read(void *ctx, int32_t i_kind, int32_t page, void *dst)
{
    struct scripted *s = ctx;
    memcpy(dst, page_at(s, page), s->info.kinds[i_kind].page_bytes);
}

static void scripted_page_write(void *ctx, int32_t i_kind, int32_t page, const void *src)
{
    struct scripted *s = ctx;
    memcpy(page_at(s, page), src, s->info.kinds[i_kind].page_bytes);
}

static mb_status scripted_reserve_positions(void *ctx, int32_t n, mb_error *err)
{
    struct scripted *s = ctx;
    if (n <= s->info.n_context) return MB_OK;
    return mb_fail(err, MB_INTERNAL, "scripted stepper: position %d beyond a context of %d", (int)n,
                   (int)s->info.n_context);
}

static void scripted_stats(void *ctx, uint64_t *n_barriers, uint64_t *barrier_ns)
{
    *n_barriers = *barrier_ns = 0;
}

static void scripted_close(void *ctx)
{
    struct scripted *s = ctx;
    mb_free(s->pool);
    mb_free(s->draws);
    mb_free(s);
}

mb_status stepper_scripted(struct stepper *out, const struct scripted_options *opt, mb_error *err)
{
    memset(out, 0, sizeof *out);
    if (opt->n_vocab < 4 || opt->n_context < 2 || opt->m_max < 1 || opt->n_rows_max < 1)
        return mb_fail(err, MB_INVALID, "a scripted stepper needs a vocabulary of 4, a context of 2, a batch of 1 at least");
    for (int32_t k = 0; k < opt->n_kinds; k++)
        if (opt->kinds[k].page_bytes < SCRIPTED_PAGE_BYTES)
            return mb_fail(err, MB_INVALID, "kind %d: pages of %zu bytes, records need %d", (int)k,
                           opt->kinds[k].page_bytes, SCRIPTED_PAGE_BYTES);
    for (int32_t i = 0; i < opt->n_script; i++)
        if (opt->script[i] < 0 || opt->script[i] >= opt->n_vocab)
            return mb_fail(err, MB_INVALID, "script[%d] is %d, not an id", (int)i, (int)opt->script[i]);
    struct scripted *s = mb_calloc(1, sizeof *s);
    struct draw *draws = mb_calloc((size_t)opt->m_max, sizeof *draws);
    if (!s || !draws) {
        mb_free(s);
        mb_free(draws);
        return mb_fail(err, MB_NO_MEMORY, "no memory for a scripted stepper");
    }
    s->opt = *opt;
    s->draws = draws;
    s->count = opt->counters ? opt->counters : &s->own_count;
    s->info = (struct stepper_info){ .n_vocab = opt->n_vocab, .n_context = opt->n_context, .m_max = opt->m_max,
                                     .n_rows_max = opt->n_rows_max, .n_draw_max = opt->m_max, .d_model = 1,
                                     .async = opt->async, .early = opt->early, .kinds = opt->kinds, .n_kinds = opt->n_kinds,
                                     .identity = opt->identity, .describe = "scripted" };
    *out = (struct stepper){ s, scripted_info, scripted_submit, scripted_collect, scripted_pool_reserve,
                             scripted_page_copy, scripted_pool_release, scripted_page_read, scripted_page_write,
                             scripted_reserve_positions, scripted_stats, scripted_close, NULL, NULL, NULL };
    return MB_OK;
}
