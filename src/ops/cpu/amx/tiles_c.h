/* tiles_c.h: the operations of tile_ops.h in plain C, so that tests/kernels runs amx/matmul_tiles.h and matmul_few.h on every
 * machine. Shapes that the instructions would refuse stop the program here too. One set of tiles for each thread.
 */
#ifndef OPS_CPU_AMX_TILES_C_H
#define OPS_CPU_AMX_TILES_C_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "format/quant.h"
#include "ops/cpu/amx/tile_ops.h"
#include "ops/cpu/kernels.h"

#define FORCED static inline
#define UNROLL(n)

struct tile_c {
    int rows, row_bytes;
    uint8_t bytes[16][64];
};
static _Thread_local struct tile_c tiles_c[8];

static inline void tile_check(bool ok)
{
    if (!ok) abort();
}

static inline void tile_config(const struct tile_shapes *s)
{
    tile_check(s->palette == 1 && s->start_row == 0);
    memset(tiles_c, 0, sizeof tiles_c);
    for (int i = 0; i < 8; i++) {
        tile_check(s->rows[i] <= 16 && s->row_bytes[i] <= 64 && s->row_bytes[i] % 4 == 0);
        tiles_c[i].rows = s->rows[i];
        tiles_c[i].row_bytes = s->row_bytes[i];
    }
}

static inline void tile_release(void)
{
    memset(tiles_c, 0, sizeof tiles_c);
}

static inline void tile_zero(int t)
{
    tile_check(tiles_c[t].rows > 0);
    memset(tiles_c[t].bytes, 0, sizeof tiles_c[t].bytes);
}

static inline void tile_load(int t, const void *p, size_t stride)
{
    tile_zero(t);
    for (int i = 0; i < tiles_c[t].rows; i++)
        memcpy(tiles_c[t].bytes[i], (const uint8_t *)p + (size_t)i * stride, (size_t)tiles_c[t].row_bytes);
}

static inline void tile_store(int t, void *p)
{
    tile_check(tiles_c[t].rows > 0);
    for (int i = 0; i < tiles_c[t].rows; i++)
        memcpy((uint8_t *)p + 64 * i, tiles_c[t].bytes[i], (size_t)tiles_c[t].row_bytes);
}

static inline void tile_dp(int sum, int x, int codes)
{
    struct tile_c *c = &tiles_c[sum];
    const struct tile_c *a = &tiles_c[x], *b = &tiles_c[codes];
    tile_check(c->rows == a->rows && c->row_bytes == b->row_bytes && a->row_bytes == 4 * b->rows);
    for (int i = 0; i < c->rows; i++)
        for (int n = 0; n < c->row_bytes / 4; n++) {
            int32_t v;
            memcpy(&v, c->bytes[i] + 4 * n, 4);
            for (int j = 0; j < a->row_bytes; j++) v += (int8_t)a->bytes[i][j] * b->bytes[j / 4][4 * n + j % 4];
            memcpy(c->bytes[i] + 4 * n, &v, 4);
        }
}

typedef struct {
    float v[16];
} lanes;

static inline lanes lanes_zero(void)
{
    return (lanes){ { 0 } };
}

static inline lanes lanes_load(const float *p, int64_t n_out)
{
    lanes l = { { 0 } };
    for (int i = 0; i < 16 && i < n_out; i++) l.v[i] = p[i];
    return l;
}

static inline void lanes_store(float *p, int64_t n_out, lanes l)
{
    for (int i = 0; i < 16 && i < n_out; i++) p[i] = l.v[i];
}

static inline void lanes_scales(enum dtype dt, const uint8_t *p, lanes *s, lanes *b)
{
    for (int i = 0; i < 16; i++) {
        uint16_t h[2];
        if (dt == DT_F32) {
            memcpy(&s->v[i], p + 4 * i, 4);
            memcpy(&b->v[i], p + 64 + 4 * i, 4);
        } else if (dt == DT_F16) {
            memcpy(&h[0], p + 2 * i, 2);
            memcpy(&h[1], p + 32 + 2 * i, 2);
            s->v[i] = f16_to_f32(h[0]);
            b->v[i] = f16_to_f32(h[1]);
        } else {
            memcpy(h, p + 4 * i, 4);
            s->v[i] = bf16_to_f32(h[0]);
            b->v[i] = bf16_to_f32(h[1]);
        }
    }
}

/* One limb as tiles.h converts it, so that its bound is tested everywhere. */
static inline float sum_float(int32_t v)
{
    float f;
    v += 0x4b400000;
    memcpy(&f, &v, 4);
    return f - 12582912.0f;
}

static inline lanes lanes_sums(bool two, const int32_t *hi, const int32_t *lo)
{
    lanes l;
    for (int i = 0; i < 16; i++) l.v[i] = two ? (float)(256 * hi[i] + lo[i]) : sum_float(hi[i]);
    return l;
}

static inline lanes lanes_floats(const float *p)
{
    lanes l;
    memcpy(&l, p, sizeof l);
    return l;
}

static inline lanes lanes_group_add(lanes acc, lanes s, lanes b, const float *pair, lanes isum)
{
    for (int i = 0; i < 16; i++) {
        acc.v[i] = fmaf(s.v[i] * pair[0], isum.v[i], acc.v[i]);
        acc.v[i] = fmaf(b.v[i], pair[1], acc.v[i]);
    }
    return acc;
}

static inline void lanes_spread(const uint8_t *p, uint8_t *out)
{
    for (int i = 0; i < 64; i++) {
        out[i] = p[i] & 15;
        out[64 + i] = p[i] >> 4;
    }
}

#endif
