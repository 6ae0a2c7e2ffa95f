/* matmul_tiles.h: quantised weights times quantised inputs by tiles of 16 rows by 16 outputs (kernels.h has the contract).
 * Written over tile_ops.h: whoever includes this has included tiles.h, or tiles_c.h.
 * (4-bit weights in groups of 32 times two limbs of many rows: matmul_bf16.h.)
 *
 * The products of one group are one tile product (two for groups of 128): rows of inputs are read where they lie, a row of
 * the code tile is one vector of the packed weight, 4-bit codes spread to bytes first. The sums go through memory to vector
 * registers, where the two fma of each group are the larger half of the work; so a "strip", 16 rows by one block, keeps its
 * 16 accumulators in registers. Three groups are under way at once: products of group i, stores of group i - 1, vector work
 * of group i - 2. Measured on a Xeon of 2023: products alone need 20 cycles a group and limb, vector work alone 32 (48 with
 * two limbs); but while any tile instruction is under way float operations of 512 bits have one port instead of two, so a
 * group takes 76 cycles (95). First all products of a piece, then all vector work, is slower (115, 165).
 *
 * Up to 16 rows: blocks one after the other, weights as one stream. More: PANEL_BLOCKS blocks by PANEL_K of k are spread
 * once, and each 16 rows pass over them while they lie in L1 and L2. Between pieces of k accumulators rest in y.
 * Scratch: about 120 KB of stack.
 */
#ifndef OPS_CPU_AMX_MATMUL_TILES_H
#define OPS_CPU_AMX_MATMUL_TILES_H

#define PANEL_K 768     /* at most; pieces of k are balanced, for a strip pays for filling and draining its pipeline */
#define PANEL_BLOCKS 8
#define PAIR_GROUPS 256 /* up to 16 rows: groups whose { a, xs } are gathered at once */
#define AHEAD_BYTES 8192

/* Registers: inputs, codes of even and odd groups, sums of even and odd groups. */
#define T_X_HI 0
#define T_X_LO 1
#define T_CODES0 2
#define T_CODES1 3
#define T_HI0 4
#define T_HI1 5
#define T_LO0 6
#define T_LO1 7

/* `rows` rows by one block over n_groups groups. */
struct strip {
    const uint8_t *x;       /* first row, first group */
    size_t x_step, x_bytes; /* to the next group, to the next row */
    const uint8_t *codes;   /* bytes [g/4][16][4] of the first group */
    size_t codes_step;
    const uint8_t *scales;
    size_t scales_step;
    const float *pairs;     /* [n_groups][16][2], zero for rows that do not exist */
    int64_t n_groups;
    int g;
    enum dtype dt;
    bool ahead;             /* codes come from memory: prefetch */
    bool first;             /* accumulators start at zero, else at y */
    int rows;
    int64_t n_out;
    float *y;
    int64_t ld_y;
};

static inline void shapes_set(int rows, int g)
{
    struct tile_shapes s;
    int k = g < 64 ? g : 64;
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (int t = 0; t < 8; t++) {
        bool x = t == T_X_HI || t == T_X_LO, codes = t == T_CODES0 || t == T_CODES1;
        s.rows[t] = (uint8_t)(codes ? k / 4 : rows);
        s.row_bytes[t] = (uint16_t)(x ? k : 64);
    }
    tile_config(&s);
}

/* Products of group i into the sums of its parity. */
FORCED void strip_products(bool two, bool odd, const struct strip *s, int64_t i)
{
    const uint8_t *x = s->x + (size_t)i * s->x_step, *codes = s->codes + (size_t)i * s->codes_step;
    if (s->ahead)
        for (int j = 0; j < s->g / 4; j++) __builtin_prefetch(codes + AHEAD_BYTES + 64 * j, 0, 2);
    if (odd) {
        tile_zero(T_HI1);
        if (two) tile_zero(T_LO1);
    } else {
        tile_zero(T_HI0);
        if (two) tile_zero(T_LO0);
    }
    for (int k = 0; k < s->g; k += 64, codes += 1024) {
        tile_load(T_X_HI, x + k, s->x_bytes);
        if (two) tile_load(T_X_LO, x + s->g + k, s->x_bytes);
        if (odd) {
            tile_load(T_CODES1, codes, 64);
            tile_dp(T_HI1, T_X_HI, T_CODES1);
            if (two) tile_dp(T_LO1, T_X_LO, T_CODES1);
        } else {
            tile_load(T_CODES0, codes, 64);
            tile_dp(T_HI0, T_X_HI, T_CODES0);
            if (two) tile_dp(T_LO0, T_X_LO, T_CODES0);
        }
    }
}

/* out[0 .. 255] = hi [16 rows][16], out[256 ..] = lo. */
FORCED void strip_store(bool two, bool odd, int32_t *out)
{
    if (odd) {
        tile_store(T_HI1, out);
        if (two) tile_store(T_LO1, out + 256);
    } else {
        tile_store(T_HI0, out);
        if (two) tile_store(T_LO0, out + 256);
    }
}

