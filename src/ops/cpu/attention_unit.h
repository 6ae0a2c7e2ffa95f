/* attention_unit.h: attend_unit for the vector levels: everything but the vectors. Included once by attention.c of a level,
 * which brings the functions declared below, and before that ATTN_AHEAD: does its micro-kernel ask for lines beside its products?
 *
 * Rows go in blocks of up to R_MAX that share each loaded key or value. Per tile: scores of all blocks; then the maximum,
 * al, p and the lane sums of all rows; then the outputs. Rows of a block share the keys that all of them see; ragged keys
 * before and after go row by row, so the chain of each output stays in key order and a masked key is never multiplied.
 * Scratch, rows padded to 16: o, scores, lanes, m, dm, al; for latents a tile of values.
 * Codes (section 4d): the micro-kernel runs over the codes as they are. Scores of a group of dims get its scale and offset behind the
 * chain; the weights of a key carry the scale of its values, so that each half of a block of 64 dims may have weights of its own,
 * and the offsets go into lanes. Scratch then has sums of q and these lanes in the place of values.
 * Latents are stored as keys alone; their values are the same numbers turned by 90 degrees, once a tile for all rows.
 */
#ifndef OPS_CPU_ATTENTION_UNIT_H
#define OPS_CPU_ATTENTION_UNIT_H

#include <limits.h>
#include <math.h>
#include <string.h>

#include "ops/cpu/kernels.h"

#define R_MAX 6
#define AHEAD_PER 2 /* lines that are asked for beside each k of a product */

/* Lines to ask for beside a product, a turn of them every so many rows of B: of up to four parts of what the next tile will read. Parts are
 * streams of memory: of one stream a core has no more lines under way than its L1 has buffers for, of several the hardware reads ahead too, in
 * each page of 4 KB by itself; so parts are no smaller than that. */
#define ASK_LINES 4
#define ASK_PART_BYTES 4096
struct ask {
    const uint8_t *at, *end; /* at == end: nothing is left */
    size_t step;             /* of a turn */
    size_t line[ASK_LINES];  /* of a turn, from `at` on */
    int every;               /* a power of two */
};

struct mk_args {
    const float *a;     /* element (k, r) at a[k * ks + r * rs] */
    const float *a2;    /* the same for columns 32 .. 63, values of codes alone */
    int64_t ks, rs;
    const uint8_t *b;   /* row k at b + k * row64_bytes */
    int64_t k0, k1;
    float *c;           /* row r at c + r * ld_c */
    int64_t ld_c;
    const float *al;    /* NULL: start from zero */
    struct ask ask;
    bool low_half;      /* columns 0 .. 31 are enough */
    struct attn_lines ahead; /* to ask for, AHEAD_PER for each k */
};

struct work {
    const struct attn_unit *u;
    int64_t vp;                     /* width of values rounded up to 64 */
    float *o, *s, *lane, *m, *dm, *al;
    uint8_t *v;                     /* latents: values of the tile */
    struct kv_code_places places;   /* codes; n_groups 0: none */
    float *q_sum, *z;               /* codes: [rows][n_groups], [rows][n_groups][16] */
    int n_block;
    bool asked;                     /* the tile before has asked for this one's page */
    struct ask ask;
    struct attn_lines ahead;        /* what is left of the unit's: of these, then */
    const struct attn_lines *more;  /* [n_more] */
    int n_more;
};

struct range {
    int lo, hi;
};

/* --- what a level brings --- */

/* C[R][64] = C * al + sum over k in [k0, k1) of A[k][r] * B[k][64], R a constant of 1 .. R_MAX. pv: B is values, else keys; k0
 * and k1 are even for keys of 4 bits. */
FORCED void mk_rows(enum kv_format f, bool pv, int R, const struct mk_args *m);
/* Maximum of a row's visible scores (soft cap first); writes m and dm = m_old - m. */
static void row_max(struct work *w, int r, struct range v);
/* al = E(dm) of all rows. */
static void rows_al(struct work *w);
/* p in place of the scores, and the lanes of l. */
static void row_exp(struct work *w, int r, struct range v);
/* Codes. s[j] = fma(b[j], q_sum, fma(s[j] of the block, a[j], first ? +0 : s[j])). */
static void row_scale(float *s, const float *a, const uint8_t *scales, float q_sum, bool first);
/* Lanes z of one group: as those of l, of p[j] * b[j], +0 where the row does not see key j. */
static void row_offsets(const float *p, const uint8_t *scales, struct range v, float al, float *z);
/* w[j] = p[j] * s[j] of the block, 64 of them. */
static void row_weights(const float *p, const uint8_t *scales, float *w);
/* y = x + 0, n values; x may be y. */
static void row_finish(int64_t n, const float *x, float *y);
/* 16 lanes to one sum: halves of 8, of 4, then (0 + 2) + (1 + 3). */
FORCED float row_sum(const float *lane);

