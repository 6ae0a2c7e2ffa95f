/* test_engine_cache.c: the engine's prefix cache, queue and end of life, over the scripted stepper: what a warm request
 * draws equals what a cold one does, caps hold, nothing leaks, everybody is told when the engine dies. */
#include "ops/plan.h"
#include "unit/engine_rig.h"

static const struct kv_kind full_kind[] = { { .type = KIND_FULL, .n_layer = 1, .page_bytes = 4096 } };
static const struct kv_kind mixed_kinds[] = {
    { .type = KIND_FULL, .n_layer = 1, .page_bytes = 8192 },
    { .type = KIND_WINDOW, .window = 100, .n_layer = 5, .page_bytes = 4096 },
};
static const struct kv_kind state_kinds[] = {
    { .type = KIND_FULL, .n_layer = 1, .page_bytes = 4096 },
    { .type = KIND_STATE, .n_layer = 3, .page_bytes = 12288 },
};
static const struct { const struct kv_kind *kinds; int32_t n; bool async; } manners[] = {
    { full_kind, 1, false }, { mixed_kinds, 2, false }, { state_kinds, 2, false },
    { full_kind, 1, true },  { mixed_kinds, 2, true },  { state_kinds, 2, true },
};
enum { N_MANNERS = sizeof manners / sizeof manners[0] };

static void rig_manner(struct rig *r, int i)
{
    rig_init(r);
    r->so.kinds = manners[i].kinds;
    r->so.n_kinds = manners[i].n;
    r->so.async = manners[i].async;
    r->so.early = i % 2 == 1;
}

static void run_cold(struct rig *r, struct rig_job *like, struct rig_job *cold)
{
    job_init(cold, r, like->job.n_ids, 0, 0);
    memcpy(cold->ids, like->ids, (size_t)like->job.n_ids * sizeof(int32_t));
    cold->job.max_tokens = like->job.max_tokens;
    cold->job.no_cache = true;
    job_run(cold);
    assert_int_equal(cold->n_cached, 0);
}

/* Run the prompt; assert that it is as without a cache; returns how much came from the cache. */
static int32_t warm_equals_cold(struct rig *r, int32_t n, int32_t n_common, uint32_t seed)
{
    struct rig_job warm, cold;
    job_init(&warm, r, n, n_common, seed);
    job_run(&warm);
    run_cold(r, &warm, &cold);
    assert_same_output(&warm, &cold, 0);
    int32_t n_cached = warm.n_cached;
    job_free(&warm);
    job_free(&cold);
    return n_cached;
}

/* B-094: block edges N-1, N, N+1, 2N: cold, warm, and after generation; same bits; a hit never covers the last token. */
static void test_b094_block_edges(void **state)
{
    static const int32_t lengths[] = { 1, 2, 63, 64, 65, 66, 127, 128, 129, 192, 193 };
    for (int m = 0; m < N_MANNERS; m++)
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            struct rig r;
            rig_manner(&r, m);
            rig_open(&r);
            assert_int_equal(warm_equals_cold(&r, lengths[i], lengths[i], 1), 0);
            assert_int_equal(warm_equals_cold(&r, lengths[i], lengths[i], 1), lengths[i] - 1);
            assert_int_equal(warm_equals_cold(&r, lengths[i], lengths[i], 1), lengths[i] - 1);
            rig_close(&r);
        }
}

/* The next turn of a conversation: prompt, answer, more. Everything but the last token drawn is there already. */
static void test_next_turn_hits_generation(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job a, b, cold;
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&a, &r, 150, 0, 1);
        a.job.max_tokens = 77;
        job_run(&a);
        job_init(&b, &r, 150 + 77 + 30, 0, 2);
        memcpy(b.ids, a.ids, 150 * sizeof(int32_t));
        memcpy(b.ids + 150, a.out[0], 77 * sizeof(int32_t));
        job_run(&b);
        bool state_lags = manners[m].async && m == 5; /* the live state is one token behind the keys */
        assert_int_equal(b.n_cached, 150 + 76 - state_lags);
        run_cold(&r, &b, &cold);
        assert_same_output(&b, &cold, 0);
        job_free(&a);
        job_free(&b);
        job_free(&cold);
        rig_close(&r);
    }
}

