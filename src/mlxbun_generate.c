/* mlxbun_generate.c: requests of the public C API and what they give: an mb_request becomes a gen_request, gen_events become
 * mb_events. Strings of an event live until the next mb_next, as in gen.h.
 */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "mlxbun_int.h"

struct mb_gen {
    struct gen_stream *stream;
    bool done;
    struct buf call; /* the last MB_EV_TOOL's object */
};

static struct sampler_value given(bool has, double v)
{
    return (struct sampler_value){ .v = v, .given = has };
}

mb_status mb_null_error(const char *name, mb_error *err)
{
    return mb_fail_at(err, MB_INVALID, name, "%s is NULL", name);
}

/* The bounds that requests over HTTP have. */
static mb_status check_sampling(struct sampler_values *v, mb_error *err)
{
    size_t n;
    const struct sampler_row *rows = sampler_rows(&n);
    for (size_t i = 0; i < n; i++) {
        const struct sampler_value *x = sampler_value_at(v, &rows[i]);
        if (x->given) MB_TRY(sampler_row_check(&rows[i], x->v, true, err));
    }
    return MB_OK;
}

static mb_status check_stops(const mb_request *r, mb_error *err)
{
    if (r->n_stops < 0 || (r->n_stops > 0 && !r->stops))
        return mb_fail_at(err, MB_INVALID, "stops", "stops must list n_stops strings");
    for (int32_t i = 0; i < r->n_stops; i++)
        if (!r->stops[i] || !r->stops[i][0])
            return mb_fail_at(err, MB_INVALID, "stops", "stops[%d] is NULL or empty", (int)i);
    for (int32_t i = 0; i < r->n_stops; i++)
        if (!utf8_valid(r->stops[i], strlen(r->stops[i])))
            return mb_fail_at(err, MB_INVALID, "stops", "stops[%d] is not valid UTF-8", (int)i);
    return MB_OK;
}

/* Zero is the default; what is below it was meant to say something, and never that. */
static mb_status check_counts(const mb_request *r, mb_error *err)
{
    if (r->max_tokens < 0) return mb_fail_at(err, MB_INVALID, "max_tokens", "max_tokens must not be negative; 0: no limit");
    if (r->n_choices < 0) return mb_fail_at(err, MB_INVALID, "n_choices", "n_choices must not be negative; 0: 1");
    return MB_OK;
}

mb_status mb_request_to_gen(const mb_request *r, struct gen_request *out, mb_error *err)
{
    memset(out, 0, sizeof *out);
    if (!r || r->size != sizeof *r)
        return mb_fail_at(err, MB_INVALID, "size", "mb_request.size must be sizeof(mb_request) = %zu", sizeof *r);
    int n_inputs = (r->messages_json != NULL) + (r->text != NULL) + (r->ids != NULL);
    if (n_inputs != 1)
        return mb_fail(err, MB_INVALID, "exactly one of messages_json, text and ids must be set, found %d", n_inputs);
    MB_TRY(check_counts(r, err));
    out->input = r->messages_json ? GEN_MESSAGES : r->text ? GEN_TEXT : GEN_IDS;
    out->messages_json = r->messages_json;
    out->tools_json = r->tools_json;
    out->template_kwargs_json = r->template_kwargs_json;
    if (r->text) out->text = (struct str){ r->text, r->text_len ? r->text_len : strlen(r->text) };
    out->ids = r->ids;
    out->n_ids = r->n_ids;
    out->max_tokens = r->max_tokens > 0 ? r->max_tokens : -1;
    out->n_choices = r->n_choices > 0 ? r->n_choices : 1;
    out->sampling.temperature = given(r->has_temperature, r->temperature);
    out->sampling.top_p = given(r->has_top_p, r->top_p);
    out->sampling.top_k = given(r->has_top_k, r->top_k);
    out->sampling.min_p = given(r->has_min_p, r->min_p);
    out->sampling.repetition_penalty = given(r->has_repetition_penalty, r->repetition_penalty);
    MB_TRY(check_sampling(&out->sampling, err));
    MB_TRY(check_stops(r, err));
    out->sampling.seed = given(r->has_seed, (double)r->seed);
    out->sampling.seed.exact = r->seed;
    out->stops = r->stops;
    out->n_stops = r->n_stops;
    out->tokens = true;
    out->n_top_logprobs = r->n_top_logprobs;
    out->ignore_eos = r->ignore_eos;
    out->score = r->score;
    out->raw_split = !r->messages_json;
    return MB_OK;
}

