/* test_matmul.c: packed matmuls, row gather, input quantisation. Portable against a reference written straight from the
 * contract on the unpacked file layout; every level against portable, bit for bit. */
#include "kernels/kt_matmul.h"

/* One output from the file's own layout and the float input, in the words of kernels.h. */
static float naive_output(const struct pack_source *s, enum act_form form, int64_t o, const float *x)
{
    float acc = 0.0f;
    if (s->spec.mode == QUANT_NONE) {
        for (int64_t k = 0; k < s->k; k++) acc = fmaf(dtype_read(s->dt, s->w, (size_t)(o * s->k + k)), x[k], acc);
        return acc;
    }
    int g = s->spec.group_size, bits = s->spec.bits;
    const uint32_t *row = (const uint32_t *)s->w + o * (s->k * bits / 32);
    for (int64_t gr = 0; gr < s->k / g; gr++) {
        float sc = dtype_read(s->dt, s->scales, (size_t)(o * (s->k / g) + gr));
        float bi = dtype_read(s->dt, s->biases, (size_t)(o * (s->k / g) + gr));
        const float *v = x + gr * g;
        if (form == ACT_F32) {
            for (int i = 0; i < g; i++)
                acc = fmaf(fmaf((float)quant_code_get(row, bits, gr * g + i), sc, bi), v[i], acc);
            continue;
        }
        float amax = 0.0f, top = form == ACT_Q8 ? 127.0f : 32512.0f;
        bool bad = false;
        for (int i = 0; i < g; i++) {
            bad = bad || !isfinite(v[i]);
            if (fabsf(v[i]) > amax) amax = fabsf(v[i]);
        }
        int64_t isum = 0, xsum = 0;
        float a = bad ? NAN : amax < 1e-30f ? 0.0f : amax * (float)(1.0 / (double)top);
        if (!bad && amax >= 1e-30f) {
            float inv = top / amax;
            for (int i = 0; i < g; i++) {
                int64_t q = lrintf(v[i] * inv);
                isum += q * quant_code_get(row, bits, gr * g + i);
                xsum += q;
            }
        }
        assert_true(isum == (int32_t)isum);
        acc = fmaf(sc * a, (float)(int32_t)isum, acc);
        acc = fmaf(bi, a * (float)(int32_t)xsum, acc);
    }
    return acc;
}

static void check_naive(int bits, int g, enum dtype dt, enum act_form form, int64_t n, int64_t k, int64_t m,
                        enum flavour fl)
{
    struct cpu_kernels plain;
    cpu_fill_portable(&plain);
    struct problem pr = problem_make(bits, g, dt, n, k);
    struct kt_buf x = kt_alloc((size_t)(m * k) * 4), y = kt_alloc((size_t)(m * n) * 4), ab;
    x_fill((float *)x.p, m, k, fl);
    struct cpu_act a = act_make(&plain, form, g ? g : 32, k, m, (float *)x.p, &ab);
    pick(&plain, pr.w.type, form)(&pr.w, 0, (n + 15) / 16, &a, 0, m, (float *)y.p, n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t o = 0; o < n; o++) {
            float want = naive_output(&pr.src, form, o, (float *)x.p + i * k);
            kt_expect_same(&want, (float *)y.p + i * n + o, 1, "naive");
        }
    kt_free(&x);
    kt_free(&y);
    kt_free(&ab);
    problem_free(&pr);
}

static void test_b109_portable_equals_contract(void **state)
{
    (void)state;
    static const int all_bits[] = { 2, 3, 4, 5, 6, 8 }, groups[] = { 32, 64, 128 };
    static const enum dtype dts[] = { DT_BF16, DT_F16, DT_F32 };
    for (int b = 0; b < 6; b++)
        for (int gi = 0; gi < 3; gi++)
            for (int d = 0; d < 3; d++)
                for (int f = 0; f < 3; f++)
                    check_naive(all_bits[b], groups[gi], dts[d], (enum act_form)f, 1 + kt_below(40), groups[gi] * (1 + kt_below(4)),
                                1 + kt_below(3), (enum flavour)kt_below(4));
    for (int d = 0; d < 3; d++) check_naive(0, 0, dts[d], ACT_F32, 1 + kt_below(40), 8 * (1 + kt_below(20)), 2, PLAIN);
}

/* The levels, and behind them AVX2 without VNNI, which a CPU that has VNNI would never show. */
#define LEVELS_MAX (CPU_LEVEL_COUNT + 1)

