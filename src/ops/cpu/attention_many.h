/* attention_many.h: attend_unit with many rows: chunks of prompts. Included behind attention_unit.h by a level, which brings the
 * functions declared below.
 *
 * Keys and values of a tile become floats once, for all rows. Then rows go in groups of up to GROUP_ROWS, each through its scores,
 * softmax and outputs, so that with heads of 64 a tile and all that belongs to a group lie in the first cache.
 * Neither scores nor outputs are formed of keys that no row of a group sees. Inside that stretch a key that a row does not see has
 * p = +0, which changes nothing but the sign of a zero, and that not for long (docs/numerics.md, section 4); so a product takes all
 * rows of a block through one stretch. Only where a value of the stretch is not finite, row after row goes through its own keys.
 * Scratch: o, lanes and m of all rows, rows padded to 16; scores of a group; keys and values of a tile; extents of groups.
 */
#ifndef OPS_CPU_ATTENTION_MANY_H
#define OPS_CPU_ATTENTION_MANY_H

#include "ops/cpu/attention_unit.h"

#define GROUP_ROWS (2 * R_MAX)

struct many {
    const struct attn_unit *u;
    int64_t vp;           /* width of a value rounded up to 64 */
    struct extent *extent; /* of each group */
    float *o, *lane, *m;  /* o: where it will be read, if a row has room for vp floats there */
    int64_t ld_o;
    float *s;             /* [GROUP_ROWS][64] of one group: scores, then p */
    float *wide;
    const float *keys, *values; /* of the tile */
    bool finite;          /* the values that any row sees are */
};

/* What the rows of a group see of the split: one of them keys [lo, hi), none a key outside; all of them [all_lo, all_hi). */
struct extent {
    int lo, hi, all_lo, all_hi;
};

/* Rows [r0, r0 + n) and what they see of a tile. */
struct group {
    int r0, n, lo, hi;    /* [lo, hi): seen by one of them at least */
    bool whole;           /* all rows see all 64 keys; else v says what each sees */
    struct range v[GROUP_ROWS];
    float al[16];
};

/* --- what a level brings --- */

/* C[R][16 V] = C * al + sum over k in [k0, k1) of A[k][r] * B[k][16 V], rows of B 64 floats apart; R and V are constants. */
FORCED void mk_wide(int R, int V, const struct mk_args *m);
/* n rows of 64 values as floats. */
static void rows_widen(enum kv_format f, int64_t n, const uint8_t *in, float *out);
static bool all_finite(const float *x, int64_t n);
/* The group's scores to p, its m and lanes; al of each row, 1 where it sees nothing. */
static void group_softmax(struct many *w, struct group *g);

/* --- products --- */

/* Scores of rows [r, r + R) of the group. Few rows take all columns: those that nobody sees mean nothing. */
static void many_qk(const struct many *w, const struct group *g, int r, int R)
{
    const struct attn_unit *u = w->u;
    int c0 = g->lo / 16, n = R == R_MAX ? (g->hi + 15) / 16 - c0 : 4;
    if (n == 4) c0 = 0;
    struct mk_args m = { .a = u->q + (g->r0 + r) * u->ld_q, .ks = 1, .rs = u->ld_q, .b = (const uint8_t *)(w->keys + 16 * c0), .k1 = u->d,
                         .c = w->s + r * ATTN_TILE + 16 * c0, .ld_c = ATTN_TILE };
    switch (R * 8 + n) {
#define WIDE(r, v) case (r) * 8 + (v): mk_wide((r), (v), &m); break;
        WIDE(6, 1) WIDE(6, 2) WIDE(6, 3) WIDE(6, 4) WIDE(5, 4) WIDE(4, 4) WIDE(3, 4) WIDE(2, 4) WIDE(1, 4)
    default: break;
    }
}

/* 64 columns of outputs of rows [r, r + R) of the group. */
static void many_pv(const struct many *w, const struct group *g, int r, int R, int64_t blk, int lo, int hi)
{
    struct mk_args m = { .a = w->s + r * ATTN_TILE, .ks = 1, .rs = ATTN_TILE, .b = (const uint8_t *)(w->values + blk * 64 * 64), .k0 = lo,
                         .k1 = hi, .c = w->o + (g->r0 + r) * w->ld_o + 64 * blk, .ld_c = w->ld_o, .al = g->al + r };
    switch (R * 8 + 4) {
        WIDE(6, 4) WIDE(5, 4) WIDE(4, 4) WIDE(3, 4) WIDE(2, 4) WIDE(1, 4)
    default: break;
    }
}

static void group_pv(const struct many *w, const struct group *g)
{
    int half = g->n > R_MAX ? (g->n + 1) / 2 : g->n;
    for (int64_t blk = 0; blk < w->vp / 64; blk++) {
        for (int r = 0; r < g->n && w->finite; r += half) many_pv(w, g, r, r + half < g->n ? half : g->n - r, blk, g->lo, g->hi);
        for (int r = 0; r < g->n && !w->finite; r++)
            if (g->whole || g->v[r].lo < g->v[r].hi)
                many_pv(w, g, r, 1, blk, g->whole ? 0 : g->v[r].lo, g->whole ? ATTN_TILE : g->v[r].hi);
    }
}

/* --- groups and tiles --- */

