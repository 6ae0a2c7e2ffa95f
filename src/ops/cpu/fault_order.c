/* fault_order.c: the deliberately wrong matmul behind the fault sum_order. Each group is computed alone, by the true
 * kernel on a weight of one group, and the groups are then added from the last to the first. One row alone goes the true
 * way, so results depend on the width of the batch. */
#include "ops/cpu/fault_order.h"

#include <string.h>

#include "base/fault.h"

#ifdef MB_FAULTS

static struct cpu_kernels true_kernels;

static cpu_matmul_fn true_matmul(const struct cpu_weight *w, const struct cpu_act *x)
{
    if (w->type == CPU_W_Q4) return x->form == ACT_Q8 ? true_kernels.matmul_q4_q8 : true_kernels.matmul_q4_q16;
    return x->form == ACT_Q8 ? true_kernels.matmul_q8_q8 : true_kernels.matmul_q8_q16;
}

/* y[16] of one block, one row, one group alone. */
static void group_alone(const struct cpu_weight *w, int64_t blk, const struct cpu_act *x, int64_t row, int64_t i_group,
                        float y[16])
{
    _Alignas(64) uint8_t one[384] = { 0 };
    size_t limbs = x->form == ACT_Q16 ? 2 : 1, codes = limbs * (size_t)x->g;
    const uint8_t *src = x->data + (size_t)row * x->row_bytes;
    memcpy(one, src + codes * (size_t)i_group, codes);
    memcpy(one + codes, src + limbs * (size_t)x->k + 8 * (size_t)i_group, 8);
    size_t group_bytes = w->block_bytes / (size_t)(w->k / w->g);
    struct cpu_weight sub = *w;
    sub.n = 16;
    sub.k = w->g;
    sub.block_bytes = group_bytes;
    sub.data = w->data + (size_t)blk * w->block_bytes + group_bytes * (size_t)i_group;
    struct cpu_act act = { .form = x->form, .g = x->g, .k = x->g, .row_bytes = sizeof one, .data = one };
    true_matmul(w, x)(&sub, 0, 1, &act, 0, 1, y, 16);
}

static void matmul_faulty(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x, int64_t row0,
                          int64_t m, float *y, int64_t ld_y)
{
    if (m == 1) {
        true_matmul(w, x)(w, blk0, blk1, x, row0, m, y, ld_y);
        return;
    }
    for (int64_t b = blk0; b < blk1; b++)
        for (int64_t i = 0; i < m; i++) {
            float acc[16] = { 0 }, part[16];
            for (int64_t gr = w->k / w->g - 1; gr >= 0; gr--) {
                group_alone(w, b, x, row0 + i, gr, part);
                for (int r = 0; r < 16; r++) acc[r] += part[r];
            }
            int64_t left = w->n - 16 * b;
            for (int r = 0; r < 16 && r < left; r++) y[i * ld_y + 16 * (b - blk0) + r] = acc[r];
        }
}

void fault_order_install(struct cpu_kernels *t)
{
    if (fault_value("sum_order", 0) == 0) return;
    true_kernels = *t;
    t->matmul_q4_q8 = t->matmul_q4_q16 = t->matmul_q8_q8 = t->matmul_q8_q16 = matmul_faulty;
}

#else

void fault_order_install(struct cpu_kernels *t)
{
    (void)t;
}

#endif