FORCED void strip_fold(bool two, int R, const struct strip *s, int64_t i, const int32_t *sums, lanes acc[16])
{
    const float *pair = s->pairs + 32 * i;
    lanes sc, b;
    lanes_scales(s->dt, s->scales + (size_t)i * s->scales_step, &sc, &b);
    UNROLL(16)
    for (int r = 0; r < R; r++)
        acc[r] = lanes_group_add(acc[r], sc, b, pair + 2 * r, lanes_sums(two, sums + 16 * r, sums + 256 + 16 * r));
}

/* R: rows rounded up to a multiple of four; what lies above s->rows is computed from nothing and not stored. */
FORCED void strip_run(bool two, int R, const struct strip *s, int32_t sums[2][512])
{
    lanes acc[16];
    UNROLL(16)
    for (int r = 0; r < R; r++) {
        acc[r] = lanes_zero();
        if (!s->first && r < s->rows) acc[r] = lanes_load(s->y + r * s->ld_y, s->n_out);
    }
    for (int64_t i = 0; i < s->n_groups + 2; i += 2) {
        if (i < s->n_groups) strip_products(two, false, s, i);
        if (i >= 1 && i - 1 < s->n_groups) strip_store(two, true, sums[1]);
        if (i >= 2) strip_fold(two, R, s, i - 2, sums[0], acc);
        if (i + 1 < s->n_groups) strip_products(two, true, s, i + 1);
        if (i < s->n_groups) strip_store(two, false, sums[0]);
        if (i >= 1 && i - 1 < s->n_groups) strip_fold(two, R, s, i - 1, sums[1], acc);
    }
    UNROLL(16)
    for (int r = 0; r < R; r++)
        if (r < s->rows) lanes_store(s->y + r * s->ld_y, s->n_out, acc[r]);
}

FORCED void strip_rows(bool two, struct strip s, int32_t sums[2][512])
{
    switch ((s.rows + 3) / 4) {
    case 1: strip_run(two, 4, &s, sums); break;
    case 2: strip_run(two, 8, &s, sums); break;
    case 3: strip_run(two, 12, &s, sums); break;
    default: strip_run(two, 16, &s, sums); break;
    }
}

/* Not inlined: one copy for all weights. The strip is copied, so that its fields live in registers across tile stores. */
static void strip_one_limb(const struct strip *s, int32_t sums[2][512])
{
    strip_rows(false, *s, sums);
}

static void strip_two_limbs(const struct strip *s, int32_t sums[2][512])
{
    strip_rows(true, *s, sums);
}

static inline void strip_any(bool two, const struct strip *s, int32_t sums[2][512])
{
    if (two)
        strip_two_limbs(s, sums);
    else
        strip_one_limb(s, sums);
}

/* Groups of one piece when n groups are cut into the fewest pieces of at most PANEL_K. */
static inline int64_t piece_groups(int64_t n, int g)
{
    int64_t n_pieces = (n * g + PANEL_K - 1) / PANEL_K;
    return (n + n_pieces - 1) / n_pieces;
}

/* { a, xs } of groups [g0, g0 + n) of the rows at `row`, group by group. */
static inline void pairs_gather(const struct cpu_act *x, const uint8_t *row, int rows, int64_t g0, int64_t n, float *out)
{
    row += (size_t)x->k * (x->form == ACT_Q16 ? 2 : 1) + 8 * (size_t)g0;
    for (int64_t i = 0; i < n; i++, out += 32, row += 8) {
        const uint8_t *p = row;
        for (int r = 0; r < rows; r++, p += x->row_bytes) memcpy(out + 2 * r, p, 8);
        for (int r = 2 * rows; r < 32; r++) out[r] = 0.0f;
    }
}

/* Codes of n groups at p, to bytes. */
static inline void codes_spread(const uint8_t *p, size_t group_bytes, int g, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++, p += group_bytes)
        for (int j = 0; j < g / 8; j++, out += 128) {
            __builtin_prefetch(p + AHEAD_BYTES + 64 * j, 0, 2);
            lanes_spread(p + 64 * j, out);
        }
}

/* What all strips of a call have in common. */
FORCED struct strip strip_init(enum cpu_wtype type, bool two, const struct cpu_weight *w, const struct cpu_act *x,
                               int64_t ld_y)
{
    size_t code_bytes = (size_t)w->g * (type == CPU_W_Q4 ? 8 : 16), group_bytes = w->block_bytes / (size_t)(w->k / w->g);
    return (struct strip){
        .x_step = (size_t)w->g * (two ? 2 : 1), .x_bytes = x->row_bytes,
        .codes_step = type == CPU_W_Q4 ? 2 * code_bytes : group_bytes, .scales_step = group_bytes,
        .g = w->g, .dt = w->dt, .ld_y = ld_y,
    };
}

