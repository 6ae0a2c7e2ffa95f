/* test_engine_model.c: the engine over the tiny checkpoints on the CPU backend: alone, among strangers, in chunks, from
 * the prefix cache, preempted, forked: the same ids and log-probabilities, bit for bit (design.md section 1; B-094).
 * gemma3 has windows of a few dozen tokens, so hits in mid page and pages that leave the window are met; in gemma4 the last
 * layers read pages that earlier layers wrote, of either kind (MOD-011, MOD-016, MOD-017); qwen3_5 and qwen3_next have recurrent
 * layers, whose hits end where a state was kept (MOD-026, MOD-028); deepseek_v3 and glm_moe_dsa keep latents, the latter with the keys of an
 * indexer (MOD-036). MLX_BUN_TEST_DEVICE=cuda runs all of it on a GPU. */
#include "unit/engine_rig.h"

#include "engine/open.h"

/* The format of keys and values: -1, the family's; codes as well where layers have windows and read each other's pages (T5.01, T5.02,
 * ENG-139, ENG-140: the same bits alone and among strangers). */
struct subject { const char *name; int kv_format; };
#ifdef __SANITIZE_THREAD__ /* twenty times slower: one of each kind of pages and steps */
static const struct subject models[] = { { "llama", KV_Q4 }, { "gemma4-moe", -1 }, { "qwen3_5", -1 }, { "glm_moe_dsa", -1 } };
#else
static const struct subject models[] = {
    { "llama", -1 }, { "gemma3", -1 }, { "qwen3", -1 }, { "gemma2", -1 }, { "qwen3_moe", -1 }, { "gemma4", -1 }, { "gemma4-moe", -1 },
    { "gemma3", KV_Q8 }, { "gemma4", KV_Q4 }, { "qwen3_5", -1 }, { "qwen3_next", -1 }, { "deepseek_v3", -1 }, { "glm_moe_dsa", -1 } };
#endif
enum { N_MODELS = sizeof models / sizeof models[0], PROMPT = 150, DRAWN = 40 };

/* Attention over latents and over codes is computed on the CPU alone: left out elsewhere. */
static bool is_here(int i)
{
    return !getenv("MLX_BUN_TEST_DEVICE") || (models[i].kv_format < 0 && strcmp(models[i].name, "deepseek_v3") != 0 && strcmp(models[i].name, "glm_moe_dsa") != 0);
}

struct setup {
    int32_t batch, prefill_chunk, n_context;
    size_t cache_bytes, kv_budget;
    int n_threads;
};

static void model_open_engine(struct rig *r, int i_model, struct setup s)
{
    char dir[256];
    struct engine_loaded info;
    mb_error err = { 0 };
    rig_init(r);
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", models[i_model].name);
    struct engine_load load = { .dir = dir, .device = getenv("MLX_BUN_TEST_DEVICE"), .kv_format = models[i_model].kv_format, .n_threads = s.n_threads, .n_context = s.n_context,
                                .kv_budget_bytes = s.kv_budget,
                                .engine = { .batch = s.batch, .queue_max = 32, .prompt_cache_bytes = s.cache_bytes,
                                            .prefill_chunk = s.prefill_chunk } };
    if (engine_load(&r->engine, &load, &info, &err) != MB_OK) fail_msg("%s: %s", dir, err.text);
}

static void model_job(struct rig_job *j, struct rig *r, int32_t n, int32_t n_common, uint32_t seed)
{
    int32_t n_vocab = engine_info(r->engine)->n_vocab;
    job_init(j, r, n, n_common, seed);
    for (int32_t i = 0; i < n; i++) j->ids[i] %= n_vocab;
    j->job.max_tokens = DRAWN;
    j->job.params.n_vocab_live = n_vocab;
    j->job.params.temperature = seed % 2 ? 1.0f : 0.8f;
    j->job.params.top_p = seed % 2 ? 0 : 0.95f;
    j->job.params.repetition_penalty = 1.1f;
    j->job.params.repetition_context = 20;
    j->job.params.min_keep = 1;
}

