/* sample.c: one row of logits to one token: the chain of ops/sample.h over the vocabulary kernels of the table.
 *
 * Written once for all levels: what touches the whole vocabulary in float arithmetic goes through the table (same bits on
 * every level); the rest touches a few ids. Log-probabilities are x - (max + log(sum exp(x - max))) over all n logits,
 * padding of the head included, as mlx-lm takes them. Filters see probabilities over the ids that the grammar mask, the
 * end mask and the live range leave (with none of these: exactly the distribution above).
 * End ids are masked by ignore_eos or min_tokens, except where that would leave nothing: then the grammar wins.
 * Scratch: four arrays of n. Nothing is allocated. Passes over the vocabulary: its maximum and the sum of exponentials, by
 * blocks of 1,024 ids that threads may share; the rest looks at blocks whose maximum says that it is worth it.
 */
#include "ops/cpu/sample_int.h"

#include <math.h>
#include <string.h>

#include "ops/mathfn.h"

#define TEMPERATURE_MIN 1e-30f /* below: greedy, x / temperature would overflow */
#define LISTED_MAX 256         /* survivors drawn among one by one; more by the vector kernel over the whole row */

size_t cpu_sample_scratch_bytes(int64_t n_vocab)
{
    return ((size_t)n_vocab * 4 + (size_t)sample_blocks(n_vocab) * 2) * 4;
}

/* --- processors: bias and penalties. Each touches the ids of its own window only. --- */

static void bias_apply(float *x, int64_t n, const struct sample_params *p)
{
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id >= 0 && p->bias[i].id < n) x[p->bias[i].id] += p->bias[i].bias;
}

struct window {
    const int32_t *ids;
    int64_t n;
};

static struct window window_of(const struct sample_pos *pos, int32_t context)
{
    int64_t n = pos->n_history, c = context > 0 && context < n ? context : n;
    return (struct window){ pos->history + (n - c), c };
}

static bool id_ok(int32_t id, int64_t n)
{
    return id >= 0 && id < n;
}

/* `seen` needs no clearing of the whole vocabulary: the first pass clears what the second asks for. */
static void seen_clear(struct window w, int64_t n, int32_t *seen)
{
    for (int64_t i = 0; i < w.n; i++)
        if (id_ok(w.ids[i], n)) seen[w.ids[i]] = 0;
}

static void repetition_apply(float *x, int64_t n, const struct sample_pos *pos, int32_t *seen)
{
    float pen = pos->params->repetition_penalty;
    if (pen == 0.0f || pen == 1.0f) return;
    struct window w = window_of(pos, pos->params->repetition_context);
    seen_clear(w, n, seen);
    for (int64_t i = 0; i < w.n; i++) {
        int32_t id = w.ids[i];
        if (!id_ok(id, n) || seen[id]) continue;
        seen[id] = 1;
        x[id] = x[id] < 0.0f ? x[id] * pen : x[id] / pen;
    }
}

static void presence_apply(float *x, int64_t n, const struct sample_pos *pos, int32_t *seen)
{
    float pen = pos->params->presence_penalty;
    if (pen == 0.0f) return;
    struct window w = window_of(pos, pos->params->presence_context);
    seen_clear(w, n, seen);
    for (int64_t i = 0; i < w.n; i++) {
        int32_t id = w.ids[i];
        if (!id_ok(id, n) || seen[id]) continue;
        seen[id] = 1;
        x[id] -= pen;
    }
}

static void frequency_apply(float *x, int64_t n, const struct sample_pos *pos)
{
    float pen = pos->params->frequency_penalty;
    if (pen == 0.0f) return;
    struct window w = window_of(pos, pos->params->frequency_context);
    for (int64_t i = 0; i < w.n; i++)
        if (id_ok(w.ids[i], n)) x[w.ids[i]] -= pen;
}

/* --- what is reported --- */

static int32_t top_insert(int32_t c, int32_t cap, float v, int32_t id, float *val, int32_t *ids)
{
    int32_t at = c < cap ? c++ : c - 1;
    for (; at > 0 && v > val[at - 1]; at--) {
        val[at] = val[at - 1];
        ids[at] = ids[at - 1];
    }
    val[at] = v;
    ids[at] = id;
    return c;
}

