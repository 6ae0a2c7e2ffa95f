/* ranks_run.c: the ranks' plans side by side: every rank's steps up to the next join, then the join, on each rank's stream, by one
 * thread. Rank 0 draws. As with one card, a batch of single tokens runs as captured graphs from the second time on: one for every
 * stream, with the exchange between the ranks captured in them.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "ops/cuda/ranks_int.h"

static struct rank_plans *plans_of(struct compiled *c) { return (struct rank_plans *)(void *)c; }

static const struct cuda_library *lib_of(const struct rank_plans *p) { return p->group->rank[0]->lib; }

/* --- joins --- */

static int32_t rows_of(const struct rank_plans *p, const struct rank_join *j)
{
    const struct cuda_batch *b = &p->compiled[0]->batch;
    return p->model->bufs[j->full].per_draw ? b->n_draw_now : b->m;
}

/* Bytes that m rows of a part take, as they lie there. */
static size_t part_bytes(const struct rank_plans *p, const struct rank_join *j, int r, int32_t m)
{
    const struct rank_join_part *part = &j->part[r];
    if (part->n == 0) return 0;
    if (!j->is_input) return (size_t)m * (size_t)((part->n + 3) / 4 * 4) * sizeof(float);
    size_t rows = p->group->rank[0]->lib->x_layout_for(&p->group->rank[0]->ctx, m) == CK_X_TILES ? (size_t)(m + 127) / 128 * 128 : (size_t)m;
    return rows * (size_t)((part->n + 63) / 64 * 64) * 2;
}

static void *part_at(const struct rank_plans *p, const struct rank_join *j, int r)
{
    buf_id b = j->part[r].buf;
    if (j->part[r].n == 0) return NULL;
    return j->is_input ? p->compiled[r]->inputs[b].v : p->compiled[r]->bufs[b];
}

static int join_floats(const struct rank_plans *p, const struct rank_join *j, int r, int32_t m, void *const *from)
{
    struct compiled *c = p->compiled[r];
    struct cs_join a = { .out = c->bufs[j->full], .ld_out = c->ld[j->full], .m = m, .n_parts = p->group->n, .add = j->add };
    for (int q = 0; q < p->group->n; q++) {
        a.part[q] = from[q];
        a.first[q] = j->part[q].first;
        a.n[q] = j->part[q].n;
        a.ld[q] = (j->part[q].n + 3) / 4 * 4;
    }
    return c->dev->lib->join(&c->ctx, &a, c->dev->stream);
}

static int join_inputs(const struct rank_plans *p, const struct rank_join *j, int r, int32_t m, void *const *from)
{
    struct compiled *c = p->compiled[r];
    struct cs_join_input a = { .out = *cuda_input_of(c, j->full), .m = m, .n_parts = p->group->n };
    for (int q = 0; q < p->group->n; q++) {
        int32_t n = j->part[q].n;
        a.first[q] = j->part[q].first;
        a.part[q] = (struct ck_x){ .v = from[q], .layout = a.out.layout, .k = n, .k_pad = (n + 63) / 64 * 64, .mul = a.out.mul };
    }
    return c->dev->lib->join_input(&c->ctx, &a, c->dev->stream);
}

/* Join j. norm: the step behind it, of the model's plan, when that may be part of the join; -1: it may not. *covers: it was. */
static mb_status run_join(struct rank_plans *p, const struct rank_join *j, int32_t norm, bool *covers, mb_error *err)
{
    struct rank_group *g = p->group;
    void *part[OPS_RANKS_MAX], *from[OPS_RANKS_MAX][OPS_RANKS_MAX];
    size_t bytes[OPS_RANKS_MAX];
    int32_t m = rows_of(p, j);
    for (int r = 0; r < g->n; r++) {
        part[r] = part_at(p, j, r);
        bytes[r] = part_bytes(p, j, r, m);
    }
    *covers = false;
    if (ranks_trade_takes(p, j, m)) {
        *covers = norm >= 0 && ranks_trade_takes_norm(p, j, m, norm);
        return *covers ? ranks_trade_norm(p, j, m, part, err) : ranks_trade(p, j, m, part, err);
    }
    MB_TRY(ranks_check(g, -1, g->comm.ops->spread(&g->comm, part, bytes, p->stage, from), "an exchange", err));
    for (int r = 0; r < (j->first_only ? 1 : g->n); r++) {
        lib_of(p)->device_use(g->rank[r]->ordinal);
        MB_TRY(ranks_check(g, r, j->is_input ? join_inputs(p, j, r, m, from[r]) : join_floats(p, j, r, m, from[r]), "a join", err));
    }
    return MB_OK;
}

