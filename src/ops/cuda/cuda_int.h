/* cuda_int.h: inside of the CUDA backend's host side: the device, packed weights, a compiled plan, a batch. Host code is C17
 * and part of every build; the kernels are in libmlxbun-cuda.so, behind the table of library.h, loaded when a device "cuda"
 * is first opened (load.c).
 *
 * A step of the plan becomes one or a few launches on the device's one stream (run.c); nothing is read back before the draws.
 * A batch of single tokens runs as a captured graph once its shape has come up a second time.
 * Owner of state: device.c (card, pool of pages, host threads), weights.c (packed weights), compile.c (buffers), batch.c (the
 * flattened batch), lora.c (adapters on the device), run.c (graphs).
 */
#ifndef OPS_CUDA_INT_H
#define OPS_CUDA_INT_H

#include "base/threads.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/library.h"
#include "ops/ops.h"

#define CUDA_CODE_NO_MEMORY 2   /* cudaErrorMemoryAllocation */
#define CUDA_CODE_DRIVER_OLD 35 /* cudaErrorInsufficientDriver */
#define CUDA_CODE_NO_DEVICE 100 /* cudaErrorNoDevice */

#define CUDA_NUMBERS "2"        /* of docs/numerics.md, section 4b: another one where a bit may change. 2: scales of 4-bit rows */
#define CUDA_SMALL 64           /* tokens of a batch that may run as a graph */
#define CUDA_WINDOWS 4          /* different windows of a plan */
#define CUDA_ROPES 8            /* different rope tables */
#define CUDA_HOST_DRAWS 16      /* logits of so many positions are on the host at once */
#define CUDA_ADAPTERS 32        /* adapters kept on the device */
#define CUDA_GLU_MUL 16.0f      /* act(gate) * up is stored over this: range 1e6 */
#define CUDA_SPLIT_STEPS 24     /* graphs are kept for contexts of 2^i splits */

struct cuda_chunk;
struct cuda_adapter;

struct device {
    const struct cuda_library *lib;
    int ordinal;
    struct cuda_device_info info;
    char describe[96], class_name[24];
    void *stream;
    bool stream_is_lent;        /* of another rank on the same card: not closed here */
    struct ck_ctx ctx;
    struct pool *pool;          /* host threads: packing, draws */
    struct cpu_kernels host;    /* the host's sampler */
    struct cuda_chunk *chunks;  /* packed weights, the newest first */
    bool no_graphs;             /* every step is launched by itself */
    void *pack_area;            /* a piece of a matrix on the device while weights are packed; freed by compile */
    uint8_t *kv;                /* the page pool */
    size_t kv_bytes;
    int32_t kv_generation;      /* counts pools: graphs hold its address */
    uint64_t kv_writes;         /* counts what others than steps wrote to pages */
    int failed;                 /* code of a page copy that could not report it */
    struct cuda_adapter *adapters[CUDA_ADAPTERS];
    uint64_t adapter_clock;
};

/* weight.impl of this backend. */
struct cuda_weight {
    struct ck_weight w;
    struct cuda_chunk *chunk;
};

struct cuda_draw_pos {
    int32_t i_row;
    const struct sample_pos *pos;
    struct draw *out;
    float *logits_out;
};

/* A place in the block that travels to the device: the same offset on both sides. */
struct cuda_batch_offsets {
    size_t id, slot, index, hi, lo[CUDA_WINDOWS], table_of, draw_token, stack, rows, small, large, rope[CUDA_ROPES], q_more;
    size_t jobs;                /* of batches of up to CUDA_SMALL tokens */
    size_t pages;               /* behind all these: [n_kinds][n_pages_max] */
};

struct cuda_batch {
    const struct row *rows;
    int32_t n_rows;
    int32_t m, n_draw;          /* tokens, drawing positions */
    int32_t draw0, n_draw_now;  /* the block of draws that the per-draw steps work on */
    int32_t n_pages;            /* entries of every kind's table */
    int32_t n_small, n_large, n_split; /* units of attention; the most splits a token sees */
    bool has_jobs;              /* the block holds the jobs of its drawing positions, one a token */
    bool plain;                 /* single tokens, nothing but ids, no adapters: may run as a graph */
    bool lora;                  /* some row has adapters */

    struct cuda_batch_offsets at;
    int32_t *row_first;         /* host [n_rows_max + 1] */
    struct cuda_draw_pos *draws; /* host [m_max] */
};

struct cuda_rope_table {
    const float *table;
    int32_t n_rot;
};

