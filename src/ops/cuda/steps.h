/* steps.h: the small kernels of the CUDA backend behind a plain C interface: norms, rotation and the writing of keys and
 * values, gated activations, rows gathered, adapters, the end of a linear, draws. kernels.h has the products and attention.
 *
 * Every launcher queues work on a stream and returns 0 or an error code. Like those of kernels.h they may be launched before the
 * kernel ahead of them has ended (ck_ctx.pdl) and wait for it before they touch memory. Device memory unless it says host; nothing is
 * allocated, nothing waits. Float matrices are [rows][ld] with ld in floats.
 * Numbers: docs/cuda.md. Every output row depends on its own row alone, in an order given by the width alone.
 */
#ifndef OPS_CUDA_STEPS_H
#define OPS_CUDA_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = norm(in) (identity: in): each of the n_pieces vectors of a row by itself. With a bias a layer norm: the mean is taken off
 * before, the bias added behind.
 * Then, in this order: add_to += y, times sum_scale (0: no product); out = y; copy = y; x = y as a linear input. */
struct cs_norm {
    const float *in;
    int64_t ld_in;
    int32_t m, width, n_pieces;
    const float *weight;        /* [width / n_pieces] or NULL */
    const float *bias;          /* the same; NULL = an RMS norm */
    float eps;
    int32_t identity;
    float *add_to;              /* NULL = none */
    int64_t ld_add;
    float sum_scale;
    float *out, *copy;          /* NULL = none */
    int64_t ld_out, ld_copy;
    const struct ck_x *x;       /* host struct; NULL = none */
};
int cs_norm(const struct ck_ctx *c, const struct cs_norm *a, cudaStream_t st);

/* act(gate) * up: kinds as plan.h (0 silu, 1 gelu tanh, 2 clamped swiglu). out may be gate. */
struct cs_glu {
    const float *gate, *up;     /* up NULL: act(gate) alone */
    int64_t ld_gate, ld_up;
    int32_t m, width, kind;
    float *out;                 /* NULL = none */
    int64_t ld_out;
    const struct ck_x *x;       /* host struct; NULL = none */
};
int cs_glu(const struct ck_ctx *c, const struct cs_glu *a, cudaStream_t st);

/* The output of attention through its gate: y = out / (1 + exp(-gate)), back to out and to x. Head h of the gate begins at
 * column gate_first + h * gate_step. */
struct cs_gate {
    float *out;
    const float *gate;
    int64_t ld_out, ld_gate;
    int32_t m, n_head, head_dim, gate_first, gate_step;
    const struct ck_x *x;
};
int cs_gate(const struct ck_ctx *c, const struct cs_gate *a, cudaStream_t st);

/* Heads of q to q' (norm, rotation, scale), heads of k and v (norm, rotation; norm without weights) into their pages. */
struct cs_rope {
    const float *q, *k, *v;     /* k NULL: no keys of its own */
    int64_t ld_q, ld_k, ld_v, q_step;
    float *out;                 /* [m][n_head * head_dim] */
    int64_t ld_out;
    int32_t m, n_head, n_head_kv, head_dim;
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    float norm_eps, q_scale;
    const float *q_more;        /* [m] another factor of each token's queries; NULL = none */
    int32_t v_norm;
    const float *table;         /* [m][n_rot] cosines then sines of each token; NULL: no rotation */
    int32_t n_rot, interleaved;
    void *pool;                 /* page p at p * 4096 bytes */
    const int32_t *pages;       /* page ids of all rows */
    const int32_t *table_of;    /* [m] where the token's row begins in pages */
    const int32_t *index;       /* [m] of the token in its sequence */
    int64_t head_off;           /* bytes from a page's beginning to K of head 0 */
    int32_t kv_format;          /* enum ck_kv */
};
int cs_rope(const struct ck_ctx *c, const struct cs_rope *a, cudaStream_t st);
/* cs_rope, then ck_attend over the pages it wrote (a->q is r->out), for a batch whose rows are single tokens, each of a sequence of
 * its own (unit i of a->small_units is token i): one launch where there is a form for it (which leaves r->out alone), two elsewhere. The same bits. */
int cs_rope_attend(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st);

/* Copies bytes, rounded up to 16, from pinned memory of the host without the copy engine, which a short step waits for; both sides
 * begin at a multiple of 16. */
int cs_fetch(const struct ck_ctx *c, void *dst, const void *src, size_t bytes, cudaStream_t st);

/* out[i] = in[rows[i]] */
int cs_gather_rows(const struct ck_ctx *c, const float *in, int64_t ld_in, const int32_t *rows, int32_t n, int32_t width, float *out, int64_t ld_out,
                   cudaStream_t st);

