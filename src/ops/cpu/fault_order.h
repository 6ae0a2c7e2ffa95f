/* fault_order.h: the fault point sum_order (base/fault.h). In a build with FAULTS=1 and the fault set, the quantised
 * matmuls of t are replaced by ones that add groups in another order when more than one row is computed: the class of
 * mistake that `prove` exists to find. Otherwise nothing happens. */
#ifndef OPS_CPU_FAULT_ORDER_H
#define OPS_CPU_FAULT_ORDER_H

#include "ops/cpu/kernels.h"

void fault_order_install(struct cpu_kernels *t);

#endif
