/* fill.c (avx2): the level's part of the table; what it does not bring stays portable. */
#include "ops/cpu/avx2/avx2_int.h"

void cpu_fill_avx2(struct cpu_kernels *t)
{
    t->level = "avx2";
    avx2_fill_quantise(t);
    avx2_fill_matmul(t);
    avx2_fill_matmul_f32(t);
    avx2_fill_rows(t);
    avx2_fill_delta(t);
    avx2_fill_lora(t);
    avx2_fill_attention(t);
    avx2_fill_pages(t);
    avx2_fill_vocab(t);
}
