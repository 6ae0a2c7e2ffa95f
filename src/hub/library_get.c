/* library_get.c: downloads in the background, one after another. The thread starts with the first one. */
#include <string.h>

#include "base/log.h"
#include "base/threads.h"
#include "hub/downloads.h"
#include "hub/library_int.h"

struct running {
    struct library *l;
    struct download_log log;
    struct get_result result;
};

static bool on_progress(void *ctx, const struct fetch_progress *p)
{
    struct running *r = ctx;
    download_log_progress(&r->log, p);
    return !atomic_load(&r->l->cancel);
}

static void run_job(struct library *l, const struct library_job *job)
{
    struct running *r = mb_calloc(1, sizeof *r); /* large */
    mb_error err = { .text = "" };
    if (!r) return;
    r->l = l;
    struct get_opts o = { .net = l->o.net, .root = l->o.root, .offline = l->o.offline, .progress = on_progress, .ctx = r };
    download_log_begin(&r->log, l->o.registry_path, job->repo);
    mb_status st = get_model(&o, job->repo, job->revision, &r->result, &err);
    download_log_end(&r->log, st, &r->result.numbers, l->o.root, &err);
    if (st == MB_OK) LOGI("hub", "%s is in the cache", job->repo);
    else LOGW("hub", "download of %s: %s", job->repo, err.text);
    mb_free(r);
    pthread_mutex_lock(&l->lock);
    l->t_list_ns = l->t_models_ns = 0; /* the next /library looks anew (REG-136) */
    pthread_mutex_unlock(&l->lock);
}

static void *work(void *arg)
{
    struct library *l = arg;
    threads_set_name("hub-get");
    threads_lower_priority();
    pthread_mutex_lock(&l->work_lock);
    for (;;) {
        while (l->n_jobs == 0 && !l->quit) pthread_cond_wait(&l->work_cond, &l->work_lock);
        if (l->quit) break;
        struct library_job job = l->jobs[0];
        l->busy = true;
        atomic_store(&l->cancel, false);
        pthread_mutex_unlock(&l->work_lock);
        run_job(l, &job);
        pthread_mutex_lock(&l->work_lock);
        l->busy = false;
        memmove(l->jobs, l->jobs + 1, sizeof l->jobs[0] * (size_t)--l->n_jobs);
    }
    pthread_mutex_unlock(&l->work_lock);
    return NULL;
}

static int find_job(const struct library *l, const char *repo)
{
    for (int i = 0; i < l->n_jobs; i++)
        if (strcmp(l->jobs[i].repo, repo) == 0) return i;
    return -1;
}

static mb_status add_job(struct library *l, const char *repo, const char *revision, mb_error *err)
{
    if (find_job(l, repo) >= 0) return mb_fail(err, MB_BUSY, "another download of %s is in progress", repo);
    if (l->n_jobs == LIBRARY_QUEUE) return mb_fail(err, MB_BUSY, "%d downloads wait already: try again later", LIBRARY_QUEUE);
    if (!l->started && pthread_create(&l->thread, NULL, work, l) != 0)
        return mb_fail(err, MB_NO_MEMORY, "cannot start a thread for the download");
    l->started = true;
    struct library_job *j = &l->jobs[l->n_jobs++];
    strcpy(j->repo, repo);
    strcpy(j->revision, revision);
    pthread_cond_signal(&l->work_cond);
    return MB_OK;
}

mb_status library_get(struct library *l, const char *repo, const char *revision, mb_error *err)
{
    if (!name_is_repo(repo)) return mb_fail_at(err, MB_INVALID, "repo_id", "repo_id must be a name of the form owner/name");
    if (!name_is_revision(revision)) return mb_fail_at(err, MB_INVALID, "revision", "revision must be a branch, a tag or a commit");
    pthread_mutex_lock(&l->work_lock);
    mb_status st = add_job(l, repo, revision, err);
    pthread_mutex_unlock(&l->work_lock);
    return st;
}

mb_status library_cancel(struct library *l, const char *repo, mb_error *err)
{
    pthread_mutex_lock(&l->work_lock);
    int i = find_job(l, repo);
    if (i == 0 && l->busy) atomic_store(&l->cancel, true);
    else if (i >= 0) memmove(l->jobs + i, l->jobs + i + 1, sizeof l->jobs[0] * (size_t)(--l->n_jobs - i));
    pthread_mutex_unlock(&l->work_lock);
    return i >= 0 ? MB_OK : mb_fail(err, MB_NOT_FOUND, "this server is not downloading that model");
}

void library_stop(struct library *l)
{
    pthread_mutex_lock(&l->work_lock);
    l->quit = true;
    atomic_store(&l->cancel, true);
    pthread_cond_signal(&l->work_cond);
    bool started = l->started;
    pthread_mutex_unlock(&l->work_lock);
    if (started) pthread_join(l->thread, NULL);
}