static struct extent extent_of(const struct attn_unit *u, int r0, int n)
{
    struct extent e = { .lo = ATTN_SPLIT, .all_hi = ATTN_SPLIT };
    for (int r = r0; r < r0 + n; r++) {
        int lo = u->vis_lo[r], hi = u->vis_hi[r];
        e.all_lo = lo > e.all_lo ? lo : e.all_lo;
        e.all_hi = hi < e.all_hi ? hi : e.all_hi;
        if (lo >= hi) continue;
        e.lo = lo < e.lo ? lo : e.lo;
        e.hi = hi > e.hi ? hi : e.hi;
    }
    return e;
}

/* [lo, hi) of the split, inside tile t. */
FORCED struct range inside(int lo, int hi, int t)
{
    lo -= ATTN_TILE * t;
    hi -= ATTN_TILE * t;
    return (struct range){ lo < 0 ? 0 : lo, hi > ATTN_TILE ? ATTN_TILE : hi };
}

/* False: none of the rows sees a key of the tile. */
FORCED bool group_set(struct group *g, const struct many *w, int r0, int t)
{
    const struct extent *e = &w->extent[r0 / GROUP_ROWS];
    struct range v = inside(e->lo, e->hi, t), all = inside(e->all_lo, e->all_hi, t);
    g->r0 = r0;
    g->n = w->u->n_rows - r0 < GROUP_ROWS ? w->u->n_rows - r0 : GROUP_ROWS;
    g->lo = v.lo;
    g->hi = v.hi;
    g->whole = all.lo == 0 && all.hi == ATTN_TILE;
    for (int r = 0; r < g->n && !g->whole; r++) g->v[r] = tile_range(w->u, r0 + r, t);
    return v.lo < v.hi;
}

/* Keys and values of tile t; those outside [lo, hi) are seen by no row. */
static void tile_widen(struct many *w, int t, int lo, int hi)
{
    const struct attn_unit *u = w->u;
    const uint8_t *k = u->page[t], *v = k + (size_t)u->d * row64_bytes(u->format);
    w->keys = (const float *)(const void *)k;
    w->values = (const float *)(const void *)v;
    if (u->format != KV_F32) {
        float *values = w->wide + u->d * ATTN_TILE;
        rows_widen(u->format, u->d, k, w->wide);
        rows_widen(u->format, w->vp, v, values);
        w->keys = w->wide;
        w->values = values;
    }
    w->finite = true;
    for (int64_t blk = 0; blk < w->vp / 64; blk++) w->finite = w->finite && all_finite(w->values + (blk * 64 + lo) * 64, (int64_t)(hi - lo) * 64);
}

static void many_tile(struct many *w, int t)
{
    const struct attn_unit *u = w->u;
    struct range seen = { ATTN_TILE, 0 };
    for (int i = 0; i * GROUP_ROWS < u->n_rows; i++) {
        struct range v = inside(w->extent[i].lo, w->extent[i].hi, t);
        if (v.lo >= v.hi) continue;
        seen.lo = v.lo < seen.lo ? v.lo : seen.lo;
        seen.hi = v.hi > seen.hi ? v.hi : seen.hi;
    }
    if (seen.lo >= seen.hi) return;
    tile_widen(w, t, seen.lo, seen.hi);
    for (int r0 = 0; r0 < u->n_rows; r0 += GROUP_ROWS) {
        struct group g;
        if (!group_set(&g, w, r0, t)) continue;
        int half = g.n > R_MAX ? (g.n + 1) / 2 : g.n;
        for (int r = 0; r < g.n; r += half) many_qk(w, &g, r, r + half < g.n ? half : g.n - r);
        group_softmax(w, &g);
        group_pv(w, &g);
    }
}

static void many_run(const struct attn_unit *u)
{
    size_t rows = ((size_t)u->n_rows + 15) / 16 * 16;
    struct many w = { .u = u, .vp = (u->d + 63) / 64 * 64 };
    w.o = u->d == w.vp ? u->o : u->scratch;
    w.ld_o = u->d == w.vp ? u->ld_o : w.vp;
    w.lane = (float *)u->scratch + rows * (size_t)w.vp;
    w.m = w.lane + rows * ATTN_LANES;
    w.s = w.m + rows;
    w.wide = w.s + GROUP_ROWS * ATTN_TILE;
    w.extent = (struct extent *)(void *)(w.wide + ATTN_TILE * (u->d + w.vp));
    memset(w.lane, 0, rows * ATTN_LANES * 4);
    for (int r = 0; r < u->n_rows; r++) {
        memset(w.o + r * w.ld_o, 0, (size_t)w.vp * 4);
        w.m[r] = -INFINITY;
        if (r % GROUP_ROWS == 0) w.extent[r / GROUP_ROWS] = extent_of(u, r, u->n_rows - r < GROUP_ROWS ? u->n_rows - r : GROUP_ROWS);
    }
    for (int t = 0; t < ATTN_SPLIT / ATTN_TILE; t++)
        if (u->page[t]) many_tile(&w, t);
    for (int r = 0; r < u->n_rows; r++) {
        u->m[r] = w.m[r];
        u->ls[r] = row_sum(w.lane + r * ATTN_LANES);
        row_finish(u->d, w.o + r * w.ld_o, u->o + r * u->ld_o);
    }
}

/* Codes and latents, and few rows: attention_unit.h. */
static bool many_fits(const struct attn_unit *u)
{
    return u->n_rows > ATTN_FEW_ROWS && u->d_latent == 0 && !kv_is_codes((int)u->format);
}

#endif
