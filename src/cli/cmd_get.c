/* cmd_get.c: `mlx-bun get`: a model from the hub (or the starter) into the cache; its directory is the last line of stdout. */
#include <string.h>

#include "cli/store.h"
#include "hub/gc.h"

#define LOCKFILE "models.lock"

static const char *lockfile_of(const struct flags *f)
{
    return f->lock_file.given ? f->lock_file.s : LOCKFILE;
}

/* --- what is asked for --- */

/* Without a slash: part of the name of a model that is there (REG-015, REG-016). */
static mb_status parse_query(const struct store *s, const char *query, char repo[NAME_REPO_MAX], mb_error *err)
{
    struct registry *r;
    struct model_list list;
    MB_TRY(store_registry(s, false, &r, err));
    mb_status st = registry_resolve(r, s->root, query, &list, err);
    if (st == MB_OK) snprintf(repo, NAME_REPO_MAX, "%s", list.rows[0].repo);
    model_list_free(&list);
    registry_close(r);
    return st;
}

/* A page of the hub as a browser shows it, "https://huggingface.co/owner/name/tree/main", to "owner/name@main"; else as it is. The name
 * is checked afterwards like any other. */
static const char *without_address(const struct store *s, const char *arg, char out[NAME_REPO_MAX + NAME_REVISION_MAX])
{
    const char *const hubs[] = { NET_ENDPOINT, net_endpoint(&s->net) };
    const size_t cap = NAME_REPO_MAX + NAME_REVISION_MAX;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(hubs[i]);
        while (n > 0 && hubs[i][n - 1] == '/') n--;
        if (strncmp(arg, hubs[i], n) != 0 || arg[n] != '/' || strlen(arg + n + 1) >= cap || !strchr(arg + n + 1, '/')) continue;
        strcpy(out, arg + n + 1);
        char *tree = strstr(out, "/tree/");
        if (tree) memmove(tree + 1, tree + 6, strlen(tree + 6) + 1);
        if (tree) *tree = '@';
        for (n = strlen(out); n > 0 && out[n - 1] == '/'; n--) out[n - 1] = '\0';
        return out;
    }
    return arg;
}

static mb_status parse_arg(const struct flags *f, const struct store *s, const char *arg, char repo[NAME_REPO_MAX],
                           char revision[NAME_REVISION_MAX], mb_error *err)
{
    const char *dflt = f->revision.given ? f->revision.s : "main";
    char page[NAME_REPO_MAX + NAME_REVISION_MAX];
    arg = without_address(s, arg, page);
    if (strchr(arg, '/')) return name_parse_model(arg, dflt, repo, revision, err);
    if (!*arg) return mb_fail(err, MB_INVALID, "an empty name is no model: mlx-bun get OWNER/NAME");
    MB_TRY(parse_query(s, arg, repo, err));
    if (!name_is_revision(dflt)) return mb_fail(err, MB_INVALID, "--revision: '%.80s' is not a revision", dflt);
    strcpy(revision, dflt);
    return MB_OK;
}

/* --- what is said --- */

/* What gc would free of this repository, now that the revision moved (REG-028). */
static uint64_t freed_by_gc(const struct store *s, const char *repo)
{
    struct gc_opts o = { .root = s->root, .repo = repo };
    struct gc_plan plan;
    uint64_t bytes = gc_run(&o, &plan, NULL) == MB_OK ? plan.bytes : 0;
    gc_plan_free(&plan);
    return bytes;
}

static void say(const struct get_result *r, const char *repo, const char *revision, uint64_t gc_bytes)
{
    char a[32], b[32];
    if (r->unreachable) cli_warn("%s; using the copy in the cache, %.12s", r->why, r->commit);
    else if (r->from_cache) fprintf(stderr, "%s is up to date (%s, %.12s)\n", repo, revision, r->commit);
    else fprintf(stderr, "%s: %zu files, %s, %s fetched\n", repo, r->numbers.files_total, model_size_text(r->numbers.total_bytes, a),
                 model_size_text(r->numbers.received_bytes, b));
    if (r->previous[0])
        fprintf(stderr, "%s moved from %.12s to %.12s; the old snapshot is kept: mlx-bun gc would free about %s\n", revision,
                r->previous, r->commit, model_size_text(gc_bytes, a));
}

