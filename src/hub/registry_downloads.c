/* registry_downloads.c: the last downloads of all processes (REG-142..146). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "hub/lock.h"
#include "hub/registry_int.h"

mb_status registry_download_begin(struct registry *r, const char *repo, int64_t *id, mb_error *err)
{
    sqlite3_stmt *s;
    *id = 0;
    MB_TRY(registry_prepare(r, "INSERT INTO downloads (repo_id, state, received_bytes, total_bytes, files_done, files_total,"
                               " bytes_per_sec, started_at, finished_at, pid, pid_start) VALUES (?, 'active', 0, 0, 0, 0, 0, ?, 0, ?, ?)",
                            &s, err));
    sqlite3_bind_text(s, 1, repo, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 2, clock_unix_s());
    sqlite3_bind_int64(s, 3, getpid());
    sqlite3_bind_int64(s, 4, (sqlite3_int64)process_start(getpid()));
    MB_TRY(registry_finish(r, s, err));
    *id = sqlite3_last_insert_rowid(r->db);
    return registry_exec(r, "DELETE FROM downloads WHERE id NOT IN (SELECT id FROM downloads ORDER BY id DESC LIMIT 5)", err);
}

mb_status registry_download_update(struct registry *r, const struct download_row *d, mb_error *err)
{
    sqlite3_stmt *s;
    MB_TRY(registry_prepare(r, "UPDATE downloads SET state = ?, current_file = ?, received_bytes = ?, total_bytes = ?, files_done = ?,"
                               " files_total = ?, bytes_per_sec = ?, finished_at = ?, error = ? WHERE id = ?", &s, err));
    sqlite3_bind_text(s, 1, d->state, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, d->current_file, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, d->received_bytes);
    sqlite3_bind_int64(s, 4, d->total_bytes);
    sqlite3_bind_int64(s, 5, d->files_done);
    sqlite3_bind_int64(s, 6, d->files_total);
    sqlite3_bind_int64(s, 7, d->bytes_per_sec);
    sqlite3_bind_int64(s, 8, d->finished_at);
    sqlite3_bind_text(s, 9, d->error, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 10, d->id);
    return registry_finish(r, s, err);
}

/* An active row whose process has ended, or whose number another process has now. */
static void check_alive(sqlite3_stmt *s, struct download_row *d)
{
    if (strcmp(d->state, "active") != 0) return;
    uint64_t start = process_start((long)sqlite3_column_int64(s, 12));
    if (start != 0 && start == (uint64_t)sqlite3_column_int64(s, 13)) return;
    strcpy(d->state, "error");
    strcpy(d->error, "interrupted: the process that downloaded has ended; mlx-bun get continues it");
    d->bytes_per_sec = 0;
    d->current_file[0] = '\0';
}

mb_status registry_downloads(struct registry *r, struct download_row out[DOWNLOADS_MAX], size_t *n, mb_error *err)
{
    sqlite3_stmt *s;
    int rc = SQLITE_DONE;
    *n = 0;
    MB_TRY(registry_prepare(r, "SELECT id, repo_id, state, current_file, received_bytes, total_bytes, files_done, files_total,"
                               " bytes_per_sec, started_at, finished_at, error, pid, pid_start FROM downloads ORDER BY id DESC LIMIT 5",
                            &s, err));
    while (*n < DOWNLOADS_MAX && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct download_row *d = &out[(*n)++];
        memset(d, 0, sizeof *d);
        d->id = sqlite3_column_int64(s, 0);
        registry_text(s, 1, d->repo, sizeof d->repo);
        registry_text(s, 2, d->state, sizeof d->state);
        registry_text(s, 3, d->current_file, sizeof d->current_file);
        d->received_bytes = sqlite3_column_int64(s, 4);
        d->total_bytes = sqlite3_column_int64(s, 5);
        d->files_done = sqlite3_column_int64(s, 6);
        d->files_total = sqlite3_column_int64(s, 7);
        d->bytes_per_sec = sqlite3_column_int64(s, 8);
        d->started_at = sqlite3_column_int64(s, 9);
        d->finished_at = sqlite3_column_int64(s, 10);
        registry_text(s, 11, d->error, sizeof d->error);
        check_alive(s, d);
    }
    mb_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? MB_OK : registry_fail(r, err);
    sqlite3_finalize(s);
    return st;
}