static int levels_of(struct cpu_kernels t[LEVELS_MAX])
{
    int n = kt_levels(t);
#if defined(__x86_64__)
    if (cpu_level_detect() >= CPU_AVX2) {
        t[n] = t[CPU_AVX2];
        cpu_fill_avx2(&t[n]);
        t[n++].level = "avx2 without vnni";
    }
#endif
    return n;
}

/* One problem on every level: whole, and cut by blocks and rows with a wider ld_y. */
static void check_levels(int bits, int g, enum dtype dt, enum act_form form, int64_t n, int64_t k, int64_t m,
                         enum flavour fl)
{
    struct cpu_kernels plain, t[LEVELS_MAX];
    cpu_fill_portable(&plain);
    int levels = levels_of(t);
    struct problem pr = problem_make(bits, g, dt, n, k);
    struct kt_buf x = kt_alloc((size_t)(m * k) * 4), want = kt_alloc((size_t)(m * n) * 4), ab;
    x_fill((float *)x.p, m, k, fl);
    struct cpu_act a = act_make(&plain, form, g ? g : 32, k, m, (float *)x.p, &ab);
    int64_t blocks = (n + 15) / 16;
    pick(&plain, pr.w.type, form)(&pr.w, 0, blocks, &a, 0, m, (float *)want.p, n);
    for (int l = 0; l < levels; l++) {
        char what[160];
        snprintf(what, sizeof what, "%s bits %d g %d dt %d form %d n %lld k %lld m %lld flavour %d", t[l].level, bits, g,
                 dt, form, (long long)n, (long long)k, (long long)m, fl);
        cpu_matmul_fn f = pick(&t[l], pr.w.type, form);
        struct kt_buf y = kt_alloc((size_t)(m * n) * 4);
        f(&pr.w, 0, blocks, &a, 0, m, (float *)y.p, n);
        kt_expect_same((float *)want.p, (float *)y.p, (size_t)(m * n), what);
        kt_free(&y);

        int64_t b0 = kt_below((int)blocks), b1 = b0 + 1 + kt_below((int)(blocks - b0)), r0 = kt_below((int)m),
                mm = 1 + kt_below((int)(m - r0)), width = (16 * b1 < n ? 16 * b1 : n) - 16 * b0, ld = width + kt_below(5);
        y = kt_alloc((size_t)(mm * ld) * 4);
        f(&pr.w, b0, b1, &a, r0, mm, (float *)y.p, ld);
        for (int64_t i = 0; i < mm; i++) {
            kt_expect_same((float *)want.p + (r0 + i) * n + 16 * b0, (float *)y.p + i * ld, (size_t)width, what);
            for (size_t j = (size_t)(i * ld + width) * 4; j < (size_t)((i + 1) * ld) * 4; j++)
                if (y.p[j] != KT_FILL) fail_msg("%s: wrote between rows", what);
        }
        kt_free(&y);

        struct kt_buf row = kt_alloc((size_t)k * 4), row_want = kt_alloc((size_t)k * 4);
        int64_t id = kt_below((int)n);
        plain.gather_row(&pr.w, id, (float *)row_want.p);
        t[l].gather_row(&pr.w, id, (float *)row.p);
        kt_expect_same((float *)row_want.p, (float *)row.p, (size_t)k, what);
        kt_free(&row);
        kt_free(&row_want);
    }
    kt_free(&x);
    kt_free(&want);
    kt_free(&ab);
    problem_free(&pr);
}

static void test_levels_quantised(void **state)
{
    (void)state;
    static const int groups[] = { 32, 64, 128 };
    static const int64_t ms[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33, 49, 70 };
    static const enum dtype dts[] = { DT_BF16, DT_F16, DT_F32 };
    for (int b = 0; b < 2; b++)
        for (int gi = 0; gi < 3; gi++)
            for (int d = 0; d < 3; d++)
                for (int f = 1; f < 3; f++)
                    for (int mi = 0; mi < 15; mi++)
                        check_levels(b ? 8 : 4, groups[gi], dts[d], (enum act_form)f, 1 + kt_below(100),
                                     groups[gi] * (1 + kt_below(7)), ms[mi], (enum flavour)kt_below(4));
    for (int i = 0; i < 6; i++) /* groups of 16: the fp4 path */
        check_levels(8, 16, DT_BF16, i & 1 ? ACT_Q8 : ACT_Q16, 40, 16 * (1 + kt_below(9)), 1 + kt_below(7), PLAIN);
}

