/* lora.c (portable): the two products of an adapter: fixed lanes along k, one chain along the rank. */
#include "ops/cpu/portable/portable_int.h"

static void lora_project_portable(const float *a, int64_t ld_a, int32_t n_rows, const float *x, int64_t k, float *u)
{
    for (int32_t r = 0; r < n_rows; r++, a += ld_a) {
        float lane[16] = { 0 };
        for (int64_t j = 0; j < k; j++) lane[j % 16] = fmaf(a[j], x[j], lane[j % 16]);
        u[r] = lanes_sum(lane);
    }
}

static void lora_add_portable(const float *b, int64_t ld_b, int32_t rank, const float *u, int64_t n, float *y)
{
    for (int64_t o = 0; o < n; o++) {
        float acc = 0;
        for (int32_t r = 0; r < rank; r++) acc = fmaf(b[r * ld_b + o], u[r], acc);
        y[o] += acc;
    }
}

void PORTABLE(portable_fill_lora)(struct cpu_kernels *t)
{
    t->lora_project = lora_project_portable;
    t->lora_add = lora_add_portable;
}
