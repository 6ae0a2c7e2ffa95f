/* gc_int.h: one repository under the collector, shared by gc.c (deciding and doing), gc_repo.c (looking) and
 * gc_packed.c (packed weights, which belong to no repository). */
#ifndef HUB_GC_INT_H
#define HUB_GC_INT_H

#include "hub/gc.h"

struct gc_work {
    const struct gc_opts *o;
    struct gc_plan *plan;
    struct gc_repo *repo;        /* being filled */
    const char *folder;          /* "models--..." */
    char dir[PATH_MAX];
    json_t *in_use;              /* digests, of all repositories */
    json_t *refs;                /* commit -> true, named by a file of refs/ */
    json_t *snapshots;           /* commit -> {file: digest or ""} */
    bool refs_broken;            /* no refs, or one names what is not there */
    bool downloading;
};

/* Fill refs, snapshots, refs_broken, downloading. */
mb_status gc_look(struct gc_work *w, mb_error *err);
/* Why a snapshot may not go however forced, or NULL: its marker is held, or one of its blobs is mapped or open. */
const char *gc_in_use(const struct gc_work *w, const char *commit);
/* A report for a repository (or for what is none): between begin and end items and warnings can be added; end keeps it when it says
 * something. End follows begin also after a failure. */
mb_status gc_repo_begin(struct gc_work *w, const char *repo, mb_error *err);
void gc_repo_end(struct gc_work *w);
/* Packed weights, planned and removed. */
mb_status gc_run_packed(struct gc_work *w, mb_error *err);
/* Append to the repository's report. */
mb_status gc_add_item(struct gc_work *w, enum gc_kind kind, const char *sub, const char *name, uint64_t bytes, mb_error *err);
mb_status gc_warn(struct gc_work *w, mb_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