mb_status mb_generate(mb_engine *e, const mb_request *r, mb_gen **out, mb_error *err)
{
    struct gen_request req;
    if (!out) return mb_null_error("out", err);
    *out = NULL;
    if (!e) return mb_null_error("e", err);
    MB_TRY(mb_request_to_gen(r, &req, err));
    mb_gen *g = mb_calloc(1, sizeof *g);
    if (!g) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    struct engine_client c = gen_engine_client(e->gen);
    mb_status st = c.start(c.ctx, &req, NULL, NULL, &g->stream, err);
    if (st != MB_OK) {
        mb_free(g);
        return st;
    }
    *out = g;
    return MB_OK;
}

/* {"id", "name", "arguments"}; one that was cut off has "partial" and its arguments as a text. */
static void call_object(struct buf *b, const struct gen_event *ev)
{
    struct str a = ev->u.tool.arguments;
    buf_clear(b);
    buf_append_str(b, "{\"id\": ");
    json_write_string(b, ev->u.tool.id.ptr, ev->u.tool.id.len);
    buf_append_str(b, ", \"name\": ");
    json_write_string(b, ev->u.tool.name.ptr, ev->u.tool.name.len);
    buf_append_str(b, ", \"arguments\": ");
    if (ev->u.tool.partial) json_write_string(b, a.ptr, a.len);
    else buf_append(b, a.ptr, a.len);
    buf_append_str(b, ev->u.tool.partial ? ", \"partial\": true}" : "}");
}

/* One inner event to a public one; false for those that have no public form. */
static bool to_event(mb_gen *g, const struct gen_event *in, mb_event *out)
{
    static const char *const finish[] = { "stop", "length", "tool_calls", "cancelled" };
    memset(out, 0, sizeof *out);
    out->i_choice = in->i_choice;
    switch (in->type) {
    case GEN_EV_START:
        out->type = MB_EV_START;
        out->n_prompt = in->u.start.n_prompt;
        out->n_cached = in->u.start.n_cached;
        return true;
    case GEN_EV_TEXT:
        out->type = MB_EV_TEXT;
        out->text = in->u.text.text.ptr;
        out->text_len = in->u.text.text.len;
        out->is_reasoning = in->u.text.channel == GEN_REASONING;
        return true;
    case GEN_EV_TOOL:
        out->type = MB_EV_TOOL;
        call_object(&g->call, in);
        out->text = g->call.data;
        out->text_len = g->call.len;
        return true;
    case GEN_EV_TOKEN:
        out->type = MB_EV_TOKEN;
        out->id = in->u.token.id;
        out->logprob = in->u.token.logprob;
        out->n_top = in->u.token.n_top;
        out->top_id = in->u.token.top_id;
        out->top_logprob = in->u.token.top_logprob;
        return true;
    case GEN_EV_SCORE:
        out->type = MB_EV_SCORE;
        out->index = in->u.score.index;
        out->id = in->u.score.target;
        out->logprob = in->u.score.target_logprob;
        out->argmax = in->u.score.argmax;
        out->argmax_logprob = in->u.score.argmax_logprob;
        return true;
    case GEN_EV_END:
        out->type = MB_EV_END;
        out->text = finish[in->u.end.finish];
        out->text_len = strlen(out->text);
        out->n_completion = in->u.end.n_completion;
        return true;
    case GEN_EV_DONE:
        out->type = MB_EV_DONE;
        return true;
    default:
        return false; /* progress, warnings */
    }
}

mb_status mb_next(mb_gen *g, mb_event *out, mb_error *err)
{
    /* The top list points into the event, which must outlive this call. */
    static _Thread_local struct gen_event ev;
    if (!out) return mb_null_error("out", err);
    memset(out, 0, sizeof *out);
    if (!g) return mb_null_error("g", err);
    if (g->done) return mb_fail(err, MB_NOT_FOUND, "the generation has ended");
    do {
        if (!gen_next(g->stream, -1, &ev)) return mb_fail(err, MB_INTERNAL, "no event");
        if (ev.type == GEN_EV_ERROR) {
            g->done = true;
            return mb_fail_at(err, ev.u.error.status, ev.u.error.at, "%s", ev.u.error.text);
        }
    } while (!to_event(g, &ev, out));
    MB_TRY(buf_status(&g->call, "tool call", err));
    g->done = out->type == MB_EV_DONE;
    return MB_OK;
}

void mb_gen_cancel(mb_gen *g)
{
    if (g) gen_cancel(g->stream);
}

void mb_gen_close(mb_gen *g)
{
    if (!g) return;
    gen_close(g->stream);
    buf_free(&g->call);
    mb_free(g);
}
