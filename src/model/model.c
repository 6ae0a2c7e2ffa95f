/* model.c: opens and closes a model instance: config -> spec -> weights -> plan -> compiled plan.
 * Owns every piece in struct model. Rope tables have address space for the whole context and are filled as far as
 * sequences reach, between steps.
 */
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "base/log.h"
#include "model/model_int.h"

#define ROPE_FIRST_POSITIONS 4096
#define MODEL_M_MAX 2048
#define MODEL_LORA_RANK 64 /* largest rank of an adapter unless --max-lora-rank says otherwise */
#define MODEL_DRAWS_AT_ONCE 64 /* drawing positions whose logits exist at the same time */

static int32_t first_positions(const struct model *m)
{
    return m->spec.n_context < ROPE_FIRST_POSITIONS ? m->spec.n_context : ROPE_FIRST_POSITIONS;
}

/* In steps of a quarter more, so that a long decode does not stop at every token. */
static int32_t positions_filled(int32_t n, int32_t n_context)
{
    int64_t up_to = (int64_t)n + n / 4;
    return up_to < n_context ? (int32_t)up_to : n_context;
}

static mb_status rope_tables_open(struct model *m, mb_error *err)
{
    m->ropes = arena_alloc_array(&m->arena, (size_t)m->spec.n_ropes, sizeof *m->ropes);
    if (!m->ropes && m->spec.n_ropes) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int i = 0; i < m->spec.n_ropes; i++) {
        size_t bytes = (size_t)m->spec.n_context * (size_t)m->spec.ropes[i].n_rot * sizeof(float);
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return mb_fail(err, MB_NO_MEMORY, "cannot reserve %zu bytes for a rope table", bytes);
        m->ropes[i].cs = p;
        m->ropes[i].reserved_bytes = bytes;
        int32_t n = rope_query_steps(&m->spec.ropes[i], m->spec.n_context);
        if (n == 0) continue;
        m->ropes[i].query = arena_alloc_array(&m->arena, (size_t)n, sizeof(float));
        if (!m->ropes[i].query) return mb_fail(err, MB_NO_MEMORY, "out of memory");
        rope_query_fill(&m->spec.ropes[i], n, m->ropes[i].query);
    }
    return model_reserve_positions(m, first_positions(m), err);
}

mb_status model_reserve_positions(struct model *m, int32_t n, mb_error *err)
{
    if (n > m->spec.n_context)
        return mb_fail(err, MB_CONTEXT_LENGTH, "position %d is beyond the model's context of %d", n, m->spec.n_context);
    for (int i = 0; i < m->spec.n_ropes; i++) {
        struct rope_table *t = &m->ropes[i];
        if (t->n_filled >= n) continue;
        int32_t up_to = positions_filled(n, m->spec.n_context);
        rope_table_fill(&m->spec.ropes[i], m->spec.n_context, t->n_filled, up_to, t->cs);
        t->n_filled = up_to;
    }
    return MB_OK;
}

/* Names, types, shapes and a sample of bytes of every tensor: cheap, and different for different weights. */
static uint64_t fingerprint(const struct checkpoint *c)
{
    XXH64_state_t *h = XXH64_createState();
    if (!h) return 0;
    XXH64_reset(h, 0);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const struct tensor_view *t = checkpoint_at(c, i);
        XXH64_update(h, t->name, strlen(t->name) + 1);
        XXH64_update(h, &t->dtype, sizeof t->dtype);
        XXH64_update(h, t->shape, sizeof t->shape);
        size_t n = t->size_bytes < 256 ? t->size_bytes : 256;
        XXH64_update(h, t->data, n);
        XXH64_update(h, t->data + (t->size_bytes - n) / 2, n);
        XXH64_update(h, t->data + t->size_bytes - n, n);
    }
    uint64_t v = XXH64_digest(h);
    XXH64_freeState(h);
    return v;
}

