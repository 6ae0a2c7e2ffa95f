/* stepper_model.c: a loaded model as a stepper: kinds become numbers, the rest goes straight to the backend.
 * Lifetime: owns the model and its device; close releases both, the model first. A batch may hold as many rows as
 * tokens: who loads the model (open.c) has compiled it for the engine's batch. */
#include <string.h>

#include "base/mem.h"
#include "engine/stepper.h"
#include "model/adapter.h"
#include "model/model.h"

/* Bits of cached keys are those of this version (docs/numerics.md): a change of any order of sums counts it up. */
enum { NUMERICS_VERSION = 1 };

struct model_stepper {
    struct model *model;
    const struct ops *ops;
    const struct plan *plan;
    struct compiled *compiled, *canvas; /* canvas: NULL, or for rows over one */
    struct compiled *running;           /* which of them computes, or has last */
    struct device *device;
    struct stepper_info info;
};

static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) h = (h ^ p[i]) * 0x100000001B3u; /* FNV-1a */
    return h;
}

/* Everything besides adapters and request that a key's bits depend on. */
static uint64_t identity(const struct model_stepper *m)
{
    uint64_t h = 0xCBF29CE484222325u, print = model_fingerprint(m->model);
    int32_t version = NUMERICS_VERSION, tier = (int32_t)model_tier(m->model);
    const char *device_class = m->ops->device_class(m->device);
    h = hash_bytes(h, &print, sizeof print);
    h = hash_bytes(h, &version, sizeof version);
    h = hash_bytes(h, &tier, sizeof tier);
    h = hash_bytes(h, device_class, strlen(device_class));
    h = hash_bytes(h, &m->plan->n_context, sizeof m->plan->n_context); /* longrope chooses its factors by it */
    for (int32_t k = 0; k < m->plan->n_kinds; k++) {
        const struct kv_kind *kind = &m->plan->kinds[k];
        int32_t what[4] = { (int32_t)kind->type, kind->window, kind->n_layer, kind->format };
        h = hash_bytes(h, what, sizeof what);
    }
    const struct model_spec *spec = model_spec_get(m->model);
    for (int32_t i = 0; i < spec->n_layer; i++) { /* which layers are of which kind: kv_config.json may say */
        int32_t of[2] = { spec->layers[i].i_kind, spec->layers[i].i_in_kind };
        h = hash_bytes(h, of, sizeof of);
    }
    return h;
}

static const struct stepper_info *ms_info(void *ctx)
{
    return &((struct model_stepper *)ctx)->info;
}

static mb_status ms_submit(void *ctx, const struct row *rows, int32_t n_rows, struct row_result *results, mb_error *err)
{
    struct model_stepper *m = ctx;
    m->running = rows[0].canvas && m->canvas ? m->canvas : m->compiled;
    return m->ops->submit(m->running, rows, n_rows, results, err);
}

static mb_status ms_collect(void *ctx, mb_error *err)
{
    struct model_stepper *m = ctx;
    return m->ops->collect(m->running, err);
}

static mb_status ms_pool_reserve(void *ctx, size_t bytes, mb_error *err)
{
    struct model_stepper *m = ctx;
    return m->ops->pool_reserve(m->device, bytes, err);
}

static void ms_page_copy(void *ctx, int32_t i_kind, int32_t dst_page, int32_t src_page)
{
    struct model_stepper *m = ctx;
    m->ops->page_copy(m->device, &m->plan->kinds[i_kind], dst_page, src_page);
}

static void ms_pool_release(void *ctx, size_t off, size_t bytes)
{
    struct model_stepper *m = ctx;
    m->ops->pool_release(m->device, off, bytes);
}

static void ms_page_read(void *ctx, int32_t i_kind, int32_t page, void *dst)
{
    struct model_stepper *m = ctx;
    m->ops->page_read(m->device, &m->plan->kinds[i_kind], page, dst);
}

static void ms_page_write(void *ctx, int32_t i_kind, int32_t page, const void *src)
{
    struct model_stepper *m = ctx;
    m->ops->page_write(m->device, &m->plan->kinds[i_kind], page, src);
}

static mb_status ms_reserve_positions(void *ctx, int32_t n, mb_error *err)
{
    struct model_stepper *m = ctx;
    return model_reserve_positions(m->model, n, err);
}

static void ms_step_stats(void *ctx, uint64_t *n_barriers, uint64_t *barrier_ns)
{
    struct model_stepper *m = ctx;
    struct ops_step_stats s = { 0 };
    if (m->ops->stats) m->ops->stats(m->running, &s);
    *n_barriers = s.n_barriers;
    *barrier_ns = s.barrier_ns;
}

static mb_status ms_adapter_load(void *ctx, const char *id, const char *dir, struct adapter_handle **out,
                                 struct adapter_info *info, struct buf *problems, mb_error *err)
{
    struct model_stepper *m = ctx;
    return adapter_load(out, info, m->model, id, dir, problems, err);
}

static void ms_adapter_free(void *ctx, struct adapter_handle *h)
{
    (void)ctx;
    adapter_free(h);
}

static void ms_expert_stats(void *ctx, struct ops_expert_stats *out)
{
    struct model_stepper *m = ctx;
    m->ops->experts_stats(m->device, out);
}

static void ms_close(void *ctx)
{
    struct model_stepper *m = ctx;
    model_close(m->model);
    m->ops->device_close(m->device);
    mb_free(m);
}

mb_status stepper_from_model(struct stepper *out, struct model *model, mb_error *err)
{
    memset(out, 0, sizeof *out);
    struct model_stepper *m = mb_calloc(1, sizeof *m);
    if (!m) return mb_fail(err, MB_NO_MEMORY, "no memory for the model's stepper");
    m->model = model;
    m->ops = model_ops(model);
    m->plan = model_plan_get(model);
    m->compiled = m->running = model_compiled(model);
    m->canvas = model_canvas(model);
    m->device = model_device(model);
    m->info = (struct stepper_info){ .n_vocab = m->plan->n_vocab, .n_context = m->plan->n_context,
                                     .m_max = m->plan->m_max, .n_rows_max = m->plan->m_max,
                                     .d_model = m->plan->d_model,
                                     .async = m->ops->async, .early = m->ops->early, .kinds = m->plan->kinds, .n_kinds = m->plan->n_kinds,
                                     .canvas = m->canvas ? &model_spec_get(model)->canvas : NULL,
                                     .identity = identity(m), .describe = m->ops->device_describe(m->device) };
    *out = (struct stepper){ m, ms_info, ms_submit, ms_collect, ms_pool_reserve, ms_page_copy, ms_pool_release,
                             ms_page_read, ms_page_write, ms_reserve_positions, ms_step_stats, ms_close, ms_adapter_load,
                             ms_adapter_free,
                             m->ops->experts_stats && model_expert_bytes(model) > 0 ? ms_expert_stats : NULL };
    return MB_OK;
}
