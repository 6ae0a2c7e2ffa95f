/* gen.h: the narrow waist. Every dialect (and the CLI, and the C API) compiles into a gen_request and renders
 * gen_events; nothing below knows HTTP or a dialect's JSON, nothing above knows ids or rows.
 *
 *   gen_request  plain data, serialisable: messages and tools as JSON text, raw text, or ids; each value with a given bit
 *      | gen_prepare (preparation worker: template, tokenise, grammar)                      prepare.c
 *   gen_job      ids, spans, marks, filter state; one arena
 *      | engine_submit
 *   engine       draws ids -> filter: detokenise, split reasoning and tools, match stops    deliver.c
 *   gen_event    in a bounded ring a request, read by one consumer                          ring.c
 *
 * A gen_engine is the engine with what the waist needs around it: tokenizer, templates, defaults, preparation workers.
 * It is reached through struct engine_client, so that the engine may live in another process.
 */
#ifndef GEN_GEN_H
#define GEN_GEN_H

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/sampler.h"

enum gen_input { GEN_MESSAGES = 0, GEN_TEXT, GEN_IDS };
enum given_bool { GIVEN_NONE = 0, GIVEN_FALSE, GIVEN_TRUE };
enum gen_tool_choice { TOOLS_AUTO = 0, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };
enum gen_constraint_kind {
    CONSTRAINT_NONE = 0,
    CONSTRAINT_JSON_OBJECT, /* any JSON object */
    CONSTRAINT_JSON_SCHEMA, /* text: the schema */
    CONSTRAINT_REGEX,       /* text: the expression, matched whole */
    CONSTRAINT_GRAMMAR,     /* text: EBNF */
    CONSTRAINT_CHOICE       /* text: JSON array of strings */
};

/* What the answer (after the reasoning) must be. */
struct gen_constraint {
    enum gen_constraint_kind kind;
    const char *text;
    const char *field; /* the request's field, static: named in errors and warnings; NULL: none */
    bool strict; /* a part that cannot be enforced fails the request (400 by name); else it goes into the prompt, with a
                    warning that names it (design.md section 6) */
};

/* Strings are borrowed until gen_start returns (it copies what it needs). */
struct gen_request {
    enum gen_input input;
    const char *messages_json;       /* GEN_MESSAGES: array text; tool arguments as objects or strings */
    const char *tools_json;          /* array text or NULL */
    const char *template_kwargs_json; /* object text or NULL */
    enum given_bool thinking;        /* after the precedence of API-132; GIVEN_NONE: the template's own */
    int32_t thinking_budget;         /* reasoning tokens after which the thought is closed; 0 = no limit */
    enum gen_tool_choice tool_choice; /* of tools_json; REQUIRED and NAMED are enforced by a grammar */
    const char *tool_name;           /* TOOLS_NAMED */
    enum given_bool parallel_tools;  /* GIVEN_FALSE: at most one call */
    struct gen_constraint constraint;
    enum given_bool continue_final;  /* continue the last assistant message instead of opening a new one */
    struct str text;                 /* GEN_TEXT: raw prompt, tokenised with the tokenizer's BOS rule */
    const int32_t *ids;              /* GEN_IDS */
    int32_t n_ids;
    const char *field;               /* what the client calls the input, for errors about it; static; NULL: messages, prompt */

    struct sampler_values sampling;
    struct { const struct logit_bias *p; int32_t n; } bias; /* any order, ids not yet checked */
    int64_t max_tokens;              /* < 0 = not given */
    int32_t min_tokens;
    bool ignore_eos;
    const char *const *stops;        /* stop strings, not empty */
    int32_t n_stops;
    int32_t n_choices;               /* >= 1 */
    bool logprobs;                   /* want each token's own */
    bool tokens;                     /* want each token's id, with its log-probability where the model has one, else NaN */
    int32_t n_top_logprobs;          /* 0 .. SAMPLE_MAX_TOP */
    struct hlg_values hlg;           /* key by key over the server's */
    const char *adapter;             /* "a", "a+b", "none" or NULL = default; names, never paths */
    bool score;                      /* no generation: log-probabilities of the given ids */
    bool raw_split;                  /* no reasoning or tool split (completions) */
    const char *trace_id;
    int64_t t_received_ns;
};

