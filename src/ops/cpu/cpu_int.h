/* cpu_int.h: inside of the CPU backend: the device, a compiled plan, a batch, and the signature of a step.
 *
 * A compiled plan is the list of steps with a function each. All threads of the pool run the whole list; between
 * phases they meet at a barrier. A step function is called with a phase number until it has done its last phase; each
 * call does this thread's share of the work. How work is shared never changes a bit (docs/numerics.md, rule 1).
 * Owner of state: device.c (weights, pool), compile.c (buffers, scratch), batch.c (the flattened batch), run.c (loop).
 */
#ifndef OPS_CPU_INT_H
#define OPS_CPU_INT_H

#include "base/threads.h"
#include "ops/cpu/kernels.h"
#include "ops/ops.h"

struct device {
    struct pool *pool;
    struct cpu_kernels kernels;
    char describe[96];
    uint8_t *kv;            /* the page pool: reserved address space */
    size_t kv_bytes;
};

/* weight.impl of this backend. */
struct cpu_weight_impl {
    struct cpu_weight packed;   /* packed.data owned (mmap of size_bytes); unused when mapped */
    size_t size_bytes;
    bool mapped;                /* gather_only: rows are read from the checkpoint */
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
    struct cpu_draw_pos *draws; /* [m_max] */
    int32_t n_draw;
    int32_t draw0, n_draw_now;  /* the block of draws that the per-draw steps work on */
};

/* LoRA of the batch (step_lora.c). A slot holds u of one token (or of one drawing position) for every part of a linear
 * and every place of the stack: [PLAN_MAX_PARTS][PLAN_MAX_STACK][max_lora_rank]. */
struct cpu_lora {
    int32_t *token;             /* [m_max] tokens of rows with adapters, rising; slot i belongs to token[i] */
    int32_t n_token;
    int32_t *slot_of;           /* [m_max] slot of a token, -1: its row has no adapter */
    float *u;                   /* [max(m_max, n_draw_max)] slots */
};

struct cpu_step;
struct compiled {
    struct device *dev;
    const struct plan *plan;
    struct cpu_step *steps;
    int32_t i_draws;            /* first per-draw step (STEP_DRAWS) */
    uint8_t *bufs[PLAN_MAX_BUFS];
    size_t row_bytes[PLAN_MAX_BUFS]; /* stride of a row in bytes */
    enum act_form form[PLAN_MAX_BUFS];
    void *block;                /* one mapping that holds buffers and scratch */
    size_t block_bytes;
    uint8_t **thread_scratch;   /* [n_threads] */
    size_t thread_scratch_bytes;
    uint8_t *attn_partials;     /* split results of small batches */
    size_t attn_partials_bytes;
    struct cpu_batch batch;
    struct cpu_lora lora;
    int32_t i_final_norm;       /* the step whose norm rows with hidden_out get; n_steps when the plan has none */
    struct ops_step_stats stats;
};

/* One phase of a step on one thread. Returns the number of phases of this step for the current batch (a constant over
 * threads), so that run.c knows whether to call again after a barrier. */
typedef int (*cpu_step_fn)(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
struct cpu_step {
    const struct plan_step *s;
    cpu_step_fn run;
};

int cpu_step_embed(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
int cpu_step_norm(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
int cpu_step_linear(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
int cpu_step_rope_kv(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
int cpu_step_attend(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
int cpu_step_glu(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
int cpu_step_draws(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);
int cpu_step_sample(struct compiled *c, const struct plan_step *s, int phase, int i_thread, int n_threads);

/* step_lora.c: adapters of a linear. Rows without an adapter are never touched; a batch without any costs one comparison.
 *   cpu_lora_on       does this linear step have adapters to apply? Then all threads call cpu_lora_project before the
 *                     product, a barrier follows, and every tile of the product passes through cpu_lora_add.
 *   cpu_lora_add      y: columns [col0, col0 + n_cols) of the outputs of part i_part for all rows of the step, ld apart,
 *                     after product and bias.
 *   cpu_lora_copy     keep columns [col0, col1) of row i of a linear input as floats, if that row's token has adapters;
 *                     called by cpu_write_inputs. */
static inline bool cpu_lora_on(const struct compiled *c)
{
    return c->lora.n_token > 0;
}
void cpu_lora_project(struct compiled *c, const struct plan_step *s, int i_thread, int n_threads);
void cpu_lora_add(const struct compiled *c, const struct plan_step *s, int i_part, float *y, int64_t ld, int64_t col0,
                  int64_t n_cols);
void cpu_lora_copy(const struct compiled *c, buf_id input, int64_t i, const float *x, int64_t col0, int64_t col1);
/* Which tokens of the flattened batch have adapters; MB_UNSUPPORTED (too many, rank above the plan's). */
mb_status cpu_lora_fill(struct compiled *c, mb_error *err);
size_t cpu_lora_slot_floats(const struct plan *p);
/* This thread's share of the rows that asked for hidden_out, after the last layer. */
void cpu_hidden_out(struct compiled *c, int i_thread, int n_threads);

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
/* Bytes of scratch that one thread needs for this plan, and of the split results. */
size_t cpu_thread_scratch_bytes(const struct plan *p);
size_t cpu_attn_partials_bytes(const struct plan *p, int n_threads);

/* Flatten rows; checks that they fit. MB_INVALID (too many tokens, adapters on this backend), MB_INTERNAL. */
mb_status cpu_batch_fill(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                         mb_error *err);

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
int32_t cpu_act_group(const struct device *d, const struct weight *w, int32_t source_group);
void cpu_weight_row(struct device *d, const struct weight *w, int64_t i, float *out);
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
