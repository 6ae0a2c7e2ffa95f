/* compile.c: a plan to device memory: which steps run here at all, buffers, linear inputs, scratch, the batch's block. One
 * function lays everything out; with a NULL base it counts, so that admission and compile use the same numbers.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ops/cuda/cuda_int.h"

/* --- what does not run here --- */

static mb_status refuse(const struct plan_step *s, const char *what, mb_error *err)
{
    return mb_fail_at(err, MB_UNSUPPORTED, "device", "layer %d: %s not run on a GPU in this version; use --device cpu", (int)s->i_layer, what);
}

static int n_inputs_written(const struct plan_step *s)
{
    int n = 0;
    while (n < PLAN_MAX_OUTS && s->outs[n] >= 0) n++;
    return n;
}

/* An expert must be whole tiles of its stacks, and gate and up of one form. */
static bool experts_run(const struct plan_step *s)
{
    const struct cuda_weight *gate = s->u.experts.gate->impl, *up = s->u.experts.up->impl;
    return s->u.experts.width % 16 == 0 && s->u.experts.gate->k % 16 == 0 && gate->w.format == up->w.format &&
           gate->w.n_scale == up->w.n_scale;
}

/* What a warp chooses among (steps_moe.cu). */
static bool route_runs(const struct plan_step *s)
{
    return s->u.route.n_expert <= 1024 && s->u.route.top_k <= 32 && s->u.route.n_group <= 32;
}

/* A head's state must fit a block's shared memory everywhere. */
static bool delta_runs(const struct plan_step *s)
{
    return s->u.delta.dim_k <= 128 && s->u.delta.dim_v <= 128;
}

static mb_status check_step(const struct plan_step *s, mb_error *err)
{
    const char *latent = cuda_latent_refuses(s);
    if (latent) return refuse(s, latent, err);
    if (s->op == STEP_DELTA && !delta_runs(s)) return refuse(s, "gated delta nets with heads of more than 128 values do", err);
    if (s->op == STEP_EXPERTS && !experts_run(s)) return refuse(s, "experts whose matrices do not end with a tile of 16 rows do", err);
    if (s->op == STEP_ROUTE && !route_runs(s)) return refuse(s, "more than 1,024 experts, 32 for a token, or 32 groups of them do", err);
    if (s->op == STEP_ATTEND && !s->u.attend.causal) return refuse(s, "attention that is not causal does", err);
    if (n_inputs_written(s) > 1) return refuse(s, "a step with several forms of linear input does", err);
    return MB_OK;
}

static mb_status check_plan(const struct plan *p, mb_error *err)
{
    int n_state = 0;
    for (int32_t k = 0; k < p->n_kinds; k++) n_state += p->kinds[k].type == KIND_STATE;
    if (n_state > 1)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "%d kinds of recurrent state do not run on a GPU in this version; use --device cpu", n_state);
    if (p->canvas)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "blocks of tokens by diffusion are computed on the CPU alone in this version; "
                          "use --device cpu");
    if (p->tier == TIER_F32)
        return mb_fail_at(err, MB_UNSUPPORTED, "tier", "the f32 tier is computed on the CPU alone: use --device cpu, or --tier l1");
    for (int32_t i = 0; i < p->n_steps; i++) MB_TRY(check_step(&p->steps[i], err));
    return MB_OK;
}

/* --- what differs between steps and travels with the batch: windows, rope tables --- */

int cuda_window_of(const struct compiled *c, int32_t window)
{
    int i = 0;
    while (i < c->n_windows && c->windows[i] != window) i++;
    return i;
}

int cuda_rope_of(const struct compiled *c, const struct rope_spec *r)
{
    int i = 0;
    while (i < c->n_ropes && !(c->ropes[i].table == r->table && c->ropes[i].n_rot == r->n_rot)) i++;
    return i;
}

