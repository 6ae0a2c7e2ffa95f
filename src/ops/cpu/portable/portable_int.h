/* portable_int.h: what the files of the portable level share.
 *
 * The Makefile compiles this folder twice: plain (fmaf may be a call into libm) and with -mfma -DMB_PORTABLE_FMA=1.
 * Every symbol that leaves a file is spelled PORTABLE(name), which is name in the plain build and name_fma in the
 * other: this one macro is all that tells the two apart. Everything else is static. Both give the same bits.
 */
#ifndef OPS_CPU_PORTABLE_INT_H
#define OPS_CPU_PORTABLE_INT_H

#include <math.h>
#include <string.h>

#include "ops/cpu/kernels.h"
#include "ops/mathfn.h"

#ifdef MB_PORTABLE_FMA
#define PORTABLE(name) name##_fma
#else
#define PORTABLE(name) name
#endif

/* Each file fills its columns of the table; fill.c calls them all. */
void PORTABLE(portable_fill_quantise)(struct cpu_kernels *t);
void PORTABLE(portable_fill_matmul)(struct cpu_kernels *t);
void PORTABLE(portable_fill_rows)(struct cpu_kernels *t);
void PORTABLE(portable_fill_delta)(struct cpu_kernels *t);
void PORTABLE(portable_fill_lora)(struct cpu_kernels *t);
void PORTABLE(portable_fill_attention)(struct cpu_kernels *t);
void PORTABLE(portable_fill_vocab)(struct cpu_kernels *t);

/* Pages of codes; as kv_write, kv_read, attend_unit of the table. */
void PORTABLE(codes_write)(enum kv_format f, int64_t d, int i_key, const float *k, const float *v, uint8_t *area);
void PORTABLE(codes_read)(enum kv_format f, int64_t d, int i_key, const uint8_t *area, float *k, float *v);
void PORTABLE(codes_unit)(const struct attn_unit *u);
void PORTABLE(cpu_fill_portable)(struct cpu_kernels *t);

static inline float bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* float16 to float32, exact: normal numbers by moving the exponent, subnormals by one exact product. */
static inline float half_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, em = h & 0x7fffu;
    if (em >= 0x7c00) return bits_f32(sign | 0x7f800000u | ((em & 0x3ff) << 13) | (em > 0x7c00 ? 0x400000u : 0));
    if (em >= 0x0400) return bits_f32(sign | ((em << 13) + 0x38000000u));
    return bits_f32(sign | f32_bits((float)em * 0x1p-24f));
}

/* float32 to float16, nearest even; overflow gives infinity, a NaN stays one. */
static inline uint16_t f32_half(float f)
{
    uint32_t u = f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (a < 0x38800000u) { /* below 2^-14: the sum with 0.5 rounds at 2^-24 */
        float s = bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (f32_bits(s) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1)) >> 13));
}

static inline float bf16_f32(uint16_t h)
{
    return bits_f32((uint32_t)h << 16);
}

static inline uint16_t f32_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

/* Scale area of one (block, group): 16 scales and 16 biases as float. */
static inline void scales_load(enum dtype dt, const uint8_t *p, float s[16], float b[16])
{
    for (int r = 0; r < 16; r++) {
        if (dt == DT_BF16) {
            uint32_t v;
            memcpy(&v, p + 4 * r, 4);
            s[r] = bits_f32(v << 16);
            b[r] = bits_f32(v & 0xffff0000u);
        } else if (dt == DT_F16) {
            uint16_t hs, hb;
            memcpy(&hs, p + 2 * r, 2);
            memcpy(&hb, p + 32 + 2 * r, 2);
            s[r] = half_f32(hs);
            b[r] = half_f32(hb);
        } else {
            memcpy(&s[r], p + 4 * r, 4);
            memcpy(&b[r], p + 64 + 4 * r, 4);
        }
    }
}

static inline size_t scales_bytes(enum dtype dt)
{
    return dt == DT_F32 ? 128 : 64;
}

/* Fold 16 lanes: halves of 8, halves of 4, then (0 + 2) + (1 + 3). */
static inline float lanes_sum(const float l[16])
{
    float t[8];
    for (int i = 0; i < 8; i++) t[i] = l[i] + l[i + 8];
    for (int i = 0; i < 4; i++) t[i] = t[i] + t[i + 4];
    return (t[0] + t[2]) + (t[1] + t[3]);
}

#endif
