/* test_engine.c: the scheduler end to end over the scripted stepper. Every draw is a hash of all earlier ids read from
 * the pages, so equal output means equal pages. Requirement and case IDs stand at the tests. */
#include "unit/engine_rig.h"

static const struct kv_kind full_kind[] = { { .type = KIND_FULL, .n_layer = 1, .n_head_kv = 1, .head_dim = 64,
                                              .page_bytes = 4096 } };
static const struct kv_kind mixed_kinds[] = {
    { .type = KIND_FULL, .n_layer = 1, .n_head_kv = 1, .head_dim = 64, .page_bytes = 8192 },
    { .type = KIND_WINDOW, .window = 100, .n_layer = 5, .n_head_kv = 1, .head_dim = 64, .page_bytes = 4096 },
};
static const struct kv_kind state_kinds[] = {
    { .type = KIND_FULL, .n_layer = 1, .n_head_kv = 1, .head_dim = 64, .page_bytes = 4096 },
    { .type = KIND_WINDOW, .window = 70, .n_layer = 1, .n_head_kv = 1, .head_dim = 64, .page_bytes = 4096 },
    { .type = KIND_STATE, .n_layer = 3, .page_bytes = 12288 },
};

static void rig_kinds(struct rig *r, const struct kv_kind *kinds, int32_t n)
{
    rig_init(r);
    r->so.kinds = kinds;
    r->so.n_kinds = n;
}

/* --- the plain way --- */

static void test_script_end_to_end(void **state)
{
    static const int32_t script[] = { 5, 6, 7 };
    struct rig r;
    struct rig_job j;
    rig_init(&r);
    r.so.hash_draws = false;
    r.so.script = script;
    r.so.n_script = 3;
    rig_open(&r);
    job_init(&j, &r, 10, 10, 0);
    static const int32_t ends[] = { RIG_END };
    j.job.end_ids = ends;
    j.job.n_end_ids = 1;
    job_run(&j);
    assert_int_equal(j.n_out[0], 4);
    assert_int_equal(j.out[0][0], 5);
    assert_int_equal(j.out[0][2], 7);
    assert_int_equal(j.out[0][3], RIG_END); /* the end token is passed, with is_end */
    assert_int_equal(j.n_end_tokens, 1);
    assert_int_equal(j.why[0], END_EOS);
    assert_int_equal(j.n_started, 1);
    assert_int_equal(j.n_prompt_seen, 10);
    job_free(&j);
    rig_close(&r);
}


/* What a job draws alone: one row, no cache, no pages; the past comes from the ids themselves. */
static void solo(const struct rig_job *like, struct rig_job *out)
{
    static struct rig r;
    rig_init(&r);
    r.eo.batch = 1;
    r.eo.prompt_cache_bytes = 0;
    r.so.hash_end_every = like->rig->so.hash_end_every;
    rig_open(&r);
    job_init(out, &r, like->job.n_ids, 0, 0);
    struct job_filter f = out->job.filter;
    memcpy(out->ids, like->ids, (size_t)like->job.n_ids * sizeof(int32_t));
    out->job = like->job;
    out->job.ids = out->ids;
    out->job.filter = f;
    out->stop_after = like->stop_after;
    job_run(out);
    rig_close(&r);
}

static void assert_as_alone(const struct rig_job *j)
{
    struct rig_job alone;
    solo(j, &alone);
    for (int32_t i = 0; i < j->job.n_choices; i++) {
        assert_int_equal(j->why[i], alone.why[i]);
        assert_same_output(j, &alone, i);
    }
    job_free(&alone);
}

static void assert_nothing_held(struct rig *r)
{
    struct engine_stats s = rig_stats(r);
    assert_int_equal(s.n_pages_held, 0);
    assert_int_equal(s.kv_bytes_active, 0);
    assert_true(s.cache_bytes <= s.cache_max_bytes);
}

/* Kinds and stepper manners that every behaviour below must hold for. */
static const struct { const struct kv_kind *kinds; int32_t n; bool async; } manners[] = {
    { full_kind, 1, false }, { mixed_kinds, 2, false }, { state_kinds, 3, false },
    { full_kind, 1, true }, { mixed_kinds, 2, true }, { state_kinds, 3, true }, { NULL, 0, true },
};
enum { N_MANNERS = sizeof manners / sizeof manners[0] };

