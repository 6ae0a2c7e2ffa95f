/* fuse.c: an adapter into a checkpoint. The model is opened for adapter_load, which checks every tensor of the adapter against it
 * and gives A and scale * B of each matrix in float32; the model is closed again, and the checkpoint conversion writes a copy with
 * these updates.
 */
#include <string.h>

#include "convert/ckpt_int.h"
#include "model/adapter.h"
#include "model/model.h"

#define FUSE_MAX_RANK 512

struct fuse {
    struct device *dev;
    struct model *model;
    struct adapter_handle *adapter;
    struct arena arena; /* names, deltas */
    struct conv_delta *deltas;
    size_t n_deltas, n_modules;
};

static mb_status adapter_read(struct fuse *f, const char *src_dir, const char *adapter_dir, int n_threads, mb_error *err)
{
    struct device_options dopt = { .n_threads = n_threads, .n_ranks = 1 };
    struct adapter_info info;
    MB_TRY(ops_cpu.device_open(&f->dev, &dopt, err));
    struct model_options mopt = { .ops = &ops_cpu, .device = f->dev, .tier = TIER_L1, .kv_format = KV_OF_TIER, .n_rows_max = 1,
                                  .m_max = 1, .max_lora_rank = FUSE_MAX_RANK };
    MB_TRY(model_open(&f->model, src_dir, &mopt, err));
    return adapter_load(&f->adapter, &info, f->model, "adapter", adapter_dir, NULL, err);
}

/* The model's matrices that the adapter touches, in the order in which the model has them. */
static mb_status deltas_collect(struct fuse *f, mb_error *err)
{
    size_t n = 0;
    const struct weight *w;
    const char *before = "";
    int64_t first = 0;
    while (model_weight_at(f->model, n)) n++;
    f->deltas = arena_alloc_array(&f->arena, n + 1, sizeof *f->deltas);
    for (size_t i = 0; f->deltas && i < n; i++, first += w->n) {
        w = model_weight_at(f->model, i);
        const struct lora_module *m = w->i_module >= 0 ? &f->adapter->modules[w->i_module] : NULL;
        bool same = strcmp(before, w->name) == 0; /* the next rows of a fused matrix */
        if (!same) first = 0;
        if (m && m->rank > 0) {
            f->n_modules += !(same && f->n_deltas > 0 && strcmp(f->deltas[f->n_deltas - 1].module, w->name) == 0);
            f->deltas[f->n_deltas++] = (struct conv_delta){ .module = arena_strdup(&f->arena, w->name), .first = first, .n = w->n,
                                                            .k = w->k, .rank = m->rank, .a = m->a, .b = m->b };
        }
        before = w->name;
    }
    if (f->arena.failed) return mb_fail(err, MB_NO_MEMORY, "no memory for the adapter's modules");
    size_t n_updates = 0;
    for (int32_t i = 0; i < model_plan_get(f->model)->n_modules; i++) n_updates += f->adapter->modules[i].rank > 0;
    if (n_updates == f->n_deltas) return MB_OK;
    return mb_fail(err, MB_UNSUPPORTED, "the adapter changes matrices of recurrent layers, which are not fused; mount it with serve --adapter");
}

static void model_done(struct fuse *f)
{
    model_close(f->model);
    if (f->dev) ops_cpu.device_close(f->dev);
    f->model = NULL;
    f->dev = NULL;
}

static mb_status write_fused(struct fuse *f, const char *src_dir, const char *out_dir, const struct fuse_opts *o, mb_error *err)
{
    struct checkpoint_opts copy = { .n_threads = o->n_threads, .progress = o->progress, .progress_ctx = o->progress_ctx };
    struct conv c = { .src_dir = src_dir, .opts = &copy, .deltas = f->deltas, .n_deltas = f->n_deltas, .keep_types = true };
    size_t n_applied = 0;
    mb_status st = conv_open(&c, err);
    for (size_t i = 0; st == MB_OK && i < c.n_items; i++) n_applied += c.items[i].n_deltas;
    if (st == MB_OK && n_applied != f->n_deltas)
        st = mb_fail(err, MB_INTERNAL, "%s: %zu of %zu updates found their module", src_dir, n_applied, f->n_deltas);
    if (st == MB_OK) st = conv_folder_make(&c, out_dir, err);
    if (st == MB_OK && o->result) *o->result = c.result;
    conv_close(&c);
    return st;
}

mb_status convert_fuse(const char *src_dir, const char *adapter_dir, const char *out_dir, const struct fuse_opts *opts,
                       mb_error *err)
{
    static const struct fuse_opts no_opts;
    struct fuse f = { 0 };
    const struct fuse_opts *o = opts ? opts : &no_opts;
    MB_TRY(out_folder_check_target(out_dir, err));
    arena_init(&f.arena, (size_t)1 << 28);
    mb_status st = adapter_read(&f, src_dir, adapter_dir, o->n_threads, err);
    if (st == MB_OK) st = deltas_collect(&f, err);
    model_done(&f);
    if (st == MB_OK) st = write_fused(&f, src_dir, out_dir, o, err);
    if (st == MB_OK && o->n_fused) *o->n_fused = f.n_modules;
    adapter_free(f.adapter);
    arena_free(&f.arena);
    return st;
}
