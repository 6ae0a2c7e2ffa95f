/* ranks_int.h: one model over several ranks (docs/cuda.md, "Several GPUs"). A rank is an ordinary device of this backend with a
 * compiled plan of its own: the model's, in which every matrix is the rank's rows of it. Between the steps of those plans stand
 * joins: columns that the ranks computed apart are put side by side on each of them. Nothing is summed across ranks, so the bits
 * are those of one.
 *
 * The row of backends is ops_cuda_ranks; its struct device is a rank_group, its struct compiled a rank_plans, its weights'
 * impl a rank_weight. One thread, the engine's, drives all ranks.
 * Owner of state: ranks_device.c (ranks, weights, pages), ranks_split.c (plans), ranks_run.c (joins, steps, graphs), comm.c, ranks_trade.c.
 */
#ifndef OPS_CUDA_RANKS_INT_H
#define OPS_CUDA_RANKS_INT_H

#include "ops/cuda/cuda_int.h"

/* --- how what one rank has comes to the others. Rows: loopback (all ranks on one card); peer (cards that reach each other's memory:
 * a part is read where it was made, once all ranks have met); nccl --- */

struct comm;
struct rank_group;
struct comm_ops {
    const char *name;
    mb_status (*open)(struct comm *c, mb_error *err);
    void (*close)(struct comm *c);
    /* Enqueue on every rank's stream: afterwards part q lies for rank r at from[r][q]. part[q] NULL, bytes[q] 0: it has none.
     * stage[r]: room for all parts. 0 or a code of error_text. */
    int (*spread)(struct comm *c, void *const *part, const size_t *bytes, void *const *stage, void *from[OPS_RANKS_MAX][OPS_RANKS_MAX]);
    /* A failure that no call has reported; 0: none. */
    int (*failed)(struct comm *c);
    /* Let go of what waits for a rank that will not come: once, after a failure. False: it still waits, and so would whoever
     * waits for a card. */
    bool (*abort)(struct comm *c);
    const char *(*error_text)(const struct comm *c, int code);
    bool needs_stage;
};
struct comm {
    const struct comm_ops *ops;
    int n;
    struct device *const *rank; /* the group's */
    void *state[OPS_RANKS_MAX]; /* of the implementation, a rank */
    struct rank_group *group;
    volatile uint32_t *given_up; /* peer: pinned; not 0 = ranks stop waiting for each other */
    void *inbox[OPS_RANKS_MAX]; /* peer: where others push what few tokens have (ranks_trade.c) */
    int32_t n_traded;           /* pushes enqueued since the numbers of all inboxes moved on */
    bool no_trade;              /* nobody pushes: for comparison (bench/cuda_ranks.c) */
};
extern const struct comm_ops comm_loopback, comm_peer, comm_nccl;

/* --- ranks, weights --- */

struct rank_group {
    int n;
    struct device *rank[OPS_RANKS_MAX]; /* loopback: all on the first one's stream */
    bool shared_card;
    struct comm comm;
    char describe[160];
    bool dead;                  /* a rank has failed: nothing runs any more */
    bool stuck;                 /* dead, and a card still waits: nobody touches the cards any more, they go with the process */
    bool recording;             /* a graph is being recorded: what fails now ends no rank */
    struct rank_plans *plans;   /* compiled on it, the newest first */
    bool asked_for_page;        /* page_read or page_write was called: the next submit says that it cannot be */
};

/* weight.impl: what each rank has of a matrix. */
struct rank_weight {
    struct weight part[OPS_RANKS_MAX]; /* impl: cuda_weight, NULL where n is 0 */
};

/* Of n_units things in a row, rank r of n has [*first, *end). */
static inline void rank_share(int64_t n_units, int n, int r, int64_t *first, int64_t *end)
{
    *first = n_units * r / n;
    *end = n_units * (r + 1) / n;
}
/* Rows of a matrix of n rows; split as struct weight has it, SPLIT_WHOLE counts as 16. */
static inline void rank_rows(int64_t n, int32_t split, int n_ranks, int r, int64_t *first, int64_t *end)
{
    int64_t unit = split > 0 ? split : 16;
    rank_share((n + unit - 1) / unit, n_ranks, r, first, end);
    *first *= unit;
    *end *= unit;
    if (*first > n) *first = n;
    if (*end > n) *end = n;
}

/* --- plans --- */

/* A join behind step i_step of the model's plan. */
struct rank_join {
    int32_t i_step;
    bool is_input;              /* linear inputs, else floats */
    bool first_only;            /* only rank 0 reads the result */
    bool add;                   /* it is added to what is there */
    buf_id full;
    struct rank_join_part {
        buf_id buf;             /* of the rank's plan; n 0: none */
        int32_t first, n;       /* columns of full */
        int32_t at;             /* step of the rank's plan that comes next */
    } part[OPS_RANKS_MAX];
};

struct rank_plan {
    struct plan plan;           /* steps, layer_first: owned here */
    struct weight *weights;     /* rows of matrices that the plan's steps point to */
    struct cuda_weight *views;  /* impl of those that are part of a whole one */
    int32_t n_weights;
    int32_t *step_of;           /* [n_steps of the model's + 1] step of this plan that begins what was step i */
};