static void rig_manner(struct rig *r, int i)
{
    rig_kinds(r, manners[i].kinds, manners[i].n);
    r->so.async = manners[i].async;
    r->so.early = i % 2 == 1;
}

/* --- batching --- */

/* design.md 1: strangers in the batch change nothing. ENG-005, ENG-006 */
static void test_eng006_strangers_change_nothing(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j[10];
        rig_manner(&r, m);
        r.so.hash_end_every = 60;
        rig_open(&r);
        static const int32_t ends[] = { RIG_END };
        for (int i = 0; i < 10; i++) {
            job_init(&j[i], &r, 3 + 97 * i, 0, (uint32_t)i);
            j[i].job.max_tokens = 40 + 10 * i;
            j[i].job.end_ids = ends;
            j[i].job.n_end_ids = 1;
            j[i].stop_after = i == 4 ? 17 : 0;
        }
        rig_gate(&r, true);
        for (int i = 0; i < 10; i++) job_submit(&j[i]);
        rig_gate(&r, false);
        for (int i = 0; i < 10; i++) job_wait(&j[i]);
        assert_int_equal(j[4].why[0], END_STOP); /* ENG-002: nothing after the stop */
        for (int i = 0; i < 10; i++) {
            assert_as_alone(&j[i]);
            job_free(&j[i]);
        }
        assert_nothing_held(&r);
        rig_close(&r);
        assert_true(r.count.max_rows <= 4 && r.count.max_rows > 1);
    }
}

/* ENG-050, CFG-033: the chunk size has no effect on what is drawn. */
static void test_eng050_chunk_sizes(void **state)
{
    static const int32_t chunks[] = { 1, 7, 64, 100, 2048 };
    for (int m = 0; m < N_MANNERS; m++)
        for (int c = 0; c < 5; c++) {
            struct rig r;
            struct rig_job j;
            rig_manner(&r, m);
            r.eo.prefill_chunk = chunks[c];
            rig_open(&r);
            job_init(&j, &r, 300, 0, 3);
            job_run(&j);
            assert_as_alone(&j);
            for (int i = 0; i < r.n_chunks; i++) assert_true(r.chunk[i] <= chunks[c]);
            job_free(&j);
            rig_close(&r);
        }
}

static bool chunk_ended_at(const struct rig *r, int32_t index)
{
    for (int32_t i = 0; i < r->n_chunks; i++)
        if (r->chunk_end[i] == index) return true;
    return false;
}

/* Chunks end at marks (where a state must be kept) and never inside a two-way span; the stepper checks the latter. */
static void test_chunk_ends(void **state)
{
    static const int32_t marks[] = { 100, 310 };
    static const struct index_span spans[] = { { 320, 460 }, { 470, 480 } };
    for (int async = 0; async < 2; async++) {
        struct rig r;
        struct rig_job j;
        rig_kinds(&r, state_kinds, 3);
        r.so.async = async;
        r.eo.prefill_chunk = 64;
        rig_open(&r);
        job_init(&j, &r, 600, 0, 3);
        j.job.marks = marks;
        j.job.n_marks = 2;
        j.job.two_way = spans;
        j.job.n_two_way = 2;
        job_run(&j);
        assert_int_equal(j.n_out[0], 20);
        assert_true(chunk_ended_at(&r, 100));
        assert_true(chunk_ended_at(&r, 310));
        assert_true(chunk_ended_at(&r, 599)); /* prompt end - 1 */
        assert_true(chunk_ended_at(&r, 460)); /* the span alone, longer than a chunk */
        assert_false(chunk_ended_at(&r, 475));
        assert_true(j.n_progress >= 8);
        job_free(&j);
        rig_close(&r);
    }
}

/* Rows at the end of a page have the next one where the stepper begins steps early, else not. */
static int32_t n_at_end, n_with_next;
static void look_at_pages(void *ctx, const struct row *rows, int32_t n_rows)
{
    (void)ctx;
    for (int32_t i = 0; i < n_rows; i++) {
        int32_t next = rows[i].i_first + 1;
        if (rows[i].n != 1 || next % KV_PAGE_TOKENS != 0) continue;
        n_at_end++;
        n_with_next += rows[i].seq->kind[0].n_page > next / KV_PAGE_TOKENS;
    }
}
static void test_pages_come_a_token_early(void **state)
{
    for (int early = 0; early < 2; early++) {
        struct rig r;
        struct rig_job j;
        rig_kinds(&r, mixed_kinds, 2);
        r.so.early = early;
        r.so.on_batch = look_at_pages;
        rig_open(&r);
        n_at_end = n_with_next = 0;
        job_init(&j, &r, 100, 0, 3);
        j.job.max_tokens = 220;
        job_run(&j);
        assert_int_equal(j.n_out[0], 220);
        assert_int_equal(n_at_end, 3); /* of 318 indices; of index 319 nothing is computed */
        assert_int_equal(n_with_next, early ? 3 : 0);
        assert_nothing_held(&r);
        job_free(&j);
        rig_close(&r);
    }
}

