/* clock.c: time from clock_gettime. The fault "clock" shifts what is read, never how long a sleep lasts. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

#include "base/fault.h"

int64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec + fault_value("clock", 0) * 1000000;
}

int64_t clock_unix_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 + fault_value("clock", 0);
}

int64_t clock_unix_s(void)
{
    return clock_unix_ms() / 1000;
}

void clock_sleep_ms(int64_t ms)
{
    if (ms <= 0) return;
    struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
}