/* Mixtures of experts (moe.c): device memory for the layer at hand. */
struct cuda_moe {
    int32_t n_expert, top_k;    /* the most of any layer; 0: the plan has no experts */
    int64_t width, d;           /* likewise, of the linear inputs below */
    struct ck_expert_list list; /* which slots go to which expert */
    void *x, *hidden;           /* linear inputs: a prompt's rows by piece; what down takes */
    float *y;                   /* [m_max * top_k][d] what down makes of slots */
};

struct cuda_graph {
    void *graph;                /* NULL: not captured */
    int32_t uses;
};

/* The step behind the one at hand, on the stream before that one's draws are read (ahead.c). */
struct cuda_ahead {
    uint8_t *block;             /* pinned: of the step ahead, or the one to fill next; the other one is compiled.batch_host */
    void *event[2];             /* the end of the step whose draws go to slot i */
    struct cuda_graph *graph;   /* of the step at hand */
    bool live;                  /* a step ahead is on the stream */
    bool taken, pays;           /* the step at hand was one; there may be another one behind it */
    int32_t m, n_pages;         /* of it */
    int32_t pool;               /* kv_generation, and kv_writes, when it was launched */
    uint64_t writes;
    const struct seq_state *seq[CUDA_SMALL]; /* of the step before this one, and where its rows go on */
    int32_t next[CUDA_SMALL], n;
    bool ends;                  /* one of them had its last draw then */
    int64_t credit_ns, done_ns; /* what it has been worth so far; when the step before was done, 0 = never */
};

struct compiled {
    struct device *dev;
    const struct plan *plan;
    int32_t n_rows_max;
    size_t n_pages_max;         /* entries of one kind's tables */
    int32_t attn_small, attn_large; /* tokens of a unit of attention */
    struct ck_ctx ctx;          /* the device's, with this plan's work area */
    struct cuda_rope_table ropes[CUDA_ROPES];
    int32_t n_ropes;
    const float *q_steps;       /* of queries that grow with their position, as plan.h has it; NULL: none do */
    int32_t q_step_tokens;
    int state_kind;             /* the kind with recurrent state, -1 = none */
    int32_t windows[CUDA_WINDOWS];
    int32_t n_windows;
    float *bufs[PLAN_MAX_BUFS];  /* BUF_F32: device floats */
    int64_t ld[PLAN_MAX_BUFS];   /* in floats */
    struct ck_x inputs[PLAN_MAX_BUFS]; /* BUF_ACT */
    uint8_t *block;              /* device: buffers and scratch */
    size_t block_bytes;
    float **constants;           /* [n_steps][CUDA_CONSTANTS] device copies of the plan's host vectors; NULL: none */
    uint8_t *constant_block;
    float *linear_tmp;           /* [max(m_max, n_draw_max)][widest output]: products of batches with adapters; NULL: no adapters */
    float *lora_u;
    void *sample_scratch;
    struct cuda_draw_job *jobs_dev;
    float *hidden;               /* [d_model] */
    uint8_t *batch_host, *batch_dev; /* the block of batch.c: pinned, and its copy */
    struct cuda_draw_job *jobs;  /* pinned [n_draw_max] */
    struct cuda_draw_out *outs;  /* pinned [2][n_draw_max], written by the device */
    int32_t slot;                /* which half of outs the step at hand writes */
    float *host_logits;          /* pinned [CUDA_HOST_DRAWS][n_vocab] */
    uint8_t *host_scratch;       /* [host threads] */
    size_t host_scratch_bytes;
    int32_t host_draw[CUDA_HOST_DRAWS], n_host_draw;
    float *mirror;               /* buffer(): host copy of a buffer; grown on demand */
    size_t mirror_bytes;
    struct cuda_batch batch;
    struct cuda_ahead ahead;
    struct cuda_moe moe;
    void *latent_work;           /* of attention over latents, and of its indexer */
    size_t latent_work_bytes;
    int32_t i_draws, i_final_norm;
    bool use_graphs;
    struct cuda_graph graphs[CUDA_SMALL + 1][CUDA_SPLIT_STEPS];
    int32_t graphs_of_pool;      /* kv_generation that they were made with */
    struct ops_step_stats stats;
};

/* Vectors of a step that live on the host in the plan and on the device here. */
enum cuda_constant {
    CONST_NORM = 0, CONST_NORM_BIAS = 1, CONST_Q_NORM = 0, CONST_K_NORM = 1, CONST_SINKS = 0, CONST_BIAS = 0, CONST_SCALES = 0, CONST_CHOICE_BIAS = 1, CONST_GATE_BIAS = 0,
    CONST_UP_BIAS = 1, CONST_DOWN_BIAS = 2, CONST_LATENT_NORM = 0, CONST_INDEX_NORM = 1, CONST_INDEX_BIAS = 2,
    CONST_CONV = 0, CONST_DECAY = 1, CONST_DT_BIAS = 2, CONST_DELTA_NORM = 3, CUDA_CONSTANTS = PLAN_MAX_PARTS
};

