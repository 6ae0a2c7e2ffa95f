/* step_lora.c: LoRA adapters in a linear: u = A x before the product, y += B u behind product and bias, each adapter of the
 * row's stack in order. x is the float input: what the step before computed, kept beside its quantised form for the tokens
 * that need it (plan_buf.copy). All of it is per token, so neither neighbours nor the cut of the work can change a bit;
 * a batch without adapters pays one comparison a linear and no barrier.
 * u of one token lies in its slot; for steps over drawing positions (the head) the slot is the position in the block.
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"

size_t cpu_lora_slot_floats(const struct plan *p)
{
    return (size_t)PLAN_MAX_PARTS * PLAN_MAX_STACK * (size_t)p->max_lora_rank;
}

static mb_status check_stack(const struct plan *p, const struct row *r, mb_error *err)
{
    if (r->n_adapters > PLAN_MAX_STACK)
        return mb_fail_at(err, MB_UNSUPPORTED, "adapter", "%d adapters are stacked, at most %d can be", (int)r->n_adapters,
                          PLAN_MAX_STACK);
    for (int32_t i = 0; i < r->n_adapters; i++)
        if (r->adapters[i]->max_rank > p->max_lora_rank)
            return mb_fail_at(err, MB_UNSUPPORTED, "adapter", "adapter %.64s has rank %d, the plan was made for %d",
                              r->adapters[i]->id, (int)r->adapters[i]->max_rank, (int)p->max_lora_rank);
    return MB_OK;
}

mb_status cpu_lora_fill(struct compiled *c, mb_error *err)
{
    const struct cpu_batch *b = &c->batch;
    struct cpu_lora *l = &c->lora;
    l->n_token = 0;
    for (int32_t i = 0; i < b->n_rows; i++) {
        const struct row *r = &b->rows[i];
        MB_TRY(check_stack(c->plan, r, err));
        for (int32_t t = b->row_first[i]; t < b->row_first[i + 1]; t++) {
            l->slot_of[t] = r->n_adapters > 0 ? l->n_token : -1;
            if (r->n_adapters > 0) l->token[l->n_token++] = t;
        }
    }
    return MB_OK;
}

/* --- where things lie --- */

/* Row i of a step (a token, or a drawing position of the block): the row of the batch, and the slot of its u. */
static const struct row *row_at(const struct compiled *c, bool per_draw, int64_t i, int64_t *slot)
{
    const struct cpu_batch *b = &c->batch;
    *slot = per_draw ? i : c->lora.slot_of[i];
    return &b->rows[per_draw ? b->draws[b->draw0 + i].i_row : b->row_of[i]];
}

/* The i-th row of a step that may have adapters; tokens without are not counted. */
static int64_t row_index(const struct compiled *c, bool per_draw, int64_t i)
{
    return per_draw ? i : c->lora.token[i];
}

static int64_t n_slots(const struct compiled *c, bool per_draw)
{
    return per_draw ? c->batch.n_draw_now : c->lora.n_token;
}

static float *u_at(const struct compiled *c, int64_t slot, int i_part, int i_stack)
{
    int64_t rank = c->plan->max_lora_rank;
    return c->lora.u + ((slot * PLAN_MAX_PARTS + i_part) * PLAN_MAX_STACK + i_stack) * rank;
}

static const struct lora_module *module_of(const struct adapter_handle *a, const struct weight *w)
{
    return w->i_module >= 0 ? &a->modules[w->i_module] : NULL;
}

static const float *input_at(const struct compiled *c, buf_id in, int64_t i)
{
    return cpu_row_f32(c, c->form[in] == ACT_F32 ? in : c->plan->bufs[in].copy, i);
}

void cpu_lora_copy(const struct compiled *c, buf_id input, int64_t i, const float *x, int64_t col0, int64_t col1)
{
    const struct plan_buf *b = &c->plan->bufs[input];
    int64_t slot;
    if (b->copy < 0 || c->form[input] == ACT_F32) return; /* floats already, or no adapter can name its readers */
    const struct row *r = row_at(c, b->per_draw, i, &slot);
    float *to = cpu_row_f32(c, b->copy, i);
    if (r->n_adapters > 0 && to != x) memcpy(to + col0, x + col0, (size_t)(col1 - col0) * sizeof *x);
}

/* --- u = A x --- */

/* All adapters of one row at one part. i_u: number of the part in its pass, where its u goes. */
static void project_part(struct compiled *c, const struct plan_step *s, int64_t i_slot, int i_part, int i_u)
{
    const struct weight *w = s->u.linear.part[i_part].w;
    bool per_draw = c->plan->bufs[s->in].per_draw;
    int64_t i = row_index(c, per_draw, i_slot), slot;
    const struct row *r = row_at(c, per_draw, i, &slot);
    for (int i_stack = 0; i_stack < r->n_adapters; i_stack++) {
        const struct lora_module *m = module_of(r->adapters[i_stack], w);
        if (m && m->rank > 0)
            c->dev->kernels.lora_project(m->a, w->k, m->rank, input_at(c, s->in, i), w->k, u_at(c, slot, i_u, i_stack));
    }
}

/* Tiles: (slot, part of the pass). */
static int n_parts_of(const struct cpu_pass *p)
{
    int n = 0;
    for (int32_t i = 0; i < p->n_steps; i++) n += p->s[i].u.linear.n_parts;
    return n;
}

int64_t cpu_lora_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    if (!cpu_lora_on(c)) return 0;
    return n_slots(c, c->plan->bufs[p->s->in].per_draw) * n_parts_of(p);
}

void cpu_lora_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    (void)i_thread;
    int i_u = (int)(i_tile % n_parts_of(p)), i_part = i_u;
    const struct plan_step *s = p->s;
    for (; i_part >= s->u.linear.n_parts; s++) i_part -= s->u.linear.n_parts;
    project_part(c, s, i_tile / n_parts_of(p), i_part, i_u);
}

/* --- y += B u --- */

void cpu_lora_add(const struct compiled *c, const struct plan_step *s, int i_part, int i_u, int64_t row0, int64_t n_rows,
                  float *y, int64_t ld, int64_t col0, int64_t n_cols)
{
    const struct weight *w = s->u.linear.part[i_part].w;
    bool per_draw = c->plan->bufs[s->in].per_draw;
    for (int64_t j = 0; j < n_slots(c, per_draw); j++) {
        int64_t i = row_index(c, per_draw, j), slot;
        if (i < row0 || i >= row0 + n_rows) continue;
        const struct row *r = row_at(c, per_draw, i, &slot);
        for (int i_stack = 0; i_stack < r->n_adapters; i_stack++) {
            const struct lora_module *m = module_of(r->adapters[i_stack], w);
            if (m && m->rank > 0)
                c->dev->kernels.lora_add(m->b + col0, w->n, m->rank, u_at(c, slot, i_u, i_stack), n_cols, y + (i - row0) * ld);
        }
    }
}