/* --- both products --- */

FORCED size_t row64_bytes(enum kv_format f)
{
    return f == KV_F32 ? 256 : f == KV_Q8 ? 64 : f == KV_Q4 ? 32 : 128;
}

/* QK: A is q [R][d], m.rs apart. */
static void mk_qk(enum kv_format f, int R, const struct mk_args *args)
{
    struct mk_args m = *args;
    switch (R * 8 + (int)f) {
#define CASE(r, fm) case (r) * 8 + (fm): m.ks = 1; mk_rows((fm), false, (r), &m); break;
#define CASES(r) CASE(r, KV_BF16) CASE(r, KV_F16) CASE(r, KV_F32) CASE(r, KV_Q8) CASE(r, KV_Q4)
        CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6)
    default: break;
    }
}

/* PV: A is p [R][64]; codes: weights [R][64] of either half. */
static void mk_pv(enum kv_format f, int R, const struct mk_args *args)
{
    struct mk_args m = *args;
    switch (R * 8 + (int)f) {
#undef CASE
#define CASE(r, fm) case (r) * 8 + (fm): m.ks = 1; m.rs = ATTN_TILE; mk_rows((fm), true, (r), &m); break;
        CASES(1) CASES(2) CASES(3) CASES(4) CASES(5) CASES(6)
    default: break;
    }
}

static void work_init(struct work *w, const struct attn_unit *u)
{
    size_t rows = ((size_t)u->n_rows + 15) / 16 * 16;
    w->u = u;
    w->vp = ((u->d_latent > 0 ? u->d_latent : u->d) + 63) / 64 * 64;
    w->o = u->scratch;
    w->s = w->o + rows * (size_t)w->vp;
    w->lane = w->s + rows * ATTN_TILE;
    w->m = w->lane + rows * ATTN_LANES;
    w->dm = w->m + rows;
    w->al = w->dm + rows;
    w->v = (uint8_t *)(w->al + rows);
    w->places = (struct kv_code_places){ 0 };
    w->q_sum = w->z = NULL;
    if (kv_is_codes((int)u->format)) {
        w->places = kv_code_places(u->format, u->d);
        w->z = w->al + rows;
        w->q_sum = w->z + rows * (size_t)w->places.n_groups * ATTN_LANES;
        memset(w->z, 0, rows * (size_t)w->places.n_groups * ATTN_LANES * sizeof *w->z);
    }
    w->n_block = (u->n_rows + R_MAX - 1) / R_MAX;
    w->asked = u->asked;
    w->ask = (struct ask){ 0 };
    w->ahead = (struct attn_lines){ 0 };
    w->more = u->ahead;
    w->n_more = u->n_ahead;
    memset(w->o, 0, (size_t)u->n_rows * (size_t)w->vp * 4);
    memset(w->lane, 0, rows * ATTN_LANES * 4);
    for (size_t r = 0; r < rows; r++) {
        w->m[r] = -INFINITY;
        w->dm[r] = 0.0f;
    }
}

FORCED void ask_begin(struct ask *a, const uint8_t *p, size_t n_bytes, int every)
{
    size_t n_parts = n_bytes >= 4 * ASK_PART_BYTES ? 4 : n_bytes >= 2 * ASK_PART_BYTES ? 2 : 1, n_lines = ASK_LINES / n_parts;
    size_t part_bytes = (n_bytes / n_parts + 63) / 64 * 64;
    for (size_t i = 0; i < ASK_LINES; i++) a->line[i] = i / n_lines * part_bytes + i % n_lines * 64;
    a->step = n_lines * 64;
    a->at = p;
    a->end = p + (part_bytes + a->step - 1) / a->step * a->step;
    a->every = every;
}

/* What a product over n rows is to ask for. */
FORCED struct ask ask_take(struct work *w, int64_t n)
{
    struct ask a = w->ask;
    size_t more = a.every > 0 ? (size_t)(n / a.every) * a.step : 0, left = (size_t)(a.end - a.at);
    w->ask.at += more < left ? more : left;
    a.end = w->ask.at;
    return a;
}

