/* pack.c: from a checkpoint's matrix to blocks of 16 interleaved rows (layout: kernels.h).
 *
 * Affine 4 bit is a transposition of words. Every other integer scheme becomes the 8-bit block: 2, 3, 5 and 6 bit codes
 * are read from the row's bit stream; the fp4 formats hold multiples of one half between -6 and 6, so their code is
 * 2 * value + 12 with scale s/2 and bias -6 s, both exact in bfloat16. mxfp8 has no such form: its elements become
 * bfloat16, exactly. Block scales of the fp formats: e8m0 (mx) and e4m3 (nv), one byte each. Trellis codes become the 8-bit
 * codes that they stand for, with bias -128 s; float16 scales then lie as float32, where that is exact.
 * Threads: calls on disjoint blocks run at once. Nothing is allocated.
 */
#include "ops/cpu/kernels.h"

#include <math.h>
#include <string.h>

#include "format/fp8.h"
#include "format/trellis.h"

static bool float_dtype(enum dtype dt)
{
    return dt == DT_F32 || dt == DT_F16 || dt == DT_BF16;
}

static mb_status plan_check(const struct pack_source *src, mb_error *err)
{
    const struct quant_spec *q = &src->spec;
    if (src->n <= 0 || src->k <= 0)
        return mb_fail(err, MB_BAD_FORMAT, "weight matrix of %lld x %lld elements; both sides must be positive",
                       (long long)src->n, (long long)src->k);
    if (q->mode == QUANT_NONE || q->mode == QUANT_AFFINE || q->mode == QUANT_TRELLIS) {
        bool blocks = q->mode == QUANT_NONE && src->dt == DT_F8_E4M3 && float_dtype(src->block_dt); /* of slices, each has its scales */
        if (!float_dtype(src->dt) && !blocks)
            return mb_fail(err, MB_UNSUPPORTED, "element type number %d in a linear layer; this build takes float32, "
                           "float16 and bfloat16", (int)src->dt);
        if (q->mode == QUANT_NONE) return MB_OK;
    }
    int b = q->bits, g = q->group_size;
    bool ok = (q->mode == QUANT_AFFINE && (b == 2 || b == 3 || b == 4 || b == 5 || b == 6 || b == 8) &&
               (g == 16 || g == 32 || g == 64 || g == 128)) ||
              (q->mode == QUANT_MXFP4 && b == 4 && g == 32) || (q->mode == QUANT_MXFP8 && b == 8 && g == 32) ||
              (q->mode == QUANT_NVFP4 && b == 4 && g == 16) || (q->mode == QUANT_TRELLIS && trellis_spec_known(b, g));
    if (!ok)
        return mb_fail(err, MB_UNSUPPORTED, "quantisation %s with %d bits in groups of %d; supported: affine 2, 3, 4, 5, "
                       "6, 8 bits in groups of 16, 32, 64, 128; mxfp4 and mxfp8 in groups of 32; nvfp4 in groups of 16; trellis "
                       "2, 3, 4 bits in groups of 32, 64, 128 "
                       "(convert the checkpoint again with one of these)", quant_mode_name(q->mode), b, g);
    if (!src->turned && src->k % g != 0)
        return mb_fail(err, MB_BAD_FORMAT, "a row of %lld weights is not a multiple of its group of %d",
                       (long long)src->k, g);
    return MB_OK;
}

/* The 4-bit kernels take whole 32s; a group of 16 goes the 8-bit way. */
static enum cpu_wtype affine_type(const struct quant_spec *q)
{
    return q->bits == 4 && q->group_size >= 32 ? CPU_W_Q4 : CPU_W_Q8;
}

