/* plan.h: the forward pass as data: a flat list of semantic steps over named buffers, made once at load.
 *
 * model/plan.c writes it from a model_spec; a backend compiles it once (ops.h) and runs ranges of it. Nothing above a
 * backend calls a step by itself. A step says *what* (norm, linear group, attend ...); how a linear input is stored,
 * how a weight is packed, which neighbours are fused, and how work is cut over threads or ranks is the backend's.
 *
 * Buffers have one row per token of the batch (per_draw: one per drawing position). A "linear input" buffer (BUF_ACT)
 * is opaque to everybody but the backend: it holds the same values as a float buffer, in the form in which the
 * linears that read it want them (tier and group). A norm writes one linear input per distinct (form, group) among its
 * readers. Unused parts of a step cost nothing: taps, adapters, host points.
 *
 * Ranges: plan_run(first, last) runs between layer edges; layer_first[i] is the first step of layer i, and
 * `boundary[]` lists the buffers that are alive at a layer edge (residual, donor K/V read later, constants): what a
 * pipeline stage, a segmented backward or an offloaded layer must keep.
 */
#ifndef OPS_PLAN_H
#define OPS_PLAN_H

#include "format/quant.h"
#include "ops/row.h"

enum fidelity_tier { TIER_L1 = 0, TIER_L2, TIER_F32 };

enum buf_type {
    BUF_F32, /* [rows][width] float */
    BUF_ACT  /* [rows] linear inputs of `width` values, quantisation group `group` (0: floats) */
};
struct plan_buf {
    const char *name;   /* static: "residual", "q", "attn_in" ... */
    enum buf_type type;
    bool per_draw;      /* rows are drawing positions, not tokens */
    int32_t width;
    int32_t group;      /* BUF_ACT: group of the weights that read it; 0 = they take floats */
    int16_t device;     /* 0 .. n_rank-1 or -1: on every rank alike */
    int32_t n_slots;    /* rows of a token, one for each of its experts; 0 = 1 */
    int16_t copy;       /* BUF_ACT: float buffer that gets the same values for tokens with adapters, which read their input
                           as floats; a buffer whose own values nobody needs any more at that point. -1 = none */
};
typedef int16_t buf_id; /* -1 = none */

enum step_op {
    STEP_EMBED,   /* ids -> out: row of the table * scale; embed spans override, but in per-layer inputs */
    STEP_NORM,    /* RMS norm or layer norm of `in`; writes float and/or linear inputs, or adds to the residual */
    STEP_LINEAR,  /* one linear input, up to PLAN_MAX_PARTS weights that share it */
    STEP_ROPE_KV, /* q, k, v -> normalised, rotated q' in `out`; K and V written to their page */
    STEP_ATTEND,  /* q' against the pages -> out */
    STEP_HEADS,   /* a matrix for each head: its columns of `in` -> its columns of out */
    STEP_LATENT,  /* latent attention: rotated, scaled q' in `out`; the token's latent (and the indexer's key) to its page */
    STEP_INDEX,   /* the indexer: which keys each token sees, where it does not see all */
    STEP_DELTA,   /* gated delta net: short convolution, recurrence over the sequence's state, gated norm -> out */
    STEP_GLU,     /* act(gate) * up, or act(gate), -> outs */
    STEP_ROUTE,   /* router logits -> which experts a token goes to, and their weights */
    STEP_EXPERTS, /* a linear input through the chosen experts' gated MLPs, summed by weight */
    STEP_DRAWS,   /* copy the rows that draw: in [tokens] -> out [draws] */
    STEP_SAMPLE,  /* logits -> draws */
    STEP_SIGNAL,  /* canvases: what the round before expects (canvas_pass.signal) -> out; zeros without */
    STEP_EXPECT   /* canvases: logits -> expected embeddings and entropies (canvas_pass); the logits stay */
};

#define PLAN_MAX_PARTS 4 /* weights of one linear group */
#define PLAN_MAX_OUTS 5  /* linear inputs that one step writes: one for each group (0, 16, 32, 64, 128) */
#define PLAN_MAX_BUFS 64
#define PLAN_MAX_BOUNDARY 8

