/* run.c: the loop over the passes. It lives in `open`: whoever ends a pass walks on, alone, over passes that have nothing
 * for many threads, to the next one that has. The per-draw passes at the end run once for each block of plan.n_draw_max
 * drawing positions, so that scoring a long text needs no room for all its logits.
 */
#include "base/clock.h"
#include "ops/cpu/cpu_int.h"

/* Passes [next, last); `now` is the open one. Written by the opener. */
struct run_ctx {
    struct compiled *c;
    const struct cpu_pass *now;
    int32_t next, last;
    bool drawing; /* inside the per-draw passes */
};

/* The next block of draws; false: there is none. */
static bool draws_next(struct run_ctx *r)
{
    struct cpu_batch *b = &r->c->batch;
    if (!r->drawing) cpu_hidden_out(r->c);
    b->draw0 = r->drawing ? b->draw0 + b->n_draw_now : 0;
    b->n_draw_now = b->n_draw - b->draw0 < r->c->plan->n_draw_max ? b->n_draw - b->draw0 : r->c->plan->n_draw_max;
    r->drawing = true;
    return b->n_draw_now > 0;
}

static int64_t open_next(void *ctx, int i_thread, const int32_t **bounds)
{
    struct run_ctx *r = ctx;
    for (;;) {
        if (r->c->dev->experts && experts_failed(r->c->dev->experts)) return 0;
        if (r->now && r->now->again && r->now->again(r->c, r->now)) r->next -= 2;
        bool more_draws = r->next == r->last && r->drawing;
        if (more_draws) r->next = r->c->i_draws_pass;
        if (r->next == r->last) return 0;
        if (r->next == r->c->i_draws_pass && !draws_next(r)) return 0;
        r->now = &r->c->passes[r->next++];
        int64_t n = r->now->open(r->c, r->now, i_thread, bounds);
        if (n > 0) return n;
    }
}

static void run_tile(void *ctx, int64_t i_tile, int i_thread)
{
    struct run_ctx *r = ctx;
    r->now->tile(r->c, r->now, i_tile, i_thread);
}

/* First pass that begins at or after a step. */
static int32_t pass_at(const struct compiled *c, int32_t i_step)
{
    int32_t i = 0;
    while (i < c->n_passes && c->passes[i].s < c->plan->steps + i_step) i++;
    return i;
}

mb_status cpu_run_range(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                        int32_t first, int32_t last, mb_error *err)
{
    static const struct pool_work work = { open_next, run_tile };
    int64_t t0 = clock_now_ns();
    MB_TRY(cpu_batch_fill(c, rows, n_rows, results, err));
    struct run_ctx r = { .c = c, .next = pass_at(c, first), .last = pass_at(c, last) };
    pool_run_regions(c->dev->pool, &work, &r);
    pool_stats(c->dev->pool, &c->stats.n_barriers, &c->stats.barrier_ns);
    c->stats.step_ns = (uint64_t)(clock_now_ns() - t0);
    c->moe.round0 = c->moe.round1 = c->moe.n_asked = 0;
    return c->dev->experts ? experts_end_run(c->dev->experts, err) : MB_OK;
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
