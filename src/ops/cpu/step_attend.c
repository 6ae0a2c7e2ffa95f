/* step_attend.c: attention over pages.
 *
 * Attention is cut into tiles: up to ATTN_ROWS_MAX query rows (tokens x query heads of one KV head) of one row, so that keys
 * and values are read once for all query heads of a group. With many tiles, a thread takes a tile through all its splits
 * and merges as it goes. With few (decoding a long context), each split of a tile is a unit of its own, (m, l, o) go to
 * scratch, and the thread that finishes the last unit of a tile merges them in order. The bits are the same: splits are
 * anchored at index 0 and merge left to right (docs/numerics.md, section 4).
 * Whoever has the output of a tile also writes it as linear inputs, when a KV head's share holds whole groups of them.
 * A tile first rotates its own q heads. In a batch of single tokens the unit of the last split (the only one that sees the token's own
 * key) also writes K and V. With more threads than units the query heads of a group are dealt out as well.
 * Where an indexer has chosen a token's keys, those are gathered, in order of their index, and take the place of the sequence:
 * what a query sees, and in which order, is still a function of its index and the keys before it alone.
 */
#include <math.h>
#include <string.h>

#include "ops/cpu/cpu_int.h"

/* Query rows of a tile: so many that bringing keys and values to floats is shared, fewer where threads would have too few tiles. */
#define ATTN_ROWS_MAX 192
#define ATTN_ROWS_MIN 48
#define ATTN_TILES_A_THREAD 6

/* Does a query at index i see chosen keys alone? Those are then its sequence: key j of it is the j-th of the list. */
static bool chooses(const struct plan_step *s, int32_t i)
{
    return s->u.attend.chosen >= 0 && i >= s->u.attend.top_k;
}

/* What a query at sequence index i may see: one interval, by (index, window, spans) alone. */
static void visible(const struct plan_step *s, const struct row *r, int32_t i, int32_t *lo, int32_t *hi)
{
    if (!s->u.attend.causal) i = r->i_first;
    if (chooses(s, i)) {
        *lo = 0;
        *hi = s->u.attend.top_k;
        return;
    }
    *hi = s->u.attend.causal ? i + 1 : r->i_first + r->n;
    *lo = s->u.attend.window > 0 && i + 1 > s->u.attend.window ? i + 1 - s->u.attend.window : 0;
    for (int32_t k = 0; k < r->n_two_way; k++)
        if (i >= r->two_way[k].first && i < r->two_way[k].end && r->two_way[k].end > *hi) *hi = r->two_way[k].end;
}

/* A tile: tokens [tok0, tok0 + n_tok) of one row (row-relative), the query heads [head0, head0 + group) of one KV head, and
 * the splits they can see. */
struct tile {
    const struct row *row;
    int32_t i_row, tok0, n_tok, n_rows;
    int i_head_kv, head0, group;
    int32_t split0, split1; /* half-open */
};

static int32_t tile_tokens(const struct compiled *c, const struct plan_step *s)
{
    if (s->u.attend.chosen >= 0) return 1; /* each token has keys of its own */
    int32_t group = s->u.attend.n_head / s->u.attend.n_head_kv;
    return group >= c->attn_rows ? 1 : c->attn_rows / group;
}

/* Tiles of one row. */
static int32_t row_tiles(const struct compiled *c, const struct plan_step *s, int32_t i_row)
{
    int32_t per = tile_tokens(c, s);
    return (c->batch.rows[i_row].n + per - 1) / per * s->u.attend.n_head_kv * c->attn_head_parts;
}

static int32_t count_tiles(const struct compiled *c, const struct plan_step *s)
{
    int32_t n = 0;
    for (int32_t r = 0; r < c->batch.n_rows; r++) n += row_tiles(c, s, r);
    return n;
}

