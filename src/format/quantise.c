/* quantise.c: see quantise.h. The arithmetic of one group and the packing of its codes. */
#include "format/quantise.h"

#include <math.h>

#define GROUP_MAX 128
#define RINT_MAGIC 0x1.8p23f /* |x| < 2^22: x + magic - magic is rint(x), without a call */

/* What rounding makes of x. x is at most twice the number of codes here, see group_fit. */
static inline float rint_small(float x)
{
    return (x + RINT_MAGIC) - RINT_MAGIC;
}

static void group_range(const float *w, int n, float *lo, float *hi)
{
    float a = w[0], b = w[0];
    for (int i = 1; i < n; i++) {
        a = w[i] < a ? w[i] : a;
        b = w[i] > b ? w[i] : b;
    }
    *lo = a;
    *hi = b;
}

/* |w - bias| / scale stays below 2 n + 1: the scale differs from (max - min) / n by at most a half in q0. */
static void group_fit(const float *w, int n, float n_bins, float *scale, float *bias)
{
    float lo, hi;
    group_range(w, n, &lo, &hi);
    bool low_edge = fabsf(lo) > fabsf(hi);
    float s = (hi - lo) / n_bins, edge = low_edge ? lo : hi;
    s = s > 1e-7f ? s : 1e-7f;
    if (!low_edge) s = -s;
    float q0 = rintf(edge / s);
    *scale = q0 != 0 ? edge / q0 : s;
    *bias = q0 != 0 ? edge : 0;
}

static void group_codes(const float *w, int n, float n_bins, float scale, float bias, uint8_t *code)
{
    for (int i = 0; i < n; i++) {
        float c = rint_small((w[i] - bias) / scale);
        c = c > 0 ? c : 0;
        code[i] = (uint8_t)(c < n_bins ? c : n_bins);
    }
}

/* Eight codes are `bits` bytes, least significant first. */
static void codes_pack(const uint8_t *code, int n, int bits, uint8_t *out)
{
    for (int i = 0; i < n; i += 8, out += bits) {
        uint64_t word = 0;
        for (int k = 0; k < 8; k++) word |= (uint64_t)code[i + k] << k * bits;
        for (int k = 0; k < bits; k++) out[k] = (uint8_t)(word >> 8 * k);
    }
}

bool floats_put(const float *from, int64_t n, enum dtype dt, uint8_t *to)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        if (dt == DT_F32) {
            finite &= isfinite(from[i]) != 0;
            memcpy(to + 4 * i, &from[i], 4);
            continue;
        }
        uint16_t h = dt == DT_F16 ? f32_to_f16(from[i]) : f32_to_bf16(from[i]);
        uint16_t exponent = dt == DT_F16 ? 0x7c00 : 0x7f80;
        finite &= (h & exponent) != exponent;
        memcpy(to + 2 * i, &h, 2);
    }
    return finite;
}

void floats_round(float *v, int64_t n, enum dtype dt)
{
    if (dt == DT_F16)
        for (int64_t i = 0; i < n; i++) v[i] = f16_to_f32(f32_to_f16(v[i]));
    if (dt == DT_BF16)
        for (int64_t i = 0; i < n; i++) v[i] = bf16_to_f32(f32_to_bf16(v[i]));
}

static bool all_finite(const float *v, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += v[i] * 0.0f;
    return sum == 0;
}

bool quantise_row(const struct quant_spec *s, const float *row, int64_t n_in, enum dtype dt, uint8_t *codes,
                  uint8_t *scales, uint8_t *biases)
{
    float n_bins = (float)((1 << s->bits) - 1);
    int size = dtype_get(dt)->size_bytes;
    uint8_t code[GROUP_MAX];
    if (!all_finite(row, n_in)) return false;
    for (int64_t i = 0; i < n_in; i += s->group_size, scales += size, biases += size, codes += s->group_size / 8 * s->bits) {
        float scale, bias;
        group_fit(row + i, s->group_size, n_bins, &scale, &bias);
        if (!floats_put(&scale, 1, dt, scales) || !floats_put(&bias, 1, dt, biases)) return false;
        group_codes(row + i, s->group_size, n_bins, scale, bias, code);
        codes_pack(code, s->group_size, s->bits, codes);
    }
    return true;
}
