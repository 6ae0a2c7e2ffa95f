/* walk.c: folders of the cache: their entries in order, every file below, removal. Links are entries, never ways. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/mem.h"
#include "hub/layout.h"

#define ENTRIES_MAX ((size_t)1 << 20)
#define DEPTH_MAX 40

struct entries {
    char **names;
    size_t n, cap;
};

static void entries_free(struct entries *e)
{
    for (size_t i = 0; i < e->n; i++) mb_free(e->names[i]);
    mb_free(e->names);
}

static bool entries_add(struct entries *e, const char *name)
{
    if (e->n == ENTRIES_MAX) return false;
    if (e->n == e->cap) {
        size_t cap = e->cap ? 2 * e->cap : 16;
        char **more = mb_realloc(e->names, cap * sizeof *more);
        if (!more) return false;
        e->names = more;
        e->cap = cap;
    }
    e->names[e->n] = mb_strdup(name);
    return e->names[e->n] && ++e->n;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All names of a folder, sorted, so that two runs say the same. */
static mb_status entries_read(struct entries *e, const char *dir, mb_error *err)
{
    *e = (struct entries){ 0 };
    DIR *d = opendir(dir);
    if (!d) return errno == ENOENT || errno == ENOTDIR ? MB_OK : mb_fail_errno(err, "cannot open the folder", dir);
    mb_status st = MB_OK;
    for (struct dirent *x; st == MB_OK && (x = readdir(d));) {
        if (strcmp(x->d_name, ".") == 0 || strcmp(x->d_name, "..") == 0) continue;
        if (!entries_add(e, x->d_name)) st = mb_fail(err, MB_NO_MEMORY, "%s: too many files", dir);
    }
    closedir(d);
    if (st != MB_OK) {
        entries_free(e);
        *e = (struct entries){ 0 };
    } else if (e->n > 1) qsort(e->names, e->n, sizeof *e->names, by_name);
    return st;
}

mb_status layout_each(const char *dir, layout_entry_fn fn, void *ctx, mb_error *err)
{
    struct entries e;
    MB_TRY(entries_read(&e, dir, err));
    mb_status st = MB_OK;
    for (size_t i = 0; i < e.n && st == MB_OK; i++) st = fn(ctx, dir, e.names[i], err);
    entries_free(&e);
    return st;
}

struct files_walk {
    const char *top;
    layout_entry_fn fn;
    void *ctx;
    int depth;
};

static mb_status file_or_folder(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct files_walk *w = ctx;
    char path[PATH_MAX];
    struct stat s;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (lstat(path, &s) != 0) return MB_OK; /* gone meanwhile */
    if (!S_ISDIR(s.st_mode)) return w->fn(w->ctx, w->top, path + strlen(w->top) + 1, err);
    if (w->depth == DEPTH_MAX) return mb_fail(err, MB_TOO_LARGE, "%s: more than %d folders inside each other", path, DEPTH_MAX);
    w->depth++;
    mb_status st = layout_each(path, file_or_folder, w, err);
    w->depth--;
    return st;
}

mb_status layout_each_file(const char *dir, layout_entry_fn fn, void *ctx, mb_error *err)
{
    struct files_walk w = { .top = dir, .fn = fn, .ctx = ctx };
    return layout_each(dir, file_or_folder, &w, err);
}

static mb_status remove_entry(void *ctx, const char *dir, const char *name, mb_error *err)
{
    char path[PATH_MAX];
    struct stat s;
    int *depth = ctx;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (lstat(path, &s) != 0) return MB_OK;
    if (!S_ISDIR(s.st_mode))
        return unlink(path) == 0 || errno == ENOENT ? MB_OK : mb_fail_errno(err, "cannot remove", path);
    if (*depth == DEPTH_MAX) return mb_fail(err, MB_TOO_LARGE, "%s: more than %d folders inside each other", path, DEPTH_MAX);
    ++*depth;
    mb_status st = layout_each(path, remove_entry, depth, err);
    --*depth;
    if (st == MB_OK && rmdir(path) != 0 && errno != ENOENT) st = mb_fail_errno(err, "cannot remove the folder", path);
    return st;
}

mb_status layout_remove_tree(const char *dir, mb_error *err)
{
    int depth = 0;
    struct stat s;
    if (lstat(dir, &s) != 0) return MB_OK;
    if (!S_ISDIR(s.st_mode)) return mb_fail(err, MB_IO, "%s is not a folder", dir);
    MB_TRY(layout_each(dir, remove_entry, &depth, err));
    return rmdir(dir) == 0 || errno == ENOENT ? MB_OK : mb_fail_errno(err, "cannot remove the folder", dir);
}
