/* batch.c: rows of a step to one block of numbers that travels to the device: ids, indices, what each token may see, rotary
 * rows, units of attention, drawing positions, page tables. A batch of up to CUDA_SMALL tokens has a layout of its own, whose
 * addresses a captured graph of so many tokens may rely on; all others have that of the largest batch. Page tables come last, one
 * array for each kind with the rows'
 * tables one after the other, at the same places for every kind; only what is used is copied.
 */
#include <string.h>

#include "ops/cuda/cuda_int.h"

#define SMALL_ROW 32 /* rows of fewer tokens go the way of decoding: all splits at once */

/* --- layout --- */

static size_t take(size_t *off, size_t bytes)
{
    size_t at = *off;
    *off += (bytes + 255) / 256 * 256;
    return at;
}

/* Units of attention that m_cap tokens in n_rows_max rows may need: every row may leave one unfilled. */
static size_t units_max(const struct compiled *c, int32_t m_cap)
{
    return (size_t)m_cap + (size_t)c->n_rows_max;
}

size_t cuda_batch_layout(const struct compiled *c, int32_t m_cap, struct cuda_batch_offsets *o)
{
    size_t off = 0, ints = (size_t)m_cap * sizeof(int32_t);
    o->id = take(&off, ints);
    o->slot = take(&off, sizeof(int32_t)); /* the first behind the ids */
    o->index = take(&off, ints);
    o->hi = take(&off, ints);
    for (int i = 0; i < c->n_windows; i++) o->lo[i] = take(&off, ints);
    o->table_of = take(&off, ints);
    o->draw_token = take(&off, ints);
    o->stack = take(&off, (size_t)m_cap * PLAN_MAX_STACK * sizeof(void *));
    o->rows = take(&off, (size_t)c->n_rows_max * sizeof(struct cs_row));
    o->small = take(&off, units_max(c, m_cap) * sizeof(struct ck_attn_unit));
    o->large = take(&off, units_max(c, m_cap) * sizeof(struct ck_attn_unit));
    for (int i = 0; i < c->n_ropes; i++) o->rope[i] = take(&off, (size_t)m_cap * (size_t)c->ropes[i].n_rot * sizeof(float));
    o->q_more = take(&off, c->q_steps ? ints : 0);
    o->jobs = take(&off, m_cap <= CUDA_SMALL ? (size_t)m_cap * sizeof(struct cuda_draw_job) : 0);
    o->pages = take(&off, (size_t)c->plan->n_kinds * c->n_pages_max * sizeof(int32_t));
    return off;
}

static int32_t *ints_at(const struct compiled *c, size_t off)
{
    return (int32_t *)(void *)(c->batch_host + off);
}

/* --- filling --- */

/* The last key + 1 that the query at index i may see. */
static int32_t visible_end(const struct row *r, int32_t i)
{
    int32_t end = i + 1;
    for (int32_t k = 0; k < r->n_two_way; k++)
        if (i >= r->two_way[k].first && i < r->two_way[k].end && r->two_way[k].end > end) end = r->two_way[k].end;
    return end < r->i_first + r->n ? end : r->i_first + r->n;
}

/* Pages that left the window become page 0: nothing of them is visible. */
void cuda_batch_tables(const struct compiled *c, uint8_t *block, const struct row *r, int32_t at, int32_t n)
{
    for (int k = 0; k < c->plan->n_kinds; k++) {
        const struct kv_table *t = &r->seq->kind[k];
        int32_t *to = (int32_t *)(void *)(block + c->batch.at.pages) + (size_t)k * c->n_pages_max + at;
        if (c->plan->kinds[k].type == KIND_STATE) continue;
        for (int32_t j = 0; j < n; j++) to[j] = j < t->n_page && t->page[j] >= 0 ? t->page[j] : 0;
    }
}