/* load.c: MB_UNSUPPORTED says where it was looked for and what to do. */
mb_status cuda_library_get(const struct cuda_library **out, mb_error *err);
/* A library beside the program (or libmlxbun.so), in ../lib of that folder, or where the system's loader looks; NULL: why says why
 * one that is there cannot be loaded, and is empty when there is none. */
void *cuda_open_beside(const char *name, char why[256]);
/* device.c: a code of the library to a status that names the device and `what`. */
mb_status cuda_check(const struct device *d, int code, const char *what, mb_error *err);
mb_status cuda_device_open(struct device **out, const struct device_options *opt, mb_error *err);
void cuda_device_close(struct device *d);
const char *cuda_device_describe(const struct device *d);
const char *cuda_device_class(const struct device *d);
size_t cuda_memory_free(struct device *d);
void cuda_kv_sizes(struct device *d, struct kv_kind *k);
mb_status cuda_pool_reserve(struct device *d, size_t bytes, mb_error *err);
void cuda_page_copy(struct device *d, const struct kv_kind *k, int32_t dst_page, int32_t src_page);
void cuda_pool_release(struct device *d, size_t off, size_t bytes);
void cuda_page_read(struct device *d, const struct kv_kind *k, int32_t page, void *dst);
void cuda_page_write(struct device *d, const struct kv_kind *k, int32_t page, const void *src);
/* weights.c */
mb_status cuda_pack_bytes(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err);
mb_status cuda_weight_pack(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err);
void cuda_weight_free(struct device *d, struct weight *w);
mb_status cuda_weight_class(struct device *d, const struct weight_source *src, enum ops_class *out, mb_error *err);
int32_t cuda_act_group(const struct device *d, const struct weight *w, int32_t source_group);
void cuda_weight_row(struct device *d, const struct weight *w, int64_t i, float *out);
void cuda_pack_area_free(struct device *d);
void cuda_chunks_free(struct device *d);
/* compile.c */
size_t cuda_scratch_bytes(struct device *d, const struct plan *p, const struct compile_options *opt);
mb_status cuda_compile(struct device *d, const struct plan *p, const struct compile_options *opt, struct compiled **out,
                       mb_error *err);
void cuda_compiled_free(struct compiled *c);
float *cuda_buffer(struct compiled *c, buf_id b, size_t *row_bytes);
void cuda_describe_step(struct compiled *c, int32_t i_step, char *text, size_t cap);
/* compile.c: place of a window in windows, of a table in ropes. */
int cuda_window_of(const struct compiled *c, int32_t window);
int cuda_rope_of(const struct compiled *c, const struct rope_spec *r);
/* constants.c: device copies of norms, biases, sinks, in a block of so many bytes. */
size_t cuda_constants_bytes(const struct compiled *c);
mb_status cuda_constants_upload(struct compiled *c, uint8_t *block, mb_error *err);
static inline const float *cuda_constant(const struct compiled *c, const struct plan_step *s, int i)
{
    return c->constants[(s - c->plan->steps) * CUDA_CONSTANTS + i];
}
/* batch.c: bytes of the block for batches of up to m_cap tokens, and where everything lies in it. */
size_t cuda_batch_layout(const struct compiled *c, int32_t m_cap, struct cuda_batch_offsets *o);
/* Flatten rows into the block. MB_INTERNAL, MB_CONTEXT_LENGTH, MB_INVALID, MB_UNSUPPORTED as the CPU's. */
mb_status cuda_batch_fill(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err);
/* The block, and the used part of every kind's tables, to the device. */
mb_status cuda_batch_send(struct compiled *c, mb_error *err);
/* The first n pages of a row in every kind's tables of `block`, from entry `at` on. */
void cuda_batch_tables(const struct compiled *c, uint8_t *block, const struct row *r, int32_t at, int32_t n);
/* The first index that a query at `index` sees through a window; token i's rotary row of the block; its queries' other factor. */
int32_t cuda_window_first(const struct compiled *c, int i_window, int32_t index);
void cuda_rope_row(const struct compiled *c, int i_rope, uint8_t *block, int32_t i, int32_t position);
void cuda_q_more(const struct compiled *c, uint8_t *block, int32_t i, int32_t position);
/* lora.c: adapters of the batch: uploads those that are not on the device, fills the tokens' stacks. */
mb_status cuda_adapters_fill(struct compiled *c, const void **stack, mb_error *err);
void cuda_adapters_free(struct device *d);
/* moe.c: steps route and experts. */
int cuda_run_route(struct compiled *c, const struct plan_step *s);
int cuda_run_experts(struct compiled *c, const struct plan_step *s);
/* latent.c: attention over latents. What of it does not run here, NULL: it does; bytes of latent_work; the steps. */
bool cuda_is_latent(const struct plan_step *s);
const char *cuda_latent_refuses(const struct plan_step *s);
size_t cuda_latent_work_bytes(const struct compiled *c);
int cuda_run_heads(struct compiled *c, const struct plan_step *s);
int cuda_run_latent(struct compiled *c, const struct plan_step *s);
int cuda_run_index(struct compiled *c, const struct plan_step *s);
int cuda_run_latent_attend(struct compiled *c, const struct plan_step *s);
/* A linear input in the layout that its rows now want; NULL for none (run.c). */
const struct ck_x *cuda_input_of(struct compiled *c, buf_id b);
/* Rows of a buffer in the batch at hand (run.c). */
int32_t cuda_rows_of(const struct compiled *c, buf_id b);
/* fuse.c: may a step and the one behind it run as one launch in the batch at hand? Norm and products, products and activation,
 * rotation and attention, the choice of rows that draw and their norm. */