/* The largest of x[0 .. n), from the blocks that can hold one. */
static void top_list(const struct sample_row *r, int64_t n, float lse, struct draw *out)
{
    int32_t cap = r->pos->params->n_top, c = 0;
    float val[SAMPLE_MAX_TOP];
    if (cap > SAMPLE_MAX_TOP) cap = SAMPLE_MAX_TOP;
    for (int64_t b = 0; b < n && cap > 0; b += SAMPLE_BLOCK) {
        if (c == cap && !(r->block_max[b / SAMPLE_BLOCK] > val[c - 1])) continue;
        int64_t end = n - b < SAMPLE_BLOCK ? n : b + SAMPLE_BLOCK;
        for (int64_t i = b; i < end; i++)
            if (r->x[i] > -INFINITY && (c < cap || r->x[i] > val[c - 1]))
                c = top_insert(c, cap, r->x[i], (int32_t)i, val, out->top_id);
    }
    out->n_top = c;
    for (int32_t i = 0; i < c; i++) out->top_logprob[i] = val[i] - lse;
}

/* --- masks --- */

static void mask_apply(float *x, int64_t n, const uint32_t *mask)
{
    for (int64_t i = 0; i < n; i += 32) {
        uint32_t bits = mask[i / 32];
        if (bits == 0xffffffffu) continue;
        int64_t end = n - i < 32 ? n - i : 32;
        for (int64_t j = 0; j < end; j++)
            if (!((bits >> j) & 1)) x[i + j] = -INFINITY;
    }
}

static bool end_masked(const struct sample_pos *pos)
{
    const struct sample_params *p = pos->params;
    return p->n_end_ids > 0 && (p->ignore_eos || pos->n_drawn < p->min_tokens);
}

/* Mask the end ids; returns whether any logit fell. `saved` keeps their values. */
static bool end_ids_hide(float *x, int64_t n, const struct sample_params *p, float *saved)
{
    bool any = false;
    for (int32_t i = 0; i < p->n_end_ids && i < n; i++) {
        int32_t id = p->end_ids[i];
        if (!id_ok(id, n)) continue;
        saved[i] = x[id];
        any = any || x[id] > -INFINITY;
        x[id] = -INFINITY;
    }
    return any;
}

/* Backwards, so that an id listed twice gets its true value last. */
static void end_ids_restore(float *x, int64_t n, const struct sample_params *p, const float *saved)
{
    int32_t c = p->n_end_ids < n ? p->n_end_ids : (int32_t)n;
    for (int32_t i = c - 1; i >= 0; i--)
        if (id_ok(p->end_ids[i], n)) x[p->end_ids[i]] = saved[i];
}

/* --- the HLG curve (ENG-080 .. 083). Distances from a pivot that lies pivot_offset below the top logit: the middle
 * (within `width`) stays, above it the curve rises like a logarithm of scale `shoulder`, below it falls like one of scale
 * `toe` (0: flat), slope 1 at both joints. Against the top, the middle gains; the tail comes closer. The gain is the
 * temperature's, applied by the draw. --- */
static float hlg_roll(float d, float width, float scale)
{
    if (d <= width) return d;
    if (!(scale > 0.0f)) return width;
    return width + scale * mb_log(1.0f + (d - width) / scale);
}

static void hlg_apply(float *x, int64_t n, float max, const struct sample_params *p)
{
    float pivot = max - p->hlg_pivot_offset;
    for (int64_t i = 0; i < n; i++) {
        if (!(x[i] > -INFINITY)) continue;
        float d = x[i] - pivot;
        x[i] = pivot + (d < 0.0f ? -hlg_roll(-d, p->hlg_width, p->hlg_toe)
                                 : hlg_roll(d, p->hlg_width, p->hlg_shoulder));
    }
}

/* --- the draw --- */

static bool xtc_hit(const struct sample_pos *pos)
{
    const struct sample_params *p = pos->params;
    if (!(p->xtc_probability > 0.0f)) return false;
    const struct noise_key *k = &p->noise;
    uint32_t key[2] = { (uint32_t)k->seed, (uint32_t)(k->seed >> 32) }, w[4];
    uint32_t ctr[4] = { 0, (uint32_t)pos->index, k->i_choice | (uint32_t)NOISE_XTC << 24, k->round };
    mb_philox4x32(ctr, key, w);
    float u = ((float)(w[0] >> 9) + 0.5f) * 0x1p-23f;
    return !(u > p->xtc_probability);
}

/* Does any filter compare with the mass of all candidates? */
static bool filters_want_mass(const struct sample_params *p, bool xtc)
{
    bool top_p = p->top_p > 0.0f && p->top_p < 1.0f;
    return top_p || (xtc && !(p->min_p > 0.0f));
}

