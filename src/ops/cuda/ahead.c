/* ahead.c: the step behind the one at hand goes to the device before the host has read what the one at hand draws, so that the card does
 * not wait while the host delivers, decides and flattens. All that such a step needs but its ids is known: every row one token
 * further. The ids lie on the device, where the draws leave them.
 * It is a guess, and changes nothing but time: the next batch is flattened as ever, and takes the step ahead for its own only if
 * every byte that the device saw is that of the batch and every id is the one that was drawn. Otherwise (a request ended, came, or left,
 * a page left a window) that step ends unread: its rows have written keys at an index that nobody sees before it is written again.
 * A step that ends unread costs its time, so there is one only while it pays: each step that went on as guessed saves the host's
 * time between two steps, each other one costs a step. Ends that are known (a request's last token) are not guessed and cost nothing.
 * Two blocks take turns: the host fills one, the device may still fetch the other.
 */
#include <string.h>

#include "base/clock.h"
#include "ops/cuda/cuda_int.h"

mb_status cuda_ahead_open(struct compiled *c, size_t block_bytes, mb_error *err)
{
    const struct cuda_library *lib = c->dev->lib;
    int code = lib->alloc_host((void **)&c->ahead.block, block_bytes);
    for (int i = 0; i < 2 && code == 0; i++) code = lib->event_open(&c->ahead.event[i]);
    return cuda_check(c->dev, code, "what a step ahead takes", err);
}

void cuda_ahead_close(struct compiled *c)
{
    const struct cuda_library *lib = c->dev->lib;
    if (c->ahead.block) lib->free_host(c->ahead.block);
    for (int i = 0; i < 2; i++)
        if (c->ahead.event[i]) lib->event_close(c->ahead.event[i]);
    c->ahead = (struct cuda_ahead){ .live = false };
}

static int32_t *ints_at(uint8_t *block, size_t off)
{
    return (int32_t *)(void *)(block + off);
}

/* The block from `first` on, and the used part of every kind's tables. */
static mb_status fetch(struct compiled *c, const uint8_t *block, size_t first, int32_t n_pages, mb_error *err)
{
    const struct cuda_batch *b = &c->batch;
    const struct cuda_library *lib = c->dev->lib;
    size_t tables = (size_t)n_pages * sizeof(int32_t);
    int code = lib->fetch(&c->ctx, c->batch_dev + first, block + first, b->at.pages + tables - first, c->dev->stream);
    for (int k = 1; k < c->plan->n_kinds && code == 0; k++) {
        size_t off = b->at.pages + (size_t)k * c->n_pages_max * sizeof(int32_t), back = off % 16; /* what lies before is that kind's too, or room */
        code = lib->fetch(&c->ctx, c->batch_dev + off - back, block + off - back, tables + back, c->dev->stream);
    }
    return cuda_check(c->dev, code, "the batch", err);
}

mb_status cuda_ahead_send(struct compiled *c, mb_error *err)
{
    return fetch(c, c->batch_host, 0, c->batch.n_pages, err);
}

/* --- is it the one? --- */

static bool same(const struct compiled *c, size_t off, size_t bytes)
{
    return memcmp(c->batch_host + off, c->ahead.block + off, bytes) == 0;
}

static bool same_numbers(const struct compiled *c)
{
    const struct cuda_batch_offsets *at = &c->batch.at;
    size_t m = (size_t)c->batch.m, ints = m * sizeof(int32_t);
    bool is = same(c, at->index, ints) && same(c, at->hi, ints) && same(c, at->table_of, ints) && same(c, at->draw_token, ints) &&
              same(c, at->rows, m * sizeof(struct cs_row)) && same(c, at->small, m * sizeof(struct ck_attn_unit)) &&
              same(c, at->jobs, m * sizeof(struct cuda_draw_job));
    if (c->q_steps && is) is = same(c, at->q_more, ints);
    for (int i = 0; i < c->n_windows && is; i++) is = same(c, at->lo[i], ints);
    for (int i = 0; i < c->n_ropes && is; i++) is = same(c, at->rope[i], m * (size_t)c->ropes[i].n_rot * sizeof(float));
    for (int k = 0; k < c->plan->n_kinds && is; k++)
        is = same(c, at->pages + (size_t)k * c->n_pages_max * sizeof(int32_t), (size_t)c->batch.n_pages * sizeof(int32_t));
    return is;
}

static bool is_the_step(const struct compiled *c)
{
    const struct cuda_ahead *a = &c->ahead;
    const struct cuda_batch *b = &c->batch;
    const struct cuda_draw_out *drawn = c->outs + (size_t)c->slot * (size_t)c->plan->n_draw_max;
    if (!b->has_jobs || b->m != a->m || b->n_pages != a->n_pages || a->pool != c->dev->kv_generation || a->writes != c->dev->kv_writes)
        return false;
    for (int32_t i = 0; i < b->m; i++)
        if (ints_at(c->batch_host, b->at.id)[i] != drawn[i].id) return false;
    return same_numbers(c);
}