static mb_status set_kinds(struct model *m, const char *dir, int kv_format, mb_error *err)
{
    MB_TRY(model_kv_formats(&m->spec, dir, kv_format, m->tier, m->ops->kv_codes, err));
    for (int i = 0; i < m->spec.n_kinds; i++) m->ops->kv_sizes(m->device, &m->spec.kinds[i]);
    return MB_OK;
}

static void set_limits(struct model *m, const struct model_options *opt)
{
    if (opt->n_context > 0 && opt->n_context < m->spec.n_context) m->spec.n_context = opt->n_context;
    m->plan.m_max = opt->m_max > 0 ? opt->m_max : MODEL_M_MAX;
    if (m->plan.m_max < opt->n_rows_max) m->plan.m_max = opt->n_rows_max;
    if (m->plan.m_max < m->spec.canvas.n) m->plan.m_max = m->spec.canvas.n;
    m->plan.n_draw_max = MODEL_DRAWS_AT_ONCE;
    m->plan.max_lora_rank = opt->max_lora_rank < 0 ? 0 : opt->max_lora_rank ? opt->max_lora_rank : MODEL_LORA_RANK;
    m->compile_opt.n_rows_max = opt->n_rows_max > 0 ? opt->n_rows_max : 1;
}

static void set_options(struct model *m, const struct model_options *opt)
{
    m->ops = opt->ops;
    m->device = opt->device;
    m->tier = opt->tier;
    m->expert_offload = opt->expert_offload && opt->ops->pack_experts;
}

/* Scratch of both plans. */
static size_t scratch_of(struct model *m)
{
    struct compile_options one = { .n_rows_max = 1 };
    return m->ops->scratch_bytes(m->device, &m->plan, &m->compile_opt) +
           (m->spec.canvas.n > 0 ? m->ops->scratch_bytes(m->device, &m->canvas_plan, &one) : 0);
}

/* Of it, what steps of one request without an adapter touch that have at most so many rows and a context of n: the same count over a
 * smaller plan. */
static size_t scratch_touched(struct model *m, struct plan *bare, int32_t rows, int32_t n)
{
    struct compile_options one = { .n_rows_max = 1 };
    bare->m_max = rows;
    bare->n_context = n;
    bare->n_draw_max = 1;
    return m->ops->scratch_bytes(m->device, bare, &one) +
           (m->spec.canvas.n > 0 ? m->ops->scratch_bytes(m->device, &m->canvas_plan, &one) : 0);
}

/* Linear in rows and in context, up to rounding. */
static mb_status size_touched(struct model *m, struct model_size *out, mb_error *err)
{
    int32_t rows = m->plan.m_max, n = m->spec.n_context;
    struct plan bare;
    out->touched.rows_max = rows;
    out->touched.n_context = n;
    out->touched.positions_first = positions_filled(first_positions(m), n);
    for (int32_t i = 0; i < m->spec.n_ropes; i++) out->touched.position_bytes += (double)m->spec.ropes[i].n_rot * sizeof(float);
    out->touched.fixed_bytes = out->scratch_bytes;
    if (!m->ops->scratch_as_used) return MB_OK;
    MB_TRY(plan_build_bare(m, &bare, err));
    size_t least = scratch_touched(m, &bare, 1, 1);
    out->touched.fixed_bytes = least;
    if (rows > 1) out->touched.row_bytes = (double)(scratch_touched(m, &bare, rows, 1) - least) / (rows - 1);
    if (n > 1) out->touched.key_bytes = (double)(scratch_touched(m, &bare, 1, n) - least) / (n - 1);
    return MB_OK;
}

size_t model_size_touched(const struct model_size *z, int32_t n_rows, int32_t n)
{
    int32_t rows = n_rows < z->touched.rows_max ? n_rows : z->touched.rows_max, last = z->touched.positions_first;
    if (n > last) last = positions_filled(n, z->touched.n_context);
    double more = (rows > 1 ? rows - 1 : 0) * z->touched.row_bytes + (n > 1 ? n - 1 : 0) * z->touched.key_bytes;
    return z->touched.fixed_bytes + (size_t)(more + last * z->touched.position_bytes);
}

