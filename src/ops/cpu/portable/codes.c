/* codes.c (portable): pages of 8- and 4-bit codes, and attention over them (docs/numerics.md section 4d).
 *
 * A row of codes is rounded when its token is written, by its own values alone. Scores are one fma chain over the codes of a
 * group, then the group's scale and offset; outputs are one fma chain over the codes of the visible keys, whose weights carry
 * the scale, and the offsets go into 16 lanes of their own, as the sum of exponentials does.
 */
#include "ops/cpu/portable/tile.h"

#define ROUND_MAGIC 0x1.8p23f /* + and -: to the nearest integer, ties to even */

/* bf16 at most as large as v, and at least as large. */
static uint16_t bf16_below(float v)
{
    uint32_t u = f32_bits(v);
    return (uint16_t)((u >> 16) + ((u >> 31) && (u & 0xffff)));
}

static uint16_t bf16_above(float v) /* v >= +0 */
{
    uint32_t u = f32_bits(v);
    return (uint16_t)((u >> 16) + ((u & 0xffff) != 0));
}

struct scales {
    uint16_t s, b;
    float step, from, inv; /* s and b as floats; 1 / s, 0 where all codes are 0 */
};

static struct scales scales_of(const float *x, int n, float top)
{
    static const struct scales nan = { 0x7fc0, 0x7fc0, NAN, NAN, 0.0f };
    struct scales q = { 0 };
    float lo = x[0], hi = x[0], any = 0.0f;
    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        any = any + x[i] * 0.0f; /* a NaN once one is not finite */
    }
    if (any != any) return nan;
    q.b = bf16_below(lo + 0.0f);
    q.from = bf16_f32(q.b);
    float step = (hi - q.from) / top;
    q.s = bf16_above(step);
    q.step = bf16_f32(q.s);
    if (!(q.step <= 0x1.fffffep+127f)) return nan;
    if (q.step < 1e-30f) {
        q.s = 0;
        q.step = 0.0f;
    }
    q.inv = q.step > 0.0f ? 1.0f / q.step : 0.0f;
    return q;
}

static int code_of(const struct scales *q, float x, float top)
{
    if (!(q->inv > 0.0f)) return 0;
    float r = ((x - q->from) * q->inv + ROUND_MAGIC) - ROUND_MAGIC;
    return (int)(r < top ? r : top);
}

static void nibble_put(uint8_t *at, int high, int code)
{
    *at = (uint8_t)(high ? (*at & 0x0f) | code << 4 : (*at & 0xf0) | code);
}

static void k_put(enum kv_format f, uint8_t *area, int64_t i, int i_key, int code)
{
    if (f == KV_Q8) area[i * 64 + i_key] = (uint8_t)code;
    else nibble_put(area + (i / 2) * 64 + i_key, (int)(i & 1), code);
}

static int k_get(enum kv_format f, const uint8_t *area, int64_t i, int i_key)
{
    return f == KV_Q8 ? area[i * 64 + i_key] : area[(i / 2) * 64 + i_key] >> (4 * (i & 1)) & 15;
}

static void v_put(enum kv_format f, uint8_t *codes, int64_t i, int i_key, int code)
{
    int64_t row = i / 64 * 64 + i_key;
    if (f == KV_Q8) codes[row * 64 + i % 64] = (uint8_t)code;
    else nibble_put(codes + row * 32 + i % 32, i % 64 >= 32, code);
}

static int v_get(enum kv_format f, const uint8_t *codes, int64_t i, int i_key)
{
    int64_t row = i / 64 * 64 + i_key;
    return f == KV_Q8 ? codes[row * 64 + i % 64] : codes[row * 32 + i % 32] >> (i % 64 >= 32 ? 4 : 0) & 15;
}

static void scales_put(uint8_t *block, int i_key, const struct scales *q)
{
    memcpy(block + 2 * i_key, &q->s, 2);
    memcpy(block + 128 + 2 * i_key, &q->b, 2);
}

static void scales_get(const uint8_t *block, int i_key, float *s, float *b)
{
    uint16_t h[2];
    memcpy(&h[0], block + 2 * i_key, 2);
    memcpy(&h[1], block + 128 + 2 * i_key, 2);
    *s = bf16_f32(h[0]);
    *b = bf16_f32(h[1]);
}

void PORTABLE(codes_write)(enum kv_format f, int64_t d, int i_key, const float *k, const float *v, uint8_t *area)
{
    struct kv_code_places p = kv_code_places(f, d);
    float top = f == KV_Q8 ? 255.0f : 15.0f;
    for (int g = 0; g < p.n_groups; g++) {
        int64_t first = (int64_t)g * p.group;
        struct scales qk = scales_of(k + first, p.group, top), qv = scales_of(v + first, p.group, top);
        scales_put(area + p.k_scales + (size_t)g * KV_SCALES_BYTES, i_key, &qk);
        scales_put(area + p.v_scales + (size_t)g * KV_SCALES_BYTES, i_key, &qv);
        for (int64_t i = first; i < first + p.group; i++) {
            k_put(f, area, i, i_key, code_of(&qk, k[i], top));
            v_put(f, area + p.v_codes, i, i_key, code_of(&qv, v[i], top));
        }
    }
    for (int64_t i = d; i < (d + 63) / 64 * 64; i++) v_put(f, area + p.v_codes, i, i_key, 0);
}

