/* registry_query.c: lists of models and what a query means (REG-078..085). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hub/registry_int.h"

#define LIST_LIMIT ((size_t)256 << 20)

static const char COLUMNS[] =
    "SELECT path, repo_id, model_type, param_count, num_layers, hidden_size, vocab_size, context, size_bytes, sidecar_bytes,"
    " experts_bytes, quant_bits, quant_group_size, quant_mode, has_vision_sidecar, vision_config_type, has_kv_config,"
    " has_tool_template, license, scanned_at, readable, problem, complete, n_missing FROM models ORDER BY repo_id, path";

static bool holds(const char *text, const char *part)
{
    size_t n = strlen(part);
    for (; strlen(text) >= n; text++)
        if (strncasecmp(text, part, n) == 0) return true;
    return false;
}

static bool is_below(const char *path, const char *root)
{
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && path[n] == '/';
}

static void take_row(sqlite3_stmt *s, struct model_row *m)
{
    struct model_facts *f = &m->facts;
    int i = 2;
    registry_text(s, i++, f->model_type, sizeof f->model_type);
    f->param_count = sqlite3_column_int64(s, i++);
    f->num_layers = sqlite3_column_int64(s, i++);
    f->hidden_size = sqlite3_column_int64(s, i++);
    f->vocab_size = sqlite3_column_int64(s, i++);
    f->context = sqlite3_column_int64(s, i++);
    f->size_bytes = sqlite3_column_int64(s, i++);
    f->sidecar_bytes = sqlite3_column_int64(s, i++);
    f->experts_bytes = sqlite3_column_int64(s, i++);
    f->quant_bits = sqlite3_column_int(s, i++);
    f->quant_group_size = sqlite3_column_int(s, i++);
    registry_text(s, i++, f->quant_mode, sizeof f->quant_mode);
    f->has_vision_sidecar = sqlite3_column_int(s, i++) != 0;
    registry_text(s, i++, f->vision_config_type, sizeof f->vision_config_type);
    f->has_kv_config = sqlite3_column_int(s, i++) != 0;
    f->has_tool_template = sqlite3_column_int(s, i++) != 0;
    registry_text(s, i++, f->license, sizeof f->license);
    m->scanned_at = sqlite3_column_int64(s, i++);
    f->readable = sqlite3_column_int(s, i++) != 0;
    registry_text(s, i++, f->problem, sizeof f->problem);
    m->complete = sqlite3_column_int(s, i++) != 0;
    m->n_missing = sqlite3_column_int(s, i++);
}

static mb_status add_row(struct model_list *l, size_t *cap, sqlite3_stmt *s, mb_error *err)
{
    if (l->n == *cap) {
        size_t more = *cap ? 2 * *cap : 32;
        struct model_row *rows = arena_alloc_array(&l->arena, more, sizeof *rows);
        if (!rows) return mb_fail(err, MB_NO_MEMORY, "no memory for the list of models");
        if (l->n) memcpy(rows, l->rows, l->n * sizeof *rows);
        l->rows = rows;
        *cap = more;
    }
    struct model_row *m = &l->rows[l->n];
    memset(m, 0, sizeof *m);
    m->path = arena_strdup(&l->arena, (const char *)sqlite3_column_text(s, 0));
    m->repo = arena_strdup(&l->arena, (const char *)sqlite3_column_text(s, 1));
    if (!m->path || !m->repo) return mb_fail(err, MB_NO_MEMORY, "no memory for the list of models");
    const char *slash = strrchr(m->path, '/');
    snprintf(m->commit, sizeof m->commit, "%s", slash ? slash + 1 : m->path);
    take_row(s, m);
    l->n++;
    return MB_OK;
}

/* Among the rows [first, end) of one repository (REG-082). */
static void mark_canonical(struct model_list *l, const char *root, size_t first, size_t end)
{
    char main_commit[NAME_COMMIT_LEN + 1];
    size_t best = first;
    bool by_ref = layout_ref_read(root, l->rows[first].repo, "main", main_commit, NULL) == MB_OK;
    for (size_t i = first; i < end; i++) {
        if (by_ref && strcmp(l->rows[i].commit, main_commit) == 0) {
            best = i;
            break;
        }
        if (l->rows[i].scanned_at > l->rows[best].scanned_at) best = i;
    }
    l->rows[best].canonical = true;
}

static void mark_all(struct model_list *l, const char *root)
{
    for (size_t first = 0, end; first < l->n; first = end) {
        for (end = first + 1; end < l->n && strcmp(l->rows[end].repo, l->rows[first].repo) == 0;) end++;
        mark_canonical(l, root, first, end);
    }
}

static void keep_rows(struct model_list *l, const char *query, bool all_revisions)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        const struct model_row *m = &l->rows[i];
        if (!all_revisions && !m->canonical) continue;
        if (query && !holds(m->repo, query) && !holds(m->facts.model_type, query)) continue;
        l->rows[n++] = *m;
    }
    l->n = n;
}

mb_status registry_list(struct registry *r, const char *root, const char *query, bool all_revisions, struct model_list *out,
                        mb_error *err)
{
    sqlite3_stmt *s;
    size_t cap = 0;
    int rc;
    memset(out, 0, sizeof *out);
    arena_init(&out->arena, LIST_LIMIT);
    MB_TRY(registry_prepare(r, COLUMNS, &s, err));
    mb_status st = MB_OK;
    while (st == MB_OK && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        const char *path = (const char *)sqlite3_column_text(s, 0);
        if (path && is_below(path, root)) st = add_row(out, &cap, s, err);
    }
    if (st == MB_OK && rc != SQLITE_DONE) st = registry_fail(r, err);
    sqlite3_finalize(s);
    if (st != MB_OK) return st;
    mark_all(out, root);
    keep_rows(out, query, all_revisions);
    return MB_OK;
}

void model_list_free(struct model_list *l)
{
    arena_free(&l->arena);
    memset(l, 0, sizeof *l);
}

/* --- queries --- */

static void drop_drafters(struct model_list *l)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (!name_ends(l->rows[i].facts.model_type, "_assistant")) l->rows[n++] = l->rows[i];
    l->n = n;
}

/* "owner/name" or "name" in full. */
static bool is_named(const struct model_row *m, const char *query)
{
    const char *slash = strchr(m->repo, '/');
    return strcasecmp(m->repo, query) == 0 || (slash && strcasecmp(slash + 1, query) == 0);
}

static void prefer_exact(struct model_list *l, const char *query)
{
    size_t n_exact = 0, at = 0;
    for (size_t i = 0; i < l->n; i++)
        if (is_named(&l->rows[i], query)) n_exact++, at = i;
    if (n_exact != 1) return;
    l->rows[0] = l->rows[at];
    l->n = 1;
}

mb_status registry_resolve(struct registry *r, const char *root, const char *query, struct model_list *out, mb_error *err)
{
    char shown[84], names[320];
    size_t at = 0;
    MB_TRY(registry_list(r, root, query, false, out, err));
    drop_drafters(out);
    prefer_exact(out, query);
    if (out->n == 1) return MB_OK;
    name_shown(query, strlen(query), shown);
    if (out->n == 0)
        return mb_fail(err, MB_NOT_FOUND, "no model in the cache matches '%s': mlx-bun ls %s shows what is there, mlx-bun get "
                       "OWNER/NAME fetches one", shown, shown);
    names[0] = '\0';
    for (size_t i = 0; i < out->n && at < sizeof names - 1; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", out->rows[i].repo);
    return mb_fail(err, MB_INVALID, "'%s' matches %zu models: %s; name one", shown, out->n, names);
}