/* --- does it pay? --- */

/* Does the batch go on where the last one ended? */
static bool goes_on(const struct compiled *c)
{
    const struct cuda_ahead *a = &c->ahead;
    bool does = c->batch.has_jobs && c->batch.n_rows == a->n;
    for (int32_t i = 0; i < a->n && does; i++) does = c->batch.rows[i].seq == a->seq[i] && c->batch.rows[i].i_first == a->next[i];
    return does;
}

static void note_rows(struct compiled *c)
{
    struct cuda_ahead *a = &c->ahead;
    a->n = c->batch.has_jobs ? c->batch.n_rows : 0;
    a->ends = false;
    for (int32_t i = 0; i < a->n; i++) {
        a->seq[i] = c->batch.rows[i].seq;
        a->next[i] = c->batch.rows[i].i_first + 1;
        a->ends = a->ends || c->batch.rows[i].is_last;
    }
}

/* What a step ahead would have gained or lost here; it is worth two steps at most, and owes one at most. */
static void settle(struct compiled *c, bool as_guessed)
{
    struct cuda_ahead *a = &c->ahead;
    int64_t step = (int64_t)c->stats.step_ns, gap = clock_now_ns() - a->done_ns;
    a->credit_ns += as_guessed ? (gap < step ? gap : step) : -step;
    if (a->credit_ns > 2 * step) a->credit_ns = 2 * step;
    if (a->credit_ns < -step) a->credit_ns = -step;
}

bool cuda_ahead_take(struct compiled *c, bool whole)
{
    struct cuda_ahead *a = &c->ahead;
    bool was_live = a->live, taken = was_live && whole && is_the_step(c), on = goes_on(c) && (taken || !was_live);
    bool known = a->n > 0 && a->ends && c->batch.has_jobs; /* that it would change */
    a->live = false;
    if (a->n > 0 && !a->ends) settle(c, on);
    a->pays = (on || known) && a->credit_ns > 0;
    note_rows(c);
    if (taken) {
        c->slot ^= 1;
        *ints_at(c->batch_host, c->batch.at.slot) = c->slot;
    }
    a->taken = taken;
    return taken;
}

/* --- the step ahead --- */

/* Is the page of the row's next token there, in every kind? The engine sees to it a token early where memory is free. */
static bool has_next_page(const struct compiled *c, const struct row *r)
{
    int32_t j = (r->i_first + 1) / KV_PAGE_TOKENS;
    bool has = true;
    for (int k = 0; k < c->plan->n_kinds && has; k++) {
        const struct kv_table *t = &r->seq->kind[k];
        has = c->plan->kinds[k].type == KIND_STATE || (j < t->n_page && t->page[j] >= 0);
    }
    return has;
}

/* Can the row be guessed, its next token in a page that it has? */
static bool row_goes_on(const struct compiled *c, const struct row *r)
{
    return r->commit == COMMIT_YES && !r->is_last && !r->rope_pos && r->n_two_way == 0 && !r->logits_out && r->i_first + 1 < c->plan->n_context &&
           has_next_page(c, r);
}

/* Entries of the page tables of the step ahead; -1: more than there is room for. */
static int32_t pages_ahead(const struct compiled *c)
{
    int64_t n = 0;
    for (int32_t i = 0; i < c->batch.m; i++) n += (c->batch.rows[i].i_first + 1) / KV_PAGE_TOKENS + 1;
    return (size_t)n <= c->n_pages_max ? (int32_t)n : -1;
}

/* Its tables, where a row begins a page: those of the rows behind it move. */
static void tables_ahead(const struct compiled *c, uint8_t *to)
{
    const struct cuda_batch *b = &c->batch;
    struct ck_attn_unit *units = (struct ck_attn_unit *)(void *)(to + b->at.small);
    for (int32_t i = 0, at = 0, n; i < b->m; i++, at += n) {
        n = (b->rows[i].i_first + 1) / KV_PAGE_TOKENS + 1;
        cuda_batch_tables(c, to, &b->rows[i], at, n);
        ints_at(to, b->at.table_of)[i] = at;
        if (i < b->n_small) units[i].i_table = at; /* a unit a row, or none where nothing attends */
    }
}