static mb_status compile_plans(struct model *m, mb_error *err)
{
    struct compile_options one = { .n_rows_max = 1 };
    m->scratch_bytes = scratch_of(m);
    MB_TRY(m->ops->compile(m->device, &m->plan, &m->compile_opt, &m->compiled, err));
    return m->spec.canvas.n > 0 ? m->ops->compile(m->device, &m->canvas_plan, &one, &m->canvas, err) : MB_OK;
}

static mb_status open_parts(struct model *m, const char *dir, const struct model_options *opt, mb_error *err)
{
    MB_TRY(model_config_read(&m->spec, dir, err));
    set_limits(m, opt);
    MB_TRY(set_kinds(m, dir, opt->kv_format, err));
    MB_TRY(checkpoint_open(&m->source, dir, err));
    MB_TRY(model_find_prefix(&m->spec, m->source, err));
    m->fingerprint = fingerprint(m->source);
    m->layers = arena_alloc_array(&m->arena, (size_t)m->spec.n_layer, sizeof *m->layers);
    if (!m->layers) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    MB_TRY(bind_weights(m, m->source, opt, err));
    if (m->spec.tied_head && m->spec.d_per_layer == 0) { /* else a table is gathered from the file */
        checkpoint_close(m->source);
        m->source = NULL;
    }
    MB_TRY(rope_tables_open(m, err));
    MB_TRY(plan_build(m, err));
    return compile_plans(m, err);
}

mb_status model_open(struct model **out, const char *dir, const struct model_options *opt, mb_error *err)
{
    *out = NULL;
    struct model *m = mb_calloc(1, sizeof *m);
    if (!m) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    arena_init(&m->arena, 0);
    set_options(m, opt);
    mb_status st = open_parts(m, dir, opt, err);
    if (st != MB_OK) {
        model_close(m);
        return st;
    }
    *out = m;
    return MB_OK;
}

#define LAYER_WEIGHTS 29
#define LAYER_LISTED 17 /* those before the recurrent layers' and the latents' own, whose rows may lie otherwise in the file */

/* The parts of a fused matrix follow each other, in order of rows. */
static void layer_weights_all(struct layer_weights *w, struct weight *all[LAYER_WEIGHTS])
{
    struct weight *const list[LAYER_WEIGHTS] = {
        &w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down, &w->router, &w->expert_gate, &w->expert_up, &w->expert_down,
        &w->input_gate, &w->input_out, &w->shared_router, &w->shared_gate, &w->shared_up, &w->shared_down,
        &w->delta_qkv, &w->delta_z, &w->delta_b, &w->delta_a, &w->q_a, &w->q_b, &w->kv_a, &w->embed_q, &w->unembed_out,
        &w->index_q, &w->index_k, &w->index_w
    };
    memcpy(all, list, sizeof list);
}

struct weight *model_weight_at(struct model *m, size_t i)
{
    struct weight *const outside[] = { &m->embed, &m->head, &m->layer_table, &m->layer_proj, &m->signal_gate, &m->signal_up,
                                       &m->signal_down };
    size_t n = 0;
    for (int l = 0; l < m->spec.n_layer; l++) {
        struct weight *all[LAYER_WEIGHTS];
        layer_weights_all(&m->layers[l], all);
        for (int j = 0; j < LAYER_LISTED; j++)
            if (all[j]->impl && n++ == i) return all[j];
    }
    for (size_t j = 0; j < sizeof outside / sizeof outside[0]; j++)
        if (outside[j]->impl && n++ == i) return outside[j];
    return NULL;
}

mb_status model_weight_replace(struct model *m, struct weight *w, const struct weight_source *src, mb_error *err)
{
    struct weight_source s = *src;
    if (m->tier != TIER_F32 || src->n != w->n || src->k != w->k)
        return mb_fail(err, MB_INVALID, "%s: only numbers of the same shape can be replaced, and only under the f32 tier", w->name);
    s.name = w->name;
    s.i_module = w->i_module;
    s.split = w->split;
    s.gather_only = (w == &m->embed && !m->spec.tied_head) || w == &m->layer_table;
    m->ops->weight_free(m->device, w);
    return m->ops->pack(m->device, &s, w, err);
}

