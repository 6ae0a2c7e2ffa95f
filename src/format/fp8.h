/* fp8.h: block-scaled float8 weights as DeepSeek-V3, GLM and Qwen publish them: MODULE.weight [n][k] of type F8_E4M3, and beside it
 * MODULE.weight_scale_inv, a float for each block of 128 x 128, the last ones cut at the edge. A weight is its value times its block's
 * float, rounded to bfloat16: what mlx-lm makes of it when it loads.
 */
#ifndef FORMAT_FP8_H
#define FORMAT_FP8_H

#include "format/safetensors.h"

#define FP8_BLOCK 128

static inline int64_t fp8_blocks(int64_t n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

/* The scales beside a float8 matrix: MB_NOT_FOUND, MB_BAD_FORMAT (names tensor, found, wanted). module: without ".weight". */
mb_status fp8_scales_find(const struct checkpoint *c, const char *module, const struct tensor_view *w, const struct tensor_view **out,
                          mb_error *err);
/* Element i of row r of the whole matrix, n_in wide: row is that row's first byte, scales of type dt those of the matrix. */
float fp8_value(const uint8_t *row, const void *scales, enum dtype dt, int64_t r, int64_t i, int64_t n_in);

#endif