/* Page tables of one row. Pages that the row writes must be there. */
static mb_status fill_pages(struct compiled *c, const struct row *r, mb_error *err)
{
    struct cuda_batch *b = &c->batch;
    int32_t n = (r->i_first + r->n + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    if ((size_t)b->n_pages + (size_t)n > c->n_pages_max)
        return mb_fail(err, MB_INTERNAL, "the rows of a batch have more than %zu pages", c->n_pages_max);
    for (int k = 0; k < c->plan->n_kinds; k++) {
        const struct kv_table *t = &r->seq->kind[k];
        for (int32_t j = r->i_first / KV_PAGE_TOKENS; c->plan->kinds[k].type != KIND_STATE && j < n; j++)
            if (j >= t->n_page || t->page[j] < 0)
                return mb_fail(err, MB_INTERNAL, "page %d of kind %d is missing where a row writes", (int)j, k);
    }
    cuda_batch_tables(c, c->batch_host, r, b->n_pages, n);
    b->n_pages += n;
    return MB_OK;
}

/* Recurrent layers go on where their state is, and only from a state that will be kept. All kinds of state share a page id
 * each; the device gets that of the only kind there is. */
static mb_status fill_state(struct compiled *c, int32_t i_row, const struct row *r, mb_error *err)
{
    struct cs_row *to = (struct cs_row *)(void *)(c->batch_host + c->batch.at.rows) + i_row;
    *to = (struct cs_row){ .token0 = c->batch.m, .n = r->n, .i_first = r->i_first, .state_page = -1 };
    if (c->state_kind < 0) return MB_OK;
    const struct kv_table *t = &r->seq->kind[c->state_kind];
    if (r->commit != COMMIT_YES)
        return mb_fail(err, MB_UNSUPPORTED, "rows that may be taken back are not in this version for recurrent layers");
    if (r->seq->i_state != r->i_first || r->seq->n_replay != 0)
        return mb_fail(err, MB_INTERNAL, "a row begins at index %d, its recurrent state is at %d", r->i_first, r->seq->i_state);
    if (t->n_page < 1 || t->page[0] < 0) return mb_fail(err, MB_INTERNAL, "a row has no page for its recurrent state");
    to->state_page = t->page[0];
    return MB_OK;
}

/* A row of few tokens goes in small units, one of many in large ones. The bits are the same. */
static void add_units(struct compiled *c, const struct row *r, int32_t tok0)
{
    struct cuda_batch *b = &c->batch;
    bool small = r->n < SMALL_ROW;
    struct ck_attn_unit *units = (struct ck_attn_unit *)(void *)(c->batch_host + (small ? b->at.small : b->at.large));
    int32_t *n_units = small ? &b->n_small : &b->n_large, per = small ? c->attn_small : c->attn_large;
    for (int32_t j = 0; per > 0 && j < r->n; j += per) /* 0: nothing attends here */
        units[(*n_units)++] = (struct ck_attn_unit){ .tok0 = tok0 + j, .n_tok = r->n - j < per ? r->n - j : per, .i_table = b->n_pages };
}

int32_t cuda_window_first(const struct compiled *c, int i_window, int32_t index)
{
    return c->windows[i_window] > 0 && index + 1 > c->windows[i_window] ? index + 1 - c->windows[i_window] : 0;
}

void cuda_rope_row(const struct compiled *c, int i_rope, uint8_t *block, int32_t i, int32_t position)
{
    const struct cuda_rope_table *r = &c->ropes[i_rope];
    memcpy((float *)(void *)(block + c->batch.at.rope[i_rope]) + (int64_t)i * r->n_rot, r->table + (int64_t)position * r->n_rot,
           (size_t)r->n_rot * sizeof(float));
}

void cuda_q_more(const struct compiled *c, uint8_t *block, int32_t i, int32_t position)
{
    if (c->q_steps) ((float *)(void *)(block + c->batch.at.q_more))[i] = c->q_steps[position / c->q_step_tokens];
}

static mb_status fill_row(struct compiled *c, const struct row *r, mb_error *err)
{
    struct cuda_batch *b = &c->batch;
    add_units(c, r, b->m);
    for (int32_t j = 0; j < r->n; j++, b->m++) {
        int32_t index = r->i_first + j, position = r->rope_pos ? r->rope_pos[j] : index, end = visible_end(r, index);
        ints_at(c, b->at.id)[b->m] = r->ids[j];
        ints_at(c, b->at.index)[b->m] = index;
        ints_at(c, b->at.hi)[b->m] = end;
        for (int i = 0; i < c->n_windows; i++)
            ints_at(c, b->at.lo[i])[b->m] = cuda_window_first(c, i, index);
        ints_at(c, b->at.table_of)[b->m] = b->n_pages;
        int32_t n_split = (end + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
        if (n_split > b->n_split) b->n_split = n_split;
        for (int i = 0; i < c->n_ropes; i++) cuda_rope_row(c, i, c->batch_host, b->m, position);
        cuda_q_more(c, c->batch_host, b->m, position);
    }
    return fill_pages(c, r, err);
}

static void add_draws(struct compiled *c, int32_t i_row, const struct row *r, struct row_result *result)
{
    struct cuda_batch *b = &c->batch;
    int32_t n = row_n_draw(r);
    for (int32_t j = 0; j < n; j++) {
        struct cuda_draw_pos *d = &b->draws[b->n_draw];
        d->i_row = i_row;
        d->pos = &r->draws[j];
        d->out = &result->draws[j];
        d->logits_out = r->logits_out ? r->logits_out + (int64_t)j * c->plan->n_vocab : NULL;
        ints_at(c, b->at.draw_token)[b->n_draw++] = b->row_first[i_row] + (r->draw == DRAW_LAST ? r->n - 1 : j);
    }
}

/* Jobs of a batch that draws once a token travel with it. */
static void fill_jobs(struct compiled *c)
{
    struct cuda_batch *b = &c->batch;
    b->has_jobs = b->plain && b->n_draw == b->m && b->m <= CUDA_SMALL && b->m <= c->plan->n_draw_max;
    for (int32_t i = 0; b->has_jobs && i < b->m; i++) cuda_job_fill(b->draws[i].pos, c->plan->n_vocab, &c->jobs[i]);
    if (b->has_jobs) memcpy(c->batch_host + b->at.jobs, c->jobs, (size_t)b->m * sizeof *c->jobs);
}

/* The block with the used part of the first kind's tables, which lie behind it, then that of the others'. */
mb_status cuda_batch_send(struct compiled *c, mb_error *err)
{
    const struct cuda_batch *b = &c->batch;
    const struct cuda_library *lib = c->dev->lib;
    size_t first = b->at.pages + (size_t)b->n_pages * sizeof(int32_t);
    MB_TRY(cuda_check(c->dev, lib->copy(c->batch_dev, c->batch_host, first, c->dev->stream), "the batch", err));
    for (int k = 1; k < c->plan->n_kinds; k++) {
        size_t off = b->at.pages + (size_t)k * c->n_pages_max * sizeof(int32_t);
        MB_TRY(cuda_check(c->dev, lib->copy(c->batch_dev + off, c->batch_host + off, (size_t)b->n_pages * sizeof(int32_t), c->dev->stream),
                          "page tables", err));
    }
    return MB_OK;
}

mb_status cuda_batch_fill(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err)
{
    struct cuda_batch *b = &c->batch;
    int32_t m = 0;
    if (n_rows > c->n_rows_max)
        return mb_fail(err, MB_INTERNAL, "a batch of %d rows was submitted, the plan holds %d", n_rows, c->n_rows_max);
    for (int32_t i = 0; i < n_rows; i++) {
        MB_TRY(plan_check_row(c->plan, &rows[i], m, err));
        m += rows[i].n;
    }
    cuda_batch_layout(c, m <= CUDA_SMALL ? m : c->plan->m_max, &b->at);
    b->rows = rows;
    b->n_rows = n_rows;
    b->m = b->n_draw = b->n_pages = b->n_small = b->n_large = b->n_split = 0;
    b->plain = true;
    for (int32_t i = 0; i < n_rows; i++) {
        const struct row *r = &rows[i];
        b->row_first[i] = b->m;
        MB_TRY(fill_state(c, i, r, err));
        MB_TRY(fill_row(c, r, err));
        if (r->n != 1 || r->n_embeds > 0 || r->n_adapters > 0 || r->hidden_out || r->draw == DRAW_NONE) b->plain = false;
        results[i].status = MB_OK;
        add_draws(c, i, r, &results[i]);
    }
    b->row_first[n_rows] = b->m;
    fill_jobs(c);
    *ints_at(c, b->at.slot) = c->slot;
    return cuda_adapters_fill(c, (const void **)(void *)(c->batch_host + b->at.stack), err);
}
