/* quant.h: element types and quantisation schemes of checkpoints, as data.
 *
 * The dtype table names every type a tensor may have; the scheme table every way MLX packs a linear layer. The
 * quantisation reader answers "how is this module packed?" from config.json: the global entry, per-layer overrides
 * under any documented name prefix, and the packed shapes themselves, which must agree (B-113).
 * Source: mlx.core.quantize / mlx.nn.quantize; config keys "quantization" and "quantization_config" of mlx-lm.
 */
#ifndef FORMAT_QUANT_H
#define FORMAT_QUANT_H

#include <jansson.h>
#include <string.h>

#include "base/status.h"

enum dtype {
    DT_F32 = 0, DT_F16, DT_BF16, DT_U32, DT_U8, DT_I8, DT_U16, DT_I16, DT_I32, DT_I64, DT_U64, DT_BOOL, DT_F64,
    DT_F8_E4M3, DT_F8_E5M2, DT_COUNT
};

struct dtype_row {
    const char *name;      /* safetensors name: "F32", "BF16", ... */
    int size_bytes;
    bool is_float;
};
const struct dtype_row *dtype_get(enum dtype t);                 /* never NULL for t < DT_COUNT */
bool dtype_parse(const char *name, size_t len, enum dtype *out); /* false: unknown name */

enum quant_mode { QUANT_NONE = 0, QUANT_AFFINE, QUANT_MXFP4, QUANT_MXFP8, QUANT_NVFP4, QUANT_TRELLIS };

/* How one module's weight lies in the file. QUANT_NONE: a plain float matrix. */
struct quant_spec {
    enum quant_mode mode;
    int bits;       /* 2 3 4 5 6 8; 0 when mode is QUANT_NONE */
    int group_size; /* 16 32 64 128; 0 when mode is QUANT_NONE */
};

struct quant_config; /* opaque: the global spec and the overrides */

/* Read from the root of config.json ("quantization" wins over "quantization_config"; neither: everything is plain).
 * MB_BAD_FORMAT names the key; MB_UNSUPPORTED names the scheme (AWQ, GPTQ, bitsandbytes, fp8 blocks, ...) and the
 * remedy. */
mb_status quant_config_read(struct quant_config **out, const json_t *config, mb_error *err);
void quant_config_free(struct quant_config *q);
/* The spec for a module path as it stands in the checkpoint ("model.layers.0.mlp.down_proj"). Overrides are matched
 * after both sides have lost their documented prefixes ("model.", "language_model.", "model.language_model.",
 * "language_model.model."). An override of `false` gives QUANT_NONE. */
struct quant_spec quant_config_get(const struct quant_config *q, const char *module_path);
/* A module path without these prefixes; points into path. */
const char *quant_path_strip(const char *path);
/* Number of u32 words of one row of n_in weights: n_in * bits / 32. */
int64_t quant_row_words(const struct quant_spec *s, int64_t n_in);

/* float16 / bfloat16 to float32 and back (round to nearest even). Exact in the first direction. */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h)
{
    union { uint32_t u; float f; } v = { (uint32_t)h << 16 };
    return v.f;
}
uint16_t f32_to_bf16(float f); /* NaN stays a quiet NaN */
/* Scales and elements of one byte: a power of two from 2^-127, 255 is NaN; sign, 4 bits of exponent, 3 of fraction. */
static inline float e8m0_to_f32(uint8_t e)
{
    union { uint32_t u; float f; } v = { e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : (uint32_t)e << 23 };
    return v.f;
}
static inline float e4m3_to_f32(uint8_t v)
{
    union { uint32_t u; float f; } nan = { 0x7fc00000u };
    int e = (v >> 3) & 15, m = v & 7;
    if ((v & 127) == 127) return nan.f;
    float f = e == 0 ? (float)m * 0x1p-9f : (float)(8 + m) * 0x1p-10f * (float)(1 << e);
    return v & 128 ? -f : f;
}
/* Element i of an array of type dt (F32, F16 or BF16) that may lie at any address. */
static inline float dtype_float_at(const void *p, enum dtype dt, int64_t i)
{
    uint16_t h;
    float f;
    if (dt == DT_F32) {
        memcpy(&f, (const char *)p + i * 4, sizeof f);
        return f;
    }
    memcpy(&h, (const char *)p + i * 2, sizeof h);
    return dt == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Dequantise n_rows rows of an affine module to float32: out[r][c] = scale * code + bias, one fma; row-major.
 * w: u32 words as in the file, [n_rows][quant_row_words]; scales, biases: [n_rows][n_in / group_size] of type dt
 * (F32, F16 or BF16). Used by importers, tests, the float32 reference; kernels have their own. */
void quant_affine_dequantise(const struct quant_spec *s, const uint32_t *w, const void *scales, const void *biases,
                             enum dtype dt, int64_t n_rows, int64_t n_in, float *out);
/* The same for the floating-point schemes (mxfp4, mxfp8, nvfp4): value of the code times the scale of its group, exact; zeros
 * keep their sign. scales: one byte a group, e8m0 (mx) or e4m3 (nv). Codes that are NaN stay NaN. */
void quant_fp_dequantise(const struct quant_spec *s, const uint32_t *w, const uint8_t *scales, int64_t n_rows, int64_t n_in,
                         float *out);
static inline bool quant_is_fp(const struct quant_spec *s)
{
    return s->mode == QUANT_MXFP4 || s->mode == QUANT_MXFP8 || s->mode == QUANT_NVFP4;
}
/* Tensors of a quantised module beside its codes: scales in all, biases in the affine scheme alone. */
static inline bool quant_has_biases(const struct quant_spec *s)
{
    return s->mode == QUANT_AFFINE;
}
const char *quant_mode_name(enum quant_mode mode); /* as config.json has it; "none" */
/* One code: element i of a packed row. */
uint32_t quant_code_get(const uint32_t *row, int bits, int64_t i);

#endif
