/* rows.c (avx512): operations on one float row, 16 lanes a turn; what is left over goes under a mask. */
#include "ops/cpu/avx512/mathv.h"

/* The 16 lanes of the sum of squares are one register; a lane behind the end adds 0 to itself. */
static void rmsnorm_avx512(const float *x, const float *w, int64_t n, float eps, float *y)
{
    __m512 l = _mm512_setzero_ps();
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) {
        __m512 v = _mm512_loadu_ps(x + j);
        l = _mm512_fmadd_ps(v, v, l);
    }
    __m512 rest = load16(x + j, n - j);
    if (j < n) l = _mm512_fmadd_ps(rest, rest, l);
    float ss = lanes_sum(l);
    __m512 r = V16(1.0f / sqrtf(ss * (1.0f / (float)n) + eps));
    for (j = 0; j + 16 <= n; j += 16) {
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + j), r);
        _mm512_storeu_ps(y + j, w ? _mm512_mul_ps(v, _mm512_loadu_ps(w + j)) : v);
    }
    if (j == n) return;
    rest = _mm512_mul_ps(rest, r);
    store16(y + j, n - j, w ? _mm512_mul_ps(rest, load16(w + j, n - j)) : rest);
}

static void rope_one(float *p0, float *p1, float c, float s)
{
    float x0 = *p0, x1 = *p1;
    *p0 = __builtin_fmaf(x0, c, -(x1 * s));
    *p1 = __builtin_fmaf(x1, c, x0 * s);
}

static void rope_avx512(float *x, int64_t n_rot, bool interleaved, const float *cs)
{
    int64_t half = n_rot / 2;
    for (int64_t i = 0; interleaved && i < half; i++) rope_one(x + 2 * i, x + 2 * i + 1, cs[i], cs[half + i]);
    for (int64_t i = 0; !interleaved && i < half; i += 16) {
        int64_t n = half - i;
        __m512 x0 = load16(x + i, n), x1 = load16(x + half + i, n), c = load16(cs + i, n), s = load16(cs + half + i, n);
        store16(x + i, n, _mm512_fmsub_ps(x0, c, _mm512_mul_ps(x1, s)));
        store16(x + half + i, n, _mm512_fmadd_ps(x1, c, _mm512_mul_ps(x0, s)));
    }
}

/* One vector expression over n elements: whole vectors, then the rest. */
#define EACH16(n, y, expression)                                                        \
    do {                                                                                \
        int64_t i = 0;                                                                  \
        for (; i + 16 <= (n); i += 16) {                                                \
            const int64_t left = 16;                                                    \
            _mm512_storeu_ps((y) + i, expression);                                      \
        }                                                                               \
        const int64_t left = (n) - i;                                                   \
        if (left > 0) store16((y) + i, left, expression);                               \
    } while (0)
#define AT(p) load16((p) + i, left)

static void scale_avx512(float *x, int64_t n, float c)
{
    EACH16(n, x, _mm512_mul_ps(AT(x), V16(c)));
}

static void add_avx512(float *y, const float *x, int64_t n)
{
    EACH16(n, y, _mm512_add_ps(AT(y), AT(x)));
}

static void silu_mul_avx512(const float *gate, const float *up, int64_t n, float *y)
{
    EACH16(n, y, _mm512_mul_ps(silu_v(AT(gate)), AT(up)));
}

static void gelu_tanh_mul_avx512(const float *gate, const float *up, int64_t n, float *y)
{
    EACH16(n, y, _mm512_mul_ps(gelu_tanh_v(AT(gate)), AT(up)));
}

static void swiglu_clamped_avx512(const float *gate, const float *up, int64_t n, float *y)
{
    EACH16(n, y, swiglu_clamped_v(AT(gate), AT(up)));
}

static void softcap_avx512(float *x, int64_t n, float cap)
{
    EACH16(n, x, _mm512_mul_ps(V16(cap), tanh_v(_mm512_div_ps(AT(x), V16(cap)))));
}

void avx512_fill_rows(struct cpu_kernels *t)
{
    t->rmsnorm = rmsnorm_avx512;
    t->rope = rope_avx512;
    t->scale = scale_avx512;
    t->add = add_avx512;
    t->silu_mul = silu_mul_avx512;
    t->gelu_tanh_mul = gelu_tanh_mul_avx512;
    t->swiglu_clamped = swiglu_clamped_avx512;
    t->softcap = softcap_avx512;
}
