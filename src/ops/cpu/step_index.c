/* step_index.c: the indexer of sparse attention: of the keys that a token may see, which it does see.
 *
 * A token at an index below top_k sees all and is not looked at. For the others every key gets a score (kernels.h,
 * index_scores), and the best top_k are kept, by score descending, then index ascending: a function of the token's index and
 * the keys up to it alone. With few such tokens and several threads the splits of a token are dealt out, and whoever finishes
 * the last chooses.
 */
#include <string.h>

#include "ops/cpu/cpu_int.h"

/* Scratch of a thread: q rotated, the kernel's, and scores of one token. */
struct index_scratch {
    float *q, *scores;
    void *unit;
};

static size_t round64(size_t v)
{
    return (v + 63) / 64 * 64;
}

static size_t scores_floats(const struct plan *p)
{
    return ((size_t)p->n_context + ATTN_SPLIT - 1) / ATTN_SPLIT * ATTN_SPLIT;
}

static size_t lay(struct index_scratch *a, uint8_t *base, const struct plan *p, const struct plan_step *s)
{
    size_t off = 0;
    a->q = (float *)(base + off);
    off += round64((size_t)(s->u.index.n_head * s->u.index.dim) * sizeof(float));
    a->unit = base + off;
    off += round64(index_scratch_bytes());
    a->scores = (float *)(base + off);
    return off + scores_floats(p) * sizeof(float);
}

size_t cpu_index_scratch_bytes(const struct plan *p, const struct plan_step *s)
{
    struct index_scratch a;
    return lay(&a, NULL, p, s);
}

size_t cpu_index_scores_bytes(const struct plan *p, int n_threads)
{
    for (int32_t i = 0; i < p->n_steps && n_threads > 1; i++)
        if (p->steps[i].op == STEP_INDEX) return CPU_ATTN_SPLIT_TILES * (size_t)n_threads * scores_floats(p) * sizeof(float);
    return 0;
}

/* --- choosing --- */

/* Rises with x; a NaN is below everything. */
static uint32_t order(float x)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, 4);
    return x != x ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The top_k-th largest of x[n], n > top_k; *n_equal: how many of its equals belong to the best. Byte by byte, the highest first. */
static uint32_t threshold(const float *x, int32_t n, int32_t top_k, int32_t *n_equal)
{
    uint32_t value = 0, known = 0;
    int32_t left = top_k;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = { 0 };
        for (int32_t j = 0; j < n; j++) {
            uint32_t u = order(x[j]);
            if ((u & known) == value) count[u >> shift & 255]++;
        }
        int b = 255;
        for (; b > 0 && count[b] < left; b--) left -= count[b];
        value |= (uint32_t)b << shift;
        known |= 255u << shift;
    }
    *n_equal = left;
    return value;
}

static void choose(const float *x, int32_t n, int32_t top_k, float *out)
{
    int32_t n_equal, at = 0;
    uint32_t limit = threshold(x, n, top_k, &n_equal);
    for (int32_t j = 0; j < n && at < top_k; j++) {
        uint32_t u = order(x[j]);
        if (u < limit || (u == limit && n_equal-- <= 0)) continue;
        out[at++] = (float)j;
    }
}

/* --- scores --- */

static void load_q(const struct compiled *c, const struct plan_step *s, int32_t i, float *q)
{
    int64_t d = s->u.index.dim;
    const struct rope_spec *r = &s->u.index.rope;
    const float *cs = r->table + (int64_t)c->batch.rope_pos[i] * r->n_rot;
    memcpy(q, cpu_row_f32(c, s->in, i), (size_t)(s->u.index.n_head * d) * sizeof *q);
    for (int h = 0; h < s->u.index.n_head; h++) c->dev->kernels.rope(q + h * d, r->n_rot, r->interleaved, cs);
}

/* Scores of token i for the keys of one split, to out; scratch's q is the token's. */
static void score_split(const struct compiled *c, const struct plan_step *s, int32_t i, int32_t i_split,
                        const struct index_scratch *a, float *out)
{
    const struct cpu_batch *b = &c->batch;
    const struct row *row = &b->rows[b->row_of[i]];
    int32_t base = i_split * ATTN_SPLIT, n = b->index[i] + 1 - base;
    enum kv_format f = (enum kv_format)c->plan->kinds[s->u.index.i_kind].format;
    struct index_unit u = { .d = s->u.index.dim, .n_head = s->u.index.n_head, .q = a->q, .format = f, .out = out,
                            .w = cpu_row_f32(c, s->u.index.weights, i), .n_keys = n < ATTN_SPLIT ? n : ATTN_SPLIT, .scratch = a->unit };
    bool all = true;
    for (int j = 0; j * KV_PAGE_TOKENS < u.n_keys; j++) {
        const uint8_t *area = cpu_kv_area(c, row, s->u.index.i_kind, s->u.index.i_in_kind, 0, base + j * KV_PAGE_TOKENS);
        all = all && area;
        u.page[j] = area ? area + kv_latent_bytes(f, s->u.index.first_row) : NULL;
    }
    if (all) c->dev->kernels.index_scores(&u);
    else memset(out, 0, ATTN_SPLIT * sizeof *out); /* the row fails: STEP_LATENT has seen to it */
}

static int32_t splits_of(const struct compiled *c, int32_t i)
{
    return c->batch.index[i] / ATTN_SPLIT + 1;
}

int64_t cpu_index_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    struct cpu_index *x = &c->index;
    int32_t most = 0;
    x->n_token = x->n_split = 0;
    x->ld = scores_floats(c->plan);
    for (int32_t i = 0; i < c->batch.m; i++) {
        if (c->batch.index[i] < p->s->u.index.top_k) continue;
        x->token[x->n_token++] = i;
        if (splits_of(c, i) > most) most = splits_of(c, i);
    }
    if (c->n_threads == 1 || x->n_token >= CPU_ATTN_SPLIT_TILES * c->n_threads || most < 2) return x->n_token;
    x->n_split = most;
    for (int32_t t = 0; t < x->n_token; t++)
        atomic_store_explicit(&c->attn_tiles[t].n_left, most, memory_order_relaxed);
    return (int64_t)x->n_token * most;
}

void cpu_index_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct plan_step *s = p->s;
    struct index_scratch a;
    lay(&a, c->thread_scratch[i_thread], c->plan, s);
    int32_t t = (int32_t)(c->index.n_split > 0 ? i_tile / c->index.n_split : i_tile), i = c->index.token[t];
    int32_t n_split = splits_of(c, i), sp = c->index.n_split > 0 ? (int32_t)(i_tile % c->index.n_split) : 0;
    int32_t end = c->index.n_split > 0 ? sp + 1 : n_split;
    float *scores = c->index.n_split > 0 ? c->index.scores + (size_t)t * c->index.ld : a.scores;
    load_q(c, s, i, a.q);
    for (; sp < end && sp < n_split; sp++) score_split(c, s, i, sp, &a, scores + (size_t)sp * ATTN_SPLIT);
    if (c->index.n_split > 0 && atomic_fetch_sub_explicit(&c->attn_tiles[t].n_left, 1, memory_order_acq_rel) > 1) return;
    choose(scores, c->batch.index[i] + 1, s->u.index.top_k, cpu_row_f32(c, s->out, i));
}