/* Tile number t, rows outermost, then KV heads, then parts of their query heads, then tokens. */
static struct tile get_tile(const struct compiled *c, const struct plan_step *s, int32_t t)
{
    int32_t per = tile_tokens(c, s), r = 0, lo, hi, lo_last, hi_last;
    int group = s->u.attend.n_head / s->u.attend.n_head_kv, n_parts = c->attn_head_parts;
    for (; t >= row_tiles(c, s, r); r++) t -= row_tiles(c, s, r);
    const struct row *row = &c->batch.rows[r];
    int32_t n_tiles = (row->n + per - 1) / per;
    int part = t / n_tiles % n_parts;
    struct tile out = { .row = row, .i_row = r, .i_head_kv = t / n_tiles / n_parts, .tok0 = t % n_tiles * per };
    out.head0 = out.i_head_kv * group + part * group / n_parts;
    out.group = (part + 1) * group / n_parts - part * group / n_parts;
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

#define AHEAD_LINES 512
#define AHEAD_RUNS 16

/* Per-thread scratch of this step. */
struct attn_scratch {
    float *q, *o, *O;        /* [ATTN_ROWS_MAX or group][d] */
    float *m, *ls, *M, *Lt;
    int32_t *lo, *hi;
    uint8_t *chosen;         /* chosen keys of a split, as pages; NULL where a layer sees all */
    void *unit;
    bool follows;            /* the tile before was this thread's too */
    int n_ahead, lines_left; /* what the next tile will read, no more than AHEAD_LINES */
    struct attn_lines ahead[AHEAD_RUNS];
};

static size_t lay_attn_scratch(struct attn_scratch *a, uint8_t *base, const struct plan_step *s, int64_t rows)
{
    size_t off = 0;
    int64_t d = s->u.attend.head_dim;
    float **mats[] = { &a->q, &a->o, &a->O };
    float **vecs[] = { &a->m, &a->ls, &a->M, &a->Lt };
    for (int i = 0; i < 3; i++) { *mats[i] = (float *)(base + off); off += (size_t)(rows * d) * sizeof(float); }
    for (int i = 0; i < 4; i++) { *vecs[i] = (float *)(base + off); off += ((size_t)rows * sizeof(float) + 63) / 64 * 64; }
    a->lo = (int32_t *)(base + off); off += ((size_t)rows * 4 + 63) / 64 * 64;
    a->hi = (int32_t *)(base + off); off += ((size_t)rows * 4 + 63) / 64 * 64;
    off = (off + 63) / 64 * 64;
    a->chosen = base + off;
    if (s->u.attend.chosen >= 0) off += ATTN_SPLIT / KV_PAGE_TOKENS * kv_latent_bytes(KV_F32, d);
    a->unit = base + off;
    return off + attn_scratch_bytes((int)rows, d, s->u.attend.latent ? s->u.attend.value_dim : 0);
}

static int64_t attn_rows_max(const struct plan_step *s)
{
    int64_t group = s->u.attend.n_head / s->u.attend.n_head_kv;
    return group > ATTN_ROWS_MAX ? group : ATTN_ROWS_MAX;
}

/* q' of a tile; rope: the step that makes it, where that stands right before: a head of a token is needed by one tile alone. */
static void load_q(const struct compiled *c, const struct plan_step *s, const struct plan_step *rope, const struct tile *t,
                   float *q)
{
    int64_t d = s->u.attend.head_dim;
    int32_t first = c->batch.row_first[t->i_row] + t->tok0;
    for (int32_t k = 0; k < t->n_tok; k++)
        for (int g = 0; rope && g < t->group; g++) cpu_rope_q(c, rope, first + k, t->head0 + g, q + (k * t->group + g) * d);
    for (int32_t k = 0; !rope && k < t->n_tok; k++)
        memcpy(q + (int64_t)k * t->group * d,
               cpu_row_f32(c, s->in, first + k) + (int64_t)t->head0 * d,
               (size_t)(t->group * d) * sizeof(float));
}

/* Where element `index` of a row of 64 stands, in elements. */
static int place(enum kv_format f, int32_t index)
{
    int i = index % KV_PAGE_TOKENS;
    return f == KV_BF16 ? (i & ~31) + 2 * (i & 15) + ((i >> 4) & 1) : i;
}

/* Chosen keys [first, first + n) of the tile's token, as pages at a->chosen; elements keep their bits. */
static void gather_chosen(const struct compiled *c, const struct plan_step *s, const struct tile *t, int32_t first, int32_t n,
                          uint8_t *pages)
{
    enum kv_format f = (enum kv_format)c->plan->kinds[s->u.attend.i_kind].format;
    int64_t d = s->u.attend.head_dim;
    size_t page_bytes = kv_latent_bytes(f, d), size = f == KV_F32 ? 4 : 2, row = size * KV_PAGE_TOKENS;
    const float *list = cpu_row_f32(c, s->u.attend.chosen, c->batch.row_first[t->i_row] + t->tok0) + first;
    for (int32_t j = 0; j < n; j++) {
        int32_t index = (int32_t)list[j];
        const uint8_t *from = cpu_kv_area(c, t->row, s->u.attend.i_kind, s->u.attend.i_in_kind, t->i_head_kv, index);
        uint8_t *to = pages + (size_t)(j / KV_PAGE_TOKENS) * page_bytes + size * (size_t)place(f, j);
        if (!from) continue; /* the row fails: STEP_LATENT has seen to it */
        from += size * (size_t)place(f, index);
        for (int64_t i = 0; i < d; i++) memcpy(to + (size_t)i * row, from + (size_t)i * row, size);
    }
}

/* Pages of a split for the kernel, and where it will go on. */
static void set_pages(const struct compiled *c, const struct plan_step *s, const struct tile *t, int32_t i_split,
                      const struct attn_scratch *a, struct attn_unit *u)
{
    int32_t base = i_split * ATTN_SPLIT, left = s->u.attend.top_k - base;
    if (chooses(s, t->row->i_first + t->tok0)) {
        size_t page_bytes = kv_latent_bytes(u->format, u->d);
        gather_chosen(c, s, t, base, left < ATTN_SPLIT ? left : ATTN_SPLIT, a->chosen);
        for (int j = 0; j < ATTN_SPLIT / KV_PAGE_TOKENS; j++) u->page[j] = a->chosen + (size_t)j * page_bytes;
        return;
    }
    for (int j = 0; j < ATTN_SPLIT / KV_PAGE_TOKENS; j++)
        u->page[j] = cpu_kv_area(c, t->row, s->u.attend.i_kind, s->u.attend.i_in_kind, t->i_head_kv,
                                base + j * KV_PAGE_TOKENS);
    /* The next split of this head, else the first of the next head. */
    if (i_split + 1 < t->split1)
        u->page_after = cpu_kv_area(c, t->row, s->u.attend.i_kind, s->u.attend.i_in_kind, t->i_head_kv, base + ATTN_SPLIT);
    else if (t->i_head_kv + 1 < s->u.attend.n_head_kv)
        u->page_after = cpu_kv_area(c, t->row, s->u.attend.i_kind, s->u.attend.i_in_kind, t->i_head_kv + 1,
                                    t->split0 * ATTN_SPLIT);
}

/* n lines, which may go on where the ones before them end. */
static void ahead_add(struct attn_scratch *a, const uint8_t *p, size_t step, int n)
{
    struct attn_lines *last = a->n_ahead > 0 ? &a->ahead[a->n_ahead - 1] : NULL;
    if (n > a->lines_left) n = a->lines_left;
    if (n == 0) return;
    a->lines_left -= n;
    if (last && last->step == step && last->at + (size_t)last->n * step == p) last->n += n;
    else if (a->n_ahead < AHEAD_RUNS) a->ahead[a->n_ahead++] = (struct attn_lines){ p, step, n };
}

/* Decoding, the lines that this thread's next tile will read first are asked for while this one is computed: a tile of short context is
 * over before its own hints have come true. Keys of 16 bits lie in two lines a dim, of which a page that is not half full needs the first. */
static void next_ahead(const struct compiled *c, const struct plan_step *s, int64_t i_tile, int64_t end, struct attn_scratch *a)
{
    enum kv_format f = (enum kv_format)c->plan->kinds[s->u.attend.i_kind].format;
    size_t row = f == KV_F32 ? 256 : 128; /* of 64 keys */
    int32_t lo, hi, d = s->u.attend.head_dim;
    if (i_tile + 1 >= end || s->u.attend.latent || kv_is_codes((int)f)) return;
    struct tile t = get_tile(c, s, (int32_t)i_tile + 1);
    visible(s, t.row, t.row->i_first, &lo, &hi);
    for (int32_t i = lo / KV_PAGE_TOKENS; i * KV_PAGE_TOKENS < hi && a->lines_left > 0; i++) {
        const uint8_t *k = cpu_kv_area(c, t.row, s->u.attend.i_kind, s->u.attend.i_in_kind, t.i_head_kv, i * KV_PAGE_TOKENS);
        int32_t n = hi - i * KV_PAGE_TOKENS < KV_PAGE_TOKENS ? hi - i * KV_PAGE_TOKENS : KV_PAGE_TOKENS;
        if (!k) return;
        if (row == 128 && n <= 32) ahead_add(a, k, row, d);
        else ahead_add(a, k, 64, d * (int)(row / 64));
        for (int32_t v = 0; v < d; v += 64) ahead_add(a, k + (size_t)(d + v) * row, 64, n * (int)(row / 64));
    }
}

/* Rows of tile t against split i_split: m, ls [n_rows], o [n_rows][value_dim]. asked: the unit before it has asked for its first page. */
static void run_unit(const struct compiled *c, const struct plan_step *s, const struct tile *t, int32_t i_split,
                     const float *q, const struct attn_scratch *a, bool asked, float *m, float *ls, float *o)
{
    int64_t d = s->u.attend.head_dim;
    int32_t base = i_split * ATTN_SPLIT;
    struct attn_unit u = { .d = d, .n_rows = t->n_rows, .q = q, .ld_q = d, .vis_lo = a->lo, .vis_hi = a->hi,
                           .format = (enum kv_format)c->plan->kinds[s->u.attend.i_kind].format,
                           .d_latent = s->u.attend.latent ? s->u.attend.value_dim : 0, .softcap = s->u.attend.softcap, .m = m,
                           .ls = ls, .o = o, .ld_o = s->u.attend.value_dim, .scratch = a->unit, .asked = asked };
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
    set_pages(c, s, t, i_split, a, &u);
    if (a->n_ahead > 0 && i_split + 1 == t->split1) { /* instead of one page: all of it */
        u.page_after = NULL;
        u.ahead = a->ahead;
        u.n_ahead = a->n_ahead;
    }
    c->dev->kernels.attend_unit(&u);
}

static int32_t token_of(const struct compiled *c, const struct tile *t, int32_t i)
{
    return c->batch.row_first[t->i_row] + t->tok0 + i / t->group;
}

/* The sink of row i's head, behind all splits: a split of one key with the value 0 (zeros: d of them). */
static void merge_sink(const struct compiled *c, const struct plan_step *s, const struct tile *t, int32_t i, const float *zeros,
                       float *M, float *Lt, float *O)
{
    if (!s->u.attend.sinks) return;
    c->dev->kernels.attend_merge(s->u.attend.value_dim, s->u.attend.sinks[t->head0 + i % t->group], 1.0f, zeros, M, Lt, O);
}

/* Row i of the tile is complete: O becomes its output, through the gate where there is one. */
static void finish_row(const struct compiled *c, const struct plan_step *s, const struct tile *t, int32_t i, float Lt, float *O)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t d = s->u.attend.value_dim, head = t->head0 + i % t->group;
    k->attend_finish(d, Lt, O, O);
    if (s->u.attend.gate >= 0)
        k->sigmoid_mul(cpu_row_f32(c, s->u.attend.gate, token_of(c, t, i)) + s->u.attend.gate_first + head * s->u.attend.gate_step, O, d, O);
    if (!c->unread[s->out]) memcpy(cpu_row_f32(c, s->out, token_of(c, t, i)) + head * d, O, (size_t)d * sizeof *O);
}

