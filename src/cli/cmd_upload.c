/* cmd_upload.c: `mlx-bun upload`: a folder into a repository of the hub (hub/upload.h), and the same behind `convert --upload-repo`. */
#include <string.h>

#include "cli/mixed.h"
#include "cli/store.h"
#include "hub/downloads.h"

/* --- showing --- */

struct publishing {
    struct watch watch;
    struct download_log log; /* without a registry: for the rate alone */
    enum upload_phase phase;
};

static const char *label_of(enum upload_phase phase)
{
    return phase == UPLOAD_HASHING ? "hashing" : phase == UPLOAD_SENDING ? "sending" : "";
}

static bool on_progress(void *ctx, const struct upload_progress *p)
{
    struct publishing *w = ctx;
    struct fetch_progress numbers = { .current = p->current, .done_bytes = p->done_bytes, .total_bytes = p->total_bytes,
                                      .received_bytes = p->done_bytes, .files_done = p->files_done, .files_total = p->files_total };
    if (p->phase != w->phase) memset(&w->log, 0, sizeof w->log); /* another rate */
    w->phase = p->phase;
    return watch_show(&w->watch, label_of(p->phase), &numbers, download_log_progress(&w->log, &numbers));
}

/* --- for upload and convert --- */

mb_status publish_prepare(const struct flags *f, const char *dir, const char *kind, struct store *s, struct upload_opts *o, mb_error *err)
{
    MB_TRY(store_init(s, f, err));
    MB_TRY(store_upload_token(s, f, err));
    if (s->offline) return mb_fail(err, MB_INVALID, "HF_HUB_OFFLINE is set: nothing can be published");
    if (!f->commit_message.s[0]) return mb_fail(err, MB_INVALID, "--commit-message must not be empty");
    *o = (struct upload_opts){ .net = s->net, .dir = dir, .repo = f->upload_repo.s, .kind = kind, .message = f->commit_message.s,
                               .revision = f->revision.s ? f->revision.s : "main", .is_private = f->private_repo.b,
                               .notes_dir = s->notes_dir };
    return upload_check(o, err);
}

mb_status publish(const struct flags *f, const struct upload_opts *o, struct upload_result *r, mb_error *err)
{
    static struct publishing w; /* large */
    struct upload_opts opts = *o;
    memset(&w, 0, sizeof w);
    opts.progress = on_progress;
    opts.ctx = &w;
    watch_begin(&w.watch, o->repo, f->quiet.b);
    mb_status st = upload_folder(&opts, r, err);
    watch_end(&w.watch);
    return st;
}

json_t *publish_json(const struct upload_opts *o, const struct upload_result *r)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "repo", o->repo, "repo_type", o->kind,
                     "revision", o->revision, "commit", r->commit, "url", r->url, "created", (int)r->created, "up_to_date",
                     (int)r->up_to_date, "files", (json_int_t)r->n_files, "bytes", (json_int_t)r->total_bytes, "unchanged_files",
                     (json_int_t)r->n_unchanged, "present_lfs_files", (json_int_t)r->n_lfs_present, "ignored_files",
                     (json_int_t)r->n_ignored, "other_files", (json_int_t)r->n_others, "sent_bytes", (json_int_t)r->sent_bytes,
                     "resumed_bytes", (json_int_t)r->resumed_bytes);
}

void publish_print(const struct flags *f, const struct upload_opts *o, const struct upload_result *r)
{
    char a[32], b[32];
    if (!f->quiet.b && r->up_to_date) fprintf(stderr, "%s is up to date (%s, %.12s)\n", o->repo, o->revision, r->commit);
    if (!f->quiet.b && !r->up_to_date)
        fprintf(stderr, "%s%s: %zu files, %s; %zu unchanged, %s of weights sent; %s is %.12s\n", o->repo, r->created ? " (new)" : "", r->n_files,
                model_size_text(r->total_bytes, a), r->n_unchanged, model_size_text(r->sent_bytes, b), o->revision, r->commit);
    if (!f->quiet.b && r->resumed_bytes)
        fprintf(stderr, "%s of it had arrived with an earlier run\n", model_size_text(r->resumed_bytes, a));
    if (!f->quiet.b && r->n_ignored)
        fprintf(stderr, "%zu files are kept out by the repository's .gitignore\n", r->n_ignored);
    if (!f->quiet.b && r->n_others)
        fprintf(stderr, "%zu files of the repository are not in the folder; they stay there\n", r->n_others);
    printf("%s\n", r->url);
}

/* --- the verb --- */

mb_status cmd_upload(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    static struct store s; /* large, as are the next */
    static struct upload_opts o;
    static struct upload_result r;
    const char *dir = f->upload_path.given || n_pos == 0 ? f->upload_path.s : pos[0];
    (void)exit_status;
    if (!f->upload_repo.given)
        return mb_fail(err, MB_INVALID, "publish it where? mlx-bun upload DIR --upload-repo OWNER/NAME; see mlx-bun help upload");
    if (f->upload_path.given && n_pos > 0)
        return mb_fail(err, MB_INVALID, "--path and %.200s both name a folder: one is enough", pos[0]);
    MB_TRY(publish_prepare(f, dir, f->repo_type.s, &s, &o, err));
    MB_TRY(publish(f, &o, &r, err));
    if (f->json.b) return print_object(publish_json(&o, &r), err);
    publish_print(f, &o, &r);
    return MB_OK;
}
