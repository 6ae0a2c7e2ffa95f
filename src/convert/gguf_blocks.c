/* gguf_blocks.c: ggml's quantised blocks as groups of 32 codes with one scale and one bias.
 *
 * Why it is exact: a scale d has 11 significant bits and a code at most 8, so every product and every small multiple of d
 * is a float32 number; weight = fma(scale, code, bias) then rounds once, where the source's own formula rounds once.
 *   Q4_0, Q5_0, Q8_0   d * (q - z)              scale d, bias -z * d (z = 8, 16, 128 with codes moved up)
 *   Q4_1, Q5_1         d * q + m                scale d, bias m
 *   Q4_K, Q5_K         (d * sc) * q - dmin * mn  scale d * sc, bias -(dmin * mn): 11 + 6 bits each
 *   Q6_K               (d * sc) * (q - 32) with one sc for 16 weights: two lattices in one group, see split_q6_k
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "convert/gguf_import_int.h"

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

/* 16 bytes: low nibbles are elements 0..15, high nibbles 16..31. */
static void nibbles(const uint8_t *qs, uint8_t code[IMPORT_GROUP])
{
    for (int i = 0; i < 16; i++) {
        code[i] = qs[i] & 15;
        code[i + 16] = qs[i] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *qh, uint8_t code[IMPORT_GROUP])
{
    for (int i = 0; i < IMPORT_GROUP; i++) code[i] |= (uint8_t)((qh[i / 8] >> i % 8 & 1) << 4);
}

static void split_q4_0(const uint8_t *b, struct import_group *out)
{
    out->scale = half_at(b);
    out->bias = -8.0f * out->scale;
    nibbles(b + 2, out->code);
}

static void split_q4_1(const uint8_t *b, struct import_group *out)
{
    out->scale = half_at(b);
    out->bias = half_at(b + 2);
    nibbles(b + 4, out->code);
}

static void split_q5_0(const uint8_t *b, struct import_group *out)
{
    out->scale = half_at(b);
    out->bias = -16.0f * out->scale;
    nibbles(b + 6, out->code);
    add_fifth_bits(b + 2, out->code);
}

static void split_q5_1(const uint8_t *b, struct import_group *out)
{
    out->scale = half_at(b);
    out->bias = half_at(b + 2);
    nibbles(b + 8, out->code);
    add_fifth_bits(b + 4, out->code);
}

static void split_q8_0(const uint8_t *b, struct import_group *out)
{
    out->scale = half_at(b);
    out->bias = -128.0f * out->scale;
    for (int i = 0; i < IMPORT_GROUP; i++) out->code[i] = (uint8_t)(b[2 + i] ^ 0x80); /* signed + 128 */
}

/* Scale and minimum of group j (0..7) out of the 12 packed bytes: 6 bits each. */
static void k_scale_min(const uint8_t *p, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
        *min = p[j + 4] >> 4 | (p[j] >> 6) << 4;
    }
}

static void k_group_scales(const uint8_t *b, int j, struct import_group *out)
{
    int scale, min;
    k_scale_min(b + 4, j, &scale, &min);
    out->scale = half_at(b) * (float)scale;
    out->bias = -(half_at(b + 2) * (float)min);
}

/* Group j's nibbles: 32 bytes serve two groups, low then high. */
static void k_nibbles(const uint8_t *qs, int j, uint8_t code[IMPORT_GROUP])
{
    const uint8_t *q = qs + 32 * (j / 2);
    for (int i = 0; i < IMPORT_GROUP; i++) code[i] = j % 2 ? q[i] >> 4 : q[i] & 15;
}

static void split_q4_k(const uint8_t *b, struct import_group *out)
{
    for (int j = 0; j < 8; j++) {
        k_group_scales(b, j, &out[j]);
        k_nibbles(b + 16, j, out[j].code);
    }
}

