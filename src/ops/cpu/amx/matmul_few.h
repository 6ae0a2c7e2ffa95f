/* matmul_few.h: quantised weights times a few quantised inputs by tiles, for groups of 32 and 64 (kernels.h has the contract).
 * Written over tile_ops.h, as matmul_tiles.h is.
 *
 * With 8 rows a tile of sums would be half empty, yet storing it takes what a full one does. So a tile holds 16 rows: the high limbs of
 * 8 rows over the low ones; with one limb and groups of 32, the 8 rows twice, for two groups at once, whose codes lie one over the
 * other and whose inputs are zero where the other group's codes are. One product and one store then serve a "turn", one group (two), and
 * what bounds it is the vector work on the one port that tiles leave (strips.h): a product and two fma a row, with two limbs a conversion,
 * which for one limb other ports do (lanes_sums in tiles.h).
 *
 * Turns follow one another through the blocks without a gap, for blocks lie one behind the other: in turn t the products of t are made,
 * inputs and codes of t + 1 loaded, codes of t + 4 spread, the sums of t - 1 stored and those of t - 4 folded into the accumulators, 8 vectors
 * of a block. Both ways through memory are as long as the ring: a turn is half of what the processor has in flight, and a load that finds its
 * line still among the stores waits until they are done. The order inside a turn is the fastest of all 24, for each tier.
 * Inputs are laid out once a call, or once for all calls that share a cpu_laid, k in pieces that L1 holds; between pieces accumulators
 * rest in y. Scratch: 36 KB of stack.
 */
#ifndef OPS_CPU_AMX_MATMUL_FEW_H
#define OPS_CPU_AMX_MATMUL_FEW_H

#define FEW_ROWS 8
#define FEW_PIECE_K 1536 /* at most */
#define FEW_RING 4       /* turns whose codes or sums are kept */

struct few_ring {
    _Alignas(64) uint8_t codes[FEW_RING][1024];
    _Alignas(64) int32_t sums[FEW_RING][256];
};

/* A call's run over one piece of k, with three cursors: codes to spread, inputs to multiply, sums to fold. */
struct few {
    size_t group_bytes, skip_bytes; /* of the weight; from the end of a piece to the same piece of the next block */
    int64_t n_groups;               /* of the piece */
    const uint8_t *w;
    int64_t w_left;                 /* groups of its block */
    const uint8_t *w_end;           /* from here on what is asked for lies `jump` further: the thread's next weights */
    ptrdiff_t jump;
    const uint8_t *ahead;           /* what is asked for: n_streams blocks, now this group of this one */
    int64_t n_streams, ahead_block, ahead_group;
    size_t block_bytes;
    const uint8_t *x, *x_begin, *x_end;
    const uint8_t *scales;
    const float *pair, *pairs;      /* [n_groups][FEW_ROWS][2], zero for rows that do not exist */
    int64_t fold_left;
    enum dtype dt;
    int rows;
    bool first;                     /* accumulators start at zero, else at y */
    float *y;
    int64_t ld_y, n_out;            /* outputs from this block on */
};

/* Groups of a turn, and bytes of a row of its inputs. */
#define FEW_GROUPS(two, g) ((two) || (g) > 32 ? 1 : 2)
#define FEW_X_BYTES(two, g) ((g) * FEW_GROUPS(two, g))

static inline void few_shapes(bool two, int g)
{
    struct tile_shapes s;
    int k = FEW_X_BYTES(two, g), rows = two || g == 32 ? 16 : FEW_ROWS;
    memset(&s, 0, sizeof s);
    s.palette = 1;
    for (int t = 0; t < 8; t++) {
        s.rows[t] = (uint8_t)(t == 2 || t == 3 ? k / 4 : rows);
        s.row_bytes[t] = (uint16_t)(t < 2 ? k : 64);
    }
    tile_config(&s);
}

/* Inputs of one row in one turn: with two limbs the high ones at `to` and the low ones FEW_ROWS rows below; of two groups the first at
 * `to`, the second as far below and behind it, zeros where the other's codes are. */
