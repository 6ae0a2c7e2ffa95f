/* sensitivity.h: how much each module of a model minds being quantised, measured: one module at a time gets its weights
 * quantised to a probe's bits and group, the calibration ids are run, and the mean Kullback-Leibler divergence of the next
 * token's distribution from that of the model as it is, is its figure. Everything in the float32 tier: the same figures, bit
 * for bit, whatever the CPU level and the number of threads.
 */
#ifndef ENGINE_SENSITIVITY_H
#define ENGINE_SENSITIVITY_H

#include "model/model.h"

struct sensitivity_options {
    struct quant_spec probe;   /* affine */
    const char *cpu_level;     /* NULL = highest */
    int n_threads;             /* 0 = all */
    void (*progress)(void *ctx, double fraction); /* may be NULL */
    void *progress_ctx;
};

#define SENSITIVITY_MAX_POSITIONS 65536

/* ids: n_sequences runs of n_tokens each. *out: a new object, module path -> mean KL in nats (rounded below to 0); modules whose
 * inputs the probe's group does not divide are left out. MB_INVALID (ids, too many positions), MB_UNSUPPORTED (weights that are
 * neither floats nor affine, experts one by one), and what opening the model gives. Memory: the model, and one float a token of
 * the vocabulary a position. */
mb_status sensitivity_measure(json_t **out, const char *model_dir, const int32_t *ids, int32_t n_sequences, int32_t n_tokens,
                              const struct sensitivity_options *opt, mb_error *err);

#endif