/* Hits in mid page: full and window kinds at any index, recurrent kinds at marks and at 1, 2, 4 .. pages of a prompt. */
static void test_hit_in_mid_page(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job first;
        static const int32_t marks[] = { 70, 333 };
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&first, &r, 500, 400, 1);
        first.job.marks = marks;
        first.job.n_marks = 2;
        job_run(&first);
        bool states = manners[m].kinds == state_kinds;
        assert_int_equal(warm_equals_cold(&r, 500, 400, 2), states ? 333 : 400);
        assert_int_equal(warm_equals_cold(&r, 300, 201, 3), states ? 128 : 201);
        assert_int_equal(warm_equals_cold(&r, 140, 100, 5), states ? 70 : 100);
        assert_int_equal(warm_equals_cold(&r, 90, 33, 4), states ? 0 : 33);
        assert_int_equal(warm_equals_cold(&r, 600, 400, 1), states ? 499 : 500);
        struct engine_stats s = rig_stats(&r);
        assert_int_equal(s.n_pages_held, 0);
        assert_true(r.count.n_copies > 0);
        job_free(&first);
        rig_close(&r);
    }
}

/* A hit never ends inside a two-way span. */
static void test_hit_and_two_way_span(void **state)
{
    static const struct index_span span[] = { { 90, 150 } };
    struct rig r;
    struct rig_job j;
    rig_manner(&r, 1);
    rig_open(&r);
    assert_int_equal(warm_equals_cold(&r, 200, 120, 1), 0);
    job_init(&j, &r, 200, 120, 2);
    j.job.two_way = span;
    j.job.n_two_way = 1;
    job_run(&j);
    assert_int_equal(j.n_cached, 90);
    job_free(&j);
    rig_close(&r);
}

/* B-092, ENG-093, ENG-094, ENG-095, the engine's part: adapters and cache keys separate caches; contents count, not names. */
static void test_b092_keys_separate(void **state)
{
    struct adapter_handle a = { .id = "a", .content_hash = 11 }, again = { .id = "b", .content_hash = 11 };
    struct adapter_handle reloaded = { .id = "a", .content_hash = 12 };
    struct rig r;
    rig_manner(&r, 0);
    rig_open(&r);
    const struct { struct adapter_handle *adapter; uint64_t key; int32_t cached; } step[] = {
        { NULL, 0, 0 }, { &a, 0, 0 }, { &reloaded, 0, 0 }, { &again, 0, 99 }, { NULL, 5, 0 }, { NULL, 0, 99 }, { NULL, 5, 99 },
    };
    for (size_t i = 0; i < sizeof step / sizeof step[0]; i++) {
        struct rig_job j;
        struct adapter_handle *stack[1] = { step[i].adapter };
        job_init(&j, &r, 100, 100, 0);
        j.job.adapters = stack;
        j.job.n_adapters = step[i].adapter ? 1 : 0;
        j.job.cache_key = step[i].key;
        job_run(&j);
        assert_int_equal(j.n_cached, step[i].cached);
        job_free(&j);
    }
    rig_close(&r);
}

/* A request whose prefix another row is prefilling waits for it; one that shares little does not. */
static void test_waits_for_prefix_in_prefill(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job a, same, other;
        static const int32_t marks[] = { 900 };
        rig_manner(&r, m);
        r.eo.prefill_chunk = 100;
        rig_open(&r);
        job_init(&a, &r, 1000, 900, 1);
        job_init(&same, &r, 1000, 900, 2);
        job_init(&other, &r, 1000, 300, 3);
        a.job.marks = same.job.marks = marks;
        a.job.n_marks = same.job.n_marks = 1;
        rig_gate(&r, true);
        job_submit(&a);
        rig_wait_step(&r);
        job_submit(&same);
        job_submit(&other);
        rig_gate(&r, false);
        job_wait(&a);
        job_wait(&same);
        job_wait(&other);
        assert_int_equal(same.n_cached, 900);
        assert_int_equal(other.n_cached, 0); /* started beside a, not after it */
        struct rig_job cold;
        run_cold(&r, &same, &cold);
        assert_same_output(&same, &cold, 0);
        job_free(&a);
        job_free(&same);
        job_free(&other);
        job_free(&cold);
        rig_close(&r);
    }
}