/* A span too long for a step, or badly placed, is refused. */
static void test_two_way_spans_checked(void **state)
{
    static const struct index_span long_span[] = { { 0, 2047 } }, outside[] = { { 5, 4000 } };
    struct rig r;
    struct rig_job j;
    mb_error err;
    rig_kinds(&r, full_kind, 1);
    rig_open(&r);
    job_init(&j, &r, 3000, 0, 3);
    j.job.two_way = long_span;
    j.job.n_two_way = 1;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_TOO_LARGE);
    j.job.two_way = outside;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_INVALID);
    job_free(&j);
    rig_close(&r);
}

/* B-100, the scheduler's part: beside a running stream a long prompt gets max(3 decode steps, 20 ms) of each step,
 * here about 20 tokens; alone it gets a quarter of a second, but no fewer than 256 tokens. */
static void test_b100_prefill_share(void **state)
{
    struct rig r;
    struct rig_job stream, prompt;
    rig_kinds(&r, full_kind, 1);
    r.so.step_delay_ms = 1;
    r.so.prefill_delay_ms_per_1k = 1000;
    rig_open(&r);
    job_init(&stream, &r, 600, 0, 1);
    job_init(&prompt, &r, 600, 0, 2);
    stream.job.max_tokens = -1;
    job_submit(&stream);
    job_wait_tokens(&stream, 30);
    rig_lock(&r);
    int32_t n_alone = r.n_chunks;
    rig_unlock(&r);
    job_run(&prompt);
    engine_cancel(r.engine, stream.id);
    job_wait(&stream);
    assert_int_equal(r.chunk[0], 600); /* no rate known yet */
    assert_int_equal(n_alone, 1);
    /* The share follows the measured time, which a loaded machine stretches: loose bounds. */
    assert_true(r.n_chunks >= 4);
    for (int32_t i = 1; i < r.n_chunks; i++) assert_true(r.chunk[i] <= 300);
    assert_as_alone(&prompt);
    job_free(&prompt);
    job_init(&prompt, &r, 1000, 0, 3);
    r.n_chunks = 0;
    job_run(&prompt);
    assert_true(r.chunk[0] >= 256);
    job_free(&prompt);
    job_free(&stream);
    rig_close(&r);
}

/* --- choices --- */

/* API: n choices fork after one prefill, each with its own noise; same bits with one slot, or without a cache. */
static void test_forks_after_one_prefill(void **state)
{
    for (int m = 0; m < N_MANNERS; m++)
        for (int one_slot = 0; one_slot < 2; one_slot++)
            for (int no_cache = 0; no_cache < 2; no_cache++) {
                struct rig r;
                struct rig_job j;
                rig_manner(&r, m);
                if (one_slot) r.eo.batch = 1;
                rig_open(&r);
                job_init(&j, &r, 333, 0, 9);
                j.job.n_choices = 3;
                j.job.no_cache = no_cache;
                job_run(&j);
                assert_as_alone(&j);
                assert_true(memcmp(j.out[0], j.out[1], 20 * sizeof(int32_t)) != 0);
                assert_true(memcmp(j.out[1], j.out[2], 20 * sizeof(int32_t)) != 0);
                assert_int_equal(j.n_started, 1);
                /* 333 once, the last prompt token twice more, 19 fed back for each */
                if (manners[m].n > 0) assert_true(r.count.n_tokens <= 333 + 2 + 3 * 19 + 3);
                job_free(&j);
                assert_nothing_held(&r);
                rig_close(&r);
            }
}

/* --- cancel --- */

