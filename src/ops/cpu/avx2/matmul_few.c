/* matmul_few.c (avx2): up to FEW_ROWS rows times 4-bit weights by maddubs, limb by limb, codes unpacked in registers: u8 codes
 * (0..15) times int8, a pair sum is at most 2*15*128, eight of them fit int16, so one widening per 32 k. One row: runs of blocks side
 * by side (row_runs.h), two registers of 8 outputs each; more: up to four rows (two limbs: two) at a time, each broadcast of inputs meeting both halves of a
 * block, float accumulators in L1. */
#include "ops/cpu/avx2/matmul_int.h"
#include "ops/cpu/row_runs.h"

/* --- one row, 4-bit codes, limbs by maddubs --- */

/* isum[half] of one group: codes p, stored bytes hi (and lo when two_limbs). */
FORCED void group_q4_row(const uint8_t *p, int g, const uint8_t *hi, bool two_limbs, __m256i isum[2])
{
    const __m256i m0f = _mm256_set1_epi8(15);
    const uint8_t *lo = hi + g;
    __m256i hsum[2] = { _mm256_setzero_si256(), _mm256_setzero_si256() }, lsum[2] = { hsum[0], hsum[0] };
    for (int c = 0; c < g; c += 32) { /* eight products per int16 lane */
        __m256i h16[2], l16[2];
        h16[0] = h16[1] = l16[0] = l16[1] = _mm256_setzero_si256();
        for (int i = c / 8; i < c / 8 + 4; i++) {
            for (int h = 0; h < 2; h++) {
                __m256i v = load_i(p + 64 * i + 32 * h);
                __m256i even = _mm256_and_si256(v, m0f), odd = _mm256_and_si256(_mm256_srli_epi32(v, 4), m0f);
                h16[h] = _mm256_add_epi16(h16[h], _mm256_maddubs_epi16(even, bcast_dword(hi + 8 * i)));
                in_place(&h16[h]);
                h16[h] = _mm256_add_epi16(h16[h], _mm256_maddubs_epi16(odd, bcast_dword(hi + 8 * i + 4)));
                in_place(&h16[h]);
                if (two_limbs) {
                    l16[h] = _mm256_add_epi16(l16[h], _mm256_maddubs_epi16(even, bcast_dword(lo + 8 * i)));
                    in_place(&l16[h]);
                    l16[h] = _mm256_add_epi16(l16[h], _mm256_maddubs_epi16(odd, bcast_dword(lo + 8 * i + 4)));
                    in_place(&l16[h]);
                }
            }
        }
        for (int h = 0; h < 2; h++) {
            hsum[h] = _mm256_add_epi32(hsum[h], widen_sum(h16[h]));
            if (two_limbs) lsum[h] = _mm256_add_epi32(lsum[h], widen_sum(l16[h]));
        }
    }
    for (int h = 0; h < 2; h++)
        isum[h] = two_limbs ? _mm256_add_epi32(_mm256_slli_epi32(hsum[h], 8), lsum[h]) : hsum[h];
}

/* One group of one row and one block, at q; near, far: what is asked for, into L1 and L2. */
FORCED void row_q4_group(const uint8_t *q, uintptr_t near, uintptr_t far, const uint8_t *xp, const float *pair, bool two_limbs, int g, enum dtype dt,
                         __m256 acc[2])
{
    size_t cb = code_bytes(CPU_W_Q4, g), gb = cb + scales_bytes(dt);
    __m256i isum[2];
    __m256 s[2], c[2];
    UNROLL(10)
    for (size_t j = 0; j < gb; j += 64) {
        _mm_prefetch((const char *)near + j, _MM_HINT_T0);
        if (j % 128 == 0) _mm_prefetch((const char *)far + j, _MM_HINT_T1);
    }
    group_q4_row(q, g, xp, two_limbs, isum);
    scales_load(dt, q + cb, s, c);
    UNROLL(2)
    for (int h = 0; h < 2; h++) acc[h] = group_add(acc[h], s[h], c[h], pair, isum[h]);
}