/* Point the strip at block blk, groups from g0. Codes: spread at `panel`, or where they lie. */
FORCED void strip_block(enum cpu_wtype type, struct strip *s, const struct cpu_weight *w, int64_t blk, int64_t g0,
                        const uint8_t *panel)
{
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes + (size_t)g0 * s->scales_step;
    s->scales = p + (size_t)w->g * (type == CPU_W_Q4 ? 8 : 16);
    s->codes = type == CPU_W_Q4 ? panel : p;
    s->n_out = w->n - 16 * blk;
    s->first = g0 == 0;
}

/* Up to 16 rows. */
FORCED void tiles_few(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                      const struct cpu_act *x, int64_t row0, int m, float *y, int64_t ld_y)
{
    _Alignas(64) int32_t sums[2][512] = { { 0 } };
    _Alignas(64) float pairs[PAIR_GROUPS * 32];
    _Alignas(64) uint8_t panel[PANEL_K * 16];
    const uint8_t *row = x->data + (size_t)row0 * x->row_bytes;
    struct strip s = strip_init(type, two, w, x, ld_y);
    int64_t ng = w->k / w->g, step = piece_groups(ng < PAIR_GROUPS ? ng : PAIR_GROUPS, w->g);
    s.rows = m;
    s.ahead = type != CPU_W_Q4;
    shapes_set(m, w->g);
    for (int64_t p0 = 0; p0 < ng; p0 += PAIR_GROUPS) {
        int64_t p1 = p0 + PAIR_GROUPS < ng ? p0 + PAIR_GROUPS : ng;
        pairs_gather(x, row, m, p0, p1 - p0, pairs);
        for (int64_t blk = blk0; blk < blk1; blk++)
            for (int64_t g0 = p0; g0 < p1; g0 += step) {
                s.n_groups = g0 + step < p1 ? step : p1 - g0;
                strip_block(type, &s, w, blk, g0, panel);
                if (type == CPU_W_Q4)
                    codes_spread(s.scales - w->g * 8, s.scales_step, w->g, s.n_groups, panel);
                s.x = row + (size_t)g0 * s.x_step;
                s.pairs = pairs + 32 * (g0 - p0);
                s.y = y + 16 * (blk - blk0);
                strip_any(two, &s, sums);
            }
    }
    tile_release();
}

/* The rows of a call pass over blocks [blk, blk_end), groups [g0, g0 + n), spread at `panel`. */
FORCED void tiles_panel(enum cpu_wtype type, bool two, struct strip *s, const struct cpu_weight *w, int64_t blk,
                        int64_t blk_end, int64_t g0, const struct cpu_act *x, int64_t row0, int64_t m, float *y,
                        const uint8_t *panel, int32_t sums[2][512])
{
    _Alignas(64) float pairs[PANEL_K / 16 * 32];
    for (int64_t r = 0; r < m; r += 16) {
        const uint8_t *row = x->data + (size_t)(row0 + r) * x->row_bytes;
        int rows = m - r < 16 ? (int)(m - r) : 16;
        if (rows != s->rows) shapes_set(rows, w->g);
        s->rows = rows;
        s->ahead = type != CPU_W_Q4 && r == 0;
        pairs_gather(x, row, rows, g0, s->n_groups, pairs);
        s->x = row + (size_t)g0 * s->x_step;
        s->pairs = pairs;
        for (int64_t b = blk; b < blk_end; b++) {
            strip_block(type, s, w, b, g0, panel + (size_t)(b - blk) * PANEL_K * 16);
            s->y = y + r * s->ld_y + 16 * (b - blk);
            strip_any(two, s, sums);
        }
    }
}

FORCED void tiles_many(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                       const struct cpu_act *x, int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    _Alignas(64) int32_t sums[2][512] = { { 0 } };
    _Alignas(64) uint8_t panel[PANEL_BLOCKS * PANEL_K * 16];
    struct strip s = strip_init(type, two, w, x, ld_y);
    int64_t ng = w->k / w->g, step = piece_groups(ng, w->g);
    for (int64_t blk = blk0; blk < blk1; blk += PANEL_BLOCKS) {
        int64_t end = blk + PANEL_BLOCKS < blk1 ? blk + PANEL_BLOCKS : blk1;
        for (int64_t g0 = 0; g0 < ng; g0 += step) {
            s.n_groups = g0 + step < ng ? step : ng - g0;
            for (int64_t b = blk; b < end && type == CPU_W_Q4; b++)
                codes_spread(w->data + (size_t)b * w->block_bytes + (size_t)g0 * s.scales_step, s.scales_step, w->g,
                             s.n_groups, panel + (size_t)(b - blk) * PANEL_K * 16);
            tiles_panel(type, two, &s, w, blk, end, g0, x, row0, m, y + 16 * (blk - blk0), panel, sums);
        }
    }
    tile_release();
}

FORCED void matmul_tiles(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1,
                         const struct cpu_act *x, int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m <= 16)
        tiles_few(type, two, w, blk0, blk1, x, row0, (int)m, y, ld_y);
    else
        tiles_many(type, two, w, blk0, blk1, x, row0, m, y, ld_y);
}

#endif
