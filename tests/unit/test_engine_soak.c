/* test_engine_soak.c: random loads over random engines, from a seed: `test_engine_soak [first_seed [n_seeds]]`.
 * Every step checks the books: pages, tree, and that what the sequences name is exactly what the pool counts. Every
 * token is compared with what the same job draws alone, without guesses. ENG-006, ENG-194, B-028, B-043, B-071, B-094, B-098, B-103. */
#include "unit/engine_manners.h"

#include "engine/engine_int.h"

static const struct kv_kind kinds[] = {
    { .type = KIND_FULL, .n_layer = 1, .page_bytes = 8192 },
    { .type = KIND_WINDOW, .window = 100, .n_layer = 5, .page_bytes = 4096 },
    { .type = KIND_STATE, .n_layer = 3, .page_bytes = 12288 },
};
static const int32_t n_kinds_of[] = { 1, 2, 3, 0 };
static const int32_t marks[] = { 40, 64, 150 };
static const struct index_span spans[] = { { 30, 60 }, { 61, 130 } };
static const int32_t end_ids[] = { RIG_END };

enum { N_JOBS = 60 };

static uint32_t rng;
static int32_t pick(int32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(rng >> 8) * (uint32_t)n >> 24);
}

/* --- books --- */

static int64_t count_table(const struct engine *e, const struct sequence *s)
{
    int64_t n = 0;
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        for (int32_t j = 0; j < s->st.kind[k].n_page; j++) n += s->st.kind[k].page[j] >= 0;
        for (int32_t j = s->st.kind[k].n_page; j < s->st.kind[k].cap; j++) assert_int_equal(s->st.kind[k].page[j], -1);
        for (int32_t i = 0; i < s->n_snaps; i++) n += s->snaps[i].page[k] >= 0;
        n += s->spare[k] >= 0;
    }
    return n;
}

static void books_check(void *ctx, const struct row *rows, int32_t n_rows)
{
    struct rig *r = ctx;
    const struct engine *e = r->engine;
    char text[200];
    rig_on_batch(ctx, rows, n_rows);
    if (!e) return;
    if (!kv_pool_check(&e->kv, text, sizeof text) || !prefix_tree_check(&e->tree, text, sizeof text)) {
        fprintf(stderr, "books: %s\n", text);
        abort(); /* cmocka cannot fail from another thread */
    }
    int64_t named = 0, counted = 0;
    int32_t n_active = 0;
    for (const struct sequence *s = e->first; s; s = s->next) {
        named += count_table(e, s);
        n_active += s->phase == SEQ_ACTIVE;
    }
    for (size_t i = 0; i < (size_t)e->kv.n_chunk * (size_t)e->kv.n_slot_max; i++)
        if (e->kv.page[i].n_seq > 0) counted += e->kv.page[i].n_seq;
    if (named == counted && n_active == e->n_active && n_active <= e->opt.batch) return;
    fprintf(stderr, "books: sequences name %lld pages, the pool counts %lld; %d active, %d found\n", (long long)named,
            (long long)counted, (int)e->n_active, (int)n_active);
    abort();
}

/* --- jobs --- */

static const uint32_t *sieve(void *ctx, int32_t i_choice)
{
    static uint32_t bits[RIG_VOCAB / 32 + 1];
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) bits[i] = 0x6DB6DB6Du;
    return bits;
}

static void job_random(struct rig_job *j, struct rig *r, uint32_t seed)
{
    int32_t n = 1 + (pick(4) ? pick(200) : pick(900));
    job_init(j, r, n, pick(3) ? pick(n + 1) : 0, seed);
    j->job.max_tokens = pick(8) ? 1 + pick(60) : 300;
    j->job.end_ids = end_ids;
    j->job.n_end_ids = 1;
    j->job.params.noise.seed = (uint64_t)pick(3);
    j->job.n_choices = pick(5) ? 1 : 1 + pick(4);
    j->job.no_cache = pick(8) == 0;
    if (pick(6) == 0) j->job.next_mask = sieve;
    if (pick(6) == 0) j->stop_after = 1 + pick(20);
    if (pick(6) == 0) j->park_every = 1 + pick(9);
    if (pick(12) == 0) j->cancel_after = 1 + pick(20);
    if (pick(12) == 0) j->ids[pick(n)] = RIG_POISON;
    if (pick(3) == 0) {
        j->job.marks = marks;
        j->job.n_marks = 3;
    }
    if (n >= 130 && pick(3) == 0) {
        j->job.two_way = spans;
        j->job.n_two_way = 2;
    }
    if (pick(12) == 0) {
        j->job.method = JOB_SCORE;
        j->job.n_choices = 1;
        j->job.n_score_from = pick(n);
    }
}

