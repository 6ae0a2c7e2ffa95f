/* test_quant.c: half precision exhaustively, packed codes at every width, and config.json's quantization entry (B-113). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "format/quant.h"

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The value by its definition, in double. */
static double f16_value(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 0 ? ldexp(mantissa, -24) : exponent == 31 ? INFINITY : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -v : v;
}

static bool f16_is_nan(uint16_t h)
{
    return (h & 0x7c00) == 0x7c00 && (h & 1023);
}

static void test_f16_to_f32_all(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (f16_is_nan((uint16_t)h)) assert_true(isnan(f));
        else assert_true((double)f == f16_value((uint16_t)h) && !!signbit(f) == (h >= 0x8000));
        if (!f16_is_nan((uint16_t)h)) assert_int_equal(f32_to_f16(f), h);
        else assert_true(f16_is_nan(f32_to_f16(f)));
    }
}

/* Between two neighbours: below, at and above the middle, on both sides of zero. */
static void test_f32_to_f16_rounds_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = f16_value((uint16_t)h), high = h == 0x7bff ? 65536.0 : f16_value((uint16_t)(h + 1));
        float middle = (float)((low + high) / 2); /* exact: one more bit */
        assert_int_equal(f32_to_f16(middle), h & 1 ? h + 1 : h);
        assert_int_equal(f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(f32_to_f16(-middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(from_bits(1)), 0);
    assert_true(f16_is_nan(f32_to_f16(from_bits(0x7f800001))));
    assert_true(f16_is_nan(f32_to_f16(NAN)));
}

static void test_bf16_all(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        assert_int_equal(to_bits(f), h << 16);
        if (isnan(f)) {
            assert_int_equal(f32_to_bf16(f), h | 0x40);
            continue;
        }
        assert_int_equal(f32_to_bf16(f), h);
        if ((h & 0x7fff) >= 0x7f80) continue;
        assert_int_equal(f32_to_bf16(from_bits(h << 16 | 0x8000)), h & 1 ? h + 1 : h); /* a tie */
        assert_int_equal(f32_to_bf16(from_bits(h << 16 | 0x7fff)), h);
        assert_int_equal(f32_to_bf16(from_bits(h << 16 | 0x8001)), h + 1);
    }
    assert_int_equal(f32_to_bf16(from_bits(0x7f800001)), 0x7fc0); /* stays a NaN */
}

static void test_dtypes(void **state)
{
    (void)state;
    for (int i = 0; i < DT_COUNT; i++) {
        enum dtype t;
        const struct dtype_row *row = dtype_get((enum dtype)i);
        assert_true(dtype_parse(row->name, strlen(row->name), &t));
        assert_int_equal(t, i);
        assert_true(row->size_bytes >= 1 && row->size_bytes <= 8);
    }
    enum dtype t;
    assert_false(dtype_parse("F32x", 4, &t));
    assert_false(dtype_parse("", 0, &t));
}

/* A bit stream written one bit at a time must read back code by code, and dequantise to scale * code + bias. */
/* REG-168 REG-171 */
static void test_codes_at_every_width(void **state)
{
    (void)state;
    static const int widths[] = { 2, 3, 4, 5, 6, 8 };
    for (size_t k = 0; k < 6; k++) {
        int bits = widths[k];
        struct quant_spec s = { QUANT_AFFINE, bits, 32 };
        uint32_t words[2 * 16] = { 0 }, codes[128];
        float scales[4] = { 0.5f, -1.25f, 3.0f, 0.0f }, biases[4] = { 1.0f, 2.0f, -7.5f, 0.25f }, out[128];
        int64_t n_words = quant_row_words(&s, 64);
        assert_int_equal(n_words, 64 * bits / 32);
        for (int i = 0; i < 128; i++) {
            codes[i] = (uint32_t)(i * 2654435761u >> 7) & ((1u << bits) - 1);
            for (int b = 0; b < bits; b++) {
                int at = i % 64 * bits + b;
                words[i / 64 * n_words + at / 32] |= (codes[i] >> b & 1) << at % 32;
            }
        }
        for (int i = 0; i < 64; i++) assert_int_equal(quant_code_get(words, bits, i), codes[i]);
        quant_affine_dequantise(&s, words, scales, biases, DT_F32, 2, 64, out);
        for (int i = 0; i < 128; i++) assert_true(out[i] == fmaf(scales[i / 32], (float)codes[i], biases[i / 32]));
        uint8_t half[9] = { 0 }; /* an odd address */
        uint16_t one = f32_to_f16(0.5f), four[4] = { one, one, one, one };
        memcpy(half + 1, four, 8);
        quant_affine_dequantise(&s, words, half + 1, half + 1, DT_F16, 2, 64, out);
        assert_true(out[5] == 0.5f * (float)codes[5] + 0.5f);
    }
}

