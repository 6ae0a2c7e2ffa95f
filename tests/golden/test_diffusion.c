/* test_diffusion.c: DiffusionGemma against transformers (tests/golden/diffusion) and against itself.
 *   rounds over a canvas, f32 tier: logits within 1e-5 of max |logit| of the oracle's in float64 at every position, without and with
 *     what the round before expects; so is what they expect, and the entropies are near
 *   whole generations through the engine: ids equal (MOD-041), drawn and at temperature 0, rounds that end early, an end token
 *   the same bits with every level, 1 to 3 threads, prompts in chunks, other pages (bits.json), warm, parked, as one of two choices
 *   what a model with canvases does not do is refused (MOD-042)
 */
#include "unit/engine_rig.h"

#include <math.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/filemap.h"
#include "base/json.h"
#include "convert/convert.h"
#include "engine/open.h"
#include "format/safetensors.h"
#include "levels.h"

#define GOLDEN "tests/golden/diffusion"
enum { ROUNDS = 3, MAX_CANVAS = 64, MAX_PROMPT = 256 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_PATHS 1
#else
#define N_PATHS 3
#endif

static const char *const names[] = { "diffusion_gemma", "diffusion_gemma-4bit" };

struct golden {
    json_t *root;
    char dir[256];
    int32_t prompt[MAX_PROMPT], n_prompt, canvas[MAX_CANVAS], n_canvas, n_vocab, d_model;
    float temperature;
    struct buf values; /* logits [ROUNDS][n_canvas][n_vocab], then expected embeddings [ROUNDS][n_canvas][d_model] */
    const float *logits, *expect;
};

static json_t *must_get(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!v) fail_msg("the golden lacks %s", key);
    return v;
}

static int32_t ints(const json_t *v, int32_t *out, int32_t cap)
{
    int32_t n = (int32_t)json_array_size(v);
    assert_in_range(n, 1, cap);
    for (int32_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(v, (size_t)i));
    return n;
}

