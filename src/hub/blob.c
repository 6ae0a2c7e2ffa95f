/* blob.c: see blob.h. */
#include "hub/blob.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/filemap.h"

#define REFRESH_BYTES ((int64_t)64 << 20)

/* --- hashes --- */

static mb_status hash_compare(struct hasher *h, const struct hub_file *f, const char *where, mb_error *err)
{
    char hex[65], shown[84];
    MB_TRY(hasher_end(h, hex, err));
    if (strcmp(hex, f->digest) == 0) return MB_OK;
    return mb_fail(err, MB_BAD_FORMAT, "%s: %s is %.16s..., the hub lists %.16s...: %s", name_shown(f->path, strlen(f->path), shown),
                   f->is_lfs ? "the sha256" : "the git sha1", hex, f->digest, where);
}

/* --- names on disk --- */

static mb_status blob_path(char out[PATH_MAX], const char *repo_dir, const struct hub_file *f, const char *suffix, mb_error *err)
{
    char name[96];
    snprintf(name, sizeof name, "blobs/%s%s", f->digest, suffix);
    return path_join(out, PATH_MAX, repo_dir, name, err);
}

static int64_t size_of(const char *repo_dir, const struct hub_file *f, const char *suffix)
{
    char path[PATH_MAX];
    struct stat st;
    if (blob_path(path, repo_dir, f, suffix, NULL) != MB_OK || lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) return -1;
    return (int64_t)st.st_size;
}

bool blob_is_there(const char *repo_dir, const struct hub_file *f)
{
    return size_of(repo_dir, f, "") == f->size;
}

int64_t blob_partial_bytes(const char *repo_dir, const struct hub_file *f)
{
    int64_t n = size_of(repo_dir, f, ".incomplete");
    return n > 0 ? n : 0;
}

/* --- one blob --- */

static mb_status write_part(struct blob *b, const char *data, size_t len, mb_error *err)
{
    int64_t at = b->written;
    while (len > 0) {
        bool full = fault_hit("disk_full");
        ssize_t n = full ? -1 : pwrite(b->fd, data, len, at);
        if (n < 0 && !full && errno == EINTR) continue;
        if (full) errno = ENOSPC;
        if (n <= 0 && errno == ENOSPC)
            return mb_fail(err, MB_IO, "the disk is full: %s; what is there is kept (free space with mlx-bun gc, then run the same "
                           "command again)", b->part);
        if (n <= 0) return mb_fail_errno(err, "cannot write", b->part);
        data += n;
        at += n;
        len -= (size_t)n;
    }
    return MB_OK;
}

/* The sink of the hasher: by its thread. What does not fit leaves no trace behind the last whole piece. */
static mb_status write_piece(void *blob, const void *data, size_t len, mb_error *err)
{
    struct blob *b = blob;
    mb_status st = write_part(b, data, len, err);
    if (st == MB_OK) b->written += (int64_t)len;
    else if (ftruncate(b->fd, b->written) != 0) unlink(b->part);
    return st;
}

struct asked {
    bool (*cancelled)(void *ctx);
    void *ctx;
};

static bool not_cancelled(void *asked, int64_t done_bytes)
{
    const struct asked *a = asked;
    (void)done_bytes;
    return !a->cancelled || !a->cancelled(a->ctx);
}

