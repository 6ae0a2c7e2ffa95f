/* registry_int.h: the database handle and its four verbs, for the files of the registry. */
#ifndef HUB_REGISTRY_INT_H
#define HUB_REGISTRY_INT_H

#include <sqlite3.h>

#include "hub/registry.h"

struct registry {
    sqlite3 *db;
    char path[PATH_MAX];
};

mb_status registry_fail(struct registry *r, mb_error *err);
mb_status registry_exec(struct registry *r, const char *sql, mb_error *err);
mb_status registry_prepare(struct registry *r, const char *sql, sqlite3_stmt **out, mb_error *err);
/* One step of a statement that gives nothing, then finalize. */
mb_status registry_finish(struct registry *r, sqlite3_stmt *s, mb_error *err);
void registry_text(sqlite3_stmt *s, int column, char *out, size_t cap);

#endif
