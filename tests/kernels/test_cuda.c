/* test_cuda.c: the CUDA backend against the CPU's and against itself. Without a GPU (or without libmlxbun-cuda.so) all but the
 * first two tests are skipped, with the reason printed. With one: logits of the tiny checkpoints near the float32 tier of the
 * CPU; the same bits for every chunk size, page layout, batch width and neighbour; draws that the CPU's sampler makes of the
 * same logits, bit for bit; pages that come back as they went.
 * MLX_BUN_TEST_DEVICE=cuda:1 takes another card; MLX_BUN_TEST_MODEL=DIR adds a checkpoint to the list.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/direct.h"
#include "kernels/cuda_ahead.h"
#include "kernels/cuda_rig.h"
#include "ops/cpu/kernels.h"

#define N_TOKENS 200
/* Mean |logit error| allowed, of the largest logit: linear inputs, weights and f16 pages hold 11 bits, bfloat16 pages 8. Some
 * checkpoints are touchier than that (routers that flip, many norms): what counts there is to be four times nearer than the
 * CPU's 8-bit tier. */
#define LOGIT_TOLERANCE 2e-3
#define NEARER_THAN_L2 4
/* Where an indexer chooses keys a single one that flips is seen in all that follows, whatever it was rounded by: there it is the tokens before the first choice that must be
 * as near as that, and the others so much nearer than the 8-bit tier. */
#define BEFORE_CHOICES 40
#define NEARER_WITH_CHOICES 2.5

static const char *const FAMILIES[] = { "llama", "llama-bf16", "llama-fp", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma4",
                                        "gemma4-kv", "granite", "minicpm", "olmo2", "olmo3", "smollm3", "phi3", "glm4", "mixtral", "qwen3_moe",
                                        "gpt_oss", "gemma4-moe", "qwen3_5", "qwen3_next", "qwen3_5_moe", "starcoder2", "ministral3",
                                        "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa" };
#define N_FAMILIES (sizeof FAMILIES / sizeof FAMILIES[0])

/* --- a model on a device --- */

struct run {
    const struct ops *ops;
    struct device *dev;
    struct model *model;
    struct direct *d;
    int32_t n_vocab;
};

static void dir_of(const char *family, char out[512])
{
    if (strchr(family, '/')) snprintf(out, 512, "%s", family);
    else snprintf(out, 512, "tests/golden/tiny/%s", family);
}

static void run_open(struct run *r, const struct ops *ops, const char *family, enum fidelity_tier tier, int kv)
{
    char dir[512];
    mb_error err = { 0 };
    struct device_options dopt = { .n_ranks = 1 };
    dir_of(family, dir);
    r->ops = ops;
    if ((ops == &ops_cuda ? open_gpu(&r->dev, &err) : ops->device_open(&r->dev, &dopt, &err)) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = ops, .device = r->dev, .tier = tier, .kv_format = kv, .n_rows_max = 64 };
    if (model_open(&r->model, dir, &mopt, &err) != MB_OK) fail_msg("%s: %s", dir, err.text);
    if (direct_open(&r->d, r->model, N_TOKENS, &err) != MB_OK) fail_msg("%s", err.text);
    r->n_vocab = model_plan_get(r->model)->n_vocab;
}

static void run_close(struct run *r)
{
    direct_close(r->d);
    model_close(r->model);
    r->ops->device_close(r->dev);
}

/* Logits of the fixed text in chunks; free() them. draws: [N_TOKENS]. */
static float *run_text(struct run *r, int32_t chunk, int32_t page_stride, const struct sample_params *params, struct draw *draws)
{
    int32_t ids[N_TOKENS];
    mb_error err = { 0 };
    float *logits = malloc((size_t)N_TOKENS * (size_t)r->n_vocab * sizeof *logits);
    direct_reset(r->d, page_stride);
    for (int32_t i = 0; i < N_TOKENS; i++) ids[i] = (i * 37 + 11) % r->n_vocab;
    for (int32_t i = 0; i < N_TOKENS; i += chunk) {
        int32_t n = N_TOKENS - i < chunk ? N_TOKENS - i : chunk;
        if (direct_run(r->d, ids + i, n, params, logits + (int64_t)i * r->n_vocab, draws + i, &err) != MB_OK) fail_msg("%s", err.text);
    }
    return logits;
}

