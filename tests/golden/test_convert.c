/* test_convert.c: GGUF import against the goldens of tests/golden/gguf/ (gguf package, transformers), and its promises about
 * the output folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"
#include "convert/convert.h"
#include "format/safetensors.h"

#define GOLDEN "tests/golden/gguf"

static char root[] = "/tmp/mb-convert-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

/* One imported model, open. */
struct imported {
    char dir[128];
    struct checkpoint *ckpt, *expected;
    struct quant_config *quant;
    json_t *config, *generation, *tokenizer;
    struct convert_report report;
};

static json_t *read_json(const char *dir, const char *name)
{
    char path[256];
    json_t *v = NULL;
    mb_error err = { 0 };
    snprintf(path, sizeof path, "%s/%s", dir, name);
    mb_status st = json_read_file(&v, path, 1 << 24, &err);
    if (st != MB_OK) print_message("%s\n", err.text);
    assert_int_equal(st, MB_OK);
    return v;
}

static void import_open(struct imported *m, const char *arch)
{
    char path[128];
    mb_error err = { 0 };
    struct convert_opts opts = { .report = &m->report };
    memset(m, 0, sizeof *m);
    snprintf(m->dir, sizeof m->dir, "%s/%s", root, arch);
    snprintf(path, sizeof path, GOLDEN "/%s.gguf", arch);
    mb_status st = convert_gguf(path, m->dir, &opts, &err);
    if (st != MB_OK) print_message("%s\n", err.text);
    assert_int_equal(st, MB_OK);
    snprintf(path, sizeof path, GOLDEN "/expected/%s", arch);
    assert_int_equal(checkpoint_open(&m->ckpt, m->dir, &err), MB_OK);
    assert_int_equal(checkpoint_open(&m->expected, path, &err), MB_OK);
    m->config = read_json(m->dir, "config.json");
    m->generation = read_json(m->dir, "generation_config.json");
    m->tokenizer = read_json(m->dir, "tokenizer.json");
    assert_int_equal(quant_config_read(&m->quant, m->config, &err), MB_OK);
}

static void import_close(struct imported *m)
{
    checkpoint_close(m->ckpt);
    checkpoint_close(m->expected);
    quant_config_free(m->quant);
    json_decref(m->config);
    json_decref(m->generation);
    json_decref(m->tokenizer);
}

static float plain_at(const struct tensor_view *t, int64_t i)
{
    float f;
    uint16_t h;
    if (t->dtype == DT_F32) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, t->data + 2 * i, 2);
    return t->dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* The weights of a tensor as the checkpoint and its config.json tell them. */
static float *weights_of(struct imported *m, const char *name, int64_t n, int64_t n_in)
{
    char module[256];
    float *out = malloc((size_t)n * sizeof *out);
    const struct tensor_view *t = checkpoint_find(m->ckpt, name);
    assert_non_null(t);
    snprintf(module, sizeof module, "%.*s", (int)(strrchr(name, '.') - name), name);
    const struct tensor_view *scales = checkpoint_findf(m->ckpt, "%s.scales", module);
    const struct tensor_view *biases = checkpoint_findf(m->ckpt, "%s.biases", module);
    bool is_weight = strcmp(strrchr(name, '.'), ".weight") == 0;
    if (!scales || !is_weight) {
        if (is_weight && t->n_dim == 2) assert_int_equal(quant_config_get(m->quant, module).mode, QUANT_NONE);
        for (int64_t i = 0; i < n; i++) out[i] = plain_at(t, i);
        return out;
    }
    struct quant_spec s = quant_config_get(m->quant, module);
    assert_int_equal(s.mode, QUANT_AFFINE);
    assert_int_equal(t->dtype, DT_U32);
    assert_int_equal(t->shape[1], quant_row_words(&s, n_in));
    assert_int_equal(scales->shape[1], n_in / s.group_size);
    uint32_t *words = malloc(t->size_bytes);
    memcpy(words, t->data, t->size_bytes);
    quant_affine_dequantise(&s, words, scales->data, biases->data, scales->dtype, n / n_in, n_in, out);
    free(words);
    return out;
}

/* The largest difference over one tensor; norms of Gemma are compared as w + 1. */
static double compare(struct imported *m, const struct tensor_view *want, bool gemma)
{
    int64_t n_in = want->shape[want->n_dim - 1], n = (int64_t)(want->size_bytes / 4);
    float *got = weights_of(m, want->name, n, n_in);
    double worst = 0;
    for (int64_t i = 0; i < n; i++) {
        float w = gemma && want->n_dim == 1 ? got[i] + 1.0f : got[i];
        worst = fmax(worst, fabs((double)w - plain_at(want, i)));
        assert_true(w == w);
    }
    free(got);
    return worst;
}

