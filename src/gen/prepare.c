/* prepare.c: gen_request -> engine_job, on a preparation worker: render, tokenise, check against the vocabulary, resolve
 * sampling values, build the filter. Everything lives in the stream's arena. */
#include <stdlib.h>
#include <string.h>

#include "gen/gen_int.h"

#define ARENA_BASE_BYTES ((size_t)64 << 20)

size_t prepare_arena_limit(const struct gen_request *r)
{
    size_t in = r->text.len + (size_t)r->n_ids * sizeof(int32_t);
    if (r->messages_json) in += strlen(r->messages_json);
    if (r->tools_json) in += strlen(r->tools_json);
    if (r->constraint.text) in += strlen(r->constraint.text);
    return ARENA_BASE_BYTES + 64 * in; /* ids, ends and runs of a text of this size, with room for the template */
}

static const char *copy_str(struct arena *a, const char *s)
{
    return s ? arena_strdup(a, s) : NULL;
}

mb_status request_copy(struct gen_request *dst, const struct gen_request *src, struct arena *a, mb_error *err)
{
    *dst = *src;
    dst->messages_json = copy_str(a, src->messages_json);
    dst->tools_json = copy_str(a, src->tools_json);
    dst->template_kwargs_json = copy_str(a, src->template_kwargs_json);
    dst->tool_name = copy_str(a, src->tool_name);
    dst->constraint.text = copy_str(a, src->constraint.text);
    dst->adapter = copy_str(a, src->adapter);
    dst->trace_id = copy_str(a, src->trace_id);
    if (src->text.ptr) dst->text.ptr = arena_strndup(a, src->text.ptr, src->text.len);
    int32_t *ids = arena_alloc_array(a, (size_t)src->n_ids + 1, sizeof *ids);
    struct logit_bias *bias = arena_alloc_array(a, (size_t)src->bias.n + 1, sizeof *bias);
    const char **stops = arena_alloc_array(a, (size_t)src->n_stops + 1, sizeof *stops);
    if (a->failed) return mb_fail(err, MB_NO_MEMORY, "no memory for the request");
    if (src->n_ids) memcpy(ids, src->ids, (size_t)src->n_ids * sizeof *ids);
    if (src->bias.n) memcpy(bias, src->bias.p, (size_t)src->bias.n * sizeof *bias);
    for (int32_t i = 0; i < src->n_stops; i++) stops[i] = arena_strdup(a, src->stops[i]);
    dst->ids = ids;
    dst->bias.p = bias;
    dst->stops = stops;
    return a->failed ? mb_fail(err, MB_NO_MEMORY, "no memory for the request") : MB_OK;
}

static int by_id(const void *x, const void *y)
{
    const struct logit_bias *a = x, *b = y;
    return a->id < b->id ? -1 : a->id > b->id;
}

static mb_status set_bias(struct gen_stream *s, int32_t n_vocab, mb_error *err)
{
    struct logit_bias *p = (struct logit_bias *)(uintptr_t)s->req.bias.p; /* our own copy */
    for (int32_t i = 0; i < s->req.bias.n; i++)
        if (p[i].id < 0 || p[i].id >= n_vocab)
            return mb_fail_at(err, MB_INVALID, "logit_bias", "logit_bias names token %d; the vocabulary has ids 0 to %d",
                              (int)p[i].id, (int)n_vocab - 1);
    qsort(p, (size_t)s->req.bias.n, sizeof *p, by_id);
    for (int32_t i = 1; i < s->req.bias.n; i++) /* "7" and "07" are two keys */
        if (p[i].id == p[i - 1].id)
            return mb_fail_at(err, MB_INVALID, "logit_bias", "logit_bias names token %d twice", (int)p[i].id);
    s->job.params.bias = p;
    s->job.params.n_bias = s->req.bias.n;
    return MB_OK;
}

static mb_status check_ids(const struct gen_stream *s, int32_t n_vocab, mb_error *err)
{
    for (int32_t i = 0; i < s->job.n_ids; i++)
        if (s->job.ids[i] < 0 || s->job.ids[i] >= n_vocab)
            return mb_fail_at(err, MB_INVALID, "prompt", "token %d at position %d is outside the model's vocabulary (%d)",
                              (int)s->job.ids[i], (int)i, (int)n_vocab);
    return MB_OK;
}

