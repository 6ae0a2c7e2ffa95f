/* matmul.c (avx2): quantised weights times quantised inputs.
 *
 * Two ways to the exact group sum:
 *   maddubs  4-bit codes (u8, 0..15) times int8: a pair sum is at most 2*15*128, eight of them fit int16, so one widening
 *            per 32 k. Used for q4 x q8; few rows of 4-bit weights are in matmul_few.c.
 *   maddwd   codes and inputs widened to int16: pair sums go to int32 at once. Used for everything else; inputs are
 *            widened into a buffer on the stack first (x16), codes on the fly (one row) or once per 32 rows.
 * x16: the int16 values of each four stored bytes p0 p1 p2 p3 in the order p0 p2 p1 p3, which is how
 * v & 0x00ff00ff and v >> 8 (8 bit), or (v >> 4t) & 0x000f000f for t = 0, 2, 1, 3 (4 bit) pair up codes.
 * Many rows: tiles of 32; per (block, group) the codes are expanded once into L1, then rows go in fours. Float
 * accumulators of a tile live in a small array between groups. k goes in chunks of the x16 buffer; between chunks the
 * accumulators rest in y, so the chain of each output stays in order of k.
 */
#include "ops/cpu/avx2/matmul_int.h"

#define TILE_ROWS 32
#define CHUNK_K 512   /* many rows: 32 * 512 * 2 = 32 KB of x16 */
#define CHUNK_K1 8192  /* one row */
#define LD_X16 (CHUNK_K + 32) /* rows a power of two apart would share cache sets */

/* --- x16 --- */

/* Stored bytes of groups [grp0, grp1) of one row to x16. */
static void x16_make(const struct cpu_act *x, const uint8_t *row, int64_t grp0, int64_t grp1, int16_t *out)
{
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    int g = x->g;
    for (int64_t i = grp0; i < grp1; i++) {
        const uint8_t *hi = row + (size_t)i * (size_t)g * (x->form == ACT_Q16 ? 2 : 1), *lo = hi + g;
        for (int j = 0; j < g; j += 16, out += 16) {
            __m128i b = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(hi + j)), order);
            __m256i v = _mm256_cvtepi8_epi16(b);
            if (x->form == ACT_Q16) {
                __m128i c = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(lo + j)), order);
                v = _mm256_add_epi16(_mm256_slli_epi16(v, 8), _mm256_cvtepi8_epi16(c));
            }
            _mm256_storeu_si256((__m256i *)out, v);
        }
    }
}

/* --- one row, 8-bit codes by maddwd --- */

FORCED void group_q8_row(const uint8_t *p, int g, const int16_t *x16, __m256i isum[2])
{
    const __m256i m = _mm256_set1_epi16(255);
    __m256i a[2] = { _mm256_setzero_si256(), _mm256_setzero_si256() }, b[2] = { a[0], a[0] };
    for (int i = 0; i < g / 4; i++) {
        _mm_prefetch((const char *)p + PREFETCH_AHEAD + 64 * i, _MM_HINT_T0);
        for (int h = 0; h < 2; h++) {
            __m256i v = load_i(p + 64 * i + 32 * h);
            a[h] = _mm256_add_epi32(a[h], _mm256_madd_epi16(_mm256_and_si256(v, m), bcast_dword(x16 + 4 * i)));
            b[h] = _mm256_add_epi32(b[h], _mm256_madd_epi16(_mm256_srli_epi16(v, 8), bcast_dword(x16 + 4 * i + 2)));
            in_place(&a[h]);
            in_place(&b[h]);
        }
    }
    for (int h = 0; h < 2; h++) isum[h] = _mm256_add_epi32(a[h], b[h]);
}

FORCED void acc_load(const float *y, int64_t n_out, bool first, __m256 acc[2])
{
    float t[16] = { 0 };
    if (!first && n_out >= 16) {
        acc[0] = _mm256_loadu_ps(y);
        acc[1] = _mm256_loadu_ps(y + 8);
        return;
    }
    for (int64_t r = 0; r < n_out && r < 16 && !first; r++) t[r] = y[r];
    acc[0] = _mm256_loadu_ps(t);
    acc[1] = _mm256_loadu_ps(t + 8);
}