static mb_status read_config(struct quant_config **q, const char *text, mb_error *err)
{
    json_t *config;
    assert_int_equal(json_read(&config, text, strlen(text), 0, err), MB_OK);
    mb_status st = quant_config_read(q, config, err);
    json_decref(config);
    return st;
}

static void expect_spec(const struct quant_config *q, const char *path, enum quant_mode mode, int bits, int group)
{
    struct quant_spec s = quant_config_get(q, path);
    if (s.mode != mode || s.bits != bits || s.group_size != group) print_message("%s\n", path);
    assert_int_equal(s.mode, mode);
    assert_int_equal(s.bits, bits);
    assert_int_equal(s.group_size, group);
}

/* REG-163 */
static void test_b113_overrides_under_any_prefix(void **state) /* B-113 */
{
    (void)state;
    struct quant_config *q;
    mb_error err = { 0 };
    assert_int_equal(read_config(&q,
        "{\"quantization\":{\"group_size\":64,\"bits\":4,"
        "\"model.language_model.layers.0.self_attn.q_proj\":{\"group_size\":128,\"bits\":6},"
        "\"language_model.model.layers.1.mlp.up_proj\":{\"group_size\":64,\"bits\":8},"
        "\"model.layers.2.mlp.gate\":false,\"model.layers.3.mlp.gate\":true,"
        "\"language_model.lm_head\":{\"group_size\":32,\"bits\":5,\"mode\":\"affine\"},"
        "\"model.layers.4.mlp.experts.up_proj\":{\"mode\":\"mxfp4\"},"
        "\"model.layers.5.x\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"},"
        "\"model.layers.7.x\":{\"mode\":\"trellis\",\"bits\":3},"
        "\"model.layers.6.x\":{\"bits\":8}},"
        "\"quantization_config\":{\"quant_method\":\"awq\"}}", &err), MB_OK);
    static const char *const prefixes[] = { "", "model.", "language_model.", "model.language_model.",
                                            "language_model.model." };
    for (size_t i = 0; i < 5; i++) {
        char path[128];
        snprintf(path, sizeof path, "%slayers.0.self_attn.q_proj", prefixes[i]);
        expect_spec(q, path, QUANT_AFFINE, 6, 128);
        snprintf(path, sizeof path, "%slayers.1.mlp.up_proj", prefixes[i]);
        expect_spec(q, path, QUANT_AFFINE, 8, 64);
        snprintf(path, sizeof path, "%slayers.2.mlp.gate", prefixes[i]);
        expect_spec(q, path, QUANT_NONE, 0, 0);
        snprintf(path, sizeof path, "%slm_head", prefixes[i]);
        expect_spec(q, path, QUANT_AFFINE, 5, 32);
    }
    expect_spec(q, "model.layers.3.mlp.gate", QUANT_AFFINE, 4, 64);
    expect_spec(q, "model.layers.4.mlp.experts.up_proj", QUANT_MXFP4, 4, 32);
    expect_spec(q, "model.layers.5.x", QUANT_NVFP4, 4, 16);
    expect_spec(q, "model.layers.6.x", QUANT_AFFINE, 8, 64);
    expect_spec(q, "model.layers.7.x", QUANT_TRELLIS, 3, 64);
    expect_spec(q, "model.layers.9.self_attn.q_proj", QUANT_AFFINE, 4, 64);
    expect_spec(q, "layers.0.self_attn.q_pro", QUANT_AFFINE, 4, 64);
    quant_config_free(q);
}

