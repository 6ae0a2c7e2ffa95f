/* fill.c (avx2): the level's part of the table. */
#include "ops/cpu/kernels.h"

void cpu_fill_avx2(struct cpu_kernels *t)
{
    t->level = "avx2";
}
