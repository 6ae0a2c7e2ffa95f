/* layout.h: where things lie in the cache of the Hugging Face hub, which other programs read and write too:
 *
 *   <hub>/models--owner--name/blobs/<sha256 or git sha1>         each file once; <blob>.incomplete, <blob>.lock beside it
 *                             snapshots/<commit>/<file>          relative links into blobs/
 *                             refs/<revision>                    a commit, without a newline
 *                             .no_exist/<commit>/<file>          other clients: known not to exist
 *                             .mlx-bun/<commit>.json             ours: which files the snapshot should have
 *   <hub>/.locks/models--owner--name/                            locks of other clients; ours: get.mlx-bun, use-<commit>.mlx-bun
 *
 * Paths are plain strings of at most PATH_MAX bytes; every function that makes one says when it does not fit.
 */
#ifndef HUB_LAYOUT_H
#define HUB_LAYOUT_H

#include <limits.h>

#include "base/json.h"
#include "hub/names.h"

#define LAYOUT_META ".mlx-bun"

/* A root from HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME (NULL or "" = not set): REG-002..005. MB_INVALID: none is set.
 * Made absolute, so that a relative one works from every folder (B-119). */
mb_status layout_root(const char *hub_cache, const char *hf_home, const char *xdg_cache, const char *home, char out[PATH_MAX],
                      mb_error *err);
/* <root>/models--owner--name[/sub[/name]]; sub and name may be NULL. */
mb_status layout_path(const char *root, const char *repo, const char *sub, const char *name, char out[PATH_MAX], mb_error *err);
/* The repository and commit that a path inside a cache belongs to: ".../models--a--b/snapshots/<commit>[/...]" (REG-052).
 * commit is "" when the path ends before it. root receives what stands before. */
bool layout_split(const char *path, char root[PATH_MAX], char repo[NAME_REPO_MAX], char commit[NAME_COMMIT_LEN + 1]);

/* The commit that refs/<revision> names, or revision itself when it is a commit. MB_NOT_FOUND, MB_BAD_FORMAT. */
mb_status layout_ref_read(const char *root, const char *repo, const char *revision, char commit[NAME_COMMIT_LEN + 1],
                          mb_error *err);
mb_status layout_ref_write(const char *root, const char *repo, const char *revision, const char *commit, mb_error *err);

/* A link snapshots/<commit>/<file> -> ../../blobs/<digest>, whole or not at all; replaces an older one. No folder on the way
 * may be a link (MB_BAD_FORMAT): nothing is ever written outside the snapshot (B-155). */
mb_status layout_link(const char *repo_dir, const char *commit, const char *file, const char *digest, mb_error *err);

/* --- is a snapshot whole? --- */
struct snapshot_state {
    bool complete;
    bool has_manifest;
    int32_t n_missing;
    char first[256];          /* name of the first missing file, "" = none */
    uint64_t missing_bytes;   /* 0 when unknown */
};
/* With a manifest: every file of it is there with its size. Without (made by another client): config.json, and the shards of
 * model.safetensors.index.json or any weights; a link into nothing counts as missing. Reads no weights (B-116). */
void layout_check(const char *repo_dir, const char *commit, struct snapshot_state *out);
/* MB_BAD_FORMAT "incomplete, 2 files missing ..." with the remedy, for a state that is not complete. */
mb_status layout_incomplete(const char *repo, const struct snapshot_state *s, mb_error *err);

/* The manifest: {"version", "repo", "commit", "files": [{"path", "size", "digest"}]}. */
mb_status layout_manifest_write(const char *repo_dir, const char *commit, const json_t *manifest, mb_error *err);
/* NULL when there is none or it cannot be read. json_decref. */
json_t *layout_manifest_read(const char *repo_dir, const char *commit);

/* --- walking --- */
/* Calls fn for each entry of a folder but "." and "..", sorted by name; stops at the first status that is not MB_OK. A folder
 * that is not there has no entries. */
typedef mb_status (*layout_entry_fn)(void *ctx, const char *dir, const char *name, mb_error *err);
mb_status layout_each(const char *dir, layout_entry_fn fn, void *ctx, mb_error *err);
/* The same for every file (not folder) below dir: name is the path relative to dir. Links are not followed. */
mb_status layout_each_file(const char *dir, layout_entry_fn fn, void *ctx, mb_error *err);
/* Remove a folder with everything below it. Links are removed, not followed. */
mb_status layout_remove_tree(const char *dir, mb_error *err);

#endif
