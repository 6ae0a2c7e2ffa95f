/* matmul_bf16.h: 4-bit weights in groups of 32 times two-limb inputs of many rows, by tiles of bf16 (kernels.h has the contract).
 * Written over tile_ops.h, as matmul_tiles.h is.
 *
 * Integers, though the tiles add floats. A code has 4 bits, a limb 8 with its sign, so both are bf16 exactly, the high limb also times
 * 256. Their products, and every sum of some of them inside a group, are whole numbers of at most 32 * 15 * (32512 + 128) =
 * 15,667,200 < 2^24, so float32 holds each of them: no sum of a group is ever rounded, and any order of adding gives the integer sum of
 * the contract, already converted. (Zero products are +0 or -0; a sum that starts at +0 and is rounded to nearest never becomes -0.
 * Nothing is small enough to be flushed to zero.) One sum then takes both limbs: no second sum to store, load, shift and add, no
 * conversion, and a group's vector work, which limits the level (matmul_tiles.h), is one product and the two fma. The tiles of int8
 * would be half empty with groups of 32, so the products take as long. Longer groups pass 2^24; with one limb the spreading costs
 * what the conversion does.
 *
 * Inputs and codes are spread beforehand: pieces of k of up to PIECE_GROUPS groups, RUN_STRIPS strips of 16 rows, RUN_BLOCKS blocks at
 * a time. A strip's inputs stay in L1 while the blocks pass by, as one sequence of groups: in each turn stand the products of a group,
 * the store of the one before and the vector work of the third before, whose sums have then reached the cache; between two blocks
 * nothing is drained. Between pieces accumulators rest in y. Scratch: about 400 KB of stack.
 */
#ifndef OPS_CPU_AMX_MATMUL_BF16_H
#define OPS_CPU_AMX_MATMUL_BF16_H

#define BF16_GROUP 32
#define PIECE_GROUPS 12
#define RUN_STRIPS 8
#define RUN_BLOCKS 12
#define LIMB_BYTES 1024  /* of a strip, group and limb: [16 rows][16][2]; high, then low */
#define PANEL_BYTES 1152 /* of a block and group: codes [16][16 outputs][2], scales [16], biases [16] floats */
#define SUMS 4           /* groups whose sums are kept, in tile registers and in memory */
#define AHEAD_TURNS 3    /* a panel's lines are asked for, out of L2 */

/* One strip of 16 rows by n_blocks blocks over n_groups groups. */
struct bf16_run {
    const uint8_t *x;     /* [n_groups][2][LIMB_BYTES] */
    const float *pairs;   /* [n_groups][16][2], zero for rows that do not exist */
    const uint8_t *panel; /* [n_blocks][n_groups][PANEL_BYTES] */
    int64_t n_groups, n_blocks;
    bool first;           /* accumulators start at zero, else at y */
    int rows;
    int64_t n_out;        /* outputs from the first block on */
    float *y;
    int64_t ld_y;
};

/* Where the sequence stands: one cursor for products, one for vector work. */
struct bf16_at {
    int64_t i;            /* group */
    const uint8_t *panel;
};

FORCED void bf16_at_next(struct bf16_at *at, int64_t n_groups)
{
    at->i = at->i + 1 == n_groups ? 0 : at->i + 1;
    at->panel += PANEL_BYTES;
}

/* Tile instructions name their registers: `at`, 0 .. 3, is a constant, the group's place among the sums. Registers 0 and 1 hold inputs,
 * high and low, 2 and 3 codes of even and odd groups, 4 to 7 sums. */
FORCED void bf16_load_inputs(int at, const uint8_t *x)
{
    if (at == 0) tile_zero(4);
    else if (at == 1) tile_zero(5);
    else if (at == 2) tile_zero(6);
    else tile_zero(7);
    tile_load(0, x, 64);
    tile_load(1, x + LIMB_BYTES, 64);
}

FORCED void bf16_load_codes(int at, const uint8_t *codes)
{
    if (at & 1) tile_load(3, codes, 64);
    else tile_load(2, codes, 64);
}

FORCED void bf16_products(int at)
{
    if (at == 0) { tile_dp_bf16(4, 0, 2); tile_dp_bf16(4, 1, 2); }
    else if (at == 1) { tile_dp_bf16(5, 0, 3); tile_dp_bf16(5, 1, 3); }
    else if (at == 2) { tile_dp_bf16(6, 0, 2); tile_dp_bf16(6, 1, 2); }
    else { tile_dp_bf16(7, 0, 3); tile_dp_bf16(7, 1, 3); }
}

