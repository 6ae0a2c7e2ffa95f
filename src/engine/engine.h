/* engine.h: the engine: one thread that owns all model state, admits jobs, batches their rows, delivers what they draw.
 *
 * A job is plain data plus a filter: ids in, verdicts out. The engine knows no text, no JSON, no HTTP.
 * Files: kv.c (pool, chunks, pages), prefix_tree.c, sequence.c (one row source: ids, tables, sampler state),
 * scheduler.c (step loop), admit.c, deliver.c, sampler.c (the sampler table: parameters to sample_params), method.c
 * (autoregressive, score ...), method_diffusion.c, scripted.c, stats.c.
 *
 * Threads: engine_submit, engine_cancel, engine_stats from any thread; filter callbacks run on the engine thread, in
 * order, must not block and must not call back into the engine except engine_cancel.
 * Determinism: what a job draws is a function of the job and the model alone (docs/numerics.md).
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/mem.h"
#include "engine/stepper.h"
#include "model/adapter.h"
#include "ops/ops.h"

struct engine; /* opaque */

struct engine_options {
    int32_t batch;               /* --batch: sequences decoded together, >= 1 */
    int32_t queue_max;           /* waiting jobs, else MB_BUSY (ENG-043: 64) */
    size_t pool_bytes;           /* KV pool, fixed at load; 0 = what the steppers' kinds need for one context */
    size_t prompt_cache_bytes;   /* tree leaves in the pool, at most; 0 = off (--prompt-cache) */
    int32_t prefill_chunk;       /* largest chunk of one row, default 2048 (CFG-033); no effect on bits */
    double prefill_share;        /* time share rule: prefill of a step takes at most max(share * decode step, 20 ms); 3 */
    int64_t client_timeout_ms;   /* a parked row is cancelled after so long (--client-timeout, 60 s) */
};

/* Why a sequence ended. */
enum end_reason { END_NONE = 0, END_EOS, END_STOP, END_LENGTH, END_CONTEXT, END_CANCELLED, END_ERROR };

/* What a filter says of a drawn token. */
enum verdict {
    VERDICT_GO = 0,  /* go on */
    VERDICT_STOP,    /* this sequence is done (a stop string); nothing more is drawn (ENG-002) */
    VERDICT_FAIL,    /* the filter failed: end with END_ERROR */
    VERDICT_PARK     /* the consumer is slow: leave the batch until engine_unpark */
};

/* Callbacks of a job; ctx is the caller's. Called on the engine thread. */
struct job_filter {
    void *ctx;
    /* Admitted: prompt tokens, and how many came from the prefix cache. Once, before the first draw. */
    void (*on_start)(void *ctx, int32_t n_prompt, int32_t n_cached);
    /* Prefill went forward (for keep-alive comments). May be NULL. */
    void (*on_progress)(void *ctx, int32_t n_done, int32_t n_total);
    /* One drawn token of choice i_choice. An end token is passed too, with is_end (it has no text). */
    enum verdict (*on_token)(void *ctx, int32_t i_choice, const struct draw *d, bool is_end);
    /* A scored position (score jobs): index of the predicted id. */
    void (*on_score)(void *ctx, int32_t index, const struct draw *d);
    /* Choice i_choice has ended. status != MB_OK only with END_ERROR; text says why. */
    void (*on_end)(void *ctx, int32_t i_choice, enum end_reason reason, mb_status status, const char *text);
    /* The engine holds nothing of this job any more: the last call, always made exactly once after a successful
     * engine_submit. The job's memory may be freed. */
    void (*on_done)(void *ctx);
    /* Nothing more is told for now: what a step gave has been told. Only behind on_token, once or oftener. May be NULL. */
    void (*on_told)(void *ctx);
};

struct index_mark { int32_t index; }; /* where a snapshot is worth taking (ends of system part and messages) */

/* JOB_EMBED: the final norm's output at the last token of the prompt (embeddings). Nothing is drawn; it takes rows beside
 * the batch, so it waits behind no generation (API-259). */
enum job_method { JOB_GENERATE = 0, JOB_SCORE, JOB_EMBED,
                  JOB_DIFFUSE }; /* what a model with canvases does, and all it does: blocks of tokens, one sequence at a time */
enum { ENGINE_EMBED_ROWS = 8, ENGINE_EMBED_QUEUE = 256 }; /* embedding jobs computed together; waiting, else MB_BUSY */

/* What a job thinks comes next (jump-forward, fill). Either guesses: each is drawn like any token, all in one row, and kept
 * as far as the draws say the same, so that what comes out is what would have come out without them. Or text that is put
 * in as it is (`sure`): nothing is drawn for it. */
