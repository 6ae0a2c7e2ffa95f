/* sampler.c: the table of sampling parameters and the rule which of several values counts.
 *
 * The order of the rows is the order of the chain (ops/sample.h). A row's default is the built-in fallback (CFG-020):
 * the last resort after request, server flag and generation_config.json. Bounds are those of requests (spec/api.md Q6);
 * command line flags may be narrower and check that themselves. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sampler.h"

#define OFF(field) offsetof(struct sampler_values, field)
#define NO_MAX DBL_MAX
#define INT32_TOP 2147483647.0
#define SEED_MIN (-9223372036854775808.0)
#define SEED_MAX 18446744073709549568.0 /* the largest double below 2^64 */
#define PENALTY_MAX 1e6
#define TEMPERATURE_TOP 1e30 /* larger ones draw alike, and a float holds it */

static const double UNTHINKING_TEMPERATURE = 0.7; /* API-085 */

static const struct sampler_row rows[] = {
    { "repetition_penalty", SAMPLER_FLOAT, 0, PENALTY_MAX, 1, OFF(repetition_penalty), "API-056",
      "divide the logits of recent tokens by this when positive, multiply when negative; 1 = off" },
    { "repetition_context_size", SAMPLER_INT, 0, INT32_TOP, 20, OFF(repetition_context_size), "API-057",
      "how many recent tokens the repetition penalty looks at; 0 = all" },
    { "presence_penalty", SAMPLER_FLOAT, -PENALTY_MAX, PENALTY_MAX, 0, OFF(presence_penalty), "API-058",
      "subtract this once from the logit of a token that occurred; 0 = off" },
    { "presence_context_size", SAMPLER_INT, 0, INT32_TOP, 20, OFF(presence_context_size), "API-059",
      "how many recent tokens the presence penalty looks at; 0 = all" },
    { "frequency_penalty", SAMPLER_FLOAT, -PENALTY_MAX, PENALTY_MAX, 0, OFF(frequency_penalty), "API-060",
      "subtract this from the logit of a token for each time it occurred; 0 = off" },
    { "frequency_context_size", SAMPLER_INT, 0, INT32_TOP, 20, OFF(frequency_context_size), "API-061",
      "how many recent tokens the frequency penalty looks at; 0 = all" },
    { "top_p", SAMPLER_FLOAT, 0, 1, 0, OFF(top_p), "API-049",
      "keep the most likely tokens that together have this probability; 0 or 1 = off" },
    { "min_p", SAMPLER_FLOAT, 0, 1, 0, OFF(min_p), "API-052",
      "drop tokens less likely than this times the most likely one; 0 = off" },
    { "xtc_probability", SAMPLER_FLOAT, 0, 1, 0, OFF(xtc_probability), "API-053",
      "chance per token that XTC applies; 0 = off" },
    { "xtc_threshold", SAMPLER_FLOAT, 0, 0.5, 0, OFF(xtc_threshold), "API-054",
      "when XTC applies, drop all tokens above this probability but the least likely of them" },
    { "top_k", SAMPLER_INT, 0, INT32_TOP, 0, OFF(top_k), "API-050", "keep the k most likely tokens; 0 = off" },
    { "temperature", SAMPLER_FLOAT, 0, NO_MAX, 0.7, OFF(temperature), "API-048",
      "how freely tokens are drawn; 0 = always the most likely one" },
    { "seed", SAMPLER_INT, SEED_MIN, SEED_MAX, 0, OFF(seed), "API-051",
      "start of the random numbers; the same seed draws the same tokens; absent: from the clock" },
};

const struct sampler_row *sampler_rows(size_t *n)
{
    *n = sizeof rows / sizeof rows[0];
    return rows;
}

const struct sampler_row *sampler_row_find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

mb_status sampler_row_check(const struct sampler_row *r, double v, bool is_int, mb_error *err)
{
    if (isnan(v) || (r->type == SAMPLER_INT && !is_int))
        return mb_fail_at(err, MB_INVALID, r->name, "%s must be of type %s", r->name,
                          r->type == SAMPLER_INT ? "int" : "float");
    if (v < r->min) return mb_fail_at(err, MB_INVALID, r->name, "%s must be at least %.17g", r->name, r->min);
    if (v > r->max) return mb_fail_at(err, MB_INVALID, r->name, "%s must be at most %.17g", r->name, r->max);
    return MB_OK;
}

struct sampler_value *sampler_value_at(struct sampler_values *v, const struct sampler_row *r)
{
    return (struct sampler_value *)(void *)((char *)v + r->off);
}

static const struct sampler_value *value_in(const struct sampler_values *v, size_t off)
{
    return v ? (const struct sampler_value *)(const void *)((const char *)v + off) : NULL;
}

static double default_at(size_t off)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].off == off) return rows[i].dflt;
    return 0;
}

/* First given value of request, server, model. *explicit_: it is one of the first two (Q61). */
static double pick(const struct sampler_values *const from[3], size_t off, bool *explicit_)
{
    for (int i = 0; i < 3; i++) {
        const struct sampler_value *v = value_in(from[i], off);
        *explicit_ = i < 2;
        if (v && v->given) return v->v;
    }
    return default_at(off);
}