/* B-043, API-013, ENG-046 .. ENG-048: in the queue, in prefill, in decode; pages are back, the others go on. */
static void test_b043_cancel_anywhere(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job bystander, queued, prefill, decode;
        rig_manner(&r, m);
        r.eo.batch = 3;
        r.eo.prefill_chunk = 64;
        r.so.step_delay_ms = 1;
        rig_open(&r);
        job_init(&bystander, &r, 50, 0, 1);
        job_init(&decode, &r, 60, 0, 2);
        job_init(&prefill, &r, 3000, 0, 3);
        job_init(&queued, &r, 70, 0, 4);
        bystander.job.max_tokens = 80;
        decode.job.max_tokens = 2000;
        job_submit(&bystander);
        job_submit(&decode);
        job_wait_tokens(&decode, 3);
        rig_gate(&r, true);
        rig_wait_step(&r);
        job_submit(&prefill);
        job_submit(&queued);
        rig_gate(&r, false);
        rig_lock(&r);
        while (!prefill.n_progress) rig_wait_on(&r);
        rig_unlock(&r);
        rig_gate(&r, true);
        rig_wait_step(&r);
        int32_t steps = r.n_steps; /* the engine stands in the gate */
        engine_cancel(r.engine, queued.id);
        engine_cancel(r.engine, prefill.id);
        engine_cancel(r.engine, decode.id);
        rig_gate(&r, false);
        job_wait(&queued);
        job_wait(&prefill);
        job_wait(&decode);
        assert_true(queued.step_at_done <= steps + 2); /* within two steps */
        assert_true(prefill.step_at_done <= steps + 2);
        assert_true(decode.step_at_done <= steps + 2);
        assert_int_equal(queued.why[0], END_CANCELLED);
        assert_int_equal(queued.n_started, 0);
        assert_int_equal(prefill.why[0], END_CANCELLED);
        assert_int_equal(prefill.n_out[0], 0);
        assert_int_equal(decode.why[0], END_CANCELLED);
        job_wait(&bystander);
        assert_as_alone(&bystander);
        struct engine_stats s = rig_stats(&r);
        assert_int_equal(s.cancelled, 3);
        assert_int_equal(s.finished, 1);
        assert_nothing_held(&r);
        engine_cancel(r.engine, 12345); /* unknown: ignored */
        job_free(&bystander);
        job_free(&queued);
        job_free(&prefill);
        job_free(&decode);
        rig_close(&r);
    }
}

/* A filter may cancel its own job. */
static void test_cancel_from_filter(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j;
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&j, &r, 100, 0, 1);
        j.job.max_tokens = 3000;
        j.job.n_choices = 2;
        j.cancel_after = 5;
        job_run(&j);
        assert_int_equal(j.why[0], END_CANCELLED);
        assert_int_equal(j.why[1], END_CANCELLED);
        assert_true(j.n_out[0] <= 7);
        assert_nothing_held(&r);
        job_free(&j);
        rig_close(&r);
    }
}

/* --- memory --- */

/* Rows preempted for room are computed again: same bits, a pause. */
static void test_preemption_keeps_output(void **state)
{
    for (int m = 0; m < N_MANNERS - 1; m++)
        for (int cache = 0; cache < 2; cache++) {
            struct rig r;
            struct rig_job j[6];
            rig_manner(&r, m);
            r.eo.batch = 6;
            r.eo.pool_bytes = 256 << 10;
            if (!cache) r.eo.prompt_cache_bytes = 0;
            rig_open(&r);
            rig_gate(&r, true);
            for (int i = 0; i < 6; i++) {
                job_init(&j[i], &r, 300 + 50 * i, 0, (uint32_t)i);
                j[i].job.max_tokens = 500;
                j[i].job.n_choices = i == 2 ? 2 : 1;
                job_submit(&j[i]);
            }
            rig_gate(&r, false);
            for (int i = 0; i < 6; i++) job_wait(&j[i]);
            for (int i = 0; i < 6; i++) {
                assert_as_alone(&j[i]);
                assert_int_equal(j[i].n_started, 1);
                job_free(&j[i]);
            }
            struct engine_stats s = rig_stats(&r);
            assert_true(s.preempted > 0);
            assert_nothing_held(&r);
            rig_close(&r);
        }
}

/* Alone and too long for the pool: a typed error, never a cut answer (API-323). The prompt itself was admissible. */
static void test_api323_alone_and_pool_full(void **state)
{
    for (int m = 0; m < N_MANNERS - 1; m++) {
        struct rig r;
        struct rig_job j, after;
        rig_manner(&r, m);
        r.eo.pool_bytes = 400 << 10;
        r.so.n_context = 16000;
        rig_open(&r);
        job_init(&j, &r, 500, 0, 1);
        j.job.max_tokens = -1;
        job_run(&j);
        assert_int_equal(j.why[0], END_ERROR);
        assert_int_equal(j.status[0], MB_CONTEXT_OVER_BUDGET);
        assert_true(j.n_out[0] > 1000);
        job_init(&after, &r, 500, 0, 2);
        job_run(&after);
        assert_as_alone(&after);
        assert_nothing_held(&r);
        job_free(&j);
        job_free(&after);
        rig_close(&r);
    }
}

