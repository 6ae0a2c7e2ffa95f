/* quant.c: element types, half precision conversions, and the plain reading of affine packed rows.
 *
 * Owns the dtype table and the definition of a packed row: code i of a row stands in bits [bits*i, bits*(i+1)) of the
 * row, least significant first, rows being whole u32 words. For 2, 4 and 8 bits a code never crosses a word; for 3, 5
 * and 6 it may, and the bytes are still one little-endian bit stream (mlx packs 8 codes of 3 or 5 bits, or 4 of 6 bits,
 * into whole bytes, which is the same thing). Nothing here is fast: kernels have their own unpacking.
 */
#include "format/quant.h"

#include <math.h>
#include <string.h>

static const struct dtype_row dtype_rows[DT_COUNT] = {
    [DT_F32] = { "F32", 4, true },      [DT_F16] = { "F16", 2, true },        [DT_BF16] = { "BF16", 2, true },
    [DT_U32] = { "U32", 4, false },     [DT_U8] = { "U8", 1, false },         [DT_I8] = { "I8", 1, false },
    [DT_U16] = { "U16", 2, false },     [DT_I16] = { "I16", 2, false },       [DT_I32] = { "I32", 4, false },
    [DT_I64] = { "I64", 8, false },     [DT_U64] = { "U64", 8, false },       [DT_BOOL] = { "BOOL", 1, false },
    [DT_F64] = { "F64", 8, true },      [DT_F8_E4M3] = { "F8_E4M3", 1, true }, [DT_F8_E5M2] = { "F8_E5M2", 1, true },
};

const struct dtype_row *dtype_get(enum dtype t)
{
    return &dtype_rows[t];
}

bool dtype_parse(const char *name, size_t len, enum dtype *out)
{
    for (int i = 0; i < DT_COUNT; i++) {
        if (strlen(dtype_rows[i].name) == len && memcmp(dtype_rows[i].name, name, len) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    *out = DT_F32;
    return false;
}

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact */
        float magnitude = (float)mantissa * 0x1p-24f;
        return f32_from_bits(sign | f32_bits(magnitude));
    }
    return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* v >> shift, rounded to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_round_even(uint32_t v, int shift)
{
    uint32_t half = 1u << (shift - 1), rest = v & ((half << 1) - 1), whole = v >> shift;
    return whole + (rest > half || (rest == half && (whole & 1)));
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_bits(f), magnitude = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000);
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff)); /* quiet NaN */
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00);                            /* 65536 and up */
    if (magnitude >= 0x38800000u) /* normal; a carry into the exponent, up to infinity, is the right rounding */
        return (uint16_t)(sign | shift_round_even(magnitude - 0x38000000u, 13));
    if (magnitude < 0x33000000u) return sign; /* below half of the smallest subnormal */
    int shift = 126 - (int)(magnitude >> 23); /* 14..24 */
    return (uint16_t)(sign | shift_round_even((magnitude & 0x7fffff) | 0x800000, shift));
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)shift_round_even(u, 16);
}

int64_t quant_row_words(const struct quant_spec *s, int64_t n_in)
{
    return n_in / 32 * s->bits + n_in % 32 * s->bits / 32;
}

/* Word i of a row that may lie at any address: a checkpoint aligns its tensors as it likes. */
static uint32_t word_at(const void *row, int64_t i)
{
    uint32_t w;
    memcpy(&w, (const char *)row + 4 * i, sizeof w);
    return w;
}

uint32_t quant_code_get(const uint32_t *row, int bits, int64_t i)
{
    int64_t bit = i * bits;
    int at = (int)(bit & 31);
    uint32_t code = word_at(row, bit >> 5) >> at;
    if (at + bits > 32) code |= word_at(row, (bit >> 5) + 1) << (32 - at);
    return code & ((1u << bits) - 1);
}

void quant_fp_dequantise(const struct quant_spec *s, const uint32_t *w, const uint8_t *scales, int64_t n_rows, int64_t n_in,
                         float *out)
{
    static const float e2m1[16] = { 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };
    int64_t n_words = quant_row_words(s, n_in), n_groups = n_in / s->group_size;
    for (int64_t i = 0; i < n_rows * n_in; i++) {
        uint8_t scale = scales[i / n_in * n_groups + i % n_in / s->group_size];
        uint32_t code = quant_code_get(w + i / n_in * n_words, s->bits, i % n_in);
        float value = s->bits == 4 ? e2m1[code] : e4m3_to_f32((uint8_t)code);
        out[i] = value * (s->mode == QUANT_NVFP4 ? e4m3_to_f32(scale) : e8m0_to_f32(scale));
    }
}

void quant_affine_dequantise(const struct quant_spec *s, const uint32_t *w, const void *scales, const void *biases,
                             enum dtype dt, int64_t n_rows, int64_t n_in, float *out)
{
    int64_t n_words = quant_row_words(s, n_in), n_groups = n_in / s->group_size;
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t g = 0; g < n_groups; g++) {
            float scale = dtype_float_at(scales, dt, r * n_groups + g), bias = dtype_float_at(biases, dt, r * n_groups + g);
            for (int64_t i = g * s->group_size; i < (g + 1) * s->group_size; i++)
                out[r * n_in + i] = fmaf(scale, (float)quant_code_get(w + r * n_words, s->bits, i), bias);
        }
    }
}
