/* downloads.h: a download as other processes see it: a row of the registry that follows its progress, and the rate over the last
 * seconds. The command line and the server use it alike (REG-142..146, API-293). */
#ifndef HUB_DOWNLOADS_H
#define HUB_DOWNLOADS_H

#include "hub/get.h"
#include "hub/registry.h"

#define RATE_SAMPLES 64

struct download_log {
    struct registry *registry;   /* NULL: it is not recorded; downloads work without */
    struct download_row row;
    int64_t t_written_ns;
    struct { int64_t t_ns; uint64_t bytes; } samples[RATE_SAMPLES];
    int n_samples;
};

/* The row is there when this returns. Never fails: without a registry nothing is recorded. */
void download_log_begin(struct download_log *l, const char *registry_path, const char *repo);
/* Bytes a second over about 5 s (REG-145); the row follows once a second. */
int64_t download_log_progress(struct download_log *l, const struct fetch_progress *p);
/* The rate by itself: so many bytes had come at `now`, in nanoseconds of any clock; the last seconds are remembered in l. */
int64_t download_rate_add(struct download_log *l, int64_t now, uint64_t bytes);
/* The end: the row says how, the registry looks at the cache when something was fetched. Gives the registry back. */
void download_log_end(struct download_log *l, mb_status st, const struct fetch_progress *p, const char *root, const mb_error *err);

#endif
