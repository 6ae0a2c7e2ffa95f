/* upload.c: see upload.h. */
#include "hub/upload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "hub/upload_int.h"

#define PROGRESS_NS 100000000
#define ARENA_MAX ((size_t)256 << 20)

/* --- progress --- */

bool upload_going(void *upload, int64_t sent_bytes)
{
    struct upload *u = upload;
    int64_t now = clock_now_ns();
    u->p.done_bytes = u->base_bytes + (uint64_t)sent_bytes;
    if (!u->o->progress || now - u->t_progress_ns < PROGRESS_NS) return true;
    u->t_progress_ns = now;
    return u->o->progress(u->o->ctx, &u->p);
}

bool upload_waiting(void *upload, int64_t sent_bytes)
{
    (void)sent_bytes;
    return upload_going(upload, 0);
}

void upload_phase(struct upload *u, enum upload_phase phase, uint64_t total_bytes, size_t n_files)
{
    u->p = (struct upload_progress){ .phase = phase, .total_bytes = total_bytes, .files_total = n_files };
    u->base_bytes = 0;
    upload_going(u, 0);
}

/* --- what differs --- */

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static void compare(struct upload *u)
{
    size_t n_same_name = 0;
    for (size_t i = 0; i < u->n_files; i++) {
        struct upload_file *f = &u->files[i];
        struct hub_file key = { .path = f->path };
        const struct hub_file *there = u->there.n_files ? bsearch(&key, u->there.files, u->there.n_files, sizeof key, by_path) : NULL;
        n_same_name += there != NULL;
        f->is_unchanged = there && !f->is_ignored && strcmp(there->digest, f->digest) == 0;
        u->r->n_unchanged += f->is_unchanged;
        u->r->n_ignored += f->is_ignored;
    }
    u->r->n_others = u->there.n_files - n_same_name;
}

static bool is_all_there(const struct upload *u)
{
    for (size_t i = 0; i < u->n_files; i++)
        if (!u->files[i].is_ignored && !u->files[i].is_unchanged) return false;
    return true;
}

/* --- the whole --- */

static mb_status run(struct upload *u)
{
    upload_phase(u, UPLOAD_LOOKING, 0, u->n_files);
    MB_TRY(upload_look(u));
    MB_TRY(upload_modes(u));
    MB_TRY(upload_files_hash(u));
    compare(u);
    u->r->up_to_date = is_all_there(u);
    if (u->r->up_to_date) {
        strcpy(u->r->commit, u->there.commit);
        return MB_OK;
    }
    MB_TRY(upload_commit_fits(u));
    MB_TRY(upload_lfs(u));
    for (size_t i = 0; i < u->n_files; i++) MB_TRY(upload_file_check(u, &u->files[i], -1));
    return upload_commit(u);
}

mb_status upload_check(const struct upload_opts *o, mb_error *err)
{
    char shown[84];
    if (!name_is_repo(o->repo))
        return mb_fail(err, MB_INVALID, "'%s' is not the name of a repository: wanted is owner/name of letters, digits, '.', '_' and "
                       "'-', at most 96 bytes", name_shown(o->repo, strlen(o->repo), shown));
    if (!name_is_revision(o->revision))
        return mb_fail(err, MB_INVALID, "'%s' is not a branch", name_shown(o->revision, strlen(o->revision), shown));
    if (!o->net.token || !*o->net.token)
        return mb_fail(err, MB_INVALID, "publishing needs a token that may write: make one at %s/settings/tokens, then set HF_TOKEN "
                       "or run hf auth login", net_endpoint(&o->net));
    return MB_OK;
}

mb_status upload_folder(const struct upload_opts *o, struct upload_result *r, mb_error *err)
{
    mb_error own;
    char dir[PATH_MAX];
    memset(r, 0, sizeof *r);
    MB_TRY(upload_check(o, err));
    int len = snprintf(dir, sizeof dir, "%s", o->dir);
    if (len >= (int)sizeof dir) return mb_fail(err, MB_TOO_LARGE, "the folder's path is too long");
    while (len > 1 && dir[len - 1] == '/') dir[--len] = '\0';
    struct upload_opts opts = *o;
    opts.dir = dir;
    struct upload u = { .o = &opts, .r = r, .err = err ? err : &own };
    arena_init(&u.arena, ARENA_MAX);
    snprintf(u.what, sizeof u.what, "%s at %s", o->repo, o->revision);
    snprintf(r->url, sizeof r->url, "%s/%s%s", net_endpoint(&o->net), strcmp(o->kind, "dataset") == 0 ? "datasets/" : "", o->repo);
    mb_status st = upload_files_read(&u);
    if (st == MB_OK) st = run(&u);
    listing_free(&u.there);
    arena_free(&u.arena);
    return st;
}
