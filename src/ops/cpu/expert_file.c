/* expert_file.c: see expert_file.h. Native byte order. The head is one page; records follow, then the table. */
#include "ops/cpu/expert_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/fault.h"
#include "base/filemap.h"
#include "base/log.h"
#include "base/mem.h"
#include "ops/cpu/packed.h"

#define FILE_VERSION 1
#define MAX_RECORDS (1 << 24)
static const char file_magic[8] = "mlxbexp";

struct file_head {
    char magic[8];
    uint32_t version, pack_version;
    uint32_t n_groups, n_records;
    uint64_t key, table_off, size_bytes, table_checksum, checksum; /* the last: of all before */
};
struct file_group {
    uint64_t form, off, record_bytes; /* off: of its first record */
    uint32_t n, i_first;
};

struct expert_file {
    char *path, *temp;
    uint64_t key, at;            /* at: end of what has been written */
    int fd, fd_direct;           /* fd_direct -1: the file system knows no direct reads */
    atomic_bool direct;
    bool made;
    struct file_group *groups;
    const char **names;          /* [n_groups], borrowed */
    uint64_t *checksums;         /* [n_records] */
    int32_t n_groups, n_records, cap_groups, cap_records;
    int32_t n_asked;             /* groups that expert_file_group has given out */
};

/* --- plain files --- */

