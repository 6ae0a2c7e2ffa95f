/* sample.h: what the sample step needs to know of one drawing position, and what it returns.
 *
 * engine/sampler.c fills struct sample_params from a request (the table of samplers lives there); the arithmetic is a
 * backend's: the order is that of mlx-lm, as docs/numerics.md section 5 writes it down:
 *   logits  -> bias, repetition, presence, frequency -> log-probabilities (taken here, full vocabulary)
 *           -> grammar mask -> HLG curve -> top-p -> min-p -> XTC -> top-k (each on untempered probabilities)
 *           -> temperature -> Gumbel-max draw over the survivors.
 * temperature 0: the argmax of the processed, masked logits. Ties: logit descending, id ascending, everywhere.
 */
#ifndef OPS_SAMPLE_H
#define OPS_SAMPLE_H

#include "base/status.h"

#define SAMPLE_MAX_TOP 20 /* top_logprobs kept per draw (the API allows 11) */

/* Purposes of random numbers; part of the Philox counter. */
enum noise_purpose { NOISE_DRAW = 0, NOISE_XTC = 1, NOISE_DRAFT = 2, NOISE_CANVAS = 3 };

/* Key of the noise of one draw: a function of the request alone, never of batch, slot or time. */
struct noise_key {
    uint64_t seed;
    uint32_t i_choice; /* 0 .. n-1 */
    uint32_t round;    /* 0; re-run rows (diffusion) count here */
};

struct logit_bias {
    int32_t id;
    float bias;
};

struct sample_params {
    float temperature;         /* 0 = greedy */
    float top_p;               /* 0 or >= 1 = off */
    float min_p;               /* 0 = off */
    int32_t min_keep;          /* min_p keeps at least so many (1) */
    int32_t top_k;             /* 0 = off */
    float xtc_probability;     /* 0 = off */
    float xtc_threshold;
    const int32_t *xtc_exempt; /* EOS and newline ids; borrowed */
    int32_t n_xtc_exempt;

    const struct logit_bias *bias; /* sorted by id; borrowed */
    int32_t n_bias;
    float repetition_penalty;      /* 1 or 0 = off */
    int32_t repetition_context;    /* last so many tokens; 0 = whole history */
    float presence_penalty;        /* 0 = off */
    int32_t presence_context;
    float frequency_penalty;       /* 0 = off */
    int32_t frequency_context;

    bool hlg;                      /* the tone curve over logits, spec ENG-080 */
    float hlg_width, hlg_shoulder, hlg_toe, hlg_pivot_offset; /* nats */

    bool ignore_eos;               /* end tokens are masked until min_tokens / always */
    int32_t min_tokens;            /* end ids are masked while fewer were drawn */
    const int32_t *end_ids;        /* borrowed */
    int32_t n_end_ids;

    int32_t n_top;                 /* top list wanted, 0 .. SAMPLE_MAX_TOP */
    bool no_logprobs;              /* nobody reads them (n_top is 0): a pass over the vocabulary less where no filter
                                      needs it; log-probabilities of the draw are then 0, the id is the same */
    int32_t n_vocab_live;          /* ids >= this are never drawn (padding of the head) */
    struct noise_key noise;
};

/* One drawing position of a row. */
struct sample_pos {
    const struct sample_params *params;
    const int32_t *history;  /* ids [0, n_history) of the sequence, this position's own id included; for penalties */
    int32_t n_history;
    int32_t n_drawn;         /* tokens drawn so far (min_tokens) */
    int32_t index;           /* sequence index of the token being drawn = n_history; keys the noise */
    const uint32_t *mask;    /* allowed-token bits [ceil(n_vocab/32)], NULL = all */
    int32_t target;          /* id whose log-probability is wanted too, -1 = none */
};

struct draw {
    int32_t id;              /* drawn id; -1 when non_finite */
    float logprob;           /* natural log, full vocabulary, after processors and before mask and samplers */
    float target_logprob;    /* of sample_pos.target */
    int32_t argmax;          /* of the processed logits (no mask) */
    float argmax_logprob;
    int32_t n_top;
    int32_t top_id[SAMPLE_MAX_TOP];
    float top_logprob[SAMPLE_MAX_TOP];
    bool non_finite;         /* a NaN or +inf among the logits: nothing was drawn (B-028) */
    bool no_candidate;       /* mask and bias leave nothing to draw */
};

#endif
