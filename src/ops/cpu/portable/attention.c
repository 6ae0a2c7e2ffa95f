/* attention.c (portable): key and value pages, and attention of some query rows against one split of keys.
 *
 * The order of every sum is the contract (docs/numerics.md section 2): scores are one fma chain over d, the sum of
 * exponentials runs in 16 lanes by key, outputs are one fma chain over the visible keys. What a row does not see is
 * skipped: its bytes are never read as numbers. Pages of codes: codes.c.
 */
#include "ops/cpu/portable/tile.h"

/* Element (row of 64, i): where bf16 value i of a row sits, in u16 units. */
static int bf16_place(int i)
{
    return (i & ~31) + 2 * (i & 15) + ((i >> 4) & 1);
}

static void area_put(enum kv_format f, uint8_t *area, int64_t row, int i, float v)
{
    uint16_t h = f == KV_F16 ? f32_half(v) : f32_bf16(v);
    if (f == KV_F32)
        memcpy(area + 4 * (row * 64 + i), &v, 4);
    else
        memcpy(area + 2 * (row * 64 + (f == KV_F16 ? i : bf16_place(i))), &h, 2);
}

static float area_get(enum kv_format f, const uint8_t *area, int64_t row, int i)
{
    float v;
    uint16_t h;
    if (f == KV_F32) {
        memcpy(&v, area + 4 * (row * 64 + i), 4);
        return v;
    }
    memcpy(&h, area + 2 * (row * 64 + (f == KV_F16 ? i : bf16_place(i))), 2);
    return f == KV_F16 ? half_f32(h) : bf16_f32(h);
}

/* Rows of 64 values: K holds d rows (a key is a column), V follows with ceil(d/64) blocks of 64 rows (a key is a row).
 * The tail of the last V block is written as zero so that it never holds a NaN. */
static void kv_write_portable(enum kv_format f, int64_t d, int i_key, const float *k, const float *v, uint8_t *area)
{
    if (kv_is_codes(f)) {
        PORTABLE(codes_write)(f, d, i_key, k, v, area);
        return;
    }
    for (int64_t i = 0; i < d; i++) area_put(f, area, i, i_key, k[i]);
    for (int64_t i = 0; i < (d + 63) / 64 * 64; i++)
        area_put(f, area, d + (i / 64) * 64 + i_key, (int)(i % 64), i < d ? v[i] : 0.0f);
}

static void latent_write_portable(enum kv_format f, int64_t n, int i_key, const float *x, uint8_t *area)
{
    for (int64_t i = 0; i < n; i++) area_put(f, area, i, i_key, x[i]);
}

static void kv_read_portable(enum kv_format f, int64_t d, int i_key, const uint8_t *area, float *k, float *v)
{
    if (kv_is_codes(f)) {
        PORTABLE(codes_read)(f, d, i_key, area, k, v);
        return;
    }
    for (int64_t i = 0; i < d; i++) {
        k[i] = area_get(f, area, i, i_key);
        v[i] = area_get(f, area, d + (i / 64) * 64 + i_key, (int)(i % 64));
    }
}

/* Scores of keys [j0, j1) of the tile, base 2. */
static void tile_scores(const struct attn_unit *u, const float *q, const uint8_t *page, int j0, int j1, float *s)
{
    for (int j = j0; j < j1; j++) s[j] = 0.0f;
    for (int64_t d = 0; d < u->d; d++)
        for (int j = j0; j < j1; j++) s[j] = fmaf(q[d], area_get(u->format, page, d, j), s[j]);
    scores_cap(u->softcap, j0, j1, s);
}

static int64_t value_dim(const struct attn_unit *u)
{
    return u->d_latent > 0 ? u->d_latent : u->d;
}

/* Element i of the value of key j. */
static float value_get(const struct attn_unit *u, const uint8_t *page, int j, int64_t i)
{
    if (u->d_latent > 0) return area_get(u->format, page, i, j);
    return area_get(u->format, page, u->d + (i / 64) * 64 + j, (int)(i % 64));
}

static void tile_take(const struct attn_unit *u, const float *q, const uint8_t *page, int j0, int j1,
                      struct row_state *st)
{
    float s[ATTN_TILE], p[ATTN_TILE];
    tile_scores(u, q, page, j0, j1, s);
    float al = tile_weigh(st, s, j0, j1, p);
    int64_t d_value = value_dim(u);
    for (int64_t d = 0; d < d_value; d++) st->o[d] = st->o[d] * al;
    for (int j = j0; j < j1; j++)
        for (int64_t d = 0; d < d_value; d++) st->o[d] = fmaf(p[j], value_get(u, page, j, d), st->o[d]);
}

static void attend_unit_portable(const struct attn_unit *u)
{
    if (kv_is_codes((int)u->format)) {
        PORTABLE(codes_unit)(u);
        return;
    }
    for (int r = 0; r < u->n_rows; r++) {
        struct row_state st = { .m = -INFINITY, .o = u->o + r * u->ld_o };
        int lo = u->vis_lo[r], hi = u->vis_hi[r];
        for (int64_t d = 0; d < value_dim(u); d++) st.o[d] = 0.0f;
        for (int t = 0; t < ATTN_SPLIT / ATTN_TILE; t++) {
            int j0, j1;
            tile_sees(lo, hi, t, &j0, &j1);
            if (j0 < j1) tile_take(u, u->q + r * u->ld_q, u->page[t], j0, j1, &st);
        }
        u->m[r] = st.m;
        u->ls[r] = lanes_sum(st.lane);
        for (int64_t d = 0; d < value_dim(u); d++) st.o[d] = st.o[d] + 0.0f;
    }
}

static void index_scores_portable(const struct index_unit *u)
{
    for (int j = 0; j < u->n_keys; j++) {
        const uint8_t *page = u->page[j / ATTN_TILE];
        float sum = 0.0f;
        for (int h = 0; h < u->n_head; h++) {
            float s = 0.0f;
            for (int64_t d = 0; d < u->d; d++) s = fmaf(u->q[h * u->d + d], area_get(u->format, page, d, j % ATTN_TILE), s);
            sum = fmaf(u->w[h], s > 0.0f ? s : 0.0f, sum);
        }
        u->out[j] = sum;
    }
}

static void attend_merge_portable(int64_t d, float m, float ls, const float *o, float *M, float *Lt, float *O)
{
    if (ls == 0.0f) return;
    float N = m > *M ? m : *M;
    float a = mb_exp2_neg(*M - N), b = mb_exp2_neg(m - N);
    *M = N;
    *Lt = fmaf(ls, b, *Lt * a);
    for (int64_t i = 0; i < d; i++) O[i] = fmaf(o[i], b, O[i] * a);
}

static void attend_finish_portable(int64_t d, float Lt, const float *O, float *out)
{
    float inv = Lt == 0.0f ? 0.0f : 1.0f / Lt;
    for (int64_t i = 0; i < d; i++) out[i] = O[i] * inv;
}

void PORTABLE(portable_fill_attention)(struct cpu_kernels *t)
{
    t->kv_write = kv_write_portable;
    t->kv_read = kv_read_portable;
    t->latent_write = latent_write_portable;
    t->attend_unit = attend_unit_portable;
    t->index_scores = index_scores_portable;
    t->attend_merge = attend_merge_portable;
    t->attend_finish = attend_finish_portable;
}
