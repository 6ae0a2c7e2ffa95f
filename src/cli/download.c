/* download.c: a get that a person watches (watch.c), a row among the downloads of all processes; after a signal partials stay and
 * locks go. */
#include <string.h>

#include "cli/store.h"
#include "hub/downloads.h"

struct download {
    struct watch watch;
    struct download_log log;
};

static bool on_progress(void *ctx, const struct fetch_progress *p)
{
    struct download *d = ctx;
    return watch_show(&d->watch, "", p, download_log_progress(&d->log, p));
}

mb_status download_model(const struct flags *f, const struct store *s, const char *repo, const char *revision,
                         const json_t *locked, struct get_result *r, mb_error *err)
{
    static struct download d; /* large */
    memset(&d, 0, sizeof d);
    struct get_opts o = { .net = s->net, .root = s->root, .offline = s->offline, .all_files = f->all.b, .verify = f->verify.b,
                          .locked = locked, .parallel = (int)f->parallel.i, .progress = on_progress, .ctx = &d };
    watch_begin(&d.watch, repo, f->quiet.b);
    if (!s->offline) download_log_begin(&d.log, s->registry_path, repo);
    mb_status st = get_model(&o, repo, revision, r, err);
    download_log_end(&d.log, st, &r->numbers, s->root, err);
    watch_end(&d.watch);
    return st;
}
