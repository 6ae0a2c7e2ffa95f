/* cores.h: the processors this process may compute on, as pool_open uses them (base/threads.c) and a test reads them from
 * a folder of its own. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

#include <stdint.h>

#include "base/status.h"

struct cores {
    int n_cpus;        /* length of the arrays below */
    bool *usable;      /* [n_cpus] in the affinity mask, and fast where the processor has cores of two speeds */
    int16_t *node;     /* [n_cpus] memory node */
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

/* The node that compute thread i of n belongs to: nodes are filled in order, by their number of usable CPUs. -1: none. */
int cores_node_of_thread(const struct cores *c, int i_thread, int n_threads);
/* Bind the calling thread to the usable CPUs of a node. Does nothing where all CPUs are alike: then the system may move
 * threads away from a core that somebody else keeps busy. */
void cores_bind(const struct cores *c, int node);

#endif
