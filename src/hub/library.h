/* library.h: the models on disk as the server shows them: /library, the rest of /v1/models, /downloads; and downloads in the
 * background, one after another, by a thread of its own.
 * Threads: any; the registry is behind a lock.
 */
#ifndef HUB_LIBRARY_H
#define HUB_LIBRARY_H

#include "base/buf.h"
#include "hub/net.h"

struct library; /* opaque */

/* What somebody who knows engines says about a model. */
struct library_assessment {
    bool fits;
    int64_t max_safe_context;
    double predicted_decode_tps;    /* 0: not known */
};

struct library_options {            /* strings are copied */
    const char *root;               /* the hub's cache */
    const char *registry_path;
    const char *serving_path;       /* the loaded model's folder, or NULL */
    struct net_opts net;
    bool offline;
    bool (*is_known)(const char *model_type);                                 /* can this version run it? */
    bool (*assess)(void *ctx, const char *path, struct library_assessment *out); /* false: cannot be read; may be NULL */
    void *assess_ctx;
};

/* MB_NO_MEMORY. The registry is opened when it is first asked for. */
mb_status library_open(struct library **out, const struct library_options *o, mb_error *err);
/* Ends a running download (its partials stay) and waits for it. NULL is nothing. */
void library_close(struct library *l);

/* GET /library: {"models": [...]}, at most 30 s old (REG-132..139). */
mb_status library_models(struct library *l, struct buf *out, mb_error *err);
/* Entries of /v1/models behind the served one: whole models of known families (API-264); only_id: this one, or all (NULL). Each
 * begins with ", " unless `first`. */
mb_status library_servable(struct library *l, const char *served_id, const char *only_id, bool first, struct buf *out, mb_error *err);
/* The folder of a model that library_servable lists. MB_NOT_FOUND. */
mb_status library_path(struct library *l, const char *id, char *out, size_t cap, mb_error *err);
/* GET /downloads */
mb_status library_downloads(struct library *l, struct buf *out, mb_error *err);
/* POST /downloads: begin, or wait behind those that run. MB_INVALID (names), MB_BUSY (the same, or too many, wait already). */
mb_status library_get(struct library *l, const char *repo, const char *revision, mb_error *err);
/* MB_NOT_FOUND: no download of it runs or waits here. */
mb_status library_cancel(struct library *l, const char *repo, mb_error *err);

#endif