static void row_q8(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row,
                   float *y)
{
    _Alignas(64) int16_t x16[CHUNK_K1];
    const uint8_t *xr = x->data + (size_t)row * x->row_bytes;
    int g = w->g;
    int64_t ng = w->k / g, step = CHUNK_K1 / g;
    size_t cb = code_bytes(CPU_W_Q8, g), gb = cb + scales_bytes(w->dt);
    for (int64_t g0 = 0; g0 < ng; g0 += step) {
        int64_t g1 = g0 + step < ng ? g0 + step : ng;
        x16_make(x, xr, g0, g1, x16);
        for (int64_t blk = blk0; blk < blk1; blk++) {
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes + (size_t)g0 * gb;
            const float *pair = act_pairs(x, xr) + 2 * g0;
            float *yb = y + 16 * (blk - blk0);
            __m256 acc[2];
            acc_load(yb, w->n - 16 * blk, g0 == 0, acc);
            for (int64_t i = 0; i < g1 - g0; i++, p += gb, pair += 2) {
                __m256i isum[2];
                __m256 s[2], b[2];
                group_q8_row(p, g, x16 + i * g, isum);
                scales_load(w->dt, p + cb, s, b);
                for (int h = 0; h < 2; h++) acc[h] = group_add(acc[h], s[h], b[h], pair, isum[h]);
            }
            store16(yb, w->n - 16 * blk, acc[0], acc[1]);
        }
    }
}

/* --- many rows: codes expanded once per (block, group) --- */

/* 8-bit vectors for maddubs: [g/4] pairs of halves. */
FORCED void expand_q4_bytes(const uint8_t *p, int g, uint8_t *out)
{
    const __m256i m0f = _mm256_set1_epi8(15);
    for (int i = 0; i < g / 8; i++)
        for (int h = 0; h < 2; h++) {
            __m256i v = load_i(p + 64 * i + 32 * h);
            _mm256_store_si256((__m256i *)(out + 128 * i + 32 * h), _mm256_and_si256(v, m0f));
            _mm256_store_si256((__m256i *)(out + 128 * i + 64 + 32 * h),
                               _mm256_and_si256(_mm256_srli_epi32(v, 4), m0f));
        }
}

/* 16-bit vectors for maddwd: [g/2] pairs of halves. */
FORCED void expand_words(enum cpu_wtype type, const uint8_t *p, int g, uint8_t *out)
{
    if (type == CPU_W_Q4) {
        const __m256i m = _mm256_set1_epi16(15);
        for (int i = 0; i < g / 8; i++)
            for (int h = 0; h < 2; h++) {
                __m256i v = load_i(p + 64 * i + 32 * h);
                __m256i *o = (__m256i *)(out + 256 * i + 32 * h);
                _mm256_store_si256(o, _mm256_and_si256(v, m));
                _mm256_store_si256(o + 2, _mm256_and_si256(_mm256_srli_epi16(v, 8), m));
                _mm256_store_si256(o + 4, _mm256_and_si256(_mm256_srli_epi16(v, 4), m));
                _mm256_store_si256(o + 6, _mm256_srli_epi16(v, 12));
            }
        return;
    }
    const __m256i m = _mm256_set1_epi16(255);
    for (int i = 0; i < g / 4; i++)
        for (int h = 0; h < 2; h++) {
            __m256i v = load_i(p + 64 * i + 32 * h);
            _mm256_store_si256((__m256i *)(out + 128 * i + 32 * h), _mm256_and_si256(v, m));
            _mm256_store_si256((__m256i *)(out + 128 * i + 64 + 32 * h), _mm256_srli_epi16(v, 8));
        }
}

