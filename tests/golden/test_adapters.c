/* test_adapters.c: adapter folders of every form over the tiny checkpoints, against the float64 forward of
 * tests/oracle/make_adapters.py (which mlx-lm agrees with where it can load the folder), on every level and tier; and the
 * refusals (B-137, B-140), with folders made here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/direct.h"
#include "format/safetensors.h"
#include "levels.h"
#include "model/adapter.h"

#define GOLDEN "tests/golden/adapters"
#define LLAMA "tests/golden/tiny/llama"

struct run {
    struct device *dev;
    struct model *model;
    struct adapter_handle *adapters[PLAN_MAX_STACK];
    int32_t n_adapters;
};

static void run_open(struct run *r, const char *dir, const char *level, enum fidelity_tier tier, int32_t max_rank)
{
    mb_error err = { 0 };
    struct device_options dopt = { .n_threads = 2, .cpu_level = level, .n_ranks = 1 };
    memset(r, 0, sizeof *r);
    if (ops_cpu.device_open(&r->dev, &dopt, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cpu, .device = r->dev, .tier = tier, .kv_format = tier == TIER_F32 ? KV_F32 : KV_OF_TIER,
                                  .n_rows_max = 1, .max_lora_rank = max_rank };
    if (model_open(&r->model, dir, &mopt, &err) != MB_OK) fail_msg("%s", err.text);
}

static struct adapter_info run_mount(struct run *r, const char *dir)
{
    struct adapter_info info;
    mb_error err = { 0 };
    if (adapter_load(&r->adapters[r->n_adapters], &info, r->model, dir, dir, NULL, &err) != MB_OK) fail_msg("%s", err.text);
    r->n_adapters++;
    return info;
}

static void run_close(struct run *r)
{
    for (int32_t i = 0; i < r->n_adapters; i++) adapter_free(r->adapters[i]);
    model_close(r->model);
    ops_cpu.device_close(r->dev);
}

/* Logits [n][n_vocab] of one prompt in chunks; the caller frees. */
static float *run_logits(struct run *r, const int32_t *ids, int32_t n, int32_t chunk)
{
    mb_error err = { 0 };
    struct direct *d;
    int32_t n_vocab = model_plan_get(r->model)->n_vocab;
    float *logits = calloc((size_t)n * (size_t)n_vocab, sizeof *logits);
    struct draw *draws = calloc((size_t)n, sizeof *draws);
    if (direct_open(&d, r->model, n, &err) != MB_OK) fail_msg("%s", err.text);
    direct_set_adapters(d, (const struct adapter_handle *const *)r->adapters, r->n_adapters);
    for (int32_t i = 0; i < n; i += chunk) {
        int32_t m = n - i < chunk ? n - i : chunk;
        if (direct_run(d, ids + i, m, NULL, logits + (int64_t)i * n_vocab, draws + i, &err) != MB_OK) fail_msg("%s", err.text);
    }
    direct_close(d);
    free(draws);
    return logits;
}

static double kl(const float *p, const float *q, int32_t n)
{
    double mp = -INFINITY, mq = -INFINITY, sp = 0, sq = 0, sum = 0;
    for (int32_t i = 0; i < n; i++) { mp = fmax(mp, p[i]); mq = fmax(mq, q[i]); }
    for (int32_t i = 0; i < n; i++) { sp += exp(p[i] - mp); sq += exp(q[i] - mq); }
    for (int32_t i = 0; i < n; i++) sum += exp(p[i] - mp) / sp * ((p[i] - mp - log(sp)) - (q[i] - mq - log(sq)));
    return sum;
}

/* --- goldens --- */

static json_t *cases_open(void)
{
    json_t *root = NULL;
    mb_error err = { 0 };
    if (json_read_file(&root, GOLDEN "/cases.json", 1 << 22, &err) != MB_OK) fail_msg("%s", err.text);
    return root;
}

static const json_t *prompt_of(const json_t *root, const char *checkpoint)
{
    const json_t *list = json_object_get(root, "prompts");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(list, i), "checkpoint")), checkpoint) == 0)
            return json_object_get(json_array_get(list, i), "ids");
    fail_msg("no prompt for %s", checkpoint);
    return NULL;
}

