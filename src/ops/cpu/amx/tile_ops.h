/* tile_ops.h: the operations that amx/matmul_tiles.h, strips.h and matmul_few.h are written over. tiles.h brings them as instructions,
 * tiles_c.h in plain C; a change of one is a change of the other, and of this list.
 *
 * A tile is up to 16 rows of up to 64 bytes; tiles are named by literals, 0 to 7.
 *   tile_config(shapes)         rows and bytes a row of all tiles; tile_release() ends that
 *   tile_zero(t)
 *   tile_load(t, p, stride)     its rows from p, stride bytes apart
 *   tile_store(t, p)            its rows to p, 64 bytes apart
 *   tile_dp(sum, x, codes)      sum[i][n] += the dot products of the signed bytes of row i of x with the unsigned bytes of column
 *                               n of codes, where row j of codes holds bytes 4j .. 4j+3 of 16 columns side by side: the layout
 *                               of packed weights (kernels.h), once 4-bit codes are spread to bytes
 * `lanes` is 16 floats:
 *   lanes_zero()
 *   lanes_load(p, n_out), lanes_store(p, n_out, v)   of the 16 floats at p the first n_out exist
 *   lanes_scales(dt, p, &s, &b) scales and biases of one (block, group)
 *   lanes_sums(two, hi, lo)     (float)(256 * hi + lo), or (float)hi
 *   lanes_floats(p)             16 floats, aligned
 *   lanes_group_add(acc, s, b, pair, isum)   acc = fma(s * a, isum, acc); acc = fma(b, xs, acc); pair = { a, xs }
 *   lanes_spread(p, out)        16 words of eight 4-bit codes to two vectors of bytes: even elements, then odd ones
 */
#ifndef OPS_CPU_AMX_TILE_OPS_H
#define OPS_CPU_AMX_TILE_OPS_H

#include <stdint.h>

/* The 64 bytes that LDTILECFG reads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#endif
