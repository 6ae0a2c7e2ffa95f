/* diffusion.c: requests to a model that writes by canvases (engine/method_diffusion.c): what cannot go with it is refused by name,
 * before it takes a place in the queue; and its own defaults of sampling.
 *
 * A canvas is drawn at all positions at once, again and again, and its best ids are the answer: what needs the token before to
 * say something of the next (constraints, penalties, budgets) has no place, and there is no log-probability of an answer.
 * top_p, top_k and min_p narrow the draws of a round. Temperature is times that of the schedule, 1 unless somebody says
 * otherwise; with 0 nothing is drawn, and without a seed the noise is that of seed 0: the same question, the same answer. */
#include "gen/gen_int.h"

bool diffusion_is(const struct gen_engine *g)
{
    return engine_info(g->engine)->canvas != NULL;
}

static mb_status refuse(const char *field, mb_error *err)
{
    return mb_fail_at(err, MB_INVALID, field, "%s cannot be used with this model: it writes blocks of tokens by diffusion, not one "
                      "token after the other; leave it out", field);
}

mb_status diffusion_check(const struct gen_stream *s, mb_error *err)
{
    const struct gen_request *r = &s->req;
    const struct sample_params *p = &s->job.params;
    const char *limit = r->constraint.kind != CONSTRAINT_NONE ? (r->constraint.field ? r->constraint.field : "response_format")
                        : r->tool_choice == TOOLS_REQUIRED || r->tool_choice == TOOLS_NAMED ? "tool_choice"
                        : r->thinking_budget > 0 ? "thinking_budget" : "tools[].strict";
    const struct { bool asked; const char *field; } no[] = {
        { r->score, "scoring" },
        { limit_wanted(s), limit },
        { r->logprobs || r->n_top_logprobs > 0, "logprobs" },
        { r->bias.n > 0, "logit_bias" },
        { r->min_tokens > 0, "min_tokens" },
        { p->repetition_penalty != 0 && p->repetition_penalty != 1, "repetition_penalty" },
        { p->presence_penalty != 0, "presence_penalty" },
        { p->frequency_penalty != 0, "frequency_penalty" },
        { p->xtc_probability > 0, "xtc_probability" },
        { p->hlg, "hlg" },
    };
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        if (no[i].asked) return refuse(no[i].field, err);
    return MB_OK;
}

void diffusion_params(const struct gen_engine *g, struct gen_stream *s)
{
    struct sample_params *p = &s->job.params;
    const struct sampler_values *request = &s->req.sampling, *server = &g->opt.server;
    if (!request->temperature.given && !server->temperature.given) p->temperature = 1;
    if (p->temperature == 0 && !request->seed.given && !server->seed.given) p->noise.seed = 0;
    p->ignore_eos = false; /* the job says so: the noise does not know of ends */
}
