/* fit.h: the memory answer and the speed to expect, before anything is loaded: sizes from config.json and safetensors headers
 * (engine_load_estimate, the same numbers that the engine divides memory by), speed from what the device was measured to do
 * (ops.h, probe). Plain arithmetic: the same model, machine and context give the same numbers (REG-112).
 *
 * A decoded token reads every weight once (of experts, those it goes to), every visible key once, meets a fixed number of
 * barriers a layer, and passes through norms and the draw. A prompt is multiply-adds. docs/models.md has the formulas.
 */
#ifndef ENGINE_FIT_H
#define ENGINE_FIT_H

#include "engine/open.h"

#define FIT_TYPICAL_CONTEXT 8192 /* REG-124: at most */
#define FIT_SKU_CONTEXT 32768    /* REG-126 */

struct fit_model {
    struct engine_loaded info;
    struct model_size size;
    enum fidelity_tier tier;
    int32_t prefill_chunk;    /* rows of a prompt in one step, at most */
    size_t prompt_cache_bytes;
};

struct fit_report {
    bool fits;                /* weights, scratch and this context are within the usable bytes */
    int32_t n_context;        /* asked for, at most the model's */
    size_t weights_bytes; /* with the cache of offloaded experts. When that does not hold all of them no speed is predicted: it would
                             be the disk's, and depend on the text */
    size_t kv_bytes, transient_bytes, total_bytes, usable_bytes; /* transient: scratch that one request of n_context tokens touches */
    size_t scratch_bytes;     /* what admission counts for it: the largest step of any requests, with adapters */
    size_t kept_bytes;        /* pages that stay besides while there is room: the prompt cache's (kv_pages_kept_bytes) */
    int32_t max_safe_context; /* tokens of one request; 0: the model does not fit at all */
    double decode_tps;        /* 0: the machine has not been measured */
    double prefill_tps;       /* of a prompt of n_context tokens; 0: not known */
};

/* Another machine. */
struct fit_sku {
    const char *name;
    int32_t ram_gb;           /* of the device */
    double gbs;               /* memory bandwidth on its data sheet, 10^9 bytes/s */
    bool gpu;
};
const struct fit_sku *fit_skus(size_t *n);

/* Sizes of a model with these options: MB_OK also when it does not fit (size.weight_bytes says what it would take). */
mb_status fit_model_read(struct fit_model *out, const struct engine_load *opt, mb_error *err);
/* rates may be NULL. n_context <= 0: as much as is safe. */
void fit_report_make(struct fit_report *out, const struct fit_model *m, const struct ops_rates *rates, int32_t n_context);
void fit_report_sku(struct fit_report *out, const struct fit_model *m, const struct fit_sku *sku, int32_t n_context);
/* The least memory budget in which n_requests of n_context tokens each run together. */
size_t fit_least_bytes(const struct fit_model *m, int32_t n_context, int32_t n_requests);
/* Do all weights stay in memory? Else seconds are those of a model whose experts have all been read. */
bool fit_is_resident(const struct fit_model *m);
/* Seconds of one token behind n_context others, alone; seconds of a prompt of n tokens. */
double fit_decode_s(const struct fit_model *m, const struct ops_rates *rates, int32_t n_context);
double fit_prefill_s(const struct fit_model *m, const struct ops_rates *rates, int32_t n);

/* This machine for people: processor, memory of the machine (not of the group). */
void fit_machine(char chip[96], uint64_t *ram_bytes);

#endif
