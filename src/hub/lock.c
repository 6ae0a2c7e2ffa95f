/* lock.c: see lock.h. */
#include "hub/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/filemap.h"

#define OLD_S 3600       /* REG-041 */
#define EMPTY_S 2        /* a lock file without content: its maker is just writing it */
#define TRIES 20

uint64_t process_start(long pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
    const char *p = strrchr(text, ')'); /* the name before may hold anything */
    if (!p || p[1] != ' ' || p[2] == 'Z') return 0; /* a zombie holds nothing */
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    return p ? strtoull(p, NULL, 10) : 0;
}

/* --- what a lock file says --- */

struct holder {
    long pid;
    uint64_t start;
    int64_t age_s;
    bool empty;
};

static void holder_read(struct holder *h, int fd)
{
    char text[128];
    struct stat st;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    *h = (struct holder){ .empty = n <= 0 };
    text[n > 0 ? n : 0] = '\0';
    char *end;
    h->pid = strtol(text, &end, 10);
    strtoll(end, &end, 10);
    h->start = strtoull(end, NULL, 10);
    if (fstat(fd, &st) == 0) h->age_s = clock_unix_s() - (int64_t)st.st_mtime;
}

static bool holder_lives(const struct holder *h)
{
    if (h->empty) return h->age_s < EMPTY_S;
    if (h->pid <= 0 || h->age_s > OLD_S) return false;
    if (kill((pid_t)h->pid, 0) != 0 && errno == ESRCH) return false;
    uint64_t start = process_start(h->pid);
    return start != 0 && (h->start == 0 || h->start == start);
}

/* Always of one length, so that it is replaced in one write and never seen empty. */
static void holder_write(int fd)
{
    char text[96];
    int n = snprintf(text, sizeof text, "%-10ld %-12lld %-20llu\n", (long)getpid(), (long long)clock_unix_s(),
                     (unsigned long long)process_start(getpid()));
    if (pwrite(fd, text, (size_t)n, 0) != n) { /* full disk: the flock alone says it */ }
}

static bool is_same_file(int fd, const char *path)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

/* --- locks --- */

enum attempt { TOOK = 0, HELD, AGAIN, FAILED };

/* The file was there: take it over when its holder is gone. */
static enum attempt take_over(int fd, const char *path)
{
    struct holder h;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? HELD : FAILED;
    if (!is_same_file(fd, path)) return AGAIN; /* released or taken over between open and flock */
    holder_read(&h, fd);
    if (holder_lives(&h)) return h.empty ? AGAIN : HELD;
    holder_write(fd);
    return TOOK;
}

/* A new lock file appears with its content and its flock, or not at all: made without a name, then linked, which fails when the
 * name is taken, as O_EXCL does. Where a file system cannot do that: O_EXCL, and a file that is empty for a moment. */
static enum attempt create(struct lock *l)
{
    char dir[PATH_MAX], self[64];
    strcpy(dir, l->path);
    *strrchr(dir, '/') = '\0';
    l->fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
    if (l->fd >= 0) {
        snprintf(self, sizeof self, "/proc/self/fd/%d", l->fd);
        if (flock(l->fd, LOCK_EX | LOCK_NB) != 0) return FAILED;
        holder_write(l->fd);
        if (linkat(AT_FDCWD, self, AT_FDCWD, l->path, AT_SYMLINK_FOLLOW) == 0) return TOOK;
        if (errno == EEXIST) return HELD;
        close(l->fd);
    }
    l->fd = open(l->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (l->fd < 0) return errno == EEXIST ? HELD : FAILED;
    if (flock(l->fd, LOCK_EX) != 0) return FAILED; /* waits for somebody's glance at most */
    if (!is_same_file(l->fd, l->path)) return AGAIN;
    holder_write(l->fd);
    return TOOK;
}

static void drop_fd(struct lock *l)
{
    int saved = errno;
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
    errno = saved;
}

static enum attempt try_take(struct lock *l)
{
    enum attempt a = create(l);
    if (a == TOOK) return a;
    drop_fd(l);
    if (a != HELD) return a;
    l->fd = open(l->path, O_RDWR | O_CLOEXEC); /* it is there: whose is it? */
    if (l->fd < 0) return errno == ENOENT ? AGAIN : FAILED;
    a = take_over(l->fd, l->path);
    if (a != TOOK) drop_fd(l);
    return a;
}

mb_status lock_take(struct lock *l, const char *path, const char *what, mb_error *err)
{
    *l = (struct lock){ .fd = -1 };
    if (strlen(path) >= sizeof l->path) return mb_fail(err, MB_TOO_LARGE, "the path of a lock is too long");
    strcpy(l->path, path);
    enum attempt a = AGAIN;
    for (int i = 0; i < TRIES && a == AGAIN; i++) {
        if (i > 0) clock_sleep_ms(i);
        a = try_take(l);
        if (a == HELD && i == 0) a = AGAIN; /* it may have been a glance (lock_is_held) */
    }
    if (a == TOOK) return MB_OK;
    if (a == FAILED) return mb_fail_errno(err, "cannot lock", path);
    return mb_fail(err, MB_BUSY, "another download of %s is in progress: wait for it, or end it", what);
}

void lock_refresh(struct lock *l)
{
    if (l->fd >= 0) holder_write(l->fd);
}

void lock_release(struct lock *l)
{
    if (l->fd < 0) return;
    if (!l->keep_file && is_same_file(l->fd, l->path)) unlink(l->path);
    close(l->fd);
    l->fd = -1;
}

bool lock_is_held(const char *path)
{
    struct holder h;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return errno != ENOENT;
    bool held = flock(fd, LOCK_SH | LOCK_NB) != 0;
    if (!held) {
        holder_read(&h, fd);
        held = holder_lives(&h);
    }
    close(fd);
    return held;
}

/* --- markers --- */

mb_status marker_take(struct lock *l, const char *path, bool shared, mb_error *err)
{
    char dir[PATH_MAX];
    *l = (struct lock){ .fd = -1, .keep_file = true };
    if (strlen(path) >= sizeof l->path) return mb_fail(err, MB_TOO_LARGE, "the path of a lock is too long");
    strcpy(l->path, path);
    strcpy(dir, path);
    *strrchr(dir, '/') = '\0';
    mb_status st = dir_make(dir, err);
    if (st == MB_OK) l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (l->fd < 0 && shared) return MB_OK;
    if (st != MB_OK) return st;
    if (l->fd < 0) return mb_fail_errno(err, "cannot open", path);
    int why = 0;
    for (int i = 0; i < 4; i++) { /* a glance (marker_is_held) is over at once */
        if (flock(l->fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0) return MB_OK;
        why = errno;
        clock_sleep_ms(1);
    }
    close(l->fd);
    l->fd = -1;
    errno = why;
    if (why == EWOULDBLOCK) return mb_fail(err, MB_BUSY, "%s is locked by another process", path);
    return mb_fail_errno(err, "cannot lock", path);
}

bool marker_is_held(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    bool held = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    return held;
}