/* R rows of one group: x[r] stored bytes (maddubs). acc: [R][16] floats. */
FORCED void rows_bytes(int R, const uint8_t *codes, int g, const uint8_t *x, size_t ld_x, const float *pair,
                       size_t ld_pair, const __m256 s[2], const __m256 b[2], float *acc)
{
    __m256i isum[4][2];
    for (int r = 0; r < R; r++) isum[r][0] = isum[r][1] = _mm256_setzero_si256();
    for (int c = 0; c < g; c += 32) {
        __m256i s16[4][2];
        for (int r = 0; r < R; r++) s16[r][0] = s16[r][1] = _mm256_setzero_si256();
        UNROLL(8)
        for (int i = 0; i < 8; i++) {
            __m256i c0 = load_i(codes + 16 * c + 64 * i), c1 = load_i(codes + 16 * c + 64 * i + 32);
            UNROLL(4)
            for (int r = 0; r < R; r++) {
                __m256i q = bcast_dword(x + (size_t)r * ld_x + c + 4 * i);
                s16[r][0] = _mm256_add_epi16(s16[r][0], _mm256_maddubs_epi16(c0, q));
                s16[r][1] = _mm256_add_epi16(s16[r][1], _mm256_maddubs_epi16(c1, q));
                in_place(&s16[r][0]);
                in_place(&s16[r][1]);
            }
        }
        UNROLL(4)
        for (int r = 0; r < R; r++)
            for (int h = 0; h < 2; h++) isum[r][h] = _mm256_add_epi32(isum[r][h], widen_sum(s16[r][h]));
    }
    UNROLL(4)
    for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) {
            float *a = acc + 16 * r + 8 * h;
            _mm256_store_ps(a, group_add(_mm256_load_ps(a), s[h], b[h], pair + (size_t)r * ld_pair, isum[r][h]));
        }
}

/* The same from x16 (maddwd). */
FORCED void rows_words(int R, const uint8_t *codes, int g, const int16_t *x, size_t ld_x, const float *pair,
                       size_t ld_pair, const __m256 s[2], const __m256 b[2], float *acc)
{
    __m256i isum[4][2];
    for (int r = 0; r < R; r++) isum[r][0] = isum[r][1] = _mm256_setzero_si256();
    for (int i = 0; i < g / 2; i += 4) {
        UNROLL(4)
        for (int u = 0; u < 4; u++) {
            __m256i c0 = load_i(codes + 64 * (i + u)), c1 = load_i(codes + 64 * (i + u) + 32);
            UNROLL(4)
            for (int r = 0; r < R; r++) {
                __m256i q = bcast_dword(x + (size_t)r * ld_x + 2 * (i + u));
                isum[r][0] = _mm256_add_epi32(isum[r][0], _mm256_madd_epi16(c0, q));
                isum[r][1] = _mm256_add_epi32(isum[r][1], _mm256_madd_epi16(c1, q));
                in_place(&isum[r][0]);
                in_place(&isum[r][1]);
            }
        }
    }
    UNROLL(4)
    for (int r = 0; r < R; r++)
        for (int h = 0; h < 2; h++) {
            float *a = acc + 16 * r + 8 * h;
            _mm256_store_ps(a, group_add(_mm256_load_ps(a), s[h], b[h], pair + (size_t)r * ld_pair, isum[r][h]));
        }
}

static void tile_bytes(int64_t m, const uint8_t *codes, int g, const uint8_t *x, size_t ld_x, const float *pair,
                       size_t ld_pair, const __m256 s[2], const __m256 b[2], float *acc)
{
    for (; m >= 4; m -= 4, x += 4 * ld_x, pair += 4 * ld_pair, acc += 64)
        rows_bytes(4, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 3) rows_bytes(3, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 2) rows_bytes(2, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 1) rows_bytes(1, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
}

static void tile_words(int64_t m, const uint8_t *codes, int g, const int16_t *x, size_t ld_x, const float *pair,
                       size_t ld_pair, const __m256 s[2], const __m256 b[2], float *acc)
{
    for (; m >= 4; m -= 4, x += 4 * ld_x, pair += 4 * ld_pair, acc += 64)
        rows_words(4, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 3) rows_words(3, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 2) rows_words(2, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
    if (m == 1) rows_words(1, codes, g, x, ld_x, pair, ld_pair, s, b, acc);
}

FORCED void tile_store(const float *acc, int64_t m, float *y, int64_t ld_y, int64_t n_out)
{
    for (int64_t i = 0; i < m; i++)
        store16(y + i * ld_y, n_out, _mm256_load_ps(acc + 16 * i), _mm256_load_ps(acc + 16 * i + 8));
}

static void matmul_q4_q8_avx2(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m <= FEW_ROWS) {
        avx2_matmul_q4_few(w, blk0, blk1, x, row0, m, y, ld_y);
        return;
    }
    int g = w->g;
    size_t cb = code_bytes(CPU_W_Q4, g), gb = cb + scales_bytes(w->dt), ld_pair = x->row_bytes / 4;
    for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
        int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS;
        const uint8_t *xr = x->data + (size_t)(row0 + r0) * x->row_bytes;
        for (int64_t blk = blk0; blk < blk1; blk++) {
            _Alignas(64) float acc[TILE_ROWS * 16] = { 0 };
            _Alignas(64) uint8_t codes[GROUP_MAX * 16];
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
            const float *pair = act_pairs(x, xr);
            for (int64_t i = 0; i < w->k / g; i++, p += gb, pair += 2) {
                __m256 s[2], b[2];
                expand_q4_bytes(p, g, codes);
                scales_load(w->dt, p + cb, s, b);
                tile_bytes(mt, codes, g, xr + i * g, x->row_bytes, pair, ld_pair, s, b, acc);
            }
            tile_store(acc, mt, y + r0 * ld_y + 16 * (blk - blk0), ld_y, w->n - 16 * blk);
        }
    }
}

