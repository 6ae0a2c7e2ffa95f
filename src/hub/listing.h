/* listing.h: what the hub says about a repository at a revision: the commit and its files with their identities.
 * Everything in it is checked before it is used: names, digests, sizes, numbers of files; one bad entry refuses the whole.
 */
#ifndef HUB_LISTING_H
#define HUB_LISTING_H

#include "base/json.h"
#include "base/mem.h"
#include "hub/names.h"

#define LISTING_FILES_MAX 20000
#define LISTING_FILE_BYTES_MAX ((int64_t)1 << 44)
#define LISTING_JSON_MAX ((size_t)64 << 20)

struct hub_file {
    const char *path;               /* checked, relative; in the listing's arena */
    int64_t size;                   /* bytes */
    bool is_lfs;                    /* digest is the sha256 of the bytes, else the git sha1 of "blob <size>\0" + bytes */
    char digest[NAME_DIGEST_MAX];   /* the blob's name too (REG-011) */
};

struct hub_listing {
    char commit[NAME_COMMIT_LEN + 1];
    struct hub_file *files;         /* sorted by path */
    size_t n_files;
    uint64_t total_bytes;
    bool gated;
    struct arena arena;
};

/* Reads the answer of /api/models/<repo>/revision/<revision>?blobs=true (REG-022). MB_BAD_FORMAT names the entry at fault.
 * Release with listing_free after success and failure alike. */
mb_status listing_read(struct hub_listing *l, const json_t *answer, mb_error *err);
/* The same out of a manifest (layout.h), for what is written there is also what was checked then. */
mb_status listing_read_manifest(struct hub_listing *l, const json_t *manifest, mb_error *err);
void listing_free(struct hub_listing *l);
/* Keep only the files for which keep() says so; total_bytes follows. */
void listing_filter(struct hub_listing *l, bool (*keep)(const char *path));
/* A new reference: the manifest of these files. NULL: no memory. */
json_t *listing_manifest(const struct hub_listing *l, const char *repo);

#endif
