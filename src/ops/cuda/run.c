/* run.c: the loop over the steps: each becomes launches on the stream, in order. The per-draw steps at the end run once for
 * each block of plan.n_draw_max drawing positions. A batch of single tokens without adapters or given embeddings has
 * launches that depend on its size and on its longest context (in powers of two of splits) alone; from the second time on
 * they run as a captured graph. The same launches, so the same bits.
 */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "ops/cuda/cuda_int.h"

/* --- where things lie --- */

static void *batch_at(const struct compiled *c, size_t off)
{
    return c->batch_dev + off;
}

int32_t cuda_rows_of(const struct compiled *c, buf_id b)
{
    return c->plan->bufs[b].per_draw ? c->batch.n_draw_now : c->batch.m;
}

static const int32_t *pages_of(const struct compiled *c, int i_kind)
{
    return (const int32_t *)batch_at(c, c->batch.at.pages) + (size_t)i_kind * c->n_pages_max;
}

static int64_t head_off(const struct compiled *c, int i_kind, int i_in_kind)
{
    const struct kv_kind *k = &c->plan->kinds[i_kind];
    return (int64_t)((size_t)i_in_kind * (size_t)k->n_head_kv * k->head_bytes);
}

/* A linear input, in the layout that its rows now want; NULL for none. */
const struct ck_x *cuda_input_of(struct compiled *c, buf_id b)
{
    if (b < 0) return NULL;
    c->inputs[b].layout = c->dev->lib->x_layout_for(&c->ctx, cuda_rows_of(c, b));
    return &c->inputs[b];
}

/* Where adapters find a linear input as floats; -1: nobody looks now. */
static buf_id copy_of(const struct compiled *c, buf_id input)
{
    return c->batch.lora && input >= 0 ? c->plan->bufs[input].copy : -1;
}

/* --- steps --- */

static int run_embed(struct compiled *c, const struct plan_step *s)
{
    const struct cuda_library *lib = c->dev->lib;
    const struct cuda_weight *w = s->u.embed.table->impl;
    const struct cuda_batch *b = &c->batch;
    int64_t ld = c->ld[s->out], d = c->plan->bufs[s->out].width;
    int code = lib->gather(&c->ctx, &w->w, batch_at(c, b->at.id), b->m, s->u.embed.scale, c->bufs[s->out], ld, c->dev->stream);
    for (int32_t i = 0; i < b->n_rows && !s->u.embed.ids_only; i++)
        for (int32_t e = 0; e < b->rows[i].n_embeds; e++) {
            const struct embed_span *span = &b->rows[i].embeds[e];
            for (int32_t j = 0; code == 0 && j < span->n; j++)
                code = lib->copy(c->bufs[s->out] + (b->row_first[i] + span->first + j) * ld, span->data + j * d,
                                 (size_t)d * sizeof(float), c->dev->stream);
        }
    return code;
}

struct cs_norm cuda_norm_args(struct compiled *c, const struct plan_step *s)
{
    buf_id copy = copy_of(c, s->outs[0]);
    struct cs_norm a = { .in = c->bufs[s->in], .ld_in = c->ld[s->in], .m = cuda_rows_of(c, s->in), .width = c->plan->bufs[s->in].width,
                         .n_pieces = s->u.norm.n_pieces > 1 ? s->u.norm.n_pieces : 1, .weight = cuda_constant(c, s, CONST_NORM),
                         .bias = cuda_constant(c, s, CONST_NORM_BIAS), .eps = s->u.norm.eps, .identity = s->u.norm.identity, .sum_scale = s->u.norm.sum_scale,
                         .x = cuda_input_of(c, s->outs[0]) };
    if (s->post_add) {
        a.add_to = c->bufs[s->add_to];
        a.ld_add = c->ld[s->add_to];
    }
    if (s->out >= 0) {
        a.out = c->bufs[s->out];
        a.ld_out = c->ld[s->out];
    }
    if (copy >= 0 && copy != s->in) {
        a.copy = c->bufs[copy];
        a.ld_copy = c->ld[copy];
    }
    return a;
}

/* in: the rows that it takes, those of s->in. */
static int run_norm(struct compiled *c, const struct plan_step *s, buf_id in)
{
    struct cs_norm a = cuda_norm_args(c, s);
    a.in = c->bufs[in];
    a.ld_in = c->ld[in];
    return c->dev->lib->norm(&c->ctx, &a, c->dev->stream);
}

