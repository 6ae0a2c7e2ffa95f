/* fetch.h: all files of a listing into the cache: several at once, each one stream that is hashed as it comes; what is there is
 * not fetched, what is half there is continued. One thread, libcurl's multi interface. */
#ifndef HUB_FETCH_H
#define HUB_FETCH_H

#include "hub/listing.h"
#include "hub/net.h"

#define FETCH_PARALLEL 4

struct fetch_progress {
    const char *current;         /* a file on its way, NULL = none */
    uint64_t done_bytes;         /* on disk, what was there before included */
    uint64_t total_bytes;
    uint64_t received_bytes;     /* over the network in this run */
    size_t files_done, files_total;
};
/* Called a few times a second and after each file; false cancels. */
typedef bool (*fetch_progress_fn)(void *ctx, const struct fetch_progress *p);

struct fetch_opts {
    struct net_opts net;
    const char *repo, *repo_dir; /* borrowed */
    const struct hub_listing *list;
    int parallel;                /* 0 = FETCH_PARALLEL */
    fetch_progress_fn progress;  /* may be NULL */
    void *ctx;
};

/* MB_OK: every file is a checked blob with its link in snapshots/<commit>. The first failure ends all transfers; partials stay
 * (but for a file whose hash was wrong). *p holds the last numbers in either case. */
mb_status fetch_all(const struct fetch_opts *o, struct fetch_progress *p, mb_error *err);

#endif
