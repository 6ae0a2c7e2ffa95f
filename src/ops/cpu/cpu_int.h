/* cpu_int.h: inside of the CPU backend: the device, a compiled plan, a batch, and the signature of a pass.
 *
 * A plan is compiled into passes (passes.c). A pass covers one or a few neighbouring steps and runs between two barriers:
 * `open` is called by one thread when everything before is done; it does what is serial (for small batches that is all
 * of the norms, the embedding, the gathering of draws) and says how many tiles there are for all threads, 0 when nothing
 * is left to do: the next pass then opens at once, without a barrier. `tile` does one tile. How work is cut never
 * changes a bit (docs/numerics.md, rule 1).
 * Owner of state: device.c (weights, pool), compile.c (buffers, scratch), batch.c (the flattened batch), run.c (loop).
 */
#ifndef OPS_CPU_INT_H
#define OPS_CPU_INT_H

#include <stdatomic.h>

#include "base/threads.h"
#include "ops/cpu/experts.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packed.h"
#include "ops/cpu/sample_int.h"
#include "ops/ops.h"

/* Packed weights lie one after the other in chunks (weights.c). */
struct weight_chunk {
    struct weight_chunk *next;
    uint8_t *data;
    size_t size_bytes, used_bytes;
    int n_weights;          /* alive; the chunk goes with the last */
};

struct device {
    struct pool *pool;
    struct cpu_kernels kernels;
    char describe[96];
    struct weight_chunk *chunks; /* the newest first */
    struct packed_cache *cache; /* --packed-cache; NULL: none */
    struct experts *experts;    /* --expert-offload; NULL: they lie in memory */
    uint8_t *kv;            /* the page pool: reserved address space */
    size_t kv_bytes;
};

/* weight.impl of this backend. */
struct cpu_weight_impl {
    struct cpu_weight packed;   /* packed.data lies in chunk, or in the device's cache; unused when mapped */
    struct weight_chunk *chunk; /* NULL when mapped, or in the cache */
    bool mapped;                /* gather_only: rows are read from the checkpoint */
    bool offloaded;             /* experts in the file: packed.data is NULL, an expert's rows lie at expert_off of its record */
    int32_t i_group;
    size_t expert_off;
    struct weight_source source;
};

/* One drawing position of the batch. */
struct cpu_draw_pos {
    int32_t i_row, i_token;     /* token of the batch */
    const struct sample_pos *pos;
    struct draw *out;
    float *logits_out;          /* NULL unless the row asked */
};

/* The rows of a step, flattened; arrays are part of the compiled plan and sized by m_max. */
struct cpu_batch {
    const struct row *rows;
    int32_t n_rows;
    struct row_result *results;
    int32_t m;                  /* tokens */
    int32_t *row_of;            /* [m] */
    int32_t *id;                /* [m] */
    int32_t *index;             /* [m] index in the sequence */
    int32_t *rope_pos;          /* [m] */
    int32_t *row_first;         /* [n_rows + 1] first token of a row */
    bool all_single;            /* every row is one token */
    struct cpu_draw_pos *draws; /* [m_max] */
    int32_t n_draw;
    int32_t draw0, n_draw_now;  /* the block of draws that the per-draw steps work on */
};

/* LoRA of the batch (step_lora.c). A slot holds u of one token (or of one drawing position) for every part of a linear
 * pass and every place of the stack: [PLAN_MAX_PARTS][PLAN_MAX_STACK][max_lora_rank]. */
struct cpu_lora {
    int32_t *token;             /* [m_max] tokens of rows with adapters, rising; slot i belongs to token[i] */
    int32_t n_token;
    int32_t *slot_of;           /* [m_max] slot of a token, -1: its row has no adapter */
    float *u;                   /* [max(m_max, n_draw_max)] slots */
};

