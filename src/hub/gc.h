/* gc.h: what can go from the cache, and letting it go. One walk of a repository serves `gc`, `rm` and the estimate that `get`
 * prints; planning and doing are the same code, so that what --dry-run lists is what is freed.
 *
 * Rails: a snapshot that a file of refs/ names stays; so does one with a file that no kept snapshot has (unless forced); one that a
 * program uses (a server's marker, a mapped blob) stays always; a repository that something is downloading into is left alone; so
 * is one without refs, or whose refs name a missing snapshot; blobs go last, and only those that no link of a surviving snapshot
 * names; files with unknown names stay. Packed weights are made again by the next start that wants them and go before all else,
 * unless a program has them open. Of a repository left alone for its refs only abandoned partials go (B-124).
 */
#ifndef HUB_GC_H
#define HUB_GC_H

#include "base/mem.h"
#include "hub/layout.h"

enum gc_kind { GC_SNAPSHOT = 0, GC_BLOB, GC_PARTIAL, GC_REPO, GC_LEFTOVER, GC_PACKED };

struct gc_item {
    enum gc_kind kind;
    const char *path;            /* relative to the root; absolute: packed weights */
    uint64_t bytes;              /* that removing it frees: links count nothing, each blob once */
    bool removed;
};

struct gc_repo {
    const char *repo;
    int32_t n_kept, n_pruned, n_skipped; /* snapshots (REG-101) */
    uint64_t bytes;
    struct gc_item *items;
    size_t n_items, cap_items;
    const char **warnings;
    size_t n_warnings, cap_warnings;
};

struct gc_opts {
    const char *root;
    const char *repo;            /* NULL: all */
    const char *revision;        /* rm: only this revision (NULL: the whole repository) */
    bool rm;                     /* remove repo (a name must be given), instead of collecting garbage */
    bool execute;                /* else nothing is touched */
    bool force;
    const char *packed_dirs[2];  /* folders of packed weights (hub/packed.h), looked at when repo is NULL; NULL: none */
};

struct gc_plan {
    struct gc_repo *repos;       /* those with something to say, sorted by name */
    size_t n_repos, cap_repos;
    uint64_t bytes;              /* of all */
    struct arena arena;
};

/* rm: MB_NOT_FOUND (no such repository or revision), MB_BUSY (in use, or a download runs). MB_IO: something could not be removed;
 * what was is marked in the plan. gc_plan_free after success and failure alike. */
mb_status gc_run(const struct gc_opts *o, struct gc_plan *plan, mb_error *err);
void gc_plan_free(struct gc_plan *plan);
const char *gc_kind_name(enum gc_kind k);

#endif
