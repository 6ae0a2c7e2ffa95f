/* step_linear.c: linear groups. The blocks of 16 outputs of all parts form one line that is cut into contiguous shares, so
 * that each thread reads one stream of weights. Order of an output: product, bias, adapters, soft cap, then the sum into the
 * residual. With adapters in the batch a phase goes before that computes their u (step_lora.c).
 */
#include "ops/cpu/cpu_int.h"

/* Floats of product that a thread holds before adding them to the residual. */
#define LINEAR_TMP_FLOATS (2048 * 64)

static cpu_matmul_fn choose(const struct cpu_kernels *k, enum cpu_wtype type, enum act_form form)
{
    const cpu_matmul_fn table[3][3] = {
        [CPU_W_Q4] = { [ACT_F32] = k->matmul_q4_f32, [ACT_Q8] = k->matmul_q4_q8, [ACT_Q16] = k->matmul_q4_q16 },
        [CPU_W_Q8] = { [ACT_F32] = k->matmul_q8_f32, [ACT_Q8] = k->matmul_q8_q8, [ACT_Q16] = k->matmul_q8_q16 },
        [CPU_W_F] = { [ACT_F32] = k->matmul_f_f32 },
    };
    return table[type][form];
}

/* What one part needs on one thread. */
struct part_run {
    const struct cpu_weight *w;
    cpu_matmul_fn matmul;
    struct cpu_act act;
    const float *bias;
    float softcap;
    int64_t m, ld_out;
    float *out; /* column 0 of this part, row 0 */
    const struct compiled *c;
    const struct plan_step *s;
    int i_part;
};

static void finish_product(const struct cpu_kernels *k, const struct part_run *p, float *y, int64_t ld, int64_t col0,
                           int64_t n_cols)
{
    for (int64_t i = 0; p->bias && i < p->m; i++) k->add(y + i * ld, p->bias + col0, n_cols);
    if (cpu_lora_on(p->c)) cpu_lora_add(p->c, p->s, p->i_part, y, ld, col0, n_cols);
    for (int64_t i = 0; p->softcap > 0 && i < p->m; i++) k->softcap(y + i * ld, n_cols, p->softcap);
}

static int64_t cols_of(const struct part_run *p, int64_t blk0, int64_t blk1)
{
    int64_t end = 16 * blk1 < p->w->n ? 16 * blk1 : p->w->n;
    return end - 16 * blk0;
}

static void run_store(const struct cpu_kernels *k, const struct part_run *p, int64_t blk0, int64_t blk1)
{
    float *y = p->out + 16 * blk0;
    p->matmul(p->w, blk0, blk1, &p->act, 0, p->m, y, p->ld_out);
    finish_product(k, p, y, p->ld_out, 16 * blk0, cols_of(p, blk0, blk1));
}

static void run_add(const struct cpu_kernels *k, const struct part_run *p, int64_t blk0, int64_t blk1, float *tmp)
{
    int64_t step = LINEAR_TMP_FLOATS / 16 / p->m;
    if (step < 1) step = 1;
    for (int64_t b = blk0; b < blk1; b += step) {
        int64_t e = b + step < blk1 ? b + step : blk1, n_cols = cols_of(p, b, e), ld = 16 * (e - b);
        p->matmul(p->w, b, e, &p->act, 0, p->m, tmp, ld);
        finish_product(k, p, tmp, ld, 16 * b, n_cols);
        for (int64_t i = 0; i < p->m; i++) k->add(p->out + i * p->ld_out + 16 * b, tmp + i * ld, n_cols);
    }
}

int cpu_step_linear(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int n_phases = cpu_lora_on(c) ? 2 : 1;
    if (phase < n_phases - 1) {
        cpu_lora_project(c, s, i_thread, n_threads);
        return n_phases;
    }
    int64_t total = 0, first, end, before = 0;
    for (int i = 0; i < s->u.linear.n_parts; i++) total += (s->u.linear.part[i].w->n + 15) / 16;
    threads_share(total, 1, i_thread, n_threads, &first, &end);
    for (int i = 0; i < s->u.linear.n_parts; i++) {
        const struct cpu_weight_impl *impl = s->u.linear.part[i].w->impl;
        int64_t n_blocks = (impl->packed.n + 15) / 16;
        int64_t b0 = first > before ? first - before : 0, b1 = end - before < n_blocks ? end - before : n_blocks;
        before += n_blocks;
        if (b0 >= b1) continue;
        buf_id out = s->u.linear.part[i].out;
        struct part_run p = {
            .w = &impl->packed,
            .matmul = choose(k, impl->packed.type, c->form[s->in]),
            .act = { .form = c->form[s->in], .g = c->plan->bufs[s->in].group, .k = impl->packed.k,
                     .row_bytes = c->row_bytes[s->in], .data = c->bufs[s->in] },
            .bias = s->u.linear.part[i].bias,
            .softcap = s->u.linear.part[i].softcap,
            .m = cpu_rows_of(c, s->in),
            .ld_out = (int64_t)(c->row_bytes[out] / sizeof(float)),
            .out = cpu_row_f32(c, out, 0) + s->u.linear.part[i].out_offset,
            .c = c, .s = s, .i_part = i,
        };
        if (s->u.linear.part[i].add) run_add(k, &p, b0, b1, (float *)c->thread_scratch[i_thread]);
        else run_store(k, &p, b0, b1);
    }
    return n_phases;
}
