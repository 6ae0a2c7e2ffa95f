/* sampler.h: the sampler table: one row a sampling parameter: its name on the wire, type, bounds, default, and the field
 * of struct sample_params it fills. Read by api (request fields), cli (flags), docs, and the error texts of
 * spec/api.md Q6 ("<field> must be at most <n>"). Owner: engine/sampler.c.
 */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "ops/sample.h"

enum sampler_type { SAMPLER_FLOAT = 0, SAMPLER_INT };

struct sampler_row {
    const char *name;            /* "temperature", as in requests */
    enum sampler_type type;
    double min, max, dflt;
    size_t off;                  /* in struct sampler_values */
    const char *spec;            /* "API-048" */
    const char *help;
};

/* Values of a request or a server default, each with a given bit. */
struct sampler_value {
    double v;
    bool given;
    uint64_t exact; /* a whole number beyond 2^53, all bits (seeds); negative ones as two's complement; 0 = v says it */
};
struct sampler_values {
    struct sampler_value temperature, top_p, top_k, min_p, xtc_probability, xtc_threshold;
    struct sampler_value repetition_penalty, repetition_context_size;
    struct sampler_value presence_penalty, presence_context_size;
    struct sampler_value frequency_penalty, frequency_context_size;
    struct sampler_value seed;
};

/* The HLG curve of a request or a server default (API-071), each key with a given bit of its own. */
struct hlg_values {
    struct sampler_value enabled; /* v != 0 */
    struct sampler_value width, shoulder, toe, pivot_offset; /* nats */
};

const struct sampler_row *sampler_rows(size_t *n);
const struct sampler_row *sampler_row_find(const char *name);
/* Check v against the row's type and bounds: MB_INVALID with the row's text, err->at = name. */
mb_status sampler_row_check(const struct sampler_row *r, double v, bool is_int, mb_error *err);
struct sampler_value *sampler_value_at(struct sampler_values *v, const struct sampler_row *r);
/* Precedence (CFG-019): for each value request > server > model > the row's default; the rule of API-085 (no explicit
 * temperature and no thinking: at most 0.7). seed absent: from the clock. */
void sampler_resolve(const struct sampler_values *request, const struct sampler_values *server,
                     const struct sampler_values *model, bool thinking, struct sample_params *out);

/* The numbers of an HLG object: names "hlg.width" ... (behind HLG_PREFIX stands the key), off counts in struct hlg_values. */
#define HLG_PREFIX "hlg."
const struct sampler_row *hlg_rows(size_t *n);
struct sampler_value *hlg_value_at(struct hlg_values *v, const struct sampler_row *r);
/* Key by key request > server > default (CFG-034) into the hlg fields of out. */
void hlg_resolve(const struct hlg_values *request, const struct hlg_values *server, struct sample_params *out);

#endif
