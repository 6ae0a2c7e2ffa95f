/* test_trellis.c: trellis-coded rows (format/trellis.h, docs/trellis.md): the layout against a reader written from its description, the
 * codebook frozen, and what the search makes: errors, edges, the same bits again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "format/quantise.h"
#include "format/trellis.h"

static uint64_t seed = 20260101;

static uint32_t random_u32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

/* Near a normal distribution: twelve uniform ones. */
static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)(random_u32() >> 8) * 0x1p-24f;
    return sum - 6.0f;
}

/* REG-190: a change of the codebook would change every checkpoint there is. */
static void test_codebook_is_frozen(void **state)
{
    (void)state;
    uint8_t code[4096];
    double sum = 0, square = 0;
    for (uint32_t s = 0; s < 4096; s++) {
        code[s] = trellis_code(s);
        sum += code[s] - 128.0;
        square += (code[s] - 128.0) * (code[s] - 128.0);
    }
    assert_true(fabs(sum / 4096) < 1 && sqrt(square / 4096) > 36 && sqrt(square / 4096) < 38);
    static const uint8_t first[8] = { 135, 125, 124, 169, 135, 156, 112, 156 };
    assert_memory_equal(code, first, sizeof first);
    assert_int_equal(XXH3_64bits(code, sizeof code), 0x79a2bbc8a7dd26bbull);
}

/* --- layout --- */

static int stream_bit(const uint8_t *row, int64_t at)
{
    return row[at / 8] >> at % 8 & 1;
}

/* As docs/trellis.md says it, bit by bit. */
static uint8_t code_by_definition(const uint8_t *row, int bits, int64_t n_in, int64_t i)
{
    int64_t span = i / 256 * 256, ring = (n_in - span < 256 ? n_in - span : 256) * bits;
    uint32_t window = 0;
    for (int b = 0; b < 12; b++) {
        int64_t at = (i - span + 1) * bits - 12 + b;
        window |= (uint32_t)stream_bit(row, span * bits + (at + ring) % ring) << b;
    }
    return trellis_code(window);
}

/* REG-179 REG-180 REG-190 */
static void test_reader_follows_the_description(void **state)
{
    (void)state;
    static const int64_t widths[] = { 32, 64, 256, 288, 480, 512, 640 };
    for (int bits = 2; bits <= 4; bits++)
        for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
            int64_t n = widths[w];
            uint8_t *row = malloc((size_t)(n * bits / 8)), *all = malloc((size_t)n), some[64];
            for (int64_t i = 0; i < n * bits / 8; i++) row[i] = (uint8_t)random_u32();
            trellis_codes(row, bits, n, 0, n, all);
            for (int64_t i = 0; i < n; i++) assert_int_equal(all[i], code_by_definition(row, bits, n, i));
            for (int64_t first = 0; first + 32 <= n; first += 16) { /* any piece is the same */
                trellis_codes(row, bits, n, first, 32, some);
                assert_memory_equal(some, all + first, 32);
            }
            free(row);
            free(all);
        }
}

static void test_values(void **state)
{
    (void)state;
    static const float scales[] = { 0, 1, -1, 0.001f, -3.25f, 0x1p-140f, 1e30f };
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++)
        for (int c = 0; c < 256; c++) {
            float v = trellis_value((uint8_t)c, scales[s]);
            assert_true(v == scales[s] * (float)(c - 128)); /* one rounding of the product */
            if (c == 128) assert_true(!signbit(v));
        }
}

/* --- writing --- */

static double error_of(const float *a, const float *b, int64_t n)
{
    double e = 0, v = 0;
    for (int64_t i = 0; i < n; i++) {
        e += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        v += (double)b[i] * b[i];
    }
    return e / v;
}

enum { WIDE = 896 };

struct written {
    uint8_t codes[WIDE / 2], scales[WIDE / 8];
    float out[WIDE];
};

static bool write_row(int bits, int group, enum dtype dt, const float *row, int64_t n, struct written *w)
{
    struct quant_spec s = { QUANT_TRELLIS, bits, group };
    struct trellis_search *t = trellis_search_open(bits);
    memset(w, 0xee, sizeof *w);
    assert_non_null(t);
    bool ok = trellis_quantise_row(t, &s, row, n, dt, w->codes, w->scales);
    trellis_search_close(t);
    if (ok) trellis_dequantise(&s, w->codes, w->scales, dt, 1, n, w->out);
    return ok;
}

/* REG-179: write, read, dequantise; at the same bits per weight (one scale of 64 here, scale and bias of 128 there) well below affine
 * codes. */