bool cuda_norm_fuses(const struct compiled *c, const struct plan_step *s, const struct plan_step *linear);
bool cuda_glu_fuses(const struct compiled *c, const struct plan_step *s, const struct plan_step *glu);
bool cuda_draws_fuse(const struct compiled *c, const struct plan_step *s, const struct plan_step *norm);
bool cuda_rope_fuses(const struct compiled *c, const struct plan_step *s, const struct plan_step *attend);
/* run.c: the graph that runs m single tokens over so many splits, n_split rounded up to what it takes; NULL: none has been captured. */
struct cuda_graph *cuda_graph_at(struct compiled *c, int32_t m, int32_t *n_split);
/* ahead.c: is the batch that was just filled (and runs whole) the step ahead? Then it is the step at hand. Else that one ends unread. */
bool cuda_ahead_take(struct compiled *c, bool whole);
/* The block of a batch that runs as a graph, to the device. */
mb_status cuda_ahead_send(struct compiled *c, mb_error *err);
/* Behind the step at hand, which runs as `now` and is on the stream: the next one, if it can be known. */
mb_status cuda_ahead_launch(struct compiled *c, struct cuda_graph *now, mb_error *err);
/* The step at hand has ended; with a step ahead nobody else waits for it. */
mb_status cuda_ahead_wait(struct compiled *c, mb_error *err);
/* The step at hand once more, for what the step ahead has written over: logits, buffers. */
mb_status cuda_ahead_undo(struct compiled *c, mb_error *err);
mb_status cuda_ahead_open(struct compiled *c, size_t block_bytes, mb_error *err);
void cuda_ahead_close(struct compiled *c);
/* sample.c */
void cuda_job_fill(const struct sample_pos *pos, int32_t n_vocab, struct cuda_draw_job *out);
/* Draws of the open block, once the device's are on their way: waits. logits: device, ld floats a row. */
mb_status cuda_draws_finish(struct compiled *c, const float *logits, size_t ld, mb_error *err);
/* What the norm at s reads and writes (run.c). */
struct cs_norm cuda_norm_args(struct compiled *c, const struct plan_step *s);
/* run.c, for whoever drives several compiled plans side by side (ranks_run.c): steps [first, last) as launches; the block of draws
 * that begins at draw0; its jobs to the device; outputs of the final norm that rows asked for. */
mb_status cuda_run_steps(struct compiled *c, int32_t first, int32_t last, mb_error *err);
void cuda_open_block(struct compiled *c, int32_t draw0);
mb_status cuda_send_jobs(struct compiled *c, mb_error *err);
mb_status cuda_hidden_out(struct compiled *c, mb_error *err);
mb_status cuda_submit(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err);
mb_status cuda_collect(struct compiled *c, mb_error *err);
mb_status cuda_run_range(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, int32_t first,
                         int32_t last, mb_error *err);
void cuda_stats(struct compiled *c, struct ops_step_stats *out);
void cuda_graphs_free(struct compiled *c);
mb_status cuda_probe(struct device *d, double seconds, struct ops_rates *out, mb_error *err);

#endif
