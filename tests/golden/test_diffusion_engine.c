/* test_diffusion_engine.c: DiffusionGemma's generations through the engine against transformers (tests/golden/diffusion) and against themselves.
 *   ids equal (MOD-041), drawn and at temperature 0, rounds that end early, an end token
 *   the same ids alone, in chunks, warm, parked, among others, as one of two choices
 *   what a model with canvases does not do is refused (MOD-042)
 */
#include "golden/diffusion_rig.h"

#include <unistd.h>

#include "base/filemap.h"
#include "engine/open.h"

/* A folder of links to the checkpoint with a generation_config.json of this schedule. */
static void variant_make(const char *checkpoint, const json_t *schedule, char dir[256])
{
    static const char *const files[] = { "config.json", "model.safetensors" };
    char path[512], target[1024], cwd[512];
    struct buf b;
    mb_error err = { 0 };
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(dir, 256, "%s/mlxbun-diffusion-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 2; i++) {
        snprintf(target, sizeof target, "%s/%s/%s", cwd, checkpoint, files[i]);
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(target, path), 0);
    }
    json_t *o = json_copy((json_t *)schedule);
    json_object_set_new(o, "sampler_config", json_pack("{s:O}", "entropy_bound", json_object_get(schedule, "entropy_bound")));
    buf_init(&b, 0);
    json_write(&b, o, NULL);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(file_write_atomic(path, b.data, b.len, &err), MB_OK);
    buf_free(&b);
    json_decref(o);
}