/* Part j of a linear, its output in y. */
static struct ck_part part_of(const struct compiled *c, const struct plan_step *s, int j, float *y, int64_t ld_y)
{
    const struct cuda_weight *w = s->u.linear.part[j].w->impl;
    return (struct ck_part){ .w = &w->w, .y = y, .ld_y = ld_y, .bias = cuda_constant(c, s, CONST_BIAS + j) };
}

static float *output_of(const struct compiled *c, const struct plan_step *s, int j)
{
    return c->bufs[s->u.linear.part[j].out] + s->u.linear.part[j].out_offset;
}

/* A part that adapters may name: the product with its bias to scratch, the adapters, then the rest. */
static int run_part_lora(struct compiled *c, const struct plan_step *s, int j)
{
    const struct weight *w = s->u.linear.part[j].w;
    const struct cuda_library *lib = c->dev->lib;
    bool per_draw = c->plan->bufs[s->in].per_draw;
    buf_id copy = c->plan->bufs[s->in].copy, out = s->u.linear.part[j].out;
    struct ck_part part = part_of(c, s, j, c->linear_tmp, w->n);
    struct cs_lora a = { .stack = batch_at(c, c->batch.at.stack), .stack_max = PLAN_MAX_STACK, .i_module = w->i_module,
                         .m = cuda_rows_of(c, s->in), .rank_max = c->plan->max_lora_rank, .x = c->bufs[copy], .ld_x = c->ld[copy],
                         .k = w->k, .n = w->n, .u = c->lora_u, .y = c->linear_tmp, .ld_y = w->n };
    if (per_draw) a.token_of = (const int32_t *)batch_at(c, c->batch.at.draw_token) + c->batch.draw0;
    int code = lib->linear(&c->ctx, cuda_input_of(c, s->in), a.m, &part, 1, c->dev->stream);
    if (code == 0) code = lib->lora_apply(&c->ctx, &a, c->dev->stream);
    if (code != 0) return code;
    return lib->linear_finish(&c->ctx, c->linear_tmp, w->n, a.m, w->n, s->u.linear.part[j].scale, s->u.linear.part[j].softcap,
                              output_of(c, s, j), c->ld[out], s->u.linear.part[j].add, c->dev->stream);
}

/* x: its input, written or a norm that the products take. */
static int run_linear(struct compiled *c, const struct plan_step *s, const struct ck_x *x)
{
    struct ck_part parts[PLAN_MAX_PARTS];
    int n = 0, code = 0;
    for (int j = 0; j < s->u.linear.n_parts && code == 0; j++) {
        if (c->batch.lora && s->u.linear.part[j].w->i_module >= 0 && c->plan->bufs[s->in].copy >= 0) {
            code = run_part_lora(c, s, j);
            continue;
        }
        parts[n] = part_of(c, s, j, output_of(c, s, j), c->ld[s->u.linear.part[j].out]);
        parts[n].scale = s->u.linear.part[j].scale;
        parts[n].softcap = s->u.linear.part[j].softcap;
        parts[n++].add = s->u.linear.part[j].add;
    }
    if (n > 0 && code == 0) code = c->dev->lib->linear(&c->ctx, x, cuda_rows_of(c, s->in), parts, n, c->dev->stream);
    return code;
}

