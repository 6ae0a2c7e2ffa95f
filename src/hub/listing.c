/* listing.c: see listing.h. */
#include "hub/listing.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_MAX ((size_t)128 << 20)

static mb_status refuse(const char *name, const char *what, mb_error *err)
{
    char shown[84];
    return mb_fail(err, MB_BAD_FORMAT, "the hub's listing: file '%s': %s", name_shown(name, strlen(name), shown), what);
}

static mb_status read_size(int64_t *out, const char *name, const json_t *v, mb_error *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > LISTING_FILE_BYTES_MAX)
        return refuse(name, "its size must be a whole number from 0 to 2^44", err);
    *out = json_integer_value(v);
    return MB_OK;
}

static mb_status read_digest(struct hub_file *f, const char *text, mb_error *err)
{
    if (text && strncmp(text, "sha256:", 7) == 0) text += 7;
    size_t wanted = f->is_lfs ? 64 : 40;
    if (!text || !name_is_hex(text, wanted))
        return refuse(f->path, f->is_lfs ? "its sha256 must be 64 hexadecimal digits" : "its git identity must be 40 "
                      "hexadecimal digits", err);
    memcpy(f->digest, text, wanted + 1);
    return MB_OK;
}

static mb_status read_path(struct hub_listing *l, struct hub_file *f, const json_t *v, mb_error *err)
{
    if (!json_is_text(v)) return mb_fail(err, MB_BAD_FORMAT, "the hub's listing: a file has no name");
    const char *name = json_string_value(v);
    size_t len = json_string_length(v);
    if (!name_is_file(name, len)) return refuse(name, "its name leaves the folder of the model or cannot be stored", err);
    f->path = arena_strndup(&l->arena, name, len);
    return f->path ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for the hub's listing");
}

/* {"rfilename", "size", "blobId", "lfs": {"sha256" or "oid", "size"}} */
static mb_status read_sibling(struct hub_listing *l, struct hub_file *f, const json_t *v, mb_error *err)
{
    const json_t *lfs = json_object_get(v, "lfs");
    MB_TRY(read_path(l, f, json_object_get(v, "rfilename"), err));
    f->is_lfs = json_is_object(lfs);
    const json_t *size = f->is_lfs ? json_object_get(lfs, "size") : NULL;
    MB_TRY(read_size(&f->size, f->path, size ? size : json_object_get(v, "size"), err));
    if (!f->is_lfs) return read_digest(f, json_string_value(json_object_get(v, "blobId")), err);
    const json_t *sum = json_object_get(lfs, "sha256");
    return read_digest(f, json_string_value(sum ? sum : json_object_get(lfs, "oid")), err);
}

static mb_status read_entry(struct hub_listing *l, struct hub_file *f, const json_t *v, mb_error *err)
{
    const char *digest = json_string_value(json_object_get(v, "digest"));
    MB_TRY(read_path(l, f, json_object_get(v, "path"), err));
    MB_TRY(read_size(&f->size, f->path, json_object_get(v, "size"), err));
    f->is_lfs = digest && strlen(digest) == 64;
    return read_digest(f, digest, err);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static bool has_path(const struct hub_listing *l, const char *path)
{
    struct hub_file key = { .path = path };
    return l->n_files && bsearch(&key, l->files, l->n_files, sizeof key, by_path);
}

/* One name twice, or a file where another needs a folder. */
static mb_status check_distinct(const struct hub_listing *l, mb_error *err)
{
    char folder[NAME_FILE_MAX];
    for (size_t i = 0; i < l->n_files; i++) {
        const char *path = l->files[i].path;
        if (i > 0 && strcmp(l->files[i - 1].path, path) == 0) return refuse(path, "it is listed twice", err);
        for (const char *slash = path; (slash = strchr(slash, '/')); slash++) {
            memcpy(folder, path, (size_t)(slash - path));
            folder[slash - path] = '\0';
            if (has_path(l, folder)) return refuse(path, "its folder is a file too", err);
        }
    }
    return MB_OK;
}

static mb_status read_files(struct hub_listing *l, const json_t *list, const char *commit,
                            mb_status (*read)(struct hub_listing *, struct hub_file *, const json_t *, mb_error *), mb_error *err)
{
    size_t n = json_array_size(list);
    *l = (struct hub_listing){ 0 };
    arena_init(&l->arena, ARENA_MAX);
    if (!commit || !name_is_commit(commit))
        return mb_fail(err, MB_BAD_FORMAT, "the hub's listing has no commit of 40 hexadecimal digits");
    if (!json_is_array(list)) return mb_fail(err, MB_BAD_FORMAT, "the hub's listing has no list of files");
    if (n > LISTING_FILES_MAX)
        return mb_fail(err, MB_TOO_LARGE, "the hub lists %zu files, at most %d are taken", n, LISTING_FILES_MAX);
    memcpy(l->commit, commit, NAME_COMMIT_LEN + 1);
    l->files = arena_alloc_array(&l->arena, n + 1, sizeof *l->files);
    if (!l->files) return mb_fail(err, MB_NO_MEMORY, "no memory for the hub's listing");
    for (; l->n_files < n; l->n_files++) {
        struct hub_file *f = &l->files[l->n_files];
        MB_TRY(read(l, f, json_array_get(list, l->n_files), err));
        l->total_bytes += (uint64_t)f->size;
    }
    if (n > 1) qsort(l->files, n, sizeof *l->files, by_path);
    return check_distinct(l, err);
}

mb_status listing_read(struct hub_listing *l, const json_t *answer, mb_error *err)
{
    MB_TRY(read_files(l, json_object_get(answer, "siblings"), json_string_value(json_object_get(answer, "sha")), read_sibling,
                      err));
    const json_t *gated = json_object_get(answer, "gated");
    l->gated = json_is_true(gated) || json_is_string(gated);
    return MB_OK;
}

mb_status listing_read_manifest(struct hub_listing *l, const json_t *manifest, mb_error *err)
{
    return read_files(l, json_object_get(manifest, "files"), json_string_value(json_object_get(manifest, "commit")), read_entry,
                      err);
}

void listing_free(struct hub_listing *l)
{
    arena_free(&l->arena);
    *l = (struct hub_listing){ 0 };
}

void listing_filter(struct hub_listing *l, bool (*keep)(const char *path))
{
    size_t n = 0;
    l->total_bytes = 0;
    for (size_t i = 0; i < l->n_files; i++) {
        if (!keep(l->files[i].path)) continue;
        l->files[n] = l->files[i];
        l->total_bytes += (uint64_t)l->files[n++].size;
    }
    l->n_files = n;
}

json_t *listing_manifest(const struct hub_listing *l, const char *repo)
{
    json_t *files = json_array();
    for (size_t i = 0; i < l->n_files; i++) {
        const struct hub_file *f = &l->files[i];
        json_t *entry = json_pack("{s:s, s:I, s:s}", "path", f->path, "size", (json_int_t)f->size, "digest", f->digest);
        if (json_array_append_new(files, entry) != 0) { /* a list that is not whole is none */
            json_decref(files);
            return NULL;
        }
    }
    return json_pack("{s:i, s:s, s:s, s:o}", "version", 1, "repo", repo, "commit", l->commit, "files", files);
}