/* Which tokens of the batch go to which expert (step_moe.c), of the open layer. */
struct cpu_moe {
    int32_t *slot;              /* [m_max * top_k] i * top_k + j, by expert, then by token */
    int32_t *first;             /* [n_expert + 1] slots of an expert */
    int32_t *active;            /* [n_expert] experts that have any, rising */
    int32_t n_active;
    int64_t tile_blocks;        /* blocks of 16 outputs of a tile of the open pass */
    int64_t n_row_chunks;       /* down: rows go in so many chunks */
    /* Offloaded experts go through both passes in rounds: active[round0 .. round1) are in memory, or being read. */
    int32_t round0, round1, n_asked; /* active[0 .. n_asked) have been asked for */
    int32_t *at;                /* [n_expert] slot of active[i] */
    int32_t *order;             /* [n_expert] the round's: those that are there come first */
    float *acc;                 /* [m_max][d_model] sums between rounds; NULL: no layer has offloaded experts */
};

/* Scores of an indexer of the open layer (step_index.c), where a token's splits are dealt out: tokens that choose. */
struct cpu_index {
    int32_t *token;             /* [m_max] tokens at an index from top_k on, rising */
    int32_t n_token, n_split;   /* n_split: of the one with the most keys; 0: a tile is a token */
    float *scores;              /* [CPU_ATTN_SPLIT_TILES * n_threads][whole splits of n_context] */
    size_t ld;
};

/* What a thread's laid is of: an input of the linear pass that was opened as number i_opened. */
struct cpu_laid_of {
    struct cpu_laid laid;
    const uint8_t *data;
    int64_t i_opened, row0, m;
};

struct compiled;
struct cpu_pass;
/* See base/threads.h: tiles of the pass for the batch at hand; *bounds may be set. */
typedef int64_t (*cpu_open_fn)(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
typedef void (*cpu_tile_fn)(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);

/* Blocks [blk0, blk1) of one part of a linear step; of a gated MLP, of both its parts. */
struct linear_tile {
    const struct plan_step *s;
    int32_t i_part, blk0, blk1;
};

struct cpu_pass {
    const struct plan_step *s;        /* the (first) step */
    int32_t n_steps;                  /* linears: so many neighbours in one pass */
    const struct plan_step *partner;  /* linears: the glu that the tiles go through; attend: its rope_kv step; or NULL */
    cpu_open_fn open;
    cpu_tile_fn tile;
    bool (*again)(struct compiled *c, const struct cpu_pass *p); /* asked when the pass is done: true: the pass before and this
                                                                    one once more; NULL: never */
    struct linear_tile *tiles;        /* linears: [bounds[n_threads]] */
    int32_t *bounds;                  /* linears: [n_threads + 1] which tiles a thread begins with */
    int64_t unit;                     /* linears: blocks that stay together */
};

/* Attention of few tiles over many splits: each split of a tile is a unit, the last to finish merges. */
struct attn_tile_state {
    int32_t unit0;              /* first unit of the tile */
    size_t slot;                /* first float of its results in attn_partials */
    atomic_int n_left;          /* units that are not finished */
};

struct compiled {
    struct device *dev;
    const struct plan *plan;
    int n_threads;
    struct cpu_pass *passes;
    int32_t n_passes, i_draws_pass; /* i_draws_pass: first per-draw pass (STEP_DRAWS) */
    int32_t i_draws, i_final_norm;  /* steps: STEP_DRAWS, and the norm that rows with hidden_out get; n_steps: none */
    struct linear_tile *tiles;  /* of all passes */
    int32_t *bounds;            /* of all passes */
    uint8_t *bufs[PLAN_MAX_BUFS];    /* NULL: of no use to anybody */
    bool unread[PLAN_MAX_BUFS];      /* by passes; adapters may find a copy of a linear input there */
    size_t row_bytes[PLAN_MAX_BUFS]; /* stride of a row in bytes */
    enum act_form form[PLAN_MAX_BUFS];
    void *block;                /* one mapping that holds buffers and scratch */
    size_t block_bytes;
    uint8_t **thread_scratch;   /* [n_threads] */
    size_t thread_scratch_bytes;
    struct cpu_laid_of *laid;   /* [n_threads] */
    uint8_t *attn_partials;     /* split results of small batches */
    size_t attn_partials_bytes;
    /* Of the open pass; written by its opener. */
    int64_t chunk_rows;                  /* row-wise steps, linears of many rows: rows of a tile */
    int64_t i_linear;                    /* linears: how many have been opened */
    int64_t run_blocks;                  /* linears of many rows: blocks of a tile; 0: tiles as dealt, all rows */
    bool attn_split;                     /* attend: tiles are split into units */
    int32_t attn_n_tiles, attn_n_units;  /* units: 0 where tiles are not split */
    int32_t attn_rows;                   /* attend: query rows of a tile at most */
    int attn_head_parts;                 /* attend: the query heads of a KV head go in so many parts */
    struct attn_tile_state *attn_tiles;  /* [CPU_ATTN_SPLIT_TILES * n_threads] */
    struct sample_row *sample_rows;      /* [n_draw_max] */
    float *sample_blocks;                /* [n_draw_max][2][sample_blocks(n_vocab)] */
    struct cpu_batch batch;
    struct cpu_lora lora;
    struct cpu_moe moe;
    struct cpu_index index;
    struct ops_step_stats stats;
};

/* Attention goes by splits when there are fewer tiles a thread than this. */
#define CPU_ATTN_SPLIT_TILES 4
/* Rows of a small batch: up to so many values a row-wise step is done by the thread that opens the pass. */
#define CPU_SERIAL_VALUES 4096
/* Blocks of 16 outputs that stay together when a weight is dealt to threads. */
#define CPU_SHARE_BLOCKS 2
/* Floats of product that a thread holds: before adding them to the residual, or of gate and up together. */
#define CPU_LINEAR_TMP_FLOATS 98304
#define CPU_LINEAR_ROWS 256 /* rows that a kernel gets at once, at most: for these a unit of blocks fits */

/* Row-wise steps (embed, norm, draws; the inputs of o when heads do not hold whole groups): small batches in open. */
int64_t cpu_rows_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_rows_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_linear_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_linear_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
void cpu_linear_glu_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_rope_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_rope_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_attend_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_attend_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_glu_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_glu_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_sample_max_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_sample_max_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_sample_sum_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_sample_sum_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_sample_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_sample_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);

