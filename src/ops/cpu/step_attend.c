/* step_attend.c: rotary positions and the writing of K and V, then attention over pages.
 *
 * Attention is cut into tiles: up to ATTN_ROWS query rows (tokens x query heads of one KV head) of one row. With many
 * tiles, a thread takes a tile through all its splits and merges as it goes. With few (decoding a long context), the
 * splits themselves are dealt to threads, their (m, l, o) go to scratch, and a second phase merges them in order. The
 * bits are the same: splits are anchored at index 0 and merge left to right (docs/numerics.md, section 2).
 */
#include <math.h>
#include <string.h>

#include "ops/cpu/cpu_int.h"

#define ATTN_ROWS 48

static void rope_kv_q(const struct compiled *c, const struct plan_step *s, int32_t i, int h, const float *cs)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t d = s->u.rope_kv.head_dim;
    const float *x = cpu_row_f32(c, s->in, i) + h * d;
    float *y = cpu_row_f32(c, s->out, i) + h * d;
    if (s->u.rope_kv.q_norm) k->rmsnorm(x, s->u.rope_kv.q_norm, d, s->u.rope_kv.norm_eps, y);
    else memcpy(y, x, (size_t)d * sizeof *y);
    if (cs) k->rope(y, s->u.rope_kv.rope.n_rot, s->u.rope_kv.rope.interleaved, cs);
    k->scale(y, d, s->u.rope_kv.q_scale);
}

static void rope_kv_k(const struct compiled *c, const struct plan_step *s, int32_t i, int h, const float *cs, float *y)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    const struct cpu_batch *b = &c->batch;
    int64_t d = s->u.rope_kv.head_dim;
    const float *x = cpu_row_f32(c, s->u.rope_kv.k, i) + h * d;
    if (s->u.rope_kv.k_norm) k->rmsnorm(x, s->u.rope_kv.k_norm, d, s->u.rope_kv.norm_eps, y);
    else memcpy(y, x, (size_t)d * sizeof *y);
    if (cs) k->rope(y, s->u.rope_kv.rope.n_rot, s->u.rope_kv.rope.interleaved, cs);
    uint8_t *area = cpu_kv_area(c, &b->rows[b->row_of[i]], s->u.rope_kv.i_kind, s->u.rope_kv.i_in_kind, h, b->index[i]);
    if (!area) {
        b->results[b->row_of[i]].status = MB_INTERNAL; /* the engine gave no page: the row must not go on */
        return;
    }
    k->kv_write((enum kv_format)c->plan->kinds[s->u.rope_kv.i_kind].format, d, b->index[i] % KV_PAGE_TOKENS, y,
                cpu_row_f32(c, s->u.rope_kv.v, i) + h * d, area);
}

int cpu_step_rope_kv(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    (void)phase;
    const struct rope_spec *rope = &s->u.rope_kv.rope;
    const struct cpu_batch *b = &c->batch;
    int n_q = s->u.rope_kv.n_head, n_kv = s->u.rope_kv.k >= 0 ? s->u.rope_kv.n_head_kv : 0;
    int64_t first, end;
    /* Heads outside, tokens inside: a thread writes whole stretches of a page's lines. */
    threads_share((int64_t)(n_q + n_kv) * b->m, 1, i_thread, n_threads, &first, &end);
    for (int64_t item = first; item < end; item++) {
        int h = (int)(item / b->m);
        int32_t i = (int32_t)(item % b->m);
        const float *cs = rope->n_rot ? rope->table + (int64_t)b->rope_pos[i] * rope->n_rot : NULL;
        if (h < n_q) rope_kv_q(c, s, i, h, cs);
        else rope_kv_k(c, s, i, h - n_q, cs, (float *)c->thread_scratch[i_thread]);
    }
    return 1;
}

/* What a query at sequence index i may see: one interval, by (index, window, spans) alone. */
static void visible(const struct plan_step *s, const struct row *r, int32_t i, int32_t *lo, int32_t *hi)
{
    *hi = s->u.attend.causal ? i + 1 : r->i_first + r->n;
    *lo = s->u.attend.window > 0 && i + 1 > s->u.attend.window ? i + 1 - s->u.attend.window : 0;
    for (int32_t k = 0; k < r->n_two_way; k++)
        if (i >= r->two_way[k].first && i < r->two_way[k].end && r->two_way[k].end > *hi) *hi = r->two_way[k].end;
}

