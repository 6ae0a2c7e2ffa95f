/* test_kv_form.c: which format each layer's keys and values have (model/kv_form.c), and what a page of it takes. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "engine/open.h"

#define TINY "tests/golden/tiny/"

static char dir[] = "/tmp/kv-form-XXXXXX";

static void config_write(const char *text)
{
    char path[128];
    mb_error err;
    snprintf(path, sizeof path, "%s/kv_config.json", dir);
    if (!text) unlink(path);
    else if (file_write_atomic(path, text, strlen(text), &err) != MB_OK) fail_msg("%s", err.text);
}

static mb_status form(struct model_spec *s, const char *family, int asked, enum fidelity_tier tier, bool codes, mb_error *err)
{
    char path[128];
    snprintf(path, sizeof path, TINY "%s", family);
    *err = (mb_error){ 0 };
    if (model_config_read(s, path, err) != MB_OK) fail_msg("%s", err->text);
    return model_kv_formats(s, dir, asked, tier, codes, err);
}

static void count(const char *family, int asked, enum fidelity_tier tier, int32_t n[KV_FORMAT_COUNT], char mode[40], char note[320])
{
    struct model_spec s;
    mb_error err;
    if (form(&s, family, asked, tier, true, &err) != MB_OK) fail_msg("%s: %s", family, err.text);
    model_kv_count(&s, n);
    snprintf(mode, 40, "%s", model_kv_mode(&s));
    model_kv_note(&s, note, 320);
    for (int i = 0; i < s.n_layer; i++) /* a layer that reads another's pages has that one's kind */
        if (s.layers[i].attn == ATTN_SHARED_KV) assert_int_equal(s.layers[i].i_kind, s.layers[s.layers[i].i_kv_donor].i_kind);
    model_spec_free(&s);
}

/* CFG-032, CFG-075, CFG-076, CFG-111, API-273, ENG-236: the tier presets, a format given overrides */
static void test_uniform(void **state)
{
    (void)state;
    static const struct { const char *family; int asked; enum fidelity_tier tier; int format, n; const char *mode; } rows[] = {
        { "llama", KV_OF_TIER, TIER_L1, KV_F16, 2, "f16" },   { "llama", KV_OF_FAMILY, TIER_F32, KV_F16, 2, "f16" },
        { "llama", KV_OF_TIER, TIER_F32, KV_F32, 2, "f32" },  { "llama", KV_Q8, TIER_F32, KV_Q8, 2, "uniform-kv8" },
        { "qwen2", KV_Q4, TIER_L2, KV_Q4, 2, "uniform-kv4" }, { "qwen2", KV_OF_TIER, TIER_L2, KV_BF16, 2, "bf16" },
        { "gemma3", KV_Q8, TIER_L1, KV_Q8, 4, "uniform-kv8" },
    };
    config_write(NULL);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int32_t n[KV_FORMAT_COUNT];
        char mode[40], note[320];
        count(rows[i].family, rows[i].asked, rows[i].tier, n, mode, note);
        assert_int_equal(n[rows[i].format], rows[i].n);
        assert_string_equal(mode, rows[i].mode);
        assert_int_equal(note[0] != '\0', kv_is_codes(rows[i].asked));
    }
}

