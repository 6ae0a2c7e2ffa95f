/* test_adapters.c: adapters in the engine: alone, in mixed batches, in chunks, from the prefix cache, with more threads: the
 * same ids and log-probabilities, bit for bit; neighbours' adapters change nothing; caches never mix (B-092). Embedding
 * jobs likewise. MLX_BUN_TEST_DEVICE=cuda runs all of it on a GPU.
 */
#include "unit/engine_rig.h"

#include "engine/open.h"

#define GOLDEN "tests/golden/adapters/"
enum { PROMPT = 150, DRAWN = 24, N_STACKS = 5 };

/* Stacks over the llama checkpoint: none, one, the other, both, both the other way round. */
static const char *const stacks[N_STACKS][2] = { { NULL }, { "a" }, { "b" }, { "a", "b" }, { "b", "a" } };

static int32_t stack_n(int i)
{
    return stacks[i][0] == NULL ? 0 : stacks[i][1] == NULL ? 1 : 2;
}

static void mount(struct rig *r, const char *id, const char *folder)
{
    struct engine_adapter_entry e;
    mb_error err = { 0 };
    char path[256];
    snprintf(path, sizeof path, GOLDEN "%s", folder);
    if (engine_adapter_mount(r->engine, id, path, &e, NULL, &err) != MB_OK) fail_msg("%s", err.text);
    assert_string_equal(e.id, id);
}

static void open_engine(struct rig *r, const char *model, int32_t batch, int32_t chunk, size_t cache, int n_threads)
{
    struct engine_loaded info;
    mb_error err = { 0 };
    rig_init(r);
    struct engine_load load = { .dir = model, .device = getenv("MLX_BUN_TEST_DEVICE"), .kv_format = -1, .n_threads = n_threads,
                                .engine = { .batch = batch, .queue_max = 32, .prompt_cache_bytes = cache, .prefill_chunk = chunk } };
    if (engine_load(&r->engine, &load, &info, &err) != MB_OK) fail_msg("%s", err.text);
}

static void open_llama(struct rig *r, int32_t batch, int32_t chunk, size_t cache, int n_threads)
{
    open_engine(r, "tests/golden/tiny/llama", batch, chunk, cache, n_threads);
    mount(r, "a", "llama-a");
    mount(r, "b", "llama-b");
}

static void job_with(struct rig_job *j, struct rig *r, struct adapter_pin *pin, const char *const *ids, int32_t n, uint32_t seed)
{
    int32_t missing, n_vocab = engine_info(r->engine)->n_vocab;
    job_init(j, r, PROMPT, 0, seed);
    for (int32_t i = 0; i < PROMPT; i++) j->ids[i] %= n_vocab;
    j->job.max_tokens = DRAWN;
    j->job.params.n_vocab_live = n_vocab;
    j->job.params.min_keep = 1;
    assert_true(engine_adapter_pin(r->engine, ids, n, pin, &missing));
    j->job.adapters = pin->handles;
    j->job.n_adapters = pin->n;
}

static void alone(int i_stack, struct rig_job *out)
{
    static struct rig r;
    struct adapter_pin pin;
    open_llama(&r, 1, 0, 0, 1);
    job_with(out, &r, &pin, stacks[i_stack], stack_n(i_stack), 1);
    job_run(out);
    assert_int_equal(out->why[0], END_LENGTH);
    engine_adapter_unpin(r.engine, &pin);
    rig_close(&r);
}

static bool differ(const struct rig_job *a, const struct rig_job *b)
{
    return memcmp(a->logprob[0], b->logprob[0], (size_t)DRAWN * sizeof(float)) != 0;
}