/* A tile: tokens [tok0, tok0 + n_tok) of one row (row-relative), one KV head, and the splits they can see. */
struct tile {
    const struct row *row;
    int32_t i_row, tok0, n_tok, n_rows;
    int i_head_kv, group;
    int32_t split0, split1; /* half-open */
};

static int32_t tile_tokens(const struct plan_step *s)
{
    int32_t group = s->u.attend.n_head / s->u.attend.n_head_kv;
    return group >= ATTN_ROWS ? 1 : ATTN_ROWS / group;
}

static int32_t count_tiles(const struct compiled *c, const struct plan_step *s)
{
    int32_t per = tile_tokens(s), n = 0;
    for (int32_t r = 0; r < c->batch.n_rows; r++)
        n += (c->batch.rows[r].n + per - 1) / per * s->u.attend.n_head_kv;
    return n;
}

/* Tile number t, rows outermost, then KV heads, then tokens. */
static struct tile get_tile(const struct compiled *c, const struct plan_step *s, int32_t t)
{
    int32_t per = tile_tokens(s), r = 0, lo, hi, lo_last, hi_last;
    int32_t n_head_kv = s->u.attend.n_head_kv;
    while (t >= (c->batch.rows[r].n + per - 1) / per * n_head_kv) {
        t -= (c->batch.rows[r].n + per - 1) / per * n_head_kv;
        r++;
    }
    const struct row *row = &c->batch.rows[r];
    int32_t n_tiles = (row->n + per - 1) / per;
    struct tile out = { .row = row, .i_row = r, .i_head_kv = t / n_tiles, .tok0 = t % n_tiles * per,
                        .group = s->u.attend.n_head / n_head_kv };
    out.n_tok = row->n - out.tok0 < per ? row->n - out.tok0 : per;
    out.n_rows = out.n_tok * out.group;
    visible(s, row, row->i_first + out.tok0, &lo, &hi);
    visible(s, row, row->i_first + out.tok0 + out.n_tok - 1, &lo_last, &hi_last);
    for (int32_t k = 0; k < out.n_tok; k++) { /* spans may make a token in the middle see further */
        int32_t l, h;
        visible(s, row, row->i_first + out.tok0 + k, &l, &h);
        if (h > hi_last) hi_last = h;
    }
    out.split0 = lo / ATTN_SPLIT;
    out.split1 = (hi_last + ATTN_SPLIT - 1) / ATTN_SPLIT;
    return out;
}

/* Per-thread scratch of this step. */
struct attn_scratch {
    float *q, *o, *O;        /* [ATTN_ROWS or group][d] */
    float *m, *ls, *M, *Lt;
    int32_t *lo, *hi;
    void *unit;
};

static size_t lay_attn_scratch(struct attn_scratch *a, uint8_t *base, int64_t rows, int64_t d)
{
    size_t off = 0;
    float **mats[] = { &a->q, &a->o, &a->O };
    float **vecs[] = { &a->m, &a->ls, &a->M, &a->Lt };
    for (int i = 0; i < 3; i++) { *mats[i] = (float *)(base + off); off += (size_t)(rows * d) * sizeof(float); }
    for (int i = 0; i < 4; i++) { *vecs[i] = (float *)(base + off); off += ((size_t)rows * sizeof(float) + 63) / 64 * 64; }
    a->lo = (int32_t *)(base + off); off += ((size_t)rows * 4 + 63) / 64 * 64;
    a->hi = (int32_t *)(base + off); off += ((size_t)rows * 4 + 63) / 64 * 64;
    off = (off + 63) / 64 * 64;
    a->unit = base + off;
    return off + attn_scratch_bytes((int)rows, d);
}

static int64_t attn_rows_max(const struct plan_step *s)
{
    int64_t group = s->u.attend.n_head / s->u.attend.n_head_kv;
    return group > ATTN_ROWS ? group : ATTN_ROWS;
}

static void load_q(const struct compiled *c, const struct plan_step *s, const struct tile *t, float *q)
{
    int64_t d = s->u.attend.head_dim;
    int32_t first = c->batch.row_first[t->i_row] + t->tok0;
    for (int32_t k = 0; k < t->n_tok; k++)
        memcpy(q + (int64_t)k * t->group * d,
               cpu_row_f32(c, s->in, first + k) + (int64_t)t->i_head_kv * t->group * d,
               (size_t)(t->group * d) * sizeof(float));
}