struct rank_graph {
    void *graph[OPS_RANKS_MAX]; /* a stream each */
    int32_t uses;
};

struct rank_plans {
    struct rank_group *group;
    struct rank_plans *next;    /* of the group's */
    const struct plan *model;   /* the plan that was asked for */
    struct rank_plan rank[OPS_RANKS_MAX];
    struct rank_join *joins;
    int32_t n_joins, cap_joins;
    struct compiled *compiled[OPS_RANKS_MAX];
    void *stage[OPS_RANKS_MAX]; /* NULL: the communicator needs none */
    bool use_graphs;
    struct rank_graph graphs[CUDA_SMALL + 1][CUDA_SPLIT_STEPS];
    int32_t graphs_of_pool;
    struct ops_step_stats stats;
};

/* ranks_split.c: the ranks' plans and joins of p->model. MB_UNSUPPORTED names what cannot be split and the remedy. */
mb_status ranks_split(struct rank_plans *p, mb_error *err);
void ranks_split_free(struct rank_plans *p);

/* ranks_trade.c: joins that are pushes. The caller has waited for all streams before it closes. */
mb_status ranks_trade_open(struct comm *c, mb_error *err);
void ranks_trade_close(struct comm *c);
/* Can join j of m rows be one? */
bool ranks_trade_takes(const struct rank_plans *p, const struct rank_join *j, int32_t m);
/* part[r]: what rank r has; NULL: nothing. */
mb_status ranks_trade(struct rank_plans *p, const struct rank_join *j, int32_t m, void *const *part, mb_error *err);
/* Can the norm at step i_step of the model's plan, behind join j, be part of the push? Then ranks_trade_norm is both. */
bool ranks_trade_takes_norm(const struct rank_plans *p, const struct rank_join *j, int32_t m, int32_t i_step);
mb_status ranks_trade_norm(struct rank_plans *p, const struct rank_join *j, int32_t m, void *const *part, mb_error *err);
/* Behind the last push of what is enqueued together, or of a graph. */
mb_status ranks_trade_end(struct rank_plans *p, mb_error *err);

/* ranks_device.c */
static inline struct rank_group *ranks_group(struct device *d) { return (struct rank_group *)(void *)d; }
mb_status ranks_device_open(struct device **out, const struct device_options *opt, mb_error *err);
void ranks_device_close(struct device *d);
const char *ranks_device_describe(const struct device *d);
const char *ranks_device_class(const struct device *d);
size_t ranks_memory_free(struct device *d);
mb_status ranks_pack_bytes(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err);
mb_status ranks_weight_pack(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err);
void ranks_weight_free(struct device *d, struct weight *w);
mb_status ranks_weight_class(struct device *d, const struct weight_source *src, enum ops_class *out, mb_error *err);
int32_t ranks_act_group(const struct device *d, const struct weight *w, int32_t source_group);
void ranks_weight_row(struct device *d, const struct weight *w, int64_t i, float *out);
void ranks_kv_sizes(struct device *d, struct kv_kind *k);
mb_status ranks_pool_reserve(struct device *d, size_t bytes, mb_error *err);
void ranks_page_copy(struct device *d, const struct kv_kind *k, int32_t dst_page, int32_t src_page);
void ranks_pool_release(struct device *d, size_t off, size_t bytes);
void ranks_page_read(struct device *d, const struct kv_kind *k, int32_t page, void *dst);
void ranks_page_write(struct device *d, const struct kv_kind *k, int32_t page, const void *src);
mb_status ranks_probe(struct device *d, double seconds, struct ops_rates *out, mb_error *err);
/* Wait for all ranks. MB_DEVICE: one has failed; the group is dead then, and nobody waits any more. */
mb_status ranks_wait(struct rank_group *g, const char *what, mb_error *err);
/* A code of rank r, or of the communicator (r < 0), to a status; the group is dead after one that is not MB_OK. */
mb_status ranks_check(struct rank_group *g, int r, int code, const char *what, mb_error *err);
/* A step of a rank returned st. */
mb_status ranks_end(struct rank_group *g, mb_status st);

/* ranks_run.c: captured graphs of every plan of the group. */
void ranks_graphs_free(struct rank_group *g);
mb_status ranks_compile(struct device *d, const struct plan *p, const struct compile_options *opt, struct compiled **out, mb_error *err);
void ranks_compiled_free(struct compiled *c);
size_t ranks_scratch_bytes(struct device *d, const struct plan *p, const struct compile_options *opt);
mb_status ranks_submit(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err);
mb_status ranks_collect(struct compiled *c, mb_error *err);
mb_status ranks_run_range(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results, int32_t first,
                          int32_t last, mb_error *err);
float *ranks_buffer(struct compiled *c, buf_id b, size_t *row_bytes);
void ranks_stats(struct compiled *c, struct ops_step_stats *out);
void ranks_describe_step(struct compiled *c, int32_t i_step, char *text, size_t cap);
/* Seconds that the joins of one step take by themselves, for a batch like the last one: the best of n rounds (bench/cuda_ranks.c).
 * What lies in the buffers is of no use afterwards. */
mb_status ranks_joins_time(struct compiled *c, int n, double *seconds, mb_error *err);

#endif