static mb_status note_rope(struct compiled *c, const struct plan_step *s, const struct rope_spec *r, mb_error *err)
{
    if (r->n_rot == 0 || cuda_rope_of(c, r) < c->n_ropes) return MB_OK;
    if (c->n_ropes == CUDA_ROPES) return refuse(s, "more than 8 different position tables do", err);
    c->ropes[c->n_ropes++] = (struct cuda_rope_table){ r->table, r->n_rot };
    return MB_OK;
}

static mb_status note_step(struct compiled *c, const struct plan_step *s, mb_error *err)
{
    if (s->op == STEP_ATTEND && cuda_window_of(c, s->u.attend.window) == c->n_windows) {
        if (c->n_windows == CUDA_WINDOWS) return refuse(s, "more than 4 different windows do", err);
        c->windows[c->n_windows++] = s->u.attend.window;
    }
    if (s->op == STEP_ROPE_KV && s->u.rope_kv.q_steps) {
        if (c->q_steps && c->q_steps != s->u.rope_kv.q_steps) return refuse(s, "queries that grow in different ways do", err);
        c->q_steps = s->u.rope_kv.q_steps;
        c->q_step_tokens = s->u.rope_kv.q_step_tokens;
    }
    if (s->op == STEP_ROPE_KV) return note_rope(c, s, &s->u.rope_kv.rope, err);
    if (s->op == STEP_LATENT) return note_rope(c, s, &s->u.latent.rope, err);
    return MB_OK;
}

static void note_experts(struct cuda_moe *moe, const struct plan_step *s)
{
    if (s->u.experts.n_expert > moe->n_expert) moe->n_expert = s->u.experts.n_expert;
    if (s->u.experts.top_k > moe->top_k) moe->top_k = s->u.experts.top_k;
    if (s->u.experts.width > moe->width) moe->width = s->u.experts.width;
    if (s->u.experts.gate->k > moe->d) moe->d = s->u.experts.gate->k;
}

static void note_attention(struct compiled *c, const struct plan_step *s, int *n_head, int *d_max)
{
    int n = s->u.attend.n_head, n_kv = s->u.attend.n_head_kv;
    int small = c->dev->lib->attn_small_tokens(n, n_kv), large = c->dev->lib->attn_large_tokens(n, n_kv);
    if (c->attn_small == 0 || small < c->attn_small) c->attn_small = small;
    if (c->attn_large == 0 || large < c->attn_large) c->attn_large = large;
    if (n > *n_head) *n_head = n;
    if (s->u.attend.head_dim > *d_max) *d_max = s->u.attend.head_dim;
}

