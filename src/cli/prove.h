/* prove.h: the pieces of `mlx-bun prove`: cmd_prove.c decides which lines there are and prints them, prove_run.c opens
 * engines, runs the request and its strangers, and keeps what was drawn.
 */
#ifndef CLI_PROVE_H
#define CLI_PROVE_H

#include "cli/cli.h"

#define PROVE_PROMPT 150  /* ids: more than two pages and not a multiple of any chunk */
#define PROVE_STRANGERS 8      /* most beside the request on a CPU */
#define PROVE_STRANGERS_GPU 63
#define PROVE_DEVICE 64        /* bytes of a device's name */

/* How a line differs from the reference. */
struct prove_setup {
    int32_t n_threads;        /* 0 = default */
    const char *cpu_level;    /* NULL = best */
    const char *device;       /* NULL = as the flags say */
    int32_t prefill_chunk;    /* 0 = default */
    int32_t n_strangers;      /* running beside the request */
    bool prompt_cache;
    uint64_t kv_budget_bytes; /* 0 = no limit */
    int32_t stranger_tokens;  /* each draws so many; 0 = until the request has ended */
};

struct prove_token { int32_t id; uint32_t logprob_bits; };

/* What one run drew: half the tokens at temperature 0, half at 0.8 with a seed, one after the other. */
struct prove_result {
    struct prove_token *token; /* [2 * n_each] owned */
    int32_t n_each;
    int32_t n_cached;          /* prompt tokens that came from the cache, of the last run */
    uint64_t n_preempted;      /* how often the request lost its pages and came back */
};

struct prove {
    const struct flags *flags;
    const char *path;
    int32_t *ids;              /* PROVE_PROMPT, and more for strangers; owned */
    int32_t n_ids, n_prompt;
    int32_t n_context;
    char device[PROVE_DEVICE]; /* as the flags say: "cpu", "cuda", "cuda:0,1" */
    bool on_gpu;
    int32_t max_strangers;
};

/* Tokens of the fixed text with the model's tokenizer, and its context. Releases nothing on failure: call prove_free. */
mb_status prove_init(struct prove *p, const struct flags *f, const char *path, mb_error *err);
void prove_free(struct prove *p);
mb_status prove_open(const struct prove *p, const struct prove_setup *s, mb_engine **out, mb_error *err);
/* Draw n_each tokens twice. out->token is allocated here; release with prove_result_free. */
mb_status prove_run(const struct prove *p, mb_engine *e, const struct prove_setup *s, int32_t n_each, struct prove_result *out,
                    mb_error *err);
void prove_result_free(struct prove_result *r);
uint64_t prove_digest(const struct prove_result *r);
/* Do both halves of got equal the first tokens of the halves of ref? */
bool prove_same(const struct prove_result *ref, const struct prove_result *got);
/* Smallest KV budget whose empty pool holds one sequence of n_tokens; 0 when there is none. */
uint64_t prove_budget_for(const struct prove *p, int32_t n_tokens);

#endif