enum gen_event_type {
    GEN_EV_START = 0,  /* prompt_tokens, cached_tokens */
    GEN_EV_WARNING,    /* before START, at most one: what was not done as asked, for a Warning header */
    GEN_EV_PROGRESS,   /* prefill: done, total */
    GEN_EV_TEXT,       /* text piece of a choice: content or reasoning */
    GEN_EV_TOOL,       /* one tool call: id, name, arguments JSON */
    GEN_EV_TOKEN,      /* log-probability entry of one drawn token (only when asked for) */
    GEN_EV_SCORE,      /* one scored position */
    GEN_EV_END,        /* a choice ended: finish, counts */
    GEN_EV_ERROR,      /* terminal: status and text */
    GEN_EV_DONE        /* terminal: every choice has ended */
};
enum gen_channel { GEN_CONTENT = 0, GEN_REASONING };
enum gen_finish { GEN_FINISH_STOP = 0, GEN_FINISH_LENGTH, GEN_FINISH_TOOL_CALLS, GEN_FINISH_CANCELLED };

struct gen_token_info {
    int32_t id;
    float logprob;
    bool is_end;                    /* an end token: no text */
    int32_t n_top;
    int32_t top_id[SAMPLE_MAX_TOP];
    float top_logprob[SAMPLE_MAX_TOP];
};

/* Token fast-forwarding of one choice (API-180); on: the server has it switched on, for this request or not. */
struct gen_fill_counts {
    bool on;
    int32_t spans, tokens;           /* that came without a step of their own */
    int32_t proposed, accepted;      /* copied tokens: guessed; drawn so */
};

struct gen_event {
    enum gen_event_type type;
    int32_t i_choice;
    union {
        struct { int32_t n_prompt, n_cached; } start;
        struct { int32_t n_done, n_total; } progress;
        struct { enum gen_channel channel; struct str text; } text;        /* valid until the next gen_next */
        struct { const char *text; } warning;
        struct { struct str id, name, arguments;
                 bool partial;  /* cut off by a limit: arguments are the beginning of their JSON, as produced (B-058) */
               } tool;                                                      /* valid until the next gen_next */
        struct gen_token_info token;
        struct { int32_t index; int32_t target; float target_logprob; int32_t argmax; float argmax_logprob; } score;
        struct { enum gen_finish finish; int32_t n_completion, n_reasoning; const char *stop; /* matched string or NULL */
                 struct gen_fill_counts fill; } end;
        struct { mb_status status; const char *text; const char *at; } error;
    } u;
};

struct gen_stream; /* one running request; belongs to one consumer thread at a time */

/* Called (any thread, must not block) when a stream that was empty has an event; for what a step of the engine gave, once all of it is
 * there. It holds no lock; gen_close waits for it, so a consumer never closes a stream from inside it or with a lock that it takes. */
typedef void (*gen_notify_fn)(void *ctx);

/* Embeddings of texts or ids; borrowed while the call lasts. */
struct gen_embed_input { struct str text; const int32_t *ids; int32_t n_ids; }; /* ids NULL: the text */
struct gen_embed_request {
    const struct gen_embed_input *inputs;
    int32_t n_inputs;                /* >= 1 */
    struct str instruction;          /* ptr NULL: none; else "Instruct: ...\nQuery:" goes before each text */
    bool truncate;                   /* cut inputs that are too long; else they are refused by number */
    int32_t dimensions;              /* 0 = all */
    const char *adapter;
    bool (*gone)(void *ctx);         /* asked now and then: does nobody wait any more? NULL */
    void *gone_ctx;
};
struct gen_embeddings {
    float *values;                   /* [n][d], each of unit length; owned, gen_embeddings_free */
    int32_t n, d;
    int64_t n_tokens, n_cut;         /* computed; left out by truncate */
};
void gen_embeddings_free(struct gen_embeddings *e);
/* May an adapter have this name? MB_INVALID. */
mb_status gen_adapter_id_check(const char *id, mb_error *err);