/* --- adapters. Stack s of token i is stack[i * stack_max + s]: the modules of an adapter on the device, or NULL. --- */
struct cs_lora_module {
    const float *a, *b;         /* [rank][k], [rank][n], scale folded into b */
    int32_t rank;               /* 0: none */
};
struct cs_lora {
    const struct cs_lora_module *const *stack;
    const int32_t *token_of;    /* [m] NULL: row i is token i */
    int32_t stack_max, i_module, m, rank_max;
    const float *x;             /* the linear's input as floats */
    int64_t ld_x, k, n;
    float *u;                   /* [m][stack_max][rank_max] */
    float *y;                   /* [m][ld_y]: y += B u, adapters in stack order */
    int64_t ld_y;
};
int cs_lora_apply(const struct ck_ctx *c, const struct cs_lora *a, cudaStream_t st);

/* What ck_linear does behind product and bias: v = y, times scale, soft cap; then out = v or out += v. */
int cs_linear_finish(const struct ck_ctx *c, const float *y, int64_t ld_y, int32_t m, int64_t n, float scale, float softcap, float *out, int64_t ld_out,
                     int add, cudaStream_t st);

/* --- gated delta nets: plan.h's STEP_DELTA over the rows of the batch (docs/numerics.md, section 4a) --- */

struct cs_row {                 /* a row of the batch */
    int32_t token0, n, i_first, state_page;
};
struct cs_delta_part {          /* key head h begins at v + h * step */
    const float *v;
    int64_t ld, step;
};
struct cs_delta {
    struct cs_delta_part q, k, x, z, b, a; /* x: v of the plan */
    const float *conv, *decay, *dt_bias, *norm;
    float norm_eps, qk_eps;
    int32_t n_head_k, n_head_v, dim_k, dim_v, n_conv, n_rows;
    const struct cs_row *rows;
    void *pool;                 /* page p at p * 4096 bytes */
    int64_t state_off;          /* bytes from a page's beginning to this layer's state: [n_head_v][dim_k][dim_v], tail */
    float *out;                 /* [m][n_head_v * dim_v] */
    int64_t ld_out;
};
int cs_delta(const struct ck_ctx *c, const struct cs_delta *a, cudaStream_t st);

/* --- mixtures of experts --- */

/* Router logits of m tokens -> out: [top_k] ids rising, [top_k] weights; plan.h's STEP_ROUTE. And the list of who goes where. */
enum { CS_ROUTE_SOFTMAX_ALL = 0, CS_ROUTE_SOFTMAX_CHOSEN, CS_ROUTE_SIGMOID }; /* as plan.h's route_kind */
struct cs_route {
    const float *in;
    float *out;
    int64_t ld_in, ld_out;
    int32_t m, n_expert, top_k, kind, normalise;
    const float *expert_scale;  /* [n_expert] or NULL */
    const float *choice_bias;   /* SIGMOID: [n_expert] or NULL */
    int32_t n_group, n_group_used;
    float scale;                /* SIGMOID */
    struct ck_expert_list list;
};
int cs_route(const struct ck_ctx *c, const struct cs_route *a, cudaStream_t st);

/* The rows of a linear input in CK_X_TILES by piece, a block of tokens each; host structs. */
int cs_gather_pieces(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *in, const struct ck_x *out, cudaStream_t st);
/* The sums of ck_experts_down's y [slot][ld_y] (kernels.h: struct ck_expert_sum). */
int cs_experts_sum(const struct ck_ctx *c, const struct ck_expert_sum *a, const float *y, int64_t ld_y, int32_t m, int32_t top_k, int32_t width,
                   cudaStream_t st);

/* --- several ranks: columns that were computed apart come together. Parts may lie on another card that this one reaches --- */

#define CS_RANKS_MAX 8
/* Tell every rank that this one is here, and wait until all are: what was enqueued before on their streams can then be read.
 * flags[r]: memory of rank r, [CS_RANKS_MAX] counters of who has come to it how often, and one more of its own; zeroed once. */
struct cs_meet {
    int32_t rank, n;
    uint32_t *flags[CS_RANKS_MAX];
    const volatile uint32_t *given_up; /* host memory: not 0 = nobody will come any more */
};
int cs_meet(const struct ck_ctx *c, const struct cs_meet *a, cudaStream_t st);

