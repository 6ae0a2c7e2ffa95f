/* strips.h: the inner loop of matmul_tiles.h, over tile_ops.h.
 *
 * A unit is a "strip", 16 rows (the last: fewer), by a block of 16 outputs over the groups of a piece of k; its 16 accumulators are vector
 * registers. All units of a call go by as one sequence of groups, a group a turn: in each turn stand the products of a group, the
 * loads of the next one, the store of the one before and the vector work of the second before, whose sums have then reached the cache; between
 * two units nothing is drained.
 *
 * What limits a turn of 16 by 16 outputs, in cycles of the core (docs/cpu-matmul.md has the whole):
 *   port 0, one or two limbs: 48 or 64. While tiles are at work, and some 450 cycles after, 512-bit products, fma and conversions have no
 *     other: one product, two fma, with two limbs a conversion. Sums of floats and integers and shuffles have port 5 too (lanes_sums).
 *   port 5: 52 or 72, of which a tile's store takes 20.
 *   tile unit: 16 or 32, 16 rows whatever k. Fewer rows cost more than their share, and the store of few what one of 16 does: strips are full.
 *   loads: two a cycle, a tile's row is one; 37 or 53. A line that is not in L1 takes one more, as a prefetch does: there is none into L1.
 * Loading a turn ahead saves 3 to 6 %, longer distances between products, store and vector work nothing.
 */
#ifndef OPS_CPU_AMX_STRIPS_H
#define OPS_CPU_AMX_STRIPS_H

#define SUMS 4 /* turns whose sums are kept in memory */

struct strips {
    const uint8_t *x;                     /* first strip, row and group; the low limb lies x_low behind the high one */
    size_t x_row, x_group, x_strip, x_low;
    const float *pairs;                   /* [n_strips][n_groups][16][2]: { a, xs } */
    const uint8_t *codes;                 /* of a block and group: bytes [g/4][16][4] */
    size_t codes_group, codes_block;
    const float *scales;                  /* [n_blocks][n_groups][2][16] */
    int64_t n_groups, n_strips, n_blocks;
    bool first, last;                     /* pieces of k: accumulators start at zero, else at acc; end at y, else at acc */
    float *acc;                           /* [n_strips][n_blocks][16][16] */
    int rows;                             /* of every strip */
    int64_t n_out;                        /* outputs from the first block on */
    float *y;
    int64_t ld_y;
};

/* A place in the sequence; products and vector work have one each. */
struct strips_at {
    int64_t strip, block; /* the unit */
    int64_t left;         /* groups of the unit that are to come */
    const uint8_t *x, *codes;
    const float *pair, *scales;
};

FORCED void strips_unit(const struct strips *s, struct strips_at *at)
{
    at->left = s->n_groups;
    at->x = s->x + (size_t)at->strip * s->x_strip;
    at->codes = s->codes + (size_t)at->block * s->codes_block;
    at->pair = s->pairs + 32 * at->strip * s->n_groups;
    at->scales = s->scales + 32 * at->block * s->n_groups;
}

/* To the next unit, behind the last to the first. */
FORCED void strips_unit_next(const struct strips *s, struct strips_at *at)
{
    if (++at->block == s->n_blocks) {
        at->block = 0;
        if (++at->strip == s->n_strips) at->strip = 0;
    }
    strips_unit(s, at);
}

/* Registers, which tile instructions name: inputs 0, of the low limb 1; codes 2, of the second half of 128 3; sums 4, of odd groups 5, of the
 * low limb 6 and 7. */
FORCED void limb_zero(bool low, int odd)
{
    if (low) {
        if (odd) tile_zero(7);
        else tile_zero(6);
    } else {
        if (odd) tile_zero(5);
        else tile_zero(4);
    }
}

FORCED void limb_product(bool low, int odd, bool second)
{
    if (low && second) {
        if (odd) tile_dp(7, 1, 3);
        else tile_dp(6, 1, 3);
    } else if (low) {
        if (odd) tile_dp(7, 1, 2);
        else tile_dp(6, 1, 2);
    } else if (second) {
        if (odd) tile_dp(5, 0, 3);
        else tile_dp(4, 0, 3);
    } else {
        if (odd) tile_dp(5, 0, 2);
        else tile_dp(4, 0, 2);
    }
}

/* out: [16 rows][16] */
FORCED void limb_store(bool low, int odd, int32_t *out)
{
    if (low) {
        if (odd) tile_store(7, out);
        else tile_store(6, out);
    } else {
        if (odd) tile_store(5, out);
        else tile_store(4, out);
    }
}

/* Inputs and codes of 64 of k, or of a group that has fewer. The high limb, which comes first, brings the codes for both. */
FORCED void limb_load(bool low, bool second, const struct strips *s, const uint8_t *x, const uint8_t *codes)
{
    if (low) tile_load(1, x + s->x_low, s->x_row);
    else tile_load(0, x, s->x_row);
    if (!low && second) tile_load(3, codes, 64);
    if (!low && !second) tile_load(2, codes, 64);
}

/* Products of one limb of a group, of what is loaded; g128: of the group at p, which is two tiles along k. */
FORCED void turn_products(bool low, bool g128, int odd, const struct strips *s, const struct strips_at *p)
{
    limb_zero(low, odd);
    if (g128) limb_load(low, false, s, p->x, p->codes);
    limb_product(low, odd, false);
    if (!g128) return;
    limb_load(low, true, s, p->x + 64, p->codes + 1024);
    limb_product(low, odd, true);
}

