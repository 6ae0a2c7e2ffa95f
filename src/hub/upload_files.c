/* upload_files.c: the folder of an upload: which files, whole or not, their hashes, and that they stay what they were. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "format/safetensors.h"
#include "hub/hasher.h"
#include "hub/layout.h"
#include "hub/upload_int.h"

#define PART_MARK ".mlx-bun-part" /* of a conversion that did not end (convert/out_folder.h) */

/* --- which files --- */

/* What other programs leave in folders and nobody publishes. */
static bool is_left_out(const char *path)
{
    static const char *const folders[] = { ".git/", ".cache/", ".mlx-bun/", NULL };
    static const char *const names[] = { ".DS_Store", ".mlx-bun-offload", NULL };
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    for (int i = 0; folders[i]; i++)
        if (strncmp(path, folders[i], strlen(folders[i])) == 0) return true;
    for (int i = 0; names[i]; i++)
        if (strcmp(base, names[i]) == 0) return true;
    return strstr(path, "__pycache__/") != NULL;
}

static mb_status files_grow(struct upload *u)
{
    size_t cap = u->cap_files ? 2 * u->cap_files : 64;
    struct upload_file *more = arena_alloc_array(&u->arena, cap, sizeof *more);
    if (!more) return mb_fail(u->err, MB_NO_MEMORY, "no memory for the files of %s", u->o->dir);
    if (u->n_files) memcpy(more, u->files, u->n_files * sizeof *more);
    u->files = more;
    u->cap_files = cap;
    return MB_OK;
}

static mb_status file_take(void *upload, const char *dir, const char *name, mb_error *err)
{
    struct upload *u = upload;
    struct stat st;
    char path[PATH_MAX], shown[84];
    if (is_left_out(name)) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    name_shown(name, strlen(name), shown);
    if (name_ends(name, ".incomplete") || strcmp(name, PART_MARK) == 0)
        return mb_fail(err, MB_BAD_FORMAT, "%s: %s says that this folder is not whole: nothing was published", u->o->dir, shown);
    if (stat(path, &st) != 0) return mb_fail_errno(err, "cannot read (a link into nothing?)", path);
    if (!S_ISREG(st.st_mode)) return mb_fail(err, MB_INVALID, "%s is no file but a link to a folder or a device", path);
    if (!name_is_file(name, strlen(name)))
        return mb_fail(err, MB_BAD_FORMAT, "%s: a file named '%s' cannot be published: names must be UTF-8 without control "
                       "characters or backslashes", u->o->dir, shown);
    if (u->n_files == LISTING_FILES_MAX)
        return mb_fail(err, MB_TOO_LARGE, "%s holds more than %d files", u->o->dir, LISTING_FILES_MAX);
    if (u->n_files == u->cap_files) MB_TRY(files_grow(u));
    char *kept = arena_strdup(&u->arena, name);
    if (!kept) return mb_fail(err, MB_NO_MEMORY, "no memory for the files of %s", u->o->dir);
    u->files[u->n_files++] = (struct upload_file){ .path = kept, .size = (int64_t)st.st_size, .seen = st };
    u->r->total_bytes += (uint64_t)st.st_size;
    return MB_OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct upload_file *)a)->path, ((const struct upload_file *)b)->path);
}

/* --- whole or not --- */

static const struct upload_file *find(const struct upload *u, const char *path)
{
    struct upload_file key = { .path = path };
    return bsearch(&key, u->files, u->n_files, sizeof key, by_path);
}

/* A snapshot of the cache must have all its files. */
static mb_status check_cached(const struct upload *u, const char *dir)
{
    char full[PATH_MAX], root[PATH_MAX], repo[NAME_REPO_MAX], commit[NAME_COMMIT_LEN + 1], repo_dir[PATH_MAX];
    struct snapshot_state state;
    if (!realpath(dir, full)) return mb_fail_errno(u->err, "cannot find the folder", dir);
    if (!layout_split(full, root, repo, commit) || !commit[0]) return MB_OK;
    MB_TRY(layout_path(root, repo, NULL, NULL, repo_dir, u->err));
    layout_check(repo_dir, commit, &state);
    return state.complete ? MB_OK : layout_incomplete(repo, &state, u->err);
}