static void write_text(struct buf *b, const char *key, const char *s)
{
    buf_printf(b, ", \"%s\": ", key);
    if (s && *s) json_write_string(b, s, strlen(s));
    else buf_append_str(b, "null");
}

static void write_result(struct buf *b, const struct get_result *r, const char *repo, const char *revision, uint64_t gc_bytes)
{
    buf_append_str(b, "{\"repo\": ");
    json_write_string(b, repo, strlen(repo));
    write_text(b, "revision", revision);
    write_text(b, "commit", r->commit);
    write_text(b, "path", r->path);
    buf_printf(b, ", \"files\": %zu, \"bytes\": %llu, \"received_bytes\": %llu, \"from_cache\": %s", r->numbers.files_total,
               (unsigned long long)r->numbers.total_bytes, (unsigned long long)r->numbers.received_bytes,
               r->from_cache ? "true" : "false");
    write_text(b, "previous", r->previous);
    write_text(b, "hub_error", r->unreachable ? r->why : NULL);
    buf_printf(b, ", \"gc_bytes\": %llu}", (unsigned long long)gc_bytes);
}

static mb_status print_result(const struct flags *f, const struct get_result *r, const char *repo, const char *revision,
                              uint64_t gc_bytes, mb_error *err)
{
    struct buf b;
    if (!f->json.b) {
        printf("%s\n", r->path);
        return MB_OK;
    }
    buf_init(&b, 1 << 20);
    write_result(&b, r, repo, revision, gc_bytes);
    mb_status st = buf_status(&b, "answer", err);
    if (st == MB_OK) printf("%s\n", b.data);
    buf_free(&b);
    return st;
}

/* --- getting --- */

static mb_status get_one(const struct flags *f, const struct store *s, const char *repo, const char *revision,
                         const json_t *locked, mb_error *err)
{
    static struct get_result r; /* large */
    MB_TRY(download_model(f, s, repo, revision, locked, &r, err));
    uint64_t gc_bytes = r.previous[0] ? freed_by_gc(s, repo) : 0;
    if (!f->quiet.b) say(&r, repo, revision, gc_bytes);
    if (f->lock.b) MB_TRY(lockfile_put(lockfile_of(f), s->root, repo, revision, r.commit, err));
    return print_result(f, &r, repo, revision, gc_bytes, err);
}

static mb_status get_locked_entry(const struct flags *f, const struct store *s, const json_t *entry, mb_error *err)
{
    return get_one(f, s, json_string_value(json_object_get(entry, "repo")), json_string_value(json_object_get(entry, "commit")),
                   entry, err);
}

/* The models of models.lock, or the one that is named. */
static mb_status get_locked(const struct flags *f, const struct store *s, const char *arg, mb_error *err)
{
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX];
    json_t *file, *entry;
    size_t i;
    MB_TRY(lockfile_read(lockfile_of(f), &file, err));
    mb_status st = MB_OK;
    if (arg) {
        st = name_parse_model(arg, "main", repo, revision, err);
        const json_t *one = st == MB_OK ? lockfile_find(file, repo) : NULL;
        if (st == MB_OK && !one) st = mb_fail(err, MB_NOT_FOUND, "%s has no entry for %s", lockfile_of(f), repo);
        if (st == MB_OK) st = get_locked_entry(f, s, one, err);
    } else json_array_foreach(json_object_get(file, "models"), i, entry)
        if (st == MB_OK) st = get_locked_entry(f, s, entry, err);
    json_decref(file);
    return st;
}

static mb_status get_starter(const struct flags *f, mb_error *err)
{
    char path[MODEL_PATH_MAX];
    MB_TRY(model_starter(f, path, err));
    printf("%s\n", path);
    return MB_OK;
}

mb_status cmd_get(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX];
    static struct store s; /* large; lives as long as the process */
    const char *arg = n_pos > 0 ? pos[0] : NULL;
    (void)exit_status;
    if (f->starter.b || (arg && strcmp(arg, "starter") == 0)) return get_starter(f, err);
    if (!arg && !f->locked.b)
        return mb_fail(err, MB_INVALID, "get what? mlx-bun get OWNER/NAME[@REVISION], mlx-bun get --starter, or --locked for the "
                       "models of " LOCKFILE);
    MB_TRY(store_init(&s, f, err));
    if (f->locked.b) return get_locked(f, &s, arg, err);
    MB_TRY(parse_arg(f, &s, arg, repo, revision, err));
    return get_one(f, &s, repo, revision, NULL, err);
}