/* Everything that sizes depend on. */
static mb_status describe_plan(struct compiled *c, struct device *d, const struct plan *p, const struct compile_options *opt, mb_error *err)
{
    int n_head = 1, d_max = 64;
    c->dev = d;
    c->plan = p;
    c->n_rows_max = opt->n_rows_max > 0 ? opt->n_rows_max : 1;
    c->n_pages_max = (size_t)c->n_rows_max * (size_t)((p->n_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS + 1);
    c->ctx = d->ctx;
    c->ctx.pdl = 1; /* a kernel may begin while the one before ends */
    c->i_draws = c->i_final_norm = p->n_steps;
    c->state_kind = -1;
    for (int32_t k = 0; k < p->n_kinds; k++)
        if (p->kinds[k].type == KIND_STATE) c->state_kind = (int)k;
    for (int32_t i = 0; i < p->n_steps; i++) {
        MB_TRY(note_step(c, &p->steps[i], err));
        if (p->steps[i].op == STEP_ATTEND && !cuda_is_latent(&p->steps[i])) note_attention(c, &p->steps[i], &n_head, &d_max);
        if (p->steps[i].op == STEP_EXPERTS) note_experts(&c->moe, &p->steps[i]);
        if (p->steps[i].op == STEP_DRAWS) c->i_draws = i;
    }
    for (int32_t i = p->n_steps - 1; i > c->i_draws; i--)
        if (p->steps[i].op == STEP_NORM) c->i_final_norm = i;
    c->latent_work_bytes = cuda_latent_work_bytes(c);
    c->ctx.work_bytes = d->lib->work_bytes(&d->ctx, p->m_max, n_head, d_max, p->n_context);
    return MB_OK;
}

/* --- layout --- */

static uint8_t *take(uint8_t *base, size_t *off, size_t bytes)
{
    uint8_t *at = base ? base + *off : NULL;
    *off += (bytes + 255) / 256 * 256;
    return at;
}

static int64_t rows_max(const struct plan *p, const struct plan_buf *b)
{
    return (int64_t)(b->per_draw ? p->n_draw_max : p->m_max) * (b->n_slots > 0 ? b->n_slots : 1);
}

static void lay_out_buffer(struct compiled *c, int i, uint8_t *base, size_t *off)
{
    const struct plan_buf *b = &c->plan->bufs[i];
    int64_t rows = rows_max(c->plan, b);
    if (b->type == BUF_ACT && b->n_slots > 0) return; /* moe.c and kernels_heads.cu have their own */
    if (b->type == BUF_ACT) {
        c->inputs[i] = (struct ck_x){ .v = take(base, off, c->dev->lib->x_bytes((int)rows, b->width)), .k = b->width,
                                      .k_pad = (b->width + 63) / 64 * 64, .mul = 1.0f };
        return;
    }
    c->ld[i] = (b->width + 3) / 4 * 4;
    c->bufs[i] = (float *)(void *)take(base, off, (size_t)(rows * c->ld[i]) * sizeof(float));
}

/* The widest product that may have to be kept apart for adapters, in floats. */
static size_t linear_tmp_floats(const struct plan *p)
{
    size_t most = 0;
    for (int32_t i = 0; i < p->n_steps && p->max_lora_rank > 0; i++)
        for (int j = 0; p->steps[i].op == STEP_LINEAR && j < p->steps[i].u.linear.n_parts; j++) {
            const struct weight *w = p->steps[i].u.linear.part[j].w;
            size_t n = (size_t)w->n * (size_t)rows_max(p, &p->bufs[p->steps[i].in]);
            if (w->i_module >= 0 && n > most) most = n;
        }
    return most;
}

static size_t batch_bytes(const struct compiled *c)
{
    struct cuda_batch_offsets o;
    size_t small = cuda_batch_layout(c, CUDA_SMALL, &o), large = cuda_batch_layout(c, c->plan->m_max, &o);
    return small > large ? small : large;
}

static void lay_out_moe(struct compiled *c, uint8_t *base, size_t *off)
{
    struct cuda_moe *moe = &c->moe;
    size_t m = moe->n_expert > 0 ? (size_t)c->plan->m_max : 0;
    if (m == 0) return;
    size_t slots = m * (size_t)moe->top_k, pieces = c->dev->lib->experts_pieces((int)m, (int)moe->top_k, (int)moe->n_expert);
    moe->list.pieces = (struct ck_piece *)(void *)take(base, off, pieces * sizeof(struct ck_piece));
    moe->list.slots = (int32_t *)(void *)take(base, off, slots * sizeof(int32_t));
    moe->list.n_piece = (int32_t *)(void *)take(base, off, sizeof(int32_t));
    moe->list.n_done = (int32_t *)(void *)take(base, off, sizeof(int32_t));
    int rows = (int)c->dev->lib->experts_rows(&c->dev->ctx, (int)m, (int)moe->top_k, (int)moe->n_expert);
    moe->x = take(base, off, c->dev->lib->x_layout_for(&c->dev->ctx, (int)m) == CK_X_TILES ? c->dev->lib->x_bytes(rows, moe->d) : 0);
    moe->hidden = take(base, off, c->dev->lib->x_bytes(rows, moe->width));
    moe->y = (float *)(void *)take(base, off, slots * (size_t)moe->d * sizeof(float));
}

static size_t lay_out(struct compiled *c, uint8_t *base)
{
    const struct plan *p = c->plan;
    size_t off = 0, rows = (size_t)(p->m_max > p->n_draw_max ? p->m_max : p->n_draw_max);
    for (int i = 0; i < p->n_bufs; i++) lay_out_buffer(c, i, base, &off);
    for (int32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].op == STEP_GLU && p->steps[i].outs[0] >= 0) c->inputs[p->steps[i].outs[0]].mul = CUDA_GLU_MUL;
    c->batch_dev = take(base, &off, batch_bytes(c));
    c->ctx.work = take(base, &off, c->ctx.work_bytes);
    c->latent_work = take(base, &off, c->latent_work_bytes);
    c->sample_scratch = take(base, &off, c->dev->lib->sample_scratch_bytes(p->n_vocab, p->n_draw_max));
    c->jobs_dev = (struct cuda_draw_job *)(void *)take(base, &off, (size_t)p->n_draw_max * sizeof *c->jobs_dev);
    c->hidden = (float *)(void *)take(base, &off, (size_t)p->d_model * sizeof(float));
    c->lora_u = (float *)(void *)take(base, &off, rows * PLAN_MAX_STACK * (size_t)p->max_lora_rank * sizeof(float));
    c->linear_tmp = (float *)(void *)take(base, &off, linear_tmp_floats(p) * sizeof(float));
    lay_out_moe(c, base, &off);
    c->constant_block = take(base, &off, cuda_constants_bytes(c));
    return off;
}