static void variant_remove(const char *dir)
{
    static const char *const files[] = { "config.json", "model.safetensors", "generation_config.json" };
    char path[512];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

struct setup { enum fidelity_tier tier; int32_t batch, prefill_chunk, n_context; size_t cache_bytes; int n_threads; };

static void rig_open_model(struct rig *r, const char *dir, struct setup s)
{
    struct engine_loaded info;
    mb_error err = { 0 };
    rig_init(r);
    struct engine_load load = { .dir = dir, .kv_format = KV_OF_TIER, .n_threads = s.n_threads, .tier = s.tier, .n_context = s.n_context,
                                .memory_budget_bytes = (size_t)512 << 20,
                                .engine = { .batch = s.batch ? s.batch : 4, .queue_max = 32, .prompt_cache_bytes = s.cache_bytes,
                                            .prefill_chunk = s.prefill_chunk } };
    if (engine_load(&r->engine, &load, &info, &err) != MB_OK) fail_msg("%s: %s", dir, err.text);
}

static void diffuse_job(struct rig_job *j, struct rig *r, const struct golden *g, int32_t n_new, uint64_t seed, float temperature)
{
    job_init(j, r, g->n_prompt, 0, 1);
    memcpy(j->ids, g->prompt, (size_t)g->n_prompt * sizeof *j->ids);
    j->job.method = JOB_DIFFUSE;
    j->job.max_tokens = n_new;
    j->job.params = (struct sample_params){ .temperature = temperature, .no_logprobs = true, .n_vocab_live = g->n_vocab,
                                            .noise = { .seed = seed } };
}

/* MOD-041: the ids of transformers' own generate */
static void test_ids_equal_oracle(void **state)
{
    for (size_t m = 0; m < 2; m++) {
        struct golden g;
        size_t i;
        json_t *run;
        golden_open(&g, checkpoints[m]);
        json_array_foreach(must_get(g.root, "runs"), i, run) {
            const char *label = json_string_value(must_get(run, "schedule"));
            json_t *ids = must_get(run, "ids");
            int32_t end = (int32_t)json_integer_value(must_get(run, "eos")), n_new = (int32_t)json_integer_value(must_get(run, "n_new"));
            char dir[256];
            struct rig r;
            struct rig_job j;
            variant_make(g.dir, must_get(must_get(g.root, "schedules"), label), dir);
            rig_open_model(&r, dir, (struct setup){ .tier = TIER_F32, .n_threads = 2 });
            diffuse_job(&j, &r, &g, n_new, (uint64_t)json_integer_value(must_get(run, "seed")),
                        json_is_true(must_get(run, "greedy")) ? 0 : 1);
            if (end >= 0) j.job.end_ids = &end, j.job.n_end_ids = 1;
            job_run(&j);
            int32_t n = 0;
            while (n < n_new && (n == 0 || end < 0 || json_integer_value(json_array_get(ids, (size_t)n - 1)) != end)) n++;
            assert_int_equal(j.why[0], end >= 0 ? END_EOS : END_LENGTH);
            assert_int_equal(j.n_end_tokens, end >= 0);
            assert_int_equal(j.n_out[0], n);
            for (int32_t t = 0; t < n; t++)
                if (j.out[0][t] != json_integer_value(json_array_get(ids, (size_t)t)))
                    fail_msg("%s, run %zu (%s): token %d is %d, the oracle has %d", checkpoints[m], i, label, t, j.out[0][t],
                             (int)json_integer_value(json_array_get(ids, (size_t)t)));
            job_free(&j);
            rig_close(&r);
            variant_remove(dir);
        }
        golden_close(&g);
    }
}

/* Run a job whose consumer parks it again and again. */
static void run_parking(struct rig_job *j)
{
    int32_t seen = 0;
    job_submit(j);
    for (bool done = false; !done;) {
        rig_lock(j->rig);
        while (!j->done && j->n_parks == seen) rig_wait_on(j->rig);
        seen = j->n_parks;
        done = j->done;
        rig_unlock(j->rig);
        engine_unpark(j->rig->engine, j->id);
    }
}

/* B-094, B-098, MOD-042: alone, in chunks, warm, parked, among others and as one of two choices: the same ids */
static void test_same_bits_on_every_path(void **state)
{
    struct golden g;
    struct rig r;
    struct rig_job want[2], j;
    char dir[256];
    golden_open(&g, checkpoints[1]);
    variant_make(g.dir, must_get(must_get(g.root, "schedules"), "patient"), dir);
    rig_open_model(&r, dir, (struct setup){ .n_threads = 1, .batch = 1 });
    for (int i = 0; i < 2; i++) {
        diffuse_job(&want[i], &r, &g, 3 * g.n_canvas, 31 + (uint64_t)i, 1);
        if (i == 0) want[i].job.n_choices = 2;
        job_run(&want[i]);
        assert_int_equal(want[i].n_out[0], 3 * g.n_canvas);
    }
    assert_memory_not_equal(want[0].out[0], want[0].out[1], (size_t)g.n_canvas * sizeof(int32_t));
    assert_memory_not_equal(want[0].out[0], want[1].out[0], (size_t)g.n_canvas * sizeof(int32_t));
    assert_int_equal(rig_stats(&r).tokens_decoded, 9 * g.n_canvas);
    rig_close(&r);
    rig_open_model(&r, dir, (struct setup){ .n_threads = 2, .batch = 4, .prefill_chunk = 7, .cache_bytes = 4 << 20 });
    for (int again = 0; again < 2; again++) {
        struct rig_job other;
        diffuse_job(&j, &r, &g, 3 * g.n_canvas, 31, 1);
        diffuse_job(&other, &r, &g, 3 * g.n_canvas, 32, 1);
        j.job.n_choices = 2;
        j.park_every = again ? 5 : 0;
        job_submit(&other);
        if (again) run_parking(&j);
        else job_run(&j);
        job_wait(&other);
        for (int32_t c = 0; c < 2; c++) assert_same_output(&want[0], &j, c);
        assert_same_output(&want[1], &other, 0);
        if (again) assert_true(j.n_parks > 2);
        if (again) assert_int_equal(other.n_cached, g.n_prompt - 1);
        if (again) assert_int_equal(j.n_cached, g.n_prompt - 1);
        job_free(&j);
        job_free(&other);
    }
    struct engine_stats s = rig_stats(&r);
    assert_int_equal(s.batch, 1);
    assert_int_equal(s.n_pages_held, 0);
    rig_close(&r);
    variant_remove(dir);
    for (int i = 0; i < 2; i++) job_free(&want[i]);
    golden_close(&g);
}

/* Lengths that are no whole canvases, ends inside one, the context's end. */
static void test_ends(void **state)
{
    struct golden g;
    struct rig r;
    struct rig_job whole, j;
    char dir[256];
    golden_open(&g, checkpoints[0]);
    variant_make(g.dir, must_get(must_get(g.root, "schedules"), "patient"), dir);
    rig_open_model(&r, dir, (struct setup){ .n_threads = 2, .n_context = g.n_prompt + 2 * g.n_canvas + 5 });
    diffuse_job(&whole, &r, &g, -1, 3, 0);
    job_run(&whole);
    assert_int_equal(whole.why[0], END_CONTEXT);
    assert_int_equal(whole.n_out[0], 2 * g.n_canvas);
    const struct { int32_t max_tokens, stop_after, fail_after, cancel_after, n; enum end_reason why; } cases[] = {
        { g.n_canvas + 3, 0, 0, 0, g.n_canvas + 3, END_LENGTH }, { g.n_canvas, 0, 0, 0, g.n_canvas, END_LENGTH },
        { 1, 0, 0, 0, 1, END_LENGTH }, { -1, 9, 0, 0, 9, END_STOP }, { -1, 0, g.n_canvas + 2, 0, g.n_canvas + 2, END_ERROR },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        diffuse_job(&j, &r, &g, cases[i].max_tokens, 3, 0);
        j.stop_after = cases[i].stop_after;
        j.fail_after = cases[i].fail_after;
        job_run(&j);
        assert_int_equal(j.why[0], cases[i].why);
        assert_int_equal(j.n_out[0], cases[i].n);
        assert_memory_equal(j.out[0], whole.out[0], (size_t)cases[i].n * sizeof(int32_t));
        job_free(&j);
    }
    diffuse_job(&j, &r, &g, -1, 3, 0); /* cancelled while it is told: it ends before another block */
    j.cancel_after = 4;
    job_run(&j);
    assert_int_equal(j.why[0], END_CANCELLED);
    assert_int_equal(j.n_out[0], g.n_canvas);
    job_free(&j);
    diffuse_job(&j, &r, &g, 0, 3, 0);
    job_run(&j);
    assert_int_equal(j.why[0], END_LENGTH);
    assert_int_equal(j.n_out[0], 0);
    job_free(&j);
    int32_t end = whole.out[0][5];
    diffuse_job(&j, &r, &g, -1, 3, 0);
    j.job.end_ids = &end;
    j.job.n_end_ids = 1;
    j.job.ignore_eos = true;
    job_run(&j);
    assert_same_output(&whole, &j, 0);
    job_free(&j);
    job_free(&whole);
    rig_close(&r);
    variant_remove(dir);
    golden_close(&g);
}

static void expect_refusal(struct rig *r, struct rig_job *j, mb_status want, const char *text)
{
    mb_error err = { 0 };
    assert_int_equal(engine_submit(r->engine, &j->job, &j->id, &err), want);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static const uint32_t *no_mask(void *ctx, int32_t i_choice)
{
    (void)ctx;
    (void)i_choice;
    return NULL;
}

/* MOD-042 */
static void test_refusals(void **state)
{
    struct golden g;
    struct rig r;
    struct rig_job j;
    float hidden[64];
    golden_open(&g, checkpoints[0]);
    rig_open_model(&r, g.dir, (struct setup){ .n_threads = 1, .n_context = g.n_prompt + g.n_canvas - 1 });
    diffuse_job(&j, &r, &g, 10, 3, 0);
    expect_refusal(&r, &j, MB_CONTEXT_LENGTH, "a block of the answer 32");
    j.job.n_ids--;
    j.job.next_mask = no_mask;
    expect_refusal(&r, &j, MB_UNSUPPORTED, "no constraint");
    j.job.next_mask = NULL;
    j.job.method = JOB_GENERATE;
    expect_refusal(&r, &j, MB_UNSUPPORTED, "by diffusion");
    j.job.method = JOB_SCORE;
    expect_refusal(&r, &j, MB_UNSUPPORTED, "by diffusion");
    j.job.method = JOB_EMBED;
    j.job.hidden = hidden;
    expect_refusal(&r, &j, MB_UNSUPPORTED, "no embeddings");
    rig_close(&r);
    rig_open_model(&r, "tests/golden/tiny/llama", (struct setup){ .n_threads = 1 });
    j.job.method = JOB_DIFFUSE;
    expect_refusal(&r, &j, MB_UNSUPPORTED, "token by token");
    rig_close(&r);
    job_free(&j);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids_equal_oracle),
        cmocka_unit_test(test_same_bits_on_every_path),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
