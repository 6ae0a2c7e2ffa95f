/* ranks_split.c: the model's plan to one plan a rank. A matrix becomes the rank's rows of it. What attention and the activation
 * of an MLP work on (q, k, v, gate, up) stays where it was computed: a rank has KV heads with all their query heads, and the
 * same rows of gate and up. Their results, linear inputs of O and down, are joined, and so is what any other matrix gives; norms
 * and the residual are the same on every rank. A rank may have nothing of a matrix: its plan leaves the step out.
 */
#include <string.h>

#include "base/mem.h"
#include "ops/cuda/ranks_int.h"

#define REMEDY "use one GPU (--device cuda) or --device cpu"

/* Of the plan that is being written. */
struct splitter {
    struct rank_plans *all;
    int r;                          /* the rank */
    struct rank_plan *to;
    bool local[PLAN_MAX_BUFS];      /* every rank has columns of its own */
    int32_t width[PLAN_MAX_BUFS];   /* local: of this rank, the most of any step */
    int32_t n_joins, n_joined;      /* joins met so far; linears with any */
    mb_error *err;
};

static mb_status refuse(const struct splitter *s, const struct plan_step *step, const char *what)
{
    return mb_fail_at(s->err, MB_UNSUPPORTED, "device", "layer %d: %s not split over several GPUs in this version; " REMEDY,
                      (int)step->i_layer, what);
}

/* --- what stays on its rank --- */

/* The linear of the same layer that wrote `b`, looked for backwards; NULL: another step did. */
static const struct weight *writer_of(const struct plan *p, int32_t i, buf_id b)
{
    for (int32_t j = i - 1; j >= 0 && p->steps[j].i_layer == p->steps[i].i_layer; j--) {
        const struct plan_step *s = &p->steps[j];
        for (int k = 0; s->op == STEP_LINEAR && k < s->u.linear.n_parts; k++)
            if (s->u.linear.part[k].out == b && s->u.linear.part[k].out_offset == 0) return s->u.linear.part[k].w;
        if (s->out == b) return NULL;
    }
    return NULL;
}

/* A gated activation goes rank by rank when gate and up are whole products of the same rows. */
static bool glu_is_local(const struct plan *p, int32_t i)
{
    const struct plan_step *s = &p->steps[i];
    const struct weight *gate = writer_of(p, i, s->in), *up = writer_of(p, i, s->u.glu.up);
    return gate && up && s->u.glu.up_first == 0 && gate->n == s->u.glu.width && up->n == s->u.glu.width && gate->split == up->split &&
           s->outs[0] >= 0 && s->out < 0;
}

static void mark(struct splitter *s, buf_id b)
{
    if (b >= 0) s->local[b] = true;
}

static void mark_local(struct splitter *s)
{
    const struct plan *p = s->all->model;
    for (int32_t i = 0; i < p->n_steps; i++) {
        const struct plan_step *t = &p->steps[i];
        if (t->op == STEP_ROPE_KV) {
            mark(s, t->in);
            mark(s, t->out);
            mark(s, t->u.rope_kv.k);
            mark(s, t->u.rope_kv.v);
        } else if (t->op == STEP_ATTEND) {
            mark(s, t->in);
            mark(s, t->out);
            mark(s, t->u.attend.gate);
        } else if (t->op == STEP_GLU && glu_is_local(p, i)) {
            mark(s, t->in);
            mark(s, t->u.glu.up);
        }
    }
}

static mb_status check_step(const struct splitter *s, int32_t i)
{
    const struct plan_step *t = &s->all->model->steps[i];
    bool own_q = t->in >= 0 && s->local[t->in];
    switch (t->op) {
    case STEP_EXPERTS: case STEP_ROUTE: return refuse(s, t, "mixtures of experts are");
    case STEP_DELTA: return refuse(s, t, "gated delta nets are");
    case STEP_HEADS: case STEP_LATENT: case STEP_INDEX: return refuse(s, t, "attention over latents is");
    case STEP_SIGNAL: case STEP_EXPECT: return refuse(s, t, "blocks of tokens by diffusion are");
    case STEP_NORM: if (t->u.norm.bias) return refuse(s, t, "layer norms are");
        return own_q ? refuse(s, t, "a norm over all heads of q or k is") : MB_OK;
    case STEP_GLU: return own_q && !glu_is_local(s->all->model, i) ? refuse(s, t, "this activation is") : MB_OK;
    case STEP_LINEAR: case STEP_EMBED: case STEP_ROPE_KV: case STEP_ATTEND: case STEP_DRAWS: case STEP_SAMPLE: return MB_OK;
    }
    return MB_OK;
}

