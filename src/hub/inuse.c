/* inuse.c: see inuse.h. Reads /proc/<pid>/maps and /proc/<pid>/fd; what other users run is out of sight and does not count. */
#include "hub/inuse.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hub/names.h"

/* What a path below root (the string has '/' behind root) says. False: no memory. */
typedef bool (*take_fn)(json_t *set, const char *below, size_t len);

/* ".../blobs/<digest>", perhaps with " (deleted)" behind. */
static bool take_blob(json_t *set, const char *below, size_t len)
{
    char digest[NAME_DIGEST_MAX];
    const char *at = strstr(below, "/blobs/"), *end = below + len;
    if (!at || at + 7 > end) return true;
    at += 7;
    size_t n = strspn(at, "0123456789abcdef");
    if (n >= sizeof digest || (at + n != end && at[n] != ' ')) return true;
    memcpy(digest, at, n);
    digest[n] = '\0';
    return !name_is_digest(digest) || json_object_set_new(set, digest, json_true()) == 0;
}

/* "/<name>" alone. */
static bool take_name(json_t *set, const char *below, size_t len)
{
    char name[NAME_MAX + 1];
    if (len < 2 || len > sizeof name || memchr(below + 1, '/', len - 1)) return true;
    memcpy(name, below + 1, len - 1);
    name[len - 1] = '\0';
    return json_object_set_new(set, name, json_true()) == 0;
}

struct search {
    const char *root;
    take_fn take;
    json_t *set;
};

static bool take_path(const struct search *s, const char *path)
{
    size_t n_root = strlen(s->root);
    if (strncmp(path, s->root, n_root) != 0 || path[n_root] != '/') return true;
    return s->take(s->set, path + n_root, strcspn(path + n_root, "\n"));
}

static bool take_maps(const struct search *s, const char *pid)
{
    char path[300], *line = NULL;
    size_t cap = 0;
    bool ok = true;
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE *f = fopen(path, "re");
    if (!f) return true;
    while (ok && getline(&line, &cap, f) > 0) {
        const char *name = strchr(line, '/');
        if (name) ok = take_path(s, name);
    }
    free(line); /* getline's own */
    fclose(f);
    return ok;
}

static bool take_fds(const struct search *s, const char *pid)
{
    char dir[300], path[600], target[PATH_MAX];
    snprintf(dir, sizeof dir, "/proc/%s/fd", pid);
    DIR *d = opendir(dir);
    bool ok = true;
    for (struct dirent *e; ok && d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = '\0';
        ok = take_path(s, target);
    }
    if (d) closedir(d);
    return ok;
}

static json_t *find(const char *root, take_fn take)
{
    char real[PATH_MAX];
    struct search s = { real, take, json_object() };
    DIR *d = s.set && realpath(root, real) ? opendir("/proc") : NULL;
    bool ok = s.set != NULL;
    for (struct dirent *e; ok && d && (e = readdir(d));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
        ok = take_maps(&s, e->d_name) && take_fds(&s, e->d_name);
    }
    if (d) closedir(d);
    if (ok) return s.set;
    json_decref(s.set);
    return NULL;
}

json_t *inuse_blobs(const char *root)
{
    return find(root, take_blob);
}

json_t *inuse_files(const char *dir)
{
    return find(dir, take_name);
}