/* Softmax over all experts, of which the best are taken; or over the logits of the best alone; or the sigmoid of each logit, of
 * which the best after a bias are taken, in the best groups of experts. The best: by value descending, then id ascending. */
enum route_kind { ROUTE_SOFTMAX_ALL = 0, ROUTE_SOFTMAX_CHOSEN, ROUTE_SIGMOID };
enum glu_kind { GLU_SILU = 0, GLU_GELU_TANH, GLU_SWIGLU_CLAMPED };

#define SPLIT_WHOLE (-1) /* every rank has all rows: a table whose rows are read */
#define SPLIT_NEVER (-2) /* no rank can have a part: experts, recurrent layers, latents */

/* A packed weight, owned by the backend that packed it. n, k are public; the rest is the backend's. Where weights may
 * be offloaded, a backend acquires and releases it around the step that uses it. */
struct weight {
    int64_t n, k;
    int32_t group;      /* of the checkpoint's quantisation; 0: floats */
    int32_t i_module;   /* number of the linear in the model: what adapters, taps and calibration name; -1 = none */
    int32_t split;      /* rows that several ranks keep together (a KV head's); 0: any 16; SPLIT_WHOLE, SPLIT_NEVER */
    const char *name;   /* checkpoint path without ".weight", owned by the model */
    void *impl;         /* backend's */
};

/* Where a float intermediate may be copied to (LoRA input, calibration, drafters, embeddings). NULL = no tap. */
struct plan_tap {
    const char *name;
    float *dst;         /* [m_max][width], set before submit */
    int32_t width;
};

struct rope_spec {
    int32_t n_rot;       /* rotated dims of a head, even; 0 = none */
    bool interleaved;    /* pairs (2i, 2i+1) instead of (i, i + n_rot/2) */
    const float *table;  /* [n_position][n_rot]: n_rot/2 cosines then n_rot/2 sines, attention factor folded in;
                            owned by the model; a function of position alone */
    int32_t n_position;
};

#define PLAN_DELTA_TAPS 16 /* of the convolution of a gated delta net, at most */
/* Where a projection of the gated delta net lies: what belongs to key head h begins at column first + h * step. */
struct delta_part {
    buf_id buf;
    int32_t first, step;
};