/* Rows of tile t against split i_split: m, ls [n_rows], o [n_rows][d]. */
static void run_unit(const struct compiled *c, const struct plan_step *s, const struct tile *t, int32_t i_split,
                     const float *q, const struct attn_scratch *a, float *m, float *ls, float *o)
{
    int64_t d = s->u.attend.head_dim;
    int32_t base = i_split * ATTN_SPLIT;
    struct attn_unit u = { .d = d, .n_rows = t->n_rows, .q = q, .ld_q = d, .vis_lo = a->lo, .vis_hi = a->hi,
                           .format = (enum kv_format)c->plan->kinds[s->u.attend.i_kind].format,
                           .softcap = s->u.attend.softcap, .m = m, .ls = ls, .o = o, .ld_o = d, .scratch = a->unit };
    for (int32_t k = 0; k < t->n_tok; k++) {
        int32_t lo, hi;
        visible(s, t->row, t->row->i_first + t->tok0 + k, &lo, &hi);
        lo = lo - base < 0 ? 0 : lo - base;
        hi = hi - base > ATTN_SPLIT ? ATTN_SPLIT : hi - base;
        for (int g = 0; g < t->group; g++) {
            a->lo[k * t->group + g] = lo;
            a->hi[k * t->group + g] = hi;
        }
    }
    for (int j = 0; j < ATTN_SPLIT / KV_PAGE_TOKENS; j++)
        u.page[j] = cpu_kv_area(c, t->row, s->u.attend.i_kind, s->u.attend.i_in_kind, t->i_head_kv,
                                base + j * KV_PAGE_TOKENS);
    c->dev->kernels.attend_unit(&u);
}

static float *out_row(const struct compiled *c, const struct plan_step *s, const struct tile *t, int32_t i)
{
    int32_t token = c->batch.row_first[t->i_row] + t->tok0 + i / t->group;
    return cpu_row_f32(c, s->out, token) +
           ((int64_t)t->i_head_kv * t->group + i % t->group) * s->u.attend.head_dim;
}

static void run_tile(const struct compiled *c, const struct plan_step *s, const struct tile *t, const struct attn_scratch *a)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t d = s->u.attend.head_dim;
    load_q(c, s, t, a->q);
    for (int32_t i = 0; i < t->n_rows; i++) { a->M[i] = -INFINITY; a->Lt[i] = 0; }
    memset(a->O, 0, (size_t)(t->n_rows * d) * sizeof(float));
    for (int32_t sp = t->split0; sp < t->split1; sp++) {
        run_unit(c, s, t, sp, a->q, a, a->m, a->ls, a->o);
        for (int32_t i = 0; i < t->n_rows; i++)
            k->attend_merge(d, a->m[i], a->ls[i], a->o + i * d, &a->M[i], &a->Lt[i], a->O + i * d);
    }
    for (int32_t i = 0; i < t->n_rows; i++) k->attend_finish(d, a->Lt[i], a->O + i * d, out_row(c, s, t, i));
}

/* Floats of one split result of a tile: m, ls, o. */
static size_t unit_floats(const struct plan_step *s, const struct tile *t)
{
    return (size_t)t->n_rows * (size_t)(s->u.attend.head_dim + 2);
}

/* Few tiles and room for their split results? Then splits are dealt to threads. Same answer on every thread. */
static bool split_mode(const struct compiled *c, const struct plan_step *s, int32_t n_tiles, int n_threads)
{
    size_t floats = 0;
    if (n_threads == 1 || n_tiles >= 4 * n_threads) return false;
    for (int32_t t = 0; t < n_tiles; t++) {
        struct tile tile = get_tile(c, s, t);
        floats += unit_floats(s, &tile) * (size_t)(tile.split1 - tile.split0);
    }
    return floats * sizeof(float) <= c->attn_partials_bytes;
}

static void run_units(const struct compiled *c, const struct plan_step *s, int32_t n_tiles, const struct attn_scratch *a,
                      int i_thread, int n_threads)
{
    float *slot = (float *)c->attn_partials;
    int32_t u = 0;
    for (int32_t t = 0; t < n_tiles; t++) {
        struct tile tile = get_tile(c, s, t);
        bool loaded = false;
        for (int32_t sp = tile.split0; sp < tile.split1; sp++, u++, slot += unit_floats(s, &tile)) {
            if (u % n_threads != i_thread) continue;
            if (!loaded) load_q(c, s, &tile, a->q);
            loaded = true;
            run_unit(c, s, &tile, sp, a->q, a, slot, slot + tile.n_rows, slot + 2 * tile.n_rows);
        }
    }
}

