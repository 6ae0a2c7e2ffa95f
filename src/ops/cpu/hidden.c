/* hidden.c: the final norm's output at the last token of rows that ask for it (row.hidden_out): embeddings. Reads the
 * residual behind the last layer; no logits are computed for such a row. Same arithmetic as the norm step of the plan.
 */
#include "ops/cpu/cpu_int.h"

void cpu_hidden_out(struct compiled *c)
{
    const struct cpu_batch *b = &c->batch;
    if (c->i_final_norm >= c->plan->n_steps) return;
    const struct plan_step *norm = &c->plan->steps[c->i_final_norm], *draws = &c->plan->steps[c->i_draws];
    for (int32_t i = 0; i < b->n_rows; i++)
        if (b->rows[i].hidden_out)
            cpu_norm(&c->dev->kernels, norm, cpu_row_f32(c, draws->in, b->row_first[i + 1] - 1), c->plan->d_model, b->rows[i].hidden_out);
}