enum { ENGINE_AHEAD_MAX = 32 };
struct job_ahead {
    int32_t n;                                /* 0: nothing; at most n_max */
    bool sure;
    int32_t ids[ENGINE_AHEAD_MAX];
    const uint32_t *masks[ENGINE_AHEAD_MAX];  /* guesses: what may be drawn behind ids[j]; NULL = all */
};

/* One unit of work. Owned by the caller and unchanged from engine_submit to on_done. */
struct engine_job {
    enum job_method method;
    const int32_t *ids;           /* prompt */
    int32_t n_ids;                /* >= 1 */
    const uint64_t *symbols;      /* [n_ids] cache symbols where they differ from ids (media); NULL = the ids */
    const struct embed_span *embeds;    /* prompt-relative */
    int32_t n_embeds;
    const struct index_span *two_way;
    int32_t n_two_way;
    const int32_t *marks;         /* snapshot indices, rising */
    int32_t n_marks;
    int32_t n_choices;            /* >= 1: forks after one prefill */
    int32_t max_tokens;           /* drawn tokens a choice; < 0 = none (clamped to the window) */
    struct sample_params params;  /* noise.i_choice is set per choice by the engine; JOB_DIFFUSE: temperature is times the
                                     schedule's, 0 = no draws but best ids */
    const int32_t *end_ids;       /* stop generation; empty = none */
    int32_t n_end_ids;
    bool ignore_eos;              /* end ids do not stop */
    struct adapter_handle *const *adapters; /* in stack order */
    int32_t n_adapters;
    uint64_t cache_key;           /* hash of everything besides identity and adapters that separates caches; 0 */
    bool no_cache;                /* neither read nor publish prefixes */
    int32_t n_score_from;         /* JOB_SCORE: first position whose prediction of the next id is reported */
    float *hidden;                /* JOB_EMBED: [d_model], written before on_end; the caller's */
    /* Constraint (grammar): bits for the next draw of a choice, NULL = all. Runs off the step where it can. */
    const uint32_t *(*next_mask)(void *ctx, int32_t i_choice);
    /* May be NULL. Asked when the next token is drawn from one known id, before next_mask; ids: all so far. Tokens that were
     * put in are told with on_token like drawn ones, before the next that is drawn; it is not asked again until they are. */
    void (*ahead)(void *ctx, int32_t i_choice, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out);
    void (*guessed)(void *ctx, int32_t i_choice, int32_t n); /* so many of those guesses are computed; not called for none. May be NULL */
    struct job_filter filter;
    char trace_id[64];
    int64_t t_received_ns;        /* clock_now_ns when the request came in; for stats */
};

mb_status engine_open(struct engine **out, const struct stepper *stepper, const struct engine_options *opt,
                      mb_error *err);   /* takes the stepper (closed with the engine), also on failure */
/* Stop: no new jobs, running ones get drain_ms to finish, the rest END_CANCELLED; joins the thread. */
void engine_close(struct engine *e, int64_t drain_ms);

/* Queue a job. *id receives its number. MB_BUSY (queue full), MB_CONTEXT_LENGTH and MB_CONTEXT_OVER_BUDGET (with both
 * counts), MB_INVALID, MB_ENGINE_DEAD, MB_NO_MEMORY; then no callback is ever made. */
mb_status engine_submit(struct engine *e, const struct engine_job *job, uint64_t *id, mb_error *err);
/* Ends within two steps with END_CANCELLED. Unknown ids are ignored. Any thread, a filter included. */
void engine_cancel(struct engine *e, uint64_t id);
/* The consumer has room again. */
void engine_unpark(struct engine *e, uint64_t id);

/* --- adapters (adapter.c): names for loaded LoRA adapters; any thread --- */
enum { ENGINE_MAX_ADAPTERS = 64, ENGINE_ADAPTER_ID_BYTES = 136 };
#define ENGINE_ADAPTER_BYTES ((size_t)4 << 30) /* of all mounted together */

struct engine_adapter; /* opaque */
struct engine_adapter_entry { char id[ENGINE_ADAPTER_ID_BYTES], path[1024]; struct adapter_info info; };
/* What a job holds from before engine_submit until after on_done, so that nothing of it can go away meanwhile. */
struct adapter_pin {
    struct adapter_handle *handles[PLAN_MAX_STACK]; /* for engine_job.adapters */
    struct engine_adapter *held[PLAN_MAX_STACK];
    int32_t n;
};
/* Load and name an adapter; one of that name is replaced in one go, jobs that hold it keep it. Blocks on disk. problems:
 * see adapter_load. Its errors, and MB_TOO_LARGE, MB_UNSUPPORTED; then nothing has changed. */