/* Every bit width, one group and many; more of k than any kernel takes in one piece; more groups than are gathered at once. */
static void test_b109_levels_widths_and_pieces(void **state)
{
    (void)state;
    static const int widths[] = { 2, 3, 4, 5, 6, 8 };
    for (int b = 0; b < 6; b++)
        for (int f = 0; f < 3; f++) {
            check_levels(widths[b], 32, DT_BF16, (enum act_form)f, 1 + kt_below(70), 32, 1 + kt_below(70), PLAIN);
            check_levels(widths[b], 64, DT_F16, (enum act_form)f, 1 + kt_below(150), 64 * (1 + kt_below(5)), 1 + kt_below(70), PLAIN);
        }
    for (int f = 1; f < 3; f++) {
        check_levels(4, 32, DT_BF16, (enum act_form)f, 150, 1600, 50, PLAIN);
        check_levels(4, 128, DT_BF16, (enum act_form)f, 33, 1664, 64, PLAIN);
        check_levels(8, 64, DT_F16, (enum act_form)f, 20, 1600, 52, PLAIN);
        check_levels(4, 32, DT_BF16, (enum act_form)f, 40, 9600, 9, PLAIN);
        check_levels(8, 32, DT_BF16, (enum act_form)f, 17, 9600, 1, PLAIN);
    }
}

static void test_levels_float(void **state)
{
    (void)state;
    static const int groups[] = { 32, 64, 128 };
    static const enum dtype dts[] = { DT_BF16, DT_F16, DT_F32 };
    for (int b = 0; b < 3; b++)
        for (int gi = 0; gi < 3; gi++)
            for (int d = 0; d < 3; d++)
                for (int i = 0; i < 4; i++)
                    check_levels(4 * b, b ? groups[gi] : 0, dts[d], ACT_F32, 1 + kt_below(100),
                                 b ? groups[gi] * (1 + kt_below(5)) : 1 + kt_below(300), 1 + kt_below(i ? 11 : 70), (enum flavour)kt_below(4));
}

/* Largest codes and inputs: the sums that come nearest to overflow in narrow accumulators. */
static void test_levels_extreme(void **state)
{
    (void)state;
    struct cpu_kernels plain, t[LEVELS_MAX];
    cpu_fill_portable(&plain);
    int levels = levels_of(t);
    enum { N = 80 };
    for (int c = 0; c < 24; c++) {
        int bits = c & 1 ? 8 : 4, g = c & 2 ? 128 : 32;
        enum act_form form = c & 4 ? ACT_Q8 : ACT_Q16;
        struct problem pr = problem_make(bits, g, DT_BF16, N, 2 * g);
        memset(pr.codes.p, 0xff, pr.codes.size);
        cpu_pack_blocks(&pr.src, 0, N / 16, pr.packed.p);
        int64_t m = 1 + kt_below(c % 3 ? 8 : 40), k = 2 * g;
        struct kt_buf x = kt_alloc((size_t)(m * k) * 4), want = kt_alloc((size_t)m * N * 4), y = kt_alloc((size_t)m * N * 4), ab;
        /* 32512 = 127 * 256; other levels of the limbs reach -128 and 127. */
        float v[3] = { 32512.0f, -32512.0f, 32512.0f - 385.0f };
        for (int64_t i = 0; i < m * k; i++) ((float *)x.p)[i] = i % g == 0 ? 32512.0f : c < 8 ? v[0] : c < 16 ? v[1] : v[kt_below(3)];
        struct cpu_act a = act_make(&plain, form, g, k, m, (float *)x.p, &ab);
        pick(&plain, pr.w.type, form)(&pr.w, 0, N / 16, &a, 0, m, (float *)want.p, N);
        for (int l = 0; l < levels; l++) {
            pick(&t[l], pr.w.type, form)(&pr.w, 0, N / 16, &a, 0, m, (float *)y.p, N);
            kt_expect_same((float *)want.p, (float *)y.p, (size_t)m * N, t[l].level);
        }
        kt_free(&x);
        kt_free(&y);
        kt_free(&want);
        kt_free(&ab);
        problem_free(&pr);
    }
}

