/* levels.h: the CPU levels of this machine, for tests that run each. Include after cmocka.h and ops/cpu/kernels.h. */
#ifndef TESTS_LEVELS_H
#define TESTS_LEVELS_H

#include "ops/cpu/kernels.h"

/* Names of the levels this machine can run, lowest first, NULL-terminated. */
static inline const char **levels_of_machine(void)
{
    static const char *names[CPU_LEVEL_COUNT + 1];
    int n = 0;
    for (int l = CPU_PORTABLE; l <= (int)cpu_level_detect(); l++) names[n++] = cpu_level_name((enum cpu_level)l);
    names[n] = NULL;
    return names;
}

#endif