/* Refusals that no waiting cures; max_tokens is clamped to the window. */
static void test_admission_bounds(void **state)
{
    struct rig r;
    struct rig_job j;
    mb_error err;
    rig_kinds(&r, full_kind, 1);
    r.so.n_context = 200;
    r.eo.pool_bytes = 3 * 4096; /* 192 tokens */
    rig_open(&r);
    job_init(&j, &r, 200, 0, 1);
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_CONTEXT_LENGTH);
    assert_non_null(strstr(err.text, "200"));
    j.job.n_ids = 192;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_CONTEXT_OVER_BUDGET);
    assert_non_null(strstr(err.text, "192"));
    j.job.n_ids = 0;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_INVALID);
    j.job.n_ids = 100;
    j.ids[3] = RIG_VOCAB;
    assert_int_equal(engine_submit(r.engine, &j.job, &j.id, &err), MB_INVALID);
    j.ids[3] = 0;
    struct engine_stats s;
    engine_stats_get(r.engine, &s);
    assert_int_equal(s.rejected, 4);
    assert_int_equal(s.max_safe_context, 192);
    rig_close(&r);
    job_free(&j);

    rig_kinds(&r, full_kind, 1);
    r.so.n_context = 200;
    rig_open(&r);
    job_init(&j, &r, 190, 0, 1);
    j.job.max_tokens = 1000000;
    job_run(&j);
    assert_int_equal(j.n_out[0], 10);
    assert_int_equal(j.why[0], END_CONTEXT);
    job_free(&j);
    job_init(&j, &r, 190, 0, 1);
    j.job.max_tokens = 0;
    job_run(&j);
    assert_int_equal(j.n_out[0], 0);
    assert_int_equal(j.why[0], END_LENGTH);
    assert_nothing_held(&r);
    job_free(&j);
    rig_close(&r);
}

/* --- slow consumers --- */

static void test_park_and_unpark(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j, other;
        rig_manner(&r, m);
        r.eo.batch = 1; /* a parked row gives its slot away */
        rig_open(&r);
        job_init(&j, &r, 200, 0, 1);
        job_init(&other, &r, 150, 0, 2);
        j.park_every = 7;
        j.job.max_tokens = 30;
        job_submit(&j);
        job_wait_tokens(&j, 7);
        job_submit(&other);
        job_wait(&other);
        assert_int_equal(j.n_out[0], 7);
        for (int n = 14; n <= 35; n += 7) {
            engine_unpark(r.engine, j.id);
            job_wait_tokens(&j, n);
        }
        job_wait(&j);
        assert_int_equal(j.n_parks, 4);
        assert_as_alone(&j);
        assert_as_alone(&other);
        assert_nothing_held(&r);
        job_free(&j);
        job_free(&other);
        rig_close(&r);
    }
}

static void test_parked_too_long_is_cancelled(void **state)
{
    struct rig r;
    struct rig_job j;
    rig_kinds(&r, full_kind, 1);
    r.eo.client_timeout_ms = 50;
    rig_open(&r);
    job_init(&j, &r, 200, 0, 1);
    j.park_every = 3;
    int64_t t = clock_now_ns();
    job_run(&j);
    assert_true(clock_now_ns() - t >= 50 * 1000000);
    assert_int_equal(j.why[0], END_CANCELLED);
    assert_int_equal(j.n_out[0], 3);
    assert_nothing_held(&r);
    job_free(&j);
    rig_close(&r);
}

/* Parked rows are the first to lose their pages, and come back with the same bits. */
static void test_parked_is_preempted_first(void **state)
{
    struct rig r;
    struct rig_job j, other;
    rig_kinds(&r, full_kind, 1);
    r.eo.pool_bytes = 24 * 4096;
    r.eo.prompt_cache_bytes = 0;
    rig_open(&r);
    job_init(&j, &r, 800, 0, 1);
    job_init(&other, &r, 900, 0, 2);
    j.park_every = 5;
    j.job.max_tokens = 9;
    job_submit(&j);
    job_wait_tokens(&j, 5);
    job_run(&other);
    engine_unpark(r.engine, j.id);
    job_wait(&j);
    assert_as_alone(&j);
    assert_as_alone(&other);
    assert_int_equal(rig_stats(&r).preempted, 1);
    job_free(&j);
    job_free(&other);
    rig_close(&r);
}

