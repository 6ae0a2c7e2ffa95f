/* filemap.c: maps, whole-file reads and atomic writes. Every descriptor is opened close-on-exec. A map stays valid
 * while the file keeps its length; truncating a mapped model under a running program is an error of the user's that
 * the kernel answers with SIGBUS. */
#include "base/filemap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"

/* --- maps --- */

static mb_status wrong_kind(const char *path, mode_t mode, mb_error *err)
{
    const char *kind = S_ISDIR(mode) ? "directory" : S_ISFIFO(mode) ? "named pipe" : S_ISSOCK(mode) ? "socket" : "device";
    return mb_fail(err, MB_IO, "open %s: is a %s, wanted a regular file: put the file itself there, or a link to it", path, kind);
}

/* Open path for reading; *st is its state. Pipes and devices are read as they come with `any`, and waited for. */
static mb_status open_read(int *fd, struct stat *st, const char *path, bool any, mb_error *err)
{
    mb_status status = MB_OK;
    do *fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (any ? 0 : O_NONBLOCK)); while (*fd < 0 && errno == EINTR);
    if (*fd < 0 && errno == ENXIO && stat(path, st) == 0) return wrong_kind(path, st->st_mode, err); /* a socket */
    if (*fd < 0) return mb_fail_errno(err, "open", path);
    if (fstat(*fd, st) != 0) status = mb_fail_errno(err, "stat", path);
    else if (!S_ISREG(st->st_mode) && !(any && !S_ISDIR(st->st_mode))) status = wrong_kind(path, st->st_mode, err);
    if (status != MB_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

mb_status file_open_read(int *fd, struct stat *st, const char *path, mb_error *err)
{
    return open_read(fd, st, path, false, err);
}

mb_status filemap_open(struct filemap *m, const char *path, mb_error *err)
{
    *m = (struct filemap){ .fd = -1 };
    struct stat st;
    int fd;
    MB_TRY(open_read(&fd, &st, path, false, err));
    size_t size = (size_t)st.st_size;
    if (size > 0) {
        void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            mb_status status = mb_fail_errno(err, "map", path);
            close(fd);
            return status;
        }
        m->data = data;
    }
    m->size_bytes = size;
    m->fd = fd;
    return MB_OK;
}

void filemap_close(struct filemap *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size_bytes);
    if (m->fd >= 0) close(m->fd);
    *m = (struct filemap){ .fd = -1 };
}

void filemap_drop(const struct filemap *m, size_t off, size_t len)
{
    if (!m->data || off >= m->size_bytes) return;
    size_t end = len > m->size_bytes - off ? m->size_bytes : off + len;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t first = (off + page - 1) / page * page; /* whole pages */
    /* The page that holds the end of the file belongs to nobody else. */
    if (end < m->size_bytes) end = end / page * page;
    if (first < end) madvise((void *)(uintptr_t)(m->data + first), end - first, MADV_DONTNEED);
}

/* --- whole files --- */

static mb_status too_large(const char *path, size_t size, size_t limit, mb_error *err)
{
    return mb_fail(err, MB_TOO_LARGE, "read %s: the file has %zu bytes or more, the ceiling is %zu", path, size, limit);
}

/* True at the end of the file: for a buffer that is exactly full. */
static bool at_end(int fd)
{
    char probe;
    ssize_t n;
    do n = read(fd, &probe, 1); while (n < 0 && errno == EINTR);
    return n == 0;
}

/* Room for the next read: 64 KiB, or what b's ceiling leaves. False with b->failed when nothing is left. */
static bool reserve_some(struct buf *b)
{
    size_t want = 1 << 16;
    if (b->limit_bytes && b->limit_bytes - b->len < want) want = b->limit_bytes - b->len;
    return buf_reserve(b, want ? want : 1);
}

/* Read fd to its end; b's own ceiling applies too. */
static mb_status read_to_end(struct buf *b, int fd, const char *path, size_t limit, mb_error *err)
{
    size_t total = 0;
    for (;;) {
        if (!reserve_some(b)) {
            if (b->failed != MB_TOO_LARGE || !at_end(fd)) return buf_status(b, path, err);
            b->failed = MB_OK;
            break;
        }
        ssize_t n = read(fd, b->data + b->len, b->cap - 1 - b->len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return mb_fail_errno(err, "read", path);
        if (n == 0) break;
        total += (size_t)n;
        b->len += (size_t)n;
        if (total > limit) {
            b->len -= total;
            b->data[b->len] = 0;
            return too_large(path, total, limit, err);
        }
    }
    if (b->data) b->data[b->len] = 0;
    return MB_OK;
}

static mb_status read_whole(struct buf *b, const char *path, size_t limit_bytes, bool any, mb_error *err)
{
    struct stat st;
    int fd;
    MB_TRY(buf_status(b, path, err));
    MB_TRY(open_read(&fd, &st, path, any, err));
    mb_status status = MB_OK;
    if (S_ISREG(st.st_mode) && (uintmax_t)st.st_size > limit_bytes)
        status = too_large(path, (size_t)st.st_size, limit_bytes, err);
    else
        status = read_to_end(b, fd, path, limit_bytes, err);
    close(fd);
    return status;
}

mb_status file_read(struct buf *b, const char *path, size_t limit_bytes, mb_error *err)
{
    return read_whole(b, path, limit_bytes, false, err);
}

mb_status file_read_any(struct buf *b, const char *path, size_t limit_bytes, mb_error *err)
{
    return read_whole(b, path, limit_bytes, true, err);
}

static mb_status write_all(int fd, const char *data, size_t len, const char *path, mb_error *err)
{
    while (len > 0) {
        if (fault_hit("disk_full")) {
            errno = ENOSPC;
            return mb_fail_errno(err, "write", path);
        }
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return mb_fail_errno(err, "write", path);
        data += n;
        len -= (size_t)n;
    }
    return MB_OK;
}

/* fsync the folder that holds path, so that the new name itself is on disk. */
static mb_status sync_folder(const char *path, mb_error *err)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t len = !slash ? 1 : slash == path ? 1 : (size_t)(slash - path);
    memcpy(folder, slash ? path : ".", len);
    folder[len] = 0;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return mb_fail_errno(err, "open folder", folder);
    /* Some file systems cannot sync a folder (EINVAL); there is nothing more to do there. */
    mb_status status = fsync(fd) != 0 && errno != EINVAL ? mb_fail_errno(err, "sync folder", folder) : MB_OK;
    close(fd);
    return status;
}