/* --- tests that every machine runs --- */

static void test_devices_are_parsed(void **state)
{
    static const char *const bad[] = { "tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0", "cudax", "" };
    const struct ops *ops;
    struct device_options opt;
    mb_error err;
    (void)state;
    assert_int_equal(ops_parse("cuda:3", &ops, &opt, &err), MB_OK);
    assert_ptr_equal(ops, &ops_cuda);
    assert_int_equal(opt.ordinal, 3);
    assert_int_equal(ops_parse("cuda", &ops, &opt, &err), MB_OK);
    assert_int_equal(opt.ordinal, 0);
    assert_int_equal(ops_parse(NULL, &ops, &opt, &err), MB_OK);
    assert_ptr_equal(ops, &ops_cpu);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_not_equal(ops_parse(bad[i], &ops, &opt, &err), MB_OK);
        assert_non_null(strstr(err.text, "cuda:N"));
        assert_null(ops);
    }
}

/* A device opens, or the error says what to do. */
static void test_no_gpu_is_told_with_a_remedy(void **state)
{
    struct device *dev;
    mb_error err = { 0 };
    (void)state;
    if (open_gpu(&dev, &err) == MB_OK) {
        assert_non_null(strstr(ops_cuda.device_describe(dev), "cuda:"));
        ops_cuda.device_close(dev);
        return;
    }
    assert_null(dev);
    assert_non_null(strstr(err.text, "--device cpu"));
    assert_string_equal(err.at, "device");
}

/* --- tests on a GPU --- */

struct distance {
    double mean, max; /* |logit error| */
    double before;    /* its mean over the first BEFORE_CHOICES tokens */
    int32_t same;     /* greedy ids */
};

static struct distance distance_of(const struct ops *ops, const char *family, enum fidelity_tier tier, const float *want, const int32_t *best)
{
    struct run r;
    static struct draw draws[N_TOKENS];
    struct distance out = { 0 };
    run_open(&r, ops, family, tier, -1);
    float *got = run_text(&r, 50, 1, NULL, draws);
    int64_t n = (int64_t)N_TOKENS * r.n_vocab;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)want[i] - (double)got[i]);
        if (!(e <= out.max)) out.max = e; /* a NaN stays */
        out.mean += e / (double)n;
        if (i < (int64_t)BEFORE_CHOICES * r.n_vocab) out.before += e / (double)((int64_t)BEFORE_CHOICES * r.n_vocab);
    }
    for (int32_t i = 0; i < N_TOKENS; i++) out.same += draws[i].id == best[i];
    free(got);
    run_close(&r);
    return out;
}

static bool is_near(const char *family, const struct distance *gpu, const struct distance *l2, double top)
{
    bool chooses = strcmp(family, "deepseek_v32") == 0 || strcmp(family, "glm_moe_dsa") == 0;
    if (chooses && gpu->mean <= l2->mean / NEARER_WITH_CHOICES) return gpu->before <= LOGIT_TOLERANCE * top || gpu->before <= l2->before / NEARER_THAN_L2;
    return gpu->mean <= LOGIT_TOLERANCE * top || gpu->mean <= l2->mean / NEARER_THAN_L2;
}

static void check_near_reference(const char *family)
{
    struct run cpu;
    static struct draw draws[N_TOKENS];
    double top = 0;
    int32_t best[N_TOKENS];
    run_open(&cpu, &ops_cpu, family, TIER_F32, KV_F32);
    float *want = run_text(&cpu, 50, 1, NULL, draws);
    for (int32_t i = 0; i < N_TOKENS; i++) best[i] = draws[i].id;
    for (int64_t i = 0; i < (int64_t)N_TOKENS * cpu.n_vocab; i++)
        if (fabs((double)want[i]) > top) top = fabs((double)want[i]);
    run_close(&cpu);
    struct distance gpu = distance_of(&ops_cuda, family, TIER_L1, want, best), l2 = distance_of(&ops_cpu, family, TIER_L2, want, best);
    printf("%-12s |logit error| mean %.2g max %.2g of %.3g; same greedy id %d of %d (CPU, 8-bit activations: mean %.2g max %.2g, %d)\n", family,
           gpu.mean, gpu.max, top, (int)gpu.same, N_TOKENS, l2.mean, l2.max, (int)l2.same);
    free(want);
    if (!is_near(family, &gpu, &l2, top))
        fail_msg("%s: logits differ by %g on average, the largest is %g", family, gpu.mean, top);
}