/* Rows that bring as many bytes as a turn asks for. */
FORCED int ask_every(enum kv_format f)
{
    return (int)(64 * ASK_LINES / row64_bytes(f));
}

FORCED void ask_turn(const struct ask *a, const uint8_t *at)
{
    for (int i = 0; i < ASK_LINES; i++) __builtin_prefetch(at + a->line[i], 0, 3);
}

/* The next n lines of the unit's, or fewer, none at the end: the caller asks for them. */
FORCED struct attn_lines ahead_take(struct work *w, int n)
{
    if (w->ahead.n == 0 && w->n_more > 0) {
        w->ahead = *w->more++;
        w->n_more--;
    }
    struct attn_lines out = w->ahead;
    if (out.n > n) out.n = n;
    w->ahead.at += (size_t)out.n * out.step;
    w->ahead.n -= out.n;
    return out;
}

#define AHEAD_ROW_LINES 8 /* beside the softmax of a row */

FORCED void ahead_lines(struct work *w, int n)
{
    struct attn_lines l;
    for (; n > 0 && (l = ahead_take(w, n)).n > 0; n -= l.n)
        for (int i = 0; i < l.n; i++) __builtin_prefetch(l.at + (size_t)i * l.step, 0, 2);
}

/* Lines that the micro-kernel is to ask for, over n of k, where it does. */
FORCED void mk_ahead(struct work *w, struct mk_args *m, int n)
{
    if (ATTN_AHEAD) m->ahead = ahead_take(w, AHEAD_PER * n);
}

/* Rows of block i, balanced: sizes differ by at most one. */
FORCED int block_start(const struct work *w, int i)
{
    return (int)((int64_t)w->u->n_rows * i / w->n_block);
}

/* q of each group, added up in 16 lanes. */
static void sum_q(struct work *w)
{
    const struct attn_unit *u = w->u;
    int g = w->places.group;
    for (int r = 0; r < u->n_rows; r++)
        for (int i = 0; i < w->places.n_groups; i++) {
            const float *q = u->q + r * u->ld_q + (int64_t)i * g;
            float lane[ATTN_LANES] = { 0 };
            for (int d = 0; d < g; d += ATTN_LANES)
                for (int l = 0; l < ATTN_LANES; l++) lane[l] = lane[l] + q[d + l];
            w->q_sum[r * w->places.n_groups + i] = row_sum(lane);
        }
}

FORCED struct range tile_range(const struct attn_unit *u, int r, int t)
{
    int lo = u->vis_lo[r] - ATTN_TILE * t, hi = u->vis_hi[r] - ATTN_TILE * t;
    return (struct range){ lo < 0 ? 0 : lo, hi > ATTN_TILE ? ATTN_TILE : hi };
}

static bool block_sees(const struct attn_unit *u, int r0, int r1, int t)
{
    for (int r = r0; r < r1; r++) {
        struct range v = tile_range(u, r, t);
        if (v.lo < v.hi) return true;
    }
    return false;
}

/* What multiplies the values of a block of rows: p, or for codes the weights of each half of 64 dims. */
struct pv_rows {
    const float *a, *a2;
    float w[2][R_MAX * ATTN_TILE];
};

static void pv_rows_set(struct pv_rows *x, const struct work *w, int r0, int R, const uint8_t *v, int64_t blk)
{
    const struct kv_code_places *p = &w->places;
    x->a = x->a2 = w->s + r0 * ATTN_TILE;
    if (p->n_groups == 0) return;
    int per = 64 / p->group, first = (int)blk * per;
    for (int h = 0; h < per && first + h < p->n_groups; h++)
        for (int r = 0; r < R; r++)
            row_weights(w->s + (r0 + r) * ATTN_TILE, v + (p->v_scales - p->v_codes) + (size_t)(first + h) * KV_SCALES_BYTES,
                        x->w[h] + r * ATTN_TILE);
    x->a = x->w[0];
    x->a2 = first + 1 < p->n_groups && per == 2 ? x->w[1] : x->w[0]; /* behind the last dim stands nothing but zeros */
}

