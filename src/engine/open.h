/* open.h: from a model directory to a running engine: device, model, memory plan, stepper, engine. The one place where
 * these are put together; gen and the C API call it.
 */
#ifndef ENGINE_OPEN_H
#define ENGINE_OPEN_H

#include "engine/engine.h"
#include "model/model.h"

#define ENGINE_POOL_MIN_TOKENS 512 /* below this a pool is of no use */

struct engine_load {
    const char *dir;
    const char *device;            /* "cpu", "cuda", "cuda:N"; NULL = "cpu" */
    const char *cpu_level;         /* NULL = highest */
    int n_threads;                 /* 0 = physical cores this process may use */
    enum fidelity_tier tier;
    int kv_format;                 /* enum kv_format, KV_OF_TIER, KV_OF_FAMILY or KV_OF_CONFIG */
    int32_t n_context;             /* 0 = the model's */
    int32_t reserve_context;       /* GLM-5.2: serve so many tokens of context and refuse to load without room for them; 0 = no */
    int32_t reserve_answer;        /* of which so many are an answer's; 0 = 128 (MOD-038, MOD-039) */
    const char *packed_dir;        /* keep packed weights below this folder for the next start; NULL: no (--packed-cache) */
    bool expert_offload;           /* experts stay in a file (--expert-offload); ignored by models without any */
    const char *expert_dir;        /* folder of that file; made when it is not there */
    uint64_t expert_cache_bytes;   /* memory for experts that were read; 0 = half of what weights and scratch leave */
    int32_t max_lora_rank;         /* of adapters; 0 = 64 (--max-lora-rank) */
    uint64_t memory_budget_bytes;  /* 0 = 90 % of what is free */
    uint64_t kv_budget_bytes;      /* 0 = no further limit (--kv-budget only lowers the pool) */
    struct engine_options engine;  /* pool_bytes is set here */
    void (*progress)(void *ctx, double fraction);
    void *progress_ctx;
};

/* What was decided, for /stats, the ready card and doctor. */
struct engine_loaded {
    size_t weight_bytes, scratch_bytes, pool_bytes, usable_bytes, kv_bytes_per_token;
    size_t expert_bytes, expert_cache_bytes; /* offloaded experts: all of them, in the file; memory for some. 0, 0: none */
    int32_t max_context_in_pool;   /* tokens of one sequence that fit the empty pool */
    bool fits;
    char device[96];               /* "cpu avx2, 2 threads" */
    const char *kv_mode;           /* "f16", "uniform-kv8", ...: model_kv_mode */
    int32_t n_layer_kv[KV_FORMAT_COUNT]; /* layers by format: model_kv_count */
    int32_t n_layer_full, n_layer_window, n_context, n_vocab;
    int32_t eos_ids[16], n_eos;    /* config and generation_config */
    bool embeds;                   /* of a family whose last hidden state is an embedding (qwen3, MOD-043) */
    int32_t d_model;
    int32_t reserved_answer;       /* tokens of an answer that says no number (GLM-5.2); 0: no such rule */
};

/* MB_NO_MEMORY when weights and scratch do not fit the budget (with all numbers); MB_IO when the experts' file cannot be made (the
 * disk is full); else as model_open. */
mb_status engine_load(struct engine **out, const struct engine_load *opt, struct engine_loaded *info, mb_error *err);
/* memory.c: bytes this process may still take: least of MemAvailable, the rest of its control groups, the rest of its address
 * space limit. */
size_t engine_memory_available(void);
/* The same below another root than "" (tests): its proc/ and sys/. The address space limit is not looked at. */
size_t engine_memory_available_at(const char *root);
/* The same numbers from config and headers alone, nothing loaded: what fit and doctor print. size may be NULL. When the model
 * does not fit: MB_NO_MEMORY, and info and size are filled all the same (info->usable_bytes > 0 tells it from a real lack). */
mb_status engine_load_estimate(const struct engine_load *opt, struct engine_loaded *info, struct model_size *size, mb_error *err);
/* Changes when a file of the model does: config.json and the weight files as they lie there. 0: no such folder. */
uint64_t engine_model_identity(const char *dir);
/* How the files of packed weights and of experts of a model directory begin, of its real path: "<key>.bin", "<key>-shared.bin",
 * "<key>.experts". MB_NOT_FOUND, MB_IO: there is no such folder. */
mb_status engine_packed_key(const char *dir, char out[17], mb_error *err);
/* Measure the device of these options (ops.h); seconds 0: say only its name. Loads no model. */
mb_status engine_probe(const struct engine_load *opt, double seconds, struct ops_rates *out, char device[96], mb_error *err);

/* The compiled plan, one line a step, to a callback (doctor --plan). Loads the model. */
mb_status engine_plan_describe(const struct engine_load *opt, void (*line)(void *ctx, const char *text), void *ctx,
                               mb_error *err);

#endif