/* B-098, ENG-086: the cap holds over 2000 different prompts, a tenth of them cancelled; nothing is left held, memory is flat. */
static void test_b098_cap_holds(void **state)
{
    for (int m = 0; m < 3; m++) {
        struct rig r;
        rig_manner(&r, m);
        r.eo.batch = 8;
        r.eo.pool_bytes = 8 << 20;
        r.eo.prompt_cache_bytes = 2 << 20;
        rig_open(&r);
        enum { WAVE = 25 };
        int64_t n_cancelled = 0, entries_seen = 0;
        for (uint32_t w = 0; w < 2000 / WAVE; w++) {
            struct rig_job j[WAVE];
            for (uint32_t i = 0; i < WAVE; i++) {
                job_init(&j[i], &r, 20 + (int32_t)((w * WAVE + i) * 37 % 400), (int32_t)(i % 3) * 30, w * WAVE + i);
                j[i].job.max_tokens = 1 + (int32_t)i;
                j[i].cancel_after = i % 10 == 7 ? 1 + (int32_t)i % 5 : 0;
                job_submit(&j[i]);
                if (i % 20 == 3) engine_cancel(r.engine, j[i].id);
            }
            for (uint32_t i = 0; i < WAVE; i++) {
                job_wait(&j[i]);
                n_cancelled += j[i].why[0] == END_CANCELLED;
                job_free(&j[i]);
            }
            struct engine_stats s = rig_stats(&r);
            assert_true(s.cache_bytes <= s.cache_max_bytes);
            assert_true(s.pages_cached_bytes <= s.cache_bytes);
            assert_int_equal(s.n_pages_held, 0);
            assert_int_equal(s.pages_free_bytes + s.pages_cached_bytes, s.pool_bytes);
            entries_seen = s.cache_entries;
        }
        assert_true(n_cancelled >= 200);
        assert_true(entries_seen > 10);
        engine_cache_clear(r.engine);
        struct engine_stats s = rig_stats(&r);
        assert_int_equal(s.cache_bytes, 0);
        assert_int_equal(s.cache_entries, 0);
        assert_int_equal(s.n_pages_cached, 0);
        assert_int_equal(s.pages_free_bytes, s.pool_bytes);
        rig_close(&r);
    }
}

/* One sequence longer than the whole cap keeps its beginning, and does not push out itself. */
static void test_cap_smaller_than_a_sequence(void **state)
{
    for (int m = 0; m < 2; m++) {
        struct rig r;
        rig_manner(&r, m);
        r.eo.prompt_cache_bytes = 10 * 14000;
        rig_open(&r);
        assert_int_equal(warm_equals_cold(&r, 2000, 2000, 0), 0);
        int32_t hit = warm_equals_cold(&r, 2000, 2000, 0);
        assert_true(hit >= 64 * 5 && hit < 2000);
        struct engine_stats s = rig_stats(&r);
        assert_true(s.cache_bytes <= s.cache_max_bytes);
        rig_close(&r);
    }
}

/* --- queue --- */

