/* layout.c: paths, refs, links and manifests of the hub's cache; see layout.h. What counts as a whole snapshot is
 * snapshot.c, walking folders is walk.c.
 */
#include "hub/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/mem.h"

#define MANIFEST_LIMIT ((size_t)16 << 20)

/* --- roots and paths --- */

static bool is_set(const char *s)
{
    return s && *s;
}

/* path as an absolute one ("~" is not expanded: the shell does that). */
static mb_status make_absolute(const char *path, char out[PATH_MAX], mb_error *err)
{
    char cwd[PATH_MAX];
    while (path[0] == '.' && path[1] == '/') path += 2;
    if (path[0] == '/') return path_join(out, PATH_MAX, path, "", err); /* slashes at the end are cut below */
    if (!getcwd(cwd, sizeof cwd)) return mb_fail_errno(err, "cannot find the current folder, for", path);
    return path_join(out, PATH_MAX, cwd, path, err);
}

mb_status layout_root(const char *hub_cache, const char *hf_home, const char *xdg_cache, const char *home, char out[PATH_MAX],
                      mb_error *err)
{
    char base[PATH_MAX];
    mb_status st;
    if (is_set(hub_cache)) st = make_absolute(hub_cache, out, err);
    else if (is_set(hf_home)) {
        st = make_absolute(hf_home, base, err);
        if (st == MB_OK) st = path_join(out, PATH_MAX, base, "hub", err);
    } else if (is_set(xdg_cache) && xdg_cache[0] == '/') st = path_join(out, PATH_MAX, xdg_cache, "huggingface/hub", err);
    else if (is_set(home)) st = path_join(out, PATH_MAX, home, ".cache/huggingface/hub", err);
    else st = mb_fail(err, MB_INVALID, "there is no folder for models: set HOME, HF_HOME or HF_HUB_CACHE");
    for (size_t n = strlen(out); st == MB_OK && n > 1 && out[n - 1] == '/';) out[--n] = '\0';
    return st;
}

mb_status layout_path(const char *root, const char *repo, const char *sub, const char *name, char out[PATH_MAX], mb_error *err)
{
    char folder[NAME_FOLDER_MAX];
    name_to_folder(repo, folder);
    int n = snprintf(out, PATH_MAX, "%s/%s%s%s%s%s", root, folder, sub ? "/" : "", sub ? sub : "", name ? "/" : "",
                     name ? name : "");
    if (n > 0 && n < PATH_MAX) return MB_OK;
    out[0] = '\0';
    return mb_fail(err, MB_TOO_LARGE, "the path of %s in the cache is longer than %d bytes", repo, PATH_MAX);
}

bool layout_split(const char *path, char root[PATH_MAX], char repo[NAME_REPO_MAX], char commit[NAME_COMMIT_LEN + 1])
{
    static const char snapshots[] = "/snapshots/";
    char folder[NAME_FOLDER_MAX];
    const char *at = strstr(path, "models--");
    while (at && at != path && at[-1] != '/') at = strstr(at + 1, "models--");
    commit[0] = repo[0] = '\0';
    if (!at) return false;
    size_t len = strcspn(at, "/"), n_root = (size_t)(at - path);
    if (len >= sizeof folder || n_root >= PATH_MAX) return false;
    memcpy(folder, at, len);
    folder[len] = '\0';
    while (n_root > 1 && path[n_root - 1] == '/') n_root--;
    memcpy(root, n_root ? path : ".", n_root ? n_root : 1);
    root[n_root ? n_root : 1] = '\0';
    if (!name_from_folder(folder, repo)) return false;
    if (strncmp(at + len, snapshots, sizeof snapshots - 1) != 0) return true;
    const char *c = at + len + sizeof snapshots - 1;
    size_t n = strcspn(c, "/");
    if (n == NAME_COMMIT_LEN) {
        memcpy(commit, c, n);
        commit[n] = '\0';
        if (!name_is_commit(commit)) commit[0] = '\0';
    }
    return true;
}

/* --- refs --- */

mb_status layout_ref_read(const char *root, const char *repo, const char *revision, char commit[NAME_COMMIT_LEN + 1],
                          mb_error *err)
{
    char path[PATH_MAX], shown[84];
    struct buf b;
    commit[0] = '\0';
    if (name_is_commit(revision)) {
        memcpy(commit, revision, NAME_COMMIT_LEN + 1);
        return MB_OK;
    }
    MB_TRY(layout_path(root, repo, "refs", revision, path, err));
    buf_init(&b, 512);
    mb_status st = file_exists(path) ? file_read(&b, path, 256, err)
                                     : mb_fail(err, MB_NOT_FOUND, "the cache has no revision '%s' of %s", revision, repo);
    if (st == MB_OK) {
        size_t len = b.data ? strcspn(b.data, " \t\r\n") : 0;
        if (len == NAME_COMMIT_LEN) memcpy(commit, b.data, len);
        commit[len == NAME_COMMIT_LEN ? len : 0] = '\0';
        if (!name_is_commit(commit)) {
            commit[0] = '\0';
            st = mb_fail(err, MB_BAD_FORMAT, "%s holds '%s', wanted is a commit of 40 hexadecimal digits", path,
                         name_shown(b.data ? b.data : "", b.len, shown));
        }
    }
    buf_free(&b);
    return st;
}

