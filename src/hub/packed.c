/* packed.c: see packed.h. */
#include "hub/packed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/mem.h"
#include "hub/inuse.h"
#include "hub/layout.h"

static const char *const suffixes[] = { ".bin", "-shared.bin", ".experts" };

/* Is it one of ours, and does ".tmp.PID.K" follow (base/filemap.h)? */
static bool is_ours(const char *name, struct packed_file *p)
{
    if (strspn(name, "0123456789abcdef") < PACKED_KEY_LEN) return false;
    memcpy(p->key, name, PACKED_KEY_LEN);
    p->key[PACKED_KEY_LEN] = '\0';
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        size_t n = strlen(suffixes[i]);
        if (strncmp(name + PACKED_KEY_LEN, suffixes[i], n) != 0) continue;
        const char *rest = name + PACKED_KEY_LEN + n;
        p->is_leftover = strncmp(rest, ".tmp.", 5) == 0;
        if (!*rest || p->is_leftover) return true;
    }
    return false;
}

/* A writer holds a lock until it has renamed its file. */
static bool is_written(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return held;
}

struct each {
    packed_fn fn;
    void *ctx;
    json_t *in_use;
    struct packed_file p;
};

static mb_status look(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct each *e = ctx;
    struct stat st;
    if (!is_ours(name, &e->p)) return MB_OK;
    MB_TRY(path_join(e->p.path, sizeof e->p.path, dir, name, err));
    if (lstat(e->p.path, &st) != 0 || !S_ISREG(st.st_mode)) return MB_OK;
    e->p.bytes = (uint64_t)st.st_size;
    e->p.in_use = json_object_get(e->in_use, name) || is_written(e->p.path);
    return e->fn(e->ctx, &e->p, err);
}

mb_status packed_each(const char *dir, packed_fn fn, void *ctx, mb_error *err)
{
    char real[PATH_MAX];
    if (!realpath(dir, real)) return MB_OK;
    struct each *e = mb_calloc(1, sizeof *e); /* large */
    if (!e) return mb_fail(err, MB_NO_MEMORY, "no memory to look at %s", dir);
    e->fn = fn;
    e->ctx = ctx;
    e->in_use = inuse_files(real);
    mb_status st = e->in_use ? layout_each(real, look, e, err) : mb_fail(err, MB_NO_MEMORY, "no memory to look at %s", dir);
    json_decref(e->in_use);
    mb_free(e);
    return st;
}