FORCED void few_inputs_turn(bool two, int g, const uint8_t *from, bool second, uint8_t *to)
{
    const size_t k = (size_t)FEW_X_BYTES(two, g), size = (size_t)g;
    memcpy(to, from, size);
    if (two) memcpy(to + FEW_ROWS * k, from + size, size);
    if (FEW_GROUPS(two, g) == 1) return;
    memset(to + size, 0, size);
    memset(to + FEW_ROWS * k, 0, size);
    if (second) memcpy(to + FEW_ROWS * k + size, from + size, size);
    else memset(to + FEW_ROWS * k + size, 0, size); /* of an odd number of groups */
}

/* Groups [g0, g0 + n) of the rows at `row` as the tiles of all turns, [16 or 8 rows][FEW_X_BYTES], and { a, xs } group by group. A call may
 * be for few blocks, so that this counts: sizes are constants. */
FORCED void few_inputs(bool two, int g, const struct cpu_act *x, const uint8_t *row, int rows, int64_t g0, int64_t n, uint8_t *out,
                       float *pairs)
{
    const int n_g = FEW_GROUPS(two, g), k = FEW_X_BYTES(two, g);
    const size_t tile_bytes = (size_t)(two || g == 32 ? 16 : FEW_ROWS) * (size_t)k, x_bytes = (size_t)g * (two ? 2 : 1);
    if (rows < FEW_ROWS) memset(out, 0, (size_t)((n + n_g - 1) / n_g) * tile_bytes);
    if (rows < FEW_ROWS) memset(pairs, 0, (size_t)n * 2 * FEW_ROWS * sizeof *pairs);
    for (int r = 0; r < rows; r++, row += x->row_bytes) {
        const uint8_t *from = row + (size_t)g0 * x_bytes, *pair = row + (size_t)x->k * (two ? 2 : 1) + 8 * (size_t)g0;
        uint8_t *to = out + r * k;
        for (int64_t i = 0; i < n; i += n_g, from += (size_t)n_g * x_bytes, to += tile_bytes) few_inputs_turn(two, g, from, i + 1 < n, to);
        for (int64_t i = 0; i < n; i++) memcpy(pairs + 2 * (FEW_ROWS * i + r), pair + 8 * i, 8);
    }
}

/* The group to ask for now: of the blocks behind those that are at work, group after group of each in turn. */
FORCED const uint8_t *few_ahead(struct few *f)
{
    const uint8_t *at = f->ahead + (size_t)f->ahead_block * f->block_bytes + (size_t)f->ahead_group * f->group_bytes;
    if (++f->ahead_block < f->n_streams) return at;
    f->ahead_block = 0;
    if (++f->ahead_group < f->n_groups) return at;
    f->ahead_group = 0;
    f->ahead += (size_t)f->n_streams * f->block_bytes;
    if (f->ahead >= f->w_end) f->ahead += f->jump;
    return at;
}

/* Codes of the next turn, as bytes. */
FORCED void few_spread(enum cpu_wtype type, bool two, int g, struct few *f, uint8_t *out)
{
    const int n_g = FEW_GROUPS(two, g), code_bytes = g * (type == CPU_W_Q4 ? 8 : 16);
    UNROLL(2)
    for (int q = 0; q < n_g; q++, out += 16 * g) {
        if (q > 0 && f->w_left == 1) break; /* of an odd number of groups */
        const uint8_t *ahead = few_ahead(f);
        UNROLL(17)
        for (int j = 0; j <= code_bytes; j += 64) __builtin_prefetch(ahead + j, 0, 2);
        if (type == CPU_W_Q4)
            UNROLL(8)
            for (int j = 0; j < g / 8; j++) lanes_spread(f->w + 64 * j, out + 128 * j);
        else
            memcpy(out, f->w, (size_t)code_bytes);
        f->w += f->group_bytes;
    }
    f->w_left -= n_g;
    if (f->w_left > 0) return;
    f->w += f->skip_bytes;
    f->w_left = f->n_groups;
}

/* Tile instructions name their registers: `at`, 0 .. 3, is a constant, the turn's place in the ring. Registers 0 and 1 hold inputs, 2 and
 * 3 codes of even and odd turns, 4 to 7 sums. */