int64_t cpu_expect_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_expect_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
size_t cpu_expect_scratch_bytes(const struct plan *p);
/* step_canvas.c: the signal of token i to y. */
void cpu_signal_row(const struct compiled *c, int64_t i, int64_t d, float *y);

/* step_rows.c: the norm of a STEP_NORM over one row, or one piece of it; y may not be x. */
void cpu_norm(const struct cpu_kernels *k, const struct plan_step *s, const float *x, int64_t n, float *y);
/* y[0..n) = act(gate) * up */
void cpu_glu(const struct cpu_kernels *k, enum glu_kind kind, const float *gate, const float *up, int64_t n, float *y);
/* step_rows.c: columns [col0, col1) of row i of a gated MLP, whose gate and up begin at column col0; y: scratch of the whole width. */
void cpu_glu_columns(struct compiled *c, const struct plan_step *s, int64_t i, int64_t col0, int64_t col1, const float *gate,
                     const float *up, float *y);
/* step_rope.c: head h of token i: q' to y; K and V (through tmp, twice head_dim floats) into their page. */
void cpu_rope_q(const struct compiled *c, const struct plan_step *s, int32_t i, int h, float *y);
void cpu_rope_kv(const struct compiled *c, const struct plan_step *s, int32_t i, int h, float *tmp);
/* step_attend.c: does a KV head's share of the output hold whole groups of every linear input written? */
bool cpu_attend_whole_groups(const struct compiled *c, const struct plan_step *s);

/* step_lora.c: adapters of a linear. Rows without an adapter are never touched; a batch without any costs one comparison.
 *   cpu_lora_on       does this batch have adapters to apply? Then a pass of projections goes before every linear pass, and
 *                     every tile of the product goes through cpu_lora_add.
 *   cpu_lora_add      y: columns [col0, col0 + n_cols) of the outputs of part i_part for rows [row0, row0 + m) of the step,
 *                     ld apart, after product and bias. i_u: number of the part in its pass.
 *   cpu_lora_copy     keep columns [col0, col1) of row i of a linear input as floats, if that row's token has adapters;
 *                     called by cpu_write_inputs. */
