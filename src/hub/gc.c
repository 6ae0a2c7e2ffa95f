/* gc.c: deciding what goes, and letting it go; see gc.h. Order of removal: a snapshot is renamed away whole before its links are
 * removed, blobs follow; a kill in between leaves what the next run finds again.
 */
#include "hub/gc.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "hub/gc_int.h"
#include "hub/get.h"
#include "hub/inuse.h"
#include "hub/lock.h"

#define PLAN_LIMIT ((size_t)256 << 20)
#define TRASH ".mlx-bun-trash-"

const char *gc_kind_name(enum gc_kind k)
{
    static const char *const names[] = { "snapshot", "blob", "partial", "repository", "leftover", "packed" };
    return names[k];
}

/* --- deciding --- */

static uint64_t file_bytes(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

static mb_status add_bytes(void *total, const char *dir, const char *name, mb_error *err)
{
    char path[PATH_MAX];
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    *(uint64_t *)total += file_bytes(path);
    return MB_OK;
}

/* Names of files in snapshots that stay, and the blobs that they need: one that is not noted would go. */
static mb_status add_kept(const json_t *snapshots, const char *commit, json_t *files, json_t *blobs, mb_error *err)
{
    const char *file;
    json_t *digest;
    json_object_foreach(json_object_get(snapshots, commit), file, digest)
        if ((files && json_object_set_new(files, file, json_true()) != 0) ||
            json_object_set_new(blobs, json_string_value(digest), json_true()) != 0)
            return mb_fail(err, MB_NO_MEMORY, "no memory for the plan");
    return MB_OK;
}

/* REG-102: every file that would be lost is named. */
static mb_status lost_files(struct gc_work *w, const char *commit, const json_t *kept_files, int32_t *n_lost, mb_error *err)
{
    const char *file;
    json_t *digest;
    *n_lost = 0;
    json_object_foreach(json_object_get(w->snapshots, commit), file, digest) {
        if (json_object_get(kept_files, file)) continue;
        ++*n_lost;
        MB_TRY(gc_warn(w, err, "snapshot %.12s %s: no kept snapshot has its file %s%s", commit, w->o->force ? "goes" : "stays", file,
                       w->o->force ? "" : " (--force removes it nevertheless)"));
    }
    return MB_OK;
}

/* Does a snapshot that no ref names go? */
static mb_status decide(struct gc_work *w, const char *commit, const json_t *kept_files, bool *goes, mb_error *err)
{
    int32_t n_lost;
    const char *used = gc_in_use(w, commit);
    *goes = false;
    if (used) return gc_warn(w, err, "snapshot %.12s stays: %s", commit, used);
    MB_TRY(lost_files(w, commit, kept_files, &n_lost, err));
    *goes = n_lost == 0 || w->o->force;
    return MB_OK;
}

static mb_status add_snapshot(struct gc_work *w, const char *commit, mb_error *err)
{
    char path[PATH_MAX], sub[80];
    uint64_t bytes = 0;
    snprintf(sub, sizeof sub, "snapshots/%.60s", commit);
    MB_TRY(path_join(path, sizeof path, w->dir, sub, err));
    MB_TRY(layout_each_file(path, add_bytes, &bytes, err)); /* files of its own; links count with their blobs */
    return gc_add_item(w, GC_SNAPSHOT, "snapshots", commit, bytes, err);
}

struct blobs_walk {
    struct gc_work *w;
    const json_t *needed; /* NULL: blobs stay, only partials go */
};

/* "<digest>.incomplete", and other clients' "<digest>.<random>.incomplete". */
static bool is_partial(const char *name)
{
    char digest[NAME_DIGEST_MAX];
    size_t len = strspn(name, "0123456789abcdef");
    if (len >= sizeof digest || name[len] != '.' || !name_ends(name, ".incomplete")) return false;
    memcpy(digest, name, len);
    digest[len] = '\0';
    return name_is_digest(digest);
}

static mb_status decide_blob(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct blobs_walk *b = ctx;
    char path[PATH_MAX];
    struct stat st;
    bool partial = is_partial(name);
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if ((!partial && !name_is_digest(name)) || lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) return MB_OK; /* foreign */
    if (partial) return gc_add_item(b->w, GC_PARTIAL, "blobs", name, (uint64_t)st.st_size, err);
    if (!b->needed || json_object_get(b->needed, name) || json_object_get(b->w->in_use, name)) return MB_OK;
    return gc_add_item(b->w, GC_BLOB, "blobs", name, (uint64_t)st.st_size, err);
}

static mb_status decide_blobs(struct gc_work *w, const json_t *needed, mb_error *err)
{
    char path[PATH_MAX];
    struct blobs_walk b = { w, needed };
    MB_TRY(path_join(path, sizeof path, w->dir, "blobs", err));
    return layout_each(path, decide_blob, &b, err);
}

static mb_status decide_snapshots(struct gc_work *w, json_t *kept_files, json_t *needed, mb_error *err)
{
    const char *commit;
    json_t *files;
    json_object_foreach(w->snapshots, commit, files)
        if (json_object_get(w->refs, commit)) {
            MB_TRY(add_kept(w->snapshots, commit, kept_files, needed, err));
            w->repo->n_kept++;
        }
    json_object_foreach(w->snapshots, commit, files) {
        bool goes;
        if (json_object_get(w->refs, commit)) continue;
        MB_TRY(decide(w, commit, kept_files, &goes, err));
        if (goes) MB_TRY(add_snapshot(w, commit, err));
        else MB_TRY(add_kept(w->snapshots, commit, NULL, needed, err));
        if (goes) w->repo->n_pruned++;
        else w->repo->n_skipped++;
    }
    return MB_OK;
}

static mb_status decide_collect(struct gc_work *w, mb_error *err)
{
    if (w->downloading) return gc_warn(w, err, "left alone: a download is in progress");
    if (w->refs_broken) { /* REG-104 */
        w->repo->n_kept = (int32_t)json_object_size(w->snapshots);
        return decide_blobs(w, NULL, err);
    }
    json_t *kept_files = json_object(), *needed = json_object();
    mb_status st = kept_files && needed ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for the plan");
    if (st == MB_OK) st = decide_snapshots(w, kept_files, needed, err);
    if (st == MB_OK) st = decide_blobs(w, needed, err);
    json_decref(kept_files);
    json_decref(needed);
    return st;
}

/* --- rm --- */

static mb_status refuse_in_use(struct gc_work *w, const char *commit, mb_error *err)
{
    const char *used = gc_in_use(w, commit);
    return used ? mb_fail(err, MB_BUSY, "%s@%.12s is in use: %s", w->repo->repo, commit, used) : MB_OK;
}

/* A ref, a commit, or the beginning of one that only one snapshot has. */
static mb_status find_snapshot(struct gc_work *w, const char *revision, const char **commit, mb_error *err)
{
    char by_ref[NAME_COMMIT_LEN + 1];
    const char *c;
    json_t *files;
    int n = 0;
    if (layout_ref_read(w->o->root, w->repo->repo, revision, by_ref, NULL) != MB_OK) by_ref[0] = '\0';
    json_object_foreach(w->snapshots, c, files) {
        bool prefix = strlen(revision) >= 7 && strncmp(c, revision, strlen(revision)) == 0;
        if (strcmp(c, by_ref) != 0 && (by_ref[0] || !prefix)) continue;
        *commit = c;
        n++;
    }
    if (n == 1) return MB_OK;
    return mb_fail(err, MB_NOT_FOUND, n ? "%s has several snapshots that begin with '%s'" : "%s has no revision '%s' in the cache; "
                   "mlx-bun ls --all-revisions lists them", w->repo->repo, revision);
}

static mb_status decide_rm_revision(struct gc_work *w, mb_error *err)
{
    const char *commit = NULL, *c;
    json_t *files, *needed = json_object();
    mb_status st = needed ? find_snapshot(w, w->o->revision, &commit, err) : mb_fail(err, MB_NO_MEMORY, "no memory for the plan");
    if (st == MB_OK) st = refuse_in_use(w, commit, err);
    if (st == MB_OK) st = add_snapshot(w, commit, err);
    json_object_foreach(w->snapshots, c, files)
        if (st == MB_OK && strcmp(c, commit) != 0) st = add_kept(w->snapshots, c, NULL, needed, err);
    if (st == MB_OK) st = decide_blobs(w, needed, err);
    w->repo->n_pruned = 1;
    w->repo->n_kept = (int32_t)json_object_size(w->snapshots) - 1;
    json_decref(needed);
    return st;
}

static mb_status decide_rm(struct gc_work *w, mb_error *err)
{
    const char *commit;
    json_t *files;
    uint64_t bytes = 0;
    if (w->downloading)
        return mb_fail(err, MB_BUSY, "another download of %s is in progress: wait for it, or end it", w->repo->repo);
    if (w->o->revision) return decide_rm_revision(w, err);
    json_object_foreach(w->snapshots, commit, files) MB_TRY(refuse_in_use(w, commit, err));
    MB_TRY(layout_each_file(w->dir, add_bytes, &bytes, err));
    w->repo->n_pruned = (int32_t)json_object_size(w->snapshots);
    return gc_add_item(w, GC_REPO, "", "", bytes, err);
}

/* --- doing --- */

/* Away under a name that nobody looks at, then piece by piece. */
static mb_status remove_whole(const char *path, const char *parent, const char *name, mb_error *err)
{
    char trash[PATH_MAX], base[NAME_FOLDER_MAX + 64];
    snprintf(base, sizeof base, TRASH "%s", name);
    MB_TRY(path_join(trash, sizeof trash, parent, base, err));
    MB_TRY(layout_remove_tree(trash, err));
    if (rename(path, trash) != 0) return mb_fail_errno(err, "cannot remove", path);
    return layout_remove_tree(trash, err);
}

/* What belongs to a snapshot beside it: our manifest, other clients' list of absent files, refs that name it (rm). */
static void remove_companions(const struct gc_work *w, const char *commit)
{
    char path[PATH_MAX], sub[96];
    snprintf(sub, sizeof sub, LAYOUT_META "/%.60s.json", commit);
    if (path_join(path, sizeof path, w->dir, sub, NULL) == MB_OK) unlink(path);
    snprintf(sub, sizeof sub, ".no_exist/%.60s", commit);
    if (path_join(path, sizeof path, w->dir, sub, NULL) == MB_OK) layout_remove_tree(path, NULL);
}

struct refs_walk {
    const struct gc_work *w;
    const char *commit;
};

static mb_status remove_ref(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct refs_walk *r = ctx;
    char commit[NAME_COMMIT_LEN + 1], path[PATH_MAX];
    if (layout_ref_read(r->w->o->root, r->w->repo->repo, name, commit, NULL) != MB_OK || strcmp(commit, r->commit) != 0)
        return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    return unlink(path) == 0 || errno == ENOENT ? MB_OK : mb_fail_errno(err, "cannot remove", path);
}

static mb_status remove_snapshot(const struct gc_work *w, const char *path, const char *commit, mb_error *err)
{
    char refs[PATH_MAX], meta[PATH_MAX];
    struct refs_walk r = { w, commit };
    MB_TRY(path_join(refs, sizeof refs, w->dir, "refs", err));
    MB_TRY(path_join(meta, sizeof meta, w->dir, LAYOUT_META, err));
    if (w->o->rm) MB_TRY(layout_each_file(refs, remove_ref, &r, err));
    MB_TRY(dir_make(meta, err));
    MB_TRY(remove_whole(path, meta, commit, err));
    remove_companions(w, commit);
    return MB_OK;
}

static mb_status do_item(const struct gc_work *w, struct gc_item *item, mb_error *err)
{
    char path[PATH_MAX];
    const char *base = strrchr(item->path, '/');
    mb_status st = MB_OK;
    MB_TRY(path_join(path, sizeof path, w->o->root, item->path, err));
    if (item->kind == GC_SNAPSHOT) st = remove_snapshot(w, path, base + 1, err);
    else if (item->kind == GC_REPO) st = remove_whole(path, w->o->root, item->path, err);
    else if (item->kind == GC_LEFTOVER) st = layout_remove_tree(path, err);
    else if (unlink(path) != 0 && errno != ENOENT) st = mb_fail_errno(err, "cannot remove", path);
    item->removed = st == MB_OK;
    return st;
}

/* --- one repository --- */

static mb_status decide_leftover(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct gc_work *w = ctx;
    char path[PATH_MAX];
    uint64_t bytes = 0;
    if (strncmp(name, TRASH, sizeof TRASH - 1) != 0) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    MB_TRY(layout_each_file(path, add_bytes, &bytes, err));
    return gc_add_item(w, GC_LEFTOVER, strcmp(dir, w->o->root) == 0 ? "" : LAYOUT_META, name, bytes, err);
}

static mb_status decide_repo(struct gc_work *w, mb_error *err)
{
    char meta[PATH_MAX];
    MB_TRY(gc_look(w, err));
    if (w->o->rm) return decide_rm(w, err);
    MB_TRY(path_join(meta, sizeof meta, w->dir, LAYOUT_META, err));
    if (!w->downloading) MB_TRY(layout_each(meta, decide_leftover, w, err));
    return decide_collect(w, err);
}

mb_status gc_repo_begin(struct gc_work *w, const char *repo, mb_error *err)
{
    struct gc_plan *p = w->plan;
    if (p->n_repos == p->cap_repos) {
        size_t cap = p->cap_repos ? 2 * p->cap_repos : 16;
        struct gc_repo *more = arena_alloc_array(&p->arena, cap, sizeof *more);
        if (!more) return mb_fail(err, MB_NO_MEMORY, "no memory for the plan");
        if (p->n_repos) memcpy(more, p->repos, p->n_repos * sizeof *more);
        p->repos = more;
        p->cap_repos = cap;
    }
    w->repo = &p->repos[p->n_repos];
    *w->repo = (struct gc_repo){ .repo = arena_strdup(&p->arena, repo) };
    w->refs = json_object();
    w->snapshots = json_object();
    w->refs_broken = w->downloading = false;
    if (!w->repo->repo || !w->refs || !w->snapshots) return mb_fail(err, MB_NO_MEMORY, "no memory for the plan");
    return MB_OK;
}

void gc_repo_end(struct gc_work *w)
{
    if (w->repo->n_items || w->repo->n_warnings || w->repo->n_kept + w->repo->n_skipped > 0) {
        w->plan->n_repos++;
        w->plan->bytes += w->repo->bytes;
    }
    json_decref(w->refs);
    json_decref(w->snapshots);
    w->refs = w->snapshots = NULL;
}

static mb_status run_repo(struct gc_work *w, const char *folder, const char *repo, mb_error *err)
{
    char marker[PATH_MAX];
    struct lock lock = { .fd = -1 };
    w->folder = folder;
    MB_TRY(path_join(w->dir, sizeof w->dir, w->o->root, folder, err));
    mb_status st = gc_repo_begin(w, repo, err);
    if (st == MB_OK) st = get_marker_path(w->o->root, repo, marker, err);
    if (st == MB_OK) { /* nobody may begin to download while we look and remove */
        if (!w->o->execute) w->downloading = marker_is_held(marker);
        else if ((st = marker_take(&lock, marker, false, err)) == MB_BUSY) st = MB_OK, w->downloading = true;
    }
    if (st == MB_OK) st = decide_repo(w, err);
    for (size_t i = 0; st == MB_OK && w->o->execute && i < w->repo->n_items; i++) st = do_item(w, &w->repo->items[i], err);
    lock_release(&lock);
    gc_repo_end(w);
    return st;
}

static mb_status run_folder(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct gc_work *w = ctx;
    char repo[NAME_REPO_MAX], path[PATH_MAX];
    struct stat st;
    if (!name_from_folder(name, repo)) return MB_OK; /* data sets, spaces, anything else */
    if (w->o->repo && strcmp(w->o->repo, repo) != 0) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return MB_OK;
    return run_repo(w, name, repo, err);
}

/* Repositories whose removal was cut off. */
static mb_status run_leftovers(struct gc_work *w, mb_error *err)
{
    w->folder = "";
    MB_TRY(gc_repo_begin(w, "(removed before)", err));
    mb_status st = layout_each(w->o->root, decide_leftover, w, err);
    for (size_t i = 0; st == MB_OK && w->o->execute && i < w->repo->n_items; i++) st = do_item(w, &w->repo->items[i], err);
    gc_repo_end(w);
    return st;
}

mb_status gc_run(const struct gc_opts *o, struct gc_plan *plan, mb_error *err)
{
    struct gc_work w = { .o = o, .plan = plan };
    memset(plan, 0, sizeof *plan);
    arena_init(&plan->arena, PLAN_LIMIT);
    w.in_use = inuse_blobs(o->root);
    mb_status st = w.in_use ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for the plan");
    if (st == MB_OK && !o->rm && !o->repo) st = gc_run_packed(&w, err);
    if (st == MB_OK) st = layout_each(o->root, run_folder, &w, err);
    if (st == MB_OK && !o->rm && !o->repo) st = run_leftovers(&w, err);
    if (st == MB_OK && o->rm && plan->n_repos == 0)
        st = mb_fail(err, MB_NOT_FOUND, "%s is not in the cache (%s); mlx-bun ls lists what is", o->repo, o->root);
    json_decref(w.in_use);
    return st;
}

void gc_plan_free(struct gc_plan *plan)
{
    arena_free(&plan->arena);
    memset(plan, 0, sizeof *plan);
}