static void write_kv(const struct compiled *c, const struct plan_step *rope, const struct tile *t, float *tmp)
{
    if (rope && c->batch.all_single && rope->u.rope_kv.k >= 0 && c->attn_head_parts == 1)
        cpu_rope_kv(c, rope, c->batch.row_first[t->i_row] + t->tok0, t->i_head_kv, tmp);
}

/* Are `width` columns whole groups of every linear input written? */
static bool whole_groups(const struct compiled *c, const struct plan_step *s, int32_t width)
{
    for (int i = 0; i < PLAN_MAX_OUTS && s->outs[i] >= 0; i++)
        if (c->form[s->outs[i]] != ACT_F32 && width % c->plan->bufs[s->outs[i]].group != 0) return false;
    return true;
}

bool cpu_attend_whole_groups(const struct compiled *c, const struct plan_step *s)
{
    return whole_groups(c, s, s->u.attend.n_head / s->u.attend.n_head_kv * s->u.attend.value_dim);
}

/* The tile's columns of its tokens' outputs are complete: O, row by row. */
static void write_inputs(const struct compiled *c, const struct plan_step *s, const struct tile *t, const float *O)
{
    if (!cpu_attend_whole_groups(c, s)) return;
    int64_t width = (int64_t)t->group * s->u.attend.value_dim, col0 = (int64_t)t->head0 * s->u.attend.value_dim;
    for (int32_t k = 0; k < t->n_tok; k++) /* column 0 of a token would stand col0 floats before */
        cpu_write_inputs(c, s->outs, token_of(c, t, k * t->group), O + k * width - col0, col0, col0 + width);
}