static void golden_open(struct golden *g, const char *name)
{
    char path[256];
    mb_error err = { 0 };
    snprintf(path, sizeof path, GOLDEN "/%s.json", name);
    if (json_read_file(&g->root, path, 1 << 24, &err) != MB_OK) fail_msg("%s", err.text);
    snprintf(g->dir, sizeof g->dir, "%s", json_string_value(must_get(g->root, "checkpoint")));
    g->n_prompt = ints(must_get(g->root, "prompt"), g->prompt, MAX_PROMPT);
    g->n_canvas = ints(must_get(g->root, "canvas"), g->canvas, MAX_CANVAS);
    g->n_vocab = (int32_t)json_integer_value(must_get(g->root, "n_vocab"));
    g->temperature = (float)json_number_value(must_get(g->root, "temperature"));
    g->d_model = (int32_t)json_integer_value(must_get(g->root, "d_model"));
    snprintf(path, sizeof path, GOLDEN "/%s", json_string_value(must_get(g->root, "values_file")));
    buf_init(&g->values, 0);
    if (file_read(&g->values, path, 1 << 24, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(g->values.len, (size_t)ROUNDS * (size_t)g->n_canvas * (size_t)(g->n_vocab + g->d_model) * 4);
    g->logits = (const float *)(const void *)g->values.data;
    g->expect = g->logits + (size_t)ROUNDS * (size_t)g->n_canvas * (size_t)g->n_vocab;
}

static void golden_close(struct golden *g)
{
    buf_free(&g->values);
    json_decref(g->root);
}

/* --- rounds, straight through the stepper --- */

struct path { const char *level; int n_threads; int32_t chunk, page_step; };

struct rounds {
    float *logits, *expect, entropy[ROUNDS][MAX_CANVAS]; /* [ROUNDS][n_canvas][n_vocab], [ROUNDS][n_canvas][d_model] */
    int32_t ids[ROUNDS][MAX_CANVAS];
    size_t n_logits, n_expect;
};

/* Pages of one sequence in an order of their own; the pool is theirs alone. */
static void pages_deal(struct stepper *st, const struct stepper_info *info, int32_t n_tokens, int32_t step, struct seq_state *seq,
                       int32_t *tables)
{
    int32_t n_page = (n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    size_t off = 0;
    mb_error err = { 0 };
    memset(seq, 0, sizeof *seq);
    for (int32_t k = 0; k < info->n_kinds; k++) {
        seq->kind[k] = (struct kv_table){ tables + k * n_page, n_page, n_page };
        for (int32_t i = 0; i < n_page; i++, off += (info->kinds[k].page_bytes + KV_PAGE_UNIT - 1) / KV_PAGE_UNIT * KV_PAGE_UNIT)
            seq->kind[k].page[(i * step + 1) % n_page] = (int32_t)(off / KV_PAGE_UNIT);
    }
    if (st->pool_reserve(st->ctx, off, &err) != MB_OK) fail_msg("%s", err.text);
}

static void run_row(struct stepper *st, const struct row *r, struct draw *draws)
{
    struct row_result result = { .draws = draws };
    mb_error err = { 0 };
    if (st->submit(st->ctx, r, 1, &result, &err) != MB_OK || st->collect(st->ctx, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(result.status, MB_OK);
}

/* guided: each round sees what the oracle's round before expects, not what ours does. */
static void run_rounds(const struct golden *g, enum fidelity_tier tier, const struct path *p, bool guided, struct rounds *out)
{
    struct device *dev;
    struct model *model;
    struct stepper st;
    struct seq_state seq;
    struct draw draws[MAX_CANVAS];
    struct sample_pos pos[MAX_CANVAS];
    int32_t tables[KV_MAX_KINDS * 8];
    mb_error err = { 0 };
    struct device_options dopt = { .n_threads = p->n_threads, .cpu_level = p->level, .n_ranks = 1 };
    if (ops_cpu.device_open(&dev, &dopt, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cpu, .device = dev, .tier = tier, .kv_format = KV_OF_TIER, .n_rows_max = 1 };
    if (model_open(&model, g->dir, &mopt, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(stepper_from_model(&st, model, &err), MB_OK);
    const struct stepper_info *info = st.info(st.ctx);
    pages_deal(&st, info, g->n_prompt + g->n_canvas, p->page_step, &seq, tables);
    for (int32_t i = 0; i < g->n_prompt; i += p->chunk) {
        struct row r = { .seq = &seq, .i_first = i, .n = g->n_prompt - i < p->chunk ? g->n_prompt - i : p->chunk,
                         .ids = g->prompt + i, .rope_axes = 1 };
        run_row(&st, &r, NULL);
        seq.n_committed = seq.i_state = i + r.n;
    }
    out->n_logits = (size_t)g->n_canvas * (size_t)g->n_vocab;
    out->n_expect = (size_t)g->n_canvas * (size_t)info->d_model;
    out->logits = calloc(ROUNDS * out->n_logits, sizeof(float));
    out->expect = calloc(ROUNDS * out->n_expect, sizeof(float));
    for (int32_t k = 0; k < ROUNDS; k++) {
        struct sample_params sp = { .temperature = g->temperature, .no_logprobs = true, .n_vocab_live = g->n_vocab,
                                    .noise = { .seed = 5, .round = (uint32_t)k + 1 } };
        const float *signal = guided ? g->expect : out->expect;
        struct canvas_pass pass = { g->temperature, k > 0 ? signal + (size_t)(k - 1) * out->n_expect : NULL,
                                    out->expect + (size_t)k * out->n_expect, out->entropy[k] };
        for (int32_t i = 0; i < g->n_canvas; i++)
            pos[i] = (struct sample_pos){ .params = &sp, .history = g->prompt, .n_history = g->n_prompt, .index = g->n_prompt + i,
                                          .target = -1 };
        struct row r = { .seq = &seq, .i_first = g->n_prompt, .n = g->n_canvas, .ids = g->canvas, .rope_axes = 1, .draw = DRAW_ALL,
                         .draws = pos, .logits_out = out->logits + (size_t)k * out->n_logits, .commit = COMMIT_NEVER,
                         .canvas = &pass };
        run_row(&st, &r, draws);
        for (int32_t i = 0; i < g->n_canvas; i++) out->ids[k][i] = draws[i].id;
    }
    st.close(st.ctx);
}

static void rounds_free(struct rounds *r)
{
    free(r->logits);
    free(r->expect);
}

static void assert_near(const char *what, const float *want, const float *got, size_t n)
{
    float most = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(want[i]));
        off = fmaxf(off, fabsf(want[i] - got[i]));
    }
    if (!(off <= 1e-5f * most)) fail_msg("%s: a value is off by %g, the largest is %g", what, (double)off, (double)most);
}

/* MOD-041 */
static void test_rounds_equal_oracle(void **state)
{
    for (size_t m = 0; m < 2; m++)
        for (const char **level = levels_of_machine(); *level; level++) {
            struct golden g;
            struct rounds got;
            struct path path = { *level, 2, 64, 1 };
            golden_open(&g, names[m]);
            json_t *entropy = must_get(g.root, "entropy");
            run_rounds(&g, TIER_F32, &path, true, &got);
            assert_near("logits", g.logits, got.logits, ROUNDS * got.n_logits);
            assert_near("expected embeddings", g.expect, got.expect, ROUNDS * got.n_expect);
            for (size_t k = 0; k < ROUNDS; k++)
                for (size_t i = 0; i < (size_t)g.n_canvas; i++) {
                    double h = json_number_value(json_array_get(json_array_get(entropy, k), i));
                    if (!(fabs(h - (double)got.entropy[k][i]) <= 1e-4))
                        fail_msg("%s on %s: round %zu, position %zu: entropy %g, wanted %g", names[m], *level, k, i,
                                 (double)got.entropy[k][i], h);
                }
            rounds_free(&got);
            golden_close(&g);
        }
}

static uint64_t digest(const struct golden *g, enum fidelity_tier tier, const struct path *p)
{
    struct rounds r;
    run_rounds(g, tier, p, false, &r);
    XXH64_hash_t h = XXH64(r.logits, ROUNDS * r.n_logits * sizeof(float), 0);
    h = XXH64(r.expect, ROUNDS * r.n_expect * sizeof(float), h);
    for (int32_t k = 0; k < ROUNDS; k++) {
        h = XXH64(r.entropy[k], (size_t)g->n_canvas * sizeof(float), h);
        h = XXH64(r.ids[k], (size_t)g->n_canvas * sizeof(int32_t), h);
    }
    rounds_free(&r);
    return h;
}

/* Every level, thread count, chunk and order of pages gives the digest that is written down. A change is a new numerics version
 * (docs/numerics.md); MLX_BUN_BITS_WRITE=1 writes them. */
static void test_rounds_bits(void **state)
{
    static const char *const tiers[] = { [TIER_L1] = "l1", [TIER_L2] = "l2", [TIER_F32] = "f32" };
    char key[64], text[24];
    json_t *bits = NULL;
    mb_error err = { 0 };
    bool writes = getenv("MLX_BUN_BITS_WRITE") != NULL;
    if (writes) bits = json_object();
    else if (json_read_file(&bits, GOLDEN "/bits.json", 1 << 20, &err) != MB_OK) fail_msg("%s", err.text);
    for (size_t m = 0; m < 2; m++) {
        struct golden g;
        golden_open(&g, names[m]);
        for (int tier = 0; tier < 3; tier++) {
            struct path alone = { "portable", 1, MAX_PROMPT, 1 };
            uint64_t want = digest(&g, (enum fidelity_tier)tier, &alone);
            for (const char **level = levels_of_machine(); *level; level++) {
                const struct path paths[] = { { *level, 3, 7, 1 }, { *level, 1, 1, 1 }, { *level, 2, 64, 1 } };
                for (int i = 0; i < N_PATHS; i++)
                    if (digest(&g, (enum fidelity_tier)tier, &paths[i]) != want)
                        fail_msg("%s %s: %s with %d threads and chunks of %d has other bits than portable", names[m], tiers[tier],
                                 *level, paths[i].n_threads, (int)paths[i].chunk);
            }
            snprintf(key, sizeof key, "%s %s", names[m], tiers[tier]);
            snprintf(text, sizeof text, "%016llx", (unsigned long long)want);
            if (writes) json_object_set_new(bits, key, json_string(text));
            else if (!json_object_get(bits, key)) fail_msg("%s is not in " GOLDEN "/bits.json", key);
            else assert_string_equal(text, json_string_value(json_object_get(bits, key)));
        }
        golden_close(&g);
    }
    if (writes) {
        struct json_write_opts opts = { .indent = 1, .sort_keys = true, .python_spaces = true };
        struct buf b;
        buf_init(&b, 0);
        json_write(&b, bits, &opts);
        buf_append_char(&b, '\n');
        assert_int_equal(file_write_atomic(GOLDEN "/bits.json", b.data, b.len, &err), MB_OK);
        buf_free(&b);
    }
    json_decref(bits);
}

/* MOD-003: as transformers saves it and as mlx-vlm keeps it (gate and up of all experts one module), which convert makes: the same
 * bits in logits, expected embeddings, entropies and ids. */
static void test_both_layouts(void **state)
{
    static const char *const files[] = { "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
                                         "tokenizer.json", "tokenizer_config.json", "chat_template.jinja" };
    struct checkpoint_opts opts = { .dtype = "bfloat16", .n_threads = 2 };
    struct path path = { "portable", 2, 64, 1 };
    char dir[128], file[256];
    struct checkpoint *made;
    struct golden g;
    mb_error err = { 0 };
    golden_open(&g, "diffusion_gemma");
    snprintf(dir, sizeof dir, "%s/mlxbun-layout-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(dir));
    if (convert_checkpoint(g.dir, dir, &opts, &err) != MB_OK) fail_msg("%s", err.text);
    if (checkpoint_open(&made, dir, &err) != MB_OK) fail_msg("%s", err.text);
    assert_non_null(checkpoint_find(made, "model.decoder.layers.0.experts.gate_up_proj.weight"));
    assert_null(checkpoint_find(made, "model.decoder.layers.0.experts.gate_up_proj"));
    checkpoint_close(made);
    for (int tier = 0; tier < 3; tier++) {
        uint64_t want = digest(&g, (enum fidelity_tier)tier, &path);
        struct golden mlx = g;
        snprintf(mlx.dir, sizeof mlx.dir, "%s", dir);
        if (digest(&mlx, (enum fidelity_tier)tier, &path) != want) fail_msg("tier %d: the MLX layout has other bits", tier);
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(file, sizeof file, "%s/%s", dir, files[i]);
        assert_int_equal(unlink(file), 0);
    }
    assert_int_equal(rmdir(dir), 0);
    golden_close(&g);
}

/* --- generations, through the engine --- */

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
        golden_open(&g, names[m]);
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
                    fail_msg("%s, run %zu (%s): token %d is %d, the oracle has %d", names[m], i, label, t, j.out[0][t],
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
    golden_open(&g, names[1]);
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
    golden_open(&g, names[0]);
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
    golden_open(&g, names[0]);
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

/* A key of config.json, of its text_config or of generation_config.json with another value (JSON text; "-": taken out) is refused
 * by name, or read. */
static void test_config_values(void **state)
{
    static const struct { const char *where, *key, *value, *says; } cases[] = {
        { "config", "text_config", "-", "text_config is missing" }, { "config", "text_config", "[1]", "text_config is missing" },
        { "config", "tie_word_embeddings", "false", "tie_word_embeddings is false" },
        { "config", "canvas_length", "0", "canvas_length is 0" }, { "config", "canvas_length", "4096", "canvas_length is 4096" },
        { "config", "canvas_length", "null", NULL }, { "text", "num_experts", "-", "text_config.num_experts is missing" },
        { "text", "head_dim", "null", "text_config.head_dim is missing" }, { "text", "hidden_size", "\"a\"", "hidden_size" },
        { "text", "layer_types", "[1, 2]", "layer_types[0] is no string" }, { "text", "layer_types", "[]", "must list 2 layers" },
        { "text", "layer_types", "-", NULL }, { "text", "layer_types", "[\"full_attention\", \"sliding_attention\"]", "per_layer_config" },
        { "text", "per_layer_config", "3", "must be an object" }, { "text", "per_layer_config", "{\"0\": {}}", "per_layer_config.0" },
        { "text", "per_layer_config", "{\"x\": {}}", "per_layer_config.x" }, { "text", "per_layer_config", "{\"1\": 4}", "per_layer_config.1" },
        { "text", "per_layer_config", "{\"1\": {\"head_dim\": 33}}", "must be even" }, { "text", "per_layer_config", "null", NULL },
        { "text", "use_bidirectional_attention", "\"all\"", "use_bidirectional_attention" },
        { "generation", "max_denoising_steps", "0", "max_denoising_steps must be" },
        { "generation", "max_denoising_steps", "1.5", "whole numbers" }, { "generation", "max_denoising_steps", "null", NULL },
        { "generation", "t_max", "0.1", "t_max 0.1 must be above" }, { "generation", "t_min", "\"a\"", "t_min must be" },
        { "generation", "confidence_threshold", "0", "above the lower bound" }, { "generation", "stability_threshold", "100", "stability" },
        { "generation", "sampler_config", "{\"_cls_name\": \"Other\"}", "sampler_config is Other" },
        { "generation", "sampler_config", "{\"_cls_name\": 3}", "no string" }, { "generation", "sampler_config", "7", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *config = NULL, *generation = NULL;
        struct model_spec spec;
        mb_error err = { 0 };
        assert_int_equal(json_read_file(&config, "tests/golden/tiny/diffusion_gemma/config.json", 1 << 20, &err), MB_OK);
        assert_int_equal(json_read_file(&generation, "tests/golden/tiny/diffusion_gemma/generation_config.json", 1 << 20, &err), MB_OK);
        json_t *o = strcmp(cases[i].where, "config") == 0 ? config
                    : strcmp(cases[i].where, "text") == 0 ? json_object_get(config, "text_config") : generation;
        if (strcmp(cases[i].value, "-") == 0) json_object_del(o, cases[i].key);
        else json_object_set_new(o, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        mb_status st = model_config_parse(&spec, config, generation, &err);
        if (cases[i].says ? st == MB_OK || !strstr(err.text, cases[i].says) : st != MB_OK)
            fail_msg("%s.%s = %s: \"%s\", wanted \"%s\"", cases[i].where, cases[i].key, cases[i].value, st == MB_OK ? "read" : err.text,
                     cases[i].says ? cases[i].says : "read");
        if (st == MB_OK) {
            assert_in_range(spec.canvas.n, 1, 256);
            assert_in_range(spec.canvas.n_rounds, 1, 48);
            model_spec_free(&spec);
        }
        json_decref(config);
        json_decref(generation);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_equal_oracle), cmocka_unit_test(test_rounds_bits), cmocka_unit_test(test_both_layouts), cmocka_unit_test(test_ids_equal_oracle),
        cmocka_unit_test(test_same_bits_on_every_path), cmocka_unit_test(test_ends), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_config_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
