/* bind.c: the matrices of a spec by name, in load order, and their packing; source pages are dropped as they are read, so that
 * the weights exist once. bind_source.c finds and checks a matrix, bind_vectors.c reads the vectors.
 */
#include <stdio.h>

#include "model/model_int.h"

/* One matrix of layer i, or `n` rows of a fused one. */
struct part {
    const char *name, *fused; /* fused: the matrix that holds it, or NULL */
    int64_t n, k, first, n_file;
    struct weight *dst;
    bool absent; /* this layer has none */
    int32_t split;
};

static mb_status visit_parts(int i, const struct part *part, size_t n_parts, bind_visit_fn visit, void *ctx, mb_error *err)
{
    char path[128];
    for (size_t p = 0; p < n_parts; p++) {
        if (part[p].absent) continue;
        snprintf(path, sizeof path, "layers.%d.%s", i, part[p].fused ? part[p].fused : part[p].name);
        struct bind_request r = { .path = path, .n = part[p].n, .k = part[p].k, .split = part[p].split };
        if (part[p].fused) {
            r.first = part[p].first;
            r.n_file = part[p].n_file;
        }
        MB_TRY(visit(ctx, &r, part[p].dst, err));
    }
    return MB_OK;
}

static mb_status visit_attention(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    struct layer_weights *w = &m->layers[i];
    int64_t nq = (int64_t)l->n_head * l->head_dim, nkv = (int64_t)l->n_head_kv * l->head_dim, all = nq + 2 * nkv;
    const char *qkv = s->fused_qkv ? "self_attn.qkv_proj" : NULL;
    int64_t n_q = l->attn_gate ? 2 * nq : nq;
    int32_t q_split = (int32_t)(n_q / l->n_head_kv); /* a KV head stays whole, and so do its query heads */
    bool shared = l->attn == ATTN_SHARED_KV;
    const struct part part[] = {
        { "self_attn.q_proj", qkv, n_q, s->d_model, 0, all, &w->q, false, q_split },
        { "self_attn.k_proj", qkv, nkv, s->d_model, nq, all, &w->k, shared, l->head_dim },
        { "self_attn.v_proj", qkv, nkv, s->d_model, nq + nkv, all, &w->v, shared || l->v_is_k, l->head_dim },
        { "self_attn.o_proj", NULL, s->d_model, nq, 0, 0, &w->o, false, 0 },
    };
    return visit_parts(i, part, sizeof part / sizeof part[0], visit, ctx, err);
}

static mb_status visit_mlp(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    struct layer_weights *w = &m->layers[i];
    int64_t d_ff = s->layers[i].d_ff;
    const char *gate_up = s->fused_gate_up ? "mlp.gate_up_proj" : NULL;
    bool plain = s->mlp_in != NULL;
    const struct part part[] = {
        { plain ? s->mlp_in : "mlp.gate_proj", gate_up, d_ff, s->d_model, 0, 2 * d_ff, &w->gate, false, 0 },
        { "mlp.up_proj", gate_up, d_ff, s->d_model, d_ff, 2 * d_ff, &w->up, plain, 0 },
        { plain ? s->mlp_out : "mlp.down_proj", NULL, s->d_model, d_ff, 0, 0, &w->down, false, 0 },
    };
    return visit_parts(i, part, sizeof part / sizeof part[0], visit, ctx, err);
}

/* The expert for all, and its gate where it has one. */
static mb_status visit_shared(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    int64_t d = m->spec.d_model, width = m->spec.layers[i].d_shared;
    struct layer_weights *w = &m->layers[i];
    const struct moe_names *names = m->spec.moe;
    char gate[64], up[64], down[64];
    snprintf(gate, sizeof gate, "%s.gate_proj", names->shared);
    snprintf(up, sizeof up, "%s.up_proj", names->shared);
    snprintf(down, sizeof down, "%s.down_proj", names->shared);
    const struct part part[] = {
        { names->shared_gate, NULL, 1, d, 0, 0, &w->shared_router, !names->shared_gate, 0 },
        { gate, NULL, width, d, 0, 0, &w->shared_gate, false, 0 },
        { up, NULL, width, d, 0, 0, &w->shared_up, false, 0 },
        { down, NULL, d, width, 0, 0, &w->shared_down, false, 0 },
    };
    return visit_parts(i, part, sizeof part / sizeof part[0], visit, ctx, err);
}