/* Outputs of row r of a block that begins at r0, over keys [lo, hi); al applied when given. */
static void row_pv(struct work *w, const struct pv_rows *x, int r0, int r, const uint8_t *v, int64_t blk, int lo, int hi, const float *al)
{
    size_t bb = 64 * row64_bytes(w->u->format);
    float one = 1.0f;
    struct mk_args m = { .a = x->a + r * ATTN_TILE, .a2 = x->a2 + r * ATTN_TILE, .b = v + (size_t)blk * bb, .k0 = lo, .k1 = hi,
                         .c = w->o + (r0 + r) * w->vp + 64 * blk, .ld_c = w->vp, .al = al ? al : &one };
    mk_pv(w->u->format, 1, &m);
}

/* Outputs of one block of rows over one tile. */
static void block_pv(struct work *w, int r0, int R, int t, const uint8_t *v, bool asks)
{
    struct range each[R_MAX], all = { 0, ATTN_TILE };
    float al[R_MAX];
    for (int r = 0; r < R; r++) {
        each[r] = tile_range(w->u, r0 + r, t);
        al[r] = w->al[r0 + r];
        all.lo = each[r].lo > all.lo ? each[r].lo : all.lo;
        all.hi = each[r].hi < all.hi ? each[r].hi : all.hi;
    }
    bool shared = all.lo < all.hi;
    for (int64_t blk = 0; blk < w->vp / 64; blk++) {
        struct pv_rows x;
        float scale[R_MAX];
        pv_rows_set(&x, w, r0, R, v, blk);
        memcpy(scale, al, sizeof scale);
        for (int r = 0; r < R; r++) {
            if (each[r].lo >= each[r].hi) continue;
            int end = shared ? all.lo : each[r].hi;
            if (each[r].lo >= end) continue;
            row_pv(w, &x, r0, r, v, blk, each[r].lo, end, &al[r]);
            scale[r] = 1.0f;
        }
        if (!shared) continue;
        size_t bb = 64 * row64_bytes(w->u->format);
        struct mk_args m = { .a = x.a, .a2 = x.a2, .b = v + (size_t)blk * bb, .k0 = all.lo, .k1 = all.hi, .c = w->o + r0 * w->vp + 64 * blk,
                             .ld_c = w->vp, .al = scale };
        if (asks) m.ask = ask_take(w, all.hi - all.lo);
        mk_ahead(w, &m, all.hi - all.lo);
        mk_pv(w->u->format, R, &m);
        for (int r = 0; r < R; r++)
            if (each[r].hi > all.hi) row_pv(w, &x, r0, r, v, blk, all.hi, each[r].hi, NULL);
    }
}

/* Which of 64 values stands at place p of a row. */
FORCED int at_place(enum kv_format f, int p)
{
    return f == KV_BF16 ? (p & ~31) + ((p & 31) >> 1) + 16 * (p & 1) : p;
}

