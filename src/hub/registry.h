/* registry.h: an index of the cache in SQLite (~/.cache/mlx-bun/registry.sqlite): a row a snapshot. It is derived: what is lost or
 * of another version is made again by looking at the cache, without asking (REG-058). Beside it the table of downloads, which all
 * processes write and read (REG-146).
 * Threads: a registry belongs to one thread at a time; any number of processes share the file (WAL, busy timeout).
 */
#ifndef HUB_REGISTRY_H
#define HUB_REGISTRY_H

#include "base/mem.h"
#include "hub/inspect.h"
#include "hub/layout.h"

struct registry; /* opaque */

/* path: the file, its folder is made. A file that is no database, or one of another version, is replaced. MB_IO. */
mb_status registry_open(struct registry **out, const char *path, mb_error *err);
void registry_close(struct registry *r);

/* Look at every snapshot of every model below root. Snapshots whose folder is as it was at the last scan are not read again unless
 * `full`. Rows of folders that are gone are dropped. *n_models, *n_read may be NULL. */
mb_status registry_scan(struct registry *r, const char *root, bool full, size_t *n_models, size_t *n_read, mb_error *err);

struct model_row {
    const char *path, *repo;         /* in the list's arena */
    char commit[NAME_COMMIT_LEN + 1];
    struct model_facts facts;
    bool canonical;                  /* REG-082 */
    bool complete;
    int32_t n_missing;
    int64_t scanned_at;              /* unix ms */
};

struct model_list {
    struct model_row *rows;          /* by repository, then path */
    size_t n;
    struct arena arena;
};

/* Rows below root whose repository or model type holds query (NULL: all), REG-078; canonical ones only unless all_revisions.
 * model_list_free after success and failure alike. */
mb_status registry_list(struct registry *r, const char *root, const char *query, bool all_revisions, struct model_list *out,
                        mb_error *err);
void model_list_free(struct model_list *l);

/* The one repository that a query means, its canonical snapshot: rows->n == 1 (REG-079..083). Drafters (*_assistant) do not count;
 * a name that is equal wins over names that only hold it. MB_NOT_FOUND points to `mlx-bun ls`, MB_INVALID lists the candidates. */
mb_status registry_resolve(struct registry *r, const char *root, const char *query, struct model_list *out, mb_error *err);

/* --- downloads --- */

#define DOWNLOADS_MAX 5

struct download_row {
    int64_t id;
    char repo[NAME_REPO_MAX];
    char state[8];                   /* "active", "done", "error" */
    char current_file[256];          /* "" = none */
    int64_t received_bytes, total_bytes, files_done, files_total, bytes_per_sec;
    int64_t started_at, finished_at; /* unix seconds; 0 = not yet */
    char error[256];
};

/* A new active row; *id names it. Older ones than the last DOWNLOADS_MAX go. */
mb_status registry_download_begin(struct registry *r, const char *repo, int64_t *id, mb_error *err);
mb_status registry_download_update(struct registry *r, const struct download_row *d, mb_error *err);
/* The last ones, newest first. Active rows whose process has gone read as "error", "interrupted". */
mb_status registry_downloads(struct registry *r, struct download_row out[DOWNLOADS_MAX], size_t *n, mb_error *err);

#endif