static struct cs_rope rope_of(struct compiled *c, const struct plan_step *s)
{
    const struct rope_spec *r = &s->u.rope_kv.rope;
    const struct cuda_batch *b = &c->batch;
    int kind = s->u.rope_kv.i_kind;
    struct cs_rope a = { .q = c->bufs[s->in], .ld_q = c->ld[s->in], .q_step = s->u.rope_kv.q_step, .out = c->bufs[s->out],
                         .ld_out = c->ld[s->out], .m = b->m, .n_head = s->u.rope_kv.n_head, .n_head_kv = s->u.rope_kv.n_head_kv,
                         .head_dim = s->u.rope_kv.head_dim, .q_norm = cuda_constant(c, s, CONST_Q_NORM),
                         .k_norm = cuda_constant(c, s, CONST_K_NORM), .norm_eps = s->u.rope_kv.norm_eps,
                         .q_scale = s->u.rope_kv.q_scale, .v_norm = s->u.rope_kv.v_norm, .pool = c->dev->kv,
                         .pages = pages_of(c, kind), .table_of = batch_at(c, b->at.table_of), .index = batch_at(c, b->at.index),
                         .head_off = head_off(c, kind, s->u.rope_kv.i_in_kind), .kv_format = c->plan->kinds[kind].format };
    if (s->u.rope_kv.k >= 0) {
        a.k = c->bufs[s->u.rope_kv.k];
        a.ld_k = c->ld[s->u.rope_kv.k];
        a.v = c->bufs[s->u.rope_kv.v];
        a.ld_v = c->ld[s->u.rope_kv.v];
    }
    if (s->u.rope_kv.q_steps) a.q_more = batch_at(c, b->at.q_more);
    if (r->n_rot > 0) {
        a.table = batch_at(c, b->at.rope[cuda_rope_of(c, r)]);
        a.n_rot = r->n_rot;
        a.interleaved = r->interleaved;
    }
    return a;
}

static int run_gate(struct compiled *c, const struct plan_step *s, const struct ck_x *x)
{
    buf_id g = s->u.attend.gate;
    struct cs_gate a = { .out = c->bufs[s->out], .gate = c->bufs[g], .ld_out = c->ld[s->out], .ld_gate = c->ld[g], .m = c->batch.m,
                         .n_head = s->u.attend.n_head, .head_dim = s->u.attend.head_dim, .gate_first = s->u.attend.gate_first,
                         .gate_step = s->u.attend.gate_step, .x = x };
    return c->dev->lib->gate(&c->ctx, &a, c->dev->stream);
}

/* x: where its output goes as a linear input; NULL: not yet. */
static struct ck_attend attend_of(struct compiled *c, const struct plan_step *s, const struct ck_x *x)
{
    const struct cuda_batch *b = &c->batch;
    int kind = s->u.attend.i_kind;
    return (struct ck_attend){ .q = c->bufs[s->in], .ld_q = c->ld[s->in], .q_step = s->u.attend.head_dim, .out = c->bufs[s->out],
                               .ld_out = c->ld[s->out], .x = x, .hi = batch_at(c, b->at.hi),
                               .lo = batch_at(c, b->at.lo[cuda_window_of(c, s->u.attend.window)]), .pool = c->dev->kv,
                               .pages = pages_of(c, kind), .ld_pages = 1, .head_off = head_off(c, kind, s->u.attend.i_in_kind),
                               .kv_format = c->plan->kinds[kind].format, .n_head = s->u.attend.n_head,
                               .n_head_kv = s->u.attend.n_head_kv, .head_dim = s->u.attend.head_dim, .softcap = s->u.attend.softcap,
                               .sinks = cuda_constant(c, s, CONST_SINKS), .small_units = batch_at(c, b->at.small),
                               .n_small = b->n_small, .n_split = b->n_split, .large_units = batch_at(c, b->at.large),
                               .n_large = b->n_large };
}

/* Attention; rope: the step before, when its work is part of the launch. */
static int run_attend(struct compiled *c, const struct plan_step *s, const struct plan_step *rope)
{
    const struct ck_x *x = cuda_input_of(c, s->outs[0]);
    bool gated = s->u.attend.gate >= 0;
    struct ck_attend a = attend_of(c, s, gated ? NULL : x);
    int code;
    if (rope) {
        struct cs_rope r = rope_of(c, rope);
        code = c->dev->lib->rope_attend(&c->ctx, &r, &a, c->dev->stream);
    } else {
        code = c->dev->lib->attend(&c->ctx, &a, c->dev->stream);
    }
    return code == 0 && gated ? run_gate(c, s, x) : code;
}

static int run_rope(struct compiled *c, const struct plan_step *s)
{
    struct cs_rope a = rope_of(c, s);
    return c->dev->lib->rope(&c->ctx, &a, c->dev->stream);
}

static struct cs_delta_part delta_part(const struct compiled *c, const struct delta_part *p)
{
    return (struct cs_delta_part){ .v = c->bufs[p->buf] + p->first, .ld = c->ld[p->buf], .step = p->step };
}

