#include "ops/cpu/avx2/avx2_int.h"
void avx2_fill_rows(struct cpu_kernels *t) { (void)t; }