mb_status cpu_pack_plan(const struct pack_source *src, struct cpu_weight *out, mb_error *err)
{
    memset(out, 0, sizeof *out);
    MB_TRY(plan_check(src, err));
    out->n = src->n;
    out->k = src->k;
    switch (src->spec.mode) {
    case QUANT_NONE: out->type = CPU_W_F; out->dt = src->dt == DT_F8_E4M3 ? DT_BF16 : src->dt; break;
    case QUANT_MXFP8: out->type = CPU_W_F; out->dt = DT_BF16; break;
    case QUANT_AFFINE: out->dt = src->dt; out->type = affine_type(&src->spec); break;
    case QUANT_TRELLIS: out->type = CPU_W_Q8; out->dt = src->dt == DT_F16 ? DT_F32 : src->dt; break;
    default: out->type = CPU_W_Q8; out->dt = DT_BF16; break;
    }
    if (src->turned && src->spec.mode != QUANT_NONE) {
        out->type = CPU_W_F;
        out->dt = DT_F32;
    }
    out->g = out->type == CPU_W_F ? 0 : src->spec.group_size;
    out->block_bytes = cpu_weight_block_bytes(out->type, out->dt, out->g, out->k);
    return MB_OK;
}

/* --- values of the fp formats --- */

static uint8_t fp4_code(uint32_t nibble) /* e2m1 -> 2 * value + 12 */
{
    static const uint8_t twice[8] = { 0, 1, 2, 3, 4, 6, 8, 12 };
    uint8_t t = twice[nibble & 7];
    return (uint8_t)(nibble & 8 ? 12 - t : 12 + t);
}

/* The values met here are exact in bfloat16; only a NaN needs care. */
static uint16_t bf16_exact(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u >> 16) | (f != f ? 0x40u : 0));
}

/* --- scale areas --- */

static size_t elem_bytes(enum dtype dt)
{
    return dt == DT_F32 ? 4 : 2;
}

/* Lane r of the scale area of type dt: s and b are elements in that type, 2 or 4 bytes. */
static void scale_put(uint8_t *area, enum dtype dt, int r, const void *s, const void *b)
{
    size_t e = elem_bytes(dt);
    if (dt == DT_BF16) {
        memcpy(area + 4 * r, s, 2);
        memcpy(area + 4 * r + 2, b, 2);
    } else {
        memcpy(area + e * (size_t)r, s, e);
        memcpy(area + e * (size_t)(16 + r), b, e);
    }
}

static void scale_copy(const struct pack_source *src, int64_t row, int64_t i_group, uint8_t *area, int r)
{
    int64_t n_group = src->k / src->spec.group_size, at = row * n_group + i_group;
    if (src->spec.mode == QUANT_AFFINE) {
        size_t off = (size_t)at * elem_bytes(src->dt);
        scale_put(area, src->dt, r, (const uint8_t *)src->scales + off, (const uint8_t *)src->biases + off);
        return;
    }
    if (src->spec.mode == QUANT_TRELLIS) {
        float s = dtype_float_at(src->scales, src->dt, at), b = -128.0f * s;
        uint16_t s16 = f32_to_bf16(s), b16 = f32_to_bf16(b); /* exact: a bfloat16, and one times a power of two */
        if (src->dt == DT_BF16) scale_put(area, DT_BF16, r, &s16, &b16);
        else scale_put(area, DT_F32, r, &s, &b);
        return;
    }
    uint8_t v = ((const uint8_t *)src->scales)[at];
    float f = src->spec.mode == QUANT_NVFP4 ? e4m3_to_f32(v) : e8m0_to_f32(v);
    uint16_t s = bf16_exact(f * 0.5f), b = bf16_exact(f * -6.0f);
    scale_put(area, DT_BF16, r, &s, &b);
}

/* --- codes --- */

/* Tensors may begin at any byte of the file. */
static uint32_t word_at(const void *words, int64_t i)
{
    uint32_t w;
    memcpy(&w, (const uint8_t *)words + 4 * i, 4);
    return w;
}

/* Eight codes of 1 to 6 bits, which fill `bits` whole bytes: 8i .. 8i + 7 of a row, lowest bits first. */
static uint64_t eight_codes(const uint8_t *row, int bits, int64_t i)
{
    uint64_t v = 0;
    for (int b = 0; b < bits; b++) v |= (uint64_t)row[i * bits + b] << (8 * b);
    return v;
}