static void test_quantise_levels(void **state)
{
    (void)state;
    struct cpu_kernels plain, t[LEVELS_MAX];
    cpu_fill_portable(&plain);
    int levels = levels_of(t);
    static const int groups[] = { 16, 32, 64, 128 };
    for (int c = 0; c < 400; c++) {
        int g = groups[c & 3];
        enum act_form form = (enum act_form)(c / 4 % 3);
        int64_t k = g * (1 + kt_below(6)), m = 1 + kt_below(4), ld = k + kt_below(3);
        struct kt_buf x = kt_alloc((size_t)(m * ld) * 4);
        x_fill((float *)x.p, 1, m * ld, (enum flavour)kt_below(4));
        if (kt_below(4) == 0) /* exact ties of the rounding */
            for (int64_t i = 0; i < m * ld; i++) ((float *)x.p)[i] = (float)kt_below(255) * 0.5f - 63.5f;
        size_t rb = act_row_bytes(form, k, g);
        struct kt_buf want = kt_alloc(rb * (size_t)m);
        plain.quantise_rows(form, g, k, m, (float *)x.p, ld, want.p, rb);
        for (int l = 0; l < levels; l++) {
            struct kt_buf y = kt_alloc(rb * (size_t)m);
            t[l].quantise_rows(form, g, k, m, (float *)x.p, ld, y.p, rb);
            if (memcmp(want.p, y.p, rb * (size_t)m) != 0) fail_msg("%s: quantise_rows form %d g %d", t[l].level, form, g);
            memset(y.p, KT_FILL, y.size);
            int64_t ng = k / g, cut = kt_below((int)ng);
            t[l].quantise_groups(form, g, k, cut, ng, (float *)x.p, y.p);
            t[l].quantise_groups(form, g, k, 0, cut, (float *)x.p, y.p);
            if (memcmp(want.p, y.p, rb) != 0) fail_msg("%s: quantise_groups form %d g %d", t[l].level, form, g);
            kt_free(&y);
        }
        kt_free(&x);
        kt_free(&want);
    }
}

/* The fp formats: every code and a spread of scales, against their value tables. */
static void test_pack_fp_formats(void **state)
{
    (void)state;
    static const float fp4[8] = { 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f };
    struct cpu_kernels plain;
    cpu_fill_portable(&plain);
    for (int mode = 0; mode < 3; mode++) {
        struct pack_source s = { { mode == 0 ? QUANT_MXFP4 : mode == 1 ? QUANT_NVFP4 : QUANT_MXFP8, mode == 2 ? 8 : 4, mode == 1 ? 16 : 32 },
                                 DT_U8, 20, 64, NULL, NULL, NULL, false, 0, DT_F32, 0 };
        uint8_t codes[20 * 64], scales[20 * 4];
        for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)kt_u32();
        for (size_t i = 0; i < sizeof scales; i++) scales[i] = (uint8_t)(mode == 1 ? kt_below(127) : 100 + kt_below(50));
        if (mode == 2)
            for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(codes[i] == 0xff || codes[i] == 0x7f ? 1 : codes[i]);
        s.w = codes;
        s.scales = scales;
        struct cpu_weight w;
        mb_error err;
        assert_int_equal(cpu_pack_plan(&s, &w, &err), MB_OK);
        struct kt_buf packed = kt_alloc(2 * w.block_bytes);
        cpu_pack_blocks(&s, 0, 2, packed.p);
        w.data = packed.p;
        for (int64_t r = 0; r < 20; r++) {
            float row[64];
            plain.gather_row(&w, r, row);
            for (int k = 0; k < 64; k++) {
                int g = s.spec.group_size;
                uint8_t sc = scales[r * (64 / g) + k / g];
                double scale = mode == 1 ? ((sc >> 3) ? ldexp(1.0 + (sc & 7) / 8.0, (sc >> 3) - 7) : ldexp(sc & 7, -9)) : ldexp(1.0, sc - 127);
                double v;
                if (mode == 2) {
                    uint8_t c = codes[r * 64 + k];
                    int e = (c >> 3) & 15;
                    v = e ? ldexp(1.0 + (c & 7) / 8.0, e - 7) : ldexp(c & 7, -9);
                    if (c & 128) v = -v;
                } else {
                    uint8_t c = (uint8_t)((codes[(r * 64 + k) / 2] >> (4 * (k & 1))) & 15);
                    v = c & 8 ? -(double)fp4[c & 7] : (double)fp4[c & 7];
                }
                if ((double)row[k] != v * scale) fail_msg("mode %d row %d k %d: want %g got %g", mode, (int)r, k, v * scale, (double)row[k]);
            }
        }
        kt_free(&packed);
    }
}

