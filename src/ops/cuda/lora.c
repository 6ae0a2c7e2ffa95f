/* lora.c: adapters on the device. An adapter is uploaded when a row with it is first submitted and kept, by its content hash,
 * until CUDA_ADAPTERS others have come after it. Each has one block: a table of modules, then their matrices.
 */
#include <string.h>

#include "base/mem.h"
#include "ops/cuda/cuda_int.h"

struct cuda_adapter {
    uint64_t content_hash, last_used;
    int32_t n_modules;
    void *block;                 /* device: struct cs_lora_module [n_modules], matrices */
};

static size_t round_up(size_t v)
{
    return (v + 255) / 256 * 256;
}

/* Layout of the block; host: the table of modules to fill, or NULL to count. */
static size_t lay_out(const struct compiled *c, const struct adapter_handle *a, const int64_t *n, const int64_t *k, uint8_t *base,
                      struct cs_lora_module *table)
{
    size_t off = round_up((size_t)c->plan->n_modules * sizeof *table);
    for (int32_t i = 0; i < c->plan->n_modules; i++) {
        const struct lora_module *m = &a->modules[i];
        size_t a_bytes = round_up((size_t)m->rank * (size_t)k[i] * sizeof(float)), b_bytes = round_up((size_t)m->rank * (size_t)n[i] * sizeof(float));
        if (table)
            table[i] = (struct cs_lora_module){ .rank = m->rank, .a = (const float *)(const void *)(base + off),
                                                .b = (const float *)(const void *)(base + off + a_bytes) };
        off += a_bytes + b_bytes;
    }
    return off;
}

/* Outputs and inputs of every module, from the linears of the plan. */
static void module_shapes(const struct compiled *c, int64_t *n, int64_t *k)
{
    for (int32_t i = 0; i < c->plan->n_steps; i++) {
        const struct plan_step *s = &c->plan->steps[i];
        for (int j = 0; s->op == STEP_LINEAR && j < s->u.linear.n_parts; j++) {
            const struct weight *w = s->u.linear.part[j].w;
            if (w->i_module < 0) continue;
            n[w->i_module] = w->n;
            k[w->i_module] = w->k;
        }
    }
}

static mb_status copy_in(struct compiled *c, const struct adapter_handle *a, const int64_t *n, const int64_t *k,
                         const struct cs_lora_module *table, void *block, mb_error *err)
{
    const struct cuda_library *lib = c->dev->lib;
    int code = lib->copy(block, table, (size_t)c->plan->n_modules * sizeof *table, c->dev->stream);
    for (int32_t i = 0; code == 0 && i < c->plan->n_modules; i++) {
        const struct lora_module *m = &a->modules[i];
        if (m->rank == 0) continue;
        code = lib->copy((void *)(uintptr_t)table[i].a, m->a, (size_t)m->rank * (size_t)k[i] * sizeof(float), c->dev->stream);
        if (code == 0) code = lib->copy((void *)(uintptr_t)table[i].b, m->b, (size_t)m->rank * (size_t)n[i] * sizeof(float), c->dev->stream);
    }
    if (code == 0) code = lib->stream_wait(c->dev->stream); /* the host's table goes now */
    return cuda_check(c->dev, code, "an adapter to the device", err);
}

static void adapter_free(struct device *d, struct cuda_adapter *a)
{
    if (a && a->block) d->lib->free(a->block);
    mb_free(a);
}

