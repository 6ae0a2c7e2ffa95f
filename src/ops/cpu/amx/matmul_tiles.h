/* matmul_tiles.h: quantised weights times quantised inputs by tiles of 16 rows by 16 outputs (kernels.h has the contract).
 * Written over tile_ops.h: whoever includes this has included tiles.h, or tiles_c.h. The inner loop is in strips.h.
 *
 * The products of one group are one tile product for each limb (two for groups of 128). Inputs of int8 are read where they lie: a row of a
 * tile is g bytes of one row; a row of the code tile is one vector of the packed weight, 4-bit codes spread to bytes first. The sums go
 * through memory to vector registers.
 *
 * RUN_STRIPS strips of 16 rows by RUN_BLOCKS blocks at a time, over pieces of k: the codes of a piece are spread once for all
 * strips, and the strips pass over them one (or two) at a time, so that their inputs stay in L1 while the codes come from L2. Between
 * pieces of k accumulators rest in scratch, which lies closer than the rows of y. Scratch: about 520 KB of stack.
 */
#ifndef OPS_CPU_AMX_MATMUL_TILES_H
#define OPS_CPU_AMX_MATMUL_TILES_H

#include "ops/cpu/amx/strips.h"

#define PIECE_K 768    /* at most; pieces of k are balanced */
#define PIECE_GROUPS (PIECE_K / 16)
#define RUN_STRIPS 16
#define RUN_BLOCKS 12
#define AHEAD_BYTES 8192

struct tile_scratch {
    _Alignas(64) int32_t sums[SUMS][512];
    _Alignas(64) float acc[RUN_STRIPS * RUN_BLOCKS * 256];
    _Alignas(64) float pairs[RUN_STRIPS * PIECE_GROUPS * 32];
    _Alignas(64) float scales[RUN_BLOCKS * PIECE_GROUPS * 32];
    _Alignas(64) uint8_t codes[RUN_BLOCKS * PIECE_K * 16];
};

/* What a call is about. */
struct tile_call {
    enum cpu_wtype type;
    bool two;
    const struct cpu_weight *w;
    const struct cpu_act *x;
    int64_t row0;
    int64_t ld_y;
    struct tile_scratch *t;
};

static inline void shapes_set(int rows, int g)
{
    struct tile_shapes s;
    int k = g < 64 ? g : 64;
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (int t = 0; t < 8; t++) {
        bool x = t < 2, codes = t == 2 || t == 3;
        s.rows[t] = (uint8_t)(codes ? k / 4 : rows);
        s.row_bytes[t] = (uint16_t)(x ? k : 64);
    }
    tile_config(&s);
}

/* { a, xs } of groups [g0, g0 + n) of the rows at `row`, group by group; zero for rows that do not exist. */
static inline void pairs_gather(const struct cpu_act *x, const uint8_t *row, int rows, int64_t g0, int64_t n, float *out)
{
    row += (size_t)x->k * (x->form == ACT_Q16 ? 2 : 1) + 8 * (size_t)g0;
    for (int64_t i = 0; i < n; i++, out += 32, row += 8) {
        const uint8_t *p = row;
        for (int r = 0; r < rows; r++, p += x->row_bytes) memcpy(out + 2 * r, p, 8);
        for (int r = 2 * rows; r < 32; r++) out[r] = 0.0f;
    }
}

/* n groups of a block at p: scales to floats, 4-bit codes to bytes. */
static inline void block_spread(const struct tile_call *c, const uint8_t *p, size_t group_bytes, int64_t n, float *scales, uint8_t *codes)
{
    int code_bytes = c->w->g * (c->type == CPU_W_Q4 ? 8 : 16);
    for (int64_t i = 0; i < n; i++, p += group_bytes, scales += 32) {
        lanes s, b;
        for (int j = 0; j < code_bytes; j += 64) __builtin_prefetch(p + AHEAD_BYTES + j, 0, 2);
        lanes_scales(c->w->dt, p + code_bytes, &s, &b);
        lanes_store(scales, 16, s);
        lanes_store(scales + 16, 16, b);
        for (int j = 0; j < code_bytes && c->type == CPU_W_Q4; j += 64, codes += 128) lanes_spread(p + j, codes);
    }
}