/* B-103, ENG-043: 4 run, 32 wait, the rest is refused; first in first out; cancelled waiters leave their place at once. */
static void test_b103_queue_limit(void **state)
{
    enum { N = 200, RUN = 4, WAIT = 32 };
    static struct rig_job j[N];
    struct rig r;
    mb_error err;
    rig_manner(&r, 0);
    r.eo.batch = RUN;
    r.eo.queue_max = WAIT;
    rig_open(&r);
    for (int i = 0; i < N; i++) {
        job_init(&j[i], &r, 10, 0, (uint32_t)i);
        j[i].job.max_tokens = 3000;
    }
    for (int i = 0; i < RUN; i++) job_submit(&j[i]);
    for (int i = 0; i < RUN; i++) job_wait_tokens(&j[i], 1);
    rig_gate(&r, true);
    rig_wait_step(&r);
    int n_busy = 0;
    for (int i = RUN; i < N; i++) {
        mb_status rc = engine_submit(r.engine, &j[i].job, &j[i].id, &err);
        assert_int_equal(rc, i < RUN + WAIT ? MB_OK : MB_BUSY);
        n_busy += rc == MB_BUSY;
        if (rc == MB_BUSY) assert_int_equal(j[i].id, 0);
    }
    assert_int_equal(n_busy, N - RUN - WAIT);
    struct engine_stats s;
    engine_stats_get(r.engine, &s);
    assert_int_equal(s.pending_rows, WAIT);
    assert_int_equal(s.rejected, n_busy);
    engine_cancel(r.engine, j[RUN + 5].id);
    engine_stats_get(r.engine, &s);
    assert_int_equal(s.pending_rows, WAIT - 1);
    assert_int_equal(engine_submit(r.engine, &j[N - 1].job, &j[N - 1].id, &err), MB_OK); /* in its place */
    for (int i = 0; i < RUN; i++) engine_cancel(r.engine, j[i].id);
    for (int i = RUN; i < N; i++) j[i].job.max_tokens = 3000;
    rig_gate(&r, false);
    /* Fair order: a job starts only when every earlier one has. */
    for (int i = RUN; i < RUN + WAIT; i++) {
        if (i == RUN + 5) continue;
        job_wait_tokens(&j[i], 1);
        rig_lock(&r);
        for (int k = i + RUN + 1; k < RUN + WAIT; k++) assert_int_equal(j[k].n_started, 0);
        rig_unlock(&r);
        engine_cancel(r.engine, j[i].id);
        job_wait(&j[i]);
    }
    engine_cancel(r.engine, j[N - 1].id);
    job_wait(&j[N - 1]);
    job_wait(&j[RUN + 5]);
    assert_int_equal(j[RUN + 5].n_started, 0);
    s = rig_stats(&r);
    assert_int_equal(s.n_pages_held, 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(j[i].n_done_calls, i < RUN + WAIT || i == N - 1 ? 1 : 0);
        job_free(&j[i]);
    }
    rig_close(&r);
}

/* --- steppers that fail --- */

static struct stepper inner;
static mb_status failing_status;
static uint64_t fail_at, n_submits;

static mb_status failing_submit(void *ctx, const struct row *rows, int32_t n_rows, struct row_result *results,
                                mb_error *err)
{
    if (++n_submits == fail_at) return mb_fail(err, failing_status, "planted");
    return inner.submit(ctx, rows, n_rows, results, err);
}

static void rig_open_failing(struct rig *r, mb_status status, uint64_t at)
{
    mb_error err;
    assert_int_equal(stepper_scripted(&inner, &r->so, &err), MB_OK);
    struct stepper outer = inner;
    outer.submit = failing_submit;
    failing_status = status;
    fail_at = at;
    n_submits = 0;
    assert_int_equal(engine_open(&r->engine, &outer, &r->eo, &err), MB_OK);
}

/* B-106: the device fails, the engine ends: everybody is told, new jobs are refused, nothing hangs. */
static void test_b106_engine_death(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j[8], late;
        mb_error err;
        rig_manner(&r, m);
        r.eo.batch = 3;
        rig_open_failing(&r, MB_DEVICE, 20);
        assert_true(engine_alive(r.engine));
        rig_gate(&r, true);
        for (int i = 0; i < 8; i++) {
            job_init(&j[i], &r, 100, 0, (uint32_t)i);
            j[i].job.max_tokens = 2000;
            j[i].job.n_choices = i == 1 ? 2 : 1;
            job_submit(&j[i]);
        }
        rig_gate(&r, false);
        for (int i = 0; i < 8; i++) job_wait(&j[i]);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(j[i].why[0], END_ERROR);
            assert_true(j[i].status[0] == MB_ENGINE_DEAD || j[i].status[0] == MB_DEVICE);
        }
        assert_int_equal(j[7].status[0], MB_ENGINE_DEAD);
        for (int i = 0; i < 100000 && engine_alive(r.engine); i++) clock_sleep_ms(1);
        assert_false(engine_alive(r.engine));
        job_init(&late, &r, 10, 0, 0);
        assert_int_equal(engine_submit(r.engine, &late.job, &late.id, &err), MB_ENGINE_DEAD);
        engine_cancel(r.engine, j[0].id);
        engine_cache_clear(r.engine); /* does not wait for the dead */
        for (int i = 0; i < 8; i++) job_free(&j[i]);
        job_free(&late);
        rig_close(&r);
    }
}

