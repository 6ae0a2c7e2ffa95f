/* batch.c: rows of a step to flat arrays: which row, id, index and position each token has, and which tokens draw. */
#include "ops/cpu/cpu_int.h"

/* Recurrent layers go on where their state is, and only from a state that will be kept. */
static mb_status check_state(const struct compiled *c, const struct row *r, mb_error *err)
{
    bool any = false;
    for (int32_t k = 0; k < c->plan->n_kinds; k++) any = any || c->plan->kinds[k].type == KIND_STATE;
    if (!any) return MB_OK;
    if (r->commit != COMMIT_YES)
        return mb_fail(err, MB_UNSUPPORTED, "rows that may be taken back are not in this version for recurrent layers");
    if (r->seq->i_state != r->i_first || r->seq->n_replay != 0)
        return mb_fail(err, MB_INTERNAL, "a row begins at index %d, its recurrent state is at %d", r->i_first, r->seq->i_state);
    return MB_OK;
}

static void add_draws(struct cpu_batch *b, int32_t i_row, const struct row *r, struct row_result *result)
{
    int32_t n = row_n_draw(r);
    for (int32_t j = 0; j < n; j++) {
        struct cpu_draw_pos *d = &b->draws[b->n_draw++];
        d->i_row = i_row;
        d->i_token = b->row_first[i_row] + (r->draw == DRAW_LAST ? r->n - 1 : j);
        d->pos = &r->draws[j];
        d->out = &result->draws[j];
        d->logits_out = r->logits_out;
    }
}

mb_status cpu_batch_fill(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                         mb_error *err)
{
    struct cpu_batch *b = &c->batch;
    b->rows = rows;
    b->n_rows = n_rows;
    b->results = results;
    b->m = b->n_draw = 0;
    b->all_single = true;
    for (int32_t i = 0; i < n_rows; i++) {
        const struct row *r = &rows[i];
        MB_TRY(plan_check_row(c->plan, r, b->m, err));
        MB_TRY(check_state(c, r, err));
        b->row_first[i] = b->m;
        if (r->n != 1 || r->n_two_way > 0) b->all_single = false;
        for (int32_t j = 0; j < r->n; j++, b->m++) {
            b->row_of[b->m] = i;
            b->id[b->m] = r->ids[j];
            b->index[b->m] = r->i_first + j;
            b->rope_pos[b->m] = r->rope_pos ? r->rope_pos[j] : r->i_first + j;
        }
        b->row_first[i + 1] = b->m;
        results[i].status = MB_OK;
        add_draws(b, i, r, &results[i]);
        /* logits_out of a row is [n_draw][n_vocab]: give each draw its own line. */
        for (int32_t j = 0; r->logits_out && j < row_n_draw(r); j++)
            b->draws[b->n_draw - row_n_draw(r) + j].logits_out = r->logits_out + (int64_t)j * c->plan->n_vocab;
    }
    return cpu_lora_fill(c, err);
}

uint8_t *cpu_kv_area(const struct compiled *c, const struct row *r, int i_kind, int i_in_kind, int i_head, int32_t index)
{
    const struct kv_kind *k = &c->plan->kinds[i_kind];
    const struct kv_table *t = &r->seq->kind[i_kind];
    int32_t i_page = index / KV_PAGE_TOKENS;
    if (i_page >= t->n_page || t->page[i_page] < 0) return NULL;
    return c->dev->kv + (size_t)t->page[i_page] * KV_PAGE_UNIT +
           ((size_t)i_in_kind * (size_t)k->n_head_kv + (size_t)i_head) * k->head_bytes;
}

float *cpu_state(const struct compiled *c, const struct row *r, int i_kind, int i_in_kind)
{
    const struct kv_table *t = &r->seq->kind[i_kind];
    if (t->n_page < 1 || t->page[0] < 0) return NULL;
    return (float *)(c->dev->kv + (size_t)t->page[0] * KV_PAGE_UNIT + (size_t)i_in_kind * c->plan->kinds[i_kind].head_bytes);
}