/* Merging the first split into nothing yields what it was: it goes where the merged ones are. */
static void run_tile(const struct compiled *c, const struct plan_step *s, const struct plan_step *rope, const struct tile *t,
                     const struct attn_scratch *a)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t d = s->u.attend.value_dim;
    write_kv(c, rope, t, a->q);
    load_q(c, s, rope, t, a->q);
    run_unit(c, s, t, t->split0, a->q, a, a->follows, a->M, a->Lt, a->O);
    for (int32_t sp = t->split0 + 1; sp < t->split1; sp++) {
        run_unit(c, s, t, sp, a->q, a, true, a->m, a->ls, a->o);
        for (int32_t i = 0; i < t->n_rows; i++)
            k->attend_merge(d, a->m[i], a->ls[i], a->o + i * d, &a->M[i], &a->Lt[i], a->O + i * d);
    }
    memset(a->o, 0, (size_t)d * sizeof(float));
    for (int32_t i = 0; i < t->n_rows; i++) {
        merge_sink(c, s, t, i, a->o, &a->M[i], &a->Lt[i], a->O + i * d);
        finish_row(c, s, t, i, a->Lt[i], a->O + i * d);
    }
    write_inputs(c, s, t, a->O);
}

/* --- splits as units --- */

/* Floats of one split result of a tile: m, ls [n_rows], o [n_rows][value_dim]. */
static size_t unit_floats(const struct plan_step *s, const struct tile *t)
{
    return (size_t)t->n_rows * (size_t)(s->u.attend.value_dim + 2);
}

