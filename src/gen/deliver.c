/* deliver.c: the filter of a job: drawn ids in, events out. Runs on the engine thread.
 *
 *   id -> marker? -> detokenise -> reasoning split -> (content only) tool calls (calls.c) -> stop strings -> events
 *
 * Markers are taken before text is made (B-038), stop strings see content alone and no tool call, torn characters come out as U+FFFD
 * when a choice ends or a marker cuts in (B-040). A ring that is full parks the row; a failure to queue ends it.
 */
#include <string.h>

#include "gen/gen_int.h"

static void push_text(struct gen_choice *c, enum gen_channel channel, const char *text, size_t len)
{
    struct gen_event ev = { .type = GEN_EV_TEXT, .i_choice = c->index };
    if (len == 0) return;
    ev.u.text.channel = channel;
    ev.u.text.text.len = len;
    stream_push(c->s, &ev, text, len, &c->failed);
}

/* What the splitter says (reasoning_emit_fn). */
static void on_split(void *ctx, bool is_reasoning, const char *text, size_t len)
{
    struct gen_choice *c = ctx;
    if (c->i_stop >= 0 || c->calls_done) return;
    if (!is_reasoning) {
        limit_content(c, text, len);
        if (c->s->tools.n) tool_scan_text(&c->tools, text, len);
        else deliver_content(c, text, len);
        return;
    }
    if (c->s->tools.n) tool_scan_finish(&c->tools, false); /* a thought cuts in */
    deliver_stop_flush(c);
    push_text(c, GEN_REASONING, text, len);
}

void deliver_content(struct gen_choice *c, const char *text, size_t len)
{
    if (c->i_stop >= 0 || c->calls_done) return;
    buf_clear(&c->piece);
    c->i_stop = stop_push(&c->stop, text, len, &c->piece);
    if (c->piece.failed) c->failed = true;
    push_text(c, GEN_CONTENT, c->piece.data, c->piece.len);
}

/* What stop strings hold back is content: something that is none comes behind it. */
void deliver_stop_flush(struct gen_choice *c)
{
    if (c->i_stop >= 0 || c->calls_done) return;
    buf_clear(&c->piece);
    stop_flush(&c->stop, &c->piece);
    if (c->piece.failed) c->failed = true;
    push_text(c, GEN_CONTENT, c->piece.data, c->piece.len);
}

static void feed_text(struct gen_choice *c)
{
    if (c->text.failed) c->failed = true;
    if (c->text.len == 0) return;
    if (c->s->req.raw_split) on_split(c, false, c->text.data, c->text.len);
    else reasoning_text(&c->split, c->text.data, c->text.len);
    buf_clear(&c->text);
}

static void feed_id(struct gen_choice *c, int32_t id)
{
    const struct gen_renderer *t = c->s->g->text;
    int32_t i_sign = c->s->req.raw_split ? t->n_sign_ids : 0;
    while (i_sign < t->n_sign_ids && t->sign_ids[i_sign] != id) i_sign++;
    buf_clear(&c->text);
    if (i_sign == t->n_sign_ids) {
        detok_push(&c->detok, id, &c->text);
        feed_text(c);
        return;
    }
    detok_finish(&c->detok, &c->text);
    feed_text(c);
    reasoning_marker(&c->split, (size_t)i_sign);
}

static void push_token(struct gen_choice *c, const struct draw *d, bool is_end)
{
    struct gen_event ev = { .type = GEN_EV_TOKEN, .i_choice = c->index };
    struct gen_token_info *t = &ev.u.token;
    t->id = d->id;
    t->logprob = d->logprob;
    t->is_end = is_end;
    t->n_top = d->n_top < SAMPLE_MAX_TOP ? d->n_top : SAMPLE_MAX_TOP;
    memcpy(t->top_id, d->top_id, sizeof t->top_id);
    memcpy(t->top_logprob, d->top_logprob, sizeof t->top_logprob);
    stream_push(c->s, &ev, NULL, 0, &c->failed);
}