static void split_q5_k(const uint8_t *b, struct import_group *out)
{
    for (int j = 0; j < 8; j++) {
        k_group_scales(b, j, &out[j]);
        k_nibbles(b + 48, j, out[j].code);
        for (int i = 0; i < IMPORT_GROUP; i++) out[j].code[i] |= (uint8_t)((b[16 + i] >> j & 1) << 4);
    }
}

static int gcd(int a, int b)
{
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The weights are d * v[i] with whole v. If 256 steps of a common divisor reach from the least to the greatest, the
 * result is exact; else the range is cut into 255 equal steps. */
static void fit_8_bit(const int v[IMPORT_GROUP], float d, struct import_group *out)
{
    int low = v[0], high = v[0], step = 0;
    for (int i = 1; i < IMPORT_GROUP; i++) {
        low = v[i] < low ? v[i] : low;
        high = v[i] > high ? v[i] : high;
    }
    for (int i = 0; i < IMPORT_GROUP; i++) step = gcd(step, v[i] - low);
    int range = high - low;
    bool exact = step == 0 || range / step <= 255;
    out->bias = d * (float)low;
    out->scale = exact ? d * (float)step : d * (float)range / 255.0f;
    out->error = out->amax = 0;
    for (int i = 0; i < IMPORT_GROUP; i++) {
        /* 510 * (v - low) + range over 2 * range: rounded to nearest, all in whole numbers. */
        out->code[i] = (uint8_t)(step == 0 ? 0 : exact ? (v[i] - low) / step : (510 * (v[i] - low) + range) / (2 * range));
        if (exact) continue;
        float want = d * (float)v[i], got = fmaf(out->scale, (float)out->code[i], out->bias);
        out->error = fmaxf(out->error, fabsf(got - want));
        out->amax = fmaxf(out->amax, fabsf(want));
    }
}

/* Group j of 8 lies in half j / 4; quarter j % 4 of that half tells the nibble and the pair of high bits. */
static void q6_k_values(const uint8_t *b, int j, int v[IMPORT_GROUP])
{
    const uint8_t *ql = b + 64 * (j / 4) + 32 * (j % 2), *qh = b + 128 + 32 * (j / 4);
    const int8_t *scales = (const int8_t *)b + 192 + 2 * j;
    int quarter = j % 4;
    for (int i = 0; i < IMPORT_GROUP; i++) {
        int q = (quarter < 2 ? ql[i] & 15 : ql[i] >> 4) | (qh[i] >> 2 * quarter & 3) << 4;
        v[i] = scales[i / 16] * (q - 32);
    }
}

static void split_q6_k(const uint8_t *b, struct import_group *out)
{
    float d = half_at(b + 208);
    for (int j = 0; j < 8; j++) {
        int v[IMPORT_GROUP];
        q6_k_values(b, j, v);
        fit_8_bit(v, d, &out[j]);
    }
}

static const struct import_scheme schemes[] = {
    { GGUF_T_Q4_0, 4, true, split_q4_0 },  { GGUF_T_Q4_1, 4, true, split_q4_1 },  { GGUF_T_Q5_0, 5, true, split_q5_0 },
    { GGUF_T_Q5_1, 5, true, split_q5_1 },  { GGUF_T_Q8_0, 8, true, split_q8_0 },  { GGUF_T_Q4_K, 4, false, split_q4_k },
    { GGUF_T_Q5_K, 5, false, split_q5_k }, { GGUF_T_Q6_K, 8, false, split_q6_k },
};

const struct import_scheme *import_scheme_get(int type)
{
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (schemes[i].type == type) return &schemes[i];
    return NULL;
}

void import_pack(const uint8_t code[IMPORT_GROUP], int bits, uint8_t *out)
{
    uint32_t pending = 0;
    int n_pending = 0;
    if (bits == 8) {
        memcpy(out, code, IMPORT_GROUP);
        return;
    }
    for (int i = 0; i < IMPORT_GROUP; i++) {
        pending |= (uint32_t)code[i] << n_pending;
        for (n_pending += bits; n_pending >= 8; n_pending -= 8, pending >>= 8) *out++ = (uint8_t)pending;
    }
}