static inline bool cpu_lora_on(const struct compiled *c)
{
    return c->lora.n_token > 0;
}
int64_t cpu_lora_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_lora_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
void cpu_lora_add(const struct compiled *c, const struct plan_step *s, int i_part, int i_u, int64_t row0, int64_t n_rows,
                  float *y, int64_t ld, int64_t col0, int64_t n_cols);
void cpu_lora_copy(const struct compiled *c, buf_id input, int64_t i, const float *x, int64_t col0, int64_t col1);
/* Which tokens of the flattened batch have adapters; MB_UNSUPPORTED (too many, rank above the plan's). */
mb_status cpu_lora_fill(struct compiled *c, mb_error *err);
size_t cpu_lora_slot_floats(const struct plan *p);
/* Rows that asked for hidden_out, after the last layer (hidden.c). */
void cpu_hidden_out(struct compiled *c);

/* step_moe.c */
int64_t cpu_route_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_route_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_experts_up_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_experts_up_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
int64_t cpu_experts_down_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_experts_down_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
bool cpu_experts_again(struct compiled *c, const struct cpu_pass *p);
size_t cpu_experts_scratch_bytes(const struct plan *p, const struct plan_step *s);
/* step_latent.c: a token's share of STEP_LATENT; the linear inputs of STEP_HEADS, and its products. */
void cpu_latent_row(struct compiled *c, const struct plan_step *s, int64_t i, float *tmp);
void cpu_heads_row(struct compiled *c, const struct plan_step *s, int64_t i);
int64_t cpu_heads_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_heads_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
/* step_index.c */
int64_t cpu_index_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_index_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
size_t cpu_index_scratch_bytes(const struct plan *p, const struct plan_step *s);
/* Bytes of index.scores; 0: this plan has no indexer, or one thread. */
size_t cpu_index_scores_bytes(const struct plan *p, int n_threads);
/* step_delta.c */
int64_t cpu_delta_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds);
void cpu_delta_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread);
size_t cpu_delta_scratch_bytes(const struct plan_step *s);
/* Does a key head's share of the output hold whole groups of every linear input written? */
bool cpu_delta_whole_groups(const struct compiled *c, const struct plan_step *s);
/* step_linear.c: the kernel for a weight and a form of input. */
cpu_matmul_fn cpu_matmul_choose(const struct cpu_kernels *k, enum cpu_wtype type, enum act_form form);

/* Helpers (compile.c, batch.c). */
static inline float *cpu_row_f32(const struct compiled *c, buf_id b, int64_t i)
{
    return (float *)(c->bufs[b] + (size_t)i * c->row_bytes[b]);
}
static inline int32_t cpu_rows_of(const struct compiled *c, buf_id b)
{
    return c->plan->bufs[b].per_draw ? c->batch.n_draw_now : c->batch.m;
}
/* Write columns [col0, col1) of row i of every linear input in outs from x (the whole row). col0, col1 are multiples of
 * every group, or the width. */
void cpu_write_inputs(const struct compiled *c, const buf_id *outs, int64_t i, const float *x, int64_t col0, int64_t col1);
/* Area of one layer and KV head in the page that holds `index` of the row's sequence. */
uint8_t *cpu_kv_area(const struct compiled *c, const struct row *r, int i_kind, int i_in_kind, int i_head, int32_t index);
/* State of one layer in the row's sequence; NULL: it has no page. */
float *cpu_state(const struct compiled *c, const struct row *r, int i_kind, int i_in_kind);
/* Bytes of scratch that one thread needs for this plan, and of the split results. */
size_t cpu_thread_scratch_bytes(const struct plan *p);
size_t cpu_attn_partials_bytes(const struct plan *p, int n_threads);

