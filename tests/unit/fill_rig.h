/* fill_rig.h: a scripted model of a tokenizer and template of the test's own, with token fast-forwarding, and what a request gave.
 * Header-only. */
#ifndef TESTS_UNIT_FILL_RIG_H
#define TESTS_UNIT_FILL_RIG_H

#include "model_dir.h"
#include "told.h"

#define TOOL(name, schema) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"parameters\":" schema "}}"
#define CITY "{\"type\":\"object\",\"properties\":{\"city_name\":{\"type\":\"string\"}},\"required\":[\"city_name\"],\"additionalProperties\":false}"
#define OPEN_CITY "{\"type\":\"object\",\"properties\":{\"city_name\":{\"type\":\"string\"}},\"required\":[\"city_name\"]}"
#define ANY "{\"type\":\"object\"}"

struct setup { struct gen_rig r; struct scripted_counters count; char dir[64]; int32_t longest; };

static inline void see_rows(void *ctx, const struct row *rows, int32_t n_rows)
{
    struct setup *u = ctx;
    for (int32_t i = 0; i < n_rows; i++)
        if (rows[i].i_first > 0 && rows[i].n > u->longest) u->longest = rows[i].n;
}

static inline void setup_of(struct setup *u, const char *const *tokens, const char *chat_template, const char *says, struct gen_fill_options fill)
{
    int32_t n_vocab;
    memset(u, 0, sizeof *u);
    model_dir_make(u->dir, tokens, chat_template);
    rig_init(&u->r, NULL);
    u->r.n_script = model_dir_encode(u->dir, says, u->r.script, 4096, &n_vocab);
    u->r.so.counters = &u->count;
    u->r.so.on_batch = see_rows;
    u->r.so.on_batch_ctx = u;
    u->r.go.model_dir = u->dir;
    u->r.go.fill = fill;
    rig_start(&u->r);
}

static inline void teardown(struct setup *u)
{
    rig_stop(&u->r);
    model_dir_remove(u->dir);
    if (u->count.n_violations) fail_msg("%s", u->count.violation);
}

static inline struct gen_request asking(const char *tools)
{
    struct gen_request q = rig_chat(HI);
    q.tools_json = tools;
    q.thinking = GIVEN_FALSE;
    q.max_tokens = 300;
    return q;
}

struct said { char text[2048]; struct gen_fill_counts fill; int32_t n_tokens; uint64_t n_steps; };

static inline void say(struct setup *u, const struct gen_request *q, struct said *out)
{
    struct gen_stream *s;
    struct gen_event ev;
    struct told t = { 0 };
    mb_error err = { 0 };
    uint64_t before = u->count.n_submits;
    memset(out, 0, sizeof *out);
    if (u->r.client.start(u->r.client.ctx, q, NULL, NULL, &s, &err) != MB_OK) fail_msg("start: %s", err.text);
    do {
        assert_true(gen_next(s, 20000, &ev));
        told_event(&t, &ev);
        if (ev.type == GEN_EV_END) out->fill = ev.u.end.fill, out->n_tokens = ev.u.end.n_completion;
    } while (ev.type != GEN_EV_DONE && ev.type != GEN_EV_ERROR);
    gen_close(s);
    if (t.status) fail_msg("%s", t.error);
    snprintf(out->text, sizeof out->text, "%.*s", (int)t.all.len, t.all.data ? t.all.data : "");
    out->n_steps = u->count.n_submits - before;
    told_free(&t);
}

static inline void expect_put(struct setup *u, const struct gen_request *q, const char *want, bool some)
{
    struct said got;
    say(u, q, &got);
    if (want) assert_string_equal(got.text, want);
    assert_true(got.fill.on);
    if ((got.fill.tokens > 0) != some) fail_msg("%d tokens put in: %s", (int)got.fill.tokens, got.text);
    assert_int_equal(got.fill.proposed, 0);
}

#endif