/* The same prompt with five different stacks in one batch: each as alone. Order in a stack counts: sums are not associative. */
static void test_mixed_batch_equals_alone(void **state)
{
    static const struct { int32_t batch, chunk; size_t cache; int n_threads; } setups[] = {
        { 5, 0, 0, 1 }, { 5, 7, 0, 2 }, { 3, 64, 4 << 20, 2 },
    };
    struct rig_job want[N_STACKS];
    (void)state;
    for (int i = 0; i < N_STACKS; i++) alone(i, &want[i]);
    for (int i = 1; i < N_STACKS; i++)
        for (int k = 0; k < i; k++)
            if (i != 4 || k != 3) assert_true(differ(&want[i], &want[k]));
    for (size_t s = 0; s < sizeof setups / sizeof setups[0]; s++) {
        struct rig r;
        struct rig_job j[N_STACKS];
        struct adapter_pin pin[N_STACKS];
        open_llama(&r, setups[s].batch, setups[s].chunk, setups[s].cache, setups[s].n_threads);
        for (int i = 0; i < N_STACKS; i++) {
            job_with(&j[i], &r, &pin[i], stacks[i], stack_n(i), 1);
            job_submit(&j[i]);
        }
        for (int i = 0; i < N_STACKS; i++) {
            job_wait(&j[i]);
            assert_same_output(&j[i], &want[i], 0);
            job_free(&j[i]);
            engine_adapter_unpin(r.engine, &pin[i]);
        }
        rig_close(&r);
    }
    for (int i = 0; i < N_STACKS; i++) job_free(&want[i]);
}

/* B-092, API-313, API-314: the same prompt with A, B, none, A at half scale, then A replaced under its name: each equals
 * its own cold run; the second time each is served from its own cache. */
static void test_b092_caches_do_not_mix(void **state)
{
    static const struct { const char *folder; int32_t n; } rounds[] = {
        { "llama-a", 1 }, { "llama-b", 1 }, { NULL, 0 }, { "llama-a-half", 1 }, { "llama-patterns", 1 },
    };
    static const char *const name[] = { "x" };
    struct rig warm;
    (void)state;
    open_engine(&warm, "tests/golden/tiny/llama", 2, 0, 16 << 20, 2);
    for (int again = 0; again < 2; again++)
        for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
            struct rig cold;
            struct rig_job want, got;
            struct adapter_pin pin, cold_pin;
            open_engine(&cold, "tests/golden/tiny/llama", 1, 0, 0, 1);
            if (rounds[i].folder) mount(&cold, "x", rounds[i].folder);
            if (rounds[i].folder) mount(&warm, "x", rounds[i].folder); /* replaces what had the name */
            job_with(&want, &cold, &cold_pin, name, rounds[i].n, 1);
            job_with(&got, &warm, &pin, name, rounds[i].n, 1);
            job_run(&want);
            job_run(&got);
            assert_same_output(&got, &want, 0);
            assert_int_equal(got.n_cached, again ? PROMPT - 1 : 0);
            engine_adapter_unpin(cold.engine, &cold_pin);
            engine_adapter_unpin(warm.engine, &pin);
            job_free(&want);
            job_free(&got);
            rig_close(&cold);
        }
    rig_close(&warm);
}

/* API-304, API-306: unmounting and replacing while a job runs: it ends with what it began with; the name is gone at once. */
static void test_unmount_in_use(void **state)
{
    static const char *const name[] = { "a" };
    struct rig_job want, j;
    struct adapter_pin pin, none;
    struct rig r;
    mb_error err = { 0 };
    int32_t missing;
    (void)state;
    alone(1, &want);
    open_llama(&r, 2, 5, 0, 1);
    job_with(&j, &r, &pin, name, 1, 1);
    job_submit(&j);
    mount(&r, "a", "llama-patterns");
    assert_int_equal(engine_adapter_unmount(r.engine, "a", &err), MB_OK);
    assert_int_equal(engine_adapter_unmount(r.engine, "a", &err), MB_NOT_FOUND);
    assert_false(engine_adapter_pin(r.engine, name, 1, &none, &missing));
    assert_int_equal(missing, 0);
    job_wait(&j);
    assert_same_output(&j, &want, 0);
    engine_adapter_unpin(r.engine, &pin);
    struct engine_adapter_entry list[4];
    assert_int_equal(engine_adapter_list(r.engine, list, 4), 1);
    assert_string_equal(list[0].id, "b");
    job_free(&j);
    job_free(&want);
    rig_close(&r);
}