/* Vector work of rows [r0, r0 + 4). */
FORCED void turn_fold(bool two, int r0, const struct strips_at *f, const int32_t *sums, lanes acc[16])
{
    lanes sc = lanes_floats(f->scales), b = lanes_floats(f->scales + 16);
    UNROLL(4)
    for (int r = r0; r < r0 + 4; r++) {
        const int32_t *hi = sums + 16 * r;
        acc[r] = lanes_group_add(acc[r], sc, b, f->pair + 2 * r, lanes_sums(two, hi, hi + 256));
    }
}

FORCED void acc_begin(const struct strips *s, const struct strips_at *f, lanes acc[16])
{
    const float *p = s->acc + 256 * (f->strip * s->n_blocks + f->block);
    UNROLL(16)
    for (int r = 0; r < 16; r++) acc[r] = s->first ? lanes_zero() : lanes_floats(p + 16 * r);
}

FORCED void acc_end(const struct strips *s, const struct strips_at *f, lanes acc[16])
{
    float *p = s->acc + 256 * (f->strip * s->n_blocks + f->block);
    if (!s->last) {
        UNROLL(16)
        for (int r = 0; r < 16; r++) lanes_store(p + 16 * r, 16, acc[r]);
        return;
    }
    p = s->y + 16 * f->strip * s->ld_y + 16 * f->block;
    UNROLL(16)
    for (int r = 0; r < 16; r++)
        if (r < s->rows) lanes_store(p + r * s->ld_y, s->n_out - 16 * f->block, acc[r]);
}

/* Turn t. g128 has no registers left to load ahead. */
FORCED void turn(bool two, bool g128, int64_t t, int odd, const struct strips *s, const struct strips_at *p, const struct strips_at *f,
                 int32_t sums[SUMS][512], lanes acc[16])
{
    int32_t *out = sums[t % SUMS];
    const int32_t *done = sums[(t + SUMS - 1) % SUMS];
    turn_products(false, g128, !odd, s, p);
    if (two) turn_products(true, g128, !odd, s, p);
    turn_fold(two, 0, f, done, acc);
    if (!g128) limb_load(false, false, s, p->x, p->codes);
    if (!g128 && two) limb_load(true, false, s, p->x, p->codes);
    turn_fold(two, 4, f, done, acc);
    limb_store(false, odd, out);
    turn_fold(two, 8, f, done, acc);
    if (two) limb_store(true, odd, out + 256);
    turn_fold(two, 12, f, done, acc);
}

FORCED void products_next(const struct strips *s, struct strips_at *p)
{
    p->x += s->x_group;
    p->codes += s->codes_group;
    if (--p->left == 0) strips_unit_next(s, p);
}

/* i_unit: what the vector work is at; -1: before the first. */
FORCED void fold_next(const struct strips *s, struct strips_at *f, int64_t *i_unit, lanes acc[16])
{
    f->pair += 32;
    f->scales += 32;
    if (--f->left > 0) return;
    if (*i_unit >= 0 && *i_unit < s->n_strips * s->n_blocks) {
        acc_end(s, f, acc);
        strips_unit_next(s, f);
    } else {
        strips_unit(s, f);
    }
    ++*i_unit;
    acc_begin(s, f, acc);
}

/* The vector work lags three turns behind: the first three fold what is not there yet, into accumulators that acc_begin then sets. Products
 * behind the end are the first unit's again. */
FORCED void strips_turns(bool two, bool g128, struct strips s, int32_t sums[SUMS][512])
{
    lanes acc[16];
    struct strips_at p = { 0 }, f;
    int64_t i_unit = -1;
    strips_unit(&s, &p);
    f = p;
    f.left = 3;
    UNROLL(16)
    for (int r = 0; r < 16; r++) acc[r] = lanes_zero();
    for (int64_t t = 0; i_unit < s.n_strips * s.n_blocks; t += 2) {
        turn(two, g128, t, 0, &s, &p, &f, sums, acc);
        if (!g128 || t > 0) products_next(&s, &p); /* g128: the first products are those of turn 1 */
        fold_next(&s, &f, &i_unit, acc);
        turn(two, g128, t + 1, 1, &s, &p, &f, sums, acc);
        products_next(&s, &p);
        fold_next(&s, &f, &i_unit, acc);
    }
}

/* Not inlined: each owns all vector registers. */
static __attribute__((noinline)) void strips_one(struct strips s, int32_t sums[SUMS][512])
{
    strips_turns(false, false, s, sums);
}

static __attribute__((noinline)) void strips_one_g128(struct strips s, int32_t sums[SUMS][512])
{
    strips_turns(false, true, s, sums);
}

static __attribute__((noinline)) void strips_two(struct strips s, int32_t sums[SUMS][512])
{
    strips_turns(true, false, s, sums);
}

static __attribute__((noinline)) void strips_two_g128(struct strips s, int32_t sums[SUMS][512])
{
    strips_turns(true, true, s, sums);
}

static inline void strips_run(bool two, int g, const struct strips *s, int32_t sums[SUMS][512])
{
    if (two) (g > 64 ? strips_two_g128 : strips_two)(*s, sums);
    else (g > 64 ? strips_one_g128 : strips_one)(*s, sums);
}

#endif