static void test_logits_are_near_the_float_tier(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < N_FAMILIES; i++) check_near_reference(FAMILIES[i]);
    if (getenv("MLX_BUN_TEST_MODEL")) check_near_reference(getenv("MLX_BUN_TEST_MODEL"));
}

static void check_chunks(const char *family, int kv)
{
    static const struct { int32_t chunk, stride; } ways[] = { { 1, 1 }, { 7, 2 }, { 31, 1 }, { 32, 1 }, { 64, 3 }, { 150, 1 }, { 1, 3 } };
    struct run r;
    static struct draw want_draws[N_TOKENS], draws[N_TOKENS];
    run_open(&r, &ops_cuda, family, TIER_L1, kv);
    size_t bytes = (size_t)N_TOKENS * (size_t)r.n_vocab * sizeof(float);
    float *want = run_text(&r, N_TOKENS, 1, NULL, want_draws);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        float *got = run_text(&r, ways[i].chunk, ways[i].stride, NULL, draws);
        if (memcmp(got, want, bytes) != 0) {
            int64_t at = 0;
            while (memcmp(&got[at], &want[at], sizeof(float)) == 0) at++;
            fail_msg("%s, KV %d: chunks of %d, page stride %d: token %d logit %d is %.9g, all at once %.9g", family, kv,
                     (int)ways[i].chunk, (int)ways[i].stride, (int)(at / r.n_vocab), (int)(at % r.n_vocab), (double)got[at], (double)want[at]);
        }
        for (int32_t t = 0; t < N_TOKENS; t++) assert_int_equal(draws[t].id, want_draws[t].id);
        free(got);
    }
    free(want);
    run_close(&r);
}

static void test_chunks_change_no_bit(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < N_FAMILIES; i++) check_chunks(FAMILIES[i], -1);
    check_chunks("llama", KV_BF16);
    check_chunks("gemma3", KV_F32);
    if (getenv("MLX_BUN_TEST_MODEL")) check_chunks(getenv("MLX_BUN_TEST_MODEL"), -1);
}

/* --- many sequences in one batch --- */

enum { WIDTH_MAX = 64, PROMPT = 70, STEPS = 6 };

/* Sequence 0 is decoded beside width - 1 others, whose prompts are shorter and different; its logits of every step to out. */
static void decode_beside(struct run *r, int32_t width, float *out)
{
    const struct plan *p = model_plan_get(r->model);
    static struct seq_state seq[WIDTH_MAX];
    static int32_t pages[WIDTH_MAX][KV_MAX_KINDS][4], ids[WIDTH_MAX][PROMPT], next[WIDTH_MAX];
    struct sample_params greedy = { .n_vocab_live = r->n_vocab };
    struct sample_pos pos[WIDTH_MAX];
    struct draw draws[WIDTH_MAX];
    struct row rows[WIDTH_MAX];
    struct row_result results[WIDTH_MAX];
    mb_error err = { 0 };
    int32_t unit = 0;
    for (int32_t s = 0; s < width; s++) {
        seq[s] = (struct seq_state){ .n_committed = 0 };
        for (int k = 0; k < p->n_kinds; k++) {
            int32_t n_page = p->kinds[k].type == KIND_STATE ? 1 : 2;
            seq[s].kind[k] = (struct kv_table){ .page = pages[s][k], .n_page = n_page, .cap = 4 };
            for (int j = 0; j < n_page; j++) {
                pages[s][k][j] = unit;
                unit += (int32_t)(p->kinds[k].page_bytes / KV_PAGE_UNIT);
            }
        }
        for (int32_t i = 0; i < PROMPT; i++) ids[s][i] = (i * 29 + s * 17 + 3) % r->n_vocab;
    }
    if (r->ops->pool_reserve(r->dev, (size_t)unit * KV_PAGE_UNIT, &err) != MB_OK) fail_msg("%s", err.text);
    if (model_reserve_positions(r->model, PROMPT + STEPS, &err) != MB_OK) fail_msg("%s", err.text);
    for (int32_t step = 0; step < STEPS; step++) {
        for (int32_t s = 0; s < width; s++) {
            int32_t n = step > 0 ? 1 : s == 0 ? PROMPT : 1 + s % 23;
            pos[s] = (struct sample_pos){ .params = &greedy, .history = ids[s], .n_history = n, .index = seq[s].n_committed + n, .target = -1 };
            rows[s] = (struct row){ .seq = &seq[s], .i_first = seq[s].n_committed, .n = n, .ids = step > 0 ? &next[s] : ids[s],
                                    .draw = DRAW_LAST, .draws = &pos[s], .logits_out = s == 0 ? out + (int64_t)step * r->n_vocab : NULL };
            results[s] = (struct row_result){ .draws = &draws[s] };
        }
        if (r->ops->submit(model_compiled(r->model), rows, width, results, &err) != MB_OK) fail_msg("%s", err.text);
        if (r->ops->collect(model_compiled(r->model), &err) != MB_OK) fail_msg("%s", err.text);
        for (int32_t s = 0; s < width; s++) {
            assert_int_equal(results[s].status, MB_OK);
            seq[s].n_committed += rows[s].n;
            seq[s].i_state = seq[s].n_committed;
            next[s] = draws[s].id;
        }
    }
}

