/* engine_process.h: an engine in a process of its own: starting it, its ends, and when it may be started again.
 *
 * The child gets a connected socket to us as descriptor 3 (ENGINE_HOST_FD; response_wire.h is what is said on it), standard input
 * from /dev/null, our standard output and error, our environment, and no other descriptor. It is in a process group of its own, so
 * that a terminal's signals reach it through us alone. It dies with us: while it loads the kernel sends it SIGTERM when the thread that
 * started it ends (so one thread starts all, and lives as long as the process); once it serves it stops when the socket's other end is gone.
 */
#ifndef HOST_ENGINE_PROCESS_H
#define HOST_ENGINE_PROCESS_H

#include <sys/types.h>

#include "base/status.h"

#define ENGINE_HOST_FD 3

struct engine_process {
    pid_t pid;      /* 0: none */
    int host_fd;    /* our end, non-blocking, owned; -1: none */
};

/* exe: a path; argv: NULL-terminated. MB_IO. A child that cannot be executed ends with status 127. */
mb_status engine_process_start(struct engine_process *p, const char *exe, const char *const *argv, mb_error *err);
/* Has it ended? Then *status is as waitpid says it, and p holds no process any more. Never blocks. */
bool engine_process_reap(struct engine_process *p, int *status);

/* In the child: has the process at the other end of host_fd gone? */
bool engine_host_gone(int host_fd);

/* --- restarts (API-367): at most three in 60 s; five seconds before one of a child that lived less than ten --- */
enum { RESTARTS_MAX = 3 };
struct restarts {
    int64_t at_ns[RESTARTS_MAX]; /* the last ones, in turn */
    int32_t n;                   /* all */
};
/* A child that was started and died at these times: when may it be started again? Counts that as a restart. < 0: it may not. */
int64_t restarts_next(struct restarts *r, int64_t started_ns, int64_t died_ns);

#endif
