/* mlxbun.h: libmlxbun, the C library of mlx-bun: load a checkpoint in MLX format, generate, score, tokenize, render,
 * convert.
 *
 * Handles are opaque; every public struct begins with its own size (`size = sizeof(struct ...)`), zero means default. A
 * struct of another size than this library's is refused by name, never misread: rebuild against the header you link.
 * Results go through out-parameters that are NULL or zero on failure. No function exits, aborts, or prints (log lines go
 * to the sink of mb_set_log, stderr by default).
 * Threads: an mb_engine may be used from any number of threads; an mb_gen belongs to one thread at a time.
 * Determinism: the same request gives the same bits, whatever else runs (docs/numerics.md).
 */
#ifndef MLXBUN_H
#define MLXBUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mlxbun_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MB_API __attribute__((visibility("default")))
#else
#define MB_API
#endif

typedef struct mb_engine mb_engine;
typedef struct mb_gen mb_gen;

/* "0.1.0". */
MB_API const char *mb_version(void);
/* Name of a status, "MB_BAD_FORMAT"; never NULL. */
MB_API const char *mb_status_name(mb_status s);
/* level: 0 error, 1 warning, 2 info, 3 debug. sink NULL restores stderr. Call before other threads use the library. */
MB_API void mb_set_log(int level, void (*sink)(void *ctx, int level, const char *area, const char *text), void *ctx);

/* How to load. */
typedef struct mb_options {
    size_t size;               /* sizeof(mb_options) */
    const char *tier;          /* "l1" (default), "l2", "f32": arithmetic, docs/numerics.md */
    const char *kv;            /* "off" (the family's 16-bit type), "8", "4", "config" (kv_config.json), "f16", "bf16", "f32"; NULL: f32 with
                                  tier f32, config with tier l2 where the model has a kv_config.json, else off */
    const char *device;        /* "cpu" (default), "cuda" or "cuda:N": an NVIDIA GPU (docs/cuda.md) */
    const char *cpu_level;     /* "portable", "avx2", "avx512", "amx"; NULL: the best of this machine. Same bits. */
    int32_t n_threads;         /* 0: physical cores this process may use. Same bits. */
    int32_t batch;             /* sequences decoded together; 0: 8. Same bits. */
    int32_t prefill_chunk;     /* tokens of a prompt computed at once; 0: 2048. Same bits. */
    int32_t n_context;         /* lower the model's context; 0: the model's own */
    uint64_t memory_budget_bytes; /* weights + scratch + KV; 0: 90 % of the memory that is free */
    uint64_t prompt_cache_bytes;  /* prefixes kept; 0: 8 GiB (bounded by the pool); UINT64_MAX: off. Same bits. */
    void (*progress)(void *ctx, double fraction); /* loading, 0..1; may be NULL */
    void *progress_ctx;
} mb_options;

/* Load a model directory.
 *   out   receives the engine, or NULL on failure; release with mb_engine_close().
 *   path  UTF-8 directory holding config.json and *.safetensors; mapped read-only while it is read.
 *   opt   NULL for defaults; copied.
 *   err   may be NULL; on failure holds code, text, place.
 * Returns MB_OK, MB_NOT_FOUND, MB_BAD_FORMAT (text names file and byte), MB_UNSUPPORTED (names arch or dtype),
 * MB_NO_MEMORY, MB_INVALID (an option). Blocks on disk and on packing the weights. */
MB_API mb_status mb_engine_open(mb_engine **out, const char *path, const mb_options *opt, mb_error *err);
/* Running generations end as cancelled. Every mb_gen must have been closed. NULL is allowed. */
MB_API void mb_engine_close(mb_engine *e);

/* What to generate from. Exactly one of messages_json, text, ids. */
typedef struct mb_request {
    size_t size;               /* sizeof(mb_request) */
    const char *messages_json; /* JSON array of {role, content, ...}; rendered with the model's chat template */
    const char *tools_json;    /* JSON array of function tools, or NULL */
    const char *template_kwargs_json; /* JSON object, or NULL */
    const char *text;          /* raw prompt */
    size_t text_len;           /* 0: strlen(text) */
    const int32_t *ids;        /* token ids */
    int32_t n_ids;
    int64_t max_tokens;        /* 0: none (to the end of the context); negative: MB_INVALID */
    int32_t n_choices;         /* 0: 1; negative: MB_INVALID */
    /* Sampling; has_* says that the value counts, else generation_config.json, else the built-in default. */
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_seed, has_repetition_penalty;
    double temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint64_t seed;
    const char *const *stops;  /* n_stops strings in UTF-8, not empty */
    int32_t n_stops;
    int32_t n_top_logprobs;    /* 0..20 */
    bool ignore_eos;
    bool score;                /* with ids or text: no generation, one MB_EV_SCORE per position */
} mb_request;

