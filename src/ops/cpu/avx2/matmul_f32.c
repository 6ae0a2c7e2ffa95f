/* matmul_f32.c (avx2): float inputs: one fma chain over k per output (--tier f32, float weights, training). Rows go in
 * tiles of 6; a single row takes four blocks at once, so that eight chains hide the latency of fma. Affine weights are
 * expanded to float once per (block, group) and 24 rows. */
#include "ops/cpu/avx2/avx2_int.h"

#define TILE_ROWS 24
#define GROUP_MAX 128

FORCED const float *act_row(const struct cpu_act *x, int64_t row)
{
    return (const float *)(x->data + (size_t)row * x->row_bytes);
}

/* 16 elements at p, as float. bf16: put above zeros by unpacking; the quarters are swapped first, so that order stays. */
FORCED void elements_load(enum dtype dt, const uint8_t *p, __m256 v[2])
{
    if (dt == DT_BF16) {
        __m256i zero = _mm256_setzero_si256(), e = _mm256_permute4x64_epi64(load_i(p), 0xd8);
        v[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, e));
        v[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, e));
        return;
    }
    for (int h = 0; h < 2; h++) {
        if (dt == DT_F32)
            v[h] = _mm256_loadu_ps((const float *)(p + 32 * h));
        else
            v[h] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16 * h)));
    }
}

FORCED size_t elements_bytes(enum dtype dt)
{
    return dt == DT_F32 ? 64 : 32;
}

/* acc[R][16] += over n elements of k: w at p (dt), x rows ld apart. */
FORCED void rows_float(int R, enum dtype dt, const uint8_t *p, int64_t n, const float *x, size_t ld, float *acc)
{
    __m256 a[6][2];
    UNROLL(6)
    for (int r = 0; r < R; r++) {
        a[r][0] = _mm256_load_ps(acc + 16 * r);
        a[r][1] = _mm256_load_ps(acc + 16 * r + 8);
    }
    for (int64_t k = 0; k < n; k++, p += elements_bytes(dt)) {
        __m256 v[2];
        elements_load(dt, p, v);
        UNROLL(6)
        for (int r = 0; r < R; r++) {
            __m256 q = _mm256_broadcast_ss(x + (size_t)r * ld + k);
            a[r][0] = _mm256_fmadd_ps(v[0], q, a[r][0]);
            a[r][1] = _mm256_fmadd_ps(v[1], q, a[r][1]);
        }
    }
    UNROLL(6)
    for (int r = 0; r < R; r++) {
        _mm256_store_ps(acc + 16 * r, a[r][0]);
        _mm256_store_ps(acc + 16 * r + 8, a[r][1]);
    }
}

FORCED void tile_float(enum dtype dt, const uint8_t *p, int64_t n, const float *x, size_t ld, int64_t m, float *acc)
{
    for (; m >= 6; m -= 6, x += 6 * ld, acc += 96) rows_float(6, dt, p, n, x, ld, acc);
    switch (m) { /* one pass over the weights, whatever is left */
    case 5: rows_float(5, dt, p, n, x, ld, acc); break;
    case 4: rows_float(4, dt, p, n, x, ld, acc); break;
    case 3: rows_float(3, dt, p, n, x, ld, acc); break;
    case 2: rows_float(2, dt, p, n, x, ld, acc); break;
    case 1: rows_float(1, dt, p, n, x, ld, acc); break;
    default: break;
    }
}

static void tile_f32(const uint8_t *p, int64_t n, const float *x, size_t ld, int64_t m, float *acc)
{
    tile_float(DT_F32, p, n, x, ld, m, acc);
}

static void tile_any(enum dtype dt, const uint8_t *p, int64_t n, const float *x, size_t ld, int64_t m, float *acc)
{
    if (dt == DT_F32)
        tile_f32(p, n, x, ld, m, acc);
    else if (dt == DT_F16)
        tile_float(DT_F16, p, n, x, ld, m, acc);
    else
        tile_float(DT_BF16, p, n, x, ld, m, acc);
}

static void tile_store(const float *acc, int64_t m, float *y, int64_t ld_y, int64_t n_out)
{
    for (int64_t i = 0; i < m; i++)
        store16(y + i * ld_y, n_out, _mm256_load_ps(acc + 16 * i), _mm256_load_ps(acc + 16 * i + 8));
}