/* --- writing --- */

static struct plan_step *add_step(struct splitter *s, const struct plan_step *from)
{
    struct plan_step *to = &s->to->plan.steps[s->to->plan.n_steps++];
    *to = *from;
    return to;
}

/* Rows [first, end) of w for this rank. A whole matrix is seen from `first` on. */
static const struct weight *rows_of(struct splitter *s, const struct weight *w, int64_t *first, int64_t *end)
{
    const struct rank_weight *held = w->impl;
    struct weight *to = &s->to->weights[s->to->n_weights];
    struct cuda_weight *view = &s->to->views[s->to->n_weights++];
    rank_rows(w->n, w->split, s->all->group->n, s->r, first, end);
    *to = *w;
    to->n = *end - *first;
    to->impl = held ? held->part[s->r].impl : NULL;
    if (w->split != SPLIT_WHOLE || !to->impl) return to;
    *view = *(const struct cuda_weight *)to->impl; /* rows begin with a tile */
    view->chunk = NULL;
    view->w.tiles = (uint8_t *)view->w.tiles + (size_t)(*first / 16) * (size_t)((w->k + 63) / 64) *
                    (size_t)s->all->group->rank[0]->lib->tile_bytes(&view->w);
    view->w.row_scale += *first;
    view->w.n = to->n;
    to->impl = view;
    return to;
}

/* A buffer like one that is there, with another width; the same for the same name, type and width. */
static buf_id add_buf(struct splitter *s, const char *name, const struct plan_buf *like, int32_t width)
{
    struct plan *p = &s->to->plan;
    for (int i = s->all->model->n_bufs; i < p->n_bufs; i++)
        if (p->bufs[i].name == name && p->bufs[i].type == like->type && p->bufs[i].per_draw == like->per_draw && p->bufs[i].width == width)
            return (buf_id)i;
    if (p->n_bufs == PLAN_MAX_BUFS) return -1;
    p->bufs[p->n_bufs] = *like;
    p->bufs[p->n_bufs].name = name;
    p->bufs[p->n_bufs].width = width;
    return (buf_id)p->n_bufs++;
}

/* The next join behind step i: the first rank's plan makes it, the others find it. */
static mb_status add_join(struct splitter *s, int32_t i, const struct rank_join *join, const struct rank_join_part *part)
{
    struct rank_plans *all = s->all;
    if (s->n_joins == all->cap_joins) return mb_fail(s->err, MB_INTERNAL, "the ranks' plans have more than %d joins", (int)all->cap_joins);
    struct rank_join *to = &all->joins[s->n_joins];
    if (s->n_joins++ == all->n_joins) {
        *to = *join;
        to->i_step = i;
        all->n_joins++;
    }
    to->part[s->r] = *part;
    to->part[s->r].at = s->to->plan.n_steps;
    return part->n > 0 && part->buf < 0 ? mb_fail(s->err, MB_UNSUPPORTED, "the ranks' plans need more than %d buffers", PLAN_MAX_BUFS) : MB_OK;
}

