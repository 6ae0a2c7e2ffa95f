/* registry.c: the database: opening (and replacing) it, scanning, lists and queries. Downloads are registry_downloads.c. */
#include "hub/registry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/filemap.h"
#include "hub/registry_int.h"

#define VERSION 1

static const char SCHEMA[] =
    "CREATE TABLE models (path TEXT PRIMARY KEY, repo_id TEXT NOT NULL, model_type TEXT, param_count INTEGER, num_layers INTEGER,"
    " hidden_size INTEGER, vocab_size INTEGER, context INTEGER, size_bytes INTEGER, sidecar_bytes INTEGER, experts_bytes INTEGER,"
    " quant_bits INTEGER, quant_group_size INTEGER, quant_mode TEXT, has_vision_sidecar INTEGER, vision_config_type TEXT,"
    " has_kv_config INTEGER, has_tool_template INTEGER, license TEXT, scanned_at INTEGER, readable INTEGER, problem TEXT,"
    " complete INTEGER, n_missing INTEGER, folder_state TEXT);"
    "CREATE TABLE downloads (id INTEGER PRIMARY KEY AUTOINCREMENT, repo_id TEXT NOT NULL, state TEXT NOT NULL, current_file TEXT,"
    " received_bytes INTEGER, total_bytes INTEGER, files_done INTEGER, files_total INTEGER, bytes_per_sec INTEGER,"
    " started_at INTEGER, finished_at INTEGER, error TEXT, pid INTEGER, pid_start INTEGER);"
    "PRAGMA user_version = 1;";

/* --- SQLite --- */

mb_status registry_fail(struct registry *r, mb_error *err)
{
    return mb_fail(err, MB_IO, "registry %s: %s", r->path, r->db ? sqlite3_errmsg(r->db) : "no memory");
}

mb_status registry_exec(struct registry *r, const char *sql, mb_error *err)
{
    return sqlite3_exec(r->db, sql, NULL, NULL, NULL) == SQLITE_OK ? MB_OK : registry_fail(r, err);
}

mb_status registry_prepare(struct registry *r, const char *sql, sqlite3_stmt **out, mb_error *err)
{
    return sqlite3_prepare_v2(r->db, sql, -1, out, NULL) == SQLITE_OK ? MB_OK : registry_fail(r, err);
}

mb_status registry_finish(struct registry *r, sqlite3_stmt *s, mb_error *err)
{
    int rc = sqlite3_step(s);
    mb_status st = rc == SQLITE_DONE || rc == SQLITE_ROW ? MB_OK : registry_fail(r, err);
    sqlite3_finalize(s);
    return st;
}

void registry_text(sqlite3_stmt *s, int column, char *out, size_t cap)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    snprintf(out, cap, "%s", text ? text : "");
}

static int user_version(struct registry *r)
{
    sqlite3_stmt *s;
    int v = -1;
    if (sqlite3_prepare_v2(r->db, "PRAGMA user_version", -1, &s, NULL) != SQLITE_OK) return -1;
    if (sqlite3_step(s) == SQLITE_ROW) v = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    return v;
}

/* Are the tables there with the columns that we use? */
static bool has_schema(struct registry *r)
{
    static const char *const probes[] = { "SELECT path, problem, complete, n_missing, folder_state, context FROM models LIMIT 0",
                                          "SELECT id, pid, pid_start, error FROM downloads LIMIT 0" };
    for (int i = 0; i < 2; i++) {
        sqlite3_stmt *s;
        if (sqlite3_prepare_v2(r->db, probes[i], -1, &s, NULL) != SQLITE_OK) return false;
        sqlite3_finalize(s);
    }
    return true;
}

/* Everything of another version goes; the cache is looked at again. */
static mb_status rebuild(struct registry *r, mb_error *err)
{
    mb_status st = registry_exec(r, "BEGIN IMMEDIATE", err);
    if (st == MB_OK && user_version(r) == VERSION && has_schema(r)) return registry_exec(r, "COMMIT", err); /* another process did */
    if (st == MB_OK) st = registry_exec(r, "DROP TABLE IF EXISTS models; DROP TABLE IF EXISTS downloads;", err);
    if (st == MB_OK) st = registry_exec(r, SCHEMA, err);
    if (st == MB_OK) st = registry_exec(r, "COMMIT", err);
    else sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}

