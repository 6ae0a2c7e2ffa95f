/* cores.c: how many compute threads are right: physical cores that this process may use.
 *
 * Three questions to the kernel: the affinity mask, the hyperthread siblings in /sys (siblings in the mask count
 * once), and the cgroup's CPU quota (v2 cpu.max at our group and every parent, or v1 cfs_quota_us). A machine that
 * answers none of them gets 1. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/threads.h"

enum { CPUS_MAX = 1 << 16 };

/* First line of a small file into text; false when it cannot be read. */
static bool read_line(const char *path, char *text, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(text, (int)cap, f) != NULL;
    fclose(f);
    return ok;
}

/* The lowest hyperthread of the core that holds this CPU; the CPU itself when /sys does not say. */
static int core_of(int cpu)
{
    char path[128], text[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_line(path, text, sizeof text)) return cpu;
    int first = atoi(text);
    return first >= 0 && first < CPUS_MAX ? first : cpu;
}

/* Affinity mask of this process, grown until the kernel's fits. Release with CPU_FREE. */
static cpu_set_t *affinity_get(int *n_cpus)
{
    for (*n_cpus = 1024; *n_cpus <= CPUS_MAX; *n_cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)*n_cpus);
        if (!set) return NULL;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE((size_t)*n_cpus), set) == 0) return set;
        CPU_FREE(set);
        if (errno != EINVAL) return NULL;
    }
    return NULL;
}

static int cores_in_mask(void)
{
    int n_cpus, n_cores = 0;
    cpu_set_t *set = affinity_get(&n_cpus);
    bool *seen = mb_calloc(CPUS_MAX, sizeof *seen);
    if (set && seen) {
        for (int cpu = 0; cpu < n_cpus; cpu++) {
            if (!CPU_ISSET_S((size_t)cpu, CPU_ALLOC_SIZE((size_t)n_cpus), set)) continue;
            int core = core_of(cpu);
            if (!seen[core]) n_cores++;
            seen[core] = true;
        }
    }
    if (set) CPU_FREE(set);
    mb_free(seen);
    return n_cores;
}

/* Whole CPUs of "quota period"; INT_MAX-like large number for "max". At least 1. */
static int quota_cpus(const char *text)
{
    long long quota, period = 100000;
    if (sscanf(text, "%lld %lld", &quota, &period) < 1 || quota <= 0 || period <= 0) return CPUS_MAX;
    long long n = quota / period;
    return n < 1 ? 1 : n > CPUS_MAX ? CPUS_MAX : (int)n;
}

/* Smallest cpu.max from the group up to the root of the mounted tree. */
static int quota_v2(char *group)
{
    int least = CPUS_MAX;
    for (;;) {
        char path[4200], text[64];
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        if (read_line(path, text, sizeof text)) {
            int n = quota_cpus(text);
            if (n < least) least = n;
        }
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

static int quota_v1(void)
{
    char quota[64], period[64], both[130];
    if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota)) return CPUS_MAX;
    if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period)) return CPUS_MAX;
    snprintf(both, sizeof both, "%lld %lld", atoll(quota), atoll(period));
    return quota_cpus(both);
}

static int cgroup_cpus(void)
{
    int least = quota_v1();
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return least;
    char line[4100];
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::", 3) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        int n = quota_v2(line + 3);
        if (n < least) least = n;
    }
    fclose(f);
    return least;
}

int threads_default_count(void)
{
    int n_cores = cores_in_mask(), n_quota = cgroup_cpus();
    int n = n_cores < n_quota ? n_cores : n_quota;
    return n < 1 ? 1 : n;
}