static mb_status upload(struct compiled *c, const struct adapter_handle *a, struct cuda_adapter **out, mb_error *err)
{
    size_t n_modules = (size_t)c->plan->n_modules;
    struct cuda_adapter *got = mb_calloc(1, sizeof *got);
    int64_t *shapes = mb_calloc(2 * n_modules, sizeof *shapes);
    struct cs_lora_module *table = mb_calloc(n_modules, sizeof *table);
    mb_status st = got && shapes && table ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for adapter %.64s", a->id);
    if (st == MB_OK) {
        module_shapes(c, shapes, shapes + n_modules);
        size_t bytes = lay_out(c, a, shapes, shapes + n_modules, NULL, NULL);
        st = cuda_check(c->dev, c->dev->lib->alloc(&got->block, bytes), "memory for an adapter", err);
    }
    if (st == MB_OK) {
        lay_out(c, a, shapes, shapes + n_modules, got->block, table);
        st = copy_in(c, a, shapes, shapes + n_modules, table, got->block, err);
    }
    if (st == MB_OK) {
        got->content_hash = a->content_hash;
        got->n_modules = c->plan->n_modules;
        *out = got;
    } else {
        adapter_free(c->dev, got);
    }
    mb_free(shapes);
    mb_free(table);
    return st;
}

static uint64_t last_used(const struct cuda_adapter *a)
{
    return a ? a->last_used : 0; /* an empty place before all others */
}

/* The adapter on the device; when it is not there it takes the place of the one used longest ago. A batch may not push out
 * what it uses itself. */
static mb_status adapter_get(struct compiled *c, const struct adapter_handle *a, uint64_t batch, struct cuda_adapter **out, mb_error *err)
{
    struct device *d = c->dev;
    int at = 0;
    for (int i = 0; i < CUDA_ADAPTERS; i++) {
        struct cuda_adapter *x = d->adapters[i];
        if (last_used(x) < last_used(d->adapters[at])) at = i;
        if (!x || x->content_hash != a->content_hash || x->n_modules != c->plan->n_modules) continue;
        x->last_used = batch;
        *out = x;
        return MB_OK;
    }
    if (last_used(d->adapters[at]) == batch)
        return mb_fail_at(err, MB_UNSUPPORTED, "adapter", "a batch uses more than %d different adapters on a GPU; lower --batch", CUDA_ADAPTERS);
    adapter_free(d, d->adapters[at]); /* no step is in flight */
    d->adapters[at] = NULL;
    MB_TRY(upload(c, a, &d->adapters[at], err));
    d->adapters[at]->last_used = batch;
    *out = d->adapters[at];
    return MB_OK;
}

static mb_status check_stack(const struct plan *p, const struct row *r, mb_error *err)
{
    if (r->n_adapters > PLAN_MAX_STACK)
        return mb_fail_at(err, MB_UNSUPPORTED, "adapter", "%d adapters are stacked, at most %d can be", (int)r->n_adapters, PLAN_MAX_STACK);
    for (int32_t i = 0; i < r->n_adapters; i++)
        if (r->adapters[i]->max_rank > p->max_lora_rank)
            return mb_fail_at(err, MB_UNSUPPORTED, "adapter", "adapter %.64s has rank %d, the plan was made for %d",
                              r->adapters[i]->id, (int)r->adapters[i]->max_rank, (int)p->max_lora_rank);
    return MB_OK;
}

mb_status cuda_adapters_fill(struct compiled *c, const void **stack, mb_error *err)
{
    struct cuda_batch *b = &c->batch;
    uint64_t batch = ++c->dev->adapter_clock;
    b->lora = false;
    for (int32_t i = 0; i < b->n_rows; i++) b->lora = b->lora || b->rows[i].n_adapters > 0;
    if (!b->lora) return MB_OK; /* nobody reads the stacks then */
    memset(stack, 0, (size_t)b->m * PLAN_MAX_STACK * sizeof *stack);
    for (int32_t i = 0; i < b->n_rows; i++) {
        const struct row *r = &b->rows[i];
        MB_TRY(check_stack(c->plan, r, err));
        for (int32_t s = 0; s < r->n_adapters; s++) {
            struct cuda_adapter *a = NULL;
            MB_TRY(adapter_get(c, r->adapters[s], batch, &a, err));
            for (int32_t t = b->row_first[i]; t < b->row_first[i + 1]; t++) stack[(int64_t)t * PLAN_MAX_STACK + s] = a->block;
        }
    }
    return MB_OK;
}

void cuda_adapters_free(struct device *d)
{
    for (int i = 0; i < CUDA_ADAPTERS; i++) adapter_free(d, d->adapters[i]);
}
