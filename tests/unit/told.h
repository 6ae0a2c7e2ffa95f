/* told.h: one request's events as one line, for tests of tools and constraints. Header-only. */
#ifndef TESTS_UNIT_TOLD_H
#define TESTS_UNIT_TOLD_H

#include "gen_rig.h"

#define TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":" \
              "{\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}}," \
              "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}]"
static const char HI[] = "[{\"role\":\"user\",\"content\":\"hello\"}]";

/* What a request said, in one line: text, {reasoning}, "|name arguments" and "!" for a cut-off one. */
struct told {
    struct buf all, ids, warning;
    enum gen_finish finish;
    mb_status status;
    char error[512];
    int32_t n_completion, n_reasoning, n_calls;
    bool thought;
};

static inline void told_event(struct told *t, const struct gen_event *ev)
{
    bool thought = ev->type == GEN_EV_TEXT && ev->u.text.channel == GEN_REASONING;
    switch (ev->type) {
    case GEN_EV_WARNING: buf_append_str(&t->warning, ev->u.warning.text); break;
    case GEN_EV_TEXT:
        if (ev->i_choice > 0) break;
        if (thought != t->thought) buf_append_char(&t->all, thought ? '{' : '}');
        t->thought = thought;
        buf_append(&t->all, ev->u.text.text.ptr, ev->u.text.text.len);
        break;
    case GEN_EV_TOOL:
        buf_append(&t->ids, ev->u.tool.id.ptr, ev->u.tool.id.len);
        buf_append_char(&t->ids, ' ');
        if (ev->i_choice > 0) break;
        t->n_calls++;
        if (t->thought) buf_append_char(&t->all, '}');
        t->thought = false;
        buf_append_str(&t->all, ev->u.tool.partial ? "|!" : "|");
        buf_append(&t->all, ev->u.tool.name.ptr, ev->u.tool.name.len);
        buf_append_char(&t->all, ' ');
        buf_append(&t->all, ev->u.tool.arguments.ptr, ev->u.tool.arguments.len);
        break;
    case GEN_EV_END:
        t->finish = ev->u.end.finish;
        t->n_completion += ev->u.end.n_completion;
        t->n_reasoning += ev->u.end.n_reasoning;
        break;
    case GEN_EV_ERROR:
        t->status = ev->u.error.status;
        snprintf(t->error, sizeof t->error, "%s", ev->u.error.text);
        break;
    default: break;
    }
}

static inline void ask(struct gen_rig *r, const struct gen_request *q, struct told *t)
{
    struct gen_stream *s;
    struct gen_event ev;
    mb_error err = { 0 };
    memset(t, 0, sizeof *t);
    if (r->client.start(r->client.ctx, q, NULL, NULL, &s, &err) != MB_OK) fail_msg("start: %s", err.text);
    do {
        assert_true(gen_next(s, 20000, &ev));
        told_event(t, &ev);
    } while (ev.type != GEN_EV_DONE && ev.type != GEN_EV_ERROR);
    buf_append(&t->all, "", 0);
    buf_append(&t->ids, "", 0);
    buf_append(&t->warning, "", 0);
    gen_close(s);
}

static inline void told_free(struct told *t)
{
    buf_free(&t->all);
    buf_free(&t->ids);
    buf_free(&t->warning);
}

static inline struct gen_request with_tools(void)
{
    struct gen_request q = rig_chat(HI);
    q.tools_json = TOOLS;
    return q;
}

#endif
