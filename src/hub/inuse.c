/* inuse.c: see inuse.h. Reads /proc/<pid>/maps and /proc/<pid>/fd; what other users run is out of sight and does not count. */
#include "hub/inuse.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hub/names.h"

/* ".../blobs/<digest>" below root, perhaps with " (deleted)" behind. False: no memory. */
static bool take_path(json_t *set, const char *root, const char *path)
{
    char digest[NAME_DIGEST_MAX];
    size_t n_root = strlen(root);
    if (strncmp(path, root, n_root) != 0 || path[n_root] != '/') return true;
    const char *at = strstr(path + n_root, "/blobs/");
    if (!at) return true;
    at += 7;
    size_t len = strspn(at, "0123456789abcdef");
    if (len >= sizeof digest || (at[len] != '\0' && at[len] != '\n' && at[len] != ' ')) return true;
    memcpy(digest, at, len);
    digest[len] = '\0';
    return !name_is_digest(digest) || json_object_set_new(set, digest, json_true()) == 0;
}

static bool take_maps(json_t *set, const char *root, const char *pid)
{
    char path[300], *line = NULL;
    size_t cap = 0;
    bool ok = true;
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE *f = fopen(path, "re");
    if (!f) return true;
    while (ok && getline(&line, &cap, f) > 0) {
        const char *name = strchr(line, '/');
        if (name) ok = take_path(set, root, name);
    }
    free(line); /* getline's own */
    fclose(f);
    return ok;
}

static bool take_fds(json_t *set, const char *root, const char *pid)
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
        ok = take_path(set, root, target);
    }
    if (d) closedir(d);
    return ok;
}

json_t *inuse_blobs(const char *root)
{
    char real[PATH_MAX];
    json_t *set = json_object();
    DIR *d = set && realpath(root, real) ? opendir("/proc") : NULL;
    bool ok = set != NULL;
    for (struct dirent *e; ok && d && (e = readdir(d));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
        ok = take_maps(set, real, e->d_name) && take_fds(set, real, e->d_name);
    }
    if (d) closedir(d);
    if (ok) return set;
    json_decref(set);
    return NULL;
}