static void check_widths(const char *family)
{
    static const int32_t widths[] = { 2, 3, 5, 8, 9, 16, 17, 32, 33, 64 };
    struct run r;
    run_open(&r, &ops_cuda, family, TIER_L1, -1);
    size_t bytes = (size_t)STEPS * (size_t)r.n_vocab * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    decode_beside(&r, 1, want);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        decode_beside(&r, widths[i], got);
        for (int32_t step = 0; step < STEPS; step++)
            if (memcmp(got + (int64_t)step * r.n_vocab, want + (int64_t)step * r.n_vocab, (size_t)r.n_vocab * sizeof(float)) != 0)
                fail_msg("%s: in a batch of %d, step %d has other logits than alone", family, (int)widths[i], (int)step);
    }
    free(want);
    free(got);
    run_close(&r);
}

static void test_batch_widths_change_no_bit(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < N_FAMILIES; i++) check_widths(FAMILIES[i]);
    if (getenv("MLX_BUN_TEST_MODEL")) check_widths(getenv("MLX_BUN_TEST_MODEL"));
}

/* --- steps that begin before the draws ahead of them are read --- */

static void check_ahead(const char *family)
{
    static struct ahead_run got, want;
    struct device_options opt = { .n_ranks = 1, .no_graphs = true };
    struct run r;
    char dir[512];
    mb_error err = { 0 };
    memset(&got, 0, sizeof got);
    memset(&want, 0, sizeof want);
    run_open(&r, &ops_cuda, family, TIER_L1, -1);
    decode_ahead(r.ops, r.dev, r.model, &got);
    run_close(&r);
    dir_of(family, dir);
    if (ops_cuda.device_open(&r.dev, &opt, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cuda, .device = r.dev, .tier = TIER_L1, .kv_format = -1, .n_rows_max = 64 };
    if (model_open(&r.model, dir, &mopt, &err) != MB_OK) fail_msg("%s", err.text);
    decode_ahead(r.ops, r.dev, r.model, &want);
    model_close(r.model);
    ops_cuda.device_close(r.dev);
    printf("%-12s %d of %d steps begun before the draws ahead of them were read\n", family, (int)got.n_ahead, AHEAD_STEPS);
    assert_int_equal(want.n_ahead, 0);
    assert_true(got.n_ahead > 0);
    ahead_compare(family, &got, &want);
}

static void test_steps_ahead_change_no_bit(void **state)
{
    NEEDS_GPU();
    check_ahead("llama");
    check_ahead("gemma3"); /* two kinds of pages, windows */
    check_ahead("qwen3_moe");
    check_ahead("gpt_oss"); /* experts with biases */
    check_ahead("ministral3"); /* queries that grow */
    check_ahead("deepseek_v3");
    check_ahead("glm_moe_dsa");
}

/* --- draws --- */

static void check_draws(struct run *r, const struct sample_params *params, const char *what)
{
    static struct draw draws[N_TOKENS];
    struct cpu_kernels t;
    int32_t history[N_TOKENS + 1];
    cpu_kernels_fill(&t, cpu_level_detect());
    float *logits = run_text(r, 64, 1, params, draws);
    void *scratch = NULL;
    if (posix_memalign(&scratch, 64, cpu_sample_scratch_bytes(r->n_vocab)) != 0) fail_msg("out of memory");
    for (int32_t i = 0; i < N_TOKENS; i++) history[i] = (i * 37 + 11) % r->n_vocab;
    for (int32_t i = 0; i < N_TOKENS; i++) {
        struct draw want;
        struct sample_pos pos = { .params = params, .history = history, .n_history = i + 1, .index = i + 1, .target = -1 };
        cpu_sample(&t, logits + (int64_t)i * r->n_vocab, r->n_vocab, &pos, scratch, &want);
        if (want.id != draws[i].id || want.argmax != draws[i].argmax || memcmp(&want.logprob, &draws[i].logprob, sizeof(float)) != 0 ||
            memcmp(&want.argmax_logprob, &draws[i].argmax_logprob, sizeof(float)) != 0)
            fail_msg("%s: draw %d is id %d, log-probability %.9g; the CPU draws %d, %.9g", what, (int)i, (int)draws[i].id,
                     (double)draws[i].logprob, (int)want.id, (double)want.logprob);
    }
    free(scratch);
    free(logits);
}

static void test_draws_are_the_cpus(void **state)
{
    static const int32_t ends[] = { 3, 17, 40 };
    struct run r;
    NEEDS_GPU();
    run_open(&r, &ops_cuda, "llama", TIER_L1, -1);
    struct sample_params p = { .n_vocab_live = r.n_vocab, .noise = { .seed = 0x123456789abcdefULL, .i_choice = 2 } };
    check_draws(&r, &p, "greedy");
    p.temperature = 0.8f;
    check_draws(&r, &p, "temperature");
    p.no_logprobs = true;
    check_draws(&r, &p, "no log-probabilities");
    p.no_logprobs = false;
    p.n_vocab_live = r.n_vocab - 9;
    p.ignore_eos = true;
    p.end_ids = ends;
    p.n_end_ids = 3;
    check_draws(&r, &p, "hidden end ids");
    p.top_p = 0.9f;
    p.top_k = 40;
    p.repetition_penalty = 1.3f;
    check_draws(&r, &p, "filters and penalties, on the host");
    run_close(&r);
}

/* --- pages, refusals --- */

static void test_pages_come_back(void **state)
{
    struct run r;
    NEEDS_GPU();
    run_open(&r, &ops_cuda, "llama", TIER_L1, -1);
    const struct kv_kind *k = &model_plan_get(r.model)->kinds[0];
    uint8_t *a = malloc(k->page_bytes), *b = calloc(1, k->page_bytes);
    for (size_t i = 0; i < k->page_bytes; i++) a[i] = (uint8_t)(i * 7 + i / 251);
    ops_cuda.page_write(r.dev, k, 0, a);
    ops_cuda.page_copy(r.dev, k, (int32_t)(k->page_bytes / KV_PAGE_UNIT), 0);
    ops_cuda.page_read(r.dev, k, (int32_t)(k->page_bytes / KV_PAGE_UNIT), b);
    assert_memory_equal(a, b, k->page_bytes);
    free(a);
    free(b);
    run_close(&r);
}

static void test_what_is_missing_is_refused_by_name(void **state)
{
    struct device *dev;
    struct model *m;
    mb_error err = { 0 };
    NEEDS_GPU();
    if (open_gpu(&dev, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cuda, .device = dev, .tier = TIER_F32, .kv_format = -1, .n_rows_max = 1 };
    assert_int_equal(model_open(&m, "tests/golden/tiny/llama", &mopt, &err), MB_UNSUPPORTED);
    if (!strstr(err.text, "f32 tier") || !strstr(err.text, "--device cpu")) fail_msg("%s", err.text);
    ops_cuda.device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices_are_parsed),        cmocka_unit_test(test_no_gpu_is_told_with_a_remedy),
        cmocka_unit_test(test_pages_come_back),           cmocka_unit_test(test_logits_are_near_the_float_tier),
        cmocka_unit_test(test_chunks_change_no_bit),      cmocka_unit_test(test_batch_widths_change_no_bit),
        cmocka_unit_test(test_steps_ahead_change_no_bit), cmocka_unit_test(test_draws_are_the_cpus),
        cmocka_unit_test(test_what_is_missing_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, look_for_gpu, NULL);
}
