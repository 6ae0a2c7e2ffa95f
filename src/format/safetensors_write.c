/* safetensors_write.c: see safetensors_write.h. Owns the layout of a new file: tensors end to end in the given order,
 * the header padded with spaces so that the data begin at a multiple of 8.
 */
#include "format/safetensors_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/json.h"
#include "base/mem.h"

struct safetensors_writer {
    int fd;
    char *path, *tmp_path; /* owned */
    uint64_t *first;       /* [n + 1] absolute offsets of the tensors; owned */
    size_t n;
};

static void put_tensor(struct buf *b, const struct tensor_view *t, uint64_t first, uint64_t end)
{
    json_write_string(b, t->name, strlen(t->name));
    buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_get(t->dtype)->name);
    for (int i = 0; i < t->n_dim; i++) buf_printf(b, i ? ",%lld" : "%lld", (long long)t->shape[i]);
    buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)first, (unsigned long long)end);
}

/* The 8 length bytes and the header; w->first becomes absolute. */
static mb_status header_make(struct safetensors_writer *w, struct buf *b, const struct tensor_view *t,
                             const json_t *metadata, mb_error *err)
{
    static const struct json_write_opts compact = { .indent = 0 };
    bool comma = false;
    buf_append(b, "\0\0\0\0\0\0\0\0{", 9);
    if (metadata) {
        buf_append_str(b, "\"__metadata__\":");
        json_write(b, metadata, &compact);
        comma = true;
    }
    for (size_t i = 0; i < w->n; i++) {
        if (comma) buf_append_char(b, ',');
        put_tensor(b, &t[i], w->first[i], w->first[i + 1]);
        comma = true;
    }
    buf_append_char(b, '}');
    while (b->failed == MB_OK && b->len % 8) buf_append_char(b, ' ');
    MB_TRY(buf_status(b, "safetensors header", err));
    uint64_t len = b->len - 8;
    for (int i = 0; i < 8; i++) b->data[i] = (char)(len >> 8 * i);
    for (size_t i = 0; i <= w->n; i++) w->first[i] += b->len;
    return MB_OK;
}

static mb_status offsets_make(struct safetensors_writer *w, const struct tensor_view *t, mb_error *err)
{
    w->first = mb_calloc(w->n + 1, sizeof *w->first);
    if (!w->first) return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the header", w->path);
    for (size_t i = 0; i < w->n; i++) {
        uint64_t span;
        mb_status st = tensor_span(t[i].dtype, t[i].shape, t[i].n_dim, &span, err);
        if (st != MB_OK) return mb_error_prefix(err, "%s", t[i].name);
        if (__builtin_add_overflow(w->first[i], span, &w->first[i + 1]) || w->first[i + 1] > INT64_MAX / 2)
            return mb_fail(err, MB_TOO_LARGE, "%s: the tensors do not fit in one file", w->path);
    }
    return MB_OK;
}

static mb_status pwrite_all(const struct safetensors_writer *w, const void *data, size_t len, uint64_t off,
                            mb_error *err)
{
    const char *p = data;
    while (len > 0) {
        ssize_t got = -1;
        if (fault_hit("disk_full")) errno = ENOSPC;
        else got = pwrite(w->fd, p, len, (off_t)off);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return mb_fail_errno(err, "cannot write", w->tmp_path);
        p += got;
        len -= (size_t)got;
        off += (uint64_t)got;
    }
    return MB_OK;
}

/* Reserve the whole file, so that a full disk shows now. Filesystems that cannot do it are let go on. */
static mb_status reserve(const struct safetensors_writer *w, mb_error *err)
{
    uint64_t size = w->first[w->n];
    int rc = fallocate(w->fd, 0, 0, (off_t)size) == 0 ? 0 : errno;
    if (rc == 0) return MB_OK;
    if (rc == ENOSPC || rc == EDQUOT || rc == EFBIG) {
        errno = rc;
        return mb_fail_errno(err, "cannot reserve the space for", w->path);
    }
    if (ftruncate(w->fd, (off_t)size) != 0) return mb_fail_errno(err, "cannot size", w->tmp_path);
    return MB_OK;
}

