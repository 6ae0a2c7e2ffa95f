/* trellis_search.c: a row of floats to the trellis code with the least squared error (trellis.h has the format).
 *
 * Scales first: a group's spread over the codebook's, made larger while clipping its largest weights would cost more than the coarser
 * grid. Then a span at a time, Viterbi over all 4096 states: every weight leads from a state to 2^K others. The stream is a ring, so
 * the state before the first weight must be the last one's: it is taken from a first search over the weights around the seam, and
 * held in the second. At last each scale becomes the one that fits the chosen codes best.
 * States count here with the newest bits lowest, so that the loops run over neighbours and the compiler makes vectors of them (the
 * Makefile builds this file with -O3; sums and minima are element by element: the same bits with and without).
 */
#include <string.h>

#include "base/mem.h"
#include "format/quantise.h"
#include "format/trellis.h"

enum { N_STATES = 1 << TRELLIS_STATE_BITS, SEAM = 32 };
#define SPREAD 37.0 /* of the codebook */
#define NO_WAY 1e30f

struct trellis_search {
    int bits;
    float value[N_STATES];              /* code - 128 of a state */
    float cost[N_STATES];               /* of the best path that ends in it */
    float best[N_STATES / 4];           /* by what all followers of a state share */
    int32_t from[N_STATES / 4];
    uint8_t step[TRELLIS_SPAN][N_STATES / 4]; /* from which of the 2^K predecessors */
    float want[TRELLIS_SPAN], ratio[TRELLIS_SPAN]; /* weights and their groups' scales, over the largest scale of the span */
    uint8_t bits_of[TRELLIS_SPAN];      /* the path found: K bits a weight */
};

/* The file's order of a state: the newest K bits highest. */
static uint32_t state_turn(uint32_t state, int bits)
{
    uint32_t v = 0;
    for (int i = 0; i < TRELLIS_STATE_BITS; i += bits) v = v << bits | (state >> i & ((1u << bits) - 1));
    return v;
}

struct trellis_search *trellis_search_open(int bits)
{
    struct trellis_search *t = mb_calloc(1, sizeof *t);
    if (!t) return NULL;
    t->bits = bits;
    for (uint32_t s = 0; s < N_STATES; s++) t->value[s] = (float)trellis_code(state_turn(s, bits)) - 128.0f;
    return t;
}

void trellis_search_close(struct trellis_search *t)
{
    mb_free(t);
}

/* --- one weight --- */

/* Of the 2^K states that agree in all but their oldest bits, the cheapest. */
static inline void best_of(const float *restrict cost, const int n, const int m, float *restrict best, int32_t *restrict from)
{
    for (int j = 0; j < n; j++) {
        float b = cost[j];
        int32_t f = 0;
        for (int x = 1; x < m; x++) {
            float c = cost[x * n + j];
            f = c < b ? x : f;
            b = c < b ? c : b;
        }
        best[j] = b;
        from[j] = f;
    }
}

/* Each of its followers gets the new weight's error. */
static inline void error_add(const float *restrict value, const float *restrict best, const int n, const int m, float want, float ratio,
                             float *restrict cost)
{
    for (int j = 0; j < n; j++)
        for (int x = 0; x < m; x++) {
            float d = value[j * m + x] * ratio - want;
            cost[j * m + x] = best[j] + d * d;
        }
}

/* Sizes are constants here, so that both become loops over vectors. */
static inline void step_of(struct trellis_search *t, const int bits, float want, float ratio, uint8_t *restrict step)
{
    const int n = N_STATES >> bits, m = 1 << bits;
    best_of(t->cost, n, m, t->best, t->from);
    for (int j = 0; j < n; j++) step[j] = (uint8_t)t->from[j];
    error_add(t->value, t->best, n, m, want, ratio, t->cost);
}

static void step_take(struct trellis_search *t, float want, float ratio, uint8_t *step)
{
    if (t->bits == 2) step_of(t, 2, want, ratio, step);
    else if (t->bits == 3) step_of(t, 3, want, ratio, step);
    else step_of(t, 4, want, ratio, step);
}

/* --- one span --- */

/* The cheapest of the states whose newest bits, `mask` of them, are `wanted`; the lowest of equals. */
static uint32_t cheapest(const struct trellis_search *t, uint32_t mask, uint32_t wanted)
{
    uint32_t best = wanted;
    for (uint32_t s = wanted; s < N_STATES; s += mask + 1)
        if (t->cost[s] < t->cost[best]) best = s;
    return best;
}

/* The state before the first of n weights, by a search that begins and ends freely on either side of the seam. */
static uint32_t seam_find(struct trellis_search *t, int n)
{
    int around = n / 2 < SEAM ? n / 2 : SEAM;
    memset(t->cost, 0, sizeof t->cost);
    for (int i = -around; i < around; i++) {
        int at = i < 0 ? i + n : i;
        step_take(t, t->want[at], t->ratio[at], t->step[i + around]);
    }
    uint32_t state = cheapest(t, 0, 0);
    for (int i = around - 1; i >= 0; i--)
        state = (uint32_t)t->step[i + around][state >> t->bits] << (TRELLIS_STATE_BITS - t->bits) | state >> t->bits;
    return state;
}