static void test_error_below_affine(void **state)
{
    (void)state;
    static const double bound[5] = { 0, 0, 0.09, 0.025, 0.007 };
    static const enum dtype types[] = { DT_BF16, DT_F16, DT_F32 };
    float row[WIDE], affine[WIDE];
    uint8_t codes[WIDE], scales[WIDE / 8], biases[WIDE / 8];
    struct written w;
    for (int bits = 2; bits <= 4; bits++)
        for (int d = 0; d < 3; d++) {
            struct quant_spec a = { QUANT_AFFINE, bits, 128 };
            for (int i = 0; i < WIDE; i++) row[i] = 0.02f * random_normal();
            floats_round(row, WIDE, types[d]);
            assert_true(write_row(bits, 64, types[d], row, WIDE, &w));
            assert_true(quantise_row(&a, row, WIDE, types[d], codes, scales, biases));
            quant_affine_dequantise(&a, (const void *)codes, scales, biases, types[d], 1, WIDE, affine);
            double ours = error_of(w.out, row, WIDE), theirs = error_of(affine, row, WIDE);
            if (ours > bound[bits] || ours > 0.7 * theirs) fail_msg("%d bits, %s: error %g, affine %g", bits, dtype_get(types[d])->name, ours, theirs);
        }
}

/* A span that is short, and groups of all sizes; nothing behind the row is written. */
static void test_every_shape(void **state)
{
    (void)state;
    static const int groups[] = { 32, 64, 128 };
    float row[WIDE];
    struct written w;
    for (int bits = 2; bits <= 4; bits++)
        for (int g = 0; g < 3; g++)
            for (int64_t n = groups[g]; n <= 384; n += groups[g] == 32 ? 96 : groups[g]) {
                for (int i = 0; i < n; i++) row[i] = random_normal();
                assert_true(write_row(bits, groups[g], DT_BF16, row, n, &w));
                assert_true(error_of(w.out, row, n) < (bits == 2 ? 0.2 : bits == 3 ? 0.06 : 0.02));
                assert_int_equal(w.codes[n * bits / 8], 0xee);
                assert_int_equal(w.scales[n / groups[g] * 2], 0xee);
            }
}

/* The search keeps nothing from row to row. */
static void test_same_bits_again(void **state)
{
    (void)state;
    float a[WIDE], b[WIDE];
    struct written one, two, other;
    struct quant_spec s = { QUANT_TRELLIS, 3, 32 };
    struct trellis_search *t = trellis_search_open(3);
    for (int i = 0; i < WIDE; i++) {
        a[i] = random_normal();
        b[i] = random_normal();
    }
    assert_true(write_row(3, 32, DT_F16, a, WIDE, &one));
    memset(&two, 0xee, sizeof two);
    assert_true(trellis_quantise_row(t, &s, b, WIDE, DT_F16, other.codes, other.scales));
    assert_true(trellis_quantise_row(t, &s, a, WIDE, DT_F16, two.codes, two.scales));
    assert_memory_equal(one.codes, two.codes, sizeof one.codes);
    assert_memory_equal(one.scales, two.scales, sizeof one.scales);
    trellis_search_close(t);
}

static void test_edges(void **state)
{
    (void)state;
    float row[256];
    struct written w;
    memset(row, 0, sizeof row);
    assert_true(write_row(4, 64, DT_BF16, row, 256, &w));
    for (int i = 0; i < 256; i++) assert_true(w.out[i] == 0);
    for (int i = 0; i < 64; i++) row[i] = 0x1p-20f * (float)(i % 5 - 2); /* a group far below the others, and near the least of float16 */
    for (int i = 128; i < 256; i++) row[i] = random_normal();
    row[200] = 40; /* one weight far outside: the scale gives way */
    assert_true(write_row(4, 64, DT_F16, row, 256, &w));
    assert_true(error_of(w.out, row, 64) < 0.05);
    for (int i = 64; i < 128; i++) assert_true(w.out[i] == 0);
    assert_true(fabsf(w.out[200] - 40) < 2);
    row[7] = INFINITY;
    assert_false(write_row(4, 64, DT_F16, row, 256, &w));
    row[7] = NAN;
    assert_false(write_row(2, 64, DT_BF16, row, 256, &w));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codebook_is_frozen),  cmocka_unit_test(test_reader_follows_the_description),
        cmocka_unit_test(test_values),              cmocka_unit_test(test_error_below_affine),
        cmocka_unit_test(test_every_shape),         cmocka_unit_test(test_same_bits_again),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests_name("trellis", tests, NULL, NULL);
}