/* --- steps --- */

/* A test asks for a rank that dies in step N: a kernel of the last one reads where nothing is. */
static mb_status poison(struct rank_plans *p, mb_error *err)
{
    struct compiled *c = p->compiled[p->group->n - 1];
    const void *nowhere = (const void *)(uintptr_t)64;
    lib_of(p)->device_use(c->dev->ordinal);
    return ranks_check(p->group, p->group->n - 1, c->dev->lib->gather_rows(&c->ctx, c->hidden, 1, nowhere, 1, 1, c->hidden, 1, c->dev->stream),
                       "a planted fault", err);
}

/* Every rank's steps from its at[r] up to to[r]. */
static mb_status run_until(struct rank_plans *p, int32_t *at, const int32_t *to, mb_error *err)
{
    for (int r = 0; r < p->group->n; r++) {
        lib_of(p)->device_use(p->group->rank[r]->ordinal);
        if (at[r] < to[r]) MB_TRY(ranks_end(p->group, cuda_run_steps(p->compiled[r], at[r], to[r], err)));
        at[r] = to[r];
    }
    return MB_OK;
}

/* Steps [first, last) of the model's plan. */
static mb_status run_steps(struct rank_plans *p, int32_t first, int32_t last, mb_error *err)
{
    int32_t at[OPS_RANKS_MAX], to[OPS_RANKS_MAX];
    p->group->comm.n_traded = 0; /* a recording that failed has left some, which never ran */
    for (int r = 0; r < p->group->n; r++) at[r] = p->rank[r].step_of[first];
    for (int32_t i = 0; i < p->n_joins; i++) {
        const struct rank_join *j = &p->joins[i];
        if (j->i_step < first || j->i_step >= last) continue;
        for (int r = 0; r < p->group->n; r++) to[r] = j->part[r].at;
        MB_TRY(run_until(p, at, to, err));
        bool covers = false, last_here = i + 1 == p->n_joins || p->joins[i + 1].i_step != j->i_step;
        MB_TRY(run_join(p, j, last_here && j->i_step + 1 < last ? j->i_step + 1 : -1, &covers, err));
        for (int r = 0; covers && r < p->group->n; r++) at[r]++;
    }
    for (int r = 0; r < p->group->n; r++) to[r] = p->rank[r].step_of[last];
    MB_TRY(run_until(p, at, to, err));
    return ranks_trade_end(p, err);
}

static mb_status send_jobs(struct rank_plans *p, mb_error *err)
{
    lib_of(p)->device_use(p->group->rank[0]->ordinal);
    return cuda_send_jobs(p->compiled[0], err);
}

static void open_block(struct rank_plans *p, int32_t draw0)
{
    for (int r = 0; r < p->group->n; r++) cuda_open_block(p->compiled[r], draw0);
}

static mb_status finish_block(struct rank_plans *p, mb_error *err)
{
    struct compiled *c = p->compiled[0];
    const struct plan_step *s = &c->plan->steps[c->plan->n_steps - 1];
    MB_TRY(ranks_wait(p->group, "the step", err));
    lib_of(p)->device_use(c->dev->ordinal);
    return cuda_draws_finish(c, c->bufs[s->in], (size_t)c->ld[s->in], err);
}

static int32_t draws_step(const struct rank_plans *p)
{
    int32_t i = 0;
    while (i < p->model->n_steps && p->model->steps[i].op != STEP_DRAWS) i++;
    return i;
}

static mb_status run_draw_steps(struct rank_plans *p, int32_t first, int32_t last, mb_error *err)
{
    struct cuda_batch *b = &p->compiled[0]->batch;
    for (int32_t at = 0; at < b->n_draw; at += b->n_draw_now) {
        open_block(p, at);
        MB_TRY(send_jobs(p, err));
        MB_TRY(run_steps(p, first, last, err));
        if (last == p->model->n_steps) MB_TRY(finish_block(p, err));
    }
    return MB_OK;
}

/* --- graphs --- */

static void graphs_free(struct rank_plans *p)
{
    for (int m = 0; m <= CUDA_SMALL; m++)
        for (int i = 0; i < CUDA_SPLIT_STEPS; i++) {
            for (int r = 0; r < p->group->n; r++)
                if (p->graphs[m][i].graph[r]) lib_of(p)->graph_free(p->graphs[m][i].graph[r]);
            p->graphs[m][i] = (struct rank_graph){ { NULL }, 0 };
        }
    p->graphs_of_pool = p->group->rank[0]->kv_generation;
}

