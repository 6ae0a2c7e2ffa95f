/* cores.h: the processors this process may compute on, as pool_open uses them (base/threads.c) and a test reads them from
 * a folder of its own. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

#include <sched.h>
#include <stdint.h>

#include "base/status.h"

/* Cores are numbered node after node. */
struct core_place {
    int32_t at;                   /* 0 .. n_cores - 1 */
    int32_t node_first, node_end; /* those of its node */
};

struct cores {
    int n_cpus;        /* length of the arrays below */
    bool *usable;      /* [n_cpus] in the affinity mask, and fast where the processor has cores of two speeds */
    int16_t *node;     /* [n_cpus] memory node */
    struct core_place *place; /* [n_cpus] of a usable one: its core's among the usable cores */
    int n_cores;       /* physical cores among the usable */
    int n_nodes;       /* memory nodes among the usable */
    bool two_speeds;   /* slow cores were left out */
};

/* Read the tree under `sys` ("/sys") for the CPUs that are set in allowed[n_cpus]. What the tree does not say counts as
 * one core a CPU, one node, one speed. MB_NO_MEMORY. Release with cores_free. */
mb_status cores_read(struct cores *out, const char *sys, const bool *allowed, int n_cpus, mb_error *err);
/* The same for this process and the real /sys. */
mb_status cores_read_own(struct cores *out, mb_error *err);
void cores_free(struct cores *c);

/* The node that compute thread i of n belongs to: nodes are filled in order, a thread a core while there are as many, else by their
 * number of usable CPUs. -1: none. */
int cores_node_of_thread(const struct cores *c, int i_thread, int n_threads);
/* Bind the calling thread to the usable CPUs of a node. Does nothing where all CPUs are alike: then the system may move
 * threads away from a core that somebody else keeps busy. */
void cores_bind(const struct cores *c, int node);

/* Is this CPU of the cores that are thread i's alone, of n threads? These are a run of places of its node: what the threads of a node
 * have is all of it. None where n > n_cores. */
bool cores_is_own(const struct cores *c, int cpu, int i_thread, int n_threads);
struct cores_kept {
    cpu_set_t before; /* what the thread might use; all CPUs: whatever its cpuset has, then as now */
    cpu_set_t own;    /* what it keeps to */
};
/* Keep the calling thread to its own of the CPUs that it may use now. false, and nothing has changed: it has none of its own
 * there, or a machine too large for a cpu_set_t. */
bool cores_keep_own(const struct cores *c, int i_thread, int n_threads, struct cores_kept *kept);
/* Back to all that it might use, unless somebody else (taskset, a cpuset) has said meanwhile where it may run. */
void cores_leave_own(const struct cores_kept *kept);

#endif