/* The header of a file of weights against its size. What is stored in types that this program does not read is none of its
 * business here. */
static mb_status check_weights(const struct upload *u, const struct upload_file *f)
{
    struct checkpoint *c = NULL;
    char dir[PATH_MAX], path[PATH_MAX];
    MB_TRY(path_join(path, sizeof path, u->o->dir, f->path, u->err));
    char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    mb_status st = checkpoint_open_file(&c, dir, slash + 1, u->err);
    checkpoint_close(c);
    return st == MB_UNSUPPORTED ? MB_OK : st;
}

static mb_status check_model(const struct upload *u, size_t n_weights, size_t n_gguf)
{
    bool model = find(u, "config.json"), adapter = find(u, "adapter_config.json");
    if ((model || adapter) && n_weights == 0)
        return mb_fail(u->err, MB_BAD_FORMAT, "%s has %s but no weights: half a model is not published", u->o->dir,
                       model ? "config.json" : "adapter_config.json");
    if (!model && !adapter && n_gguf == 0)
        return mb_fail(u->err, MB_BAD_FORMAT, "%s holds no model (config.json), no adapter (adapter_config.json) and no GGUF file; "
                       "--repo-type dataset publishes a folder as it is", u->o->dir);
    if (!find(u, "model.safetensors.index.json")) return MB_OK;
    struct checkpoint *c = NULL; /* names a shard that is not there */
    mb_status st = checkpoint_open(&c, u->o->dir, u->err);
    checkpoint_close(c);
    return st == MB_UNSUPPORTED ? MB_OK : st;
}

static mb_status check_whole(const struct upload *u)
{
    size_t n_weights = 0, n_gguf = 0;
    for (size_t i = 0; i < u->n_files; i++) {
        const char *path = u->files[i].path;
        bool safetensors = name_ends(path, ".safetensors"), gguf = name_ends(path, ".gguf");
        if (safetensors) MB_TRY(check_weights(u, &u->files[i]));
        n_gguf += gguf;
        n_weights += safetensors || gguf || name_ends(path, ".bin") || name_ends(path, ".npz") || name_ends(path, ".pt");
    }
    return strcmp(u->o->kind, "model") == 0 ? check_model(u, n_weights, n_gguf) : MB_OK;
}

mb_status upload_files_read(struct upload *u)
{
    if (!dir_exists(u->o->dir))
        return mb_fail(u->err, MB_NOT_FOUND, "%s: there is no such folder: --path names the folder to publish", u->o->dir);
    MB_TRY(check_cached(u, u->o->dir));
    MB_TRY(layout_each_file(u->o->dir, file_take, u, u->err));
    if (u->n_files == 0) return mb_fail(u->err, MB_NOT_FOUND, "%s holds no files", u->o->dir);
    qsort(u->files, u->n_files, sizeof *u->files, by_path);
    u->r->n_files = u->n_files;
    return check_whole(u);
}

/* --- one file --- */

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static mb_status changed(const struct upload *u, const struct upload_file *f)
{
    char shown[84];
    return mb_fail(u->err, MB_IO, "%s/%s changed while it was published: nothing was committed; run the same command again when the "
                   "folder is at rest", u->o->dir, name_shown(f->path, strlen(f->path), shown));
}

mb_status upload_file_check(struct upload *u, const struct upload_file *f, int fd)
{
    struct stat now;
    char path[PATH_MAX];
    MB_TRY(path_join(path, sizeof path, u->o->dir, f->path, u->err));
    bool same = (fd >= 0 ? fstat(fd, &now) : stat(path, &now)) == 0 && is_same(&now, &f->seen);
    return same ? MB_OK : changed(u, f);
}