static int run_delta(struct compiled *c, const struct plan_step *s)
{
    const struct kv_kind *k = &c->plan->kinds[s->u.delta.i_kind];
    const struct ck_x *x = cuda_input_of(c, s->outs[0]);
    struct cs_delta a = { .q = delta_part(c, &s->u.delta.q), .k = delta_part(c, &s->u.delta.k), .x = delta_part(c, &s->u.delta.v),
                          .z = delta_part(c, &s->u.delta.z), .b = delta_part(c, &s->u.delta.b), .a = delta_part(c, &s->u.delta.a),
                          .conv = cuda_constant(c, s, CONST_CONV), .decay = cuda_constant(c, s, CONST_DECAY),
                          .dt_bias = cuda_constant(c, s, CONST_DT_BIAS), .norm = cuda_constant(c, s, CONST_DELTA_NORM),
                          .norm_eps = s->u.delta.norm_eps, .qk_eps = (float)(1e-6 / (double)s->u.delta.dim_k),
                          .n_head_k = s->u.delta.n_head_k, .n_head_v = s->u.delta.n_head_v, .dim_k = s->u.delta.dim_k,
                          .dim_v = s->u.delta.dim_v, .n_conv = s->u.delta.n_conv, .n_rows = c->batch.n_rows,
                          .rows = batch_at(c, c->batch.at.rows), .pool = c->dev->kv,
                          .state_off = (int64_t)((size_t)s->u.delta.i_in_kind * k->head_bytes), .out = c->bufs[s->out],
                          .ld_out = c->ld[s->out] };
    int code = c->dev->lib->delta(&c->ctx, &a, c->dev->stream);
    if (code != 0 || !x) return code;
    return c->dev->lib->x_write(&c->ctx, a.out, a.ld_out, c->batch.m, x, c->dev->stream);
}

static int run_glu(struct compiled *c, const struct plan_step *s)
{
    buf_id copy = copy_of(c, s->outs[0]), out = s->out >= 0 ? s->out : copy;
    struct cs_glu a = { .gate = c->bufs[s->in], .ld_gate = c->ld[s->in], .m = cuda_rows_of(c, s->in), .width = s->u.glu.width, .kind = (int32_t)s->u.glu.kind,
                        .x = cuda_input_of(c, s->outs[0]) };
    if (s->u.glu.up >= 0) {
        a.up = c->bufs[s->u.glu.up] + s->u.glu.up_first;
        a.ld_up = c->ld[s->u.glu.up];
    }
    if (out >= 0) {
        a.out = c->bufs[out];
        a.ld_out = c->ld[out];
    }
    return c->dev->lib->glu(&c->ctx, &a, c->dev->stream);
}

static int run_linear_glu(struct compiled *c, const struct plan_step *s, const struct plan_step *glu, const struct ck_x *x)
{
    const struct cuda_weight *gate = s->u.linear.part[0].w->impl, *up = s->u.linear.part[1].w->impl;
    return c->dev->lib->linear_glu(&c->ctx, x, cuda_rows_of(c, s->in), &gate->w, &up->w, cuda_constant(c, s, CONST_BIAS),
                                   cuda_constant(c, s, CONST_BIAS + 1), (int)glu->u.glu.kind, cuda_input_of(c, glu->outs[0]), c->dev->stream);
}

static int run_draws(struct compiled *c, const struct plan_step *s)
{
    const int32_t *rows = (const int32_t *)batch_at(c, c->batch.at.draw_token) + c->batch.draw0;
    return c->dev->lib->gather_rows(&c->ctx, c->bufs[s->in], c->ld[s->in], rows, c->batch.n_draw_now, c->plan->bufs[s->in].width,
                                    c->bufs[s->out], c->ld[s->out], c->dev->stream);
}

static int run_sample(struct compiled *c, const struct plan_step *s)
{
    const struct cuda_library *lib = c->dev->lib;
    const struct cuda_draw_job *jobs = c->batch.has_jobs ? batch_at(c, c->batch.at.jobs) : c->jobs_dev;
    struct cs_draws a = { .logits = c->bufs[s->in], .n_vocab = c->plan->n_vocab, .n_draw = c->batch.n_draw_now, .ld = c->ld[s->in],
                          .jobs = jobs, .outs = c->outs, .slot = batch_at(c, c->batch.at.slot), .slot_step = c->plan->n_draw_max,
                          .ids = c->batch.has_jobs ? batch_at(c, c->batch.at.id) : NULL, .scratch = c->sample_scratch };
    return lib->sample(&c->ctx, &a, c->dev->stream);
}