/* Two that were parked come back in the same moment: the older one without pages, the younger one with too many for both, and nobody
 * else is there to end. The younger one gives way; nobody waits for ever. */
static void test_unparked_together(void **state)
{
    struct rig r;
    struct rig_job old, young, brief;
    rig_kinds(&r, full_kind, 1);
    r.eo.pool_bytes = 24 * 4096;
    r.eo.prompt_cache_bytes = 0;
    rig_open(&r);
    job_init(&old, &r, 800, 0, 1);
    job_init(&young, &r, 900, 0, 2);
    job_init(&brief, &r, 3, 0, 3);
    old.park_every = young.park_every = 5;
    old.job.max_tokens = young.job.max_tokens = 9;
    brief.job.max_tokens = 1;
    job_submit(&old);
    job_wait_tokens(&old, 5);
    job_submit(&young);
    job_wait_tokens(&young, 5); /* in the pages of the old one */
    rig_gate(&r, true);
    job_submit(&brief);
    rig_wait_step(&r);
    engine_unpark(r.engine, old.id);
    engine_unpark(r.engine, young.id);
    rig_gate(&r, false);
    job_wait(&old);
    job_wait(&young);
    job_wait(&brief);
    assert_as_alone(&old);
    assert_as_alone(&young);
    assert_true(rig_stats(&r).preempted >= 2);
    job_free(&old);
    job_free(&young);
    job_free(&brief);
    rig_close(&r);
}

/* --- what draws are --- */

/* B-028: a poisoned request ends with an error; its neighbour does not notice; nothing of it enters the cache. */
static void test_b028_non_finite(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job bad, good;
        rig_manner(&r, m);
        rig_open(&r);
        for (int round = 0; round < 2; round++) {
            job_init(&bad, &r, 400, 0, 1);
            job_init(&good, &r, 400, 0, 2);
            bad.ids[300] = RIG_POISON;
            bad.job.n_choices = 2;
            job_submit(&bad);
            job_submit(&good);
            job_wait(&bad);
            job_wait(&good);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(bad.why[i], END_ERROR);
                assert_int_equal(bad.status[i], MB_NON_FINITE);
                assert_int_equal(bad.n_out[i], 0);
            }
            assert_non_null(strstr(bad.text, "non-finite"));
            assert_int_equal(bad.n_cached, 0);
            assert_int_equal(good.n_cached, round == 0 || manners[m].n > 0 ? (round ? 399 : 0) : 399);
            assert_as_alone(&good);
            job_free(&bad);
            job_free(&good);
        }
        struct engine_stats s = rig_stats(&r);
        assert_int_equal(s.failed, 2);
        assert_int_equal(s.cache_entries, 1);
        assert_nothing_held(&r);
        rig_close(&r);
    }
}

/* B-026, the engine's part: bias reaches the stepper, bans and forces. */
static void test_b026_logit_bias(void **state)
{
    static const int32_t script[] = { 5, 5, 5 };
    static const struct logit_bias ban[] = { { 5, -100 } }, force[] = { { 77, 100 } };
    struct rig r;
    struct rig_job j;
    rig_kinds(&r, full_kind, 1);
    r.so.hash_draws = false;
    r.so.script = script;
    r.so.n_script = 3;
    rig_open(&r);
    for (int i = 0; i < 2; i++) {
        job_init(&j, &r, 20, 0, 1);
        j.job.max_tokens = 3;
        j.job.params.bias = i ? force : ban;
        j.job.params.n_bias = 1;
        job_run(&j);
        for (int t = 0; t < 3; t++) assert_true(i ? j.out[0][t] == 77 : j.out[0][t] != 5);
        job_free(&j);
    }
    rig_close(&r);
}

static const uint32_t *only_even(void *ctx, int32_t i_choice)
{
    static uint32_t bits[RIG_VOCAB / 32 + 1];
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) bits[i] = 0x55555555u;
    return bits;
}

