/* engine_manners.h: the kinds of pages and manners of the stepper that every behaviour of the engine must hold for, and what must hold in the
 * end: a job draws what it draws alone, nothing is held. Header-only, for the engine's tests. */
#ifndef TESTS_UNIT_ENGINE_MANNERS_H
#define TESTS_UNIT_ENGINE_MANNERS_H

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

static inline void rig_kinds(struct rig *r, const struct kv_kind *kinds, int32_t n)
{
    rig_init(r);
    r->so.kinds = kinds;
    r->so.n_kinds = n;
}

/* What a job draws alone: one row, no cache, no pages; the past comes from the ids themselves. */
static inline void solo(const struct rig_job *like, struct rig_job *out)
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

static inline void assert_as_alone(const struct rig_job *j)
{
    struct rig_job alone;
    solo(j, &alone);
    for (int32_t i = 0; i < j->job.n_choices; i++) {
        assert_int_equal(j->why[i], alone.why[i]);
        assert_same_output(j, &alone, i);
    }
    job_free(&alone);
}

static inline void assert_nothing_held(struct rig *r)
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

static inline void rig_manner(struct rig *r, int i)
{
    rig_kinds(r, manners[i].kinds, manners[i].n);
    r->so.async = manners[i].async;
    r->so.early = i % 2 == 1;
}

#endif