void ranks_graphs_free(struct rank_group *g)
{
    for (struct rank_plans *p = g->plans; p; p = p->next) graphs_free(p);
}

/* As run.c has it for one card: the graph of this batch's shape, counted; NULL: it runs step by step. */
static struct rank_graph *graph_of(struct rank_plans *p, int32_t *n_split)
{
    const struct cuda_batch *b = &p->compiled[0]->batch;
    int i = 0;
    if (!p->use_graphs || !b->plain || b->n_draw != b->m || b->m > CUDA_SMALL || b->m > p->model->n_draw_max) return NULL;
    if (p->graphs_of_pool != p->group->rank[0]->kv_generation) graphs_free(p);
    while ((1 << i) < b->n_split) i++;
    if (i >= CUDA_SPLIT_STEPS) return NULL;
    *n_split = 1 << i;
    struct rank_graph *g = &p->graphs[b->m][i];
    if (g->uses < 2) g->uses++;
    return g->uses < 2 ? NULL : g;
}

/* Begin or end recording on every stream; the first code that is not 0. */
static int record(struct rank_plans *p, struct rank_graph *g, bool begin)
{
    int code = 0;
    for (int r = 0; r < p->group->n; r++) {
        struct device *d = p->group->rank[r];
        if (d->stream_is_lent) continue;
        d->lib->device_use(d->ordinal);
        int one = begin ? d->lib->graph_begin(d->stream) : d->lib->graph_end(d->stream, &g->graph[r]);
        if (code == 0) code = one;
    }
    return code;
}

/* A graph that cannot be made is no fault: from then on every step is launched by itself. */
static void capture(struct rank_plans *p, struct rank_graph *g)
{
    mb_error why = { 0 };
    p->group->recording = true;
    int code = record(p, g, true);
    mb_status st = code == 0 ? run_steps(p, 0, p->model->n_steps, &why) : MB_OK;
    int end = record(p, g, false);
    p->group->recording = false;
    if (code == 0) code = end;
    if (code == 0 && st == MB_OK) return;
    LOGW("cuda", "steps run without graphs: %s", why.text[0] ? why.text : lib_of(p)->error_text(code));
    graphs_free(p);
    p->use_graphs = false;
}

static mb_status run_graphs(struct rank_plans *p, const struct rank_graph *g, mb_error *err)
{
    for (int r = 0; r < p->group->n; r++) {
        struct device *d = p->group->rank[r];
        if (!g->graph[r]) continue;
        d->lib->device_use(d->ordinal);
        MB_TRY(ranks_check(p->group, r, d->lib->graph_run(g->graph[r], d->stream), "a captured step", err));
    }
    return MB_OK;
}

static mb_status run_as_graph(struct rank_plans *p, bool *done, mb_error *err)
{
    int32_t n_split = 0;
    struct rank_graph *g = graph_of(p, &n_split);
    *done = false;
    if (!g) return MB_OK;
    open_block(p, 0);
    for (int r = 0; r < p->group->n; r++) p->compiled[r]->batch.n_split = n_split;
    if (!g->graph[0]) capture(p, g);
    if (!p->use_graphs) return MB_OK;
    MB_TRY(send_jobs(p, err));
    MB_TRY(run_graphs(p, g, err));
    *done = true;
    return finish_block(p, err);
}

/* --- the entry points --- */

static mb_status run_all(struct rank_plans *p, int32_t first, int32_t last, mb_error *err)
{
    bool done = false;
    int32_t i_draws = draws_step(p), before = i_draws < last ? i_draws : last;
    if (fault_hit("rank_death")) MB_TRY(poison(p, err));
    if (first == 0 && last == p->model->n_steps) MB_TRY(run_as_graph(p, &done, err));
    if (done) return MB_OK;
    for (int r = 0; r < p->group->n; r++) p->compiled[r]->batch.n_draw_now = 0;
    if (first < before) MB_TRY(run_steps(p, first, before, err));
    if (last > i_draws) {
        lib_of(p)->device_use(p->group->rank[0]->ordinal);
        MB_TRY(cuda_hidden_out(p->compiled[0], err));
        MB_TRY(run_draw_steps(p, first > i_draws ? first : i_draws, last, err));
    }
    return ranks_wait(p->group, "the step", err);
}

