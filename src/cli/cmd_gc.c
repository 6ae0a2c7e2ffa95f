/* cmd_gc.c: `mlx-bun gc` and `mlx-bun rm`: what would go, and with --yes, that it goes. */
#include <string.h>

#include "cli/store.h"
#include "hub/gc.h"

/* --- the report --- */

static void print_items(const struct gc_repo *r)
{
    char size[32];
    for (size_t i = 0; i < r->n_items; i++)
        printf("  %-10s %9s  %s\n", gc_kind_name(r->items[i].kind), model_size_text(r->items[i].bytes, size), r->items[i].path);
}

static void print_plan(const struct gc_plan *p, bool done, const char *verb)
{
    char size[32];
    for (size_t i = 0; i < p->n_repos; i++) {
        const struct gc_repo *r = &p->repos[i];
        model_size_text(r->bytes, size);
        if (r->n_kept + r->n_pruned + r->n_skipped == 0) printf("%s: %s\n", r->repo, size);
        else printf("%s: %d kept, %d pruned, %d skipped; %s\n", r->repo, (int)r->n_kept, (int)r->n_pruned, (int)r->n_skipped, size);
        print_items(r);
        for (size_t k = 0; k < r->n_warnings; k++) printf("  warning: %s\n", r->warnings[k]);
    }
    model_size_text(p->bytes, size);
    if (done) printf("%s freed\n", size);
    else if (p->bytes == 0) printf("nothing to free\n");
    else printf("%s can be freed; nothing was deleted (%s --yes deletes)\n", size, verb);
}

static void write_repo(struct buf *b, const struct gc_repo *r)
{
    buf_append_str(b, "{\"repo_id\": ");
    json_write_string(b, r->repo, strlen(r->repo));
    buf_printf(b, ", \"kept\": %d, \"pruned\": %d, \"skipped\": %d, \"bytes\": %llu, \"items\": [", (int)r->n_kept, (int)r->n_pruned,
               (int)r->n_skipped, (unsigned long long)r->bytes);
    for (size_t i = 0; i < r->n_items; i++) {
        buf_printf(b, "%s{\"kind\": \"%s\", \"path\": ", i ? ", " : "", gc_kind_name(r->items[i].kind));
        json_write_string(b, r->items[i].path, strlen(r->items[i].path));
        buf_printf(b, ", \"bytes\": %llu}", (unsigned long long)r->items[i].bytes);
    }
    buf_append_str(b, "], \"warnings\": [");
    for (size_t i = 0; i < r->n_warnings; i++) {
        if (i) buf_append_str(b, ", ");
        json_write_string(b, r->warnings[i], strlen(r->warnings[i]));
    }
    buf_append_str(b, "]}");
}

static mb_status print_json(const struct gc_plan *p, bool done, mb_error *err)
{
    struct buf b;
    buf_init(&b, (size_t)256 << 20);
    buf_printf(&b, "{\"deleted\": %s, \"bytes\": %llu, \"repos\": [", done ? "true" : "false", (unsigned long long)p->bytes);
    for (size_t i = 0; i < p->n_repos; i++) {
        if (i) buf_append_str(&b, ", ");
        write_repo(&b, &p->repos[i]);
    }
    buf_append_str(&b, "]}\n");
    mb_status st = buf_status(&b, "answer", err);
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    return st;
}

/* --- the verbs --- */

/* The registry follows at once (REG-107). */
static void rescan(const struct store *s)
{
    struct registry *r;
    mb_error err;
    if (store_registry(s, false, &r, &err) == MB_OK) registry_close(r);
    else cli_warn("%s", err.text);
}

static mb_status run(const struct flags *f, const struct store *s, struct gc_opts *o, const char *verb, mb_error *err)
{
    struct gc_plan plan;
    o->root = s->root;
    o->execute = f->yes.b && !f->dry_run.b; /* REG-094..098 */
    o->force = f->force.b;
    o->packed_dirs[0] = s->packed_dir;
    o->packed_dirs[1] = s->expert_dir;
    mb_status st = gc_run(o, &plan, err);
    mb_error shown;
    if (st == MB_OK || plan.n_repos) {
        mb_status printed = MB_OK;
        if (f->json.b) printed = print_json(&plan, o->execute && st == MB_OK, &shown);
        else if (st == MB_OK) print_plan(&plan, o->execute, verb);
        if (st == MB_OK && printed != MB_OK) *err = shown, st = printed;
    }
    gc_plan_free(&plan);
    if (o->execute) rescan(s);
    return st;
}

mb_status cmd_gc(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX];
    static struct store s; /* large */
    struct gc_opts o = { 0 };
    (void)exit_status;
    MB_TRY(store_init(&s, f, err));
    if (n_pos > 0) {
        MB_TRY(name_parse_model(pos[0], "main", repo, revision, err));
        if (strchr(pos[0], '@')) return mb_fail(err, MB_INVALID, "gc takes a repository, not a revision; mlx-bun rm %s removes that", pos[0]);
        o.repo = repo;
    }
    return run(f, &s, &o, "mlx-bun gc", err);
}

mb_status cmd_rm(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX], verb[NAME_REPO_MAX + NAME_REVISION_MAX + 16];
    static struct store s; /* large */
    (void)exit_status;
    if (n_pos == 0) return mb_fail(err, MB_INVALID, "rm what? mlx-bun rm OWNER/NAME[@REVISION]; mlx-bun ls lists what is there");
    MB_TRY(store_init(&s, f, err));
    MB_TRY(name_parse_model(pos[0], "main", repo, revision, err));
    struct gc_opts o = { .repo = repo, .revision = strchr(pos[0], '@') ? revision : NULL, .rm = true };
    snprintf(verb, sizeof verb, "mlx-bun rm %s", pos[0]);
    return run(f, &s, &o, verb, err);
}