struct cs_join {                /* out[token][first[r] + i] = or += part r [token][i], i < n[r] */
    float *out;
    int64_t ld_out;
    int32_t m, n_parts, add;
    const float *part[CS_RANKS_MAX];
    int64_t ld[CS_RANKS_MAX];
    int32_t first[CS_RANKS_MAX], n[CS_RANKS_MAX]; /* rising, without gaps among those with n > 0 */
};
int cs_join(const struct ck_ctx *c, const struct cs_join *a, cudaStream_t st);

struct cs_join_input {          /* the same for linear inputs: all of one layout and mul; columns from the last part to out.k_pad are zeros */
    struct ck_x out;
    int32_t m, n_parts;
    struct ck_x part[CS_RANKS_MAX]; /* k: columns, 0 = none; even */
    int32_t first[CS_RANKS_MAX];
};
int cs_join_input(const struct ck_ctx *c, const struct cs_join_input *a, cudaStream_t st);

/* The same in one launch for few tokens, of floats or of linear inputs in rows: every rank writes its part into the others' memory,
 * 8 bytes and the number of the exchange beside them in each packet, and takes theirs from its own as they come. Every rank
 * sends something (units > 0), so it is a meeting too: nobody ends before all have begun, and nobody is two exchanges ahead, which would
 * write over what has not been read. Units of 8 bytes: 2 floats, 4 values of an input. Ranks call it the same number of times. */
struct cs_trade {
    int32_t rank, n, m, add;
    int32_t index;                  /* exchanges since the last cs_trade_end: part of the number */
    const void *part;               /* this rank's, [m][ld_part] */
    void *out;                      /* [m][ld_out] */
    int64_t ld_part, ld_out;
    int32_t first[CS_RANKS_MAX], units[CS_RANKS_MAX];
    int32_t end, n_pad;             /* where the last part ends; zeros behind it */
    void *inbox[CS_RANKS_MAX];      /* of each rank: CS_TRADE_HEAD bytes, then 2 x n x `room` packets of 16 bytes; zeroed once */
    int32_t room;                   /* at least m x the most units */
    const volatile uint32_t *given_up; /* as in cs_meet */
};
#define CS_TRADE_HEAD 64
int cs_trade(const struct ck_ctx *c, const struct cs_trade *a, cudaStream_t st);
/* An exchange of floats and the norm of what comes of it (n->in is a->out; only n->x is written), in one launch: the bits of cs_trade, then
 * cs_norm. For rows of up to CS_TRADE_NORM_MAX. All ranks call it for the same exchange. */
#define CS_TRADE_NORM_MAX 16384
int cs_trade_norm(const struct ck_ctx *c, const struct cs_trade *a, const struct cs_norm *n, cudaStream_t st);
/* Behind `n` exchanges, on every rank: the next one's index is 0 again. */
int cs_trade_end(const struct ck_ctx *c, void *inbox, int32_t n, cudaStream_t st);

/* --- draws --- */

#define CUDA_MAX_HIDDEN 8
struct cuda_draw_job {          /* one drawing position */
    uint32_t seed_lo, seed_hi, index, choice, round; /* of the noise; choice holds the purpose too */
    float inv_temperature;      /* 0 = greedy */
    int32_t n_live;             /* ids >= this are never drawn */
    int32_t wants_sum;          /* log-probabilities are read */
    int32_t n_hidden, hidden[CUDA_MAX_HIDDEN]; /* ids that are not drawn unless nothing else is left */
    int32_t on_host;            /* not for the device */
};
enum cuda_draw_state { CUDA_DRAW_OK = 0, CUDA_DRAW_NON_FINITE, CUDA_DRAW_NO_CANDIDATE, CUDA_DRAW_HOST /* the host must draw */ };
struct cuda_draw_out {
    int32_t id, argmax;
    float logprob, argmax_logprob;
    int32_t state;
};
size_t cs_sample_scratch_bytes(int32_t n_vocab, int32_t n_draw);
struct cs_draws {
    const float *logits;        /* [n_draw][ld] */
    int32_t n_vocab, n_draw;
    int64_t ld;
    const struct cuda_draw_job *jobs; /* [n_draw] */
    struct cuda_draw_out *outs; /* [n_draw], pinned memory of the host: the device writes it where the host reads; from *slot * slot_step on */
    const int32_t *slot;        /* NULL: 0 */
    int32_t slot_step;
    int32_t *ids;               /* [n_draw] the drawn ids once more, for a step that begins before the host knows them; NULL = none */
    void *scratch;              /* cs_sample_scratch_bytes */
};
int cs_sample(const struct ck_ctx *c, const struct cs_draws *a, cudaStream_t st);

#ifdef __cplusplus
}
#endif
#endif
