/* turns.c: see turns.h. */
#include "base/turns.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { TURN_NS = 500000, RESET_ON_FORK = 1 }; /* for sched_setattr */
enum { BEFORE_TICK_NS = 200000, TICK_MIN_NS = 1000000, TICK_MAX_NS = 10000000 };

struct attr { /* the kernel's sched_attr, in its first size; before Linux 6.12 a time slice counts for deadlines only */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

bool turns_take_short(void)
{
    struct attr attr = { .size = sizeof attr, .policy = SCHED_OTHER, .flags = RESET_ON_FORK, .runtime_ns = TURN_NS }, got = { .size = sizeof got };
    if (sched_getscheduler(0) != SCHED_OTHER) return false;
    attr.nice = getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
    if (syscall(SYS_sched_setattr, 0, &attr, 0) != 0 || syscall(SYS_sched_getattr, 0, &got, sizeof got, 0) != 0) return false;
    return got.runtime_ns == TURN_NS;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The first time to offer the core after now: none within sight where ticks are no longer known. */
static void turn_begin(struct turn *t, int64_t now)
{
    struct timespec tick;
    t->end_ns = t->tick_ns = INT64_MAX;
    if (clock_getres(CLOCK_MONOTONIC_COARSE, &tick) != 0 || tick.tv_nsec < TICK_MIN_NS || tick.tv_nsec > TICK_MAX_NS) return;
    int64_t before = tick.tv_nsec / 8 < BEFORE_TICK_NS ? tick.tv_nsec / 8 : BEFORE_TICK_NS;
    t->tick_ns = ((now + before) / tick.tv_nsec + 1) * tick.tv_nsec;
    t->end_ns = t->tick_ns - before;
}

bool turn_is_over(struct turn *t)
{
    int64_t now = now_ns();
    if (now < t->end_ns) return false;
    /* Behind the tick it is too late: the core was taken from the thread, or nobody wanted it. */
    if (now < t->tick_ns) return true;
    turn_begin(t, now);
    return false;
}

void turn_offer(struct turn *t)
{
    sched_yield();
    turn_begin(t, now_ns());
}
