/* delta.c (portable): the gated delta net's own operations: short convolution, delta rule, sigmoid gate. */
#include "ops/cpu/portable/portable_int.h"

static void sigmoid_mul_portable(const float *gate, const float *x, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1.0f + mb_exp(-gate[i]));
}

static float chains_sum(const float c[4])
{
    return (c[0] + c[1]) + (c[2] + c[3]);
}

static void delta_conv_portable(const float *const *x, int32_t n_tap, const float *w, int64_t ld_w, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i++) {
        float c[4] = { 0 };
        for (int32_t j = 0; j < n_tap; j++)
            if (x[j]) c[j % 4] = fmaf(w[j * ld_w + i], x[j][i], c[j % 4]);
        y[i] = mb_silu(chains_sum(c));
    }
}

static void delta_rule_portable(const struct delta_run *r)
{
    for (int64_t t = 0; t < r->n_tok; t++) {
        const float *q = r->q + t * r->ld_in, *key = r->k + t * r->ld_in, *x = r->v + t * r->ld_in;
        for (int64_t v = 0; v < r->dim_v; v++) {
            float m[4] = { 0 }, o[4] = { 0 }, *s = r->s + v;
            for (int64_t k = 0; k < r->dim_k; k++) m[k % 4] = fmaf(s[k * r->dim_v] * r->g[t], key[k], m[k % 4]);
            float d = (x[v] - chains_sum(m)) * r->beta[t];
            for (int64_t k = 0; k < r->dim_k; k++) {
                s[k * r->dim_v] = fmaf(key[k], d, s[k * r->dim_v] * r->g[t]);
                o[k % 4] = fmaf(s[k * r->dim_v], q[k], o[k % 4]);
            }
            r->o[t * r->ld_o + v] = chains_sum(o);
        }
    }
}

void PORTABLE(portable_fill_delta)(struct cpu_kernels *t)
{
    t->sigmoid_mul = sigmoid_mul_portable;
    t->delta_conv = delta_conv_portable;
    t->delta_rule = delta_rule_portable;
}