/* The same rows for every rank; the results that are written are rank 0's. */
static mb_status fill_batches(struct rank_plans *p, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err)
{
    for (int r = 0; r < p->group->n; r++) {
        struct device *d = p->group->rank[r];
        int failed = d->failed;
        d->failed = 0;
        MB_TRY(ranks_check(p->group, r, failed, "a copy of pages", err));
        MB_TRY(ranks_check(p->group, r, d->lib->device_use(d->ordinal), "the card", err));
        MB_TRY(cuda_batch_fill(p->compiled[r], rows, n_rows, results, err));
        MB_TRY(cuda_batch_send(p->compiled[r], err));
    }
    return MB_OK;
}

static mb_status check_rows(struct rank_plans *p, const struct row *rows, int32_t n_rows, mb_error *err)
{
    struct rank_group *g = p->group;
    if (g->dead) return mb_fail_at(err, MB_DEVICE, "device", "%s: a rank has failed; start again", g->describe);
    if (g->asked_for_page) {
        g->asked_for_page = false;
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "pages of several GPUs are not copied to the host in this version; use one GPU");
    }
    for (int32_t i = 0; i < n_rows; i++)
        if (rows[i].n_adapters > 0)
            return mb_fail_at(err, MB_UNSUPPORTED, "adapter", "adapters do not run on several GPUs in this version; use one GPU (--device cuda) "
                              "or --device cpu");
    return MB_OK;
}

mb_status ranks_run_range(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, int32_t first,
                          int32_t last, mb_error *err)
{
    struct rank_plans *p = plans_of(c);
    int64_t t0 = clock_now_ns();
    MB_TRY(check_rows(p, rows, n_rows, err));
    MB_TRY(fill_batches(p, rows, n_rows, results, err));
    MB_TRY(run_all(p, first, last, err));
    p->stats.step_ns = (uint64_t)(clock_now_ns() - t0);
    return MB_OK;
}

mb_status ranks_submit(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err)
{
    return ranks_run_range(c, rows, n_rows, results, 0, plans_of(c)->model->n_steps, err);
}

mb_status ranks_collect(struct compiled *c, mb_error *err)
{
    (void)c;
    (void)err;
    return MB_OK; /* submit has waited */
}

/* --- what exchanges cost --- */

static mb_status run_joins(struct rank_plans *p, mb_error *err)
{
    bool covers = false;
    p->group->comm.n_traded = 0;
    for (int32_t i = 0; i < p->n_joins; i++) MB_TRY(run_join(p, &p->joins[i], -1, &covers, err));
    return ranks_trade_end(p, err);
}

static mb_status record_joins(struct rank_plans *p, struct rank_graph *g, mb_error *err)
{
    int code = record(p, g, true);
    mb_status st = code == 0 ? run_joins(p, err) : MB_OK;
    int end = record(p, g, false);
    MB_TRY(st);
    return ranks_check(p->group, 0, code != 0 ? code : end, "recording the joins", err);
}

mb_status ranks_joins_time(struct compiled *c, int n, double *seconds, mb_error *err)
{
    struct rank_plans *p = plans_of(c);
    struct rank_graph g = { { NULL }, 0 };
    bool recorded = p->use_graphs && p->compiled[0]->batch.plain;
    mb_status st = run_joins(p, err);
    *seconds = 1e9;
    if (st == MB_OK && recorded) st = record_joins(p, &g, err);
    if (st == MB_OK) st = ranks_wait(p->group, "the joins", err);
    for (int i = 0; i < n && st == MB_OK; i++) {
        int64_t t0 = clock_now_ns();
        st = recorded ? run_graphs(p, &g, err) : run_joins(p, err);
        if (st == MB_OK) st = ranks_wait(p->group, "the joins", err);
        double s = (double)(clock_now_ns() - t0) * 1e-9;
        if (s < *seconds) *seconds = s;
    }
    for (int r = 0; r < p->group->n; r++)
        if (g.graph[r]) lib_of(p)->graph_free(g.graph[r]);
    return st;
}

/* --- compile --- */

/* Room for what all ranks bring to a join, for the largest batch. */
static size_t stage_bytes(const struct rank_plans *p)
{
    size_t most = 0;
    for (int32_t i = 0; p->group->comm.ops->needs_stage && i < p->n_joins; i++) {
        size_t all = 0;
        int32_t rows = p->model->bufs[p->joins[i].full].per_draw ? p->model->n_draw_max : p->model->m_max;
        for (int r = 0; r < p->group->n; r++) all += part_bytes(p, &p->joins[i], r, rows);
        if (all > most) most = all;
    }
    return most;
}