static mb_status visit_experts(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct layer_spec *l = &s->layers[i];
    const struct moe_names *names = s->moe;
    struct layer_weights *w = &m->layers[i];
    const struct part router = { names->router, NULL, l->n_expert, s->d_model, 0, 0, &w->router, false, 0 };
    bool beside = l->mlp == MLP_GATED_MOE;
    int32_t width = beside ? l->d_expert : l->d_ff;
    const struct { const char *stacked, *listed; int64_t n, k; struct weight *dst; } part[] = {
        { "gate_proj", names->gate, width, s->d_model, beside ? &w->expert_gate : &w->gate },
        { "up_proj", names->up, width, s->d_model, beside ? &w->expert_up : &w->up },
        { "down_proj", names->down, s->d_model, width, beside ? &w->expert_down : &w->down },
    };
    char path[3][128], listed[3][128], published[3][128]; /* until the last visit */
    MB_TRY(visit_parts(i, &router, 1, visit, ctx, err));
    for (int p = 0; p < 3; p++) {
        snprintf(path[p], sizeof path[p], "layers.%d.%s.%s", i, names->stacked, part[p].stacked);
        struct bind_request r = { .path = path[p], .n = l->n_expert * part[p].n, .k = part[p].k, .n_stack = l->n_expert,
                                  .n_used = l->top_k };
        if (names->listed) {
            snprintf(listed[p], sizeof listed[p], "layers.%d.%s.%s", i, names->listed, part[p].listed);
            r.listed = listed[p];
        }
        if (names->published) {
            snprintf(published[p], sizeof published[p], "layers.%d.%s.%s", i, names->published, p < 2 ? "gate_up_proj" : "down_proj");
            r.published = published[p];
            r.i_turn = p == 1;
            r.n_turns = p < 2 ? 2 : 1;
        }
        MB_TRY(visit(ctx, &r, part[p].dst, err));
    }
    return l->d_shared > 0 ? visit_shared(m, i, visit, ctx, err) : MB_OK;
}

/* Layer i's way from the residual to its per-layer input and back. */
static mb_status visit_layer_input(struct model *m, int i, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    const struct part part[] = {
        { "per_layer_input_gate", NULL, s->d_per_layer, s->d_model, 0, 0, &m->layers[i].input_gate, false, 0 },
        { "per_layer_projection", NULL, s->d_model, s->d_per_layer, 0, 0, &m->layers[i].input_out, false, 0 },
    };
    return visit_parts(i, part, sizeof part / sizeof part[0], visit, ctx, err);
}

/* The table of per-layer inputs is as large as the rest of a small model: its rows are read from the file. */
static mb_status visit_layer_table(struct model *m, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    int64_t width = (int64_t)s->n_layer * s->d_per_layer;
    struct bind_request table = { .path = "embed_tokens_per_layer", .n = s->n_vocab_per_layer, .k = width, .gather_only = true };
    struct bind_request proj = { .path = "per_layer_model_projection", .n = width, .k = s->d_model };
    MB_TRY(visit(ctx, &table, &m->layer_table, err));
    return visit(ctx, &proj, &m->layer_proj, err);
}

/* The MLP in front of the layers of a canvas. */
static mb_status visit_signal(struct model *m, bind_visit_fn visit, void *ctx, mb_error *err)
{
    int64_t d = m->spec.d_model, d_ff = m->spec.layers[0].d_ff;
    const struct bind_request gate = { .path = "self_conditioning.gate_proj", .n = d_ff, .k = d };
    const struct bind_request up = { .path = "self_conditioning.up_proj", .n = d_ff, .k = d };
    const struct bind_request down = { .path = "self_conditioning.down_proj", .n = d, .k = d_ff };
    MB_TRY(visit(ctx, &gate, &m->signal_gate, err));
    MB_TRY(visit(ctx, &up, &m->signal_up, err));
    return visit(ctx, &down, &m->signal_down, err);
}

mb_status bind_visit(struct model *m, bind_visit_fn visit, void *ctx, mb_error *err)
{
    const struct model_spec *s = &m->spec;
    for (int i = 0; i < s->n_layer; i++) {
        enum mlp_kind mlp = s->layers[i].mlp;
        if (s->layers[i].attn == ATTN_GATED_DELTA) MB_TRY(bind_visit_delta(m, i, visit, ctx, err));
        else if (s->layers[i].attn == ATTN_MLA) MB_TRY(bind_visit_latent(m, i, visit, ctx, err));
        else MB_TRY(visit_attention(m, i, visit, ctx, err));
        if (mlp == MLP_MOE || mlp == MLP_GATED_MOE) MB_TRY(visit_experts(m, i, visit, ctx, err));
        if (mlp != MLP_MOE) MB_TRY(visit_mlp(m, i, visit, ctx, err));
        if (s->d_per_layer > 0) MB_TRY(visit_layer_input(m, i, visit, ctx, err));
    }
    if (s->d_per_layer > 0) MB_TRY(visit_layer_table(m, visit, ctx, err));
    if (s->canvas.n > 0) MB_TRY(visit_signal(m, visit, ctx, err));
    struct bind_request embed = { .path = "embed_tokens", .n = s->n_vocab, .k = s->d_model, .gather_only = !s->tied_head, .split = SPLIT_WHOLE };
    MB_TRY(visit(ctx, &embed, &m->embed, err));
    struct bind_request head = { .path = "lm_head", .n = s->n_vocab, .k = s->d_model };
    return s->tied_head ? MB_OK : visit(ctx, &head, &m->head, err);
}

struct pack_ctx {
    struct model *m;
    const struct checkpoint *c;
    const struct model_options *opt;
    size_t done_bytes, total_bytes;
    struct bind_experts experts;
};