/* Job `seed` alone on an engine of its own. */
static void alone(int i_model, int32_t n, int32_t n_common, uint32_t seed, int32_t n_choices, struct rig_job *out)
{
    static struct rig r;
    model_open_engine(&r, i_model, (struct setup){ .batch = 1, .n_threads = 1 });
    model_job(out, &r, n, n_common, seed);
    out->job.n_choices = n_choices;
    job_run(out);
    assert_int_equal(out->why[0], END_LENGTH);
    rig_close(&r);
}

static void test_strangers_chunks_threads(void **state)
{
    static const struct setup setups[] = { { .batch = 4, .n_threads = 1 }, { .batch = 3, .prefill_chunk = 7, .n_threads = 2 },
                                           { .batch = 2, .prefill_chunk = 64, .cache_bytes = 1 << 20, .n_threads = 2 } };
    for (int m = 0; m < N_MODELS; m++) {
        if (!is_here(m)) continue;
        struct rig_job want[4];
        for (uint32_t i = 0; i < 4; i++) alone(m, PROMPT - 31 * (int32_t)i, 0, i, i == 2 ? 3 : 1, &want[i]);
        for (int s = 0; s < 3; s++) {
            struct rig r;
            struct rig_job j[4];
            model_open_engine(&r, m, setups[s]);
            for (uint32_t i = 0; i < 4; i++) {
                model_job(&j[i], &r, PROMPT - 31 * (int32_t)i, 0, i);
                j[i].job.n_choices = i == 2 ? 3 : 1;
                job_submit(&j[i]);
            }
            for (int i = 0; i < 4; i++) {
                job_wait(&j[i]);
                for (int32_t c = 0; c < j[i].job.n_choices; c++) assert_same_output(&j[i], &want[i], c);
                job_free(&j[i]);
            }
            assert_int_equal(rig_stats(&r).n_pages_held, 0);
            rig_close(&r);
        }
        for (int i = 0; i < 4; i++) job_free(&want[i]);
    }
}

static bool recurs(const struct rig *r)
{
    const struct stepper_info *info = engine_info(r->engine);
    for (int32_t k = 0; k < info->n_kinds; k++)
        if (info->kinds[k].type == KIND_STATE) return true;
    return false;
}

/* B-094 */
static void test_b094_warm_equals_cold(void **state)
{
    for (int m = 0; m < N_MODELS; m++) {
        if (!is_here(m)) continue;
        static const int32_t lengths[] = { 63, 64, 65, 128, 150 };
        struct rig r;
        struct rig_job first, j;
        model_open_engine(&r, m, (struct setup){ .batch = 2, .cache_bytes = 16 << 20, .n_threads = 2 });
        model_job(&first, &r, PROMPT, 140, 100);
        job_run(&first);
        job_free(&first);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            for (int again = 0; again < 2; again++) {
                struct rig_job want;
                int32_t n_common = lengths[i] < 90 ? lengths[i] - 20 : 90;
                alone(m, lengths[i], n_common, (uint32_t)i, 1, &want);
                model_job(&j, &r, lengths[i], n_common, (uint32_t)i);
                job_run(&j);
                /* The state of the first prompt was kept behind one page of it, and at its end. */
                int32_t common = !recurs(&r) ? n_common : n_common >= KV_PAGE_TOKENS ? KV_PAGE_TOKENS : 0;
                assert_int_equal(j.n_cached, again ? lengths[i] - 1 : common);
                assert_same_output(&j, &want, 0);
                job_free(&j);
                job_free(&want);
            }
        rig_close(&r);
    }
}

