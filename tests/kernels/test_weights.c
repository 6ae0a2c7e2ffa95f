/* test_weights.c: packed weights share chunks of memory: what one holds does not change while others come and go. A row that
 * is read from the checkpoint (gather_only) is the row of the packed form. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/trellis.h"
#include "ops/cpu/kernels.h"
#include "ops/ops.h"

enum { N_WEIGHTS = 48 };

static float element(int i_weight, int64_t row, int64_t k)
{
    return (float)(i_weight * 1000003 % 977) + (float)(row * 31 + k) * 0.25f;
}

/* Small and middling ones, and some above a quarter of a chunk. */
static void pack(struct device *d, struct weight *w, int i)
{
    int64_t n = i % 12 == 5 ? 2100 : 16 * (i % 7) + 5, k = i % 12 == 5 ? 1024 : 8 * (1 + i % 9);
    float *x = malloc((size_t)(n * k) * sizeof *x);
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < k; j++) x[r * k + j] = element(i, r, j);
    struct weight_source src = { .spec = { .mode = QUANT_NONE }, .dt = DT_F32, .n = n, .k = k, .w = x, .i_module = -1,
                                 .name = "w" };
    mb_error err = { 0 };
    *w = (struct weight){ .n = n, .k = k };
    if (ops_cpu.pack(d, &src, w, &err) != MB_OK) fail_msg("%s", err.text);
    free(x);
}

static void check(struct device *d, const struct weight *w, int i)
{
    float row[1024];
    for (int64_t r = 0; r < w->n; r += w->n > 100 ? 97 : 3) {
        ops_cpu.weight_row(d, w, r, row);
        for (int64_t j = 0; j < w->k; j++)
            if (row[j] != element(i, r, j)) fail_msg("weight %d row %d column %d: %g", i, (int)r, (int)j, (double)row[j]);
    }
}

static void test_weights_come_and_go(void **state)
{
    (void)state;
    struct device *d;
    struct device_options opt = { .n_threads = 2, .n_ranks = 1 };
    struct weight w[N_WEIGHTS];
    mb_error err = { 0 };
    assert_int_equal(ops_cpu.device_open(&d, &opt, &err), MB_OK);
    for (int i = 0; i < N_WEIGHTS; i++) pack(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i++) check(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i += 2) ops_cpu.weight_free(d, &w[i]);
    for (int i = 1; i < N_WEIGHTS; i += 2) check(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i += 2) pack(d, &w[i], i);
    for (int i = 0; i < N_WEIGHTS; i++) check(d, &w[i], i);
    for (int i = N_WEIGHTS - 1; i >= 0; i--) ops_cpu.weight_free(d, &w[i]); /* the last of a chunk takes it along */
    for (int i = 0; i < 8; i++) pack(d, &w[i], i);
    for (int i = 0; i < 8; i++) check(d, &w[i], i);
    ops_cpu.device_close(d); /* with weights alive */
    for (int i = 0; i < 8; i++) free(w[i].impl);
}

/* --- rows of the mapped form --- */

enum { N = 37, K = 128 };