static enum verdict fail(struct gen_choice *c, mb_status status, const char *text)
{
    stream_error(c->s, status, text, NULL);
    return VERDICT_FAIL;
}

static enum verdict verdict_of(struct gen_choice *c)
{
    struct gen_stream *s = c->s;
    if (c->failed || reasoning_status(&c->split) != MB_OK || tool_scan_status(&c->tools) != MB_OK) return fail(c, MB_NO_MEMORY, "no memory for the answer");
    if (c->limit.err.code) return fail(c, c->limit.err.code, c->limit.err.text);
    if (c->i_stop >= 0 || c->calls_done || c->limit.ended) return VERDICT_STOP;
    pthread_mutex_lock(&s->lock);
    bool park = s->ring.n >= s->ring_soft && !s->closed && !s->cancelled;
    if (park) s->parked = true;
    pthread_mutex_unlock(&s->lock);
    return park ? VERDICT_PARK : VERDICT_GO;
}

static enum verdict on_token(void *ctx, int32_t i_choice, const struct draw *d, bool is_end)
{
    struct gen_stream *s = ctx;
    struct gen_choice *c = &s->choices[i_choice];
    if (d->non_finite)
        return fail(c, MB_NON_FINITE, "non-finite logits: the model computed a NaN or an infinity; nothing was drawn");
    if (d->no_candidate || d->id < 0)
        return c->limit.err.code ? fail(c, c->limit.err.code, c->limit.err.text)
                                 : fail(c, MB_INVALID, "logit_bias and constraints leave no token that may be drawn");
    c->n_drawn++;
    stream_hold(s);
    if (s->req.logprobs || s->req.tokens || s->req.n_top_logprobs > 0) push_token(c, d, is_end);
    if (is_end) return c->failed ? fail(c, MB_NO_MEMORY, "no memory for the answer") : VERDICT_GO;
    bool was_inside = c->split.inside;
    limit_before(c);
    feed_id(c, d->id);
    if (was_inside || c->split.inside) c->n_reasoning++;
    limit_after(c, d->id);
    ahead_follow(c, d->id);
    return verdict_of(c);
}

static void on_start(void *ctx, int32_t n_prompt, int32_t n_cached)
{
    struct gen_stream *s = ctx;
    struct gen_event ev = { .type = GEN_EV_START };
    bool failed = false;
    ev.u.start.n_prompt = n_prompt;
    ev.u.start.n_cached = n_cached;
    stream_push(s, &ev, NULL, 0, &failed);
    if (failed) s->choices[0].failed = true; /* reported with the first token */
}

static void on_progress(void *ctx, int32_t n_done, int32_t n_total)
{
    stream_progress(ctx, n_done, n_total);
}

static void on_score(void *ctx, int32_t index, const struct draw *d)
{
    struct gen_stream *s = ctx;
    struct gen_event ev = { .type = GEN_EV_SCORE };
    ev.u.score.index = index;
    ev.u.score.target = index < s->job.n_ids ? s->job.ids[index] : -1;
    ev.u.score.target_logprob = d->target_logprob;
    ev.u.score.argmax = d->argmax;
    ev.u.score.argmax_logprob = d->argmax_logprob;
    stream_push(s, &ev, NULL, 0, &s->choices[0].failed);
}

/* What is still held comes out; a stop string or a tool call may still complete in it. */
static void flush(struct gen_choice *c, bool cut)
{
    if (c->i_stop >= 0 || c->calls_done) return;
    buf_clear(&c->text);
    detok_finish(&c->detok, &c->text);
    feed_text(c);
    if (!c->s->req.raw_split) reasoning_finish(&c->split);
    if (c->i_stop < 0 && c->s->tools.n) tool_scan_finish(&c->tools, cut);
    deliver_stop_flush(c);
    if (tool_scan_status(&c->tools) != MB_OK) c->failed = true;
}

static bool is_cut(enum end_reason reason)
{
    return reason == END_LENGTH || reason == END_CONTEXT;
}

