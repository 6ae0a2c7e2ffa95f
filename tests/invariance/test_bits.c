/* test_bits.c: the same bits on every path below the scheduler, and the same bits as everywhere else (bits.json).
 *
 * For each tiny checkpoint and tier: digests of all logits of a 200-token text, computed with every CPU level of this
 * machine, chunks of 1, 7, 64 and all, 1 and 3 threads, shuffled pages. All digests of one (checkpoint, tier, KV) must be
 * equal, and equal to tests/invariance/bits.json, which every machine, level and compiler must reproduce. A change of a
 * digest is a new numerics version (docs/numerics.md). `MLX_BUN_BITS_WRITE=1 make one T=invariance/test_bits` writes it.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/filemap.h"
#include "base/json.h"
#include "engine/direct.h"
#include "levels.h"

#define BITS "tests/invariance/bits.json"
#define N_TOKENS 200
/* Under a sanitizer every digest is checked, but on one path a level instead of five. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_PATHS 1
#else
#define N_PATHS 5
#endif

static json_t *golden; /* {"numerics_version": 1, "rows": {"llama l1 kv off": "0123456789abcdef", ...}} */

static const struct { const char *name; enum fidelity_tier tier; int kv; } forms[] = {
    { "l1 kv off", TIER_L1, -1 }, { "l1 kv bf16", TIER_L1, KV_BF16 }, { "l2 kv off", TIER_L2, -1 },
    { "f32 kv f32", TIER_F32, KV_F32 },
    { "l1 kv 8", TIER_L1, KV_Q8 }, { "l1 kv 4", TIER_L1, KV_Q4 }, /* check_codes */
};
enum { N_PLAIN = 4 };

/* One way through the model. */
struct path {
    const char *level;
    int n_threads;
    int32_t chunk, page_stride;
};

static uint64_t digest_of(const char *dir, enum fidelity_tier tier, int kv, const struct path *p)
{
    struct device *dev;
    struct model *model;
    struct direct *d;
    mb_error err = { 0 };
    struct device_options dopt = { .n_threads = p->n_threads, .cpu_level = p->level, .n_ranks = 1 };
    if (ops_cpu.device_open(&dev, &dopt, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cpu, .device = dev, .tier = tier, .kv_format = kv, .n_rows_max = 1 };
    if (model_open(&model, dir, &mopt, &err) != MB_OK) fail_msg("%s", err.text);
    if (direct_open(&d, model, N_TOKENS, &err) != MB_OK) fail_msg("%s", err.text);
    direct_reset(d, p->page_stride);
    int32_t n_vocab = model_plan_get(model)->n_vocab, ids[N_TOKENS];
    float *logits = calloc((size_t)N_TOKENS * (size_t)n_vocab, sizeof *logits);
    struct draw *draws = calloc(N_TOKENS, sizeof *draws);
    for (int32_t i = 0; i < N_TOKENS; i++) ids[i] = (i * 37 + 11) % n_vocab;
    for (int32_t i = 0; i < N_TOKENS; i += p->chunk) {
        int32_t n = N_TOKENS - i < p->chunk ? N_TOKENS - i : p->chunk;
        if (direct_run(d, ids + i, n, NULL, logits + (int64_t)i * n_vocab, draws + i, &err) != MB_OK) fail_msg("%s", err.text);
    }
    XXH64_hash_t h = XXH64(logits, (size_t)N_TOKENS * (size_t)n_vocab * sizeof *logits, 0);
    for (int32_t i = 0; i < N_TOKENS; i++) {
        struct { int32_t id; float logprob; } v = { draws[i].id, draws[i].logprob };
        h = XXH64(&v, sizeof v, h);
    }
    free(logits);
    free(draws);
    direct_close(d);
    model_close(model);
    ops_cpu.device_close(dev);
    return h;
}

/* Every path of one (checkpoint, form) gives one digest. */
static void check_form(const char *family, size_t i_form)
{
    char dir[128], key[64], text[24];
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", family);
    snprintf(key, sizeof key, "%s %s", family, forms[i_form].name);
    struct path alone = { "portable", 1, N_TOKENS, 1 };
    uint64_t want = digest_of(dir, forms[i_form].tier, forms[i_form].kv, &alone);
    for (const char **level = levels_of_machine(); *level; level++) {
        const struct path paths[] = {
            { *level, 3, 64, 3 },       { *level, 1, N_TOKENS, 1 }, { *level, 3, N_TOKENS, 1 },
            { *level, 1, 1, 1 },        { *level, 2, 7, 2 },
        };
        for (size_t i = 0; i < N_PATHS; i++) {
            uint64_t got = digest_of(dir, forms[i_form].tier, forms[i_form].kv, &paths[i]);
            if (got != want)
                fail_msg("%s: %s, %d threads, chunk %d, page stride %d gives %016llx, alone on portable %016llx", key, *level,
                         paths[i].n_threads, paths[i].chunk, paths[i].page_stride, (unsigned long long)got,
                         (unsigned long long)want);
        }
    }
    snprintf(text, sizeof text, "%016llx", (unsigned long long)want);
    json_t *rows = json_object_get(golden, "rows");
    if (getenv("MLX_BUN_BITS_WRITE")) {
        json_object_set_new(rows, key, json_string(text));
        return;
    }
    const char *stored = json_string_value(json_object_get(rows, key));
    if (!stored) fail_msg("%s is not in " BITS, key);
    assert_string_equal(text, stored);
}

static void check_family(const char *family)
{
    for (size_t i = 0; i < N_PLAIN; i++) check_form(family, i);
}

static void check_codes(const char *family)
{
    for (size_t i = N_PLAIN; i < sizeof forms / sizeof forms[0]; i++) check_form(family, i);
}

/* T1.18, T5.04, T10.08, T13.06, CFG-076, ENG-139, ENG-140, ENG-148, B-115: keys and values as codes from index 0 on: full and windowed layers, soft caps
 * (gemma2), heads of 64 and of 32 dims and layers that read another's pages (gemma4), sinks (gpt_oss), gates beside recurrent layers
 * (qwen3_5), which stay as they are (ENG-141). */
static void test_code_bits(void **state)
{
    static const char *const families[] = { "llama", "gemma2", "gemma3", "gemma4", "gpt_oss", "qwen3_5" };
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) check_codes(families[i]);
}

