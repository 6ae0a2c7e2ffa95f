/* mathfn.cuh: the elementary functions of ops/mathfn.h on the device: the same lists of operations, so the same bits.
 * Compiled with --fmad=false, without fast math: what is written is what runs. Constants: see ops/mathfn.c.
 */
#ifndef OPS_CUDA_MATHFN_CUH
#define OPS_CUDA_MATHFN_CUH

#include <math_constants.h>
#include <stdint.h>

static __device__ __forceinline__ float d_pow2i(int32_t n) /* -126 <= n <= 127 */
{
    return __uint_as_float((uint32_t)(n + 127) << 23);
}

static __device__ __forceinline__ float d_exp(float x)
{
    if (x < -0x1.5d589ep+6f) return 0.0f;
    if (x > 0x1.62e42ep+6f) return CUDART_INF_F;
    if (x != x) return x;
    float n = rintf(x * 0x1.715476p+0f);
    float r = __fmaf_rn(n, -0x1.62e400p-1f, x);
    r = __fmaf_rn(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6db41ap-10f;
    p = __fmaf_rn(p, r, 0x1.123b52p-7f);
    p = __fmaf_rn(p, r, 0x1.55545ep-5f);
    p = __fmaf_rn(p, r, 0x1.55548ep-3f);
    p = __fmaf_rn(p, r, 0.5f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    int32_t k = (int32_t)n, half = k >> 1;
    return (p * d_pow2i(half)) * d_pow2i(k - half);
}

static __device__ __forceinline__ float d_log(float x)
{
    if (x == 0.0f) return -CUDART_INF_F;
    if (!(x > 0.0f)) return CUDART_NAN_F;
    if (x == CUDART_INF_F) return x;
    int32_t e0 = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p23f;
        e0 = -23;
    }
    int32_t ix = (int32_t)__float_as_uint(x) - 0x3f3504f3;
    float e = (float)((ix >> 23) + e0);
    float m = __uint_as_float(((uint32_t)ix & 0x7fffffu) + 0x3f3504f3u);
    float f = m - 1.0f;
    float s = f / (f + 2.0f);
    float w = s * s;
    float l = 0x1.e30648p-3f;
    l = __fmaf_rn(l, w, 0x1.243872p-2f);
    l = __fmaf_rn(l, w, 0x1.999a7cp-2f);
    l = __fmaf_rn(l, w, 0x1.555554p-1f);
    l = l * w;
    float h = (0.5f * f) * f;
    float t = __fmaf_rn(s, h + l, e * 0x1.7f7d1cp-20f);
    return __fmaf_rn(e, 0x1.62e400p-1f, f - (h - t));
}

static __device__ __forceinline__ float d_tanh(float x)
{
    float a = fabsf(x);
    if (a < 0.625f) {
        float z = x * x;
        float p = -0x1.7685aap-8f;
        p = __fmaf_rn(p, z, 0x1.524ea0p-6f);
        p = __fmaf_rn(p, z, -0x1.b84316p-5f);
        p = __fmaf_rn(p, z, 0x1.110760p-3f);
        p = __fmaf_rn(p, z, -0x1.555534p-2f);
        return __fmaf_rn(x * z, p, x);
    }
    return copysignf(1.0f - 2.0f / (d_exp(a + a) + 1.0f), x);
}

static __device__ __forceinline__ float d_silu(float x)
{
    return x / (1.0f + d_exp(-x));
}

static __device__ __forceinline__ float d_gelu_tanh(float x)
{
    float c = (x * x) * 0x1.6e4e26p-5f;
    float v = __fmaf_rn(c, x, x) * 0x1.988454p-1f;
    return (0.5f * x) * (1.0f + d_tanh(v));
}

static __device__ __forceinline__ float d_swiglu_clamped(float gate, float up)
{
    float g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    return (u + 1.0f) * (g / (1.0f + d_exp(g * -1.702f)));
}

static __device__ __forceinline__ uint4 d_philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1)
{
    for (int i = 0; i < 10; i++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)b;
        c2 = n2;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

static __device__ __forceinline__ float d_gumbel(uint32_t word)
{
    float u = ((float)(word >> 9) + 0.5f) * 0x1p-23f;
    return -d_log(-d_log(u));
}

#endif