static enum gen_finish finish_of(const struct gen_choice *c, enum end_reason reason)
{
    if (reason == END_CANCELLED) return GEN_FINISH_CANCELLED;
    if (is_cut(reason) && c->i_stop < 0 && !c->calls_done) return GEN_FINISH_LENGTH;
    return c->n_calls ? GEN_FINISH_TOOL_CALLS : GEN_FINISH_STOP; /* API-148, B-058 */
}

static void on_end(void *ctx, int32_t i_choice, enum end_reason reason, mb_status status, const char *text)
{
    struct gen_stream *s = ctx;
    struct gen_choice *c = &s->choices[i_choice];
    if (reason == END_ERROR) {
        stream_error(s, status == MB_OK ? MB_INTERNAL : status, text ? text : "the generation failed", NULL);
        return;
    }
    if (reason != END_CANCELLED) flush(c, is_cut(reason));
    if (c->failed) {
        stream_error(s, MB_NO_MEMORY, "no memory for the answer", NULL);
        return;
    }
    struct gen_event ev = { .type = GEN_EV_END, .i_choice = i_choice };
    ev.u.end.finish = finish_of(c, reason);
    ev.u.end.n_completion = c->n_drawn;
    ev.u.end.n_reasoning = c->n_reasoning;
    ev.u.end.fill = c->ahead.fill;
    const char *stop = c->i_stop >= 0 ? s->stops.s[c->i_stop] : NULL;
    ev.u.end.stop = stop;
    stream_push(s, &ev, stop, stop ? strlen(stop) : 0, &c->failed);
    if (c->failed) stream_error(s, MB_NO_MEMORY, "no memory for the answer", NULL);
}

static void on_told(void *ctx)
{
    stream_told(ctx);
}

static void on_done(void *ctx)
{
    stream_producer_done(ctx);
}

struct job_filter deliver_filter(struct gen_stream *s)
{
    return (struct job_filter){ .ctx = s, .on_start = on_start, .on_progress = on_progress, .on_token = on_token,
                                .on_score = on_score, .on_told = on_told, .on_end = on_end, .on_done = on_done };
}

mb_status deliver_init(struct gen_engine *g, struct gen_stream *s, const struct gen_prompt *p, bool thinks, mb_error *err)
{
    enum reasoning_start start = s->req.raw_split ? REASONING_ANSWER : (enum reasoning_start)p->start;
    int32_t n = s->req.n_choices;
    MB_TRY(stop_set_init(&s->stops, &s->arena, s->req.stops, s->req.n_stops, err));
    s->choices = arena_alloc_array(&s->arena, (size_t)n, sizeof *s->choices);
    if (!s->choices) return mb_fail(err, MB_NO_MEMORY, "no memory for %d choices", (int)n);
    bool skip_special = !calls_wanted(&s->req); /* tool markup may be made of special tokens: keep it readable */
    for (int32_t i = 0; i < n; i++) {
        struct gen_choice *c = &s->choices[i];
        c->s = s;
        c->index = i;
        c->i_stop = -1;
        detok_init(&c->detok, g->text->tok, skip_special);
        reasoning_init(&c->split, g->text->tags, g->text->n_sign_ids == 0, start, on_split, c);
        tool_scan_init(&c->tools, g->text->family, &s->tools, calls_sink(c));
        buf_init(&c->text, 0);
        buf_init(&c->piece, 0);
        s->n_choices_made = i + 1;
        MB_TRY(stop_match_init(&c->stop, &s->stops, &s->arena, err));
        MB_TRY(limit_init(c, start, thinks, err));
        MB_TRY(ahead_init(c, err));
    }
    return MB_OK;
}

void deliver_free(struct gen_stream *s)
{
    for (int32_t i = 0; i < s->n_choices_made; i++) {
        struct gen_choice *c = &s->choices[i];
        detok_free(&c->detok);
        reasoning_free(&c->split);
        stop_match_free(&c->stop);
        tool_scan_free(&c->tools);
        limit_free(c);
        ahead_free(c);
        buf_free(&c->text);
        buf_free(&c->piece);
    }
    tool_set_close(&s->tools);
    constrain_free(&s->plan);
}
