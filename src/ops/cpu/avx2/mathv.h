/* mathv.h: the functions of ops/mathfn.h on eight lanes: the same operations in the same order, selects where the scalar
 * code branches. Included by this folder alone. */
#ifndef OPS_CPU_AVX2_MATHV_H
#define OPS_CPU_AVX2_MATHV_H

#include "ops/cpu/avx2/avx2_int.h"

#define V8(c) _mm256_set1_ps(c)

FORCED __m256 rint_v(__m256 v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

FORCED __m256 pow2i_v(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* E of docs/numerics.md: 2^t for t <= 0. */
FORCED __m256 exp2_neg_v(__m256 t)
{
    __m256 n = rint_v(t), r = _mm256_sub_ps(t, n), p = V8(0x1.41fbbcp-13f);
    p = _mm256_fmadd_ps(p, r, V8(0x1.5f3e52p-10f));
    p = _mm256_fmadd_ps(p, r, V8(0x1.3b2d4cp-7f));
    p = _mm256_fmadd_ps(p, r, V8(0x1.c6aee8p-5f));
    p = _mm256_fmadd_ps(p, r, V8(0x1.ebfbdcp-3f));
    p = _mm256_fmadd_ps(p, r, V8(0x1.62e430p-1f));
    p = _mm256_fmadd_ps(p, r, V8(1.0f));
    p = _mm256_mul_ps(p, pow2i_v(_mm256_cvtps_epi32(n)));
    return _mm256_andnot_ps(_mm256_cmp_ps(t, V8(-126.0f), _CMP_LT_OQ), p);
}

FORCED __m256 exp_v(__m256 x)
{
    __m256 n = rint_v(_mm256_mul_ps(x, V8(0x1.715476p+0f)));
    __m256 r = _mm256_fmadd_ps(n, V8(-0x1.62e400p-1f), x), p = V8(0x1.6db41ap-10f);
    r = _mm256_fmadd_ps(n, V8(-0x1.7f7d1cp-20f), r);
    p = _mm256_fmadd_ps(p, r, V8(0x1.123b52p-7f));
    p = _mm256_fmadd_ps(p, r, V8(0x1.55545ep-5f));
    p = _mm256_fmadd_ps(p, r, V8(0x1.55548ep-3f));
    p = _mm256_fmadd_ps(p, r, V8(0.5f));
    p = _mm256_fmadd_ps(p, r, V8(1.0f));
    p = _mm256_fmadd_ps(p, r, V8(1.0f));
    __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1);
    p = _mm256_mul_ps(_mm256_mul_ps(p, pow2i_v(half)), pow2i_v(_mm256_sub_epi32(k, half)));
    p = _mm256_andnot_ps(_mm256_cmp_ps(x, V8(-0x1.5d589ep+6f), _CMP_LT_OQ), p);
    return _mm256_blendv_ps(p, V8(__builtin_inff()), _mm256_cmp_ps(x, V8(0x1.62e42ep+6f), _CMP_GT_OQ));
}

/* mb_log for normal positive x: the only arguments that the draw has. */
FORCED __m256 log_normal_v(__m256 x)
{
    __m256i ix = _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x3f3504f3));
    __m256 e = _mm256_cvtepi32_ps(_mm256_srai_epi32(ix, 23));
    __m256i mant = _mm256_and_si256(ix, _mm256_set1_epi32(0x7fffff));
    __m256 f = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_add_epi32(mant, _mm256_set1_epi32(0x3f3504f3))), V8(1.0f));
    __m256 s = _mm256_div_ps(f, _mm256_add_ps(f, V8(2.0f))), w = _mm256_mul_ps(s, s), l = V8(0x1.e30648p-3f);
    l = _mm256_fmadd_ps(l, w, V8(0x1.243872p-2f));
    l = _mm256_fmadd_ps(l, w, V8(0x1.999a7cp-2f));
    l = _mm256_fmadd_ps(l, w, V8(0x1.555554p-1f));
    l = _mm256_mul_ps(l, w);
    __m256 h = _mm256_mul_ps(_mm256_mul_ps(V8(0.5f), f), f);
    __m256 t = _mm256_fmadd_ps(s, _mm256_add_ps(h, l), _mm256_mul_ps(e, V8(0x1.7f7d1cp-20f)));
    return _mm256_fmadd_ps(e, V8(0x1.62e400p-1f), _mm256_sub_ps(f, _mm256_sub_ps(h, t)));
}

FORCED __m256 tanh_v(__m256 x)
{
    const __m256 sign = V8(-0.0f);
    __m256 a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x), p = V8(-0x1.7685aap-8f);
    p = _mm256_fmadd_ps(p, z, V8(0x1.524ea0p-6f));
    p = _mm256_fmadd_ps(p, z, V8(-0x1.b84316p-5f));
    p = _mm256_fmadd_ps(p, z, V8(0x1.110760p-3f));
    p = _mm256_fmadd_ps(p, z, V8(-0x1.555534p-2f));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(x, z), p, x);
    __m256 e = _mm256_add_ps(exp_v(_mm256_add_ps(a, a)), V8(1.0f));
    __m256 big = _mm256_sub_ps(V8(1.0f), _mm256_div_ps(V8(2.0f), e));
    big = _mm256_or_ps(_mm256_andnot_ps(sign, big), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(big, small, _mm256_cmp_ps(a, V8(0.625f), _CMP_LT_OQ));
}

FORCED __m256 silu_v(__m256 x)
{
    __m256 e = exp_v(_mm256_xor_ps(x, V8(-0.0f)));
    return _mm256_div_ps(x, _mm256_add_ps(V8(1.0f), e));
}

FORCED __m256 swiglu_clamped_v(__m256 gate, __m256 up)
{
    __m256 g = _mm256_min_ps(V8(7.0f), gate); /* a NaN is the second operand: it passes */
    __m256 u = _mm256_max_ps(V8(-7.0f), _mm256_min_ps(V8(7.0f), up));
    __m256 e = exp_v(_mm256_mul_ps(g, V8(-1.702f)));
    return _mm256_mul_ps(_mm256_add_ps(u, V8(1.0f)), _mm256_div_ps(g, _mm256_add_ps(V8(1.0f), e)));
}

FORCED __m256 gelu_tanh_v(__m256 x)
{
    __m256 c = _mm256_mul_ps(_mm256_mul_ps(x, x), V8(0x1.6e4e26p-5f));
    __m256 v = _mm256_mul_ps(_mm256_fmadd_ps(c, x, x), V8(0x1.988454p-1f));
    return _mm256_mul_ps(_mm256_mul_ps(V8(0.5f), x), _mm256_add_ps(V8(1.0f), tanh_v(v)));
}

#endif
