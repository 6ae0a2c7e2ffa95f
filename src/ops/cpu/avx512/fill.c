/* fill.c (avx512): the level's part of the table; vocabulary and codes stay with the AVX2 code, which is bound by memory or small there. */
#include "ops/cpu/avx512/avx512_int.h"

void cpu_fill_avx512(struct cpu_kernels *t)
{
    t->level = "avx512";
    avx512_fill_quantise(t);
    avx512_fill_rows(t);
    avx512_fill_matmul(t);
    avx512_fill_matmul_f32(t);
    avx512_fill_lora(t);
    avx512_fill_delta(t);
    avx512_fill_attention(t);
    avx512_fill_pages(t);
    avx512_fill_vocab(t);
}
