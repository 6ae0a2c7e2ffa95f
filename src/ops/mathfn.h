/* mathfn.h: the scalar definitions of exp2, exp, tanh, silu, gelu, log, sin, cos that every level reproduces bit for
 * bit. No libm beyond fmaf, sqrtf and rintf (exact by IEEE 754). docs/numerics.md states each as a list of operations;
 * a vector level performs the same operations lane by lane.
 *
 * mb_exp2_neg is E of docs/numerics.md section 2: t <= 0 (or NaN), below -126 gives +0.
 */
#ifndef OPS_MATHFN_H
#define OPS_MATHFN_H

#include <stdint.h>

float mb_exp2_neg(float t);             /* 2^t for t <= 0; +0 for t < -126; NaN passes */
float mb_exp(float x);                  /* e^x; +0 below -87.3, +inf above 88.7 */
float mb_log(float x);                  /* natural log of x > 0, at most 2 ulp; -inf at 0 */
float mb_tanh(float x);
float mb_silu(float x);                 /* x / (1 + e^-x) */
float mb_gelu_tanh(float x);            /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
float mb_swiglu_clamped(float gate, float up); /* gpt-oss: (u + 1) * g / (1 + e^(-1.702 g)), g = min(gate, 7), u = up in [-7, 7] */
float mb_gelu_erf(float x);             /* 0.5 x (1 + erf(x / sqrt 2)) */
double mb_pow_d(double base, double e); /* base > 0; for rope tables; at most 4 ulp */
void mb_sincos_d(double x, double *s, double *c); /* |x| <= 2^31; at most 1e-15 absolute */

/* Philox4x32-10, counter ctr[4], key[2]; out 4 words. The only random numbers of the program. */
void mb_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

#endif
