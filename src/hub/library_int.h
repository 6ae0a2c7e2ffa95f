/* library_int.h: the handle behind library.h. Two locks that are never held together: `lock` for the registry and the cached
 * answer, `work_lock` for the queue of downloads. */
#ifndef HUB_LIBRARY_INT_H
#define HUB_LIBRARY_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "hub/library.h"
#include "hub/registry.h"

#define LIBRARY_QUEUE 8

struct library_job {
    char repo[NAME_REPO_MAX], revision[NAME_REVISION_MAX];
};

struct library {
    struct library_options o;      /* strings in arena */
    struct arena arena;

    pthread_mutex_t lock;
    struct registry *registry;     /* NULL until asked for */
    struct model_list list;        /* canonical rows */
    struct buf models;             /* the last /library answer */
    int64_t t_list_ns, t_models_ns; /* when they were made; 0 = not */

    pthread_mutex_t work_lock;
    pthread_cond_t work_cond;
    struct library_job jobs[LIBRARY_QUEUE]; /* [0] is running while `busy` */
    int n_jobs;
    bool busy, quit, started;
    atomic_bool cancel;            /* the running one */
    pthread_t thread;
};

/* End the thread. */
void library_stop(struct library *l);

#endif