static void free_weights(struct model *m)
{
    for (int i = 0; m->layers && i < m->spec.n_layer; i++) {
        struct weight *all[LAYER_WEIGHTS];
        layer_weights_all(&m->layers[i], all);
        for (int j = 0; j < LAYER_WEIGHTS; j++) m->ops->weight_free(m->device, all[j]);
    }
    m->ops->weight_free(m->device, &m->embed);
    m->ops->weight_free(m->device, &m->head);
    m->ops->weight_free(m->device, &m->layer_table);
    m->ops->weight_free(m->device, &m->layer_proj);
    m->ops->weight_free(m->device, &m->signal_gate);
    m->ops->weight_free(m->device, &m->signal_up);
    m->ops->weight_free(m->device, &m->signal_down);
}

void model_close(struct model *m)
{
    if (!m) return;
    if (m->compiled) m->ops->compiled_free(m->compiled);
    if (m->canvas) m->ops->compiled_free(m->canvas);
    free_weights(m);
    for (int i = 0; m->ropes && i < m->spec.n_ropes; i++)
        if (m->ropes[i].cs) munmap(m->ropes[i].cs, m->ropes[i].reserved_bytes);
    checkpoint_close(m->source);
    model_spec_free(&m->spec);
    arena_free(&m->arena);
    mb_free(m);
}

const struct model_spec *model_spec_get(const struct model *m) { return &m->spec; }
const struct plan *model_plan_get(const struct model *m) { return &m->plan; }
const struct ops *model_ops(const struct model *m) { return m->ops; }
struct device *model_device(const struct model *m) { return m->device; }
struct compiled *model_compiled(const struct model *m) { return m->compiled; }
struct compiled *model_canvas(const struct model *m) { return m->canvas; }
enum fidelity_tier model_tier(const struct model *m) { return m->tier; }
size_t model_weight_bytes(const struct model *m) { return m->weight_bytes; }
size_t model_scratch_bytes(const struct model *m) { return m->scratch_bytes; }
size_t model_expert_bytes(const struct model *m) { return m->expert_bytes; }
size_t model_expert_slot_bytes(const struct model *m) { return m->expert_slot_bytes; }
uint64_t model_fingerprint(const struct model *m) { return m->fingerprint; }

struct size_ctx {
    struct model *m;
    const struct checkpoint *c;
    struct model_size *out;
    struct bind_experts experts;
};

static mb_status size_weight(struct size_ctx *p, const struct bind_request *r, struct weight *dst, const struct weight_source *src,
                             size_t bytes, mb_error *err)
{
    struct model_size *out = p->out;
    size_t each;
    if (r->n_stack == 0 || r->halves || !p->m->expert_offload) {
        out->weight_bytes += bytes;
        return MB_OK;
    }
    if (!bind_experts_add(&p->experts, r, dst, src)) return MB_OK;
    MB_TRY(p->m->ops->expert_bytes(p->m->device, p->experts.src, r->n_stack, &each, err));
    out->expert_bytes += each * (size_t)r->n_stack;
    if (each > out->expert_slot_bytes) out->expert_slot_bytes = each;
    return MB_OK;
}

static mb_status size_one(void *ctx, const struct bind_request *r, struct weight *dst, mb_error *err)
{
    struct size_ctx *p = ctx;
    struct weight_source src;
    size_t bytes = 0;
    enum ops_class class;
    MB_TRY(bind_source(&p->m->spec, p->c, &p->m->arena, r, &src, err));
    src.split = dst->split = bind_split(r);
    MB_TRY(p->m->ops->pack_bytes(p->m->device, &src, &bytes, err));
    MB_TRY(p->m->ops->weight_class(p->m->device, &src, &class, err));
    dst->n = r->n;
    dst->k = r->k;
    dst->group = bind_group(&src);
    dst->name = src.name;
    MB_TRY(size_weight(p, r, dst, &src, bytes, err));
    if (r->gather_only) return MB_OK; /* one row of it */
    double share = r->n_stack > 0 ? (double)r->n_used / r->n_stack : 1;
    p->out->read[class].bytes += share * (double)bytes;
    p->out->read[class].values += share * (double)r->n * (double)r->k;
    if (dst == &p->m->head || dst == &p->m->embed) {
        p->out->head_values = (double)r->n * (double)r->k;
        p->out->head_class = class;
    }
    return MB_OK;
}

