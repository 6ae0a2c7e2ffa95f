/* mlxbun_int.h: what the command line needs of an mb_engine beyond the public API: the waist itself, for the server. */
#ifndef MLXBUN_INT_H
#define MLXBUN_INT_H

#include "engine/fidelity.h"
#include "engine/fit.h"
#include "engine/open.h"
#include "engine/sensitivity.h"
#include "gen/gen.h"
#include "mlxbun.h"

struct mb_engine {
    struct gen_engine *gen;
    struct engine_loaded loaded;
    int32_t *script; /* owned; test builds only */
};

/* More of mb_engine_open: server defaults and the numbers that were decided. All borrowed strings may be NULL. */
struct mb_open_extra {
    const char *model_id;         /* shown as "model"; NULL: from the directory */
    struct sampler_values server; /* level 2 of CFG-019 */
    struct hlg_values hlg;        /* --hlg-sampling ... */
    int64_t max_tokens;           /* --max-tokens, < 0 = none */
    int32_t reserve_context;      /* --context-length; 0 = no such rule */
    enum given_bool thinking;
    bool no_grammar;              /* MLX_BUN_GRAMMAR=0 */
    bool grammar_jump;            /* MLX_BUN_GRAMMAR_JUMP=1 */
    struct gen_fill_options fill; /* MLX_BUN_FILL ... */
    uint64_t kv_budget_bytes;
    int32_t ring_events;
    int64_t client_timeout_ms;
    const char *adapter;          /* --adapter: a folder, or ID=folder; mounted and the default for requests */
    int32_t max_lora_rank;        /* 0 = 64 */
    bool packed_cache;            /* packed weights are kept there too */
    bool expert_offload;          /* experts stay in a file in expert_dir */
    uint64_t expert_cache_bytes;  /* memory for some of them; 0: half of what is left */
    char device[64];              /* what mb_options.device points to where --tensor-parallel makes the name */
    char expert_dir[1088];        /* "": no place for it */
    char cache_dir[1024];         /* tables of the tokenizer are kept below it; "": nowhere */
};
mb_status mb_engine_open_extra(mb_engine **out, const char *path, const mb_options *opt, const struct mb_open_extra *x,
                               mb_error *err);
struct engine_client mb_engine_client(mb_engine *e);
const struct engine_loaded *mb_engine_loaded(const mb_engine *e);
/* Text names of options: "l1", "off" ... MB_INVALID names the value and the choices. */
mb_status mb_tier_parse(const char *text, enum fidelity_tier *out, mb_error *err);
mb_status mb_kv_parse(const char *text, int *out, mb_error *err);
const char *mb_tier_name(enum fidelity_tier tier);
/* Options as an engine_load. */
mb_status mb_options_to_load(const char *path, const mb_options *opt, struct engine_load *out, mb_error *err);
/* With what mb_open_extra adds; x may be NULL. Strings are borrowed from both. */
mb_status mb_extra_to_load(const char *path, const mb_options *opt, const struct mb_open_extra *x, struct engine_load *out,
                           mb_error *err);

/* MB_INVALID: the argument `name` is NULL. */
mb_status mb_null_error(const char *name, mb_error *err);
/* Checked and as the waist wants it; *out borrows from r. */
mb_status mb_request_to_gen(const mb_request *r, struct gen_request *out, mb_error *err);

/* --- mlxbun_tools.c: for doctor, prove and show-prompt --- */

/* A rendered prompt with who wrote which bytes: i_message >= 0 and a field, or -1 template, -2 tools, -3 another variable. */
struct prompt_part {
    size_t first, end;
    int32_t i_message;
    const char *field; /* may be NULL */
};
struct prompt_view {
    const char *text;
    size_t len;
    struct prompt_part *parts;
    size_t n_parts;
    const int32_t *ids;
    int32_t n_ids;
};
/* With the tokenizer and templates of a model directory; opens no weights. Everything in the arena. */
mb_status mb_prompt_view(const char *model_dir, const char *cache_dir, const struct gen_request *r, struct arena *a,
                         struct prompt_view *out, mb_error *err);
/* "cpu avx2, 2 threads" for a level (NULL = the best): MB_UNSUPPORTED when this machine has it not. */
mb_status mb_device_text(const char *cpu_level, char out[96], mb_error *err);
/* "cuda:0 NVIDIA H200, 150 GB", or why there is none. */
#define MB_GPU_TEXT 544
void mb_gpu_text(char out[MB_GPU_TEXT]);
/* Ids of a text with the tokenizer of a model directory, nothing else loaded. special: with what the tokenizer puts around
 * a text. *ids is released with mb_free. */
mb_status mb_tokenize_dir(const char *model_dir, const char *text, size_t len, bool special, int32_t **ids, int32_t *n,
                          mb_error *err);

/* Family i of the table: its name, the values of config.json "model_type" (NULL-terminated), a note. False: there are no more. */
bool mb_family(size_t i, const char **name, const char *const **types, const char **note);
/* Can this version run models of this model_type? */
bool mb_family_known(const char *model_type);
/* Would it fit here, and with how long a context, by config and headers alone, and how fast would it be (rates NULL, or not
 * measured: 0)? False: they cannot be read. */
bool mb_model_assess(const char *path, const struct ops_rates *rates, bool *fits, int64_t *max_context, double *decode_tps);
/* engine_packed_key; "" where there is no such folder. */
void mb_packed_key(const char *dir, char out[17]);
/* Bytes this process may still take. */
size_t mb_memory_available(void);

#ifdef MB_FAULTS
/* --- test builds: an engine whose draws are a script, over the tokenizer and templates of a model directory --- */
struct mb_script {
    const int32_t *ids;      /* [n] copied: what every request draws, one after the other, then the end token */
    int32_t n;
    int32_t n_context, batch; /* 0 = 8192, 8 */
    int64_t step_delay_ms, prefill_delay_ms_per_1k;
};
mb_status mb_engine_open_scripted(mb_engine **out, const char *model_dir, const struct mb_script *script,
                                  const struct mb_open_extra *x, mb_error *err);
#endif

#endif