/* A failed allocation in a step fails the youngest request; the others do not notice. */
static void test_no_memory_fails_one(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j[3], cold;
        rig_manner(&r, m);
        rig_open_failing(&r, MB_NO_MEMORY, 30);
        rig_gate(&r, true); /* all three run when it happens */
        for (int i = 0; i < 3; i++) {
            job_init(&j[i], &r, 100, 0, (uint32_t)i);
            j[i].job.max_tokens = 100;
            job_submit(&j[i]);
        }
        rig_gate(&r, false);
        for (int i = 0; i < 3; i++) job_wait(&j[i]);
        assert_int_equal(j[2].why[0], END_ERROR);
        assert_int_equal(j[2].status[0], MB_NO_MEMORY);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(j[i].why[0], END_LENGTH);
            run_cold(&r, &j[i], &cold);
            assert_same_output(&j[i], &cold, 0);
            job_free(&cold);
        }
        assert_int_equal(rig_stats(&r).n_pages_held, 0);
        for (int i = 0; i < 3; i++) job_free(&j[i]);
        rig_close(&r);
    }
}

/* --- closing --- */

static void test_close_drains_then_cancels(void **state)
{
    for (int drain = 0; drain < 2; drain++) {
        struct rig r;
        struct rig_job shorter, longer, waiting;
        rig_manner(&r, 1);
        r.eo.batch = 2;
        r.so.step_delay_ms = 1;
        rig_open(&r);
        job_init(&shorter, &r, 50, 0, 1);
        job_init(&longer, &r, 50, 0, 2);
        job_init(&waiting, &r, 50, 0, 3);
        longer.job.max_tokens = 4000;
        job_submit(&shorter);
        job_submit(&longer);
        job_wait_tokens(&longer, 1);
        job_submit(&waiting);
        engine_close(r.engine, drain ? 200 : 0);
        assert_true(shorter.done && longer.done && waiting.done);
        assert_int_equal(waiting.why[0], END_CANCELLED);
        assert_int_equal(longer.why[0], END_CANCELLED);
        if (drain) assert_int_equal(shorter.why[0], END_LENGTH);
        assert_int_equal(r.count.n_violations, 0);
        job_free(&shorter);
        job_free(&longer);
        job_free(&waiting);
    }
}

static void test_open_refuses_nonsense(void **state)
{
    struct rig r;
    struct stepper st;
    mb_error err;
    rig_manner(&r, 0);
    const struct engine_options bad[] = { { .batch = 0 }, { .batch = 33 }, { .batch = 1, .pool_bytes = 100 } };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stepper_scripted(&st, &r.so, &err), MB_OK);
        assert_int_equal(engine_open(&r.engine, &st, &bad[i], &err), MB_INVALID);
        assert_null(r.engine);
        assert_true(strlen(err.text) > 10);
    }
    /* pool_bytes 0: one context fits */
    for (int m = 0; m < N_MANNERS; m++) {
        struct engine_stats s;
        rig_manner(&r, m);
        r.eo.pool_bytes = 0;
        rig_open(&r);
        engine_stats_get(r.engine, &s);
        assert_int_equal(s.max_safe_context, r.so.n_context);
        assert_true(s.alive);
        assert_true(s.heartbeat_age_ms < 100000);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b094_block_edges),
        cmocka_unit_test(test_next_turn_hits_generation),
        cmocka_unit_test(test_hit_in_mid_page),
        cmocka_unit_test(test_hit_and_two_way_span),
        cmocka_unit_test(test_b092_keys_separate),
        cmocka_unit_test(test_waits_for_prefix_in_prefill),
        cmocka_unit_test(test_b098_cap_holds),
        cmocka_unit_test(test_cap_smaller_than_a_sequence),
        cmocka_unit_test(test_b103_queue_limit),
        cmocka_unit_test(test_b106_engine_death),
        cmocka_unit_test(test_no_memory_fails_one),
        cmocka_unit_test(test_close_drains_then_cancels),
        cmocka_unit_test(test_open_refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