static mb_status open_plans(struct rank_plans **out, struct device *d, const struct plan *model, mb_error *err)
{
    struct rank_plans *p = *out = mb_calloc(1, sizeof *p);
    if (!p) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    p->group = ranks_group(d);
    p->model = model;
    p->use_graphs = !p->group->rank[0]->no_graphs;
    if (model->tier == TIER_F32)
        return mb_fail_at(err, MB_UNSUPPORTED, "tier", "the f32 tier is computed on the CPU alone: use --device cpu, or --tier l1");
    return ranks_split(p, err);
}

size_t ranks_scratch_bytes(struct device *d, const struct plan *model, const struct compile_options *opt)
{
    struct rank_plans *p;
    mb_error why = { 0 };
    size_t most = 0;
    if (open_plans(&p, d, model, &why) == MB_OK)
        for (int r = 0; r < p->group->n; r++) {
            size_t one = cuda_scratch_bytes(p->group->rank[r], &p->rank[r].plan, opt) + stage_bytes(p);
            if (one > most) most = one;
        }
    if (p) ranks_split_free(p);
    mb_free(p);
    return most;
}

static mb_status compile_rank(struct rank_plans *p, int r, const struct compile_options *opt, mb_error *err)
{
    struct device *d = p->group->rank[r];
    size_t bytes = stage_bytes(p);
    MB_TRY(cuda_compile(d, &p->rank[r].plan, opt, &p->compiled[r], err));
    if (bytes == 0) return MB_OK;
    return cuda_check(d, d->lib->alloc(&p->stage[r], bytes), "memory for what other ranks send", err);
}

/* A linear input's power of two is that of the step that writes it (compile.c): the joined one has its part's. */
static void copy_mul(struct rank_plans *p)
{
    for (int32_t i = 0; i < p->n_joins; i++)
        for (int r = 0; r < p->group->n && p->joins[i].is_input; r++) {
            const struct rank_join_part *part = &p->joins[i].part[r];
            if (part->n == 0) continue;
            for (int q = 0; q < p->group->n; q++) p->compiled[q]->inputs[p->joins[i].full].mul = p->compiled[r]->inputs[part->buf].mul;
        }
}

mb_status ranks_compile(struct device *d, const struct plan *model, const struct compile_options *opt, struct compiled **out, mb_error *err)
{
    struct rank_plans *p;
    *out = NULL;
    mb_status st = open_plans(&p, d, model, err);
    for (int r = 0; st == MB_OK && r < p->group->n; r++) st = compile_rank(p, r, opt, err);
    if (st != MB_OK) {
        ranks_compiled_free((struct compiled *)(void *)p);
        return st;
    }
    copy_mul(p);
    p->next = p->group->plans;
    p->group->plans = p;
    *out = (struct compiled *)(void *)p;
    return MB_OK;
}

void ranks_compiled_free(struct compiled *c)
{
    struct rank_plans *p = plans_of(c);
    if (!p || p->group->stuck) return;
    mb_error why = { 0 };
    for (struct rank_plans **at = &p->group->plans; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    if (!p->group->dead && ranks_wait(p->group, "the last step", &why) != MB_OK) LOGW("cuda", "%s", why.text);
    if (p->group->stuck) return;
    graphs_free(p);
    for (int r = 0; r < p->group->n; r++) {
        if (!p->compiled[r]) continue;
        cuda_compiled_free(p->compiled[r]);
        if (p->stage[r]) lib_of(p)->free(p->stage[r]);
    }
    ranks_split_free(p);
    mb_free(p);
}

/* What rank 0 has of it: the whole of what is the same on all ranks. */
float *ranks_buffer(struct compiled *c, buf_id b, size_t *row_bytes)
{
    return cuda_buffer(plans_of(c)->compiled[0], b, row_bytes);
}

void ranks_stats(struct compiled *c, struct ops_step_stats *out) { *out = plans_of(c)->stats; }

/* Rank 0's share of the step. */
void ranks_describe_step(struct compiled *c, int32_t i_step, char *text, size_t cap)
{
    const struct rank_plans *p = plans_of(c);
    int32_t at = p->rank[0].step_of[i_step];
    if (at == p->rank[0].step_of[i_step + 1]) snprintf(text, cap, "nothing on rank 0");
    else cuda_describe_step(p->compiled[0], at, text, cap);
}