static void test_llama_bits(void **state) { check_family("llama"); } /* MOD-006: SwiGLU token by token and over a prompt */
static void test_llama_bf16_bits(void **state) { check_family("llama-bf16"); }
static void test_qwen2_bits(void **state) { check_family("qwen2"); }
static void test_qwen3_bits(void **state) { check_family("qwen3"); }
static void test_gemma3_window_bits(void **state) { check_family("gemma3"); }
static void test_qwen3_moe_bits(void **state) { check_family("qwen3_moe"); }
static void test_mixtral_bits(void **state) { check_family("mixtral"); }
static void test_ministral3_bits(void **state) { check_family("ministral3"); }
static void test_gpt_oss_bits(void **state) { check_family("gpt_oss"); }
static void test_fp_formats_bits(void **state) { check_family("llama-fp"); }
static void test_granite_bits(void **state) { check_family("granite"); }
static void test_minicpm_bits(void **state) { check_family("minicpm"); }
static void test_olmo2_bits(void **state) { check_family("olmo2"); }
static void test_olmo3_bits(void **state) { check_family("olmo3"); }
static void test_smollm3_bits(void **state) { check_family("smollm3"); }
static void test_starcoder2_bits(void **state) { check_family("starcoder2"); }
static void test_phi3_bits(void **state) { check_family("phi3"); }
static void test_glm4_bits(void **state) { check_family("glm4"); }
static void test_gemma_bits(void **state) { check_family("gemma"); }
static void test_gemma2_bits(void **state) { check_family("gemma2"); }
static void test_gemma4_bits(void **state)
{
    check_family("gemma4");
    check_family("gemma4-kv");
    check_family("gemma4-moe");
}
/* What is written already; canvases: tests/golden/test_diffusion.c */
static void test_diffusion_gemma_bits(void **state)
{
    check_family("diffusion_gemma");
    check_family("diffusion_gemma-4bit");
}
/* MOD-036: keys and values are never expanded, in a chunk of one token as in a long one; nor does the choice of an indexer, 40 keys
 * here, depend on the chunk. */
static void test_latent_bits(void **state)
{
    check_family("deepseek_v3");
    check_family("glm4_moe_lite");
    check_family("deepseek_v32");
    check_family("glm_moe_dsa");
}
/* MOD-026: the recurrence is the same in chunks of any length */
static void test_qwen3_5_bits(void **state) { check_family("qwen3_5"); }
static void test_qwen3_5_moe_bits(void **state)
{
    check_family("qwen3_5_moe");
    check_family("qwen3_5_moe-hf");
}
static void test_qwen3_next_bits(void **state) { check_family("qwen3_next"); }

static int load(void **state)
{
    mb_error err;
    if (json_read_file(&golden, BITS, 1 << 20, &err) != MB_OK)
        golden = json_pack("{s:i, s:{}}", "numerics_version", 1, "rows");
    return golden ? 0 : -1;
}

static int store(void **state)
{
    struct buf b;
    mb_error err;
    buf_init(&b, 0);
    if (getenv("MLX_BUN_BITS_WRITE")) {
        struct json_write_opts opts = { .indent = 1, .sort_keys = true, .python_spaces = true };
        json_write(&b, golden, &opts);
        buf_append_char(&b, '\n');
        if (file_write_atomic(BITS, b.data, b.len, &err) != MB_OK) fail_msg("%s", err.text);
    }
    buf_free(&b);
    json_decref(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_bits), cmocka_unit_test(test_llama_bf16_bits), cmocka_unit_test(test_qwen2_bits),
        cmocka_unit_test(test_qwen3_bits), cmocka_unit_test(test_gemma3_window_bits),
        cmocka_unit_test(test_qwen3_moe_bits), cmocka_unit_test(test_mixtral_bits), cmocka_unit_test(test_ministral3_bits),
        cmocka_unit_test(test_gpt_oss_bits), cmocka_unit_test(test_fp_formats_bits),
        cmocka_unit_test(test_granite_bits), cmocka_unit_test(test_minicpm_bits), cmocka_unit_test(test_olmo2_bits),
        cmocka_unit_test(test_olmo3_bits), cmocka_unit_test(test_smollm3_bits), cmocka_unit_test(test_starcoder2_bits), cmocka_unit_test(test_phi3_bits), cmocka_unit_test(test_glm4_bits),
        cmocka_unit_test(test_gemma_bits), cmocka_unit_test(test_gemma2_bits), cmocka_unit_test(test_gemma4_bits),
        cmocka_unit_test(test_diffusion_gemma_bits),
        cmocka_unit_test(test_qwen3_5_bits), cmocka_unit_test(test_qwen3_5_moe_bits), cmocka_unit_test(test_qwen3_next_bits),
        cmocka_unit_test(test_latent_bits), cmocka_unit_test(test_code_bits),
    };
    return cmocka_run_group_tests(tests, load, store);
}
