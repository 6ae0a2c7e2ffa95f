/* compile.c: a plan to functions and addresses. One function lays out every buffer and scratch area; called with a NULL
 * base it only counts, so that admission and compile use the same numbers. The whole is one mapping, touched as used.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "ops/cpu/cpu_int.h"

static enum act_form tier_form(enum fidelity_tier tier, int32_t group)
{
    if (group == 0 || tier == TIER_F32) return ACT_F32;
    return tier == TIER_L1 ? ACT_Q16 : ACT_Q8;
}

/* A piece of the block: its offset is returned, *off moves on. */
static size_t take(size_t *off, size_t bytes)
{
    size_t at = *off;
    *off += (bytes + 63) / 64 * 64;
    return at;
}

static int32_t *take_ints(uint8_t *base, size_t *off, int64_t n)
{
    size_t at = take(off, (size_t)n * sizeof(int32_t));
    return base && n > 0 ? (int32_t *)(base + at) : NULL;
}

/* Room for the lists of step_moe.c: of the layer with the most experts. */
static void lay_out_moe(struct compiled *c, const struct plan *p, uint8_t *base, size_t *off)
{
    int64_t n_expert = 0, top_k = 0, offloaded = 0;
    for (int32_t i = 0; i < p->n_steps; i++) {
        if (p->steps[i].op != STEP_EXPERTS) continue;
        if (p->steps[i].u.experts.n_expert > n_expert) n_expert = p->steps[i].u.experts.n_expert;
        if (p->steps[i].u.experts.top_k > top_k) top_k = p->steps[i].u.experts.top_k;
        if (p->steps[i].host_point && p->steps[i].u.experts.n_expert > offloaded) offloaded = p->steps[i].u.experts.n_expert;
    }
    c->moe.slot = take_ints(base, off, p->m_max * top_k);
    c->moe.first = take_ints(base, off, n_expert > 0 ? n_expert + 1 : 0);
    c->moe.active = take_ints(base, off, n_expert);
    c->moe.at = take_ints(base, off, offloaded);
    c->moe.order = take_ints(base, off, offloaded);
    size_t at = take(off, offloaded > 0 ? (size_t)p->m_max * (size_t)p->d_model * sizeof(float) : 0);
    c->moe.acc = base && offloaded > 0 ? (float *)(base + at) : NULL;
}