static const uint32_t *nothing_allowed(void *ctx, int32_t i_choice)
{
    static const uint32_t bits[RIG_VOCAB / 32 + 1];
    return ((struct rig_job *)ctx)->n_out[0] < 3 ? NULL : bits;
}

/* B-071: a mask belongs to its sequence; a row that waits for its mask sits out alone. */
static void test_b071_masks(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job masked, plain, stuck;
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&masked, &r, 100, 0, 1);
        job_init(&plain, &r, 100, 0, 2);
        job_init(&stuck, &r, 100, 0, 3);
        masked.job.next_mask = only_even;
        stuck.job.next_mask = nothing_allowed;
        job_submit(&masked);
        job_submit(&plain);
        job_submit(&stuck);
        job_wait(&masked);
        job_wait(&plain);
        job_wait(&stuck);
        for (int i = 0; i < 20; i++) assert_int_equal(masked.out[0][i] % 2, 0);
        assert_as_alone(&masked);
        assert_as_alone(&plain);
        assert_int_equal(stuck.n_out[0], 3);
        assert_int_equal(stuck.why[0], END_ERROR);
        assert_int_equal(stuck.status[0], MB_INVALID);
        job_free(&masked);
        job_free(&plain);
        job_free(&stuck);
        rig_close(&r);
    }
}

static void test_filter_fails(void **state)
{
    for (int m = 0; m < N_MANNERS; m++) {
        struct rig r;
        struct rig_job j;
        rig_manner(&r, m);
        rig_open(&r);
        job_init(&j, &r, 100, 0, 1);
        j.fail_after = 4;
        job_run(&j);
        assert_int_equal(j.why[0], END_ERROR);
        assert_int_equal(j.n_out[0], 4);
        assert_nothing_held(&r);
        job_free(&j);
        rig_close(&r);
    }
}

/* Scoring: every position from n_score_from on, whatever the chunks; alone or among strangers. */
static void test_score(void **state)
{
    double want = 0;
    for (int m = 0; m < N_MANNERS; m++)
        for (int chunk = 0; chunk < 3; chunk++) {
            struct rig r;
            struct rig_job j, other;
            rig_manner(&r, m);
            r.eo.prefill_chunk = chunk == 0 ? 2048 : chunk == 1 ? 64 : 5;
            rig_open(&r);
            job_init(&j, &r, 300, 0, 5);
            job_init(&other, &r, 40, 0, 6);
            j.job.method = JOB_SCORE;
            j.job.n_score_from = 100;
            job_submit(&other);
            job_submit(&j);
            job_wait(&j);
            job_wait(&other);
            assert_int_equal(j.why[0], END_LENGTH);
            assert_int_equal(j.n_scored, 199); /* predictions of 101 .. 299 */
            assert_int_equal(j.first_scored, 101);
            assert_int_equal(j.last_scored, 299);
            if (m == 0 && chunk == 0) want = j.score_sum;
            assert_true(j.score_sum == want);
            assert_as_alone(&other);
            job_free(&j);
            job_init(&j, &r, 1, 0, 5);
            j.job.method = JOB_SCORE;
            job_run(&j);
            assert_int_equal(j.n_scored, 0);
            assert_nothing_held(&r);
            job_free(&j);
            job_free(&other);
            rig_close(&r);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_script_end_to_end),
        cmocka_unit_test(test_eng006_strangers_change_nothing),
        cmocka_unit_test(test_eng050_chunk_sizes),
        cmocka_unit_test(test_chunk_ends), cmocka_unit_test(test_pages_come_a_token_early),
        cmocka_unit_test(test_two_way_spans_checked),
        cmocka_unit_test(test_b100_prefill_share),
        cmocka_unit_test(test_forks_after_one_prefill),
        cmocka_unit_test(test_b043_cancel_anywhere),
        cmocka_unit_test(test_cancel_from_filter),
        cmocka_unit_test(test_preemption_keeps_output),
        cmocka_unit_test(test_api323_alone_and_pool_full),
        cmocka_unit_test(test_admission_bounds),
        cmocka_unit_test(test_park_and_unpark),
        cmocka_unit_test(test_parked_too_long_is_cancelled),
        cmocka_unit_test(test_parked_is_preempted_first),
        cmocka_unit_test(test_unparked_together),
        cmocka_unit_test(test_b028_non_finite),
        cmocka_unit_test(test_b026_logit_bias),
        cmocka_unit_test(test_b071_masks),
        cmocka_unit_test(test_filter_fails),
        cmocka_unit_test(test_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