/* Flatten rows; checks that they fit. MB_INTERNAL (too many tokens), MB_CONTEXT_LENGTH, MB_INVALID (an id outside the
 * vocabulary), MB_UNSUPPORTED (positions of three axes; adapters above what the plan holds). */
mb_status cpu_batch_fill(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                         mb_error *err);

/* huge.c: zeroed memory, at a huge page from 2 MB on. reserve_only: address space, memory as it is touched. NULL: none.
 * Release with the same size. */
void *huge_map(size_t size_bytes, bool reserve_only);
void huge_unmap(void *p, size_t size_bytes);
/* device.c */
mb_status cpu_device_open(struct device **out, const struct device_options *opt, mb_error *err);
void cpu_device_close(struct device *d);
const char *cpu_device_describe(const struct device *d);
const char *cpu_device_class(const struct device *d);
void cpu_kv_sizes(struct device *d, struct kv_kind *k);
mb_status cpu_pool_reserve(struct device *d, size_t bytes, mb_error *err);
void cpu_page_copy(struct device *d, const struct kv_kind *k, int32_t dst_page, int32_t src_page);
void cpu_pool_release(struct device *d, size_t off, size_t bytes);
void cpu_page_read(struct device *d, const struct kv_kind *k, int32_t page, void *dst);
void cpu_page_write(struct device *d, const struct kv_kind *k, int32_t page, const void *src);
/* weights.c */
mb_status cpu_pack_bytes(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err);
mb_status cpu_weight_pack(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err);
void cpu_weight_free(struct device *d, struct weight *w);
void cpu_chunks_free(struct device *d); /* all of them: the device closes */
mb_status cpu_pack_experts(struct device *d, const struct weight_source src[3], int32_t n, struct weight *const out[3], mb_error *err);
mb_status cpu_expert_bytes(struct device *d, const struct weight_source src[3], int32_t n, size_t *bytes, mb_error *err);
mb_status cpu_experts_reserve(struct device *d, size_t bytes, mb_error *err);
void cpu_experts_stats(struct device *d, struct ops_expert_stats *out);
/* weights.c: blocks [first, end) of a matrix to dst. */
void cpu_source_pack(const struct weight_source *src, const struct cpu_weight *w, int64_t first, int64_t end, uint8_t *dst);
mb_status cpu_source_plan(const struct weight_source *src, struct cpu_weight *w, mb_error *err);
mb_status cpu_weight_class(struct device *d, const struct weight_source *src, enum ops_class *out, mb_error *err);
int32_t cpu_act_group(const struct device *d, const struct weight *w, int32_t source_group);
void cpu_weight_row(struct device *d, const struct weight *w, int64_t i, float *out);
/* probe.c */
mb_status cpu_probe(struct device *d, double seconds, struct ops_rates *out, mb_error *err);
/* passes.c: buffers that no pass reads: gate and up of a gated MLP, q heads that attention rotates, what it finds. */
void cpu_passes_unread(const struct plan *p, bool unread[PLAN_MAX_BUFS]);
/* passes.c: fills passes, tiles, bounds, i_draws from the plan. MB_NO_MEMORY, MB_UNSUPPORTED (a step unknown here). */
mb_status cpu_passes_build(struct compiled *c, mb_error *err);
void cpu_passes_free(struct compiled *c);
/* compile.c */
size_t cpu_scratch_bytes(struct device *d, const struct plan *p, const struct compile_options *opt);
mb_status cpu_compile(struct device *d, const struct plan *p, const struct compile_options *opt, struct compiled **out,
                      mb_error *err);
void cpu_compiled_free(struct compiled *c);
float *cpu_buffer(struct compiled *c, buf_id b, size_t *row_bytes);
void cpu_describe_step(struct compiled *c, int32_t i_step, char *text, size_t cap);
/* run.c */
mb_status cpu_submit(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err);
mb_status cpu_collect(struct compiled *c, mb_error *err);
mb_status cpu_run_range(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                        int32_t first, int32_t last, mb_error *err);
void cpu_stats(struct compiled *c, struct ops_step_stats *out);

#endif
