/* clock.h: time. Monotonic nanoseconds for durations, Unix seconds for what people read. A fault build may shift both
 * (fault point "clock"). Nothing in here ever decides what a model computes. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include "base/status.h"

int64_t clock_now_ns(void);  /* monotonic */
int64_t clock_unix_s(void);
int64_t clock_unix_ms(void);
void clock_sleep_ms(int64_t ms);

#endif