static int32_t read_prompt(const json_t *root, const char *checkpoint, int32_t ids[128])
{
    const json_t *list = prompt_of(root, checkpoint);
    int32_t n = (int32_t)json_array_size(list);
    assert_true(n <= 128);
    for (int32_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static void compare(const json_t *root, const char *file, const float *logits, int32_t n_vocab, double *share, double *mean_kl)
{
    char path[512];
    struct buf want;
    mb_error err = { 0 };
    const json_t *at = json_object_get(root, "positions");
    double worst = 0, largest = 0, sum = 0;
    size_t n = json_array_size(at);
    buf_init(&want, 0);
    snprintf(path, sizeof path, GOLDEN "/%s", file);
    if (file_read(&want, path, 1 << 22, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(want.len, n * (size_t)n_vocab * 4);
    for (size_t p = 0; p < n; p++) {
        const float *w = (const float *)(const void *)want.data + p * (size_t)n_vocab;
        const float *g = logits + json_integer_value(json_array_get(at, p)) * n_vocab;
        for (int32_t i = 0; i < n_vocab; i++) {
            worst = fmax(worst, fabs((double)g[i] - (double)w[i]));
            largest = fmax(largest, fabs((double)w[i]));
        }
        sum += kl(w, g, n_vocab);
    }
    *share = worst / largest;
    *mean_kl = sum / (double)n;
    buf_free(&want);
}

static void check_case(const json_t *root, const json_t *c)
{
    static const struct { enum fidelity_tier tier; double share, kl; } tiers[] = {
        { TIER_F32, 1e-5, 1e-8 }, { TIER_L1, 1, 2e-4 }, { TIER_L2, 1, 0.1 },
    };
    const char *label = json_string_value(json_object_get(c, "label"));
    const char *checkpoint = json_string_value(json_object_get(c, "checkpoint"));
    const json_t *dirs = json_object_get(c, "adapters");
    int32_t ids[128], n = read_prompt(root, checkpoint, ids);
    for (size_t t = 0; t < sizeof tiers / sizeof tiers[0]; t++) {
        float *first = NULL;
        for (const char **level = levels_of_machine(); *level; level++) {
            struct run r;
            double share, mean_kl;
            run_open(&r, checkpoint, *level, tiers[t].tier, 0);
            for (size_t i = 0; i < json_array_size(dirs); i++) run_mount(&r, json_string_value(json_array_get(dirs, i)));
            int32_t n_vocab = model_plan_get(r.model)->n_vocab;
            float *logits = run_logits(&r, ids, n, first ? 7 : n); /* levels and chunks: the same bits */
            compare(root, json_string_value(json_object_get(c, "ref64_file")), logits, n_vocab, &share, &mean_kl);
            print_message("%-16s %-8s tier %d: %.2g of max |logit|, mean KL %.2g\n", label, *level, (int)tiers[t].tier, share,
                          mean_kl);
            assert_true(share <= tiers[t].share);
            assert_true(mean_kl <= tiers[t].kl);
            if (first) assert_memory_equal(first, logits, (size_t)n * (size_t)n_vocab * sizeof *logits);
            if (first) free(logits);
            else first = logits;
            run_close(&r);
        }
        free(first);
    }
}

/* ENG-187, API-307, API-316: MLX, PEFT with patterns and rsLoRA, the trainer's folder, stacks, biases, an untied head. */
static void test_adapters_equal_the_oracle(void **state)
{
    (void)state;
    json_t *root = cases_open();
    const json_t *list = json_object_get(root, "cases");
    assert_true(json_array_size(list) >= 9);
    for (size_t i = 0; i < json_array_size(list); i++) check_case(root, json_array_get(list, i));
    json_decref(root);
}

/* B-139: the same adapter in MLX and in PEFT form (transposed tensors, other names, prefix, a square q_proj) is the same
 * adapter, byte for byte. */
static void test_b139_peft_equals_mlx(void **state)
{
    struct run r;
    (void)state;
    run_open(&r, LLAMA, NULL, TIER_L1, 0);
    struct adapter_info mlx = run_mount(&r, GOLDEN "/llama-a"), peft = run_mount(&r, GOLDEN "/llama-a-peft");
    assert_string_equal(mlx.form, "mlx");
    assert_string_equal(peft.form, "peft");
    assert_int_equal(mlx.n_modules, 14);
    assert_int_equal(r.adapters[0]->content_hash, r.adapters[1]->content_hash);
    assert_true(mlx.rank == 4 && peft.rank == 4);
    assert_true(mlx.scale == 2.0 && peft.scale == 2.0);
    run_mount(&r, GOLDEN "/llama-a-half"); /* the same tensors, half the scale: another adapter */
    assert_int_not_equal(r.adapters[0]->content_hash, r.adapters[2]->content_hash);
    run_close(&r);
}

/* --- folders made here --- */

struct made {
    char dir[64];
    struct tensor_view t[8];
    float data[8][2048];
    int n;
};

static void made_open(struct made *m, const char *config)
{
    char path[128];
    mb_error err = { 0 };
    memset(m, 0, sizeof *m);
    strcpy(m->dir, "/tmp/mlxbun-adapter-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    snprintf(path, sizeof path, "%s/adapter_config.json", m->dir);
    assert_int_equal(file_write_atomic(path, config, strlen(config), &err), MB_OK);
}

static void made_add(struct made *m, const char *name, int64_t rows, int64_t cols)
{
    assert_true(rows * cols <= 2048);
    for (int64_t i = 0; i < rows * cols; i++) m->data[m->n][i] = 0.01f * (float)(i % 7 - 3);
    m->t[m->n] = (struct tensor_view){ .name = name, .dtype = DT_F32, .n_dim = 2, .shape = { rows, cols },
                                       .data = (const uint8_t *)m->data[m->n], .size_bytes = (size_t)(rows * cols) * 4 };
    m->n++;
}

static void made_write(struct made *m, const char *file)
{
    char path[128];
    mb_error err = { 0 };
    snprintf(path, sizeof path, "%s/%s", m->dir, file);
    if (safetensors_write(path, m->t, (size_t)m->n, NULL, &err) != MB_OK) fail_msg("%s", err.text);
}

static void made_close(struct made *m)
{
    static const char *const files[] = { "adapter_config.json", "adapters.safetensors", "adapter_model.safetensors" };
    char path[128];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", m->dir, files[i]);
        unlink(path);
    }
    rmdir(m->dir);
}

static mb_status try_load(struct run *r, const char *dir, struct buf *problems, mb_error *err)
{
    struct adapter_handle *h;
    struct adapter_info info;
    mb_status st = adapter_load(&h, &info, r->model, "x", dir, problems, err);
    assert_true((st == MB_OK) == (h != NULL));
    adapter_free(h);
    return st;
}

static void expect_line(const struct buf *b, const char *part)
{
    if (!b->data || !strstr(b->data, part)) fail_msg("no line with \"%s\" in:\n%s", part, b->data ? b->data : "");
}

#define Q0 "model.layers.0.self_attn.q_proj"
#define MLX_CONFIG "{\"fine_tune_type\": \"lora\", \"num_layers\": 2, \"lora_parameters\": {\"rank\": 4, \"scale\": 2.0}}"

/* B-137: every mismatch is listed, nothing is mounted; a true subset of the modules is fine. */
static void test_b137_mismatches_are_listed(void **state)
{
    struct run r;
    struct made m;
    struct buf problems;
    mb_error err = { 0 };
    (void)state;
    run_open(&r, LLAMA, NULL, TIER_L1, 0);
    buf_init(&problems, 0);
    made_open(&m, MLX_CONFIG);
    made_add(&m, Q0 ".lora_a", 128, 4);                               /* its B is missing */
    made_add(&m, "model.layers.0.self_attn.k_proj.lora_a", 4, 5);     /* input of 4 */
    made_add(&m, "model.layers.0.self_attn.k_proj.lora_b", 5, 64);
    made_add(&m, "model.layers.9.self_attn.q_proj.lora_a", 128, 4);   /* no such layer */
    made_add(&m, "model.layers.1.self_attn.q_prj.lora_a", 128, 4);    /* a typo */
    made_add(&m, "model.layers.1.self_attn.v_proj.lora_a", 128, 2);   /* rank 2, the configuration says 4 */
    made_add(&m, "model.layers.1.self_attn.v_proj.lora_b", 2, 64);
    made_add(&m, "model.layers.1.self_attn.v_proj.m", 64, 1);         /* DoRA */
    made_write(&m, "adapters.safetensors");
    assert_int_equal(try_load(&r, m.dir, &problems, &err), MB_BAD_FORMAT);
    expect_line(&problems, Q0 ".lora_a: the other half (B) is missing");
    expect_line(&problems, "k_proj.lora_a: found [4, 5], its input must be 128 wide");
    expect_line(&problems, "layer 9, the model has 2 layers");
    expect_line(&problems, "q_prj.lora_a: the model has no such linear");
    expect_line(&problems, "v_proj: found rank 2, adapter_config.json says 4");
    expect_line(&problems, "v_proj.m: DoRA magnitudes");
    assert_non_null(strstr(err.text, "problems"));
    made_close(&m);

    made_open(&m, MLX_CONFIG);
    made_add(&m, Q0 ".lora_a", 128, 4);
    made_add(&m, Q0 ".lora_b", 4, 128);
    made_write(&m, "adapters.safetensors");
    assert_int_equal(try_load(&r, m.dir, NULL, &err), MB_OK);
    m.data[1][3] = NAN;
    made_write(&m, "adapters.safetensors");
    assert_int_equal(try_load(&r, m.dir, NULL, &err), MB_BAD_FORMAT);
    made_close(&m);
    buf_free(&problems);
    run_close(&r);
}

/* num_layers and keys of mlx-lm, target_modules of PEFT: what they leave out must not be in the file. */
static void test_b137_modules_outside_the_configuration(void **state)
{
    static const struct { const char *config, *file, *a, *b; bool ok; } rows[] = {
        { "{\"num_layers\": 1, \"lora_parameters\": {\"rank\": 4, \"scale\": 1}}", "adapters.safetensors", Q0 ".lora_a",
          Q0 ".lora_b", false },
        { "{\"num_layers\": 1, \"lora_parameters\": {\"rank\": 4, \"scale\": 1, \"keys\": [\"" Q0 "\"]}}", "adapters.safetensors",
          Q0 ".lora_a", Q0 ".lora_b", true }, /* a full-path key counts in every layer */
        { "{\"num_layers\": 2, \"lora_parameters\": {\"rank\": 4, \"scale\": 1, \"keys\": [\"self_attn.v_proj\"]}}",
          "adapters.safetensors", Q0 ".lora_a", Q0 ".lora_b", false },
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"target_modules\": [\"q_proj\"]}", "adapter_model.safetensors",
          "base_model.model." Q0 ".lora_A.weight", "base_model.model." Q0 ".lora_B.weight", true },
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"target_modules\": [\"v_proj\"]}", "adapter_model.safetensors",
          "base_model.model." Q0 ".lora_A.weight", "base_model.model." Q0 ".lora_B.weight", false },
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"target_modules\": \".*q_proj\"}", "adapter_model.safetensors",
          "base_model.model." Q0 ".lora_A.weight", "base_model.model." Q0 ".lora_B.weight", true },
    };
    struct run r;
    (void)state;
    run_open(&r, LLAMA, NULL, TIER_L1, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct made m;
        mb_error err = { 0 };
        bool mlx = strstr(rows[i].file, "adapters.") != NULL;
        made_open(&m, rows[i].config);
        made_add(&m, rows[i].a, mlx ? 128 : 4, mlx ? 4 : 128);
        made_add(&m, rows[i].b, mlx ? 4 : 128, mlx ? 128 : 4);
        made_write(&m, rows[i].file);
        if ((try_load(&r, m.dir, NULL, &err) == MB_OK) != rows[i].ok) fail_msg("row %zu: %s", i, err.text);
        made_close(&m);
    }
    run_close(&r);
}

/* B-140: rank-stabilised scale. */
static void test_b140_rslora(void **state)
{
    static const struct { const char *config; double scale; } rows[] = {
        { "{\"peft_type\": \"LORA\", \"r\": 16, \"lora_alpha\": 16, \"use_rslora\": true}", 4.0 },
        { "{\"peft_type\": \"LORA\", \"r\": 16, \"lora_alpha\": 16, \"use_rslora\": false}", 1.0 },
        { "{\"peft_type\": \"LORA\", \"r\": 16, \"lora_alpha\": 8}", 0.5 },
    };
    struct run r;
    (void)state;
    run_open(&r, LLAMA, NULL, TIER_L1, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct made m;
        struct adapter_info info;
        struct adapter_handle *h;
        mb_error err = { 0 };
        made_open(&m, rows[i].config);
        made_add(&m, "base_model.model." Q0 ".lora_A.weight", 16, 128);
        made_add(&m, "base_model.model." Q0 ".lora_B.weight", 128, 16);
        made_write(&m, "adapter_model.safetensors");
        if (adapter_load(&h, &info, r.model, "x", m.dir, NULL, &err) != MB_OK) fail_msg("%s", err.text);
        assert_true(info.scale == rows[i].scale);
        const struct lora_module *q = NULL;
        for (int32_t j = 0; j < model_plan_get(r.model)->n_modules && !q; j++)
            if (h->modules[j].rank) q = &h->modules[j];
        assert_non_null(q); /* B is stored [r][n] with the factor in it */
        assert_true(q->b[5] == (float)rows[i].scale * m.data[1][5 * 16]);
        adapter_free(h);
        assert_int_equal(adapter_peek(&info, m.dir, &err), MB_OK);
        assert_true(info.scale == rows[i].scale && info.rank == 16);
        made_close(&m);
    }
    run_close(&r);
}

/* What is not a plain LoRA is refused by name. */
static void test_refused_by_name(void **state)
{
    static const struct { const char *config, *word; } rows[] = {
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"use_dora\": true}", "DoRA" },
        { "{\"peft_type\": \"LOHA\", \"r\": 4}", "LOHA" },
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"bias\": \"all\"}", "bias" },
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"modules_to_save\": [\"lm_head\"]}", "modules_to_save" },
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"init_lora_weights\": \"pissa_niter_4\"}", "pissa" },
        { "{\"fine_tune_type\": \"dora\", \"num_layers\": 2, \"lora_parameters\": {\"rank\": 4, \"scale\": 1}}", "dora" },
        { "{\"fine_tune_type\": \"full\", \"num_layers\": 2}", "full" },
        { "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, \"rank_pattern\": {\"(a\": 4}}", "(a" },
        { "{\"peft_type\": \"LORA\", \"r\": 4}", "lora_alpha" },
    };
    struct run r;
    (void)state;
    run_open(&r, LLAMA, NULL, TIER_L1, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct made m;
        mb_error err = { 0 };
        made_open(&m, rows[i].config);
        made_add(&m, "base_model.model." Q0 ".lora_A.weight", 4, 128);
        made_add(&m, "base_model.model." Q0 ".lora_B.weight", 128, 4);
        made_write(&m, "adapter_model.safetensors");
        assert_int_not_equal(try_load(&r, m.dir, NULL, &err), MB_OK);
        if (!strstr(err.text, rows[i].word)) fail_msg("\"%s\" does not name %s", err.text, rows[i].word);
        made_close(&m);
    }
    mb_error err = { 0 };
    assert_int_equal(try_load(&r, "/nonexistent/adapter", NULL, &err), MB_NOT_FOUND);
    assert_int_equal(try_load(&r, LLAMA, NULL, &err), MB_NOT_FOUND); /* a model is no adapter */
    run_close(&r);
}

/* --max-lora-rank bounds scratch: a larger rank is refused when it is mounted, not when it is used. */
static void test_rank_limit(void **state)
{
    struct run r;
    mb_error err = { 0 };
    (void)state;
    run_open(&r, LLAMA, NULL, TIER_L1, 3);
    assert_int_equal(try_load(&r, GOLDEN "/llama-a", NULL, &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "--max-lora-rank"));
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters_equal_the_oracle),
        cmocka_unit_test(test_b139_peft_equals_mlx),
        cmocka_unit_test(test_b137_mismatches_are_listed),
        cmocka_unit_test(test_b137_modules_outside_the_configuration),
        cmocka_unit_test(test_b140_rslora),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_rank_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