FORCED void bf16_store(int at, int32_t sums[SUMS][256])
{
    if (at == 0) tile_store(4, sums[0]);
    else if (at == 1) tile_store(5, sums[1]);
    else if (at == 2) tile_store(6, sums[2]);
    else tile_store(7, sums[3]);
}

/* Vector work of rows [r0, r1). */
FORCED void bf16_fold(int r0, int r1, const uint8_t *panel, const float *pair, const int32_t *sums, lanes acc[16])
{
    const float *scales = (const float *)(const void *)(panel + 1024);
    lanes s = lanes_floats(scales), b = lanes_floats(scales + 16);
    UNROLL(16)
    for (int r = r0; r < r1; r++) acc[r] = lanes_group_add(acc[r], s, b, pair + 2 * r, lanes_floats((const float *)(const void *)(sums + 16 * r)));
}

FORCED void bf16_acc_begin(const struct bf16_run *s, int64_t i_block, lanes acc[16])
{
    UNROLL(16)
    for (int r = 0; r < 16; r++) {
        acc[r] = lanes_zero();
        if (!s->first && r < s->rows) acc[r] = lanes_load(s->y + r * s->ld_y + 16 * i_block, s->n_out - 16 * i_block);
    }
}

FORCED void bf16_acc_end(const struct bf16_run *s, int64_t i_block, lanes acc[16])
{
    UNROLL(16)
    for (int r = 0; r < 16; r++)
        if (r < s->rows) lanes_store(s->y + r * s->ld_y + 16 * i_block, s->n_out - 16 * i_block, acc[r]);
}

/* A turn: products of the group at p, the store of the group before, vector work of the third before, at f, between them. */
FORCED void bf16_turn(int at, bool products, bool store, bool fold, const struct bf16_run *s, struct bf16_at *p, struct bf16_at *f,
                      int64_t *i_block, int32_t sums[SUMS][256], lanes acc[16])
{
    const int32_t *done = sums[(at + 1) % SUMS];
    const float *pair = s->pairs + 32 * f->i;
    if (products) {
        for (int j = 0; j < PANEL_BYTES; j += 64) __builtin_prefetch(p->panel + AHEAD_TURNS * PANEL_BYTES + j, 0, 3);
        bf16_load_inputs(at, s->x + 2 * LIMB_BYTES * p->i);
    }
    if (fold) bf16_fold(0, 4, f->panel, pair, done, acc);
    if (products) bf16_load_codes(at, p->panel);
    if (fold) bf16_fold(4, 8, f->panel, pair, done, acc);
    if (products) bf16_products(at);
    if (fold) bf16_fold(8, 12, f->panel, pair, done, acc);
    if (store) bf16_store((at + 3) % SUMS, sums);
    if (fold) bf16_fold(12, 16, f->panel, pair, done, acc);
    if (products) bf16_at_next(p, s->n_groups);
    if (!fold) return;
    bf16_at_next(f, s->n_groups);
    if (f->i > 0) return;
    bf16_acc_end(s, *i_block, acc);
    if (++*i_block < s->n_blocks) bf16_acc_begin(s, *i_block, acc);
}

/* Not inlined: its loop owns all vector registers. The run is copied, so that its fields live in registers across tile stores. */
static __attribute__((noinline)) void bf16_turns(struct bf16_run run, int32_t sums[SUMS][256])
{
    lanes acc[16];
    const struct bf16_run *s = &run;
    struct bf16_at p = { 0, s->panel }, f = p;
    int64_t i_block = 0, n = s->n_groups * s->n_blocks;
    bf16_acc_begin(s, 0, acc);
#define TURN(at, j) bf16_turn(at, (j) < n, (j) >= 1 && (j) - 1 < n, (j) >= 3 && (j) - 3 < n, s, &p, &f, &i_block, sums, acc)
#define FULL(at) bf16_turn(at, true, true, true, s, &p, &f, &i_block, sums, acc)
    for (int64_t j = 0; j < n + 3; j += SUMS) {
        if (j > 0 && j + SUMS <= n) {
            FULL(0); FULL(1); FULL(2); FULL(3);
        } else {
            TURN(0, j); TURN(1, j + 1); TURN(2, j + 2); TURN(3, j + 3);
        }
    }
#undef TURN
#undef FULL
}

/* Inputs of n groups of one strip; rows that do not exist are zero. */
static inline void bf16_inputs(const uint8_t *row, size_t row_bytes, int rows, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++, row += 2 * BF16_GROUP, out += 2 * LIMB_BYTES) {
        for (int r = 0; r < rows; r++) {
            const uint8_t *p = row + (size_t)r * row_bytes;
            lanes_limb_bf16(true, p, out + 64 * r);
            lanes_limb_bf16(false, p + BF16_GROUP, out + LIMB_BYTES + 64 * r);
        }
        memset(out + 64 * rows, 0, (size_t)(16 - rows) * 64);
        memset(out + LIMB_BYTES + 64 * rows, 0, (size_t)(16 - rows) * 64);
    }
}

