/* out_folder.c: see out_folder.h. */
#include "convert/out_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"

#define SPARE_BYTES ((uint64_t)64 << 20) /* left over for the rest of the machine */
#define MARK ".mlx-bun-part"
#define COPY_BYTES ((size_t)1 << 20)

/* --- the part folder --- */

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Nothing but the mark, or the mark among others: ours. An empty folder may be a process that died before its mark. */
static bool is_ours(int fd)
{
    bool empty = true, marked = faccessat(fd, MARK, F_OK, 0) == 0;
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (!d) {
        if (copy >= 0) close(copy);
        return marked;
    }
    for (struct dirent *e; (e = readdir(d));) empty = empty && is_dots(e->d_name);
    closedir(d);
    return marked || empty;
}

/* The one folder inside: files alone. */
static void side_remove(int fd)
{
    int side = openat(fd, OUT_FOLDER_MTP, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = side >= 0 ? fdopendir(side) : NULL;
    if (!d) {
        if (side >= 0) close(side);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (!is_dots(e->d_name)) unlinkat(side, e->d_name, 0);
    closedir(d);
    unlinkat(fd, OUT_FOLDER_MTP, AT_REMOVEDIR);
}

/* Files go, the mark last: what is left at any moment is still known as ours. */
static void folder_empty(int fd)
{
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    side_remove(fd);
    if (!d) {
        if (copy >= 0) close(copy);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (!is_dots(e->d_name) && strcmp(e->d_name, MARK) != 0) unlinkat(fd, e->d_name, 0);
    closedir(d);
}

static mb_status paths_make(struct out_folder *o, const char *target, mb_error *err)
{
    size_t len = strlen(target);
    while (len > 1 && target[len - 1] == '/') len--;
    if (len == 0) return mb_fail(err, MB_INVALID, "the output folder has no name");
    int a = snprintf(o->target, sizeof o->target, "%.*s", (int)len, target);
    int b = snprintf(o->part, sizeof o->part, "%.*s.part", (int)len, target);
    if (a < 0 || b < 0 || (size_t)b >= sizeof o->part)
        return mb_fail(err, MB_TOO_LARGE, "the path of the output folder is too long");
    return MB_OK;
}

/* An empty folder is replaced by rename() in the end, which cannot take the place of a mount point or of "."; nor can rmdir(), so
 * that hours of work are not begun in vain. */
static mb_status target_make_way(const struct out_folder *o, mode_t mode, mb_error *err)
{
    if (rmdir(o->target) != 0)
        return mb_fail(err, MB_INVALID, "%.400s cannot be replaced (%s); name a folder that does not exist yet", o->target, strerror(errno));
    return mkdir(o->target, mode & 07777) == 0 ? MB_OK : mb_fail_errno(err, "cannot make", o->target);
}

/* Missing, or an empty folder. */
static mb_status target_check(const struct out_folder *o, mb_error *err)
{
    struct stat st;
    if (lstat(o->target, &st) != 0) return errno == ENOENT ? MB_OK : mb_fail_errno(err, "cannot look at", o->target);
    int fd = S_ISDIR(st.st_mode) ? open(o->target, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool free_to_take = fd >= 0 && faccessat(fd, MARK, F_OK, 0) != 0 && is_ours(fd);
    if (fd >= 0) close(fd);
    if (free_to_take) return target_make_way(o, st.st_mode, err);
    return mb_fail(err, MB_INVALID, "%.400s exists already; name another folder or remove it", o->target);
}

mb_status out_folder_check_target(const char *target, mb_error *err)
{
    struct out_folder o;
    MB_TRY(paths_make(&o, target, err));
    return target_check(&o, err);
}

static mb_status part_take(struct out_folder *o, mb_error *err)
{
    MB_TRY(dir_make(o->part, err));
    o->fd = open(o->part, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (o->fd < 0) return mb_fail_errno(err, "cannot open", o->part);
    if (flock(o->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return mb_fail(err, MB_INVALID, "%.400s: another conversion is writing there", o->part);
    if (!is_ours(o->fd))
        return mb_fail(err, MB_INVALID, "%.400s stands where the conversion would be written, and is not of this program; move "
                       "it or name another folder", o->part);
    int mark = openat(o->fd, MARK, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (mark < 0) return mb_fail_errno(err, "cannot write into", o->part);
    close(mark);
    folder_empty(o->fd);
    return MB_OK;
}

mb_status out_folder_open(struct out_folder *o, const char *target, mb_error *err)
{
    o->fd = -1;
    MB_TRY(paths_make(o, target, err));
    MB_TRY(target_check(o, err));
    mb_status st = part_take(o, err);
    if (st != MB_OK && o->fd >= 0) close(o->fd);
    return st;
}

void out_folder_abort(struct out_folder *o)
{
    folder_empty(o->fd);
    unlinkat(o->fd, MARK, 0);
    rmdir(o->part);
    close(o->fd);
    o->fd = -1;
}

/* rename() takes the place of an empty folder and refuses any other. The folder's own entries are on disk before; the mark goes
 * last, so that a folder without the new name is known as ours at any moment. What is whole but for its name is kept. */
mb_status out_folder_publish(struct out_folder *o, mb_error *err)
{
    mb_status st = MB_OK;
    if (fsync(o->fd) != 0) {
        st = mb_fail_errno(err, "cannot write", o->part);
        out_folder_abort(o);
        return st;
    }
    if (rename(o->part, o->target) != 0)
        st = mb_fail(err, MB_IO, "%.300s cannot get that name (%s); the result is whole in %.300s", o->target, strerror(errno), o->part);
    unlinkat(o->fd, MARK, 0);
    close(o->fd);
    o->fd = -1;
    return st;
}

/* --- what goes in --- */

mb_status out_folder_check_space(const struct out_folder *o, uint64_t need_bytes, mb_error *err)
{
    struct statvfs fs;
    uint64_t need = need_bytes + SPARE_BYTES;
    if (fault_hit("space")) need = UINT64_MAX;
    if (fstatvfs(o->fd, &fs) != 0) return MB_OK; /* the write itself will tell */
    uint64_t have = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (have >= need) return MB_OK;
    return mb_fail(err, MB_IO, "%.300s: the conversion needs %.1f MB, %.1f MB are free; nothing was written", o->target,
                   (double)need / 1e6, (double)have / 1e6);
}

mb_status out_folder_make_side(const struct out_folder *o, mb_error *err)
{
    if (mkdirat(o->fd, OUT_FOLDER_MTP, 0755) == 0 || errno == EEXIST) return MB_OK;
    return mb_fail(err, MB_IO, "cannot make %.300s/%s: %s", o->part, OUT_FOLDER_MTP, strerror(errno));
}

mb_status out_folder_put_json(const struct out_folder *o, const char *name, const json_t *v, int indent, mb_error *err)
{
    char path[PATH_MAX];
    struct buf b;
    struct json_write_opts opts = { .indent = indent };
    MB_TRY(path_join(path, sizeof path, o->part, name, err));
    buf_init(&b, (size_t)1 << 30);
    json_write(&b, v, &opts);
    buf_append_char(&b, '\n');
    mb_status st = buf_status(&b, name, err);
    if (st == MB_OK) st = file_write_atomic(path, b.data, b.len, err);
    buf_free(&b);
    return st;
}

/* Which files of a checkpoint are copied, by the end of their name; of these not the ones that speak of the weights. */
static const char *const copied_ends[] = { ".json", ".jinja", ".model", ".tiktoken", ".txt" };
static const char *const copied_starts[] = { "LICENSE", "LICENCE", "NOTICE" };
static const char *const not_copied[] = { "config.json", "optiq_metadata.json", "adapter_config.json" };

static bool is_copied(const char *name)
{
    size_t len = strlen(name);
    bool yes = false;
    if (name[0] == '.' || strstr(name, ".index.json")) return false;
    for (size_t i = 0; i < sizeof not_copied / sizeof not_copied[0]; i++)
        if (strcmp(name, not_copied[i]) == 0) return false;
    for (size_t i = 0; i < sizeof copied_ends / sizeof copied_ends[0]; i++) {
        size_t n = strlen(copied_ends[i]);
        yes = yes || (len > n && strcmp(name + len - n, copied_ends[i]) == 0);
    }
    for (size_t i = 0; i < sizeof copied_starts / sizeof copied_starts[0]; i++)
        yes = yes || strncmp(name, copied_starts[i], strlen(copied_starts[i])) == 0;
    return yes;
}

static mb_status bytes_move(int in, int out, void *buf, const char *from, const char *to, mb_error *err)
{
    for (;;) {
        ssize_t got = read(in, buf, COPY_BYTES);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return mb_fail_errno(err, "cannot read", from);
        if (got == 0) break;
        for (ssize_t done = 0; done < got;) {
            ssize_t n = -1;
            if (fault_hit("disk_full")) errno = ENOSPC;
            else n = write(out, (char *)buf + done, (size_t)(got - done));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return mb_fail_errno(err, "cannot write", to);
            done += n;
        }
    }
    return fsync(out) == 0 ? MB_OK : mb_fail_errno(err, "cannot write", to);
}

static mb_status file_copy(const char *from, const char *to, mb_error *err)
{
    mb_status st = MB_OK;
    struct stat info;
    int in, out = -1;
    MB_TRY(file_open_read(&in, &info, from, err));
    void *buf = mb_alloc(COPY_BYTES);
    if (!buf) st = mb_fail(err, MB_NO_MEMORY, "no memory to copy %.400s", from);
    if (st == MB_OK) out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (st == MB_OK && out < 0) st = mb_fail_errno(err, "cannot create", to);
    if (st == MB_OK) st = bytes_move(in, out, buf, from, to, err);
    if (out >= 0) close(out);
    close(in);
    mb_free(buf);
    return st;
}

static mb_status text_visit(const struct out_folder *o, const char *src_dir, const char *name, uint64_t *sum, mb_error *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct stat st;
    MB_TRY(path_join(from, sizeof from, src_dir, name, err));
    if (!is_copied(name)) return MB_OK;
    if (stat(from, &st) != 0) return mb_fail_errno(err, "cannot look at", from);
    if (!S_ISREG(st.st_mode)) return MB_OK;
    *sum += (uint64_t)st.st_size;
    if (!o) return MB_OK;
    MB_TRY(path_join(to, sizeof to, o->part, name, err));
    return file_copy(from, to, err);
}

mb_status out_folder_copy_texts(const struct out_folder *o, const char *src_dir, uint64_t *bytes, mb_error *err)
{
    uint64_t sum = 0;
    mb_status st = MB_OK;
    DIR *d = opendir(src_dir);
    if (!d) return mb_fail_errno(err, "cannot read the folder", src_dir);
    for (struct dirent *e; st == MB_OK && (errno = 0, e = readdir(d));) st = text_visit(o, src_dir, e->d_name, &sum, err);
    if (st == MB_OK && errno != 0) st = mb_fail_errno(err, "cannot read the folder", src_dir);
    closedir(d);
    if (bytes) *bytes = sum;
    return st;
}
