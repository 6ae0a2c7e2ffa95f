/* fill.c: the portable level's one entry, a complete table. Plain C, one rounding per written operation: this folder is
 * the definition that every other level must equal bit for bit. */
#include "ops/cpu/portable/portable_int.h"

void PORTABLE(cpu_fill_portable)(struct cpu_kernels *t)
{
    t->level = "portable";
    PORTABLE(portable_fill_quantise)(t);
    PORTABLE(portable_fill_matmul)(t);
    PORTABLE(portable_fill_rows)(t);
    PORTABLE(portable_fill_delta)(t);
    PORTABLE(portable_fill_lora)(t);
    PORTABLE(portable_fill_attention)(t);
    PORTABLE(portable_fill_vocab)(t);
}