static void test_b113_mlx_defaults(void **state) /* B-113: an override inherits nothing, as in mlx */
{
    (void)state;
    struct quant_config *q;
    mb_error err = { 0 };
    assert_int_equal(read_config(&q, "{\"quantization_config\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\","
                                     "\"a\":{\"group_size\":64,\"bits\":8}}}", &err), MB_OK);
    expect_spec(q, "b", QUANT_MXFP4, 4, 32);
    expect_spec(q, "a", QUANT_AFFINE, 8, 64);
    quant_config_free(q);
    assert_int_equal(read_config(&q, "{}", &err), MB_OK);
    expect_spec(q, "a", QUANT_NONE, 0, 0);
    quant_config_free(q);
    assert_int_equal(read_config(&q, "{\"quantization\":null}", &err), MB_OK);
    expect_spec(q, "a", QUANT_NONE, 0, 0);
    quant_config_free(q);
}

static void refuse(const char *text, mb_status code, const char *part)
{
    struct quant_config *q = (struct quant_config *)(uintptr_t)text;
    mb_error err = { 0 };
    mb_status st = read_config(&q, text, &err);
    if (st != code || !strstr(err.text, part)) print_message("%s -> %d %s\n", text, st, err.text);
    assert_int_equal(st, code);
    assert_null(q);
    assert_non_null(strstr(err.text, part));
}

static void test_b113_refusals_name_the_key(void **state) /* B-113 */
{
    (void)state;
    refuse("{\"quantization\":{\"group_size\":64,\"bits\":7}}", MB_BAD_FORMAT, "bits is 7");
    refuse("{\"quantization\":{\"group_size\":48,\"bits\":4}}", MB_BAD_FORMAT, "group_size is 48");
    refuse("{\"quantization\":{\"group_size\":64,\"bits\":\"4\"}}", MB_BAD_FORMAT, "bits must be a whole number");
    refuse("{\"quantization\":{\"group_size\":64,\"bits\":4,\"m\":{\"bits\":1}}}", MB_BAD_FORMAT, "quantization.m");
    refuse("{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"zip\"}}", MB_UNSUPPORTED, "unknown quantization mode");
    refuse("{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"mxfp4\"}}", MB_BAD_FORMAT, "groups of 32");
    refuse("{\"quantization\":{\"mode\":\"trellis\",\"bits\":5}}", MB_BAD_FORMAT, "mode trellis has 2, 3 or 4 bits");
    refuse("{\"quantization\":{\"mode\":\"trellis\",\"bits\":1,\"group_size\":64}}", MB_BAD_FORMAT, "found 1 bits");
    refuse("{\"quantization\":{\"mode\":\"trellis\",\"bits\":4,\"group_size\":16}}", MB_BAD_FORMAT, "groups of 16");
    refuse("{\"quantization\":[]}", MB_BAD_FORMAT, "must be an object");
    refuse("{\"quantization\":{\"group_size\":64,\"bits\":4,\"model.a\":false,\"a\":true}}", MB_BAD_FORMAT, "two different");
    refuse("{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}", MB_UNSUPPORTED, "AWQ");
    refuse("{\"quantization_config\":{\"quant_method\":\"gptq\"}}", MB_UNSUPPORTED, "GPTQ");
    refuse("{\"quantization_config\":{\"quant_method\":\"fp8\"}}", MB_UNSUPPORTED, "fp8");
    refuse("{\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}}", MB_UNSUPPORTED, "bitsandbytes");
    refuse("{\"quantization_config\":{\"quant_method\":\"new\"}}", MB_UNSUPPORTED, "unknown scheme");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_to_f32_all),           cmocka_unit_test(test_f32_to_f16_rounds_to_even),
        cmocka_unit_test(test_bf16_all),                 cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_codes_at_every_width),     cmocka_unit_test(test_b113_overrides_under_any_prefix),
        cmocka_unit_test(test_b113_mlx_defaults),        cmocka_unit_test(test_b113_refusals_name_the_key),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
