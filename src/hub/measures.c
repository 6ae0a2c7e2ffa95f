/* measures.c: two tables beside the registry's own; made when something is first written or read. */
#include "hub/measures.h"

#include "hub/registry_int.h"

#define TEXT_MAX (64 << 10)

static mb_status tables(struct registry *r, mb_error *err)
{
    return registry_exec(r,
        "CREATE TABLE IF NOT EXISTS machine_speeds (name TEXT PRIMARY KEY, speeds TEXT NOT NULL, at_ms INTEGER NOT NULL);"
        "CREATE TABLE IF NOT EXISTS decode_rates (snapshot TEXT NOT NULL, way TEXT NOT NULL, tokens_per_s REAL NOT NULL,"
        " predicted_per_s REAL, n_context INTEGER, at_ms INTEGER NOT NULL, PRIMARY KEY (snapshot, way));", err);
}

/* Prepared over the tables, with `n` texts bound from the first parameter on. */
static mb_status prepare(struct registry *r, const char *sql, const char *const *texts, int n, sqlite3_stmt **out, mb_error *err)
{
    MB_TRY(tables(r, err));
    MB_TRY(registry_prepare(r, sql, out, err));
    for (int i = 0; i < n; i++) {
        if (sqlite3_bind_text(*out, i + 1, texts[i], -1, SQLITE_TRANSIENT) == SQLITE_OK) continue;
        sqlite3_finalize(*out);
        return registry_fail(r, err);
    }
    return MB_OK;
}

/* One step of a query: MB_NOT_FOUND when there is no row. The statement stays open on success alone. */
static mb_status first_row(struct registry *r, sqlite3_stmt *s, const char *what, mb_error *err)
{
    int rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) return MB_OK;
    mb_status st = rc == SQLITE_DONE ? mb_fail(err, MB_NOT_FOUND, "%.200s was not measured yet", what) : registry_fail(r, err);
    sqlite3_finalize(s);
    return st;
}

mb_status measures_machine_put(struct registry *r, const char *name, const char *text, size_t len, int64_t at_ms, mb_error *err)
{
    sqlite3_stmt *s;
    const char *const texts[] = { name };
    if (len > TEXT_MAX) return mb_fail(err, MB_TOO_LARGE, "a measurement of %zu bytes; at most %d", len, TEXT_MAX);
    MB_TRY(prepare(r, "INSERT OR REPLACE INTO machine_speeds (name, at_ms, speeds) VALUES (?, ?, ?)", texts, 1, &s, err));
    sqlite3_bind_int64(s, 2, at_ms);
    if (sqlite3_bind_text(s, 3, text, (int)len, SQLITE_TRANSIENT) != SQLITE_OK) {
        sqlite3_finalize(s);
        return registry_fail(r, err);
    }
    return registry_finish(r, s, err);
}

mb_status measures_machine_get(struct registry *r, const char *name, struct buf *text, int64_t *at_ms, mb_error *err)
{
    sqlite3_stmt *s;
    const char *const texts[] = { name };
    *at_ms = 0;
    MB_TRY(prepare(r, "SELECT speeds, at_ms FROM machine_speeds WHERE name = ?", texts, 1, &s, err));
    MB_TRY(first_row(r, s, name, err));
    const char *found = (const char *)sqlite3_column_text(s, 0);
    buf_append_str(text, found ? found : "");
    *at_ms = sqlite3_column_int64(s, 1);
    sqlite3_finalize(s);
    return buf_status(text, "the measurement", err);
}

/* Rows of models that are long gone do not pile up. */
static mb_status drop_oldest(struct registry *r, mb_error *err)
{
    sqlite3_stmt *s;
    MB_TRY(registry_prepare(r, "DELETE FROM decode_rates WHERE rowid IN (SELECT rowid FROM decode_rates ORDER BY at_ms DESC"
                               " LIMIT -1 OFFSET ?)", &s, err));
    sqlite3_bind_int(s, 1, MEASURES_ROWS_MAX);
    return registry_finish(r, s, err);
}

mb_status measures_decode_put(struct registry *r, const char *snapshot, const char *way, const struct decode_measure *m, mb_error *err)
{
    sqlite3_stmt *s;
    const char *const texts[] = { snapshot, way };
    MB_TRY(prepare(r, "INSERT OR REPLACE INTO decode_rates (snapshot, way, tokens_per_s, predicted_per_s, n_context, at_ms)"
                      " VALUES (?, ?, ?, ?, ?, ?)", texts, 2, &s, err));
    sqlite3_bind_double(s, 3, m->tokens_per_s);
    if (m->predicted_per_s > 0) sqlite3_bind_double(s, 4, m->predicted_per_s);
    sqlite3_bind_int(s, 5, m->n_context);
    sqlite3_bind_int64(s, 6, m->at_ms);
    MB_TRY(registry_finish(r, s, err));
    return drop_oldest(r, err);
}

mb_status measures_decode_get(struct registry *r, const char *snapshot, const char *way, struct decode_measure *out, mb_error *err)
{
    sqlite3_stmt *s;
    const char *const texts[] = { snapshot, way };
    *out = (struct decode_measure){ 0 };
    MB_TRY(prepare(r, "SELECT tokens_per_s, predicted_per_s, n_context, at_ms FROM decode_rates WHERE snapshot = ? AND way = ?",
                   texts, 2, &s, err));
    MB_TRY(first_row(r, s, snapshot, err));
    *out = (struct decode_measure){ sqlite3_column_double(s, 0), sqlite3_column_double(s, 1), sqlite3_column_int(s, 2),
                                    sqlite3_column_int64(s, 3) };
    sqlite3_finalize(s);
    return MB_OK;
}