static uint32_t random_u32(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

/* Elements or scales of type dt, about 1; block scales of the fp formats are bytes: powers of two near 1, or e4m3 above 0. */
static void scales_fill(uint8_t *p, size_t n, enum quant_mode mode, enum dtype dt)
{
    for (size_t i = 0; i < n; i++) {
        float v = (float)(int)(random_u32() % 2001) * 1e-3f - 1.0f;
        uint16_t h = dt == DT_F16 ? f32_to_f16(v) : f32_to_bf16(v);
        if (mode == QUANT_MXFP4 || mode == QUANT_MXFP8) p[i] = (uint8_t)(120 + random_u32() % 16);
        else if (mode == QUANT_NVFP4) p[i] = (uint8_t)(random_u32() % 127);
        else if (dt == DT_F32) memcpy(p + 4 * i, &v, 4);
        else memcpy(p + 2 * i, &h, 2);
    }
}

static void check_mapped(struct device *d, struct quant_spec spec, enum dtype dt)
{
    static _Alignas(64) uint8_t codes[4 * N * K], scales[4 * N * K], biases[4 * N * K];
    size_t n_groups = spec.group_size ? (size_t)(N * K / spec.group_size) : 0;
    struct weight packed = { .n = N, .k = K }, mapped = packed;
    float want[K], got[K];
    mb_error err = { 0 };
    if (spec.mode == QUANT_NONE) scales_fill(codes, N * K, spec.mode, dt);
    else for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(random_u32() % 127); /* no NaN of e4m3 */
    scales_fill(scales, n_groups, spec.mode, dt);
    scales_fill(biases, n_groups, QUANT_NONE, dt);
    struct weight_source src = { .spec = spec, .dt = dt, .n = N, .k = K, .w = codes, .i_module = -1, .name = "w" };
    if (spec.mode != QUANT_NONE) src.scales = scales;
    if (spec.mode == QUANT_AFFINE) src.biases = biases;
    if (ops_cpu.pack(d, &src, &packed, &err) != MB_OK) fail_msg("%s", err.text);
    src.gather_only = true;
    if (ops_cpu.pack(d, &src, &mapped, &err) != MB_OK) fail_msg("%s", err.text);
    for (int64_t r = 0; r < N; r++) {
        ops_cpu.weight_row(d, &packed, r, want);
        ops_cpu.weight_row(d, &mapped, r, got);
        for (int j = 0; j < K; j++)
            if (memcmp(&want[j], &got[j], 4) != 0)
                fail_msg("mode %d, %d bits, groups of %d, dtype %d, row %d, column %d: packed %g, mapped %g", (int)spec.mode, spec.bits,
                         spec.group_size, (int)dt, (int)r, j, (double)want[j], (double)got[j]);
    }
    ops_cpu.weight_free(d, &packed);
    ops_cpu.weight_free(d, &mapped);
}

static void test_mapped_rows_equal_packed(void **state)
{
    (void)state;
    static const enum dtype floats[] = { DT_F32, DT_F16, DT_BF16 };
    static const int bits[] = { 2, 3, 4, 5, 6, 8 }, groups[] = { 32, 64, 128 };
    struct device *d;
    struct device_options opt = { .n_threads = 1, .n_ranks = 1 };
    mb_error err = { 0 };
    assert_int_equal(ops_cpu.device_open(&d, &opt, &err), MB_OK);
    for (int f = 0; f < 3; f++) {
        check_mapped(d, (struct quant_spec){ QUANT_NONE, 0, 0 }, floats[f]);
        for (int b = 0; b < 6; b++)
            for (int g = 0; g < 3; g++) check_mapped(d, (struct quant_spec){ QUANT_AFFINE, bits[b], groups[g] }, floats[f]);
    }
    for (int f = 0; f < 3; f++)
        for (int b = 2; b <= 4; b++)
            for (int g = 0; g < 3; g++) check_mapped(d, (struct quant_spec){ QUANT_TRELLIS, b, groups[g] }, floats[f]);
    check_mapped(d, (struct quant_spec){ QUANT_MXFP4, 4, 32 }, DT_U8);
    check_mapped(d, (struct quant_spec){ QUANT_MXFP8, 8, 32 }, DT_U8);
    check_mapped(d, (struct quant_spec){ QUANT_NVFP4, 4, 16 }, DT_U8);
    ops_cpu.device_close(d);
}

/* REG-182 CFG-139: packed, a trellis-coded matrix is byte for byte the affine one of 8 bits with its codes, its scales s and biases
 * -128 s, so that every kernel's proof holds for it. As columns (turned) it is the same floats. */
static void check_trellis(int bits, int g, enum dtype dt)
{
    enum { K2 = 320 }; /* a whole span and a part of one; 37 rows: a tail */
    static uint8_t codes[N * K2], scales[4 * N * K2 / 32], plain[N * K2], s32[4 * N * K2 / 32], b32[4 * N * K2 / 32];
    static _Alignas(64) uint8_t got[3 * 16 * K2 * 8], want[3 * 16 * K2 * 8];
    static float values[N * K2];
    const int64_t k = g == 128 ? 256 : K2;
    const struct quant_spec spec = { QUANT_TRELLIS, bits, g };
    struct cpu_weight w, v;
    mb_error err = { 0 };
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)random_u32();
    scales_fill(scales, (size_t)(N * k / g), QUANT_TRELLIS, dt);
    for (int64_t r = 0; r < N; r++) trellis_codes(codes + r * k * bits / 8, bits, k, 0, k, plain + r * k);
    for (int64_t i = 0; i < N * k / g; i++) {
        float s = dtype_float_at(scales, dt, i), b = -128.0f * s;
        uint16_t s16 = f32_to_bf16(s), b16 = f32_to_bf16(b);
        memcpy(s32 + (dt == DT_BF16 ? 2 : 4) * i, dt == DT_BF16 ? (const void *)&s16 : &s, dt == DT_BF16 ? 2 : 4);
        memcpy(b32 + (dt == DT_BF16 ? 2 : 4) * i, dt == DT_BF16 ? (const void *)&b16 : &b, dt == DT_BF16 ? 2 : 4);
    }
    struct pack_source t = { .spec = spec, .dt = dt, .n = N, .k = k, .w = codes, .scales = scales };
    struct pack_source a = { .spec = { QUANT_AFFINE, 8, g }, .dt = dt == DT_BF16 ? DT_BF16 : DT_F32, .n = N, .k = k, .w = plain,
                             .scales = s32, .biases = b32 };
    assert_int_equal(cpu_pack_plan(&t, &w, &err), MB_OK);
    assert_int_equal(cpu_pack_plan(&a, &v, &err), MB_OK);
    assert_true(w.type == v.type && w.dt == v.dt && w.g == v.g && w.block_bytes == v.block_bytes && 3 * w.block_bytes <= sizeof got);
    cpu_pack_blocks(&t, 0, 3, got);
    cpu_pack_blocks(&a, 0, 3, want);
    assert_memory_equal(got, want, 3 * w.block_bytes);
    trellis_dequantise(&spec, codes, scales, dt, N, k, values);
    t = (struct pack_source){ .spec = spec, .dt = dt, .n = k, .k = N, .w = codes, .scales = scales, .turned = true };
    assert_int_equal(cpu_pack_plan(&t, &w, &err), MB_OK);
    assert_int_equal(w.type, CPU_W_F);
    for (int64_t b = 0; b < k / 16; b++) {
        cpu_pack_blocks(&t, b, b + 1, got);
        for (int64_t i = 0; i < N; i++)
            for (int64_t r = 0; r < 16; r++) assert_memory_equal(got + 4 * (i * 16 + r), &values[i * k + 16 * b + r], 4);
    }
}

