/* tile_ops.h: the operations that amx/matmul_tiles.h and matmul_bf16.h are written over. tiles.h brings them as instructions, tiles_c.h in plain
 * C; a change of one is a change of the other, and of this list.
 *
 * A tile is up to 16 rows of up to 64 bytes; tiles are named by literals (T_... of matmul_tiles.h, 0 to 7 in matmul_bf16.h).
 *   tile_config(shapes)         rows and bytes a row of all tiles; tile_release() ends that
 *   tile_zero(t)
 *   tile_load(t, p, stride)     its rows from p, stride bytes apart
 *   tile_store(t, p)            its rows to p, 64 bytes apart
 *   tile_dp(sum, x, codes)      sum[i][n] += the dot products of the signed bytes of row i of x with the unsigned bytes of column
 *                               n of codes, where row j of codes holds bytes 4j .. 4j+3 of 16 columns side by side: the layout
 *                               of packed weights (kernels.h), once 4-bit codes are spread to bytes
 *   tile_dp_bf16(sum, x, codes) the same of floats and bf16: sum[i][n] += the dot products of the pairs of row i of x with those of
 *                               column n of codes, where row j of codes holds pair j of 16 columns. Exact where it is used
 * `lanes` is 16 floats:
 *   lanes_zero()
 *   lanes_load(p, n_out), lanes_store(p, n_out, v)   of the 16 floats at p the first n_out exist
 *   lanes_scales(dt, p, &s, &b) scales and biases of one (block, group)
 *   lanes_sums(two, hi, lo)     (float)(256 * hi + lo), or (float)hi
 *   lanes_floats(p)             16 floats, aligned
 *   lanes_group_add(acc, s, b, pair, isum)   acc = fma(s * a, isum, acc); acc = fma(b, xs, acc); pair = { a, xs }
 *   lanes_spread(p, out)        16 words of eight 4-bit codes to two vectors of bytes: even elements, then odd ones
 *   lanes_spread_bf16(p, q, out) the same of two vectors, to eight of pairs of bf16: an element of p, the same of q; elements in the
 *                               order of inputs, 0 2 4 6 1 3 5 7
 *   lanes_limb_bf16(high, p, out) 32 signed bytes to pairs of bf16, byte j with byte 16 + j, times 256 where high
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
