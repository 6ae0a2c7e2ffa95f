/* matmul_f32.c (avx512): float inputs: one fma chain over k per output. Rows go in tiles of 8 by
 * 2 blocks (sixteen chains; each input is loaded once for two products), one row takes eight blocks at once. Affine weights
 * are expanded to float once per (block, group) and 32 rows. */
#include "ops/cpu/avx512/avx512_int.h"

#define TILE_ROWS 32
#define GROUP_MAX 128

FORCED const float *act_row(const struct cpu_act *x, int64_t row)
{
    return (const float *)(x->data + (size_t)row * x->row_bytes);
}

FORCED __m512 elements_load(enum dtype dt, const uint8_t *p)
{
    if (dt == DT_F32) return _mm512_loadu_ps((const float *)p);
    if (dt == DT_F16) return half_load(p);
    return bf16_low(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)));
}

FORCED size_t elements_bytes(enum dtype dt)
{
    return dt == DT_F32 ? 64 : 32;
}

/* B blocks of weights, `step` bytes apart, and n elements of k. */
struct span {
    const uint8_t *p;
    size_t step;
    int64_t n;
};

/* acc[R][B][16] += over the span; x rows ld apart. */
FORCED void rows_float(int R, int B, enum dtype dt, const struct span *w, const float *x, size_t ld, float *acc)
{
    const uint8_t *p = w->p;
    __m512 a[8][2];
    UNROLL(8)
    for (int r = 0; r < R; r++)
        UNROLL(2)
        for (int b = 0; b < B; b++) a[r][b] = _mm512_loadu_ps(acc + 16 * (B * r + b));
    for (int64_t k = 0; k < w->n; k++, p += elements_bytes(dt)) {
        __m512 v[2];
        UNROLL(2)
        for (int b = 0; b < B; b++) v[b] = elements_load(dt, p + (size_t)b * w->step);
        UNROLL(8)
        for (int r = 0; r < R; r++) {
            __m512 q = _mm512_set1_ps(x[(size_t)r * ld + (size_t)k]);
            UNROLL(2)
            for (int b = 0; b < B; b++) a[r][b] = _mm512_fmadd_ps(v[b], q, a[r][b]);
        }
    }
    UNROLL(8)
    for (int r = 0; r < R; r++)
        UNROLL(2)
        for (int b = 0; b < B; b++) _mm512_storeu_ps(acc + 16 * (B * r + b), a[r][b]);
}

FORCED void tile_float(int B, enum dtype dt, const struct span *w, const float *x, size_t ld, int64_t m, float *acc)
{
    for (; m >= 8; m -= 8, x += 8 * ld, acc += 128 * B) rows_float(8, B, dt, w, x, ld, acc);
    switch (m) { /* one pass over the weights, whatever is left */
    case 7: rows_float(7, B, dt, w, x, ld, acc); break;
    case 6: rows_float(6, B, dt, w, x, ld, acc); break;
    case 5: rows_float(5, B, dt, w, x, ld, acc); break;
    case 4: rows_float(4, B, dt, w, x, ld, acc); break;
    case 3: rows_float(3, B, dt, w, x, ld, acc); break;
    case 2: rows_float(2, B, dt, w, x, ld, acc); break;
    case 1: rows_float(1, B, dt, w, x, ld, acc); break;
    default: break;
    }
}

/* n_blocks: 1 or 2. */
FORCED void tile_blocks(int64_t n_blocks, enum dtype dt, const struct span *w, const float *x, size_t ld, int64_t m,
                        float *acc)
{
    if (n_blocks == 2)
        tile_float(2, dt, w, x, ld, m, acc);
    else
        tile_float(1, dt, w, x, ld, m, acc);
}

static void tile_any(int64_t n_blocks, enum dtype dt, const struct span *w, const float *x, size_t ld, int64_t m,
                     float *acc)
{
    if (dt == DT_F32)
        tile_blocks(n_blocks, DT_F32, w, x, ld, m, acc);
    else if (dt == DT_F16)
        tile_blocks(n_blocks, DT_F16, w, x, ld, m, acc);
    else
        tile_blocks(n_blocks, DT_BF16, w, x, ld, m, acc);
}

static void tile_store(int64_t n_blocks, const float *acc, int64_t m, float *y, int64_t ld_y, int64_t n_out)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t b = 0; b < n_blocks; b++)
            store16(y + i * ld_y + 16 * b, n_out - 16 * b, _mm512_loadu_ps(acc + 16 * (n_blocks * i + b)));
}