size_t cuda_scratch_bytes(struct device *d, const struct plan *p, const struct compile_options *opt)
{
    struct compiled *c = mb_calloc(1, sizeof *c);
    size_t bytes = 0;
    if (!c) return SIZE_MAX / 4; /* does not fit */
    d->lib->device_use(d->ordinal);
    if (describe_plan(c, d, p, opt, NULL) == MB_OK) bytes = lay_out(c, NULL);
    mb_free(c);
    return bytes;
}

/* --- compile --- */

/* What lies on the host: the batch's block, jobs, logits of positions that the host draws. */
static mb_status alloc_host(struct compiled *c, mb_error *err)
{
    const struct plan *p = c->plan;
    const struct cuda_library *lib = c->dev->lib;
    size_t n_draw = (size_t)p->n_draw_max;
    int code = lib->alloc_host((void **)&c->batch_host, batch_bytes(c));
    if (code == 0) code = lib->alloc_host((void **)&c->jobs, n_draw * sizeof *c->jobs);
    if (code == 0) code = lib->alloc_host((void **)&c->outs, 2 * n_draw * sizeof *c->outs);
    if (code == 0) code = lib->alloc_host((void **)&c->host_logits, (size_t)CUDA_HOST_DRAWS * (size_t)p->n_vocab * sizeof(float));
    MB_TRY(cuda_check(c->dev, code, "pinned host memory", err));
    MB_TRY(cuda_ahead_open(c, batch_bytes(c), err));
    c->host_scratch_bytes = (cpu_sample_scratch_bytes(p->n_vocab) + 63) / 64 * 64;
    c->host_scratch = mb_alloc_aligned(64, c->host_scratch_bytes * (size_t)pool_n_threads(c->dev->pool));
    c->batch.row_first = mb_calloc((size_t)c->n_rows_max + 1, sizeof(int32_t));
    c->batch.draws = mb_calloc((size_t)p->m_max, sizeof *c->batch.draws);
    return c->host_scratch && c->batch.row_first && c->batch.draws ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for the batch");
}

static mb_status alloc_device(struct compiled *c, mb_error *err)
{
    const struct cuda_library *lib = c->dev->lib;
    c->block_bytes = lay_out(c, NULL);
    int code = lib->alloc((void **)&c->block, c->block_bytes);
    if (code != 0)
        return mb_fail_at(err, MB_NO_MEMORY, "device", "%s: %zu MB of scratch do not fit, %zu MB are free: lower --batch or the context",
                          c->dev->describe, c->block_bytes >> 20, cuda_memory_free(c->dev) >> 20);
    lay_out(c, c->block);
    MB_TRY(cuda_check(c->dev, lib->fill(c->block, 0, c->block_bytes, c->dev->stream), "clearing scratch", err));
    return cuda_constants_upload(c, c->constant_block, err);
}