static bool filters_on(const struct sample_params *p, bool xtc)
{
    return (p->top_p > 0.0f && p->top_p < 1.0f) || p->min_p > 0.0f || p->top_k > 0 || xtc;
}

struct arrays {
    int32_t *order, *heap, *keep;
    float *plain;
};

/* Gumbel-max among the ids of a short list: the values of vocab_gumbel, one by one. */
static int64_t draw_listed(const float *x, const int32_t *keep, int64_t n_keep, float inv_temp, const struct sample_pos *pos)
{
    const struct noise_key *k = &pos->params->noise;
    uint32_t key[2] = { (uint32_t)k->seed, (uint32_t)(k->seed >> 32) }, w[4];
    float best = -INFINITY;
    int64_t at = -1;
    for (int64_t i = 0; i < n_keep; i++) {
        int32_t id = keep[i];
        uint32_t ctr[4] = { (uint32_t)id / 4, (uint32_t)pos->index, k->i_choice | (uint32_t)NOISE_DRAW << 24, k->round };
        mb_philox4x32(ctr, key, w);
        float u = ((float)(w[id % 4] >> 9) + 0.5f) * 0x1p-23f;
        float v = x[id] * inv_temp + -mb_log(-mb_log(u));
        if (at >= 0 && (v < best || (v == best && id > at))) continue;
        best = v;
        at = id;
    }
    return at;
}

/* x: masked logits with maximum `max` at `argmax`; z: their sum of exponentials, or negative when not known. */
static int64_t draw_id(const struct cpu_kernels *t, struct sample_row *r, int64_t n, float max, int64_t argmax, float z,
                       struct arrays a)
{
    const struct sample_params *p = r->pos->params;
    const float *block_max = r->block_max;
    if (!(p->temperature >= TEMPERATURE_MIN)) return argmax;
    if (p->hlg) {
        bool finite;
        hlg_apply(r->x, n, max, p);
        t->vocab_max(r->x, n, &max, &argmax, &finite);
        z = -1.0f;
        block_max = NULL;
    }
    bool xtc = xtc_hit(r->pos);
    if (filters_on(p, xtc)) {
        if (z < 0.0f && filters_want_mass(p, xtc)) z = t->vocab_sumexp(r->x, n, max);
        int64_t n_keep = sample_survivors(r->x, n, max, z, block_max, p, xtc, a.order, a.heap, a.keep);
        if (n_keep >= 0 && n_keep <= LISTED_MAX) return draw_listed(r->x, a.keep, n_keep, 1.0f / p->temperature, r->pos);
        if (n_keep >= 0) sample_keep_only(r->x, n, a.keep, n_keep, (float *)a.heap);
    }
    return t->vocab_gumbel(r->x, n, 1.0f / p->temperature, &p->noise, (uint32_t)r->pos->index, NOISE_DRAW);
}

/* --- stages --- */

void sample_process(struct sample_row *r, int32_t *seen)
{
    bias_apply(r->x, r->n, r->pos->params);
    repetition_apply(r->x, r->n, r->pos, seen);
    presence_apply(r->x, r->n, r->pos, seen);
    frequency_apply(r->x, r->n, r->pos);
}

static int64_t block_len(const struct sample_row *r, int64_t b)
{
    int64_t left = r->n - b * SAMPLE_BLOCK;
    return left < SAMPLE_BLOCK ? left : SAMPLE_BLOCK;
}

void sample_block_max(const struct cpu_kernels *t, struct sample_row *r, int64_t b0, int64_t b1)
{
    for (int64_t b = b0; b < b1; b++) {
        int64_t at;
        bool finite;
        t->vocab_max(r->x + b * SAMPLE_BLOCK, block_len(r, b), &r->block_max[b], &at, &finite);
        if (!finite) r->block_max[b] = INFINITY;
    }
}

bool sample_max(const struct cpu_kernels *t, struct sample_row *r, struct draw *out)
{
    float best = -INFINITY;
    int64_t n_blocks = sample_blocks(r->n), i_best = 0, at;
    bool finite;
    memset(out, 0, sizeof *out);
    out->id = out->argmax = -1;
    for (int64_t b = 0; b < n_blocks; b++)
        if (r->block_max[b] > best) best = r->block_max[b], i_best = b;
    r->argmax = -1;
    out->non_finite = best == INFINITY;
    out->no_candidate = best == -INFINITY;
    if (out->non_finite || out->no_candidate) return false;
    t->vocab_max(r->x + i_best * SAMPLE_BLOCK, block_len(r, i_best), &r->max, &at, &finite);
    r->argmax = i_best * SAMPLE_BLOCK + at;
    return true;
}