/* Guesses: right ones, and in every third row a wrong one somewhere. */
static void guess(void *ctx, int32_t i_choice, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out)
{
    struct rig_job *j = ctx;
    const struct rig_job *o = j->oracle;
    int32_t at = n_ids - j->job.n_ids, n = 1 + (at * 7 + j->n_asked) % 9, bad = j->n_asked++ % 3 ? -1 : at % n;
    for (out->n = 0; out->n < n && out->n < n_max && at + out->n < o->n_out[i_choice]; out->n++) {
        out->ids[out->n] = o->out[i_choice][at + out->n] + (out->n == bad);
        out->masks[out->n] = j->job.next_mask ? j->job.next_mask(ctx, i_choice) : NULL;
    }
    if (out->n > 0 && out->ids[out->n - 1] >= RIG_VOCAB) out->n = 0;
}

/* Text put in behind some ids. */
static void put_in(void *ctx, int32_t i_choice, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out)
{
    const struct rig_job *j = ctx;
    int32_t last = ids[n_ids - 1];
    (void)i_choice;
    out->sure = true;
    if (n_ids > j->job.n_ids && last % 7 == 0) out->n = 1 + last % ENGINE_AHEAD_MAX;
    if (out->n > n_max) out->n = n_max;
    for (int32_t i = 0; i < out->n; i++) out->ids[i] = (last + i * 31) % 900;
}

static void rig_random(struct rig *r)
{
    rig_init(r);
    r->so.n_kinds = n_kinds_of[pick(8) ? pick(3) : 3];
    r->so.kinds = r->so.n_kinds ? kinds : NULL;
    r->so.async = pick(2);
    r->so.early = pick(2);
    r->so.hash_end_every = pick(2) ? 40 : 0;
    r->so.on_batch = books_check;
    r->so.m_max = pick(3) ? 2048 : 128;
    r->eo.batch = 1 + pick(8);
    r->eo.queue_max = N_JOBS;
    r->eo.prefill_chunk = pick(2) ? 2048 : 1 + pick(100);
    r->eo.pool_bytes = (size_t)(640 + pick(4) * 400) << 10;
    r->eo.prompt_cache_bytes = pick(4) ? (size_t)pick(1200) << 10 : 0;
}

static void unpark_all(struct rig *r, struct rig_job *j)
{
    for (int i = 0; i < N_JOBS; i++)
        if (j[i].id && j[i].park_every) engine_unpark(r->engine, j[i].id);
}

static void wait_all(struct rig *r, struct rig_job *j)
{
    int64_t t = clock_now_ns();
    for (;;) {
        rig_lock(r);
        int32_t n = r->n_done;
        rig_unlock(r);
        if (n == N_JOBS) return;
        if (clock_now_ns() - t > (int64_t)300 * 1000000000) {
            for (int i = 0; i < N_JOBS; i++)
                if (!j[i].done) fprintf(stderr, "job %d: %d tokens, parked %d\n", i, (int)j[i].n_out[0], (int)j[i].n_parks);
            for (const struct sequence *q = r->engine->first; q; q = q->next)
                fprintf(stderr, "run %d.%d phase %d committed %d of %d, two-way %d, method %s\n", (int)q->run->id,
                        (int)q->i_choice, (int)q->phase, (int)q->st.n_committed, (int)q->n_ids,
                        (int)q->run->job->n_two_way, q->method->name);
            fail_msg("jobs hang");
        }
        unpark_all(r, j);
        clock_sleep_ms(1);
    }
}

/* The same job alone, nothing guessed. */
static void run_alone(const struct rig_job *j, struct rig_job *alone)
{
    static struct rig_job like;
    like = *j;
    if (like.job.ahead == guess) like.job.ahead = NULL;
    solo(&like, alone);
}

