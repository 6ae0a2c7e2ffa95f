/* get.h: a model from the hub into the cache: list, check the space, fetch, verify, name the revision. Also what the rest of the
 * program asks of the cache: where is owner/name@revision, and is it whole?
 *
 * An interrupted get leaves partials and a manifest, never a revision that counts as there. With a whole copy in the cache and a
 * commit (or the offline switch) given, no request is made at all (B-121); when the hub cannot be reached, a whole copy is
 * used and said so, half a one is refused (B-116). */
#ifndef HUB_GET_H
#define HUB_GET_H

#include "hub/fetch.h"
#include "hub/layout.h"
#include "hub/lock.h"

struct get_opts {
    struct net_opts net;
    const char *root;            /* layout_root */
    bool offline;                /* HF_HUB_OFFLINE: never ask anybody */
    bool all_files;              /* not only name_is_wanted */
    bool verify;                 /* hash what is there already, and fetch again what is corrupt */
    const json_t *locked;        /* an entry of models.lock that the listing must equal, or NULL */
    int parallel;
    fetch_progress_fn progress;  /* may be NULL */
    void *ctx;
};

struct get_result {
    char path[PATH_MAX];         /* the snapshot */
    char commit[NAME_COMMIT_LEN + 1];
    char previous[NAME_COMMIT_LEN + 1]; /* what the revision named before, when it was another one; else "" */
    bool from_cache;             /* nothing was fetched */
    bool unreachable;            /* the hub could not be asked; `why` says it */
    char why[512];
    struct fetch_progress numbers;
};

/* MB_INVALID (names), MB_NOT_FOUND, MB_IO (network, disk), MB_BAD_FORMAT (corrupt, incomplete, not what models.lock says), MB_BUSY
 * (another download), MB_TOO_LARGE (not enough space: how much is needed and free), MB_CANCELLED. Blocks; any thread. */
mb_status get_model(const struct get_opts *o, const char *repo, const char *revision, struct get_result *r, mb_error *err);

/* Where the cache has repo at revision, whole; asks nobody. MB_NOT_FOUND with the remedy, MB_BAD_FORMAT (incomplete). */
mb_status get_find(const char *root, const char *repo, const char *revision, char path[PATH_MAX],
                   char commit[NAME_COMMIT_LEN + 1], mb_error *err);

/* The marker that downloads share and that gc and rm want for themselves; and the one of those who use a snapshot. */
mb_status get_marker_path(const char *root, const char *repo, char out[PATH_MAX], mb_error *err);
mb_status get_use_path(const char *root, const char *repo, const char *commit, char out[PATH_MAX], mb_error *err);
/* Say that this process uses the snapshot that path lies in, as long as *l is held. No error when path is in no cache. */
void get_use(struct lock *l, const char *path);

/* --- models.lock: {"version": 1, "models": [{"repo", "revision", "commit", "files": [{"path", "size", "digest"}]}]} --- */

/* *out: json_decref. MB_NOT_FOUND, MB_BAD_FORMAT. */
mb_status lockfile_read(const char *path, json_t **out, mb_error *err);
/* The entry of repo, borrowed; NULL = none. */
const json_t *lockfile_find(const json_t *lockfile, const char *repo);
/* Put (or replace) the entry of a snapshot that is there. Makes the file when there is none. */
mb_status lockfile_put(const char *path, const char *root, const char *repo, const char *revision, const char *commit,
                       mb_error *err);

#endif