/* A linear, with the activation behind it when that is part of the launch. *n: steps covered. */
static int run_products(struct compiled *c, const struct plan_step *s, const struct plan_step *end, const struct ck_x *x, int32_t *n)
{
    bool fuses = s + 1 < end && cuda_glu_fuses(c, s, s + 1);
    *n = fuses ? 2 : 1;
    return fuses ? run_linear_glu(c, s, s + 1, x) : run_linear(c, s, x);
}

/* A norm of the rows in `in`, or it and the products that take it. */
static int run_norm_step(struct compiled *c, const struct plan_step *s, const struct plan_step *end, buf_id in, int32_t *n)
{
    if (s + 1 == end || !cuda_norm_fuses(c, s, s + 1)) return run_norm(c, s, in);
    struct ck_x x = *cuda_input_of(c, s->outs[0]);
    x.norm_in = c->bufs[in];
    x.ld_norm = c->ld[in];
    x.norm_weight = cuda_constant(c, s, CONST_NORM);
    x.norm_eps = s->u.norm.eps;
    x.norm_identity = s->u.norm.identity;
    int code = run_products(c, s + 1, end, &x, n);
    ++*n;
    return code;
}

/* The rows that draw, or they and what their norm covers. */
static int run_draws_step(struct compiled *c, const struct plan_step *s, const struct plan_step *end, int32_t *n)
{
    if (s + 1 == end || !cuda_draws_fuse(c, s, s + 1)) return run_draws(c, s);
    int code = run_norm_step(c, s + 1, end, s->in, n);
    ++*n;
    return code;
}

/* The step at s; *n: how many it covers. */
static int run_step(struct compiled *c, const struct plan_step *s, const struct plan_step *end, int32_t *n)
{
    *n = 1;
    switch (s->op) {
    case STEP_EMBED: return run_embed(c, s);
    case STEP_NORM: return run_norm_step(c, s, end, s->in, n);
    case STEP_LINEAR: return run_products(c, s, end, cuda_input_of(c, s->in), n);
    case STEP_ROPE_KV:
        if (s + 1 == end || !cuda_rope_fuses(c, s, s + 1)) return run_rope(c, s);
        *n = 2;
        return run_attend(c, s + 1, s);
    case STEP_ATTEND: return cuda_is_latent(s) ? cuda_run_latent_attend(c, s) : run_attend(c, s, NULL);
    case STEP_HEADS: return cuda_run_heads(c, s);
    case STEP_LATENT: return cuda_run_latent(c, s);
    case STEP_INDEX: return cuda_run_index(c, s);
    case STEP_GLU: return run_glu(c, s);
    case STEP_DRAWS: return run_draws_step(c, s, end, n);
    case STEP_SAMPLE: return run_sample(c, s);
    case STEP_ROUTE: return cuda_run_route(c, s);
    case STEP_EXPERTS: return cuda_run_experts(c, s);
    case STEP_DELTA: return run_delta(c, s);
    case STEP_SIGNAL: case STEP_EXPECT: break; /* refused with the plan */
    }
    return -1;
}

mb_status cuda_run_steps(struct compiled *c, int32_t first, int32_t last, mb_error *err)
{
    static const char *const names[] = { "embed", "norm", "linear", "rope", "attend", "heads", "latent", "index", "delta", "glu", "route", "experts", "draws", "sample",
                                         "signal", "expect" };
    const struct plan_step *end = c->plan->steps + last;
    for (int32_t i = first, n; i < last; i += n)
        MB_TRY(cuda_check(c->dev, run_step(c, &c->plan->steps[i], end, &n), names[c->plan->steps[i].op], err));
    return MB_OK;
}

/* --- draws --- */

mb_status cuda_send_jobs(struct compiled *c, mb_error *err)
{
    const struct cuda_batch *b = &c->batch;
    if (b->has_jobs) return MB_OK; /* they have come with the batch */
    for (int32_t i = 0; i < b->n_draw_now; i++) cuda_job_fill(b->draws[b->draw0 + i].pos, c->plan->n_vocab, &c->jobs[i]);
    return cuda_check(c->dev, c->dev->lib->copy(c->jobs_dev, c->jobs, (size_t)b->n_draw_now * sizeof *c->jobs, c->dev->stream),
                      "drawing positions", err);
}