static mb_status write_new(const char *path, const void *data, size_t len, bool durable, mb_error *err)
{
    static atomic_uint counter; /* two threads may write the same path; each has its own temporary name */
    char temp[PATH_MAX];
    int n = snprintf(temp, sizeof temp, "%s.tmp.%ld.%u", path, (long)getpid(), atomic_fetch_add(&counter, 1));
    if (n < 0 || (size_t)n >= sizeof temp) return mb_fail(err, MB_TOO_LARGE, "write: the path is longer than %d bytes",
                                                          PATH_MAX);
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return mb_fail_errno(err, "create", temp);
    mb_status status = write_all(fd, data, len, temp, err);
    if (status == MB_OK && durable && fsync(fd) != 0) status = mb_fail_errno(err, "sync", temp);
    if (close(fd) != 0 && status == MB_OK) status = mb_fail_errno(err, "close", temp);
    if (status == MB_OK && rename(temp, path) != 0) status = mb_fail_errno(err, "rename to", path);
    if (status != MB_OK) {
        unlink(temp);
        return status;
    }
    return durable ? sync_folder(path, err) : MB_OK;
}

mb_status file_write_atomic(const char *path, const void *data, size_t len, mb_error *err)
{
    return write_new(path, data, len, true, err);
}

mb_status file_write_replace(const char *path, const void *data, size_t len, mb_error *err)
{
    return write_new(path, data, len, false, err);
}

/* --- temporary files of others --- */

#define TEMP_TRIES 100

/* Locked, and still what temp names: nobody renames or sweeps it from here on. */
static bool is_ours(int fd, const char *temp)
{
    struct stat st, named;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false; /* else: no locks here, and no sweeping */
    return fstat(fd, &st) == 0 && stat(temp, &named) == 0 && st.st_ino == named.st_ino && st.st_dev == named.st_dev;
}

int file_temp_open(const char *path, char *temp, size_t cap)
{
    for (int i = 0; i < TEMP_TRIES; i++) { /* other containers have processes of this number too */
        int n = snprintf(temp, cap, "%s.tmp.%ld.%d", path, (long)getpid(), i);
        if (n < 0 || (size_t)n >= cap) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(temp, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) return -1;
        if (is_ours(fd, temp) && ftruncate(fd, 0) == 0) return fd;
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

static void sweep_one(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path);
    close(fd);
}

void file_temps_sweep(const char *path)
{
    char folder[PATH_MAX], temp[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t len_folder = slash ? (size_t)(slash - path) + 1 : 0, len_name = strlen(name);
    if (len_folder >= sizeof folder) return;
    memcpy(folder, path, len_folder);
    folder[len_folder] = '\0';
    DIR *d = opendir(len_folder > 0 ? folder : ".");
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        if (strncmp(e->d_name, name, len_name) != 0 || strncmp(e->d_name + len_name, ".tmp.", 5) != 0) continue;
        int n = snprintf(temp, sizeof temp, "%s%s", folder, e->d_name);
        if (n > 0 && (size_t)n < sizeof temp) sweep_one(temp);
    }
    closedir(d);
}

/* --- names --- */

bool path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

mb_status dir_make(const char *path, mb_error *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (len == 0) return mb_fail(err, MB_INVALID, "make folder: the path is empty");
    if (len >= sizeof part) return mb_fail(err, MB_TOO_LARGE, "make folder: the path is longer than %d bytes", PATH_MAX);
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        char saved = part[i];
        part[i] = 0;
        if (mkdir(part, 0755) != 0) {
            int why = errno;
            bool there = dir_exists(part); /* its look changes errno */
            errno = why;
            if (!there) return mb_fail_errno(err, "make folder", part);
        }
        part[i] = saved;
    }
    return MB_OK;
}

mb_status path_join(char *out, size_t cap, const char *a, const char *b, mb_error *err)
{
    size_t len = strlen(a);
    const char *between = len == 0 || a[len - 1] == '/' ? "" : "/";
    int n = snprintf(out, cap, "%s%s%s", a, between, b);
    if (n >= 0 && (size_t)n < cap) return MB_OK;
    if (cap) out[0] = 0;
    return mb_fail(err, MB_TOO_LARGE, "a path of %d bytes does not fit %zu", n, cap);
}
