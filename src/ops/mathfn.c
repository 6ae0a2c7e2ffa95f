/* mathfn.c: the elementary functions of the program, as fixed lists of operations (docs/numerics-math.md).
 *
 * The model's bits must not depend on a libm, a compiler or a vector width. Each function here is a straight list of
 * IEEE operations with selects at the end, so that a vector level can perform the same list lane by lane; fmaf is
 * written where the definition says fma and nowhere else (-ffp-contract=off keeps the compiler from adding any).
 * Polynomials were fitted to least maximum error on their interval and rounded to float32; their constants are part of
 * the definition: a change of one is a new numerics version.
 *
 * Scalings by 2^n are products with two powers of two, n split as n >> 1 and the rest: exact until the last product.
 * A NaN argument gives a NaN. Threads: pure functions.
 */
#include "ops/mathfn.h"

#include <math.h>
#include <string.h>

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float pow2i(int32_t n) /* -126 <= n <= 127 */
{
    return from_bits((uint32_t)(n + 127) << 23);
}

float mb_exp2_neg(float t)
{
    if (t < -126.0f) return 0.0f;
    if (t != t) return t;
    float n = rintf(t);
    float r = t - n;
    float p = 0x1.41fbbcp-13f;
    p = fmaf(p, r, 0x1.5f3e52p-10f);
    p = fmaf(p, r, 0x1.3b2d4cp-7f);
    p = fmaf(p, r, 0x1.c6aee8p-5f);
    p = fmaf(p, r, 0x1.ebfbdcp-3f);
    p = fmaf(p, r, 0x1.62e430p-1f);
    p = fmaf(p, r, 1.0f);
    return p * pow2i((int32_t)n);
}

float mb_exp(float x)
{
    if (x < -0x1.5d589ep+6f) return 0.0f;     /* below ln(2^-126) */
    if (x > 0x1.62e42ep+6f) return INFINITY;  /* above ln(2^128) */
    if (x != x) return x;
    float n = rintf(x * 0x1.715476p+0f);
    float r = fmaf(n, -0x1.62e400p-1f, x);
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    float p = 0x1.6db41ap-10f;
    p = fmaf(p, r, 0x1.123b52p-7f);
    p = fmaf(p, r, 0x1.55545ep-5f);
    p = fmaf(p, r, 0x1.55548ep-3f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t k = (int32_t)n, half = k >> 1;
    return (p * pow2i(half)) * pow2i(k - half);
}

float mb_log(float x)
{
    if (x == 0.0f) return -INFINITY;
    if (!(x > 0.0f)) return NAN;
    if (x == INFINITY) return x;
    int32_t e0 = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p23f;
        e0 = -23;
    }
    int32_t ix = (int32_t)to_bits(x) - 0x3f3504f3;  /* bits of sqrt(1/2): m lies in [sqrt(1/2), sqrt(2)) */
    float e = (float)((ix >> 23) + e0);
    float m = from_bits(((uint32_t)ix & 0x7fffffu) + 0x3f3504f3u);
    float f = m - 1.0f;
    float s = f / (f + 2.0f);
    float w = s * s;
    float l = 0x1.e30648p-3f;
    l = fmaf(l, w, 0x1.243872p-2f);
    l = fmaf(l, w, 0x1.999a7cp-2f);
    l = fmaf(l, w, 0x1.555554p-1f);
    l = l * w;
    float h = (0.5f * f) * f;
    float t = fmaf(s, h + l, e * 0x1.7f7d1cp-20f); /* log(1+f) = f - (h - s (h + l)) */
    return fmaf(e, 0x1.62e400p-1f, f - (h - t));
}

float mb_tanh(float x)
{
    float a = fabsf(x);
    if (a < 0.625f) {
        float z = x * x;
        float p = -0x1.7685aap-8f;
        p = fmaf(p, z, 0x1.524ea0p-6f);
        p = fmaf(p, z, -0x1.b84316p-5f);
        p = fmaf(p, z, 0x1.110760p-3f);
        p = fmaf(p, z, -0x1.555534p-2f);
        return fmaf(x * z, p, x);
    }
    return copysignf(1.0f - 2.0f / (mb_exp(a + a) + 1.0f), x);
}

float mb_silu(float x)
{
    return x / (1.0f + mb_exp(-x));
}

float mb_gelu_tanh(float x)
{
    float c = (x * x) * 0x1.6e4e26p-5f;  /* 0.044715 */
    float v = fmaf(c, x, x) * 0x1.988454p-1f; /* sqrt(2/pi) */
    return (0.5f * x) * (1.0f + mb_tanh(v));
}

/* A NaN passes both bounds. */
float mb_swiglu_clamped(float gate, float up)
{
    float g = gate > 7.0f ? 7.0f : gate, u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
    return (u + 1.0f) * (g / (1.0f + mb_exp(g * -1.702f)));
}

