/* mathv.h: the functions of ops/mathfn.h on 16 lanes: the same operations in the same order, selects where the scalar code branches.
 * Included by this folder alone. */
#ifndef OPS_CPU_AVX512_MATHV_H
#define OPS_CPU_AVX512_MATHV_H

#include <math.h>

#include "ops/cpu/avx512/avx512_int.h"

#define V16(c) _mm512_set1_ps(c)

FORCED __m512 rint_v(__m512 v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* E: the product with 2^n never leaves the normal numbers, so vscalefps gives the same bits. */
FORCED __m512 exp2_neg_v(__m512 t)
{
    __m512 n = rint_v(t), r = _mm512_sub_ps(t, n), p = V16(0x1.41fbbcp-13f);
    p = _mm512_fmadd_ps(p, r, V16(0x1.5f3e52p-10f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.3b2d4cp-7f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.c6aee8p-5f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.ebfbdcp-3f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.62e430p-1f));
    p = _mm512_fmadd_ps(p, r, V16(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(t, V16(-126.0f), _CMP_NLT_UQ), p, n);
}

FORCED __m512 exp_v(__m512 x)
{
    __m512 n = rint_v(_mm512_mul_ps(x, V16(0x1.715476p+0f)));
    __m512 r = _mm512_fmadd_ps(n, V16(-0x1.62e400p-1f), x), p = V16(0x1.6db41ap-10f);
    r = _mm512_fmadd_ps(n, V16(-0x1.7f7d1cp-20f), r);
    p = _mm512_fmadd_ps(p, r, V16(0x1.123b52p-7f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.55545ep-5f));
    p = _mm512_fmadd_ps(p, r, V16(0x1.55548ep-3f));
    p = _mm512_fmadd_ps(p, r, V16(0.5f));
    p = _mm512_fmadd_ps(p, r, V16(1.0f));
    p = _mm512_fmadd_ps(p, r, V16(1.0f));
    /* The scalar code goes to 2^n by two products, of which the first is exact. */
    p = _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, V16(-0x1.5d589ep+6f), _CMP_NLT_UQ), p, n);
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, V16(0x1.62e42ep+6f), _CMP_GT_OQ), p, V16(INFINITY));
}

FORCED __m512 tanh_v(__m512 x)
{
    const __m512 sign = V16(-0.0f);
    __m512 a = _mm512_andnot_ps(sign, x), z = _mm512_mul_ps(x, x), p = V16(-0x1.7685aap-8f);
    p = _mm512_fmadd_ps(p, z, V16(0x1.524ea0p-6f));
    p = _mm512_fmadd_ps(p, z, V16(-0x1.b84316p-5f));
    p = _mm512_fmadd_ps(p, z, V16(0x1.110760p-3f));
    p = _mm512_fmadd_ps(p, z, V16(-0x1.555534p-2f));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(x, z), p, x);
    __m512 e = _mm512_add_ps(exp_v(_mm512_add_ps(a, a)), V16(1.0f));
    __m512 big = _mm512_sub_ps(V16(1.0f), _mm512_div_ps(V16(2.0f), e));
    big = _mm512_or_ps(_mm512_andnot_ps(sign, big), _mm512_and_ps(sign, x));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, V16(0.625f), _CMP_LT_OQ), big, small);
}

FORCED __m512 silu_v(__m512 x)
{
    __m512 e = exp_v(_mm512_xor_ps(x, V16(-0.0f)));
    return _mm512_div_ps(x, _mm512_add_ps(V16(1.0f), e));
}

FORCED __m512 swiglu_clamped_v(__m512 gate, __m512 up)
{
    __m512 g = _mm512_min_ps(V16(7.0f), gate); /* a NaN is the second operand: it passes */
    __m512 u = _mm512_max_ps(V16(-7.0f), _mm512_min_ps(V16(7.0f), up));
    __m512 e = exp_v(_mm512_mul_ps(g, V16(-1.702f)));
    return _mm512_mul_ps(_mm512_add_ps(u, V16(1.0f)), _mm512_div_ps(g, _mm512_add_ps(V16(1.0f), e)));
}

FORCED __m512 gelu_tanh_v(__m512 x)
{
    __m512 c = _mm512_mul_ps(_mm512_mul_ps(x, x), V16(0x1.6e4e26p-5f));
    __m512 v = _mm512_mul_ps(_mm512_fmadd_ps(c, x, x), V16(0x1.988454p-1f));
    return _mm512_mul_ps(_mm512_mul_ps(V16(0.5f), x), _mm512_add_ps(V16(1.0f), tanh_v(v)));
}

#endif