/* B blocks side by side, `run` blocks apart. Two limbs want the registers that four blocks' sums would have: these lie in L1 then. */
FORCED void row_q4_streams(int B, const struct cpu_weight *w, int64_t blk, int64_t run, const struct row_then *then, const struct cpu_act *x,
                           const uint8_t *xp, float *y, bool two_limbs, int g, enum dtype dt)
{
    size_t gb = code_bytes(CPU_W_Q4, g) + scales_bytes(dt), bb = w->block_bytes, xb = (size_t)g * (two_limbs ? 2 : 1), step = (size_t)run * bb;
    const uint8_t *p = w->data + (size_t)blk * bb;
    const float *pair = act_pairs(x, xp);
    __m256 acc[CPU_ROW_STREAMS][2];
    for (int b = 0; b < B; b++) acc[b][0] = acc[b][1] = _mm256_setzero_ps();
    for (size_t at = 0; at < bb; at += gb, p += gb, xp += xb, pair += 2) {
        struct row_hints h = row_hints_at(p, at, bb, step, then);
        if (two_limbs)
            UNROLL(1)
            for (int b = 0; b < B; b++, h.near += h.near_step, h.far += h.far_step)
                row_q4_group(p + (size_t)b * step, h.near, h.far, xp, pair, true, g, dt, acc[b]);
        else
            UNROLL(4)
            for (int b = 0; b < B; b++, h.near += h.near_step, h.far += h.far_step)
                row_q4_group(p + (size_t)b * step, h.near, h.far, xp, pair, false, g, dt, acc[b]);
    }
    for (int b = 0; b < B; b++) store16(y + 16 * (b * run), w->n - 16 * (blk + b * run), acc[b][0], acc[b][1]);
}

FORCED void row_q4(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row,
                   float *y, bool two_limbs, int g, enum dtype dt)
{
    const uint8_t *xr = x->data + (size_t)row * x->row_bytes;
    int64_t run = cpu_row_run(blk1 - blk0), blk = blk0 + run * CPU_ROW_STREAMS;
    struct row_then on = row_then_on(w, run), then = row_then_next(w, x, blk0, run, CPU_ROW_STREAMS);
    for (int64_t i = 0; i < run; i++)
        row_q4_streams(CPU_ROW_STREAMS, w, blk0 + i, run, i < run - 1 ? &on : &then, x, xr, y + 16 * i, two_limbs, g, dt);
    on = row_then_on(w, 1);
    for (y += 16 * (blk - blk0); blk < blk1; blk++, y += 16) row_q4_streams(1, w, blk, 1, &on, x, xr, y, two_limbs, g, dt);
}

/* The common group sizes and scale types become constants of their own loops. */
FORCED void row_q4_any(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row,
                       float *y, bool two_limbs)
{
    if (w->dt == DT_BF16 && w->g == 32)
        row_q4(w, blk0, blk1, x, row, y, two_limbs, 32, DT_BF16);
    else if (w->dt == DT_BF16 && w->g == 64)
        row_q4(w, blk0, blk1, x, row, y, two_limbs, 64, DT_BF16);
    else if (w->dt == DT_F16 && w->g == 32)
        row_q4(w, blk0, blk1, x, row, y, two_limbs, 32, DT_F16);
    else if (w->dt == DT_F16 && w->g == 64)
        row_q4(w, blk0, blk1, x, row, y, two_limbs, 64, DT_F16);
    else
        row_q4(w, blk0, blk1, x, row, y, two_limbs, w->g, w->dt);
}

/* --- few rows, 4-bit codes, limbs by maddubs, nothing expanded --- */

/* Products of codes[h] with four bytes of R rows at x, the second limb g behind; sums in s16[limb][r][h]. */
FORCED void madd_q4_rows(int n_limb, int R, const __m256i codes[2], const uint8_t *x, size_t ld_x, int g,
                         __m256i s16[2][4][2])
{
    UNROLL(4)
    for (int r = 0; r < R; r++)
        UNROLL(2)
        for (int l = 0; l < n_limb; l++) {
            __m256i q = bcast_dword(x + (size_t)r * ld_x + l * g);
            UNROLL(2)
            for (int h = 0; h < 2; h++) {
                s16[l][r][h] = _mm256_add_epi16(s16[l][r][h], _mm256_maddubs_epi16(codes[h], q));
                in_place(&s16[l][r][h]);
            }
        }
}

/* isum[r][h] of one group, R rows by the two halves of a block. */
FORCED void group_q4_rows(int n_limb, int R, const uint8_t *p, int g, const uint8_t *x, size_t ld_x, __m256i isum[4][2])
{
    const __m256i m0f = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1), first = n_limb == 2 ? _mm256_set1_epi16(256) : ones;
    UNROLL(4) for (int r = 0; r < R; r++) UNROLL(2) for (int h = 0; h < 2; h++) isum[r][h] = _mm256_setzero_si256();
    for (int c = 0; c < g; c += 32) { /* eight products per int16 lane */
        __m256i s16[2][4][2];
        UNROLL(2) for (int l = 0; l < n_limb; l++) UNROLL(4) for (int r = 0; r < R; r++) UNROLL(2) for (int h = 0; h < 2; h++)
            s16[l][r][h] = _mm256_setzero_si256();
        UNROLL(4)
        for (int i = c / 8; i < c / 8 + 4; i++) {
            __m256i v[2], codes[2];
            UNROLL(2) for (int h = 0; h < 2; h++) codes[h] = _mm256_and_si256(v[h] = load_i(p + 64 * i + 32 * h), m0f);
            madd_q4_rows(n_limb, R, codes, x + 8 * i, ld_x, g, s16);
            UNROLL(2) for (int h = 0; h < 2; h++) codes[h] = _mm256_and_si256(_mm256_srli_epi32(v[h], 4), m0f);
            madd_q4_rows(n_limb, R, codes, x + 8 * i + 4, ld_x, g, s16);
        }
        UNROLL(4) for (int r = 0; r < R; r++) UNROLL(2) for (int h = 0; h < 2; h++) {
            __m256i sum = _mm256_madd_epi16(s16[0][r][h], first);
            if (n_limb == 2) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(s16[1][r][h], ones));
            isum[r][h] = _mm256_add_epi32(isum[r][h], sum);
        }
    }
}