static mb_status open_db(struct registry *r, mb_error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    if (sqlite3_open_v2(r->path, &r->db, flags, NULL) != SQLITE_OK) return registry_fail(r, err);
    sqlite3_busy_timeout(r->db, 5000);
    MB_TRY(registry_exec(r, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;", err));
    if (user_version(r) == VERSION && has_schema(r)) return MB_OK;
    return rebuild(r, err);
}

/* The file is not a database: it held nothing that cannot be made again. */
static void remove_file(const struct registry *r)
{
    static const char *const suffixes[] = { "", "-wal", "-shm" };
    char path[PATH_MAX + 8];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", r->path, suffixes[i]);
        unlink(path);
    }
}

static bool is_broken(const struct registry *r)
{
    int code = r->db ? sqlite3_errcode(r->db) & 0xff : SQLITE_NOMEM;
    return code == SQLITE_NOTADB || code == SQLITE_CORRUPT;
}

mb_status registry_open(struct registry **out, const char *path, mb_error *err)
{
    char dir[PATH_MAX];
    *out = NULL;
    if (strlen(path) >= PATH_MAX || !strrchr(path, '/')) return mb_fail(err, MB_INVALID, "the registry's path must be absolute");
    strcpy(dir, path);
    *strrchr(dir, '/') = '\0';
    MB_TRY(dir_make(dir, err));
    struct registry *r = mb_calloc(1, sizeof *r);
    if (!r) return mb_fail(err, MB_NO_MEMORY, "no memory for the registry");
    strcpy(r->path, path);
    mb_status st = open_db(r, err);
    if (st != MB_OK && is_broken(r)) {
        sqlite3_close(r->db);
        r->db = NULL;
        remove_file(r);
        st = open_db(r, err);
    }
    if (st == MB_OK) *out = r;
    else registry_close(r);
    return st;
}

void registry_close(struct registry *r)
{
    if (!r) return;
    sqlite3_close(r->db);
    mb_free(r);
}

/* --- scanning --- */

struct scan {
    struct registry *r;
    const char *repo, *repo_dir; /* of the repository at hand */
    const char *root;
    bool full;
    size_t n_models, n_read;
};

/* Changes when files come, go, or are linked anew; also when the manifest does. */
static mb_status folder_add(void *ctx, const char *dir, const char *name, mb_error *err)
{
    char path[PATH_MAX];
    struct stat st;
    uint64_t *h = ctx;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (stat(path, &st) != 0) st = (struct stat){ 0 };
    uint64_t parts[] = { (uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec, (uint64_t)st.st_ino };
    for (const char *p = name; *p; p++) *h = (*h ^ (unsigned char)*p) * 1099511628211u;
    for (int i = 0; i < 4; i++) *h = (*h ^ parts[i]) * 1099511628211u;
    return MB_OK;
}

static void folder_state(const char *dir, const struct snapshot_state *s, char out[32])
{
    uint64_t h = 14695981039346656037u;
    layout_each_file(dir, folder_add, &h, NULL);
    h = (h ^ (uint64_t)s->n_missing) * 1099511628211u;
    snprintf(out, 32, "%016llx", (unsigned long long)h);
}

static bool is_known(struct scan *c, const char *path, const char *state)
{
    sqlite3_stmt *s;
    mb_error err;
    if (registry_prepare(c->r, "SELECT 1 FROM models WHERE path = ? AND folder_state = ?", &s, &err) != MB_OK) return false;
    sqlite3_bind_text(s, 1, path, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, state, -1, SQLITE_STATIC);
    bool known = sqlite3_step(s) == SQLITE_ROW;
    sqlite3_finalize(s);
    return known;
}

static mb_status put_row(struct scan *c, const char *path, const struct model_facts *f, const struct snapshot_state *state,
                         const char *folder, mb_error *err)
{
    static const char sql[] = "INSERT OR REPLACE INTO models VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
    sqlite3_stmt *s;
    MB_TRY(registry_prepare(c->r, sql, &s, err));
    int i = 0;
#define TEXT(v) sqlite3_bind_text(s, ++i, (v), -1, SQLITE_STATIC)
#define INT(v) sqlite3_bind_int64(s, ++i, (v))
    TEXT(path), TEXT(c->repo), TEXT(f->model_type), INT(f->param_count), INT(f->num_layers), INT(f->hidden_size),
        INT(f->vocab_size), INT(f->context), INT(f->size_bytes), INT(f->sidecar_bytes), INT(f->experts_bytes), INT(f->quant_bits),
        INT(f->quant_group_size), TEXT(f->quant_mode), INT(f->has_vision_sidecar), TEXT(f->vision_config_type),
        INT(f->has_kv_config), INT(f->has_tool_template), TEXT(f->license), INT(clock_unix_ms()), INT(f->readable),
        TEXT(f->problem), INT(state->complete), INT(state->n_missing), TEXT(folder);
#undef TEXT
#undef INT
    return registry_finish(c->r, s, err);
}

static mb_status scan_snapshot(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct scan *c = ctx;
    char path[PATH_MAX], folder[32];
    struct snapshot_state state;
    struct model_facts facts;
    if (!name_is_commit(name)) return MB_OK;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (!dir_exists(path)) return MB_OK;
    layout_check(c->repo_dir, name, &state);
    folder_state(path, &state, folder);
    c->n_models++;
    if (!c->full && is_known(c, path, folder)) return MB_OK;
    inspect_model(&facts, path);
    c->n_read++;
    return put_row(c, path, &facts, &state, folder, err);
}

static mb_status scan_repo(void *ctx, const char *dir, const char *name, mb_error *err)
{
    struct scan *c = ctx;
    char repo[NAME_REPO_MAX], repo_dir[PATH_MAX], snapshots[PATH_MAX];
    if (!name_from_folder(name, repo)) return MB_OK;
    MB_TRY(path_join(repo_dir, sizeof repo_dir, dir, name, err));
    MB_TRY(path_join(snapshots, sizeof snapshots, repo_dir, "snapshots", err));
    c->repo = repo;
    c->repo_dir = repo_dir;
    return layout_each(snapshots, scan_snapshot, c, err);
}

/* REG-059 */
static mb_status drop_gone(struct registry *r, mb_error *err)
{
    sqlite3_stmt *s, *del;
    MB_TRY(registry_prepare(r, "SELECT path FROM models", &s, err));
    mb_status st = registry_prepare(r, "DELETE FROM models WHERE path = ?", &del, err);
    while (st == MB_OK && sqlite3_step(s) == SQLITE_ROW) {
        const char *path = (const char *)sqlite3_column_text(s, 0);
        if (path && dir_exists(path)) continue;
        sqlite3_bind_text(del, 1, path ? path : "", -1, SQLITE_TRANSIENT);
        if (sqlite3_step(del) != SQLITE_DONE) st = registry_fail(r, err);
        sqlite3_reset(del);
    }
    sqlite3_finalize(s);
    sqlite3_finalize(del);
    return st;
}

mb_status registry_scan(struct registry *r, const char *root, bool full, size_t *n_models, size_t *n_read, mb_error *err)
{
    struct scan c = { .r = r, .root = root, .full = full };
    MB_TRY(registry_exec(r, "BEGIN IMMEDIATE", err));
    mb_status st = layout_each(root, scan_repo, &c, err);
    if (st == MB_OK) st = drop_gone(r, err);
    if (st == MB_OK) st = registry_exec(r, "COMMIT", err);
    if (st != MB_OK) sqlite3_exec(r->db, "ROLLBACK", NULL, NULL, NULL);
    if (n_models) *n_models = c.n_models;
    if (n_read) *n_read = c.n_read;
    return st;
}