/* Lay everything out; base NULL: count only. c may then be a scratch struct. */
static size_t lay_out(struct compiled *c, const struct plan *p, int n_threads, uint8_t *base)
{
    size_t off = 0, at;
    bool unused[PLAN_MAX_BUFS];
    cpu_passes_unread(p, c->unread);
    memcpy(unused, c->unread, sizeof unused);
    for (int i = 0; i < p->n_bufs; i++)
        if (p->max_lora_rank > 0 && p->bufs[i].copy >= 0) unused[p->bufs[i].copy] = false;
    for (int i = 0; i < p->n_bufs; i++) {
        const struct plan_buf *b = &p->bufs[i];
        int64_t rows = (b->per_draw ? p->n_draw_max : p->m_max) * (b->n_slots > 0 ? b->n_slots : 1);
        c->form[i] = b->type == BUF_ACT ? tier_form(p->tier, b->group) : ACT_F32;
        c->row_bytes[i] = act_row_bytes(c->form[i], b->width, b->group);
        at = take(&off, unused[i] ? 0 : (size_t)rows * c->row_bytes[i]);
        c->bufs[i] = base && !unused[i] ? base + at : NULL;
    }
    struct cpu_batch *b = &c->batch;
    int32_t **ints[] = { &b->row_of, &b->id, &b->index, &b->rope_pos, &c->lora.token, &c->lora.slot_of };
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        at = take(&off, (size_t)p->m_max * sizeof(int32_t));
        *ints[i] = base ? (int32_t *)(base + at) : NULL;
    }
    at = take(&off, ((size_t)p->m_max + 1) * sizeof(int32_t));
    b->row_first = base ? (int32_t *)(base + at) : NULL;
    at = take(&off, (size_t)p->m_max * sizeof *b->draws);
    b->draws = base ? (struct cpu_draw_pos *)(base + at) : NULL;
    int64_t n_slots = p->m_max > p->n_draw_max ? p->m_max : p->n_draw_max;
    at = take(&off, (size_t)n_slots * cpu_lora_slot_floats(p) * sizeof(float));
    c->lora.u = base ? (float *)(base + at) : NULL;
    lay_out_moe(c, p, base, &off);
    at = take(&off, (size_t)p->n_draw_max * sizeof *c->sample_rows);
    c->sample_rows = base ? (struct sample_row *)(base + at) : NULL;
    at = take(&off, (size_t)p->n_draw_max * 2 * (size_t)sample_blocks(p->n_vocab) * sizeof(float));
    c->sample_blocks = base ? (float *)(base + at) : NULL;
    c->index.token = take_ints(base, &off, cpu_index_scores_bytes(p, 2) > 0 ? p->m_max : 0);
    at = take(&off, cpu_index_scores_bytes(p, n_threads));
    c->index.scores = base ? (float *)(base + at) : NULL;
    c->attn_partials_bytes = cpu_attn_partials_bytes(p, n_threads);
    at = take(&off, c->attn_partials_bytes);
    c->attn_partials = base ? base + at : NULL;
    at = take(&off, CPU_ATTN_SPLIT_TILES * (size_t)n_threads * sizeof *c->attn_tiles);
    c->attn_tiles = base ? (struct attn_tile_state *)(base + at) : NULL;
    at = take(&off, (size_t)n_threads * sizeof *c->laid);
    c->laid = base ? (struct cpu_laid_of *)(void *)(base + at) : NULL;
    c->thread_scratch_bytes = (cpu_thread_scratch_bytes(p) + 4095) / 4096 * 4096;
    for (int t = 0; t < n_threads; t++) {
        at = take(&off, c->thread_scratch_bytes);
        if (base) c->thread_scratch[t] = base + at;
    }
    return off;
}

size_t cpu_scratch_bytes(struct device *d, const struct plan *p, const struct compile_options *opt)
{
    struct compiled c;
    memset(&c, 0, sizeof c);
    return lay_out(&c, p, pool_n_threads(d->pool), NULL);
}

mb_status cpu_compile(struct device *d, const struct plan *p, const struct compile_options *opt, struct compiled **out,
                      mb_error *err)
{
    int n_threads = pool_n_threads(d->pool);
    if (d->cache) packed_finish(d->cache); /* every weight has been packed by now */
    *out = NULL;
    if (d->experts) MB_TRY(expert_file_finish(experts_file(d->experts), err));
    struct compiled *c = mb_calloc(1, sizeof *c);
    if (!c) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    c->dev = d;
    c->plan = p;
    c->n_threads = n_threads;
    c->thread_scratch = mb_calloc((size_t)n_threads, sizeof *c->thread_scratch);
    c->block_bytes = cpu_scratch_bytes(d, p, opt);
    c->block = mmap(NULL, c->block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->block == MAP_FAILED) c->block = NULL;
    mb_status st = MB_OK;
    if (!c->thread_scratch || !c->block)
        st = mb_fail(err, MB_NO_MEMORY, "out of memory for %zu bytes of scratch", c->block_bytes);
    if (st == MB_OK) {
        lay_out(c, p, n_threads, c->block);
        st = cpu_passes_build(c, err);
    }
    if (st != MB_OK) {
        cpu_compiled_free(c);
        return st;
    }
    *out = c;
    return MB_OK;
}

void cpu_compiled_free(struct compiled *c)
{
    if (!c) return;
    if (c->block) munmap(c->block, c->block_bytes);
    cpu_passes_free(c);
    mb_free(c->thread_scratch);
    mb_free(c);
}

