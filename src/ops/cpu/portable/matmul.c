/* matmul.c (portable): linear layers over packed weights, and single rows of them.
 *
 * A block is 16 output rows; the inner loops run over its 16 lanes. Quantised inputs: integers inside a group, then two
 * fma per group, groups in order. ACT_Q16 joins its limbs to one integer first: the sum is exact, so it is the same
 * integer as 256 * sum(hi) + sum(lo). Float inputs: one fma chain over k.
 */
#include "ops/cpu/portable/portable_int.h"

#define GROUP_MAX 128

/* The integers of one group of a row, in stored (byte) order. */
static void act_group(const struct cpu_act *x, const uint8_t *row, int64_t i_group, int32_t *out)
{
    if (x->form == ACT_Q8) {
        const int8_t *c = (const int8_t *)row + i_group * x->g;
        for (int i = 0; i < x->g; i++) out[i] = c[i];
    } else {
        const int8_t *hi = (const int8_t *)row + i_group * x->g * 2, *lo = hi + x->g;
        for (int i = 0; i < x->g; i++) out[i] = hi[i] * 256 + lo[i];
    }
}

/* isum[r] = sum of code * x over one group; codes: the group's vectors of 16 u32. */
static void group_sum_q4(const uint32_t *codes, int g, const int32_t *x, int32_t isum[16])
{
    for (int i = 0; i < g / 8; i++, codes += 16, x += 8)
        for (int j = 0; j < 4; j++)
            for (int r = 0; r < 16; r++)
                isum[r] += (int32_t)((codes[r] >> (8 * j)) & 15) * x[j] +
                           (int32_t)((codes[r] >> (8 * j + 4)) & 15) * x[4 + j];
}

static void group_sum_q8(const uint32_t *codes, int g, const int32_t *x, int32_t isum[16])
{
    for (int i = 0; i < g / 4; i++, codes += 16, x += 4)
        for (int j = 0; j < 4; j++)
            for (int r = 0; r < 16; r++) isum[r] += (int32_t)((codes[r] >> (8 * j)) & 255) * x[j];
}

static size_t group_code_bytes(const struct cpu_weight *w)
{
    return (size_t)w->g * (w->type == CPU_W_Q4 ? 8 : 16);
}

static void block_quantised(const struct cpu_weight *w, const uint8_t *block, const struct cpu_act *x,
                            const uint8_t *row, float acc[16])
{
    const float *pairs = (const float *)(row + (x->form == ACT_Q16 ? 2 : 1) * x->k);
    size_t code_bytes = group_code_bytes(w), sb = scales_bytes(w->dt);
    for (int r = 0; r < 16; r++) acc[r] = 0.0f;
    for (int64_t i = 0; i < w->k / w->g; i++, block += code_bytes + sb) {
        int32_t xi[GROUP_MAX], isum[16] = { 0 };
        float s[16], b[16];
        act_group(x, row, i, xi);
        if (w->type == CPU_W_Q4)
            group_sum_q4((const uint32_t *)block, w->g, xi, isum);
        else
            group_sum_q8((const uint32_t *)block, w->g, xi, isum);
        scales_load(w->dt, block + code_bytes, s, b);
        float a = pairs[2 * i], xs = pairs[2 * i + 1];
        for (int r = 0; r < 16; r++) {
            acc[r] = fmaf(s[r] * a, (float)isum[r], acc[r]);
            acc[r] = fmaf(b[r], xs, acc[r]);
        }
    }
}

/* Code of (lane r, element i of the group). */
static uint32_t code_get(const struct cpu_weight *w, const uint32_t *codes, int i, int r)
{
    if (w->type == CPU_W_Q4) return (codes[(i / 8) * 16 + r] >> (4 * (i % 8))) & 15;
    int vec = 2 * (i / 8) + (i & 1), byte = (i % 8) / 2;
    return (codes[vec * 16 + r] >> (8 * byte)) & 255;
}

static void block_affine_f32(const struct cpu_weight *w, const uint8_t *block, const float *x, float acc[16])
{
    size_t code_bytes = group_code_bytes(w), sb = scales_bytes(w->dt);
    for (int r = 0; r < 16; r++) acc[r] = 0.0f;
    for (int64_t k = 0; k < w->k; k += w->g, block += code_bytes + sb) {
        float s[16], b[16];
        scales_load(w->dt, block + code_bytes, s, b);
        for (int i = 0; i < w->g; i++)
            for (int r = 0; r < 16; r++) {
                float wt = fmaf((float)code_get(w, (const uint32_t *)block, i, r), s[r], b[r]);
                acc[r] = fmaf(wt, x[k + i], acc[r]);
            }
    }
}

static float element_get(enum dtype dt, const uint8_t *p, int64_t i)
{
    float f;
    uint16_t h;
    if (dt == DT_F32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    return dt == DT_F16 ? half_f32(h) : bf16_f32(h);
}

static void block_float(const struct cpu_weight *w, const uint8_t *block, const float *x, float acc[16])
{
    for (int r = 0; r < 16; r++) acc[r] = 0.0f;
    for (int64_t k = 0; k < w->k; k++)
        for (int r = 0; r < 16; r++) acc[r] = fmaf(element_get(w->dt, block, k * 16 + r), x[k], acc[r]);
}

/* All seven matmuls: the kinds of weight and input are in their structs. */
static void matmul_portable(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                            int64_t row0, int64_t m, float *y, int64_t ld_y)
{
    for (int64_t b = blk0; b < blk1; b++) {
        const uint8_t *block = w->data + (size_t)b * w->block_bytes;
        int64_t left = w->n - 16 * b, n_out = left < 16 ? left : 16;
        for (int64_t i = 0; i < m; i++) {
            const uint8_t *row = x->data + (size_t)(row0 + i) * x->row_bytes;
            float acc[16];
            if (w->type == CPU_W_F)
                block_float(w, block, (const float *)row, acc);
            else if (x->form == ACT_F32)
                block_affine_f32(w, block, (const float *)row, acc);
            else
                block_quantised(w, block, x, row, acc);
            for (int64_t r = 0; r < n_out; r++) y[i * ld_y + 16 * (b - blk0) + r] = acc[r];
        }
    }
}

static void gather_row_portable(const struct cpu_weight *w, int64_t id, float *out)
{
    const uint8_t *block = w->data + (size_t)(id / 16) * w->block_bytes;
    int r = (int)(id % 16);
    if (w->type == CPU_W_F) {
        for (int64_t k = 0; k < w->k; k++) out[k] = element_get(w->dt, block, k * 16 + r);
        return;
    }
    size_t code_bytes = group_code_bytes(w), sb = scales_bytes(w->dt);
    for (int64_t k = 0; k < w->k; k += w->g, block += code_bytes + sb) {
        float s[16], b[16];
        scales_load(w->dt, block + code_bytes, s, b);
        for (int i = 0; i < w->g; i++)
            out[k + i] = fmaf((float)code_get(w, (const uint32_t *)block, i, r), s[r], b[r]);
    }
}

void PORTABLE(portable_fill_matmul)(struct cpu_kernels *t)
{
    t->matmul_q4_q8 = t->matmul_q4_q16 = t->matmul_q8_q8 = t->matmul_q8_q16 = matmul_portable;
    t->matmul_q4_f32 = t->matmul_q8_f32 = t->matmul_f_f32 = matmul_portable;
    t->gather_row = gather_row_portable;
}
