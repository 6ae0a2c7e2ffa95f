/* quantise.h: float rows to MLX's affine codes, bit for bit as mlx.core.quantize makes them on a CPU.
 *
 * For each group of a row, in float32, n = 2^bits - 1, rint to nearest even:
 *   scale = max((max - min) / n, 1e-7); edge = min when |min| > |max|, else edge = max and scale = -scale
 *   q0 = rint(edge / scale); q0 != 0: scale = edge / q0, bias = edge; else bias = 0
 *   code = clamp(rint((w - bias) / scale), 0, n)
 * and only then are scale and bias rounded to the type of the weights. Golden: tests/golden/quant_affine.
 */
#ifndef FORMAT_QUANTISE_H
#define FORMAT_QUANTISE_H

#include "format/quant.h"

/* One row: row [n_in] floats whose values are already those of type dt; n_in is a multiple of the group.
 *   codes  quant_row_words(s, n_in) little-endian words, scales and biases n_in / group_size elements of type dt
 *          (F32, F16, BF16); all overwritten, at any address.
 * False when a scale is not finite: the row holds NaN, infinity, or numbers too large for dt. Any thread. */
bool quantise_row(const struct quant_spec *s, const float *row, int64_t n_in, enum dtype dt, uint8_t *codes,
                  uint8_t *scales, uint8_t *biases);
/* n floats to elements of type dt at any address, round to nearest even; false when one is not finite there. */
bool floats_put(const float *from, int64_t n, enum dtype dt, uint8_t *to);
/* The same back into floats in place: what is left of each number in type dt. */
void floats_round(float *v, int64_t n, enum dtype dt);

#endif
