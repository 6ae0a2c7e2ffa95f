/* fill.c (avx512): the level's part of the table. */
#include "ops/cpu/kernels.h"

void cpu_fill_avx512(struct cpu_kernels *t)
{
    t->level = "avx512";
}