/* The block of draws that begins at draw0. */
void cuda_open_block(struct compiled *c, int32_t draw0)
{
    struct cuda_batch *b = &c->batch;
    b->draw0 = draw0;
    b->n_draw_now = b->n_draw - draw0 < c->plan->n_draw_max ? b->n_draw - draw0 : c->plan->n_draw_max;
}

static mb_status finish_block(struct compiled *c, mb_error *err)
{
    const struct plan_step *s = &c->plan->steps[c->plan->n_steps - 1];
    return cuda_draws_finish(c, c->bufs[s->in], (size_t)c->ld[s->in], err);
}

/* Per-draw steps [first, last) for every block. */
static mb_status run_draw_steps(struct compiled *c, int32_t first, int32_t last, mb_error *err)
{
    for (int32_t at = 0; at < c->batch.n_draw; at += c->batch.n_draw_now) {
        cuda_open_block(c, at);
        MB_TRY(cuda_send_jobs(c, err));
        MB_TRY(cuda_run_steps(c, first, last, err));
        if (last == c->plan->n_steps) MB_TRY(finish_block(c, err));
    }
    return MB_OK;
}

/* Rows that asked for the final norm's output at their last token. */
mb_status cuda_hidden_out(struct compiled *c, mb_error *err)
{
    const struct cuda_batch *b = &c->batch;
    if (c->i_final_norm >= c->plan->n_steps) return MB_OK;
    const struct plan_step *norm = &c->plan->steps[c->i_final_norm], *draws = &c->plan->steps[c->i_draws];
    for (int32_t i = 0; i < b->n_rows; i++) {
        if (!b->rows[i].hidden_out) continue;
        struct cs_norm a = { .in = c->bufs[draws->in] + (b->row_first[i + 1] - 1) * c->ld[draws->in], .ld_in = c->ld[draws->in], .m = 1,
                             .width = c->plan->d_model, .n_pieces = 1, .weight = cuda_constant(c, norm, CONST_NORM),
                             .bias = cuda_constant(c, norm, CONST_NORM_BIAS), .eps = norm->u.norm.eps, .out = c->hidden, .ld_out = c->plan->d_model };
        MB_TRY(cuda_check(c->dev, c->dev->lib->norm(&c->ctx, &a, c->dev->stream), "the final norm", err));
        MB_TRY(cuda_check(c->dev, c->dev->lib->copy(b->rows[i].hidden_out, c->hidden, (size_t)c->plan->d_model * sizeof(float),
                                                    c->dev->stream), "the final norm", err));
    }
    return MB_OK;
}

/* --- graphs --- */

void cuda_graphs_free(struct compiled *c)
{
    for (int m = 0; m <= CUDA_SMALL; m++)
        for (int i = 0; i < CUDA_SPLIT_STEPS; i++) {
            if (c->graphs[m][i].graph) c->dev->lib->graph_free(c->graphs[m][i].graph);
            c->graphs[m][i] = (struct cuda_graph){ NULL, 0 };
        }
    c->graphs_of_pool = c->dev->kv_generation;
}

/* Its place. */
static struct cuda_graph *graph_place(struct compiled *c, int32_t m, int32_t *n_split)
{
    int i = 0;
    while (i < CUDA_SPLIT_STEPS && (1 << i) < *n_split) i++;
    if (i == CUDA_SPLIT_STEPS) return NULL;
    *n_split = 1 << i;
    return &c->graphs[m][i];
}

struct cuda_graph *cuda_graph_at(struct compiled *c, int32_t m, int32_t *n_split)
{
    struct cuda_graph *g = c->use_graphs && m <= CUDA_SMALL ? graph_place(c, m, n_split) : NULL;
    return g && g->graph ? g : NULL;
}

/* The graph of this batch's shape, counted; NULL: it runs step by step. */
static struct cuda_graph *graph_of(struct compiled *c, int32_t *n_split)
{
    const struct cuda_batch *b = &c->batch;
    if (!c->use_graphs || !b->has_jobs) return NULL;
    if (c->graphs_of_pool != c->dev->kv_generation) cuda_graphs_free(c);
    *n_split = b->n_split;
    struct cuda_graph *g = graph_place(c, b->m, n_split);
    if (!g) return NULL;
    if (g->uses < 2) g->uses++;
    return g->uses < 2 ? NULL : g;
}