mb_status engine_adapter_mount(struct engine *e, const char *id, const char *path, struct engine_adapter_entry *out,
                               struct buf *problems, mb_error *err);
mb_status engine_adapter_unmount(struct engine *e, const char *id, mb_error *err); /* MB_NOT_FOUND */
int32_t engine_adapter_list(struct engine *e, struct engine_adapter_entry *out, int32_t cap);
/* What a folder holds, by its configuration and header; its id is its last part. */
mb_status engine_adapter_peek(const char *path, struct engine_adapter_entry *out, mb_error *err);
/* All of these names, in stack order, or none: *missing is then the first that is not mounted (or beyond the stack). */
bool engine_adapter_pin(struct engine *e, const char *const *ids, int32_t n, struct adapter_pin *out, int32_t *missing);
void engine_adapter_unpin(struct engine *e, struct adapter_pin *pin);

struct engine_stats {
    int32_t batch, active_rows, pending_rows, parked_rows;
    uint64_t submitted, finished, cancelled, failed, rejected, preempted;
    uint64_t steps, tokens_decoded, tokens_prefilled, tokens_cached;
    size_t pool_bytes, pages_held_bytes, pages_cached_bytes, pages_free_bytes, kv_bytes_active;
    int64_t n_pages_held, n_pages_cached;
    int64_t cache_entries;
    size_t cache_bytes, cache_max_bytes;
    uint64_t cache_hits, cache_misses;
    uint64_t n_guessed, n_guesses_kept, n_put_in; /* tokens of job_ahead */
    double decode_tokens_per_s, prefill_tokens_per_s;   /* of the last seconds */
    double ttft_ms_mean, itl_ms_mean;
    uint64_t n_alone;            /* steps of one request alone that drew one token: */
    double alone_tokens_per_s;   /* their rate */
    int32_t alone_context;       /* and the mean index of those tokens; 0 without any */
    int32_t max_safe_context;    /* tokens that fit the empty pool */
    struct ops_expert_stats experts; /* n_slots 0: none are offloaded */
    bool alive;
    int64_t heartbeat_age_ms;
};
void engine_stats_get(struct engine *e, struct engine_stats *out);
/* True while the engine thread runs (B-106). */
bool engine_alive(struct engine *e);
const struct stepper_info *engine_info(const struct engine *e);
/* Drop every cached prefix (gc, tests). Waits until done. */
void engine_cache_clear(struct engine *e);

/* --- scripted stepper: forced tokens, for tests of everything above the model --- */
struct scripted_counters {       /* written by the engine thread, read by a test after the engine has rested */
    uint64_t n_submits, n_rows, n_tokens, n_draws, n_copies, n_violations;
    int32_t max_rows, max_tokens;
    char violation[256];         /* the first one, in words */
};
struct scripted_options {
    int32_t n_vocab, n_context, m_max, n_rows_max;
    const int32_t *script;       /* forced ids for each draw, in order of the token's index after the prompt; a choice
                                    or a second request starts again at 0; after the end: end_id */
    int32_t n_script;
    int32_t end_id;
    int64_t step_delay_ms, prefill_delay_ms_per_1k;
    /* All of the rest may stay zero. */
    const struct kv_kind *kinds; /* borrowed; page_bytes >= SCRIPTED_PAGE_BYTES. The stepper then keeps a record of
                                    each token in its page and checks on every row that all visible keys are those of
                                    this sequence, that tables and indices fit and that no freed page is read */
    int32_t n_kinds;
    bool async;                  /* behave as a backend that keeps one step in flight */
    bool early;                  /* wants pages a token early */
    bool hash_draws;             /* no script: each id is a function of all earlier ids (read from the pages), seed and
                                    choice, in [0, n_vocab); a wrong page changes what is drawn. Never end_id unless
                                    the history says so once in hash_end_every draws (0 = never) */
    int32_t hash_end_every;
    bool poison;                 /* id poison_id makes this and every later draw of its sequence non-finite */
    int32_t poison_id;
    uint64_t identity;           /* root of cache keys */
    struct scripted_counters *counters;                                   /* borrowed, NULL = none */
    void (*on_batch)(void *ctx, const struct row *rows, int32_t n_rows);  /* sees each batch at submit */
    void *on_batch_ctx;
};
#define SCRIPTED_PAGE_BYTES 1024
mb_status stepper_scripted(struct stepper *out, const struct scripted_options *opt, mb_error *err);

#endif
