/* cores.c: how many compute threads are right, and where they may run: the physical cores of this process.
 *
 * Questions to the kernel: the affinity mask; under /sys the hyperthread siblings (siblings in the mask count once), the
 * memory nodes, and which cores are fast where a processor has two kinds (Intel: devices/cpu_core; others: cpu_capacity);
 * and the cgroup's CPU quota (v2 cpu.max at our group and every parent, or v1 cfs_quota_us). A machine that answers none
 * of them gets 1.
 * Slow cores are left out: in a region of equal tiles they would finish last, and a decoded token, which is bound by
 * memory, gains nothing from them. */
#include "base/cores.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/threads.h"

enum { CPUS_MAX = 1 << 16, NODES_MAX = 1024 };

/* First line of a small file into text; false when it cannot be read. */
static bool read_line(const char *path, char *text, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(text, (int)cap, f) != NULL;
    fclose(f);
    return ok;
}

/* --- what /sys says --- */

/* Call visit for each number of a list like "0-3,8"; numbers >= n are skipped. */
static void list_visit(const char *text, int n, void (*visit)(struct cores *c, int cpu, int value), struct cores *c, int value)
{
    while (*text) {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text) return;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long i = first < 0 ? 0 : first; i <= last && i < n; i++) visit(c, (int)i, value);
        text = *end == ',' ? end + 1 : end;
        if (*end != ',') return;
    }
}

static void set_node(struct cores *c, int cpu, int value) { c->node[cpu] = (int16_t)value; }

static void set_slow(struct cores *c, int cpu, int value)
{
    (void)value;
    c->two_speeds = c->two_speeds || c->usable[cpu];
    c->usable[cpu] = false;
}

static void read_nodes(struct cores *c, const char *sys)
{
    char path[512], text[4096];
    for (int node = 0; node < NODES_MAX; node++) {
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sys, node);
        if (read_line(path, text, sizeof text)) list_visit(text, c->n_cpus, set_node, c, node);
        else if (node > 0 && node % 64 == 0) return; /* numbers have gaps, but not wide ones */
    }
}

static int capacity_of(const char *sys, int cpu)
{
    char path[512], text[64];
    snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/cpu_capacity", sys, cpu);
    return read_line(path, text, sizeof text) ? atoi(text) : 0;
}

/* Leave the slow kind out, unless the mask holds nothing else. */
static void drop_slow(struct cores *c, const char *sys, const bool *allowed)
{
    char path[512], text[4096];
    int most = 0, n_left = 0;
    snprintf(path, sizeof path, "%s/devices/cpu_atom/cpus", sys);
    if (read_line(path, text, sizeof text)) {
        list_visit(text, c->n_cpus, set_slow, c, 0);
    } else {
        for (int i = 0; i < c->n_cpus; i++)
            if (allowed[i] && capacity_of(sys, i) > most) most = capacity_of(sys, i);
        for (int i = 0; i < c->n_cpus && most > 0; i++)
            if (allowed[i] && capacity_of(sys, i) * 4 < most * 3) set_slow(c, i, 0);
    }
    for (int i = 0; i < c->n_cpus; i++) n_left += c->usable[i];
    if (n_left > 0) return;
    memcpy(c->usable, allowed, (size_t)c->n_cpus * sizeof *allowed);
    c->two_speeds = false;
}

/* The lowest hyperthread of the core that holds this CPU; the CPU itself when /sys does not say. */
static int core_of(const char *sys, int cpu, int n_cpus)
{
    char path[512], text[256];
    snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", sys, cpu);
    if (!read_line(path, text, sizeof text)) return cpu;
    int first = atoi(text);
    return first >= 0 && first < n_cpus ? first : cpu;
}

static mb_status count(struct cores *c, const char *sys, mb_error *err)
{
    int32_t *place = mb_calloc((size_t)c->n_cpus + 1, sizeof *place); /* by the core's lowest CPU: 0 not met yet, else 1 + its place */
    if (!place) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int node = 0; node < NODES_MAX; node++) {
        int before = c->n_cores;
        for (int i = 0; i < c->n_cpus; i++) {
            if (!c->usable[i] || c->node[i] != node) continue;
            int core = core_of(sys, i, c->n_cpus);
            if (place[core] == 0) place[core] = ++c->n_cores;
            c->place[i] = (struct core_place){ place[core] - 1, before, 0 };
        }
        for (int i = 0; i < c->n_cpus; i++)
            if (c->usable[i] && c->node[i] == node) c->place[i].node_end = c->n_cores;
        c->n_nodes += c->n_cores > before;
    }
    mb_free(place);
    return MB_OK;
}