static float erf_pos(float a)
{
    if (a < 1.0f) {
        float z = a * a;
        float p = 0x1.4ae4aap-14f;
        p = fmaf(p, z, -0x1.a485dep-11f);
        p = fmaf(p, z, 0x1.5419f2p-8f);
        p = fmaf(p, z, -0x1.b7fbb4p-6f);
        p = fmaf(p, z, 0x1.ce2d20p-4f);
        p = fmaf(p, z, -0x1.81273ep-2f);
        p = fmaf(p, z, 0x1.20dd74p+0f);
        return a * p;
    }
    if (a > 3.95f) a = 3.95f; /* erf is 1 to float32 there */
    float y = -0x1.05913cp-22f;
    y = fmaf(y, a, 0x1.a6d43cp-16f);
    y = fmaf(y, a, -0x1.e59560p-12f);
    y = fmaf(y, a, 0x1.187d7ap-8f);
    y = fmaf(y, a, -0x1.9fa278p-6f);
    y = fmaf(y, a, 0x1.bcf4e0p-4f);
    y = fmaf(y, a, 0x1.441e88p-1f);
    y = fmaf(y, a, 0x1.21314cp+0f);
    y = fmaf(y, a, -0x1.ab73a0p-13f);
    return 1.0f - mb_exp(-y);
}

float mb_gelu_erf(float x)
{
    float e = copysignf(erf_pos(fabsf(x) * 0x1.6a09e6p-1f), x);
    return (0.5f * x) * (1.0f + e);
}

/* --- float64, for tables made once --- */

static double pow2i_d(int64_t n) /* -1022 <= n <= 1023 */
{
    uint64_t u = (uint64_t)(n + 1023) << 52;
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

/* log(x) = hi + lo, x > 0 and normal, about 2^-59 relative. */
static void log_dd(double x, double *hi, double *lo)
{
    int64_t ix;
    memcpy(&ix, &x, sizeof ix);
    ix -= 0x3fe6a09e667f3bcd; /* sqrt(1/2) */
    double e = (double)(ix >> 52);
    int64_t im = (ix & 0xfffffffffffff) + 0x3fe6a09e667f3bcd;
    double m;
    memcpy(&m, &im, sizeof m);
    double f = m - 1.0, g = m + 1.0;      /* f exact; g may round: its rest is below */
    double grest = 1.0 - (g - m);
    double s = f / g;
    double srest = fma(-s, g, f);
    srest = fma(-s, grest, srest) / g;    /* f / (g + grest) = s + srest */
    double w = s * s, p = 1.0 / 25.0;
    for (int i = 23; i >= 3; i -= 2) p = fma(p, w, 1.0 / (double)i);
    double tail = 2.0 * (s * w * p) + 2.0 * srest;
    double a = e * 0x1.62e42fefa3800p-1;  /* ln 2, first 42 bits: exact for |e| < 2048 */
    double b = 2.0 * s;
    double sum = a + b;
    double bb = sum - a;
    double rest = (a - (sum - bb)) + (b - bb);
    rest += tail + e * 0x1.ef35793c76730p-45;
    *hi = sum + rest;
    *lo = rest - (*hi - sum);
}

double mb_pow_d(double base, double e)
{
    double lh, ll;
    log_dd(base, &lh, &ll);
    double t = e * lh;
    double trest = fma(e, lh, -t) + e * ll;
    if (t < -700.0) return 0.0;
    if (t > 709.0) return HUGE_VAL;
    double n = rint(t * 0x1.71547652b82fep+0);
    double r = fma(n, -0x1.62e42fefa3800p-1, t);
    r = fma(n, -0x1.ef35793c76730p-45, r) + trest;
    double p = 1.0;
    for (int i = 15; i >= 1; i--) p = fma(p * r, 1.0 / (double)i, 1.0);
    int64_t k = (int64_t)n, half = k >> 1;
    return (p * pow2i_d(half)) * pow2i_d(k - half);
}

static double sin_poly(double r)
{
    double z = r * r, p = 1.0 / 355687428096000.0; /* 17! */
    p = fma(p, z, -1.0 / 1307674368000.0);
    p = fma(p, z, 1.0 / 6227020800.0);
    p = fma(p, z, -1.0 / 39916800.0);
    p = fma(p, z, 1.0 / 362880.0);
    p = fma(p, z, -1.0 / 5040.0);
    p = fma(p, z, 1.0 / 120.0);
    p = fma(p, z, -1.0 / 6.0);
    return fma(r * z, p, r);
}

static double cos_poly(double r)
{
    double z = r * r, p = 1.0 / 20922789888000.0; /* 16! */
    p = fma(p, z, -1.0 / 87178291200.0);
    p = fma(p, z, 1.0 / 479001600.0);
    p = fma(p, z, -1.0 / 3628800.0);
    p = fma(p, z, 1.0 / 40320.0);
    p = fma(p, z, -1.0 / 720.0);
    p = fma(p, z, 1.0 / 24.0);
    p = fma(p, z, -0.5);
    return fma(z, p, 1.0);
}

void mb_sincos_d(double x, double *s, double *c)
{
    double n = rint(x * 0x1.45f306dc9c883p-1);
    double r = fma(n, -0x1.921fb54442d18p+0, x);
    r = fma(n, -0x1.1a62633145c07p-54, r);
    double sr = sin_poly(r), cr = cos_poly(r);
    switch ((int64_t)n & 3) {
    case 0: *s = sr; *c = cr; break;
    case 1: *s = cr; *c = -sr; break;
    case 2: *s = -sr; *c = -cr; break;
    default: *s = -cr; *c = sr; break;
    }
}

void mb_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
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
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}