static void group_q4(const struct pack_source *src, int64_t row, int64_t i_group, uint32_t *dst, int r)
{
    int64_t words = src->k / 8, per = src->spec.group_size / 8;
    const uint8_t *w = (const uint8_t *)src->w + 4 * (row * words + i_group * per);
    for (int64_t i = 0; i < per; i++) dst[i * 16 + r] = word_at(w, i);
}

/* 8-bit codes need no stream: bytes 0 and 2 of two words are k = 0, 2, 4, 6; bytes 1 and 3 are k = 1, 3, 5, 7. */
static void group_bytes(const struct pack_source *src, int64_t row, int64_t i_group, uint32_t *dst, int r)
{
    int64_t words = src->k / 4, per = src->spec.group_size / 4;
    const uint8_t *w = (const uint8_t *)src->w + 4 * (row * words + i_group * per);
    for (int64_t i = 0; i < per; i += 2) {
        uint32_t lo = word_at(w, i), hi = word_at(w, i + 1);
        dst[i * 16 + r] = (lo & 0xff) | (lo >> 8 & 0xff00) | (hi & 0xff) << 16 | (hi << 8 & 0xff000000u);
        dst[(i + 1) * 16 + r] = (lo >> 8 & 0xff) | (lo >> 16 & 0xff00) | (hi << 8 & 0xff0000) | (hi & 0xff000000u);
    }
}

static void group_trellis(const struct pack_source *src, int64_t row, int64_t i_group, uint32_t *dst, int r)
{
    int g = src->spec.group_size, bits = src->spec.bits;
    uint8_t code[128];
    trellis_codes((const uint8_t *)src->w + row * (src->k * bits / 8), bits, src->k, i_group * g, g, code);
    for (int i = 0; i < g / 8; i++) {
        const uint8_t *c = code + 8 * i;
        dst[(2 * i) * 16 + r] = (uint32_t)c[0] | (uint32_t)c[2] << 8 | (uint32_t)c[4] << 16 | (uint32_t)c[6] << 24;
        dst[(2 * i + 1) * 16 + r] = (uint32_t)c[1] | (uint32_t)c[3] << 8 | (uint32_t)c[5] << 16 | (uint32_t)c[7] << 24;
    }
}

static void group_q8(const struct pack_source *src, int64_t row, int64_t i_group, uint32_t *dst, int r)
{
    int g = src->spec.group_size, bits = src->spec.bits;
    bool fp4 = src->spec.mode != QUANT_AFFINE;
    const uint8_t *w = (const uint8_t *)src->w + row * (src->k * bits / 8);
    if (bits == 8 && !fp4) {
        group_bytes(src, row, i_group, dst, r);
        return;
    }
    uint32_t mask = (1u << bits) - 1;
    for (int i = 0; i < g / 8; i++) {
        uint64_t v = eight_codes(w, bits, i_group * (g / 8) + i);
        uint32_t even = 0, odd = 0;
        for (int j = 0; j < 4; j++, v >>= 2 * bits) {
            uint32_t c = (uint32_t)v & mask, d = (uint32_t)(v >> bits) & mask;
            even |= (fp4 ? fp4_code(c) : c) << (8 * j);
            odd |= (fp4 ? fp4_code(d) : d) << (8 * j);
        }
        dst[(2 * i) * 16 + r] = even;
        dst[(2 * i + 1) * 16 + r] = odd;
    }
}

/* Element i of row `row` of a source in block-scaled float8, as the file has it: n_in wide. */
static float float8_at(const struct pack_source *src, int64_t row, int64_t i, int64_t n_in)
{
    return fp8_value((const uint8_t *)src->w + row * n_in, src->scales, src->block_dt, src->row0 + row, i, n_in);
}