mb_status cores_read(struct cores *out, const char *sys, const bool *allowed, int n_cpus, mb_error *err)
{
    memset(out, 0, sizeof *out);
    out->n_cpus = n_cpus;
    out->usable = mb_calloc((size_t)n_cpus + 1, sizeof *out->usable);
    out->node = mb_calloc((size_t)n_cpus + 1, sizeof *out->node);
    out->place = mb_calloc((size_t)n_cpus + 1, sizeof *out->place);
    mb_status st = MB_OK;
    if (!out->usable || !out->node || !out->place) st = mb_fail(err, MB_NO_MEMORY, "out of memory");
    if (st == MB_OK) {
        memcpy(out->usable, allowed, (size_t)n_cpus * sizeof *allowed);
        read_nodes(out, sys);
        drop_slow(out, sys, allowed);
        st = count(out, sys, err);
    }
    if (st != MB_OK) cores_free(out);
    return st;
}

void cores_free(struct cores *c)
{
    mb_free(c->usable);
    mb_free(c->node);
    mb_free(c->place);
    memset(c, 0, sizeof *c);
}

/* --- this process --- */

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

mb_status cores_read_own(struct cores *out, mb_error *err)
{
    int n_cpus = 0, n_used = 0;
    memset(out, 0, sizeof *out);
    cpu_set_t *set = affinity_get(&n_cpus);
    bool *allowed = mb_calloc((size_t)n_cpus + 1, sizeof *allowed);
    for (int i = 0; set && allowed && i < n_cpus; i++)
        if (CPU_ISSET_S((size_t)i, CPU_ALLOC_SIZE((size_t)n_cpus), set)) {
            allowed[i] = true;
            n_used = i + 1;
        }
    mb_status st = allowed ? cores_read(out, "/sys", allowed, n_used, err) : mb_fail(err, MB_NO_MEMORY, "out of memory");
    if (set) CPU_FREE(set);
    mb_free(allowed);
    return st;
}

int cores_node_of_thread(const struct cores *c, int i_thread, int n_threads)
{
    int64_t n_usable = 0, before = 0;
    if (n_threads <= c->n_cores) { /* the node of core number i_thread */
        for (int i = 0; i < c->n_cpus; i++)
            if (c->usable[i] && c->place[i].at == i_thread) return c->node[i];
        return -1;
    }
    for (int i = 0; i < c->n_cpus; i++) n_usable += c->usable[i];
    if (n_usable == 0) return -1;
    /* Position of the thread on the line of usable CPUs, nodes one after the other. */
    int64_t at = i_thread * n_usable / n_threads;
    for (int node = 0; node < NODES_MAX; node++) {
        int64_t here = 0;
        for (int i = 0; i < c->n_cpus; i++) here += c->usable[i] && c->node[i] == node;
        before += here;
        if (at < before) return node;
    }
    return -1;
}

void cores_bind(const struct cores *c, int node)
{
    if (c->n_nodes < 2 && !c->two_speeds) return;
    cpu_set_t *set = CPU_ALLOC((size_t)c->n_cpus);
    size_t bytes = CPU_ALLOC_SIZE((size_t)c->n_cpus);
    if (!set) return;
    CPU_ZERO_S(bytes, set);
    for (int i = 0; i < c->n_cpus; i++)
        if (c->usable[i] && (node < 0 || c->node[i] == node)) CPU_SET_S((size_t)i, bytes, set);
    if (CPU_COUNT_S(bytes, set) > 0) sched_setaffinity(0, bytes, set);
    CPU_FREE(set);
}

bool cores_is_own(const struct cores *c, int cpu, int i_thread, int n_threads)
{
    if (n_threads > c->n_cores || cpu >= c->n_cpus || !c->usable[cpu]) return false;
    const struct core_place *p = &c->place[cpu];
    int64_t n_here = (n_threads < p->node_end ? n_threads : p->node_end) - p->node_first; /* threads of the node */
    if (n_here <= 0) return false;
    return p->node_first + (p->at - p->node_first) * n_here / (p->node_end - p->node_first) == i_thread;
}

/* What brings the thread back to where it may run now, where that is all that its cpuset has: every CPU, so that it follows a
 * cpuset that grows. A list of those of today would stay with it. */
static void before_widen(cpu_set_t *before)
{
    cpu_set_t all, now;
    memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(0, sizeof all, &all) != 0) return;
    if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, before)) *before = all;
    else sched_setaffinity(0, sizeof *before, before);
}

bool cores_keep_own(const struct cores *c, int i_thread, int n_threads, struct cores_kept *kept)
{
    CPU_ZERO(&kept->own);
    if (sched_getaffinity(0, sizeof kept->before, &kept->before) != 0) return false;
    for (int i = 0; i < c->n_cpus && i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, &kept->before) && cores_is_own(c, i, i_thread, n_threads)) CPU_SET((size_t)i, &kept->own);
    if (CPU_COUNT(&kept->own) == 0) return false;
    before_widen(&kept->before);
    return sched_setaffinity(0, sizeof kept->own, &kept->own) == 0;
}

void cores_leave_own(const struct cores_kept *kept)
{
    cpu_set_t now;
    if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &kept->own)) sched_setaffinity(0, sizeof kept->before, &kept->before);
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
    struct cores c;
    int n = cores_read_own(&c, NULL) == MB_OK ? c.n_cores : 1, n_quota = cgroup_cpus();
    cores_free(&c);
    if (n_quota < n) n = n_quota;
    return n < 1 ? 1 : n;
}