static void compare_alone(const struct rig_job *j, const struct rig_job *o)
{
    const struct rig_job alone = *o;
    for (int32_t i = 0; i < j->job.n_choices; i++) {
        if (j->why[i] == END_CANCELLED) {
            assert_true(j->n_out[i] <= alone.n_out[i] || j->park_every);
            int32_t n = j->n_out[i] < alone.n_out[i] ? j->n_out[i] : alone.n_out[i];
            if (n > 0) assert_memory_equal(j->out[i], alone.out[i], (size_t)n * sizeof(int32_t));
            continue;
        }
        if (j->why[i] == END_ERROR && j->status[i] == MB_CONTEXT_OVER_BUDGET) continue;
        assert_int_equal(j->why[i], alone.why[i]);
        assert_int_equal(j->status[i], alone.status[i]);
        assert_same_output(j, &alone, i);
    }
    if (j->why[0] == END_LENGTH && j->job.method == JOB_SCORE) {
        assert_int_equal(j->n_scored, alone.n_scored);
        assert_true(j->score_sum == alone.score_sum);
    }
}

static uint64_t total_preempted, total_hits, total_failed, total_cancelled, total_finished, total_kept, total_wrong, total_put;

static void soak(uint32_t seed)
{
    static struct rig r;
    static struct rig_job j[N_JOBS], alone[N_JOBS];
    rng = seed * 77777u + 5;
    rig_random(&r);
    rig_open(&r);
    memset(j, 0, sizeof j);
    for (int i = 0; i < N_JOBS; i++) {
        job_random(&j[i], &r, (uint32_t)pick(6));
        if (pick(3) && j[i].job.method == JOB_GENERATE) j[i].job.ahead = pick(3) ? guess : put_in;
        run_alone(&j[i], &alone[i]);
        j[i].oracle = &alone[i];
    }
    for (int i = 0; i < N_JOBS; i++) {
        mb_error err = { 0 };
        if (engine_submit(r.engine, &j[i].job, &j[i].id, &err) != MB_OK) { /* longer than the pool, or a span > m_max */
            assert_true(err.code == MB_CONTEXT_OVER_BUDGET || err.code == MB_TOO_LARGE);
            rig_lock(&r);
            j[i].done = true;
            r.n_done++;
            rig_unlock(&r);
        }
        if (pick(4) == 0) clock_sleep_ms(pick(3));
        if (pick(10) == 0) engine_cancel(r.engine, j[pick(i + 1)].id);
        if (pick(30) == 0) engine_cache_clear(r.engine);
        unpark_all(&r, j);
    }
    wait_all(&r, j);
    struct engine_stats s = rig_stats(&r);
    total_preempted += s.preempted;
    total_hits += s.cache_hits;
    total_failed += s.failed;
    total_cancelled += s.cancelled;
    total_finished += s.finished;
    total_kept += s.n_guesses_kept;
    total_put += s.n_put_in;
    total_wrong += s.n_guessed - s.n_guesses_kept;
    if (s.n_pages_held || s.cache_bytes > s.cache_max_bytes) fail_msg("%d pages held at rest", (int)s.n_pages_held);
    for (int i = 0; i < N_JOBS; i++) {
        if (j[i].id) compare_alone(&j[i], &alone[i]);
        job_free(&j[i]);
        job_free(&alone[i]);
    }
    engine_cache_clear(r.engine);
    s = rig_stats(&r);
    assert_int_equal(s.n_pages_cached, 0);
    assert_int_equal(s.pages_free_bytes, s.pool_bytes);
    rig_close(&r);
}

static uint32_t first_seed = 1, n_seeds = 25;

static void test_soak(void **state)
{
    for (uint32_t s = first_seed; s < first_seed + n_seeds; s++) {
        printf("seed %u\r", (unsigned)s);
        fflush(stdout);
        soak(s);
    }
    printf("%llu finished, %llu cancelled, %llu failed, %llu preempted, %llu cache hits\n",
           (unsigned long long)total_finished, (unsigned long long)total_cancelled, (unsigned long long)total_failed,
           (unsigned long long)total_preempted, (unsigned long long)total_hits);
    if (n_seeds >= 10) assert_true(total_preempted && total_hits && total_failed && total_cancelled && total_kept && total_wrong && total_put); /* it did meet them */
}

int main(int argc, char **argv)
{
    if (argc > 1) first_seed = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) n_seeds = (uint32_t)strtoul(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_soak) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
