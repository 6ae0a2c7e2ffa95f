/* ranks_trade.c: joins of few tokens over cards that reach each other's memory: one launch a rank, in which parts are pushed into
 * inboxes (steps.h: cs_trade), instead of a meeting and a join that reads over the link. The same values, so the same bits.
 * Owned here: the inboxes.
 */
#include "ops/cuda/ranks_int.h"

#define ROOM (32 * 1024) /* units of 8 bytes of one rank in one exchange: beyond, packets half full of numbers take longer */

mb_status ranks_trade_open(struct comm *c, mb_error *err)
{
    const struct cuda_library *lib = c->rank[0]->lib;
    size_t bytes = CS_TRADE_HEAD + (size_t)2 * (size_t)c->n * ROOM * 16;
    for (int r = 0; r < c->n; r++) {
        struct device *d = c->rank[r];
        lib->device_use(d->ordinal);
        int code = lib->alloc(&c->inbox[r], bytes);
        if (code == 0) code = lib->fill(c->inbox[r], 0, bytes, d->stream);
        if (code == 0) code = lib->stream_wait(d->stream); /* before another rank writes to it */
        MB_TRY(cuda_check(d, code, "an inbox for other ranks", err));
    }
    return MB_OK;
}

/* Behind a wait for all streams. */
void ranks_trade_close(struct comm *c)
{
    for (int r = 0; r < c->n; r++) {
        if (!c->inbox[r]) continue;
        c->rank[r]->lib->device_use(c->rank[r]->ordinal);
        c->rank[r]->lib->free(c->inbox[r]);
        c->inbox[r] = NULL;
    }
}

static int32_t unit_of(const struct rank_join *j) { return j->is_input ? 4 : 2; }

/* A join that only rank 0 reads is no meeting, which an inbox needs, and neither is one in which a rank has nothing to send: the others
 * would not know that it has read what they sent before. Both go the other way. */
bool ranks_trade_takes(const struct rank_plans *p, const struct rank_join *j, int32_t m)
{
    const struct rank_group *g = p->group;
    int32_t unit = unit_of(j);
    if (m <= 0 || !g->comm.inbox[0] || g->comm.no_trade || j->first_only) return false;
    if (j->is_input && g->rank[0]->lib->x_layout_for(&g->rank[0]->ctx, m) != CK_X_ROWS) return false;
    for (int r = 0; r < g->n; r++)
        if (j->part[r].n == 0 || j->part[r].first % unit != 0 || j->part[r].n % unit != 0 || (int64_t)m * (j->part[r].n / unit) > ROOM) return false;
    return true;
}

static struct cs_trade trade_of(const struct rank_plans *p, const struct rank_join *j, int r, int32_t m, const void *part)
{
    struct compiled *c = p->compiled[r];
    const struct rank_group *g = p->group;
    int32_t unit = unit_of(j), end = j->part[g->n - 1].first + j->part[g->n - 1].n, n = j->part[r].n;
    struct cs_trade a = { .rank = r, .n = g->n, .m = m, .add = j->add, .index = g->comm.n_traded, .part = part, .room = ROOM, .given_up = g->comm.given_up };
    a.end = end / unit;
    if (j->is_input) {
        const struct ck_x *x = cuda_input_of(c, j->full);
        a.out = x->v;
        a.ld_out = x->k_pad / unit;
        a.ld_part = (n + 63) / 64 * 64 / unit;
        a.n_pad = (int32_t)((x->k_pad - end) / unit);
    } else {
        a.out = c->bufs[j->full];
        a.ld_out = c->ld[j->full] / unit;
        a.ld_part = (n + 3) / 4 * 4 / unit;
    }
    for (int q = 0; q < g->n; q++) {
        a.first[q] = j->part[q].first / unit;
        a.units[q] = j->part[q].n / unit;
        a.inbox[q] = g->comm.inbox[q];
    }
    return a;
}

mb_status ranks_trade(struct rank_plans *p, const struct rank_join *j, int32_t m, void *const *part, mb_error *err)
{
    for (int r = 0; r < p->group->n; r++) {
        struct device *d = p->group->rank[r];
        struct cs_trade a = trade_of(p, j, r, m, part[r]);
        d->lib->device_use(d->ordinal);
        MB_TRY(ranks_check(p->group, r, d->lib->trade(&p->compiled[r]->ctx, &a, d->stream), "an exchange", err));
    }
    p->group->comm.n_traded++;
    return MB_OK;
}

bool ranks_trade_takes_norm(const struct rank_plans *p, const struct rank_join *j, int32_t m, int32_t i_step)
{
    const struct plan_step *s = &p->model->steps[i_step];
    const struct device *d = p->group->rank[0];
    if (d->lib->x_layout_for(&d->ctx, m) != CK_X_ROWS) return false;
    if (s->op != STEP_NORM || j->is_input || s->in != j->full || s->outs[0] < 0 || s->outs[1] >= 0 || s->out >= 0 || s->post_add || s->u.norm.n_pieces > 1)
        return false;
    int32_t end = j->part[p->group->n - 1].first + j->part[p->group->n - 1].n;
    return p->model->bufs[j->full].width == end && end <= CS_TRADE_NORM_MAX;
}

mb_status ranks_trade_norm(struct rank_plans *p, const struct rank_join *j, int32_t m, void *const *part, mb_error *err)
{
    for (int r = 0; r < p->group->n; r++) {
        struct device *d = p->group->rank[r];
        struct cs_trade a = trade_of(p, j, r, m, part[r]);
        struct cs_norm norm = cuda_norm_args(p->compiled[r], &p->rank[r].plan.steps[j->part[r].at]);
        d->lib->device_use(d->ordinal);
        MB_TRY(ranks_check(p->group, r, d->lib->trade_norm(&p->compiled[r]->ctx, &a, &norm, d->stream), "an exchange and a norm", err));
    }
    p->group->comm.n_traded++;
    return MB_OK;
}

mb_status ranks_trade_end(struct rank_plans *p, mb_error *err)
{
    struct comm *c = &p->group->comm;
    for (int r = 0; c->n_traded > 0 && r < p->group->n; r++) {
        struct device *d = p->group->rank[r];
        d->lib->device_use(d->ordinal);
        MB_TRY(ranks_check(p->group, r, d->lib->trade_end(&p->compiled[r]->ctx, c->inbox[r], c->n_traded, d->stream), "the end of exchanges", err));
    }
    c->n_traded = 0;
    return MB_OK;
}