static void size_attention(const struct model *m, struct model_size *out)
{
    for (int32_t i = 0; i < m->plan.n_steps; i++) {
        const struct plan_step *s = &m->plan.steps[i];
        if (s->op == STEP_DELTA) { /* read, then read and written again: as much for one token as for any number of tokens before it */
            out->attend[s->u.delta.i_kind].bytes += 2.0 * (double)m->spec.kinds[s->u.delta.i_kind].head_bytes;
            out->attend[s->u.delta.i_kind].macs += 3.0 * s->u.delta.n_head_v * s->u.delta.dim_k * s->u.delta.dim_v;
        }
        if (s->op != STEP_ATTEND) continue;
        const struct kv_kind *k = &m->spec.kinds[s->u.attend.i_kind];
        out->attend[s->u.attend.i_kind].bytes += (double)k->head_bytes * k->n_head_kv / KV_PAGE_TOKENS;
        out->attend[s->u.attend.i_kind].macs += (double)s->u.attend.n_head * (s->u.attend.head_dim + s->u.attend.value_dim);
    }
}

mb_status model_size_estimate(struct model_size *out, const char *dir, const struct model_options *opt, mb_error *err)
{
    memset(out, 0, sizeof *out);
    struct model *m = mb_calloc(1, sizeof *m);
    if (!m) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    arena_init(&m->arena, 0);
    set_options(m, opt);
    struct size_ctx p = { .m = m, .out = out };
    mb_status st = model_config_read(&m->spec, dir, err);
    if (st == MB_OK) {
        set_limits(m, opt);
        st = set_kinds(m, dir, opt->kv_format, err);
        if (st == MB_OK) st = checkpoint_open(&m->source, dir, err);
    }
    if (st == MB_OK) st = model_find_prefix(&m->spec, m->source, err);
    if (st == MB_OK && !(m->layers = arena_alloc_array(&m->arena, (size_t)m->spec.n_layer, sizeof *m->layers)))
        st = mb_fail(err, MB_NO_MEMORY, "out of memory");
    p.c = m->source;
    if (st == MB_OK) st = bind_visit(m, size_one, &p, err);
    if (st == MB_OK) {
        /* The plan needs the tables' addresses only as values; none is read. */
        m->ropes = arena_alloc_array(&m->arena, (size_t)m->spec.n_ropes, sizeof *m->ropes);
        st = m->ropes || m->spec.n_ropes == 0 ? plan_build(m, err) : mb_fail(err, MB_NO_MEMORY, "out of memory");
    }
    if (st == MB_OK) {
        out->scratch_bytes = scratch_of(m);
        out->n_kinds = m->spec.n_kinds;
        out->kv_mode = model_kv_mode(&m->spec);
        model_kv_count(&m->spec, out->n_layer_kv);
        memcpy(out->kinds, m->spec.kinds, sizeof out->kinds);
        for (int i = 0; i < out->n_kinds; i++)
            if (out->kinds[i].type == KIND_FULL || out->kinds[i].type == KIND_LATENT) out->kv_bytes_per_token += out->kinds[i].page_bytes / KV_PAGE_TOKENS;
        size_attention(m, out);
        out->n_layer = m->spec.n_layer;
        out->d_model = m->spec.d_model;
        out->n_vocab = m->spec.n_vocab;
        st = size_touched(m, out, err);
    }
    model_close(m);
    return st;
}
