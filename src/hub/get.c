/* get.c: see get.h. */
#include "hub/get.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/filemap.h"
#include "hub/blob.h"

#define SPARE_BYTES ((uint64_t)16 << 20) /* for links, manifests and the file system's own needs */

struct getting {
    const struct get_opts *o;
    const char *repo, *revision;
    char repo_dir[PATH_MAX];
    char what[NAME_REPO_MAX + NAME_REVISION_MAX + 8]; /* "owner/name at main" */
    struct hub_listing list;
    struct get_result *r;
    mb_error *err;
};

/* --- the cache --- */

mb_status get_marker_path(const char *root, const char *repo, char out[PATH_MAX], mb_error *err)
{
    char folder[NAME_FOLDER_MAX], name[NAME_FOLDER_MAX + 32];
    name_to_folder(repo, folder);
    snprintf(name, sizeof name, ".locks/%s/get.mlx-bun", folder);
    return path_join(out, PATH_MAX, root, name, err);
}

mb_status get_use_path(const char *root, const char *repo, const char *commit, char out[PATH_MAX], mb_error *err)
{
    char folder[NAME_FOLDER_MAX], name[NAME_FOLDER_MAX + 80];
    name_to_folder(repo, folder);
    snprintf(name, sizeof name, ".locks/%s/use-%s.mlx-bun", folder, commit);
    return path_join(out, PATH_MAX, root, name, err);
}

void get_use(struct lock *l, const char *path)
{
    char root[PATH_MAX], repo[NAME_REPO_MAX], commit[NAME_COMMIT_LEN + 1], marker[PATH_MAX];
    *l = (struct lock){ .fd = -1 };
    if (!layout_split(path, root, repo, commit) || !commit[0]) return;
    if (get_use_path(root, repo, commit, marker, NULL) == MB_OK) marker_take(l, marker, true, NULL);
}

struct newest {
    char commit[NAME_COMMIT_LEN + 1];
    int64_t mtime_ns;
};

static mb_status newest_manifest(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct newest *n = ctx;
    char path[PATH_MAX];
    struct stat st;
    size_t len = strlen(name);
    if (len != NAME_COMMIT_LEN + 5 || strcmp(name + NAME_COMMIT_LEN, ".json") != 0) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (stat(path, &st) != 0) return MB_OK;
    int64_t at = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    if (n->commit[0] && at <= n->mtime_ns) return MB_OK;
    n->mtime_ns = at;
    memcpy(n->commit, name, NAME_COMMIT_LEN);
    n->commit[NAME_COMMIT_LEN] = '\0';
    return MB_OK;
}

/* The commit of a revision in the cache; of a first get that did not end, which has no ref yet, the commit it was getting. */
static mb_status cached_commit(const char *root, const char *repo, const char *revision, char commit[NAME_COMMIT_LEN + 1],
                               mb_error *err)
{
    char dir[PATH_MAX], refs[PATH_MAX];
    struct newest n = { .commit = "" };
    mb_status st = layout_ref_read(root, repo, revision, commit, err);
    if (st != MB_NOT_FOUND || strcmp(revision, "main") != 0) return st;
    MB_TRY(layout_path(root, repo, "refs", NULL, refs, err));
    if (dir_exists(refs)) return st;
    MB_TRY(layout_path(root, repo, LAYOUT_META, NULL, dir, err));
    layout_each(dir, newest_manifest, &n, NULL);
    if (!n.commit[0]) return st;
    memcpy(commit, n.commit, sizeof n.commit);
    return MB_OK;
}

mb_status get_find(const char *root, const char *repo, const char *revision, char path[PATH_MAX],
                   char commit[NAME_COMMIT_LEN + 1], mb_error *err)
{
    char dir[PATH_MAX], at[80];
    struct snapshot_state state;
    path[0] = commit[0] = '\0';
    MB_TRY(layout_path(root, repo, NULL, NULL, dir, err));
    if (!dir_exists(dir))
        return mb_fail(err, MB_NOT_FOUND, "%s is not in the cache (%s): fetch it with mlx-bun get %s", repo, root, repo);
    mb_status st = cached_commit(root, repo, revision, commit, err);
    if (st == MB_NOT_FOUND)
        return mb_fail(err, MB_NOT_FOUND, "%s is in the cache, but not its revision '%s': fetch it with mlx-bun get %s@%s", repo,
                       revision, repo, revision);
    MB_TRY(st);
    layout_check(dir, commit, &state);
    if (!state.complete) return layout_incomplete(repo, &state, err);
    snprintf(at, sizeof at, "snapshots/%s", commit);
    return path_join(path, PATH_MAX, dir, at, err);
}

/* --- getting --- */

static mb_status answer_from_cache(struct getting *g)
{
    MB_TRY(get_find(g->o->root, g->repo, g->revision, g->r->path, g->r->commit, g->err));
    g->r->from_cache = true;
    return MB_OK;
}

