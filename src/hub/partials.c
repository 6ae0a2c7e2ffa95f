/* partials.c: see partials.h. */
#include "hub/partials.h"

#include <sys/stat.h>

#include "base/filemap.h"
#include "hub/get.h"
#include "hub/lock.h"

struct each {
    partial_fn fn;
    void *ctx;
    struct partial p;
};

static mb_status count_blob(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct partial *p = ctx;
    char path[PATH_MAX];
    struct stat st;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (name_ends(name, ".incomplete") && lstat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        p->bytes += (uint64_t)st.st_size;
        p->n_files++;
    }
    if (name_ends(name, ".lock") && lock_is_held(path)) p->active = true;
    return MB_OK;
}

static mb_status count_snapshot(void *ctx, const char *dir, const char *name, mb_error *err)
{
    (void)dir, (void)err;
    if (name_is_commit(name)) ((struct partial *)ctx)->has_snapshot = true;
    return MB_OK;
}

static mb_status look(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct each *e = ctx;
    char repo_dir[PATH_MAX], path[PATH_MAX], marker[PATH_MAX];
    e->p = (struct partial){ 0 };
    if (!name_from_folder(name, e->p.repo)) return MB_OK;
    MB_TRY(path_join(repo_dir, sizeof repo_dir, dir, name, err));
    MB_TRY(path_join(path, sizeof path, repo_dir, "blobs", err));
    MB_TRY(layout_each(path, count_blob, &e->p, err));
    MB_TRY(path_join(path, sizeof path, repo_dir, "snapshots", err));
    MB_TRY(layout_each(path, count_snapshot, &e->p, err));
    MB_TRY(get_marker_path(dir, e->p.repo, marker, err));
    if (marker_is_held(marker)) e->p.active = true;
    return e->p.n_files > 0 ? e->fn(e->ctx, &e->p, err) : MB_OK;
}

mb_status partials_each(const char *root, partial_fn fn, void *ctx, mb_error *err)
{
    struct each e = { .fn = fn, .ctx = ctx };
    return layout_each(root, look, &e, err);
}
