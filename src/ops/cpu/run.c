/* run.c: the loop over the steps. Every thread runs the same list; a barrier stands after each phase. The per-draw steps
 * at the end run once for each block of plan.n_draw_max drawing positions, so that scoring a long text needs no room
 * for all its logits.
 */
#include "base/clock.h"
#include "ops/cpu/cpu_int.h"

struct run_ctx {
    struct compiled *c;
    int32_t first, last;
};

static void run_steps(struct compiled *c, int32_t first, int32_t last, int i_thread, int n_threads)
{
    for (int32_t i = first; i < last; i++) {
        const struct cpu_step *s = &c->steps[i];
        for (int phase = 0, n_phases = 1; phase < n_phases; phase++) {
            n_phases = s->run(c, s->s, phase, i_thread, n_threads);
            pool_barrier(c->dev->pool, i_thread);
        }
    }
}

/* Draw blocks: thread 0 moves the window, a barrier makes it visible. */
static void run_draw_steps(struct compiled *c, int32_t first, int32_t last, int i_thread, int n_threads)
{
    struct cpu_batch *b = &c->batch;
    for (int32_t d = 0; d < b->n_draw; d += c->plan->n_draw_max) {
        if (i_thread == 0) {
            b->draw0 = d;
            b->n_draw_now = b->n_draw - d < c->plan->n_draw_max ? b->n_draw - d : c->plan->n_draw_max;
        }
        pool_barrier(c->dev->pool, i_thread);
        run_steps(c, first, last, i_thread, n_threads);
    }
}

static void run_thread(void *ctx, int i_thread, int n_threads)
{
    struct run_ctx *r = ctx;
    int32_t split = r->c->i_draws < r->first ? r->first : r->c->i_draws < r->last ? r->c->i_draws : r->last;
    run_steps(r->c, r->first, split, i_thread, n_threads);
    if (split < r->last) cpu_hidden_out(r->c, i_thread, n_threads);
    if (split < r->last) run_draw_steps(r->c, split, r->last, i_thread, n_threads);
}

mb_status cpu_run_range(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                        int32_t first, int32_t last, mb_error *err)
{
    int64_t t0 = clock_now_ns();
    MB_TRY(cpu_batch_fill(c, rows, n_rows, results, err));
    struct run_ctx r = { c, first, last };
    pool_run(c->dev->pool, run_thread, &r);
    pool_stats(c->dev->pool, &c->stats.n_barriers, &c->stats.barrier_ns);
    c->stats.step_ns = (uint64_t)(clock_now_ns() - t0);
    return MB_OK;
}

mb_status cpu_submit(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err)
{
    return cpu_run_range(c, rows, n_rows, results, 0, c->plan->n_steps, err);
}

mb_status cpu_collect(struct compiled *c, mb_error *err)
{
    (void)c;
    (void)err;
    return MB_OK; /* submit has computed */
}

void cpu_stats(struct compiled *c, struct ops_step_stats *out)
{
    *out = c->stats;
}