struct plan_step {
    enum step_op op;
    int16_t i_layer;      /* -1 outside layers */
    bool host_point;      /* the run may return to the host here; a captured graph ends here. STEP_EXPERTS: they are offloaded */
    bool post_add;        /* STEP_NORM: the result is added to `add_to` */
    buf_id in;            /* main input */
    buf_id out;           /* main float output, -1 = none */
    buf_id outs[PLAN_MAX_OUTS]; /* linear inputs written; unused = -1 */
    buf_id add_to;        /* STEP_NORM with post_add */
    struct plan_tap *tap; /* of the main input, before the step */
    union {
        struct { const struct weight *table; float scale; bool ids_only; } embed; /* scale 1 = none; ids_only: spans do not override */
        struct {
            const float *weight;       /* [width / n_pieces] f32, (1 + w) already folded; NULL = ones */
            const float *bias;         /* [width] f32 or NULL; with one it is a layer norm: the mean is taken off before, the bias added behind */
            float eps;
            bool identity;             /* no norm, `in` as it is */
            int32_t n_pieces;          /* a row is so many vectors, each normalised by itself; 0 = 1 */
            float sum_scale;           /* post_add: add_to becomes (add_to + result) * sum_scale; 0 = no product */
        } norm;
        struct {
            int32_t n_parts;
            struct {
                const struct weight *w;
                const float *bias;     /* [n] f32 or NULL */
                buf_id out;            /* float buffer */
                int32_t out_offset;    /* first column in it */
                bool add;              /* out += product (residual) instead of = */
                float softcap;         /* 0 = none (logits) */
                float scale;           /* 0 = none: of the product and bias, before softcap and sum */
            } part[PLAN_MAX_PARTS];
        } linear;
        struct {
            buf_id k, v;               /* in = q; -1: this layer has no K/V of its own (shared KV) */
            const float *q_norm, *k_norm; /* [head_dim] f32 or NULL */
            bool v_norm;               /* v heads get an RMS norm without weights; v may be the same buffer as k */
            float norm_eps;
            struct rope_spec rope;
            float q_scale;             /* c: attention scale, times log2(e) unless softcap */
            const float *q_steps;      /* NULL = none: q_scale is multiplied by q_steps[position / q_step_tokens] */
            int32_t q_step_tokens;
            int32_t n_head, n_head_kv, head_dim;
            int32_t q_step;            /* columns between query heads of `in`: head_dim, or more where gates lie between */
            int16_t i_kind, i_in_kind; /* where K and V go */
        } rope_kv;
        struct {
            int32_t n_head, n_head_kv, head_dim;
            int32_t value_dim;         /* columns of a head of out: head_dim; over latents: the latent's, which is the value */
            bool latent;               /* pages of KIND_LATENT */
            buf_id chosen;             /* what STEP_INDEX wrote: a token at an index from top_k on sees those keys alone; -1 */
            int32_t top_k;
            int16_t i_kind, i_in_kind; /* pages read (a donor's for shared KV) */
            float softcap;             /* 0 = none */
            int32_t window;            /* 0 = all */
            bool causal;               /* false: the queries of a row see what its first one sees, and all of the row */
            const float *sinks;        /* [n_head] f32, times log2(e): one more logit of each head, without a value; or NULL */
            buf_id gate;               /* -1 = none: head h of the output is divided by 1 + exp(-gate), whose head_dim */
            int32_t gate_first, gate_step; /* columns begin at gate_first + h * gate_step */
        } attend;
        struct {                       /* in: float; head h reads columns in_first + h * in_step.. and writes out's h * out_step.. */
            const struct weight *w;    /* head h's matrix below that of h - 1: n = n_head * outputs of a head, a multiple of 16 each */
            buf_id hidden;             /* linear input of w, n_head rows a token (n_slots) */
            int32_t n_head, in_first, in_step, out_step;
        } heads;
        struct {                       /* in = q: head h's part to rotate at columns q_first + h * q_step; out = q': of each head
                                          d_latent columns, which are there already, then those d_rope */
            buf_id kv;                 /* [d_latent] before its norm, [d_rope] */
            const float *norm;         /* [d_latent] */
            float norm_eps;
            struct rope_spec rope;     /* n_rot = d_rope */
            float q_scale;             /* as rope_kv has it */
            int32_t n_head, d_latent, d_rope, q_first, q_step;
            buf_id index_key;          /* the indexer's key, [d_index]: layer norm, then its first d_rope columns rotated; -1 = none */
            const float *index_norm, *index_norm_bias; /* [d_index] */
            float index_eps;
            bool index_interleaved;
            int32_t d_index;
            int16_t i_kind, i_in_kind; /* KIND_LATENT: rows of a page: d_latent, d_rope, d_index */
        } latent;
        struct {                       /* in = the indexer's q, [n_head][dim], not rotated yet; out: [top_k] indices of keys, rising,
                                          exact floats; written for tokens at an index from top_k on. The best are taken: by
                                          score descending, then index ascending */
            buf_id weights;            /* [n_head] */
            struct rope_spec rope;     /* of the first n_rot columns of a head */
            int32_t n_head, dim, top_k, first_row; /* of the page: where its keys begin */
            int16_t i_kind, i_in_kind;
        } index;
        struct {                       /* in = the buffer of q; out: [n_head_v * dim_v]. A key head has n_head_v / n_head_k value
                                          heads: as many of v, z, b, a lie together */
            struct delta_part q, k, v, z, b, a;
            const float *conv;         /* [n_conv][channels] taps, the oldest first; channels: all q heads, k heads, v heads */
            const float *decay;        /* [n_head_v] exp(A_log) */
            const float *dt_bias;      /* [n_head_v] */
            const float *norm;         /* [dim_v] */
            float norm_eps;
            int32_t n_head_k, n_head_v, dim_k, dim_v, n_conv;
            int16_t i_kind, i_in_kind; /* KIND_STATE: [n_head_v][dim_k][dim_v], then the last n_conv - 1 inputs of the
                                          convolution, index i at row i mod (n_conv - 1) */
        } delta;
        struct { const struct weight *table; float scale; } expect; /* in = logits; the embedding is row * scale */
        struct {                       /* in = gate */
            enum glu_kind kind;
            buf_id up;                 /* -1: act(gate) alone */
            int32_t width, up_first;   /* columns of up from up_first on */
        } glu;
        struct {                       /* in: [n_expert] logits; out: [top_k] ids (exact floats, rising), [top_k] weights */
            int32_t n_expert, top_k;
            enum route_kind kind;
            bool normalise;            /* the chosen weights sum to 1 */
            const float *expert_scale; /* [n_expert]: then each times its expert's; NULL = none */
            const float *choice_bias;  /* SIGMOID: [n_expert], counts for the choice alone */
            int32_t n_group, n_group_used; /* SIGMOID: only experts of the best groups, by the sum of their two best, may be
                                          chosen; n_group 1 = no groups */
            float scale;               /* SIGMOID: of the weights, at last */
        } route;
        struct {                       /* in: linear input of gate and up; add_to: buffer that the sum is added to, or out */
            buf_id route;              /* what STEP_ROUTE wrote */
            buf_id hidden;             /* linear input of down, top_k rows a token (n_slots) */
            const struct weight *gate, *up, *down; /* experts one below the other: [n_expert * width][d], [n_expert * d][width] */
            const float *gate_bias, *up_bias, *down_bias; /* [n_expert * width], [n_expert * d] f32, or NULL */
            int32_t n_expert, top_k, width;
            enum glu_kind kind;
            buf_id shared, shared_gate; /* an expert for all: its output [d] and its gate's logit [1]; the sum of the others
                                           gets output * 1 / (1 + exp(-logit)), without a gate the output; -1 = none */
        } experts;
    } u;
};

