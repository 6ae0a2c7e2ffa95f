/* The generation stage with failing allocations: open, requests of every kind, cancel, close. With allocations failing
 * at random (FAULTS=1 builds) a step may be refused; nothing may crash, hang or leak. alloc-fail: yes */
#include "gen_rig.h"

static const char HI[] = "[{\"role\":\"user\",\"content\":\"hello\"}]";

static bool open_all(struct gen_engine **g, int32_t *script)
{
    struct stepper st;
    struct engine *e;
    mb_error err = { 0 };
    struct scripted_options so = { .n_vocab = 512, .n_context = 4096, .m_max = 512, .n_rows_max = 8, .script = script,
                                   .n_script = 40, .end_id = 302 };
    struct engine_options eo = { .batch = 4, .queue_max = 16, .prefill_chunk = 512, .prefill_share = 3, .client_timeout_ms = 5000 };
    struct gen_engine_options go = { .model_dir = RIG_DIR, .max_tokens = -1, .ring_events = 16, .grammar_jump = true,
                                     .fill = { .strict = true, .echo = true, .anchor = 2 } };
    struct gen_model_info info = { .kv_mode = "bf16", .batch = 4 };
    if (stepper_scripted(&st, &so, &err) != MB_OK) return false;
    if (engine_open(&e, &st, &eo, &err) != MB_OK) return false;
    return gen_engine_open(g, e, &go, &info, &err) == MB_OK;
}

/* True: the stream ended by itself. */
static bool drain(struct gen_stream *s, int cancel_after)
{
    struct gen_event ev;
    bool ended = false;
    for (int i = 0; !ended && gen_next(s, 20000, &ev); i++) {
        ended = ev.type == GEN_EV_DONE || ev.type == GEN_EV_ERROR;
        if (i == cancel_after) gen_cancel(s);
    }
    gen_close(s);
    return ended;
}

static void run_requests(struct gen_engine *g)
{
    struct engine_client c = gen_engine_client(g);
    const char *stops[] = { "zz", "aab" };
    struct gen_request q[5] = { rig_chat(HI), rig_chat(HI), rig_chat("[{\"role\":\"user\",\"content\":1}]"), rig_chat(HI), rig_chat(HI) };
    q[1].n_choices = 3;
    q[1].logprobs = true;
    q[1].stops = stops;
    q[1].n_stops = 2;
    q[1].thinking = GIVEN_TRUE;
    q[3] = (struct gen_request){ .input = GEN_TEXT, .text = STR_LIT("hello world"), .n_choices = 1, .max_tokens = 9, .raw_split = true };
    q[0].tools_json = "[{\"type\":\"function\",\"function\":{\"name\":\"ping\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":"
                      "{\"type\":\"string\"}},\"required\":[\"a\"],\"additionalProperties\":false}}}]"; /* its call has an end that is put in */
    q[4].constraint = (struct gen_constraint){ .kind = CONSTRAINT_JSON_SCHEMA, .text = "{\"const\":\"hello world one two\"}" };
    for (int i = 0; i < 15; i++) {
        struct gen_stream *s;
        mb_error err = { 0 };
        if (c.start(c.ctx, &q[i % 5], NULL, NULL, &s, &err) == MB_OK) assert_true(drain(s, i % 3 == 2 ? 2 : -1));
        else assert_true(err.code != MB_OK && s == NULL);
    }
}

static void test_failing_allocations(void **state)
{
    (void)state;
    int32_t script[40];
    for (int i = 0; i < 40; i++) script[i] = 65 + i % 3;
    for (int k = 0; k < 5; k++) {
        struct gen_engine *g = NULL;
        if (!open_all(&g, script)) continue;
        run_requests(g);
        gen_engine_close(g, 0);
    }
}

int main(void)
{
    log_set_sink(rig_quiet, NULL);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_failing_allocations) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