FORCED void few_load(bool two, int g, int at, struct few *f, const uint8_t *codes)
{
    const size_t k = (size_t)FEW_X_BYTES(two, g);
    if (at % 2 == 0) {
        tile_load(0, f->x, k);
        tile_load(2, codes, 64);
    } else {
        tile_load(1, f->x, k);
        tile_load(3, codes, 64);
    }
    f->x += (two || g == 32 ? 16 : FEW_ROWS) * k;
    if (f->x == f->x_end) f->x = f->x_begin;
}

FORCED void few_product(int at)
{
    if (at == 0) {
        tile_zero(4);
        tile_dp(4, 0, 2);
    } else if (at == 1) {
        tile_zero(5);
        tile_dp(5, 1, 3);
    } else if (at == 2) {
        tile_zero(6);
        tile_dp(6, 0, 2);
    } else {
        tile_zero(7);
        tile_dp(7, 1, 3);
    }
}

FORCED void few_store(int at, int32_t *sums)
{
    if (at == 0) tile_store(4, sums);
    else if (at == 1) tile_store(5, sums);
    else if (at == 2) tile_store(6, sums);
    else tile_store(7, sums);
}

/* One group into the accumulators, which are a block's from its first group to its last. R: rows, rounded up. */
FORCED void few_fold_group(bool two, int R, struct few *f, const int32_t *sums, lanes acc[FEW_ROWS])
{
    lanes s, b;
    if (f->fold_left == f->n_groups)
        UNROLL(8)
        for (int r = 0; r < R; r++) acc[r] = f->first || r >= f->rows ? lanes_zero() : lanes_load(f->y + r * f->ld_y, f->n_out);
    lanes_scales(f->dt, f->scales, &s, &b);
    UNROLL(8)
    for (int r = 0; r < R; r++)
        acc[r] = lanes_group_add(acc[r], s, b, f->pair + 2 * r, lanes_sums(two, sums + 16 * r, sums + 16 * (FEW_ROWS + r)));
    f->scales += f->group_bytes;
    f->pair += 2 * FEW_ROWS;
    if (--f->fold_left > 0) return;
    UNROLL(8)
    for (int r = 0; r < R; r++)
        if (r < f->rows) lanes_store(f->y + r * f->ld_y, f->n_out, acc[r]);
    f->scales += f->skip_bytes;
    f->pair = f->pairs;
    f->fold_left = f->n_groups;
    f->y += 16;
    f->n_out -= 16;
}

FORCED void few_fold(bool two, int g, int R, struct few *f, const int32_t *sums, lanes acc[FEW_ROWS])
{
    bool last = f->fold_left == 1;
    few_fold_group(two, R, f, sums, acc);
    if (FEW_GROUPS(two, g) == 2 && !last) few_fold_group(two, R, f, sums + 16 * FEW_ROWS, acc);
}

/* Turn t of n, at == t % FEW_RING. */
FORCED void few_turn(enum cpu_wtype type, bool two, int g, int R, int at, int64_t t, int64_t n, struct few *f, struct few_ring *ring,
                     lanes acc[FEW_ROWS])
{
    const bool folds = t >= FEW_RING && t < n + FEW_RING;
    if (t < n) few_product(at);
    if (t + 1 < n) few_load(two, g, (at + 1) % FEW_RING, f, ring->codes[(at + 1) % FEW_RING]);
    if (two && folds) few_fold(two, g, R, f, ring->sums[at], acc);
    if (t + FEW_RING < n) few_spread(type, two, g, f, ring->codes[at]);
    if (t >= 1 && t <= n) few_store((at + 3) % FEW_RING, ring->sums[(at + 3) % FEW_RING]);
    if (!two && folds) few_fold(two, g, R, f, ring->sums[at], acc);
}

FORCED void few_turns(enum cpu_wtype type, bool two, int g, int R, struct few f, int64_t n, struct few_ring *ring)
{
    lanes acc[FEW_ROWS];
    UNROLL(8)
    for (int r = 0; r < FEW_ROWS; r++) acc[r] = lanes_zero();
    for (int i = 0; i < FEW_RING && i < n; i++) few_spread(type, two, g, &f, ring->codes[i]);
    few_load(two, g, 0, &f, ring->codes[0]);
    for (int64_t t = 0; t < n + FEW_RING; t += FEW_RING) {
        few_turn(type, two, g, R, 0, t, n, &f, ring, acc);
        few_turn(type, two, g, R, 1, t + 1, n, &f, ring, acc);
        few_turn(type, two, g, R, 2, t + 2, n, &f, ring, acc);
        few_turn(type, two, g, R, 3, t + 3, n, &f, ring, acc);
    }
}