/* What serves generation to host and api: in process today, over a socket under --isolate. */
struct engine_client {
    void *ctx;
    /* Check, prepare and queue. Fails at once for what can be known at once (MB_BUSY, MB_INVALID); everything later
     * arrives as GEN_EV_ERROR. notify may be NULL (the consumer waits with gen_next). */
    mb_status (*start)(void *ctx, const struct gen_request *r, gen_notify_fn notify, void *notify_ctx,
                       struct gen_stream **out, mb_error *err);
    /* Number of prompt tokens, without generating. */
    mb_status (*count)(void *ctx, const struct gen_request *r, int32_t *n, mb_error *err);
    void (*stats)(void *ctx, struct engine_stats *out);
    bool (*alive)(void *ctx);
    const struct gen_model_info *(*info)(void *ctx);
    /* Raw vocabulary piece of an id (API-118), NULL for none; valid while the engine lives. */
    const char *(*piece)(void *ctx, int32_t id, size_t *len);
    /* Ids of a text into the arena; text of ids appended to out. */
    mb_status (*tokenize)(void *ctx, struct str text, bool special, struct arena *a, int32_t **ids, int32_t *n,
                          mb_error *err);
    mb_status (*detokenize)(void *ctx, const int32_t *ids, int32_t n, bool skip_special, struct buf *out, mb_error *err);
    /* Embeddings; blocks. MB_INVALID on models that make none, MB_CONTEXT_LENGTH names the input. */
    mb_status (*embed)(void *ctx, const struct gen_embed_request *r, struct gen_embeddings *out, mb_error *err);
    /* Adapters (engine.h: engine_adapter_*); mounting blocks on disk. */
    mb_status (*adapter_mount)(void *ctx, const char *id, const char *path, struct engine_adapter_entry *out,
                               struct buf *problems, mb_error *err);
    mb_status (*adapter_unmount)(void *ctx, const char *id, mb_error *err);
    int32_t (*adapter_list)(void *ctx, struct engine_adapter_entry *out, int32_t cap);
    int32_t (*adapter_available)(void *ctx, struct engine_adapter_entry *out, int32_t cap); /* folders found; reads files */
};

struct gen_kv_layers { const char *name; int32_t n; }; /* a format of keys and values, static text; so many layers have it */

struct gen_model_info {
    const char *id;              /* shown in "model": repo id or the directory's base name (API-006, Q66) */
    const char *path;
    int32_t n_context;
    bool has_template, reasoning, vision;
    bool embeds, embeds_only;    /* /v1/embeddings answers; nothing else does (MOD-043, Q72) */
    const char *kv_mode;         /* "bf16", "uniform-kv8" ... for /stats.kv_quant.mode */
    struct gen_kv_layers kv_layers[8]; /* up to the first with n = 0 */
    int32_t n_layer_full, n_layer_window;
    const char *device;          /* "cpu avx2, 2 threads" */
    const char *tier;            /* "l1" */
    size_t weight_bytes, pool_bytes;
    size_t expert_cache_bytes;   /* memory for offloaded experts, beside weight_bytes; 0: none */
    int64_t created_unix_s;
    int32_t batch;
    int32_t reserved_context;    /* GLM-5.2: tokens that --context-length reserved (API-284); 0: another family */
};

/* Next event. wait_ms: 0 = do not wait, < 0 = for ever. Returns false when none came in time. Pointers in the event stay
 * valid until the next call. After GEN_EV_ERROR or GEN_EV_DONE no event follows. */
