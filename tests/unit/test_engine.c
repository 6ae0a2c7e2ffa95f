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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_script_end_to_end),
    };
    (void)full_kind; (void)mixed_kinds; (void)state_kinds; (void)rig_kinds;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