/* Blocks [blk, end), groups [g0, g0 + n), spread to the scratch. */
static inline struct strips strips_init(const struct tile_call *c, int64_t blk, int64_t end, int64_t g0, int64_t n)
{
    const struct cpu_weight *w = c->w;
    size_t group_bytes = w->block_bytes / (size_t)(w->k / w->g), g = (size_t)w->g;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes + (size_t)g0 * group_bytes;
    struct strips s = {
        .x_row = c->x->row_bytes, .x_group = c->two ? 2 * g : g, .x_strip = 16 * c->x->row_bytes, .x_low = g, .pairs = c->t->pairs,
        .codes = p, .codes_group = group_bytes, .codes_block = w->block_bytes, .scales = c->t->scales, .n_groups = n,
        .n_blocks = end - blk, .first = g0 == 0, .last = g0 + n == w->k / w->g, .n_out = w->n - 16 * blk, .ld_y = c->ld_y,
    };
    if (c->type == CPU_W_Q4) s.codes = c->t->codes, s.codes_group = 16 * g, s.codes_block = (size_t)n * 16 * g;
    for (int64_t b = 0; b < end - blk; b++)
        block_spread(c, p + (size_t)b * w->block_bytes, group_bytes, n, c->t->scales + 32 * b * n, c->t->codes + (size_t)(b * n) * 16 * g);
    return s;
}

/* Rows [r0, r1) of the call by the blocks of s, whose outputs begin at y; its groups begin with g0. */
static inline void strips_pass(const struct tile_call *c, struct strips s, int64_t r0, int64_t r1, int64_t g0, float *y)
{
    for (int64_t r = r0; r < r1; r += 16 * s.n_strips) { /* the full strips, then what is left */
        const uint8_t *row = c->x->data + (size_t)(c->row0 + r) * c->x->row_bytes;
        s.rows = r1 - r < 16 ? (int)(r1 - r) : 16;
        s.n_strips = r1 - r < 16 ? 1 : (r1 - r) / 16;
        for (int64_t i = 0; i < s.n_strips; i++)
            pairs_gather(c->x, row + (size_t)i * s.x_strip, s.rows, g0, s.n_groups, c->t->pairs + 32 * s.n_groups * i);
        s.x = row + (size_t)g0 * s.x_group;
        s.acc = c->t->acc + 256 * s.n_blocks * ((r - r0) / 16);
        s.y = y + (r - r0) * c->ld_y;
        shapes_set(s.rows, c->w->g);
        strips_run(c->two, c->w->g, &s, c->t->sums);
    }
}

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline void matmul_tiles(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                                const struct cpu_act *x, int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    struct tile_scratch t;
    struct tile_call c = { type, two, w, x, row0, ld_y, &t };
    int64_t ng = w->k / w->g, n_pieces = (w->k + PIECE_K - 1) / PIECE_K, step = (ng + n_pieces - 1) / n_pieces;
    memset(t.sums, 0, sizeof t.sums);
    for (int64_t r = 0; r < m; r += 16 * RUN_STRIPS)
        for (int64_t blk = blk0; blk < blk1; blk += RUN_BLOCKS)
            for (int64_t g0 = 0; g0 < ng; g0 += step) {
                struct strips s = strips_init(&c, blk, smaller(blk + RUN_BLOCKS, blk1), g0, smaller(step, ng - g0));
                strips_pass(&c, s, r, smaller(r + 16 * RUN_STRIPS, m), g0, y + r * ld_y + 16 * (blk - blk0));
            }
    tile_release();
}

#endif