/* API-085: does this turn think? */
static bool is_thinking(struct gen_engine *g, const struct gen_stream *s, const struct gen_prompt *p)
{
    enum given_bool given = s->req.thinking != GIVEN_NONE ? s->req.thinking : g->opt.thinking;
    if (!g->info.reasoning || s->req.input != GEN_MESSAGES) return false;
    bool opens = p->start == REASONING_THOUGHT;
    if (opens || given != GIVEN_NONE) return opens || given == GIVEN_TRUE;
    return !p->closes_reasoning;
}

static void set_params(struct gen_engine *g, struct gen_stream *s, const struct gen_prompt *p)
{
    struct sample_params *sp = &s->job.params;
    sampler_resolve(&s->req.sampling, &g->opt.server, &g->model, is_thinking(g, s, p), sp);
    sp->xtc_exempt = g->xtc_exempt;
    sp->n_xtc_exempt = g->n_xtc_exempt;
    sp->ignore_eos = s->req.ignore_eos;
    sp->min_tokens = s->req.min_tokens;
    sp->end_ids = g->end_ids;
    sp->n_end_ids = g->n_end_ids;
    sp->n_top = s->req.n_top_logprobs;
    sp->no_logprobs = !s->req.logprobs && !s->req.tokens && s->req.n_top_logprobs == 0 && !s->req.score;
    hlg_resolve(&s->req.hlg, &g->opt.hlg, sp);
    int32_t n_model = engine_info(g->engine)->n_vocab, n_tok = tokenizer_n_vocab(g->text->tok);
    sp->n_vocab_live = n_tok > 0 && n_tok < n_model ? n_tok : n_model;
    if (diffusion_is(g)) diffusion_params(g, s);
}

static int32_t max_tokens_of(const struct gen_engine *g, const struct gen_request *r)
{
    int64_t n = r->max_tokens >= 0 ? r->max_tokens : g->opt.max_tokens;
    return n < 0 ? -1 : n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

static mb_status push_warning(struct gen_stream *s, mb_error *err)
{
    struct gen_event ev = { .type = GEN_EV_WARNING };
    bool failed = false;
    if (s->plan.warning.len == 0) return MB_OK;
    stream_push(s, &ev, s->plan.warning.data, s->plan.warning.len, &failed);
    return failed ? mb_fail(err, MB_NO_MEMORY, "no memory for a warning") : MB_OK;
}

mb_status prepare_job(struct gen_engine *g, struct gen_stream *s, mb_error *err)
{
    struct gen_prompt p;
    struct engine_job *job = &s->job;
    if (calls_wanted(&s->req)) MB_TRY(tool_set_open(&s->tools, s->req.tools_json, err));
    MB_TRY(constrain_plan(g, s, &s->req, &s->tools, &s->plan, err));
    MB_TRY(render_limited(g->text, &s->req, s->plan.note.data, engine_info(g->engine)->n_context, &s->arena, &p, err));
    set_params(g, s, &p);
    if (diffusion_is(g)) MB_TRY(diffusion_check(s, err));
    job->method = diffusion_is(g) ? JOB_DIFFUSE : s->req.score ? JOB_SCORE : JOB_GENERATE;
    job->ids = p.ids;
    job->n_ids = p.n_ids;
    job->marks = p.marks;
    job->n_marks = p.n_marks;
    job->n_choices = s->req.n_choices;
    job->max_tokens = max_tokens_of(g, &s->req);
    job->end_ids = g->end_ids;
    job->n_end_ids = g->n_end_ids;
    job->ignore_eos = s->req.ignore_eos;
    job->adapters = s->pin.handles;
    job->n_adapters = s->pin.n;
    job->t_received_ns = s->req.t_received_ns;
    if (s->req.trace_id) strncpy(job->trace_id, s->req.trace_id, sizeof job->trace_id - 1);
    MB_TRY(check_ids(s, engine_info(g->engine)->n_vocab, err));
    MB_TRY(set_bias(s, engine_info(g->engine)->n_vocab, err));
    MB_TRY(fill_prepare(s, &p, err));
    MB_TRY(deliver_init(g, s, &p, is_thinking(g, s, &p), err));
    job->filter = deliver_filter(s);
    if (limit_wanted(s)) job->next_mask = limit_next_mask;
    if (ahead_wanted(s)) job->ahead = ahead_ask, job->guessed = ahead_guessed;
    return push_warning(s, err);
}
