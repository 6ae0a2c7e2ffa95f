/* row.h: what goes into a forward pass and what comes out of it.
 *
 * A row is a run of consecutive sequence indices of one sequence: a prompt chunk, one decoded token, a verified draft,
 * a scored text. Rows of different sequences make a batch; at most one row a sequence. Everything a backend may know
 * of a sequence is in struct seq_state; it knows no request, no text, no other row.
 * The bits that a row produces depend on the row and its sequence alone (docs/numerics.md, rule 1).
 *
 * Owner: the engine fills rows and owns every pointer in them until collect has returned.
 */
#ifndef OPS_ROW_H
#define OPS_ROW_H

#include "ops/sample.h"

#define KV_MAX_KINDS 8
#define KV_PAGE_TOKENS 64 /* tokens of a page, every kind */

/* Number format of keys and values in pages; the layout inside a page is the backend's. Q8, Q4: codes with a scale and an offset
 * for each token, head and group of dims (docs/numerics.md section 4d); heads of other widths stay 16 bit. */
enum kv_format { KV_BF16 = 0, KV_F16, KV_F32, KV_Q8, KV_Q4, KV_FORMAT_COUNT };

static inline bool kv_is_codes(int f)
{
    return f == KV_Q8 || f == KV_Q4;
}

/* Dims that share a scale: 64 where heads are whole groups of them, else 32; 0: heads of this width have no codes. */
static inline int kv_code_group(int64_t d)
{
    return d <= 0 || d > 1024 || d % 32 != 0 ? 0 : d % 64 == 0 ? 64 : 32;
}

/* A kind: layers of one model instance whose per-token state lives and dies together. */
enum kv_kind_type {
    KIND_FULL,   /* keys of all earlier indices */
    KIND_WINDOW, /* keys of the last `window` indices */
    KIND_LATENT, /* MLA latents: as FULL, one head */
    KIND_STATE   /* recurrent state (gated delta net): no keys, one state of fixed size, snapshots by index */
};

struct kv_kind {
    enum kv_kind_type type;
    int32_t window;      /* KIND_WINDOW: a query at index i sees keys (i - window, i]; else 0 */
    int32_t n_layer;     /* layers of this kind; a layer's place in the kind is layer_spec.i_in_kind */
    int32_t n_head_kv;   /* 0 for KIND_STATE */
    int32_t head_dim;
    int format;          /* enum kv_format */
    int32_t state_floats; /* KIND_STATE: floats of one layer's state; else 0 */
    size_t head_bytes;   /* one layer and KV head in one page: keys, then values; KIND_LATENT: head_dim rows of keys alone;
                            KIND_STATE: one layer's state */
    size_t page_bytes;   /* one page of KV_PAGE_TOKENS tokens, all layers: n_layer * n_head_kv * head_bytes;
                            KIND_STATE: one state of all layers */
};

/* Page table of one kind: page[j] holds indices [64 j, 64 j + 64), or -1 when it was dropped (left the window) or is
 * not there yet. KIND_STATE: page[0] is the live state's slot. Page ids are the same on every rank. */
struct kv_table {
    int32_t *page;   /* owned by the engine's sequence, capacity fixed when the sequence is made */
    int32_t n_page;  /* entries in use */
    int32_t cap;
};

/* What a backend sees of a sequence. */
struct seq_state {
    struct kv_table kind[KV_MAX_KINDS];
    int32_t n_committed;   /* indices [0, n_committed) are final: keys written, recurrent state at this index */
    int32_t n_replay;      /* recurrent kinds: tokens of the last `after accept` row to replay before the next row */
    int32_t i_state;       /* index the recurrent state has reached; own counter, see design.md section 3 */
};

struct embed_span {        /* media: embeddings that stand in place of ids */
    int32_t first, n;      /* row-relative */
    const float *data;     /* [n][d_model] f32 */
};

struct index_span {        /* sequence indices, half-open: inside, every query sees every key (image spans) */
    int32_t first, end;
};

enum row_draw { DRAW_NONE = 0, DRAW_LAST, DRAW_ALL };
enum row_commit {
    COMMIT_YES = 0,      /* collect commits all n; recurrent state is updated in place */
    COMMIT_AFTER_ACCEPT, /* keys lie beyond n_committed; inputs of recurrent layers are kept; seq_commit(k) decides */
    COMMIT_NEVER         /* scoring, towers, canvases: keys lie in private tail pages and are overwritten by what comes next */
};

/* A round over a canvas: a block of tokens that is computed again and again, each seeing all of it and what its first one sees
 * before it, until it is good (diffusion). Such a row goes through the plan of canvases alone: DRAW_ALL, COMMIT_NEVER; draw j
 * is for index i_first + j itself. */
struct canvas_pass {
    float temperature;     /* of the distributions below, > 0; the draws go by their own sample_params */
    const float *signal;   /* [n][d_model]: `expect` of the round before; NULL: none, the first round */
    float *expect;         /* [n][d_model] out: the embedding that each position's distribution expects; may be `signal` */
    float *entropy;        /* [n] out: of each position's distribution, nats */
};

struct adapter_handle;   /* a mounted LoRA adapter, bound to the plan's modules; ops/plan.h */

struct row {
    struct seq_state *seq;
    int32_t i_first;               /* index of ids[0] in the sequence */
    int32_t n;                     /* > 0 */
    const int32_t *ids;            /* [n]; at media positions a placeholder that the model defines */
    bool first_is_draw;            /* ids[0] is what this sequence's previous row drew: an asynchronous backend takes
                                      it from its own buffer, ids[0] may be -1 then */
    const struct embed_span *embeds;
    int32_t n_embeds;
    const int32_t *rope_pos;       /* [n] or [n][rope_axes]; NULL: the index itself */
    int32_t rope_axes;             /* 1 or 3 */
    const struct index_span *two_way;
    int32_t n_two_way;
    enum row_draw draw;
    const struct sample_pos *draws; /* [1] for DRAW_LAST, [n] for DRAW_ALL; j-th sees history + ids[0..j] */
    float *logits_out;             /* tests and tools: [n_draw][n_vocab] raw logits before any processor; NULL */
    float *hidden_out;             /* [d_model]: the final norm's output at the last token (embeddings); costs no logits;
                                      written by collect; NULL */
    const struct adapter_handle *const *adapters; /* in stack order; n_adapters 0: the row never enters the step */
    int32_t n_adapters;
    enum row_commit commit;
    const struct canvas_pass *canvas; /* NULL: an ordinary row */
    bool is_last;                  /* known already: its draw is the last of its sequence, which has then its length */
};

static inline int32_t row_n_draw(const struct row *r)
{
    return r->draw == DRAW_NONE ? 0 : r->draw == DRAW_LAST ? 1 : r->n;
}

/* Filled by collect, one a row in submit order. */
struct row_result {
    mb_status status;      /* MB_OK; otherwise the row's sequence must not be continued from its state */
    struct draw *draws;    /* [row_n_draw]; caller's memory, set before submit */
};

#endif
