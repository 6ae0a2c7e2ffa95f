/* lockfile.c: models.lock, the file that says which models a project uses, to the byte; see get.h. Sorted and indented, so
 * that a version control system shows what changed. */
#include <string.h>

#include "base/filemap.h"
#include "hub/get.h"

#define LOCKFILE_LIMIT ((size_t)64 << 20)

static mb_status check_entry(const json_t *m, const char *path, mb_error *err)
{
    struct hub_listing l;
    const char *repo = json_string_value(json_object_get(m, "repo"));
    if (!repo || !name_is_repo(repo)) return mb_fail(err, MB_BAD_FORMAT, "%s: an entry has no repo of the form owner/name", path);
    mb_status st = listing_read_manifest(&l, m, err);
    listing_free(&l);
    return st == MB_OK ? MB_OK : mb_error_prefix(err, "%s: %s", path, repo);
}

mb_status lockfile_read(const char *path, json_t **out, mb_error *err)
{
    json_t *file, *m;
    size_t i;
    *out = NULL;
    if (!file_exists(path))
        return mb_fail(err, MB_NOT_FOUND, "there is no %s: write one with mlx-bun get OWNER/NAME --lock", path);
    MB_TRY(json_read_file(&file, path, LOCKFILE_LIMIT, err));
    mb_status st = MB_OK;
    if (!json_is_array(json_object_get(file, "models")) || json_integer_value(json_object_get(file, "version")) != 1)
        st = mb_fail(err, MB_BAD_FORMAT, "%s is no models.lock: wanted is an object with \"version\": 1 and a list \"models\"", path);
    else json_array_foreach(json_object_get(file, "models"), i, m) {
        st = check_entry(m, path, err);
        if (st != MB_OK) break;
    }
    if (st == MB_OK) *out = file;
    else json_decref(file);
    return st;
}

static size_t find(const json_t *list, const char *repo)
{
    size_t i;
    json_t *m;
    json_array_foreach((json_t *)(uintptr_t)list, i, m) {
        const char *r = json_string_value(json_object_get(m, "repo"));
        if (r && strcmp(r, repo) == 0) return i;
    }
    return SIZE_MAX;
}

const json_t *lockfile_find(const json_t *lockfile, const char *repo)
{
    const json_t *list = json_object_get(lockfile, "models");
    size_t i = find(list, repo);
    return i == SIZE_MAX ? NULL : json_array_get(list, i);
}

static mb_status put(json_t *file, const json_t *manifest, const char *repo, const char *revision, const char *commit, mb_error *err)
{
    json_t *list = json_object_get(file, "models");
    json_t *entry = json_pack("{s:s, s:s, s:s, s:O}", "repo", repo, "revision", revision, "commit", commit, "files",
                              json_object_get(manifest, "files"));
    size_t at = find(list, repo), i = 0;
    if (at != SIZE_MAX) json_array_remove(list, at);
    for (; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_object_get(json_array_get(list, i), "repo")), repo) > 0) break;
    if (!entry || json_array_insert_new(list, i, entry) != 0) return mb_fail(err, MB_NO_MEMORY, "no memory for models.lock");
    return MB_OK;
}

mb_status lockfile_put(const char *path, const char *root, const char *repo, const char *revision, const char *commit,
                       mb_error *err)
{
    static const struct json_write_opts pretty = { .python_spaces = true, .indent = 2 };
    char dir[PATH_MAX];
    json_t *file = NULL;
    struct buf b;
    MB_TRY(layout_path(root, repo, NULL, NULL, dir, err));
    json_t *manifest = layout_manifest_read(dir, commit);
    if (!manifest)
        return mb_fail(err, MB_NOT_FOUND, "%s was fetched by another program, so its hashes are not known: run mlx-bun get %s --lock",
                       repo, repo);
    mb_status st = MB_OK;
    if (file_exists(path)) st = lockfile_read(path, &file, err);
    else if (!(file = json_pack("{s:i, s:[]}", "version", 1, "models"))) st = mb_fail(err, MB_NO_MEMORY, "no memory for models.lock");
    if (st == MB_OK) st = put(file, manifest, repo, revision, commit, err);
    buf_init(&b, LOCKFILE_LIMIT);
    if (st == MB_OK) {
        json_write(&b, file, &pretty);
        buf_append_char(&b, '\n');
        st = buf_status(&b, path, err);
    }
    if (st == MB_OK) st = file_write_atomic(path, b.data, b.len, err);
    buf_free(&b);
    json_decref(file);
    json_decref(manifest);
    return st;
}