/* A token further: from the block of the batch to `to`, which may be that block. False: this is not for the device alone. */
static bool advance(const struct compiled *c, uint8_t *to, int32_t n_pages)
{
    const struct cuda_batch *b = &c->batch;
    struct cuda_draw_job jobs[CUDA_SMALL];
    for (int32_t i = 0; i < b->m; i++) { /* nothing is written before all are known */
        struct sample_pos pos = *b->draws[i].pos;
        pos.index++;
        pos.n_history++;
        pos.n_drawn++;
        cuda_job_fill(&pos, c->plan->n_vocab, &jobs[i]);
        if (c->jobs[i].on_host || jobs[i].on_host) return false;
    }
    memcpy(to + b->at.jobs, jobs, (size_t)b->m * sizeof *jobs);
    for (int32_t i = 0; i < b->m; i++) {
        int32_t index = b->rows[i].i_first + 1;
        ints_at(to, b->at.index)[i] = index;
        ints_at(to, b->at.hi)[i] = index + 1;
        for (int w = 0; w < c->n_windows; w++) ints_at(to, b->at.lo[w])[i] = cuda_window_first(c, w, index);
        for (int k = 0; k < c->n_ropes; k++) cuda_rope_row(c, k, to, i, index);
        cuda_q_more(c, to, i, index);
        ((struct cs_row *)(void *)(to + b->at.rows))[i].i_first = index;
    }
    if (n_pages != b->n_pages) tables_ahead(c, to);
    *ints_at(to, b->at.slot) = c->slot ^ 1;
    return true;
}

/* The block of the step ahead. The one of the step at hand stays, its ids too: cuda_ahead_undo may want it. */
static bool prepare(struct compiled *c, int32_t n_pages)
{
    struct cuda_ahead *a = &c->ahead;
    const struct cuda_batch *b = &c->batch;
    size_t tables = (size_t)b->n_pages * sizeof(int32_t);
    if (!a->taken) {
        memcpy(a->block, c->batch_host, b->at.pages + tables);
        for (int k = 1; k < c->plan->n_kinds; k++) {
            size_t off = b->at.pages + (size_t)k * c->n_pages_max * sizeof(int32_t);
            memcpy(a->block + off, c->batch_host + off, tables);
        }
        return advance(c, a->block, n_pages);
    }
    if (!advance(c, c->batch_host, n_pages)) return false;
    uint8_t *runs = a->block; /* what the step at hand was launched with; the device does not fetch ids */
    memcpy(runs + b->at.id, c->batch_host + b->at.id, (size_t)b->m * sizeof(int32_t));
    a->block = c->batch_host;
    c->batch_host = runs;
    return true;
}

mb_status cuda_ahead_launch(struct compiled *c, struct cuda_graph *now, mb_error *err)
{
    struct cuda_ahead *a = &c->ahead;
    const struct cuda_library *lib = c->dev->lib;
    int32_t n_split = 1, n_pages = pages_ahead(c);
    if (!a->pays || c->state_kind >= 0) return MB_OK;
    for (int32_t i = 0; i < c->batch.m; i++) {
        int32_t splits = (c->batch.rows[i].i_first + 1 + CK_ATTN_SPLIT) / CK_ATTN_SPLIT;
        if (!row_goes_on(c, &c->batch.rows[i])) return MB_OK;
        if (splits > n_split) n_split = splits;
    }
    struct cuda_graph *next = cuda_graph_at(c, c->batch.m, &n_split);
    if (!next || n_pages < 0 || !prepare(c, n_pages)) return MB_OK;
    MB_TRY(cuda_check(c->dev, lib->event_record(a->event[c->slot], c->dev->stream), "the step", err));
    MB_TRY(fetch(c, a->block, c->batch.at.slot, n_pages, err));
    MB_TRY(cuda_check(c->dev, lib->graph_run(next->graph, c->dev->stream), "the step ahead", err));
    a->live = true;
    a->graph = now;
    a->m = c->batch.m;
    a->n_pages = n_pages;
    a->pool = c->dev->kv_generation;
    a->writes = c->dev->kv_writes;
    return MB_OK;
}

mb_status cuda_ahead_wait(struct compiled *c, mb_error *err)
{
    const struct cuda_library *lib = c->dev->lib;
    return cuda_check(c->dev, c->ahead.live ? lib->event_wait(c->ahead.event[c->slot]) : lib->stream_wait(c->dev->stream), "the step", err);
}

mb_status cuda_ahead_undo(struct compiled *c, mb_error *err)
{
    const struct cuda_library *lib = c->dev->lib;
    c->ahead.live = false;
    MB_TRY(cuda_check(c->dev, lib->stream_wait(c->dev->stream), "the step ahead", err));
    MB_TRY(cuda_ahead_send(c, err));
    MB_TRY(cuda_check(c->dev, lib->graph_run(c->ahead.graph->graph, c->dev->stream), "a captured step", err));
    return cuda_check(c->dev, lib->stream_wait(c->dev->stream), "the step", err);
}