struct plan {
    enum fidelity_tier tier;
    bool canvas;               /* every row is a round over a canvas */
    struct plan_buf bufs[PLAN_MAX_BUFS];
    int32_t n_bufs;
    struct plan_step *steps;   /* owned by the model's arena */
    int32_t n_steps;
    int32_t *layer_first;      /* [n_layer + 1] step index */
    int32_t n_layer;
    buf_id boundary[PLAN_MAX_BOUNDARY];
    int32_t n_boundary;
    struct kv_kind kinds[KV_MAX_KINDS];
    int32_t n_kinds;
    int32_t d_model, n_vocab;
    int32_t n_context;         /* largest index + 1 */
    int32_t m_max;             /* tokens of a batch */
    int32_t n_draw_max;        /* drawing positions of a batch */
    int32_t n_modules;         /* linears that adapters may name */
    int32_t max_lora_rank;     /* of an adapter that rows may carry: bounds scratch; 0 = no adapters */
};

/* May this plan run the row behind m_so_far tokens of its batch? MB_CONTEXT_LENGTH, MB_INVALID (ids), MB_UNSUPPORTED; MB_INTERNAL:
 * whoever made the batch is wrong. */
mb_status plan_check_row(const struct plan *p, const struct row *r, int32_t m_so_far, mb_error *err);

/* A LoRA adapter bound to the modules of a plan. u = A x per row (float in, fixed lanes), then B u is added tile by
 * tile in the linear's epilogue: product, bias, then each adapter's delta in stack order (docs/numerics.md section 2).
 * Immutable once made; whoever submits rows keeps it alive until collect (engine/adapter.c counts). */
#define PLAN_MAX_STACK 4 /* adapters of one row */
struct lora_module {
    const float *a;  /* [rank][k] f32 */
    const float *b;  /* [rank][n] f32, scale folded in: a row of it is what one element of u adds to all outputs */
    int32_t rank;    /* 0: the adapter does not touch this module */
};
struct adapter_handle {
    const char *id;
    uint64_t content_hash;         /* weights and scale: part of every cache key */
    const struct lora_module *modules; /* [plan.n_modules] */
    int32_t max_rank;
};

#endif
