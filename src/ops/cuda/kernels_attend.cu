/* kernels_attend.cu: attention over pages: sizes, the work area, and which form takes which units.
 *   plain  kernels_attend_plain.cu: f32 pages, heads of unusual width
 *   small  kernels_attend_small.cu: few tokens
 *   large  kernels_attend_large.cu: many tokens
 *   token  kernels_attend_token.cu (cs_rope_attend): small batches of single tokens, rotation and the writing of keys included
 *   stream kernels_attend_stream.cu: the same, of more splits than the card takes at once
 * The last four run on tensor cores and share kernels_attend.cuh, and with it the bits.
 */
#include "ops/cuda/kernels_int.h"

extern "C" size_t ck_kv_head_bytes(int kv_format, int head_dim)
{
    size_t d = (size_t)(head_dim + 63) / 64 * 64;
    return 2 * 64 * d * (kv_format == CK_KV_F32 ? 4 : 2);
}
extern "C" int ck_attn_small_tokens(int n_head, int n_head_kv)
{
    int g = n_head / n_head_kv;
    return g >= 16 ? 1 : 16 / g;
}
extern "C" int ck_attn_large_tokens(int n_head, int n_head_kv)
{
    int g = n_head / n_head_kv;
    return g >= 64 ? 1 : 64 / g;
}
#define COUNTERS (1 << 16)                 /* blocks of a launch that may wait for splits of others */
#define PART_BYTES ((size_t)64 << 20)      /* more is used as well: fewer launches */
static size_t part_floats(int rows, int d_pad) { return (size_t)rows * (size_t)d_pad + 32; } /* o [rows][d_pad], m [16], l [16] */

extern "C" size_t ck_work_bytes(const struct ck_ctx *c, int m_max, int n_head, int d_max, int n_context)
{
    (void)c;
    (void)m_max;
    size_t d = (size_t)(d_max + 63) / 64 * 64, splits = (size_t)(n_context + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
    size_t unit = (size_t)n_head * splits * part_floats(16, (int)d) * 4; /* one unit of one token, every head in a tile of its own */
    return COUNTERS * 4 + (unit > PART_BYTES ? unit : PART_BYTES);
}

struct attend_args ck_attend_args(const struct ck_attend *a)
{
    struct attend_args g = {};
    g.a = *a;
    if (a->x) g.x = *a->x;
    g.write_x = a->x != NULL;
    g.group = a->n_head / a->n_head_kv;
    g.part_rows = 16;
    g.n_split = a->n_split > 0 ? a->n_split : 1;
    return g;
}

int ck_attend_room(const struct ck_ctx *c, struct attend_args *g, int d_pad, int max_tok, int n)
{
    g->row_tiles = (max_tok * g->group + 15) / 16;
    g->count = (unsigned *)c->work;
    g->part = (float *)((uint8_t *)c->work + COUNTERS * 4);
    size_t per_unit = (size_t)g->a.n_head_kv * (size_t)g->row_tiles * (size_t)g->n_split * part_floats(g->part_rows, d_pad) * 4;
    int64_t room = c->work_bytes > COUNTERS * 4 ? (int64_t)((c->work_bytes - COUNTERS * 4) / per_unit) : 0;
    int64_t counters = COUNTERS / (g->a.n_head_kv * g->row_tiles);
    if (g->n_split == 1) room = n;
    if (room > counters) room = counters;
    return (int)(room > 65535 ? 65535 : room);
}

static int by_form(const struct ck_ctx *c, const struct attend_args *g, int d_pad, cudaStream_t st)
{
    const struct ck_attend *a = &g->a;
    int e = 0;
    if (a->n_small > 0) e = ck_attend_small(c, g, d_pad, a->small_units, a->n_small, ck_attn_small_tokens(a->n_head, a->n_head_kv), st);
    if (e || a->n_large <= 0) return e;
    if (d_pad <= 256) return ck_attend_large(c, g, d_pad, st);
    return ck_attend_small(c, g, d_pad, a->large_units, a->n_large, ck_attn_large_tokens(a->n_head, a->n_head_kv), st);
}

extern "C" int ck_attend(const struct ck_ctx *c, const struct ck_attend *a, cudaStream_t st)
{
    int e = 0, d_pad = (a->head_dim + 63) / 64 * 64;
    if (a->head_dim > 512 || a->n_head % a->n_head_kv != 0 || (a->x && a->x->k != (int64_t)a->n_head * a->head_dim)) return (int)cudaErrorInvalidValue;
    if (ck_attend_on_tensor_cores(a->kv_format, d_pad)) {
        struct attend_args g = ck_attend_args(a);
        return by_form(c, &g, d_pad, st);
    }
    if (a->n_small > 0) e = ck_attend_plain(c, a, a->small_units, a->n_small, st);
    return e == 0 && a->n_large > 0 ? ck_attend_plain(c, a, a->large_units, a->n_large, st) : e;
}