/* Parts whose output stays go on as they are; the others write to buffers of their own, which are joined. */
static mb_status split_linear(struct splitter *s, int32_t i)
{
    /* Two sets take turns: a rank may still read what the step before has made while this one is at work. */
    static const char *const names[2][PLAN_MAX_PARTS] = { { "part", "part1", "part2", "part3" }, { "part_b", "part1_b", "part2_b", "part3_b" } };
    const char *const *name = names[s->n_joined & 1];
    const struct plan *p = s->all->model;
    const struct plan_step *from = &p->steps[i];
    struct plan_step *to = add_step(s, from);
    struct rank_join_part parts[PLAN_MAX_PARTS] = { { 0 } };
    int n = 0;
    for (int j = 0; j < from->u.linear.n_parts; j++) {
        int64_t first, end;
        buf_id out = from->u.linear.part[j].out;
        const struct weight *w = rows_of(s, from->u.linear.part[j].w, &first, &end);
        parts[j] = (struct rank_join_part){ .buf = -1, .first = (int32_t)first + from->u.linear.part[j].out_offset, .n = (int32_t)w->n };
        if (w->n == 0) continue;
        to->u.linear.part[n] = from->u.linear.part[j];
        to->u.linear.part[n].w = w;
        if (from->u.linear.part[j].bias) to->u.linear.part[n].bias = from->u.linear.part[j].bias + first;
        if (s->local[out]) {
            if (s->width[out] < (int32_t)w->n) s->width[out] = (int32_t)w->n;
        } else {
            parts[j].buf = to->u.linear.part[n].out = add_buf(s, name[j], &p->bufs[out], (int32_t)w->n);
            to->u.linear.part[n].out_offset = 0;
            to->u.linear.part[n].add = false;
        }
        n++;
    }
    to->u.linear.n_parts = n;
    if (n == 0) s->to->plan.n_steps--;
    int32_t before = s->n_joins;
    for (int j = 0; j < from->u.linear.n_parts; j++) {
        buf_id out = from->u.linear.part[j].out;
        if (s->local[out]) continue;
        struct rank_join join = { .full = out, .add = from->u.linear.part[j].add, .first_only = p->steps[p->n_steps - 1].in == out };
        MB_TRY(add_join(s, i, &join, &parts[j]));
    }
    s->n_joined += s->n_joins > before;
    return MB_OK;
}

/* The step's linear input: `n` of its columns from `first` on are this rank's. */
static mb_status split_input(struct splitter *s, int32_t i, struct plan_step *to, int64_t first, int64_t n)
{
    buf_id full = s->all->model->steps[i].outs[0];
    if (full < 0) return MB_OK;
    struct rank_join_part part = { .buf = -1, .first = (int32_t)first, .n = (int32_t)n };
    if (n > 0) part.buf = to->outs[0] = add_buf(s, s->all->model->bufs[full].name, &s->all->model->bufs[full], (int32_t)n);
    return add_join(s, i, &(struct rank_join){ .full = full, .is_input = true }, &part);
}

static void widen(struct splitter *s, buf_id b, int64_t width)
{
    if (b >= 0 && s->width[b] < width) s->width[b] = (int32_t)width;
}

static void split_rope(struct splitter *s, int32_t i)
{
    const struct plan_step *from = &s->all->model->steps[i];
    int64_t first, end, group = from->u.rope_kv.n_head / from->u.rope_kv.n_head_kv, d = from->u.rope_kv.head_dim;
    rank_share(from->u.rope_kv.n_head_kv, s->all->group->n, s->r, &first, &end);
    if (first == end) return;
    struct plan_step *to = add_step(s, from);
    to->u.rope_kv.n_head_kv = (int32_t)(end - first);
    to->u.rope_kv.n_head = (int32_t)((end - first) * group);
    widen(s, from->out, (end - first) * group * d);
}

static mb_status split_attend(struct splitter *s, int32_t i)
{
    const struct plan_step *from = &s->all->model->steps[i];
    int64_t first, end, group = from->u.attend.n_head / from->u.attend.n_head_kv, d = from->u.attend.head_dim;
    struct plan_step none = *from, *to = &none;
    rank_share(from->u.attend.n_head_kv, s->all->group->n, s->r, &first, &end);
    if (first < end) {
        to = add_step(s, from);
        to->u.attend.n_head_kv = (int32_t)(end - first);
        to->u.attend.n_head = (int32_t)((end - first) * group);
        if (from->u.attend.sinks) to->u.attend.sinks = from->u.attend.sinks + first * group;
        widen(s, from->out, (end - first) * group * d);
    }
    return split_input(s, i, to, first * group * d, (end - first) * group * d);
}

static mb_status split_glu(struct splitter *s, int32_t i)
{
    const struct plan_step *from = &s->all->model->steps[i];
    struct plan_step none = *from, *to = &none;
    int64_t first, end;
    if (!s->local[from->in]) {
        add_step(s, from);
        return MB_OK;
    }
    rank_rows(from->u.glu.width, writer_of(s->all->model, i, from->in)->split, s->all->group->n, s->r, &first, &end);
    if (first < end) {
        to = add_step(s, from);
        to->u.glu.width = (int32_t)(end - first);
    }
    return split_input(s, i, to, first, end - first);
}