static bool wants_logprobs(const struct sample_row *r)
{
    return !r->pos->params->no_logprobs || r->pos->params->n_top > 0 || r->pos->target >= 0;
}

bool sample_wants_sum(const struct sample_row *r)
{
    const struct sample_params *p = r->pos->params;
    if (wants_logprobs(r)) return true;
    bool masked = r->pos->mask || end_masked(r->pos) || (p->n_vocab_live > 0 && p->n_vocab_live < r->n) || p->hlg;
    return p->temperature >= TEMPERATURE_MIN && !masked && filters_want_mass(p, xtc_hit(r->pos));
}

void sample_block_sum(const struct cpu_kernels *t, struct sample_row *r, int64_t b0, int64_t b1)
{
    for (int64_t b = b0; b < b1; b++) r->block_sum[b] = t->vocab_sumexp(r->x + b * SAMPLE_BLOCK, block_len(r, b), r->max);
}

void sample_finish(const struct cpu_kernels *t, struct sample_row *r, void *scratch, struct draw *out)
{
    const struct sample_params *p = r->pos->params;
    float *x = r->x, max = r->max, z = -1.0f, lse = 0.0f;
    int64_t n = r->n, argmax = r->argmax, live = p->n_vocab_live > 0 && p->n_vocab_live < n ? p->n_vocab_live : n;
    struct arrays a = { scratch, (int32_t *)scratch + n, (int32_t *)scratch + 2 * n, (float *)scratch + 3 * n };
    bool finite;
    bool logprobs = wants_logprobs(r);
    if (sample_wants_sum(r)) {
        z = 0.0f;
        for (int64_t b = 0; b < sample_blocks(n); b++) z = z + r->block_sum[b];
        lse = max + mb_log(z);
    }
    if (argmax >= live) t->vocab_max(x, live, &max, &argmax, &finite);
    out->argmax = (int32_t)argmax;
    if (logprobs) out->argmax_logprob = x[argmax] - lse;
    if (r->pos->target >= 0) out->target_logprob = r->pos->target < n ? x[r->pos->target] - lse : -INFINITY;
    if (p->n_top > 0) top_list(r, live, lse, out);

    bool masked = live < n;
    if (r->pos->mask) {
        mask_apply(x, live, r->pos->mask);
        masked = true;
    }
    bool hidden = end_masked(r->pos) && end_ids_hide(x, live, p, (float *)a.keep);
    /* What the masks left; the maximum itself may have stayed. */
    if ((masked || hidden) && !(x[argmax] == max)) t->vocab_max(x, live, &max, &argmax, &finite);
    if (hidden && !(max > -INFINITY)) {
        end_ids_restore(x, live, p, (float *)a.keep);
        t->vocab_max(x, live, &max, &argmax, &finite);
    }
    out->no_candidate = !(max > -INFINITY);
    out->logprob = -INFINITY;
    if (out->no_candidate) return;

    /* The HLG curve rewrites logits, the draw needs one of them as it was. */
    float *plain = x;
    if (p->hlg && p->temperature >= TEMPERATURE_MIN) {
        plain = a.plain;
        memcpy(plain, x, (size_t)live * sizeof *x);
    }
    int64_t id = draw_id(t, r, live, max, argmax, masked || hidden ? -1.0f : z, a);
    out->id = (int32_t)id;
    out->logprob = logprobs ? plain[id] - lse : 0.0f;
}

void cpu_sample(const struct cpu_kernels *t, float *x, int64_t n, const struct sample_pos *pos, void *scratch,
                struct draw *out)
{
    float *blocks = (float *)scratch + 4 * n;
    int64_t n_blocks = sample_blocks(n);
    struct sample_row r = { .x = x, .n = n, .pos = pos, .block_max = blocks, .block_sum = blocks + n_blocks };
    sample_process(&r, scratch);
    sample_block_max(t, &r, 0, n_blocks);
    if (!sample_max(t, &r, out)) return;
    if (sample_wants_sum(&r)) sample_block_sum(t, &r, 0, n_blocks);
    sample_finish(t, &r, scratch, out);
}