static void test_pack_refusals(void **state)
{
    (void)state;
    struct pack_source s = { { QUANT_AFFINE, 4, 64 }, DT_BF16, 16, 96, "", "", "", false, 0, DT_F32, 0 };
    struct cpu_weight w;
    mb_error err;
    assert_int_equal(cpu_pack_plan(&s, &w, &err), MB_BAD_FORMAT); /* 96 % 64 */
    s.k = 128;
    s.spec.bits = 7;
    assert_int_equal(cpu_pack_plan(&s, &w, &err), MB_UNSUPPORTED);
    s.spec = (struct quant_spec){ QUANT_TRELLIS, 5, 32 };
    assert_int_equal(cpu_pack_plan(&s, &w, &err), MB_UNSUPPORTED);
    s.spec = (struct quant_spec){ QUANT_NONE, 0, 0 };
    s.dt = DT_U8;
    assert_int_equal(cpu_pack_plan(&s, &w, &err), MB_UNSUPPORTED);
}

/* --- bench --- */

static void bench_one(int bits, int g, enum act_form form, int64_t n, int64_t k, int64_t m)
{
    struct cpu_kernels t[LEVELS_MAX];
    int levels = levels_of(t);
    struct problem pr = problem_make(bits, g, DT_BF16, n, k);
    struct kt_buf x = kt_alloc((size_t)(m * k) * 4), y = kt_alloc((size_t)(m * n) * 4), ab;
    x_fill((float *)x.p, m, k, PLAIN);
    struct cpu_act a = act_make(&t[0], form, g ? g : 32, k, m, (float *)x.p, &ab);
    for (int l = 0; l < levels; l++) {
        double best;
        KT_TIME(best, pick(&t[l], pr.w.type, form)(&pr.w, 0, n / 16, &a, 0, m, (float *)y.p, n));
        printf("%-9s w%-2d g%-3d %s n %5lld k %5lld m %3lld: %8.1f GOP/s %7.1f GB/s of weights\n", t[l].level, bits, g,
               form == ACT_F32 ? "f32" : form == ACT_Q8 ? "q8 " : "q16", (long long)n, (long long)k, (long long)m,
               2e-9 * (double)(m * n * k) / best, 1e-9 * (double)pr.packed.size / best);
    }
    kt_free(&x);
    kt_free(&y);
    kt_free(&ab);
    problem_free(&pr);
}

static void bench(void)
{
    static const int64_t ms[] = { 1, 4, 64 };
    for (int mi = 0; mi < 3; mi++)
        for (int f = 1; f < 3; f++) {
            bench_one(4, 32, (enum act_form)f, 1536, 576, ms[mi]);
            bench_one(4, 64, (enum act_form)f, 1536, 576, ms[mi]);
            bench_one(8, 64, (enum act_form)f, 1536, 576, ms[mi]);
        }
    bench_one(4, 64, ACT_F32, 1536, 576, 16);
    bench_one(0, 0, ACT_F32, 1536, 576, 1);
    bench_one(0, 0, ACT_F32, 1536, 576, 64);
    struct cpu_kernels t[LEVELS_MAX];
    int levels = levels_of(t);
    struct kt_buf x = kt_alloc(576 * 64 * 4), y = kt_alloc(act_row_bytes(ACT_Q16, 576, 64) * 64);
    x_fill((float *)x.p, 64, 576, PLAIN);
    for (int l = 0; l < levels; l++)
        for (int f = 1; f < 3; f++) {
            double best;
            KT_TIME(best, t[l].quantise_rows((enum act_form)f, 64, 576, 64, (float *)x.p, 576, y.p, act_row_bytes((enum act_form)f, 576, 64)));
            printf("%-9s quantise %s: %.2f ns per value\n", t[l].level, f == 1 ? "q8" : "q16", best * 1e9 / (576 * 64));
        }
    kt_free(&x);
    kt_free(&y);
}

int main(int argc, char **argv)
{
    kt_seed();
    if (kt_bench_asked(argc, argv)) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b109_portable_equals_contract), cmocka_unit_test(test_quantise_levels),
        cmocka_unit_test(test_levels_quantised),              cmocka_unit_test(test_b109_levels_widths_and_pieces),
        cmocka_unit_test(test_levels_float),
        cmocka_unit_test(test_levels_extreme),                cmocka_unit_test(test_pack_fp_formats),
        cmocka_unit_test(test_pack_refusals),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
