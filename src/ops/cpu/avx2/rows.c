/* rows.c (avx2): operations on one float row, eight lanes a turn; what is left over runs through the same vector code on
 * a padded copy, or one by one where a single operation does. */
#include <math.h>

#include "ops/cpu/avx2/mathv.h"

static void rmsnorm_avx2(const float *x, const float *w, int64_t n, float eps, float *y)
{
    __m256 l0 = _mm256_setzero_ps(), l1 = l0;
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) {
        __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + 8);
        l0 = _mm256_fmadd_ps(a, a, l0);
        l1 = _mm256_fmadd_ps(b, b, l1);
    }
    float lane[16];
    _mm256_storeu_ps(lane, l0);
    _mm256_storeu_ps(lane + 8, l1);
    for (; j < n; j++) lane[j & 15] = __builtin_fmaf(x[j], x[j], lane[j & 15]);
    float ss = lanes_sum(_mm256_loadu_ps(lane), _mm256_loadu_ps(lane + 8));
    float r = 1.0f / sqrtf(ss * (1.0f / (float)n) + eps);
    __m256 rv = V8(r);
    for (j = 0; j + 8 <= n; j += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + j), rv);
        _mm256_storeu_ps(y + j, w ? _mm256_mul_ps(v, _mm256_loadu_ps(w + j)) : v);
    }
    for (; j < n; j++) {
        float v = x[j] * r;
        y[j] = w ? v * w[j] : v;
    }
}

static void rope_one(float *p0, float *p1, float c, float s)
{
    float x0 = *p0, x1 = *p1;
    *p0 = __builtin_fmaf(x0, c, -(x1 * s));
    *p1 = __builtin_fmaf(x1, c, x0 * s);
}

static void rope_avx2(float *x, int64_t n_rot, bool interleaved, const float *cs)
{
    int64_t half = n_rot / 2, i = 0;
    if (interleaved) {
        for (; i < half; i++) rope_one(x + 2 * i, x + 2 * i + 1, cs[i], cs[half + i]);
        return;
    }
    for (; i + 8 <= half; i += 8) {
        __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + half + i);
        __m256 c = _mm256_loadu_ps(cs + i), s = _mm256_loadu_ps(cs + half + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(x0, c, _mm256_mul_ps(x1, s)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(x1, c, _mm256_mul_ps(x0, s)));
    }
    for (; i < half; i++) rope_one(x + i, x + half + i, cs[i], cs[half + i]);
}

static void scale_avx2(float *x, int64_t n, float c)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), V8(c)));
    for (; i < n; i++) x[i] *= c;
}

static void add_avx2(float *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++) y[i] += x[i];
}

/* Up to eight floats as a vector padded with zeros, and back. */
FORCED __m256 part_load(const float *p, int64_t n)
{
    float t[8] = { 0 };
    memcpy(t, p, (size_t)n * 4);
    return _mm256_loadu_ps(t);
}

FORCED void part_store(float *p, int64_t n, __m256 v)
{
    float t[8];
    _mm256_storeu_ps(t, v);
    memcpy(p, t, (size_t)n * 4);
}

static void silu_mul_avx2(const float *gate, const float *up, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(silu_v(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
    if (i < n) part_store(y + i, n - i, _mm256_mul_ps(silu_v(part_load(gate + i, n - i)), part_load(up + i, n - i)));
}

static void gelu_tanh_mul_avx2(const float *gate, const float *up, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(gelu_tanh_v(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
    if (i < n)
        part_store(y + i, n - i, _mm256_mul_ps(gelu_tanh_v(part_load(gate + i, n - i)), part_load(up + i, n - i)));
}

static void swiglu_clamped_avx2(const float *gate, const float *up, int64_t n, float *y)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, swiglu_clamped_v(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n) part_store(y + i, n - i, swiglu_clamped_v(part_load(gate + i, n - i), part_load(up + i, n - i)));
}

FORCED __m256 softcap_v(__m256 x, __m256 cap)
{
    return _mm256_mul_ps(cap, tanh_v(_mm256_div_ps(x, cap)));
}

static void softcap_avx2(float *x, int64_t n, float cap)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, softcap_v(_mm256_loadu_ps(x + i), V8(cap)));
    if (i < n) part_store(x + i, n - i, softcap_v(part_load(x + i, n - i), V8(cap)));
}

void avx2_fill_rows(struct cpu_kernels *t)
{
    t->rmsnorm = rmsnorm_avx2;
    t->rope = rope_avx2;
    t->scale = scale_avx2;
    t->add = add_avx2;
    t->silu_mul = silu_mul_avx2;
    t->gelu_tanh_mul = gelu_tanh_mul_avx2;
    t->swiglu_clamped = swiglu_clamped_avx2;
    t->softcap = softcap_avx2;
}
