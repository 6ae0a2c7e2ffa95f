/* quantise.c (portable): float rows to linear inputs. The numbers are those of kernels.h: one scale per group, codes in
 * the byte order 0,2,4,6,1,3,5,7 of each eight, the order in which packed weights unpack. */
#include "ops/cpu/portable/portable_int.h"

static const uint8_t byte_order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };

/* Writes one group; pair receives (a, xs). lo is NULL for ACT_Q8. */
static void quantise_group(const float *v, int g, int8_t *hi, int8_t *lo, float *pair)
{
    float amax = 0.0f;
    bool finite = true;
    for (int i = 0; i < g; i++) {
        float a = fabsf(v[i]);
        finite = finite && a < INFINITY;
        amax = a > amax ? a : amax;
    }
    if (!finite || amax < 1e-30f) {
        for (int i = 0; i < g; i++) hi[i] = 0;
        for (int i = 0; lo && i < g; i++) lo[i] = 0;
        pair[0] = pair[1] = finite ? 0.0f : bits_f32(0x7fc00000u);
        return;
    }
    float inv = (lo ? 32512.0f : 127.0f) / amax;
    float a = amax * (lo ? 1.0f / 32512.0f : 1.0f / 127.0f);
    int32_t sum = 0;
    for (int i = 0; i < g; i++) {
        int j = (i & ~7) + byte_order[i & 7];
        int32_t x = (int32_t)rintf(v[j] * inv);
        sum += x;
        if (lo) {
            lo[i] = (int8_t)(x & 255);
            hi[i] = (int8_t)((x - lo[i]) / 256);
        } else {
            hi[i] = (int8_t)x;
        }
    }
    pair[0] = a;
    pair[1] = a * (float)sum;
}

static void quantise_groups_portable(enum act_form form, int g, int64_t k, int64_t grp0, int64_t grp1, const float *x,
                                     uint8_t *out_row)
{
    int limbs = form == ACT_Q16 ? 2 : 1;
    float *pairs = (float *)(out_row + k * limbs);
    for (int64_t i = grp0; i < grp1; i++) {
        int8_t *hi = (int8_t *)out_row + i * g * limbs;
        quantise_group(x + i * g, g, hi, limbs == 2 ? hi + g : NULL, pairs + 2 * i);
    }
}

static void quantise_rows_portable(enum act_form form, int g, int64_t k, int64_t n_rows, const float *x, int64_t ld_x,
                                   uint8_t *out, size_t row_bytes)
{
    for (int64_t r = 0; r < n_rows; r++) {
        if (form == ACT_F32)
            memcpy(out + (size_t)r * row_bytes, x + r * ld_x, (size_t)k * sizeof(float));
        else
            quantise_groups_portable(form, g, k, 0, k / g, x + r * ld_x, out + (size_t)r * row_bytes);
    }
}

/* A slice of an ACT_F32 row is a copy; groups are then of g elements all the same. */
static void quantise_groups_any(enum act_form form, int g, int64_t k, int64_t grp0, int64_t grp1, const float *x,
                                uint8_t *out_row)
{
    if (form == ACT_F32)
        memcpy(out_row + (size_t)(grp0 * g) * 4, x + grp0 * g, (size_t)((grp1 - grp0) * g) * 4);
    else
        quantise_groups_portable(form, g, k, grp0, grp1, x, out_row);
}

void PORTABLE(portable_fill_quantise)(struct cpu_kernels *t)
{
    t->quantise_rows = quantise_rows_portable;
    t->quantise_groups = quantise_groups_any;
}