/* R rows of one block; accumulators rest in L1 between groups. */
FORCED void block_q4_rows(int n_limb, int R, int g, enum dtype dt, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                          const uint8_t *xr, float *y, int64_t ld_y)
{
    size_t cb = code_bytes(CPU_W_Q4, g), gb = cb + scales_bytes(dt), ld_x = x->row_bytes, ld_pair = ld_x / 4;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
    const float *pair = act_pairs(x, xr);
    int64_t n_groups = w->k / g;
    _Alignas(32) float acc[4][16] = { { 0 } };
    for (int64_t i = 0; i < n_groups; i++, p += gb, xr += n_limb * g, pair += 2) {
        __m256 s[2], b[2];
        scales_load(dt, p + cb, s, b);
        UNROLL(10)
        for (size_t j = 0; j < gb; j += 64) _mm_prefetch((const char *)p + PREFETCH_AHEAD + j, _MM_HINT_T0);
        __m256i isum[4][2];
        group_q4_rows(n_limb, R, p, g, xr, ld_x, isum);
        UNROLL(4) for (int r = 0; r < R; r++) UNROLL(2) for (int h = 0; h < 2; h++) {
            float *a = acc[r] + 8 * h;
            _mm256_store_ps(a, group_add(_mm256_load_ps(a), s[h], b[h], pair + (size_t)r * ld_pair, isum[r][h]));
        }
    }
    for (int r = 0; r < R; r++)
        store16(y + r * ld_y, w->n - 16 * blk, _mm256_load_ps(acc[r]), _mm256_load_ps(acc[r] + 8));
}

/* The common group sizes become constants of their own loops. */
FORCED void block_q4_any(int n_limb, int R, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x, const uint8_t *xr,
                         float *y, int64_t ld_y)
{
    if (w->dt == DT_BF16 && w->g == 32)
        block_q4_rows(n_limb, R, 32, DT_BF16, w, blk, x, xr, y, ld_y);
    else if (w->dt == DT_BF16 && w->g == 64)
        block_q4_rows(n_limb, R, 64, DT_BF16, w, blk, x, xr, y, ld_y);
    else
        block_q4_rows(n_limb, R, w->g, w->dt, w, blk, x, xr, y, ld_y);
}

/* Two limbs: two rows at a time, for three would need more sums than there are registers. */
FORCED void rows_q4_few(int n_limb, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                        int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    const int64_t r_max = n_limb == 2 ? 2 : 4;
    int64_t n_tile = (m + r_max - 1) / r_max;
    for (int64_t blk = blk0; blk < blk1; blk++)
        for (int64_t i = 0; i < n_tile; i++) { /* about as many rows each */
            int64_t r = m * i / n_tile, n = m * (i + 1) / n_tile - r;
            const uint8_t *xr = x->data + (size_t)(row0 + r) * x->row_bytes;
            float *yr = y + r * ld_y + 16 * (blk - blk0);
            if (n == 4 && n_limb == 1)
                block_q4_any(n_limb, 4, w, blk, x, xr, yr, ld_y);
            else if (n == 3 && n_limb == 1)
                block_q4_any(n_limb, 3, w, blk, x, xr, yr, ld_y);
            else if (n == 2)
                block_q4_any(n_limb, 2, w, blk, x, xr, yr, ld_y);
            else
                block_q4_any(n_limb, 1, w, blk, x, xr, yr, ld_y);
        }
}

void avx2_matmul_q4_few(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                        int64_t m, float *y, int64_t ld_y)
{
    bool two_limbs = x->form == ACT_Q16;
    if (m == 1 && two_limbs)
        row_q4_any(w, blk0, blk1, x, row0, y, true);
    else if (m == 1)
        row_q4_any(w, blk0, blk1, x, row0, y, false);
    else if (two_limbs)
        rows_q4_few(2, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        rows_q4_few(1, w, blk0, blk1, x, row0, m, y, ld_y);
}