void PORTABLE(codes_read)(enum kv_format f, int64_t d, int i_key, const uint8_t *area, float *k, float *v)
{
    struct kv_code_places p = kv_code_places(f, d);
    for (int64_t i = 0; i < d; i++) {
        float s, b;
        scales_get(area + p.k_scales + (size_t)(i / p.group) * KV_SCALES_BYTES, i_key, &s, &b);
        k[i] = fmaf((float)k_get(f, area, i, i_key), s, b);
        scales_get(area + p.v_scales + (size_t)(i / p.group) * KV_SCALES_BYTES, i_key, &s, &b);
        v[i] = fmaf((float)v_get(f, area + p.v_codes, i, i_key), s, b);
    }
}

#define GROUPS_MAX 32 /* the widest head is 1024 */

static void scores_of(const struct attn_unit *u, const struct kv_code_places *p, const float *q, const float *q_sum,
                      const uint8_t *page, int j0, int j1, float *s)
{
    for (int j = j0; j < j1; j++) {
        s[j] = 0.0f;
        for (int g = 0; g < p->n_groups; g++) {
            float a = 0.0f, step, from;
            for (int64_t i = (int64_t)g * p->group; i < (int64_t)(g + 1) * p->group; i++) a = fmaf(q[i], (float)k_get(u->format, page, i, j), a);
            scales_get(page + p->k_scales + (size_t)g * KV_SCALES_BYTES, j, &step, &from);
            s[j] = fmaf(step, a, s[j]);
            s[j] = fmaf(from, q_sum[g], s[j]);
        }
    }
    scores_cap(u->softcap, j0, j1, s);
}

/* Values of one group: weights p * s to o, p * b to the lanes z. */
static void group_take(const struct attn_unit *u, const struct kv_code_places *p, int g, const uint8_t *page, const float *w, float al,
                       int j0, int j1, float *o, float z[ATTN_LANES])
{
    const uint8_t *scales = page + p->v_scales + (size_t)g * KV_SCALES_BYTES;
    float from[ATTN_TILE] = { 0 };
    for (int64_t i = (int64_t)g * p->group; i < (int64_t)(g + 1) * p->group; i++) o[i] = o[i] * al;
    for (int j = j0; j < j1; j++) {
        float s, b;
        scales_get(scales, j, &s, &b);
        from[j] = w[j] * b;
        float ws = w[j] * s;
        for (int64_t i = (int64_t)g * p->group; i < (int64_t)(g + 1) * p->group; i++)
            o[i] = fmaf(ws, (float)v_get(u->format, page + p->v_codes, i, j), o[i]);
    }
    lanes_take(z, al, from);
}

static void row_run(const struct attn_unit *u, const struct kv_code_places *p, int r)
{
    const float *q = u->q + r * u->ld_q;
    struct row_state st = { .m = -INFINITY, .o = u->o + r * u->ld_o };
    float z[GROUPS_MAX][ATTN_LANES] = { { 0 } }, q_sum[GROUPS_MAX], s[ATTN_TILE], w[ATTN_TILE];
    for (int g = 0; g < p->n_groups; g++) {
        float lane[ATTN_LANES] = { 0 };
        for (int i = 0; i < p->group; i++) lane[i % ATTN_LANES] = lane[i % ATTN_LANES] + q[(int64_t)g * p->group + i];
        q_sum[g] = lanes_sum(lane);
    }
    for (int64_t i = 0; i < u->d; i++) st.o[i] = 0.0f;
    for (int t = 0; t < ATTN_SPLIT / ATTN_TILE; t++) {
        int j0, j1;
        tile_sees(u->vis_lo[r], u->vis_hi[r], t, &j0, &j1);
        if (j0 >= j1) continue;
        scores_of(u, p, q, q_sum, u->page[t], j0, j1, s);
        float al = tile_weigh(&st, s, j0, j1, w);
        for (int g = 0; g < p->n_groups; g++) group_take(u, p, g, u->page[t], w, al, j0, j1, st.o, z[g]);
    }
    u->m[r] = st.m;
    u->ls[r] = lanes_sum(st.lane);
    for (int64_t i = 0; i < u->d; i++) st.o[i] = st.o[i] + lanes_sum(z[i / p->group]);
}

void PORTABLE(codes_unit)(const struct attn_unit *u)
{
    struct kv_code_places p = kv_code_places(u->format, u->d);
    for (int r = 0; r < u->n_rows; r++) row_run(u, &p, r);
}