mb_status upload_file_open(struct upload *u, const struct upload_file *f, int *fd)
{
    char path[PATH_MAX];
    *fd = -1;
    MB_TRY(path_join(path, sizeof path, u->o->dir, f->path, u->err));
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may have become a pipe */
    if (*fd < 0) return errno == ENOENT ? changed(u, f) : mb_fail_errno(u->err, "cannot open", path);
    mb_status st = upload_file_check(u, f, *fd);
    if (st != MB_OK) {
        close(*fd);
        *fd = -1;
    }
    return st;
}

static mb_status read_at_start(struct upload *u, const struct upload_file *f, void *out, size_t len)
{
    int fd;
    MB_TRY(upload_file_open(u, f, &fd));
    mb_status st = MB_OK;
    for (size_t at = 0; st == MB_OK && at < len;) {
        ssize_t n = pread(fd, (char *)out + at, len - at, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) st = n < 0 ? mb_fail_errno(u->err, "cannot read", f->path) : changed(u, f);
        else at += (size_t)n;
    }
    close(fd);
    return st;
}

mb_status upload_file_sample(struct upload *u, const struct upload_file *f, unsigned char *out, size_t cap, size_t *n)
{
    *n = f->size < (int64_t)cap ? (size_t)f->size : cap;
    return read_at_start(u, f, out, *n);
}

mb_status upload_file_content(struct upload *u, const struct upload_file *f, struct buf *out)
{
    struct hasher *h = NULL;
    char hex[65];
    if (!buf_reserve(out, (size_t)f->size + 1)) return buf_status(out, "the small files", u->err);
    char *at = out->data + out->len;
    MB_TRY(read_at_start(u, f, at, (size_t)f->size));
    MB_TRY(hasher_open(&h, false, f->size, u->err));
    mb_status st = hasher_add(h, at, (size_t)f->size, u->err);
    if (st == MB_OK) st = hasher_end(h, hex, u->err);
    hasher_close(h);
    if (st == MB_OK && strcmp(hex, f->digest) != 0) st = changed(u, f);
    if (st == MB_OK) {
        out->len += (size_t)f->size;
        out->data[out->len] = '\0';
    }
    return st;
}

void upload_base64(struct buf *out, const void *data, size_t len)
{
    size_t room = (len + 2) / 3 * 4;
    if (len > (size_t)UPLOAD_REGULAR_MAX || !buf_reserve(out, room + 1)) return; /* EVP_EncodeBlock ends with a NUL */
    EVP_EncodeBlock((unsigned char *)out->data + out->len, data, (int)len);
    out->len += room;
    out->data[out->len] = '\0';
}

/* --- hashes --- */

static mb_status hash_one(struct upload *u, struct upload_file *f)
{
    struct hasher *h = NULL;
    int fd;
    MB_TRY(upload_file_open(u, f, &fd));
    mb_status st = hasher_open(&h, f->is_lfs, f->size, u->err);
    if (st == MB_OK) st = hasher_add_file(h, fd, f->size, f->path, upload_going, u, u->err);
    if (st == MB_OK) st = hasher_end(h, f->digest, u->err);
    if (st == MB_OK) st = upload_file_check(u, f, fd);
    hasher_close(h);
    close(fd);
    return st;
}

mb_status upload_files_hash(struct upload *u)
{
    upload_phase(u, UPLOAD_HASHING, u->r->total_bytes, u->n_files);
    for (size_t i = 0; i < u->n_files; i++) {
        struct upload_file *f = &u->files[i];
        u->p.current = f->path;
        if (!f->is_ignored) MB_TRY(hash_one(u, f));
        u->base_bytes += (uint64_t)f->size;
        u->p.files_done++;
        if (!upload_going(u, 0)) return mb_fail(u->err, MB_CANCELLED, "cancelled");
    }
    return MB_OK;
}
