/* lock.h: locks between processes that outlive no holder.
 *
 * A blob's lock is a file that is made only where there is none (REG-038); it holds "<pid> <unix seconds> <start of the process>"
 * (REG-039) and is flock()ed by its holder as long as it lives. It counts as held when somebody has the flock, or when the
 * process it names runs (with the same start, so that a reused number does not count) and the file is younger than an hour; else
 * it is taken over (REG-040, REG-041). Taking over happens under the flock, so two cannot do it at once.
 * A marker is a file in <hub>/.locks/<repository>: shared by those who use a thing, exclusive for who wants to change it.
 * Threads: a lock belongs to its holder; two threads of one process exclude each other like two processes.
 */
#ifndef HUB_LOCK_H
#define HUB_LOCK_H

#include <limits.h>

#include "base/status.h"

struct lock {
    int fd;          /* -1: not held */
    char path[PATH_MAX];
    bool keep_file;  /* markers stay: removing one would cut others off from it */
};

/* Never waits. MB_BUSY "another download of ... is in progress" (what: for the text), MB_IO. */
mb_status lock_take(struct lock *l, const char *path, const char *what, mb_error *err);
/* Say that the holder is still at work; called now and then during long work (the hour above). */
void lock_refresh(struct lock *l);
void lock_release(struct lock *l);
/* Is somebody holding the lock file at path? Never takes it over. */
bool lock_is_held(const char *path);

/* A marker; shared or exclusive, never waits. MB_BUSY. With `shared` a folder that cannot be written is no error: *l is then
 * not held. */
mb_status marker_take(struct lock *l, const char *path, bool shared, mb_error *err);
/* Has anybody this marker, shared or exclusive? */
bool marker_is_held(const char *path);

/* Start of a running process in clock ticks since boot, 0 = there is none. */
uint64_t process_start(long pid);

#endif