/* n groups of a block at p. */
static inline void bf16_panel(const struct cpu_weight *w, const uint8_t *p, size_t group_bytes, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n; i++, p += group_bytes, out += PANEL_BYTES) {
        lanes s, b;
        for (int j = 0; j < 5; j++) __builtin_prefetch(p + AHEAD_BYTES + 64 * j, 0, 2);
        lanes_spread_bf16(p, p + 128, out);
        lanes_spread_bf16(p + 64, p + 192, out + 512);
        lanes_scales(w->dt, p + 256, &s, &b);
        lanes_store((float *)(void *)(out + 1024), 16, s);
        lanes_store((float *)(void *)(out + 1088), 16, b);
    }
}

struct bf16_scratch {
    _Alignas(64) int32_t sums[SUMS][256];
    _Alignas(64) uint8_t inputs[RUN_STRIPS * PIECE_GROUPS * 2 * LIMB_BYTES];
    _Alignas(64) uint8_t panel[RUN_BLOCKS * PIECE_GROUPS * PANEL_BYTES];
    _Alignas(64) float pairs[RUN_STRIPS * PIECE_GROUPS * 32];
};

/* What a call is about. */
struct bf16_call {
    const struct cpu_weight *w;
    int64_t blk0, blk1;
    const struct cpu_act *x;
    int64_t row0;
    float *y;
    int64_t ld_y;
};

/* Rows [r0, r1) of the call, at most RUN_STRIPS strips, over groups [g0, g0 + n). */
static inline void bf16_piece(const struct bf16_call *c, int64_t r0, int64_t r1, int64_t g0, int64_t n, struct bf16_scratch *t)
{
    const struct cpu_weight *w = c->w;
    size_t group_bytes = w->block_bytes / (size_t)(w->k / BF16_GROUP);
    for (int64_t r = r0, i = 0; r < r1; r += 16, i += n) {
        const uint8_t *row = c->x->data + (size_t)(c->row0 + r) * c->x->row_bytes;
        int rows = r1 - r < 16 ? (int)(r1 - r) : 16;
        pairs_gather(c->x, row, rows, g0, n, t->pairs + 32 * i);
        bf16_inputs(row + 2 * BF16_GROUP * g0, c->x->row_bytes, rows, n, t->inputs + 2 * LIMB_BYTES * i);
    }
    for (int64_t blk = c->blk0; blk < c->blk1; blk += RUN_BLOCKS) {
        int64_t end = blk + RUN_BLOCKS < c->blk1 ? blk + RUN_BLOCKS : c->blk1;
        for (int64_t b = blk; b < end; b++)
            bf16_panel(w, w->data + (size_t)b * w->block_bytes + (size_t)g0 * group_bytes, group_bytes, n, t->panel + (b - blk) * n * PANEL_BYTES);
        for (int64_t r = r0, i = 0; r < r1; r += 16, i += n)
            bf16_turns((struct bf16_run){ .x = t->inputs + 2 * LIMB_BYTES * i, .pairs = t->pairs + 32 * i, .panel = t->panel, .n_groups = n,
                                          .n_blocks = end - blk, .first = g0 == 0, .rows = r1 - r < 16 ? (int)(r1 - r) : 16,
                                          .n_out = w->n - 16 * blk, .y = c->y + r * c->ld_y + 16 * (blk - c->blk0), .ld_y = c->ld_y }, t->sums);
    }
}

static inline void matmul_bf16(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0, int64_t m,
                               float *y, int64_t ld_y)
{
    struct bf16_scratch t;
    struct bf16_call c = { w, blk0, blk1, x, row0, y, ld_y };
    struct tile_shapes shapes = { .palette = 1 };
    int64_t ng = w->k / BF16_GROUP, n_pieces = (ng + PIECE_GROUPS - 1) / PIECE_GROUPS, step = (ng + n_pieces - 1) / n_pieces;
    for (int i = 0; i < 8; i++) shapes.rows[i] = 16, shapes.row_bytes[i] = 64;
    tile_config(&shapes);
    for (int64_t r0 = 0; r0 < m; r0 += 16 * RUN_STRIPS)
        for (int64_t g0 = 0; g0 < ng; g0 += step)
            bf16_piece(&c, r0, r0 + 16 * RUN_STRIPS < m ? r0 + 16 * RUN_STRIPS : m, g0, g0 + step < ng ? step : ng - g0, &t);
    tile_release();
}

#endif