mb_status cuda_compile(struct device *d, const struct plan *p, const struct compile_options *opt, struct compiled **out, mb_error *err)
{
    *out = NULL;
    d->lib->device_use(d->ordinal);
    cuda_pack_area_free(d); /* every weight has been packed by now */
    MB_TRY(check_plan(p, err));
    struct compiled *c = mb_calloc(1, sizeof *c);
    if (!c) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    mb_status st = describe_plan(c, d, p, opt, err);
    if (st == MB_OK) st = alloc_device(c, err);
    if (st == MB_OK) st = alloc_host(c, err);
    if (st != MB_OK) {
        cuda_compiled_free(c);
        return st;
    }
    c->use_graphs = !d->no_graphs;
    *out = c;
    return MB_OK;
}

void cuda_compiled_free(struct compiled *c)
{
    if (!c) return;
    const struct cuda_library *lib = c->dev->lib;
    lib->device_use(c->dev->ordinal);
    lib->stream_wait(c->dev->stream);
    cuda_graphs_free(c);
    cuda_ahead_close(c);
    if (c->block) lib->free(c->block);
    void *pinned[] = { c->batch_host, c->jobs, c->outs, c->host_logits };
    for (size_t i = 0; i < sizeof pinned / sizeof pinned[0]; i++)
        if (pinned[i]) lib->free_host(pinned[i]);
    mb_free(c->host_scratch);
    mb_free(c->batch.row_first);
    mb_free(c->batch.draws);
    mb_free(c->constants);
    mb_free(c->mirror);
    mb_free(c);
}

/* A copy: what is written to it changes nothing. */
float *cuda_buffer(struct compiled *c, buf_id b, size_t *row_bytes)
{
    *row_bytes = (size_t)c->ld[b] * sizeof(float);
    if (c->plan->bufs[b].type != BUF_F32) return NULL;
    size_t bytes = (size_t)rows_max(c->plan, &c->plan->bufs[b]) * *row_bytes;
    if (bytes > c->mirror_bytes) {
        float *larger = mb_realloc(c->mirror, bytes);
        if (!larger) return NULL;
        c->mirror = larger;
        c->mirror_bytes = bytes;
    }
    c->dev->lib->device_use(c->dev->ordinal);
    if (c->ahead.live && cuda_ahead_undo(c, NULL) != MB_OK) return NULL;
    int code = c->dev->lib->copy(c->mirror, c->bufs[b], bytes, c->dev->stream);
    if (code == 0) code = c->dev->lib->stream_wait(c->dev->stream);
    return code == 0 ? c->mirror : NULL;
}

void cuda_describe_step(struct compiled *c, int32_t i_step, char *text, size_t cap)
{
    static const char *const ops[] = { "embed", "norm", "linear", "rope+kv", "attend", "heads", "latent", "index", "delta", "glu", "route", "experts", "draws", "sample" };
    static const char *const forms[CK_FORMATS] = { "q4", "q8", "f16" };
    const struct plan_step *s = &c->plan->steps[i_step];
    size_t n = (size_t)snprintf(text, cap, "%-8s", ops[s->op]);
    if (s->in >= 0 && n < cap) n += (size_t)snprintf(text + n, cap - n, " %s", c->plan->bufs[s->in].name);
    for (int i = 0; s->op == STEP_LINEAR && i < s->u.linear.n_parts && n < cap; i++) {
        const struct weight *w = s->u.linear.part[i].w;
        n += (size_t)snprintf(text + n, cap - n, " %s[%lldx%lld]->%s", forms[((struct cuda_weight *)w->impl)->w.format], (long long)w->n,
                              (long long)w->k, c->plan->bufs[s->u.linear.part[i].out].name);
    }
    if (s->out >= 0 && n < cap) n += (size_t)snprintf(text + n, cap - n, " -> %s", c->plan->bufs[s->out].name);
    for (int i = 0; i < n_inputs_written(s) && n < cap; i++)
        n += (size_t)snprintf(text + n, cap - n, " -> %s:f16", c->plan->bufs[s->outs[i]].name);
    if (n < cap) snprintf(text + n, cap - n, " [%s]", c->dev->class_name);
}