static void row_float(const struct pack_source *src, int64_t row, uint8_t *block, int r)
{
    for (int64_t k = 0; src->dt == DT_F8_E4M3 && k < src->k; k++) {
        uint16_t h = bf16_exact(float8_at(src, row, k, src->k));
        memcpy(block + 2 * (k * 16 + r), &h, 2);
    }
    if (src->dt == DT_F8_E4M3) return;
    if (src->spec.mode == QUANT_MXFP8) {
        const uint8_t *w = (const uint8_t *)src->w + row * src->k;
        const uint8_t *sc = (const uint8_t *)src->scales + row * (src->k / 32);
        for (int64_t k = 0; k < src->k; k++) {
            uint16_t h = bf16_exact(e4m3_to_f32(w[k]) * e8m0_to_f32(sc[k / 32]));
            memcpy(block + 2 * (k * 16 + r), &h, 2);
        }
        return;
    }
    size_t e = elem_bytes(src->dt);
    const uint8_t *w = (const uint8_t *)src->w + (size_t)(row * src->k) * e;
    for (int64_t k = 0; k < src->k; k++) memcpy(block + e * (size_t)(k * 16 + r), w + e * (size_t)k, e);
}

static float fp_scale(const struct pack_source *src, uint8_t byte)
{
    return src->spec.mode == QUANT_NVFP4 ? e4m3_to_f32(byte) : e8m0_to_f32(byte);
}

/* As the packed form has it: a zero is +0 under a negative scale too. */
static float fp4_value(float scale, uint32_t code)
{
    return fmaf(scale * 0.5f, fp4_code(code), scale * -6.0f);
}

float cpu_fp_value(const struct pack_source *src, int64_t row, int64_t k)
{
    int64_t at = row * src->k + k;
    if (src->spec.mode == QUANT_NONE) return float8_at(src, row, k, src->k);
    uint8_t sc = ((const uint8_t *)src->scales)[at / src->spec.group_size]; /* rows are whole groups */
    const uint8_t *w = src->w;
    if (src->spec.mode == QUANT_MXFP8) return e4m3_to_f32(w[at]) * fp_scale(src, sc);
    return fp4_value(fp_scale(src, sc), w[at / 2] >> (4 * (at & 1)) & 15);
}

/* Values of one scale byte for every code, made when the byte is first met: a row has few different ones. */
struct fp_tables {
    uint16_t value[256][16];
    bool have[256];
};

static const uint16_t *fp4_table(struct fp_tables *t, const struct pack_source *src, uint8_t sc)
{
    for (uint32_t c = 0; c < 16 && !t->have[sc]; c++) t->value[sc][c] = f32_to_bf16(fp4_value(fp_scale(src, sc), c));
    t->have[sc] = true;
    return t->value[sc];
}

static void fp4_row(const struct pack_source *src, int64_t row, uint16_t *out)
{
    const int g = src->spec.group_size;
    const uint8_t *w = (const uint8_t *)src->w + row * src->k / 2, *sc = (const uint8_t *)src->scales + row * src->k / g;
    struct fp_tables t;
    memset(t.have, 0, sizeof t.have);
    for (int64_t i = 0; i < src->k / g; i++) {
        const uint16_t *v = fp4_table(&t, src, sc[i]);
        for (int j = 0; j < g / 2; j++, out += 2) {
            uint8_t two = *w++;
            out[0] = v[two & 15];
            out[1] = v[two >> 4];
        }
    }
}

static void mxfp8_row(const struct pack_source *src, int64_t row, uint16_t *out)
{
    const uint8_t *w = (const uint8_t *)src->w + row * src->k, *sc = (const uint8_t *)src->scales + row * src->k / 32;
    float of[256];
    for (int c = 0; c < 256; c++) of[c] = e4m3_to_f32((uint8_t)c);
    for (int64_t i = 0; i < src->k / 32; i++) {
        float scale = e8m0_to_f32(sc[i]);
        for (int j = 0; j < 32; j++) *out++ = f32_to_bf16(of[*w++] * scale);
    }
}

void cpu_fp_row(const struct pack_source *src, int64_t row, uint16_t *out)
{
    if (src->spec.mode == QUANT_MXFP8) mxfp8_row(src, row, out);
    else if (src->spec.mode != QUANT_NONE) fp4_row(src, row, out);
    else
        for (int64_t k = 0; k < src->k; k++) out[k] = f32_to_bf16(cpu_fp_value(src, row, k));
}