static void merge_units(const struct compiled *c, const struct plan_step *s, int32_t n_tiles, const struct attn_scratch *a,
                        int i_thread, int n_threads)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    const float *slot = (const float *)c->attn_partials;
    int64_t d = s->u.attend.head_dim;
    int32_t item = 0;
    for (int32_t t = 0; t < n_tiles; t++) {
        struct tile tile = get_tile(c, s, t);
        size_t step = unit_floats(s, &tile);
        int32_t n_splits = tile.split1 - tile.split0;
        for (int32_t i = 0; i < tile.n_rows; i++, item++) {
            if (item % n_threads != i_thread) continue;
            float M = -INFINITY, Lt = 0;
            memset(a->O, 0, (size_t)d * sizeof(float));
            for (int32_t sp = 0; sp < n_splits; sp++) {
                const float *p = slot + (size_t)sp * step;
                k->attend_merge(d, p[i], p[tile.n_rows + i], p + 2 * tile.n_rows + i * d, &M, &Lt, a->O);
            }
            k->attend_finish(d, Lt, a->O, out_row(c, s, &tile, i));
        }
        slot += step * (size_t)n_splits;
    }
}

static void write_inputs(const struct compiled *c, const struct plan_step *s, int i_thread, int n_threads)
{
    int64_t first, end, width = (int64_t)s->u.attend.n_head * s->u.attend.head_dim;
    threads_share(c->batch.m, 1, i_thread, n_threads, &first, &end);
    for (int64_t i = first; i < end; i++) cpu_write_inputs(c, s->outs, i, cpu_row_f32(c, s->out, i), 0, width);
}

int cpu_step_attend(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    struct attn_scratch a;
    int32_t n_tiles = count_tiles(c, s);
    bool split = split_mode(c, s, n_tiles, n_threads);
    lay_attn_scratch(&a, c->thread_scratch[i_thread], attn_rows_max(s), s->u.attend.head_dim);
    if (phase == 0 && split) run_units(c, s, n_tiles, &a, i_thread, n_threads);
    if (phase == 0 && !split)
        for (int32_t t = i_thread; t < n_tiles; t += n_threads) {
            struct tile tile = get_tile(c, s, t);
            run_tile(c, s, &tile, &a);
        }
    if (phase == 1 && split) merge_units(c, s, n_tiles, &a, i_thread, n_threads);
    if (phase == (split ? 2 : 1)) write_inputs(c, s, i_thread, n_threads);
    return split ? 3 : 2;
}

static size_t attend_bytes(const struct plan_step *s)
{
    struct attn_scratch a;
    return lay_attn_scratch(&a, NULL, attn_rows_max(s), s->u.attend.head_dim);
}

size_t cpu_attn_partials_bytes(const struct plan *p, int n_threads)
{
    size_t most = 0;
    if (n_threads == 1) return 0;
    for (int32_t i = 0; i < p->n_steps; i++) {
        const struct plan_step *s = &p->steps[i];
        if (s->op != STEP_ATTEND) continue;
        /* Up to 4 tiles a thread of one decoded token each, over the whole context. */
        size_t rows = (size_t)(s->u.attend.n_head / s->u.attend.n_head_kv);
        size_t splits = ((size_t)p->n_context + ATTN_SPLIT - 1) / ATTN_SPLIT;
        size_t bytes = 4 * (size_t)n_threads * splits * rows * (size_t)(s->u.attend.head_dim + 2) * sizeof(float);
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t cpu_thread_scratch_bytes(const struct plan *p)
{
    size_t most = 2048 * 64 * sizeof(float); /* step_linear.c: LINEAR_TMP_FLOATS */
    for (int i = 0; i < p->n_bufs; i++) {
        size_t row = ((size_t)p->bufs[i].width + 64) * sizeof(float);
        if (row > most) most = row;
    }
    for (int32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].op == STEP_ATTEND && attend_bytes(&p->steps[i]) > most) most = attend_bytes(&p->steps[i]);
    return most > cpu_sample_scratch_bytes(p->n_vocab) ? most : cpu_sample_scratch_bytes(p->n_vocab);
}