/* Every tensor: equal, but for those named in `rounded`; their largest error is the report's. */
static void compare_all(struct imported *m, const char *rounded, bool gemma)
{
    double worst = 0;
    size_t n_out = 0;
    for (size_t i = 0; i < checkpoint_n_tensors(m->expected); i++) {
        const struct tensor_view *want = checkpoint_at(m->expected, i);
        double error = compare(m, want, gemma);
        bool may_round = strstr(want->name, rounded) != NULL;
        if (error > 0 && !may_round) print_message("%s: off by %g\n", want->name, error);
        if (may_round) worst = fmax(worst, error);
        else assert_true(error == 0);
        int stem = (int)(strstr(want->name, ".weight") ? strrchr(want->name, '.') - want->name : 0);
        n_out += checkpoint_findf(m->ckpt, "%.*s.scales", stem, want->name) ? 3 : 1;
    }
    assert_int_equal(n_out, checkpoint_n_tensors(m->ckpt)); /* and nothing more */
    assert_true(fabs(worst - m->report.worst_error) <= 1e-6 * worst);
    assert_int_equal(m->report.n_tensors, checkpoint_n_tensors(m->expected));
}

static void test_every_type_equals_the_reference(void **state)
{
    (void)state;
    struct imported m;
    import_open(&m, "llama");
    compare_all(&m, "model.layers.1.self_attn.v_proj.weight", false); /* Q6_K */
    assert_int_equal(m.report.n_rounded, 1);
    assert_int_equal(m.report.n_exact, 12);
    assert_int_equal(m.report.n_plain, 9);
    assert_int_equal(m.report.n_f32_scales, 6); /* Q4_K twice, Q5_K, Q6_K twice, a Q8_0 beyond float16 */
    assert_true(m.report.worst_error > 0 && m.report.worst_error_share < 0.004);
    assert_string_equal(m.report.worst_tensor, "model.layers.1.self_attn.v_proj.weight");
    assert_int_equal(checkpoint_find(m.ckpt, "model.layers.0.self_attn.q_proj.scales")->dtype, DT_F16);
    assert_int_equal(checkpoint_find(m.ckpt, "model.layers.1.mlp.up_proj.scales")->dtype, DT_F32);
    assert_int_equal(checkpoint_find(m.ckpt, "model.layers.1.mlp.gate_proj.weight")->dtype, DT_BF16);
    import_close(&m);
}

static void test_llama_config_and_tokenizer(void **state)
{
    (void)state;
    struct imported m;
    import_open(&m, "llama");
    json_t *rope = json_object_get(m.config, "rope_scaling");
    assert_string_equal(json_string_value(json_object_get(rope, "rope_type")), "llama3");
    assert_true(json_number_value(json_object_get(rope, "factor")) == 32.0);
    assert_true(json_number_value(json_object_get(m.config, "rms_norm_eps")) == 1e-6);
    assert_true(json_is_true(json_object_get(m.config, "tie_word_embeddings")));
    assert_int_equal(json_integer_value(json_object_get(m.config, "head_dim")), 8);
    assert_int_equal(json_integer_value(json_object_get(m.config, "vocab_size")), 23);
    assert_int_equal(json_integer_value(json_object_get(m.generation, "eos_token_id")), 20);
    json_t *model = json_object_get(m.tokenizer, "model"), *added = json_object_get(m.tokenizer, "added_tokens");
    assert_int_equal(json_object_size(json_object_get(model, "vocab")), 22); /* the filler is gone */
    assert_int_equal(json_array_size(json_object_get(model, "merges")), 3);
    assert_true(json_is_true(json_object_get(model, "ignore_merges")));
    assert_int_equal(json_array_size(added), 3);
    assert_true(json_is_false(json_object_get(json_array_get(added, 2), "special"))); /* <tool> */
    json_t *post = json_object_get(m.tokenizer, "post_processor"); /* llama-bpe adds bos by itself */
    assert_string_equal(json_string_value(json_object_get(post, "type")), "TemplateProcessing");
    char path[256];
    snprintf(path, sizeof path, "%s/chat_template.jinja", m.dir);
    assert_true(file_exists(path));
    json_t *tc = read_json(m.dir, "tokenizer_config.json");
    assert_string_equal(json_string_value(json_object_get(tc, "eos_token")), "<|im_end|>");
    assert_non_null(strstr(json_string_value(json_object_get(tc, "chat_template")), "im_start"));
    json_decref(tc);
    import_close(&m);
}

static void test_qwen2_rows_stay_in_order(void **state)
{
    (void)state;
    struct imported m;
    import_open(&m, "qwen2");
    compare_all(&m, "no such tensor", false);
    assert_true(json_is_false(json_object_get(m.config, "tie_word_embeddings")));
    assert_non_null(checkpoint_find(m.ckpt, "lm_head.scales"));
    assert_true(json_is_null(json_object_get(m.config, "rope_scaling")));
    import_close(&m);
}

