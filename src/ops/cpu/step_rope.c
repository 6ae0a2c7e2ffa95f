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

/* Where K and V of head h of token i go; NULL: the engine gave no page, and the row must not go on. */
static uint8_t *area_of(const struct compiled *c, const struct plan_step *s, int32_t i, int h)
{
    const struct cpu_batch *b = &c->batch;
    uint8_t *area = cpu_kv_area(c, &b->rows[b->row_of[i]], s->u.rope_kv.i_kind, s->u.rope_kv.i_in_kind, h, b->index[i]);
    if (!area) __atomic_store_n(&b->results[b->row_of[i]].status, MB_INTERNAL, __ATOMIC_RELAXED);
    return area;
}

/* K of head h of token i into k; what V is: as it was projected, or normed, in v. */
static const float *make_kv(const struct compiled *c, const struct plan_step *s, int32_t i, int h, float *k, float *v)
{
    int64_t d = s->u.rope_kv.head_dim;
    norm_rotate(c, s, i, cpu_row_f32(c, s->u.rope_kv.k, i) + h * d, s->u.rope_kv.k_norm, k);
    const float *x = cpu_row_f32(c, s->u.rope_kv.v, i) + h * d;
    if (!s->u.rope_kv.v_norm) return x;
    c->dev->kernels.rmsnorm(x, NULL, d, s->u.rope_kv.norm_eps, v);
    return v;
}

static enum kv_format format_of(const struct compiled *c, const struct plan_step *s)
{
    return (enum kv_format)c->plan->kinds[s->u.rope_kv.i_kind].format;
}

void cpu_rope_kv(const struct compiled *c, const struct plan_step *s, int32_t i, int h, float *tmp)
{
    int64_t d = s->u.rope_kv.head_dim;
    const float *v = make_kv(c, s, i, h, tmp, tmp + d);
    uint8_t *area = area_of(c, s, i, h);
    if (area) c->dev->kernels.kv_write(format_of(c, s), d, c->batch.index[i] % KV_PAGE_TOKENS, tmp, v, area);
}

/* Do tokens [i, i + 16) of the batch lie side by side in a page, from a place on where they may be written together, and is that faster? */
static bool sixteen(const struct compiled *c, const struct plan_step *s, int32_t i, int32_t end)
{
    const struct cpu_batch *b = &c->batch;
    if (!c->dev->kernels.kv_write_16 || kv_is_codes((int)format_of(c, s))) return false;
    return end - i >= 16 && b->row_of[i + 15] == b->row_of[i] && b->index[i] % 16 == 0;
}

/* Head h of K and V of tokens [first, end). tmp: 32 heads. */
static void write_kv(const struct compiled *c, const struct plan_step *s, int32_t first, int32_t end, int h, float *tmp)
{
    int64_t d = s->u.rope_kv.head_dim, ld_v = d;
    for (int32_t i = first, n; i < end; i += n) {
        n = sixteen(c, s, i, end) ? 16 : 1;
        if (n == 1) {
            cpu_rope_kv(c, s, i, h, tmp);
            continue;
        }
        const float *v = NULL;
        for (int32_t j = n - 1; j >= 0; j--) v = make_kv(c, s, i + j, h, tmp + j * d, tmp + (16 + j) * d);
        if (!s->u.rope_kv.v_norm) ld_v = (int64_t)(c->row_bytes[s->u.rope_kv.v] / sizeof(float));
        uint8_t *area = area_of(c, s, i, h);
        if (area) c->dev->kernels.kv_write_16(format_of(c, s), d, c->batch.index[i] % KV_PAGE_TOKENS, tmp, d, v, ld_v, area);
    }
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
    if (h >= n_q) write_kv(c, s, first, end, h - n_q, (float *)c->thread_scratch[i_thread]);
    for (int32_t i = first; i < end && h < n_q; i++)
        cpu_rope_q(c, s, i, h, cpu_row_f32(c, s->out, i) + (int64_t)h * s->u.rope_kv.head_dim);
}