/* A tile of rows over one chunk of groups by maddwd. */
static void chunk_words(const struct cpu_weight *w, int64_t blk, const struct cpu_act *x, const uint8_t *xr, int64_t g0,
                        int64_t g1, int64_t mt, const int16_t *x16, float *y, int64_t ld_y)
{
    _Alignas(64) float acc[TILE_ROWS * 16];
    _Alignas(64) uint8_t codes[GROUP_MAX * 32];
    int g = w->g;
    size_t cb = code_bytes(w->type, g), gb = cb + scales_bytes(w->dt);
    int64_t n_out = w->n - 16 * blk;
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes + (size_t)g0 * gb;
    const float *pair = act_pairs(x, xr) + 2 * g0;
    for (int64_t i = 0; i < mt; i++) {
        __m256 a[2];
        acc_load(y + i * ld_y, n_out, g0 == 0, a);
        _mm256_store_ps(acc + 16 * i, a[0]);
        _mm256_store_ps(acc + 16 * i + 8, a[1]);
    }
    for (int64_t i = 0; i < g1 - g0; i++, p += gb, pair += 2) {
        __m256 s[2], b[2];
        expand_words(w->type, p, g, codes);
        scales_load(w->dt, p + cb, s, b);
        tile_words(mt, codes, g, x16 + i * g, LD_X16, pair, x->row_bytes / 4, s, b, acc);
    }
    tile_store(acc, mt, y, ld_y, n_out);
}

static void matmul_words(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                         int64_t m, float *y, int64_t ld_y)
{
    _Alignas(64) int16_t x16[TILE_ROWS * LD_X16];
    int64_t ng = w->k / w->g, step = CHUNK_K / w->g;
    for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
        int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS;
        const uint8_t *xr = x->data + (size_t)(row0 + r0) * x->row_bytes;
        for (int64_t g0 = 0; g0 < ng; g0 += step) {
            int64_t g1 = g0 + step < ng ? g0 + step : ng;
            for (int64_t i = 0; i < mt; i++)
                x16_make(x, xr + (size_t)i * x->row_bytes, g0, g1, x16 + i * LD_X16);
            for (int64_t blk = blk0; blk < blk1; blk++)
                chunk_words(w, blk, x, xr, g0, g1, mt, x16, y + r0 * ld_y + 16 * (blk - blk0), ld_y);
        }
    }
}

static void matmul_q4_q16_avx2(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                               int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m <= FEW_ROWS)
        avx2_matmul_q4_few(w, blk0, blk1, x, row0, m, y, ld_y);
    else
        matmul_words(w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q8_avx2(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    if (m == 1)
        row_q8(w, blk0, blk1, x, row0, y);
    else
        matmul_words(w, blk0, blk1, x, row0, m, y, ld_y);
}

static void matmul_q8_q16_avx2(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                               int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    matmul_q8_q8_avx2(w, blk0, blk1, x, row0, m, y, ld_y); /* the widened input hides the difference */
}

void avx2_fill_matmul(struct cpu_kernels *t)
{
    t->matmul_q4_q8 = matmul_q4_q8_avx2;
    t->matmul_q4_q16 = matmul_q4_q16_avx2;
    t->matmul_q8_q8 = matmul_q8_q8_avx2;
    t->matmul_q8_q16 = matmul_q8_q16_avx2;
}
