/* sample_filter.c: top-p, min-p, XTC and top-k over one row of logits, without sorting the vocabulary.
 *
 * In the total order (logit descending, id ascending) top-p, min-p and top-k each keep a prefix, and XTC removes a prefix
 * but for exempt ids and the least likely token above its threshold. So one lazy walk down the order decides all four:
 *   top-p   keep id of rank i while the mass of ranks below i is < top_p * z   (as mlx-lm, but
 *           for ids that tie with the last one kept: the order decides)
 *   min-p   keep while x >= max + log(min_p), and the first min_keep in any case
 *   XTC     probabilities over what is left; of the ids with p > threshold all but those that tie with the least likely
 *           one go, exempt ids stay
 *   top-k   keep the first k of what is left
 * Masses are added in float64 in that order from float32 exponentials.
 */
#include "ops/cpu/sample_int.h"

#include <math.h>
#include <string.h>

#include "ops/mathfn.h"

/* Depth below the maximum, in nats, that each band reaches. */
static const float band_depth[] = { 2.0f, 5.0f, 9.0f, 16.0f, 32.0f, INFINITY };
#define BAND_COUNT ((int)(sizeof band_depth / sizeof *band_depth))

static bool before(const float *x, int32_t a, int32_t b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void heap_sift(const float *x, int32_t *h, int64_t n, int64_t i)
{
    int32_t v = h[i];
    for (;;) {
        int64_t c = 2 * i + 1;
        if (c >= n) break;
        if (c + 1 < n && before(x, h[c + 1], h[c])) c++;
        if (!before(x, h[c], v)) break;
        h[i] = h[c];
        i = c;
    }
    h[i] = v;
}

void walk_init(struct walk *w, const float *x, int64_t n, float max, const float *block_max, int32_t *order, int32_t *heap)
{
    memset(w, 0, sizeof *w);
    w->x = x;
    w->n = n;
    w->max = max;
    w->block_max = block_max;
    w->order = order;
    w->heap = heap;
    w->floor = INFINITY;
}

/* Gather logits in [max - depth, floor) that are above -inf. The heap is empty when this is called. */
static void band_gather(struct walk *w)
{
    float lo = w->max - band_depth[w->i_band++], hi = w->floor;
    int64_t c = 0;
    for (int64_t b = 0; b < w->n; b += SAMPLE_BLOCK) {
        if (w->block_max && w->block_max[b / SAMPLE_BLOCK] < lo) continue;
        int64_t end = w->n - b < SAMPLE_BLOCK ? w->n : b + SAMPLE_BLOCK;
        for (int64_t i = b; i < end; i++) {
            float v = w->x[i];
            if (v >= lo && v < hi && v > -INFINITY) w->heap[c++] = (int32_t)i;
        }
    }
    w->n_heap = c;
    w->floor = lo;
    for (int64_t i = c / 2 - 1; i >= 0; i--) heap_sift(w->x, w->heap, c, i);
}

bool walk_next(struct walk *w)
{
    while (w->n_heap == 0) {
        if (w->i_band == BAND_COUNT) return false;
        band_gather(w);
    }
    w->order[w->n_order++] = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap > 0) heap_sift(w->x, w->heap, w->n_heap, 0);
    return true;
}

/* --- the prefix that top-p and min-p leave --- */

static bool top_p_on(const struct sample_params *p)
{
    return p->top_p > 0.0f && p->top_p < 1.0f;
}

/* Walks until the first id that top-p or min-p drops, or until `want` ids when neither is on; *mass receives the
 * sum of exp(x - max) over the kept prefix. */
static int64_t prefix_walk(struct walk *w, const struct sample_params *p, float z, int64_t want, double *mass)
{
    double limit = (double)p->top_p * (double)z;
    float floor = p->min_p > 0.0f ? w->max + mb_log(p->min_p) : -INFINITY;
    int64_t n = 0;
    *mass = 0.0;
    while (n < want && walk_next(w)) {
        float v = w->x[w->order[n]];
        if (top_p_on(p) && n > 0 && !(*mass < limit)) break;
        if (v < floor && n >= (p->min_keep > 1 ? p->min_keep : 1)) break;
        *mass += (double)mb_exp(v - w->max);
        n++;
    }
    return n;
}

static bool xtc_exempt(const struct sample_params *p, int32_t id)
{
    for (int32_t i = 0; i < p->n_xtc_exempt; i++)
        if (p->xtc_exempt[i] == id) return true;
    return false;
}

/* Number of leading ids whose probability is above the XTC threshold. `n`: survivors so far; when the prefix is the whole
 * vocabulary it is walked on demand. */
static int64_t xtc_count(struct walk *w, const struct sample_params *p, int64_t n, double mass)
{
    int64_t c = 0;
    while (c < n) {
        if (c == w->n_order && !walk_next(w)) break;
        double prob = (double)mb_exp(w->x[w->order[c]] - w->max) / mass;
        if (!((float)prob > p->xtc_threshold)) break;
        c++;
    }
    return c;
}

int64_t sample_survivors(float *x, int64_t n, float max, float z, const float *block_max, const struct sample_params *p, bool xtc,
                         int32_t *order, int32_t *heap, int32_t *keep)
{
    struct walk w;
    walk_init(&w, x, n, max, block_max, order, heap);
    bool bounded = top_p_on(p) || p->min_p > 0.0f;
    int64_t n_prefix = n;
    double mass = (double)z;
    if (bounded) n_prefix = prefix_walk(&w, p, z, n, &mass);

    int64_t n_high = xtc ? xtc_count(&w, p, n_prefix, mass) : 0;
    float least = n_high > 0 ? x[order[n_high - 1]] : INFINITY;
    int64_t k = p->top_k > 0 ? p->top_k : n;

    if (!bounded && p->top_k <= 0) { /* XTC alone: strike a few ids, keep the rest where it is */
        for (int64_t i = 0; i < n_high; i++)
            if (x[order[i]] > least && !xtc_exempt(p, order[i])) x[order[i]] = -INFINITY;
        return -1;
    }
    int64_t n_keep = 0;
    for (int64_t i = 0; i < n_prefix && n_keep < k; i++) {
        if (i == w.n_order && !walk_next(&w)) break;
        int32_t id = order[i];
        if (i < n_high && x[id] > least && !xtc_exempt(p, id)) continue;
        keep[n_keep++] = id;
    }
    return n_keep;
}

/* Copy the survivors aside, clear the row, put them back. */
void sample_keep_only(float *x, int64_t n, const int32_t *keep, int64_t n_keep, float *aside)
{
    for (int64_t i = 0; i < n_keep; i++) aside[i] = x[keep[i]];
    for (int64_t i = 0; i < n; i++) x[i] = -INFINITY;
    for (int64_t i = 0; i < n_keep; i++) x[keep[i]] = aside[i];
}

void sample_filter(float *x, int64_t n, float max, float z, const struct sample_params *p, bool xtc, int32_t *order,
                   int32_t *heap, int32_t *keep)
{
    int64_t n_keep = sample_survivors(x, n, max, z, NULL, p, xtc, order, heap, keep);
    if (n_keep >= 0) sample_keep_only(x, n, keep, n_keep, (float *)heap); /* the walk has ended */
}