/* Fill attn_tiles; the number of units, or 0 when their results find no room or nothing would be gained. */
static int32_t split_tiles(struct compiled *c, const struct plan_step *s, int32_t n_tiles)
{
    size_t floats = 0;
    int32_t n_units = 0;
    for (int32_t t = 0; t < n_tiles; t++) {
        struct tile tile = get_tile(c, s, t);
        int32_t n = tile.split1 - tile.split0;
        c->attn_tiles[t].unit0 = n_units;
        c->attn_tiles[t].slot = floats;
        atomic_store_explicit(&c->attn_tiles[t].n_left, n, memory_order_relaxed);
        n_units += n;
        floats += unit_floats(s, &tile) * (size_t)n;
    }
    return n_units > n_tiles && floats * sizeof(float) <= c->attn_partials_bytes ? n_units : 0;
}

static void merge_tile(const struct compiled *c, const struct plan_step *s, const struct tile *t, const float *slot,
                       const struct attn_scratch *a)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t d = s->u.attend.value_dim;
    size_t step = unit_floats(s, t);
    memset(a->o, 0, (size_t)d * sizeof(float));
    memset(a->O, 0, (size_t)(t->n_rows * d) * sizeof(float));
    for (int32_t i = 0; i < t->n_rows; i++) {
        float M = -INFINITY, Lt = 0, *O = a->O + i * d;
        const float *p = slot;
        for (int32_t sp = t->split0; sp < t->split1; sp++, p += step)
            k->attend_merge(d, p[i], p[t->n_rows + i], p + 2 * t->n_rows + i * d, &M, &Lt, O);
        merge_sink(c, s, t, i, a->o, &M, &Lt, O);
        finish_row(c, s, t, i, Lt, O);
    }
    write_inputs(c, s, t, a->O);
}

static void run_split(struct compiled *c, const struct plan_step *s, const struct plan_step *rope, int32_t i_unit,
                      const struct attn_scratch *a)
{
    int32_t i_tile = 0;
    while (i_tile + 1 < c->attn_n_tiles && c->attn_tiles[i_tile + 1].unit0 <= i_unit) i_tile++;
    struct attn_tile_state *state = &c->attn_tiles[i_tile];
    struct tile t = get_tile(c, s, i_tile);
    int32_t sp = t.split0 + i_unit - state->unit0;
    float *slots = (float *)c->attn_partials + state->slot;
    float *mine = slots + (size_t)(i_unit - state->unit0) * unit_floats(s, &t);
    if (sp == t.split1 - 1) write_kv(c, rope, &t, a->q);
    load_q(c, s, rope, &t, a->q);
    run_unit(c, s, &t, sp, a->q, a, a->follows, mine, mine + t.n_rows, mine + 2 * t.n_rows);
    if (atomic_fetch_sub_explicit(&state->n_left, 1, memory_order_acq_rel) == 1) merge_tile(c, s, &t, slots, a);
}

/* --- the pass --- */