/* Sixteen rows of a matrix that the file has turned: they are columns of its rows, from column `first` on. */
static void block_turned(const struct pack_source *src, int64_t first, int n_rows, uint8_t *block)
{
    const struct quant_spec *q = &src->spec;
    size_t e = elem_bytes(src->dt), words = (size_t)quant_row_words(q, src->n);
    for (int64_t k = 0; k < src->k; k++) {
        for (int r = 0; src->dt == DT_F8_E4M3 && r < n_rows; r++) {
            uint16_t h = bf16_exact(float8_at(src, k, first + r, src->n));
            memcpy(block + 2 * (k * 16 + r), &h, 2);
        }
        if (src->dt == DT_F8_E4M3) continue;
        if (q->mode == QUANT_NONE) {
            memcpy(block + e * (size_t)(k * 16), (const uint8_t *)src->w + e * (size_t)(k * src->n + first), e * (size_t)n_rows);
            continue;
        }
        float v[16] = { 0 };
        struct pack_source row = *src;
        row.k = src->n; /* as the file has it */
        uint8_t code[16];
        if (q->mode == QUANT_TRELLIS) trellis_codes((const uint8_t *)src->w + 4 * words * (size_t)k, q->bits, src->n, first, n_rows, code);
        for (int r = 0; r < n_rows && q->mode == QUANT_TRELLIS; r++)
            v[r] = trellis_value(code[r], dtype_float_at(src->scales, src->dt, k * (src->n / q->group_size) + (first + r) / q->group_size));
        for (int r = 0; r < n_rows && quant_is_fp(q); r++) v[r] = cpu_fp_value(&row, k, first + r);
        for (int r = 0; r < n_rows && q->mode == QUANT_AFFINE; r++) {
            int64_t at = first + r, group = k * (src->n / q->group_size) + at / q->group_size;
            uint64_t bits = eight_codes((const uint8_t *)src->w + 4 * words * (size_t)k, q->bits, at / 8);
            float affine = (float)((bits >> (q->bits * (at % 8))) & ((1u << q->bits) - 1));
            v[r] = fmaf(affine, dtype_float_at(src->scales, src->dt, group), dtype_float_at(src->biases, src->dt, group));
        }
        memcpy(block + 4 * (k * 16), v, 4 * 16);
    }
}

static void row_quantised(const struct pack_source *src, const struct cpu_weight *w, int64_t row, uint8_t *block, int r)
{
    size_t codes = (size_t)w->g * (w->type == CPU_W_Q4 ? 8 : 16), group = codes + 32 * elem_bytes(w->dt);
    for (int64_t i = 0; i < src->k / w->g; i++, block += group) {
        if (w->type == CPU_W_Q4)
            group_q4(src, row, i, (uint32_t *)block, r);
        else if (src->spec.mode == QUANT_TRELLIS)
            group_trellis(src, row, i, (uint32_t *)block, r);
        else
            group_q8(src, row, i, (uint32_t *)block, r);
        scale_copy(src, row, i, block + codes, r);
    }
}

void cpu_pack_blocks(const struct pack_source *src, int64_t blk0, int64_t blk1, uint8_t *dst)
{
    struct cpu_weight w;
    if (cpu_pack_plan(src, &w, NULL) != MB_OK) return; /* the caller has planned it: cannot happen */
    int64_t step = src->row_step > 0 ? src->row_step : 1;
    for (int64_t b = blk0; b < blk1; b++, dst += w.block_bytes) {
        int64_t left = src->n - 16 * b;
        if (left < 16 || w.type == CPU_W_F) memset(dst, 0, w.block_bytes);
        if (src->turned) {
            block_turned(src, 16 * b, left < 16 ? (int)left : 16, dst);
            continue;
        }
        for (int r = 0; r < 16 && r < left; r++) {
            if (w.type == CPU_W_F)
                row_float(src, (16 * b + r) * step, dst, r);
            else
                row_quantised(src, &w, (16 * b + r) * step, dst, r);
        }
    }
}
