/* kt_matmul.h: what the matmul tests share: problems in the file's layout and packed, inputs shaped to reach each branch. */
#ifndef TESTS_KERNELS_KT_MATMUL_H
#define TESTS_KERNELS_KT_MATMUL_H

#include "kernels/kt.h"

#include "format/quant.h"

struct problem {
    struct pack_source src;
    struct cpu_weight w;
    struct kt_buf codes, scales, biases, packed;
};

static inline void dtype_put(enum dtype dt, uint8_t *p, size_t i, float v)
{
    uint16_t h = dt == DT_F16 ? f32_to_f16(v) : f32_to_bf16(v);
    if (dt == DT_F32)
        memcpy(p + 4 * i, &v, 4);
    else
        memcpy(p + 2 * i, &h, 2);
}

static inline float dtype_read(enum dtype dt, const uint8_t *p, size_t i)
{
    float v;
    uint16_t h;
    if (dt == DT_F32) {
        memcpy(&v, p + 4 * i, 4);
        return v;
    }
    memcpy(&h, p + 2 * i, 2);
    return dt == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static inline size_t dtype_size(enum dtype dt)
{
    return dt == DT_F32 ? 4 : 2;
}

static inline struct problem problem_make(int bits, int g, enum dtype dt, int64_t n, int64_t k)
{
    struct problem pr;
    memset(&pr, 0, sizeof pr);
    pr.src.dt = dt;
    pr.src.n = n;
    pr.src.k = k;
    if (bits == 0) {
        pr.codes = kt_alloc((size_t)(n * k) * dtype_size(dt));
        for (int64_t i = 0; i < n * k; i++) dtype_put(dt, pr.codes.p, (size_t)i, kt_value());
    } else {
        pr.src.spec = (struct quant_spec){ QUANT_AFFINE, bits, g };
        size_t ng = (size_t)(n * (k / g));
        pr.codes = kt_alloc((size_t)(n * k * bits / 8));
        pr.scales = kt_alloc(ng * dtype_size(dt));
        pr.biases = kt_alloc(ng * dtype_size(dt));
        for (size_t i = 0; i < pr.codes.size / 4; i++) {
            uint32_t v = kt_below(8) == 0 ? 0xffffffffu : kt_u32();
            memcpy(pr.codes.p + 4 * i, &v, 4);
        }
        for (size_t i = 0; i < ng; i++) {
            dtype_put(dt, pr.scales.p, i, kt_value() * 0.02f);
            dtype_put(dt, pr.biases.p, i, kt_value() * 0.1f);
        }
    }
    pr.src.w = pr.codes.p;
    pr.src.scales = pr.scales.p;
    pr.src.biases = pr.biases.p;
    mb_error err;
    assert_int_equal(cpu_pack_plan(&pr.src, &pr.w, &err), MB_OK);
    int64_t blocks = (n + 15) / 16;
    pr.packed = kt_alloc((size_t)blocks * pr.w.block_bytes);
    /* In two pieces, the second one first: blocks are independent. */
    int64_t cut = blocks / 2;
    cpu_pack_blocks(&pr.src, cut, blocks, pr.packed.p + (size_t)cut * pr.w.block_bytes);
    cpu_pack_blocks(&pr.src, 0, cut, pr.packed.p);
    pr.w.data = pr.packed.p;
    return pr;
}

static inline void problem_free(struct problem *pr)
{
    kt_free(&pr->codes);
    if (pr->scales.raw) kt_free(&pr->scales);
    if (pr->biases.raw) kt_free(&pr->biases);
    kt_free(&pr->packed);
}

enum flavour { PLAIN, TINY, NONFINITE, ZEROS };

/* Rows of x whose groups hold what the flavour says, here and there. */
static inline void x_fill(float *x, int64_t m, int64_t k, enum flavour f)
{
    for (int64_t i = 0; i < m * k; i++) x[i] = kt_value();
    if (f == PLAIN) return;
    for (int64_t i = 0; i < m * k; i += 16 * (1 + kt_below(8))) {
        if (f == TINY) {
            float s = kt_below(2) ? 1e-38f : 1e-31f;
            for (int64_t j = i; j < i + 16 && j < m * k; j++) x[j] *= s;
        } else if (f == ZEROS) {
            for (int64_t j = i; j < i + 16 && j < m * k; j++) x[j] = kt_below(2) ? 0.0f : -0.0f;
        } else if (kt_below(3) == 0) {
            x[i] = kt_below(3) == 0 ? NAN : kt_below(2) ? INFINITY : -INFINITY;
        }
    }
}

static inline struct cpu_act act_make(const struct cpu_kernels *t, enum act_form form, int g, int64_t k, int64_t m,
                               const float *x, struct kt_buf *buf)
{
    struct cpu_act a = { .form = form, .g = g, .k = k, .row_bytes = act_row_bytes(form, k, g) };
    *buf = kt_alloc(a.row_bytes * (size_t)m);
    t->quantise_rows(form, g, k, m, x, k, buf->p, a.row_bytes);
    a.data = buf->p;
    return a;
}

static inline cpu_matmul_fn pick(const struct cpu_kernels *t, enum cpu_wtype w, enum act_form f)
{
    if (w == CPU_W_F) return t->matmul_f_f32;
    if (w == CPU_W_Q4) return f == ACT_F32 ? t->matmul_q4_f32 : f == ACT_Q8 ? t->matmul_q4_q8 : t->matmul_q4_q16;
    return f == ACT_F32 ? t->matmul_q8_f32 : f == ACT_Q8 ? t->matmul_q8_q8 : t->matmul_q8_q16;
}

#endif
