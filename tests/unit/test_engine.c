/* test_engine.c: the scheduler end to end over the scripted stepper: batches, chunks, choices, scores (who gives way: test_engine_memory.c; what
 * draws are: test_engine_draws.c). Every draw is a hash of all earlier ids read from the pages, so equal output means equal pages.
 * Requirement and case IDs stand at the tests. */
#include "unit/engine_manners.h"

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
        cmocka_unit_test(test_chunk_ends),
        cmocka_unit_test(test_pages_come_a_token_early),
        cmocka_unit_test(test_two_way_spans_checked),
        cmocka_unit_test(test_b100_prefill_share),
        cmocka_unit_test(test_forks_after_one_prefill),
        cmocka_unit_test(test_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