float *cpu_buffer(struct compiled *c, buf_id b, size_t *row_bytes)
{
    *row_bytes = c->row_bytes[b];
    return c->plan->bufs[b].type == BUF_F32 ? (float *)c->bufs[b] : NULL;
}

void cpu_write_inputs(const struct compiled *c, const buf_id *outs, int64_t i, const float *x, int64_t col0, int64_t col1)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    for (int o = 0; o < PLAN_MAX_OUTS && outs[o] >= 0; o++) {
        const struct plan_buf *b = &c->plan->bufs[outs[o]];
        uint8_t *row = c->bufs[outs[o]] + (size_t)i * c->row_bytes[outs[o]];
        enum act_form form = c->form[outs[o]];
        if (cpu_lora_on(c)) cpu_lora_copy(c, outs[o], i, x, col0, col1);
        if (form == ACT_F32)
            memcpy((float *)row + col0, x + col0, (size_t)(col1 - col0) * sizeof(float));
        else
            k->quantise_groups(form, b->group, b->width, col0 / b->group, col1 / b->group, x, row);
    }
}

static const char *weight_form(const struct weight *w, char out[24])
{
    const struct cpu_weight_impl *impl = w->impl;
    static const char *const names[] = { "q4", "q8", "f" };
    int n = snprintf(out, 24, "%s%s", names[impl->packed.type], dtype_get(impl->packed.dt)->name);
    if (impl->packed.type != CPU_W_F) snprintf(out + n, (size_t)(24 - n), "g%d", impl->packed.g);
    return out;
}

void cpu_describe_step(struct compiled *c, int32_t i_step, char *text, size_t cap)
{
    static const char *const ops[] = { "embed", "norm", "linear", "rope+kv", "attend", "heads", "latent", "index", "delta", "glu", "route", "experts", "draws", "sample",
                                     "signal", "expect" };
    const struct plan_step *s = &c->plan->steps[i_step];
    static const char *const forms[] = { "f32", "q8", "q16" };
    char form[24];
    size_t n = (size_t)snprintf(text, cap, "%-8s", ops[s->op]);
    if (s->in >= 0 && n < cap) n += (size_t)snprintf(text + n, cap - n, " %s", c->plan->bufs[s->in].name);
    if (s->op == STEP_LINEAR)
        for (int i = 0; i < s->u.linear.n_parts && n < cap; i++)
            n += (size_t)snprintf(text + n, cap - n, " %s[%lldx%lld]->%s", weight_form(s->u.linear.part[i].w, form),
                                  (long long)s->u.linear.part[i].w->n, (long long)s->u.linear.part[i].w->k,
                                  c->plan->bufs[s->u.linear.part[i].out].name);
    if (s->op == STEP_HEADS && n < cap)
        n += (size_t)snprintf(text + n, cap - n, " %d of %s[%lldx%lld]", s->u.heads.n_head, weight_form(s->u.heads.w, form),
                              (long long)(s->u.heads.w->n / s->u.heads.n_head), (long long)s->u.heads.w->k);
    if (s->op == STEP_EXPERTS && n < cap) {
        n += (size_t)snprintf(text + n, cap - n, " %d of %d, %s[%dx%lld]", s->u.experts.top_k, s->u.experts.n_expert,
                              weight_form(s->u.experts.gate, form), s->u.experts.width, (long long)s->u.experts.gate->k);
        if (n < cap) n += (size_t)snprintf(text + n, cap - n, " %s", weight_form(s->u.experts.down, form));
    }
    if (s->out >= 0 && n < cap) n += (size_t)snprintf(text + n, cap - n, " -> %s", c->plan->bufs[s->out].name);
    for (int i = 0; i < PLAN_MAX_OUTS && s->outs[i] >= 0 && n < cap; i++)
        n += (size_t)snprintf(text + n, cap - n, " -> %s:%s", c->plan->bufs[s->outs[i]].name, forms[c->form[s->outs[i]]]);
    if (n < cap) snprintf(text + n, cap - n, " [%s]", c->dev->kernels.level);
}