/* Fewer units than threads, in a batch of single tokens: the query heads of a group are dealt out too. Then no tile is the
 * only reader of its keys, and the opener writes K and V. Called with attn_head_parts 1. */
static void cut_heads(struct compiled *c, const struct cpu_pass *p, int32_t n_units, int i_thread)
{
    const struct plan_step *s = p->s, *rope = p->partner;
    int group = s->u.attend.n_head / s->u.attend.n_head_kv, n = c->n_threads / n_units;
    if (!(rope || s->u.attend.latent) || !c->batch.all_single || n < 2 || group < 2 ||
        !whole_groups(c, s, s->u.attend.value_dim)) return;
    for (int32_t i = 0; rope && i < c->batch.m && rope->u.rope_kv.k >= 0; i++)
        for (int h = 0; h < s->u.attend.n_head_kv; h++) cpu_rope_kv(c, rope, i, h, (float *)c->thread_scratch[i_thread]);
    c->attn_head_parts = n < group ? n : group;
}

int64_t cpu_attend_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)bounds;
    int32_t n_units = 0;
    c->attn_head_parts = 1;
    for (c->attn_rows = ATTN_ROWS_MAX; c->attn_rows > ATTN_ROWS_MIN; c->attn_rows /= 2)
        if (count_tiles(c, p->s) >= ATTN_TILES_A_THREAD * c->n_threads) break;
    c->attn_n_tiles = count_tiles(c, p->s);
    if (c->n_threads > 1 && c->attn_n_tiles < CPU_ATTN_SPLIT_TILES * c->n_threads) {
        n_units = split_tiles(c, p->s, c->attn_n_tiles);
        cut_heads(c, p, n_units > 0 ? n_units : c->attn_n_tiles, i_thread);
    }
    if (c->attn_head_parts > 1) {
        c->attn_n_tiles = count_tiles(c, p->s);
        n_units = split_tiles(c, p->s, c->attn_n_tiles);
    }
    c->attn_n_units = n_units;
    c->attn_split = n_units > 0;
    return c->attn_split ? n_units : c->attn_n_tiles;
}

void cpu_attend_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    struct attn_scratch a;
    const struct plan_step *s = p->s, *rope = p->partner;
    int64_t first, end;
    threads_share(c->attn_split ? c->attn_n_units : c->attn_n_tiles, 1, i_thread, c->n_threads, &first, &end);
    a.follows = i_tile > first && i_tile < end;
    a.n_ahead = 0;
    a.lines_left = AHEAD_LINES;
    lay_attn_scratch(&a, c->thread_scratch[i_thread], s, attn_rows_max(s));
    if (c->attn_split) {
        run_split(c, s, rope, (int32_t)i_tile, &a);
        return;
    }
    struct tile t = get_tile(c, s, (int32_t)i_tile);
    if (rope && c->batch.all_single && i_tile >= first) next_ahead(c, s, i_tile, end, &a);
    run_tile(c, s, rope, &t, &a);
}

static size_t attend_bytes(const struct plan_step *s)
{
    struct attn_scratch a;
    return lay_attn_scratch(&a, NULL, s, attn_rows_max(s));
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
        size_t bytes = CPU_ATTN_SPLIT_TILES * (size_t)n_threads * splits * rows * (size_t)(s->u.attend.value_dim + 2) * sizeof(float);
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t cpu_thread_scratch_bytes(const struct plan *p)
{
    size_t most = 0;
    for (int i = 0; i < p->n_bufs; i++) {
        size_t row = ((size_t)p->bufs[i].width + 64) * sizeof(float);
        if (row > most) most = row;
    }
    most += CPU_LINEAR_TMP_FLOATS * sizeof(float); /* a gated MLP has a row and its products at once */
    for (int32_t i = 0; i < p->n_steps; i++)
    {
        size_t n = p->steps[i].op == STEP_ATTEND ? attend_bytes(&p->steps[i])
                   : p->steps[i].op == STEP_EXPECT ? cpu_expect_scratch_bytes(p)
                   : p->steps[i].op == STEP_INDEX ? cpu_index_scratch_bytes(p, &p->steps[i])
                   : p->steps[i].op == STEP_DELTA ? cpu_delta_scratch_bytes(&p->steps[i])
                   : p->steps[i].op == STEP_EXPERTS ? cpu_experts_scratch_bytes(p, &p->steps[i]) : 0;
        if (n > most) most = n;
    }
    return most > cpu_sample_scratch_bytes(p->n_vocab) ? most : cpu_sample_scratch_bytes(p->n_vocab);
}