static void test_trellis_is_packed_as_affine(void **state)
{
    (void)state;
    static const enum dtype floats[] = { DT_F32, DT_F16, DT_BF16 };
    for (int f = 0; f < 3; f++)
        for (int bits = 2; bits <= 4; bits++)
            for (int g = 32; g <= 128; g *= 2) check_trellis(bits, g, floats[f]);
}

/* Rows as bfloat16 are the elements one by one, for every code and every scale byte. */
static void check_fp_rows(struct quant_spec spec)
{
    enum { ROWS = 64, ROW = 512 };
    static uint8_t codes[ROWS * ROW], scales[ROWS * ROW / 16];
    uint16_t got[ROW];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)random_u32();
    for (size_t i = 0; i < sizeof scales; i++) scales[i] = (uint8_t)i;
    struct pack_source src = { .spec = spec, .dt = DT_U8, .n = ROWS, .k = ROW, .w = codes, .scales = scales };
    for (int64_t r = 0; r < ROWS; r++) {
        cpu_fp_row(&src, r, got);
        for (int64_t k = 0; k < ROW; k++)
            if (got[k] != f32_to_bf16(cpu_fp_value(&src, r, k)))
                fail_msg("mode %d, row %d, column %d: %04x, the element is %g", (int)spec.mode, (int)r, (int)k, got[k], (double)cpu_fp_value(&src, r, k));
    }
}

static void test_fp_rows_are_their_elements(void **state)
{
    (void)state;
    check_fp_rows((struct quant_spec){ QUANT_MXFP4, 4, 32 });
    check_fp_rows((struct quant_spec){ QUANT_MXFP8, 8, 32 });
    check_fp_rows((struct quant_spec){ QUANT_NVFP4, 4, 16 });
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_weights_come_and_go), cmocka_unit_test(test_mapped_rows_equal_packed),
                                        cmocka_unit_test(test_trellis_is_packed_as_affine), cmocka_unit_test(test_fp_rows_are_their_elements) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