static mb_status split_step(struct splitter *s, int32_t i)
{
    const struct plan_step *from = &s->all->model->steps[i];
    struct plan_step *to;
    switch (from->op) {
    case STEP_LINEAR: return split_linear(s, i);
    case STEP_ROPE_KV: split_rope(s, i); return MB_OK;
    case STEP_ATTEND: return split_attend(s, i);
    case STEP_GLU: return split_glu(s, i);
    case STEP_SAMPLE:
        if (s->r == 0) add_step(s, from);
        return MB_OK;
    case STEP_EMBED: /* the table is whole everywhere */
        to = add_step(s, from);
        if (from->u.embed.table->impl) to->u.embed.table = &((const struct rank_weight *)from->u.embed.table->impl)->part[s->r];
        return MB_OK;
    default: add_step(s, from); return MB_OK;
    }
}

/* --- a rank's plan --- */

static mb_status alloc_plan(struct rank_plan *to, const struct plan *p, mb_error *err)
{
    size_t n = (size_t)p->n_steps, n_weights = n * PLAN_MAX_PARTS;
    to->plan = *p;
    to->plan.steps = mb_calloc(n, sizeof *to->plan.steps);
    to->plan.layer_first = mb_calloc((size_t)p->n_layer + 1, sizeof *to->plan.layer_first);
    to->plan.n_steps = 0;
    to->weights = mb_calloc(n_weights, sizeof *to->weights);
    to->views = mb_calloc(n_weights, sizeof *to->views);
    to->step_of = mb_calloc(n + 1, sizeof *to->step_of);
    bool all = to->plan.steps && to->plan.layer_first && to->weights && to->views && to->step_of;
    return all ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for the ranks' plans");
}

/* Adapters do not run here: no scratch for them. */
static void drop_adapters(struct plan *p)
{
    p->max_lora_rank = 0;
    for (int i = 0; i < p->n_bufs; i++) p->bufs[i].copy = -1;
}

static mb_status split_rank(struct rank_plans *all, int r, mb_error *err)
{
    struct splitter s = { .all = all, .r = r, .to = &all->rank[r], .err = err };
    const struct plan *p = all->model;
    struct plan *to = &s.to->plan;
    MB_TRY(alloc_plan(s.to, p, err));
    drop_adapters(to);
    mark_local(&s);
    for (int32_t i = 0; i < p->n_steps; i++) {
        MB_TRY(check_step(&s, i));
        s.to->step_of[i] = to->n_steps;
        MB_TRY(split_step(&s, i));
    }
    s.to->step_of[p->n_steps] = to->n_steps;
    for (int32_t i = 0; i <= p->n_layer; i++) to->layer_first[i] = s.to->step_of[p->layer_first[i]];
    for (int i = 0; i < p->n_bufs; i++)
        if (s.local[i]) to->bufs[i].width = s.width[i] > 0 ? s.width[i] : 4;
    for (int k = 0; k < p->n_kinds; k++) {
        int64_t first, end;
        rank_share(p->kinds[k].n_head_kv, all->group->n, r, &first, &end);
        to->kinds[k].n_head_kv = (int32_t)(end - first);
    }
    return s.n_joins == all->n_joins ? MB_OK : mb_fail(err, MB_INTERNAL, "the ranks' plans do not meet");
}

mb_status ranks_split(struct rank_plans *all, mb_error *err)
{
    all->cap_joins = all->model->n_steps * 2;
    all->joins = mb_calloc((size_t)all->cap_joins, sizeof *all->joins);
    if (!all->joins) return mb_fail(err, MB_NO_MEMORY, "out of memory for the ranks' plans");
    for (int r = 0; r < all->group->n; r++) MB_TRY(split_rank(all, r, err));
    return MB_OK;
}

void ranks_split_free(struct rank_plans *all)
{
    for (int r = 0; r < OPS_RANKS_MAX; r++) {
        struct rank_plan *p = &all->rank[r];
        mb_free(p->plan.steps);
        mb_free(p->plan.layer_first);
        mb_free(p->weights);
        mb_free(p->views);
        mb_free(p->step_of);
    }
    mb_free(all->joins);
}
