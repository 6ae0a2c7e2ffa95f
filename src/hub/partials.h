/* partials.h: downloads that did not end: what they hold on disk (B-124). */
#ifndef HUB_PARTIALS_H
#define HUB_PARTIALS_H

#include "hub/layout.h"

struct partial {
    char repo[NAME_REPO_MAX];
    uint64_t bytes;              /* in *.incomplete */
    int32_t n_files;
    bool has_snapshot;           /* else nothing of it was finished yet */
    bool active;                 /* a download is running */
};

/* Calls fn for each repository below root that has partials. */
typedef mb_status (*partial_fn)(void *ctx, const struct partial *p, mb_error *err);
mb_status partials_each(const char *root, partial_fn fn, void *ctx, mb_error *err);

#endif
