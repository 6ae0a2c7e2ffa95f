/* cmd_fuse.c: `mlx-bun fuse`: a LoRA adapter into a checkpoint (src/convert/fuse.c). */
#include "cli/mixed.h"
#include "convert/convert.h"

static bool on_bytes(void *ctx, uint64_t done, uint64_t total)
{
    progress_set(ctx, total ? (double)done / (double)total : 1);
    return true;
}

/* What mlx_lm.fuse has and this verb has not: said, with exit status 1. */
static const char *not_offered(const struct flags *f)
{
    if (f->dequantize.b) return "--dequantize is not offered: each module keeps its bits and group";
    if (f->export_gguf.b) return "--export-gguf is not offered";
    if (f->upload_repo.given) return "--upload-repo is not offered: publish the folder when it is made";
    return NULL;
}

static mb_status report(const struct flags *f, const struct checkpoint_result *r, size_t n_fused, mb_error *err)
{
    char size[32];
    if (f->json.b)
        return print_object(json_pack("{s:s, s:s, s:I, s:I, s:I, s:f}", "directory", f->save_path.s, "model_type", r->model_type,
                                      "tensors", (json_int_t)r->n_tensors, "fused", (json_int_t)n_fused, "size_bytes",
                                      (json_int_t)r->size_bytes, "bits_per_weight", r->bits_per_weight), err);
    printf("%s: %s, %s, the adapter is in %zu modules\n", f->save_path.s, r->model_type, model_size_text(r->size_bytes, size), n_fused);
    return MB_OK;
}

mb_status cmd_fuse(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char src_dir[MODEL_PATH_MAX];
    struct checkpoint_result result;
    struct progress bar;
    size_t n_fused;
    const char *refusal = not_offered(f), *arg = f->model.given ? f->model.s : n_pos > 0 ? pos[0] : NULL;
    if (refusal) {
        fprintf(stderr, "mlx-bun: %s\n", refusal);
        *exit_status = 1;
        return MB_OK;
    }
    if (!arg || !f->adapter.given) return mb_fail(err, MB_INVALID, "fuse what? mlx-bun fuse MODEL --adapter DIR; see mlx-bun help fuse");
    MB_TRY(convert_find_source(f, arg, src_dir, err));
    progress_begin(&bar, "fusing", f->quiet.b);
    struct fuse_opts opt = { .n_threads = (int)f->threads.i, .progress = on_bytes, .progress_ctx = &bar, .result = &result, .n_fused = &n_fused };
    mb_status st = convert_fuse(src_dir, f->adapter.s, f->save_path.s, &opt, err);
    progress_end(&bar);
    return st == MB_OK ? report(f, &result, n_fused, err) : st;
}
