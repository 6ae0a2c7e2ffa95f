/* trellis.h: trellis-coded weights, "mode": "trellis" (docs/trellis.md has the layout and where it comes from).
 *
 * A row is one bit stream of K bits a weight (K = 2, 3, 4), as affine codes of K bits lie (quant.h), in spans of 256 weights (the last
 * may be shorter). A weight's state is the 12 bits of its span's stream that end with its own K bits, the stream being a ring; its
 * code is a hash of the state, 0..255. Value: scale * (code - 128), a scale for each group of 32, 64 or 128 weights.
 * So a row becomes 8-bit affine codes with bias -128 * scale, exactly: that is how a model computes with it.
 */
#ifndef FORMAT_TRELLIS_H
#define FORMAT_TRELLIS_H

#include <math.h>

#include "format/quant.h"

#define TRELLIS_STATE_BITS 12
#define TRELLIS_SPAN 256

/* The code of a state: bytes of the hash summed, (sum + 2) / 4: near a normal distribution of mean 127.9 and deviation 37. */
static inline uint8_t trellis_code(uint32_t state)
{
    uint32_t x = state * 0x2545f491u + 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x ^= x >> 15;
    return (uint8_t)(((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24) + 2) >> 2);
}

/* As the packed form computes it: one rounding, and +0 for code 128 whatever the sign of the scale. */
static inline float trellis_value(uint8_t code, float scale)
{
    return fmaf((float)code, scale, -128.0f * scale);
}

/* Is there such a scheme? */
static inline bool trellis_spec_known(int bits, int group)
{
    return bits >= 2 && bits <= 4 && (group == 32 || group == 64 || group == 128);
}

/* Codes of the weights [first, first + n) of a row of n_in, which may lie at any address. n_in is whole groups of 32. */
void trellis_codes(const void *row, int bits, int64_t n_in, int64_t first, int64_t n, uint8_t *out);
/* n_rows rows as floats, row-major. w: quant_row_words(s, n_in) words a row; scales: n_in / group a row, of type dt (F32, F16, BF16). */
void trellis_dequantise(const struct quant_spec *s, const void *w, const void *scales, enum dtype dt, int64_t n_rows, int64_t n_in,
                        float *out);

/* --- the search --- */

struct trellis_search; /* work space of one thread, about 320 KB */
struct trellis_search *trellis_search_open(int bits); /* NULL: no memory */
void trellis_search_close(struct trellis_search *t);  /* NULL is allowed */
/* One row to codes and scales, as quantise_row (quantise.h): the scales are chosen first, from the spread and the largest weight of each
 * group, then the path through the trellis with the least sum of squared errors, span by span. A function of the row alone. False when
 * the row holds NaN or infinity, or a scale is too large for dt. */
bool trellis_quantise_row(struct trellis_search *t, const struct quant_spec *s, const float *row, int64_t n_in, enum dtype dt,
                          uint8_t *codes, uint8_t *scales);

#endif