/* want and ratio of n weights -> bits_of. */
static void span_search(struct trellis_search *t, int n)
{
    uint32_t mask = (uint32_t)(N_STATES >> t->bits) - 1, seam = seam_find(t, n) & mask;
    for (uint32_t s = 0; s < N_STATES; s++) t->cost[s] = (s & mask) == seam ? 0 : NO_WAY;
    for (int i = 0; i < n; i++) step_take(t, t->want[i], t->ratio[i], t->step[i]);
    uint32_t state = cheapest(t, mask, seam);
    for (int i = n - 1; i >= 0; i--) {
        t->bits_of[i] = (uint8_t)(state & ((1u << t->bits) - 1));
        state = (uint32_t)t->step[i][state >> t->bits] << (TRELLIS_STATE_BITS - t->bits) | state >> t->bits;
    }
}

static void bits_put(uint8_t *codes, int bits, const uint8_t *bits_of, int n)
{
    memset(codes, 0, (size_t)(n * bits / 8));
    for (int i = 0; i < n; i++) {
        int at = i * bits, shift = at & 7;
        codes[at >> 3] |= (uint8_t)(bits_of[i] << shift);
        if (shift + bits > 8) codes[(at >> 3) + 1] |= (uint8_t)(bits_of[i] >> (8 - shift));
    }
}

/* --- scales --- */

/* The expected error of n weights under a scale: of a normal source in the codebook's reach, and of what lies beyond. */
static double scale_loss(const float *w, int n, int bits, double scale)
{
    static const double share[5] = { 0, 0, 0.069, 0.0187, 0.005 }; /* measured: error over the variance of the codebook */
    double reach = 116 * scale, beyond = 0;
    for (int i = 0; i < n; i++) {
        double off = fabs((double)w[i]) - reach;
        if (off > 0) beyond += off * off;
    }
    return n * share[bits] * (SPREAD * scale) * (SPREAD * scale) + beyond;
}

static double scale_choose(const float *w, int n, int bits)
{
    double sum = 0, most = 0, best, least;
    for (int i = 0; i < n; i++) {
        double a = fabs((double)w[i]);
        sum += a * a;
        most = a > most ? a : most;
    }
    double scale = best = sqrt(sum / n) / SPREAD * 1.09;
    least = scale_loss(w, n, bits, scale);
    for (int i = 0; i < 40 && 116 * scale < most; i++) {
        scale *= 1.06;
        double loss = scale_loss(w, n, bits, scale);
        if (loss < least) {
            least = loss;
            best = scale;
        }
    }
    return best;
}

/* A scale in its type: never 0 for weights that are not. */
static bool scale_put(double scale, enum dtype dt, uint8_t *to)
{
    float f = (float)scale;
    if (!floats_put(&f, 1, dt, to)) return false;
    if (scale > 0 && dtype_float_at(to, dt, 0) == 0) to[0] = 1; /* the least there is */
    return true;
}

/* The scale for which codes fit the weights best, if it is better in its type too. */
static void scale_fit(const float *w, const uint8_t *code, int n, enum dtype dt, uint8_t *at)
{
    double wv = 0, vv = 0, was = 0, now = 0, old = dtype_float_at(at, dt, 0);
    uint8_t fitted[4];
    for (int i = 0; i < n; i++) {
        double v = (double)code[i] - 128;
        wv += w[i] * v;
        vv += v * v;
    }
    if (!(vv > 0) || !scale_put(wv / vv, dt, fitted)) return;
    double scale = dtype_float_at(fitted, dt, 0);
    for (int i = 0; i < n; i++) {
        double v = (double)code[i] - 128;
        was += (w[i] - old * v) * (w[i] - old * v);
        now += (w[i] - scale * v) * (w[i] - scale * v);
    }
    if (now < was) memcpy(at, fitted, (size_t)dtype_get(dt)->size_bytes);
}

/* --- a row --- */

static bool span_quantise(struct trellis_search *t, const struct quant_spec *s, const float *w, int n, enum dtype dt, uint8_t *codes,
                          uint8_t *scales)
{
    size_t size = (size_t)dtype_get(dt)->size_bytes;
    int g = s->group_size, n_groups = n / g;
    float most = 0;
    for (int i = 0; i < n_groups; i++) {
        if (!scale_put(scale_choose(w + i * g, g, s->bits), dt, scales + (size_t)i * size)) return false;
        float scale = dtype_float_at(scales, dt, i);
        most = scale > most ? scale : most;
    }
    for (int i = 0; i < n; i++) {
        t->ratio[i] = most > 0 ? dtype_float_at(scales, dt, i / g) / most : 0;
        t->want[i] = most > 0 ? w[i] / most : 0;
    }
    span_search(t, n);
    bits_put(codes, s->bits, t->bits_of, n);
    for (int i = 0; i < n_groups; i++) {
        uint8_t code[128];
        trellis_codes(codes, s->bits, n, i * g, g, code); /* a span is a row of its own */
        scale_fit(w + i * g, code, g, dt, scales + (size_t)i * size);
    }
    return true;
}

bool trellis_quantise_row(struct trellis_search *t, const struct quant_spec *s, const float *row, int64_t n_in, enum dtype dt,
                          uint8_t *codes, uint8_t *scales)
{
    size_t size = (size_t)dtype_get(dt)->size_bytes;
    float sum = 0;
    for (int64_t i = 0; i < n_in; i++) sum += row[i] * 0.0f;
    if (sum != 0) return false; /* not finite */
    for (int64_t i = 0; i < n_in; i += TRELLIS_SPAN) {
        int n = n_in - i < TRELLIS_SPAN ? (int)(n_in - i) : TRELLIS_SPAN;
        uint8_t *c = codes + (size_t)i / 8 * (size_t)s->bits, *sc = scales + (size_t)(i / s->group_size) * size;
        if (!span_quantise(t, s, row + i, n, dt, c, sc)) return false;
    }
    return true;
}