/* Four choices outgrow a pool of ten pages; alone each fits. */
static void test_preempted_equals_alone(void **state)
{
    for (int m = 0; m < N_MODELS; m++) {
        if (!is_here(m)) continue;
        struct rig r;
        struct rig_job j[2];
        model_open_engine(&r, m, (struct setup){ .batch = 1, .n_threads = 1 });
        const struct stepper_info *info = engine_info(r.engine);
        size_t pool = 0; /* with states more pages, for two choices must fit at first */
        for (int32_t k = 0; k < info->n_kinds; k++)
            pool += (info->kinds[k].page_bytes + 4095) / 4096 * 4096 * (info->kinds[k].type == KIND_STATE ? 5 : recurs(&r) ? 16 : 10);
        rig_close(&r);
        for (int small = 0; small < 2; small++) {
            model_open_engine(&r, m, (struct setup){ .batch = small ? 4 : 1, .n_threads = 2, .n_context = 512,
                                                     .kv_budget = small ? pool : 0 });
            model_job(&j[small], &r, 200, 0, 1);
            j[small].job.max_tokens = 200;
            j[small].job.n_choices = 4;
            job_run(&j[small]);
            assert_true((rig_stats(&r).preempted > 0) == (small == 1));
            rig_close(&r);
        }
        for (int32_t i = 0; i < 4; i++) assert_same_output(&j[0], &j[1], i);
        job_free(&j[0]);
        job_free(&j[1]);
    }
}

/* Scores do not depend on chunks or neighbours. */
static void test_score(void **state)
{
    for (int m = 0; m < N_MODELS; m++) {
        if (!is_here(m)) continue;
        double want = 0;
        for (int c = 0; c < 3; c++) {
            struct rig r;
            struct rig_job j, other;
            model_open_engine(&r, m, (struct setup){ .batch = 2, .prefill_chunk = c == 0 ? 0 : c == 1 ? 64 : 5,
                                                     .cache_bytes = c == 1 ? 1 << 20 : 0, .n_threads = 2 });
            model_job(&j, &r, PROMPT, 0, 3);
            model_job(&other, &r, 70, 0, 4);
            j.job.method = JOB_SCORE;
            job_submit(&other);
            job_submit(&j);
            job_wait(&other);
            job_wait(&j);
            assert_int_equal(j.n_scored, PROMPT - 1);
            if (c == 0) want = j.score_sum;
            assert_true(j.score_sum == want);
            assert_true(want < -100);
            job_free(&j);
            job_free(&other);
            rig_close(&r);
        }
    }
}

static struct rig_job *running;
static int32_t n_meanwhile;

static enum verdict count_running(void *ctx, int32_t i, const struct draw *d, bool is_end)
{
    rig_lock(running->rig);
    n_meanwhile = running->n_out[0];
    rig_unlock(running->rig);
    return job_on_token(ctx, i, d, is_end);
}

/* B-100, whatever the layers: a prompt that comes in many pieces does not stop a request that is being answered; it gets a token with
 * each piece. Both have the bits of a run alone. */
static void test_b100_pieces_beside_a_stream(void **state)
{
    enum { PIECE = 7, LONG = 300 };
    for (int m = 0; m < N_MODELS; m++) {
        if (!is_here(m)) continue;
        struct rig r;
        struct rig_job want[2], stream, prompt;
        alone(m, 5, 0, 1, 1, &want[0]);
        alone(m, LONG, 0, 2, 1, &want[1]);
        model_open_engine(&r, m, (struct setup){ .batch = 2, .prefill_chunk = PIECE, .n_threads = 2 });
        model_job(&stream, &r, 5, 0, 1);
        model_job(&prompt, &r, LONG, 0, 2);
        running = &stream;
        prompt.job.filter.on_token = count_running;
        prompt.job.max_tokens = 1;
        job_submit(&stream);
        job_submit(&prompt);
        job_wait(&prompt);
        assert_true(n_meanwhile >= DRAWN - 4);
        job_wait(&stream);
        assert_same_output(&stream, &want[0], 0);
        assert_int_equal(prompt.out[0][0], want[1].out[0][0]);
        assert_true(prompt.logprob[0][0] == want[1].logprob[0][0]);
        for (int i = 0; i < 2; i++) job_free(&want[i]);
        job_free(&stream);
        job_free(&prompt);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_chunks_threads),
        cmocka_unit_test(test_b094_warm_equals_cold),
        cmocka_unit_test(test_preempted_equals_alone),
        cmocka_unit_test(test_score),
        cmocka_unit_test(test_b100_pieces_beside_a_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
