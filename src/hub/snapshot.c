/* snapshot.c: is a snapshot whole? By its manifest where we wrote one, else by what its own files promise. A half download
 * never counts as a model, also when nobody can be asked (B-116).
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/filemap.h"
#include "hub/layout.h"

#define INDEX_LIMIT ((size_t)64 << 20)

static void add_missing(struct snapshot_state *s, const char *name, uint64_t bytes)
{
    char shown[84];
    if (s->n_missing++ == 0) snprintf(s->first, sizeof s->first, "%s", name_shown(name, strlen(name), shown));
    s->missing_bytes += bytes;
}

/* size < 0: unknown. */
static bool file_is_there(const char *dir, const char *name, int64_t size)
{
    char path[PATH_MAX];
    struct stat st;
    if (path_join(path, sizeof path, dir, name, NULL) != MB_OK) return false;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (size < 0 || st.st_size == size);
}

static void check_manifest(const char *dir, const json_t *manifest, struct snapshot_state *s)
{
    size_t i;
    json_t *f;
    json_array_foreach(json_object_get(manifest, "files"), i, f) {
        const char *name = json_string_value(json_object_get(f, "path"));
        int64_t size = json_integer_value(json_object_get(f, "size"));
        if (name && name_is_file(name, strlen(name)) && !file_is_there(dir, name, size)) add_missing(s, name, (uint64_t)size);
    }
}

/* --- without a manifest --- */

struct seen {
    struct snapshot_state *state;
    int32_t n_weights;
};

static mb_status look_at(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct seen *s = ctx;
    (void)err;
    if (!file_is_there(dir, name, -1)) add_missing(s->state, name, 0); /* a link into nothing */
    else if (name_ends(name, ".safetensors")) s->n_weights++;
    return MB_OK;
}

/* Shards that the index names and the folder has not even a link for. */
static void check_index(const char *dir, struct snapshot_state *s)
{
    char path[PATH_MAX];
    json_t *index = NULL, *v;
    const char *key, *last = "";
    struct stat st;
    if (path_join(path, sizeof path, dir, "model.safetensors.index.json", NULL) != MB_OK || !file_exists(path)) return;
    if (json_read_file(&index, path, INDEX_LIMIT, NULL) != MB_OK) {
        add_missing(s, "model.safetensors.index.json", 0);
        return;
    }
    json_t *named = json_object();
    json_object_foreach(json_object_get(index, "weight_map"), key, v) {
        const char *shard = json_string_value(v);
        if (!shard || strcmp(shard, last) == 0 || json_object_get(named, shard)) continue;
        last = shard;
        json_object_set_new(named, shard, json_true());
        if (!name_is_file(shard, strlen(shard)) || path_join(path, sizeof path, dir, shard, NULL) != MB_OK) continue;
        if (lstat(path, &st) != 0) add_missing(s, shard, 0); /* with a link it was counted already */
    }
    json_decref(named);
    json_decref(index);
}

static void check_files(const char *dir, struct snapshot_state *s)
{
    struct seen seen = { .state = s };
    struct stat st;
    char path[PATH_MAX];
    layout_each_file(dir, look_at, &seen, NULL);
    if (path_join(path, sizeof path, dir, "config.json", NULL) == MB_OK && lstat(path, &st) != 0)
        add_missing(s, "config.json", 0);
    check_index(dir, s);
    if (seen.n_weights == 0 && s->n_missing == 0) add_missing(s, "*.safetensors", 0);
}

void layout_check(const char *repo_dir, const char *commit, struct snapshot_state *out)
{
    char dir[PATH_MAX], name[64];
    *out = (struct snapshot_state){ 0 };
    snprintf(name, sizeof name, "snapshots/%s", commit);
    json_t *manifest = layout_manifest_read(repo_dir, commit);
    out->has_manifest = manifest != NULL;
    if (path_join(dir, sizeof dir, repo_dir, name, NULL) != MB_OK) return;
    if (manifest) check_manifest(dir, manifest, out);
    else check_files(dir, out);
    json_decref(manifest);
    out->complete = out->n_missing == 0;
}

mb_status layout_incomplete(const char *repo, const struct snapshot_state *s, mb_error *err)
{
    return mb_fail(err, MB_BAD_FORMAT, "%s in the cache is incomplete, %d file%s missing (%s%s): finish it with "
                   "mlx-bun get %s", repo, (int)s->n_missing, s->n_missing == 1 ? "" : "s", s->first,
                   s->n_missing > 1 ? ", ..." : "", repo);
}