static void test_gemma3_norms_config_and_merges(void **state)
{
    (void)state;
    struct imported m;
    import_open(&m, "gemma3");
    compare_all(&m, "mlp.down_proj.weight", true);
    assert_string_equal(json_string_value(json_object_get(m.config, "model_type")), "gemma3_text");
    assert_int_equal(json_integer_value(json_object_get(m.config, "query_pre_attn_scalar")), 8);
    assert_true(json_number_value(json_object_get(m.config, "rope_local_base_freq")) == 10000.0);
    json_t *types = json_object_get(m.config, "layer_types");
    assert_int_equal(json_array_size(types), 6);
    assert_string_equal(json_string_value(json_array_get(types, 4)), "sliding_attention");
    assert_string_equal(json_string_value(json_array_get(types, 5)), "full_attention");
    json_t *eos = json_object_get(m.generation, "eos_token_id");
    assert_int_equal(json_array_size(eos), 2); /* <eos> and <end_of_turn> */
    json_t *want = read_json(GOLDEN "/expected/gemma3", "merges.json");
    json_t *model = json_object_get(m.tokenizer, "model");
    assert_true(json_equal(want, json_object_get(model, "merges")));
    assert_true(json_is_true(json_object_get(model, "byte_fallback")));
    json_decref(want);
    assert_non_null(strstr(m.report.notes, "no chat template"));
    import_close(&m);
}

/* A norm of Gemma that came from bfloat16 is that bfloat16 number again, not the float32 difference. */
static void test_gemma3_norms_are_bfloat16_again(void **state)
{
    (void)state;
    struct imported m;
    import_open(&m, "gemma3");
    const struct tensor_view *t = checkpoint_find(m.ckpt, "model.layers.3.input_layernorm.weight");
    for (int64_t i = 0; i < t->shape[0]; i++) {
        float w = plain_at(t, i);
        assert_true(bf16_to_f32(f32_to_bf16(w)) == w);
    }
    import_close(&m);
}

/* --- the output folder --- */

static bool stop_at_half(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    return done < total / 2;
}

static size_t count_entries(void)
{
    char command[128], line[32] = "0";
    snprintf(command, sizeof command, "ls -A %s | wc -l", root);
    FILE *f = popen(command, "r");
    assert_non_null(fgets(line, sizeof line, f));
    pclose(f);
    return (size_t)atoi(line);
}

static void test_cancelled_leaves_nothing(void **state)
{
    (void)state;
    char out[128];
    mb_error err = { 0 };
    struct convert_opts opts = { .progress = stop_at_half };
    size_t before = count_entries();
    snprintf(out, sizeof out, "%s/cancelled", root);
    assert_int_equal(convert_gguf(GOLDEN "/llama.gguf", out, &opts, &err), MB_CANCELLED);
    assert_int_equal(count_entries(), before);
}

/* A file that may not grow stands for a full disk: both are refused by the kernel in the middle of the work. */
static void test_full_disk_leaves_nothing(void **state)
{
    (void)state;
    char out[128];
    mb_error err = { 0 };
    struct rlimit old, small = { 8192, RLIM_INFINITY };
    size_t before = count_entries();
    snprintf(out, sizeof out, "%s/full", root);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    mb_status st = convert_gguf(GOLDEN "/llama.gguf", out, NULL, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(st, MB_IO);
    assert_int_equal(count_entries(), before);
}

static void test_target_in_use_is_refused(void **state)
{
    (void)state;
    char out[128], file[160];
    mb_error err = { 0 };
    snprintf(out, sizeof out, "%s/in-use", root);
    assert_int_equal(mkdir(out, 0755), 0);
    snprintf(file, sizeof file, "%s/precious.txt", out);
    assert_int_equal(file_write_atomic(file, "x", 1, &err), MB_OK);
    size_t before = count_entries();
    assert_int_equal(convert_gguf(GOLDEN "/llama.gguf", out, NULL, &err), MB_INVALID);
    assert_non_null(strstr(err.text, "exists already"));
    assert_true(file_exists(file));
    assert_int_equal(count_entries(), before);
    snprintf(out, sizeof out, "%s/empty/", root); /* an empty folder and a slash are fine */
    assert_int_equal(mkdir(out, 0755), 0);
    assert_int_equal(convert_gguf(GOLDEN "/llama.gguf", out, NULL, &err), MB_OK);
    assert_int_equal(convert_gguf(GOLDEN "/none.gguf", "/tmp/never", NULL, &err), MB_NOT_FOUND);
}

static int remove_outputs(void **state)
{
    (void)state;
    char command[160];
    snprintf(command, sizeof command, "rm -rf %s/*", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_type_equals_the_reference, remove_outputs),
        cmocka_unit_test_teardown(test_llama_config_and_tokenizer, remove_outputs),
        cmocka_unit_test_teardown(test_qwen2_rows_stay_in_order, remove_outputs),
        cmocka_unit_test_teardown(test_gemma3_norms_config_and_merges, remove_outputs),
        cmocka_unit_test_teardown(test_gemma3_norms_are_bfloat16_again, remove_outputs),
        cmocka_unit_test_teardown(test_cancelled_leaves_nothing, remove_outputs),
        cmocka_unit_test_teardown(test_full_disk_leaves_nothing, remove_outputs),
        cmocka_unit_test_teardown(test_target_in_use_is_refused, remove_outputs),
    };
    return cmocka_run_group_tests_name("convert", tests, setup, teardown);
}