static mb_status partial_open(struct blob *b, bool (*cancelled)(void *ctx), void *ctx, mb_error *err)
{
    struct asked asked = { cancelled, ctx };
    struct stat st;
    b->fd = open(b->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (b->fd < 0 || fstat(b->fd, &st) != 0) return mb_fail_errno(err, "cannot open", b->part);
    MB_TRY(hasher_open(&b->hash, b->file->is_lfs, b->file->size, err));
    if (st.st_size > b->file->size) MB_TRY(blob_restart(b, err)); /* cannot be its beginning */
    else {
        MB_TRY(hasher_add_file(b->hash, b->fd, st.st_size, b->part, not_cancelled, &asked, err));
        b->have = b->told = b->written = st.st_size;
    }
    hasher_set_sink(b->hash, write_piece, b);
    return MB_OK;
}

void blob_clear_lock(const char *repo_dir, const struct hub_file *f)
{
    char path[PATH_MAX];
    struct lock l;
    if (blob_path(path, repo_dir, f, ".lock", NULL) != MB_OK || !file_exists(path)) return;
    if (lock_take(&l, path, "", NULL) == MB_OK) lock_release(&l);
}

mb_status blob_open(struct blob *b, const char *repo_dir, const struct hub_file *f, bool (*cancelled)(void *ctx), void *ctx,
                    mb_error *err)
{
    char lock[PATH_MAX], shown[84];
    *b = (struct blob){ .file = f, .fd = -1, .lock = { .fd = -1 } };
    MB_TRY(blob_path(b->path, repo_dir, f, "", err));
    MB_TRY(blob_path(b->part, repo_dir, f, ".incomplete", err));
    MB_TRY(blob_path(lock, repo_dir, f, ".lock", err));
    MB_TRY(lock_take(&b->lock, lock, name_shown(f->path, strlen(f->path), shown), err));
    mb_status st = partial_open(b, cancelled, ctx, err);
    if (st != MB_OK) blob_close(b);
    return st;
}

mb_status blob_restart(struct blob *b, mb_error *err)
{
    MB_TRY(hasher_restart(b->hash, err)); /* what was on its way to disk is there now */
    if (ftruncate(b->fd, 0) != 0) return mb_fail_errno(err, "cannot shorten", b->part);
    b->have = b->told = b->written = 0;
    return MB_OK;
}

mb_status blob_append(struct blob *b, const void *data, size_t len, mb_error *err)
{
    char shown[84];
    if ((int64_t)len > b->file->size - b->have)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the server sends more than the %lld bytes that the hub lists",
                       name_shown(b->file->path, strlen(b->file->path), shown), (long long)b->file->size);
    MB_TRY(hasher_add(b->hash, data, len, err));
    b->have += (int64_t)len;
    if (b->have - b->told >= REFRESH_BYTES) {
        b->told = b->have;
        lock_refresh(&b->lock);
    }
    return MB_OK;
}

mb_status blob_finish(struct blob *b, mb_error *err)
{
    char shown[84];
    if (b->have != b->file->size)
        return mb_fail(err, MB_IO, "%s: the server sent %lld of %lld bytes; what is there is kept, run the same command again to go on",
                       name_shown(b->file->path, strlen(b->file->path), shown), (long long)b->have, (long long)b->file->size);
    MB_TRY(hasher_flush(b->hash, err)); /* a disk that became full with the last bytes: no fault of theirs */
    mb_status st = hash_compare(b->hash, b->file, "the download is corrupt and was removed", err);
    if (st != MB_OK) {
        unlink(b->part); /* corrupt bytes are never resumed (REG-035) */
        return st;
    }
    if (rename(b->part, b->path) != 0) return mb_fail_errno(err, "cannot rename to", b->path);
    return MB_OK;
}

void blob_close(struct blob *b)
{
    hasher_close(b->hash);
    b->hash = NULL;
    if (b->fd >= 0) close(b->fd);
    b->fd = -1;
    struct stat st; /* an empty partial is of no use */
    if (b->lock.fd >= 0 && stat(b->part, &st) == 0 && st.st_size == 0) unlink(b->part);
    lock_release(&b->lock);
}

mb_status blob_verify(const char *path, const struct hub_file *f, bool (*cancelled)(void *ctx), void *ctx, mb_error *err)
{
    struct stat st;
    char shown[84];
    int fd;
    MB_TRY(file_open_read(&fd, &st, path, err));
    struct hasher *h = NULL;
    mb_status s = hasher_open(&h, f->is_lfs, f->size, err);
    if (s == MB_OK && st.st_size != f->size)
        s = mb_fail(err, MB_BAD_FORMAT, "%s has %lld bytes, the hub lists %lld", name_shown(f->path, strlen(f->path), shown),
                    (long long)st.st_size, (long long)f->size);
    struct asked asked = { cancelled, ctx };
    if (s == MB_OK) s = hasher_add_file(h, fd, f->size, path, not_cancelled, &asked, err);
    if (s == MB_OK) s = hash_compare(h, f, "the file in the cache is corrupt", err);
    hasher_close(h);
    close(fd);
    return s;
}