/* A graph that cannot be made is no fault: from then on every step is launched by itself. */
static void capture(struct compiled *c, struct cuda_graph *g)
{
    const struct cuda_library *lib = c->dev->lib;
    mb_error why = { 0 };
    int code = lib->graph_begin(c->dev->stream);
    if (code == 0) {
        mb_status st = cuda_run_steps(c, 0, c->plan->n_steps, &why);
        code = lib->graph_end(c->dev->stream, &g->graph);
        if (st != MB_OK && code == 0) code = -1;
    }
    if (code == 0) return;
    LOGW("cuda", "steps run without graphs: %s", why.text[0] ? why.text : lib->error_text(code));
    cuda_graphs_free(c);
    c->use_graphs = false;
}

/* The whole of a small batch; false in *done: it was not one. runs: it was launched ahead. */
static mb_status run_as_graph(struct compiled *c, bool runs, bool *done, mb_error *err)
{
    int32_t n_split = 0;
    struct cuda_graph *g = graph_of(c, &n_split);
    *done = false;
    if (!g) return MB_OK;
    cuda_open_block(c, 0);
    c->batch.n_split = n_split;
    if (!g->graph) capture(c, g);
    if (!c->use_graphs) return MB_OK;
    if (!runs) {
        MB_TRY(cuda_ahead_send(c, err));
        MB_TRY(cuda_check(c->dev, c->dev->lib->graph_run(g->graph, c->dev->stream), "a captured step", err));
    }
    *done = true;
    MB_TRY(cuda_ahead_launch(c, g, err));
    return finish_block(c, err);
}

/* --- the entry points --- */

static mb_status run_all(struct compiled *c, int32_t first, int32_t last, mb_error *err)
{
    bool done = false, whole = first == 0 && last == c->plan->n_steps, runs = cuda_ahead_take(c, whole);
    if (whole) MB_TRY(run_as_graph(c, runs, &done, err));
    if (done) return MB_OK;
    MB_TRY(cuda_batch_send(c, err));
    int32_t i_draws = c->i_draws < last ? c->i_draws : last;
    c->batch.n_draw_now = 0;
    if (first < i_draws) MB_TRY(cuda_run_steps(c, first, i_draws, err));
    if (last > c->i_draws) {
        MB_TRY(cuda_hidden_out(c, err));
        MB_TRY(run_draw_steps(c, first > c->i_draws ? first : c->i_draws, last, err));
    }
    return cuda_check(c->dev, c->dev->lib->stream_wait(c->dev->stream), "the step", err);
}

mb_status cuda_run_range(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, int32_t first,
                         int32_t last, mb_error *err)
{
    int64_t t0 = clock_now_ns();
    int failed = c->dev->failed;
    c->dev->failed = 0;
    MB_TRY(cuda_check(c->dev, failed, "a copy of pages", err));
    MB_TRY(cuda_check(c->dev, c->dev->lib->device_use(c->dev->ordinal), "the card", err));
    MB_TRY(cuda_batch_fill(c, rows, n_rows, results, err));
    MB_TRY(run_all(c, first, last, err));
    c->ahead.done_ns = clock_now_ns();
    c->stats.step_ns = (uint64_t)(c->ahead.done_ns - t0);
    c->stats.ahead = c->ahead.taken;
    return MB_OK;
}

mb_status cuda_submit(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err)
{
    return cuda_run_range(c, rows, n_rows, results, 0, c->plan->n_steps, err);
}

mb_status cuda_collect(struct compiled *c, mb_error *err)
{
    (void)c;
    (void)err;
    return MB_OK; /* submit has waited */
}

void cuda_stats(struct compiled *c, struct ops_step_stats *out)
{
    *out = c->stats;
}

mb_status cuda_probe(struct device *d, double seconds, struct ops_rates *out, mb_error *err)
{
    (void)seconds;
    memset(out, 0, sizeof *out);
    return mb_fail_at(err, MB_UNSUPPORTED, "device", "%s: speeds are predicted for the CPU alone in this version; use --device cpu",
                      d->describe);
}
