/* gc_packed.c: packed weights under the collector: derived files as large as models, so they are the first to go. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "hub/gc_int.h"
#include "hub/packed.h"

static mb_status decide(void *ctx, const struct packed_file *p, mb_error *err)
{
    struct gc_work *w = ctx;
    if (p->in_use) return gc_warn(w, err, "%s stays: a running program has it open", p->path);
    return gc_add_item(w, p->is_leftover ? GC_LEFTOVER : GC_PACKED, "", p->path, p->bytes, err);
}

static mb_status remove_all(struct gc_repo *r, mb_error *err)
{
    for (size_t i = 0; i < r->n_items; i++) {
        struct gc_item *item = &r->items[i];
        if (unlink(item->path) != 0 && errno != ENOENT) return mb_fail_errno(err, "cannot remove", item->path);
        item->removed = true;
    }
    return MB_OK;
}

mb_status gc_run_packed(struct gc_work *w, mb_error *err)
{
    const char *const *dirs = w->o->packed_dirs;
    w->folder = "";
    mb_status st = gc_repo_begin(w, "(packed weights)", err);
    for (int i = 0; i < 2 && st == MB_OK; i++)
        if (dirs[i] && (i == 0 || !dirs[0] || strcmp(dirs[0], dirs[1]) != 0)) st = packed_each(dirs[i], decide, w, err);
    if (st == MB_OK && w->o->execute) st = remove_all(w->repo, err);
    gc_repo_end(w);
    return st;
}
