/* stepper.h: what the scheduler drives: something that takes rows and returns draws. The model is one (model_stepper),
 * the scripted engine of the tests another; both go through the same scheduler, filters and parsers.
 */
#ifndef ENGINE_STEPPER_H
#define ENGINE_STEPPER_H

#include "ops/row.h"

struct canvas_spec;

struct stepper_info {
    int32_t n_vocab, n_context;
    int32_t m_max;               /* tokens of a batch */
    int32_t n_rows_max;          /* rows of a batch */
    int32_t n_draw_max;          /* drawing positions of a batch; 0 = m_max */
    int32_t d_model;             /* floats of one media embedding; 0 = takes no media */
    bool async;                  /* one step stays in flight */
    bool early;                  /* may begin a step that it guesses: ops.h */
    const struct kv_kind *kinds; /* borrowed; n_kinds 0: no state (scripted) */
    int32_t n_kinds;
    const struct canvas_spec *canvas; /* borrowed (model/spec.h); the model draws by canvases; NULL: token by token */
    uint64_t identity;           /* weights, tier, KV format, numerics version, device class: root of cache keys */
    const char *describe;        /* one line */
};

struct adapter_info;
struct ops_expert_stats;
struct buf;

struct stepper {
    void *ctx;
    const struct stepper_info *(*info)(void *ctx);
    /* Compute (or begin) one batch. results[i].draws is set by the caller. On failure no sequence has changed. */
    mb_status (*submit)(void *ctx, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err);
    mb_status (*collect)(void *ctx, mb_error *err);
    mb_status (*pool_reserve)(void *ctx, size_t bytes, mb_error *err);
    void (*page_copy)(void *ctx, int32_t i_kind, int32_t dst_page, int32_t src_page);
    void (*pool_release)(void *ctx, size_t off, size_t bytes);
    void (*page_read)(void *ctx, int32_t i_kind, int32_t page, void *dst);
    void (*page_write)(void *ctx, int32_t i_kind, int32_t page, const void *src);
    mb_status (*reserve_positions)(void *ctx, int32_t n, mb_error *err);
    void (*step_stats)(void *ctx, uint64_t *n_barriers, uint64_t *barrier_ns);
    void (*close)(void *ctx);    /* releases ctx */
    /* Adapters, any thread; NULL: takes none. See model/adapter.h. */
    mb_status (*adapter_load)(void *ctx, const char *id, const char *dir, struct adapter_handle **out,
                              struct adapter_info *info, struct buf *problems, mb_error *err);
    void (*adapter_free)(void *ctx, struct adapter_handle *h);
    /* Offloaded experts, since the start; NULL: there are none. */
    void (*expert_stats)(void *ctx, struct ops_expert_stats *out);
};

struct model;
/* Wrap a model: it and its device are owned from now on and closed by stepper.close. On failure nothing is taken. */
mb_status stepper_from_model(struct stepper *out, struct model *m, mb_error *err);

#endif