/* One row, four blocks. */
FORCED void four_blocks(enum dtype dt, const struct cpu_weight *w, int64_t blk, const float *x, float *y)
{
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
    __m256 a[4][2];
    UNROLL(4)
    for (int j = 0; j < 4; j++) a[j][0] = a[j][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < w->k; k++, p += elements_bytes(dt)) {
        __m256 q = _mm256_broadcast_ss(x + k);
        UNROLL(4)
        for (int j = 0; j < 4; j++) {
            __m256 v[2];
            const uint8_t *pj = p + (size_t)j * w->block_bytes;
            if (dt == DT_F32 || k % 2 == 0) _mm_prefetch((const char *)pj + 2048, _MM_HINT_T0); /* once a line */
            elements_load(dt, pj, v);
            a[j][0] = _mm256_fmadd_ps(v[0], q, a[j][0]);
            a[j][1] = _mm256_fmadd_ps(v[1], q, a[j][1]);
        }
    }
    for (int j = 0; j < 4; j++) store16(y + 16 * j, w->n - 16 * (blk + j), a[j][0], a[j][1]);
}

static void row_float_four(const struct cpu_weight *w, int64_t blk, const float *x, float *y)
{
    if (w->dt == DT_F32)
        four_blocks(DT_F32, w, blk, x, y);
    else if (w->dt == DT_F16)
        four_blocks(DT_F16, w, blk, x, y);
    else
        four_blocks(DT_BF16, w, blk, x, y);
}

static void matmul_f_f32_avx2(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    int64_t first = blk0;
    for (; m == 1 && blk0 + 4 <= blk1; blk0 += 4) row_float_four(w, blk0, act_row(x, row0), y + 16 * (blk0 - first));
    for (int64_t blk = blk0; blk < blk1; blk++)
        for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
            _Alignas(64) float acc[TILE_ROWS * 16] = { 0 };
            int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS;
            tile_any(w->dt, w->data + (size_t)blk * w->block_bytes, w->k, act_row(x, row0 + r0), x->row_bytes / 4, mt,
                     acc);
            tile_store(acc, mt, y + r0 * ld_y + 16 * (blk - first), ld_y, w->n - 16 * blk);
        }
}

/* --- affine weights --- */

/* w = fma(code, s, b) of one group as [g][16] floats. */
static void expand_group(const struct cpu_weight *w, const uint8_t *p, float *out)
{
    size_t cb = (size_t)w->g * (w->type == CPU_W_Q4 ? 8 : 16);
    __m256 s[2], b[2];
    scales_load(w->dt, p + cb, s, b);
    for (int k = 0; k < w->g; k++)
        for (int h = 0; h < 2; h++) {
            __m256i c;
            if (w->type == CPU_W_Q4) {
                c = _mm256_srl_epi32(load_i(p + 64 * (k / 8) + 32 * h), _mm_cvtsi32_si128(4 * (k & 7)));
                c = _mm256_and_si256(c, _mm256_set1_epi32(15));
            } else {
                int vec = 2 * (k / 8) + (k & 1), byte = (k & 7) / 2;
                c = _mm256_srl_epi32(load_i(p + 64 * vec + 32 * h), _mm_cvtsi32_si128(8 * byte));
                c = _mm256_and_si256(c, _mm256_set1_epi32(255));
            }
            _mm256_store_ps(out + 16 * k + 8 * h, _mm256_fmadd_ps(_mm256_cvtepi32_ps(c), s[h], b[h]));
        }
}

static void matmul_affine_f32_avx2(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                   int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    size_t gb = w->block_bytes / (size_t)(w->k / w->g);
    for (int64_t blk = blk0; blk < blk1; blk++)
        for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
            _Alignas(64) float acc[TILE_ROWS * 16] = { 0 };
            _Alignas(64) float wf[GROUP_MAX * 16];
            int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS;
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
            for (int64_t k = 0; k < w->k; k += w->g, p += gb) {
                expand_group(w, p, wf);
                tile_f32((const uint8_t *)wf, w->g, act_row(x, row0 + r0) + k, x->row_bytes / 4, mt, acc);
            }
            tile_store(acc, mt, y + r0 * ld_y + 16 * (blk - blk0), ld_y, w->n - 16 * blk);
        }
}

void avx2_fill_matmul_f32(struct cpu_kernels *t)
{
    t->matmul_q4_f32 = t->matmul_q8_f32 = matmul_affine_f32_avx2;
    t->matmul_f_f32 = matmul_f_f32_avx2;
}