FORCED void eight_blocks(enum dtype dt, const struct cpu_weight *w, int64_t blk, const float *x, float *y)
{
    const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
    __m512 a[8];
    UNROLL(8)
    for (int j = 0; j < 8; j++) a[j] = _mm512_setzero_ps();
    for (int64_t k = 0; k < w->k; k++, p += elements_bytes(dt)) {
        __m512 q = _mm512_set1_ps(x[k]);
        UNROLL(8)
        for (int j = 0; j < 8; j++) {
            const uint8_t *pj = p + (size_t)j * w->block_bytes;
            if (dt == DT_F32 || k % 2 == 0) _mm_prefetch((const char *)pj + 2048, _MM_HINT_T0); /* once a line */
            a[j] = _mm512_fmadd_ps(elements_load(dt, pj), q, a[j]);
        }
    }
    for (int j = 0; j < 8; j++) store16(y + 16 * j, w->n - 16 * (blk + j), a[j]);
}

static void row_float_eight(const struct cpu_weight *w, int64_t blk, const float *x, float *y)
{
    if (w->dt == DT_F32)
        eight_blocks(DT_F32, w, blk, x, y);
    else if (w->dt == DT_F16)
        eight_blocks(DT_F16, w, blk, x, y);
    else
        eight_blocks(DT_BF16, w, blk, x, y);
}

static void matmul_f_f32_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    int64_t blk = blk0;
    for (; m == 1 && blk + 8 <= blk1; blk += 8) row_float_eight(w, blk, act_row(x, row0), y + 16 * (blk - blk0));
    for (int64_t n_blocks; blk < blk1; blk += n_blocks) {
        n_blocks = blk1 - blk >= 2 ? 2 : 1;
        struct span span = { w->data + (size_t)blk * w->block_bytes, w->block_bytes, w->k };
        for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
            _Alignas(64) float acc[TILE_ROWS * 32] = { 0 };
            int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS;
            tile_any(n_blocks, w->dt, &span, act_row(x, row0 + r0), x->row_bytes / 4, mt, acc);
            tile_store(n_blocks, acc, mt, y + r0 * ld_y + 16 * (blk - blk0), ld_y, w->n - 16 * blk);
        }
    }
}

/* --- affine weights --- */

/* w = fma(code, s, b) of one group as [g][16] floats. */
static void expand_group(const struct cpu_weight *w, const uint8_t *p, float *out)
{
    size_t cb = (size_t)w->g * (w->type == CPU_W_Q4 ? 8 : 16);
    __m512 s, b;
    scales_load(w->dt, p + cb, &s, &b);
    for (int k = 0; k < w->g; k++) {
        __m512i c;
        if (w->type == CPU_W_Q4) {
            c = _mm512_srl_epi32(load_i(p + 64 * (k / 8)), _mm_cvtsi32_si128(4 * (k & 7)));
            c = _mm512_and_si512(c, _mm512_set1_epi32(15));
        } else {
            int vec = 2 * (k / 8) + (k & 1), byte = (k & 7) / 2;
            c = _mm512_srl_epi32(load_i(p + 64 * vec), _mm_cvtsi32_si128(8 * byte));
            c = _mm512_and_si512(c, _mm512_set1_epi32(255));
        }
        _mm512_storeu_ps(out + 16 * k, _mm512_fmadd_ps(_mm512_cvtepi32_ps(c), s, b));
    }
}

static void matmul_affine_f32_avx512(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                                     int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    size_t gb = w->block_bytes / (size_t)(w->k / w->g);
    _Alignas(64) float wf[2][GROUP_MAX * 16];
    for (int64_t blk = blk0, n_blocks; blk < blk1; blk += n_blocks) {
        n_blocks = blk1 - blk >= 2 ? 2 : 1;
        for (int64_t r0 = 0; r0 < m; r0 += TILE_ROWS) {
            _Alignas(64) float acc[TILE_ROWS * 32] = { 0 };
            int64_t mt = m - r0 < TILE_ROWS ? m - r0 : TILE_ROWS;
            const uint8_t *p = w->data + (size_t)blk * w->block_bytes;
            struct span span = { (const uint8_t *)wf, sizeof wf[0], w->g };
            for (int64_t k = 0; k < w->k; k += w->g, p += gb) {
                for (int64_t b = 0; b < n_blocks; b++) expand_group(w, p + (size_t)b * w->block_bytes, wf[b]);
                tile_any(n_blocks, DT_F32, &span, act_row(x, row0 + r0) + k, x->row_bytes / 4, mt, acc);
            }
            tile_store(n_blocks, acc, mt, y + r0 * ld_y + 16 * (blk - blk0), ld_y, w->n - 16 * blk);
        }
    }
}

void avx512_fill_matmul_f32(struct cpu_kernels *t)
{
    t->matmul_q4_f32 = t->matmul_q8_f32 = matmul_affine_f32_avx512;
    t->matmul_f_f32 = matmul_f_f32_avx512;
}