/* Eight rows of eight u16, turned. */
FORCED void turn_8x8(const uint16_t *const in[8], uint16_t *const out[8])
{
    __m128i a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = _mm_loadu_si128((const __m128i *)(const void *)in[i]);
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            a[4 * i + 2 * j] = _mm_unpacklo_epi32(b[4 * i + j], b[4 * i + 2 + j]);
            a[4 * i + 2 * j + 1] = _mm_unpackhi_epi32(b[4 * i + j], b[4 * i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128((__m128i *)(void *)out[2 * i], _mm_unpacklo_epi64(a[i], a[4 + i]));
        _mm_storeu_si128((__m128i *)(void *)out[2 * i + 1], _mm_unpackhi_epi64(a[i], a[4 + i]));
    }
}

/* Values [ceil(d / 64)][64 keys][64 dims] of a tile of latents [d][64 keys]; dims behind d are zero. */
static void latent_values(enum kv_format f, int64_t d, const uint8_t *k, uint8_t *v)
{
    static const uint16_t zero[64];
    size_t rb = row64_bytes(f);
    for (int64_t b = 0; b < d; b += 64, k += 64 * rb, v += 64 * rb) {
        int n = d - b < 64 ? (int)(d - b) : 64;
        if (f == KV_F32) {
            for (int j = 0; j < 64; j++)
                for (int i = 0; i < 64; i++) ((float *)(void *)v)[j * 64 + i] = i < n ? ((const float *)(const void *)k)[i * 64 + j] : 0.0f;
            continue;
        }
        for (int p = 0; p < 64; p += 8)
            for (int c = 0; c < 64; c += 8) {
                const uint16_t *in[8];
                uint16_t *out[8];
                for (int i = 0; i < 8; i++) {
                    int dim = at_place(f, p + i);
                    in[i] = dim < n ? (const uint16_t *)(const void *)(k + (size_t)dim * rb) + c : zero;
                    out[i] = (uint16_t *)(void *)(v + (size_t)at_place(f, c + i) * rb) + p;
                }
                turn_8x8(in, out);
            }
    }
}

/* The values of tile t: behind its keys, or made of its latents. */
static const uint8_t *tile_values(struct work *w, int t)
{
    const struct attn_unit *u = w->u;
    if (w->places.n_groups > 0) return u->page[t] + w->places.v_codes;
    if (u->d_latent == 0) return u->page[t] + (size_t)u->d * row64_bytes(u->format);
    latent_values(u->format, u->d_latent, u->page[t], w->v);
    return w->v;
}

/* The last key of tile t that a row of [r0, r1) sees, plus one. */
static int block_end(const struct attn_unit *u, int r0, int r1, int t)
{
    int end = 0;
    for (int r = r0; r < r1; r++) {
        struct range v = tile_range(u, r, t);
        if (v.lo < v.hi && v.hi > end) end = v.hi;
    }
    return end;
}

/* Scores of rows [r0, r0 + R) of a tile of which they see the first n keys at most. */
static void block_qk(struct work *w, int r0, int R, const uint8_t *k, bool asks, int n)
{
    const struct attn_unit *u = w->u;
    const struct kv_code_places *p = &w->places;
    struct mk_args m = { .a = u->q + r0 * u->ld_q, .rs = u->ld_q, .b = k, .k1 = u->d, .c = w->s + r0 * ATTN_TILE, .ld_c = ATTN_TILE,
                         .low_half = n <= 32 };
    float part[R_MAX * ATTN_TILE];
    if (p->n_groups == 0) {
        if (asks) {
            m.ask = ask_take(w, u->d);
            mk_ahead(w, &m, (int)u->d);
        }
        mk_qk(u->format, R, &m);
    }
    for (int g = 0; g < p->n_groups; g++) {
        m.c = part;
        m.k0 = (int64_t)g * p->group;
        m.k1 = m.k0 + p->group;
        if (asks) m.ask = ask_take(w, p->group);
        mk_qk(u->format, R, &m);
        for (int r = 0; r < R; r++)
            row_scale(w->s + (r0 + r) * ATTN_TILE, part + r * ATTN_TILE, k + p->k_scales + (size_t)g * KV_SCALES_BYTES,
                      w->q_sum[(r0 + r) * p->n_groups + g], g == 0);
    }
}

/* What the offsets of the values add to row r. */
static void row_take_offsets(struct work *w, int r, const uint8_t *v, struct range vis)
{
    const struct kv_code_places *p = &w->places;
    for (int g = 0; g < p->n_groups; g++)
        row_offsets(w->s + r * ATTN_TILE, v + (p->v_scales - p->v_codes) + (size_t)g * KV_SCALES_BYTES, vis, w->al[r],
                    w->z + ((int64_t)r * p->n_groups + g) * ATTN_LANES);
}

/* o of row r is complete, but for what each group of codes adds. */
static void row_out(struct work *w, int r)
{
    const struct attn_unit *u = w->u;
    int64_t n = u->d_latent > 0 ? u->d_latent : u->d, step = w->places.group;
    const float *o = w->o + r * w->vp;
    if (w->places.n_groups == 0) row_finish(n, o, u->o + r * u->ld_o);
    for (int64_t d = 0; w->places.n_groups > 0 && d < n; d += step) {
        float more = row_sum(w->z + ((int64_t)r * w->places.n_groups + d / step) * ATTN_LANES);
        for (int64_t i = d; i < d + step; i++) u->o[r * u->ld_o + i] = o[i] + more;
    }
}

/* Bytes of a page up to the last of n keys, of its values alone or of all. */
static size_t page_bytes(const struct work *w, int n, bool values)
{
    const struct attn_unit *u = w->u;
    const struct kv_code_places *p = &w->places;
    if (p->n_groups > 0) return p->v_scales + (size_t)p->n_groups * KV_SCALES_BYTES - (values ? p->v_codes : 0);
    return (size_t)((values ? 0 : u->d) + (u->d_latent > 0 ? 0 : w->vp - ATTN_TILE + n)) * row64_bytes(u->format);
}

/* What will be read next: the values of this tile, for which nobody has asked. */
static void tile_ask_values(struct work *w, int t, const uint8_t *v)
{
    if (w->u->d_latent > 0) return;
    ask_begin(&w->ask, v, page_bytes(w, block_end(w->u, 0, w->u->n_rows, t), true), ask_every(w->u->format));
}

/* The tile behind t; of a page that the unit does not know all keys. */
static void tile_ask_next(struct work *w, int t)
{
    const struct attn_unit *u = w->u;
    const uint8_t *next = t + 1 < ATTN_SPLIT / ATTN_TILE ? u->page[t + 1] : NULL;
    int n = next ? block_end(u, 0, u->n_rows, t + 1) : 0, every = ask_every(u->format);
    if (n == 0) {
        next = u->page_after;
        n = ATTN_TILE;
    }
    if (!w->asked && every > 1) every /= 2; /* half of the time is gone */
    w->ask = (struct ask){ 0 };
    if (next) ask_begin(&w->ask, next, page_bytes(w, n, false), every);
}

static void tile_run(struct work *w, int t)
{
    const struct attn_unit *u = w->u;
    const uint8_t *k = u->page[t], *v = tile_values(w, t);
    bool few = u->n_rows <= ATTN_FEW_ROWS; /* decode: the memory is what counts; products of the first block ask for what comes next */
    if (few && !w->asked) tile_ask_values(w, t, v);
    else if (few) tile_ask_next(w, t);
    for (int i = 0; i < w->n_block; i++) {
        int r0 = block_start(w, i), r1 = block_start(w, i + 1);
        if (!block_sees(u, r0, r1, t)) continue;
        block_qk(w, r0, r1 - r0, k, few && i == 0, block_end(u, r0, r1, t));
    }
    for (int r = 0; r < u->n_rows; r++) {
        struct range vis = tile_range(u, r, t);
        if (vis.lo < vis.hi)
            row_max(w, r, vis);
        else
            w->dm[r] = 0.0f;
    }
    rows_al(w);
    for (int r = 0; r < u->n_rows; r++) {
        struct range vis = tile_range(u, r, t);
        if (few) ahead_lines(w, AHEAD_ROW_LINES);
        if (vis.lo >= vis.hi) continue;
        row_exp(w, r, vis);
        row_take_offsets(w, r, v, vis);
    }
    if (few && !w->asked) tile_ask_next(w, t);
    w->asked = true;
    for (int i = 0; i < w->n_block; i++) {
        int r0 = block_start(w, i), r1 = block_start(w, i + 1);
        if (block_sees(u, r0, r1, t)) block_pv(w, r0, r1 - r0, t, v, few && i == 0);
    }
}

FORCED void unit_run(const struct attn_unit *u)
{
    struct work w;
    work_init(&w, u);
    sum_q(&w);
    for (int t = 0; t < ATTN_SPLIT / ATTN_TILE; t++)
        if (u->page[t] && block_sees(u, 0, u->n_rows, t)) tile_run(&w, t);
    ahead_lines(&w, INT_MAX);
    for (int r = 0; r < u->n_rows; r++) {
        u->m[r] = w.m[r];
        u->ls[r] = row_sum(w.lane + r * ATTN_LANES);
        row_out(&w, r);
    }
}

/* --- the indexer --- */

FORCED void index_run(const struct index_unit *u)
{
    float *s = u->scratch;
    int n_block = (u->n_head + R_MAX - 1) / R_MAX;
    for (int t = 0; t * ATTN_TILE < u->n_keys; t++) {
        float *out = u->out + t * ATTN_TILE;
        for (int j = 0; j < ATTN_TILE; j++) out[j] = 0.0f;
        for (int i = 0; i < n_block; i++) {
            int r0 = u->n_head * i / n_block, R = u->n_head * (i + 1) / n_block - r0;
            struct mk_args m = { .a = u->q + r0 * u->d, .rs = u->d, .b = u->page[t], .k1 = u->d, .c = s, .ld_c = ATTN_TILE };
            mk_qk(u->format, R, &m);
            for (int r = 0; r < R; r++)
                for (int j = 0; j < ATTN_TILE; j++) {
                    float x = s[r * ATTN_TILE + j];
                    out[j] = __builtin_fmaf(u->w[r0 + r], x > 0.0f ? x : 0.0f, out[j]);
                }
        }
    }
}

#endif
