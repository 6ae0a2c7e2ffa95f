/* step_rope.c: head norms, rotary positions, the scale of q, and the writing of K and V into their page. The tiles of attention do this
 * for their own heads (step_attend.c). But with several tokens a row a query reads keys that other tiles write: then all heads of K and
 * V are done here first, and those of q too where attention does not follow at once.
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"

static const float *position_row(const struct compiled *c, const struct plan_step *s, int32_t i)
{
    const struct rope_spec *r = &s->u.rope_kv.rope;
    return r->n_rot ? r->table + (int64_t)c->batch.rope_pos[i] * r->n_rot : NULL;
}

static void norm_rotate(const struct compiled *c, const struct plan_step *s, int32_t i, const float *x, const float *norm, float *y)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t d = s->u.rope_kv.head_dim;
    const float *cs = position_row(c, s, i);
    if (norm) k->rmsnorm(x, norm, d, s->u.rope_kv.norm_eps, y);
    else memcpy(y, x, (size_t)d * sizeof *y);
    if (cs) k->rope(y, s->u.rope_kv.rope.n_rot, s->u.rope_kv.rope.interleaved, cs);
}

void cpu_rope_q(const struct compiled *c, const struct plan_step *s, int32_t i, int h, float *y)
{
    int64_t d = s->u.rope_kv.head_dim;
    norm_rotate(c, s, i, cpu_row_f32(c, s->in, i) + (int64_t)h * s->u.rope_kv.q_step, s->u.rope_kv.q_norm, y);
    const float *steps = s->u.rope_kv.q_steps;
    float more = steps ? steps[c->batch.rope_pos[i] / s->u.rope_kv.q_step_tokens] : 1.0f;
    c->dev->kernels.scale(y, d, s->u.rope_kv.q_scale * more);
}

void cpu_rope_kv(const struct compiled *c, const struct plan_step *s, int32_t i, int h, float *tmp)
{
    const struct cpu_batch *b = &c->batch;
    int64_t d = s->u.rope_kv.head_dim;
    norm_rotate(c, s, i, cpu_row_f32(c, s->u.rope_kv.k, i) + h * d, s->u.rope_kv.k_norm, tmp);
    uint8_t *area = cpu_kv_area(c, &b->rows[b->row_of[i]], s->u.rope_kv.i_kind, s->u.rope_kv.i_in_kind, h, b->index[i]);
    if (!area) { /* the engine gave no page: the row must not go on */
        __atomic_store_n(&b->results[b->row_of[i]].status, MB_INTERNAL, __ATOMIC_RELAXED);
        return;
    }
    const float *v = cpu_row_f32(c, s->u.rope_kv.v, i) + h * d;
    if (s->u.rope_kv.v_norm) {
        c->dev->kernels.rmsnorm(v, NULL, d, s->u.rope_kv.norm_eps, tmp + d);
        v = tmp + d;
    }
    c->dev->kernels.kv_write((enum kv_format)c->plan->kinds[s->u.rope_kv.i_kind].format, d, b->index[i] % KV_PAGE_TOKENS, tmp, v, area);
}

/* Tokens of a tile: one head of a stretch of a page's lines. Heads innermost: a thread's share has some of q and some of K and V, which
 * take longer, and few rows. */
#define ROPE_TILE KV_PAGE_TOKENS

static int q_heads(const struct cpu_pass *p)
{
    return p->partner ? 0 : p->s->u.rope_kv.n_head;
}

static int n_heads(const struct cpu_pass *p)
{
    return q_heads(p) + (p->s->u.rope_kv.k >= 0 ? p->s->u.rope_kv.n_head_kv : 0);
}

static int64_t stretches(const struct compiled *c)
{
    return ((int64_t)c->batch.m + ROPE_TILE - 1) / ROPE_TILE;
}

int64_t cpu_rope_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    if (p->partner && c->batch.all_single) return 0;
    return n_heads(p) * stretches(c);
}

void cpu_rope_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct plan_step *s = p->s;
    int h = (int)(i_tile % n_heads(p)), n_q = q_heads(p);
    int32_t first = (int32_t)(i_tile / n_heads(p)) * ROPE_TILE;
    int32_t end = first + ROPE_TILE < c->batch.m ? first + ROPE_TILE : c->batch.m;
    for (int32_t i = first; i < end; i++) {
        if (h < n_q) cpu_rope_q(c, s, i, h, cpu_row_f32(c, s->out, i) + (int64_t)h * s->u.rope_kv.head_dim);
        else cpu_rope_kv(c, s, i, h - n_q, (float *)c->thread_scratch[i_thread]);
    }
}