static mb_status file_begin(struct safetensors_writer *w, const struct buf *header, mb_error *err)
{
    w->fd = open(w->tmp_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) return mb_fail_errno(err, "cannot create", w->tmp_path);
    MB_TRY(reserve(w, err));
    return pwrite_all(w, header->data, header->len, 0, err);
}

static mb_status names_make(struct safetensors_writer *w, const char *path, mb_error *err)
{
    char tmp[4096];
    int len = snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid());
    if (len < 0 || (size_t)len >= sizeof tmp) return mb_fail(err, MB_TOO_LARGE, "the path is longer than 4,095 bytes");
    w->path = mb_strdup(path);
    w->tmp_path = mb_strdup(tmp);
    if (!w->path || !w->tmp_path) return mb_fail(err, MB_NO_MEMORY, "no memory for a path");
    return MB_OK;
}

mb_status safetensors_writer_open(struct safetensors_writer **out, const char *path, const struct tensor_view *tensors,
                                  size_t n, const json_t *metadata, mb_error *err)
{
    struct buf header;
    mb_status st = MB_OK;
    *out = NULL;
    struct safetensors_writer *w = mb_calloc(1, sizeof *w);
    if (!w) return mb_fail(err, MB_NO_MEMORY, "no memory to write %.400s", path);
    w->fd = -1;
    w->n = n;
    buf_init(&header, (size_t)1 << 28);
    MB_TRY_GOTO(st, names_make(w, path, err), done);
    MB_TRY_GOTO(st, offsets_make(w, tensors, err), done);
    MB_TRY_GOTO(st, header_make(w, &header, tensors, metadata, err), done);
    MB_TRY_GOTO(st, file_begin(w, &header, err), done);
    *out = w;
    w = NULL;
done:
    buf_free(&header);
    safetensors_writer_abort(w);
    return st;
}

mb_status safetensors_writer_put(struct safetensors_writer *w, size_t i, size_t off, const void *data, size_t len,
                                 mb_error *err)
{
    if (i >= w->n || off > w->first[i + 1] - w->first[i] || len > w->first[i + 1] - w->first[i] - off)
        return mb_fail(err, MB_INVALID, "%s: a write outside of tensor %zu", w->path, i);
    return pwrite_all(w, data, len, w->first[i] + off, err);
}

static void writer_free(struct safetensors_writer *w)
{
    if (w->fd >= 0) close(w->fd);
    mb_free(w->path);
    mb_free(w->tmp_path);
    mb_free(w->first);
    mb_free(w);
}

void safetensors_writer_abort(struct safetensors_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) unlink(w->tmp_path);
    writer_free(w);
}

/* fsync of the folder: without it the new name may be gone after a crash, the old file is whole either way. */
static void folder_sync(const char *path)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

mb_status safetensors_writer_finish(struct safetensors_writer *w, mb_error *err)
{
    mb_status st = MB_OK;
    if (fsync(w->fd) != 0) st = mb_fail_errno(err, "cannot write", w->tmp_path);
    else if (rename(w->tmp_path, w->path) != 0) st = mb_fail_errno(err, "cannot rename to", w->path);
    if (st != MB_OK) {
        safetensors_writer_abort(w);
        return st;
    }
    folder_sync(w->path);
    writer_free(w);
    return MB_OK;
}

mb_status safetensors_write(const char *path, const struct tensor_view *tensors, size_t n, const json_t *metadata,
                            mb_error *err)
{
    struct safetensors_writer *w;
    MB_TRY(safetensors_writer_open(&w, path, tensors, n, metadata, err));
    for (size_t i = 0; i < n; i++) {
        mb_status st = safetensors_writer_put(w, i, 0, tensors[i].data, tensors[i].size_bytes, err);
        if (st != MB_OK) {
            safetensors_writer_abort(w);
            return st;
        }
    }
    return safetensors_writer_finish(w, err);
}