mb_status layout_ref_write(const char *root, const char *repo, const char *revision, const char *commit, mb_error *err)
{
    char path[PATH_MAX], dir[PATH_MAX], now[NAME_COMMIT_LEN + 1];
    if (name_is_commit(revision)) return MB_OK; /* a commit names itself */
    if (layout_ref_read(root, repo, revision, now, NULL) == MB_OK && strcmp(now, commit) == 0) return MB_OK;
    MB_TRY(layout_path(root, repo, "refs", revision, path, err));
    strcpy(dir, path);
    *strrchr(dir, '/') = '\0';
    MB_TRY(dir_make(dir, err));
    return file_write_atomic(path, commit, NAME_COMMIT_LEN, err);
}

/* --- links --- */

/* Open (and make) the folder of `file` below fd, one part at a time, following no link. *base is the last part. */
static mb_status open_parent(int fd, const char *file, int *out, const char **base, mb_error *err)
{
    char part[256];
    *out = -1;
    for (const char *slash; (slash = strchr(file, '/')); file = slash + 1) {
        size_t n = (size_t)(slash - file);
        if (n >= sizeof part) n = sizeof part - 1;
        memcpy(part, file, n);
        part[n] = '\0';
        if (mkdirat(fd, part, 0755) != 0 && errno != EEXIST) goto fail;
        int next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0) goto fail;
        close(fd);
        fd = next;
    }
    *base = file;
    *out = fd;
    return MB_OK;
fail:;
    mb_status st = errno == ELOOP || errno == ENOTDIR
                       ? mb_fail(err, MB_BAD_FORMAT, "in the snapshot, '%s' is a link or a file, wanted is a folder", part)
                       : mb_fail_errno(err, "cannot make the folder", part);
    close(fd);
    return st;
}

/* "../../blobs/<digest>" with one "../" more per folder of file (REG-008, REG-009). */
static mb_status link_target(const char *file, const char *digest, char out[PATH_MAX], mb_error *err)
{
    struct buf b;
    buf_init(&b, PATH_MAX - 1);
    buf_append_str(&b, "../../");
    for (const char *p = file; (p = strchr(p, '/')); p++) buf_append_str(&b, "../");
    buf_printf(&b, "blobs/%s", digest);
    mb_status st = buf_status(&b, "the link of a snapshot", err);
    if (st == MB_OK) memcpy(out, b.data, b.len + 1);
    buf_free(&b);
    return st;
}

static bool is_link_to(int dir, const char *base, const char *target)
{
    char now[PATH_MAX];
    ssize_t n = readlinkat(dir, base, now, sizeof now - 1);
    return n > 0 && (size_t)n == strlen(target) && memcmp(now, target, (size_t)n) == 0;
}

/* What stands at fd/base gives way to the link. Made beside the manifests: a kill between the two calls must not leave a link that
   no listing names in the snapshot. */
static mb_status replace_by_link(const char *repo_dir, int fd, const char *base, const char *target, const char *digest, mb_error *err)
{
    char dir[PATH_MAX], temp[PATH_MAX], name[64];
    snprintf(name, sizeof name, "link.%ld.%.16s", (long)getpid(), digest);
    MB_TRY(path_join(dir, sizeof dir, repo_dir, LAYOUT_META, err));
    MB_TRY(path_join(temp, sizeof temp, dir, name, err));
    MB_TRY(dir_make(dir, err));
    unlink(temp);
    if (symlink(target, temp) == 0 && renameat(AT_FDCWD, temp, fd, base) == 0) return MB_OK;
    mb_status st = mb_fail_errno(err, "cannot make the link", base);
    unlink(temp);
    return st;
}

mb_status layout_link(const char *repo_dir, const char *commit, const char *file, const char *digest, mb_error *err)
{
    char dir[PATH_MAX], target[PATH_MAX];
    const char *base = file;
    int fd;
    MB_TRY(link_target(file, digest, target, err));
    MB_TRY(path_join(dir, sizeof dir, repo_dir, "snapshots", err));
    MB_TRY(dir_make(dir, err));
    int top = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0) return mb_fail_errno(err, "cannot open the folder", dir);
    char path[NAME_FILE_MAX + NAME_COMMIT_LEN + 2];
    snprintf(path, sizeof path, "%s/%s", commit, file);
    MB_TRY(open_parent(top, path, &fd, &base, err));
    mb_status st = MB_OK;
    if (symlinkat(target, fd, base) != 0) {
        if (errno != EEXIST) st = mb_fail_errno(err, "cannot make the link", file);
        else if (!is_link_to(fd, base, target)) st = replace_by_link(repo_dir, fd, base, target, digest, err);
    }
    close(fd);
    return st;
}

/* --- manifests --- */

mb_status layout_manifest_write(const char *repo_dir, const char *commit, const json_t *manifest, mb_error *err)
{
    char dir[PATH_MAX], path[PATH_MAX], name[64];
    struct buf b;
    snprintf(name, sizeof name, "%s.json", commit);
    MB_TRY(path_join(dir, sizeof dir, repo_dir, LAYOUT_META, err));
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    MB_TRY(dir_make(dir, err));
    buf_init(&b, MANIFEST_LIMIT);
    json_write(&b, manifest, NULL);
    mb_status st = buf_status(&b, "manifest", err);
    if (st == MB_OK) st = file_write_atomic(path, b.data, b.len, err);
    buf_free(&b);
    return st;
}

json_t *layout_manifest_read(const char *repo_dir, const char *commit)
{
    char path[PATH_MAX], name[80];
    json_t *m = NULL;
    snprintf(name, sizeof name, LAYOUT_META "/%s.json", commit);
    if (path_join(path, sizeof path, repo_dir, name, NULL) != MB_OK || !file_exists(path)) return NULL;
    if (json_read_file(&m, path, MANIFEST_LIMIT, NULL) != MB_OK) return NULL;
    if (json_is_object(m) && json_is_array(json_object_get(m, "files"))) return m;
    json_decref(m);
    return NULL;
}