static bool is_cancelled(void *ctx)
{
    struct getting *g = ctx;
    return g->o->progress && !g->o->progress(g->o->ctx, &g->r->numbers);
}

static bool is_unreachable(mb_status st)
{
    return st == MB_IO;
}

/* The hub cannot be asked: a whole copy serves, half a one does not (B-116). */
static mb_status without_hub(struct getting *g)
{
    mb_error cache;
    char why[sizeof g->r->why];
    snprintf(why, sizeof why, "%s", g->err->text);
    mb_status st = get_find(g->o->root, g->repo, g->revision, g->r->path, g->r->commit, &cache);
    g->r->unreachable = true;
    memcpy(g->r->why, why, sizeof why);
    g->r->from_cache = st == MB_OK;
    if (st == MB_OK) return MB_OK;
    if (st == MB_BAD_FORMAT) return mb_fail(g->err, MB_IO, "%.200s; %.280s", why, cache.text);
    return g->err->code;
}

static mb_status read_listing(struct getting *g)
{
    char url[NET_URL_MAX];
    json_t *answer;
    MB_TRY(net_url_listing(&g->o->net, g->repo, g->revision, url, g->err));
    MB_TRY(net_get_json(&g->o->net, url, g->repo, g->what, is_cancelled, g, &answer, g->err));
    mb_status st = listing_read(&g->list, answer, g->err);
    json_decref(answer);
    if (st != MB_OK) return mb_error_prefix(g->err, "%s", g->what);
    if (name_is_commit(g->revision) && strcmp(g->revision, g->list.commit) != 0)
        return mb_fail(g->err, MB_BAD_FORMAT, "%s: the hub answers with commit %s", g->what, g->list.commit);
    return MB_OK;
}

static mb_status keep_wanted(struct getting *g)
{
    size_t n_all = g->list.n_files, n_gguf = 0, n_weights = 0;
    for (size_t i = 0; i < n_all; i++) {
        n_gguf += name_ends(g->list.files[i].path, ".gguf");
        n_weights += name_ends(g->list.files[i].path, ".safetensors");
    }
    if (g->o->all_files) return MB_OK;
    listing_filter(&g->list, name_is_wanted);
    if (n_weights > 0) return MB_OK;
    if (n_gguf > 0)
        return mb_fail(g->err, MB_UNSUPPORTED, "%s has %zu GGUF files and no safetensors: fetch it with mlx-bun get %s --all, then "
                       "import a file with mlx-bun convert FILE.gguf OUT/", g->what, n_gguf, g->repo);
    return mb_fail(g->err, MB_UNSUPPORTED, "%s has no *.safetensors among its %zu files: it is no model that this program can run "
                   "(--all fetches it nevertheless)", g->what, n_all);
}

/* The listing against models.lock: the same files with the same hashes. */
static mb_status check_locked(struct getting *g)
{
    struct hub_listing want;
    mb_status st = listing_read_manifest(&want, g->o->locked, g->err);
    size_t k = 0;
    for (size_t i = 0; st == MB_OK && i < want.n_files; i++) {
        const struct hub_file *f = &want.files[i];
        while (k < g->list.n_files && strcmp(g->list.files[k].path, f->path) < 0) k++;
        if (k == g->list.n_files || strcmp(g->list.files[k].path, f->path) != 0)
            st = mb_fail(g->err, MB_BAD_FORMAT, "%s: models.lock has the file %s, the hub has not", g->what, f->path);
        else if (strcmp(g->list.files[k].digest, f->digest) != 0)
            st = mb_fail(g->err, MB_BAD_FORMAT, "%s: %s is %.16s... in models.lock, the hub lists %.16s...", g->what, f->path,
                         f->digest, g->list.files[k].digest);
    }
    if (st == MB_OK) { /* exactly these */
        struct hub_listing hub = g->list;
        g->list = want;
        want = hub;
    }
    listing_free(&want);
    return st;
}

static mb_status check_space(struct getting *g)
{
    struct statvfs v;
    uint64_t need = 0;
    for (size_t i = 0; i < g->list.n_files; i++) {
        const struct hub_file *f = &g->list.files[i];
        if (blob_is_there(g->repo_dir, f)) continue;
        need += (uint64_t)(f->size - blob_partial_bytes(g->repo_dir, f));
    }
    if (need == 0 || statvfs(g->repo_dir, &v) != 0) return MB_OK;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (need + SPARE_BYTES <= room) return MB_OK;
    return mb_fail(g->err, MB_TOO_LARGE, "%s needs %.2f GB more in %s, which has %.2f GB free: free space (mlx-bun gc shows what can "
                   "go), or set HF_HOME to another disk", g->what, (double)need / 1e9, g->o->root, (double)room / 1e9);
}