/* TRN-307: the base model is untouched by what was mounted. */
static void test_base_is_untouched(void **state)
{
    struct rig r;
    struct rig_job want, got;
    struct adapter_pin pin;
    (void)state;
    open_engine(&r, "tests/golden/tiny/llama", 1, 0, 0, 1);
    job_with(&want, &r, &pin, NULL, 0, 1);
    job_run(&want);
    mount(&r, "a", "llama-a");
    job_with(&got, &r, &pin, NULL, 0, 1);
    job_run(&got);
    assert_same_output(&got, &want, 0);
    job_free(&want);
    job_free(&got);
    rig_close(&r);
}

/* --- embeddings --- */

enum { N_EMBED = 12 };

static void embed_job(struct rig_job *j, struct rig *r, int32_t n, uint32_t seed, float *out)
{
    job_init(j, r, n, 0, seed);
    for (int32_t i = 0; i < n; i++) j->ids[i] %= engine_info(r->engine)->n_vocab;
    j->job.method = JOB_EMBED;
    j->job.hidden = out;
    j->job.no_cache = true;
    j->job.filter.on_token = NULL;
}

/* API-259: embeddings beside a batch that is full of generations, in any company and chunk: the bits of each alone. */
static void test_embeddings_equal_alone(void **state)
{
    float want[N_EMBED][64], got[N_EMBED][64];
    struct rig r;
    struct rig_job j[N_EMBED], busy[3];
    struct adapter_pin pin;
    (void)state;
    for (int round = 0; round < 3; round++) {
        open_engine(&r, "tests/golden/tiny/qwen3", round == 0 ? 1 : 2, round == 2 ? 5 : 0, 1 << 20, round == 0 ? 1 : 2);
        assert_int_equal(engine_info(r.engine)->d_model, 64);
        for (int i = 0; round > 0 && i < 3; i++) { /* more than the batch holds: one waits */
            job_with(&busy[i], &r, &pin, NULL, 0, (uint32_t)i);
            busy[i].job.max_tokens = 200;
            job_submit(&busy[i]);
        }
        for (int i = 0; i < N_EMBED; i++) {
            embed_job(&j[i], &r, i == 0 ? 1 : i == 1 ? 2 : 37 * i, (uint32_t)i, round ? got[i] : want[i]);
            job_submit(&j[i]);
            if (round == 0) job_wait(&j[i]);
        }
        for (int i = 0; i < N_EMBED; i++) {
            job_wait(&j[i]);
            assert_int_equal(j[i].why[0], END_LENGTH);
            if (round) assert_memory_equal(got[i], want[i], sizeof want[i]);
            job_free(&j[i]);
        }
        for (int i = 0; round > 0 && i < 3; i++) {
            job_wait(&busy[i]);
            assert_int_equal(busy[i].n_out[0], 200);
            job_free(&busy[i]);
        }
        assert_int_equal(rig_stats(&r).n_pages_held, 0);
        rig_close(&r);
    }
}

/* API-259: with a batch of one that is taken, an embedding is done while the generation goes on. */
static void test_embedding_does_not_wait(void **state)
{
    float v[64];
    struct rig r;
    struct rig_job busy, j;
    struct adapter_pin pin;
    (void)state;
    open_engine(&r, "tests/golden/tiny/qwen3", 1, 0, 0, 1);
    job_with(&busy, &r, &pin, NULL, 0, 3);
    busy.job.max_tokens = 3000;
    job_submit(&busy);
    embed_job(&j, &r, 40, 4, v);
    job_submit(&j);
    job_wait(&j);
    rig_lock(&r);
    bool running = !busy.done;
    rig_unlock(&r);
    assert_true(running);
    engine_cancel(r.engine, busy.id);
    job_wait(&busy);
    job_free(&busy);
    job_free(&j);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed_batch_equals_alone), cmocka_unit_test(test_b092_caches_do_not_mix),
        cmocka_unit_test(test_unmount_in_use),           cmocka_unit_test(test_base_is_untouched),
        cmocka_unit_test(test_embeddings_equal_alone),   cmocka_unit_test(test_embedding_does_not_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