bool gen_next(struct gen_stream *s, int64_t wait_ms, struct gen_event *out);
/* The next event when it is text or a token, without waiting: what may be taken inside notify, by whoever is the consumer then; what
 * ends a stream stays. *more: other events are left. */
bool gen_next_text(struct gen_stream *s, struct gen_event *out, bool *more);
/* Stop early; events still queued are dropped, GEN_EV_DONE follows. Idempotent, any thread. */
void gen_cancel(struct gen_stream *s);
/* Release. Cancels if it still runs; the memory goes when the engine has let go of it. */
void gen_close(struct gen_stream *s);

/* --- the engine in this process --- */
struct gen_engine;
/* MLX_BUN_FILL ...; numbers below their floor (API-177, API-178) are raised to it. */
struct gen_fill_options {
    bool strict;                     /* what tools and template leave no choice about is put in (fill.c) */
    bool echo;                       /* and what stands in the conversation is guessed (echo.c) */
    int64_t max_span, anchor, candidates, index_max; /* 0: 32, 8, 24, 131072 */
};
struct gen_engine_options {
    const char *model_dir;
    const char *model_id;            /* NULL: derived from the directory */
    struct sampler_values server;    /* flags: --temperature ... */
    struct hlg_values hlg;           /* --hlg-sampling ... */
    int64_t max_tokens;              /* --max-tokens, < 0 = none */
    enum given_bool thinking;        /* --thinking */
    int n_prepare_workers;           /* 0 = 2 */
    int32_t prepare_queue;           /* 64 */
    int32_t ring_events;             /* events a stream may hold before its row is parked; 0 = 1024 */
    const char *default_adapter;     /* id for requests that name none; NULL */
    const char *cache_dir;           /* for tables of the tokenizer; NULL: none */
    bool no_grammar;                 /* MLX_BUN_GRAMMAR=0: constraints go into the prompt, with a warning (API-159) */
    struct gen_fill_options fill;
    bool grammar_jump;               /* MLX_BUN_GRAMMAR_JUMP: what a grammar leaves no choice about is guessed; same output */
};
/* Tokenizer, templates and generation_config.json of model_dir over a running engine (taken: closed with this). */
mb_status gen_engine_open(struct gen_engine **out, struct engine *engine, const struct gen_engine_options *opt,
                          const struct gen_model_info *info, mb_error *err);
void gen_engine_close(struct gen_engine *g, int64_t drain_ms);
struct engine_client gen_engine_client(struct gen_engine *g);
const struct tokenizer *gen_engine_tokenizer(const struct gen_engine *g);

/* Render and tokenise only (show-prompt, count). Arena memory. */
struct gen_prompt {
    char *text;                      /* rendered prompt; NULL for GEN_IDS */
    size_t len;
    struct origin_run *runs;         /* of text; n_runs 0 for raw text */
    size_t n_runs;
    int32_t *ids;
    int32_t n_ids;
    int32_t *marks;                  /* ends of messages as indices */
    int32_t n_marks;
    int start;                       /* enum reasoning_start: what the generation prompt ends in, e.g. an open thought (B-142) */
    bool closes_reasoning;           /* it holds a closed one: the model is told not to think */
};
mb_status gen_render(struct gen_engine *g, const struct gen_request *r, struct arena *a, struct gen_prompt *out,
                     mb_error *err);

/* The part of a gen_engine that renders, which can be opened alone: tokenizer, templates, special tokens and reasoning
 * markers of a model directory. Opens no weights. Read-only once open: any thread. */
struct gen_renderer;
mb_status gen_renderer_open(struct gen_renderer **out, const char *model_dir, const char *cache_dir, enum given_bool thinking,
                            mb_error *err); /* cache_dir: see gen_engine_options */
void gen_renderer_close(struct gen_renderer *t); /* NULL is allowed */
/* gen_render for it: the same prompt. */
mb_status gen_renderer_render(const struct gen_renderer *t, const struct gen_request *r, struct arena *a,
                              struct gen_prompt *out, mb_error *err);

#endif