static mb_status verify_present(struct getting *g)
{
    char path[PATH_MAX], name[96];
    for (size_t i = 0; g->o->verify && i < g->list.n_files; i++) {
        const struct hub_file *f = &g->list.files[i];
        if (!blob_is_there(g->repo_dir, f)) continue;
        snprintf(name, sizeof name, "blobs/%s", f->digest);
        MB_TRY(path_join(path, sizeof path, g->repo_dir, name, g->err));
        mb_status st = blob_verify(path, f, is_cancelled, g, g->err);
        if (st == MB_BAD_FORMAT) unlink(path); /* fetched again below */
        else MB_TRY(st);
    }
    return MB_OK;
}

static mb_status fetch_listing(struct getting *g)
{
    struct fetch_opts f = { .net = g->o->net, .repo = g->repo, .repo_dir = g->repo_dir, .list = &g->list,
                            .parallel = g->o->parallel, .progress = g->o->progress, .ctx = g->o->ctx };
    json_t *manifest = listing_manifest(&g->list, g->repo);
    if (!manifest) return mb_fail(g->err, MB_NO_MEMORY, "no memory for a manifest");
    mb_status st = layout_manifest_write(g->repo_dir, g->list.commit, manifest, g->err);
    json_decref(manifest);
    if (st == MB_OK) st = verify_present(g);
    if (st == MB_OK) st = check_space(g);
    if (st == MB_OK) st = fetch_all(&f, &g->r->numbers, g->err);
    return st;
}

/* What the revision named before, when it is another commit now. */
static void note_previous(struct getting *g)
{
    char was[NAME_COMMIT_LEN + 1];
    if (layout_ref_read(g->o->root, g->repo, g->revision, was, NULL) == MB_OK && strcmp(was, g->list.commit) != 0)
        strcpy(g->r->previous, was);
}

static mb_status get_listed(struct getting *g)
{
    char blobs[PATH_MAX], snapshot[80];
    if (g->o->locked) MB_TRY(check_locked(g));
    else MB_TRY(keep_wanted(g));
    MB_TRY(path_join(blobs, sizeof blobs, g->repo_dir, "blobs", g->err));
    MB_TRY(dir_make(blobs, g->err));
    MB_TRY(fetch_listing(g));
    note_previous(g);
    MB_TRY(layout_ref_write(g->o->root, g->repo, g->revision, g->list.commit, g->err));
    strcpy(g->r->commit, g->list.commit);
    g->r->from_cache = g->r->numbers.received_bytes == 0;
    snprintf(snapshot, sizeof snapshot, "snapshots/%s", g->list.commit);
    return path_join(g->r->path, PATH_MAX, g->repo_dir, snapshot, g->err);
}

/* A commit that is whole in the cache by its manifest needs nobody's word. */
static bool is_pinned_and_whole(struct getting *g)
{
    struct snapshot_state state;
    if (!name_is_commit(g->revision) || g->o->verify || g->o->all_files) return false;
    layout_check(g->repo_dir, g->revision, &state);
    return state.complete && state.has_manifest;
}

static mb_status get_online(struct getting *g)
{
    struct lock marker;
    char path[PATH_MAX];
    mb_status st = read_listing(g);
    if (is_unreachable(st)) return without_hub(g);
    MB_TRY(st);
    MB_TRY(get_marker_path(g->o->root, g->repo, path, g->err));
    if (marker_take(&marker, path, true, NULL) == MB_BUSY)
        return mb_fail(g->err, MB_BUSY, "%s: gc or rm is at work on it: try again", g->repo);
    st = get_listed(g);
    lock_release(&marker);
    return st;
}

/* With models.lock and without a request: is the snapshot the one that the file describes? */
static mb_status check_cached_lock(struct getting *g)
{
    json_t *manifest = g->o->locked ? layout_manifest_read(g->repo_dir, g->r->commit) : NULL;
    if (!manifest) return MB_OK;
    mb_status st = listing_read_manifest(&g->list, manifest, g->err);
    if (st == MB_OK) st = check_locked(g);
    json_decref(manifest);
    return st;
}

mb_status get_model(const struct get_opts *o, const char *repo, const char *revision, struct get_result *r, mb_error *err)
{
    mb_error own;
    struct getting g = { .o = o, .repo = repo, .revision = revision, .r = r, .err = err ? err : &own };
    memset(r, 0, sizeof *r);
    if (!name_is_repo(repo) || !name_is_revision(revision))
        return mb_fail(err, MB_INVALID, "not a model's name or revision");
    snprintf(g.what, sizeof g.what, "%s at %s", repo, revision);
    MB_TRY(layout_path(o->root, repo, NULL, NULL, g.repo_dir, g.err));
    mb_status st;
    if (o->offline || is_pinned_and_whole(&g)) {
        st = answer_from_cache(&g);
        if (st == MB_OK) st = check_cached_lock(&g);
    } else st = get_online(&g);
    listing_free(&g.list);
    return st;
}