static mb_status write_all(struct expert_file *f, const void *data, size_t len, uint64_t off, mb_error *err)
{
    const uint8_t *p = data;
    while (len > 0) {
        ssize_t n;
        if (fault_hit("disk_full")) {
            n = -1;
            errno = ENOSPC;
        } else n = pwrite(f->fd, p, len, (off_t)off);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
            return mb_fail(err, MB_IO, "%s: no room for the experts' file behind %llu MB (%s): free space, name another --cache-dir, or "
                           "leave --expert-offload out", f->path, (unsigned long long)(f->at >> 20), strerror(errno));
        if (n <= 0) return mb_fail_errno(err, "writing", f->temp);
        p += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return MB_OK;
}

/* Less than len only at the end of the file; -1: errno. */
static ssize_t read_all(int fd, void *to, size_t len, uint64_t off)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n;
        if (fault_hit("expert_read")) {
            n = -1;
            errno = EIO;
        } else n = pread(fd, (uint8_t *)to + done, len - done, (off_t)(off + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

/* --- an existing file --- */

static bool head_is_good(const struct file_head *h, uint64_t key, uint64_t size_bytes)
{
    if (memcmp(h->magic, file_magic, sizeof h->magic) != 0 || h->version != FILE_VERSION) return false;
    if (h->checksum != XXH3_64bits(h, offsetof(struct file_head, checksum))) return false;
    if (h->pack_version != PACKED_VERSION || h->key != key || h->size_bytes != size_bytes) return false;
    if (h->n_records > MAX_RECORDS || h->n_groups > h->n_records || h->n_groups == 0) return false;
    uint64_t table = h->n_groups * sizeof(struct file_group) + h->n_records * sizeof(uint64_t);
    return h->table_off < size_bytes && size_bytes - h->table_off == table;
}

/* Groups lie one after the other, inside the file. */
static bool groups_are_good(const struct expert_file *f, uint64_t table_off)
{
    uint64_t at = EXPERT_ALIGN, i_first = 0;
    for (int32_t i = 0; i < f->n_groups; i++) {
        const struct file_group *g = &f->groups[i];
        if (g->off != at || g->i_first != i_first || g->record_bytes == 0 || g->record_bytes % EXPERT_ALIGN) return false;
        if (g->n == 0 || g->n > table_off / g->record_bytes) return false;
        at += g->n * g->record_bytes;
        i_first += g->n;
    }
    return at == table_off && i_first == (uint64_t)f->n_records;
}

static bool grow(struct expert_file *f, int32_t n_groups, int32_t n_records)
{
    if (n_groups > f->cap_groups) {
        int32_t cap = n_groups > 2 * f->cap_groups ? n_groups : 2 * f->cap_groups;
        struct file_group *g = mb_realloc(f->groups, (size_t)cap * sizeof *g);
        if (g) f->groups = g;
        const char **names = g ? mb_realloc(f->names, (size_t)cap * sizeof *names) : NULL;
        if (!names) return false;
        f->names = names;
        f->cap_groups = cap;
    }
    if (n_records > f->cap_records) {
        int32_t cap = n_records > 2 * f->cap_records ? n_records : 2 * f->cap_records;
        uint64_t *sums = mb_realloc(f->checksums, (size_t)cap * sizeof *sums);
        if (!sums) return false;
        f->checksums = sums;
        f->cap_records = cap;
    }
    return true;
}

/* *good: its table has been read, and the file may be trusted as far as that. */
static mb_status read_table(struct expert_file *f, bool *good, mb_error *err)
{
    struct stat s;
    struct file_head h;
    *good = false;
    if (fstat(f->fd, &s) != 0 || read_all(f->fd, &h, sizeof h, 0) != (ssize_t)sizeof h) return MB_OK;
    if (!head_is_good(&h, f->key, (uint64_t)s.st_size)) return MB_OK;
    if (!grow(f, (int32_t)h.n_groups, (int32_t)h.n_records)) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    f->n_groups = (int32_t)h.n_groups;
    f->n_records = (int32_t)h.n_records;
    size_t groups = (size_t)f->n_groups * sizeof *f->groups, sums = (size_t)f->n_records * sizeof *f->checksums;
    if (read_all(f->fd, f->groups, groups, h.table_off) != (ssize_t)groups) return MB_OK;
    if (read_all(f->fd, f->checksums, sums, h.table_off + groups) != (ssize_t)sums) return MB_OK;
    uint64_t sum = XXH3_64bits_withSeed(f->checksums, sums, XXH3_64bits(f->groups, groups));
    *good = sum == h.table_checksum && groups_are_good(f, h.table_off);
    f->at = h.size_bytes;
    return MB_OK;
}

/* The same file past the page cache, where the file system can do that: a model larger than memory would only push other
 * things out of it. */
static void open_direct(struct expert_file *f)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", f->fd); /* this file, whatever its name stands for by now */
    f->fd_direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    atomic_store(&f->direct, f->fd_direct >= 0);
    if (f->fd_direct < 0) posix_fadvise(f->fd, 0, 0, POSIX_FADV_RANDOM);
}

/* --- making one --- */

static mb_status begin(struct expert_file *f, mb_error *err)
{
    size_t n = strlen(f->path) + 40;
    f->n_groups = f->n_records = 0;
    f->at = EXPERT_ALIGN;
    f->temp = mb_alloc(n);
    if (!f->temp) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    file_temps_sweep(f->path);
    f->fd = file_temp_open(f->path, f->temp, n);
    if (f->fd >= 0) return MB_OK;
    mb_status st = mb_fail_errno(err, "making", f->temp);
    mb_free(f->temp);
    f->temp = NULL;
    return st;
}

mb_status expert_file_open(struct expert_file **out, const char *path, uint64_t key, mb_error *err)
{
    *out = NULL;
    struct expert_file *f = mb_calloc(1, sizeof *f);
    if (f) f->path = mb_strdup(path);
    if (!f || !f->path) {
        mb_free(f);
        return mb_fail(err, MB_NO_MEMORY, "out of memory");
    }
    f->key = key;
    f->fd_direct = -1;
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* what is no file has no table, and is made anew */
    mb_status st = f->fd >= 0 ? read_table(f, &f->made, err) : MB_OK;
    if (st == MB_OK && f->fd >= 0 && !f->made) {
        LOGI("experts", "%s is of another model, another version or damaged: made anew", path);
        close(f->fd);
        f->fd = -1;
    }
    if (st == MB_OK && f->made) open_direct(f);
    if (st == MB_OK && !f->made) st = begin(f, err);
    if (st != MB_OK) {
        expert_file_close(f);
        return st;
    }
    *out = f;
    return MB_OK;
}

void expert_file_close(struct expert_file *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    if (f->fd_direct >= 0) close(f->fd_direct);
    if (f->temp) unlink(f->temp);
    mb_free(f->temp);
    mb_free(f->path);
    mb_free(f->groups);
    mb_free(f->names);
    mb_free(f->checksums);
    mb_free(f);
}

static mb_status next_group(struct expert_file *f, uint64_t form, int32_t n, size_t record_bytes, mb_error *err)
{
    const struct file_group *g = &f->groups[f->n_asked];
    if (f->n_asked < f->n_groups && g->form == form && (int64_t)g->n == n && g->record_bytes == record_bytes) return MB_OK;
    unlink(f->path);
    return mb_fail(err, MB_BAD_FORMAT, "%s does not hold the experts of this model; it has been removed, start again to make it anew",
                   f->path);
}

mb_status expert_file_group(struct expert_file *f, const char *name, uint64_t form, int32_t n, size_t record_bytes,
                            int32_t *i_group, int32_t *i_first, mb_error *err)
{
    *i_group = *i_first = 0;
    if (f->made) MB_TRY(next_group(f, form, n, record_bytes, err));
    else {
        if (n <= 0 || n > MAX_RECORDS - f->n_records) return mb_fail(err, MB_UNSUPPORTED, "%s: more than %d experts", name, MAX_RECORDS);
        if (!grow(f, f->n_groups + 1, f->n_records + n)) return mb_fail(err, MB_NO_MEMORY, "out of memory");
        f->groups[f->n_groups++] = (struct file_group){ .form = form, .off = f->at, .record_bytes = record_bytes, .n = (uint32_t)n,
                                                        .i_first = (uint32_t)f->n_records };
    }
    *i_group = f->n_asked;
    *i_first = (int32_t)f->groups[f->n_asked].i_first;
    f->names[f->n_asked++] = name;
    return MB_OK;
}

mb_status expert_file_write(struct expert_file *f, const void *record, mb_error *err)
{
    size_t len = f->groups[f->n_groups - 1].record_bytes;
    MB_TRY(write_all(f, record, len, f->at, err));
    f->checksums[f->n_records++] = XXH3_64bits(record, len);
    f->at += len;
    return MB_OK;
}

static mb_status write_table(struct expert_file *f, mb_error *err)
{
    size_t groups = (size_t)f->n_groups * sizeof *f->groups, sums = (size_t)f->n_records * sizeof *f->checksums;
    struct file_head h = { .version = FILE_VERSION, .pack_version = PACKED_VERSION, .n_groups = (uint32_t)f->n_groups,
                           .n_records = (uint32_t)f->n_records, .key = f->key, .table_off = f->at,
                           .size_bytes = f->at + groups + sums };
    memcpy(h.magic, file_magic, sizeof h.magic);
    h.table_checksum = XXH3_64bits_withSeed(f->checksums, sums, XXH3_64bits(f->groups, groups));
    h.checksum = XXH3_64bits(&h, offsetof(struct file_head, checksum));
    MB_TRY(write_all(f, f->groups, groups, f->at, err));
    MB_TRY(write_all(f, f->checksums, sums, f->at + groups, err));
    MB_TRY(write_all(f, &h, sizeof h, 0, err));
    f->at = h.size_bytes;
    return MB_OK;
}

/* The descriptor goes on reading what it has written, also when another process puts its own file there. */
mb_status expert_file_finish(struct expert_file *f, mb_error *err)
{
    if (f->made) return MB_OK;
    MB_TRY(write_table(f, err));
    if (fsync(f->fd) != 0) return mb_fail_errno(err, "writing", f->temp);
    if (rename(f->temp, f->path) != 0) return mb_fail_errno(err, "renaming to", f->path);
    mb_free(f->temp);
    f->temp = NULL;
    flock(f->fd, LOCK_UN);
    posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
    open_direct(f);
    f->made = true;
    return MB_OK;
}

/* --- reading --- */

mb_status expert_file_read(struct expert_file *f, int32_t i_group, int32_t i, void *dst, mb_error *err)
{
    const struct file_group *g = &f->groups[i_group];
    uint64_t off = g->off + (uint64_t)i * g->record_bytes;
    size_t len = (size_t)g->record_bytes;
    bool direct = atomic_load(&f->direct);
    ssize_t n = read_all(direct ? f->fd_direct : f->fd, dst, len, off);
    if (n < 0 && direct && errno == EINVAL) { /* opened so, but cannot read so */
        atomic_store(&f->direct, false);
        n = read_all(f->fd, dst, len, off);
    }
    if (n < 0) return mb_fail(err, MB_IO, "%s, expert %d: reading %s: %s", f->names[i_group], (int)i, f->path, strerror(errno));
    if ((size_t)n < len)
        return mb_fail(err, MB_IO, "%s, expert %d: %s ends inside it (byte %llu): stop the server and start it again, which makes the file "
                       "anew", f->names[i_group], (int)i, f->path, (unsigned long long)(off + (uint64_t)n));
    if (XXH3_64bits(dst, len) != f->checksums[g->i_first + (uint32_t)i])
        return mb_fail(err, MB_IO, "%s, expert %d: %s is damaged at byte %llu: stop the server, remove that file and start again, which "
                       "makes it anew", f->names[i_group], (int)i, f->path, (unsigned long long)off);
    return MB_OK;
}

bool expert_file_is_made(const struct expert_file *f) { return f->made; }
uint64_t expert_file_size_bytes(const struct expert_file *f) { return f->at; }
int32_t expert_file_n_records(const struct expert_file *f) { return f->n_records; }
int32_t expert_file_n_groups(const struct expert_file *f) { return f->n_groups; }
size_t expert_file_record_bytes(const struct expert_file *f, int32_t i_group) { return (size_t)f->groups[i_group].record_bytes; }
int32_t expert_file_first(const struct expert_file *f, int32_t i_group) { return (int32_t)f->groups[i_group].i_first; }
bool expert_file_is_direct(const struct expert_file *f) { return atomic_load(&f->direct); }

size_t expert_file_largest_bytes(const struct expert_file *f)
{
    size_t most = 0;
    for (int32_t i = 0; i < f->n_groups; i++)
        if (f->groups[i].record_bytes > most) most = (size_t)f->groups[i].record_bytes;
    return most;
}
