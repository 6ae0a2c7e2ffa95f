/* memory.c: how much memory this process may still take. What the kernel says is free, what the control groups that the process
 * is in leave (version 2 and version 1, each group up to the root: a container sees only its own), and the limit of its address
 * space. File pages that a group could drop at once count as free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/filemap.h"
#include "engine/open.h"

#define PATH_CAP 4096
#define TEXT_LIMIT ((size_t)1 << 16)

/* The first bytes of a small text file, or behind `key` at the beginning of a line. False: no number ("max"), no file. */
static bool read_number(const char *path, const char *key, uint64_t *out)
{
    struct buf b;
    buf_init(&b, TEXT_LIMIT + 1);
    bool ok = false;
    if (file_read(&b, path, TEXT_LIMIT, NULL) == MB_OK && b.data) {
        const char *at = b.data;
        while (key && at && strncmp(at, key, strlen(key)) != 0) at = (at = strchr(at, '\n')) ? at + 1 : NULL;
        if (at && key) at += strlen(key);
        char *end;
        unsigned long long v = at ? strtoull(at, &end, 10) : 0;
        ok = at && end != at;
        *out = v;
    }
    buf_free(&b);
    return ok;
}

/* The files of one version. */
struct cgroup_names { const char *mount, *limit, *used, *reclaimable; };
static const struct cgroup_names v2 = { "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file " };
static const struct cgroup_names v1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                        "total_inactive_file " };

/* Lowers *best to the rest of the group at `path` ("" = the mounted root) and of every group above it. */
static void lower_to_group(const char *root, const struct cgroup_names *n, const char *path, uint64_t *best)
{
    char dir[PATH_CAP], file[PATH_CAP + 32];
    uint64_t limit, used, file_bytes = 0;
    int len = snprintf(dir, sizeof dir, "%s%s%s", root, n->mount, strcmp(path, "/") == 0 ? "" : path);
    size_t least = strlen(root) + strlen(n->mount);
    if (len < 0 || len >= PATH_CAP || strstr(path, "..")) return;
    for (;;) {
        snprintf(file, sizeof file, "%s/%s", dir, n->limit);
        bool has = read_number(file, NULL, &limit);
        snprintf(file, sizeof file, "%s/%s", dir, n->used);
        if (has && read_number(file, NULL, &used)) {
            snprintf(file, sizeof file, "%s/memory.stat", dir);
            if (read_number(file, n->reclaimable, &file_bytes)) used -= file_bytes < used ? file_bytes : used;
            uint64_t rest = limit > used ? limit - used : 0;
            if (rest < *best) *best = rest;
        }
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= least || !slash) return;
        *slash = '\0';
    }
}

/* Lines "0::/path" (version 2) and "7:memory:/path" of /proc/self/cgroup. The path may be of the host's tree, not to be seen in a
 * container: the mounted root is looked at as well. */
static void lower_to_groups(const char *root, uint64_t *best)
{
    char path[PATH_CAP];
    struct buf b;
    buf_init(&b, TEXT_LIMIT + 1);
    lower_to_group(root, &v2, "", best);
    lower_to_group(root, &v1, "", best);
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (file_read(&b, path, TEXT_LIMIT, NULL) == MB_OK && b.data) {
        for (char *line = b.data, *next; *line; line = next) {
            size_t len = strcspn(line, "\n");
            next = line + len + (line[len] == '\n');
            line[len] = '\0';
            const char *last = strrchr(line, ':'), *names = strchr(line, ':');
            if (!last || names == last) continue;
            if (strncmp(line, "0::", 3) == 0) lower_to_group(root, &v2, last + 1, best);
            else if (strncmp(names + 1, "memory:", 7) == 0) lower_to_group(root, &v1, last + 1, best);
        }
    }
    buf_free(&b);
}

size_t engine_memory_available_at(const char *root)
{
    char path[PATH_CAP];
    uint64_t best = UINT64_MAX, v;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (read_number(path, "MemAvailable:", &v)) best = v * 1024;
    lower_to_groups(root, &best);
    return best == UINT64_MAX ? (size_t)4 << 30 : (size_t)best;
}

size_t engine_memory_available(void)
{
    struct rlimit as;
    uint64_t used;
    size_t best = engine_memory_available_at("");
    if (getrlimit(RLIMIT_AS, &as) == 0 && as.rlim_cur != RLIM_INFINITY && read_number("/proc/self/statm", NULL, &used)) {
        uint64_t have = used * (uint64_t)sysconf(_SC_PAGESIZE);
        uint64_t rest = as.rlim_cur > have ? as.rlim_cur - have : 0;
        if (rest < best) best = (size_t)rest;
    }
    return best;
}