bool bind_experts_add(struct bind_experts *e, const struct bind_request *r, struct weight *dst, const struct weight_source *src)
{
    int i = e->n;
    e->r[i] = *r;
    e->dst[i] = dst;
    e->src[i] = *src;
    e->n = (i + 1) % 3;
    return e->n == 0;
}

/* Its tensors have been read: counted, and their pages go. */
static void done_with(struct pack_ctx *p, const struct bind_request *r, const char *name)
{
    static const char *const suffix[] = { "weight", "scales", "biases" };
    for (int i = 0; i < 3; i++) {
        const struct tensor_view *t = checkpoint_findf(p->c, "%s.%s", name, suffix[i]);
        if (!t) continue;
        p->done_bytes += r->n_file ? t->size_bytes / (size_t)r->n_file * (size_t)r->n : t->size_bytes;
        bool last = !r->n_file || r->first + r->n == r->n_file; /* the parts of a fused matrix are read one after another */
        if (!r->gather_only && last) checkpoint_drop(p->c, t);
    }
}

/* The same for published experts; gate and up are read one after the other. */
static void done_with_published(struct pack_ctx *p, const struct bind_request *r)
{
    static const char *const suffix[] = { "_blocks", "_scales", "", ".weight", ".scales", ".biases" };
    for (size_t i = 0; i < sizeof suffix / sizeof suffix[0]; i++) {
        const struct tensor_view *t = checkpoint_findf(p->c, "%s%s%s", p->m->spec.prefix, r->published, suffix[i]);
        if (!t) continue;
        p->done_bytes += t->size_bytes / (size_t)r->n_turns;
        if (r->i_turn + 1 == r->n_turns) checkpoint_drop(p->c, t);
    }
}

/* The same for a matrix whose halves are read one after the other, the turned one first. */
static void done_with_half(struct pack_ctx *p, const struct bind_request *r)
{
    static const char *const suffix[] = { "weight", "scales", "biases" };
    for (int i = 0; i < 3; i++) {
        const struct tensor_view *t = checkpoint_findf(p->c, "%s%s.%s", p->m->spec.prefix, r->halves, suffix[i]);
        if (!t) continue;
        p->done_bytes += t->size_bytes / 2;
        if (!r->halves_turned) checkpoint_drop(p->c, t);
    }
}

/* The tensors behind a matrix have been read. */
static void packed(struct pack_ctx *p, const struct bind_request *r, const struct weight_source *src)
{
    char path[128];
    if (src->n_slices == 0) done_with(p, r, src->name);
    if (r->published) done_with_published(p, r);
    if (r->halves) done_with_half(p, r);
    for (int i = 0; r->listed && i < src->n_slices; i++) {
        bind_expert_path(path, sizeof path, r->listed, i);
        const char *name = bind_path(&p->m->spec, &p->m->arena, path);
        if (name) done_with(p, r, name);
    }
    if (p->opt->progress && p->total_bytes)
        p->opt->progress(p->opt->progress_ctx, (double)p->done_bytes / (double)p->total_bytes);
}

/* Experts that stay in a file go there together, a layer at a time. */
static mb_status pack_experts(struct pack_ctx *p, mb_error *err)
{
    struct bind_experts *e = &p->experts;
    struct model *m = p->m;
    size_t each;
    MB_TRY(m->ops->expert_bytes(m->device, e->src, e->r[0].n_stack, &each, err));
    MB_TRY(m->ops->pack_experts(m->device, e->src, e->r[0].n_stack, e->dst, err));
    m->expert_bytes += each * (size_t)e->r[0].n_stack;
    if (each > m->expert_slot_bytes) m->expert_slot_bytes = each;
    for (int i = 0; i < 3; i++) packed(p, &e->r[i], &e->src[i]);
    return MB_OK;
}

static mb_status pack_one(void *ctx, const struct bind_request *r, struct weight *dst, mb_error *err)
{
    struct pack_ctx *p = ctx;
    struct weight_source src;
    size_t bytes = 0;
    MB_TRY(bind_source(&p->m->spec, p->c, &p->m->arena, r, &src, err));
    src.i_module = p->m->n_modules++;
    src.split = dst->split = bind_split(r);
    dst->n = r->n;
    dst->k = r->k;
    dst->group = bind_group(&src);
    dst->i_module = src.i_module;
    dst->name = src.name;
    if (r->n_stack > 0 && !r->halves && p->m->expert_offload)
        return bind_experts_add(&p->experts, r, dst, &src) ? pack_experts(p, err) : MB_OK;
    MB_TRY(p->m->ops->pack_bytes(p->m->device, &src, &bytes, err));
    MB_TRY(p->m->ops->pack(p->m->device, &src, dst, err));
    p->m->weight_bytes += bytes;
    packed(p, r, &src);
    return MB_OK;
}

mb_status bind_weights(struct model *m, const struct checkpoint *c, const struct model_options *opt, mb_error *err)
{
    struct pack_ctx p = { .m = m, .c = c, .opt = opt, .total_bytes = checkpoint_total_bytes(c) };
    MB_TRY(bind_vectors(m, c, err));
    return bind_visit(m, pack_one, &p, err);
}
