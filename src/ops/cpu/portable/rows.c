/* rows.c (portable): the operations on one float row: norm, rope, residual, activations. */
#include "ops/cpu/portable/portable_int.h"

static void rmsnorm_portable(const float *x, const float *w, int64_t n, float eps, float *y)
{
    float lane[16] = { 0 };
    for (int64_t j = 0; j < n; j++) lane[j % 16] = fmaf(x[j], x[j], lane[j % 16]);
    float ss = lanes_sum(lane);
    float r = 1.0f / sqrtf(ss * (1.0f / (float)n) + eps);
    for (int64_t j = 0; j < n; j++) {
        float v = x[j] * r;
        y[j] = w ? v * w[j] : v;
    }
}

static void rope_portable(float *x, int64_t n_rot, bool interleaved, const float *cs)
{
    int64_t half = n_rot / 2;
    for (int64_t i = 0; i < half; i++) {
        float *p0 = interleaved ? x + 2 * i : x + i, *p1 = interleaved ? p0 + 1 : p0 + half;
        float x0 = *p0, x1 = *p1, c = cs[i], s = cs[half + i];
        *p0 = fmaf(x0, c, -(x1 * s));
        *p1 = fmaf(x1, c, x0 * s);
    }
}

static void scale_portable(float *x, int64_t n, float c)
{
    for (int64_t i = 0; i < n; i++) x[i] *= c;
}

static void add_portable(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static void silu_mul_portable(const float *gate, const float *up, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = mb_silu(gate[i]) * up[i];
}

static void gelu_tanh_mul_portable(const float *gate, const float *up, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = mb_gelu_tanh(gate[i]) * up[i];
}

static void swiglu_clamped_portable(const float *gate, const float *up, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = mb_swiglu_clamped(gate[i], up[i]);
}

static void softcap_portable(float *x, int64_t n, float cap)
{
    for (int64_t i = 0; i < n; i++) x[i] = cap * mb_tanh(x[i] / cap);
}

void PORTABLE(portable_fill_rows)(struct cpu_kernels *t)
{
    t->rmsnorm = rmsnorm_portable;
    t->rope = rope_portable;
    t->scale = scale_portable;
    t->add = add_portable;
    t->silu_mul = silu_mul_portable;
    t->gelu_tanh_mul = gelu_tanh_mul_portable;
    t->swiglu_clamped = swiglu_clamped_portable;
    t->softcap = softcap_portable;
}