/* B-115, ENG-141: what has no codes stays as it is, and is named */
static void test_b115_what_stays(void **state)
{
    (void)state;
    static const struct { const char *family; int32_t codes, f16, f32; const char *why; } rows[] = {
        { "qwen3_5", 2, 0, 2, "recurrent state" }, { "deepseek_v3", 0, 3, 0, "latents" }, { "granite", 0, 2, 0, "whole groups" },
        { "gpt_oss", 2, 0, 0, "groups of 32" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int32_t n[KV_FORMAT_COUNT];
        char mode[40], note[320];
        count(rows[i].family, KV_Q8, TIER_L1, n, mode, note);
        assert_int_equal(n[KV_Q8], rows[i].codes);
        assert_int_equal(n[KV_F16], rows[i].f16);
        assert_int_equal(n[KV_F32], rows[i].f32);
        if (!strstr(note, rows[i].why)) fail_msg("%s: %s", rows[i].family, note);
    }
}

/* CFG-077, CFG-111, REG-156: kv_config.json, layer by layer; --l2 takes it where it is there */
static void test_config(void **state)
{
    (void)state;
    int32_t n[KV_FORMAT_COUNT];
    char mode[40], note[320];
    config_write("[{\"layer_idx\": 0, \"bits\": 8, \"group_size\": 32}, {\"layer_idx\": 2, \"bits\": 4, \"group_size\": 32}]");
    for (int i = 0; i < 2; i++) {
        count("gemma3", i ? KV_OF_TIER : KV_OF_CONFIG, i ? TIER_L2 : TIER_L1, n, mode, note);
        assert_string_equal(mode, "mixed (kv_config.json)");
        assert_true(n[KV_Q8] == 1 && n[KV_Q4] == 1 && n[KV_F16] == 2);
    }
    count("gemma3", KV_OF_FAMILY, TIER_L2, n, mode, note);
    assert_int_equal(n[KV_F16], 4);
    count("gemma3", KV_OF_TIER, TIER_L1, n, mode, note);
    assert_int_equal(n[KV_F16], 4);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct { const char *text; int asked; bool codes; mb_status st; const char *why; } rows[] = {
        { NULL, KV_Q8, false, MB_UNSUPPORTED, "--device cpu" },
        { NULL, KV_OF_CONFIG, true, MB_NOT_FOUND, "kv_config.json" },
        { "{}", KV_OF_CONFIG, true, MB_BAD_FORMAT, "list" },
        { "[3]", KV_OF_CONFIG, true, MB_BAD_FORMAT, "[0] is no object" },
        { "[{\"layer_idx\": 4, \"bits\": 8}]", KV_OF_CONFIG, true, MB_BAD_FORMAT, "layers 0 to 3" },
        { "[{\"layer_idx\": 0, \"bits\": \"8\"}]", KV_OF_CONFIG, true, MB_BAD_FORMAT, "bits" },
        { "[{\"layer_idx\": 0, \"bits\": 3}]", KV_OF_CONFIG, true, MB_UNSUPPORTED, "3 bits for layer 0" },
        { "[{\"layer_idx\": 0, \"bits\": 4, \"group_size\": 64}]", KV_OF_CONFIG, true, MB_UNSUPPORTED, "groups of 32" },
        { "[{\"bits\": 8}]", KV_OF_CONFIG, true, MB_BAD_FORMAT, "kv_config.json[0]: layer_idx is -1" },
        { "[{\"layer_idx\": 0}]", KV_OF_CONFIG, true, MB_UNSUPPORTED, "0 bits for layer 0" },
        { "[{\"layer_idx\": 0, \"bits\": 8, \"group_size\": 32}, {\"layer_idx\": 0, \"bits\": 4, \"group_size\": 32}]", KV_OF_CONFIG, true, MB_BAD_FORMAT,
          "kv_config.json[1]: layer_idx 0 was there before" },
        { "3", KV_OF_CONFIG, true, MB_BAD_FORMAT, "list" },
        { "null", KV_OF_CONFIG, true, MB_BAD_FORMAT, "list" },
        { "", KV_OF_CONFIG, true, MB_BAD_FORMAT, "kv_config.json: JSON: the text is empty" },
        { "[", KV_OF_CONFIG, true, MB_BAD_FORMAT, "kv_config.json" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_spec s;
        mb_error err;
        config_write(rows[i].text);
        mb_status st = form(&s, "gemma3", rows[i].asked, TIER_L1, rows[i].codes, &err);
        if (st != rows[i].st || !strstr(err.text, rows[i].why)) fail_msg("%zu: %d %s", i, (int)st, err.text);
        model_spec_free(&s);
    }
}

/* Whatever stands in the place of a value, and of an entry, is told with its place; nothing is taken for another number. */
static void test_odd_values(void **state)
{
    (void)state;
    static const char *const odd[] = { "-1", "-9223372036854775808", "9223372036854775808", "1e999", "8.5", "true", "false", "\"8\"", "\"\"", "[]", "[8]",
                                       "{}", "{\"bits\": 8}", "1000000", "\"\\ud800\"", "nan", "0x8", "08", "8 8", "'8'" };
    static const char *const keys[] = { "layer_idx", "bits", "group_size" };
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
            char text[256];
            struct model_spec s;
            mb_error err;
            snprintf(text, sizeof text, "[{\"layer_idx\": %s, \"bits\": %s, \"group_size\": %s}]", k == 0 ? odd[i] : "1", k == 1 ? odd[i] : "8",
                     k == 2 ? odd[i] : "32");
            config_write(text);
            mb_status st = form(&s, "gemma3", KV_OF_CONFIG, TIER_L1, true, &err);
            bool named = strstr(err.text, "kv_config.json") && (strstr(err.text, keys[k]) || strstr(err.text, "JSON") || strstr(err.text, " bits for layer 1"));
            if ((st != MB_BAD_FORMAT && st != MB_UNSUPPORTED) || !named) fail_msg("%s: %d %s", text, (int)st, err.text);
            model_spec_free(&s);
        }
}

/* REG-118, ENG-126, CFG-076: pages are as small as the format says, and the same memory holds as much more */
static void test_reg118_sizes(void **state)
{
    (void)state;
    struct engine_loaded info[3];
    static const int asked[3] = { KV_OF_FAMILY, KV_Q8, KV_Q4 };
    for (int i = 0; i < 3; i++) {
        struct model_size size;
        mb_error err = { 0 };
        struct engine_load load = { .dir = TINY "gemma4-kv", .kv_format = asked[i], .n_threads = 1, .memory_budget_bytes = 64 << 20, .engine = { .batch = 1 } };
        if (engine_load_estimate(&load, &info[i], &size, &err) != MB_OK) fail_msg("%s", err.text);
        for (int k = 0; k < size.n_kinds; k++) {
            int64_t d = size.kinds[k].head_dim, wide = (d + 63) / 64 * 64, g = kv_code_group(d);
            size_t want = asked[i] == KV_OF_FAMILY ? (size_t)(d + wide) * 128
                          : (size_t)(d + wide) * (asked[i] == KV_Q8 ? 64 : 32) + (size_t)(d / g) * 2 * 256;
            assert_int_equal(size.kinds[k].head_bytes, want);
        }
    }
    for (int i = 0; i < 3; i++) { /* a pool of so few bytes that it is the bound */
        mb_error err = { 0 };
        struct engine_load load = { .dir = TINY "gemma4-kv", .kv_format = asked[i], .n_threads = 1, .engine = { .batch = 1 } };
        load.memory_budget_bytes = info[i].weight_bytes + info[i].scratch_bytes + (512 << 10);
        if (engine_load_estimate(&load, &info[i], NULL, &err) != MB_OK) fail_msg("%s", err.text);
    }
    assert_true(info[1].max_context_in_pool > info[0].max_context_in_pool && info[2].max_context_in_pool > info[1].max_context_in_pool);
    assert_true(info[1].kv_bytes_per_token < info[0].kv_bytes_per_token && info[2].kv_bytes_per_token < info[1].kv_bytes_per_token);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    config_write(NULL);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform), cmocka_unit_test(test_b115_what_stays), cmocka_unit_test(test_config),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_odd_values), cmocka_unit_test(test_reg118_sizes),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
