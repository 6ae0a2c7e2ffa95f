/* matmul_few.c (avx2): up to FEW_ROWS rows times 4-bit weights by maddubs, limb by limb, codes unpacked in registers: u8 codes
 * (0..15) times int8, a pair sum is at most 2*15*128, eight of them fit int16, so one widening per 32 k. One row: one stream,
 * two registers of 8 outputs; more: four rows at a time over one half of a block, float accumulators in L1. */
#include "ops/cpu/avx2/matmul_int.h"

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
            _mm_prefetch((const char *)p + PREFETCH_AHEAD + 64 * i, _MM_HINT_T0);
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

FORCED void row_q4(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row,
                   float *y, bool two_limbs, int g, enum dtype dt)
{
    const uint8_t *xr = x->data + (size_t)row * x->row_bytes;
    size_t limbs = two_limbs ? 2 : 1, cb = code_bytes(CPU_W_Q4, g), gb = cb + scales_bytes(dt);
    for (int64_t blk = blk0; blk < blk1; blk++) {
        const uint8_t *p = w->data + (size_t)blk * w->block_bytes, *xp = xr;
        const float *pair = act_pairs(x, xr);
        __m256 acc[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
        for (int64_t i = 0; i < w->k / g; i++, p += gb, xp += limbs * (size_t)g, pair += 2) {
            __m256i isum[2];
            __m256 s[2], b[2];
            group_q4_row(p, g, xp, two_limbs, isum);
            _mm_prefetch((const char *)p + PREFETCH_AHEAD + cb, _MM_HINT_T0);
            scales_load(dt, p + cb, s, b);
            for (int h = 0; h < 2; h++) acc[h] = group_add(acc[h], s[h], b[h], pair, isum[h]);
        }
        store16(y + 16 * (blk - blk0), w->n - 16 * blk, acc[0], acc[1]);
    }
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

/* isum[r] of one group and one half of a block, R rows. */
FORCED void group_q4_rows(bool two_limbs, int R, const uint8_t *p, int g, const uint8_t *x, size_t ld_x, __m256i isum[4])
{
    const __m256i m0f = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1), high = _mm256_set1_epi16(256);
    UNROLL(4)
    for (int r = 0; r < R; r++) isum[r] = _mm256_setzero_si256();
    for (int c = 0; c < g; c += 32) { /* eight products per int16 lane */
        __m256i h16[4], l16[4];
        UNROLL(4)
        for (int r = 0; r < R; r++) h16[r] = l16[r] = _mm256_setzero_si256();
        UNROLL(4)
        for (int i = c / 8; i < c / 8 + 4; i++) {
            __m256i v = load_i(p + 64 * i), even = _mm256_and_si256(v, m0f),
                    odd = _mm256_and_si256(_mm256_srli_epi32(v, 4), m0f);
            UNROLL(4)
            for (int r = 0; r < R; r++) {
                const uint8_t *q = x + (size_t)r * ld_x + 8 * i;
                h16[r] = _mm256_add_epi16(h16[r], _mm256_maddubs_epi16(even, bcast_dword(q)));
                in_place(&h16[r]);
                h16[r] = _mm256_add_epi16(h16[r], _mm256_maddubs_epi16(odd, bcast_dword(q + 4)));
                in_place(&h16[r]);
                if (!two_limbs) continue;
                l16[r] = _mm256_add_epi16(l16[r], _mm256_maddubs_epi16(even, bcast_dword(q + g)));
                in_place(&l16[r]);
                l16[r] = _mm256_add_epi16(l16[r], _mm256_maddubs_epi16(odd, bcast_dword(q + g + 4)));
                in_place(&l16[r]);
            }
        }
        UNROLL(4)
        for (int r = 0; r < R; r++) {
            isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(h16[r], two_limbs ? high : ones));
            if (two_limbs) isum[r] = _mm256_add_epi32(isum[r], _mm256_madd_epi16(l16[r], ones));
        }
    }
}

/* R rows of one block. */
FORCED void block_q4_rows(bool two_limbs, int R, const struct cpu_weight *w, int64_t blk, const struct cpu_act *x,
                          const uint8_t *xr, float *y, int64_t ld_y)
{
    int g = w->g;
    size_t cb = code_bytes(CPU_W_Q4, g), gb = cb + scales_bytes(w->dt), xb = (size_t)g * (two_limbs ? 2 : 1);
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
    const float *pair = act_pairs(x, xr);
    size_t ld_pair = x->row_bytes / 4;
    _Alignas(32) float acc[4][16] = { { 0 } };
    for (int64_t i = 0; i < w->k / g; i++, p += gb, xr += xb, pair += 2) {
        __m256 s[2], b[2];
        scales_load(w->dt, p + cb, s, b);
        for (size_t j = 0; j < gb; j += 64) _mm_prefetch((const char *)p + PREFETCH_AHEAD + j, _MM_HINT_T0);
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
            __m256i isum[4];
            group_q4_rows(two_limbs, R, p + 32 * h, g, xr, x->row_bytes, isum);
            UNROLL(4)
            for (int r = 0; r < R; r++) {
                float *a = acc[r] + 8 * h;
                _mm256_store_ps(a, group_add(_mm256_load_ps(a), s[h], b[h], pair + (size_t)r * ld_pair, isum[r]));
            }
        }
    }
    for (int r = 0; r < R; r++)
        store16(y + r * ld_y, w->n - 16 * blk, _mm256_load_ps(acc[r]), _mm256_load_ps(acc[r] + 8));
}

FORCED void rows_q4_few(bool two_limbs, const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                        int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    for (int64_t blk = blk0; blk < blk1; blk++)
        for (int64_t r = 0, n; r < m; r += n) {
            const uint8_t *xr = x->data + (size_t)(row0 + r) * x->row_bytes;
            float *yr = y + r * ld_y + 16 * (blk - blk0);
            n = m - r > 4 ? (m - r + 1) / 2 : m - r; /* 5 .. 8 rows: two halves */
            if (n > 4) n = 4;
            if (n == 4)
                block_q4_rows(two_limbs, 4, w, blk, x, xr, yr, ld_y);
            else if (n == 3)
                block_q4_rows(two_limbs, 3, w, blk, x, xr, yr, ld_y);
            else if (n == 2)
                block_q4_rows(two_limbs, 2, w, blk, x, xr, yr, ld_y);
            else
                block_q4_rows(two_limbs, 1, w, blk, x, xr, yr, ld_y);
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
        rows_q4_few(true, w, blk0, blk1, x, row0, m, y, ld_y);
    else
        rows_q4_few(false, w, blk0, blk1, x, row0, m, y, ld_y);
}