/* Inputs and pairs as few_turns reads them. */
struct few_laid {
    _Alignas(64) uint8_t inputs[FEW_PIECE_K * 2 * FEW_ROWS];
    _Alignas(64) float pairs[FEW_PIECE_K / 32 * 2 * FEW_ROWS];
};
_Static_assert(sizeof(struct few_laid) <= CPU_LAID_BYTES, "a piece fits what a caller keeps");

/* Blocks [blk0, blk1) by up to FEW_ROWS rows. */
FORCED void few_rows(enum cpu_wtype type, bool two, int g, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                     int64_t row0, int rows, float *y, int64_t ld_y)
{
    struct few_laid own;
    struct few_ring ring;
    const uint8_t *row = x->data + (size_t)row0 * x->row_bytes;
    const int n_g = FEW_GROUPS(two, g), code_bytes = g * (type == CPU_W_Q4 ? 8 : 16);
    const size_t tile_bytes = (size_t)((two || g == 32 ? 16 : FEW_ROWS) * FEW_X_BYTES(two, g));
    int64_t ng = w->k / g, n_pieces = (w->k + FEW_PIECE_K - 1) / FEW_PIECE_K, step = (ng + n_pieces - 1) / n_pieces;
    struct cpu_laid *kept = n_pieces == 1 ? x->laid : NULL;
    struct few_laid *l = kept ? (struct few_laid *)(void *)kept->bytes : &own;
    for (int64_t g0 = 0; g0 < ng; g0 += step) {
        int64_t n = g0 + step < ng ? step : ng - g0, n_turns = (n + n_g - 1) / n_g;
        struct few f = { .group_bytes = w->block_bytes / (size_t)ng, .n_groups = n, .w_left = n, .fold_left = n, .dt = w->dt, .rows = rows,
                         .first = g0 == 0, .x = l->inputs, .x_begin = l->inputs, .x_end = l->inputs + (size_t)n_turns * tile_bytes,
                         .pair = l->pairs, .pairs = l->pairs, .y = y, .ld_y = ld_y, .n_out = w->n - 16 * blk0 };
        f.skip_bytes = w->block_bytes - (size_t)n * f.group_bytes;
        f.w = w->data + (size_t)blk0 * w->block_bytes + (size_t)g0 * f.group_bytes;
        f.scales = f.w + code_bytes;
        f.w_end = x->w_end;
        f.jump = x->w_next - x->w_end;
        f.block_bytes = w->block_bytes;
        f.n_streams = (blk1 - blk0) % 4 == 0 ? 4 : 2;
        f.ahead = f.w + (size_t)f.n_streams * w->block_bytes;
        if (f.ahead >= f.w_end) f.ahead += f.jump;
        if (!kept || !kept->is_laid) few_inputs(two, g, x, row, rows, g0, n, l->inputs, l->pairs);
        if (kept) kept->is_laid = true;
        if (n_g == 2 && n % 2 == 1) memset(ring.codes, 0, sizeof ring.codes); /* codes that meet zeros should be something */
        if (two && rows <= 4) few_turns(type, two, g, 4, f, n_turns * (blk1 - blk0), &ring); /* one limb begins with 5 rows (tiles_pay) */
        else few_turns(type, two, g, 8, f, n_turns * (blk1 - blk0), &ring);
    }
}

/* m <= FEW_ROWS; g 32 or 64. */
FORCED void matmul_few(enum cpu_wtype type, bool two, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                       int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    few_shapes(two, w->g);
    if (w->g == 32) few_rows(type, two, 32, w, blk0, blk1, x, row0, (int)m, y, ld_y);
    else few_rows(type, two, 64, w, blk0, blk1, x, row0, (int)m, y, ld_y);
    tile_release();
}

#endif
