/* gc_repo.c: what is in a repository: refs, snapshots with their links, who is at work. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "hub/gc_int.h"
#include "hub/get.h"
#include "hub/lock.h"

static mb_status no_memory(mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "no memory for the plan");
}

/* --- the report --- */

mb_status gc_add_item(struct gc_work *w, enum gc_kind kind, const char *sub, const char *name, uint64_t bytes, mb_error *err)
{
    struct gc_repo *r = w->repo;
    if (r->n_items == r->cap_items) {
        size_t cap = r->cap_items ? 2 * r->cap_items : 16;
        struct gc_item *more = arena_alloc_array(&w->plan->arena, cap, sizeof *more);
        if (!more) return no_memory(err);
        if (r->n_items) memcpy(more, r->items, r->n_items * sizeof *more);
        r->items = more;
        r->cap_items = cap;
    }
    const char *path = arena_printf(&w->plan->arena, "%s%s%s%s%s", w->folder, *w->folder && *sub ? "/" : "", sub,
                                    (*w->folder || *sub) && *name ? "/" : "", name);
    if (!path) return no_memory(err);
    r->items[r->n_items++] = (struct gc_item){ .kind = kind, .path = path, .bytes = bytes };
    r->bytes += bytes;
    return MB_OK;
}

mb_status gc_warn(struct gc_work *w, mb_error *err, const char *fmt, ...)
{
    struct gc_repo *r = w->repo;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (r->n_warnings == r->cap_warnings) {
        size_t cap = r->cap_warnings ? 2 * r->cap_warnings : 8;
        const char **more = arena_alloc_array(&w->plan->arena, cap, sizeof *more);
        if (!more) return no_memory(err);
        if (r->n_warnings) memcpy(more, r->warnings, r->n_warnings * sizeof *more);
        r->warnings = more;
        r->cap_warnings = cap;
    }
    r->warnings[r->n_warnings] = arena_strdup(&w->plan->arena, text);
    return r->warnings[r->n_warnings++] ? MB_OK : no_memory(err);
}

/* --- looking --- */

static mb_status take_ref(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct gc_work *w = ctx;
    char commit[NAME_COMMIT_LEN + 1], path[PATH_MAX];
    mb_error why;
    (void)dir;
    if (layout_ref_read(w->o->root, w->repo->repo, name, commit, &why) != MB_OK || name_is_commit(name)) {
        w->refs_broken = true; /* a ref that cannot be read protects we know not what */
        return MB_OK;
    }
    char sub[80];
    snprintf(sub, sizeof sub, "snapshots/%s", commit);
    MB_TRY(path_join(path, sizeof path, w->dir, sub, err));
    if (!dir_exists(path)) w->refs_broken = true;
    return json_object_set_new(w->refs, commit, json_true()) == 0 ? MB_OK : no_memory(err);
}

/* One entry of a snapshot: the digest that its link names, "" for a file of its own. */
static mb_status take_file(void *ctx, const char *dir, const char *name, mb_error *err)
{
    char path[PATH_MAX], target[PATH_MAX];
    const char *digest = "";
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n > 0) {
        target[n] = '\0';
        const char *slash = strrchr(target, '/');
        digest = slash ? slash + 1 : target;
    }
    return json_object_set_new(ctx, name, json_string(digest)) == 0 ? MB_OK : no_memory(err);
}

static mb_status take_snapshot(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct gc_work *w = ctx;
    char path[PATH_MAX];
    struct stat st;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return MB_OK;
    json_t *files = json_object();
    if (!files || json_object_set_new(w->snapshots, name, files) != 0) return no_memory(err);
    return layout_each_file(path, take_file, files, err);
}

/* <digest>.lock beside a blob. */
static mb_status take_lock(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct gc_work *w = ctx;
    char path[PATH_MAX];
    if (!name_ends(name, ".lock")) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (lock_is_held(path)) w->downloading = true;
    return MB_OK;
}

/* Other clients lock <root>/.locks/<folder>/<etag>.lock while they download. */
static mb_status take_foreign_lock(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct gc_work *w = ctx;
    char path[PATH_MAX];
    if (!name_ends(name, ".lock")) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (marker_is_held(path)) w->downloading = true;
    return MB_OK;
}

mb_status gc_look(struct gc_work *w, mb_error *err)
{
    char path[PATH_MAX], name[NAME_FOLDER_MAX + 16];
    MB_TRY(path_join(path, sizeof path, w->dir, "refs", err));
    MB_TRY(layout_each_file(path, take_ref, w, err));
    if (json_object_size(w->refs) == 0) w->refs_broken = true;
    MB_TRY(path_join(path, sizeof path, w->dir, "snapshots", err));
    MB_TRY(layout_each(path, take_snapshot, w, err));
    MB_TRY(path_join(path, sizeof path, w->dir, "blobs", err));
    MB_TRY(layout_each(path, take_lock, w, err));
    snprintf(name, sizeof name, ".locks/%s", w->folder);
    MB_TRY(path_join(path, sizeof path, w->o->root, name, err));
    return layout_each(path, take_foreign_lock, w, err);
}

const char *gc_in_use(const struct gc_work *w, const char *commit)
{
    char path[PATH_MAX];
    const char *file;
    json_t *digest;
    if (name_is_commit(commit) && get_use_path(w->o->root, w->repo->repo, commit, path, NULL) == MB_OK && marker_is_held(path))
        return "a running server uses it";
    json_object_foreach(json_object_get(w->snapshots, commit), file, digest)
        if (json_object_get(w->in_use, json_string_value(digest))) return "a running program has a file of it open";
    return NULL;
}