/* The bits of a seed; negative ones wrap as two's complement. */
static uint64_t seed_bits(const struct sampler_value *s)
{
    if (s->exact) return s->exact;
    return s->v < 0 ? (uint64_t)(int64_t)s->v : (uint64_t)s->v;
}

/* Requests in flight together differ in time or in the place of their parameters (API-347). */
static uint64_t seed_from_clock(const void *place)
{
    uint64_t x = (uint64_t)clock_now_ns() ^ (uint64_t)clock_unix_ms() << 20 ^ (uint64_t)(uintptr_t)place << 7;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

void sampler_resolve(const struct sampler_values *request, const struct sampler_values *server,
                     const struct sampler_values *model, bool thinking, struct sample_params *out)
{
    const struct sampler_values *const from[3] = { request, server, model };
    bool is_explicit, ignored;
    double t = pick(from, OFF(temperature), &is_explicit);
    if (!is_explicit && !thinking && t > UNTHINKING_TEMPERATURE) t = UNTHINKING_TEMPERATURE;
    out->temperature = (float)(t < TEMPERATURE_TOP ? t : TEMPERATURE_TOP);
    out->top_p = (float)pick(from, OFF(top_p), &ignored);
    out->min_p = (float)pick(from, OFF(min_p), &ignored);
    out->min_keep = 1;
    out->top_k = (int32_t)pick(from, OFF(top_k), &ignored);
    out->xtc_probability = (float)pick(from, OFF(xtc_probability), &ignored);
    out->xtc_threshold = (float)pick(from, OFF(xtc_threshold), &ignored);
    out->repetition_penalty = (float)pick(from, OFF(repetition_penalty), &ignored);
    out->repetition_context = (int32_t)pick(from, OFF(repetition_context_size), &ignored);
    out->presence_penalty = (float)pick(from, OFF(presence_penalty), &ignored);
    out->presence_context = (int32_t)pick(from, OFF(presence_context_size), &ignored);
    out->frequency_penalty = (float)pick(from, OFF(frequency_penalty), &ignored);
    out->frequency_context = (int32_t)pick(from, OFF(frequency_context_size), &ignored);
    const struct sampler_value *seed = NULL;
    for (int i = 0; i < 3 && !seed; i++)
        if (from[i] && from[i]->seed.given) seed = &from[i]->seed;
    out->noise.seed = seed ? seed_bits(seed) : seed_from_clock(out);
    out->noise.i_choice = out->noise.round = 0;
}

/* --- HLG (ENG-081) --- */
#define HLG_OFF(field) offsetof(struct hlg_values, field)
#define HLG_MAX_NATS 100

static const struct sampler_row hlg_table[] = {
    { HLG_PREFIX "width", SAMPLER_FLOAT, 0, HLG_MAX_NATS, 4, HLG_OFF(width), "API-073", "half-width of the middle, in nats" },
    { HLG_PREFIX "shoulder", SAMPLER_FLOAT, 0, HLG_MAX_NATS, 4, HLG_OFF(shoulder), "API-074",
      "roll-off above the middle, in nats; 0 = flat" },
    { HLG_PREFIX "toe", SAMPLER_FLOAT, 0, HLG_MAX_NATS, 6, HLG_OFF(toe), "API-075",
      "roll-off below the middle, in nats; 0 = flat" },
    { HLG_PREFIX "pivot_offset", SAMPLER_FLOAT, 0, HLG_MAX_NATS, 6, HLG_OFF(pivot_offset), "API-076",
      "how far the centre of the middle lies below the most likely token, in nats" },
};

const struct sampler_row *hlg_rows(size_t *n)
{
    *n = sizeof hlg_table / sizeof hlg_table[0];
    return hlg_table;
}

struct sampler_value *hlg_value_at(struct hlg_values *v, const struct sampler_row *r)
{
    return (struct sampler_value *)(void *)((char *)v + r->off);
}

static float hlg_pick(const struct sampler_value *request, const struct sampler_value *server, size_t off)
{
    if (request->given) return (float)request->v;
    if (server->given) return (float)server->v;
    for (size_t i = 0; i < sizeof hlg_table / sizeof hlg_table[0]; i++)
        if (hlg_table[i].off == off) return (float)hlg_table[i].dflt;
    return 0; /* enabled has no row: off */
}

void hlg_resolve(const struct hlg_values *request, const struct hlg_values *server, struct sample_params *out)
{
    const struct hlg_values *r = request, *s = server;
    out->hlg = hlg_pick(&r->enabled, &s->enabled, HLG_OFF(enabled)) != 0;
    out->hlg_width = hlg_pick(&r->width, &s->width, HLG_OFF(width));
    out->hlg_shoulder = hlg_pick(&r->shoulder, &s->shoulder, HLG_OFF(shoulder));
    out->hlg_toe = hlg_pick(&r->toe, &s->toe, HLG_OFF(toe));
    out->hlg_pivot_offset = hlg_pick(&r->pivot_offset, &s->pivot_offset, HLG_OFF(pivot_offset));
}
