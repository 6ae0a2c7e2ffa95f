/* tile.h (portable): what attention over values and over codes share: one tile of one row, from scores to weights.
 */
#ifndef OPS_CPU_PORTABLE_TILE_H
#define OPS_CPU_PORTABLE_TILE_H

#include "ops/cpu/portable/portable_int.h"

struct row_state {
    float m, lane[ATTN_LANES];
    float *o;
};

/* Keys [j0, j1) of tile t that a row with [lo, hi) sees; empty where j0 >= j1. */
static inline void tile_sees(int lo, int hi, int t, int *j0, int *j1)
{
    *j0 = lo - ATTN_TILE * t < 0 ? 0 : lo - ATTN_TILE * t;
    *j1 = hi - ATTN_TILE * t > ATTN_TILE ? ATTN_TILE : hi - ATTN_TILE * t;
}

static inline void scores_cap(float softcap, int j0, int j1, float *s)
{
    if (softcap > 0.0f)
        for (int j = j0; j < j1; j++) s[j] = (softcap * mb_tanh(s[j] / softcap)) * 0x1.715476p+0f;
}

/* al * the lanes, plus x. */
static inline void lanes_take(float lane[ATTN_LANES], float al, const float x[ATTN_TILE])
{
    for (int i = 0; i < ATTN_LANES; i++) lane[i] = fmaf(lane[i], al, x[i]);
    for (int j = ATTN_LANES; j < ATTN_TILE; j++) lane[j % ATTN_LANES] = lane[j % ATTN_LANES] + x[j];
}

/* Maximum, p (+0 for keys outside [j0, j1)) and the lanes of l; returns al. */
static inline float tile_weigh(struct row_state *st, const float *s, int j0, int j1, float p[ATTN_TILE])
{
    float m1 = st->m;
    for (int j = j0; j < j1; j++) m1 = s[j] > m1 ? s[j] : m1;
    float al = mb_exp2_neg(st->m - m1);
    st->m = m1;
    for (int j = 0; j < ATTN_TILE; j++) p[j] = j >= j0 && j < j1 ? mb_exp2_neg(s[j] - m1) : 0.0f;
    lanes_take(st->lane, al, p);
    return al;
}

#endif