typedef enum mb_event_type {
    MB_EV_START = 0, MB_EV_TEXT = 1, MB_EV_TOKEN = 2, MB_EV_SCORE = 3, MB_EV_END = 4, MB_EV_DONE = 5, MB_EV_TOOL = 6
} mb_event_type;

typedef struct mb_event {
    mb_event_type type;
    int32_t i_choice;
    const char *text;          /* MB_EV_TEXT: UTF-8 piece; MB_EV_END: finish reason "stop" | "length" | "tool_calls" |
                                  "cancelled"; MB_EV_TOOL: the call as a JSON object. Valid until the next mb_next */
    size_t text_len;
    bool is_reasoning;         /* MB_EV_TEXT */
    int32_t id;                /* MB_EV_TOKEN: sampled id; MB_EV_SCORE: the target id */
    float logprob;             /* natural log, full vocabulary, of id; NaN: this model has none (DiffusionGemma) */
    int32_t argmax;            /* MB_EV_SCORE: most likely id, and its log-probability */
    float argmax_logprob;
    int32_t index;             /* MB_EV_SCORE: position of the target */
    int32_t n_top;             /* MB_EV_TOKEN: top list, descending */
    const int32_t *top_id;
    const float *top_logprob;
    int32_t n_prompt, n_cached;         /* MB_EV_START */
    int32_t n_completion;               /* MB_EV_END */
} mb_event;

/* Start. *out is released with mb_gen_close. Does not wait for the model. */
MB_API mb_status mb_generate(mb_engine *e, const mb_request *r, mb_gen **out, mb_error *err);
/* Wait for the next event. MB_OK; after MB_EV_DONE: MB_NOT_FOUND. A failure of the generation itself is returned here
 * (MB_NON_FINITE, MB_CONTEXT_LENGTH, MB_TEMPLATE ...), with its text. */
MB_API mb_status mb_next(mb_gen *g, mb_event *out, mb_error *err);
MB_API void mb_gen_cancel(mb_gen *g);
MB_API void mb_gen_close(mb_gen *g); /* NULL is allowed */

/* Tokenize UTF-8 text. *ids is released with mb_free. special: add what the tokenizer puts around a text (bos ...). */
MB_API mb_status mb_tokenize(mb_engine *e, const char *text, size_t len, bool special, int32_t **ids, int32_t *n,
                             mb_error *err);
/* Text of ids; *text (NUL-terminated) is released with mb_free. */
MB_API mb_status mb_detokenize(mb_engine *e, const int32_t *ids, int32_t n, bool skip_special, char **text, size_t *len,
                               mb_error *err);
/* The prompt that a request's messages become: text and ids (either may be NULL), released with mb_free. */
MB_API mb_status mb_render(mb_engine *e, const mb_request *r, char **text, size_t *len, int32_t **ids, int32_t *n,
                           mb_error *err);
MB_API void mb_free(void *p);

typedef struct mb_stats {
    size_t size;               /* sizeof(mb_stats), set by the caller */
    uint64_t weight_bytes, pool_bytes, pages_held_bytes, pages_cached_bytes, pages_free_bytes;
    uint64_t cache_entries, cache_hits, cache_misses;
    uint64_t requests_finished, requests_cancelled, requests_failed, tokens_decoded, tokens_prefilled, tokens_cached;
    int32_t active_rows, pending_rows, batch, n_context;
    double decode_tokens_per_s;
} mb_stats;
MB_API mb_status mb_stats_get(mb_engine *e, mb_stats *out, mb_error *err);

/* Convert a GGUF file to an MLX checkpoint directory (made if absent; refused when it holds a checkpoint).
 * progress may be NULL. Exact for Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K F16 F32 BF16; Q6_K to 8 bit. */
MB_API mb_status mb_convert(const char *gguf_path, const char *out_dir, void (*progress)(void *ctx, double fraction),
                            void *ctx, mb_error *err);

#ifdef __cplusplus
}
#endif
#endif
